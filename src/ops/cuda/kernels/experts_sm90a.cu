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

/* Reorders a stack (q4_block [experts][rows][K], 16-byte aligned) in place, tile by tile of 64 rows; glu: rows are gate and up, and a tile
 * is 32 of each. Within a tile, group after group of 64 K: for each of four warps 512 bytes of words, 16 a lane (two words of row
 * lane / 4, two of row lane / 4 + 8), then 128 bytes, 8 for each two lanes: scales of both rows, minima of both. A warp has 16 rows; of a
 * glu tile 8 gate rows and the same features' up rows. Scales become s * 2^97, minima m * 2^-32: exact for 0 and for values between 2^-90 and 2^26.
 * 64 | rows, 64 | K. Grid: experts * rows / 64 blocks of 512 threads, 64 * (K / 32 * 20) bytes of dynamic shared memory. */
DGC_KERNEL(moe_repack, moe_repack, 512) {
    int row_bytes = a.k / 32 * 20, tiles = a.rows / 64, half = 32 * row_bytes, glu = a.glu;
    uint4 *s = (uint4 *)dg_dyn, *t0 = (uint4 *)a.w + dg_q4_tile(blockIdx.x / tiles, a.rows, blockIdx.x % tiles, row_bytes, glu);
    uint4 *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    for (int i = threadIdx.x; i < half / 16; i += blockDim.x) {
        s[i] = t0[i];
        s[half / 16 + i] = t1[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 160, warp = i % 160 / 40, r = i % 40;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            int lane = r < 32 ? r : 4 * (r - 32) + 2 * (j >> 1), hi = r < 32 ? j >> 1 : j & 1, q = lane & 3;
            int row = glu ? 8 * warp + 32 * hi + (lane >> 2) : 16 * warp + 8 * hi + (lane >> 2);
            int word = r < 32 ? dg_perm_word(q, j & 1) : 0;
            int byte = r < 32 ? 4 * (word + 1 + (word >> 2)) : 20 * (q >> 1);
            o[j] = *(const unsigned *)(dg_dyn + row * row_bytes + group * 40 + byte);
            if (r >= 32)
                o[j] = dgc_pack_bf16(__uint_as_float(o[j] << 16) * 0x1p97f, __uint_as_float(o[j] & 0xffff0000u) * 0x1p-32f);
        }
        for (int j = 0; r >= 32 && j < 4; j += 2) { /* from scale|min of each row */
            unsigned scales = __byte_perm(o[j], o[j + 1], 0x5410);
            o[j + 1] = __byte_perm(o[j], o[j + 1], 0x7632);
            o[j] = scales;
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}
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
    return {warp * W::WARP + lane * 16, warp * W::WARP + 512 + (lane >> 1) * (W::WARP - 512) / 16, {s, s + 0x202}};
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
/* A fragments (4 k16 steps) of one group for a warp's 16 rows. */
DGC_FN void dg_q4_decode(const struct dg_q4_raw &v, unsigned (&a)[4][4]) {
    unsigned s = v.sm.x, m = v.sm.y, t = dg_mul2(s, 0x41804180u); /* 16 */
    dg_q4_word(v.w.x, dg_low2(s), dg_low2(t), dg_low2(m), &a[0][0], &a[1][0]);
    dg_q4_word(v.w.y, dg_low2(s), dg_low2(t), dg_low2(m), &a[2][0], &a[3][0]);
    dg_q4_word(v.w.z, dg_high2(s), dg_high2(t), dg_high2(m), &a[0][1], &a[1][1]);
    dg_q4_word(v.w.w, dg_high2(s), dg_high2(t), dg_high2(m), &a[2][1], &a[3][1]);
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
        unsigned r0 = __byte_perm(v.s, 0, l.scales[0]) << 4, r1 = __byte_perm(v.s, 0, l.scales[1]) << 4;
        r0 = dg_mul2(dg_mul2(r0, 0x7f007f00u), 0x6b006b00u); /* 2^127, 2^87 */
        r1 = dg_mul2(dg_mul2(r1, 0x7f007f00u), 0x6b006b00u);
        dg_nv_word(v.w.x, dg_low2(r0), &a[0][0], &a[1][0]);
        dg_nv_word(v.w.y, dg_high2(r0), &a[2][0], &a[3][0]);
        dg_nv_word(v.w.z, dg_low2(r1), &a[0][1], &a[1][1]);
        dg_nv_word(v.w.w, dg_high2(r1), &a[2][1], &a[3][1]);
    }
};

/* Codes of a word in the order that dg_nv_word reads: of each half's four the three low bits one after another from bit 0, their signs in
 * bits 13, 12, 15 and 14. */
DGC_FN unsigned dg_nv_codes(unsigned w) {
    unsigned o = 0;
    for (int e = 0; e < 8; e++) {
        unsigned c = w >> (4 * e) & 15, at = e >> 2 << 4;
        int j = e & 3;
        o |= (c & 7) << (at + 3 * j) | (c >> 3) << (at + (j < 2 ? 13 - j : 17 - j));
    }
    return o;
}
/* An nvfp4 stack into the same tiles as moe_repack makes, groups of 2304 bytes: a warp's 512 bytes of words, then 64 of scales, 4 for each two
 * lanes. A scale's sign goes into its codes. Behind all tiles lie the experts' global scales. */
DGC_KERNEL(moe_repack_nv, moe_repack_nv, 512) {
    int groups = a.k / 64, tiles = a.rows / 64, expert = blockIdx.x / tiles, tile = blockIdx.x % tiles, row_bytes = groups * dg_nv::ROW;
    int half = 32 * row_bytes, glu = a.glu;
    int64_t bytes = (int64_t)a.rows * row_bytes;
    const uint8_t *from = a.from + expert * (bytes + 4) + 4;
    uint4 *t0 = (uint4 *)a.to + dg_q4_tile(expert, a.rows, tile, row_bytes, glu), *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    if (tile == 0 && threadIdx.x == 0)
        ((uint32_t *)(a.to + (int64_t)a.experts * bytes))[expert] = *(const uint32_t *)(from - 4);
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 144, warp = i % 144 / 36, r = i % 36;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            o[j] = 0;
            for (int n = 0; n < (r < 32 ? 1 : 2); n++) {
                int lane = r < 32 ? r : 2 * (4 * (r - 32) + j), hi = r < 32 ? j >> 1 : n, q = lane & 3;
                int row = glu ? tile * 32 + 8 * warp + hi * (a.rows / 2) + (lane >> 2) : tile * 64 + 16 * warp + 8 * hi + (lane >> 2);
                const uint8_t *codes = from + (int64_t)row * row_bytes, *scales = codes + groups * 32 + group * 4;
                if (r < 32) {
                    int word = dg_perm_word(q, j & 1);
                    unsigned w = *(const unsigned *)(codes + group * 32 + word * 4);
                    o[j] = dg_nv_codes(scales[word >> 1] & 0x80 ? w ^ 0x88888888u : w);
                } else {
                    int s = 2 * (q >> 1);
                    o[j] |= ((unsigned)(scales[s] & 0x7f) | (unsigned)(scales[s + 1] & 0x7f) << 8) << (16 * n);
                }
            }
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}

/* One arrival of this warp at bar, after all its lanes' reads. By a predicate, so that the lanes need not meet again before wgmma. */
DGC_FN void dg_warp_arrive(unsigned bar) {
    __syncwarp();
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(bar), "r"(threadIdx.x & 31)
                 : "memory");
}
/* acc += the group; b: descriptor of the tokens' 64 columns. */
template <int R> DGC_FN void dg_q4_issue(float (&acc)[R], const unsigned (&a)[4][4], uint64_t b) {
    dg_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        dg_wgmma_rs(acc, a[s], b + 2 * s);
    dg_wgmma_commit();
}
/* acc += G groups at slot, the next one decoded while the tensor cores work on the last. b: descriptor of the tokens' first group, STEP
 * bytes from one group's to the next's. release: arrived at once the weights have been read; PART: 0 is not yet. On entry and on return the
 * last group's products may still be on their way, reading a[1] (G odd: none are on return). */
template <class W, int G, int STEP, bool PART = false, int R>
DGC_FN void dg_q4_slot(float (&acc)[R], unsigned (&a)[2][4][4], const unsigned char *slot, struct dg_lane l, uint64_t b,
                      unsigned release) {
    typename W::raw v;
    W::load(slot, l, v);
#pragma unroll
    for (int g = 0; g < G; g++) {
        W::decode(v, l, a[g & 1]);
        if (g + 1 < G)
            W::load(slot + (g + 1) * W::GROUP, l, v);
        dg_q4_issue(acc, a[g & 1], b + g * (STEP >> 4));
        if (g + 1 == G && (!PART || release))
            dg_warp_arrive(release);
        dg_wgmma_wait<1>();
    }
    if (G & 1)
        dg_wgmma_wait<0>();
}

/* Lanes with the same e, 9 bits. (__match_any_sync costs by the number of distinct values.) */
DGC_FN unsigned dg_match(int e) {
    unsigned same = ~0u;
#pragma unroll
    for (int b = 0; b < 9; b++) {
        unsigned v = __ballot_sync(~0u, e >> b & 1);
        same &= e >> b & 1 ? v : ~v;
    }
    return same;
}

/* Sorts the pairs and permutes the activations: block 0 sorts, the others permute. */
DGC_KERNEL(moe_plan, moe_plan, 1024) {
    __shared__ int count[32][256], base[256], wsum[2][8];
    const int *expert = a.expert;
    int pairs = a.pairs, nmax = a.nmax, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    if (blockIdx.x > 0) { /* a thread makes one 16-byte chunk: eight threads read and write one group's 128 bytes */
        int groups = a.k / 64;
        int64_t i = (int64_t)(blockIdx.x - 1) * 1024 + tid, group = i >> 3;
        if (group >= (int64_t)a.rows * groups)
            return;
        const uint16_t *v = (const uint16_t *)a.x.p + group / groups * a.x.ld + group % groups * 64;
        unsigned o[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int e = dg_perm(8 * (int)(i & 7) + 2 * j);
            o[j] = v[e] | (unsigned)v[e + 4] << 16;
        }
        ((uint4 *)a.xp)[i] = make_uint4(o[0], o[1], o[2], o[3]);
        return;
    }
    for (int i = lane; i < 256; i += 32)
        count[warp][i] = 0;
    int part = (pairs + 1023) / 1024 * 32, begin = warp * part, end = min(begin + part, pairs);
    __syncwarp();
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256;
        unsigned same = dg_match(e);
        if (e < 256 && (same & ((1u << lane) - 1)) == 0)
            count[warp][e] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    /* Exclusive sums: over warps for each expert, then over experts, of pairs and of entries. */
    int total = 0, sum = 0, b = 0, n_ent = 0;
    if (tid < 256) {
#pragma unroll
        for (int w = 0; w < 32; w++) {
            int c = count[w][tid];
            count[w][tid] = total;
            total += c;
        }
        n_ent = (total + nmax - 1) / nmax;
        sum = total;
        b = n_ent;
        for (int d = 1; d < 32; d *= 2) {
            int ua = __shfl_up_sync(~0u, sum, d), ub = __shfl_up_sync(~0u, b, d);
            if (lane >= d) {
                sum += ua;
                b += ub;
            }
        }
        if (lane == 31) {
            wsum[0][warp] = sum;
            wsum[1][warp] = b;
        }
    }
    __syncthreads();
    if (tid < 256) {
        for (int w = 0; w < warp; w++) {
            sum += wsum[0][w];
            b += wsum[1][w];
        }
        base[tid] = sum - total;
        if (tid == 255)
            *a.n_entries = b;
        for (int i = 0; i < n_ent; i++) {
            const struct dgc_moe_entry e = {tid, sum - total + i * nmax, min(nmax, total - i * nmax), 0};
            a.entries[b - n_ent + i] = e;
        }
    }
    __syncthreads();
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256;
        unsigned same = dg_match(e), before = same & ((1u << lane) - 1);
        int at = e < 256 ? count[warp][e] : 0;
        __syncwarp();
        if (e < 256) {
            a.slot_pair[base[e] + at + __popc(before)] = p0 + lane;
            if (before == 0)
                count[warp][e] = at + __popc(same);
        }
        __syncwarp();
    }
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

/* ---- gate and up, many tokens an expert ---- */
/* The warpgroups walk in step through K in chunks of 256, a block of weights each, the tokens loaded with the weights. */
#define UP_KC 256

struct up_tile {
    int expert, slot, n, block, n_blocks;
};
/* The tile that starts at unit u of [u, end): up to wgs blocks of 32 features of one entry. */
DGC_FN struct up_tile up_tile_at(const struct dgc_moe_entry *entries, int u, int end, int blocks, int wgs) {
    struct dgc_moe_entry e = entries[u / blocks];
    struct up_tile t = {e.expert, e.slot, e.n, u % blocks, 0};
    t.n_blocks = min(min(wgs, blocks - t.block), end - u);
    return t;
}

/* WG: consumer warpgroups; NMAX: tokens a tile has at most. */
template <class W, int WG, int NMAX, int STAGES> struct up_smem {
    static constexpr int UP_BLOCK = 4 * W::GROUP, a_bytes = WG * UP_BLOCK, b_bytes = NMAX * UP_KC * 2, stage = a_bytes + b_bytes;
    static constexpr int bytes = STAGES * stage + STAGES * 16;
};

template <class W, int WG, int NMAX, int STAGES>
DGC_FN void up_consume(unsigned char *smem, unsigned full, unsigned empty, int chunks, int &stage, unsigned &phase, const struct up_tile &t,
                      uint16_t *h, int moe, float back) {
    using S = up_smem<W, WG, NMAX, STAGES>;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    struct dg_lane l = dg_lane_init<W>();
    float acc[NMAX / 2];
    unsigned a[2][4][4];
#pragma unroll
    for (int i = 0; i < NMAX / 2; i++)
        acc[i] = 0;
    for (int c = 0; c < chunks; c++) {
        dg_bar_wait(full + stage * 8, phase);
        dg_fence_async();
        unsigned char *st = smem + stage * S::stage;
        dg_q4_slot<W, 4, NMAX * 128>(acc, a, st + wg * S::UP_BLOCK, l, dg_desc64_sw128(dg_smem(st + S::a_bytes)), empty + stage * 8);
        dg_wgmma_wait<0>();
        dg_warp_arrive(empty + stage * 8);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    int f = (t.block + wg) * 32 + warp * 8 + g;
    uint16_t *dst = h + (long long)t.slot * moe + (f & ~63) + dg_perm_inv(f & 63);
#pragma unroll
    for (int i = 0; i < NMAX / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + 2 * q + j;
            if (n < t.n)
                dst[(long long)n * moe] = dgc_f32_bf16(dg_gelu(acc[4 * i + j] * back) * (acc[4 * i + 2 + j] * back));
        }
}

template <class W, int WG, int NMAX, int STAGES>
DGC_FN void up_body(const struct st_arg &a) {
    const struct dgc_moe_entry *entries = a.entries;
    const int *slot_pair = a.slot_pair;
    const uint16_t *xp = a.x;
    int K = a.k, moe = a.rows / 2, topk = a.topk;
    using S = up_smem<W, WG, NMAX, STAGES>;
    unsigned char *smem = dg_dyn;
    unsigned full = dg_smem(smem + STAGES * S::stage), empty = full + STAGES * 8;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tid = threadIdx.x & 127, warp = tid >> 5, lane = tid & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1 + 128);
            dg_bar_init(empty + i * 8, 2 * WG * 4); /* each warp: weights read, tokens read */
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    dg_grid_wait();
    dg_grid_launch();
    int blocks = moe / 32, chunks = K / UP_KC, stage = 0, row_bytes = K / 64 * W::ROW, half = 32 * row_bytes;
    unsigned second = dg_q4_second(2 * moe, row_bytes, true);
    long long units = (long long)*a.n_entries * blocks;
    int u = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
    unsigned phase = 0;
    if (wg == WG) {
        dg_regs_less<WG == 4 ? 64 : 56>();
        uint64_t policy = dg_policy_first();
        while (u < end) {
            struct up_tile t = up_tile_at(entries, u, end, blocks, WG);
            u += t.n_blocks;
            const uint4 *tile = (const uint4 *)a.w + dg_q4_tile(t.expert, 2 * moe, t.block, row_bytes, true);
            /* lane i holds the source row of token 4 i + warp */
            int src = lane * 4 + warp < t.n ? slot_pair[t.slot + lane * 4 + warp] / topk : 0;
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(empty + stage * 8, phase ^ 1);
                unsigned at = dg_smem(smem + stage * S::stage), bar = full + stage * 8;
                if (tid == 0) {
                    dg_bar_expect(bar, (unsigned)t.n_blocks * S::UP_BLOCK);
                    for (int i = 0; i < t.n_blocks; i++) {
                        dg_q4_tile_load(at + i * S::UP_BLOCK, tile + i * (half / 16), second, half, c * S::UP_BLOCK, S::UP_BLOCK, bar, policy);
                    }
                }
                __syncwarp();
                unsigned b = at + S::a_bytes + (lane >> 3) * (NMAX * 128);
                for (int i = 0, n = warp; n < t.n; i++, n += 4) {
                    int64_t r = __shfl_sync(~0u, src, i);
                    dg_cp_async16(b + dg_sw128(n, lane & 7), xp + r * K + c * UP_KC + lane * 8);
                }
                dg_cp_async_arrive(bar);
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
        }
    } else {
        dg_regs_more<WG == 4 ? 104 : 224>();
        while (u < end) {
            struct up_tile t = up_tile_at(entries, u, end, blocks, WG);
            u += t.n_blocks;
            if (wg >= t.n_blocks) {
                for (int c = 0; c < chunks; c++) {
                    dg_bar_wait(full + stage * 8, phase);
                    dg_warp_arrive(empty + stage * 8);
                    dg_warp_arrive(empty + stage * 8);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
                continue;
            }
            up_consume<W, WG, NMAX, STAGES>(smem, full, empty, chunks, stage, phase, t, (uint16_t *)a.out, moe, dg_back<W>(a, t.expert));
        }
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

/* ---- few tokens an expert, and down ---- */
/* A unit is a tile of 64 rows over the whole of K, one warpgroup's work. All of K of an entry's tokens stays in shared memory (BUFS
 * buffers), in chunks of 4 groups with barriers of their own, and each warpgroup streams its units past it through a ring of its own,
 * SLOTS slots of G groups, that one thread of a producer warp fills. */
template <class W_, int NMAX_, int NARROW_, int TINY_, int G_, int SLOTS_, int BUFS_, bool GLU_> struct st_cfg {
    using W = W_;
    static constexpr int NMAX = NMAX_, G = G_, SLOTS = SLOTS_, BUFS = BUFS_;
    static constexpr int WG = 4, PW = 2, TW = 2; /* warpgroups; warps that load weights, warps that load tokens */
    static constexpr int SLOT = G * W::GROUP, RING = SLOTS * SLOT, TOKENS = NMAX * 128; /* bytes; TOKENS of a group */
    static constexpr int NARROW = NARROW_, TINY = TINY_; /* entries of as many tokens at most have code of their own; the same: none */
    static constexpr bool GLU = GLU_;
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

/* TW warps: row n of an entry belongs to warp n % TW. Rows that the products read behind the last token are zero, which takes the least power. */
template <class C> DGC_FN void st_tokens(const struct st_arg &a, int begin, int end, unsigned b, struct st_bars bar, int warp) {
    static_assert(C::TW * 4 == 8 && C::TINY % 8 == 0 && C::NARROW % 8 == 0 && C::NMAX % 8 == 0, "rows by eight, the period of the swizzle");
    int lane = threadIdx.x & 31, tiles = a.rows / 64, groups = a.k / 64, chunks = (groups + 3) / 4, buf = 0;
    unsigned phase = 0, to[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        to[j] = b + (lane >> 3) * C::TOKENS + dg_sw128(j * C::TW + warp, lane & 7);
    for (int u = begin; u < end; u = (u / tiles + 1) * tiles) {
        struct dgc_moe_entry e = a.entries[u / tiles];
        int n = lane * C::TW + warp, src = n < e.n ? C::GLU ? a.slot_pair[e.slot + n] / a.topk : e.slot + n : 0;
        unsigned row = (unsigned)src * (a.k / 8); /* in 16 bytes */
        int wide = e.n <= C::TINY ? C::TINY : e.n <= C::NARROW ? C::NARROW : C::NMAX;
        for (int c = 0; c < chunks; c++) {
            dg_bar_wait(bar.b_empty + (buf * chunks + c) * 8, phase ^ 1);
            int group = c * 4 + (lane >> 3);
            unsigned at = (buf * groups + c * 4) * C::TOKENS;
            const uint4 *x = (const uint4 *)a.x + c * 32 + lane;
            asm("" : "+l"(x)); /* kept as one address, to which a row is one multiply-add */
#pragma unroll 1
            for (int i = 0, rest = e.n - warp; i < wide / C::TW; i += 4, rest -= 8, at += 1024)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    unsigned r = __shfl_sync(~0u, row, i + j);
                    if (group < groups)
                        dg_cp_async16_if(at + to[j], x + r, rest > j * C::TW);
                }
            if (!C::GLU && c + 1 == chunks && n < e.n)
                dg_cp_async4(bar.pair + (buf * C::NMAX + n) * 4, a.slot_pair + e.slot + n);
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
    int f = tile * 32 + warp * 8 + row, moe = a.rows / 2, mine = e.n - 2 * q; /* of tokens 2 q, 2 q + 1, 2 q + 8, ... */
    int64_t h = C::GLU ? ((int64_t)(e.slot + 2 * q) * moe + (f & ~63) + dg_perm_inv(f & 63)) * 2 : (tile * 64 + warp * 16 + row) * 4;
    uint64_t to = __cvta_generic_to_global(a.out) + h;
    asm("" : "+l"(to)); /* kept as one address, to which a token is one multiply-add */
    float back = dg_back<typename C::W>(a, e.expert);
#pragma unroll
    for (int i = 0; i < NT / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + j;
            float v0 = acc[4 * i + j] * back, v1 = acc[4 * i + 2 + j] * back;
            if (C::GLU) {
                if (n < mine)
                    *(uint16_t *)__cvta_global_to_generic(to + (int64_t)n * (2 * moe)) = dgc_f32_bf16(dg_gelu(v0) * v1);
            } else {
                int p = dg_lds(pair + (2 * q + n) * 4);
                if (n < mine) {
                    float *o = (float *)__cvta_global_to_generic(to + (int64_t)p * (4 * a.rows));
                    o[0] = v0;
                    o[8] = v1;
                }
            }
        }
}

/* A warpgroup's place: its ring with slot and phase (full: the barriers of st_bars.a_full), the entry's buffer with its phase (b). */
struct st_at {
    const unsigned char *ring;
    unsigned full, b, b_full, b_empty, b_phase, phase;
    int slot;
};
template <class C, int NT>
DGC_FN void st_unit(const struct st_arg &a, struct st_at &at, struct dg_lane l, bool first, bool last, const struct dgc_moe_entry &e, int tile,
                   unsigned pair) {
    int groups = a.k / 64, whole = groups / C::G * C::G, frees = last ? groups - C::G : 0;
    float acc[NT / 2];
    unsigned w[2][4][4];
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        acc[i] = 0;
    unsigned bd = dg_desc_sw128(at.b);
    for (int g = 0; g < groups; g += C::G, bd += C::G * (C::TOKENS >> 4)) {
        if (g % 4 == 0 && first) {
            dg_bar_wait(at.b_full + g / 4 * 8, at.b_phase);
            dg_fence_async();
        }
        unsigned full = at.full + at.slot * 8, release = full + C::WG * C::SLOTS * 8; /* a_empty is behind a_full */
        dg_bar_wait(full, at.phase);
        const unsigned char *s = at.ring + at.slot * C::SLOT;
        if (g < whole) {
            dg_q4_slot<typename C::W, C::G, C::TOKENS>(acc, w, s, l, dg_desc64(bd), release);
        } else { /* two and one, not code of each length: registers */
            int left = groups - g, two = left & 2;
            uint64_t bt = dg_desc64_sw128(at.b + g * C::TOKENS); /* not bd: sums shared with whole slots' would be kept and moved */
            if (C::G > 2 && two)
                dg_q4_slot<typename C::W, 2, C::TOKENS, true>(acc, w, s, l, bt, left == 2 ? release : 0);
            if (left & 1)
                dg_q4_slot<typename C::W, 1, C::TOKENS>(acc, w, s + two * C::W::GROUP, l, bt + two * (C::TOKENS >> 4), release);
        }
        if (g < frees && g % 4 + C::G == 4) {
            dg_wgmma_wait<0>();
            dg_warp_arrive(at.b_empty + g / 4 * 8);
        }
        if (++at.slot == C::SLOTS) {
            at.slot = 0;
            at.phase ^= 1;
        }
    }
    dg_wgmma_wait<0>();
    st_store<C, NT>(a, acc, e, tile, pair);
    if (last)
        dg_warp_arrive(at.b_empty + (groups - 1) / 4 * 8);
}

template <class C>
DGC_FN void st_consume(const struct st_arg &a, int begin, int end, const unsigned char *ring, unsigned b, struct st_bars bar) {
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tiles = a.rows / 64, groups = a.k / 64, chunks = (groups + 3) / 4, buf = 0;
    struct dg_lane l = dg_lane_init<typename C::W>();
    struct st_at at = {ring + wg * C::RING, bar.a_full + wg * C::SLOTS * 8, 0, 0, 0, 0, 0, 0};
    int u = begin + wg; /* this warpgroup's next unit */
    for (int from = begin; from < end;) {
        struct dgc_moe_entry e = a.entries[from / tiles];
        int stop = min(end, (from / tiles + 1) * tiles);
        from = stop;
        at.b = b + buf * groups * C::TOKENS;
        at.b_full = bar.b_full + buf * chunks * 8;
        at.b_empty = bar.b_empty + buf * chunks * 8;
        if (u >= stop) /* none of this entry's units is ours; waiting first keeps the arrivals of two entries apart */
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(at.b_full + c * 8, at.b_phase);
                dg_warp_arrive(at.b_empty + c * 8);
            }
        for (bool first = true; u < stop; u += C::WG, first = false) {
            bool last = u + C::WG >= stop;
            unsigned pair = bar.pair + buf * C::NMAX * 4;
            if (C::TINY < C::NARROW && e.n <= C::TINY)
                st_unit<C, C::TINY>(a, at, l, first, last, e, u % tiles, pair);
            else if (C::NARROW < C::NMAX && e.n <= C::NARROW)
                st_unit<C, C::NARROW>(a, at, l, first, last, e, u % tiles, pair);
            else
                st_unit<C, C::NMAX>(a, at, l, first, last, e, u % tiles, pair);
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
    long long units = (long long)*a.n_entries * tiles;
    int begin = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
    if (wg >= C::WG) {
        dg_regs_less<64>();
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
        dg_regs_more<104>();
        if (!C::GLU)
            dg_grid_wait();
        st_consume<C>(a, begin, end, ring, dg_smem(smem), bar);
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

#define UP_ARGS {a.w, a.x, a.k, 2 * a.rows, a.topk, a.entries, a.n_entries, a.slot_pair, a.out, a.global}
#define DOWN_ARGS {a.w, a.x, a.k, a.rows, 0, a.entries, a.n_entries, a.slot_pair, a.out, a.global}

/* h[slot][moe] = bf16(gelu_tanh(gate x) * (up x)) for every pair, permuted in 64-groups. */
DGC_KERNEL_ONE(moe_up_n24, moe, 640) { st_body<st_cfg<dg_q4, 24, 16, 8, 4, 2, 1, true>>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_n64, moe, 640) { up_body<dg_q4, 4, 64, 3>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_nv_n24, moe, 640) { st_body<st_cfg<dg_nv, 24, 16, 8, 4, 2, 1, true>>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_nv_n64, moe, 640) { up_body<dg_nv, 4, 64, 3>(UP_ARGS); }

/* d[pair][hidden] = down h[slot of the pair], f32. */
DGC_KERNEL_ONE(moe_down_n24, moe, 640) { st_body<st_cfg<dg_q4, 24, 16, 16, 4, 4, 2, false>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_n64, moe, 640) { st_body<st_cfg<dg_q4, 64, 64, 64, 2, 6, 1, false>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_nv_n24, moe, 640) { st_body<st_cfg<dg_nv, 24, 16, 16, 4, 4, 2, false>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_nv_n64, moe, 640) { st_body<st_cfg<dg_nv, 64, 64, 64, 2, 6, 1, false>>(DOWN_ARGS); }

/* y[row][c] = sum over r of weight[row][r] * d[row * topk + r][c], r ascending. d's lines leave the L2 without being written to memory. topk <= 8
 * runs with all loads in flight. */
DGC_KERNEL(moe_sum, moe_sum, 352) {
    int64_t row = blockIdx.x;
    int c = blockIdx.y * 352 + threadIdx.x, topk = a.topk;
    bool on = c < a.hidden / 4;
    float4 s = {0, 0, 0, 0};
    for (int r0 = 0; r0 < topk; r0 += 8) {
        float4 v[8];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (on && r0 + r < topk)
                v[r] = ((const float4 *)(a.d + (row * topk + r0 + r) * a.hidden))[c];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (on && r0 + r < topk) {
                float w = a.weight[row * topk + r0 + r];
                s.x = fmaf(w, v[r].x, s.x);
                s.y = fmaf(w, v[r].y, s.y);
                s.z = fmaf(w, v[r].z, s.z);
                s.w = fmaf(w, v[r].w, s.w);
            }
    }
    if (on)
        ((float4 *)(a.y + row * a.ldy))[c] = s;
    __syncwarp();
    for (int r = threadIdx.x & 7; r < topk; r += 8) /* eight lanes read a line each of every rank; each drops one rank's */
        if (on)
            asm volatile("discard.global.L2 [%0], 128;" ::"l"((float4 *)(a.d + (row * topk + r) * a.hidden) + (c & ~7)) : "memory");
}
