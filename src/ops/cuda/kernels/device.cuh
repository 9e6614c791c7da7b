/* What every kernel file shares: the signature macro, conversions between number formats, weight decoding, reductions.
 *
 * Plain CUDA C without the toolkit's headers, so that NVRTC needs none and a C compiler can run the kernels on a CPU in tests. */
#ifndef DG_OPS_CUDA_DEVICE_CUH
#define DG_OPS_CUDA_DEVICE_CUH

#include "ops/cuda/kernels.h"

#define DGC_FN static __device__ __forceinline__

#ifndef DGC_EMULATED
/* Where a launch says so, kernels begin while the one before them ends: each waits for it first, and lets the next one begin. */
DGC_FN void dgc_chain(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#define DGC_KERNEL(name, kind, threads)                                                                                         \
    static __device__ __forceinline__ void name##_body(const struct dgc_##kind##_args &a);                                      \
    extern "C" __global__ void __launch_bounds__(threads) dgc_##name(const __grid_constant__ struct dgc_##kind##_args a) {      \
        dgc_chain();                                                                                                            \
        name##_body(a);                                                                                                         \
    }                                                                                                                           \
    static __device__ __forceinline__ void name##_body(const struct dgc_##kind##_args &a)
/* A kernel that calls dgc_chain itself, and before it reads nothing but weights: no launch of a pass writes those. `blocks` of it fit a
 * multiprocessor. */
#define DGC_KERNEL_EARLY(name, kind, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) dgc_##name(const __grid_constant__ struct dgc_##kind##_args a)
#define DGC_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

DGC_FN uint16_t dgc_f32_bf16(float f) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DGC_FN float dgc_f16_f32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DGC_FN uint16_t dgc_f32_f16(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
/* Packs two floats into a pair, the first in the low half. */
DGC_FN uint32_t dgc_pack_bf16(float lo, float hi) {
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
DGC_FN uint32_t dgc_pack_f16(float lo, float hi) {
    uint32_t v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

/* The larger; NaN when either is. */
DGC_FN float dgc_max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

/* d[16][8] += a[16][16] . b[16][8] over a warp; fragments as the PTX manual lays out mma.m16n8k16. */
DGC_FN void dgc_mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DGC_FN void dgc_mma_f16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Asks for the line at p to be brought to the L2 cache. */
DGC_FN void dgc_prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
/* Four 8 x 8 matrices of 16-bit values, transposed; lane i gives the address of row i % 8 of matrix i / 8. */
DGC_FN void dgc_ldmatrix_x4_trans(uint32_t *r, const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* 16 bytes from global to shared memory behind the thread's back; both aligned. */
DGC_FN void dgc_cp_async16(void *shared, const void *global) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
}
DGC_FN void dgc_cp_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most n of the thread's groups are under way. */
#define dgc_cp_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#endif

#define DGC_INF __int_as_float(0x7f800000)

DGC_FN float dgc_bf16_f32(uint32_t h) { return __uint_as_float(h << 16); }
DGC_FN uint32_t dgc_u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }

DGC_FN float dgc_load(const void *p, int dtype, int64_t i) {
    if (dtype == DGC_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return dtype == DGC_BF16 ? dgc_bf16_f32(h) : dgc_f16_f32(h);
}

DGC_FN void dgc_store(void *p, int dtype, int64_t i, float v) {
    if (dtype == DGC_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = dtype == DGC_BF16 ? dgc_f32_bf16(v) : dgc_f32_f16(v);
}

/* Soft cap of a logit; what is not finite stays so, or a bad weight would become text. */
DGC_FN float dgc_cap(float v, float cap) { return isfinite(v) ? cap * tanhf(v / cap) : v; }
DGC_FN float dgc_gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

/* E4M3 "fn": a half with the exponent's top bit missing, 2^8 too small; 0x7f is NaN. */
DGC_FN float dgc_e4m3(uint32_t b) {
    float v = (b & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : dgc_f16_f32((uint16_t)((b & 0x7f) << 7)) * 256.0f;
    return b & 0x80 ? -v : v;
}
/* E2M1: likewise, 2^14 too small. */
DGC_FN float dgc_e2m1(uint32_t c) {
    float v = dgc_f16_f32((uint16_t)((c & 7) << 9)) * 16384.0f;
    return c & 8 ? -v : v;
}

/* A matrix's own factor: nvfp4's global scale. */
DGC_FN float dgc_mat_scale(const struct dgc_mat *m, const uint8_t *first_row) {
    if (m->fmt != DGC_FMT_NVFP4)
        return 1.0f;
    return __uint_as_float(dgc_u16(first_row - 4) | dgc_u16(first_row - 2) << 16);
}

/* w[0..7] = values k0 .. k0+7 of a row of k values; those from k on are 0. k0 is a multiple of 8. Products as the CPU's table makes them:
 * codes times scales of few bits are exact, so only the last operation rounds. */
DGC_FN void dgc_decode8(int fmt, const uint8_t *row, float mat_scale, int k0, int k, float *w) {
    if (fmt == DGC_FMT_Q4) {
        const uint8_t *b = row + (int64_t)(k0 >> 5) * 20;
        uint32_t head = *(const uint32_t *)b, q = *(const uint32_t *)(b + 4 + ((k0 & 31) >> 1));
        float scale = dgc_bf16_f32(head & 0xffff), min = __uint_as_float(head & 0xffff0000u);
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = k0 < k ? __fadd_rn(__fmul_rn(scale, (float)(q >> (4 * i) & 15)), min) : 0.0f;
        return;
    }
    if (fmt == DGC_FMT_Q6) {
        const uint8_t *b = row + (int64_t)(k0 >> 5) * 28, *c = b + 4 + ((k0 & 31) >> 2) * 3;
        uint32_t head = *(const uint32_t *)b;
        float scale = dgc_bf16_f32(head & 0xffff), min = __uint_as_float(head & 0xffff0000u);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            uint32_t v = dgc_u16(c + 3 * g) | (uint32_t)c[3 * g + 2] << 16;
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[4 * g + i] = k0 < k ? __fadd_rn(__fmul_rn(scale, (float)(v >> (6 * i) & 63)), min) : 0.0f;
        }
        return;
    }
    if (fmt == DGC_FMT_NVFP4) {
        float s = k0 < k ? dgc_e4m3(row[(k >> 1) + (k0 >> 4)]) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t c = k0 < k ? row[(k0 >> 1) + i] : 0;
            w[2 * i] = __fmul_rn(__fmul_rn(dgc_e2m1(c & 15), s), mat_scale);
            w[2 * i + 1] = __fmul_rn(__fmul_rn(dgc_e2m1(c >> 4), s), mat_scale);
        }
        return;
    }
    float scale = fmt == DGC_FMT_Q8 ? dgc_bf16_f32(dgc_u16(row)) : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float v = 0.0f;
        if (k0 + i < k) {
            if (fmt == DGC_FMT_Q8)
                v = scale * (float)((const int8_t *)row)[2 + k0 + i];
            else if (fmt == DGC_FMT_F32)
                v = ((const float *)row)[k0 + i];
            else if (fmt == DGC_FMT_F16)
                v = dgc_f16_f32(((const uint16_t *)row)[k0 + i]);
            else
                v = dgc_bf16_f32(((const uint16_t *)row)[k0 + i]);
        }
        w[i] = v;
    }
}

DGC_FN int64_t dgc_slot(const struct dgc_kv *kv, int64_t pos) { return kv->ring ? pos & (kv->slots - 1) : pos; }

/* Positions [*lo, *hi) that row i of the batch sees (dg_batch_visible). */
DGC_FN void dgc_visible(const struct dgc_params *prm, int causal, int window, int i, int64_t *lo, int64_t *hi) {
    int64_t pos0 = prm->pos0, p = causal ? pos0 + i : pos0, end = pos0 + prm->n_live, first;
    *hi = causal && p + 1 < end ? p + 1 : end;
    first = !window ? 0 : prm->ring_from >= 0 ? prm->ring_from : p - (window - 1);
    *lo = first > 0 ? first : 0;
}

DGC_FN float dgc_warp_sum(float v) {
#pragma unroll
    for (int s = 16; s; s >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, s);
    return v;
}

DGC_FN double dgc_warp_sum_f64(double v) {
#pragma unroll
    for (int s = 16; s; s >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, s);
    return v;
}

/* Sum over a block of `warps` warps, given to every thread; tmp holds one value a warp. The order is fixed by the block's size alone. */
DGC_FN float dgc_block_sum(float v, float *tmp, int warps) {
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    v = dgc_warp_sum(v);
    __syncthreads();
    if (lane == 0)
        tmp[warp] = v;
    __syncthreads();
    v = dgc_warp_sum(lane < warps ? tmp[lane] : 0.0f);
    return v;
}

DGC_FN double dgc_block_sum_f64(double v, double *tmp, int warps) {
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    v = dgc_warp_sum_f64(v);
    __syncthreads();
    if (lane == 0)
        tmp[warp] = v;
    __syncthreads();
    return dgc_warp_sum_f64(lane < warps ? tmp[lane] : 0.0);
}

#endif
