/* Text to ids: control tokens are found in the raw text, what lies between them is cut where no merge can cross, and each piece
 * is merged by itself (merge.c); short pieces are remembered for the length of the call. */
#include "core/mem.h"
#include "core/utf8.h"
#include "tokenizer/merge.h"

/* A remembered piece fills one cache line. */
#define WORD_BYTES_MAX 22
#define WORD_IDS_MAX 10
#define WORDS_MAX 16384
/* Below this many bytes of text remembering costs more than it saves. */
#define WORDS_TEXT_MIN 512

struct word {
    uint8_t len, n_ids; /* len 0: free */
    char text[WORD_BYTES_MAX];
    int32_t ids[WORD_IDS_MAX];
};
_Static_assert(sizeof(struct word) == 64, "a word is one cache line");

struct encoder {
    const struct dg_tokenizer *t;
    const uint8_t *text;
    size_t n;
    struct dg_ids *out;
    struct word *words; /* direct-mapped; NULL for short texts */
    size_t word_mask;
    struct dg_tok_merger merger;
};

static enum dg_status encode_word(struct encoder *e, size_t begin, size_t end) {
    const char *s = (const char *)e->text + begin;
    size_t len = end - begin;
    if (!e->words || len > WORD_BYTES_MAX)
        return dg_tok_merge(&e->merger, s, len, e->out);
    struct word *w = &e->words[dg_tok_hash(e->t->seed, s, len) >> 32 & e->word_mask];
    if (w->len == len && memcmp(w->text, s, len) == 0)
        return dg_ids_add(e->out, w->ids, w->n_ids);
    size_t before = e->out->n;
    DG_TRY(dg_tok_merge(&e->merger, s, len, e->out));
    size_t n_ids = e->out->n - before;
    if (n_ids <= WORD_IDS_MAX) {
        w->len = (uint8_t)len;
        w->n_ids = (uint8_t)n_ids;
        memcpy(w->text, s, len);
        memcpy(w->ids, e->out->v + before, n_ids * sizeof *w->ids);
    }
    return DG_OK;
}

/* A stretch without control tokens. */
static enum dg_status encode_plain(struct encoder *e, size_t begin, size_t end) {
    const uint8_t *text = e->text;
    if (begin == end)
        return DG_OK;
    int left = text[begin] < 128 ? text[begin] : DG_TOK_CLASS_OTHER;
    for (size_t i = begin + 1; i < end; i++) {
        int right = text[i] < 128 ? text[i] : DG_TOK_CLASS_OTHER;
        if (!e->t->joins[left][right]) {
            DG_TRY(encode_word(e, begin, i));
            begin = i;
        }
        left = right;
    }
    return encode_word(e, begin, end);
}

/* Longest control token spelled at `at` that ends by `limit`; its length, or 0. */
static size_t control_at(const struct encoder *e, size_t at, size_t limit, int32_t *id) {
    const struct dg_tok_control *c = e->t->controls;
    size_t lo = 0, hi = e->t->n_controls, found = 0;
    /* [lo, hi) are the spellings that begin with the bytes seen so far; the one that ends here sorts first */
    for (size_t d = 0; at + d < limit && lo < hi; d++) {
        uint8_t b = e->text[at + d];
        size_t a = lo, z = hi;
        while (a < z) {
            size_t mid = a + (z - a) / 2;
            if (c[mid].len <= d || (uint8_t)c[mid].s[d] < b)
                a = mid + 1;
            else
                z = mid;
        }
        lo = a;
        z = hi;
        while (a < z) {
            size_t mid = a + (z - a) / 2;
            if ((uint8_t)c[mid].s[d] == b)
                a = mid + 1;
            else
                z = mid;
        }
        hi = a;
        if (lo < hi && c[lo].len == d + 1) {
            found = d + 1;
            *id = c[lo].id;
        }
    }
    return found;
}

/* client: where no control token may be. */
static enum dg_status encode_controls(struct encoder *e, const struct dg_span *client, size_t n_client) {
    size_t begin = 0, span = 0;
    for (size_t i = 0; i < e->n;) {
        while (span < n_client && (client[span].end <= i || client[span].begin == client[span].end))
            span++;
        size_t limit = span < n_client ? client[span].begin : e->n;
        if (i >= limit) {
            i = client[span].end;
            continue;
        }
        int32_t id;
        size_t len = e->t->starts_control[e->text[i]] ? control_at(e, i, limit, &id) : 0;
        if (len == 0) {
            i++;
            continue;
        }
        DG_TRY(encode_plain(e, begin, i));
        DG_TRY(dg_ids_push(e->out, id));
        i += len;
        begin = i;
    }
    return encode_plain(e, begin, e->n);
}

static enum dg_status check_text(const char *text, size_t n, struct dg_error *err) {
    const uint8_t *s = (const uint8_t *)text;
    if (n > DG_TOKENIZER_TEXT_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "a text of %zu bytes is too long, at most %zu are encoded at once", n,
                       DG_TOKENIZER_TEXT_MAX);
    for (size_t i = 0; i < n;) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, s + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        int len = dg_utf8_next(s + i, n - i, NULL);
        if (len == 0)
            return DG_FAIL(err, DG_E_ARG, "the text is not valid UTF-8 at byte %zu (0x%02x)", i, s[i]);
        i += (size_t)len;
    }
    return DG_OK;
}

static enum dg_status encode(const struct dg_tokenizer *t, const char *text, size_t n, bool control, const struct dg_span *client,
                             size_t n_client, struct dg_ids *out, struct dg_error *err) {
    DG_TRY(check_text(text, n, err));
    size_t before = out->n;
    struct encoder e = {.t = t, .text = (const uint8_t *)text, .n = n, .out = out};
    dg_tok_merger_init(&e.merger, t);
    if (n >= WORDS_TEXT_MIN) {
        size_t n_words = 64;
        while (n_words < WORDS_MAX && n_words * 64 < n)
            n_words *= 2;
        e.words = dg_calloc(n_words, sizeof *e.words); /* without memory for it, nothing is remembered */
        e.word_mask = n_words - 1;
    }
    enum dg_status st = control ? encode_controls(&e, client, n_client) : encode_plain(&e, 0, n);
    dg_tok_merger_deinit(&e.merger);
    dg_free(e.words);
    if (st == DG_OK)
        return DG_OK;
    out->n = before;
    return st == DG_E_LIMIT ? DG_FAIL(err, st, "the text has more than %zu tokens", DG_IDS_MAX)
                            : DG_FAIL(err, st, "no memory to encode a text of %zu bytes", n);
}

enum dg_status dg_tokenizer_encode(const struct dg_tokenizer *t, const char *text, size_t n, bool control, struct dg_ids *out,
                                   struct dg_error *err) {
    return encode(t, text, n, control, NULL, 0, out, err);
}

enum dg_status dg_tokenizer_encode_spans(const struct dg_tokenizer *t, const char *text, size_t n, const struct dg_span *client,
                                         size_t n_client, struct dg_ids *out, struct dg_error *err) {
    for (size_t i = 0, last = 0; i < n_client; i++) {
        if (client[i].begin < last || client[i].end < client[i].begin || client[i].end > n)
            return DG_FAIL(err, DG_E_ARG,
                           "client span %zu, bytes %zu to %zu, overlaps the one before it or leaves the text of %zu bytes", i,
                           client[i].begin, client[i].end, n);
        last = client[i].end;
    }
    return encode(t, text, n, true, client, n_client, out, err);
}
