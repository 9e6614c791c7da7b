/* The runtime's front door: one thread owns backend and KV; clients on any thread submit ops and get events.
 *
 *     engine -> stages wrapped around it -> dg_pipeline_start -> dg_pipeline_submit / dg_pipeline_call -> dg_pipeline_close
 *
 * Ops run one after the other in the order of submission. Events are handed to the op's own function on the pipeline's thread: a slow
 * client slows the pipeline (that is the back-pressure downwards), so it should copy and leave. That function may submit ops, but never wait
 * for one. Every op taken is answered exactly once, also at shutdown and after a backend's failure. */
#ifndef DG_PIPELINE_PIPELINE_H
#define DG_PIPELINE_PIPELINE_H

#include "pipeline/engine.h"
#include "pipeline/ops.h"
#include "pipeline/stage.h"

#define DG_PIPELINE_QUEUE 64 /* ops waiting, by default */

struct dg_pipeline;

/* Starts the thread on a chain of stages, which it owns from then on, also when this fails. queue: ops that may wait; 0 =
 * DG_PIPELINE_QUEUE. Owner: the caller, dg_pipeline_close. Errors: DG_E_NOMEM. */
enum dg_status dg_pipeline_start(struct dg_pipeline **out, struct dg_stage *top, size_t queue, struct dg_error *err) DG_MUST_CHECK;

/* Ends it: the op in work is cancelled, the queued ones are answered DG_E_CANCELLED, the thread ends, the stages are destroyed. Not to be
 * called from an event function. NULL is allowed. */
void dg_pipeline_close(struct dg_pipeline *p);

/* Puts a copy of op in the queue; emit (may be NULL) gets its events. *ticket (may be NULL) names it for dg_pipeline_cancel. Waits while the queue is
 * full; with try_only, and always on the pipeline's own thread, a full queue is DG_E_LIMIT instead. Any thread.
 * Errors, the op then not taken and never answered: DG_E_LIMIT, DG_E_CANCELLED after shutdown, DG_E_NOMEM, DG_E_ARG. */
enum dg_status dg_pipeline_submit(struct dg_pipeline *p, const struct dg_op *op, bool try_only, dg_event_fn *emit, void *ctx, uint64_t *ticket,
                                  struct dg_error *err) DG_MUST_CHECK;

/* What stays of an answer after the call: plain values, and the tokens. */
struct dg_result {
    int32_t conv;
    struct dg_kv_id at;
    int64_t computed;
    struct dg_ids ids; /* Generate, EndTurn: the turn's tokens; Propose: the block's. Appended to what the caller gives; dg_ids_deinit */
    enum dg_turn_end end;
    int32_t stop_id, steps, blocks;
    uint64_t fingerprint;
    struct dg_route route;
    struct dg_commit plan; /* Propose */
};

/* Submits, waits for the answer and returns its status. emit (may be NULL) sees every event, the answer too. *out (may be NULL): the
 * caller initialises it to zero and calls dg_ids_deinit on ids. Any thread but the pipeline's own. */
enum dg_status dg_pipeline_call(struct dg_pipeline *p, const struct dg_op *op, dg_event_fn *emit, void *ctx, struct dg_result *out,
                                struct dg_error *err) DG_MUST_CHECK;
/* The same on a stage, without a thread: for tests, replay and golden. */
enum dg_status dg_stage_call(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx, struct dg_result *out,
                             struct dg_error *err) DG_MUST_CHECK;

/* Cancels the op of that ticket if it is queued or running; false when it is neither. Its answer still comes. Any thread.
 * (A signal handler sets the token it gave with the op instead.) */
bool dg_pipeline_cancel(struct dg_pipeline *p, uint64_t ticket);

/* Ops waiting, the one in work counted. Any thread. */
size_t dg_pipeline_pending(struct dg_pipeline *p);

#endif
