#include "chat/chat.h"

#include "chat/turn.h"

#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum dg_status dg_chat_init(struct dg_chat *c, const struct dg_chat_opts *o, struct dg_error *err) {
    *c = (struct dg_chat){.o = *o, .next_seed = o->gen.seed};
    DG_TRY(dg_dialog_init(&c->dialog, err));
    c->dialog.tools = o->tools ? json_incref(o->tools->declared) : NULL;
    if (o->tools && o->tools->prompt)
        DG_TRY(dg_dialog_system(&c->dialog, o->tools->prompt, strlen(o->tools->prompt), err));
    if (o->tools && o->tools->prethink)
        c->dialog.thinking = DG_THINKING_ON;
    return DG_OK;
}

void dg_chat_deinit(struct dg_chat *c) {
    dg_dialog_deinit(&c->dialog);
    memset(c, 0, sizeof *c);
}

static void note(const struct dg_chat *c, const char *text) {
    if (c->o.ui.note)
        c->o.ui.note(c->o.ui.ctx, text);
}

static void show(const struct dg_chat *c, enum dg_chat_text kind, const char *s, size_t n) {
    if (c->o.ui.text && n)
        c->o.ui.text(c->o.ui.ctx, kind, s, n);
}

/* --- tools --- */

/* What the model is told about one call. */
static enum dg_status answer_call(struct dg_chat *c, const char *name, const json_t *arguments, struct dg_buf *out,
                                  struct dg_error *err) {
    const struct dg_tool *t = c->o.tools ? dg_toolbox_find(c->o.tools, name) : NULL;
    struct dg_tool_call call;
    dg_buf_clear(out);
    if (!t) {
        dg_buf_fmt(out, "error: there is no tool %.80s", name);
        return out->status;
    }
    enum dg_status st = dg_tool_call_init(&call, t, arguments, err);
    if (st == DG_E_ARG) {
        dg_buf_fmt(out, "error: %s", dg_error_text(err));
        dg_error_clear(err);
        return out->status;
    }
    DG_TRY(st);
    if (c->o.ui.allow(c->o.ui.ctx, &call))
        st = dg_tool_call_run(&call, c->o.cancel, out, err);
    else
        dg_buf_str(out, "error: the user did not allow this");
    dg_tool_call_deinit(&call);
    return st != DG_OK ? st : out->status;
}

/* Runs the calls of a message and adds their results. refuse: no more rounds are left, so each is answered with that. */
static enum dg_status answer_calls(struct dg_chat *c, const json_t *calls, bool refuse, struct dg_error *err) {
    struct dg_buf text;
    enum dg_status st = DG_OK;
    dg_buf_init(&text, DG_TOOL_OUTPUT_MAX * 4);
    for (size_t i = 0; st == DG_OK && i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (refuse)
            dg_buf_str(&text, "error: too many calls in one reply");
        else
            st = answer_call(c, name, json_object_get(f, "arguments"), &text, err);
        if (st == DG_OK && c->o.cancel && atomic_load(c->o.cancel))
            st = DG_FAIL(err, DG_E_CANCELLED, "cancelled");
        if (st != DG_OK)
            break;
        show(c, DG_CHAT_RESULT, dg_buf_cstr(&text), text.len);
        st = dg_dialog_add_result(&c->dialog, json_string_value(json_object_get(call, "id")), name, dg_buf_cstr(&text), text.len,
                                  err);
    }
    if (st == DG_OK && text.status != DG_OK)
        st = DG_FAIL(err, text.status, "no memory for a tool's output");
    dg_buf_deinit(&text);
    return st;
}

/* --- a reply --- */

/* Whether the calls hold the one that must be there. */
static enum dg_status obeyed(const struct dg_chat *c, const json_t *calls, struct dg_error *err) {
    const char *must = c->o.must_call, *name;
    for (size_t i = 0; must && i < json_array_size(calls); i++) {
        name = json_string_value(json_object_get(json_object_get(json_array_get(calls, i), "function"), "name"));
        if (!*must || !strcmp(must, name))
            return DG_OK;
    }
    return must ? DG_FAIL(err, DG_E_FORMAT, "the reply does not call %s, so it is not kept (--tool-choice; --tool-retries tries more seeds)",
                          *must ? must : "a tool")
                : DG_OK;
}

static enum dg_status reply(struct dg_chat *c, struct dg_error *err) {
    enum dg_status st = DG_OK;
    for (int32_t round = 0;; round++) {
        struct dg_chat_turn t;
        st = dg_chat_turn_init(&t, c, round == 0, err);
        if (st == DG_OK)
            st = dg_chat_turn_run(&t, err);
        json_t *message = json_incref(t.message);
        dg_chat_turn_deinit(&t);
        if (st == DG_OK && round == 0)
            st = obeyed(c, json_object_get(message, "tool_calls"), err);
        if (st == DG_OK)
            st = dg_dialog_add_reply(&c->dialog, message, err);
        const json_t *calls = json_object_get(message, "tool_calls");
        bool again = st == DG_OK && json_array_size(calls) > 0;
        c->last.rounds = round;
        c->last.out_of_rounds = again && round >= c->o.rounds;
        if (again)
            st = answer_calls(c, calls, c->last.out_of_rounds, err);
        json_decref(message);
        if (st != DG_OK || !again || c->last.out_of_rounds)
            return st;
    }
}

static void note_cut(const struct dg_chat *c) {
    const struct dg_chat_reply *r = &c->last;
    const char *why = r->end == DG_END_BLOCKS                                  ? "too many of its blocks were trimmed; /retry tries another seed"
                      : c->o.gen.max_tokens && r->turn >= c->o.gen.max_tokens ? "--max-tokens is used up"
                                                                              : "the context is full (/undo, /reset, or a larger --ctx)";
    char text[200];
    snprintf(text, sizeof text, "the reply was cut%s: %s", r->unclosed ? " inside its thought (--think-max closes one earlier)" : "", why);
    note(c, text);
}

static void say_end(const struct dg_chat *c) {
    const struct dg_chat_reply *r = &c->last;
    if (r->out_of_rounds)
        note(c, "the reply was ended: it kept calling tools (--tool-rounds)");
    else if (r->end == DG_END_LENGTH || r->end == DG_END_BLOCKS)
        note_cut(c);
    else if (r->end == DG_END_REPEAT)
        note(c, "the reply was cut: the model repeated one token without end; /retry tries another seed");
    else if (!r->shown)
        note(c, r->unclosed ? "the reply is empty: all of it was a thought that was never closed; /retry tries another seed"
                            : "the reply is empty; /retry tries another seed");
    if (r->closed_early)
        note(c, "the thought was closed after --think-max tokens");
}

enum dg_status dg_chat_send(struct dg_chat *c, const char *text, size_t n, struct dg_error *err) {
    size_t before = dg_dialog_count(&c->dialog);
    double start = now();
    c->last = (struct dg_chat_reply){.seed = c->next_seed};
    if (c->o.cancel)
        atomic_store(c->o.cancel, false);
    DG_TRY(dg_dialog_add_user(&c->dialog, text, n, err));
    enum dg_status st = reply(c, err);
    c->last.seconds = now() - start;
    if (st != DG_OK) {
        dg_dialog_cut(&c->dialog, before);
        return st;
    }
    say_end(c);
    dg_chat_settle(c);
    return DG_OK;
}

bool dg_chat_undo(struct dg_chat *c) {
    const char *text;
    size_t n, at = dg_dialog_last_user(&c->dialog, &text, &n);
    if (at == SIZE_MAX)
        return false;
    dg_dialog_cut(&c->dialog, at);
    return true;
}

enum dg_status dg_chat_retry(struct dg_chat *c, struct dg_error *err) {
    const char *text;
    size_t n, at = dg_dialog_last_user(&c->dialog, &text, &n);
    if (at == SIZE_MAX || !text)
        return DG_FAIL(err, DG_E_ARG, "there is no message to send again");
    json_t *whole = json_copy(c->dialog.messages), *message = json_incref(json_array_get(c->dialog.messages, at));
    enum dg_status st = whole ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory");
    if (st == DG_OK) {
        dg_dialog_cut(&c->dialog, at);
        st = dg_chat_send(c, text, n, err);
    }
    if (st != DG_OK && whole) {
        json_decref(c->dialog.messages);
        c->dialog.messages = json_incref(whole);
    }
    json_decref(message);
    json_decref(whole);
    return st;
}

void dg_chat_reset(struct dg_chat *c) { dg_dialog_cut(&c->dialog, dg_dialog_system_view(&c->dialog) != NULL); }
