#include "pack/stream.h"

#include "core/half.h"
#include "core/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define PIECE_BYTES ((int64_t)256 << 10) /* of source: one thread's unit of work */
#define BATCH_MIN ((int64_t)8 << 20)     /* of output: what is written in one go */
#define BATCH_MAX ((int64_t)64 << 20)

enum dg_status dg_pread_all(int fd, const char *path, void *buf, size_t n, uint64_t at, struct dg_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return DG_FAIL(err, DG_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (got == 0)
            return DG_FAIL(err, DG_E_IO, "%s ended early: it was changed while it was read", path);
        done += (size_t)got;
    }
    return DG_OK;
}

enum dg_status dg_pwrite_all(int fd, const char *path, const void *buf, size_t n, uint64_t at, struct dg_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, (const char *)buf + done, n - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, put < 0 ? strerror(errno) : "nothing was written");
        done += (size_t)put;
    }
    return DG_OK;
}

/* One item seen as units in a line: rows, or single bytes where it is copied. */
struct shape {
    int64_t units, unit_src, unit_out, per_mat, mat_extra;
};

static struct shape shape_of(const struct dg_stream_item *it) {
    if (it->verbatim)
        return (struct shape){(int64_t)it->bytes, 1, 1, INT64_MAX, 0};
    return (struct shape){it->mats * it->rows, it->src < 0 ? it->k * 2 : dg_format_row_bytes(it->from, it->k), dg_format_row_bytes(it->to, it->k),
                          it->rows, dg_format_traits(it->to)->mat_extra};
}

/* Offset in the output of unit u; at a matrix's first row, of the bytes before it. */
static int64_t out_at(const struct shape *s, int64_t u) {
    return u / s->per_mat * (s->mat_extra + s->per_mat * s->unit_out) + (u % s->per_mat ? s->mat_extra + u % s->per_mat * s->unit_out : 0);
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct scratch {
    uint8_t *src;
    float *x;
};

struct stream {
    const struct dg_stream_opts *opts;
    struct dg_pool *pool;
    int n_threads;
    uint8_t *out[2];
    int64_t batch_bytes, piece_bytes;
    struct scratch *scratch; /* a thread each */
    XXH3_state_t *hash;
    uint32_t *abs_max; /* f32 bits, a matrix each */
    float *ones;       /* weights of items that have none */
    pthread_mutex_t lock;
    struct dg_error error; /* the first one */
    atomic_bool failed;
    uint64_t done, total;
    /* the batch in work */
    struct dg_stream_item *item;
    struct shape shape;
    int64_t u0, u1, piece;
    bool measuring; /* the pass before an nvfp4 matrix that finds its largest value */
    int buffer;
    atomic_int_fast64_t next;
    /* the batch before, which is written meanwhile */
    struct dg_stream_item *late;
    int64_t late_from, late_bytes;
};

static void keep_error(struct stream *s, struct dg_error *e) {
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->failed)) {
        s->error = *e;
        atomic_store(&s->failed, true);
    } else
        dg_error_clear(e);
    pthread_mutex_unlock(&s->lock);
}

static enum dg_status write_late(struct stream *s, struct dg_error *err) {
    struct dg_stream_item *it = s->late;
    const uint8_t *p = s->out[!s->buffer];
    if (!it)
        return DG_OK;
    if (s->late_from == 0)
        XXH3_64bits_reset(s->hash);
    XXH3_64bits_update(s->hash, p, (size_t)s->late_bytes);
    DG_TRY(dg_pwrite_all(it->dst, it->dst_path, p, (size_t)s->late_bytes, it->dst_at + (uint64_t)s->late_from, err));
    if (s->late_from + s->late_bytes == (int64_t)it->bytes)
        it->xxh3 = XXH3_64bits_digest(s->hash);
    return DG_OK;
}

/* The largest of non-negative floats, by their bits. */
static void raise_max(uint32_t *slot, float v) {
    uint32_t want = dg_f32_bits(v), have = __atomic_load_n(slot, __ATOMIC_RELAXED);
    while (have < want && !__atomic_compare_exchange_n(slot, &have, want, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static enum dg_status encode_unit(struct stream *s, const struct scratch *w, const uint8_t *src, int64_t u, struct dg_error *err) {
    const struct dg_stream_item *it = s->item;
    int64_t mat = u / s->shape.per_mat, row = u % s->shape.per_mat;
    uint8_t *dst = s->out[s->buffer] + out_at(&s->shape, u) - out_at(&s->shape, s->u0);
    float abs_max, global = 0;
    if (it->src < 0)
        it->make(it->make_ctx, u, it->k, w->x);
    else
        dg_format_traits(it->from)->decode_row(src, src, it->k, w->x);
    if (!dg_row_finite(w->x, it->k, &abs_max))
        return DG_FAIL(err, DG_E_NUMERIC, "%s: row %" PRId64 " holds a value that is not finite", it->name, u);
    if (s->measuring) {
        raise_max(&s->abs_max[mat], abs_max);
        return DG_OK;
    }
    if (it->to == DG_FMT_NVFP4_BLOCK) {
        global = dg_nvfp4_global(it->codes, dg_bits_f32(s->abs_max[mat]));
        if (row == 0)
            memcpy(dst, &global, 4);
    }
    if (row == 0)
        dst += s->shape.mat_extra;
    if (!dg_encode_row(it->to, it->codes, w->x, it->weights ? it->weights : s->ones, it->k, global, dst))
        return DG_FAIL(err, DG_E_NUMERIC, "%s: row %" PRId64 " spans more than %s can express", it->name, u, dg_format_traits(it->to)->name);
    return DG_OK;
}

static enum dg_status do_piece(struct stream *s, const struct scratch *w, int64_t u, int64_t end, struct dg_error *err) {
    const struct dg_stream_item *it = s->item;
    uint64_t at = it->src_at + (uint64_t)(u * s->shape.unit_src);
    size_t bytes = (size_t)((end - u) * s->shape.unit_src);
    if (it->verbatim)
        return dg_pread_all(it->src, it->src_path, s->out[s->buffer] + (u - s->u0), bytes, at, err);
    if (it->src >= 0)
        DG_TRY(dg_pread_all(it->src, it->src_path, w->src, bytes, at, err));
    for (int64_t i = u; i < end; i++)
        DG_TRY(encode_unit(s, w, w->src + (i - u) * s->shape.unit_src, i, err));
    return DG_OK;
}

/* Threads take pieces as they come; piece 0 is the writing of the batch before. */
static void work(void *arg, int part, int n_parts) {
    struct stream *s = arg;
    (void)n_parts;
    for (;;) {
        int64_t i = (int64_t)atomic_fetch_add(&s->next, 1);
        int64_t u = s->u0 + (i - 1) * s->piece, end = u + s->piece < s->u1 ? u + s->piece : s->u1;
        if ((i > 0 && u >= s->u1) || atomic_load(&s->failed))
            return;
        struct dg_error e = {0};
        if ((i == 0 ? write_late(s, &e) : do_piece(s, &s->scratch[part], u, end, &e)) != DG_OK)
            keep_error(s, &e);
    }
}

static enum dg_status run_batch(struct stream *s, struct dg_error *err) {
    if (s->opts->cancel && atomic_load(s->opts->cancel))
        return DG_FAIL(err, DG_E_CANCELLED, "interrupted; nothing was kept");
    atomic_store(&s->next, 0);
    dg_pool_run(s->pool, work, s);
    if (atomic_load(&s->failed)) {
        enum dg_status st = DG_FAIL(err, s->error.code, "%s", dg_error_text(&s->error));
        dg_error_clear(&s->error);
        return st;
    }
    s->late = NULL;
    return DG_OK;
}

static enum dg_status measure(struct stream *s, struct dg_error *err) {
    memset(s->abs_max, 0, (size_t)s->item->mats * sizeof *s->abs_max);
    s->measuring = true;
    int64_t step = s->batch_bytes / s->shape.unit_src + 1;
    enum dg_status st = DG_OK;
    for (int64_t u = 0; u < s->shape.units && st == DG_OK; u += step) {
        s->u0 = u;
        s->u1 = u + step < s->shape.units ? u + step : s->shape.units;
        st = run_batch(s, err);
    }
    s->measuring = false;
    return st;
}

static enum dg_status do_item(struct stream *s, struct dg_stream_item *it, struct dg_error *err) {
    s->item = it;
    s->shape = shape_of(it);
    s->piece = most(1, s->piece_bytes / s->shape.unit_src);
    if (!it->verbatim && it->to == DG_FMT_NVFP4_BLOCK)
        DG_TRY(measure(s, err));
    for (int64_t u = 0; u < s->shape.units; u = s->u1) {
        /* as many units as surely fit, with a global before each of them */
        int64_t step = most(1, s->batch_bytes / (s->shape.unit_out + s->shape.mat_extra));
        s->u0 = u;
        s->u1 = u + step < s->shape.units ? u + step : s->shape.units;
        DG_TRY(run_batch(s, err));
        s->late = it;
        s->late_from = out_at(&s->shape, u);
        s->late_bytes = (s->u1 == s->shape.units ? (int64_t)it->bytes : out_at(&s->shape, s->u1)) - s->late_from;
        s->buffer = !s->buffer;
        s->done += (uint64_t)((s->u1 - u) * s->shape.unit_src);
        if (s->opts->progress)
            s->opts->progress(s->opts->ctx, s->done, s->total);
    }
    return DG_OK;
}

static enum dg_status reserve(struct stream *s, const struct dg_stream_item *items, size_t n, struct dg_error *err) {
    int64_t out = 1, src = 1, k = 1, mats = 1;
    for (size_t i = 0; i < n; i++) {
        struct shape h = shape_of(&items[i]);
        s->total += (uint64_t)(h.units * h.unit_src);
        out = most(out, h.unit_out + h.mat_extra);
        src = most(src, h.unit_src);
        k = most(k, items[i].verbatim ? 1 : items[i].k);
        mats = most(mats, items[i].verbatim ? 1 : items[i].mats);
    }
    s->batch_bytes = s->n_threads * ((int64_t)4 << 20);
    s->batch_bytes = s->batch_bytes < BATCH_MIN ? BATCH_MIN : s->batch_bytes > BATCH_MAX ? BATCH_MAX : s->batch_bytes;
    s->batch_bytes = most(s->batch_bytes, out);
    s->piece_bytes = PIECE_BYTES;
    s->hash = dg_calloc(1, sizeof *s->hash);
    s->abs_max = dg_calloc((size_t)mats, sizeof *s->abs_max);
    s->ones = dg_calloc((size_t)k, sizeof *s->ones);
    s->scratch = dg_calloc((size_t)s->n_threads, sizeof *s->scratch);
    bool ok = s->hash && s->abs_max && s->ones && s->scratch;
    for (int64_t i = 0; ok && i < k; i++)
        s->ones[i] = 1.0f;
    for (int i = 0; i < 2 && ok; i++)
        ok = (s->out[i] = dg_calloc((size_t)s->batch_bytes, 1)) != NULL;
    for (int i = 0; i < s->n_threads && ok; i++) {
        s->scratch[i].src = dg_calloc((size_t)most(s->piece_bytes, src), 1);
        s->scratch[i].x = dg_calloc((size_t)k, sizeof(float));
        ok = s->scratch[i].src && s->scratch[i].x;
    }
    return ok ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "not enough memory for the buffers of %d threads", s->n_threads);
}

enum dg_status dg_stream_run(struct dg_stream_item *items, size_t n, const struct dg_stream_opts *opts, struct dg_error *err) {
    struct stream s = {.opts = opts};
    enum dg_status st;
    pthread_mutex_init(&s.lock, NULL);
    DG_GO(dg_pool_create(&s.pool, opts->threads, err));
    s.n_threads = dg_pool_threads(s.pool);
    DG_GO(reserve(&s, items, n, err));
    for (size_t i = 0; i < n; i++)
        DG_GO(do_item(&s, &items[i], err));
    s.u0 = s.u1 = 0;
    DG_GO(run_batch(&s, err)); /* writes the last batch */
done:
    for (int i = 0; s.scratch && i < s.n_threads; i++) {
        dg_free(s.scratch[i].src);
        dg_free(s.scratch[i].x);
    }
    dg_free(s.scratch);
    dg_free(s.out[0]);
    dg_free(s.out[1]);
    dg_free(s.hash);
    dg_free(s.abs_max);
    dg_free(s.ones);
    dg_pool_destroy(s.pool);
    pthread_mutex_destroy(&s.lock);
    return st;
}
