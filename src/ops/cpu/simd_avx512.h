/* Vectors of sixteen floats: AVX-512 F, BW, VL, DQ. The names are those of simd_scalar.h.
 *
 * Tests compile the same kernels without the instruction set: DG_SIMD_HEADER then names a header that offers the intrinsics. */
#ifndef DG_OPS_CPU_SIMD_AVX512_H
#define DG_OPS_CPU_SIMD_AVX512_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#ifdef DG_SIMD_HEADER
#include DG_SIMD_HEADER
#else
#include <immintrin.h>
#endif

#define VL 16
typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
#ifdef DG_SIMD_HEADER
#define DG_AVX512
#else
#define DG_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#endif

DG_AVX512 static inline vf vf_set1(float x) { return (vf)_mm512_set1_ps(x); }
DG_AVX512 static inline vf vf_load(const float *p) { return (vf)_mm512_loadu_ps(p); }
DG_AVX512 static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, (__m512)v); }
DG_AVX512 static inline vf vf_load_n(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
DG_AVX512 static inline void vf_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v); }
DG_AVX512 static inline vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
DG_AVX512 static inline vf vf_select(vi cond, vf a, vf b) { return (vf)((cond & (vi)a) | (~cond & (vi)b)); }
DG_AVX512 static inline vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
DG_AVX512 static inline float vf_sum(vf v) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
DG_AVX512 static inline vi vf_round_int(vf v) { return (vi)_mm512_cvtps_epi32((__m512)v); }
DG_AVX512 static inline vf vi_float(vi v) { return (vf)_mm512_cvtepi32_ps((__m512i)v); }

DG_AVX512 static inline vf vf_load_bf16(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
/* not VCVTNEPS2BF16, which flushes subnormals: rounding is the same at every level */
DG_AVX512 static inline void vf_store_bf16(uint16_t *p, vf v) {
    __m512i u = (__m512i)v, one = _mm512_set1_epi32(1);
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_epi32(_mm512_srli_epi32(u, 16), one)));
    __m512i quiet = _mm512_or_epi32(u, _mm512_set1_epi32(0x400000));
    r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q), r, quiet);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
DG_AVX512 static inline vf vf_load_f16(const uint16_t *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
DG_AVX512 static inline void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
#endif
