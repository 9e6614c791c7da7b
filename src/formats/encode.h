/* Encoders: f32 rows to the bytes of a format (docs/format.md). The page fixes how bytes are decoded; how codes are chosen is free, and
 * there are two ways here. The result depends on the values alone: the same bytes on any machine and for any split of the rows. */
#ifndef DG_FORMATS_ENCODE_H
#define DG_FORMATS_ENCODE_H

#include "formats/formats.h"

enum dg_codes {
    DG_CODES_PLAIN, /* scale and minimum from the group's extremes, nearest code */
    DG_CODES_FIT    /* scale and minimum of the least squared error found by a short search; never worse than plain */
};

/* "plain" or "fit"; a literal. */
const char *dg_codes_name(enum dg_codes codes);

/* Encodes one row of k finite values (k a multiple of the format's block) to dg_format_row_bytes(fmt, k) bytes. w: k positive weights of
 * the squared error, one a column (used by the fit alone). global: the matrix's nvfp4 global scale (dg_nvfp4_global), ignored by other formats. fmt: any but F16 and F32. False when the row cannot be expressed: a scale or
 * minimum beyond bf16's range; the bytes are then undefined. Any thread. */
bool dg_encode_row(enum dg_format fmt, enum dg_codes codes, const float *x, const float *w, int64_t k, float global, uint8_t *row)
    DG_MUST_CHECK;

/* Whether all k values are finite; *abs_max: the largest magnitude then. */
bool dg_row_finite(const float *x, int64_t k, float *abs_max);

/* Global scale of an nvfp4 matrix whose largest magnitude is abs_max (finite, >= 0). The fitted codes leave room above the largest
 * block's scale, since a block of few large values is often best kept by 4 or 3 instead of 6. */
float dg_nvfp4_global(enum dg_codes codes, float abs_max);

#endif
