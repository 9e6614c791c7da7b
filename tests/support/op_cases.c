#include "support/op_cases.h"

#include "core/half.h"
#include "ops/kv_q8.h"
#include "support/op_planes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 9000
#define HEAD_VOCAB 40000 /* of the head: more tiles of 256 ids than there are multiprocessors */
#define HIDDEN 416
#define CANVAS 200
#define HEAD_DIM 512
#define KV_SLOTS 1024 /* of a ring */
#define KV_FULL 4608  /* of a whole cache: more than one part of a row */

static const struct dg_model model = {.cfg = {.vocab = HEAD_VOCAB,
                                              .hidden = HIDDEN,
                                              .canvas = CANVAS,
                                              .heads = 16,
                                              .experts = 300,
                                              .topk = 8,
                                              .moe = 160,
                                              .window = 64,
                                              .eps = 1e-6f,
                                              .softcap = 30}};

const struct dg_model *op_cases_model(void) { return &model; }

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* Rounding of a stored activation. */
static double act_round(const struct op_run *r) { return r->c->be->ops->act == DG_F32 ? 0x1p-24 : 0x1p-8; }

/* A dot product and the bound of its error: the products' sum in f32, and the weights' rounding. */
static double dot(const struct op_run *r, const double *x, const double *w, int k, double *bound) {
    double s = 0, mag = 0;
    k = op_checks(r) ? k : 0;
    for (int i = 0; i < k; i++) {
        s += x[i] * w[i];
        mag += fabs(x[i] * w[i]);
    }
    *bound = mag * (sum_bound(k) + r->weight_round) + 1e-37;
    return s;
}

/* The formats whose codes are bf16 already lose nothing on the way to tensor cores. */
static void weights_are(struct op_run *r, enum dg_format fmt) {
    r->weight_round = fmt == DG_FMT_BF16 || fmt == DG_FMT_Q8_ROW || fmt == DG_FMT_NVFP4_BLOCK ? 0 : r->c->weight_round;
}

static double glu(const struct op_run *r, const double *x, const double *gate, const double *up, int k, double *bound) {
    double bg, bu, g = dot(r, x, gate, k, &bg), u = dot(r, x, up, k, &bu), h = gelu(g);
    /* |gelu'| < 1.13; 1 + tanh loses what it cancels */
    *bound = 1.13 * bg * fabs(u) + (fabs(h) + 1.13 * bg) * bu + 12 * U * fabs(g * u);
    return h * u;
}

static void case_embed(struct op_run *r) {
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_F16, DG_FMT_F32, DG_FMT_Q8_ROW};
    for (size_t f = 0; f < 4; f++)
        for (int odd = 0; odd < 2; odd++) {
            int n = odd ? 5 : 67, k = odd ? 37 : HIDDEN;
            struct op_mat w = op_mat(r, fmts[f], 64, k, 1);
            struct op_plane y = op_output(r, n, k, r->c->be->ops->act);
            int32_t ids[67], *dev = op_upload(r, ids, 0);
            for (int i = 0; i < n; i++)
                ids[i] = (int32_t)(op_random(r) % 64);
            dev = op_upload(r, ids, sizeof ids);
            r->c->be->ops->embed(r->c->be, dev, n, &w.m, 3.25f, &y.p);
            op_fetch(r, &y);
            for (int i = 0; i < n; i++)
                for (int c = 0; c < k; c++) {
                    double want = w.v[ids[i] * k + c] * 3.25;
                    op_expect(r, &y, i, c, want, (act_round(r) + U) * fabs(want));
                }
            op_done(r, "%s n=%d k=%d", dg_format_traits(fmts[f])->name, n, k);
        }
}

static double inv_rms(const double *x, int n) {
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    return 1 / sqrt(s / n + 1e-6);
}

static void case_norms(struct op_run *r, int which) {
    static const int shape[][2] = {{1, 1}, {3, 31}, {5, 416}, {130, 2816}, {2, 5000}};
    const struct dg_ops *op = r->c->be->ops;
    for (size_t s = 0; s < 5; s++)
        for (int variant = 0; variant < 2; variant++) {
            int n = shape[s][0], k = shape[s][1];
            struct op_plane x = op_input(r, n, k, op->act, 2), z = op_input(r, n, k, which == 2 ? DG_F32 : op->act, 3);
            struct op_plane y = op_output(r, n, k, which == 0 && variant ? DG_F32 : op->act);
            struct op_vec w = op_vec(r, k, 1), wb = op_vec(r, k, 1);
            if (variant) /* no weight */
                w.v.v = NULL, w.v.dev = 0;
            if (which == 0)
                op->rms_norm(r->c->be, &x.p, &w.v, 0.75f, 1e-6f, &y.p);
            else if (which == 1)
                op->norm_add(r->c->be, &x.p, &w.v, 1e-6f, &z.p, 0.5f, &y.p);
            else
                op->norm_pair(r->c->be, &x.p, &w.v, &z.p, &wb.v, 1e-6f, &y.p);
            op_fetch(r, &y);
            for (int i = 0; i < n; i++) {
                double ra = inv_rms(x.v + i * k, k), rb = inv_rms(z.v + i * k, k);
                for (int c = 0; c < k; c++) {
                    double a = x.v[i * k + c] * ra * (variant ? 1 : w.w[c]), b = z.v[i * k + c];
                    double want, mag;
                    if (which == 0)
                        want = a * 0.75, mag = fabs(want);
                    else if (which == 1)
                        want = (a + b) * 0.5, mag = (fabs(a) + fabs(b)) * 0.5;
                    else
                        want = a + b * rb * wb.w[c], mag = fabs(a) + fabs(b * rb * wb.w[c]);
                    op_expect(r, &y, i, c, want, mag * sum_bound(k) + (y.p.dtype == DG_F32 ? U : act_round(r)) * fabs(want));
                }
            }
            op_done(r, "n=%d k=%d%s", n, k, variant ? " no weight" : "");
        }
}

static void case_rms_norm(struct op_run *r) { case_norms(r, 0); }
static void case_norm_add(struct op_run *r) { case_norms(r, 1); }
static void case_norm_pair(struct op_run *r) { case_norms(r, 2); }

/* One pass over a residual stream leaves the bits that the single ops leave. */
static void case_norm_chain(struct op_run *r) {
    static const int shape[][2] = {{3, 31}, {5, 416}, {130, 2816}, {2, 8192}, {9, 8200}};
    const struct dg_ops *op = r->c->be->ops;
    for (size_t i = 0; op->norm_chain && i < 5; i++)
        for (int variant = 0; variant < 4; variant++) {
            int n = shape[i][0], k = shape[i][1], outs_n = variant ? variant : 0;
            r->rows_at = OP_ROWS_WHOLE; /* where rows begin decides the order of a sum */
            struct op_plane a = op_input(r, n, k, op->act, 2), b = op_input(r, n, k, DG_F32, 3), x = op_input(r, n, k, op->act, 4);
            struct op_plane a1 = op_output(r, n, k, op->act), x1 = op_output(r, n, k, op->act), y[3], y1[3];
            struct op_vec wa = op_vec(r, k, 1), wb = op_vec(r, k, 1), w = op_vec(r, k, 1), wy[3];
            struct dg_norm_out outs[3];
            if (variant & 2)
                op->norm_pair(r->c->be, &a.p, &wa.v, &b.p, &wb.v, 1e-6f, &a1.p);
            op->norm_add(r->c->be, variant & 2 ? &a1.p : &a.p, &w.v, 1e-6f, &x.p, 0.75f, &x1.p);
            for (int o = 0; o < outs_n; o++) {
                y[o] = op_output(r, n, k, op->act);
                y1[o] = op_output(r, n, k, op->act);
                wy[o] = op_vec(r, k, 1);
                outs[o] = (struct dg_norm_out){&wy[o].v, 0.5f + (float)o, &y[o].p};
                op->rms_norm(r->c->be, &x1.p, &wy[o].v, outs[o].mul, 1e-6f, &y1[o].p);
            }
            op->norm_chain(r->c->be, &a.p, &wa.v, variant & 2 ? &b.p : NULL, &wb.v, &w.v, 1e-6f, 0.75f, &x.p, outs, outs_n);
            op_fetch(r, &x);
            op_fetch(r, &x1);
            op_expect_same(r, &x1, 0, &x, 0, n);
            for (int o = 0; o < outs_n; o++) {
                op_fetch(r, &y[o]);
                op_fetch(r, &y1[o]);
                op_expect_same(r, &y1[o], 0, &y[o], 0, n);
            }
            r->rows_at = OP_ROWS_ANY;
            op_done(r, "n=%d k=%d variant %d", n, k, variant);
        }
}

static void case_add(struct op_run *r) {
    const struct dg_ops *op = r->c->be->ops;
    struct op_plane a = op_input(r, 70, 333, op->act, 2), b = op_input(r, 70, 333, op->act, 2), y = op_output(r, 70, 333, op->act);
    op->add(r->c->be, &a.p, &b.p, &y.p);
    op_fetch(r, &y);
    for (int i = 0; i < 70; i++)
        for (int c = 0; c < 333; c++) {
            double want = a.v[i * 333 + c] + b.v[i * 333 + c];
            op_expect(r, &y, i, c, want, act_round(r) * fabs(want) + 1e-40);
        }
    op_done(r, "70 x 333");
}

/* One linear case: n_w stacked matrices of n, n/2, n/2 rows. */
static void one_linear(struct op_run *r, enum dg_format fmt, int m, int n, int k, int n_w, bool is_glu, enum op_codes codes) {
    const struct dg_ops *op = r->c->be->ops;
    weights_are(r, fmt);
    struct op_plane x = op_input(r, m, k, op->act, 1);
    struct op_mat w[3];
    const struct dg_mat *list[3];
    int total = 0;
    for (int i = 0; i < n_w; i++) {
        w[i] = op_mat_codes(r, fmt, i && !is_glu ? (n + 1) / 2 : n, k, codes);
        list[i] = &w[i].m;
        total += w[i].m.n;
    }
    total = is_glu ? n : total;
    struct op_plane y = op_output(r, m, total, op->act);
    op->linear(r->c->be, &x.p, list, n_w, is_glu ? DG_EPI_GLU : DG_EPI_NONE, &y.p);
    op_fetch(r, &y);
    for (int i = 0; op_checks(r) && i < m; i++)
        for (int c = 0, b = 0, at = 0; c < total; c++) {
            double bound, want;
            if (is_glu) {
                want = glu(r, x.v + i * k, w[0].v + c * k, w[1].v + c * k, k, &bound);
            } else {
                while (c - at >= w[b].m.n)
                    at += w[b++].m.n;
                want = dot(r, x.v + i * k, w[b].v + (c - at) * k, k, &bound);
            }
            op_expect(r, &y, i, c, want, bound + act_round(r) * (fabs(want) + bound));
        }
    /* rows m/3 and on alone: same bits */
    if (m > 1) {
        struct dg_plane part = op_rows(&x, m / 3, m - m / 3);
        struct op_plane again = op_output(r, m - m / 3, total, op->act);
        op->linear(r->c->be, &part, list, n_w, is_glu ? DG_EPI_GLU : DG_EPI_NONE, &again.p);
        op_fetch(r, &again);
        op_expect_same(r, &y, m / 3, &again, 0, m - m / 3);
        struct dg_plane last = op_rows(&x, m - 1, 1);
        struct op_plane alone = op_output(r, 1, total, op->act);
        op->linear(r->c->be, &last, list, n_w, is_glu ? DG_EPI_GLU : DG_EPI_NONE, &alone.p);
        op_fetch(r, &alone);
        op_expect_same(r, &y, m - 1, &alone, 0, 1);
    }
    op_done(r, "%s m=%d n=%d k=%d x%d%s codes %d", dg_format_traits(fmt)->name, m, n, k, n_w, is_glu ? " glu" : "", codes);
}

static void case_linear(struct op_run *r) {
    for (int f = 0; f < DG_FMT_COUNT; f++) {
        enum dg_format fmt = (enum dg_format)f;
        int step = dg_format_traits(fmt)->block;
        one_linear(r, fmt, 1, 1, 32 * step > 64 ? 64 : 32 * step, 1, false, OP_RANDOM);
        one_linear(r, fmt, 67, 131, 96, 3, false, OP_RANDOM);
        one_linear(r, fmt, r->c->emulated ? 22 : 130, 70, 352, 2, true, OP_RANDOM);
        one_linear(r, fmt, 9, 300, 32, 1, false, OP_MAX);
        one_linear(r, fmt, 9, 40, 64, 1, false, OP_ZERO_SCALE);
        one_linear(r, fmt, 9, 40, 64, 1, false, OP_TINY);
        if (step == 1)
            one_linear(r, fmt, 5, 33, 37, 2, true, OP_RANDOM); /* a width that is a multiple of nothing */
        if (fmt == DG_FMT_BF16 && r->c->small && !r->c->emulated) { /* each kernel for few rows of compute capability 9.0 */
            r->rows_at = OP_ROWS_WHOLE;
            one_linear(r, fmt, 37, 256, 328, 3, false, OP_RANDOM);
            one_linear(r, fmt, 70, 352, 192, 2, true, OP_RANDOM);
            one_linear(r, fmt, 140, 96, 64, 1, false, OP_RANDOM);
            one_linear(r, fmt, 5, 9224, 64, 1, false, OP_RANDOM);
            r->rows_at = OP_ROWS_ANY;
        }
        if (!r->c->small) {
            one_linear(r, fmt, 256, 300, 2816, 1, false, OP_RANDOM);
            one_linear(r, fmt, 300, 140, 704, 2, true, OP_RANDOM);
            if (fmt == DG_FMT_BF16) { /* the widths of the kernels for compute capability 9.0: each kernel, tails of rows, columns and k */
                r->rows_at = OP_ROWS_WHOLE;
                one_linear(r, fmt, 37, 256, 328, 3, false, OP_RANDOM);
                one_linear(r, fmt, 290, 200, 1032, 1, false, OP_RANDOM);
                one_linear(r, fmt, 70, 352, 192, 2, true, OP_RANDOM);
                one_linear(r, fmt, 270, 72, 320, 2, true, OP_RANDOM);
                one_linear(r, fmt, 3, 4096, 96, 3, false, OP_RANDOM);
                one_linear(r, fmt, 258, 8200, 72, 1, false, OP_RANDOM);
                one_linear(r, fmt, 5, 9224, 1096, 1, false, OP_RANDOM);
                one_linear(r, fmt, 258, 6144, 136, 2, false, OP_RANDOM);
                one_linear(r, fmt, 200, 2816, 520, 1, false, OP_RANDOM);
                one_linear(r, fmt, 140, 96, 64, 1, false, OP_RANDOM);
                r->rows_at = OP_ROWS_ANY;
            }
        }
    }
}

struct kv_case {
    int hd, heads, kv_heads, n, live;
    int64_t pos0;
    bool causal, ring, has_v;
    int window;
    enum dg_dtype kv;
    int topk;
    int64_t ring_from; /* 0 = the window */
};

static const struct kv_case kv_cases[] = {
    {64, 4, 2, 19, 19, 0, true, true, true, 64, DG_F32, 0, 0},
    {64, 4, 2, 70, 70, 300, true, true, true, 64, DG_F16, 0, 0},
    {128, 4, 1, 40, 40, 77, false, false, false, 0, DG_F32, 0, 0},
    {128, 4, 1, 9, 7, 100, false, false, false, 0, DG_F16, 0, 0},
    {256, 16, 8, 33, 33, 1020, true, true, true, 200, DG_F16, 0, 0},
    {256, 16, 8, 20, 20, 1000, false, true, true, 64, DG_F32, 0, 0},
    {512, 16, 2, 35, 35, 130, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 17, 17, 500, true, false, false, 0, DG_F32, 0, 0},
    {10, 2, 1, 5, 5, 3, true, false, true, 0, DG_F32, 0, 0},
    {64, 4, 4, 1, 1, 900, true, true, true, 1, DG_F16, 0, 0},
    {64, 8, 2, 130, 130, 40, false, true, true, 64, DG_F16, 0, 0},
    {128, 2, 2, 40, 40, 4070, true, false, true, 0, DG_F16, 0, 0},
    {192, 2, 1, 11, 11, 4090, false, false, false, 0, DG_F16, 0, 0},
    {64, 4, 2, 300, 300, 4000, true, true, true, 200, DG_F16, 0, 0},
    {64, 4, 2, 30, 30, 2000, false, true, true, 64, DG_F16, 0, 1100},
    {128, 4, 1, 12, 12, 700, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0},
    {64, 2, 1, 9, 9, 3000, false, false, false, 0, DG_F32, 7, 0},
    {512, 4, 2, 5, 4, 90, false, false, false, 0, DG_F16, 33, 0},
    /* around a tile of 64 positions, and windows that end beside one */
    {64, 2, 1, 3, 3, 62, true, true, true, 63, DG_F32, 0, 0},
    {64, 2, 1, 3, 3, 63, false, true, true, 65, DG_F32, 0, 0},
    {64, 6, 2, 130, 130, 61, true, true, true, 66, DG_F16, 0, 0},
    {32, 16, 1, 66, 65, 128, false, false, true, 0, DG_F32, 0, 0},
    {16, 3, 3, 7, 7, 191, true, false, true, 0, DG_F16, 0, 0},
    {80, 10, 2, 20, 20, 64, true, false, false, 0, DG_F16, 0, 0},
    /* the ring wraps inside the batch, and inside a window */
    {64, 2, 2, 90, 90, 2000, true, true, true, 100, DG_F32, 0, 0},
    {64, 4, 1, 12, 10, 1023, false, true, true, 64, DG_F16, 0, 0},
    /* rows that see fewer keys than they may keep beside rows that see more; a few keys of many */
    {64, 8, 1, 60, 60, 30, true, false, true, 0, DG_F16, DG_TOPK_DYN, 0},
    {128, 2, 1, 6, 6, 4500, false, false, true, 0, DG_F16, 1, 0},
    {64, 4, 2, 21, 21, 4000, true, false, true, 0, DG_F32, 300, 0},
    /* the head dimensions of kernels of their own: tiles of 64 keys, window edges, rings that wrap, one row, more than one part */
    {256, 2, 1, 1, 1, 0, true, true, true, 512, DG_F16, 0, 0},
    {256, 2, 1, 5, 5, 62, true, true, true, 64, DG_F16, 0, 0},
    {256, 4, 2, 66, 66, 127, true, true, true, 65, DG_F16, 0, 0},
    {256, 4, 4, 12, 10, 1023, false, true, true, 64, DG_F16, 0, 0},
    {256, 8, 2, 70, 69, 2040, false, true, true, 128, DG_F16, 0, 1900},
    {256, 16, 8, 90, 90, 990, true, true, true, 600, DG_F16, 0, 0},
    {256, 6, 1, 40, 40, 4100, true, false, true, 0, DG_F16, 0, 0},
    {256, 16, 8, 256, 256, 700, false, true, true, 700, DG_F16, 0, 0},
    {256, 16, 8, 300, 300, 3000, true, true, true, 700, DG_F16, 0, 0},
    /* a canvas over 256 dimensions: fewer tiles of keys than share them, from each of four places on, a number of them that four does not divide;
     * every number of heads to a kv head, an odd number of kv heads; rings that wrap inside; no window, in a cache that ends within a tile */
    {256, 2, 1, 9, 7, 0, false, true, true, 512, DG_F16, 0, 0},
    {256, 3, 1, 50, 47, 150, false, true, true, 300, DG_F16, 0, 0},
    {256, 4, 2, 20, 20, 200, false, true, true, 70, DG_F16, 0, 0},
    {256, 4, 2, 20, 17, 1010, false, true, true, 30, DG_F16, 0, 0},
    {256, 5, 1, 40, 40, 1100, false, true, true, 500, DG_F16, 0, 0},
    {256, 16, 8, 100, 96, 1900, false, true, true, 700, DG_F16, 0, 0},
    {256, 6, 3, 30, 27, 640, false, true, true, 400, DG_F16, 0, 0},
    {256, 4, 2, 24, 21, 60, false, false, false, 0, DG_F16, 0, 0},
    {256, 12, 3, 33, 33, 2500, false, false, true, 0, DG_F16, 0, 0},
    {512, 2, 1, 1, 1, 63, true, false, false, 0, DG_F16, 0, 0},
    {512, 3, 1, 7, 7, 0, true, false, true, 0, DG_F16, 0, 0},
    {512, 8, 2, 33, 33, 500, true, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 20, 18, 4096, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 70, 70, 2040, true, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 256, 256, 512, false, false, false, 0, DG_F16, 0, 0},
    {512, 2, 2, 9, 9, 1000, true, true, true, 100, DG_F16, 0, 0},
    /* a canvas over 512 dimensions: ends at, before and behind a tile of keys and a part; even and odd numbers of tiles of 64 (row, head) pairs, and
     * other numbers without the padding rows; every number of heads to a kv head; windows, with rings that wrap inside */
    {512, 16, 2, 16, 16, 48, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 16, 13, 51, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 17, 16, 113, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 24, 9, 118, false, false, true, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 1, 319, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 1, 1023, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 3, 1024, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 9, 8, 1025, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 32, 31, 1249, false, false, false, 0, DG_F16, 0, 0},
    {512, 4, 4, 128, 127, 700, false, false, true, 0, DG_F16, 0, 0},
    {512, 6, 2, 43, 40, 1150, false, false, false, 0, DG_F16, 0, 0},
    {512, 5, 1, 26, 25, 2047, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 256, 200, 1100, false, false, false, 0, DG_F16, 0, 0},
    {512, 6, 3, 30, 30, 900, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 2, 32, 32, 1000, false, true, true, 100, DG_F16, 0, 0},
    {512, 8, 2, 32, 30, 2030, false, true, true, 128, DG_F16, 0, 1950},
    /* caches in eight bits */
    {64, 4, 2, 70, 69, 300, true, true, true, 64, DG_Q8, 0, 0},
    {512, 16, 2, 9, 9, 130, false, false, false, 0, DG_Q8, 0, 0},
    {10, 2, 1, 5, 5, 3, true, false, true, 0, DG_Q8, 0, 0},
    {128, 4, 2, 6, 6, 4400, false, false, true, 0, DG_Q8, DG_TOPK_DYN, 0},
};

/* Full layers that attend to the highest scores; key t is key t - twins where that is not 0. Those with one kv head or few positions are also
 * for the emulator, which multiplies whole tiles. */
static const struct {
    struct kv_case c;
    int twins;
} top_cases[] = {
    /* around the first visible positions, where all are kept; a tile of 128 positions; more groups of 32 than keys kept */
    {{512, 16, 2, 12, 12, 0, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 16, 2, 9, 8, 60, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 16, 2, 6, 6, 124, true, false, true, 0, DG_F16, 31, 0}, 0},
    {{512, 6, 1, 3, 2, 2046, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 5, 5, 2045, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 4, 3, 4400, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 6, 2, 4, 4, 3001, true, false, true, 0, DG_F16, 1, 0}, 0},
    /* so many kept that the list of candidates does not hold them */
    {{512, 4, 1, 3, 3, 4300, true, false, false, 0, DG_F16, 512, 0}, 0},
    {{192, 4, 1, 3, 3, 3000, true, false, true, 0, DG_F16, 600, 0}, 0},
    {{256, 4, 2, 9, 7, 2500, false, false, true, 0, DG_F16, 100, 0}, 0},
    /* equal scores: all of them, a third, and in pairs far apart */
    {{512, 4, 1, 4, 4, 2300, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 1},
    {{512, 4, 1, 3, 2, 4500, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 3},
    {{512, 8, 2, 4, 4, 2900, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 1000},
    {{128, 4, 2, 5, 5, 150, true, false, true, 0, DG_F16, 63, 0}, 40},
    {{64, 2, 1, 4, 4, 1000, true, false, true, 0, DG_F32, 100, 0}, 7},
    /* many rows: more than one tile of a kv head */
    {{512, 4, 2, 300, 300, 2500, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 130, 124, 3900, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 900},
    {{512, 16, 2, 130, 130, 50, true, false, false, 0, DG_F16, 64, 0}, 0},
};

/* Cases above in as few rows and heads as show the same, for an emulated processor. */
static const struct kv_case kv_emulated[] = {
    {256, 4, 2, 13, 13, 1020, true, true, true, 200, DG_F16, 0, 0},
    {256, 4, 2, 20, 20, 1000, false, true, true, 64, DG_F32, 0, 0},
    {512, 8, 1, 7, 7, 130, false, false, false, 0, DG_F16, 0, 0},
    {128, 1, 1, 7, 7, 4092, true, false, true, 0, DG_F16, 0, 0},
    {192, 1, 1, 4, 4, 4094, false, false, false, 0, DG_F16, 0, 0},
    {64, 2, 1, 21, 21, 2000, false, true, true, 64, DG_F16, 0, 1100},
    {128, 2, 1, 3, 3, 4500, false, false, true, 0, DG_F16, 1, 0},
    {64, 2, 1, 7, 7, 4000, true, false, true, 0, DG_F32, 300, 0},
    {256, 2, 2, 35, 35, 127, true, true, true, 65, DG_F16, 0, 0},
    {256, 4, 1, 17, 16, 2040, false, true, true, 128, DG_F16, 0, 1900},
    {512, 8, 1, 5, 5, 130, false, false, false, 0, DG_Q8, 0, 0},
    {128, 2, 1, 3, 3, 4400, false, false, true, 0, DG_Q8, DG_TOPK_DYN, 0},
};

/* A value of a cache as stored. */
static double kv_value(const struct dg_kv_layer *kv, const unsigned char *raw, int64_t slot, int32_t h, int d) {
    const unsigned char *head = raw + (size_t)(slot * kv->kv_heads + h) * dg_kv_head_bytes(kv->dtype, kv->hd);
    if (kv->dtype != DG_Q8)
        return op_get(head, kv->dtype, d);
    float scale;
    memcpy(&scale, head, sizeof scale);
    return (double)scale * ((const signed char *)head)[sizeof scale + (size_t)d];
}

/* A cache whose positions [0, filled) hold values and all others NaN. val: [slots][kv_heads][hd] or NULL. twins: of a whole cache, key t is
 * key t - twins; 0 = all differ. */
static struct dg_kv_layer make_kv(struct op_run *r, const struct kv_case *c, int64_t filled, int twins, double **k, double **v) {
    int64_t slots = c->ring ? KV_SLOTS : r->c->small ? c->pos0 + c->n + 37 : KV_FULL;
    size_t heads = (size_t)slots * (size_t)c->kv_heads, bytes = heads * dg_kv_head_bytes(c->kv, c->hd);
    struct dg_kv_layer kv = {NULL, NULL, c->kv, c->kv_heads, c->hd, slots, c->ring, c->window};
    double **val[2] = {k, v};
    for (int which = 0; which < 2; which++) {
        double *d = op_memory(r, heads * (size_t)c->hd * sizeof *d);
        unsigned char *raw = op_memory(r, bytes);
        memset(raw, 0xff, bytes);
        int64_t from = c->ring && filled > KV_SLOTS ? filled - KV_SLOTS : 0;
        for (int64_t i = from * c->kv_heads; i < filled * c->kv_heads; i++) {
            int64_t slot = dg_kv_slot(&kv, i / c->kv_heads), at = slot * c->kv_heads + i % c->kv_heads;
            unsigned char *head = raw + (size_t)at * dg_kv_head_bytes(c->kv, c->hd);
            float x[HEAD_DIM];
            for (int e = 0; e < c->hd; e++) {
                double value = op_normal(r) * (which ? 1 : 0.4);
                x[e] = (float)value;
                if (c->kv != DG_Q8)
                    op_put(head, c->kv, e, value);
            }
            if (c->kv == DG_Q8)
                dg_kv_q8_store(x, c->hd, head);
            if (twins && !which && slot >= twins)
                memcpy(head, head - (size_t)(twins * c->kv_heads) * dg_kv_head_bytes(c->kv, c->hd), dg_kv_head_bytes(c->kv, c->hd));
            for (int e = 0; e < c->hd; e++)
                d[at * c->hd + e] = kv_value(&kv, raw, slot, (int32_t)(i % c->kv_heads), e);
        }
        *val[which] = d;
        *(which ? &kv.v : &kv.k) = op_upload(r, raw, bytes);
    }
    return kv;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Drops all but the k highest scores, of equal ones the first. Returns the weight of those so near the edge, and not equal to it, that rounding
 * by `slack` may decide about them. */
static double keep_top(double *s, int64_t n, int64_t k, double slack, double max) {
    if (k >= n)
        return 0;
    double *tmp = malloc((size_t)n * sizeof *tmp), least, near = 0;
    if (!tmp)
        abort();
    memcpy(tmp, s, (size_t)n * sizeof *tmp);
    qsort(tmp, (size_t)n, sizeof *tmp, rising);
    least = tmp[n - k];
    bool decided = tmp[n - k] - tmp[n - k - 1] > slack, all_equal = true;
    int64_t equal = 0;
    free(tmp);
    for (int64_t i = 0; i < n; i++) {
        if (fabs(s[i] - least) <= slack) {
            near += exp(s[i] - max);
            all_equal &= s[i] >= least && s[i] <= least;
        }
        equal += s[i] > least; /* at first those that leave no room for an equal one */
    }
    for (int64_t i = 0; i < n; i++) {
        bool is = s[i] >= least && s[i] <= least, kept = s[i] > least || (is && equal < k);
        equal += is;
        s[i] = kept ? s[i] : -INFINITY;
    }
    return decided || all_equal ? 0 : near;
}

static void one_attention(struct op_run *r, const struct kv_case *c, int twins) {
    const struct dg_ops *op = r->c->be->ops;
    double *k, *v;
    int64_t end = c->pos0 + c->live, row = (int64_t)c->kv_heads * c->hd;
    struct dg_kv_layer kv = make_kv(r, c, end, twins, &k, &v);
    struct dg_batch b = {c->n, c->live, c->pos0, c->causal, c->ring_from ? c->ring_from : -1, c->topk};
    struct op_plane q = op_input(r, c->n, c->heads * c->hd + 24, op->act, 0.4), y = op_output(r, c->n, c->heads * c->hd, op->act);
    op->attention(r->c->be, &q.p, c->heads, &b, &kv, &y.p);
    op_fetch(r, &y);
    double *s = op_memory(r, (size_t)(end + 1) * sizeof *s);
    for (int i = 0; op_checks(r) && i < c->live; i++)
        for (int h = 0; h < c->heads; h++) {
            int64_t lo, hi, kvh = h / (c->heads / c->kv_heads);
            const double *qr = q.v + i * q.p.cols + h * c->hd;
            double max = -INFINITY, sum = 0, ds = 0;
            dg_batch_visible(&b, &kv, i, &lo, &hi);
            for (int64_t t = lo; t < hi; t++) {
                const double *kr = k + dg_kv_slot(&kv, t) * row + kvh * c->hd;
                double mag = 0;
                s[t] = 0;
                for (int d = 0; d < c->hd; d++) {
                    s[t] += qr[d] * kr[d];
                    mag += fabs(qr[d] * kr[d]);
                }
                ds = fmax(ds, mag * sum_bound(c->hd));
                max = fmax(max, s[t]);
            }
            /* an edge of top-k within rounding of the next score may fall either way: such rows get the dropped weight as slack */
            double edge = c->topk ? keep_top(s + lo, hi - lo, dg_batch_keys(&b, hi - lo), 2 * ds, max) : 0;
            for (int64_t t = lo; t < hi; t++)
                sum += s[t] = exp(s[t] - max);
            for (int d = 0; d < c->hd; d++) {
                double want = 0, mag = 0;
                for (int64_t t = lo; t < hi; t++) {
                    double vt = v[dg_kv_slot(&kv, t) * row + kvh * c->hd + d];
                    want += s[t] / sum * vt;
                    mag += s[t] / sum * fabs(vt);
                }
                op_expect(r, &y, i, h * c->hd + d, want,
                          mag * (2.5 * ds + 2 * (double)(hi - lo + 48) * U + 2 * r->c->prob_round) + act_round(r) * fabs(want) +
                              8 * edge / sum + 1e-37 + (r->c->prob_round > 0 ? 5 * (double)(hi - lo) * 0x1p-25 / sum : 0));
            }
        }
    /* the last rows of the same batch computed alone: a causal row must not notice; others see the same keys without the padding rows */
    int from = c->live > 2 && c->causal ? c->live / 2 : 0;
    if (from || (!c->causal && c->n > c->live)) {
        struct dg_batch tail = {c->live - from, c->live - from, c->pos0 + from, c->causal, from ? -1 : b.ring_from, c->topk};
        struct dg_plane part = op_rows(&q, from, tail.n);
        struct op_plane again = op_output(r, tail.n, c->heads * c->hd, op->act);
        op->attention(r->c->be, &part, c->heads, &tail, &kv, &again.p);
        op_fetch(r, &again);
        op_expect_same(r, &y, from, &again, 0, tail.n);
    }
    op_done(r, "hd=%d heads=%d/%d n=%d pos0=%lld window=%d top %d twins %d %s %s, rows %s", c->hd, c->heads, c->kv_heads, c->n,
            (long long)c->pos0, c->window, c->topk, twins, c->causal ? "causal" : "both ways",
            c->kv == DG_F16 ? "f16" : c->kv == DG_Q8 ? "q8" : "f32", r->rows_at == OP_ROWS_WHOLE ? "at whole vectors" : "at odd places");
}

/* Products of a case: what an emulator or a checker can take of the large ones is little. */
static bool small_case(const struct op_run *r, const struct kv_case *c) {
    int64_t keys = c->n + (c->window && !c->ring_from ? c->window : c->ring_from ? c->pos0 - c->ring_from : c->pos0);
    return c->n * c->heads < 700 && keys * c->n * c->heads * c->hd < (r->c->emulated ? 4500000 : 50000000);
}

static void case_attention(struct op_run *r) {
    for (size_t i = 0; i < sizeof kv_cases / sizeof *kv_cases; i++)
        if ((!r->c->small || small_case(r, &kv_cases[i])) && (kv_cases[i].kv != DG_Q8 || r->c->be->ops->kv_q8))
            for (r->rows_at = OP_ROWS_WHOLE; r->rows_at <= (i % 4 ? OP_ROWS_WHOLE : OP_ROWS_ODD); r->rows_at++)
                one_attention(r, &kv_cases[i], 0);
    r->rows_at = OP_ROWS_WHOLE;
    for (size_t i = 0; i < sizeof top_cases / sizeof *top_cases; i++)
        if (!r->c->small || (small_case(r, &top_cases[i].c) && (top_cases[i].c.kv_heads == 1 || top_cases[i].c.pos0 < 500)))
            one_attention(r, &top_cases[i].c, top_cases[i].twins);
    for (size_t i = 0; r->c->emulated && i < sizeof kv_emulated / sizeof *kv_emulated; i++)
        one_attention(r, &kv_emulated[i], 0);
    r->rows_at = OP_ROWS_ANY;
}

static void one_qkv(struct op_run *r, const struct kv_case *c) {
    const struct dg_ops *op = r->c->be->ops;
    int hd = c->hd, half = hd / 2, cols = (c->heads + (c->has_v ? 2 : 1) * c->kv_heads) * hd;
    double *k, *v;
    struct dg_kv_layer kv = make_kv(r, c, 0, 0, &k, &v);
    struct dg_batch b = {c->n, c->live, c->pos0, c->causal, c->ring_from ? c->ring_from : -1, c->topk};
    struct op_plane x = op_input(r, c->n, cols, op->act, 2);
    struct op_vec qn = op_vec(r, hd, 1), kn = op_vec(r, hd, 1);
    float *cs = op_memory(r, (size_t)(c->n * half) * sizeof *cs), *sn = op_memory(r, (size_t)(c->n * half) * sizeof *sn);
    for (int i = 0; i < c->n * half; i++) {
        double a = op_normal(r) * 3;
        cs[i] = (float)cos(a);
        sn[i] = (float)sin(a);
    }
    size_t bytes = (size_t)(c->n * half) * sizeof *cs, n = (size_t)kv.slots * (size_t)c->kv_heads * dg_kv_head_bytes(c->kv, hd);
    op->qkv_store(r->c->be, &x.p, c->heads, c->has_v, &qn.v, &kn.v, 1e-6f, op_upload(r, cs, bytes), op_upload(r, sn, bytes), &b, &kv);
    double *before = x.v;
    x.v = NULL;
    op_fetch(r, &x);
    const unsigned char *rk = op_download(r, kv.k, n), *rv = op_download(r, kv.v, n);
    double store = c->kv == DG_F16 ? 0x1p-11 : U, *seen = op_memory(r, (size_t)KV_FULL * sizeof *seen);
    for (int i = 0; op_checks(r) && i < c->n; i++)
        for (int u = 0; u < c->heads + 2 * c->kv_heads; u++) {
            bool is_q = u < c->heads, is_v = u >= c->heads + c->kv_heads;
            int h = is_v ? u - c->heads - c->kv_heads : is_q ? u : u - c->heads;
            const double *src = before + (int64_t)i * cols + (is_v && !c->has_v ? c->heads + h : u) * hd, *w = is_q ? qn.w : kn.w;
            double rms = inv_rms(src, hd);
            int64_t slot = dg_kv_slot(&kv, c->pos0 + i);
            seen[slot] = i < c->live;
            double step = 0; /* of the head's eight bits */
            for (int d = 0; c->kv == DG_Q8 && !is_q && i < c->live && d < hd; d++)
                step = fmax(step, fabs(kv_value(&kv, is_v ? rv : rk, slot, h, d)) / 127);
            for (int d = 0; d < hd; d++) {
                int p = d % half;
                double a = src[p] * rms * w[p], bb = src[p + half] * rms * w[p + half], co = cs[i * half + p], si = sn[i * half + p];
                double want = is_v ? src[d] * rms : d < half ? a * co - bb * si : bb * co + a * si;
                double mag = is_v ? fabs(want) : d < half ? fabs(a * co) + fabs(bb * si) : fabs(bb * co) + fabs(a * si);
                if (is_q)
                    op_expect(r, &x, i, u * hd + d, want, mag * sum_bound(hd) + act_round(r) * fabs(want) + 1e-37);
                else if (i < c->live)
                    op_expect_value(r, kv_value(&kv, is_v ? rv : rk, slot, h, d), want,
                                    mag * sum_bound(hd) + store * fabs(want) + 0.501 * step + 0x1p-24, "kv", i, d);
            }
        }
    for (int64_t slot = 0; op_checks(r) && slot < kv.slots; slot++)
        if (!seen[slot] && !isnan(kv_value(&kv, rk, slot, 0, 0)))
            op_fail(r, "slot %lld was written by nobody's row", (long long)slot);
    op_done(r, "hd=%d heads=%d/%d n=%d live=%d pos0=%lld %s", hd, c->heads, c->kv_heads, c->n, c->live, (long long)c->pos0,
            c->has_v ? "v" : "v is k");
}

static void case_qkv_store(struct op_run *r) {
    for (size_t i = 0; i < sizeof kv_cases / sizeof *kv_cases; i++)
        if ((kv_cases[i].kv != DG_Q8 || r->c->be->ops->kv_q8) && (!r->c->emulated || small_case(r, &kv_cases[i])))
            one_qkv(r, &kv_cases[i]);
    for (size_t i = 0; r->c->emulated && i < sizeof kv_emulated / sizeof *kv_emulated; i++)
        one_qkv(r, &kv_emulated[i]);
}

/* Duplicated experts give equal logits: the lower id must win. */
static void one_router(struct op_run *r, int m, int experts, int k, int topk, bool twins) {
    struct dg_backend *be = r->c->be;
    weights_are(r, DG_FMT_BF16);
    struct op_plane x = op_input(r, m, k, be->ops->act, 1);
    struct op_mat w = op_mat(r, DG_FMT_BF16, experts, k, 1);
    if (twins) {
        for (int e = 1; e < experts; e += 2)
            op_mat_copy_row(&w, e, e - 1);
        op_mat_send(r, &w);
    }
    struct op_vec scale = op_vec(r, experts, 1);
    size_t n = (size_t)(m * topk);
    struct dg_routing out = {op_poisoned(r, n * 4), op_poisoned(r, n * 4), topk};
    be->ops->router(be, &x.p, &w.m, &scale.v, &out);
    const int32_t *id = op_download(r, out.expert, n * 4);
    const float *wt = op_download(r, out.weight, n * 4);
    double *z = op_memory(r, (size_t)experts * sizeof *z);
    for (int i = 0; op_checks(r) && i < m; i++) {
        double slack = 0, bound, kept = 0;
        for (int e = 0; e < experts; e++) {
            z[e] = dot(r, x.v + i * k, w.v + e * k, k, &bound);
            slack = fmax(slack, bound);
        }
        for (int j = 0; j < topk; j++) {
            int32_t e = id[i * topk + j];
            if (e < 0 || e >= experts) {
                op_fail(r, "row %d rank %d: expert %d", i, j, e);
                return;
            }
            kept += exp(z[e]);
        }
        for (int j = 0; j < topk; j++) {
            int32_t e = id[i * topk + j];
            /* nothing left out, and nothing behind, is clearly stronger; of equals the lower id comes first */
            for (int q = 0; q < experts; q++) {
                int at = 0;
                while (at < topk && id[i * topk + at] != q)
                    at++;
                if (at > j && (z[q] > z[e] + 2 * slack || (twins && z[q] == z[e] && q < e)))
                    op_fail(r, "row %d rank %d: expert %d before %d", i, j, e, q);
                if (at < j && id[i * topk + at] == e)
                    op_fail(r, "row %d: expert %d twice", i, e);
            }
            double want = exp(z[e]) / kept * scale.w[e];
            op_expect_value(r, wt[i * topk + j], want, fabs(want) * (4 * slack + 40 * U), "weight", i, j);
        }
    }
    op_done(r, "m=%d experts=%d k=%d top %d%s", m, experts, k, topk, twins ? " twins" : "");
}

static void case_router(struct op_run *r) {
    one_router(r, 1, 4, 32, 2, false);
    one_router(r, 67, 16, 256, 4, true);
    one_router(r, 130, 128, 416, 8, false);
    one_router(r, 9, 128, 416, 8, true);
    one_router(r, 35, 128, 3264, 8, true);
    one_router(r, 5, 300, 37, 8, false);
    one_router(r, 3, 8, 64, 8, false);
}

/* experts whose sum is left to sum_chain, against experts with a norm_chain behind. */
static void sum_chain_is(struct op_run *r, const struct dg_plane *x, const struct dg_routing *route, const struct dg_stack *gu,
                         const struct dg_stack *dn) {
    const struct dg_ops *op = r->c->be->ops;
    int n = x->rows, k = dn->n;
    r->rows_at = OP_ROWS_WHOLE;
    struct op_plane a[2], res[2], out[2], sum = op_output(r, n, k, DG_F32);
    struct op_vec wa = op_vec(r, k, 1), wb = op_vec(r, k, 1), w = op_vec(r, k, 1), wy = op_vec(r, k, 1);
    for (int i = 0; i < 2; i++) {
        a[i] = op_output(r, n, k, op->act);
        res[i] = op_output(r, n, k, op->act);
        out[i] = op_output(r, n, k, op->act);
        op->rms_norm(r->c->be, x, &wa.v, 2, 1e-6f, &a[i].p);
        op->rms_norm(r->c->be, x, &wb.v, 3, 1e-6f, &res[i].p);
        const struct dg_norm_out outs = {&wy.v, 0.5f, &out[i].p};
        op->experts(r->c->be, x, route, gu, dn, i ? NULL : &sum.p);
        if (i) {
            op->sum_chain(r->c->be, &a[i].p, &wa.v, route, &sum.p, &wb.v, &w.v, 1e-6f, 0.75f, &res[i].p, &outs, 1);
        } else {
            op->norm_chain(r->c->be, &a[i].p, &wa.v, &sum.p, &wb.v, &w.v, 1e-6f, 0.75f, &res[i].p, &outs, 1);
        }
        op_fetch(r, &res[i]);
        op_fetch(r, &out[i]);
    }
    op_expect_same(r, &res[0], 0, &res[1], 0, n);
    op_expect_same(r, &out[0], 0, &out[1], 0, n);
    r->rows_at = OP_ROWS_ANY;
}

/* Which experts a case's rows go to. */
struct spread {
    enum { DRAWN, LOPSIDED, COUNTED } kind; /* lopsided: most rows go to one expert, so that its rows fill several tiles while others get none */
    const int32_t *count;                   /* COUNTED: rows of each expert, one expert a row */
};

/* The expert of row i of m, of as many rows as the counts say, in an order that mixes the experts. */
static int32_t counted(const int32_t *count, int m, int i) {
    int64_t at = (int64_t)i * 7919 % m;
    int32_t e = 0;
    while (at >= count[e])
        at -= count[e++];
    return e;
}

static void one_experts(struct op_run *r, enum dg_format fmt, int m, int experts, int topk, int moe, int hidden, struct spread to) {
    struct dg_backend *be = r->c->be;
    weights_are(r, fmt);
    struct op_plane x = op_input(r, m, hidden, be->ops->act, 1), y = op_output(r, m, hidden, DG_F32);
    struct op_stack gu = op_stack(r, fmt, experts, 2 * moe, hidden), dn = op_stack(r, fmt, experts, hidden, moe);
    if (r->c->prepare_experts)
        r->c->prepare_experts(be, &gu.s, &dn.s);
    size_t pairs = (size_t)(m * topk);
    int32_t *id = op_memory(r, pairs * 4);
    float *wt = op_memory(r, pairs * 4);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < topk; j++) {
            int32_t e;
            bool taken;
            do {
                e = to.kind == LOPSIDED && j == 0 ? experts / 2 : (int32_t)(op_random(r) % (uint64_t)experts);
                if (to.kind == COUNTED)
                    e = counted(to.count, m, i);
                taken = false;
                for (int q = 0; q < j; q++)
                    taken |= id[i * topk + q] == e;
            } while (taken);
            id[i * topk + j] = e;
            wt[i * topk + j] = (float)fabs(op_normal(r));
        }
    struct dg_routing route = {op_upload(r, id, pairs * 4), op_upload(r, wt, pairs * 4), topk};
    be->ops->experts(be, &x.p, &route, &gu.s, &dn.s, &y.p);
    op_fetch(r, &y);
    if (be->ops->sum_chain)
        sum_chain_is(r, &x.p, &route, &gu.s, &dn.s);
    double *h = op_memory(r, (size_t)moe * sizeof *h), *bh = op_memory(r, (size_t)moe * sizeof *bh);
    double *want = op_memory(r, (size_t)hidden * sizeof *want), *bound = op_memory(r, (size_t)hidden * sizeof *bound);
    for (int i = 0; op_checks(r) && i < m; i++) {
        memset(want, 0, (size_t)hidden * sizeof *want);
        memset(bound, 0, (size_t)hidden * sizeof *bound);
        for (int j = 0; j < topk; j++) {
            int32_t e = id[i * topk + j];
            const double *g = gu.v + (int64_t)e * 2 * moe * hidden, *d = dn.v + (int64_t)e * hidden * moe;
            for (int f = 0; f < moe; f++) {
                h[f] = glu(r, x.v + i * hidden, g + f * hidden, g + (moe + f) * hidden, hidden, &bh[f]);
                bh[f] += act_round(r) * (fabs(h[f]) + bh[f]);
            }
            for (int c = 0; c < hidden; c++) {
                double b, s = dot(r, h, d + c * moe, moe, &b);
                for (int f = 0; f < moe; f++)
                    b += fabs(d[c * moe + f]) * bh[f] * 1.01;
                want[c] += wt[i * topk + j] * s;
                bound[c] += wt[i * topk + j] * (b + (topk + 2) * U * fabs(s));
            }
        }
        for (int c = 0; c < hidden; c++)
            op_expect(r, &y, i, c, want[c], bound[c] + U * fabs(want[c]));
    }
    if (m > 3) {
        int from = m / 3, n = m - from;
        struct dg_plane part = op_rows(&x, from, n);
        struct dg_routing rest = {op_upload(r, id + from * topk, (size_t)(n * topk) * 4),
                                  op_upload(r, wt + from * topk, (size_t)(n * topk) * 4), topk};
        struct op_plane again = op_output(r, n, hidden, DG_F32);
        be->ops->experts(be, &part, &rest, &gu.s, &dn.s, &again.p);
        op_fetch(r, &again);
        op_expect_same(r, &y, from, &again, 0, n);
        struct dg_plane last = op_rows(&x, m - 1, 1);
        struct dg_routing its = {op_upload(r, id + (m - 1) * topk, (size_t)topk * 4), op_upload(r, wt + (m - 1) * topk, (size_t)topk * 4), topk};
        struct op_plane alone = op_output(r, 1, hidden, DG_F32);
        be->ops->experts(be, &last, &its, &gu.s, &dn.s, &alone.p);
        op_fetch(r, &alone);
        op_expect_same(r, &y, m - 1, &alone, 0, 1);
    }
    op_done(r, "%s m=%d experts=%d top %d moe=%d hidden=%d%s", dg_format_traits(fmt)->name, m, experts, topk, moe, hidden,
            to.kind == LOPSIDED ? " lopsided" : to.kind == COUNTED ? " counted" : "");
}

/* Entries of many tokens on Hopper: every width of their tiles, one more and one less; an expert without rows among them. */
static void many_tokens(struct op_run *r, enum dg_format fmt) {
    static const int32_t edges[] = {1, 63, 64, 65, 0, 127, 128, 129, 300}, widths[] = {31, 33, 79, 81, 96, 97, 112, 113}, cut[] = {129, 0, 16};
    const struct spread by_edges = {COUNTED, edges}, by_widths = {COUNTED, widths}, by_cut = {COUNTED, cut};
    one_experts(r, fmt, 877, 9, 1, 128, 320, by_edges);
    one_experts(r, fmt, 642, 8, 1, 192, 192, by_widths);
    one_experts(r, fmt, 145, 3, 1, 704, 2816, by_cut);
    one_experts(r, fmt, 520, 4, 2, 64, 64, (struct spread){DRAWN, NULL});
}

static void case_experts(struct op_run *r) {
    const struct spread drawn = {DRAWN, NULL}, lopsided = {LOPSIDED, NULL};
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_Q4_BLOCK, DG_FMT_Q6_BLOCK, DG_FMT_NVFP4_BLOCK, DG_FMT_F32, DG_FMT_Q8_ROW};
    for (size_t f = 0; f < 6; f++) {
        one_experts(r, fmts[f], 3, 5, 2, 32, 64, drawn);
        one_experts(r, fmts[f], r->c->emulated ? 20 : 45, 16, 4, 96, 160, drawn);
        if (!r->c->small || f < 2)
            one_experts(r, fmts[f], 150, 9, 2, 64, 96, lopsided);
        if (!r->c->small)
            one_experts(r, fmts[f], 64, 130, 8, 160, HIDDEN, drawn);
        /* widths of the kernels for compute capability 9.0: few and many tokens an expert, whole and cut entries */
        if (fmts[f] == DG_FMT_Q4_BLOCK || fmts[f] == DG_FMT_NVFP4_BLOCK) {
            one_experts(r, fmts[f], 9, 5, 2, 64, 128, drawn);
            one_experts(r, fmts[f], 70, 2, 1, 64, 64, lopsided);
            if (!r->c->small) {
                one_experts(r, fmts[f], 100, 40, 8, 192, 256, lopsided);
                one_experts(r, fmts[f], 70, 128, 8, 64, 320, drawn);
                one_experts(r, fmts[f], 300, 6, 3, 128, 256, lopsided);
                one_experts(r, fmts[f], 5, 4, 2, 704, 384, drawn);
                many_tokens(r, fmts[f]);
            }
        }
    }
}

static int32_t stats_tiles(struct op_run *r, int vocab) {
    int32_t tile = r->c->be->ops->stats_tile;
    return tile ? (vocab - 1) / tile + 1 : 0;
}

/* The statistics of rows of logits against sums in double. */
static void check_stats(struct op_run *r, const float *z, int64_t ld, int rows, int vocab, float inv_t, const struct dg_row_stats *s) {
    size_t n = (size_t)rows * 4;
    const float *h = op_download(r, s->entropy, n), *max = op_download(r, s->max, n), *sum = op_download(r, s->sum, n),
                *pm = op_download(r, s->p_max, n);
    const int32_t *arg = op_download(r, s->argmax, n), tiles = stats_tiles(r, vocab), tile = r->c->be->ops->stats_tile;
    const float *top_of = tiles ? op_download(r, s->tile_max, n * (size_t)tiles) : NULL;
    for (int i = 0; op_checks(r) && i < rows; i++) {
        const float *row = z + i * ld;
        int best = 0, bad = 0;
        for (int v = 0; v < vocab; v++) {
            best = row[v] > row[best] ? v : best;
            bad |= !isfinite(row[v]);
        }
        if (bad) {
            if (!isnan(h[i]))
                op_fail(r, "row %d holds NaN or Inf and its entropy is %g", i, (double)h[i]);
            continue;
        }
        double top = (double)(row[best] * inv_t), total = 0, moment = 0, slack = 0, mag = 0;
        for (int v = 0; v < vocab; v++) {
            double d = (double)row[v] * (double)inv_t - top, e = exp(d);
            total += e;
            moment += e * d;
            slack += e * (3 * fabs(d) + d * d + 8) * U; /* exp of an argument rounded at |d|, times d */
            mag += e * fabs(d);
        }
        double rel = slack / total + 64 * U;
        for (int t = 0; t < tiles; t++) {
            float most = row[t * tile];
            for (int v = t * tile; v < vocab && v < (t + 1) * tile; v++)
                most = fmaxf(most, row[v]);
            op_expect_value(r, top_of[i * tiles + t], most, 0, "tile_max", i, t);
        }
        op_expect_value(r, arg[i], best, 0, "argmax", i, 0);
        op_expect_value(r, max[i], top, 0, "max", i, 0);
        op_expect_value(r, sum[i], total, rel * total, "sum", i, 0);
        op_expect_value(r, pm[i], 1 / total, rel / total, "p_max", i, 0);
        op_expect_value(r, h[i], log(total) - moment / total, rel * (2 + 2 * mag / total) + 2 * U * fabs(log(total)), "entropy", i, 0);
    }
}

static struct dg_row_stats make_stats(struct op_run *r, int rows, int vocab) {
    size_t n = (size_t)rows * 4, tiles = (size_t)stats_tiles(r, vocab);
    return (struct dg_row_stats){op_poisoned(r, n), op_poisoned(r, n), op_poisoned(r, n), op_poisoned(r, n), op_poisoned(r, n),
                                 tiles ? op_poisoned(r, n * tiles) : NULL};
}

/* Statistics of n rows, from one on, are those of another run to the bit. */
static void same_stats(struct op_run *r, const struct dg_row_stats *a, int from, const struct dg_row_stats *b, int n) {
    const void *mine[] = {a->entropy + from, a->max + from, a->sum + from, a->p_max + from, a->argmax + from},
               *theirs[] = {b->entropy, b->max, b->sum, b->p_max, b->argmax};
    for (int i = 0; i < 5; i++) {
        const uint32_t *x = op_download(r, mine[i], (size_t)n * 4), *y = op_download(r, theirs[i], (size_t)n * 4);
        for (int j = 0; op_checks(r) && j < n; j++)
            if (x[j] != y[j])
                op_fail(r, "statistic %d of row %d depends on the rows beside it: %08x and %08x", i, from + j, x[j], y[j]);
    }
}

enum head_rows {
    HEAD_PLAIN,
    HEAD_FLAT, /* of four rows one of zeros, whose logits are all equal, one of which many logits reach the cap, one that holds NaN or Inf */
    HEAD_TWINS, /* the later half of the ids repeats the first: every largest logit is there twice */
    HEAD_ODD    /* logits alone at odd places: kernels that store four together cannot take them */
};

static void one_head(struct op_run *r, enum dg_format fmt, int m, int vocab, int k, enum head_rows kind) {
    struct dg_backend *be = r->c->be;
    r->rows_at = fmt == DG_FMT_BF16 ? OP_ROWS_WHOLE : OP_ROWS_ANY; /* the kernel is chosen by where rows begin */
    struct op_plane x = op_input(r, m, k, be->ops->act, 1);
    if (kind == HEAD_ODD)
        r->rows_at = OP_ROWS_ODD;
    struct op_plane z = op_output(r, m, vocab, DG_F32);
    struct op_mat w = op_mat(r, fmt, vocab, k, 1);
    weights_are(r, fmt);
    for (int i = 0; kind == HEAD_FLAT && i < m; i++)
        for (int c = 0; c < k; c++) {
            double v = x.v[i * k + c], odd = i % 8 == 3 ? (double)NAN : (double)INFINITY;
            v = i % 4 == 1 ? 0 : i % 4 == 2 ? 64 * v : i % 4 == 3 && c == k / 2 ? odd : v;
            x.v[i * k + c] = op_put(x.raw, be->ops->act, (i + 1) * x.p.ld + c, v);
        }
    op_send(r, &x);
    for (int v = vocab / 2; kind == HEAD_TWINS && v < vocab; v++)
        op_mat_copy_row(&w, v, v - vocab / 2);
    op_mat_send(r, &w);
    struct dg_row_stats st = make_stats(r, m, vocab);
    be->ops->head(be, &x.p, &w.m, 30, 1.25f, &z.p, &st);
    op_fetch(r, &z);
    for (int i = 0; op_checks(r) && i < m; i++)
        for (int c = 0; c < vocab; c++) {
            double bound, s = dot(r, x.v + i * k, w.v + c * k, k, &bound), want = 30 * tanh(s / 30);
            if (isfinite(s))
                op_expect(r, &z, i, c, want, bound + 8 * U * (fabs(want) + fabs(s)));
            else if (isfinite(z.v[(int64_t)i * vocab + c]))
                op_fail(r, "the logit [%d][%d] of what is not finite is %g", i, c, z.v[(int64_t)i * vocab + c]);
        }
    check_stats(r, z.raw_rows, z.p.ld, m, vocab, 1.25f, &st);
    if (m > 3) {
        struct dg_plane part = op_rows(&x, m / 3, m - m / 3);
        struct op_plane again = op_output(r, m - m / 3, vocab, DG_F32);
        struct dg_row_stats rest = make_stats(r, m - m / 3, vocab);
        be->ops->head(be, &part, &w.m, 30, 1.25f, &again.p, &rest);
        op_fetch(r, &again);
        op_expect_same(r, &z, m / 3, &again, 0, m - m / 3);
        same_stats(r, &st, m / 3, &rest, m - m / 3);
    }
    r->rows_at = OP_ROWS_ANY;
    op_done(r, "%s m=%d vocab=%d k=%d kind %d", dg_format_traits(fmt)->name, m, vocab, k, kind);
}

static void case_head(struct op_run *r) {
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_F32};
    for (size_t f = 0; f < 3; f++) {
        one_head(r, fmts[f], 3, 132, 48, HEAD_PLAIN);
        if (r->c->emulated)
            one_head(r, fmts[f], 23, 500, 160, HEAD_PLAIN);
        else
            one_head(r, fmts[f], 70, 1100, HIDDEN, HEAD_PLAIN);
    }
    one_head(r, DG_FMT_BF16, 9, 388, 72, HEAD_FLAT);
    one_head(r, DG_FMT_BF16, 4, 264, 64, HEAD_TWINS);
    one_head(r, DG_FMT_BF16, 9, 388, 72, HEAD_ODD);
    one_head(r, DG_FMT_BF16, 9, 390, 72, HEAD_PLAIN); /* ids in no whole quads */
    if (!r->c->emulated && r->c->small) { /* pairs of blocks, some with a second tile */
        one_head(r, DG_FMT_BF16, 129, 384, 72, HEAD_PLAIN);
        one_head(r, DG_FMT_BF16, 130, 17156, 72, HEAD_PLAIN);
    }
    if (r->c->small)
        return;
    /* both halves of the tokens and of a tile of ids, and where they end; more tiles than blocks, so that rings go on from one to the next */
    static const int shape[][3] = {{1, 4, 8}, {64, 128, 64}, {65, 256, 128}, {128, 260, 328}, {129, 384, 72}, {193, 1284, HIDDEN}, {200, 516, 2816}};
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++)
        for (int kind = HEAD_PLAIN; kind <= HEAD_TWINS; kind++)
            one_head(r, DG_FMT_BF16, shape[s][0], shape[s][1], shape[s][2], (enum head_rows)kind);
    one_head(r, DG_FMT_BF16, 200, HEAD_VOCAB, 72, HEAD_FLAT);
    one_head(r, DG_FMT_BF16, 100, HEAD_VOCAB - 124, 72, HEAD_TWINS);
    one_head(r, DG_FMT_BF16, 150, 17000, 328, HEAD_PLAIN);
    one_head(r, DG_FMT_BF16, 150, 1284, HIDDEN, HEAD_ODD);
}

static void case_row_stats(struct op_run *r) {
    static const int vocabs[] = {1, 7, 1000, VOCAB};
    struct dg_backend *be = r->c->be;
    for (size_t s = 0; s < 4; s++)
        for (int kind = 0; kind < 4; kind++) {
            int m = 6, vocab = vocabs[s];
            float inv_t = kind == 1 ? 2.5f : 1.3f;
            struct op_plane z = op_input(r, m, vocab, DG_F32, kind == 1 ? 12 : kind == 2 ? 1e-3 : 4);
            float *raw = z.raw_rows;
            if (kind == 3 && vocab > 1) { /* ties, NaN, both infinities, all equal */
                raw[5] = raw[2] = 50;
                raw[z.p.ld + vocab - 1] = NAN;
                raw[2 * z.p.ld + vocab / 2] = INFINITY;
                raw[3 * z.p.ld + vocab / 2] = -INFINITY;
                for (int v = 0; v < vocab; v++)
                    raw[4 * z.p.ld + v] = -3, raw[5 * z.p.ld + v] = NAN;
                op_send(r, &z);
            }
            struct dg_row_stats st = make_stats(r, m, vocab);
            be->ops->row_stats(be, &z.p, inv_t, &st);
            check_stats(r, raw, z.p.ld, m, vocab, inv_t, &st);
            op_done(r, "vocab=%d kind %d", vocab, kind);
        }
}

static void case_soft_embed(struct op_run *r) {
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_F32, DG_FMT_F16};
    struct dg_backend *be = r->c->be;
    for (int f = 0; f < 16; f++) {
        bool sparse = f & 4, big = f & 8;
        enum dg_format fmt = fmts[f & 3];
        int m = big ? 67 : 3, vocab = big ? (r->c->emulated ? 1300 : r->c->small ? 2500 : VOCAB) : 50;
        int k = big && !r->c->small ? HIDDEN : r->c->emulated ? 40 : 72;
        struct op_plane z = op_input(r, m, vocab, DG_F32, 6), y = op_output(r, m, k, be->ops->act);
        struct op_mat w = op_mat(r, fmt, vocab, k, 1);
        for (int i = 0; big && i < m; i++) /* of four rows one so flat that nearly every id survives, and one of some hundred */
            for (int v = 0; v < vocab; v++)
                z.raw_rows[i * z.p.ld + v] *= i % 4 == 1 ? 0.2f : i % 4 == 3 ? 0.5f : 1.0f;
        op_send(r, &z);
        struct dg_row_stats st = make_stats(r, m, vocab);
        be->ops->row_stats(be, &z.p, 1.25f, &st);
        const float *max = op_download(r, st.max, (size_t)m * 4), *sum = op_download(r, st.sum, (size_t)m * 4);
        be->ops->soft_embed(be, &z.p, &st, 1.25f, &w.m, 20.0f, sparse, &y.p);
        op_fetch(r, &y);
        if (st.tile_max) { /* it is a help and no more */
            struct dg_row_stats bare = st;
            struct op_plane again = op_output(r, m, k, be->ops->act);
            bare.tile_max = NULL;
            be->ops->soft_embed(be, &z.p, &bare, 1.25f, &w.m, 20.0f, sparse, &again.p);
            op_fetch(r, &again);
            op_expect_same(r, &y, 0, &again, 0, m);
        }
        double *want = op_memory(r, (size_t)k * sizeof *want), *mag = op_memory(r, (size_t)k * sizeof *mag);
        for (int i = 0; op_checks(r) && i < m; i++) {
            double edge = 0;
            memset(want, 0, (size_t)k * sizeof *want);
            memset(mag, 0, (size_t)k * sizeof *mag);
            for (int v = 0; v < vocab; v++) {
                double d = (double)z.raw_rows_f32[i * z.p.ld + v] * 1.25 - (double)max[i], p = exp(d) / (double)sum[i];
                if (sparse && fabs(d + 10) < 1e-5) /* within rounding of the cut: either way is right */
                    edge += p;
                if (sparse && d < -10)
                    continue;
                for (int c = 0; c < k; c++) {
                    want[c] += p * w.v[v * k + c] * 20;
                    mag[c] += p * fabs(w.v[v * k + c]) * 20 * ((fabs(d) + 8) * U + (vocab + 48) * U + 2 * r->c->prob_round) +
                              (r->c->prob_round > 0 ? 20 * 0x1p-25 / (double)sum[i] * fabs(w.v[v * k + c]) : 0);
                }
            }
            for (int c = 0; c < k; c++)
                op_expect(r, &y, i, c, want[c], mag[c] + edge * 100 + act_round(r) * fabs(want[c]) + 1e-37);
        }
        if (m > 3) {
            int from = m / 3, n = m - from;
            struct dg_plane part = op_rows(&z, from, n);
            struct dg_row_stats rest = {st.entropy + from, st.max + from, st.sum + from, st.p_max + from, st.argmax + from,
                                        st.tile_max ? st.tile_max + from * stats_tiles(r, vocab) : NULL};
            struct op_plane again = op_output(r, n, k, be->ops->act);
            be->ops->soft_embed(be, &part, &rest, 1.25f, &w.m, 20.0f, sparse, &again.p);
            op_fetch(r, &again);
            op_expect_same(r, &y, from, &again, 0, n);
        }
        op_done(r, "%s m=%d vocab=%d k=%d %s", dg_format_traits(fmt)->name, m, vocab, k, sparse ? "sparse" : "exact");
    }
}

static const struct {
    const char *name;
    void (*run)(struct op_run *r);
} table[] = {
    {"embed", case_embed},         {"rms_norm", case_rms_norm},   {"norm_add", case_norm_add}, {"norm_pair", case_norm_pair},
    {"norm_chain", case_norm_chain}, {"add", case_add},             {"linear", case_linear},       {"qkv_store", case_qkv_store},
    {"attention", case_attention},
    {"router", case_router},       {"experts", case_experts},     {"head", case_head},         {"row_stats", case_row_stats},
    {"soft_embed", case_soft_embed},
};

void op_cases_run(struct op_cases *c) {
    struct dg_error err = {0};
    struct dg_reserve need = {.rows = 1024, .ctx = KV_FULL, .k_max = 9000, .topk = 8, .experts = 300, .moe = 704, .hidden = 2816};
    if (dg_backend_reserve(c->be, &need, &err) != DG_OK) {
        printf("scratch: %s\n", dg_error_text(&err));
        dg_error_clear(&err);
        c->failed++;
        return;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (c->filter && !strstr(table[i].name, c->filter))
            continue;
        struct op_run r = {.c = c, .op = table[i].name, .rng = c->seed * 0x9e3779b97f4a7c15ull + i};
        table[i].run(&r);
        printf("%-11s %3d cases, worst error / bound %.3f\n", r.op, r.cases, r.worst);
        fflush(stdout);
    }
}
