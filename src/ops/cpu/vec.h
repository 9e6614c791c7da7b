/* Kernels over rows: norms, rotation, attention, statistics, soft embedding. */
#ifndef DG_OPS_CPU_VEC_H
#define DG_OPS_CPU_VEC_H

#include "ops/cpu/level.h"

struct dg_vec_kernels {
    const char *name; /* for reports */
};

/* As dg_cpu_kernels_init, for this part of the table. */
void dg_vec_kernels_init(struct dg_vec_kernels *k, enum dg_cpu_level level);

#endif
