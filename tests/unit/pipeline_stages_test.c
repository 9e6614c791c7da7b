/* Stages around the engine: op log and replay, validator, repair, script. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipeline/pipeline.h"
#include "pipeline/replay.h"
#include "support/mkckpt.h"
#include "support/rig.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rig rig;
static struct dg_engine *engine;
static struct dg_stage *stage;

static void begin_rig(int64_t ctx, size_t conversations) {
    rig_open(&rig, 5, ctx, 64);
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

/* As done, for ops that a random session may also see refused. */
static struct dg_result tried(struct dg_op op) {
    struct dg_result r = {0};
    struct dg_error err = {0};
    if (dg_stage_call(stage, &op, NULL, NULL, &r, &err) != DG_OK)
        dg_error_clear(&err);
    return r;
}

static uint64_t print(void) { return done((struct dg_op){.kind = DG_OP_FINGERPRINT}).fingerprint; }

/* --- op log --- */

static void log_to(const char *dir) {
    struct dg_oplog_head h = {"test", rig.dir, dg_model_id(rig.model), "ref", &rig.opts, rig.opts.conversations_max, false};
    struct dg_error err = {0};
    if (dg_stage_oplog(&stage, stage, dir, &h, false, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
}

static enum dg_status open_again(void *ctx, const struct dg_oplog_session *head, struct dg_stage **out, struct dg_error *err) {
    (void)ctx;
    assert_int_equal(head->model_id, dg_model_id(rig.model));
    assert_string_equal(head->model_dir, rig.dir);
    assert_int_equal(head->engine.session.ctx, rig.opts.session.ctx);
    struct dg_engine *e;
    DG_TRY(dg_engine_create(&e, rig.be, &head->engine, err));
    *out = dg_engine_stage(e);
    return DG_OK;
}

struct told {
    int sessions, differing;
    int64_t op, ops;
    char note[128], recorded[512], replayed[512];
};

static void on_report(void *ctx, const struct dg_replay_session *s) {
    struct told *t = ctx;
    t->sessions++;
    t->differing += s->differs;
    t->ops += s->ops;
    t->op = s->op;
    snprintf(t->note, sizeof t->note, "%s", s->note);
    snprintf(t->recorded, sizeof t->recorded, "%s", s->recorded);
    snprintf(t->replayed, sizeof t->replayed, "%s", s->replayed);
}

static struct dg_replay_total replayed(const char *path, struct told *t) {
    struct dg_replay_opts o = {NULL, open_again, on_report, t};
    struct dg_replay_total total;
    struct dg_error err = {0};
    memset(t, 0, sizeof *t);
    if (dg_replay_run(path, &o, &total, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    return total;
}

static void cancel_at(void *ctx, const struct dg_event *e) {
    struct {
        atomic_bool token;
        int left;
    } *c = ctx;
    if (e->kind != DG_EV_ANSWER && --c->left == 0)
        atomic_store(&c->token, true);
}

/* Every kind of op, good and refused, cancelled at every kind of place. */
static void lively_session(const char *dir) {
    char path[600];
    int32_t ids[60];
    for (int i = 0; i < 60; i++)
        ids[i] = 2 + i * 7 % 150;
    snprintf(path, sizeof path, "%s/saved", dir);
    tried((struct dg_op){.kind = DG_OP_PING});
    tried((struct dg_op){.kind = DG_OP_EXTEND, .ids = ids, .n = 60});
    struct dg_result r = tried((struct dg_op){.kind = DG_OP_MARK, .mark = "a \"quoted\" \\ name\n"});
    struct dg_kv_id at = r.at;
    for (int i = 1; i < 12; i++) {
        struct {
            atomic_bool token;
            int left;
        } c = {false, i};
        struct dg_op gen = {.kind = i % 3 ? DG_OP_GENERATE : DG_OP_FILL, .len = 100, .seed = (uint64_t)i, .cancel = &c.token};
        struct dg_error err = {0};
        if (dg_stage_call(stage, &gen, cancel_at, &c, NULL, &err) != DG_OK)
            dg_error_clear(&err);
    }
    atomic_bool now = true;
    tried((struct dg_op){.kind = DG_OP_GENERATE, .cancel = &now});
    tried((struct dg_op){.kind = DG_OP_REWIND, .at = at});
    tried((struct dg_op){.kind = DG_OP_REWIND, .mark = "a \"quoted\" \\ name\n"});
    r = tried((struct dg_op){.kind = DG_OP_GENERATE});
    ids[0] = 9;
    tried((struct dg_op){.kind = DG_OP_FINALIZE, .ids = ids, .n = 10});
    dg_ids_deinit(&r.ids);
    tried((struct dg_op){.kind = DG_OP_SPLICE, .start = 5, .end = 20, .ids = ids, .n = 7});
    tried((struct dg_op){.kind = DG_OP_SAVE, .path = path});
    tried((struct dg_op){.kind = DG_OP_LOAD, .path = path});
    tried((struct dg_op){.kind = DG_OP_LOAD, .path = "/nowhere/at all"});
    tried((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = 1});
    tried((struct dg_op){.kind = DG_OP_ROUTE, .ids = ids, .n = 40});
    tried((struct dg_op){.kind = DG_OP_ALIGN, .ids = ids, .n = 40});
    tried((struct dg_op){.kind = DG_OP_RELEASE});
    tried((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = DG_CONV_NEW});
    int32_t canvas[] = {1, 2, 3, 4, 5};
    struct dg_gen g = rig.opts.gen;
    g.canvas_ids = canvas;
    g.canvas_n = 5;
    g.seed = UINT64_MAX;
    g.sampler.argmax = false;
    tried((struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = &g});
    r = tried((struct dg_op){.kind = DG_OP_PROPOSE});
    dg_ids_deinit(&r.ids);
    tried((struct dg_op){.kind = DG_OP_DISCARD});
    r = tried((struct dg_op){.kind = DG_OP_PROPOSE, .len = 9});
    dg_ids_deinit(&r.ids);
    tried((struct dg_op){.kind = DG_OP_COMMIT, .kept = 4});
    r = tried((struct dg_op){.kind = DG_OP_END_TURN});
    dg_ids_deinit(&r.ids);
    tried((struct dg_op){.kind = DG_OP_EXTEND, .ids = canvas, .n = 5, .as_turn = true});
    tried((struct dg_op){.kind = DG_OP_FINGERPRINT});
    tried((struct dg_op){.kind = DG_OP_DROP});
    tried((struct dg_op){.kind = DG_OP_FINGERPRINT});
    tried((struct dg_op){.kind = DG_OP_SHUTDOWN});
}

static void a_log_replays(void **state) {
    (void)state;
    begin_rig(300, 2);
    char path[600];
    snprintf(path, sizeof path, "%s/log/" DG_OPLOG_FILE, rig.dir);
    char dir[600];
    snprintf(dir, sizeof dir, "%s/log", rig.dir);
    for (int session = 0; session < 2; session++) { /* both end up in one file */
        log_to(dir);
        lively_session(rig.dir);
        dg_stage_destroy(stage);
        engine = rig_engine(&rig);
        stage = dg_engine_stage(engine);
    }
    struct told t;
    struct dg_replay_total total = replayed(path, &t);
    if (t.differing)
        fail_msg("op %lld\n  recorded %s\n  replayed %s", (long long)t.op, t.recorded, t.replayed);
    assert_int_equal(total.sessions, 2);
    assert_int_equal(total.ops, 2 * 39);
    assert_true(total.events > 200);
    assert_string_equal(t.note, "");
    end_rig();
}

/* A changed digit anywhere in the events is found, and both sides are shown. */
static void a_difference_is_found(void **state) {
    (void)state;
    begin_rig(300, 2);
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, rig.dir);
    snprintf(other, sizeof other, "%s/other", rig.dir);
    log_to(rig.dir);
    int32_t ids[] = {2, 3, 4, 5};
    tried((struct dg_op){.kind = DG_OP_EXTEND, .ids = ids, .n = 4});
    struct dg_result r = tried((struct dg_op){.kind = DG_OP_GENERATE});
    dg_ids_deinit(&r.ids);
    print();
    size_t n;
    char *text = mk_slurp(path, &n);
    static const char *const where[] = {"\"hash\":\"", "\"H\":", "\"accepted\":", "\"ids\":[", "\"fingerprint\":\"", "\"done\":", "\"p\":\""};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        char *at = strstr(text, "\"t\":\"answer\""); /* the first op's answer is behind its events */
        at = strstr(i == 5 ? text : at, where[i]);
        assert_non_null(at);
        at += strlen(where[i]);
        char was = *at;
        *at = was == '1' ? '2' : '1';
        mk_put(rig.dir, "other", text, n);
        struct told t;
        replayed(other, &t);
        assert_int_equal(t.differing, 1);
        assert_true(t.recorded[0] && t.replayed[0] && strcmp(t.recorded, t.replayed) != 0);
        *at = was;
    }
    /* an event too few, and one too many */
    char *line = strstr(text, "\"t\":\"block\"");
    while (line[-1] != '\n')
        line--;
    size_t len = (size_t)(strchr(line, '\n') + 1 - line);
    char *less = malloc(n + len + 1);
    size_t before = (size_t)(line - text);
    memcpy(less, text, before);
    memcpy(less + before, line + len, n - before - len);
    mk_put(rig.dir, "other", less, n - len);
    struct told t;
    replayed(other, &t);
    assert_int_equal(t.differing, 1);
    memcpy(less + before, line, len);
    memcpy(less + before + len, line, n - before);
    mk_put(rig.dir, "other", less, n + len);
    replayed(other, &t);
    assert_int_equal(t.differing, 1);
    free(less);
    free(text);
    end_rig();
}

/* A log cut at every kind of place replays up to its last whole op. */
static void a_cut_log_replays(void **state) {
    (void)state;
    begin_rig(300, 2);
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, rig.dir);
    snprintf(other, sizeof other, "%s/other", rig.dir);
    log_to(rig.dir);
    int32_t ids[] = {2, 3, 4, 5};
    tried((struct dg_op){.kind = DG_OP_EXTEND, .ids = ids, .n = 4});
    struct dg_result r = tried((struct dg_op){.kind = DG_OP_GENERATE});
    dg_ids_deinit(&r.ids);
    size_t n;
    char *text = mk_slurp(path, &n);
    size_t head = (size_t)(strchr(text, '\n') + 1 - text);
    int64_t least = 2, most = 0;
    for (size_t cut = n; cut > head; cut -= cut > head + 397 ? 397 : cut - head) {
        mk_put(rig.dir, "other", text, cut);
        struct told t;
        struct dg_replay_total total = replayed(other, &t);
        assert_int_equal(total.differing, 0);
        least = total.ops < least ? total.ops : least;
        most = total.ops > most ? total.ops : most;
    }
    assert_int_equal(least, 0);
    assert_int_equal(most, 2);
    /* a new session behind a cut line begins on a line of its own */
    mk_put(rig.dir, DG_OPLOG_FILE, text, n - 40);
    dg_stage_destroy(stage);
    engine = rig_engine(&rig);
    stage = dg_engine_stage(engine);
    log_to(rig.dir);
    tried((struct dg_op){.kind = DG_OP_EXTEND, .ids = ids, .n = 4});
    struct told t;
    struct dg_replay_total total = replayed(path, &t);
    assert_int_equal(total.sessions, 2);
    assert_int_equal(total.ops, 2);
    assert_int_equal(total.cut_lines, 1);
    free(text);
    end_rig();
}

/* kill -9 in the middle of a turn loses at most the line being written. */
static void a_killed_process_leaves_a_log(void **state) {
    (void)state;
    begin_rig(300, 1);
    char path[600];
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, rig.dir);
    pid_t child = fork();
    if (child == 0) {
        log_to(rig.dir);
        for (uint64_t i = 0;; i++) {
            struct dg_result r = tried((struct dg_op){.kind = DG_OP_FILL, .len = 5, .seed = i});
            if (r.at.pos > 250)
                tried((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, 3}});
            r = tried((struct dg_op){.kind = DG_OP_GENERATE});
            dg_ids_deinit(&r.ids);
        }
    }
    struct stat sb = {0};
    for (int i = 0; i < 6000 && sb.st_size < 100000; i++) {
        usleep(5000);
        if (stat(path, &sb) != 0)
            sb.st_size = 0;
    }
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    struct told t;
    struct dg_replay_total total = replayed(path, &t);
    assert_int_equal(total.differing, 0);
    assert_true(total.ops > 3);
    end_rig();
}

static void hostile_logs(void **state) {
    (void)state;
    begin_rig(300, 2);
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, rig.dir);
    snprintf(other, sizeof other, "%s/other", rig.dir);
    log_to(rig.dir);
    lively_session(rig.dir);
    size_t n;
    char *text = mk_slurp(path, &n);
    uint64_t rng = 1;
    for (int i = 0; i < 30; i++) {
        char *bad = malloc(n);
        memcpy(bad, text, n);
        for (int k = 0; k < 1 + i % 4; k++)
            bad[rig_random(&rng, (uint32_t)n)] = "0123456789{}[],\":a-\n"[rig_random(&rng, 20)];
        mk_put(rig.dir, "other", bad, n);
        struct told t = {0};
        struct dg_replay_opts o = {NULL, open_again, on_report, &t};
        struct dg_replay_total total;
        struct dg_error err = {0};
        /* the head is checked by the opener; here only what follows it is damaged */
        size_t head = (size_t)(strchr(text, '\n') - text);
        if (memcmp(bad, text, head) == 0) {
            enum dg_status st = dg_replay_run(other, &o, &total, &err);
            assert_true(st == DG_OK || st == DG_E_FORMAT || st == DG_E_LIMIT);
            dg_error_clear(&err);
        }
        free(bad);
    }
    free(text);
    mk_put(rig.dir, "other", "hello\n", 6);
    struct dg_replay_opts o = {NULL, open_again, NULL, NULL};
    struct dg_replay_total total;
    assert_int_equal(dg_replay_run(other, &o, &total, NULL), DG_E_FORMAT);
    assert_int_equal(dg_replay_run("/nowhere", &o, &total, NULL), DG_E_IO);
    end_rig();
}

/* Two hundred turns of an agent: calls answered by results, finalized turns, now and then a retry or an edit. Replayed: no difference; its
 * token log in one prompt: the same KV bytes and the same next turn. (Field failure A03.) */
static void two_hundred_turns(void **state) {
    (void)state;
    rig_open(&rig, 5, 4096, 64);
    rig.opts.conversations_max = 1;
    rig.opts.gen.max_tokens = 8;
    rig.opts.gen.sampler.steps_max = 1;
    engine = rig_engine(&rig);
    stage = dg_engine_stage(engine);
    log_to(rig.dir);
    uint64_t rng = 3;
    done((struct dg_op){.kind = DG_OP_FILL, .len = 100, .seed = 1});
    for (uint64_t turn = 0; turn < 200; turn++) {
        struct dg_gen g = rig.opts.gen;
        g.seed = turn;
        struct dg_kv_id start = done((struct dg_op){.kind = DG_OP_PING}).at;
        struct dg_result r = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
        if (turn % 9 == 4) { /* asked again */
            dg_ids_deinit(&r.ids);
            done((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, start.pos}});
            g.seed += 1000;
            r = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
        }
        if (r.ids.n > 3 && turn % 2) { /* the canonical form differs */
            r.ids.n -= 2;
            assert_int_equal(dg_ids_add(&r.ids, (int32_t[]){48, 49, 50}, 3), DG_OK);
        }
        done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = r.ids.v, .n = r.ids.n});
        done((struct dg_op){.kind = DG_OP_FILL, .len = 2 + rig_random(&rng, 6), .seed = turn});
        if (turn % 17 == 9) {
            int64_t at = done((struct dg_op){.kind = DG_OP_PING}).at.pos;
            done((struct dg_op){.kind = DG_OP_SPLICE, .start = at - 20, .end = at - 15, .ids = (int32_t[]){7, 8}, .n = 2});
        }
        dg_ids_deinit(&r.ids);
    }
    uint64_t want = print();
    struct dg_ids log = {0};
    struct dg_ids *live = &dg_engine_current(engine)->s->log;
    assert_true(live->n > 1200);
    assert_int_equal(dg_ids_add(&log, live->v, live->n), DG_OK);
    struct dg_result next = done((struct dg_op){.kind = DG_OP_GENERATE});
    char path[600];
    snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, rig.dir);
    struct told t;
    replayed(path, &t);
    if (t.differing)
        fail_msg("op %lld\n  recorded %s\n  replayed %s", (long long)t.op, t.recorded, t.replayed);
    assert_true(t.ops > 600);
    dg_stage_destroy(stage);
    engine = rig_engine(&rig);
    stage = dg_engine_stage(engine);
    done((struct dg_op){.kind = DG_OP_EXTEND, .ids = log.v, .n = log.n});
    assert_int_equal(print(), want);
    struct dg_result fresh = done((struct dg_op){.kind = DG_OP_GENERATE});
    assert_int_equal(fresh.ids.n, next.ids.n);
    assert_memory_equal(fresh.ids.v, next.ids.v, next.ids.n * sizeof *next.ids.v);
    dg_ids_deinit(&next.ids);
    dg_ids_deinit(&fresh.ids);
    dg_ids_deinit(&log);
    end_rig();
}

/* A thousand turns, with a log, do not make the process larger. */
static void memory_is_flat(void **state) {
    (void)state;
    begin_rig(300, 2);
    rig.opts.gen.max_tokens = 8;
    rig.opts.gen.sampler.steps_max = 1;
    log_to(rig.dir);
    size_t at_100 = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        struct dg_gen g = rig.opts.gen;
        g.seed = i;
        done((struct dg_op){.kind = DG_OP_FILL, .len = 3, .seed = i});
        struct dg_result r = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
        done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = r.ids.v, .n = r.ids.n});
        done((struct dg_op){.kind = DG_OP_MARK, .mark = "end"});
        if (r.at.pos > 200)
            done((struct dg_op){.kind = DG_OP_REWIND, .at = {r.at.epoch, 1}});
        if (i % 50 == 0)
            done((struct dg_op){.kind = DG_OP_ACTIVATE, .conv = DG_CONV_NEW});
        dg_ids_deinit(&r.ids);
        if (i == 100)
            at_100 = mallinfo2().uordblks;
    }
    size_t now = mallinfo2().uordblks;
    /* a sanitizer's allocator counts elsewhere, and finds leaks by itself */
    if (now > at_100 + at_100 / 100)
        fail_msg("%zu bytes after 100 turns, %zu after 1000", at_100, now);
    end_rig();
}

/* --- validator and repair, with a check that calls 77 an invalid call --- */

static enum dg_status no_77(void *ctx, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid, struct dg_ids *feedback,
                            struct dg_error *err) {
    int *checks = ctx;
    (void)stop_id;
    (void)err;
    ++*checks;
    *invalid = 0;
    for (size_t i = 0; i < n; i++)
        *invalid += ids[i] == 77;
    for (int32_t i = 0; feedback && i < *invalid; i++)
        if (dg_ids_add(feedback, (int32_t[]){50, 60, 51}, 3) != DG_OK)
            return DG_E_NOMEM;
    return DG_OK;
}

static enum dg_status first_is_bad(void *ctx, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid, struct dg_ids *feedback,
                                   struct dg_error *err) {
    int *checks = ctx;
    (void)ids;
    (void)n;
    (void)stop_id;
    (void)feedback;
    (void)err;
    *invalid = (*checks)++ == 0;
    return DG_OK;
}

static size_t before_50(void *ctx, const int32_t *ids, size_t n) {
    size_t i = 0;
    (void)ctx;
    while (i < n && ids[i] != 50)
        i++;
    return i;
}

struct seen {
    int32_t text[64];
    size_t n;
    int blocks, notes, answers;
};

static void on_seen(void *ctx, const struct dg_event *e) {
    struct seen *s = ctx;
    s->notes += e->kind == DG_EV_NOTE;
    s->answers += e->kind == DG_EV_ANSWER;
    if (e->kind != DG_EV_BLOCK)
        return;
    s->blocks++;
    for (int32_t i = 0; i < e->block->kept && s->n < 64; i++)
        s->text[s->n++] = e->block->ids[i];
}

static const int32_t bad_turn[] = {10, 48, 77, 49}, good_turn[] = {10, 48, 12, 49, 13}, two_bad[] = {77, 11, 77}, invented[] = {20, 21, 22, 50, 99};
static const int32_t start_ids[] = {2, 3, 4, 5, 6, 7};

static void scripted(const struct dg_script_turn *turns, size_t n) {
    begin_rig(300, 1);
    assert_int_equal(dg_stage_script(&stage, stage, turns, n, NULL), DG_OK);
    done((struct dg_op){.kind = DG_OP_EXTEND, .ids = start_ids, .n = 6});
}

static void log_is(const int32_t *tail, size_t n) {
    const struct dg_ids *log = &dg_engine_current(engine)->s->log;
    assert_int_equal(log->n, 6 + n);
    assert_memory_equal(log->v, start_ids, sizeof start_ids);
    assert_memory_equal(log->v + 6, tail, n * sizeof *tail);
}

static uint64_t fresh_print(const int32_t *tail, size_t n) {
    struct dg_engine *e = rig_engine(&rig);
    struct dg_stage *s = dg_engine_stage(e);
    struct dg_result r = {0};
    struct dg_op a = {.kind = DG_OP_EXTEND, .ids = start_ids, .n = 6}, b = {.kind = DG_OP_EXTEND, .ids = tail, .n = n},
                 f = {.kind = DG_OP_FINGERPRINT};
    assert_int_equal(dg_stage_call(s, &a, NULL, NULL, NULL, NULL), DG_OK);
    assert_int_equal(dg_stage_call(s, &b, NULL, NULL, NULL, NULL), DG_OK);
    assert_int_equal(dg_stage_call(s, &f, NULL, NULL, &r, NULL), DG_OK);
    dg_stage_destroy(s);
    return r.fingerprint;
}

static void the_script_plays(void **state) {
    (void)state;
    static const struct dg_script_turn turns[] = {{good_turn, 5, 2, 106}, {bad_turn, 4, 0, -1}};
    scripted(turns, 2);
    struct seen seen = {0};
    struct dg_op gen = {.kind = DG_OP_GENERATE};
    struct dg_result r = {0};
    assert_int_equal(dg_stage_call(stage, &gen, on_seen, &seen, &r, NULL), DG_OK);
    assert_int_equal(seen.blocks, 3);
    assert_int_equal(seen.n, 5);
    assert_memory_equal(seen.text, good_turn, sizeof good_turn);
    assert_int_equal(r.stop_id, 106);
    log_is(good_turn, 5);
    done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = bad_turn, .n = 4}); /* a scripted turn is a turn */
    log_is(bad_turn, 4);
    dg_ids_deinit(&r.ids);
    end_rig();
}

static void the_validator_tries_again(void **state) {
    (void)state;
    static const struct dg_script_turn turns[] = {{bad_turn, 4, 0, 106}, {two_bad, 3, 0, 106}, {good_turn, 5, 0, 106}};
    for (int32_t retries = 0; retries < 3; retries++) {
        int checks = 0;
        scripted(turns, 3);
        struct dg_turn_check check = {no_77, NULL, &rig.opts.gen, -1, &checks};
        assert_int_equal(dg_stage_validate(&stage, stage, &check, retries, NULL), DG_OK);
        struct seen seen = {0};
        struct dg_op gen = {.kind = DG_OP_GENERATE};
        struct dg_result r = {0};
        assert_int_equal(dg_stage_call(stage, &gen, on_seen, &seen, &r, NULL), DG_OK);
        const struct dg_script_turn *want = &turns[retries];
        assert_int_equal(checks, retries + 1);
        assert_int_equal(seen.answers, 1);
        assert_int_equal(seen.notes, retries == 2 ? 2 : retries + 1);
        assert_int_equal(seen.n, want->n); /* nothing of the attempts that failed was told */
        assert_memory_equal(seen.text, want->ids, want->n * sizeof *want->ids);
        assert_int_equal(r.ids.n, want->n);
        log_is(want->ids, want->n);
        assert_int_equal(print(), fresh_print(want->ids, want->n));
        dg_ids_deinit(&r.ids);
        end_rig();
    }
}

/* The next attempt's seed is the next number: seen in what the model itself generates. */
static void the_validator_moves_the_seed(void **state) {
    (void)state;
    begin_rig(300, 1);
    done((struct dg_op){.kind = DG_OP_EXTEND, .ids = start_ids, .n = 6});
    struct dg_gen g = rig.opts.gen;
    g.seed = 100;
    struct dg_result a = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
    done((struct dg_op){.kind = DG_OP_REWIND, .at = {a.at.epoch, 6}});
    g.seed = 101;
    struct dg_result b = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
    done((struct dg_op){.kind = DG_OP_REWIND, .at = {b.at.epoch, 6}});
    assert_true(a.ids.n != b.ids.n || memcmp(a.ids.v, b.ids.v, a.ids.n * sizeof *a.ids.v) != 0);
    struct dg_turn_check check = {first_is_bad, NULL, &rig.opts.gen, -1, &(int){0}};
    assert_int_equal(dg_stage_validate(&stage, stage, &check, 1, NULL), DG_OK);
    g.seed = 100;
    struct dg_result c = done((struct dg_op){.kind = DG_OP_GENERATE, .gen = &g});
    assert_int_equal(c.ids.n, b.ids.n);
    assert_memory_equal(c.ids.v, b.ids.v, b.ids.n * sizeof *b.ids.v);
    dg_ids_deinit(&a.ids);
    dg_ids_deinit(&b.ids);
    dg_ids_deinit(&c.ids);
    end_rig();
}

static void the_repair_leaves_no_trace(void **state) {
    (void)state;
    static const struct dg_script_turn turns[] = {{two_bad, 3, 2, 50}, {invented, 5, 2, 106}, {good_turn, 5, 0, 106}};
    int checks = 0;
    scripted(turns, 3);
    struct dg_turn_check check = {no_77, before_50, &rig.opts.gen, 50, &checks};
    assert_int_equal(dg_stage_repair(&stage, stage, &check, NULL), DG_OK);
    struct seen seen = {0};
    struct dg_op gen = {.kind = DG_OP_GENERATE};
    struct dg_result r = {0};
    assert_int_equal(dg_stage_call(stage, &gen, on_seen, &seen, &r, NULL), DG_OK);
    assert_int_equal(seen.answers, 1);
    assert_int_equal(seen.notes, 1);
    assert_int_equal(seen.n, 3); /* the made-up response and what follows is cut */
    assert_memory_equal(seen.text, invented, 3 * sizeof *invented);
    assert_int_equal(r.ids.n, 3);
    assert_int_equal(r.at.pos, 9);
    log_is(invented, 3);
    assert_int_equal(print(), fresh_print(invented, 3));
    done((struct dg_op){.kind = DG_OP_FINALIZE, .ids = good_turn, .n = 5});
    log_is(good_turn, 5);
    /* a good turn passes untouched */
    dg_ids_deinit(&r.ids);
    r = done((struct dg_op){.kind = DG_OP_GENERATE});
    assert_int_equal(r.ids.n, 5);
    dg_ids_deinit(&r.ids);
    end_rig();
}

/* A draft that fails half-way is taken back. */
static void a_failed_repair_is_undone(void **state) {
    (void)state;
    static const struct dg_script_turn turns[] = {{two_bad, 3, 2, 50}};
    int checks = 0;
    scripted(turns, 1);
    uint64_t clean = print();
    struct dg_turn_check check = {no_77, before_50, &rig.opts.gen, 50, &checks};
    assert_int_equal(dg_stage_repair(&stage, stage, &check, NULL), DG_OK);
    struct seen seen = {0};
    struct dg_op gen = {.kind = DG_OP_GENERATE};
    struct dg_error err = {0};
    assert_int_equal(dg_stage_call(stage, &gen, on_seen, &seen, NULL, &err), DG_E_LIMIT); /* the script is over */
    dg_error_clear(&err);
    assert_int_equal(seen.blocks, 0);
    assert_int_equal(seen.answers, 1);
    log_is(NULL, 0);
    assert_int_equal(print(), clean);
    end_rig();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_replays),
        cmocka_unit_test(a_difference_is_found),
        cmocka_unit_test(a_cut_log_replays),
        cmocka_unit_test(a_killed_process_leaves_a_log),
        cmocka_unit_test(hostile_logs),
        cmocka_unit_test(two_hundred_turns),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(the_script_plays),
        cmocka_unit_test(the_validator_tries_again),
        cmocka_unit_test(the_validator_moves_the_seed),
        cmocka_unit_test(the_repair_leaves_no_trace),
        cmocka_unit_test(a_failed_repair_is_undone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
