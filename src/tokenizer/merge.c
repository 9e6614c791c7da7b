/* Byte-pair merging. Short stretches keep their symbols in an array and look for the best pair each time, which needs no memory;
 * long ones use a linked list and a queue of pairs, so that n symbols take O(n log n). Both give the same ids. */
#include "tokenizer/merge.h"

#include "core/mem.h"
#include "core/utf8.h"

/* Up to this many bytes the quadratic loop is the faster one. */
#define SHORT_BYTES_MAX 64
#define NONE UINT32_MAX

void dg_tok_merger_init(struct dg_tok_merger *m, const struct dg_tokenizer *t) { *m = (struct dg_tok_merger){.t = t}; }

void dg_tok_merger_deinit(struct dg_tok_merger *m) {
    dg_free(m->symbols);
    dg_free(m->keys);
    *m = (struct dg_tok_merger){0};
}

/* The ids one character starts as, at most 4; *used = its bytes. */
static inline int character(const struct dg_tokenizer *t, const uint8_t *s, size_t n, size_t *used, int32_t ids[4]) {
    static const uint8_t space[3] = {0xe2, 0x96, 0x81};
    uint32_t cp = 0;
    int len = dg_utf8_next(s, n, &cp);
    *used = (size_t)len;
    ids[0] = cp < 0x10000 ? t->bmp_id[cp] : dg_tok_find(t, (const char *)s, (size_t)len);
    if (ids[0] >= 0)
        return 1;
    if (*s == ' ') {
        s = space;
        len = 3;
    }
    for (int i = 0; i < len; i++)
        ids[i] = t->byte_id[s[i]];
    return len;
}

static enum dg_status merge_short(const struct dg_tokenizer *t, const uint8_t *s, size_t n, struct dg_ids *out) {
    int32_t ids[3 * SHORT_BYTES_MAX + 4], products[3 * SHORT_BYTES_MAX + 4]; /* a space may become three byte tokens */
    uint32_t ranks[3 * SHORT_BYTES_MAX + 4];
    size_t count = 0, used;
    for (size_t i = 0; i < n; i += used)
        count += (size_t)character(t, s + i, n - i, &used, ids + count);
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = dg_tok_rank(t, ids[i], ids[i + 1], &products[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == DG_TOK_NO_RANK)
            break;
        ids[best] = products[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof *ranks);
        memmove(products + best, products + best + 1, (count - best - 1) * sizeof *products);
        if (best + 1 < count)
            ranks[best] = dg_tok_rank(t, ids[best], ids[best + 1], &products[best]);
        if (best > 0)
            ranks[best - 1] = dg_tok_rank(t, ids[best - 1], ids[best], &products[best - 1]);
    }
    return dg_ids_add(out, ids, count);
}

/* --- long stretches -------------------------------------------------------------------------------------------------- */

/* Sorts n keys by rank, keys of equal rank keeping their order (that of their index); tmp has room for n. Radix 256. */
static void sort_by_rank(uint64_t *keys, uint64_t *tmp, size_t n, uint32_t rank_max) {
    uint64_t *from = keys, *to = tmp;
    for (int shift = 32; shift < 64 && rank_max; shift += 8, rank_max >>= 8) {
        size_t at[256] = {0}, sum = 0;
        for (size_t i = 0; i < n; i++)
            at[from[i] >> shift & 255]++;
        for (int d = 0; d < 256; d++) {
            size_t here = at[d];
            at[d] = sum;
            sum += here;
        }
        for (size_t i = 0; i < n; i++)
            to[at[from[i] >> shift & 255]++] = from[i];
        uint64_t *was = from;
        from = to;
        to = was;
    }
    if (from != keys)
        memcpy(keys, from, n * sizeof *keys);
}

/* A heap of keys, least first, four children to a node. */
struct heap {
    uint64_t *v;
    size_t n;
};

static void heap_push(struct heap *h, uint64_t v) {
    size_t i = h->n++;
    for (; i > 0 && h->v[(i - 1) / 4] > v; i = (i - 1) / 4)
        h->v[i] = h->v[(i - 1) / 4];
    h->v[i] = v;
}

static uint64_t heap_pop(struct heap *h) {
    uint64_t *v = h->v, least = v[0];
    size_t n = --h->n, i = 0, child;
    uint64_t last = v[n];
    while ((child = 4 * i + 1) < n) {
        for (size_t j = child + 1, end = child + 4 < n ? child + 4 : n; j < end; j++)
            child = v[j] < v[child] ? j : child;
        if (v[child] >= last)
            break;
        v[i] = v[child];
        i = child;
    }
    v[i] = last;
    return least;
}

static void rank_pair(const struct dg_tokenizer *t, struct dg_tok_symbol *symbols, uint32_t i) {
    struct dg_tok_symbol *a = &symbols[i];
    a->rank = a->next == NONE ? DG_TOK_NO_RANK : dg_tok_rank(t, a->id, symbols[a->next].id, &a->product);
}

static uint64_t heap_key(const struct dg_tok_symbol *symbols, uint32_t i) { return (uint64_t)symbols[i].rank << 32 | i; }

static bool reserve(struct dg_tok_merger *m, size_t count) {
    if (count <= m->cap)
        return true;
    dg_free(m->symbols);
    dg_free(m->keys);
    m->cap = 0;
    m->symbols = dg_realloc(NULL, 0, count, sizeof *m->symbols);
    /* a third for the pairs of the start; the rest for the heap: a merge puts at most two pairs on it, and there are fewer merges
     * than symbols */
    m->keys = dg_realloc(NULL, 0, 3 * count, sizeof *m->keys);
    if (!m->symbols || !m->keys)
        return false;
    m->cap = count;
    return true;
}

static size_t split(const struct dg_tokenizer *t, const uint8_t *s, size_t n, struct dg_tok_symbol *symbols) {
    size_t count = 0, used;
    for (size_t i = 0; i < n; i += used) {
        int32_t ids[4];
        int k = character(t, s + i, n - i, &used, ids);
        for (int j = 0; j < k; j++, count++)
            symbols[count] = (struct dg_tok_symbol){.id = ids[j], .prev = (uint32_t)count - 1, .next = (uint32_t)count + 1};
    }
    symbols[0].prev = symbols[count - 1].next = NONE;
    return count;
}

/* The pairs of the start are most of all pairs: they are sorted once, and only those that merges create go through the heap. */
static enum dg_status merge_long(struct dg_tok_merger *m, const uint8_t *s, size_t n, struct dg_ids *out) {
    const struct dg_tokenizer *t = m->t;
    size_t count = 0, n_first = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        count += s[i] == ' ' ? 3 : 1; /* a space may become three byte tokens */
    if (!reserve(m, count))
        return DG_E_NOMEM;
    struct dg_tok_symbol *symbols = m->symbols;
    uint64_t *first = m->keys;
    struct heap heap = {.v = m->keys + count};
    uint32_t rank_max = 0;
    count = split(t, s, n, symbols);
    for (uint32_t i = 0; i < count; i++) {
        rank_pair(t, symbols, i);
        if (symbols[i].rank != DG_TOK_NO_RANK) {
            first[n_first++] = heap_key(symbols, i);
            rank_max = symbols[i].rank > rank_max ? symbols[i].rank : rank_max;
        }
    }
    sort_by_rank(first, heap.v, n_first, rank_max);
    while (at < n_first || heap.n) {
        uint64_t key = heap.n && (at == n_first || heap.v[0] < first[at]) ? heap_pop(&heap) : first[at++];
        uint32_t i = (uint32_t)key, rank = (uint32_t)(key >> 32);
        struct dg_tok_symbol *a = &symbols[i];
        if (a->rank != rank) /* the pair changed since it was queued, and was queued again if it still merges */
            continue;
        struct dg_tok_symbol *b = &symbols[a->next];
        a->id = a->product;
        b->rank = DG_TOK_NO_RANK;
        a->next = b->next;
        if (a->next != NONE)
            symbols[a->next].prev = i;
        rank_pair(t, symbols, i);
        if (a->rank != DG_TOK_NO_RANK)
            heap_push(&heap, heap_key(symbols, i));
        if (a->prev == NONE)
            continue;
        rank_pair(t, symbols, a->prev);
        if (symbols[a->prev].rank != DG_TOK_NO_RANK)
            heap_push(&heap, heap_key(symbols, a->prev));
    }
    enum dg_status st = DG_OK;
    for (uint32_t i = 0; i != NONE && st == DG_OK; i = symbols[i].next)
        st = dg_ids_push(out, symbols[i].id);
    return st;
}

enum dg_status dg_tok_merge(struct dg_tok_merger *m, const char *s, size_t n, struct dg_ids *out) {
    if (n == 0)
        return DG_OK;
    return n <= SHORT_BYTES_MAX ? merge_short(m->t, (const uint8_t *)s, n, out) : merge_long(m, (const uint8_t *)s, n, out);
}
