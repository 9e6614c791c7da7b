/* Row statistics of logits. */
#include "ops/cpu/rows.h"

#include <math.h>

static void begin(struct dg_vec_stats *st, float inv_t) {
    *st = (struct dg_vec_stats){.max = -INFINITY, .z_max = -INFINITY, .inv_t = inv_t};
}

static void end(const struct dg_vec_stats *st, const struct dg_row_stats *out, int64_t row) {
    double h = log(st->sum) - st->moment / st->sum;
    out->entropy[row] = (float)(h < 0 ? 0 : h);
    out->max[row] = st->max;
    out->sum[row] = (float)st->sum;
    out->p_max[row] = (float)(1.0 / st->sum);
    out->argmax[row] = st->argmax;
}

struct stats_job {
    const struct dg_cpu *c;
    const struct dg_plane *logits;
    float inv_t;
    const struct dg_row_stats *out;
};

static void stats_part(void *arg, int part, int n_parts) {
    const struct stats_job *j = arg;
    int64_t first, last;
    dg_pool_range(j->logits->rows, 1, part, n_parts, &first, &last);
    for (int64_t m = first; m < last; m++) {
        const float *z = (const float *)j->logits->data + m * j->logits->ld;
        struct dg_vec_stats st;
        begin(&st, j->inv_t);
        for (int32_t c = 0; c < j->logits->cols; c += DG_STATS_PIECE)
            j->c->k.vec.stats(&st, z + c, j->logits->cols - c < DG_STATS_PIECE ? j->logits->cols - c : DG_STATS_PIECE, c);
        end(&st, j->out, m);
    }
}

void dg_cpu_row_stats(struct dg_backend *be, const struct dg_plane *logits, float inv_t, struct dg_row_stats *stats) {
    struct stats_job j = {be->impl, logits, inv_t, stats};
    dg_pool_run(be->pool, stats_part, &j);
}
