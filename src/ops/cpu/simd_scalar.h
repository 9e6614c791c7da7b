/* Vectors of the baseline: four floats, as the compiler's vector extension makes them (SSE2, Armv8-A); no fused multiply-add.
 *
 * Every simd_<isa>.h offers the same names, so that a kernel body is written once and compiled once per instruction set:
 * VL lanes; vf floats, vi 32-bit integers, with the compiler's operators on them; and the functions below. */
#ifndef DG_OPS_CPU_SIMD_SCALAR_H
#define DG_OPS_CPU_SIMD_SCALAR_H

#include "core/half.h"

#include <stdint.h>
#include <string.h>

#define VL 4
typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf vf_set1(float x) { return (vf){x, x, x, x}; }
static inline vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
/* The first n < VL values, zeros behind them; nothing past them is touched. */
static inline vf vf_load_n(const float *p, int n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
static inline void vf_store_n(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * 4); }
/* a * b + c, fused where the instruction set fuses. */
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* Where a lane's condition (all ones or zero) holds a, else b. */
static inline vf vf_select(vi cond, vf a, vf b) { return (vf)((cond & (vi)a) | (~cond & (vi)b)); }
/* The larger; b where either is NaN. */
static inline vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
/* All lanes added: lane i with lane i + VL/2, and so on. */
static inline float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline vi vf_round_int(vf v) { /* to the nearest, |v| < 2^22 */
    const vf magic = vf_set1(0x1.8p23f);
    return (vi)(v + magic) - (vi)magic;
}
static inline vf vi_float(vi v) { return __builtin_convertvector(v, vf); }

static inline vf vf_load_bf16(const uint16_t *p) {
    uint16_t u[VL];
    vf v;
    memcpy(u, p, sizeof u);
    for (int i = 0; i < VL; i++)
        v[i] = dg_bf16_f32(u[i]);
    return v;
}
/* Round to nearest even; NaN stays NaN. */
static inline void vf_store_bf16(uint16_t *p, vf v) {
    for (int i = 0; i < VL; i++)
        p[i] = dg_f32_bf16(v[i]);
}
static inline vf vf_load_f16(const uint16_t *p) {
    uint16_t u[VL];
    vf v;
    memcpy(u, p, sizeof u);
    for (int i = 0; i < VL; i++)
        v[i] = dg_f16_f32(u[i]);
    return v;
}
static inline void vf_store_f16(uint16_t *p, vf v) {
    for (int i = 0; i < VL; i++)
        p[i] = dg_f32_f16(v[i]);
}

#endif
