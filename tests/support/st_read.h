/* Reader of small safetensors files for tests: the oracle's inputs and expected outputs.
 *
 * It is apart from the library's loader on purpose, so that a test never checks the loader with itself. The files are trusted; a
 * damaged one is still refused with a line on stderr. Not for use by the library. */
#ifndef TESTS_SUPPORT_ST_READ_H
#define TESTS_SUPPORT_ST_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum st_dtype { ST_U8, ST_I32, ST_I64, ST_F32, ST_F16, ST_BF16 };

struct st_file;

/* Maps a file and reads its header. NULL with the reason on stderr. Owner: the caller, st_close. */
struct st_file *st_open(const char *path);
/* NULL is allowed. */
void st_close(struct st_file *f);
/* Tensors in the file, and the name of the i-th in the header's order (borrowed, until st_close). */
size_t st_count(const struct st_file *f);
const char *st_name(const struct st_file *f, size_t i);
/* Whether anyone has asked for the i-th tensor's data, with the right type and size. */
bool st_was_read(const struct st_file *f, size_t i);
/* First element of a tensor, row-major, aligned to its element size, until st_close; NULL when the file has no such tensor.
 * dtype, rank and shape[4] may be NULL; shape entries past the rank are set to 1. */
const void *st_get(const struct st_file *f, const char *name, enum st_dtype *dtype, int *rank, int64_t shape[4]);
/* The same, but NULL (and a line on stderr when the tensor exists with another type or size) unless it has that type and n
 * elements; n < 0 accepts any number. */
const float *st_f32(const struct st_file *f, const char *name, int64_t n);
const int32_t *st_i32(const struct st_file *f, const char *name, int64_t n);
const uint8_t *st_u8(const struct st_file *f, const char *name, int64_t n);
bool st_has(const struct st_file *f, const char *name);
/* Elements of a tensor, -1 when there is none of that name. */
int64_t st_numel(const struct st_file *f, const char *name);

#endif
