/* The last stage: runs ops on the backend. It owns the conversations; whoever runs it (the pipeline's thread, or a test) must be the only
 * one to touch the backend meanwhile. */
#ifndef DG_PIPELINE_ENGINE_H
#define DG_PIPELINE_ENGINE_H

#include "pipeline/conversation.h"
#include "pipeline/stage.h"

struct dg_engine_opts {
    struct dg_session_opts session;
    size_t kv_budget;       /* bytes of KV for all conversations; 0 = as max says */
    size_t conversations_max; /* 0 = what the budget allows, or 1 */
    struct dg_gen gen;      /* of Generate and BeginTurn without their own */
    /* What a turn must know of the vocabulary (message/turn_text.h); either may be NULL. Borrowed, called on the engine's thread. */
    const uint8_t *blank;   /* cfg.vocab flags */
    bool (*shows_nothing)(void *ctx, const int32_t *ids, int32_t n);
    void *text_ctx;
};

struct dg_engine; /* its first member is a struct dg_stage */

/* be is borrowed. The first conversation, id 1, is made and current. Errors: those of dg_session_create. */
enum dg_status dg_engine_create(struct dg_engine **out, struct dg_backend *be, const struct dg_engine_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;
struct dg_stage *dg_engine_stage(struct dg_engine *e); /* dg_stage_destroy ends it */

/* Views for tests, reports and stages on the engine's thread. */
struct dg_backend *dg_engine_backend(struct dg_engine *e);
struct dg_conversations *dg_engine_conversations(struct dg_engine *e);
struct dg_conversation *dg_engine_current(struct dg_engine *e); /* NULL after the current one was dropped */

#endif
