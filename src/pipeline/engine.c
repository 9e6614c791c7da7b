#include "pipeline/engine.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

struct dg_engine {
    struct dg_stage stage;
    struct dg_conversations all;
    struct dg_engine_opts opts;
    struct dg_conversation *current;
    uint64_t n_ops;
};

/* One op in work. */
struct run {
    struct dg_engine *e;
    const struct dg_op *op;
    struct dg_conversation *v; /* the conversation meant; NULL = there is none */
    dg_event_fn *emit;
    void *ctx;
    int64_t prefilled, to_prefill; /* of the op's earlier prefills; of all */
    struct dg_answer a;
};

static struct dg_event event_of(const struct run *r, enum dg_event_kind kind) {
    struct dg_event ev = {.kind = kind, .op = r->e->n_ops};
    if (r->v) {
        ev.conv = r->v->id;
        ev.at = (struct dg_kv_id){r->v->epoch, r->v->s->kv.len};
    }
    return ev;
}

static void on_prefill(void *ctx, int64_t done, int64_t total) {
    struct run *r = ctx;
    (void)total;
    struct dg_event ev = event_of(r, DG_EV_PREFILL);
    ev.done = r->prefilled + done;
    ev.total = r->to_prefill;
    r->emit(r->ctx, &ev);
}

/* Told before anything is touched, so that between two checks of the cancel token there is always an event: where an op was cancelled can be
 * told, and repeated, by counting them. */
static void announce(struct run *r, int64_t total) {
    r->to_prefill = total;
    if (total > 0)
        on_prefill(r, 0, total);
}

static void on_step(void *ctx, const struct dg_step_event *step) {
    struct run *r = ctx;
    struct dg_event ev = event_of(r, DG_EV_STEP);
    ev.step = step;
    r->emit(r->ctx, &ev);
}

static void on_block(void *ctx, const struct dg_block_event *block) {
    struct run *r = ctx;
    struct dg_event ev = event_of(r, DG_EV_BLOCK);
    ev.block = block;
    r->emit(r->ctx, &ev);
}

static void note(struct run *r, const char *text) {
    struct dg_event ev = event_of(r, DG_EV_NOTE);
    ev.text = text;
    r->emit(r->ctx, &ev);
}

/* --- the log --- */

/* Tokens were removed: what named them is void. */
static void lineage_broke(struct run *r) {
    struct dg_conversation *v = r->v;
    int64_t len = v->s->kv.len;
    size_t kept = 0;
    v->epoch = r->e->all.next_epoch++;
    for (size_t i = 0; i < v->n_marks; i++)
        if (v->mark[i].pos <= len)
            v->mark[kept++] = v->mark[i];
    v->n_marks = kept;
    if (v->turn_start > len)
        v->turn_start = -1;
}

/* Tokens that cutting to len computes again. */
static int64_t cut_cost(const struct dg_session *s, int64_t len) {
    return len < s->kv.len && len > 0 && len < dg_session_cut_floor(s) ? len : 0;
}

static enum dg_status cut(struct run *r, int64_t len, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    if (len == s->kv.len)
        return DG_OK;
    int64_t cost = cut_cost(s, len);
    enum dg_status st = dg_session_rewind(s, len, on_prefill, r, err);
    r->prefilled += cost;
    lineage_broke(r);
    return st;
}

static enum dg_status check_ids(const struct run *r, struct dg_error *err) {
    int32_t vocab = r->v->s->cfg->vocab;
    for (size_t i = 0; i < r->op->n; i++)
        if (r->op->ids[i] < 0 || r->op->ids[i] >= vocab)
            return DG_FAIL(err, DG_E_ARG, "token id %d is outside the vocabulary of %d", r->op->ids[i], vocab);
    return DG_OK;
}

/* Appends; where no canvas would fit behind the tokens, only if they are the model's own. */
static enum dg_status extend(struct run *r, const int32_t *ids, size_t n, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    if (n == 0)
        return DG_OK;
    enum dg_status st = n > (size_t)dg_session_room(s) ? dg_session_append(s, ids, n, err) : dg_session_extend(s, ids, n, on_prefill, r, err);
    r->prefilled += (int64_t)n;
    return st;
}

/* The log from position start on becomes the op's ids; of_model: they may fill the room of the last canvas. */
static enum dg_status align(struct run *r, int64_t start, bool of_model, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    const int32_t *ids = r->op->ids;
    size_t n = r->op->n, same = dg_ids_common(s->log.v + start, s->log.n - (size_t)start, ids, n);
    int64_t most = s->kv.ctx - (of_model ? 0 : s->cfg->canvas), keep = start + (int64_t)same;
    if (same < n && start + (int64_t)n > most)
        return DG_FAIL(err, DG_E_LIMIT, "a log of %lld tokens leaves no room for a canvas of %d in a context of %lld",
                       (long long)(start + (int64_t)n), s->cfg->canvas, (long long)s->kv.ctx);
    announce(r, cut_cost(s, keep) + (int64_t)(n - same));
    DG_TRY(cut(r, keep, err));
    return extend(r, ids + same, n - same, err);
}

static enum dg_status op_extend(struct run *r, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    int64_t start = s->kv.len, room = s->kv.ctx - start;
    DG_TRY(check_ids(r, err));
    if (r->op->as_turn && r->op->n > (size_t)room)
        return DG_FAIL(err, DG_E_LIMIT, "a turn of %zu tokens does not fit: the context leaves %lld", r->op->n, (long long)room);
    announce(r, (int64_t)r->op->n);
    if (!r->op->as_turn)
        return dg_session_extend(s, r->op->ids, r->op->n, on_prefill, r, err);
    enum dg_status st = extend(r, r->op->ids, r->op->n, err);
    if (st == DG_OK) {
        r->v->turn_start = start;
        return DG_OK;
    }
    if (s->kv.len > start) {
        struct dg_error ignored = {0};
        s->cancel = NULL;
        if (dg_session_rewind(s, start, NULL, NULL, &ignored) != DG_OK)
            dg_error_clear(&ignored);
        lineage_broke(r);
    }
    return st;
}

static enum dg_status op_fill(struct run *r, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    int64_t n = r->op->len;
    if (n < 0 || n > dg_session_room(s))
        return DG_FAIL(err, DG_E_LIMIT, "%lld tokens to fill in; there is room for %lld", (long long)n, (long long)dg_session_room(s));
    int32_t *ids = dg_calloc((size_t)n, sizeof *ids);
    if (!ids)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for %lld tokens", (long long)n);
    struct dg_rng rng;
    dg_rng_init(&rng, r->op->seed);
    for (int64_t i = 0; i < n; i++)
        ids[i] = dg_rng_id(&rng, s->cfg->vocab);
    announce(r, n);
    enum dg_status st = dg_session_extend(s, ids, (size_t)n, on_prefill, r, err);
    dg_free(ids);
    return st;
}

static struct dg_mark_entry *find_mark(struct dg_conversation *v, const char *name) {
    for (size_t i = 0; i < v->n_marks; i++)
        if (!strcmp(v->mark[i].name, name))
            return &v->mark[i];
    return NULL;
}

static enum dg_status op_rewind(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    int64_t pos = r->op->at.pos;
    if (r->op->mark) {
        struct dg_mark_entry *m = find_mark(v, r->op->mark);
        if (!m)
            return DG_FAIL(err, DG_E_ARG, "there is no mark '%.*s' (a cut below a mark removes it)", DG_MARK_NAME_MAX, r->op->mark);
        pos = m->pos;
    } else if (r->op->at.epoch != v->epoch)
        return DG_FAIL(err, DG_E_ARG, "stale position (epoch %llu, %lld): tokens were removed since; the log is at (epoch %llu, %lld)",
                       (unsigned long long)r->op->at.epoch, (long long)pos, (unsigned long long)v->epoch, (long long)v->s->kv.len);
    if (pos < 0 || pos > v->s->kv.len)
        return DG_FAIL(err, DG_E_ARG, "cannot rewind to %lld: the log ends at %lld", (long long)pos, (long long)v->s->kv.len);
    announce(r, cut_cost(v->s, pos));
    return cut(r, pos, err);
}

static enum dg_status op_splice(struct run *r, struct dg_error *err) {
    struct dg_session *s = r->v->s;
    int64_t start = r->op->start, end = r->op->end, len = s->kv.len;
    if (start < 0 || end < start || end > len)
        return DG_FAIL(err, DG_E_ARG, "cannot splice [%lld, %lld) of a log of %lld tokens", (long long)start, (long long)end, (long long)len);
    DG_TRY(check_ids(r, err));
    if (start + (int64_t)r->op->n + (len - end) > s->kv.ctx - s->cfg->canvas)
        return DG_FAIL(err, DG_E_LIMIT, "the spliced log of %lld tokens leaves no room for a canvas in a context of %lld",
                       (long long)(start + (int64_t)r->op->n + (len - end)), (long long)s->kv.ctx);
    struct dg_ids tail = {0};
    enum dg_status st;
    if (dg_ids_add(&tail, r->op->ids, r->op->n) != DG_OK || dg_ids_add(&tail, s->log.v + end, (size_t)(len - end)) != DG_OK) {
        st = DG_FAIL(err, DG_E_NOMEM, "no memory to splice %lld tokens", (long long)(len - end));
        goto done;
    }
    announce(r, cut_cost(s, start) + (int64_t)tail.n);
    st = cut(r, start, err);
    if (start == len)
        lineage_broke(r);
    DG_GO(st);
    st = extend(r, tail.v, tail.n, err);
done:
    dg_ids_deinit(&tail);
    return st;
}

static enum dg_status op_mark(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    size_t n = r->op->mark ? strlen(r->op->mark) : 0;
    if (n < 1 || n > DG_MARK_NAME_MAX)
        return DG_FAIL(err, DG_E_ARG, "a mark needs a name of 1 to %d bytes", DG_MARK_NAME_MAX);
    struct dg_mark_entry *m = find_mark(v, r->op->mark);
    if (!m) {
        if (v->n_marks == DG_MARKS_MAX)
            return DG_FAIL(err, DG_E_LIMIT, "a conversation has at most %d marks", DG_MARKS_MAX);
        if (v->n_marks == v->cap_marks) {
            size_t cap = v->cap_marks ? 2 * v->cap_marks : 4;
            struct dg_mark_entry *grown = dg_realloc(v->mark, v->n_marks, cap, sizeof *grown);
            if (!grown)
                return DG_FAIL(err, DG_E_NOMEM, "no memory for a mark");
            v->mark = grown;
            v->cap_marks = cap;
        }
        m = &v->mark[v->n_marks++];
        memcpy(m->name, r->op->mark, n + 1);
    }
    m->pos = v->s->kv.len;
    return DG_OK;
}

static enum dg_status op_finalize(struct run *r, struct dg_error *err) {
    if (r->v->turn_start < 0)
        return DG_FAIL(err, DG_E_ARG, "the log does not end with a generated turn: there is nothing to finalize");
    DG_TRY(check_ids(r, err));
    return align(r, r->v->turn_start, true, err);
}

static enum dg_status op_align(struct run *r, struct dg_error *err) {
    DG_TRY(check_ids(r, err));
    return align(r, 0, false, err);
}

/* --- conversations --- */

static enum dg_status create(struct run *r, struct dg_error *err) {
    struct dg_engine *e = r->e;
    struct dg_conversation *v;
    DG_TRY(dg_conversation_create(&e->all, &v, &r->a.route.evicted, err));
    e->current = r->v = v;
    return DG_OK;
}

static enum dg_status op_activate(struct run *r, struct dg_error *err) {
    if (r->op->conv == DG_CONV_NEW)
        return create(r, err);
    struct dg_session *s = r->v->s;
    int64_t len = r->op->len;
    if (len < 0 || len > s->kv.len)
        return DG_FAIL(err, DG_E_ARG, "cannot cut at %lld: the log ends at %lld", (long long)len, (long long)s->kv.len);
    if (len > 0 && cut_cost(s, len))
        return DG_FAIL(err, DG_E_UNSUPPORTED, "the cache no longer holds the window before position %lld; rewind, which computes it again",
                       (long long)len);
    r->e->current = r->v;
    return len > 0 ? cut(r, len, err) : DG_OK;
}

static enum dg_status op_drop(struct run *r, struct dg_error *err) {
    (void)err;
    if (r->e->current == r->v)
        r->e->current = NULL;
    dg_conversation_drop(&r->e->all, r->v);
    r->v = NULL;
    return DG_OK;
}

static void say_route(struct run *r, const struct dg_route *to) {
    char text[256];
    long long n = (long long)r->op->n;
    if (to->how == DG_ROUTE_EXTEND)
        snprintf(text, sizeof text, "route: conversation %d, %lld of %lld prompt tokens are there, %lld to compute", to->conv, (long long)to->lcp, n,
                 (long long)to->cost);
    else if (to->how == DG_ROUTE_CUT)
        snprintf(text, sizeof text, "route: conversation %d, cut at %lld of %lld prompt tokens, %lld to compute", to->conv, (long long)to->lcp, n,
                 (long long)to->cost);
    else
        snprintf(text, sizeof text, "route: prefill of all %lld prompt tokens: the closest conversation shares %lld%s", n, (long long)to->best_lcp,
                 to->best_lcp ? ", too few, or behind them it holds too much or can no longer be cut" : "");
    note(r, text);
}

static enum dg_status op_route(struct run *r, struct dg_error *err) {
    struct dg_route *to = &r->a.route;
    for (size_t i = 0; i < r->op->n; i++)
        if (r->op->ids[i] < 0 || r->op->ids[i] >= r->e->all.be->model->cfg.vocab)
            return DG_FAIL(err, DG_E_ARG, "token id %d is outside the vocabulary", r->op->ids[i]);
    dg_conversation_route(&r->e->all, r->op->ids, r->op->n, to);
    if (to->conv) {
        r->e->current = r->v = dg_conversation_find(&r->e->all, to->conv);
        DG_TRY(cut(r, to->lcp, err));
    } else {
        DG_TRY(create(r, err));
        to->conv = r->v->id;
    }
    r->v->held = true;
    say_route(r, to);
    return DG_OK;
}

static enum dg_status op_release(struct run *r, struct dg_error *err) {
    (void)err;
    r->v->held = false;
    return DG_OK;
}

static enum dg_status op_save(struct run *r, struct dg_error *err) {
    if (!r->op->path)
        return DG_FAIL(err, DG_E_ARG, "saving needs a path");
    return dg_conversation_save(&r->e->all, r->v, r->op->path, err);
}

static enum dg_status op_load(struct run *r, struct dg_error *err) {
    struct dg_conversation *before = r->e->current;
    if (!r->op->path)
        return DG_FAIL(err, DG_E_ARG, "loading needs a path");
    DG_TRY(dg_conversation_check(&r->e->all, r->op->path, err));
    int32_t before_id = before ? before->id : 0;
    DG_TRY(create(r, err));
    enum dg_status st = dg_conversation_load(&r->e->all, r->v, r->op->path, err);
    if (st != DG_OK) {
        dg_conversation_drop(&r->e->all, r->v);
        r->v = r->e->current = dg_conversation_find(&r->e->all, before_id);
    }
    return st;
}

static enum dg_status op_fingerprint(struct run *r, struct dg_error *err) {
    return dg_kv_fingerprint(&r->v->s->kv, r->v->s->be, &r->a.fingerprint, err);
}

/* --- turns --- */

static enum dg_status check_gen(const struct dg_gen *g, const struct dg_config *c, struct dg_error *err) {
    const struct dg_commit_policy *p = &g->policy;
    if (g->sampler.vocab != c->vocab || p->vocab != c->vocab || p->canvas != c->canvas)
        return DG_FAIL(err, DG_E_ARG, "the generation options are of another model (vocabulary %d, canvas %d; here %d, %d)", g->sampler.vocab,
                       p->canvas, c->vocab, c->canvas);
    if (p->n_stops < 0 || p->n_stops > DG_STOPS_MAX)
        return DG_FAIL(err, DG_E_ARG, "%d stop tokens; at most %d", p->n_stops, DG_STOPS_MAX);
    if (p->retries < 0 || p->repeat_max < 0 || g->max_tokens < 0 || (g->first_step != DG_SC_SEED && g->first_step != DG_SC_NONE))
        return DG_FAIL(err, DG_E_ARG, "the generation options make no sense");
    for (int32_t i = 0; i < g->canvas_n; i++)
        if (g->canvas_ids[i] < 0 || g->canvas_ids[i] >= c->vocab)
            return DG_FAIL(err, DG_E_ARG, "canvas id %d is outside the vocabulary of %d", g->canvas_ids[i], c->vocab);
    return DG_OK;
}

/* Events of the turn go to whichever op drives it. */
static void aim(struct run *r) { r->v->turn.opts.ctx = r; }

static enum dg_status begin_turn(struct run *r, const struct dg_gen *g, struct dg_error *err) {
    const struct dg_engine_opts *o = &r->e->opts;
    DG_TRY(check_gen(g, r->v->s->cfg, err));
    struct dg_turn_opts t = {.seed = g->seed, .max_tokens = g->max_tokens, .sampler = g->sampler, .policy = g->policy, .first_step = g->first_step,
                             .extend_last = g->extend_last, .canvas_ids = g->canvas_ids, .canvas_n = g->canvas_n, .blank = o->blank,
                             .shows_nothing = o->shows_nothing, .text_ctx = o->text_ctx, .on_step = on_step, .on_block = on_block};
    DG_TRY(dg_turn_begin(&r->v->turn, r->v->s, &t, err));
    aim(r);
    return DG_OK;
}

static void answer_turn(struct run *r) {
    const struct dg_turn *t = &r->v->turn;
    r->a.ids = t->out.v;
    r->a.n = (int64_t)t->out.n;
    r->a.end = t->end;
    r->a.stop_id = t->stop_id;
    r->a.steps = t->steps;
    r->a.blocks = (int32_t)t->state.blocks;
}

/* A turn was taken back: positions it gave out are void. */
static void forget_turn(struct run *r) {
    if (r->v->turn.state.blocks > 0 || r->v->s->kv.len < r->v->turn.start)
        lineage_broke(r);
}

static enum dg_status op_generate(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    DG_TRY(begin_turn(r, r->op->gen ? r->op->gen : &r->e->opts.gen, err));
    enum dg_status st = dg_turn_run(&v->turn, err);
    answer_turn(r);
    if (st == DG_OK)
        v->turn_start = v->turn.start;
    else
        forget_turn(r);
    return st;
}

static enum dg_status op_begin(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    const struct dg_gen *g = r->op->gen ? r->op->gen : &r->e->opts.gen;
    int32_t *canvas = NULL;
    if (g->canvas_n > 0) {
        canvas = dg_calloc((size_t)g->canvas_n, sizeof *canvas);
        if (!canvas)
            return DG_FAIL(err, DG_E_NOMEM, "no memory for a canvas");
        memcpy(canvas, g->canvas_ids, (size_t)g->canvas_n * sizeof *canvas);
    }
    v->gen = *g;
    v->gen.canvas_ids = canvas;
    enum dg_status st = begin_turn(r, &v->gen, err);
    if (st != DG_OK) {
        dg_free(canvas);
        v->gen.canvas_ids = NULL;
        return st;
    }
    v->turn_open = true;
    v->proposed = false;
    return DG_OK;
}

static enum dg_status op_propose(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    struct dg_turn *t = &v->turn;
    if (v->proposed)
        return DG_FAIL(err, DG_E_ARG, "a proposal is there: commit or discard it first");
    if (r->op->len < 0 || r->op->len > v->s->cfg->canvas)
        return DG_FAIL(err, DG_E_ARG, "%lld positions; a canvas has 1 to %d", (long long)r->op->len, v->s->cfg->canvas);
    r->a.end = dg_turn_finished(t) ? t->end : DG_END_NONE;
    if (r->a.end != DG_END_NONE)
        return DG_FAIL(err, DG_E_LIMIT, "the turn has ended (%s): no further block", dg_turn_end_name(t->end));
    aim(r);
    DG_TRY(dg_turn_propose(t, (int32_t)r->op->len, err));
    struct dg_proposal *p = &r->a.proposal;
    *p = (struct dg_proposal){.ids = t->last.result, .p_max = v->s->p_max, .n = dg_sampler_n(t->sampler), .block = (int32_t)t->state.blocks,
                              .retries = t->retries, .steps = t->last.step, .mean_entropy = t->last.mean_entropy, .stop = t->last.stop,
                              .converged = t->last.converged};
    DG_TRY(dg_turn_plan(t, &p->plan, err));
    r->a.ids = p->ids;
    r->a.n = p->n;
    v->proposed = true;
    return DG_OK;
}

static enum dg_status op_commit(struct run *r, struct dg_error *err) {
    struct dg_conversation *v = r->v;
    if (!v->proposed)
        return DG_FAIL(err, DG_E_ARG, "there is no proposal to commit");
    aim(r);
    enum dg_status st = dg_turn_keep(&v->turn, r->op->kept, err);
    /* refused for what was asked, it can still be committed otherwise */
    v->proposed = st == DG_E_ARG || st == DG_E_LIMIT;
    r->a.end = dg_turn_finished(&v->turn) ? v->turn.end : DG_END_NONE;
    r->a.stop_id = v->turn.stop_id;
    return st;
}

static enum dg_status op_discard(struct run *r, struct dg_error *err) {
    if (!r->v->proposed)
        return DG_FAIL(err, DG_E_ARG, "there is no proposal to discard");
    r->v->proposed = false;
    dg_turn_discard(&r->v->turn);
    return DG_OK;
}

static enum dg_status op_end(struct run *r, struct dg_error *err) {
    (void)err;
    struct dg_conversation *v = r->v;
    v->turn_open = v->proposed = false;
    answer_turn(r);
    if (r->op->abandon) {
        dg_turn_abandon(&v->turn);
        forget_turn(r);
    } else
        v->turn_start = v->turn.start;
    return DG_OK;
}

static enum dg_status op_nothing(struct run *r, struct dg_error *err) {
    (void)r;
    (void)err;
    return DG_OK;
}

/* --- dispatch --- */

/* IN_TURN: only with an open turn; WITH_TURN: also with one; KEEPS_TURN: what moves the log is a turn or its finalizing */
enum { NEEDS_CONV = 1, CHECKS_AT = 2, IN_TURN = 4, WITH_TURN = 8, KEEPS_TURN = 16 };

static const struct {
    enum dg_status (*run)(struct run *r, struct dg_error *err);
    int needs;
} table[DG_OPS] = {
    [DG_OP_PING] = {op_nothing, WITH_TURN},
    [DG_OP_EXTEND] = {op_extend, NEEDS_CONV | CHECKS_AT},
    [DG_OP_GENERATE] = {op_generate, NEEDS_CONV | CHECKS_AT | KEEPS_TURN},
    [DG_OP_REWIND] = {op_rewind, NEEDS_CONV},
    [DG_OP_SPLICE] = {op_splice, NEEDS_CONV | CHECKS_AT},
    [DG_OP_FILL] = {op_fill, NEEDS_CONV | CHECKS_AT},
    [DG_OP_MARK] = {op_mark, NEEDS_CONV | CHECKS_AT},
    [DG_OP_ACTIVATE] = {op_activate, NEEDS_CONV},
    [DG_OP_DROP] = {op_drop, NEEDS_CONV},
    [DG_OP_FINALIZE] = {op_finalize, NEEDS_CONV | CHECKS_AT | KEEPS_TURN},
    [DG_OP_ALIGN] = {op_align, NEEDS_CONV | CHECKS_AT},
    [DG_OP_FINGERPRINT] = {op_fingerprint, NEEDS_CONV | CHECKS_AT | WITH_TURN},
    [DG_OP_ROUTE] = {op_route, WITH_TURN},
    [DG_OP_RELEASE] = {op_release, NEEDS_CONV | WITH_TURN},
    [DG_OP_SAVE] = {op_save, NEEDS_CONV | CHECKS_AT},
    [DG_OP_LOAD] = {op_load, WITH_TURN},
    [DG_OP_BEGIN_TURN] = {op_begin, NEEDS_CONV | CHECKS_AT},
    [DG_OP_PROPOSE] = {op_propose, NEEDS_CONV | IN_TURN},
    [DG_OP_COMMIT] = {op_commit, NEEDS_CONV | IN_TURN | KEEPS_TURN},
    [DG_OP_DISCARD] = {op_discard, NEEDS_CONV | IN_TURN},
    [DG_OP_END_TURN] = {op_end, NEEDS_CONV | IN_TURN | KEEPS_TURN},
    [DG_OP_SHUTDOWN] = {op_nothing, WITH_TURN},
};

static enum dg_status find_conversation(struct run *r, int needs, struct dg_error *err) {
    const struct dg_op *op = r->op;
    if (op->kind == DG_OP_ACTIVATE && op->conv == DG_CONV_NEW)
        return DG_OK;
    r->v = op->conv ? dg_conversation_find(&r->e->all, op->conv) : r->e->current;
    if (!r->v && op->conv)
        return DG_FAIL(err, DG_E_ARG, "there is no conversation %d (any more)", op->conv);
    if (!r->v && (needs & NEEDS_CONV))
        return DG_FAIL(err, DG_E_ARG, "no conversation is current: activate one");
    return DG_OK;
}

static enum dg_status check(struct run *r, int needs, struct dg_error *err) {
    const struct dg_op *op = r->op;
    if (op->n > DG_IDS_MAX || (op->n && !op->ids))
        return DG_FAIL(err, DG_E_ARG, "the op's token list makes no sense");
    DG_TRY(find_conversation(r, needs, err));
    if (op->cancel && atomic_load(op->cancel))
        return DG_FAIL(err, DG_E_CANCELLED, "cancelled before it began");
    const struct dg_conversation *v = r->v;
    if ((needs & CHECKS_AT) && op->at.epoch && (op->at.epoch != v->epoch || op->at.pos != v->s->kv.len))
        return DG_FAIL(err, DG_E_ARG, "stale position (epoch %llu, %lld): the log is at (epoch %llu, %lld)", (unsigned long long)op->at.epoch,
                       (long long)op->at.pos, (unsigned long long)v->epoch, (long long)v->s->kv.len);
    if ((needs & IN_TURN) && !v->turn_open)
        return DG_FAIL(err, DG_E_ARG, "no turn is open in conversation %d: begin one", v->id);
    bool plain_activate = op->kind == DG_OP_ACTIVATE && op->len == 0;
    if (v && v->turn_open && !(needs & (IN_TURN | WITH_TURN)) && !plain_activate)
        return DG_FAIL(err, DG_E_ARG, "a turn is open in conversation %d: end it first", v->id);
    return DG_OK;
}

/* A turn that no op can drive any more is put away after its answer, which shows its tokens. */
static void put_away_turn(struct dg_conversation *v) {
    if (v->turn_open || !v->turn.s)
        return;
    dg_turn_deinit(&v->turn);
    memset(&v->turn, 0, sizeof v->turn);
    dg_free((void *)v->gen.canvas_ids);
    v->gen.canvas_ids = NULL;
}

static void exec(struct dg_stage *stage, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct dg_engine *e = (struct dg_engine *)stage;
    struct dg_error err = {0};
    struct run r = {.e = e, .op = op, .emit = emit, .ctx = ctx, .a = {.op = op->kind, .stop_id = -1, .error = ""}};
    enum dg_status st = DG_OK;
    int64_t before = dg_conversations_computed(&e->all);
    e->n_ops++;
    if ((unsigned)op->kind >= DG_OPS)
        st = DG_FAIL(&err, DG_E_ARG, "there is no op %d", (int)op->kind);
    if (st == DG_OK)
        st = check(&r, table[op->kind].needs, &err);
    if (st == DG_OK) {
        /* the op may end on another conversation than it began with; sessions outlive their conversations */
        struct dg_session *s = r.v ? r.v->s : NULL;
        struct dg_event start = event_of(&r, DG_EV_ANSWER);
        if (s)
            s->cancel = op->cancel;
        st = table[op->kind].run(&r, &err);
        if (s)
            s->cancel = NULL;
        struct dg_event now = event_of(&r, DG_EV_ANSWER);
        bool moved = now.conv == start.conv && (now.at.epoch != start.at.epoch || now.at.pos != start.at.pos);
        if (moved && !(table[op->kind].needs & KEEPS_TURN) && !op->as_turn)
            r.v->turn_start = -1;
        if (r.v && (st == DG_OK || st == DG_E_CANCELLED))
            r.v->used = ++e->all.tick;
    }
    r.a.status = st;
    /* the same whichever check noticed it */
    r.a.error = st == DG_OK ? "" : st == DG_E_CANCELLED ? "cancelled" : dg_error_text(&err);
    r.a.computed = dg_conversations_computed(&e->all) - before;
    struct dg_event ev = event_of(&r, DG_EV_ANSWER);
    ev.answer = &r.a;
    emit(ctx, &ev);
    if (r.v)
        put_away_turn(r.v);
    dg_error_clear(&err);
}

/* --- life --- */

static void destroy(struct dg_stage *stage) {
    struct dg_engine *e = (struct dg_engine *)stage;
    dg_conversations_deinit(&e->all);
    dg_free(e);
}

enum dg_status dg_engine_create(struct dg_engine **out, struct dg_backend *be, const struct dg_engine_opts *opts, struct dg_error *err) {
    *out = NULL;
    struct dg_engine *e = dg_calloc(1, sizeof *e);
    if (!e)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the engine");
    e->stage = (struct dg_stage){exec, destroy, NULL};
    e->opts = *opts;
    size_t fit = opts->kv_budget ? dg_conversations_fit(be, &opts->session, opts->kv_budget) : 0, max = opts->conversations_max;
    max = !max ? (fit ? fit : 1) : fit && fit < max ? fit : max;
    enum dg_status st = dg_conversations_init(&e->all, be, &opts->session, max, err);
    int32_t evicted;
    if (st == DG_OK)
        st = dg_conversation_create(&e->all, &e->current, &evicted, err);
    if (st != DG_OK) {
        destroy(&e->stage);
        return st;
    }
    *out = e;
    return DG_OK;
}

struct dg_stage *dg_engine_stage(struct dg_engine *e) { return &e->stage; }
struct dg_backend *dg_engine_backend(struct dg_engine *e) { return e->all.be; }
struct dg_conversations *dg_engine_conversations(struct dg_engine *e) { return &e->all; }
struct dg_conversation *dg_engine_current(struct dg_engine *e) { return e->current; }
