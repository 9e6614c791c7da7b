/* The entropy-bound sampler: from a step's row statistics to the accept mask, the next canvas and the decision to stop.
 *
 * Pure state machine: it sees entropies and argmaxes, never a model, a cache or text (seed sections 6 and 6.1; reference.md
 * section 4). One object serves a turn and is reused for all its blocks; after creation it allocates nothing.
 *
 * One block: dg_sampler_begin, then per step dg_sampler_temperature -> forward pass on dg_sampler_canvas -> row statistics of
 * softmax(logits / T) -> dg_sampler_step, until the result's `stop` is not DG_STOP_NONE. */
#ifndef DG_SAMPLER_SAMPLER_H
#define DG_SAMPLER_SAMPLER_H

#include "core/flags.h"
#include "core/status.h"
#include "model/config.h"
#include "sampler/rng.h"

struct dg_sampler_params {
    int32_t vocab, pad;
    int32_t steps_max; /* N, scheduled steps of a block; sets the temperatures too */
    double t_min, t_max;
    double entropy_bound;   /* nats */
    int32_t stability;      /* previous argmax canvases that must equal this one */
    double confidence;      /* mean entropy below which a stable canvas is done */
    bool argmax;            /* accepted positions take the argmax, else a draw */
    bool freeze;            /* legacy, see dg_sampler_step */
    bool reference_stops;   /* confident and max steps only, without the pad gate */
    bool no_early_stop;     /* max steps only */
    double entropy_stop;    /* mean entropy of the entropy-only stop; 0 = off */
    int32_t entropy_steps;  /* executed steps before which it never stops: 12 */
    int32_t plateau;        /* equal accept masks in a row, this step's counted: 8 */
    double plateau_entropy; /* and the mean entropy below which they stop the block: 0.05 */
};

enum dg_stop_reason {
    DG_STOP_NONE = 0,
    DG_STOP_CONFIDENT, /* stable argmax and low mean entropy */
    DG_STOP_PLATEAU,   /* accept mask unchanged for long and low mean entropy */
    DG_STOP_ENTROPY,   /* low mean entropy after the first steps */
    DG_STOP_MAX_STEPS  /* every scheduled step ran */
};
/* "none", "confident", "plateau", "entropy", "max_steps". A string literal. */
const char *dg_stop_name(enum dg_stop_reason r);

/* The outcome of one step. The arrays have n entries, belong to the sampler and hold until its next call. */
struct dg_step_result {
    int32_t step; /* executed steps of this block, this one counted */
    int32_t n_accepted;
    double mean_entropy; /* over the whole canvas, nats */
    enum dg_stop_reason stop;
    bool
        converged; /* one of this mode's tests other than max steps held after this step, whether or not it was allowed to stop */
    const uint8_t *accept; /* 1 = accepted in this step (with freeze: or in an earlier one) */
    const int32_t *canvas; /* input of the next step */
    const int32_t *result; /* what the block would commit now: this step's argmax (with freeze: kept tokens over it) */
};

/* The token drawn at position pos for the uniform number u in [0, 1): inverse CDF of softmax(logits / T) over ascending ids. */
typedef int32_t dg_draw_fn(void *ctx, int32_t pos, double u);

/* A step that was made elsewhere by the same rules. The arrays have as many entries as the block has positions and are copied. */
struct dg_sampler_made {
    int32_t step, same_argmax, same_accept, n_accepted;
    double mean_entropy;
    enum dg_stop_reason stop;
    bool converged;
    struct dg_rng rng; /* behind the step */
    const uint8_t *accept;
    const int32_t *canvas, *result;
};

struct dg_sampler;

/* Fills p from the model's defaults and the switches; f may be NULL (their defaults). A caller's own options (--steps,
 * --no-early-stop) are set on p afterwards. */
void dg_sampler_params_init(struct dg_sampler_params *p, const struct dg_config *cfg, const struct dg_flags *f);
/* DG_E_ARG naming the first parameter that makes no sense. */
enum dg_status dg_sampler_params_check(const struct dg_sampler_params *p, struct dg_error *err) DG_MUST_CHECK;

/* capacity: largest canvas, 1..DG_CANVAS_MAX. p is checked and copied. Owner: the caller, dg_sampler_destroy. One thread at a
 * time. Errors: DG_E_ARG, DG_E_NOMEM. */
enum dg_status dg_sampler_create(struct dg_sampler **out, const struct dg_sampler_params *p, int32_t capacity,
                                 struct dg_error *err) DG_MUST_CHECK;
void dg_sampler_destroy(struct dg_sampler *s); /* NULL is allowed */
/* Replaces the parameters; only between blocks (before dg_sampler_begin). Errors: DG_E_ARG, nothing changed. */
enum dg_status dg_sampler_configure(struct dg_sampler *s, const struct dg_sampler_params *p, struct dg_error *err) DG_MUST_CHECK;

/* Starts a block on n positions, 1..capacity (a re-roll may take fewer than the model's canvas) and draws every one in order.
 * rng is borrowed until the next begin. A block may be begun at any time; the one before it is forgotten. Errors: DG_E_ARG. */
enum dg_status dg_sampler_begin(struct dg_sampler *s, int32_t n, struct dg_rng *rng, struct dg_error *err) DG_MUST_CHECK;
/* The same from n given ids, each 0..vocab-1, without drawing. */
enum dg_status dg_sampler_begin_ids(struct dg_sampler *s, const int32_t *ids, int32_t n, struct dg_rng *rng,
                                    struct dg_error *err) DG_MUST_CHECK;
/* Canvas of the step about to run, n ids. Borrowed until the next call. */
const int32_t *dg_sampler_canvas(const struct dg_sampler *s);
/* Positions of the block, and its executed steps so far. */
int32_t dg_sampler_n(const struct dg_sampler *s);
int32_t dg_sampler_steps(const struct dg_sampler *s);
/* Temperature of the step about to run: t_min + (t_max - t_min) * cur / N with cur = N, N-1, .. 1. */
float dg_sampler_temperature(const struct dg_sampler *s);
/* The same of the step behind it; t_min behind the last. */
float dg_sampler_next_temperature(const struct dg_sampler *s);
/* What a block that is stepped elsewhere begins with: the rules, and where the stream stands. Borrowed until the next call; rng NULL before the
 * first block. */
const struct dg_sampler_params *dg_sampler_params(const struct dg_sampler *s);
const struct dg_rng *dg_sampler_rng(const struct dg_sampler *s);

/* One executed step. entropy: n values in nats of softmax(logits / T); argmax: n ids (ties: the lowest id). draw is needed when
 * p.argmax is false and may be NULL otherwise; out must not be NULL.
 *
 * Accept: positions by ascending entropy, equal ones by ascending position; each is accepted while the sum of the entropies
 * before it is at most the bound. Then, in position order, an accepted position takes the argmax (or a draw) and every other one
 * a fresh random id; each draw of either kind takes one number of the stream. The stops are tested after that, also on the last
 * step, in the order of enum dg_stop_reason.
 *
 * With freeze a position accepted in an earlier step of the block stays accepted with the token it took then, takes no part in
 * the sum of entropies and draws nothing; the mask, stability and result are those of the canvas with kept tokens in place; the
 * mean entropy is still that of all positions.
 *
 * Errors, with canvas, stream and step count as they were: DG_E_NUMERIC for an entropy that is not finite, DG_E_INTERNAL for an
 * argmax outside the vocabulary, DG_E_ARG without a block or after its stop (a failed block is begun anew, never committed). A
 * draw outside the vocabulary is DG_E_INTERNAL and ends the block. */
enum dg_status dg_sampler_step(struct dg_sampler *s, const float *entropy, const int32_t *argmax, dg_draw_fn *draw, void *ctx,
                               struct dg_step_result *out, struct dg_error *err) DG_MUST_CHECK;

/* Takes over a step: the sampler stands where dg_sampler_step would have left it, the stream too, and either may make the next one. Errors, with
 * nothing changed: DG_E_ARG without a block, DG_E_INTERNAL for a step that is not the next one. */
enum dg_status dg_sampler_adopt(struct dg_sampler *s, const struct dg_sampler_made *m, struct dg_step_result *out, struct dg_error *err)
    DG_MUST_CHECK;

#endif
