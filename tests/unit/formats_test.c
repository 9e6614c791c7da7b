/* Decoding of every weight format against values worked out by hand or by a second, plainer rule. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/half.h"
#include "formats/formats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void expect(const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (dg_f32_bits(got[i]) != dg_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("value %zu is %a, must be %a", i, (double)got[i], (double)want[i]);
}

static void decode(enum dg_format fmt, const void *row, int64_t k, float *dst) {
    dg_format_traits(fmt)->decode_row(row, row, k, dst);
}

/* All 65536 patterns, from an odd address: safetensors promises no alignment. */
static void raw_types(void **state) {
    (void)state;
    enum { N = 65536 };
    uint8_t *bytes = malloc(2 * N + 1);
    float *got = malloc(N * sizeof *got), *want = malloc(N * sizeof *want);
    assert_true(bytes && got && want);
    for (int i = 0; i < N; i++) {
        bytes[1 + 2 * i] = (uint8_t)i;
        bytes[2 + 2 * i] = (uint8_t)(i >> 8);
        int s = i >> 15, e = i >> 7 & 255, m = i & 127;
        double v = e == 255 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(128 + m, e - 134) : ldexp(m, -133);
        want[i] = (float)(s ? -v : v);
    }
    decode(DG_FMT_BF16, bytes + 1, N, got);
    expect(got, want, N);
    for (int i = 0; i < N; i++) {
        int s = i >> 15, e = i >> 10 & 31, m = i & 1023;
        double v = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        want[i] = (float)(s ? -v : v);
    }
    decode(DG_FMT_F16, bytes + 1, N, got);
    expect(got, want, N);
    static const float f[5] = {1.5f, -0.0f, 3.4e38f, 1e-45f, -2.0f};
    memcpy(bytes + 1, f, sizeof f);
    decode(DG_FMT_F32, bytes + 1, 5, got);
    expect(got, f, 5);
    free(bytes);
    free(got);
    free(want);
}

static void put16(uint8_t *p, float v) {
    uint16_t h = dg_f32_bf16(v);
    memcpy(p, &h, 2);
}

static void q4_blocks(void **state) {
    (void)state;
    uint8_t row[40];
    float got[64], want[64];
    for (int b = 0; b < 2; b++) {
        float scale = b ? -0.5f : 0.25f, min = b ? 3.0f : -1.75f;
        put16(row + 20 * b, scale);
        put16(row + 20 * b + 2, min);
        for (int j = 0; j < 32; j++) {
            int q = (j * 7 + b) % 16;
            uint8_t *p = row + 20 * b + 4 + j / 2;
            *p = j % 2 ? (uint8_t)((*p & 15) | q << 4) : (uint8_t)q;
            want[32 * b + j] = scale * (float)q + min;
        }
    }
    decode(DG_FMT_Q4_BLOCK, row, 64, got);
    expect(got, want, 64);
}

static void q6_blocks(void **state) {
    (void)state;
    uint8_t row[56] = {0};
    float got[64], want[64];
    for (int b = 0; b < 2; b++) {
        float scale = b ? 0.125f : 2.0f, min = b ? -4.0f : 0.5f;
        put16(row + 28 * b, scale);
        put16(row + 28 * b + 2, min);
        for (int j = 0; j < 32;
             j++) { /* bit by bit: code j of 6 bits starts at bit 6 * j, because words of 24 bits hold 4 codes */
            int q = (j * 11 + 5 * b + 63) % 64;
            for (int bit = 0; bit < 6; bit++)
                if (q >> bit & 1)
                    row[28 * b + 4 + (6 * j + bit) / 8] |= (uint8_t)(1 << (6 * j + bit) % 8);
            want[32 * b + j] = scale * (float)q + min;
        }
    }
    decode(DG_FMT_Q6_BLOCK, row, 64, got);
    expect(got, want, 64);
}

static void q8_rows(void **state) {
    (void)state;
    uint8_t row[2 + 256];
    float got[256], want[256];
    put16(row, 0.03125f);
    for (int i = 0; i < 256; i++) {
        row[2 + i] = (uint8_t)i;
        want[i] = 0.03125f * (float)(i < 128 ? i : i - 256);
    }
    decode(DG_FMT_Q8_ROW, row, 256, got);
    expect(got, want, 256);
}

static void nvfp4_blocks(void **state) {
    (void)state;
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    enum { N = 256, K = 16 * N };
    uint8_t *mat = calloc(4 + 9 * N, 1);
    float *got = malloc(K * sizeof *got), *want = malloc(K * sizeof *want), global = 0.75f;
    assert_true(mat && got && want);
    memcpy(mat, &global, 4);
    uint8_t *row = mat + 4;
    for (int b = 0; b < N; b++) { /* every scale byte, with every code */
        row[K / 2 + b] = (uint8_t)b;
        int e = b >> 3 & 15, m = b & 7;
        float s = e == 15 && m == 7 ? NAN : (float)(e ? ldexp(8 + m, e - 10) : ldexp(m, -9));
        s = b & 128 ? -s : s;
        for (int j = 0; j < 16; j++) {
            row[8 * b + j / 2] |= (uint8_t)(j << (j % 2 ? 4 : 0));
            want[16 * b + j] = (j & 8 ? -e2m1[j & 7] : e2m1[j]) * s * global;
        }
    }
    dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(mat, row, K, got);
    expect(got, want, K);
    free(mat);
    free(got);
    free(want);
}

static void sizes(void **state) {
    (void)state;
    static const struct {
        enum dg_format fmt;
        const char *name;
        int64_t row, mat; /* of k = 704, n = 3 */
    } want[] = {{DG_FMT_BF16, "bf16", 1408, 4224},
                {DG_FMT_F16, "f16", 1408, 4224},
                {DG_FMT_F32, "f32", 2816, 8448},
                {DG_FMT_Q4_BLOCK, "q4_block", 440, 1320},
                {DG_FMT_Q6_BLOCK, "q6_block", 616, 1848},
                {DG_FMT_Q8_ROW, "q8_row", 706, 2118},
                {DG_FMT_NVFP4_BLOCK, "nvfp4_block", 396, 1192}};
    assert_int_equal(sizeof want / sizeof *want, DG_FMT_COUNT);
    for (size_t i = 0; i < DG_FMT_COUNT; i++) {
        assert_string_equal(dg_format_traits(want[i].fmt)->name, want[i].name);
        assert_int_equal(dg_format_row_bytes(want[i].fmt, 704), want[i].row);
        assert_int_equal(dg_format_mat_bytes(want[i].fmt, 3, 704), want[i].mat);
    }
    uint8_t base[1];
    struct dg_stack s = {.fmt = DG_FMT_NVFP4_BLOCK, .e = 4, .n = 3, .k = 704, .data = base, .dev = 1 << 20};
    struct dg_mat m = dg_stack_mat(&s, 2);
    assert_int_equal(m.data - base, 2 * 1192);
    assert_int_equal(m.dev, (1 << 20) + 2 * 1192);
    assert_int_equal(dg_mat_row(&m, 2) - m.data, 4 + 2 * 396);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_types), cmocka_unit_test(q4_blocks),    cmocka_unit_test(q6_blocks),
        cmocka_unit_test(q8_rows),   cmocka_unit_test(nvfp4_blocks), cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
