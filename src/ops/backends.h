/* Backends by name. */
#ifndef DG_OPS_BACKENDS_H
#define DG_OPS_BACKENDS_H

#include "ops/ops.h"

struct dg_backend_opts {
    int threads; /* CPU threads, 0 = all this process may use */
    int device;  /* GPU number */
    bool exact;  /* f32 planes whatever the backend would choose */
    uint64_t gpu_memory; /* most bytes of GPU memory to take, 0 = what is free */
};

/* name: "ref" (plain C, the oracle), "cpu", "auto". model is borrowed for the backend's life. Errors: DG_E_ARG for an unknown name,
 * listing the known ones; what the backend's own creation says. */
enum dg_status dg_backend_open(struct dg_backend **out, const char *name, const struct dg_model *model, const struct dg_backend_opts *opts,
                               struct dg_error *err) DG_MUST_CHECK;

#endif
