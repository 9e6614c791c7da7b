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
    dgc_launch_embed(be, DGC_K_embed, (unsigned)n, 1, 0, &a);
}

static void op_rms_norm(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float mul, float eps, struct dg_plane *y) {
    struct dgc_norm_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(y), .w = dg_cuda_vec(w), .eps = eps, .scale = mul, .cols = x->cols};
    dgc_launch_norm(be, DGC_K_norm, (unsigned)x->rows, 1, 0, &a);
}

static void op_norm_add(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float eps, const struct dg_plane *residual,
                        float scale, struct dg_plane *y) {
    struct dgc_norm_args a = {dg_cuda_plane(x), dg_cuda_plane(residual), dg_cuda_plane(y), dg_cuda_vec(w), eps, scale, x->cols};
    dgc_launch_norm(be, DGC_K_norm, (unsigned)x->rows, 1, 0, &a);
}

static void op_norm_pair(struct dg_backend *be, const struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b,
                         const struct dg_vec *wb, float eps, struct dg_plane *y) {
    struct dgc_norm_pair_args k = {dg_cuda_plane(a), dg_cuda_plane(b), dg_cuda_plane(y), dg_cuda_vec(wa), dg_cuda_vec(wb), eps, a->cols};
    dgc_launch_norm_pair(be, DGC_K_norm_pair, (unsigned)a->rows, 1, 0, &k);
}

static bool aligned16(const void *p, int64_t bytes) { return (((uintptr_t)p | (uintptr_t)bytes) & 15) == 0; }

static bool row_vectors(const struct dg_plane *p) { return aligned16(p->data, p->ld * (int64_t)dg_dtype_bytes(p->dtype)); }

/* Whether one kernel can do it; otherwise the single ops do. */
static bool chains(const struct dgc_norm_chain_args *k, const struct dg_plane *a, const struct dg_plane *b, const struct dg_plane *x,
                   const struct dg_norm_out *outs, int n) {
    bool can = a->cols % 8 == 0 && a->cols <= DGC_NORM_COLS && row_vectors(a) && row_vectors(x) && (!b || (row_vectors(b) && k->wa && k->wb)) && k->w;
    can = can && aligned16(k->wa, 0) && aligned16(k->wb, 0) && aligned16(k->w, 0);
    for (int i = 0; i < n; i++)
        can = can && k->wy[i] && aligned16(k->wy[i], 0) && row_vectors(outs[i].y);
    return can;
}

/* y[m] = the sum over a row's experts of what experts_down or moe_down left. */
static void sum_pairs(struct dg_backend *be, const struct dg_routing *routing, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if ((cu->hopper & DG_CUDA_H_EXPERTS) && y->cols % 32 == 0 && row_vectors(y)) {
        struct dgc_moe_sum_args s = {cu->s.pair_y, routing->weight, y->data, y->ld, routing->k, y->cols};
        dgc_launch_moe_sum(be, DGC_K_moe_sum, (unsigned)y->rows, tiles(y->cols / 4, 352), 0, &s);
    } else {
        struct dgc_experts_sum_args s = {cu->s.pair_y, routing->weight, dg_cuda_plane(y), routing->k, y->cols};
        dgc_launch_experts_sum(be, DGC_K_experts_sum, tiles(y->cols, 256), (unsigned)y->rows, 0, &s);
    }
}

/* of: the routing of experts whose sum is b, or NULL: b is there, or itself NULL. */
static void chain(struct dg_backend *be, struct dg_plane *a, const struct dg_vec *wa, const struct dg_routing *of, struct dg_plane *b,
                  const struct dg_vec *wb, const struct dg_vec *w, float eps, float scale, struct dg_plane *x, const struct dg_norm_out *outs,
                  int n) {
    struct dgc_norm_chain_args k = {.a = dg_cuda_plane(a), .x = dg_cuda_plane(x), .wa = dg_cuda_vec(wa), .wb = dg_cuda_vec(wb),
                                    .w = dg_cuda_vec(w), .eps = eps, .scale = scale, .cols = a->cols, .n = n};
    if (b)
        k.b = dg_cuda_plane(b);
    for (int i = 0; i < n; i++) {
        k.y[i] = dg_cuda_plane(outs[i].y);
        k.wy[i] = dg_cuda_vec(outs[i].w);
        k.mul[i] = outs[i].mul;
    }
    bool can = chains(&k, a, b, x, outs, n);
    if (can && of && a->cols <= 8 * DGC_NORM_THREADS && a->cols % 32 == 0) {
        k.d = dg_cuda_of(be)->s.pair_y;
        k.pair_weight = of->weight;
        k.topk = of->k;
        dgc_launch_norm_chain(be, DGC_K_norm_chain_sum, (unsigned)a->rows, 1, 0, &k);
        return;
    }
    if (of)
        sum_pairs(be, of, b);
    if (can) {
        enum dg_cuda_kernel by = a->cols <= 8 * DGC_NORM_THREADS ? DGC_K_norm_chain : DGC_K_norm_chain_wide;
        dgc_launch_norm_chain(be, by, (unsigned)a->rows, 1, 0, &k);
        return;
    }
    if (b)
        op_norm_pair(be, a, wa, b, wb, eps, a);
    op_norm_add(be, a, w, eps, x, scale, x);
    for (int i = 0; i < n; i++)
        op_rms_norm(be, x, outs[i].w, outs[i].mul, eps, outs[i].y);
}

static void op_norm_chain(struct dg_backend *be, struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b, const struct dg_vec *wb,
                          const struct dg_vec *w, float eps, float scale, struct dg_plane *x, const struct dg_norm_out *outs, int n) {
    struct dg_plane sum = b ? *b : (struct dg_plane){0};
    chain(be, a, wa, NULL, b ? &sum : NULL, wb, w, eps, scale, x, outs, n);
}

static void op_add(struct dg_backend *be, const struct dg_plane *a, const struct dg_plane *b, struct dg_plane *y) {
    struct dgc_add_args k = {dg_cuda_plane(a), dg_cuda_plane(b), dg_cuda_plane(y), a->cols};
    dgc_launch_add(be, DGC_K_add, tiles(a->cols, 256), (unsigned)a->rows, 0, &k);
}

/* Tensor cores multiply bf16; f32 planes mean f32 arithmetic. */
static bool on_tensor_cores(const struct dg_cuda *cu, const struct dgc_plane *x) {
    return cu->kernels != DG_CUDA_SIMPLE && x->dtype == DGC_BF16;
}

/* Rows of a bf16 plane begin at multiples of 16 bytes. */
static bool whole_vectors(const struct dgc_plane *p) { return (((uintptr_t)p->p | (uintptr_t)(p->ld * 2)) & 15) == 0; }

/* Where the kernels for a device are chosen: the table's entry for a format, or the one that takes any. */
static enum dg_cuda_kernel linear_kernel(int32_t fmt) {
    static const enum dg_cuda_kernel by_format[DG_FMT_COUNT] = {
        [DG_FMT_BF16] = DGC_K_linear_mma_bf16,        [DG_FMT_F16] = DGC_K_linear_mma_any,      [DG_FMT_F32] = DGC_K_linear_mma_any,
        [DG_FMT_Q4_BLOCK] = DGC_K_linear_mma_q4,      [DG_FMT_Q6_BLOCK] = DGC_K_linear_mma_any, [DG_FMT_Q8_ROW] = DGC_K_linear_mma_q8,
        [DG_FMT_NVFP4_BLOCK] = DGC_K_linear_mma_nvfp4};
    return by_format[fmt];
}

static void experts_kernels(int32_t fmt, enum dg_cuda_kernel *up, enum dg_cuda_kernel *down) {
    *up = fmt == DGC_FMT_BF16 ? DGC_K_experts_up_mma_bf16 : fmt == DGC_FMT_Q4 ? DGC_K_experts_up_mma_q4
          : fmt == DGC_FMT_NVFP4 ? DGC_K_experts_up_mma_nvfp4 : DGC_K_experts_up_mma_any;
    *down = fmt == DGC_FMT_BF16 ? DGC_K_experts_down_mma_bf16 : fmt == DGC_FMT_Q4 ? DGC_K_experts_down_mma_q4
            : fmt == DGC_FMT_NVFP4 ? DGC_K_experts_down_mma_nvfp4 : DGC_K_experts_down_mma_any;
}

/* One launch over matrices of one format; a->w and a->n_w are set. */
static void launch_linear(struct dg_backend *be, struct dgc_linear_args *a) {
    if (dg_cuda_hopper_linear(be, a))
        return;
    bool glu = a->epi == DGC_EPI_GLU, mma = on_tensor_cores(dg_cuda_of(be), &a->x);
    int32_t rows = mma ? DGC_MMA_ROWS : DGC_TILE, cols = mma ? DGC_MMA_COLS : DGC_TILE;
    for (int i = 0; i < a->n_w; i++)
        a->tiles[i + 1] = a->tiles[i] + (int32_t)tiles(a->w[i].n, cols);
    unsigned out = glu ? tiles(a->w[0].n, cols / 2) : (unsigned)a->tiles[a->n_w];
    if (mma)
        dgc_launch_linear(be, linear_kernel(a->w[0].fmt), tiles(a->rows, rows), out, 0, a);
    else
        dgc_launch_linear(be, DGC_K_linear, out, tiles(a->rows, rows), 0, a);
}

/* Stacked matrices of different formats go one launch a run of the same one. */
static void op_linear(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *const *w, int n_w, enum dg_epilogue epi,
                      struct dg_plane *y) {
    struct dg_plane to = *y;
    bool glu = epi == DG_EPI_GLU;
    if (glu && (n_w != 2 || w[0]->fmt != w[1]->fmt)) {
        dg_backend_fail(be, DG_E_UNSUPPORTED, "gate and up projections in different formats are not supported by the CUDA kernels");
        return;
    }
    for (int i = 0, n; i < n_w; i += n) {
        struct dgc_linear_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(&to), .rows = x->rows, .epi = (int32_t)epi};
        int64_t cols = 0;
        for (n = 0; i + n < n_w && n < DGC_STACKED && w[i + n]->fmt == w[i]->fmt; n++) {
            a.w[n] = dg_cuda_mat(w[i + n]);
            cols += w[i + n]->n;
        }
        a.n_w = n;
        launch_linear(be, &a);
        to.data = (char *)to.data + (size_t)cols * dg_dtype_bytes(to.dtype);
    }
}

static void op_qkv_store(struct dg_backend *be, struct dg_plane *qkv, int32_t heads, bool has_v, const struct dg_vec *q_norm,
                         const struct dg_vec *k_norm, float eps, const float *cos, const float *sin, const struct dg_batch *batch,
                         const struct dg_kv_layer *kv) {
    struct dgc_qkv_store_args a = {.qkv = dg_cuda_plane(qkv),
                                   .q_norm = dg_cuda_vec(q_norm),
                                   .k_norm = dg_cuda_vec(k_norm),
                                   .cos = cos,
                                   .sin = sin,
                                   .kv = dg_cuda_kv(kv),
                                   .prm = dg_cuda_of(be)->dev_params,
                                   .n = batch->n,
                                   .heads = heads,
                                   .has_v = has_v,
                                   .eps = eps};
    dg_cuda_want_batch(be, batch);
    dgc_launch_qkv_store(be, DGC_K_qkv_store, tiles((int64_t)batch->n * (heads + 2 * kv->kv_heads), 4), 1, 0, &a);
}

#define FLASH_CHUNK 256 /* rows whose parts the scratch holds at any context; a launch takes as many as fit */
#define FLASH_SPLITS_MIN 8 /* parts of a row there is scratch for at least: those of a usual window */

/* Keys of a part. A denoise pass has few rows: over a short context its full layers need more parts to occupy the device. */
static int32_t flash_split(const struct dg_cuda *cu, const struct dg_batch *b, const struct dg_kv_layer *kv, bool hopper) {
    int32_t wanted = kv->window ? cu->tune.split : cu->tune.split_full;
    if (hopper)
        return dg_cuda_hopper_split(b, kv, wanted);
    if (wanted)
        return wanted;
    if (kv->window)
        return DGC_SPLIT_SLIDING;
    return b->causal || b->pos0 >= 16384 ? DGC_SPLIT_FULL : b->pos0 >= 4096 ? DGC_SPLIT_FULL / 2 : DGC_SPLIT_FULL / 4;
}

/* Most parts that any context up to ctx needs. */
static size_t flash_splits_most(int64_t ctx) {
    int64_t n = ctx / DGC_SPLIT_FULL + 2, denoise = ctx >= 16384 ? 16384 / (DGC_SPLIT_FULL / 2) + 2 : ctx / (DGC_SPLIT_FULL / 4) + 2;
    if (ctx < 16384 && denoise > 10)
        denoise = ctx / (DGC_SPLIT_FULL / 2) + 2 > 10 ? ctx / (DGC_SPLIT_FULL / 2) + 2 : 10;
    return (size_t)(n > denoise ? n : denoise);
}

static int32_t flash_splits(const struct dg_batch *b, const struct dg_kv_layer *kv, int32_t split) {
    int64_t lo, hi, last_hi;
    dg_batch_visible(b, kv, 0, &lo, &hi);
    dg_batch_visible(b, kv, b->n - 1, &hi, &last_hi);
    return (int32_t)((last_hi - 1) / split - lo / split + 1);
}

struct dg_cuda_cut dg_cuda_attention_cut(const struct dg_cuda *cu, const struct dg_cuda_attention *a) {
    const struct dg_kv_layer kv = {.window = a->window};
    const struct dg_batch *b = &a->batch;
    struct dg_cuda_cut c = {0, 0, 1, b->n, false};
    if (a->how == DG_CUDA_ATTENDS_TOP) {
        c.keys = dg_cuda_top_keys(cu, b);
        c.few = dg_cuda_top_few(b);
    } else if (a->how != DG_CUDA_ATTENDS_PLAIN) {
        bool hopper = a->how == DG_CUDA_ATTENDS_SM90;
        c.split = flash_split(cu, b, &kv, hopper);
        c.splits = flash_splits(b, &kv, c.split);
        int64_t fit = c.splits > 1 ? (int64_t)(cu->s.flash_units / ((size_t)c.splits * (size_t)a->heads)) : b->n;
        c.chunk = fit < b->n ? (int32_t)fit : b->n;
    }
    return c;
}

static void flash(struct dg_backend *be, const struct dg_plane *q, const struct dg_cuda_attention *at, const struct dg_kv_layer *kv,
                  struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    enum dg_cuda_kernel k = kv->hd <= 256 ? DGC_K_flash_256 : cu->fn[DGC_K_flash_512_wide] ? DGC_K_flash_512_wide : DGC_K_flash_512;
    unsigned rows = k == DGC_K_flash_512 ? DGC_FLASH_ROWS / 2 : DGC_FLASH_ROWS;
    int32_t heads = at->heads, splits = at->cut.splits, chunk = at->cut.chunk, all = at->batch.n;
    if (chunk < 1) {
        dg_backend_fail(be, DG_E_LIMIT, "attention over more positions than scratch was reserved for");
        return;
    }
    for (int32_t row = 0; row < all; row += chunk) {
        int32_t n = all - row < chunk ? all - row : chunk;
        struct dgc_flash_args a = {dg_cuda_plane(q), dg_cuda_plane(y), dg_cuda_kv(kv), cu->dev_params, cu->s.flash_part, cu->s.flash_stat,
                                   n, heads, at->batch.causal, at->cut.split, splits, row};
        a.q.p = (char *)a.q.p + (size_t)row * (size_t)q->ld * dg_dtype_bytes(q->dtype);
        a.y.p = (char *)a.y.p + (size_t)row * (size_t)y->ld * dg_dtype_bytes(y->dtype);
        if (at->how == DG_CUDA_ATTENDS_SM90)
            dg_cuda_hopper_flash(be, &a);
        else
            dgc_launch_flash(be, k, tiles((int64_t)n * (heads / kv->kv_heads), rows) * (unsigned)kv->kv_heads, (unsigned)splits,
                             DGC_FLASH_SHARED((unsigned)kv->hd, rows, k == DGC_K_flash_512 ? 2 : 4), &a);
        if (splits > 1) {
            struct dgc_flash_join_args j = {cu->s.flash_part, cu->s.flash_stat, a.y, n, heads, kv->hd, splits};
            dgc_launch_flash_join(be, DGC_K_flash_join, (unsigned)(n * heads), 1, 0, &j);
        }
    }
}

static void op_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                         const struct dg_kv_layer *kv, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dgc_attention_args a = {dg_cuda_plane(q), dg_cuda_plane(y), dg_cuda_kv(kv), cu->dev_params, batch->n, heads, batch->causal};
    struct dg_cuda_attention at = {.heads = heads, .window = kv->window, .batch = *batch};
    if (!kv->window && batch->topk != 0)
        at.how = DG_CUDA_ATTENDS_TOP;
    else if (on_tensor_cores(cu, &a.q) && kv->dtype == DG_F16 && kv->hd % 64 == 0)
        at.how = dg_cuda_hopper_flashes(cu, q, kv, y) ? DG_CUDA_ATTENDS_SM90 : DG_CUDA_ATTENDS_FLASH;
    at.cut = dg_cuda_attention_cut(cu, &at);
    dg_cuda_note_attention(cu, &at);
    dg_cuda_want_batch(be, batch);
    if (at.how == DG_CUDA_ATTENDS_TOP)
        dg_cuda_top_attention(be, q, heads, batch, kv, y);
    else if (at.how != DG_CUDA_ATTENDS_PLAIN)
        flash(be, q, &at, kv, y);
    else
        dgc_launch_attention(be, DGC_K_attention, tiles((int64_t)batch->n * heads, 4), 1, 0, &a);
}

static void op_router(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *w, const struct dg_vec *per_expert_scale,
                      struct dg_routing *out) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dgc_router_args r = {dg_cuda_plane(x), dg_cuda_mat(w), cu->s.router_part, x->rows};
    struct dgc_route_args a = {cu->s.logits, dg_cuda_vec(per_expert_scale), out->expert, out->weight, x->rows, w->n, out->k, false};
    if (on_tensor_cores(cu, &r.x) && w->fmt == DG_FMT_BF16 && w->n <= DGC_ROUTER_EXPERTS && w->k % 32 == 0 && whole_vectors(&r.x) &&
        ((uintptr_t)r.w.p & 15) == 0) {
        dgc_launch_router(be, DGC_K_router, tiles(x->rows, DGC_ROUTER_ROWS), DGC_ROUTER_PARTS, 0, &r);
        a.logits = r.part;
        a.parts = true;
    } else {
        struct dg_plane logits = {cu->s.logits, DG_F32, x->rows, w->n, w->n};
        op_linear(be, x, &w, 1, DG_EPI_NONE, &logits);
    }
    dgc_launch_route(be, DGC_K_route, tiles(x->rows, 4), 1, 0, &a);
}

/* All but the sum over a row's experts. */
static void portable_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                             const struct dg_stack *down) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_mat up0 = dg_stack_mat(gate_up, 0), down0 = dg_stack_mat(down, 0);
    int32_t pairs = x->rows * routing->k, moe = down->k, warps = DGC_PLAN_COUNTERS / gate_up->e;
    struct dgc_plane xp = dg_cuda_plane(x);
    bool mma = on_tensor_cores(cu, &xp);
    int32_t tile = mma ? DGC_MMA_TILE : DGC_TILE;
    int64_t most = gate_up->e + pairs / tile;
    unsigned row_tiles = (unsigned)(most < pairs ? most : pairs);
    enum dg_cuda_kernel k_up = DGC_K_experts_up, k_down = DGC_K_experts_down, unused;
    if (mma) {
        experts_kernels((int32_t)gate_up->fmt, &k_up, &unused);
        experts_kernels((int32_t)down->fmt, &unused, &k_down);
    }
    struct dgc_plane h = {cu->s.h, moe, (int32_t)cu->ops.act}, pair_y = {cu->s.pair_y, down->n, DGC_F32};
    struct dgc_experts_plan_args plan = {routing->expert, cu->s.plan, pairs, gate_up->e, tile, warps > 32 ? 32 : warps};
    dgc_launch_experts_plan(be, DGC_K_experts_plan, 1, 1, 0, &plan);
    struct dgc_experts_up_args up = {xp, h, dg_cuda_mat(&up0), dg_format_mat_bytes(gate_up->fmt, gate_up->n, gate_up->k),
                                     cu->s.plan, routing->k};
    dgc_launch_experts_up(be, k_up, tiles(moe, mma ? DGC_MMA_COLS / 2 : DGC_TILE / 2), row_tiles, 0, &up);
    struct dgc_experts_down_args dn = {h, pair_y, dg_cuda_mat(&down0), dg_format_mat_bytes(down->fmt, down->n, down->k), cu->s.plan};
    dgc_launch_experts_down(be, k_down, tiles(down->n, mma ? DGC_MMA_COLS : DGC_TILE), row_tiles, 0, &dn);
}

static void op_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                       const struct dg_stack *down, struct dg_plane *y) {
    dg_cuda_feed_take(be, gate_up);
    if (!dg_cuda_hopper_experts(be, x, routing, gate_up, down))
        portable_experts(be, x, routing, gate_up, down);
    dg_cuda_feed_done(be, gate_up);
    if (y)
        sum_pairs(be, routing, y);
}

static void op_row_stats(struct dg_backend *be, const struct dg_plane *logits, float inv_t, struct dg_row_stats *s) {
    struct dgc_row_stats_args a = {logits->data, logits->ld, logits->cols, dg_cuda_of(be)->dev_params, s->entropy, s->max, s->sum, s->p_max,
                                   s->argmax, s->tile_max};
    dg_cuda_want_inv_t(be, inv_t);
    dgc_launch_row_stats(be, DGC_K_row_stats, (unsigned)logits->rows, 1, 0, &a);
}

static void op_head(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *embed, float cap, float inv_t,
                    struct dg_plane *logits, struct dg_row_stats *stats) {
    struct dgc_linear_args a = {.x = dg_cuda_plane(x), .y = dg_cuda_plane(logits), .n_w = 1, .rows = x->rows, .epi = DGC_EPI_CAP, .cap = cap};
    a.w[0] = dg_cuda_mat(embed);
    dg_cuda_want_inv_t(be, inv_t);
    if (dg_cuda_hopper_head(be, &a, stats))
        return;
    launch_linear(be, &a);
    op_row_stats(be, logits, inv_t, stats);
}

/* Sparse: a row's survivors are listed and gathered one by one; a row with too many of them is computed densely, as all rows of the exact
 * form are. Which of the two a row takes depends on that row alone. Nothing waits for the host, so both are always launched. */
static void op_soft_embed(struct dg_backend *be, const struct dg_plane *logits, const struct dg_row_stats *st, float inv_t,
                          const struct dg_mat *embed, float scale, bool sparse, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    const float *z = logits->data;
    struct dgc_mat e = dg_cuda_mat(embed);
    struct dgc_plane to = dg_cuda_plane(y);
    unsigned rows = (unsigned)logits->rows;
    const int32_t *count = cu->s.soft_count;
    bool mma = on_tensor_cores(cu, &to);
    int64_t p_ld = (embed->n + DGC_SOFT_K - 1) / DGC_SOFT_K * DGC_SOFT_K;
    dg_cuda_want_inv_t_soft(be, inv_t);
    int32_t dense_parts = DGC_SOFT_PARTS;
    if (sparse) {
        struct dgc_soft_pick_args pick = {z, logits->ld, st->max, cu->dev_params, cu->s.soft_ids, cu->s.soft_w, cu->s.soft_count, embed->n,
                                           st->tile_max};
        dgc_launch_soft_pick(be, DGC_K_soft_pick, rows, 1, DGC_SOFT_PICK_SHARED, &pick);
        struct dgc_soft_gather_args g = {cu->s.soft_ids, cu->s.soft_w, count, e, cu->s.soft_part, st->sum, scale, to};
        dgc_launch_soft_gather(be, DGC_K_soft_gather, rows, DGC_SOFT_PARTS, 0, &g);
    }
    if (mma) {
        struct dgc_soft_probs_args p = {z, logits->ld, p_ld, st->max, count, cu->dev_params, cu->s.soft_p, embed->n, sparse};
        dgc_launch_soft_probs(be, DGC_K_soft_probs, tiles(p_ld, DGC_SOFT_PROBS), rows, 0, &p);
        struct dgc_soft_mma_args a = {cu->s.soft_p, p_ld, count, e, cu->s.soft_part, logits->rows, sparse};
        if (dg_cuda_hopper_soft(be, &a))
            dense_parts = DGC_SOFT_PARTS_SM90;
        else
            dgc_launch_soft_mma(be, DGC_K_soft_mma, tiles(embed->k, 128), tiles(rows, 64) * DGC_SOFT_PARTS, 0, &a);
    } else {
        struct dgc_soft_dense_args a = {z, logits->ld, st->max, st->sum, count, cu->dev_params, e, scale, logits->rows, sparse, to};
        dgc_launch_soft_dense(be, DGC_K_soft_dense, tiles(embed->k, 64), tiles(rows, 64), 0, &a);
    }
    struct dgc_soft_sum_args s = {cu->s.soft_part, st->sum, count, scale, embed->k, sparse, !mma, dense_parts, to};
    dgc_launch_soft_sum(be, DGC_K_soft_sum, tiles(embed->k, 256), rows, 0, &s);
}

/* The kernel moves the device's record on to the next step's temperatures, as the host's copy of it is moved on where a launch is made. */
static void op_sample(struct dg_backend *be, const struct dg_row_stats *st, const struct dg_sample *s, float inv_t_next) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dgc_sample_args a = {*s, st->entropy, st->p_max, st->argmax, cu->dev_params};
    dgc_launch_sample(be, DGC_K_sample, 1, 1, 0, &a);
    if (!cu->capturing)
        dg_cuda_params_sampled(be, inv_t_next);
}

void dg_cuda_fill_ops(struct dg_ops *o) {
    o->stats_tile = DGC_STATS_TILE;
    o->sample_max = DGC_SAMPLE_ROWS;
    o->alloc = dg_cuda_alloc;
    o->free = dg_cuda_free;
    o->write = dg_cuda_write;
    o->read = dg_cuda_read;
    o->embed = op_embed;
    o->rms_norm = op_rms_norm;
    o->norm_add = op_norm_add;
    o->norm_pair = op_norm_pair;
    o->norm_chain = op_norm_chain;
    o->sum_chain = chain;
    o->add = op_add;
    o->linear = op_linear;
    o->qkv_store = op_qkv_store;
    o->attention = op_attention;
    o->router = op_router;
    o->experts = op_experts;
    o->head = op_head;
    o->row_stats = op_row_stats;
    o->soft_embed = op_soft_embed;
    o->sample = op_sample;
    o->branch = dg_cuda_branch;
    o->replay = dg_cuda_replay;
}

void dg_cuda_scratch_free(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    void *all[] = {cu->s.plan.bucket, cu->s.plan.pair, cu->s.plan.tile_expert, cu->s.plan.tile_first, cu->s.plan.n_tiles,
                   cu->s.h,           cu->s.pair_y,    cu->s.logits,           cu->s.soft_ids,        cu->s.soft_w,
                   cu->s.soft_part,   cu->s.flash_part, cu->s.flash_stat, cu->s.score, cu->s.soft_count, cu->s.soft_p,
                   cu->s.moe_entry,   cu->s.moe_x,     cu->s.moe_part, cu->s.head_part, cu->s.router_part};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dg_cuda_free(be, all[i]);
    memset(&cu->s, 0, sizeof cu->s);
}

static int32_t widest_head(const struct dg_config *c) {
    int32_t hd = c->layers ? 0 : DG_CUDA_HD_MAX;
    for (int32_t l = 0; l < c->layers; l++)
        hd = c->layer[l].hd > hd ? c->layer[l].hd : hd;
    return hd;
}

static struct dg_reserve larger(struct dg_reserve c, const struct dg_reserve *want) {
#define GROW(f) c.f = want->f > c.f ? want->f : c.f
    GROW(rows);
    GROW(ctx);
    GROW(k_max);
    GROW(topk);
    GROW(experts);
    GROW(moe);
    GROW(hidden);
#undef GROW
    return c;
}

struct block {
    void *at; /* the pointer that gets it */
    size_t bytes;
};
#define BLOCKS_MAX 24

/* The scratch for c: a block each, and what is no pointer set in s. */
static int blocks_for(const struct dg_cuda *cu, struct dg_cuda_scratch *s, const struct dg_reserve *c, struct block *b) {
    const struct dg_config *cfg = &cu->model.cfg;
    bool bf16 = cu->ops.act == DG_BF16;
    size_t rows = (size_t)c->rows, pairs = rows * (size_t)c->topk, canvas = (size_t)cfg->canvas, experts = (size_t)c->experts;
    size_t tiles_most = experts + pairs / DGC_MMA_TILE + 1;
    size_t splits = flash_splits_most(c->ctx), flash_rows = rows < FLASH_CHUNK ? rows : FLASH_CHUNK;
    int n = 0;
#define BLOCK(p, size) b[n++] = (struct block){&s->p, size}
    BLOCK(plan.bucket, (experts + 1) * sizeof(int32_t));
    BLOCK(plan.pair, pairs * sizeof(int32_t));
    BLOCK(plan.tile_expert, tiles_most * sizeof(int32_t));
    BLOCK(plan.tile_first, tiles_most * sizeof(int32_t));
    BLOCK(plan.n_tiles, 2 * sizeof(int32_t));
    BLOCK(h, pairs * (size_t)c->moe * dg_dtype_bytes(cu->ops.act));
    BLOCK(pair_y, pairs * (size_t)c->hidden * sizeof(float));
    BLOCK(logits, rows * experts * sizeof(float));
    if (bf16)
        BLOCK(router_part, rows * DGC_ROUTER_PARTS * DGC_ROUTER_EXPERTS * sizeof(float));
    if (cu->hopper & DG_CUDA_H_EXPERTS) {
        BLOCK(moe_entry, (experts + pairs / DGC_MOE_TOKENS + 1) * sizeof *s->moe_entry);
        BLOCK(moe_part, (size_t)cu->n_sm * DGC_MOE_PART((size_t)c->moe));
        BLOCK(moe_x, rows * (size_t)c->hidden * sizeof(uint16_t));
    }
    if (cu->hopper & DG_CUDA_H_HEAD)
        BLOCK(head_part, canvas * (((size_t)cfg->vocab + 127) / 128) * 4 * sizeof(float));
    BLOCK(soft_ids, canvas * DGC_SOFT_LIST * sizeof(int32_t));
    BLOCK(soft_count, canvas * sizeof(int32_t));
    if (bf16)
        BLOCK(soft_p, canvas * ((size_t)cfg->vocab + DGC_SOFT_K) * sizeof(uint16_t));
    BLOCK(soft_w, canvas * DGC_SOFT_LIST * sizeof(float));
    BLOCK(soft_part, canvas * DGC_SOFT_PARTS * (size_t)cfg->hidden * sizeof(float));
    if (bf16) {
        s->flash_units = (splits < FLASH_SPLITS_MIN ? FLASH_SPLITS_MIN : splits) * flash_rows * (size_t)cfg->heads;
        BLOCK(flash_part, s->flash_units * (size_t)widest_head(cfg) * sizeof(float));
        BLOCK(flash_stat, s->flash_units * 2 * sizeof(float));
    }
    s->score_floats = dg_cuda_score_floats(cu, rows, c->ctx);
    BLOCK(score, s->score_floats * sizeof(float));
#undef BLOCK
    return n;
}

size_t dg_cuda_scratch_bytes(const struct dg_backend *be, const struct dg_reserve *want) {
    struct dg_cuda_scratch s;
    struct block b[BLOCKS_MAX];
    size_t sum = 0;
    for (int i = 0, n = blocks_for(dg_cuda_of(be), &s, want, b); i < n; i++)
        sum += b[i].bytes ? b[i].bytes : 1;
    return sum;
}

static enum dg_status scratch_for(struct dg_backend *be, const struct dg_reserve *c, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct block b[BLOCKS_MAX];
    dg_cuda_scratch_free(be);
    memset(&cu->cap, 0, sizeof cu->cap);
    for (int i = 0, n = blocks_for(cu, &cu->s, c, b); i < n; i++) {
        void *p = dg_cuda_alloc_raw(be, b[i].bytes, "scratch");
        memcpy(b[i].at, &p, sizeof p);
    }
    enum dg_status st = dg_backend_status(be, err);
    if (st != DG_OK)
        dg_cuda_scratch_free(be);
    else
        cu->cap = *c;
    return st;
}

/* There is no room for old and new at once; what was there before fits again where the new does not. */
enum dg_status dg_cuda_reserve(struct dg_backend *be, const struct dg_reserve *want, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_reserve had = cu->cap, c = larger(had, want);
    if (c.rows == cu->cap.rows && c.ctx == cu->cap.ctx && c.topk == cu->cap.topk && c.experts == cu->cap.experts && c.moe == cu->cap.moe &&
        c.hidden == cu->cap.hidden)
        return DG_OK; /* what is recorded of other sessions stays */
    enum dg_status st = scratch_for(be, &c, err);
    if (st != DG_OK && had.rows > 0) {
        struct dg_error again = {0};
        if (scratch_for(be, &had, &again) != DG_OK) {
            dg_backend_fail(be, DG_E_NOMEM, "the scratch of the sessions that are open could not be had again");
            dg_error_clear(&again);
        }
    }
    return st;
}
