/* What op cases have in common: the sums of an op in double and the bounds of their errors. */
#ifndef DG_TESTS_OP_SUMS_H
#define DG_TESTS_OP_SUMS_H

#include "support/op_planes.h"

#include <math.h>

static inline double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* Rounding of a stored activation. */
static inline double act_round(const struct op_run *r) { return r->c->be->ops->act == DG_F32 ? 0x1p-24 : 0x1p-8; }

/* A dot product and the bound of its error: the products' sum in f32, and the weights' rounding. */
static inline double dot(const struct op_run *r, const double *x, const double *w, int k, double *bound) {
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
static inline void weights_are(struct op_run *r, enum dg_format fmt) {
    r->weight_round = fmt == DG_FMT_BF16 || fmt == DG_FMT_Q8_ROW || fmt == DG_FMT_NVFP4_BLOCK ? 0 : r->c->weight_round;
}

static inline double glu(const struct op_run *r, const double *x, const double *gate, const double *up, int k, double *bound) {
    double bg, bu, g = dot(r, x, gate, k, &bg), u = dot(r, x, up, k, &bu), h = gelu(g);
    /* |gelu'| < 1.13; 1 + tanh loses what it cancels */
    *bound = 1.13 * bg * fabs(u) + (fabs(h) + 1.13 * bg) * bu + 12 * U * fabs(g * u);
    return h * u;
}

static inline double inv_rms(const double *x, int n) {
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    return 1 / sqrt(s / n + 1e-6);
}

#define KV_FULL 4608 /* positions of the longest cache of a case: more than one part of a row */

/* Cases of the table that have files of their own. */
void op_cases_qkv_store(struct op_run *r);
void op_cases_attention(struct op_run *r);
void op_cases_experts(struct op_run *r);

#endif
