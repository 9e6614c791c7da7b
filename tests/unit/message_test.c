/* The layer above the renderer: what clients send is checked, repaired where it can be, and never becomes a control token. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "message/prompt.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dg_tokenizer *tok;

static int open_tokenizer(void **state) {
    (void)state;
    return dg_tokenizer_open(&tok, "models/mini/tokenizer.json", NULL) == DG_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    dg_tokenizer_close(tok);
    return 0;
}

static json_t *parse(const char *text) {
    struct dg_error err = {0};
    json_t *v;
    if (dg_json_load_exact(text, strlen(text), &v, &err) != DG_OK)
        fail_msg("%s: %s", text, dg_error_text(&err));
    return v;
}

/* The rendered text after both preparations; dg_free. */
static char *rendered(const char *messages, const char *tools) {
    json_t *m = parse(messages), *t = tools ? parse(tools) : NULL, *pm, *pt;
    struct dg_render_options opts = {DG_THINKING_OFF, true};
    struct dg_error err = {0};
    struct dg_prompt p;
    dg_prompt_init(&p);
    if (dg_message_prepare(m, &pm, &err) != DG_OK || dg_message_prepare_tools(t, &pt, &err) != DG_OK ||
        dg_template_render(pm, pt, &opts, &p, &err) != DG_OK)
        fail_msg("%s: %s", messages, dg_error_text(&err));
    char *text = dg_buf_take(&p.text, NULL);
    dg_prompt_deinit(&p);
    json_decref(m);
    json_decref(t);
    json_decref(pm);
    json_decref(pt);
    return text;
}

static void expect(const char *messages, const char *tools, const char *want) {
    char *got = rendered(messages, tools);
    assert_string_equal(got, want);
    dg_free(got);
}

static void refused(const char *messages, enum dg_status code, const char *want) {
    json_t *m = parse(messages), *before = json_deep_copy(m), *out;
    struct dg_error err = {0};
    assert_int_equal(dg_message_prepare(m, &out, &err), code);
    assert_int_equal(err.code, code);
    assert_null(out);
    if (strncmp(dg_error_text(&err), want, strlen(want)) != 0)
        fail_msg("\"%s\" does not begin \"%s\"", dg_error_text(&err), want);
    assert_true(json_equal(m, before));
    dg_error_clear(&err);
    json_decref(m);
    json_decref(before);
}

static void bad_messages_are_named(void **state) {
    (void)state;
    refused("[]", DG_E_ARG, "messages: give an array");
    refused("{\"role\":\"user\"}", DG_E_ARG, "messages: give an array");
    refused("[3]", DG_E_ARG, "messages[0]: give an object");
    refused("[{\"content\":\"x\"}]", DG_E_ARG, "messages[0].role: ");
    refused("[{\"role\":\"user\"},{\"role\":5}]", DG_E_ARG, "messages[1].role: ");
    refused("[{\"role\":\"\"}]", DG_E_ARG, "messages[0].role: ");
    refused("[{\"role\":\"user\",\"content\":5}]", DG_E_ARG, "messages[0].content: ");
    refused("[{\"role\":\"user\",\"content\":123456789012345678901}]", DG_E_ARG, "messages[0].content: ");
    refused("[{\"role\":\"tool\",\"content\":{\"a\":1}}]", DG_E_ARG, "messages[0].content: ");
    refused("[{\"role\":\"user\",\"content\":[\"x\"]}]", DG_E_ARG, "messages[0].content[0]: ");
    refused("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"text\":\"b\"}]}]", DG_E_ARG, "messages[0].content[1]: ");
    refused("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", DG_E_ARG, "messages[0].content[0].text: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":{}}]", DG_E_ARG, "messages[0].tool_calls: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[1]}]", DG_E_ARG, "messages[0].tool_calls[0]: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]", DG_E_ARG, "messages[0].tool_calls[0].function: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"\"}}]}]", DG_E_ARG,
            "messages[0].tool_calls[0].function.name: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":4,\"function\":{\"name\":\"f\"}}]}]", DG_E_ARG,
            "messages[0].tool_calls[0].id: ");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":[1]}}]}]", DG_E_ARG,
            "messages[0].tool_calls[0].function.arguments: give an object");
    refused("[{\"role\":\"assistant\",\"tool_responses\":5}]", DG_E_ARG, "messages[0].tool_responses: ");
    refused("[{\"role\":\"assistant\",\"reasoning\":5}]", DG_E_ARG, "messages[0].reasoning: ");
    refused("[{\"role\":\"tool\",\"tool_call_id\":5}]", DG_E_ARG, "messages[0].tool_call_id: ");
    refused("[{\"role\":\"tool\",\"name\":[]}]", DG_E_ARG, "messages[0].name: ");
    refused("[{\"role\":\"user\"},{\"role\":\"user\"},{\"role\":\"user\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{"
            "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \"}}]}]",
            DG_E_ARG, "messages[3].tool_calls[0].function.arguments: not valid JSON at line 1");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}},{\"function\":{\"name\":\"f\","
            "\"arguments\":\"[1]\"}}]}]",
            DG_E_ARG, "messages[0].tool_calls[1].function.arguments: the JSON text must be an object");
    refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\\\"{}\\\"\"}}]}]", DG_E_ARG,
            "messages[0].tool_calls[0].function.arguments: the JSON text must be an object");
    json_t *many = json_array(), *one = json_pack("{s:s}", "role", "user"), *out;
    for (int i = 0; i <= DG_MESSAGES_MAX; i++)
        json_array_append(many, one);
    assert_int_equal(dg_message_prepare(many, &out, NULL), DG_E_LIMIT);
    json_array_remove(many, 0);
    assert_int_equal(dg_message_prepare(many, &out, NULL), DG_OK);
    json_decref(out);
    json_decref(many);
    json_decref(one);
}

static void bad_tools_are_named(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "tools: give an array"},
        {"[1]", "tools[0].function: "},
        {"[{\"type\":\"function\"}]", "tools[0].function: "},
        {"[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":7}}]", "tools[1].function.name: "},
        {"[{\"function\":{\"name\":\"f\",\"description\":[]}}]", "tools[0].function.description: "},
        {"[{\"function\":{\"name\":\"f\",\"parameters\":\"{}\"}}]", "tools[0].function.parameters: "},
        {"[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":[]}}}]", "tools[0].function.parameters.properties: "},
        {"[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":\"string\"}}}}]",
         "tools[0].function.parameters.properties.a: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *t = parse(cases[i][0]), *out;
        struct dg_error err = {0};
        assert_int_equal(dg_message_prepare_tools(t, &out, &err), DG_E_ARG);
        if (strncmp(dg_error_text(&err), cases[i][1], strlen(cases[i][1])) != 0)
            fail_msg("\"%s\" does not begin \"%s\"", dg_error_text(&err), cases[i][1]);
        dg_error_clear(&err);
        json_decref(t);
    }
    json_t *none = json_array(), *out;
    assert_int_equal(dg_message_prepare_tools(none, &out, NULL), DG_OK);
    assert_null(out);
    assert_int_equal(dg_message_prepare_tools(NULL, &out, NULL), DG_OK);
    assert_null(out);
    json_decref(none);
}

static void documents_are_repaired(void **state) {
    (void)state;
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}},{\"type\":\"text\",\"text\":\"x\"}]}]",
           "[{\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":{\"required\":[\"a\"]}}}]",
           "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|><|\"|>,parameters:{required:[<|\"|>a<|\"|>],"
           "type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n<|turn>user\n<|image|>x<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
}

#define ASSISTANT(content, arguments)                                                                                              \
    "[{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\"" content                                                      \
    ",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\"" arguments "}}]},"                         \
    "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"ok\"}]"

/* A call's arguments come back as JSON text: the prompt shows the same object as if they had come as one. */
static void arguments_as_text(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {",\"arguments\":\"{\\\"b\\\": [1, {\\\"x\\\": null}], \\\"a\\\": \\\"{q}\\\", \\\"n\\\": 100000000000000000000}\"",
         "a:<|\"|>{q}<|\"|>,b:[1,{x:None}],n:100000000000000000000"},
        {",\"arguments\":{\"b\":[1,{\"x\":null}],\"a\":\"{q}\",\"n\":100000000000000000000}",
         "a:<|\"|>{q}<|\"|>,b:[1,{x:None}],n:100000000000000000000"},
        {",\"arguments\":\"{}\"", ""}, {",\"arguments\":\"\"", ""}, {",\"arguments\":\" \\n\"", ""}, {",\"arguments\":\"null\"", ""},
        {",\"arguments\":null", ""}, {",\"arguments\":{}", ""}, {"", ""}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char messages[1000], want[1000];
        snprintf(messages, sizeof messages, ASSISTANT(",\"content\":null", "%s"), same[i][0]);
        snprintf(want, sizeof want,
                 "<bos><|turn>user\ngo<turn|>\n<|turn>model\n<|tool_call>call:f{%s}<tool_call|>"
                 "<|tool_response>response:f{value:<|\"|>ok<|\"|>}<tool_response|>",
                 same[i][1]);
        expect(messages, NULL, want);
    }
}

/* Field failure B10: content null, absent, [] or blank beside calls. */
static void empty_content_beside_calls(void **state) {
    (void)state;
    char *want = rendered(ASSISTANT(",\"content\":\"\"", ",\"arguments\":\"{}\""), NULL), *got;
    static const char *const docs[] = {ASSISTANT(",\"content\":null", ",\"arguments\":\"{}\""), ASSISTANT("", ",\"arguments\":\"{}\""),
                                       ASSISTANT(",\"content\":[]", ",\"arguments\":\"{}\""),
                                       ASSISTANT(",\"content\":[{\"type\":\"text\",\"text\":\" \"}]", ",\"arguments\":\"{}\"")};
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        got = rendered(docs[i], NULL);
        assert_string_equal(got, want);
        dg_free(got);
    }
    dg_free(want);
}

/* Field failure B03: a client echoes each turn's call as the server printed it, arguments as JSON text: what turn 1 looks like never changes,
 * and no braces are added. */
static void echoed_calls_are_stable(void **state) {
    (void)state;
    static const char *const args[] = {"{\"q\": \"a {b} \\\"c\\\"\", \"n\": {\"k\": [null, true]}}", "{}", "{\"v\": null}"};
    struct dg_render_options opts = {DG_THINKING_OFF, true};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "go");
    struct dg_buf last;
    dg_buf_init(&last, 1 << 20);
    for (int turn = 0; turn < 10; turn++) {
        char id[16];
        snprintf(id, sizeof id, "call_%d", turn);
        json_array_append_new(messages, json_pack("{s:s, s:n, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant", "content",
                                                  "tool_calls", "id", id, "type", "function", "function", "name", "f", "arguments",
                                                  args[turn % 3]));
        json_array_append_new(messages, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "content", "r"));
        json_t *prepared;
        struct dg_prompt p;
        dg_prompt_init(&p);
        assert_int_equal(dg_message_prepare(messages, &prepared, NULL), DG_OK);
        assert_int_equal(dg_template_render(prepared, NULL, &opts, &p, NULL), DG_OK);
        assert_true(p.text.len > last.len);
        assert_memory_equal(p.text.data, dg_buf_cstr(&last), last.len);
        assert_null(strstr(p.text.data, "{{"));
        dg_buf_clear(&last);
        dg_buf_add(&last, p.text.data, p.text.len);
        dg_prompt_deinit(&p);
        json_decref(prepared);
    }
    assert_non_null(strstr(dg_buf_cstr(&last), "call:f{n:{k:[None,true]},q:<|\"|>a {b} \"c\"<|\"|>}<tool_call|>"));
    dg_buf_deinit(&last);
    json_decref(messages);
}

/* --- ids --- */

static const char *const id_messages =
    "[{\"role\":\"system\",\"content\":\"s @\"},{\"role\":\"user\",\"content\":\"@ u @\"},{\"role\":\"assistant\",\"content\":null,"
    "\"reasoning_content\":\"r @\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f@\",\"arguments\":{\"k@\":\"v@\"}}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"t @\"},{\"role\":\"assistant\",\"content\":\"a\"},"
    "{\"role\":\"r@\",\"content\":[{\"type\":\"text\",\"text\":\"p @\"}]}]";
static const char *const id_tools = "[{\"function\":{\"name\":\"f@\",\"description\":\"d@\",\"parameters\":{\"type\":\"object\","
                                    "\"properties\":{\"p@\":{\"type\":\"string\",\"enum\":[\"e@\"]}}}}}]";

static json_t *filled(const char *form, const char *by) {
    char *text = calloc(1, strlen(form) * (strlen(by) + 1) + 1), *o = text;
    for (const char *s = form; *s; s++)
        if (*s == '@')
            o = stpcpy(o, by);
        else
            *o++ = *s;
    json_t *v = parse(text);
    free(text);
    return v;
}

/* The control tokens among the ids of the form filled with `by`, and the text that all ids spell. */
static void encode_form(const char *by, struct dg_ids *control, struct dg_buf *spelled) {
    json_t *m = filled(id_messages, by), *t = filled(id_tools, by);
    struct dg_render_options opts = {DG_THINKING_ON, true};
    struct dg_error err = {0};
    struct dg_ids ids;
    dg_ids_init(&ids);
    if (dg_message_encode(tok, m, t, &opts, &ids, &err) != DG_OK)
        fail_msg("%s: %s", by, dg_error_text(&err));
    assert_int_equal(dg_tokenizer_decode(tok, ids.v, ids.n, false, spelled, &err), DG_OK);
    for (size_t i = 0; i < ids.n; i++)
        if (dg_tokenizer_is_control(tok, ids.v[i]))
            assert_int_equal(dg_ids_push(control, ids.v[i]), DG_OK);
    dg_ids_deinit(&ids);
    json_decref(m);
    json_decref(t);
}

/* Field failure B04: every control token's spelling in every place a client can write to: the ids hold the same control tokens as without. */
static void typed_control_tokens_stay_text(void **state) {
    (void)state;
    struct dg_ids want, got;
    struct dg_buf spelled;
    dg_ids_init(&want);
    dg_ids_init(&got);
    dg_buf_init(&spelled, 1 << 20);
    encode_form("x", &want, &spelled);
    assert_true(want.n > 20);
    assert_int_equal(want.v[0], 2);
    int tried = 0;
    for (int32_t id = 0; id < dg_tokenizer_size(tok); id++) {
        char by[64], json[80];
        size_t n;
        if (!dg_tokenizer_is_control(tok, id))
            continue;
        const char *piece = dg_tokenizer_piece(tok, id, &n);
        snprintf(by, sizeof by, "%.*s", (int)n, piece);
        char *o = json;
        for (const char *c = by; *c; c++)
            o = *c == '"' ? stpcpy(o, "\\u0022") : (*o = *c, o + 1);
        *o = 0;
        got.n = 0;
        dg_buf_clear(&spelled);
        encode_form(json, &got, &spelled);
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.v, want.v, got.n * sizeof *got.v);
        assert_non_null(strstr(dg_buf_cstr(&spelled), by));
        tried++;
    }
    assert_true(tried > 10);
    dg_ids_deinit(&want);
    dg_ids_deinit(&got);
    dg_buf_deinit(&spelled);
}

static void ask(void **state) {
    (void)state;
    json_t *m;
    struct dg_error err = {0};
    struct dg_ids ids;
    dg_ids_init(&ids);
    assert_int_equal(dg_message_ask("Be brief.", "Hi\0!", 4, &m, &err), DG_OK);
    assert_int_equal(json_array_size(m), 2);
    assert_int_equal(json_string_length(json_object_get(json_array_get(m, 1), "content")), 4);
    assert_int_equal(dg_message_encode(tok, m, NULL, &(struct dg_render_options){DG_THINKING_OFF, true}, &ids, &err), DG_OK);
    assert_int_equal(ids.v[0], 2);
    assert_int_equal(ids.v[1], 105);
    assert_int_equal(ids.v[ids.n - 1], 101);
    json_decref(m);
    assert_int_equal(dg_message_ask(NULL, "Hi", 2, &m, &err), DG_OK);
    assert_int_equal(json_array_size(m), 1);
    json_decref(m);
    assert_int_equal(dg_message_ask(NULL, "Hi\xff", 3, &m, &err), DG_E_ARG);
    assert_non_null(strstr(dg_error_text(&err), "not UTF-8 at byte 2"));
    assert_null(m);
    /* a failing prompt leaves the list alone */
    size_t n = ids.n;
    m = json_array();
    assert_int_equal(dg_message_encode(tok, m, NULL, NULL, &ids, &err), DG_E_ARG);
    assert_int_equal(ids.n, n);
    json_decref(m);
    dg_error_clear(&err);
    dg_ids_deinit(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_messages_are_named),
        cmocka_unit_test(bad_tools_are_named),
        cmocka_unit_test(documents_are_repaired),
        cmocka_unit_test(arguments_as_text),
        cmocka_unit_test(empty_content_beside_calls),
        cmocka_unit_test(echoed_calls_are_stable),
        cmocka_unit_test(typed_control_tokens_stay_text),
        cmocka_unit_test(ask),
    };
    return cmocka_run_group_tests_name("message", tests, open_tokenizer, close_tokenizer);
}
