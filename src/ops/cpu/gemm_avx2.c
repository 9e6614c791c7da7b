/* Matrix kernels of AVX2: 3 x 4 accumulators, three vectors of x and one of w fill the sixteen registers. */
#include "ops/cpu/simd_avx2.h"

#include <stdbool.h>

#define GEMM_MR 3

static inline void sum4(float *c, vf a0, vf a1, vf a2, vf a3, bool add) {
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a0, a1), _mm256_hadd_ps(a2, a3));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    _mm_storeu_ps(c, add ? _mm_add_ps(_mm_loadu_ps(c), t) : t);
}

#include "ops/cpu/gemm_body.h"

/* A block begins with its scale and its minimum, both bf16: the two halves of one word. */
static inline void load_scales(const uint8_t *block, vf *scale, vf *min) {
    int32_t both;
    memcpy(&both, block, sizeof both);
    __m256i v = _mm256_set1_epi32(both);
    *scale = (vf)_mm256_slli_epi32(v, 16);
    *min = (vf)_mm256_and_si256(v, _mm256_set1_epi32((int32_t)0xffff0000));
}

/* Eight 4-bit codes in the order of their bits, which is that of the weights. */
static inline vf codes4(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    __m256i c = _mm256_srlv_epi32(_mm256_set1_epi32(v), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_cvtepi32_ps(_mm256_and_si256(c, _mm256_set1_epi32(15)));
}

GEMM_INLINE void take_q4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *block = row + (uint64_t)at / 32 * 20;
    vf scale, min;
    (void)k;
    load_scales(block, &scale, &min);
    GEMM_UNROLL
    for (int j = 0; j < 4; j++)
        v[j] = vf_fma(scale, codes4(block + 4 + 4 * j), min);
}
GEMM_FORMAT(q4, take_q4, value_none, DG_GEMM_BYTES_Q4)

/* Two 24-bit words of four codes begin at byte `at` of both halves. */
static inline vf codes6(__m256i b, int at) {
    const char a = (char)at, z = (char)0x80;
    const __m256i pick = _mm256_setr_epi8(a, (char)(a + 1), (char)(a + 2), z, a, (char)(a + 1), (char)(a + 2), z, a, (char)(a + 1), (char)(a + 2), z,
                                          a, (char)(a + 1), (char)(a + 2), z, (char)(a + 3), (char)(a + 4), (char)(a + 5), z, (char)(a + 3),
                                          (char)(a + 4), (char)(a + 5), z, (char)(a + 3), (char)(a + 4), (char)(a + 5), z, (char)(a + 3),
                                          (char)(a + 4), (char)(a + 5), z);
    const __m256i shift = _mm256_setr_epi32(0, 6, 12, 18, 0, 6, 12, 18);
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(b, pick), shift), _mm256_set1_epi32(63)));
}

GEMM_INLINE void take_q6(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *block = row + (uint64_t)at / 32 * 28;
    vf scale, min;
    (void)k;
    load_scales(block, &scale, &min);
    /* bytes 0..15 and 8..23 of the codes: no load reaches past the block */
    __m256i head = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(block + 4)));
    __m256i tail = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(block + 12)));
    v[0] = vf_fma(scale, codes6(head, 0), min);
    v[1] = vf_fma(scale, codes6(head, 6), min);
    v[2] = vf_fma(scale, codes6(tail, 4), min);
    v[3] = vf_fma(scale, codes6(tail, 10), min);
}
GEMM_FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)

GEMM_INLINE void take_q8(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    GEMM_UNROLL
    for (int j = 0; j < 4; j++)
        v[j] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row + 2 + at + 8 * j))));
}
GEMM_FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

GEMM_INLINE void take_nvfp4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    /* twice the value, as an integer; the scale is halved in its table, since a broadcast from memory costs no arithmetic port */
    const __m128i e2m1 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), low = _mm_set1_epi8(15);
    const uint8_t *scale = row + (uint64_t)k / 2 + (uint64_t)at / 16;
    vf s0 = vf_set1(dg_gemm_e4m3_half[scale[0]]), s1 = vf_set1(dg_gemm_e4m3_half[scale[1]]);
    __m128i b = _mm_loadu_si128((const __m128i *)(row + (uint64_t)at / 2));
    __m128i even = _mm_shuffle_epi8(e2m1, _mm_and_si128(b, low)), odd = _mm_shuffle_epi8(e2m1, _mm_and_si128(_mm_srli_epi16(b, 4), low));
    __m128i first = _mm_unpacklo_epi8(even, odd), last = _mm_unpackhi_epi8(even, odd);
    v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first)) * s0;
    v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(first, 8))) * s0;
    v[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(last)) * s1;
    v[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(last, 8))) * s1;
}
GEMM_FORMAT(nvfp4, take_nvfp4, value_nvfp4, DG_GEMM_BYTES_NVFP4)

void dg_gemm_init_avx2(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "avx2", 512);
    struct dg_gemm_kind *g = &k->kind[0];
    GEMM_SET(g, DG_FMT_Q4_BLOCK, q4);
    GEMM_SET(g, DG_FMT_Q6_BLOCK, q6);
    GEMM_SET(g, DG_FMT_Q8_ROW, q8);
    GEMM_SET(g, DG_FMT_NVFP4_BLOCK, nvfp4);
    k->kind[1] = k->kind[0];
}
