/* The vector kernels for arm64. */
#include "ops/cpu/vec.h"

#include "ops/cpu/simd_neon.h"

#define PANEL_VECS 4
#define SCORE_ROWS 6
#define WEIGH_ROWS 6
#define TABLE dg_vec_neon
#define TABLE_NAME "neon"

static inline vf vf_shift(vf z, vf t, vf m) { return vfmaq_f32(vnegq_f32(m), z, t); }

static inline float vf_top(vf v) {
    float32x2_t h = vget_low_f32(v), l = vget_high_f32(v), x = vbsl_f32(vcgt_f32(h, l), h, l);
    float a = vget_lane_f32(x, 0), b = vget_lane_f32(x, 1);
    return a > b ? a : b;
}

static inline void vf_sum4(vf a, vf b, vf c, vf d, float *out) { vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))); }

static inline unsigned vi_bits(vi m) {
    static const uint32_t bit[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)m, vld1q_u32(bit)));
}

static inline vf vf_load_i8(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

static inline void vf_prefetch(const void *p) { __builtin_prefetch(p); }

#include "ops/cpu/vec_kernels.inc"
