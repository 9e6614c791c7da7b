/* step-parity: one denoise step on the scalar oracle and on another path, compared plane by plane. This is how differences are
 * bisected: the first layer whose figure jumps is where to look. */
#include "cli/cli.h"

#include "core/half.h"
#include "core/mem.h"
#include "message/prompt.h"
#include "pack/st_write.h"
#include "sampler/rng.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ENTRIES_PER_LAYER 4

/* Everything one path computed, in the order it did. */
struct capture {
    struct dg_backend *be;
    struct dg_st_entry *e;
    size_t n, cap;
    struct dg_error err;
};

static void keep(struct capture *c, const char *name, int32_t layer, const char *dtype, int64_t rows, int64_t cols, void *data) {
    if (!data || c->n == c->cap) {
        if (c->err.code == DG_OK)
            DG_FAIL(&c->err, DG_E_NOMEM, "no memory to keep the planes");
        dg_free(data);
        return;
    }
    struct dg_st_entry *e = &c->e[c->n++];
    if (layer >= 0)
        snprintf(e->name, sizeof e->name, "layer%d.%s", layer, name);
    else
        snprintf(e->name, sizeof e->name, "%s", name);
    e->dtype = dtype;
    e->rows = rows;
    e->cols = cols;
    e->data = data;
}

/* A plane as f32 on the host. */
static float *plane_f32(struct dg_backend *be, const struct dg_plane *p) {
    size_t n = (size_t)p->rows * (size_t)p->cols;
    float *f = dg_calloc(n, sizeof *f);
    if (!f)
        return NULL;
    if (p->dtype == DG_F32) {
        be->ops->read(be, f, p->data, n * sizeof *f);
        return f;
    }
    uint16_t *h = dg_calloc(n, sizeof *h);
    if (!h) {
        dg_free(f);
        return NULL;
    }
    be->ops->read(be, h, p->data, n * sizeof *h);
    for (size_t i = 0; i < n; i++)
        f[i] = p->dtype == DG_BF16 ? dg_bf16_f32(h[i]) : dg_f16_f32(h[i]);
    dg_free(h);
    return f;
}

static void see(void *ctx, const char *what, int32_t layer, const struct dg_plane *plane, const struct dg_routing *routing) {
    struct capture *c = ctx;
    if (!routing) {
        keep(c, !strcmp(what, "layer") ? "out" : what, layer, "F32", plane->rows, plane->cols, plane_f32(c->be, plane));
        return;
    }
    size_t bytes = (size_t)plane->rows * (size_t)routing->k * 4;
    void *expert = dg_calloc(bytes, 1), *weight = dg_calloc(bytes, 1);
    if (expert)
        c->be->ops->read(c->be, expert, routing->expert, bytes);
    if (weight)
        c->be->ops->read(c->be, weight, routing->weight, bytes);
    keep(c, "expert", layer, "I32", plane->rows, routing->k, expert);
    keep(c, "expert_weight", layer, "F32", plane->rows, routing->k, weight);
}

static void capture_free(struct capture *c) {
    for (size_t i = 0; i < c->n; i++)
        dg_free((void *)c->e[i].data);
    dg_free(c->e);
    dg_error_clear(&c->err);
    memset(c, 0, sizeof *c);
}

struct path {
    const char *backend;
    struct dg_backend_opts be;
    struct dg_session_opts session;
};

struct input {
    const struct dg_ids *prompt;
    const int32_t *canvas;
    int32_t canvas_n;
    enum dg_sc_mode sc;
    float inv_t;
};

static enum dg_status run_path(const struct dg_model *m, const struct path *p, const struct input *in, struct capture *c, struct dg_error *err) {
    struct dg_backend *be = NULL;
    struct dg_session *s = NULL;
    enum dg_status st;
    c->cap = (size_t)m->cfg.layers * ENTRIES_PER_LAYER + 8;
    c->e = dg_calloc(c->cap, sizeof *c->e);
    if (!c->e)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    DG_GO(dg_backend_open(&be, p->backend, m, &p->be, err));
    DG_GO(dg_session_create(&s, be, &p->session, err));
    DG_GO(dg_session_extend(s, in->prompt->v, in->prompt->n, NULL, NULL, err));
    c->be = be;
    struct dg_trace trace = {see, c};
    struct dg_denoise d = {in->canvas, in->canvas_n, in->sc, false, in->inv_t};
    DG_GO(dg_forward_denoise(be, s->planes, &s->kv, &d, &trace, err));
    struct dg_plane logits = dg_plane_view(&s->planes->logits, in->canvas_n, m->cfg.vocab);
    keep(c, "logits", -1, "F32", logits.rows, logits.cols, plane_f32(be, &logits));
    st = c->err.code == DG_OK ? dg_backend_status(be, err) : DG_FAIL(err, c->err.code, "%s", dg_error_text(&c->err));
done:
    dg_session_destroy(s);
    dg_backend_destroy(be);
    return st;
}

static int64_t argmax(const float *z, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    return best;
}

/* KL(softmax x || softmax y) in nats. */
static double divergence(const float *x, const float *y, int64_t n) {
    double xm = (double)x[argmax(x, n)], ym = (double)y[argmax(y, n)], xs = 0, ys = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        xs += exp((double)x[i] - xm);
        ys += exp((double)y[i] - ym);
    }
    for (int64_t i = 0; i < n; i++) {
        double lx = (double)x[i] - xm - log(xs), ly = (double)y[i] - ym - log(ys);
        sum += exp(lx) * (lx - ly);
    }
    return sum;
}

/* False: one of them holds NaN or Inf. */
static bool compare(const struct dg_st_entry *a, const struct dg_st_entry *b) {
    int64_t n = a->rows * a->cols;
    if (!strcmp(a->dtype, "I32")) {
        int64_t same = 0;
        for (int64_t i = 0; i < n; i++)
            same += ((const int32_t *)a->data)[i] == ((const int32_t *)b->data)[i];
        printf("%-24s %lld of %lld equal\n", a->name, (long long)same, (long long)n);
        return true;
    }
    const float *x = a->data, *y = b->data;
    double max = 0, sum = 0, xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)y[i]);
        max = d > max || isnan(d) ? d : max;
        sum += d * d;
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
        xy += (double)x[i] * (double)y[i];
    }
    double cosine = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : xx == yy ? 1 : 0;
    printf("%-24s max %-11.4g rms %-11.4g relative %-11.4g cosine %.9f", a->name, max, sqrt(sum / (double)n), xx > 0 ? sqrt(sum / xx) : 0, cosine);
    if (!strcmp(a->name, "logits")) {
        int64_t same = 0;
        double kl = 0;
        for (int64_t r = 0; r < a->rows; r++) {
            same += argmax(x + r * a->cols, a->cols) == argmax(y + r * a->cols, a->cols);
            kl += divergence(x + r * a->cols, y + r * a->cols, a->cols) / (double)a->rows;
        }
        printf("  argmax %lld of %lld equal, mean KL %.3g", (long long)same, (long long)a->rows, kl);
    }
    putchar('\n');
    return isfinite(max);
}

static enum dg_status dump(const char *dir, const char *name, const struct capture *c, struct dg_error *err) {
    char path[4096];
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return DG_FAIL(err, DG_E_IO, "cannot make the folder %s: %s", dir, strerror(errno));
    if (snprintf(path, sizeof path, "%s/%s.safetensors", dir, name) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    DG_TRY(dg_st_save(path, c->e, c->n, err));
    fprintf(stderr, "diffgemma: wrote %s\n", path);
    return DG_OK;
}

struct options {
    struct dg_model_args model;
    const char *prompt, *sc, *dump;
    int64_t seed, chunk;
    bool raw;
};

static enum dg_status encode(const struct dg_runtime *r, const struct options *o, struct dg_ids *ids, struct dg_error *err) {
    if (o->raw)
        return dg_tokenizer_encode(r->tok, o->prompt, strlen(o->prompt), true, ids, err);
    struct dg_render_options ro = {DG_THINKING_OFF, true};
    json_t *messages;
    DG_TRY(dg_message_ask(NULL, o->prompt, strlen(o->prompt), &messages, err));
    enum dg_status st = dg_message_encode(r->tok, messages, NULL, &ro, ids, err);
    json_decref(messages);
    return st;
}

static enum dg_status work(struct dg_runtime *r, const struct options *o, struct dg_ids *ids, int32_t **canvas, struct capture *base,
                           struct capture *other, struct dg_error *err) {
    DG_TRY(dg_runtime_flags(r, err));
    if (!o->prompt)
        return DG_FAIL(err, DG_E_ARG, "no prompt: give -p TEXT");
    DG_TRY(dg_runtime_find(r, &o->model, err));
    DG_TRY(dg_runtime_model(r, err));
    DG_TRY(dg_runtime_tokenizer(r, err));
    DG_TRY(encode(r, o, ids, err));
    const struct dg_config *c = &r->model->cfg;
    struct input in = {ids, NULL, c->canvas, DG_SC_SEED, 1.0f / c->t_max};
    if (!strcmp(o->sc, "none"))
        in.sc = DG_SC_NONE;
    else if (strcmp(o->sc, "seed"))
        return DG_FAIL(err, DG_E_ARG, "--sc %s: one of seed, none", o->sc);
    *canvas = dg_calloc((size_t)c->canvas, sizeof **canvas);
    if (!*canvas)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    struct dg_rng rng;
    dg_rng_init(&rng, (uint64_t)o->seed);
    for (int32_t i = 0; i < c->canvas; i++)
        (*canvas)[i] = dg_rng_id(&rng, c->vocab);
    in.canvas = *canvas;
    struct path a = {"ref", {.exact = true}, {.ctx = o->model.ctx, .kv = DG_F32}};
    struct path b = {o->model.backend, {.threads = (int)o->model.threads, .device = (int)o->model.device, .cpu = {o->model.cpu}},
                     {.ctx = o->model.ctx, .kv = DG_F16, .chunk = (int32_t)o->chunk}};
    struct dg_session_needs needs = {&b.session, 1};
    b.be.gpu_memory = o->model.gpu_memory;
    b.be.beside = dg_session_needs;
    b.be.beside_ctx = &needs;
    if (o->model.kv)
        DG_TRY(dg_kv_type(o->model.kv, &b.session.kv, err));
    DG_TRY(run_path(r->model, &a, &in, base, err));
    DG_TRY(run_path(r->model, &b, &in, other, err));
    printf("prompt %zu tokens, canvas %d, seed %lld; oracle: ref, f32 KV; other: %s, %s KV\n", ids->n, c->canvas, (long long)o->seed,
           o->model.backend, o->model.kv ? o->model.kv : "f16");
    const char *bad = NULL;
    for (size_t i = 0; i < base->n && i < other->n; i++)
        if (!compare(&base->e[i], &other->e[i]) && !bad)
            bad = base->e[i].name;
    if (o->dump) {
        DG_TRY(dump(o->dump, "oracle", base, err));
        DG_TRY(dump(o->dump, "other", other, err));
    }
    return bad ? DG_FAIL(err, DG_E_NUMERIC, "there is NaN or Inf, first in %s", bad) : DG_OK;
}

int dg_cmd_step_parity(int argc, char **argv) {
    struct options o = {.sc = "seed", .seed = 42};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"prompt", 'p', DG_ARG_STR, &o.prompt, 0, 0, "TEXT", "the prompt"},
        {"raw", 0, DG_ARG_FLAG, &o.raw, 0, 0, NULL, "the prompt is the token stream's text itself"},
        {"seed", 0, DG_ARG_INT, &o.seed, 0, INT32_MAX, "N", "seed of the canvas (default 42)"},
        {"sc", 0, DG_ARG_STR, &o.sc, 0, 0, "MODE", "self-conditioning: seed (default) or none"},
        DG_RUN_ARGS(o.model),
        {"chunk", 0, DG_ARG_INT, &o.chunk, 0, 65536, "N", "prefill rows a call on the other path (default: 256 or the canvas)"},
        {"dump", 0, DG_ARG_STR, &o.dump, 0, 0, "DIR", "write both paths' planes, attention and routing as safetensors"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("step-parity"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_ids ids;
    int32_t *canvas = NULL;
    struct capture base = {0}, other = {0};
    dg_ids_init(&ids);
    if (work(&r, &o, &ids, &canvas, &base, &other, &err) != DG_OK)
        status = dg_cli_fail("step-parity", &err);
    capture_free(&base);
    capture_free(&other);
    dg_free(canvas);
    dg_ids_deinit(&ids);
    dg_runtime_close(&r);
    return status;
}
