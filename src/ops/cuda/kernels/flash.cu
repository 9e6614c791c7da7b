/* Attention on tensor cores: bf16 queries (exact in f16 unless tiny), f16 keys and values, f32 scores and sums, f16 probabilities.
 *
 * A block takes a tile of query rows of one kv head (rows times the heads that share it) and keys in blocks of 32 that begin at multiples
 * of 32; a row is cut into parts of a fixed number of keys at multiples of it. So a row's arithmetic depends on its own position alone.
 * Two warps share 16 rows: each makes the scores of half the keys, and the output of half the head dimensions. */
#include "ops/cuda/kernels/device.cuh"

#define KEYS DGC_FLASH_KEYS
#define S_STRIDE (KEYS + 4)

/* Where 8 values (16 bytes) of a row lie in a tile. Queries and keys are read by two rows at once, values by eight. */
DGC_FN int swizzle2(int row, int chunk, int hd) { return row * hd + ((chunk ^ (row & 1) << 2) << 3); }
DGC_FN int swizzle8(int row, int chunk, int hd) { return row * hd + ((chunk ^ (row & 7)) << 3); }

/* Positions row i of the batch sees. */
DGC_FN void visible(const struct dgc_flash_args *a, int i, int64_t *lo, int64_t *hi) {
    dgc_visible(a->prm, a->causal, a->kv.window, i, lo, hi);
}

/* Begins the copy of 32 keys from t0, a warp a key; keys outside [lo, hi) become zeros, since what their slots hold may be anything. */
DGC_FN void load_keys(const struct dgc_kv *kv, const void *from, int warps, int kvh, int64_t t0, int64_t lo, int64_t hi, int values, uint16_t *to) {
    int hd = kv->hd, lane = (int)threadIdx.x & 31;
    for (int key = (int)threadIdx.x >> 5; key < KEYS; key += warps) {
        int64_t t = t0 + key;
        int seen = t >= lo && t < hi;
        const uint16_t *src = (const uint16_t *)from + (dgc_slot(kv, t) * kv->kv_heads + kvh) * hd;
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

/* rows: query rows of a tile, 8 threads each; d_tiles: 8-wide tiles of a warp's half of the head dimensions, at most. */
DGC_FN void flash(const struct dgc_flash_args *a, int rows, int d_tiles, unsigned char *shared) {
    int hd = a->kv.hd, group = a->heads / a->kv.kv_heads, units = a->n * group, q_tiles = (units + rows - 1) / rows;
    int kvh = (int)blockIdx.x / q_tiles, u0 = ((int)blockIdx.x - kvh * q_tiles) * rows, u_end = u0 + rows < units ? u0 + rows : units;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, pair = warp >> 1, part = warp & 1;
    int warps = rows / 8;
    uint16_t *qs = (uint16_t *)shared, *ks = qs + rows * hd, *vs = ks + KEYS * hd;
    float *ss = (float *)(vs + KEYS * hd);

    /* the block's keys: what its rows see between them, cut to its part */
    int64_t lo, hi, unused, part0;
    visible(a, a->row0, &lo, &unused);
    part0 = (lo / a->split + (int)blockIdx.y) * a->split;
    visible(a, a->row0 + (u_end - 1) / group, &unused, &hi);
    visible(a, a->row0 + u0 / group, &lo, &unused);
    lo = lo > part0 ? lo : part0;
    hi = hi < part0 + a->split ? hi : part0 + a->split;
    int64_t t0 = lo & ~(int64_t)(KEYS - 1);

    /* what the lane's two rows see, counted from the first block's first key */
    int row_lo[2], row_hi[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int u = u0 + pair * 16 + g + 8 * r;
        row_lo[r] = row_hi[r] = 0;
        if (u < u_end) {
            int64_t from, end;
            visible(a, a->row0 + u / group, &from, &end);
            row_lo[r] = from > lo ? (int)(from - t0) : (int)(lo - t0);
            row_hi[r] = end < hi ? (int)(end - t0) : (int)(hi - t0);
        }
    }

    if (t0 < hi)
        load_keys(&a->kv, a->kv.k, warps, kvh, t0, lo, hi, 0, ks);
    dgc_cp_commit();
    for (int row = warp; row < rows; row += warps) {
        int u = u0 + row, m = u / group;
        int64_t at = (int64_t)m * a->q.ld + (int64_t)(kvh * group + u - m * group) * hd;
        for (int d = lane; d < hd; d += 32)
            qs[swizzle2(row, d >> 3, hd) + (d & 7)] = u < u_end ? dgc_f32_f16(dgc_load(a->q.p, a->q.dtype, at + d)) : 0;
    }
    float acc[32][4], max[2] = {-DGC_INF, -DGC_INF}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < d_tiles; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;

    for (int k0 = 0; t0 < hi; t0 += KEYS, k0 += KEYS) {
        load_keys(&a->kv, a->kv.v, warps, kvh, t0, lo, hi, 1, vs);
        dgc_cp_commit();
        dgc_cp_wait(1);
        __syncthreads();
        /* scores of 16 rows and 16 keys */
        float s[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = 0.0f;
#pragma unroll 2
        for (int k = 0; k < hd / 32; k++) {
            uint4 x = *(const uint4 *)(qs + swizzle2(pair * 16 + g, k * 4 + c, hd));
            uint4 y = *(const uint4 *)(qs + swizzle2(pair * 16 + g + 8, k * 4 + c, hd));
            uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                uint4 b = *(const uint4 *)(ks + swizzle2(part * 16 + n * 8 + g, k * 4 + c, hd));
                dgc_mma_f16(s[n], a0, b.x, b.y);
                dgc_mma_f16(s[n], a1, b.z, b.w);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ss[(pair * 16 + g + 8 * (i >> 1)) * S_STRIDE + part * 16 + n * 8 + 2 * c + (i & 1)] = s[n][i];
        __syncthreads(); /* scores are there; the keys are read */
        if (t0 + KEYS < hi)
            load_keys(&a->kv, a->kv.k, warps, kvh, t0 + KEYS, lo, hi, 0, ks);
        dgc_cp_commit();
        /* softmax of the lane's 8 keys of two rows, as the A fragments of two products over 16 keys */
        uint32_t p[2][4];
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *row = ss + (pair * 16 + g + 8 * r) * S_STRIDE;
            float v[8], top = max[r];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int key = (j >> 1) * 8 + 2 * c + (j & 1);
                v[j] = k0 + key >= row_lo[r] && k0 + key < row_hi[r] ? row[key] : -DGC_INF;
                top = fmaxf(top, v[j]);
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            scale[r] = max[r] == top ? 1.0f : __expf(max[r] - top);
            max[r] = top;
            float add = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] = v[j] == -DGC_INF ? 0.0f : __expf(v[j] - top);
                add += v[j];
            }
            sum[r] = fmaf(sum[r], scale[r], add);
#pragma unroll
            for (int j = 0; j < 4; j++)
                p[j >> 1][(j & 1) * 2 + r] = dgc_pack_f16(v[2 * j], v[2 * j + 1]);
        }
#pragma unroll
        for (int i = 0; i < d_tiles; i++) {
            acc[i][0] *= scale[0];
            acc[i][1] *= scale[0];
            acc[i][2] *= scale[1];
            acc[i][3] *= scale[1];
        }
        dgc_cp_wait(1);
        __syncthreads(); /* the values are there */
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < d_tiles; i += 2)
                if (i * 8 < hd / 2) {
                    uint32_t b[4];
                    int key = k * 16 + (lane & 7) + (lane >> 3 & 1) * 8, chunk = (part * (hd / 2) >> 3) + i + (lane >> 4);
                    dgc_ldmatrix_x4_trans(b, vs + swizzle8(key, chunk, hd));
                    dgc_mma_f16(acc[i], p[k], b[0], b[1]);
                    dgc_mma_f16(acc[i + 1], p[k], b[2], b[3]);
                }
        __syncthreads(); /* the values are read */
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        int u = u0 + pair * 16 + g + 8 * r, m = u / group, head = kvh * group + u - m * group;
        if (u >= u_end)
            continue;
        int64_t at = ((int64_t)blockIdx.y * a->n + m) * a->heads + head;
        if (a->splits > 1 && c == 0 && part == 0) {
            a->stat[at * 2] = max[r];
            a->stat[at * 2 + 1] = sum[r];
        }
#pragma unroll
        for (int i = 0; i < d_tiles; i++)
            if (i * 8 < hd / 2)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int d = part * (hd / 2) + i * 8 + 2 * c + j;
                    if (a->splits > 1)
                        a->part[at * hd + d] = acc[i][2 * r + j];
                    else
                        dgc_store(a->y.p, a->y.dtype, (int64_t)m * a->y.ld + (int64_t)head * hd + d, acc[i][2 * r + j] / sum[r]);
                }
    }
}

DGC_KERNEL(flash_256, flash, 256) {
    DGC_DYNAMIC_SHARED(shared);
    flash(&a, 64, 16, shared);
}

DGC_KERNEL(flash_512, flash, 128) {
    DGC_DYNAMIC_SHARED(shared);
    flash(&a, 32, 32, shared);
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
