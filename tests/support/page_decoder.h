/* A plain decoder of packs, written from docs/format.md and nothing else: doubles, one value at a time, no table shared with the engine. */
#ifndef DG_TESTS_PAGE_DECODER_H
#define DG_TESTS_PAGE_DECODER_H

#include <stddef.h>
#include <stdint.h>

/* Value j of row `row` of matrix `mat` of a tensor of that kind ("q4_block", "q6_block", "q8_row", "nvfp4_block", or "raw" with
 * dtype "BF16" or "F32") whose matrices are [n][k]. */
double page_value(const char *kind, const char *dtype, const uint8_t *bytes, int64_t n, int64_t k, int64_t mat, int64_t row, int64_t j);
/* Bytes of e matrices [n][k]. */
int64_t page_bytes(const char *kind, const char *dtype, int64_t e, int64_t n, int64_t k);

double page_bf16(const uint8_t *p);
double page_e2m1(int code);
double page_e4m3(int code);

#endif
