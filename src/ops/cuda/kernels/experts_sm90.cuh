/* Routed experts on Hopper, q4_block or nvfp4 weights decoded in registers on the way into wgmma.
 *
 * The operands are swapped: 64 weight rows are wgmma's A operand, which may live in registers, so that a weight byte goes from shared
 * memory through a few integer and bf16 fused multiply-adds straight into the tensor core; the tokens of one expert are the N operand,
 * in shared memory, 8 to nmax of them. At 16 tokens an expert the weight bytes are the bound (docs/gpu-notes-hopper.md).
 *
 * Once, after a stack's upload:
 *   moe_repack  the stack's bytes in the order, and with the scales, that the kernels below read
 * Order of launches for one layer:
 *   moe_plan    counting sort of the (row, rank) pairs by expert, list of (expert, <= nmax tokens) entries, permuted activations
 *   moe_up_*    h[slot] = bf16(gelu_tanh(gate x) * (up x))
 *   moe_down_*  d[pair] = down h[slot], f32
 *   moe_sum     y[row] = sum over ranks, strongest first, of weight * d[pair]
 * A slot is a pair's place in expert order. Every sum runs along K in k16 steps in one accumulator: a pair's result does not depend on
 * the pairs around it, on nmax, nor on which block computes it.
 * Each of the four may be launched with programmatic stream serialization, but the kernel after sum only if it waits itself. down reads the
 * plan's entries and its own weights before it waits for up, which is safe since up lets it start only once the plan is complete: down's
 * predecessor in the stream must be up.
 *
 * Permuted activations: a lane of the A fragment takes a whole 32-bit word of nibbles, so within each 64 values of K position p holds
 * element dg_perm(p). Scale and minimum serve 32 consecutive elements, which a lane's two words of one row never leave. */
#ifndef DG_OPS_CUDA_EXPERTS_SM90_CUH
#define DG_OPS_CUDA_EXPERTS_SM90_CUH

#include "ops/cuda/kernels/sm90.cuh"

/* The repacked scales and minima are those of the weights * 2^-32, for the exponents' sake (dg_q4_word); results are scaled back. */
#define Q4_BACK 0x1p32f

/* A number of columns, as a type. */
template <int N> struct dg_cols {};
/* As in sm90.cuh, on the first N columns' accumulators of 128. */
#define DG_R1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define DG_R2 DG_R1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DG_R3 DG_R2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define DG_R4 DG_R3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DG_R5 DG_R4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DG_R6 DG_R5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DG_R7 DG_R6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DG_R8 DG_R7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DG_O8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define DG_RS(n, list, a0, a1, a2, a3, desc, ...)                                                                                    \
    DGC_FN void dg_wgmma_rs(dg_cols<n>, float (&d)[64], const unsigned (&a)[4], unsigned b) {                                     \
        asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%" #desc ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #n                  \
                     "k16.f32.bf16.bf16 {" list "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, b, 1, 1, 1, 0;\n}"                     \
                     : __VA_ARGS__                                                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                                                          \
    }
DG_RS(32, DG_R2, 16, 17, 18, 19, 20, DG_O8(0), DG_O8(8))
DG_RS(64, DG_R4, 32, 33, 34, 35, 36, DG_O8(0), DG_O8(8), DG_O8(16), DG_O8(24))
DG_RS(80, DG_R5, 40, 41, 42, 43, 44, DG_O8(0), DG_O8(8), DG_O8(16), DG_O8(24), DG_O8(32))
DG_RS(96, DG_R6, 48, 49, 50, 51, 52, DG_O8(0), DG_O8(8), DG_O8(16), DG_O8(24), DG_O8(32), DG_O8(40))
DG_RS(112, DG_R7, 56, 57, 58, 59, 60, DG_O8(0), DG_O8(8), DG_O8(16), DG_O8(24), DG_O8(32), DG_O8(40), DG_O8(48))
DG_RS(128, DG_R8, 64, 65, 66, 67, 68, DG_O8(0), DG_O8(8), DG_O8(16), DG_O8(24), DG_O8(32), DG_O8(40), DG_O8(48), DG_O8(56))
#undef DG_RS
#undef DG_O8
#undef DG_R1
#undef DG_R2
#undef DG_R3
#undef DG_R4
#undef DG_R5
#undef DG_R6
#undef DG_R7
#undef DG_R8

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

/* Bytes [o, o + bytes) of the tile at t. */
DGC_FN void dg_q4_tile_load(unsigned dst, const uint4 *t, unsigned second, int half, int o, int bytes, unsigned bar, uint64_t policy) {
    int n0 = max(min(half - o, bytes), 0);
    if (n0 > 0)
        dg_bulk_load(dst, (const char *)t + o, n0, bar, policy);
    if (n0 < bytes)
        dg_bulk_load(dst + n0, (const char *)(t + second) + (o + n0 - half), bytes - n0, bar, policy);
}

struct dg_q4_raw {
    uint4 w;  /* two words of the lane's first row, two of its second */
    uint2 sm; /* scale|min of both */
};
/* Where a lane reads in a group; which of two scales goes with its first and its second word (nvfp4). */
struct dg_lane {
    int w, s;
    unsigned first, second;
};
/* W: a format, struct dg_q4 or dg_nv. */
template <class W> DGC_FN struct dg_lane dg_lane_init(void) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    struct dg_lane l = {warp * W::WARP + lane * 16, warp * W::WARP + 512 + (lane >> 1) * (W::WARP - 512) / 16,
                        (lane & 3) == 3 ? 0x3232u : 0x1010u, (lane & 3) == 2 ? 0x1010u : 0x3232u};
    return l;
}
/* Eight nibbles of w: q * scale + min, rounded once; even pairs of elements (0 4, 1 5) to p0[0], p0[2], odd (2 6, 3 7) to p1.
 * A nibble in bits 4 to 7 alone is the bf16 q * 2^-129 (denormal, or with the lowest exponent), which the scale's 2^97 makes q * 2^-32. */
DGC_FN void dg_q4_word(unsigned w, unsigned s2, unsigned m2, unsigned *p0, unsigned *p1) {
    unsigned v[4] = {w << 4 & 0x00f000f0u, w & 0x00f000f0u, w >> 4 & 0x00f000f0u, w >> 8 & 0x00f000f0u};
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v[i]) : "r"(v[i]), "r"(s2), "r"(m2));
    p0[0] = v[0];
    p0[2] = v[1];
    p1[0] = v[2];
    p1[2] = v[3];
}
/* A fragments (4 k16 steps) of one group for a warp's 16 rows. */
DGC_FN void dg_q4_decode(const struct dg_q4_raw &v, unsigned (&a)[4][4]) {
    unsigned s0 = __byte_perm(v.sm.x, 0, 0x1010), m0 = __byte_perm(v.sm.x, 0, 0x3232);
    dg_q4_word(v.w.x, s0, m0, &a[0][0], &a[1][0]);
    dg_q4_word(v.w.y, s0, m0, &a[2][0], &a[3][0]);
    unsigned s1 = __byte_perm(v.sm.y, 0, 0x1010), m1 = __byte_perm(v.sm.y, 0, 0x3232);
    dg_q4_word(v.w.z, s1, m1, &a[0][1], &a[1][1]);
    dg_q4_word(v.w.w, s1, m1, &a[2][1], &a[3][1]);
}
struct dg_q4 {
    static constexpr int GROUP = 2560, WARP = 640, ROW = 40; /* bytes of 64 rows by 64 K, of a warp's 16 rows, of one */
    static constexpr bool SCALED = false; /* experts have a factor of their own */
    struct raw : dg_q4_raw {};
    static __device__ __forceinline__ void load(const unsigned char *group, struct dg_lane l, raw &v) {
        v.w = *(const uint4 *)(group + l.w);
        v.sm = *(const uint2 *)(group + l.s);
    }
    static __device__ __forceinline__ void decode(const raw &v, struct dg_lane, unsigned (&a)[4][4]) { dg_q4_decode(v, a); }
};

DGC_FN unsigned dg_mul2(unsigned x, unsigned y) {
    unsigned v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(0x80008000u));
    return v;
}
/* Eight codes as moe_repack_nv lays them out, times a scale: exact. A code's three bits in bits 6 to 8 with its sign in bit 15 are the bf16
 * code * 2^-126, which the scale's 2^94 makes code * 2^-32. */
DGC_FN void dg_nv_word(unsigned w, unsigned s2, unsigned *p0, unsigned *p1) {
    p0[0] = dg_mul2((w << 6 & 0x01c001c0u) | (w << 2 & 0x80008000u), s2);
    p0[2] = dg_mul2(w << 3 & 0x81c081c0u, s2);
    p1[0] = dg_mul2(w & 0x81c081c0u, s2);
    p1[2] = dg_mul2((w >> 3 & 0x01c001c0u) | (w << 1 & 0x80008000u), s2);
}
/* nvfp4: 16 elements share an e4m3 scale, whose seven bits in bits 4 to 10 are the bf16 scale * 2^-120. */
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
    static __device__ __forceinline__ void decode(const raw &v, struct dg_lane l, unsigned (&a)[4][4]) {
        unsigned r0 = __byte_perm(v.s, 0, 0x4140) << 4, r1 = __byte_perm(v.s, 0, 0x4342) << 4;
        r0 = dg_mul2(dg_mul2(r0, 0x7f007f00u), 0x6b006b00u); /* 2^127, 2^87 */
        r1 = dg_mul2(dg_mul2(r1, 0x7f007f00u), 0x6b006b00u);
        dg_nv_word(v.w.x, __byte_perm(r0, 0, l.first), &a[0][0], &a[1][0]);
        dg_nv_word(v.w.y, __byte_perm(r0, 0, l.second), &a[2][0], &a[3][0]);
        dg_nv_word(v.w.z, __byte_perm(r1, 0, l.first), &a[0][1], &a[1][1]);
        dg_nv_word(v.w.w, __byte_perm(r1, 0, l.second), &a[2][1], &a[3][1]);
    }
};

/* One arrival of this warp at bar, after all its lanes' reads. */
DGC_FN void dg_warp_arrive(unsigned bar) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        dg_bar_arrive(bar);
    __syncwarp();
}
/* acc += the group; b: descriptor of the tokens' 64 columns. */
template <int R> DGC_FN void dg_q4_issue(float (&acc)[R], const unsigned (&a)[4][4], unsigned b) {
    dg_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        dg_wgmma_rs(acc, a[s], b + 2 * s);
    dg_wgmma_commit();
}
template <int N> DGC_FN void dg_q4_issue(struct dg_cols<N> columns, float (&acc)[64], const unsigned (&a)[4][4], unsigned b) {
    dg_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        dg_wgmma_rs(columns, acc, a[s], b + 2 * s);
    dg_wgmma_commit();
}
/* The same on the narrowest tile that holds n tokens of DGC_MOE_MANY. The choice is made here, at every group, since code of its own for
 * every width would need registers of its own: the compiler then has each product wait for the one before. */
DGC_FN void dg_q4_issue(int n, float (&acc)[64], const unsigned (&a)[4][4], unsigned b) {
    if (n <= 32)
        dg_q4_issue(dg_cols<32>(), acc, a, b);
    else if (n <= 64)
        dg_q4_issue(dg_cols<64>(), acc, a, b);
    else if (n <= 80)
        dg_q4_issue(dg_cols<80>(), acc, a, b);
    else if (n <= 96)
        dg_q4_issue(dg_cols<96>(), acc, a, b);
    else if (n <= 112)
        dg_q4_issue(dg_cols<112>(), acc, a, b);
    else
        dg_q4_issue(dg_cols<128>(), acc, a, b);
}
/* acc += G groups at slot, the next one decoded while the tensor cores work on the last. b: descriptor of the tokens' first group, STEP
 * bytes from one group's to the next's. release: arrived at once the weights have been read. On entry and on return the last group's
 * products may still be on their way, reading a[1] (G odd: none are on return). */
template <class W, int G, int STEP, int R>
DGC_FN void dg_q4_slot(float (&acc)[R], unsigned (&a)[2][4][4], const unsigned char *slot, struct dg_lane l, unsigned b,
                      unsigned release) {
    typename W::raw v;
    W::load(slot, l, v);
#pragma unroll
    for (int g = 0; g < G; g++) {
        W::decode(v, l, a[g & 1]);
        if (g + 1 < G)
            W::load(slot + (g + 1) * W::GROUP, l, v);
        dg_q4_issue(acc, a[g & 1], b + g * (STEP >> 4));
        if (g + 1 == G)
            dg_warp_arrive(release);
        dg_wgmma_wait<1>();
    }
    if (G & 1)
        dg_wgmma_wait<0>();
}

struct st_arg {
    const uint8_t *w;
    const uint16_t *x;
    int k, rows, topk;
    const struct dgc_moe_entry *entries;
    const int *n_entries, *slot_pair;
    void *out;
    const float *global; /* of a format that is SCALED: a factor of each expert's weights */
};
template <class W> DGC_FN float dg_back(const struct st_arg &a, int expert) { return W::SCALED ? a.global[expert] * Q4_BACK : Q4_BACK; }

/* A block's units: `tiles` of each entry, entry after entry. */
struct dg_share {
    int begin, end;
};
DGC_FN struct dg_share dg_share_even(int entries, int tiles) {
    long long units = (long long)entries * tiles;
    return {(int)(units * blockIdx.x / gridDim.x), (int)(units * (blockIdx.x + 1) / gridDim.x)};
}
/* The same share of the entries' weight for every block; one warp or more, all lanes. */
DGC_FN struct dg_share dg_share_weighed(const struct dgc_moe_entry *entries, int n, int tiles) {
    long long all = (long long)entries[n].before * tiles, at[2] = {all * blockIdx.x / gridDim.x, all * (blockIdx.x + 1) / gridDim.x};
    int u[2] = {0, 0};
    for (int i0 = 0; i0 < n; i0 += 32) {
        int i = i0 + (threadIdx.x & 31);
        long long before = i < n ? (long long)entries[i].before * tiles : all + 1;
        u[0] += __popc(__ballot_sync(~0u, before <= at[0]));
        u[1] += __popc(__ballot_sync(~0u, before <= at[1]));
    }
#pragma unroll
    for (int j = 0; j < 2 && n > 0; j++) { /* the first unit that begins there or behind, in the last entry that begins there or before */
        long long before = entries[u[j] - 1].before;
        int each = (int)(entries[u[j]].before - before);
        u[j] = (u[j] - 1) * tiles + (int)((at[j] - before * tiles + each - 1) / each);
    }
    return {u[0], u[1]};
}

/* ---- units that stream past resident tokens ---- */
/* A unit is a tile of 64 rows over the whole of K, one warpgroup's work. All of K of an entry's tokens stays in shared memory (BUFS
 * buffers), in chunks of 4 groups with barriers of their own, and each warpgroup streams its units past it through a ring of its own,
 * SLOTS slots of G groups, that one thread of a producer warp fills. */
template <class W_, int NMAX_, int NARROW_, int G_, int SLOTS_, int BUFS_, bool GLU_> struct st_few {
    using W = W_;
    static constexpr int NMAX = NMAX_, G = G_, SLOTS = SLOTS_, BUFS = BUFS_;
    static constexpr int WG = 4, PW = 2, TW = 2; /* warpgroups; warps that load weights, warps that load tokens */
    static constexpr int MORE = 104, LESS = 64;  /* registers of a warpgroup's threads, and of those that load; 0: all have the same */
    static constexpr int SLOT = G * W::GROUP, RING = SLOTS * SLOT, TOKENS = NMAX * 128; /* bytes; TOKENS of a group */
    static constexpr int NARROW = NARROW_; /* entries of as many tokens at most have code of their own */
    static constexpr bool GLU = GLU_, MANY = false;
};
struct st_bars {
    unsigned a_full, a_empty, b_full, b_empty; /* a: WG rings of SLOTS; b: BUFS buffers of chunks */
    unsigned pair;                             /* down: BUFS lists of NMAX, which come with the last chunk */
};

/* One thread: fills the rings of warpgroups first, first + PW, ... */
template <class C> DGC_FN void st_weights(const struct st_arg &a, int begin, int end, int first, unsigned ring, struct st_bars bar) {
    constexpr int Q = C::WG / C::PW;
    uint64_t policy = dg_policy_first();
    int slot = 0, groups = a.k / 64, row_bytes = groups * C::W::ROW, half = 32 * row_bytes, tiles = a.rows / 64;
    unsigned phase = 0, second = dg_q4_second(a.rows, row_bytes, C::GLU);
    for (int u = begin + first; u < end; u += C::WG) {
        const uint4 *tile[Q];
#pragma unroll
        for (int q = 0; q < Q; q++) {
            int v = min(u + q * C::PW, end - 1);
            tile[q] = (const uint4 *)a.w + dg_q4_tile(a.entries[v / tiles].expert, a.rows, v % tiles, row_bytes, C::GLU);
        }
        for (int g = 0; g < groups; g += C::G) {
            int bytes = min(C::G, groups - g) * C::W::GROUP;
#pragma unroll
            for (int q = 0; q < Q; q++)
                if (q == 0 || u + q * C::PW < end) {
                    int r = first + q * C::PW;
                    unsigned at = r * C::SLOTS + slot, full = bar.a_full + at * 8;
                    dg_bar_wait(bar.a_empty + at * 8, phase ^ 1);
                    dg_bar_expect(full, bytes);
                    dg_q4_tile_load(ring + at * C::SLOT, tile[q], second, half, g * C::W::GROUP, bytes, full, policy);
                }
            if (++slot == C::SLOTS) {
                slot = 0;
                phase ^= 1;
            }
        }
    }
}

/* TW warps: row n of an entry belongs to warp n % TW. */
template <class C> DGC_FN void st_tokens(const struct st_arg &a, int begin, int end, unsigned b, struct st_bars bar, int warp) {
    int lane = threadIdx.x & 31, tiles = a.rows / 64, groups = a.k / 64, chunks = (groups + 3) / 4, buf = 0;
    unsigned phase = 0;
    for (int u = begin; u < end; u = (u / tiles + 1) * tiles) {
        struct dgc_moe_entry e = a.entries[u / tiles];
        int n = lane * C::TW + warp, src = C::GLU && n < e.n ? a.slot_pair[e.slot + n] / a.topk : 0; /* up has 32 TW at most */
        for (int c = 0; c < chunks; c++) {
            dg_bar_wait(bar.b_empty + (buf * chunks + c) * 8, phase ^ 1);
            int group = c * 4 + (lane >> 3);
            unsigned at = b + (buf * groups + group) * C::TOKENS;
            for (int i = 0, m = warp; m < e.n; i++, m += C::TW) {
                int64_t r = C::GLU ? __shfl_sync(~0u, src, i) : e.slot + m;
                if (group < groups)
                    dg_cp_async16(at + dg_sw128(m, lane & 7), a.x + r * a.k + c * 256 + lane * 8);
            }
            if (!C::GLU && c + 1 == chunks)
                for (int m = n; m < e.n; m += 32 * C::TW)
                    dg_cp_async4(bar.pair + (buf * C::NMAX + m) * 4, a.slot_pair + e.slot + m);
            dg_cp_async_arrive(bar.b_full + (buf * chunks + c) * 8);
        }
        if (++buf == C::BUFS) {
            buf = 0;
            phase ^= 1;
        }
    }
}

/* NT: tokens of the tile, e.n at least. */
template <class C, int NT>
DGC_FN void st_store(const struct st_arg &a, const float (&acc)[NT / 2], const struct dgc_moe_entry &e, int tile, unsigned pair) {
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, row = lane >> 2, q = lane & 3;
    int f = tile * 32 + warp * 8 + row, moe = a.rows / 2;
    uint16_t *h = (uint16_t *)a.out + (long long)e.slot * moe + (f & ~63) + dg_perm_inv(f & 63);
    float *d = (float *)a.out + tile * 64 + warp * 16 + row, back = dg_back<typename C::W>(a, e.expert);
#pragma unroll
    for (int i = 0; i < NT / 8; i++) {
        if (C::MANY && 8 * i >= e.n)
            break;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + 2 * q + j;
            float v0 = acc[4 * i + j] * back, v1 = acc[4 * i + 2 + j] * back;
            if (n < e.n && C::GLU) {
                h[(long long)n * moe] = dgc_f32_bf16(dg_gelu(v0) * v1);
            } else if (n < e.n) {
                float *o = d + (long long)dg_lds(pair + n * 4) * a.rows;
                o[0] = v0;
                o[8] = v1;
            }
        }
    }
}

/* A warpgroup's place: its ring with slot and phase, the entry's buffer with its phase (b). */
struct st_at {
    const unsigned char *ring;
    unsigned full, empty, b, b_full, b_empty, b_phase, phase;
    int slot;
};
template <class C> DGC_FN void st_next(struct st_at &at) {
    if (++at.slot == C::SLOTS) {
        at.slot = 0;
        at.phase ^= 1;
    }
}
template <class C, int NT>
DGC_FN void st_unit(const struct st_arg &a, struct st_at &at, struct dg_lane l, bool last, const struct dgc_moe_entry &e, int tile,
                   unsigned pair) {
    int groups = a.k / 64;
    float acc[NT / 2];
    unsigned w[2][4][4];
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        acc[i] = 0;
    for (int g = 0; g < groups; g += C::G) {
        if (g % 4 == 0) {
            dg_bar_wait(at.b_full + g / 4 * 8, at.b_phase);
            dg_fence_async();
        }
        dg_bar_wait(at.full + at.slot * 8, at.phase);
        const unsigned char *s = at.ring + at.slot * C::SLOT;
        unsigned bd = dg_desc_sw128(at.b + g * C::TOKENS), release = at.empty + at.slot * 8;
        int left = groups - g;
        if (left >= C::G)
            dg_q4_slot<typename C::W, C::G, C::TOKENS>(acc, w, s, l, bd, release);
        else if (left == 3)
            dg_q4_slot<typename C::W, 3, C::TOKENS>(acc, w, s, l, bd, release);
        else if (left == 2)
            dg_q4_slot<typename C::W, 2, C::TOKENS>(acc, w, s, l, bd, release);
        else
            dg_q4_slot<typename C::W, 1, C::TOKENS>(acc, w, s, l, bd, release);
        if (last && g % 4 + C::G == 4 && left > C::G) {
            dg_wgmma_wait<0>();
            dg_warp_arrive(at.b_empty + g / 4 * 8);
        }
        st_next<C>(at);
    }
    dg_wgmma_wait<0>();
    st_store<C, NT>(a, acc, e, tile, pair);
    if (last)
        dg_warp_arrive(at.b_empty + (groups - 1) / 4 * 8);
}

/* The same for entries of many tokens: two groups a slot, products as wide as the entry needs. */
template <class C>
DGC_FN void st_unit_many(const struct st_arg &a, struct st_at &at, struct dg_lane l, bool last, const struct dgc_moe_entry &e, int tile,
                         unsigned pair) {
    static_assert(C::G == 2, "groups of a slot");
    int groups = a.k / 64;
    float acc[64];
    unsigned w[2][4][4];
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    for (int g = 0; g + 2 <= groups; g += 2) {
        if (g % 4 == 0) {
            dg_bar_wait(at.b_full + g / 4 * 8, at.b_phase);
            dg_fence_async();
        }
        typename C::W::raw v;
        const unsigned char *s = at.ring + at.slot * C::SLOT;
        dg_bar_wait(at.full + at.slot * 8, at.phase);
        C::W::load(s, l, v);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            C::W::decode(v, l, w[j]);
            if (j == 0)
                C::W::load(s + C::W::GROUP, l, v);
            dg_q4_issue(e.n, acc, w[j], dg_desc_sw128(at.b + (g + j) * C::TOKENS));
            if (j == 1)
                dg_warp_arrive(at.empty + at.slot * 8);
            dg_wgmma_wait<1>();
        }
        if (last && g % 4 == 2 && g + 2 < groups) {
            dg_wgmma_wait<0>();
            dg_warp_arrive(at.b_empty + g / 4 * 8);
        }
        st_next<C>(at);
    }
    dg_wgmma_wait<0>();
    if (groups & 1) {
        if (groups % 4 == 1) {
            dg_bar_wait(at.b_full + groups / 4 * 8, at.b_phase);
            dg_fence_async();
        }
        typename C::W::raw v;
        dg_bar_wait(at.full + at.slot * 8, at.phase);
        C::W::load(at.ring + at.slot * C::SLOT, l, v);
        C::W::decode(v, l, w[0]);
        dg_q4_issue(e.n, acc, w[0], dg_desc_sw128(at.b + (groups - 1) * C::TOKENS));
        dg_warp_arrive(at.empty + at.slot * 8);
        dg_wgmma_wait<0>();
        st_next<C>(at);
    }
    st_store<C, 128>(a, acc, e, tile, pair);
    if (last)
        dg_warp_arrive(at.b_empty + (groups - 1) / 4 * 8);
}

template <class C>
DGC_FN void st_consume(const struct st_arg &a, int begin, int end, const unsigned char *ring, unsigned b, struct st_bars bar) {
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tiles = a.rows / 64, groups = a.k / 64, chunks = (groups + 3) / 4, buf = 0;
    struct dg_lane l = dg_lane_init<typename C::W>();
    struct st_at at = {ring + wg * C::RING, bar.a_full + wg * C::SLOTS * 8, bar.a_empty + wg * C::SLOTS * 8, 0, 0, 0, 0, 0, 0};
    int u = begin + wg; /* this warpgroup's next unit */
    for (int first = begin; first < end;) {
        struct dgc_moe_entry e = a.entries[first / tiles];
        int stop = min(end, (first / tiles + 1) * tiles);
        first = stop;
        at.b = b + buf * groups * C::TOKENS;
        at.b_full = bar.b_full + buf * chunks * 8;
        at.b_empty = bar.b_empty + buf * chunks * 8;
        if (u >= stop) /* none of this entry's units is ours; waiting first keeps the arrivals of two entries apart */
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(at.b_full + c * 8, at.b_phase);
                dg_warp_arrive(at.b_empty + c * 8);
            }
        for (; u < stop; u += C::WG) {
            bool last = u + C::WG >= stop;
            unsigned pair = bar.pair + buf * C::NMAX * 4;
            if constexpr (C::MANY)
                st_unit_many<C>(a, at, l, last, e, u % tiles, pair);
            else if (C::NARROW < C::NMAX && e.n <= C::NARROW)
                st_unit<C, C::NARROW>(a, at, l, last, e, u % tiles, pair);
            else
                st_unit<C, C::NMAX>(a, at, l, last, e, u % tiles, pair);
        }
        if (++buf == C::BUFS) {
            buf = 0;
            at.b_phase ^= 1;
        }
    }
}

template <class C> DGC_FN void st_body(const struct st_arg &a) {
    unsigned char *smem = dg_dyn;
    int groups = a.k / 64, chunks = (groups + 3) / 4, tiles = a.rows / 64;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5, 0) - 4 * C::WG;
    unsigned char *ring = smem + C::BUFS * groups * C::TOKENS;
    struct st_bars bar;
    bar.a_full = dg_smem(ring + C::WG * C::RING);
    bar.a_empty = bar.a_full + C::WG * C::SLOTS * 8;
    bar.b_full = bar.a_empty + C::WG * C::SLOTS * 8;
    bar.b_empty = bar.b_full + C::BUFS * chunks * 8;
    bar.pair = bar.b_empty + C::BUFS * chunks * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::WG * C::SLOTS; i++) {
            dg_bar_init(bar.a_full + i * 8, 1);
            dg_bar_init(bar.a_empty + i * 8, 4);
        }
        for (int i = 0; i < C::BUFS * chunks; i++) {
            dg_bar_init(bar.b_full + i * 8, C::TW * 32);
            dg_bar_init(bar.b_empty + i * 8, C::WG * 4);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    if (C::GLU) /* down reads entries before: the plan is complete once up has come so far */
        dg_grid_wait();
    dg_grid_launch();
    struct dg_share s = C::MANY ? dg_share_weighed(a.entries, *a.n_entries, tiles) : dg_share_even(*a.n_entries, tiles);
    int begin = s.begin, end = s.end;
    if (wg >= C::WG) {
        if constexpr (C::LESS > 0)
            dg_regs_less<C::LESS>();
        if (warp < C::PW) {
            if ((threadIdx.x & 31) == 0)
                st_weights<C>(a, begin, end, warp, dg_smem(ring), bar);
            __syncwarp();
        } else {
            if (!C::GLU)
                dg_grid_wait();
            st_tokens<C>(a, begin, end, dg_smem(smem), bar, warp - C::PW);
        }
    } else {
        if constexpr (C::MORE > 0)
            dg_regs_more<C::MORE>();
        if (!C::GLU)
            dg_grid_wait();
        st_consume<C>(a, begin, end, ring, dg_smem(smem), bar);
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

#define UP_ARGS {a.w, a.x, a.k, 2 * a.rows, a.topk, a.entries, a.n_entries, a.slot_pair, a.out, a.global}
#define DOWN_ARGS {a.w, a.x, a.k, a.rows, 0, a.entries, a.n_entries, a.slot_pair, a.out, a.global}

#endif
