/* The sampler's random numbers: a 64-bit linear congruential generator whose high half is used (seed section 2.1, reference.md
 * section 4). One stream runs through a whole turn: canvases, renoising, re-rolls and blocks. */
#ifndef DG_SAMPLER_RNG_H
#define DG_SAMPLER_RNG_H

#include <stdint.h>

#define DG_RNG_MUL 6966169279u
#define DG_RNG_ADD 1039523323u

struct dg_rng {
    uint64_t state;
};

static inline void dg_rng_init(struct dg_rng *r, uint64_t seed) { r->state = seed + 1; }

/* Advances; the new state's high 32 bits. */
static inline uint32_t dg_rng_next(struct dg_rng *r) {
    r->state = r->state * DG_RNG_MUL + DG_RNG_ADD;
    return (uint32_t)(r->state >> 32);
}

/* A token id, 0..vocab-1; vocab > 0. */
static inline int32_t dg_rng_id(struct dg_rng *r, int32_t vocab) { return (int32_t)(dg_rng_next(r) % (uint32_t)vocab); }

/* A multiple of 2^-32 in [0, 1). */
static inline double dg_rng_uniform(struct dg_rng *r) { return dg_rng_next(r) / 4294967296.0; }

#endif
