#include "ops/cpu/level.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#define REQUEST_PERMISSION 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18              /* the state component of the tile registers */
#endif

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif
#endif

static const char *const names[DG_CPU_LEVELS] = {
    [DG_CPU_SCALAR] = "scalar",         [DG_CPU_AVX2] = "avx2", [DG_CPU_AVX512] = "avx512",
    [DG_CPU_AVX512BF16] = "avx512bf16", [DG_CPU_AMX] = "amx",   [DG_CPU_NEON] = "neon",     [DG_CPU_NEON_BF16] = "neonbf16",
};

#if defined(__x86_64__)
/* A process has the leave for good once it has it, and so have its threads; asking again changes nothing. */
static bool tiles_here(void) {
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

enum dg_cpu_level dg_cpu_level_detect(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return DG_CPU_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return DG_CPU_AVX2;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi"))
        return DG_CPU_AVX512;
    return tiles_here() ? DG_CPU_AMX : DG_CPU_AVX512BF16;
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP2) & HWCAP2_BF16 ? DG_CPU_NEON_BF16 : DG_CPU_NEON;
#else
    return DG_CPU_SCALAR;
#endif
}

enum dg_cpu_level dg_cpu_level_prefer(enum dg_cpu_level strongest, bool intel) {
    return intel && strongest == DG_CPU_AVX512BF16 ? DG_CPU_AVX512 : strongest;
}

enum dg_cpu_level dg_cpu_level_default(void) {
    bool intel = false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    intel = __builtin_cpu_is("intel");
#endif
    return dg_cpu_level_prefer(dg_cpu_level_detect(), intel);
}

bool dg_cpu_level_bf16(enum dg_cpu_level l) { return l == DG_CPU_AVX512BF16 || l == DG_CPU_AMX || l == DG_CPU_NEON_BF16; }

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
