/* The engine's decoders against the decoder written from docs/format.md: every code, every scale pattern, extremes, NaN and signed zero. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/half.h"
#include "formats/formats.h"
#include "support/page_decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng = 1;
static uint8_t any_byte(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(rng >> 56);
}

/* Compares a whole stack [e][n][k] bit for bit; NaN equals NaN. Values beyond f32's subnormals are compared after rounding to f32. */
static void compare(enum dg_format fmt, const uint8_t *bytes, int e, int n, int64_t k) {
    const char *kind = dg_format_traits(fmt)->name;
    struct dg_stack s = {.fmt = fmt, .e = e, .n = n, .k = (int32_t)k, .data = bytes};
    float *got = malloc((size_t)k * sizeof *got);
    assert_int_equal(e * dg_format_mat_bytes(fmt, n, k), page_bytes(kind, "", e, n, k));
    for (int m = 0; m < e; m++) {
        struct dg_mat mat = dg_stack_mat(&s, m);
        for (int r = 0; r < n; r++) {
            dg_format_traits(fmt)->decode_row(mat.data, dg_mat_row(&mat, r), k, got);
            for (int64_t j = 0; j < k; j++) {
                float want = (float)page_value(kind, "", bytes, n, k, m, r, j);
                if (dg_f32_bits(got[j]) != dg_f32_bits(want) && !(isnan(got[j]) && isnan(want)))
                    fail_msg("%s, matrix %d, row %d, value %lld: %a, the page says %a", kind, m, r, (long long)j, (double)got[j], (double)want);
            }
        }
    }
    free(got);
}

/* Every bf16 pattern as scale and as minimum, every code under each of some. */
static void affine(enum dg_format fmt) {
    int block = fmt == DG_FMT_Q4_BLOCK ? 20 : 28;
    enum { BLOCKS = 2 * 65536 };
    uint8_t *row = malloc((size_t)BLOCKS * (size_t)block);
    for (int b = 0; b < BLOCKS; b++) {
        uint8_t *p = row + (size_t)b * (size_t)block;
        uint16_t sweep = (uint16_t)b, other = (uint16_t)((b & 1) ? 0x3f9d : 0xc123); /* 1.2..., -10.1... */
        for (int i = 0; i < block; i++)
            p[i] = any_byte();
        memcpy(p, b < 65536 ? &sweep : &other, 2);
        memcpy(p + 2, b < 65536 ? &other : &sweep, 2);
    }
    compare(fmt, row, 1, 1, (int64_t)BLOCKS * 32);
    free(row);
}

static void q4_everything(void **state) {
    (void)state;
    affine(DG_FMT_Q4_BLOCK);
    /* nibble order: code j at value j and nowhere else */
    for (int j = 0; j < 32; j++) {
        uint8_t row[20] = {0x80, 0x3f, 0, 0};
        row[4 + j / 2] = j % 2 ? 0xf0 : 0x0f;
        for (int i = 0; i < 32; i++) {
            float got[32];
            dg_format_traits(DG_FMT_Q4_BLOCK)->decode_row(row, row, 32, got);
            assert_true(got[i] == (i == j ? 15.0f : 0.0f));
        }
    }
}

static void q6_everything(void **state) {
    (void)state;
    affine(DG_FMT_Q6_BLOCK);
    for (int j = 0; j < 32; j++) {
        uint8_t row[28] = {0x80, 0x3f, 0, 0};
        for (int bit = 0; bit < 6; bit++) /* words of three bytes are in order, so code j is bits 6j.. of the 24 bytes */
            row[4 + (6 * j + bit) / 8] |= (uint8_t)(1 << (6 * j + bit) % 8);
        float got[32];
        dg_format_traits(DG_FMT_Q6_BLOCK)->decode_row(row, row, 32, got);
        for (int i = 0; i < 32; i++)
            assert_true(got[i] == (i == j ? 63.0f : 0.0f));
    }
}

/* Every scale pattern in a matrix of that many rows, every code in each row. */
static void q8_everything(void **state) {
    (void)state;
    enum { N = 65536, K = 256 };
    uint8_t *m = malloc((size_t)N * (2 + K));
    for (int r = 0; r < N; r++) {
        uint16_t scale = (uint16_t)r;
        uint8_t *row = m + (size_t)r * (2 + K);
        memcpy(row, &scale, 2);
        for (int i = 0; i < K; i++)
            row[2 + i] = (uint8_t)(i + r);
    }
    compare(DG_FMT_Q8_ROW, m, 1, N, K);
    free(m);
}

/* Every scale byte times every code, under globals of all kinds, in a stack whose matrices have their own. */
static void nvfp4_everything(void **state) {
    (void)state;
    static const uint32_t globals[] = {0x3f800000, 0xbf800000, 0x00000001, 0x007fffff, 0x7f7fffff, 0x7f800000, 0xff800000,
                                       0x7fc00000, 0x00000000, 0x80000000, 0x3eaaaaab, 0x00800000};
    enum { E = sizeof globals / sizeof *globals, N = 2, K = 256 * 16, MAT = 4 + N * (K / 2 + K / 16) };
    uint8_t *m = malloc((size_t)E * MAT);
    for (int e = 0; e < E; e++) {
        uint8_t *p = m + (size_t)e * MAT;
        memcpy(p, &globals[e], 4);
        for (int r = 0; r < N; r++) {
            uint8_t *row = p + 4 + r * (K / 2 + K / 16);
            for (int b = 0; b < 256; b++) {
                for (int j = 0; j < 8; j++) /* the codes of a block are a permutation of all sixteen */
                    row[8 * b + j] = (uint8_t)((2 * j + b + r) % 16 | (2 * j + 1 + b + r) % 16 << 4);
                row[K / 2 + b] = (uint8_t)b;
            }
        }
    }
    compare(DG_FMT_NVFP4_BLOCK, m, E, N, K);
    free(m);
}

/* Values worked out by hand, so that both decoders cannot share a misreading of the page. */
static void by_hand(void **state) {
    (void)state;
    float got[32];
    const uint8_t q4[20] = {0x00, 0x3f, 0x80, 0xbf, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    dg_format_traits(DG_FMT_Q4_BLOCK)->decode_row(q4, q4, 32, got); /* 0.5 * code - 1 */
    for (int j = 0; j < 16; j++)
        assert_true(got[j] == 0.5f * (float)j - 1.0f);
    const uint8_t q6[28] = {0x00, 0x40, 0x00, 0x00, 0x41, 0x30, 0x0c, 0xff, 0xff, 0xff}; /* 2 * code; codes 1 1 3 3, then 63 four times */
    dg_format_traits(DG_FMT_Q6_BLOCK)->decode_row(q6, q6, 32, got);
    const float w6[9] = {2, 2, 6, 6, 126, 126, 126, 126, 0};
    for (int j = 0; j < 9; j++)
        assert_true(got[j] == w6[j]);
    const uint8_t q8[6] = {0x80, 0xbf, 0x01, 0x80, 0x7f, 0x00}; /* scale -1 */
    dg_format_traits(DG_FMT_Q8_ROW)->decode_row(q8, q8, 4, got);
    assert_true(got[0] == -1.0f && got[1] == 128.0f && got[2] == -127.0f && got[3] == 0.0f && signbit(got[3]));
    uint8_t nv[4 + 9] = {0, 0, 0, 0x40, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x39}; /* global 2, scale 1.125 */
    dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(nv, nv + 4, 16, got);
    static const float mag[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int j = 0; j < 16; j++)
        assert_true(got[j] == 2.25f * mag[j % 8] * (j < 8 ? 1.0f : -1.0f) && (signbit(got[j]) != 0) == (j >= 8));
    nv[12] = 0x01; /* the smallest subnormal scale, 2^-9 */
    dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(nv, nv + 4, 16, got);
    assert_true(got[7] == 12.0f / 512.0f);
    nv[12] = 0x7e; /* 448 */
    dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(nv, nv + 4, 16, got);
    assert_true(got[7] == 5376.0f);
    nv[12] = 0x7f;
    dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(nv, nv + 4, 16, got);
    assert_true(isnan(got[7]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_everything), cmocka_unit_test(q6_everything), cmocka_unit_test(q8_everything),
        cmocka_unit_test(nvfp4_everything), cmocka_unit_test(by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
