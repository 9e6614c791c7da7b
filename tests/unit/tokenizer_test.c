/* Encoding and decoding: against a naive second implementation on random and hostile texts and vocabularies, and case by case.
 *
 * tokenizer_test [TOKENIZER.json]: with an argument, only the comparison with the naive implementation, on that file. */
#include "core/map.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "support/naive_bpe.h"
#include "tokenizer/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY "tests/data/tiny_tokenizer.json"
#define MINI "models/mini/tokenizer.json"
#define S "\xe2\x96\x81" /* the vocabulary's space */

static const char *path_argument;

static struct dg_tokenizer *open_file(const char *name) {
    const char *root = getenv("DG_ROOT");
    char path[4096];
    struct dg_tokenizer *t;
    struct dg_error err = {0};
    snprintf(path, sizeof path, "%s%s%s", root && *name != '/' ? root : "", root && *name != '/' ? "/" : "", name);
    if (dg_tokenizer_open(&t, path, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    return t;
}

static struct naive_bpe *open_naive(const char *name) {
    const char *root = getenv("DG_ROOT");
    char path[4096];
    struct dg_map map;
    snprintf(path, sizeof path, "%s%s%s", root && *name != '/' ? root : "", root && *name != '/' ? "/" : "", name);
    assert_int_equal(dg_map_open(&map, path, NULL), DG_OK);
    struct naive_bpe *b = naive_bpe_create((const char *)map.data, map.size);
    dg_map_close(&map);
    assert_non_null(b);
    return b;
}

static uint64_t rng_state;

static size_t below(size_t n) {
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (size_t)((z ^ z >> 31) % n);
}

/* --- against the naive implementation -------------------------------------------------------------------------------- */

struct text {
    char s[8192];
    size_t n;
};

static void put(struct text *t, const char *s, size_t n) {
    if (t->n + n < sizeof t->s) {
        memcpy(t->s + t->n, s, n);
        t->n += n;
    }
}

static void put_cp(struct text *t, uint32_t cp) {
    char c[4];
    put(t, c, (size_t)dg_utf8_put(cp, c));
}

static uint32_t random_cp(void) {
    static const uint32_t limits[] = {0x20, 0x80, 0x800, 0x3100, 0xa000, 0xd800, 0x110000};
    for (;;) {
        uint32_t cp = (uint32_t)below(limits[below(7)]);
        if (cp < 0xd800 || cp > 0xdfff)
            return cp;
    }
}

/* One stroke of a random text: an entry, a run, a character, a bit of a control token. */
static void put_something(struct text *t, const struct naive_bpe *b) {
    static const char *const bits[] = {"<|turn>",      "<turn|>",
                                       "<|tu",         "rn>",
                                       "<|",           "|>",
                                       "<bos>",        "<0x41>",
                                       "<unused0>",    "> </",
                                       "\r\n",         " \n ",
                                       "\xe2\x96\x81", "\xe2\x96\x81 ",
                                       "a\xcc\x81",    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac"};
    static const char runs[] = " \n\tab<>cde=-.0/t\xff";
    switch (below(6)) {
    case 0: put_cp(t, random_cp()); break;
    case 1: {
        const char *bit = bits[below(sizeof bits / sizeof *bits)];
        put(t, bit, strlen(bit));
        break;
    }
    case 2: {
        char c = runs[below(sizeof runs - 2)];
        for (size_t k = 1 + below(below(8) ? 6 : 70); k > 0; k--)
            put(t, &c, 1);
        break;
    }
    default: {
        const char *p = naive_bpe_piece(b, (int32_t)below((size_t)naive_bpe_size(b))), *space;
        while ((space = strstr(p, "\xe2\x96\x81"))) {
            put(t, p, (size_t)(space - p));
            put(t, " ", 1);
            p = space + 3;
        }
        put(t, p, strlen(p));
    }
    }
}

static void print_text(const struct text *t) {
    for (size_t i = 0; i < t->n; i++)
        fprintf(stderr, "%s%02x", i ? " " : "# text: ", (unsigned char)t->s[i]);
    fputc('\n', stderr);
}

static void expect_ids(const struct text *t, const struct dg_ids *want, const struct dg_ids *got, const char *what) {
    size_t i = 0;
    while (i < want->n && i < got->n && want->v[i] == got->v[i])
        i++;
    if (i == want->n && i == got->n)
        return;
    print_text(t);
    fail_msg("%s: %zu ids instead of %zu, the first difference at %zu", what, got->n, want->n, i);
}

/* Ascending client spans at random, some empty, some adjacent. */
static size_t random_spans(struct dg_span *spans, size_t max, size_t n) {
    size_t count = 0, at = 0;
    while (count < max && below(4)) {
        size_t begin = at + below(n - at + 1), end = begin + (below(5) ? below(n - begin + 1) : 0);
        if (below(3) == 0)
            begin = at <= end ? at : begin;
        spans[count++] = (struct dg_span){begin, end};
        at = end;
    }
    return count;
}

static void compare(const struct dg_tokenizer *t, const struct naive_bpe *b, const struct text *text) {
    struct dg_span spans[6] = {{0, text->n}};
    size_t n_spans;
    struct dg_ids want, got;
    struct dg_error err = {0};
    for (int how = 0; how < 4; how++) {
        dg_ids_init(&want);
        dg_ids_init(&got);
        n_spans = how < 2 ? 0 : how == 2 ? 1 : random_spans(spans, 6, text->n);
        naive_bpe_encode(b, text->s, text->n, how > 0, spans, n_spans, &want);
        enum dg_status st = how < 2 ? dg_tokenizer_encode(t, text->s, text->n, how > 0, &got, &err)
                                    : dg_tokenizer_encode_spans(t, text->s, text->n, spans, n_spans, &got, &err);
        if (st != DG_OK)
            fail_msg("%s", dg_error_text(&err));
        static const char *const names[] = {"plain", "control", "one client span", "random client spans"};
        expect_ids(text, &want, &got, names[how]);
        dg_ids_deinit(&want);
        dg_ids_deinit(&got);
    }
}

static void compare_many(const struct dg_tokenizer *t, const struct naive_bpe *b, int n_short, int n_long) {
    static struct text text;
    for (int i = 0; i < n_short + n_long; i++) {
        text.n = 0;
        size_t strokes = i < n_short ? below(40) : 150 + below(300);
        while (strokes-- > 0)
            put_something(&text, b);
        compare(t, b, &text);
    }
    /* long stretches nothing can be cut from */
    static const char *const alphabets[] = {"a", "ab", "abc", "abcde", "etaoinshrdlu", " ", " a", "\n", "\t", "> </", "<>|turn/"};
    for (size_t i = 0; i < sizeof alphabets / sizeof *alphabets; i++)
        for (size_t n = 20; n < 1500; n = n * 5 / 2) {
            text.n = 0;
            while (text.n < n)
                put(&text, alphabets[i] + below(strlen(alphabets[i])), 1);
            compare(t, b, &text);
        }
}

static void compare_file(const char *name, int n_short, int n_long) {
    struct dg_tokenizer *t = open_file(name);
    struct naive_bpe *b = open_naive(name);
    rng_state = 1;
    assert_int_equal(dg_tokenizer_size(t), naive_bpe_size(b));
    for (int32_t id = 0; id < naive_bpe_size(b); id++) {
        size_t len;
        const char *piece = naive_bpe_piece(b, id), *s = dg_tokenizer_piece(t, id, &len);
        assert_int_equal(len, strlen(piece));
        assert_memory_equal(s, piece, len);
        assert_int_equal(dg_tokenizer_find(t, piece), id);
    }
    compare_many(t, b, n_short, n_long);
    naive_bpe_destroy(b);
    dg_tokenizer_close(t);
}

static void test_naive_tiny(void **state) {
    (void)state;
    compare_file(TINY, 1500, 40);
}

static void test_naive_mini(void **state) {
    (void)state;
    compare_file(MINI, 800, 20);
}

static void test_naive_argument(void **state) {
    (void)state;
    compare_file(path_argument, 500, 30);
}

/* Entries and merges of a made-up tokenizer; the first 256 entries are the byte tokens. */
struct made_up {
    char pieces[400][64];
    int n_pieces;
    struct {
        int left, right;
    } merges[2000];
    int n_merges;
};

static int find_piece(const struct made_up *m, const char *s, size_t n) {
    for (int i = 0; i < m->n_pieces; i++)
        if (strlen(m->pieces[i]) == n && memcmp(m->pieces[i], s, n) == 0)
            return i;
    return -1;
}

/* Entries grown by joining entries, now and then byte tokens too. */
static void make_pieces(struct made_up *m) {
    static const char *const letters[] = {
        "a", "b", ">", "|", "<", "/", S, "\\n", "\\t", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9d\x95\x8f"};
    bool with_bytes = below(4) == 0;
    m->n_pieces = 0;
    for (int i = 0; i < 256; i++)
        snprintf(m->pieces[m->n_pieces++], sizeof *m->pieces, "<0x%02X>", i);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (i == 0 || below(6))
            strcpy(m->pieces[m->n_pieces++], letters[i]);
    int want = m->n_pieces + (int)below(90);
    for (int tries = 0; tries < 2000 && m->n_pieces < want; tries++) {
        char both[2 * sizeof *m->pieces] = "";
        for (int half = 0; half < 2; half++)
            strcat(both, m->pieces[with_bytes && below(4) == 0 ? below(256) : 256 + below((size_t)m->n_pieces - 256)]);
        if (strlen(both) < sizeof *m->pieces && find_piece(m, both, strlen(both)) < 0)
            strcpy(m->pieces[m->n_pieces++], both);
    }
}

/* Most cuts of every entry into two entries, in random order. */
static void make_merges(struct made_up *m) {
    m->n_merges = 0;
    for (int p = 256; p < m->n_pieces; p++)
        for (size_t cut = 1, n = strlen(m->pieces[p]); cut < n && m->n_merges < 2000; cut++) {
            int left = find_piece(m, m->pieces[p], cut), right = find_piece(m, m->pieces[p] + cut, n - cut);
            if (left >= 0 && right >= 0 && below(8)) {
                m->merges[m->n_merges].left = left;
                m->merges[m->n_merges++].right = right;
            }
        }
    for (int i = m->n_merges - 1; i > 0; i--) {
        int k = (int)below((size_t)i + 1), left = m->merges[i].left, right = m->merges[i].right;
        m->merges[i] = m->merges[k];
        m->merges[k].left = left;
        m->merges[k].right = right;
    }
}

/* A random tokenizer.json, its merges in either spelling; owner: the caller. */
static char *random_tokenizer(size_t *n) {
    static struct made_up m;
    struct dg_buf b;
    bool strings = below(2);
    make_pieces(&m);
    make_merges(&m);
    dg_buf_init(&b, 1 << 20);
    dg_buf_str(&b,
               "{\"added_tokens\":[],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" S "\"},"
               "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" S "\"},"
               "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\","
               "\"byte_fallback\":true,\"vocab\":{");
    for (int i = 0; i < m.n_pieces; i++)
        dg_buf_fmt(&b, "%s\"%s\":%d", i ? "," : "", m.pieces[i], i);
    dg_buf_str(&b, "},\"merges\":[");
    for (int i = 0; i < m.n_merges; i++) {
        const char *comma = i ? "," : "", *left = m.pieces[m.merges[i].left], *right = m.pieces[m.merges[i].right];
        if (strings)
            dg_buf_fmt(&b, "%s\"%s %s\"", comma, left, right);
        else
            dg_buf_fmt(&b, "%s[\"%s\",\"%s\"]", comma, left, right);
    }
    dg_buf_str(&b, "]}}");
    return dg_buf_take(&b, n);
}

static void test_naive_random_vocabularies(void **state) {
    (void)state;
    static struct text text;
    rng_state = 2;
    for (int i = 0; i < 300; i++) {
        size_t n;
        char *json = random_tokenizer(&n);
        struct dg_tokenizer *t;
        struct dg_error err = {0};
        assert_non_null(json);
        if (dg_tokenizer_create(&t, json, n, &err) != DG_OK)
            fail_msg("%s", dg_error_text(&err));
        struct naive_bpe *b = naive_bpe_create(json, n);
        for (int k = 0; k < 60; k++) {
            static const char *const alphabet[] = {
                "a", "b",     ">", "|", "<", "/", " ", "\n", "\t", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9d\x95\x8f", "\xe2\x96\x81",
                "z", "<0x61>"};
            size_t kinds = 1 + below(15), first = below(15);
            text.n = 0;
            for (size_t len = k < 55 ? below(30) : 60 + below(400); len > 0; len--) {
                const char *c = alphabet[(first + below(kinds)) % 15];
                put(&text, c, strlen(c));
            }
            compare(t, b, &text);
        }
        naive_bpe_destroy(b);
        dg_tokenizer_close(t);
        dg_free(json);
    }
}

/* --- encoding, case by case ------------------------------------------------------------------------------------------ */

/* Expects the entries, separated by spaces, as the ids of a text. */
static void expect_pieces(const struct dg_tokenizer *t, const struct dg_ids *got, const char *entries) {
    char list[512], *save = NULL;
    size_t i = 0;
    strcpy(list, entries);
    for (char *p = strtok_r(list, " ", &save); p; p = strtok_r(NULL, " ", &save), i++) {
        size_t len = 0;
        const char *s = i < got->n ? dg_tokenizer_piece(t, got->v[i], &len) : "(end)";
        if (i >= got->n || dg_tokenizer_find(t, p) != got->v[i])
            fail_msg("token %zu is %.*s, expected %s", i, (int)(len ? len : 5), s, p);
    }
    assert_int_equal(got->n, i);
}

static void expect_encode(const struct dg_tokenizer *t, const char *text, size_t n, bool control, const char *entries) {
    struct dg_ids got;
    dg_ids_init(&got);
    assert_int_equal(dg_tokenizer_encode(t, text, n, control, &got, NULL), DG_OK);
    expect_pieces(t, &got, entries);
    dg_ids_deinit(&got);
}

static void test_encode_cases(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    expect_encode(t, NULL, 0, true, "");
    expect_encode(t, "abcde", 5, true, "abcde");
    expect_encode(t, "a\0b", 3, true, "a <0x00> b");
    expect_encode(t, "\r\n", 2, true, "<0x0D> \n");
    expect_encode(t, "z\xc3\xa9\xc3\xaf", 5, true, "<0x7A> \xc3\xa9 <0xC3> <0xAF>");
    expect_encode(t, "   a", 4, true, S S S " a");
    expect_encode(t, " abc", 4, true, S "abc");
    expect_encode(t, "> </a", 5, true, ">" S "</ a");
    expect_encode(t, "<|turn>a<turn|>", 15, true, "<|turn> a <turn|>");
    expect_encode(t, "<|turn>a<turn|>", 15, false, "<| turn > a < turn |>");
    expect_encode(t, "a<|turn>b<|turn", 15, true, "a <|turn> b <| turn");
    expect_encode(t, "<<|turn>>", 9, true, "< <|turn> >");
    expect_encode(t, "<unused0>", 9, true, "< u n u <0x73> e d <0x30> >");
    dg_tokenizer_close(t);
}

static void test_encode_appends(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    struct dg_ids ids;
    struct dg_error err = {0};
    dg_ids_init(&ids);
    assert_int_equal(dg_tokenizer_encode(t, "a", 1, true, &ids, NULL), DG_OK);
    assert_int_equal(dg_tokenizer_encode(t, "b", 1, true, &ids, NULL), DG_OK);
    expect_pieces(t, &ids, "a b");
    assert_int_equal(dg_tokenizer_encode(t, "cccccc\xff", 7, true, &ids, &err), DG_E_ARG);
    expect_pieces(t, &ids, "a b");
    dg_error_clear(&err);
    dg_ids_deinit(&ids);
    dg_tokenizer_close(t);
}

static void test_encode_invalid_utf8(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3",
                                      "\xe2\x96",
                                      "\xf0\x9f\x98",
                                      "\xc3(",
                                      "\xe2\x96("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t before = 0; before < 20; before++) {
            char text[32], *exact, place[32];
            struct dg_ids ids;
            struct dg_error err = {0};
            size_t n = before + strlen(bad[i]);
            dg_ids_init(&ids);
            memset(text, 'a', before);
            strcpy(text + before, bad[i]);
            exact = malloc(n);
            memcpy(exact, text, n);
            assert_int_equal(dg_tokenizer_encode(t, exact, n, before & 1, &ids, &err), DG_E_ARG);
            snprintf(place, sizeof place, "at byte %zu ", before);
            if (!strstr(dg_error_text(&err), place))
                fail_msg("\"%s\" does not say %s", dg_error_text(&err), place);
            assert_int_equal(ids.n, 0);
            dg_error_clear(&err);
            free(exact);
        }
    dg_tokenizer_close(t);
}

/* Text with client parts in [brackets]; the brackets are not part of it. */
static void expect_spans(const struct dg_tokenizer *t, const char *marked, const char *entries) {
    struct dg_span spans[8];
    struct dg_ids got;
    char text[256];
    size_t n = 0, n_spans = 0;
    for (const char *p = marked; *p; p++)
        if (*p == '[')
            spans[n_spans].begin = n;
        else if (*p == ']')
            spans[n_spans++].end = n;
        else
            text[n++] = *p;
    dg_ids_init(&got);
    assert_int_equal(dg_tokenizer_encode_spans(t, text, n, spans, n_spans, &got, NULL), DG_OK);
    expect_pieces(t, &got, entries);
    dg_ids_deinit(&got);
}

static void test_spans(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    expect_spans(t, "<|turn>abc<turn|>", "<|turn> abc <turn|>");
    expect_spans(t, "<|turn>[abc]<turn|>", "<|turn> abc <turn|>");
    expect_spans(t, "<|turn>[a<turn|>b]<turn|>", "<|turn> a < turn |> b <turn|>");
    expect_spans(t, "[<|tu]rn><turn|>", "<| turn > <turn|>"); /* begun by the client */
    expect_spans(t, "<|turn[>]<turn|>", "<| turn > <turn|>"); /* ended by the client */
    expect_spans(t, "<|t[u]rn><turn|>", "<| turn > <turn|>"); /* with the client inside */
    expect_spans(t, "[<]<turn|>", "< <turn|>");               /* a near miss does not swallow the real one */
    expect_spans(t, "[<turn|]<turn|>", "< turn | <turn|>");
    expect_spans(t, "<turn|>[>]", "<turn|> >");
    expect_spans(t, "[<|turn>][<turn|>]", "<| turn > < turn |>");
    expect_spans(t, "<|tu[]rn>", "<|turn>"); /* an empty span protects nothing */
    expect_spans(t, "[]<|turn>[]", "<|turn>");
    expect_spans(t, "a[b]c", "abc"); /* merges cross the borders of a span */
    expect_spans(t, "\n[\n]\n[\n]", "\n\n\n\n");
    static const struct {
        struct dg_span spans[2];
    } bad[] = {{{{2, 1}, {3, 3}}}, {{{0, 9}, {9, 9}}}, {{{0, 2}, {1, 3}}}, {{{2, 3}, {0, 1}}}, {{{0, 1}, {SIZE_MAX, 2}}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dg_ids ids;
        struct dg_error err = {0};
        dg_ids_init(&ids);
        assert_int_equal(dg_tokenizer_encode_spans(t, "abcd", 4, bad[i].spans, 2, &ids, &err), DG_E_ARG);
        assert_non_null(strstr(dg_error_text(&err), "client span"));
        assert_int_equal(ids.n, 0);
        dg_error_clear(&err);
    }
    dg_tokenizer_close(t);
}

/* Field failure B08: every control token of the model: one id in trusted text, none as client text, spelled back by decoding. */
static void test_control_tokens(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(MINI);
    int n_controls = 0;
    for (int32_t id = -1; id <= dg_tokenizer_size(t); id++) {
        size_t len;
        const char *s = dg_tokenizer_piece(t, id, &len);
        if (!dg_tokenizer_is_control(t, id))
            continue;
        n_controls++;
        struct dg_ids ids;
        dg_ids_init(&ids);
        assert_int_equal(dg_tokenizer_encode(t, s, len, true, &ids, NULL), DG_OK);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.v[0], id);
        ids.n = 0;
        assert_int_equal(dg_tokenizer_encode(t, s, len, false, &ids, NULL), DG_OK);
        for (size_t i = 0; i < ids.n; i++)
            assert_false(dg_tokenizer_is_control(t, ids.v[i]));
        struct dg_buf out;
        dg_buf_init(&out, 1000);
        assert_int_equal(dg_tokenizer_decode(t, ids.v, ids.n, true, &out, NULL), DG_OK);
        assert_int_equal(out.len, len);
        assert_memory_equal(out.data, s, len);
        dg_buf_deinit(&out);
        dg_ids_deinit(&ids);
    }
    assert_int_equal(n_controls, 17);
    assert_int_equal(dg_tokenizer_find(t, "<|turn>"), 105);
    assert_int_equal(dg_tokenizer_find(t, "no such entry"), -1);
    dg_tokenizer_close(t);
}

/* --- decoding -------------------------------------------------------------------------------------------------------- */

/* Ids of entries separated by spaces. */
static struct dg_ids ids_of(const struct dg_tokenizer *t, const char *entries) {
    char list[512], *save = NULL;
    struct dg_ids ids;
    dg_ids_init(&ids);
    strcpy(list, entries);
    for (char *p = strtok_r(list, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        assert_int_not_equal(dg_tokenizer_find(t, p), -1);
        dg_ids_push(&ids, dg_tokenizer_find(t, p));
    }
    return ids;
}

static bool valid_utf8(const char *s, size_t n) {
    size_t i = 0;
    int len;
    while (i < n && (len = dg_utf8_next((const uint8_t *)s + i, n - i, NULL)) > 0)
        i += (size_t)len;
    return i == n;
}

static void test_decode_cases(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    static const struct {
        const char *entries, *text, *without_control;
    } cases[] = {
        {"", "", ""},
        {S "abc", " abc", " abc"},
        {"> " S S " " S "</", ">   </", ">   </"},
        {"<0xC3> <0xA9> a",
         "\xc3\xa9"
         "a",
         "\xc3\xa9"
         "a"},
        {"<0xC3> a <0xA9>",
         "\xef\xbf\xbd"
         "a\xef\xbf\xbd",
         "\xef\xbf\xbd"
         "a\xef\xbf\xbd"},
        {"<0x41> <0xC3> <0xA9> <0xFF>", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"<0xC3> <turn|> <0xA9>", "\xef\xbf\xbd<turn|>\xef\xbf\xbd", "\xc3\xa9"}, /* dropped first, so the bytes meet */
        {"<|turn> a <turn|>", "<|turn>a<turn|>", "a"},
        {"<unused0> <0xE2> <0x96> <0x81>", "<unused0>\xe2\x96\x81", "<unused0>\xe2\x96\x81"},
        {"<0x20> <0x0A>", " \n", " \n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int skip = 0; skip < 2; skip++) {
            struct dg_ids ids = ids_of(t, cases[i].entries);
            struct dg_buf out;
            dg_buf_init(&out, 1000);
            assert_int_equal(dg_tokenizer_decode(t, ids.v, ids.n, skip, &out, NULL), DG_OK);
            assert_string_equal(dg_buf_cstr(&out), skip ? cases[i].without_control : cases[i].text);
            dg_buf_deinit(&out);
            dg_ids_deinit(&ids);
        }
    dg_tokenizer_close(t);
}

static void test_decode_errors(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(TINY);
    int32_t size = dg_tokenizer_size(t), a = dg_tokenizer_find(t, "abc");
    const int32_t bad[] = {-1, size, INT32_MAX, INT32_MIN};
    struct dg_error err = {0};
    struct dg_buf out;
    size_t len;
    dg_buf_init(&out, 10);
    dg_buf_str(&out, "x");
    for (size_t i = 0; i < 4; i++) {
        int32_t ids[2] = {a, bad[i]};
        assert_int_equal(dg_tokenizer_decode(t, ids, 2, i & 1, &out, &err), DG_E_ARG);
        assert_non_null(strstr(dg_error_text(&err), "out of range"));
        assert_string_equal(dg_buf_cstr(&out), "x");
        assert_null(dg_tokenizer_piece(t, bad[i], &len));
        assert_int_equal(len, 0);
        assert_false(dg_tokenizer_is_control(t, bad[i]));
    }
    int32_t four[4] = {a, a, a, a};
    assert_int_equal(dg_tokenizer_decode(t, four, 4, false, &out, &err), DG_E_LIMIT);
    assert_string_equal(dg_buf_cstr(&out), "x");
    dg_error_clear(&err);
    dg_buf_deinit(&out);
    dg_tokenizer_close(t);
}

/* Random ids, mostly byte tokens: the stream equals the whole, every piece of it is valid UTF-8, and nothing waits without need.
 */
static void test_streaming(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(MINI);
    int32_t byte0 = dg_tokenizer_find(t, "<0x00>");
    rng_state = 3;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[40];
        size_t n = below(40);
        const char *text = "a\xc3\xa9\xe2\x96\x81\xf0\x9f\x98\x80";
        for (size_t i = 0; i < n; i++)
            switch (below(5)) {
            case 0: ids[i] = (int32_t)below((size_t)dg_tokenizer_size(t)); break;
            case 1: ids[i] = byte0 + (int32_t)below(256); break;
            case 2: ids[i] = dg_tokenizer_find(t, "<turn|>"); break;
            default: ids[i] = byte0 + (uint8_t)text[i % strlen(text)];
            }
        bool skip = below(2);
        struct dg_buf whole, stream;
        struct dg_decoder d;
        dg_buf_init(&whole, 10000);
        dg_buf_init(&stream, 10000);
        dg_decoder_init(&d, t, skip);
        assert_int_equal(dg_tokenizer_decode(t, ids, n, skip, &whole, NULL), DG_OK);
        assert_true(valid_utf8(dg_buf_cstr(&whole), whole.len));
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(dg_decoder_push(&d, ids[i], &stream, NULL), DG_OK);
            assert_true(valid_utf8(dg_buf_cstr(&stream), stream.len));
            assert_int_equal(dg_decoder_push(&d, -1, &stream, NULL), DG_E_ARG); /* changes nothing */
            size_t len;
            const char *s = dg_tokenizer_piece(t, ids[i], &len);
            if (strncmp(s, "<0x", 3) != 0 && !(skip && dg_tokenizer_is_control(t, ids[i])))
                assert_int_equal(d.held.len, 0);
        }
        assert_int_equal(dg_decoder_finish(&d, &stream, NULL), DG_OK);
        assert_int_equal(stream.len, whole.len);
        assert_memory_equal(dg_buf_cstr(&stream), dg_buf_cstr(&whole), whole.len);
        assert_int_equal(dg_decoder_finish(&d, &stream, NULL), DG_OK); /* nothing is left */
        assert_int_equal(stream.len, whole.len);
        dg_decoder_deinit(&d);
        dg_buf_deinit(&whole);
        dg_buf_deinit(&stream);
    }
    dg_tokenizer_close(t);
}

/* --- threads --------------------------------------------------------------------------------------------------------- */

struct job {
    const struct dg_tokenizer *t;
    const char *text;
    size_t n;
    struct dg_ids ids;
    enum dg_status st;
};

static void *run_job(void *p) {
    struct job *j = p;
    dg_ids_init(&j->ids);
    j->st = dg_tokenizer_encode(j->t, j->text, j->n, true, &j->ids, NULL);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct dg_tokenizer *t = open_file(MINI);
    struct naive_bpe *b = open_naive(MINI);
    static struct text text;
    struct job jobs[4];
    pthread_t threads[4];
    rng_state = 4;
    text.n = 0;
    while (text.n < 7000)
        put_something(&text, b);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){.t = t, .text = text.s, .n = text.n};
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].st, DG_OK);
        assert_int_equal(jobs[i].ids.n, jobs[0].ids.n);
        assert_memory_equal(jobs[i].ids.v, jobs[0].ids.v, jobs[0].ids.n * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++)
        dg_ids_deinit(&jobs[i].ids);
    naive_bpe_destroy(b);
    dg_tokenizer_close(t);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        path_argument = argv[1];
        const struct CMUnitTest one[] = {cmocka_unit_test(test_naive_argument)};
        return cmocka_run_group_tests_name("tokenizer", one, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_naive_tiny),
        cmocka_unit_test(test_naive_mini),
        cmocka_unit_test(test_naive_random_vocabularies),
        cmocka_unit_test(test_encode_cases),
        cmocka_unit_test(test_encode_appends),
        cmocka_unit_test(test_encode_invalid_utf8),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_control_tokens),
        cmocka_unit_test(test_decode_cases),
        cmocka_unit_test(test_decode_errors),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
