/* Row-wise ops: embedding gather, the norms, addition. A row is worked on in pieces that fit the first cache. */
#include "ops/cpu/rows.h"

#include <math.h>

struct row_job {
    const struct dg_cpu *c;
    const struct dg_plane *a, *b;
    const struct dg_vec *wa, *wb;
    const struct dg_mat *embed;
    const int32_t *ids;
    float eps, scale;
    struct dg_plane *y;
    int64_t n;
};

static const float *weight(const struct dg_vec *w, int64_t at) { return w && w->v ? w->v + at : NULL; }

static float inv_rms(const struct row_job *j, const struct dg_plane *p, int64_t row) {
    double s = 0;
    float x[DG_ROWS_PIECE];
    for (int64_t c = 0; c < p->cols; c += DG_ROWS_PIECE) {
        int64_t n = p->cols - c < DG_ROWS_PIECE ? p->cols - c : DG_ROWS_PIECE;
        if (p->dtype == DG_F32) {
            s += j->c->k.vec.sum_squares((const float *)p->data + row * p->ld + c, n);
        } else {
            dg_rows_load(&j->c->k.vec, p->data, p->dtype, row * p->ld + c, n, x);
            s += j->c->k.vec.sum_squares(x, n);
        }
    }
    return (float)(1.0 / sqrt(s / p->cols + (double)j->eps));
}

/* The pieces of the rows of this part: PIECE sees row i, columns [c, c + n) as x (of a) and z (of b), and leaves them in out. */
#define FOR_MY_PIECES(j, PREPARE, PIECE)                                                                            \
    do {                                                                                                            \
        const struct dg_vec_kernels *k = &(j)->c->k.vec;                                                            \
        float x[DG_ROWS_PIECE], z[DG_ROWS_PIECE];                                                                   \
        int64_t begin_, end_;                                                                                       \
        dg_pool_range((j)->n, 1, part, n_parts, &begin_, &end_);                                                    \
        for (int64_t i = begin_; i < end_; i++) {                                                                   \
            PREPARE;                                                                                                \
            for (int64_t c = 0; c < (j)->a->cols; c += DG_ROWS_PIECE) {                                             \
                int64_t n = (j)->a->cols - c < DG_ROWS_PIECE ? (j)->a->cols - c : DG_ROWS_PIECE;                    \
                dg_rows_load(k, (j)->a->data, (j)->a->dtype, i * (j)->a->ld + c, n, x);                             \
                if ((j)->b)                                                                                         \
                    dg_rows_load(k, (j)->b->data, (j)->b->dtype, i * (j)->b->ld + c, n, z);                         \
                PIECE;                                                                                              \
                dg_rows_store(k, x, n, (j)->y->data, (j)->y->dtype, i * (j)->y->ld + c);                            \
            }                                                                                                       \
        }                                                                                                           \
    } while (0)

static void norm_part(void *arg, int part, int n_parts) {
    const struct row_job *j = arg;
    FOR_MY_PIECES(j, float r = inv_rms(j, j->a, i), k->scale(x, r, weight(j->wa, c), j->scale, n, x));
}

void dg_cpu_rms_norm(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float mul, float eps, struct dg_plane *y) {
    struct row_job j = {.c = be->impl, .a = x, .wa = w, .scale = mul, .eps = eps, .y = y, .n = x->rows};
    dg_pool_run(be->pool, norm_part, &j);
}

static void norm_add_part(void *arg, int part, int n_parts) {
    const struct row_job *j = arg;
    FOR_MY_PIECES(j, float r = inv_rms(j, j->a, i), k->scale_add(x, r, weight(j->wa, c), z, j->scale, n, x));
}

void dg_cpu_norm_add(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float eps, const struct dg_plane *residual,
                     float scale, struct dg_plane *y) {
    struct row_job j = {.c = be->impl, .a = x, .b = residual, .wa = w, .eps = eps, .scale = scale, .y = y, .n = x->rows};
    dg_pool_run(be->pool, norm_add_part, &j);
}

static void norm_pair_part(void *arg, int part, int n_parts) {
    const struct row_job *j = arg;
    FOR_MY_PIECES(j, float ra = inv_rms(j, j->a, i); float rb = inv_rms(j, j->b, i),
                  k->scale_pair(x, ra, weight(j->wa, c), z, rb, weight(j->wb, c), n, x));
}

void dg_cpu_norm_pair(struct dg_backend *be, const struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b,
                      const struct dg_vec *wb, float eps, struct dg_plane *y) {
    struct row_job j = {.c = be->impl, .a = a, .b = b, .wa = wa, .wb = wb, .eps = eps, .y = y, .n = a->rows};
    dg_pool_run(be->pool, norm_pair_part, &j);
}

static void add_part(void *arg, int part, int n_parts) {
    const struct row_job *j = arg;
    FOR_MY_PIECES(j, , k->add(x, z, n, x));
}

void dg_cpu_add(struct dg_backend *be, const struct dg_plane *a, const struct dg_plane *b, struct dg_plane *y) {
    struct row_job j = {.c = be->impl, .a = a, .b = b, .y = y, .n = a->rows};
    dg_pool_run(be->pool, add_part, &j);
}

/* The decoded row goes through the tile scratch: it is of any format and as wide as the model. */
static void embed_part(void *arg, int part, int n_parts) {
    const struct row_job *j = arg;
    const struct dg_cpu_rows *r = &j->c->rows;
    const struct dg_vec_kernels *k = &j->c->k.vec;
    float *row = r->tile + (int64_t)part * 2 * r->tile_floats;
    int64_t begin, end, width = j->embed->k;
    dg_pool_range(j->n, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, dg_mat_row(j->embed, j->ids[i]), width, row);
        k->scale(row, j->scale, NULL, 1.0f, width, row);
        dg_rows_store(k, row, width, j->y->data, j->y->dtype, i * j->y->ld);
    }
}

void dg_cpu_embed(struct dg_backend *be, const int32_t *ids, int32_t n, const struct dg_mat *embed, float scale, struct dg_plane *y) {
    struct row_job j = {.c = be->impl, .ids = ids, .embed = embed, .scale = scale, .y = y, .n = n};
    dg_pool_run(be->pool, embed_part, &j);
}
