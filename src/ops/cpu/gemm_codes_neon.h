/* Decoding of weight codes to f32, for the files of Armv8-A. */
#ifndef DG_OPS_CPU_GEMM_CODES_NEON_H
#define DG_OPS_CPU_GEMM_CODES_NEON_H

#include "core/half.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd_neon.h"

#if defined(__aarch64__)

static inline vf code_scale(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return vf_set1(dg_bf16_f32(h));
}

/* Sixteen signed bytes as four vectors. */
static inline void codes16(int8x16_t q, vf *v) {
    int16x8_t lo = vmovl_s8(vget_low_s8(q)), hi = vmovl_high_s8(q);
    v[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    v[1] = vcvtq_f32_s32(vmovl_high_s16(lo));
    v[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    v[3] = vcvtq_f32_s32(vmovl_high_s16(hi));
}

/* A block of 32 values. */
static inline void q4_block(const uint8_t *block, vf *v) {
    vf scale = code_scale(block), min = code_scale(block + 2);
    uint8x16_t b = vld1q_u8(block + 4), even = vandq_u8(b, vdupq_n_u8(15)), odd = vshrq_n_u8(b, 4);
    codes16(vreinterpretq_s8_u8(vzip1q_u8(even, odd)), v);
    codes16(vreinterpretq_s8_u8(vzip2q_u8(even, odd)), v + 4);
    for (int i = 0; i < 8; i++)
        v[i] = vfmaq_f32(min, scale, v[i]);
}

static inline void q6_block(const uint8_t *block, vf *v) {
    const int32x4_t right = {0, -6, -12, -18};
    vf scale = code_scale(block), min = code_scale(block + 2);
    for (int w = 0; w < 8; w++) {
        uint32_t word; /* the last one is read from a byte before it, so as not to reach past the block */
        memcpy(&word, block + 4 + 3 * w - (w == 7), sizeof word);
        uint32x4_t c = vandq_u32(vshlq_u32(vdupq_n_u32(w == 7 ? word >> 8 : word), right), vdupq_n_u32(63));
        v[w] = vfmaq_f32(min, scale, vcvtq_f32_u32(c));
    }
}

/* Sixteen values, without the matrix's factor. */
static inline void nvfp4_block(const uint8_t *codes, uint8_t scale, vf *v) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint8x8_t b = vld1_u8(codes), even = vand_u8(b, vdup_n_u8(15)), odd = vshr_n_u8(b, 4);
    vf s = vf_set1(0.5f * dg_gemm_e4m3[scale]);
    codes16(vqtbl1q_s8(vld1q_s8(twice), vcombine_u8(vzip1_u8(even, odd), vzip2_u8(even, odd))), v);
    for (int i = 0; i < 4; i++)
        v[i] = vmulq_f32(s, v[i]);
}

#endif
#endif
