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

static void decode_q4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    float *d = dst;
    for (row += k0 / 32 * 20; n > 0; n -= 32, row += 20, d += 32)
        q4_block(row, d);
}

static void decode_q6(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    float *d = dst;
    for (row += k0 / 32 * 28; n > 0; n -= 32, row += 28, d += 32)
        q6_block(row, d);
}

static void decode_q8(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const int8_t *q = (const int8_t *)row + 2 + k0;
    float *d = dst;
    int64_t i = 0;
    (void)k;
    for (; i + 16 <= n; i += 16)
        codes16(vld1q_s8(q + i), d + i);
    GEMM_TAIL(d, i, n, (float)q[i]);
}

static void decode_nvfp4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const uint8_t *scale = row + k / 2 + k0 / 16;
    float *d = dst;
    for (row += k0 / 2; n > 0; n -= 16, row += 8, d += 16, scale++)
        nvfp4_block(row, *scale, d);
}

void dg_gemm_init_neon(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "neon", 192);
    struct dg_gemm_kind *g = &k->kind[0];
    g->decode[DG_FMT_Q4_BLOCK] = decode_q4;
    g->decode[DG_FMT_Q6_BLOCK] = decode_q6;
    g->decode[DG_FMT_Q8_ROW] = decode_q8;
    g->decode[DG_FMT_NVFP4_BLOCK] = decode_nvfp4;
    k->kind[1] = k->kind[0];
}
