/* Opening a tokenizer: the tables behind encoding, built once from what the reader found. */
#include "core/map.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "tokenizer/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

/* Smallest power of two that leaves at least half of the places free, so that every probe ends. */
static size_t table_size(size_t n) {
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

enum dg_status dg_tok_build_vocab(struct dg_tok_source *src) {
    struct dg_tokenizer *t = src->t;
    size_t size = table_size((size_t)t->n_pieces);
    t->slots = dg_calloc(size, sizeof *t->slots);
    if (!t->slots)
        return DG_FAIL(src->err, DG_E_NOMEM, "no memory for a vocabulary of %d entries", t->n_pieces);
    t->slot_mask = (uint32_t)(size - 1);
    for (int32_t id = 0; id < t->n_pieces; id++) {
        const struct dg_tok_piece *p = &t->pieces[id];
        uint64_t hash = dg_tok_hash(t->seed, t->blob + p->at, p->len);
        uint32_t tag = (uint32_t)(hash >> 32), i = (uint32_t)hash & t->slot_mask;
        for (; t->slots[i].id1; i = (i + 1) & t->slot_mask) {
            const struct dg_tok_piece *q = &t->pieces[t->slots[i].id1 - 1];
            char name[64];
            if (t->slots[i].tag == tag && q->len == p->len && memcmp(t->blob + q->at, t->blob + p->at, p->len) == 0)
                return DG_FAIL(src->err, DG_E_FORMAT, "entry %s appears twice in the vocabulary",
                               dg_tok_show(name, t->blob + p->at, p->len));
        }
        t->slots[i] = (struct dg_tok_slot){tag, (uint32_t)id + 1};
    }
    return DG_OK;
}

static int class_of(uint32_t cp) { return cp < 128 ? (int)cp : cp == DG_TOK_SPACE_CP ? ' ' : DG_TOK_CLASS_OTHER; }

static int first_class(const struct dg_tokenizer *t, int32_t id) {
    uint32_t cp = 0;
    dg_utf8_next((const uint8_t *)t->blob + t->pieces[id].at, t->pieces[id].len, &cp);
    return class_of(cp);
}

static int last_class(const struct dg_tokenizer *t, int32_t id) {
    const uint8_t *begin = (const uint8_t *)t->blob + t->pieces[id].at, *end = begin + t->pieces[id].len, *p = end - 1;
    uint32_t cp = 0;
    while (p > begin && (*p & 0xc0) == 0x80)
        p--;
    dg_utf8_next(p, (size_t)(end - p), &cp);
    return class_of(cp);
}

static bool is_byte_entry(const struct dg_tokenizer *t, int32_t id) {
    return dg_tok_byte_value(t->blob + t->pieces[id].at, t->pieces[id].len) >= 0;
}

static enum dg_status build_merges(struct dg_tok_source *src) {
    struct dg_tokenizer *t = src->t;
    size_t size = table_size(src->n_triples);
    t->merges = dg_calloc(size, sizeof *t->merges);
    if (!t->merges)
        return DG_FAIL(src->err, DG_E_NOMEM, "no memory for %zu merges", src->n_triples);
    t->merge_mask = (uint32_t)(size - 1);
    bool cuts = true;
    for (size_t rank = 0; rank < src->n_triples; rank++) {
        const struct dg_tok_triple *m = &src->triples[rank];
        if (rank + 16 < src->n_triples) /* the table does not fit the caches: ask for what comes soon */
            __builtin_prefetch(&t->merges[dg_tok_merge_index(t, dg_tok_merge_key(m[16].left, m[16].right))], 1);
        uint64_t key = dg_tok_merge_key(m->left, m->right);
        uint32_t i = dg_tok_merge_index(t, key);
        while (t->merges[i].key && t->merges[i].key != key)
            i = (i + 1) & t->merge_mask;
        /* a pair given twice has the later rank, as in the format's reference implementation */
        t->merges[i] = (struct dg_tok_merge){key, (uint32_t)rank, m->product};
        t->joins[last_class(t, m->left)][first_class(t, m->right)] = 1;
        /* the symbol of a byte entry stands for one byte, not for the characters of its spelling: classes say nothing about it */
        if (is_byte_entry(t, m->left) || is_byte_entry(t, m->right))
            cuts = false;
    }
    if (!cuts)
        memset(t->joins, 1, sizeof t->joins);
    /* A scan by bytes sees U+2581 as "other", and must never cut inside a character. */
    for (int c = 0; c < DG_TOK_CLASSES; c++) {
        t->joins[DG_TOK_CLASS_OTHER][c] |= t->joins[' '][c];
        t->joins[c][DG_TOK_CLASS_OTHER] |= t->joins[c][' '];
    }
    t->joins[DG_TOK_CLASS_OTHER][DG_TOK_CLASS_OTHER] = 1;
    return DG_OK;
}

static enum dg_status build_characters(struct dg_tok_source *src) {
    struct dg_tokenizer *t = src->t;
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        t->byte_id[b] = dg_tok_find(t, name, 6);
        if (t->byte_id[b] < 0)
            return DG_FAIL(src->err, DG_E_FORMAT, "the vocabulary lacks the byte token %s, which model.byte_fallback needs",
                           name);
    }
    memset(t->bmp_id, 0xff, sizeof t->bmp_id);
    for (int32_t id = 0; id < t->n_pieces; id++) {
        const struct dg_tok_piece *p = &t->pieces[id];
        uint32_t cp;
        if (p->len && p->len <= 3 && dg_utf8_next((const uint8_t *)t->blob + p->at, p->len, &cp) == (int)p->len)
            t->bmp_id[cp] = id;
    }
    /* text never shows a space to the vocabulary */
    t->bmp_id[' '] = t->bmp_id[DG_TOK_SPACE_CP];
    return DG_OK;
}

static int by_bytes(const void *pa, const void *pb) {
    const struct dg_tok_control *a = pa, *b = pb;
    int c = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static enum dg_status build_controls(struct dg_tok_source *src) {
    struct dg_tokenizer *t = src->t;
    t->controls = dg_calloc(src->n_added, sizeof *t->controls);
    t->is_control = dg_calloc((size_t)t->n_pieces, 1);
    if (!t->controls || !t->is_control)
        return DG_FAIL(src->err, DG_E_NOMEM, "no memory for %zu control tokens", src->n_added);
    for (size_t i = 0; i < src->n_added; i++) {
        const struct dg_tok_added *a = &src->added[i];
        const char *s = t->blob + a->text.at;
        char name[64];
        int32_t id = dg_tok_find(t, s, a->text.len);
        if (id != a->id)
            return DG_FAIL(src->err, DG_E_FORMAT, "added token %s has id %d, but in the vocabulary it %s",
                           dg_tok_show(name, s, a->text.len), a->id, id < 0 ? "is missing" : "has another id");
        if (t->is_control[id])
            return DG_FAIL(src->err, DG_E_FORMAT, "added token %s appears twice", dg_tok_show(name, s, a->text.len));
        t->is_control[id] = 1;
        t->starts_control[(uint8_t)s[0]] = true;
        t->controls[i] = (struct dg_tok_control){s, a->text.len, id};
    }
    t->n_controls = src->n_added;
    if (t->n_controls)
        qsort(t->controls, t->n_controls, sizeof *t->controls, by_bytes);
    return DG_OK;
}

enum dg_status dg_tok_build(struct dg_tok_source *src) {
    DG_TRY(build_characters(src));
    DG_TRY(build_merges(src));
    return build_controls(src);
}

static void draw_seed(struct dg_tokenizer *t) {
    if (getrandom(t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t)sizeof t->seed) {
        t->seed[0] = (uintptr_t)t * 0x9e3779b97f4a7c15u;
        t->seed[1] = (uintptr_t)&t * 0xbf58476d1ce4e5b9u;
    }
    t->seed[0] |= 1;
    t->seed[1] |= 1;
}

enum dg_status dg_tokenizer_create(struct dg_tokenizer **out, const void *json, size_t n, struct dg_error *err) {
    *out = NULL;
    if (n > DG_TOKENIZER_FILE_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "a tokenizer.json of %zu bytes is too large, at most %zu are read", n,
                       DG_TOKENIZER_FILE_MAX);
    struct dg_tok_source src = {.t = dg_calloc(1, sizeof *src.t), .err = err};
    if (!src.t)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a tokenizer");
    draw_seed(src.t);
    enum dg_status st = dg_tok_read(&src, n ? json : "", n);
    if (st == DG_OK)
        st = dg_tok_build(&src);
    dg_free(src.added);
    dg_free(src.triples);
    if (st == DG_OK)
        *out = src.t;
    else
        dg_tokenizer_close(src.t);
    return st;
}

enum dg_status dg_tokenizer_open(struct dg_tokenizer **out, const char *path, struct dg_error *err) {
    struct dg_map map;
    *out = NULL;
    DG_TRY(dg_map_open(&map, path, err));
    enum dg_status st = dg_tokenizer_create(out, map.data, map.size, err);
    dg_map_close(&map);
    if (st != DG_OK)
        dg_error_prefix(err, "%s", path);
    return st;
}

void dg_tokenizer_close(struct dg_tokenizer *t) {
    if (!t)
        return;
    dg_free(t->blob);
    dg_free(t->pieces);
    dg_free(t->slots);
    dg_free(t->merges);
    dg_free(t->controls);
    dg_free(t->is_control);
    dg_free(t);
}

int32_t dg_tokenizer_size(const struct dg_tokenizer *t) { return t->n_pieces; }

int32_t dg_tokenizer_find(const struct dg_tokenizer *t, const char *piece) { return dg_tok_find(t, piece, strlen(piece)); }

bool dg_tokenizer_is_control(const struct dg_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_pieces && t->is_control[id];
}

const char *dg_tokenizer_piece(const struct dg_tokenizer *t, int32_t id, size_t *len) {
    if (id < 0 || id >= t->n_pieces) {
        *len = 0;
        return NULL;
    }
    *len = t->pieces[id].len;
    return t->blob + t->pieces[id].at;
}
