#include "ops/cpu/kernels.h"

void dg_cpu_kernels_init(struct dg_cpu_kernels *k, enum dg_cpu_level level) {
    *k = (struct dg_cpu_kernels){.level = level};
    dg_gemm_kernels_init(&k->gemm, level);
    dg_vec_kernels_init(&k->vec, level);
#if defined(__x86_64__)
    if (level == DG_CPU_AMX)
        k->att = &dg_att_amx;
#endif
}
