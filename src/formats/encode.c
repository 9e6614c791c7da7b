#include "formats/encode.h"

#include "core/half.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The search is the cost of quantising, so it is written in vectors of eight. Where the machine has wider registers they are used; that
 * changes no bit, since sums keep their lanes and nothing here is contracted. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
#define INLINE static inline __attribute__((always_inline))

#define LANES 8
#define AFFINE 32 /* values of a q4 or q6 group */
#define BLOCK 16  /* values of an nvfp4 group */
#define E2M1_MAX 6.0f
#define E4M3_MAX_CODE 126 /* 448 */
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding and taking it away rounds a small float to a whole number */

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

/* Vectors travel by pointer: passed by value they would need one ABI for each register width. */
INLINE void v_load(v8f *v, const float *p) { memcpy(v, p, sizeof *v); }
INLINE void v_set(v8f *v, float f) { *v = (v8f){f, f, f, f, f, f, f, f}; }
INLINE void v_min(v8f *v, float most) {
    v8f m;
    v_set(&m, most);
    v8i less = *v < m;
    *v = (v8f)(((v8i)*v & less) | ((v8i)m & ~less));
}
/* Largest of the lanes. */
INLINE float v_most(const v8f *v) {
    float most = (*v)[0];
    for (int j = 1; j < LANES; j++)
        most = (*v)[j] > most ? (*v)[j] : most;
    return most;
}
INLINE void v_larger(v8f *v, const v8f *w) {
    v8i more = *v > *w;
    *v = (v8f)(((v8i)*v & more) | ((v8i)*w & ~more));
}
INLINE void v_max0(v8f *v) { *v = (v8f)((v8i)*v & (*v > 0.0f)); }
INLINE void v_abs(v8f *v) { *v = (v8f)((v8i)*v & 0x7fffffff); }
INLINE float v_sum(const v8f *v) {
    const v8f l = *v;
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

const char *dg_codes_name(enum dg_codes codes) { return codes == DG_CODES_PLAIN ? "plain" : "fit"; }

INLINE float to_bf16(float f) { return dg_bf16_f32(dg_f32_bf16(f)); }

INLINE void put16(uint8_t *p, float bf16_value) {
    uint16_t h = (uint16_t)(dg_f32_bits(bf16_value) >> 16);
    memcpy(p, &h, 2);
}

/* 1 / v, or 0 where that is no finite number: then every code is 0. */
INLINE float reciprocal(float v) {
    float r = 1.0f / v;
    return v > 0.0f && r <= FLT_MAX ? r : 0.0f;
}

/* One group of 32 under w = scale * q + min. */
struct affine {
    float scale, min, error;
    v8f q[4];
};

INLINE void affine_codes(const v8f *x, float scale, float min, float top, v8f *q) {
    float inv = reciprocal(scale);
    for (int i = 0; i < 4; i++) {
        v8f v = (x[i] - min) * inv;
        v_max0(&v);
        v_min(&v, top);
        q[i] = (v + ROUND_MAGIC) - ROUND_MAGIC;
    }
}

/* Takes scale and minimum for the group when they serve it better than what it has. */
INLINE void affine_try(const v8f *x, const v8f *w, float scale, float min, float top, struct affine *best) {
    v8f q[4], e = {0};
    affine_codes(x, scale, min, top, q);
    for (int i = 0; i < 4; i++) {
        v8f d = q[i] * scale + min - x[i];
        e += d * d * w[i];
    }
    float error = v_sum(&e);
    if (!(error < best->error))
        return;
    best->scale = scale;
    best->min = min;
    best->error = error;
    memcpy(best->q, q, sizeof q);
}

/* Least squares for fixed codes: the scale and minimum that bring scale * q + min closest to x. False when all codes are equal. */
INLINE bool affine_refit(const v8f *x, const v8f *w, const v8f *q, float sum_x, float sum_w, float *scale, float *min) {
    v8f sq = {0}, sqq = {0}, sqx = {0};
    for (int i = 0; i < 4; i++) {
        v8f wq = w[i] * q[i];
        sq += wq;
        sqq += wq * q[i];
        sqx += wq * x[i];
    }
    float q1 = v_sum(&sq), det = sum_w * v_sum(&sqq) - q1 * q1;
    if (!(det > 0.0f))
        return false;
    *scale = to_bf16((sum_w * v_sum(&sqx) - q1 * sum_x) / det);
    *min = to_bf16((sum_x - *scale * q1) / sum_w);
    return *scale > 0.0f;
}

/* Each entry starts the refit from codes that stretch the group's range over this many steps more than there are: what is over cuts
 * the extremes. */
static const float q4_starts[] = {0.0f, 1.0f, 2.2f};
static const float q6_starts[] = {0.0f, 1.5f, 3.5f};

INLINE bool affine_group(const float *values, const float *weights, float top, enum dg_codes codes, const float *starts, int n_starts, struct affine *best) {
    v8f x[4], w[4], sum = {0}, sum_of_w = {0}, most, minus_least;
    v_load(&most, values);
    minus_least = -most;
    for (int i = 0; i < 4; i++) {
        v_load(&x[i], values + LANES * i);
        v_load(&w[i], weights + LANES * i);
        v8f minus = -x[i];
        sum += w[i] * x[i];
        sum_of_w += w[i];
        v_larger(&most, &x[i]);
        v_larger(&minus_least, &minus);
    }
    float lo = -v_most(&minus_least), hi = v_most(&most), scale, min;
    /* the plain choice stands even where its error is too large a number for f32 */
    best->scale = to_bf16((hi - lo) / top);
    best->min = to_bf16(lo);
    best->error = INFINITY;
    affine_codes(x, best->scale, best->min, top, best->q);
    affine_try(x, w, best->scale, best->min, top, best);
    float sum_x = v_sum(&sum), sum_w = v_sum(&sum_of_w);
    for (int i = 0; codes == DG_CODES_FIT && i < n_starts && best->error > 0.0f && best->error <= FLT_MAX; i++) {
        v8f q[4];
        float step = (hi - lo) / (top + starts[i]);
        affine_codes(x, step, lo + 0.5f * starts[i] * step, top, q);
        if (affine_refit(x, w, q, sum_x, sum_w, &scale, &min))
            affine_try(x, w, scale, min, top, best);
    }
    return best->scale <= FLT_MAX && fabsf(best->min) <= FLT_MAX;
}

WIDE static bool encode_q4(enum dg_codes codes, const float *x, const float *w, int64_t k, uint8_t *row) {
    struct affine g = {0};
    for (int64_t b = 0; b < k; b += AFFINE, row += 20) {
        if (!affine_group(x + b, w + b, 15.0f, codes, q4_starts, sizeof q4_starts / sizeof *q4_starts, &g))
            return false;
        put16(row, g.scale);
        put16(row + 2, g.min);
        float q[AFFINE];
        memcpy(q, g.q, sizeof q);
        for (int j = 0; j < 16; j++)
            row[4 + j] = (uint8_t)((int)q[2 * j] | (int)q[2 * j + 1] << 4);
    }
    return true;
}

WIDE static bool encode_q6(enum dg_codes codes, const float *x, const float *w, int64_t k, uint8_t *row) {
    struct affine g = {0};
    for (int64_t b = 0; b < k; b += AFFINE, row += 28) {
        if (!affine_group(x + b, w + b, 63.0f, codes, q6_starts, sizeof q6_starts / sizeof *q6_starts, &g))
            return false;
        put16(row, g.scale);
        put16(row + 2, g.min);
        float q[AFFINE];
        memcpy(q, g.q, sizeof q);
        for (int word = 0; word < 8; word++) {
            uint32_t v = 0;
            for (int c = 0; c < 4; c++)
                v |= (uint32_t)(int)q[4 * word + c] << (6 * c);
            row[4 + 3 * word] = (uint8_t)v;
            row[5 + 3 * word] = (uint8_t)(v >> 8);
            row[6 + 3 * word] = (uint8_t)(v >> 16);
        }
    }
    return true;
}

/* Eight values of a row from i on, zeros past its end. */
INLINE void row_load(v8f *v, const float *x, int64_t i, int64_t k) {
    if (i + LANES <= k) {
        v_load(v, x + i);
        return;
    }
    float tail[LANES] = {0};
    memcpy(tail, x + i, (size_t)(k - i) * sizeof *x);
    v_load(v, tail);
}

INLINE float row_abs_max(const float *x, int64_t k) {
    float most = 0;
    for (int64_t i = 0; i < k; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* Codes -127..127 as whole floats. */
INLINE void q8_codes(const v8f *x, float inv, v8f *q) {
    v8f v = *x * inv;
    v_min(&v, 127.0f);
    v = -v;
    v_min(&v, 127.0f);
    *q = ((-v) + ROUND_MAGIC) - ROUND_MAGIC;
}

INLINE double q8_error(const float *x, const float *w, int64_t k, float scale) {
    float inv = 1.0f / scale;
    double sum = 0;
    for (int64_t b = 0; b < k; b += 512) { /* f32 lanes over a stretch, f64 over the row */
        int64_t end = k - b < 512 ? k : b + 512;
        v8f e = {0};
        for (int64_t i = b; i < end; i += LANES) {
            v8f v, q, weight;
            row_load(&v, x, i, k);
            row_load(&weight, w, i, k);
            q8_codes(&v, inv, &q);
            v8f d = q * scale - v;
            e += d * d * weight;
        }
        sum += (double)v_sum(&e);
    }
    return sum;
}

WIDE static bool encode_q8(enum dg_codes codes, const float *x, const float *w, int64_t k, uint8_t *row) {
    static const float cut[] = {0.985f, 0.96f, 0.93f, 0.89f, 0.84f};
    float most = row_abs_max(x, k), best = to_bf16(most / 127.0f);
    if (!(best <= FLT_MAX))
        return false;
    if (reciprocal(best) == 0.0f)
        best = 0.0f;
    if (codes == DG_CODES_FIT && best > 0.0f) {
        double least = q8_error(x, w, k, best);
        for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
            float s = to_bf16(most / 127.0f * cut[i]);
            double e = reciprocal(s) > 0.0f ? q8_error(x, w, k, s) : least;
            if (e < least) {
                least = e;
                best = s;
            }
        }
    }
    put16(row, best);
    for (int64_t i = 0; i < k; i += LANES) {
        v8f v, q;
        row_load(&v, x, i, k);
        q8_codes(&v, reciprocal(best), &q);
        for (int64_t j = 0; j < LANES && i + j < k; j++)
            row[2 + i + j] = (uint8_t)(int8_t)q[j];
    }
    return true;
}

/* Value of a non-negative E4M3 code. */
INLINE float e4m3_value(int code) {
    int exp = code >> 3, man = code & 7;
    return exp ? dg_bits_f32((uint32_t)(exp + 120) << 23 | (uint32_t)man << 20) : (float)man * 0x1p-9f;
}

/* Largest code whose value is at most v, 0..E4M3_MAX_CODE. */
INLINE int e4m3_below(float v) {
    if (!(v > 0.0f))
        return 0;
    if (v >= 448.0f)
        return E4M3_MAX_CODE;
    if (v < 0x1p-6f)
        return (int)(v * 0x1p9f);
    return (int)(dg_f32_bits(v) >> 20) - (120 << 3);
}

/* Nearest E2M1 magnitudes of a >= 0. Steps are 0.5 below 2, 1 below 4 and 2 above, and so is the magic number that rounds to them. */
INLINE void e2m1_nearest(const v8f *a, v8f *out) {
    v8f half, whole;
    v_set(&half, 0.5f * ROUND_MAGIC);
    v_set(&whole, ROUND_MAGIC);
    v8f magic = (v8f)((*a >= 2.0f) & (v8i)half) + (v8f)((*a >= 4.0f) & (v8i)whole) + half;
    *out = (*a + magic) - magic;
    v_min(out, E2M1_MAX);
}

INLINE float block_error(const v8f *a, const v8f *w, float step) {
    v8f e = {0};
    float inv = 1.0f / step;
    for (int i = 0; i < 2; i++) {
        v8f v = a[i] * inv, n;
        v_min(&v, E2M1_MAX);
        e2m1_nearest(&v, &n);
        v8f d = n * step - a[i];
        e += d * d * w[i];
    }
    return v_sum(&e);
}

/* Scale code of one block; a: magnitudes. */
INLINE int block_scale(enum dg_codes codes, const v8f *a, const v8f *w, float global) {
    v8f larger = a[0];
    v_larger(&larger, &a[1]);
    float most = v_most(&larger);
    float want = most / E2M1_MAX / global;
    int at = e4m3_below(want), best = at;
    if (at < E4M3_MAX_CODE && e4m3_value(at + 1) - want < want - e4m3_value(at))
        best = at + 1;
    if (codes == DG_CODES_PLAIN || most == 0.0f)
        return best;
    /* two steps down cut the largest value, seven up bring it to 3: between them lies every scale worth a look */
    float least = INFINITY;
    int from = at > 2 ? at - 2 : 1, to = at + 7 < E4M3_MAX_CODE ? at + 7 : E4M3_MAX_CODE;
    for (int c = from; c <= to; c++) {
        float step = e4m3_value(c) * global, e = reciprocal(step) > 0.0f ? block_error(a, w, step) : INFINITY;
        if (e < least) {
            least = e;
            best = c;
        }
    }
    return best;
}

/* E2M1 codes of a block, sign in bit 3; a value that rounds to zero gets code 0 whatever its sign. */
INLINE void block_codes(const v8f *x, const v8f *a, float inv, uint8_t *out) {
    int32_t code[BLOCK];
    for (int i = 0; i < 2; i++) {
        v8f v = a[i] * inv, n;
        v_min(&v, E2M1_MAX);
        e2m1_nearest(&v, &n);
        v8i c = -((n >= 0.5f) + (n >= 1.0f) + (n >= 1.5f) + (n >= 2.0f) + (n >= 3.0f) + (n >= 4.0f) + (n >= 6.0f));
        c |= (x[i] < 0.0f) & (c > 0) & 8;
        memcpy(code + LANES * i, &c, sizeof c);
    }
    for (int j = 0; j < BLOCK / 2; j++)
        out[j] = (uint8_t)(code[2 * j] | code[2 * j + 1] << 4);
}

WIDE static bool encode_nvfp4(enum dg_codes codes, const float *x, const float *w, int64_t k, float global, uint8_t *row) {
    uint8_t *scales = row + k / 2;
    for (int64_t b = 0; b < k / BLOCK; b++) {
        v8f v[2], a[2], weight[2];
        for (int i = 0; i < 2; i++) {
            v_load(&v[i], x + b * BLOCK + LANES * i);
            v_load(&weight[i], w + b * BLOCK + LANES * i);
            a[i] = v[i];
            v_abs(&a[i]);
        }
        int c = block_scale(codes, a, weight, global);
        scales[b] = (uint8_t)c;
        block_codes(v, a, reciprocal(e4m3_value(c) * global), row + b * (BLOCK / 2));
    }
    return true;
}

bool dg_row_finite(const float *x, int64_t k, float *abs_max) {
    uint32_t most = 0; /* magnitudes order as their bits do */
    for (int64_t i = 0; i < k; i++) {
        uint32_t u = dg_f32_bits(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    *abs_max = dg_bits_f32(most);
    return most < 0x7f800000u;
}

float dg_nvfp4_global(enum dg_codes codes, float abs_max) {
    float most_scale = codes == DG_CODES_FIT ? 240.0f : 448.0f, g = abs_max / (E2M1_MAX * most_scale);
    if (abs_max == 0.0f)
        return 1.0f;
    return g > FLT_MIN ? g : FLT_MIN;
}

bool dg_encode_row(enum dg_format fmt, enum dg_codes codes, const float *x, const float *w, int64_t k, float global, uint8_t *row) {
    switch (fmt) {
    case DG_FMT_Q4_BLOCK: return encode_q4(codes, x, w, k, row);
    case DG_FMT_Q6_BLOCK: return encode_q6(codes, x, w, k, row);
    case DG_FMT_Q8_ROW: return encode_q8(codes, x, w, k, row);
    case DG_FMT_NVFP4_BLOCK: return encode_nvfp4(codes, x, w, k, global, row);
    case DG_FMT_BF16:
        for (int64_t i = 0; i < k; i++, row += 2)
            put16(row, to_bf16(x[i]));
        return true;
    default: return false;
    }
}
