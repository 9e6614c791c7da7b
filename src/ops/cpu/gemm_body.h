/* The parts of the matrix kernels that are the same for every instruction set, on the vectors of the simd_<isa>.h included before.
 *
 * The file that includes it defines GEMM_MR and sum4(c, a0, a1, a2, a3, add): the lanes of four accumulators added up and put, or added, to
 * c[0..3]. */
#ifndef DG_OPS_CPU_GEMM_BODY_H
#define DG_OPS_CPU_GEMM_BODY_H

#ifdef VL

/* Rows whose decoding a product with one row of x interleaves. */
#ifndef GEMM_TOGETHER
#define GEMM_TOGETHER 1
#endif

#include "core/half.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd_math.h"

#define GEMM_INLINE static inline __attribute__((always_inline))
#define GEMM_UNROLL _Pragma("GCC unroll 8")

/* The side with fewer rows stays in registers through a step, so that the accumulators, that side and one more vector fit. */
GEMM_INLINE void tile_f32(int mr, const float *x, const float *const *w, int64_t steps, float *c, int64_t ldc, bool add,
                          const uint8_t *ahead, int64_t lines) {
    vf acc[GEMM_MR][DG_GEMM_NR];
    const float *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    GEMM_UNROLL
    for (int i = 0; i < mr; i++)
        GEMM_UNROLL
        for (int j = 0; j < DG_GEMM_NR; j++)
            acc[i][j] = vf_set1(0);
    dg_gemm_ask_lines(ahead, lines);
#pragma GCC unroll 4
    for (int64_t s = 0; s < steps * VL; s += VL, x += mr * VL) {
        if (GEMM_MR <= DG_GEMM_NR) {
            vf xv[GEMM_MR];
            GEMM_UNROLL
            for (int i = 0; i < mr; i++)
                xv[i] = vf_load(x + i * VL);
            GEMM_UNROLL
            for (int j = 0; j < DG_GEMM_NR; j++) {
                vf wv = vf_load((j == 0 ? w0 : j == 1 ? w1 : j == 2 ? w2 : w3) + s);
                GEMM_UNROLL
                for (int i = 0; i < mr; i++)
                    acc[i][j] = vf_fma(xv[i], wv, acc[i][j]);
            }
        } else {
            vf v0 = vf_load(w0 + s), v1 = vf_load(w1 + s), v2 = vf_load(w2 + s), v3 = vf_load(w3 + s);
            GEMM_UNROLL
            for (int i = 0; i < mr; i++) {
                vf xv = vf_load(x + i * VL);
                acc[i][0] = vf_fma(xv, v0, acc[i][0]);
                acc[i][1] = vf_fma(xv, v1, acc[i][1]);
                acc[i][2] = vf_fma(xv, v2, acc[i][2]);
                acc[i][3] = vf_fma(xv, v3, acc[i][3]);
            }
        }
    }
    GEMM_UNROLL
    for (int i = 0; i < mr; i++)
        sum4(c + i * ldc, acc[i][0], acc[i][1], acc[i][2], acc[i][3], add);
}

#define GEMM_TILE_F32(n)                                                                                                       \
    static void tile_f32_##n(const void *x, const void *const *w, int64_t steps, float *c, int64_t ldc, bool add,              \
                             const uint8_t *ahead, int64_t lines) {                                                            \
        tile_f32(n, x, (const float *const *)w, steps, c, ldc, add, ahead, lines);                                             \
    }
GEMM_TILE_F32(1)
GEMM_TILE_F32(2)
GEMM_TILE_F32(3)
#if GEMM_MR > 3
GEMM_TILE_F32(4)
GEMM_TILE_F32(5)
GEMM_TILE_F32(6)
#endif

/* Thirty-two raw weights, or values of x, as vectors. An instruction set may have an order of its own for them, the same for every format: it
 * then defines GEMM_ORDER and these functions. */
#define GEMM_VECS (32 / VL)
#ifndef GEMM_ORDER
GEMM_INLINE void take_bf16(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    GEMM_UNROLL
    for (int j = 0; j < GEMM_VECS; j++)
        v[j] = vf_load_bf16((const uint16_t *)(const void *)row + at + VL * j);
}

GEMM_INLINE void take_f16(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    GEMM_UNROLL
    for (int j = 0; j < GEMM_VECS; j++)
        v[j] = vf_load_f16((const uint16_t *)(const void *)row + at + VL * j);
}

GEMM_INLINE void take_f32(const uint8_t *row, int64_t k, int64_t at, vf *v) {
    (void)k;
    GEMM_UNROLL
    for (int j = 0; j < GEMM_VECS; j++)
        v[j] = vf_load((const float *)(const void *)row + at + VL * j);
}
#endif

static void pack_f32(const void *row, int64_t n, int64_t stride, void *dst) {
    const float *p = row;
    float *d = dst;
    for (; n >= 32; n -= 32, p += 32, d += GEMM_VECS * stride) {
        vf v[GEMM_VECS];
        take_f32((const uint8_t *)p, 0, 0, v);
        GEMM_UNROLL
        for (int j = 0; j < GEMM_VECS; j++)
            vf_store(d + j * stride, v[j]);
    }
    for (; n >= VL; n -= VL, p += VL, d += stride)
        vf_store(d, vf_load(p));
    if (n)
        vf_store(d, vf_load_n(p, (int)n));
}

static void pack_bf16_f32(const void *row, int64_t n, int64_t stride, void *dst) {
    const uint16_t *p = row;
    float *d = dst;
    for (; n >= 32; n -= 32, p += 32, d += GEMM_VECS * stride) {
        vf v[GEMM_VECS];
        take_bf16((const uint8_t *)p, 0, 0, v);
        GEMM_UNROLL
        for (int j = 0; j < GEMM_VECS; j++)
            vf_store(d + j * stride, v[j]);
    }
    for (; n >= VL; n -= VL, p += VL, d += stride)
        vf_store(d, vf_load_bf16(p));
    if (n) {
        uint16_t last[VL] = {0};
        memcpy(last, p, (size_t)n * sizeof *p);
        vf_store(d, vf_load_bf16(last));
    }
}

/* A format's decoder and its product with one row of x, from `take`: 32 weights of so many bytes from element k0 + i on as vectors. Elements
 * behind the last 32 are `value`s. */
#define GEMM_FORMAT(name, take, value, bytes)                                                                                       \
    static void decode_##name(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst) {                                    \
        float *d = dst;                                                                                                             \
        int64_t i = 0;                                                                                                              \
        (void)k;                                                                                                                    \
        for (; i + 32 <= n; i += 32) {                                                                                              \
            vf v[GEMM_VECS];                                                                                                        \
            take(row, k, k0 + i, v);                                                                                                \
            GEMM_UNROLL                                                                                                             \
            for (int j = 0; j < GEMM_VECS; j++)                                                                                     \
                vf_store(d + i + VL * j, v[j]);                                                                                     \
        }                                                                                                                           \
        for (int64_t end = (n + VL - 1) / VL * VL; i < end; i++)                                                                    \
            d[i] = i < n ? value(row, k, k0 + i) : 0;                                                                               \
    }                                                                                                                               \
    static void dot_##name(const void *xp, const uint8_t *const *row, int64_t k, int64_t k0, int64_t n, float *c, bool add,         \
                           const uint8_t *ahead) {                                                                                  \
        const float *x = xp;                                                                                                        \
        vf acc[DG_GEMM_NR];                                                                                                         \
        (void)k;                                                                                                                    \
        GEMM_UNROLL                                                                                                                 \
        for (int r = 0; r < DG_GEMM_NR; r++)                                                                                        \
            acc[r] = vf_set1(0);                                                                                                    \
        for (int64_t i = 0; i < n; i += 32) {                                                                                       \
            dg_gemm_ask(ahead, row[1] - row[0], k0 + i, bytes);                                                                     \
            GEMM_UNROLL                                                                                                             \
            for (int r = 0; r < DG_GEMM_NR; r += GEMM_TOGETHER) {                                                                   \
                vf v[GEMM_TOGETHER][GEMM_VECS];                                                                                     \
                GEMM_UNROLL                                                                                                         \
                for (int q = 0; q < GEMM_TOGETHER; q++)                                                                             \
                    take(row[r + q], k, k0 + i, v[q]);                                                                              \
                GEMM_UNROLL                                                                                                         \
                for (int j = 0; j < GEMM_VECS; j++)                                                                                 \
                    GEMM_UNROLL                                                                                                     \
                    for (int q = 0; q < GEMM_TOGETHER; q++)                                                                         \
                        acc[r + q] = vf_fma(vf_load(x + i + VL * j), v[q][j], acc[r + q]);                                          \
            }                                                                                                                       \
        }                                                                                                                           \
        sum4(c, acc[0], acc[1], acc[2], acc[3], add);                                                                               \
    }

static inline float value_bf16(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_bf16_f32(dg_at_u16(row, at));
}
GEMM_FORMAT(bf16, take_bf16, value_bf16, DG_GEMM_BYTES_BF16)

static inline float value_f16(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_f16_f32(dg_at_u16(row, at));
}
GEMM_FORMAT(f16, take_f16, value_f16, DG_GEMM_BYTES_F16)

static inline float value_f32(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return dg_at_f32(row, at);
}
GEMM_FORMAT(f32, take_f32, value_f32, DG_GEMM_BYTES_F32)

/* The other formats' single values: q8_row may have any width, nvfp4 ends at a multiple of 16, the blocks of q4 and q6 at one of 32. */
static inline float value_q8(const uint8_t *row, int64_t k, int64_t at) {
    (void)k;
    return (float)((const int8_t *)row)[2 + at];
}
static inline float value_nvfp4(const uint8_t *row, int64_t k, int64_t at) {
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return e2m1[row[at / 2] >> (at & 1 ? 4 : 0) & 15] * dg_gemm_e4m3[row[k / 2 + at / 16]];
}
static inline float value_none(const uint8_t *row, int64_t k, int64_t at) {
    (void)row;
    (void)k;
    (void)at;
    return 0;
}

static void store_f32(const float *c, int64_t n, void *y) { memcpy(y, c, (size_t)n * sizeof *c); }

static void store_bf16(const float *c, int64_t n, void *y) {
    uint16_t *d = y;
    for (; n >= VL; n -= VL, c += VL, d += VL)
        vf_store_bf16(d, vf_load(c));
    for (int64_t i = 0; i < n; i++)
        d[i] = dg_f32_bf16(c[i]);
}

static void glu_f32(const float *gate, const float *up, int64_t n, void *y) {
    float *d = y;
    for (; n >= VL; n -= VL, gate += VL, up += VL, d += VL)
        vf_store(d, vf_gelu(vf_load(gate)) * vf_load(up));
    if (n)
        vf_store_n(d, vf_gelu(vf_load_n(gate, (int)n)) * vf_load_n(up, (int)n), (int)n);
}

static void glu_bf16(const float *gate, const float *up, int64_t n, void *y) {
    uint16_t *d = y, last[VL];
    for (; n >= VL; n -= VL, gate += VL, up += VL, d += VL)
        vf_store_bf16(d, vf_gelu(vf_load(gate)) * vf_load(up));
    if (n) {
        vf_store_bf16(last, vf_gelu(vf_load_n(gate, (int)n)) * vf_load_n(up, (int)n));
        memcpy(d, last, (size_t)n * sizeof *d);
    }
}

static void scale_cols(float *c, const float *f, int64_t n) {
    for (; n >= VL; n -= VL, c += VL, f += VL)
        vf_store(c, vf_load(c) * vf_load(f));
    for (int64_t i = 0; i < n; i++)
        c[i] *= f[i];
}

static void axpy(float *y, const float *x, float a, int64_t n) {
    vf va = vf_set1(a);
    for (; n >= VL; n -= VL, y += VL, x += VL)
        vf_store(y, vf_fma(va, vf_load(x), vf_load(y)));
    if (n)
        vf_store_n(y, vf_fma(va, vf_load_n(x, (int)n), vf_load_n(y, (int)n)), (int)n);
}

/* A NaN never compares larger, so the search passes over it; the sums do not, and the row's entropy ends as NaN. */
static void cap_stats(float *z, int64_t n, float cap, float inv_t, struct dg_head_part *out) {
    const vf c = vf_set1(cap), rc = vf_set1(1.0f / cap), low = vf_set1(-__builtin_inff()), abs_max = vf_set1(__FLT_MAX__);
    vf top = low;
    int64_t i = 0, full = n - n % VL;
    for (; i < n; i += VL) {
        vf v = i < full ? vf_load(z + i) : vf_load_n(z + i, (int)(n - i));
        vf a = (vf)((vi)v & 0x7fffffff);
        vf y = vf_select(a <= abs_max, c * vf_tanh(v * rc), v);
        if (i < full) {
            vf_store(z + i, y);
            top = vf_select(y > top, y, top);
        } else {
            vf_store_n(z + i, y, (int)(n - i));
        }
    }
    float max = -__builtin_inff();
    float lane[VL];
    vf_store(lane, top);
    for (int j = 0; j < VL; j++)
        max = lane[j] > max ? lane[j] : max;
    for (i = full; i < n; i++)
        max = z[i] > max ? z[i] : max;
    int64_t arg = 0;
    while (arg < n && z[arg] != max)
        arg++;
    out->max = max;
    out->arg = arg < n ? (int32_t)arg : 0;
    const vf t = vf_set1(inv_t), m = vf_set1(max * inv_t);
    vf sum = vf_set1(0), moment = vf_set1(0);
    for (i = 0; i < full; i += VL) {
        vf d = vf_fma(vf_load(z + i), t, -m), e = vf_exp(d);
        sum += e;
        moment = vf_fma(e, d, moment);
    }
    out->sum = vf_sum(sum);
    out->moment = vf_sum(moment);
    if (full < n) {
        vf d = vf_fma(vf_load_n(z + full, (int)(n - full)), t, -m), e = vf_exp(d);
        vf_store(lane, e);
        for (int j = 0; j < n - full; j++)
            out->sum += lane[j];
        vf_store(lane, e * d);
        for (int j = 0; j < n - full; j++)
            out->moment += lane[j];
    }
}

#define GEMM_SET(g, fmt, name) ((g)->decode[fmt] = decode_##name, (g)->dot[fmt] = dot_##name)

/* The including file has made q4, q6, q8 and nvfp4 with GEMM_FORMAT; this is the rest of the table. */
static inline void gemm_body_init(struct dg_gemm_kernels *k, const char *name, int kc) {
    struct dg_gemm_kind *g = &k->kind[0];
    g->name = k->name = name;
    g->mr = GEMM_MR;
    g->step = VL;
    g->kc = kc;
    g->elem = 4;
    g->nr = DG_GEMM_NR;
    g->cols = 48;
    g->group = 1;
    g->m_outer = GEMM_MR > DG_GEMM_NR;
    g->raw = DG_FMT_F32;
    g->tile[0] = tile_f32_1;
    g->tile[1] = tile_f32_2;
    g->tile[2] = tile_f32_3;
#if GEMM_MR > 3
    g->tile[3] = tile_f32_4;
    g->tile[4] = tile_f32_5;
    g->tile[5] = tile_f32_6;
#endif
    g->pack[0] = pack_f32;
    g->pack[1] = pack_bf16_f32;
    GEMM_SET(g, DG_FMT_BF16, bf16);
    GEMM_SET(g, DG_FMT_F16, f16);
    GEMM_SET(g, DG_FMT_F32, f32);
    k->store[0] = store_f32;
    k->store[1] = store_bf16;
    k->glu[0] = glu_f32;
    k->glu[1] = glu_bf16;
    k->scale = scale_cols;
    k->axpy = axpy;
    k->cap_stats = cap_stats;
}

#endif
#endif
