/* diffgemma probe-device: what the CPU backend runs on here, and what this machine reaches. */
#include "cli/bench.h"

#include "core/half.h"
#include "core/mem.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/read_rate.h"
#include "ops/cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROWS 256
#define WIDTH 2816 /* of the 26B model */
#define READ_BYTES ((size_t)256 << 20)
#define REPEATS 7

struct probe {
    struct dg_backend *be;
    struct dg_plane x, y;
    struct dg_mat w;
    char *memory;
    const struct dg_memory_pattern *read;
};

static double read_seconds(struct probe *p) {
    double t = dg_now();
    dg_memory_read(p->be->pool, p->memory, READ_BYTES, p->read);
    return dg_now() - t;
}

static double product_seconds(struct probe *p) {
    const struct dg_mat *w = &p->w;
    double t = dg_now();
    p->be->ops->linear(p->be, &p->x, &w, 1, DG_EPI_NONE, &p->y);
    return dg_now() - t;
}

static double median_of(double (*fn)(struct probe *), struct probe *p) {
    double t[REPEATS];
    fn(p);
    for (int i = 0; i < REPEATS; i++)
        t[i] = fn(p);
    return dg_bench_spread(t, REPEATS).ms;
}

static void print_cache(const char *name, int which) {
    long n = sysconf(which);
    if (n > 0)
        printf("%s%s %ld KiB", which == _SC_LEVEL1_DCACHE_SIZE ? "" : ", ", name, n >> 10);
}

static void print_machine(const struct probe *p) {
    char text[256], levels[96] = "";
    for (int l = 0; l < DG_CPU_LEVELS; l++)
        if (dg_cpu_level_here((enum dg_cpu_level)l)) {
            size_t n = strlen(levels);
            snprintf(levels + n, sizeof levels - n, "%s%s", n ? ", " : "", dg_cpu_level_name((enum dg_cpu_level)l));
        }
    dg_cpu_describe(p->be, text, sizeof text);
    bool skipped = dg_cpu_level_default() != dg_cpu_level_detect();
    printf("level      %s (this machine has %s%s)\n", dg_cpu_level_name(dg_cpu_backend_level(p->be)), levels,
           skipped ? "; avx512bf16 only by name, on Intel f32 is faster" : "");
    printf("planes     %s\n", p->be->ops->act == DG_BF16 ? "bf16" : "f32");
    printf("kernels    %s\n", text);
    printf("threads    %d\n", dg_pool_threads(p->be->pool));
    printf("caches     ");
    print_cache("L1", _SC_LEVEL1_DCACHE_SIZE);
    print_cache("L2", _SC_LEVEL2_CACHE_SIZE);
    print_cache("L3", _SC_LEVEL3_CACHE_SIZE);
    printf("\n");
    printf("cuda       %s\n", dg_cuda_built_in() ? "kernels built in" : "kernels compiled at run time, where a driver and libnvrtc are there");
}

static enum dg_status measure(struct probe *p, struct dg_error *err) {
    uint16_t *w = dg_calloc((size_t)WIDTH * WIDTH, sizeof *w);
    p->memory = dg_calloc(READ_BYTES, 1);
    p->x = dg_plane_alloc(p->be, p->be->ops->act, ROWS, WIDTH);
    p->y = dg_plane_alloc(p->be, p->be->ops->act, ROWS, WIDTH);
    p->w = (struct dg_mat){DG_FMT_BF16, WIDTH, WIDTH, (const uint8_t *)w, 0};
    enum dg_status st = w && p->memory && p->x.data && p->y.data ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "not enough memory to measure with");
    if (st == DG_OK) {
        for (size_t i = 0; i < (size_t)WIDTH * WIDTH; i++)
            w[i] = dg_f32_bf16((float)(int)(i % 251) * 0.01f - 1);
        memset(p->memory, 1, READ_BYTES); /* pages nobody wrote are all one */
        p->read = dg_memory_best(p->be->pool, p->memory, READ_BYTES, 2);
        printf("read       %.1f GB/s (%d streams a thread)\n", (double)READ_BYTES / median_of(read_seconds, p) * 1e-9, p->read->streams);
        printf("product    %.1f GFLOP/s (%d x %d x %d, bf16 weights)\n", 2.0 * ROWS * WIDTH * WIDTH / median_of(product_seconds, p) * 1e-9, ROWS,
               WIDTH, WIDTH);
        st = dg_backend_status(p->be, err);
    }
    dg_plane_free(p->be, &p->x);
    dg_plane_free(p->be, &p->y);
    dg_free(p->memory);
    dg_free(w);
    return st;
}

int dg_cmd_probe(int argc, char **argv) {
    const char *cpu = NULL;
    int64_t threads = 0;
    bool quick = false;
    const struct dg_arg args[] = {
        {"cpu", 0, DG_ARG_STR, &cpu, 0, 0, "LEVEL", "strongest instruction set to use"},
        {"threads", 't', DG_ARG_INT, &threads, 0, 256, "N", "CPU threads (default: all)"},
        {"quick", 0, DG_ARG_FLAG, &quick, 0, 0, NULL, "do not measure"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("probe-device"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    static const struct dg_model none = {.cfg = {.vocab = 1, .hidden = WIDTH}};
    const struct dg_reserve r = {.rows = ROWS, .ctx = 1, .k_max = WIDTH, .topk = 1, .experts = 1, .moe = 1, .hidden = WIDTH};
    struct dg_error err = {0};
    struct dg_runtime rt = {0};
    struct probe p = {0};
    enum dg_status st = dg_runtime_flags(&rt, &err);
    struct dg_backend_opts o = {.threads = (int)threads, .cpu = {cpu, rt.flags.cpu}};
    if (st == DG_OK)
        st = dg_backend_open(&p.be, "cpu", &none, &o, &err);
    if (st == DG_OK)
        print_machine(&p);
    if (st == DG_OK && !quick)
        st = dg_backend_reserve(p.be, &r, &err);
    if (st == DG_OK && !quick)
        st = measure(&p, &err);
    dg_backend_destroy(p.be);
    dg_runtime_close(&rt);
    return st == DG_OK ? status : dg_cli_fail("probe-device", &err);
}
