#include "formats/formats.h"

#include "core/half.h"

#include <string.h>

static uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static void decode_bf16(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    for (int64_t i = 0; i < k; i++)
        dst[i] = dg_bf16_f32(load16(row + 2 * i));
}

static void decode_f16(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    for (int64_t i = 0; i < k; i++)
        dst[i] = dg_f16_f32(load16(row + 2 * i));
}

static void decode_f32(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    memcpy(dst, row, (size_t)k * 4);
}

static void decode_q4(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    for (int64_t b = 0; b < k / 32; b++, row += 20, dst += 32) {
        float scale = dg_bf16_f32(load16(row)), min = dg_bf16_f32(load16(row + 2));
        for (int j = 0; j < 16; j++) {
            dst[2 * j] = scale * (float)(row[4 + j] & 15) + min;
            dst[2 * j + 1] = scale * (float)(row[4 + j] >> 4) + min;
        }
    }
}

static void decode_q6(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    for (int64_t b = 0; b < k / 32; b++, row += 28, dst += 32) {
        float scale = dg_bf16_f32(load16(row)), min = dg_bf16_f32(load16(row + 2));
        for (int w = 0; w < 8; w++) {
            const uint8_t *p = row + 4 + 3 * w;
            uint32_t v = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
            for (int c = 0; c < 4; c++)
                dst[4 * w + c] = scale * (float)(v >> (6 * c) & 63) + min;
        }
    }
}

static void decode_q8(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    (void)mat;
    float scale = dg_bf16_f32(load16(row));
    const int8_t *q = (const int8_t *)row + 2;
    for (int64_t i = 0; i < k; i++)
        dst[i] = scale * (float)q[i];
}

/* E4M3 "fn": bias 7, no infinities, NaN at 0x7f and 0xff. */
static float e4m3(uint8_t b) {
    int exp = b >> 3 & 15, man = b & 7;
    float v;
    if (exp == 15 && man == 7)
        v = dg_bits_f32(0x7fc00000u);
    else if (exp == 0)
        v = (float)man * 0x1p-9f;
    else
        v = dg_bits_f32((uint32_t)(exp + 120) << 23 | (uint32_t)man << 20);
    return b & 0x80 ? -v : v;
}

static void decode_nvfp4(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst) {
    static const float e2m1[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    float global;
    memcpy(&global, mat, 4);
    const uint8_t *scales = row + k / 2;
    for (int64_t b = 0; b < k / 16; b++) {
        float s = e4m3(scales[b]);
        for (int j = 0; j < 8; j++) {
            uint8_t c = row[8 * b + j];
            dst[16 * b + 2 * j] = e2m1[c & 15] * s * global;
            dst[16 * b + 2 * j + 1] = e2m1[c >> 4] * s * global;
        }
    }
}

static const struct dg_format_traits table[DG_FMT_COUNT] = {
    [DG_FMT_BF16] = {"bf16", 1, 2, 0, 0, decode_bf16},
    [DG_FMT_F16] = {"f16", 1, 2, 0, 0, decode_f16},
    [DG_FMT_F32] = {"f32", 1, 4, 0, 0, decode_f32},
    [DG_FMT_Q4_BLOCK] = {"q4_block", 32, 20, 0, 0, decode_q4},
    [DG_FMT_Q6_BLOCK] = {"q6_block", 32, 28, 0, 0, decode_q6},
    [DG_FMT_Q8_ROW] = {"q8_row", 1, 1, 2, 0, decode_q8},
    [DG_FMT_NVFP4_BLOCK] = {"nvfp4_block", 16, 9, 0, 4, decode_nvfp4},
};

const struct dg_format_traits *dg_format_traits(enum dg_format fmt) { return &table[fmt]; }
