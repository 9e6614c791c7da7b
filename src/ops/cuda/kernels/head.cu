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
    for (int v = (int)threadIdx.x; v < a.vocab; v += 1024)
        if (z[v] > best) {
            best = z[v];
            id = v;
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

/* First id of range i. */
DGC_FN int part_begin(int vocab, int i) { return (int)((int64_t)vocab * i / DGC_SOFT_PARTS); }

/* One block a row: ids in ascending order by a running count. A row with more than the list holds is left to the dense form. */
DGC_KERNEL(soft_pick, soft_pick, 1024) {
    __shared__ int warp_count[32];
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, at = 0;
    int64_t row = blockIdx.x;
    const float *z = a.logits + row * a.ld;
    float inv_t = a.prm->inv_t_soft, max = a.max[row];
    int32_t *out = a.ids + row * DGC_SOFT_LIST, *part_at = a.part_at + row * (DGC_SOFT_PARTS + 1);
    for (int part = 0; part < DGC_SOFT_PARTS; part++) {
        int end = part_begin(a.vocab, part + 1);
        if (threadIdx.x == 0)
            part_at[part] = at;
        for (int v0 = part_begin(a.vocab, part); v0 < end; v0 += 1024) {
            int v = v0 + (int)threadIdx.x, keep = v < end && fmaf(z[v], inv_t, -max) >= DGC_SPARSE_CUT;
            unsigned votes = __ballot_sync(0xffffffffu, keep);
            if (!__syncthreads_or(keep))
                continue;
            if (lane == 0)
                warp_count[warp] = __popc(votes);
            __syncthreads();
            int mine = warp_count[lane], ahead = mine;
#pragma unroll
            for (int s = 1; s < 32; s <<= 1) {
                int n = __shfl_up_sync(0xffffffffu, ahead, s);
                ahead += lane >= s ? n : 0;
            }
            int all = __shfl_sync(0xffffffffu, ahead, 31), before_me = __shfl_sync(0xffffffffu, ahead - mine, warp);
            int place = at + before_me + __popc(votes & ((1u << lane) - 1));
            if (keep && place < DGC_SOFT_LIST)
                out[place] = v;
            at += all;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) {
        part_at[DGC_SOFT_PARTS] = at;
        a.count[row] = at;
    }
}

#define BATCH 384

DGC_KERNEL(soft_gather, soft_gather, 384) {
    __shared__ float p[BATCH];
    __shared__ int id[BATCH];
    int64_t row = blockIdx.y;
    int part = (int)blockIdx.x, hidden = a.e.k, tid = (int)threadIdx.x;
    if (is_dense(1, a.count, row))
        return;
    const float *z = a.logits + row * a.ld;
    const int32_t *ids = a.ids + row * DGC_SOFT_LIST, *part_at = a.part_at + row * (DGC_SOFT_PARTS + 1);
    float inv_t = a.prm->inv_t_soft, max = a.max[row], global = dgc_mat_scale(&a.e, a.e.p);
    float *out = a.part + (row * DGC_SOFT_PARTS + part) * hidden;
    int begin = part_at[part], end = part_at[part + 1];
    for (int c0 = 0; c0 < hidden; c0 += 384 * 8) {
        int c = c0 + tid * 8;
        float s[8], w[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[i] = 0;
        for (int j0 = begin; j0 < end; j0 += BATCH) {
            int n = end - j0 < BATCH ? end - j0 : BATCH;
            __syncthreads();
            if (tid < n) {
                id[tid] = ids[j0 + tid];
                p[tid] = prob(z[id[tid]], inv_t, max, 1);
            }
            __syncthreads();
            if (c < hidden)
#pragma unroll 2
                for (int j = 0; j < n; j++) {
                    dgc_decode8(a.e.fmt, a.e.p + (int64_t)id[j] * a.e.row_bytes, global, c, hidden, w);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        s[i] = fmaf(p[j], w[i], s[i]);
                }
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (c + i < hidden)
                out[c + i] = s[i];
    }
}

/* skip_dense: rows computed densely have their y already. */
DGC_KERNEL(soft_sum, soft_sum, 256) {
    int64_t row = blockIdx.y;
    int c = (int)(blockIdx.x * 256 + threadIdx.x);
    if (c >= a.cols || (a.skip_dense && is_dense(a.sparse, a.count, row)))
        return;
    float s = 0;
    for (int part = 0; part < DGC_SOFT_PARTS; part++)
        s += a.part[(row * DGC_SOFT_PARTS + part) * a.cols + c];
    dgc_store(a.y.p, a.y.dtype, row * a.y.ld + c, s * (a.scale / a.sum[row]));
}
