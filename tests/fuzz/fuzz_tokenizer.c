/* Fuzz target: the input as a tokenizer.json, and as text for the bundled model's tokenizer. */
#include "tokenizer/tokenizer.h"

#include "core/utf8.h"
#include "support/fuzz_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                               \
    do {                                                                 \
        if (!(condition)) {                                              \
            fprintf(stderr, "fuzz_tokenizer: not so: %s\n", #condition); \
            abort();                                                     \
        }                                                                \
    } while (0)

/* The bundled tokenizer, opened once; NULL where it is not at hand. */
static struct dg_tokenizer *bundled(void) {
    static struct dg_tokenizer *t;
    static bool tried;
    if (!tried) {
        const char *root = getenv("DG_ROOT");
        char path[4096];
        snprintf(path, sizeof path, "%s/models/mini/tokenizer.json", root ? root : ".");
        tried = true;
        if (dg_tokenizer_open(&t, path, NULL) != DG_OK)
            t = NULL;
    }
    return t;
}

static bool valid_utf8(const uint8_t *s, size_t n) {
    size_t i = 0;
    int len;
    while (i < n && (len = dg_utf8_next(s + i, n - i, NULL)) > 0)
        i += (size_t)len;
    return i == n;
}

/* Encodes a text in three ways and decodes it again, whole and as a stream: always valid UTF-8. exact: the text comes back. */
static void round_trip(const struct dg_tokenizer *t, const char *text, size_t n, bool exact) {
    struct dg_span client[2] = {{n / 4, n / 3}, {n / 2, n}};
    for (int how = 0; how < 3; how++) {
        struct dg_ids ids;
        struct dg_buf whole, stream;
        struct dg_decoder d;
        dg_ids_init(&ids);
        dg_buf_init(&whole, (size_t)1 << 26);
        dg_buf_init(&stream, (size_t)1 << 26);
        dg_decoder_init(&d, t, false);
        enum dg_status st = how < 2 ? dg_tokenizer_encode(t, text, n, how == 1, &ids, NULL)
                                    : dg_tokenizer_encode_spans(t, text, n, client, 2, &ids, NULL);
        REQUIRE(st == (valid_utf8((const uint8_t *)text, n) ? DG_OK : DG_E_ARG));
        st = dg_tokenizer_decode(t, ids.v, ids.n, false, &whole, NULL);
        REQUIRE(st == DG_OK);
        for (size_t i = 0; i < ids.n; i++)
            REQUIRE(dg_decoder_push(&d, ids.v[i], &stream, NULL) == DG_OK);
        REQUIRE(dg_decoder_finish(&d, &stream, NULL) == DG_OK);
        REQUIRE(whole.len == stream.len && memcmp(dg_buf_cstr(&whole), dg_buf_cstr(&stream), whole.len) == 0);
        REQUIRE(valid_utf8((const uint8_t *)dg_buf_cstr(&whole), whole.len));
        REQUIRE(!exact || (whole.len == n && memcmp(dg_buf_cstr(&whole), text, n) == 0));
        dg_decoder_deinit(&d);
        dg_buf_deinit(&whole);
        dg_buf_deinit(&stream);
        dg_ids_deinit(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char sample[] =
        "<|turn>abcde\n\n > </a\xf0\x9d\x95\x8f\xc3\xa9\xc3\xa9 \xe4\xb8\xad"
        "a zz   \"\"\\n\t\t<turn|> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct dg_tokenizer *t;
    struct dg_error err = {0};
    if (dg_tokenizer_create(&t, data, size, &err) == DG_OK) {
        round_trip(t, sample, sizeof sample - 1, false);
        struct dg_buf all;
        dg_buf_init(&all, (size_t)1 << 26);
        for (int32_t id = 0; id < dg_tokenizer_size(t); id++) {
            size_t len;
            const char *s = dg_tokenizer_piece(t, id, &len);
            REQUIRE(s && valid_utf8((const uint8_t *)s, len));
            REQUIRE(dg_tokenizer_decode(t, &id, 1, true, &all, NULL) == DG_OK);
        }
        REQUIRE(valid_utf8((const uint8_t *)dg_buf_cstr(&all), all.len));
        dg_buf_deinit(&all);
        dg_tokenizer_close(t);
    } else {
        REQUIRE(t == NULL && err.code != DG_OK && *dg_error_text(&err));
        REQUIRE(valid_utf8((const uint8_t *)dg_error_text(&err), strlen(dg_error_text(&err))));
        dg_error_clear(&err);
    }
    if (bundled() && valid_utf8(data, size))
        round_trip(bundled(), (const char *)data, size, !memmem(data, size, "\xe2\x96\x81", 3));
    else if (bundled())
        round_trip(bundled(), (const char *)data, size, false);
    return 0;
}
