/* Dense products on Hopper: y[m][n] = x[m] . w[n], bf16 weights and activations, f32 accumulators; and the output head.
 *
 * The weights' rows are wgmma's 64-row A operand and the tokens the N operand, both through TMA with the 128-byte swizzle.
 * One block, one tile: BW weight rows by BT tokens, two consumer warpgroups, one producer warp.
 *   BW 128           each warpgroup takes 64 weight rows and all tokens
 *   BW 64            each takes all 64 rows and half the tokens
 *   BW 64, KSPLIT    each takes all rows and tokens and every other 64 of K; the two sums are added at the end
 * Which of them runs must depend on the matrix alone: KSPLIT rounds differently from the other two, which agree to the bit; tile sizes
 * change nothing. */
#include "sm90.cuh"

#define GEMM_THREADS 384

enum gemm_epilogue { GEMM_PLAIN, GEMM_GLU, GEMM_HEAD };

struct gemm_head {
    float *logits;
    long long ldl;
    float cap, inv_t;
    float4 *partial;
};

/* The product: up to three matrices side by side. */
struct gemm_args {
    const unsigned char *maps; /* CUtensorMap of each matrix, 128 bytes apart */
    const void *map_x;
    int n0, n1, n2, K, M;
    dg_bf16 *y;
    long long ldy;
    struct gemm_head head;
};

DG_FN void gemm_stmatrix4(unsigned addr, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
template <int THREADS> DG_FN void gemm_sync(int id) { asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory"); }

/* Writes a warpgroup's tile of N tokens by 64 (32 with GLU) features; out: y at the tile's first token and feature.
 * buf: N * 144 bytes of shared memory of this warpgroup's own. */
template <int N, bool GLU>
DG_FN void gemm_store(const float *acc, unsigned char *buf, int bar, dg_bf16 *out, long long ldy, int tokens, int features) {
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
    gemm_sync<128>(bar);
    for (int i = tid; i < N * chunks; i += 128) {
        int m = i / chunks, c = i % chunks;
        if (m < tokens && c * 8 < features)
            *(uint4 *)(out + m * ldy + c * 8) = *(const uint4 *)(buf + m * pitch + c * 16);
    }
}

/* x = cap * tanh(z / cap); NaN stays NaN. */
DG_FN float gemm_softcap(float z, float cap, float two_over_cap) {
    float y = cap - __fdividef(2.0f * cap, 1.0f + __expf(fminf(z * two_over_cap, 80.0f)));
    return z == z ? y : z;
}

/* Logits of 128 vocabulary rows by 256 tokens, and per token their largest (lowest id), sum of exp((x - max) / T) and that sum weighted
 * with (x - max) / T. tile: shared memory, 256 rows of HEAD_PITCH floats. */
#define HEAD_PITCH 132
DG_FN void gemm_head_store(const float (&acc)[128], float *tile, const struct gemm_head &h, int row, int rows, int M) {
    int wg = threadIdx.x >> 7, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    float *at = tile + wg * 64 + warp * 16 + g, k = 2.0f / h.cap;
#pragma unroll
    for (int i = 0; i < 32; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float *o = at + (8 * i + 2 * q + j) * HEAD_PITCH;
            o[0] = gemm_softcap(acc[4 * i + j], h.cap, k);
            o[8] = gemm_softcap(acc[4 * i + 2 + j], h.cap, k);
        }
    gemm_sync<256>(1);
    int token = threadIdx.x;
    if (token < M) {
        const float4 *z = (const float4 *)(tile + token * HEAD_PITCH);
        /* four chains, for every fourth id each, so that latencies overlap; merged in one fixed order */
        float m[4], s[4] = {0, 0, 0, 0}, t[4] = {0, 0, 0, 0};
        int a[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            m[j] = -DG_INF;
            a[j] = 0;
        }
#pragma unroll 4
        for (int i = 0; i < rows / 4; i++) {
            float4 v = z[i];
            const float c[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (c[j] > m[j]) {
                    m[j] = c[j];
                    a[j] = 4 * i + j;
                }
        }
        float max = m[0];
        int arg = a[0];
#pragma unroll
        for (int j = 1; j < 4; j++)
            if (m[j] > max || (m[j] == max && a[j] < arg)) {
                max = m[j];
                arg = a[j];
            }
#pragma unroll 4
        for (int i = 0; i < rows / 4; i++) {
            float4 v = z[i];
            const float c[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float d = (c[j] - max) * h.inv_t, e = __expf(d);
                s[j] += e;
                t[j] += e * d;
            }
        }
        float sum = (s[0] + s[1]) + (s[2] + s[3]), moment = (t[0] + t[1]) + (t[2] + t[3]);
        h.partial[(long long)token * gridDim.x + blockIdx.x] = make_float4(max, __int_as_float(row + arg), sum, moment);
    }
    for (int m = threadIdx.x >> 5; m < M; m += 8)
        if (lane * 4 < rows)
            *(float4 *)(h.logits + m * h.ldl + row + lane * 4) = *(const float4 *)(tile + m * HEAD_PITCH + lane * 4);
}

template <int BW, int BT, int STAGES, bool GLU>
DG_FN void gemm_produce(const struct gemm_args &p, int which, int row, int token, unsigned smem, unsigned full, unsigned empty, int steps) {
    dg_u64 first = dg_policy_first(), last = dg_policy_last(), weights = gridDim.y > 1 ? last : first;
    const unsigned char *map = p.maps + which * 128;
    for (int k = 0; k < steps; k++) {
        int s = k % STAGES;
        unsigned at = smem + s * (BW + BT) * 128, bar = full + s * 8;
        dg_bar_wait(empty + s * 8, (k / STAGES & 1) ^ 1);
        dg_bar_expect(bar, (BW + BT) * 128);
        if (GLU) { /* 8 gate rows, 8 up rows, ...: a thread's accumulators then hold both of a feature */
#pragma unroll
            for (int i = 0; i < BW / 8; i++)
                dg_tma_load(at + i * 1024, p.maps + (i & 1) * 128, k * 64, row + i / 2 * 8, bar, weights);
        } else {
            dg_tma_load(at, map, k * 64, row, bar, weights);
        }
        dg_tma_load(at + BW * 128, p.map_x, k * 64, token, bar, last);
    }
}

template <int BW, int BT, int STAGES, bool KSPLIT, int EPI> DG_FN void gemm_body(const struct gemm_args &p) {
    constexpr int N = BW == 64 && !KSPLIT ? BT / 2 : BT, stage = (BW + BT) * 128, feats = EPI == GEMM_GLU ? BW / 2 : BW;
    unsigned char *smem = dg_dyn;
    unsigned full = dg_smem(smem + STAGES * stage), empty = full + STAGES * 8;
    int wg = threadIdx.x >> 7, lane = threadIdx.x & 31, steps = (p.K + 63) / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, KSPLIT ? 4 : 8);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    /* the tile's matrix, its first row there and its first column in y */
    int which = 0, row = blockIdx.x * feats, col = row, token = blockIdx.y * BT, n = p.n0;
    if (EPI == GEMM_PLAIN && row >= n && p.n1 > 0) {
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
            gemm_produce<BW, BT, STAGES, EPI == GEMM_GLU>(p, which, row, token, dg_smem(smem), full, empty, steps);
        return;
    }
    dg_regs_more<224>();
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0;
    int prev = -1;
    for (int k = KSPLIT ? wg : 0; k < steps; k += KSPLIT ? 2 : 1) {
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
    /* Every load of this block has been waited for by its two warpgroups, so past this barrier the stages are free. */
    gemm_sync<256>(1);
    if constexpr (EPI == GEMM_HEAD) {
        gemm_head_store(acc, (float *)smem, p.head, row, min(BW, n - row), p.M);
    } else if constexpr (KSPLIT) {
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
        gemm_store<N / 2, EPI == GEMM_GLU>(sum, smem + wg * (N / 2 * 144), 2 + wg, p.y + (long long)token * p.ldy + col, p.ldy, p.M - token, n - row);
    } else {
        token += BW == 64 ? wg * N : 0;
        int f = BW == 128 ? wg * (feats / 2) : 0;
        gemm_store<N, EPI == GEMM_GLU>(acc, smem + wg * (N * 144), 2 + wg, p.y + (long long)token * p.ldy + col + f, p.ldy, p.M - token, n - row - f);
    }
}

/* y[m][..] = x[m] . the rows of up to three matrices, side by side (bf16 [M][ldy]).
 * maps: device memory, one CUtensorMap per matrix, 128 bytes apart: bf16, dims {K, n}, box {64, BW} (with GLU {64, 8}), 128-byte swizzle.
 * map_x: the same for x: dims {K, M}, box {64, BT}. n0, n1, n2: rows of each, multiples of BW when another follows, of 8 otherwise;
 * absent 0. GLU: maps of gate and up, n0 rows each, n1 = n2 = 0, y[m][j] = gelu_tanh(gate) * up. 8 | ldy.
 * Grid {ceil(rows / F), ceil(M / BT)} with F = BW, with GLU BW / 2; 384 threads. Name: BW x BT, k = KSPLIT.
 * Dynamic shared memory: STAGES * (128 * (BW + BT) + 16) bytes; STAGES in the list below. */
#define GEMM_ENTRY(name, BW, BT, STAGES, KSPLIT, EPI)                                                                                   \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)                                                                      \
        name(const unsigned char *maps, const void *map_x, int n0, int n1, int n2, int K, int M, dg_bf16 *y, long long ldy) {           \
        gemm_body<BW, BT, STAGES, KSPLIT, EPI>({maps, map_x, n0, n1, n2, K, M, y, ldy, {}});                                             \
    }
GEMM_ENTRY(dg_sm90_linear_128x256, 128, 256, 4, false, GEMM_PLAIN)
GEMM_ENTRY(dg_sm90_linear_64x256, 64, 256, 5, false, GEMM_PLAIN)
GEMM_ENTRY(dg_sm90_linear_64x128k, 64, 128, 8, true, GEMM_PLAIN)
GEMM_ENTRY(dg_sm90_linear_64x256k, 64, 256, 5, true, GEMM_PLAIN)
GEMM_ENTRY(dg_sm90_glu_64x128k, 64, 128, 8, true, GEMM_GLU)
GEMM_ENTRY(dg_sm90_glu_64x256k, 64, 256, 5, true, GEMM_GLU)

/* logits[m][v] = cap * tanh(x[m] . w[v] / cap), f32 [M][ldl], and per token and 128 vocabulary rows {largest logit, its id as an int,
 * sum of exp((logit - largest) * inv_t), the same weighted with (logit - largest) * inv_t} in partial [M][ceil(V / 128)].
 * map: bf16, dims {K, V}, box {64, 128}; map_x: dims {K, M}, box {64, 256}; both 128-byte swizzle. M <= 256, 4 | V, 4 | ldl.
 * Grid ceil(V / 128), 384 threads, 196672 bytes of dynamic shared memory. */
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) dg_sm90_head(const unsigned char *map, const void *map_x, int V, int K, int M,
                                                                           float cap, float inv_t, float *logits, long long ldl,
                                                                           float4 *partial) {
    gemm_body<128, 256, 4, false, GEMM_HEAD>({map, map_x, V, 0, 0, K, M, 0, 0, {logits, ldl, cap, inv_t, partial}});
}

struct head_stat {
    float max, sum, moment;
    int arg;
};
/* b's terms are brought to a's largest logit, or a's to b's; the lower id wins a tie. */
DG_FN struct head_stat head_merge(struct head_stat a, struct head_stat b, float inv_t) {
    struct head_stat o = b.max > a.max || (b.max == a.max && b.arg < a.arg) ? b : a;
    float da = (a.max - o.max) * inv_t, db = (b.max - o.max) * inv_t, wa = a.sum == 0 ? 0 : __expf(da), wb = b.sum == 0 ? 0 : __expf(db);
    o.moment = (a.sum == 0 ? 0 : wa * (a.moment + da * a.sum)) + (b.sum == 0 ? 0 : wb * (b.moment + db * b.sum));
    o.sum = wa * a.sum + wb * b.sum;
    return o;
}

/* Row statistics from dg_sm90_head's partial sums (ops.h, dg_row_stats; max is that of logit * inv_t). Grid M, 256 threads. */
extern "C" __global__ void __launch_bounds__(256) dg_sm90_head_stats(const float4 *partial, int tiles, float inv_t, float *entropy, float *max,
                                                                     float *sum, float *p_max, int *argmax) {
    __shared__ struct head_stat part[256];
    const struct head_stat none = {-DG_INF, 0, 0, 0x7fffffff};
    struct head_stat s = none;
    for (int i = threadIdx.x; i < tiles; i += 256) {
        float4 v = partial[(long long)blockIdx.x * tiles + i];
        struct head_stat t = {v.x, v.z, v.w, __float_as_int(v.y)};
        s = i == threadIdx.x ? t : head_merge(s, t, inv_t);
    }
    part[threadIdx.x] = s;
    for (int d = 128; d > 0; d /= 2) {
        __syncthreads();
        if (threadIdx.x < d)
            part[threadIdx.x] = head_merge(part[threadIdx.x], part[threadIdx.x + d], inv_t);
    }
    if (threadIdx.x == 0) {
        struct head_stat r = part[0];
        float h = logf(r.sum) - r.moment / r.sum;
        entropy[blockIdx.x] = h < 0 ? 0 : h;
        max[blockIdx.x] = r.max * inv_t;
        sum[blockIdx.x] = r.sum;
        p_max[blockIdx.x] = 1.0f / r.sum;
        argmax[blockIdx.x] = r.arg;
    }
}
