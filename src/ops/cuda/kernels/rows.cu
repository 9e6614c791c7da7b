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

#define THREADS DGC_NORM_THREADS
#define WARPS (THREADS / 32)

/* 1 / rms of a row; every thread gets it. */
DGC_FN float inv_rms(const struct dgc_plane *x, int64_t row, int cols, float eps, float *tmp) {
    float s = 0;
    for (int c = (int)threadIdx.x; c < cols; c += THREADS) {
        float v = dgc_load(x->p, x->dtype, row * x->ld + c);
        s = fmaf(v, v, s);
    }
    s = dgc_block_sum(s, tmp, WARPS);
    return 1.0f / sqrtf(s / (float)cols + eps);
}

#define WIDE 3 /* most vectors of 8 a thread holds of a row: up to 9216 columns */

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
        int c = ((int)threadIdx.x + i * THREADS) * 8;
        if (c < cols) {
            load8(x, row * x->ld + c, v[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                s = fmaf(v[i][j], v[i][j], s);
        }
    }
    s = dgc_block_sum(s, tmp, WARPS);
    return 1.0f / sqrtf(s / (float)cols + eps);
}

DGC_KERNEL(norm, norm, THREADS) {
    __shared__ float tmp[WARPS];
    int64_t row = blockIdx.x;
    if (a.cols % 8 == 0 && a.cols <= WIDE * THREADS * 8 && in_vectors(&a.x) && in_vectors(&a.res) && in_vectors(&a.y) && !((uint64_t)a.w & 15)) {
        float v[WIDE][8], res[8], w[8], r = read_row(&a.x, row, a.cols, a.eps, tmp, v);
        struct dgc_plane wp = {(void *)a.w, 0, DGC_F32};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * THREADS) * 8;
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
    for (int c = (int)threadIdx.x; c < a.cols; c += THREADS) {
        float v = dgc_load(a.x.p, a.x.dtype, row * a.x.ld + c) * r * (a.w ? a.w[c] : 1.0f);
        if (a.res.p)
            v += dgc_load(a.res.p, a.res.dtype, row * a.res.ld + c);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, v * a.scale);
    }
}

DGC_KERNEL(norm_pair, norm_pair, THREADS) {
    __shared__ float tmp[WARPS];
    int64_t row = blockIdx.x;
    if (a.cols % 8 == 0 && a.cols <= WIDE * THREADS * 8 && in_vectors(&a.a) && in_vectors(&a.b) && in_vectors(&a.y) &&
        !(((uint64_t)a.wa | (uint64_t)a.wb) & 15)) {
        float u[WIDE][8], v[WIDE][8], wa[8], wb[8];
        float ra = read_row(&a.a, row, a.cols, a.eps, tmp, u), rb = read_row(&a.b, row, a.cols, a.eps, tmp, v);
        struct dgc_plane pa = {(void *)a.wa, 0, DGC_F32}, pb = {(void *)a.wb, 0, DGC_F32};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int c = ((int)threadIdx.x + i * THREADS) * 8;
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
    for (int c = (int)threadIdx.x; c < a.cols; c += THREADS) {
        float u = dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) * ra * (a.wa ? a.wa[c] : 1.0f);
        float v = dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c) * rb * (a.wb ? a.wb[c] : 1.0f);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, u + v);
    }
}

/* A value as a plane keeps it. */
DGC_FN float kept(const struct dgc_plane *p, float v) { return p->dtype == DGC_F32 ? v : dgc_bf16_f32(dgc_f32_bf16(v)); }

DGC_FN float inv_rms_of(float sum, int cols, float eps) { return 1.0f / sqrtf(sum / (float)cols + eps); }

/* Eight values of a plane as they lie in memory. Converting is left for later, so that all of a thread's reads are under way at once. */
struct raw8 {
    uint4 lo, hi;
};

DGC_FN struct raw8 fetch8(const struct dgc_plane *p, int64_t at) {
    struct raw8 r;
    if (p->dtype == DGC_F32) {
        r.lo = ((const uint4 *)((const float *)p->p + at))[0];
        r.hi = ((const uint4 *)((const float *)p->p + at))[1];
    } else {
        r.lo = r.hi = *(const uint4 *)((const uint16_t *)p->p + at);
    }
    return r;
}

DGC_FN struct raw8 fetch8_weights(const float *w, int c) {
    struct raw8 r;
    r.lo = ((const uint4 *)(w + c))[0];
    r.hi = ((const uint4 *)(w + c))[1];
    return r;
}

DGC_FN void values8(const struct raw8 *r, int dtype, float *v) {
    uint32_t lo[4] = {r->lo.x, r->lo.y, r->lo.z, r->lo.w}, hi[4] = {r->hi.x, r->hi.y, r->hi.z, r->hi.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(dtype == DGC_F32 ? (i < 4 ? lo[i & 3] : hi[i & 3]) : i & 1 ? lo[i >> 1] & 0xffff0000u : lo[i >> 1] << 16);
}

/* dgc_block_sum where no thread can still be reading tmp. */
DGC_FN float sum_once(float v, float *tmp) {
    int lane = (int)threadIdx.x & 31;
    v = dgc_warp_sum(v);
    if (lane == 0)
        tmp[(int)threadIdx.x >> 5] = v;
    __syncthreads();
    return dgc_warp_sum(lane < WARPS ? tmp[lane] : 0.0f);
}

/* The single kernels' arithmetic and order of sums, on a row that stays in registers: `wide` vectors of 8 a thread. With one, there is room to
 * read all the weights that come first before the launch before this one has ended. */
DGC_FN void norm_chain_row(const struct dgc_norm_chain_args *a, int wide, float (*tmp)[WARPS]) {
    int64_t row = blockIdx.x;
    int both = a->b.p != 0, early = wide == 1, cols = a->cols;
    struct raw8 ra[WIDE], rb[WIDE], rx[WIDE], w = {0}, wa = {0}, wb = {0}, wy[DGC_NORM_OUTS];
    float t[WIDE][8], v[WIDE][8], f[8], g[8], s = 0, sb = 0;
#pragma unroll
    for (int i = 0; i < wide; i++) {
        int c = ((int)threadIdx.x + i * THREADS) * 8;
        if (c >= cols)
            break;
        if (early)
            w = fetch8_weights(a->w, c);
        if (early && both) {
            wa = fetch8_weights(a->wa, c);
            wb = fetch8_weights(a->wb, c);
        }
#pragma unroll
        for (int o = 0; o < DGC_NORM_OUTS; o++)
            if (o < a->n)
                dgc_prefetch(a->wy[o] + c);
    }
    dgc_chain();
#pragma unroll
    for (int i = 0; i < wide; i++) {
        int c = ((int)threadIdx.x + i * THREADS) * 8;
        if (c >= cols)
            break;
        ra[i] = fetch8(&a->a, row * a->a.ld + c);
        if (both)
            rb[i] = fetch8(&a->b, row * a->b.ld + c);
        rx[i] = fetch8(&a->x, row * a->x.ld + c);
    }
#pragma unroll
    for (int i = 0; i < wide; i++) {
        int c = ((int)threadIdx.x + i * THREADS) * 8;
        if (c >= cols)
            break;
        values8(&ra[i], a->a.dtype, t[i]);
        if (both)
            values8(&rb[i], a->b.dtype, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            s = fmaf(t[i][j], t[i][j], s);
            if (both)
                sb = fmaf(v[i][j], v[i][j], sb);
        }
    }
    float r = inv_rms_of(sum_once(s, tmp[0]), cols, a->eps);
    if (both) {
        float q = inv_rms_of(sum_once(sb, tmp[1]), cols, a->eps);
        s = 0;
#pragma unroll
        for (int i = 0; i < wide; i++) {
            int c = ((int)threadIdx.x + i * THREADS) * 8;
            if (c >= cols)
                break;
            if (!early) {
                wa = fetch8_weights(a->wa, c);
                wb = fetch8_weights(a->wb, c);
            }
            values8(&wa, DGC_F32, f);
            values8(&wb, DGC_F32, g);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                t[i][j] = kept(&a->a, t[i][j] * r * f[j] + v[i][j] * q * g[j]);
                s = fmaf(t[i][j], t[i][j], s);
            }
        }
        r = inv_rms_of(sum_once(s, tmp[2]), cols, a->eps);
    }
    s = 0;
#pragma unroll
    for (int i = 0; i < wide; i++) {
        int c = ((int)threadIdx.x + i * THREADS) * 8;
        if (c >= cols)
            break;
        if (!early)
            w = fetch8_weights(a->w, c);
        values8(&rx[i], a->x.dtype, v[i]);
        values8(&w, DGC_F32, f);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[i][j] = kept(&a->x, (t[i][j] * r * f[j] + v[i][j]) * a->scale);
            s = fmaf(v[i][j], v[i][j], s);
        }
#pragma unroll
        for (int o = 0; o < DGC_NORM_OUTS; o++) /* the compiler does not move reads ahead of a write that could be to the same place */
            if (early && o < a->n)
                wy[o] = fetch8_weights(a->wy[o], c);
        store8(&a->x, row * a->x.ld + c, v[i]);
    }
    if (!a->n)
        return;
    r = inv_rms_of(sum_once(s, tmp[3]), cols, a->eps);
#pragma unroll
    for (int o = 0; o < DGC_NORM_OUTS; o++) {
        if (o >= a->n)
            break;
#pragma unroll
        for (int i = 0; i < wide; i++) {
            int c = ((int)threadIdx.x + i * THREADS) * 8;
            if (c >= cols)
                break;
            if (!early)
                wy[o] = fetch8_weights(a->wy[o], c);
            values8(&wy[o], DGC_F32, f);
#pragma unroll
            for (int j = 0; j < 8; j++)
                t[i][j] = (v[i][j] * r * f[j] + 0.0f) * a->mul[o];
            store8(&a->y[o], row * a->y[o].ld + c, t[i]);
        }
    }
}

DGC_KERNEL_EARLY(norm_chain, norm_chain, DGC_NORM_THREADS, 2) {
    __shared__ float tmp[4][WARPS];
    norm_chain_row(&a, 1, tmp);
}

DGC_KERNEL_EARLY(norm_chain_wide, norm_chain, DGC_NORM_THREADS, 1) {
    __shared__ float tmp[4][WARPS];
    norm_chain_row(&a, WIDE, tmp);
}

DGC_KERNEL(add, add, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    if (c < a.cols)
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c,
                  dgc_load(a.a.p, a.a.dtype, row * a.a.ld + c) + dgc_load(a.b.p, a.b.dtype, row * a.b.ld + c));
}
