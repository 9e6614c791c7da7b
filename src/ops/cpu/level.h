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
    DG_CPU_AVX512BF16, /* avx512_bf16, avx512_vnni, avx512_vbmi */
    DG_CPU_AMX,        /* tile registers with bf16 products, which the kernel lets this process use */
    DG_CPU_NEON,       /* Armv8-A with fused multiply-add */
    DG_CPU_NEON_BF16,  /* bf16 dot products (Armv8.6-A) */
    DG_CPU_LEVELS
};

/* The strongest level of this machine that the operating system lets programs use. Where there are tile registers the first call asks the
 * kernel for them on behalf of the process; without its leave the level is not there. Any thread. */
enum dg_cpu_level dg_cpu_level_detect(void);
/* The level that is taken where none is named. On Intel's processors VDPBF16PS does fewer multiply-adds a second than f32 arithmetic, so there
 * avx512bf16 is skipped unless it is asked for; everywhere else it is the strongest. */
enum dg_cpu_level dg_cpu_level_default(void);
/* The rule behind it. Pure. */
enum dg_cpu_level dg_cpu_level_prefer(enum dg_cpu_level strongest, bool intel);
/* Has it instructions for products of bf16? There bf16 planes are multiplied as they are, elsewhere as f32. */
bool dg_cpu_level_bf16(enum dg_cpu_level l);
/* "scalar", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16". Static storage. */
const char *dg_cpu_level_name(enum dg_cpu_level l);
/* Does this machine run it? */
bool dg_cpu_level_here(enum dg_cpu_level l);
/* Lowers *level (the strongest level allowed so far) to the level called `name`; NULL leaves it alone. Errors: DG_E_ARG for an unknown name
 * or a level this machine lacks, with the names of those it has. */
enum dg_status dg_cpu_level_cap(enum dg_cpu_level *level, const char *name, struct dg_error *err) DG_MUST_CHECK;

#endif
