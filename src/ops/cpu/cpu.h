/* The CPU backend: every op on SIMD kernels of the machine's level, split over threads by output rows.
 *
 * Planes are f32 (the exact path) or bf16. Results depend on the level and the plane type, never on the number of threads, on how many
 * rows go together, or on timing. docs/cpu.md says how. */
#ifndef DG_OPS_CPU_CPU_H
#define DG_OPS_CPU_CPU_H

#include "ops/cpu/level.h"
#include "ops/ops.h"

enum dg_cpu_planes {
    DG_CPU_PLANES_AUTO, /* bf16 at levels with bf16 arithmetic, f32 elsewhere: there bf16 planes would gain nothing */
    DG_CPU_PLANES_F32,
    DG_CPU_PLANES_BF16
};

struct dg_cpu_opts {
    int threads;            /* as in dg_pool_create */
    enum dg_cpu_level cap;  /* strongest level to use; one this machine lacks is not checked for */
    enum dg_cpu_planes planes;
};

/* model is borrowed for the backend's life. Owner: the caller, dg_backend_destroy. Errors: DG_E_ARG, DG_E_NOMEM. */
enum dg_status dg_cpu_create(struct dg_backend **out, const struct dg_model *model, const struct dg_cpu_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;
/* The level that a backend of dg_cpu_create runs on. */
enum dg_cpu_level dg_cpu_backend_level(const struct dg_backend *be);
/* The kernels it chose, in one line of at most n bytes. */
void dg_cpu_describe(const struct dg_backend *be, char *text, size_t n);

#endif
