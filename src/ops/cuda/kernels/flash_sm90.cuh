/* Parts of flash attention on Hopper: rings of tiles of keys and values, scores, the running softmax, products with values. A warpgroup has 64
 * rows of queries; a lane's two rows are g and g + 8 of its warp's 16, its scores of them those of keys 8 n + 2 c + (0, 1). */
#ifndef DG_FLASH_SM90_CUH
#define DG_FLASH_SM90_CUH

#include "ops/cuda/kernels/sm90.cuh"

#define KEYS 64     /* of a tile */
#define STAGE 32768 /* bytes of a stage: 64 keys by 256 dimensions of keys or of values */

DGC_FN void visible(const struct dgc_flash_args *a, int i, int64_t *lo, int64_t *hi) {
    dgc_visible(a->prm, a->causal, a->kv.window, i, lo, hi);
}

/* Keys of a block, or of a warpgroup: tiles from t0, of which it takes every step-th one from `first` on; [lo, hi) are seen. */
struct span {
    int64_t t0, lo, hi;
    int first, step, tiles;
};

/* What the rows of units [u0, u_end) see between them, cut to the block's part. */
DGC_FN struct span span_of(const struct dgc_flash_args &f, int u0, int u_end, int group) {
    struct span b = {0, 0, 0, 0, 1, 0};
    int64_t unused, part0;
    visible(&f, f.row0, &b.lo, &unused);
    part0 = (b.lo / f.split + (int)blockIdx.y) * f.split;
    visible(&f, f.row0 + (u_end - 1) / group, &unused, &b.hi);
    visible(&f, f.row0 + u0 / group, &b.lo, &unused);
    b.lo = b.lo > part0 ? b.lo : part0;
    b.hi = b.hi < part0 + f.split ? b.hi : part0 + f.split;
    b.t0 = b.lo & ~(int64_t)(KEYS - 1);
    b.tiles = b.hi > b.lo ? (int)((b.hi - b.t0 + KEYS - 1) / KEYS) : 0;
    return b;
}

/* What every row of a canvas sees, of which a block or a warpgroup has one tile of `step` (a power of two), the which-th: by where it lies, not by
 * where the block begins, so that a row's sums depend on its own position alone. No parts. */
DGC_FN struct span span_of_canvas(const struct dgc_flash_args &f, int step, int which) {
    struct span b = {0, 0, 0, 0, step, 0};
    visible(&f, f.row0, &b.lo, &b.hi);
    b.t0 = b.lo & ~(int64_t)(KEYS - 1);
    b.tiles = b.hi > b.lo ? (int)((b.hi - b.t0 + KEYS - 1) / KEYS) : 0;
    b.first = (which - (int)(b.t0 / KEYS)) & (step - 1);
    return b;
}

/* The thread that fills: a stage with 256 dimensions, from the z-th 64 on, of the 64 keys at a slot; the stage's i-th 64 are the (i ^ turn)-th of
 * them. */
template <int N> DGC_FN void ring_fill(struct ring<N> &r, const struct dgc_tmap *map, int slot, int z, uint64_t keep, int turn) {
    dg_bar_wait(r.empty + r.s * 8, r.phase ^ 1);
    dg_bar_expect(r.full + r.s * 8, STAGE);
    for (int i = 0; i < 4; i++)
        dg_tma_load(r.base + r.s * STAGE + i * 8192, map, (z + (i ^ turn)) * 64, slot, r.full + r.s * 8, keep);
    ring_next(r);
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

/* Values of keys the block does not see are zeros, since what their slots hold may be anything. from, to: keys of the tile it sees. */
DGC_FN void clear_unseen(unsigned char *v, int from, int to, int thread, int threads) {
    for (int i = thread; i < STAGE / 16; i += threads) {
        int key = i >> 3 & 63;
        if (key < from || key >= to)
            *(uint4 *)(v + i * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* s = q . keys over 256 dimensions, begun and committed. Returns the ring's stage, to be given back when it is done. */
template <int ROWS, int N> DGC_FN int begin_scores(float (&s)[32], unsigned q, struct ring<N> &r) {
    constexpr int CHUNK = ROWS * 8;
    int stage = r.s;
    dg_wgmma_fence();
    dg_bar_wait(r.full + stage * 8, r.phase);
    unsigned k = dg_desc_sw128(r.base + stage * STAGE);
#pragma unroll
    for (int i = 0; i < 16; i++)
        dg_wgmma_ss_f16(s, q + (i >> 2) * CHUNK + 2 * (i & 3), k + (i >> 2) * 512 + 2 * (i & 3), i > 0);
    ring_next(r);
    dg_wgmma_commit();
    return stage;
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

/* What the lane's rows u and u + 8 see of the keys [lo, hi), counted from t0. */
DGC_FN void rows_see(struct rows &rows, const struct dgc_flash_args &f, int u, int u_end, int group, int64_t lo, int64_t hi, int64_t t0) {
#pragma unroll
    for (int i = 0; i < 2; i++, u += 8) {
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
}

/* The same where they see what the block does. */
DGC_FN void rows_see_all(struct rows &rows, const struct span &b) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rows.lo[i] = (int)(b.lo - b.t0);
        rows.hi[i] = (int)(b.hi - b.t0);
        rows.max[i] = -DGC_INF;
        rows.sum[i] = 0.0f;
    }
}

/* Row u's place in the output, where this lane's columns of it begin; NULL past the end. */
DGC_FN uint32_t *out_row(const struct dgc_flash_args &f, int kvh, int u, int u_end, int group, int col) {
    int m = u / group, head = kvh * group + u - m * group;
    return u < u_end ? (uint32_t *)((uint16_t *)f.y.p + (int64_t)m * f.y.ld + (int64_t)head * f.kv.hd + col + 2 * (threadIdx.x & 3)) : NULL;
}

/* Maxima and sums of the lane's rows u0 and u0 + 8, where rows have parts. */
DGC_FN void put_stat(const struct dgc_flash_args &f, const struct rows &rows, int kvh, int u0, int u_end, int group) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int u = u0 + 8 * i, m = u / group, head = kvh * group + u - m * group;
        int64_t at = ((int64_t)blockIdx.y * f.n + m) * f.heads + head;
        if (f.splits > 1 && u < u_end && (threadIdx.x & 3) == 0) {
            f.stat[at * 2] = rows.max[i];
            f.stat[at * 2 + 1] = rows.sum[i];
        }
    }
}

/* Their 256 columns from col on: a part, or the output. */
template <int HD>
DGC_FN void put_columns(const struct dgc_flash_args &f, const float (&acc)[128], const float (&sum)[2], int kvh, int u0, int u_end, int group,
                        int col) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int u = u0 + 8 * i, m = u / group, head = kvh * group + u - m * group;
        uint32_t *y = out_row(f, kvh, u, u_end, group, col);
        if (!y)
            continue;
        if (f.splits > 1) {
            float *part = f.part + (((int64_t)blockIdx.y * f.n + m) * f.heads + head) * HD + col + 2 * (threadIdx.x & 3);
            if (sum[i] != 0.0f)
#pragma unroll
                for (int n = 0; n < 32; n++)
                    *(float2 *)(part + 8 * n) = make_float2(acc[4 * n + 2 * i], acc[4 * n + 2 * i + 1]);
        } else {
#pragma unroll
            for (int n = 0; n < 32; n++)
                y[4 * n] = dgc_pack_bf16(acc[4 * n + 2 * i] / sum[i], acc[4 * n + 2 * i + 1] / sum[i]);
        }
    }
}

/* Two partial results of the lane's rows become one: what the own sums and the other ones are multiplied with. other: its maxima and sums. */
DGC_FN void join_rows(struct rows &rows, float4 other, float (&mine)[2], float (&theirs)[2]) {
    float max[2] = {other.x, other.y}, sum[2] = {other.z, other.w};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(rows.max[i], max[i]), base = top == -DGC_INF ? 0.0f : top * LOG2E;
        mine[i] = dg_exp2(fmaf(rows.max[i], LOG2E, -base));
        theirs[i] = dg_exp2(fmaf(max[i], LOG2E, -base));
        rows.max[i] = top;
        rows.sum[i] = fmaf(rows.sum[i], mine[i], sum[i] * theirs[i]);
    }
}
/* N groups of 8 columns of the lane's sums, joined with other ones that lie [group][thread]. */
template <int FIRST, int N> DGC_FN void join_columns(float (&acc)[128], const float4 *other, const float (&mine)[2], const float (&theirs)[2]) {
#pragma unroll
    for (int n = FIRST; n < FIRST + N; n++) {
        float4 v = other[n * 128];
        float in[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[4 * n + j] = fmaf(acc[4 * n + j], mine[j >> 1], in[j] * theirs[j >> 1]);
    }
}

/* Nothing is joined behind this: sums come out divided by those of their row. */
DGC_FN void last_join(const struct rows &rows, float (&mine)[2], float (&theirs)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float scale = __fdividef(1.0f, rows.sum[i]);
        mine[i] *= scale;
        theirs[i] *= scale;
    }
}

/* Columns to the output from col on, 32 N of the lane's rows u0 and u0 + 8. */
template <int N>
DGC_FN void put_joined(const struct dgc_flash_args &f, const float (&acc)[128], int kvh, int u0, int u_end, int group, int col) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t *y = out_row(f, kvh, u0 + 8 * i, u_end, group, col + 6 * (threadIdx.x & 3));
#pragma unroll
        for (int h = 0; h < N; h++) {
            uint32_t w[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                w[n] = dgc_pack_bf16(acc[16 * h + 4 * n + 2 * i], acc[16 * h + 4 * n + 2 * i + 1]);
            quad_turn(w);
            if (y)
                *(uint4 *)(y + 16 * h) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

#endif
