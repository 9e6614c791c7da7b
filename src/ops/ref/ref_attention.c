/* q/k/v norm, rotation and KV store, and attention of the reference backend. */
#include "ops/ref/ref.h"

#include "core/half.h"
#include "ops/kv_q8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *kv_head(const struct dg_kv_layer *kv, void *base, int64_t pos, int32_t h) {
    return (char *)base + (size_t)(dg_kv_slot(kv, pos) * kv->kv_heads + h) * dg_kv_head_bytes(kv->dtype, kv->hd);
}

/* x: a head's values. */
static void kv_put(const struct dg_kv_layer *kv, void *head, const float *x) {
    if (kv->dtype == DG_F32)
        memcpy(head, x, (size_t)kv->hd * sizeof *x);
    else if (kv->dtype == DG_Q8)
        dg_kv_q8_store(x, kv->hd, head);
    else
        for (int32_t c = 0; c < kv->hd; c++)
            ((uint16_t *)head)[c] = dg_f32_f16(x[c]);
}

/* A head as f32: in place when it is that, else converted into tmp. */
static const float *kv_get(const struct dg_kv_layer *kv, const void *head, float *tmp) {
    if (kv->dtype == DG_F32)
        return head;
    if (kv->dtype == DG_Q8)
        dg_kv_q8_load(head, kv->hd, tmp);
    else
        dg_ref_load_f16(head, kv->hd, tmp);
    return tmp;
}

struct qkv_job {
    struct dg_plane *qkv;
    int32_t heads;
    bool has_v;
    const struct dg_vec *q_norm, *k_norm;
    float eps;
    const float *cos, *sin;
    const struct dg_batch *batch;
    const struct dg_kv_layer *kv;
};

/* x: one head, normed with weight w, then rotated in split halves. */
static void norm_rotate(float *x, int32_t hd, const float *w, float eps, const float *cos, const float *sin) {
    float r = dg_ref_inv_rms(x, hd, eps);
    for (int32_t i = 0; i < hd / 2; i++) {
        float a = x[i] * r * w[i], b = x[i + hd / 2] * r * w[i + hd / 2];
        x[i] = a * cos[i] - b * sin[i];
        x[i + hd / 2] = b * cos[i] + a * sin[i];
    }
}

static void qkv_part(void *arg, int part, int n_parts) {
    struct qkv_job *j = arg;
    const struct dg_kv_layer *kv = j->kv;
    int32_t hd = kv->hd;
    int64_t begin, end;
    dg_pool_range(j->batch->n, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *q = (float *)j->qkv->data + i * j->qkv->ld, *k = q + (int64_t)j->heads * hd;
        const float *v = j->has_v ? k + (int64_t)kv->kv_heads * hd : k;
        const float *cos = j->cos + i * (hd / 2), *sin = j->sin + i * (hd / 2);
        for (int32_t h = 0; h < j->heads; h++)
            norm_rotate(q + (int64_t)h * hd, hd, j->q_norm->v, j->eps, cos, sin);
        if (i >= j->batch->n_live)
            continue;
        int64_t pos = j->batch->pos0 + i;
        /* V first: where it is the raw K, K must not have been rotated yet */
        for (int32_t h = 0; h < kv->kv_heads; h++) {
            const float *src = v + (int64_t)h * hd;
            float r = dg_ref_inv_rms(src, hd, j->eps), normed[DG_HEAD_DIM_MAX];
            for (int32_t c = 0; c < hd; c++)
                normed[c] = src[c] * r;
            kv_put(kv, kv_head(kv, kv->v, pos, h), normed);
        }
        for (int32_t h = 0; h < kv->kv_heads; h++) {
            float *src = k + (int64_t)h * hd;
            norm_rotate(src, hd, j->k_norm->v, j->eps, cos, sin);
            kv_put(kv, kv_head(kv, kv->k, pos, h), src);
        }
    }
}

void dg_ref_qkv_store(struct dg_backend *be, struct dg_plane *qkv, int32_t heads, bool has_v, const struct dg_vec *q_norm,
                      const struct dg_vec *k_norm, float eps, const float *cos, const float *sin, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv) {
    struct qkv_job j = {qkv, heads, has_v, q_norm, k_norm, eps, cos, sin, batch, kv};
    dg_pool_run(be->pool, qkv_part, &j);
}

struct att_job {
    struct dg_ref *ref;
    const struct dg_plane *q;
    int32_t heads;
    const struct dg_batch *batch;
    const struct dg_kv_layer *kv;
    struct dg_plane *y;
};

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sets all but the k highest of n scores to -inf; of equal ones the earlier stay. tmp: n floats. */
static void keep_highest(float *s, int64_t n, int64_t k, float *tmp) {
    memcpy(tmp, s, (size_t)n * sizeof *s);
    qsort(tmp, (size_t)n, sizeof *tmp, descending);
    float least = tmp[k - 1];
    int64_t ties = 0;
    while (ties < k && tmp[k - 1 - ties] == least)
        ties++;
    for (int64_t i = 0; i < n; i++)
        if (!(s[i] > least) && !(s[i] == least && ties-- > 0))
            s[i] = -INFINITY;
}

/* One query head over its visible positions: all scores, the softmax of the `keys` highest, the weighted values. s: scratch of
 * 2 * (hi - lo) scores, kv_row: scratch of hd values. */
static void attend(const float *q, const struct dg_kv_layer *kv, int32_t kvh, int64_t lo, int64_t hi, int64_t keys, float *s, float *kv_row,
                   float *y) {
    int32_t hd = kv->hd;
    float max = -INFINITY, sum = 0;
    bool any_nan = false; /* no order among the scores then: all stay, and the row comes out as NaN */
    for (int64_t t = lo; t < hi; t++) {
        s[t - lo] = dg_ref_dot(q, kv_get(kv, kv_head(kv, kv->k, t, kvh), kv_row), hd);
        max = s[t - lo] > max ? s[t - lo] : max;
        any_nan |= isnan(s[t - lo]);
    }
    if (keys < hi - lo && !any_nan)
        keep_highest(s, hi - lo, keys, s + (hi - lo));
    for (int64_t t = lo; t < hi; t++) {
        s[t - lo] = expf(s[t - lo] - max);
        sum += s[t - lo];
    }
    for (int32_t c = 0; c < hd; c++)
        y[c] = 0;
    for (int64_t t = lo; t < hi; t++) {
        float p = s[t - lo] / sum;
        if (p == 0)
            continue;
        const float *v = kv_get(kv, kv_head(kv, kv->v, t, kvh), kv_row);
        for (int32_t c = 0; c < hd; c++)
            y[c] += p * v[c];
    }
}

static void att_part(void *arg, int part, int n_parts) {
    struct att_job *j = arg;
    int32_t hd = j->kv->hd, group = j->heads / j->kv->kv_heads;
    int64_t begin, end;
    dg_pool_range((int64_t)j->batch->n * j->heads, 1, part, n_parts, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t i = u / j->heads, lo, hi;
        int32_t h = (int32_t)(u % j->heads);
        dg_batch_visible(j->batch, j->kv, (int32_t)i, &lo, &hi);
        int64_t keys = j->kv->window ? hi - lo : dg_batch_keys(j->batch, hi - lo);
        attend((const float *)j->q->data + i * j->q->ld + (int64_t)h * hd, j->kv, h / group, lo, hi, keys,
               j->ref->score + part * 2 * j->ref->cap.ctx, j->ref->row + (int64_t)part * 2 * j->ref->row_len,
               (float *)j->y->data + i * j->y->ld + (int64_t)h * hd);
    }
}

void dg_ref_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv, struct dg_plane *y) {
    struct att_job j = {be->impl, q, heads, batch, kv, y};
    dg_pool_run(be->pool, att_part, &j);
}
