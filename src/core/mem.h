/* Allocation with overflow checks and a counter.
 *
 * Everything in the library allocates through these, so that a test can count what a denoise step allocates (nothing after the
 * first) and can make the N-th allocation fail. */
#ifndef DG_CORE_MEM_H
#define DG_CORE_MEM_H

#include "core/status.h"

/* Zeroed array of n elements of `size` bytes, 64-byte aligned; NULL when n * size overflows or memory is short.
 * n = 0 gives a valid pointer. Owner: the caller, dg_free. Any thread. */
void *dg_calloc(size_t n, size_t size) DG_MUST_CHECK;
/* Grows to n elements of `size` bytes; contents kept, the new part not zeroed; NULL leaves the old block alone. `old_n` elements
 * are kept. p may be NULL. */
void *dg_realloc(void *p, size_t old_n, size_t n, size_t size) DG_MUST_CHECK;
/* Copy of n bytes with a NUL after them. */
char *dg_strndup(const char *s, size_t n) DG_MUST_CHECK;
void dg_free(void *p);

/* Allocations made by all threads since the start. */
uint64_t dg_mem_count(void);
/* Makes the n-th allocation from now (1 = the next) fail once; 0 switches that off. For tests. */
void dg_mem_fail_at(uint64_t n);

#endif
