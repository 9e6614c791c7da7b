/* Matrix kernels of Armv8.6-A: pairs of bf16 along K into f32 sums (BFDOT). The f32 path stays that of NEON. */
#include "ops/cpu/simd_neon.h"

#include "ops/cpu/gemm_codes_neon.h"

#include <stdbool.h>

#define MR 6
#define STEP 8
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE bfloat16x8_t load(const uint16_t *p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }

INLINE void tile(int mr, const uint16_t *x, const uint16_t *const *w, int64_t steps, float *c, int64_t ldc, bool add, const uint8_t *ahead,
                 int64_t lines) {
    dg_gemm_ask_lines(ahead, lines);
    float32x4_t acc[MR][DG_GEMM_NR];
    const uint16_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    UNROLL
    for (int i = 0; i < mr; i++)
        UNROLL
        for (int j = 0; j < DG_GEMM_NR; j++)
            acc[i][j] = vdupq_n_f32(0);
    for (int64_t s = 0; s < steps * STEP; s += STEP, x += mr * STEP) {
        bfloat16x8_t v0 = load(w0 + s), v1 = load(w1 + s), v2 = load(w2 + s), v3 = load(w3 + s);
        UNROLL
        for (int i = 0; i < mr; i++) {
            bfloat16x8_t xv = load(x + i * STEP);
            acc[i][0] = vbfdotq_f32(acc[i][0], xv, v0);
            acc[i][1] = vbfdotq_f32(acc[i][1], xv, v1);
            acc[i][2] = vbfdotq_f32(acc[i][2], xv, v2);
            acc[i][3] = vbfdotq_f32(acc[i][3], xv, v3);
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        float32x4_t s = vpaddq_f32(vpaddq_f32(acc[i][0], acc[i][1]), vpaddq_f32(acc[i][2], acc[i][3]));
        vst1q_f32(c + i * ldc, add ? vaddq_f32(vld1q_f32(c + i * ldc), s) : s);
    }
}

#define TILE(n)                                                                                                        \
    static void tile_##n(const void *x, const void *const *w, int64_t steps, float *c, int64_t ldc, bool add,          \
                         const uint8_t *ahead, int64_t lines) {                                                        \
        tile(n, x, (const uint16_t *const *)w, steps, c, ldc, add, ahead, lines);                                      \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

/* What is left of a row that is no whole number of steps, and zeros up to one. */
#define TAIL(d, i, n, value)                                                         \
    for (int64_t end_ = ((n) + STEP - 1) / STEP * STEP; (i) < end_; (i)++)             \
        (d)[i] = (i) < (n) ? (value) : 0

static void pack_f32(const void *row, int64_t n, int64_t stride, void *dst) {
    const float *p = row;
    uint16_t *d = dst;
    int64_t i = 0;
    for (; n >= STEP; n -= STEP, p += STEP, d += stride)
        vf_store_bf16(d, vf_load(p)), vf_store_bf16(d + 4, vf_load(p + 4));
    if (n)
        TAIL(d, i, n, dg_f32_bf16(dg_at_f32(p, i)));
}

static void pack_bf16(const void *row, int64_t n, int64_t stride, void *dst) {
    const uint16_t *p = row;
    uint16_t *d = dst;
    int64_t i = 0;
    for (; n >= STEP; n -= STEP, p += STEP, d += stride)
        vst1q_u16(d, vld1q_u16(p));
    if (n)
        TAIL(d, i, n, dg_at_u16(p, i));
}

static void decode_bf16(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    pack_bf16(row + 2 * k0, n, STEP, dst);
}

static void decode_f32(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    (void)k;
    pack_f32(row + 4 * k0, n, STEP, dst);
}

static void decode_f16(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const uint16_t *p = (const uint16_t *)(const void *)row + k0;
    uint16_t *d = dst;
    int64_t i = 0;
    (void)k;
    for (; i + 4 <= n; i += 4)
        vf_store_bf16(d + i, vf_load_f16(p + i));
    TAIL(d, i, n, dg_f32_bf16(dg_f16_f32(dg_at_u16(p, i))));
}

/* n decoded values to bf16. */
INLINE void put(uint16_t *d, const vf *v, int n) {
    for (int i = 0; i < n; i += 4)
        vf_store_bf16(d + i, v[i / 4]);
}

static void decode_q4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    uint16_t *d = dst;
    vf v[8];
    (void)k;
    for (row += k0 / 32 * 20; n > 0; n -= 32, row += 20, d += 32) {
        q4_block(row, v);
        put(d, v, 32);
    }
}

static void decode_q6(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    uint16_t *d = dst;
    vf v[8];
    (void)k;
    for (row += k0 / 32 * 28; n > 0; n -= 32, row += 28, d += 32) {
        q6_block(row, v);
        put(d, v, 32);
    }
}

static void decode_q8(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const int8_t *q = (const int8_t *)row + 2 + k0;
    uint16_t *d = dst;
    vf v[4];
    int64_t i = 0;
    (void)k;
    for (; i + 16 <= n; i += 16) {
        codes16(vld1q_s8(q + i), v);
        put(d + i, v, 16);
    }
    TAIL(d, i, n, dg_f32_bf16((float)q[i]));
}

static void decode_nvfp4(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {
    const uint8_t *scale = row + k / 2 + k0 / 16;
    uint16_t *d = dst;
    vf v[4];
    for (row += k0 / 2; n > 0; n -= 16, row += 8, d += 16, scale++) {
        nvfp4_block(row, *scale, v);
        put(d, v, 16);
    }
}

void dg_gemm_init_neonbf16(struct dg_gemm_kernels *k) {
    k->name = "neonbf16";
    k->kind[1] = (struct dg_gemm_kind){
        .name = "neonbf16",
        .mr = MR,
        .step = STEP,
        .kc = 256,
        .elem = 2,
        .nr = DG_GEMM_NR,
        .cols = 48,
        .group = 1,
        .m_outer = true,
        .raw = DG_FMT_BF16,
        .tile = {tile_1, tile_2, tile_3, tile_4, tile_5, tile_6},
        .pack = {pack_f32, pack_bf16},
        .decode = {[DG_FMT_BF16] = decode_bf16,
                   [DG_FMT_F16] = decode_f16,
                   [DG_FMT_F32] = decode_f32,
                   [DG_FMT_Q4_BLOCK] = decode_q4,
                   [DG_FMT_Q6_BLOCK] = decode_q6,
                   [DG_FMT_Q8_ROW] = decode_q8,
                   [DG_FMT_NVFP4_BLOCK] = decode_nvfp4},
    };
}
