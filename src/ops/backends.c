#include "ops/backends.h"

#include "ops/ref/ref.h"

#include <string.h>

enum dg_status dg_backend_open(struct dg_backend **out, const char *name, const struct dg_model *model, const struct dg_backend_opts *opts,
                               struct dg_error *err) {
    *out = NULL;
    if (!strcmp(name, "ref") || !strcmp(name, "cpu") || !strcmp(name, "auto"))
        return dg_ref_create(out, model, opts->threads, err);
    return DG_FAIL(err, DG_E_ARG, "unknown backend '%s': one of auto, cpu, ref", name);
}
