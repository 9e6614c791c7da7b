#include "ops/cpu/vec.h"

void dg_vec_kernels_init(struct dg_vec_kernels *k, enum dg_cpu_level level) {
    *k = dg_vec_scalar;
#if defined(__x86_64__)
    if (level >= DG_CPU_AVX2)
        *k = dg_vec_avx2;
    if (level >= DG_CPU_AVX512)
        *k = dg_vec_avx512;
#elif defined(__aarch64__)
    if (level >= DG_CPU_NEON)
        *k = dg_vec_neon;
#endif
}
