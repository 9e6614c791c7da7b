/* Matrix kernels of AVX-512 BF16: pairs of bf16 along K into f32 sums. The f32 path stays that of AVX-512.
 *
 * The instruction takes subnormal inputs as zero and flushes subnormal results, and rounds after each of the two products; the order within a
 * pair is its own. Weights that are not bf16 are rounded to it once, codes with a factor for the row are exact. */
#include "ops/cpu/simd_avx512.h"

#include "ops/cpu/gemm_codes512.h"

#include <stdbool.h>

#define MR 6
#define STEP 32
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE void sum4(float *c, __m512 a0, __m512 a1, __m512 a2, __m512 a3, bool add) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a0, a1), _mm512_unpackhi_ps(a0, a1));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(a2, a3), _mm512_unpackhi_ps(a2, a3));
    __m512 s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    _mm_storeu_ps(c, add ? _mm_add_ps(_mm_loadu_ps(c), t) : t);
}

INLINE __m512bh load(const uint16_t *p) { return (__m512bh)_mm512_loadu_si512(p); }

INLINE void tile(int mr, const uint16_t *x, const uint16_t *const *w, int64_t steps, float *c, int64_t ldc, bool add, const uint8_t *ahead,
                 int64_t lines) {
    __m512 acc[MR][DG_GEMM_NR];
    const uint16_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    UNROLL
    for (int i = 0; i < mr; i++)
        UNROLL
        for (int j = 0; j < DG_GEMM_NR; j++)
            acc[i][j] = _mm512_setzero_ps();
    int64_t before = lines > steps ? lines - steps : 0, stride = (lines - before) * 64 / steps;
    dg_gemm_ask_lines(ahead, before);
    ahead = lines ? ahead + before * 64 : (const uint8_t *)x; /* with nothing to ask for, a line that is there */
    for (int64_t s = 0; s < steps * STEP; s += STEP, x += mr * STEP, ahead += stride) {
        __builtin_prefetch(ahead, 0, 2); /* all at once they would take the places of requests to the second cache, where the panel lies */
        __m512bh v0 = load(w0 + s), v1 = load(w1 + s), v2 = load(w2 + s), v3 = load(w3 + s);
        UNROLL
        for (int i = 0; i < mr; i++) {
            __m512bh xv = load(x + i * STEP);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], xv, v0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], xv, v1);
            acc[i][2] = _mm512_dpbf16_ps(acc[i][2], xv, v2);
            acc[i][3] = _mm512_dpbf16_ps(acc[i][3], xv, v3);
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++)
        sum4(c + i * ldc, acc[i][0], acc[i][1], acc[i][2], acc[i][3], add);
}

#define TILE(n)                                                                                                        \
    static void tile_##n(const void *x, const void *const *w, int64_t steps, float *c, int64_t ldc, bool add,          \
                         const uint8_t *ahead, int64_t lines) {                                                        \
        tile(n, x, (const uint16_t *const *)w, steps, c, ldc, add, ahead, lines);                                      \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

/* Thirty-two values to bf16, the first sixteen first. */
INLINE void put(uint16_t *d, __m512 first, __m512 last) { _mm512_storeu_si512(d, (__m512i)_mm512_cvtne2ps_pbh(last, first)); }

/* What is left of a row that is no whole number of steps, and zeros up to one. */
#define TAIL(d, i, n, value)                                                         \
    for (int64_t end_ = ((n) + STEP - 1) / STEP * STEP; (i) < end_; (i)++)             \
        (d)[i] = (i) < (n) ? (value) : 0

static void pack_f32(const void *row, int64_t n, int64_t stride, void *dst) {
    const float *p = row;
    uint16_t *d = dst;
    for (; n >= STEP; n -= STEP, p += STEP, d += stride)
        put(d, _mm512_loadu_ps(p), _mm512_loadu_ps(p + 16));
    int64_t i = 0;
    if (n)
        TAIL(d, i, n, dg_f32_bf16(dg_at_f32(p, i)));
}

static void pack_bf16(const void *row, int64_t n, int64_t stride, void *dst) {
    const uint16_t *p = row;
    uint16_t *d = dst;
    for (; n >= STEP; n -= STEP, p += STEP, d += stride)
        _mm512_storeu_si512(d, _mm512_loadu_si512(p));
    int64_t i = 0;
    if (n)
        TAIL(d, i, n, dg_at_u16(p, i));
}

/* A format's decoder, from `take`: 32 weights from element `at` on. */
#define DECODE(name, take, value)                                                                                                   \
    static void decode_##name(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {                                    \
        uint16_t *d = dst;                                                                                                          \
        int64_t i = 0;                                                                                                              \
        (void)k;                                                                                                                    \
        for (; i + STEP <= n; i += STEP)                                                                                            \
            _mm512_storeu_si512(d + i, (__m512i)take(row, k, k0 + i));                                                              \
        TAIL(d, i, n, dg_f32_bf16(value(row, k, k0 + i)));                                                                          \
    }

/* Quarters of a vector that holds the first and the last sixteen of thirty-two words by turns, four words each: as x is brought to that order, and
 * sums are brought back. */
static const int64_t by_turns[8] = {0, 4, 1, 5, 2, 6, 3, 7}, in_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

INLINE __m512i moved(__m512i v, const int64_t *order) { return _mm512_permutexvar_epi64(_mm512_loadu_si512(order), v); }

/* The product with one row of x, from `take`: weights of so many bytes each 32, in order or by turns. Where a step is little but loads, those look
 * far ahead by themselves and asking only takes their place. */
#define DOT(name, take, bytes, turns)                                                                                               \
    static void dot_##name(const void *xp, const uint8_t *const *row, int64_t k, int64_t k0, int64_t n, float *c, bool add,         \
                           const uint8_t *ahead) {                                                                                  \
        const uint16_t *x = xp;                                                                                                     \
        __m512 acc[DG_GEMM_NR];                                                                                                     \
        (void)k;                                                                                                                    \
        (void)ahead;                                                                                                                \
        UNROLL                                                                                                                      \
        for (int r = 0; r < DG_GEMM_NR; r++)                                                                                        \
            acc[r] = _mm512_setzero_ps();                                                                                           \
        for (int64_t i = 0; i < n; i += STEP) {                                                                                     \
            __m512bh xv = load(x + i);                                                                                              \
            if (turns)                                                                                                              \
                xv = (__m512bh)moved((__m512i)xv, by_turns);                                                                        \
            if ((bytes) < 64)                                                                                                       \
                dg_gemm_ask(ahead, row[1] - row[0], k0 + i, bytes);                                                                 \
            UNROLL                                                                                                                  \
            for (int r = 0; r < DG_GEMM_NR; r++)                                                                                    \
                acc[r] = _mm512_dpbf16_ps(acc[r], xv, take(row[r], k, k0 + i));                                                     \
        }                                                                                                                           \
        UNROLL                                                                                                                      \
        for (int r = 0; turns && r < DG_GEMM_NR; r++)                                                                               \
            acc[r] = (__m512)moved((__m512i)acc[r], in_order);                                                                      \
        sum4(c, acc[0], acc[1], acc[2], acc[3], add);                                                                               \
    }

#define FORMAT(name, take, value, bytes) \
    DECODE(name, take, value)            \
    DOT(name, take, bytes, false)

/* Thirty-two values to bf16, the first sixteen first. */
INLINE __m512bh both(__m512 first, __m512 last) { return _mm512_cvtne2ps_pbh(last, first); }

INLINE __m512bh take_bf16(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return load((const uint16_t *)(const void *)row + at);
}
static inline float value_bf16(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_bf16_f32(dg_at_u16(row, at));
}
FORMAT(bf16, take_bf16, value_bf16, DG_GEMM_BYTES_BF16)

INLINE __m512bh take_f16(const uint8_t *row, int64_t k, int64_t at) {
    const uint16_t *p = (const uint16_t *)(const void *)row + at;
    (void)k;
    return both((__m512)vf_load_f16(p), (__m512)vf_load_f16(p + 16));
}
static inline float value_f16(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_f16_f32(dg_at_u16(row, at));
}
FORMAT(f16, take_f16, value_f16, DG_GEMM_BYTES_F16)

INLINE __m512bh take_f32(const uint8_t *row, int64_t k, int64_t at) {
    const float *p = (const float *)(const void *)row + at;
    (void)k;
    return both(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16));
}
static inline float value_f32(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_at_f32(row, at);
}
FORMAT(f32, take_f32, value_f32, DG_GEMM_BYTES_F32)

#define SECOND 0x100010 /* the fifth bit of two words: which half of a table of thirty-two an index means */

/* Thirty-two codes of four bits as words, the first and the last sixteen by turns; only the low four bits of a word are the code's own. */
INLINE __m512i nibbles_turns(const uint8_t *codes) {
#define FOUR(a) a, a, (a) + 4, (a) + 4, (a) + 8, (a) + 8, (a) + 12, (a) + 12
    static const uint8_t at[64] = {FOUR(0), FOUR(0), FOUR(16), FOUR(16), FOUR(32), FOUR(32), FOUR(48), FOUR(48)};
#undef FOUR
    return _mm512_multishift_epi64_epi8(_mm512_loadu_si512(at), _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)codes)));
}

INLINE __m512bh take_q4(const uint8_t *row, int64_t k, int64_t at) {
    const uint8_t *block = row + (uint64_t)at / 32 * 20;
    __m512 values = q4_table(block);
    (void)k;
    return (__m512bh)_mm512_permutexvar_epi16(nibbles_epi16(block + 4, _mm512_set1_epi32(0)), (__m512i)both(values, values));
}
static inline float value_none(const uint8_t *row, int64_t k, int64_t at) { /* rows are whole blocks */
    (void)row;
    (void)k;
    (void)at;
    return 0;
}
DECODE(q4, take_q4, value_none)

/* As decode_q4, with one conversion for every two blocks. */
static void decode_q4_pairs(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const __m512i second = _mm512_set1_epi32(SECOND), first = _mm512_set1_epi32(0);
    const uint8_t *block = row + (uint64_t)k0 / 32 * 20;
    uint16_t *d = dst;
    for (; n >= 2 * STEP; n -= 2 * STEP, k0 += 2 * STEP, block += 40, d += 2 * STEP) {
        __m512i values = (__m512i)both(q4_table(block), q4_table(block + 20));
        _mm512_storeu_si512(d, _mm512_permutexvar_epi16(nibbles_epi16(block + 4, first), values));
        _mm512_storeu_si512(d + STEP, _mm512_permutexvar_epi16(nibbles_epi16(block + 24, second), values));
    }
    decode_q4(row, k, k0, n, d);
}

/* A table holds one block's values twice, so that the fifth bit does not matter. */
INLINE __m512bh turns_q4(const uint8_t *row, int64_t k, int64_t at) {
    const uint8_t *block = row + (uint64_t)at / 32 * 20;
    __m512 values = q4_table(block);
    (void)k;
    return (__m512bh)_mm512_permutexvar_epi16(nibbles_turns(block + 4), (__m512i)both(values, values));
}
DOT(q4, turns_q4, DG_GEMM_BYTES_Q4, true)

INLINE __m512bh take_q6(const uint8_t *row, int64_t k, int64_t at) {
    const uint8_t *block = row + (uint64_t)at / 32 * 28;
    __m512 values[2];
    (void)k;
    q6_block(block, values);
    return both(values[0], values[1]);
}
FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)

INLINE __m512bh take_q8(const uint8_t *row, int64_t k, int64_t at) {
    const int8_t *q = (const int8_t *)row + 2 + at;
    (void)k;
    return both(q8_codes(q), q8_codes(q + 16));
}
static inline float value_q8(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return (float)((const int8_t *)row)[2 + at];
}
FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

/* The values that codes have under two scales. */
INLINE __m512i nvfp4_table(const uint8_t *scale) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)dg_gemm_nvfp4_bf16[scale[0]])),
                              _mm256_loadu_si256((const __m256i *)dg_gemm_nvfp4_bf16[scale[1]]), 1);
}

INLINE __m512bh take_nvfp4(const uint8_t *row, int64_t k, int64_t at) {
    const __m512i fifth = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, SECOND, SECOND, SECOND, SECOND, SECOND, SECOND, SECOND, SECOND);
    return (__m512bh)_mm512_permutexvar_epi16(nibbles_epi16(row + (uint64_t)at / 2, fifth), nvfp4_table(row + (uint64_t)k / 2 + (uint64_t)at / 16));
}
INLINE __m512bh turns_nvfp4(const uint8_t *row, int64_t k, int64_t at) {
    const __m512i fifth = _mm512_setr_epi32(0, 0, SECOND, SECOND, 0, 0, SECOND, SECOND, 0, 0, SECOND, SECOND, 0, 0, SECOND, SECOND);
    __m512i code = _mm512_ternarylogic_epi32(nibbles_turns(row + (uint64_t)at / 2), _mm512_set1_epi32(SECOND), fifth, 0xba); /* & ~b | c */
    return (__m512bh)_mm512_permutexvar_epi16(code, nvfp4_table(row + (uint64_t)k / 2 + (uint64_t)at / 16));
}
static inline float value_nvfp4(const uint8_t *row, int64_t k, int64_t at) {
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return e2m1[row[at / 2] >> (at & 1 ? 4 : 0) & 15] * dg_gemm_e4m3[row[k / 2 + at / 16]];
}
DECODE(nvfp4, take_nvfp4, value_nvfp4)
DOT(nvfp4, turns_nvfp4, DG_GEMM_BYTES_NVFP4, true)

void dg_gemm_init_avx512bf16(struct dg_gemm_kernels *k) {
    struct dg_gemm_kind *g = &k->kind[1];
    k->name = "avx512bf16";
    *g = (struct dg_gemm_kind){
        .name = "avx512bf16",
        .mr = MR,
        .step = STEP,
        .kc = 1408,
        .elem = 2,
        .nr = DG_GEMM_NR,
        .cols = 48,
        .group = 1,
        .m_outer = true,
        .raw = DG_FMT_BF16,
        .tile = {tile_1, tile_2, tile_3, tile_4, tile_5, tile_6},
        .pack = {pack_f32, pack_bf16},
        .decode = {[DG_FMT_BF16] = decode_bf16,
                   [DG_FMT_F16] = decode_f16,
                   [DG_FMT_F32] = decode_f32,
                   [DG_FMT_Q4_BLOCK] = decode_q4_pairs,
                   [DG_FMT_Q6_BLOCK] = decode_q6,
                   [DG_FMT_Q8_ROW] = decode_q8,
                   [DG_FMT_NVFP4_BLOCK] = decode_nvfp4},
        .dot = {[DG_FMT_BF16] = dot_bf16,
                [DG_FMT_F16] = dot_f16,
                [DG_FMT_F32] = dot_f32,
                [DG_FMT_Q4_BLOCK] = dot_q4,
                [DG_FMT_Q6_BLOCK] = dot_q6,
                [DG_FMT_Q8_ROW] = dot_q8,
                [DG_FMT_NVFP4_BLOCK] = dot_nvfp4},
    };
}
