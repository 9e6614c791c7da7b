#include "support/st_read.h"

#include "core/map.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ST_HEADER_MAX (16u << 20)

struct st_tensor {
    char *name;
    enum st_dtype dtype;
    int rank;
    int64_t shape[4], numel;
    const void *data;
    bool was_read;
};

struct st_file {
    struct dg_map map;
    struct st_tensor *tensor;
    size_t n;
};

static const struct {
    const char *name;
    enum st_dtype dtype;
    size_t size;
} types[] = {
    {"U8", ST_U8, 1},   {"BOOL", ST_U8, 1}, {"I32", ST_I32, 4},   {"I64", ST_I64, 8},
    {"F32", ST_F32, 4}, {"F16", ST_F16, 2}, {"BF16", ST_BF16, 2},
};

/* Reads one header entry; returns what is wrong with it, or NULL. */
static const char *read_entry(struct st_tensor *t, const char *name, json_t *v, const uint8_t *data, size_t data_n) {
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    json_t *shape = json_object_get(v, "shape"), *off = json_object_get(v, "data_offsets");
    if (!dtype || !json_is_array(shape) || json_array_size(off) != 2)
        return "lacks dtype, shape or data_offsets";
    size_t k = 0, n_types = sizeof types / sizeof *types;
    while (k < n_types && strcmp(types[k].name, dtype))
        k++;
    if (k == n_types)
        return "has an element type this reader does not know";
    t->rank = (int)json_array_size(shape);
    if (t->rank > 4)
        return "has more than four dimensions";
    t->numel = 1;
    for (int i = 0; i < 4; i++) {
        t->shape[i] = i < t->rank ? json_integer_value(json_array_get(shape, (size_t)i)) : 1;
        if (t->shape[i] < 0 || __builtin_mul_overflow(t->numel, t->shape[i], &t->numel))
            return "has an impossible shape";
    }
    int64_t begin = json_integer_value(json_array_get(off, 0)), end = json_integer_value(json_array_get(off, 1)), bytes;
    if (begin < 0 || end < begin || (uint64_t)end > data_n || __builtin_mul_overflow(t->numel, (int64_t)types[k].size, &bytes) ||
        end - begin != bytes)
        return "has offsets that do not fit its shape or the file";
    t->data = data + begin;
    if ((uintptr_t)t->data % types[k].size)
        return "is not aligned to its element size";
    t->dtype = types[k].dtype;
    t->name = strdup(name);
    return t->name ? NULL : "finds no memory";
}

struct st_file *st_open(const char *path) {
    struct dg_error err = {0};
    struct st_file *f = calloc(1, sizeof *f);
    json_t *head = NULL;
    const char *what = "is too short";
    const char *name = "the header";
    if (!f || dg_map_open(&f->map, path, &err) != DG_OK) {
        fprintf(stderr, "%s\n", dg_error_text(&err));
        dg_error_clear(&err);
        free(f);
        return NULL;
    }
    uint64_t n = 0;
    if (f->map.size < 8)
        goto bad;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | f->map.data[i];
    if (n > ST_HEADER_MAX || n > f->map.size - 8)
        goto bad;
    json_error_t je;
    head = json_loadb((const char *)f->map.data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    what = "is not a JSON object";
    if (!json_is_object(head))
        goto bad;
    f->tensor = calloc(json_object_size(head) + 1, sizeof *f->tensor);
    what = "finds no memory";
    if (!f->tensor)
        goto bad;
    json_t *v;
    json_object_foreach(head, name, v) {
        if (!strcmp(name, "__metadata__"))
            continue;
        what = read_entry(&f->tensor[f->n], name, v, f->map.data + 8 + n, f->map.size - 8 - (size_t)n);
        if (what)
            goto bad;
        f->n++;
    }
    json_decref(head);
    return f;
bad:
    fprintf(stderr, "%s: %s %s\n", path, name, what);
    json_decref(head);
    st_close(f);
    return NULL;
}

void st_close(struct st_file *f) {
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++)
        free(f->tensor[i].name);
    free(f->tensor);
    dg_map_close(&f->map);
    free(f);
}

size_t st_count(const struct st_file *f) { return f->n; }

const char *st_name(const struct st_file *f, size_t i) { return f->tensor[i].name; }

bool st_was_read(const struct st_file *f, size_t i) { return f->tensor[i].was_read; }

static struct st_tensor *find(const struct st_file *f, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->tensor[i].name, name))
            return &f->tensor[i];
    return NULL;
}

const void *st_get(const struct st_file *f, const char *name, enum st_dtype *dtype, int *rank, int64_t shape[4]) {
    struct st_tensor *t = find(f, name);
    if (!t)
        return NULL;
    t->was_read = true;
    if (dtype)
        *dtype = t->dtype;
    if (rank)
        *rank = t->rank;
    if (shape)
        memcpy(shape, t->shape, sizeof t->shape);
    return t->data;
}

static const void *typed(const struct st_file *f, const char *name, enum st_dtype dtype, int64_t n) {
    struct st_tensor *t = find(f, name);
    if (!t)
        return NULL;
    if (t->dtype != dtype || (n >= 0 && t->numel != n)) {
        fprintf(stderr, "%s: another element type, or %lld elements instead of %lld\n", name, (long long)t->numel, (long long)n);
        return NULL;
    }
    t->was_read = true;
    return t->data;
}

const float *st_f32(const struct st_file *f, const char *name, int64_t n) { return typed(f, name, ST_F32, n); }
const int32_t *st_i32(const struct st_file *f, const char *name, int64_t n) { return typed(f, name, ST_I32, n); }
const uint8_t *st_u8(const struct st_file *f, const char *name, int64_t n) { return typed(f, name, ST_U8, n); }

bool st_has(const struct st_file *f, const char *name) { return find(f, name) != NULL; }

int64_t st_numel(const struct st_file *f, const char *name) {
    const struct st_tensor *t = find(f, name);
    return t ? t->numel : -1;
}
