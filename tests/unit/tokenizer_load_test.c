/* Reading tokenizer.json: which forms are accepted, which are refused and with what words, memory that runs short. */
#include "core/map.h"
#include "core/mem.h"
#include "tokenizer/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define S "\xe2\x96\x81"

static char *tiny; /* tests/data/tiny_tokenizer.json */

static int read_tiny(void **state) {
    (void)state;
    const char *root = getenv("DG_ROOT");
    char path[4096];
    struct dg_map map;
    snprintf(path, sizeof path, "%s/tests/data/tiny_tokenizer.json", root ? root : ".");
    if (dg_map_open(&map, path, NULL) != DG_OK)
        return -1;
    tiny = dg_strndup((const char *)map.data, map.size);
    dg_map_close(&map);
    return tiny ? 0 : -1;
}

static int free_tiny(void **state) {
    (void)state;
    dg_free(tiny);
    return 0;
}

/* The tiny file with the first `from` replaced by `to`; both from "" means the file itself. */
static char *edited(const char *from, const char *to) {
    struct dg_buf b;
    const char *at = strstr(tiny, from);
    if (!at)
        fail_msg("the file does not hold %s", from);
    dg_buf_init(&b, 1 << 22);
    dg_buf_add(&b, tiny, (size_t)(at - tiny));
    dg_buf_str(&b, to);
    dg_buf_str(&b, at + strlen(from));
    char *s = dg_buf_take(&b, NULL);
    assert_non_null(s);
    return s;
}

static void refuse(const char *json, size_t n, enum dg_status want, const char *words) {
    struct dg_tokenizer *t = (void *)&tiny;
    struct dg_error err = {0};
    char *exact = malloc(n ? n : 1);
    memcpy(exact, json, n);
    enum dg_status st = dg_tokenizer_create(&t, exact, n, &err);
    free(exact);
    assert_null(t);
    if (st != want || !strstr(dg_error_text(&err), words))
        fail_msg("%s: \"%s\", expected %s with \"%s\"", dg_status_name(st), dg_error_text(&err), dg_status_name(want), words);
    dg_error_clear(&err);
}

static struct dg_tokenizer *accept_text(const char *json) {
    struct dg_tokenizer *t;
    struct dg_error err = {0};
    char *exact = malloc(strlen(json));
    memcpy(exact, json, strlen(json));
    if (dg_tokenizer_create(&t, exact, strlen(json), &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    free(exact); /* the text is not needed afterwards */
    return t;
}

static const char sample[] = "<|turn>abc\n\n > </a\xf0\x9d\x95\x8f"
                             "e\xc3\xa9\xc3\xa9 zz   \"\"<turn|>";

/* Two tokenizers are the same when they agree on a text that uses most of the tiny vocabulary. */
static void expect_same(const struct dg_tokenizer *t, const struct dg_tokenizer *u) {
    for (int control = 0; control < 2; control++) {
        struct dg_ids a, b;
        dg_ids_init(&a);
        dg_ids_init(&b);
        assert_int_equal(dg_tokenizer_encode(t, sample, sizeof sample - 1, control, &a, NULL), DG_OK);
        assert_int_equal(dg_tokenizer_encode(u, sample, sizeof sample - 1, control, &b, NULL), DG_OK);
        assert_int_equal(a.n, b.n);
        for (size_t i = 0; i < a.n; i++) {
            size_t na, nb;
            const char *pa = dg_tokenizer_piece(t, a.v[i], &na), *pb = dg_tokenizer_piece(u, b.v[i], &nb);
            assert_int_equal(na, nb);
            assert_memory_equal(pa, pb, na);
        }
        dg_ids_deinit(&a);
        dg_ids_deinit(&b);
    }
}

static void test_accepts(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } edits[] = {
        {"", ""},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":4}"},
        {"\"padding\":null", "\"later\":[{\"x\":[]}]"},
        {"\"version\":\"1.0\",", ""},
        {"\"version\"", "\"vers\\u0069on\""},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" "
         "\"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}",
         "\"pre_tokenizer\":null"},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}",
         "{\"invert\":false,\"type\":\"Split\",\"behavior\":\"MergedWithPrevious\",\"pattern\":{\"String\":\"\\u0020\"}}"},
        {"\"post_processor\":{", "\"post_processor\":null,\"unused\":{"},
        {"\"pair\":[", "\"pair\":[7,"},
        {"\"fuse_unk\":true", "\"fuse_unk\":false"},
        {"\"ignore_merges\":false,", ""},
        {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"\""},
        {"\"unk_token\":\"<unk>\"", "\"unk_token\":null"},
        {"[\"b\",\"c\"]", "\"b c\""},
        {"[\"\\n\",\"\\n\"]", "\"\\n \\n\""},
        {"\"<pad>\":0", "\"\\u003cp\\u0061d>\" : 0 "},
        {",\"special\":true", ",\"special\":true,\"special\":true"},
        {"\"single_word\":false,\"lstrip\":false,", ""},
    };
    struct dg_tokenizer *t = accept_text(tiny);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *json = edited(edits[i].from, edits[i].to);
        struct dg_tokenizer *u = accept_text(json);
        expect_same(t, u);
        dg_tokenizer_close(u);
        dg_free(json);
    }
    dg_tokenizer_close(t);
}

/* Parts in another order: the model first, in it the merges before the vocabulary, entries not in the order of their ids. */
static void test_accepts_any_order(void **state) {
    (void)state;
    struct dg_tokenizer *t = accept_text(tiny);
    const char *model = strstr(tiny, "\"model\":"), *vocab = strstr(tiny, "\"vocab\":"), *merges = strstr(tiny, "\"merges\":");
    const char *end = tiny + strlen(tiny) - 2; /* before the last bracket and line feed */
    struct dg_buf b;
    dg_buf_init(&b, 1 << 20);
    dg_buf_str(&b, "{\"model\":{");
    dg_buf_add(&b, merges, (size_t)(end - 1 - merges));
    dg_buf_str(&b, ",");
    const char *flags = strchr(model, '{') + 1;
    dg_buf_add(&b, flags, (size_t)(vocab - flags));
    dg_buf_str(&b, "\"vocab\":{\"<unused0>\":6,");
    const char *entries = strchr(vocab, '{') + 1, *unused = strstr(entries, "\"<unused0>\":6,");
    dg_buf_add(&b, entries, (size_t)(unused - entries));
    unused += strlen("\"<unused0>\":6,");
    const char *close = strchr(strstr(entries, "\"\\\\n\""), '}');
    dg_buf_add(&b, unused, (size_t)(close + 1 - unused));
    dg_buf_str(&b, "},");
    dg_buf_add(&b, strchr(tiny, '{') + 1, (size_t)(model - strchr(tiny, '{') - 1));
    b.len = (size_t)(strrchr(b.data, ',') - b.data);
    b.data[b.len] = 0;
    dg_buf_str(&b, "}");
    struct dg_tokenizer *u = accept_text(dg_buf_cstr(&b));
    expect_same(t, u);
    for (int32_t id = 0; id < dg_tokenizer_size(t); id++) {
        size_t len;
        char name[64] = "";
        const char *s = dg_tokenizer_piece(t, id, &len);
        memcpy(name, s, len);
        assert_int_equal(dg_tokenizer_find(u, name), id);
    }
    dg_buf_deinit(&b);
    dg_tokenizer_close(t);
    dg_tokenizer_close(u);
}

/* A pair given twice has the later rank. */
static void test_repeated_merge(void **state) {
    (void)state;
    char *json = edited("[\"\\\\\",\"n\"]", "[\"\\\\\",\"n\"],[\"b\",\"c\"]");
    struct dg_tokenizer *t = accept_text(json);
    struct dg_ids ids;
    dg_ids_init(&ids);
    assert_int_equal(dg_tokenizer_encode(t, "bcd", 3, true, &ids, NULL), DG_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.v[0], dg_tokenizer_find(t, "b"));
    assert_int_equal(ids.v[1], dg_tokenizer_find(t, "cd"));
    dg_ids_deinit(&ids);
    dg_tokenizer_close(t);
    dg_free(json);
}

static void test_refuses(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        enum dg_status st;
        const char *words;
    } edits[] = {
        {"\"version\":\"1.0\"", "\"version\":\"2.0\"", DG_E_UNSUPPORTED, "version \"2.0\""},
        {"\"version\":\"1.0\"", "\"version\":1", DG_E_FORMAT, "version"},
        {"\"version\":\"1.0\"", "\"version\":\"1.0\",\"version\":\"1.0\"", DG_E_FORMAT, "\"version\" appears twice"},
        {"\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}", "\"type\":\"NFC\"", DG_E_UNSUPPORTED,
         "normalizer of type \"NFC\""},
        {"\"content\":\"" S "\"}", "\"content\":\"_\"}", DG_E_UNSUPPORTED, "normalizer"},
        {"\"normalizer\"", "\"normalise\"", DG_E_FORMAT, "\"normalizer\" is missing"},
        {"MergedWithPrevious", "Isolated", DG_E_UNSUPPORTED, "pre_tokenizer of type \"Split\""},
        {"\"type\":\"TemplateProcessing\"", "\"type\":\"ByteLevel\"", DG_E_UNSUPPORTED, "post_processor of type \"ByteLevel\""},
        {"\"single\":[{", "\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\",\"type_id\":0}},{", DG_E_UNSUPPORTED,
         "post_processor"},
        {"{\"type\":\"ByteFallback\"},", "", DG_E_UNSUPPORTED, "decoder"},
        {"\"decoder\"", "\"decode\"", DG_E_FORMAT, "\"decoder\" is missing"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", DG_E_UNSUPPORTED, "model.type = \"Unigram\""},
        {"\"type\":\"BPE\",", "", DG_E_FORMAT, "\"type\" is missing"},
        {"\"dropout\":null", "\"dropout\":0.1", DG_E_UNSUPPORTED, "model.dropout = 0.1"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", DG_E_UNSUPPORTED, "end_of_word_suffix"},
        {"\"byte_fallback\":true", "\"byte_fallback\":false", DG_E_UNSUPPORTED, "model.byte_fallback = false"},
        {"\"byte_fallback\":true,", "", DG_E_FORMAT, "\"byte_fallback\" is missing"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true", DG_E_UNSUPPORTED, "model.ignore_merges"},
        {"\"dropout\":null", "\"dropped\":null", DG_E_UNSUPPORTED, "model.\"dropped\""},
        {"\"lstrip\":false", "\"lstrip\":true", DG_E_UNSUPPORTED, "lstrip"},
        {"\"normalized\":false", "\"normalized\":true", DG_E_UNSUPPORTED, "normalized"},
        {"\"special\":true", "\"special\":false", DG_E_UNSUPPORTED, "\"<pad>\" is not special"},
        {"\"single_word\":false", "\"whole\":false", DG_E_FORMAT, "an added token has only"},
        {"\"id\":4,", "\"id\":7,", DG_E_FORMAT, "\"<|turn>\" has id 7, but in the vocabulary it has another id"},
        {"\"id\":4,", "", DG_E_FORMAT, "an added token needs an id"},
        {"\"id\":4,", "\"id\":-4,", DG_E_FORMAT, "an added token needs an id"},
        {"\"id\":4,", "\"id\":4294967300,", DG_E_FORMAT, "an added token needs an id"},
        {"\"content\":\"<eos>\"", "\"content\":\"<end>\"", DG_E_FORMAT,
         "\"<end>\" has id 1, but in the vocabulary it is missing"},
        {"\"id\":1,\"content\":\"<eos>\"", "\"id\":0,\"content\":\"<pad>\"", DG_E_FORMAT, "\"<pad>\" appears twice"},
        {"\"content\":\"<eos>\"", "\"content\":\"\"", DG_E_FORMAT, "needs an id and a text"},
        {"\"<0x41>\":", "\"<0y41>\":", DG_E_FORMAT, "lacks the byte token <0x41>"},
        {"\"<unused0>\":6", "\"<unused0>\":5", DG_E_FORMAT, "both have id 5"},
        {"\"<unused0>\":6", "\"<unused0>\":1000000", DG_E_FORMAT, "\"<unused0>\" has id 1000000"},
        {"\"<unused0>\":6", "\"<unused0>\":-6", DG_E_FORMAT, "an id of 0 or more"},
        {"\"<unused0>\":6", "\"<unused0>\":6.0", DG_E_FORMAT, "an id of 0 or more"},
        {"\"<unused0>\":6", "\"<unused0>\":\"6\"", DG_E_FORMAT, "an id of 0 or more"},
        {"\"<unused0>\":6", "\"<unused0>\":4294967302", DG_E_FORMAT, "an id of 0 or more"},
        {"\"<unused0>\":6", "\"<unk>\":6", DG_E_FORMAT, "\"<unk>\" appears twice"},
        {"\"<unused0>\":6", "\"\\ud800\":6", DG_E_FORMAT, "half a surrogate pair"},
        {"\"<unused0>\":6", "\"\xff\":6", DG_E_FORMAT, "invalid UTF-8"},
        {"[\"b\",\"c\"]", "[\"b\",\"zz\"]", DG_E_FORMAT, "merge 7 needs the entry \"zz\""},
        {"[\"b\",\"c\"]", "[\"zz\",\"c\"]", DG_E_FORMAT, "merge 7 needs the entry \"zz\""},
        {"[\"b\",\"c\"]", "[\"b\",\"b\"]", DG_E_FORMAT, "merge 7 needs the entry \"bb\""},
        {"[\"b\",\"c\"]", "[\"b\"]", DG_E_FORMAT, "a merge must be two strings"},
        {"[\"b\",\"c\"]", "[\"b\",\"c\",\"d\"]", DG_E_FORMAT, "a merge must be two strings"},
        {"[\"b\",\"c\"]", "[\"b\",1]", DG_E_FORMAT, "a merge must be two strings"},
        {"[\"b\",\"c\"]", "{\"b\":\"c\"}", DG_E_FORMAT, "a merge must be two strings"},
        {"[\"b\",\"c\"]", "[\"\",\"bc\"]", DG_E_FORMAT, "a merge has an empty part"},
        {"[\"b\",\"c\"]", "\"bc\"", DG_E_FORMAT, "two parts and one space"},
        {"[\"b\",\"c\"]", "\"b  c\"", DG_E_FORMAT, "two parts and one space"},
        {"[\"b\",\"c\"]", "\"bc \"", DG_E_FORMAT, "a merge has an empty part"},
        {"[\"b\",\"c\"]", "[\"b\\udc00\",\"c\"]", DG_E_FORMAT, "half a surrogate pair"},
        {"\"merges\"", "\"marges\"", DG_E_UNSUPPORTED, "model.\"marges\""},
        {"\"merges\":[", "\"merges\":7,\"x\":[", DG_E_FORMAT, "model.merges must be an array"},
        {"\"vocab\":{", "\"vocab\":[],\"x\":{", DG_E_FORMAT, "model.vocab must be an object"},
        {"\"vocab\":{", "\"vocab\":{},\"x\":{", DG_E_FORMAT, "model.vocab is empty"},
        {"\"model\":{", "\"model\":null,\"x\":{", DG_E_FORMAT, "model must be an object"},
        {"\"added_tokens\":[", "\"added_tokens\":[[],", DG_E_FORMAT, "an added token must be an object"},
        {"\"added_tokens\":[", "\"added_tokens\":{},\"x\":[", DG_E_FORMAT, "added_tokens must be an array"},
        {"\"decoder\":{", "\"decoder\":{\"type\":\"x\",", DG_E_FORMAT, "decoder cannot be read"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *text = edited(edits[i].from, edits[i].to);
        refuse(text, strlen(text), edits[i].st, edits[i].words);
        dg_free(text);
    }
    char long_token[300];
    snprintf(long_token, sizeof long_token, "\"content\":\"%0257d\"", 0);
    char *json = edited("\"content\":\"<eos>\"", long_token);
    refuse(json, strlen(json), DG_E_LIMIT, "added token 1 has 257 bytes");
    dg_free(json);
    refuse("", 0, DG_E_FORMAT, "unexpected end at byte 0");
    refuse("[]", 2, DG_E_FORMAT, "must be an object");
    refuse("{}", 2, DG_E_FORMAT, "is missing");
    struct dg_tokenizer *t;
    struct dg_error err = {0};
    assert_int_equal(dg_tokenizer_open(&t, "/nonexistent/tokenizer.json", &err), DG_E_IO);
    assert_null(t);
    assert_int_equal(dg_tokenizer_open(&t, "/", &err), DG_E_IO);
    assert_int_equal(dg_tokenizer_open(&t, "/etc/passwd", &err), DG_E_FORMAT);
    assert_non_null(strstr(dg_error_text(&err), "/etc/passwd: "));
    assert_int_equal(dg_tokenizer_create(&t, tiny, DG_TOKENIZER_FILE_MAX + 1, &err), DG_E_LIMIT); /* refused before it is read */
    dg_error_clear(&err);
    dg_tokenizer_close(NULL);
}

/* A file cut anywhere is refused as broken. */
static void test_refuses_cut_files(void **state) {
    (void)state;
    size_t n = strlen(tiny);
    for (size_t cut = 0; cut + 1 < n; cut += cut < 200 || n - cut < 200 ? 1 : 23)
        refuse(tiny, cut, DG_E_FORMAT, "");
}

/* Long entries, deep nesting and large numbers cost no more than a few times the file. */
static void test_memory_bounded(void **state) {
    (void)state;
    struct dg_buf b;
    struct rusage before, after;
    const size_t size = (size_t)4 << 20;
    getrusage(RUSAGE_SELF, &before);
    for (int kind = 0; kind < 5; kind++) {
        dg_buf_init(&b, 2 * size);
        dg_buf_str(&b, kind == 4
                           ? "{\"added_tokens\":["
                           : "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[");
        while (b.len < size)
            dg_buf_str(&b, (const char *[]){"\"a a\",", "[[[[", "[\"a\",\"a\"],", "[],",
                                            "{\"id\":0,\"content\":\"a\",\"special\":true},"}[kind]);
        struct dg_tokenizer *t;
        assert_int_not_equal(dg_tokenizer_create(&t, b.data, b.len, NULL), DG_OK);
        dg_buf_deinit(&b);
    }
    getrusage(RUSAGE_SELF, &after);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory */
    assert_in_range(after.ru_maxrss - before.ru_maxrss, 0, 64 << 10); /* KiB */
#endif
}

/* Makes every allocation fail in turn: an error or the right answer, no leak (the sanitizers watch), nothing half done. */
static void test_allocation_failures(void **state) {
    (void)state;
    bool done = false;
    int n_failed = 0;
    for (uint64_t nth = 1; !done; nth++) {
        struct dg_tokenizer *t = NULL;
        struct dg_ids ids;
        struct dg_buf text;
        struct dg_error err = {0};
        char line[3000];
        memset(line, 'a', sizeof line);
        dg_ids_init(&ids);
        dg_buf_init(&text, 1 << 20);
        dg_mem_fail_at(nth);
        enum dg_status st = dg_tokenizer_create(&t, tiny, strlen(tiny), &err);
        if (st == DG_OK)
            st = dg_tokenizer_encode(t, line, sizeof line, true, &ids, &err);
        if (st == DG_OK)
            st = dg_tokenizer_decode(t, ids.v, ids.n, false, &text, &err);
        if (st == DG_OK) {
            assert_int_equal(text.len, sizeof line);
            assert_memory_equal(text.data, line, sizeof line);
            done = nth > 40;
        } else {
            n_failed++;
            assert_int_equal(st, DG_E_NOMEM);
            assert_int_equal(err.code, DG_E_NOMEM);
        }
        dg_mem_fail_at(0);
        dg_error_clear(&err);
        dg_buf_deinit(&text);
        dg_ids_deinit(&ids);
        dg_tokenizer_close(t);
    }
    assert_in_range(n_failed, 10, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_accepts_any_order),
        cmocka_unit_test(test_repeated_merge),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_refuses_cut_files),
        cmocka_unit_test(test_memory_bounded),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests_name("tokenizer_load", tests, read_tiny, free_tiny);
}
