#include "cli/golden_cases.h"

#include "message/prompt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum dg_status call(struct dg_golden *g, struct dg_op op, struct dg_result *out, struct dg_error *err) {
    return dg_stage_call(g->stage, &op, NULL, NULL, out, err);
}

static enum dg_status extend(struct dg_golden *g, const struct dg_ids *ids, struct dg_error *err) {
    return call(g, (struct dg_op){.kind = DG_OP_EXTEND, .ids = ids->v, .n = ids->n}, NULL, err);
}

/* JSON text of messages and tools (NULL: none) to the prompt's ids. */
static enum dg_status encode(struct dg_golden *g, const char *messages, const char *tools, bool think, struct dg_ids *ids, struct dg_error *err) {
    json_error_t je;
    struct dg_render_options ro = {think ? DG_THINKING_ON : DG_THINKING_OFF, true};
    json_t *m = json_loads(messages, 0, &je), *t = tools ? json_loads(tools, 0, &je) : NULL;
    enum dg_status st = m && (t || !tools) ? dg_message_encode(g->r->tok, m, t, &ro, ids, err)
                                           : DG_FAIL(err, DG_E_INTERNAL, "a golden case's JSON: %s", je.text);
    json_decref(m);
    json_decref(t);
    return st;
}

static enum dg_status prompt(struct dg_golden *g, const char *messages, const char *tools, bool think, struct dg_error *err) {
    struct dg_ids ids = {0};
    enum dg_status st = encode(g, messages, tools, think, &ids, err);
    if (st == DG_OK)
        st = extend(g, &ids, err);
    dg_ids_deinit(&ids);
    return st;
}

/* Text of the prompt form itself. */
static enum dg_status raw(struct dg_golden *g, const char *text, struct dg_error *err) {
    struct dg_ids ids = {0};
    enum dg_status st = dg_tokenizer_encode(g->r->tok, text, strlen(text), true, &ids, err);
    if (st == DG_OK)
        st = extend(g, &ids, err);
    dg_ids_deinit(&ids);
    return st;
}

static enum dg_status generate(struct dg_golden *g, uint64_t seed, int64_t max_tokens, struct dg_result *out, struct dg_error *err) {
    struct dg_gen gen = g->gen;
    struct dg_result r = {0};
    gen.seed = seed;
    gen.max_tokens = max_tokens;
    enum dg_status st = call(g, (struct dg_op){.kind = DG_OP_GENERATE, .gen = &gen}, &r, err);
    if (st == DG_OK && (dg_ids_add(&g->ids, r.ids.v, r.ids.n) != DG_OK || dg_ids_push(&g->ends, (int32_t)r.end) != DG_OK))
        st = DG_FAIL(err, DG_E_NOMEM, "no memory for the ids");
    dg_ids_deinit(&r.ids);
    if (out)
        *out = r;
    return st;
}

static enum dg_status fingerprint(struct dg_golden *g, struct dg_result *out, struct dg_error *err) {
    memset(out, 0, sizeof *out);
    return call(g, (struct dg_op){.kind = DG_OP_FINGERPRINT}, out, err);
}

static enum dg_status rewind_to(struct dg_golden *g, int64_t pos, struct dg_error *err) {
    struct dg_result at;
    DG_TRY(fingerprint(g, &at, err));
    return call(g, (struct dg_op){.kind = DG_OP_REWIND, .at = {at.at.epoch, pos}}, NULL, err);
}

#define USER(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define TOOLS                                                                                                                           \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Get the weather of a city\",\"parameters\":"      \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"city name\"}},\"required\":[\"city\"]}}}]"

static enum dg_status short_answer(struct dg_golden *g, struct dg_error *err) {
    DG_TRY(prompt(g, USER("What is the capital of Norway?"), NULL, false, err));
    return generate(g, 42, 0, NULL, err);
}

static enum dg_status medium_answer(struct dg_golden *g, struct dg_error *err) {
    DG_TRY(prompt(g, USER("Tell me a story about a dog."), NULL, false, err));
    return generate(g, 7, 96, NULL, err);
}

static enum dg_status code_answer(struct dg_golden *g, struct dg_error *err) {
    DG_TRY(prompt(g, USER("Write a Python function that adds 3 to its argument. Output only code."), NULL, false, err));
    return generate(g, 7, 96, NULL, err);
}

static enum dg_status thinking(struct dg_golden *g, struct dg_error *err) {
    DG_TRY(prompt(g, USER("What is 17 plus 25? Reply with only the number."), NULL, true, err));
    return generate(g, 42, 96, NULL, err);
}

/* After random tokens the model rarely settles; what is checked here needs no more steps than these. */
static void few_steps(struct dg_golden *g) {
    g->gen.sampler.steps_max = 5;
    g->gen.policy.retries = 1;
}

/* Random tokens across the ring, then a question. */
static enum dg_status ring_wrap(struct dg_golden *g, struct dg_error *err) {
    few_steps(g);
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_FILL, .len = 280, .seed = 1}, NULL, err));
    DG_TRY(prompt(g, USER("What sound does a dog make?"), NULL, false, err));
    return generate(g, 42, 64, NULL, err);
}

static enum dg_status multi_turn(struct dg_golden *g, struct dg_error *err) {
    static const char *const asked[] = {"What is the capital of Norway?", "Which day comes after Friday?", "What is 17 plus 25?"};
    char text[256];
    few_steps(g);
    DG_TRY(raw(g, "<bos>", err));
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        snprintf(text, sizeof text, "%s<|turn>user\n%s<turn|>\n<|turn>model\n", i ? "<turn|>\n" : "", asked[i]);
        DG_TRY(raw(g, text, err));
        DG_TRY(generate(g, 42 + i, 64, NULL, err));
    }
    return DG_OK;
}

static enum dg_status tool_turn(struct dg_golden *g, struct dg_error *err) {
    DG_TRY(prompt(g, USER("What is the weather in Oslo?"), TOOLS, false, err));
    DG_TRY(generate(g, 42, 64, NULL, err));
    DG_TRY(raw(g, "<|tool_response>response:get_weather{value:<|\"|>sunny, 20 degrees<|\"|>}<tool_response|>", err));
    return generate(g, 43, 64, NULL, err);
}

/* What must be so whatever the file says. */
static enum dg_status same(const struct dg_golden *g, size_t from, size_t other, size_t n, uint64_t a, uint64_t b, struct dg_error *err) {
    if (other + n != g->ids.n || memcmp(g->ids.v + from, g->ids.v + other, n * sizeof *g->ids.v) != 0)
        return DG_FAIL(err, DG_E_INTERNAL, "the same turn again has other tokens");
    return a == b ? DG_OK : DG_FAIL(err, DG_E_INTERNAL, "the same turn again has another KV cache");
}

/* A turn, back, another, back, the first again; then back so far that the ring must be built anew. */
static enum dg_status rewinds(struct dg_golden *g, struct dg_error *err) {
    struct dg_result first, again;
    few_steps(g);
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_FILL, .len = 150, .seed = 2}, NULL, err));
    DG_TRY(prompt(g, USER("Sort these words alphabetically: river, apple, moon."), NULL, false, err));
    struct dg_result at;
    DG_TRY(fingerprint(g, &at, err));
    DG_TRY(generate(g, 42, 64, NULL, err));
    size_t n = g->ids.n;
    DG_TRY(fingerprint(g, &first, err));
    DG_TRY(rewind_to(g, at.at.pos, err));
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_FILL, .len = 200, .seed = 3}, NULL, err));
    DG_TRY(rewind_to(g, at.at.pos, err)); /* 200 further on, the ring has forgotten */
    size_t from = g->ids.n;
    DG_TRY(generate(g, 42, 64, NULL, err));
    DG_TRY(fingerprint(g, &again, err));
    return same(g, 0, from, n, first.fingerprint, again.fingerprint, err);
}

/* A turn by the driver, and op by op. */
static enum dg_status op_driven(struct dg_golden *g, struct dg_error *err) {
    struct dg_result at, first, again;
    struct dg_gen gen = g->gen;
    gen.seed = 42;
    gen.max_tokens = 80;
    gen.sampler.steps_max = g->gen.sampler.steps_max = 12;
    DG_TRY(prompt(g, USER("Tell me a story about a cat."), NULL, false, err));
    DG_TRY(fingerprint(g, &at, err));
    DG_TRY(generate(g, 42, 80, NULL, err));
    size_t n = g->ids.n;
    DG_TRY(fingerprint(g, &first, err));
    DG_TRY(rewind_to(g, at.at.pos, err));
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_BEGIN_TURN, .gen = &gen}, NULL, err));
    enum dg_turn_end end = DG_END_NONE;
    while (end == DG_END_NONE) {
        struct dg_result p = {0};
        enum dg_status st = call(g, (struct dg_op){.kind = DG_OP_PROPOSE}, &p, err);
        dg_ids_deinit(&p.ids);
        DG_TRY(st);
        struct dg_op next = {.kind = p.plan.reroll ? DG_OP_DISCARD : DG_OP_COMMIT, .kept = -1};
        DG_TRY(call(g, next, &p, err));
        end = p.end;
    }
    struct dg_result done = {0};
    enum dg_status st = call(g, (struct dg_op){.kind = DG_OP_END_TURN}, &done, err);
    if (st == DG_OK && (dg_ids_add(&g->ids, done.ids.v, done.ids.n) != DG_OK || dg_ids_push(&g->ends, (int32_t)done.end) != DG_OK))
        st = DG_FAIL(err, DG_E_NOMEM, "no memory for the ids");
    dg_ids_deinit(&done.ids);
    DG_TRY(st);
    DG_TRY(fingerprint(g, &again, err));
    return same(g, 0, n, n, first.fingerprint, again.fingerprint, err);
}

/* Accepted positions take draws instead of the argmax, and the legacy sampler's switches. */
static enum dg_status draws(struct dg_golden *g, struct dg_error *err) {
    g->gen.sampler.argmax = false;
    DG_TRY(prompt(g, USER("What sound does a dog make?"), NULL, false, err));
    DG_TRY(generate(g, 5, 64, NULL, err));
    DG_TRY(rewind_to(g, 0, err));
    g->gen.sampler.argmax = true;
    g->gen.sampler.reference_stops = true;
    g->gen.first_step = DG_SC_NONE;
    DG_TRY(prompt(g, USER("Which day comes after Friday?"), NULL, false, err));
    return generate(g, 5, 64, NULL, err);
}

/* Splice, align, finalize, a second conversation, a file. */
static enum dg_status edits(struct dg_golden *g, struct dg_error *err) {
    struct dg_result turn = {0}, saved, loaded;
    char path[] = "/tmp/diffgemma-golden-XXXXXX";
    few_steps(g);
    DG_TRY(prompt(g, USER("What is the capital of Norway?"), NULL, false, err));
    DG_TRY(generate(g, 42, 32, &turn, err));
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_FINALIZE, .ids = g->ids.v, .n = g->ids.n}, NULL, err));
    int32_t put[] = {300, 301, 302};
    DG_TRY(call(g, (struct dg_op){.kind = DG_OP_SPLICE, .start = 4, .end = 6, .ids = put, .n = 3}, NULL, err));
    DG_TRY(fingerprint(g, &saved, err));
    int fd = mkstemp(path);
    if (fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot make a temporary file");
    close(fd);
    enum dg_status st = call(g, (struct dg_op){.kind = DG_OP_SAVE, .path = path}, NULL, err);
    if (st == DG_OK)
        st = call(g, (struct dg_op){.kind = DG_OP_LOAD, .path = path}, NULL, err);
    unlink(path);
    DG_TRY(st);
    DG_TRY(fingerprint(g, &loaded, err));
    if (saved.fingerprint != loaded.fingerprint)
        return DG_FAIL(err, DG_E_INTERNAL, "the loaded conversation has another KV cache than the saved one");
    return generate(g, 9, 32, NULL, err);
}

#define USUAL .ctx = 1024, .ring = 256, .chunk = 64, .kv = DG_F16

const struct dg_golden_case dg_golden_cases[] = {
    {"short", {USUAL}, false, short_answer},
    {"medium", {USUAL}, false, medium_answer},
    {"thinking", {USUAL}, false, thinking},
    {"multi_turn", {USUAL}, false, multi_turn},
    {"tool_turn", {USUAL}, false, tool_turn},
    {"ring_wrap", {USUAL}, false, ring_wrap},
    {"rewind", {USUAL}, false, rewinds},
    {"op_driven", {USUAL}, false, op_driven},
    {"edits", {USUAL}, false, edits},
    {"draws", {USUAL}, false, draws},
    {"kv_f32_exact", {.ctx = 2048, .ring = 4096, .kv = DG_F32}, true, code_answer},
    {"topk", {USUAL, .attention = {16, 16, false}}, false, ring_wrap},
    {"unwindowed", {USUAL, .attention = {0, DG_TOPK_DYN, true}}, false, ring_wrap},
    {"small_chunks", {.ctx = 1024, .ring = 256, .chunk = 7, .kv = DG_F16}, false, code_answer},
};
const size_t dg_golden_n_cases = sizeof dg_golden_cases / sizeof *dg_golden_cases;
