/* Matrix kernels of AVX2: 3 x 4 accumulators, three vectors of x and one of w fill the sixteen registers. */
#include "ops/cpu/simd_avx2.h"

#include <stdbool.h>

#define GEMM_MR 3
#define GEMM_TOGETHER 2

static inline void sum4(float *c, vf a0, vf a1, vf a2, vf a3, bool add) {
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a0, a1), _mm256_hadd_ps(a2, a3));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    _mm_storeu_ps(c, add ? _mm_add_ps(_mm_loadu_ps(c), t) : t);
}

/* Of sixteen elements the even ones come first, then the odd ones, in x as in every row of w; what a row has behind its last whole 32 stays as it
 * is. Two codes of a byte, or two weights of a word, then come apart by masks and shifts and need not be woven together again. */
#define GEMM_ORDER

static inline void split(vf a, vf b, vf *v) {
    v[0] = (vf)_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88)), 0xd8);
    v[1] = (vf)_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd)), 0xd8);
}

static inline void take_bf16(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    for (int i = 0; i < 2; i++) {
        __m256i b = _mm256_loadu_si256((const __m256i *)(row + 2 * at + 32 * i));
        v[2 * i] = (vf)_mm256_slli_epi32(b, 16);
        v[2 * i + 1] = (vf)_mm256_and_si256(b, _mm256_set1_epi32((int32_t)0xffff0000));
    }
}

static inline void take_f16(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint16_t *p = (const uint16_t *)(const void *)row + at;
    (void)k;
    split(vf_load_f16(p), vf_load_f16(p + 8), v);
    split(vf_load_f16(p + 16), vf_load_f16(p + 24), v + 2);
}

static inline void take_f32(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const float *p = (const float *)(const void *)row + at;
    (void)k;
    split(vf_load(p), vf_load(p + 8), v);
    split(vf_load(p + 16), vf_load(p + 24), v + 2);
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

GEMM_INLINE void take_q4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *block = row + (uint64_t)at / 32 * 20;
    vf scale, min;
    (void)k;
    load_scales(block, &scale, &min);
    GEMM_UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(block + 4 + 8 * i)));
        v[2 * i] = vf_fma(scale, _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15))), min);
        v[2 * i + 1] = vf_fma(scale, _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4)), min);
    }
}
GEMM_FORMAT(q4, take_q4, value_none, DG_GEMM_BYTES_Q4)

/* Codes of six bits, four to a word of 24, stay where they are in it: a lane's power of two is in its factor. */
GEMM_INLINE void take_q6(const uint8_t *row, int64_t k, int64_t at, vf *v) {
#define WORD(a) a, a + 1, a + 2, -128, a, a + 1, a + 2, -128
    const __m256i first = _mm256_setr_epi8(WORD(0), WORD(3), WORD(6), WORD(9)), last = _mm256_setr_epi8(WORD(4), WORD(7), WORD(10), WORD(13));
#undef WORD
    const __m256i even = _mm256_set1_epi64x(63 | 63ll << 44), odd = _mm256_set1_epi64x(63 << 6 | 63ll << 50);
    const vf even_unit = {1, 0x1p-12f, 1, 0x1p-12f, 1, 0x1p-12f, 1, 0x1p-12f};
    const vf odd_unit = {0x1p-6f, 0x1p-18f, 0x1p-6f, 0x1p-18f, 0x1p-6f, 0x1p-18f, 0x1p-6f, 0x1p-18f};
    const uint8_t *block = row + (uint64_t)at / 32 * 28;
    vf scale, min;
    (void)k;
    load_scales(block, &scale, &min);
    vf even_scale = scale * even_unit, odd_scale = scale * odd_unit;
    GEMM_UNROLL
    for (int i = 0; i < 2; i++) {
        /* bytes 0..15 and 8..23 of the codes: no load reaches past the block */
        __m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(block + 4 + 8 * i)));
        b = _mm256_shuffle_epi8(b, i ? last : first);
        v[2 * i] = vf_fma(even_scale, _mm256_cvtepi32_ps(_mm256_and_si256(b, even)), min);
        v[2 * i + 1] = vf_fma(odd_scale, _mm256_cvtepi32_ps(_mm256_and_si256(b, odd)), min);
    }
}
#undef GEMM_TOGETHER
#define GEMM_TOGETHER 1 /* two at once take 4 % longer here, 4 % less elsewhere */
GEMM_FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)
#undef GEMM_TOGETHER
#define GEMM_TOGETHER 2

GEMM_INLINE void take_q8(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    GEMM_UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + 2 + at + 16 * i)));
        v[2 * i] = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi32(1)));
        v[2 * i + 1] = _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16));
    }
}
GEMM_FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

/* Twice the value is an integer. It is looked up for all 32 codes at once and brought to a lane's highest byte, for the sign; the scale makes up
 * for both. */
GEMM_INLINE void take_nvfp4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
#define TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
    const __m256i twice = _mm256_setr_epi8(TWICE, TWICE), nibble = _mm256_set1_epi64x(4ll << 32);
#undef TWICE
    /* four bytes twice, of either block: for their even codes and for the odd ones */
    const __m256i spread = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 10, 11, 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15, 12, 13, 14,
                                            15);
#define TOP(a) -128, -128, -128, a, -128, -128, -128, a + 1, -128, -128, -128, a + 2, -128, -128, -128, a + 3
    const __m256i top[4] = {_mm256_setr_epi8(TOP(0), TOP(0)), _mm256_setr_epi8(TOP(4), TOP(4)), _mm256_setr_epi8(TOP(8), TOP(8)),
                            _mm256_setr_epi8(TOP(12), TOP(12))};
#undef TOP
    const uint8_t *scale = row + (uint64_t)k / 2 + (uint64_t)at / 16;
    /* a broadcast from memory costs no arithmetic port */
    vf s[2] = {vf_set1(dg_gemm_e4m3_top[scale[0]]), vf_set1(dg_gemm_e4m3_top[scale[1]])};
    __m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(row + (uint64_t)at / 2)));
    b = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(b, spread), nibble), _mm256_set1_epi8(15));
    b = _mm256_shuffle_epi8(twice, b);
    GEMM_UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(b, top[i])) * s[i / 2];
}
GEMM_FORMAT(nvfp4, take_nvfp4, value_nvfp4, DG_GEMM_BYTES_NVFP4)

void dg_gemm_init_avx2(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "avx2", 512);
    struct dg_gemm_kind *g = &k->kind[0];
    g->raw = DG_FMT_COUNT; /* none: no file has this order */
    GEMM_SET(g, DG_FMT_Q4_BLOCK, q4);
    GEMM_SET(g, DG_FMT_Q6_BLOCK, q6);
    GEMM_SET(g, DG_FMT_Q8_ROW, q8);
    GEMM_SET(g, DG_FMT_NVFP4_BLOCK, nvfp4);
    k->kind[1] = k->kind[0];
}
