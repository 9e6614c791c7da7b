/* The KV cache: a position-addressed store of every layer's keys and values.
 *
 * Sliding layers keep a power-of-two ring, full layers a region of the whole context. A forward call of n rows at pos0 writes
 * positions pos0 .. pos0 + n - 1 (the canvas of a denoise step too: its entries lie past the committed length and are dead once the block
 * ends). So a ring needs window - 1 + rows slots, and a cut-back is possible only as far as the ring still holds the window before
 * the cut: what the highest position ever written has not overwritten. (seed Part III; reference.md section 3) */
#ifndef DG_MODEL_KV_H
#define DG_MODEL_KV_H

#include "ops/ops.h"

struct dg_kv {
    struct dg_kv_layer *layer; /* cfg.layers */
    int32_t layers;
    int64_t ctx;   /* positions full layers hold, canvas included */
    int64_t ring;  /* slots of a sliding layer's ring */
    int64_t len;   /* committed positions */
    int64_t high;  /* one past the highest position written since the cache was last empty */
    int32_t window;
    size_t bytes;
};

/* ctx: positions of a full layer; ring_want: slots wished for sliding layers, rounded up to a power of two of at least
 * window - 1 + rows_max (and no more than ctx needs). dtype: DG_F32, DG_F16 or DG_Q8. Owner: the caller, dg_kv_deinit.
 * Errors: DG_E_NOMEM with the figures, DG_E_UNSUPPORTED for DG_Q8 on a backend without it. */
enum dg_status dg_kv_init(struct dg_kv *kv, struct dg_backend *be, int64_t ctx, int64_t ring_want, int32_t rows_max, enum dg_dtype dtype,
                          struct dg_error *err) DG_MUST_CHECK;
void dg_kv_deinit(struct dg_kv *kv, struct dg_backend *be);
/* Bytes dg_kv_init would take. */
size_t dg_kv_bytes(const struct dg_config *cfg, int64_t ctx, int64_t ring_want, int32_t rows_max, enum dg_dtype dtype);
/* Rows of a call that rings for rows_min have room for anyway, at most rows_want; a multiple of 256 where the rings are what limits them. */
int32_t dg_kv_rows_fit(const struct dg_config *cfg, int64_t ctx, int64_t ring_want, int32_t rows_min, int32_t rows_want);
/* Lowest length the cache can be cut back to without computing anything again (0 is always possible). */
int64_t dg_kv_cut_floor(const struct dg_kv *kv);
/* Cuts back to len positions, dg_kv_cut_floor <= len <= kv->len or len = 0. O(1): writes nothing. */
void dg_kv_cut(struct dg_kv *kv, int64_t len);
/* 64-bit hash of the live entries in position order: every position of full layers, the last window - 1 of sliding ones, so that two
 * caches that would answer alike have the same value whatever their rings' rotation. Reads the cache from the backend. */
enum dg_status dg_kv_fingerprint(const struct dg_kv *kv, struct dg_backend *be, uint64_t *out, struct dg_error *err) DG_MUST_CHECK;

#endif
