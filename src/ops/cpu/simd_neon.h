/* Vectors of four floats: Armv8-A with fused multiply-add. The names are those of simd_scalar.h. */
#ifndef DG_OPS_CPU_SIMD_NEON_H
#define DG_OPS_CPU_SIMD_NEON_H

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>

#define VL 4
typedef float32x4_t vf;
typedef int32x4_t vi;

static inline vf vf_set1(float x) { return vdupq_n_f32(x); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline vf vf_load_n(const float *p, int n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
static inline void vf_store_n(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * 4); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_select(vi cond, vf a, vf b) { return vbslq_f32(vreinterpretq_u32_s32(cond), a, b); }
static inline vf vf_max(vf a, vf b) { return vf_select((vi)(a > b), a, b); }
static inline float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline vi vf_round_int(vf v) { return vcvtnq_s32_f32(v); }
static inline vf vi_float(vi v) { return vcvtq_f32_s32(v); }

static inline vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline void vf_store_bf16(uint16_t *p, vf v) {
    uint32x4_t u = vreinterpretq_u32_f32(v), one = vdupq_n_u32(1);
    uint32x4_t r = vaddq_u32(u, vaddq_u32(vdupq_n_u32(0x7fff), vandq_u32(vshrq_n_u32(u, 16), one)));
    r = vbslq_u32(vceqq_f32(v, v), r, vorrq_u32(u, vdupq_n_u32(0x400000)));
    vst1_u16(p, vshrn_n_u32(r, 16));
}
static inline vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void vf_store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }

#endif
#endif
