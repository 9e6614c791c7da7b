/* Matrix kernels of AMX: TDPBF16PS on tiles of sixteen rows of w by sixteen rows of x. Decoding and the f32 path stay those below.
 *
 * For each step of 32 elements the instruction sums the even and the odd products apart, adds both sums and adds that to the result, each
 * addition rounded once to the nearest, subnormals taken and left as zero. So a sum of k elements is k / 32 + 17 roundings deep. */
#include "ops/cpu/simd_avx512.h"

#include "core/half.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/transpose512.h"

#define TILE 16
#define STEP 32
#define STEP_BYTES 1024 /* of a packed tile */
#define TILE_FLOATS 256
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Eight tiles of sixteen rows of 64 bytes: 0 to 3 are sums, 4 and 5 of w, 6 and 7 of x. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config __attribute__((aligned(64))) = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void begin(void) { _tile_loadconfig(&config); }
static void end(void) { _tile_release(); }

/* Sums of tiles that are not there keep what they hold: n_w and n_x are constants where this is inlined. */
INLINE void tiles(const struct dg_gemm_tiles *t, int n_w, int n_x) {
    float *c01 = t->c + TILE_FLOATS, *c10 = t->c + n_x * TILE_FLOATS, *c11 = c10 + TILE_FLOATS;
    if (t->from == DG_SUMS_ZERO) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else if (t->from == DG_SUMS_C) {
        _tile_loadd(0, t->c, 64);
        if (n_x > 1)
            _tile_loadd(1, c01, 64);
        if (n_w > 1)
            _tile_loadd(2, c10, 64);
        if (n_w > 1 && n_x > 1)
            _tile_loadd(3, c11, 64);
    }
    const char *w0 = t->w[0], *w1 = t->w[1], *x0 = t->x[0], *x1 = t->x[1], *ahead = t->ahead;
    const int64_t row0 = t->w_row[0], row1 = t->w_row[1];
    for (int64_t s = 0; s < t->steps; s++) {
        for (int64_t i = 0; i < t->ahead_lines; i++, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
        _tile_loadd(6, x0, 64);
        _tile_loadd(4, w0, row0);
        _tile_dpbf16ps(0, 4, 6);
        if (n_x > 1) {
            _tile_loadd(7, x1, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (n_w > 1) {
            _tile_loadd(5, w1, row1);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (n_w > 1 && n_x > 1)
            _tile_dpbf16ps(3, 5, 7);
        w0 += 2 * STEP;
        w1 += 2 * STEP;
        x0 += STEP_BYTES;
        x1 += STEP_BYTES;
    }
    if (!t->to_c)
        return;
    _tile_stored(0, t->c, 64);
    if (n_x > 1)
        _tile_stored(1, c01, 64);
    if (n_w > 1)
        _tile_stored(2, c10, 64);
    if (n_w > 1 && n_x > 1)
        _tile_stored(3, c11, 64);
}

static void run_tiles(const struct dg_gemm_tiles *t) {
    if (t->n_w > 1 && t->n_x > 1)
        tiles(t, 2, 2);
    else if (t->n_w > 1)
        tiles(t, 2, 1);
    else if (t->n_x > 1)
        tiles(t, 1, 2);
    else
        tiles(t, 1, 1);
}

static void put(const float *tile, int n, float *c, int64_t ldc) {
    __m512 r[TILE];
    UNROLL
    for (int i = 0; i < TILE; i++)
        r[i] = _mm512_loadu_ps(tile + i * TILE);
    transpose512(r);
    if (n == TILE) {
        UNROLL
        for (int i = 0; i < TILE; i++)
            _mm512_storeu_ps(c + i * ldc, r[i]);
        return;
    }
    for (int i = 0; i < n; i++)
        _mm512_storeu_ps(c + i * ldc, r[i]);
}

/* Thirty-two elements of a row of n as bf16, zeros behind its end. */
INLINE __m512 step_bf16(const void *row, int64_t at, int64_t n) {
    uint16_t d[STEP] = {0};
    if (n - at >= STEP)
        return (__m512)_mm512_loadu_si512((const uint16_t *)row + at);
    for (int64_t i = at; i < n; i++)
        d[i - at] = dg_at_u16(row, i);
    return (__m512)_mm512_loadu_si512(d);
}

INLINE __m512 step_f32(const void *row, int64_t at, int64_t n) {
    const float *p = row;
    float d[STEP] = {0};
    if (n - at >= STEP)
        return (__m512)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + at + TILE), _mm512_loadu_ps(p + at));
    for (int64_t i = at; i < n; i++)
        d[i - at] = p[i];
    return (__m512)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(d + TILE), _mm512_loadu_ps(d));
}

#define PACK(name, step)                                                               \
    static void name(const void *const *row, int n, int64_t k, void *dst) {            \
        float *d = dst;                                                                \
        for (int64_t at = 0; at < k; at += STEP, d += TILE_FLOATS) {                   \
            __m512 r[TILE];                                                            \
            UNROLL                                                                     \
            for (int i = 0; i < TILE; i++)                                             \
                r[i] = i < n ? step(row[i], at, k) : _mm512_setzero_ps();              \
            transpose512(r);                                                           \
            UNROLL                                                                     \
            for (int i = 0; i < TILE; i++)                                             \
                _mm512_storeu_ps(d + i * TILE, r[i]);                                  \
        }                                                                              \
    }
PACK(pack_rows_bf16, step_bf16)
PACK(pack_rows_f32, step_f32)

void dg_gemm_init_amx(struct dg_gemm_kernels *k) {
    struct dg_gemm_kind *g = &k->kind[1];
    k->name = g->name = "amx";
    g->mr = g->nr = g->group = TILE;
    g->cols = 64;
    g->kc = 256;
    g->pack_rows[0] = pack_rows_f32;
    g->pack_rows[1] = pack_rows_bf16;
    g->tiles = run_tiles;
    g->put = put;
    g->begin = begin;
    g->end = end;
}
