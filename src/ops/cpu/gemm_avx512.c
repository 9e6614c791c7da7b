/* Matrix kernels of AVX-512: 6 x 4 accumulators, four vectors of w and one of x, of thirty-two registers. */
#include "ops/cpu/simd_avx512.h"

#include <stdbool.h>

#define GEMM_MR 6

static inline void sum4(float *c, vf a0, vf a1, vf a2, vf a3, bool add) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a0, (__m512)a1), _mm512_unpackhi_ps((__m512)a0, (__m512)a1));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a2, (__m512)a3), _mm512_unpackhi_ps((__m512)a2, (__m512)a3));
    __m512 s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    _mm_storeu_ps(c, add ? _mm_add_ps(_mm_loadu_ps(c), t) : t);
}

#include "ops/cpu/gemm_body.h"
#include "ops/cpu/gemm_codes512.h"

GEMM_INLINE void take_q4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *block = row + (uint64_t)at / 32 * 20;
    __m512 table = q4_table(block);
    __m128i b = _mm_loadu_si128((const __m128i *)(block + 4)), odd = _mm_srli_epi16(b, 4);
    (void)k;
    /* the lookup reads the low four bits of an index */
    v[0] = (vf)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, odd)), table);
    v[1] = (vf)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(b, odd)), table);
}
GEMM_FORMAT(q4, take_q4, value_none, DG_GEMM_BYTES_Q4)

GEMM_INLINE void take_q6(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    __m512 values[2];
    (void)k;
    q6_block(row + (uint64_t)at / 32 * 28, values);
    v[0] = (vf)values[0];
    v[1] = (vf)values[1];
}
GEMM_FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)

GEMM_INLINE void take_q8(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const int8_t *q = (const int8_t *)row + 2 + at;
    (void)k;
    v[0] = (vf)q8_codes(q);
    v[1] = (vf)q8_codes(q + 16);
}
GEMM_FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

GEMM_INLINE void take_nvfp4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *scale = row + (uint64_t)k / 2 + (uint64_t)at / 16;
    v[0] = (vf)nvfp4_block(row + (uint64_t)at / 2, scale[0]);
    v[1] = (vf)nvfp4_block(row + (uint64_t)at / 2 + 8, scale[1]);
}
GEMM_FORMAT(nvfp4, take_nvfp4, value_nvfp4, DG_GEMM_BYTES_NVFP4)

void dg_gemm_init_avx512(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "avx512", 1024);
    struct dg_gemm_kind *g = &k->kind[0];
    GEMM_SET(g, DG_FMT_Q4_BLOCK, q4);
    GEMM_SET(g, DG_FMT_Q6_BLOCK, q6);
    GEMM_SET(g, DG_FMT_Q8_ROW, q8);
    GEMM_SET(g, DG_FMT_NVFP4_BLOCK, nvfp4);
    k->kind[1] = k->kind[0];
}
