/* bench: the ops of the layers, one by one. */
#include "cli/bench.h"

#include <math.h>
#include <string.h>

enum { QKV, STORE, ATTENTION, OUT, ROUTER, EXPERTS, GATE_UP, DOWN, NORMS, N_OPS };
static const char *const names[N_OPS] = {"qkv", "store", "attention", "out", "router", "experts", "gate_up", "down", "norms"};

static void norms(struct dg_backend *be, struct dg_planes *p, const struct dg_layer *w, const struct dg_config *c, int32_t rows) {
    const struct dg_ops *op = be->ops;
    struct dg_plane x = dg_plane_view(&p->x, rows, c->hidden), h = dg_plane_view(&p->h, rows, c->hidden), t = dg_plane_view(&p->t, rows, c->hidden);
    struct dg_plane hr = dg_plane_view(&p->hr, rows, c->hidden), he = dg_plane_view(&p->he, rows, c->hidden);
    struct dg_plane moe = dg_plane_view(&p->moe, rows, c->hidden);
    const struct dg_norm_out outs[3] = {
        {&w->router_scale, 1.0f / sqrtf((float)c->hidden), &hr}, {&w->pre_ff_norm_2, 1, &he}, {&w->pre_ff_norm, 1, &h}};
    const struct dg_norm_out last = {&w->input_norm, 1, &h};
    if (op->norm_chain) {
        op->norm_chain(be, &t, NULL, NULL, NULL, &w->post_attn_norm, c->eps, 0.5f, &x, outs, 3);
        op->norm_chain(be, &t, &w->post_ff_norm_1, &moe, &w->post_ff_norm_2, &w->post_ff_norm, c->eps, 0.5f, &x, &last, 1);
        return;
    }
    op->norm_add(be, &t, &w->post_attn_norm, c->eps, &x, 0.5f, &x);
    for (int i = 0; i < 3; i++)
        op->rms_norm(be, &x, outs[i].w, outs[i].mul, c->eps, outs[i].y);
    op->norm_pair(be, &t, &w->post_ff_norm_1, &moe, &w->post_ff_norm_2, c->eps, &t);
    op->norm_add(be, &t, &w->post_ff_norm, c->eps, &x, 0.5f, &x);
    op->rms_norm(be, &x, last.w, 1, c->eps, last.y);
}

static void run_op(struct dg_session *s, int what, int32_t l, const struct dg_batch *batch) {
    struct dg_backend *be = s->be;
    struct dg_planes *p = s->planes;
    const struct dg_ops *op = be->ops;
    const struct dg_config *c = s->cfg;
    const struct dg_layer *w = &be->model->layer[l];
    const struct dg_layer_shape *shape = &c->layer[l];
    const struct dg_mat *qkv_w[3] = {&w->q, &w->k, &w->v}, *gate_up[2] = {&w->gate, &w->up}, *o = &w->o, *down = &w->down;
    bool has_v = w->v.data != NULL;
    int32_t rows = batch->n, q = c->heads * shape->hd, cols = q + (has_v ? 2 : 1) * shape->kv_heads * shape->hd;
    struct dg_plane h = dg_plane_view(&p->h, rows, c->hidden), t = dg_plane_view(&p->t, rows, c->hidden);
    struct dg_plane qkv = dg_plane_view(&p->qkv, rows, cols), att = dg_plane_view(&p->att, rows, q), ff = dg_plane_view(&p->ff, rows, c->inter);
    struct dg_plane moe = dg_plane_view(&p->moe, rows, c->hidden);
    switch (what) {
    case QKV: op->linear(be, &h, qkv_w, has_v ? 3 : 2, DG_EPI_NONE, &qkv); break;
    case STORE:
        op->qkv_store(be, &qkv, c->heads, has_v, &w->q_norm, &w->k_norm, c->eps, p->cos[shape->full], p->sin[shape->full], batch, &s->kv.layer[l]);
        break;
    case ATTENTION: op->attention(be, &qkv, c->heads, batch, &s->kv.layer[l], &att); break;
    case OUT: op->linear(be, &att, &o, 1, DG_EPI_NONE, &t); break;
    case ROUTER: op->router(be, &h, &w->router, &w->per_expert_scale, &p->routing); break;
    case EXPERTS: op->experts(be, &h, &p->routing, &w->gate_up, &w->expert_down, &moe); break;
    case GATE_UP: op->linear(be, &h, gate_up, 2, DG_EPI_GLU, &ff); break;
    case DOWN: op->linear(be, &ff, &down, 1, DG_EPI_NONE, &t); break;
    case NORMS: norms(be, p, w, c, rows); break;
    }
}

double dg_bench_mat_bytes(const struct dg_mat *m) { return m->data ? (double)dg_format_mat_bytes(m->fmt, m->n, m->k) : 0; }

static double expert_bytes(const struct dg_layer *w, const struct dg_config *c, int32_t rows) {
    struct dg_mat up = dg_stack_mat(&w->gate_up, 0), down = dg_stack_mat(&w->expert_down, 0);
    double used = fmin(c->experts, (double)rows * c->topk);
    return used * (dg_bench_mat_bytes(&up) + dg_bench_mat_bytes(&down));
}

/* Keys a row scores plus those whose values it sums, on average, and the bytes of those that any row sees. */
static double keys_of(const struct dg_kv_layer *kv, const struct dg_batch *b, double *bytes) {
    int64_t lo, hi, first, last;
    double sum = 0;
    for (int32_t i = 0; i < b->n; i++) {
        dg_batch_visible(b, kv, i, &lo, &hi);
        sum += (double)(hi - lo) + (double)(kv->window ? hi - lo : dg_batch_keys(b, hi - lo));
    }
    dg_batch_visible(b, kv, 0, &first, &last);
    dg_batch_visible(b, kv, b->n - 1, &lo, &hi);
    *bytes = 2.0 * (double)(hi - first) * kv->kv_heads * (double)dg_kv_head_bytes(kv->dtype, kv->hd);
    return sum / b->n;
}

static struct dg_bench_cost cost_of(const struct dg_bench_rig *b, int what, int32_t l, const struct dg_batch *batch) {
    const struct dg_layer *w = &b->r.be->model->layer[l];
    const struct dg_config *c = b->s->cfg;
    double m = 2.0 * batch->n, hidden = c->hidden, bytes;
    switch (what) {
    case QKV:
        return (struct dg_bench_cost){dg_bench_mat_bytes(&w->q) + dg_bench_mat_bytes(&w->k) + dg_bench_mat_bytes(&w->v),
                                      m * hidden * (w->q.n + w->k.n + (w->v.data ? w->v.n : 0))};
    case OUT: return (struct dg_bench_cost){dg_bench_mat_bytes(&w->o), m * w->o.n * w->o.k};
    case ROUTER: return (struct dg_bench_cost){dg_bench_mat_bytes(&w->router), m * w->router.n * hidden};
    case EXPERTS: return (struct dg_bench_cost){expert_bytes(w, c, batch->n), m * c->topk * 3 * c->moe * hidden};
    case GATE_UP: return (struct dg_bench_cost){dg_bench_mat_bytes(&w->gate) + dg_bench_mat_bytes(&w->up), m * 2 * c->inter * hidden};
    case DOWN: return (struct dg_bench_cost){dg_bench_mat_bytes(&w->down), m * c->inter * hidden};
    case ATTENTION: {
        double keys = keys_of(&b->s->kv.layer[l], batch, &bytes);
        return (struct dg_bench_cost){bytes, m * c->heads * c->layer[l].hd * keys};
    }
    default: return (struct dg_bench_cost){0, 0};
    }
}

struct dg_bench_cost dg_bench_layers_cost(const struct dg_bench_rig *b, const struct dg_batch *batch) {
    struct dg_bench_cost sum = {0, 0};
    for (int32_t l = 0; l < b->s->cfg->layers; l++)
        for (int what = 0; what < N_OPS; what++) {
            struct dg_bench_cost one = cost_of(b, what, l, batch);
            sum.bytes += one.bytes;
            sum.flops += one.flops;
        }
    return sum;
}

struct job {
    struct dg_bench_rig *b;
    const struct dg_batch *batch;
    int what;
    bool full;
};

static enum dg_status run_layers(void *ctx, struct dg_error *err) {
    const struct job *j = ctx;
    (void)err;
    for (int32_t l = 0; l < j->b->s->cfg->layers; l++)
        if (j->b->s->cfg->layer[l].full == j->full)
            run_op(j->b->s, j->what, l, j->batch);
    return DG_OK;
}

enum dg_status dg_bench_layers(struct dg_bench_rig *b, const struct dg_batch *batch, struct dg_error *err) {
    for (int full = 0; full < 2; full++)
        for (int what = 0; what < N_OPS; what++) {
            struct job j = {b, batch, what, full};
            struct dg_bench_cost sum = {0, 0};
            char name[32];
            int n = 0;
            for (int32_t l = 0; l < b->s->cfg->layers; l++)
                if (b->s->cfg->layer[l].full == j.full) {
                    struct dg_bench_cost one = cost_of(b, what, l, batch);
                    sum.bytes += one.bytes;
                    sum.flops += one.flops;
                    n++;
                }
            if (!n)
                continue;
            snprintf(name, sizeof name, "%s_%s", names[what], full ? "full" : "sliding");
            DG_TRY(dg_bench_op(b, name, n, run_layers, &j, sum, err));
        }
    return DG_OK;
}
