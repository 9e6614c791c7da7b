/* The yardstick of bench/cpu: oneDNN's matmul on weights packed as it likes, the dense shapes of the 26B model. Built where libdnnl-dev is
 * installed; no part of the engine. Rates are per second of one thread's processor time, as bench/cpu's ratios are: OMP_NUM_THREADS=1 keeps
 * waiting threads out of it. */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS 256
#define K 2816
#define REPEATS 15

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static dnnl_memory_t memory(dnnl_engine_t engine, const dnnl_memory_desc_t *d) {
    dnnl_memory_t m;
    void *p;
    if (dnnl_memory_create(&m, d, engine, DNNL_MEMORY_ALLOCATE) != dnnl_success || dnnl_memory_get_data_handle(m, &p) != dnnl_success)
        exit(1);
    memset(p, 0x3c, dnnl_memory_desc_get_size(d)); /* small positive numbers in f32 and in bf16 */
    return m;
}

/* One product; a type that this processor lacks prints nothing. */
static void measure(dnnl_engine_t engine, dnnl_stream_t stream, const char *name, dnnl_data_type_t type, int n) {
    dnnl_dims_t x_dims = {ROWS, K}, w_dims = {K, n}, y_dims = {ROWS, n};
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t p;
    dnnl_memory_desc_init_by_tag(&x, 2, x_dims, type, dnnl_ab);
    dnnl_memory_desc_init_by_tag(&w, 2, w_dims, type, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&y, 2, y_dims, dnnl_f32, dnnl_ab);
    dnnl_matmul_desc_init(&desc, &x, &w, NULL, &y);
    if (dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL) != dnnl_success)
        return;
    dnnl_primitive_create(&p, pd);
    dnnl_memory_t mx = memory(engine, &x), mw = memory(engine, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)), my = memory(engine, &y);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, mx}, {DNNL_ARG_WEIGHTS, mw}, {DNNL_ARG_DST, my}};
    double t[REPEATS];
    for (int i = -1; i < REPEATS; i++) {
        double start = now();
        dnnl_primitive_execute(p, stream, 3, args);
        dnnl_stream_wait(stream);
        t[i < 0 ? 0 : i] = now() - start;
    }
    qsort(t, REPEATS, sizeof *t, by_value);
    const char *impl = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&impl);
    printf("onednn %s %dx%dx%d %s,%.4g,GFLOP/s,OMP_NUM_THREADS=1 build/bench/onednn\n", name, ROWS, n, K, impl,
           2.0 * ROWS * n * K / t[REPEATS / 2] * 1e-9);
    dnnl_memory_destroy(mx);
    dnnl_memory_destroy(mw);
    dnnl_memory_destroy(my);
    dnnl_primitive_destroy(p);
    dnnl_primitive_desc_destroy(pd);
}

int main(void) {
    setenv("OMP_NUM_THREADS", "1", 1);
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success || dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success)
        return 1;
    static const int widths[] = {2816, 4096};
    for (int i = 0; i < 2; i++) {
        measure(engine, stream, "f32", dnnl_f32, widths[i]);
        measure(engine, stream, "bf16", dnnl_bf16, widths[i]);
    }
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
