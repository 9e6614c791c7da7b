/* The op table: each op checks what the kernels need and launches them. */
#include "ops/cuda/state.h"

#include <string.h>

struct dgc_mat dg_cuda_mat(const struct dg_mat *m) {
    return (struct dgc_mat){(const uint8_t *)(uintptr_t)m->dev + dg_format_traits(m->fmt)->mat_extra, dg_format_row_bytes(m->fmt, m->k),
                            (int32_t)m->fmt, m->n, m->k};
}

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

static void op_embed(struct dg_backend *be, const int32_t *ids, int32_t n, const struct dg_mat *embed, float scale, struct dg_plane *y) {
    struct dgc_embed_args a = {ids, dg_cuda_mat(embed), scale, dg_cuda_plane(y)};
    dgc_launch_embed(be, (unsigned)n, 1, &a);
}

static void op_rms_norm(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float mul, float eps, struct dg_plane *y) {
    struct dgc_norm_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(y), .w = dg_cuda_vec(w), .eps = eps, .scale = mul, .cols = x->cols};
    dgc_launch_norm(be, (unsigned)x->rows, 1, &a);
}

static void op_norm_add(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float eps, const struct dg_plane *residual,
                        float scale, struct dg_plane *y) {
    struct dgc_norm_args a = {dg_cuda_plane(x), dg_cuda_plane(residual), dg_cuda_plane(y), dg_cuda_vec(w), eps, scale, x->cols};
    dgc_launch_norm(be, (unsigned)x->rows, 1, &a);
}

static void op_norm_pair(struct dg_backend *be, const struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b,
                         const struct dg_vec *wb, float eps, struct dg_plane *y) {
    struct dgc_norm_pair_args k = {dg_cuda_plane(a), dg_cuda_plane(b), dg_cuda_plane(y), dg_cuda_vec(wa), dg_cuda_vec(wb), eps, a->cols};
    dgc_launch_norm_pair(be, (unsigned)a->rows, 1, &k);
}

static void op_add(struct dg_backend *be, const struct dg_plane *a, const struct dg_plane *b, struct dg_plane *y) {
    struct dgc_add_args k = {dg_cuda_plane(a), dg_cuda_plane(b), dg_cuda_plane(y), a->cols};
    dgc_launch_add(be, tiles(a->cols, 256), (unsigned)a->rows, &k);
}

static void op_linear(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *const *w, int n_w, enum dg_epilogue epi,
                      struct dg_plane *y) {
    struct dgc_linear_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(y), .n_w = n_w, .rows = x->rows, .epi = (int32_t)epi};
    if (n_w < 1 || n_w > DGC_STACKED || (epi == DG_EPI_GLU && n_w != 2)) {
        dg_backend_fail(be, DG_E_INTERNAL, "a linear op stacks more matrices than the kernels take");
        return;
    }
    for (int i = 0; i < n_w; i++) {
        a.w[i] = dg_cuda_mat(w[i]);
        a.tiles[i + 1] = a.tiles[i] + (int32_t)tiles(w[i]->n, 64);
    }
    dgc_launch_linear(be, epi == DG_EPI_GLU ? tiles(w[0]->n, 32) : (unsigned)a.tiles[n_w], tiles(x->rows, 64), &a);
}

static struct dgc_kv kv_of(const struct dg_kv_layer *kv) {
    return (struct dgc_kv){kv->k, kv->v, kv->slots, (int32_t)kv->dtype, kv->kv_heads, kv->hd, kv->ring, kv->window};
}

static void op_qkv_store(struct dg_backend *be, struct dg_plane *qkv, int32_t heads, bool has_v, const struct dg_vec *q_norm,
                         const struct dg_vec *k_norm, float eps, const float *cos, const float *sin, const struct dg_batch *batch,
                         const struct dg_kv_layer *kv) {
    struct dgc_qkv_store_args a = {.qkv = dg_cuda_plane(qkv),
                                   .q_norm = dg_cuda_vec(q_norm),
                                   .k_norm = dg_cuda_vec(k_norm),
                                   .cos = cos,
                                   .sin = sin,
                                   .kv = kv_of(kv),
                                   .prm = dg_cuda_of(be)->dev_params,
                                   .n = batch->n,
                                   .heads = heads,
                                   .has_v = has_v,
                                   .eps = eps};
    dg_cuda_want_batch(be, batch);
    dgc_launch_qkv_store(be, tiles((int64_t)batch->n * (heads + 2 * kv->kv_heads), 4), 1, &a);
}

static void op_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                         const struct dg_kv_layer *kv, struct dg_plane *y) {
    struct dgc_attention_args a = {dg_cuda_plane(q), dg_cuda_plane(y), kv_of(kv), dg_cuda_of(be)->dev_params, batch->n, heads, batch->causal};
    dg_cuda_want_batch(be, batch);
    dgc_launch_attention(be, tiles((int64_t)batch->n * heads, 4), 1, &a);
}

static void op_router(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *w, const struct dg_vec *per_expert_scale,
                      struct dg_routing *out) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_plane logits = {cu->s.logits, DG_F32, x->rows, w->n, w->n};
    op_linear(be, x, &w, 1, DG_EPI_NONE, &logits);
    struct dgc_route_args a = {cu->s.logits, dg_cuda_vec(per_expert_scale), out->expert, out->weight, x->rows, w->n, out->k};
    dgc_launch_route(be, tiles(x->rows, 4), 1, &a);
}

static void op_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                       const struct dg_stack *down, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_mat up0 = dg_stack_mat(gate_up, 0), down0 = dg_stack_mat(down, 0);
    int32_t pairs = x->rows * routing->k, moe = down->k, warps = DGC_PLAN_COUNTERS / gate_up->e;
    int64_t most = gate_up->e + pairs / DGC_TILE;
    unsigned row_tiles = (unsigned)(most < pairs ? most : pairs);
    struct dgc_plane h = {cu->s.h, moe, (int32_t)cu->ops.act}, pair_y = {cu->s.pair_y, down->n, DGC_F32};
    struct dgc_experts_plan_args plan = {routing->expert, cu->s.plan, pairs, gate_up->e, DGC_TILE, warps > 32 ? 32 : warps};
    dgc_launch_experts_plan(be, 1, 1, &plan);
    struct dgc_experts_up_args up = {dg_cuda_plane(x), h, dg_cuda_mat(&up0), dg_format_mat_bytes(gate_up->fmt, gate_up->n, gate_up->k),
                                     cu->s.plan, routing->k};
    dgc_launch_experts_up(be, tiles(moe, 32), row_tiles, &up);
    struct dgc_experts_down_args dn = {h, pair_y, dg_cuda_mat(&down0), dg_format_mat_bytes(down->fmt, down->n, down->k), cu->s.plan};
    dgc_launch_experts_down(be, tiles(down->n, 64), row_tiles, &dn);
    struct dgc_experts_sum_args sum = {cu->s.pair_y, routing->weight, dg_cuda_plane(y), routing->k, down->n};
    dgc_launch_experts_sum(be, tiles(down->n, 256), (unsigned)x->rows, &sum);
}

static void op_row_stats(struct dg_backend *be, const struct dg_plane *logits, float inv_t, struct dg_row_stats *s) {
    struct dgc_row_stats_args a = {logits->data, logits->ld, logits->cols, dg_cuda_of(be)->dev_params, s->entropy, s->max, s->sum, s->p_max,
                                   s->argmax};
    dg_cuda_want_inv_t(be, inv_t);
    dgc_launch_row_stats(be, (unsigned)logits->rows, 1, &a);
}

static void op_head(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *embed, float cap, float inv_t,
                    struct dg_plane *logits, struct dg_row_stats *stats) {
    struct dgc_linear_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(logits), .n_w = 1, .rows = x->rows, .epi = DGC_EPI_CAP, .cap = cap};
    a.w[0] = dg_cuda_mat(embed);
    a.tiles[1] = (int32_t)tiles(embed->n, 64);
    dgc_launch_linear(be, (unsigned)a.tiles[1], tiles(x->rows, 64), &a);
    op_row_stats(be, logits, inv_t, stats);
}

static void op_soft_embed(struct dg_backend *be, const struct dg_plane *logits, const struct dg_row_stats *stats, float inv_t,
                          const struct dg_mat *embed, float scale, bool sparse, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    const float *z = logits->data;
    unsigned rows = (unsigned)logits->rows;
    dg_cuda_want_inv_t_soft(be, inv_t);
    if (!sparse) {
        struct dgc_soft_dense_args a = {z, logits->ld, stats->max, stats->sum, cu->dev_params, dg_cuda_mat(embed), scale, logits->rows,
                                        dg_cuda_plane(y)};
        dgc_launch_soft_dense(be, tiles(embed->k, 64), tiles(rows, 64), &a);
        return;
    }
    struct dgc_soft_pick_args pick = {z, logits->ld, stats->max, cu->dev_params, cu->s.soft_ids, cu->s.soft_at, embed->n};
    dgc_launch_soft_pick(be, rows, 1, &pick);
    struct dgc_soft_gather_args g = {z, logits->ld, stats->max, stats->sum, cu->dev_params, cu->s.soft_ids, cu->s.soft_at, dg_cuda_mat(embed),
                                     cu->s.soft_part};
    dgc_launch_soft_gather(be, DGC_SOFT_PARTS, rows, &g);
    struct dgc_soft_sum_args s = {cu->s.soft_part, scale, embed->k, dg_cuda_plane(y)};
    dgc_launch_soft_sum(be, tiles(embed->k, 256), rows, &s);
}

void dg_cuda_fill_ops(struct dg_ops *o) {
    o->alloc = dg_cuda_alloc;
    o->free = dg_cuda_free;
    o->write = dg_cuda_write;
    o->read = dg_cuda_read;
    o->embed = op_embed;
    o->rms_norm = op_rms_norm;
    o->norm_add = op_norm_add;
    o->norm_pair = op_norm_pair;
    o->add = op_add;
    o->linear = op_linear;
    o->qkv_store = op_qkv_store;
    o->attention = op_attention;
    o->router = op_router;
    o->experts = op_experts;
    o->head = op_head;
    o->row_stats = op_row_stats;
    o->soft_embed = op_soft_embed;
}

void dg_cuda_scratch_free(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    void *all[] = {cu->s.plan.bucket, cu->s.plan.pair, cu->s.plan.tile_expert, cu->s.plan.tile_first, cu->s.plan.n_tiles,
                   cu->s.h,           cu->s.pair_y,    cu->s.logits,           cu->s.soft_ids,        cu->s.soft_at,
                   cu->s.soft_part};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dg_cuda_free(be, all[i]);
    memset(&cu->s, 0, sizeof cu->s);
}

enum dg_status dg_cuda_reserve(struct dg_backend *be, const struct dg_reserve *want, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_reserve c = cu->cap;
#define GROW(f) c.f = want->f > c.f ? want->f : c.f
    GROW(rows);
    GROW(ctx);
    GROW(k_max);
    GROW(topk);
    GROW(experts);
    GROW(moe);
    GROW(hidden);
#undef GROW
    dg_cuda_scratch_free(be);
    memset(&cu->cap, 0, sizeof cu->cap);
    const struct dg_config *cfg = &cu->model.cfg;
    size_t rows = (size_t)c.rows, pairs = rows * (size_t)c.topk, canvas = (size_t)cfg->canvas, row_tiles = (size_t)c.experts + pairs / DGC_TILE + 1;
    const char *what = "scratch";
    cu->s.plan.bucket = dg_cuda_alloc_raw(be, ((size_t)c.experts + 1) * sizeof(int32_t), what);
    cu->s.plan.pair = dg_cuda_alloc_raw(be, pairs * sizeof(int32_t), what);
    cu->s.plan.tile_expert = dg_cuda_alloc_raw(be, row_tiles * sizeof(int32_t), what);
    cu->s.plan.tile_first = dg_cuda_alloc_raw(be, row_tiles * sizeof(int32_t), what);
    cu->s.plan.n_tiles = dg_cuda_alloc_raw(be, sizeof(int32_t), what);
    cu->s.h = dg_cuda_alloc_raw(be, pairs * (size_t)c.moe * dg_dtype_bytes(cu->ops.act), what);
    cu->s.pair_y = dg_cuda_alloc_raw(be, pairs * (size_t)c.hidden * sizeof(float), what);
    cu->s.logits = dg_cuda_alloc_raw(be, rows * (size_t)c.experts * sizeof(float), what);
    cu->s.soft_ids = dg_cuda_alloc_raw(be, canvas * (size_t)cfg->vocab * sizeof(int32_t), what);
    cu->s.soft_at = dg_cuda_alloc_raw(be, canvas * (DGC_SOFT_PARTS + 1) * sizeof(int32_t), what);
    cu->s.soft_part = dg_cuda_alloc_raw(be, canvas * DGC_SOFT_PARTS * (size_t)cfg->hidden * sizeof(float), what);
    enum dg_status st = dg_backend_status(be, err);
    if (st != DG_OK)
        dg_cuda_scratch_free(be);
    else
        cu->cap = c;
    return st;
}
