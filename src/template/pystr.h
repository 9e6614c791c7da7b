/* Text the way Python's str treats it. The prompt form is defined by a template that Python code runs, so trimming, case and the
 * spelling of odd values must be Python's to the byte.
 *
 * Input is valid UTF-8 (may contain NUL); a byte that is not is passed through as it stands. Any thread, no state. */
#ifndef DG_TEMPLATE_PYSTR_H
#define DG_TEMPLATE_PYSTR_H

#include "core/buf.h"

/* str.strip(): narrows [*s, *s + *n) past white space on both sides: Unicode White_Space and U+001C..U+001F. */
void dg_py_strip(const char **s, size_t *n);
/* Appends str.lower(). Full mappings; the Greek final sigma is decided by its neighbouring letters, where marks of the block
 * U+0300..U+036F, apostrophe, full stop, colon, middle dot and soft hyphen count as no letter and no break. */
enum dg_status dg_py_lower(struct dg_buf *b, const char *s, size_t n);
/* Appends str.upper(): full mappings. */
enum dg_status dg_py_upper(struct dg_buf *b, const char *s, size_t n);
/* Appends repr(str): quotes and escapes included. */
enum dg_status dg_py_repr(struct dg_buf *b, const char *s, size_t n);
/* repr(float): the shortest digits that read back as v, exponent form below 1e-4 and from 1e16 on. NUL-terminated. */
void dg_py_float(double v, char out[40]);

#endif
