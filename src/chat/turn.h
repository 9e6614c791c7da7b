/* One generated turn of a chat: prompt, log, generation, the parsed message. Part of chat/chat.h. */
#ifndef DG_CHAT_TURN_H
#define DG_CHAT_TURN_H

#include "chat/chat.h"

struct dg_chat_turn {
    struct dg_chat *c;
    bool first; /* the first turn of a reply: the harness's thought begins it */
    struct dg_ids prompt;
    struct dg_reply_stream stream;
    struct dg_reply_message build;
    json_t *message; /* after a run */
    bool in_thought; /* the last channel token opened one */
    int64_t thought; /* tokens since it opened */
    int32_t open_id, close_id, call_id;
    struct dg_result result;
    struct dg_error failed; /* of the parser, on the pipeline's thread */
};

/* Renders the prompt. Errors: those of rendering, DG_E_LIMIT when it does not fit the context. Owner: the caller,
 * dg_chat_turn_deinit in any case. */
enum dg_status dg_chat_turn_init(struct dg_chat_turn *t, struct dg_chat *c, bool first, struct dg_error *err) DG_MUST_CHECK;
void dg_chat_turn_deinit(struct dg_chat_turn *t);
/* Aligns the log, generates, parses; adds to c->last. */
enum dg_status dg_chat_turn_run(struct dg_chat_turn *t, struct dg_error *err) DG_MUST_CHECK;

/* The log becomes the conversation's canonical tokens. Nothing is lost when that fails: the next turn aligns the log anyway. */
void dg_chat_settle(struct dg_chat *c);

#endif
