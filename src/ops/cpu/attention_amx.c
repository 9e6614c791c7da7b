/* Attention's kernels on the tile registers of AMX. */
#include "ops/cpu/att_kernels.h"

#include "ops/cpu/transpose512.h"

#include "ops/cpu/simd_math.h"

#include <math.h>

#define TILE DG_ATT_GROUP
#define STEP DG_ATT_STEP
#define BYTES DG_ATT_TILE
#define SUMS DG_ATT_SUMS
#define BEHIND 4.0f /* how far a reference point may stay behind the largest score: weights are at most e^4, and sums are seldom rescaled */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vi vi_load(const int32_t *p) { return (vi)_mm512_loadu_si512(p); }
INLINE vi vi_set1(int32_t x) { return (vi)_mm512_set1_epi32(x); }

/* Two words of bf16: the high halves of a and b. */
INLINE vi pair(vi a, vi b) {
    __m512i low = _mm512_srli_epi32((__m512i)a, 16);
    return (vi)_mm512_ternarylogic_epi32((__m512i)b, _mm512_set1_epi32(-0x10000), low, 0xea); /* (b & mask) | low */
}

/* The nearest bf16, of two the larger, in the high half of a lane. Infinity stays; NaN may not. */
INLINE vi nearest(vf x) { return (vi)_mm512_and_epi32(_mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000)), _mm512_set1_epi32(-0x10000)); }

/* f16 as x = hi + lo, exactly: of x, once hi is taken away, three bits are left; of an infinity nothing. NaN is in one of both. */
INLINE void split(vf x, vi *hi, vi *lo) {
    *hi = nearest(x);
    __mmask16 rest = _mm512_cmp_ps_mask((__m512)x, (__m512)*hi, _CMP_NEQ_UQ);
    *lo = (vi)_mm512_maskz_sub_ps(rest, (__m512)x, (__m512)*hi);
}

/* Thirty-two elements from `at` on of a row of n, zeros behind its end. */
INLINE const uint16_t *whole_step(const uint16_t *row, int64_t at, int64_t n, uint16_t *tmp) {
    if (n - at >= STEP)
        return row + at;
    memset(tmp, 0, STEP * sizeof *tmp);
    if (n > at)
        memcpy(tmp, row + at, (size_t)(n - at) * sizeof *tmp);
    return tmp;
}

/* A step's pairs are elements d and d + 16: no element of a key has to change its lane. */
static void queries(const void *const *row, int n, int64_t hd, void *dst) {
    char *d = dst;
    for (int64_t at = 0; at < hd; at += STEP, d += BYTES) {
        __m512 r[TILE];
        UNROLL
        for (int i = 0; i < TILE; i++) {
            uint16_t tmp[STEP];
            r[i] = _mm512_setzero_ps();
            if (i < n) {
                const uint16_t *p = whole_step(row[i], at, hd, tmp);
                r[i] = (__m512)pair((vi)vf_load_bf16(p), (vi)vf_load_bf16(p + TILE));
            }
        }
        transpose512(r);
        UNROLL
        for (int i = 0; i < TILE; i++)
            _mm512_storeu_ps(d + i * 64, r[i]);
    }
}

static void key(const uint16_t *row, int64_t hd, int64_t low, uint16_t *dst) {
    for (int64_t at = 0; at < hd; at += STEP) {
        uint16_t tmp[STEP];
        const uint16_t *p = whole_step(row, at, hd, tmp);
        vi hi[2], lo[2];
        split(vf_load_f16(p), &hi[0], &lo[0]);
        split(vf_load_f16(p + TILE), &hi[1], &lo[1]);
        _mm512_storeu_si512(dst + at, (__m512i)pair(hi[0], hi[1]));
        _mm512_storeu_si512(dst + low + at, (__m512i)pair(lo[0], lo[1]));
    }
}

static void values(const uint16_t *const *row, int64_t at, int64_t hd, int64_t steps, void *panel) {
    char *d = panel;
    for (int64_t s = 0; s < steps; s++, d += 4 * BYTES, row += STEP)
        for (int j = 0; j < TILE; j++) {
            uint16_t tmp[2][STEP];
            const uint16_t *a = whole_step(row[2 * j], at, hd, tmp[0]), *b = whole_step(row[2 * j + 1], at, hd, tmp[1]);
            UNROLL
            for (int t = 0; t < 2; t++) {
                vi hi[2], lo[2];
                split(vf_load_f16(a + t * TILE), &hi[0], &lo[0]);
                split(vf_load_f16(b + t * TILE), &hi[1], &lo[1]);
                _mm512_storeu_si512(d + t * BYTES + j * 64, (__m512i)pair(hi[0], hi[1]));
                _mm512_storeu_si512(d + (2 + t) * BYTES + j * 64, (__m512i)pair(lo[0], lo[1]));
            }
        }
}

/* The two tiles of sums of each of n_q groups: 0 and 2 are the first group's, 1 and 3 the second's. n_q is a constant where these are inlined. */
INLINE void begin_sums(float *const *c, int n_q, bool add) {
    if (!add) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c[0], 64);
    _tile_loadd(2, c[0] + SUMS, 64);
    if (n_q > 1) {
        _tile_loadd(1, c[1], 64);
        _tile_loadd(3, c[1] + SUMS, 64);
    }
}

INLINE void end_sums(float *const *c, int n_q) {
    _tile_stored(0, c[0], 64);
    _tile_stored(2, c[0] + SUMS, 64);
    if (n_q > 1) {
        _tile_stored(1, c[1], 64);
        _tile_stored(3, c[1] + SUMS, 64);
    }
}

INLINE void score_tiles(const struct dg_att_scores *t, int n_q) {
    const char *k0 = t->k, *k1 = k0 + TILE * t->k_row, *q0 = t->q[0], *q1 = t->q[1];
    const int64_t row = t->k_row, low = t->k_low;
    begin_sums(t->s, n_q, t->add);
    for (int64_t s = 0; s < t->steps; s++, k0 += 2 * STEP, k1 += 2 * STEP, q0 += BYTES, q1 += BYTES) {
        _tile_loadd(6, q0, 64);
        _tile_loadd(4, k0, row);
        _tile_dpbf16ps(0, 4, 6);
        if (n_q > 1) {
            _tile_loadd(7, q1, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_loadd(5, k1, row);
        _tile_dpbf16ps(2, 5, 6);
        if (n_q > 1)
            _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, k0 + low, row);
        _tile_dpbf16ps(0, 4, 6);
        if (n_q > 1)
            _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, k1 + low, row);
        _tile_dpbf16ps(2, 5, 6);
        if (n_q > 1)
            _tile_dpbf16ps(3, 5, 7);
    }
    end_sums(t->s, n_q);
}

static void scores(const struct dg_att_scores *t) {
    if (t->n_q > 1)
        score_tiles(t, 2);
    else
        score_tiles(t, 1);
}

/* High times high, low weights times high values, high weights times low values. */
INLINE void weigh_tiles(const struct dg_att_weigh *t, int n_q) {
    const char *p0 = t->p[0], *p1 = t->p[1], *v = t->v;
    begin_sums(t->o, n_q, t->add);
    for (int64_t s = 0; s < t->steps; s++, p0 += 2 * BYTES, p1 += 2 * BYTES, v += 4 * BYTES)
        UNROLL
        for (int part = 0; part < 3; part++) {
            const int64_t p_low = part == 1 ? BYTES : 0;
            if (part != 1) {
                _tile_loadd(6, v + part * BYTES, 64);
                _tile_loadd(7, v + (part + 1) * BYTES, 64);
            }
            _tile_loadd(4, p0 + p_low, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(2, 4, 7);
            if (n_q > 1) {
                _tile_loadd(5, p1 + p_low, 64);
                _tile_dpbf16ps(1, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    end_sums(t->o, n_q);
}

static void weigh(const struct dg_att_weigh *t) {
    if (t->n_q > 1)
        weigh_tiles(t, 2);
    else
        weigh_tiles(t, 1);
}

/* exp of what is at most a few: vf_exp without its upper end. */
INLINE vf exp_down(vf x) {
    vf c = (vf)_mm512_max_ps(_mm512_set1_ps(-150.0f), (__m512)x); /* NaN stays */
    vf t = (vf)_mm512_roundscale_ps((__m512)(c * vf_set1(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (vf)_mm512_scalef_ps((__m512)vf_exp_rest(c, t), (__m512)t);
}

INLINE void hide_some(float *s, int k0, int k1, const int32_t *a, const int32_t *b) {
    for (int t = k0; t < k1; t++) {
        vi at = vi_set1(t), seen = (at >= vi_load(a)) & (at < vi_load(b));
        vf_store(s + t * TILE, vf_select(seen, vf_load(s + t * TILE), vf_set1(-INFINITY)));
    }
}

/* Keys [k0, k1) that a query does not see get scores of -inf; only those before the last beginning and behind the first end are looked at. */
static void hide(float *s, int k0, int k1, const int32_t *a, const int32_t *b) {
    int32_t from = a[0], to = b[0];
    for (int i = 1; i < TILE; i++) {
        from = a[i] > from ? a[i] : from;
        to = b[i] < to ? b[i] : to;
    }
    hide_some(s, k0, from < k1 ? from : k1, a, b);
    hide_some(s, to > k0 ? to : k0, k1, a, b);
}

/* Two keys' weights as pairs of high parts and of low parts. */
INLINE void put_weights(vf p0, vf p1, char *high) {
    vf h0 = (vf)nearest(p0), h1 = (vf)nearest(p1);
    _mm512_storeu_si512(high, (__m512i)pair((vi)h0, (vi)h1));
    _mm512_storeu_si512(high + BYTES, (__m512i)pair(nearest(p0 - h0), nearest(p1 - h1)));
}

INLINE void turn(char *tile) {
    __m512 r[TILE];
    UNROLL
    for (int i = 0; i < TILE; i++)
        r[i] = _mm512_loadu_ps(tile + i * 64);
    transpose512(r);
    UNROLL
    for (int i = 0; i < TILE; i++)
        _mm512_storeu_ps(tile + i * 64, r[i]);
}

static bool softmax(float *s, int k0, int k1, const int32_t *a, const int32_t *b, float *max, float *sum, float *alpha, void *p) {
    const vf low = vf_set1(-INFINITY);
    vf m[4] = {low, low, low, low}, total[4] = {vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0)};
    hide(s, k0, k1, a, b);
    for (int t = k0; t < k1; t += 4)
        UNROLL
        for (int j = 0; j < 4; j++)
            m[j] = vf_max(vf_load(s + (t + j) * TILE), m[j]);
    vf top = vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])), old = vf_load(max);
    vf now = vf_select(top > old + vf_set1(BEHIND), top, old), base = vf_select(now == low, vf_set1(0), now);
    vf factor = vf_select(old == now, vf_set1(1), exp_down(old - base));
    for (int t = k0; t < k1; t += STEP) {
        char *high = (char *)p + t / STEP * 2 * BYTES;
        for (int j = 0; j < TILE; j += 2, high += 128) {
            vf w[4];
            UNROLL
            for (int i = 0; i < 4; i++) {
                w[i] = exp_down(vf_load(s + (t + 2 * j + i) * TILE) - base);
                total[i] = total[i] + w[i];
            }
            put_weights(w[0], w[1], high);
            put_weights(w[2], w[3], high + 64);
        }
        turn(high - BYTES);
        turn(high);
    }
    vf_store(max, now);
    vf_store(alpha, factor);
    vf_store(sum, vf_load(sum) * factor + ((total[0] + total[1]) + (total[2] + total[3])));
    return _mm512_cmp_ps_mask((__m512)factor, _mm512_set1_ps(1), _CMP_NEQ_UQ) != 0;
}

static void rescale(float *o, int64_t stride, int64_t panels, const float *alpha) {
    for (int64_t c = 0; c < panels; c++, o += stride)
        for (int i = 0; i < TILE; i++)
            UNROLL
            for (int t = 0; t < 2; t++) {
                float *p = o + t * SUMS + i * TILE;
                vf x = vf_load(p) * vf_set1(alpha[i]);
                vi tiny = (vf)((vi)x & vi_set1(0x7fffffff)) < vf_set1(0x1p-126f);
                vf_store(p, (vf)((vi)x & ~tiny));
            }
}

static void take(const float *o, int64_t stride, int i, int64_t n, float scale, float *dst) {
    for (int64_t c = 0; c < n; c += TILE) {
        const float *src = o + c / (2 * TILE) * stride + c / TILE % 2 * SUMS + i * TILE;
        vf y = vf_fma(vf_load(src), vf_set1(scale), vf_set1(0)); /* -0 + 0 is +0 */
        vf_store_n(dst + c, y, n - c < TILE ? (int)(n - c) : TILE);
    }
}

static void collect(float *s, int k0, int k1, const int32_t *a, const int32_t *b, int32_t key0, struct dg_vec_found *found, int n) {
    float least[TILE];
    unsigned nan = 0, there = n < TILE ? (1u << n) - 1 : 0xffff;
    for (int i = 0; i < TILE; i++)
        least[i] = i < n ? found[i].above : INFINITY;
    hide(s, k0, k1, a, b);
    vf above = vf_load(least);
    for (int t = k0; t < k1; t++) {
        const float *x = s + t * TILE;
        __m512 v = _mm512_loadu_ps(x);
        unsigned hit = _mm512_cmp_ps_mask(v, (__m512)above, _CMP_GT_OQ) & there;
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        while (hit) {
            struct dg_vec_found *f = found + __builtin_ctz(hit);
            f->score[f->n] = x[__builtin_ctz(hit)] + 0.0f; /* one zero, so that both compare as the same bits */
            f->key[f->n++] = key0 + t;
            hit &= hit - 1;
        }
    }
    for (int i = 0; i < n; i++)
        found[i].any_nan |= nan >> i & 1;
}

const struct dg_att_kernels dg_att_amx = {
    .name = "amx",
    .queries = queries,
    .key = key,
    .values = values,
    .scores = scores,
    .weigh = weigh,
    .softmax = softmax,
    .rescale = rescale,
    .take = take,
    .collect = collect,
};
