#include "pipeline/conversation.h"

#include "core/mem.h"

#include <string.h>

static enum dg_status open_session(struct dg_conversations *c, struct dg_session **out, struct dg_error *err) {
    if (c->n_spare) {
        *out = c->spare[--c->n_spare];
        return DG_OK;
    }
    struct dg_session_opts o = c->opts;
    if (c->planes) {
        o.planes = c->planes->planes;
        o.other = c->planes->other;
    }
    DG_TRY(dg_session_create(out, c->be, &o, err));
    if (!c->planes)
        c->planes = *out;
    return DG_OK;
}

enum dg_status dg_conversations_init(struct dg_conversations *c, struct dg_backend *be, const struct dg_session_opts *opts, size_t max,
                                     struct dg_error *err) {
    memset(c, 0, sizeof *c);
    if (max < 1 || max > DG_CONVERSATIONS_MAX)
        return DG_FAIL(err, DG_E_ARG, "%zu conversations: one of 1 to %d", max, DG_CONVERSATIONS_MAX);
    c->be = be;
    c->opts = *opts;
    c->max = max;
    c->next_id = 1;
    c->next_epoch = 1;
    c->v = dg_calloc(max, sizeof *c->v);
    c->spare = dg_calloc(max, sizeof *c->spare);
    enum dg_status st = c->v && c->spare ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory for %zu conversations", max);
    struct dg_session *s = NULL;
    if (st == DG_OK)
        st = open_session(c, &s, err);
    if (st == DG_OK)
        c->spare[c->n_spare++] = s;
    else
        dg_conversations_deinit(c);
    return st;
}

static void free_conversation(struct dg_conversation *v) {
    if (v->turn.s)
        dg_turn_deinit(&v->turn);
    dg_free((void *)v->gen.canvas_ids);
    dg_free(v->mark);
    dg_free(v);
}

void dg_conversations_deinit(struct dg_conversations *c) {
    while (c->n)
        dg_conversation_drop(c, c->v[c->n - 1]);
    for (size_t i = 0; i < c->n_spare; i++)
        if (c->spare[i] != c->planes)
            dg_session_destroy(c->spare[i]);
    dg_session_destroy(c->planes);
    dg_free(c->v);
    dg_free(c->spare);
    memset(c, 0, sizeof *c);
}

size_t dg_conversations_fit(const struct dg_backend *be, const struct dg_session_opts *opts, size_t bytes) {
    const struct dg_config *c = &be->model->cfg;
    struct dg_session_opts o = *opts;
    if (dg_session_opts_resolve(c, be->ops, &o, NULL) != DG_OK)
        return 1;
    size_t one = dg_kv_bytes(c, o.ctx, o.ring, o.chunk > c->canvas ? o.chunk : c->canvas, o.kv), n = one ? bytes / one : 1;
    return n < 1 ? 1 : n > DG_CONVERSATIONS_MAX ? DG_CONVERSATIONS_MAX : n;
}

struct dg_conversation *dg_conversation_find(const struct dg_conversations *c, int32_t id) {
    for (size_t i = 0; i < c->n; i++)
        if (c->v[i]->id == id)
            return c->v[i];
    return NULL;
}

static bool in_use(const struct dg_conversation *v) { return v->held || v->turn_open; }

/* The least recently used one that nobody is in the middle of, or NULL. */
static struct dg_conversation *victim(const struct dg_conversations *c) {
    struct dg_conversation *v = NULL;
    for (size_t i = 0; i < c->n; i++)
        if (!in_use(c->v[i]) && (!v || c->v[i]->used < v->used))
            v = c->v[i];
    return v;
}

enum dg_status dg_conversation_create(struct dg_conversations *c, struct dg_conversation **out, int32_t *evicted, struct dg_error *err) {
    *out = NULL;
    *evicted = 0;
    struct dg_conversation *old = c->n == c->max ? victim(c) : NULL;
    if (c->n == c->max && !old)
        return DG_FAIL(err, DG_E_LIMIT, "all %zu conversations that the memory budget allows are in use; try again when one ends", c->max);
    struct dg_conversation *v = dg_calloc(1, sizeof *v);
    if (!v)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a conversation");
    if (old) {
        *evicted = old->id;
        dg_conversation_drop(c, old);
    }
    enum dg_status st = open_session(c, &v->s, err);
    if (st != DG_OK) {
        dg_free(v);
        return st;
    }
    v->id = c->next_id++;
    v->epoch = c->next_epoch++;
    v->used = ++c->tick;
    v->turn_start = -1;
    c->v[c->n++] = v;
    *out = v;
    return DG_OK;
}

void dg_conversation_drop(struct dg_conversations *c, struct dg_conversation *v) {
    size_t i = 0;
    while (c->v[i] != v)
        i++;
    memmove(&c->v[i], &c->v[i + 1], (c->n - i - 1) * sizeof *c->v);
    c->n--;
    /* cutting to nothing computes nothing */
    dg_kv_cut(&v->s->kv, 0);
    v->s->log.n = 0;
    v->s->cancel = NULL;
    c->spare[c->n_spare++] = v->s;
    free_conversation(v);
}

int64_t dg_conversations_computed(const struct dg_conversations *c) {
    int64_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += c->v[i]->s->computed;
    for (size_t i = 0; i < c->n_spare; i++)
        n += c->spare[i]->computed;
    return n;
}

size_t dg_ids_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

void dg_conversation_route(const struct dg_conversations *c, const int32_t *ids, size_t n, struct dg_route *out) {
    const struct dg_conversation *best = NULL, *empty = NULL, *lost = c->n == c->max ? victim(c) : NULL;
    int64_t best_tail = 0, lost_lcp = 0;
    *out = (struct dg_route){.how = DG_ROUTE_PREFILL, .cost = (int64_t)n};
    for (size_t i = 0; i < c->n; i++) {
        const struct dg_conversation *v = c->v[i];
        if (in_use(v))
            continue;
        int64_t lcp = (int64_t)dg_ids_common(v->s->log.v, v->s->log.n, ids, n), tail = (int64_t)v->s->log.n - lcp;
        out->best_lcp = lcp > out->best_lcp ? lcp : out->best_lcp;
        if (v == lost)
            lost_lcp = lcp;
        if (v->s->log.n == 0)
            empty = v;
        bool cheap = lcp >= DG_ROUTE_LCP_MIN && tail <= DG_ROUTE_TAIL_MAX && lcp >= dg_session_cut_floor(v->s);
        if (lcp > 0 && (tail == 0 || cheap) && (lcp > out->lcp || (lcp == out->lcp && tail < best_tail))) {
            best = v;
            best_tail = tail;
            out->lcp = lcp;
        }
    }
    if (!best && !empty && lost && lost_lcp == out->best_lcp && lost_lcp > 0 && lost_lcp >= dg_session_cut_floor(lost->s)) {
        /* it would be forgotten to make room: what it shares with the prompt costs nothing to keep */
        best = lost;
        best_tail = (int64_t)lost->s->log.n - lost_lcp;
        out->lcp = lost_lcp;
    }
    if (best)
        out->how = best_tail ? DG_ROUTE_CUT : DG_ROUTE_EXTEND;
    else
        best = empty;
    out->conv = best ? best->id : 0;
    out->cost = (int64_t)n - out->lcp;
}
