/* Decoding of weight codes to vectors of sixteen floats, for the files of AVX-512. */
#ifndef DG_OPS_CPU_GEMM_CODES512_H
#define DG_OPS_CPU_GEMM_CODES512_H

#include "core/half.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd_avx512.h"

#if defined(__x86_64__)

/* A block's scale and minimum, both bf16, come as one word from memory: two broadcasts through general registers would take the port that the
 * shuffles need. */
DG_AVX512 static inline void block_scales(const uint8_t *block, __m512 *scale, __m512 *min) {
    int32_t head;
    memcpy(&head, block, sizeof head);
    __m512i both = _mm512_set1_epi32(head);
    *scale = (__m512)_mm512_slli_epi32(both, 16);
    *min = (__m512)_mm512_and_epi32(both, _mm512_set1_epi32(-0x10000));
}

/* The sixteen values of a q4 block. */
DG_AVX512 static inline __m512 q4_table(const uint8_t *block) {
    const __m512 code = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 scale, min;
    block_scales(block, &scale, &min);
    return _mm512_fmadd_ps(scale, code, min);
}

/* The values of a q6 block. Its codes are 24 bytes: the loads begin at the first and at the eighth, so that none reaches past the block; each
 * quarter of a vector picks its 24-bit word. The codes stay where they are in it: a lane's power of two is in its factor. */
DG_AVX512 static inline void q6_block(const uint8_t *block, __m512 *v) {
#define WORD(a) a, a + 1, a + 2, -128, a, a + 1, a + 2, -128, a, a + 1, a + 2, -128, a, a + 1, a + 2, -128
    static const signed char pick[2][64] = {{WORD(0), WORD(3), WORD(6), WORD(9)}, {WORD(4), WORD(7), WORD(10), WORD(13)}};
#undef WORD
    const __m512i code = _mm512_set4_epi32(63 << 18, 63 << 12, 63 << 6, 63);
    const __m512 unit = _mm512_set4_ps(0x1p-18f, 0x1p-12f, 0x1p-6f, 1);
    __m512 scale, min;
    block_scales(block, &scale, &min);
    scale = _mm512_mul_ps(scale, unit);
    for (int i = 0; i < 2; i++) {
        __m512i b = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(block + 4 + 8 * i)));
        b = _mm512_and_epi32(_mm512_shuffle_epi8(b, _mm512_loadu_si512(pick[i])), code);
        v[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(b), min);
    }
}

DG_AVX512 static inline __m512 q8_codes(const int8_t *q) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)q)));
}

/* Sixteen bytes of two codes each as words of the low code and the high code, their fifth bit as in `fifth`, what is above it undefined. */
DG_AVX512 static inline __m512i nibbles_epi16(const uint8_t *codes, __m512i fifth) {
    const __m512i bit = _mm512_set1_epi32(0x100010);
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    b = _mm512_ternarylogic_epi32(b, _mm512_slli_epi32(b, 12), bit, 0x54); /* (b | shifted) & ~bit */
    return _mm512_or_epi32(b, fifth);
}

/* Sixteen values of nvfp4, without the matrix's factor. */
DG_AVX512 static inline __m512 nvfp4_block(const uint8_t *codes, uint8_t scale) {
    const __m512 e2m1 = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m128i b = _mm_loadl_epi64((const __m128i *)codes);
    __m512i index = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)));
    return _mm512_mul_ps(_mm512_permutexvar_ps(index, e2m1), _mm512_set1_ps(dg_gemm_e4m3[scale]));
}

#endif
#endif
