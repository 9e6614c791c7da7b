/* Finding the kernels: the images embedded at build time, or what the run-time compiler makes of the embedded sources. */
#include "core/mem.h"
#include "ops/cuda/images.h"
#include "ops/cuda/nvrtc.h"
#include "ops/cuda/state.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *symbol, *name, *file;
    size_t arg_bytes;
    int shared;
} kernel[DGC_K_COUNT] = {
#define K(name, kind, file, threads, shared) [DGC_K_##name] = {"dgc_" #name, #name, #file, sizeof(struct dgc_##kind##_args), shared},
    DGC_KERNELS(K)
#undef K
};

static enum dg_status load_image(struct dg_cuda *cu, const void *image, const char *what, dg_cu_module *m, struct dg_error *err) {
    char text[256];
    if (cu->n_modules == DG_CUDA_MODULES_MAX)
        return DG_FAIL(err, DG_E_INTERNAL, "more than %d kernel images", DG_CUDA_MODULES_MAX);
    dg_cu_result r = cu->last = cu->d.module_load(m, image);
    if (r != 0)
        return DG_FAIL(err, DG_E_BACKEND, "the kernels \"%s\" do not load on %s (compute %d.%d, driver for CUDA %d.%d): %s", what, cu->name,
                       cu->major, cu->minor, cu->d.version_number / 1000, cu->d.version_number % 1000 / 10,
                       dg_cuda_result_text(&cu->d, r, text, sizeof text));
    cu->module[cu->n_modules++] = *m;
    return DG_OK;
}

/* A kernel of a loaded image; one that asks for more shared memory than the device has stays NULL. Its argument record
 * must be as long as the host's: with a stale image it would read past it. */
static enum dg_status find_kernel(struct dg_cuda *cu, int k, dg_cu_module m, struct dg_error *err) {
    char text[256];
    size_t at = 0, bytes = 0;
    if (kernel[k].shared > cu->shared_max)
        return DG_OK;
    dg_cu_result r = cu->d.module_function(&cu->fn[k], m, kernel[k].symbol);
    if (r != 0)
        return DG_FAIL(err, DG_E_BACKEND, "this build's kernels lack \"%s\" for %s: %s", kernel[k].name, cu->name,
                       dg_cuda_result_text(&cu->d, r, text, sizeof text));
    if (cu->d.func_param && cu->d.func_param(cu->fn[k], 0, &at, &bytes) == 0 && bytes != kernel[k].arg_bytes)
        return DG_FAIL(err, DG_E_INTERNAL, "kernel \"%s\" takes %zu bytes of arguments, the program passes %zu; build again with make cuda",
                       kernel[k].name, bytes, kernel[k].arg_bytes);
    if (kernel[k].shared && (r = cu->d.func_set(cu->fn[k], DG_CU_FUNC_MAX_DYNAMIC_SHARED, kernel[k].shared)) != 0)
        return DG_FAIL(err, DG_E_BACKEND, "kernel \"%s\" cannot have %d bytes of shared memory on %s: %s", kernel[k].name, kernel[k].shared,
                       cu->name, dg_cuda_result_text(&cu->d, r, text, sizeof text));
    if (k == DGC_K_top_values) /* of which as many blocks as possible are wanted at once: a wish, whatever comes of it */
        cu->d.func_set(cu->fn[k], DG_CU_FUNC_SHARED_PERCENT, 100);
    return DG_OK;
}

static const struct dg_cuda_blob *find_image(const char *file) {
    for (size_t i = 0; i < dg_cuda_n_images; i++)
        if (strcmp(dg_cuda_images[i].name, file) == 0 || strcmp(dg_cuda_images[i].name, "*") == 0)
            return &dg_cuda_images[i];
    return NULL;
}

/* A file for one target only (its name ends in _sm90a) is left alone on other devices: its kernels stay NULL. */
static bool wanted(const struct dg_cuda *cu, const char *file) {
    size_t n = strlen(file);
    return n < 6 || strcmp(file + n - 6, "_sm90a") != 0 || (cu->major == 9 && cu->minor == 0);
}

/* A build without images, or whose images hold nothing for this device, compiles the sources it carries. */
static enum dg_status load_file(struct dg_cuda *cu, const char *file, dg_cu_module *m, struct dg_error *err) {
    const struct dg_cuda_blob *image = cu->compile ? NULL : find_image(file);
    if (image) {
        struct dg_error why = {0};
        enum dg_status st = load_image(cu, image->data, file, m, &why);
        if (st == DG_OK)
            return DG_OK;
        bool other_device = cu->last == DG_CU_NO_BINARY || cu->last == DG_CU_BAD_PTX_VERSION;
        if (!other_device)
            DG_FAIL(err, st, "%s", dg_error_text(&why));
        dg_error_clear(&why);
        if (!other_device)
            return st;
    }
    void *code = NULL;
    size_t bytes = 0;
    DG_TRY(dg_cuda_compile(file, cu->major, cu->minor, cu->d.version_number, &code, &bytes, err));
    enum dg_status st = load_image(cu, code, file, m, err);
    dg_free(code);
    return st;
}

enum dg_status dg_cuda_load_kernels(struct dg_cuda *cu, struct dg_error *err) {
    for (int k = 0; k < DGC_K_COUNT; k++) {
        dg_cu_module m;
        bool loaded = false;
        for (int j = 0; j < k && !loaded; j++)
            loaded = strcmp(kernel[j].file, kernel[k].file) == 0;
        if (loaded || !wanted(cu, kernel[k].file))
            continue;
        DG_TRY(load_file(cu, kernel[k].file, &m, err));
        for (int j = k; j < DGC_K_COUNT; j++)
            if (strcmp(kernel[j].file, kernel[k].file) == 0)
                DG_TRY(find_kernel(cu, j, m, err));
    }
    return DG_OK;
}
