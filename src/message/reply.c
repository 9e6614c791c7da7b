#include "message/reply.h"

#include "message/call.h"

#include <string.h>

enum { CONTENT, LABEL, THOUGHT, CALL, ROLE, ENDED };

static const char label_line[] = "thought\n", role_line[] = "model\n";
#define LABEL_LEN (sizeof label_line - 1)

void dg_reply_init(struct dg_reply *r, bool in_thought, dg_reply_sink *sink, void *ctx) {
    memset(r, 0, sizeof *r);
    r->sink = sink;
    r->ctx = ctx;
    r->state = in_thought ? THOUGHT : CONTENT;
    r->n_thoughts = in_thought;
    dg_buf_init(&r->call, DG_CALL_TEXT_MAX);
}

void dg_reply_deinit(struct dg_reply *r) {
    dg_buf_deinit(&r->call);
    memset(r, 0, sizeof *r);
}

/* By bytes, as a piece may end inside a character. */
static bool blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!memchr(" \t\n\v\f\r", s[i], 6))
            return false;
    return true;
}

static enum dg_status emit_text(struct dg_reply *r, enum dg_reply_kind kind, const char *s, size_t n, struct dg_error *err) {
    if (n == 0)
        return DG_OK;
    if (r->n_calls) {
        r->cut = r->cut || !blank(s, n);
        return DG_OK;
    }
    struct dg_reply_event e = {.kind = kind, .text = s, .n = n};
    if (kind == DG_REPLY_THOUGHT)
        e.index = r->n_thoughts - 1;
    return r->sink(r->ctx, &e, err);
}

/* Thought text, its last line end kept back. */
static enum dg_status thought_text(struct dg_reply *r, const char *s, size_t n, struct dg_error *err) {
    if (n == 0)
        return DG_OK;
    if (r->held_line_end)
        DG_TRY(emit_text(r, DG_REPLY_THOUGHT, "\n", 1, err));
    r->held_line_end = s[n - 1] == '\n';
    return emit_text(r, DG_REPLY_THOUGHT, s, n - r->held_line_end, err);
}

/* Bytes that may be the label line; as soon as they are not, they are thought. */
static enum dg_status label_text(struct dg_reply *r, const char *s, size_t n, struct dg_error *err) {
    size_t i = 0;
    while (i < n && r->label < LABEL_LEN && s[i] == label_line[r->label]) {
        r->label++;
        i++;
    }
    if (r->label < LABEL_LEN && i == n)
        return DG_OK;
    r->state = THOUGHT;
    if (r->label < LABEL_LEN)
        DG_TRY(thought_text(r, label_line, r->label, err));
    return thought_text(r, s + i, n - i, err);
}

/* A label line that did not become complete: the bare label is none the less the label. */
static enum dg_status close_label(struct dg_reply *r, bool cut_short, struct dg_error *err) {
    r->state = THOUGHT;
    return cut_short || r->label >= LABEL_LEN - 1 ? DG_OK : thought_text(r, label_line, r->label, err);
}

/* The header of a turn that the model opens itself, as it must after a result with text; another role's turn is not ours. */
static enum dg_status role_text(struct dg_reply *r, const char *s, size_t n, struct dg_error *err) {
    size_t i = 0;
    while (i < n && role_line[r->label] && s[i] == role_line[r->label]) {
        r->label++;
        i++;
    }
    if (role_line[r->label] && i == n)
        return DG_OK;
    r->state = role_line[r->label] ? ENDED : CONTENT;
    if (r->state == ENDED)
        r->end = DG_MARK_TURN_OPEN;
    return dg_reply_text(r, s + i, n - i, err);
}

enum dg_status dg_reply_text(struct dg_reply *r, const char *s, size_t n, struct dg_error *err) {
    r->started = r->started || !blank(s, n);
    switch (r->state) {
    case CONTENT: return emit_text(r, DG_REPLY_CONTENT, s, n, err);
    case ROLE: return role_text(r, s, n, err);
    case LABEL: return label_text(r, s, n, err);
    case THOUGHT: return thought_text(r, s, n, err);
    case CALL:
        if (dg_buf_add(&r->call, s, n) != DG_OK)
            return DG_FAIL(err, r->call.status, "a tool call has more than %zu bytes", r->call.len);
        return DG_OK;
    default: return DG_OK;
    }
}

/* Hands on every call of the collected text; *rest: where what is no call begins. */
static enum dg_status emit_calls(struct dg_reply *r, bool ended, size_t *rest, struct dg_error *err) {
    struct dg_call call;
    enum dg_status st = DG_OK;
    const char *s = dg_buf_cstr(&r->call);
    *rest = 0;
    dg_buf_init(&call.arguments, 8 * DG_CALL_TEXT_MAX);
    for (size_t at = 0; at < r->call.len;) {
        bool found;
        size_t used;
        st = dg_call_parse(s + at, r->call.len - at, ended, &call, &found, &used);
        if (st != DG_OK) {
            st = DG_FAIL(err, st, "no memory for a tool call of %zu bytes", r->call.len);
            break;
        }
        if (!found)
            break;
        struct dg_reply_event e = {.kind = DG_REPLY_CALL, .index = r->n_calls++, .text = dg_buf_cstr(&call.arguments),
                                   .n = call.arguments.len, .name = call.name, .n_name = call.n_name};
        DG_GO(r->sink(r->ctx, &e, err));
        at += used;
        *rest = at;
        while (at < r->call.len && strchr(" \t\r\n,;})", s[at]) && s[at])
            at++;
        if (r->call.len - at < 5 || memcmp(s + at, "call:", 5) != 0)
            break;
    }
done:
    dg_buf_deinit(&call.arguments);
    return st;
}

/* The call is over: by a token of the model, or (ended false) because the tokens are. */
static enum dg_status finish_call(struct dg_reply *r, bool ended, struct dg_error *err) {
    size_t before = r->n_calls, rest;
    enum dg_status st = emit_calls(r, ended, &rest, err);
    bool read = r->n_calls > before;
    r->state = r->call_in_thought && !read ? THOUGHT : CONTENT;
    if (r->call_in_thought && read)
        r->unclosed_thought = true;
    if (!blank(dg_buf_cstr(&r->call) + rest, r->call.len - rest))
        r->n_bad_calls += !read;
    for (size_t i = rest; i < r->call.len; i++)
        if (r->call.data[i] == DG_CALL_MARK)
            r->call.data[i] = '"';
    if (st == DG_OK && rest < r->call.len)
        st = dg_reply_text(r, r->call.data + rest, r->call.len - rest, err);
    dg_buf_clear(&r->call);
    return st;
}

static enum dg_status open_call(struct dg_reply *r, struct dg_error *err) {
    if (r->state == LABEL)
        DG_TRY(close_label(r, false, err));
    r->call_in_thought = r->state == THOUGHT;
    r->state = CALL;
    return DG_OK;
}

static enum dg_status end_reply(struct dg_reply *r, enum dg_mark mark, struct dg_error *err) {
    if (r->state == LABEL)
        DG_TRY(close_label(r, true, err));
    if (r->state == THOUGHT)
        r->unclosed_thought = true;
    r->state = ENDED;
    r->end = mark;
    return DG_OK;
}

enum dg_status dg_reply_mark(struct dg_reply *r, enum dg_mark mark, struct dg_error *err) {
    if (r->state == ENDED || mark == DG_MARK_NONE || mark == DG_MARK_OTHER)
        return DG_OK;
    if (r->state == CALL && mark == DG_MARK_STRING)
        return dg_reply_text(r, (const char[]){DG_CALL_MARK}, 1, err);
    if (r->state == CALL)
        DG_TRY(finish_call(r, true, err));
    if (r->state == ROLE)
        r->state = CONTENT;
    bool opens_own_turn = mark == DG_MARK_TURN_OPEN && !r->started;
    r->started = true;
    if (opens_own_turn) {
        r->state = ROLE;
        r->label = 0;
        return DG_OK;
    }
    switch (mark) {
    case DG_MARK_CHANNEL_OPEN:
        r->n_thoughts += r->state == CONTENT;
        r->held_line_end = r->held_line_end && r->state != CONTENT;
        if (r->state == LABEL)
            DG_TRY(close_label(r, false, err));
        r->state = LABEL;
        r->label = 0;
        return DG_OK;
    case DG_MARK_CHANNEL_CLOSE:
        if (r->state == LABEL)
            DG_TRY(close_label(r, false, err));
        r->state = CONTENT;
        return DG_OK;
    case DG_MARK_CALL_OPEN: return open_call(r, err);
    case DG_MARK_RESPONSE_OPEN:
    case DG_MARK_TURN_OPEN:
    case DG_MARK_TURN_CLOSE:
    case DG_MARK_EOS: return end_reply(r, mark, err);
    default: return DG_OK;
    }
}

enum dg_status dg_reply_end(struct dg_reply *r, struct dg_error *err) {
    if (r->state == CALL)
        DG_TRY(finish_call(r, false, err));
    return r->state == ENDED ? DG_OK : end_reply(r, DG_MARK_NONE, err);
}

/* --- from ids --- */

void dg_reply_stream_init(struct dg_reply_stream *s, const struct dg_tokenizer *t, bool in_thought, dg_reply_sink *sink,
                          void *ctx) {
    static const char *const spelled[DG_MARKS] = {
        [DG_MARK_CHANNEL_OPEN] = "<|channel>",
        [DG_MARK_CHANNEL_CLOSE] = "<channel|>",
        [DG_MARK_CALL_OPEN] = "<|tool_call>",
        [DG_MARK_CALL_CLOSE] = "<tool_call|>",
        [DG_MARK_STRING] = "<|\"|>",
        [DG_MARK_RESPONSE_OPEN] = "<|tool_response>",
        [DG_MARK_TURN_OPEN] = "<|turn>",
        [DG_MARK_TURN_CLOSE] = "<turn|>",
        [DG_MARK_EOS] = "<eos>",
    };
    dg_reply_init(&s->reply, in_thought, sink, ctx);
    s->t = t;
    for (int m = 0; m < DG_MARKS; m++)
        s->ids[m] = spelled[m] ? dg_tokenizer_find(t, spelled[m]) : -1;
    dg_decoder_init(&s->decoder, t, false);
    dg_buf_init(&s->text, DG_CALL_TEXT_MAX);
}

void dg_reply_stream_deinit(struct dg_reply_stream *s) {
    dg_reply_deinit(&s->reply);
    dg_decoder_deinit(&s->decoder);
    dg_buf_deinit(&s->text);
}

static enum dg_mark mark_of(const struct dg_reply_stream *s, int32_t id) {
    if (!dg_tokenizer_is_control(s->t, id))
        return DG_MARK_NONE;
    for (int m = 0; m < DG_MARKS; m++)
        if (s->ids[m] == id)
            return (enum dg_mark)m;
    return DG_MARK_OTHER;
}

/* Text that a control token completes belongs before it. */
enum dg_status dg_reply_stream_push(struct dg_reply_stream *s, int32_t id, struct dg_error *err) {
    enum dg_mark mark = mark_of(s, id);
    dg_buf_clear(&s->text);
    if (mark == DG_MARK_NONE)
        DG_TRY(dg_decoder_push(&s->decoder, id, &s->text, err));
    else
        DG_TRY(dg_decoder_finish(&s->decoder, &s->text, err));
    DG_TRY(dg_reply_text(&s->reply, dg_buf_cstr(&s->text), s->text.len, err));
    return dg_reply_mark(&s->reply, mark, err);
}

enum dg_status dg_reply_stream_end(struct dg_reply_stream *s, struct dg_error *err) {
    dg_buf_clear(&s->text);
    DG_TRY(dg_decoder_finish(&s->decoder, &s->text, err));
    DG_TRY(dg_reply_text(&s->reply, dg_buf_cstr(&s->text), s->text.len, err));
    return dg_reply_end(&s->reply, err);
}
