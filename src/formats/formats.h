/* Weight formats: one row of a table per format. Layouts: reference.md section 5 (docs/format.md).
 *
 * Every format stores a matrix [rows N][cols K] row after row, blocks along K, no padding between rows. `raw` formats are the
 * checkpoint's element types. */
#ifndef DG_FORMATS_FORMATS_H
#define DG_FORMATS_FORMATS_H

#include "core/status.h"

enum dg_format {
    DG_FMT_BF16,
    DG_FMT_F16,
    DG_FMT_F32,
    DG_FMT_Q4_BLOCK,
    DG_FMT_Q6_BLOCK,
    DG_FMT_Q8_ROW,
    DG_FMT_NVFP4_BLOCK,
    DG_FMT_COUNT
};

struct dg_format_traits {
    const char *name; /* as the manifest spells the kind; "bf16" etc. for raw types */
    int block;        /* K must be a multiple of this */
    int block_bytes;  /* bytes of one block */
    int row_extra;    /* bytes before a row's blocks (q8_row's scale) */
    int mat_extra;    /* bytes before a matrix's rows (nvfp4's global) */
    /* Decodes one row of k values (k a multiple of block) to f32. row: its bytes; mat: the matrix's first byte (mat_extra). */
    void (*decode_row)(const uint8_t *mat, const uint8_t *row, int64_t k, float *dst);
};

/* Row of the table; fmt must be below DG_FMT_COUNT. Static storage. */
const struct dg_format_traits *dg_format_traits(enum dg_format fmt);
/* Bytes of one row of k values. */
static inline int64_t dg_format_row_bytes(enum dg_format fmt, int64_t k) {
    const struct dg_format_traits *t = dg_format_traits(fmt);
    return t->row_extra + k / t->block * t->block_bytes;
}
/* Bytes of a matrix [n][k]. The caller has checked the ranges (no overflow for n, k < 2^31). */
static inline int64_t dg_format_mat_bytes(enum dg_format fmt, int64_t n, int64_t k) {
    return dg_format_traits(fmt)->mat_extra + n * dg_format_row_bytes(fmt, k);
}

/* A matrix [n][k] where the file put it. Borrowed from the model. */
struct dg_mat {
    enum dg_format fmt;
    int32_t n, k;
    const uint8_t *data; /* mat_extra bytes, then n rows; NULL = absent */
    uint64_t dev;        /* device address of the same bytes, 0 on the CPU */
};

/* A stack of e matrices [n][k], one after another. */
struct dg_stack {
    enum dg_format fmt;
    int32_t e, n, k;
    const uint8_t *data;
    uint64_t dev;
    bool reordered; /* on the device: the same values in an order of that device's own kernels */
};

/* Matrix i of a stack. */
static inline struct dg_mat dg_stack_mat(const struct dg_stack *s, int i) {
    int64_t off = (int64_t)i * dg_format_mat_bytes(s->fmt, s->n, s->k);
    return (struct dg_mat){s->fmt, s->n, s->k, s->data ? s->data + off : NULL, s->dev ? s->dev + (uint64_t)off : 0};
}

/* First byte of row r. */
static inline const uint8_t *dg_mat_row(const struct dg_mat *m, int64_t r) {
    return m->data + dg_format_traits(m->fmt)->mat_extra + r * dg_format_row_bytes(m->fmt, m->k);
}

#endif
