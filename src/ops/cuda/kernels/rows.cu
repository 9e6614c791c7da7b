/* Row-wise kernels: parameters, embedding gather, norms, addition. One block works on one row; its sums have the block's fixed order. */
#include "ops/cuda/kernels/device.cuh"

DGC_KERNEL(set_params, set_params, 32) {
    if (threadIdx.x == 0)
        *a.to = a.v;
}

DGC_KERNEL(embed, embed, 256) {
    int64_t row = blockIdx.x;
    const uint8_t *src = a.e.p + (int64_t)a.ids[row] * a.e.row_bytes;
    float global = dgc_mat_scale(&a.e, a.e.p), w[8];
    for (int k = (int)threadIdx.x * 8; k < a.e.k; k += 256 * 8) {
        dgc_decode8(a.e.fmt, src, global, k, a.e.k, w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (k + i < a.e.k)
                dgc_store(a.y.p, a.y.dtype, row * a.y.ld + k + i, w[i] * a.scale);
    }
}

/* 1 / rms of a row; every thread gets it. */
DGC_FN float inv_rms(const struct dgc_plane *x, int64_t row, int cols, float eps, float *tmp) {
    float s = 0;
    for (int c = (int)threadIdx.x; c < cols; c += 256) {
        float v = dgc_load(x->p, x->dtype, row * x->ld + c);
        s = fmaf(v, v, s);
    }
    s = dgc_block_sum(s, tmp, 8);
    return 1.0f / sqrtf(s / (float)cols + eps);
}

DGC_KERNEL(norm, norm, 256) {
    __shared__ float tmp[8];
    int64_t row = blockIdx.x;
    float r = inv_rms(&a.x, row, a.cols, a.eps, tmp);
    for (int c = (int)threadIdx.x; c < a.cols; c += 256) {
        float v = dgc_load(a.x.p, a.x.dtype, row * a.x.ld + c) * r * (a.w ? a.w[c] : 1.0f);
        if (a.res.p)
            v += dgc_load(a.res.p, a.res.dtype, row * a.res.ld + c);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, v * a.scale);
    }
}

DGC_KERNEL(norm_pair, norm_pair, 256) {
    __shared__ float tmp[8];
    int64_t row = blockIdx.x;
    float ra = inv_rms(&a.a, row, a.cols, a.eps, tmp), rb = inv_rms(&a.b, row, a.cols, a.eps, tmp);
    for (int c = (int)threadIdx.x; c < a.cols; c += 256) {
        float u = dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) * ra * (a.wa ? a.wa[c] : 1.0f);
        float v = dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c) * rb * (a.wb ? a.wb[c] : 1.0f);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, u + v);
    }
}

DGC_KERNEL(add, add, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    if (c < a.cols)
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c,
                  dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) + dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c));
}
