/* Instruction-set levels of the CPU backend: which there are, which this machine has, and their names for --cpu and DGQ_CPU.
 *
 * A level is there only where it brings kernels of its own. On each architecture the levels are ordered, each including those before
 * it; `scalar` is plain C for the architecture's baseline (SSE2, or Armv8-A). */
#ifndef DG_OPS_CPU_LEVEL_H
#define DG_OPS_CPU_LEVEL_H

#include "core/status.h"

enum dg_cpu_level {
    DG_CPU_SCALAR,
    DG_CPU_AVX2,       /* avx2, fma, f16c */
    DG_CPU_AVX512,     /* avx512 f, bw, vl, dq */
    DG_CPU_AVX512BF16, /* avx512_bf16, avx512_vnni */
    DG_CPU_NEON,       /* Armv8-A with fused multiply-add */
    DG_CPU_NEON_BF16,  /* bf16 dot products (Armv8.6-A) */
    DG_CPU_LEVELS
};

/* The strongest level of this machine that the operating system lets programs use. Any thread. */
enum dg_cpu_level dg_cpu_level_detect(void);
/* "scalar", "avx2", "avx512", "avx512bf16", "neon", "neonbf16". Static storage. */
const char *dg_cpu_level_name(enum dg_cpu_level l);
/* Does this machine run it? */
bool dg_cpu_level_here(enum dg_cpu_level l);
/* Lowers *level (the strongest level allowed so far) to the level called `name`; NULL leaves it alone. Errors: DG_E_ARG for an unknown name
 * or a level this machine lacks, with the names of those it has. */
enum dg_status dg_cpu_level_cap(enum dg_cpu_level *level, const char *name, struct dg_error *err) DG_MUST_CHECK;

#endif
