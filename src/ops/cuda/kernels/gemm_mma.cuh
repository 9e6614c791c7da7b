/* The portable tensor core product (mma.sync, sm_80 and later): y = x . w with bf16 operands and f32 sums.
 *
 * Weights are the mma's A operand and never pass through shared memory: a lane reads the 8 values of a row it needs for 32 k straight from
 * the file's layout, one step ahead, and decodes them to bf16 in registers. x is the B operand, read from shared memory, where it comes by
 * asynchronous copies. The order of k inside a product is free as long as both operands agree, so lane c of a quad takes values
 * 8c .. 8c+7 of each 32: one 16-byte read on either side. A sum runs over k in steps of 16, whatever the batch.
 *
 * A block of 4 warps makes 128 weight rows (32 a warp) by 8 * nt rows of x. */
#ifndef DG_OPS_CUDA_GEMM_MMA_CUH
#define DG_OPS_CUDA_GEMM_MMA_CUH

#include "ops/cuda/kernels/device.cuh"

#define FMT_ANY 99     /* format known at run time */
#define MMA_K 64       /* k of a step */
#define MMA_STRIDE 96  /* elements from one row of x to the next in shared memory: two rows' reads meet all banks */
#define MMA_NT_MAX 8

struct mma_tile {
    const uint8_t *w[4]; /* the lane's weight rows g, g + 8, g + 16, g + 24; NULL = zeros */
    int fmt;             /* where the kernel serves any */
    int w_wide, x_wide;  /* rows begin at multiples of what the wide reads need */
    int k;
};

DGC_FN uint32_t load_u16(const uint8_t *p) { return *(const uint16_t *)p; }

/* The lane's 8 values from k on as bf16 pairs, read one by one: rows at odd places, the last values of a row, and f32. Out of line: it is
 * rare and long. */
static __device__ __noinline__ uint4 mma_load_single(int fmt, const uint8_t *row, int k, int K) {
    uint32_t d[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int at = k + 2 * i + j;
            v[j] = 0;
            if (at < K && fmt == DGC_FMT_F32)
                v[j] = dgc_f32_bf16(((const float *)row)[at]);
            else if (at < K)
                v[j] = ((const uint16_t *)row)[at];
        }
        d[i] = v[0] | v[1] << 16;
    }
    uint4 r;
    r.x = d[0], r.y = d[1], r.z = d[2], r.w = d[3];
    return r;
}

/* The same of q8: 8 code bytes, in the first two words. */
static __device__ __noinline__ uint4 mma_load_bytes(const uint8_t *q, int n) {
    uint4 r;
    r.x = r.y = r.z = r.w = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r.x |= i < n ? (uint32_t)q[i] << (8 * i) : 0;
        r.y |= i + 4 < n ? (uint32_t)q[i + 4] << (8 * i) : 0;
    }
    return r;
}

/* The raw bytes of the lane's 8 values from k on. */
DGC_FN void mma_load(int fmt, const uint8_t *row, int k, int K, int wide, uint32_t *d) {
    d[0] = d[1] = d[2] = d[3] = 0;
    if (!row || k >= K)
        return;
    if (fmt == DGC_FMT_Q4) {
        const uint8_t *b = row + (int64_t)(k >> 5) * 20;
        d[0] = *(const uint32_t *)(b + 4 + ((k & 31) >> 1));
        d[1] = *(const uint32_t *)b;
    } else if (fmt == DGC_FMT_NVFP4) {
        const uint8_t *q = row + (k >> 1);
        d[0] = wide ? *(const uint32_t *)q : dgc_u16(q) | dgc_u16(q + 2) << 16;
        d[1] = row[(K >> 1) + (k >> 4)];
    } else if (fmt == DGC_FMT_Q6) {
        const uint8_t *b = row + (int64_t)(k >> 5) * 28, *q = b + 4 + ((k & 31) >> 2) * 3;
        d[0] = load_u16(q) | load_u16(q + 2) << 16;
        d[1] = load_u16(q + 4);
        d[2] = *(const uint32_t *)b;
    } else if (fmt == DGC_FMT_Q8) {
        const uint8_t *q = row + 2 + k;
        if (wide && k + 8 <= K) {
            d[0] = load_u16(q) | load_u16(q + 2) << 16;
            d[1] = load_u16(q + 4) | load_u16(q + 6) << 16;
        } else {
            uint4 v = mma_load_bytes(q, K - k);
            d[0] = v.x;
            d[1] = v.y;
        }
    } else {
        uint4 v;
        if (fmt != DGC_FMT_F32 && wide && k + 8 <= K)
            v = *(const uint4 *)(row + (int64_t)k * 2);
        else
            v = mma_load_single(fmt, row, k, K);
        d[0] = v.x;
        d[1] = v.y;
        d[2] = v.z;
        d[3] = v.w;
    }
}

DGC_FN float code_f32(uint32_t q) { return __uint_as_float(0x4b000000u | q) - 8388608.0f; } /* q < 2^23, without a conversion */

/* Raw bytes to 8 bf16 values in 4 pairs. q8's scale and nvfp4's global scale are left to the end: codes alone are exact in bf16. */
DGC_FN void mma_decode(int fmt, const uint32_t *d, uint32_t *v) {
    if (fmt == DGC_FMT_Q4 || fmt == DGC_FMT_Q6) {
        uint32_t head = fmt == DGC_FMT_Q4 ? d[1] : d[2];
        float scale = __uint_as_float(head << 16), min = __uint_as_float(head & 0xffff0000u);
        uint64_t bits = (uint64_t)d[1] << 32 | d[0];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t lo = fmt == DGC_FMT_Q4 ? d[0] >> (8 * i) & 15 : (uint32_t)(bits >> (12 * i)) & 63;
            uint32_t hi = fmt == DGC_FMT_Q4 ? d[0] >> (8 * i + 4) & 15 : (uint32_t)(bits >> (12 * i + 6)) & 63;
            v[i] = dgc_pack_bf16(fmaf(scale, code_f32(lo), min), fmaf(scale, code_f32(hi), min));
        }
    } else if (fmt == DGC_FMT_Q8) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = d[i >> 1] >> (16 * (i & 1));
            v[i] = dgc_pack_bf16((float)(int8_t)w, (float)(int8_t)(w >> 8));
        }
    } else if (fmt == DGC_FMT_NVFP4) {
        float s = dgc_e4m3(d[1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = dgc_pack_bf16(dgc_e2m1(d[0] >> (8 * i) & 15) * s, dgc_e2m1(d[0] >> (8 * i + 4) & 15) * s);
    } else if (fmt == DGC_FMT_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = dgc_pack_bf16(dgc_f16_f32((uint16_t)d[i]), dgc_f16_f32((uint16_t)(d[i] >> 16)));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = d[i];
    }
}


/* Ends of a sum, out of line: a thread makes dozens. */
static __device__ __noinline__ float mma_glu(float gate, float up) { return dgc_gelu(gate) * up; }
static __device__ __noinline__ float mma_cap(float v, float cap) { return dgc_cap(v, cap); }

DGC_FN void mma_store(const struct dgc_plane *y, int64_t at, float v) {
    if (y->dtype == DGC_F32)
        ((float *)y->p)[at] = v;
    else
        ((uint16_t *)y->p)[at] = dgc_f32_bf16(v);
}

/* Whether rows of a matrix begin where its wide reads may. */
DGC_FN int mma_wide(int fmt, const uint8_t *base, int64_t row_bytes) {
    uint64_t at = (uint64_t)base | (uint64_t)row_bytes;
    return !(at & (fmt == DGC_FMT_NVFP4 ? 3 : fmt == DGC_FMT_Q8 ? 1 : 15));
}

/* Begins the copy of rows of x, k0 .. k0+63. */
DGC_FN void mma_load_x(const struct mma_tile *t, int nt, const uint16_t *const *xrow, int k0, uint16_t *to) {
#pragma unroll
    for (int i = 0; i < nt / 2; i++) {
        int id = (int)threadIdx.x + i * 128, row = id >> 3, k = k0 + (id & 7) * 8;
        const uint16_t *src = xrow[row];
        uint16_t *dst = to + row * MMA_STRIDE + (id & 7) * 8;
        if (src && t->x_wide && k + 8 <= t->k)
            dgc_cp_async16(dst, src + k);
        else
#pragma unroll
            for (int j = 0; j < 8; j++)
                dst[j] = src && k + j < t->k ? src[k + j] : 0;
    }
}

/* acc[f][n][i]: weight row 16 f + g + 8 (i / 2) of the warp's 32, x row 8 n + 2 c + i % 2, where lane = 4 g + c.
 * kfmt: the kernel's format or FMT_ANY; xrow: nt * 8 row pointers in shared memory, xs: 2 * nt * 8 * MMA_STRIDE elements there. */
DGC_FN void mma_run(int kfmt, int nt, const struct mma_tile *t, const uint16_t *const *xrow, uint16_t *xs, float (*acc)[MMA_NT_MAX][4]) {
    int fmt = kfmt == FMT_ANY ? t->fmt : kfmt, lane = (int)threadIdx.x & 31, g = lane >> 2, c = (lane & 3) * 8, half = nt * 8 * MMA_STRIDE;
    uint32_t raw[4][2][4];
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int n = 0; n < nt; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[f][n][i] = 0.0f;
    mma_load_x(t, nt, xrow, 0, xs);
    dgc_cp_commit();
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            mma_load(fmt, t->w[r], h * 32 + c, t->k, t->w_wide, raw[r][h]);
    for (int k0 = 0, buf = 0; k0 < t->k; k0 += MMA_K, buf ^= 1) {
        dgc_cp_wait(0);
        __syncthreads(); /* this step's x is there, and nobody reads the other half any more */
        if (k0 + MMA_K < t->k)
            mma_load_x(t, nt, xrow, k0 + MMA_K, xs + (buf ^ 1) * half);
        dgc_cp_commit();
        const uint16_t *x = xs + buf * half + g * MMA_STRIDE + c;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t a[2][2][4]; /* [16 k][fragment] */
#pragma unroll
            for (int f = 0; f < 2; f++) {
                uint32_t p[4], q[4];
                mma_decode(fmt, raw[2 * f][h], p);
                mma_decode(fmt, raw[2 * f + 1][h], q);
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    a[s][f][0] = p[2 * s];
                    a[s][f][1] = q[2 * s];
                    a[s][f][2] = p[2 * s + 1];
                    a[s][f][3] = q[2 * s + 1];
                }
            }
            /* the next step's weights are under way during this one's products */
#pragma unroll
            for (int r = 0; r < 4; r++)
                mma_load(fmt, t->w[r], k0 + MMA_K + h * 32 + c, t->k, t->w_wide, raw[r][h]);
#pragma unroll
            for (int n = 0; n < nt; n++) {
                uint4 b = *(const uint4 *)(x + n * 8 * MMA_STRIDE + h * 32);
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    dgc_mma_bf16(acc[f][n], a[0][f], b.x, b.y);
                    dgc_mma_bf16(acc[f][n], a[1][f], b.z, b.w);
                }
            }
        }
    }
}

#endif
