/* Dense products on tensor cores. */
#include "ops/cuda/kernels/gemm_mma.cuh"

/* Grid: row tiles of x (64) x tiles of weight rows (128, or 64 pairs of gate and up): blocks that share weights run together. */
DGC_FN void linear_mma(const struct dgc_linear_args *a, int kfmt, uint16_t *xs, const uint16_t **xrow) {
    int glu = a->epi == DGC_EPI_GLU, i_w = 0, base = 0, tile = (int)blockIdx.y, m0 = (int)blockIdx.x * DGC_MMA_ROWS;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    if (!glu)
        while (i_w + 1 < a->n_w && tile >= a->tiles[i_w + 1])
            base += a->w[i_w++].n;
    tile -= glu ? 0 : a->tiles[i_w];
    const struct dgc_mat *w = &a->w[i_w];
    /* first output of the warp; with glu its 16 outputs are the same rows of gate and up */
    int n0 = glu ? tile * 64 + warp * 16 : tile * 128 + warp * 32;
    struct mma_tile t;
    float scale[4];
    t.fmt = w->fmt;
    t.k = w->k;
    t.w_wide = mma_wide(w->fmt, w->p, w->row_bytes) && (!glu || mma_wide(w->fmt, a->w[1].p, w->row_bytes));
    t.x_wide = !(((uint64_t)a->x.p | (uint64_t)(a->x.ld * 2)) & 15);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int up = glu && r >= 2, row = n0 + g + (glu ? (r & 1) * 8 : r * 8);
        const uint8_t *p = up ? a->w[1].p : w->p;
        t.w[r] = row < w->n ? p + (int64_t)row * w->row_bytes : 0;
        scale[r] = w->fmt == DGC_FMT_Q8 ? (t.w[r] ? dgc_bf16_f32(dgc_u16(t.w[r])) : 0.0f) : dgc_mat_scale(w, p);
    }
    if (threadIdx.x < DGC_MMA_ROWS) {
        int row = m0 + (int)threadIdx.x;
        xrow[threadIdx.x] = row < a->rows ? (const uint16_t *)a->x.p + (int64_t)row * a->x.ld : 0;
    }
    __syncthreads();
    float acc[2][MMA_NT_MAX][4];
    mma_run(kfmt, 8, &t, xrow, xs, acc);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int m = m0 + n * 8 + 2 * c + (i & 1);
            if (m >= a->rows)
                continue;
            int64_t at = (int64_t)m * a->y.ld;
            if (glu) {
                int row = n0 + g + 8 * (i >> 1);
                if (row < w->n)
                    mma_store(&a->y, at + row, mma_glu(acc[0][n][i] * scale[i >> 1], acc[1][n][i] * scale[2 + (i >> 1)]));
                continue;
            }
#pragma unroll
            for (int f = 0; f < 2; f++) {
                int row = n0 + 16 * f + g + 8 * (i >> 1);
                float v = acc[f][n][i] * scale[2 * f + (i >> 1)];
                if (row < w->n)
                    mma_store(&a->y, at + base + row, a->epi == DGC_EPI_CAP ? mma_cap(v, a->cap) : v);
            }
        }
}

#define LINEAR(name, fmt)                                                             \
    DGC_KERNEL(linear_mma_##name, linear, 128) {                                      \
        __shared__ __align__(16) uint16_t xs[2 * DGC_MMA_ROWS * MMA_STRIDE];          \
        __shared__ const uint16_t *xrow[DGC_MMA_ROWS];                                \
        linear_mma(&a, fmt, xs, xrow);                                                \
    }
LINEAR(bf16, DGC_FMT_BF16)
LINEAR(q4, DGC_FMT_Q4)
LINEAR(q8, DGC_FMT_Q8)
LINEAR(nvfp4, DGC_FMT_NVFP4)
LINEAR(any, FMT_ANY)
