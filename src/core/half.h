/* bf16 and IEEE binary16 conversion, bit-exact, round to nearest even. */
#ifndef DG_CORE_HALF_H
#define DG_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float dg_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t dg_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Element i of a file's values, which may lie at any address. */
static inline uint16_t dg_at_u16(const void *p, int64_t i) {
    uint16_t u;
    memcpy(&u, (const uint8_t *)p + 2 * i, 2);
    return u;
}
static inline float dg_at_f32(const void *p, int64_t i) {
    float f;
    memcpy(&f, (const uint8_t *)p + 4 * i, 4);
    return f;
}

static inline float dg_bf16_f32(uint16_t h) { return dg_bits_f32((uint32_t)h << 16); }

/* NaN stays NaN (quiet bit set); overflow rounds to infinity. */
static inline uint16_t dg_f32_bf16(float f) {
    uint32_t u = dg_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* The exponent is rebased by a multiplication, which is exact and normalises subnormals too; no branch, so that loops become vectors. */
static inline float dg_f16_f32(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    float f = dg_bits_f32(u) * 0x1p112f;
    uint32_t special = (uint32_t) - (u >= 0x0f800000u) & 0x7f800000u; /* infinity and NaN: exponent all ones, payload kept */
    return dg_bits_f32(dg_f32_bits(f) | special | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t dg_f32_f16(float f) {
    uint32_t u = dg_f32_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000u) /* normal in binary16 */
        return (uint16_t)(sign | ((a - 0x38000000u + 0xfff + ((a >> 13) & 1)) >> 13));
    /* subnormal: adding 0.5 places the last kept bit at the float's last bit, so the addition rounds for us */
    return (uint16_t)(sign | (dg_f32_bits(dg_bits_f32(a) + 0.5f) - 0x3f000000u));
}

#endif
