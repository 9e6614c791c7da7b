/* The router: logits of all experts in f32, their softmax, the k most probable. */
#include "ops/cpu/rows.h"

#include <math.h>

struct router_job {
    const struct dg_cpu *c;
    const struct dg_plane *x;
    const struct dg_mat *w;
    const struct dg_vec *scale;
    struct dg_routing *out;
};

/* p: logits, made probabilities here, with the C library's exp, one way at every level; the k largest of them, ties to the lower id. */
static void pick(float *p, int32_t experts, const struct dg_vec *scale, int32_t k, int32_t *expert, float *weight) {
    float max = p[0], sum = 0, kept = 0;
    for (int32_t e = 1; e < experts; e++)
        max = p[e] > max ? p[e] : max;
    for (int32_t e = 0; e < experts; e++)
        sum += p[e] = expf(p[e] - max);
    for (int32_t e = 0; e < experts; e++)
        p[e] /= sum;
    for (int32_t r = 0; r < k; r++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++)
            if (p[e] >= 0 && (best < 0 || p[e] > p[best]))
                best = e;
        if (best < 0) /* NaN among the logits: any experts will do, but they must exist */
            best = r;
        expert[r] = best;
        weight[r] = p[best];
        kept += weight[r];
        p[best] = -1;
    }
    for (int32_t r = 0; r < k; r++)
        weight[r] = weight[r] / kept * scale->v[expert[r]];
}

/* Some experts' weights as f32 rows, padded; the rows past them up to a multiple of four are zero. */
static int load_experts(const struct router_job *j, int32_t from, int32_t n, int64_t width, float *dst) {
    int all = (n + 3) & ~3;
    for (int e = 0; e < all; e++) {
        float *row = dst + e * width;
        int64_t used = e < n ? j->w->k : 0;
        if (e < n)
            dg_format_traits(j->w->fmt)->decode_row(j->w->data, dg_mat_row(j->w, from + e), j->w->k, row);
        memset(row + used, 0, (size_t)(width - used) * sizeof *row);
    }
    return all;
}

static void router_part(void *arg, int part, int n_parts) {
    const struct router_job *j = arg;
    const struct dg_cpu_rows *r = &j->c->rows;
    const struct dg_vec_kernels *k = &j->c->k.vec;
    int64_t width = dg_rows_pad(j->w->k), begin, end;
    float *x = r->query + (int64_t)part * 2 * r->query_floats, *logit = x + r->query_floats;
    float *w = r->tile + (int64_t)part * 2 * r->tile_floats, *s = r->score + (int64_t)part * DG_ROWS_BLOCK * DG_VEC_TILE;
    int32_t experts = j->w->n;
    int64_t tile = r->tile_floats / width & ~3ll, rows = r->query_floats / width;
    tile = tile > DG_VEC_TILE ? DG_VEC_TILE : tile;
    rows = rows > r->query_floats / experts ? r->query_floats / experts : rows;
    rows = rows > DG_ROWS_BLOCK ? DG_ROWS_BLOCK : rows;
    dg_pool_range(j->x->rows, 1, part, n_parts, &begin, &end);
    for (int64_t m = begin; m < end; m += rows) {
        int n = (int)(end - m < rows ? end - m : rows);
        for (int i = 0; i < n; i++) {
            dg_rows_load(k, j->x->data, j->x->dtype, (m + i) * j->x->ld, j->w->k, x + i * width);
            memset(x + i * width + j->w->k, 0, (size_t)(width - j->w->k) * sizeof *x);
        }
        for (int32_t e = 0; e < experts; e += (int32_t)tile) {
            int32_t some = experts - e < tile ? experts - e : (int32_t)tile;
            k->scores(x, n, w, load_experts(j, e, some, width, w), (int)width, s);
            for (int i = 0; i < n; i++)
                memcpy(logit + (int64_t)i * experts + e, s + i * DG_VEC_TILE, (size_t)some * sizeof *s);
        }
        for (int i = 0; i < n; i++)
            pick(logit + (int64_t)i * experts, experts, j->scale, j->out->k, j->out->expert + (m + i) * j->out->k,
                 j->out->weight + (m + i) * j->out->k);
    }
}

void dg_cpu_router(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *w, const struct dg_vec *per_expert_scale,
                   struct dg_routing *out) {
    struct router_job j = {be->impl, x, w, per_expert_scale, out};
    dg_pool_run(be->pool, router_part, &j);
}
