#include "pack/hub.h"

#include "core/faults.h"
#include "core/mem.h"
#include "pack/pack_read.h"
#include "pack/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES DG_HUB_PATH
#define SNAPSHOTS_MAX 1000

bool dg_hub_is_repo_id(const char *s) {
    static const char *const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t org = strspn(s, allowed);
    if (org == 0 || org > 96 || s[0] == '.' || s[org] != '/')
        return false;
    const char *name = s + org + 1;
    size_t n = strspn(name, allowed);
    return n > 0 && n <= 96 && name[0] != '.' && name[n] == 0;
}

static bool joined(char dst[PATH_BYTES], const char *a, const char *b) {
    return snprintf(dst, PATH_BYTES, "%s/%s", a, b) < PATH_BYTES;
}

static bool is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

/* Opens the weights to see that all of them are there: headers are read, data is not. */
static bool is_complete(const char *dir, struct dg_error *why) {
    char path[PATH_BYTES];
    struct stat sb;
    struct dg_store *s = NULL;
    dg_error_clear(why);
    if (!joined(path, dir, "config.json") || stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        DG_FAIL(why, DG_E_IO, "%s: has no config.json", dir);
        return false;
    }
    bool good = dg_store_open(&s, why) == DG_OK && dg_weights_add(s, dir, NULL, why) == DG_OK;
    dg_store_close(s);
    return good;
}

/* The revision in refs/main: one plain name. */
static bool read_main(const char *repo, char *rev, size_t n) {
    char path[PATH_BYTES];
    if (!joined(path, repo, "refs/main"))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, rev, n - 1);
    close(fd);
    if (got <= 0)
        return false;
    rev[got] = 0;
    size_t len = strspn(rev, "0123456789abcdefABCDEF");
    if (len == 0 || (rev[len] && rev[len] != '\n'))
        return false;
    rev[len] = 0;
    return true;
}

/* Looks for a complete snapshot of one cached repository; `why` keeps the reason of the last one refused. */
static bool pick_snapshot(const char *repo, char best[PATH_BYTES], struct dg_error *why) {
    char snapshots[PATH_BYTES], path[PATH_BYTES], rev[128];
    if (!joined(snapshots, repo, "snapshots"))
        return false;
    if (read_main(repo, rev, sizeof rev) && joined(best, snapshots, rev) && is_dir(best) && is_complete(best, why))
        return true;
    DIR *d = opendir(snapshots);
    if (!d)
        return false;
    bool found = false;
    struct timespec newest = {0};
    struct dirent *e;
    for (int seen = 0; seen < SNAPSHOTS_MAX && (e = readdir(d));) {
        struct stat sb;
        if (e->d_name[0] == '.' || !joined(path, snapshots, e->d_name) || stat(path, &sb) != 0 || !S_ISDIR(sb.st_mode))
            continue;
        seen++;
        bool newer =
            sb.st_mtim.tv_sec > newest.tv_sec || (sb.st_mtim.tv_sec == newest.tv_sec && sb.st_mtim.tv_nsec > newest.tv_nsec);
        if ((found && !newer) || !is_complete(path, why))
            continue;
        found = true;
        newest = sb.st_mtim;
        memcpy(best, path, PATH_BYTES);
    }
    closedir(d);
    return found;
}

static char chosen_home[PATH_BYTES]; /* of dg_hub_use_home */

enum dg_status dg_hub_use_home(const char *hf_home, struct dg_error *err) {
    if (hf_home && strlen(hf_home) >= sizeof chosen_home)
        return DG_FAIL(err, DG_E_ARG, "DGQ_HF_HOME: the path is too long");
    snprintf(chosen_home, sizeof chosen_home, "%s", hf_home ? hf_home : "");
    return DG_OK;
}

int dg_hub_roots(char root[DG_HUB_ROOTS_MAX][DG_HUB_PATH]) {
    int n = 0;
    const char *hf = getenv("HF_HOME"), *home = getenv("HOME");
    if (*chosen_home)
        memcpy(root[n++], chosen_home, sizeof chosen_home);
    if (hf && *hf && snprintf(root[n], PATH_BYTES, "%s", hf) < PATH_BYTES)
        n++;
    if (home && *home && snprintf(root[n], PATH_BYTES, "%s/.cache/huggingface", home) < PATH_BYTES)
        n++;
    return n;
}

bool dg_hub_snapshot(const char *repo, const char *revision, char *path, size_t n) {
    char root[DG_HUB_ROOTS_MAX][PATH_BYTES];
    int n_roots = dg_hub_roots(root), org = (int)strcspn(repo, "/");
    size_t n_rev = strspn(revision, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_.");
    if (!dg_hub_is_repo_id(repo) || n_rev == 0 || revision[n_rev] || revision[0] == '.')
        return false;
    for (int i = 0; i < n_roots; i++)
        for (int flat = 0; flat < 2; flat++)
            if (snprintf(path, n, "%s/%smodels--%.*s--%s/snapshots/%s", root[i], flat ? "" : "hub/", org, repo, repo + org + 1, revision) < (int)n &&
                is_dir(path))
                return true;
    return false;
}

static enum dg_status resolve_repo(const char *id, char **dir_out, struct dg_error *err) {
    char root[DG_HUB_ROOTS_MAX][PATH_BYTES], name[256], best[PATH_BYTES], repo[PATH_BYTES];
    int n_roots = dg_hub_roots(root), org = (int)strcspn(id, "/");
    struct dg_error why = {0};
    bool found = false, cached = false;
    for (int i = 0; i < n_roots && !found; i++)
        for (int flat = 0; flat < 2 && !found; flat++) {
            snprintf(name, sizeof name, "%smodels--%.*s--%s", flat ? "" : "hub/", org, id, id + org + 1);
            if (!joined(repo, root[i], name) || !is_dir(repo))
                continue;
            cached = true;
            found = pick_snapshot(repo, best, &why);
        }
    enum dg_status st = DG_OK;
    if (found) {
        *dir_out = dg_strndup(best, strlen(best));
        if (!*dir_out)
            st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
    } else if (cached)
        st = DG_FAIL(err, DG_E_ARG, "%s is in the cache, but no snapshot is complete (%s); run: diffgemma download %s", id,
                     why.code != DG_OK ? dg_error_text(&why) : "there is none", id);
    else
        st = DG_FAIL(err, DG_E_ARG, "%s is neither a folder nor in the Hugging Face cache (%s%s%s%s%s); run: diffgemma download %s", id,
                     n_roots > 0 ? root[0] : "no cache folder: HOME is not set", n_roots > 1 ? ", " : "",
                     n_roots > 1 ? root[1] : "", n_roots > 2 ? ", " : "", n_roots > 2 ? root[2] : "", id);
    dg_error_clear(&why);
    return st;
}

/* arg exists but is no folder. */
static enum dg_status explain_file(const char *arg, struct dg_error *err) {
    char magic[4] = "";
    int fd = open(arg, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, magic, sizeof magic) : 0;
    if (fd >= 0)
        close(fd);
    struct dg_clip c = dg_clip(arg, strlen(arg));
    if (got == 4 && memcmp(magic, "GGUF", 4) == 0)
        return DG_FAIL(
            err, DG_E_ARG,
            "%s is a GGUF file; this engine reads safetensors checkpoints: diffgemma download google/diffusiongemma-26B-A4B-it", c.s);
    return DG_FAIL(err, DG_E_ARG, "%s is a file; give the folder that holds config.json and the weights, or a repo id (org/name)",
                   c.s);
}

enum dg_status dg_hub_resolve(const char *arg, char **dir_out, struct dg_error *err) {
    *dir_out = NULL;
    struct stat sb;
    if (stat(arg, &sb) == 0) {
        if (!S_ISDIR(sb.st_mode))
            return explain_file(arg, err);
        *dir_out = dg_strndup(arg, strlen(arg));
        return *dir_out ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    if (dg_hub_is_repo_id(arg))
        return resolve_repo(arg, dir_out, err);
    return DG_FAIL(err, DG_E_ARG, "%s: no such folder; a model is a folder or a repo id such as google/diffusiongemma-26B-A4B-it",
                   *arg ? dg_clip(arg, strlen(arg)).s : "(empty)");
}

enum dg_status dg_hub_cache_repo(const char *id, char **dir_out, struct dg_error *err) {
    char root[DG_HUB_ROOTS_MAX][PATH_BYTES], repo[PATH_BYTES];
    int org = (int)strcspn(id, "/");
    *dir_out = NULL;
    if (!dg_hub_is_repo_id(id))
        return DG_FAIL(err, DG_E_ARG, "%s is no repo id (org/name)", dg_clip(id, strlen(id)).s);
    if (dg_hub_roots(root) == 0)
        return DG_FAIL(err, DG_E_ARG, "no cache folder is known: set HOME or HF_HOME, or give a folder");
    if (snprintf(repo, sizeof repo, "%s/hub/models--%.*s--%s", root[0], org, id, id + org + 1) >= (int)sizeof repo)
        return DG_FAIL(err, DG_E_ARG, "the path of the cache folder is too long");
    *dir_out = dg_strndup(repo, strlen(repo));
    return *dir_out ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}
