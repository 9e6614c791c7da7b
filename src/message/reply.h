/* The model's reply as it streams: thought, text and tool calls out of tokens.
 *
 *     reply := [ "<|channel>" "thought\n" text "<channel|>" ] ( text | call )* ( "<turn|>" | "<|tool_response>" | "<eos>" )
 *     call  := "<|tool_call>" "call:" NAME "{" arguments "}" "<tool_call|>"
 *
 * Control tokens are known by their id: the same characters as ordinary text are text, and text never carries a control
 * token's spelling that the model wrote as one. What comes out does not depend on how the text was cut into pieces. The
 * rules:
 * - text before a channel is content; a channel's label line and the line end before its close are no part of the thought; a
 *   close without an open, an open inside a thought and every token that has no meaning here are dropped;
 * - only the call token opens a call, so one written in a code fence or in quotes is text. A call ends at its closing token,
 *   at the next call, at a channel token or with the turn; several calls between one pair of tokens are all found. One inside
 *   a thought ends the thought;
 * - after a complete call there is no more text: the model would be inventing the result. Further calls still count;
 * - a call that cannot be read is text, without its control tokens (string marks as quotes), of the thought it stands in,
 *   else of the content;
 * - a closing turn, a new turn, a request for results (<|tool_response>) or <eos> ends the reply; what follows is dropped. A
 *   model turn opened as the very first thing is the reply's own. Source: the prompt form of google/diffusiongemma-26B-A4B-it
 *   and what its published parsers accept. */
#ifndef DG_MESSAGE_REPLY_H
#define DG_MESSAGE_REPLY_H

#include "core/buf.h"
#include "tokenizer/tokenizer.h"

/* What a token means to a reply. */
enum dg_mark {
    DG_MARK_NONE, /* ordinary text */
    DG_MARK_CHANNEL_OPEN,
    DG_MARK_CHANNEL_CLOSE,
    DG_MARK_CALL_OPEN,
    DG_MARK_CALL_CLOSE,
    DG_MARK_STRING,
    DG_MARK_RESPONSE_OPEN,
    DG_MARK_TURN_OPEN,
    DG_MARK_TURN_CLOSE,
    DG_MARK_EOS,
    DG_MARK_OTHER, /* a control token without a meaning here */
    DG_MARKS
};

enum dg_reply_kind { DG_REPLY_THOUGHT, DG_REPLY_CONTENT, DG_REPLY_CALL };

/* Borrowed for the call of the sink. */
struct dg_reply_event {
    enum dg_reply_kind kind;
    size_t index;     /* of the call or of the thought in this reply, from 0 */
    const char *text; /* the next piece of thought or content, or the call's arguments: one JSON object */
    size_t n;
    const char *name; /* of the call's function */
    size_t n_name;
};
typedef enum dg_status dg_reply_sink(void *ctx, const struct dg_reply_event *event, struct dg_error *err);

/* Read-only for the caller but for the fields it is told to read. One thread at a time. */
struct dg_reply {
    /* may be read at any time */
    size_t n_calls;
    size_t n_bad_calls;    /* calls that could not be read */
    bool unclosed_thought; /* a thought ended without its closing token */
    bool cut;              /* text after a call was dropped */
    enum dg_mark end;      /* what ended the reply; NONE while it is open or when it was cut short */

    dg_reply_sink *sink;
    void *ctx;
    int state;
    bool started;        /* something but white space came */
    size_t label;        /* bytes of a channel's label or a turn's role line seen */
    size_t n_thoughts;
    bool held_line_end;  /* of a thought: belongs to it only if more follows */
    bool call_in_thought;
    struct dg_buf call;
};

/* in_thought: the prompt ended inside an open channel, its label written. Allocates nothing. */
void dg_reply_init(struct dg_reply *r, bool in_thought, dg_reply_sink *sink, void *ctx);
void dg_reply_deinit(struct dg_reply *r);
/* The next n bytes of ordinary text (UTF-8; a piece may end inside a character). Errors: the sink's, DG_E_LIMIT for a call of
 * more than DG_CALL_TEXT_MAX bytes, DG_E_NOMEM. */
enum dg_status dg_reply_text(struct dg_reply *r, const char *s, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* The next control token. */
enum dg_status dg_reply_mark(struct dg_reply *r, enum dg_mark mark, struct dg_error *err) DG_MUST_CHECK;
/* The tokens are over. A call still open counts only if its brackets are complete. */
enum dg_status dg_reply_end(struct dg_reply *r, struct dg_error *err) DG_MUST_CHECK;

/* The same from token ids. */
struct dg_reply_stream {
    struct dg_reply reply;
    const struct dg_tokenizer *t;
    int32_t ids[DG_MARKS]; /* -1 where the tokenizer has no such token */
    struct dg_decoder decoder;
    struct dg_buf text;
};

/* t is borrowed until deinit. */
void dg_reply_stream_init(struct dg_reply_stream *s, const struct dg_tokenizer *t, bool in_thought, dg_reply_sink *sink,
                          void *ctx);
void dg_reply_stream_deinit(struct dg_reply_stream *s);
/* Takes one id. Pieces handed to the sink are whole characters. Errors: as above, DG_E_ARG for an id out of range. */
enum dg_status dg_reply_stream_push(struct dg_reply_stream *s, int32_t id, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_reply_stream_end(struct dg_reply_stream *s, struct dg_error *err) DG_MUST_CHECK;

#endif
