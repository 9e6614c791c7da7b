/* Times the CUDA backend at the real shape with weights drawn on the device: cuda_step [--ctx N] [--rows N] [--experts q4|nvfp4|bf16]
 * [--kernels auto|portable|simple] [--f32]. One CSV row an op (all layers of its kind in turn, so that weights come from memory), then
 * the whole step, with the bytes it must read and the ratio to the copy bandwidth measured in the same run. */
#include "core/mem.h"
#include "ops/cuda/state.h"
#include "model/forward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 7

static struct dg_config cfg;
static struct dg_backend *be;
static struct dg_planes pl;
static struct dg_kv kv;
static double copy_gbs;
static int32_t rows = 256;

static void real_shape(void) {
    cfg = (struct dg_config){.vocab = 262144, .hidden = 2816, .layers = 30, .heads = 16, .inter = 2112, .experts = 128, .topk = 8, .moe = 704,
                             .canvas = 256, .window = 1024, .ctx_max = 262144, .eps = 1e-6f, .softcap = 30, .theta_sliding = 1e4,
                             .theta_full = 1e6, .rotary_full = 0.25, .rotary_sliding = 1};
    for (int32_t l = 0; l < cfg.layers; l++)
        cfg.layer[l] = l % 6 == 5 ? (struct dg_layer_shape){true, 512, 2} : (struct dg_layer_shape){false, 256, 8};
}

static int by_value(const void *a, const void *b) {
    float d = *(const float *)a - *(const float *)b;
    return d < 0 ? -1 : d > 0;
}

static void die(struct dg_error *err) {
    fprintf(stderr, "%s\n", dg_error_text(err));
    exit(1);
}

static void check(void) {
    struct dg_error err = {0};
    if (dg_backend_status(be, &err) != DG_OK)
        die(&err);
}

/* Median of the device time of fn over all its layers. */
static float time_it(void (*fn)(void *), void *arg) {
    float ms[REPEATS];
    fn(arg);
    for (int i = 0; i < REPEATS; i++) {
        dg_cuda_mark(be, 0);
        fn(arg);
        dg_cuda_mark(be, 1);
        ms[i] = dg_cuda_elapsed(be, 0, 1);
    }
    check();
    qsort(ms, REPEATS, sizeof *ms, by_value);
    return ms[REPEATS / 2];
}

static void row(const char *name, int n, float ms, double bytes, double flops) {
    printf("%s,%d,%.4f,%.4f,%.1f,%.3f,%.1f\n", name, n, (double)ms, (double)ms / n, bytes / 1e6, bytes / 1e6 / (double)ms / copy_gbs,
           flops / 1e9 / (double)ms);
    fflush(stdout);
}

struct job {
    int what; /* which op */
    bool full;
};

enum { QKV, STORE, ATTENTION, OUT, ROUTER, EXPERTS, GATE_UP, DOWN, NORMS };

static struct dg_batch batch;

static void run_layer(int what, const struct dg_layer *w, const struct dg_layer_shape *s, int32_t l) {
    const struct dg_ops *op = be->ops;
    const struct dg_mat *qkv_w[3] = {&w->q, &w->k, &w->v}, *gu[2] = {&w->gate, &w->up}, *o = &w->o, *dn = &w->down;
    bool has_v = w->v.data != NULL;
    int32_t q = cfg.heads * s->hd, cols = q + (has_v ? 2 : 1) * s->kv_heads * s->hd;
    struct dg_plane x = dg_plane_view(&pl.x, rows, cfg.hidden), h = dg_plane_view(&pl.h, rows, cfg.hidden),
                    t = dg_plane_view(&pl.t, rows, cfg.hidden);
    struct dg_plane qkv = dg_plane_view(&pl.qkv, rows, cols), att = dg_plane_view(&pl.att, rows, q), ff = dg_plane_view(&pl.ff, rows, cfg.inter);
    struct dg_plane moe = dg_plane_view(&pl.moe, rows, cfg.hidden);
    switch (what) {
    case QKV: op->linear(be, &h, qkv_w, has_v ? 3 : 2, DG_EPI_NONE, &qkv); break;
    case STORE:
        op->qkv_store(be, &qkv, cfg.heads, has_v, &w->q_norm, &w->k_norm, cfg.eps, pl.cos[s->full], pl.sin[s->full], &batch, &kv.layer[l]);
        break;
    case ATTENTION: op->attention(be, &qkv, cfg.heads, &batch, &kv.layer[l], &att); break;
    case OUT: op->linear(be, &att, &o, 1, DG_EPI_NONE, &t); break;
    case ROUTER: op->router(be, &h, &w->router, &w->per_expert_scale, &pl.routing); break;
    case EXPERTS: op->experts(be, &h, &pl.routing, &w->gate_up, &w->expert_down, &moe); break;
    case GATE_UP: op->linear(be, &h, gu, 2, DG_EPI_GLU, &ff); break;
    case DOWN: op->linear(be, &ff, &dn, 1, DG_EPI_NONE, &t); break;
    case NORMS:
        for (int i = 0; i < 4; i++)
            op->rms_norm(be, &x, &w->input_norm, 1, cfg.eps, &h);
        op->norm_add(be, &t, &w->post_attn_norm, cfg.eps, &x, 1, &att);
        op->norm_pair(be, &t, &w->post_ff_norm_1, &moe, &w->post_ff_norm_2, cfg.eps, &t);
        op->norm_add(be, &t, &w->post_ff_norm, cfg.eps, &x, 1, &att);
        break;
    }
}

static void run_layers(void *arg) {
    const struct job *j = arg;
    for (int32_t l = 0; l < cfg.layers; l++)
        if (cfg.layer[l].full == j->full)
            run_layer(j->what, &be->model->layer[l], &cfg.layer[l], l);
}

static double mat_bytes(const struct dg_mat *m) { return m->data ? (double)dg_format_mat_bytes(m->fmt, m->n, m->k) : 0; }

static double weight_bytes(int what, const struct dg_layer *w) {
    switch (what) {
    case QKV: return mat_bytes(&w->q) + mat_bytes(&w->k) + mat_bytes(&w->v);
    case OUT: return mat_bytes(&w->o);
    case ROUTER: return mat_bytes(&w->router);
    case GATE_UP: return mat_bytes(&w->gate) + mat_bytes(&w->up);
    case DOWN: return mat_bytes(&w->down);
    case EXPERTS: {
        struct dg_mat a = dg_stack_mat(&w->gate_up, 0), b = dg_stack_mat(&w->expert_down, 0);
        return (mat_bytes(&a) + mat_bytes(&b)) * w->gate_up.e;
    }
    default: return 0;
    }
}

static double op_flops(int what, const struct dg_layer *w, const struct dg_layer_shape *s) {
    double m = 2.0 * rows;
    switch (what) {
    case QKV: return m * cfg.hidden * (w->q.n + w->k.n + (w->v.data ? w->v.n : 0));
    case OUT: return m * w->o.n * w->o.k;
    case EXPERTS: return m * cfg.topk * 3 * cfg.moe * cfg.hidden;
    case GATE_UP: return m * 2 * cfg.inter * cfg.hidden;
    case DOWN: return m * cfg.inter * cfg.hidden;
    case ATTENTION: {
        double keys = (double)batch.pos0 + rows;
        if (!s->full && keys > cfg.window - 1 + rows)
            keys = cfg.window - 1 + rows;
        return m * 2 * cfg.heads * s->hd * keys;
    }
    default: return 0;
    }
}

static void time_layers(void) {
    static const char *names[] = {"qkv", "store", "attention", "out", "router", "experts", "gate_up", "down", "norms"};
    for (int full = 0; full < 2; full++)
        for (int what = QKV; what <= NORMS; what++) {
            struct job j = {what, full};
            char name[32];
            double bytes = 0, flops = 0;
            int n = 0;
            for (int32_t l = 0; l < cfg.layers; l++)
                if (cfg.layer[l].full == j.full) {
                    bytes += weight_bytes(what, &be->model->layer[l]);
                    flops += op_flops(what, &be->model->layer[l], &cfg.layer[l]);
                    n++;
                }
            snprintf(name, sizeof name, "%s_%s", names[what], full ? "full" : "sliding");
            row(name, n, time_it(run_layers, &j), bytes, flops);
        }
}

static void run_head(void *arg) {
    struct dg_plane h = dg_plane_view(&pl.h, rows, cfg.hidden), logits = dg_plane_view(&pl.logits, rows, cfg.vocab);
    (void)arg;
    be->ops->head(be, &h, &be->model->embed, cfg.softcap, 1.25f, &logits, &pl.stats);
}

static void run_stats(void *arg) {
    struct dg_plane logits = dg_plane_view(&pl.logits, rows, cfg.vocab);
    (void)arg;
    be->ops->row_stats(be, &logits, 1.25f, &pl.stats);
}

static void run_soft(void *arg) {
    struct dg_plane h = dg_plane_view(&pl.t, rows, cfg.hidden), logits = dg_plane_view(&pl.logits, rows, cfg.vocab);
    be->ops->soft_embed(be, &logits, &pl.stats, 1.25f, &be->model->embed, 53, *(bool *)arg, &h);
}

static int32_t canvas[4096];

static void run_step(void *arg) {
    struct dg_denoise d = {canvas, rows, DG_SC_SOFT, *(bool *)arg, 1.25f};
    struct dg_error err = {0};
    if (dg_forward_denoise(be, &pl, &kv, &d, NULL, &err) != DG_OK)
        die(&err);
}

/* Of the sparse soft embedding: mean ids a row, and rows that were computed densely. */
static void survivors(void) {
    int32_t n[4096], dense = 0;
    double sum = 0;
    be->ops->read(be, n, ((struct dg_cuda *)be->impl)->s.soft_count, (size_t)rows * sizeof *n);
    check();
    for (int32_t i = 0; i < rows; i++) {
        sum += n[i];
        dense += n[i] > DGC_SOFT_LIST;
    }
    printf("# survivors a row %.0f, rows computed densely %d of %d\n", sum / rows, dense, rows);
}

/* A step from the canvas's own embedding, for comparing kernels: twice, so that the second is a recording, and must agree to the bit. */
static void fingerprint(void) {
    static float h[2][4096];
    static int32_t id[4096];
    struct dg_error err = {0};
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        struct dg_denoise d = {canvas, rows, DG_SC_SEED, true, 1.25f};
        if (dg_forward_denoise(be, &pl, &kv, &d, NULL, &err) != DG_OK)
            die(&err);
        be->ops->read(be, h[i], pl.stats.entropy, (size_t)rows * sizeof **h);
    }
    be->ops->read(be, id, pl.stats.argmax, (size_t)rows * sizeof *id);
    check();
    for (int32_t i = 0; i < rows; i++)
        sum += (double)h[1][i];
    printf("# mean entropy %.6f, recording %s\n# argmax", sum / rows, memcmp(h[0], h[1], (size_t)rows * sizeof **h) ? "DIFFERS" : "agrees");
    for (int32_t i = 0; i < rows; i++)
        printf(" %d", id[i]);
    printf("\n");
}

static void measure_copy(void) {
    struct dg_cuda *cu = be->impl;
    size_t n = (size_t)2 << 30;
    char *p = be->ops->alloc(be, 2 * n);
    float best = INFINITY;
    check();
    for (int i = 0; i < 5; i++) {
        dg_cuda_mark(be, 0);
        cu->d.copy_on_device((dg_cu_ptr)(uintptr_t)p, (dg_cu_ptr)(uintptr_t)(p + n), n, cu->stream);
        dg_cuda_mark(be, 1);
        best = fminf(best, dg_cuda_elapsed(be, 0, 1));
    }
    be->ops->free(be, p);
    copy_gbs = 2 * (double)n / 1e6 / (double)best;
}

int main(int argc, char **argv) {
    int64_t ctx = 512;
    struct dg_cuda_opts opts = {0};
    struct dg_error err = {0};
    enum dg_format experts = DG_FMT_Q4_BLOCK;
    float spread = 5;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--f32")) {
            opts.exact_f32 = true;
            continue;
        }
        if (!strcmp(argv[i], "--ctx"))
            ctx = atol(v);
        else if (!strcmp(argv[i], "--rows"))
            rows = atoi(v);
        else if (!strcmp(argv[i], "--spread"))
            spread = strtof(v, NULL);
        else if (!strcmp(argv[i], "--experts"))
            experts = *v == 'n' ? DG_FMT_NVFP4_BLOCK : *v == 'b' ? DG_FMT_BF16 : DG_FMT_Q4_BLOCK;
        else if (strcmp(argv[i], "--kernels") != 0 || !dg_cuda_parse_kernels(v, &opts))
            return 2;
        i++;
    }
    real_shape();
    if (rows > 4096 || rows < 1)
        return 2;
    struct dg_cuda_random shape = {&cfg, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, experts, DG_FMT_Q8_ROW, false, spread, 1};
    if (dg_cuda_create_random(&be, &shape, &opts, &err) != DG_OK)
        die(&err);
    int32_t most = rows > cfg.canvas ? rows : cfg.canvas;
    most = ctx > 65536 && most < 1024 ? 1024 : most;
    struct dg_reserve r = {.rows = most, .ctx = ctx + most, .k_max = 8192, .topk = 8, .experts = 128, .moe = 704, .hidden = 2816};
    if (dg_backend_reserve(be, &r, &err) != DG_OK || dg_kv_init(&kv, be, ctx + most, 4096, most, DG_F16, &err) != DG_OK ||
        dg_planes_init(&pl, be, most, &err) != DG_OK)
        die(&err);
    measure_copy();
    size_t weights = 0, used = dg_cuda_memory(be, &weights);
    fprintf(stderr, "# %s; copy %.0f GB/s; weights %.2f GiB, beside them and the cache of %.2f GiB: %.2f GiB\n", dg_cuda_describe(be), copy_gbs,
            (double)weights / (1 << 30), (double)kv.bytes / (1 << 30), (double)(used - weights - kv.bytes) / (1 << 30));
    for (int32_t i = 0; i < most; i++)
        canvas[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)cfg.vocab);
    /* the bidirectional pass sees what is in the cache: fill it by prefill */
    while (kv.len < ctx) {
        int32_t n = ctx - kv.len < most ? (int32_t)(ctx - kv.len) : most;
        if (dg_forward_prefill(be, &pl, &kv, canvas, n, NULL, NULL, &err) != DG_OK)
            die(&err);
    }
    batch = (struct dg_batch){rows, rows, ctx, rows > cfg.canvas, -1, 0};
    printf("op,layers,ms,ms_each,weight_MB,of_copy,TFLOPs\n");
    if (rows <= cfg.canvas) {
        bool sparse = true, exact = false;
        double embed = mat_bytes(&be->model->embed);
        fingerprint();
        run_step(&sparse);
        time_layers();
        row("head_and_stats", 1, time_it(run_head, NULL), embed, 2.0 * rows * cfg.hidden * cfg.vocab);
        row("row_stats", 1, time_it(run_stats, NULL), 4.0 * rows * cfg.vocab, 0);
        row("soft_sparse", 1, time_it(run_soft, &sparse), 4.0 * rows * cfg.vocab, 0);
        row("soft_exact", 1, time_it(run_soft, &exact), embed, 2.0 * rows * cfg.hidden * cfg.vocab);
        row("step_sparse", 1, time_it(run_step, &sparse), (double)weights, 0);
        row("step_exact", 1, time_it(run_step, &exact), (double)weights, 0);
        ((struct dg_cuda *)be->impl)->ops.replay = NULL;
        row("step_sparse_op_by_op", 1, time_it(run_step, &sparse), (double)weights, 0);
        survivors();
    } else {
        time_layers();
    }
    dg_planes_deinit(&pl, be);
    dg_kv_deinit(&kv, be);
    dg_backend_destroy(be);
    return 0;
}
