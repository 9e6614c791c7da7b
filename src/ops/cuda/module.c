/* Finding the kernels: the images embedded at build time. */
#include "ops/cuda/images.h"
#include "ops/cuda/state.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *symbol, *name;
    size_t arg_bytes;
} kernel[DGC_K_COUNT] = {
#define K(name, threads) [DGC_K_##name] = {"dgc_" #name, #name, sizeof(struct dgc_##name##_args)},
    DGC_KERNELS(K)
#undef K
};

static enum dg_status load_image(struct dg_cuda *cu, const void *image, const char *what, struct dg_error *err) {
    char text[256];
    if (cu->n_modules == DG_CUDA_MODULES_MAX)
        return DG_FAIL(err, DG_E_INTERNAL, "more than %d kernel images", DG_CUDA_MODULES_MAX);
    dg_cu_result r = cu->d.module_load(&cu->module[cu->n_modules], image);
    if (r != 0)
        return DG_FAIL(err, DG_E_BACKEND, "the kernels \"%s\" do not load on %s (compute %d.%d, driver for CUDA %d.%d): %s", what, cu->name,
                       cu->major, cu->minor, cu->d.version_number / 1000, cu->d.version_number % 1000 / 10,
                       dg_cuda_result_text(&cu->d, r, text, sizeof text));
    cu->n_modules++;
    return DG_OK;
}

/* The image's argument record must be as long as the host's: a stale image would read past it. */
static enum dg_status find_kernels(struct dg_cuda *cu, struct dg_error *err) {
    for (int k = 0; k < DGC_K_COUNT; k++) {
        for (int m = 0; m < cu->n_modules && !cu->fn[k]; m++)
            if (cu->d.module_function(&cu->fn[k], cu->module[m], kernel[k].symbol) != 0)
                cu->fn[k] = NULL;
        if (!cu->fn[k])
            return DG_FAIL(err, DG_E_BACKEND, "this build's kernels for %s lack \"%s\"; build again with make cuda", cu->name, kernel[k].name);
        size_t at = 0, bytes = 0;
        if (cu->d.func_param && cu->d.func_param(cu->fn[k], 0, &at, &bytes) == 0 && bytes != kernel[k].arg_bytes)
            return DG_FAIL(err, DG_E_INTERNAL, "kernel \"%s\" takes %zu bytes of arguments, the program passes %zu; build again with make cuda",
                           kernel[k].name, bytes, kernel[k].arg_bytes);
    }
    return DG_OK;
}

enum dg_status dg_cuda_load_kernels(struct dg_cuda *cu, struct dg_error *err) {
    if (dg_cuda_n_images == 0)
        return DG_FAIL(err, DG_E_BACKEND, "this binary was built without CUDA kernels; build it with make cuda where nvcc is installed");
    for (size_t i = 0; i < dg_cuda_n_images; i++)
        DG_TRY(load_image(cu, dg_cuda_images[i].data, dg_cuda_images[i].name, err));
    return find_kernels(cu, err);
}
