#include "pipeline/replay.h"

#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVED_MAX 64

/* Recorded event lines of one op, without the session's id. */
struct lines {
    char **v;
    size_t n, cap;
};

struct saved {
    char *path;
    char copy[64];
};

struct session {
    const struct dg_replay_opts *o;
    FILE *f;
    char prefix[32]; /* {"s":"ID", */
    size_t n_prefix;
    struct dg_stage *stage;
    struct dg_oplog_writer w;
    struct dg_replay_session told;
    struct saved saved[SAVED_MAX];
    size_t n_saved;
    int64_t cut_lines;
    struct dg_buf line; /* the last one read, while `more` */
    bool more;
    /* the op in work */
    struct lines want;
    size_t at, cancel_at; /* cancel_at: events after which the op was cancelled, SIZE_MAX = it was not */
    atomic_bool cancel;
    char *recorded, *replayed; /* the first difference */
};

static void lines_clear(struct lines *l) {
    for (size_t i = 0; i < l->n; i++)
        dg_free(l->v[i]);
    l->n = 0;
}

static enum dg_status lines_add(struct lines *l, const char *s, size_t n, struct dg_error *err) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        char **v = dg_realloc(l->v, l->n, cap, sizeof *v);
        if (!v)
            return DG_FAIL(err, DG_E_NOMEM, "no memory for the op log's lines");
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n] = dg_strndup(s, n);
    return l->v[l->n++] ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory for the op log's lines");
}

/* The next line without its newline; *more is false at the end of the file. A NUL, which no log holds, ends a line early. */
static enum dg_status read_line(FILE *f, struct dg_buf *line, bool *more, struct dg_error *err) {
    char chunk[16384];
    dg_buf_clear(line);
    *more = false;
    while (fgets(chunk, sizeof chunk, f)) {
        size_t n = strlen(chunk);
        bool whole = n && chunk[n - 1] == '\n';
        *more = true;
        if (dg_buf_add(line, chunk, n - whole) != DG_OK)
            return DG_FAIL(err, line->status, "a line of the op log has more than %zu bytes", line->len);
        if (whole)
            break;
    }
    return ferror(f) ? DG_FAIL(err, DG_E_IO, "cannot read the op log: %s", strerror(errno)) : DG_OK;
}

/* The next line of this session; *more is false when there is none. A line without its brace was cut. */
static enum dg_status next_line(struct session *s, struct dg_error *err) {
    struct dg_buf *b = &s->line;
    do {
        DG_TRY(read_line(s->f, b, &s->more, err));
        if (b->len < s->n_prefix || memcmp(b->data, s->prefix, s->n_prefix) != 0)
            continue;
        if (b->data[b->len - 1] == '}')
            return DG_OK;
        s->cut_lines++;
    } while (s->more);
    return DG_OK;
}

static void keep_difference(struct session *s, const char *recorded, const char *replayed) {
    if (s->told.differs)
        return;
    s->told.differs = true;
    s->told.op = (int64_t)s->w.op;
    s->recorded = dg_strndup(recorded, strlen(recorded));
    s->replayed = dg_strndup(replayed, strlen(replayed));
}

static void on_event(void *ctx, const struct dg_event *e) {
    struct session *s = ctx;
    const char *recorded = s->at < s->want.n ? s->want.v[s->at] : "", *got = "(out of memory)";
    if (dg_oplog_event(&s->w, e) == DG_OK) {
        s->w.line.data[s->w.line.len - 1] = 0; /* the newline */
        got = s->w.line.data + s->n_prefix;
    }
    if (strcmp(recorded, got) != 0)
        keep_difference(s, recorded, got);
    s->at++;
    s->told.events++;
    if (s->at == s->cancel_at)
        atomic_store(&s->cancel, true);
}

/* Saved files are the replay's own. */
static enum dg_status redirect(struct session *s, struct dg_op *op, struct dg_error *err) {
    size_t i = 0;
    if (!op->path || (op->kind != DG_OP_SAVE && op->kind != DG_OP_LOAD))
        return DG_OK;
    while (i < s->n_saved && strcmp(s->saved[i].path, op->path) != 0)
        i++;
    if (i == s->n_saved) {
        if (op->kind == DG_OP_LOAD)
            return DG_OK;
        if (i == SAVED_MAX)
            return DG_FAIL(err, DG_E_LIMIT, "the session saves to more than %d files", SAVED_MAX);
        struct saved *v = &s->saved[i];
        snprintf(v->copy, sizeof v->copy, "/tmp/diffgemma-replay-XXXXXX");
        int fd = mkstemp(v->copy);
        if (fd < 0)
            return DG_FAIL(err, DG_E_IO, "cannot make a temporary file: %s", strerror(errno));
        close(fd);
        v->path = (char *)op->path;
        s->n_saved++;
    } else
        dg_free((void *)op->path);
    op->path = dg_strndup(s->saved[i].copy, strlen(s->saved[i].copy));
    return op->path ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
}

static bool is_answer(const char *line) { return strstr(line, "\"t\":\"answer\"") != NULL; }

static enum dg_status run_op(struct session *s, const json_t *line, struct dg_error *err) {
    struct dg_op op;
    DG_TRY(dg_oplog_read_op(line, &op, err));
    enum dg_status st = redirect(s, &op, err);
    if (st == DG_OK) {
        const char *last = s->want.v[s->want.n - 1];
        bool cancelled = strstr(last, "\"status\":\"cancelled\"") != NULL;
        s->at = 0;
        s->cancel_at = cancelled ? s->want.n - 1 : SIZE_MAX;
        atomic_store(&s->cancel, s->cancel_at == 0);
        op.cancel = &s->cancel;
        s->w.op = (uint64_t)json_integer_value(json_object_get(line, "op"));
        dg_stage_exec(s->stage, &op, on_event, s);
        if (s->at < s->want.n)
            keep_difference(s, s->want.v[s->at], "");
        s->told.ops++;
    }
    dg_op_deinit(&op);
    return st;
}

/* Collects an op's recorded events and reads the line behind them. */
static enum dg_status collect(struct session *s, struct dg_error *err) {
    lines_clear(&s->want);
    for (bool answered = false;;) {
        DG_TRY(next_line(s, err));
        if (answered || !s->more)
            return DG_OK;
        const char *rest = s->line.data + s->n_prefix;
        if (!strncmp(rest, "\"t\":\"op\"", 8) || !strncmp(rest, "\"t\":\"session\"", 13))
            return DG_OK;
        DG_TRY(lines_add(&s->want, rest, s->line.len - s->n_prefix, err));
        answered = is_answer(rest);
    }
}

static enum dg_status run_ops(struct session *s, struct dg_error *err) {
    DG_TRY(next_line(s, err));
    while (s->more && !s->told.differs) {
        json_error_t je;
        json_t *op = json_loadb(s->line.data, s->line.len, 0, &je);
        const char *type = json_string_value(json_object_get(op, "t"));
        if (!type || strcmp(type, "op") != 0) {
            /* a cut line that happens to end in a brace, or an event whose op was cut */
            s->cut_lines++;
            json_decref(op);
            DG_TRY(next_line(s, err));
            continue;
        }
        enum dg_status st = collect(s, err);
        bool answered = st == DG_OK && s->want.n && is_answer(s->want.v[s->want.n - 1]);
        if (answered)
            st = run_op(s, op, err);
        json_decref(op);
        DG_TRY(st);
        if (!answered) {
            s->told.note = "the log ends inside an op, which is not replayed";
            break;
        }
    }
    return DG_OK;
}

static enum dg_status run_session(const struct dg_replay_opts *o, FILE *f, const json_t *head, struct dg_replay_total *total,
                                  struct dg_error *err) {
    struct session s = {.o = o, .f = f};
    struct dg_oplog_session h;
    const char *id = json_string_value(json_object_get(head, "s"));
    enum dg_status st;
    if (!id || !*id || strlen(id) > 16)
        return DG_FAIL(err, DG_E_FORMAT, "a session of the op log has no id");
    dg_oplog_writer_init(&s.w, id);
    dg_buf_init(&s.line, DG_OPLOG_LINE_MAX);
    s.n_prefix = (size_t)snprintf(s.prefix, sizeof s.prefix, "{\"s\":\"%s\",", id);
    s.told.id = id;
    s.told.note = "";
    DG_GO(dg_oplog_read_head(head, &h, err));
    DG_GO(o->open(o->ctx, &h, &s.stage, err));
    DG_GO(run_ops(&s, err));
    s.told.recorded = s.recorded ? s.recorded : "";
    s.told.replayed = s.replayed ? s.replayed : "";
    total->sessions++;
    total->ops += s.told.ops;
    total->events += s.told.events;
    total->differing += s.told.differs;
    total->cut_lines += s.cut_lines;
    if (o->report)
        o->report(o->ctx, &s.told);
done:
    dg_stage_destroy(s.stage);
    for (size_t i = 0; i < s.n_saved; i++) {
        unlink(s.saved[i].copy);
        dg_free(s.saved[i].path);
    }
    lines_clear(&s.want);
    dg_free(s.want.v);
    dg_free(s.recorded);
    dg_free(s.replayed);
    dg_oplog_writer_deinit(&s.w);
    dg_buf_deinit(&s.line);
    return st;
}

/* Whether a line is a session's head: told from its beginning. */
static bool is_head(const struct dg_buf *b) {
    const char *t = b->len ? strstr(b->data, "\"t\":\"session\"") : NULL;
    return t && t - b->data <= 32 && strncmp(b->data, "{\"s\":\"", 6) == 0;
}

static enum dg_status run_all(const char *path, FILE *heads, FILE *f, const struct dg_replay_opts *o, struct dg_replay_total *total, int64_t *seen,
                              struct dg_error *err) {
    struct dg_buf line;
    enum dg_status st;
    dg_buf_init(&line, DG_OPLOG_LINE_MAX);
    for (bool more = true; more && !total->differing;) {
        json_error_t je;
        DG_GO(read_line(heads, &line, &more, err));
        if (!more || !is_head(&line))
            continue;
        json_t *head = json_loadb(line.data, line.len, 0, &je);
        const char *id = json_string_value(json_object_get(head, "s"));
        if (!head)
            total->cut_lines++;
        else if (++*seen > DG_REPLAY_SESSIONS_MAX)
            st = DG_FAIL(err, DG_E_LIMIT, "%s holds more than %d sessions", path, DG_REPLAY_SESSIONS_MAX);
        else if (!o->session || (id && !strcmp(id, o->session))) {
            /* its lines follow its head, perhaps with other sessions' between them */
            st = fseeko(f, ftello(heads), SEEK_SET) == 0 ? run_session(o, f, head, total, err)
                                                         : DG_FAIL(err, DG_E_IO, "cannot read %s: %s", path, strerror(errno));
        }
        json_decref(head);
        DG_GO(st);
    }
done:
    dg_buf_deinit(&line);
    return st;
}

enum dg_status dg_replay_run(const char *path, const struct dg_replay_opts *o, struct dg_replay_total *total, struct dg_error *err) {
    FILE *f = fopen(path, "re"), *heads = f ? fopen(path, "re") : NULL;
    enum dg_status st;
    int64_t seen = 0;
    memset(total, 0, sizeof *total);
    if (heads) {
        st = run_all(path, heads, f, o, total, &seen, err);
        fclose(heads);
        if (st == DG_OK && !seen)
            st = DG_FAIL(err, DG_E_FORMAT, "%s is no op log: it holds no session", path);
    } else
        st = DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    if (f)
        fclose(f);
    return st;
}
