/* The vector kernels for any CPU. */
#include "ops/cpu/vec.h"

#include "ops/cpu/simd_scalar.h"

#define PANEL_VECS 2
#define SCORE_ROWS 2
#define WEIGH_ROWS 4
#define TABLE dg_vec_scalar
#define TABLE_NAME "scalar"

static inline vf vf_shift(vf z, vf t, vf m) {
    vf d;
    for (int i = 0; i < VL; i++)
        d[i] = (float)((double)z[i] * (double)t[i] - (double)m[i]);
    return d;
}

static inline float vf_top(vf v) {
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

static inline void vf_sum4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = vf_sum(a);
    out[1] = vf_sum(b);
    out[2] = vf_sum(c);
    out[3] = vf_sum(d);
}

static inline unsigned vi_bits(vi m) { return (unsigned)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8)); }

static inline vf vf_load_i8(const int8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }

static inline void vf_prefetch(const void *p) { __builtin_prefetch(p); }

#include "ops/cpu/vec_kernels.inc"
