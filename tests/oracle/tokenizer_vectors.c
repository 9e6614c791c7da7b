/* Checks a tokenizer.json against recorded encodings: tokenizer_vectors TOKENIZER.json VECTORS.json
 *
 * VECTORS.json holds
 *   vectors[]        id, cat, text, g4 (ids with control tokens matched); present only where they differ:
 *                    g4_plain (ids with matching off; else g4), decode (text of g4; else text), decode_skip (the same without
 *                    control tokens; else decode)
 *   decode_vectors[] id, name, ids, text, text_skip
 * Besides these, every text is encoded as one client span (must equal the plain ids) and as one trusted text through the span
 * call (must equal g4), and every decode is repeated one id at a time. Prints each category with its failures; the last line is
 * "N passed, N failed". */
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CATEGORIES_MAX 64
#define SHOWN_MAX 3 /* failures printed per category */

struct category {
    const char *name;
    int passed, failed;
};

static struct category categories[CATEGORIES_MAX];
static int n_categories;
static const struct dg_tokenizer *tok;

static struct category *category(const char *name) {
    for (int i = 0; i < n_categories; i++)
        if (strcmp(categories[i].name, name) == 0)
            return &categories[i];
    if (n_categories == CATEGORIES_MAX)
        return &categories[CATEGORIES_MAX - 1];
    categories[n_categories].name = name;
    return &categories[n_categories++];
}

static bool result(struct category *c, const char *id, const char *what, bool ok) {
    c->passed += ok;
    c->failed += !ok;
    bool show = !ok && c->failed <= SHOWN_MAX;
    if (show)
        printf("FAIL %s %s: %s\n", c->name, id, what);
    return show;
}

static void print_ids(const char *name, const int32_t *v, size_t n) {
    printf("  %-5s %zu ids:", name, n);
    for (size_t i = 0; i < n && i < 24; i++)
        printf(" %d", v[i]);
    puts(n > 24 ? " ..." : "");
}

static void print_text(const char *name, const char *s, size_t n) {
    json_t *v = json_stringn_nocheck(s, n < 160 ? n : 160);
    char *line = json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    printf("  %-5s %zu bytes: %s\n", name, n, line ? line : "(cut inside a character)");
    free(line);
    json_decref(v);
}

/* Ids of a JSON array. */
static struct dg_ids ids_of(const json_t *a) {
    struct dg_ids l;
    dg_ids_init(&l);
    for (size_t i = 0; i < json_array_size(a); i++)
        dg_ids_push(&l, (int32_t)json_integer_value(json_array_get(a, i)));
    return l;
}

enum how { CONTROL, PLAIN, TRUSTED_SPANS, CLIENT_SPAN };
static const char *const how_names[] = {"ids", "plain ids", "ids without client spans",
                                        "ids with the whole text as a client span"};

static void check_encode(const char *id, struct category *c, const char *text, size_t n, enum how how, const json_t *want_ids) {
    struct dg_ids want = ids_of(want_ids), got;
    struct dg_error err = {0};
    struct dg_span all = {0, n};
    dg_ids_init(&got);
    enum dg_status st = how == CONTROL || how == PLAIN
                            ? dg_tokenizer_encode(tok, text, n, how == CONTROL, &got, &err)
                            : dg_tokenizer_encode_spans(tok, text, n, &all, how == CLIENT_SPAN ? 1 : 0, &got, &err);
    bool same = st == DG_OK && got.n == want.n && (want.n == 0 || memcmp(got.v, want.v, want.n * sizeof *want.v) == 0);
    if (result(c, id, how_names[how], same)) {
        if (st != DG_OK)
            printf("  %s\n", dg_error_text(&err));
        print_text("text", text, n);
        print_ids("want", want.v, want.n);
        print_ids("got", got.v, got.n);
    }
    dg_ids_deinit(&want);
    dg_ids_deinit(&got);
    dg_error_clear(&err);
}

static enum dg_status decode(const struct dg_ids *ids, bool skip, bool streaming, struct dg_buf *out, struct dg_error *err) {
    if (!streaming)
        return dg_tokenizer_decode(tok, ids->v, ids->n, skip, out, err);
    struct dg_decoder d;
    dg_decoder_init(&d, tok, skip);
    enum dg_status st = DG_OK;
    for (size_t i = 0; i < ids->n && st == DG_OK; i++)
        st = dg_decoder_push(&d, ids->v[i], out, err);
    if (st == DG_OK)
        st = dg_decoder_finish(&d, out, err);
    dg_decoder_deinit(&d);
    return st;
}

static void check_decode(const char *id, struct category *c, const struct dg_ids *ids, bool skip, const char *want, size_t n) {
    for (int streaming = 0; streaming < 2; streaming++) {
        struct dg_error err = {0};
        struct dg_buf got;
        char what[80];
        dg_buf_init(&got, (size_t)1 << 28);
        enum dg_status st = decode(ids, skip, streaming, &got, &err);
        bool same = st == DG_OK && got.len == n && memcmp(dg_buf_cstr(&got), want, n) == 0;
        snprintf(what, sizeof what, "text%s%s", skip ? " without control tokens" : "", streaming ? ", one id at a time" : "");
        if (result(c, id, what, same)) {
            if (st != DG_OK)
                printf("  %s\n", dg_error_text(&err));
            print_ids("ids", ids->v, ids->n);
            print_text("want", want, n);
            print_text("got", dg_buf_cstr(&got), got.len);
        }
        dg_buf_deinit(&got);
        dg_error_clear(&err);
    }
}

static const json_t *first_of(const json_t *a, const json_t *b) { return a ? a : b; }

static void check_vector(const json_t *v) {
    const char *id = json_string_value(json_object_get(v, "id"));
    const json_t *text = json_object_get(v, "text"), *g4 = json_object_get(v, "g4");
    const json_t *plain = first_of(json_object_get(v, "g4_plain"), g4);
    const json_t *whole = first_of(json_object_get(v, "decode"), text),
                 *skip = first_of(json_object_get(v, "decode_skip"), whole);
    struct category *c = category(json_string_value(json_object_get(v, "cat")));
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    check_encode(id, c, s, n, CONTROL, g4);
    check_encode(id, c, s, n, PLAIN, plain);
    check_encode(id, c, s, n, TRUSTED_SPANS, g4);
    check_encode(id, c, s, n, CLIENT_SPAN, plain);
    struct dg_ids ids = ids_of(g4);
    check_decode(id, c, &ids, false, json_string_value(whole), json_string_length(whole));
    check_decode(id, c, &ids, true, json_string_value(skip), json_string_length(skip));
    dg_ids_deinit(&ids);
}

static void check_decode_vector(const json_t *v) {
    const char *id = json_string_value(json_object_get(v, "id"));
    const json_t *text = json_object_get(v, "text"), *skip = first_of(json_object_get(v, "text_skip"), text);
    struct dg_ids ids = ids_of(json_object_get(v, "ids"));
    struct category *c = category("decode");
    check_decode(id, c, &ids, false, json_string_value(text), json_string_length(text));
    check_decode(id, c, &ids, true, json_string_value(skip), json_string_length(skip));
    dg_ids_deinit(&ids);
}

static bool well_formed(const json_t *v, bool decode_vector) {
    return json_is_string(json_object_get(v, "id")) && json_is_string(json_object_get(v, "text")) &&
           (decode_vector ? json_is_array(json_object_get(v, "ids"))
                          : json_is_string(json_object_get(v, "cat")) && json_is_array(json_object_get(v, "g4")));
}

int main(int argc, char **argv) {
    if (argc != 3)
        return fprintf(stderr, "usage: %s TOKENIZER.json VECTORS.json\n", argv[0]), 2;
    struct dg_error err = {0};
    struct dg_tokenizer *t;
    if (dg_tokenizer_open(&t, argv[1], &err) != DG_OK)
        return fprintf(stderr, "%s\n", dg_error_text(&err)), 2;
    json_error_t why;
    json_t *doc = json_load_file(argv[2], JSON_ALLOW_NUL, &why), *v;
    if (!doc)
        return fprintf(stderr, "%s:%d: %s\n", argv[2], why.line, why.text), 2;
    tok = t;
    int passed = 0, failed = 0;
    size_t i;
    json_array_foreach(json_object_get(doc, "vectors"), i, v) {
        if (well_formed(v, false))
            check_vector(v);
        else
            failed++, printf("FAIL vectors[%zu] has no id, cat, text or g4\n", i);
    }
    json_array_foreach(json_object_get(doc, "decode_vectors"), i, v) {
        if (well_formed(v, true))
            check_decode_vector(v);
        else
            failed++, printf("FAIL decode_vectors[%zu] has no id, ids or text\n", i);
    }
    for (int k = 0; k < n_categories; k++) {
        printf("%-16s %5d passed, %d failed\n", categories[k].name, categories[k].passed, categories[k].failed);
        passed += categories[k].passed;
        failed += categories[k].failed;
    }
    if (passed + failed == 0)
        failed++, printf("FAIL %s holds no vectors\n", argv[2]);
    printf("%d passed, %d failed\n", passed, failed);
    json_decref(doc);
    dg_tokenizer_close(t);
    return failed ? 1 : 0;
}
