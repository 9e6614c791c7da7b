/* Compiling the embedded kernel sources at run time, for binaries built without nvcc. */
#ifndef DG_OPS_CUDA_NVRTC_H
#define DG_OPS_CUDA_NVRTC_H

#include "core/status.h"

/* Device code of one kernel file for compute capability major.minor, from the cache or compiled by NVIDIA's run-time compiler (libnvrtc,
 * opened by name). The cache lies in $XDG_CACHE_HOME/diffgemma or ~/.cache/diffgemma; a file's name is a hash of every source, the options and
 * both versions, and its content is checked, so a stale or damaged file is compiled again. Writing it is best effort.
 * code: dg_free. Errors: DG_E_BACKEND with the compiler's words, or why there is none. */
enum dg_status dg_cuda_compile(const char *file, int major, int minor, int driver_version, void **code, size_t *bytes, struct dg_error *err)
    DG_MUST_CHECK;

#endif
