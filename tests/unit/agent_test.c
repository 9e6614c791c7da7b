/* A session of an agent on the bundled model: real replies, real tool calls, retries, edits, resets. Its op log replays without a difference, and
 * its token log fed to an empty engine gives the same cache and the same next tokens. Turns: AGENT_TURNS in the environment, 40 by default,
 * 200 with DG_LONG=1. (Field failure A03) */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "chat/chat.h"
#include "message/turn_text.h"
#include "ops/backends.h"
#include "pipeline/replay.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dg_model *model;
static struct dg_backend *be;
static struct dg_tokenizer *tok;
static struct dg_turn_text turn_text;
static struct dg_engine *engine;
static int turns, calls, steps;

static void must(enum dg_status st, struct dg_error *err) {
    if (st != DG_OK)
        fail_msg("%s", dg_error_text(err));
}

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) { return dg_turn_text_shows_nothing(ctx, ids, n); }

static void fill_opts(struct dg_engine_opts *o) {
    o->blank = turn_text.blank;
    o->shows_nothing = shows_nothing;
    o->text_ctx = &turn_text;
}

static enum dg_status open_again(void *ctx, const struct dg_oplog_session *head, struct dg_stage **out, struct dg_error *err) {
    struct dg_engine_opts o = head->engine;
    (void)ctx;
    fill_opts(&o);
    DG_TRY(dg_engine_create(&engine, be, &o, err));
    *out = dg_engine_stage(engine);
    return DG_OK;
}

static void on_report(void *ctx, const struct dg_replay_session *s) {
    (void)ctx;
    if (s->differs)
        fail_msg("op %lld\n  recorded %s\n  replayed %s", (long long)s->op, s->recorded, s->replayed);
}

static bool on_allow(void *ctx, const struct dg_tool_call *call) {
    (void)ctx;
    (void)call;
    calls++;
    return true;
}

static void on_block(void *ctx, const struct dg_block_event *e) {
    (void)ctx;
    turns += e->block == 0;
    steps += e->steps_all;
}

static void say(struct dg_chat *c, const char *form, const char *what) {
    char text[200];
    struct dg_error err = {0};
    snprintf(text, sizeof text, form, what);
    must(dg_chat_send(c, text, strlen(text), &err), &err);
}

/* What the bundled model was trained on is one exchange about a tool, so most conversations are short; some go on, and the last one is long: there it
 * wanders, and the cache goes around its ring. */
static void converse(struct dg_chat *c, int want) {
    static const char *const cities[] = {"Paris", "Oslo", "Rome", "Madrid", "Cairo", "Tokyo", "Vienna", "Athens", "Berlin", "Lisbon"};
    static const char *const systems[] = {"You are a helpful assistant.", "Answer briefly.", "You are a friendly helper."};
    struct dg_error err = {0};
    for (int i = 0; turns < want; i++) {
        const char *sys = systems[i % 3];
        if (i % 5 != 4 && turns < want - want / 8)
            dg_chat_reset(c);
        if (i % 4 == 1)
            must(dg_dialog_system(&c->dialog, sys, strlen(sys), &err), &err);
        say(c, i % 7 == 6 ? "Hello!" : i % 2 ? "What is the weather in %s?" : "How is the weather in %s today?", cities[i * 7 % 10]);
        if (i % 6 == 2)
            must(dg_chat_retry(c, &err), &err);
        if (i % 9 == 4)
            (void)dg_chat_undo(c);
    }
}

static struct dg_result op(struct dg_stage *s, struct dg_op o) {
    struct dg_result r = {0};
    struct dg_error err = {0};
    must(dg_stage_call(s, &o, NULL, NULL, &r, &err), &err);
    return r;
}

static void agent_session(void **state) {
    (void)state;
    static const char harness[] =
        "{\"prompt\": \"You are a helpful assistant.\", \"tools\": [{\"name\": \"get_weather\", \"description\": \"Get the current weather in a "
        "city.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"description\": \"City name\"}}, "
        "\"required\": [\"city\"]}, \"command\": [\"echo\", \"rainy, 7 C in {city}\"]}]}";
    const char *env = getenv("AGENT_TURNS");
    int want = env ? atoi(env) : getenv("DG_LONG") ? 200 : 40;
    struct dg_error err = {0};
    char *dir = mk_tmpdir(), path[600];
    struct dg_toolbox tools = {0};
    mk_put(dir, "harness.json", harness, sizeof harness - 1);
    snprintf(path, sizeof path, "%s/harness.json", dir);
    must(dg_toolbox_load(&tools, path, &err), &err);
    struct dg_engine_opts eo = {.session = {.ctx = 4096, .kv = DG_F16, .ring = 256, .sc_sparse = true}, .conversations_max = 1};
    dg_gen_init(&eo.gen, &model->cfg, NULL);
    dg_turn_text_policy(&turn_text, &eo.gen.policy);
    fill_opts(&eo);
    must(dg_engine_create(&engine, be, &eo, &err), &err);
    struct dg_stage *stage = dg_engine_stage(engine);
    struct dg_oplog_head head = {"test", "models/mini", dg_model_id(model), be->ops->name, &eo, 1, true};
    must(dg_stage_oplog(&stage, stage, dir, &head, false, &err), &err);
    struct dg_pipeline *p;
    must(dg_pipeline_start(&p, stage, 0, &err), &err);
    struct dg_chat chat;
    struct dg_chat_opts co = {.pipeline = p, .tok = tok, .tools = &tools, .gen = eo.gen, .ctx = 4096, .canvas = model->cfg.canvas, .rounds = 4,
                              .ui = {.block = on_block, .allow = on_allow}};
    co.gen.max_tokens = 64;
    co.gen.sampler.steps_max = 16;
    must(dg_chat_init(&chat, &co, &err), &err);
    converse(&chat, want);
    /* the log, its cache and what comes next */
    struct dg_ids log = {0};
    struct dg_result print = {0}, next = {0};
    struct dg_gen g = co.gen;
    g.seed = 99;
    must(dg_pipeline_call(p, &(struct dg_op){.kind = DG_OP_FINGERPRINT}, NULL, NULL, &print, &err), &err);
    const struct dg_ids *live = &dg_engine_current(engine)->s->log; /* the pipeline is at rest */
    assert_int_equal(dg_ids_add(&log, live->v, live->n), DG_OK);
    must(dg_pipeline_call(p, &(struct dg_op){.kind = DG_OP_GENERATE, .gen = &g}, NULL, NULL, &next, &err), &err);
    dg_chat_deinit(&chat);
    dg_pipeline_close(p);
    /* replayed */
    struct dg_replay_opts ro = {NULL, open_again, on_report, NULL};
    struct dg_replay_total total;
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, dir);
    must(dg_replay_run(path, &ro, &total, &err), &err);
    assert_int_equal(total.sessions, 1);
    assert_int_equal(total.differing, 0);
    /* fed fresh */
    must(dg_engine_create(&engine, be, &eo, &err), &err);
    stage = dg_engine_stage(engine);
    op(stage, (struct dg_op){.kind = DG_OP_EXTEND, .ids = log.v, .n = log.n});
    assert_int_equal(op(stage, (struct dg_op){.kind = DG_OP_FINGERPRINT}).fingerprint, print.fingerprint);
    struct dg_result fresh = op(stage, (struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
    assert_int_equal(fresh.ids.n, next.ids.n);
    assert_memory_equal(fresh.ids.v, next.ids.v, next.ids.n * sizeof *next.ids.v);
    print_message("# %d turns, %d tool calls, %d steps; %lld ops and %lld events replayed; a log of %zu tokens fed fresh\n", turns, calls, steps,
                  (long long)total.ops, (long long)total.events, log.n);
    assert_true(turns >= want && calls * 4 >= want);
    dg_stage_destroy(stage);
    dg_ids_deinit(&log);
    dg_ids_deinit(&next.ids);
    dg_ids_deinit(&fresh.ids);
    dg_toolbox_deinit(&tools);
    mk_remove(dir);
    free(dir);
}

static int set_up(void **state) {
    (void)state;
    return dg_model_open(&model, "models/mini", NULL) != DG_OK || dg_backend_open(&be, "cpu", model, NULL, NULL) != DG_OK ||
           dg_tokenizer_open(&tok, "models/mini/tokenizer.json", NULL) != DG_OK ||
           dg_turn_text_init(&turn_text, tok, model->cfg.vocab, NULL) != DG_OK;
}

static int tear_down(void **state) {
    (void)state;
    dg_turn_text_deinit(&turn_text);
    dg_tokenizer_close(tok);
    dg_backend_destroy(be);
    dg_model_close(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(agent_session)};
    return cmocka_run_group_tests_name("agent", tests, set_up, tear_down);
}
