#include "model/forward.h"

#include <math.h>
#include <string.h>

struct pass {
    struct dg_backend *be;
    const struct dg_ops *op;
    const struct dg_model *m;
    const struct dg_config *c;
    struct dg_planes *p;
    struct dg_kv *kv;
    struct dg_batch batch;
    const struct dg_trace *trace;
    struct dg_plane x, h, hr, he, t, ff, moe; /* the planes cut to this call's rows */
};

static void see(const struct pass *f, const char *what, int32_t layer, const struct dg_plane *plane, const struct dg_routing *routing) {
    if (f->trace)
        f->trace->see(f->trace->ctx, what, layer, plane, routing);
}

static void branch(const struct pass *f, enum dg_branch b) {
    if (f->op->branch)
        f->op->branch(f->be, b);
}

/* norm_chain of the op table, or the ops it stands for. b: what the experts made, or NULL. */
static void norm_chain(struct pass *f, const struct dg_vec *wa, struct dg_plane *b, const struct dg_vec *wb, const struct dg_vec *w, float scale,
                       const struct dg_norm_out *outs, int n) {
    float eps = f->c->eps;
    if (b && f->op->sum_chain) {
        f->op->sum_chain(f->be, &f->t, wa, &f->p->routing, b, wb, w, eps, scale, &f->x, outs, n);
        return;
    }
    if (f->op->norm_chain) {
        f->op->norm_chain(f->be, &f->t, wa, b, wb, w, eps, scale, &f->x, outs, n);
        return;
    }
    if (b)
        f->op->norm_pair(f->be, &f->t, wa, b, wb, eps, &f->t);
    f->op->norm_add(f->be, &f->t, w, eps, &f->x, scale, &f->x);
    for (int i = 0; i < n; i++)
        f->op->rms_norm(f->be, &f->x, outs[i].w, outs[i].mul, eps, outs[i].y);
}

/* x += norm(attention(h)), h = norm(x); then the norms that the next block reads. */
static void attention_block(struct pass *f, const struct dg_layer *w, int32_t l) {
    const struct dg_layer_shape *s = &f->c->layer[l];
    const struct dg_kv_layer *kv = &f->kv->layer[l];
    const struct dg_mat *stacked[3] = {&w->q, &w->k, &w->v};
    bool has_v = w->v.data != NULL;
    int32_t q_cols = f->c->heads * s->hd, cols = q_cols + (has_v ? 2 : 1) * s->kv_heads * s->hd;
    struct dg_plane qkv = dg_plane_view(&f->p->qkv, f->batch.n, cols), att = dg_plane_view(&f->p->att, f->batch.n, q_cols);

    f->op->linear(f->be, &f->h, stacked, has_v ? 3 : 2, DG_EPI_NONE, &qkv);
    f->op->qkv_store(f->be, &qkv, f->c->heads, has_v, &w->q_norm, &w->k_norm, f->c->eps, f->p->cos[s->full], f->p->sin[s->full], &f->batch, kv);
    f->op->attention(f->be, &qkv, f->c->heads, &f->batch, kv, &att);
    see(f, "attn", l, &att, NULL);
    const struct dg_mat *o = &w->o;
    f->op->linear(f->be, &att, &o, 1, DG_EPI_NONE, &f->t);
    const struct dg_norm_out outs[3] = {{&w->router_scale, 1.0f / sqrtf((float)f->c->hidden), &f->hr},
                                        {&w->pre_ff_norm_2, 1, &f->he},
                                        {&w->pre_ff_norm, 1, &f->h}};
    norm_chain(f, NULL, NULL, NULL, &w->post_attn_norm, 1, outs, 3);
}

/* x = (x + norm(norm(dense(norm(x))) + norm(experts(norm(x), route(x))))) * scalar: the dense and the expert branch run beside each other;
 * the router reads the raw residual. Then h = norm(x) * next, unless nothing follows. */
static void feed_forward_block(struct pass *f, const struct dg_layer *w, int32_t l, float scalar, const struct dg_vec *next) {
    const struct dg_mat *gate_up[2] = {&w->gate, &w->up}, *down = &w->down;

    branch(f, DG_BRANCH_SIDE);
    f->op->linear(f->be, &f->h, gate_up, 2, DG_EPI_GLU, &f->ff);
    f->op->linear(f->be, &f->ff, &down, 1, DG_EPI_NONE, &f->t);
    branch(f, DG_BRANCH_MAIN);
    f->op->router(f->be, &f->hr, &w->router, &w->per_expert_scale, &f->p->routing);
    see(f, "router", l, &f->hr, &f->p->routing);
    f->op->experts(f->be, &f->he, &f->p->routing, &w->gate_up, &w->expert_down, f->op->sum_chain ? NULL : &f->moe);
    branch(f, DG_BRANCH_JOIN);
    const struct dg_norm_out out = {next, 1, &f->h};
    norm_chain(f, &w->post_ff_norm_1, &f->moe, &w->post_ff_norm_2, &w->post_ff_norm, scalar, &out, next != NULL);
}

/* last: weight of the norm that reads the last layer's output into h, or NULL. */
static void layers(struct pass *f, bool encoder, const struct dg_vec *last) {
    f->op->rms_norm(f->be, &f->x, &f->m->layer[0].input_norm, 1, f->c->eps, &f->h);
    for (int32_t l = 0; l < f->c->layers; l++) {
        const struct dg_layer *w = &f->m->layer[l];
        attention_block(f, w, l);
        feed_forward_block(f, w, l, encoder ? w->scalar_enc : w->scalar, l + 1 < f->c->layers ? &f->m->layer[l + 1].input_norm : last);
        see(f, "layer", l, &f->x, NULL);
    }
}

/* x = norm(embed + down(gelu(gate(s)) * up(s))), s = norm(signal) * w; the signal is in h. No signal: the MLP of zeros is zero. */
static void self_condition(struct pass *f, bool signal) {
    static const struct dg_vec no_weight;
    const struct dg_mat *gate_up[2] = {&f->m->sc.gate, &f->m->sc.up}, *down = &f->m->sc.down;
    if (signal) {
        f->op->rms_norm(f->be, &f->h, &f->m->sc.pre_norm, 1, f->c->eps, &f->h);
        f->op->linear(f->be, &f->h, gate_up, 2, DG_EPI_GLU, &f->ff);
        f->op->linear(f->be, &f->ff, &down, 1, DG_EPI_NONE, &f->t);
        f->op->add(f->be, &f->x, &f->t, &f->x);
    }
    f->op->rms_norm(f->be, &f->x, &no_weight, 1, f->c->eps, &f->x);
    see(f, "preamble", -1, &f->x, NULL);
}

/* cos and sin of this call's positions: angles in double, so that position 262,143 is as exact as position 1. The positions of a block's
 * steps are the same, and then nothing is computed. */
static void rope_tables(struct pass *f) {
    struct dg_planes *p = f->p;
    if (p->rope_pos0 == f->batch.pos0 && p->rope_n >= f->batch.n)
        return;
    for (int kind = 0; kind < 2; kind++) {
        int32_t half = p->half[kind];
        if (!half)
            continue;
        for (int64_t i = 0; i < f->batch.n; i++)
            for (int32_t d = 0; d < half; d++) {
                double a = (double)(f->batch.pos0 + i) * p->inv_freq[kind][d];
                p->host_cos[i * half + d] = (float)cos(a);
                p->host_sin[i * half + d] = (float)sin(a);
            }
        size_t bytes = (size_t)f->batch.n * (size_t)half * sizeof(float);
        f->op->write(f->be, p->cos[kind], p->host_cos, bytes);
        f->op->write(f->be, p->sin[kind], p->host_sin, bytes);
    }
    p->rope_pos0 = f->batch.pos0;
    p->rope_n = f->batch.n;
}

static struct pass begin(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, int32_t n, bool causal, const struct dg_trace *trace) {
    const struct dg_config *c = &be->model->cfg;
    struct pass f = {.be = be, .op = be->ops, .m = be->model, .c = c, .p = p, .kv = kv, .trace = trace};
    f.batch = (struct dg_batch){n, n, kv->len, causal, -1, causal ? p->attention.topk_prefill : p->attention.topk_denoise};
    if (!causal && p->attention.unwindowed) {
        /* the oldest position that no write, also one since cut away, has overwritten; of a whole canvas, so that what a position sees does
         * not depend on how large earlier attempts at the block were */
        int64_t end = kv->len + c->canvas > kv->high ? kv->len + c->canvas : kv->high;
        f.batch.ring_from = end > kv->ring ? end - kv->ring : 0;
    }
    f.x = dg_plane_view(&p->x, n, c->hidden);
    f.h = dg_plane_view(&p->h, n, c->hidden);
    f.hr = dg_plane_view(&p->hr, n, c->hidden);
    f.he = dg_plane_view(&p->he, n, c->hidden);
    f.t = dg_plane_view(&p->t, n, c->hidden);
    f.ff = dg_plane_view(&p->ff, n, c->inter);
    f.moe = dg_plane_view(&p->moe, n, c->hidden);
    return f;
}

static enum dg_status check_room(const struct dg_kv *kv, const struct dg_planes *p, int32_t n, struct dg_error *err) {
    if (n < 1 || n > p->rows || kv->len + n > kv->ctx)
        return DG_FAIL(err, DG_E_LIMIT, "%d rows at position %lld do not fit a context of %lld", n, (long long)kv->len, (long long)kv->ctx);
    return DG_OK;
}

static enum dg_status check_ids(const struct dg_config *c, const int32_t *ids, int32_t n, struct dg_error *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return DG_FAIL(err, DG_E_ARG, "token id %d is outside the vocabulary of %d", ids[i], c->vocab);
    return DG_OK;
}

static void embed_tokens(struct pass *f, const int32_t *ids) {
    f->op->write(f->be, f->p->ids, ids, (size_t)f->batch.n * sizeof *ids);
    f->op->embed(f->be, f->p->ids, f->batch.n, &f->m->embed, sqrtf((float)f->c->hidden), &f->x);
    see(f, "embed", -1, &f->x, NULL);
}

/* After a failure nobody knows which rotation tables were written. */
static enum dg_status finish(struct pass *f, struct dg_error *err) {
    enum dg_status st = dg_backend_status(f->be, err);
    if (st != DG_OK)
        f->p->rope_pos0 = -1;
    return st;
}

static void advance(struct dg_kv *kv, int64_t written_end) {
    if (written_end > kv->high)
        kv->high = written_end;
}

enum dg_status dg_forward_prefill(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const int32_t *ids, int32_t n,
                                  float *hidden_out, const struct dg_trace *trace, struct dg_error *err) {
    DG_TRY(check_room(kv, p, n, err));
    DG_TRY(check_ids(&be->model->cfg, ids, n, err));
    struct pass f = begin(be, p, kv, n, true, trace);
    rope_tables(&f);
    embed_tokens(&f, ids);
    advance(kv, kv->len + n);
    layers(&f, true, NULL);
    if (hidden_out) {
        struct dg_plane out = dg_plane_view(&p->moe, n, f.c->hidden);
        f.op->rms_norm(be, &f.x, &f.m->norm, 1, f.c->eps, &out);
        f.op->read(be, hidden_out, out.data, (size_t)n * (size_t)f.c->hidden * sizeof(float));
    }
    DG_TRY(finish(&f, err));
    kv->len += n;
    return DG_OK;
}

/* A denoise pass behind the canvas and rotation tables. */
struct denoise {
    struct pass *f;
    const struct dg_denoise *d;
    const int32_t *canvas; /* backend memory */
    struct dg_plane logits;
    bool sampled;     /* the sampler's step is part of it, */
    float inv_t_next; /* and leads to one at this 1/T */
};

static void denoise(void *ctx) {
    struct denoise *s = ctx;
    struct pass *f = s->f;
    const struct dg_denoise *d = s->d;
    float scale = sqrtf((float)f->c->hidden);
    f->op->embed(f->be, s->canvas, d->n, &f->m->embed, scale, &f->x);
    see(f, "embed", -1, &f->x, NULL);
    if (d->sc == DG_SC_SEED)
        f->op->embed(f->be, s->canvas, d->n, &f->m->embed, scale, &f->h);
    else if (d->sc == DG_SC_SOFT)
        f->op->soft_embed(f->be, &s->logits, &f->p->stats, f->p->stats_inv_t, &f->m->embed, scale, d->sparse, &f->h);
    self_condition(f, d->sc != DG_SC_NONE);
    layers(f, false, &f->m->norm);
    see(f, "final", -1, &f->h, NULL);
    f->op->head(f->be, &f->h, &f->m->embed, f->c->softcap, d->inv_t, &s->logits, &f->p->stats);
    if (s->sampled)
        f->op->sample(f->be, &f->p->stats, &f->p->sample, s->inv_t_next);
}

/* Everything that a denoise pass asks of its ops, but for what struct dg_replay has beside the key. */
struct denoise_key {
    const struct dg_planes *planes;
    const struct dg_kv *kv;
    int32_t n, topk, sc, how; /* how: bit 0, sparse; bit 1, sampled */
};

static void run_denoise(struct denoise *s) {
    const struct pass *f = s->f;
    if (!f->op->replay || f->trace) {
        denoise(s);
        return;
    }
    struct denoise_key key = {f->p, f->kv, f->batch.n, f->batch.topk, (int32_t)s->d->sc, s->d->sparse | s->sampled << 1};
    struct dg_replay r = {&key, sizeof key, f->batch.pos0, f->batch.ring_from, f->batch.n_live, s->d->inv_t, f->p->stats_inv_t,
                          s->inv_t_next};
    f->op->replay(f->be, &r, denoise, s);
}

static enum dg_status step(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const struct dg_denoise *d, bool sampled, float inv_t_next,
                           const struct dg_trace *trace, struct dg_error *err) {
    DG_TRY(check_room(kv, p, d->n, err));
    if (d->n > be->model->cfg.canvas)
        return DG_FAIL(err, DG_E_ARG, "%d rows to denoise, but a canvas holds %d", d->n, be->model->cfg.canvas);
    if (!sampled)
        DG_TRY(check_ids(&be->model->cfg, d->canvas, d->n, err));
    struct pass f = begin(be, p, kv, d->n, false, trace);
    struct denoise s = {&f, d, sampled ? p->sample.canvas : p->ids, dg_plane_view(&p->logits, d->n, f.c->vocab), sampled, inv_t_next};
    rope_tables(&f);
    if (!sampled)
        f.op->write(be, p->ids, d->canvas, (size_t)d->n * sizeof *d->canvas);
    advance(kv, kv->len + d->n);
    run_denoise(&s);
    p->stats_inv_t = d->inv_t;
    return finish(&f, err);
}

enum dg_status dg_forward_denoise(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const struct dg_denoise *d,
                                  const struct dg_trace *trace, struct dg_error *err) {
    return step(be, p, kv, d, false, 0, trace, err);
}

enum dg_status dg_forward_sample(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const struct dg_denoise *d, float inv_t_next,
                                 struct dg_error *err) {
    if (!p->sample.rows)
        return DG_FAIL(err, DG_E_ARG, "these planes have no block to be sampled");
    return step(be, p, kv, d, true, inv_t_next, NULL, err);
}
