#include "session/steps.h"

#include <math.h>
#include <string.h>

_Static_assert((int)DG_SAMPLE_GOES_ON == DG_STOP_NONE && (int)DG_SAMPLE_CONFIDENT == DG_STOP_CONFIDENT &&
                   (int)DG_SAMPLE_PLATEAU == DG_STOP_PLATEAU && (int)DG_SAMPLE_ENTROPY == DG_STOP_ENTROPY &&
                   (int)DG_SAMPLE_MAX_STEPS == DG_STOP_MAX_STEPS,
               "reasons to stop");
_Static_assert(DG_SAMPLE_RNG_MUL == DG_RNG_MUL && DG_SAMPLE_RNG_ADD == DG_RNG_ADD, "the stream");

void dg_steps_write_block(struct dg_backend *be, const struct dg_sample *to, const struct dg_sample *at, const struct dg_sampler *sampler,
                          bool unchecked) {
    const struct dg_sampler_params *p = dg_sampler_params(sampler);
    memset(at->state, 0, dg_sample_bytes(at->rows));
    *at->rules = (struct dg_sample_rules){
        .entropy_bound = p->entropy_bound,
        .confidence = p->confidence,
        .entropy_stop = p->entropy_stop,
        .plateau_entropy = p->plateau_entropy,
        .t_min = p->t_min,
        .t_max = p->t_max,
        .n = dg_sampler_n(sampler),
        .vocab = p->vocab,
        .pad = p->pad,
        .steps_max = p->steps_max,
        .stability = p->stability,
        .entropy_steps = p->entropy_steps,
        .plateau = p->plateau,
        .freeze = p->freeze,
        .reference_stops = p->reference_stops,
        .no_early_stop = p->no_early_stop,
        .unchecked = unchecked,
        .entropy_most = logf((float)p->vocab),
    };
    *at->state = (struct dg_sample_state){.rng = dg_sampler_rng(sampler)->state, .running = 1, .wrong = -1};
    memcpy(at->canvas, dg_sampler_canvas(sampler), (size_t)dg_sampler_n(sampler) * sizeof *at->canvas);
    be->ops->write(be, to->state, at->state, dg_sample_bytes(at->rows));
}

enum dg_status dg_steps_adopt(struct dg_sampler *sampler, const struct dg_sample *at, struct dg_step_result *out, struct dg_error *err) {
    const struct dg_sample_state *s = at->state;
    if (s->bad && !at->rules->unchecked)
        return dg_session_bad_rows(s->bad, dg_sampler_n(sampler), s->bad_first, err);
    if (s->wrong >= 0)
        return DG_FAIL(err, DG_E_INTERNAL, "argmax %d at canvas position %d is outside the vocabulary of %d tokens", s->wrong_id, s->wrong,
                       at->rules->vocab);
    struct dg_sampler_made m = {.step = s->steps,
                                .same_argmax = s->same_argmax,
                                .same_accept = s->same_accept,
                                .n_accepted = s->n_accepted,
                                .mean_entropy = s->mean_entropy,
                                .stop = (enum dg_stop_reason)s->stop,
                                .converged = s->converged != 0,
                                .rng = {s->rng},
                                .accept = at->accept,
                                .canvas = at->canvas,
                                .result = at->result};
    return dg_sampler_adopt(sampler, &m, out, err);
}

enum dg_status dg_steps_begin(struct dg_steps *st, struct dg_session *s, struct dg_sampler *sampler, enum dg_sc_mode first, struct dg_error *err) {
    *st = (struct dg_steps){.s = s, .sampler = sampler, .sc = first};
    st->on_backend = s->sample.rows > 0 && dg_sampler_params(sampler)->argmax;
    if (st->on_backend)
        dg_steps_write_block(s->be, &s->planes->sample, &s->sample, sampler, s->opts.unchecked_logits);
    return dg_backend_status(s->be, err);
}

void dg_steps_end(struct dg_steps *st) { dg_error_clear(&st->late); }

static enum dg_status launch(struct dg_steps *st, struct dg_error *err) {
    struct dg_session *s = st->s;
    struct dg_denoise d = {NULL, dg_sampler_n(st->sampler), st->sc, s->opts.sc_sparse, 1.0f / dg_sampler_temperature(st->sampler)};
    return dg_forward_sample(s->be, s->planes, &s->kv, &d, 1.0f / dg_sampler_next_temperature(st->sampler), err);
}

void dg_steps_ahead(struct dg_steps *st) {
    if (st->on_backend && !st->under_way && st->late.code == DG_OK)
        st->under_way = launch(st, &st->late) == DG_OK;
}

struct draw_ctx {
    struct dg_session *s;
    struct dg_error why; /* of the first draw that failed */
};

/* The sampler refuses an id outside the vocabulary, so a failed draw ends the block there. */
static int32_t draw(void *ctx, int32_t pos, double u) {
    struct draw_ctx *d = ctx;
    int32_t id = -1;
    if (d->why.code == DG_OK && dg_session_draw(d->s, pos, u, &id, &d->why) != DG_OK)
        id = -1;
    return id;
}

static enum dg_status take_on_host(struct dg_steps *st, struct dg_step_result *out, struct dg_error *err) {
    struct dg_session *s = st->s;
    struct draw_ctx d = {.s = s};
    float inv_t = 1.0f / dg_sampler_temperature(st->sampler);
    DG_TRY(dg_session_step(s, dg_sampler_canvas(st->sampler), dg_sampler_n(st->sampler), st->sc, inv_t, err));
    enum dg_status status = dg_sampler_step(st->sampler, s->entropy, s->argmax, draw, &d, out, err);
    if (d.why.code != DG_OK) {
        status = DG_FAIL(err, d.why.code, "%s", dg_error_text(&d.why));
        dg_error_clear(&d.why);
    }
    return status;
}

enum dg_status dg_steps_take(struct dg_steps *st, struct dg_step_result *out, struct dg_error *err) {
    if (!st->on_backend) {
        DG_TRY(take_on_host(st, out, err));
        st->sc = DG_SC_SOFT;
        return DG_OK;
    }
    struct dg_session *s = st->s;
    if (st->late.code != DG_OK) {
        enum dg_status status = DG_FAIL(err, st->late.code, "%s", dg_error_text(&st->late));
        dg_error_clear(&st->late);
        return status;
    }
    if (!st->under_way)
        DG_TRY(launch(st, err));
    st->under_way = false;
    s->be->ops->read(s->be, s->sample.state, s->planes->sample.state, dg_sample_read_bytes(s->sample.rows));
    DG_TRY(dg_backend_status(s->be, err));
    DG_TRY(dg_steps_adopt(st->sampler, &s->sample, out, err));
    memcpy(s->p_max, s->sample.p_max, (size_t)dg_sampler_n(st->sampler) * sizeof *s->p_max);
    st->sc = DG_SC_SOFT;
    return DG_OK;
}
