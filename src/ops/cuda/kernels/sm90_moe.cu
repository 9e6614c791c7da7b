/* Routed experts on Hopper, q4_block weights decoded in registers on the way into wgmma.
 *
 * The operands are swapped: 64 weight rows are wgmma's A operand, which may live in registers, so that a weight byte goes from shared
 * memory through a few integer and bf16 fused multiply-adds straight into the tensor core; the tokens of one expert are the N operand,
 * in shared memory, 8 to NMAX of them. At 16 tokens an expert the weight bytes are the bound (docs/gpu-notes-hopper.md).
 *
 * Order of launches for one layer:
 *   dg_sm90_moe_plan   counting sort of the (row, rank) pairs by expert, list of (expert, <= nmax tokens) entries, permuted activations
 *   dg_sm90_moe_up_*   h[slot] = bf16(gelu_tanh(gate x) * (up x))
 *   dg_sm90_moe_down_* d[pair] = down h, f32
 *   dg_sm90_moe_sum    y[row] = sum over ranks, strongest first, of weight * d[pair]
 * A slot is a pair's place in expert order. Every sum runs along K in k16 steps in one accumulator: a pair's result does not depend on
 * the pairs around it, on NMAX, nor on which block computes it.
 *
 * Permuted activations: a lane of the A fragment takes a whole 32-bit word of nibbles, so within each 64 values of K position p holds
 * element dg_perm(p). Scale and minimum serve 32 consecutive elements, which a lane's two words of one row never leave. */
#include "sm90.cuh"

#define UP_KC 256                  /* K per stage: 160 bytes of a q4 row, a whole number of 32-byte sectors */
#define UP_ROW 160
#define UP_BLOCK (64 * UP_ROW) /* one warpgroup's share of a stage: 32 gate rows, 32 up rows */

struct dg_moe_entry {
    int expert, slot, n, pad;
};

/* Word of a 64-group (8 nibbles each) that lane quarter t reads as its i-th. */
DG_FN int dg_perm_word(int t, int i) { return t >= 2 ? 2 * t + i : i ? 3 - t : t; }
/* Element at position p of a permuted 64-group, and back. p = 16 step + 8 half + 2 t + b. */
DG_FN int dg_perm(int p) {
    int s = p >> 4, h = p >> 3 & 1, t = p >> 1 & 3, b = p & 1;
    return 8 * dg_perm_word(t, s >> 1) + 2 * (s & 1) + h + 4 * b;
}
DG_FN int dg_perm_inv(int e) {
    int w = e >> 3, n = e & 7, i = w >= 4 ? w & 1 : w >> 1, t = w >= 4 ? w >> 1 : w == 3 ? 0 : w == 2 ? 1 : w;
    return 16 * (2 * i + (n >> 1 & 1)) + 8 * (n & 1) + 2 * t + (n >> 2);
}

/* Eight nibbles of w to p[i] = bf16 pair (element i, element i + 4) = q * scale + min, rounded once.
 * 0x4300 | q is 128 + q in bf16, exactly. */
DG_FN void dg_q4_word(unsigned w, unsigned s2, unsigned m2, unsigned (&p)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned v;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(w >> (4 * i)), "r"(0x000f000fu), "r"(0x43004300u)); /* (a & b) | c */
        asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(v), "r"(0x43004300u));
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(p[i]) : "r"(v), "r"(s2), "r"(m2));
    }
}

/* A fragments (4 k16 steps) of one 64-group of K for a warp's 16 rows; r0, r1: the group's 40 bytes in this lane's two rows. */
struct dg_q4_lane {
    int wa, wb, ws; /* byte offsets of the lane's two words and its scale|min within 40 bytes */
};
DG_FN struct dg_q4_lane dg_q4_lane_init(int t) {
    struct dg_q4_lane l;
    int a = dg_perm_word(t, 0), b = dg_perm_word(t, 1);
    l.wa = 4 * (a + 1 + (a >> 2));
    l.wb = 4 * (b + 1 + (b >> 2));
    l.ws = t >= 2 ? 20 : 0;
    return l;
}
/* What a lane needs of a group: two words and scale|min of each of its rows. Loaded a group ahead of its use. */
struct dg_q4_raw {
    unsigned w[2][2], sm[2];
};
DG_FN void dg_q4_load(const unsigned char *r0, const unsigned char *r1, struct dg_q4_lane l, struct dg_q4_raw &v) {
    v.w[0][0] = *(const unsigned *)(r0 + l.wa);
    v.w[0][1] = *(const unsigned *)(r0 + l.wb);
    v.sm[0] = *(const unsigned *)(r0 + l.ws);
    v.w[1][0] = *(const unsigned *)(r1 + l.wa);
    v.w[1][1] = *(const unsigned *)(r1 + l.wb);
    v.sm[1] = *(const unsigned *)(r1 + l.ws);
}
DG_FN void dg_q4_decode(const struct dg_q4_raw &v, unsigned (&a)[4][4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        unsigned s2 = __byte_perm(v.sm[r], 0, 0x1010), m2 = __byte_perm(v.sm[r], 0, 0x3232);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned p[4];
            dg_q4_word(v.w[r][i], s2, m2, p);
            a[2 * i][r] = p[0];
            a[2 * i][r + 2] = p[1];
            a[2 * i + 1][r] = p[2];
            a[2 * i + 1][r + 2] = p[3];
        }
    }
}
/* One arrival of this warp at bar, 0 for none, after all its lanes' reads. */
DG_FN void dg_warp_arrive(unsigned bar) {
    __syncwarp();
    if (bar != 0 && (threadIdx.x & 31) == 0)
        dg_bar_arrive(bar);
    __syncwarp();
}
/* acc += the group; b: descriptor of the tokens' 64 columns. */
template <int R> DG_FN void dg_q4_issue(float (&acc)[R], const unsigned (&a)[4][4], unsigned b) {
    dg_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        dg_wgmma_rs(acc, a[s], b + 2 * s);
    dg_wgmma_commit();
}

/* acc += one chunk of UP_KC: four groups, the next one decoded while the tensor cores work on the last. Returns with all done.
 * step: 16-byte units from one group's columns of the tokens to the next's. release: barrier to arrive at once the weights have been
 * read, 0 for none. */
template <int R>
DG_FN void dg_q4_chunk(float (&acc)[R], const unsigned char *r0, const unsigned char *r1, struct dg_q4_lane l, unsigned b, unsigned step,
                       unsigned release) {
    constexpr bool ahead = R <= 16; /* wider accumulators leave no registers for it */
    struct dg_q4_raw v;
    unsigned a0[4][4], a1[4][4];
    dg_q4_load(r0, r1, l, v);
    dg_q4_decode(v, a0);
    if (ahead)
        dg_q4_load(r0 + 40, r1 + 40, l, v);
    dg_q4_issue(acc, a0, b);
    if (!ahead)
        dg_q4_load(r0 + 40, r1 + 40, l, v);
    dg_q4_decode(v, a1);
    if (ahead)
        dg_q4_load(r0 + 80, r1 + 80, l, v);
    dg_q4_issue(acc, a1, b + step);
    dg_wgmma_wait<1>();
    if (!ahead)
        dg_q4_load(r0 + 80, r1 + 80, l, v);
    dg_q4_decode(v, a0);
    if (ahead)
        dg_q4_load(r0 + 120, r1 + 120, l, v);
    dg_q4_issue(acc, a0, b + 2 * step);
    dg_wgmma_wait<1>();
    if (!ahead)
        dg_q4_load(r0 + 120, r1 + 120, l, v);
    dg_q4_decode(v, a1);
    dg_q4_issue(acc, a1, b + 3 * step);
    dg_warp_arrive(release);
    dg_wgmma_wait<0>();
}

/* Sorts the pairs and permutes the activations.
 * Grid: 1 + ceil(rows * K / 8 / 1024) blocks of 1024 threads; block 0 sorts. experts <= 256.
 * expert: [pairs] (pairs = rows * topk); slot_pair out: [pairs], pair in each slot; entries out: [experts + pairs / nmax] at most,
 * *n_entries out. x: bf16 [rows][ldx], K of them used, 64 | K; xp out: bf16 [rows][K]. */
extern "C" __global__ void __launch_bounds__(1024) dg_sm90_moe_plan(const int *expert, int pairs, int experts, int nmax, int *slot_pair,
                                                                   struct dg_moe_entry *entries, int *n_entries, const dg_bf16 *x,
                                                                   long long ldx, int rows, int K, dg_bf16 *xp) {
    __shared__ int count[32][256], base[256], wsum[2][8];
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    if (blockIdx.x > 0) { /* a thread makes one 16-byte chunk: eight threads read and write one group's 128 bytes */
        int groups = K / 64;
        long long i = (long long)(blockIdx.x - 1) * 1024 + tid, group = i >> 3;
        if (group >= (long long)rows * groups)
            return;
        const unsigned *v = (const unsigned *)(x + group / groups * ldx + group % groups * 64);
        unsigned o[4];
#pragma unroll
        for (int j = 0; j < 4; j++) { /* elements e and e + 4: the same half of two words */
            int e = dg_perm(8 * (int)(i & 7) + 2 * j);
            o[j] = __byte_perm(v[e >> 1], v[(e >> 1) + 2], e & 1 ? 0x7632 : 0x5410);
        }
        ((uint4 *)xp)[i] = make_uint4(o[0], o[1], o[2], o[3]);
        return;
    }
    for (int i = lane; i < 256; i += 32)
        count[warp][i] = 0;
    int part = (pairs + 1023) / 1024 * 32, begin = warp * part, end = min(begin + part, pairs);
    __syncwarp();
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256 + lane;
        unsigned same = __match_any_sync(~0u, e);
        if (e < 256 && (same & ((1u << lane) - 1)) == 0)
            count[warp][e] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    /* Exclusive sums: over warps for each expert, then over experts, of pairs and of entries. */
    int total = 0, a = 0, b = 0, n_ent = 0;
    if (tid < 256) {
#pragma unroll
        for (int w = 0; w < 32; w++) {
            int c = count[w][tid];
            count[w][tid] = total;
            total += c;
        }
        n_ent = (total + nmax - 1) / nmax;
        a = total;
        b = n_ent;
        for (int d = 1; d < 32; d *= 2) {
            int ua = __shfl_up_sync(~0u, a, d), ub = __shfl_up_sync(~0u, b, d);
            if (lane >= d) {
                a += ua;
                b += ub;
            }
        }
        if (lane == 31) {
            wsum[0][warp] = a;
            wsum[1][warp] = b;
        }
    }
    __syncthreads();
    if (tid < 256) {
        for (int w = 0; w < warp; w++) {
            a += wsum[0][w];
            b += wsum[1][w];
        }
        base[tid] = a - total;
        if (tid == 255)
            *n_entries = b;
        for (int i = 0; i < n_ent; i++)
            entries[b - n_ent + i] = (struct dg_moe_entry){tid, a - total + i * nmax, min(nmax, total - i * nmax), 0};
    }
    __syncthreads();
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256 + lane;
        unsigned same = __match_any_sync(~0u, e), before = same & ((1u << lane) - 1);
        int at = e < 256 ? count[warp][e] : 0;
        __syncwarp();
        if (e < 256) {
            slot_pair[base[e] + at + __popc(before)] = p0 + lane;
            if (before == 0)
                count[warp][e] = at + __popc(same);
        }
        __syncwarp();
    }
}

/* Waits for fill k of a ring's slot where the slots go to the warpgroups in turn. A barrier's parity tells fill k from k - 1 only, and
 * loads land in any order: while fill k - 1, another warpgroup's, is still on its way, k would look complete. So that one's release is
 * waited for first; k - 2 was released before this warpgroup's last slot was filled, as the ring has more slots than there are
 * warpgroups. */
DG_FN void dg_ring_wait(unsigned full, unsigned empty, int k) {
    if (k > 0)
        dg_bar_wait(empty, k - 1 & 1);
    dg_bar_wait(full, k & 1);
    __syncwarp();
}

/* ---- gate and up ---- */
struct up_tile {
    int expert, slot, n, block, n_blocks;
};
/* The tile that starts at unit u of [u, end): up to wgs blocks of 32 features of one entry. */
DG_FN struct up_tile up_tile_at(const struct dg_moe_entry *entries, int u, int end, int blocks, int wgs) {
    struct dg_moe_entry e = entries[u / blocks];
    struct up_tile t = {e.expert, e.slot, e.n, u % blocks, 0};
    t.n_blocks = min(min(wgs, blocks - t.block), end - u);
    return t;
}

/* WG: consumer warpgroups; NMAX: tokens a tile has at most. */
template <int WG, int NMAX, int STAGES> struct up_smem {
    static constexpr int a_bytes = WG * UP_BLOCK, b_bytes = NMAX * UP_KC * 2, stage = a_bytes + b_bytes;
    static constexpr int bytes = STAGES * stage + STAGES * 16;
};

template <int WG, int NMAX, int STAGES>
DG_FN void up_consume(unsigned char *smem, unsigned full, unsigned empty, int chunks, int &stage, unsigned &phase, const struct up_tile &t,
                      dg_bf16 *h, int moe) {
    using S = up_smem<WG, NMAX, STAGES>;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    struct dg_q4_lane l = dg_q4_lane_init(q);
    float acc[NMAX / 2];
#pragma unroll
    for (int i = 0; i < NMAX / 2; i++)
        acc[i] = 0;
    for (int c = 0; c < chunks; c++) {
        dg_bar_wait(full + stage * 8, phase);
        dg_fence_async();
        unsigned char *st = smem + stage * S::stage;
        const unsigned char *r0 = st + wg * UP_BLOCK + (warp * 8 + g) * UP_ROW;
        dg_q4_chunk(acc, r0, r0 + 32 * UP_ROW, l, dg_desc_sw128(dg_smem(st + S::a_bytes)), NMAX * 128 >> 4, 0);
        dg_warp_arrive(empty + stage * 8);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    int f = (t.block + wg) * 32 + warp * 8 + g;
    dg_bf16 *dst = h + (long long)t.slot * moe + (f & ~63) + dg_perm_inv(f & 63);
#pragma unroll
    for (int i = 0; i < NMAX / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + 2 * q + j;
            if (n < t.n)
                dst[(long long)n * moe] = dg_to_bf16(dg_gelu(acc[4 * i + j]) * acc[4 * i + 2 + j]);
        }
}

template <int WG, int NMAX, int STAGES>
DG_FN void up_body(const void *map, const dg_bf16 *xp, int K, int moe, int topk, const struct dg_moe_entry *entries, const int *n_entries,
                   const int *slot_pair, dg_bf16 *h) {
    using S = up_smem<WG, NMAX, STAGES>;
    unsigned char *smem = dg_dyn;
    unsigned full = dg_smem(smem + STAGES * S::stage), empty = full + STAGES * 8;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tid = threadIdx.x & 127, warp = tid >> 5, lane = tid & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1 + 128);
            dg_bar_init(empty + i * 8, WG * 4);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    int blocks = moe / 32, chunks = K / UP_KC, stage = 0;
    long long units = (long long)*n_entries * blocks;
    int u = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
    unsigned phase = 0;
    if (wg == WG) {
        dg_regs_less<WG == 4 ? 64 : 56>();
        dg_u64 policy = dg_policy_first();
        while (u < end) {
            struct up_tile t = up_tile_at(entries, u, end, blocks, WG);
            u += t.n_blocks;
            int row = t.expert * 2 * moe + t.block * 32;
            /* lane i holds the source row of token 4 i + warp */
            int src = lane * 4 + warp < t.n ? slot_pair[t.slot + lane * 4 + warp] / topk : 0;
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(empty + stage * 8, phase ^ 1);
                unsigned at = dg_smem(smem + stage * S::stage), bar = full + stage * 8;
                if (tid == 0) {
                    dg_bar_expect(bar, (unsigned)t.n_blocks * UP_BLOCK);
                    for (int i = 0; i < t.n_blocks; i++) {
                        dg_tma_load(at + i * UP_BLOCK, map, c * UP_ROW, row + i * 32, bar, policy);
                        dg_tma_load(at + i * UP_BLOCK + UP_BLOCK / 2, map, c * UP_ROW, row + moe + i * 32, bar, policy);
                    }
                }
                __syncwarp();
                unsigned b = at + S::a_bytes + (lane >> 3) * (NMAX * 128);
                for (int i = 0, n = warp; n < t.n; i++, n += 4) {
                    long long r = __shfl_sync(~0u, src, i);
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
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
                continue;
            }
            up_consume<WG, NMAX, STAGES>(smem, full, empty, chunks, stage, phase, t, h, moe);
        }
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

/* The variant for few tokens an expert: all of K of an entry's tokens stays in shared memory (UP_RES_N tokens at most), and each
 * warpgroup streams its own blocks of weight rows past it, so no tile is cut at an entry's end and the tokens are read about once per
 * entry and multiprocessor. A slot of the ring is one block's 256 of K. The tokens' chunks have barriers of their own: a chunk is
 * reloaded for the next entry as soon as the last warpgroup is past it. */
#define UP_RES_N 24
#define UP_SLOTS 9
#define UP_RES_CHUNK (UP_RES_N * UP_KC * 2)

struct up_res_bars {
    unsigned a_full, a_empty, b_full, b_empty;
};

template <int WG>
DG_FN void up_res_weights(const void *map, int moe, const struct dg_moe_entry *entries, int blocks, int chunks, int begin, int end, unsigned ring,
                          struct up_res_bars bar) {
    dg_u64 policy = dg_policy_first();
    int slot = 0;
    unsigned phase = 0;
    for (int u = begin; u < end; u += WG) {
        int n = min(WG, end - u), row[WG];
        for (int w = 0; w < WG; w++)
            row[w] = w < n ? entries[(u + w) / blocks].expert * 2 * moe + (u + w) % blocks * 32 : 0;
        for (int c = 0; c < chunks; c++)
#pragma unroll
            for (int w = 0; w < WG; w++)
                if (w < n) {
                    unsigned at = ring + slot * UP_BLOCK, full = bar.a_full + slot * 8;
                    dg_bar_wait(bar.a_empty + slot * 8, phase ^ 1);
                    dg_bar_expect(full, UP_BLOCK);
                    dg_tma_load(at, map, c * UP_ROW, row[w], full, policy);
                    dg_tma_load(at + UP_BLOCK / 2, map, c * UP_ROW, row[w] + moe, full, policy);
                    if (++slot == UP_SLOTS) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
    }
}

/* Three warps (0 to 2 here): row n of an entry belongs to warp n % 3. */
DG_FN void up_res_tokens(const dg_bf16 *xp, int K, int topk, const struct dg_moe_entry *entries, const int *slot_pair, int blocks, int chunks,
                         int begin, int end, unsigned b, struct up_res_bars bar, int warp) {
    int lane = threadIdx.x & 31;
    unsigned phase = 0;
    for (int u = begin; u < end; u = (u / blocks + 1) * blocks, phase ^= 1) {
        struct dg_moe_entry e = entries[u / blocks];
        int src = lane * 3 + warp < e.n ? slot_pair[e.slot + lane * 3 + warp] / topk : 0;
        for (int c = 0; c < chunks; c++) {
            dg_bar_wait(bar.b_empty + c * 8, phase ^ 1);
            unsigned at = b + c * UP_RES_CHUNK + (lane >> 3) * (UP_RES_N * 128);
            for (int i = 0, n = warp; n < e.n; i++, n += 3) {
                long long r = __shfl_sync(~0u, src, i);
                dg_cp_async16(at + dg_sw128(n, lane & 7), xp + r * K + c * UP_KC + lane * 8);
            }
            dg_cp_async_arrive(bar.b_full + c * 8);
        }
    }
}

template <int WG>
DG_FN void up_res_consume(const unsigned char *ring, unsigned b_addr, const struct dg_moe_entry *entries, int blocks, int chunks, int begin, int end,
                          struct up_res_bars bar, dg_bf16 *h, int moe) {
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    struct dg_q4_lane l = dg_q4_lane_init(q);
    unsigned b_phase = 0;
    int u = begin + wg; /* this warpgroup's next block */
    for (int first = begin; first < end; b_phase ^= 1) {
        struct dg_moe_entry e = entries[first / blocks];
        int stop = min(end, (first / blocks + 1) * blocks);
        first = stop;
        if (u >= stop) /* none of this entry's blocks is ours; waiting first keeps the arrivals of two entries apart */
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(bar.b_full + c * 8, b_phase);
                dg_warp_arrive(bar.b_empty + c * 8);
            }
        for (; u < stop; u += WG) {
            bool last = u + WG >= stop;
            int round = (u - begin) / WG, active = min(WG, end - begin - round * WG), seq = round * WG * chunks + wg;
            float acc[UP_RES_N / 2];
#pragma unroll
            for (int i = 0; i < UP_RES_N / 2; i++)
                acc[i] = 0;
            for (int c = 0; c < chunks; c++, seq += active) {
                int slot = seq % UP_SLOTS;
                dg_bar_wait(bar.b_full + c * 8, b_phase);
                dg_fence_async();
                dg_ring_wait(bar.a_full + slot * 8, bar.a_empty + slot * 8, seq / UP_SLOTS);
                const unsigned char *r0 = ring + slot * UP_BLOCK + (warp * 8 + g) * UP_ROW;
                dg_q4_chunk(acc, r0, r0 + 32 * UP_ROW, l, dg_desc_sw128(b_addr + c * UP_RES_CHUNK), UP_RES_N * 128 >> 4, bar.a_empty + slot * 8);
                if (last)
                    dg_warp_arrive(bar.b_empty + c * 8);
            }
            int f = u % blocks * 32 + warp * 8 + g;
            dg_bf16 *dst = h + (long long)e.slot * moe + (f & ~63) + dg_perm_inv(f & 63);
#pragma unroll
            for (int i = 0; i < UP_RES_N / 8; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int n = 8 * i + 2 * q + j;
                    if (n < e.n)
                        dst[(long long)n * moe] = dg_to_bf16(dg_gelu(acc[4 * i + j]) * acc[4 * i + 2 + j]);
                }
        }
    }
}

template <int WG, int MORE, int LESS>
DG_FN void up_res_body(const void *map, const dg_bf16 *xp, int K, int moe, int topk, const struct dg_moe_entry *entries, const int *n_entries,
                       const int *slot_pair, dg_bf16 *h) {
    unsigned char *smem = dg_dyn;
    int blocks = moe / 32, chunks = K / UP_KC, wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5 & 3, 0);
    unsigned char *ring = smem + chunks * UP_RES_CHUNK;
    struct up_res_bars bar;
    bar.a_full = dg_smem(ring + UP_SLOTS * UP_BLOCK);
    bar.a_empty = bar.a_full + UP_SLOTS * 8;
    bar.b_full = bar.a_empty + UP_SLOTS * 8;
    bar.b_empty = bar.b_full + chunks * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < UP_SLOTS; i++) {
            dg_bar_init(bar.a_full + i * 8, 1);
            dg_bar_init(bar.a_empty + i * 8, 4);
        }
        for (int i = 0; i < chunks; i++) {
            dg_bar_init(bar.b_full + i * 8, 96);
            dg_bar_init(bar.b_empty + i * 8, WG * 4);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    long long units = (long long)*n_entries * blocks;
    int begin = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
    if (wg == WG) {
        dg_regs_less<LESS>();
        if (warp == 3) {
            if ((threadIdx.x & 31) == 0)
                up_res_weights<WG>(map, moe, entries, blocks, chunks, begin, end, dg_smem(ring), bar);
            __syncwarp();
        } else {
            up_res_tokens(xp, K, topk, entries, slot_pair, blocks, chunks, begin, end, dg_smem(smem), bar, warp);
        }
    } else {
        dg_regs_more<MORE>();
        up_res_consume<WG>(ring, dg_smem(smem), entries, blocks, chunks, begin, end, bar, h, moe);
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

/* As dg_sm90_moe_up_n64 below, entries with nmax = 24. K / 256 * 12288 + 92160 + 16 * (K / 256 + 9) bytes of dynamic shared memory (K 2816:
 * 227648), which bounds K; one block per multiprocessor (any grid is correct), 640 threads. */
extern "C" __global__ void __launch_bounds__(640, 1)
    dg_sm90_moe_up_n24(const void *map, const dg_bf16 *xp, int K, int moe, int topk, const struct dg_moe_entry *entries,
                           const int *n_entries, const int *slot_pair, dg_bf16 *h) {
    up_res_body<4, 104, 40>(map, xp, K, moe, topk, entries, n_entries, slot_pair, h);
}

/* h[slot][moe] = bf16(gelu_tanh(gate x) * (up x)) for every pair, permuted in 64-groups.
 * map: CUtensorMap in device memory over the stack's bytes: u8, dims {K / 32 * 20, experts * 2 * moe}, box {160, 32}, no swizzle.
 * xp: permuted bf16 [rows][K]; 256 | K, 64 | moe. entries, n_entries, slot_pair: of dg_sm90_moe_plan with nmax = 64, 128.
 * Launch: one block per multiprocessor (any grid is correct); threads and dynamic shared memory in bytes: 
 * n64 640 and 221232, n128 384 and 172064. */
extern "C" __global__ void __launch_bounds__(640, 1)
    dg_sm90_moe_up_n64(const void *map, const dg_bf16 *xp, int K, int moe, int topk, const struct dg_moe_entry *entries,
           const int *n_entries, const int *slot_pair, dg_bf16 *h) {
    up_body<4, 64, 3>(map, xp, K, moe, topk, entries, n_entries, slot_pair, h);
}
extern "C" __global__ void __launch_bounds__(384, 1)
    dg_sm90_moe_up_n128(const void *map, const dg_bf16 *xp, int K, int moe, int topk, const struct dg_moe_entry *entries,
           const int *n_entries, const int *slot_pair, dg_bf16 *h) {
    up_body<2, 128, 2>(map, xp, K, moe, topk, entries, n_entries, slot_pair, h);
}

/* ---- down ---- */
/* A unit is 64 output rows over the whole of K: contiguous bytes, one bulk copy, one warpgroup. The tokens' h stays in shared memory
 * while the block works on an entry; B_BUFS buffers of it let the next entry's arrive meanwhile. */
template <int N>
DG_FN void down_unit(const unsigned char *a, unsigned b_addr, int groups, int row_bytes, unsigned release, float (&acc)[N / 2]) {
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    struct dg_q4_lane l = dg_q4_lane_init(lane & 3);
    const unsigned char *r0 = a + (warp * 16 + (lane >> 2)) * row_bytes, *r1 = r0 + 8 * row_bytes;
    constexpr int step = N * 128 >> 4;
    unsigned b = dg_desc_sw128(b_addr);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0;
    struct dg_q4_raw v;
    unsigned a0[4][4], a1[4][4];
    dg_q4_load(r0, r1, l, v);
    int k = 0;
    for (; k + 1 < groups; k += 2) { /* the group after the last is read too, within the ring or its barriers, and not used */
        dg_q4_decode(v, a0);
        dg_q4_load(r0 + 40, r1 + 40, l, v);
        dg_q4_issue(acc, a0, b);
        dg_wgmma_wait<1>();
        dg_q4_decode(v, a1);
        r0 += 80;
        r1 += 80;
        dg_q4_load(r0, r1, l, v);
        dg_q4_issue(acc, a1, b + step);
        dg_wgmma_wait<1>();
        b += 2 * step;
    }
    if (k < groups) {
        dg_q4_decode(v, a0);
        dg_q4_issue(acc, a0, b);
    }
    dg_warp_arrive(release);
    dg_wgmma_wait<0>();
}

template <int N>
DG_FN void down_tile(const unsigned char *a, unsigned b_addr, int groups, int row_bytes, unsigned empty, const struct dg_moe_entry &e,
                     int unit, const int *pair, float *d, int hidden) {
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    float acc[N / 2];
    down_unit<N>(a, b_addr, groups, row_bytes, empty, acc);
    float *dst = d + unit * 64 + warp * 16 + (lane >> 2);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + 2 * (lane & 3) + j;
            if (n < e.n) {
                float *o = dst + (long long)pair[n] * hidden;
                o[0] = acc[4 * i + j];
                o[8] = acc[4 * i + 2 + j];
            }
        }
}

template <int WG, int NMAX, int B_BUFS, int STAGES>
DG_FN void down_body(const unsigned char *w, const dg_bf16 *h, int moe, int hidden, const struct dg_moe_entry *entries, const int *n_entries,
                     const int *slot_pair, float *d) {
    unsigned char *smem = dg_dyn;
    int groups = moe / 64, row_bytes = moe / 32 * 20, unit_bytes = 64 * row_bytes, b_bytes = groups * NMAX * 128;
    unsigned char *ring = smem + B_BUFS * b_bytes;
    unsigned full = dg_smem(ring + STAGES * unit_bytes), empty = full + STAGES * 8, b_full = empty + STAGES * 8, b_empty = b_full + B_BUFS * 8;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tid = threadIdx.x & 127, lane = tid & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, 4);
        }
        for (int i = 0; i < B_BUFS; i++) {
            dg_bar_init(b_full + i * 8, 128);
            dg_bar_init(b_empty + i * 8, WG * 4);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    int per = hidden / 64, stage = 0, buf = 0;
    long long units = (long long)*n_entries * per;
    int begin = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
    unsigned phase = 0, b_phase = 0;
    if (wg == WG) {
        dg_regs_less<WG == 4 ? 64 : 56>();
        dg_u64 policy = dg_policy_first();
        for (int u = begin; u < end;) {
            struct dg_moe_entry e = entries[u / per];
            int stop = min(end, (u / per + 1) * per);
            dg_bar_wait(b_empty + buf * 8, b_phase ^ 1);
            unsigned b = dg_smem(smem + buf * b_bytes);
            for (int i = tid; i < e.n * groups * 8; i += 128) {
                int n = i / (groups * 8), c = i % (groups * 8);
                dg_cp_async16(b + (c >> 3) * (NMAX * 128) + dg_sw128(n, c & 7), h + (long long)(e.slot + n) * moe + c * 8);
            }
            dg_cp_async_arrive(b_full + buf * 8);
            if (++buf == B_BUFS) {
                buf = 0;
                b_phase ^= 1;
            }
            if (tid == 0)
                for (int v = u; v < stop; v++) {
                    dg_bar_wait(empty + stage * 8, phase ^ 1);
                    dg_bar_expect(full + stage * 8, unit_bytes);
                    dg_bulk_load(dg_smem(ring + stage * unit_bytes), w + ((long long)e.expert * per + v % per) * unit_bytes, unit_bytes,
                                 full + stage * 8, policy);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
            __syncwarp();
            u = stop;
        }
    } else {
        dg_regs_more<104>();
        for (int u = begin; u < end;) {
            struct dg_moe_entry e = entries[u / per];
            int stop = min(end, (u / per + 1) * per);
            dg_bar_wait(b_full + buf * 8, b_phase);
            dg_fence_async();
            unsigned b = dg_smem(smem + buf * b_bytes);
            for (; u < stop; u++) {
                if (((u - begin) & (WG - 1)) == wg) {
                    dg_ring_wait(full + stage * 8, empty + stage * 8, (u - begin) / STAGES);
                    const unsigned char *a = ring + stage * unit_bytes;
                    down_tile<NMAX>(a, b, groups, row_bytes, empty + stage * 8, e, u % per, slot_pair + e.slot, d, hidden);
                }
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
            if (lane == 0)
                dg_bar_arrive(b_empty + buf * 8);
            if (++buf == B_BUFS) {
                buf = 0;
                b_phase ^= 1;
            }
        }
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

/* d[pair][hidden] = down h[slot of the pair], f32.
 * w: the stack's bytes (q4_block [experts][hidden][moe], 16-byte aligned); h: of dg_sm90_moe_up_*; 64 | moe, moe <= 704, 64 | hidden.
 * entries with nmax = 24 (64). Launch: one block per multiprocessor, 640 threads, dynamic shared memory
 * B_BUFS * moe / 64 * nmax * 128 + 5 * 64 * (moe / 32 * 20) + 128 bytes (n24 has 2 buffers, n64 one; moe 704: 208512 and 231040). */
extern "C" __global__ void __launch_bounds__(640, 1)
    dg_sm90_moe_down_n24(const unsigned char *w, const dg_bf16 *h, int moe, int hidden, const struct dg_moe_entry *entries,
                         const int *n_entries, const int *slot_pair, float *d) {
    down_body<4, 24, 2, 5>(w, h, moe, hidden, entries, n_entries, slot_pair, d);
}
extern "C" __global__ void __launch_bounds__(640, 1)
    dg_sm90_moe_down_n64(const unsigned char *w, const dg_bf16 *h, int moe, int hidden, const struct dg_moe_entry *entries,
                         const int *n_entries, const int *slot_pair, float *d) {
    down_body<4, 64, 1, 5>(w, h, moe, hidden, entries, n_entries, slot_pair, d);
}

/* y[row][c] = sum over r of weight[row][r] * d[row * topk + r][c], r ascending. 4 | hidden, 4 | ldy.
 * Grid: {rows, ceil(hidden / 4 / 352)}, 352 threads. topk <= 8 runs with all loads in flight. */
extern "C" __global__ void __launch_bounds__(352) dg_sm90_moe_sum(const float *d, const float *weight, int topk, int hidden, float *y,
                                                                  long long ldy) {
    long long row = blockIdx.x;
    int c = blockIdx.y * 352 + threadIdx.x;
    if (c >= hidden / 4)
        return;
    float4 s = {0, 0, 0, 0};
    for (int r0 = 0; r0 < topk; r0 += 8) {
        float4 v[8];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (r0 + r < topk)
                v[r] = ((const float4 *)(d + (row * topk + r0 + r) * hidden))[c];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (r0 + r < topk) {
                float w = weight[row * topk + r0 + r];
                s.x += w * v[r].x;
                s.y += w * v[r].y;
                s.z += w * v[r].z;
                s.w += w * v[r].w;
            }
    }
    ((float4 *)(y + row * ldy))[c] = s;
}
