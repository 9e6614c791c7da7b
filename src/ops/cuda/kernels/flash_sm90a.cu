/* Flash attention on Hopper: f16 keys and values, f32 scores and sums, f16 queries and probabilities, as flash.cu has it. One or two
 * threads bring tiles of 64 keys that begin at multiples of 64 through rings; two warpgroups compute. A row's arithmetic depends on its own
 * position alone. Heads of 256 dimensions; flash_full_sm90a.cu has those of 512.
 *
 * flash_sm90_256: a block takes 128 query rows of one kv head (rows times the heads that share it), a strip of 64 to each warpgroup. A row is cut
 * into parts of a fixed number of keys at multiples of it.
 * flash_sm90_256_canvas: the rows of a canvas are few and see the same keys, so four warpgroups, two in each block of a pair, have the same 64 rows
 * and every fourth tile of keys each, by where it lies. A warpgroup's first 64 columns of values are those it finishes, so its values are brought in
 * an order of their own (column ^ its number, in 64s): the four meet first in a block, then across the pair, and no sums change their registers. No
 * parts. */
#include "ops/cuda/kernels/flash_sm90.cuh"

#define STAGES DGC_FLASH_STAGES

/* Stages of one ring as the copy engine fills them: a tile's keys come before the values of the one before. turn: of the values' columns. */
template <int N> DGC_FN void fill(const struct dgc_flash_sm90_args &a, const struct span &b, struct ring<N> r, int kvh, int turn = 0) {
    uint64_t keep = dg_policy_last();
    auto load = [&](const struct dgc_tmap *map, int i, int turned) {
        ring_fill(r, map, (int)dgc_slot(&a.f.kv, b.t0 + (int64_t)i * KEYS), kvh * 4, keep, turned);
    };
    if (b.first < b.tiles)
        load(&a.k, b.first, 0);
#pragma unroll 1
    for (int i = b.first; i < b.tiles; i += b.step) {
        if (i + b.step < b.tiles)
            load(&a.k, i + b.step, 0);
        load(&a.v, i, turn);
    }
}

/* The stage of tile i's values, ready; SHARERS threads read it. */
template <int SHARERS, int N> DGC_FN int take_values(struct ring<N> &r, int wg, int i, const struct span &b) {
    int stage = r.s;
    dg_bar_wait(r.full + stage * 8, r.phase);
    ring_next(r);
    int64_t t = b.t0 + (int64_t)i * KEYS;
    if (t < b.lo || t + KEYS > b.hi) {
        int from = t < b.lo ? (int)(b.lo - t) : 0, to = t + KEYS > b.hi ? (int)(b.hi - t) : KEYS;
        clear_unseen(dg_dyn + (r.base - dg_smem(dg_dyn)) + stage * STAGE, from, to, threadIdx.x & (SHARERS - 1), SHARERS);
        dg_fence_async();
        dg_sync_some<SHARERS>(SHARERS == 256 ? 1 : 2 + wg);
    }
    return stage;
}

/* A warpgroup's sums over its tiles: acc of probabilities times 256 columns of values. The next tile's scores are begun before this one's
 * probabilities meet the values. */
template <int ROWS, int SHARERS, int N>
DGC_FN void sweep(float (&acc)[128], struct rows &rows, unsigned q, struct ring<N> &r, int wg, const struct span &b) {
    float s[32], scale[2];
    unsigned p[4][4];
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0.0f;
    if (b.first < b.tiles) {
        int k = begin_scores<ROWS>(s, q, r);
        dg_wgmma_wait<0>();
        dg_hold(s);
        ring_release(r, k);
        softmax(rows, b.first * KEYS, s, scale);
        pack(s, p);
    }
    for (int i = b.first; i < b.tiles; i += b.step) {
        if (i + b.step < b.tiles) {
            int k = begin_scores<ROWS>(s, q, r), v = take_values<SHARERS>(r, wg, i, b);
            begin_values(acc, p, r.base + v * STAGE);
            dg_wgmma_wait<1>();
            dg_hold(s);
            ring_release(r, k);
            softmax(rows, (i + b.step) * KEYS, s, scale);
            dg_wgmma_wait<0>();
            dg_hold(acc);
            ring_release(r, v);
            rescale(acc, scale);
            pack(s, p);
            continue;
        }
        int v = take_values<SHARERS>(r, wg, i, b);
        begin_values(acc, p, r.base + v * STAGE);
        dg_wgmma_wait<0>();
        dg_hold(acc);
        ring_release(r, v);
    }
    rows.sum[0] = quad_sum(rows.sum[0]);
    rows.sum[1] = quad_sum(rows.sum[1]);
}

DGC_FN void flash90(const struct dgc_flash_sm90_args &a) {
    constexpr int ROWS = DGC_FLASH_ROWS_SM90(256);
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + ROWS - 1) / ROWS;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * ROWS, u_end = u0 + ROWS < units ? u0 + ROWS : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31;
    unsigned base = dg_smem(dg_dyn) + ROWS * 512, full = base + STAGES * STAGE;
    struct ring<STAGES> r = {full, full + STAGES * 8, base, 0, 0};
    if (threadIdx.x == 0) {
        ring_init(r, 8);
        dg_bar_init_fence();
    }
    __syncthreads();
    dgc_chain();
    struct span b = span_of(f, u0, u_end, group);

    if (wg == 2) {
        dg_regs_less<40>();
        if (threadIdx.x == 256)
            fill(a, b, r, kvh);
        return;
    }
    dg_regs_more<232>();
    int strip = wg * 64, row0 = u0 + strip + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    struct rows rows;
    rows_see(rows, f, row0, u_end, group, b.lo, b.hi, b.t0);
    dg_load_queries<256, ROWS, 256>(dg_queries_of<256, 256>(f, kvh, u0), u0, u_end, dg_dyn);
    dg_fence_async();
    dg_sync_some<256>(1);
    float acc[128];
    sweep<ROWS, 256>(acc, rows, dg_desc_sw128(dg_smem(dg_dyn) + strip * 128), r, wg, b);

    put_stat(f, rows, kvh, row0, u_end, group);
    put_columns<256>(f, acc, rows.sum, kvh, row0, u_end, group, 0);
}

/* Where a warpgroup of flash_sm90_256_canvas leaves half of its sums for the other one of its block, in stages of its own ring that nobody reads
 * any more: 16 groups of 8 columns and a row's maxima and sums, 16 bytes a thread each. Behind it, what its like in the other block sends: 8
 * groups and the same. */
#define SENT (9 * 128 * 16)
#define AT_SENT (2 * STAGE)
static_assert(17 * 128 * 16 <= AT_SENT && AT_SENT + SENT <= DGC_FLASH_STAGES_CANVAS * STAGE, "a ring's stages hold what is left and sent");

/* Joins what four warpgroups have of the same rows, in the 64 columns that are this one's, and divides by the rows' sums. Its sums begin with these;
 * the second 64 are those of its like in the other block, then come those of the other one here and of its like. stages: its ring's, other: of the
 * other one here; clear and sent: barriers. */
DGC_FN void meet(float (&acc)[128], struct rows &rows, int wg, unsigned rank, unsigned char *stages, const unsigned char *other, unsigned clear,
                 unsigned sent) {
    int t = threadIdx.x & 127;
    float mine[2], theirs[2];
    float4 *give = (float4 *)stages + t;
    const float4 *take = (const float4 *)other + t;
    __syncwarp();
    if ((t & 31) == 0) /* this warp reads no stage any more */
        dg_bar_arrive_at(clear, rank ^ 1);
    dg_sync_some<128>(2 + wg); /* nor does any of this warpgroup */
#pragma unroll
    for (int n = 0; n < 16; n++)
        give[n * 128] = make_float4(acc[64 + 4 * n], acc[64 + 4 * n + 1], acc[64 + 4 * n + 2], acc[64 + 4 * n + 3]);
    give[16 * 128] = make_float4(rows.max[0], rows.max[1], rows.sum[0], rows.sum[1]);
    dg_sync_some<256>(1);
    join_rows(rows, take[16 * 128], mine, theirs);
    join_columns<8, 8>(acc, take, mine, theirs);
    unsigned to = dg_place_at(dg_smem(give) + AT_SENT, rank ^ 1), bar = dg_place_at(sent, rank ^ 1);
    dg_bar_wait(clear, 0);
#pragma unroll
    for (int n = 0; n < 8; n++)
        dg_send(to + n * 2048, acc[32 + 4 * n], acc[32 + 4 * n + 1], acc[32 + 4 * n + 2], acc[32 + 4 * n + 3], bar);
    dg_send(to + 8 * 2048, rows.max[0], rows.max[1], rows.sum[0], rows.sum[1], bar);
    join_columns<0, 8>(acc, take, mine, theirs);
    dg_bar_wait(sent, 0);
    take = (const float4 *)(stages + AT_SENT) + t;
    join_rows(rows, take[8 * 128], mine, theirs);
    last_join(rows, mine, theirs);
    join_columns<0, 8>(acc, take, mine, theirs);
}

DGC_FN void flash90_canvas(const struct dgc_flash_sm90_args &a) {
    constexpr int ROWS = DGC_FLASH_ROWS_CANVAS, N = DGC_FLASH_STAGES_CANVAS;
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + ROWS - 1) / ROWS, tile = (int)(blockIdx.x >> 1);
    int kvh = tile / q_tiles, u0 = (tile - kvh * q_tiles) * ROWS, u_end = u0 + ROWS < units ? u0 + ROWS : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31;
    unsigned rank = dg_pair_rank(), base = dg_smem(dg_dyn) + ROWS * 512, bars = base + 2 * N * STAGE, meets = bars + 2 * 16 * N;
    auto ring_of = [&](int w) {
        return ring<N>{bars + w * 16 * N, bars + w * 16 * N + 8 * N, base + w * N * STAGE, 0, 0};
    };
    if (threadIdx.x == 0) {
        for (int w = 0; w < 2; w++) {
            ring_init(ring_of(w), 4);
            dg_bar_init(meets + w * 16, 4);
            dg_bar_init(meets + w * 16 + 8, 1);
        }
        dg_bar_init_fence();
        for (int w = 0; w < 2; w++)
            dg_bar_expect(meets + w * 16 + 8, SENT);
    }
    struct dg_queries q = dg_queries_of<256, 256>(f, kvh, u0);
    __syncthreads();
    dg_pair_arrive(threadIdx.x == 0);
    if (wg == 2) {
        dg_regs_less<40>();
        int w = (int)(threadIdx.x >> 5) - 8;
        if (lane == 0 && w < 2) {
            dg_tma_ahead(&a.k);
            dg_tma_ahead(&a.v);
        }
        dgc_chain();
        if (lane == 0 && w < 2)
            fill(a, span_of_canvas(f, 4, 2 * w + (int)rank), ring_of(w), kvh, 2 * w + (int)rank);
        __syncwarp();
        dg_pair_wait();
        return;
    }
    dg_regs_more<232>();
    dgc_chain();
    dg_load_queries<256, ROWS, 256>(q, u0, u_end, dg_dyn);
    struct span b = span_of_canvas(f, 4, 2 * wg + (int)rank);
    struct rows rows;
    rows_see_all(rows, b);
    dg_pair_wait();
    dg_fence_async();
    dg_sync_some<256>(1);
    float acc[128];
    struct ring<N> r = ring_of(wg);
    sweep<ROWS, 128>(acc, rows, dg_desc_sw128(dg_smem(dg_dyn)), r, wg, b);
    unsigned char *stages = dg_dyn + ROWS * 512;
    meet(acc, rows, wg, rank, stages + wg * N * STAGE, stages + (1 - wg) * N * STAGE, meets + wg * 16, meets + wg * 16 + 8);
    put_joined<2>(f, acc, kvh, u0 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2), u_end, group, (2 * wg + (int)rank) * 64);
}

DGC_KERNEL_ONE(flash_sm90_256, flash_sm90, 384) { flash90(a); }
DGC_KERNEL_PAIR(flash_sm90_256_canvas, flash_sm90, 384) { flash90_canvas(a); }
