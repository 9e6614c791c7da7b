/* The engine's ops one by one: answers, epochs, marks, refusals, per-block turns, conversations, files, faults. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "model/kv.h"
#include "pipeline/pipeline.h"
#include "support/mkckpt.h"
#include "support/rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int32_t prompt[] = {2, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24};
#define N_PROMPT (sizeof prompt / sizeof *prompt)

static struct dg_stage *stage;
static struct dg_engine *engine;
static struct rig rig;

static void begin_rig(int64_t ctx, int64_t ring, size_t conversations) {
    rig_open(&rig, 5, ctx, ring);
    rig.opts.conversations_max = conversations;
    engine = rig_engine(&rig);
    stage = dg_engine_stage(engine);
}

static void end_rig(void) {
    dg_stage_destroy(stage);
    rig_close(&rig);
}

static struct dg_result done(struct dg_op op) {
    struct dg_result r = {0};
    struct dg_error err = {0};
    if (dg_stage_call(stage, &op, NULL, NULL, &r, &err) != DG_OK)
        fail_msg("%s: %s", dg_op_name(op.kind), dg_error_text(&err));
    return r;
}

static void refused(struct dg_op op, enum dg_status want, const char *part) {
    struct dg_error err = {0};
    enum dg_status st = dg_stage_call(stage, &op, NULL, NULL, NULL, &err);
    if (st != want || !strstr(dg_error_text(&err), part))
        fail_msg("%s: %s: %s (wanted %s, \"%s\")", dg_op_name(op.kind), dg_status_name(st), dg_error_text(&err), dg_status_name(want), part);
    dg_error_clear(&err);
}

static struct dg_kv_id at_end(void) { return done((struct dg_op){.kind = DG_OP_FINGERPRINT}).at; }
static uint64_t print(void) { return done((struct dg_op){.kind = DG_OP_FINGERPRINT}).fingerprint; }
static void extend(const int32_t *ids, size_t n) { done((struct dg_op){.kind = DG_OP_EXTEND, .ids = ids, .n = n}); }

static void log_is(const int32_t *ids, size_t n) {
    const struct dg_ids *log = &dg_engine_current(engine)->s->log;
    assert_int_equal(log->n, n);
    assert_memory_equal(log->v, ids, n * sizeof *ids);
}

static void same_ids(const struct dg_ids *a, const struct dg_ids *b) {
    assert_int_equal(a->n, b->n);
    if (a->n)
        assert_memory_equal(a->v, b->v, a->n * sizeof *a->v);
}

/* --- epochs, marks, positions --- */

static void epochs_and_marks(void **state) {
    (void)state;
    begin_rig(160, 32, 1);
    struct dg_result r = done((struct dg_op){.kind = DG_OP_EXTEND, .ids = prompt, .n = N_PROMPT});
    assert_int_equal(r.at.pos, N_PROMPT);
    assert_int_equal(r.computed, N_PROMPT);
    struct dg_kv_id p = r.at;
    done((struct dg_op){.kind = DG_OP_MARK, .mark = "prompt"});
    extend(prompt + 1, 4);
    assert_int_equal(at_end().epoch, p.epoch); /* appending breaks nothing */
    done((struct dg_op){.kind = DG_OP_MARK, .mark = "later"});
    r = done((struct dg_op){.kind = DG_OP_REWIND, .at = p});
    assert_int_equal(r.at.pos, N_PROMPT);
    assert_true(r.at.epoch > p.epoch);
    assert_int_equal(r.computed, 0);
    refused((struct dg_op){.kind = DG_OP_REWIND, .at = p}, DG_E_ARG, "stale");
    refused((struct dg_op){.kind = DG_OP_REWIND, .mark = "later"}, DG_E_ARG, "no mark 'later'");
    refused((struct dg_op){.kind = DG_OP_EXTEND, .ids = prompt, .n = 2, .at = p}, DG_E_ARG, "stale");
    extend(prompt + 1, 7);
    r = done((struct dg_op){.kind = DG_OP_REWIND, .mark = "prompt"});
    assert_int_equal(r.at.pos, N_PROMPT);
    log_is(prompt, N_PROMPT);
    refused((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, 13}}, DG_E_ARG, "ends at 12");
    refused((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, -1}}, DG_E_ARG, "cannot rewind");
    refused((struct dg_op){.kind = DG_OP_MARK, .mark = ""}, DG_E_ARG, "name");
    refused((struct dg_op){.kind = DG_OP_EXTEND, .ids = (int32_t[]){5, 160}, .n = 2}, DG_E_ARG, "160");
    refused((struct dg_op){.kind = DG_OP_EXTEND, .ids = prompt, .n = N_PROMPT, .conv = 7}, DG_E_ARG, "no conversation 7");
    refused((struct dg_op){.kind = (enum dg_op_kind)99}, DG_E_ARG, "no op 99");
    end_rig();
}

static void splice_and_align(void **state) {
    (void)state;
    begin_rig(160, 32, 1);
    extend(prompt, N_PROMPT);
    struct dg_kv_id before = at_end();
    const int32_t put[] = {90, 91, 92};
    struct dg_result r = done((struct dg_op){.kind = DG_OP_SPLICE, .start = 3, .end = 5, .ids = put, .n = 3});
    const int32_t want[] = {2, 10, 11, 90, 91, 92, 14, 15, 20, 21, 22, 23, 24};
    log_is(want, 13);
    assert_true(r.at.epoch != before.epoch);
    assert_int_equal(r.computed, 10);
    uint64_t spliced = print();
    /* nothing removed, still a new epoch */
    struct dg_kv_id same = done((struct dg_op){.kind = DG_OP_SPLICE, .start = 13, .end = 13}).at;
    assert_true(same.epoch != r.at.epoch);
    refused((struct dg_op){.kind = DG_OP_SPLICE, .start = 5, .end = 4}, DG_E_ARG, "cannot splice");
    refused((struct dg_op){.kind = DG_OP_SPLICE, .start = 0, .end = 14}, DG_E_ARG, "cannot splice");
    r = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = prompt, .n = N_PROMPT});
    assert_int_equal(r.computed, N_PROMPT - 3);
    log_is(prompt, N_PROMPT);
    r = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = prompt, .n = N_PROMPT});
    assert_int_equal(r.computed, 0);
    r = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = want, .n = 13});
    assert_int_equal(print(), spliced);
    r = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = want, .n = 4});
    assert_int_equal(r.computed, 0);
    log_is(want, 4);
    int32_t *far = calloc(160, sizeof *far);
    refused((struct dg_op){.kind = DG_OP_ALIGN, .ids = far, .n = 145}, DG_E_LIMIT, "no room");
    refused((struct dg_op){.kind = DG_OP_SPLICE, .start = 0, .end = 1, .ids = far, .n = 142}, DG_E_LIMIT, "no room");
    log_is(want, 4); /* refused before anything was touched */
    free(far);
    end_rig();
}

/* --- turns --- */

static struct dg_result generate(uint64_t seed) {
    struct dg_gen g = rig.opts.gen;
    g.seed = seed;
    return done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
}

static void finalize(void **state) {
    (void)state;
    begin_rig(160, 32, 1);
    extend(prompt, N_PROMPT);
    refused((struct dg_op){.kind = DG_OP_FINALIZE, .ids = prompt, .n = 2}, DG_E_ARG, "nothing to finalize");
    struct dg_result g = generate(3);
    assert_true(g.ids.n > 4);
    struct dg_result r = done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = g.ids.v, .n = g.ids.n});
    assert_int_equal(r.computed, 0); /* equal: no work */
    assert_int_equal(r.at.epoch, g.at.epoch);
    /* only what differs is computed again */
    struct dg_ids canon = {0};
    assert_int_equal(dg_ids_add(&canon, g.ids.v, g.ids.n - 2), DG_OK);
    assert_int_equal(dg_ids_add(&canon, (int32_t[]){106, 107}, 2), DG_OK);
    r = done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = canon.v, .n = canon.n});
    assert_int_equal(r.computed, 2);
    assert_int_equal(r.at.pos, N_PROMPT + canon.n);
    uint64_t got = print();
    struct dg_ids all = {0};
    assert_int_equal(dg_ids_add(&all, prompt, N_PROMPT), DG_OK);
    assert_int_equal(dg_ids_add(&all, canon.v, canon.n), DG_OK);
    done((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, 0}});
    extend(all.v, all.n);
    assert_int_equal(print(), got);
    refused((struct dg_op){.kind = DG_OP_FINALIZE, .ids = prompt, .n = 2}, DG_E_ARG, "nothing to finalize");
    dg_ids_deinit(&g.ids);
    dg_ids_deinit(&canon);
    dg_ids_deinit(&all);
    end_rig();
}

/* The same turn driven op by op, as the driver does it. */
static struct dg_result drive(uint64_t seed) {
    struct dg_gen g = rig.opts.gen;
    g.seed = seed;
    done((struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = &g});
    enum dg_turn_end end = DG_END_NONE;
    while (end == DG_END_NONE) {
        struct dg_result p = {0};
        struct dg_error err = {0};
        struct dg_op op = {.kind = DG_OP_PROPOSE};
        enum dg_status st = dg_stage_call(stage, &op, NULL, NULL, &p, &err);
        dg_ids_deinit(&p.ids);
        if (st == DG_E_LIMIT) { /* the context or the blocks are used up */
            dg_error_clear(&err);
            break;
        }
        assert_int_equal(st, DG_OK);
        if (p.plan.reroll)
            done((struct dg_op){.kind = DG_OP_DISCARD});
        else
            end = done((struct dg_op){.kind = DG_OP_COMMIT, .kept = -1}).end;
    }
    return done((struct dg_op){.kind = DG_OP_END_TURN});
}

static void op_driven_turns_are_the_drivers(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    /* a stop token the random model hits often, and any token counts as empty so that re-rolls happen */
    rig.opts.gen.policy.stops[rig.opts.gen.policy.n_stops++] = 33;
    int rerolls = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        rig.opts.gen.policy.pad = (int32_t)(seed * 4 % 160);
        struct dg_kv_id now = at_end();
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {now.epoch, 0}});
        extend(prompt, N_PROMPT);
        struct dg_result a = generate(seed);
        uint64_t fa = print();
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {a.at.epoch, N_PROMPT}});
        struct dg_result b = drive(seed);
        same_ids(&a.ids, &b.ids);
        assert_int_equal(fa, print());
        assert_int_equal(a.end, b.end);
        assert_int_equal(a.stop_id, b.stop_id);
        assert_int_equal(a.steps, b.steps);
        assert_int_equal(a.blocks, b.blocks);
        rerolls += a.steps > 3 * a.blocks;
        dg_ids_deinit(&a.ids);
        dg_ids_deinit(&b.ids);
    }
    assert_true(rerolls > 0);
    end_rig();
}

static void turn_protocol(void **state) {
    (void)state;
    begin_rig(160, 32, 1);
    extend(prompt, N_PROMPT);
    uint64_t clean = print();
    struct dg_kv_id start = at_end();
    refused((struct dg_op){.kind = DG_OP_PROPOSE}, DG_E_ARG, "no turn is open");
    done((struct dg_op){.kind = DG_OP_BEGIN_TURN});
    refused((struct dg_op){.kind = DG_OP_BEGIN_TURN}, DG_E_ARG, "a turn is open");
    refused((struct dg_op){.kind = DG_OP_EXTEND, .ids = prompt, .n = 1}, DG_E_ARG, "a turn is open");
    refused((struct dg_op){.kind = DG_OP_GENERATE}, DG_E_ARG, "a turn is open");
    refused((struct dg_op){.kind = DG_OP_COMMIT, .kept = 1}, DG_E_ARG, "no proposal");
    struct dg_result p = done((struct dg_op){.kind = DG_OP_PROPOSE, .len = 8});
    assert_int_equal(p.ids.n, 8);
    assert_int_equal(p.at.pos, N_PROMPT); /* proposing moves nothing */
    refused((struct dg_op){.kind = DG_OP_PROPOSE}, DG_E_ARG, "a proposal is there");
    refused((struct dg_op){.kind = DG_OP_COMMIT, .kept = 9}, DG_E_ARG, "9 rows");
    assert_int_equal(done((struct dg_op){.kind = DG_OP_COMMIT, .kept = 3}).at.pos, N_PROMPT + 3);
    dg_ids_deinit(&p.ids);
    /* a kept part may be anything: the timeline is the prompt and it */
    p = done((struct dg_op){.kind = DG_OP_PROPOSE});
    done((struct dg_op){.kind = DG_OP_DISCARD});
    dg_ids_deinit(&p.ids);
    struct dg_result r = done((struct dg_op){.kind = DG_OP_END_TURN, .abandon = true});
    assert_int_equal(r.ids.n, 3);
    assert_int_equal(r.at.pos, N_PROMPT);
    assert_true(r.at.epoch != start.epoch);
    assert_int_equal(print(), clean); /* an abandoned turn leaves no trace */
    dg_ids_deinit(&r.ids);
    /* one that committed nothing does not even move the epoch */
    done((struct dg_op){.kind = DG_OP_BEGIN_TURN});
    struct dg_kv_id again = r.at;
    r = done((struct dg_op){.kind = DG_OP_END_TURN, .abandon = true});
    assert_int_equal(r.at.epoch, again.epoch);
    dg_ids_deinit(&r.ids);
    end_rig();
}

/* A turn whose options are another model's, or hostile, is refused. */
static void hostile_options(void **state) {
    (void)state;
    begin_rig(160, 32, 1);
    extend(prompt, N_PROMPT);
    struct dg_gen g = rig.opts.gen;
    g.policy.canvas = 256;
    refused((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g}, DG_E_ARG, "another model");
    g = rig.opts.gen;
    g.policy.n_stops = DG_STOPS_MAX + 1;
    refused((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g}, DG_E_ARG, "stop tokens");
    g = rig.opts.gen;
    g.sampler.steps_max = 0;
    refused((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g}, DG_E_ARG, "");
    g = rig.opts.gen;
    g.canvas_ids = (int32_t[]){1, 200};
    g.canvas_n = 2;
    refused((struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = &g}, DG_E_ARG, "canvas id 200");
    g.canvas_ids = NULL;
    g.canvas_n = 0;
    g.sampler.vocab = 159;
    refused((struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = &g}, DG_E_ARG, "another model");
    struct dg_result r = generate(1);
    dg_ids_deinit(&r.ids);
    end_rig();
}

/* Field failure D06: near the end of the context a turn ends with "length", and nothing is written beyond it. */
static void full_context(void **state) {
    (void)state;
    for (int64_t left = 0; left <= 40; left++) {
        begin_rig(100, 32, 1);
        rig.opts.gen.max_tokens = 0;
        int64_t n = 100 - left;
        struct dg_op fill = {.kind = DG_OP_FILL, .len = n, .seed = 1};
        if (left < 16) {
            refused(fill, DG_E_LIMIT, "room");
            end_rig();
            continue;
        }
        done(fill);
        struct dg_result r = generate((uint64_t)left);
        assert_true(r.end == DG_END_LENGTH || r.end == DG_END_STOP || r.end == DG_END_REPEAT || r.end == DG_END_BLANK);
        assert_true(r.at.pos <= 100);
        assert_int_equal(r.at.pos, n + (int64_t)r.ids.n);
        struct dg_result more = generate(1);
        assert_true(more.at.pos <= 100);
        if (r.at.pos > 84) { /* no canvas fits */
            assert_int_equal(more.end, DG_END_LENGTH);
            assert_int_equal(more.ids.n, 0);
        }
        dg_ids_deinit(&more.ids);
        dg_ids_deinit(&r.ids);
        end_rig();
    }
}

/* --- rewinds --- */

static void fresh_and_incremental(int64_t ring, int64_t ctx, int64_t len_a, uint64_t seed, bool unwindowed) {
    begin_rig(ctx, ring, 1);
    if (unwindowed) {
        rig.opts.session.attention.unwindowed = true;
        dg_stage_destroy(stage);
        engine = rig_engine(&rig);
        stage = dg_engine_stage(engine);
    }
    done((struct dg_op){.kind = DG_OP_FILL, .len = len_a, .seed = seed});
    struct dg_kv_id a = at_end();
    uint64_t fa = print();
    struct dg_result first = generate(seed);
    uint64_t fb = print();
    done((struct dg_op){.kind = DG_OP_REWIND, .at = {first.at.epoch, a.pos}});
    assert_int_equal(print(), fa);
    struct dg_result second = generate(seed);
    same_ids(&first.ids, &second.ids);
    assert_int_equal(print(), fb);
    /* the log fed as one prompt to an empty engine: the same bytes */
    struct dg_ids log = {0};
    assert_int_equal(dg_ids_add(&log, dg_engine_current(engine)->s->log.v, dg_engine_current(engine)->s->log.n), DG_OK);
    dg_stage_destroy(stage);
    engine = rig_engine(&rig);
    stage = dg_engine_stage(engine);
    if ((int64_t)log.n <= ctx - 16) {
        extend(log.v, log.n);
        assert_int_equal(print(), fb);
        struct dg_result third = generate(seed + 1);
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {third.at.epoch, (int64_t)log.n}});
        struct dg_result fourth = generate(seed + 1);
        same_ids(&third.ids, &fourth.ids);
        dg_ids_deinit(&third.ids);
        dg_ids_deinit(&fourth.ids);
    }
    dg_ids_deinit(&log);
    dg_ids_deinit(&first.ids);
    dg_ids_deinit(&second.ids);
    end_rig();
}

/* Field failure A11: window 8, canvas 16, ring 32 (the least that holds both). */
static void rewind_restores_the_bytes(void **state) {
    (void)state;
    static const int64_t cuts[] = {1, 7, 8, 9, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 128};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        fresh_and_incremental(32, 300, cuts[i], i, i % 2);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i += 3)
        fresh_and_incremental(64, 300, cuts[i], i, i % 2 == 0);
}

static void deep_rewind_computes_again(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    done((struct dg_op){.kind = DG_OP_FILL, .len = 200, .seed = 9});
    struct dg_kv_id end = at_end();
    for (int64_t at = 190; at > 0; at -= 19) {
        struct dg_result r = done((struct dg_op){.kind = DG_OP_REWIND, .at = {at_end().epoch, at}});
        uint64_t got = print();
        assert_true(r.computed == 0 || r.computed == at);
        const int32_t *log = dg_engine_current(engine)->s->log.v;
        struct dg_ids copy = {0};
        assert_int_equal(dg_ids_add(&copy, log, (size_t)at), DG_OK);
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {at_end().epoch, 0}});
        extend(copy.v, copy.n);
        assert_int_equal(print(), got);
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {at_end().epoch, 0}});
        done((struct dg_op){.kind = DG_OP_FILL, .len = 200, .seed = 9});
        dg_ids_deinit(&copy);
    }
    assert_true(at_end().epoch > end.epoch);
    /* what Activate promises to do without computing, it refuses when it would have to */
    refused((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = 1, .len = 100}, DG_E_UNSUPPORTED, "rewind");
    assert_int_equal(done((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = 1, .len = 198}).computed, 0);
    end_rig();
}

/* --- cancelling and faults --- */

struct cancel_after {
    atomic_bool token;
    int events, at;
    int blocks, steps_after;
};

static void count_and_cancel(void *ctx, const struct dg_event *e) {
    struct cancel_after *c = ctx;
    if (e->kind == DG_EV_ANSWER)
        return;
    c->blocks += e->kind == DG_EV_BLOCK;
    c->steps_after += atomic_load(&c->token) && e->kind == DG_EV_STEP;
    if (++c->events == c->at)
        atomic_store(&c->token, true);
}

static void cancelled_turns_leave_no_trace(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    rig.opts.gen.max_tokens = 120; /* wraps the ring several times */
    rig.opts.gen.policy.n_stops = 0;
    rig.opts.gen.policy.repeat_max = 0;
    extend(prompt, N_PROMPT);
    uint64_t clean = print();
    struct dg_result want = generate(7);
    uint64_t full = print();
    done((struct dg_op){.kind = DG_OP_REWIND, .at = {want.at.epoch, N_PROMPT}});
    int cancelled = 0;
    for (int at = 1; at < 60; at++) {
        struct cancel_after c = {.at = at};
        struct dg_gen g = rig.opts.gen;
        g.seed = 7;
        struct dg_op op = {.kind = DG_OP_GENERATE, .gen = &g, .cancel = &c.token};
        struct dg_error err = {0};
        struct dg_kv_id before = at_end();
        enum dg_status st = dg_stage_call(stage, &op, count_and_cancel, &c, NULL, &err);
        dg_error_clear(&err);
        if (st == DG_OK) {
            done((struct dg_op){.kind = DG_OP_REWIND, .at = {at_end().epoch, N_PROMPT}});
            continue;
        }
        cancelled++;
        assert_int_equal(st, DG_E_CANCELLED);
        assert_true(c.steps_after <= 1); /* at most one step late */
        log_is(prompt, N_PROMPT);
        assert_int_equal(print(), clean);
        assert_int_equal(at_end().epoch != before.epoch, c.blocks > 0);
    }
    assert_true(cancelled > 20);
    struct dg_result again = generate(7);
    same_ids(&want.ids, &again.ids);
    assert_int_equal(print(), full);
    dg_ids_deinit(&want.ids);
    dg_ids_deinit(&again.ids);
    end_rig();
}

static void cancelled_prefill_keeps_what_was_done(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = i + 2;
    struct cancel_after c = {.at = 3}; /* 0, 16, 32 of 100 */
    struct dg_op op = {.kind = DG_OP_EXTEND, .ids = ids, .n = 100, .cancel = &c.token};
    struct dg_result r = {0};
    struct dg_error err = {0};
    assert_int_equal(dg_stage_call(stage, &op, count_and_cancel, &c, &r, &err), DG_E_CANCELLED);
    dg_error_clear(&err);
    assert_int_equal(r.at.pos, 32);
    assert_int_equal(r.computed, 32);
    /* cancelled before it began */
    assert_int_equal(dg_stage_call(stage, &op, NULL, NULL, &r, &err), DG_E_CANCELLED);
    dg_error_clear(&err);
    assert_int_equal(r.at.pos, 32);
    r = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = ids, .n = 100});
    assert_int_equal(r.computed, 68);
    end_rig();
}

static void faults(void **state) {
    (void)state;
    /* field failures A16 (backend fault at step 2 of block 2) and A07 (NaN) */
    static const enum dg_status kinds[] = {DG_E_BACKEND, DG_E_NUMERIC, DG_E_CANCELLED};
    for (size_t i = 0; i < 3; i++) {
        begin_rig(300, 32, 1);
        rig.opts.gen.policy.n_stops = 0;
        rig.opts.gen.policy.trim = 0;
        extend(prompt, N_PROMPT);
        uint64_t clean = print();
        struct dg_result want = generate(7);
        assert_true(want.blocks >= 2);
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {want.at.epoch, N_PROMPT}});
        struct dg_fault f = {DG_OP_GENERATE, 1, 1, 2, kinds[i]};
        struct dg_error err = {0};
        assert_int_equal(dg_stage_fault(&stage, stage, engine, &f, 1, &err), DG_OK);
        struct cancel_after c = {0};
        struct dg_gen g = rig.opts.gen;
        g.seed = 7;
        struct dg_op op = {.kind = DG_OP_GENERATE, .gen = &g};
        struct dg_result r = {0};
        assert_int_equal(dg_stage_call(stage, &op, count_and_cancel, &c, &r, &err), kinds[i]);
        assert_int_equal(c.blocks, 1); /* the failed block was never told */
        assert_int_equal(r.at.pos, N_PROMPT);
        dg_error_clear(&err);
        dg_ids_deinit(&r.ids);
        assert_int_equal(print(), clean);
        struct dg_result again = generate(7); /* and the session goes on as if nothing had been */
        same_ids(&want.ids, &again.ids);
        dg_ids_deinit(&again.ids);
        dg_ids_deinit(&want.ids);
        end_rig();
    }
}

/* Field failure C19: a fault in a prefill, then a normal request. */
static void fault_in_prefill(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    struct dg_fault f = {DG_OP_EXTEND, 1, 0, 0, DG_E_BACKEND};
    struct dg_error err = {0};
    assert_int_equal(dg_stage_fault(&stage, stage, engine, &f, 1, &err), DG_OK);
    refused((struct dg_op){.kind = DG_OP_EXTEND, .ids = prompt, .n = N_PROMPT}, DG_E_BACKEND, "injected");
    assert_int_equal(at_end().pos, 0);
    extend(prompt, N_PROMPT);
    log_is(prompt, N_PROMPT);
    end_rig();
}

/* Field failure A12: twenty seeded turns with other requests in between. */
static void same_seed_same_text(void **state) {
    (void)state;
    begin_rig(300, 32, 2);
    extend(prompt, N_PROMPT);
    struct dg_result want = generate(11);
    done((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = DG_CONV_NEW});
    for (int i = 0; i < 20; i++) {
        struct dg_kv_id now = done((struct dg_op){.kind = DG_OP_FINGERPRINT, .conv = 1}).at;
        done((struct dg_op){.kind = DG_OP_FILL, .len = 3 + i, .seed = (uint64_t)i});
        struct dg_result other = generate((uint64_t)i);
        dg_ids_deinit(&other.ids);
        done((struct dg_op){.kind = DG_OP_REWIND, .at = {at_end().epoch, 0}});
        done((struct dg_op){.kind = DG_OP_REWIND, .conv = 1, .at = {now.epoch, N_PROMPT}});
        struct dg_gen g = rig.opts.gen;
        g.seed = 11;
        struct dg_result r = done((struct dg_op){.kind = DG_OP_GENERATE, .conv = 1, .gen = &g});
        same_ids(&want.ids, &r.ids);
        dg_ids_deinit(&r.ids);
    }
    dg_ids_deinit(&want.ids);
    end_rig();
}

/* Field failure A03: a block that ran out of steps says so in its event. */
static void note_convergence(void *ctx, const struct dg_event *e) {
    int *unconverged = ctx;
    if (e->kind == DG_EV_BLOCK)
        *unconverged += !e->block->converged && e->block->stop == DG_STOP_MAX_STEPS;
}

static void unconverged_blocks_are_flagged(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    extend(prompt, N_PROMPT);
    struct dg_gen g = rig.opts.gen;
    g.sampler.steps_max = 2;
    int flagged = 0;
    struct dg_op op = {.kind = DG_OP_GENERATE, .gen = &g};
    struct dg_result r = {0};
    assert_int_equal(dg_stage_call(stage, &op, note_convergence, &flagged, &r, NULL), DG_OK);
    assert_int_equal(flagged, r.blocks);
    assert_true(r.blocks > 0);
    dg_ids_deinit(&r.ids);
    end_rig();
}

/* Field failure A15: when the steps run out, what is committed is what the model predicts for each position, whatever its canvas held: here a
 * canvas full of one token to begin with, and fresh noise in every position that was never accepted. */
struct predicted {
    int32_t ids[16];
    int32_t n;
    int blocks, steps, never_accepted;
};

static void compare_predicted(void *ctx, const struct dg_event *e) {
    struct predicted *p = ctx;
    if (e->kind == DG_EV_STEP) {
        p->n = e->step->n;
        p->steps++;
        memcpy(p->ids, dg_engine_current(engine)->s->argmax, (size_t)p->n * sizeof *p->ids);
        p->never_accepted = p->n - e->step->result->n_accepted;
    } else if (e->kind == DG_EV_BLOCK) {
        p->blocks++;
        assert_true(e->block->kept <= p->n);
        assert_memory_equal(e->block->ids, p->ids, (size_t)e->block->kept * sizeof *p->ids);
    }
}

static void only_predictions_are_committed(void **state) {
    (void)state;
    int left_over = 0;
    for (int32_t steps = 1; steps <= 4; steps++) {
        begin_rig(300, 32, 1);
        extend(prompt, N_PROMPT);
        int32_t canvas[16];
        for (int i = 0; i < 16; i++)
            canvas[i] = 33;
        struct dg_gen g = rig.opts.gen;
        g.sampler.steps_max = steps;
        g.seed = (uint64_t)steps;
        g.canvas_ids = canvas;
        g.canvas_n = 16;
        struct predicted p = {0};
        struct dg_op op = {.kind = DG_OP_GENERATE, .gen = &g};
        struct dg_result r = {0};
        assert_int_equal(dg_stage_call(stage, &op, compare_predicted, &p, &r, NULL), DG_OK);
        assert_true(p.blocks > 0 && p.steps >= p.blocks);
        left_over += p.never_accepted;
        dg_ids_deinit(&r.ids);
        end_rig();
    }
    assert_true(left_over > 0);
}

/* --- conversations --- */

static void fill_ids(struct dg_ids *l, size_t n, uint64_t seed) {
    l->n = 0;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(dg_ids_push(l, (int32_t)rig_random(&seed, 160)), DG_OK);
}

static void routing(void **state) {
    (void)state;
    begin_rig(1400, 1024, 3);
    struct dg_ids a = {0}, b = {0};
    fill_ids(&a, 400, 1);
    struct dg_result r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = a.v, .n = a.n});
    assert_int_equal(r.route.how, DG_ROUTE_PREFILL); /* the empty conversation is taken, none is made */
    assert_int_equal(r.conv, 1);
    assert_int_equal(r.route.cost, 400);
    extend(a.v, a.n);
    /* held: the same prompt goes elsewhere */
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = a.v, .n = a.n});
    assert_int_equal(r.conv, 2);
    done((struct dg_op){.kind = DG_OP_RELEASE, .conv = 2});
    done((struct dg_op){.kind = DG_OP_DROP, .conv = 2});
    done((struct dg_op){.kind = DG_OP_RELEASE, .conv = 1});
    /* a pure extension */
    assert_int_equal(dg_ids_add(&b, a.v, a.n), DG_OK);
    assert_int_equal(dg_ids_push(&b, 7), DG_OK);
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = b.v, .n = b.n});
    assert_int_equal(r.route.how, DG_ROUTE_EXTEND);
    assert_int_equal(r.route.lcp, 400);
    assert_int_equal(r.route.cost, 1);
    done((struct dg_op){.kind = DG_OP_RELEASE});
    /* lcp 256, tail 144: cut; 255: prefill */
    b.n = 256;
    assert_int_equal(dg_ids_push(&b, (a.v[256] + 1) % 160), DG_OK);
    struct dg_route to;
    dg_conversation_route(dg_engine_conversations(engine), b.v, b.n, &to);
    assert_int_equal(to.how, DG_ROUTE_CUT);
    assert_int_equal(to.lcp, 256);
    b.v[255] = (a.v[255] + 1) % 160;
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = b.v, .n = b.n});
    assert_int_equal(r.route.how, DG_ROUTE_PREFILL);
    assert_int_equal(r.route.best_lcp, 255);
    assert_int_equal(r.conv, 3);
    extend(b.v, b.n);
    done((struct dg_op){.kind = DG_OP_RELEASE});
    /* tail 512 is cut, 513 is not */
    done((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = 1});
    done((struct dg_op){.kind = DG_OP_FILL, .len = 368, .seed = 3});
    b.n = 0;
    assert_int_equal(dg_ids_add(&b, a.v, 256), DG_OK);
    dg_conversation_route(dg_engine_conversations(engine), b.v, b.n, &to);
    assert_int_equal(to.how, DG_ROUTE_CUT);
    assert_int_equal(to.conv, 1);
    done((struct dg_op){.kind = DG_OP_FILL, .len = 1, .seed = 3});
    dg_conversation_route(dg_engine_conversations(engine), b.v, b.n, &to);
    assert_int_equal(to.how, DG_ROUTE_PREFILL);
    assert_int_equal(to.best_lcp, 256);
    /* the third place, then the least recently used is forgotten: 3 is older than 1 */
    fill_ids(&a, 20, 5);
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = a.v, .n = a.n});
    assert_int_equal(r.route.evicted, 0);
    extend(a.v, a.n);
    done((struct dg_op){.kind = DG_OP_RELEASE});
    fill_ids(&a, 20, 6);
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = a.v, .n = a.n});
    assert_int_equal(r.route.evicted, 3);
    assert_int_equal(at_end().pos, 0); /* a recycled session is empty */
    refused((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = 3}, DG_E_ARG, "no conversation 3");
    dg_ids_deinit(&a);
    dg_ids_deinit(&b);
    end_rig();
}

static void one_place_salvages(void **state) {
    (void)state;
    begin_rig(300, 32, 1);
    extend(prompt, N_PROMPT);
    int32_t other[] = {2, 10, 11, 99};
    struct dg_result r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = other, .n = 4});
    assert_int_equal(r.route.how, DG_ROUTE_CUT); /* it would be lost anyway */
    assert_int_equal(r.route.lcp, 3);
    assert_int_equal(r.conv, 1);
    refused((struct dg_op){.kind = DG_OP_ROUTE, .ids = prompt, .n = 3}, DG_E_LIMIT, "in use");
    done((struct dg_op){.kind = DG_OP_RELEASE});
    int32_t none[] = {50};
    r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = none, .n = 1});
    assert_int_equal(r.route.evicted, 1);
    assert_int_equal(r.conv, 2);
    end_rig();
}

/* So many conversations live at a time as fit the memory for their caches. */
static void memory_budget(void **state) {
    (void)state;
    rig_open(&rig, 5, 300, 32);
    const struct dg_config *c = &rig.model->cfg;
    size_t one = dg_kv_bytes(c, 300, 32, 16, DG_F16);
    static const struct {
        int halves; /* of one cache */
        size_t max, fit;
    } cases[] = {{1, 0, 1}, {3, 0, 1}, {4, 0, 2}, {7, 0, 3}, {7, 2, 2}, {4, 9, 2}, {0, 0, 1}, {0, 4, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig.opts.kv_budget = one * (size_t)cases[i].halves / 2;
        rig.opts.conversations_max = cases[i].max;
        engine = rig_engine(&rig);
        stage = dg_engine_stage(engine);
        assert_int_equal(dg_engine_conversations(engine)->max, cases[i].fit);
        int evicted = 0;
        for (size_t k = 1; k < cases[i].fit + 2; k++) /* the first is there */
            evicted += done((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = DG_CONV_NEW}).route.evicted != 0;
        assert_int_equal(evicted, 2);
        assert_int_equal(dg_engine_conversations(engine)->n, cases[i].fit);
        dg_stage_destroy(stage);
    }
    rig_close(&rig);
}

/* Field failure D03: twenty rounds over an 800-token prefix, each computing only what is new. */
static void rounds_cost_what_is_new(void **state) {
    (void)state;
    begin_rig(3000, 64, 2);
    rig.opts.gen.max_tokens = 20;
    struct dg_ids log = {0};
    fill_ids(&log, 800, 1);
    for (uint64_t round = 0; round < 20; round++) {
        struct dg_result r = done((struct dg_op){.kind = DG_OP_ROUTE, .ids = log.v, .n = log.n});
        struct dg_result x = done((struct dg_op){.kind = DG_OP_ALIGN, .ids = log.v, .n = log.n});
        assert_int_equal(x.computed, r.route.cost);
        if (round)
            assert_in_range(r.route.cost, 0, 10);
        struct dg_result g = generate(round);
        assert_int_equal(g.computed, (int64_t)g.ids.n); /* D09: a block's tokens are computed once, nothing else is */
        assert_int_equal(dg_ids_add(&log, g.ids.v, g.ids.n), DG_OK);
        for (int i = 0; i < 10; i++)
            assert_int_equal(dg_ids_push(&log, (int32_t)((round * 10 + (uint64_t)i) % 160)), DG_OK);
        dg_ids_deinit(&g.ids);
        done((struct dg_op){.kind = DG_OP_RELEASE});
    }
    dg_ids_deinit(&log);
    end_rig();
}

static void saved_and_loaded(void **state) {
    (void)state;
    begin_rig(300, 32, 2);
    char path[512], bad[512];
    snprintf(path, sizeof path, "%s/talk", rig.dir);
    snprintf(bad, sizeof bad, "%s/bad", rig.dir);
    done((struct dg_op){.kind = DG_OP_FILL, .len = 40, .seed = 2});
    done((struct dg_op){.kind = DG_OP_MARK, .mark = "here"});
    done((struct dg_op){.kind = DG_OP_FILL, .len = 60, .seed = 3});
    struct dg_result first = generate(5);
    uint64_t want = print();
    done((struct dg_op){.kind = DG_OP_SAVE, .path = path});
    struct dg_result next = generate(6);
    struct dg_result r = done((struct dg_op){.kind = DG_OP_LOAD, .path = path});
    assert_int_equal(r.conv, 2);
    assert_int_equal(r.computed, 0);
    assert_int_equal(print(), want);
    struct dg_result same = generate(6);
    same_ids(&next.ids, &same.ids);
    /* a cut the file has no window for computes again, and is right */
    r = done((struct dg_op){.kind = DG_OP_REWIND, .mark = "here"});
    assert_int_equal(r.at.pos, 40);
    uint64_t cut = print();
    done((struct dg_op){.kind = DG_OP_REWIND, .conv = 1, .mark = "here"});
    assert_int_equal(done((struct dg_op){.kind = DG_OP_FINGERPRINT, .conv = 1}).fingerprint, cut);
    refused((struct dg_op){.kind = DG_OP_LOAD, .path = bad}, DG_E_IO, "cannot open");
    /* every damaged byte is noticed */
    size_t n;
    char *bytes = mk_slurp(path, &n);
    for (size_t i = 0; i < n; i += 1 + n / 97) {
        bytes[i] ^= 4;
        mk_put(rig.dir, "bad", bytes, n);
        struct dg_op op = {.kind = DG_OP_LOAD, .path = bad};
        struct dg_error err = {0};
        enum dg_status st = dg_stage_call(stage, &op, NULL, NULL, NULL, &err);
        if (st == DG_OK)
            fail_msg("byte %zu of %zu changed, and it loads", i, n);
        dg_error_clear(&err);
        bytes[i] ^= 4;
    }
    for (size_t cut_at = 0; cut_at < n; cut_at += 1 + n / 13) {
        mk_put(rig.dir, "bad", bytes, cut_at);
        refused((struct dg_op){.kind = DG_OP_LOAD, .path = bad}, DG_E_FORMAT, "");
    }
    free(bytes);
    dg_ids_deinit(&first.ids);
    dg_ids_deinit(&next.ids);
    dg_ids_deinit(&same.ids);
    end_rig();
}

/* --- the thread --- */

struct client {
    struct dg_pipeline *p;
    uint64_t seed;
    int answers, ok, cancelled;
};

static void count_answer(void *ctx, const struct dg_event *e) {
    atomic_int *n = ctx;
    if (e->kind == DG_EV_ANSWER)
        atomic_fetch_add(n, 1);
}

/* Each client keeps a conversation of its own with a secret token; it must never see another's. */
static void *talk(void *arg) {
    struct client *c = arg;
    struct dg_error err = {0};
    for (int i = 0; i < 12; i++) {
        int32_t mine[24];
        for (int k = 0; k < 24; k++)
            mine[k] = (int32_t)(c->seed * 10 % 150) + (i + k) % 7;
        struct dg_result r = {0};
        struct dg_op route = {.kind = DG_OP_ROUTE, .ids = mine, .n = 24};
        if (dg_pipeline_call(c->p, &route, NULL, NULL, &r, &err) != DG_OK) {
            dg_error_clear(&err);
            continue;
        }
        int32_t conv = r.conv;
        struct dg_op align = {.kind = DG_OP_ALIGN, .conv = conv, .ids = mine, .n = 24};
        struct dg_op gen = {.kind = DG_OP_GENERATE, .conv = conv};
        struct dg_op release = {.kind = DG_OP_RELEASE, .conv = conv};
        if (dg_pipeline_call(c->p, &align, NULL, NULL, &r, &err) == DG_OK) {
            c->ok += r.at.pos == 24 && r.conv == conv;
            gen.at = r.at; /* fails loudly if anyone else has been here */
            if (dg_pipeline_call(c->p, &gen, NULL, NULL, &r, &err) == DG_OK)
                c->answers++;
        }
        dg_error_clear(&err);
        if (dg_pipeline_call(c->p, &release, NULL, NULL, NULL, &err) != DG_OK)
            dg_error_clear(&err);
        dg_ids_deinit(&r.ids);
    }
    return NULL;
}

static void many_clients(void **state) {
    (void)state;
    rig_open(&rig, 5, 200, 32);
    rig.opts.conversations_max = 8;
    engine = rig_engine(&rig);
    struct dg_pipeline *p;
    assert_int_equal(dg_pipeline_start(&p, dg_engine_stage(engine), 4, NULL), DG_OK);
    pthread_t t[8];
    struct client c[8];
    for (uint64_t i = 0; i < 8; i++) {
        c[i] = (struct client){.p = p, .seed = i};
        assert_int_equal(pthread_create(&t[i], NULL, talk, &c[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].ok, 12);
        assert_int_equal(c[i].answers, 12);
    }
    while (dg_pipeline_pending(p)) /* the last answer is out a moment before its op is over */
        usleep(1000);
    dg_pipeline_close(p);
    rig_close(&rig);
}

static void every_op_is_answered(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        rig_open(&rig, 5, 1000, 32);
        engine = rig_engine(&rig);
        struct dg_pipeline *p;
        struct dg_error err = {0};
        assert_int_equal(dg_pipeline_start(&p, dg_engine_stage(engine), 8, NULL), DG_OK);
        atomic_int answers = 0;
        struct dg_gen g = rig.opts.gen;
        g.sampler.steps_max = 20;
        g.max_tokens = 600;
        struct dg_op long_one = {.kind = DG_OP_GENERATE, .gen = &g}, ping = {.kind = DG_OP_PING};
        uint64_t first, ticket;
        assert_int_equal(dg_pipeline_submit(p, &long_one, false, count_answer, &answers, &first, NULL), DG_OK);
        int taken = 1;
        enum dg_status st = DG_OK;
        while (st == DG_OK && taken < 100) { /* the queue fills behind the long one */
            st = dg_pipeline_submit(p, &ping, true, count_answer, &answers, &ticket, &err);
            taken += st == DG_OK;
        }
        assert_int_equal(st, DG_E_LIMIT);
        dg_error_clear(&err);
        if (how == 0) { /* a queued one and the running one are cancelled */
            assert_true(dg_pipeline_cancel(p, ticket));
            assert_true(dg_pipeline_cancel(p, first));
            while (dg_pipeline_pending(p))
                usleep(1000);
            assert_false(dg_pipeline_cancel(p, first));
        }
        if (how == 1) {
            struct dg_op off = {.kind = DG_OP_SHUTDOWN};
            assert_true(dg_pipeline_cancel(p, first));
            assert_int_equal(dg_pipeline_call(p, &off, NULL, NULL, NULL, NULL), DG_OK);
            while (dg_pipeline_submit(p, &ping, false, count_answer, &answers, NULL, NULL) == DG_OK)
                taken++;
        }
        dg_pipeline_close(p); /* how 2: with everything still in the queue */
        assert_int_equal(atomic_load(&answers), taken);
        rig_close(&rig);
    }
}

static void resubmit(void *ctx, const struct dg_event *e) {
    struct client *c = ctx;
    if (e->kind != DG_EV_ANSWER)
        return;
    struct dg_op ping = {.kind = DG_OP_PING};
    struct dg_error err = {0};
    if (dg_pipeline_call(c->p, &ping, NULL, NULL, NULL, &err) == DG_E_INTERNAL)
        c->cancelled++; /* refused instead of a deadlock */
    dg_error_clear(&err);
    if (dg_pipeline_submit(c->p, &ping, false, NULL, NULL, NULL, &err) == DG_OK)
        c->ok++;
    dg_error_clear(&err);
}

static void events_may_submit_but_not_wait(void **state) {
    (void)state;
    rig_open(&rig, 5, 200, 32);
    struct client c = {0};
    assert_int_equal(dg_pipeline_start(&c.p, dg_engine_stage(rig_engine(&rig)), 4, NULL), DG_OK);
    struct dg_op ping = {.kind = DG_OP_PING};
    assert_int_equal(dg_pipeline_call(c.p, &ping, resubmit, &c, NULL, NULL), DG_OK);
    assert_int_equal(c.ok, 1);
    assert_int_equal(c.cancelled, 1);
    dg_pipeline_close(c.p);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_and_marks),
        cmocka_unit_test(splice_and_align),
        cmocka_unit_test(finalize),
        cmocka_unit_test(op_driven_turns_are_the_drivers),
        cmocka_unit_test(turn_protocol),
        cmocka_unit_test(hostile_options),
        cmocka_unit_test(full_context),
        cmocka_unit_test(rewind_restores_the_bytes),
        cmocka_unit_test(deep_rewind_computes_again),
        cmocka_unit_test(cancelled_turns_leave_no_trace),
        cmocka_unit_test(cancelled_prefill_keeps_what_was_done),
        cmocka_unit_test(faults),
        cmocka_unit_test(fault_in_prefill),
        cmocka_unit_test(same_seed_same_text),
        cmocka_unit_test(unconverged_blocks_are_flagged),
        cmocka_unit_test(only_predictions_are_committed),
        cmocka_unit_test(routing),
        cmocka_unit_test(one_place_salvages),
        cmocka_unit_test(memory_budget),
        cmocka_unit_test(rounds_cost_what_is_new),
        cmocka_unit_test(saved_and_loaded),
    };
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(many_clients),
        cmocka_unit_test(every_op_is_answered),
        cmocka_unit_test(events_may_submit_but_not_wait),
    };
    int failed = getenv("PIPELINE_THREADS_ONLY") ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests(threads, NULL, NULL);
}
