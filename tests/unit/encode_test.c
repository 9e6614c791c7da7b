/* Encoders: error limits on the distributions weights have, the search never worse than the plain way, and rows that are odd. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/half.h"
#include "formats/encode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum dg_format formats[] = {DG_FMT_Q4_BLOCK, DG_FMT_Q6_BLOCK, DG_FMT_Q8_ROW, DG_FMT_NVFP4_BLOCK};
enum { N_FORMATS = 4, ROWS = 300 };

static float ones[4096];
static uint64_t rng = 7;
static double uniform(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return ((double)(rng >> 11) + 0.5) * 0x1p-53;
}
static double gauss(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }
static double laplace(void) {
    double a = uniform() - 0.5;
    return (a < 0 ? 1 : -1) * log(1 - 2 * fabs(a));
}
static double student4(void) {
    double z = gauss(), c = 0;
    for (int i = 0; i < 4; i++) {
        double g = gauss();
        c += g * g;
    }
    return z / sqrt(c / 4);
}

/* bf16 weights of a layer: ROWS rows of k; the largest magnitude in *most. */
static float *weights(double (*draw)(void), int64_t k, float *most) {
    float *x = malloc((size_t)(ROWS * k) * sizeof *x);
    *most = 0;
    for (int64_t i = 0; i < ROWS * k; i++) {
        x[i] = dg_bf16_f32(dg_f32_bf16((float)(0.02 * draw())));
        *most = fabsf(x[i]) > *most ? fabsf(x[i]) : *most;
    }
    return x;
}

/* Squared error of one row after the round trip. */
static double row_error(enum dg_format fmt, enum dg_codes codes, const float *x, int64_t k, float global) {
    uint8_t *mat = malloc((size_t)(4 + dg_format_row_bytes(fmt, k)));
    float *y = malloc((size_t)k * sizeof *y);
    memcpy(mat, &global, 4);
    assert_true(dg_encode_row(fmt, codes, x, ones, k, global, mat + 4));
    dg_format_traits(fmt)->decode_row(mat, mat + 4, k, y);
    double e = 0;
    for (int64_t i = 0; i < k; i++)
        e += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
    free(mat);
    free(y);
    return e;
}

static double rms(enum dg_format fmt, enum dg_codes codes, const float *x, int64_t k, float most) {
    double e = 0, p = 0;
    for (int r = 0; r < ROWS; r++)
        e += row_error(fmt, codes, x + r * k, k, dg_nvfp4_global(codes, most));
    for (int64_t i = 0; i < ROWS * k; i++)
        p += (double)x[i] * (double)x[i];
    return 100 * sqrt(e / p);
}

static void limits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double (*draw)(void);
        double most[N_FORMATS]; /* percent; 0 = printed only */
    } cases[] = {
        {"gauss", gauss, {8.5, 2.1, 0.9, 9.6}},
        {"laplace", laplace, {10, 2.4, 0, 9.8}},
        {"t4", student4, {10, 2.4, 0, 9.8}},
    };
    static const int64_t widths[] = {704, 2816};
    for (int c = 0; c < 3; c++)
        for (int w = 0; w < 2; w++) {
            float most, *x = weights(cases[c].draw, widths[w], &most);
            for (int f = 0; f < N_FORMATS; f++) {
                double plain = rms(formats[f], DG_CODES_PLAIN, x, widths[w], most), fit = rms(formats[f], DG_CODES_FIT, x, widths[w], most);
                print_message("# %-8s K %-5lld %-12s plain %.3f %%  fit %.3f %%\n", cases[c].name, (long long)widths[w],
                              dg_format_traits(formats[f])->name, plain, fit);
                if (cases[c].most[f] > 0 && fit > cases[c].most[f])
                    fail_msg("%s %s: %.3f %% is above %.1f %%", cases[c].name, dg_format_traits(formats[f])->name, fit, cases[c].most[f]);
                assert_true(fit <= plain);
            }
            free(x);
        }
}

/* Row by row, also where values are far from any distribution. For nvfp4 both ways get the same global. */
static void fit_is_never_worse(void **state) {
    (void)state;
    enum { K = 96 };
    float x[K];
    for (int round = 0; round < 4000; round++) {
        double scale = ldexp(1.0, (int)(uniform() * 60) - 30);
        float most = 0;
        for (int i = 0; i < K; i++) {
            double v = round % 4 == 0 ? gauss() : round % 4 == 1 ? student4() * (uniform() < 0.05 ? 50 : 1) : round % 4 == 2 ? uniform() + 3 : floor(4 * uniform());
            x[i] = dg_bf16_f32(dg_f32_bf16((float)(v * scale)));
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        float global = dg_nvfp4_global(DG_CODES_PLAIN, most);
        for (int f = 0; f < N_FORMATS; f++) {
            double plain = row_error(formats[f], DG_CODES_PLAIN, x, K, global), fit = row_error(formats[f], DG_CODES_FIT, x, K, global);
            if (fit > plain * (1 + 1e-5))
                fail_msg("%s, round %d: fit %g, plain %g", dg_format_traits(formats[f])->name, round, fit, plain);
        }
    }
}

static void odd_rows(void **state) {
    (void)state;
    enum { K = 64 };
    for (int codes = 0; codes < 2; codes++)
        for (int f = 0; f < N_FORMATS; f++) {
            float x[K] = {0};
            float one = dg_nvfp4_global((enum dg_codes)codes, 0);
            assert_true(one == 1.0f);
            assert_true(row_error(formats[f], (enum dg_codes)codes, x, K, one) == 0);
            for (int i = 0; i < K; i++)
                x[i] = -0.0f;
            assert_true(row_error(formats[f], (enum dg_codes)codes, x, K, one) == 0);
            for (int i = 0; i < K; i++) /* one value for all: exact where there is a minimum, else near */
                x[i] = 0.375f;
            double e = row_error(formats[f], (enum dg_codes)codes, x, K, dg_nvfp4_global((enum dg_codes)codes, 0.375f));
            assert_true(sqrt(e / K) <= 0.375 * (formats[f] == DG_FMT_NVFP4_BLOCK ? 0.04 : 0.004));
            for (int i = 0; i < K; i++) /* the smallest numbers there are */
                x[i] = dg_bits_f32((uint32_t)(1 + i));
            e = row_error(formats[f], (enum dg_codes)codes, x, K, dg_nvfp4_global((enum dg_codes)codes, x[K - 1]));
            assert_true(e <= K * (double)x[K - 1] * (double)x[K - 1]);
            memset(x, 0, sizeof x); /* one large value among zeros */
            x[17] = 1e30f;
            e = row_error(formats[f], (enum dg_codes)codes, x, K, dg_nvfp4_global((enum dg_codes)codes, 1e30f));
            assert_true(sqrt(e) <= 0.05e30);
            for (int i = 0; i < K; i++) /* a range beyond f32 */
                x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
            uint8_t row[2 * K];
            if (formats[f] == DG_FMT_Q4_BLOCK || formats[f] == DG_FMT_Q6_BLOCK)
                assert_false(dg_encode_row(formats[f], (enum dg_codes)codes, x, ones, K, 1, row));
        }
}

/* The same row gives the same bytes wherever it lies and whatever is around it. */
static void bytes_depend_on_values_only(void **state) {
    (void)state;
    enum { K = 704 };
    float *buf = malloc((K + 16) * sizeof *buf), most = 0;
    uint8_t first[2 * K], again[2 * K + 16];
    for (int f = 0; f < N_FORMATS; f++) {
        rng = 99;
        for (int shift = 0; shift < 16; shift++) {
            float *x = buf + shift;
            rng = 99;
            for (int i = 0; i < K; i++) {
                x[i] = (float)gauss();
                most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
            }
            uint8_t *out = shift ? again + shift : first;
            assert_true(dg_encode_row(formats[f], DG_CODES_FIT, x, ones, K, dg_nvfp4_global(DG_CODES_FIT, most), out));
            if (shift)
                assert_memory_equal(first, out, (size_t)dg_format_row_bytes(formats[f], K));
        }
    }
    free(buf);
}

static void finite_rows(void **state) {
    (void)state;
    float x[5] = {1, -3, 2, 0, -0.5f}, most;
    assert_true(dg_row_finite(x, 5, &most) && most == 3.0f);
    x[2] = INFINITY;
    assert_false(dg_row_finite(x, 5, &most));
    x[2] = -NAN;
    assert_false(dg_row_finite(x, 5, &most));
    x[2] = FLT_MAX;
    assert_true(dg_row_finite(x, 5, &most));
}

/* A K that is no multiple of the vectors: q8 takes any. */
static void q8_any_width(void **state) {
    (void)state;
    for (int64_t k = 1; k < 40; k++) {
        float x[40];
        for (int i = 0; i < 40; i++)
            x[i] = (float)(i + 1);
        uint8_t row[44];
        memset(row, 0xee, sizeof row);
        assert_true(dg_encode_row(DG_FMT_Q8_ROW, DG_CODES_FIT, x, ones, k, 0, row));
        assert_int_equal(row[2 + k], 0xee);
        float scale = dg_bf16_f32((uint16_t)(row[0] | row[1] << 8));
        for (int64_t i = 0; i < k; i++)
            assert_true(fabsf(scale * (float)(int8_t)row[2 + i] - x[i]) <= 0.51f * scale + 0.2f);
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        ones[i] = 1.0f;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits), cmocka_unit_test(fit_is_never_worse), cmocka_unit_test(odd_rows),
        cmocka_unit_test(bytes_depend_on_values_only), cmocka_unit_test(finite_rows), cmocka_unit_test(q8_any_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
