/* Expert weights on Hopper: how moe_repack lays a stack out, and how a lane turns its words into wgmma's A operand.
 *
 * Permuted activations: a lane of the A fragment takes a whole 32-bit word of nibbles, so within each 64 values of K position p holds
 * element dg_perm(p). Scale and minimum serve 32 consecutive elements, which a lane's two words of one row never leave. */
#ifndef DG_OPS_CUDA_EXPERTS_SM90_CUH
#define DG_OPS_CUDA_EXPERTS_SM90_CUH
#include "ops/cuda/kernels/sm90.cuh"

/* The repacked scales and minima are those of the weights * 2^-32, for the exponents' sake (dg_q4_word); results are scaled back. */
#define Q4_BACK 0x1p32f

/* Word of a 64-group (8 nibbles each) that lane quarter t reads as its i-th. */
DGC_FN int dg_perm_word(int t, int i) { return t >= 2 ? 2 * t + i : i ? 3 - t : t; }
/* Element at position p of a permuted 64-group, and back. p = 16 step + 8 half + 2 t + b. */
DGC_FN int dg_perm(int p) {
    int s = p >> 4, h = p >> 3 & 1, t = p >> 1 & 3, b = p & 1;
    return 8 * dg_perm_word(t, s >> 1) + 2 * (s & 1) + h + 4 * b;
}
DGC_FN int dg_perm_inv(int e) {
    int w = e >> 3, n = e & 7, i = w >= 4 ? w & 1 : w >> 1, t = w >= 4 ? w >> 1 : w == 3 ? 0 : w == 2 ? 1 : w;
    return 16 * (2 * i + (n >> 1 & 1)) + 8 * (n & 1) + 2 * t + (n >> 2);
}

/* ---- the weights as the kernels read them ---- */
/* Where tile b of an expert is in the stack, in 16-byte units, and how far behind the second half of its bytes is: the expert has `rows`
 * rows of row_bytes; glu: the tile is rows b * 32 of gate and of up. */
DGC_FN unsigned dg_q4_tile(int expert, int rows, int b, int row_bytes, bool glu) {
    return ((unsigned)expert * rows + (glu ? 32 : 64) * b) * ((unsigned)row_bytes / 4) / 4;
}
DGC_FN unsigned dg_q4_second(int rows, int row_bytes, bool glu) { return (glu ? rows / 2 : 32) * (row_bytes / 4) / 4; }

struct dg_q4_raw {
    uint4 w;  /* two words of the lane's first row, two of its second */
    uint2 sm; /* scales of both, minima of both */
};
/* Where a lane reads in a group; nvfp4: selects the scales of its first and its second word, of its first and its second row. */
struct dg_lane {
    int w, s;
    unsigned scales[2];
};
/* W: a format, struct dg_q4 or dg_nv. */
template <class W> DGC_FN struct dg_lane dg_lane_init(void) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    unsigned s = (lane & 3) == 3 ? 0x4141 : (lane & 3) == 2 ? 0x4040 : 0x4140; /* byte 4 and up: zeros */
    struct dg_lane l = {warp * W::WARP + lane * 16, warp * W::WARP + 512 + (lane >> 1) * (W::WARP - 512) / 16,
                        {s, s + 0x202}};
    return l;
}
DGC_FN unsigned dg_mul2(unsigned x, unsigned y) {
    unsigned v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(0x80008000u));
    return v;
}
/* One half of x twice. Not a byte permutation, so that it becomes part of the operand of the arithmetic that takes it. */
DGC_FN unsigned dg_low2(unsigned x) {
    unsigned v;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(v) : "r"(x));
    return v;
}
DGC_FN unsigned dg_high2(unsigned x) {
    unsigned v;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(v) : "r"(x));
    return v;
}
/* Eight nibbles of w: q * scale + min, rounded once; even pairs of elements (0 4, 1 5) to p0[0], p0[2], odd (2 6, 3 7) to p1.
 * A nibble in bits 4 to 7 alone is the bf16 q * 2^-129 (denormal, or with the lowest exponent), which the scale's 2^97 makes q * 2^-32; one in bits 0
 * to 3 is q * 2^-133, for which s16 is 16 times the scale: so one shift serves four pairs. */
DGC_FN void dg_q4_word(unsigned w, unsigned s2, unsigned s16, unsigned m2, unsigned *p0, unsigned *p1) {
    unsigned high = w >> 8, v[4] = {w & 0x000f000fu, w & 0x00f000f0u, high & 0x000f000fu, high & 0x00f000f0u};
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v[i]) : "r"(v[i]), "r"(i & 1 ? s2 : s16), "r"(m2));
    p0[0] = v[0];
    p0[2] = v[1];
    p1[0] = v[2];
    p1[2] = v[3];
}
/* decode<H>: A fragments of half H of a group (k16 steps 2 H and 2 H + 1) for a warp's 16 rows. */
struct dg_q4 {
    static constexpr int GROUP = 2560, WARP = 640, ROW = 40; /* bytes of 64 rows by 64 K, of a warp's 16 rows, of one */
    static constexpr bool SCALED = false; /* experts have a factor of their own */
    struct raw : dg_q4_raw {};
    static __device__ __forceinline__ void load(const unsigned char *group, struct dg_lane l, raw &v) {
        v.w = *(const uint4 *)(group + l.w);
        v.sm = *(const uint2 *)(group + l.s);
    }
    template <int H> static __device__ __forceinline__ void decode(const raw &v, struct dg_lane, unsigned (*a)[4]) {
        unsigned s = v.sm.x, m = v.sm.y, t = dg_mul2(s, 0x41804180u); /* 16 */
        dg_q4_word(H ? v.w.y : v.w.x, dg_low2(s), dg_low2(t), dg_low2(m), &a[0][0], &a[1][0]);
        dg_q4_word(H ? v.w.w : v.w.z, dg_high2(s), dg_high2(t), dg_high2(m), &a[0][1], &a[1][1]);
    }
};

/* Eight codes as moe_repack_nv lays them out, times a scale: exact. A code's three bits in bits 6 to 8 with its sign in bit 15 are the bf16
 * code * 2^-126, which the scale's 2^94 makes code * 2^-32. */
DGC_FN void dg_nv_word(unsigned w, unsigned s2, unsigned *p0, unsigned *p1) {
    const unsigned places = 0x81c081c0u;
    p0[0] = dg_mul2(w << 6 & places, s2);
    p0[2] = dg_mul2(w << 3 & places, s2);
    p1[0] = dg_mul2(w & places, s2);
    p1[2] = dg_mul2((w >> 7 & 0x00d800d8u) * 0x821 & places, s2); /* three shifted copies, which share no bit: a multiplication of another pipe */
}
/* nvfp4: 16 elements share a scale, whose byte (dg_nv_scale) in bits 4 to 11 of 0x6a00 makes the bf16 scale * 2^94. */
struct dg_nv {
    static constexpr int GROUP = 2304, WARP = 576, ROW = 36;
    static constexpr bool SCALED = true;
    struct raw {
        uint4 w;
        unsigned s; /* two scales of the lane's first row, two of its second */
    };
    static __device__ __forceinline__ void load(const unsigned char *group, struct dg_lane l, raw &v) {
        v.w = *(const uint4 *)(group + l.w);
        v.s = *(const unsigned *)(group + l.s);
    }
    template <int H> static __device__ __forceinline__ void decode(const raw &v, struct dg_lane l, unsigned (*a)[4]) {
        unsigned r0 = __byte_perm(v.s, 0, l.scales[0]) * 16 + 0x6a006a00u, r1 = __byte_perm(v.s, 0, l.scales[1]) * 16 + 0x6a006a00u;
        dg_nv_word(H ? v.w.y : v.w.x, H ? dg_high2(r0) : dg_low2(r0), &a[0][0], &a[1][0]);
        dg_nv_word(H ? v.w.w : v.w.z, H ? dg_high2(r1) : dg_low2(r1), &a[0][1], &a[1][1]);
    }
};

#endif
