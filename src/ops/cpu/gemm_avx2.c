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

static void decode_q4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    float *d = dst;
    (void)k;
    for (row += k0 / 32 * 20; n > 0; n -= 32, row += 20, d += 32) {
        vf scale, min;
        load_scales(row, &scale, &min);
        for (int i = 0; i < 4; i++)
            vf_store(d + 8 * i, vf_fma(scale, codes4(row + 4 + 4 * i), min));
    }
}

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

static void decode_q6(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    float *d = dst;
    (void)k;
    for (row += k0 / 32 * 28; n > 0; n -= 32, row += 28, d += 32) {
        vf scale, min;
        load_scales(row, &scale, &min);
        /* bytes 0..15 and 8..23 of the codes: no load reaches past the block */
        __m256i head = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(row + 4)));
        __m256i tail = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(row + 12)));
        vf_store(d, vf_fma(scale, codes6(head, 0), min));
        vf_store(d + 8, vf_fma(scale, codes6(head, 6), min));
        vf_store(d + 16, vf_fma(scale, codes6(tail, 4), min));
        vf_store(d + 24, vf_fma(scale, codes6(tail, 10), min));
    }
}

static void decode_q8(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const int8_t *q = (const int8_t *)row + 2 + k0;
    float *d = dst;
    int64_t i = 0;
    (void)k;
    for (; i + 8 <= n; i += 8)
        vf_store(d + i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(q + i)))));
    GEMM_TAIL(d, i, n, (float)q[i]);
}

static void decode_nvfp4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    /* twice the value, as an integer */
    const __m128i e2m1 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), low = _mm_set1_epi8(15);
    const uint8_t *scale = row + k / 2 + k0 / 16;
    float *d = dst;
    for (row += k0 / 2; n > 0; n -= 16, row += 8, d += 16, scale++) {
        vf s = vf_set1(0.5f * dg_gemm_e4m3[*scale]);
        __m128i b = _mm_loadl_epi64((const __m128i *)row);
        b = _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
        b = _mm_shuffle_epi8(e2m1, b);
        vf_store(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)) * s);
        vf_store(d + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))) * s);
    }
}

void dg_gemm_init_avx2(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "avx2", 512);
    struct dg_gemm_kind *g = &k->kind[0];
    g->decode[DG_FMT_Q4_BLOCK] = decode_q4;
    g->decode[DG_FMT_Q6_BLOCK] = decode_q6;
    g->decode[DG_FMT_Q8_ROW] = decode_q8;
    g->decode[DG_FMT_NVFP4_BLOCK] = decode_nvfp4;
    k->kind[1] = k->kind[0];
}
