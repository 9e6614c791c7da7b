/* Full layers that attend to the highest scores alone: all scores of as many rows as the scratch holds, then the choice and the sums. */
#include "ops/cuda/state.h"

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

/* Floats that one row's scores take, with the largest of each group beside them. */
static int64_t row_floats(int64_t heads, int64_t keys) { return heads * (up(keys, DGC_TOP_TILE) / 32 * 33); }

/* A 64th of the memory the backend may take, within bounds: 64 MiB, and 1 GiB or a canvas's scores, whose rows then need no second launch. */
static size_t floats_most(const struct dg_cuda *cu, size_t canvas) {
    const size_t least = (size_t)16 << 20, gib = (size_t)256 << 20, most = canvas > gib ? canvas : gib;
    size_t free_bytes = 0, total = 0;
    cu->d.mem_info(&free_bytes, &total);
    total = cu->budget && cu->budget < total ? cu->budget : total;
    size_t share = total / 64 / sizeof(float);
    return share < least ? least : share > most ? most : share;
}

int64_t dg_cuda_top_keys(const struct dg_cuda *cu, const struct dg_batch *b) {
    int64_t end = b->pos0 + b->n, most = up(cu->cap.ctx, DGC_TOP_TILE), whole = up(end, 1024);
    return whole <= most ? whole : end <= most ? most : up(end, DGC_TOP_TILE);
}

bool dg_cuda_top_few(const struct dg_batch *b) { return !b->causal && b->pos0 + b->n_live <= DGC_TOP_DENSE; }

size_t dg_cuda_score_floats(const struct dg_cuda *cu, size_t rows, int64_t ctx) {
    size_t row = (size_t)row_floats(cu->model.cfg.heads, ctx), all = rows * row, most = floats_most(cu, (size_t)cu->model.cfg.canvas * row);
    return all < most ? all : row > most ? row : most;
}

/* Whether tensor cores make the scores; which of the two ways a row goes depends on the layer's cache and the planes' types alone. */
static bool on_tiles(const struct dg_cuda *cu, const struct dg_plane *q, const struct dg_batch *b, const struct dg_kv_layer *kv) {
    return cu->kernels != DG_CUDA_SIMPLE && q->dtype == DG_BF16 && kv->dtype == DG_F16 && kv->hd % 64 == 0 && !kv->ring && b->topk <= DGC_TOP_KEPT &&
           cu->fn[DGC_K_top_scores] && (((uintptr_t)kv->k | (uintptr_t)kv->v) & 15) == 0;
}

static void *row_of(const struct dg_plane *p, int32_t row) {
    return (char *)p->data + (size_t)row * (size_t)p->ld * dg_dtype_bytes(p->dtype);
}

static void tiled(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch, const struct dg_kv_layer *kv,
                  struct dg_plane *y, int32_t row, int32_t n) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int64_t keys = dg_cuda_top_keys(cu, batch), pitch = up(keys, DGC_TOP_TILE);
    struct dgc_top_scores_args s = {dg_cuda_plane(q), dg_cuda_kv(kv), cu->dev_params, cu->s.score, cu->s.score + (int64_t)n * heads * pitch,
                                    pitch, n, heads, batch->causal, row};
    s.q.p = row_of(q, row);
    if (!dg_cuda_hopper_scores(be, &s))
        dgc_launch_top_scores(be, DGC_K_top_scores, tiles((int64_t)n * (heads / kv->kv_heads), DGC_TOP_TILE) * (unsigned)kv->kv_heads,
                              tiles(keys, DGC_TOP_TILE), DGC_TOP_SHARED, &s);
    struct dgc_top_values_args v = {dg_cuda_plane(y), s.kv, s.prm, s.score, s.most, pitch, n, heads, batch->causal, row, batch->topk, 0};
    v.y.p = row_of(y, row);
    v.dense = dg_cuda_top_few(batch) && dg_cuda_hopper_sums(cu, &v);
    dgc_launch_top_values(be, DGC_K_top_values, tiles((int64_t)n * heads, DGC_TOP_UNITS), 1, 0, &v);
    if (v.dense)
        dg_cuda_hopper_sum(be, &v);
}

static void simple(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch, const struct dg_kv_layer *kv,
                   struct dg_plane *y, int32_t row, int32_t n) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int64_t keys = dg_cuda_top_keys(cu, batch);
    struct dgc_scores_args s = {dg_cuda_plane(q), dg_cuda_kv(kv), cu->dev_params, cu->s.score, keys, n, heads, batch->causal, row};
    s.q.p = row_of(q, row);
    dgc_launch_scores(be, DGC_K_scores, tiles((int64_t)n * heads, 4), tiles(keys, DGC_SCORE_KEYS), 0, &s);
    struct dgc_top_attention_args t = {dg_cuda_plane(y), s.kv, s.prm, s.score, keys, n, heads, batch->causal, row, batch->topk};
    t.y.p = row_of(y, row);
    dgc_launch_top_attention(be, DGC_K_top_attention, (unsigned)(n * heads), 1, 0, &t);
}

void dg_cuda_top_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                           const struct dg_kv_layer *kv, struct dg_plane *y) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int64_t fit = (int64_t)cu->s.score_floats / row_floats(heads, dg_cuda_top_keys(cu, batch)), whole = DGC_TOP_TILE * kv->kv_heads / heads;
    bool on_cores = on_tiles(cu, q, batch, kv);
    if (batch->topk > DGC_TOP_MAX || fit < 1) {
        dg_backend_fail(be, DG_E_LIMIT, batch->topk > DGC_TOP_MAX ? "a top-k attention of more than 4096 keys" : "a context beyond the scratch");
        return;
    }
    /* chunks of about the same size, of whole tiles where there are many rows */
    int64_t chunks = (batch->n + fit - 1) / fit, chunk = (batch->n + chunks - 1) / chunks;
    if (whole > 0 && up(chunk, whole) <= fit)
        chunk = up(chunk, whole);
    for (int32_t row = 0, n; row < batch->n; row += n) {
        n = batch->n - row < chunk ? batch->n - row : (int32_t)chunk;
        (on_cores ? tiled : simple)(be, q, heads, batch, kv, y, row, n);
    }
}
