#include "pipeline/stage.h"

#include "core/mem.h"

#include <string.h>

struct script_stage {
    struct dg_stage stage;
    const struct dg_script_turn *turns;
    size_t n, next;
};

/* What the Extend below does is told as the turn's own events: its answer becomes the turn's. */
struct playing {
    struct dg_answer extended;
    struct dg_event at;
};

static void on_event(void *ctx, const struct dg_event *e) {
    struct playing *p = ctx;
    if (e->kind != DG_EV_ANSWER)
        return;
    p->extended = *e->answer;
    p->at = *e;
}

static void tell_blocks(const struct dg_script_turn *t, const struct dg_event *at, int32_t blocks, dg_event_fn *emit, void *ctx) {
    size_t size = t->block ? t->block : t->n ? t->n : 1;
    for (int32_t i = 0; i < blocks; i++) {
        size_t from = (size_t)i * size, kept = t->n - from < size ? t->n - from : size;
        bool last = i + 1 == blocks;
        struct dg_block_event b = {.block = i, .ids = t->ids + from, .kept = (int32_t)kept, .steps = 1, .steps_all = 1, .accepted = (int32_t)kept,
                                   .stop = DG_STOP_CONFIDENT, .converged = true, .stop_id = last ? t->stop_id : -1};
        b.end = !last ? DG_END_NONE : t->stop_id >= 0 ? DG_END_STOP : DG_END_LENGTH;
        struct dg_event e = *at;
        e.kind = DG_EV_BLOCK;
        e.block = &b;
        e.answer = NULL;
        emit(ctx, &e);
    }
}

static void exec(struct dg_stage *stage, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct script_stage *s = (struct script_stage *)stage;
    if (op->kind != DG_OP_GENERATE) {
        dg_stage_exec(stage->below, op, emit, ctx);
        return;
    }
    if (s->next == s->n) {
        dg_stage_refuse(op, DG_E_LIMIT, "the script is over", emit, ctx);
        return;
    }
    const struct dg_script_turn *t = &s->turns[s->next++];
    struct dg_op put = {.kind = DG_OP_EXTEND, .conv = op->conv, .at = op->at, .ids = t->ids, .n = t->n, .as_turn = true, .cancel = op->cancel};
    struct playing p = {0};
    dg_stage_exec(stage->below, &put, on_event, &p);
    struct dg_answer a = p.extended;
    a.op = DG_OP_GENERATE;
    if (a.status == DG_OK) {
        size_t size = t->block ? t->block : t->n ? t->n : 1;
        a.blocks = a.steps = (int32_t)((t->n + size - 1) / size);
        tell_blocks(t, &p.at, a.blocks, emit, ctx);
        a.ids = t->ids;
        a.n = (int64_t)t->n;
        a.end = t->stop_id >= 0 ? DG_END_STOP : DG_END_LENGTH;
        a.stop_id = t->stop_id;
    } else
        a.error = "the scripted turn could not be put into the log";
    struct dg_event e = p.at;
    e.answer = &a;
    emit(ctx, &e);
}

static void destroy(struct dg_stage *s) { dg_free(s); }

enum dg_status dg_stage_script(struct dg_stage **out, struct dg_stage *below, const struct dg_script_turn *turns, size_t n, struct dg_error *err) {
    struct script_stage *s = dg_calloc(1, sizeof *s);
    *out = s ? &s->stage : NULL;
    if (!s) {
        dg_stage_destroy(below);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a stage");
    }
    *s = (struct script_stage){{exec, destroy, below}, turns, n, 0};
    return DG_OK;
}
