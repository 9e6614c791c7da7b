/* Dense products on Hopper: y[m][n] = x[m] . w[n], bf16 weights and activations, f32 accumulators.
 *
 * The weights' rows are wgmma's 64-row A operand and the tokens the N operand, both through TMA with the 128-byte swizzle.
 * One block, one tile: BW weight rows by BT tokens, two consumer warpgroups, one producer warp.
 *   BW 128           each warpgroup takes 64 weight rows and all tokens
 *   BW 64            each takes all 64 rows and half the tokens
 *   BW 64, KSPLIT    each takes all rows and tokens and every other 64 of K; the two sums are added at the end
 * Whether K is split must depend on the matrix alone: KSPLIT rounds differently from the other two, which agree to the bit; tile sizes change
 * nothing. Up to 256 rows mostly go to gemm_pair_sm90a.cu. */
#include "ops/cuda/kernels/sm90.cuh"

#define GEMM_THREADS 384

/* The product: up to three matrices side by side. */
struct gemm_args {
    const struct dgc_tmap *maps, *map_x;
    int n0, n1, n2, K, M;
    uint16_t *y;
    long long ldy;
    bool both; /* GLU: maps[0] has gate and up */
};

DGC_FN void gemm_stmatrix4(unsigned addr, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
template <int THREADS> DGC_FN void gemm_sync(int id) { asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory"); }

/* Writes a warpgroup's tile of N tokens by 64 (32 with GLU) features; out: y at the tile's first token and feature.
 * buf: N * 144 bytes of shared memory of this warpgroup's own. */
template <int N, bool GLU>
DGC_FN void gemm_store(const float *acc, unsigned char *buf, int bar, uint16_t *out, long long ldy, int tokens, int features) {
    constexpr int pitch = GLU ? 80 : 144, chunks = GLU ? 4 : 8; /* 16-byte chunks of a token's row */
    int tid = threadIdx.x & 127, warp = tid >> 5, lane = tid & 31, mat = lane >> 3;
    unsigned base = dg_smem(buf);
    if (GLU) {
#pragma unroll
        for (int i = 0; i < N / 8; i += 4) {
            unsigned v[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *c = acc + 4 * (i + j);
                v[j] = dgc_pack_bf16(dg_gelu(c[0]) * c[2], dg_gelu(c[1]) * c[3]);
            }
            gemm_stmatrix4(base + (8 * (i + mat) + (lane & 7)) * pitch + warp * 16, v[0], v[1], v[2], v[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 8; i += 2) {
            const float *c = acc + 4 * i;
            gemm_stmatrix4(base + (8 * (i + (mat >> 1)) + (lane & 7)) * pitch + warp * 32 + (mat & 1) * 16, dgc_pack_bf16(c[0], c[1]),
                           dgc_pack_bf16(c[2], c[3]), dgc_pack_bf16(c[4], c[5]), dgc_pack_bf16(c[6], c[7]));
        }
    }
    gemm_sync<128>(bar);
    bool wide = !(((uint64_t)out | (uint64_t)ldy * 2) & 15);
    for (int i = tid; i < N * chunks; i += 128) {
        int m = i / chunks, c = i % chunks;
        if (m >= tokens || c * 8 >= features)
            continue;
        if (wide)
            *(uint4 *)(out + m * ldy + c * 8) = *(const uint4 *)(buf + m * pitch + c * 16);
        else
            for (int j = 0; j < 8; j++)
                out[m * ldy + c * 8 + j] = ((const uint16_t *)(buf + m * pitch + c * 16))[j];
    }
}

/* The first stages' weights come before what the launch before this one leaves: nothing in a pass writes weights. */
template <int BW, int BT, int STAGES, bool GLU>
DGC_FN void gemm_produce(const struct gemm_args &p, int which, int row, int token, unsigned smem, unsigned full, unsigned empty, int steps) {
    uint64_t first = dg_policy_first(), last = dg_policy_last(), weights = gridDim.y > 1 ? last : first;
    const struct dgc_tmap *map = p.maps + which;
    auto load_weights = [&](int k) {
        int s = k % STAGES;
        unsigned at = smem + s * (BW + BT) * 128, bar = full + s * 8;
        dg_bar_wait(empty + s * 8, (k / STAGES & 1) ^ 1);
        dg_bar_expect(bar, (BW + BT) * 128);
        /* GLU: 8 gate rows, 8 up rows, ...: a thread's accumulators then hold both of a feature */
        if (GLU && p.both) {
            dg_tma_load4(at, p.maps, k * 64, 0, 0, row / 8, bar, weights);
        } else if (GLU) {
#pragma unroll
            for (int i = 0; i < BW / 8; i++)
                dg_tma_load(at + i * 1024, p.maps + (i & 1), k * 64, row + i / 2 * 8, bar, weights);
        } else {
            dg_tma_load(at, map, k * 64, row, bar, weights);
        }
    };
    int early = steps < STAGES ? steps : STAGES;
    for (int k = 0; k < early; k++)
        load_weights(k);
    dgc_chain();
    for (int k = 0; k < steps; k++) {
        if (k >= early)
            load_weights(k);
        int s = k % STAGES;
        dg_tma_load(smem + s * (BW + BT) * 128 + BW * 128, p.map_x, k * 64, token, full + s * 8, last);
    }
}

template <int BW, int BT, int STAGES, bool KSPLIT, bool GLU> DGC_FN void gemm_body(const struct gemm_args &p) {
    constexpr int N = BW == 64 && !KSPLIT ? BT / 2 : BT, stage = (BW + BT) * 128, feats = GLU ? BW / 2 : BW;
    unsigned char *smem = dg_dyn;
    unsigned full = dg_smem(smem + STAGES * stage), empty = full + STAGES * 8;
    int wg = threadIdx.x >> 7, lane = threadIdx.x & 31, steps = (p.K + 63) / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, 8);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    /* the tile's matrix, its first row there and its first column in y */
    int which = 0, row = blockIdx.x * feats, col = row, token = blockIdx.y * BT, n = p.n0;
    if (!GLU && row >= n && p.n1 > 0) {
        row -= n;
        n = p.n1;
        which = 1;
        if (row >= n && p.n2 > 0) {
            row -= n;
            n = p.n2;
            which = 2;
        }
    }
    if (wg == 2) {
        dg_regs_less<40>();
        if (threadIdx.x == 256)
            gemm_produce<BW, BT, STAGES, GLU>(p, which, row, token, dg_smem(smem), full, empty, steps);
        return;
    }
    dg_regs_more<224>();
    dgc_chain();
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0;
    int prev = -1;
    for (int k = KSPLIT ? wg : 0; k < steps; k += KSPLIT ? 2 : 1) {
        if (KSPLIT && k > 0) { /* the other one's. Both take every stage: a parity does not tell a fill from the last but one */
            int s = (k - 1) % STAGES;
            dg_bar_wait(full + s * 8, (k - 1) / STAGES & 1);
            dg_arrive_for_warp(empty + s * 8);
        }
        int s = k % STAGES;
        dg_bar_wait(full + s * 8, k / STAGES & 1);
        unsigned at = dg_smem(smem + s * stage), a = dg_desc_sw128(at + (BW == 128 ? wg * 64 * 128 : 0)),
                 b = dg_desc_sw128(at + BW * 128 + (BW == 64 && !KSPLIT ? wg * N * 128 : 0));
        dg_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            dg_wgmma_ss(acc, a + 2 * i, b + 2 * i);
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (prev >= 0 && lane == 0)
            dg_bar_arrive(empty + prev * 8);
        prev = s;
    }
    dg_wgmma_wait<0>();
    /* Every load of this block has been waited for by a warpgroup that comes to this barrier, so past it the stages are free. */
    gemm_sync<256>(1);
    if constexpr (KSPLIT) {
        /* each hands the other one half of its tokens and finishes the other half; a sum of two has one order */
        int tid = threadIdx.x & 127;
        float *theirs = (float *)smem + wg * (N / 4 * 128);
        const float *mine = (const float *)smem + (wg ^ 1) * (N / 4 * 128);
        float sum[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            theirs[i * 128 + tid] = wg ? acc[i] : acc[N / 4 + i];
            sum[i] = wg ? acc[N / 4 + i] : acc[i];
        }
        gemm_sync<256>(1);
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            sum[i] += mine[i * 128 + tid];
        gemm_sync<256>(1);
        token += wg * (N / 2);
        gemm_store<N / 2, GLU>(sum, smem + wg * (N / 2 * 144), 2 + wg, p.y + (long long)token * p.ldy + col, p.ldy, p.M - token, n - row);
    } else {
        token += BW == 64 ? wg * N : 0;
        int f = BW == 128 ? wg * (feats / 2) : 0;
        gemm_store<N, GLU>(acc, smem + wg * (N * 144), 2 + wg, p.y + (long long)token * p.ldy + col + f, p.ldy, p.M - token, n - row - f);
    }
}

/* Name: BW x BT, k = KSPLIT. */
#define GEMM_ENTRY(name, BW, BT, STAGES, KSPLIT, GLU)                                                                                \
    DGC_KERNEL_ONE(name, gemm, GEMM_THREADS) {                                                                                      \
        gemm_body<BW, BT, STAGES, KSPLIT, GLU>({a.w, &a.x, a.n[0], a.n[1], a.n[2], a.k, a.rows, a.y, a.ldy, a.both != 0});           \
    }
GEMM_ENTRY(gemm_128x256, 128, 256, 4, false, false)
GEMM_ENTRY(gemm_64x256, 64, 256, 5, false, false)
GEMM_ENTRY(gemm_64x256k, 64, 256, 5, true, false)
GEMM_ENTRY(gemm_glu_64x128k, 64, 128, 8, true, true)
GEMM_ENTRY(gemm_glu_64x256k, 64, 256, 5, true, true)
