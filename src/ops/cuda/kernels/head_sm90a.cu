/* The output head on Hopper: logits = cap * tanh(x . embed / cap), statistics of every row's tiles of 128 ids, and those of whole rows.
 *
 * Blocks stay, one a multiprocessor, and walk tiles of 256 ids. Tokens are wgmma's A operand and ids the N operand, so a lane holds 64 ids of each
 * of two tokens, and four lanes hold a token's whole tile: no statistic crosses a warp. A block has 128 tokens, 64 to each of two warpgroups. Where
 * there are more, the two blocks of a pair take a half each and the same ids, of which either brings one half to both, so that the L2 delivers it
 * once. Which of the two runs changes no bit: tiles and the order of every sum are the same.
 *
 * One warp fills the ring of ids, which both warpgroups read, one the ring of tokens of either, on into the next tile while a tile's logits are
 * finished. Warpgroup 0 begins a tile some steps ahead, so that its finishing and the other one's last steps run beside each other, as do its first
 * steps and the other one's finishing. */
#include "ops/cuda/kernels/sm90.cuh"

/* One lane a warp gives a stage back; PAIR: to the threads of both blocks that fill it. */
template <bool PAIR, int N> DGC_FN void give_back(const struct ring<N> &r, int stage, unsigned rank) {
    ring_release(r, stage);
    if (PAIR && (threadIdx.x & 31) == 0)
        dg_bar_arrive_at(r.empty + stage * 8, rank ^ 1);
}

#define IDS 256  /* of a tile */
#define HALF DGC_HEAD_HALF
#define BRING_REGS 40 /* of a thread; */
#define TAKE_REGS 232 /* with two warpgroups of these 504, three times what the launch gives */
#define ID_STAGES DGC_HEAD_ID_STAGES
#define TOKEN_STAGES DGC_HEAD_TOKEN_STAGES
#define ID_STAGE (IDS * 128)  /* bytes of a stage: 64 of k of a tile's ids, */
#define TOKEN_STAGE (64 * 128) /* of a warpgroup's tokens */
#define AT_TOKENS (ID_STAGES * ID_STAGE)
#define AT_LEAD (AT_TOKENS + 2 * TOKEN_STAGES * TOKEN_STAGE) /* a barrier: warpgroup 0 is LEAD steps into the tile */
#define AT_RINGS (AT_LEAD + 16)
static_assert(AT_RINGS + 16 * ID_STAGES + 2 * 16 * TOKEN_STAGES <= DGC_HEAD_SHARED, "shared memory of the head");
#define LEAD 2 /* more would leave the ring of ids too few stages to fill ahead of warpgroup 0 */
/* The barrier's parity tells one tile from the next but not from the one behind, so the ring must not hold a whole tile. */
#define LEADS(steps) ((steps) > ID_STAGES)

/* Stands for the logit of an id that is none: below every other, and its probability is 0 without a special case. */
#define NO_LOGIT (-1e30f)

DGC_FN struct ring<ID_STAGES> ring_of_ids(void) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS;
    return {bars, bars + 8 * ID_STAGES, base, 0, 0};
}
DGC_FN struct ring<TOKEN_STAGES> ring_of_tokens(int wg) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS + 16 * ID_STAGES + wg * 16 * TOKEN_STAGES;
    return {bars, bars + 8 * TOKEN_STAGES, base + AT_TOKENS + wg * TOKEN_STAGES * TOKEN_STAGE, 0, 0};
}

/* Which tiles a block walks, and whose tokens: from the token-th on. */
struct walk {
    int first, step, tiles, steps, token;
};

/* Ids of a tile by quads of four: map 0 has the first two of each, map 1 the others. Nothing in a pass writes them, so they come before what the
 * launch before this one leaves. */
template <bool PAIR> DGC_FN void bring_ids(const struct dgc_head_sm90_args &a, const struct walk &w, unsigned rank) {
    uint64_t once = dg_policy_first();
    struct ring<ID_STAGES> r = ring_of_ids();
    for (int tile = w.first; tile < w.tiles; tile += w.step)
        for (int k = 0; k < w.steps; k++) {
            unsigned full = r.full + r.s * 8, to = r.base + r.s * ID_STAGE;
            dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
            dg_bar_expect(full, ID_STAGE);
            if (PAIR) {
                dg_tma_load3_both(to + rank * (ID_STAGE / 2), a.w + rank, k * 64, 0, tile * (IDS / 4), full, once);
            } else {
                dg_tma_load3(to, a.w, k * 64, 0, tile * (IDS / 4), full, once);
                dg_tma_load3(to + ID_STAGE / 2, a.w + 1, k * 64, 0, tile * (IDS / 4), full, once);
            }
            ring_next(r);
        }
}
DGC_FN void bring_tokens(const struct dgc_head_sm90_args &a, const struct walk &w, int wg) {
    uint64_t keep = dg_policy_last();
    struct ring<TOKEN_STAGES> r = ring_of_tokens(wg);
    dgc_chain();
    for (int tile = w.first; tile < w.tiles; tile += w.step)
        for (int k = 0; k < w.steps; k++) {
            dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
            dg_bar_expect(r.full + r.s * 8, TOKEN_STAGE);
            dg_tma_load(r.base + r.s * TOKEN_STAGE, &a.x, k * 64, w.token + wg * 64, r.full + r.s * 8, keep);
            ring_next(r);
        }
}

/* acc += a tile's products. The last stage is given back inside the loop: behind it the compiler would put that off among what becomes of the
 * sums. */
template <bool PAIR>
DGC_FN void tile_products(float (&acc)[128], int steps, struct ring<ID_STAGES> &ids, struct ring<TOKEN_STAGES> &tokens, int wg, unsigned rank) {
    int last_ids = 0, last_tokens = 0;
    for (int k = 0; k < steps; k++) {
        dg_bar_wait(tokens.full + tokens.s * 8, tokens.phase);
        dg_bar_wait(ids.full + ids.s * 8, ids.phase);
        unsigned a = dg_desc_sw128(tokens.base + tokens.s * TOKEN_STAGE), b = dg_desc_sw128(ids.base + ids.s * ID_STAGE);
        dg_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            dg_wgmma_ss(acc, a + 2 * i, b + 2 * i);
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (k > 0) {
            ring_release(tokens, last_tokens);
            give_back<PAIR>(ids, last_ids, rank);
        }
        if (k == LEAD && wg == 0 && (threadIdx.x & 31) == 0)
            dg_bar_arrive(dg_smem(dg_dyn) + AT_LEAD);
        last_ids = ids.s;
        last_tokens = tokens.s;
        if (k == steps - 1) {
            dg_wgmma_wait<0>();
            ring_release(tokens, last_tokens);
            give_back<PAIR>(ids, last_ids, rank);
        }
        ring_next(ids);
        ring_next(tokens);
    }
    dg_wgmma_wait<0>();
    dg_hold(acc);
}

/* cap * tanh(z / cap); what is not finite stays so. Where exp overflows, the reciprocal is 0 and the result the cap. */
struct cap {
    float cap, twice, two_over;
};
DGC_FN float soft_cap(float z, const struct cap &c) {
    float e = dg_exp2(z * c.two_over * LOG2E), r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    float y = fmaf(-c.twice, r, c.cap);
    return fabsf(z) < DGC_INF ? y : z;
}

/* Over the four lanes that hold a token. */
DGC_FN float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

/* Sum c of quad i of row r (see finish). */
DGC_FN constexpr int sum_at(int i, int r, int c) { return 4 * i + 2 * r + (c >> 1) * 64 + (c & 1); }

/* Ids behind the vocabulary's end, of whose tile there are `left`: they count for nothing. The largest logits anew. */
template <int T> DGC_FN void cut_tile(float (&acc)[128], float (&top)[2], int left) {
    top[0] = top[1] = NO_LOGIT;
#pragma unroll
    for (int i = 8 * T; i < 8 * T + 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float &v = acc[sum_at(i, j >> 2, j & 3)];
            v = 16 * i + 4 * ((int)threadIdx.x & 3) < left ? v : NO_LOGIT;
            top[j >> 2] = fmaxf(top[j >> 2], v);
        }
}

/* Logits and statistics of the warp's 16 tokens and the tile's T-th 128 ids; the sums are zeros afterwards. Row r of the lane is token + 8 r; quad
 * i of its ids begins at id 16 i + 4 (lane & 3) of the tile. left: ids from the tile's first to the vocabulary's end. */
template <int T>
DGC_FN void finish(float (&acc)[128], const struct dgc_head_sm90_args &a, const struct cap &cap, float scale, int tile, int token, int left) {
    int q = (int)threadIdx.x & 3;
    float top[2] = {-DGC_INF, -DGC_INF}, sum[2] = {0, 0}, moment[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *to = a.logits + (token + 8 * r) * a.ld + tile * IDS + 4 * q;
        int end = token + 8 * r < a.rows ? left - 4 * q : 0;
#pragma unroll
        for (int i = 8 * T; i < 8 * T + 8; i++) {
            float y[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                y[c] = acc[sum_at(i, r, c)] = soft_cap(acc[sum_at(i, r, c)], cap);
            if (16 * i < end)
                *(float4 *)(to + 16 * i) = make_float4(y[0], y[1], y[2], y[3]);
            top[r] = fmaxf(top[r], fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3])));
        }
    }
    if (left < IDS)
        cut_tile<T>(acc, top, left);
#pragma unroll
    for (int r = 0; r < 2; r++)
        top[r] = quad_max(top[r]);
#pragma unroll
    for (int i = 8 * T; i < 8 * T + 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int r = j >> 2;
            float &v = acc[sum_at(i, r, j & 3)], d = (v - top[r]) * scale, e = dg_exp2(d);
            sum[r] += e;
            moment[r] = fmaf(e, d, moment[r]);
            v = 0.0f;
        }
    int64_t all = (a.vocab + DGC_STATS_TILE - 1) / DGC_STATS_TILE;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = quad_sum(sum[r]);
        moment[r] = quad_sum(moment[r]);
        if (q == r && token + 8 * r < a.rows && T * DGC_STATS_TILE < left)
            ((float4 *)a.partial)[(token + 8 * r) * all + 2 * tile + T] = make_float4(top[r], sum[r], moment[r] * (float)(1 / LOG2E), 0.0f);
    }
}

template <bool PAIR> DGC_FN void take_tiles(const struct dgc_head_sm90_args &a, const struct walk &w, int wg, unsigned rank) {
    struct ring<ID_STAGES> ids = ring_of_ids();
    struct ring<TOKEN_STAGES> tokens = ring_of_tokens(wg);
    const struct cap cap = {a.cap, 2.0f * a.cap, 2.0f / a.cap};
    int token = w.token + wg * 64 + (int)(threadIdx.x >> 5 & 3) * 16 + (int)(threadIdx.x >> 2 & 7);
    float acc[128];
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0.0f;
    dgc_chain();
    float scale = a.prm->inv_t_head * LOG2E;
    unsigned parity = 0;
    for (int tile = w.first; tile < w.tiles; tile += w.step, parity ^= 1) {
        int left = a.vocab - tile * IDS;
        if (wg == 1 && LEADS(w.steps))
            dg_bar_wait(dg_smem(dg_dyn) + AT_LEAD, parity);
        tile_products<PAIR>(acc, w.steps, ids, tokens, wg, rank);
        finish<0>(acc, a, cap, scale, tile, token, left);
        finish<1>(acc, a, cap, scale, tile, token, left);
    }
}

template <bool PAIR> DGC_FN void head_body(const struct dgc_head_sm90_args &a) {
    constexpr int halves = PAIR ? 2 : 1;
    int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);
    unsigned rank = dg_pair_rank(); /* of a single block too: where the compiler knows its tokens it spills */
    const struct walk w = {(int)blockIdx.x / halves, (int)gridDim.x / halves, (a.vocab + IDS - 1) / IDS, (a.k + 63) / 64, (int)rank * HALF};
    if (threadIdx.x == 0) {
        ring_init(ring_of_ids(), PAIR ? 16 : 8);
        ring_init(ring_of_tokens(0), 4);
        ring_init(ring_of_tokens(1), 4);
        dg_bar_init(dg_smem(dg_dyn) + AT_LEAD, 4);
        dg_bar_init_fence();
    }
    __syncthreads();
    if (PAIR)
        dg_pair_sync();
    if (wg < 2) {
        dg_regs_more<TAKE_REGS>();
        take_tiles<PAIR>(a, w, wg, rank);
    } else {
        dg_regs_less<BRING_REGS>();
        int who = (int)(threadIdx.x >> 5) - 8;
        if ((threadIdx.x & 31) == 0) {
            if (who == 0)
                bring_ids<PAIR>(a, w, rank);
            else if (who < 3)
                bring_tokens(a, w, who - 1);
        }
        __syncwarp();
    }
    if (PAIR) /* the other block may still fill this one's stages or give its own back here */
        dg_pair_sync();
}

DGC_KERNEL_ONE(head_sm90, head_sm90, 384) { head_body<false>(a); }
DGC_KERNEL_PAIR(head_sm90_pair, head_sm90, 384) { head_body<true>(a); }

#define STAT_THREADS 256
#define STAT_LOADS 8

/* What a thread takes of a row's partial statistics from one on; those that are none count for nothing. */
DGC_FN void load_partials(float4 (&v)[STAT_LOADS], const float4 *part, int from, int tiles) {
#pragma unroll
    for (int j = 0; j < STAT_LOADS; j++)
        v[j] = from + j * STAT_THREADS < tiles ? part[from + j * STAT_THREADS] : make_float4(-DGC_INF, 0.0f, 0.0f, 0.0f);
}

/* The row's largest logit and the first tile that holds it, to every thread. */
DGC_FN float row_top(const float4 *part, int tiles, int *tile) {
    __shared__ uint32_t keys[STAT_THREADS / 32];
    __shared__ uint32_t firsts[STAT_THREADS / 32];
    float4 v[STAT_LOADS];
    float top = -DGC_INF;
    uint32_t first = threadIdx.x;
    for (int from = threadIdx.x; from < tiles; from += STAT_LOADS * STAT_THREADS) {
        load_partials(v, part, from, tiles);
#pragma unroll
        for (int j = 0; j < STAT_LOADS; j++)
            if (v[j].x > top) {
                top = v[j].x;
                first = from + j * STAT_THREADS;
            }
    }
    uint32_t key = dgc_key_of(top), most = __reduce_max_sync(0xffffffffu, key);
    first = __reduce_min_sync(0xffffffffu, key == most ? first : 0xffffffffu);
    if ((threadIdx.x & 31) == 0) {
        keys[threadIdx.x >> 5] = most;
        firsts[threadIdx.x >> 5] = first;
    }
    __syncthreads();
    most = keys[0];
    first = firsts[0];
#pragma unroll
    for (int i = 1; i < STAT_THREADS / 32; i++)
        if (keys[i] > most || (keys[i] == most && firsts[i] < first)) {
            most = keys[i];
            first = firsts[i];
        }
    *tile = (int)first;
    return dgc_of_key(most);
}

/* The first id of a tile whose logit is this. One warp. */
DGC_FN int first_id(const float *row, int tile, int vocab, float logit) {
    int lane = threadIdx.x & 31, from = tile * DGC_STATS_TILE, id = from;
    float v[DGC_STATS_TILE / 32];
#pragma unroll
    for (int j = 0; j < DGC_STATS_TILE / 32; j++)
        v[j] = from + 32 * j + lane < vocab ? row[from + 32 * j + lane] : NO_LOGIT;
#pragma unroll
    for (int j = DGC_STATS_TILE / 32 - 1; j >= 0; j--) {
        unsigned same = __ballot_sync(0xffffffffu, v[j] == logit);
        id = same ? from + 32 * j + __ffs(same) - 1 : id;
    }
    return id;
}

/* Row statistics from the tiles'. One block a row. */
DGC_KERNEL(head_stats, head_stats, STAT_THREADS) {
    __shared__ float sums[STAT_THREADS / 32], moments[STAT_THREADS / 32];
    const float4 *part = (const float4 *)a.partial + (int64_t)blockIdx.x * a.tiles;
    float inv_t = a.prm->inv_t_head, sum = 0, moment = 0;
    int tile, id = 0;
    float top = row_top(part, a.tiles, &tile);
    if (threadIdx.x < 32)
        id = first_id(a.logits + blockIdx.x * a.ld, tile, a.vocab, top);
    for (int from = threadIdx.x; from < a.tiles; from += STAT_LOADS * STAT_THREADS) {
        float4 v[STAT_LOADS];
        load_partials(v, part, from, a.tiles);
#pragma unroll
        for (int j = 0; j < STAT_LOADS; j++)
            if (from + j * STAT_THREADS < a.tiles) {
                float d = (v[j].x - top) * inv_t, w = __expf(d);
                sum += w * v[j].y;
                moment += w * (v[j].z + d * v[j].y);
                if (a.tile_max)
                    a.tile_max[(int64_t)blockIdx.x * a.tiles + from + j * STAT_THREADS] = v[j].x;
            }
    }
    sum = dgc_block_sum(sum, sums, STAT_THREADS / 32);
    moment = dgc_block_sum(moment, moments, STAT_THREADS / 32);
    if (threadIdx.x == 0) {
        float h = logf(sum) - moment / sum;
        a.entropy[blockIdx.x] = h < 0 ? 0 : h;
        a.max[blockIdx.x] = top * inv_t;
        a.sum[blockIdx.x] = sum;
        a.p_max[blockIdx.x] = 1.0f / sum;
        a.argmax[blockIdx.x] = id;
    }
}
