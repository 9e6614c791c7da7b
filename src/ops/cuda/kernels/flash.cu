/* Attention on tensor cores: bf16 queries (exact in f16 unless tiny), f16 keys and values, f32 scores and sums, f16 probabilities.
 *
 * A block takes a tile of query rows of one kv head (rows times the heads that share it) and keys in blocks of 32 that begin at multiples
 * of 32; a row is cut into parts of a fixed number of keys at multiples of it. So a row's arithmetic depends on its own position alone.
 * A warp has 16 rows to itself, scores and probabilities in registers; heads of more than 256 dimensions give two warps the same rows, each
 * of which makes all scores and half of the output. Keys and values come by turns through a ring of tiles. */
#include "ops/cuda/kernels/device.cuh"

#define KEYS DGC_FLASH_KEYS
#define D_TILES 32 /* 8-wide tiles of head dimensions a warp has at most */

/* Where 8 values (16 bytes) of a row lie in a tile. Queries and keys are read by two rows at once, values by eight. */
DGC_FN int swizzle2(int row, int chunk, int hd) { return row * hd + ((chunk ^ (row & 1) << 2) << 3); }
DGC_FN int swizzle8(int row, int chunk, int hd) { return row * hd + ((chunk ^ (row & 7)) << 3); }

/* Positions row i of the batch sees. */
DGC_FN void visible(const struct dgc_flash_args *a, int i, int64_t *lo, int64_t *hi) {
    dgc_visible(a->prm, a->causal, a->kv.window, i, lo, hi);
}

struct keys {
    int64_t lo, hi; /* what the block reads */
    int warps, kvh;
};

/* Begins the copy of 32 keys or values from t0, a warp a key; those outside [lo, hi) become zeros, since what their slots hold may be anything. */
DGC_FN void load_tile(const struct dgc_kv *kv, const struct keys *b, int values, int64_t t0, uint16_t *to) {
    int hd = kv->hd, lane = (int)threadIdx.x & 31;
    const void *from = values ? kv->v : kv->k;
    for (int key = (int)threadIdx.x >> 5; key < KEYS; key += b->warps) {
        int64_t t = t0 + key;
        int seen = t >= b->lo && t < b->hi;
        const uint16_t *src = (const uint16_t *)from + (dgc_slot(kv, t) * kv->kv_heads + b->kvh) * hd;
        for (int chunk = lane; chunk < hd >> 3; chunk += 32) {
            uint16_t *dst = to + (values ? swizzle8(key, chunk, hd) : swizzle2(key, chunk, hd));
            if (seen) {
                dgc_cp_async16(dst, src + chunk * 8);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    ((uint32_t *)dst)[j] = 0;
            }
        }
    }
}

/* What the lane's two rows see, counted from the first block's first key, and their running softmax. */
struct rows {
    int lo[2], hi[2];
    float max[2], sum[2];
};

/* s[n][i]: scores of rows g, g + 8 (i / 2) and keys 8 n + 2 c + i % 2. q: the warp's 16 rows. */
DGC_FN void scores(const uint16_t *q, const uint16_t *ks, int hd, float (*s)[4]) {
    int lane = (int)threadIdx.x & 31, g = lane >> 2, c = lane & 3;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = 0.0f;
#pragma unroll 2
    for (int k = 0; k < hd / 32; k++) {
        uint4 x = *(const uint4 *)(q + swizzle2(g, k * 4 + c, hd)), y = *(const uint4 *)(q + swizzle2(g + 8, k * 4 + c, hd));
        uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint4 b = *(const uint4 *)(ks + swizzle2(n * 8 + g, k * 4 + c, hd));
            dgc_mma_f16(s[n], a0, b.x, b.y);
            dgc_mma_f16(s[n], a1, b.z, b.w);
        }
    }
}

/* Scores to probabilities in f16, as A fragments of two products over 16 keys; what the sums so far must be multiplied with in scale. */
DGC_FN void softmax(struct rows *rows, int k0, float (*s)[4], uint32_t (*p)[4], float *scale) {
    int c = (int)threadIdx.x & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = rows->max[r], add = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int key = k0 + (j >> 1) * 8 + 2 * c + (j & 1);
            float *v = &s[j >> 1][2 * r + (j & 1)];
            *v = key >= rows->lo[r] && key < rows->hi[r] ? *v : -DGC_INF;
            top = fmaxf(top, *v);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        scale[r] = rows->max[r] == top ? 1.0f : __expf(rows->max[r] - top);
        rows->max[r] = top;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float *v = &s[j >> 1][2 * r + (j & 1)];
            *v = *v == -DGC_INF ? 0.0f : __expf(*v - top);
            add += *v;
        }
        rows->sum[r] = fmaf(rows->sum[r], scale[r], add);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            p[n >> 1][(n & 1) * 2 + r] = dgc_pack_f16(s[n][2 * r], s[n][2 * r + 1]);
}

/* acc += p . values over the warp's head dimensions, d0 and on. */
DGC_FN void add_values(const uint16_t *vs, int hd, int d0, int dims, uint32_t (*p)[4], float (*acc)[4]) {
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < D_TILES; i += 2)
            if (i * 8 < dims) {
                uint32_t b[4];
                int key = k * 16 + (lane & 7) + (lane >> 3 & 1) * 8, chunk = (d0 >> 3) + i + (lane >> 4);
                dgc_ldmatrix_x4_trans(b, vs + swizzle8(key, chunk, hd));
                dgc_mma_f16(acc[i], p[k], b[0], b[1]);
                dgc_mma_f16(acc[i + 1], p[k], b[2], b[3]);
            }
}

DGC_FN void store2(const struct dgc_plane *y, int64_t at, float a, float b) {
    if (y->dtype == DGC_BF16 && !(((uint64_t)y->p & 3) | (at & 1))) {
        *(uint32_t *)((uint16_t *)y->p + at) = dgc_pack_bf16(a, b);
    } else {
        dgc_store(y->p, y->dtype, at, a);
        dgc_store(y->p, y->dtype, at + 1, b);
    }
}

/* tile: query rows; halves: warps that share 16 of them; ring: tiles of keys or values in shared memory, 2 or 4. */
DGC_FN void flash(const struct dgc_flash_args *a, int tile, int halves, int ring, unsigned char *shared) {
    int hd = a->kv.hd, dims = hd / halves, group = a->heads / a->kv.kv_heads, units = a->n * group, q_tiles = (units + tile - 1) / tile;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * tile, u_end = u0 + tile < units ? u0 + tile : units;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, strip = warp / halves * 16;
    int half = warp % halves, warps = tile / 16 * halves;
    uint16_t *qs = (uint16_t *)shared, *slot = qs + tile * hd;

    /* the block's keys: what its rows see between them, cut to its part */
    struct keys keys = {0, 0, warps, kvh};
    int64_t unused, part0, end;
    visible(a, a->row0, &keys.lo, &unused);
    part0 = (keys.lo / a->split + (int)blockIdx.y) * a->split;
    visible(a, a->row0 + (u_end - 1) / group, &unused, &keys.hi);
    visible(a, a->row0 + u0 / group, &keys.lo, &unused);
    keys.lo = keys.lo > part0 ? keys.lo : part0;
    keys.hi = keys.hi < part0 + a->split ? keys.hi : part0 + a->split;
    int64_t t0 = keys.lo & ~(int64_t)(KEYS - 1);
    int tiles = keys.hi > t0 ? 2 * (int)((keys.hi - t0 + KEYS - 1) / KEYS) : 0;

    struct rows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int u = u0 + strip + g + 8 * r;
        rows.lo[r] = rows.hi[r] = 0;
        rows.max[r] = -DGC_INF;
        rows.sum[r] = 0.0f;
        if (u < u_end) {
            int64_t from;
            visible(a, a->row0 + u / group, &from, &end);
            rows.lo[r] = (int)((from > keys.lo ? from : keys.lo) - t0);
            rows.hi[r] = (int)((end < keys.hi ? end : keys.hi) - t0);
        }
    }
    for (int i = 0; i < ring - 1; i++) {
        if (i < tiles)
            load_tile(&a->kv, &keys, i & 1, t0 + (i >> 1) * KEYS, slot + i * KEYS * hd);
        dgc_cp_commit();
    }
    for (int row = warp; row < tile; row += warps) {
        int u = u0 + row, m = u / group;
        int64_t at = (int64_t)m * a->q.ld + (int64_t)(kvh * group + u - m * group) * hd;
        for (int d = lane; d < hd; d += 32)
            qs[swizzle2(row, d >> 3, hd) + (d & 7)] = u < u_end ? dgc_f32_f16(dgc_load(a->q.p, a->q.dtype, at + d)) : 0;
    }
    float acc[D_TILES][4];
    uint32_t p[2][4];
#pragma unroll
    for (int i = 0; i < D_TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;

    for (int i = 0; i < tiles; i++) {
        if (ring == 4)
            dgc_cp_wait(2);
        else
            dgc_cp_wait(0);
        __syncthreads(); /* tile i is there, and nobody reads the one before any more */
        int next = i + ring - 1;
        if (next < tiles)
            load_tile(&a->kv, &keys, next & 1, t0 + (next >> 1) * KEYS, slot + next % ring * KEYS * hd);
        dgc_cp_commit();
        const uint16_t *now = slot + i % ring * KEYS * hd;
        if (i & 1) {
            add_values(now, hd, half * dims, dims, p, acc);
        } else {
            float s[4][4], scale[2];
            scores(qs + strip * hd, now, hd, s);
            softmax(&rows, (i >> 1) * KEYS, s, p, scale);
            if (__ballot_sync(0xffffffffu, scale[0] != 1.0f || scale[1] != 1.0f))
#pragma unroll
                for (int d = 0; d < D_TILES; d++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[d][j] *= scale[j >> 1];
        }
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int u = u0 + strip + g + 8 * r, m = u / group, head = kvh * group + u - m * group;
        if (u >= u_end)
            continue;
        int64_t at = ((int64_t)blockIdx.y * a->n + m) * a->heads + head;
        if (a->splits > 1 && c == 0 && half == 0) {
            a->stat[at * 2] = rows.max[r];
            a->stat[at * 2 + 1] = sum;
        }
#pragma unroll
        for (int i = 0; i < D_TILES; i++)
            if (i * 8 < dims) {
                int d = half * dims + i * 8 + 2 * c;
                float v = acc[i][2 * r], w = acc[i][2 * r + 1];
                if (a->splits > 1)
                    *(uint64_t *)(a->part + at * hd + d) = (uint64_t)__float_as_uint(w) << 32 | __float_as_uint(v);
                else
                    store2(&a->y, (int64_t)m * a->y.ld + (int64_t)head * hd + d, v / sum, w / sum);
            }
    }
}

DGC_KERNEL(flash_256, flash, 128) {
    DGC_DYNAMIC_SHARED(shared);
    flash(&a, DGC_FLASH_ROWS, 1, 4, shared);
}

DGC_KERNEL(flash_512, flash, 128) {
    DGC_DYNAMIC_SHARED(shared);
    flash(&a, DGC_FLASH_ROWS / 2, 2, 2, shared);
}

/* For devices whose blocks can have the memory. */
DGC_KERNEL(flash_512_wide, flash, 256) {
    DGC_DYNAMIC_SHARED(shared);
    flash(&a, DGC_FLASH_ROWS, 2, 4, shared);
}

/* y = the parts of a (row, head) in order. A part that saw nothing has the sum 0 and adds nothing, so their number does not matter. */
DGC_KERNEL(flash_join, flash_join, 128) {
    int64_t unit = blockIdx.x, row = unit / a.heads, stride = (int64_t)a.n * a.heads;
    int head = (int)(unit - row * a.heads);
    float max = -DGC_INF, sum = 0.0f;
    for (int s = 0; s < a.splits; s++)
        max = fmaxf(max, a.stat[(s * stride + unit) * 2]);
    for (int s = 0; s < a.splits; s++)
        if (a.stat[(s * stride + unit) * 2 + 1] != 0.0f)
            sum = fmaf(a.stat[(s * stride + unit) * 2 + 1], __expf(a.stat[(s * stride + unit) * 2] - max), sum);
    for (int d = (int)threadIdx.x; d < a.hd; d += 128) {
        float v = 0.0f;
        for (int s = 0; s < a.splits; s++)
            if (a.stat[(s * stride + unit) * 2 + 1] != 0.0f)
                v = fmaf(a.part[(s * stride + unit) * a.hd + d], __expf(a.stat[(s * stride + unit) * 2] - max), v);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + (int64_t)head * a.hd + d, v / sum);
    }
}
