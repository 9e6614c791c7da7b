/* The scores of top-k attention on Hopper: f16 queries and keys, f32 sums over 512 dimensions in one order, as topk.cu has them.
 *
 * A block keeps the f16 queries of a tile of 128 (row, head) pairs of one kv head, 64 of either warpgroup, half of their dimensions in registers
 * and half in shared memory, and walks its share of the keys in tiles of 128. A thread of a third warpgroup fills the ring, 64 dimensions a stage,
 * of which both warpgroups take every one. A warpgroup has two sets of sums: while tensor cores make one tile's, it stores the scores of the tile
 * before, an eighth a stage.
 *
 * Over short rows the sum takes all values: weights, of which all but k are zeros, times values by tensor cores (top_sum_sm90). */
#include "ops/cuda/kernels/sm90.cuh"
#include "ops/cuda/kernels/topk.cuh"

#define HD 512
#define TILE DGC_TOP_TILE
#define STEPS 16 /* of the 32 of 16 dimensions in a score, whose queries are in registers */
#define PARTS (HD / 64) /* stages of a tile */
#define STAGES DGC_TOP_STAGES
#define STAGE (TILE * 128)
#define QUERIES (TILE * (HD - 16 * STEPS) * 2)
#define CONSUMERS 256

/* d = a . b + (keep ? d : 0), 64 rows and 128 columns, k16, f16; a in shared memory or in registers. */
#define ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
DGC_FN void multiply(float (&d)[64], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " SUMS "a, b, 1, 1, 1, 0, 0;\n}"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56)
        : "r"(a), "r"(b));
}
DGC_FN void multiply(float (&d)[64], const unsigned (&a)[4], unsigned b, int keep) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %69, 0;\nmov.b64 b, {%68, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " SUMS "{%64, %65, %66, %67}, b, p, 1, 1, 0;\n}"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));
}

/* Without a cache policy: keys are read again by the blocks of other rows soon, and values come after them. */
DGC_FN void copy_keys(unsigned dst, const struct dgc_tmap *map, int x, int y, unsigned bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map),
                 "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

DGC_FN struct ring<STAGES> ring_of_keys(void) {
    unsigned base = dg_smem(dg_dyn) + QUERIES, bars = base + STAGES * STAGE;
    return {bars, bars + 8 * STAGES, base, 0, 0};
}

/* The thread that fills: so many tiles from the first on. */
DGC_FN void bring_keys(const struct dgc_tmap *map, int kvh, int first, int tiles) {
    struct ring<STAGES> r = ring_of_keys();
    for (int i = 0; i < tiles * PARTS; i++) {
        unsigned full = r.full + r.s * 8;
        dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
        dg_bar_expect(full, STAGE);
        copy_keys(r.base + r.s * STAGE, map, kvh * HD + i % PARTS * 64, (first + i / PARTS) * TILE, full);
        ring_next(r);
    }
}

/* Where the scores of a lane's two rows go, g and g + 8 of its warp's 16, and how many keys of the block's share each sees; `live`: units from the
 * first row on. */
struct out {
    int at, live, seen[2]; /* the scratch holds fewer than 2^31 scores */
};

/* An eighth of a tile: the lane's scores of 32 of the keys from t0 on in one of its rows. most: the quad's largest, a lane each. */
DGC_FN void put(const struct dgc_top_scores_args &f, const struct out &o, const float (&acc)[64], int t0, int part, float &most) {
    int r = part >> 2, g = part & 3, at = o.at + 8 * r * (int)f.pitch + t0;
    bool on = 8 * r < o.live && t0 >= 0;
    float v[8];
#pragma unroll
    for (int n = 0; n < 8; n++)
        v[n] = acc[(g * 4 + (n >> 1)) * 4 + 2 * r + (n & 1)];
    float top = dgc_top_most(v, o.seen[r] - t0 - g * 32);
    most = ((int)threadIdx.x & 3) == g ? top : most;
    if (on)
        dgc_top_store(f.score + (at + g * 32), v);
    if (on && g == 3)
        f.most[(at >> 5) + ((int)threadIdx.x & 3)] = most;
}

/* acc = the next tile's scores, while the old ones, of keys from t0 on, are stored; t0 < 0: there are none. rest: the descriptor of the queries that
 * are not in registers. */
DGC_FN void step(const struct dgc_top_scores_args &f, const struct out &o, float (&acc)[64], float (&old)[64], int t0,
                 const unsigned (&q)[STEPS][4], unsigned rest, struct ring<STAGES> &r) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        unsigned keys = dg_desc_sw128(r.base + r.s * STAGE);
        dg_bar_wait(r.full + r.s * 8, r.phase);
        dg_wgmma_fence();
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (4 * k < STEPS)
                multiply(acc, q[4 * k + t], keys + 2 * t, k + t > 0);
            else
                multiply(acc, rest + (k - STEPS / 4) * (TILE * 128 / 16) + 2 * t, keys + 2 * t);
        }
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (k == 0)
            dg_hold(old);
        if (k > 0 || t0 >= 0)
            ring_release(r, r.s ? r.s - 1 : STAGES - 1);
        ring_next(r);
        put(f, o, old, t0, k, most);
    }
}

/* What is left of the last tile. */
DGC_FN void finish(const struct dgc_top_scores_args &f, const struct out &o, float (&acc)[64], int t0) {
    float most = 0.0f;
    dg_wgmma_wait<0>();
    dg_hold(acc);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        put(f, o, acc, t0, k, most);
}

/* A warpgroup's 64 rows; row: the lane's first of the block's. */
DGC_FN void score(const struct dgc_top_scores_args &f, int kvh, int u0, int u_end, int first, int tiles, int row) {
    int group = f.heads / f.kv.kv_heads, units = f.n * group;
    unsigned q[STEPS][4];
    float acc[2][64];
    struct ring<STAGES> r = ring_of_keys();
    dg_load_queries<HD, TILE, CONSUMERS, 16 * STEPS>(dg_queries_of<HD, CONSUMERS, 16 * STEPS>(f, kvh, u0), u0, u_end, dg_dyn);
    dg_query_fragments<HD>(q, f, kvh, u0 + row, u_end);
    dg_fence_async();
    dg_sync_some<CONSUMERS>(1);
    struct out o = {(kvh * units + u0 + row) * (int)f.pitch + first * TILE, u_end - u0 - row, {0, 0}};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int u = u0 + row + 8 * i;
        int64_t lo, end = 0;
        if (u < u_end)
            dgc_visible(f.prm, f.causal, f.kv.window, f.row0 + u / group, &lo, &end);
        o.seen[i] = (int)end - first * TILE;
    }
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i >> 6][i & 63] = 0.0f;
    unsigned rest = dg_desc_sw128(dg_smem(dg_dyn) + (row >> 6) * 64 * 128);
#pragma unroll 1
    for (int i = 0;; i += 2) {
        step(f, o, acc[0], acc[1], (i - 1) * TILE, q, rest, r);
        if (i + 1 == tiles) {
            finish(f, o, acc[0], i * TILE);
            return;
        }
        step(f, o, acc[1], acc[0], i * TILE, q, rest, r);
        if (i + 2 == tiles) {
            finish(f, o, acc[1], (i + 1) * TILE);
            return;
        }
    }
}

DGC_KERNEL_ONE(top_scores_sm90, top_scores_sm90, 384) {
    const struct dgc_top_scores_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, u_tiles = (units + TILE - 1) / TILE;
    int kvh = (int)blockIdx.x / u_tiles, u0 = ((int)blockIdx.x - kvh * u_tiles) * TILE, u_end = u0 + TILE < units ? u0 + TILE : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) {
        ring_init(ring_of_keys(), CONSUMERS / 32);
        dg_bar_init_fence();
    }
    if (threadIdx.x == CONSUMERS)
        dg_tma_ahead(&a.k);
    __syncthreads();
    dgc_chain();
    /* tiles that any row of the block sees, and this block's share of them */
    int64_t lo, hi;
    dgc_visible(f.prm, f.causal, f.kv.window, f.row0 + (u_end - 1) / group, &lo, &hi);
    int64_t all = (hi + TILE - 1) / TILE;
    int first = (int)(all * blockIdx.y / gridDim.y), tiles = (int)(all * (blockIdx.y + 1) / gridDim.y) - first;
    if (tiles <= 0)
        return;
    if (wg == 2) {
        dg_regs_less<24>();
        if (threadIdx.x == CONSUMERS)
            bring_keys(&a.k, kvh, first, tiles);
        return;
    }
    dg_regs_more<240>();
    score(f, kvh, u0, u_end, first, tiles, wg * 64 + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7));
}

#define SUM_STAGES DGC_TOP_SUM_STAGES
#define SUM_KEYS 64
#define SUM_STAGE (STAGE + 2 * BOX) /* weights of 64 keys, then two times 64 columns of their values */
#define BOX (SUM_KEYS * 128)

DGC_FN struct ring<SUM_STAGES> ring_of_sums(void) {
    unsigned base = dg_smem(dg_dyn), bars = base + SUM_STAGES * SUM_STAGE;
    return {bars, bars + 8 * SUM_STAGES, base, 0, 0};
}

/* The thread that fills. unit: the first row of weights; col: the first of the values' columns. */
DGC_FN void bring_sums(const struct dgc_top_sum_sm90_args &a, int unit, int col, int steps) {
    struct ring<SUM_STAGES> r = ring_of_sums();
    for (int i = 0; i < steps; i++) {
        unsigned full = r.full + r.s * 8, to = r.base + r.s * SUM_STAGE;
        dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
        dg_bar_expect(full, SUM_STAGE);
        copy_keys(to, &a.p, i * SUM_KEYS, unit, full);
        copy_keys(to + STAGE, &a.v, col, i * SUM_KEYS, full);
        copy_keys(to + STAGE + BOX, &a.v, col + 64, i * SUM_KEYS, full);
        ring_next(r);
    }
}

/* A warpgroup's 64 rows of weights times 128 columns of values of so many keys. */
DGC_FN void add_up(float (&acc)[64], int keys) {
    struct ring<SUM_STAGES> r = ring_of_sums();
    int wg = threadIdx.x >> 7;
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0.0f;
    for (int t0 = 0; t0 < keys; t0 += SUM_KEYS) {
        unsigned at = r.base + r.s * SUM_STAGE, w = dg_desc_sw128(at + wg * 64 * 128), v = dg_desc_rows64(at + STAGE);
        dg_bar_wait(r.full + r.s * 8, r.phase);
        if (t0 + SUM_KEYS > keys) { /* what unseen slots hold may be anything */
            for (int i = threadIdx.x; i < 2 * BOX / 16; i += CONSUMERS)
                if (t0 + (i >> 3 & (SUM_KEYS - 1)) >= keys)
                    *(uint4 *)(dg_dyn + (at - r.base) + STAGE + i * 16) = make_uint4(0, 0, 0, 0);
            dg_fence_async();
            dg_sync_some<CONSUMERS>(1);
        }
        dg_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            dg_wgmma_ss_f16_rows(acc, w + 2 * k, v + 128 * k);
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (t0 > 0)
            ring_release(r, r.s ? r.s - 1 : SUM_STAGES - 1);
        ring_next(r);
    }
    dg_wgmma_wait<0>();
    dg_hold(acc);
}

DGC_KERNEL_ONE(top_sum_sm90, top_sum_sm90, 288) {
    const struct dgc_top_values_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, u_tiles = (units + TILE - 1) / TILE;
    int kvh = (int)blockIdx.x / u_tiles, u0 = ((int)blockIdx.x - kvh * u_tiles) * TILE, col = (int)blockIdx.y * 128;
    if (threadIdx.x == 0) {
        ring_init(ring_of_sums(), CONSUMERS / 32);
        dg_bar_init_fence();
    }
    if (threadIdx.x == CONSUMERS) {
        dg_tma_ahead(&a.p);
        dg_tma_ahead(&a.v);
    }
    __syncthreads();
    dgc_chain();
    int64_t lo, hi;
    dgc_visible(f.prm, f.causal, f.kv.window, f.row0, &lo, &hi);
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS)
            bring_sums(a, kvh * units + u0, kvh * HD + col, (int)(hi + SUM_KEYS - 1) / SUM_KEYS);
        return;
    }
    float acc[64];
    add_up(acc, (int)hi);
    int u = u0 + (threadIdx.x >> 5) * 16 + (threadIdx.x >> 2 & 7);
#pragma unroll
    for (int i = 0; i < 2; i++, u += 8) {
        int m = u / group, head = kvh * group + u - m * group;
        uint16_t *y = (uint16_t *)f.y.p + m * f.y.ld + (int64_t)head * HD + col + 8 * (threadIdx.x & 3);
        float scale = u < units ? f.most[(kvh * units + u) * f.pitch >> 5] : 0.0f;
#pragma unroll
        for (int h = 0; h < 4; h++) {
            uint32_t w[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                w[n] = dgc_pack_bf16(acc[16 * h + 4 * n + 2 * i] * scale, acc[16 * h + 4 * n + 2 * i + 1] * scale);
            quad_turn(w);
            if (u < units)
                *(uint4 *)(y + 32 * h) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}
