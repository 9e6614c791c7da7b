/* The reply parser: a table of replies with their right reading, each cut at every byte; tokens by id; limits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "message/call.h"
#include "message/prompt.h"
#include "message/reply.h"
#include "support/reply_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct got {
    struct dg_buf thought, content, calls;
};

static enum dg_status collect(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct got *g = ctx;
    (void)err;
    switch (e->kind) {
    case DG_REPLY_THOUGHT: return dg_buf_add(&g->thought, e->text, e->n);
    case DG_REPLY_CONTENT: return dg_buf_add(&g->content, e->text, e->n);
    case DG_REPLY_CALL:
        dg_buf_add(&g->calls, e->name, e->n_name);
        dg_buf_chr(&g->calls, ' ');
        dg_buf_add(&g->calls, e->text, e->n);
        return dg_buf_chr(&g->calls, '\n');
    }
    return DG_E_INTERNAL;
}

static void got_init(struct got *g) {
    dg_buf_init(&g->thought, 1 << 20);
    dg_buf_init(&g->content, 1 << 20);
    dg_buf_init(&g->calls, 1 << 26);
}

static void got_deinit(struct got *g) {
    dg_buf_deinit(&g->thought);
    dg_buf_deinit(&g->content);
    dg_buf_deinit(&g->calls);
}

static const struct {
    const char *s;
    enum dg_mark mark;
} spellings[] = {{"<|channel>", DG_MARK_CHANNEL_OPEN}, {"<channel|>", DG_MARK_CHANNEL_CLOSE}, {"<|tool_call>", DG_MARK_CALL_OPEN},
                 {"<tool_call|>", DG_MARK_CALL_CLOSE}, {S, DG_MARK_STRING}, {"<|tool_response>", DG_MARK_RESPONSE_OPEN},
                 {"<tool_response|>", DG_MARK_OTHER}, {"<|turn>", DG_MARK_TURN_OPEN}, {"<turn|>", DG_MARK_TURN_CLOSE},
                 {"<eos>", DG_MARK_EOS}, {"<|tool>", DG_MARK_OTHER}, {"<tool|>", DG_MARK_OTHER}, {"<|image|>", DG_MARK_OTHER},
                 {"<pad>", DG_MARK_OTHER}, {"<mask>", DG_MARK_OTHER}, {"<bos>", DG_MARK_OTHER}};

/* Index of the spelling at s, or -1. */
static int spelling_at(const char *s) {
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strncmp(s, spellings[i].s, strlen(spellings[i].s)) == 0)
            return (int)i;
    return -1;
}

/* Feeds a reply, text in pieces that end before byte `cut` of the input (0: nowhere) and at every control token; every: after
 * each byte. */
static void feed(struct dg_reply *r, const char *in, size_t cut, bool every) {
    struct dg_buf piece;
    dg_buf_init(&piece, 1 << 20);
    for (const char *s = in;; s++) {
        int k = *s ? spelling_at(s) : -1;
        if (k >= 0 || !*s || every || (cut && (size_t)(s - in) == cut)) {
            assert_int_equal(dg_reply_text(r, dg_buf_cstr(&piece), piece.len, NULL), DG_OK);
            dg_buf_clear(&piece);
        }
        if (!*s)
            break;
        if (k >= 0) {
            assert_int_equal(dg_reply_mark(r, spellings[k].mark, NULL), DG_OK);
            s += strlen(spellings[k].s) - 1;
        } else if (*s != '\2')
            dg_buf_chr(&piece, *s);
    }
    dg_buf_deinit(&piece);
    assert_int_equal(dg_reply_end(r, NULL), DG_OK);
}

static void check(const struct reply_case *c, const struct dg_reply *r, const struct got *g) {
    static const char ends[DG_MARKS] = {[DG_MARK_TURN_CLOSE] = 't', [DG_MARK_RESPONSE_OPEN] = 'r', [DG_MARK_TURN_OPEN] = 'o',
                                        [DG_MARK_EOS] = 'e'};
    char flags[8];
    snprintf(flags, sizeof flags, "%s%s%s%.1s", r->unclosed_thought ? "u" : "", r->cut ? "c" : "", r->n_bad_calls ? "b" : "",
             &ends[r->end]);
    if (strcmp(dg_buf_cstr(&g->thought), c->thought) || strcmp(dg_buf_cstr(&g->content), c->content) ||
        strcmp(dg_buf_cstr(&g->calls), c->calls) || strcmp(flags, c->flags))
        fail_msg("%s\n  thought \"%s\", content \"%s\", calls \"%s\", flags \"%s\"", c->in, dg_buf_cstr(&g->thought),
                 dg_buf_cstr(&g->content), dg_buf_cstr(&g->calls), flags);
}

static void one(const struct reply_case *c, size_t cut, bool every) {
    struct dg_reply r;
    struct got g;
    got_init(&g);
    dg_reply_init(&r, false, collect, &g);
    feed(&r, c->in, cut, every);
    check(c, &r, &g);
    dg_reply_deinit(&r);
    got_deinit(&g);
}

static void table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++)
        one(&reply_cases[i], 0, false);
    assert_true(sizeof reply_cases / sizeof *reply_cases >= 60);
}

static void cut_at_every_byte(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++) {
        for (size_t cut = 1; cut < strlen(reply_cases[i].in); cut++)
            one(&reply_cases[i], cut, false);
        one(&reply_cases[i], 0, true);
    }
}

/* A reply may stop anywhere: what came is handed out, calls are whole JSON. */
static void stopped_at_every_byte(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++)
        for (size_t n = 0; n < strlen(reply_cases[i].in); n++) {
            char *in = dg_strndup(reply_cases[i].in, n);
            struct dg_reply r;
            struct got g;
            got_init(&g);
            dg_reply_init(&r, false, collect, &g);
            feed(&r, in, 0, false);
            for (const char *line = dg_buf_cstr(&g.calls); *line; line = strchr(line, '\n') + 1) {
                const char *json = strstr(line, " {") + 1;
                json_t *v;
                assert_int_equal(dg_json_load_exact(json, strcspn(json, "\n"), &v, NULL), DG_OK);
                json_decref(v);
            }
            dg_reply_deinit(&r);
            got_deinit(&g);
            dg_free(in);
        }
}

/* The same table by token ids, text tokens and control tokens of the bundled tokenizer. */
static void by_token_ids(void **state) {
    (void)state;
    struct dg_tokenizer *t;
    assert_int_equal(dg_tokenizer_open(&t, "models/mini/tokenizer.json", NULL), DG_OK);
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++) {
        struct dg_reply_stream s;
        struct dg_ids ids;
        struct dg_buf piece;
        struct got g;
        if (strstr(reply_cases[i].in, "<|image|>")) /* not a token of this tokenizer */
            continue;
        got_init(&g);
        dg_ids_init(&ids);
        dg_buf_init(&piece, 1 << 20);
        dg_reply_stream_init(&s, t, false, collect, &g);
        for (const char *p = reply_cases[i].in;; p++) {
            int k = *p ? spelling_at(p) : -1;
            if (k >= 0 || !*p) {
                assert_int_equal(dg_tokenizer_encode(t, dg_buf_cstr(&piece), piece.len, false, &ids, NULL), DG_OK);
                dg_buf_clear(&piece);
            }
            if (!*p)
                break;
            if (k >= 0) {
                assert_int_equal(dg_ids_push(&ids, dg_tokenizer_find(t, spellings[k].s)), DG_OK);
                p += strlen(spellings[k].s) - 1;
            } else if (*p != '\2')
                dg_buf_chr(&piece, *p);
        }
        for (size_t k = 0; k < ids.n; k++)
            assert_int_equal(dg_reply_stream_push(&s, ids.v[k], NULL), DG_OK);
        assert_int_equal(dg_reply_stream_end(&s, NULL), DG_OK);
        check(&reply_cases[i], &s.reply, &g);
        assert_int_equal(dg_reply_stream_push(&s, -1, NULL), DG_E_ARG);
        dg_reply_stream_deinit(&s);
        dg_buf_deinit(&piece);
        dg_ids_deinit(&ids);
        got_deinit(&g);
    }
    dg_tokenizer_close(t);
}

static void prompt_ends_in_a_thought(void **state) {
    (void)state;
    static const struct reply_case c[] = {{"still\n<channel|>Yes<turn|>", "still", "Yes", "", "t"},
                                          {"thought\nx<channel|>Yes<turn|>", "thought\nx", "Yes", "", "t"},
                                          {"so " CALL "f{}" END, "so ", "", "f {}\n", "u"}, {"more", "more", "", "", "u"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct dg_reply r;
        struct got g;
        got_init(&g);
        dg_reply_init(&r, true, collect, &g);
        feed(&r, c[i].in, 0, i % 2);
        check(&c[i], &r, &g);
        dg_reply_deinit(&r);
        got_deinit(&g);
    }
}

static enum dg_status numbered(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    (void)err;
    return dg_buf_fmt(ctx, "%c%zu", "TCF"[e->kind], e->index);
}

static enum dg_status refuse(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    (void)e;
    ++*(int *)ctx;
    return DG_FAIL(err, DG_E_CANCELLED, "enough");
}

static void events_are_numbered_and_failures_travel(void **state) {
    (void)state;
    struct dg_reply r;
    struct dg_buf b;
    int n = 0;
    dg_buf_init(&b, 1000);
    dg_reply_init(&r, false, numbered, &b);
    feed(&r, "a<|channel>thought\nb<channel|>c<|channel>thought\nd<channel|>" CALL "f{}" END CALL "g{}" END, 0, false);
    assert_string_equal(dg_buf_cstr(&b), "C0T0C0T1F0F1");
    dg_reply_deinit(&r);
    dg_buf_deinit(&b);
    dg_reply_init(&r, false, refuse, &n);
    assert_int_equal(dg_reply_text(&r, "x", 1, NULL), DG_E_CANCELLED);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_OPEN, NULL), DG_OK);
    assert_int_equal(dg_reply_text(&r, "call:f{}", 8, NULL), DG_OK);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_CLOSE, NULL), DG_E_CANCELLED);
    assert_int_equal(n, 2);
    dg_reply_deinit(&r);
}

static void depth_and_length_are_limited(void **state) {
    (void)state;
    for (int depth = DG_CALL_DEPTH_MAX; depth <= DG_CALL_DEPTH_MAX + 1; depth++)
        for (int list = 0; list < 2; list++) {
            struct dg_buf b;
            struct dg_call call = {0};
            bool found;
            size_t used;
            dg_buf_init(&b, 10000);
            dg_buf_init(&call.arguments, 10000);
            dg_buf_str(&b, "call:f{a:");
            for (int i = 1; i < depth; i++)
                dg_buf_str(&b, list ? "[" : i + 1 < depth ? "{a:" : "{");
            for (int i = 1; i < depth; i++)
                dg_buf_chr(&b, list ? ']' : '}');
            dg_buf_chr(&b, '}');
            assert_int_equal(dg_call_parse(b.data, b.len, false, &call, &found, &used), DG_OK);
            assert_int_equal(found, depth == DG_CALL_DEPTH_MAX);
            dg_buf_deinit(&b);
            dg_buf_deinit(&call.arguments);
        }
    struct dg_reply r;
    struct got g;
    char block[4096];
    enum dg_status st = DG_OK;
    memset(block, '[', sizeof block);
    got_init(&g);
    dg_reply_init(&r, false, collect, &g);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_OPEN, NULL), DG_OK);
    for (int i = 0; i < 5000 && st == DG_OK; i++)
        st = dg_reply_text(&r, block, sizeof block, NULL);
    assert_int_equal(st, DG_E_LIMIT);
    dg_reply_deinit(&r);
    got_deinit(&g);
}

/* Very many calls in one piece take time in proportion to their number. */
static void many_calls(void **state) {
    (void)state;
    struct dg_reply r;
    struct got g;
    got_init(&g);
    dg_reply_init(&r, false, collect, &g);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_OPEN, NULL), DG_OK);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(dg_reply_text(&r, "call:f(){}", 10 - 2 * (i & 1), NULL), DG_OK);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_CLOSE, NULL), DG_OK);
    assert_true(r.n_calls >= 1);
    dg_reply_deinit(&r);
    dg_reply_init(&r, false, collect, &g);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_OPEN, NULL), DG_OK);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(dg_reply_text(&r, "call:f{a:1}", 11, NULL), DG_OK);
    assert_int_equal(dg_reply_mark(&r, DG_MARK_CALL_CLOSE, NULL), DG_OK);
    assert_int_equal(r.n_calls, 100000);
    dg_reply_deinit(&r);
    got_deinit(&g);
}

/* A well-formed turn, parsed and rendered again as the message a client would return, has the tokens it was made of. */
static void parsed_turns_render_as_generated(void **state) {
    (void)state;
    static const char turn[] = "<|channel>thought\nI need both.\nYes.\n<channel|>" CALL "f{a:[1,2.5,None],b:{c:" S "x \"y\" {z}" S "}}" END CALL
                               "g{}" END "<|tool_response>";
    struct dg_reply r;
    struct got g;
    struct dg_prompt p;
    got_init(&g);
    dg_reply_init(&r, false, collect, &g);
    feed(&r, turn, 0, false);
    json_t *calls = json_array();
    for (char *line = g.calls.data; *line; line = strchr(line, '\n') + 1) {
        char *json = strstr(line, " {");
        json_array_append_new(calls, json_pack("{s:{s:s#, s:s#}}", "function", "name", line, (int)(json - line), "arguments", json + 1,
                                               (int)strcspn(json + 1, "\n")));
    }
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:n, s:s, s:o}]", "role", "user", "content", "go", "role", "assistant", "content",
                                 "reasoning_content", dg_buf_cstr(&g.thought), "tool_calls", calls);
    json_t *prepared;
    dg_prompt_init(&p);
    assert_int_equal(dg_message_prepare(messages, &prepared, NULL), DG_OK);
    assert_int_equal(dg_template_render(prepared, NULL, NULL, &p, NULL), DG_OK);
    assert_string_equal(strstr(p.text.data, "<|turn>model\n") + strlen("<|turn>model\n"), turn);
    dg_prompt_deinit(&p);
    json_decref(prepared);
    json_decref(messages);
    dg_reply_deinit(&r);
    got_deinit(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(stopped_at_every_byte),
        cmocka_unit_test(by_token_ids),
        cmocka_unit_test(prompt_ends_in_a_thought),
        cmocka_unit_test(events_are_numbered_and_failures_travel),
        cmocka_unit_test(depth_and_length_are_limited),
        cmocka_unit_test(many_calls),
        cmocka_unit_test(parsed_turns_render_as_generated),
    };
    return cmocka_run_group_tests_name("reply", tests, NULL, NULL);
}
