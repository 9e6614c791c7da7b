#include "pipeline/hold.h"
#include "pipeline/pipeline.h"
#include "pipeline/stage.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

struct validate_stage {
    struct dg_stage stage;
    struct dg_turn_check check;
    int32_t retries;
    struct dg_held held;
};

static void note(struct dg_held *h, const char *text) {
    struct dg_event e = {.kind = DG_EV_NOTE, .conv = h->event.conv, .at = h->event.at, .text = text};
    h->emit(h->ctx, &e);
}

/* One attempt; whether the turn is bad and another one may be made. On true the log is back at its start. */
static bool again(struct validate_stage *s, const struct dg_op *op, const struct dg_kv_id *start, int32_t tried) {
    struct dg_held *h = &s->held;
    struct dg_error err = {0};
    char text[160];
    int32_t invalid = 0;
    dg_held_clear(h);
    dg_stage_exec(s->stage.below, op, dg_held_event, h);
    if (h->answer.status != DG_OK)
        return false;
    enum dg_status st = s->check.check(s->check.ctx, h->turn.v, h->turn.n, h->answer.stop_id, &invalid, NULL, &err);
    if (st == DG_OK && invalid) {
        bool more = tried < s->retries;
        snprintf(text, sizeof text, "%d invalid tool call%s: %s", invalid, invalid == 1 ? "" : "s",
                 more ? "the turn is generated again with the next seed" : "no attempt is left, the turn stands");
        note(h, text);
        if (!more)
            return false;
        struct dg_op back = {.kind = DG_OP_REWIND, .conv = h->event.conv, .at = {h->event.at.epoch, start->pos}};
        st = dg_stage_call(s->stage.below, &back, NULL, NULL, NULL, &err);
        if (st == DG_OK)
            return true;
    }
    if (st != DG_OK) {
        h->answer.status = st;
        snprintf(h->error, sizeof h->error, "%s", dg_error_text(&err));
        dg_error_clear(&err);
    }
    return false;
}

static void exec(struct dg_stage *stage, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct validate_stage *s = (struct validate_stage *)stage;
    if (op->kind != DG_OP_GENERATE) {
        dg_stage_exec(stage->below, op, emit, ctx);
        return;
    }
    struct dg_op ping = {.kind = DG_OP_PING, .conv = op->conv};
    struct dg_result at = {0};
    struct dg_error err = {0};
    enum dg_status st = dg_stage_call(stage->below, &ping, NULL, NULL, &at, &err);
    if (st != DG_OK) {
        dg_stage_refuse(op, st, dg_error_text(&err), emit, ctx);
        dg_error_clear(&err);
        return;
    }
    struct dg_op run = *op;
    struct dg_gen gen = op->gen ? *op->gen : *s->check.gen;
    run.gen = &gen;
    s->held.emit = emit;
    s->held.ctx = ctx;
    for (int32_t tried = 0; again(s, &run, &at.at, tried); tried++) {
        gen.seed++;
        run.at = (struct dg_kv_id){0, 0}; /* the first attempt has checked it */
    }
    if (s->held.answer.status == DG_OK)
        dg_held_release(&s->held, s->held.turn.n);
    dg_held_answer(&s->held);
}

static void destroy(struct dg_stage *stage) {
    dg_held_deinit(&((struct validate_stage *)stage)->held);
    dg_free(stage);
}

enum dg_status dg_stage_validate(struct dg_stage **out, struct dg_stage *below, const struct dg_turn_check *check, int32_t retries,
                                 struct dg_error *err) {
    struct validate_stage *s = dg_calloc(1, sizeof *s);
    *out = s ? &s->stage : NULL;
    if (!s) {
        dg_stage_destroy(below);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a stage");
    }
    s->stage = (struct dg_stage){exec, destroy, below};
    s->check = *check;
    s->retries = retries;
    return DG_OK;
}
