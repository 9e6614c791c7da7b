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
