/* Which tool calls of a turn are invalid, what the model is told about them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "message/tool_check.h"
#include "pipeline/pipeline.h"

#include <string.h>

static struct dg_tokenizer *tok;
static json_t *tools;

static int setup(void **state) {
    (void)state;
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
                       "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]",
                       0, NULL);
    return tools && dg_tokenizer_open(&tok, "models/mini/tokenizer.json", NULL) == DG_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    dg_tokenizer_close(tok);
    return 0;
}

static struct dg_ids encoded(const char *text) {
    struct dg_ids ids = {0};
    assert_int_equal(dg_tokenizer_encode(tok, text, strlen(text), true, &ids, NULL), DG_OK);
    return ids;
}

static const char *must_call;

static void expect(const char *turn, int32_t invalid, const char *feedback) {
    struct dg_tool_check c;
    struct dg_ids ids = encoded(turn), told = {0};
    struct dg_buf text;
    int32_t got = -1;
    dg_tool_check_init(&c, tok, tools);
    c.must_call = must_call;
    assert_int_equal(dg_tool_check_turn(&c, ids.v, ids.n, -1, &got, &told, NULL), DG_OK);
    dg_buf_init(&text, 1 << 16);
    assert_int_equal(dg_tokenizer_decode(tok, told.v, told.n, false, &text, NULL), DG_OK);
    if (got != invalid || strcmp(dg_buf_cstr(&text), feedback) != 0)
        fail_msg("%s: %d invalid: %s", turn, got, dg_buf_cstr(&text));
    dg_buf_deinit(&text);
    dg_ids_deinit(&ids);
    dg_ids_deinit(&told);
}

#define SAYS(name, reason) "<|tool_response>response:" name "{error:<|\"|>" reason "<|\"|>}<tool_response|>"

static void calls_are_judged(void **state) {
    (void)state;
    expect("Just text.", 0, "");
    expect("<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|>", 0, "");
    expect("<|tool_call>call:now{}<tool_call|>", 0, "");
    expect("<|tool_call>call:get_weather{days:3}<tool_call|>", 1, SAYS("get_weather", "a required argument is missing: city"));
    expect("<|tool_call>call:launch{}<tool_call|>", 1, SAYS("launch", "there is no such tool"));
    expect("<|tool_call>call:now{}<tool_call|><|tool_call>call:get_weathr{city:<|\"|>Oslo<|\"|>}<tool_call|>", 1,
           SAYS("get_weathr", "there is no such tool"));
    expect("<|tool_call>{{{{<tool_call|>", 1, SAYS("unknown", "the call cannot be read; write call:NAME{argument:value}"));
    expect("<|tool_call>call:a{}<tool_call|><|tool_call>call:b{}<tool_call|>", 2,
           SAYS("a", "there is no such tool") SAYS("b", "there is no such tool"));
    /* a call only quoted is text */
    expect("Write \"call:launch{}\" like that.", 0, "");
}

/* A call that must be there, of any tool or of one. (Field failure B16) */
static void calls_are_required(void **state) {
    (void)state;
    must_call = "";
    expect("Just text.", 1, SAYS("unknown", "answer with a call of one of the tools"));
    expect("<|tool_call>call:now{}<tool_call|>", 0, "");
    expect("<|channel>thought\nno\n<channel|>Well. <|tool_call>call:now{}<tool_call|>", 0, "");
    expect("<|tool_call>{{{{<tool_call|>", 1, SAYS("unknown", "the call cannot be read; write call:NAME{argument:value}"));
    must_call = "now";
    expect("Just text.", 1, SAYS("unknown", "answer with a call of the tool now"));
    expect("<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|>", 1, SAYS("unknown", "answer with a call of the tool now"));
    expect("<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>", 0, "");
    expect("<|tool_call>call:nowt{}<tool_call|>", 2, SAYS("nowt", "there is no such tool") SAYS("unknown", "answer with a call of the tool now"));
    must_call = NULL;
    expect("Just text.", 0, "");
}

/* What ended the turn tells a call without its closers from one that was cut. */
static void the_stop_ends_a_call(void **state) {
    (void)state;
    struct dg_tool_check c;
    struct dg_ids ids = encoded("<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>");
    int32_t got;
    dg_tool_check_init(&c, tok, tools);
    assert_int_equal(dg_tool_check_turn(&c, ids.v, ids.n, -1, &got, NULL, NULL), DG_OK);
    assert_int_equal(got, 1);
    assert_int_equal(dg_tool_check_turn(&c, ids.v, ids.n, dg_tokenizer_find(tok, "<|tool_response>"), &got, NULL, NULL), DG_OK);
    assert_int_equal(got, 0);
    dg_ids_deinit(&ids);
}

/* As the stages see it. */
static void no_tools_no_calls(void **state) {
    (void)state;
    struct dg_tool_check c;
    struct dg_ids ids = encoded("<|tool_call>call:now{}<tool_call|>");
    int32_t got;
    dg_tool_check_init(&c, tok, NULL);
    assert_int_equal(dg_tool_check_turn(&c, ids.v, ids.n, -1, &got, NULL, NULL), DG_OK);
    assert_int_equal(got, 1);
    struct dg_gen gen = {.seed = 1};
    struct dg_turn_check stage = dg_tool_check_stage(&c, &gen);
    assert_int_equal(stage.check(stage.ctx, ids.v, ids.n, -1, &got, NULL, NULL), DG_OK);
    assert_int_equal(got, 1);
    assert_int_equal(stage.response_open, dg_tokenizer_find(tok, "<|tool_response>"));
    dg_ids_deinit(&ids);
    ids = encoded("Sunny.<|tool_response>response:now{value:1}<tool_response|>It is late.");
    size_t n = stage.trim(stage.ctx, ids.v, ids.n);
    struct dg_ids text = encoded("Sunny.");
    assert_int_equal(n, text.n);
    assert_memory_equal(ids.v, text.v, n * sizeof *ids.v);
    int32_t bad[] = {1 << 20};
    assert_int_equal(stage.check(stage.ctx, bad, 1, -1, &got, NULL, NULL), DG_E_ARG);
    dg_ids_deinit(&ids);
    dg_ids_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_judged),
        cmocka_unit_test(calls_are_required),
        cmocka_unit_test(the_stop_ends_a_call),
        cmocka_unit_test(no_tools_no_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
