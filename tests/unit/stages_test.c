/* The stages of the bundled model (embedding, norm, GLU, rope, attention, router, experts) and whole passes over it, pinned against
 * a naive second implementation that shares nothing with the engine but the files. The contract of the single ops is ops_test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/forward.h"
#include "ops/backends.h"
#include "support/naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 12      /* of the single stages */
#define PROMPT 140   /* longer than the window of 128 */
#define CTX 512

static struct dg_model *model;
static struct dg_backend *be;
static struct nv_model nv;
static int32_t tokens[PROMPT + 64];
static double *kept[3]; /* residual rows, see there */

static int setup(void **state) {
    (void)state;
    struct dg_error err = {0};
    char dir[4096];
    const char *root = getenv("DG_ROOT");
    snprintf(dir, sizeof dir, "%s/models/mini", root ? root : ".");
    struct dg_backend_opts o = {.exact = true};
    if (dg_model_open(&model, dir, &err) != DG_OK || dg_backend_open(&be, "ref", model, &o, &err) != DG_OK) {
        fprintf(stderr, "%s\n", dg_error_text(&err));
        return 1;
    }
    struct dg_reserve r = {.rows = PROMPT, .ctx = CTX, .k_max = 1024, .topk = 4, .experts = 16, .moe = 128, .hidden = 256};
    if (dg_backend_reserve(be, &r, &err) != DG_OK)
        return 1;
    nv_open(&nv, dir, CTX);
    uint64_t s = 7;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = (int32_t)((nv_random(&s) + 1) / 2 * nv.vocab);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int l = 0; l < 3; l++)
        free(kept[l]);
    nv_close(&nv);
    dg_backend_destroy(be);
    dg_model_close(model);
    return 0;
}

static void be_ok(void) {
    struct dg_error err = {0};
    if (dg_backend_status(be, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
}

/* Compares against the naive numbers, relative to the largest of them. */
static void close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance) {
    double top = 1e-30, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++)
        top = fabs(want[i]) > top ? fabs(want[i]) : top;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) {
            worst = isnan(d) ? INFINITY : d;
            at = i;
        }
    }
    if (!(worst <= tolerance * top))
        fail_msg("%s: element %lld is %.9g, should be %.9g (largest %.3g, tolerance %.1g)", what, (long long)at, (double)got[at], want[at], top,
                 tolerance);
}

static struct dg_plane plane(int32_t rows, int32_t cols) {
    struct dg_plane p = dg_plane_alloc(be, DG_F32, rows, cols);
    be_ok();
    return p;
}

/* A plane of rows from doubles. */
static struct dg_plane plane_of(const double *x, int32_t rows, int32_t cols) {
    struct dg_plane p = plane(rows, cols);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++)
        ((float *)p.data)[i] = (float)x[i];
    return p;
}

/* Residual rows as layer l sees them: sizes that the model's own numbers have. Causal, so one computation serves any number of rows. */
static double *residual(int l, int n) {
    int64_t all = (int64_t)PROMPT * nv.hidden;
    if (!kept[l]) {
        kept[l] = nv_new(all);
        nv_embed(&nv, tokens, PROMPT, kept[l]);
        for (int i = 0; i < l; i++)
            nv_layer(&nv, i, true, kept[l], PROMPT, 0, NULL);
    }
    double *x = nv_new((int64_t)n * nv.hidden);
    memcpy(x, kept[l], (size_t)n * (size_t)nv.hidden * sizeof *x);
    return x;
}

static void embedding_stage(void **state) {
    (void)state;
    double *want = nv_new((int64_t)ROWS * nv.hidden);
    int32_t *ids = be->ops->alloc(be, ROWS * sizeof *ids);
    memcpy(ids, tokens, ROWS * sizeof *ids);
    ids[0] = 0;
    ids[1] = nv.vocab - 1;
    struct dg_plane y = plane(ROWS, nv.hidden);
    be->ops->embed(be, ids, ROWS, &model->embed, sqrtf((float)nv.hidden), &y);
    be_ok();
    nv_embed(&nv, ids, ROWS, want);
    close_to("embedding", y.data, want, (int64_t)ROWS * nv.hidden, 0); /* the scale is 16: exact */
    be->ops->free(be, ids);
    dg_plane_free(be, &y);
    free(want);
}

static void norm_stage(void **state) {
    (void)state;
    double *x = residual(0, ROWS), *want = nv_new((int64_t)ROWS * nv.hidden);
    struct dg_plane in = plane_of(x, ROWS, nv.hidden), y = plane(ROWS, nv.hidden);
    for (int i = 0; i < ROWS; i++)
        nv_norm(x + i * nv.hidden, nv_layer_tensor(&nv, 0, "input_layernorm.weight", nv.hidden), nv.hidden, nv.eps, want + i * nv.hidden);
    be->ops->rms_norm(be, &in, &model->layer[0].input_norm, 1, (float)nv.eps, &y);
    be_ok();
    close_to("norm", y.data, want, (int64_t)ROWS * nv.hidden, 1e-6);
    /* the other six of the layer are where they belong */
    static const char *const name[] = {"post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm_1",
                                       "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm"};
    const struct dg_layer *w = &model->layer[0];
    const struct dg_vec *vec[] = {&w->post_attn_norm, &w->pre_ff_norm, &w->post_ff_norm_1, &w->pre_ff_norm_2, &w->post_ff_norm_2, &w->post_ff_norm};
    for (size_t k = 0; k < sizeof vec / sizeof *vec; k++) {
        char full[64];
        snprintf(full, sizeof full, "%s.weight", name[k]);
        nv_norm(x, nv_layer_tensor(&nv, 0, full, nv.hidden), nv.hidden, nv.eps, want);
        struct dg_plane one = dg_plane_view(&in, 1, nv.hidden), out = dg_plane_view(&y, 1, nv.hidden);
        be->ops->rms_norm(be, &one, vec[k], 1, (float)nv.eps, &out);
        be_ok();
        close_to(name[k], y.data, want, nv.hidden, 1e-6);
    }
    dg_plane_free(be, &in);
    dg_plane_free(be, &y);
    free(x);
    free(want);
}

static void glu_stage(void **state) {
    (void)state;
    int h = nv.hidden, f = nv.inter;
    double *x = residual(0, ROWS), *want = nv_new((int64_t)ROWS * f), *g = nv_new(f), *u = nv_new(f);
    struct dg_plane in = plane_of(x, ROWS, h), y = plane(ROWS, f);
    for (int i = 0; i < ROWS; i++) {
        nv_matvec(nv_layer_tensor(&nv, 0, "mlp.gate_proj.weight", (int64_t)f * h), f, h, x + i * h, g);
        nv_matvec(nv_layer_tensor(&nv, 0, "mlp.up_proj.weight", (int64_t)f * h), f, h, x + i * h, u);
        for (int k = 0; k < f; k++)
            want[i * f + k] = nv_gelu(g[k]) * u[k];
    }
    const struct dg_mat *w[2] = {&model->layer[0].gate, &model->layer[0].up};
    be->ops->linear(be, &in, w, 2, DG_EPI_GLU, &y);
    be_ok();
    close_to("GLU", y.data, want, (int64_t)ROWS * f, 2e-6);
    dg_plane_free(be, &in);
    dg_plane_free(be, &y);
    free(x);
    free(want);
    free(g);
    free(u);
}

/* A layer's cache of CTX positions in plain order, or a ring. */
static struct dg_kv_layer cache(int l, enum dg_dtype dtype, int64_t slots, bool ring) {
    struct dg_kv_layer kv = {NULL, NULL, dtype, nv.kv[l], nv.hd[l], slots, ring, nv.full[l] ? 0 : nv.window};
    size_t bytes = (size_t)slots * (size_t)nv.kv[l] * (size_t)nv.hd[l] * dg_dtype_bytes(dtype);
    kv.k = be->ops->alloc(be, bytes);
    kv.v = be->ops->alloc(be, bytes);
    be_ok();
    return kv;
}

static void cache_free(struct dg_kv_layer *kv) {
    be->ops->free(be, kv->k);
    be->ops->free(be, kv->v);
}

static double entry(const struct dg_kv_layer *kv, const void *plane_data, int64_t slot, int col) {
    int64_t i = slot * kv->kv_heads * kv->hd + col;
    return kv->dtype == DG_F32 ? (double)((const float *)plane_data)[i] : nv_f16(((const uint16_t *)plane_data)[i]);
}

static float *rope_table(int l, int64_t pos0, int n, bool sine) {
    int half = nv.hd[l] / 2, full = nv.full[l];
    float *t = be->ops->alloc(be, (size_t)n * (size_t)half * sizeof *t);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < half; d++) {
            double a = d < nv.factor[full] * half ? (double)(pos0 + i) * pow(nv.theta[full], -2.0 * d / nv.hd[l]) : 0;
            t[i * half + d] = (float)(sine ? sin(a) : cos(a));
        }
    return t;
}

/* Projection, per-head norms and rotation of layer l through the ops: queries as nv computes them, keys and values in their slots, and
 * not one byte anywhere else. The last two rows are padding. */
static void rope_layer(int l, enum dg_dtype dtype, int64_t pos0, bool ring, int64_t slots) {
    int hd = nv.hd[l], qn = nv.heads * hd, kn = nv.kv[l] * hd, live = ROWS - 2;
    const struct dg_layer *w = &model->layer[l];
    bool has_v = w->v.data != NULL;
    assert_int_equal(has_v, !nv.full[l]);
    double *x = residual(l, ROWS), *q = nv_new((int64_t)ROWS * qn), *copy = nv_new((int64_t)ROWS * nv.hidden);
    memcpy(copy, x, (size_t)ROWS * (size_t)nv.hidden * sizeof *copy);
    nv_layer(&nv, l, true, copy, ROWS, pos0, &(struct nv_look){.q = q, .attention_only = true});

    struct dg_plane in = plane_of(x, ROWS, nv.hidden), h = plane(ROWS, nv.hidden), qkv = plane(ROWS, qn + (has_v ? 2 : 1) * kn);
    struct dg_kv_layer kv = cache(l, dtype, slots, ring);
    size_t bytes = (size_t)slots * (size_t)kn * dg_dtype_bytes(dtype);
    memset(kv.k, 0xa5, bytes);
    memset(kv.v, 0xa5, bytes);
    const struct dg_mat *stacked[3] = {&w->q, &w->k, &w->v};
    float *cosine = rope_table(l, pos0, ROWS, false), *sine = rope_table(l, pos0, ROWS, true);
    struct dg_batch b = {ROWS, live, pos0, true, -1, 0};
    be->ops->rms_norm(be, &in, &w->input_norm, 1, (float)nv.eps, &h);
    be->ops->linear(be, &h, stacked, has_v ? 3 : 2, DG_EPI_NONE, &qkv);
    be->ops->qkv_store(be, &qkv, nv.heads, has_v, &w->q_norm, &w->k_norm, (float)nv.eps, cosine, sine, &b, &kv);
    be_ok();

    float *got = malloc((size_t)qn * sizeof *got);
    for (int i = 0; i < live; i++) {
        memcpy(got, (const float *)qkv.data + (int64_t)i * qkv.ld, (size_t)qn * sizeof *got);
        close_to("rotated queries", got, q + (int64_t)i * qn, qn, 3e-6);
    }
    free(got);
    /* f16 keeps 11 bits */
    double tol = dtype == DG_F16 ? 0x1p-11 : 3e-6;
    char *written = calloc((size_t)slots, 1);
    for (int i = 0; i < live; i++) {
        int64_t p = pos0 + i, slot = ring ? p % slots : p;
        written[slot] = 1;
        for (int c = 0; c < kn; c++) {
            double k = nv.k[l][p * kn + c], v = nv.v[l][p * kn + c];
            if (fabs(entry(&kv, kv.k, slot, c) - k) > tol * (fabs(k) + 1) || fabs(entry(&kv, kv.v, slot, c) - v) > tol * (fabs(v) + 1))
                fail_msg("layer %d, position %lld, column %d: K %.9g and V %.9g, should be %.9g and %.9g", l, (long long)p, c,
                         entry(&kv, kv.k, slot, c), entry(&kv, kv.v, slot, c), k, v);
        }
    }
    size_t row = bytes / (size_t)slots;
    for (int64_t s = 0; s < slots; s++)
        for (size_t k = 0; !written[s] && k < row; k++)
            if (((uint8_t *)kv.k)[(size_t)s * row + k] != 0xa5 || ((uint8_t *)kv.v)[(size_t)s * row + k] != 0xa5)
                fail_msg("layer %d: slot %lld was written though no live row belongs there", l, (long long)s);
    free(written);
    cache_free(&kv);
    be->ops->free(be, cosine);
    be->ops->free(be, sine);
    dg_plane_free(be, &in);
    dg_plane_free(be, &h);
    dg_plane_free(be, &qkv);
    free(x);
    free(q);
    free(copy);
}

static void rope_stage(void **state) {
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        enum dg_dtype t = dtype ? DG_F16 : DG_F32;
        rope_layer(0, t, 0, false, 64);
        rope_layer(0, t, 0, true, 64);
        rope_layer(0, t, 250, true, 256); /* rows on both sides of the ring's end; padding would wrap onto live slots */
        rope_layer(2, t, 0, false, CTX);  /* full: V is the raw K, a quarter of the pairs turn */
        rope_layer(2, t, 300, false, CTX);
    }
}

/* Keys and values of PROMPT positions and a canvas, then the op over them, in one batch. */
static void attention_layer(int l, enum dg_dtype dtype, bool causal, int64_t pos0, int n) {
    int hd = nv.hd[l], qn = nv.heads * hd, kn = nv.kv[l] * hd;
    bool ring = !nv.full[l];
    int64_t slots = ring ? 256 : CTX;
    double *x = residual(l, n), *q = nv_new((int64_t)n * qn), *att = nv_new((int64_t)n * qn);
    struct nv_look look = {.q = q, .att = att, .attention_only = true};
    double *before = residual(l, (int)pos0 > 0 ? (int)pos0 : 1);
    if (pos0)
        nv_layer(&nv, l, true, before, (int)pos0, 0, &(struct nv_look){.attention_only = true});
    nv_layer(&nv, l, causal, x, n, pos0, &look);
    struct dg_kv_layer kv = cache(l, dtype, slots, ring);
    for (int64_t p = 0; p < pos0 + n; p++)
        for (int c = 0; c < kn; c++) {
            int64_t at = dg_kv_slot(&kv, p) * kn + c;
            if (dtype == DG_F32) {
                ((float *)kv.k)[at] = (float)nv.k[l][p * kn + c];
                ((float *)kv.v)[at] = (float)nv.v[l][p * kn + c];
            } else {
                _Float16 k = (_Float16)nv.k[l][p * kn + c], v = (_Float16)nv.v[l][p * kn + c];
                memcpy((uint16_t *)kv.k + at, &k, 2);
                memcpy((uint16_t *)kv.v + at, &v, 2);
            }
        }
    struct dg_plane in = plane_of(q, n, qn), y = plane(n, qn);
    struct dg_batch b = {n, n, pos0, causal, -1, 0};
    be->ops->attention(be, &in, nv.heads, &b, &kv, &y);
    be_ok();
    char what[96];
    snprintf(what, sizeof what, "attention of layer %d, %s, %s KV, %d rows at %lld", l, causal ? "causal" : "bidirectional",
             dtype == DG_F16 ? "f16" : "f32", n, (long long)pos0);
    close_to(what, y.data, att, (int64_t)n * qn, dtype == DG_F16 ? 4e-3 : 1e-5);
    cache_free(&kv);
    dg_plane_free(be, &in);
    dg_plane_free(be, &y);
    free(x);
    free(before);
    free(q);
    free(att);
}

static void attention_stage(void **state) {
    (void)state;
    static const int layers[] = {0, 2};
    for (int k = 0; k < 2; k++)
        for (int dtype = 0; dtype < 2; dtype++) {
            enum dg_dtype t = dtype ? DG_F16 : DG_F32;
            attention_layer(layers[k], t, true, 0, 1);
            attention_layer(layers[k], t, true, 0, PROMPT);   /* crosses the window */
            attention_layer(layers[k], t, true, 137, 17);
            attention_layer(layers[k], t, false, 0, 5);       /* a canvas without a prompt */
            attention_layer(layers[k], t, false, PROMPT, 64); /* window - 1 of the prompt, the whole canvas */
        }
}

static void router_stage(void **state) {
    (void)state;
    int h = nv.hidden, k = nv.topk;
    double *x = residual(0, ROWS), *copy = residual(0, ROWS), *logits = nv_new((int64_t)ROWS * nv.experts), *t = nv_new(h);
    const struct dg_layer *w = &model->layer[0];
    struct dg_plane in = plane_of(x, ROWS, h), y = plane(ROWS, h);
    struct dg_routing r = {be->ops->alloc(be, (size_t)ROWS * (size_t)k * 4), be->ops->alloc(be, (size_t)ROWS * (size_t)k * 4), k};
    be->ops->rms_norm(be, &in, &w->router_scale, 1 / sqrtf((float)h), (float)nv.eps, &y);
    be->ops->router(be, &y, &w->router, &w->per_expert_scale, &r);
    be_ok();
    for (int i = 0; i < ROWS; i++) {
        int id[8];
        double weight[8];
        nv_norm(x + i * h, nv_layer_tensor(&nv, 0, "router.scale", h), h, nv.eps, t);
        for (int d = 0; d < h; d++)
            t[d] *= pow(h, -0.5);
        nv_matvec(nv_layer_tensor(&nv, 0, "router.proj.weight", (int64_t)nv.experts * h), nv.experts, h, t, logits);
        nv_route(logits, nv.experts, k, nv_layer_tensor(&nv, 0, "router.per_expert_scale", nv.experts), id, weight);
        for (int e = 0; e < k; e++) {
            assert_int_equal(r.expert[i * k + e], id[e]);
            if (fabs((double)r.weight[i * k + e] - weight[e]) > 2e-6)
                fail_msg("row %d: expert %d weighs %.8f, should weigh %.8f", i, id[e], (double)r.weight[i * k + e], weight[e]);
        }
    }
    be->ops->free(be, r.expert);
    be->ops->free(be, r.weight);
    dg_plane_free(be, &in);
    dg_plane_free(be, &y);
    free(x);
    free(copy);
    free(logits);
    free(t);
}

static void experts_stage(void **state) {
    (void)state;
    int h = nv.hidden, k = nv.topk;
    int64_t gu = (int64_t)2 * nv.moe * h, dn = (int64_t)h * nv.moe;
    double *x = residual(0, ROWS), *want = nv_new((int64_t)ROWS * h);
    struct dg_plane in = plane_of(x, ROWS, h), y = plane(ROWS, h);
    struct dg_routing r = {be->ops->alloc(be, (size_t)ROWS * (size_t)k * 4), be->ops->alloc(be, (size_t)ROWS * (size_t)k * 4), k};
    uint64_t s = 3;
    for (int i = 0; i < ROWS; i++)
        for (int e = 0; e < k; e++) {
            /* every expert is used by some row; row 0 uses the last ones */
            int id = i ? (i * 5 + e * 3) % nv.experts : nv.experts - 1 - e;
            double weight = nv_random(&s);
            r.expert[i * k + e] = id;
            r.weight[i * k + e] = (float)weight;
            nv_expert(nv_layer_tensor(&nv, 0, "experts.gate_up_proj", nv.experts * gu) + id * gu,
                      nv_layer_tensor(&nv, 0, "experts.down_proj", nv.experts * dn) + id * dn, nv.moe, h, x + i * h, weight, want + i * h);
        }
    be->ops->experts(be, &in, &r, &model->layer[0].gate_up, &model->layer[0].expert_down, &y);
    be_ok();
    close_to("experts", y.data, want, (int64_t)ROWS * h, 3e-6);
    be->ops->free(be, r.expert);
    be->ops->free(be, r.weight);
    dg_plane_free(be, &in);
    dg_plane_free(be, &y);
    free(x);
    free(want);
}

struct layers_seen {
    const double *want; /* [layers][n][hidden] */
    int seen;
};

static void see_layer(void *ctx, const char *what, int32_t layer, const struct dg_plane *p, const struct dg_routing *routing) {
    (void)routing;
    struct layers_seen *s = ctx;
    if (strcmp(what, "layer"))
        return;
    s->seen++;
    char name[32];
    snprintf(name, sizeof name, "layer %d", layer);
    close_to(name, p->data, s->want + (int64_t)layer * p->rows * p->cols, (int64_t)p->rows * p->cols, 2e-5);
}

/* A prompt over the window's edge, cut in three, then three denoise steps: none, seed and soft signal. */
static void whole_passes(void **state) {
    (void)state;
    struct dg_planes p;
    struct dg_kv kv;
    struct dg_error err = {0};
    int h = nv.hidden, n = PROMPT, c = 24; /* rows of the canvas: fewer than the model's, as in a re-roll */
    double *hidden = nv_new((int64_t)n * h), *layers = nv_new((int64_t)nv.layers * n * h);
    nv_embed(&nv, tokens, n, hidden);
    for (int l = 0; l < nv.layers; l++)
        nv_layer(&nv, l, true, hidden, n, 0, &(struct nv_look){.out = layers + (int64_t)l * n * h});
    for (int i = 0; i < n; i++)
        nv_norm(hidden + i * h, nv_tensor(&nv, "model.decoder.norm.weight", h), h, nv.eps, hidden + i * h);
    assert_int_equal(dg_planes_init(&p, be, PROMPT, &err), DG_OK);
    assert_int_equal(dg_kv_init(&kv, be, CTX, 0, PROMPT, DG_F32, &err), DG_OK);
    float *got = malloc((size_t)n * (size_t)h * sizeof *got);
    struct layers_seen seen = {layers, 0};
    struct dg_trace trace = {see_layer, &seen};
    assert_int_equal(dg_forward_prefill(be, &p, &kv, tokens, n, got, &trace, &err), DG_OK);
    assert_int_equal(seen.seen, nv.layers);
    close_to("hidden states", got, hidden, (int64_t)n * h, 5e-5);
    dg_kv_cut(&kv, 0);
    for (int done = 0, part = 1; done < n; done += part, part = n - done < 100 ? n - done : 100)
        assert_int_equal(dg_forward_prefill(be, &p, &kv, tokens + done, part, got + done * h, NULL, &err), DG_OK);
    close_to("hidden states in three parts", got, hidden, (int64_t)n * h, 5e-5);

    double *logits = nv_new((int64_t)c * nv.vocab), *signal = nv_new((int64_t)c * h);
    const float inv_t = 1 / 0.7f;
    for (int step = 0; step < 3; step++) {
        enum dg_sc_mode mode = step == 0 ? DG_SC_NONE : step == 1 ? DG_SC_SEED : DG_SC_SOFT;
        if (mode == DG_SC_SEED)
            nv_embed(&nv, tokens + n, c, signal);
        else if (mode == DG_SC_SOFT)
            nv_soft(&nv, logits, c, (double)inv_t, false, signal, NULL);
        nv_denoise(&nv, tokens + n, c, n, mode == DG_SC_NONE ? NULL : signal, logits);
        struct dg_denoise d = {tokens + n, c, mode, false, inv_t};
        assert_int_equal(dg_forward_denoise(be, &p, &kv, &d, NULL, &err), DG_OK);
        close_to(step == 0 ? "logits without signal" : step == 1 ? "logits, seed signal" : "logits, soft signal", p.logits.data, logits,
                 (int64_t)c * nv.vocab, 1e-5);
        assert_int_equal(kv.len, n);
        double *prob = nv_new(nv.vocab);
        for (int i = 0; i < c; i++) {
            double p_max;
            int best;
            double entropy = nv_stats(logits + (int64_t)i * nv.vocab, nv.vocab, (double)inv_t, prob, &best, &p_max);
            assert_int_equal(p.stats.argmax[i], best);
            assert_true(fabs((double)p.stats.entropy[i] - entropy) < 1e-3 && fabs((double)p.stats.p_max[i] - p_max) < 1e-3);
        }
        free(prob);
    }
    dg_kv_deinit(&kv, be);
    dg_planes_deinit(&p, be);
    free(got);
    free(hidden);
    free(layers);
    free(logits);
    free(signal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_stage), cmocka_unit_test(norm_stage),   cmocka_unit_test(glu_stage),     cmocka_unit_test(rope_stage),
        cmocka_unit_test(attention_stage), cmocka_unit_test(router_stage), cmocka_unit_test(experts_stage), cmocka_unit_test(whole_passes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
