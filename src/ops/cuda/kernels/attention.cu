/* Query and key norms, rotation and the KV store; attention in f32 arithmetic. */
#include "ops/cuda/kernels/device.cuh"

DGC_FN float warp_inv_rms(const struct dgc_plane *x, int64_t at, int hd, float eps) {
    float s = 0;
    for (int c = (int)threadIdx.x & 31; c < hd; c += 32) {
        float v = dgc_load(x->p, x->dtype, at + c);
        s = fmaf(v, v, s);
    }
    return 1.0f / sqrtf(dgc_warp_sum(s) / (float)hd + eps);
}

#define WIDE 2 /* most pairs of 4 values a lane holds of a head: up to 512 dimensions */

DGC_FN void load4(const struct dgc_plane *p, int64_t at, float *v) {
    uint64_t u = *(const uint64_t *)((const uint16_t *)p->p + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = dgc_bf16_f32((uint32_t)(u >> (16 * i)) & 0xffff);
}
DGC_FN void load4_f32(const float *p, float *v) {
    uint4 u = *(const uint4 *)p;
    v[0] = __uint_as_float(u.x), v[1] = __uint_as_float(u.y), v[2] = __uint_as_float(u.z), v[3] = __uint_as_float(u.w);
}
DGC_FN void store4(void *p, int dtype, int64_t at, const float *v) {
    uint32_t lo = dtype == DGC_BF16 ? dgc_pack_bf16(v[0], v[1]) : dgc_pack_f16(v[0], v[1]);
    uint32_t hi = dtype == DGC_BF16 ? dgc_pack_bf16(v[2], v[3]) : dgc_pack_f16(v[2], v[3]);
    *(uint64_t *)((uint16_t *)p + at) = (uint64_t)hi << 32 | lo;
}

/* A head of 256 or 512 dimensions, 4 values at a time: x the first half, y the second. kind: 0 query, 1 key, 2 value. */
DGC_FN void qkv_wide(const struct dgc_qkv_store_args *a, int kind, int64_t row, int64_t src, int64_t dst) {
    int lane = (int)threadIdx.x & 31, hd = a->kv.hd, half = hd / 2, n = half / 128;
    float x[WIDE][4], y[WIDE][4], s = 0;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < n) {
            load4(&a->qkv, src + i * 128 + lane * 4, x[i]);
            load4(&a->qkv, src + half + i * 128 + lane * 4, y[i]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                s = fmaf(x[i][j], x[i][j], fmaf(y[i][j], y[i][j], s));
        }
    float r = 1.0f / sqrtf(dgc_warp_sum(s) / (float)hd + a->eps);
    const float *w = kind ? a->k_norm : a->q_norm;
    void *to = kind == 0 ? a->qkv.p : kind == 1 ? a->kv.k : a->kv.v;
    int dtype = kind ? a->kv.dtype : a->qkv.dtype;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < n) {
            int c = i * 128 + lane * 4;
            float u[4], v[4], cos[4], sin[4], wx[4], wy[4];
            if (kind < 2) {
                load4_f32(w + c, wx);
                load4_f32(w + c + half, wy);
                load4_f32(a->cos + row * half + c, cos);
                load4_f32(a->sin + row * half + c, sin);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float p = kind < 2 ? x[i][j] * r * wx[j] : x[i][j] * r, q = kind < 2 ? y[i][j] * r * wy[j] : y[i][j] * r;
                u[j] = kind < 2 ? p * cos[j] - q * sin[j] : p;
                v[j] = kind < 2 ? q * cos[j] + p * sin[j] : q;
            }
            store4(to, dtype, dst + c, u);
            store4(to, dtype, dst + c + half, v);
        }
}

/* Unit u of a row: query heads, then keys, then values. The plane's keys stay as they are: a layer without a value projection reads its
 * values from them. */
DGC_KERNEL(qkv_store, qkv_store, 128) {
    int lane = (int)threadIdx.x & 31, hd = a.kv.hd, half = hd / 2, units = a.heads + 2 * a.kv.kv_heads;
    int64_t unit = (int64_t)blockIdx.x * 4 + ((int)threadIdx.x >> 5), row = unit / units;
    int u = (int)(unit - row * units), h = u - a.heads;
    if (row >= a.n)
        return;
    int is_v = h >= a.kv.kv_heads;
    h -= is_v ? a.kv.kv_heads : 0;
    if (u >= a.heads && row >= a.prm->n_live)
        return;
    int64_t src = row * a.qkv.ld + (int64_t)(u < a.heads ? u : a.heads + h + (is_v && a.has_v ? a.kv.kv_heads : 0)) * hd;
    int64_t dst = (dgc_slot(&a.kv, a.prm->pos0 + row) * a.kv.kv_heads + h) * hd;
    uint64_t places = (uint64_t)a.q_norm | (uint64_t)a.k_norm | (uint64_t)a.cos | (uint64_t)a.sin | (uint64_t)(half * 4);
    if ((hd == 256 || hd == 512) && a.qkv.dtype == DGC_BF16 && a.kv.dtype == DGC_F16 && !(places & 15) &&
        !(((uint64_t)a.qkv.p | (uint64_t)(a.qkv.ld * 2)) & 7)) {
        qkv_wide(&a, u < a.heads ? 0 : is_v ? 2 : 1, row, src, u < a.heads ? src : dst);
        return;
    }
    float r = warp_inv_rms(&a.qkv, src, hd, a.eps);
    if (u >= a.heads && is_v) {
        for (int c = lane; c < hd; c += 32)
            dgc_store(a.kv.v, a.kv.dtype, dst + c, dgc_load(a.qkv.p, a.qkv.dtype, src + c) * r);
        return;
    }
    const float *w = u < a.heads ? a.q_norm : a.k_norm, *cos = a.cos + row * half, *sin = a.sin + row * half;
    void *to = u < a.heads ? a.qkv.p : a.kv.k;
    int to_type = u < a.heads ? a.qkv.dtype : a.kv.dtype;
    dst = u < a.heads ? src : dst;
    for (int c = lane; c < half; c += 32) {
        float x = dgc_load(a.qkv.p, a.qkv.dtype, src + c) * r * w[c];
        float y = dgc_load(a.qkv.p, a.qkv.dtype, src + c + half) * r * w[c + half];
        dgc_store(to, to_type, dst + c, x * cos[c] - y * sin[c]);
        dgc_store(to, to_type, dst + c + half, y * cos[c] + x * sin[c]);
    }
}

#define LANE_DIMS 16 /* head dimensions a lane holds: up to 512 */
#define KEYS 32      /* keys of a block; blocks begin at multiples of it, so that a row's sums never depend on the batch */

/* One warp a (row, head), running softmax over blocks of 32 keys. */
DGC_KERNEL(attention, attention, 128) {
    int lane = (int)threadIdx.x & 31, hd = a.kv.hd;
    int64_t unit = (int64_t)blockIdx.x * 4 + ((int)threadIdx.x >> 5), row = unit / a.heads;
    int h = (int)(unit - row * a.heads), kvh = h / (a.heads / a.kv.kv_heads);
    if (row >= a.n)
        return;
    int64_t lo, hi;
    dgc_visible(a.prm, a.causal, a.kv.window, (int)row, &lo, &hi);

    float q[LANE_DIMS], acc[LANE_DIMS], max = -DGC_INF, sum = 0;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int c = i * 32 + lane;
        q[i] = c < hd ? dgc_load(a.q.p, a.q.dtype, row * a.q.ld + (int64_t)h * hd + c) : 0.0f;
        acc[i] = 0;
    }
    for (int64_t t0 = lo & ~(int64_t)(KEYS - 1); t0 < hi; t0 += KEYS) {
        int first = t0 < lo ? (int)(lo - t0) : 0, end = hi - t0 < KEYS ? (int)(hi - t0) : KEYS;
        float mine = -DGC_INF;
        for (int j = first; j < end; j++) {
            int64_t at = (dgc_slot(&a.kv, t0 + j) * a.kv.kv_heads + kvh) * hd;
            float s = 0;
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++)
                if (i * 32 + lane < hd)
                    s = fmaf(q[i], dgc_load(a.kv.k, a.kv.dtype, at + i * 32 + lane), s);
            s = dgc_warp_sum(s);
            mine = lane == j ? s : mine;
        }
        float top = mine;
#pragma unroll
        for (int s = 16; s; s >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, s));
        top = fmaxf(top, max);
        /* a NaN score passes fmaxf by and must still end in the output; -Inf as the first maximum would make 0 * Inf of nothing */
        float scale = max == top ? 1.0f : expf(max - top), pr = lane >= first && lane < end ? expf(mine - top) : 0.0f;
        max = top;
        sum = fmaf(sum, scale, dgc_warp_sum(pr));
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            acc[i] *= scale;
        for (int j = first; j < end; j++) {
            int64_t at = (dgc_slot(&a.kv, t0 + j) * a.kv.kv_heads + kvh) * hd;
            float w = __shfl_sync(0xffffffffu, pr, j);
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++)
                if (i * 32 + lane < hd)
                    acc[i] = fmaf(w, dgc_load(a.kv.v, a.kv.dtype, at + i * 32 + lane), acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        if (i * 32 + lane < hd)
            dgc_store(a.y.p, a.y.dtype, row * a.y.ld + (int64_t)h * hd + i * 32 + lane, acc[i] / sum);
}

DGC_KERNEL(scores, scores, 128) {
    int lane = (int)threadIdx.x & 31, hd = a.kv.hd;
    int64_t unit = (int64_t)blockIdx.x * 4 + ((int)threadIdx.x >> 5), row = unit / a.heads, lo, hi;
    int h = (int)(unit - row * a.heads), kvh = h / (a.heads / a.kv.kv_heads);
    if (row >= a.n)
        return;
    dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + (int)row, &lo, &hi);
    int64_t from = lo + (int64_t)blockIdx.y * DGC_SCORE_KEYS, end = from + DGC_SCORE_KEYS < hi ? from + DGC_SCORE_KEYS : hi;
    float q[LANE_DIMS];
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int c = i * 32 + lane;
        q[i] = c < hd ? dgc_load(a.q.p, a.q.dtype, row * a.q.ld + (int64_t)h * hd + c) : 0.0f;
    }
    for (int64_t t = from; t < end; t++) {
        int64_t at = (dgc_slot(&a.kv, t) * a.kv.kv_heads + kvh) * hd;
        float s = 0;
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            if (i * 32 + lane < hd)
                s = fmaf(q[i], dgc_load(a.kv.k, a.kv.dtype, at + i * 32 + lane), s);
        s = dgc_warp_sum(s);
        if (lane == 0)
            a.score[unit * a.stride + t - lo] = s;
    }
}

/* Order of floats as unsigned numbers; NaN above all, so that it is kept and ends in the output. */
DGC_FN uint32_t rank_of(float v) {
    uint32_t u = __float_as_uint(v);
    return v != v ? 0xffffffffu : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Sum over the 8 warps' threads before this one, and over all. */
DGC_FN int count_before(int mine, int *warp_count, int *all) {
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, sum = mine, ahead = 0;
#pragma unroll
    for (int s = 1; s < 32; s <<= 1) {
        int v = __shfl_up_sync(0xffffffffu, sum, s);
        sum += lane >= s ? v : 0;
    }
    __syncthreads();
    if (lane == 31)
        warp_count[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < 8; w++) {
        ahead += w < warp ? warp_count[w] : 0;
        *all += warp_count[w];
    }
    return ahead + sum - mine;
}

/* The k-th highest score is found digit by digit (counts of integers: their order does not matter), the kept positions are listed in
 * order, and the sums run over that list. */
DGC_KERNEL(top_attention, top_attention, 256) {
    __shared__ int count[256], warp_count[8], chosen[2];
    __shared__ int at[DGC_TOP_MAX];
    __shared__ float p[DGC_TOP_MAX];
    __shared__ float tmp[8];
    int64_t unit = blockIdx.x, row = unit / a.heads, lo, hi;
    int h = (int)(unit - row * a.heads), kvh = h / (a.heads / a.kv.kv_heads), hd = a.kv.hd, tid = (int)threadIdx.x;
    dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + (int)row, &lo, &hi);
    int n = (int)(hi - lo), k = a.topk > 0 ? a.topk : n / 128 < 64 ? 64 : n / 128 > 512 ? 512 : n / 128;
    const float *s = a.score + unit * a.stride;
    k = k < n ? k : n;
    k = k < DGC_TOP_MAX ? k : DGC_TOP_MAX;

    uint32_t prefix = 0;
    int need = k; /* how many are still to be found among those that begin with the prefix */
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        count[tid] = 0;
        __syncthreads();
        for (int i = tid; i < n; i += 256) {
            uint32_t r = rank_of(s[i]);
            if ((r & mask) == prefix)
                atomicAdd(&count[r >> shift & 255], 1);
        }
        __syncthreads();
        if (tid == 0) {
            int digit = 255, left = need;
            while (digit > 0 && count[digit] < left)
                left -= count[digit--];
            chosen[0] = digit;
            chosen[1] = left;
        }
        __syncthreads();
        prefix |= (uint32_t)chosen[0] << shift;
        need = chosen[1];
    }

    /* all above the k-th, and the first `need` of those equal to it */
    int kept = 0, equal = 0;
    float max = -DGC_INF;
    for (int i0 = 0; i0 < n; i0 += 256) {
        int i = i0 + tid, all_equal, all_kept;
        uint32_t r = i < n ? rank_of(s[i]) : 0;
        int is_equal = i < n && r == prefix, before = count_before(is_equal, warp_count, &all_equal);
        int keep = i < n && (r > prefix || (is_equal && equal + before < need));
        int place = kept + count_before(keep, warp_count, &all_kept);
        if (keep) {
            at[place] = i;
            p[place] = s[i];
            max = s[i] > max || s[i] != s[i] ? s[i] : max;
        }
        kept += all_kept;
        equal += all_equal;
    }
#pragma unroll
    for (int x = 16; x; x >>= 1)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, x));
    __syncthreads();
    if ((tid & 31) == 0)
        tmp[tid >> 5] = max;
    __syncthreads();
    for (int w = 0; w < 8; w++)
        max = fmaxf(max, tmp[w]);
    float sum = 0;
    for (int j = tid; j < k; j += 256) {
        p[j] = expf(p[j] - max);
        sum += p[j];
    }
    sum = dgc_block_sum(sum, tmp, 8);
    __syncthreads();
    for (int c = tid; c < hd; c += 256) {
        float v = 0;
        for (int j = 0; j < k; j++)
            v = fmaf(p[j], dgc_load(a.kv.v, a.kv.dtype, (dgc_slot(&a.kv, lo + at[j]) * a.kv.kv_heads + kvh) * hd + c), v);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + (int64_t)h * hd + c, v / sum);
    }
}
