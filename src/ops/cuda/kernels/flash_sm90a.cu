/* Flash attention on Hopper: f16 keys and values, f32 scores and sums, f16 queries and probabilities, as flash.cu has it. One or two
 * threads bring tiles of 64 keys that begin at multiples of 64 through rings; two warpgroups compute. A row's arithmetic depends on its own
 * position alone. Heads of 256 dimensions; flash_full_sm90a.cu has those of 512.
 *
 * flash_sm90_256: a block takes 128 query rows of one kv head (rows times the heads that share it), a strip of 64 to each warpgroup. A row is cut
 * into parts of a fixed number of keys at multiples of it.
 * flash_sm90_256_canvas: the rows of a canvas behind a window are few and see the same keys, so both warpgroups have the same 64 rows and
 * every other tile of keys each, the even and the odd ones; their results meet in shared memory. No parts, nothing to join. */
#include "ops/cuda/kernels/flash_sm90.cuh"

#define STAGES DGC_FLASH_STAGES

/* Stages of one ring as the copy engine fills them: a tile's keys come before the values of the one before. */
template <int N> DGC_FN void fill(const struct dgc_flash_sm90_args &a, const struct span &b, struct ring<N> r, int kvh) {
    uint64_t keep = dg_policy_last();
    auto load = [&](const struct dgc_tmap *map, int i) {
        ring_fill(r, map, (int)dgc_slot(&a.f.kv, b.t0 + (int64_t)i * KEYS), kvh * 4, keep);
    };
    if (b.first < b.tiles)
        load(&a.k, b.first);
    for (int i = b.first; i < b.tiles; i += b.step) {
        if (i + b.step < b.tiles)
            load(&a.k, i + b.step);
        load(&a.v, i);
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
    dg_load_queries<256, ROWS, 256>(f, kvh, u0, u_end, dg_dyn);
    dg_fence_async();
    dg_sync_some<256>(1);
    float acc[128];
    sweep<ROWS, 256>(acc, rows, dg_desc_sw128(dg_smem(dg_dyn) + strip * 128), r, wg, b);

    put_stat(f, rows, kvh, row0, u_end, group);
    put_columns<256>(f, acc, rows.sum, kvh, row0, u_end, group, 0);
}

/* Each warpgroup finishes one half of the columns: it gives away its sums of the other half, which lie [column tile][thread], and takes the other
 * one's of its own. Even tiles' sums come first in both. */
DGC_FN void meet(float (&acc)[128], const struct rows &rows, int wg, float4 *give, const float4 *take, float (&sum)[2]) {
    int t = threadIdx.x & 127;
    dg_sync_some<128>(2 + wg); /* what is given lies where values lay that another warp's products may still read */
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
            if (side != wg)
                give[n * 128 + t] = make_float4(acc[4 * (16 * side + n)], acc[4 * (16 * side + n) + 1], acc[4 * (16 * side + n) + 2],
                                                acc[4 * (16 * side + n) + 3]);
    give[16 * 128 + t] = make_float4(rows.max[0], rows.max[1], rows.sum[0], rows.sum[1]);
    dg_sync_some<256>(1);
    float4 o = take[16 * 128 + t];
    float other_max[2] = {o.x, o.y}, other_sum[2] = {o.z, o.w}, mine[2], theirs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(rows.max[i], other_max[i]), base = top == -DGC_INF ? 0.0f : top * LOG2E;
        mine[i] = dg_exp2(fmaf(rows.max[i], LOG2E, -base));
        theirs[i] = dg_exp2(fmaf(other_max[i], LOG2E, -base));
        sum[i] = wg ? fmaf(rows.sum[i], mine[i], other_sum[i] * theirs[i]) : fmaf(other_sum[i], theirs[i], rows.sum[i] * mine[i]);
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float4 v = take[n * 128 + t];
        float in[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (side == wg) {
                    float &own = acc[4 * (16 * side + n) + j];
                    own = side ? fmaf(own, mine[j >> 1], in[j] * theirs[j >> 1]) : fmaf(in[j], theirs[j >> 1], own * mine[j >> 1]);
                }
    }
}

DGC_FN void flash90_canvas(const struct dgc_flash_sm90_args &a) {
    constexpr int ROWS = DGC_FLASH_ROWS_CANVAS, N = DGC_FLASH_STAGES_CANVAS;
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + ROWS - 1) / ROWS;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * ROWS, u_end = u0 + ROWS < units ? u0 + ROWS : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31;
    unsigned base = dg_smem(dg_dyn) + ROWS * 512, bars = base + 2 * N * STAGE;
    auto ring_of = [&](int w) {
        return ring<N>{bars + w * 16 * N, bars + w * 16 * N + 8 * N, base + w * N * STAGE, 0, 0};
    };
    if (threadIdx.x == 0) {
        ring_init(ring_of(0), 4);
        ring_init(ring_of(1), 4);
        dg_bar_init_fence();
    }
    __syncthreads();
    dgc_chain();
    struct span b = {0, 0, 0, 0, 2, 0};
    int64_t unused;
    visible(&f, f.row0 + (u_end - 1) / group, &unused, &b.hi);
    visible(&f, f.row0 + u0 / group, &b.lo, &unused);
    b.t0 = b.lo & ~(int64_t)(KEYS - 1);
    b.tiles = b.hi > b.lo ? (int)((b.hi - b.t0 + KEYS - 1) / KEYS) : 0;
    auto first = [&](int w) { return (int)(b.t0 / KEYS + w) & 1; }; /* tiles are even or odd by where they lie, not by where the block begins */

    if (wg == 2) {
        dg_regs_less<40>();
        int w = (int)(threadIdx.x >> 5) - 8;
        if (lane == 0 && w < 2) {
            b.first = first(w);
            fill(a, b, ring_of(w), kvh);
        }
        return;
    }
    dg_regs_more<232>();
    int row0 = u0 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    struct rows rows;
    rows_see(rows, f, row0, u_end, group, b.lo, b.hi, b.t0);
    dg_load_queries<256, ROWS, 256>(f, kvh, u0, u_end, dg_dyn);
    dg_fence_async();
    dg_sync_some<256>(1);
    float acc[128], sum[2];
    struct ring<N> r = ring_of(wg);
    b.first = first(wg);
    sweep<ROWS, 128>(acc, rows, dg_desc_sw128(dg_smem(dg_dyn)), r, wg, b);
    float4 *stages = (float4 *)(dg_dyn + ROWS * 512);
    meet(acc, rows, wg, stages + wg * N * STAGE / 16, stages + (1 - wg) * N * STAGE / 16, sum);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t *y = out_row(f, kvh, row0 + 8 * i, u_end, group, wg * 128);
        if (!y)
            continue;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int side = 0; side < 2; side++)
                if (side == wg)
                    y[4 * n] = dgc_pack_bf16(acc[4 * (16 * side + n) + 2 * i] / sum[i], acc[4 * (16 * side + n) + 2 * i + 1] / sum[i]);
    }
}

DGC_KERNEL_ONE(flash_sm90_256, flash_sm90, 384) { flash90(a); }
DGC_KERNEL_ONE(flash_sm90_256_canvas, flash_sm90, 384) { flash90_canvas(a); }
