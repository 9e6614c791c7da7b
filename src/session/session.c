#include "session/session.h"

#include "core/mem.h"
#include "core/meminfo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_CTX 8192
#define DRAW_BLOCK 1024 /* ids summed together when one is drawn */
#define DRAW_BLOCKS(vocab) (((vocab) + DRAW_BLOCK - 1) / DRAW_BLOCK)

bool dg_prefill_is_fast(enum dg_prefill_rule rule, int64_t fast_max, int64_t before, int64_t n) {
    bool within = fast_max == 0 || n <= fast_max;
    if (before > 0)
        return within;
    return rule == DG_PREFILL_FAST || (rule == DG_PREFILL_AUTO && n > DG_PREFILL_EXACT_MAX && within);
}

static struct dg_reserve scratch_for(const struct dg_config *c, int64_t ctx, int32_t rows) {
    struct dg_reserve r = {.rows = rows, .ctx = ctx, .topk = c->topk, .experts = c->experts, .moe = c->moe, .hidden = c->hidden};
    r.k_max = c->hidden > c->inter ? c->hidden : c->inter;
    r.k_max = c->moe > r.k_max ? c->moe : r.k_max;
    r.k_max = c->experts > r.k_max ? c->experts : r.k_max;
    for (int32_t l = 0; l < c->layers; l++) {
        int32_t q = c->heads * c->layer[l].hd;
        r.k_max = q > r.k_max ? q : r.k_max;
    }
    return r;
}

static enum dg_status reserve(struct dg_backend *be, int64_t ctx, int32_t rows, struct dg_error *err) {
    struct dg_reserve r = scratch_for(&be->model->cfg, ctx, rows);
    return dg_backend_reserve(be, &r, err);
}

static int32_t rows_of(const struct dg_config *c, const struct dg_session_opts *o) { return o->chunk > c->canvas ? o->chunk : c->canvas; }

enum dg_status dg_session_opts_resolve(const struct dg_config *c, const struct dg_ops *ops, struct dg_session_opts *o, struct dg_error *err) {
    if (o->ctx == 0)
        o->ctx = c->ctx_max < DEFAULT_CTX ? c->ctx_max : DEFAULT_CTX;
    if (o->chunk == 0) {
        o->chunk = c->canvas > 256 ? c->canvas : 256;
        if (ops && ops->chunk > o->chunk)
            o->chunk = dg_kv_rows_fit(c, o->ctx, o->ring, o->chunk, ops->chunk);
    }
    if (o->ctx > c->ctx_max)
        return DG_FAIL(err, DG_E_ARG, "a context of %lld is more than this model's %d", (long long)o->ctx, c->ctx_max);
    if (o->ctx < (int64_t)c->canvas + 1)
        return DG_FAIL(err, DG_E_ARG, "a context of %lld has no room for one canvas of %d and a prompt", (long long)o->ctx, c->canvas);
    if (o->chunk < 1)
        return DG_FAIL(err, DG_E_ARG, "a prefill chunk of %d rows makes no sense", o->chunk);
    if (o->chunk > o->ctx)
        o->chunk = (int32_t)o->ctx;
    return DG_OK;
}

size_t dg_session_needs(void *ctx, const struct dg_backend *be, struct dg_reserve *scratch) {
    const struct dg_session_needs *n = ctx;
    const struct dg_config *c = &be->model->cfg;
    struct dg_session_opts o = *n->opts;
    struct dg_error said_later = {0};
    if (dg_session_opts_resolve(c, be->ops, &o, &said_later) != DG_OK) {
        dg_error_clear(&said_later);
        return 0;
    }
    int32_t rows = rows_of(c, &o);
    *scratch = scratch_for(c, o.ctx, rows);
    return n->sessions * dg_kv_bytes(c, o.ctx, o.ring, rows, o.kv) + dg_planes_bytes(be, rows);
}

/* Refuses what the machine cannot hold before any of it is taken: memory that is not there is given out all the same, and the process that
 * uses it is killed. Weights are mapped, and what the system keeps of their files it gives up for others. */
static enum dg_status check_memory(const struct dg_session *s, int32_t rows, struct dg_error *err) {
    const struct dg_session_opts *o = &s->opts;
    if (!s->be->ops->host_memory)
        return DG_OK;
    size_t kv = dg_kv_bytes(s->cfg, o->ctx, o->ring, rows, o->kv), planes = o->planes ? 0 : dg_planes_bytes(s->be, rows);
    if (s->other.be && !o->other.planes)
        planes += dg_planes_bytes_prefill(s->other.be, s->other.be->ops->act, rows);
    uint64_t room = dg_mem_available();
    if (kv + planes <= room)
        return DG_OK;
    /* the largest context that fits, to a thousand */
    int64_t lo = 0, hi = o->ctx;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(dg_kv_bytes(s->cfg, mid, o->ring, rows, o->kv) + planes <= room ? &lo : &hi) = mid;
    }
    lo = lo > 1024 ? lo / 1024 * 1024 : lo;
    char advice[80] = "not even the smallest fits";
    if (lo > s->cfg->canvas)
        snprintf(advice, sizeof advice, "--ctx %lld fits", (long long)lo);
    return DG_FAIL(err, DG_E_NOMEM,
                   "a context of %lld needs %.2f GiB for its KV cache and %.2f GiB to compute in, and %.2f GiB of memory are free "
                   "(weights are mapped and not counted): %s%s",
                   (long long)o->ctx, (double)kv / (1 << 30), (double)planes / (1 << 30), (double)room / (1 << 30), advice,
                   o->kv == DG_Q8 || !s->be->ops->kv_q8 ? "" : "; --kv q8 halves the cache");
}

/* The backend of the other precision, its scratch, and the record of who computed what. */
static enum dg_status other_path(struct dg_session *s, int32_t rows, struct dg_error *err) {
    if (s->opts.prefill == DG_PREFILL_ONE_PATH)
        return DG_OK;
    s->fast = dg_calloc((size_t)s->opts.ctx, 1);
    if (!s->fast)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the session");
    s->other.be = s->opts.other.be;
    if (!s->other.be) {
        if (!s->be->twin)
            return DG_FAIL(err, DG_E_ARG,
                           "DGQ_FAST_PREFILL needs planes in f32 and in bf16, and the backend %s has one kind: unset it, or use --backend cpu",
                           s->be->ops->name);
        DG_TRY(s->be->twin(s->be, s->be->ops->act == DG_F32 ? DG_BF16 : DG_F32, &s->other.be, err));
    }
    return reserve(s->other.be, s->opts.ctx, rows, err);
}

static enum dg_status other_planes(struct dg_session *s, int32_t rows, struct dg_error *err) {
    s->other.planes = s->opts.other.planes;
    if (!s->other.be || s->other.planes)
        return DG_OK;
    s->other.planes = dg_calloc(1, sizeof *s->other.planes);
    if (!s->other.planes)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the session");
    DG_TRY(dg_planes_init_prefill(s->other.planes, s->other.be, rows, err));
    s->other.planes->attention = s->opts.attention;
    return DG_OK;
}

static enum dg_status planes(struct dg_session *s, int32_t rows, struct dg_error *err) {
    if (s->opts.planes) {
        s->planes = s->opts.planes;
        return s->planes->rows >= rows ? DG_OK : DG_FAIL(err, DG_E_ARG, "the planes to share have %d rows; %d are needed", s->planes->rows, rows);
    }
    s->planes = dg_calloc(1, sizeof *s->planes);
    if (!s->planes)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the session");
    DG_TRY(dg_planes_init(s->planes, s->be, rows, err));
    s->planes->attention = s->opts.attention;
    return DG_OK;
}

enum dg_status dg_session_create(struct dg_session **out, struct dg_backend *be, const struct dg_session_opts *opts, struct dg_error *err) {
    *out = NULL;
    const struct dg_config *c = &be->model->cfg;
    struct dg_session *s = dg_calloc(1, sizeof *s);
    if (!s)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the session");
    s->be = be;
    s->cfg = c;
    s->opts = *opts;
    enum dg_status st = dg_session_opts_resolve(c, be->ops, &s->opts, err);
    int32_t rows = rows_of(c, &s->opts);
    if (st == DG_OK)
        st = reserve(be, s->opts.ctx, rows, err);
    if (st == DG_OK)
        st = other_path(s, rows, err);
    if (st == DG_OK)
        st = check_memory(s, rows, err);
    if (st == DG_OK)
        st = dg_kv_init(&s->kv, be, s->opts.ctx, s->opts.ring, rows, s->opts.kv, err);
    if (st == DG_OK)
        st = planes(s, rows, err);
    if (st == DG_OK)
        st = other_planes(s, rows, err);
    if (st == DG_OK) {
        size_t n = (size_t)c->canvas;
        s->entropy = dg_calloc(DG_STATS_READ * n, sizeof *s->entropy);
        if (s->entropy) {
            s->p_max = s->entropy + n;
            s->argmax = (int32_t *)(s->entropy + 2 * n);
            s->max = s->entropy + 3 * n;
        }
        s->row = dg_calloc((size_t)c->vocab, sizeof *s->row);
        s->draw_sum = dg_calloc((size_t)DRAW_BLOCKS(c->vocab), sizeof *s->draw_sum);
        int32_t sampled = s->planes->sample.rows;
        if (sampled > 0 && (s->sample_mem = dg_calloc(1, dg_sample_bytes(sampled))))
            s->sample = dg_sample_in(s->sample_mem, sampled);
        if (!s->entropy || !s->row || !s->draw_sum || s->sample.rows != sampled || dg_ids_reserve(&s->log, (size_t)s->opts.ctx) != DG_OK)
            st = DG_FAIL(err, DG_E_NOMEM, "no memory for the session");
    }
    if (st != DG_OK) {
        dg_session_destroy(s);
        return st;
    }
    *out = s;
    return DG_OK;
}

void dg_session_destroy(struct dg_session *s) {
    if (!s)
        return;
    if (s->planes && !s->opts.planes) {
        dg_planes_deinit(s->planes, s->be);
        dg_free(s->planes);
    }
    if (!s->opts.other.planes && s->other.planes) {
        dg_planes_deinit(s->other.planes, s->other.be);
        dg_free(s->other.planes);
    }
    if (!s->opts.other.be)
        dg_backend_destroy(s->other.be);
    dg_free(s->fast);
    dg_kv_deinit(&s->kv, s->be);
    dg_ids_deinit(&s->log);
    dg_free(s->entropy);
    dg_free(s->row);
    dg_free(s->draw_sum);
    dg_free(s->sample_mem);
    dg_free(s);
}

bool dg_session_cancelled(const struct dg_session *s) { return s->cancel && atomic_load(s->cancel); }

int64_t dg_session_room(const struct dg_session *s) {
    int64_t room = s->kv.ctx - s->kv.len - s->cfg->canvas;
    return room > 0 ? room : 0;
}

/* One chunk at the end of the timeline. */
static enum dg_status prefill_chunk(struct dg_session *s, const int32_t *ids, int32_t n, bool fast, struct dg_error *err) {
    struct dg_backend *be = s->be;
    struct dg_planes *p = s->planes;
    if (s->other.be && (s->other.be->ops->act == DG_BF16) == fast) {
        be = s->other.be;
        p = s->other.planes;
    }
    if (s->fast)
        memset(s->fast + s->kv.len, fast, (size_t)n);
    return dg_forward_prefill(be, p, &s->kv, ids, n, NULL, NULL, err);
}

/* again: positions that were computed before take the path that they took then. */
static enum dg_status prefill(struct dg_session *s, const int32_t *ids, int64_t n, bool again, bool may_cancel, dg_progress_fn *progress, void *ctx,
                              struct dg_error *err) {
    bool fast = dg_prefill_is_fast(s->opts.prefill, s->opts.fast_max, s->kv.len, n);
    for (int64_t done = 0; done < n;) {
        if (may_cancel && dg_session_cancelled(s))
            return DG_FAIL(err, DG_E_CANCELLED, "cancelled after %lld of %lld prompt tokens", (long long)done, (long long)n);
        int32_t now = n - done < s->opts.chunk ? (int32_t)(n - done) : s->opts.chunk;
        if (again && s->fast) {
            int32_t same = 1;
            fast = s->fast[done];
            while (same < now && s->fast[done + same] == fast)
                same++;
            now = same;
        }
        DG_TRY(prefill_chunk(s, ids + done, now, fast, err));
        done += now;
        s->computed += now;
        if (progress)
            progress(ctx, done, n);
    }
    return DG_OK;
}

/* The log follows the cache also when the prefill ended early; its room was reserved at creation. */
static enum dg_status extend(struct dg_session *s, const int32_t *ids, size_t n, bool may_cancel, dg_progress_fn *progress, void *ctx,
                             struct dg_error *err) {
    size_t before = (size_t)s->kv.len;
    enum dg_status st = prefill(s, ids, (int64_t)n, false, may_cancel, progress, ctx, err);
    if (dg_ids_add(&s->log, ids, (size_t)s->kv.len - before) != DG_OK)
        return DG_FAIL(err, DG_E_INTERNAL, "the token log outgrew the context");
    return st;
}

enum dg_status dg_session_extend(struct dg_session *s, const int32_t *ids, size_t n, dg_progress_fn *progress, void *ctx, struct dg_error *err) {
    if (n > (size_t)dg_session_room(s))
        return DG_FAIL(err, DG_E_LIMIT, "%zu more tokens after %lld leave no room for a canvas of %d in a context of %lld", n,
                       (long long)s->kv.len, s->cfg->canvas, (long long)s->kv.ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->cfg->vocab)
            return DG_FAIL(err, DG_E_ARG, "token id %d is outside the vocabulary of %d", ids[i], s->cfg->vocab);
    return extend(s, ids, n, true, progress, ctx, err);
}

enum dg_status dg_session_append(struct dg_session *s, const int32_t *ids, size_t n, struct dg_error *err) {
    return extend(s, ids, n, false, NULL, NULL, err);
}

int64_t dg_session_cut_floor(const struct dg_session *s) {
    int64_t floor = dg_kv_cut_floor(&s->kv), fresh = s->kv.high - s->cfg->canvas;
    return s->opts.attention.unwindowed && s->kv.high > s->kv.ring && fresh > floor ? fresh : floor;
}

enum dg_status dg_session_rewind(struct dg_session *s, int64_t len, dg_progress_fn *progress, void *ctx, struct dg_error *err) {
    if (len < 0 || len > s->kv.len)
        return DG_FAIL(err, DG_E_ARG, "cannot rewind to position %lld of %lld", (long long)len, (long long)s->kv.len);
    bool rebuild = len > 0 && len < dg_session_cut_floor(s);
    dg_kv_cut(&s->kv, rebuild ? 0 : len);
    enum dg_status st = rebuild ? prefill(s, s->log.v, len, true, true, progress, ctx, err) : DG_OK;
    s->log.n = (size_t)s->kv.len;
    return st;
}

enum dg_status dg_session_step(struct dg_session *s, const int32_t *canvas, int32_t n, enum dg_sc_mode sc, float inv_t, struct dg_error *err) {
    struct dg_denoise d = {canvas, n, sc, s->opts.sc_sparse, inv_t};
    DG_TRY(dg_forward_denoise(s->be, s->planes, &s->kv, &d, NULL, err));
    size_t all = (DG_STATS_READ - 1) * (size_t)s->cfg->canvas + (size_t)n;
    s->be->ops->read(s->be, s->entropy, s->planes->stats.entropy, all * sizeof *s->entropy);
    DG_TRY(dg_backend_status(s->be, err));
    int32_t bad = 0, first = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(s->entropy[i]))
            continue;
        first = bad++ ? first : i;
        s->entropy[i] = logf((float)s->cfg->vocab);
        s->p_max[i] = 0;
        if (s->argmax[i] < 0 || s->argmax[i] >= s->cfg->vocab)
            s->argmax[i] = 0;
    }
    if (bad && !s->opts.unchecked_logits)
        return dg_session_bad_rows(bad, n, first, err);
    return DG_OK;
}

enum dg_status dg_session_bad_rows(int32_t bad, int32_t n, int32_t first, struct dg_error *err) {
    return DG_FAIL(err, DG_E_NUMERIC, "the logits of %d of %d canvas rows hold NaN or Inf, the first is row %d", bad, n, first);
}

struct draw_job {
    const float *z;
    double inv_t, max;
    int32_t vocab;
    double *sum; /* of each block of DRAW_BLOCK ids */
};

/* Below e^-60 of the largest, all ids of a vocabulary together are lost in the sum's last bit. */
static double weight(const struct draw_job *j, int32_t v) {
    double d = (double)j->z[v] * j->inv_t - j->max;
    return d < -60 ? 0 : exp(d);
}

static void draw_part(void *arg, int part, int n_parts) {
    struct draw_job *j = arg;
    int64_t begin, end;
    dg_pool_range(DRAW_BLOCKS(j->vocab), 1, part, n_parts, &begin, &end);
    for (int64_t b = begin; b < end; b++) {
        double sum = 0;
        for (int32_t v = (int32_t)b * DRAW_BLOCK; v < j->vocab && v < (b + 1) * DRAW_BLOCK; v++)
            sum += weight(j, v);
        j->sum[b] = sum;
    }
}

enum dg_status dg_session_draw(struct dg_session *s, int32_t row, double u, int32_t *id, struct dg_error *err) {
    struct draw_job j = {.inv_t = (double)s->planes->stats_inv_t, .vocab = s->cfg->vocab, .sum = s->draw_sum};
    const float *logits = (const float *)s->planes->logits.data + (int64_t)row * j.vocab;
    if (!s->be->ops->host_memory)
        s->be->ops->read(s->be, s->row, logits, (size_t)j.vocab * sizeof *logits);
    j.z = s->be->ops->host_memory ? logits : s->row;
    j.max = (double)s->max[row];
    dg_pool_run(s->be->pool, draw_part, &j);
    double sum = 0, at = 0;
    int32_t b = 0, blocks = DRAW_BLOCKS(j.vocab);
    for (int32_t i = 0; i < blocks; i++)
        sum += j.sum[i];
    while (b + 1 < blocks && !(at + j.sum[b] > u * sum))
        at += j.sum[b++];
    int32_t pick = b * DRAW_BLOCK;
    for (int32_t v = pick; v < j.vocab && v < (b + 1) * DRAW_BLOCK; v++) {
        double w = weight(&j, v);
        at += w;
        pick = w > 0 ? v : pick; /* rounding may leave the last of them short of the sum */
        if (at > u * sum)
            break;
    }
    *id = pick;
    return dg_backend_status(s->be, err);
}
