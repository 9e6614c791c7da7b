/* Kernels of the matrix products. */
#ifndef DG_OPS_CPU_GEMM_H
#define DG_OPS_CPU_GEMM_H

#include "ops/cpu/level.h"

struct dg_gemm_kernels {
    const char *name; /* for reports */
};

/* As dg_cpu_kernels_init, for this part of the table. */
void dg_gemm_kernels_init(struct dg_gemm_kernels *k, enum dg_cpu_level level);

#endif
