#include "support/page_decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double ieee(uint64_t bits, int exponent_bits, int fraction_bits) {
    int sign = (int)(bits >> (exponent_bits + fraction_bits)) & 1;
    int64_t e = (int64_t)(bits >> fraction_bits) & ((1 << exponent_bits) - 1), m = (int64_t)(bits & (((uint64_t)1 << fraction_bits) - 1));
    int bias = (1 << (exponent_bits - 1)) - 1;
    double v;
    if (e == (1 << exponent_bits) - 1)
        v = m ? (double)NAN : (double)INFINITY;
    else if (e == 0)
        v = ldexp((double)m, 1 - bias - fraction_bits);
    else
        v = ldexp((double)(m + ((int64_t)1 << fraction_bits)), (int)e - bias - fraction_bits);
    return sign ? -v : v;
}

double page_bf16(const uint8_t *p) { return ieee((uint64_t)p[0] | (uint64_t)p[1] << 8, 8, 7); }

static double page_f32(const uint8_t *p) {
    return ieee((uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24, 8, 23);
}

double page_e2m1(int code) {
    static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

double page_e4m3(int code) {
    int e = code >> 3 & 15, m = code & 7;
    double v = (code & 0x7f) == 0x7f ? (double)NAN : e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
    return code & 0x80 ? -v : v;
}

static int64_t row_bytes(const char *kind, const char *dtype, int64_t k) {
    if (strcmp(kind, "q4_block") == 0)
        return k / 32 * 20;
    if (strcmp(kind, "q6_block") == 0)
        return k / 32 * 28;
    if (strcmp(kind, "q8_row") == 0)
        return 2 + k;
    if (strcmp(kind, "nvfp4_block") == 0)
        return k / 2 + k / 16;
    return k * (strcmp(dtype, "F32") == 0 ? 4 : 2);
}

static int64_t before_matrix(const char *kind) { return strcmp(kind, "nvfp4_block") == 0 ? 4 : 0; }

int64_t page_bytes(const char *kind, const char *dtype, int64_t e, int64_t n, int64_t k) {
    return e * (before_matrix(kind) + n * row_bytes(kind, dtype, k));
}

static int nibble(const uint8_t *codes, int64_t j) { return j % 2 ? codes[j / 2] >> 4 : codes[j / 2] & 15; }

double page_value(const char *kind, const char *dtype, const uint8_t *bytes, int64_t n, int64_t k, int64_t mat, int64_t row, int64_t j) {
    const uint8_t *matrix = bytes + mat * page_bytes(kind, dtype, 1, n, k);
    const uint8_t *r = matrix + before_matrix(kind) + row * row_bytes(kind, dtype, k);
    if (strcmp(kind, "q4_block") == 0) {
        const uint8_t *b = r + j / 32 * 20;
        return (double)(float)((double)(float)(page_bf16(b) * nibble(b + 4, j % 32)) + page_bf16(b + 2));
    }
    if (strcmp(kind, "q6_block") == 0) {
        const uint8_t *b = r + j / 32 * 28, *w = b + 4 + j % 32 / 4 * 3;
        int word = w[0] | w[1] << 8 | w[2] << 16, code = word >> (6 * (j % 4)) & 63;
        return (double)(float)((double)(float)(page_bf16(b) * code) + page_bf16(b + 2));
    }
    if (strcmp(kind, "q8_row") == 0) {
        int code = r[2 + j] < 128 ? r[2 + j] : r[2 + j] - 256;
        return (double)(float)(page_bf16(r) * code);
    }
    if (strcmp(kind, "nvfp4_block") == 0)
        return (double)(float)((double)(float)(page_e2m1(nibble(r, j)) * page_e4m3(r[k / 2 + j / 16])) * page_f32(matrix));
    return strcmp(dtype, "F32") == 0 ? page_f32(r + 4 * j) : page_bf16(r + 2 * j);
}
