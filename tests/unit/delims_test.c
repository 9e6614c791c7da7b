/* Odd quotes, brackets without a partner, doubled words: a table of texts with what is to be found in each. (Field failure A14) */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "message/delims.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    const char *s;
    int quotes, brackets, doubled;
    const char *first; /* line of the first finding */
};

#define SH(code) "Run this:\n```sh\n" code "\n```\nThat is all.\n"

static const struct text texts[] = {
    {"", 0, 0, 0, ""},
    {"A plain answer.", 0, 0, 0, ""},
    {"He said \"yes\", and it's the dog's bone; don't (ever) try :)", 0, 0, 0, ""},
    {"\"It was late,\nand cold,\" he said.", 0, 0, 0, ""},
    /* blends that were seen: half of one form, half of another */
    {SH("if [ $#\" -lt 1 ]; then exit; fi"), 1, 0, 0, "if [ $#\" -lt 1 ]; then exit; fi"},
    {SH("if [ \"$#\" -lt 1 ]; then exit; fi"), 0, 0, 0, ""},
    {SH("if [ $# -lt 1 ]; then exit; fi"), 0, 0, 0, ""},
    {SH("[[ $f == *$SEARCH\"* ]] && echo hit"), 1, 0, 0, "[[ $f == *$SEARCH\"* ]] && echo hit"},
    {SH("[[ $f == *\"$SEARCH\"* ]] && echo hit"), 0, 0, 0, ""},
    {"```\nprint('a\")\n```", 1, 0, 0, "print('a\")"},
    {"```\nprint('a', \"it's\", 'say \"x\"', '\\'')\n```", 0, 0, 0, ""},
    {"```python\ndef f(x):\n    return [x, (x + 1)]\n```", 0, 0, 0, ""},
    {"```python\ndef f(x:\n    return [x, x + 1)]\n```", 0, 0, 0, ""}, /* as many of each kind: order across lines is not judged */
    {"```c\nint f(void) {\n    return g(1;\n}\n```", 0, 1, 0, "```"},
    {"```c\nint f(void) {\n    return 1);\n}\n```", 0, 1, 0, "    return 1);"},
    {"```\n\"\"\"a text with one \" and (\nover lines\"\"\"\nx = 1\n```", 0, 0, 0, ""},
    {"```\na = {", 0, 1, 0, "a = {"},
    {"Use `grep \"x` here, or `f(x`.", 1, 1, 0, "Use `grep \"x` here, or `f(x`."},
    {"Use `grep \"x\"` and `f(x)`; a lone ` is nothing.", 0, 0, 0, ""},
    {"first\n\nshe said \"no.\n\nlast \"x\"", 1, 0, 0, "she said \"no."},
    /* words */
    {"Where is the the cat?", 0, 0, 1, "Where is the the cat?"},
    {"The the\nTHE end", 0, 0, 2, "The the"},
    {"a a a b", 0, 0, 0, ""},
    {"no, no. Well, well - the theatre, the-the", 0, 0, 0, ""},
    {"\xc3\xa9t\xc3\xa9 \xc3\xa9t\xc3\xa9", 0, 0, 1, "\xc3\xa9t\xc3\xa9 \xc3\xa9t\xc3\xa9"},
    {"own `own` own", 0, 0, 0, ""},
    {"```\nthe the\n```", 0, 0, 0, ""},
    {"x the\n\nthe y", 0, 0, 0, ""},
};

static void table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct text *t = &texts[i];
        struct dg_delims d;
        dg_delims_check(t->s, strlen(t->s), &d);
        if (d.quotes != t->quotes || d.brackets != t->brackets || d.doubled != t->doubled)
            fail_msg("%s\n  %lld quotes, %lld brackets, %lld doubled", t->s, (long long)d.quotes, (long long)d.brackets, (long long)d.doubled);
        if (d.len != strlen(t->first) || memcmp(t->s + d.at, t->first, d.len) != 0)
            fail_msg("%s\n  first: '%.*s'", t->s, (int)d.len, t->s + d.at);
        assert_int_equal(dg_delims_found(&d), *t->first != 0);
    }
}

/* Any bytes, cut anywhere: within the text, in time. */
static void any_bytes(void **state) {
    (void)state;
    static const char alphabet[] = "`\"'()[]{}\\ \nab\xc3\xa9";
    uint64_t rng = 7;
    for (int trial = 0; trial < 3000; trial++) {
        size_t n = (size_t)(trial % 97);
        char *s = malloc(n ? n : 1); /* ends at the end of a block, for the address sanitizer */
        for (size_t i = 0; i < n; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            s[i] = alphabet[(rng >> 33) % (sizeof alphabet)];
        }
        struct dg_delims d;
        dg_delims_check(s, n, &d);
        assert_true(d.at + d.len <= n && d.lines <= (int64_t)n && d.quotes <= (int64_t)n && d.brackets <= (int64_t)n && d.doubled <= (int64_t)n);
        free(s);
    }
    size_t n = (size_t)8 << 20;
    char *s = malloc(n);
    memset(s, '(', n);
    struct dg_delims d;
    dg_delims_check(s, n, &d);
    assert_int_equal(d.brackets, 0);
    memset(s, '`', n);
    dg_delims_check(s, n, &d);
    for (size_t i = 0; i < n; i += 2)
        s[i] = 'a';
    dg_delims_check(s, n, &d);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table), cmocka_unit_test(any_bytes)};
    return cmocka_run_group_tests_name("delims", tests, NULL, NULL);
}
