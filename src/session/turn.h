/* One turn of generation: blocks of denoise steps, each committed to the session's timeline or dropped.
 *
 * The turn owns the random stream (it runs on through steps, re-rolls and blocks) and drives sampler and commit policy; it knows token
 * ids only. dg_turn_run is a loop over dg_turn_propose and dg_turn_commit, which callers may also drive themselves. One thread at a
 * time. (seed sections 4 to 7; reference.md section 4) */
#ifndef DG_SESSION_TURN_H
#define DG_SESSION_TURN_H

#include "sampler/commit.h"
#include "sampler/sampler.h"
#include "session/steps.h"

struct dg_step_event {
    int32_t block, retry; /* block of the turn from 0; re-roll of it from 0 */
    int32_t steps_max;
    float temperature;
    const struct dg_step_result *result;
    const float *p_max; /* per position */
    int32_t n;          /* positions of the canvas */
};

struct dg_block_event {
    int32_t block;
    const int32_t *ids; /* the kept tokens */
    int32_t kept;
    int32_t steps;      /* steps of the committed attempt */
    int32_t steps_all;  /* steps of all attempts */
    int32_t accepted;   /* at the last step */
    double mean_entropy;
    enum dg_stop_reason stop; /* why its steps ended */
    int32_t retries;
    bool trimmed, converged, degenerate;
    enum dg_turn_end end;
    int32_t stop_id; /* -1 = none */
};

struct dg_turn_opts {
    uint64_t seed;
    int64_t max_tokens; /* 0 = what the context leaves */
    struct dg_sampler_params sampler;
    struct dg_commit_policy policy;
    enum dg_sc_mode first_step; /* DG_SC_SEED or DG_SC_NONE */
    bool extend_last;           /* prefill the kept tokens of the last block too: wanted when the session goes on */
    /* canvas of the first attempt at the first block instead of a drawn one: canvas_n ids, 0 = draw. Borrowed for the turn. */
    const int32_t *canvas_ids;
    int32_t canvas_n;
    /* 1 = the token is white space only, cfg.vocab entries, or NULL. Borrowed. */
    const uint8_t *blank;
    /* Whether these ids show nothing to a reader; NULL = never asked. Given text_ctx. */
    bool (*shows_nothing)(void *ctx, const int32_t *ids, int32_t n);
    void *text_ctx;
    /* Events, each may be NULL, given ctx. What else they are given holds during the call only. */
    void (*on_step)(void *ctx, const struct dg_step_event *e);
    void (*on_block)(void *ctx, const struct dg_block_event *e);
    void *ctx;
};

struct dg_turn {
    struct dg_session *s;
    struct dg_sampler *sampler;
    struct dg_turn_opts opts;
    struct dg_rng rng;
    struct dg_commit_turn state;
    int64_t start;  /* position the turn began at */
    int64_t budget; /* tokens */
    struct dg_ids out; /* the turn's tokens so far, without the stop token */
    enum dg_turn_end end;
    int32_t stop_id;
    int32_t steps; /* all steps of the turn */
    uint8_t *blank_rows; /* cfg.canvas */
    /* the block in work */
    int32_t retries, block_steps;
    struct dg_step_result last; /* its last step; stop is DG_STOP_NONE unless a whole attempt waits to be kept or discarded */
};

/* Begins a turn at the session's end. Errors: DG_E_ARG (bad parameters), DG_E_NOMEM. Owner: the caller, dg_turn_deinit. */
enum dg_status dg_turn_begin(struct dg_turn *t, struct dg_session *s, const struct dg_turn_opts *opts, struct dg_error *err) DG_MUST_CHECK;
void dg_turn_deinit(struct dg_turn *t);
/* Sets t->end and returns true when no further block may be run. */
bool dg_turn_finished(struct dg_turn *t);
/* Runs one attempt at the next block on n positions (0 = the policy's size for this attempt): steps until a stop. The timeline does not
 * move. While on_step is told of a step, the next one may be under way on the backend. Errors: DG_E_NUMERIC (naming step and block), DG_E_CANCELLED,
 * backend errors: the attempt is void. */
enum dg_status dg_turn_propose(struct dg_turn *t, int32_t n, struct dg_error *err) DG_MUST_CHECK;
/* What the policy would do with the attempt; changes nothing. Errors: DG_E_ARG when none is there. */
enum dg_status dg_turn_plan(struct dg_turn *t, struct dg_commit *plan, struct dg_error *err) DG_MUST_CHECK;
/* The attempt is void; the next one is a re-roll of the same block. */
void dg_turn_discard(struct dg_turn *t);
/* Commits the attempt's first `kept` rows instead of those the policy keeps (0 <= kept <= its rows; -1 = as the policy says,
 * which must not want a re-roll): prefilled, appended to t->out, reported. Other than the policy's rows never end the turn, but
 * for the budget. On an error the timeline is where it was before the block. Errors: DG_E_ARG (also without an attempt),
 * DG_E_LIMIT (more rows than the budget leaves), prefill's. */
enum dg_status dg_turn_keep(struct dg_turn *t, int32_t kept, struct dg_error *err) DG_MUST_CHECK;
/* Decides by the policy: either discards the attempt (*again, nothing committed) or keeps what it says. */
enum dg_status dg_turn_commit(struct dg_turn *t, bool *again, struct dg_error *err) DG_MUST_CHECK;
/* Takes the turn back: the session is rewound to its start, whatever the cancel token says. If even that fails (a prefix that must be
 * computed again, on a broken backend), the timeline is a shorter prefix. */
void dg_turn_abandon(struct dg_turn *t);
/* The whole turn. On an error it is abandoned. */
enum dg_status dg_turn_run(struct dg_turn *t, struct dg_error *err) DG_MUST_CHECK;

#endif
