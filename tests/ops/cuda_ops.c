/* Every op of a backend against the case table: cuda_ops [--backend cuda|ref|cpu] [--f32|--bf16] [--kernels auto|portable|simple|LIST] [--seed N]
 * [--repeat N] [--filter OP] [--small]. Without --f32 or --bf16 the CUDA backend is run with both kinds of planes. */
#include "ops/cuda/state.h"
#include "support/op_cases.h"
#include "support/sample_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void) {
    fputs("usage: cuda_ops [--backend cuda|ref|cpu] [--f32|--bf16] [--kernels auto|portable|simple|LIST] [--seed N] [--repeat N]\n"
          "       [--filter OP] [--small]\n",
          stderr);
    return 2;
}

/* The device's record of temperatures is what the host believes it to be. */
static const char *record_kept(struct dg_backend *be) {
    const struct dg_cuda *cu = dg_cuda_of(be);
    struct dgc_params p;
    if (!cu->params_known)
        return "the host does not know the device's record";
    be->ops->read(be, &p, cu->dev_params, sizeof p);
    return memcmp(&p, &cu->params, sizeof p) == 0 ? NULL : "the device's record is not what the host believes it to be";
}

static int run(const char *backend, bool f32, struct dg_cuda_opts opts, struct op_cases *c, int repeat) {
    struct dg_error err = {0};
    opts.exact_f32 = f32;
    enum dg_status st = strcmp(backend, "cuda") == 0 ? dg_cuda_create(&c->be, op_cases_model(), &opts, &err)
                                                     : dg_backend_open(&c->be, backend, op_cases_model(), NULL, &err);
    c->prepare_experts = strcmp(backend, "cuda") == 0 ? dg_cuda_prepare_experts : NULL;
    if (st != DG_OK) {
        printf("%s\n", dg_error_text(&err));
        dg_error_clear(&err);
        c->failed++;
        return 1;
    }
    bool rounded = c->be->ops->act == DG_BF16 && opts.kernels != DG_CUDA_SIMPLE;
    c->weight_round = rounded ? 0x1p-8 : 0;
    c->prob_round = rounded ? 0x1p-11 : 0;
    printf("# %s, %s planes, seed %llu\n", strcmp(backend, "cuda") == 0 ? dg_cuda_describe(c->be) : backend, f32 ? "f32" : "the backend's",
           (unsigned long long)c->seed);
    bool cuda = strcmp(backend, "cuda") == 0;
    if (cuda)
        dg_cuda_want_inv_t(c->be, 1.25f);
    for (int i = 0; i < repeat; i++, c->seed++) {
        op_cases_run(c);
        sample_cases_run(c, cuda ? record_kept : NULL);
    }
    dg_backend_destroy(c->be);
    return 0;
}

int main(int argc, char **argv) {
    const char *backend = "cuda";
    struct op_cases c = {.seed = 1};
    bool f32 = false, bf16 = false;
    int repeat = 1;
    struct dg_cuda_opts opts = {0};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--f32") == 0)
            f32 = true;
        else if (strcmp(a, "--bf16") == 0)
            bf16 = true;
        else if (strcmp(a, "--small") == 0)
            c.small = true;
        else if (!v)
            return usage();
        else if (strcmp(a, "--backend") == 0)
            backend = argv[++i];
        else if (strcmp(a, "--filter") == 0)
            c.filter = argv[++i];
        else if (strcmp(a, "--seed") == 0)
            c.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(a, "--repeat") == 0)
            repeat = atoi(argv[++i]);
        else if (strcmp(a, "--kernels") == 0 && dg_cuda_parse_kernels(v, &opts))
            i++;
        else
            return usage();
    }
    uint64_t seed = c.seed;
    if ((bf16 || run(backend, true, opts, &c, repeat) == 0) && strcmp(backend, "cuda") == 0 && !f32) {
        c.seed = seed;
        run(backend, false, opts, &c, repeat);
    }
    printf("%d passed, %d failed\n", c.passed, c.failed);
    return c.failed || !c.passed;
}
