/* The length rule of prefill (DGQ_FAST_PREFILL): its table, and that each path leaves the bits of a session that knows that precision only. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/backends.h"
#include "sampler/rng.h"
#include "session/session.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 700
static const struct mk_shape shape = {.vocab = 500, .hidden = 32, .layers = 2, .heads = 4, .kv = 2, .hd = 8, .full_kv = 1, .full_hd = 16,
                                      .inter = 16, .experts = 6, .topk = 2, .moe = 8, .canvas = 16, .window = 32, .full = 1 << 1};
static struct dg_model *model;
static struct dg_backend *f32, *bf16, *ref;
static char *dir;
static int32_t ids[MOST];

static void ok(enum dg_status st, struct dg_error *err) {
    if (st != DG_OK)
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(err));
}

static int setup(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct mk_ckpt c;
    struct dg_rng r;
    mk_build(&c, &shape, "BF16", false, 3);
    dir = mk_tmpdir();
    mk_write(&c, dir, 0);
    mk_free(&c);
    dg_rng_init(&r, 11);
    for (int i = 0; i < MOST; i++)
        ids[i] = dg_rng_id(&r, shape.vocab);
    ok(dg_model_open(&model, dir, &err), &err);
    ok(dg_backend_open(&f32, "cpu", model, &(struct dg_backend_opts){.threads = 2, .exact = true}, &err), &err);
    ok(dg_backend_open(&bf16, "cpu", model, &(struct dg_backend_opts){.threads = 2, .bf16_planes = true}, &err), &err);
    ok(dg_backend_open(&ref, "ref", model, &(struct dg_backend_opts){.threads = 1}, &err), &err);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dg_backend_destroy(f32);
    dg_backend_destroy(bf16);
    dg_backend_destroy(ref);
    dg_model_close(model);
    mk_remove(dir);
    free(dir);
    return 0;
}

static struct dg_session *session(struct dg_backend *be, enum dg_prefill_rule rule, int64_t max, int64_t ring) {
    struct dg_error err = {0};
    struct dg_session *s;
    struct dg_session_opts o = {.ctx = 1024, .kv = DG_F32, .ring = ring, .chunk = 50, .prefill = rule, .fast_max = max};
    ok(dg_session_create(&s, be, &o, &err), &err);
    return s;
}

static void extend(struct dg_session *s, int n) {
    struct dg_error err = {0};
    ok(dg_session_extend(s, ids + s->kv.len, (size_t)n, NULL, NULL, &err), &err);
}

static uint64_t cache(const struct dg_session *s) {
    struct dg_error err = {0};
    uint64_t f = 0;
    ok(dg_kv_fingerprint(&s->kv, s->be, &f, &err), &err);
    return f;
}

/* Hash of the logits of two steps. */
static uint64_t logits(struct dg_session *s) {
    struct dg_error err = {0};
    uint64_t h = 1469598103934665603u;
    ok(dg_session_step(s, ids, shape.canvas, DG_SC_SEED, 1.25f, &err), &err);
    ok(dg_session_step(s, ids + 7, shape.canvas, DG_SC_SOFT, 1.5f, &err), &err);
    const uint32_t *p = s->planes->logits.data;
    for (int i = 0; i < shape.canvas * shape.vocab; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static void table(void **state) {
    (void)state;
    static const struct {
        enum dg_prefill_rule rule;
        int64_t max, before, n;
        bool fast;
    } want[] = {
        {DG_PREFILL_AUTO, 0, 0, 1, false},      {DG_PREFILL_AUTO, 0, 0, 256, false},    {DG_PREFILL_AUTO, 0, 0, 257, true},
        {DG_PREFILL_AUTO, 0, 0, 100000, true},  {DG_PREFILL_AUTO, 300, 0, 300, true},   {DG_PREFILL_AUTO, 300, 0, 301, false},
        {DG_PREFILL_AUTO, 100, 0, 200, false},  {DG_PREFILL_AUTO, 0, 1, 1, true},       {DG_PREFILL_AUTO, 0, 5000, 256, true},
        {DG_PREFILL_AUTO, 300, 10, 300, true},  {DG_PREFILL_AUTO, 300, 10, 301, false}, {DG_PREFILL_EXACT, 0, 0, 257, false},
        {DG_PREFILL_EXACT, 0, 0, 1, false},     {DG_PREFILL_EXACT, 0, 1, 1, true},      {DG_PREFILL_EXACT, 5, 1, 6, false},
        {DG_PREFILL_FAST, 0, 0, 1, true},       {DG_PREFILL_FAST, 300, 0, 301, true},   {DG_PREFILL_FAST, 300, 1, 301, false},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (dg_prefill_is_fast(want[i].rule, want[i].max, want[i].before, want[i].n) != want[i].fast)
            fail_msg("rule %d, at most %lld, %lld tokens behind %lld: not %s", want[i].rule, (long long)want[i].max, (long long)want[i].n,
                     (long long)want[i].before, want[i].fast ? "fast" : "exact");
}

/* Whole prompts, whatever planes the session's steps have: the cache of a session of the one precision, and with it the logits. */
static void whole_prompts(void **state) {
    (void)state;
    static const struct {
        enum dg_prefill_rule rule;
        int64_t max;
        int n;
        bool fast;
    } cases[] = {{DG_PREFILL_AUTO, 0, 256, false},   {DG_PREFILL_AUTO, 0, 257, true},  {DG_PREFILL_AUTO, 300, 301, false},
                 {DG_PREFILL_EXACT, 0, 300, false}, {DG_PREFILL_FAST, 0, 20, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dg_backend *own = cases[i].fast ? bf16 : f32, *not_own = cases[i].fast ? f32 : bf16;
        struct dg_session *plain = session(own, DG_PREFILL_ONE_PATH, 0, 64), *not_plain = session(not_own, DG_PREFILL_ONE_PATH, 0, 64);
        struct dg_session *same = session(own, cases[i].rule, cases[i].max, 64), *mixed = session(not_own, cases[i].rule, cases[i].max, 64);
        struct dg_session *const all[] = {plain, not_plain, same, mixed};
        for (int k = 0; k < 4; k++)
            extend(all[k], cases[i].n);
        assert_true(cache(plain) == cache(same) && cache(plain) == cache(mixed) && cache(plain) != cache(not_plain));
        uint64_t want = logits(plain), other = logits(not_plain);
        assert_true(logits(same) == want && want != other);
        assert_true(logits(mixed) != want); /* its steps have planes of their own */
        for (int k = 0; k < 4; k++)
            dg_session_destroy(all[k]);
    }
}

/* Layer 0's keys depend on the token and its place alone: they tell which planes a position was computed in. */
static bool computed_in(const struct dg_session *s, const struct dg_session *like, int64_t from, int64_t to) {
    const struct dg_kv_layer *a = &s->kv.layer[0], *b = &like->kv.layer[0];
    size_t row = (size_t)(a->kv_heads * a->hd);
    for (int64_t p = from; p < to; p++)
        if (memcmp((float *)a->k + (size_t)dg_kv_slot(a, p) * row, (float *)b->k + (size_t)dg_kv_slot(b, p) * row, row * sizeof(float)) != 0)
            return false;
    return true;
}

static void later_tokens(void **state) {
    (void)state;
    struct dg_session *exact = session(f32, DG_PREFILL_ONE_PATH, 0, 1024), *fast = session(bf16, DG_PREFILL_ONE_PATH, 0, 1024);
    extend(exact, 600);
    extend(fast, 600);
    assert_false(computed_in(exact, fast, 0, 600));
    for (int main_bf16 = 0; main_bf16 < 2; main_bf16++)
        for (enum dg_prefill_rule rule = DG_PREFILL_AUTO; rule <= DG_PREFILL_FAST; rule++) {
            struct dg_session *s = session(main_bf16 ? bf16 : f32, rule, 120, 1024);
            extend(s, 100);
            assert_true(computed_in(s, rule == DG_PREFILL_FAST ? fast : exact, 0, 100));
            extend(s, 30);
            assert_true(computed_in(s, fast, 100, 130)); /* the force flag does not reach it */
            extend(s, 121);
            assert_true(computed_in(s, exact, 130, 251)); /* more than fast_max */
            struct dg_error err = {0};
            ok(dg_session_append(s, ids + 251, 16, &err), &err); /* a committed block */
            assert_true(computed_in(s, fast, 251, 267));
            dg_session_destroy(s);
        }
    dg_session_destroy(exact);
    dg_session_destroy(fast);
}

/* A prefix that must be computed again takes the paths that it took the first time. */
static void rewound(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_session *s = session(f32, DG_PREFILL_AUTO, 0, 64), *fresh = session(f32, DG_PREFILL_AUTO, 0, 64);
    extend(s, 200);
    extend(s, 40);
    extend(s, 300);
    extend(fresh, 200);
    extend(fresh, 40);
    extend(fresh, 7);
    assert_true(dg_session_cut_floor(s) > 247);
    ok(dg_session_rewind(s, 247, NULL, NULL, &err), &err);
    assert_true(s->computed == 540 + 247 && cache(s) == cache(fresh) && logits(s) == logits(fresh));
    dg_session_destroy(s);
    dg_session_destroy(fresh);
}

/* Sessions that share planes share those of the other precision too. */
static void shared_planes(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_session *a = session(f32, DG_PREFILL_AUTO, 0, 64), *b, *plain = session(bf16, DG_PREFILL_ONE_PATH, 0, 64);
    struct dg_session_opts o = a->opts;
    o.planes = a->planes;
    o.other = a->other;
    ok(dg_session_create(&b, f32, &o, &err), &err);
    extend(a, 300);
    extend(b, 290);
    extend(plain, 290);
    assert_true(cache(b) == cache(plain));
    dg_session_destroy(b);
    extend(a, 10);
    dg_session_destroy(a);
    dg_session_destroy(plain);
}

static void refusals(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_session *s;
    struct dg_session_opts o = {.ctx = 1024, .prefill = DG_PREFILL_AUTO};
    assert_int_equal(dg_session_create(&s, ref, &o, &err), DG_E_ARG);
    assert_non_null(strstr(dg_error_text(&err), "DGQ_FAST_PREFILL needs planes in f32 and in bf16, and the backend ref has one kind"));
    dg_error_clear(&err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),   cmocka_unit_test(whole_prompts), cmocka_unit_test(later_tokens),
        cmocka_unit_test(rewound), cmocka_unit_test(shared_planes), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("prefill", tests, setup, teardown);
}
