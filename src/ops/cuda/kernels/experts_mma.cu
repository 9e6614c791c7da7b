/* The grouped expert products on tensor cores: tiles of 32 rows of one expert, so that a step's usual 16 rows an expert read its weights
 * once. */
#include "ops/cuda/kernels/gemm_mma.cuh"

#define NT (DGC_MMA_TILE / 8)

struct group {
    int e, first, end; /* expert, the tile's first sorted pair, the expert's last one + 1 */
};

DGC_FN int find_group(const struct dgc_plan *plan, struct group *t) {
    if ((int)blockIdx.y >= *plan->n_tiles)
        return 0;
    t->e = plan->tile_expert[blockIdx.y];
    t->first = plan->tile_first[blockIdx.y];
    t->end = plan->bucket[t->e + 1];
    return 1;
}

DGC_FN void experts_up_mma(const struct dgc_experts_up_args *a, int kfmt, uint16_t *xs, const uint16_t **xrow) {
    struct group tile;
    if (!find_group(&a->plan, &tile))
        return;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, moe = a->w.n / 2;
    int n0 = (int)blockIdx.x * 64 + warp * 16;
    const uint8_t *gate = a->w.p + (int64_t)tile.e * a->mat_bytes;
    struct mma_tile t;
    float scale[4];
    t.fmt = a->w.fmt;
    t.k = a->w.k;
    t.w_wide = mma_wide(a->w.fmt, a->w.p, a->w.row_bytes) && mma_wide(a->w.fmt, a->w.p, a->mat_bytes);
    t.x_wide = !(((uint64_t)a->x.p | (uint64_t)(a->x.ld * 2)) & 15);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = n0 + g + (r & 1) * 8;
        t.w[r] = row < moe ? gate + (int64_t)(row + (r >> 1) * moe) * a->w.row_bytes : 0;
        scale[r] = a->w.fmt == DGC_FMT_Q8 ? (t.w[r] ? dgc_bf16_f32(dgc_u16(t.w[r])) : 0.0f) : dgc_mat_scale(&a->w, gate);
    }
    if (threadIdx.x < DGC_MMA_TILE) {
        int p = tile.first + (int)threadIdx.x;
        xrow[threadIdx.x] = p < tile.end ? (const uint16_t *)a->x.p + (int64_t)(a->plan.pair[p] / a->topk) * a->x.ld : 0;
    }
    __syncthreads();
    float acc[2][MMA_NT_MAX][4];
    mma_run(kfmt, NT, &t, xrow, xs, acc);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int p = tile.first + n * 8 + 2 * c + (i & 1), row = n0 + g + 8 * (i >> 1);
            if (p < tile.end && row < moe)
                mma_store(&a->h, (int64_t)p * a->h.ld + row, mma_glu(acc[0][n][i] * scale[i >> 1], acc[1][n][i] * scale[2 + (i >> 1)]));
        }
}

DGC_FN void experts_down_mma(const struct dgc_experts_down_args *a, int kfmt, uint16_t *xs, const uint16_t **xrow) {
    struct group tile;
    if (!find_group(&a->plan, &tile))
        return;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    int n0 = (int)blockIdx.x * 128 + warp * 32;
    const uint8_t *w = a->w.p + (int64_t)tile.e * a->mat_bytes;
    struct mma_tile t;
    float scale[4];
    t.fmt = a->w.fmt;
    t.k = a->w.k;
    t.w_wide = mma_wide(a->w.fmt, a->w.p, a->w.row_bytes) && mma_wide(a->w.fmt, a->w.p, a->mat_bytes);
    t.x_wide = !(((uint64_t)a->h.p | (uint64_t)(a->h.ld * 2)) & 15);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = n0 + g + r * 8;
        t.w[r] = row < a->w.n ? w + (int64_t)row * a->w.row_bytes : 0;
        scale[r] = a->w.fmt == DGC_FMT_Q8 ? (t.w[r] ? dgc_bf16_f32(dgc_u16(t.w[r])) : 0.0f) : dgc_mat_scale(&a->w, w);
    }
    if (threadIdx.x < DGC_MMA_TILE) {
        int p = tile.first + (int)threadIdx.x;
        xrow[threadIdx.x] = p < tile.end ? (const uint16_t *)a->h.p + (int64_t)p * a->h.ld : 0;
    }
    __syncthreads();
    float acc[2][MMA_NT_MAX][4];
    mma_run(kfmt, NT, &t, xrow, xs, acc);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int p = tile.first + n * 8 + 2 * c + i;
            if (p >= tile.end)
                continue;
            float *y = (float *)a->y.p + (int64_t)a->plan.pair[p] * a->y.ld;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int row = n0 + g + r * 8;
                if (row < a->w.n)
                    y[row] = acc[r >> 1][n][i + 2 * (r & 1)] * scale[r];
            }
        }
}

#define EXPERTS(name, fmt)                                                            \
    DGC_KERNEL(experts_up_mma_##name, experts_up, 128) {                              \
        __shared__ __align__(16) uint16_t xs[2 * DGC_MMA_TILE * MMA_STRIDE];          \
        __shared__ const uint16_t *xrow[DGC_MMA_TILE];                                \
        experts_up_mma(&a, fmt, xs, xrow);                                            \
    }                                                                                 \
    DGC_KERNEL(experts_down_mma_##name, experts_down, 128) {                          \
        __shared__ __align__(16) uint16_t xs[2 * DGC_MMA_TILE * MMA_STRIDE];          \
        __shared__ const uint16_t *xrow[DGC_MMA_TILE];                                \
        experts_down_mma(&a, fmt, xs, xrow);                                          \
    }
EXPERTS(bf16, DGC_FMT_BF16)
EXPERTS(q4, DGC_FMT_Q4)
EXPERTS(nvfp4, DGC_FMT_NVFP4)
EXPERTS(any, FMT_ANY)
