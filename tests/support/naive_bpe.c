#include "support/naive_bpe.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct naive_bpe {
    json_t *doc, *vocab;
    json_t *ranks; /* "left\x01right" -> rank; no entry of the tests holds U+0001 */
    const char **pieces;
    int32_t size;
};

static void *must(void *p) {
    if (!p)
        abort();
    return p;
}

static char *join(const char *a, const char *middle, const char *b) {
    char *s = must(malloc(strlen(a) + strlen(middle) + strlen(b) + 1));
    strcpy(s, a);
    strcat(s, middle);
    return strcat(s, b);
}

struct naive_bpe *naive_bpe_create(const char *json, size_t n) {
    json_t *doc = json_loadb(json, n, 0, NULL), *model = json_object_get(doc, "model"), *v;
    if (!json_is_object(json_object_get(model, "vocab"))) {
        json_decref(doc);
        return NULL;
    }
    struct naive_bpe *b = must(calloc(1, sizeof *b));
    b->doc = doc;
    b->vocab = json_object_get(model, "vocab");
    b->size = (int32_t)json_object_size(b->vocab);
    b->pieces = must(calloc((size_t)b->size, sizeof *b->pieces));
    b->ranks = must(json_object());
    const char *key;
    json_object_foreach(b->vocab, key, v)
        b->pieces[json_integer_value(v)] = key;
    size_t i;
    json_array_foreach(json_object_get(model, "merges"), i, v) {
        char *pair;
        if (json_is_string(v)) {
            pair = join(json_string_value(v), "", "");
            *strchr(pair, ' ') = '\x01';
        } else
            pair = join(json_string_value(json_array_get(v, 0)), "\x01", json_string_value(json_array_get(v, 1)));
        json_object_set_new(b->ranks, pair, json_integer((json_int_t)i));
        free(pair);
    }
    return b;
}

void naive_bpe_destroy(struct naive_bpe *b) {
    if (!b)
        return;
    json_decref(b->ranks);
    json_decref(b->doc);
    free(b->pieces);
    free(b);
}

const char *naive_bpe_piece(const struct naive_bpe *b, int32_t id) { return id >= 0 && id < b->size ? b->pieces[id] : NULL; }

int32_t naive_bpe_size(const struct naive_bpe *b) { return b->size; }

static int character_bytes(unsigned char c) { return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4; }

/* Symbols of a stretch: characters that are entries, byte tokens for the others. */
static size_t split(const struct naive_bpe *b, const char *s, size_t n, char **symbols) {
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        int len = character_bytes((unsigned char)s[i]);
        char c[8] = {0};
        memcpy(c, s + i, (size_t)len);
        i += (size_t)len;
        if (c[0] == ' ' && len == 1)
            strcpy(c, "\xe2\x96\x81"), len = 3;
        if (c[0] && json_object_get(b->vocab, c)) {
            symbols[count++] = join(c, "", "");
            continue;
        }
        for (int k = 0; k < len; k++) {
            char byte[8];
            snprintf(byte, sizeof byte, "<0x%02X>", (unsigned char)c[k]);
            symbols[count++] = join(byte, "", "");
        }
    }
    return count;
}

static json_int_t rank_of(const struct naive_bpe *b, const char *left, const char *right) {
    char *pair = join(left, "\x01", right);
    json_t *v = json_object_get(b->ranks, pair);
    free(pair);
    return v ? json_integer_value(v) : INT64_MAX;
}

static void stretch(const struct naive_bpe *b, const char *s, size_t n, struct dg_ids *out) {
    char **symbols = must(calloc(4 * n + 1, sizeof *symbols));
    json_int_t *ranks = must(calloc(4 * n + 1, sizeof *ranks));
    size_t count = split(b, s, n, symbols);
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(b, symbols[i], symbols[i + 1]);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (count < 2 || ranks[best] == INT64_MAX)
            break;
        char *both = join(symbols[best], "", symbols[best + 1]);
        free(symbols[best]);
        free(symbols[best + 1]);
        symbols[best] = both;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            symbols[i] = symbols[i + 1];
            ranks[i] = ranks[i + 1];
        }
        if (best > 0)
            ranks[best - 1] = rank_of(b, symbols[best - 1], symbols[best]);
        if (best + 1 < count)
            ranks[best] = rank_of(b, symbols[best], symbols[best + 1]);
    }
    for (size_t i = 0; i < count; i++) {
        dg_ids_push(out, (int32_t)json_integer_value(json_object_get(b->vocab, symbols[i])));
        free(symbols[i]);
    }
    free(symbols);
    free(ranks);
}

static bool touches(const struct dg_span *client, size_t n_client, size_t begin, size_t end) {
    for (size_t i = 0; i < n_client; i++)
        for (size_t k = client[i].begin; k < client[i].end; k++)
            if (k >= begin && k < end)
                return true;
    return false;
}

void naive_bpe_encode(const struct naive_bpe *b, const char *text, size_t n, bool control, const struct dg_span *client,
                      size_t n_client, struct dg_ids *out) {
    const json_t *added = json_object_get(b->doc, "added_tokens"), *v;
    size_t begin = 0;
    for (size_t i = 0; i < n && control;) {
        size_t k, best = 0;
        int32_t id = -1;
        json_array_foreach(added, k, v) {
            const char *s = json_string_value(json_object_get(v, "content"));
            size_t len = strlen(s);
            if (len > best && len <= n - i && memcmp(text + i, s, len) == 0 && !touches(client, n_client, i, i + len)) {
                best = len;
                id = (int32_t)json_integer_value(json_object_get(v, "id"));
            }
        }
        if (best == 0) {
            i++;
            continue;
        }
        stretch(b, text + begin, i - begin, out);
        dg_ids_push(out, id);
        i += best;
        begin = i;
    }
    stretch(b, text + begin, n - begin, out);
}
