/* The vector kernels for AVX-512 (F, BW, VL, DQ). */
#include "ops/cpu/vec.h"

#include "ops/cpu/simd_avx512.h"

#define PANEL_VECS 2
#define SCORE_ROWS 6
#define WEIGH_ROWS 12
#ifndef TABLE /* tests compile this file with intrinsics that any CPU runs */
#define TABLE dg_vec_avx512
#endif
#define TABLE_NAME "avx512"

static inline vf vf_shift(vf z, vf t, vf m) { return _mm512_fmsub_ps(z, t, m); }

static inline __m256 halves(vf v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

static inline float vf_top(vf v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline void vf_sum4(vf a, vf b, vf c, vf d, float *out) {
    __m256 x = halves(a), y = halves(b), z = halves(c), w = halves(d);
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(z, w), _mm256_unpackhi_ps(z, w));
    __m256 all = _mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)ab, (__m256d)cd), (__m256)_mm256_unpackhi_pd((__m256d)ab, (__m256d)cd));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

static inline unsigned vi_bits(vi m) { return (unsigned)_mm512_movepi32_mask((__m512i)m); }

static inline vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void vf_prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T0); }

#include "ops/cpu/vec_kernels.inc"
