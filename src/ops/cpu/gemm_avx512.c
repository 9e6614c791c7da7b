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

static void decode_q4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    float *d = dst;
    (void)k;
    for (row += k0 / 32 * 20; n > 0; n -= 32, row += 20, d += 32) {
        __m512 table = q4_table(row);
        __m128i b = _mm_loadu_si128((const __m128i *)(row + 4)), odd = _mm_srli_epi16(b, 4);
        /* the lookup reads the low four bits of an index */
        _mm512_storeu_ps(d, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, odd)), table));
        _mm512_storeu_ps(d + 16, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(b, odd)), table));
    }
}

static void decode_q6(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    float *d = dst;
    (void)k;
    for (row += k0 / 32 * 28; n > 0; n -= 32, row += 28, d += 32) {
        _mm512_storeu_ps(d, q6_half(row, 0));
        _mm512_storeu_ps(d + 16, q6_half(row, 1));
    }
}

static void decode_q8(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const int8_t *q = (const int8_t *)row + 2 + k0;
    float *d = dst;
    int64_t i = 0;
    (void)k;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(d + i, q8_codes(q + i));
    GEMM_TAIL(d, i, n, (float)q[i]);
}

static void decode_nvfp4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const uint8_t *scale = row + k / 2 + k0 / 16;
    float *d = dst;
    for (row += k0 / 2; n > 0; n -= 16, row += 8, d += 16, scale++)
        _mm512_storeu_ps(d, nvfp4_block(row, *scale));
}

void dg_gemm_init_avx512(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "avx512", 1024);
    struct dg_gemm_kind *g = &k->kind[0];
    g->decode[DG_FMT_Q4_BLOCK] = decode_q4;
    g->decode[DG_FMT_Q6_BLOCK] = decode_q6;
    g->decode[DG_FMT_Q8_ROW] = decode_q8;
    g->decode[DG_FMT_NVFP4_BLOCK] = decode_nvfp4;
    k->kind[1] = k->kind[0];
}
