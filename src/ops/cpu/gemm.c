#include "ops/cpu/gemm.h"

#include "core/half.h"

#include <math.h>

/* Magnitudes of E4M3 in the order of their codes. */
#define E4M3(V) \
    V(0.0f), V(0.001953125f), V(0.00390625f), V(0.005859375f), V(0.0078125f), V(0.009765625f), V(0.01171875f), \
    V(0.013671875f), V(0.015625f), V(0.017578125f), V(0.01953125f), V(0.021484375f), V(0.0234375f), V(0.025390625f), \
    V(0.02734375f), V(0.029296875f), V(0.03125f), V(0.03515625f), V(0.0390625f), V(0.04296875f), V(0.046875f), \
    V(0.05078125f), V(0.0546875f), V(0.05859375f), V(0.0625f), V(0.0703125f), V(0.078125f), V(0.0859375f), \
    V(0.09375f), V(0.1015625f), V(0.109375f), V(0.1171875f), V(0.125f), V(0.140625f), V(0.15625f), V(0.171875f), \
    V(0.1875f), V(0.203125f), V(0.21875f), V(0.234375f), V(0.25f), V(0.28125f), V(0.3125f), V(0.34375f), V(0.375f), \
    V(0.40625f), V(0.4375f), V(0.46875f), V(0.5f), V(0.5625f), V(0.625f), V(0.6875f), V(0.75f), V(0.8125f), V(0.875f), \
    V(0.9375f), V(1.0f), V(1.125f), V(1.25f), V(1.375f), V(1.5f), V(1.625f), V(1.75f), V(1.875f), V(2.0f), V(2.25f), \
    V(2.5f), V(2.75f), V(3.0f), V(3.25f), V(3.5f), V(3.75f), V(4.0f), V(4.5f), V(5.0f), V(5.5f), V(6.0f), V(6.5f), \
    V(7.0f), V(7.5f), V(8.0f), V(9.0f), V(10.0f), V(11.0f), V(12.0f), V(13.0f), V(14.0f), V(15.0f), V(16.0f), \
    V(18.0f), V(20.0f), V(22.0f), V(24.0f), V(26.0f), V(28.0f), V(30.0f), V(32.0f), V(36.0f), V(40.0f), V(44.0f), \
    V(48.0f), V(52.0f), V(56.0f), V(60.0f), V(64.0f), V(72.0f), V(80.0f), V(88.0f), V(96.0f), V(104.0f), V(112.0f), \
    V(120.0f), V(128.0f), V(144.0f), V(160.0f), V(176.0f), V(192.0f), V(208.0f), V(224.0f), V(240.0f), V(256.0f), \
    V(288.0f), V(320.0f), V(352.0f), V(384.0f), V(416.0f), V(448.0f), V(NAN)
#define PLUS(v) (v)
#define MINUS(v) (-(v))
#define PLUS_TOP(v) (0x1p-25f * (v))
#define MINUS_TOP(v) (-0x1p-25f * (v))
const float dg_gemm_e4m3[256] = {E4M3(PLUS), E4M3(MINUS)};
const float dg_gemm_e4m3_top[256] = {E4M3(PLUS_TOP), E4M3(MINUS_TOP)};

/* A scale 2^(e - 7) (1 + m / 8) times 0.5, 1, 2, 4 and times 1.5, 3, 6. */
#define ONE(e, m) ((e) + 119) << 7 | (m) << 4
#define THREE(e, m) ((m) < 3 ? ((e) + 120) << 7 | (8 + 3 * (m)) << 3 : ((e) + 121) << 7 | (3 * (m) - 8) << 2)
#define CODES(e, m, sign)                                                                                                          \
    sign | 0, sign | (ONE(e, m)), sign | (ONE((e) + 1, m)), sign | THREE(e, m), sign | (ONE((e) + 2, m)), sign | THREE((e) + 1, m), \
        sign | (ONE((e) + 3, m)), sign | THREE((e) + 2, m)
#define SCALE(e, m, s) {CODES(e, m, s), CODES(e, m, (s ^ 0x8000))}
#define EIGHT(e, s) SCALE(e, 0, s), SCALE(e, 1, s), SCALE(e, 2, s), SCALE(e, 3, s), SCALE(e, 4, s), SCALE(e, 5, s), SCALE(e, 6, s), SCALE(e, 7, s)
#define ZERO(s) {s, s, s, s, s, s, s, s, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000, s ^ 0x8000}
#define SMALL(s) ZERO(s), SCALE(-2, 0, s), SCALE(-1, 0, s), SCALE(-1, 4, s), SCALE(0, 0, s), SCALE(0, 2, s), SCALE(0, 4, s), SCALE(0, 6, s)
#define NANS {N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N}
#define N 0x7fc0
#define SCALES(s)                                                                                                                     \
    SMALL(s), EIGHT(1, s), EIGHT(2, s), EIGHT(3, s), EIGHT(4, s), EIGHT(5, s), EIGHT(6, s), EIGHT(7, s), EIGHT(8, s), EIGHT(9, s),     \
        EIGHT(10, s), EIGHT(11, s), EIGHT(12, s), EIGHT(13, s), EIGHT(14, s), SCALE(15, 0, s), SCALE(15, 1, s), SCALE(15, 2, s),       \
        SCALE(15, 3, s), SCALE(15, 4, s), SCALE(15, 5, s), SCALE(15, 6, s), NANS
const uint16_t dg_gemm_nvfp4_bf16[256][16] = {SCALES(0), SCALES(0x8000)};

float dg_gemm_row_factor(enum dg_format fmt, const uint8_t *mat, const uint8_t *row) {
    if (fmt == DG_FMT_Q8_ROW) {
        uint16_t s;
        memcpy(&s, row, sizeof s);
        return dg_bf16_f32(s);
    }
    float f = 1;
    if (fmt == DG_FMT_NVFP4_BLOCK)
        memcpy(&f, mat, sizeof f);
    return f;
}

void dg_gemm_kernels_init(struct dg_gemm_kernels *k, enum dg_cpu_level level) {
    dg_gemm_init_scalar(k);
    if (level == DG_CPU_SCALAR)
        return;
#if defined(__x86_64__)
    dg_gemm_init_avx2(k);
    if (level == DG_CPU_AVX2)
        return;
    dg_gemm_init_avx512(k);
    if (level == DG_CPU_AVX512)
        return;
    dg_gemm_init_avx512bf16(k);
    if (level == DG_CPU_AVX512BF16)
        return;
    dg_gemm_init_amx(k);
#elif defined(__aarch64__)
    dg_gemm_init_neon(k);
    if (level == DG_CPU_NEON)
        return;
    dg_gemm_init_neonbf16(k);
#endif
}
