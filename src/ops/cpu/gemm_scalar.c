/* Matrix kernels of the baseline: the compiler's vectors of four, and plain C decoders. */
#include "ops/cpu/simd_scalar.h"

#include <stdbool.h>

#define GEMM_MR 3

static inline void sum4(float *c, vf a0, vf a1, vf a2, vf a3, bool add) {
    vf ab = __builtin_shuffle(a0, a1, (vi){0, 4, 1, 5}) + __builtin_shuffle(a0, a1, (vi){2, 6, 3, 7});
    vf cd = __builtin_shuffle(a2, a3, (vi){0, 4, 1, 5}) + __builtin_shuffle(a2, a3, (vi){2, 6, 3, 7});
    vf s = __builtin_shuffle(ab, cd, (vi){0, 1, 4, 5}) + __builtin_shuffle(ab, cd, (vi){2, 3, 6, 7});
    vf_store(c, add ? vf_load(c) + s : s);
}

#include "ops/cpu/gemm_body.h"

static void take_q4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    dg_format_traits(DG_FMT_Q4_BLOCK)->decode_row(NULL, row + at / 32 * 20, 32, (float *)v);
}
GEMM_FORMAT(q4, take_q4, value_none, DG_GEMM_BYTES_Q4)

static void take_q6(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    dg_format_traits(DG_FMT_Q6_BLOCK)->decode_row(NULL, row + at / 32 * 28, 32, (float *)v);
}
GEMM_FORMAT(q6, take_q6, value_none, DG_GEMM_BYTES_Q6)

static void take_q8(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    for (int i = 0; i < 32; i++)
        ((float *)v)[i] = value_q8(row, k, at + i);
}
GEMM_FORMAT(q8, take_q8, value_q8, DG_GEMM_BYTES_Q8)

static void take_nvfp4(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    for (int i = 0; i < 32; i++)
        ((float *)v)[i] = value_nvfp4(row, k, at + i);
}
GEMM_FORMAT(nvfp4, take_nvfp4, value_nvfp4, DG_GEMM_BYTES_NVFP4)

void dg_gemm_init_scalar(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "scalar", 128);
    struct dg_gemm_kind *g = &k->kind[0];
    GEMM_SET(g, DG_FMT_Q4_BLOCK, q4);
    GEMM_SET(g, DG_FMT_Q6_BLOCK, q6);
    GEMM_SET(g, DG_FMT_Q8_ROW, q8);
    GEMM_SET(g, DG_FMT_NVFP4_BLOCK, nvfp4);
    k->kind[1] = k->kind[0];
}
