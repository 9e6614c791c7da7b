/* Reading memory as fast as this machine does: the ceiling of products that are bound by it. */
#ifndef DG_OPS_CPU_READ_RATE_H
#define DG_OPS_CPU_READ_RATE_H

#include "core/pool.h"

#include <stddef.h>

/* How each thread walks through its share: in so many streams side by side, each asking this far ahead. One stream alone leaves most of what a
 * core can have under way unused where the hardware's own prefetching is weak. */
struct dg_memory_pattern {
    int streams;       /* 1..32 */
    int ahead;         /* bytes; 0: left to the hardware */
};
#define DG_MEMORY_PATTERNS 6
extern const struct dg_memory_pattern dg_memory_patterns[DG_MEMORY_PATTERNS];

/* Reads `bytes` bytes, a multiple of DG_MEMORY_GRAIN, once, on all threads of the pool. memory: 16-byte aligned. Prefetches, which cannot
 * fault, reach past its end. */
#define DG_MEMORY_GRAIN 4096
void dg_memory_read(struct dg_pool *pool, const void *memory, size_t bytes, const struct dg_memory_pattern *p);
/* The pattern that took the least time, each tried `repeat` times. */
const struct dg_memory_pattern *dg_memory_best(struct dg_pool *pool, const void *memory, size_t bytes, int repeat);

#endif
