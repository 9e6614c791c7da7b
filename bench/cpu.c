/* The CPU backend's matrix products against what the machine gives: cpu [--cpu LEVEL] [--planes f32|bf16] [--threads N] [--repeat N] [FILTER]
 * FILTER: only cases whose name holds it, or one of several with a | between them.
 *
 * Each repeat of a case is followed by a register-only loop of the level's multiply-add, or, where a case reads more than it multiplies, by a
 * plain read of memory, on as many threads: the ratio of a row is the median of these pairs, both by the processor's time, so that other work
 * on the machine disturbs it little. Dense products run also turn by turn with oneDNN's, in bf16 where the level's planes are, by the wall clock. */
#include "support/yard.h"

#include "core/half.h"
#include "core/mem.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/read_rate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HIDDEN 2816
#define VOCAB 262144
#define EXPERTS 128
#define TOPK 8
#define MOE 704
#define ROWS 256
#define READ_BYTES (256u << 20)

static struct {
    struct dg_backend *be;
    enum dg_cpu_level level;
    int repeat;
    const char *filter;
    char command[200];
    char *memory; /* READ_BYTES */
    const struct dg_memory_pattern *read; /* the fastest way through it */
    struct dg_pool *pool;
} b;

static double read_clock(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void) { return read_clock(CLOCK_MONOTONIC); }
/* The processor's time of all threads, over their number: what the wall clock would show on an idle machine, but for the threads' waiting. */
static double clock_now(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID) / dg_pool_threads(b.be->pool); }

static int by_value(const void *a, const void *c) {
    double x = *(const double *)a, y = *(const double *)c;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* Twelve chains of multiply-adds, each on a register of its own. */
#define PEAK_ROUNDS 2000000
#define PEAK_TILE_ROUNDS 200000
#if defined(__x86_64__)
#define PEAK(name, features, type, op)                                                                                               \
    __attribute__((target(features))) static void name(void *arg, int part, int n_parts) {                                           \
        (void)arg, (void)part, (void)n_parts;                                                                                        \
        type z = {0}, a0 = z, a1 = z, a2 = z, a3 = z, a4 = z, a5 = z, a6 = z, a7 = z, a8 = z, a9 = z, a10 = z, a11 = z;              \
        for (int r = 0; r < PEAK_ROUNDS; r++)                                                                                        \
            __asm__ volatile(op "%12, %12, %0\n" op "%12, %12, %1\n" op "%12, %12, %2\n" op "%12, %12, %3\n" op "%12, %12, %4\n" op  \
                                "%12, %12, %5\n" op "%12, %12, %6\n" op "%12, %12, %7\n" op "%12, %12, %8\n" op "%12, %12, %9\n" op \
                                "%12, %12, %10\n" op "%12, %12, %11\n"                                                              \
                             : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9),   \
                               "+v"(a10), "+v"(a11)                                                                                  \
                             : "v"(z));                                                                                              \
    }
PEAK(peak_avx2, "avx2,fma", __m256, "vfmadd231ps ")
PEAK(peak_avx512, "avx512f", __m512, "vfmadd231ps ")
PEAK(peak_bf16, "avx512bf16,avx512f", __m512, "vdpbf16ps ")
#define PLAIN_KEEP(v) __asm__ volatile("" : "+x"(v))
#else
#define PLAIN_KEEP(v) __asm__ volatile("" : "+w"(v))
#endif
static void peak_plain(void *arg, int part, int n_parts) {
    (void)arg, (void)part, (void)n_parts;
    typedef float v4 __attribute__((vector_size(16)));
    v4 z = {0}, a0 = z, a1 = z, a2 = z, a3 = z, a4 = z, a5 = z, a6 = z, a7 = z, a8 = z, a9 = z, a10 = z, a11 = z;
    for (int r = 0; r < PEAK_ROUNDS; r++) {
#define STEP(a)        \
    a = a * z + a;      \
    PLAIN_KEEP(a);
        STEP(a0) STEP(a1) STEP(a2) STEP(a3) STEP(a4) STEP(a5) STEP(a6) STEP(a7) STEP(a8) STEP(a9) STEP(a10) STEP(a11)
    }
}

#if defined(__x86_64__)
/* Four tiles of sums: as many as the products use. */
static void peak_amx(void *arg, int part, int n_parts) {
    (void)arg, (void)part, (void)n_parts;
    static const uint8_t config[64] __attribute__((aligned(64))) = {
        [0] = 1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    for (int r = 0; r < PEAK_TILE_ROUNDS; r++)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\ntdpbf16ps %tmm7, %tmm4, %tmm1\n"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\ntdpbf16ps %tmm7, %tmm5, %tmm3\n");
    __asm__ volatile("tilerelease");
}
#endif

/* GFLOP/s of the level's multiply-add on all threads. */
static double peak(void) {
    dg_pool_fn *fn = peak_plain;
    double lanes = 4, rounds = 12.0 * PEAK_ROUNDS;
#if defined(__x86_64__)
    bool bf16 = dg_cpu_level_bf16(b.level) && b.be->ops->act == DG_BF16;
    if (b.level >= DG_CPU_AVX2)
        fn = bf16 && b.level == DG_CPU_AMX ? peak_amx : bf16 ? peak_bf16 : b.level >= DG_CPU_AVX512 ? peak_avx512 : peak_avx2;
    rounds = fn == peak_amx ? 4.0 * PEAK_TILE_ROUNDS : rounds;
    lanes = fn == peak_amx ? 16 * 16 * 32 : fn == peak_bf16 ? 32 : fn == peak_avx512 ? 16 : fn == peak_avx2 ? 8 : 4;
#endif
    double t = clock_now();
    dg_pool_run(b.be->pool, fn, NULL);
    return 2.0 * lanes * rounds * dg_pool_threads(b.be->pool) / (clock_now() - t) * 1e-9;
}

/* GB/s of a plain read on all threads. */
static double bandwidth(void) {
    double t = clock_now();
    dg_memory_read(b.be->pool, b.memory, READ_BYTES, b.read);
    return READ_BYTES / (clock_now() - t) * 1e-9;
}

typedef void run_fn(void *ctx);

static bool wanted(const char *what) {
    char part[96];
    const char *f = b.filter ? b.filter : "";
    while (true) {
        size_t n = strcspn(f, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, f);
        if (strstr(what, part))
            return true;
        if (!f[n])
            return false;
        f += n + 1;
    }
}

/* flops, bytes: of one run. */
static void measure(const char *what, run_fn *fn, void *ctx, double flops, double bytes, bool memory_bound) {
    double t[99], ratio[99], fastest = 0, most = 0;
    fn(ctx);
    for (int i = 0; i < b.repeat; i++) {
        double start = now(), cpu_start = clock_now();
        fn(ctx);
        t[i] = now() - start;
        double cpu = clock_now() - cpu_start;
        double rate = (memory_bound ? bytes : flops) / cpu * 1e-9, limit = memory_bound ? bandwidth() : peak();
        ratio[i] = rate / limit;
        fastest = rate > fastest ? rate : fastest;
        most = limit > most ? limit : most;
    }
    double s = median(t, b.repeat);
    printf("%s,%.4g,ms,%s\n", what, s * 1e3, b.command);
    printf("%s,%.4g,%s,%s\n", what, memory_bound ? bytes / s * 1e-9 : flops / s * 1e-9, memory_bound ? "GB/s" : "GFLOP/s", b.command);
    printf("%s,%.3f,%s,%s\n", what, median(ratio, b.repeat), memory_bound ? "of read bandwidth" : "of multiply-add peak", b.command);
    printf("%s,%.3f,%s,%s\n", what, fastest / most, memory_bound ? "best of best read bandwidth" : "best of best multiply-add peak", b.command);
    fflush(stdout);
}

static uint64_t rng = 1;
static uint32_t next(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 32);
}

static void *need(void *p) {
    if (!p) {
        fprintf(stderr, "bench cpu: no memory\n");
        exit(1);
    }
    return p;
}

/* n rows of k with codes at random and scales near one. */
static uint8_t *weights(enum dg_format fmt, int64_t e, int64_t n, int64_t k) {
    int64_t mat = dg_format_mat_bytes(fmt, n, k), row = dg_format_row_bytes(fmt, k), head = dg_format_traits(fmt)->mat_extra;
    uint8_t *w = need(dg_calloc((size_t)(e * mat + 8), 1));
    const uint16_t one = dg_f32_bf16(0.01f), less = dg_f32_bf16(-0.05f);
    for (int64_t i = 0; i < e * mat; i += 4) {
        uint32_t v = next();
        memcpy(w + i, &v, 4);
    }
    for (int64_t m = 0; m < e; m++) {
        float global = 0.01f;
        if (head)
            memcpy(w + m * mat, &global, 4);
        for (int64_t r = 0; r < n; r++) {
            uint8_t *p = w + m * mat + head + r * row;
            if (fmt == DG_FMT_BF16)
                for (int64_t i = 0; i < k; i++) /* exponents near zero */
                    p[2 * i + 1] = (uint8_t)(0x3b | (p[2 * i + 1] & 0x80));
            else if (fmt == DG_FMT_Q8_ROW)
                memcpy(p, &one, 2);
            else if (fmt == DG_FMT_NVFP4_BLOCK)
                memset(p + k / 2, 0x38, (size_t)(k / 16));
            else
                for (int64_t i = 0, block = dg_format_traits(fmt)->block_bytes; i < row; i += block) {
                    memcpy(p + i, &one, 2);
                    memcpy(p + i + 2, &less, 2);
                }
        }
    }
    return w;
}

static struct dg_plane plane(int rows, int cols, enum dg_dtype t) {
    struct dg_plane p = dg_plane_alloc(b.be, t, rows, cols);
    need(p.data);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        float v = (float)(int32_t)next() * 0x1p-31f;
        if (t == DG_F32)
            ((float *)p.data)[i] = v;
        else
            ((uint16_t *)p.data)[i] = dg_f32_bf16(v);
    }
    return p;
}

struct linear_case {
    struct dg_plane x, y;
    struct dg_mat w;
};

static void run_linear(void *ctx) {
    struct linear_case *c = ctx;
    const struct dg_mat *list = &c->w;
    b.be->ops->linear(b.be, &c->x, &list, 1, DG_EPI_NONE, &c->y);
}

/* Pairs of our product and the yardstick's; without a product, the yardstick alone. Of each turn the second run counts: the first wakes the
 * threads and brings clock and caches to where the other left them. */
static void against(const char *what, enum yard_type type, int m, int n, struct linear_case *c) {
    const char *name = type == YARD_BF16 ? "bf16" : "f32";
    struct yard *y = yard_create(type, m, n, HIDDEN, dg_pool_threads(b.be->pool));
    double ratio[99], t[99];
    if (!y)
        return;
    for (int i = -2; i < b.repeat; i++) {
        int at = i < 0 ? 0 : i;
        yard_run(y);
        t[at] = yard_run(y);
        yard_rest();
        if (!c)
            continue;
        run_linear(c);
        double start = now();
        run_linear(c);
        ratio[at] = t[at] / (now() - start);
    }
    if (c)
        printf("%s,%.3f,of oneDNN %s %s,%s\n", what, median(ratio, b.repeat), name, yard_kernel(y), b.command);
    else
        printf("%s %s,%.4g,GFLOP/s,%s\n", what, yard_kernel(y), 2.0 * m * n * HIDDEN / median(t, b.repeat) * 1e-9, b.command);
    fflush(stdout);
    yard_destroy(y);
}

static void onednn(int n) {
    for (int type = YARD_F32; type <= YARD_BF16; type++) {
        char what[96];
        snprintf(what, sizeof what, "onednn %s %dx%dx%d", type == YARD_BF16 ? "bf16" : "f32", ROWS, n, HIDDEN);
        if (wanted(what))
            against(what, (enum yard_type)type, ROWS, n, NULL);
    }
}

static void linear(enum dg_format fmt, int m, int n, bool memory_bound) {
    char what[96];
    snprintf(what, sizeof what, "linear %s %dx%dx%d", dg_format_traits(fmt)->name, m, n, HIDDEN);
    if (!wanted(what))
        return;
    enum dg_dtype act = b.be->ops->act;
    uint8_t *w = weights(fmt, 1, n, HIDDEN);
    struct linear_case c = {plane(m, HIDDEN, act), plane(m, n, act), {fmt, n, HIDDEN, w, 0}};
    measure(what, run_linear, &c, 2.0 * m * n * HIDDEN, (double)dg_format_mat_bytes(fmt, n, HIDDEN), memory_bound);
    if (!memory_bound)
        against(what, act == DG_BF16 ? YARD_BF16 : YARD_F32, m, n, &c);
    dg_plane_free(b.be, &c.x);
    dg_plane_free(b.be, &c.y);
    dg_free(w);
}

/* One thread against all of them, turn by turn, by the wall clock; the second run of each counts. */
static void scaling(const struct dg_cpu_opts *o, const struct dg_reserve *r, const struct dg_model *model) {
    const char *what = "scaling linear q4_block 256x2816x2816";
    struct dg_backend *all = b.be, *one = NULL;
    struct dg_cpu_opts single = *o;
    double ratio[99];
    single.threads = 1;
    if (!wanted(what) || dg_pool_threads(all->pool) == 1)
        return;
    if (dg_cpu_create(&one, model, &single, NULL) != DG_OK || dg_backend_reserve(one, r, NULL) != DG_OK)
        need(NULL);
    uint8_t *w = weights(DG_FMT_Q4_BLOCK, 1, HIDDEN, HIDDEN);
    struct linear_case c = {plane(ROWS, HIDDEN, all->ops->act), plane(ROWS, HIDDEN, all->ops->act), {DG_FMT_Q4_BLOCK, HIDDEN, HIDDEN, w, 0}};
    for (int i = -1; i < b.repeat; i++) {
        double t[2];
        for (int many = 0; many < 2; many++) {
            b.be = many ? all : one;
            run_linear(&c);
            double start = now();
            run_linear(&c);
            t[many] = now() - start;
        }
        ratio[i < 0 ? 0 : i] = t[0] / t[1];
    }
    printf("%s 1 to %d threads,%.3f,times,%s\n", what, dg_pool_threads(all->pool), median(ratio, b.repeat), b.command);
    dg_plane_free(all, &c.x);
    dg_plane_free(all, &c.y);
    dg_free(w);
    dg_backend_destroy(one);
}

/* What the instructions of decoding cost, memory and products apart: rows that lie in the second cache, a chunk at a time into a panel that lies
 * in the first, on one thread. */
static void decoding(enum dg_format fmt) {
    enum { ROWS_HERE = 32, TIMES = 20, CHUNK = 256, PANEL_ROW = CHUNK + 16 };
    char what[96];
    snprintf(what, sizeof what, "decode %s in cache", dg_format_traits(fmt)->name);
    if (!wanted(what))
        return;
    struct dg_cpu_kernels k;
    dg_cpu_kernels_init(&k, b.level);
    const struct dg_gemm_kind *g = &k.gemm.kind[b.be->ops->act == DG_BF16];
    uint8_t *w = weights(fmt, 1, ROWS_HERE, HIDDEN);
    float *panel = need(dg_calloc(ROWS_HERE * PANEL_ROW, sizeof *panel));
    int64_t row = dg_format_row_bytes(fmt, HIDDEN), head = dg_format_traits(fmt)->mat_extra;
    double t[99];
    for (int i = -1; i < b.repeat; i++) {
        double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
        for (int n = 0; n < TIMES; n++)
            for (int64_t k0 = 0; k0 < HIDDEN; k0 += CHUNK)
                for (int r = 0; r < ROWS_HERE; r++)
                    g->decode[fmt](w + head + r * row, HIDDEN, k0, CHUNK, panel + r * PANEL_ROW);
        if (i >= 0)
            t[i] = read_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    }
    printf("%s,%.3g,ns for 32 weights,%s\n", what, median(t, b.repeat) * 1e9 / ((double)TIMES * ROWS_HERE * HIDDEN / 32), b.command);
    fflush(stdout);
    dg_free(w);
    dg_free(panel);
}

struct expert_case {
    struct dg_plane x, y;
    struct dg_routing route;
    struct dg_stack up, down;
};

static void run_experts(void *ctx) {
    struct expert_case *c = ctx;
    b.be->ops->experts(b.be, &c->x, &c->route, &c->up, &c->down, &c->y);
}

/* down_rows: of the second product, HIDDEN or so few that what is timed is gate and up. */
static void experts(enum dg_format fmt, int m, int down_rows) {
    char what[96];
    snprintf(what, sizeof what, "experts %s %d rows %d of %d%s", dg_format_traits(fmt)->name, m, TOPK, EXPERTS,
             down_rows < HIDDEN ? " gate and up" : "");
    if (!wanted(what))
        return;
    int32_t *id = need(dg_calloc((size_t)(m * TOPK), sizeof *id));
    float *weight = need(dg_calloc((size_t)(m * TOPK), sizeof *weight));
    for (int i = 0; i < m; i++)
        for (int r = 0; r < TOPK; r++) {
            bool taken = true;
            while (taken) {
                id[i * TOPK + r] = (int32_t)(next() % EXPERTS);
                taken = false;
                for (int q = 0; q < r; q++)
                    taken |= id[i * TOPK + q] == id[i * TOPK + r];
            }
            weight[i * TOPK + r] = 0.125f;
        }
    uint8_t *up = weights(fmt, EXPERTS, 2 * MOE, HIDDEN), *down = weights(fmt, EXPERTS, down_rows, MOE);
    struct expert_case c = {plane(m, HIDDEN, b.be->ops->act), plane(m, down_rows, DG_F32), {id, weight, TOPK},
                            {fmt, EXPERTS, 2 * MOE, HIDDEN, up, 0, false}, {fmt, EXPERTS, down_rows, MOE, down, 0, false}};
    double active = m == 1 ? TOPK : EXPERTS;
    measure(what, run_experts, &c, 2.0 * m * TOPK * MOE * (2.0 * HIDDEN + down_rows),
            active * (double)(dg_format_mat_bytes(fmt, 2 * MOE, HIDDEN) + dg_format_mat_bytes(fmt, down_rows, MOE)), m == 1);
    dg_plane_free(b.be, &c.x);
    dg_plane_free(b.be, &c.y);
    dg_free(up);
    dg_free(down);
    dg_free(id);
    dg_free(weight);
}

struct head_case {
    struct dg_plane x, logits;
    struct dg_mat w;
    struct dg_row_stats stats;
};

static void run_head(void *ctx) {
    struct head_case *c = ctx;
    b.be->ops->head(b.be, &c->x, &c->w, 30, 1.25f, &c->logits, &c->stats);
}

static void head(enum dg_format fmt, int m) {
    char what[96];
    snprintf(what, sizeof what, "head %s %dx%dx%d", dg_format_traits(fmt)->name, m, VOCAB, HIDDEN);
    if (!wanted(what))
        return;
    uint8_t *w = weights(fmt, 1, VOCAB, HIDDEN);
    float *s = need(dg_calloc((size_t)m * 5, sizeof *s));
    struct head_case c = {plane(m, HIDDEN, b.be->ops->act), plane(m, VOCAB, DG_F32), {fmt, VOCAB, HIDDEN, w, 0},
                          {s, s + m, s + 2 * m, s + 3 * m, (int32_t *)(s + 4 * m), NULL}};
    int repeat = b.repeat;
    b.repeat = repeat > 3 ? 3 : repeat;
    measure(what, run_head, &c, 2.0 * m * VOCAB * HIDDEN, (double)dg_format_mat_bytes(fmt, VOCAB, HIDDEN), m == 1);
    b.repeat = repeat;
    dg_plane_free(b.be, &c.x);
    dg_plane_free(b.be, &c.logits);
    dg_free(w);
    dg_free(s);
}

int main(int argc, char **argv) {
    struct dg_error err = {0};
    struct dg_cpu_opts o = {.cap = dg_cpu_level_default()};
    enum dg_status st = DG_OK;
    b.repeat = 9;
    snprintf(b.command, sizeof b.command, "make bench");
    for (int i = 1; i < argc && st == DG_OK; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        size_t n = strlen(b.command);
        snprintf(b.command + n, sizeof b.command - n, "%s%s", i == 1 ? " (bench/cpu " : " ", argv[i]);
        if (!strcmp(argv[i], "--cpu")) {
            o.cap = dg_cpu_level_detect();
            st = dg_cpu_level_cap(&o.cap, argv[++i], &err);
        } else if (!strcmp(argv[i], "--planes"))
            o.planes = *argv[++i] == 'b' ? DG_CPU_PLANES_BF16 : DG_CPU_PLANES_F32;
        else if (!strcmp(argv[i], "--threads"))
            o.threads = (int)strtol(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--repeat"))
            b.repeat = (int)strtol(argv[++i], NULL, 10);
        else
            b.filter = argv[i];
        if (argv[i] == v) {
            n = strlen(b.command);
            snprintf(b.command + n, sizeof b.command - n, " %s", v);
        }
    }
    if (argc > 1)
        snprintf(b.command + strlen(b.command), sizeof b.command - strlen(b.command), ")");
    b.repeat = b.repeat < 1 ? 1 : b.repeat > 99 ? 99 : b.repeat;
    static const struct dg_model model = {.cfg = {.vocab = VOCAB, .hidden = HIDDEN, .experts = EXPERTS, .topk = TOPK, .moe = MOE}};
    struct dg_reserve r = {.rows = ROWS, .ctx = 1, .k_max = 4096, .topk = TOPK, .experts = EXPERTS, .moe = MOE, .hidden = HIDDEN};
    if (st != DG_OK || dg_cpu_create(&b.be, &model, &o, &err) != DG_OK || dg_backend_reserve(b.be, &r, &err) != DG_OK) {
        fprintf(stderr, "bench cpu: %s\n", dg_error_text(&err));
        return 1;
    }
    b.level = dg_cpu_backend_level(b.be);
    b.memory = need(dg_calloc(READ_BYTES, 1));
    memset(b.memory, 1, READ_BYTES);
    b.read = dg_memory_best(b.be->pool, b.memory, READ_BYTES, 3);
    double p[9], q[9];
    for (int i = 0; i < 9; i++) {
        p[i] = peak();
        q[i] = bandwidth();
    }
    int threads = dg_pool_threads(b.be->pool);
    printf("cpu %s %d threads multiply-add peak,%.4g,GFLOP/s,%s\n", dg_cpu_level_name(b.level), threads, median(p, 9), b.command);
    printf("cpu %s %d threads read bandwidth (%d streams),%.4g,GB/s,%s\n", dg_cpu_level_name(b.level), threads, b.read->streams,
           median(q, 9), b.command);
    onednn(HIDDEN);
    onednn(4096);
    static const enum dg_format all[] = {DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_Q4_BLOCK, DG_FMT_Q6_BLOCK, DG_FMT_NVFP4_BLOCK};
    for (int f = 0; f < 5; f++)
        linear(all[f], ROWS, HIDDEN, false);
    for (int f = 0; f < 5; f++)
        linear(all[f], ROWS, 4096, false);
    for (int f = 0; f < 5; f++)
        linear(all[f], 1, 65536, true);
    linear(DG_FMT_BF16, 8, 65536, true);
    scaling(&o, &r, &model);
    for (int f = 1; f < 5; f++)
        decoding(all[f]);
    experts(DG_FMT_Q4_BLOCK, ROWS, HIDDEN);
    experts(DG_FMT_Q4_BLOCK, ROWS, 32);
    experts(DG_FMT_Q6_BLOCK, ROWS, HIDDEN);
    experts(DG_FMT_NVFP4_BLOCK, ROWS, HIDDEN);
    head(DG_FMT_BF16, ROWS);
    dg_free(b.memory);
    dg_backend_destroy(b.be);
    return 0;
}
