/* Vectors of eight floats: AVX2, FMA, F16C. The names are those of simd_scalar.h. */
#ifndef DG_OPS_CPU_SIMD_AVX2_H
#define DG_OPS_CPU_SIMD_AVX2_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define VL 8
typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
#define DG_AVX2 __attribute__((target("avx2,fma,f16c")))

DG_AVX2 static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
DG_AVX2 static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
DG_AVX2 static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
DG_AVX2 static inline __m256i vf_mask_n(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
DG_AVX2 static inline vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, vf_mask_n(n)); }
DG_AVX2 static inline void vf_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, vf_mask_n(n), v); }
DG_AVX2 static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
DG_AVX2 static inline vf vf_select(vi cond, vf a, vf b) { return _mm256_blendv_ps(b, a, (__m256)cond); }
DG_AVX2 static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
DG_AVX2 static inline float vf_sum(vf v) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
DG_AVX2 static inline vi vf_round_int(vf v) { return (vi)_mm256_cvtps_epi32(v); }
DG_AVX2 static inline vf vi_float(vi v) { return _mm256_cvtepi32_ps((__m256i)v); }

DG_AVX2 static inline vf vf_load_bf16(const uint16_t *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
DG_AVX2 static inline void vf_store_bf16(uint16_t *p, vf v) {
    __m256i u = (__m256i)v, one = _mm256_set1_epi32(1);
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(_mm256_srli_epi32(u, 16), one)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    r = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, (__m256i)_mm256_cmp_ps(v, v, _CMP_UNORD_Q)), 16);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(r));
}
DG_AVX2 static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
DG_AVX2 static inline void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
#endif
