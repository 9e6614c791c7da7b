/* Weights on the device: uploaded from the model's mapping, or drawn there. */
#include "core/mem.h"
#include "ops/cuda/state.h"

#include <math.h>
#include <string.h>

#define ALIGN 256

/* What a drawn vector's mean follows from. */
enum mean { ONE, QUERY_KEY, BRANCH, ROUTER, OUTPUT };

/* One weight of a model, whatever its kind. */
struct item {
    struct dg_mat *mat;
    struct dg_stack *stack;
    struct dg_vec *vec;
    enum mean mean;
    int32_t layer; /* of a stack */
};

typedef void item_fn(void *ctx, const struct item *it);

static void each_layer(struct dg_layer *w, int32_t l, item_fn *fn, void *ctx) {
    struct dg_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &w->router};
    const struct item vecs[] = {{.vec = &w->q_norm, .mean = QUERY_KEY},
                                {.vec = &w->k_norm, .mean = QUERY_KEY},
                                {.vec = &w->input_norm},
                                {.vec = &w->post_attn_norm, .mean = BRANCH},
                                {.vec = &w->pre_ff_norm},
                                {.vec = &w->post_ff_norm_1},
                                {.vec = &w->pre_ff_norm_2},
                                {.vec = &w->post_ff_norm_2},
                                {.vec = &w->post_ff_norm, .mean = BRANCH},
                                {.vec = &w->router_scale, .mean = ROUTER},
                                {.vec = &w->per_expert_scale}};
    struct dg_stack *stacks[] = {&w->gate_up, &w->expert_down};
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        fn(ctx, &(struct item){.mat = mats[i]});
    for (size_t i = 0; i < sizeof vecs / sizeof *vecs; i++)
        fn(ctx, &vecs[i]);
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        fn(ctx, &(struct item){.stack = stacks[i], .layer = l});
}

static void each_other(struct dg_model *m, item_fn *fn, void *ctx) {
    struct dg_mat *mats[] = {&m->embed, &m->sc.gate, &m->sc.up, &m->sc.down};
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        fn(ctx, &(struct item){.mat = mats[i]});
    fn(ctx, &(struct item){.vec = &m->norm, .mean = OUTPUT});
    fn(ctx, &(struct item){.vec = &m->sc.pre_norm});
}

static void each(struct dg_model *m, item_fn *fn, void *ctx) {
    each_other(m, fn, ctx);
    for (int32_t l = 0; l < m->cfg.layers; l++)
        each_layer(&m->layer[l], l, fn, ctx);
}

static size_t stack_bytes(const struct dg_stack *s) {
    return s->data ? (size_t)s->e * (size_t)dg_format_mat_bytes(s->fmt, s->n, s->k) : 0;
}

static size_t item_bytes(const struct item *it, const void **data) {
    if (it->mat) {
        *data = it->mat->data;
        return *data ? (size_t)dg_format_mat_bytes(it->mat->fmt, it->mat->n, it->mat->k) : 0;
    }
    if (it->stack) {
        *data = it->stack->data;
        return stack_bytes(it->stack);
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
    uint64_t at, fixed, payload, done, seed;
    size_t *experts; /* bytes of each layer's */
    const struct dg_cuda_random *random;
};

static size_t aligned(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static void measure(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const void *data;
    size_t bytes = item_bytes(it, &data);
    if (it->stack)
        w->experts[it->layer] += aligned(bytes);
    else
        w->fixed += aligned(bytes);
    w->payload += bytes;
}

static void place(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const void *data;
    struct dg_cuda *cu = dg_cuda_of(w->be);
    size_t bytes = item_bytes(it, &data);
    if (!bytes)
        return;
    if (it->stack && dg_cuda_feed_has(cu, it->layer)) { /* the first slot, until the layer is loaded */
        const struct dg_stack *first = &cu->layer[it->layer].gate_up;
        set_dev(it, (uint64_t)(uintptr_t)cu->feed.slots + (it->stack == first ? 0 : aligned(stack_bytes(first))));
        return;
    }
    set_dev(it, (uint64_t)(uintptr_t)cu->weights + w->at);
    w->at += aligned(bytes);
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

/* One block of device memory for what stays there; w->experts holds the sizes of the stacks. */
static enum dg_status take_memory(struct dg_backend *be, struct walk *w, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    each(&cu->model, measure, w);
    DG_TRY(dg_cuda_feed_choose(be, w->fixed, w->experts, w->opts, err));
    size_t bytes = w->fixed;
    for (int32_t l = 0; l < cu->model.cfg.layers; l++)
        bytes += dg_cuda_feed_has(cu, l) ? 0 : w->experts[l];
    cu->weights = dg_cuda_alloc_raw(be, bytes, "the weights");
    DG_TRY(dg_backend_status(be, err));
    DG_TRY(dg_cuda_feed_open(be, err));
    cu->weights_bytes = bytes + DG_CUDA_SLOTS * cu->feed.slot_bytes;
    return DG_OK;
}

/* The backend's own copy of the model, each weight's address set. */
static enum dg_status lay_out(struct dg_backend *be, const struct dg_model *model, struct walk *w, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    size_t layers = (size_t)model->cfg.layers;
    cu->model = *model;
    cu->layer = dg_calloc(layers, sizeof *cu->layer);
    w->experts = dg_calloc(layers, sizeof *w->experts);
    enum dg_status st = DG_OK;
    if (cu->layer && w->experts) {
        memcpy(cu->layer, model->layer, layers * sizeof *cu->layer);
        cu->model.layer = cu->layer;
        st = take_memory(be, w, err);
    } else {
        st = DG_FAIL(err, DG_E_NOMEM, "no memory for the model's table of weights");
    }
    dg_free(w->experts);
    w->experts = NULL;
    if (st == DG_OK)
        each(&cu->model, place, w);
    return st;
}

/* Fills all weights; a layer's experts are brought into the kernels' order, and to where they stay, before the next layer's come. */
static enum dg_status load(struct dg_backend *be, item_fn *fn, struct walk *w, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    each_other(&cu->model, fn, w);
    for (int32_t l = 0; l < cu->model.cfg.layers; l++) {
        each_layer(&cu->layer[l], l, fn, w);
        dg_cuda_prepare_experts(be, &cu->layer[l].gate_up, &cu->layer[l].expert_down);
        dg_cuda_feed_keep(be, l);
    }
    if (cu->feed.n && dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.stream_sync(cu->stream), "waiting for experts on their way to host memory");
    return dg_backend_status(be, err);
}

enum dg_status dg_cuda_upload(struct dg_backend *be, const struct dg_model *model, const struct dg_cuda_opts *opts, struct dg_error *err) {
    struct walk w = {.be = be, .opts = opts};
    DG_TRY(lay_out(be, model, &w, err));
    return load(be, upload, &w, err);
}

static void fill_mat(struct dg_backend *be, const struct dg_mat *m, uint64_t seed, float gain, const struct dg_cuda_peaked *p) {
    struct dgc_fill_args a = {dg_cuda_mat(m), seed, gain * sqrtf(3.0f / (float)m->k), p ? p->shared : 0, p ? p->kin : 1};
    dgc_launch_fill(be, DGC_K_fill, (unsigned)m->n, (unsigned)((m->k + 4095) / 4096), 0, &a);
}

/* The router's logits are divided by the root of the width its scale has, attention's are products of heads. */
static float mean_of(const struct item *it, const struct dg_cuda_peaked *p) {
    float n = (float)it->vec->n;
    switch (p ? it->mean : ONE) {
    case QUERY_KEY: return sqrtf(p->attention / sqrtf(n));
    case BRANCH: return p->branch;
    case ROUTER: return p->router * sqrtf(n);
    case OUTPUT: return p->norm;
    default: return 1;
    }
}

static void draw(void *ctx, const struct item *it) {
    struct walk *w = ctx;
    const struct dg_cuda_random *r = w->random;
    w->seed = w->seed * 0x5851f42d4c957f2dull + 0x14057b7ef767814full;
    if (!item_dev(it))
        return;
    if (it->mat == &dg_cuda_of(w->be)->model.embed)
        fill_mat(w->be, it->mat, w->seed, !r->peaked && r->logit_spread > 0 ? r->logit_spread : 1, r->peaked);
    else if (it->mat)
        fill_mat(w->be, it->mat, w->seed, 1, NULL);
    else if (it->stack)
        for (int32_t e = 0; e < it->stack->e; e++) {
            struct dg_mat m = dg_stack_mat(it->stack, e);
            fill_mat(w->be, &m, w->seed + (uint64_t)e * 0x9e3779b97f4a7c15ull, 1, NULL);
        }
    else {
        float mean = mean_of(it, r->peaked);
        struct dgc_fill_vec_args a = {(float *)(uintptr_t)it->vec->dev, it->vec->n, w->seed, mean, 0.1f * mean};
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

enum dg_status dg_cuda_draw_weights(struct dg_backend *be, const struct dg_cuda_random *r, const struct dg_cuda_opts *opts, struct dg_error *err) {
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
    struct walk w = {.be = be, .opts = opts, .seed = r->seed, .random = r};
    enum dg_status st = lay_out(be, &m, &w, err);
    dg_free(m.layer);
    DG_TRY(st);
    return load(be, draw, &w, err);
}
