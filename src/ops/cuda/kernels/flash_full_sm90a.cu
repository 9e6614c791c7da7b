/* Flash attention over 512 dimensions on Hopper: types, tiles of keys, parts and the order of a row's sums as flash_sm90_256 has them.
 *
 * flash_sm90_512: a block takes 64 query rows of one kv head. Warpgroup 0 makes the scores of a tile of 64 keys, three quarters of its queries in
 * registers, and leaves their probabilities in shared memory as f16; warpgroups 1 and 2 multiply these with 256 columns of values each; three
 * threads of warpgroup 3 fill a ring each, of keys and of either half of the values. No ring has users that take its stages in turn.
 *
 * Tensor cores work for the scores of tile i + 1, then for the values of tile i while the probabilities of tile i + 1 are made: values wait until
 * these scores are there (`go`), or they would take the tensor cores from them and leave them idle behind. What the sums must be multiplied with
 * before comes ahead (`ready`).
 *
 * flash_sm90_512_canvas: the two blocks of a pair have the same rows and every other tile of keys each, by where it lies. A warpgroup's first 128
 * columns of values are those it finishes, so its values are brought in an order of their own; it sends its sums of the others to its like in the
 * other block. No parts. */
#include "ops/cuda/kernels/flash_sm90.cuh"

#define SCORE_REGS 160 /* of a thread of each kind: those of four warpgroups make 512 */
#define VALUE_REGS 160
#define BRING_REGS 32
#define BOX 8192 /* bytes of 64 keys by 64 dimensions, what a copy brings; and of a tile's probabilities */
#define KEY_STAGES DGC_FLASH_STAGES_KEYS
#define KEY_BOXES 2   /* of a stage of keys */
#define VALUE_BOXES 4 /* of a stage of values */
#define VALUE_STAGES 2
#define STEPS 24 /* of the 32 of 16 dimensions in a score, whose queries are in registers */

/* Where what lies in shared memory: two buffers of probabilities, queries, stages, two of rows' factors, the rows' maxima and sums, barriers. */
#define AT_QUERIES (2 * BOX)
#define AT_KEYS (AT_QUERIES + 2 * BOX)
#define AT_VALUES (AT_KEYS + KEY_STAGES * KEY_BOXES * BOX)
#define AT_FACTOR (AT_VALUES + 2 * VALUE_STAGES * STAGE)
#define AT_SUM (AT_FACTOR + 2 * 256)
#define AT_THEIRS (AT_SUM + 512)   /* those of the other block */
#define AT_READY (AT_THEIRS + 512) /* of either buffer: factors and probabilities are there, */
#define AT_GO (AT_READY + 16)      /* values may be multiplied, */
#define AT_TAKEN (AT_GO + 16)      /* they were */
#define AT_DONE (AT_TAKEN + 16)    /* the rows' sums are there */
#define AT_STAT (AT_DONE + 8)      /* those of the other block are */
#define AT_CLEAR (AT_DONE + 16)    /* of either half of the values: the other block reads none any more, */
#define AT_SENT (AT_CLEAR + 16)    /* and its sums are here */
#define AT_RINGS (AT_SENT + 16)
static_assert(AT_RINGS + 16 * KEY_STAGES + 2 * 16 * VALUE_STAGES <= DGC_FLASH_512_SHARED, "shared memory of flash_sm90_512");

DGC_FN struct ring<KEY_STAGES> ring_of_keys(void) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS;
    return {bars, bars + 8 * KEY_STAGES, base + AT_KEYS, 0, 0};
}
DGC_FN struct ring<VALUE_STAGES> ring_of_values(int half) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS + 16 * KEY_STAGES + half * 16 * VALUE_STAGES;
    return {bars, bars + 8 * VALUE_STAGES, base + AT_VALUES + half * VALUE_STAGES * STAGE, 0, 0};
}

/* The thread that fills a ring: a stage of BOXES times 64 dimensions, from the z-th 64 on, of the 64 keys at a slot; the i-th are the (i ^ turn)-th
 * of them. */
template <int BOXES, int N> DGC_FN void bring(struct ring<N> &r, const struct dgc_tmap *map, int slot, int z, uint64_t keep, int turn) {
    unsigned full = r.full + r.s * 8, to = r.base + r.s * BOXES * BOX;
    dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
    dg_bar_expect(full, BOXES * BOX);
#pragma unroll
    for (int i = 0; i < BOXES; i++)
        dg_tma_load(to + i * BOX, map, (z + (i ^ turn)) * 64, slot, full, keep);
    ring_next(r);
}
/* Where the block's next tile lies; a ring's slots are whole tiles. */
DGC_FN int next_slot(const struct dgc_flash_sm90_args &a, int slot, int step) {
    slot += step * KEYS;
    while (slot >= (int)a.f.kv.slots)
        slot -= (int)a.f.kv.slots;
    return slot;
}

/* who: 0 brings keys, 1 and 2 a half of values, of so many tiles, the first at a slot; z: the first 64 dimensions. */
template <bool CANVAS> DGC_FN void bring_all(const struct dgc_flash_sm90_args &a, int slot, int tiles, int z, int who, unsigned rank) {
    constexpr int STEP = CANVAS ? 2 : 1;
    uint64_t keep = dg_policy_last();
    if (who == 0) {
        struct ring<KEY_STAGES> keys = ring_of_keys();
        for (int i = 0; i < tiles; i++, slot = next_slot(a, slot, STEP))
            for (int j = 0; j < 8; j += KEY_BOXES)
                bring<KEY_BOXES>(keys, &a.k, slot, z + j, keep, 0);
    } else {
        struct ring<VALUE_STAGES> values = ring_of_values(who - 1);
        for (int i = 0; i < tiles; i++, slot = next_slot(a, slot, STEP))
            bring<VALUE_BOXES>(values, &a.v, slot, z + (who - 1) * VALUE_BOXES, keep, CANVAS ? 2 * (int)rank : 0);
    }
}

/* s = the scores of the next tile. */
DGC_FN void tile_scores(float (&s)[32], const unsigned (&q)[STEPS][4], struct ring<KEY_STAGES> &r) {
    unsigned rest = dg_desc_sw128(dg_smem(dg_dyn) + AT_QUERIES);
    int last = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        dg_bar_wait(r.full + r.s * 8, r.phase);
        dg_wgmma_fence();
        unsigned k = dg_desc_sw128(r.base + r.s * KEY_BOXES * BOX);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned at = (i >> 2) * (BOX >> 4) + 2 * (i & 3);
            if (j < STEPS / 8)
                dg_wgmma_rs_f16(s, q[8 * j + i], k + at, j + i > 0);
            else
                dg_wgmma_ss_f16(s, rest + at, k + at, 1);
        }
        dg_wgmma_commit();
        if (j > 0) {
            dg_wgmma_wait<1>();
            ring_release(r, last);
        }
        last = r.s;
        ring_next(r);
    }
    dg_wgmma_wait<0>();
    dg_hold(s);
    ring_release(r, last);
}

/* Probabilities to a buffer, as an A operand of 64 rows by 64 keys lies in shared memory. row: the lane's first one. */
DGC_FN void store_probs(unsigned to, const float (&s)[32], int row) {
    unsigned at = to + dg_sw128(row, 0) + 4 * (threadIdx.x & 3);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            dg_sts((at + r * 1024) ^ (n << 4), dgc_pack_f16(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
}

/* Maxima and sums of rows `row` and `row + 8`. */
DGC_FN float4 *stat_of(int at, int row) { return (float4 *)(dg_dyn + at) + (row >> 4) * 8 + (row & 7); }

/* Warpgroup 0. row: the lane's first of 64. */
template <bool CANVAS>
DGC_FN void score(const struct dgc_flash_args &f, const struct span &b, int kvh, int u0, int u_end, int group, int row, unsigned rank) {
    unsigned q[STEPS][4];
    float s[32], scale[2];
    struct rows rows;
    struct ring<KEY_STAGES> r = ring_of_keys();
    unsigned base = dg_smem(dg_dyn);
    if (CANVAS)
        rows_see_all(rows, b);
    else
        rows_see(rows, f, u0 + row, u_end, group, b.lo, b.hi, b.t0);
    dg_load_queries<512, 64, 128, 16 * STEPS>(dg_queries_of<512, 128, 16 * STEPS>(f, kvh, u0), u0, u_end, dg_dyn + AT_QUERIES);
    dg_query_fragments<512>(q, f, kvh, u0 + row, u_end);
    dg_fence_async();
    dg_sync_some<128>(1);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0.0f;
    if (b.first < b.tiles)
        tile_scores(s, q, r);
    for (int n = 0, i = b.first; i < b.tiles; n++, i += b.step) {
        int at = n & 1;
        softmax(rows, i * KEYS, s, scale);
        dg_bar_wait(base + AT_TAKEN + at * 8, (n >> 1 & 1) ^ 1);
        store_probs(base + at * BOX, s, row);
        if ((threadIdx.x & 3) == 0) {
            dg_sts(base + AT_FACTOR + at * 256 + row * 4, __float_as_uint(scale[0]));
            dg_sts(base + AT_FACTOR + at * 256 + row * 4 + 32, __float_as_uint(scale[1]));
        }
        dg_fence_async();
        dg_arrive_for_warp(base + AT_READY + at * 8);
        if (i + b.step < b.tiles)
            tile_scores(s, q, r);
        dg_arrive_for_warp(base + AT_GO + at * 8);
    }
    rows.sum[0] = quad_sum(rows.sum[0]);
    rows.sum[1] = quad_sum(rows.sum[1]);
    if ((threadIdx.x & 3) == 0) {
        *stat_of(AT_SUM, row) = make_float4(rows.max[0], rows.max[1], rows.sum[0], rows.sum[1]);
        if (CANVAS)
            dg_send(dg_place_at(dg_smem(stat_of(AT_THEIRS, row)), rank ^ 1), rows.max[0], rows.max[1], rows.sum[0], rows.sum[1],
                    dg_place_at(base + AT_STAT, rank ^ 1));
    }
    dg_arrive_for_warp(base + AT_DONE);
    if (!CANVAS)
        put_stat(f, rows, kvh, u0 + row, u_end, group);
}

/* Warpgroup 1 + half: acc = probabilities of the block's so many tiles times its 256 columns of values. [lo, hi): keys the block sees, counted from
 * the first of them. */
template <bool CANVAS> DGC_FN void take(float (&acc)[128], int tiles, int lo, int hi, int half, int row) {
    constexpr int STEP = (CANVAS ? 2 : 1) * KEYS;
    float scale[2];
    struct ring<VALUE_STAGES> r = ring_of_values(half);
    unsigned base = dg_smem(dg_dyn);
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0.0f;
    for (int i = 0; i < tiles; i++) {
        int at = i & 1, parity = i >> 1 & 1;
        dg_bar_wait(base + AT_READY + at * 8, parity);
        scale[0] = __int_as_float(dg_lds(base + AT_FACTOR + at * 256 + row * 4));
        scale[1] = __int_as_float(dg_lds(base + AT_FACTOR + at * 256 + row * 4 + 32));
        rescale(acc, scale);
        dg_bar_wait(r.full + r.s * 8, r.phase);
        unsigned v = r.base + r.s * STAGE;
        if (i * STEP < lo || i * STEP + KEYS > hi) {
            clear_unseen(dg_dyn + (v - base), lo - i * STEP, hi - i * STEP, threadIdx.x & 127, 128);
            dg_fence_async();
            dg_sync_some<128>(2 + half);
        }
        dg_bar_wait(base + AT_GO + at * 8, parity);
        unsigned p = dg_desc_sw128(base + at * BOX), d = dg_desc_rows64(v);
        dg_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            dg_wgmma_ss_f16_rows(reinterpret_cast<float(&)[64]>(acc[0]), p + 2 * k, d + k * 128);
            dg_wgmma_ss_f16_rows(reinterpret_cast<float(&)[64]>(acc[64]), p + 2 * k, d + k * 128 + 2 * (BOX >> 4));
        }
        dg_wgmma_commit();
        dg_wgmma_wait<0>();
        dg_hold(acc);
        ring_release(r, r.s);
        if ((threadIdx.x & 31) == 0)
            dg_bar_arrive(base + AT_TAKEN + at * 8);
        ring_next(r);
    }
    dg_bar_wait(base + AT_DONE, 0);
}

/* The first 64 of its sums joined with what its like in the other block has of them, and divided by the rows' sums; the other 64 go there, to values'
 * stages that nobody reads any more. */
DGC_FN void meet(float (&acc)[128], int half, int row, unsigned rank) {
    unsigned base = dg_smem(dg_dyn), t = threadIdx.x & 127, at = AT_VALUES + half * VALUE_STAGES * STAGE + t * 16;
    unsigned clear = base + AT_CLEAR + half * 8, sent = base + AT_SENT + half * 8;
    float mine[2], theirs[2];
    __syncwarp();
    if ((t & 31) == 0)
        dg_bar_arrive_at(clear, rank ^ 1);
    unsigned to = dg_place_at(base + at, rank ^ 1), bar = dg_place_at(sent, rank ^ 1);
    dg_bar_wait(clear, 0);
#pragma unroll
    for (int n = 0; n < 16; n++)
        dg_send(to + n * 2048, acc[64 + 4 * n], acc[64 + 4 * n + 1], acc[64 + 4 * n + 2], acc[64 + 4 * n + 3], bar);
    dg_bar_wait(base + AT_STAT, 0);
    float4 own = *stat_of(AT_SUM, row);
    struct rows rows = {{0, 0}, {0, 0}, {own.x, own.y}, {own.z, own.w}};
    join_rows(rows, *stat_of(AT_THEIRS, row), mine, theirs);
    last_join(rows, mine, theirs);
    dg_bar_wait(sent, 0);
    join_columns<0, 16>(acc, (const float4 *)(dg_dyn + at), mine, theirs);
}

DGC_FN void make_barriers(void) {
    unsigned base = dg_smem(dg_dyn);
    for (int i = 0; i < 2; i++) {
        dg_bar_init(base + AT_READY + i * 8, 4);
        dg_bar_init(base + AT_GO + i * 8, 4);
        dg_bar_init(base + AT_TAKEN + i * 8, 8);
        ring_init(ring_of_values(i), 4);
        dg_bar_init(base + AT_CLEAR + i * 8, 4);
        dg_bar_init(base + AT_SENT + i * 8, 1);
    }
    dg_bar_init(base + AT_DONE, 4);
    dg_bar_init(base + AT_STAT, 1);
    ring_init(ring_of_keys(), 4);
    dg_bar_init_fence();
    dg_bar_expect(base + AT_STAT, 32 * 16);
    for (int i = 0; i < 2; i++)
        dg_bar_expect(base + AT_SENT + i * 8, 16 * 128 * 16);
}

template <bool CANVAS> DGC_FN void flash90_full(const struct dgc_flash_sm90_args &a) {
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + 63) / 64, tile = (int)blockIdx.x >> CANVAS;
    int kvh = tile / q_tiles, u0 = (tile - kvh * q_tiles) * 64, u_end = u0 + 64 < units ? u0 + 64 : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), row = (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7);
    unsigned rank = CANVAS ? dg_pair_rank() : 0;
    if (threadIdx.x == 0)
        make_barriers();
    if (threadIdx.x == 384) {
        dg_tma_ahead(&a.k);
        dg_tma_ahead(&a.v);
    }
    __syncthreads();
    if (CANVAS) {
        dg_pair_arrive(threadIdx.x == 0);
        dg_pair_wait();
    }
    dgc_chain();
    struct span b = CANVAS ? span_of_canvas(f, 2, (int)rank) : span_of(f, u0, u_end, group);
    int tiles = (b.tiles - b.first + b.step - 1) / b.step; /* of this block */
    if (wg == 0) {
        dg_regs_more<SCORE_REGS>();
        score<CANVAS>(f, b, kvh, u0, u_end, group, row, rank);
    } else if (wg < 3) {
        float acc[128];
        int t0 = b.first * KEYS;
        dg_regs_more<VALUE_REGS>();
        take<CANVAS>(acc, tiles, (int)(b.lo - b.t0) - t0, (int)(b.hi - b.t0) - t0, wg - 1, row);
        if (CANVAS) {
            meet(acc, wg - 1, row, rank);
            put_joined<4>(f, acc, kvh, u0 + row, u_end, group, (wg - 1) * 256 + (int)rank * 128);
        } else {
            float4 stat = *stat_of(AT_SUM, row);
            float sum[2] = {stat.z, stat.w};
            put_columns<512>(f, acc, sum, kvh, u0 + row, u_end, group, (wg - 1) * 256);
        }
    } else {
        dg_regs_less<BRING_REGS>();
        int who = (int)(threadIdx.x >> 5) - 12, slot = tiles > 0 ? (int)dgc_slot(&f.kv, b.t0 + b.first * KEYS) : 0;
        if (who < 3 && (threadIdx.x & 31) == 0)
            bring_all<CANVAS>(a, slot, tiles, kvh * 8, who, rank);
        __syncwarp();
    }
}

DGC_KERNEL_ONE(flash_sm90_512, flash_sm90, 512) { flash90_full<false>(a); }
DGC_KERNEL_PAIR(flash_sm90_512_canvas, flash_sm90, 512) { flash90_full<true>(a); }
