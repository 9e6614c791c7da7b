#include "pipeline/hold.h"
#include "pipeline/pipeline.h"
#include "pipeline/stage.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

struct repair_stage {
    struct dg_stage stage;
    struct dg_turn_check check;
    struct dg_held held;
    struct dg_ids feedback;
};

/* One Generate being repaired. */
struct repair {
    struct repair_stage *s;
    const struct dg_op *op;
    struct dg_gen gen;
    int32_t conv;
    struct dg_kv_id start, end; /* of the turn; of the log now */
    int32_t steps, blocks;      /* of the draft */
    int64_t computed;
};

static void note(struct dg_held *h, const char *text) {
    struct dg_event e = {.kind = DG_EV_NOTE, .conv = h->event.conv, .at = h->event.at, .text = text};
    h->emit(h->ctx, &e);
}

static enum dg_status call(struct repair *r, struct dg_op op, struct dg_error *err) {
    struct dg_result out = {0};
    op.conv = r->conv;
    enum dg_status st = dg_stage_call(r->s->stage.below, &op, NULL, NULL, &out, err);
    dg_ids_deinit(&out.ids);
    r->computed += out.computed;
    r->end = out.at;
    return st;
}

static enum dg_status generate(struct repair *r, struct dg_kv_id at, struct dg_error *err) {
    struct dg_held *h = &r->s->held;
    struct dg_op op = *r->op;
    op.conv = r->conv;
    op.gen = &r->gen;
    op.at = at;
    dg_held_clear(h);
    dg_stage_exec(r->s->stage.below, &op, dg_held_event, h);
    r->computed += h->answer.computed;
    r->end = h->event.at;
    return h->answer.status == DG_OK ? DG_OK : DG_FAIL(err, h->answer.status, "%s", h->error);
}

static void without_stop(struct dg_commit_policy *p, int32_t id) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_stops; i++)
        if (p->stops[i] != id)
            p->stops[n++] = p->stops[i];
    p->n_stops = n;
}

/* The draft's second answer becomes the turn; what led to it is cut away. */
static enum dg_status second_answer(struct repair *r, struct dg_error *err) {
    struct repair_stage *s = r->s;
    struct dg_held *h = &s->held;
    r->steps = h->answer.steps;
    r->blocks = h->answer.blocks;
    DG_TRY(call(r, (struct dg_op){.kind = DG_OP_EXTEND, .ids = s->feedback.v, .n = s->feedback.n, .cancel = r->op->cancel}, err));
    without_stop(&r->gen.policy, s->check.response_open);
    r->gen.canvas_ids = NULL;
    r->gen.canvas_n = 0;
    DG_TRY(generate(r, (struct dg_kv_id){0, 0}, err));
    size_t n = s->check.trim ? s->check.trim(s->check.ctx, h->turn.v, h->turn.n) : h->turn.n;
    h->turn.n = n < h->turn.n ? n : h->turn.n;
    DG_TRY(call(r, (struct dg_op){.kind = DG_OP_REWIND, .at = {r->end.epoch, r->start.pos}}, err));
    return call(r, (struct dg_op){.kind = DG_OP_EXTEND, .ids = h->turn.v, .n = h->turn.n, .as_turn = true}, err);
}

static enum dg_status run(struct repair *r, bool *repaired, struct dg_error *err) {
    struct repair_stage *s = r->s;
    struct dg_held *h = &s->held;
    int32_t invalid = 0;
    char text[160];
    *repaired = false;
    DG_TRY(generate(r, r->op->at, err));
    s->feedback.n = 0;
    DG_TRY(s->check.check(s->check.ctx, h->turn.v, h->turn.n, h->answer.stop_id, &invalid, &s->feedback, err));
    if (!invalid)
        return DG_OK;
    *repaired = true;
    snprintf(text, sizeof text, "%d invalid tool call%s: repaired in a draft", invalid, invalid == 1 ? "" : "s");
    note(h, text);
    return second_answer(r, err);
}

/* Whatever went wrong, the draft must not stay. */
static void give_up(struct repair *r) {
    struct dg_error err = {0};
    enum dg_status st = call(r, (struct dg_op){.kind = DG_OP_PING}, &err);
    if (st == DG_OK && r->end.pos > r->start.pos)
        st = call(r, (struct dg_op){.kind = DG_OP_REWIND, .at = {r->end.epoch, r->start.pos}}, &err);
    if (st != DG_OK)
        dg_error_clear(&err);
}

static void exec(struct dg_stage *stage, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct repair_stage *s = (struct repair_stage *)stage;
    if (op->kind != DG_OP_GENERATE) {
        dg_stage_exec(stage->below, op, emit, ctx);
        return;
    }
    struct dg_op ping = {.kind = DG_OP_PING, .conv = op->conv};
    struct dg_result at = {0};
    struct dg_error err = {0};
    bool repaired = false;
    enum dg_status st = dg_stage_call(stage->below, &ping, NULL, NULL, &at, &err);
    struct repair r = {.s = s, .op = op, .gen = op->gen ? *op->gen : *s->check.gen, .conv = at.conv, .start = at.at, .end = at.at};
    struct dg_held *h = &s->held;
    h->emit = emit;
    h->ctx = ctx;
    dg_held_clear(h);
    if (st == DG_OK)
        st = run(&r, &repaired, &err);
    if (st != DG_OK) {
        if (at.conv)
            give_up(&r);
    } else
        dg_held_release(h, h->turn.n);
    struct dg_answer a = h->answer;
    a.op = op->kind;
    a.status = st;
    a.error = st == DG_OK ? "" : dg_error_text(&err);
    a.computed = r.computed;
    a.steps += r.steps;
    a.blocks += r.blocks;
    a.ids = h->turn.v;
    a.n = st == DG_OK ? (int64_t)h->turn.n : 0;
    struct dg_event e = {.kind = DG_EV_ANSWER, .op = h->event.op, .conv = r.conv, .at = r.end, .answer = &a};
    emit(ctx, &e);
    dg_error_clear(&err);
}

static void destroy(struct dg_stage *stage) {
    struct repair_stage *s = (struct repair_stage *)stage;
    dg_held_deinit(&s->held);
    dg_ids_deinit(&s->feedback);
    dg_free(s);
}

enum dg_status dg_stage_repair(struct dg_stage **out, struct dg_stage *below, const struct dg_turn_check *check, struct dg_error *err) {
    struct repair_stage *s = dg_calloc(1, sizeof *s);
    *out = s ? &s->stage : NULL;
    if (!s) {
        dg_stage_destroy(below);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a stage");
    }
    s->stage = (struct dg_stage){exec, destroy, below};
    s->check = *check;
    return DG_OK;
}
