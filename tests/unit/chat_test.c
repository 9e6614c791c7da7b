/* A chat over the token pipeline, the model's turns being given: messages, tool loop, canonical log, cancelling, files, what is
 * typed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "chat/chat.h"
#include "chat/input.h"
#include "core/mem.h"
#include "message/turn_text.h"
#include "ops/backends.h"
#include "support/reply_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dg_model *model;
static struct dg_backend *be;
static struct dg_tokenizer *tok;
static struct dg_turn_text turn_text;

static int set_up(void **state) {
    (void)state;
    struct dg_backend_opts o = {.threads = 1};
    return dg_model_open(&model, "models/mini", NULL) != DG_OK || dg_backend_open(&be, "cpu", model, &o, NULL) != DG_OK ||
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

/* --- a chat whose replies are given --- */

#define TURNS 16

struct talk {
    struct dg_script_turn turn[TURNS];
    struct dg_ids ids[TURNS];
    struct dg_engine *engine;
    struct dg_pipeline *p;
    struct dg_toolbox tools;
    struct dg_chat chat;
    atomic_bool cancel;
    struct dg_buf content, thought, calls, results, notes;
    int asked;
    bool deny;
};

static void on_text(void *ctx, enum dg_chat_text kind, const char *s, size_t n) {
    struct talk *t = ctx;
    struct dg_buf *to[] = {&t->content, &t->thought, &t->calls, &t->results};
    dg_buf_add(to[kind], s, n);
    if (kind == DG_CHAT_CALL || kind == DG_CHAT_RESULT)
        dg_buf_chr(to[kind], '\n');
}

static void on_note(void *ctx, const char *text) { dg_buf_str(&((struct talk *)ctx)->notes, text); }

static bool on_allow(void *ctx, const struct dg_tool_call *call) {
    (void)call;
    ((struct talk *)ctx)->asked++;
    return !((struct talk *)ctx)->deny;
}

static void must(enum dg_status st, const struct dg_error *err) {
    if (st != DG_OK)
        fail_msg("%s", dg_error_text(err));
}

/* replies: texts with control tokens, a stop token's spelling at the end being what ended the turn; NULL at the end. block: tokens
 * a block, 0 = one. harness: tools, or NULL. */
static struct talk *open_talk(const char *const *replies, size_t block, const char *harness) {
    struct talk *t = calloc(1, sizeof *t);
    struct dg_error err = {0};
    struct dg_engine_opts eo = {.session = {.ctx = 1024, .kv = DG_F16, .ring = 256, .sc_sparse = true}, .blank = turn_text.blank};
    struct dg_stage *stage;
    size_t n = 0;
    for (; replies && replies[n]; n++) {
        must(dg_tokenizer_encode(tok, replies[n], strlen(replies[n]), true, &t->ids[n], &err), &err);
        int32_t last = t->ids[n].v[t->ids[n].n - 1];
        bool stop = last == 106 || last == 50 || last == 1;
        t->turn[n] = (struct dg_script_turn){t->ids[n].v, t->ids[n].n - stop, block, stop ? last : -1};
    }
    struct dg_buf *bufs[] = {&t->content, &t->thought, &t->calls, &t->results, &t->notes};
    for (size_t i = 0; i < 5; i++)
        dg_buf_init(bufs[i], 1 << 22);
    dg_gen_init(&eo.gen, &model->cfg, NULL);
    must(dg_engine_create(&t->engine, be, &eo, &err), &err);
    stage = dg_engine_stage(t->engine);
    if (replies)
        must(dg_stage_script(&stage, stage, t->turn, n, &err), &err);
    must(dg_pipeline_start(&t->p, stage, 0, &err), &err);
    if (harness) {
        char path[] = "/tmp/dg_chat_XXXXXX";
        int fd = mkstemp(path);
        assert_int_equal(write(fd, harness, strlen(harness)), (ssize_t)strlen(harness));
        close(fd);
        must(dg_toolbox_load(&t->tools, path, &err), &err);
        unlink(path);
    }
    struct dg_chat_opts co = {.pipeline = t->p,
                              .tok = tok,
                              .tools = &t->tools,
                              .gen = eo.gen,
                              .ctx = 1024,
                              .canvas = model->cfg.canvas,
                              .rounds = 3,
                              .cancel = &t->cancel,
                              .ui = {.ctx = t, .text = on_text, .note = on_note, .allow = on_allow}};
    dg_turn_text_policy(&turn_text, &co.gen.policy);
    must(dg_chat_init(&t->chat, &co, &err), &err);
    return t;
}

static void close_talk(struct talk *t) {
    dg_chat_deinit(&t->chat);
    dg_pipeline_close(t->p);
    dg_toolbox_deinit(&t->tools);
    for (size_t i = 0; i < TURNS; i++)
        dg_ids_deinit(&t->ids[i]);
    struct dg_buf *bufs[] = {&t->content, &t->thought, &t->calls, &t->results, &t->notes};
    for (size_t i = 0; i < 5; i++)
        dg_buf_deinit(bufs[i]);
    free(t);
}

static void say(struct talk *t, const char *text) {
    struct dg_error err = {0};
    must(dg_chat_send(&t->chat, text, strlen(text), &err), &err);
}

static const json_t *message(const struct talk *t, size_t i) { return json_array_get(t->chat.dialog.messages, i); }
static const char *field(const struct talk *t, size_t i, const char *key) {
    return json_string_value(json_object_get(message(t, i), key));
}

/* Nothing the model writes as a control token may be seen as text. */
static void no_marker(const struct dg_buf *b) {
    static const char *const marks[] = {"<|channel>", "<channel|>", "<|tool_call>",     "<tool_call|>",
                                        "<turn|>",    "<|turn>",    "<|tool_response>", "<|\"|>"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        assert_null(strstr(dg_buf_cstr(b), marks[i]));
}

/* --- the canonical form --- */

static enum dg_status collect(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    return dg_reply_message_add(ctx, e, err);
}

/* n ids as a message. */
static json_t *parse_ids(const int32_t *ids, size_t n, uint64_t call) {
    struct dg_reply_message m;
    struct dg_reply_stream s;
    struct dg_error err = {0};
    json_t *out;
    dg_reply_message_init(&m, call);
    dg_reply_stream_init(&s, tok, false, collect, &m);
    for (size_t i = 0; i < n; i++)
        must(dg_reply_stream_push(&s, ids[i], &err), &err);
    must(dg_reply_stream_end(&s, &err), &err);
    must(dg_reply_message_json(&m, &out, &err), &err);
    dg_reply_stream_deinit(&s);
    dg_reply_message_deinit(&m);
    return out;
}

static void expect_ids(const char *what, const struct dg_ids *a, const struct dg_ids *b) {
    struct dg_buf x, y;
    if (a->n == b->n && !memcmp(a->v, b->v, a->n * sizeof *a->v))
        return;
    dg_buf_init(&x, 1 << 20);
    dg_buf_init(&y, 1 << 20);
    assert_int_equal(dg_tokenizer_decode(tok, a->v, a->n, false, &x, NULL), DG_OK);
    assert_int_equal(dg_tokenizer_decode(tok, b->v, b->n, false, &y, NULL), DG_OK);
    fail_msg("%s: %zu tokens '%s', not %zu tokens '%s'", what, a->n, dg_buf_cstr(&x), b->n, dg_buf_cstr(&y));
}

/* The log is the rendered conversation, and the model's last turn in it, parsed and rendered again, gives the same tokens. */
static void expect_fixed_point(struct talk *t) {
    struct dg_ids canon = {0}, again = {0};
    struct dg_error err = {0};
    struct dg_dialog *d = &t->chat.dialog;
    must(dg_dialog_encode(d, tok, false, &canon, &err), &err);
    const struct dg_ids *log = &dg_engine_current(t->engine)->s->log;
    expect_ids("log", log, &canon);
    /* pieces of the last turn between the results of tools, each of them one reply */
    int32_t turn = dg_tokenizer_find(tok, "<|turn>"), open = 50, close = 51;
    size_t at = canon.n;
    /* the header is left in: the parser takes it for the reply's own, and its line end may be one token with what follows */
    do
        at--;
    while (canon.v[at] != turn);
    size_t first = dg_dialog_count(d);
    const char *text;
    size_t n;
    first = dg_dialog_last_user(d, &text, &n) + 1;
    json_t *messages = json_deep_copy(d->messages), *kept = d->messages;
    for (size_t i = first; i < json_array_size(messages); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (strcmp(role, "assistant"))
            continue;
        size_t end = at;
        while (end < canon.n && canon.v[end] != open)
            end++;
        uint64_t call = 0;
        const char *id =
            json_string_value(json_object_get(json_array_get(json_object_get(json_array_get(messages, i), "tool_calls"), 0), "id"));
        if (id)
            call = strtoull(id + 5, NULL, 10);
        json_array_set_new(messages, i, parse_ids(canon.v + at, end - at, call));
        for (at = end; at < canon.n && (canon.v[at] == open); at++)
            while (canon.v[at] != close)
                at++;
    }
    d->messages = messages;
    must(dg_dialog_encode(d, tok, false, &again, &err), &err);
    d->messages = kept;
    expect_ids("rendered again", &again, &canon);
    json_decref(messages);
    dg_ids_deinit(&canon);
    dg_ids_deinit(&again);
}

#define Q "<|\"|>"
static const char harness[] = "{\"prompt\": \"Be brief.\", \"tools\": ["
                              "{\"name\": \"get_weather\", \"description\": \"Weather.\", \"parameters\": {\"type\": \"object\", "
                              "\"properties\": {\"city\": {\"type\": \"string\"}}},"
                              " \"command\": [\"echo\", \"sunny in {city}\"]},"
                              "{\"name\": \"f\", \"command\": [\"cat\"], \"input\": \"json\"}]}";

static void replies_become_canonical(void **state) {
    (void)state;
    static const char *const replies[] = {
        "Oslo<turn|>",
        "  two  spaces \n\n around \n<turn|>",
        "<|channel>thought\nI think.\n<channel|>Paris<turn|>",
        "<|channel>thought\nno end",
        "<|channel>thought\n\n\n<channel|>empty thought<turn|>",
        "text <|channel>thought\nin the middle<channel|> more<turn|>",
        "a <channel|>stray <|\"|>marks<|think|> inside<turn|>",
        "```\ncall:f{}\n``` <turn|>",
        "e\u0301 漢字 🙂 \u200d<turn|>",
        "<turn|>",
        "<|tool_call>call:f{broken<turn|>",
        "cut in the middle of a wo",
    };
    for (int thinking = 0; thinking < 2; thinking++)
        for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
            const char *const one[] = {replies[i], NULL};
            struct talk *t = open_talk(one, thinking ? 3 : 0, NULL);
            t->chat.dialog.thinking = thinking ? DG_THINKING_ON : DG_THINKING_OFF;
            say(t, "Hello!");
            expect_fixed_point(t);
            no_marker(&t->content);
            no_marker(&t->thought);
            close_talk(t);
        }
}

static void tool_turns_become_canonical(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"<|tool_call>call:get_weather{city:" Q "Oslo" Q "}<tool_call|><|tool_response>", "It is sunny.<turn|>"},
        {"<|channel>thought\nask the tool\n<channel|><|tool_call>call:get_weather{city:" Q "Oslo" Q "}<tool_call|><|tool_response>",
         "Sunny.<turn|>"},
        {"<|tool_call>call:f{n:3.50,b:true,z:null,l:[1,{a:" Q "x" Q "}],B:12345678901234567890123}<tool_call|><|tool_response>",
         "Done.<turn|>"},
        {"<|tool_call>call:f{}<tool_call|><|tool_call>call:get_weather{city:" Q "Rome" Q "}<tool_call|><|tool_response>",
         "<|tool_call>call:f{a:1}<tool_call|><|tool_response>", "End<turn|>"},
        {"<|tool_call>call:f(a=\"x\")<tool_call|><turn|>", "<|channel>thought\nhm\n<channel|>ok<turn|>"},
    };
    for (int thinking = 0; thinking < 2; thinking++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct talk *t = open_talk(cases[i], 4, harness);
            t->chat.dialog.thinking = thinking ? DG_THINKING_ON : DG_THINKING_OFF;
            say(t, "Use the tools.");
            expect_fixed_point(t);
            no_marker(&t->content);
            close_talk(t);
        }
}

/* --- the parser's table, as a chat sees it --- */

/* Stands for the engine: keeps no cache and answers each Generate with the reply it was given, in blocks. */
struct parrot {
    struct dg_stage stage;
    const int32_t *ids;
    size_t n, block;
    int32_t stop_id;
};

static void parrot_exec(struct dg_stage *stage, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct parrot *p = (struct parrot *)stage;
    struct dg_answer a = {.op = op->kind, .error = "", .stop_id = -1};
    struct dg_event e = {.conv = 1, .at = {1, 1}};
    if (op->kind == DG_OP_GENERATE) {
        for (size_t at = 0; at < p->n; at += p->block) {
            size_t kept = p->n - at < p->block ? p->n - at : p->block;
            bool last = at + kept == p->n;
            struct dg_block_event b = {.block = (int32_t)(at / p->block), .ids = p->ids + at, .kept = (int32_t)kept, .converged = true,
                                       .end = last ? p->stop_id < 0 ? DG_END_LENGTH : DG_END_STOP : DG_END_NONE, .stop_id = last ? p->stop_id : -1};
            struct dg_event block = e;
            block.kind = DG_EV_BLOCK;
            block.block = &b;
            emit(ctx, &block);
        }
        a.ids = p->ids;
        a.n = (int64_t)p->n;
        a.end = p->stop_id < 0 ? DG_END_LENGTH : DG_END_STOP;
        a.stop_id = p->stop_id;
    }
    e.kind = DG_EV_ANSWER;
    e.answer = &a;
    emit(ctx, &e);
}

static void parrot_destroy(struct dg_stage *stage) { (void)stage; }

/* The ids of a reply of the table; false when this tokenizer lacks one of its tokens. */
static bool case_ids(const char *in, struct dg_ids *ids) {
    struct dg_buf piece;
    bool known = true;
    dg_buf_init(&piece, 1 << 16);
    for (const char *s = in;; s++) {
        size_t n = 0;
        int32_t id = -1;
        for (int32_t k = 0; *s && n == 0 && k < dg_tokenizer_size(tok); k++) {
            size_t len;
            const char *spelled = dg_tokenizer_piece(tok, k, &len);
            if (dg_tokenizer_is_control(tok, k) && strncmp(s, spelled, len) == 0) {
                n = len;
                id = k;
            }
        }
        known = known && (n || strncmp(s, "<|image|>", 9) != 0);
        if (n || !*s) {
            must(dg_tokenizer_encode(tok, dg_buf_cstr(&piece), piece.len, false, ids, NULL), NULL);
            dg_buf_clear(&piece);
        }
        if (!*s)
            break;
        if (n) {
            assert_int_equal(dg_ids_push(ids, id), DG_OK);
            s += n - 1;
        } else if (*s != '\2')
            dg_buf_chr(&piece, *s);
    }
    dg_buf_deinit(&piece);
    return known;
}

static void expect_case(const struct reply_case *c, const struct talk *t, const char *calls, size_t block) {
    if (strcmp(dg_buf_cstr(&t->content), c->content) || strcmp(dg_buf_cstr(&t->thought), c->thought) || strcmp(dg_buf_cstr(&t->calls), calls))
        fail_msg("%s\n  in blocks of %zu: thought \"%s\", content \"%s\", calls \"%s\"", c->in, block, dg_buf_cstr(&t->thought),
                 dg_buf_cstr(&t->content), dg_buf_cstr(&t->calls));
}

/* Every reply of the table in blocks of every size, so that a block ends at every token. (Field failure B01) */
static void cut_at_every_block(void **state) {
    (void)state;
    struct parrot p = {.stage = {parrot_exec, parrot_destroy, NULL}};
    struct talk t = {0};
    struct dg_error err = {0};
    struct dg_buf *bufs[] = {&t.content, &t.thought, &t.calls, &t.results, &t.notes};
    size_t tried = 0;
    for (size_t i = 0; i < 5; i++)
        dg_buf_init(bufs[i], 1 << 22);
    must(dg_pipeline_start(&t.p, &p.stage, 0, &err), &err);
    struct dg_chat_opts co = {.pipeline = t.p, .tok = tok, .tools = &t.tools, .ctx = 4096, .canvas = 64,
                              .ui = {.ctx = &t, .text = on_text, .note = on_note, .allow = on_allow}};
    must(dg_chat_init(&t.chat, &co, &err), &err);
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++) {
        struct dg_ids ids = {0};
        struct dg_buf calls;
        bool known = case_ids(reply_cases[i].in, &ids);
        dg_buf_init(&calls, 1 << 16);
        for (const char *line = reply_cases[i].calls; *line; line = strchr(line, '\n') + 1)
            dg_buf_fmt(&calls, "call %.*s\n", (int)strcspn(line, "\n"), line);
        p.ids = ids.v;
        p.stop_id = -1;
        for (p.n = 0; p.n < ids.n && p.stop_id < 0; p.n += p.stop_id < 0)
            p.stop_id = ids.v[p.n] == 106 || ids.v[p.n] == 50 || ids.v[p.n] == 1 ? ids.v[p.n] : -1;
        for (p.block = 1; known && p.block <= p.n + 1; p.block++, tried++) {
            for (size_t k = 0; k < 5; k++)
                dg_buf_clear(bufs[k]);
            must(dg_chat_send(&t.chat, "x", 1, &err), &err);
            expect_case(&reply_cases[i], &t, dg_buf_cstr(&calls), p.block);
            dg_chat_reset(&t.chat);
        }
        dg_buf_deinit(&calls);
        dg_ids_deinit(&ids);
    }
    assert_true(tried > 1000);
    dg_chat_deinit(&t.chat);
    dg_pipeline_close(t.p);
    for (size_t i = 0; i < 5; i++)
        dg_buf_deinit(bufs[i]);
}

/* Several calls in one block, prose before and after: all run in order, what follows the calls is not shown. (B01, B18) */
static void several_calls_in_one_block(void **state) {
    (void)state;
    const char *const replies[] = {"Let me see. <|tool_call>call:get_weather{city:" Q "Oslo" Q
                                   "}<tool_call|><|tool_call>call:f{x:1}<tool_call|>invented",
                                   "Done.<turn|>", NULL};
    for (size_t block = 0; block < 6; block += 5) {
        struct talk *t = open_talk(replies, block, harness);
        say(t, "Go.");
        assert_string_equal(dg_buf_cstr(&t->calls), "call get_weather {\"city\":\"Oslo\"}\ncall f {\"x\":1}\n");
        assert_string_equal(dg_buf_cstr(&t->results), "sunny in Oslo\n{\"x\":1}\n");
        assert_string_equal(dg_buf_cstr(&t->content), "Let me see. Done.");
        assert_int_equal(t->asked, 2);
        assert_int_equal(t->chat.last.rounds, 1);
        assert_int_equal(dg_dialog_count(&t->chat.dialog), 6);
        assert_string_equal(field(t, 3, "tool_call_id"), "call_1");
        assert_string_equal(field(t, 4, "tool_call_id"), "call_2");
        close_talk(t);
    }
}

/* After a result the answer is content and the thought is thought, thinking on and off. (B02) */
static void after_a_result(void **state) {
    (void)state;
    const char *const plain[] = {"<|tool_call>call:get_weather{city:" Q "Oslo" Q "}<tool_call|><|tool_response>",
                                 "It is sunny.<turn|>", NULL};
    const char *const thoughtful[] = {"<|channel>thought\nI ask.\n<channel|><|tool_call>call:get_weather{city:" Q "Oslo" Q
                                      "}<tool_call|><|tool_response>",
                                      "<|channel>thought\nI know.\n<channel|>It is sunny.<turn|>", NULL};
    for (int on = 0; on < 2; on++)
        for (size_t block = 0; block < 2; block++) {
            struct talk *t = open_talk(on ? thoughtful : plain, block, harness);
            t->chat.dialog.thinking = on ? DG_THINKING_ON : DG_THINKING_OFF;
            say(t, "Weather?");
            assert_string_equal(dg_buf_cstr(&t->content), "It is sunny.");
            assert_string_equal(dg_buf_cstr(&t->thought), on ? "I ask.I know." : "");
            assert_string_equal(field(t, 4, "content"), "It is sunny.");
            if (on)
                assert_string_equal(field(t, 4, "reasoning_content"), "I know.");
            close_talk(t);
        }
}

/* Thoughts are kept inside the tool turn and gone from the prompt afterwards. (B13) */
static void thoughts_kept_and_dropped(void **state) {
    (void)state;
    const char *const replies[] = {"<|channel>thought\nWALNUT\n<channel|><|tool_call>call:f{}<tool_call|><|tool_response>",
                                   "<|channel>thought\nALMOND\n<channel|>Done.<turn|>", "Bye.<turn|>", NULL};
    struct talk *t = open_talk(replies, 0, harness);
    struct dg_ids ids = {0};
    struct dg_buf text;
    struct dg_error err = {0};
    t->chat.dialog.thinking = DG_THINKING_ON;
    say(t, "One.");
    dg_buf_init(&text, 1 << 20);
    must(dg_dialog_encode(&t->chat.dialog, tok, false, &ids, &err), &err);
    must(dg_tokenizer_decode(tok, ids.v, ids.n, false, &text, &err), &err);
    assert_non_null(strstr(dg_buf_cstr(&text), "<|channel>thought\nWALNUT\n<channel|><|tool_call>"));
    assert_null(strstr(dg_buf_cstr(&text), "ALMOND"));
    say(t, "Two.");
    ids.n = 0;
    dg_buf_clear(&text);
    must(dg_dialog_encode(&t->chat.dialog, tok, false, &ids, &err), &err);
    must(dg_tokenizer_decode(tok, ids.v, ids.n, false, &text, &err), &err);
    assert_null(strstr(dg_buf_cstr(&text), "WALNUT"));
    dg_ids_deinit(&ids);
    dg_buf_deinit(&text);
    close_talk(t);
}

/* Thought, prose before it, a thought cut off, a thought that is all there is: each has its place, and an empty reply says why.
 * (B07, B15) */
static void thought_and_content(void **state) {
    (void)state;
    static const struct {
        const char *reply, *content, *thought, *note;
    } cases[] = {
        {"<|channel>thought\nhm\n<channel|>Yes<turn|>", "Yes", "hm", ""},
        {"Well. <|channel>thought\nhm\n<channel|>Yes<turn|>", "Well. Yes", "hm", ""},
        {"<|channel>thought\nstill thinking", "", "still thinking", "cut inside its thought"},
        {"<|channel>thought\nnever closed<turn|>", "", "never closed", "all of it was a thought"},
        {"<turn|>", "", "", "the reply is empty"},
        {"half an ans", "half an ans", "", "the reply was cut"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t block = 0; block < 2; block++) {
            const char *const one[] = {cases[i].reply, NULL};
            struct talk *t = open_talk(one, block, NULL);
            t->chat.dialog.thinking = DG_THINKING_ON;
            say(t, "Well?");
            assert_string_equal(dg_buf_cstr(&t->content), cases[i].content);
            assert_string_equal(dg_buf_cstr(&t->thought), cases[i].thought);
            if (*cases[i].note)
                assert_non_null(strstr(dg_buf_cstr(&t->notes), cases[i].note));
            else
                assert_string_equal(dg_buf_cstr(&t->notes), "");
            const char *kept = field(t, 1, "reasoning_content");
            assert_string_equal(kept ? kept : "", cases[i].thought);
            close_talk(t);
        }
}

/* A thought that has had its share is closed and an answer follows, on the model itself. (B15) */
static void thought_is_closed(void **state) {
    (void)state;
    struct talk *t = open_talk(NULL, 0, NULL);
    t->chat.dialog.thinking = DG_THINKING_ON;
    t->chat.o.think_max = 3;
    t->chat.o.gen.sampler.steps_max = 3;
    t->chat.o.gen.policy.n_stops = 0; /* nothing but the share ends this thought */
    t->chat.o.gen.policy.ws_stop = false;
    t->chat.o.gen.max_tokens = 140;
    struct dg_error err = {0};
    /* the prompt ends inside a thought, so that there is one whatever the model writes */
    t->tools.prethink = dg_strndup("I count: one, two, three,", 25);
    must(dg_chat_send(&t->chat, "Hello!", 6, &err), &err);
    assert_true(t->chat.last.closed_early);
    assert_non_null(strstr(dg_buf_cstr(&t->notes), "--think-max"));
    assert_true(t->chat.last.tokens <= 140 + 2);
    assert_int_equal(strncmp(dg_buf_cstr(&t->thought), "I count: one, two, three,", 25), 0);
    assert_false(t->chat.last.unclosed);
    assert_true(t->chat.last.blocks > 1);
    expect_fixed_point(t);
    close_talk(t);
}

/* A call that is required is required of a reply's first turn; a reply without it leaves no trace. (Field failure B16) */
static void required_calls(void **state) {
    (void)state;
    const char *const replies[] = {"I will not.<turn|>", "<|tool_call>call:f{}<tool_call|><|tool_response>", "Done.<turn|>",
                                   "<|tool_call>call:f{}<tool_call|><|tool_response>", NULL};
    struct talk *t = open_talk(replies, 0, harness);
    struct dg_error err = {0};
    t->chat.o.must_call = "";
    assert_int_equal(dg_chat_send(&t->chat, "Go.", 3, &err), DG_E_FORMAT);
    assert_non_null(strstr(dg_error_text(&err), "does not call a tool"));
    dg_error_clear(&err);
    assert_int_equal(dg_dialog_count(&t->chat.dialog), 1); /* the system text */
    say(t, "Go.");
    assert_string_equal(field(t, 4, "content"), "Done.");
    expect_fixed_point(t);
    t->chat.o.must_call = "get_weather";
    assert_int_equal(dg_chat_send(&t->chat, "Again.", 6, &err), DG_E_FORMAT);
    assert_non_null(strstr(dg_error_text(&err), "does not call get_weather"));
    dg_error_clear(&err);
    assert_int_equal(dg_dialog_count(&t->chat.dialog), 5);
    assert_int_equal(t->asked, 1); /* the wrong call did not run */
    close_talk(t);
}

static void rounds_are_bounded(void **state) {
    (void)state;
    const char *const replies[] = {"<|tool_call>call:f{}<tool_call|><|tool_response>",
                                   "<|tool_call>call:f{}<tool_call|><|tool_response>",
                                   "<|tool_call>call:f{}<tool_call|><|tool_response>",
                                   "<|tool_call>call:f{}<tool_call|><|tool_response>",
                                   "Fine.<turn|>",
                                   NULL};
    struct talk *t = open_talk(replies, 0, harness);
    say(t, "Loop.");
    assert_int_equal(t->asked, 3);
    assert_true(t->chat.last.out_of_rounds);
    assert_non_null(strstr(dg_buf_cstr(&t->results), "error: too many calls in one reply"));
    assert_non_null(strstr(dg_buf_cstr(&t->notes), "--tool-rounds"));
    /* the conversation goes on */
    say(t, "And now?");
    assert_string_equal(dg_buf_cstr(&t->content), "Fine.");
    close_talk(t);
}

static void calls_that_do_not_run(void **state) {
    (void)state;
    const char *const replies[] = {"<|tool_call>call:nothing{}<tool_call|><|tool_call>call:get_weather{city:" Q "a" Q
                                   "}<tool_call|><|tool_response>",
                                   "Sorry.<turn|>", NULL};
    struct talk *t = open_talk(replies, 0, harness);
    t->deny = true;
    say(t, "Go.");
    assert_string_equal(dg_buf_cstr(&t->results), "error: there is no tool nothing\nerror: the user did not allow this\n");
    assert_string_equal(dg_buf_cstr(&t->content), "Sorry.");
    close_talk(t);
}

/* What fails or is cancelled leaves no trace, and the chat goes on. */
static void failing_and_cancelling(void **state) {
    (void)state;
    struct talk *t = open_talk(NULL, 0, NULL);
    struct dg_error err = {0};
    t->chat.o.gen.sampler.steps_max = 2;
    t->chat.o.gen.max_tokens = 64;
    assert_int_equal(dg_chat_send(&t->chat, "\xff", 1, &err), DG_E_ARG);
    dg_error_clear(&err);
    char *big = malloc(40000);
    memset(big, 'x', 40000);
    for (int i = 1; i < 40000; i += 2)
        big[i] = (char)('a' + i % 25);
    assert_int_equal(dg_chat_send(&t->chat, big, 40000, &err), DG_E_LIMIT);
    assert_non_null(strstr(dg_error_text(&err), "--ctx"));
    dg_error_clear(&err);
    free(big);
    assert_int_equal(dg_dialog_count(&t->chat.dialog), 0);
    assert_int_equal(dg_chat_retry(&t->chat, &err), DG_E_ARG);
    dg_error_clear(&err);
    say(t, "Hello!");
    size_t n = dg_dialog_count(&t->chat.dialog);
    json_t *before = json_deep_copy(t->chat.dialog.messages);
    /* without its own token the chat cannot clear it, so the reply is cancelled at once */
    atomic_bool always = true;
    t->chat.o.cancel = NULL;
    struct dg_op op = {.kind = DG_OP_GENERATE, .cancel = &always};
    assert_int_equal(dg_pipeline_call(t->p, &op, NULL, NULL, NULL, NULL), DG_E_CANCELLED);
    t->chat.o.cancel = &t->cancel;
    say(t, "Thank you!");
    assert_int_equal(dg_dialog_count(&t->chat.dialog), n + 2);
    uint64_t seed = t->chat.last.seed;
    must(dg_chat_retry(&t->chat, &err), &err);
    assert_int_equal(t->chat.last.seed, seed + 1);
    assert_int_equal(dg_dialog_count(&t->chat.dialog), n + 2);
    assert_true(dg_chat_undo(&t->chat));
    assert_true(json_equal(before, t->chat.dialog.messages));
    assert_true(dg_chat_undo(&t->chat));
    assert_false(dg_chat_undo(&t->chat));
    json_decref(before);
    close_talk(t);
}

static void cancel_on_step(void *ctx, const struct dg_step_event *e) {
    if (e->result->step == 2)
        atomic_store(&((struct talk *)ctx)->cancel, true);
}

static void cancelled_between_steps(void **state) {
    (void)state;
    struct talk *t = open_talk(NULL, 0, NULL);
    struct dg_error err = {0};
    say(t, "Hello!");
    size_t n = dg_dialog_count(&t->chat.dialog);
    t->chat.o.ui.step = cancel_on_step;
    t->chat.o.gen.sampler.no_early_stop = true;
    assert_int_equal(dg_chat_send(&t->chat, "Tell me a story about a cat.", 28, &err), DG_E_CANCELLED);
    dg_error_clear(&err);
    assert_int_equal(dg_dialog_count(&t->chat.dialog), n);
    t->chat.o.think_max = 10;
    t->chat.dialog.thinking = DG_THINKING_ON;
    assert_int_equal(dg_chat_send(&t->chat, "Tell me a story about a cat.", 28, &err), DG_E_CANCELLED);
    dg_error_clear(&err);
    t->chat.dialog.thinking = DG_THINKING_OFF;
    t->chat.o.ui.step = NULL;
    t->chat.o.gen.sampler.no_early_stop = false;
    dg_chat_reset(&t->chat);
    dg_buf_clear(&t->content);
    say(t, "What is the capital of Norway?");
    assert_string_equal(dg_buf_cstr(&t->content), "Oslo");
    close_talk(t);
}

/* The next prompt only adds to the log, but for what the template itself writes differently. */
static void prefixes_are_kept(void **state) {
    (void)state;
    const char *const replies[] = {"Nice to meet you!<turn|>", "Your name is Ben.<turn|>", "Bye.<turn|>", NULL};
    struct talk *t = open_talk(replies, 0, NULL);
    say(t, "My name is Ben.");
    say(t, "What is my name?");
    /* computed: the new user turn, the opened model turn, and the reply in canonical form once (the script extends it once itself)
     */
    int64_t full = t->chat.last.prompt;
    assert_true(t->chat.last.computed < full);
    expect_fixed_point(t);
    say(t, "Bye!");
    assert_true(t->chat.last.computed < t->chat.last.prompt);
    close_talk(t);
}

/* Without reuse the same replies, each prompt computed whole. (DGQ_KV_REUSE=0) */
static void nothing_is_reused(void **state) {
    (void)state;
    const char *const replies[] = {"<|tool_call>call:f{}<tool_call|><|tool_response>", "Nice to meet you!<turn|>", "Your name is Ben.<turn|>", NULL};
    struct dg_buf said[2];
    struct dg_ids last[2] = {0};
    for (int off = 0; off < 2; off++) {
        struct talk *t = open_talk(replies, 0, harness);
        t->chat.o.no_reuse = off;
        say(t, "My name is Ben.");
        int64_t first = t->chat.last.computed;
        say(t, "What is my name?");
        /* the last turn's prompt and reply, the reply having been prefilled by the script */
        if (off) {
            assert_int_equal(t->chat.last.computed, t->chat.last.prompt + t->chat.last.tokens);
            assert_true(first > 2 * t->chat.last.tokens);
        } else
            assert_true(t->chat.last.computed < t->chat.last.prompt);
        dg_buf_init(&said[off], 1 << 20);
        dg_buf_add(&said[off], t->content.data, t->content.len);
        must(dg_dialog_encode(&t->chat.dialog, tok, false, &last[off], NULL), NULL);
        close_talk(t);
    }
    assert_string_equal(dg_buf_cstr(&said[0]), dg_buf_cstr(&said[1]));
    expect_ids("without reuse", &last[1], &last[0]);
    for (int off = 0; off < 2; off++) {
        dg_buf_deinit(&said[off]);
        dg_ids_deinit(&last[off]);
    }
}

/* --- files --- */

static void saved_and_loaded(void **state) {
    (void)state;
    const char *const replies[] = {"<|tool_call>call:f{B:12345678901234567890123,x:1.5}<tool_call|><|tool_response>",
                                   "Hi \xf0\x9f\x99\x82<turn|>", NULL};
    char path[] = "/tmp/dg_chat_XXXXXX";
    close(mkstemp(path));
    struct talk *t = open_talk(replies, 0, harness);
    struct dg_error err = {0};
    struct dg_dialog d;
    t->chat.dialog.thinking = DG_THINKING_ON;
    say(t, "Hello \"you\"\n<turn|>");
    assert_string_equal(dg_buf_cstr(&t->results), "{\"B\":12345678901234567890123,\"x\":1.5}\n");
    must(dg_dialog_save(&t->chat.dialog, path, &err), &err);
    must(dg_dialog_init(&d, &err), &err);
    must(dg_dialog_load(&d, path, &err), &err);
    assert_true(json_equal(d.messages, t->chat.dialog.messages));
    assert_int_equal(d.thinking, DG_THINKING_ON);
    assert_int_equal(dg_dialog_save(&d, "/nonexistent/folder/x", &err), DG_E_IO);
    dg_error_clear(&err);
    /* what is no chat leaves the dialog as it was */
    static const struct {
        const char *text;
        enum dg_status st;
    } bad[] = {{"", DG_E_FORMAT},
               {"{", DG_E_FORMAT},
               {"{}", DG_E_FORMAT},
               {"{\"form\": \"diffgemma chat\", \"version\": 2, \"messages\": []}", DG_E_FORMAT},
               {"{\"form\": \"diffgemma chat\", \"version\": 1, \"messages\": {}}", DG_E_FORMAT},
               {"[1]", DG_E_ARG},
               {"[{\"role\": \"user\", \"content\": 3}]", DG_E_ARG},
               {"[{\"role\": \"\"}]", DG_E_ARG},
               {"42", DG_E_FORMAT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        fputs(bad[i].text, f);
        fclose(f);
        assert_int_equal(dg_dialog_load(&d, path, &err), bad[i].st);
        assert_non_null(strstr(dg_error_text(&err), path));
        dg_error_clear(&err);
        assert_true(json_equal(d.messages, t->chat.dialog.messages));
    }
    FILE *f = fopen(path, "w");
    fputs("[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]", f);
    fclose(f);
    must(dg_dialog_load(&d, path, &err), &err);
    assert_int_equal(dg_dialog_count(&d), 2);
    assert_int_equal(dg_dialog_load(&d, "/tmp", &err), DG_E_IO);
    dg_error_clear(&err);
    dg_dialog_deinit(&d);
    unlink(path);
    close_talk(t);
}

static void system_text(void **state) {
    (void)state;
    struct dg_dialog d;
    struct dg_error err = {0};
    must(dg_dialog_init(&d, &err), &err);
    assert_null(dg_dialog_system_view(&d));
    must(dg_dialog_add_user(&d, "u", 1, &err), &err);
    must(dg_dialog_system(&d, "one", 3, &err), &err);
    must(dg_dialog_system(&d, "two", 3, &err), &err);
    assert_int_equal(dg_dialog_count(&d), 2);
    assert_string_equal(dg_dialog_system_view(&d), "two");
    assert_int_equal(dg_dialog_system(&d, "\xc3", 1, &err), DG_E_ARG);
    dg_error_clear(&err);
    must(dg_dialog_system(&d, "", 0, &err), &err);
    assert_int_equal(dg_dialog_count(&d), 1);
    dg_dialog_deinit(&d);
}

/* --- what is typed --- */

static void typed_lines(void **state) {
    (void)state;
    static const struct {
        const char *line;
        enum dg_input_state state;
        const char *text;
    } steps[] = {
        {"hello", DG_INPUT_MESSAGE, "hello"},
        {"", DG_INPUT_EMPTY, NULL},
        {"   ", DG_INPUT_EMPTY, NULL},
        {"with CR\r", DG_INPUT_MESSAGE, "with CR"},
        {"/help", DG_INPUT_COMMAND, "help"},
        {"//help", DG_INPUT_MESSAGE, "/help"},
        {"/", DG_INPUT_COMMAND, ""},
        {"one\\", DG_INPUT_MORE, NULL},
        {"/two\\", DG_INPUT_MORE, NULL},
        {"three", DG_INPUT_MESSAGE, "one\n/two\nthree"},
        {"\"\"\"", DG_INPUT_MORE, NULL},
        {"", DG_INPUT_MORE, NULL},
        {"/quit \\", DG_INPUT_MORE, NULL},
        {"", DG_INPUT_MORE, NULL},
        {"\"\"\"", DG_INPUT_MESSAGE, "\n/quit \\\n"},
        {"\"\"\"a\"\"\"", DG_INPUT_MESSAGE, "a"},
        {"\"\"\"a", DG_INPUT_MORE, NULL},
        {"b\"\"\"", DG_INPUT_MESSAGE, "a\nb"},
        {"\"\"\"\"\"\"", DG_INPUT_EMPTY, NULL},
        {"\\", DG_INPUT_MORE, NULL},
        {"x", DG_INPUT_MESSAGE, "\nx"},
    };
    struct dg_input in;
    struct dg_error err = {0};
    enum dg_input_state st;
    dg_input_init(&in);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        must(dg_input_line(&in, steps[i].line, strlen(steps[i].line), &st, &err), &err);
        if (st != steps[i].state)
            fail_msg("line %zu '%s': state %d", i, steps[i].line, st);
        if (steps[i].text)
            assert_string_equal(dg_buf_cstr(&in.text), steps[i].text);
    }
    must(dg_input_line(&in, "half\\", 5, &st, &err), &err);
    must(dg_input_end(&in, &st, &err), &err);
    assert_int_equal(st, DG_INPUT_MESSAGE);
    assert_string_equal(dg_buf_cstr(&in.text), "half");
    must(dg_input_line(&in, "\"\"\"half", 7, &st, &err), &err);
    assert_int_equal(dg_input_end(&in, &st, &err), DG_E_ARG);
    dg_error_clear(&err);
    must(dg_input_line(&in, "again", 5, &st, &err), &err);
    assert_int_equal(st, DG_INPUT_MESSAGE);
    dg_input_deinit(&in);
}

static void commands(void **state) {
    (void)state;
    struct dg_chat_command c;
    struct dg_error err = {0};
    must(dg_chat_command_parse("HELP", &c, &err), &err);
    assert_int_equal(c.kind, DG_CMD_HELP);
    must(dg_chat_command_parse("q", &c, &err), &err);
    assert_int_equal(c.kind, DG_CMD_QUIT);
    must(dg_chat_command_parse("seed 18446744073709551615", &c, &err), &err);
    assert_true(c.given && c.number == UINT64_MAX);
    must(dg_chat_command_parse("think off", &c, &err), &err);
    assert_true(c.given && !c.on);
    must(dg_chat_command_parse("system  two  words", &c, &err), &err);
    assert_string_equal(c.argument, "two  words");
    must(dg_chat_command_parse("save a file", &c, &err), &err);
    assert_string_equal(c.argument, "a file");
    static const char *const bad[] = {"",     "s",     "bogus",     "seed x",     "seed -1", "seed 99999999999999999999",
                                      "save", "load ", "reset now", "view maybe", "re",      "think 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (dg_chat_command_parse(bad[i], &c, &err) != DG_E_ARG)
            fail_msg("/%s was taken", bad[i]);
        assert_true(strlen(dg_error_text(&err)) > 10);
        dg_error_clear(&err);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_become_canonical),
        cmocka_unit_test(tool_turns_become_canonical),
        cmocka_unit_test(cut_at_every_block),
        cmocka_unit_test(several_calls_in_one_block),
        cmocka_unit_test(after_a_result),
        cmocka_unit_test(thoughts_kept_and_dropped),
        cmocka_unit_test(thought_and_content),
        cmocka_unit_test(thought_is_closed),
        cmocka_unit_test(required_calls),
        cmocka_unit_test(rounds_are_bounded),
        cmocka_unit_test(calls_that_do_not_run),
        cmocka_unit_test(failing_and_cancelling),
        cmocka_unit_test(cancelled_between_steps),
        cmocka_unit_test(prefixes_are_kept),
        cmocka_unit_test(nothing_is_reused),
        cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(system_text),
        cmocka_unit_test(typed_lines),
        cmocka_unit_test(commands),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
