/* Backends by name. */
#ifndef DG_OPS_BACKENDS_H
#define DG_OPS_BACKENDS_H

#include "ops/ops.h"

/* done of total bytes of weights are on the device. */
typedef void dg_upload_progress_fn(void *ctx, uint64_t done, uint64_t total);

/* What sessions will take of the backend's memory beside the weights: sets *scratch to what they will reserve and returns the bytes they will
 * allocate. Called while the backend is opened, with its op table and its model's shape. */
typedef size_t dg_beside_fn(void *ctx, const struct dg_backend *be, struct dg_reserve *scratch);

struct dg_backend_opts {
    int threads;           /* CPU backends: as in dg_pool_create */
    int device;            /* CUDA: which one, from 0 */
    bool exact;            /* f32 planes and f32 arithmetic, whatever the backend would choose for speed */
    bool bf16_planes;      /* CPU: bf16 planes at levels too that gain nothing from them; not together with exact */
    const char *cpu[2];    /* CPU: names of the strongest level to use (--cpu, DGQ_CPU); the stricter counts, NULL = no cap */
    const char *cuda_kernels; /* CUDA: auto, portable, simple or a list of groups (DGQ_CUDA_KERNELS); NULL = auto. Checked whatever the name */
    /* CUDA: most bytes of device memory to take, 0 = what is free. Where weights and `beside` (NULL = nothing) are more, experts of some layers
     * stay in host memory and are copied to the device in each pass. */
    size_t gpu_memory;
    dg_beside_fn *beside;
    void *beside_ctx;
    dg_upload_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    struct dg_error *note; /* "auto": why CUDA was not taken, when it was not; may be NULL */
};

/* Opens a backend for a model: "ref" (plain C, the oracle), "cpu", "cuda", or "auto" = CUDA when this machine and this build have it, the
 * CPU otherwise; but a gpu_memory that CUDA refuses is an error, and so is one for cpu or ref.
 * model is borrowed for the backend's life. opts may be NULL. Owner: the caller, dg_backend_destroy.
 * Errors: DG_E_ARG for another name or an unknown level; DG_E_BACKEND and DG_E_NOMEM as the backend says. */
enum dg_status dg_backend_open(struct dg_backend **out, const char *name, const struct dg_model *model, const struct dg_backend_opts *opts,
                               struct dg_error *err) DG_MUST_CHECK;

#endif
