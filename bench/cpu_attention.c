/* The CPU ops that are no product with weights, at the shape of the 26B model: 256 rows, real widths and contexts, synthetic values.
 * bench/cpu_attention [--threads N] [--cpu LEVEL] [--quick] [--attention] [--cpu-time]: --quick leaves the 32k contexts out, --attention
 * everything but attention and the product that it is compared with. --cpu-time counts the process's processor time, all threads together,
 * instead of the clock on the wall: for machines that others use meanwhile, with --threads 1. Where attention goes on tile registers each case
 * is measured on vectors too, by the level below. */
#include "core/half.h"
#include "ops/backends.h"
#include "ops/cpu/cpu.h"
#include "session/turn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS 256
#define HEADS 16
#define HIDDEN 2816
#define VOCAB 262144
#define REPEATS 5

static char command[200];
static clockid_t clock_used = CLOCK_MONOTONIC;
static uint64_t state = 88172645463325252ull;

static double now(void) {
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float noise(void) {
    float s = 0;
    for (int i = 0; i < 4; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        s += (float)(state >> 40) * 0x1p-24f - 0.5f;
    }
    return s * 1.7f;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void row(const char *what, double figure, const char *unit) { printf("%s,%.4g,%s,%s\n", what, figure, unit, command); }

static void *need(void *p) {
    if (!p) {
        fprintf(stderr, "bench cpu_attention: out of memory\n");
        exit(1);
    }
    return p;
}

static void *random_f16(size_t n, float spread) {
    uint16_t *p = need(malloc(n * 2));
    uint16_t some[65536];
    for (size_t i = 0; i < 65536; i++)
        some[i] = dg_f32_f16(noise() * spread);
    for (size_t i = 0; i < n; i += 4096) /* pieces of one pool, at offsets that do not repeat */
        memcpy(p + i, some + (i / 4096 * 7919) % (65536 - 4096), (n - i < 4096 ? n - i : 4096) * 2);
    return p;
}

static float *random_f32(size_t n, float spread) {
    float *p = need(malloc(n * 4));
    for (size_t i = 0; i < n; i++)
        p[i] = noise() * spread;
    return p;
}

struct att {
    const char *name;
    int32_t hd, kv_heads, window, topk;
    int64_t ctx;
    bool causal;
};

static double attention(struct dg_backend *be, const struct att *a, int repeats) {
    int64_t slots = a->window ? 4096 : a->ctx + ROWS;
    size_t n = (size_t)slots * (size_t)a->kv_heads * (size_t)a->hd;
    struct dg_kv_layer kv = {random_f16(n, 0.1f), random_f16(n, 1), DG_F16, a->kv_heads, a->hd, slots, a->window > 0, a->window};
    struct dg_batch b = {ROWS, ROWS, a->ctx, a->causal, -1, a->topk};
    struct dg_plane q = dg_plane_alloc(be, be->ops->act, ROWS, HEADS * a->hd), y = dg_plane_alloc(be, be->ops->act, ROWS, HEADS * a->hd);
    for (int64_t i = 0; i < (int64_t)ROWS * q.ld; i++)
        if (q.dtype == DG_F32)
            ((float *)q.data)[i] = noise();
        else
            ((uint16_t *)q.data)[i] = dg_f32_bf16(noise());
    double t[REPEATS];
    for (int i = -1; i < repeats; i++) {
        double start = now();
        be->ops->attention(be, &q, HEADS, &b, &kv, &y);
        if (i >= 0)
            t[i] = now() - start;
    }
    qsort(t, (size_t)repeats, sizeof *t, by_value);
    free(kv.k);
    free(kv.v);
    dg_plane_free(be, &q);
    dg_plane_free(be, &y);
    return t[repeats / 2];
}

/* Multiply-adds twice over the keys a batch sees, scores and values. */
static double work(const struct att *a) {
    double keys = a->window ? a->window - 1 + (double)ROWS : (double)a->ctx + ROWS;
    return 4.0 * ROWS * HEADS * keys * a->hd;
}

static double timed(struct dg_backend *be, void (*fn)(struct dg_backend *, void *), void *arg) {
    double t[REPEATS];
    for (int i = -1; i < REPEATS; i++) {
        double start = now();
        fn(be, arg);
        if (i >= 0)
            t[i] = now() - start;
    }
    qsort(t, REPEATS, sizeof *t, by_value);
    return t[REPEATS / 2];
}

struct things {
    struct dg_plane x, z, y, logits, f32;
    struct dg_vec w;
    struct dg_mat embed, dense, router;
    struct dg_row_stats stats;
    struct dg_routing routing;
    float *cos, *sin;
    struct dg_kv_layer kv;
    bool sparse;
};

static void do_norm(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->rms_norm(be, &t->x, &t->w, 1, 1e-6f, &t->y);
}
static void do_norm_add(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->norm_add(be, &t->x, &t->w, 1e-6f, &t->z, 1, &t->y);
}
static void do_norm_pair(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->norm_pair(be, &t->x, &t->w, &t->f32, &t->w, 1e-6f, &t->y);
}
static void do_stats(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->row_stats(be, &t->logits, 1.25f, &t->stats);
}
static void do_soft(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->soft_embed(be, &t->logits, &t->stats, 1.25f, &t->embed, 53, t->sparse, &t->y);
}
static void do_router(struct dg_backend *be, void *p) {
    struct things *t = p;
    be->ops->router(be, &t->x, &t->router, &t->w, &t->routing);
}
static void do_linear(struct dg_backend *be, void *p) {
    struct things *t = p;
    const struct dg_mat *w = &t->dense;
    be->ops->linear(be, &t->x, &w, 1, DG_EPI_NONE, &t->y);
}
static void do_qkv(struct dg_backend *be, void *p) {
    struct things *t = p;
    struct dg_batch b = {ROWS, ROWS, 1000, false, -1, 0};
    struct dg_plane qkv = {t->logits.data, be->ops->act, ROWS, 8192, 8192};
    be->ops->qkv_store(be, &qkv, HEADS, true, &t->w, &t->w, 1e-6f, t->cos, t->sin, &b, &t->kv);
}

static void fill(struct dg_plane *p, float spread) {
    for (int64_t i = 0; i < p->rows * p->ld; i++)
        if (p->dtype == DG_F32)
            ((float *)p->data)[i] = noise() * spread;
        else
            ((uint16_t *)p->data)[i] = dg_f32_bf16(noise() * spread);
}

/* Rows as a denoise step leaves them: a few likely ids over a floor far below. */
static void peaked(struct dg_plane *p, int likely) {
    for (int32_t r = 0; r < p->rows; r++) {
        float *z = (float *)p->data + r * p->ld;
        for (int32_t v = 0; v < p->cols; v++)
            z[v] = -12 + 2 * (float)(v * 2654435761u >> 24) / 256;
        for (int i = 0; i < likely; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            z[state % (uint64_t)p->cols] = 10 - 5 * (float)i / (float)likely;
        }
    }
}

/* Draws of all positions of a step (DGQ_DENOISER_ARGMAX=0). */
static void do_draws(struct dg_backend *be, void *p) {
    struct things *t = p;
    struct dg_planes planes = {.logits = t->logits, .stats = t->stats, .stats_inv_t = 1.25f};
    struct dg_session s = {.be = be, .cfg = &be->model->cfg, .planes = &planes, .draw_sum = need(calloc(VOCAB / 1024, sizeof(double)))};
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t id;
        if (dg_session_draw(&s, i, (i + 0.5) / ROWS, &id, NULL) != DG_OK)
            exit(1);
    }
    free(s.draw_sum);
}

static void do_sampler(struct dg_backend *be, void *p) {
    struct things *t = p;
    struct dg_sampler_params params;
    struct dg_sampler *s;
    struct dg_rng rng;
    struct dg_step_result r;
    dg_sampler_params_init(&params, &be->model->cfg, NULL);
    dg_rng_init(&rng, 1);
    if (dg_sampler_create(&s, &params, ROWS, NULL) != DG_OK || dg_sampler_begin(s, ROWS, &rng, NULL) != DG_OK ||
        dg_sampler_step(s, t->stats.entropy, t->stats.argmax, NULL, NULL, &r, NULL) != DG_OK)
        exit(1);
    dg_sampler_destroy(s);
}

static double rows_ops(struct dg_backend *be, bool product_only) {
    struct things t = {0};
    enum dg_dtype act = be->ops->act;
    t.x = dg_plane_alloc(be, act, ROWS, HIDDEN);
    t.z = dg_plane_alloc(be, act, ROWS, HIDDEN);
    t.y = dg_plane_alloc(be, act, ROWS, HIDDEN);
    t.f32 = dg_plane_alloc(be, DG_F32, ROWS, HIDDEN);
    t.logits = dg_plane_alloc(be, DG_F32, ROWS, VOCAB);
    fill(&t.x, 1), fill(&t.z, 1), fill(&t.f32, 1);
    t.w = (struct dg_vec){random_f32(HIDDEN, 1), HIDDEN, 0};
    size_t embed_rows = product_only ? HIDDEN : VOCAB;
    uint16_t *e = need(malloc(embed_rows * HIDDEN * 2));
    for (size_t i = 0; i < embed_rows * HIDDEN; i++)
        e[i] = i < HIDDEN * 64 ? dg_f32_bf16(noise() * 0.02f) : e[i - HIDDEN * 61];
    t.embed = (struct dg_mat){DG_FMT_BF16, VOCAB, HIDDEN, (const uint8_t *)e, 0};
    t.dense = (struct dg_mat){DG_FMT_BF16, HIDDEN, HIDDEN, (const uint8_t *)e, 0};
    t.router = (struct dg_mat){DG_FMT_BF16, 128, HIDDEN, (const uint8_t *)e, 0};
    float *stat[4];
    for (int i = 0; i < 4; i++)
        stat[i] = need(calloc(ROWS, 4));
    t.stats = (struct dg_row_stats){stat[0], stat[1], stat[2], stat[3], need(calloc(ROWS, 4)), NULL};
    t.routing = (struct dg_routing){need(calloc(ROWS, 32)), need(calloc(ROWS, 32)), 8};
    t.cos = random_f32(ROWS * 128, 1);
    t.sin = random_f32(ROWS * 128, 1);
    t.kv = (struct dg_kv_layer){need(calloc(4096 * 2048, 2)), need(calloc(4096 * 2048, 2)), DG_F16, 8, 256, 4096, true, 1024};

    double gemm = 2.0 * ROWS * HIDDEN * HIDDEN / timed(be, do_linear, &t) * 1e-9;
    row("linear bf16 256 x 2816 x 2816", gemm, "GFLOP/s");
    if (product_only)
        return gemm;
    row("rms_norm 256 x 2816", timed(be, do_norm, &t) * 1e3, "ms");
    row("norm_add 256 x 2816", timed(be, do_norm_add, &t) * 1e3, "ms");
    row("norm_pair 256 x 2816", timed(be, do_norm_pair, &t) * 1e3, "ms");
    row("qkv_store 256 rows of 16+8+8 heads of 256", timed(be, do_qkv, &t) * 1e3, "ms");
    row("router 256 rows 128 experts", timed(be, do_router, &t) * 1e3, "ms");
    peaked(&t.logits, 100);
    row("row_stats 256 x 262144", timed(be, do_stats, &t) * 1e3, "ms");
    row("accept and renoise 256 positions", timed(be, do_sampler, &t) * 1e3, "ms");
    row("draw 256 ids of 262144", timed(be, do_draws, &t) * 1e3, "ms");
    t.sparse = true;
    row("soft_embed sparse 100 survivors a row", timed(be, do_soft, &t) * 1e3, "ms");
    peaked(&t.logits, 5000);
    be->ops->row_stats(be, &t.logits, 1.25f, &t.stats);
    row("soft_embed sparse 5000 survivors a row", timed(be, do_soft, &t) * 1e3, "ms");
    t.sparse = false;
    double exact = timed(be, do_soft, &t);
    row("soft_embed exact", exact * 1e3, "ms");
    row("soft_embed exact, rate", 2.0 * ROWS * (double)VOCAB * HIDDEN / exact * 1e-9, "GFLOP/s");
    return gemm;
}

/* The backend of the level below tile registers, on the same planes; NULL where the other has none. */
static struct dg_backend *on_vectors(const struct dg_backend *be, const struct dg_model *model, struct dg_backend_opts bo,
                                     const struct dg_reserve *want) {
    struct dg_backend *other = NULL;
    if (dg_cpu_backend_level(be) != DG_CPU_AMX || be->ops->act != DG_BF16)
        return NULL;
    bo.cpu[0] = "avx512bf16";
    if (dg_backend_open(&other, "cpu", model, &bo, NULL) != DG_OK || dg_backend_reserve(other, want, NULL) != DG_OK)
        exit(1);
    return other;
}

int main(int argc, char **argv) {
    struct dg_backend_opts bo = {0};
    bool quick = false, attention_only = false;
    int len = snprintf(command, sizeof command, "build/bench/cpu_attention");
    for (int i = 1; i < argc; i++) {
        len += snprintf(command + len, sizeof command - (size_t)len, " %s", argv[i]);
        if (!strcmp(argv[i], "--quick"))
            quick = true;
        else if (!strcmp(argv[i], "--attention"))
            attention_only = true;
        else if (!strcmp(argv[i], "--cpu-time"))
            clock_used = CLOCK_PROCESS_CPUTIME_ID;
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            bo.threads = atoi(argv[i + 1]);
        else if (i + 1 < argc && !strcmp(argv[i], "--cpu"))
            bo.cpu[0] = argv[i + 1];
    }
    static struct dg_model model = {
        .cfg = {.vocab = VOCAB, .hidden = HIDDEN, .canvas = ROWS, .heads = HEADS, .experts = 128, .topk = 8, .moe = 704, .steps_max = 48,
                .entropy_bound = 0.1, .t_min = 0.4, .t_max = 0.8, .stability = 1, .confidence = 0.005}};
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    struct dg_reserve need_scratch = {.rows = ROWS, .ctx = 33280, .k_max = 8192, .topk = 8, .experts = 128, .moe = 704, .hidden = HIDDEN};
    if (dg_backend_open(&be, "cpu", &model, &bo, &err) != DG_OK || dg_backend_reserve(be, &need_scratch, &err) != DG_OK) {
        fprintf(stderr, "bench cpu_attention: %s\n", dg_error_text(&err));
        return 1;
    }
    double gemm = rows_ops(be, attention_only);
    static const struct att cases[] = {{"sliding", 256, 8, 1024, 0, 8192, false},
                                       {"dense 8k", 512, 2, 0, 0, 8192, false},
                                       {"top-k 8k", 512, 2, 0, DG_TOPK_DYN, 8192, false},
                                       {"dense 32k", 512, 2, 0, 0, 32768, false},
                                       {"top-k 32k", 512, 2, 0, DG_TOPK_DYN, 32768, false}};
    struct dg_backend *vectors = on_vectors(be, &model, bo, &need_scratch);
    double t[5] = {0};
    for (int i = 0; i < (quick ? 3 : 5); i++) {
        char name[80];
        t[i] = attention(be, &cases[i], i < 3 ? REPEATS : 3);
        snprintf(name, sizeof name, "attention %s 256 rows", cases[i].name);
        row(name, t[i] * 1e3, "ms");
        if (vectors) {
            double slow = attention(vectors, &cases[i], 3);
            snprintf(name, sizeof name, "attention %s 256 rows, on vectors", cases[i].name);
            row(name, slow * 1e3, "ms");
            snprintf(name, sizeof name, "attention %s, times as fast as on vectors", cases[i].name);
            row(name, slow / t[i], "ratio");
        }
        if (!cases[i].topk) {
            snprintf(name, sizeof name, "attention %s, rate", cases[i].name);
            row(name, work(&cases[i]) / t[i] * 1e-9, "GFLOP/s");
            if (gemm > 0) {
                snprintf(name, sizeof name, "attention %s, of the linear rate", cases[i].name);
                row(name, work(&cases[i]) / t[i] * 1e-9 / gemm, "ratio");
            }
        } else {
            snprintf(name, sizeof name, "attention %s, times as fast as dense", cases[i].name);
            row(name, t[i - 1] / t[i], "ratio");
        }
    }
    row("attention of a step at 8k: 25 sliding + 5 top-k layers", (25 * t[0] + 5 * t[2]), "s");
    row("attention of a step at 8k: 25 sliding + 5 dense layers", (25 * t[0] + 5 * t[1]), "s");
    if (!quick) {
        row("attention of a step at 32k: 25 sliding + 5 top-k layers", (25 * t[0] + 5 * t[4]), "s");
        row("attention of a step at 32k: 25 sliding + 5 dense layers", (25 * t[0] + 5 * t[3]), "s");
    }
    if (vectors)
        dg_backend_destroy(vectors);
    dg_backend_destroy(be);
    return 0;
}
