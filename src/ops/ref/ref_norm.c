/* Row-wise ops of the reference backend: embedding gather, the norms, addition. */
#include "ops/ref/ref.h"

#include <math.h>

struct row_job {
    const struct dg_plane *a, *b;
    const struct dg_vec *wa, *wb;
    const struct dg_mat *embed;
    const int32_t *ids;
    float eps, scale;
    struct dg_plane *y;
    int64_t n;
};

static float *row_of(const struct dg_plane *p, int64_t i) { return (float *)p->data + i * p->ld; }

float dg_ref_inv_rms(const float *x, int32_t n, float eps) {
    double s = 0;
    for (int32_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(s / n + (double)eps));
}

static float weight(const struct dg_vec *w, int32_t i) { return w && w->v ? w->v[i] : 1.0f; }

#define FOR_MY_ROWS(j)                                          \
    int64_t begin_, end_;                                       \
    dg_pool_range((j)->n, 1, part, n_parts, &begin_, &end_);    \
    for (int64_t i = begin_; i < end_; i++)

static void embed_rows(void *arg, int part, int n_parts) {
    struct row_job *j = arg;
    FOR_MY_ROWS(j) {
        float *y = row_of(j->y, i);
        dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, dg_mat_row(j->embed, j->ids[i]), j->embed->k, y);
        for (int32_t c = 0; c < j->embed->k; c++)
            y[c] *= j->scale;
    }
}

void dg_ref_embed(struct dg_backend *be, const int32_t *ids, int32_t n, const struct dg_mat *embed, float scale, struct dg_plane *y) {
    struct row_job j = {.ids = ids, .embed = embed, .scale = scale, .y = y, .n = n};
    dg_pool_run(be->pool, embed_rows, &j);
}

static void norm_rows(void *arg, int part, int n_parts) {
    struct row_job *j = arg;
    FOR_MY_ROWS(j) {
        const float *x = row_of(j->a, i);
        float *y = row_of(j->y, i), r = dg_ref_inv_rms(x, j->a->cols, j->eps);
        for (int32_t c = 0; c < j->a->cols; c++)
            y[c] = x[c] * r * weight(j->wa, c) * j->scale;
    }
}

void dg_ref_rms_norm(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float mul, float eps, struct dg_plane *y) {
    struct row_job j = {.a = x, .wa = w, .scale = mul, .eps = eps, .y = y, .n = x->rows};
    dg_pool_run(be->pool, norm_rows, &j);
}

static void norm_add_rows(void *arg, int part, int n_parts) {
    struct row_job *j = arg;
    FOR_MY_ROWS(j) {
        const float *x = row_of(j->a, i), *res = row_of(j->b, i);
        float *y = row_of(j->y, i), r = dg_ref_inv_rms(x, j->a->cols, j->eps);
        for (int32_t c = 0; c < j->a->cols; c++)
            y[c] = (res[c] + x[c] * r * weight(j->wa, c)) * j->scale;
    }
}

void dg_ref_norm_add(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float eps, const struct dg_plane *residual,
                     float scale, struct dg_plane *y) {
    struct row_job j = {.a = x, .b = residual, .wa = w, .eps = eps, .scale = scale, .y = y, .n = x->rows};
    dg_pool_run(be->pool, norm_add_rows, &j);
}

static void norm_pair_rows(void *arg, int part, int n_parts) {
    struct row_job *j = arg;
    FOR_MY_ROWS(j) {
        const float *a = row_of(j->a, i), *b = row_of(j->b, i);
        float *y = row_of(j->y, i), ra = dg_ref_inv_rms(a, j->a->cols, j->eps), rb = dg_ref_inv_rms(b, j->b->cols, j->eps);
        for (int32_t c = 0; c < j->a->cols; c++)
            y[c] = a[c] * ra * weight(j->wa, c) + b[c] * rb * weight(j->wb, c);
    }
}

void dg_ref_norm_pair(struct dg_backend *be, const struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b,
                      const struct dg_vec *wb, float eps, struct dg_plane *y) {
    struct row_job j = {.a = a, .b = b, .wa = wa, .wb = wb, .eps = eps, .y = y, .n = a->rows};
    dg_pool_run(be->pool, norm_pair_rows, &j);
}

static void add_rows(void *arg, int part, int n_parts) {
    struct row_job *j = arg;
    FOR_MY_ROWS(j) {
        const float *a = row_of(j->a, i), *b = row_of(j->b, i);
        float *y = row_of(j->y, i);
        for (int32_t c = 0; c < j->a->cols; c++)
            y[c] = a[c] + b[c];
    }
}

void dg_ref_add(struct dg_backend *be, const struct dg_plane *a, const struct dg_plane *b, struct dg_plane *y) {
    struct row_job j = {.a = a, .b = b, .y = y, .n = a->rows};
    dg_pool_run(be->pool, add_rows, &j);
}
