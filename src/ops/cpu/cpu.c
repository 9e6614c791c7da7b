#include "ops/cpu/cpu.h"

#include "core/mem.h"
#include "ops/cpu/rows.h"

#include <stdio.h>
#include <string.h>

static void *cpu_alloc(struct dg_backend *be, size_t bytes) {
    void *p = dg_calloc(bytes, 1);
    if (!p)
        dg_backend_fail(be, DG_E_NOMEM, "not enough memory for the session's buffers");
    return p;
}

static void cpu_free(struct dg_backend *be, void *p) {
    (void)be;
    dg_free(p);
}

static void cpu_copy(struct dg_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes)
        memcpy(dst, src, bytes);
}

static const struct dg_ops cpu_ops = {
    .name = "cpu",
    .act = DG_F32,
    .kv_q8 = true,
    .host_memory = true,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .write = cpu_copy,
    .read = cpu_copy,
    .embed = dg_cpu_embed,
    .rms_norm = dg_cpu_rms_norm,
    .norm_add = dg_cpu_norm_add,
    .norm_pair = dg_cpu_norm_pair,
    .add = dg_cpu_add,
    .linear = dg_cpu_linear,
    .qkv_store = dg_cpu_qkv_store,
    .attention = dg_cpu_attention,
    .router = dg_cpu_router,
    .experts = dg_cpu_experts,
    .head = dg_cpu_head,
    .row_stats = dg_cpu_row_stats,
    .soft_embed = dg_cpu_soft_embed,
};

/* The old scratch goes only when the new one is there: other sessions of the backend work in it. */
static enum dg_status cpu_reserve(struct dg_backend *be, const struct dg_reserve *want, struct dg_error *err) {
    struct dg_cpu *c = be->impl;
    struct dg_reserve cap = c->cap;
    bool grown = false;
#define GROW(f)              \
    if (want->f > cap.f) {   \
        cap.f = want->f;     \
        grown = true;        \
    }
    GROW(rows)
    GROW(ctx)
    GROW(k_max)
    GROW(topk)
    GROW(experts)
    GROW(moe)
    GROW(hidden)
#undef GROW
    if (!grown && c->rows.query)
        return DG_OK;
    struct dg_cpu_gemm gemm = {0};
    struct dg_cpu_rows rows = {0};
    enum dg_status st = DG_OK;
    DG_GO(dg_cpu_gemm_reserve(c, &cap, &gemm, err));
    DG_GO(dg_cpu_rows_reserve(c, &cap, &rows, err));
    struct dg_cpu_gemm old_gemm = c->gemm;
    struct dg_cpu_rows old_rows = c->rows;
    c->gemm = gemm;
    c->rows = rows;
    c->cap = cap;
    gemm = old_gemm;
    rows = old_rows;
done:
    dg_cpu_gemm_free(&gemm);
    dg_cpu_rows_free(&rows);
    return st;
}

static void cpu_destroy(struct dg_backend *be) {
    struct dg_cpu *c = be->impl;
    if (!c->twin)
        dg_pool_destroy(be->pool);
    dg_cpu_gemm_free(&c->gemm);
    dg_cpu_rows_free(&c->rows);
    dg_free(c);
    dg_free(be);
}

static enum dg_status cpu_twin(struct dg_backend *be, enum dg_dtype act, struct dg_backend **out, struct dg_error *err);

/* All but the threads. */
static enum dg_status create(struct dg_backend **out, const struct dg_model *model, enum dg_cpu_level level, enum dg_dtype act,
                             struct dg_error *err) {
    *out = NULL;
    struct dg_backend *be = dg_calloc(1, sizeof *be);
    struct dg_cpu *c = dg_calloc(1, sizeof *c);
    if (!be || !c) {
        dg_free(be);
        dg_free(c);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the CPU backend");
    }
    c->ops = cpu_ops;
    c->ops.act = act;
    dg_cpu_kernels_init(&c->k, level);
    c->vocab = model->cfg.vocab;
    be->ops = &c->ops;
    be->model = model;
    be->impl = c;
    be->reserve = cpu_reserve;
    be->destroy = cpu_destroy;
    be->twin = cpu_twin;
    *out = be;
    return DG_OK;
}

static enum dg_status cpu_twin(struct dg_backend *be, enum dg_dtype act, struct dg_backend **out, struct dg_error *err) {
    DG_TRY(create(out, be->model, dg_cpu_backend_level(be), act, err));
    struct dg_cpu *c = (*out)->impl;
    (*out)->pool = be->pool;
    c->n_threads = dg_pool_threads(be->pool);
    c->twin = true;
    return DG_OK;
}

enum dg_status dg_cpu_create(struct dg_backend **out, const struct dg_model *model, const struct dg_cpu_opts *opts, struct dg_error *err) {
    bool bf16 = opts->planes == DG_CPU_PLANES_BF16 || (opts->planes == DG_CPU_PLANES_AUTO && dg_cpu_level_bf16(opts->cap));
    struct dg_backend *be;
    *out = NULL;
    DG_TRY(create(&be, model, opts->cap, bf16 ? DG_BF16 : DG_F32, err));
    enum dg_status st = dg_pool_create(&be->pool, opts->threads, err);
    if (st != DG_OK) {
        dg_backend_destroy(be);
        *out = NULL;
        return st;
    }
    ((struct dg_cpu *)be->impl)->n_threads = dg_pool_threads(be->pool);
    *out = be;
    return DG_OK;
}

enum dg_cpu_level dg_cpu_backend_level(const struct dg_backend *be) { return ((const struct dg_cpu *)be->impl)->k.level; }

void dg_cpu_describe(const struct dg_backend *be, char *text, size_t n) {
    const struct dg_cpu *c = be->impl;
    const struct dg_gemm_kind *g = dg_cpu_kind(c);
    const char *attention = c->k.att && c->ops.act == DG_BF16 ? ", attention on tiles" : "";
    snprintf(text, n, "products %s (%s, tiles of %d x %d, %d elements a step, chunks of %d), rows %s%s", g->name,
             g->elem == 2 ? "bf16" : "f32", g->mr, g->nr, g->step, g->kc, c->k.vec.name, attention);
}
