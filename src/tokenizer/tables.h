/* Inside of the tokenizer: its tables and the look-ups that loading and encoding share. */
#ifndef DG_TOKENIZER_TABLES_H
#define DG_TOKENIZER_TABLES_H

#include "tokenizer/tokenizer.h"

#include <string.h>

#define DG_TOK_SPACE_CP 0x2581u /* what U+0020 becomes */
/* Characters in classes: ASCII each its own (U+2581 counts as U+0020), everything else together. */
#define DG_TOK_CLASS_OTHER 128
#define DG_TOK_CLASSES 129
#define DG_TOK_NO_RANK UINT32_MAX

struct dg_tok_piece {
    uint32_t at, len; /* in blob */
};

struct dg_tok_slot {
    uint32_t tag; /* upper half of the hash */
    uint32_t id1; /* id + 1; 0 = free */
};

struct dg_tok_merge {
    uint64_t key; /* (left id + 1) << 32 | right id; 0 = free */
    uint32_t rank;
    int32_t product;
};

/* A control token's spelling, the list sorted by bytes. */
struct dg_tok_control {
    const char *s;
    uint32_t len;
    int32_t id;
};

struct dg_tokenizer {
    char *blob;
    struct dg_tok_piece *pieces;
    int32_t n_pieces;
    struct dg_tok_slot *slots; /* open addressing, linear probing, at most half full */
    uint32_t slot_mask;
    struct dg_tok_merge *merges; /* likewise */
    uint32_t merge_mask;
    uint64_t seed[2]; /* drawn at load, so that no file can be written to collide */
    struct dg_tok_control *controls;
    size_t n_controls;
    bool starts_control[256]; /* by first byte */
    uint8_t *is_control;      /* by id */
    int32_t byte_id[256];
    int32_t bmp_id[65536]; /* id of a single character below U+10000, or -1 */
    /* joins[a][b]: whether some merge has a left part that ends in class a and a right part that begins in class b. Where it is
     * false no merge ever crosses the border between two such characters, so a text may be cut there without changing its ids. */
    uint8_t joins[DG_TOK_CLASSES][DG_TOK_CLASSES];
};

static inline uint64_t dg_tok_mix(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t dg_tok_load(const char *s, size_t n) { /* n <= 8 bytes, little-endian whatever the machine does */
    uint64_t v = 0;
    if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        return (uint64_t)hi << 32 | lo;
    }
    for (size_t i = 0; i < n; i++)
        v = v << 8 | (uint8_t)s[i];
    return v;
}

static inline uint64_t dg_tok_hash(const uint64_t seed[2], const char *s, size_t n) {
    uint64_t h = seed[0] ^ n;
    for (; n > 8; s += 8, n -= 8)
        h = dg_tok_mix(h ^ dg_tok_load(s, 8), seed[1]);
    return dg_tok_mix(dg_tok_mix(h ^ dg_tok_load(s, n), seed[1]), seed[0]);
}

/* Id of the entry spelled by n bytes whose hash is known, or -1. */
static inline int32_t dg_tok_find_hashed(const struct dg_tokenizer *t, const char *s, size_t n, uint64_t hash) {
    for (uint32_t i = (uint32_t)hash & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        const struct dg_tok_slot *slot = &t->slots[i];
        if (slot->id1 == 0)
            return -1;
        if (slot->tag == (uint32_t)(hash >> 32)) {
            const struct dg_tok_piece *p = &t->pieces[slot->id1 - 1];
            if (p->len == n && memcmp(t->blob + p->at, s, n) == 0)
                return (int32_t)slot->id1 - 1;
        }
    }
}

static inline int32_t dg_tok_find(const struct dg_tokenizer *t, const char *s, size_t n) {
    return dg_tok_find_hashed(t, s, n, dg_tok_hash(t->seed, s, n));
}

static inline uint64_t dg_tok_merge_key(int32_t left, int32_t right) { return (uint64_t)(left + 1) << 32 | (uint32_t)right; }

static inline uint32_t dg_tok_merge_index(const struct dg_tokenizer *t, uint64_t key) {
    return (uint32_t)dg_tok_mix(key ^ t->seed[0], t->seed[1]) & t->merge_mask;
}

/* Rank of the merge of two neighbours, its product in *product; DG_TOK_NO_RANK when there is none. */
static inline uint32_t dg_tok_rank(const struct dg_tokenizer *t, int32_t left, int32_t right, int32_t *product) {
    uint64_t key = dg_tok_merge_key(left, right);
    for (uint32_t i = dg_tok_merge_index(t, key);; i = (i + 1) & t->merge_mask) {
        const struct dg_tok_merge *m = &t->merges[i];
        if (m->key == key) {
            *product = m->product;
            return m->rank;
        }
        if (m->key == 0)
            return DG_TOK_NO_RANK;
    }
}

static inline int dg_tok_hex(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32; /* lower case */
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Value of an entry spelled like "<0x0A>", or -1. */
static inline int dg_tok_byte_value(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = dg_tok_hex(s[3]), low = dg_tok_hex(s[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* What a loader gathers besides the tokenizer itself; reader.c fills it from the file, build.c turns it into tables. */
struct dg_tok_source {
    struct dg_tokenizer *t; /* blob, pieces */
    size_t blob_len, blob_cap;
    size_t pieces_cap;
    struct dg_tok_added {
        struct dg_tok_piece text;
        int32_t id;
    } *added;
    size_t n_added, added_cap;
    struct dg_tok_triple {
        int32_t left, right, product;
    } *triples; /* by rank */
    size_t n_triples, triples_cap;
    struct dg_error *err;
};

/* Reads the document: pieces by id, added tokens and merges as written, all parts checked. */
enum dg_status dg_tok_read(struct dg_tok_source *src, const void *json, size_t n) DG_MUST_CHECK;
/* Fills the vocabulary's hash table from blob and pieces (called by the reader between vocabulary and merges). */
enum dg_status dg_tok_build_vocab(struct dg_tok_source *src) DG_MUST_CHECK;
/* Fills the rest: merges, bytes, characters, cuts, control tokens. */
enum dg_status dg_tok_build(struct dg_tok_source *src) DG_MUST_CHECK;
/* A short printable form of an entry, for messages; returns dst. */
const char *dg_tok_show(char dst[64], const char *s, size_t n);

#endif
