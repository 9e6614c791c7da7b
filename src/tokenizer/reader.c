/* Reads tokenizer.json in one pass over its bytes: the vocabulary and the merges token by token, the small parts around them
 * through jansson, compared as a whole with what this tokenizer does. */
#include "core/jsonr.h"
#include "core/mem.h"
#include "tokenizer/tables.h"

#include <jansson.h>

/* A part compared as a whole is a few hundred bytes; a longer one cannot be equal. */
#define PART_BYTES_MAX ((size_t)1 << 20)
/* Longest control token. It bounds the work at each byte of a text. */
#define CONTROL_BYTES_MAX 256

#define NORMALIZER "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}"
#define PRE_TOKENIZER "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}"
#define DECODER                                                                                       \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"}," \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"
#define TEMPLATE_SINGLE "[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]"

struct reader {
    struct dg_jsonr r;
    struct dg_tok_source *src;
    struct dg_error *err;
    char *scratch; /* both halves of a merge, one after the other */
    size_t scratch_cap;
    struct dg_jsonr merges_at; /* where merges stand that came before the vocabulary */
    bool merges_wait;
};

const char *dg_tok_show(char dst[64], const char *s, size_t n) {
    size_t d = 0;
    dst[d++] = '"';
    for (size_t i = 0; i < n; i++) {
        if (d > 54 && ((unsigned char)s[i] & 0xc0) != 0x80) {
            memcpy(dst + d, "...", 3);
            d += 3;
            break;
        }
        dst[d++] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    }
    dst[d++] = '"';
    dst[d] = 0;
    return dst;
}

static enum dg_status no_memory(struct reader *rd) {
    return DG_FAIL(rd->err, DG_E_NOMEM, "no memory for the tokenizer's tables");
}

/* The document is not what it should be here: broken JSON if that is why, otherwise `what` was expected. */
static enum dg_status broken(struct reader *rd, const char *what) {
    if (rd->r.what)
        return DG_FAIL(rd->err, DG_E_FORMAT, "not valid JSON: %s at byte %zu", rd->r.what, rd->r.at);
    return DG_FAIL(rd->err, DG_E_FORMAT, "%s, before byte %zu", what, (size_t)(rd->r.p - rd->r.begin));
}

/* Room for `need` elements, and some room in any case, in an array that holds n. */
static bool room(void **p, size_t *cap, size_t n, size_t need, size_t size) {
    if (*p && need <= *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 1024;
    while (want < need)
        want *= 2;
    void *q = dg_realloc(*p, n, want, size);
    if (!q)
        return false;
    *p = q;
    *cap = want;
    return true;
}

/* Copies the current string, escapes decoded, behind the others. */
static enum dg_status keep_text(struct reader *rd, struct dg_tok_piece *out) {
    struct dg_tok_source *src = rd->src;
    void *blob = src->t->blob;
    if (!room(&blob, &src->blob_cap, src->blob_len, src->blob_len + rd->r.len, 1))
        return no_memory(rd);
    src->t->blob = blob;
    size_t n = dg_jsonr_unescape(&rd->r, src->t->blob + src->blob_len);
    if (n == SIZE_MAX)
        return broken(rd, "a string with half a surrogate pair");
    *out = (struct dg_tok_piece){(uint32_t)src->blob_len, (uint32_t)n};
    src->blob_len += n;
    return DG_OK;
}

static enum dg_status read_id(struct reader *rd, const char *what, int32_t *id) {
    uint64_t v;
    if (dg_jsonr_next(&rd->r) != DG_JSON_NUMBER || !dg_jsonr_u64(&rd->r, INT32_MAX - 1, &v))
        return broken(rd, what);
    *id = (int32_t)v;
    return DG_OK;
}

/* --- vocabulary ------------------------------------------------------------------------------------------------------ */

/* Sorts the entries, read in file order, by id. */
static enum dg_status order_by_id(struct reader *rd, const int32_t *ids, size_t n) {
    struct dg_tokenizer *t = rd->src->t;
    char name[64], other[64];
    struct dg_tok_piece *by_id = dg_calloc(n, sizeof *by_id);
    uint8_t *seen = dg_calloc(n, 1);
    enum dg_status st = DG_OK;
    if (!by_id || !seen)
        st = no_memory(rd);
    for (size_t i = 0; i < n && st == DG_OK; i++) {
        const struct dg_tok_piece *p = &t->pieces[i];
        size_t id = (size_t)ids[i];
        dg_tok_show(name, t->blob + p->at, p->len);
        if (id >= n)
            st = DG_FAIL(rd->err, DG_E_FORMAT, "entry %s has id %zu, but %zu entries must have the ids 0 to %zu", name, id, n,
                         n - 1);
        else if (seen[id])
            st = DG_FAIL(rd->err, DG_E_FORMAT, "entries %s and %s both have id %zu",
                         dg_tok_show(other, t->blob + by_id[id].at, by_id[id].len), name, id);
        else {
            by_id[id] = *p;
            seen[id] = 1;
        }
    }
    dg_free(seen);
    if (st == DG_OK) {
        dg_free(t->pieces);
        t->pieces = by_id;
        rd->src->pieces_cap = n;
    } else
        dg_free(by_id);
    return st;
}

static enum dg_status read_vocab(struct reader *rd) {
    struct dg_tok_source *src = rd->src;
    struct dg_tokenizer *t = src->t;
    int32_t *ids = NULL;
    size_t n = 0, ids_cap = 0;
    bool in_order = true;
    enum dg_status st = DG_OK;
    enum dg_json_token tok;
    if (dg_jsonr_next(&rd->r) != DG_JSON_OBJECT)
        return broken(rd, "model.vocab must be an object of ids");
    while ((tok = dg_jsonr_next(&rd->r)) == DG_JSON_KEY) {
        void *pieces = t->pieces, *list = ids;
        bool ok = room(&pieces, &src->pieces_cap, n, n + 1, sizeof *t->pieces) && room(&list, &ids_cap, n, n + 1, sizeof *ids);
        t->pieces = pieces;
        ids = list;
        if (!ok)
            DG_GO(no_memory(rd));
        DG_GO(keep_text(rd, &t->pieces[n]));
        DG_GO(read_id(rd, "model.vocab must give every entry an id of 0 or more", &ids[n]));
        in_order = in_order && (size_t)ids[n] == n;
        n++;
    }
    if (tok != DG_JSON_OBJECT_END)
        DG_GO(broken(rd, "model.vocab must be an object of ids"));
    if (n == 0)
        DG_GO(DG_FAIL(rd->err, DG_E_FORMAT, "model.vocab is empty"));
    if (n >= INT32_MAX)
        DG_GO(DG_FAIL(rd->err, DG_E_LIMIT, "model.vocab has %zu entries, at most %d are read", n, INT32_MAX - 1));
    if (!in_order)
        DG_GO(order_by_id(rd, ids, n));
    t->n_pieces = (int32_t)n;
    st = dg_tok_build_vocab(src);
done:
    dg_free(ids);
    return st;
}

/* --- merges ---------------------------------------------------------------------------------------------------------- */

/* Current string into scratch at `at`; its length in *n. */
static enum dg_status scratch_text(struct reader *rd, size_t at, size_t *n) {
    void *scratch = rd->scratch;
    if (!room(&scratch, &rd->scratch_cap, at, at + rd->r.len, 1))
        return no_memory(rd);
    rd->scratch = scratch;
    *n = dg_jsonr_unescape(&rd->r, rd->scratch + at);
    return *n == SIZE_MAX ? broken(rd, "a string with half a surrogate pair") : DG_OK;
}

/* The older spelling "left right": drops the space from scratch. */
static enum dg_status split_pair(struct reader *rd, size_t at, size_t *left, size_t *right) {
    size_t n;
    DG_TRY(scratch_text(rd, at, &n));
    char *s = rd->scratch + at, *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', (size_t)(s + n - space - 1)))
        return broken(rd, "a merge written as one string must hold two parts and one space");
    *left = (size_t)(space - s);
    *right = n - *left - 1;
    memmove(space, space + 1, *right);
    return DG_OK;
}

/* One merge, its first token read, into scratch at `at`: the left part's bytes, then the right part's. */
static enum dg_status read_pair(struct reader *rd, enum dg_json_token tok, size_t at, size_t *left, size_t *right) {
    if (tok == DG_JSON_STRING)
        DG_TRY(split_pair(rd, at, left, right));
    else {
        if (tok != DG_JSON_ARRAY || dg_jsonr_next(&rd->r) != DG_JSON_STRING)
            return broken(rd, "a merge must be two strings");
        DG_TRY(scratch_text(rd, at, left));
        if (dg_jsonr_next(&rd->r) != DG_JSON_STRING)
            return broken(rd, "a merge must be two strings");
        DG_TRY(scratch_text(rd, at + *left, right));
        if (dg_jsonr_next(&rd->r) != DG_JSON_ARRAY_END)
            return broken(rd, "a merge must be two strings");
    }
    return *left && *right ? DG_OK : broken(rd, "a merge has an empty part");
}

/* Every merge takes three look-ups in tables far larger than the processor's caches. Doing them for a batch, step by step, lets
 * the memory work on all of them at once; it halves the time to load. */
struct batch {
    size_t n;
    struct pair {
        size_t at, len[3]; /* left, right, product: in scratch, the product being both */
        uint64_t hash[3];
    } pairs[32];
};

static const char *pair_text(const struct reader *rd, const struct pair *p, int part) {
    return rd->scratch + p->at + (part == 1 ? p->len[0] : 0);
}

static enum dg_status resolve(struct reader *rd, struct batch *b) {
    struct dg_tok_source *src = rd->src;
    const struct dg_tokenizer *t = src->t;
    void *triples = src->triples;
    if (!room(&triples, &src->triples_cap, src->n_triples, src->n_triples + b->n, sizeof *src->triples))
        return no_memory(rd);
    src->triples = triples;
    for (size_t i = 0; i < 3 * b->n; i++) {
        const struct dg_tok_slot *slot = &t->slots[(uint32_t)b->pairs[i / 3].hash[i % 3] & t->slot_mask];
        if (slot->id1)
            __builtin_prefetch(&t->pieces[slot->id1 - 1]);
    }
    for (size_t i = 0; i < 3 * b->n; i++) {
        const struct dg_tok_slot *slot = &t->slots[(uint32_t)b->pairs[i / 3].hash[i % 3] & t->slot_mask];
        if (slot->id1)
            __builtin_prefetch(t->blob + t->pieces[slot->id1 - 1].at);
    }
    for (size_t i = 0; i < b->n; i++) {
        const struct pair *p = &b->pairs[i];
        int32_t ids[3];
        for (int part = 0; part < 3; part++) {
            char name[64];
            const char *s = pair_text(rd, p, part);
            ids[part] = dg_tok_find_hashed(t, s, p->len[part], p->hash[part]);
            if (ids[part] < 0)
                return DG_FAIL(rd->err, DG_E_FORMAT, "merge %zu needs the entry %s, which is not in the vocabulary",
                               src->n_triples, dg_tok_show(name, s, p->len[part]));
        }
        src->triples[src->n_triples++] = (struct dg_tok_triple){ids[0], ids[1], ids[2]};
    }
    b->n = 0;
    return DG_OK;
}

static enum dg_status read_merges(struct reader *rd) {
    const struct dg_tokenizer *t = rd->src->t;
    struct batch b = {0};
    enum dg_json_token tok;
    size_t used = 0;
    if (dg_jsonr_next(&rd->r) != DG_JSON_ARRAY)
        return broken(rd, "model.merges must be an array");
    while ((tok = dg_jsonr_next(&rd->r)) != DG_JSON_ARRAY_END) {
        struct pair *p = &b.pairs[b.n++];
        p->at = used;
        DG_TRY(read_pair(rd, tok, used, &p->len[0], &p->len[1]));
        p->len[2] = p->len[0] + p->len[1];
        used += p->len[2];
        for (int part = 0; part < 3; part++) {
            p->hash[part] = dg_tok_hash(t->seed, pair_text(rd, p, part), p->len[part]);
            __builtin_prefetch(&t->slots[(uint32_t)p->hash[part] & t->slot_mask]);
        }
        if (b.n == sizeof b.pairs / sizeof *b.pairs) {
            DG_TRY(resolve(rd, &b));
            used = 0;
        }
    }
    return resolve(rd, &b);
}

/* --- the small parts ------------------------------------------------------------------------------------------------- */

/* Next value of the document as a tree; owner: the caller. */
static enum dg_status read_part(struct reader *rd, const char *name, json_t **out) {
    const char *begin = (const char *)rd->r.p;
    if (!dg_jsonr_skip(&rd->r))
        return broken(rd, name);
    size_t n = (size_t)((const char *)rd->r.p - begin);
    if (n > PART_BYTES_MAX)
        return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "%s is not one of the kinds this tokenizer does", name);
    json_error_t why;
    *out = json_loadb(begin, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    return *out ? DG_OK : DG_FAIL(rd->err, DG_E_FORMAT, "%s cannot be read: %s", name, why.text);
}

static bool equals(const json_t *have, const char *want) {
    json_t *w = json_loads(want, JSON_DECODE_ANY, NULL);
    bool same = w && have && json_equal(have, w);
    json_decref(w);
    return same;
}

static enum dg_status unsupported(struct reader *rd, const char *name, const json_t *v, const char *does) {
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type)
        return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "%s of type \"%.40s\" is not supported as written; this tokenizer %s", name, type,
                       does);
    return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "%s%s is not supported; this tokenizer %s", name,
                   json_is_null(v) ? " null" : " as written", does);
}

static enum dg_status read_normalizer(struct reader *rd) {
    json_t *v = NULL;
    DG_TRY(read_part(rd, "normalizer", &v));
    enum dg_status st =
        equals(v, NORMALIZER) ? DG_OK : unsupported(rd, "normalizer", v, "replaces U+0020 by U+2581 and nothing else");
    json_decref(v);
    return st;
}

/* The split at spaces never fires, because the normalizer leaves no space; no split at all is the same. */
static enum dg_status read_pre_tokenizer(struct reader *rd) {
    json_t *v = NULL;
    DG_TRY(read_part(rd, "pre_tokenizer", &v));
    enum dg_status st = json_is_null(v) || equals(v, PRE_TOKENIZER)
                            ? DG_OK
                            : unsupported(rd, "pre_tokenizer", v, "splits at U+0020 with MergedWithPrevious or not at all");
    json_decref(v);
    return st;
}

static enum dg_status read_post_processor(struct reader *rd) {
    json_t *v = NULL;
    DG_TRY(read_part(rd, "post_processor", &v));
    const char *type = json_string_value(json_object_get(v, "type"));
    enum dg_status st = DG_OK;
    if (!json_is_null(v) &&
        !(type && strcmp(type, "TemplateProcessing") == 0 && equals(json_object_get(v, "single"), TEMPLATE_SINGLE)))
        st = unsupported(rd, "post_processor", v, "adds no tokens to a text (Gemma 3 adds <bos>: use a Gemma 4 file)");
    json_decref(v);
    return st;
}

static enum dg_status read_decoder(struct reader *rd) {
    json_t *v = NULL;
    DG_TRY(read_part(rd, "decoder", &v));
    enum dg_status st =
        equals(v, DECODER) ? DG_OK : unsupported(rd, "decoder", v, "replaces U+2581 by a space, joins byte tokens, and fuses");
    json_decref(v);
    return st;
}

static enum dg_status read_added_token(struct reader *rd) {
    struct dg_tok_source *src = rd->src;
    struct dg_tok_added a = {.id = -1};
    bool have_text = false, special = false;
    enum dg_json_token tok;
    while ((tok = dg_jsonr_next(&rd->r)) == DG_JSON_KEY) {
        struct dg_jsonr key = rd->r;
        if (dg_jsonr_is(&key, "id"))
            DG_TRY(read_id(rd, "an added token needs an id of 0 or more", &a.id));
        else if (dg_jsonr_is(&key, "content")) {
            if (dg_jsonr_next(&rd->r) != DG_JSON_STRING)
                return broken(rd, "an added token needs a text");
            DG_TRY(keep_text(rd, &a.text));
            have_text = true;
        } else {
            static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
            size_t i = 0;
            while (i < 4 && !dg_jsonr_is(&key, off[i]))
                i++;
            tok = dg_jsonr_next(&rd->r);
            if (tok != DG_JSON_TRUE && tok != DG_JSON_FALSE)
                return broken(rd, "an added token has only id, content, single_word, lstrip, rstrip, normalized and special");
            if (i < 4 && tok == DG_JSON_TRUE)
                return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "an added token with %s is not supported", off[i]);
            if (i == 4 && !dg_jsonr_is(&key, "special"))
                return broken(rd, "an added token has only id, content, single_word, lstrip, rstrip, normalized and special");
            if (i == 4)
                special = tok == DG_JSON_TRUE;
        }
    }
    char name[64];
    if (tok != DG_JSON_OBJECT_END)
        return broken(rd, "an added token must be an object");
    if (a.id < 0 || !have_text || a.text.len == 0)
        return broken(rd, "an added token needs an id and a text");
    if (a.text.len > CONTROL_BYTES_MAX)
        return DG_FAIL(rd->err, DG_E_LIMIT, "added token %d has %u bytes, at most %d are allowed", a.id, a.text.len,
                       CONTROL_BYTES_MAX);
    if (!special)
        return DG_FAIL(rd->err, DG_E_UNSUPPORTED,
                       "added token %s is not special; this tokenizer does control tokens only (Gemma 4)",
                       dg_tok_show(name, src->t->blob + a.text.at, a.text.len));
    void *added = src->added;
    if (!room(&added, &src->added_cap, src->n_added, src->n_added + 1, sizeof a))
        return no_memory(rd);
    src->added = added;
    src->added[src->n_added++] = a;
    return DG_OK;
}

static enum dg_status read_added_tokens(struct reader *rd) {
    enum dg_json_token tok = dg_jsonr_next(&rd->r);
    if (tok == DG_JSON_NULL)
        return DG_OK;
    if (tok != DG_JSON_ARRAY)
        return broken(rd, "added_tokens must be an array");
    while ((tok = dg_jsonr_next(&rd->r)) == DG_JSON_OBJECT)
        DG_TRY(read_added_token(rd));
    return tok == DG_JSON_ARRAY_END ? DG_OK : broken(rd, "an added token must be an object");
}

static enum dg_status read_version(struct reader *rd) {
    if (dg_jsonr_next(&rd->r) != DG_JSON_STRING)
        return broken(rd, "version must be a string");
    if (!dg_jsonr_is(&rd->r, "1.0"))
        return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "version \"%.*s\" is not supported; only \"1.0\" is",
                       (int)(rd->r.len < 40 ? rd->r.len : 40), rd->r.str);
    return DG_OK;
}

/* --- model and document ---------------------------------------------------------------------------------------------- */

/* model.name must be one of the literals in `want` (NULL-terminated). */
static enum dg_status read_flag(struct reader *rd, const char *name, const char *const *want) {
    json_t *v = NULL;
    DG_TRY(read_part(rd, name, &v));
    enum dg_status st = DG_E_UNSUPPORTED;
    for (size_t i = 0; want[i] && st != DG_OK; i++)
        if (equals(v, want[i]))
            st = DG_OK;
    char *have = st == DG_OK ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (st != DG_OK)
        st = DG_FAIL(rd->err, st, "model.%s = %.60s is not supported; it must be %s", name, have ? have : "?", want[0]);
    free(have);
    json_decref(v);
    return st;
}

/* A member of an object, its value read by `read`; `want` is for read_flag. */
struct member {
    const char *name;
    enum dg_status (*read)(struct reader *rd);
    const char *const *want;
    bool needed;
};

/* The current key's place in `members`, n when it is none of them; a repeated one is an error. */
static enum dg_status which(struct reader *rd, const struct member *members, size_t n, uint32_t *seen, size_t *i) {
    for (*i = 0; *i < n && !dg_jsonr_is(&rd->r, members[*i].name); ++*i)
        continue;
    if (*i < n && *seen >> *i & 1)
        return DG_FAIL(rd->err, DG_E_FORMAT, "member \"%s\" appears twice", members[*i].name);
    if (*i < n)
        *seen |= 1u << *i;
    return DG_OK;
}

static enum dg_status check_needed(struct reader *rd, const struct member *members, size_t n, uint32_t seen) {
    for (size_t i = 0; i < n; i++)
        if (members[i].needed && !(seen >> i & 1))
            return DG_FAIL(rd->err, DG_E_FORMAT, "member \"%s\" is missing", members[i].name);
    return DG_OK;
}

static enum dg_status read_merges_when_ready(struct reader *rd) {
    if (rd->src->t->n_pieces)
        return read_merges(rd);
    rd->merges_at = rd->r;
    rd->merges_wait = true;
    return dg_jsonr_skip(&rd->r) ? DG_OK : broken(rd, "model.merges must be an array");
}

static enum dg_status read_model(struct reader *rd) {
    static const char *const bpe[] = {"\"BPE\"", NULL}, *const null[] = {"null", NULL}, *const yes[] = {"true", NULL},
                             *const no[] = {"false", NULL}, *const none[] = {"null", "\"\"", NULL},
                             *const either[] = {"true", "false", NULL}, *const unk[] = {"\"<unk>\"", "null", NULL};
    static const struct member members[] = {
        {"type", NULL, bpe, true},
        {"dropout", NULL, null, false},
        {"unk_token", NULL, unk, false}, /* never produced: every byte has a token */
        {"continuing_subword_prefix", NULL, none, false},
        {"end_of_word_suffix", NULL, none, false},
        {"fuse_unk", NULL, either, false}, /* no effect for the same reason */
        {"byte_fallback", NULL, yes, true},
        {"ignore_merges", NULL, no, false},
        {"vocab", read_vocab, NULL, true},
        {"merges", read_merges_when_ready, NULL, true},
    };
    const size_t n = sizeof members / sizeof *members;
    uint32_t seen = 0;
    enum dg_json_token tok;
    char name[64];
    if (dg_jsonr_next(&rd->r) != DG_JSON_OBJECT)
        return broken(rd, "model must be an object");
    while ((tok = dg_jsonr_next(&rd->r)) == DG_JSON_KEY) {
        size_t i;
        DG_TRY(which(rd, members, n, &seen, &i));
        if (i == n)
            return DG_FAIL(rd->err, DG_E_UNSUPPORTED, "model.%s is not supported", dg_tok_show(name, rd->r.str, rd->r.len));
        DG_TRY(members[i].want ? read_flag(rd, members[i].name, members[i].want) : members[i].read(rd));
    }
    if (tok != DG_JSON_OBJECT_END)
        return broken(rd, "model must be an object");
    DG_TRY(check_needed(rd, members, n, seen));
    if (rd->merges_wait) {
        struct dg_jsonr here = rd->r;
        rd->r = rd->merges_at;
        DG_TRY(read_merges(rd));
        rd->r = here;
    }
    return DG_OK;
}

/* Truncation, padding and members unknown to this version do not concern single texts. */
static enum dg_status read_document(struct reader *rd) {
    static const struct member members[] = {
        {"version", read_version, NULL, false},
        {"added_tokens", read_added_tokens, NULL, true},
        {"normalizer", read_normalizer, NULL, true},
        {"pre_tokenizer", read_pre_tokenizer, NULL, false},
        {"post_processor", read_post_processor, NULL, false},
        {"decoder", read_decoder, NULL, true},
        {"model", read_model, NULL, true},
    };
    const size_t n = sizeof members / sizeof *members;
    uint32_t seen = 0;
    enum dg_json_token tok;
    if (dg_jsonr_next(&rd->r) != DG_JSON_OBJECT)
        return broken(rd, "the document must be an object");
    while ((tok = dg_jsonr_next(&rd->r)) == DG_JSON_KEY) {
        size_t i;
        DG_TRY(which(rd, members, n, &seen, &i));
        if (i < n)
            DG_TRY(members[i].read(rd));
        else if (!dg_jsonr_skip(&rd->r))
            return broken(rd, "a member without a value");
    }
    if (tok != DG_JSON_OBJECT_END || dg_jsonr_next(&rd->r) != DG_JSON_END)
        return broken(rd, "the document must be one object");
    return check_needed(rd, members, n, seen);
}

enum dg_status dg_tok_read(struct dg_tok_source *src, const void *json, size_t n) {
    struct reader rd = {.src = src, .err = src->err};
    dg_jsonr_init(&rd.r, json, n);
    enum dg_status st = read_document(&rd);
    dg_free(rd.scratch);
    return st;
}
