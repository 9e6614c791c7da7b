/* Exact matrix products: linear (with the gate-up epilogue and the head's soft cap) and the grouped expert products. */
#include "ops/cuda/kernels/gemm_f32.cuh"

/* The thread's row of a weight tile of w. Gate and up rows alternate when `up` is there (a matrix of the same format and width), so that one
 * thread holds both halves of a pair. */
DGC_FN void set_w(struct gemm_row *g, const struct dgc_mat *w, const uint8_t *up, float up_scale, int tile) {
    int r = (int)threadIdx.x >> 2, row = up ? tile * 32 + (r >> 1) : tile * 64 + r;
    const uint8_t *base = up && (r & 1) ? up : w->p;
    g->w_fmt = w->fmt;
    g->w_scale = up && (r & 1) ? up_scale : dgc_mat_scale(w, w->p);
    g->w = row < w->n ? base + (int64_t)row * w->row_bytes : 0;
    g->k = w->k;
}

/* Grid: output tiles x row tiles. */
DGC_KERNEL(linear, linear, 256) {
    __shared__ float xs[GEMM_K * GEMM_PAD], ws[GEMM_K * GEMM_PAD];
    int glu = a.epi == DGC_EPI_GLU, i_w = 0, tile = (int)blockIdx.x, m0 = (int)blockIdx.y * 64, base = 0;
    if (!glu)
        while (i_w + 1 < a.n_w && tile >= a.tiles[i_w + 1])
            base += a.w[i_w++].n;
    tile -= glu ? 0 : a.tiles[i_w];
    const struct dgc_mat *w = &a.w[i_w];
    int row = m0 + ((int)threadIdx.x >> 2);
    struct gemm_row g;
    set_w(&g, w, glu ? a.w[1].p : 0, glu ? dgc_mat_scale(&a.w[1], a.w[1].p) : 1.0f, tile);
    g.x_dtype = a.x.dtype;
    g.x = row < a.rows ? (const char *)a.x.p + (int64_t)row * a.x.ld * (a.x.dtype == DGC_F32 ? 4 : 2) : 0;
    float acc[4][4];
    gemm_zero(acc);
    gemm_tile(&g, xs, ws, acc);

    int ty = m0 + ((int)threadIdx.x >> 4) * 4, tx = ((int)threadIdx.x & 15) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (ty + i >= a.rows)
            continue;
        int64_t at = (int64_t)(ty + i) * a.y.ld;
        if (glu) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int c = tile * 32 + tx / 2 + j;
                if (c < w->n)
                    dgc_store(a.y.p, a.y.dtype, at + c, dgc_gelu(acc[i][2 * j]) * acc[i][2 * j + 1]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int c = tile * 64 + tx + j;
                if (c < w->n)
                    dgc_store(a.y.p, a.y.dtype, at + base + c, a.epi == DGC_EPI_CAP ? dgc_cap(acc[i][j], a.cap) : acc[i][j]);
            }
        }
    }
}

/* Grid: output tiles x most row tiles; the plan says how many there are. */
DGC_KERNEL(experts_up, experts_up, 256) {
    __shared__ float xs[GEMM_K * GEMM_PAD], ws[GEMM_K * GEMM_PAD];
    if ((int)blockIdx.y >= *a.plan.n_tiles)
        return;
    int e = a.plan.tile_expert[blockIdx.y], first = a.plan.tile_first[blockIdx.y], end = a.plan.bucket[e + 1];
    struct dgc_mat gate = a.w;
    int moe = a.w.n / 2, tile = (int)blockIdx.x, p = first + ((int)threadIdx.x >> 2);
    gate.n = moe;
    gate.p = a.w.p + (int64_t)e * a.mat_bytes;
    struct gemm_row g;
    set_w(&g, &gate, gate.p + (int64_t)moe * a.w.row_bytes, dgc_mat_scale(&gate, gate.p), tile);
    g.x_dtype = a.x.dtype;
    g.x = p < end ? (const char *)a.x.p + (int64_t)(a.plan.pair[p] / a.topk) * a.x.ld * (a.x.dtype == DGC_F32 ? 4 : 2) : 0;
    float acc[4][4];
    gemm_zero(acc);
    gemm_tile(&g, xs, ws, acc);

    int ty = first + ((int)threadIdx.x >> 4) * 4, tx = ((int)threadIdx.x & 15) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int c = tile * 32 + tx / 2 + j;
            if (ty + i < end && c < moe)
                dgc_store(a.h.p, a.h.dtype, (int64_t)(ty + i) * a.h.ld + c, dgc_gelu(acc[i][2 * j]) * acc[i][2 * j + 1]);
        }
}

DGC_KERNEL(experts_down, experts_down, 256) {
    __shared__ float xs[GEMM_K * GEMM_PAD], ws[GEMM_K * GEMM_PAD];
    if ((int)blockIdx.y >= *a.plan.n_tiles)
        return;
    int e = a.plan.tile_expert[blockIdx.y], first = a.plan.tile_first[blockIdx.y], end = a.plan.bucket[e + 1];
    struct dgc_mat w = a.w;
    int tile = (int)blockIdx.x, p = first + ((int)threadIdx.x >> 2);
    w.p = a.w.p + (int64_t)e * a.mat_bytes;
    struct gemm_row g;
    set_w(&g, &w, 0, 1.0f, tile);
    g.x_dtype = a.h.dtype;
    g.x = p < end ? (const char *)a.h.p + (int64_t)p * a.h.ld * (a.h.dtype == DGC_F32 ? 4 : 2) : 0;
    float acc[4][4];
    gemm_zero(acc);
    gemm_tile(&g, xs, ws, acc);

    int ty = first + ((int)threadIdx.x >> 4) * 4, tx = ((int)threadIdx.x & 15) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (ty + i >= end)
            continue;
        int64_t at = (int64_t)a.plan.pair[ty + i] * a.y.ld;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int c = tile * 64 + tx + j;
            if (c < a.w.n)
                ((float *)a.y.p)[at + c] = acc[i][j];
        }
    }
}

/* y[row] = sum over ranks, strongest first. */
DGC_KERNEL(experts_sum, experts_sum, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    if (c >= a.cols)
        return;
    float s = 0;
    for (int r = 0; r < a.topk; r++)
        s = fmaf(a.weight[row * a.topk + r], a.pair_y[(row * a.topk + r) * a.cols + c], s);
    dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, s);
}
