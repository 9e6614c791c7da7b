/* Row statistics of the logits and the soft embedding, dense and sparse. */
#include "ops/cuda/kernels/gemm_f32.cuh"

#define STAT_WARPS 32

/* One block a row. Sums run in f32 over 16 terms and in double above, so that 262,144 terms cost no accuracy. */
DGC_KERNEL(row_stats, row_stats, 1024) {
    __shared__ float best_v[STAT_WARPS];
    __shared__ int best_id[STAT_WARPS];
    __shared__ double tmp[STAT_WARPS];
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, id = 0x7fffffff;
    int64_t row = blockIdx.x;
    const float *z = a.logits + row * a.ld;
    float inv_t = a.prm->inv_t_head, best = -DGC_INF;
    int tiles = (a.vocab + DGC_STATS_TILE - 1) / DGC_STATS_TILE;
    for (int t = warp; t < tiles; t += STAT_WARPS) {
        float tile = -DGC_INF;
#pragma unroll
        for (int i = 0; i < DGC_STATS_TILE / 32; i++) {
            int v = t * DGC_STATS_TILE + i * 32 + lane;
            float x = v < a.vocab ? z[v] : -DGC_INF;
            tile = x > tile ? x : tile;
            if (x > best) {
                best = x;
                id = v;
            }
        }
        if (a.tile_max) {
            uint32_t key = __reduce_max_sync(0xffffffffu, dgc_key_of(tile));
            if (lane == 0)
                a.tile_max[row * tiles + t] = dgc_of_key(key);
        }
    }
    for (int level = 0; level < 2; level++) {
#pragma unroll
        for (int s = 16; s; s >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best, s);
            int jd = __shfl_xor_sync(0xffffffffu, id, s);
            if (v > best || (v == best && jd < id)) {
                best = v;
                id = jd;
            }
        }
        if (level == 0) {
            if (lane == 0) {
                best_v[warp] = best;
                best_id[warp] = id;
            }
            __syncthreads();
            best = best_v[lane];
            id = best_id[lane];
        }
    }
    /* no value above -Inf: NaN or -Inf throughout, which the sums report */
    id = id == 0x7fffffff ? 0 : id;
    float max = z[id] * inv_t;
    double sum = 0, moment = 0;
    for (int v0 = (int)threadIdx.x; v0 < a.vocab; v0 += 1024 * 16) {
        float s = 0, m = 0;
        for (int i = 0; i < 16; i++) {
            int v = v0 + i * 1024;
            if (v < a.vocab) {
                float d = fmaf(z[v], inv_t, -max), e = expf(d);
                s += e;
                m = fmaf(e, d, m);
            }
        }
        sum += (double)s;
        moment += (double)m;
    }
    sum = dgc_block_sum_f64(sum, tmp, STAT_WARPS);
    moment = dgc_block_sum_f64(moment, tmp, STAT_WARPS);
    if (threadIdx.x == 0) {
        double h = log(sum) - moment / sum;
        a.entropy[row] = (float)(h < 0 ? 0 : h);
        a.max[row] = max;
        a.sum[row] = (float)sum;
        a.p_max[row] = (float)(1.0 / sum);
        a.argmax[row] = id;
    }
}

#define SOFT_FLUSH 2048 /* ids summed before the sum joins the total: bounds the error of a sum over the vocabulary */

/* Whether a row is computed densely: all rows of an exact embedding, and of a sparse one those with too many survivors to list. */
DGC_FN int is_dense(int sparse, const int32_t *count, int64_t row) { return !sparse || count[row] > DGC_SOFT_LIST; }

/* A logit's probability times the row's sum; 0 where the sparse form leaves it out. */
DGC_FN float prob(float z, float inv_t, float max, int sparse) {
    float d = fmaf(z, inv_t, -max);
    return sparse && !(d >= DGC_SPARSE_CUT) ? 0.0f : expf(d);
}

/* y = scale * p . embed, p = exp(z / T - max) / sum, in tiles of 64 x 64 as the exact product. */
DGC_KERNEL(soft_dense, soft_dense, 256) {
    __shared__ float ps[GEMM_K * GEMM_PAD], es[GEMM_K * GEMM_PAD];
    int c0 = (int)blockIdx.x * 64, m0 = (int)blockIdx.y * 64;
    int row = m0 + ((int)threadIdx.x >> 2), hidden = a.e.k, vocab = a.e.n;
    int er = (int)threadIdx.x >> 3, ec = ((int)threadIdx.x & 7) * 8;
    float inv_t = a.prm->inv_t_soft, max = 0, inv_sum = 0, global = dgc_mat_scale(&a.e, a.e.p);
    const float *z = row < a.rows && is_dense(a.sparse, a.count, row) ? a.logits + (int64_t)row * a.ld : 0;
    if (!__syncthreads_or(z != 0))
        return;
    if (z) {
        max = a.max[row];
        inv_sum = 1.0f / a.sum[row];
    }
    float acc[4][4], total[4][4];
    gemm_zero(acc);
    gemm_zero(total);
    for (int v0 = 0; v0 < vocab; v0 += GEMM_K) {
        float p[8], w[8];
        int at = v0 + ((int)threadIdx.x & 3) * 8;
#pragma unroll
        for (int i = 0; i < 8; i++)
            p[i] = z && at + i < vocab ? prob(z[at + i], inv_t, max, a.sparse) * inv_sum : 0.0f;
        if (v0 + er < vocab)
            dgc_decode8(a.e.fmt, a.e.p + (int64_t)(v0 + er) * a.e.row_bytes, global, c0 + ec, hidden, w);
        else
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[i] = 0.0f;
        __syncthreads();
        gemm_put8(ps, p);
#pragma unroll
        for (int i = 0; i < 8; i++)
            es[er * GEMM_PAD + ec + i] = w[i];
        __syncthreads();
        gemm_step(ps, es, acc);
        if ((v0 & (SOFT_FLUSH - 1)) == SOFT_FLUSH - GEMM_K) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    total[i][j] += acc[i][j];
                    acc[i][j] = 0;
                }
        }
    }
    int ty = m0 + ((int)threadIdx.x >> 4) * 4, tx = c0 + ((int)threadIdx.x & 15) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (ty + i < a.rows && tx + j < hidden && is_dense(a.sparse, a.count, ty + i))
                dgc_store(a.y.p, a.y.dtype, (int64_t)(ty + i) * a.y.ld + tx + j, (total[i][j] + acc[i][j]) * a.scale);
}

/* Four logits of a tile; those behind the vocabulary are -Inf. Returns which of them survive, a bit each. */
DGC_FN unsigned pick4(const float *z, int wide, int v, int vocab, float inv_t, float max, float *x) {
    unsigned keep = 0;
    if (wide && v + 4 <= vocab) {
        uint4 u = *(const uint4 *)(z + v);
        x[0] = __uint_as_float(u.x), x[1] = __uint_as_float(u.y), x[2] = __uint_as_float(u.z), x[3] = __uint_as_float(u.w);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = v + i < vocab ? z[v + i] : -DGC_INF;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        keep |= (unsigned)(fmaf(x[i], inv_t, -max) >= DGC_SPARSE_CUT) << i;
    return keep;
}

/* One block a row. A tile whose largest logit does not survive holds no survivor and is not read. The others are, twice: by a first pass that
 * counts, and where the list holds them all by a second one, each warp its tiles in order behind those of the warps before. Weights are kept
 * beside the ids. A row with more than the list holds is left to the dense form. */
DGC_KERNEL(soft_pick, soft_pick, 1024) {
    DGC_DYNAMIC_SHARED(shared);
    __shared__ int total[32];
    uint16_t *tile = (uint16_t *)shared;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, tiles = (a.vocab + DGC_STATS_TILE - 1) / DGC_STATS_TILE, n = 0;
    int64_t row = blockIdx.x;
    const float *z = a.logits + row * a.ld;
    int wide = !(((uint64_t)z) & 15);
    float inv_t = a.prm->inv_t_soft, max = a.max[row], x[4];
    for (int t0 = 0; t0 < tiles; t0 += 1024) {
        int t = t0 + (int)threadIdx.x;
        int keep = t < tiles && (!a.tile_max || fmaf(a.tile_max[row * tiles + t], inv_t, -max) >= DGC_SPARSE_CUT);
        unsigned votes = __ballot_sync(0xffffffffu, keep);
        __syncthreads();
        if (lane == 0)
            total[warp] = __popc(votes);
        __syncthreads();
        int at = n + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < 32; w++) {
            at += w < warp ? total[w] : 0;
            n += total[w];
        }
        if (keep)
            tile[at] = (uint16_t)t;
    }
    __syncthreads();
    int begin = n * warp / 32, end = n * (warp + 1) / 32, mine = 0;
#pragma unroll 4
    for (int i = begin; i < end; i++)
        mine += __popc(pick4(z, wide, tile[i] * DGC_STATS_TILE + lane * 4, a.vocab, inv_t, max, x));
#pragma unroll
    for (int s = 16; s; s >>= 1)
        mine += __shfl_xor_sync(0xffffffffu, mine, s);
    if (lane == 0)
        total[warp] = mine;
    __syncthreads();
    int at = 0, all = 0;
    for (int w = 0; w < 32; w++) {
        at += w < warp ? total[w] : 0;
        all += total[w];
    }
    if (threadIdx.x == 0)
        a.count[row] = all;
    if (all > DGC_SOFT_LIST)
        return;
    for (int i = begin; i < end; i++) {
        int v = tile[i] * DGC_STATS_TILE + lane * 4;
        unsigned keep = pick4(z, wide, v, a.vocab, inv_t, max, x);
        int own = __popc(keep), sum = own;
#pragma unroll
        for (int s = 1; s < 32; s <<= 1) {
            int add = __shfl_up_sync(0xffffffffu, sum, s);
            sum += lane >= s ? add : 0;
        }
        int64_t to = row * DGC_SOFT_LIST + at + sum - own;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (keep >> j & 1) {
                a.ids[to] = v + j;
                a.p[to++] = prob(x[j], inv_t, max, 1);
            }
        at += __shfl_sync(0xffffffffu, sum, 31);
    }
}

#define BATCH 384

/* w[0..7] = columns c .. c+7 of a row; wide: its bf16 values can be read at once. */
DGC_FN void gather8(const struct dgc_mat *e, int wide, float global, int id, int c, float *w) {
    const uint8_t *row = e->p + (int64_t)id * e->row_bytes;
    if (!wide) {
        dgc_decode8(e->fmt, row, global, c, e->k, w);
        return;
    }
    uint4 v = *(const uint4 *)(row + c * 2);
    uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[2 * i] = __uint_as_float(u[i] << 16);
        w[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
    }
}

/* s += p * embed[id] over the survivors [begin, end) of the lists, in order. */
DGC_FN void gather_sum(const struct dgc_mat *e, int wide, float global, const int *id, const float *p, int begin, int end, int c, float *s) {
    if (wide) {
#pragma unroll 4
        for (int j = begin; j < end; j++) {
            float w[8];
            gather8(e, 1, global, id[j], c, w);
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[i] = fmaf(p[j], w[i], s[i]);
        }
        return;
    }
    for (int j = begin; j < end; j++) {
        float w[8];
        gather8(e, 0, global, id[j], c, w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[i] = fmaf(p[j], w[i], s[i]);
    }
}

/* The sums of all ranges by one block, where a row has few survivors, to the bits that soft_sum makes of them. */
DGC_FN void gather_few(const struct dgc_soft_gather_args *a, int wide, float global, int64_t row, int count, int *id, float *p) {
    int tid = (int)threadIdx.x;
    if (tid < count) {
        id[tid] = a->ids[row * DGC_SOFT_LIST + tid];
        p[tid] = a->p[row * DGC_SOFT_LIST + tid];
    }
    __syncthreads();
    for (int c = tid * 8; c < a->e.k; c += 384 * 8) {
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = 0;
        for (int part = 0; part < DGC_SOFT_PARTS; part++) {
            float s[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[i] = 0;
            gather_sum(&a->e, wide, global, id, p, count * part / DGC_SOFT_PARTS, count * (part + 1) / DGC_SOFT_PARTS, c, s);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[i] += s[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (c + i < a->e.k)
                dgc_store(a->y.p, a->y.dtype, row * a->y.ld + c + i, sum[i] * (a->scale / a->sum[row]));
    }
}

/* The same range of all rows runs at about the same time, so that ids which many rows share come from the L2 cache. */
DGC_KERNEL(soft_gather, soft_gather, 384) {
    __shared__ float p[BATCH];
    __shared__ int id[BATCH];
    int64_t row = blockIdx.x;
    int part = (int)blockIdx.y, hidden = a.e.k, tid = (int)threadIdx.x, count = a.count[row];
    if (count > DGC_SOFT_LIST || (part > 0 && count <= DGC_SOFT_FEW))
        return;
    int wide = a.e.fmt == DGC_FMT_BF16 && hidden % 8 == 0 && !(((uint64_t)a.e.p | (uint64_t)a.e.row_bytes) & 15);
    float global = dgc_mat_scale(&a.e, a.e.p), *out = a.part + (row * DGC_SOFT_PARTS + part) * hidden;
    if (count <= DGC_SOFT_FEW) {
        gather_few(&a, wide, global, row, count, id, p);
        return;
    }
    int begin = count * part / DGC_SOFT_PARTS, end = count * (part + 1) / DGC_SOFT_PARTS;
    for (int c0 = 0; c0 < hidden; c0 += 384 * 8) {
        int c = c0 + tid * 8;
        float s[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[i] = 0;
        for (int j0 = begin; j0 < end; j0 += BATCH) {
            int n = end - j0 < BATCH ? end - j0 : BATCH;
            __syncthreads();
            if (tid < n) {
                id[tid] = a.ids[row * DGC_SOFT_LIST + j0 + tid];
                p[tid] = a.p[row * DGC_SOFT_LIST + j0 + tid];
            }
            __syncthreads();
            if (c < hidden)
                gather_sum(&a.e, wide, global, id, p, 0, n, c, s);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (c + i < hidden)
                out[c + i] = s[i];
    }
}

/* skip_dense: rows computed densely have their y already. So have those of few survivors. */
DGC_KERNEL(soft_sum, soft_sum, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    int dense = is_dense(a.sparse, a.count, row);
    if (c >= a.cols || (dense ? a.skip_dense : a.count[row] <= DGC_SOFT_FEW))
        return;
    float s = 0;
    int parts = dense ? a.dense_parts : DGC_SOFT_PARTS;
    for (int part = 0; part < parts; part++)
        s += a.part[(row * DGC_SOFT_PARTS + part) * a.cols + c];
    dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, s * (a.scale / a.sum[row]));
}
