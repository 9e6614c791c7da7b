/* The matrix product under every op: packed rows of x against rows of weights, wherever those lie and whatever their format.
 *
 * x is packed once per op: in blocks of DG_PRODUCT_M rows, each block chunk after chunk of K, each chunk tile after tile, so that a
 * register tile reads one stream. Weights are decoded a panel at a time into the thread's scratch, or read in place. */
#ifndef DG_OPS_CPU_PRODUCT_H
#define DG_OPS_CPU_PRODUCT_H

#include "ops/cpu/state.h"

#define DG_PRODUCT_M 256 /* most rows of x in a block */
#define DG_PRODUCT_N DG_GEMM_COLS_MAX /* most rows of w in a panel at any level; the level's own are dg_gemm_kind.cols */

/* Elements of a packed row of k. */
static inline int64_t dg_product_padded(const struct dg_gemm_kind *g, int64_t k) { return (k + g->step - 1) / g->step * g->step; }
/* Bytes of a packed block of m rows of k. */
static inline int64_t dg_product_bytes(const struct dg_gemm_kind *g, int64_t m, int64_t k) {
    return (m + g->group - 1) / g->group * g->group * dg_product_padded(g, k) * g->elem;
}

/* Packs rows [begin, end) of a block of m, begin a multiple of g->group, end one too or m. src[i - begin]: k values of type t (f32 or bf16).
 * Any thread, each its own rows. */
void dg_product_pack(const struct dg_gemm_kind *g, void *block, int m, int begin, int end, const void *const *src, enum dg_dtype t, int64_t k);
/* Packs the whole plane into the shared scratch, which is returned: block b begins at b * dg_product_bytes(DG_PRODUCT_M). */
const void *dg_product_pack_plane(struct dg_backend *be, const struct dg_plane *x);

/* Rows [row, row + n) of w. */
struct dg_product_rows {
    const struct dg_mat *w;
    int64_t row;
    int32_t n;
    const uint8_t *after; /* the first of the rows that the thread will probably go on with; NULL: it is not known */
};
/* The same rows `ahead` rows further on, as what comes after: NULL where the matrix has ended. */
static inline const uint8_t *dg_product_after(const struct dg_product_rows *w, int64_t ahead) {
    return w->row + ahead < w->w->n ? dg_mat_row(w->w, w->row + ahead) : NULL;
}
/* Every thread calls these around its products. */
static inline void dg_product_begin(const struct dg_cpu *c) {
    if (dg_cpu_kind(c)->begin)
        dg_cpu_kind(c)->begin();
}
static inline void dg_product_end(const struct dg_cpu *c) {
    if (dg_cpu_kind(c)->end)
        dg_cpu_kind(c)->end();
}
/* A thread's place for results: DG_PRODUCT_M rows of the level's `cols`. */
float *dg_product_c(const struct dg_cpu *c, int part);
/* A thread's place for a packed block of its own. */
void *dg_product_x(const struct dg_cpu *c, int part);
/* c[i][j] = x_i . w_j for the m <= DG_PRODUCT_M rows of a packed block, w's parts side by side, each beginning at a multiple of the level's
 * `nr`: `cols` columns at most, which is also the row length of c. */
void dg_product(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c);

/* The same on tile registers; called by dg_product. */
void dg_product_tiles(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c);
/* Bytes of a thread's scratch for that. */
int64_t dg_product_tiles_scratch(void);

static inline int32_t dg_product_cols(const struct dg_gemm_kind *g, int32_t n) { return (n + g->nr - 1) / g->nr * g->nr; }

#endif
