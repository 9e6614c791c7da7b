/* Routed experts: cases of the op table. */
#include "support/op_sums.h"

#include <math.h>
#include <string.h>

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
    const int32_t *count;                   /* COUNTED: rows of each expert, m * topk in all, no more than m of one */
};

/* The j-th expert of row i of m, of as many rows as the counts say, in an order that mixes the experts. An expert's places are next to one another,
 * at most m of them, so no row has it twice. */
static int32_t counted(const int32_t *count, int m, int i, int j) {
    int64_t at = (int64_t)j * m + (int64_t)i * 7919 % m;
    int32_t e = 0;
    while (at >= count[e])
        at -= count[e++];
    return e;
}

/* Stacks of both projections as the backend takes them over. */
struct expert_stacks {
    enum dg_format fmt;
    int experts, moe, hidden;
    struct dg_stack gu, dn;
};

static struct expert_stacks make_stacks(struct op_run *r, enum dg_format fmt, int experts, int moe, int hidden) {
    struct expert_stacks s = {fmt, experts, moe, hidden, op_stack(r, fmt, experts, 2 * moe, hidden), op_stack(r, fmt, experts, hidden, moe)};
    if (r->c->prepare_experts)
        r->c->prepare_experts(r->c->be, &s.gu, &s.dn);
    return s;
}

/* A routing on the host. */
struct routed {
    int m, topk;
    int32_t *id;
    float *wt;
};

static struct routed make_routing(struct op_run *r, int m, int topk, int experts, struct spread to) {
    struct routed t = {m, topk, op_memory(r, (size_t)(m * topk) * 4), op_memory(r, (size_t)(m * topk) * 4)};
    for (int i = 0; i < m; i++)
        for (int j = 0; j < topk; j++) {
            int32_t e;
            bool taken;
            do {
                e = to.kind == LOPSIDED && j == 0 ? experts / 2 : (int32_t)(op_random(r) % (uint64_t)experts);
                if (to.kind == COUNTED)
                    e = counted(to.count, m, i, j);
                taken = false;
                for (int q = 0; q < j; q++)
                    taken |= t.id[i * topk + q] == e;
            } while (taken);
            t.id[i * topk + j] = e;
            t.wt[i * topk + j] = (float)fabs(op_normal(r));
        }
    return t;
}

/* The routing of rows [from, from + n), uploaded. */
static struct dg_routing routing_of(struct op_run *r, const struct routed *t, int from, int n) {
    size_t at = (size_t)(from * t->topk), bytes = (size_t)(n * t->topk) * 4;
    return (struct dg_routing){op_upload(r, t->id + at, bytes), op_upload(r, t->wt + at, bytes), t->topk};
}

/* What an expert adds to a row, times a weight, to want, and its bound. w: gate and up, down; h and bh: room for moe values. */
static void add_expert(const struct op_run *r, const struct expert_stacks *s, const double *x, double *const w[2], double weight, int topk, double *h,
                       double *bh, double *want, double *bound) {
    for (int f = 0; f < s->moe; f++) {
        h[f] = glu(r, x, w[0] + (int64_t)f * s->hidden, w[0] + (int64_t)(s->moe + f) * s->hidden, s->hidden, &bh[f]);
        bh[f] += act_round(r) * (fabs(h[f]) + bh[f]);
    }
    for (int c = 0; c < s->hidden; c++) {
        const double *d = w[1] + (int64_t)c * s->moe;
        double b, sum = dot(r, h, d, s->moe, &b);
        for (int f = 0; f < s->moe; f++)
            b += fabs(d[f]) * bh[f] * 1.01;
        want[c] += weight * sum;
        bound[c] += weight * (b + (topk + 2) * U * fabs(sum));
    }
}

#define PRODUCTS 1000000000 /* of a case that are computed in double: of larger ones every so many rows */

/* Rows of y against sums in double, expert by expert, whose weights are decoded at need. */
static void expect_experts(struct op_run *r, const struct expert_stacks *s, const struct routed *t, const struct op_plane *x,
                           const struct op_plane *y) {
    int m = t->m, hidden = s->hidden, topk = t->topk;
    int64_t matrix = (int64_t)s->moe * hidden, all = 3 * matrix * m * topk;
    int every = (int)(all / PRODUCTS) + 1, first = (m - 1) % every;
    double *w[2] = {op_memory(r, (size_t)(2 * matrix) * sizeof(double)), op_memory(r, (size_t)matrix * sizeof(double))};
    double *h = op_memory(r, (size_t)s->moe * sizeof *h), *bh = op_memory(r, (size_t)s->moe * sizeof *bh);
    double *want = op_memory(r, (size_t)m * (size_t)hidden * sizeof *want), *bound = op_memory(r, (size_t)m * (size_t)hidden * sizeof *bound);
    if (!op_checks(r))
        return;
    for (int e = 0; e < s->experts; e++) {
        bool decoded = false;
        for (int i = first; i < m; i += every)
            for (int j = 0; j < topk; j++) {
                if (t->id[i * topk + j] != e)
                    continue;
                if (!decoded) {
                    op_stack_values(&s->gu, e, w[0]);
                    op_stack_values(&s->dn, e, w[1]);
                    decoded = true;
                }
                add_expert(r, s, x->v + (int64_t)i * hidden, w, (double)t->wt[i * topk + j], topk, h, bh, want + (int64_t)i * hidden,
                           bound + (int64_t)i * hidden);
            }
    }
    for (int i = first; i < m; i += every)
        for (int c = 0; c < hidden; c++) {
            double v = want[(int64_t)i * hidden + c];
            op_expect(r, y, i, c, v, bound[(int64_t)i * hidden + c] + U * fabs(v));
        }
}

/* Rows [from, from + n) alone: the same bits. */
static void part_is_same(struct op_run *r, const struct expert_stacks *s, const struct routed *t, const struct op_plane *x, const struct op_plane *y,
                         int from, int n) {
    struct dg_plane part = op_rows(x, from, n);
    struct dg_routing rest = routing_of(r, t, from, n);
    struct op_plane again = op_output(r, n, s->hidden, DG_F32);
    r->c->be->ops->experts(r->c->be, &part, &rest, &s->gu, &s->dn, &again.p);
    op_fetch(r, &again);
    op_expect_same(r, y, from, &again, 0, n);
}

/* One routing of m rows to stacks, which live on. */
static void route_through(struct op_run *r, const struct expert_stacks *s, int m, int topk, struct spread to) {
    struct dg_backend *be = r->c->be;
    weights_are(r, s->fmt);
    struct op_plane x = op_input(r, m, s->hidden, be->ops->act, 1), y = op_output(r, m, s->hidden, DG_F32);
    struct routed t = make_routing(r, m, topk, s->experts, to);
    struct dg_routing route = routing_of(r, &t, 0, m);
    be->ops->experts(be, &x.p, &route, &s->gu, &s->dn, &y.p);
    op_fetch(r, &y);
    if (be->ops->sum_chain)
        sum_chain_is(r, &x.p, &route, &s->gu, &s->dn);
    expect_experts(r, s, &t, &x, &y);
    if (m > 3)
        part_is_same(r, s, &t, &x, &y, m / 3, m - m / 3);
    if (m > 1)
        part_is_same(r, s, &t, &x, &y, m - 1, 1);
    if (to.kind == COUNTED) /* other widths of the same experts' entries */
        part_is_same(r, s, &t, &x, &y, m / 8, m / 2);
}

static void one_experts(struct op_run *r, enum dg_format fmt, int m, int experts, int topk, int moe, int hidden, struct spread to) {
    struct expert_stacks s = make_stacks(r, fmt, experts, moe, hidden);
    route_through(r, &s, m, topk, to);
    op_done(r, "%s m=%d experts=%d top %d moe=%d hidden=%d%s", dg_format_traits(fmt)->name, m, experts, topk, moe, hidden,
            to.kind == LOPSIDED ? " lopsided" : to.kind == COUNTED ? " counted" : "");
}

/* Rows of an expert at which the kernels for compute capability 9.0 change their code or cut an entry, one more and one less, in one layer. */
static const int32_t layer[] = {0, 1, 8, 9, 16, 17, 24, 25, 40, 48, 49, 96};
#define LAYER_ROWS 333 /* their sum */
#define LAYER_EXPERTS ((int)(sizeof layer / sizeof *layer))

/* Experts of one row to a few entries each. Of K: parts of 256 that are cut, odd numbers of 64, one 64, so many that rings go round; so many tiles
 * that a block has several and goes on from one entry to the next. */
static void few_tokens(struct op_run *r, enum dg_format fmt) {
    static const int32_t short_layer[] = {25, 0, 48, 49, 1}, one[] = {0, 0, 100, 0, 0}, wide[] = {33, 41, 32, 47, 26, 48, 31};
    const struct spread by_layer = {COUNTED, layer}, by_short = {COUNTED, short_layer}, by_one = {COUNTED, one}, by_wide = {COUNTED, wide};
    one_experts(r, fmt, 123, 5, 1, 128, 192, by_short);
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 64, 64, by_layer);
    if (r->c->small)
        return;
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 192, 320, by_layer);
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 256, 192, by_layer);
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 448, 384, by_layer);
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 704, 576, by_layer);
    one_experts(r, fmt, LAYER_ROWS, LAYER_EXPERTS, 1, 320, 1792, by_layer);
    one_experts(r, fmt, 258, 7, 1, 704, 704, by_wide);
    one_experts(r, fmt, 258, 7, 1, 64, 128, by_wide);
    one_experts(r, fmt, 100, 5, 1, 128, 320, by_one);
    for (int m = 1; m <= 8; m++) /* every row of few to as many experts */
        one_experts(r, fmt, m, 8, m, 128, 256, (struct spread){DRAWN, NULL});
    one_experts(r, fmt, 40, 256, 8, 64, 64, (struct spread){DRAWN, NULL}); /* the most experts they serve, and one more */
    one_experts(r, fmt, 40, 257, 8, 64, 64, (struct spread){DRAWN, NULL});
}

/* Entries of many tokens: every width of their tiles, one more and one less; an expert without rows among them. The widths of K keep some layers to
 * kernels for few, whose entries then are many of one expert. */
static void many_tokens(struct op_run *r, enum dg_format fmt) {
    static const int32_t edges[] = {1, 63, 64, 65, 0, 127, 128, 129, 300}, widths[] = {31, 33, 79, 81, 96, 97, 112, 113}, cut[] = {129, 0, 16},
                         one[] = {0, 256, 0};
    const struct spread by_edges = {COUNTED, edges}, by_widths = {COUNTED, widths}, by_cut = {COUNTED, cut}, by_one = {COUNTED, one};
    one_experts(r, fmt, 145, 3, 1, 64, 256, by_cut);
    if (r->c->small)
        return;
    one_experts(r, fmt, 877, 9, 1, 128, 320, by_edges);
    one_experts(r, fmt, 642, 8, 1, 192, 192, by_widths);
    one_experts(r, fmt, 877, 9, 1, 128, 256, by_edges);
    one_experts(r, fmt, 642, 8, 1, 192, 1024, by_widths);
    one_experts(r, fmt, 145, 3, 1, 704, 2816, by_cut);
    one_experts(r, fmt, 256, 3, 1, 448, 512, by_one);
    one_experts(r, fmt, 800, 16, 2, 704, 768, (struct spread){DRAWN, NULL}); /* several tiles a block, so that warpgroups share one's tokens */
    one_experts(r, fmt, 520, 4, 2, 64, 64, (struct spread){DRAWN, NULL});
}

#define REAL_EXPERTS 128

/* Rows of each expert: `most` of one in the middle, up to 36 of the others as long as there are any left. */
static void skewed(int32_t *count, int pairs, int most) {
    pairs -= most;
    for (int e = 0; e < REAL_EXPERTS; e++) {
        int rows = 1 + e * 11 % 36;
        count[e] = e == REAL_EXPERTS / 2 ? most : rows < pairs ? rows : pairs;
        pairs -= e == REAL_EXPERTS / 2 ? 0 : count[e];
    }
}

/* The shape of the 26B model: canvases, prompts, and routings that make entries of every width beside one another. */
static void real_shape(struct op_run *r, enum dg_format fmt) {
    const struct spread drawn = {DRAWN, NULL};
    struct expert_stacks s = make_stacks(r, fmt, REAL_EXPERTS, 704, 2816);
    int32_t count[REAL_EXPERTS] = {0}, left = 256 * 8;
    for (int e = 0; left > 0; e++) {
        count[e] = layer[e % LAYER_EXPERTS] < left ? layer[e % LAYER_EXPERTS] : left;
        left -= count[e];
    }
    route_through(r, &s, 256, 8, (struct spread){COUNTED, count});
    skewed(count, 256 * 8, 203);
    route_through(r, &s, 256, 8, (struct spread){COUNTED, count});
    route_through(r, &s, 5, 8, drawn);
    route_through(r, &s, 256, 8, drawn);
    route_through(r, &s, 512, 8, drawn); /* 25 to 48 rows of nearly every expert */
    route_through(r, &s, 1024, 8, drawn);
    op_done(r, "%s experts=%d top 8 moe=704 hidden=2816", dg_format_traits(fmt)->name, REAL_EXPERTS);
}

void op_cases_experts(struct op_run *r) {
    const struct spread drawn = {DRAWN, NULL}, lopsided = {LOPSIDED, NULL};
    static const enum dg_format fmts[] = {DG_FMT_BF16, DG_FMT_Q4_BLOCK, DG_FMT_Q6_BLOCK, DG_FMT_NVFP4_BLOCK, DG_FMT_F32, DG_FMT_Q8_ROW};
    for (size_t f = 0; f < 6; f++) {
        one_experts(r, fmts[f], 3, 5, 2, 32, 64, drawn);
        one_experts(r, fmts[f], r->c->emulated ? 20 : 45, 16, 4, 96, 160, drawn);
        if (!r->c->small || f < 2)
            one_experts(r, fmts[f], 150, 9, 2, 64, 96, lopsided);
        if (!r->c->small)
            one_experts(r, fmts[f], 64, 130, 8, 160, 416, drawn);
        /* widths of the kernels for compute capability 9.0: few and many tokens an expert, whole and cut entries */
        if (fmts[f] == DG_FMT_Q4_BLOCK || fmts[f] == DG_FMT_NVFP4_BLOCK) {
            one_experts(r, fmts[f], 9, 5, 2, 64, 128, drawn);
            one_experts(r, fmts[f], 70, 2, 1, 64, 64, lopsided);
            if (!r->c->emulated) {
                few_tokens(r, fmts[f]);
                many_tokens(r, fmts[f]);
            }
            if (!r->c->small) {
                one_experts(r, fmts[f], 100, 40, 8, 192, 256, lopsided);
                one_experts(r, fmts[f], 70, 128, 8, 64, 320, drawn);
                one_experts(r, fmts[f], 300, 6, 3, 128, 256, lopsided);
                one_experts(r, fmts[f], 5, 4, 2, 704, 384, drawn);
                real_shape(r, fmts[f]);
            }
        }
    }
}
