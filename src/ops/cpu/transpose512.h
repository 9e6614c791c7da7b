/* Sixteen by sixteen words in sixteen vectors, for the files of AVX-512. */
#ifndef DG_OPS_CPU_TRANSPOSE512_H
#define DG_OPS_CPU_TRANSPOSE512_H

#include "ops/cpu/simd_avx512.h"

#if defined(__x86_64__)

/* What was lane j of vector i becomes lane i of vector j. */
DG_AVX512 static inline __attribute__((always_inline)) void transpose512(__m512 *r) {
    __m512 t[16];
    _Pragma("GCC unroll 16")
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 16")
    for (int i = 0; i < 16; i += 4)
        _Pragma("GCC unroll 16")
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + 2 + j]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    /* quarter q of r[4 i + j] holds rows 4 i to 4 i + 3 of column 4 q + j */
    _Pragma("GCC unroll 16")
    for (int j = 0; j < 4; j++) {
        __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44), b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
        __m512 c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee), d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
        t[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    _Pragma("GCC unroll 16")
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}

#endif
#endif
