/* Dense products of few rows on Hopper, with the bits of gemm_sm90a.cu, in tiles of which 256 rows have as many as the card has multiprocessors.
 *
 * A tile is 128 tokens by BW weight rows. The tokens are wgmma's A operand, 64 of them to each of two warpgroups, the weight rows the N operand: the
 * other way round a matrix could be cut into multiples of 64 rows alone. A warp of its own fills the ring, and both warpgroups take every stage.
 *   gemm_144x128       one block a tile
 *   gemm_88x128_pair   two blocks a tile, as a cluster: KSPLIT's two sums. Block r takes every other 64 of K from 64 r on and finishes the tokens of
 *                      warpgroup r; those of the other warpgroup are finished by the other block, to which it sends them.
 * No block leaves before what the other one sends it has come, and a block sends only once the other one runs: nothing else is needed at the end. */
#include "ops/cuda/kernels/sm90.cuh"

#define GEMM_THREADS 288
#define GEMM_HALF 8192               /* bytes of a stage's tokens of one warpgroup */
#define GEMM_WEIGHTS (2 * GEMM_HALF) /* where a stage's weights begin */

/* The tile's matrix, its first row there, the matrix's rows, its first column in y. */
struct gemm_tile {
    int which, row, rows, col;
};
template <int BW> DGC_FN struct gemm_tile gemm_find(const struct dgc_gemm_args &a, int tile) {
    struct gemm_tile t = {0, tile * BW, a.n[0], 0};
#pragma unroll
    for (int i = 1; i < 3; i++) {
        int past = (t.rows + BW - 1) / BW * BW;
        if (t.which == i - 1 && t.row >= past && a.n[i] > 0) {
            t.col += t.rows;
            t.row -= past;
            t.rows = a.n[i];
            t.which = i;
        }
    }
    t.col += t.row;
    return t;
}

DGC_FN void gemm_stmatrix4(unsigned addr, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DGC_FN void gemm_stmatrix2(unsigned addr, unsigned a, unsigned b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b) : "memory");
}

/* Writes a warp's 16 tokens by BW features; out: y at their first token and feature. buf: 18 rows of PITCH bytes of the warp's own. */
template <int BW> DGC_FN void gemm_store(const float (&acc)[BW / 2], unsigned char *buf, uint16_t *out, int64_t ldy, int tokens, int features) {
    constexpr int CHUNKS = BW / 8, PITCH = 16 * (CHUNKS | 1); /* an odd number of 16 bytes: rows after another fall on other banks */
    int lane = threadIdx.x & 31, mat = lane >> 3;
    unsigned to = dg_smem(buf) + ((mat & 1) * 8 + (lane & 7)) * PITCH + (mat >> 1) * 16;
#pragma unroll
    for (int i = 0; i < CHUNKS; i += 2) {
        const float *c = acc + 4 * i;
        if (i + 1 < CHUNKS)
            gemm_stmatrix4(to + i * 16, dgc_pack_bf16(c[0], c[1]), dgc_pack_bf16(c[2], c[3]), dgc_pack_bf16(c[4], c[5]), dgc_pack_bf16(c[6], c[7]));
        else
            gemm_stmatrix2(to + i * 16, dgc_pack_bf16(c[0], c[1]), dgc_pack_bf16(c[2], c[3]));
    }
    __syncwarp();
    constexpr int EACH = (16 * CHUNKS + 31) / 32;
    int live = tokens < 16 ? tokens : 16;
    if (!(((uint64_t)out | (uint64_t)ldy * 2) & 15)) {
        uint4 v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            v[j] = *(const uint4 *)(buf + (lane + 32 * j) / CHUNKS * PITCH + (lane + 32 * j) % CHUNKS * 16);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int m = (lane + 32 * j) / CHUNKS, c = (lane + 32 * j) % CHUNKS;
            if (m < live && c * 8 < features)
                *(uint4 *)(out + m * ldy + c * 8) = v[j];
        }
    } else {
        for (int i = lane; i < live * BW; i += 32)
            if (i % BW < features)
                out[i / BW * ldy + i % BW] = *(const uint16_t *)(buf + i / BW * PITCH + i % BW * 2);
    }
}

/* The thread that fills the ring, `steps` times, from column k0 on and then `dk` further each time. The first stages' weights come before what the
 * launch before this one leaves: nothing in a pass writes weights. */
template <int BW, int STAGES>
DGC_FN void gemm_bring(const struct dgc_gemm_args &a, const struct gemm_tile &t, int token, int k0, int dk, int steps, unsigned full,
                       unsigned empty) {
    constexpr unsigned STAGE = (128 + BW) * 128;
    unsigned base = dg_smem(dg_dyn);
    uint64_t last = dg_policy_last(), keep = gridDim.y > 1 ? last : dg_policy_first();
    auto weights = [&](int i) {
        unsigned s = (unsigned)i % STAGES, bar = full + s * 8;
        dg_bar_wait(empty + s * 8, ((unsigned)i / STAGES & 1) ^ 1);
        dg_bar_expect(bar, STAGE);
        dg_tma_load(base + s * STAGE + GEMM_WEIGHTS, &a.w[t.which], k0 + i * dk, t.row, bar, keep);
    };
    int early = steps < STAGES ? steps : STAGES;
    for (int i = 0; i < early; i++)
        weights(i);
    dgc_chain();
    for (int i = 0; i < steps; i++) {
        if (i >= early)
            weights(i);
        unsigned s = (unsigned)i % STAGES;
        dg_tma_load(base + s * STAGE, &a.x, k0 + i * dk, token, full + s * 8, last);
    }
}

/* acc += the tile's products of a warpgroup's tokens, `steps` stages in order. */
template <int BW, int STAGES> DGC_FN void gemm_take(float (&acc)[BW / 2], int wg, int steps, unsigned full, unsigned empty) {
    constexpr unsigned STAGE = (128 + BW) * 128;
    unsigned base = dg_smem(dg_dyn), phase = 0;
    int i = 0, s = 0, prev = -1;
    if (steps == 0) /* a pair's second block */
        return;
    do { /* a loop that may have no turns costs registers and serializes the products */
        dg_bar_wait(full + s * 8, phase);
        unsigned x = dg_desc_sw128(base + s * STAGE + wg * GEMM_HALF), w = dg_desc_sw128(base + s * STAGE + GEMM_WEIGHTS);
        dg_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            dg_wgmma_ss(acc, x + 2 * j, w + 2 * j);
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (prev >= 0 && (threadIdx.x & 31) == 0)
            dg_bar_arrive(empty + prev * 8);
        prev = s;
        if (++s == STAGES) {
            s = 0;
            phase ^= 1;
        }
    } while (++i < steps);
    dg_wgmma_wait<0>();
    dg_hold(acc);
}

template <int BW, int STAGES, bool PAIR> DGC_FN void gemm_tokens(const struct dgc_gemm_args &a) {
    constexpr int STAGE = (128 + BW) * 128, SUMS = 64 * BW * 4; /* bytes of what the other block of a pair sends */
    unsigned sums = dg_smem(dg_dyn) + STAGES * STAGE, full = sums + (PAIR ? SUMS : 0), empty = full + STAGES * 8, got = empty + STAGES * 8;
    unsigned rank = PAIR ? dg_pair_rank() : 0;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), steps = (a.k + 63) / 64, token = blockIdx.y * 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, 8);
        }
        if (PAIR) {
            dg_bar_init(got, 1);
            dg_bar_expect(got, SUMS);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    if (PAIR) {
        dg_pair_arrive(threadIdx.x == 0);
        steps = (steps + 1 - (int)rank) / 2;
    }
    struct gemm_tile t = gemm_find<BW>(a, PAIR ? blockIdx.x >> 1 : blockIdx.x);
    if (wg == 2) {
        if (threadIdx.x == 256)
            gemm_bring<BW, STAGES>(a, t, token, rank * 64, PAIR ? 128 : 64, steps, full, empty);
        __syncwarp();
        if (PAIR)
            dg_pair_wait();
        return;
    }
    if (PAIR)
        dg_pair_wait(); /* long before it sends anything */
    dgc_chain();
    float acc[BW / 2];
#pragma unroll
    for (int i = 0; i < BW / 2; i++)
        acc[i] = 0;
    gemm_take<BW, STAGES>(acc, wg, steps, full, empty);
    if (PAIR) {
        unsigned at = (threadIdx.x & 127) * 16;
        if (wg != (int)rank) {
            unsigned to = dg_place_at(sums + at, rank ^ 1), bar = dg_place_at(got, rank ^ 1);
#pragma unroll
            for (int i = 0; i < BW / 8; i++)
                dg_send(to + i * 2048, acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3], bar);
            return;
        }
        dg_bar_wait(got, 0);
#pragma unroll
        for (int i = 0; i < BW / 8; i++) { /* a sum of two has one order */
            float4 v = *(const float4 *)(dg_dyn + STAGES * STAGE + i * 2048 + at);
            acc[4 * i] += v.x;
            acc[4 * i + 1] += v.y;
            acc[4 * i + 2] += v.z;
            acc[4 * i + 3] += v.w;
        }
    }
    /* Of every stage this warpgroup's tokens have come and, past this barrier, been multiplied by all its warps; nobody else reads them: each warp
     * takes those of one. */
    dg_sync_some<128>(1 + wg);
    int warp = threadIdx.x >> 5 & 3;
    token += wg * 64 + warp * 16;
    gemm_store<BW>(acc, dg_dyn + warp * STAGE + wg * GEMM_HALF, a.y + token * a.ldy + t.col, a.ldy, a.rows - token, t.rows - t.row);
}

DGC_KERNEL_ONE(gemm_144x128, gemm, GEMM_THREADS) { gemm_tokens<144, 6, false>(a); }
DGC_KERNEL_PAIR(gemm_88x128_pair, gemm, GEMM_THREADS) { gemm_tokens<88, 7, true>(a); }
