/* Kernels of the matrix products, one table per level.
 *
 * A product is made of register tiles: mr rows of x against DG_GEMM_NR rows of w, one vector accumulator a pair, running along K in order.
 * K is cut into chunks of kc elements; at a chunk's end each accumulator's lanes are added in one fixed tree and the sum is added to the
 * result. Length and level alone decide the order of a sum, so that one row of x gives the same bits in any company. */
#ifndef DG_OPS_CPU_GEMM_H
#define DG_OPS_CPU_GEMM_H

#include "formats/formats.h"
#include "ops/cpu/level.h"

#define DG_GEMM_NR 4      /* rows of w in a register tile */
#define DG_GEMM_MR_MAX 8
#define DG_GEMM_KC_MAX 1408
#define DG_GEMM_STEP_MAX 32
#define DG_GEMM_COLS_MAX 64

/* Sums of tile registers: up to 2 x 2 tiles of sixteen rows of w by sixteen rows of x, over `steps` steps of 32 elements. */
struct dg_gemm_tiles {
    const char *x[2]; /* packed rows: [steps][16 pairs of elements][16 rows] */
    const char *w[2]; /* element 0 of the first of sixteen rows of w */
    int64_t w_row[2]; /* bytes from row to row */
    int n_x, n_w;     /* 1 or 2 */
    int64_t steps;
    float *c;         /* [n_w][n_x][16 rows of w][16 rows of x] */
    enum dg_gemm_sums { DG_SUMS_ZERO, DG_SUMS_C, DG_SUMS_KEPT } from; /* where they begin: at zero, in c, in the registers of the call before */
    bool to_c;        /* leave the sums in c; in the registers they stay anyway */
    const char *ahead;   /* each step asks for so many cache lines from here on, which are needed later */
    int64_t ahead_lines;
};

/* The arithmetic of one type of activations: what x and the panel of decoded weights hold, and the kernels over them. */
struct dg_gemm_kind {
    const char *name;
    int mr;              /* most rows of x in a tile */
    int step;            /* elements of one vector along K; rows are padded to it with zeros */
    int kc;              /* elements of a chunk; a multiple of 32 */
    int elem;            /* bytes of an element: 4 = f32, 2 = bf16 */
    int nr;              /* rows of w in a tile */
    int cols;            /* most rows of w in a panel, at most DG_GEMM_COLS_MAX, and the row length of its results */
    int group;           /* rows of x that are packed together */
    bool m_outer;        /* which of a tile's sides is kept in the nearest cache */
    enum dg_format raw;  /* weights of this format are read in place; DG_FMT_COUNT: none are */
    /* c[i][j] = (add ? c[i][j] : 0) + sum over `steps` vectors of x_i . w_j. tile[mr - 1]: x is [steps][mr][step], w points at
     * DG_GEMM_NR rows of steps * step elements. Meanwhile asks for `lines` cache lines from `ahead` on, which are needed later. */
    void (*tile[DG_GEMM_MR_MAX])(const void *x, const void *const *w, int64_t steps, float *c, int64_t ldc, bool add, const uint8_t *ahead,
                                 int64_t lines);
    /* Copies n elements of an f32 (0) or bf16 (1) row: vector s to dst + s * stride elements, the last filled up with zeros. The order
     * of elements within 32 is the level's own, the same in pack, decode and dot. */
    void (*pack[2])(const void *row, int64_t n, int64_t stride, void *dst);
    /* Decodes elements [k0, k0 + n) of a row of k into dst and fills up to a multiple of step with zeros; k0 is a multiple of 32. Without
     * the row's factor, where the format has one (dg_gemm_row_factor). */
    void (*decode[DG_FMT_COUNT])(const uint8_t *row, int64_t k, int64_t k0, int64_t n, void *dst);
    /* One row of x against DG_GEMM_NR rows of weights that are decoded on the way, n a multiple of 32: the bits of decode and tile[0]. Asks
     * for the same part of the rows from `ahead` on, which are needed later, unless asking costs more than it saves. NULL where a level has
     * none. */
    void (*dot[DG_FMT_COUNT])(const void *x, const uint8_t *const *row, int64_t k, int64_t k0, int64_t n, float *c, bool add,
                              const uint8_t *ahead);

    /* With tile registers these take the place of tile, pack and dot; NULL otherwise.
     * Packs n <= 16 rows of k values, f32 (0) or bf16 (1), as struct dg_gemm_tiles wants them; missing rows are zeros. */
    void (*pack_rows[2])(const void *const *row, int n, int64_t k, void *dst);
    void (*tiles)(const struct dg_gemm_tiles *t);
    /* Columns c[0..15] of n <= 16 rows of results from a tile of sums. */
    void (*put)(const float *tile, int n, float *c, int64_t ldc);
    /* A thread calls the first before it uses tiles, the second when it goes on to other work. */
    void (*begin)(void);
    void (*end)(void);
};

/* Statistics of one row over one block of the vocabulary, relative to its own maximum. */
struct dg_head_part {
    float max;     /* largest logit, before 1/T */
    float sum;     /* of e = exp(logit / T - max / T) */
    float moment;  /* of e * (logit / T - max / T) */
    int32_t arg;   /* its first place in the block */
};

struct dg_gemm_kernels {
    const char *name;
    struct dg_gemm_kind kind[2]; /* for f32 and for bf16 activations */
    /* y = c, in f32 (0) or bf16 (1) */
    void (*store[2])(const float *c, int64_t n, void *y);
    /* y = gelu(gate) * up */
    void (*glu[2])(const float *gate, const float *up, int64_t n, void *y);
    /* c[j] *= f[j] */
    void (*scale)(float *c, const float *f, int64_t n);
    /* y += a * x */
    void (*axpy)(float *y, const float *x, float a, int64_t n);
    /* z[i] = cap * tanh(z[i] / cap), what is not finite staying as it is, and the block's statistics. n >= 1. */
    void (*cap_stats)(float *z, int64_t n, float cap, float inv_t, struct dg_head_part *out);
};

/* Some formats have one factor for a whole row or matrix: it is applied to the sum, not to each weight, so that the codes stay exact in bf16. */
static inline bool dg_gemm_has_factor(enum dg_format fmt) { return fmt == DG_FMT_Q8_ROW || fmt == DG_FMT_NVFP4_BLOCK; }
float dg_gemm_row_factor(enum dg_format fmt, const uint8_t *mat, const uint8_t *row);

/* As dg_cpu_kernels_init, for this part of the table. */
void dg_gemm_kernels_init(struct dg_gemm_kernels *k, enum dg_cpu_level level);

/* One step of it each: fills in what the instruction set makes better. */
void dg_gemm_init_scalar(struct dg_gemm_kernels *k);
void dg_gemm_init_avx2(struct dg_gemm_kernels *k);
void dg_gemm_init_avx512(struct dg_gemm_kernels *k);
void dg_gemm_init_avx512bf16(struct dg_gemm_kernels *k);
void dg_gemm_init_amx(struct dg_gemm_kernels *k);
void dg_gemm_init_neon(struct dg_gemm_kernels *k);
void dg_gemm_init_neonbf16(struct dg_gemm_kernels *k);

/* E4M3 ("fn") as f32, for all 256 codes; and 2^-25 of it, for integers of twice the value in the highest byte. */
extern const float dg_gemm_e4m3[256], dg_gemm_e4m3_top[256];
/* The values that the codes of nvfp4 have under each scale, as bf16: exact. */
extern const uint16_t dg_gemm_nvfp4_bf16[256][16];

/* Bytes of 32 weights, without what a row or a matrix has once. */
#define DG_GEMM_BYTES_BF16 64
#define DG_GEMM_BYTES_F16 64
#define DG_GEMM_BYTES_F32 128
#define DG_GEMM_BYTES_Q4 20
#define DG_GEMM_BYTES_Q6 28
#define DG_GEMM_BYTES_Q8 32
#define DG_GEMM_BYTES_NVFP4 18

/* Asks for so many cache lines into the second cache. */
static inline __attribute__((always_inline)) void dg_gemm_ask_lines(const uint8_t *p, int64_t lines) {
    for (; lines > 0; lines--, p += 64)
        __builtin_prefetch(p, 0, 2);
}

/* What is due for 32 weights of so many bytes, those from element `at` on, of the DG_GEMM_NR rows behind one another from p on: asked for into the
 * second cache. Rows side by side where a line is due for each: more streams are faster. */
static inline __attribute__((always_inline)) void dg_gemm_ask(const uint8_t *p, int64_t row_bytes, int64_t at, int64_t bytes) {
    int64_t first = (int64_t)((uint64_t)at / 32) * bytes;
    if (bytes >= 64) {
        for (int r = 0; r < DG_GEMM_NR; r++)
            for (int64_t b = 0; b < bytes; b += 64)
                __builtin_prefetch(p + r * row_bytes + first + b, 0, 2);
    } else {
        for (int64_t b = 0; b < DG_GEMM_NR * bytes; b += 64)
            __builtin_prefetch(p + DG_GEMM_NR * first + b, 0, 2);
    }
}

#endif
