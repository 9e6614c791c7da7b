/* The matrix product under every op: packed rows of x against rows of weights, wherever those lie and whatever their format.
 *
 * x is packed once per op: in blocks of DG_PRODUCT_M rows, each block chunk after chunk of K, each chunk tile after tile, so that a
 * register tile reads one stream. Weights are decoded a panel at a time into the thread's scratch, or read in place. */
#ifndef DG_OPS_CPU_PRODUCT_H
#define DG_OPS_CPU_PRODUCT_H

#include "ops/cpu/state.h"

#define DG_PRODUCT_M 256 /* most rows of x in a block */
#define DG_PRODUCT_N 48  /* most rows of w in a panel */

/* Elements of a packed row of k. */
static inline int64_t dg_product_padded(const struct dg_gemm_kind *g, int64_t k) { return (k + g->step - 1) / g->step * g->step; }
/* Bytes of a packed block of m rows of k. */
static inline int64_t dg_product_bytes(const struct dg_gemm_kind *g, int64_t m, int64_t k) { return m * dg_product_padded(g, k) * g->elem; }

/* Packs row i of a block of m. src: k values of type t (f32 or bf16). Any thread, each its own rows. */
void dg_product_pack(const struct dg_gemm_kind *g, void *block, int m, int i, const void *src, enum dg_dtype t, int64_t k);
/* Packs the whole plane into the shared scratch, which is returned: block b begins at b * dg_product_bytes(DG_PRODUCT_M). */
const void *dg_product_pack_plane(struct dg_backend *be, const struct dg_plane *x);

/* Rows [row, row + n) of w. */
struct dg_product_rows {
    const struct dg_mat *w;
    int64_t row;
    int32_t n;
};
/* A thread's place for results: [DG_PRODUCT_M][DG_PRODUCT_N]. */
float *dg_product_c(const struct dg_cpu *c, int part);
/* A thread's place for a packed block of its own. */
void *dg_product_x(const struct dg_cpu *c, int part);
/* c[i][j] = x_i . w_j for the m <= DG_PRODUCT_M rows of a packed block, w's parts side by side, each beginning at a multiple of DG_GEMM_NR:
 * DG_PRODUCT_N columns at most. Row length of c: DG_PRODUCT_N. */
void dg_product(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c);

static inline int32_t dg_product_cols(int32_t n) { return (n + DG_GEMM_NR - 1) / DG_GEMM_NR * DG_GEMM_NR; }

#endif
