/* A tiny random model with an engine on it, for tests of what sits above the session. A failure to set up ends the program. */
#ifndef DG_TESTS_RIG_H
#define DG_TESTS_RIG_H

#include "pipeline/engine.h"

struct rig {
    char *dir;
    struct dg_model *model;
    struct dg_backend *be;
    struct dg_engine_opts opts;
};

/* Opens the tiny checkpoint (canvas 16, window 8, vocabulary 160) of this seed; opts are filled for it: context `ctx`, sliding rings of
 * at least `ring` slots, prefill chunks of 16 rows, 3 denoise steps a block, re-rolls and trims on. ctx 0 = the default. */
void rig_open(struct rig *r, uint64_t seed, int64_t ctx, int64_t ring);
void rig_close(struct rig *r);
struct dg_engine *rig_engine(struct rig *r);
/* Deterministic numbers below n. */
uint32_t rig_random(uint64_t *state, uint32_t n);

#endif
