/* The vector kernels for AVX2 with FMA and F16C. */
#include "ops/cpu/vec.h"

#include "ops/cpu/simd_avx2.h"

#define PANEL_VECS 2
#define SCORE_ROWS 3
#define WEIGH_ROWS 6
#define TABLE dg_vec_avx2
#define TABLE_NAME "avx2"

static inline vf vf_shift(vf z, vf t, vf m) { return _mm256_fmsub_ps(z, t, m); }

static inline float vf_top(vf v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline void vf_sum4(vf a, vf b, vf c, vf d, float *out) {
    vf ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    vf all = _mm256_add_ps((vf)_mm256_unpacklo_pd((__m256d)ab, (__m256d)cd), (vf)_mm256_unpackhi_pd((__m256d)ab, (__m256d)cd));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

static inline unsigned vi_bits(vi m) { return (unsigned)_mm256_movemask_ps((__m256)m); }

static inline vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline void vf_prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T0); }

#include "ops/cpu/vec_kernels.inc"
