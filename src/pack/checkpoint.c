#include "pack/checkpoint.h"

#include "core/faults.h"
#include "core/jsonr.h"
#include "core/map.h"
#include "core/mem.h"
#include "pack/safetensors.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX "model.safetensors.index.json"
#define INDEX_MAX ((size_t)64 << 20)
#define SHARD_NAME_MAX 255

static bool is_there(const char *dir, const char *name) {
    char path[4096];
    struct stat sb;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && stat(path, &sb) == 0;
}

void dg_checkpoint_remedy(const char *dir, char *dst, size_t n) {
    const char *mark = "models--", *p = NULL;
    for (const char *q = dir; (q = strstr(q, mark)); q++)
        if (q == dir || q[-1] == '/')
            p = q;
    const char *org = p ? p + strlen(mark) : "", *name = strstr(org, "--");
    size_t n_name = name ? strcspn(name + 2, "/") : 0;
    if (!name || name == org || n_name == 0 || memchr(org, '/', (size_t)(name - org)))
        snprintf(dst, n, "download it again");
    else
        snprintf(dst, n, "run: diffgemma download %.*s/%.*s", (int)(name - org), org, (int)n_name, name + 2);
}

struct shards {
    int n, cap;
    struct shard {
        char *name;
        size_t n;
        int file; /* in the store; -1 = not opened */
    } * v;
};

static void shards_deinit(struct shards *l) {
    for (int i = 0; i < l->n; i++)
        dg_free(l->v[i].name);
    dg_free(l->v);
}

static int shard_find(const struct shards *l, const char *name, size_t n) {
    for (int i = l->n - 1; i >= 0; i--) /* from the end: an index names the tensors of a shard together */
        if (l->v[i].n == n && memcmp(l->v[i].name, name, n) == 0)
            return i;
    return -1;
}

/* The string the reader stands on, unescaped; SIZE_MAX when it is longer than a file name can be. */
static size_t shard_name(const struct dg_jsonr *r, char name[SHARD_NAME_MAX + 1]) {
    return r->len <= SHARD_NAME_MAX ? dg_jsonr_unescape(r, name) : SIZE_MAX;
}

/* Adds the shard the reader stands on, once. */
static enum dg_status shard_note(struct shards *l, const struct dg_jsonr *r, struct dg_faults *faults, struct dg_error *err) {
    char name[SHARD_NAME_MAX + 1];
    struct dg_clip c = dg_clip(r->str, r->len);
    size_t n = shard_name(r, name);
    if (n != SIZE_MAX && shard_find(l, name, n) >= 0)
        return DG_OK;
    if (n == 0 || n == SIZE_MAX || memchr(name, 0, n) || memchr(name, '/', n) || name[0] == '.') {
        dg_faults_add(faults, DG_E_FORMAT, "shard name \"%s\" is not a plain file name", c.s);
        return DG_OK;
    }
    if (l->n == DG_STORE_FILES_MAX)
        return DG_FAIL(err, DG_E_LIMIT, INDEX ": more than %d shards", DG_STORE_FILES_MAX);
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 16;
        struct shard *v = dg_realloc(l->v, (size_t)l->n, (size_t)cap, sizeof *v);
        if (!v)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
        l->v = v;
        l->cap = cap;
    }
    char *copy = dg_strndup(name, n);
    if (!copy)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    l->v[l->n++] = (struct shard){copy, n, -1};
    return DG_OK;
}

/* State of one pass over the index. */
struct index {
    struct dg_map map;
    struct dg_jsonr json;
    struct dg_faults faults;
    struct shards shards;
    struct dg_store *store;
    uint64_t n_entries;
};

typedef enum dg_status index_fn(struct index *ix, const char *name, size_t n, struct dg_error *err);

static enum dg_status note_entry(struct index *ix, const char *name, size_t n, struct dg_error *err) {
    (void)name, (void)n;
    return shard_note(&ix->shards, &ix->json, &ix->faults, err);
}

/* The tensor must be in the shard that the index names. */
static enum dg_status check_entry(struct index *ix, const char *name, size_t n, struct dg_error *err) {
    (void)err;
    struct dg_clip c = dg_clip(name, n), shard = dg_clip(ix->json.str, ix->json.len);
    char shard_text[SHARD_NAME_MAX + 1];
    size_t n_shard = shard_name(&ix->json, shard_text);
    int i = n_shard == SIZE_MAX ? -1 : shard_find(&ix->shards, shard_text, n_shard);
    struct dg_tensor *t = dg_store_find(ix->store, name, n);
    if (!t)
        dg_faults_add(&ix->faults, DG_E_FORMAT, "%s is not in %s, where " INDEX " puts it", c.s, shard.s);
    else if (i < 0 || t->file != ix->shards.v[i].file)
        dg_faults_add(&ix->faults, DG_E_FORMAT, "%s is in %s, but " INDEX " puts it in %s", c.s,
                      dg_store_path(ix->store, t->file), shard.s);
    else if (t->listed)
        dg_faults_add(&ix->faults, DG_E_FORMAT, INDEX " lists %s twice", c.s);
    else
        t->listed = true;
    return DG_OK;
}

/* Calls fn for each member of weight_map, the reader standing on the shard's name. Grammar and type errors become faults. */
static enum dg_status walk_map(struct index *ix, index_fn *fn, struct dg_error *err) {
    struct dg_jsonr *r = &ix->json;
    enum dg_json_token t;
    while ((t = dg_jsonr_next(r)) == DG_JSON_KEY) {
        char name[DG_TENSOR_NAME_MAX];
        size_t n = r->len <= sizeof name ? dg_jsonr_unescape(r, name) : SIZE_MAX;
        struct dg_clip c = dg_clip(r->str, r->len);
        t = dg_jsonr_next(r);
        if (++ix->n_entries > DG_STORE_TENSORS_MAX)
            return DG_FAIL(err, DG_E_LIMIT, INDEX ": more than %d tensors", DG_STORE_TENSORS_MAX);
        if (t != DG_JSON_STRING || n == SIZE_MAX) {
            if (!dg_jsonr_skip_from(r, t))
                return DG_OK;
            dg_faults_add(&ix->faults, DG_E_FORMAT, "weight_map: \"%s\" must name a shard", c.s);
        } else
            DG_TRY(fn(ix, name, n, err));
    }
    return DG_OK;
}

static enum dg_status walk_index(struct index *ix, index_fn *fn, struct dg_error *err) {
    struct dg_jsonr *r = &ix->json;
    int maps = 0;
    ix->n_entries = 0;
    dg_jsonr_init(r, ix->map.data, ix->map.size);
    enum dg_json_token t = dg_jsonr_next(r);
    if (t != DG_JSON_OBJECT)
        dg_jsonr_fail(r, "the index must be an object");
    while (t != DG_JSON_ERROR && (t = dg_jsonr_next(r)) == DG_JSON_KEY) {
        if (!dg_jsonr_is(r, "weight_map"))
            (void)dg_jsonr_skip(r);
        else if ((t = dg_jsonr_next(r)) == DG_JSON_OBJECT) {
            maps++;
            DG_TRY(walk_map(ix, fn, err));
        } else
            dg_jsonr_fail(r, "weight_map must be an object");
    }
    if (t == DG_JSON_OBJECT_END)
        t = dg_jsonr_next(r);
    if (t != DG_JSON_END)
        dg_faults_add(&ix->faults, DG_E_FORMAT, "damaged at byte %zu: %s", r->at, r->what ? r->what : "unexpected value");
    else if (maps != 1 || ix->n_entries == 0)
        dg_faults_add(&ix->faults, DG_E_FORMAT, "it needs one weight_map that lists the tensors");
    return DG_OK;
}

static enum dg_status open_shards(struct index *ix, const char *dir, struct dg_error *err) {
    char remedy[512], path[4096];
    dg_checkpoint_remedy(dir, remedy, sizeof remedy);
    for (int i = 0; i < ix->shards.n; i++)
        if (!is_there(dir, ix->shards.v[i].name))
            dg_faults_add(&ix->faults, DG_E_IO, "shard %s is missing",
                          dg_clip(ix->shards.v[i].name, strlen(ix->shards.v[i].name)).s);
    if (ix->faults.n) {
        dg_faults_add(&ix->faults, DG_E_IO, "the download is incomplete, %s", remedy);
        ix->faults.n--; /* the advice is no fault */
        return DG_OK;
    }
    for (int i = 0; i < ix->shards.n; i++) {
        if (snprintf(path, sizeof path, "%s/%s", dir, ix->shards.v[i].name) >= (int)sizeof path)
            return DG_FAIL(err, DG_E_LIMIT, "path too long");
        struct dg_error one = {0};
        enum dg_status st = dg_store_map(ix->store, path, &ix->shards.v[i].file, &one);
        if (st == DG_OK)
            st = dg_safetensors_add(ix->store, ix->shards.v[i].file, &one);
        if (st == DG_E_FORMAT || st == DG_E_IO)
            dg_faults_add(&ix->faults, st, "%s", dg_error_text(&one));
        else if (st != DG_OK)
            DG_FAIL(err, st, "%s", dg_error_text(&one));
        dg_error_clear(&one);
        if (st != DG_OK && st != DG_E_FORMAT && st != DG_E_IO)
            return st;
    }
    return DG_OK;
}

static void warn_unlisted(struct dg_store *s, struct dg_buf *warnings) {
    size_t n = 0;
    const struct dg_tensor *first = NULL;
    for (size_t i = 0; i < dg_store_count(s); i++) {
        const struct dg_tensor *t = dg_store_at(s, i);
        if (!t->listed && n++ == 0)
            first = t;
    }
    if (n && warnings)
        (void)dg_buf_fmt(warnings, "%zu tensor%s in the shards but not in " INDEX ", first %s\n", n, n > 1 ? "s are" : " is",
                         dg_clip(first->name, first->name_len).s);
}

static enum dg_status add_sharded(struct dg_store *s, const char *dir, struct dg_buf *warnings, struct dg_error *err) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/" INDEX, dir) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    struct index ix = {.store = s};
    dg_faults_init(&ix.faults);
    enum dg_status st;
    DG_GO(dg_map_open(&ix.map, path, err));
    if (ix.map.size > INDEX_MAX) {
        st = DG_FAIL(err, DG_E_LIMIT, "%s: more than %zu MiB", path, INDEX_MAX >> 20);
        goto done;
    }
    DG_GO(walk_index(&ix, note_entry, err));
    DG_GO(dg_faults_result(&ix.faults, path, err));
    DG_GO(open_shards(&ix, dir, err));
    DG_GO(dg_faults_result(&ix.faults, dir, err));
    DG_GO(dg_store_sort(s, err));
    DG_GO(walk_index(&ix, check_entry, err));
    DG_GO(dg_faults_result(&ix.faults, dir, err));
    warn_unlisted(s, warnings);
done:
    dg_map_close(&ix.map);
    shards_deinit(&ix.shards);
    dg_faults_deinit(&ix.faults);
    return st;
}

enum dg_status dg_checkpoint_explain(const char *dir, const char *missing, struct dg_error *err) {
    static const struct {
        const char *suffix, *what;
        bool cut; /* the right kind of model, but not all of it */
    } kinds[] = {
        {".dgq.json", "a .dgq pack whose download is incomplete", true},
        {".dgq.bin", "a .dgq pack without its manifest, so it is not complete", true},
        {".gguf", "a GGUF model; this engine reads safetensors checkpoints, e.g. diffgemma download google/diffusiongemma-26B-A4B-it",
         false},
        {".safetensors", "safetensors files, so the download is incomplete", true},
        {".bin", "PyTorch weights; this engine reads safetensors checkpoints, e.g. diffgemma download google/diffusiongemma-26B-A4B-it",
         false},
        {".incomplete", "a download that did not finish", true},
    };
    enum { N = sizeof kinds / sizeof *kinds };
    int best = N;
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        for (int i = 0; i < best; i++)
            if (n > strlen(kinds[i].suffix) && strcmp(e->d_name + n - strlen(kinds[i].suffix), kinds[i].suffix) == 0)
                best = i;
    }
    if (d)
        closedir(d);
    char remedy[512];
    dg_checkpoint_remedy(dir, remedy, sizeof remedy);
    if (best == N)
        return DG_FAIL(err, DG_E_IO, "%s: has no %s; %s", dir, missing, remedy);
    return DG_FAIL(err, kinds[best].cut ? DG_E_IO : DG_E_UNSUPPORTED, "%s: has no %s; it holds %s%s%s", dir, missing,
                   kinds[best].what, kinds[best].cut ? ", " : "", kinds[best].cut ? remedy : "");
}

enum dg_status dg_checkpoint_add(struct dg_store *s, const char *dir, struct dg_buf *warnings, struct dg_error *err) {
    char path[4096];
    int file;
    if (snprintf(path, sizeof path, "%s/model.safetensors", dir) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "%s: path too long", dir);
    if (is_there(dir, "model.safetensors")) {
        DG_TRY(dg_store_map(s, path, &file, err));
        DG_TRY(dg_safetensors_add(s, file, err));
        return dg_store_sort(s, err);
    }
    if (is_there(dir, INDEX))
        return add_sharded(s, dir, warnings, err);
    return dg_checkpoint_explain(dir, "model.safetensors and no " INDEX, err);
}
