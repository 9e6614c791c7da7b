#include "convert/models.h"

#include "core/faults.h"
#include "core/mem.h"
#include "model/config.h"
#include "pack/hub.h"
#include "pack/pack_read.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define PATH_BYTES 4096

struct list {
    void (*see)(void *ctx, const struct dg_model_info *m);
    void *ctx;
    int seen;
    struct dg_config *cfg;
};

static bool is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

/* Whether the folder holds anything that a model of ours has; *bytes: of its weight files. */
static bool looks_like_one(const char *dir, uint64_t *bytes) {
    static const char *const weights[] = {".safetensors", ".dgq.bin", ".incomplete", ".part"};
    DIR *d = opendir(dir);
    bool any = false;
    *bytes = 0;
    if (!d)
        return false;
    for (struct dirent *e; (e = readdir(d));) {
        char path[PATH_BYTES];
        struct stat sb;
        size_t n = strlen(e->d_name);
        any |= strcmp(e->d_name, DG_MANIFEST_NAME) == 0 || strcmp(e->d_name, "model.safetensors.index.json") == 0;
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
            size_t m = strlen(weights[i]);
            if (n <= m || strcmp(e->d_name + n - m, weights[i]) != 0)
                continue;
            any = true;
            if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path && stat(path, &sb) == 0)
                *bytes += (uint64_t)sb.st_size;
        }
    }
    closedir(d);
    return any;
}

static void name_kind(const char *dir, char *kind, size_t n) {
    struct dg_manifest m;
    if (!dg_pack_is(dir)) {
        snprintf(kind, n, "checkpoint");
        return;
    }
    if (dg_manifest_load(&m, dir, NULL) == DG_OK)
        snprintf(kind, n, "%spack %.16s", dg_manifest_layered(&m) ? "layered " : "", dg_clip(m.profile, strlen(m.profile)).s);
    else
        snprintf(kind, n, "pack");
    dg_manifest_deinit(&m);
}

/* The configuration, then headers and sizes of all weight files. */
static enum dg_status check(struct list *l, const char *dir, struct dg_error *err) {
    struct dg_store *s = NULL;
    DG_TRY(dg_config_load(l->cfg, dir, err));
    enum dg_status st = dg_store_open(&s, err);
    if (st == DG_OK)
        st = dg_weights_add(s, dir, NULL, err);
    dg_store_close(s);
    return st;
}

/* Other people's models (their configuration says so) are passed over. */
static void look(struct list *l, const char *name, const char *dir) {
    struct dg_model_info m = {.name = name, .dir = dir};
    struct dg_error err = {0};
    char config[PATH_BYTES];
    struct stat sb;
    if (l->seen == DG_MODELS_MAX || !looks_like_one(dir, &m.bytes))
        return;
    enum dg_status st = check(l, dir, &err);
    bool has_config = snprintf(config, sizeof config, "%s/config.json", dir) < (int)sizeof config && stat(config, &sb) == 0;
    bool ours = dg_pack_is(dir) || (has_config ? st != DG_E_UNSUPPORTED : strcasestr(name, "diffusiongemma") || strcasestr(name, "diffgemma"));
    if (ours) {
        name_kind(dir, m.kind, sizeof m.kind);
        m.complete = st == DG_OK;
        m.why = st == DG_OK ? "" : dg_error_text(&err);
        l->seen++;
        l->see(l->ctx, &m);
    }
    dg_error_clear(&err);
}

static int skip_dots(const struct dirent *e) { return e->d_name[0] != '.'; }

/* Calls fn for every subfolder in order of name. */
static void each_folder(struct list *l, const char *dir, void (*fn)(struct list *l, const char *path, const char *name)) {
    struct dirent **e = NULL;
    int n = scandir(dir, &e, skip_dots, alphasort);
    for (int i = 0; i < n; i++) {
        char path[PATH_BYTES];
        if (i < DG_MODELS_MAX && snprintf(path, sizeof path, "%s/%s", dir, e[i]->d_name) < (int)sizeof path && is_dir(path))
            fn(l, path, e[i]->d_name);
        free(e[i]);
    }
    free(e);
}

static void look_local(struct list *l, const char *path, const char *name) {
    (void)name;
    look(l, path, path);
}

static void look_snapshot(struct list *l, const char *path, const char *revision) {
    const char *p = strstr(path, "/models--"), *q;
    (void)revision;
    while (p && (q = strstr(p + 1, "/models--")))
        p = q;
    const char *org = p ? p + strlen("/models--") : "", *name = strstr(org, "--"), *end = strchr(org, '/');
    char id[512];
    if (!name || !end || name > end)
        return;
    snprintf(id, sizeof id, "%.*s/%.*s", (int)(name - org), org, (int)(end - name - 2), name + 2);
    look(l, id, path);
}

static void look_repo(struct list *l, const char *path, const char *name) {
    char snapshots[PATH_BYTES];
    if (strncmp(name, "models--", 8) == 0 && snprintf(snapshots, sizeof snapshots, "%s/snapshots", path) < (int)sizeof snapshots)
        each_folder(l, snapshots, look_snapshot);
}

enum dg_status dg_models_list(const char *const *roots, int n_roots, void (*see)(void *ctx, const struct dg_model_info *m), void *ctx,
                              struct dg_error *err) {
    struct list l = {.see = see, .ctx = ctx, .cfg = dg_calloc(1, sizeof *l.cfg)};
    char root[DG_HUB_ROOTS_MAX][DG_HUB_PATH], hub[DG_HUB_PATH];
    if (!l.cfg)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (int i = 0; i < n_roots; i++)
        each_folder(&l, roots[i], look_local);
    int n = dg_hub_roots(root);
    for (int i = 0; i < n; i++) {
        if (snprintf(hub, sizeof hub, "%s/hub", root[i]) < (int)sizeof hub)
            each_folder(&l, hub, look_repo);
        each_folder(&l, root[i], look_repo);
    }
    dg_free(l.cfg);
    return DG_OK;
}
