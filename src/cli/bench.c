/* bench: what the benches run on, floors, times and rows. */
#include "cli/bench.h"

#include "convert/synth.h"
#include "core/half.h"
#include "core/mem.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "sampler/rng.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dg_bench_opts_init(struct dg_bench_opts *o, enum dg_bench_kind kind) {
    *o = (struct dg_bench_opts){.kind = kind, .experts = "q4", .ctx = 512, .tokens = kind == DG_BENCH_TURN ? 30 : 2048, .repeat = 7, .spread = 5,
                                .command = "", .out = stdout};
    dg_model_args_init(&o->model);
}

bool dg_bench_cancelled(const struct dg_bench_rig *b) { return b->stream.cancel && atomic_load(b->stream.cancel); }

/* ---- rows ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct dg_bench_times dg_bench_spread(double *ms, size_t n) {
    qsort(ms, n, sizeof *ms, by_value);
    return (struct dg_bench_times){ms[n / 2], ms[0], ms[n - 1]};
}

static void field(FILE *f, int digits, double v) {
    if (isfinite(v) && v > 0)
        fprintf(f, ",%.*f", digits, v);
    else
        fputc(',', f);
}

void dg_bench_row(struct dg_bench_rig *b, const char *what, int64_t n, const struct dg_bench_times *t, double bytes, double flops) {
    FILE *f = b->o->out;
    double s = t->ms / 1e3;
    fprintf(f, "%s,%lld", what, (long long)n);
    field(f, 4, t->ms);
    field(f, 4, t->min);
    field(f, 4, t->max);
    field(f, 5, n ? t->ms / (double)n : 0);
    field(f, 2, n ? (double)n / s : 0);
    field(f, 3, bytes / 1e6);
    field(f, 3, bytes / 1e9 / s);
    field(f, 4, b->copy > 0 ? bytes / s / b->copy : 0);
    field(f, 4, flops / 1e12 / s);
    field(f, 4, b->gemm > 0 ? flops / s / b->gemm : 0);
    fputc('\n', f);
    fflush(f);
}

/* ---- time ---- */

enum dg_status dg_bench_time(struct dg_bench_rig *b, dg_bench_fn *fn, void *ctx, struct dg_bench_times *t, struct dg_error *err) {
    double ms[DG_BENCH_REPEATS_MAX];
    int repeat = (int)b->o->repeat, warm = b->cuda ? 2 : 1; /* the second run of a pass is the one that a GPU records */
    for (int i = -warm; i < repeat; i++) {
        if (dg_bench_cancelled(b))
            return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
        double start = dg_now();
        if (b->cuda)
            dg_cuda_mark(b->r.be, 0);
        DG_TRY(fn(ctx, err));
        if (b->cuda)
            dg_cuda_mark(b->r.be, 1);
        double took = b->cuda ? (double)dg_cuda_elapsed(b->r.be, 0, 1) : (dg_now() - start) * 1e3;
        DG_TRY(dg_backend_status(b->r.be, err));
        if (i >= 0)
            ms[i] = took;
    }
    *t = dg_bench_spread(ms, (size_t)repeat);
    return DG_OK;
}

enum dg_status dg_bench_op(struct dg_bench_rig *b, const char *what, int64_t n, dg_bench_fn *fn, void *ctx, struct dg_bench_cost cost,
                           struct dg_error *err) {
    struct dg_bench_times t;
    DG_TRY(dg_bench_time(b, fn, ctx, &t, err));
    dg_bench_row(b, what, n, &t, cost.bytes, cost.flops);
    return dg_bench_energy(b, what, &(struct dg_bench_load){fn, ctx, n, t.ms, true}, err);
}

/* ---- floors ---- */

struct copy {
    char *to, *from;
    size_t n;
};

static void copy_part(void *arg, int part, int n_parts) {
    const struct copy *c = arg;
    int64_t begin, end;
    dg_pool_range((int64_t)c->n, 4096, part, n_parts, &begin, &end);
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

#define HOST_COPY ((size_t)128 << 20)

static double host_copy_rate(struct dg_backend *be, bool large) {
    struct copy c = {.n = large ? HOST_COPY : HOST_COPY / 16};
    double best = INFINITY;
    c.to = dg_calloc(c.n, 1);
    c.from = dg_calloc(c.n, 1);
    if (c.to && c.from && be->pool) {
        memset(c.from, 1, c.n); /* pages nobody wrote are all one */
        for (int i = 0; i < 5; i++) {
            double start = dg_now();
            dg_pool_run(be->pool, copy_part, &c);
            best = fmin(best, dg_now() - start);
        }
    }
    dg_free(c.to);
    dg_free(c.from);
    return 2 * (double)c.n / best;
}

struct product {
    struct dg_backend *be;
    struct dg_plane x, y;
    struct dg_mat w;
};

static enum dg_status multiply(void *ctx, struct dg_error *err) {
    struct product *p = ctx;
    const struct dg_mat *w = &p->w;
    (void)err;
    p->be->ops->linear(p->be, &p->x, &w, 1, DG_EPI_NONE, &p->y);
    return DG_OK;
}

/* n values around 0 of the type, on the host. Owner: the caller. */
static void *values(enum dg_dtype type, size_t n) {
    void *v = dg_calloc(n, dg_dtype_bytes(type));
    for (size_t i = 0; v && i < n; i++) {
        float x = (float)((uint32_t)i * 2654435761u >> 16) / 32768.0f - 1;
        if (type == DG_F32)
            ((float *)v)[i] = x;
        else
            ((uint16_t *)v)[i] = dg_f32_bf16(x);
    }
    return v;
}

/* Operations a second of the backend's own dense product, bf16 weights of the model's width by four times as many rows. */
static enum dg_status product_rate(struct dg_bench_rig *b, double *rate, struct dg_error *err) {
    struct dg_backend *be = b->r.be;
    int32_t k = b->s->cfg->hidden, n = 4 * k, rows = b->cuda && k >= 1024 ? 2048 : b->s->planes->rows;
    size_t bytes = (size_t)n * (size_t)k * 2;
    struct product p = {.be = be, .x = dg_plane_alloc(be, be->ops->act, rows, k), .y = dg_plane_alloc(be, be->ops->act, rows, n)};
    void *dev = be->ops->alloc(be, bytes), *w = values(DG_BF16, (size_t)n * (size_t)k), *x = values(be->ops->act, (size_t)rows * (size_t)k);
    struct dg_bench_times t = {0};
    enum dg_status st = w && x ? dg_backend_status(be, err) : DG_FAIL(err, DG_E_NOMEM, "not enough memory to measure with");
    if (st == DG_OK) {
        be->ops->write(be, dev, w, bytes);
        be->ops->write(be, p.x.data, x, (size_t)rows * (size_t)k * dg_dtype_bytes(be->ops->act));
        p.w = (struct dg_mat){DG_FMT_BF16, n, k, dev, b->cuda ? (uint64_t)(uintptr_t)dev : 0};
        st = dg_bench_time(b, multiply, &p, &t, err);
    }
    *rate = 2e3 * rows * (double)n * k / t.min;
    if (st == DG_OK)
        fprintf(b->o->out, "# product %.2f TFLOP/s (%d rows, %d x %d, bf16 weights)\n", *rate / 1e12, rows, n, k);
    dg_plane_free(be, &p.x);
    dg_plane_free(be, &p.y);
    if (dev)
        be->ops->free(be, dev);
    dg_free(w);
    dg_free(x);
    return st;
}

static enum dg_status floors(struct dg_bench_rig *b, struct dg_error *err) {
    bool large = b->s->cfg->hidden >= 1024; /* else the whole model is smaller than a large copy */
    b->copy = b->cuda ? dg_cuda_copy_rate(b->r.be, large ? (size_t)2 << 30 : (size_t)4 << 20) : host_copy_rate(b->r.be, large);
    DG_TRY(dg_backend_status(b->r.be, err));
    fprintf(b->o->out, "# copy %.1f GB/s, read and written\n", b->copy / 1e9);
    return product_rate(b, &b->gemm, err);
}

/* ---- weights ---- */

static int64_t session_ctx(const struct dg_config *c, int64_t tokens) { return (tokens > 1 ? tokens : 1) + c->canvas; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static enum dg_status experts_format(const char *name, enum dg_format *fmt, const char **profile, struct dg_error *err) {
    static const struct {
        const char *name, *profile;
        enum dg_format fmt;
    } known[] = {{"q4", "q4", DG_FMT_Q4_BLOCK}, {"q6", "q6", DG_FMT_Q6_BLOCK}, {"nvfp4", "nvfp4x", DG_FMT_NVFP4_BLOCK}, {"bf16", NULL, DG_FMT_BF16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *fmt = known[i].fmt;
            *profile = known[i].profile;
            return DG_OK;
        }
    return DG_FAIL(err, DG_E_ARG, "--experts %s: one of q4, q6, nvfp4, bf16", name);
}

/* The session and what product_rate takes. */
static size_t beside(void *ctx, const struct dg_backend *be, struct dg_reserve *scratch) {
    const struct dg_bench_rig *b = ctx;
    const struct dg_config *c = &be->model->cfg;
    struct dg_session_opts o = b->expected;
    o.ctx = least(session_ctx(c, o.ctx + (b->o->kind == DG_BENCH_TURN ? (int64_t)DG_BENCH_TURN_CANVASES * c->canvas : 0)), c->ctx_max);
    struct dg_session_needs n = {&o, 1};
    size_t k = (size_t)c->hidden, rows = 2048 + (size_t)o.chunk;
    return dg_session_needs(&n, be, scratch) + rows * 5 * k * dg_dtype_bytes(be->ops->act) + 8 * k * k;
}

static enum dg_status few_survivors(const struct dg_bench_opts *o, bool *few, struct dg_error *err) {
    const char *s = o->survivors ? o->survivors : "few";
    *few = !strcmp(s, "few");
    return *few || !strcmp(s, "many") ? DG_OK : DG_FAIL(err, DG_E_ARG, "--survivors %s: one of few, many", s);
}

static enum dg_status draw_on_device(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    struct dg_cuda_opts co = {.device = (int)o->model.device, .exact_f32 = o->model.exact, .gpu_memory = o->model.gpu_memory, .beside = beside,
                              .beside_ctx = b};
    struct dg_cuda_random w = {.cfg = &b->cfg, .embed = DG_FMT_BF16, .attention = DG_FMT_BF16, .dense = DG_FMT_BF16,
                               .self_conditioning = DG_FMT_Q8_ROW, .logit_spread = (float)o->spread, .seed = 1};
    const struct dg_synth_scales s = dg_synth_scales(&b->cfg);
    const struct dg_cuda_peaked peaked = {s.attention, s.router, s.branch, s.norm, DG_SYNTH_KIN, s.shared};
    const char *profile;
    bool few;
    DG_TRY(few_survivors(o, &few, err));
    w.peaked = few ? &peaked : NULL;
    DG_TRY(experts_format(o->experts, &w.experts, &profile, err));
    DG_TRY(dg_cuda_choose_kernels(o->model.cuda_kernels ? o->model.cuda_kernels : b->r.flags.cuda_kernels, &co, err));
    DG_TRY(dg_cuda_create_random(&b->r.be, &w, &co, err));
    dg_runtime_say_streamed(&b->r);
    return DG_OK;
}

enum dg_status dg_bench_make_pack(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    /* /dev/shm is memory */
    const char *tmp = getenv("TMPDIR"), *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : tmp && strlen(tmp) < 32 ? tmp : "/tmp";
    struct dg_synth_opts s = {.shape = o->synth, .layers = (int)o->layers, .seed = 1, .stream = b->stream};
    struct dg_synth_result made;
    enum dg_format fmt;
    const char *profile;
    char out[80];
    bool few;
    DG_TRY(few_survivors(o, &few, err));
    if (!few)
        return DG_FAIL(err, DG_E_ARG, "%s: only a GPU draws such weights; here --synth makes a pack, whose rows keep few survivors",
                       o->survivors ? "--survivors many" : "--spread");
    DG_TRY(experts_format(o->experts, &fmt, &profile, err));
    if (!profile)
        return DG_FAIL(err, DG_E_ARG, "--experts bf16: packs have no such experts; it takes --synth on a GPU");
    DG_TRY(dg_policy_init(&s.policy, profile, err));
    DG_TRY(dg_policy_set_codes(&s.policy, dg_codes_name(DG_CODES_PLAIN), err));
    DG_TRY(dg_policy_check(&s.policy, err));
    snprintf(b->dir, sizeof b->dir, "%s/diffgemma-bench-XXXXXX", base);
    if (!mkdtemp(b->dir)) {
        b->dir[0] = 0;
        return DG_FAIL(err, DG_E_IO, "cannot make a folder in %s: %s", base, strerror(errno));
    }
    snprintf(out, sizeof out, "%s/pack", b->dir);
    s.out = out;
    DG_TRY(dg_synth(&s, &made, err));
    b->r.dir = dg_strndup(out, strlen(out));
    return b->r.dir ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

static void remove_pack(struct dg_bench_rig *b) {
    char path[80 + 256];
    if (!b->dir[0])
        return;
    snprintf(path, sizeof path, "%s/pack", b->dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/pack/%s", b->dir, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (d)
        closedir(d);
    snprintf(path, sizeof path, "%s/pack", b->dir);
    rmdir(path);
    rmdir(b->dir);
    b->dir[0] = 0;
}

static enum dg_status open_synth(struct dg_bench_rig *b, struct dg_error *err) {
    const char *name = b->o->model.backend;
    bool either = !strcmp(name, "auto");
    struct dg_model_args a = b->o->model;
    if (either || !strcmp(name, "cuda")) {
        struct dg_error why = {0};
        enum dg_status st = draw_on_device(b, either ? &why : err);
        if (st == DG_OK || !either)
            return st;
        if (st != DG_E_BACKEND) {
            DG_FAIL(err, st, "%s", dg_error_text(&why));
            dg_error_clear(&why);
            return st;
        }
        fprintf(stderr, "diffgemma bench: not on a GPU: %s\n", dg_error_text(&why));
        dg_error_clear(&why);
        a.backend = "cpu";
    }
    DG_TRY(dg_bench_make_pack(b, err));
    DG_TRY(dg_runtime_model(&b->r, err));
    remove_pack(b); /* what is mapped stays */
    return dg_runtime_backend(&b->r, &a, &b->so, err);
}

static enum dg_status read_shape(struct dg_bench_rig *b, struct dg_error *err) {
    struct dg_buf text;
    dg_buf_init(&text, DG_CONFIG_FILE_MAX);
    enum dg_status st = dg_synth_config(b->o->synth, (int)b->o->layers, &text, &b->cfg, err);
    dg_buf_deinit(&text);
    return st;
}

/* What is asked for is looked at before weights are drawn or uploaded, which takes its time. */
static enum dg_status suits(const struct dg_bench_rig *b, const struct dg_config *c, int64_t tokens, struct dg_error *err) {
    struct dg_session_opts so = b->expected;
    if (b->o->kind == DG_BENCH_STEP && b->o->rows > c->canvas)
        return DG_FAIL(err, DG_E_ARG, "--rows %lld: a canvas of this model has %d positions", (long long)b->o->rows, c->canvas);
    so.ctx = session_ctx(c, tokens);
    return b->o->kind == DG_BENCH_TURN ? DG_OK : dg_session_opts_resolve(c, NULL, &so, err);
}

enum dg_status dg_bench_open(struct dg_bench_rig *b, int64_t tokens, int64_t chunk, struct dg_error *err) {
    struct dg_model_args a = b->o->model;
    DG_TRY(dg_runtime_session(&b->r, &a, &b->expected, err));
    b->expected.ctx = tokens;
    b->expected.chunk = (int32_t)chunk;
    b->r.beside = beside;
    b->r.beside_ctx = b;
    if (b->o->synth) {
        DG_TRY(read_shape(b, err));
        DG_TRY(suits(b, &b->cfg, tokens, err));
        DG_TRY(open_synth(b, err));
    } else {
        DG_TRY(dg_runtime_find(&b->r, &a, err));
        DG_TRY(dg_runtime_model(&b->r, err));
        DG_TRY(suits(b, &b->r.model->cfg, tokens, err));
        DG_TRY(dg_runtime_backend(&b->r, &a, &b->so, err));
    }
    b->cuda = !strcmp(b->r.be->ops->name, "cuda");
    return dg_runtime_session(&b->r, &a, &b->so, err);
}

/* Experts that come from host memory, how fast it gives them, and what a pass takes for that alone. */
static void say_streamed(const struct dg_bench_rig *b) {
    int32_t layers;
    double bytes = (double)dg_cuda_streamed(b->r.be, &layers);
    if (!layers)
        return;
    double rate = dg_cuda_host_rate(b->r.be);
    fprintf(b->o->out, "# streamed a step: experts of %d layers, %.1f MB; host to device %.2f GB/s: at least %.2f ms a step\n", layers, bytes / 1e6,
            rate / 1e9, rate > 0 ? bytes / rate * 1e3 : 0);
}

static void describe(const struct dg_bench_rig *b) {
    struct dg_backend *be = b->r.be;
    FILE *f = b->o->out;
    char text[256] = "";
    fprintf(f, "# %s\n# diffgemma %s; ", b->o->command, dg_version());
    if (b->cuda) {
        size_t weights = 0, used = dg_cuda_memory(be, &weights);
        fprintf(f, "%s\n# weights %.2f GiB, cache %.2f, beside them %.2f\n", dg_cuda_describe(be), (double)weights / (1 << 30),
                (double)b->s->kv.bytes / (1 << 30), (double)(used - weights - b->s->kv.bytes) / (1 << 30));
        say_streamed(b);
        return;
    }
    if (!strcmp(be->ops->name, "cpu"))
        dg_cpu_describe(be, text, sizeof text);
    fprintf(f, "%s, %d threads, %s planes%s%s; cache %.2f GiB\n", be->ops->name, be->pool ? dg_pool_threads(be->pool) : 1,
            be->ops->act == DG_BF16 ? "bf16" : "f32", text[0] ? ", " : "", text, (double)b->s->kv.bytes / (1 << 30));
}

/* What the soft embedding works on. */
static void say_weights(const struct dg_bench_rig *b) {
    const struct dg_bench_opts *o = b->o;
    bool few;
    if (o->synth && few_survivors(o, &few, NULL) == DG_OK && !few)
        fprintf(o->out, "# random weights: many survivors a row, logits of standard deviation %lld\n", (long long)o->spread);
    else if (o->synth)
        fprintf(o->out, "# random weights: few survivors a row, as in a pack of diffgemma synth\n");
}

static void say_keys(const struct dg_bench_rig *b) {
    int32_t k = b->o->kind == DG_BENCH_PREFILL ? b->so.attention.topk_prefill : b->so.attention.topk_denoise;
    char text[32] = "all";
    if (k == DG_TOPK_DYN)
        snprintf(text, sizeof text, "by context, 64 to 512");
    else if (k)
        snprintf(text, sizeof text, "%d", k);
    fprintf(b->o->out, "# keys a query takes on full layers: %s\n", text);
}

enum dg_status dg_bench_session(struct dg_bench_rig *b, int64_t tokens, int64_t chunk, struct dg_error *err) {
    const struct dg_config *c = &b->r.be->model->cfg;
    b->so.ctx = session_ctx(c, tokens);
    b->so.chunk = (int32_t)chunk;
    DG_TRY(dg_session_create(&b->s, b->r.be, &b->so, err));
    b->s->cancel = b->stream.cancel;
    describe(b);
    say_weights(b);
    say_keys(b);
    DG_TRY(floors(b, err));
    fprintf(b->o->out, DG_BENCH_COLUMNS "\n");
    fflush(b->o->out);
    return DG_OK;
}

int32_t *dg_bench_ids(const struct dg_bench_rig *b, int64_t n) {
    struct dg_rng rng;
    int32_t *ids = dg_calloc(n ? (size_t)n : 1, sizeof *ids);
    dg_rng_init(&rng, 7);
    for (int64_t i = 0; ids && i < n; i++)
        ids[i] = dg_rng_id(&rng, b->r.be->model->cfg.vocab);
    return ids;
}

void dg_bench_close(struct dg_bench_rig *b) {
    dg_session_destroy(b->s);
    dg_runtime_close(&b->r);
    dg_nvml_close(&b->nvml);
    remove_pack(b);
}

enum dg_status dg_bench(const struct dg_bench_opts *o, struct dg_error *err) {
    static enum dg_status (*const run[])(struct dg_bench_rig *, struct dg_error *) = {dg_bench_step, dg_bench_prefill, dg_bench_load, dg_bench_turn};
    struct dg_bench_rig b = {.o = o};
    if (o->repeat < 1 || o->repeat > DG_BENCH_REPEATS_MAX)
        return DG_FAIL(err, DG_E_ARG, "--repeat %lld: give 1 to %d", (long long)o->repeat, DG_BENCH_REPEATS_MAX);
    if (o->synth && o->model.model)
        return DG_FAIL(err, DG_E_ARG, "give -m MODEL or --synth SHAPE, not both");
    dg_long_work_begin(&b.work, "bench", !isatty(2));
    b.stream = dg_long_work_opts(&b.work, o->model.threads);
    enum dg_status st = dg_runtime_flags(&b.r, err);
    if (st == DG_OK)
        st = run[o->kind](&b, err);
    dg_bench_close(&b);
    dg_long_work_end(&b.work);
    return st;
}
