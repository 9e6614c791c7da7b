/* Kernels of attention on tile registers: bf16 queries, an f16 cache, sums in f32. One table a level that has them.
 *
 * An f16 value is the sum of two bf16 values exactly, a weight to within 2^-17: high and low parts are multiplied apart into the same sums.
 * Queries go in groups of sixteen, one a lane, so that maxima and sums of a softmax need no work across lanes. Steps of 32 keys begin at
 * multiples of 32 in absolute position and are taken in order; a query's bits depend on its own keys alone, where
 * values are finite: a weight of zero times NaN is NaN for every query of the block. docs/cpu-attention.md has the
 * error bound. */
#ifndef DG_OPS_CPU_ATT_KERNELS_H
#define DG_OPS_CPU_ATT_KERNELS_H

#include "ops/cpu/vec.h"

#define DG_ATT_KEYS 128   /* positions of a tile of keys; tiles begin at multiples of it */
#define DG_ATT_STEP 32    /* keys, or elements of a head, of one step of the products; columns of a panel of values */
#define DG_ATT_GROUP 16   /* queries of a group */
#define DG_ATT_HD_MAX 512 /* longer heads take the road of the vectors */
#define DG_ATT_TILE 1024  /* bytes of a tile; all of them lie at multiples of 64 */
#define DG_ATT_SUMS 256   /* floats of a tile of sums */

/* Scores of 32 keys against one or two groups of queries, over `steps` steps of a head. */
struct dg_att_scores {
    const char *k;        /* element 0 of the first key's high parts */
    int64_t k_row, k_low; /* bytes from key to key, and from the high parts to the low */
    const char *q[2];     /* packed groups: [steps] tiles */
    float *s[2];          /* [32 keys][DG_ATT_GROUP] */
    int n_q;
    int64_t steps;
    bool add;             /* to what s holds */
};

/* Weights times values: one or two groups of queries, a panel of columns, `steps` steps of keys. */
struct dg_att_weigh {
    const char *p[2]; /* [steps][high, low] tiles */
    const char *v;    /* [steps][high, low][2] tiles */
    float *o[2];      /* [2] tiles of sums: sixteen queries by sixteen columns */
    int n_q;
    int64_t steps;
    bool add;
};

struct dg_att_kernels {
    const char *name;
    /* n <= DG_ATT_GROUP rows of hd bf16 values as one group; missing rows and elements are zeros. */
    void (*queries)(const void *const *row, int n, int64_t hd, void *dst);
    /* An f16 row as bf16: high parts, then low parts from element `low` on, each filled up to a multiple of DG_ATT_STEP with zeros. Within a
     * step both have the order that `queries` gives. */
    void (*key)(const uint16_t *row, int64_t hd, int64_t low, uint16_t *dst);
    /* Columns [at, at + DG_ATT_STEP) of 32 * steps rows of hd f16 values as a panel; columns behind hd are zeros. */
    void (*values)(const uint16_t *const *row, int64_t at, int64_t hd, int64_t steps, void *panel);
    void (*scores)(const struct dg_att_scores *t);
    void (*weigh)(const struct dg_att_weigh *t);
    /* A group's scores of keys [k0, k1) of a tile, multiples of DG_ATT_STEP, become weights, from p's step k0 / DG_ATT_STEP on; query i sees keys
     * [a[i], b[i]). The reference point `max`, at most 4 below the largest score, and the running sum are updated; alpha is the factor for what
     * was summed before. Is some alpha not one? s: [DG_ATT_KEYS][DG_ATT_GROUP], p: [DG_ATT_KEYS / DG_ATT_STEP][high, low] tiles. */
    bool (*softmax)(float *s, int k0, int k1, const int32_t *a, const int32_t *b, float *max, float *sum, float *alpha, void *p);
    /* A group's sums times alpha, what becomes subnormal as zero: `panels` pairs of tiles, `stride` floats apart. */
    void (*rescale)(float *o, int64_t stride, int64_t panels, const float *alpha);
    /* Row i of a group's sums, n columns, times `scale`; zeros are positive. */
    void (*take)(const float *o, int64_t stride, int i, int64_t n, float scale, float *dst);
    /* As dg_vec_kernels.collect for n queries of a group at once. */
    void (*collect)(float *s, int k0, int k1, const int32_t *a, const int32_t *b, int32_t key0, struct dg_vec_found *found, int n);
};

extern const struct dg_att_kernels dg_att_amx;

#endif
