/* Attention on tile registers: f16 split without loss, weights to within their bound, results against sums in double, exact choices among equal
 * scores, equal bits however a prefill is cut, what is not finite. Levels that have the kernels, or those the program emulates. */
#include "core/half.h"
#include "core/mem.h"
#include "ops/cpu/attention.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define U 0x1p-24
#define KEYS DG_ATT_KEYS
#define GROUP DG_ATT_GROUP

extern const bool cpu_ops_emulated __attribute__((weak)); /* linked with kernels that need no such processor */

static const struct dg_model model = {.cfg = {.vocab = 1000, .hidden = 96, .canvas = 16, .heads = 8, .experts = 8, .topk = 2, .moe = 32}};
static uint64_t state;

static bool here(void) { return &cpu_ops_emulated || dg_cpu_level_detect() == DG_CPU_AMX; }

static uint64_t next(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

static float noise(void) { return (float)next() * 0x1p-30f - 1.0f; }

static const struct dg_att_kernels *kernels(void) {
    struct dg_cpu_kernels k;
    dg_cpu_kernels_init(&k, DG_CPU_AMX);
    return k.att;
}

static struct dg_backend *backend(int threads) {
    struct dg_backend *be = NULL;
    struct dg_error err = {0};
    struct dg_cpu_opts o = {.threads = threads, .cap = DG_CPU_AMX, .planes = DG_CPU_PLANES_BF16};
    struct dg_reserve r = {.rows = 512, .ctx = 8192, .k_max = 1024, .topk = 2, .experts = 8, .moe = 32, .hidden = 96};
    assert_int_equal(dg_cpu_create(&be, &model, &o, &err), DG_OK);
    assert_int_equal(dg_backend_reserve(be, &r, &err), DG_OK);
    return be;
}

/* Every f16 value is the sum of its two parts, in keys and in values alike; infinities and NaN stay what they are. */
static void parts(void **unused) {
    (void)unused;
    const struct dg_att_kernels *k = kernels();
    static uint16_t panel[4][GROUP][DG_ATT_STEP];
    for (uint32_t at = 0; at < 65536; at += 32) {
        uint16_t in[32], out[2][32], again[32];
        const uint16_t *row[32];
        for (uint32_t i = 0; i < 32; i++) {
            in[i] = (uint16_t)(at + i);
            again[i] = (uint16_t)(at + (31 - i));
        }
        for (int i = 0; i < 32; i++)
            row[i] = i % 2 ? again : in;
        k->key(in, 32, 32, out[0]);
        k->values(row, 0, 32, 1, panel);
        for (int i = 0; i < 32; i++) {
            int lane = i % 16 * 2 + i / 16; /* pairs are elements d and d + 16 */
            float want = dg_f16_f32(in[i]), hi = dg_bf16_f32(out[0][lane]), lo = dg_bf16_f32(out[1][lane]);
            float vhi = dg_bf16_f32(panel[i / 16][3][i % 16 * 2]), vlo = dg_bf16_f32(panel[2 + i / 16][3][i % 16 * 2]);
            bool good = isnan(want)   ? isnan(hi + lo) && isnan(vhi + vlo)
                        : isinf(want) ? hi == want && lo == 0 && vhi == want && vlo == 0
                                      : hi + lo == want && vhi + vlo == want && fabsf(lo) <= fabsf(want) * 0x1p-8f;
            if (!good)
                fail_msg("f16 %04x is %g, its parts %g and %g, %g and %g", in[i], (double)want, (double)hi, (double)lo, (double)vhi, (double)vlo);
        }
    }
}

/* Two tiles of scores of a group after each other: weights, sums, reference points and factors against exp in double. */
static void weights(void **unused) {
    (void)unused;
    const struct dg_att_kernels *k = kernels();
    static float s[KEYS][GROUP], kept[KEYS][GROUP];
    static uint16_t p[KEYS / 32][2][GROUP][32];
    for (int round = 0; round < 200; round++) {
        int32_t a[GROUP], b[GROUP];
        float max[GROUP], sum[GROUP], alpha[GROUP], before[GROUP], at = 0;
        double want[GROUP] = {0};
        for (int i = 0; i < GROUP; i++) {
            max[i] = -INFINITY;
            sum[i] = 0;
        }
        for (int tile = 0; tile < 3; tile++) {
            int k0 = round % 4 == 3 ? 32 : 0, k1 = round % 4 == 2 ? 64 : KEYS;
            at += noise() * (round % 2 ? 3 : 30);
            for (int i = 0; i < GROUP; i++) {
                a[i] = round % 5 ? 0 : (int32_t)(next() % KEYS);
                b[i] = round % 5 ? KEYS : (int32_t)(next() % KEYS);
                before[i] = max[i];
            }
            for (int t = 0; t < KEYS; t++)
                for (int i = 0; i < GROUP; i++)
                    kept[t][i] = s[t][i] = t < k0 || t >= k1 ? NAN : at + noise() * (round % 3 ? 20 : 1);
            bool moved = k->softmax(s[0], k0, k1, a, b, max, sum, alpha, p), any = false;
            for (int i = 0; i < GROUP; i++) {
                double total = 0, factor = max[i] == before[i] ? 1 : exp((double)before[i] - (double)max[i]);
                float top = -INFINITY;
                any |= alpha[i] != 1;
                for (int t = k0; t < k1; t++) {
                    bool seen = t >= a[i] && t < b[i];
                    double w = seen ? exp((double)kept[t][i] - (double)max[i]) : 0;
                    const uint16_t *hi = &p[t / 32][0][i][t % 32], *lo = &p[t / 32][1][i][t % 32];
                    double got = (double)dg_bf16_f32(*hi) + (double)dg_bf16_f32(*lo);
                    top = seen && kept[t][i] > top ? kept[t][i] : top;
                    /* half a unit of a difference of up to 128, 1.5 of exp, the parts' 2^-17 */
                    if (!(fabs(got - w) <= w * (0x1p-17 + 64 * U + 3 * U) + 0x1p-126) || (!seen && got != 0))
                        fail_msg("round %d tile %d query %d key %d: weight %.9g, not %.9g", round, tile, i, t, got, w);
                    total += w;
                }
                if (top > max[i] + 4 || (top > -INFINITY && max[i] < before[i]))
                    fail_msg("round %d: reference point %g, largest score %g", round, (double)max[i], (double)top);
                want[i] = want[i] * factor + total;
                if (fabs((double)alpha[i] - factor) > factor * 60 * U + 0x1p-126)
                    fail_msg("round %d tile %d query %d: factor %.9g, not %.9g", round, tile, i, (double)alpha[i], factor);
                if (fabs((double)sum[i] - want[i]) > want[i] * 300 * U)
                    fail_msg("round %d tile %d query %d: sum %.9g, not %.9g", round, tile, i, (double)sum[i], want[i]);
            }
            assert_int_equal(moved, any);
        }
    }
}

struct shape {
    int hd, heads, kv_heads, n;
    int64_t pos0;
    bool causal;
    int window, topk;
};

struct layer {
    struct dg_kv_layer kv;
    int64_t n;
};

/* A cache of n positions; the ring of a sliding layer holds all of them here. Keys and values spread as given. */
static struct layer make_layer(const struct shape *s, float keys, float values) {
    int64_t n = s->pos0 + s->n, slots = 1;
    while (slots < n)
        slots *= 2;
    size_t count = (size_t)slots * (size_t)(s->kv_heads * s->hd);
    uint16_t *k = dg_calloc(count, sizeof *k), *v = dg_calloc(count, sizeof *v);
    assert_non_null(k);
    assert_non_null(v);
    memset(k, 0xff, count * sizeof *k); /* NaN where nobody writes */
    memset(v, 0xff, count * sizeof *v);
    for (int64_t i = 0; i < n * s->kv_heads * s->hd; i++) {
        k[i] = dg_f32_f16(noise() * keys);
        v[i] = dg_f32_f16(noise() * values);
    }
    return (struct layer){{k, v, DG_F16, s->kv_heads, s->hd, slots, s->window > 0, s->window}, n};
}

static void drop_layer(struct layer *l) {
    dg_free(l->kv.k);
    dg_free(l->kv.v);
}

static uint16_t *bf16_rows(int64_t n, float spread) {
    uint16_t *q = dg_calloc((size_t)n, sizeof *q);
    assert_non_null(q);
    for (int64_t i = 0; i < n; i++)
        q[i] = dg_f32_bf16(noise() * spread);
    return q;
}

static void attend(struct dg_backend *be, const struct shape *s, const struct layer *l, uint16_t *q, float *y) {
    int32_t cols = s->heads * s->hd;
    struct dg_batch b = {s->n, s->n, s->pos0, s->causal, -1, s->topk};
    struct dg_plane qp = {q, DG_BF16, s->n, cols, cols}, yp = {y, DG_F32, s->n, cols, cols};
    be->ops->attention(be, &qp, s->heads, &b, &l->kv, &yp);
    assert_int_equal(dg_backend_status(be, NULL), DG_OK);
}

/* The bound of docs/cpu-attention.md, of results in f32: nothing of it is left to the rounding of a bf16 plane. */
static void precision(void **unused) {
    (void)unused;
    static const struct shape shapes[] = {
        {256, 4, 2, 40, 400, false, 300, 0}, {512, 8, 1, 9, 300, false, 0, 0},   {512, 4, 1, 20, 100, true, 0, 0}, {64, 8, 2, 35, 1000, true, 100, 0},
        {80, 2, 1, 3, 0, true, 0, 0},        {10, 3, 1, 5, 127, false, 0, 0},    {32, 16, 1, 33, 2, true, 0, 0},   {192, 1, 1, 1, 2000, false, 0, 0},
        {96, 2, 2, 17, 250, true, 33, 0},
    };
    struct dg_backend *be = backend(2);
    double worst = 0;
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++)
        for (int spread = 0; spread < 3; spread++) {
            const struct shape *s = &shapes[c];
            struct layer l = make_layer(s, spread == 1 ? 0.01f : spread ? 1 : 0.3f, 1);
            uint16_t *q = bf16_rows((int64_t)s->n * s->heads * s->hd, 1);
            float *y = dg_calloc((size_t)(s->n * s->heads * s->hd), sizeof *y);
            double *p = calloc((size_t)l.n, sizeof *p);
            attend(be, s, &l, q, y);
            struct dg_batch b = {s->n, s->n, s->pos0, s->causal, -1, 0};
            for (int64_t i = 0; i < (int64_t)s->n * s->heads; i++) {
                int64_t lo, hi, kvh = i % s->heads / (s->heads / s->kv_heads);
                const uint16_t *k = l.kv.k, *v = l.kv.v;
                double max = -INFINITY, sum = 0, mag = 0;
                dg_batch_visible(&b, &l.kv, (int32_t)(i / s->heads), &lo, &hi);
                for (int64_t t = lo; t < hi; t++) {
                    double m = 0;
                    p[t] = 0;
                    for (int d = 0; d < s->hd; d++) {
                        double x = (double)dg_bf16_f32(q[i * s->hd + d]) * (double)dg_f16_f32(k[(t * s->kv_heads + kvh) * s->hd + d]);
                        p[t] += x;
                        m += fabs(x);
                    }
                    max = fmax(max, p[t]);
                    mag = fmax(mag, m);
                }
                for (int64_t t = lo; t < hi; t++)
                    sum += p[t] = exp(p[t] - max);
                double n = (double)(hi - lo), score = mag * (s->hd / 16.0 + 17 + 3) * U;
                for (int d = 0; d < s->hd; d++) {
                    double want = 0, all = 0;
                    for (int64_t t = lo; t < hi; t++) {
                        double x = p[t] / sum * (double)dg_f16_f32(v[(t * s->kv_heads + kvh) * s->hd + d]);
                        want += x;
                        all += fabs(x);
                    }
                    double bound = all * (2 * score + 1.5 * 0x1p-16 + (n / 8 + 80) * U), e = fabs((double)y[i * s->hd + d] - want);
                    if (!(e <= bound))
                        fail_msg("shape %zu spread %d query %lld column %d: %.9g, not %.9g, error %.3g over %.3g", c, spread, (long long)i, d,
                                 (double)y[i * s->hd + d], want, e, bound);
                    worst = e / bound > worst ? e / bound : worst;
                }
            }
            free(p);
            dg_free(q);
            dg_free(y);
            drop_layer(&l);
        }
    dg_backend_destroy(be);
    print_message("worst error / bound %.3f\n", worst);
}

/* Keys that are multiples of one direction: scores are exact, and equal where wanted. */
static void choice(void **unused) {
    (void)unused;
    enum { ASCENDING, DESCENDING, ALL_EQUAL, FEW_VALUES, ZEROS, SHUFFLED, PATTERNS, HD = 32, N = 1500 };
    static const int keys[] = {1, 7, 64, 300};
    struct dg_backend *be = backend(2);
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int kk = 0; kk < 4; kk++) {
            struct shape s = {HD, 1, 1, 1, N - 1, false, 0, keys[kk]};
            struct layer l = make_layer(&s, 0, 1);
            uint16_t *k = l.kv.k, *v = l.kv.v, q[HD] = {dg_f32_bf16(1)};
            float score[N], y[HD], max = -INFINITY;
            bool taken[N] = {false};
            double want[HD] = {0}, sum = 0;
            for (int i = 0; i < N; i++) {
                score[i] = pattern == ASCENDING    ? (float)i * 0x1p-9f
                           : pattern == DESCENDING ? (float)(N - i) * 0x1p-9f
                           : pattern == ALL_EQUAL  ? 1.5f
                           : pattern == FEW_VALUES ? (float)(next() % 3)
                           : pattern == ZEROS      ? (next() % 2 ? -0.0f : 0.0f)
                                                   : (float)(next() % 2048) * 0x1p-9f;
                k[i * HD] = dg_f32_f16(score[i]);
                max = score[i] > max ? score[i] : max;
            }
            attend(be, &s, &l, q, y);
            for (int r = 0; r < keys[kk]; r++) {
                int best = -1;
                for (int i = 0; i < N; i++)
                    if (!taken[i] && (best < 0 || score[i] > score[best]))
                        best = i;
                taken[best] = true;
                double p = exp((double)score[best] - (double)max);
                sum += p;
                for (int c = 0; c < HD; c++)
                    want[c] += p * (double)dg_f16_f32(v[best * HD + c]);
            }
            for (int c = 0; c < HD; c++)
                if (!(fabs((double)y[c] - want[c] / sum) < 1e-5))
                    fail_msg("pattern %d k %d column %d: %.7g, not %.7g", pattern, keys[kk], c, (double)y[c], want[c] / sum);
            drop_layer(&l);
        }
    dg_backend_destroy(be);
}

static void not_finite(void **unused) {
    (void)unused;
    enum { HD = 32, ROWS = 40 };
    struct dg_backend *be = backend(1);
    for (int topk = 0; topk < 2; topk++) {
        struct shape s = {HD, 1, 1, ROWS, 360, true, 0, topk ? 16 : 0};
        struct layer l = make_layer(&s, 1, 1);
        uint16_t *k = l.kv.k, *q = bf16_rows(ROWS * HD, 1), kept = k[380 * HD + 3];
        float y[ROWS * HD];
        k[380 * HD + 3] = 0x7e00; /* NaN; row 20 and what follows it see this key */
        attend(be, &s, &l, q, y);
        for (int i = 0; i < ROWS * HD; i++)
            if (isnan(y[i]) != (i >= 20 * HD))
                fail_msg("top %d: row %d is %g", topk, i / HD, (double)y[i]);
        /* one key of -Inf has no weight, nothing but such keys is the softmax of nothing */
        k[380 * HD + 3] = kept;
        for (int i = 0; i < ROWS; i++)
            q[i * HD] = dg_f32_bf16(1);
        k[200 * HD] = 0xfc00;
        attend(be, &s, &l, q, y);
        for (int i = 0; i < ROWS * HD; i++)
            if (!(fabsf(y[i]) <= 1))
                fail_msg("top %d, a key of -Inf: row %d is %g", topk, i / HD, (double)y[i]);
        for (int64_t i = 0; i < l.n; i++)
            k[i * HD] = 0xfc00;
        attend(be, &s, &l, q, y);
        for (int i = 0; i < ROWS * HD; i++)
            assert_true(isnan(y[i]));
        dg_free(q);
        drop_layer(&l);
    }
    dg_backend_destroy(be);
}

/* The rows of a prefill in calls of other sizes, on other numbers of threads. Values are small enough for sums that reach the subnormal. */
static void cuts(void **unused) {
    (void)unused;
    enum { HEADS = 4, HD = 80, N = 175, COLS = HEADS * HD };
    static const int32_t chunks[] = {N, 1, 7, 33, 64, 130};
    static const struct shape kinds[] = {{HD, HEADS, 2, N, 0, true, 50, 0}, {HD, HEADS, 2, N, 0, true, 0, 0}, {HD, HEADS, 1, N, 0, true, 0, 40}};
    for (int kind = 0; kind < 6; kind++) {
        const struct shape *whole = &kinds[kind % 3];
        struct layer l = make_layer(whole, 4, kind < 3 ? 1 : 0x1p-22f);
        uint16_t *q = bf16_rows(N * COLS, 4);
        float *y[2] = {dg_calloc(N * COLS, sizeof **y), dg_calloc(N * COLS, sizeof **y)};
        for (int c = 0; c < 6; c++) {
            struct dg_backend *be = backend(c % 3 + 1);
            for (int32_t at = 0; at < N; at += chunks[c]) {
                struct shape part = *whole;
                part.pos0 = at;
                part.n = N - at < chunks[c] ? N - at : chunks[c];
                attend(be, &part, &l, q + (int64_t)at * COLS, y[c > 0] + (int64_t)at * COLS);
            }
            dg_backend_destroy(be);
            if (c && memcmp(y[0], y[1], N * COLS * sizeof **y) != 0)
                fail_msg("kind %d: chunks of %d and of %d differ", kind, chunks[c], chunks[0]);
        }
        dg_free(y[0]);
        dg_free(y[1]);
        dg_free(q);
        drop_layer(&l);
    }
}

int main(void) {
    if (!here()) {
        puts("ok - attention on tile registers # SKIP this machine has none; cpu_tiles_emulated runs the same");
        return 0;
    }
    state = 12345;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts),  cmocka_unit_test(weights),    cmocka_unit_test(precision),
        cmocka_unit_test(choice), cmocka_unit_test(not_finite), cmocka_unit_test(cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
