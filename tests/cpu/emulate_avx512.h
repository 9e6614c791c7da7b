/* AVX-512 intrinsics for machines without it: what the CPU kernels use, lane by lane, as Intel's reference describes them. Tests compile the
 * kernel files against it (DG_SIMD_HEADER), so that their arithmetic and their addresses are checked wherever AVX2 runs. */
#ifndef DG_TESTS_EMULATE_AVX512_H
#define DG_TESTS_EMULATE_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float emu_f __attribute__((vector_size(64)));
typedef int32_t emu_i __attribute__((vector_size(64)));
typedef int64_t emu_q __attribute__((vector_size(64)));
typedef double emu_d __attribute__((vector_size(64)));
typedef short emu_h __attribute__((vector_size(64)));
#define EMU static inline __attribute__((unused))
#define EMU_LANES(n) for (int i = 0; i < (n); i++)

/* no lane of a wide vector may pass through memory that an aligned move would need */
EMU emu_f emu_loadu_ps(const void *p) {
    emu_f v;
    memcpy(&v, p, sizeof v);
    return v;
}
EMU void emu_storeu_ps(void *p, emu_f v) { memcpy(p, &v, sizeof v); }
EMU emu_q emu_loadu_si512(const void *p) {
    emu_q v;
    memcpy(&v, p, sizeof v);
    return v;
}
EMU void emu_storeu_si512(void *p, emu_q v) { memcpy(p, &v, sizeof v); }
EMU emu_f emu_maskz_loadu_ps(unsigned m, const float *p) {
    emu_f v = {0};
    EMU_LANES(16) if (m >> i & 1) v[i] = p[i];
    return v;
}
EMU void emu_mask_storeu_ps(float *p, unsigned m, emu_f v) { EMU_LANES(16) if (m >> i & 1) p[i] = v[i]; }
EMU emu_f emu_set1_ps(float x) { return (emu_f){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
EMU emu_f emu_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h, float a1, float b1, float c1, float d1, float e1,
                      float f1, float g1, float h1) {
    return (emu_f){a, b, c, d, e, f, g, h, a1, b1, c1, d1, e1, f1, g1, h1};
}
EMU emu_q emu_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int a1, int b1, int c1, int d1, int e1, int f1, int g1, int h1) {
    return (emu_q)(emu_i){a, b, c, d, e, f, g, h, a1, b1, c1, d1, e1, f1, g1, h1};
}
EMU emu_q emu_set1_epi32(int x) { return (emu_q)(emu_i){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
EMU emu_f emu_fmadd_ps(emu_f a, emu_f b, emu_f c) {
    EMU_LANES(16) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
EMU emu_f emu_fmsub_ps(emu_f a, emu_f b, emu_f c) {
    EMU_LANES(16) c[i] = __builtin_fmaf(a[i], b[i], -c[i]);
    return c;
}
EMU emu_f emu_max_ps(emu_f a, emu_f b) {
    EMU_LANES(16) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
EMU emu_f emu_unpack(emu_f a, emu_f b, int from) {
    emu_f v;
    EMU_LANES(16) v[i] = (i & 1 ? b : a)[(i & 12) + from + (i >> 1 & 1)];
    return v;
}
EMU emu_d emu_unpack_pd(emu_d a, emu_d b, int from) {
    emu_d v;
    EMU_LANES(8) v[i] = (i & 1 ? b : a)[(i & 6) + from];
    return v;
}
EMU __m256 emu_half_ps(emu_f v, int half) {
    __m256 h;
    memcpy(&h, (const char *)&v + 32 * half, sizeof h);
    return h;
}
EMU emu_q emu_cvtepu8_epi32(__m128i b) {
    uint8_t s[16];
    emu_i v;
    memcpy(s, &b, sizeof s);
    EMU_LANES(16) v[i] = s[i];
    return (emu_q)v;
}
EMU emu_q emu_cvtepi8_epi32(__m128i b) {
    int8_t s[16];
    emu_i v;
    memcpy(s, &b, sizeof s);
    EMU_LANES(16) v[i] = s[i];
    return (emu_q)v;
}
EMU emu_q emu_cvtepu16_epi32(__m256i b) {
    uint16_t s[16];
    emu_i v;
    memcpy(s, &b, sizeof s);
    EMU_LANES(16) v[i] = s[i];
    return (emu_q)v;
}
EMU __m256i emu_cvtepi32_epi16(emu_q q) {
    emu_i v = (emu_i)q;
    uint16_t d[16];
    __m256i out;
    EMU_LANES(16) d[i] = (uint16_t)v[i];
    memcpy(&out, d, sizeof out);
    return out;
}
EMU emu_f emu_cvtepi32_ps(emu_q q) { return __builtin_convertvector((emu_i)q, emu_f); }
EMU emu_q emu_cvtps_epi32(emu_f v) {
    emu_i r;
    EMU_LANES(16) r[i] = v[i] >= -0x1p31f && v[i] < 0x1p31f ? (int32_t)nearbyintf(v[i]) : INT32_MIN;
    return (emu_q)r;
}
EMU emu_q emu_shift(emu_q q, emu_q n, int left) {
    emu_i v = (emu_i)q, c = (emu_i)n;
    EMU_LANES(16) v[i] = (uint32_t)c[i] > 31 ? 0 : (int32_t)(left ? (uint32_t)v[i] << c[i] : (uint32_t)v[i] >> c[i]);
    return (emu_q)v;
}
EMU emu_q emu_add_epi32(emu_q a, emu_q b) {
    emu_i x = (emu_i)a, y = (emu_i)b;
    EMU_LANES(16) x[i] = (int32_t)((uint32_t)x[i] + (uint32_t)y[i]);
    return (emu_q)x;
}
EMU emu_f emu_permutexvar_ps(emu_q index, emu_f table) {
    emu_i at = (emu_i)index;
    emu_f v;
    EMU_LANES(16) v[i] = table[at[i] & 15];
    return v;
}
EMU emu_q emu_permutexvar_epi16(emu_q index, emu_q table) {
    emu_h at = (emu_h)index, t = (emu_h)table, v;
    EMU_LANES(32) v[i] = t[at[i] & 31];
    return (emu_q)v;
}
EMU emu_q emu_permutexvar_epi64(emu_q index, emu_q v) {
    emu_q r;
    EMU_LANES(8) r[i] = v[index[i] & 7];
    return r;
}
EMU emu_q emu_multishift_epi64_epi8(emu_q bits, emu_q v) {
    uint8_t at[64], d[64];
    memcpy(at, &bits, 64);
    EMU_LANES(64) {
        uint64_t word = (uint64_t)v[i / 8];
        int n = at[i] & 63;
        d[i] = (uint8_t)(n ? word >> n | word << (64 - n) : word);
    }
    memcpy(&v, d, 64);
    return v;
}
EMU emu_q emu_shuffle_epi8(emu_q a, emu_q pick) {
    uint8_t s[64], p[64], d[64];
    emu_q v;
    memcpy(s, &a, 64);
    memcpy(p, &pick, 64);
    EMU_LANES(64) d[i] = p[i] & 0x80 ? 0 : s[(i & 48) + (p[i] & 15)];
    memcpy(&v, d, 64);
    return v;
}
EMU emu_q emu_castsi256_si512(__m256i b) {
    emu_q v = {0};
    memcpy(&v, &b, sizeof b);
    return v;
}
EMU emu_q emu_inserti64x4(emu_q v, __m256i b, int half) {
    memcpy((char *)&v + 32 * half, &b, sizeof b);
    return v;
}
EMU emu_q emu_broadcast_i32x4(__m128i b) {
    emu_q v;
    for (int i = 0; i < 4; i++)
        memcpy((char *)&v + 16 * i, &b, 16);
    return v;
}
EMU unsigned emu_cmp_ps(emu_f a, emu_f b, int how) {
    unsigned m = 0;
    EMU_LANES(16) {
        bool unordered = isnan(a[i]) || isnan(b[i]);
        bool is = how == _CMP_UNORD_Q ? unordered : how == _CMP_NEQ_UQ ? unordered || a[i] < b[i] || a[i] > b[i] : !unordered && a[i] > b[i];
        m |= (unsigned)is << i;
    }
    return m;
}
EMU emu_f emu_maskz_sub_ps(unsigned m, emu_f a, emu_f b) {
    EMU_LANES(16) a[i] = m >> i & 1 ? a[i] - b[i] : 0;
    return a;
}
EMU emu_f emu_roundscale_ps(emu_f v) {
    EMU_LANES(16) v[i] = rintf(v[i]);
    return v;
}
/* a times two to the floor of b, rounded once. */
EMU emu_f emu_scalef_ps(emu_f a, emu_f b) {
    EMU_LANES(16) a[i] = isnan(a[i]) || isnan(b[i]) ? NAN : ldexpf(a[i], b[i] < -4096 ? -4096 : b[i] > 4096 ? 4096 : (int)floorf(b[i]));
    return a;
}
EMU emu_q emu_ternary(emu_q a, emu_q b, emu_q c, int how) {
    emu_q v = {0};
    for (int i = 0; i < 8; i++)
        if (how >> i & 1)
            v |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return v;
}
EMU emu_f emu_shuffle_f32x4(emu_f a, emu_f b, int how) {
    emu_f v;
    EMU_LANES(16) v[i] = (i < 8 ? a : b)[(how >> i / 4 * 2 & 3) * 4 + i % 4];
    return v;
}
EMU unsigned emu_movepi32_mask(emu_q q) {
    emu_i v = (emu_i)q;
    unsigned m = 0;
    EMU_LANES(16) m |= (unsigned)(v[i] < 0) << i;
    return m;
}
EMU emu_q emu_mask_blend_epi32(unsigned m, emu_q a, emu_q b) {
    emu_i x = (emu_i)a, y = (emu_i)b;
    EMU_LANES(16) x[i] = m >> i & 1 ? y[i] : x[i];
    return (emu_q)x;
}
EMU emu_f emu_cvtph_ps(__m256i h) {
    emu_f v;
    __m256 lo = _mm256_cvtph_ps(_mm256_castsi256_si128(h)), hi = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    memcpy(&v, &lo, 32);
    memcpy((char *)&v + 32, &hi, 32);
    return v;
}
EMU __m256i emu_cvtps_ph(emu_f v) {
    return _mm256_set_m128i(_mm256_cvtps_ph(emu_half_ps(v, 1), 0), _mm256_cvtps_ph(emu_half_ps(v, 0), 0));
}

/* Subnormals count as zero in the bf16 instructions, on the way in and on the way out. */
EMU float emu_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
EMU uint16_t emu_to_bf16(float x) {
    uint32_t u;
    x = emu_flush(x);
    memcpy(&u, &x, 4);
    return (uint16_t)(isnan(x) ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
EMU float emu_from_bf16(short h) {
    uint32_t u = (uint32_t)(uint16_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return emu_flush(f);
}
EMU emu_h emu_cvtne2ps_pbh(emu_f high, emu_f low) {
    emu_h v;
    EMU_LANES(32) v[i] = (short)emu_to_bf16(i < 16 ? low[i] : high[i - 16]);
    return v;
}
/* The odd element of each pair is added first, each product and sum rounded once. */
EMU emu_f emu_dpbf16_ps(emu_f acc, emu_h a, emu_h b) {
    EMU_LANES(16)
    for (int j = 1; j >= 0; j--)
        acc[i] = emu_flush(__builtin_fmaf(emu_from_bf16(a[2 * i + j]), emu_from_bf16(b[2 * i + j]), emu_flush(acc[i])));
    return acc;
}

#undef _mm512_setr_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_setr_epi32
#define __m512 emu_f
#define __m512i emu_q
#define __m512d emu_d
#define __m512bh emu_h
#define __mmask16 uint16_t
#define _mm512_loadu_ps emu_loadu_ps
#define _mm512_storeu_ps emu_storeu_ps
#define _mm512_loadu_si512 emu_loadu_si512
#define _mm512_storeu_si512 emu_storeu_si512
#define _mm512_maskz_loadu_ps emu_maskz_loadu_ps
#define _mm512_mask_storeu_ps emu_mask_storeu_ps
#define _mm512_set1_ps emu_set1_ps
#define _mm512_setr_ps emu_setr_ps
#define _mm512_setr_epi32 emu_setr_epi32
#define _mm512_set1_epi32 emu_set1_epi32
#define _mm512_set4_epi32(d, c, b, a) emu_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)
#define _mm512_set4_ps(d, c, b, a) emu_setr_ps(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)
#define _mm512_setzero_ps() emu_set1_ps(0)
#define _mm512_fmadd_ps emu_fmadd_ps
#define _mm512_fmsub_ps emu_fmsub_ps
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_max_ps emu_max_ps
#define _mm512_unpacklo_ps(a, b) emu_unpack(a, b, 0)
#define _mm512_unpackhi_ps(a, b) emu_unpack(a, b, 2)
#define _mm512_unpacklo_pd(a, b) emu_unpack_pd(a, b, 0)
#define _mm512_unpackhi_pd(a, b) emu_unpack_pd(a, b, 1)
#define _mm512_castps_pd(v) ((emu_d)(v))
#define _mm512_castpd_ps(v) ((emu_f)(v))
#define _mm512_castps512_ps256(v) emu_half_ps(v, 0)
#define _mm512_extractf32x8_ps emu_half_ps
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#define _mm512_cvtepi8_epi32 emu_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 emu_cvtepi32_epi16
#define _mm512_cvtepi32_ps emu_cvtepi32_ps
#define _mm512_cvtps_epi32 emu_cvtps_epi32
#define _mm512_slli_epi32(v, n) emu_shift(v, emu_set1_epi32(n), 1)
#define _mm512_srli_epi32(v, n) emu_shift(v, emu_set1_epi32(n), 0)
#define _mm512_srlv_epi32(v, n) emu_shift(v, n, 0)
#undef _mm512_ternarylogic_epi32
#undef _mm512_shuffle_f32x4
#define _mm512_ternarylogic_epi32 emu_ternary
#define _mm512_shuffle_f32x4 emu_shuffle_f32x4
#define _mm512_or_epi32(a, b) ((a) | (b))
#define _mm512_and_epi32(a, b) ((a) & (b))
#define _mm512_add_epi32 emu_add_epi32
#define _mm512_permutexvar_ps emu_permutexvar_ps
#define _mm512_permutexvar_epi16 emu_permutexvar_epi16
#define _mm512_permutexvar_epi64 emu_permutexvar_epi64
#define _mm512_multishift_epi64_epi8 emu_multishift_epi64_epi8
#define _mm512_shuffle_epi8 emu_shuffle_epi8
#define _mm512_broadcast_i32x4 emu_broadcast_i32x4
#define _mm512_castsi256_si512 emu_castsi256_si512
#define _mm512_inserti64x4 emu_inserti64x4
#define _mm512_cmp_ps_mask emu_cmp_ps
#define _mm512_maskz_sub_ps emu_maskz_sub_ps
#define _mm512_roundscale_ps(v, how) emu_roundscale_ps(v)
#define _mm512_scalef_ps emu_scalef_ps
#define _mm512_movepi32_mask emu_movepi32_mask
#define _mm512_mask_blend_epi32 emu_mask_blend_epi32
#define _mm512_cvtph_ps emu_cvtph_ps
#define _mm512_cvtps_ph(v, how) emu_cvtps_ph(v)
#define _mm512_cvtne2ps_pbh emu_cvtne2ps_pbh
#define _mm512_dpbf16_ps emu_dpbf16_ps

#endif
