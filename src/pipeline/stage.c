#include "pipeline/stage.h"

void dg_stage_destroy(struct dg_stage *top) {
    while (top) {
        struct dg_stage *below = top->below;
        top->destroy(top);
        top = below;
    }
}

void dg_stage_refuse(const struct dg_op *op, enum dg_status status, const char *why, dg_event_fn *emit, void *ctx) {
    struct dg_answer a = {.op = op->kind, .status = status, .error = why, .stop_id = -1};
    struct dg_event e = {.kind = DG_EV_ANSWER, .answer = &a};
    emit(ctx, &e);
}
