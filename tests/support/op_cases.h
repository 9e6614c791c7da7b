/* The op table's case table: every op of a backend against a double-precision oracle, with bounds derived from the lengths of its sums.
 *
 * Any backend runs it. Inputs are padded with NaN, outputs poisoned with it and framed by sentinels; each product op is run again on part
 * of its rows and must give the same bits. */
#ifndef DG_TESTS_OP_CASES_H
#define DG_TESTS_OP_CASES_H

#include "ops/ops.h"

#include <stdio.h>

struct op_cases {
    struct dg_backend *be;
    uint64_t seed;
    const char *filter; /* only ops whose name contains it; NULL = all */
    bool small;         /* leave out the shapes that are slow on an emulated device */
    bool emulated;      /* with small: fewer rows of the same kinds, for a processor whose every lane is a call */
    double weight_round; /* relative rounding of weights before products: 0, or 2^-8 where they become bf16 */
    double prob_round;   /* the same of attention's and the soft embedding's probabilities: 2^-11 where they are f16 */
    bool guard;          /* every block ends at a page that must not be touched; for backends whose memory is the host's */
    /* what the backend does to a model's experts when it takes them over; NULL = nothing */
    void (*prepare_experts)(struct dg_backend *be, struct dg_stack *gate_up, struct dg_stack *down);
    /* Two programs share a run where one of them is slow, as under an emulator: one writes what its ops leave and checks nothing, the other,
     * with the same cases and seed, checks that in place of its own ops' results. Either may be NULL. */
    FILE *record, *replay;
    uint64_t digest;     /* of all results, when the run is over: equal for equal bits */
    int passed, failed;
};

/* The model of a backend under test: a shape to size scratch by, no weights. */
const struct dg_model *op_cases_model(void);
/* Runs the cases; ends the program when what is replayed is not of the same run. Prints one line an op (cases, worst error / bound) and one line
 * for each failure. */
void op_cases_run(struct op_cases *c);

#endif
