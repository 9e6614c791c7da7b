/* Flash attention on Hopper: f16 keys and values, f32 scores and sums, f16 queries and probabilities, as flash.cu has it.
 *
 * A block takes a tile of query rows of one kv head (rows times the heads that share it) in two consumer warpgroups of 64 accumulator rows by
 * 256 columns: of 256 dimensions two strips of rows, of 512 the halves of one strip's output, each making all scores of it. One thread
 * brings tiles of 64 keys that begin at multiples of 64 through a ring: a stage is 64 keys by 256 dimensions of keys or of values. A row is cut into
 * parts of a fixed number of keys at multiples of it, so its arithmetic depends on its own position alone. */
#include "ops/cuda/kernels/sm90.cuh"

#define KEYS 64
#define STAGES DGC_FLASH_STAGES
#define STAGE 32768
#define LOG2E 1.4426950408889634f

DGC_FN float dg_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Keeps what is made of d behind the wait before this. */
template <int N> DGC_FN void dg_hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
DGC_FN void dg_sync_some(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

DGC_FN void visible(const struct dgc_flash_args *a, int i, int64_t *lo, int64_t *hi) {
    dgc_visible(a->prm, a->causal, a->kv.window, i, lo, hi);
}

struct ring {
    unsigned full, empty, base, phase;
    int s;
};
DGC_FN void ring_next(struct ring &r) {
    if (++r.s == STAGES) {
        r.s = 0;
        r.phase ^= 1;
    }
}

/* What the lane's two rows see, counted from the block's first tile, and their running softmax. */
struct rows {
    int lo[2], hi[2];
    float max[2], sum[2];
};

/* Scores of 64 keys from k0 to probabilities; what the sums so far must be multiplied with in scale. */
DGC_FN void softmax(struct rows &rows, int k0, float (&s)[32], float (&scale)[2]) {
    int c = (int)threadIdx.x & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = rows.max[r], add = 0.0f;
        if (k0 < rows.lo[r] || k0 + KEYS > rows.hi[r]) {
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int key = k0 + (j >> 1) * 8 + 2 * c + (j & 1);
                float &v = s[(j >> 1) * 4 + 2 * r + (j & 1)];
                v = key >= rows.lo[r] && key < rows.hi[r] ? v : -DGC_INF;
            }
        }
#pragma unroll
        for (int j = 0; j < 16; j++)
            top = fmaxf(top, s[(j >> 1) * 4 + 2 * r + (j & 1)]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float base = top == -DGC_INF ? 0.0f : top * LOG2E;
        scale[r] = dg_exp2(fmaf(rows.max[r], LOG2E, -base));
        if (rows.max[r] == top)
            scale[r] = 1.0f;
        rows.max[r] = top;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float &v = s[(j >> 1) * 4 + 2 * r + (j & 1)];
            v = dg_exp2(fmaf(v, LOG2E, -base));
            add += v;
        }
        rows.sum[r] = fmaf(rows.sum[r], scale[r], add);
    }
}

/* Probabilities as A fragments of four k16 steps. */
DGC_FN void pack(const float (&s)[32], unsigned (&p)[4][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            p[n >> 1][(n & 1) * 2 + r] = dgc_pack_f16(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
}

DGC_FN void rescale(float (&acc)[128], const float (&scale)[2]) {
    if (__ballot_sync(0xffffffffu, scale[0] != 1.0f || scale[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            acc[i] *= scale[i >> 1 & 1];
    }
}

/* Queries to f16 in shared memory, chunk after chunk of 64 dimensions; rows from u_end on are zeros. 256 threads. */
template <int HD> DGC_FN void load_queries(const struct dgc_flash_args &f, int kvh, int u0, int u_end, unsigned char *qs) {
    constexpr int ROWS = DGC_FLASH_ROWS_SM90(HD);
    int group = f.heads / f.kv.kv_heads;
    for (int i = threadIdx.x; i < ROWS * (HD / 8); i += 256) {
        int row = i / (HD / 8), c = i % (HD / 8), u = u0 + row, m = u / group;
        uint4 o = make_uint4(0, 0, 0, 0);
        if (u < u_end) {
            uint4 v = *(const uint4 *)((const uint16_t *)f.q.p + (int64_t)m * f.q.ld + (int64_t)(kvh * group + u - m * group) * HD + c * 8);
            o.x = dgc_pack_f16(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u));
            o.y = dgc_pack_f16(__uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
            o.z = dgc_pack_f16(__uint_as_float(v.z << 16), __uint_as_float(v.z & 0xffff0000u));
            o.w = dgc_pack_f16(__uint_as_float(v.w << 16), __uint_as_float(v.w & 0xffff0000u));
        }
        *(uint4 *)(qs + (c >> 3) * (ROWS * 128) + dg_sw128(row, c & 7)) = o;
    }
}

/* Values of keys the block does not see are zeros, since what their slots hold may be anything. from, to: keys of the tile it sees. */
DGC_FN void clear_unseen(unsigned char *v, int from, int to, int thread, int threads) {
    for (int i = thread; i < STAGE / 16; i += threads) {
        int key = i >> 3 & 63;
        if (key < from || key >= to)
            *(uint4 *)(v + i * 16) = make_uint4(0, 0, 0, 0);
    }
}


/* s = q . keys over HD, begun and committed; the ring's stages are given back by release_keys. */
template <int HD> DGC_FN void begin_scores(float (&s)[32], unsigned q, struct ring &r, int (&used)[2]) {
    constexpr int CHUNK = DGC_FLASH_ROWS_SM90(HD) * 8;
    dg_wgmma_fence();
#pragma unroll
    for (int h = 0; h < HD / 256; h++) {
        dg_bar_wait(r.full + r.s * 8, r.phase);
        unsigned k = dg_desc_sw128(r.base + r.s * STAGE);
#pragma unroll
        for (int i = 0; i < 16; i++)
            dg_wgmma_ss_f16(s, q + (h * 4 + (i >> 2)) * CHUNK + 2 * (i & 3), k + (i >> 2) * 512 + 2 * (i & 3), h + i > 0);
        used[h] = r.s;
        ring_next(r);
    }
    dg_wgmma_commit();
}
/* acc += p . values, begun and committed. */
DGC_FN void begin_values(float (&acc)[128], const unsigned (&p)[4][4], unsigned stage) {
    unsigned v = dg_desc_rows64(stage);
    dg_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        dg_wgmma_rs_f16_rows(acc, p[i], v + i * 128);
    dg_wgmma_commit();
}

/* The stage of values of tile i that this warpgroup reads, ready. The other half's stage is given back at once. */
template <int HD> DGC_FN int take_values(struct ring &r, int wg, int i, int64_t t0, int64_t lo, int64_t hi) {
    int mine = 0, lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < HD / 256; h++) {
        dg_bar_wait(r.full + r.s * 8, r.phase);
        if (HD == 256 || h == wg)
            mine = r.s;
        else if (lane == 0)
            dg_bar_arrive(r.empty + r.s * 8);
        ring_next(r);
    }
    int64_t first = t0 + (int64_t)i * KEYS;
    if (first < lo || first + KEYS > hi) {
        int from = first < lo ? (int)(lo - first) : 0, to = first + KEYS > hi ? (int)(hi - first) : KEYS;
        unsigned char *v = dg_dyn + 65536 + mine * STAGE;
        if (HD == 256)
            clear_unseen(v, from, to, threadIdx.x, 256);
        else
            clear_unseen(v, from, to, threadIdx.x & 127, 128);
        dg_fence_async();
        dg_sync_some(HD == 256 ? 1 : 2 + wg, HD == 256 ? 256 : 128);
    }
    return mine;
}

template <int HD, bool AHEAD> DGC_FN void flash90(const struct dgc_flash_sm90_args &a) {
    constexpr int HALVES = HD / 256, ROWS = DGC_FLASH_ROWS_SM90(HD);
    const struct dgc_flash_args &f = a.f;
    int group = f.heads / f.kv.kv_heads, units = f.n * group, q_tiles = (units + ROWS - 1) / ROWS;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * ROWS, u_end = u0 + ROWS < units ? u0 + ROWS : units;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    struct ring r;
    r.base = dg_smem(dg_dyn) + 65536;
    r.full = r.base + STAGES * STAGE;
    r.empty = r.full + STAGES * 8;
    r.s = 0;
    r.phase = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(r.full + i * 8, 1);
            dg_bar_init(r.empty + i * 8, 8);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    dgc_chain();
    /* the block's keys: what its rows see between them, cut to its part */
    int64_t lo, hi, unused, part0;
    visible(&f, f.row0, &lo, &unused);
    part0 = (lo / f.split + (int)blockIdx.y) * f.split;
    visible(&f, f.row0 + (u_end - 1) / group, &unused, &hi);
    visible(&f, f.row0 + u0 / group, &lo, &unused);
    lo = lo > part0 ? lo : part0;
    hi = hi < part0 + f.split ? hi : part0 + f.split;
    int64_t t0 = lo & ~(int64_t)(KEYS - 1);
    int tiles = hi > t0 && hi > lo ? (int)((hi - t0 + KEYS - 1) / KEYS) : 0;

    if (wg == 2) {
        dg_regs_less<40>();
        if (threadIdx.x == 256) {
            int z = kvh * (HD / 64);
            uint64_t keep = dg_policy_last();
            auto load = [&](const struct dgc_tmap *map, int i) {
                int slot = (int)dgc_slot(&f.kv, t0 + (int64_t)i * KEYS);
                for (int h = 0; h < HALVES; h++) {
                    dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
                    dg_bar_expect(r.full + r.s * 8, STAGE);
                    unsigned to = r.base + r.s * STAGE, full = r.full + r.s * 8;
                    if (a.deep)
                        dg_tma_load3(to, map, 0, slot, z + 4 * h, full);
                    else
                        for (int i = 0; i < 4; i++)
                            dg_tma_load(to + i * 8192, map, (z + 4 * h + i) * 64, slot, full, keep);
                    ring_next(r);
                }
            };
            if (AHEAD && tiles)
                load(&a.k, 0);
            for (int i = 0; i < tiles; i++) { /* in the order of their use */
                if (!AHEAD || i + 1 < tiles)
                    load(&a.k, AHEAD ? i + 1 : i);
                load(&a.v, i);
            }
        }
        return;
    }
    dg_regs_more<232>();
    int strip = HD == 256 ? wg * 64 : 0, row0 = u0 + strip + (threadIdx.x >> 5 & 3) * 16 + g;
    struct rows rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int u = row0 + 8 * i;
        rows.lo[i] = rows.hi[i] = 0;
        rows.max[i] = -DGC_INF;
        rows.sum[i] = 0.0f;
        if (u < u_end) {
            int64_t from, end;
            visible(&f, f.row0 + u / group, &from, &end);
            rows.lo[i] = (int)((from > lo ? from : lo) - t0);
            rows.hi[i] = (int)((end < hi ? end : hi) - t0);
        }
    }
    load_queries<HD>(f, kvh, u0, u_end, dg_dyn);
    dg_fence_async();
    dg_sync_some(1, 256);

    float acc[128], s[32], scale[2];
    unsigned p[4][4], q = dg_desc_sw128(dg_smem(dg_dyn) + strip * 128);
    int used[2];
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0.0f;
    auto release_keys = [&]() {
        if (lane == 0)
            for (int h = 0; h < HALVES; h++)
                dg_bar_arrive(r.empty + used[h] * 8);
    };
    if (AHEAD && tiles) {
        begin_scores<HD>(s, q, r, used);
        dg_wgmma_wait<0>();
        dg_hold(s);
        release_keys();
        softmax(rows, 0, s, scale);
        pack(s, p);
    }
    for (int i = 0; i < tiles; i++) {
        if (AHEAD) {
            if (i + 1 < tiles) {
                begin_scores<HD>(s, q, r, used);
                int v = take_values<HD>(r, wg, i, t0, lo, hi);
                begin_values(acc, p, r.base + v * STAGE);
                dg_wgmma_wait<1>();
                dg_hold(s);
                release_keys();
                softmax(rows, (i + 1) * KEYS, s, scale);
                dg_wgmma_wait<0>();
                dg_hold(acc);
                if (lane == 0)
                    dg_bar_arrive(r.empty + v * 8);
                rescale(acc, scale);
                pack(s, p);
                continue;
            }
        } else {
            begin_scores<HD>(s, q, r, used);
            dg_wgmma_wait<0>();
            dg_hold(s);
            release_keys();
            softmax(rows, i * KEYS, s, scale);
            rescale(acc, scale);
            pack(s, p);
        }
        int v = take_values<HD>(r, wg, i, t0, lo, hi);
        begin_values(acc, p, r.base + v * STAGE);
        dg_wgmma_wait<0>();
        dg_hold(acc);
        if (lane == 0)
            dg_bar_arrive(r.empty + v * 8);
    }

    int half = HD == 256 ? 0 : wg;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = rows.sum[i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int u = row0 + 8 * i, m = u / group, head = kvh * group + u - m * group;
        if (u >= u_end)
            continue;
        int64_t at = ((int64_t)blockIdx.y * f.n + m) * f.heads + head;
        if (f.splits > 1 && c == 0 && half == 0) {
            f.stat[at * 2] = rows.max[i];
            f.stat[at * 2 + 1] = sum;
        }
        float *part = f.part + at * HD + half * 256 + 2 * c;
        uint32_t *y = (uint32_t *)((uint16_t *)f.y.p + (int64_t)m * f.y.ld + (int64_t)head * HD + half * 256 + 2 * c);
        if (f.splits > 1) {
            if (sum != 0.0f)
#pragma unroll
                for (int n = 0; n < 32; n++)
                    *(float2 *)(part + 8 * n) = make_float2(acc[4 * n + 2 * i], acc[4 * n + 2 * i + 1]);
        } else {
#pragma unroll
            for (int n = 0; n < 32; n++)
                y[4 * n] = dgc_pack_bf16(acc[4 * n + 2 * i] / sum, acc[4 * n + 2 * i + 1] / sum);
        }
    }
}

DGC_KERNEL_ONE(flash_sm90_256, flash_sm90, 384) { flash90<256, true>(a); }
DGC_KERNEL_ONE(flash_sm90_512, flash_sm90, 384) { flash90<512, true>(a); }
DGC_KERNEL_ONE(flash_sm90_256_plain, flash_sm90, 384) { flash90<256, false>(a); }
DGC_KERNEL_ONE(flash_sm90_512_plain, flash_sm90, 384) { flash90<512, false>(a); }
