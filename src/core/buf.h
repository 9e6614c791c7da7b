/* A growing byte buffer with a stated maximum. The only way the library grows text or bytes.
 *
 * Not thread-safe. Once an append fails (memory or maximum) the buffer keeps what it had, remembers the failure, and every later
 * append fails too, so a caller may append many times and check once. */
#ifndef DG_CORE_BUF_H
#define DG_CORE_BUF_H

#include "core/status.h"

struct dg_buf {
    char *data; /* NUL-terminated when non-NULL */
    size_t len; /* bytes without the NUL */
    size_t cap;
    size_t max; /* most bytes ever held */
    enum dg_status status;
};

/* max: most bytes it may hold. Allocates nothing. */
void dg_buf_init(struct dg_buf *b, size_t max);
void dg_buf_deinit(struct dg_buf *b);
void dg_buf_clear(struct dg_buf *b);
/* Each returns the buffer's status: DG_OK, DG_E_NOMEM or DG_E_LIMIT. */
enum dg_status dg_buf_add(struct dg_buf *b, const void *data, size_t n);
enum dg_status dg_buf_str(struct dg_buf *b, const char *s);
enum dg_status dg_buf_chr(struct dg_buf *b, char c);
enum dg_status dg_buf_fmt(struct dg_buf *b, const char *fmt, ...) DG_PRINTF(2, 3);
/* Contents as a NUL-terminated string, "" when empty. Borrowed. */
const char *dg_buf_cstr(const struct dg_buf *b);
/* Ownership of the bytes moves to the caller (dg_free); the buffer is empty afterwards. NULL when it failed. */
char *dg_buf_take(struct dg_buf *b, size_t *len);

#endif
