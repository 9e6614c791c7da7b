/* Weights on the device: uploaded from the model's mapping, or drawn there. */
#include "core/mem.h"
#include "ops/cuda/state.h"

#include <math.h>

#define ALIGN 256

/* One weight of a model, whatever its kind. */
struct item {
    struct dg_mat *mat;
    struct dg_stack *stack;
    struct dg_vec *vec;
    float center; /* of a drawn vector */
};

typedef void item_fn(void *ctx, const struct item *it);

static void each_layer(struct dg_layer *w, item_fn *fn, void *ctx) {
    struct dg_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &w->router};
    struct dg_vec *vecs[] = {&w->q_norm,      &w->k_norm,         &w->input_norm,     &w->post_attn_norm, &w->pre_ff_norm,     &w->post_ff_norm_1,
                             &w->pre_ff_norm_2, &w->post_ff_norm_2, &w->post_ff_norm, &w->router_scale,   &w->per_expert_scale};
    struct dg_stack *stacks[] = {&w->gate_up, &w->expert_down};
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        fn(ctx, &(struct item){.mat = mats[i]});
    for (size_t i = 0; i < sizeof vecs / sizeof *vecs; i++)
        fn(ctx, &(struct item){.vec = vecs[i], .center = 1});
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        fn(ctx, &(struct item){.stack = stacks[i]});
}

static void each(struct dg_model *m, item_fn *fn, void *ctx) {
    struct dg_mat *mats[] = {&m->embed, &m->sc.gate, &m->sc.up, &m->sc.down};
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        fn(ctx, &(struct item){.mat = mats[i]});
    fn(ctx, &(struct item){.vec = &m->norm, .center = 1});
    fn(ctx, &(struct item){.vec = &m->sc.pre_norm, .center = 1});
    for (int32_t l = 0; l < m->cfg.layers; l++)
        each_layer(&m->layer[l], fn, ctx);
}

static size_t item_bytes(const struct item *it, const void **data) {
    if (it->mat) {
        *data = it->mat->data;
        return *data ? (size_t)dg_format_mat_bytes(it->mat->fmt, it->mat->n, it->mat->k) : 0;
    }
    if (it->stack) {
        *data = it->stack->data;
        return *data ? (size_t)it->stack->e * (size_t)dg_format_mat_bytes(it->stack->fmt, it->stack->n, it->stack->k) : 0;
    }
    *data = it->vec->v;
    return *data ? (size_t)it->vec->n * sizeof(float) : 0;
}

static void set_dev(const struct item *it, uint64_t dev) {
    if (it->mat)
        it->mat->dev = dev;
    else if (it->stack)
        it->stack->dev = dev;
    else
        it->vec->dev = dev;
}

struct walk {
    struct dg_backend *be;
    const struct dg_cuda_opts *opts;
    uint64_t at, total, payload, done, seed;
    float embed_gain;
};

static void measure(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const void *data;
    size_t bytes = item_bytes(it, &data);
    w->total += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    w->payload += bytes;
}

static void place(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const void *data;
    size_t bytes = item_bytes(it, &data);
    if (!bytes)
        return;
    set_dev(it, (uint64_t)(uintptr_t)dg_cuda_of(w->be)->weights + w->at);
    w->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t item_dev(const struct item *it) { return it->mat ? it->mat->dev : it->stack ? it->stack->dev : it->vec->dev; }

static void upload(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const void *data;
    size_t bytes = item_bytes(it, &data);
    for (size_t at = 0; at < bytes && w->be->error.code == DG_OK;) {
        size_t n = bytes - at < DG_CUDA_STAGE_BYTES ? bytes - at : DG_CUDA_STAGE_BYTES;
        dg_cuda_write(w->be, (void *)(uintptr_t)(item_dev(it) + at), (const char *)data + at, n);
        at += n;
        w->done += n;
        if (w->opts->progress)
            w->opts->progress(w->opts->progress_ctx, w->done, w->payload);
    }
}

/* The backend's own copy of the model, each weight's address set, in one block of device memory. */
static enum dg_status lay_out(struct dg_backend *be, const struct dg_model *model, struct walk *w, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    cu->model = *model;
    cu->layer = dg_calloc((size_t)model->cfg.layers, sizeof *cu->layer);
    if (!cu->layer)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the model's table of weights");
    for (int32_t l = 0; l < model->cfg.layers; l++)
        cu->layer[l] = model->layer[l];
    cu->model.layer = cu->layer;
    each(&cu->model, measure, w);
    cu->weights_bytes = w->total;
    cu->weights = dg_cuda_alloc_raw(be, w->total, "the weights");
    DG_TRY(dg_backend_status(be, err));
    each(&cu->model, place, w);
    return DG_OK;
}

static void prepare(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (int32_t l = 0; l < cu->model.cfg.layers; l++)
        dg_cuda_prepare_experts(be, &cu->layer[l].gate_up, &cu->layer[l].expert_down);
}

enum dg_status dg_cuda_upload(struct dg_backend *be, const struct dg_model *model, const struct dg_cuda_opts *opts, struct dg_error *err) {
    struct walk w = {.be = be, .opts = opts};
    DG_TRY(lay_out(be, model, &w, err));
    each(&dg_cuda_of(be)->model, upload, &w);
    prepare(be);
    return dg_backend_status(be, err);
}

static void fill_mat(struct dg_backend *be, const struct dg_mat *m, uint64_t seed, float gain) {
    struct dgc_fill_args a = {dg_cuda_mat(m), seed, gain * sqrtf(3.0f / (float)m->k)};
    dgc_launch_fill(be, DGC_K_fill, (unsigned)m->n, (unsigned)((m->k + 4095) / 4096), 0, &a);
}

static void draw(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    w->seed = w->seed * 0x5851f42d4c957f2dull + 0x14057b7ef767814full;
    if (!item_dev(it))
        return;
    if (it->mat)
        fill_mat(w->be, it->mat, w->seed, it->mat == &dg_cuda_of(w->be)->model.embed ? w->embed_gain : 1);
    else if (it->stack)
        for (int32_t e = 0; e < it->stack->e; e++) {
            struct dg_mat m = dg_stack_mat(it->stack, e);
            fill_mat(w->be, &m, w->seed + (uint64_t)e * 0x9e3779b97f4a7c15ull, 1);
        }
    else {
        struct dgc_fill_vec_args a = {(float *)(uintptr_t)it->vec->dev, it->vec->n, w->seed, it->center, 0.1f};
        dgc_launch_fill_vec(w->be, DGC_K_fill_vec, (unsigned)((it->vec->n + 255) / 256), 1, 0, &a);
    }
}

static char present; /* where a drawn model's host pointers point: "there is one", never read */

static struct dg_mat mat(enum dg_format fmt, int32_t n, int32_t k) { return (struct dg_mat){fmt, n, k, (const uint8_t *)&present, 0}; }
static struct dg_vec vec(int32_t n) { return (struct dg_vec){(const float *)(const void *)&present, n, 0}; }

static void shape_layer(struct dg_layer *w, const struct dg_cuda_random *r, const struct dg_layer_shape *s) {
    const struct dg_config *c = r->cfg;
    int32_t h = c->hidden;
    w->q = mat(r->attention, c->heads * s->hd, h);
    w->k = mat(r->attention, s->kv_heads * s->hd, h);
    if (!s->full || r->v_on_full)
        w->v = mat(r->attention, s->kv_heads * s->hd, h);
    w->o = mat(r->attention, h, c->heads * s->hd);
    w->q_norm = w->k_norm = vec(s->hd);
    w->input_norm = w->post_attn_norm = w->pre_ff_norm = w->post_ff_norm = w->router_scale = vec(h);
    w->pre_ff_norm_2 = w->post_ff_norm_1 = w->post_ff_norm_2 = vec(h);
    w->gate = w->up = mat(r->dense, c->inter, h);
    w->down = mat(r->dense, h, c->inter);
    w->router = mat(DG_FMT_BF16, c->experts, h);
    w->per_expert_scale = vec(c->experts);
    w->gate_up = (struct dg_stack){r->experts, c->experts, 2 * c->moe, h, (const uint8_t *)&present, 0, false};
    w->expert_down = (struct dg_stack){r->experts, c->experts, h, c->moe, (const uint8_t *)&present, 0, false};
    w->scalar = w->scalar_enc = 1;
}

enum dg_status dg_cuda_draw_weights(struct dg_backend *be, const struct dg_cuda_random *r, struct dg_error *err) {
    const struct dg_config *c = r->cfg;
    struct dg_model m = {.cfg = *c};
    m.layer = dg_calloc((size_t)c->layers, sizeof *m.layer);
    if (!m.layer)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the model's table of weights");
    m.embed = mat(r->embed, c->vocab, c->hidden);
    m.norm = m.sc.pre_norm = vec(c->hidden);
    m.sc.gate = m.sc.up = mat(r->self_conditioning, c->inter, c->hidden);
    m.sc.down = mat(r->self_conditioning, c->hidden, c->inter);
    for (int32_t l = 0; l < c->layers; l++)
        shape_layer(&m.layer[l], r, &c->layer[l]);
    struct walk w = {.be = be, .seed = r->seed, .embed_gain = r->logit_spread > 0 ? r->logit_spread : 1};
    enum dg_status st = lay_out(be, &m, &w, err);
    dg_free(m.layer);
    DG_TRY(st);
    each(&dg_cuda_of(be)->model, draw, &w);
    prepare(be);
    return dg_backend_status(be, err);
}
