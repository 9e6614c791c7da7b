/* Query and key norms, rotation and the KV store; attention in f32 arithmetic. */
#include "ops/cuda/kernels/device.cuh"

DGC_FN int64_t kv_slot(const struct dgc_kv *kv, int64_t pos) { return kv->ring ? pos & (kv->slots - 1) : pos; }

DGC_FN float warp_inv_rms(const struct dgc_plane *x, int64_t at, int hd, float eps) {
    float s = 0;
    for (int c = (int)threadIdx.x & 31; c < hd; c += 32) {
        float v = dgc_load(x->p, x->dtype, at + c);
        s = fmaf(v, v, s);
    }
    return 1.0f / sqrtf(dgc_warp_sum(s) / (float)hd + eps);
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
    int64_t dst = (kv_slot(&a.kv, a.prm->pos0 + row) * a.kv.kv_heads + h) * hd;
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
    int64_t unit = (int64_t)blockIdx.x * 4 + ((int)threadIdx.x >> 5), row = unit / a.heads, pos0 = a.prm->pos0;
    int h = (int)(unit - row * a.heads), kvh = h / (a.heads / a.kv.kv_heads);
    if (row >= a.n)
        return;
    int64_t p = a.causal ? pos0 + row : pos0, live_end = pos0 + a.prm->n_live, hi = a.causal ? p + 1 : live_end, lo = 0;
    hi = hi < live_end ? hi : live_end;
    if (a.kv.window && p - (a.kv.window - 1) > 0)
        lo = p - (a.kv.window - 1);

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
            int64_t at = (kv_slot(&a.kv, t0 + j) * a.kv.kv_heads + kvh) * hd;
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
            int64_t at = (kv_slot(&a.kv, t0 + j) * a.kv.kv_heads + kvh) * hd;
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
