/* Sessions and turns on the bundled model: the same bits however a prompt is cut, computed or came about; rewinding; cancelling; running out
 * of memory, context and numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "ops/backends.h"
#include "session/turn.h"
#include "support/mkckpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two models: the bundled one where the text matters, a random one with a small window and canvas where only the positions do. */
static struct dg_model *model, *small_model;
static struct dg_backend *be, *small;
static char *small_dir;
static const struct mk_shape small_shape = {.vocab = 500, .hidden = 32, .layers = 2, .heads = 4, .kv = 2, .hd = 8, .full_kv = 1, .full_hd = 16,
                                            .inter = 16, .experts = 6, .topk = 2, .moe = 8, .canvas = 16, .window = 32, .full = 1 << 1};
#define CANVAS 64 /* of the bundled model */
#define SMALL_CANVAS 16
#define SMALL_WINDOW 32

/* The same must hold for every backend; the test of the CPU backend runs this program again with its name. */
static const char *backend(void) {
    const char *name = getenv("DG_TEST_BACKEND");
    return name ? name : "ref";
}

static int setup(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct mk_ckpt c;
    mk_build(&c, &small_shape, "BF16", false, 3);
    small_dir = mk_tmpdir();
    mk_write(&c, small_dir, 0);
    mk_free(&c);
    char dir[4096];
    const char *root = getenv("DG_ROOT");
    snprintf(dir, sizeof dir, "%s/models/mini", root ? root : ".");
    struct dg_backend_opts o = {.threads = 1};
    if (dg_model_open(&model, dir, &err) != DG_OK || dg_backend_open(&be, backend(), model, &o, &err) != DG_OK ||
        dg_model_open(&small_model, small_dir, &err) != DG_OK || dg_backend_open(&small, backend(), small_model, &o, &err) != DG_OK) {
        fprintf(stderr, "%s\n", dg_error_text(&err));
        return 1;
    }
    return model->cfg.canvas != CANVAS || small_model->cfg.canvas != SMALL_CANVAS || small_model->cfg.window != SMALL_WINDOW;
}

static int teardown(void **state) {
    (void)state;
    dg_backend_destroy(be);
    dg_backend_destroy(small);
    dg_model_close(model);
    dg_model_close(small_model);
    mk_remove(small_dir);
    free(small_dir);
    return 0;
}

static void ok(enum dg_status st, struct dg_error *err) {
    if (st != DG_OK)
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(err));
}

static void refused(enum dg_status st, enum dg_status want, const char *part, struct dg_error *err) {
    if (st != want || !strstr(dg_error_text(err), part))
        fail_msg("%s: %s (expected %s: %s)", dg_status_name(st), dg_error_text(err), dg_status_name(want), part);
    dg_error_clear(err);
}

static atomic_bool cancel; /* of every session below */

static struct dg_session *session(struct dg_backend *b, struct dg_session_opts o) {
    struct dg_error err = {0};
    struct dg_session *s;
    ok(dg_session_create(&s, b, &o, &err), &err);
    s->cancel = &cancel;
    return s;
}

/* A stream of tokens that is the same for the same number. */
static int32_t *stream(int which, int n) {
    int32_t *ids = malloc((size_t)(n + 1) * sizeof *ids);
    struct dg_rng r;
    dg_rng_init(&r, (uint64_t)which);
    for (int i = 0; i < n; i++)
        ids[i] = dg_rng_id(&r, 500);
    return ids;
}

/* "Tell me a story about a horse." in the prompt form: an answer of several blocks */
static const int32_t story[] = {2, 105, 923, 862, 448, 841, 853, 448, 1536, 106, 363, 105, 483, 100, 492, 101};
/* "Compute 9 * 10.": one block of two steps */
static const int32_t sum[] = {2, 105, 938, 734, 1031, 2091, 106, 363, 105, 483, 100, 492, 101};
#define STORY_N ((int)(sizeof story / sizeof *story))
#define SUM_N ((int)(sizeof sum / sizeof *sum))

static void extend(struct dg_session *s, const int32_t *ids, int n) {
    struct dg_error err = {0};
    ok(dg_session_extend(s, ids, (size_t)n, NULL, NULL, &err), &err);
}

static uint64_t fingerprint(const struct dg_session *s) {
    struct dg_error err = {0};
    uint64_t f = 0;
    ok(dg_kv_fingerprint(&s->kv, s->be, &f, &err), &err);
    return f;
}

/* One seeded step on a canvas of the stream; a hash of all logits and statistics. */
static uint64_t step_bits(struct dg_session *s, int which) {
    struct dg_error err = {0};
    int n = SMALL_CANVAS; /* of the bundled model a part */
    int32_t *canvas = stream(which, n);
    ok(dg_session_step(s, canvas, n, DG_SC_SEED, 1.25f, &err), &err);
    ok(dg_session_step(s, canvas, n, DG_SC_SOFT, 1.5f, &err), &err);
    free(canvas);
    uint64_t h = 1469598103934665603u;
    const uint32_t *p = s->planes->logits.data;
    for (int64_t i = 0; i < (int64_t)n * s->cfg->vocab; i++)
        h = (h ^ p[i]) * 1099511628211u;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)s->argmax[i]) * 1099511628211u;
    return h;
}

struct bits {
    uint64_t kv, step;
};

static struct bits bits_of(struct dg_session *s) { return (struct bits){fingerprint(s), step_bits(s, 99)}; }

static void same(struct bits got, struct bits want, const char *what) {
    if (got.kv != want.kv || got.step != want.step)
        fail_msg("%s: %s differ", what, got.kv != want.kv ? "keys and values" : "logits");
}

/* Attention as users run it: top-k by context. */
static const struct dg_attention_opts user_attention = {DG_TOPK_DYN, DG_TOPK_DYN, false};

static struct bits fresh_bits(struct dg_backend *b, struct dg_session_opts o, int which, int n) {
    struct dg_session *s = session(b, o);
    int32_t *ids = stream(which, n);
    extend(s, ids, n);
    struct bits got = bits_of(s);
    free(ids);
    dg_session_destroy(s);
    return got;
}

/* ---- the same bits ---- */

static void chunks_of(struct dg_backend *b, int n, bool user, const int *cut, int n_cuts) {
    struct dg_session_opts o = {.ctx = 400, .kv = user ? DG_F16 : DG_F32, .chunk = n, .sc_sparse = user};
    if (user)
        o.attention = user_attention;
    struct bits whole = fresh_bits(b, o, 1, n);
    for (int i = 0; i < n_cuts; i++) {
        o.chunk = cut[i];
        char what[64];
        snprintf(what, sizeof what, "chunks of %d, %s", cut[i], user ? "f16 and top-k" : "f32");
        same(fresh_bits(b, o, 1, n), whole, what);
    }
}

/* Field failure A02: chunks around the window and the ring, larger and smaller. */
static void chunks(void **state) {
    (void)state;
    static const int few[] = {1, 7, 64}, many[] = {1, 2, 3, 7, 15, 16, 17, 30, 31, 32, 33, 34, 64, 65, 66, 200};
    chunks_of(be, 140, true, few, 3); /* crosses the window of 128 */
    chunks_of(small, 300, true, many, 16);
    chunks_of(small, 300, false, many, 16);
}

/* Field failure A04: a prompt of any length, so that whatever tiles a backend works in end anywhere, gives the bits of one that is computed row
 * by row; what pads a tile is seen by no one. On the backend that users get. */
static void every_length(void **state) {
    (void)state;
    struct dg_backend *user;
    struct dg_error err = {0};
    ok(dg_backend_open(&user, "cpu", small_model, &(struct dg_backend_opts){.threads = 2}, &err), &err);
    for (int n = 1; n <= 140; n++) {
        struct dg_session_opts o = {.ctx = 200, .kv = DG_F16, .sc_sparse = true};
        char what[64];
        struct bits whole = fresh_bits(user, o, 3, n);
        o.chunk = 1;
        snprintf(what, sizeof what, "a prompt of %d", n);
        same(fresh_bits(user, o, 3, n), whole, what);
    }
    dg_backend_destroy(user);
}

/* A conversation that grows by pieces and one that comes at once. */
static void pieces(void **state) {
    (void)state;
    enum { N = 290 };
    struct dg_session_opts o = {.ctx = 512, .kv = DG_F16, .attention = user_attention};
    struct dg_session *s = session(small, o);
    int32_t *ids = stream(1, N);
    static const int part[] = {3, 0, 130, 1, 64, 92};
    int done = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        extend(s, ids + done, part[i]);
        step_bits(s, (int)i); /* steps in between leave no trace */
        done += part[i];
    }
    assert_int_equal(done, N);
    assert_int_equal(s->log.n, N);
    assert_memory_equal(s->log.v, ids, N * sizeof *ids);
    same(bits_of(s), fresh_bits(small, o, 1, N), "a prompt in pieces with steps in between");
    free(ids);
    dg_session_destroy(s);
}

static void threads_and_runs(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 400, .kv = DG_F16, .attention = user_attention, .sc_sparse = true};
    struct bits one = fresh_bits(be, o, 5, 70);
    same(fresh_bits(be, o, 5, 70), one, "a second run");
    for (int t = 2; t <= 3; t++) {
        struct dg_error err = {0};
        struct dg_backend *b;
        struct dg_backend_opts bo = {.threads = t};
        ok(dg_backend_open(&b, backend(), model, &bo, &err), &err);
        struct dg_session *s = session(b, o);
        int32_t *ids = stream(5, 70);
        extend(s, ids, 70);
        char what[32];
        snprintf(what, sizeof what, "%d threads", t);
        same(bits_of(s), one, what);
        free(ids);
        dg_session_destroy(s);
        dg_backend_destroy(b);
    }
}

static void rewind_to(struct dg_session *s, int64_t len) {
    struct dg_error err = {0};
    ok(dg_session_rewind(s, len, NULL, NULL, &err), &err);
    assert_int_equal(s->kv.len, len);
    assert_int_equal(s->log.n, len);
}

static void after_another_request(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 500, .kv = DG_F32};
    struct dg_session *s = session(small, o);
    int32_t *a = stream(1, 250), *b = stream(2, 401);
    struct bits want = fresh_bits(small, o, 1, 250);
    for (int round = 0; round < 2; round++) {
        rewind_to(s, 0);
        extend(s, b, 401);
        step_bits(s, 3);
        rewind_to(s, 0);
        extend(s, a, 250);
        same(bits_of(s), want, "after another request");
    }
    free(a);
    free(b);
    dg_session_destroy(s);
}

/* ---- rewinding ---- */

static int rebuilt;

static void count_rebuild(void *ctx, int64_t done, int64_t total) {
    (void)ctx;
    (void)done;
    (void)total;
    rebuilt++;
}

/* A ring of 64 slots: rows of 32 behind a window of 32. From `high` positions cut to `to` and go on with another text. */
static void rewind_case(int high, int to, bool canvas) {
    struct dg_session_opts o = {.ctx = 300, .kv = DG_F16, .chunk = 32, .ring = 1};
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    char what[96];
    snprintf(what, sizeof what, "cut from %d%s to %d", high, canvas ? " and a canvas" : "", to);
    assert_int_equal(s->kv.ring, 64);
    int32_t *a = stream(1, high), *b = stream(2, 40);
    extend(s, a, high);
    if (canvas)
        step_bits(s, 4);
    int64_t written = high + (canvas ? SMALL_CANVAS : 0);
    rebuilt = 0;
    ok(dg_session_rewind(s, to, count_rebuild, NULL, &err), &err);
    assert_int_equal(s->kv.len, to);
    assert_int_equal(s->log.n, to);
    /* the window before the cut is whole while position to - 31 is: no rebuilding then */
    bool whole = to == 0 || to - (SMALL_WINDOW - 1) >= written - 64 || written <= 64;
    if (whole != (rebuilt == 0))
        fail_msg("%s: %s", what, rebuilt ? "rebuilt without need" : "the window is overwritten, yet nothing was rebuilt");
    uint64_t kv = fingerprint(s);
    struct dg_session *fresh = session(small, o);
    extend(fresh, a, to);
    if (kv != fingerprint(fresh))
        fail_msg("%s: keys and values are not those of a fresh session", what);
    extend(s, b, 40);
    extend(fresh, b, 40);
    same(bits_of(s), bits_of(fresh), what);
    dg_session_destroy(fresh);
    dg_session_destroy(s);
    free(a);
    free(b);
}

static void rewinding(void **state) {
    (void)state;
    /* around multiples of the ring, cut at the first position that needs no rebuilding, canvas and window edges */
    static const int high[] = {48, 64, 65, 80, 128, 129};
    for (size_t i = 0; i < sizeof high / sizeof *high; i++)
        for (int canvas = 0; canvas < 2; canvas++)
            for (int to = 0; to <= high[i]; to++) {
                int end = high[i] + canvas * SMALL_CANVAS, floor = end - 64 + SMALL_WINDOW - 1;
                if (to < 2 || abs(to - floor) < 3 || to == SMALL_WINDOW || high[i] - to < 2)
                    rewind_case(high[i], to, canvas);
            }
    struct dg_error err = {0};
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 200});
    refused(dg_session_rewind(s, 1, NULL, NULL, &err), DG_E_ARG, "rewind", &err);
    refused(dg_session_rewind(s, -1, NULL, NULL, &err), DG_E_ARG, "rewind", &err);
    dg_session_destroy(s);
}

/* Cut after cut on one session: what an edited conversation does. */
static void rewinding_often(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 300, .kv = DG_F16, .chunk = 20, .ring = 1};
    struct dg_session *s = session(small, o);
    int32_t timeline[300];
    int n = 0;
    struct dg_rng r;
    dg_rng_init(&r, 8);
    for (int round = 0; round < 60; round++) {
        int to = n ? (int)(dg_rng_next(&r) % (uint32_t)(n + 1)) : 0, add = 1 + (int)(dg_rng_next(&r) % 90);
        if (to + add > 284)
            add = 284 - to;
        rewind_to(s, to);
        int32_t *ids = stream(round, add);
        extend(s, ids, add);
        memcpy(timeline + to, ids, (size_t)add * sizeof *ids);
        free(ids);
        n = to + add;
        if (round % 3 == 0)
            step_bits(s, round);
        struct dg_session *fresh = session(small, o);
        extend(fresh, timeline, n);
        same(bits_of(s), bits_of(fresh), "after many cuts");
        dg_session_destroy(fresh);
    }
    dg_session_destroy(s);
}

/* ---- turns ---- */

struct seen {
    struct dg_session *s;
    int steps, blocks, kept, cancel_at_step, fail_at_step;
    bool all_argmax, converged;
    int32_t stops[16];
    uint64_t canvases;
};

static void on_step(void *ctx, const struct dg_step_event *e) {
    struct seen *z = ctx;
    z->steps++;
    for (int32_t i = 0; i < e->n; i++)
        z->canvases = (z->canvases ^ (uint64_t)e->result->canvas[i]) * 1099511628211u;
    if (z->steps == z->cancel_at_step)
        atomic_store(&cancel, true);
    if (z->steps == z->fail_at_step)
        dg_backend_fail(z->s->be, DG_E_BACKEND, "the device fell off the bus");
}

/* What is committed is the last step's argmax, row by row. */
static void on_block(void *ctx, const struct dg_block_event *e) {
    struct seen *z = ctx;
    for (int32_t i = 0; i < e->kept; i++)
        z->all_argmax &= e->ids[i] == z->s->argmax[i];
    if (z->blocks < 16)
        z->stops[z->blocks] = (int32_t)e->stop;
    z->blocks++;
    z->kept += e->kept;
    z->converged = e->converged;
}

static struct dg_turn_opts turn_opts(struct seen *z, struct dg_session *s, uint64_t seed) {
    *z = (struct seen){.s = s, .all_argmax = true};
    struct dg_turn_opts o = {.seed = seed, .first_step = DG_SC_SEED, .on_step = on_step, .on_block = on_block, .ctx = z};
    dg_sampler_params_init(&o.sampler, s->cfg, NULL);
    dg_commit_policy_init(&o.policy, s->cfg, NULL);
    return o;
}

/* A turn at the session's end; its ids in out (may be NULL). */
static enum dg_status turn(struct dg_session *s, const struct dg_turn_opts *o, struct dg_ids *out, enum dg_turn_end *end, struct dg_error *err) {
    struct dg_turn t;
    DG_TRY(dg_turn_begin(&t, s, o, err));
    enum dg_status st = dg_turn_run(&t, err);
    if (end)
        *end = t.end;
    if (out) {
        dg_ids_init(out);
        if (dg_ids_add(out, t.out.v, t.out.n) != DG_OK)
            fail();
    }
    dg_turn_deinit(&t);
    return st;
}

static void prompt(struct dg_session *s, const int32_t *ids, int n) {
    rewind_to(s, 0);
    extend(s, ids, n);
}

static bool equal(const struct dg_ids *a, const struct dg_ids *b) { return a->n == b->n && !memcmp(a->v, b->v, a->n * sizeof *a->v); }

/* A model that never stops, one step a block. */
static struct dg_turn_opts endless(struct seen *z, struct dg_session *s) {
    struct dg_turn_opts t = turn_opts(z, s, 1);
    t.sampler.steps_max = 1;
    t.policy.n_stops = 0;
    t.policy.trim = t.policy.hard = 0;
    t.policy.repeat_max = 0;
    t.policy.retries = 0;
    t.extend_last = true;
    return t;
}

/* Three blocks, of 16, 16 and 8 tokens, 5 steps each; the last is not prefilled. */
static struct dg_turn_opts three_blocks(struct seen *z, struct dg_session *s) {
    struct dg_turn_opts t = endless(z, s);
    t.sampler.steps_max = 5;
    t.max_tokens = 40;
    t.extend_last = false;
    return t;
}

#define QUESTION_N 45

static void ask(struct dg_session *s) {
    int32_t *ids = stream(7, QUESTION_N);
    prompt(s, ids, QUESTION_N);
    free(ids);
}

/* Those blocks in a fresh session. */
static struct dg_ids fresh_answer(struct dg_session_opts o) {
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    struct seen z;
    struct dg_ids ids;
    ask(s);
    struct dg_turn_opts t = three_blocks(&z, s);
    ok(turn(s, &t, &ids, NULL, &err), &err);
    assert_true(z.blocks == 3 && z.steps == 15 && ids.n == 40);
    dg_session_destroy(s);
    return ids;
}

/* A turn that ends badly in any step of any block leaves keys, values and log as they were, commits nothing, and the next turn is as
 * good as a first one. */
static void failed_turns(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 512, .kv = DG_F16};
    struct dg_ids want = fresh_answer(o), got;
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    ask(s);
    uint64_t before = fingerprint(s);
    static const int at[] = {1, 2, 5, 6, 10, 13}; /* 6 on: in the second block, the first being committed */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int cancelled = 0; cancelled < 2; cancelled++) {
            struct seen z;
            struct dg_turn_opts t = three_blocks(&z, s);
            if (cancelled)
                z.cancel_at_step = at[i];
            else
                z.fail_at_step = at[i];
            if (cancelled)
                refused(turn(s, &t, NULL, NULL, &err), DG_E_CANCELLED, "cancel", &err);
            else
                refused(turn(s, &t, NULL, NULL, &err), DG_E_BACKEND, "bus", &err);
            assert_int_equal(z.steps, at[i]);
            assert_int_equal(z.blocks, cancelled ? at[i] / 5 : (at[i] - 1) / 5);
            atomic_store(&cancel, false);
            assert_int_equal(s->kv.len, QUESTION_N);
            assert_int_equal(s->log.n, QUESTION_N);
            assert_true(fingerprint(s) == before);
        }
    struct seen z;
    struct dg_turn_opts t = three_blocks(&z, s);
    ok(turn(s, &t, &got, NULL, &err), &err);
    assert_true(equal(&got, &want));
    dg_ids_deinit(&got);
    dg_ids_deinit(&want);
    dg_session_destroy(s);
}

static void cancel_at_32(void *ctx, int64_t done, int64_t total) {
    (void)ctx;
    assert_int_equal(total, 100);
    if (done == 32)
        atomic_store(&cancel, true);
}

static void cancelled_prefill(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 256, .kv = DG_F32, .chunk = 16};
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    int32_t *ids = stream(1, 100);
    refused(dg_session_extend(s, ids, 100, cancel_at_32, NULL, &err), DG_E_CANCELLED, "32 of 100", &err);
    assert_int_equal(s->kv.len, 32);
    assert_int_equal(s->log.n, 32);
    refused(dg_session_extend(s, ids + 32, 68, NULL, NULL, &err), DG_E_CANCELLED, "0 of 68", &err); /* until the caller takes it back */
    atomic_store(&cancel, false);
    extend(s, ids + 32, 68);
    same(bits_of(s), fresh_bits(small, o, 1, 100), "a prompt cancelled half-way and continued");
    free(ids);
    dg_session_destroy(s);
}

/* A device error in a prefill: what was done stays, nothing more. */
static void fail_at_32(void *ctx, int64_t done, int64_t total) {
    (void)total;
    if (done == 32)
        dg_backend_fail(((struct dg_session *)ctx)->be, DG_E_BACKEND, "the device fell off the bus");
}

static void failed_prefill(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 256, .kv = DG_F32, .chunk = 16};
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    int32_t *ids = stream(1, 100);
    refused(dg_session_extend(s, ids, 100, fail_at_32, s, &err), DG_E_BACKEND, "bus", &err);
    assert_int_equal(s->kv.len, 32);
    assert_int_equal(s->log.n, 32);
    extend(s, ids + 32, 68);
    same(bits_of(s), fresh_bits(small, o, 1, 100), "a prompt that failed half-way and was continued");
    ids[50] = s->cfg->vocab;
    refused(dg_session_extend(s, ids, 60, NULL, NULL, &err), DG_E_ARG, "vocabulary", &err);
    ids[50] = -1;
    refused(dg_session_extend(s, ids, 60, NULL, NULL, &err), DG_E_ARG, "vocabulary", &err);
    assert_int_equal(s->kv.len, 100);
    free(ids);
    dg_session_destroy(s);
}

static void modes(void **state) {
    (void)state;
    struct dg_session *s = session(be, (struct dg_session_opts){.ctx = 512, .kv = DG_F32});
    struct dg_error err = {0};
    struct seen z;
    /* the step cap: what is committed is what the model predicts, never what a position began with */
    prompt(s, story, STORY_N);
    struct dg_turn_opts t = turn_opts(&z, s, 50);
    t.sampler.steps_max = 4;
    t.max_tokens = 15;
    ok(turn(s, &t, NULL, NULL, &err), &err);
    assert_true(z.all_argmax && z.kept > 0 && !z.converged);
    assert_int_equal(z.stops[0], DG_STOP_MAX_STEPS);
    assert_int_equal(z.steps, 4 * z.blocks);
    /* every scheduled step */
    prompt(s, sum, SUM_N);
    t = turn_opts(&z, s, 46);
    t.sampler.steps_max = 5;
    t.sampler.no_early_stop = true;
    ok(turn(s, &t, NULL, NULL, &err), &err);
    assert_int_equal(z.steps, 5 * z.blocks);
    assert_int_equal(z.stops[0], DG_STOP_MAX_STEPS);
    assert_true(z.converged);
    /* without that, two; the reference's stops and first step give the same here */
    for (int reference = 0; reference < 2; reference++) {
        t = turn_opts(&z, s, 46);
        t.sampler.reference_stops = reference;
        t.first_step = reference ? DG_SC_NONE : DG_SC_SEED;
        ok(turn(s, &t, NULL, NULL, &err), &err);
        assert_int_equal(z.steps, 2);
        assert_int_equal(z.stops[0], DG_STOP_CONFIDENT);
    }
    dg_session_destroy(s);
}

/* The trajectory of three blocks: draws, freeze, first step, seed. */
static uint64_t trajectory(uint64_t seed, bool argmax, bool freeze, enum dg_sc_mode first, bool *all_argmax) {
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 200, .kv = DG_F32});
    struct dg_error err = {0};
    struct seen z;
    ask(s);
    struct dg_turn_opts t = three_blocks(&z, s);
    t.seed = seed;
    t.sampler.argmax = argmax;
    t.sampler.freeze = freeze;
    t.first_step = first;
    ok(turn(s, &t, NULL, NULL, &err), &err);
    assert_true(z.steps == 15 && z.blocks == 3);
    *all_argmax = z.all_argmax;
    dg_session_destroy(s);
    return z.canvases;
}

static void trajectories(void **state) {
    (void)state;
    bool argmax;
    uint64_t seen[6];
    for (int i = 0; i < 6; i++)
        for (int again = 0; again < 2; again++) {
            uint64_t c = trajectory(i == 1 || i == 3 ? 51 : 50, i != 2 && i != 3, i == 4, i == 5 ? DG_SC_NONE : DG_SC_SEED, &argmax);
            if (again)
                assert_true(c == seen[i]);
            seen[i] = c;
            assert_true(argmax || i == 4); /* what a block commits is the argmax also with draws; not with freeze */
        }
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            if (seen[i] == seen[k])
                fail_msg("variants %d and %d ran alike", i, k);
}

/* A drawn token is the smallest id whose cumulative probability exceeds u. */
static void draws(void **state) {
    (void)state;
    struct dg_session *s = session(be, (struct dg_session_opts){.ctx = 512, .kv = DG_F32});
    struct dg_error err = {0};
    prompt(s, story, STORY_N);
    step_bits(s, 1);
    static const double us[] = {0, 0.1, 0.5, 0.9, 0.999, 4294967295.0 / 4294967296.0};
    for (int row = 0; row < SMALL_CANVAS; row += 3) {
        const float *z = (const float *)s->planes->logits.data + row * s->cfg->vocab;
        double all = 0, top = 1.5 * (double)z[s->argmax[row]];
        for (int v = 0; v < s->cfg->vocab; v++)
            all += exp(1.5 * (double)z[v] - top);
        int32_t last = 0;
        for (size_t i = 0; i < sizeof us / sizeof *us; i++) {
            int32_t id;
            ok(dg_session_draw(s, row, us[i], &id, &err), &err);
            assert_true(id >= last && id < s->cfg->vocab);
            last = id;
            double below = 0;
            for (int v = 0; v < id; v++)
                below += exp(1.5 * (double)z[v] - top);
            double with = below + exp(1.5 * (double)z[id] - top);
            assert_true(below / all <= us[i] + 1e-6 && with / all >= us[i] - 1e-6);
        }
    }
    dg_session_destroy(s);
}

static void extend_last(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 512, .kv = DG_F16};
    struct dg_ids want = fresh_answer(o);
    for (int last = 0; last < 2; last++) {
        struct dg_session *s = session(small, o), *fresh = session(small, o);
        struct dg_error err = {0};
        struct seen z;
        ask(s);
        struct dg_turn_opts t = three_blocks(&z, s);
        t.extend_last = last;
        ok(turn(s, &t, NULL, NULL, &err), &err);
        int64_t n = QUESTION_N + (last ? (int64_t)want.n : 2 * SMALL_CANVAS);
        assert_int_equal(s->kv.len, n);
        assert_int_equal(s->log.n, n);
        ask(fresh);
        extend(fresh, want.v, (int)n - QUESTION_N);
        assert_memory_equal(s->log.v, fresh->log.v, (size_t)n * sizeof *s->log.v);
        same(bits_of(s), bits_of(fresh), "a turn's own tokens in the cache");
        dg_session_destroy(fresh);
        dg_session_destroy(s);
    }
    dg_ids_deinit(&want);
}

struct first {
    float p_max[SMALL_CANVAS];
    int n;
    int32_t sizes[8], retries, last_retry;
};

static void first_step(void *ctx, const struct dg_step_event *e) {
    struct first *f = ctx;
    if (f->n == 0)
        memcpy(f->p_max, e->p_max, (size_t)e->n * sizeof *f->p_max);
    if (e->result->step == 1 && f->retries < 8)
        f->sizes[f->retries++] = e->n;
    f->last_retry = e->retry;
    f->n = e->n;
}

static void canvas_ids(void **state) {
    (void)state;
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 512, .kv = DG_F32});
    struct dg_error err = {0};
    struct seen z;
    int32_t *canvas = stream(3, SMALL_CANVAS + 1);
    ask(s);
    struct first f[3] = {0};
    for (int i = 0; i < 3; i++) {
        struct dg_turn_opts t = turn_opts(&z, s, (uint64_t)i);
        t.on_step = first_step;
        t.on_block = NULL;
        t.ctx = &f[i];
        t.canvas_ids = canvas;
        t.canvas_n = i == 2 ? 5 : SMALL_CANVAS;
        t.max_tokens = 5;
        t.sampler.steps_max = 2;
        ok(turn(s, &t, NULL, NULL, &err), &err);
        assert_int_equal(f[i].sizes[0], t.canvas_n);
    }
    /* the seed has no part in the first step */
    assert_memory_equal(f[0].p_max, f[1].p_max, sizeof f[0].p_max);
    uint64_t before = fingerprint(s);
    struct dg_turn_opts t = turn_opts(&z, s, 1);
    t.canvas_ids = canvas;
    t.canvas_n = SMALL_CANVAS + 1;
    refused(turn(s, &t, NULL, NULL, &err), DG_E_ARG, "17", &err);
    t.canvas_n = SMALL_CANVAS;
    canvas[15] = s->cfg->vocab;
    refused(turn(s, &t, NULL, NULL, &err), DG_E_ARG, "500", &err);
    canvas[15] = -1;
    refused(turn(s, &t, NULL, NULL, &err), DG_E_ARG, "-1", &err);
    assert_true(fingerprint(s) == before);
    free(canvas);
    dg_session_destroy(s);
}

static bool always(void *ctx, const int32_t *ids, int32_t n) {
    (void)ctx;
    (void)ids;
    (void)n;
    return true;
}

static int32_t rolled[4]; /* retries, degenerate, blocks, stop */

static void rolled_block(void *ctx, const struct dg_block_event *e) {
    (void)ctx;
    rolled[0] = e->retries;
    rolled[1] = e->degenerate;
    rolled[2]++;
}

static void rerolls(void **state) {
    (void)state;
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 512, .kv = DG_F32});
    struct dg_error err = {0};
    struct seen z;
    ask(s);
    struct first f = {0};
    struct dg_turn_opts t = three_blocks(&z, s);
    t.on_step = first_step;
    t.on_block = rolled_block;
    t.shows_nothing = always;
    t.sampler.steps_max = 2;
    t.max_tokens = 4;
    t.policy.retries = 3;
    t.ctx = &f;
    ok(turn(s, &t, NULL, NULL, &err), &err);
    static const int32_t want[] = {SMALL_CANVAS, SMALL_CANVAS, SMALL_CANVAS / 2, SMALL_CANVAS / 4};
    assert_int_equal(f.retries, 4);
    assert_memory_equal(f.sizes, want, sizeof want);
    assert_true(rolled[0] == 3 && rolled[1] == 1 && rolled[2] == 1 && f.last_retry == 3);
    dg_session_destroy(s);
}

/* ---- the end of the context ---- */

static void context_end(void **state) {
    (void)state;
    enum { CTX = 4 * SMALL_CANVAS };
    int32_t *ids = stream(1, CTX + 2);
    for (int kv = 0; kv < 2; kv++) {
        struct dg_session *s = session(small, (struct dg_session_opts){.ctx = CTX, .kv = kv ? DG_F16 : DG_F32});
        struct dg_error err = {0};
        /* so many positions short of full */
        for (int left = 2 * SMALL_CANVAS + 3; left >= SMALL_CANVAS - 3; left--) {
            if (left < 2 * SMALL_CANVAS - 3 && left > SMALL_CANVAS + 3)
                continue;
            int n = CTX - left;
            rewind_to(s, 0);
            if (left < SMALL_CANVAS) {
                refused(dg_session_extend(s, ids, (size_t)n, NULL, NULL, &err), DG_E_LIMIT, "context", &err);
                assert_int_equal(s->kv.len, 0);
                continue;
            }
            extend(s, ids, n);
            assert_int_equal(dg_session_room(s), left - SMALL_CANVAS);
            struct seen z;
            struct dg_ids out;
            enum dg_turn_end end;
            struct dg_turn_opts t = endless(&z, s);
            ok(turn(s, &t, &out, &end, &err), &err);
            assert_int_equal(end, DG_END_LENGTH);
            assert_int_equal(z.blocks, left / SMALL_CANVAS);
            assert_int_equal(out.n, left / SMALL_CANVAS * SMALL_CANVAS);
            assert_int_equal(s->kv.len, n + (int64_t)out.n);
            assert_int_equal(s->log.n, s->kv.len);
            assert_memory_equal(s->log.v, ids, (size_t)n * sizeof *ids);
            dg_ids_deinit(&out);
            /* nothing more fits, and it is said */
            t = endless(&z, s);
            ok(turn(s, &t, &out, &end, &err), &err);
            assert_true(end == DG_END_LENGTH && out.n == 0 && z.steps == 0);
            dg_ids_deinit(&out);
            refused(dg_session_extend(s, ids, 1, NULL, NULL, &err), DG_E_LIMIT, "context", &err);
        }
        dg_session_destroy(s);
    }
    /* the token budget: never a token more */
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = CTX});
    for (int budget = SMALL_CANVAS - 1; budget <= SMALL_CANVAS + 1; budget++) {
        struct dg_error err = {0};
        struct seen z;
        struct dg_ids out;
        enum dg_turn_end end;
        prompt(s, ids, 20);
        struct dg_turn_opts t = endless(&z, s);
        t.max_tokens = budget;
        ok(turn(s, &t, &out, &end, &err), &err);
        assert_true(end == DG_END_LENGTH && out.n == (size_t)budget && s->kv.len == 20 + budget);
        dg_ids_deinit(&out);
    }
    dg_session_destroy(s);
    free(ids);
}

static void bad_options(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_session *s;
    struct dg_session_opts o = {.ctx = CANVAS};
    refused(dg_session_create(&s, be, &o, &err), DG_E_ARG, "no room", &err);
    o.ctx = -5;
    refused(dg_session_create(&s, be, &o, &err), DG_E_ARG, "", &err);
    o.ctx = model->cfg.ctx_max + 1;
    refused(dg_session_create(&s, be, &o, &err), DG_E_ARG, "more than", &err);
    o.ctx = 256;
    o.chunk = -1;
    refused(dg_session_create(&s, be, &o, &err), DG_E_ARG, "chunk", &err);
    assert_null(s);
    o = (struct dg_session_opts){.ctx = CANVAS + 1};
    s = session(be, o);
    extend(s, story, 1);
    step_bits(s, 1);
    dg_session_destroy(s);
    s = session(small, (struct dg_session_opts){.ctx = 256, .chunk = 2 * SMALL_CANVAS});
    int32_t *wide = stream(1, SMALL_CANVAS + 1);
    refused(dg_session_step(s, wide, SMALL_CANVAS + 1, DG_SC_SEED, 1, &err), DG_E_ARG, "a canvas holds", &err);
    free(wide);
    dg_session_destroy(s);
}

/* A session that there is no memory for leaves the backend's other sessions what they compute in. */
static void failed_session(void **state) {
    (void)state;
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 256}), *large = NULL;
    ask(s);
    uint64_t want = step_bits(s, 1), n = 1;
    struct dg_session_opts o = {.ctx = 1000, .chunk = 300};
    for (;; n++) {
        struct dg_error err = {0};
        dg_mem_fail_at(n);
        enum dg_status st = dg_session_create(&large, small, &o, &err);
        dg_mem_fail_at(0);
        if (st == DG_OK)
            break;
        assert_int_equal(st, DG_E_NOMEM);
        dg_error_clear(&err);
        assert_true(step_bits(s, 1) == want);
    }
    assert_true(n > 8 && step_bits(s, 1) == want);
    dg_session_destroy(large);
    dg_session_destroy(s);
}

/* What is kept is a finished attempt, once. */
static void nothing_to_keep(void **state) {
    (void)state;
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 256});
    struct dg_error err = {0};
    struct dg_turn t;
    struct dg_commit plan;
    struct seen z;
    bool again;
    ask(s);
    struct dg_turn_opts o = three_blocks(&z, s);
    ok(dg_turn_begin(&t, s, &o, &err), &err);
    refused(dg_turn_commit(&t, &again, &err), DG_E_ARG, "no finished attempt", &err);
    ok(dg_turn_propose(&t, 0, &err), &err);
    ok(dg_turn_plan(&t, &plan, &err), &err);
    ok(dg_turn_keep(&t, 3, &err), &err);
    refused(dg_turn_keep(&t, 3, &err), DG_E_ARG, "no finished attempt", &err);
    ok(dg_turn_propose(&t, 0, &err), &err);
    dg_turn_discard(&t);
    refused(dg_turn_plan(&t, &plan, &err), DG_E_ARG, "no finished attempt", &err);
    ok(dg_turn_propose(&t, 0, &err), &err);
    atomic_bool stop = true;
    s->cancel = &stop;
    refused(dg_turn_propose(&t, 0, &err), DG_E_CANCELLED, "", &err);
    s->cancel = NULL;
    refused(dg_turn_keep(&t, 3, &err), DG_E_ARG, "no finished attempt", &err);
    assert_int_equal(s->kv.len, QUESTION_N + 3);
    assert_int_equal(t.out.n, 3);
    dg_turn_deinit(&t);
    dg_session_destroy(s);
}

/* ---- numbers that are none ---- */

static void poisoned_cache(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 512, .kv = DG_F32};
    struct dg_ids want = fresh_answer(o), got;
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    struct seen z;
    ask(s);
    ((float *)s->kv.layer[1].v)[7] = NAN;
    uint64_t before = fingerprint(s);
    struct dg_turn_opts t = three_blocks(&z, s);
    refused(turn(s, &t, NULL, NULL, &err), DG_E_NUMERIC,
            "step 1 of block 1: the logits of 16 of 16 canvas rows hold NaN or Inf, the first is row 0", &err);
    refused(turn(s, &t, NULL, NULL, &err), DG_E_NUMERIC, "diffgemma verify", &err);
    assert_true(z.blocks == 0 && z.steps == 0 && s->kv.len == QUESTION_N && fingerprint(s) == before);
    ask(s);
    t = three_blocks(&z, s);
    ok(turn(s, &t, &got, NULL, &err), &err);
    assert_true(equal(&got, &want));
    dg_ids_deinit(&got);
    dg_ids_deinit(&want);
    dg_session_destroy(s);
}

/* Without the check a row of NaN counts as one that could be anything, and the turn goes on. */
static void unchecked(void **state) {
    (void)state;
    struct dg_session *s = session(small, (struct dg_session_opts){.ctx = 512, .kv = DG_F32, .unchecked_logits = true});
    struct dg_error err = {0};
    struct seen z;
    ask(s);
    ((float *)s->kv.layer[1].v)[7] = NAN;
    int32_t *canvas = stream(3, SMALL_CANVAS);
    ok(dg_session_step(s, canvas, SMALL_CANVAS, DG_SC_SEED, 1.25f, &err), &err);
    for (int i = 0; i < SMALL_CANVAS; i++) {
        assert_true(s->entropy[i] == logf((float)s->cfg->vocab) && s->p_max[i] == 0);
        assert_in_range(s->argmax[i], 0, s->cfg->vocab - 1);
    }
    free(canvas);
    struct dg_turn_opts o = turn_opts(&z, s, 20);
    ok(turn(s, &o, NULL, NULL, &err), &err);
    dg_session_destroy(s);
}

static const char *const nan_tensor[] = {
    "model.decoder.embed_tokens.weight",           "model.decoder.norm.weight",
    "model.decoder.layers.0.self_attn.q_proj.weight", "model.decoder.layers.1.self_attn.v_proj.weight",
    "model.decoder.layers.2.self_attn.k_norm.weight", "model.decoder.layers.1.layer_scalar",
    "model.decoder.layers.0.router.proj.weight",   "model.decoder.layers.2.router.per_expert_scale",
    "model.decoder.layers.0.mlp.down_proj.weight", "model.decoder.self_conditioning.gate_proj.weight",
};

/* Small vectors are refused when the checkpoint opens; with a matrix the first turn is an error, each time. */
static void nan_weights(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof nan_tensor / sizeof *nan_tensor; i++)
        for (int inf = 0; inf < 2; inf++) {
            struct mk_ckpt c;
            mk_build(&c, &mk_tiny, "BF16", false, 5);
            struct mk_tensor *bad = mk_get(&c, nan_tensor[i]);
            size_t n = bad->bytes / 2;
            /* every element of a small tensor; of a large one the first row */
            for (size_t k = 0; k < (n < 64 ? n : 64); k++)
                mk_set(bad, k, inf ? INFINITY : NAN);
            char *dir = mk_tmpdir();
            mk_write(&c, dir, 0);
            struct dg_error err = {0};
            struct dg_model *m;
            struct dg_backend *b;
            struct dg_backend_opts bo = {.threads = 1};
            if (bad->rank == 1) {
                refused(dg_model_open(&m, dir, &err), DG_E_FORMAT, nan_tensor[i], &err);
                mk_remove(dir);
                free(dir);
                mk_free(&c);
                continue;
            }
            ok(dg_model_open(&m, dir, &err), &err);
            ok(dg_backend_open(&b, backend(), m, &bo, &err), &err);
            struct dg_session *s = session(b, (struct dg_session_opts){.kv = DG_F32});
            int32_t ids[5] = {1, 2, 3, 4, 5};
            extend(s, ids, 5);
            for (int again = 0; again < 2; again++) {
                struct seen z;
                struct dg_turn_opts t = turn_opts(&z, s, 50);
                enum dg_status st = turn(s, &t, NULL, NULL, &err);
                if (st != DG_E_NUMERIC || !strstr(dg_error_text(&err), "NaN"))
                    fail_msg("%s with %s: %s: %s", nan_tensor[i], inf ? "Inf" : "NaN", dg_status_name(st), dg_error_text(&err));
                dg_error_clear(&err);
                assert_int_equal(z.blocks, 0);
                assert_int_equal(s->kv.len, 5);
            }
            dg_session_destroy(s);
            dg_backend_destroy(b);
            dg_model_close(m);
            mk_remove(dir);
            free(dir);
            mk_free(&c);
        }
}

/* ---- memory ---- */

static uint64_t allocs[64];
static int n_allocs;

static void note_allocs(void *ctx, const struct dg_step_event *e) {
    (void)ctx;
    (void)e;
    if (n_allocs < 64)
        allocs[n_allocs++] = dg_mem_count();
}

static void allocates_nothing(void **state) {
    (void)state;
    struct dg_session_opts o = {.ctx = 512, .kv = DG_F16, .chunk = 32, .attention = user_attention, .sc_sparse = true};
    struct dg_session *s = session(small, o);
    struct dg_error err = {0};
    int32_t *ids = stream(1, 300);
    extend(s, ids, 40);
    uint64_t before = dg_mem_count();
    extend(s, ids, 200);
    assert_true(dg_mem_count() == before);
    ok(dg_session_step(s, ids, SMALL_CANVAS, DG_SC_SEED, 1.25f, &err), &err);
    before = dg_mem_count();
    for (int i = 0; i < 3; i++)
        ok(dg_session_step(s, ids, SMALL_CANVAS - i, DG_SC_SOFT, 1.25f, &err), &err);
    ok(dg_session_rewind(s, 100, NULL, NULL, &err), &err);
    ok(dg_session_rewind(s, 0, NULL, NULL, &err), &err);
    extend(s, ids, 100);
    assert_true(dg_mem_count() == before);
    for (int argmax = 0; argmax < 2; argmax++) {
        struct seen z;
        ask(s);
        struct dg_turn_opts t = three_blocks(&z, s);
        t.on_step = note_allocs;
        t.on_block = NULL;
        t.sampler.argmax = argmax;
        n_allocs = 0;
        ok(turn(s, &t, NULL, NULL, &err), &err);
        assert_true(n_allocs == 15);
        for (int i = 1; i < n_allocs; i++)
            if (allocs[i] != allocs[0])
                fail_msg("%s: step %d made %llu allocations", argmax ? "argmax" : "draws", i + 1, (unsigned long long)(allocs[i] - allocs[i - 1]));
    }
    free(ids);
    dg_session_destroy(s);
}

/* Everything from the folder to the end of a turn; ids of it in out. */
static enum dg_status whole(const char *dir, int threads, struct dg_ids *out, struct dg_error *err) {
    struct dg_model *m = NULL;
    struct dg_backend *b = NULL;
    struct dg_session *s = NULL;
    struct dg_backend_opts bo = {.threads = threads};
    struct dg_session_opts so = {.ctx = 60, .chunk = 8, .kv = DG_F16, .attention = user_attention};
    static const int32_t ids[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    enum dg_status st;
    DG_GO(dg_model_open(&m, dir, err));
    DG_GO(dg_backend_open(&b, backend(), m, &bo, err));
    DG_GO(dg_session_create(&s, b, &so, err));
    DG_GO(dg_session_extend(s, ids, 20, NULL, NULL, err));
    struct seen z;
    struct dg_turn_opts t = endless(&z, s);
    t.sampler.steps_max = 2;
    t.sampler.argmax = false;
    struct dg_turn run;
    DG_GO(dg_turn_begin(&run, s, &t, err));
    st = dg_turn_run(&run, err);
    out->n = 0;
    if (st == DG_OK && dg_ids_add(out, run.out.v, run.out.n) != DG_OK)
        fail();
    dg_turn_deinit(&run);
done:
    dg_session_destroy(s);
    dg_backend_destroy(b);
    dg_model_close(m);
    return st;
}

static void every_allocation_fails(void **state) {
    (void)state;
    struct mk_ckpt c;
    char *dir = mk_tmpdir();
    mk_build(&c, &mk_tiny, "BF16", true, 5);
    mk_write(&c, dir, 2);
    struct dg_error err = {0};
    struct dg_ids want, got;
    dg_ids_init(&want);
    dg_ids_init(&got);
    assert_int_equal(dg_ids_reserve(&got, 1000), DG_OK);
    ok(whole(dir, 2, &want, &err), &err);
    assert_true(want.n > 0);
    int swallowed = 0;
    for (uint64_t n = 1;; n++) {
        uint64_t before = dg_mem_count();
        dg_mem_fail_at(n);
        enum dg_status st = whole(dir, 2, &got, &err);
        uint64_t made = dg_mem_count() - before;
        dg_mem_fail_at(0);
        if (st == DG_OK) {
            assert_true(equal(&got, &want)); /* what could not be had was not needed */
            if (made < n)
                break;
            swallowed++;
        } else if (st != DG_E_NOMEM || !dg_error_text(&err)[0])
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, dg_status_name(st), dg_error_text(&err));
        dg_error_clear(&err);
        assert_true(n < 100000);
    }
    assert_true(swallowed < 3);
    dg_ids_deinit(&want);
    dg_ids_deinit(&got);
    mk_remove(dir);
    free(dir);
    mk_free(&c);
}

/* A backend's wish is met as far as the rings go that the options ask for, and never makes them larger. */
static void wished_chunk(void **state) {
    (void)state;
    const struct dg_config c = {.canvas = 256, .window = 1024, .ctx_max = 262144, .layers = 1, .layer = {{.hd = 256, .kv_heads = 8}}};
    const struct dg_ops ops = {.chunk = 3072};
    static const struct {
        int64_t ctx, ring;
        int32_t set, want;
    } t[] = {{100000, 4096, 0, 3072}, {100000, 2048, 0, 1024}, {100000, 16, 0, 1024}, {100000, 8192, 0, 3072}, {3000, 16, 0, 1024},
             {2000, 16, 0, 2000},     {8192, 4096, 77, 77}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct dg_session_opts o = {.ctx = t[i].ctx, .ring = t[i].ring, .chunk = t[i].set}, least = o;
        assert_int_equal(dg_session_opts_resolve(&c, &ops, &o, NULL), DG_OK);
        assert_int_equal(dg_session_opts_resolve(&c, NULL, &least, NULL), DG_OK);
        assert_int_equal(o.chunk, t[i].want);
        assert_int_equal(least.chunk, t[i].set ? t[i].set : 256);
        assert_int_equal(dg_kv_bytes(&c, o.ctx, o.ring, o.chunk, DG_F16), dg_kv_bytes(&c, o.ctx, o.ring, least.chunk, DG_F16));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks), cmocka_unit_test(wished_chunk),
        cmocka_unit_test(every_length),          cmocka_unit_test(pieces),         cmocka_unit_test(threads_and_runs),
        cmocka_unit_test(after_another_request), cmocka_unit_test(rewinding), cmocka_unit_test(rewinding_often),
        cmocka_unit_test(failed_turns),    cmocka_unit_test(cancelled_prefill), cmocka_unit_test(failed_prefill),
        cmocka_unit_test(modes), cmocka_unit_test(trajectories),           cmocka_unit_test(draws),          cmocka_unit_test(extend_last),
        cmocka_unit_test(canvas_ids),      cmocka_unit_test(rerolls),        cmocka_unit_test(context_end),
        cmocka_unit_test(bad_options),     cmocka_unit_test(failed_session), cmocka_unit_test(nothing_to_keep),
        cmocka_unit_test(poisoned_cache), cmocka_unit_test(unchecked), cmocka_unit_test(nan_weights),
        cmocka_unit_test(allocates_nothing), cmocka_unit_test(every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
