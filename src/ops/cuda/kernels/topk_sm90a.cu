/* The scores of top-k attention on Hopper: f16 queries and keys, f32 sums over 512 dimensions in one order, as topk.cu has them.
 *
 * A block keeps the f16 queries of a tile of 128 (row, head) pairs of one kv head in shared memory and walks its share of the keys in tiles of
 * 128. Two pairs of warpgroups take the tiles by turns, 64 rows a warpgroup, so that one pair stores its scores while the other multiplies. Each
 * pair has a ring of its own, which a thread fills with keys, 64 dimensions a stage: of a ring for both, a parity could not tell a pair whether
 * the other one's fill of the stage is still to come. */
#include "ops/cuda/kernels/sm90.cuh"
#include "ops/cuda/kernels/topk.cuh"

#define HD 512
#define TILE DGC_TOP_TILE
#define STEPS (HD / 64)
#define STAGES (DGC_TOP_STAGES / 2) /* of a pair */
#define STAGE (TILE * 128)
#define QUERIES (TILE * HD * 2)
#define CONSUMERS 512

/* d = a . b + (keep ? d : 0), 64 rows and 128 columns, k16, f16. */
#define ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
DGC_FN void wgmma_n128(float (&d)[64], unsigned a, unsigned b, int keep) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\nmov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "a, b, p, 1, 1, 0, 0;\n}"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56)
        : "r"(a), "r"(b), "r"(keep));
}

/* Without a cache policy: keys are read again by the blocks of other rows soon, and values come after them. */
DGC_FN void copy_keys(unsigned dst, const struct dgc_tmap *map, int x, int y, unsigned bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map),
                 "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

DGC_KERNEL_ONE(top_scores_sm90, top_scores_sm90, 640) {
    const struct dgc_top_scores_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, u_tiles = (units + TILE - 1) / TILE;
    int kvh = (int)blockIdx.x / u_tiles, u0 = ((int)blockIdx.x - kvh * u_tiles) * TILE, u_end = u0 + TILE < units ? u0 + TILE : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31;
    /* a pair of warpgroups, or the warp that fills its ring */
    int pair = wg < 4 ? wg >> 1 : (int)(threadIdx.x >> 5) & 1;
    unsigned rings = dg_smem(dg_dyn) + QUERIES, bars = rings + 2 * STAGES * STAGE;
    unsigned ring = rings + pair * (STAGES * STAGE), full = bars + pair * (STAGES * 8);
#define EMPTY (full + 2 * STAGES * 8)
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            dg_bar_init(bars + i * 8, 1);
            dg_bar_init(bars + (2 * STAGES + i) * 8, 8); /* the warps of the pair */
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    dgc_chain();
    /* tiles that any row of the block sees, and this block's share of them */
    int64_t lo, hi;
    dgc_visible(f.prm, f.causal, f.kv.window, f.row0 + (u_end - 1) / group, &lo, &hi);
    int64_t all = (hi + TILE - 1) / TILE;
    int first = (int)(all * blockIdx.y / gridDim.y), tiles = (int)(all * (blockIdx.y + 1) / gridDim.y) - first;
    if (tiles <= 0)
        return;

    if (wg == 4) {
        dg_regs_less<24>();
        if (lane == 0 && threadIdx.x < CONSUMERS + 64)
            for (int j = 0; j < (tiles + 1 - pair) / 2 * STEPS; j++) {
                int s = j % STAGES, tile = first + 2 * (j / STEPS) + pair;
                dg_bar_wait(EMPTY + s * 8, (j / STAGES & 1) ^ 1);
                dg_bar_expect(full + s * 8, STAGE);
                copy_keys(ring + s * STAGE, &a.k, kvh * HD + j % STEPS * 64, tile * TILE, full + s * 8);
            }
        return;
    }
    dg_regs_more<112>();
    dg_load_queries<HD, TILE, CONSUMERS>(dg_queries_of<HD, CONSUMERS>(f, kvh, u0), u0, u_end, dg_dyn);
    dg_fence_async();
    asm volatile("bar.sync 1, 512;" ::: "memory");

    int strip = wg & 1, row0 = strip * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    int seen[2], live = u_end - u0 - row0;
    int at = (kvh * units + u0 + row0) * (int)f.pitch + first * TILE; /* the scratch holds fewer than 2^31 scores */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int u = u0 + row0 + 8 * r;
        int64_t end = 0;
        if (u < u_end)
            dgc_visible(f.prm, f.causal, f.kv.window, f.row0 + u / group, &lo, &end);
        seen[r] = (int)end - first * TILE; /* of this share */
    }
    unsigned q = dg_desc_sw128(dg_smem(dg_dyn) + strip * 64 * 128);
    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0.0f;
    int s = 0, phase = 0;
#pragma unroll 1
    for (int i = pair; i < tiles; i += 2) {
#pragma unroll 1
        for (int k = 0; k < STEPS; k++) {
            dg_bar_wait(full + s * 8, phase);
            unsigned qk = q + k * (TILE * 128 / 16), keys = dg_desc_sw128(ring + s * STAGE);
            dg_wgmma_fence();
#pragma unroll
            for (int t = 0; t < 4; t++)
                wgmma_n128(acc, qk + 2 * t, keys + 2 * t, k + t > 0);
            dg_wgmma_commit();
            dg_wgmma_wait<1>();
            if (k > 0 && lane == 0)
                dg_bar_arrive(EMPTY + (s ? s - 1 : STAGES - 1) * 8);
            if (++s == STAGES) {
                s = 0;
                phase ^= 1;
            }
        }
        dg_wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < 64; n++)
            asm volatile("" : "+f"(acc[n])::"memory");
        if (lane == 0)
            dg_bar_arrive(EMPTY + (s ? s - 1 : STAGES - 1) * 8);

        int t0 = i * TILE;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float mine = 0.0f;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                float v[8];
#pragma unroll
                for (int n = 0; n < 8; n++)
                    v[n] = acc[(g * 4 + (n >> 1)) * 4 + 2 * r + (n & 1)];
                float most = dgc_top_most(v, seen[r] - t0 - g * 32);
                mine = ((int)threadIdx.x & 3) == g ? most : mine;
                if (8 * r < live)
                    dgc_top_store(f.score + (at + 8 * r * (int)f.pitch + t0 + g * 32), v);
            }
            if (8 * r < live)
                f.most[((at + 8 * r * (int)f.pitch + t0) >> 5) + ((int)threadIdx.x & 3)] = mine;
        }
    }
}
