/* The cases of `golden`: fixed conversations over every path of the engine, each giving token ids and a KV fingerprint. */
#ifndef DG_CLI_GOLDEN_CASES_H
#define DG_CLI_GOLDEN_CASES_H

#include "cli/cli.h"
#include "message/turn_text.h"
#include "pipeline/pipeline.h"

#include <jansson.h>

/* What a case works with: an engine of its own. */
struct dg_golden {
    const struct dg_runtime *r;
    const struct dg_turn_text *text;
    struct dg_engine *engine;
    struct dg_stage *stage;
    struct dg_gen gen;
    struct dg_ids ids; /* out: tokens of all turns, one after another, */
    struct dg_ids ends; /* and how each of them ended: enum dg_turn_end */
};

struct dg_golden_case {
    const char *name;
    struct dg_session_opts session; /* ctx, ring, chunk, kv and so on; sc_sparse is set from `exact` */
    bool exact;                     /* the exact soft embedding */
    enum dg_status (*run)(struct dg_golden *g, struct dg_error *err);
};

extern const struct dg_golden_case dg_golden_cases[];
extern const size_t dg_golden_n_cases;

#endif
