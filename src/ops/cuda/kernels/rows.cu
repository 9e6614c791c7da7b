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

#define WIDE 4 /* most vectors of 8 a thread holds of a row: up to 8192 columns */

/* Whether a plane's rows can be read 8 values at a time. A plane without memory can. */
DGC_FN int in_vectors(const struct dgc_plane *p) { return !(((uint64_t)p->p | (uint64_t)(p->ld * (p->dtype == DGC_F32 ? 4 : 2))) & 15); }

DGC_FN void load8(const struct dgc_plane *p, int64_t at, float *v) {
    if (p->dtype == DGC_F32) {
        uint4 a = ((const uint4 *)((const float *)p->p + at))[0], b = ((const uint4 *)((const float *)p->p + at))[1];
        uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __uint_as_float(w[i]);
    } else {
        uint4 a = *(const uint4 *)((const uint16_t *)p->p + at);
        uint32_t w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
}

DGC_FN void store8(const struct dgc_plane *p, int64_t at, const float *v) {
    uint4 a;
    if (p->dtype == DGC_F32) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            a.x = __float_as_uint(v[4 * h]), a.y = __float_as_uint(v[4 * h + 1]), a.z = __float_as_uint(v[4 * h + 2]),
            a.w = __float_as_uint(v[4 * h + 3]);
            ((uint4 *)((float *)p->p + at))[h] = a;
        }
    } else {
        a.x = dgc_pack_bf16(v[0], v[1]), a.y = dgc_pack_bf16(v[2], v[3]), a.z = dgc_pack_bf16(v[4], v[5]), a.w = dgc_pack_bf16(v[6], v[7]);
        *(uint4 *)((uint16_t *)p->p + at) = a;
    }
}

/* A row in registers, and its 1 / rms. */
DGC_FN float read_row(const struct dgc_plane *x, int64_t row, int cols, float eps, float *tmp, float (*v)[8]) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        int c = ((int)threadIdx.x + i * 256) * 8;
        if (c < cols) {
            load8(x, row * x->ld + c, v[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                s = fmaf(v[i][j], v[i][j], s);
        }
    }
    s = dgc_block_sum(s, tmp, 8);
    return 1.0f / sqrtf(s / (float)cols + eps);
}

DGC_KERNEL(norm, norm, 256) {
    __shared__ float tmp[8];
    int64_t row = blockIdx.x;
    if (a.cols % 8 == 0 && a.cols <= WIDE * 256 * 8 && in_vectors(&a.x) && in_vectors(&a.res) && in_vectors(&a.y) && !((uint64_t)a.w & 15)) {
        float v[WIDE][8], res[8], w[8], r = read_row(&a.x, row, a.cols, a.eps, tmp, v);
        struct dgc_plane wp = {(void *)a.w, 0, DGC_F32};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * 256) * 8;
            if (c >= a.cols)
                break;
            if (a.w)
                load8(&wp, c, w);
            if (a.res.p)
                load8(&a.res, row * a.res.ld + c, res);
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[i][j] = (v[i][j] * r * (a.w ? w[j] : 1.0f) + (a.res.p ? res[j] : 0.0f)) * a.scale;
            store8(&a.y, row * a.y.ld + c, v[i]);
        }
        return;
    }
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
    if (a.cols % 8 == 0 && a.cols <= WIDE * 256 * 8 && in_vectors(&a.a) && in_vectors(&a.b) && in_vectors(&a.y) &&
        !(((uint64_t)a.wa | (uint64_t)a.wb) & 15)) {
        float u[WIDE][8], v[WIDE][8], wa[8], wb[8];
        float ra = read_row(&a.a, row, a.cols, a.eps, tmp, u), rb = read_row(&a.b, row, a.cols, a.eps, tmp, v);
        struct dgc_plane pa = {(void *)a.wa, 0, DGC_F32}, pb = {(void *)a.wb, 0, DGC_F32};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * 256) * 8;
            if (c >= a.cols)
                break;
            if (a.wa)
                load8(&pa, c, wa);
            if (a.wb)
                load8(&pb, c, wb);
#pragma unroll
            for (int j = 0; j < 8; j++)
                u[i][j] = u[i][j] * ra * (a.wa ? wa[j] : 1.0f) + v[i][j] * rb * (a.wb ? wb[j] : 1.0f);
            store8(&a.y, row * a.y.ld + c, u[i]);
        }
        return;
    }
    float ra = inv_rms(&a.a, row, a.cols, a.eps, tmp), rb = inv_rms(&a.b, row, a.cols, a.eps, tmp);
    for (int c = (int)threadIdx.x; c < a.cols; c += 256) {
        float u = dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) * ra * (a.wa ? a.wa[c] : 1.0f);
        float v = dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c) * rb * (a.wb ? a.wb[c] : 1.0f);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, u + v);
    }
}

/* A value as a plane keeps it. */
DGC_FN float kept(const struct dgc_plane *p, float v) { return p->dtype == DGC_F32 ? v : dgc_bf16_f32(dgc_f32_bf16(v)); }

DGC_FN float inv_rms_of(float s, int cols, float eps, float *tmp) { return 1.0f / sqrtf(dgc_block_sum(s, tmp, 8) / (float)cols + eps); }

/* The single kernels' arithmetic and order of sums, on a row that stays in registers. */
DGC_KERNEL(norm_chain, norm_chain, 256) {
    __shared__ float tmp[8];
    int64_t row = blockIdx.x;
    float t[WIDE][8], v[WIDE][8], w[8], r = read_row(&a.a, row, a.cols, a.eps, tmp, t);
    if (a.b.p) {
        float rb = read_row(&a.b, row, a.cols, a.eps, tmp, v), s = 0;
        struct dgc_plane pa = {(void *)a.wa, 0, DGC_F32}, pb = {(void *)a.wb, 0, DGC_F32};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * 256) * 8;
            if (c < a.cols) {
                float wb[8];
                load8(&pa, c, w);
                load8(&pb, c, wb);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    t[i][j] = kept(&a.a, t[i][j] * r * w[j] + v[i][j] * rb * wb[j]);
                    s = fmaf(t[i][j], t[i][j], s);
                }
            }
        }
        r = inv_rms_of(s, a.cols, a.eps, tmp);
    }
    float s = 0;
    struct dgc_plane pw = {(void *)a.w, 0, DGC_F32};
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        int c = ((int)threadIdx.x + i * 256) * 8;
        if (c < a.cols) {
            load8(&a.x, row * a.x.ld + c, v[i]);
            load8(&pw, c, w);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[i][j] = kept(&a.x, (t[i][j] * r * w[j] + v[i][j]) * a.scale);
                s = fmaf(v[i][j], v[i][j], s);
            }
            store8(&a.x, row * a.x.ld + c, v[i]);
        }
    }
    if (!a.n)
        return;
    r = inv_rms_of(s, a.cols, a.eps, tmp);
#pragma unroll
    for (int o = 0; o < DGC_NORM_OUTS; o++) {
        struct dgc_plane po = {(void *)a.wy[o], 0, DGC_F32};
        if (o >= a.n)
            break;
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * 256) * 8;
            if (c < a.cols) {
                load8(&po, c, w);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    t[i][j] = (v[i][j] * r * w[j] + 0.0f) * a.mul[o];
                store8(&a.y[o], row * a.y[o].ld + c, t[i]);
            }
        }
    }
}

DGC_KERNEL(add, add, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    if (c < a.cols)
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c,
                  dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) + dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c));
}
