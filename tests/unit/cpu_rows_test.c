/* What the case table of the ops cannot see of the CPU backend's rows: the exponential's error, exact choices among equal scores, equal bits
 * however a prefill is cut, NaN that stays where it is. Every level of this machine. */
#include "core/half.h"
#include "core/mem.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"
#include "ops/ref/ref.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS(l) \
    for (int l = 0; l < DG_CPU_LEVELS; l++) \
        if (dg_cpu_level_here((enum dg_cpu_level)l))

static const struct dg_model model = {.cfg = {.vocab = 1000, .hidden = 96, .canvas = 16, .heads = 8, .experts = 8, .topk = 2, .moe = 32}};
static uint64_t state;

static uint64_t next(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

static float noise(void) { return (float)next() * 0x1p-30f - 1.0f; }

static struct dg_backend *backend(int level, int threads) {
    struct dg_backend *be = NULL;
    struct dg_error err = {0};
    struct dg_cpu_opts o = {.threads = threads, .cap = (enum dg_cpu_level)level, .planes = DG_CPU_PLANES_F32};
    struct dg_reserve r = {.rows = 512, .ctx = 8192, .k_max = 1024, .topk = 2, .experts = 8, .moe = 32, .hidden = 96};
    assert_int_equal(dg_cpu_create(&be, &model, &o, &err), DG_OK);
    assert_int_equal(dg_backend_reserve(be, &r, &err), DG_OK);
    return be;
}

/* Distance in units of the last place of the right value. */
static double ulps(float got, double want) {
    int e;
    (void)frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void exponential(void **unused) {
    (void)unused;
    LEVELS(l) {
        struct dg_vec_kernels k;
        double worst = 0;
        dg_vec_kernels_init(&k, (enum dg_cpu_level)l);
        for (int piece = 0; piece < 2000; piece++) {
            float x[101], y[101];
            for (int i = 0; i < 101; i++) {
                x[i] = piece < 1900 ? -87.0f * ((float)(piece * 101 + i) / (1900 * 101)) : noise() * 0x1p-20f - 10.0f * (float)(next() % 9);
                y[i] = x[i];
            }
            k.exps(y, 101, 0);
            for (int i = 0; i < 101; i++) {
                double u = ulps(y[i], exp((double)x[i]));
                worst = u > worst ? u : worst;
            }
        }
        if (worst > 1.5)
            fail_msg("level %s: exp is off by %.2f ulp", k.name, worst);
        float edge[6] = {0, -INFINITY, NAN, -200, -103.5f, -88};
        k.exps(edge, 6, 0);
        assert_true(edge[0] == 1 && edge[1] == 0 && isnan(edge[2]) && edge[3] == 0);
        assert_true(edge[4] >= 0 && edge[4] < 0x1p-126f && edge[5] > 0 && ulps(edge[5], exp(-88)) <= 2);
    }
}

/* A full layer of one kv head with hd 32, its keys multiples of one direction, so that scores are exact and equal where wanted. */
#define HD 32
struct line {
    struct dg_kv_layer kv;
    float *k, *v;
    int64_t n;
};

static struct line make_line(int64_t n) {
    struct line s = {.n = n};
    s.k = dg_calloc((size_t)n * HD, sizeof *s.k);
    s.v = dg_calloc((size_t)n * HD, sizeof *s.v);
    assert_non_null(s.k);
    assert_non_null(s.v);
    s.kv = (struct dg_kv_layer){s.k, s.v, DG_F32, 1, HD, n, false, 0};
    for (int64_t i = 0; i < n * HD; i++)
        s.v[i] = noise();
    return s;
}

static void drop_line(struct line *s) {
    dg_free(s->k);
    dg_free(s->v);
}

/* The chosen keys' softmax, in double: the k best scores, of equal ones the earlier. */
static void expected(const struct line *s, const float *score, int64_t keys, double *y) {
    char *taken = calloc((size_t)s->n, 1);
    double sum = 0, max = -INFINITY;
    memset(y, 0, HD * sizeof *y);
    for (int64_t i = 0; i < s->n; i++)
        max = (double)score[i] > max ? (double)score[i] : max;
    for (int64_t r = 0; r < keys; r++) {
        int64_t best = -1;
        for (int64_t i = 0; i < s->n; i++)
            if (!taken[i] && (best < 0 || score[i] > score[best]))
                best = i;
        taken[best] = 1;
        double p = exp((double)score[best] - max);
        sum += p;
        for (int c = 0; c < HD; c++)
            y[c] += p * (double)s->v[best * HD + c];
    }
    for (int c = 0; c < HD; c++)
        y[c] /= sum;
    free(taken);
}

static void choice(void **unused) {
    (void)unused;
    enum { ASCENDING, DESCENDING, ALL_EQUAL, FEW_VALUES, ZEROS, SHUFFLED, PATTERNS };
    static const int keys[] = {1, 7, 64, 300};
    LEVELS(l) {
        struct dg_backend *be = backend(l, 2);
        for (int pattern = 0; pattern < PATTERNS; pattern++)
            for (int kk = 0; kk < 4; kk++) {
                struct line s = make_line(1500);
                float *score = dg_calloc((size_t)s.n, sizeof *score), q[HD] = {1}, y[HD];
                double want[HD];
                for (int64_t i = 0; i < s.n; i++) {
                    score[i] = pattern == ASCENDING    ? (float)i * 0x1p-8f
                               : pattern == DESCENDING ? (float)(s.n - i) * 0x1p-8f
                               : pattern == ALL_EQUAL  ? 1.5f
                               : pattern == FEW_VALUES ? (float)(next() % 3)
                               : pattern == ZEROS      ? (next() % 2 ? -0.0f : 0.0f)
                                                       : (float)(next() % 4096) * 0x1p-9f;
                    s.k[i * HD] = score[i];
                }
                struct dg_batch b = {1, 1, s.n - 1, false, -1, keys[kk]};
                struct dg_plane qp = {q, DG_F32, 1, HD, HD}, yp = {y, DG_F32, 1, HD, HD};
                be->ops->attention(be, &qp, 1, &b, &s.kv, &yp);
                expected(&s, score, keys[kk], want);
                for (int c = 0; c < HD; c++)
                    if (!(fabs((double)y[c] - want[c]) < 1e-5))
                        fail_msg("level %d pattern %d k %d column %d: %.7g, not %.7g", l, pattern, keys[kk], c, (double)y[c], want[c]);
                dg_free(score);
                drop_line(&s);
            }
        dg_backend_destroy(be);
    }
}

static void not_a_number(void **unused) {
    (void)unused;
    LEVELS(l) {
        struct dg_backend *be = backend(l, 1);
        for (int topk = 0; topk < 2; topk++) {
            struct line s = make_line(400);
            float q[40 * HD], y[40 * HD];
            for (int64_t i = 0; i < s.n * HD; i++)
                s.k[i] = noise();
            for (int i = 0; i < 40 * HD; i++)
                q[i] = noise();
            s.k[380 * HD + 3] = NAN; /* row 20 of a causal batch at 360, and what follows it, see this key */
            struct dg_batch b = {40, 40, 360, true, -1, topk ? 16 : 0};
            struct dg_plane qp = {q, DG_F32, 40, HD, HD}, yp = {y, DG_F32, 40, HD, HD};
            be->ops->attention(be, &qp, 1, &b, &s.kv, &yp);
            for (int i = 0; i < 40; i++)
                for (int c = 0; c < HD; c++)
                    if (isnan(y[i * HD + c]) != (i >= 20))
                        fail_msg("level %d top %d: row %d is %g", l, topk, i, (double)y[i * HD + c]);
            /* scores that are all -Inf: the softmax of nothing */
            for (int64_t i = 0; i < s.n; i++)
                s.k[i * HD] = -INFINITY;
            for (int i = 0; i < 40; i++)
                q[i * HD] = 1;
            s.k[380 * HD + 3] = 0;
            be->ops->attention(be, &qp, 1, &b, &s.kv, &yp);
            assert_true(isnan(y[0]) && isnan(y[39 * HD + HD - 1]));
            drop_line(&s);
        }
        dg_backend_destroy(be);
    }
}

/* Keys, values and attention of a prefill of n rows, in calls of `chunk` rows. */
static void prefill(struct dg_backend *be, const float *qkv, int32_t n, int32_t chunk, bool full, enum dg_dtype type, int32_t topk, float *y) {
    enum { heads = 8, kv_heads = 2, hd = 48, cols = (heads + 2 * kv_heads) * hd };
    int64_t slots = full ? n : 256;
    size_t bytes = (size_t)slots * kv_heads * hd * dg_dtype_bytes(type);
    struct dg_kv_layer kv = {dg_calloc(bytes, 1), dg_calloc(bytes, 1), type, kv_heads, hd, slots, !full, full ? 0 : 100};
    float *plane = dg_calloc((size_t)chunk * cols, sizeof *plane), w[hd], *cs = dg_calloc((size_t)chunk * hd, sizeof *cs);
    for (int i = 0; i < hd; i++)
        w[i] = 1 + 0.01f * (float)i;
    struct dg_vec norm = {w, hd, 0};
    for (int32_t at = 0; at < n; at += chunk) {
        int32_t m = n - at < chunk ? n - at : chunk;
        struct dg_batch b = {m, m, at, true, -1, topk};
        struct dg_plane x = {plane, DG_F32, m, cols, cols}, out = {y + (int64_t)at * heads * hd, DG_F32, m, heads * hd, heads * hd};
        memcpy(plane, qkv + (int64_t)at * cols, (size_t)m * cols * sizeof *plane);
        for (int32_t i = 0; i < m * (hd / 2); i++)
            cs[i] = (float)cos(0.01 * (at + i / (hd / 2)) * (i % (hd / 2)));
        be->ops->qkv_store(be, &x, heads, true, &norm, &norm, 1e-6f, cs, cs, &b, &kv);
        be->ops->attention(be, &x, heads, &b, &kv, &out);
    }
    dg_free(plane);
    dg_free(cs);
    dg_free(kv.k);
    dg_free(kv.v);
}

static void cuts(void **unused) {
    (void)unused;
    enum { n = 333, cols = 12 * 48, width = 8 * 48 };
    static const int32_t chunks[] = {333, 1, 7, 64, 65, 200};
    float *qkv = dg_calloc(n * cols, sizeof *qkv), *one = dg_calloc(n * width, sizeof *one), *other = dg_calloc(n * width, sizeof *other);
    for (int i = 0; i < n * cols; i++)
        qkv[i] = noise() * 2;
    LEVELS(l)
        for (int kind = 0; kind < 6; kind++) {
            bool full = kind % 3;
            enum dg_dtype type = kind < 3 ? DG_F16 : DG_F32;
            int32_t topk = kind % 3 == 2 ? 40 : 0;
            for (int c = 0; c < 6; c++) {
                struct dg_backend *be = backend(l, c % 3 + 1);
                /* a ring of 256 holds a window of 100 and 156 rows of a call */
                int32_t chunk = !full && chunks[c] > 150 ? 150 : chunks[c];
                prefill(be, qkv, n, chunk, full, type, topk, c ? other : one);
                dg_backend_destroy(be);
                if (c && memcmp(one, other, n * width * sizeof *one) != 0)
                    fail_msg("level %d kind %d: chunks of %d and of %d differ", l, kind, chunk, chunks[0]);
            }
        }
    dg_free(qkv);
    dg_free(one);
    dg_free(other);
}

int main(void) {
    state = 12345;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential), cmocka_unit_test(choice), cmocka_unit_test(not_a_number), cmocka_unit_test(cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
