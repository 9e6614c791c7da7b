/* The vector kernels behind every CPU op that is not a product with weights: attention, norms, rotation, row statistics, soft embedding.
 *
 * One table an instruction set, all made from vec_kernels.inc, so that the levels differ in width and in nothing else. A kernel works on
 * f32 in thread-private memory; conversion from and to what planes and caches hold is a kernel of its own. Within one table a row's result
 * does not depend on the rows that are computed with it.
 *
 * Accuracy: the vector exponential is within 2 ulp of exp for results of at least 2^-126 and zero below; tests/unit/simd_test.c holds it to
 * that. All others are one rounding an operation. */
#ifndef DG_OPS_CPU_VEC_H
#define DG_OPS_CPU_VEC_H

#include "ops/cpu/level.h"

#include <stdint.h>

#define DG_VEC_TILE 64 /* keys of an attention tile; tiles begin at multiples of it in absolute position */
#define DG_VEC_PAD 32  /* head dimensions are padded with zeros to a multiple of this */

/* Candidates of one query of a top-k attention, in position order. */
struct dg_vec_found {
    float *score;
    int32_t *key;
    int32_t n;
    float above;  /* only scores larger than this are worth keeping */
    bool any_nan;
};

/* Running statistics of a row of z * inv_t. */
struct dg_vec_stats {
    float max, inv_t; /* max of z * inv_t so far */
    float z_max;
    int32_t argmax;
    double sum, moment; /* of exp(d) and exp(d) * d, d = z * inv_t - max */
};

struct dg_vec_kernels {
    const char *name;
    int32_t panel; /* columns of a value panel */

    void (*from_f16)(const uint16_t *src, int64_t n, float *dst);
    void (*from_bf16)(const uint16_t *src, int64_t n, float *dst);
    void (*to_f16)(const float *src, int64_t n, uint16_t *dst);
    void (*to_bf16)(const float *src, int64_t n, uint16_t *dst);
    void (*from_q8)(const int8_t *src, float scale, int64_t n, float *dst);

    /* s[i][j] = q[i] . k[j]; q: [nq][hdp], k: [nk][hdp], nk a multiple of 4, s: [nq][DG_VEC_TILE]. */
    void (*scores)(const float *q, int nq, const float *k, int nk, int hdp, float *s);
    /* Scores of one query in a tile become weights: entries outside [a, b) are not seen. Updates the running maximum and sum and returns
     * the factor for what was summed before. s: DG_VEC_TILE entries. */
    float (*softmax_tile)(float *s, int a, int b, float *max, float *sum);
    /* o[i] = o[i] * alpha[i] + sum over keys k0 <= j < k1, in that order, of p[i][j] * v[j]. o: [panels][stride][panel], v:
     * [panels][tile][panel], p: [nq][ldp]. alpha NULL = 1. */
    void (*weigh)(float *o, int stride, int nq, const float *p, int ldp, const float *alpha, const float *v, int tile, int k0, int k1,
                  int panels);
    /* A row of n values as row j of a value tile; columns from n up to panels * panel become zero. */
    void (*to_panels)(const float *row, int64_t n, float *v, int tile, int j, int panels);
    /* Row i of o as n values, each times `scale`. */
    void (*from_panels)(const float *o, int stride, int i, int64_t n, float scale, float *dst);
    /* Adds the entries a <= j < b of a tile of scores that are above found->above; their keys are key0 + j. Room for them is there. */
    void (*collect)(const float *s, int a, int b, int32_t key0, struct dg_vec_found *found);
    /* p[i] = exp(s[i] - max); returns their sum. */
    float (*exps)(float *s, int64_t n, float max);
    /* y += p[0] * w[0] + ... + p[n_rows - 1] * w[n_rows - 1], in that order; n_rows 1..4, n columns. */
    void (*axpy_f32)(float *y, const float *const *w, const float *p, int n_rows, int64_t n);
    void (*axpy_f16)(float *y, const uint16_t *const *w, const float *p, int n_rows, int64_t n);
    void (*axpy_bf16)(float *y, const uint16_t *const *w, const float *p, int n_rows, int64_t n);

    double (*sum_squares)(const float *x, int64_t n);
    /* y = x * r * w * mul; y = (res + x * r * w) * mul; y = a * ra * wa + b * rb * wb. Weights may be NULL. */
    void (*scale)(const float *x, float r, const float *w, float mul, int64_t n, float *y);
    void (*scale_add)(const float *x, float r, const float *w, const float *res, float mul, int64_t n, float *y);
    void (*scale_pair)(const float *a, float ra, const float *wa, const float *b, float rb, const float *wb, int64_t n, float *y);
    void (*add)(const float *a, const float *b, int64_t n, float *y);
    /* One head of 2 * half values times r * w, rotated in split halves. */
    void (*rotate)(float *x, float r, const float *w, const float *cos, const float *sin, int64_t half);
    float (*dot)(const float *a, const float *b, int64_t n);
    float (*dot_bf16)(const float *a, const uint16_t *b, int64_t n);

    /* Columns id0 .. id0 + n - 1 of a row join its statistics. A row is fed in pieces of the same sizes always. */
    void (*stats)(struct dg_vec_stats *st, const float *z, int64_t n, int32_t id0);
    /* Ids i of [0, n) with z[i] * inv_t - max >= cut: id[] = id0 + i, p[] = exp of that, ascending; room for n. Returns how many. */
    int64_t (*survivors)(const float *z, int64_t n, float inv_t, float max, float cut, int32_t id0, int32_t *id, float *p);
};

/* As dg_cpu_kernels_init, for this part of the table. */
void dg_vec_kernels_init(struct dg_vec_kernels *k, enum dg_cpu_level level);

extern const struct dg_vec_kernels dg_vec_scalar, dg_vec_avx2, dg_vec_avx512, dg_vec_neon; /* those of this architecture */

#endif
