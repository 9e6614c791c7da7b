#include "core/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t n_allocs;
static atomic_uint_fast64_t fail_at;

uint64_t dg_mem_count(void) { return atomic_load(&n_allocs); }

void dg_mem_fail_at(uint64_t n) { atomic_store(&fail_at, n ? atomic_load(&n_allocs) + n : 0); }

static void *get(size_t bytes) {
    uint64_t i = atomic_fetch_add(&n_allocs, 1) + 1;
    if (i == atomic_load(&fail_at))
        return NULL;
    if (bytes > SIZE_MAX - 63)
        return NULL;
    bytes = bytes ? (bytes + 63) & ~(size_t)63 : 64;
    return aligned_alloc(64, bytes);
}

void *dg_calloc(size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    void *p = get(bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *dg_realloc(void *p, size_t old_n, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    void *q = get(bytes);
    if (!q)
        return NULL;
    if (p)
        memcpy(q, p, (old_n < n ? old_n : n) * size);
    free(p);
    return q;
}

char *dg_strndup(const char *s, size_t n) {
    if (n == SIZE_MAX)
        return NULL;
    char *p = get(n + 1);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void dg_free(void *p) { free(p); }
