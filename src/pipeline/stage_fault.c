#include "pipeline/engine.h"
#include "pipeline/stage.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

struct fault_stage {
    struct dg_stage stage;
    struct dg_engine *engine;
    struct dg_fault *faults;
    size_t n;
    /* the op in work */
    struct dg_fault *hits; /* NULL = none strikes it */
    atomic_bool *cancel;
    dg_event_fn *emit;
    void *ctx;
};

/* The next step's self-conditioning divides by these sums: NaN spreads to all of its rows. */
static void poison(struct fault_stage *f) {
    struct dg_conversation *v = dg_engine_current(f->engine);
    struct dg_backend *be = dg_engine_backend(f->engine);
    float nan = NAN;
    for (int32_t i = 0; i < v->s->cfg->canvas; i++)
        be->ops->write(be, v->s->planes->stats.sum + i, &nan, sizeof nan);
}

static void strike(struct fault_stage *f) {
    enum dg_status how = f->hits->status;
    f->hits = NULL;
    if (how == DG_E_CANCELLED)
        atomic_store(f->cancel, true);
    else if (how == DG_E_NUMERIC)
        poison(f);
    else
        dg_backend_fail(dg_engine_backend(f->engine), how, "injected fault");
}

static void on_event(void *ctx, const struct dg_event *e) {
    struct fault_stage *f = ctx;
    f->emit(f->ctx, e);
    if (f->hits && e->kind == DG_EV_STEP && e->step->block == f->hits->block && e->step->result->step == f->hits->step)
        strike(f);
}

static void exec(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct fault_stage *f = (struct fault_stage *)s;
    atomic_bool own = false;
    struct dg_op run = *op;
    if (!run.cancel)
        run.cancel = &own;
    f->hits = NULL;
    f->cancel = run.cancel;
    f->emit = emit;
    f->ctx = ctx;
    for (size_t i = 0; i < f->n && !f->hits; i++)
        if (f->faults[i].op == op->kind && f->faults[i].countdown > 0 && --f->faults[i].countdown == 0)
            f->hits = &f->faults[i];
    if (f->hits && op->kind != DG_OP_GENERATE && op->kind != DG_OP_PROPOSE)
        strike(f);
    dg_stage_exec(s->below, &run, on_event, f);
}

static void destroy(struct dg_stage *s) {
    dg_free(((struct fault_stage *)s)->faults);
    dg_free(s);
}

enum dg_status dg_stage_fault(struct dg_stage **out, struct dg_stage *below, struct dg_engine *engine, const struct dg_fault *faults, size_t n,
                              struct dg_error *err) {
    struct fault_stage *f = dg_calloc(1, sizeof *f);
    struct dg_fault *copy = dg_calloc(n, sizeof *copy);
    if (!f || !copy) {
        dg_free(f);
        dg_free(copy);
        dg_stage_destroy(below);
        *out = NULL;
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a stage");
    }
    if (n)
        memcpy(copy, faults, n * sizeof *copy);
    f->stage = (struct dg_stage){exec, destroy, below};
    f->engine = engine;
    f->faults = copy;
    f->n = n;
    *out = &f->stage;
    return DG_OK;
}
