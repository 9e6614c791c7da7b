/* A parsed reply as the chat message it becomes in the conversation.
 *
 * The message is the reply's canonical form: whoever renders it (message/prompt.h) gets the tokens that the conversation holds from
 * then on, thoughts dropped or kept by the template's rule. It is a fixed point: those tokens, parsed again, give a message that
 * renders to the same tokens. */
#ifndef DG_MESSAGE_REPLY_MESSAGE_H
#define DG_MESSAGE_REPLY_MESSAGE_H

#include "message/reply.h"

#include <jansson.h>

#define DG_REPLY_TEXT_MAX ((size_t)64 << 20) /* bytes of thought, and of content */
#define DG_REPLY_CALLS_MAX 1024

struct dg_reply_message {
    struct dg_buf thought, content;
    json_t *calls; /* array of {id, type, function: {name, arguments}}, NULL while there are none */
    uint64_t next_id; /* of the next call: "call_<n>" */
};

/* next_id: number of the first call's id; a conversation counts on, so that no two calls share one. Allocates nothing. */
void dg_reply_message_init(struct dg_reply_message *m, uint64_t next_id);
void dg_reply_message_deinit(struct dg_reply_message *m);
/* Takes one event of the parser. Errors: DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_reply_message_add(struct dg_reply_message *m, const struct dg_reply_event *e, struct dg_error *err) DG_MUST_CHECK;
/* *out: {role: "assistant", content, reasoning_content, tool_calls}, the last two only when there is any; the caller's,
 * json_decref. m keeps what it has. Errors: DG_E_NOMEM. */
enum dg_status dg_reply_message_json(const struct dg_reply_message *m, json_t **out, struct dg_error *err) DG_MUST_CHECK;

#endif
