#include "chat/turn.h"

#include <string.h>

#define CALL_LINE_MAX ((size_t)32 << 20) /* bytes of a call as shown */

static const char thought_head[] = "<|channel>thought\n";

/* --- the prompt --- */

/* The opened thought and what the harness begins it with; the harness's text is client text. */
static enum dg_status add_prethink(struct dg_chat_turn *t, const char *text, struct dg_error *err) {
    struct dg_buf b;
    size_t n = strlen(text);
    struct dg_span client = {sizeof thought_head - 1, sizeof thought_head - 1 + n};
    dg_buf_init(&b, client.end + 1);
    dg_buf_str(&b, thought_head);
    enum dg_status st = dg_buf_str(&b, text);
    if (st != DG_OK)
        st = DG_FAIL(err, st, "no memory for the thought's beginning");
    else
        st = dg_tokenizer_encode_spans(t->c->o.tok, dg_buf_cstr(&b), b.len, &client, n > 0, &t->prompt, err);
    dg_buf_deinit(&b);
    return st;
}

static bool ends_in_thought(const struct dg_chat_turn *t) {
    for (size_t i = t->prompt.n; i-- > 0;)
        if (t->prompt.v[i] == t->open_id || t->prompt.v[i] == t->close_id)
            return t->prompt.v[i] == t->open_id;
    return false;
}

static void show(struct dg_chat_turn *t, enum dg_chat_text kind, const char *s, size_t n) {
    const struct dg_chat_ui *ui = &t->c->o.ui;
    if (ui->text && n)
        ui->text(ui->ctx, kind, s, n);
}

static enum dg_status on_reply(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct dg_chat_turn *t = ctx;
    DG_TRY(dg_reply_message_add(&t->build, e, err));
    if (e->kind == DG_REPLY_CONTENT) {
        t->c->last.shown += e->n;
        show(t, DG_CHAT_CONTENT, e->text, e->n);
    } else if (e->kind == DG_REPLY_THOUGHT)
        show(t, DG_CHAT_THOUGHT, e->text, e->n);
    else {
        struct dg_buf line;
        dg_buf_init(&line, CALL_LINE_MAX);
        if (dg_buf_fmt(&line, "call %.*s %.*s", (int)e->n_name, e->name, (int)e->n, e->text) == DG_OK)
            show(t, DG_CHAT_CALL, line.data, line.len);
        dg_buf_deinit(&line);
    }
    return DG_OK;
}

enum dg_status dg_chat_turn_init(struct dg_chat_turn *t, struct dg_chat *c, bool first, struct dg_error *err) {
    *t = (struct dg_chat_turn){.c = c, .first = first};
    const struct dg_tokenizer *tok = c->o.tok;
    const char *prethink = c->o.tools ? c->o.tools->prethink : NULL;
    bool seeded = first && prethink && c->dialog.thinking == DG_THINKING_ON;
    t->open_id = dg_tokenizer_find(tok, "<|channel>");
    t->close_id = dg_tokenizer_find(tok, "<channel|>");
    t->call_id = dg_tokenizer_find(tok, "<|tool_call>");
    dg_reply_message_init(&t->build, c->dialog.next_call);
    DG_TRY(dg_dialog_encode(&c->dialog, tok, true, &t->prompt, err));
    if (seeded)
        DG_TRY(add_prethink(t, prethink, err));
    t->in_thought = ends_in_thought(t);
    dg_reply_stream_init(&t->stream, tok, t->in_thought, on_reply, t);
    if (seeded) {
        struct dg_reply_event e = {.kind = DG_REPLY_THOUGHT, .text = prethink, .n = strlen(prethink)};
        DG_TRY(on_reply(t, &e, err));
    }
    c->last.prompt = (int64_t)t->prompt.n;
    if ((int64_t)t->prompt.n > c->o.ctx - c->o.canvas)
        return DG_FAIL(err, DG_E_LIMIT,
                       "the conversation is %zu tokens and a block takes %d: they do not fit a context of %lld (/undo, /reset, or "
                       "start with a larger --ctx)",
                       t->prompt.n, c->o.canvas, (long long)c->o.ctx);
    return DG_OK;
}

void dg_chat_turn_deinit(struct dg_chat_turn *t) {
    if (t->stream.t)
        dg_reply_stream_deinit(&t->stream);
    dg_reply_message_deinit(&t->build);
    dg_ids_deinit(&t->prompt);
    dg_ids_deinit(&t->result.ids);
    dg_error_clear(&t->failed);
    json_decref(t->message);
    memset(t, 0, sizeof *t);
}

/* --- generation --- */

static void take_ids(struct dg_chat_turn *t, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n && t->failed.code == DG_OK; i++) {
        if (ids[i] == t->open_id || ids[i] == t->close_id || ids[i] == t->call_id) {
            t->in_thought = ids[i] == t->open_id;
            t->thought = 0;
        }
        t->thought++;
        if (dg_reply_stream_push(&t->stream, ids[i], &t->failed) != DG_OK)
            return;
    }
}

static void on_event(void *ctx, const struct dg_event *e) {
    struct dg_chat_turn *t = ctx;
    const struct dg_chat_ui *ui = &t->c->o.ui;
    if (e->kind == DG_EV_PREFILL && ui->prefill)
        ui->prefill(ui->ctx, e->done, e->total);
    else if (e->kind == DG_EV_STEP && ui->step)
        ui->step(ui->ctx, e->step);
    else if (e->kind == DG_EV_BLOCK) {
        if (ui->block)
            ui->block(ui->ctx, e->block);
        take_ids(t, e->block->ids, e->block->kept);
        t->c->last.blocks++;
        t->c->last.unconverged += !e->block->converged && e->block->stop == DG_STOP_MAX_STEPS;
    } else if (e->kind == DG_EV_NOTE && ui->note)
        ui->note(ui->ctx, e->text);
}

static enum dg_status call(struct dg_chat_turn *t, struct dg_op *op, struct dg_error *err) {
    op->cancel = t->c->o.cancel;
    t->result.ids.n = 0;
    enum dg_status st = dg_pipeline_call(t->c->o.pipeline, op, on_event, t, &t->result, err);
    t->c->last.computed += t->result.computed;
    t->c->log = t->result.at.pos;
    return st;
}

static void count(struct dg_chat_turn *t) {
    t->c->last.tokens += (int64_t)t->result.ids.n;
    t->c->last.turn += (int64_t)t->result.ids.n;
    t->c->last.steps += t->result.steps;
    t->c->last.end = t->result.end;
}

static enum dg_status generate(struct dg_chat_turn *t, const struct dg_gen *g, struct dg_error *err) {
    DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_GENERATE, .gen = g}, err));
    count(t);
    return DG_OK;
}

/* Proposes and commits blocks until the turn ends or, *full, the thought has taken its share. */
static enum dg_status blocks(struct dg_chat_turn *t, bool *full, struct dg_error *err) {
    *full = false;
    for (;;) {
        enum dg_status st = call(t, &(struct dg_op){.kind = DG_OP_PROPOSE}, err);
        if (st == DG_E_LIMIT && t->result.end != DG_END_NONE) {
            dg_error_clear(err);
            return DG_OK;
        }
        DG_TRY(st);
        if (t->result.plan.reroll) {
            DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_DISCARD}, err));
            continue;
        }
        DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_COMMIT, .kept = -1}, err));
        if (t->result.end != DG_END_NONE)
            return DG_OK;
        *full = t->in_thought && t->thought > t->c->o.think_max;
        if (*full)
            return DG_OK;
    }
}

/* The thought's end, as the model would write it, into the log and the parser. */
static enum dg_status close_thought(struct dg_chat_turn *t, struct dg_error *err) {
    static const char end[] = "\n<channel|>";
    struct dg_ids ids = {0};
    enum dg_status st = dg_tokenizer_encode(t->c->o.tok, end, sizeof end - 1, true, &ids, err);
    if (st == DG_OK)
        st = call(t, &(struct dg_op){.kind = DG_OP_EXTEND, .ids = ids.v, .n = ids.n}, err);
    if (st == DG_OK)
        take_ids(t, ids.v, (int32_t)ids.n);
    t->c->last.closed_early = true;
    dg_ids_deinit(&ids);
    return st;
}

/* Block by block, the thought being closed when it has taken its share; the answer is then a turn of its own. */
static enum dg_status generate_bounded(struct dg_chat_turn *t, struct dg_gen *g, struct dg_error *err) {
    struct dg_error ignored = {0};
    bool full;
    DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = g}, err));
    enum dg_status st = blocks(t, &full, err);
    struct dg_op end = {.kind = DG_OP_END_TURN, .abandon = st != DG_OK};
    t->result.ids.n = 0;
    enum dg_status ended = dg_pipeline_call(t->c->o.pipeline, &end, NULL, NULL, &t->result, &ignored);
    dg_error_clear(&ignored);
    DG_TRY(st);
    DG_TRY(ended);
    count(t);
    if (!full)
        return DG_OK;
    int64_t used = (int64_t)t->result.ids.n;
    DG_TRY(close_thought(t, err));
    if (g->max_tokens && used >= g->max_tokens) {
        t->c->last.end = DG_END_LENGTH;
        return DG_OK;
    }
    g->max_tokens = g->max_tokens ? g->max_tokens - used : 0;
    g->seed = t->c->next_seed++;
    return generate(t, g, err);
}

/* Empties the log. */
static enum dg_status forget(struct dg_chat_turn *t, struct dg_error *err) {
    DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_PING}, err));
    return call(t, &(struct dg_op){.kind = DG_OP_REWIND, .at = {t->result.at.epoch, 0}}, err);
}

enum dg_status dg_chat_turn_run(struct dg_chat_turn *t, struct dg_error *err) {
    struct dg_chat *c = t->c;
    struct dg_gen g = c->o.gen;
    g.seed = c->next_seed++;
    c->last.turn = 0;
    if (c->o.no_reuse)
        DG_TRY(forget(t, err));
    DG_TRY(call(t, &(struct dg_op){.kind = DG_OP_ALIGN, .ids = t->prompt.v, .n = t->prompt.n}, err));
    if (c->o.check) {
        c->o.check->in_thought = t->in_thought;
        c->o.check->must_call = t->first ? c->o.must_call : NULL;
    }
    bool bounded = c->o.think_max > 0 && c->dialog.thinking == DG_THINKING_ON;
    DG_TRY(bounded ? generate_bounded(t, &g, err) : generate(t, &g, err));
    /* the stop token says that the model itself ended a call, whose closers may then be missing */
    if (t->failed.code == DG_OK && t->result.stop_id >= 0)
        (void)(dg_reply_stream_push(&t->stream, t->result.stop_id, &t->failed) != DG_OK);
    if (t->failed.code == DG_OK)
        (void)(dg_reply_stream_end(&t->stream, &t->failed) != DG_OK);
    if (t->failed.code != DG_OK)
        return DG_FAIL(err, t->failed.code, "%s", dg_error_text(&t->failed));
    c->last.unclosed = t->stream.reply.unclosed_thought;
    DG_TRY(dg_reply_message_json(&t->build, &t->message, err));
    c->dialog.next_call = t->build.next_id;
    return DG_OK;
}

void dg_chat_settle(struct dg_chat *c) {
    struct dg_ids ids = {0};
    struct dg_error ignored = {0};
    struct dg_result r = {0};
    if (c->o.no_reuse)
        return;
    if (dg_dialog_encode(&c->dialog, c->o.tok, false, &ids, &ignored) == DG_OK) {
        struct dg_op op = {.kind = DG_OP_ALIGN, .ids = ids.v, .n = ids.n, .cancel = c->o.cancel};
        if (dg_pipeline_call(c->o.pipeline, &op, NULL, NULL, &r, &ignored) == DG_OK)
            c->log = r.at.pos;
        c->last.computed += r.computed;
    }
    dg_error_clear(&ignored);
    dg_ids_deinit(&r.ids);
    dg_ids_deinit(&ids);
}
