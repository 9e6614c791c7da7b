#include "model/kv.h"

#include "core/mem.h"

#include <string.h>

static int64_t ring_slots(const struct dg_config *c, int64_t ctx, int64_t want, int32_t rows_max) {
    int64_t need = (int64_t)c->window - 1 + rows_max, slots = 1;
    if (want > need)
        need = want;
    /* more slots than positions would never be used */
    if (need > ctx)
        need = ctx;
    while (slots < need)
        slots *= 2;
    return slots;
}

int32_t dg_kv_rows_fit(const struct dg_config *c, int64_t ctx, int64_t ring_want, int32_t rows_min, int32_t rows_want) {
    int64_t slots = ring_slots(c, ctx, ring_want, rows_min), fit = (slots - (c->window - 1)) / 256 * 256;
    if (slots >= ctx || fit >= rows_want)
        return rows_want;
    return fit > rows_min ? (int32_t)fit : rows_min;
}

static int64_t layer_slots(const struct dg_config *c, int32_t l, int64_t ctx, int64_t ring) { return c->layer[l].full ? ctx : ring; }

size_t dg_kv_bytes(const struct dg_config *c, int64_t ctx, int64_t ring_want, int32_t rows_max, enum dg_dtype dtype) {
    int64_t ring = ring_slots(c, ctx, ring_want, rows_max);
    size_t bytes = 0;
    for (int32_t l = 0; l < c->layers; l++)
        bytes += 2 * (size_t)layer_slots(c, l, ctx, ring) * (size_t)c->layer[l].kv_heads * dg_kv_head_bytes(dtype, c->layer[l].hd);
    return bytes;
}

enum dg_status dg_kv_init(struct dg_kv *kv, struct dg_backend *be, int64_t ctx, int64_t ring_want, int32_t rows_max, enum dg_dtype dtype,
                          struct dg_error *err) {
    const struct dg_config *c = &be->model->cfg;
    memset(kv, 0, sizeof *kv);
    if (dtype == DG_Q8 && !be->ops->kv_q8)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "the %s backend has no q8 KV cache; use --kv f16", be->ops->name);
    kv->ctx = ctx;
    kv->ring = ring_slots(c, ctx, ring_want, rows_max);
    kv->window = c->window;
    kv->layers = c->layers;
    kv->bytes = dg_kv_bytes(c, ctx, ring_want, rows_max, dtype);
    kv->layer = dg_calloc((size_t)c->layers, sizeof *kv->layer);
    if (!kv->layer)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the KV cache");
    for (int32_t l = 0; l < c->layers; l++) {
        struct dg_kv_layer *y = &kv->layer[l];
        bool full = c->layer[l].full;
        *y = (struct dg_kv_layer){NULL, NULL, dtype, c->layer[l].kv_heads, c->layer[l].hd, layer_slots(c, l, ctx, kv->ring), !full,
                                  full ? 0 : c->window};
        size_t bytes = (size_t)y->slots * (size_t)y->kv_heads * dg_kv_head_bytes(dtype, y->hd);
        y->k = be->ops->alloc(be, bytes);
        y->v = be->ops->alloc(be, bytes);
        if (!y->k || !y->v) {
            struct dg_error why = {0};
            enum dg_status st = dg_backend_status(be, &why);
            DG_FAIL(err, st, "the KV cache of %.2f GiB for a context of %lld does not fit: %s; use a smaller --ctx",
                    (double)kv->bytes / (1 << 30), (long long)ctx, dg_error_text(&why));
            dg_error_clear(&why);
            dg_kv_deinit(kv, be);
            return st;
        }
    }
    return DG_OK;
}

void dg_kv_deinit(struct dg_kv *kv, struct dg_backend *be) {
    for (int32_t l = 0; kv->layer && l < kv->layers; l++) {
        be->ops->free(be, kv->layer[l].k);
        be->ops->free(be, kv->layer[l].v);
    }
    dg_free(kv->layer);
    memset(kv, 0, sizeof *kv);
}

int64_t dg_kv_cut_floor(const struct dg_kv *kv) {
    /* the window before the cut starts at len - (window - 1) and must not have been overwritten by high - ring */
    int64_t oldest = kv->high - kv->ring;
    return oldest <= 0 ? 0 : oldest + kv->window - 1;
}

void dg_kv_cut(struct dg_kv *kv, int64_t len) {
    kv->len = len;
    if (len == 0)
        kv->high = 0;
}

/* The 64-bit finaliser of MurmurHash3, chained over words. */
static uint64_t mix(uint64_t h, uint64_t w) {
    h = (h ^ w) * 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t h, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = mix(h, w);
    }
    if (n) {
        uint64_t w = 0;
        memcpy(&w, p, n);
        h = mix(h, w ^ (uint64_t)n << 56);
    }
    return h;
}

enum dg_status dg_kv_fingerprint(const struct dg_kv *kv, struct dg_backend *be, uint64_t *out, struct dg_error *err) {
    uint64_t h = mix(0, (uint64_t)kv->len);
    for (int32_t l = 0; l < kv->layers; l++) {
        const struct dg_kv_layer *y = &kv->layer[l];
        size_t row = (size_t)y->kv_heads * dg_kv_head_bytes(y->dtype, y->hd);
        uint8_t *tmp = dg_calloc(row, 1);
        if (!tmp)
            return DG_FAIL(err, DG_E_NOMEM, "no memory for the KV fingerprint");
        int64_t lo = y->window && kv->len - (y->window - 1) > 0 ? kv->len - (y->window - 1) : 0;
        for (int64_t p = lo; p < kv->len; p++)
            for (int which = 0; which < 2; which++) {
                be->ops->read(be, tmp, (const uint8_t *)(which ? y->v : y->k) + (size_t)dg_kv_slot(y, p) * row, row);
                h = hash_bytes(h, tmp, row);
            }
        dg_free(tmp);
    }
    *out = h;
    return dg_backend_status(be, err);
}
