/* Rows sorted by expert, for backends whose memory is the host's. */
#ifndef DG_OPS_BUCKETS_H
#define DG_OPS_BUCKETS_H

#include "ops/ops.h"

#include <string.h>

/* Orders n_pairs pairs (row * k + rank) of a routing by expert, rows ascending within one: a counting sort. Expert e's are
 * pair[bucket[e]] to pair[bucket[e + 1] - 1]. bucket: experts + 1 elements, pair: n_pairs; the caller's. Any thread. */
static inline void dg_bucket_pairs(const struct dg_routing *routing, int64_t n_pairs, int32_t experts, int32_t *bucket, int32_t *pair) {
    memset(bucket, 0, ((size_t)experts + 1) * sizeof *bucket);
    for (int64_t p = 0; p < n_pairs; p++)
        bucket[routing->expert[p] + 1]++;
    for (int32_t e = 0; e < experts; e++)
        bucket[e + 1] += bucket[e];
    for (int64_t p = 0; p < n_pairs; p++)
        pair[bucket[routing->expert[p]]++] = (int32_t)p;
    for (int32_t e = experts; e > 0; e--)
        bucket[e] = bucket[e - 1];
    bucket[0] = 0;
}

#endif
