/* Which models this machine has: folders under models/ and snapshots in the Hugging Face cache. */
#ifndef DG_CONVERT_MODELS_H
#define DG_CONVERT_MODELS_H

#include "core/status.h"

struct dg_model_info {
    const char *name; /* what -m takes: a path, or org/name */
    const char *dir;
    char kind[64];    /* "checkpoint", "pack q4", "layered pack q4" */
    uint64_t bytes;   /* of the weight files */
    bool complete;    /* every file is there and whole: headers and sizes were checked, data was not read */
    const char *why;  /* what is missing or wrong, "" when complete */
};

/* Calls see for every model of this kind that is found, also for incomplete ones; what it is given holds during the call. roots: folders
 * whose subfolders are models (may not exist). At most DG_MODELS_MAX are looked at. Nothing here is an error but memory. */
#define DG_MODELS_MAX 1000
enum dg_status dg_models_list(const char *const *roots, int n_roots, void (*see)(void *ctx, const struct dg_model_info *m), void *ctx,
                              struct dg_error *err) DG_MUST_CHECK;

#endif
