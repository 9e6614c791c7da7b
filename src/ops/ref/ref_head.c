/* Output head, row statistics and soft embedding of the reference backend. */
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

#define SPARSE_CUT (-10.0f) /* ids below e^-10 of the row's largest probability are left out (seed section 5) */

struct head_job {
    struct dg_ref *ref;
    const struct dg_plane *x;
    const struct dg_mat *embed;
    float cap, inv_t, scale;
    const struct dg_plane *logits;
    const struct dg_row_stats *stats;
    bool sparse;
    struct dg_plane *y;
};

static void logits_part(void *arg, int part, int n_parts) {
    struct head_job *j = arg;
    int64_t begin, end;
    float *w = j->ref->row + (int64_t)part * 2 * j->ref->row_len;
    dg_pool_range(j->embed->n, 1, part, n_parts, &begin, &end);
    for (int64_t v = begin; v < end; v++) {
        dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, dg_mat_row(j->embed, v), j->embed->k, w);
        for (int64_t m = 0; m < j->x->rows; m++) {
            float z = dg_ref_dot((const float *)j->x->data + m * j->x->ld, w, j->embed->k);
            /* the cap would turn an overflow into the likeliest token */
            ((float *)j->logits->data)[m * j->logits->ld + v] = isfinite(z) ? j->cap * tanhf(z / j->cap) : z;
        }
    }
}

/* NaN and Inf anywhere in the row end in the entropy: the search for the largest may pass over a NaN, the sums do not. */
static void stats_row(const float *z, int32_t n, float inv_t, const struct dg_row_stats *out, int64_t row) {
    int32_t arg = 0;
    for (int32_t v = 1; v < n; v++)
        if (z[v] > z[arg])
            arg = v;
    float max = z[arg] * inv_t;
    double sum = 0, moment = 0;
    for (int32_t v = 0; v < n; v++) {
        double d = (double)z[v] * (double)inv_t - (double)max, e = exp(d);
        sum += e;
        moment += e * d;
    }
    /* a term far down the tail is exp(-large) * -large = 0, but -Inf gives 0 * -Inf = NaN, which is wanted here */
    double h = log(sum) - moment / sum;
    out->entropy[row] = (float)(h < 0 ? 0 : h);
    out->max[row] = max;
    out->sum[row] = (float)sum;
    out->p_max[row] = (float)(1.0 / sum);
    out->argmax[row] = arg;
}

static void stats_part(void *arg, int part, int n_parts) {
    struct head_job *j = arg;
    int64_t begin, end;
    dg_pool_range(j->logits->rows, 1, part, n_parts, &begin, &end);
    for (int64_t m = begin; m < end; m++)
        stats_row((const float *)j->logits->data + m * j->logits->ld, j->logits->cols, j->inv_t, j->stats, m);
}

void dg_ref_row_stats(struct dg_backend *be, const struct dg_plane *logits, float inv_t, struct dg_row_stats *stats) {
    struct head_job j = {.logits = logits, .inv_t = inv_t, .stats = stats};
    dg_pool_run(be->pool, stats_part, &j);
}

void dg_ref_head(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *embed, float cap, float inv_t,
                 struct dg_plane *logits, struct dg_row_stats *stats) {
    struct head_job j = {.ref = be->impl, .x = x, .embed = embed, .cap = cap, .logits = logits};
    dg_pool_run(be->pool, logits_part, &j);
    dg_ref_row_stats(be, logits, inv_t, stats);
}

static void soft_part(void *arg, int part, int n_parts) {
    struct head_job *j = arg;
    int32_t hidden = j->embed->k;
    float *w = j->ref->row + (int64_t)part * 2 * j->ref->row_len;
    int64_t begin, end;
    dg_pool_range(j->logits->rows, 1, part, n_parts, &begin, &end);
    for (int64_t m = begin; m < end; m++)
        memset((float *)j->y->data + m * j->y->ld, 0, (size_t)hidden * sizeof(float));
    for (int32_t v = 0; v < j->embed->n; v++) {
        bool decoded = false;
        for (int64_t m = begin; m < end; m++) {
            float d = ((const float *)j->logits->data)[m * j->logits->ld + v] * j->inv_t - j->stats->max[m];
            if (j->sparse && !(d >= SPARSE_CUT))
                continue;
            float p = expf(d) / j->stats->sum[m];
            if (!decoded) {
                dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, dg_mat_row(j->embed, v), hidden, w);
                decoded = true;
            }
            float *y = (float *)j->y->data + m * j->y->ld;
            for (int32_t c = 0; c < hidden; c++)
                y[c] += p * w[c];
        }
    }
    for (int64_t m = begin; m < end; m++) {
        float *y = (float *)j->y->data + m * j->y->ld;
        for (int32_t c = 0; c < hidden; c++)
            y[c] *= j->scale;
    }
}

void dg_ref_soft_embed(struct dg_backend *be, const struct dg_plane *logits, const struct dg_row_stats *stats, float inv_t,
                       const struct dg_mat *embed, float scale, bool sparse, struct dg_plane *y) {
    struct head_job j = {
        .ref = be->impl, .logits = logits, .stats = stats, .inv_t = inv_t, .embed = embed, .scale = scale, .sparse = sparse, .y = y};
    dg_pool_run(be->pool, soft_part, &j);
}
