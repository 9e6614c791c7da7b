#include "ops/cpu/level.h"

#include <stdio.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif
#endif

static const char *const names[DG_CPU_LEVELS] = {
    [DG_CPU_SCALAR] = "scalar",         [DG_CPU_AVX2] = "avx2", [DG_CPU_AVX512] = "avx512",
    [DG_CPU_AVX512BF16] = "avx512bf16", [DG_CPU_NEON] = "neon", [DG_CPU_NEON_BF16] = "neonbf16",
};

enum dg_cpu_level dg_cpu_level_detect(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return DG_CPU_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return DG_CPU_AVX2;
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") ? DG_CPU_AVX512BF16 : DG_CPU_AVX512;
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP2) & HWCAP2_BF16 ? DG_CPU_NEON_BF16 : DG_CPU_NEON;
#else
    return DG_CPU_SCALAR;
#endif
}

const char *dg_cpu_level_name(enum dg_cpu_level l) { return names[l]; }

bool dg_cpu_level_here(enum dg_cpu_level l) {
    enum dg_cpu_level best = dg_cpu_level_detect();
    return l == DG_CPU_SCALAR || (l <= best && (l >= DG_CPU_NEON) == (best >= DG_CPU_NEON));
}

enum dg_status dg_cpu_level_cap(enum dg_cpu_level *level, const char *name, struct dg_error *err) {
    if (!name)
        return DG_OK;
    char have[96] = "";
    for (int l = 0; l < DG_CPU_LEVELS; l++) {
        if (!dg_cpu_level_here((enum dg_cpu_level)l))
            continue;
        if (!strcmp(name, names[l])) {
            if (l < (int)*level)
                *level = (enum dg_cpu_level)l;
            return DG_OK;
        }
        size_t n = strlen(have);
        snprintf(have + n, sizeof have - n, "%s%s", n ? ", " : "", names[l]);
    }
    return DG_FAIL(err, DG_E_ARG, "CPU level \"%.32s\": this machine has %s", name, have);
}
