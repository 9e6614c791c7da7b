/* The table of micro-kernels of a level. Ops reach instruction sets through it only. */
#ifndef DG_OPS_CPU_KERNELS_H
#define DG_OPS_CPU_KERNELS_H

#include "ops/cpu/att_kernels.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/level.h"
#include "ops/cpu/vec.h"

struct dg_cpu_kernels {
    enum dg_cpu_level level;
    struct dg_gemm_kernels gemm; /* products of matrices, epilogues, decoders */
    struct dg_vec_kernels vec;   /* rows: norms, attention, statistics */
    const struct dg_att_kernels *att; /* attention on tile registers; NULL: on the vectors of `vec` */
};

/* Fills k for a level: scalar first, then weakest to strongest, so that a kernel a level lacks is that of the level below. Pure: it
 * reads nothing but its arguments. The files it calls are compiled for their levels, so it runs where the level does. */
void dg_cpu_kernels_init(struct dg_cpu_kernels *k, enum dg_cpu_level level);

#endif
