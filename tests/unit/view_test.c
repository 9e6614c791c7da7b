/* The canvas view as frames on a terminal: what stands where, in which colour, after any number of frames and sizes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "chat/view.h"
#include "support/vt.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct dg_tokenizer *tok;
static struct vt term;

static int set_up(void **state) {
    (void)state;
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        return -1;
    return dg_tokenizer_open(&tok, "models/mini/tokenizer.json", NULL) == DG_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    dg_tokenizer_close(tok);
    return 0;
}

static int32_t ids[256];

/* Ids of a text, control tokens included; at most 256. */
static int32_t encode(const char *text) {
    struct dg_ids l = {0};
    if (dg_tokenizer_encode(tok, text, strlen(text), true, &l, NULL) != DG_OK || l.n > 256)
        fail_msg("cannot encode %s", text);
    memcpy(ids, l.v, l.n * sizeof *ids);
    int32_t n = (int32_t)l.n;
    dg_ids_deinit(&l);
    return n;
}

static void send(struct dg_buf *b) {
    vt_put(&term, dg_buf_cstr(b), b->len);
    dg_buf_deinit(b);
}

static struct dg_view open_view(int w, int h, enum dg_view_colours colours) {
    struct dg_view v;
    struct dg_view_opts o = {.canvas = true, .colours = colours, .width = w, .height = h};
    dg_view_init(&v, tok, &o);
    vt_open(&term, w, h);
    return v;
}

static float p_max[256];

static void step(struct dg_view *v, int32_t n, int32_t number) {
    struct dg_buf b;
    dg_buf_init(&b, DG_VIEW_FRAME_MAX);
    struct dg_step_result r = {.step = number, .n_accepted = number < n ? number : n, .mean_entropy = 1.0 / number, .result = ids};
    struct dg_step_event e = {.block = 0, .steps_max = 48, .temperature = 0.8f, .result = &r, .p_max = p_max, .n = n};
    assert_int_equal(dg_view_step(v, &e, &b), DG_OK);
    send(&b);
}

static void text(struct dg_view *v, enum dg_view_kind kind, const char *s) {
    struct dg_buf b;
    dg_buf_init(&b, DG_VIEW_FRAME_MAX);
    assert_int_equal(dg_view_text(v, kind, s, strlen(s), &b), DG_OK);
    send(&b);
}

static void end(struct dg_view *v) {
    struct dg_buf b;
    dg_buf_init(&b, DG_VIEW_FRAME_MAX);
    assert_int_equal(dg_view_end(v, &b), DG_OK);
    send(&b);
    assert_false(term.hidden);
    assert_false(term.sync);
    assert_int_equal(term.unknown, 0);
    assert_int_equal(term.bare_frames, 0);
    dg_view_deinit(v);
}

static void frames_at_80x24(void **state) {
    (void)state;
    struct dg_view v = open_view(80, 24, DG_VIEW_NO_COLOUR);
    int32_t n = encode("The cat sat.\nIt\tslept.<turn|><pad><pad>");
    step(&v, n, 1);
    char want[200];
    snprintf(want, sizeof want, "The cat sat.↵It⇥slept.■··\nblock 1  step 1/48  T 0.80  accepted 1/%d  entropy 1.000\n", n);
    assert_string_equal(vt_screen(&term), want);
    step(&v, n, 2);
    snprintf(want, sizeof want, "The cat sat.↵It⇥slept.■··\nblock 1  step 2/48  T 0.80  accepted 2/%d  entropy 0.500\n", n);
    assert_string_equal(vt_screen(&term), want);
    assert_true(term.hidden);
    text(&v, DG_VIEW_CONTENT, "The cat sat.\nIt slept");
    assert_string_equal(vt_screen(&term), "The cat sat.\nIt slept\n");
    n = encode(" well.");
    step(&v, n, 1);
    snprintf(want, sizeof want, "The cat sat.\nIt slept\n well.\nblock 1  step 1/48  T 0.80  accepted 1/%d  entropy 1.000\n", n);
    assert_string_equal(vt_screen(&term), want);
    text(&v, DG_VIEW_CONTENT, " well.");
    end(&v);
    assert_string_equal(vt_screen(&term), "The cat sat.\nIt slept well.\n");
    assert_int_equal(term.row, 2);
    assert_int_equal(term.col, 0);
}

static void frames_at_40x10(void **state) {
    (void)state;
    struct dg_view v = open_view(40, 10, DG_VIEW_NO_COLOUR);
    char big[1200] = "";
    for (int i = 0; i < 60; i++)
        strcat(big, "the cat ");
    text(&v, DG_VIEW_CONTENT, "Once upon a time");
    int32_t n = encode(big);
    step(&v, n, 3);
    assert_string_equal(vt_row(&term, 0), "Once upon a time");
    for (int y = 1; y < 9; y++) /* 39 columns, a blank at the end not seen */
        assert_in_range(strlen(vt_row(&term, y)), 38, 39);
    char want[100];
    snprintf(want, sizeof want, "b1 s3/48 T0.80 3/%d H0.33  +5 rows", n);
    assert_string_equal(vt_row(&term, 9), want);
    assert_int_equal(term.scrolled, 0);
    for (int i = 4; i < 20; i++)
        step(&v, n, i);
    assert_int_equal(term.scrolled, 0);
    /* the block settles: more text than the screen has rows, and the last row is where it goes on */
    text(&v, DG_VIEW_CONTENT, big);
    assert_int_equal(term.scrolled, 3);
    text(&v, DG_VIEW_CONTENT, "END");
    end(&v);
    assert_string_equal(vt_row(&term, 8), "the cat the cat END");
    for (int y = 0; y < 8; y++)
        assert_int_equal(strlen(vt_row(&term, y)) >= 39, 1);
}

/* The cursor hides behind the last column: nothing of a full row may be lost, whatever its length. */
static void rows_of_every_length(void **state) {
    (void)state;
    for (int len = 1; len <= 100; len++) {
        struct dg_view v = open_view(20, 12, DG_VIEW_NO_COLOUR);
        char s[128];
        for (int i = 0; i < len; i++)
            s[i] = (char)('a' + i % 26);
        s[len] = 0;
        int32_t n = encode("xyz");
        for (int cut = 0; cut <= len; cut += 7) {
            int k = len - cut < 7 ? len - cut : 7;
            char piece[8] = "";
            memcpy(piece, s + cut, (size_t)k);
            text(&v, DG_VIEW_CONTENT, piece);
            step(&v, n, 1);
        }
        end(&v);
        char got[400] = "";
        for (int y = 0; y < 12; y++)
            strcat(got, vt_row(&term, y));
        assert_string_equal(got, s);
    }
}

static void wide_and_joined(void **state) {
    (void)state;
    assert_int_equal(dg_glyph_width("漢字", 6), 4);
    assert_int_equal(dg_glyph_width("e\u0301", 3), 1);
    assert_int_equal(dg_glyph_width("\u2764\ufe0f", 6), 2);
    assert_int_equal(dg_glyph_width("a\tb\n", 4), 2);
    struct dg_view v = open_view(10, 8, DG_VIEW_NO_COLOUR);
    /* nine columns a row: a wide character that would stand across the edge goes to the next row whole */
    int32_t n = encode("漢字漢字漢字e\u0301e\u0301e\u0301e\u0301🙂👩\u200d🚀x");
    step(&v, n, 1);
    assert_string_equal(vt_row(&term, 0), "漢字漢字");
    assert_string_equal(vt_row(&term, 1), "漢字e\u0301e\u0301e\u0301e\u0301");
    assert_string_equal(vt_row(&term, 2), "🙂👩\u200d🚀x");
    text(&v, DG_VIEW_CONTENT, "漢字漢字漢字");
    text(&v, DG_VIEW_CONTENT, "e\u0301!");
    end(&v);
    assert_string_equal(vt_screen(&term), "漢字漢字漢\n字e\u0301!\n");
    v = open_view(9, 8, DG_VIEW_NO_COLOUR);
    text(&v, DG_VIEW_CONTENT, "漢字漢字漢");
    step(&v, n, 1);
    text(&v, DG_VIEW_CONTENT, "字");
    end(&v);
    assert_string_equal(vt_screen(&term), "漢字漢字\n漢字\n");
}

/* A mark at the beginning of the canvas sits on a circle, not on the text above. */
static void lone_mark(void **state) {
    (void)state;
    struct dg_view v = open_view(40, 8, DG_VIEW_NO_COLOUR);
    text(&v, DG_VIEW_CONTENT, "abc");
    int32_t n = encode("\u0301x");
    step(&v, n, 1);
    assert_string_equal(vt_row(&term, 0), "abc");
    assert_string_equal(vt_row(&term, 1), "◌\u0301x");
    end(&v);
}

static void colours_by_confidence(void **state) {
    (void)state;
    const float p[] = {0.1f, 0.3f, 0.6f, 0.9f, 0.99f};
    const int c16[] = {31, 35, 33, 36, 32}, c256[] = {160, 208, 220, 149, 42};
    for (int i = 0; i < 5; i++)
        assert_int_equal(dg_view_level(p[i]), i);
    for (int deep = 0; deep < 2; deep++) {
        struct dg_view v = open_view(80, 10, deep ? DG_VIEW_256 : DG_VIEW_16);
        int32_t n = encode("<pad><eos><turn|><pad><eos>");
        assert_int_equal(n, 5);
        memcpy(p_max, p, sizeof p);
        step(&v, n, 1);
        for (int i = 0; i < 5; i++)
            assert_int_equal(term.paint[0][i], deep ? c256[i] : c16[i]);
        end(&v);
    }
    /* without colour no SGR sequence at all */
    struct dg_view v = open_view(80, 10, DG_VIEW_NO_COLOUR);
    struct dg_buf b;
    dg_buf_init(&b, DG_VIEW_FRAME_MAX);
    struct dg_step_result r = {.step = 1, .result = ids};
    struct dg_step_event e = {.result = &r, .p_max = p_max, .n = 5};
    assert_int_equal(dg_view_text(&v, DG_VIEW_THOUGHT, "hm", 2, &b), DG_OK);
    assert_int_equal(dg_view_step(&v, &e, &b), DG_OK);
    for (size_t i = 0; i + 2 < b.len; i++)
        if (b.data[i] == '\033')
            assert_null(memchr(b.data + i, 'm', strcspn(b.data + i + 2, "mHJKAhl") + 3));
    dg_buf_deinit(&b);
    dg_view_deinit(&v);
}

static void resizing_draws_anew(void **state) {
    (void)state;
    struct dg_view v = open_view(60, 12, DG_VIEW_NO_COLOUR);
    text(&v, DG_VIEW_THOUGHT, "first a thought");
    text(&v, DG_VIEW_CONTENT, "line one\nthis is a line that is rather long and goes on");
    int32_t n = encode("the rest");
    step(&v, n, 1);
    /* a terminal that did whatever it liked with its rows */
    vt_open(&term, 30, 9);
    term.hidden = true;
    vt_put(&term, "\033[?2026hgarbage\r\nof all kinds\033[?2026l", strlen("\033[?2026hgarbage\r\nof all kinds\033[?2026l"));
    dg_view_resize(&v, 30, 9);
    step(&v, n, 2);
    char want[300];
    snprintf(want, sizeof want,
             "first a thought\nline one\nthis is a line that is rather \nlong and goes on\nthe rest\nb1 s2/48 T0.80 2/%d H0.50\n",
             n);
    /* vt_row drops blanks at the end */
    char *blank = strstr(want, "rather \n");
    memmove(blank + 6, blank + 7, strlen(blank + 7) + 1);
    assert_string_equal(vt_screen(&term), want);
    text(&v, DG_VIEW_CONTENT, " on");
    end(&v);
    assert_string_equal(vt_screen(&term), "first a thought\nline one\nthis is a line that is rather\nlong and goes on on\n");
}

/* Text of the model cannot steer the terminal. */
static void nothing_steers_the_terminal(void **state) {
    (void)state;
    struct dg_view v = open_view(60, 8, DG_VIEW_NO_COLOUR);
    text(&v, DG_VIEW_CONTENT,
         "a\033[2Jb\x07\x7f\xc2\x9b"
         "31mc\u202ed\re");
    end(&v);
    assert_string_equal(vt_screen(&term), "a\ufffd[2Jb\ufffd\ufffd\ufffd31mc\ufffdd\ufffde\n");
}

static void plain_text_only(void **state) {
    (void)state;
    struct dg_view v;
    struct dg_view_opts o = {.plain = true, .canvas = true, .width = 80, .height = 24};
    struct dg_buf b;
    dg_buf_init(&b, 1 << 20);
    dg_view_init(&v, tok, &o);
    int32_t n = encode("abc");
    struct dg_step_result r = {.step = 1, .result = ids};
    struct dg_step_event e = {.result = &r, .p_max = p_max, .n = n};
    assert_int_equal(dg_view_step(&v, &e, &b), DG_OK);
    assert_int_equal(dg_view_text(&v, DG_VIEW_CONTENT, "one\ttwo", 7, &b), DG_OK);
    assert_int_equal(dg_view_step(&v, &e, &b), DG_OK);
    assert_int_equal(dg_view_text(&v, DG_VIEW_CONTENT, " three", 6, &b), DG_OK);
    assert_int_equal(dg_view_status(&v, "busy", &b), DG_OK);
    assert_int_equal(dg_view_text(&v, DG_VIEW_CALL, "call f {}\n", 10, &b), DG_OK);
    assert_int_equal(dg_view_end(&v, &b), DG_OK);
    assert_string_equal(dg_buf_cstr(&b), "one\ttwo three\ncall f {}\n");
    dg_buf_deinit(&b);
    dg_view_deinit(&v);
}

/* A character in several byte tokens stands at the first of them; bytes that are none stand for themselves. */
static void bytes_of_characters(void **state) {
    (void)state;
    struct dg_buf b;
    size_t ends[8];
    const char *const pieces[] = {"<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xE2>", "<0x82>", "<0x0A>"};
    int32_t list[8];
    for (int i = 0; i < 7; i++)
        list[i] = dg_tokenizer_find(tok, pieces[i]);
    list[7] = 1 << 30;
    dg_buf_init(&b, 1000);
    assert_int_equal(dg_glyph_tokens(tok, list, 8, &b, ends), DG_OK);
    assert_string_equal(dg_buf_cstr(&b), "€A\ufffd\ufffd↵\ufffd");
    const size_t want[] = {3, 3, 3, 4, 7, 10, 13, 16};
    for (int i = 0; i < 8; i++)
        assert_int_equal(ends[i], want[i]);
    dg_buf_deinit(&b);
}

/* Random events and sizes: the sender never sends what the terminal does not know, and the text that settled is there in the end.
 */
static void random_sessions(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        int w = 8 + (int)(seed >> 33) % 60, h = 2 + (int)(seed >> 40) % 20;
        struct dg_view v = open_view(w, h, round % 2 ? DG_VIEW_256 : DG_VIEW_NO_COLOUR);
        for (int i = 0; i < 30; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int what = (int)(seed >> 60), n = 1 + (int)(seed >> 50) % 200;
            if (what < 8) {
                for (int k = 0; k < n; k++) {
                    ids[k] = (int32_t)((seed >> 33) + (uint64_t)k * 2654435761u) % dg_tokenizer_size(tok);
                    p_max[k] = (float)(k % 10) / 10;
                }
                step(&v, n, 1 + i);
            } else if (what < 14) {
                static const char *const some[] = {
                    "word ", "漢字かな", "e\u0301\u0301", "\n", "👩\u200d🚀 go", "a longer piece of text that wraps ", "\t|"};
                text(&v, (enum dg_view_kind)((seed >> 45) % DG_VIEW_KINDS), some[(seed >> 35) % 7]);
            } else {
                dg_view_resize(&v, w, h);
            }
        }
        text(&v, DG_VIEW_CONTENT, "\nlast");
        end(&v);
        bool found = false;
        for (int y = 0; y < h; y++)
            found = found || !strcmp(vt_row(&term, y), "last");
        assert_true(found);
    }
}

/* A frame of a canvas of 256 costs next to nothing beside a step, which is milliseconds on any machine. */
static void cost_of_a_frame(void **state) {
    (void)state;
    struct dg_view v = open_view(80, 24, DG_VIEW_256);
    struct dg_buf b;
    struct timespec t0, t1;
    dg_buf_init(&b, DG_VIEW_FRAME_MAX);
    for (int k = 0; k < 256; k++) {
        ids[k] = 300 + 13 * k % 3000;
        p_max[k] = (float)(k % 10) / 10;
    }
    struct dg_step_result r = {.step = 1, .result = ids};
    struct dg_step_event e = {.result = &r, .p_max = p_max, .n = 256};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
    size_t bytes = 0;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(dg_view_step(&v, &e, &b), DG_OK);
        bytes = b.len;
        dg_buf_clear(&b);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
    double us = ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec)) / 200 / 1e3;
    printf("# a frame of 256 positions: %.1f us, %zu bytes\n", us, bytes);
    assert_true(us < 2000);
    dg_buf_deinit(&b);
    dg_view_deinit(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_at_80x24),     cmocka_unit_test(frames_at_40x10), cmocka_unit_test(rows_of_every_length),
        cmocka_unit_test(wide_and_joined),     cmocka_unit_test(lone_mark),       cmocka_unit_test(colours_by_confidence),
        cmocka_unit_test(resizing_draws_anew), cmocka_unit_test(plain_text_only), cmocka_unit_test(nothing_steers_the_terminal),
        cmocka_unit_test(bytes_of_characters), cmocka_unit_test(random_sessions), cmocka_unit_test(cost_of_a_frame),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
