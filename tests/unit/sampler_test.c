#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "sampler/sampler.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAP = 64, VOCAB = 1000, PAD = 0 };

static struct dg_error err;
static struct dg_rng rng;
static struct dg_sampler *s;
static struct dg_step_result res;
static float h[CAP];
static int32_t am[CAP];

static struct dg_config config(void) {
    struct dg_config c = {.vocab = VOCAB,
                          .pad = PAD,
                          .canvas = CAP,
                          .steps_max = 48,
                          .entropy_bound = 0.1,
                          .t_min = 0.4,
                          .t_max = 0.8,
                          .stability = 1,
                          .confidence = 0.005};
    return c;
}

static struct dg_sampler_params params(void) {
    struct dg_sampler_params p;
    struct dg_config c = config();
    dg_sampler_params_init(&p, &c, NULL);
    return p;
}

/* A sampler with these parameters and a begun block of n positions, seed 1. */
static void begin(struct dg_sampler_params p, int32_t n) {
    dg_sampler_destroy(s);
    assert_int_equal(dg_sampler_create(&s, &p, CAP, &err), DG_OK);
    dg_rng_init(&rng, 1);
    assert_int_equal(dg_sampler_begin(s, n, &rng, &err), DG_OK);
}

static int drop(void **state) {
    (void)state;
    dg_sampler_destroy(s);
    s = NULL;
    dg_error_clear(&err);
    return 0;
}

static enum dg_stop_reason step(void) {
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_OK);
    return res.stop;
}

/* Every position the same entropy, argmax ids 100 + salt .. */
static enum dg_stop_reason flat(float entropy, int32_t salt) {
    for (int i = 0; i < CAP; i++) {
        h[i] = entropy;
        am[i] = 100 + salt + i;
    }
    return step();
}

static void defaults_and_flags(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    assert_int_equal(p.steps_max, 48);
    assert_int_equal(p.entropy_steps, 12);
    assert_int_equal(p.plateau, 8);
    assert_true(p.plateau_entropy == 0.05 && p.entropy_stop == 0.05 && p.entropy_bound == 0.1);
    assert_true(p.t_min == 0.4 && p.t_max == 0.8 && p.confidence == 0.005);
    struct dg_config odd = config();
    odd.t_min = 0.123456789012345; /* the file's decimals arrive in full */
    dg_sampler_params_init(&p, &odd, NULL);
    assert_true(p.t_min == 0.123456789012345);
    p = params();
    assert_true(p.argmax && !p.freeze && !p.reference_stops && !p.no_early_stop);
    struct dg_flags f;
    dg_flags_default(&f);
    assert_int_equal(dg_flags_load(&f,
                                   (const char *const[]){"DGQ_DENOISER_ARGMAX=0", "DGQ_FREEZE=1", "DGQ_REFERENCE_STOPS=1",
                                                         "DGQ_EARLY_STOP_MEAN_ENT=0.2", NULL},
                                   &err),
                     DG_OK);
    struct dg_config c = config();
    dg_sampler_params_init(&p, &c, &f);
    assert_true(!p.argmax && p.freeze && p.reference_stops && p.entropy_stop == 0.2);
}

static void bad_parameters(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
#define BAD(change)                                                       \
    do {                                                                  \
        struct dg_sampler_params q = p;                                   \
        change;                                                           \
        assert_int_equal(dg_sampler_create(&s, &q, CAP, &err), DG_E_ARG); \
        assert_null(s);                                                   \
    } while (0)
    BAD(q.vocab = 0);
    BAD(q.steps_max = 0);
    BAD(q.steps_max = DG_STEPS_MAX + 1);
    BAD(q.t_min = 0);
    BAD(q.t_min = 0.9);
    BAD(q.t_max = NAN);
    BAD(q.entropy_bound = -1);
    BAD(q.entropy_bound = NAN);
    BAD(q.stability = -1);
    BAD(q.confidence = NAN);
    BAD(q.plateau = 0);
    assert_int_equal(dg_sampler_create(&s, &p, 0, &err), DG_E_ARG);
    assert_int_equal(dg_sampler_create(&s, &p, DG_CANVAS_MAX + 1, &err), DG_E_ARG);
    for (uint64_t k = 1; k <= 7; k++) {
        dg_mem_fail_at(k);
        assert_int_equal(dg_sampler_create(&s, &p, CAP, &err), DG_E_NOMEM);
        assert_null(s);
    }
    dg_mem_fail_at(0);
    assert_int_equal(dg_sampler_create(&s, &p, CAP, &err), DG_OK);
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_ARG); /* no block yet */
    assert_int_equal(dg_sampler_begin(s, 0, &rng, &err), DG_E_ARG);
    assert_int_equal(dg_sampler_begin(s, CAP + 1, &rng, &err), DG_E_ARG);
    int32_t ids[2] = {5, VOCAB};
    assert_int_equal(dg_sampler_begin_ids(s, ids, 2, &rng, &err), DG_E_ARG);
    ids[1] = -1;
    assert_int_equal(dg_sampler_begin_ids(s, ids, 2, &rng, &err), DG_E_ARG);
}

static void schedule(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.no_early_stop = true;
    begin(p, CAP);
    float last = 1;
    for (int cur = 48; cur >= 1; cur--) {
        float t = dg_sampler_temperature(s);
        assert_true(t == (float)(0.4 + 0.4 * (cur / 48.0)));
        assert_true(t < last);
        last = t;
        assert_int_equal(flat(1, 0), cur == 1 ? DG_STOP_MAX_STEPS : DG_STOP_NONE);
        assert_int_equal(res.step, 49 - cur);
    }
    assert_true(fabs((double)last - (0.4 + 0.4 / 48)) < 1e-7);
    assert_false(res.converged);
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_ARG); /* the block is over */
    p.steps_max = 1;
    begin(p, CAP);
    assert_true(dg_sampler_temperature(s) == 0.8f);
    assert_int_equal(flat(1, 0), DG_STOP_MAX_STEPS);
}

static void canvas_of_a_block(void **state) {
    (void)state;
    begin(params(), 3);
    assert_int_equal(dg_sampler_n(s), 3);
    /* seed 1: high halves 3, 2808590400, 2876103033, then 1177349226 */
    const int32_t want[3] = {3, 400, 33};
    assert_memory_equal(dg_sampler_canvas(s), want, sizeof want);
    assert_int_equal(dg_rng_id(&rng, VOCAB), 226);
    const int32_t ids[4] = {9, 8, 7, VOCAB - 1};
    struct dg_rng before = rng;
    assert_int_equal(dg_sampler_begin_ids(s, ids, 4, &rng, &err), DG_OK);
    assert_memory_equal(dg_sampler_canvas(s), ids, sizeof ids);
    assert_true(rng.state == before.state);
    assert_int_equal(dg_sampler_steps(s), 0);
}

static void accept_rule(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.entropy_bound = 0.25;
    begin(p, 6);
    /* ascending: 3 (.0625), 1 (.125), 5 (.125), 0 (.25), ...: sums before: 0, .0625, .1875, .3125 */
    const float e[6] = {0.25f, 0.125f, 0.5f, 0.0625f, 2, 0.125f};
    memcpy(h, e, sizeof e);
    for (int i = 0; i < 6; i++)
        am[i] = 500 + i;
    struct dg_rng expect = rng;
    step();
    const uint8_t want[6] = {0, 1, 0, 1, 0, 1};
    assert_memory_equal(res.accept, want, sizeof want);
    assert_int_equal(res.n_accepted, 3);
    assert_true(fabs(res.mean_entropy - 3.0625 / 6) < 1e-12);
    /* accepted positions hold the argmax, the others the stream's next ids in position order */
    for (int i = 0; i < 6; i++)
        assert_int_equal(res.canvas[i], want[i] ? 500 + i : dg_rng_id(&expect, VOCAB));
    assert_true(rng.state == expect.state);
    for (int i = 0; i < 6; i++)
        assert_int_equal(res.result[i], 500 + i);
    assert_ptr_equal(res.canvas, dg_sampler_canvas(s));
}

static void accept_edges(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.no_early_stop = true;
    p.entropy_bound = 0.25;
    begin(p, 4);
    /* the lowest is accepted however high; equal ones by position */
    for (int i = 0; i < 4; i++)
        h[i] = 5, am[i] = 1;
    step();
    assert_memory_equal(res.accept, "\1\0\0\0", 4);
    /* a sum of exactly the bound still accepts, the one that crosses it is in, the next is not */
    h[0] = 0.25f, h[1] = 7, h[2] = 7, h[3] = 9;
    step();
    assert_memory_equal(res.accept, "\1\1\0\0", 4);
    /* decided anew each step: position 0 falls out again and gets noise */
    h[0] = 9, h[1] = 7, h[2] = 7, h[3] = 9;
    step();
    assert_memory_equal(res.accept, "\0\1\0\0", 4);
    /* both zeros are equal, a slightly negative rounding error comes first */
    h[0] = 0.0f, h[1] = -0.0f, h[2] = -1e-7f, h[3] = 0.5f;
    p.entropy_bound = 0;
    assert_int_equal(dg_sampler_configure(s, &p, &err), DG_OK);
    assert_int_equal(dg_sampler_begin(s, 4, &rng, &err), DG_OK);
    step();
    assert_memory_equal(res.accept, "\1\1\1\1", 4); /* sums before: 0, -1e-7, -1e-7, -1e-7 */
    h[2] = 0;
    step();
    assert_memory_equal(res.accept, "\1\1\1\1", 4); /* the three zeros and the one that crosses */
    h[2] = 0.5f;
    step();
    assert_memory_equal(res.accept, "\1\1\1\0", 4);
}

/* The lost first word: stability k asks for k previous canvases equal to this one, so k = 1 cannot hold at the first step. */
static void confident_stop(void **state) {
    (void)state;
    begin(params(), CAP);
    assert_int_equal(flat(0.001f, 0), DG_STOP_NONE);
    assert_int_equal(flat(0.001f, 0), DG_STOP_CONFIDENT);
    assert_true(res.converged);
    assert_int_equal(res.step, 2);

    begin(params(), CAP);
    assert_int_equal(flat(0.001f, 0), DG_STOP_NONE);
    assert_int_equal(flat(0.001f, 1), DG_STOP_NONE);  /* another canvas */
    assert_int_equal(flat(0.0051f, 1), DG_STOP_NONE); /* stable, not confident */
    assert_int_equal(flat(0.0049f, 1), DG_STOP_CONFIDENT);

    struct dg_sampler_params p = params();
    p.stability = 3;
    begin(p, CAP);
    for (int i = 0; i < 3; i++)
        assert_int_equal(flat(0.001f, 0), DG_STOP_NONE);
    assert_int_equal(flat(0.001f, 0), DG_STOP_CONFIDENT);
    p.stability = 0;
    begin(p, CAP);
    assert_int_equal(flat(0.001f, 0), DG_STOP_CONFIDENT);

    /* one changed position is a changed canvas; a new block remembers nothing of the last */
    begin(params(), CAP);
    assert_int_equal(flat(0.001f, 0), DG_STOP_NONE);
    am[CAP - 1]++;
    assert_int_equal(step(), DG_STOP_NONE);
    assert_int_equal(dg_sampler_begin(s, CAP, &rng, &err), DG_OK);
    assert_int_equal(step(), DG_STOP_NONE);
    assert_int_equal(step(), DG_STOP_CONFIDENT);
}

static void plateau_stop(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.entropy_stop = 0;
    begin(p, CAP);
    for (int i = 1; i <= 7; i++)
        assert_int_equal(flat(0.04f, i), DG_STOP_NONE); /* the argmax changes all the time */
    assert_int_equal(flat(0.04f, 8), DG_STOP_PLATEAU);
    assert_int_equal(res.step, 8);

    /* masks of the block before do not count */
    p.confidence = 0;
    begin(p, CAP);
    for (int i = 1; i <= 7; i++)
        assert_int_equal(flat(0.04f, i), DG_STOP_NONE);
    assert_int_equal(dg_sampler_begin(s, CAP, &rng, &err), DG_OK);
    for (int i = 1; i <= 7; i++)
        assert_int_equal(flat(0.04f, i), DG_STOP_NONE);
    assert_int_equal(flat(0.04f, 1), DG_STOP_PLATEAU);

    p.confidence = 0.005;
    begin(p, CAP);
    for (int i = 1; i <= 20; i++)
        assert_int_equal(flat(0.051f, i), DG_STOP_NONE);
    /* the masks were equal all along, only the mean entropy was missing */
    for (int i = 0; i < CAP; i++)
        h[i] = i < 2 ? 0.051f : 0.0495f;
    assert_int_equal(step(), DG_STOP_NONE); /* positions 2.. come first now: another mask */
    for (int i = 0; i < 6; i++)
        assert_int_equal(step(), DG_STOP_NONE);
    assert_int_equal(step(), DG_STOP_PLATEAU);
}

static void entropy_stop(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.plateau = 1000;
    begin(p, CAP);
    for (int i = 1; i <= 11; i++)
        assert_int_equal(flat(0.04f, i), DG_STOP_NONE);
    assert_int_equal(flat(0.04f, 12), DG_STOP_ENTROPY);
    assert_int_equal(res.step, 12);
    begin(p, CAP);
    for (int i = 1; i <= 20; i++)
        assert_int_equal(flat(0.0501f, i), DG_STOP_NONE);
    assert_int_equal(flat(0.0499f, 21), DG_STOP_ENTROPY);
    p.entropy_stop = 0;
    begin(p, CAP);
    for (int i = 1; i <= 47; i++)
        assert_int_equal(flat(0.01f, i), DG_STOP_NONE);
    assert_int_equal(flat(0.01f, 48), DG_STOP_MAX_STEPS);
    assert_false(res.converged);
    /* off is off, also for a mean that rounding left below zero */
    p.confidence = 0;
    begin(p, CAP);
    for (int i = 1; i <= 20; i++)
        assert_int_equal(flat(-1e-7f, i), DG_STOP_NONE);
}

/* A canvas of padding and filler only never counts as an answer, in the seed's set of stops. */
static void pad_gate(void **state) {
    (void)state;
    for (int filler = 0; filler < 3; filler++) {
        begin(params(), CAP);
        for (int i = 0; i < CAP; i++) {
            h[i] = 0;
            am[i] = filler == 0 ? PAD : filler == 1 ? VOCAB - 1 : i % 2 ? PAD : VOCAB - 1;
        }
        for (int n = 1; n < 48; n++)
            assert_int_equal(step(), DG_STOP_NONE);
        assert_int_equal(step(), DG_STOP_MAX_STEPS);
        assert_false(res.converged);
    }
    begin(params(), CAP);
    for (int i = 0; i < CAP; i++)
        am[i] = i == 40 ? 1 : PAD; /* one real token lifts the gate */
    assert_int_equal(step(), DG_STOP_NONE);
    assert_int_equal(step(), DG_STOP_CONFIDENT);
    struct dg_sampler_params p = params();
    p.reference_stops = true;
    begin(p, CAP);
    memset(am, 0, sizeof am);
    assert_int_equal(step(), DG_STOP_NONE);
    assert_int_equal(step(), DG_STOP_CONFIDENT);
}

static void reference_and_no_early_stops(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.reference_stops = true;
    begin(p, CAP);
    for (int i = 1; i <= 30; i++)
        assert_int_equal(flat(0.01f, i), DG_STOP_NONE); /* neither plateau nor entropy */
    assert_int_equal(flat(0.004f, 30), DG_STOP_CONFIDENT);
    p = params();
    p.no_early_stop = true;
    begin(p, CAP);
    for (int i = 1; i < 48; i++) {
        assert_int_equal(flat(0, 0), DG_STOP_NONE);
        assert_int_equal(res.converged, i >= 2);
    }
    assert_int_equal(flat(0, 0), DG_STOP_MAX_STEPS);
    assert_true(res.converged);
    /* a stop that holds at the last scheduled step is named, not max steps */
    p = params();
    p.steps_max = 2;
    begin(p, CAP);
    flat(0, 0);
    assert_int_equal(flat(0, 0), DG_STOP_CONFIDENT);
}

/* A failed step changes nothing: no draw, no canvas, no step counted. */
static void failed_steps(void **state) {
    (void)state;
    begin(params(), CAP);
    flat(1, 0);
    int32_t canvas[CAP];
    memcpy(canvas, dg_sampler_canvas(s), sizeof canvas);
    struct dg_rng before = rng;
    static const float poison[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        float keep = h[CAP - 1];
        h[CAP - 1] = poison[i];
        assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_NUMERIC);
        assert_non_null(strstr(dg_error_text(&err), "step 2"));
        h[CAP - 1] = keep;
    }
    int32_t keep = am[7];
    am[7] = VOCAB;
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_INTERNAL);
    am[7] = -1;
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_INTERNAL);
    am[7] = keep;
    assert_true(rng.state == before.state);
    assert_memory_equal(dg_sampler_canvas(s), canvas, sizeof canvas);
    assert_int_equal(dg_sampler_steps(s), 1);
    assert_int_equal(flat(1, 0), DG_STOP_NONE);
    assert_int_equal(res.step, 2);
}

struct draws {
    int n;
    int32_t pos[CAP];
    double u[CAP];
    int32_t give;
};

static int32_t draw(void *ctx, int32_t pos, double u) {
    struct draws *d = ctx;
    d->pos[d->n] = pos;
    d->u[d->n++] = u;
    return d->give < 0 ? d->give : d->give + pos;
}

static void drawn_tokens(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.argmax = false;
    p.entropy_bound = 0.25;
    begin(p, 4);
    assert_int_equal(dg_sampler_step(s, h, am, NULL, NULL, &res, &err), DG_E_ARG);
    const float e[4] = {0.125f, 9, 0.0625f, 3};
    memcpy(h, e, sizeof e);
    for (int i = 0; i < 4; i++)
        am[i] = 700 + i;
    struct dg_rng expect = rng;
    struct draws d = {.give = 200};
    assert_int_equal(dg_sampler_step(s, h, am, draw, &d, &res, &err), DG_OK);
    assert_memory_equal(res.accept, "\1\0\1\1", 4); /* sums before: .0625 at 0, 0 at 2, .1875 at 3 */
    double u0 = dg_rng_uniform(&expect);
    int32_t id1 = dg_rng_id(&expect, VOCAB);
    double u2 = dg_rng_uniform(&expect), u3 = dg_rng_uniform(&expect);
    assert_int_equal(d.n, 3);
    assert_true(d.pos[0] == 0 && d.pos[1] == 2 && d.pos[2] == 3);
    assert_true(d.u[0] == u0 && d.u[1] == u2 && d.u[2] == u3);
    const int32_t want[4] = {200, id1, 202, 203};
    assert_memory_equal(res.canvas, want, sizeof want);
    assert_int_equal(res.result[0], 700); /* a block's result is the argmax all the same */
    assert_true(rng.state == expect.state);
    d = (struct draws){.give = -1};
    assert_int_equal(dg_sampler_step(s, h, am, draw, &d, &res, &err), DG_E_INTERNAL);
    assert_int_equal(dg_sampler_step(s, h, am, draw, &d, &res, &err), DG_E_ARG);
}

static void freeze(void **state) {
    (void)state;
    struct dg_sampler_params p = params();
    p.freeze = true;
    begin(p, 4);
    const float e[4] = {0.2f, 9, 8, 7};
    memcpy(h, e, sizeof e);
    for (int i = 0; i < 4; i++)
        am[i] = 300 + i;
    struct dg_rng expect = rng;
    step();
    assert_memory_equal(res.accept, "\1\0\0\0", 4);
    for (int i = 0; i < 3; i++)
        dg_rng_id(&expect, VOCAB);
    /* position 0 is uncertain now and has another argmax: it stays, and is no part of the sum, so one more is accepted */
    h[0] = 9;
    for (int i = 0; i < 4; i++)
        am[i] = 400 + i;
    step();
    assert_memory_equal(res.accept, "\1\0\0\1", 4);
    assert_int_equal(res.n_accepted, 2);
    assert_int_equal(res.canvas[0], 300);
    assert_int_equal(res.canvas[3], 403);
    assert_int_equal(res.canvas[1], dg_rng_id(&expect, VOCAB));
    assert_int_equal(res.canvas[2], dg_rng_id(&expect, VOCAB));
    assert_true(rng.state == expect.state);
    const int32_t result[4] = {300, 401, 402, 403};
    assert_memory_equal(res.result, result, sizeof result);
    step();
    step();
    assert_memory_equal(res.accept, "\1\1\1\1", 4);
    assert_int_equal(res.canvas[0], 300);
    expect = rng;
    /* all kept: nothing is drawn, and the canvas is stable whatever the argmax does */
    for (int i = 0; i < 4; i++)
        h[i] = 0, am[i] = 999;
    assert_int_equal(step(), DG_STOP_CONFIDENT);
    assert_memory_equal(res.result, result, sizeof result);
    assert_true(rng.state == expect.state);
    assert_int_equal(dg_sampler_begin(s, 4, &rng, &err), DG_OK);
    h[0] = 9, h[1] = 1;
    step();
    assert_memory_equal(res.accept, "\0\1\1\1", 4); /* kept tokens end with their block */
}

/* A second implementation, written plainly: whole history kept, positions picked by repeated search. */
struct naive {
    int n, steps;
    int32_t argmax[64][CAP];
    uint8_t mask[64][CAP];
    int32_t canvas[CAP];
    uint64_t state;
};

static uint32_t naive_next(struct naive *v) {
    v->state = v->state * 6966169279u + 1039523323u;
    return (uint32_t)(v->state >> 32);
}

static enum dg_stop_reason naive_step(struct naive *v, const struct dg_sampler_params *p, double *mean) {
    int k = v->steps++;
    uint8_t *mask = v->mask[k];
    memset(mask, 0, CAP);
    memcpy(v->argmax[k], am, sizeof am);
    for (double before = 0; before <= p->entropy_bound;) {
        int best = -1;
        for (int i = 0; i < v->n; i++)
            if (!mask[i] && (best < 0 || h[i] < h[best]))
                best = i;
        if (best < 0)
            break;
        mask[best] = 1;
        before += h[best];
    }
    *mean = 0;
    int filler = 0;
    for (int i = 0; i < v->n; i++) {
        v->canvas[i] = mask[i] ? am[i] : (int32_t)(naive_next(v) % VOCAB);
        *mean += h[i];
        filler += am[i] == PAD || am[i] == VOCAB - 1;
    }
    *mean /= v->n;
    bool stable = k >= p->stability, level = k >= p->plateau - 1;
    for (int j = 1; stable && j <= p->stability; j++)
        stable = !memcmp(v->argmax[k - j], v->argmax[k], (size_t)v->n * 4);
    for (int j = 1; level && j < p->plateau; j++)
        level = !memcmp(v->mask[k - j], mask, (size_t)v->n);
    bool open = filler < v->n;
    if (p->reference_stops ? stable && *mean < p->confidence : open && stable && *mean < p->confidence)
        return DG_STOP_CONFIDENT;
    if (!p->reference_stops && open && level && *mean < p->plateau_entropy)
        return DG_STOP_PLATEAU;
    if (!p->reference_stops && open && p->entropy_stop > 0 && v->steps >= 12 && *mean < p->entropy_stop)
        return DG_STOP_ENTROPY;
    return v->steps == p->steps_max ? DG_STOP_MAX_STEPS : DG_STOP_NONE;
}

static void against_naive(void **state) {
    (void)state;
    struct dg_rng dice;
    dg_rng_init(&dice, 20240607);
    int stops[5] = {0}, steps = 0;
    for (int trial = 0; trial < 3000; trial++) {
        struct dg_sampler_params p = params();
        p.steps_max = 1 + dg_rng_id(&dice, 48);
        p.stability = dg_rng_id(&dice, 4);
        p.entropy_bound = dg_rng_id(&dice, 3) ? 0.1 : 4 * dg_rng_uniform(&dice);
        p.reference_stops = dg_rng_id(&dice, 4) == 0;
        p.entropy_stop = dg_rng_id(&dice, 3) ? 0.05 : 0;
        begin(p, 1 + dg_rng_id(&dice, CAP));
        static struct naive v;
        memset(&v, 0, sizeof v);
        v.n = dg_sampler_n(s);
        v.state = 2;
        for (int i = 0; i < v.n; i++)
            assert_int_equal(dg_sampler_canvas(s)[i], naive_next(&v) % VOCAB);
        /* entropies that fall, sometimes coarse so that many are equal, and an argmax that settles */
        double scale = 3 * dg_rng_uniform(&dice), fall = 0.3 + 0.7 * dg_rng_uniform(&dice);
        int coarse = dg_rng_id(&dice, 2), restless = dg_rng_id(&dice, 3), ids = dg_rng_id(&dice, 4) ? VOCAB : 1;
        for (enum dg_stop_reason got = DG_STOP_NONE; got == DG_STOP_NONE; scale *= fall) {
            for (int i = 0; i < v.n; i++) {
                double x = scale * dg_rng_uniform(&dice);
                h[i] = (float)(coarse ? floor(x * 8) / 8 : x);
                if (v.steps == 0 || dg_rng_id(&dice, 100) < restless)
                    am[i] = dg_rng_id(&dice, ids);
            }
            double mean;
            enum dg_stop_reason want = naive_step(&v, &p, &mean);
            got = step();
            assert_int_equal(got, want);
            assert_int_equal(res.step, v.steps);
            assert_true(res.mean_entropy == mean);
            assert_memory_equal(res.accept, v.mask[v.steps - 1], (size_t)v.n);
            assert_memory_equal(res.canvas, v.canvas, (size_t)v.n * 4);
            assert_memory_equal(res.result, am, (size_t)v.n * 4);
            assert_true(rng.state == v.state);
            stops[got]++;
            steps++;
        }
    }
    /* the trials reach every reason often enough to mean something */
    for (int i = 1; i < 5; i++)
        assert_true(stops[i] > 50);
    assert_true(steps > 10000);
}

/* Step counts of whole turns of the small model: mean entropies as an independent implementation saw them. A block that ended on
 * low mean entropy before step 12 was stable there, and only there. */
static void recorded_blocks(void **state) {
    (void)state;
    const char *root = getenv("DG_ROOT");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/data/sampler/blocks.json", root ? root : ".");
    json_t *all = json_load_file(path, 0, NULL), *b;
    assert_non_null(all);
    size_t i;
    int reasons[5] = {0};
    json_array_foreach(all, i, b) {
        json_t *mean = json_object_get(b, "mean");
        int n = (int)json_integer_value(json_object_get(b, "steps"));
        assert_int_equal(json_array_size(mean), n);
        begin(params(), CAP);
        for (int k = 1; k <= n; k++) {
            float m = (float)json_number_value(json_array_get(mean, (size_t)k - 1));
            enum dg_stop_reason got = flat(m, k == n && m < 0.005f ? k - 1 : k);
            if ((got != DG_STOP_NONE) != (k == n))
                fail_msg("block %zu: %s at step %d of %d", i, dg_stop_name(got), k, n);
            reasons[got]++;
        }
    }
    json_decref(all);
    assert_true(reasons[DG_STOP_CONFIDENT] == 45 && reasons[DG_STOP_ENTROPY] == 3);
}

/* Some steps of a block are made by another sampler and taken over: the same block. */
static void steps_made_elsewhere(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 200; seed++) {
        struct dg_sampler_params p = params();
        struct dg_sampler *other;
        struct dg_rng dice, there;
        struct dg_step_result want = {0};
        int32_t result[CAP] = {0}, stable = 0, plateau = 0, n = 1 + (int32_t)(seed * 7 % CAP);
        uint8_t accepted[CAP] = {0};
        dg_rng_init(&dice, seed);
        p.freeze = seed % 3 == 0;
        p.steps_max = 9;
        begin(p, n);
        assert_int_equal(dg_sampler_create(&other, &p, CAP, &err), DG_OK);
        dg_rng_init(&there, 1);
        assert_int_equal(dg_sampler_begin(other, n, &there, &err), DG_OK);
        while (want.stop == DG_STOP_NONE) {
            bool settled = dg_rng_id(&dice, 3) > 0;
            for (int i = 0; i < n; i++) {
                h[i] = (float)dg_rng_uniform(&dice) * (settled ? 0.001f : 0.3f);
                am[i] = settled && want.step > 0 ? am[i] : dg_rng_id(&dice, VOCAB);
            }
            assert_int_equal(dg_sampler_step(other, h, am, NULL, NULL, &want, &err), DG_OK);
            bool first = want.step == 1;
            stable = !first && !memcmp(result, want.result, (size_t)n * 4) ? stable + 1 : 0;
            plateau = !first && !memcmp(accepted, want.accept, (size_t)n) ? plateau + 1 : 0;
            memcpy(result, want.result, (size_t)n * 4);
            memcpy(accepted, want.accept, (size_t)n);
            struct dg_sampler_made m = {want.step, stable, plateau, want.n_accepted, want.mean_entropy, want.stop, want.converged, there,
                                        want.accept, want.canvas, want.result};
            assert_true(dg_sampler_next_temperature(s) < dg_sampler_temperature(s));
            if (dg_rng_id(&dice, 2)) {
                assert_int_equal(dg_sampler_adopt(s, &m, &res, &err), DG_OK);
                m.step += 2;
                assert_int_equal(dg_sampler_adopt(s, &m, &res, &err), want.stop == DG_STOP_NONE ? DG_E_INTERNAL : DG_E_ARG);
                dg_error_clear(&err);
            } else {
                step();
            }
            assert_true(res.step == want.step && res.stop == want.stop && res.converged == want.converged && res.n_accepted == want.n_accepted);
            assert_true(res.mean_entropy == want.mean_entropy && rng.state == there.state && dg_sampler_steps(s) == want.step);
            assert_memory_equal(res.accept, want.accept, n);
            assert_memory_equal(res.canvas, want.canvas, n * 4);
            assert_memory_equal(res.result, want.result, n * 4);
        }
        dg_sampler_destroy(other);
    }
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    begin(params(), CAP);
    uint64_t before = dg_mem_count();
    for (int r = 0; r < 3; r++) {
        assert_int_equal(dg_sampler_begin(s, CAP >> r, &rng, &err), DG_OK);
        while (flat(0.5f, r) == DG_STOP_NONE)
            ;
    }
    assert_int_equal(dg_mem_count(), before);
}

int main(void) {
#define T(name) cmocka_unit_test_teardown(name, drop)
    const struct CMUnitTest tests[] = {
        T(defaults_and_flags),
        T(bad_parameters),
        T(schedule),
        T(canvas_of_a_block),
        T(accept_rule),
        T(accept_edges),
        T(confident_stop),
        T(plateau_stop),
        T(entropy_stop),
        T(pad_gate),
        T(reference_and_no_early_stops),
        T(failed_steps),
        T(drawn_tokens),
        T(freeze),
        T(against_naive),
        T(recorded_blocks),
        T(steps_made_elsewhere),
        T(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
