#include "cli/replay_view.h"

#include "cli/live.h"
#include "message/reply.h"
#include "pipeline/oplog.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LINE_MAX_BYTES DG_OPLOG_LINE_MAX

static atomic_bool interrupted;

struct player {
    struct dg_live live;
    const struct dg_tokenizer *tok;
    const char *only;
    char session[24];
    int64_t fps;
    struct dg_oplog_steps steps;
    struct dg_reply_stream stream;
    bool open; /* a reply is being played */
    bool in_thought; /* the prompt ends inside a thought */
};

static enum dg_status on_reply(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct player *p = ctx;
    (void)err;
    if (e->kind == DG_REPLY_CALL) {
        dg_live_text(&p->live, DG_VIEW_CALL, "call ", 5);
        dg_live_text(&p->live, DG_VIEW_CALL, e->name, e->n_name);
        dg_live_text(&p->live, DG_VIEW_CALL, " ", 1);
        dg_live_text(&p->live, DG_VIEW_CALL, e->text, e->n);
        dg_live_text(&p->live, DG_VIEW_CALL, "\n", 1);
    } else
        dg_live_text(&p->live, e->kind == DG_REPLY_THOUGHT ? DG_VIEW_THOUGHT : DG_VIEW_CONTENT, e->text, e->n);
    return DG_OK;
}

static void reply_begin(struct player *p) {
    dg_reply_stream_init(&p->stream, p->tok, p->in_thought, on_reply, p);
    dg_live_begin(&p->live);
    p->open = true;
}

static void reply_end(struct player *p) {
    struct dg_error ignored = {0};
    if (!p->open)
        return;
    if (dg_reply_stream_end(&p->stream, &ignored) != DG_OK)
        dg_error_clear(&ignored);
    dg_reply_stream_deinit(&p->stream);
    dg_live_end(&p->live);
    p->open = false;
}

static bool is(const json_t *line, const char *key, const char *value) {
    const char *s = json_string_value(json_object_get(line, key));
    return s && !strcmp(s, value);
}

/* Whether ids end inside a thought; those without a channel token leave it as it was. */
static void note_prompt(struct player *p, const json_t *ids) {
    int32_t open = dg_tokenizer_find(p->tok, "<|channel>"), close = dg_tokenizer_find(p->tok, "<channel|>");
    for (size_t i = json_array_size(ids); i-- > 0;) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id == open || id == close) {
            p->in_thought = id == open;
            return;
        }
    }
}

static enum dg_status play_step(struct player *p, const json_t *line, struct dg_error *err) {
    struct dg_step_event e;
    DG_TRY(dg_oplog_read_step(&p->steps, line, &e, err));
    dg_live_step(&p->live, &e);
    if (p->live.terminal && p->fps > 0) {
        struct timespec t = {p->fps == 1, p->fps == 1 ? 0 : 1000000000L / (long)p->fps};
        nanosleep(&t, NULL);
    }
    return DG_OK;
}

static enum dg_status play_block(struct player *p, const json_t *line, struct dg_error *err) {
    const json_t *ids = json_object_get(line, "ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        DG_TRY(dg_reply_stream_push(&p->stream, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, err));
    }
    json_int_t stop = json_integer_value(json_object_get(line, "stop_id"));
    if (json_object_get(line, "stop_id") && stop >= 0 && stop <= INT32_MAX)
        DG_TRY(dg_reply_stream_push(&p->stream, (int32_t)stop, err));
    return DG_OK;
}

static enum dg_status play_line(struct player *p, const json_t *line, struct dg_error *err) {
    const char *id = json_string_value(json_object_get(line, "s"));
    if (!id || (p->only && strcmp(id, p->only)))
        return DG_OK;
    if (is(line, "t", "session")) {
        reply_end(p);
        snprintf(p->session, sizeof p->session, "%s", id);
        return DG_OK;
    }
    if (strcmp(id, p->session))
        return DG_OK;
    bool turn = is(line, "kind", "generate") || is(line, "kind", "begin_turn");
    if (is(line, "t", "op")) {
        note_prompt(p, json_object_get(line, "ids"));
        if (turn)
            reply_begin(p);
    } else if (is(line, "t", "step") && p->open)
        return play_step(p, line, err);
    else if (is(line, "t", "block") && p->open)
        return play_block(p, line, err);
    else if (is(line, "t", "answer") && (is(line, "kind", "generate") || is(line, "kind", "end_turn")))
        reply_end(p);
    return DG_OK;
}

/* One line without its end; *more is false at the end of the file. */
static enum dg_status read_line(FILE *f, struct dg_buf *line, bool *more, struct dg_error *err) {
    char chunk[16384];
    dg_buf_clear(line);
    *more = false;
    while (fgets(chunk, sizeof chunk, f)) {
        size_t n = strlen(chunk);
        *more = true;
        if (dg_buf_add(line, chunk, n) != DG_OK)
            return DG_FAIL(err, line->status, "a line of the op log has more than %zu bytes", LINE_MAX_BYTES);
        if (n && chunk[n - 1] == '\n')
            break;
    }
    return ferror(f) ? DG_FAIL(err, DG_E_IO, "cannot read the op log: %s", strerror(errno)) : DG_OK;
}

/* Calls each for every line that is JSON; lines that a killed process cut short are passed over. */
static enum dg_status each_line(const char *path,
                                enum dg_status (*each)(void *ctx, const json_t *line, bool *stop, struct dg_error *err), void *ctx,
                                struct dg_error *err) {
    struct dg_buf line;
    FILE *f = fopen(path, "re");
    bool more = true, stop = false, any = false;
    if (!f)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    enum dg_status st = DG_OK;
    dg_buf_init(&line, LINE_MAX_BYTES);
    while (st == DG_OK && !stop) {
        st = read_line(f, &line, &more, err);
        if (st != DG_OK || !more)
            break;
        json_t *o = json_loadb(line.data, line.len, 0, NULL);
        any = any || is(o, "t", "session");
        st = o ? each(ctx, o, &stop, err) : DG_OK;
        json_decref(o);
    }
    dg_buf_deinit(&line);
    fclose(f);
    if (st == DG_OK && !any)
        st = DG_FAIL(err, DG_E_FORMAT, "%s holds no session of an op log", path);
    return st;
}

static enum dg_status play_each(void *ctx, const json_t *line, bool *stop, struct dg_error *err) {
    struct player *p = ctx;
    *stop = p->live.failed;
    if (atomic_load(&interrupted))
        return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
    return play_line(p, line, err);
}

enum dg_status dg_replay_view(const char *path, const char *session, const struct dg_tokenizer *tok, int64_t fps,
                              struct dg_error *err) {
    struct player p = {.tok = tok, .only = session, .fps = fps};
    dg_live_init(&p.live, tok, true);
    dg_live_signals(&interrupted, NULL);
    enum dg_status st = each_line(path, play_each, &p, err);
    reply_end(&p);
    if (st == DG_OK && session && !p.session[0])
        st = DG_FAIL(err, DG_E_ARG, "%s holds no session %s", path, session);
    if (st == DG_OK && p.live.failed)
        st = DG_FAIL(err, DG_E_IO, "cannot write to standard output");
    dg_oplog_steps_deinit(&p.steps);
    dg_live_deinit(&p.live);
    return st;
}

struct found {
    char *out;
    size_t n;
};

static enum dg_status find_model(void *ctx, const json_t *line, bool *stop, struct dg_error *err) {
    struct found *f = ctx;
    const char *model = json_string_value(json_object_get(line, "model"));
    if (!is(line, "t", "session"))
        return DG_OK;
    *stop = true;
    if (!model || strlen(model) >= f->n)
        return DG_FAIL(err, DG_E_FORMAT, "the op log does not say which model it is of; give -m");
    snprintf(f->out, f->n, "%s", model);
    return DG_OK;
}

enum dg_status dg_replay_view_model(const char *path, char *out, size_t n, struct dg_error *err) {
    struct found f = {out, n};
    return each_line(path, find_model, &f, err);
}
