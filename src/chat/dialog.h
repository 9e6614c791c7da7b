/* The messages of one chat, and the forms they take: a prompt's tokens, a file.
 *
 * Messages are JSON objects as chat clients send them (message/prompt.h). The canonical tokens of the conversation are always those
 * of rendering the messages; nothing else is kept. One thread at a time. */
#ifndef DG_CHAT_DIALOG_H
#define DG_CHAT_DIALOG_H

#include "message/prompt.h"
#include "tokenizer/tokenizer.h"

#define DG_DIALOG_FILE_MAX ((size_t)64 << 20) /* bytes of a saved chat */

struct dg_dialog {
    json_t *messages; /* array; a system message, if any, comes first */
    json_t *tools; /* declarations for the prompt, NULL = none */
    enum dg_thinking thinking;
    uint64_t next_call; /* number of the next tool call's id */
};

/* Errors: DG_E_NOMEM. Owner: the caller, dg_dialog_deinit. */
enum dg_status dg_dialog_init(struct dg_dialog *d, struct dg_error *err) DG_MUST_CHECK;
void dg_dialog_deinit(struct dg_dialog *d);

/* Replaces or (n = 0) removes the system message. Errors, here and in the next three: DG_E_ARG for text that is not UTF-8,
 * DG_E_LIMIT, DG_E_NOMEM; then nothing has changed. */
enum dg_status dg_dialog_system(struct dg_dialog *d, const char *text, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* Text of the system message, NULL when there is none. Borrowed. */
const char *dg_dialog_system_view(const struct dg_dialog *d);
enum dg_status dg_dialog_add_user(struct dg_dialog *d, const char *text, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* message: of a reply; a reference is taken. */
enum dg_status dg_dialog_add_reply(struct dg_dialog *d, json_t *message, struct dg_error *err) DG_MUST_CHECK;
/* The result of the call with this id. */
enum dg_status dg_dialog_add_result(struct dg_dialog *d, const char *call_id, const char *name, const char *text, size_t n,
                                    struct dg_error *err) DG_MUST_CHECK;

size_t dg_dialog_count(const struct dg_dialog *d); /* messages */
void dg_dialog_cut(struct dg_dialog *d, size_t count); /* keeps the first `count` messages */
/* Number of messages before the last one of the user, and its text; SIZE_MAX and NULL when there is none. The text is borrowed. */
size_t dg_dialog_last_user(const struct dg_dialog *d, const char **text, size_t *n);

/* Appends the conversation's tokens to out. prompt: with the opened model turn behind them. Errors: those of dg_message_encode. */
enum dg_status dg_dialog_encode(const struct dg_dialog *d, const struct dg_tokenizer *t, bool prompt, struct dg_ids *out,
                                struct dg_error *err) DG_MUST_CHECK;

/* Writes {"form": "diffgemma chat", "version": 1, "think", "messages"} by way of a temporary file and rename. Errors: DG_E_IO,
 * DG_E_NOMEM. */
enum dg_status dg_dialog_save(const struct dg_dialog *d, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* Replaces messages and thinking by those of such a file, or the messages by those of an array of messages; the tools stay. Errors,
 * the dialog staying as it was: DG_E_IO, DG_E_FORMAT, DG_E_ARG (a message that makes no sense, by its place), DG_E_LIMIT,
 * DG_E_NOMEM. */
enum dg_status dg_dialog_load(struct dg_dialog *d, const char *path, struct dg_error *err) DG_MUST_CHECK;

/* All bytes of a file that holds at most `max`; directories and the like are refused. For the files a chat is given. out: the
 * caller initialises it. Errors: DG_E_IO, DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_chat_read_file(const char *path, size_t max, struct dg_buf *out, struct dg_error *err) DG_MUST_CHECK;

#endif
