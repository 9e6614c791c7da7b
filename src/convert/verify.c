#include "convert/verify.h"

#include "core/half.h"
#include "core/mem.h"
#include "model/model.h"
#include "pack/checkpoint.h"
#include "pack/pack_read.h"
#include "pack/pack_write.h"
#include "pack/policy.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define CHUNK ((int64_t)1 << 20)

struct work {
    struct dg_verify *v;
    const struct dg_stream_opts *opts;
    struct dg_pack_files files;
    struct dg_store *pack, *base;
    struct dg_sources from_pack, from_base;
    struct dg_stream_item *item, *base_item; /* by tensor; base_item.src -1: not compared */
    const struct dg_tensor **base_tensor;
    atomic_size_t next;
    atomic_uint_fast64_t done;
    uint64_t total;
    atomic_bool failed;
    pthread_mutex_t lock; /* of faults and error */
    struct dg_error error;
};

/* A thread's view of the tensor in work. */
struct check {
    struct work *w;
    const struct dg_manifest_tensor *t;
    XXH3_state_t hash;
    uint8_t *buf, *base_buf; /* CHUNK or one row */
    float *x, *y;            /* a row */
    size_t cap, base_cap, cap_x;
    uint8_t mat[4]; /* the matrix's own bytes, as decode_row wants them */
    double max_error, sum_error, sum_base;
    bool infinite; /* said once */
};

static void fault(struct work *w, const struct dg_manifest_tensor *t, const char *what) {
    pthread_mutex_lock(&w->lock);
    dg_faults_add(&w->v->faults, DG_E_FORMAT, "%s: %s", dg_clip(t->name, strlen(t->name)).s, what);
    pthread_mutex_unlock(&w->lock);
}

static bool bf16_finite(const uint8_t *p) { return (p[1] & 0x7f) != 0x7f || !(p[0] & 0x80); }

/* Scales and minimums of a row, or the values of a raw one. */
static bool row_finite(enum dg_format fmt, const uint8_t *row, int64_t k) {
    bool ok = true;
    switch (fmt) {
    case DG_FMT_Q4_BLOCK:
    case DG_FMT_Q6_BLOCK:
        for (int64_t b = 0, step = fmt == DG_FMT_Q4_BLOCK ? 20 : 28; b < k / 32; b++)
            ok &= bf16_finite(row + b * step) && bf16_finite(row + b * step + 2);
        return ok;
    case DG_FMT_Q8_ROW: return bf16_finite(row);
    case DG_FMT_NVFP4_BLOCK:
        for (int64_t b = 0; b < k / 16; b++)
            ok &= (row[k / 2 + b] & 0x7f) != 0x7f;
        return ok;
    case DG_FMT_BF16:
        for (int64_t i = 0; i < k; i++)
            ok &= bf16_finite(row + 2 * i);
        return ok;
    case DG_FMT_F16:
        for (int64_t i = 0; i < k; i++)
            ok &= (row[2 * i + 1] & 0x7c) != 0x7c;
        return ok;
    case DG_FMT_F32:
        for (int64_t i = 0; i < k; i++)
            ok &= (row[4 * i + 3] & 0x7f) != 0x7f || !(row[4 * i + 2] & 0x80);
        return ok;
    default: return true;
    }
}

static bool grow(void **p, size_t *cap, size_t need) {
    if (*cap >= need)
        return true;
    dg_free(*p);
    *p = dg_calloc(need, 1);
    *cap = *p ? need : 0;
    return *p != NULL;
}

static void compare_row(struct check *c, const uint8_t *row, const uint8_t *base, enum dg_format base_fmt, int64_t k) {
    dg_format_traits(c->t->kind)->decode_row(c->mat, row, k, c->x);
    dg_format_traits(base_fmt)->decode_row(base, base, k, c->y);
    for (int64_t i = 0; i < k; i++) {
        double d = (double)c->x[i] - (double)c->y[i], a = fabs(d);
        c->max_error = a <= c->max_error ? c->max_error : a; /* a NaN stays */
        c->sum_error += d * d;
        c->sum_base += (double)c->y[i] * (double)c->y[i];
    }
}

/* Reads n bytes at `at` of the tensor and hashes them. */
static enum dg_status take(struct check *c, const struct dg_stream_item *it, void *dst, size_t n, uint64_t at, struct dg_error *err) {
    if (c->w->opts->cancel && atomic_load(c->w->opts->cancel))
        return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
    DG_TRY(dg_pread_all(it->src, it->src_path, dst, n, it->src_at + at, err));
    XXH3_64bits_update(&c->hash, dst, n);
    atomic_fetch_add(&c->w->done, n);
    return DG_OK;
}

/* Rows of one matrix, from byte `at` of the tensor. */
static enum dg_status check_rows(struct check *c, size_t i, int64_t rows, int64_t k, uint64_t at, uint64_t base_at, struct dg_error *err) {
    const struct dg_stream_item *it = &c->w->item[i], *base = &c->w->base_item[i];
    enum dg_format fmt = c->t->kind, base_fmt = base->src >= 0 ? c->w->base_tensor[i]->kind : DG_FMT_BF16;
    int64_t row_bytes = dg_format_row_bytes(fmt, k), base_bytes = dg_format_row_bytes(base_fmt, k);
    int64_t most = base_bytes > row_bytes ? base_bytes : row_bytes, step = CHUNK / most > 1 ? CHUNK / most : 1;
    if (!grow((void **)&c->buf, &c->cap, (size_t)(step * most)) || !grow((void **)&c->base_buf, &c->base_cap, (size_t)(step * most)))
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (int64_t r = 0; r < rows; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        DG_TRY(take(c, it, c->buf, (size_t)(n * row_bytes), at + (uint64_t)(r * row_bytes), err));
        if (base->src >= 0)
            DG_TRY(dg_pread_all(base->src, base->src_path, c->base_buf, (size_t)(n * base_bytes),
                                base->src_at + base_at + (uint64_t)(r * base_bytes), err));
        for (int64_t j = 0; j < n; j++) {
            if (!c->infinite && !row_finite(fmt, c->buf + j * row_bytes, k)) {
                c->infinite = true;
                fault(c->w, c->t, c->t->raw ? "holds a value that is not finite" : "holds a scale that is not finite");
            }
            if (base->src >= 0)
                compare_row(c, c->buf + j * row_bytes, c->base_buf + j * base_bytes, base_fmt, k);
        }
    }
    return DG_OK;
}

/* Bytes of an element type that no weight has: hashed only. */
static enum dg_status check_opaque(struct check *c, const struct dg_stream_item *it, struct dg_error *err) {
    if (!grow((void **)&c->buf, &c->cap, (size_t)CHUNK))
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (uint64_t at = 0; at < c->t->bytes; at += (uint64_t)CHUNK)
        DG_TRY(take(c, it, c->buf, c->t->bytes - at < (uint64_t)CHUNK ? (size_t)(c->t->bytes - at) : (size_t)CHUNK, at, err));
    return DG_OK;
}

static enum dg_status check_matrices(struct check *c, size_t i, struct dg_error *err) {
    const struct dg_manifest_tensor *t = c->t;
    int64_t k = t->rank ? t->shape[t->rank - 1] : 1, rows = t->rank > 1 ? t->shape[t->rank - 2] : 1, mats = 1;
    for (int d = 0; d < t->rank - 2; d++)
        mats *= t->shape[d];
    bool base = c->w->base_item[i].src >= 0;
    int extra = dg_format_traits(t->kind)->mat_extra;
    uint64_t mat_bytes = (uint64_t)dg_format_mat_bytes(t->kind, rows, k);
    uint64_t base_bytes = base ? (uint64_t)dg_format_mat_bytes(c->w->base_tensor[i]->kind, rows, k) : 0;
    if (base && c->cap_x < (size_t)k) {
        dg_free(c->x);
        dg_free(c->y);
        c->x = dg_calloc((size_t)k, sizeof *c->x);
        c->y = dg_calloc((size_t)k, sizeof *c->y);
        c->cap_x = c->x && c->y ? (size_t)k : 0;
        if (!c->cap_x)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    for (int64_t m = 0; m < mats; m++) {
        if (extra) {
            float global;
            DG_TRY(take(c, &c->w->item[i], c->mat, 4, (uint64_t)m * mat_bytes, err));
            memcpy(&global, c->mat, 4);
            if (!isfinite(global) && !c->infinite) {
                c->infinite = true;
                fault(c->w, t, "holds a global scale that is not finite");
            }
        }
        DG_TRY(check_rows(c, i, rows, k, (uint64_t)m * mat_bytes + (uint64_t)extra, (uint64_t)m * base_bytes, err));
    }
    return DG_OK;
}

static enum dg_status check_tensor(struct check *c, size_t i, struct dg_error *err) {
    struct work *w = c->w;
    struct dg_verify_row *row = &w->v->row[i];
    c->t = &w->v->m.tensor[i];
    c->infinite = false;
    c->max_error = c->sum_error = c->sum_base = 0;
    XXH3_64bits_reset(&c->hash);
    DG_TRY(c->t->kind == DG_FMT_COUNT ? check_opaque(c, &w->item[i], err) : check_matrices(c, i, err));
    if (c->t->hashed && XXH3_64bits_digest(&c->hash) != c->t->xxh3)
        fault(w, c->t, "its bytes are not those its checksum was made from");
    row->compared = w->base_item[i].src >= 0;
    row->max_error = c->max_error;
    row->rel_rms = c->sum_error > 0 || isnan(c->sum_error) ? sqrt(c->sum_error / c->sum_base) : 0;
    return DG_OK;
}

static void verify_part(void *arg, int part, int n_parts) {
    struct work *w = arg;
    (void)n_parts;
    struct dg_error e = {0};
    struct check *c = dg_calloc(1, sizeof *c);
    enum dg_status st = c ? DG_OK : DG_FAIL(&e, DG_E_NOMEM, "out of memory");
    if (c)
        c->w = w;
    for (size_t i; st == DG_OK && !atomic_load(&w->failed) && (i = atomic_fetch_add(&w->next, 1)) < w->v->m.n_tensors;) {
        st = check_tensor(c, i, &e);
        if (part == 0 && w->opts->progress)
            w->opts->progress(w->opts->ctx, atomic_load(&w->done), w->total);
    }
    if (st != DG_OK) {
        pthread_mutex_lock(&w->lock);
        if (!atomic_load(&w->failed))
            w->error = e;
        else
            dg_error_clear(&e);
        atomic_store(&w->failed, true);
        pthread_mutex_unlock(&w->lock);
    }
    if (c) {
        dg_free(c->buf);
        dg_free(c->base_buf);
        dg_free(c->x);
        dg_free(c->y);
    }
    dg_free(c);
}

/* What the manifest and the folder say without reading the weights; false when nothing more can be looked at. */
static bool check_structure(struct work *w, const char *dir) {
    struct dg_verify *v = w->v;
    struct dg_error e = {0};
    enum dg_status st = dg_manifest_load(&v->m, dir, &e);
    if (st == DG_OK)
        st = dg_pack_map_files(w->pack, &v->m, dir, &w->files, &e);
    if (st == DG_OK)
        st = dg_pack_add_tensors(w->pack, &v->m, &w->files, &e);
    if (st != DG_OK) {
        dg_faults_add(&v->faults, st, "%s", dg_error_text(&e));
        dg_error_clear(&e);
        return false;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < v->m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &v->m.tensor[i];
        enum dg_class c = dg_class_of(t->name, strlen(t->name), t->rank);
        bool expert = c == DG_CLASS_GATE_UP || c == DG_CLASS_DOWN;
        int file;
        uint64_t at;
        dg_pack_locate(&v->m, t, &w->files, &file, &at);
        if (t->source != DG_SOURCE_EXTERNAL && at + t->bytes > end)
            end = at + t->bytes;
        if (v->m.has_split && expert != (t->offset >= v->m.split))
            dg_faults_add(&v->faults, DG_E_FORMAT, "%s is on the wrong side of expert_split", dg_clip(t->name, strlen(t->name)).s);
        v->n_hashed += t->hashed;
        w->total += t->bytes;
    }
    size_t size = 0;
    if (w->files.blob >= 0)
        (void)dg_store_bytes(w->pack, w->files.blob, &size);
    if (size > end)
        dg_faults_add(&v->faults, DG_E_FORMAT, "%" PRIu64 " bytes at the end of the blob belong to no tensor", size - end);
    return true;
}

/* Every text tensor is there and has the right shape, and nothing else is. */
static void check_model(struct work *w, const char *dir) {
    struct dg_model *m;
    struct dg_error e = {0};
    enum dg_status st = dg_model_open(&m, dir, &e);
    if (st != DG_OK)
        dg_faults_add(&w->v->faults, st, "%s", dg_error_text(&e));
    else if (m->warnings[0])
        dg_faults_add(&w->v->faults, DG_E_FORMAT, "%.*s", (int)strcspn(m->warnings, "\n"), m->warnings);
    dg_error_clear(&e);
    dg_model_close(m);
}

static enum dg_status open_items(struct work *w, const char *source, struct dg_error *err) {
    struct dg_verify *v = w->v;
    size_t n = v->m.n_tensors;
    v->row = dg_calloc(n, sizeof *v->row);
    w->item = dg_calloc(n, sizeof *w->item);
    w->base_item = dg_calloc(n, sizeof *w->base_item);
    w->base_tensor = dg_calloc(n, sizeof *w->base_tensor);
    if (!v->row || !w->item || !w->base_item || !w->base_tensor)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    DG_TRY(dg_sources_open(&w->from_pack, w->pack, err));
    if (source) {
        DG_TRY(dg_store_open(&w->base, err));
        DG_TRY(dg_weights_add(w->base, source, NULL, err));
        DG_TRY(dg_sources_open(&w->from_base, w->base, err));
    }
    for (size_t i = 0; i < n; i++) {
        const struct dg_manifest_tensor *t = &v->m.tensor[i];
        size_t len = strlen(t->name);
        w->base_item[i].src = -1;
        DG_TRY(dg_sources_feed(&w->from_pack, w->pack, dg_store_find(w->pack, t->name, len), &w->item[i], err));
        if (!source || t->kind == DG_FMT_COUNT)
            continue;
        const struct dg_tensor *b = dg_store_find(w->base, t->name, len);
        if (!b || b->kind > DG_FMT_F32 || b->rank != t->rank || memcmp(b->shape, t->shape, sizeof b->shape) != 0)
            return DG_FAIL(err, DG_E_FORMAT, "%s has no plain %s of the same shape", source, dg_clip(t->name, len).s);
        w->base_tensor[i] = b;
        DG_TRY(dg_sources_feed(&w->from_base, w->base, b, &w->base_item[i], err));
    }
    return DG_OK;
}

static enum dg_status check_all(struct work *w, struct dg_error *err) {
    struct dg_pool *pool;
    DG_TRY(dg_pool_create(&pool, w->opts->threads, err));
    dg_pool_run(pool, verify_part, w);
    dg_pool_destroy(pool);
    w->v->bytes = atomic_load(&w->done);
    if (!atomic_load(&w->failed))
        return DG_OK;
    enum dg_status st = DG_FAIL(err, w->error.code, "%s", dg_error_text(&w->error));
    dg_error_clear(&w->error);
    return st;
}

enum dg_status dg_verify_run(struct dg_verify *v, const char *dir, const char *source, const struct dg_stream_opts *opts, struct dg_error *err) {
    memset(v, 0, sizeof *v);
    dg_faults_init(&v->faults);
    struct work *w = dg_calloc(1, sizeof *w);
    if (!w)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    w->v = v;
    w->opts = opts;
    pthread_mutex_init(&w->lock, NULL);
    enum dg_status st;
    if (!dg_pack_is(dir)) {
        st = DG_FAIL(err, DG_E_ARG, "%s is no pack: it has no " DG_MANIFEST_NAME, dir);
        goto done;
    }
    DG_GO(dg_store_open(&w->pack, err));
    if (!check_structure(w, dir))
        goto done;
    check_model(w, dir);
    DG_GO(open_items(w, source, err));
    DG_GO(check_all(w, err));
done:
    dg_sources_close(&w->from_pack);
    dg_sources_close(&w->from_base);
    dg_store_close(w->pack);
    dg_store_close(w->base);
    dg_free(w->item);
    dg_free(w->base_item);
    dg_free(w->base_tensor);
    pthread_mutex_destroy(&w->lock);
    dg_free(w);
    return st;
}

void dg_verify_deinit(struct dg_verify *v) {
    dg_manifest_deinit(&v->m);
    dg_free(v->row);
    v->row = NULL;
    dg_faults_deinit(&v->faults);
}
