#include "sampler/sampler.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

struct dg_sampler {
    struct dg_sampler_params p;
    int32_t capacity, n, steps;
    bool running;
    struct dg_rng *rng;
    int32_t same_argmax, same_accept; /* previous steps in a row whose argmax canvas, accept mask equal the last one's */
    int32_t *canvas, *result, *heap;
    uint8_t *accept, *next_accept, *frozen;
};

const char *dg_stop_name(enum dg_stop_reason r) {
    switch (r) {
    case DG_STOP_NONE: return "none";
    case DG_STOP_CONFIDENT: return "confident";
    case DG_STOP_PLATEAU: return "plateau";
    case DG_STOP_ENTROPY: return "entropy";
    case DG_STOP_MAX_STEPS: return "max_steps";
    }
    return "unknown";
}

void dg_sampler_params_init(struct dg_sampler_params *p, const struct dg_config *cfg, const struct dg_flags *f) {
    struct dg_flags def;
    if (!f) {
        dg_flags_default(&def);
        f = &def;
    }
    *p = (struct dg_sampler_params){
        .vocab = cfg->vocab,
        .pad = cfg->pad,
        .steps_max = cfg->steps_max,
        .t_min = cfg->t_min,
        .t_max = cfg->t_max,
        .entropy_bound = cfg->entropy_bound,
        .stability = cfg->stability,
        .confidence = cfg->confidence,
        .argmax = f->denoiser_argmax,
        .freeze = f->freeze,
        .reference_stops = f->reference_stops,
        .entropy_stop = f->early_stop_mean_ent,
        .entropy_steps = 12,
        .plateau = 8,
        .plateau_entropy = 0.05,
    };
}

enum dg_status dg_sampler_params_check(const struct dg_sampler_params *p, struct dg_error *err) {
    if (p->vocab < 1)
        return DG_FAIL(err, DG_E_ARG, "the vocabulary must hold at least one token, not %d", p->vocab);
    if (p->steps_max < 1 || p->steps_max > DG_STEPS_MAX)
        return DG_FAIL(err, DG_E_ARG, "the number of denoise steps must be 1..%d, not %d", DG_STEPS_MAX, p->steps_max);
    if (!(p->t_min > 0 && p->t_min <= p->t_max && p->t_max <= 1000))
        return DG_FAIL(err, DG_E_ARG, "the temperatures must satisfy 0 < t_min <= t_max <= 1000, not %g and %g", p->t_min,
                       p->t_max);
    if (!(p->entropy_bound >= 0 && isfinite(p->entropy_bound)))
        return DG_FAIL(err, DG_E_ARG, "the entropy bound must be a finite number of at least 0, not %g", p->entropy_bound);
    if (p->stability < 0)
        return DG_FAIL(err, DG_E_ARG, "the stability threshold must be at least 0, not %d", p->stability);
    if (!(p->confidence >= 0 && p->entropy_stop >= 0 && p->plateau_entropy >= 0))
        return DG_FAIL(err, DG_E_ARG, "the mean entropies that stop a block must be at least 0, not %g, %g and %g", p->confidence,
                       p->entropy_stop, p->plateau_entropy);
    if (p->entropy_steps < 0 || p->plateau < 1)
        return DG_FAIL(err, DG_E_ARG,
                       "the steps before the entropy stop must be at least 0 and the plateau at least 1, not %d and %d",
                       p->entropy_steps, p->plateau);
    return DG_OK;
}

enum dg_status dg_sampler_create(struct dg_sampler **out, const struct dg_sampler_params *p, int32_t capacity,
                                 struct dg_error *err) {
    *out = NULL;
    DG_TRY(dg_sampler_params_check(p, err));
    if (capacity < 1 || capacity > DG_CANVAS_MAX)
        return DG_FAIL(err, DG_E_ARG, "a canvas must have 1..%d positions, not %d", DG_CANVAS_MAX, capacity);
    size_t cap = (size_t)capacity;
    struct dg_sampler *s = dg_calloc(1, sizeof *s);
    if (s) {
        s->p = *p;
        s->capacity = capacity;
        s->canvas = dg_calloc(cap, sizeof *s->canvas);
        s->result = dg_calloc(cap, sizeof *s->result);
        s->heap = dg_calloc(cap, sizeof *s->heap);
        s->accept = dg_calloc(cap, 1);
        s->next_accept = dg_calloc(cap, 1);
        s->frozen = dg_calloc(cap, 1);
    }
    if (!s || !s->canvas || !s->result || !s->heap || !s->accept || !s->next_accept || !s->frozen) {
        dg_sampler_destroy(s);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a canvas of %d positions", capacity);
    }
    *out = s;
    return DG_OK;
}

void dg_sampler_destroy(struct dg_sampler *s) {
    if (!s)
        return;
    dg_free(s->canvas);
    dg_free(s->result);
    dg_free(s->heap);
    dg_free(s->accept);
    dg_free(s->next_accept);
    dg_free(s->frozen);
    dg_free(s);
}

enum dg_status dg_sampler_configure(struct dg_sampler *s, const struct dg_sampler_params *p, struct dg_error *err) {
    DG_TRY(dg_sampler_params_check(p, err));
    s->p = *p;
    s->running = false;
    s->n = 0;
    return DG_OK;
}

static enum dg_status start(struct dg_sampler *s, int32_t n, struct dg_rng *rng, struct dg_error *err) {
    if (n < 1 || n > s->capacity)
        return DG_FAIL(err, DG_E_ARG, "a block of this session has 1..%d positions, not %d", s->capacity, n);
    s->n = n;
    s->rng = rng;
    s->steps = 0;
    s->running = true;
    memset(s->frozen, 0, (size_t)n);
    return DG_OK;
}

enum dg_status dg_sampler_begin(struct dg_sampler *s, int32_t n, struct dg_rng *rng, struct dg_error *err) {
    DG_TRY(start(s, n, rng, err));
    for (int32_t i = 0; i < n; i++)
        s->canvas[i] = dg_rng_id(rng, s->p.vocab);
    return DG_OK;
}

enum dg_status dg_sampler_begin_ids(struct dg_sampler *s, const int32_t *ids, int32_t n, struct dg_rng *rng,
                                    struct dg_error *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->p.vocab)
            return DG_FAIL(err, DG_E_ARG, "canvas id %d at position %d is outside the vocabulary of %d tokens", ids[i], i,
                           s->p.vocab);
    DG_TRY(start(s, n, rng, err));
    memcpy(s->canvas, ids, (size_t)n * sizeof *ids);
    return DG_OK;
}

const int32_t *dg_sampler_canvas(const struct dg_sampler *s) { return s->canvas; }
int32_t dg_sampler_n(const struct dg_sampler *s) { return s->n; }
int32_t dg_sampler_steps(const struct dg_sampler *s) { return s->steps; }

const struct dg_sampler_params *dg_sampler_params(const struct dg_sampler *s) { return &s->p; }
const struct dg_rng *dg_sampler_rng(const struct dg_sampler *s) { return s->rng; }

static float temperature(const struct dg_sampler_params *p, int32_t steps_left) {
    return (float)(p->t_min + (p->t_max - p->t_min) * ((double)steps_left / p->steps_max));
}

float dg_sampler_temperature(const struct dg_sampler *s) { return temperature(&s->p, s->p.steps_max - s->steps); }

float dg_sampler_next_temperature(const struct dg_sampler *s) { return temperature(&s->p, s->p.steps_max - s->steps - 1); }

/* Order of acceptance; a total order, so the result does not depend on how it is found. */
static bool before(const float *h, int32_t a, int32_t b) { return h[a] < h[b] || (h[a] == h[b] && a < b); }

static void sift_down(const float *h, int32_t *heap, int32_t n, int32_t i) {
    int32_t v = heap[i];
    for (int32_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && before(h, heap[c + 1], heap[c]))
            c++;
        if (!before(h, heap[c], v))
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

/* Fills next_accept. A heap instead of a sort: most positions are never looked at while the canvas is still noise. */
static int32_t accept(struct dg_sampler *s, const float *h) {
    int32_t n = 0, n_accepted = 0;
    for (int32_t i = 0; i < s->n; i++) {
        s->next_accept[i] = s->frozen[i];
        if (s->frozen[i])
            n_accepted++;
        else
            s->heap[n++] = i;
    }
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift_down(h, s->heap, n, i);
    double sum = 0;
    while (n > 0 && sum <= s->p.entropy_bound) {
        int32_t i = s->heap[0];
        s->next_accept[i] = 1;
        n_accepted++;
        sum += h[i];
        s->heap[0] = s->heap[--n];
        sift_down(h, s->heap, n, 0);
    }
    return n_accepted;
}

static bool nothing_but_filler(const struct dg_sampler *s) {
    for (int32_t i = 0; i < s->n; i++)
        if (s->result[i] != s->p.pad && s->result[i] != s->p.vocab - 1)
            return false;
    return true;
}

/* The first of this mode's tests that holds, max steps apart. */
static enum dg_stop_reason converged(const struct dg_sampler *s, double mean) {
    const struct dg_sampler_params *p = &s->p;
    if (!p->reference_stops && nothing_but_filler(s))
        return DG_STOP_NONE;
    if (s->same_argmax >= p->stability && mean < p->confidence)
        return DG_STOP_CONFIDENT;
    if (p->reference_stops)
        return DG_STOP_NONE;
    if (s->same_accept >= p->plateau - 1 && mean < p->plateau_entropy)
        return DG_STOP_PLATEAU;
    if (p->entropy_stop > 0 && s->steps >= p->entropy_steps && mean < p->entropy_stop)
        return DG_STOP_ENTROPY;
    return DG_STOP_NONE;
}

static enum dg_status check_step(const struct dg_sampler *s, const float *entropy, const int32_t *argmax, dg_draw_fn *draw,
                                 struct dg_error *err) {
    if (!s->running)
        return DG_FAIL(err, DG_E_ARG, "no block is in progress: begin one before a step");
    if (!s->p.argmax && !draw)
        return DG_FAIL(err, DG_E_ARG, "drawing tokens needs a draw function");
    for (int32_t i = 0; i < s->n; i++) {
        if (!isfinite(entropy[i]))
            return DG_FAIL(err, DG_E_NUMERIC, "the logits of step %d hold NaN or Inf at canvas position %d", s->steps + 1, i);
        if (argmax[i] < 0 || argmax[i] >= s->p.vocab)
            return DG_FAIL(err, DG_E_INTERNAL, "argmax %d at canvas position %d is outside the vocabulary of %d tokens",
                           argmax[i], i, s->p.vocab);
    }
    return DG_OK;
}

/* Accepted positions take their token, the others noise; in position order, since each draw moves the stream on. */
static enum dg_status fill(struct dg_sampler *s, const int32_t *argmax, dg_draw_fn *draw, void *ctx, struct dg_error *err) {
    for (int32_t i = 0; i < s->n; i++) {
        if (s->frozen[i])
            continue;
        if (!s->next_accept[i])
            s->canvas[i] = dg_rng_id(s->rng, s->p.vocab);
        else if (s->p.argmax)
            s->canvas[i] = argmax[i];
        else {
            s->canvas[i] = draw(ctx, i, dg_rng_uniform(s->rng));
            if (s->canvas[i] < 0 || s->canvas[i] >= s->p.vocab) {
                s->running = false;
                return DG_FAIL(err, DG_E_INTERNAL, "the token drawn at canvas position %d is outside the vocabulary", i);
            }
        }
    }
    return DG_OK;
}

static struct dg_step_result outcome(const struct dg_sampler *s, int32_t n_accepted, double mean, enum dg_stop_reason stop, bool why) {
    return (struct dg_step_result){
        .step = s->steps,
        .n_accepted = n_accepted,
        .mean_entropy = mean,
        .stop = stop,
        .converged = why,
        .accept = s->accept,
        .canvas = s->canvas,
        .result = s->result,
    };
}

enum dg_status dg_sampler_step(struct dg_sampler *s, const float *entropy, const int32_t *argmax, dg_draw_fn *draw, void *ctx,
                               struct dg_step_result *out, struct dg_error *err) {
    DG_TRY(check_step(s, entropy, argmax, draw, err));
    size_t n = (size_t)s->n;
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++)
        sum += entropy[i];
    double mean = sum / s->n;
    int32_t n_accepted = accept(s, entropy);
    bool same_accept = s->steps > 0 && !memcmp(s->accept, s->next_accept, n);
    DG_TRY(fill(s, argmax, draw, ctx, err));
    bool same_argmax = s->steps > 0;
    for (int32_t i = 0; i < s->n; i++) {
        bool kept = s->p.freeze && s->next_accept[i];
        int32_t id = kept ? s->canvas[i] : argmax[i];
        same_argmax = same_argmax && s->result[i] == id;
        s->result[i] = id;
        s->frozen[i] = kept;
    }
    memcpy(s->accept, s->next_accept, n);
    s->same_argmax = same_argmax ? s->same_argmax + 1 : 0;
    s->same_accept = same_accept ? s->same_accept + 1 : 0;
    s->steps++;
    enum dg_stop_reason why = converged(s, mean), stop = s->p.no_early_stop ? DG_STOP_NONE : why;
    if (stop == DG_STOP_NONE && s->steps == s->p.steps_max)
        stop = DG_STOP_MAX_STEPS;
    s->running = stop == DG_STOP_NONE;
    *out = outcome(s, n_accepted, mean, stop, why != DG_STOP_NONE);
    return DG_OK;
}

enum dg_status dg_sampler_adopt(struct dg_sampler *s, const struct dg_sampler_made *m, struct dg_step_result *out, struct dg_error *err) {
    if (!s->running)
        return DG_FAIL(err, DG_E_ARG, "no block is in progress: begin one before a step");
    if (m->step != s->steps + 1)
        return DG_FAIL(err, DG_E_INTERNAL, "step %d was made where step %d of the block was due", m->step, s->steps + 1);
    size_t n = (size_t)s->n;
    memcpy(s->accept, m->accept, n);
    memcpy(s->canvas, m->canvas, n * sizeof *s->canvas);
    memcpy(s->result, m->result, n * sizeof *s->result);
    if (s->p.freeze)
        memcpy(s->frozen, m->accept, n);
    s->same_argmax = m->same_argmax;
    s->same_accept = m->same_accept;
    s->steps = m->step;
    *s->rng = m->rng;
    s->running = m->stop == DG_STOP_NONE;
    *out = outcome(s, m->n_accepted, m->mean_entropy, m->stop, m->converged);
    return DG_OK;
}
