/* The CPU ops that are no product with weights; contracts in ops/ops.h. For the files of this folder only. */
#ifndef DG_OPS_CPU_ROWS_H
#define DG_OPS_CPU_ROWS_H

#include "ops/cpu/state.h"
#include "ops/kv_q8.h"

#include <string.h>

/* Columns of a row that are worked on at once, in a buffer on the stack. */
#define DG_ROWS_PIECE 1024
/* Columns of a piece of logits whose statistics are summed in f32. */
#define DG_STATS_PIECE 512
/* Most queries of a block. */
#define DG_ROWS_BLOCK 256
/* Floats of a block of queries; of a tile of keys or values. */
#define DG_ROWS_QUERIES ((int64_t)128 * 512)
#define DG_ROWS_TILE ((int64_t)DG_VEC_TILE * DG_HEAD_DIM_MAX)
/* Ids of a tile of the soft embedding's product. */
#define DG_ROWS_SOFT_TILE 256
/* Most keys that a query of a top-k attention may keep; a switch allows no more. */
#define DG_ROWS_TOPK_MAX 4096
/* Candidates that the queries of a block may hold together; one query of the largest k at least. */
#define DG_ROWS_FOUND ((int64_t)128 * (3 * 512 + 2 * DG_VEC_TILE))

/* n elements from element `at` of an array of type t, as f32. */
static inline void dg_rows_load(const struct dg_vec_kernels *k, const void *base, enum dg_dtype t, int64_t at, int64_t n, float *dst) {
    if (t == DG_BF16)
        k->from_bf16((const uint16_t *)base + at, n, dst);
    else if (t == DG_F16)
        k->from_f16((const uint16_t *)base + at, n, dst);
    else
        memcpy(dst, (const float *)base + at, (size_t)n * sizeof *dst);
}

static inline void dg_rows_store(const struct dg_vec_kernels *k, const float *src, int64_t n, void *base, enum dg_dtype t, int64_t at) {
    if (t == DG_BF16)
        k->to_bf16(src, n, (uint16_t *)base + at);
    else if (t == DG_F16)
        k->to_f16(src, n, (uint16_t *)base + at);
    else
        memcpy((float *)base + at, src, (size_t)n * sizeof *src);
}

/* A head in a cache, and its values as f32. */
static inline void *dg_rows_head(const struct dg_kv_layer *kv, const void *base, int64_t pos, int32_t head) {
    return (char *)(uintptr_t)base + (size_t)(dg_kv_slot(kv, pos) * kv->kv_heads + head) * dg_kv_head_bytes(kv->dtype, kv->hd);
}

static inline void dg_rows_load_head(const struct dg_vec_kernels *k, const struct dg_kv_layer *kv, const void *head, float *dst) {
    if (kv->dtype == DG_Q8)
        k->from_q8((const int8_t *)head + sizeof(float), *(const float *)head, kv->hd, dst);
    else
        dg_rows_load(k, head, kv->dtype, 0, kv->hd, dst);
}

static inline void dg_rows_store_head(const struct dg_vec_kernels *k, const struct dg_kv_layer *kv, const float *src, void *head) {
    if (kv->dtype == DG_Q8)
        dg_kv_q8_store(src, kv->hd, head);
    else
        dg_rows_store(k, src, kv->hd, head, kv->dtype, 0);
}

static inline int64_t dg_rows_pad(int64_t n) { return (n + DG_VEC_PAD - 1) / DG_VEC_PAD * DG_VEC_PAD; }

void dg_cpu_embed(struct dg_backend *, const int32_t *, int32_t, const struct dg_mat *, float, struct dg_plane *);
void dg_cpu_rms_norm(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, float, float, struct dg_plane *);
void dg_cpu_norm_add(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, float, const struct dg_plane *, float,
                     struct dg_plane *);
void dg_cpu_norm_pair(struct dg_backend *, const struct dg_plane *, const struct dg_vec *, const struct dg_plane *, const struct dg_vec *,
                      float, struct dg_plane *);
void dg_cpu_add(struct dg_backend *, const struct dg_plane *, const struct dg_plane *, struct dg_plane *);
void dg_cpu_qkv_store(struct dg_backend *, struct dg_plane *, int32_t, bool, const struct dg_vec *, const struct dg_vec *, float,
                      const float *, const float *, const struct dg_batch *, const struct dg_kv_layer *);
void dg_cpu_attention(struct dg_backend *, const struct dg_plane *, int32_t, const struct dg_batch *, const struct dg_kv_layer *,
                      struct dg_plane *);
void dg_cpu_router(struct dg_backend *, const struct dg_plane *, const struct dg_mat *, const struct dg_vec *, struct dg_routing *);
void dg_cpu_row_stats(struct dg_backend *, const struct dg_plane *, float, struct dg_row_stats *);
void dg_cpu_soft_embed(struct dg_backend *, const struct dg_plane *, const struct dg_row_stats *, float, const struct dg_mat *, float, bool,
                       struct dg_plane *);

#endif
