#include "ops/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define OLDEST 12000 /* the first driver that takes kernels as arguments of up to 4 KB and the fatbins nvcc 12 and later write */

const char *dg_cuda_result_text(const struct dg_cuda_driver *d, dg_cu_result r, char *buf, size_t size) {
    const char *name = NULL, *text = NULL;
    if (d->error_name(r, &name) != 0 || !name)
        name = "unknown CUDA error";
    if (d->error_string(r, &text) != 0 || !text)
        text = "no description";
    snprintf(buf, size, "%s (%d): %s", name, r, text);
    return buf;
}

/* First needed function the library lacks, or NULL. */
static const char *fill(struct dg_cuda_driver *d) {
    const char *missing = NULL;
#define DG_X(needed, name, symbol, params)                        \
    {                                                             \
        void *f = dlsym(d->lib, symbol);                          \
        memcpy(&d->name, &f, sizeof f);                           \
        if ((needed) && !f && !missing)                           \
            missing = symbol;                                     \
    }
    DG_CUDA_DRIVER(DG_X)
#undef DG_X
    return missing;
}

enum dg_status dg_cuda_driver_open(struct dg_cuda_driver *d, struct dg_error *err) {
    memset(d, 0, sizeof *d);
    d->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->lib)
        return DG_FAIL(err, DG_E_BACKEND, "no CUDA driver on this machine (%s)", dlerror());
    const char *missing = fill(d);
    enum dg_status st = DG_OK;
    char text[256];
    dg_cu_result r = 0;
    if (d->version && d->version(&d->version_number) == 0 && d->version_number < OLDEST)
        st = DG_FAIL(err, DG_E_BACKEND, "the CUDA driver is too old: it supports CUDA %d.%d, %d.%d is needed", d->version_number / 1000,
                     d->version_number % 1000 / 10, OLDEST / 1000, OLDEST % 1000 / 10);
    else if (missing)
        st = DG_FAIL(err, DG_E_BACKEND, "the CUDA driver is too old: it has no %s", missing);
    else if ((r = d->init(0)) != 0)
        st = DG_FAIL(err, DG_E_BACKEND, "the CUDA driver does not start: %s", dg_cuda_result_text(d, r, text, sizeof text));
    if (st != DG_OK)
        dg_cuda_driver_close(d);
    return st;
}

void dg_cuda_driver_close(struct dg_cuda_driver *d) {
    if (d->lib)
        dlclose(d->lib);
    memset(d, 0, sizeof *d);
}
