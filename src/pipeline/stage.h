/* Stages: each runs ops, by itself or through the stage it wraps, and passes events up. They run on the pipeline's thread, one op at a
 * time, so what a stage does for one op (several ops below it, say) is never mixed with another client's. */
#ifndef DG_PIPELINE_STAGE_H
#define DG_PIPELINE_STAGE_H

#include "pipeline/ops.h"

struct dg_stage {
    /* Runs op to its end: any number of streaming events, then exactly one answer, all through emit. */
    void (*exec)(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx);
    void (*destroy)(struct dg_stage *s); /* frees s itself, not the stage below */
    struct dg_stage *below;              /* NULL = the last one */
};

/* Runs op on a stage. */
static inline void dg_stage_exec(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx) { s->exec(s, op, emit, ctx); }
/* Destroys the stage and all below it. NULL is allowed. */
void dg_stage_destroy(struct dg_stage *top);

/* An answer that is no more than a failure; for stages that refuse an op. */
void dg_stage_refuse(const struct dg_op *op, enum dg_status status, const char *why, dg_event_fn *emit, void *ctx);

/* --- the stages; each owns `below` from then on, also when it fails (it is destroyed) --- */

/* Writes every op and event it sees to DIR/ops.jsonl (created; appended to, so that it holds many sessions) before passing it on; see
 * oplog.h for the form. head: what the log must say of model and engine. sync: fsync after every answer. Write errors
 * never stop the ops: the first is told as a note on the next answer. Errors: DG_E_IO, DG_E_NOMEM. */
struct dg_oplog_head;
enum dg_status dg_stage_oplog(struct dg_stage **out, struct dg_stage *below, const char *dir, const struct dg_oplog_head *head, bool sync,
                              struct dg_error *err) DG_MUST_CHECK;

/* What the layer that knows text says about a finished turn's tokens. */
struct dg_turn_check {
    /* Number of tool calls in the turn that are invalid (0 = the turn is good). feedback: when not NULL and the turn is bad, the ids to
     * append so that the model sees one error response per invalid call and answers again. */
    enum dg_status (*check)(void *ctx, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid, struct dg_ids *feedback,
                            struct dg_error *err);
    /* Length of the turn without a tool response that the model made up at its end. NULL: never cut. */
    size_t (*trim)(void *ctx, const int32_t *ids, size_t n);
    const struct dg_gen *gen; /* of a Generate without its own. Borrowed for the stage's life */
    int32_t response_open; /* the stop token that the repair's second answer must not stop at, -1 = none */
    void *ctx;
};

/* Opt-in: a Generate whose turn fails the check is made again from the turn's start with seed + 1, up to `retries` times; the last
 * attempt stands. Block events are held back until a turn is good. */
enum dg_status dg_stage_validate(struct dg_stage **out, struct dg_stage *below, const struct dg_turn_check *check, int32_t retries,
                                 struct dg_error *err) DG_MUST_CHECK;

/* Opt-in: a Generate whose turn fails the check is repaired by a draft that leaves no trace: the feedback is appended, the model answers
 * again to its natural stop (response_open is not among the stops), a made-up response is trimmed, the log is cut to the turn's start,
 * and the clean answer is appended. What is committed and answered is the clean reply alone. */
enum dg_status dg_stage_repair(struct dg_stage **out, struct dg_stage *below, const struct dg_turn_check *check, struct dg_error *err) DG_MUST_CHECK;

/* For tests: a fault while an op runs. */
struct dg_fault {
    enum dg_op_kind op;   /* kind it strikes */
    int32_t countdown;    /* the how-many-th such op, from 1 */
    int32_t block, step;  /* Generate, Propose: after this block's (from 0) step (from 1). Else before the op */
    enum dg_status status; /* DG_E_BACKEND: the backend fails; DG_E_NUMERIC: NaN appears in the next step; DG_E_CANCELLED: the op's token
                            * is set */
};
/* engine: the last stage of the chain. */
struct dg_engine;
enum dg_status dg_stage_fault(struct dg_stage **out, struct dg_stage *below, struct dg_engine *engine, const struct dg_fault *faults,
                              size_t n, struct dg_error *err) DG_MUST_CHECK;

/* For tests: each Generate plays the next recorded turn instead of the model: its ids go into the log by Extend below and are told as
 * blocks. */
struct dg_script_turn {
    const int32_t *ids;
    size_t n;
    size_t block;     /* ids of a block; 0 = one block */
    int32_t stop_id;  /* -1: ends with "length" */
};
/* turns: borrowed for the stage's life. Generate after the last one fails with DG_E_LIMIT. */
enum dg_status dg_stage_script(struct dg_stage **out, struct dg_stage *below, const struct dg_script_turn *turns, size_t n,
                               struct dg_error *err) DG_MUST_CHECK;

#endif
