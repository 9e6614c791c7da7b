/* q and k: norm a head, rotation; v: norm; k and v into the cache. */
#include "ops/cpu/rows.h"

#include <math.h>

struct qkv_job {
    const struct dg_cpu *c;
    struct dg_plane *qkv;
    int32_t heads;
    bool has_v;
    const struct dg_vec *q_norm, *k_norm;
    float eps;
    const float *cos, *sin;
    const struct dg_batch *batch;
    const struct dg_kv_layer *kv;
};

static float inv_rms(const struct dg_vec_kernels *k, const float *x, int32_t n, float eps) {
    return (float)(1.0 / sqrt(k->sum_squares(x, n) / n + (double)eps));
}

static void one_row(const struct qkv_job *j, int64_t i) {
    const struct dg_vec_kernels *k = &j->c->k.vec;
    const struct dg_kv_layer *kv = j->kv;
    int32_t hd = kv->hd;
    const float *cs = j->cos + i * (hd / 2), *sn = j->sin + i * (hd / 2);
    int64_t row = i * j->qkv->ld, keys = row + (int64_t)j->heads * hd, values = j->has_v ? keys + (int64_t)kv->kv_heads * hd : keys;
    float x[DG_HEAD_DIM_MAX];
    for (int32_t h = 0; h < j->heads; h++) {
        dg_rows_load(k, j->qkv->data, j->qkv->dtype, row + (int64_t)h * hd, hd, x);
        k->rotate(x, inv_rms(k, x, hd, j->eps), j->q_norm->v, cs, sn, hd / 2);
        dg_rows_store(k, x, hd, j->qkv->data, j->qkv->dtype, row + (int64_t)h * hd);
    }
    if (i >= j->batch->n_live)
        return;
    int64_t pos = j->batch->pos0 + i;
    for (int32_t h = 0; h < kv->kv_heads; h++) {
        dg_rows_load(k, j->qkv->data, j->qkv->dtype, values + (int64_t)h * hd, hd, x);
        k->scale(x, inv_rms(k, x, hd, j->eps), NULL, 1.0f, hd, x);
        dg_rows_store_head(k, kv, x, dg_rows_head(kv, kv->v, pos, h));
    }
    /* the plane keeps the raw K: nothing reads it again */
    for (int32_t h = 0; h < kv->kv_heads; h++) {
        dg_rows_load(k, j->qkv->data, j->qkv->dtype, keys + (int64_t)h * hd, hd, x);
        k->rotate(x, inv_rms(k, x, hd, j->eps), j->k_norm->v, cs, sn, hd / 2);
        dg_rows_store_head(k, kv, x, dg_rows_head(kv, kv->k, pos, h));
    }
}

static void qkv_part(void *arg, int part, int n_parts) {
    const struct qkv_job *j = arg;
    int64_t begin, end;
    dg_pool_range(j->batch->n, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        one_row(j, i);
}

void dg_cpu_qkv_store(struct dg_backend *be, struct dg_plane *qkv, int32_t heads, bool has_v, const struct dg_vec *q_norm,
                      const struct dg_vec *k_norm, float eps, const float *cos, const float *sin, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv) {
    struct qkv_job j = {be->impl, qkv, heads, has_v, q_norm, k_norm, eps, cos, sin, batch, kv};
    dg_pool_run(be->pool, qkv_part, &j);
}
