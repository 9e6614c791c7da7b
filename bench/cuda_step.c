/* `diffgemma bench` for the CUDA backend at the real shape, with attention to all keys: cuda_step [--ctx N] [--rows N]
 * [--experts q4|nvfp4|bf16] [--kernels LIST] [--spread N] [--f32]. More rows than a canvas: a prefill that ends with them. */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    struct dg_bench_opts o;
    struct dg_error err = {0};
    dg_bench_opts_init(&o, DG_BENCH_STEP);
    o.model.backend = "cuda";
    o.synth = "26b-a4b";
    o.command = "bench/cuda_step";
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--f32")) {
            o.model.exact = true;
            continue;
        }
        if (!strcmp(argv[i], "--ctx"))
            o.ctx = strtol(v, NULL, 10);
        else if (!strcmp(argv[i], "--rows"))
            o.rows = strtol(v, NULL, 10);
        else if (!strcmp(argv[i], "--spread"))
            o.spread = strtol(v, NULL, 10);
        else if (!strcmp(argv[i], "--experts"))
            o.experts = v;
        else if (!strcmp(argv[i], "--kernels"))
            o.model.cuda_kernels = v;
        else
            return DG_EXIT_USAGE;
        i++;
    }
    if (o.rows > 256) {
        o.kind = DG_BENCH_PREFILL;
        o.tokens = o.ctx + o.rows;
    }
    setenv("DGQ_ATTN_TOPK", "0", 1);
    return dg_bench(&o, &err) == DG_OK ? 0 : dg_cli_fail("cuda_step", &err);
}
