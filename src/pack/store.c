#include "pack/store.h"

#include "core/faults.h"
#include "core/map.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

struct file {
    struct dg_map map;
    char *path;
    bool lent; /* map.data is the caller's */
};

struct dg_store {
    struct dg_tensor *tensor;
    size_t n, cap;
    struct file *file;
    int n_files, cap_files;
    void **own;
    size_t n_own, cap_own, own_bytes;
};

enum dg_status dg_store_open(struct dg_store **out, struct dg_error *err) {
    *out = dg_calloc(1, sizeof **out);
    return *out ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

void dg_store_close(struct dg_store *s) {
    if (!s)
        return;
    for (int i = 0; i < s->n_files; i++) {
        if (!s->file[i].lent)
            dg_map_close(&s->file[i].map);
        dg_free(s->file[i].path);
    }
    for (size_t i = 0; i < s->n_own; i++)
        dg_free(s->own[i]);
    dg_free(s->own);
    dg_free(s->file);
    dg_free(s->tensor);
    dg_free(s);
}

/* Makes room for one file more and fills its path. */
static enum dg_status next_file(struct dg_store *s, const char *path, struct file *f, struct dg_error *err) {
    if (s->n_files == DG_STORE_FILES_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "%s: a model may have at most %d files", path, DG_STORE_FILES_MAX);
    if (s->n_files == s->cap_files) {
        int cap = s->cap_files ? 2 * s->cap_files : 16;
        struct file *p = dg_realloc(s->file, (size_t)s->n_files, (size_t)cap, sizeof *p);
        if (!p)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
        s->file = p;
        s->cap_files = cap;
    }
    *f = (struct file){.path = dg_strndup(path, strlen(path))};
    return f->path ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

enum dg_status dg_store_map(struct dg_store *s, const char *path, int *file, struct dg_error *err) {
    struct file f;
    DG_TRY(next_file(s, path, &f, err));
    enum dg_status st = dg_map_open(&f.map, path, err);
    if (st != DG_OK) {
        dg_free(f.path);
        return st;
    }
    *file = s->n_files;
    s->file[s->n_files++] = f;
    return DG_OK;
}

enum dg_status dg_store_lend(struct dg_store *s, const char *name, const void *data, size_t n, int *file, struct dg_error *err) {
    struct file f;
    DG_TRY(next_file(s, name, &f, err));
    f.map = (struct dg_map){data, n};
    f.lent = true;
    *file = s->n_files;
    s->file[s->n_files++] = f;
    return DG_OK;
}

int dg_store_files(const struct dg_store *s) { return s->n_files; }

const char *dg_store_path(const struct dg_store *s, int file) { return s->file[file].path; }

const uint8_t *dg_store_bytes(const struct dg_store *s, int file, size_t *size) {
    *size = s->file[file].map.size;
    return s->file[file].map.data;
}

enum dg_status dg_store_add(struct dg_store *s, const struct dg_tensor *t, struct dg_error *err) {
    if (s->n == DG_STORE_TENSORS_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "%s: more than %d tensors", s->file[t->file].path, DG_STORE_TENSORS_MAX);
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        struct dg_tensor *p = dg_realloc(s->tensor, s->n, cap, sizeof *p);
        if (!p)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
        s->tensor = p;
        s->cap = cap;
    }
    s->tensor[s->n++] = *t;
    return DG_OK;
}

static int name_order(const char *a, size_t na, const char *b, size_t nb) {
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int by_name(const void *a, const void *b) {
    const struct dg_tensor *x = a, *y = b;
    return name_order(x->name, x->name_len, y->name, y->name_len);
}

enum dg_status dg_store_sort(struct dg_store *s, struct dg_error *err) {
    if (s->n)
        qsort(s->tensor, s->n, sizeof *s->tensor, by_name);
    struct dg_faults faults;
    dg_faults_init(&faults);
    for (size_t i = 1; i < s->n; i++) {
        const struct dg_tensor *a = &s->tensor[i - 1], *b = &s->tensor[i];
        if (by_name(a, b) == 0)
            dg_faults_add(&faults, DG_E_FORMAT, "two tensors are named %s (in %s and %s)", dg_clip(a->name, a->name_len).s,
                          s->file[a->file].path, s->file[b->file].path);
    }
    enum dg_status st = dg_faults_result(&faults, "damaged checkpoint", err);
    dg_faults_deinit(&faults);
    return st;
}

size_t dg_store_count(const struct dg_store *s) { return s->n; }

struct dg_tensor *dg_store_at(struct dg_store *s, size_t i) {
    return &s->tensor[i];
}

struct dg_tensor *dg_store_find(struct dg_store *s, const char *name, size_t n) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        struct dg_tensor *t = &s->tensor[mid];
        int c = name_order(name, n, t->name, t->name_len);
        if (c == 0)
            return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

enum dg_status dg_store_alloc(struct dg_store *s, void **out, size_t n, struct dg_error *err) {
    *out = NULL;
    if (n > DG_STORE_OWN_MAX || s->own_bytes > DG_STORE_OWN_MAX - n)
        return DG_FAIL(err, DG_E_LIMIT, "the model's vectors take more than %zu MiB", DG_STORE_OWN_MAX >> 20);
    if (s->n_own == s->cap_own) {
        size_t cap = s->cap_own ? 2 * s->cap_own : 256;
        void **p = dg_realloc(s->own, s->n_own, cap, sizeof *p);
        if (!p)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
        s->own = p;
        s->cap_own = cap;
    }
    void *p = dg_calloc(1, n);
    if (!p)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    s->own[s->n_own++] = p;
    s->own_bytes += n + 64; /* 64: what the smallest allocation takes, so that many small ones are counted too */
    *out = p;
    return DG_OK;
}
