/* Dense products on Hopper: y[m][n] = x[m] . w[n], bf16 weights and activations, f32 accumulators.
 *
 * The weights' rows are wgmma's 64-row A operand and the tokens the N operand, both through TMA with the 128-byte swizzle. A weight row
 * is read once per token tile; the blocks of a cluster work on neighbouring weight rows of the same tokens, so each loads a share of
 * the token tile and multicasts it: at 256 rows the traffic from L2 to the multiprocessors is what bounds a naive tiling.
 *
 * One block, one tile: BW weight rows by BT tokens, two consumer warpgroups, one producer warp.
 *   BW 128           each warpgroup takes 64 weight rows and all tokens
 *   BW 64            each takes all 64 rows and half the tokens
 *   BW 64, KSPLIT    each takes all rows and tokens and every other 64 of K; the two sums are added at the end
 * Which of them runs must depend on the matrix alone: KSPLIT rounds differently from the other two, which agree to the bit. */
#include "sm90.cuh"

#define GEMM_THREADS 384

template <int BW, int BT, int STAGES> struct gemm_smem {
    static constexpr int w_bytes = BW * 128, x_bytes = BT * 128, stage = w_bytes + x_bytes, bytes = STAGES * (stage + 16) + 1024;
};

/* The matrices side by side: their rows, in order. At most three; rows of the absent ones are 0. */
struct gemm_stack {
    const unsigned char *maps; /* CUtensorMap of each, 128 bytes apart */
    int n0, n1, n2;
};

DG_FN void gemm_stmatrix4(unsigned addr, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DG_FN void gemm_wg_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/* Writes a warpgroup's tile of N tokens by 64 (32 with GLU) features; out: y at the tile's first token and feature.
 * buf: N * 144 bytes of shared memory of this warpgroup's own. */
template <int N, bool GLU>
DG_FN void gemm_store(const float (&acc)[N / 2], unsigned char *buf, int bar, dg_bf16 *out, long long ldy, int tokens, int features) {
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
                v[j] = dg_pack_bf16(dg_gelu(c[0]) * c[2], dg_gelu(c[1]) * c[3]);
            }
            gemm_stmatrix4(base + (8 * (i + mat) + (lane & 7)) * pitch + warp * 16, v[0], v[1], v[2], v[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 8; i += 2) {
            const float *c = acc + 4 * i;
            gemm_stmatrix4(base + (8 * (i + (mat >> 1)) + (lane & 7)) * pitch + warp * 32 + (mat & 1) * 16, dg_pack_bf16(c[0], c[1]),
                           dg_pack_bf16(c[2], c[3]), dg_pack_bf16(c[4], c[5]), dg_pack_bf16(c[6], c[7]));
        }
    }
    gemm_wg_sync(bar, 128);
    for (int i = tid; i < N * chunks; i += 128) {
        int m = i / chunks, c = i % chunks;
        if (m < tokens && c * 8 < features)
            *(uint4 *)(out + m * ldy + c * 8) = *(const uint4 *)(buf + m * pitch + c * 16);
    }
}

template <int BW, int BT, int STAGES, bool KSPLIT, bool GLU>
DG_FN void gemm_body(const struct gemm_stack &w, const void *map_x, int K, int M, dg_bf16 *y, long long ldy, int cluster) {
    using S = gemm_smem<BW, BT, STAGES>;
    constexpr int N = BW == 64 && !KSPLIT ? BT / 2 : BT, users = KSPLIT ? 4 : 8;
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned full = dg_smem(smem + STAGES * S::stage), empty = full + STAGES * 8, rank = cluster > 1 ? dg_cluster_rank() : 0;
    int wg = threadIdx.x >> 7, lane = threadIdx.x & 31, steps = (K + 63) / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, users * cluster);
        }
        dg_bar_init_fence();
    }
    if (cluster > 1)
        dg_cluster_sync();
    else
        __syncthreads();
    /* the tile's matrix, its first row there and its first column in y; a block past the end computes zeros for its cluster */
    constexpr int feats = GLU ? BW / 2 : BW;
    int which = 0, row = blockIdx.x * feats, col = row, token = blockIdx.y * BT, n = w.n0;
    if (!GLU && row >= n && w.n1 > 0) {
        row -= n;
        n = w.n1;
        which = 1;
        if (row >= n && w.n2 > 0) {
            row -= n;
            n = w.n2;
            which = 2;
        }
    }
    if (wg == 2) {
        dg_regs_less<40>();
        if (threadIdx.x == 256) {
            const unsigned char *map = w.maps + which * 128;
            dg_u64 first = dg_policy_first(), last = dg_policy_last();
            int slice = BT / cluster;
            unsigned short mask = (unsigned short)((1u << cluster) - 1);
            for (int k = 0; k < steps; k++) {
                int s = k % STAGES;
                unsigned at = dg_smem(smem + s * S::stage), bar = full + s * 8;
                dg_bar_wait(empty + s * 8, (k / STAGES & 1) ^ 1);
                dg_bar_expect(bar, S::stage);
                if (GLU) { /* 8 gate rows, 8 up rows, ...: a thread's accumulators then hold both of a feature */
#pragma unroll
                    for (int i = 0; i < BW / 8; i++)
                        dg_tma_load(at + i * 1024, w.maps + (i & 1) * 128, k * 64, row + i / 2 * 8, bar, first);
                } else {
                    dg_tma_load(at, map, k * 64, row, bar, gridDim.y > 1 ? last : first);
                }
                unsigned xs = at + S::w_bytes + rank * slice * 128;
                if (cluster > 1)
                    dg_tma_load_multicast(xs, map_x, k * 64, token + (int)rank * slice, bar, mask, last);
                else
                    dg_tma_load(xs, map_x, k * 64, token, bar, last);
            }
        }
    } else {
        dg_regs_more<224>();
        float acc[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = 0;
        int prev = -1;
        for (int k = KSPLIT ? wg : 0; k < steps; k += KSPLIT ? 2 : 1) {
            int s = k % STAGES;
            dg_bar_wait(full + s * 8, k / STAGES & 1);
            unsigned at = dg_smem(smem + s * S::stage);
            dg_u64 a = dg_desc_sw128(at + (BW == 128 ? wg * 64 * 128 : 0)),
                   b = dg_desc_sw128(at + S::w_bytes + (BW == 64 && !KSPLIT ? wg * N * 128 : 0));
            dg_wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                dg_wgmma_ss(acc, a + 2 * i, b + 2 * i);
            dg_wgmma_commit();
            dg_wgmma_wait<1>();
            if (prev >= 0 && lane < cluster) {
                if (cluster > 1)
                    dg_bar_arrive_cluster(empty + prev * 8, lane);
                else
                    dg_bar_arrive(empty + prev * 8);
            }
            prev = s;
        }
        dg_wgmma_wait<0>();
        /* Every load of this block has been waited for by its two warpgroups, so past this barrier the stages are free. */
        gemm_wg_sync(1, 256);
        int tid = threadIdx.x & 127;
        if constexpr (KSPLIT) {
            /* each hands the other one half of its tokens and finishes the other half; a sum of two has one order */
            float *other = (float *)smem + wg * (N / 4 * 128);
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                other[i * 128 + tid] = wg ? acc[i] : acc[N / 4 + i];
            gemm_wg_sync(1, 256);
            const float *mine = (const float *)smem + (wg ^ 1) * (N / 4 * 128);
            float sum[N / 4];
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                sum[i] = (wg ? acc[N / 4 + i] : acc[i]) + mine[i * 128 + tid];
            gemm_wg_sync(1, 256);
            token += wg * (N / 2);
            gemm_store<N / 2, GLU>(sum, smem + wg * (N / 2 * 144), 2 + wg, y + (long long)token * ldy + col, ldy, M - token, n - row);
        } else {
            if (BW == 64)
                token += wg * N;
            int f = BW == 128 ? wg * (feats / 2) : 0;
            gemm_store<N, GLU>(acc, smem + wg * (N * 144), 2 + wg, y + (long long)token * ldy + col + f, ldy, M - token,
                               n - row - f);
        }
    }
    if (cluster > 1)
        dg_cluster_sync(); /* no block leaves while another may still write into it or arrive at its barriers */
}

/* y[m][..] = x[m] . the rows of up to three matrices, side by side (bf16 [M][ldy]).
 * maps: device memory, one CUtensorMap per matrix: bf16, dims {K, n}, box {64, BW} (with GLU {64, 8}), 128-byte swizzle.
 * map_x: the same for x: dims {K, M}, box {64, BT / cluster}. n0, n1, n2: rows of each, multiples of BW when another follows, of 8
 * otherwise; absent 0. GLU: maps of gate and up, n0 rows each, y[m][j] = gelu_tanh(gate) * up. 8 | ldy.
 * Grid {ceil(rows / F) rounded up to the cluster, ceil(M / BT)} with F = BW, with GLU BW / 2; cluster {cluster, 1, 1} of 1, 2, 4 or 8;
 * 384 threads. Name: BW x BT, k = KSPLIT. Dynamic shared memory: STAGES * (128 (BW + BT) + 16) + 1024. */
#define GEMM_ENTRY(name, BW, BT, STAGES, KSPLIT, GLU)                                                                                   \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)                                                                      \
        name(const unsigned char *maps, const void *map_x, int n0, int n1, int n2, int K, int M, dg_bf16 *y, long long ldy, int cluster) { \
        gemm_body<BW, BT, STAGES, KSPLIT, GLU>({maps, n0, n1, n2}, map_x, K, M, y, ldy, cluster);                                      \
    }
GEMM_ENTRY(dg_sm90_linear_128x256, 128, 256, 4, false, false)
GEMM_ENTRY(dg_sm90_linear_64x256, 64, 256, 5, false, false)
GEMM_ENTRY(dg_sm90_linear_64x128, 64, 128, 8, false, false)
GEMM_ENTRY(dg_sm90_linear_64x128k, 64, 128, 8, true, false)
GEMM_ENTRY(dg_sm90_glu_64x128k, 64, 128, 8, true, true)
GEMM_ENTRY(dg_sm90_glu_64x256, 64, 256, 5, false, true)
