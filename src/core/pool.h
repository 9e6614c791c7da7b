/* Thread pool with a fixed partition: the same split whatever the load, so that results never depend on timing.
 *
 * One job runs at a time, started by the owning thread, which takes part in it. */
#ifndef DG_CORE_POOL_H
#define DG_CORE_POOL_H

#include "core/status.h"

#define DG_POOL_THREADS_MAX 256

struct dg_pool;

/* Part `part` of `n_parts` of a job. */
typedef void dg_pool_fn(void *arg, int part, int n_parts);

/* n_threads 1..DG_POOL_THREADS_MAX, the caller counted; 0 = the CPUs this process may run on. Owner: the caller. */
enum dg_status dg_pool_create(struct dg_pool **out, int n_threads, struct dg_error *err) DG_MUST_CHECK;
void dg_pool_destroy(struct dg_pool *p); /* NULL is allowed */
int dg_pool_threads(const struct dg_pool *p);
/* Runs fn(arg, i, n_threads) for every i and returns when all are done. A NULL pool runs fn(arg, 0, 1) here. Allocates nothing.
 * Not reentrant. */
void dg_pool_run(struct dg_pool *p, dg_pool_fn *fn, void *arg);

/* Items [*begin, *end) of n that belong to `part`: contiguous, sizes differing by at most one `grain`. */
static inline void dg_pool_range(int64_t n, int64_t grain, int part, int n_parts, int64_t *begin, int64_t *end) {
    int64_t units = (n + grain - 1) / grain;
    int64_t b = units * part / n_parts * grain, e = units * (part + 1) / n_parts * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
