/* The streaming JSON reader: what it accepts, what it refuses and where, what it hands out. */
#include "core/jsonr.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a document that ends exactly at the end of a heap block; the last token, what and at of the error. */
static enum dg_json_token read_all(const char *doc, size_t n, const char **what, size_t *at) {
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, doc, n);
    struct dg_jsonr r;
    enum dg_json_token t;
    dg_jsonr_init(&r, exact, n);
    do
        t = dg_jsonr_next(&r);
    while (t != DG_JSON_ERROR && t != DG_JSON_END);
    assert_int_equal(dg_jsonr_next(&r), t); /* the end is final */
    *what = r.what;
    *at = r.at;
    free(exact);
    return t;
}

static void test_accepts(void **state) {
    (void)state;
    static const char *const docs[] = {
        "0", "-0", "1.5", "-1.5e+10", "1E-2", "0e0", "123456789012345678901234567890", "true", "false", "null", "\"\"", "\"a\"",
        " \t\r\n1 \t\r\n", "[]", "[ ]", "{}", "{ }", "[1]", "[1,2]", "[ 1 , [ ] , { } ]", "{\"a\":1}", "{\"\":\"\"}",
        "{\"a\":{\"b\":[null,true]},\"c\":[[]]}", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uFfFf\"", "\"\x7f\"", "\"\xc2\x80\"",
        "\"\xdf\xbf\"", "\"\xe0\xa0\x80\"", "\"\xed\x9f\xbf\"", "\"\xee\x80\x80\"", "\"\xf0\x90\x80\x80\"", "\"\xf4\x8f\xbf\xbf\"",
        "\"\\ud83d\\ude00\"", "\"\\ud800\"" /* grammar only: the surrogate shows when decoding */,
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        const char *what;
        size_t at;
        if (read_all(docs[i], strlen(docs[i]), &what, &at) != DG_JSON_END)
            fail_msg("%s: refused with \"%s\" at %zu", docs[i], what, at);
    }
}

static void test_refuses(void **state) {
    (void)state;
    static const struct {
        const char *doc;
        size_t at;
    } docs[] = {
        {"", 0}, {"  ", 2}, {"nul", 0}, {"nulL", 0}, {"True", 0}, {"tru", 0}, {"falsy", 0}, {"'a'", 0}, {"a", 0}, {"\xef\xbb\xbf{}", 0},
        {"-", 1}, {"+1", 0}, {".5", 0}, {"1.", 2}, {"1.e1", 2}, {"1e", 2}, {"1e+", 3}, {"01", 2}, {"-01", 3}, {"0x1", 1}, {"--1", 1},
        {"1 2", 2}, {"1,", 1}, {"NaN", 0}, {"Infinity", 0}, {"-Infinity", 1},
        {"[", 1}, {"[1", 2}, {"[1,", 3}, {"[1,]", 3}, {"[,1]", 1}, {"[1 2]", 3}, {"[1}", 2}, {"]", 0}, {"[]]", 2}, {"[1,,2]", 3},
        {"{", 1}, {"{a:1}", 1}, {"{\"a\"}", 4}, {"{\"a\" 1}", 5}, {"{\"a\":}", 5}, {"{\"a\":1", 6}, {"{\"a\":1,", 7},
        {"{\"a\":1,}", 7}, {"{\"a\":1]", 6}, {"{1:2}", 1}, {"{,}", 1}, {"{\"a\":1 \"b\":2}", 7}, {"}", 0}, {"{\"a\"::1}", 5},
        {"\"", 1}, {"\"a", 2}, {"\"\n\"", 1}, {"\"\x1f\"", 1}, {"\"\\", 1}, {"\"\\\"", 3}, {"\"\\a\"", 1}, {"\"\\u12\"", 1},
        {"\"\\u123g\"", 1}, {"\"\\U0041\"", 1}, {"\"\\x41\"", 1}, {"\"\x80\"", 1}, {"\"\xc0\x80\"", 1}, {"\"\xc1\xbf\"", 1},
        {"\"\xe0\x9f\xbf\"", 1}, {"\"\xed\xa0\x80\"", 1}, {"\"\xf0\x8f\xbf\xbf\"", 1}, {"\"\xf4\x90\x80\x80\"", 1}, {"\"\xf5\"", 1},
        {"\"\xc3\"", 1}, {"\"\xe2\x96\"", 1}, {"\"\xf0\x9f\x98\"", 1}, {"// c\n1", 0}, {"[1]//", 3}, {"{\"a\":1}{", 7},
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        const char *what;
        size_t at;
        if (read_all(docs[i].doc, strlen(docs[i].doc), &what, &at) != DG_JSON_ERROR)
            fail_msg("%s: accepted", docs[i].doc);
        if (!what || at != docs[i].at)
            fail_msg("%s: \"%s\" at %zu, expected at %zu", docs[i].doc, what ? what : "(null)", at, docs[i].at);
    }
    const char *what;
    size_t at;
    assert_int_equal(read_all("\"a\0b\"", 5, &what, &at), DG_JSON_ERROR);
    assert_int_equal(at, 2);
    assert_int_equal(read_all("\"\\\0\"", 4, &what, &at), DG_JSON_ERROR);
    assert_int_equal(read_all("1\0", 2, &what, &at), DG_JSON_ERROR);
}

/* Every proper prefix of a document is refused, whatever it is cut in. */
static void test_prefixes(void **state) {
    (void)state;
    static const char doc[] = "{\"k\\u00e9\":[1.5e-3,\"\xf0\x9f\x98\x80\\ud83d\\ude00\",{\"t\":true,\"f\":false,\"n\":null}],\"\":-0}";
    const char *what;
    size_t at;
    for (size_t n = 0; n < sizeof doc - 1; n++)
        if (read_all(doc, n, &what, &at) != DG_JSON_ERROR || at > n)
            fail_msg("the first %zu bytes were accepted", n);
    assert_int_equal(read_all(doc, sizeof doc - 1, &what, &at), DG_JSON_END);
}

static void test_tokens(void **state) {
    (void)state;
    static const char doc[] = " {\"a\" : [1, -2.5e3, \"x\\ny\"], \"b\":{}, \"c\\u0041\":null}";
    static const struct {
        enum dg_json_token t;
        const char *str;
        bool escaped;
    } want[] = {{DG_JSON_OBJECT, NULL, false}, {DG_JSON_KEY, "a", false},      {DG_JSON_ARRAY, NULL, false},
                {DG_JSON_NUMBER, "1", false},  {DG_JSON_NUMBER, "-2.5e3", false}, {DG_JSON_STRING, "x\\ny", true},
                {DG_JSON_ARRAY_END, NULL, false}, {DG_JSON_KEY, "b", false},   {DG_JSON_OBJECT, NULL, false},
                {DG_JSON_OBJECT_END, NULL, false}, {DG_JSON_KEY, "c\\u0041", true}, {DG_JSON_NULL, NULL, false},
                {DG_JSON_OBJECT_END, NULL, false}, {DG_JSON_END, NULL, false}};
    struct dg_jsonr r;
    dg_jsonr_init(&r, doc, sizeof doc - 1);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(dg_jsonr_next(&r), want[i].t);
        if (!want[i].str)
            continue;
        assert_int_equal(r.len, strlen(want[i].str));
        assert_memory_equal(r.str, want[i].str, r.len);
        if (want[i].t != DG_JSON_NUMBER)
            assert_int_equal(r.escaped, want[i].escaped);
    }
}

static void test_unescape(void **state) {
    (void)state;
    static const struct {
        const char *doc, *text;
        size_t n; /* SIZE_MAX: refused */
    } cases[] = {
        {"\"plain \xe2\x96\x81\"", "plain \xe2\x96\x81", 9},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0000a\"", "\0a", 2},
        {"\"\\u007f\\u0080\\u07ff\\u0800\\uffff\"", "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", 11},
        {"\"\\ud800\\udc00\\uDBFF\\uDFFF\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8},
        {"\"\\ud800\"", "", SIZE_MAX},
        {"\"\\udc00\"", "", SIZE_MAX},
        {"\"\\ud800x\"", "", SIZE_MAX},
        {"\"\\ud800\\n\"", "", SIZE_MAX},
        {"\"\\ud800\\ud800\"", "", SIZE_MAX},
        {"\"\\ud800\\u0041\"", "", SIZE_MAX},
        {"\"\\udc00\\ud800\"", "", SIZE_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dg_jsonr r;
        char dst[64];
        dg_jsonr_init(&r, cases[i].doc, strlen(cases[i].doc));
        assert_int_equal(dg_jsonr_next(&r), DG_JSON_STRING);
        size_t n = dg_jsonr_unescape(&r, dst);
        if (n != cases[i].n)
            fail_msg("%s: %zu bytes", cases[i].doc, n);
        if (n != SIZE_MAX)
            assert_memory_equal(dst, cases[i].text, n);
    }
}

static void test_is(void **state) {
    (void)state;
    struct dg_jsonr r;
    static const char doc[] = "[\"name\",\"n\\u0061me\",\"name\\u0000\",\"\",\"nam\"]";
    static const bool want[] = {true, true, false, false, false};
    dg_jsonr_init(&r, doc, sizeof doc - 1);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_ARRAY);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(dg_jsonr_next(&r), DG_JSON_STRING);
        assert_int_equal(dg_jsonr_is(&r, "name"), want[i]);
    }
}

static void test_u64(void **state) {
    (void)state;
    static const struct {
        const char *doc;
        uint64_t max;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"0", 0, true, 0}, {"1", 0, false, 0}, {"255", 255, true, 255}, {"256", 255, false, 0},
        {"18446744073709551615", UINT64_MAX, true, UINT64_MAX}, {"18446744073709551616", UINT64_MAX, false, 0},
        {"99999999999999999999999999", UINT64_MAX, false, 0}, {"-1", 10, false, 0}, {"-0", 10, false, 0}, {"1.0", 10, false, 0},
        {"1e1", 100, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dg_jsonr r;
        uint64_t v = 77;
        dg_jsonr_init(&r, cases[i].doc, strlen(cases[i].doc));
        assert_int_equal(dg_jsonr_next(&r), DG_JSON_NUMBER);
        bool ok = dg_jsonr_u64(&r, cases[i].max, &v);
        if (ok != cases[i].ok || (ok && v != cases[i].value))
            fail_msg("%s: %d, %llu", cases[i].doc, ok, (unsigned long long)v);
    }
}

static void nested(char *doc, size_t depth, char open, char close) {
    memset(doc, open, depth);
    memset(doc + depth, close, depth);
}

static void test_depth(void **state) {
    (void)state;
    char doc[2 * (DG_JSONR_DEPTH_MAX + 1)];
    const char *what;
    size_t at;
    nested(doc, DG_JSONR_DEPTH_MAX, '[', ']');
    assert_int_equal(read_all(doc, 2 * DG_JSONR_DEPTH_MAX, &what, &at), DG_JSON_END);
    nested(doc, DG_JSONR_DEPTH_MAX + 1, '[', ']');
    assert_int_equal(read_all(doc, sizeof doc, &what, &at), DG_JSON_ERROR);
    assert_int_equal(at, DG_JSONR_DEPTH_MAX);
    assert_string_equal(what, "nested too deeply");
}

static void test_skip(void **state) {
    (void)state;
    static const char doc[] = "{\"a\":{\"x\":[1,{\"y\":\"}\"}],\"z\":null},\"b\":[[],[{}]],\"c\":\"]\",\"d\":7}";
    struct dg_jsonr r;
    uint64_t v;
    dg_jsonr_init(&r, doc, sizeof doc - 1);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_OBJECT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dg_jsonr_next(&r), DG_JSON_KEY);
        assert_true(dg_jsonr_is(&r, (const char *[]){"a", "b", "c"}[i]));
        if (i == 1) {
            enum dg_json_token t = dg_jsonr_next(&r);
            assert_true(dg_jsonr_skip_from(&r, t));
        } else
            assert_true(dg_jsonr_skip(&r));
    }
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_KEY);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_NUMBER);
    assert_true(dg_jsonr_u64(&r, 10, &v));
    assert_int_equal(v, 7);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_OBJECT_END);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_END);

    dg_jsonr_init(&r, "{\"a\":[1,2", 9);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_OBJECT);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_KEY);
    assert_false(dg_jsonr_skip(&r));
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_ERROR);
}

static void test_fail(void **state) {
    (void)state;
    struct dg_jsonr r;
    dg_jsonr_init(&r, "[1, 2]", 6);
    dg_jsonr_next(&r);
    dg_jsonr_next(&r);
    assert_int_equal(dg_jsonr_fail(&r, "wanted a string"), DG_JSON_ERROR);
    assert_int_equal(dg_jsonr_next(&r), DG_JSON_ERROR);
    assert_string_equal(r.what, "wanted a string");
    assert_int_equal(r.at, 2);
    dg_jsonr_fail(&r, "later"); /* the first reason stays */
    assert_string_equal(r.what, "wanted a string");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts), cmocka_unit_test(test_refuses), cmocka_unit_test(test_prefixes), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_unescape), cmocka_unit_test(test_is),     cmocka_unit_test(test_u64),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_skip),     cmocka_unit_test(test_fail),
    };
    return cmocka_run_group_tests_name("jsonr", tests, NULL, NULL);
}
