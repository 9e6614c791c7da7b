#include "cli/front.h"

#include "pipeline/oplog.h"

#include <string.h>

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) { return dg_turn_text_shows_nothing(ctx, ids, n); }

static enum dg_status stages(struct dg_front *f, const struct dg_runtime *r, const struct dg_front_opts *o, struct dg_stage **top,
                             struct dg_error *err) {
    if (o->log.dir) {
        struct dg_oplog_head head = {dg_version(), r->dir, dg_model_id(r->model), r->be->ops->name, &f->opts, f->opts.conversations_max, true};
        DG_TRY(dg_stage_oplog(top, *top, o->log.dir, &head, o->log.sync, err));
    }
    if (o->check && o->repair)
        return dg_stage_repair(top, *top, o->check, err);
    if (o->check && o->retries > 0)
        return dg_stage_validate(top, *top, o->check, o->retries, err);
    return DG_OK;
}

enum dg_status dg_front_open(struct dg_front *f, struct dg_runtime *r, const struct dg_model_args *a, const struct dg_front_opts *o,
                             struct dg_error *err) {
    struct dg_engine *e;
    memset(f, 0, sizeof *f);
    DG_TRY(dg_turn_text_init(&f->text, r->tok, r->model->cfg.vocab, err));
    r->sessions = o->conversations;
    DG_TRY(dg_runtime_backend(r, a, &f->opts.session, err));
    double t = dg_now();
    f->opts.kv_budget = o->kv_budget;
    f->opts.conversations_max = o->conversations;
    dg_gen_init(&f->opts.gen, &r->model->cfg, &r->flags);
    dg_turn_text_policy(&f->text, &f->opts.gen.policy);
    f->opts.blank = f->text.blank;
    f->opts.shows_nothing = shows_nothing;
    f->opts.text_ctx = &f->text;
    DG_TRY(dg_engine_create(&e, r->be, &f->opts, err));
    const struct dg_session *s = dg_engine_current(e)->s;
    f->opts.conversations_max = dg_engine_conversations(e)->max;
    f->opts.kv_budget = 0; /* spent on the count above, which is what a log must say */
    f->ctx = s->kv.ctx;
    f->room = dg_session_room(s);
    struct dg_stage *top = dg_engine_stage(e);
    DG_TRY(stages(f, r, o, &top, err));
    DG_TRY(dg_pipeline_start(&f->p, top, 0, err));
    r->load_s += dg_now() - t;
    return DG_OK;
}

void dg_front_close(struct dg_front *f) {
    dg_pipeline_close(f->p);
    dg_turn_text_deinit(&f->text);
    memset(f, 0, sizeof *f);
}
