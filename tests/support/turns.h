/* Whole turns of a turns file (prompt ids, seed, expected output), run the way the file was made: no trim, no re-roll. */
#ifndef DG_TESTS_TURNS_H
#define DG_TESTS_TURNS_H

#include "session/turn.h"

#include <jansson.h>

#define TURN_BLOCKS_MAX 256

struct turn_run {
    struct dg_session *s;
    const struct dg_config *cfg;
    int32_t steps[TURN_BLOCKS_MAX]; /* of each block */
    int32_t blocks;
    struct dg_turn turn;
};

/* A JSON array of numbers (malloc). */
int32_t *turn_ids(const json_t *a, size_t *n);
/* Runs case c from an empty timeline; the finished turn is left in r->turn (dg_turn_deinit). reference: no first-step signal, the
 * reference's stops. */
enum dg_status turn_generate(struct turn_run *r, const json_t *c, bool reference, struct dg_error *err);
bool turn_same_ids(const struct dg_ids *got, const json_t *want);

#endif
