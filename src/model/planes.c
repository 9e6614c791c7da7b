/* The planes a session's forward calls work in, and the rotation frequencies. */
#include "core/mem.h"
#include "model/forward.h"

#include <math.h>
#include <string.h>

/* Full layers ("proportional"): theta^(-2i/hd) over the whole head dimension for the first factor*hd/2 pairs, the others do not rotate.
 * (reference.md section 3) */
static enum dg_status frequencies(struct dg_planes *p, const struct dg_config *c, struct dg_error *err) {
    for (int32_t l = 0; l < c->layers; l++) {
        int kind = c->layer[l].full;
        int32_t half = c->layer[l].hd / 2;
        if (p->half[kind] == half)
            continue;
        if (p->half[kind])
            return DG_FAIL(err, DG_E_UNSUPPORTED, "layer %d: %s layers with different head dimensions (%d and %d) are not supported", l,
                           kind ? "full" : "sliding", 2 * p->half[kind], 2 * half);
        p->half[kind] = half;
        p->inv_freq[kind] = dg_calloc((size_t)half, sizeof *p->inv_freq[kind]);
        if (!p->inv_freq[kind])
            return DG_FAIL(err, DG_E_NOMEM, "no memory for the rotation tables");
        double theta = kind ? c->theta_full : c->theta_sliding, factor = kind ? c->rotary_full : c->rotary_sliding;
        for (int32_t i = 0; i < half; i++)
            p->inv_freq[kind][i] = i < (int32_t)(factor * half) ? pow(theta, -(double)i / half) : 0.0;
    }
    return DG_OK;
}

/* Columns of the widest layer's q|k|v, and of its q. */
static void widest(const struct dg_model *m, int32_t *qkv, int32_t *att) {
    *qkv = *att = 0;
    for (int32_t l = 0; l < m->cfg.layers; l++) {
        const struct dg_layer_shape *s = &m->cfg.layer[l];
        int32_t q = m->cfg.heads * s->hd, all = q + (m->layer[l].v.data ? 2 : 1) * s->kv_heads * s->hd;
        *qkv = all > *qkv ? all : *qkv;
        *att = q > *att ? q : *att;
    }
}

size_t dg_planes_bytes_prefill(const struct dg_backend *be, enum dg_dtype type, int32_t rows) {
    const struct dg_config *c = &be->model->cfg;
    int32_t qkv, att;
    widest(be->model, &qkv, &att);
    size_t act = 5 * (size_t)c->hidden + (size_t)qkv + (size_t)att + (size_t)c->inter, half[2] = {0, 0};
    for (int32_t l = 0; l < c->layers; l++)
        half[c->layer[l].full] = (size_t)c->layer[l].hd / 2;
    size_t row = act * dg_dtype_bytes(type) + ((size_t)c->hidden + 2 * (half[0] + half[1])) * sizeof(float) +
                 (size_t)c->topk * (sizeof(int32_t) + sizeof(float)) + sizeof(int32_t);
    return (size_t)rows * row + (size_t)c->canvas * (4 * sizeof(float) + sizeof(int32_t));
}

static size_t stats_tiles(const struct dg_backend *be) {
    return be->ops->stats_tile ? ((size_t)be->model->cfg.vocab - 1) / (size_t)be->ops->stats_tile + 1 : 0;
}

/* 0: the sampler runs on the host. */
static int32_t sampled_rows(const struct dg_backend *be) {
    int32_t canvas = be->model->cfg.canvas;
    return be->ops->sample && canvas <= be->ops->sample_max ? dg_sample_rows(canvas) : 0;
}

size_t dg_planes_bytes(const struct dg_backend *be, int32_t rows) {
    const struct dg_config *c = &be->model->cfg;
    size_t sample = sampled_rows(be) ? dg_sample_bytes(sampled_rows(be)) : 0;
    return dg_planes_bytes_prefill(be, be->ops->act, rows) + (size_t)c->canvas * ((size_t)c->vocab + stats_tiles(be)) * sizeof(float) + sample;
}

static enum dg_status alloc_all(struct dg_planes *p, struct dg_backend *be, int32_t rows, bool logits, struct dg_error *err) {
    const struct dg_config *c = &be->model->cfg;
    const struct dg_ops *op = be->ops;
    int32_t qkv, att;
    widest(be->model, &qkv, &att);
    p->x = dg_plane_alloc(be, op->act, rows, c->hidden);
    p->h = dg_plane_alloc(be, op->act, rows, c->hidden);
    p->hr = dg_plane_alloc(be, op->act, rows, c->hidden);
    p->he = dg_plane_alloc(be, op->act, rows, c->hidden);
    p->t = dg_plane_alloc(be, op->act, rows, c->hidden);
    p->qkv = dg_plane_alloc(be, op->act, rows, qkv);
    p->att = dg_plane_alloc(be, op->act, rows, att);
    p->ff = dg_plane_alloc(be, op->act, rows, c->inter);
    p->moe = dg_plane_alloc(be, DG_F32, rows, c->hidden);
    if (logits)
        p->logits = dg_plane_alloc(be, DG_F32, c->canvas, c->vocab);
    size_t n = (size_t)c->canvas, pairs = (size_t)rows * (size_t)c->topk;
    float *stats = op->alloc(be, (DG_STATS_READ + 1) * n * sizeof *stats);
    if (stats)
        p->stats = (struct dg_row_stats){.entropy = stats, .p_max = stats + n, .argmax = (int32_t *)(stats + 2 * n), .max = stats + 3 * n,
                                         .sum = stats + DG_STATS_READ * n};
    if (logits && op->stats_tile)
        p->stats.tile_max = op->alloc(be, n * stats_tiles(be) * sizeof *stats);
    p->routing.expert = op->alloc(be, pairs * sizeof(int32_t));
    p->routing.weight = op->alloc(be, pairs * sizeof(float));
    p->routing.k = c->topk;
    p->ids = op->alloc(be, (size_t)rows * sizeof(int32_t));
    if (logits && sampled_rows(be)) {
        p->sample_mem = op->alloc(be, dg_sample_bytes(sampled_rows(be)));
        if (p->sample_mem)
            p->sample = dg_sample_in(p->sample_mem, sampled_rows(be));
    }
    int32_t half = p->half[0] > p->half[1] ? p->half[0] : p->half[1];
    p->host_cos = dg_calloc((size_t)rows, (size_t)half * sizeof(float));
    p->host_sin = dg_calloc((size_t)rows, (size_t)half * sizeof(float));
    if (!p->host_cos || !p->host_sin)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the rotation tables");
    for (int kind = 0; kind < 2; kind++)
        if (p->half[kind]) {
            p->cos[kind] = op->alloc(be, (size_t)rows * (size_t)p->half[kind] * sizeof(float));
            p->sin[kind] = op->alloc(be, (size_t)rows * (size_t)p->half[kind] * sizeof(float));
        }
    return dg_backend_status(be, err);
}

static enum dg_status init(struct dg_planes *p, struct dg_backend *be, int32_t rows, bool logits, struct dg_error *err) {
    memset(p, 0, sizeof *p);
    p->rows = rows;
    p->rope_pos0 = -1;
    enum dg_status st = frequencies(p, &be->model->cfg, err);
    if (st == DG_OK)
        st = alloc_all(p, be, rows, logits, err);
    if (st != DG_OK)
        dg_planes_deinit(p, be);
    return st;
}

enum dg_status dg_planes_init(struct dg_planes *p, struct dg_backend *be, int32_t rows, struct dg_error *err) {
    return init(p, be, rows, true, err);
}

enum dg_status dg_planes_init_prefill(struct dg_planes *p, struct dg_backend *be, int32_t rows, struct dg_error *err) {
    return init(p, be, rows, false, err);
}

void dg_planes_deinit(struct dg_planes *p, struct dg_backend *be) {
    struct dg_plane *planes[] = {&p->x, &p->h, &p->hr, &p->he, &p->t, &p->qkv, &p->att, &p->ff, &p->moe, &p->logits};
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
        dg_plane_free(be, planes[i]);
    void *arrays[] = {p->stats.entropy, p->stats.tile_max, p->routing.expert, p->routing.weight, p->ids,
                      p->cos[0],        p->cos[1],         p->sin[0],         p->sin[1],       p->sample_mem};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        be->ops->free(be, arrays[i]);
    dg_free(p->host_cos);
    dg_free(p->host_sin);
    dg_free(p->inv_freq[0]);
    dg_free(p->inv_freq[1]);
    memset(p, 0, sizeof *p);
    p->rope_pos0 = -1;
}
