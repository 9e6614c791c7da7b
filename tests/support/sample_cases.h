/* The sample op against dg_sampler_step: random blocks of all kinds, step by step, bit for bit. */
#ifndef DG_TESTS_SAMPLE_CASES_H
#define DG_TESTS_SAMPLE_CASES_H

#include "support/op_cases.h"

/* Counts a block as passed or failed in c, says what the first failures are, and prints one line. Nothing where the backend has no such op, or
 * c->filter asks for others. look: NULL, or looks after each launch at what else the backend must have done: NULL, or what is wrong. */
void sample_cases_run(struct op_cases *c, const char *(*look)(struct dg_backend *be));

#endif
