/* The exact matrix product: f32 products and sums, weights decoded on the way into shared memory.
 *
 * A block of 256 threads makes a 64 x 64 tile. Each output is summed by one thread in the order of k: 32 products, then the sum of
 * those sums, so that the rounding error grows with 32 + k / 32 and a result depends on its row alone. */
#ifndef DG_OPS_CUDA_GEMM_F32_CUH
#define DG_OPS_CUDA_GEMM_F32_CUH

#include "ops/cuda/kernels/device.cuh"

#define GEMM_K 32
#define GEMM_PAD 68 /* floats from one k to the next: 64 rows and a shift of 4 banks */

/* One thread's part in loading: row `threadIdx.x / 4` of the tile, 8 of the 32 k. NULL rows load zeros. */
struct gemm_row {
    const void *x;      /* first element of the thread's x row */
    int x_dtype;
    const uint8_t *w;   /* first byte of the thread's weight row */
    int w_fmt;
    float w_scale;
    int k;
};

DGC_FN void gemm_put8(float *tile, const float *v) {
    int r = (int)threadIdx.x >> 2, sub = ((int)threadIdx.x & 3) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        tile[(sub + i) * GEMM_PAD + r] = v[i];
}

DGC_FN void gemm_load_x(const struct gemm_row *g, int k0, float *v) {
    int at = k0 + ((int)threadIdx.x & 3) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = g->x && at + i < g->k ? dgc_load(g->x, g->x_dtype, at + i) : 0.0f;
}

DGC_FN void gemm_load_w(const struct gemm_row *g, int k0, float *v) {
    if (g->w)
        dgc_decode8(g->w_fmt, g->w, g->w_scale, k0 + ((int)threadIdx.x & 3) * 8, g->k, v);
    else
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = 0.0f;
}

/* acc[i][j] += the tile's 32 products for row 4 * (t / 16) + i, column 4 * (t % 16) + j. */
DGC_FN void gemm_step(const float *xs, const float *ws, float (*acc)[4]) {
    int ty = ((int)threadIdx.x >> 4) * 4, tx = ((int)threadIdx.x & 15) * 4;
    float part[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            part[i][j] = 0.0f;
#pragma unroll 8
    for (int k = 0; k < GEMM_K; k++) {
        const float *x = xs + k * GEMM_PAD + ty, *w = ws + k * GEMM_PAD + tx;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                part[i][j] = fmaf(x[i], w[j], part[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] += part[i][j];
}

DGC_FN void gemm_tile(const struct gemm_row *g, float *xs, float *ws, float (*acc)[4]) {
    float x[8], w[8];
    for (int k0 = 0; k0 < g->k; k0 += GEMM_K) {
        gemm_load_x(g, k0, x);
        gemm_load_w(g, k0, w);
        __syncthreads();
        gemm_put8(xs, x);
        gemm_put8(ws, w);
        __syncthreads();
        gemm_step(xs, ws, acc);
    }
}

DGC_FN void gemm_zero(float (*acc)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;
}

#endif
