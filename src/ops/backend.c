#include "core/mem.h"
#include "ops/ops.h"

#include <string.h>

enum dg_status dg_backend_status(struct dg_backend *be, struct dg_error *err) {
    enum dg_status st = be->error.code;
    if (st == DG_OK)
        return DG_OK;
    DG_FAIL(err, st, "%s", dg_error_text(&be->error));
    dg_error_clear(&be->error);
    return st;
}

enum dg_status dg_backend_reserve(struct dg_backend *be, const struct dg_reserve *r, struct dg_error *err) {
    return be->reserve(be, r, err);
}

void dg_backend_destroy(struct dg_backend *be) {
    if (!be)
        return;
    dg_error_clear(&be->error);
    be->destroy(be);
}

void dg_backend_fail(struct dg_backend *be, enum dg_status code, const char *what) {
    if (be->error.code == DG_OK)
        DG_FAIL(&be->error, code, "%s", what);
}

struct dg_plane dg_plane_alloc(struct dg_backend *be, enum dg_dtype dtype, int32_t rows, int32_t cols) {
    size_t bytes = 0;
    struct dg_plane p = {NULL, dtype, rows, cols, cols};
    if (__builtin_mul_overflow((size_t)rows, (size_t)cols, &bytes) || __builtin_mul_overflow(bytes, dg_dtype_bytes(dtype), &bytes))
        dg_backend_fail(be, DG_E_LIMIT, "a plane's size overflows");
    else
        p.data = be->ops->alloc(be, bytes);
    return p;
}

void dg_plane_free(struct dg_backend *be, struct dg_plane *p) {
    if (p->data)
        be->ops->free(be, p->data);
    memset(p, 0, sizeof *p);
}
