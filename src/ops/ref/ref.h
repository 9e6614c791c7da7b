/* The reference backend: every op in plain C and f32, the oracle of all others.
 *
 * Sums: a dot product adds element i to lane i % DG_REF_LANES and then the lanes pairwise, so that a compiler may use vectors without
 * changing a bit; every other sum runs in index order. exp, tanh and the row statistics use the C library in f32 and double. */
#ifndef DG_OPS_REF_REF_H
#define DG_OPS_REF_REF_H

#include "ops/ops.h"

#define DG_REF_LANES 16

/* n_threads as in dg_pool_create. model is borrowed for the backend's life. */
enum dg_status dg_ref_create(struct dg_backend **out, const struct dg_model *model, int n_threads, struct dg_error *err) DG_MUST_CHECK;

/* Shared by the files of this folder. */
struct dg_ref {
    struct dg_reserve cap;
    int32_t n_threads;
    float *row;         /* [threads][2][row_len] decoded weight rows */
    int64_t row_len;
    float *score;       /* [threads][2][ctx] scores, and a copy to select from */
    int32_t *bucket;    /* [experts + 1] first pair of each expert */
    int32_t *pair;      /* [rows * topk] pairs (row * topk + rank) ordered by expert */
    float *pair_h;      /* [rows * topk][moe] */
    float *pair_y;      /* [rows * topk][hidden] */
};

/* The dot product described above. */
float dg_ref_dot(const float *a, const float *b, int64_t n);
void dg_ref_load_f16(const uint16_t *h, int64_t n, float *dst); /* n values to f32 */
float dg_ref_gelu(float x); /* gelu_pytorch_tanh */
/* 1 / sqrt(mean(x^2) + eps); the squares are added in double, since a row may hold thousands of them. */
float dg_ref_inv_rms(const float *x, int32_t n, float eps);

void dg_ref_embed(struct dg_backend *, const int32_t *, int32_t, const struct dg_mat *, float, struct dg_plane *);
void dg_ref_rms_norm(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, float, float, struct dg_plane *);
void dg_ref_norm_add(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, float, const struct dg_plane *, float,
                     struct dg_plane *);
void dg_ref_norm_pair(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, const struct dg_plane *, const struct dg_vec *,
                      float, struct dg_plane *);
void dg_ref_add(struct dg_backend *, const struct dg_plane *, const struct dg_plane *, struct dg_plane *);
void dg_ref_linear(struct dg_backend *, const struct dg_plane *, const struct dg_mat *const *, int, enum dg_epilogue, struct dg_plane *);
void dg_ref_qkv_store(struct dg_backend *, struct dg_plane *, int32_t, bool, const struct dg_vec *, const struct dg_vec *, float,
                      const float *, const float *, const struct dg_batch *, const struct dg_kv_layer *);
void dg_ref_attention(struct dg_backend *, const struct dg_plane *, int32_t, const struct dg_batch *, const struct dg_kv_layer *,
                      struct dg_plane *);
void dg_ref_router(struct dg_backend *, const struct dg_plane *, const struct dg_mat *, const struct dg_vec *, struct dg_routing *);
void dg_ref_experts(struct dg_backend *, const struct dg_plane *, const struct dg_routing *, const struct dg_stack *,
                    const struct dg_stack *, struct dg_plane *);
void dg_ref_head(struct dg_backend *, const struct dg_plane *, const struct dg_mat *, float, float, struct dg_plane *,
                 struct dg_row_stats *);
void dg_ref_row_stats(struct dg_backend *, const struct dg_plane *, float, struct dg_row_stats *);
void dg_ref_soft_embed(struct dg_backend *, const struct dg_plane *, const struct dg_row_stats *, float, const struct dg_mat *, float, bool,
                       struct dg_plane *);

#endif
