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

static void decode_q4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    dg_format_traits(DG_FMT_Q4_BLOCK)->decode_row(NULL, row + k0 / 32 * 20, n, dst);
}

static void decode_q6(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    dg_format_traits(DG_FMT_Q6_BLOCK)->decode_row(NULL, row + k0 / 32 * 28, n, dst);
}

static void decode_q8(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const int8_t *q = (const int8_t *)row + 2 + k0;
    float *d = dst;
    int64_t i = 0;
    (void)k;
    GEMM_TAIL(d, i, n, (float)q[i]);
}

static void decode_nvfp4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *scale = row + k / 2;
    float *d = dst;
    for (int64_t i = 0; i < n; i += 2) {
        uint8_t c = row[(k0 + i) / 2];
        float s = dg_gemm_e4m3[scale[(k0 + i) / 16]];
        d[i] = e2m1[c & 15] * s;
        d[i + 1] = e2m1[c >> 4] * s;
    }
}

void dg_gemm_init_scalar(struct dg_gemm_kernels *k) {
    gemm_body_init(k, "scalar", 128);
    struct dg_gemm_kind *g = &k->kind[0];
    g->decode[DG_FMT_Q4_BLOCK] = decode_q4;
    g->decode[DG_FMT_Q6_BLOCK] = decode_q6;
    g->decode[DG_FMT_Q8_ROW] = decode_q8;
    g->decode[DG_FMT_NVFP4_BLOCK] = decode_nvfp4;
    k->kind[1] = k->kind[0];
}
