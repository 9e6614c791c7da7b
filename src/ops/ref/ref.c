#include "ops/ref/ref.h"

#include "core/half.h"
#include "core/mem.h"

#include <math.h>
#include <string.h>

/* Compiled once per vector width: elements and lanes are independent and nothing is contracted, so every clone gives the same bits.
 * Not under the thread sanitizer: it instruments the resolvers too, which run before it is ready, and the program dies at its start. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

CLONES void dg_ref_load_f16(const uint16_t *h, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = dg_f16_f32(h[i]);
}

CLONES float dg_ref_dot(const float *a, const float *b, int64_t n) {
    float lane[DG_REF_LANES] = {0};
    int64_t i = 0;
    for (; i + DG_REF_LANES <= n; i += DG_REF_LANES)
        for (int j = 0; j < DG_REF_LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += a[i + j] * b[i + j];
    for (int w = DG_REF_LANES / 2; w; w /= 2)
        for (int j = 0; j < w; j++)
            lane[j] += lane[j + w];
    return lane[0];
}

float dg_ref_gelu(float x) {
    const float c = 0.7978845608028654f; /* sqrt(2 / pi) */
    return 0.5f * x * (1.0f + tanhf(c * (x + 0.044715f * x * x * x)));
}

static void *ref_alloc(struct dg_backend *be, size_t bytes) {
    void *p = dg_calloc(bytes, 1);
    if (!p)
        dg_backend_fail(be, DG_E_NOMEM, "not enough memory for the session's buffers");
    return p;
}

static void ref_free(struct dg_backend *be, void *p) {
    (void)be;
    dg_free(p);
}

static void ref_copy(struct dg_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes)
        memcpy(dst, src, bytes);
}

static const struct dg_ops ref_ops = {
    .name = "ref",
    .act = DG_F32,
    .kv_q8 = true,
    .host_memory = true,
    .alloc = ref_alloc,
    .free = ref_free,
    .write = ref_copy,
    .read = ref_copy,
    .embed = dg_ref_embed,
    .rms_norm = dg_ref_rms_norm,
    .norm_add = dg_ref_norm_add,
    .norm_pair = dg_ref_norm_pair,
    .add = dg_ref_add,
    .linear = dg_ref_linear,
    .qkv_store = dg_ref_qkv_store,
    .attention = dg_ref_attention,
    .router = dg_ref_router,
    .experts = dg_ref_experts,
    .head = dg_ref_head,
    .row_stats = dg_ref_row_stats,
    .soft_embed = dg_ref_soft_embed,
};

static void scratch_free(const struct dg_ref *r) {
    dg_free(r->row);
    dg_free(r->score);
    dg_free(r->bucket);
    dg_free(r->pair);
    dg_free(r->pair_h);
    dg_free(r->pair_y);
}

/* The old scratch goes only when the new one is there: other sessions of the backend work in it. */
static enum dg_status ref_reserve(struct dg_backend *be, const struct dg_reserve *want, struct dg_error *err) {
    struct dg_ref *old = be->impl, r = *old;
    struct dg_reserve *c = &r.cap;
#define GROW(f) c->f = want->f > c->f ? want->f : c->f
    GROW(rows);
    GROW(ctx);
    GROW(k_max);
    GROW(topk);
    GROW(experts);
    GROW(moe);
    GROW(hidden);
#undef GROW
    size_t pairs = (size_t)c->rows * (size_t)c->topk, threads = (size_t)r.n_threads;
    r.row_len = (c->k_max + 15) & ~15;
    r.row = dg_calloc(threads * 2, (size_t)r.row_len * sizeof *r.row);
    r.score = dg_calloc(threads * 2, (size_t)c->ctx * sizeof *r.score);
    r.bucket = dg_calloc((size_t)c->experts + 1, sizeof *r.bucket);
    r.pair = dg_calloc(pairs, sizeof *r.pair);
    r.pair_h = dg_calloc(pairs, (size_t)c->moe * sizeof *r.pair_h);
    r.pair_y = dg_calloc(pairs, (size_t)c->hidden * sizeof *r.pair_y);
    if (!r.row || !r.score || !r.bucket || !r.pair || !r.pair_h || !r.pair_y) {
        scratch_free(&r);
        return DG_FAIL(err, DG_E_NOMEM, "not enough memory for the scratch of %d rows at context %lld", c->rows, (long long)c->ctx);
    }
    scratch_free(old);
    *old = r;
    return DG_OK;
}

static void ref_destroy(struct dg_backend *be) {
    struct dg_ref *r = be->impl;
    if (r)
        scratch_free(r);
    dg_free(r);
    dg_pool_destroy(be->pool);
    dg_free(be);
}

enum dg_status dg_ref_create(struct dg_backend **out, const struct dg_model *model, int n_threads, struct dg_error *err) {
    *out = NULL;
    struct dg_backend *be = dg_calloc(1, sizeof *be);
    struct dg_ref *r = dg_calloc(1, sizeof *r);
    if (!be || !r) {
        dg_free(be);
        dg_free(r);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the reference backend");
    }
    be->ops = &ref_ops;
    be->model = model;
    be->impl = r;
    be->reserve = ref_reserve;
    be->destroy = ref_destroy;
    enum dg_status st = dg_pool_create(&be->pool, n_threads, err);
    if (st != DG_OK) {
        dg_backend_destroy(be);
        return st;
    }
    r->n_threads = dg_pool_threads(be->pool);
    *out = be;
    return DG_OK;
}
