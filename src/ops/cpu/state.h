/* The state of a CPU backend and the ops that fill its table. For the files of this folder only. */
#ifndef DG_OPS_CPU_STATE_H
#define DG_OPS_CPU_STATE_H

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels.h"
#include "ops/ref/ref.h"

/* Scratch of the row ops (attention, router, statistics, soft embedding); sized by dg_cpu_rows_reserve. */
struct dg_cpu_rows {
    float *query;  /* [threads][2][query_floats] a block of queries, and what they have summed so far */
    float *tile;   /* [threads][2][tile_floats] tiles of keys and of values */
    float *score;  /* [threads][DG_ROWS_BLOCK][DG_VEC_TILE] */
    float *found_score; /* [threads][DG_ROWS_FOUND] candidates of a top-k */
    int32_t *found_key;
    float *soft;   /* [threads] tile of embedding rows, sums of DG_VEC_TILE rows, their probabilities */
    int64_t query_floats, tile_floats, soft_floats, soft_width;
};

/* Scratch of the matrix products; sized by dg_cpu_gemm_reserve. */
struct dg_cpu_gemm {
    float *panel;
};

struct dg_cpu {
    struct dg_ref ref; /* first: the plain ops of ops/ref find their scratch here */
    struct dg_ops ops;
    struct dg_cpu_kernels k;
    struct dg_reserve cap; /* what the scratch is sized for */
    int32_t n_threads;
    struct dg_cpu_gemm gemm;
    struct dg_cpu_rows rows;
};

/* Each sizes its part of the scratch for `want` (all figures at least those of any call before) into *out, which is empty, and touches
 * nothing else: the old part goes when all of the new is there. The _free functions take a zeroed or half-filled part. */
enum dg_status dg_cpu_gemm_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_gemm *out, struct dg_error *err)
    DG_MUST_CHECK;
void dg_cpu_gemm_free(struct dg_cpu_gemm *g);
enum dg_status dg_cpu_rows_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_rows *out, struct dg_error *err)
    DG_MUST_CHECK;
void dg_cpu_rows_free(struct dg_cpu_rows *r);

#endif
