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
 * flash_sm90_512_pair: two blocks of one kv head, which see the same keys, run as a cluster. Each brings one half of every stage to both, so that
 * the L2 delivers it once; a stage is filled again when the users in both blocks have given it back. */
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

/* Where what lies in shared memory: two buffers of probabilities, queries, stages, two of rows' factors, the rows' sums, barriers. */
#define AT_QUERIES (2 * BOX)
#define AT_KEYS (AT_QUERIES + 2 * BOX)
#define AT_VALUES (AT_KEYS + KEY_STAGES * KEY_BOXES * BOX)
#define AT_FACTOR (AT_VALUES + 2 * VALUE_STAGES * STAGE)
#define AT_SUM (AT_FACTOR + 2 * 256)
#define AT_READY (AT_SUM + 256) /* of either buffer: factors and probabilities are there, */
#define AT_GO (AT_READY + 16)   /* values may be multiplied, */
#define AT_TAKEN (AT_GO + 16)   /* they were */
#define AT_DONE (AT_TAKEN + 16) /* the rows' sums are there */
#define AT_RINGS (AT_DONE + 16)
static_assert(AT_RINGS + 16 * KEY_STAGES + 2 * 16 * VALUE_STAGES <= DGC_FLASH_512_SHARED, "shared memory of flash_sm90_512");

DGC_FN struct ring<KEY_STAGES> ring_of_keys(void) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS;
    return {bars, bars + 8 * KEY_STAGES, base + AT_KEYS, 0, 0};
}
DGC_FN struct ring<VALUE_STAGES> ring_of_values(int half) {
    unsigned base = dg_smem(dg_dyn), bars = base + AT_RINGS + 16 * KEY_STAGES + half * 16 * VALUE_STAGES;
    return {bars, bars + 8 * VALUE_STAGES, base + AT_VALUES + half * VALUE_STAGES * STAGE, 0, 0};
}

/* The thread that fills a ring: a stage of BOXES times 64 dimensions, from the z-th 64 on, of the 64 keys at a slot. */
template <int BOXES, bool PAIR, int N>
DGC_FN void bring(struct ring<N> &r, const struct dgc_tmap *map, int slot, int z, unsigned rank, uint64_t keep) {
    unsigned full = r.full + r.s * 8, to = r.base + r.s * BOXES * BOX;
    dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
    dg_bar_expect(full, BOXES * BOX);
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
        if (!PAIR)
            dg_tma_load(to + i * BOX, map, (z + i) * 64, slot, full, keep);
        else if (i * 2 / BOXES == (int)rank)
            dg_tma_load_both(to + i * BOX, map, (z + i) * 64, slot, full, keep);
    }
    ring_next(r);
}
/* One lane a warp gives a stage back, to the threads of both blocks that fill it. */
template <bool PAIR, int N> DGC_FN void give_back(const struct ring<N> &r, int stage, unsigned rank) {
    ring_release(r, stage);
    if (PAIR && (threadIdx.x & 31) == 0)
        dg_bar_arrive_at(r.empty + stage * 8, rank ^ 1);
}

/* Where the next tile lies; a ring's slots are whole tiles. */
DGC_FN int next_slot(const struct dgc_flash_sm90_args &a, int slot) {
    slot += KEYS;
    return slot >= (int)a.f.kv.slots ? 0 : slot;
}

/* who: 0 brings keys, 1 and 2 a half of values, of tiles that begin at a slot; z: the first 64 dimensions. */
template <bool PAIR> DGC_FN void bring_all(const struct dgc_flash_sm90_args &a, int slot, int tiles, int z, int who, unsigned rank) {
    uint64_t keep = dg_policy_last();
    if (who == 0) {
        struct ring<KEY_STAGES> keys = ring_of_keys();
        for (int i = 0; i < tiles; i++, slot = next_slot(a, slot))
            for (int j = 0; j < 8; j += KEY_BOXES)
                bring<KEY_BOXES, PAIR>(keys, &a.k, slot, z + j, rank, keep);
    } else {
        struct ring<VALUE_STAGES> values = ring_of_values(who - 1);
        for (int i = 0; i < tiles; i++, slot = next_slot(a, slot))
            bring<VALUE_BOXES, PAIR>(values, &a.v, slot, z + (who - 1) * VALUE_BOXES, rank, keep);
    }
}

/* Queries of units u and u + 8 as A fragments; those from u_end on are zeros. */
DGC_FN void query_fragments(unsigned (&q)[STEPS][4], const struct dgc_flash_args &f, int kvh, int u, int u_end, int group) {
#pragma unroll
    for (int r = 0; r < 2; r++, u += 8) {
        int m = u / group, head = kvh * group + u - m * group;
        const uint32_t *from = (const uint32_t *)((const uint16_t *)f.q.p + (int64_t)m * f.q.ld + (int64_t)head * 512) + (threadIdx.x & 3);
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            uint32_t v = u < u_end ? from[4 * i] : 0;
            q[i >> 1][(i & 1) * 2 + r] = dgc_pack_f16(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
        }
    }
}

/* s = the scores of the next tile. */
template <bool PAIR> DGC_FN void tile_scores(float (&s)[32], const unsigned (&q)[STEPS][4], struct ring<KEY_STAGES> &r, unsigned rank) {
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
            give_back<PAIR>(r, last, rank);
        }
        last = r.s;
        ring_next(r);
    }
    dg_wgmma_wait<0>();
    dg_hold(s);
    give_back<PAIR>(r, last, rank);
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

/* Warpgroup 0. row: the lane's first of 64. */
template <bool PAIR>
DGC_FN void score(const struct dgc_flash_args &f, const struct span &b, int kvh, int u0, int u_end, int group, int row, unsigned rank) {
    unsigned q[STEPS][4];
    float s[32], scale[2];
    struct rows rows;
    struct ring<KEY_STAGES> r = ring_of_keys();
    unsigned base = dg_smem(dg_dyn);
    rows_see(rows, f, u0 + row, u_end, group, b.lo, b.hi, b.t0);
    dg_load_queries<512, 64, 128, 16 * STEPS>(f, kvh, u0, u_end, dg_dyn + AT_QUERIES);
    query_fragments(q, f, kvh, u0 + row, u_end, group);
    dg_fence_async();
    dg_sync_some<128>(1);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0.0f;
    if (b.tiles > 0)
        tile_scores<PAIR>(s, q, r, rank);
    for (int i = 0; i < b.tiles; i++) {
        int at = i & 1;
        softmax(rows, i * KEYS, s, scale);
        dg_bar_wait(base + AT_TAKEN + at * 8, (i >> 1 & 1) ^ 1);
        store_probs(base + at * BOX, s, row);
        if ((threadIdx.x & 3) == 0) {
            dg_sts(base + AT_FACTOR + at * 256 + row * 4, __float_as_uint(scale[0]));
            dg_sts(base + AT_FACTOR + at * 256 + row * 4 + 32, __float_as_uint(scale[1]));
        }
        dg_fence_async();
        dg_arrive_for_warp(base + AT_READY + at * 8);
        if (i + 1 < b.tiles)
            tile_scores<PAIR>(s, q, r, rank);
        dg_arrive_for_warp(base + AT_GO + at * 8);
    }
    rows.sum[0] = quad_sum(rows.sum[0]);
    rows.sum[1] = quad_sum(rows.sum[1]);
    if ((threadIdx.x & 3) == 0) {
        dg_sts(base + AT_SUM + row * 4, __float_as_uint(rows.sum[0]));
        dg_sts(base + AT_SUM + row * 4 + 32, __float_as_uint(rows.sum[1]));
    }
    dg_arrive_for_warp(base + AT_DONE);
    put_stat(f, rows, kvh, u0 + row, u_end, group);
}

/* Warpgroup 1 + half: acc = probabilities times its 256 columns of values; sum: the rows' sums of probabilities. [lo, hi): keys the block sees,
 * counted from its first tile. */
template <bool PAIR>
DGC_FN void take(float (&acc)[128], float (&sum)[2], int tiles, int lo, int hi, int half, int row, unsigned rank) {
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
        if (i * KEYS < lo || i * KEYS + KEYS > hi) {
            clear_unseen(dg_dyn + (v - base), lo - i * KEYS, hi - i * KEYS, threadIdx.x & 127, 128);
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
        give_back<PAIR>(r, r.s, rank);
        if ((threadIdx.x & 31) == 0)
            dg_bar_arrive(base + AT_TAKEN + at * 8);
        ring_next(r);
    }
    dg_bar_wait(base + AT_DONE, 0);
    sum[0] = __int_as_float(dg_lds(base + AT_SUM + row * 4));
    sum[1] = __int_as_float(dg_lds(base + AT_SUM + row * 4 + 32));
}

/* blocks: whose users give stages back. */
DGC_FN void make_barriers(int blocks) {
    unsigned base = dg_smem(dg_dyn);
    for (int i = 0; i < 2; i++) {
        dg_bar_init(base + AT_READY + i * 8, 4);
        dg_bar_init(base + AT_GO + i * 8, 4);
        dg_bar_init(base + AT_TAKEN + i * 8, 8);
        ring_init(ring_of_values(i), 4 * blocks);
    }
    dg_bar_init(base + AT_DONE, 4);
    ring_init(ring_of_keys(), 4 * blocks);
    dg_bar_init_fence();
}

template <bool PAIR> DGC_FN void flash90_full(const struct dgc_flash_sm90_args &a) {
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + 63) / 64;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * 64, u_end = u0 + 64 < units ? u0 + 64 : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), row = (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7);
    unsigned rank = PAIR ? dg_pair_rank() : 0;
    if (threadIdx.x == 0)
        make_barriers(PAIR ? 2 : 1);
    __syncthreads();
    if (PAIR)
        dg_pair_sync();
    dgc_chain();
    struct span b = span_of(f, u0, u_end, group);
    int slot = b.tiles > 0 ? (int)dgc_slot(&f.kv, b.t0) : 0;
    if (wg == 0) {
        dg_regs_more<SCORE_REGS>();
        score<PAIR>(f, b, kvh, u0, u_end, group, row, rank);
    } else if (wg < 3) {
        float acc[128], sum[2];
        dg_regs_more<VALUE_REGS>();
        take<PAIR>(acc, sum, b.tiles, (int)(b.lo - b.t0), (int)(b.hi - b.t0), wg - 1, row, rank);
        put_columns<512>(f, acc, sum, kvh, u0 + row, u_end, group, (wg - 1) * 256);
    } else {
        dg_regs_less<BRING_REGS>();
        int who = (int)(threadIdx.x >> 5) - 12;
        if (who < 3 && (threadIdx.x & 31) == 0)
            bring_all<PAIR>(a, slot, b.tiles, kvh * 8, who, rank);
        __syncwarp();
    }
    if (PAIR) /* the other block may still fill this one's stages or give its own back here */
        dg_pair_sync();
}

DGC_KERNEL_ONE(flash_sm90_512, flash_sm90, 512) { flash90_full<false>(a); }
DGC_KERNEL_PAIR(flash_sm90_512_pair, flash_sm90, 512) { flash90_full<true>(a); }
