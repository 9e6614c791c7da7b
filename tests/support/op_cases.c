#include "support/op_cases.h"

#include "support/op_sums.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 9000
#define HEAD_VOCAB 40000 /* of the head: more tiles of 256 ids than there are multiprocessors */
#define HIDDEN 416
#define CANVAS 200

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

/* Shapes for the dense kernels of compute capability 9.0, of 132 multiprocessors; small: also where large shapes are left out. Of every kernel tails
 * of rows, columns and k, one step, and more steps than its ring has stages. Parts of the rows alone go to another kernel where they are few. */
static const struct dense_shape {
    int m, n, k, n_w;
    bool glu, small;
} dense_shapes[] = {
    /* two blocks a tile: up to 256 rows in two waves */
    {37, 256, 328, 3, false, true},
    {140, 96, 64, 1, false, true},
    {2, 8, 136, 1, false, true},
    {7, 176, 1096, 1, false, true},
    {256, 304, 1096, 1, false, false},
    {200, 2816, 520, 1, false, false},
    {129, 5808, 72, 1, false, false},
    {131, 2816, 2112, 1, false, false},
    /* k in two, more rows or tiles than that */
    {257, 64, 72, 1, false, true},
    {257, 8, 456, 1, false, true},
    {290, 200, 1032, 1, false, false},
    {258, 512, 200, 3, false, false},
    {150, 5816, 136, 1, false, false},
    /* GLU, up to 256 rows and more */
    {70, 352, 192, 2, true, true},
    {5, 48, 72, 2, true, true},
    {9, 40, 712, 2, true, true},
    {130, 136, 64, 2, true, false},
    {200, 88, 1096, 2, true, false},
    {131, 2112, 2816, 2, true, false},
    {257, 40, 72, 2, true, true},
    {257, 8, 456, 2, true, true},
    {270, 72, 320, 2, true, false},
    {300, 104, 1096, 2, true, false},
    {260, 72, 64, 2, true, false},
    /* many columns: up to 256 rows in a wave of tiles of 64 columns, */
    {3, 8192, 64, 1, false, true},
    {3, 4096, 96, 3, false, false},
    {140, 8448, 72, 1, false, false},
    {7, 8256, 712, 1, false, false},
    /* of 144 columns, */
    {5, 9224, 64, 1, false, true},
    {5, 9224, 1096, 1, false, false},
    {6, 6144, 136, 2, false, false},
    {4, 5120, 72, 3, false, false},
    {20, 19008, 72, 1, false, false},
    {200, 9504, 72, 1, false, false},
    /* and more rows or waves */
    {2, 19016, 64, 1, false, true},
    {130, 9512, 392, 1, false, false},
    {258, 8200, 72, 1, false, false},
    {258, 6144, 136, 2, false, false},
    {257, 4096, 72, 3, false, false},
};

/* Gate and up in one block, up behind gate and before it: kernels that read both as one matrix cannot where it lies before. */
static void glu_places(struct op_run *r, int m, int n, int k) {
    const struct dg_ops *op = r->c->be->ops;
    weights_are(r, DG_FMT_BF16);
    struct op_plane x = op_input(r, m, k, op->act, 1), behind = op_output(r, m, n, op->act), before = op_output(r, m, n, op->act);
    struct op_mat gate = op_mat(r, DG_FMT_BF16, n, k, 1), up = op_mat(r, DG_FMT_BF16, n, k, 1);
    size_t bytes = (size_t)dg_format_mat_bytes(DG_FMT_BF16, n, k);
    uint8_t *three = op_memory(r, 3 * bytes);
    memcpy(three, up.raw, bytes);
    memcpy(three + bytes, gate.raw, bytes);
    memcpy(three + 2 * bytes, up.raw, bytes);
    uint64_t dev = (uint64_t)(uintptr_t)op_upload(r, three, 3 * bytes);
    const struct dg_mat at[3] = {{DG_FMT_BF16, n, k, three, dev},
                                 {DG_FMT_BF16, n, k, three + bytes, dev + bytes},
                                 {DG_FMT_BF16, n, k, three + 2 * bytes, dev + 2 * bytes}};
    op->linear(r->c->be, &x.p, (const struct dg_mat *const[]){&at[1], &at[2]}, 2, DG_EPI_GLU, &behind.p);
    op->linear(r->c->be, &x.p, (const struct dg_mat *const[]){&at[1], &at[0]}, 2, DG_EPI_GLU, &before.p);
    op_fetch(r, &behind);
    op_fetch(r, &before);
    for (int i = 0; op_checks(r) && i < m; i++)
        for (int c = 0; c < n; c++) {
            double bound, want = glu(r, x.v + i * k, gate.v + c * k, up.v + c * k, k, &bound);
            op_expect(r, &before, i, c, want, bound + act_round(r) * (fabs(want) + bound));
        }
    op_expect_same(r, &behind, 0, &before, 0, m);
    op_done(r, "m=%d n=%d k=%d gate and up in one block", m, n, k);
}

/* Matrices of two formats side by side: kernels of one take those next to one another. */
static void mixed_linear(struct op_run *r, int m, int k) {
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_BF16};
    static const int rows[] = {128, 44, 72}, all = 128 + 44 + 72;
    const struct dg_ops *op = r->c->be->ops;
    struct op_plane x = op_input(r, m, k, op->act, 1), y = op_output(r, m, all, op->act);
    struct op_mat w[3];
    const struct dg_mat *list[3];
    weights_are(r, DG_FMT_BF16);
    for (int i = 0; i < 3; i++) {
        w[i] = op_mat(r, fmts[i], rows[i], k, 1);
        list[i] = &w[i].m;
    }
    op->linear(r->c->be, &x.p, list, 3, DG_EPI_NONE, &y.p);
    op_fetch(r, &y);
    for (int i = 0; op_checks(r) && i < m; i++)
        for (int b = 0, at = 0; b < 3; at += rows[b++])
            for (int c = 0; c < rows[b]; c++) {
                double bound, want = dot(r, x.v + i * k, w[b].v + c * k, k, &bound);
                op_expect(r, &y, i, at + c, want, bound + act_round(r) * (fabs(want) + bound));
            }
    op_done(r, "m=%d k=%d of two formats", m, k);
}

static void dense_linear(struct op_run *r) {
    for (size_t i = 0; i < sizeof dense_shapes / sizeof *dense_shapes; i++) {
        const struct dense_shape *s = &dense_shapes[i];
        for (int odd = 0; odd < (s->small ? 2 : 1) && (s->small || !r->c->small); odd++) {
            r->rows_at = odd ? OP_ROWS_ODD_OUT : OP_ROWS_WHOLE;
            one_linear(r, DG_FMT_BF16, s->m, s->n, s->k, s->n_w, s->glu, OP_RANDOM);
        }
    }
    r->rows_at = OP_ROWS_WHOLE;
    glu_places(r, 9, 72, 136);
    glu_places(r, 258, 40, 64);
    mixed_linear(r, 21, 72);
    if (!r->c->small) {
        glu_places(r, 200, 352, 712);
        glu_places(r, 300, 136, 456);
        for (int m = 1; m <= 8; m++)
            one_linear(r, DG_FMT_BF16, m, 264, 456, 1, false, OP_RANDOM);
    }
    r->rows_at = OP_ROWS_ANY;
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
        if (!r->c->small) {
            one_linear(r, fmt, 256, 300, 2816, 1, false, OP_RANDOM);
            one_linear(r, fmt, 300, 140, 704, 2, true, OP_RANDOM);
        }
    }
    if (!r->c->emulated)
        dense_linear(r);
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
        rest.tile_max = NULL; /* is not always wanted */
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
    if (!r->c->emulated && r->c->small) { /* pairs of blocks, some with a second tile; a warpgroup ahead in them; more rows than one launch takes */
        one_head(r, DG_FMT_BF16, 129, 384, 72, HEAD_PLAIN);
        one_head(r, DG_FMT_BF16, 130, 17156, 72, HEAD_PLAIN);
        one_head(r, DG_FMT_BF16, 130, 260, 328, HEAD_PLAIN);
        one_head(r, DG_FMT_BF16, 257, 132, 72, HEAD_PLAIN);
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
    /* rings that hold a tile of ids to the stage, and one stage less; blocks and pairs with a second and a third tile */
    one_head(r, DG_FMT_BF16, 3, 34000, 320, HEAD_PLAIN);
    one_head(r, DG_FMT_BF16, 5, 34000, 328, HEAD_PLAIN);
    one_head(r, DG_FMT_BF16, 130, 17000, 320, HEAD_PLAIN);
    one_head(r, DG_FMT_BF16, 130, 34308, 328, HEAD_PLAIN);
    for (int m = 1; m <= 8; m++)
        one_head(r, DG_FMT_BF16, m, 772, 456, HEAD_PLAIN);
    /* all rows of one launch, and of two */
    one_head(r, DG_FMT_BF16, 192, 644, 72, HEAD_PLAIN);
    one_head(r, DG_FMT_BF16, 256, 900, 392, HEAD_FLAT);
    one_head(r, DG_FMT_BF16, 257, 260, 72, HEAD_TWINS);
    one_head(r, DG_FMT_BF16, 400, 388, 136, HEAD_FLAT);
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
    for (int f = 0; f < (r->c->small ? 16 : 18); f++) {
        bool sparse = f & (f < 16 ? 4 : 1), big = f & 24, canvas = f >= 16; /* the last two: all rows of a canvas */
        enum dg_format fmt = fmts[canvas ? 0 : f & 3];
        int m = canvas ? CANVAS : big ? 67 : 3, vocab = big ? (r->c->emulated ? 1300 : r->c->small ? 2500 : VOCAB) : 50;
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
    {"embed", case_embed},
    {"rms_norm", case_rms_norm},
    {"norm_add", case_norm_add},
    {"norm_pair", case_norm_pair},
    {"norm_chain", case_norm_chain},
    {"add", case_add},
    {"linear", case_linear},
    {"qkv_store", op_cases_qkv_store},
    {"attention", op_cases_attention},
    {"router", case_router},
    {"experts", op_cases_experts},
    {"head", case_head},
    {"row_stats", case_row_stats},
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
