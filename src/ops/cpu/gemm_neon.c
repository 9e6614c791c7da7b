/* Matrix kernels of Armv8-A: 6 x 4 accumulators, four vectors of w and one of x, of thirty-two registers. */
#include "ops/cpu/simd_neon.h"

#include <stdbool.h>

#define GEMM_MR 6

static inline void sum4(float *c, vf a0, vf a1, vf a2, vf a3, bool add) {
    vf s = vpaddq_f32(vpaddq_f32(a0, a1), vpaddq_f32(a2, a3));
    vst1q_f32(c, add ? vaddq_f32(vld1q_f32(c), s) : s);
}

#include "ops/cpu/gemm_body.h"
#include "ops/cpu/gemm_codes_neon.h"

GEMM_INLINE void take_q4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    q4_block(row + at / 32 * 20, v);
}
GEMM_FORMAT(q4, take_q4, value_none, DG_GEMM_BYTES_Q4)

GEMM_INLINE void take_q6(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    q6_block(row + at / 32 * 28, v);
}
GEMM_FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)

GEMM_INLINE void take_q8(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const int8_t *q = (const int8_t *)row + 2 + at;
    (void)k;
    codes16(vld1q_s8(q), v);
    codes16(vld1q_s8(q + 16), v + 4);
}
GEMM_FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

GEMM_INLINE void take_nvfp4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    const uint8_t *scale = row + k / 2 + at / 16;
    nvfp4_block(row + at / 2, scale[0], v);
    nvfp4_block(row + at / 2 + 8, scale[1], v + 4);
}
GEMM_FORMAT(nvfp4, take_nvfp4, value_nvfp4, DG_GEMM_BYTES_NVFP4)

void dg_gemm_init_neon(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "neon", 192);
    struct dg_gemm_kind *g = &k->kind[0];
    GEMM_SET(g, DG_FMT_Q4_BLOCK, q4);
    GEMM_SET(g, DG_FMT_Q6_BLOCK, q6);
    GEMM_SET(g, DG_FMT_Q8_ROW, q8);
    GEMM_SET(g, DG_FMT_NVFP4_BLOCK, nvfp4);
    k->kind[1] = k->kind[0];
}
