#include "session/turn.h"

#include "core/mem.h"

#include <string.h>

enum dg_status dg_turn_begin(struct dg_turn *t, struct dg_session *s, const struct dg_turn_opts *opts, struct dg_error *err) {
    memset(t, 0, sizeof *t);
    t->s = s;
    t->opts = *opts;
    t->start = s->kv.len;
    t->budget = opts->max_tokens > 0 ? opts->max_tokens : s->kv.ctx - s->kv.len;
    t->stop_id = -1;
    dg_rng_init(&t->rng, opts->seed);
    if (opts->canvas_n < 0 || opts->canvas_n > s->cfg->canvas)
        return DG_FAIL(err, DG_E_ARG, "%d canvas ids, but a canvas holds %d", opts->canvas_n, s->cfg->canvas);
    DG_TRY(dg_sampler_create(&t->sampler, &opts->sampler, s->cfg->canvas, err));
    t->blank_rows = dg_calloc((size_t)s->cfg->canvas, 1);
    if (!t->blank_rows || dg_ids_reserve(&t->out, (size_t)(s->kv.ctx - s->kv.len)) != DG_OK) {
        dg_turn_deinit(t);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a turn");
    }
    return DG_OK;
}

void dg_turn_deinit(struct dg_turn *t) {
    dg_sampler_destroy(t->sampler);
    dg_ids_deinit(&t->out);
    dg_free(t->blank_rows);
    t->sampler = NULL;
    t->blank_rows = NULL;
}

bool dg_turn_finished(struct dg_turn *t) {
    if (t->end == DG_END_NONE)
        t->end = dg_commit_next(&t->opts.policy, &t->state, t->budget, t->s->kv.ctx, t->s->kv.len);
    return t->end != DG_END_NONE;
}

static enum dg_status begin_block(struct dg_turn *t, int32_t n, struct dg_error *err) {
    bool given = t->opts.canvas_n > 0 && t->state.blocks == 0 && t->retries == 0;
    if (given)
        return dg_sampler_begin_ids(t->sampler, t->opts.canvas_ids, t->opts.canvas_n, &t->rng, err);
    if (n == 0)
        n = t->retries ? dg_commit_reroll_size(t->opts.policy.canvas, t->retries) : t->opts.policy.canvas;
    return dg_sampler_begin(t->sampler, n, &t->rng, err);
}

/* Puts step and block before a step's numeric error, and what a user can do behind it. */
static void say_where(const struct dg_turn *t, struct dg_error *err) {
    struct dg_error why = {0};
    DG_FAIL(&why, DG_E_NUMERIC,
            "step %d of block %lld: %s; nothing of the block is kept. Check the model's files (a pack: diffgemma verify) and see in which layer it "
            "begins (diffgemma step-parity); DGQ_CHECK_LOGITS=0 goes on all the same",
            t->block_steps + 1, (long long)t->state.blocks + 1, dg_error_text(err));
    dg_error_clear(err);
    *err = why;
}

static enum dg_status run_steps(struct dg_turn *t, struct dg_steps *steps, struct dg_error *err) {
    do {
        if (dg_session_cancelled(t->s))
            return DG_FAIL(err, DG_E_CANCELLED, "cancelled");
        float temperature = dg_sampler_temperature(t->sampler);
        enum dg_status st = dg_steps_take(steps, &t->last, err);
        if (st == DG_E_NUMERIC)
            say_where(t, err);
        DG_TRY(st);
        t->steps++;
        t->block_steps++;
        if (t->last.stop == DG_STOP_NONE && !dg_session_cancelled(t->s))
            dg_steps_ahead(steps);
        if (t->opts.on_step) {
            struct dg_step_event e = {(int32_t)t->state.blocks, t->retries, t->opts.sampler.steps_max, temperature, &t->last, t->s->p_max,
                                      dg_sampler_n(t->sampler)};
            t->opts.on_step(t->opts.ctx, &e);
        }
    } while (t->last.stop == DG_STOP_NONE);
    return DG_OK;
}

enum dg_status dg_turn_propose(struct dg_turn *t, int32_t n, struct dg_error *err) {
    struct dg_steps steps;
    t->last.stop = DG_STOP_NONE;
    DG_TRY(begin_block(t, n, err));
    enum dg_status st = dg_steps_begin(&steps, t->s, t->sampler, t->opts.first_step, err);
    if (st == DG_OK)
        st = run_steps(t, &steps, err);
    dg_steps_end(&steps);
    return st;
}

/* Ids up to the first stop token. */
static int32_t before_stop(const struct dg_commit_policy *p, const int32_t *ids, int32_t n) {
    int32_t i = 0;
    while (i < n && !dg_commit_is_stop(p, ids[i]))
        i++;
    return i;
}

/* The decision, and the turn's state after it. */
static enum dg_status plan(struct dg_turn *t, struct dg_commit_turn *state, struct dg_commit *c, struct dg_error *err) {
    if (t->last.stop == DG_STOP_NONE)
        return DG_FAIL(err, DG_E_ARG, "there is no finished attempt to commit: propose one");
    const int32_t *ids = t->last.result;
    struct dg_commit_block b = {.ids = ids, .p_max = t->s->p_max, .n = dg_sampler_n(t->sampler), .retries = t->retries};
    if (t->opts.blank) {
        for (int32_t i = 0; i < b.n; i++)
            t->blank_rows[i] = t->opts.blank[ids[i]];
        b.blank = t->blank_rows;
    }
    if (t->opts.shows_nothing && t->state.blocks == 0)
        b.shows_nothing = t->opts.shows_nothing(t->opts.text_ctx, ids, before_stop(&t->opts.policy, ids, b.n));
    *state = t->state;
    return dg_commit_plan(&t->opts.policy, state, &b, t->budget, c, err);
}

enum dg_status dg_turn_plan(struct dg_turn *t, struct dg_commit *c, struct dg_error *err) {
    struct dg_commit_turn state;
    return plan(t, &state, c, err);
}

void dg_turn_discard(struct dg_turn *t) {
    t->retries++;
    t->last.stop = DG_STOP_NONE;
}

static enum dg_status keep(struct dg_turn *t, const struct dg_commit *c, const struct dg_commit_turn *state, struct dg_error *err) {
    const int32_t *ids = t->last.result;
    int64_t at = t->s->kv.len;
    if (c->kept > 0 && (c->end == DG_END_NONE || t->opts.extend_last)) {
        enum dg_status st = dg_session_append(t->s, ids, (size_t)c->kept, err);
        if (st != DG_OK) {
            dg_kv_cut(&t->s->kv, at);
            t->s->log.n = (size_t)at;
            return st;
        }
    }
    if (dg_ids_add(&t->out, ids, (size_t)c->kept) != DG_OK)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the turn's tokens");
    struct dg_block_event e = {.block = (int32_t)t->state.blocks, .ids = t->out.v + t->out.n - c->kept, .kept = c->kept, .steps = t->last.step,
                               .steps_all = t->block_steps, .accepted = t->last.n_accepted, .mean_entropy = t->last.mean_entropy,
                               .stop = t->last.stop, .retries = t->retries, .trimmed = c->trimmed, .converged = t->last.converged,
                               .degenerate = c->degenerate, .end = c->end, .stop_id = c->stop_id};
    t->state = *state;
    t->end = c->end;
    t->stop_id = c->stop_id;
    t->retries = t->block_steps = 0;
    t->last.stop = DG_STOP_NONE;
    if (t->opts.on_block)
        t->opts.on_block(t->opts.ctx, &e);
    return DG_OK;
}

enum dg_status dg_turn_keep(struct dg_turn *t, int32_t kept, struct dg_error *err) {
    struct dg_commit_turn state;
    struct dg_commit c;
    DG_TRY(plan(t, &state, &c, err));
    if (kept < 0 && c.reroll)
        return DG_FAIL(err, DG_E_ARG, "the policy wants this block run again; discard it, or say how many rows to keep");
    if (kept < 0 || (!c.reroll && kept == c.kept))
        return keep(t, &c, &state, err);
    if (kept > dg_sampler_n(t->sampler))
        return DG_FAIL(err, DG_E_ARG, "%d rows to keep of a block of %d", kept, dg_sampler_n(t->sampler));
    if (kept > t->budget - t->state.kept)
        return DG_FAIL(err, DG_E_LIMIT, "%d rows to keep, but the turn's budget leaves %lld", kept, (long long)(t->budget - t->state.kept));
    c = (struct dg_commit){.kept = kept, .stop_id = -1};
    c.end = kept == t->budget - t->state.kept ? DG_END_LENGTH : DG_END_NONE;
    state = t->state;
    dg_commit_advance(&t->opts.policy, &state, t->last.result, kept);
    return keep(t, &c, &state, err);
}

enum dg_status dg_turn_commit(struct dg_turn *t, bool *again, struct dg_error *err) {
    struct dg_commit_turn state;
    struct dg_commit c;
    DG_TRY(plan(t, &state, &c, err));
    *again = c.reroll > 0;
    if (!*again)
        return keep(t, &c, &state, err);
    dg_turn_discard(t);
    return DG_OK;
}

void dg_turn_abandon(struct dg_turn *t) {
    struct dg_error ignored = {0};
    const atomic_bool *cancel = t->s->cancel;
    t->s->cancel = NULL;
    if (t->s->kv.len > t->start && dg_session_rewind(t->s, t->start, NULL, NULL, &ignored) != DG_OK)
        dg_error_clear(&ignored);
    t->s->cancel = cancel;
}

enum dg_status dg_turn_run(struct dg_turn *t, struct dg_error *err) {
    enum dg_status st = DG_OK;
    while (st == DG_OK && !dg_turn_finished(t)) {
        bool again = false;
        do {
            st = dg_turn_propose(t, 0, err);
            if (st == DG_OK)
                st = dg_turn_commit(t, &again, err);
        } while (st == DG_OK && again);
    }
    if (st != DG_OK)
        dg_turn_abandon(t);
    return st;
}
