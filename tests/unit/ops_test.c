/* The contract of the op table on the reference backend, op by op: every weight format decoded by a second decoder written here, what a row
 * may see, top-k selection and ties, padding, row strides, rows and threads that must not matter, NaN and Inf. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"
#include "ops/backends.h"
#include "support/naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dg_model *model;
static struct dg_backend *be, *be3; /* one thread, three threads */
static uint64_t rng = 11;

static int setup(void **state) {
    (void)state;
    struct dg_error err = {0};
    char dir[4096];
    const char *root = getenv("DG_ROOT"), *name = getenv("DG_TEST_BACKEND"); /* the contract is the same for all */
    name = name ? name : "ref";
    snprintf(dir, sizeof dir, "%s/models/mini", root ? root : ".");
    struct dg_backend_opts one = {.exact = true, .threads = 1}, three = {.exact = true, .threads = 3};
    if (dg_model_open(&model, dir, &err) != DG_OK || dg_backend_open(&be, name, model, &one, &err) != DG_OK ||
        dg_backend_open(&be3, name, model, &three, &err) != DG_OK) {
        fprintf(stderr, "%s\n", dg_error_text(&err));
        return 1;
    }
    struct dg_reserve r = {.rows = 80, .ctx = 10000, .k_max = 1024, .topk = 8, .experts = 40, .moe = 128, .hidden = 320};
    return dg_backend_reserve(be, &r, &err) != DG_OK || dg_backend_reserve(be3, &r, &err) != DG_OK;
}

static int teardown(void **state) {
    (void)state;
    dg_backend_destroy(be3);
    dg_backend_destroy(be);
    dg_model_close(model);
    return 0;
}

static void be_ok(void) {
    struct dg_error err = {0};
    if (dg_backend_status(be, &err) != DG_OK || dg_backend_status(be3, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
}

static double uniform(void) { return nv_random(&rng); }
static int below(int n) { return (int)((uniform() + 1) / 2 * n) % n; }

static void close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance) {
    double top = 1e-30;
    for (int64_t i = 0; i < n; i++)
        top = fabs(want[i]) > top ? fabs(want[i]) : top;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * top))
            fail_msg("%s: element %lld is %.9g, should be %.9g (largest %.3g)", what, (long long)i, (double)got[i], want[i], top);
}

/* A plane whose rows lie `gap` elements further apart than they are long, the gaps holding a value that must stay. */
#define GAP_VALUE 12345.0f

static struct dg_plane strided(int32_t rows, int32_t cols, int gap) {
    struct dg_plane p = {NULL, DG_F32, rows, cols, cols + gap};
    p.data = be->ops->alloc(be, (size_t)rows * (size_t)p.ld * sizeof(float));
    assert_non_null(p.data);
    for (int64_t i = 0; i < rows * p.ld; i++)
        ((float *)p.data)[i] = i % p.ld < cols ? 0 : GAP_VALUE;
    return p;
}

static float *row(const struct dg_plane *p, int64_t r) { return (float *)p->data + r * p->ld; }

static void gaps_kept(const struct dg_plane *p) {
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = p->cols; c < p->ld; c++)
            if (row(p, r)[c] != GAP_VALUE)
                fail_msg("the gap behind row %lld was written", (long long)r);
}

static struct dg_plane random_plane(int32_t rows, int32_t cols, int gap, double size) {
    struct dg_plane p = strided(rows, cols, gap);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            row(&p, r)[c] = (float)(uniform() * size);
    return p;
}

static void drop(struct dg_plane *p) { dg_plane_free(be, p); }

static struct dg_plane only_row(const struct dg_plane *p, int32_t r) {
    return (struct dg_plane){row(p, r), DG_F32, 1, p->cols, p->ld};
}

static void same_bits(const char *what, const struct dg_plane *a, int64_t ra, const struct dg_plane *b, int64_t rb) {
    if (memcmp(row(a, ra), row(b, rb), (size_t)a->cols * sizeof(float)))
        fail_msg("%s: row %lld depends on what it is computed with", what, (long long)ra);
}

/* ---- formats: bytes at random, decoded from the layout table alone ---- */

static double e4m3(uint8_t b) {
    int e = b >> 3 & 15, f = b & 7;
    double v = e ? ldexp(8 + f, e - 7 - 3) : ldexp(f, -6 - 3);
    return b >> 7 ? -v : v;
}

static const double e2m1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};

static void put_bf16(uint8_t *p, double v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    p[0] = (uint8_t)(u >> 16);
    p[1] = (uint8_t)(u >> 24);
}

static double get_bf16(const uint8_t *p) { return nv_bf16((uint16_t)(p[0] | p[1] << 8)); }

static int64_t matrix_bytes(enum dg_format f, int64_t n, int64_t k) {
    switch (f) {
    case DG_FMT_BF16:
    case DG_FMT_F16: return n * k * 2;
    case DG_FMT_F32: return n * k * 4;
    case DG_FMT_Q4_BLOCK: return n * k / 32 * 20;
    case DG_FMT_Q6_BLOCK: return n * k / 32 * 28;
    case DG_FMT_Q8_ROW: return n * (k + 2);
    default: return 4 + n * (k / 2 + k / 16);
    }
}

/* Random bytes of a matrix [n][k] and the values they stand for. */
static void random_matrix(enum dg_format f, int64_t n, int64_t k, uint8_t *data, double *w) {
    int64_t bytes = matrix_bytes(f, n, k);
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)below(256);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            double *out = &w[r * k + c];
            if (f == DG_FMT_BF16) {
                put_bf16(data + (r * k + c) * 2, uniform());
                *out = get_bf16(data + (r * k + c) * 2);
            } else if (f == DG_FMT_F16) {
                uint16_t h = (uint16_t)(below(2) << 15 | (8 + below(7)) << 10 | below(1024));
                memcpy(data + (r * k + c) * 2, &h, 2);
                *out = nv_f16(h);
            } else if (f == DG_FMT_F32) {
                float v = (float)uniform();
                memcpy(data + (r * k + c) * 4, &v, 4);
                *out = (double)v;
            } else if (f == DG_FMT_Q4_BLOCK || f == DG_FMT_Q6_BLOCK) {
                bool four = f == DG_FMT_Q4_BLOCK;
                uint8_t *b = data + (r * (k / 32) + c / 32) * (four ? 20 : 28);
                int j = (int)(c % 32);
                if (j == 0) {
                    put_bf16(b, uniform() * (four ? 0.1 : 0.03));
                    put_bf16(b + 2, uniform());
                }
                const uint8_t *word = b + 4 + j / 4 * 3;
                int q = four ? b[4 + j / 2] >> (j % 2 ? 4 : 0) & 15 : (word[0] | word[1] << 8 | word[2] << 16) >> 6 * (j % 4) & 63;
                *out = get_bf16(b) * q + get_bf16(b + 2);
            } else if (f == DG_FMT_Q8_ROW) {
                uint8_t *b = data + r * (k + 2);
                if (c == 0)
                    put_bf16(b, uniform() * 0.01);
                *out = get_bf16(b) * (int8_t)b[2 + c];
            } else {
                float global = 0.037f;
                if (r == 0 && c == 0)
                    memcpy(data, &global, 4);
                uint8_t *b = data + 4 + r * (k / 2 + k / 16), *scale = b + k / 2 + c / 16;
                if (c % 16 == 0 && (*scale & 127) > 0x50)
                    *scale = (uint8_t)((*scale & 128) | below(0x50));
                *out = e2m1[b[c / 2] >> (c % 2 ? 4 : 0) & 15] * e4m3(*scale) * (double)global;
            }
        }
}

struct matrix {
    struct dg_mat m;
    uint8_t *data;
    double *w;
};

static struct matrix new_matrix(enum dg_format f, int32_t n, int32_t k) {
    struct matrix x = {.data = malloc((size_t)matrix_bytes(f, n, k)), .w = nv_new((int64_t)n * k)};
    random_matrix(f, n, k, x.data, x.w);
    x.m = (struct dg_mat){f, n, k, x.data, 0};
    return x;
}

static void matrix_free(struct matrix *x) {
    free(x->data);
    free(x->w);
}

static double *doubles(const struct dg_plane *p, int64_t r) {
    double *x = nv_new(p->cols);
    for (int32_t i = 0; i < p->cols; i++)
        x[i] = (double)row(p, r)[i];
    return x;
}

static void linear_formats(void **state) {
    (void)state;
    static const int rows[] = {1, 2, 5, 33};
    for (int f = 0; f < DG_FMT_COUNT; f++)
        for (size_t v = 0; v < 4; v++) {
            /* three matrices side by side, the second in another format; sizes that no block of rows divides */
            enum dg_format other = (enum dg_format)((f + 1) % DG_FMT_COUNT);
            struct matrix w[3] = {new_matrix((enum dg_format)f, 37, 192), new_matrix(other, 5, 192), new_matrix((enum dg_format)f, 1, 192)};
            const struct dg_mat *stacked[3] = {&w[0].m, &w[1].m, &w[2].m};
            struct dg_plane x = random_plane(rows[v], 192, 3, 1), y = strided(rows[v], 43, 2), y3 = strided(rows[v], 43, 0), one = strided(1, 43, 0);
            be->ops->linear(be, &x, stacked, 3, DG_EPI_NONE, &y);
            be3->ops->linear(be3, &x, stacked, 3, DG_EPI_NONE, &y3);
            be_ok();
            gaps_kept(&y);
            for (int r = 0; r < rows[v]; r++) {
                double *in = doubles(&x, r), want[43];
                nv_matvec(w[0].w, 37, 192, in, want);
                nv_matvec(w[1].w, 5, 192, in, want + 37);
                nv_matvec(w[2].w, 1, 192, in, want + 42);
                close_to(dg_format_traits((enum dg_format)f)->name, row(&y, r), want, 43, 3e-6);
                free(in);
                struct dg_plane xr = only_row(&x, r);
                be->ops->linear(be, &xr, stacked, 3, DG_EPI_NONE, &one);
                be_ok();
                same_bits("linear, alone", &y, r, &one, 0);
                same_bits("linear, threads", &y, r, &y3, r);
            }
            drop(&x);
            drop(&y);
            drop(&y3);
            drop(&one);
            for (int i = 0; i < 3; i++)
                matrix_free(&w[i]);
        }
}

static void glu_formats(void **state) {
    (void)state;
    for (int f = 0; f < DG_FMT_COUNT; f++) {
        struct matrix gate = new_matrix((enum dg_format)f, 29, 64), up = new_matrix((enum dg_format)f, 29, 64);
        const struct dg_mat *w[2] = {&gate.m, &up.m};
        struct dg_plane x = random_plane(6, 64, 1, 3), y = strided(6, 29, 1);
        for (int c = 0; c < 64; c++)
            row(&x, 5)[c] *= 1e4f; /* far out on both sides of the activation */
        be->ops->linear(be, &x, w, 2, DG_EPI_GLU, &y);
        be_ok();
        gaps_kept(&y);
        for (int r = 0; r < 6; r++) {
            double *in = doubles(&x, r), g[29], u[29];
            nv_matvec(gate.w, 29, 64, in, g);
            nv_matvec(up.w, 29, 64, in, u);
            for (int i = 0; i < 29; i++)
                g[i] = nv_gelu(g[i]) * u[i];
            close_to("GLU", row(&y, r), g, 29, 5e-6);
            free(in);
        }
        drop(&x);
        drop(&y);
        matrix_free(&gate);
        matrix_free(&up);
    }
}

static void experts_formats(void **state) {
    (void)state;
    enum { E = 9, K = 3, MOE = 32, H = 64, ROWS = 21 };
    for (int f = 0; f < DG_FMT_COUNT; f++) {
        enum dg_format fmt = (enum dg_format)f;
        int64_t gu = matrix_bytes(fmt, 2 * MOE, H), dn = matrix_bytes(fmt, H, MOE);
        uint8_t *gu_data = malloc((size_t)(E * gu)), *dn_data = malloc((size_t)(E * dn));
        double *wg = nv_new(E * 2 * MOE * H), *wd = nv_new(E * H * MOE);
        for (int e = 0; e < E; e++) {
            random_matrix(fmt, 2 * MOE, H, gu_data + e * gu, wg + e * 2 * MOE * H);
            random_matrix(fmt, H, MOE, dn_data + e * dn, wd + e * H * MOE);
        }
        struct dg_stack gate_up = {fmt, E, 2 * MOE, H, gu_data, 0, false}, down = {fmt, E, H, MOE, dn_data, 0, false};
        struct dg_plane x = random_plane(ROWS, H, 2, 0.5), y = strided(ROWS, H, 0), y3 = strided(ROWS, H, 0), one = strided(1, H, 0);
        int32_t ids[ROWS * K];
        float weight[ROWS * K];
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < K; k++) {
                /* expert 0 has nearly every row, expert 8 none; row 3 uses one expert three times */
                ids[r * K + k] = r == 3 ? 4 : k == 0 && r != 7 ? 0 : (r + k) % 8;
                weight[r * K + k] = (float)uniform();
            }
        struct dg_routing routing = {ids, weight, K};
        be->ops->experts(be, &x, &routing, &gate_up, &down, &y);
        be3->ops->experts(be3, &x, &routing, &gate_up, &down, &y3);
        be_ok();
        for (int r = 0; r < ROWS; r++) {
            double *in = doubles(&x, r), want[H] = {0};
            for (int k = 0; k < K; k++)
                nv_expert(wg + ids[r * K + k] * 2 * MOE * H, wd + ids[r * K + k] * H * MOE, MOE, H, in, (double)weight[r * K + k], want);
            close_to(dg_format_traits(fmt)->name, row(&y, r), want, H, 1e-5);
            free(in);
            struct dg_plane xr = only_row(&x, r);
            struct dg_routing own = {ids + r * K, weight + r * K, K};
            be->ops->experts(be, &xr, &own, &gate_up, &down, &one);
            be_ok();
            same_bits("experts, alone", &y, r, &one, 0);
            same_bits("experts, threads", &y, r, &y3, r);
        }
        drop(&x);
        drop(&y);
        drop(&y3);
        drop(&one);
        free(gu_data);
        free(dn_data);
        free(wg);
        free(wd);
    }
}

static void router_ties(void **state) {
    (void)state;
    enum { E = 40, K = 8, H = 64, ROWS = 5 };
    struct matrix w = new_matrix(DG_FMT_F32, E, H);
    /* experts 30.. repeat experts 0..; row 0 is zero, so that all are equal */
    memcpy(w.data + 30 * H * 4, w.data, 10 * H * 4);
    memcpy(w.w + 30 * H, w.w, 10 * H * sizeof *w.w);
    float scale[E];
    double scale_d[E];
    for (int e = 0; e < E; e++)
        scale_d[e] = (double)(scale[e] = (float)(1 + uniform() / 2));
    struct dg_vec per_expert = {scale, E, 0};
    struct dg_plane x = random_plane(ROWS, H, 5, 1);
    memset(row(&x, 0), 0, H * sizeof(float));
    for (int c = 0; c < H; c++)
        row(&x, 4)[c] *= 400; /* one expert takes all the probability, others underflow */
    int32_t ids[ROWS * K];
    float weight[ROWS * K];
    struct dg_routing out = {ids, weight, K};
    be->ops->router(be, &x, &w.m, &per_expert, &out);
    be_ok();
    for (int r = 0; r < ROWS; r++) {
        double *in = doubles(&x, r), logits[E], want[K];
        int id[K];
        nv_matvec(w.w, E, H, in, logits);
        nv_route(logits, E, K, scale_d, id, want);
        for (int k = 0; k < K; k++) {
            /* probabilities that f32 holds as zero are all equal: then the order is free of the naive one */
            if (r == 4 && want[k] < 1e-30)
                continue;
            assert_int_equal(ids[r * K + k], id[k]);
            if (fabs((double)weight[r * K + k] - want[k]) > 2e-6)
                fail_msg("row %d, expert %d: weight %.8f, should be %.8f", r, id[k], (double)weight[r * K + k], want[k]);
        }
        for (int k = 0; k < K; k++)
            for (int j = 0; j < k; j++)
                assert_int_not_equal(ids[r * K + k], ids[r * K + j]);
        free(in);
    }
    for (int k = 0; k < K; k++)
        assert_int_equal(ids[k], k);

    /* logits that differ by less than f32 tells their probabilities apart: a tie too */
    memset(row(&x, 1), 0, H * sizeof(float));
    row(&x, 1)[0] = 1;
    for (int e = 0; e < E; e++)
        ((float *)w.data)[e * H] = (float)e * 1e-10f;
    be->ops->router(be, &x, &w.m, &per_expert, &out);
    be_ok();
    for (int k = 0; k < K; k++)
        assert_int_equal(ids[K + k], k);
    drop(&x);
    matrix_free(&w);
}

static void norms(void **state) {
    (void)state;
    enum { N = 72, ROWS = 6 };
    const double eps = 1e-6;
    float wa[N], wb[N];
    double da[N], db[N];
    for (int i = 0; i < N; i++) {
        da[i] = (double)(wa[i] = (float)uniform());
        db[i] = (double)(wb[i] = (float)(uniform() * 5));
    }
    const struct dg_vec va = {wa, N, 0}, vb = {wb, N, 0}, none = {0};
    for (int which = 0; which < 2; which++) {
        const struct dg_vec *w = which ? &none : &va;
        struct dg_plane x = random_plane(ROWS, N, 3, 2), y = strided(ROWS, N, 1), res = random_plane(ROWS, N, 0, 4);
        memset(row(&x, 0), 0, N * sizeof(float)); /* eps keeps it finite */
        for (int i = 0; i < N; i++) {
            row(&x, 1)[i] *= 1e-4f; /* eps counts */
            row(&x, 2)[i] *= 1e15f; /* the squares need care */
        }
        double want[N], *in;
        be->ops->rms_norm(be, &x, w, 0.25f, (float)eps, &y);
        be_ok();
        gaps_kept(&y);
        for (int r = 0; r < ROWS; r++) {
            in = doubles(&x, r);
            nv_norm(in, which ? NULL : da, N, (double)(float)eps, want);
            for (int i = 0; i < N; i++)
                want[i] *= 0.25;
            close_to("norm", row(&y, r), want, N, 1e-6);
            free(in);
        }
        be->ops->norm_add(be, &x, w, (float)eps, &res, 0.75f, &y);
        be_ok();
        for (int r = 0; r < ROWS; r++) {
            in = doubles(&x, r);
            nv_norm(in, which ? NULL : da, N, (double)(float)eps, want);
            for (int i = 0; i < N; i++)
                want[i] = ((double)row(&res, r)[i] + want[i]) * 0.75;
            close_to("norm_add", row(&y, r), want, N, 1e-6);
            free(in);
        }
        be->ops->norm_add(be, &x, w, (float)eps, &res, 0.75f, &res);
        be_ok();
        for (int r = 0; r < ROWS; r++)
            same_bits("norm_add onto its residual", &res, r, &y, r);
        struct dg_plane b = random_plane(ROWS, N, 2, 1);
        be->ops->norm_pair(be, &x, w, &b, &vb, (float)eps, &y);
        be_ok();
        for (int r = 0; r < ROWS; r++) {
            double second[N];
            in = doubles(&x, r);
            nv_norm(in, which ? NULL : da, N, (double)(float)eps, want);
            free(in);
            in = doubles(&b, r);
            nv_norm(in, db, N, (double)(float)eps, second);
            for (int i = 0; i < N; i++)
                want[i] += second[i];
            close_to("norm_pair", row(&y, r), want, N, 1e-6);
            free(in);
        }
        be->ops->norm_pair(be, &x, w, &b, &vb, (float)eps, &x);
        be_ok();
        gaps_kept(&x);
        for (int r = 0; r < ROWS; r++)
            same_bits("norm_pair in place", &x, r, &y, r);
        be->ops->rms_norm(be, &b, &vb, 1, (float)eps, &y);
        be->ops->rms_norm(be, &b, &vb, 1, (float)eps, &b);
        be_ok();
        for (int r = 0; r < ROWS; r++)
            same_bits("norm in place", &b, r, &y, r);
        be->ops->add(be, &b, &res, &y);
        be->ops->add(be, &b, &res, &b);
        be_ok();
        for (int r = 0; r < ROWS; r++) {
            same_bits("add in place", &b, r, &y, r);
            assert_true(row(&y, r)[1] != row(&res, r)[1]);
        }
        drop(&x);
        drop(&y);
        drop(&res);
        drop(&b);
    }
}

/* ---- attention ---- */

struct att {
    int heads, kv, hd, window;
    int64_t slots, pos0;
    bool ring, causal;
    int n, live, topk;
    int64_t ring_from;
};

/* Small whole numbers: scores are exact in f32 and many of them are equal. */
static void fill(uint16_t *h, float *f, int64_t n, double *d) {
    for (int64_t i = 0; i < n; i++) {
        int v = below(7) - 3;
        _Float16 half = (_Float16)v;
        memcpy(h + i, &half, 2);
        f[i] = (float)v;
        d[i] = v;
    }
}

/* What a row sees, said again: [lo, hi). */
static void sees(const struct att *a, int i, int64_t *lo, int64_t *hi) {
    int64_t p = a->pos0 + (a->causal ? i : 0);
    *hi = a->causal ? p + 1 : a->pos0 + a->live;
    *lo = 0;
    if (a->window && a->ring_from >= 0)
        *lo = a->ring_from;
    else if (a->window && p - (a->window - 1) > 0)
        *lo = p - (a->window - 1);
}

/* Both element types, each row alone and with three threads. Slots that no row may see hold NaN. */
static void check_attention(const struct att *a) {
    int64_t end = a->pos0 + a->live, width = (int64_t)a->kv * a->hd;
    double *k = nv_new(end * width), *v = nv_new(end * width);
    uint16_t *kh = malloc((size_t)(end * width) * 2), *vh = malloc((size_t)(end * width) * 2);
    float *kf = malloc((size_t)(end * width) * 4), *vf = malloc((size_t)(end * width) * 4);
    fill(kh, kf, end * width, k);
    fill(vh, vf, end * width, v);
    struct dg_plane q = random_plane(a->n, a->heads * a->hd, 9, 1), y[2] = {strided(a->n, a->heads * a->hd, 1), strided(a->n, a->heads * a->hd, 1)};
    for (int r = 0; r < a->n; r++)
        for (int c = 0; c < q.cols; c++)
            row(&q, r)[c] = (float)(below(5) - 2) / 4;
    int64_t first, last;
    sees(a, 0, &first, &last);
    struct dg_batch b = {a->n, a->live, a->pos0, a->causal, a->ring_from, a->topk};
    for (int f16 = 0; f16 < 2; f16++) {
        size_t bytes = (size_t)(a->slots * width) * (f16 ? 2 : 4);
        struct dg_kv_layer kv = {malloc(bytes), malloc(bytes), f16 ? DG_F16 : DG_F32, a->kv, a->hd, a->slots, a->ring, a->window};
        memset(kv.k, 0xff, bytes); /* NaN in both */
        memset(kv.v, 0xff, bytes);
        for (int64_t p = first; p < end; p++) {
            int64_t slot = a->ring ? p % a->slots : p;
            memcpy((char *)kv.k + slot * width * (f16 ? 2 : 4), f16 ? (void *)(kh + p * width) : kf + p * width, (size_t)width * (f16 ? 2 : 4));
            memcpy((char *)kv.v + slot * width * (f16 ? 2 : 4), f16 ? (void *)(vh + p * width) : vf + p * width, (size_t)width * (f16 ? 2 : 4));
        }
        be->ops->attention(be, &q, a->heads, &b, &kv, &y[f16]);
        be_ok();
        gaps_kept(&y[f16]);
        struct dg_plane y3 = strided(a->n, q.cols, 0), one = strided(1, q.cols, 0);
        be3->ops->attention(be3, &q, a->heads, &b, &kv, &y3);
        be_ok();
        for (int r = 0; r < a->live; r++) {
            same_bits("attention, threads", &y[f16], r, &y3, r);
            if (a->causal) { /* the same row as a batch of its own: the cut of a prefill */
                struct dg_plane qr = only_row(&q, r);
                struct dg_batch alone = {1, 1, a->pos0 + r, true, -1, a->topk};
                be->ops->attention(be, &qr, a->heads, &alone, &kv, &one);
                be_ok();
                same_bits("attention, alone", &y[f16], r, &one, 0);
            }
        }
        drop(&y3);
        drop(&one);
        free(kv.k);
        free(kv.v);
    }
    for (int r = 0; r < a->live; r++) {
        same_bits("attention, f16 and f32 of equal values", &y[0], r, &y[1], r);
        int64_t lo, hi;
        sees(a, r, &lo, &hi);
        int64_t t = hi - lo, keys = t;
        if (!a->window && a->topk > 0)
            keys = a->topk;
        else if (!a->window && a->topk < 0)
            keys = t / 128 < 64 ? 64 : t / 128 > 512 ? 512 : t / 128;
        double *in = doubles(&q, r), *want = nv_new(q.cols);
        for (int h = 0; h < a->heads; h++) {
            int64_t at = lo * width + (int64_t)(h / (a->heads / a->kv)) * a->hd;
            nv_attend(in + h * a->hd, a->hd, k + at, v + at, width, t, keys < t ? keys : t, want + h * a->hd);
        }
        char what[128];
        snprintf(what, sizeof what, "attention, row %d of %d at %lld, window %d, topk %d", r, a->n, (long long)a->pos0, a->window, a->topk);
        close_to(what, row(&y[0], r), want, q.cols, 5e-6);
        free(in);
        free(want);
    }
    drop(&q);
    drop(&y[0]);
    drop(&y[1]);
    free(k);
    free(v);
    free(kh);
    free(vh);
    free(kf);
    free(vf);
}

static void attention_sees(void **state) {
    (void)state;
    /* sliding: window 32 in a ring of 64, rows that begin before, at and after every edge */
    static const int64_t at[] = {0, 1, 30, 31, 32, 33, 62, 63, 64, 65, 127, 128, 1000};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int causal = 0; causal < 2; causal++) {
            struct att a = {.heads = 4, .kv = 2, .hd = 16, .window = 32, .slots = 64, .ring = true, .pos0 = at[i], .causal = causal, .ring_from = -1};
            a.n = a.live = 33; /* the most rows that leave the window whole */
            check_attention(&a);
            a.live = 20;
            check_attention(&a);
            a.n = a.live = 1;
            check_attention(&a);
            a.topk = 5; /* sliding layers never select */
            a.n = a.live = 9;
            check_attention(&a);
            if (!causal) { /* all that the ring holds */
                a.topk = 0;
                a.ring_from = at[i] + a.n > 64 ? at[i] + a.n - 64 : 0;
                check_attention(&a);
            }
        }
    /* full, other head counts, a head dimension that is no power of two */
    static const int shape[][3] = {{4, 1, 32}, {6, 3, 48}, {3, 3, 8}, {8, 1, 16}};
    for (size_t i = 0; i < 4; i++)
        for (int causal = 0; causal < 2; causal++) {
            struct att a = {.heads = shape[i][0], .kv = shape[i][1], .hd = shape[i][2], .slots = 128, .pos0 = 77, .causal = causal, .ring_from = -1};
            a.n = 9;
            a.live = 9;
            check_attention(&a);
            a.live = 4;
            check_attention(&a);
            a.pos0 = 0;
            check_attention(&a);
        }
}

static void attention_topk(void **state) {
    (void)state;
    static const int k[] = {1, 2, 5, 63, 64, 65, 500, DG_TOPK_DYN};
    static const int64_t at[] = {0, 3, 60, 64, 300};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        for (size_t p = 0; p < 5; p++)
            for (int causal = 0; causal < 2; causal++) {
                struct att a = {.heads = 2, .kv = 1, .hd = 8, .slots = 512, .pos0 = at[p], .causal = causal, .topk = k[i], .ring_from = -1};
                a.n = 7;
                a.live = 6;
                check_attention(&a);
            }
    /* the share of the context: 64 keys up to 8319 visible ones, 65 from 8320 on, each row by its own context */
    for (int causal = 0; causal < 2; causal++) {
        struct att a = {.heads = 1, .kv = 1, .hd = 4, .slots = 8400, .pos0 = 8316, .causal = causal, .topk = DG_TOPK_DYN, .ring_from = -1};
        a.n = a.live = 8;
        check_attention(&a);
    }
}

/* A key of NaN is not a key of low score: what saw it is NaN, whether keys are selected or not. */
static void attention_nan(void **state) {
    (void)state;
    enum { T = 200, HD = 8 };
    static const int place[] = {0, 77, T - 1};
    for (size_t p = 0; p < 3; p++)
        for (int topk = 0; topk < 2; topk++) {
            float k[T * HD], v[T * HD];
            for (int i = 0; i < T * HD; i++) {
                k[i] = (float)uniform();
                v[i] = (float)uniform();
            }
            k[place[p] * HD + 3] = NAN;
            struct dg_kv_layer kv = {k, v, DG_F32, 1, HD, T, false, 0};
            struct dg_batch b = {2, 2, T - 2, false, -1, topk ? 5 : 0};
            struct dg_plane q = random_plane(2, 2 * HD, 0, 1), y = strided(2, 2 * HD, 0);
            be->ops->attention(be, &q, 2, &b, &kv, &y);
            be_ok();
            for (int i = 0; i < 2 * HD; i++)
                if (!isnan(row(&y, 0)[i]))
                    fail_msg("a key of NaN at %d vanished%s", place[p], topk ? " among the selected" : "");
            drop(&q);
            drop(&y);
        }
}

/* ---- head, statistics, soft embedding ---- */

static struct dg_row_stats stats_of(int rows) {
    return (struct dg_row_stats){calloc((size_t)rows, 4), calloc((size_t)rows, 4), calloc((size_t)rows, 4), calloc((size_t)rows, 4),
                                 calloc((size_t)rows, 4), NULL};
}

static void stats_free(struct dg_row_stats *s) {
    free(s->entropy);
    free(s->max);
    free(s->sum);
    free(s->p_max);
    free(s->argmax);
}

static void check_row_stats(const struct dg_row_stats *s, int r, const float *z, int n, double inv_t) {
    double *d = nv_new(n), *p = nv_new(n), p_max;
    int best;
    for (int i = 0; i < n; i++)
        d[i] = (double)z[i];
    double h = nv_stats(d, n, inv_t, p, &best, &p_max);
    assert_int_equal(s->argmax[r], best);
    if (fabs((double)s->entropy[r] - h) > 2e-6 * (h + 1) || fabs((double)s->p_max[r] - p_max) > 2e-6 ||
        fabs((double)s->max[r] - d[best] * inv_t) > 1e-5 || fabs((double)s->sum[r] * p_max - 1) > 1e-5)
        fail_msg("row %d: entropy %.9g, p_max %.9g, max %.9g, sum %.9g; should be %.9g, %.9g, %.9g, %.9g", r, (double)s->entropy[r],
                 (double)s->p_max[r], (double)s->max[r], (double)s->sum[r], h, p_max, d[best] * inv_t, 1 / p_max);
    assert_true(s->entropy[r] >= 0);
    free(d);
    free(p);
}

static void head_formats(void **state) {
    (void)state;
    enum { V = 301, H = 64, ROWS = 7 };
    for (int f = 0; f < DG_FMT_COUNT; f++)
        for (int cap = 0; cap < 2; cap++) {
            struct matrix embed = new_matrix((enum dg_format)f, V, H);
            struct dg_plane x = random_plane(ROWS, H, 3, 8), z = strided(ROWS, V, 0), z3 = strided(ROWS, V, 0), one = strided(1, V, 0);
            struct dg_row_stats s = stats_of(ROWS), s3 = stats_of(ROWS), s1 = stats_of(1);
            const float inv_t = 1 / 0.6f, c = cap ? 30 : 4;
            be->ops->head(be, &x, &embed.m, c, inv_t, &z, &s);
            be3->ops->head(be3, &x, &embed.m, c, inv_t, &z3, &s3);
            be_ok();
            for (int r = 0; r < ROWS; r++) {
                double *in = doubles(&x, r), *want = nv_new(V);
                nv_matvec(embed.w, V, H, in, want);
                for (int i = 0; i < V; i++)
                    want[i] = (double)c * tanh(want[i] / (double)c);
                close_to("head", row(&z, r), want, V, 5e-6);
                check_row_stats(&s, r, row(&z, r), V, (double)inv_t);
                free(in);
                free(want);
                struct dg_plane xr = only_row(&x, r);
                be->ops->head(be, &xr, &embed.m, c, inv_t, &one, &s1);
                be_ok();
                same_bits("head, alone", &z, r, &one, 0);
                same_bits("head, threads", &z, r, &z3, r);
                assert_true(s.entropy[r] == s1.entropy[0] && s.entropy[r] == s3.entropy[r] && s.p_max[r] == s1.p_max[0] && s.sum[r] == s3.sum[r] &&
                            s.argmax[r] == s1.argmax[0]);
            }
            drop(&x);
            drop(&z);
            drop(&z3);
            drop(&one);
            stats_free(&s);
            stats_free(&s3);
            stats_free(&s1);
            matrix_free(&embed);
        }
}

static void statistics(void **state) {
    (void)state;
    enum { V = 1000, ROWS = 12 };
    struct dg_plane z = random_plane(ROWS, V, 0, 10);
    for (int i = 0; i < V; i++) {
        row(&z, 0)[i] = 2.5f;                  /* all equal: log V, argmax 0 */
        row(&z, 1)[i] = i == 700 ? 30 : -30;   /* one certain */
        row(&z, 2)[i] = i == 999 || i == 3 ? 20 : -20; /* two equal: the lower id */
        row(&z, 3)[i] = i % 2 ? -0.0f : 0.0f;  /* equal, though not in bits */
    }
    struct dg_row_stats s = stats_of(ROWS);
    be->ops->row_stats(be, &z, 1 / 0.4f, &s);
    be_ok();
    for (int r = 0; r < ROWS; r++)
        check_row_stats(&s, r, row(&z, r), V, (double)(1 / 0.4f));
    assert_int_equal(s.argmax[0], 0);
    assert_int_equal(s.argmax[2], 3);
    assert_int_equal(s.argmax[3], 0);
    /* NaN or Inf at the first, a middle and the last id; the other rows keep their numbers */
    static const int place[] = {0, 500, V - 1};
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    for (int p = 0; p < 3; p++)
        for (int b = 0; b < 4; b++) {
            float old = row(&z, 5)[place[p]], before = s.entropy[6];
            row(&z, 5)[place[p]] = bad[b];
            be->ops->row_stats(be, &z, 1 / 0.4f, &s);
            be_ok();
            if (!isnan(s.entropy[5]))
                fail_msg("entropy %g though id %d is %g", (double)s.entropy[5], place[p], (double)bad[b]);
            assert_true(s.argmax[5] >= 0 && s.argmax[5] < V);
            assert_true(s.entropy[6] == before);
            row(&z, 5)[place[p]] = old;
        }
    for (int i = 0; i < V; i++)
        row(&z, 7)[i] = NAN;
    be->ops->row_stats(be, &z, 1, &s);
    be_ok();
    assert_true(isnan(s.entropy[7]) && s.argmax[7] >= 0 && s.argmax[7] < V);
    stats_free(&s);
    drop(&z);
}

/* NaN that comes in through the hidden state is seen too, row by row. */
static void head_nan(void **state) {
    (void)state;
    enum { V = 65, H = 32, ROWS = 3 };
    struct matrix embed = new_matrix(DG_FMT_BF16, V, H);
    struct dg_plane x = random_plane(ROWS, H, 0, 1), z = strided(ROWS, V, 0);
    struct dg_row_stats s = stats_of(ROWS);
    row(&x, 1)[H - 1] = NAN;
    be->ops->head(be, &x, &embed.m, 30, 1, &z, &s);
    be_ok();
    assert_true(!isnan(s.entropy[0]) && isnan(s.entropy[1]) && !isnan(s.entropy[2]));
    put_bf16(embed.data + 7 * H * 2, NAN); /* one weight of one id spoils every row */
    be->ops->head(be, &x, &embed.m, 30, 1, &z, &s);
    be_ok();
    for (int r = 0; r < ROWS; r++)
        assert_true(isnan(s.entropy[r]));
    put_bf16(embed.data + 7 * H * 2, INFINITY); /* the cap must not make an ordinary logit of it */
    row(&x, 1)[H - 1] = 1;
    be->ops->head(be, &x, &embed.m, 30, 1, &z, &s);
    be_ok();
    for (int r = 0; r < ROWS; r++)
        assert_true(isnan(s.entropy[r]));
    stats_free(&s);
    drop(&x);
    drop(&z);
    matrix_free(&embed);
}

static void soft_embedding(void **state) {
    (void)state;
    enum { V = 2000, H = 48, ROWS = 6 };
    static const enum dg_format formats[] = {DG_FMT_BF16, DG_FMT_F16, DG_FMT_F32, DG_FMT_Q8_ROW};
    for (int f = 0; f < 4; f++) {
        struct matrix embed = new_matrix(formats[f], V, H);
        struct dg_plane z = random_plane(ROWS, V, 0, 9), exact = strided(ROWS, H, 2), sparse = strided(ROWS, H, 0), y3 = strided(ROWS, H, 0);
        for (int i = 0; i < V; i++) {
            row(&z, 0)[i] = 1;                      /* flat: nothing is left out */
            row(&z, 1)[i] = i == 1234 ? 30 : -30;   /* certain: all others are */
            row(&z, 2)[i] = i % 3 ? -4.5f : 4.5f;   /* two levels, further apart than e^10 at this temperature */
        }
        struct dg_row_stats s = stats_of(ROWS);
        const float inv_t = 1 / 0.5f, scale = 7;
        be->ops->row_stats(be, &z, inv_t, &s);
        be->ops->soft_embed(be, &z, &s, inv_t, &embed.m, scale, false, &exact);
        be->ops->soft_embed(be, &z, &s, inv_t, &embed.m, scale, true, &sparse);
        be3->ops->soft_embed(be3, &z, &s, inv_t, &embed.m, scale, false, &y3);
        be_ok();
        gaps_kept(&exact);
        double top = 0;
        for (int64_t i = 0; i < (int64_t)V * H; i++)
            top = fabs(embed.w[i]) > top ? fabs(embed.w[i]) : top;
        for (int r = 0; r < ROWS; r++) {
            double *d = doubles(&z, r), *p = nv_new(V), p_max, all[H] = {0}, lost = 0, kept[H] = {0};
            int best;
            nv_stats(d, V, (double)inv_t, p, &best, &p_max);
            for (int v = 0; v < V; v++) {
                bool keep = p[v] >= p_max * exp(-10);
                lost += keep ? 0 : p[v];
                for (int h = 0; h < H; h++) {
                    all[h] += p[v] * embed.w[(int64_t)v * H + h] * (double)scale;
                    kept[h] += keep ? p[v] * embed.w[(int64_t)v * H + h] * (double)scale : 0;
                }
            }
            close_to("soft embedding", row(&exact, r), all, H, 1e-5);
            close_to("sparse soft embedding", row(&sparse, r), kept, H, 2e-5);
            for (int h = 0; h < H; h++)
                if (fabs((double)row(&exact, r)[h] - (double)row(&sparse, r)[h]) > lost * top * (double)scale + 1e-5)
                    fail_msg("row %d: exact and sparse differ by more than the dropped mass of %g allows", r, lost);
            same_bits("soft embedding, threads", &exact, r, &y3, r);
            struct dg_plane zr = only_row(&z, r), one = strided(1, H, 0);
            struct dg_row_stats own = {s.entropy + r, s.max + r, s.sum + r, s.p_max + r, s.argmax + r, NULL};
            for (int k = 0; k < 2; k++) {
                be->ops->soft_embed(be, &zr, &own, inv_t, &embed.m, scale, k, &one);
                be_ok();
                same_bits("soft embedding, alone", k ? &sparse : &exact, r, &one, 0);
            }
            drop(&one);
            free(d);
            free(p);
        }
        stats_free(&s);
        drop(&z);
        drop(&exact);
        drop(&sparse);
        drop(&y3);
        matrix_free(&embed);
    }
}

static void embed_formats(void **state) {
    (void)state;
    for (int f = 0; f < DG_FMT_COUNT; f++) {
        struct matrix embed = new_matrix((enum dg_format)f, 50, 96);
        static const int32_t ids[] = {0, 49, 7, 7, 31};
        struct dg_plane y = strided(5, 96, 4);
        be->ops->embed(be, ids, 5, &embed.m, 3, &y);
        be_ok();
        gaps_kept(&y);
        for (int r = 0; r < 5; r++) {
            double want[96];
            for (int i = 0; i < 96; i++)
                want[i] = embed.w[ids[r] * 96 + i] * 3;
            close_to(dg_format_traits((enum dg_format)f)->name, row(&y, r), want, 96, 2e-7);
        }
        drop(&y);
        matrix_free(&embed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_formats), cmocka_unit_test(glu_formats),    cmocka_unit_test(experts_formats), cmocka_unit_test(router_ties),
        cmocka_unit_test(norms),          cmocka_unit_test(attention_sees), cmocka_unit_test(attention_topk),  cmocka_unit_test(attention_nan),
        cmocka_unit_test(head_formats),   cmocka_unit_test(statistics),     cmocka_unit_test(head_nan),        cmocka_unit_test(soft_embedding),
        cmocka_unit_test(embed_formats),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
