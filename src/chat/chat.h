/* A chat on the token pipeline: a message goes in, a reply comes out, tools are run in between.
 *
 * For each reply: the messages are rendered, the log is aligned with the tokens (the longest common prefix is kept), a turn is
 * generated and parsed as its blocks commit, and its message joins the others; the log then becomes what rendering gives, so that
 * the next prompt only adds. Calls are run and answered in the same turn, for a bounded number of rounds. A reply that fails or is
 * cancelled leaves the messages as they were. One thread at a time; the callbacks run on the pipeline's thread or the
 * caller's, which waits meanwhile, so that no two run at once; `allow` is called on the caller's. */
#ifndef DG_CHAT_CHAT_H
#define DG_CHAT_CHAT_H

#include "chat/dialog.h"
#include "chat/tools.h"
#include "message/reply_message.h"
#include "message/tool_check.h"
#include "pipeline/pipeline.h"

#define DG_CHAT_ROUNDS_MAX 100

enum dg_chat_text { DG_CHAT_CONTENT, DG_CHAT_THOUGHT, DG_CHAT_CALL, DG_CHAT_RESULT };

/* What the chat tells and asks; each but allow may be NULL. */
struct dg_chat_ui {
    void *ctx;
    void (*prefill)(void *ctx, int64_t done, int64_t total);
    void (*step)(void *ctx, const struct dg_step_event *e);
    void (*block)(void *ctx, const struct dg_block_event *e); /* before its text */
    void (*text)(void *ctx, enum dg_chat_text kind, const char *s, size_t n);
    void (*note)(void *ctx, const char *text); /* one line about what was done or not done */
    bool (*allow)(void *ctx, const struct dg_tool_call *call); /* may this command run? */
};

struct dg_chat_opts {
    struct dg_pipeline *pipeline;
    const struct dg_tokenizer *tok;
    const struct dg_toolbox *tools; /* its declarations are the dialog's */
    struct dg_tool_check *check; /* of the pipeline's validator or repair, told where prompts end; NULL = none */
    struct dg_gen gen; /* seed is the session's: each turn takes the next one */
    int64_t ctx; /* positions of the context, and of a canvas: for errors in words */
    int32_t canvas;
    int32_t rounds; /* tool rounds of a reply, 0..DG_CHAT_ROUNDS_MAX */
    /* The first turn of each reply must call this tool, "" = any, NULL = it need not; with `check` such turns are tried again. Borrowed. */
    const char *must_call;
    int64_t think_max; /* tokens a thought may take before it is closed, 0 = as many as it likes */
    bool no_reuse; /* every prompt is computed whole, as if nothing had been said before */
    atomic_bool *cancel; /* ends the reply in work; the chat clears it when a reply begins */
    struct dg_chat_ui ui;
};

/* What a reply took. */
struct dg_chat_reply {
    int64_t prompt, computed; /* tokens of the prompt; of them and the reply's canonical form, computed */
    int64_t tokens; /* generated, all rounds */
    int64_t turn; /* of the last turn */
    int32_t unconverged; /* blocks that used all their steps without converging */
    int32_t steps, blocks, rounds;
    double seconds; /* from the message to the end of the reply */
    size_t shown; /* bytes of content */
    enum dg_turn_end end; /* of the last turn */
    bool unclosed; /* it ended inside a thought */
    bool closed_early; /* think_max closed the thought */
    bool out_of_rounds;
    uint64_t seed; /* of its first turn */
};

struct dg_chat {
    struct dg_chat_opts o;
    struct dg_dialog dialog;
    uint64_t next_seed;
    struct dg_chat_reply last;
    int64_t log; /* tokens in the log */
};

/* All that o points to is borrowed. Errors: DG_E_NOMEM. */
enum dg_status dg_chat_init(struct dg_chat *c, const struct dg_chat_opts *o, struct dg_error *err) DG_MUST_CHECK;
void dg_chat_deinit(struct dg_chat *c);

/* Sends a message of the user and waits for the reply; last is filled, also on failure as far as it went. Errors, the dialog being
 * as before: DG_E_ARG (not UTF-8), DG_E_LIMIT (the conversation does not fit the context, in words), DG_E_FORMAT (must_call is not obeyed),
 * DG_E_CANCELLED, DG_E_NUMERIC, DG_E_BACKEND, DG_E_NOMEM. */
enum dg_status dg_chat_send(struct dg_chat *c, const char *text, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* The last message of the user and all that came of it are taken back; false when there is none. */
bool dg_chat_undo(struct dg_chat *c);
/* dg_chat_undo, then the same message again, with the next seed. On failure the former reply stays. Errors: DG_E_ARG when there is
 * none, and those above. */
enum dg_status dg_chat_retry(struct dg_chat *c, struct dg_error *err) DG_MUST_CHECK;
/* Forgets all messages but the system's. */
void dg_chat_reset(struct dg_chat *c);

#endif
