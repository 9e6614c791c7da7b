/* Matrix products of the reference backend: linear, router, experts. Each decodes a weight row once and runs all input rows past it. */
#include "ops/buckets.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

static const float *decode(const struct dg_ref *r, int part, int which, const struct dg_mat *m, int64_t row) {
    float *dst = r->row + ((int64_t)part * 2 + which) * r->row_len;
    dg_format_traits(m->fmt)->decode_row(m->data, dg_mat_row(m, row), m->k, dst);
    return dst;
}

struct linear_job {
    struct dg_ref *ref;
    const struct dg_plane *x;
    const struct dg_mat *const *w;
    int n_w;
    struct dg_plane *y;
    int64_t n;
};

static void linear_part(void *arg, int part, int n_parts) {
    struct linear_job *j = arg;
    int64_t begin, end, base = 0;
    dg_pool_range(j->n, 1, part, n_parts, &begin, &end);
    for (int i = 0; i < j->n_w; base += j->w[i++]->n) {
        int64_t b = begin > base ? begin - base : 0, e = end - base < j->w[i]->n ? end - base : j->w[i]->n;
        for (int64_t row = b; row < e; row++) {
            const float *w = decode(j->ref, part, 0, j->w[i], row);
            for (int64_t m = 0; m < j->x->rows; m++)
                ((float *)j->y->data)[m * j->y->ld + base + row] = dg_ref_dot((const float *)j->x->data + m * j->x->ld, w, j->x->cols);
        }
    }
}

static void glu_part(void *arg, int part, int n_parts) {
    struct linear_job *j = arg;
    int64_t begin, end;
    dg_pool_range(j->n, 1, part, n_parts, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *gate = decode(j->ref, part, 0, j->w[0], row), *up = decode(j->ref, part, 1, j->w[1], row);
        for (int64_t m = 0; m < j->x->rows; m++) {
            const float *x = (const float *)j->x->data + m * j->x->ld;
            ((float *)j->y->data)[m * j->y->ld + row] = dg_ref_gelu(dg_ref_dot(x, gate, j->x->cols)) * dg_ref_dot(x, up, j->x->cols);
        }
    }
}

void dg_ref_linear(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *const *w, int n_w, enum dg_epilogue epi,
                   struct dg_plane *y) {
    struct linear_job j = {be->impl, x, w, n_w, y, 0};
    if (epi == DG_EPI_GLU)
        j.n = w[0]->n;
    else
        for (int i = 0; i < n_w; i++)
            j.n += w[i]->n;
    dg_pool_run(be->pool, epi == DG_EPI_GLU ? glu_part : linear_part, &j);
}

struct router_job {
    struct dg_ref *ref;
    const struct dg_plane *x;
    const struct dg_mat *w;
    const struct dg_vec *scale;
    struct dg_routing *out;
};

/* p: [experts] logits, made probabilities here; picks the k largest of these, ties to the lower id: logits that differ may be equally
 * probable in f32. */
static void route_row(float *p, int32_t experts, const struct dg_vec *scale, int32_t k, int32_t *expert, float *weight) {
    float max = p[0], sum = 0, kept = 0;
    for (int32_t e = 1; e < experts; e++)
        max = p[e] > max ? p[e] : max;
    for (int32_t e = 0; e < experts; e++)
        sum += p[e] = expf(p[e] - max);
    for (int32_t e = 0; e < experts; e++)
        p[e] /= sum;
    for (int32_t r = 0; r < k; r++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++) {
            bool taken = false;
            for (int32_t q = 0; q < r; q++)
                taken |= expert[q] == e;
            if (!taken && (best < 0 || p[e] > p[best]))
                best = e;
        }
        expert[r] = best;
        weight[r] = p[best];
        kept += weight[r];
    }
    for (int32_t r = 0; r < k; r++)
        weight[r] = weight[r] / kept * scale->v[expert[r]];
}

static void router_part(void *arg, int part, int n_parts) {
    struct router_job *j = arg;
    int64_t begin, end;
    dg_pool_range(j->x->rows, 1, part, n_parts, &begin, &end);
    float *logits = j->ref->row + ((int64_t)part * 2 + 1) * j->ref->row_len;
    for (int64_t m = begin; m < end; m++) {
        for (int32_t e = 0; e < j->w->n; e++)
            logits[e] = dg_ref_dot((const float *)j->x->data + m * j->x->ld, decode(j->ref, part, 0, j->w, e), j->w->k);
        route_row(logits, j->w->n, j->scale, j->out->k, j->out->expert + m * j->out->k, j->out->weight + m * j->out->k);
    }
}

void dg_ref_router(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *w, const struct dg_vec *per_expert_scale,
                   struct dg_routing *out) {
    struct router_job j = {be->impl, x, w, per_expert_scale, out};
    dg_pool_run(be->pool, router_part, &j);
}

struct expert_job {
    struct dg_ref *ref;
    const struct dg_plane *x;
    const struct dg_routing *routing;
    const struct dg_stack *gate_up, *down;
    struct dg_plane *y;
};

static void expert_up_part(void *arg, int part, int n_parts) {
    struct expert_job *j = arg;
    int32_t moe = j->down->k, k = j->routing->k;
    int64_t begin, end;
    dg_pool_range((int64_t)j->gate_up->e * moe, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int32_t e = (int32_t)(i / moe), row = (int32_t)(i % moe);
        if (j->ref->bucket[e] == j->ref->bucket[e + 1])
            continue;
        struct dg_mat m = dg_stack_mat(j->gate_up, e);
        const float *gate = decode(j->ref, part, 0, &m, row), *up = decode(j->ref, part, 1, &m, moe + row);
        for (int32_t b = j->ref->bucket[e]; b < j->ref->bucket[e + 1]; b++) {
            int32_t p = j->ref->pair[b];
            const float *x = (const float *)j->x->data + p / k * j->x->ld;
            j->ref->pair_h[(int64_t)p * moe + row] = dg_ref_gelu(dg_ref_dot(x, gate, m.k)) * dg_ref_dot(x, up, m.k);
        }
    }
}

static void expert_down_part(void *arg, int part, int n_parts) {
    struct expert_job *j = arg;
    int32_t hidden = j->down->n, moe = j->down->k;
    int64_t begin, end;
    dg_pool_range((int64_t)j->down->e * hidden, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int32_t e = (int32_t)(i / hidden), row = (int32_t)(i % hidden);
        if (j->ref->bucket[e] == j->ref->bucket[e + 1])
            continue;
        struct dg_mat m = dg_stack_mat(j->down, e);
        const float *w = decode(j->ref, part, 0, &m, row);
        for (int32_t b = j->ref->bucket[e]; b < j->ref->bucket[e + 1]; b++) {
            int32_t p = j->ref->pair[b];
            j->ref->pair_y[(int64_t)p * hidden + row] = dg_ref_dot(j->ref->pair_h + (int64_t)p * moe, w, moe);
        }
    }
}

static void expert_sum_part(void *arg, int part, int n_parts) {
    struct expert_job *j = arg;
    int32_t hidden = j->down->n, k = j->routing->k;
    int64_t begin, end;
    dg_pool_range(j->x->rows, 1, part, n_parts, &begin, &end);
    for (int64_t m = begin; m < end; m++) {
        float *y = (float *)j->y->data + m * j->y->ld;
        memset(y, 0, (size_t)hidden * sizeof *y);
        for (int32_t r = 0; r < k; r++) {
            const float *src = j->ref->pair_y + (m * k + r) * hidden;
            float w = j->routing->weight[m * k + r];
            for (int32_t c = 0; c < hidden; c++)
                y[c] += w * src[c];
        }
    }
}

void dg_ref_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                    const struct dg_stack *down, struct dg_plane *y) {
    struct expert_job j = {be->impl, x, routing, gate_up, down, y};
    dg_bucket_pairs(routing, (int64_t)x->rows * routing->k, gate_up->e, j.ref->bucket, j.ref->pair);
    dg_pool_run(be->pool, expert_up_part, &j);
    dg_pool_run(be->pool, expert_down_part, &j);
    dg_pool_run(be->pool, expert_sum_part, &j);
}
