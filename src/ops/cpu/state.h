/* The state of a CPU backend and the ops that fill its table. For the files of this folder only. */
#ifndef DG_OPS_CPU_STATE_H
#define DG_OPS_CPU_STATE_H

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels.h"

/* Scratch of the row ops (attention, router, statistics, soft embedding); sized by dg_cpu_rows_reserve. */
struct dg_cpu_rows {
    float *query;  /* [threads][2][query_floats] a block of queries, and what they have summed so far */
    float *tile;   /* [threads][2][tile_floats] tiles of keys and of values */
    float *score;  /* [threads][DG_ROWS_BLOCK][DG_VEC_TILE] */
    float *found_score; /* [threads][DG_ROWS_FOUND] candidates of a top-k */
    int32_t *found_key;
    float *soft;   /* [threads] tile of embedding rows, sums of DG_VEC_TILE rows, their probabilities */
    void *tiles;   /* [threads] attention on tile registers, where the level and the planes have it; NULL elsewhere */
    int64_t query_floats, tile_floats, soft_floats, soft_width, tiles_bytes;
};

/* Scratch of the matrix products; sized by dg_cpu_gemm_reserve. */
struct dg_cpu_gemm {
    void *x;             /* packed rows of x, shared */
    void *panel;         /* [threads]: decoded weights */
    float *c;            /* [threads][DG_PRODUCT_M][the level's columns of a panel] */
    void *x_own;         /* [threads]: an expert's packed rows */
    int64_t panel_bytes, x_own_bytes;
    int32_t *bucket;     /* [experts + 1] first pair of each expert */
    int32_t *unit;       /* [experts + 1] first unit of work of each expert */
    int32_t *pair;       /* [rows * topk] pairs (row * topk + rank) ordered by expert */
    void *pair_h;        /* [rows * topk][moe] of the planes' type, ordered by expert */
    float *pair_y;       /* [rows * topk][hidden] in the pairs' own order */
    struct dg_head_part *head; /* [vocab_blocks][rows] */
    int64_t vocab_blocks;
};

#define DG_HEAD_BLOCK 256 /* columns of the vocabulary whose statistics are taken together, rounded down to whole panels */

struct dg_cpu {
    struct dg_ops ops;
    struct dg_cpu_kernels k;
    struct dg_reserve cap; /* what the scratch is sized for */
    bool twin;             /* its threads are another backend's */
    int32_t n_threads, vocab;
    struct dg_cpu_gemm gemm;
    struct dg_cpu_rows rows;
};

/* The arithmetic of the backend's planes. */
static inline const struct dg_gemm_kind *dg_cpu_kind(const struct dg_cpu *c) { return &c->k.gemm.kind[c->ops.act == DG_BF16]; }

static inline int64_t dg_head_block(const struct dg_cpu *c) { return DG_HEAD_BLOCK / dg_cpu_kind(c)->cols * dg_cpu_kind(c)->cols; }

/* Each sizes its part of the scratch for `want` (all figures at least those of any call before) into *out, which is empty, and touches
 * nothing else: the old part goes when all of the new is there. The _free functions take a zeroed or half-filled part. */
enum dg_status dg_cpu_gemm_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_gemm *out, struct dg_error *err)
    DG_MUST_CHECK;
void dg_cpu_gemm_free(struct dg_cpu_gemm *g);
enum dg_status dg_cpu_rows_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_rows *out, struct dg_error *err)
    DG_MUST_CHECK;
void dg_cpu_rows_free(struct dg_cpu_rows *r);

void dg_cpu_linear(struct dg_backend *, const struct dg_plane *, const struct dg_mat *const *, int, enum dg_epilogue, struct dg_plane *);
void dg_cpu_experts(struct dg_backend *, const struct dg_plane *, const struct dg_routing *, const struct dg_stack *, const struct dg_stack *,
                    struct dg_plane *);
void dg_cpu_head(struct dg_backend *, const struct dg_plane *, const struct dg_mat *, float, float, struct dg_plane *, struct dg_row_stats *);

#endif
