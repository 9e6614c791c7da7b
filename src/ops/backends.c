#include "ops/backends.h"

#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"

#include <string.h>

static enum dg_status open_cuda(struct dg_backend **out, const struct dg_model *model, const struct dg_backend_opts *o, struct dg_error *err) {
    struct dg_cuda_opts c = {.device = o->device,
                             .exact_f32 = o->exact,
                             .gpu_memory = o->gpu_memory,
                             .beside = o->beside,
                             .beside_ctx = o->beside_ctx,
                             .progress = o->progress,
                             .progress_ctx = o->progress_ctx};
    DG_TRY(dg_cuda_choose_kernels(o->cuda_kernels, &c, err));
    return dg_cuda_create(out, model, &c, err);
}

/* The strongest level to use. */
static enum dg_status cpu_cap(const struct dg_backend_opts *o, enum dg_cpu_level *cap, struct dg_error *err) {
    *cap = o->cpu[0] || o->cpu[1] ? dg_cpu_level_detect() : dg_cpu_level_default();
    for (int i = 0; i < 2; i++)
        DG_TRY(dg_cpu_level_cap(cap, o->cpu[i], err));
    return DG_OK;
}

static enum dg_status open_cpu(struct dg_backend **out, const struct dg_model *model, const struct dg_backend_opts *o, enum dg_cpu_level cap,
                               struct dg_error *err) {
    struct dg_cpu_opts c = {.threads = o->threads,
                            .cap = cap,
                            .planes = o->exact ? DG_CPU_PLANES_F32 : o->bf16_planes ? DG_CPU_PLANES_BF16 : DG_CPU_PLANES_AUTO};
    return dg_cpu_create(out, model, &c, err);
}

enum dg_status dg_backend_open(struct dg_backend **out, const char *name, const struct dg_model *model, const struct dg_backend_opts *opts,
                               struct dg_error *err) {
    static const struct dg_backend_opts none;
    const struct dg_backend_opts *o = opts ? opts : &none;
    struct dg_cuda_opts checked;
    enum dg_cpu_level cap;
    *out = NULL;
    DG_TRY(dg_cuda_choose_kernels(o->cuda_kernels, &checked, err));
    DG_TRY(cpu_cap(o, &cap, err)); /* a wrong name is told whichever backend it will be */
    if (strcmp(name, "cuda") == 0)
        return open_cuda(out, model, o, err);
    if (strcmp(name, "auto") == 0) {
        struct dg_error why = {0};
        enum dg_status st = open_cuda(out, model, o, &why);
        if (st == DG_OK)
            return DG_OK;
        if (st == DG_E_NOMEM && o->gpu_memory) {
            DG_FAIL(err, st, "%s", dg_error_text(&why));
            dg_error_clear(&why);
            return st;
        }
        if (o->note)
            DG_FAIL(o->note, st, "%s", dg_error_text(&why));
        dg_error_clear(&why);
        return open_cpu(out, model, o, cap, err);
    }
    bool cpu = strcmp(name, "cpu") == 0, ref = strcmp(name, "ref") == 0;
    if ((cpu || ref) && o->gpu_memory)
        return DG_FAIL(err, DG_E_ARG, "the backend %s has no GPU memory to limit: leave that out, or take the backend cuda", name);
    if (cpu)
        return open_cpu(out, model, o, cap, err);
    if (ref)
        return dg_ref_create(out, model, o->threads, err);
    return DG_FAIL(err, DG_E_ARG, "no backend is called \"%s\"; there are auto, cpu, cuda and ref", name);
}
