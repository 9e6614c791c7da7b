/* Byte-pair merging. Short stretches keep their symbols in an array and look for the best pair each time, which needs no memory and
 * little code; long ones use a linked list and a heap, so that n symbols take O(n log n). Both give the same ids. */
#include "tokenizer/merge.h"

#include "core/mem.h"
#include "core/utf8.h"

/* Up to this many bytes the quadratic loop is the faster one. */
#define SHORT_BYTES_MAX 64
#define NONE UINT32_MAX

void dg_tok_merger_init(struct dg_tok_merger *m, const struct dg_tokenizer *t) { *m = (struct dg_tok_merger){.t = t}; }

void dg_tok_merger_deinit(struct dg_tok_merger *m) {
    dg_free(m->symbols);
    dg_free(m->heap);
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

/* --- long stretches ------------------------------------------------------------------------------------------------------------ */

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= v)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = v;
}

static void sift_up(uint64_t *heap, size_t i) {
    uint64_t v = heap[i];
    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

static void rank_pair(const struct dg_tokenizer *t, struct dg_tok_symbol *symbols, uint32_t i) {
    struct dg_tok_symbol *a = &symbols[i];
    a->rank = a->next == NONE ? DG_TOK_NO_RANK : dg_tok_rank(t, a->id, symbols[a->next].id, &a->product);
}

static uint64_t heap_key(const struct dg_tok_symbol *symbols, uint32_t i) { return (uint64_t)symbols[i].rank << 32 | i; }

static bool reserve(struct dg_tok_merger *m, size_t count) {
    if (count > m->symbols_cap) {
        dg_free(m->symbols);
        dg_free(m->heap);
        m->symbols_cap = m->heap_cap = 0;
        m->symbols = dg_realloc(NULL, 0, count, sizeof *m->symbols);
        /* every merge takes one entry off and puts at most two on, and there are fewer merges than symbols */
        m->heap = dg_realloc(NULL, 0, 2 * count, sizeof *m->heap);
        if (!m->symbols || !m->heap)
            return false;
        m->symbols_cap = count;
        m->heap_cap = 2 * count;
    }
    return true;
}

static enum dg_status merge_long(struct dg_tok_merger *m, const uint8_t *s, size_t n, struct dg_ids *out) {
    const struct dg_tokenizer *t = m->t;
    size_t count = 0, n_heap = 0, used;
    for (size_t i = 0; i < n; i++)
        count += s[i] == ' ' ? 3 : 1;
    if (!reserve(m, count))
        return DG_E_NOMEM;
    struct dg_tok_symbol *symbols = m->symbols;
    uint64_t *heap = m->heap;
    count = 0;
    for (size_t i = 0; i < n; i += used) {
        int32_t ids[4];
        int k = character(t, s + i, n - i, &used, ids);
        for (int j = 0; j < k; j++, count++)
            symbols[count] = (struct dg_tok_symbol){.id = ids[j], .prev = (uint32_t)count - 1, .next = (uint32_t)count + 1};
    }
    symbols[0].prev = symbols[count - 1].next = NONE;
    for (uint32_t i = 0; i < count; i++) {
        rank_pair(t, symbols, i);
        if (symbols[i].rank != DG_TOK_NO_RANK)
            heap[n_heap++] = heap_key(symbols, i);
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(heap, n_heap, i);
    while (n_heap) {
        uint32_t i = (uint32_t)heap[0], rank = (uint32_t)(heap[0] >> 32);
        heap[0] = heap[--n_heap];
        sift_down(heap, n_heap, 0);
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
        if (a->rank != DG_TOK_NO_RANK) {
            heap[n_heap] = heap_key(symbols, i);
            sift_up(heap, n_heap++);
        }
        if (a->prev != NONE) {
            rank_pair(t, symbols, a->prev);
            if (symbols[a->prev].rank != DG_TOK_NO_RANK) {
                heap[n_heap] = heap_key(symbols, a->prev);
                sift_up(heap, n_heap++);
            }
        }
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
