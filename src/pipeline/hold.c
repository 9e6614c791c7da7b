#include "pipeline/hold.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

void dg_held_deinit(struct dg_held *h) {
    dg_free(h->v);
    dg_ids_deinit(&h->ids);
    dg_ids_deinit(&h->turn);
    memset(h, 0, sizeof *h);
}

void dg_held_clear(struct dg_held *h) {
    h->n = h->ids.n = h->turn.n = 0;
    memset(&h->event, 0, sizeof h->event);
    memset(&h->answer, 0, sizeof h->answer);
    h->failed = false;
}

static bool hold_block(struct dg_held *h, const struct dg_event *e) {
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 16;
        struct dg_held_block *v = dg_realloc(h->v, h->n, cap, sizeof *v);
        if (!v)
            return false;
        h->v = v;
        h->cap = cap;
    }
    h->v[h->n++] = (struct dg_held_block){*e, *e->block, h->ids.n};
    return dg_ids_add(&h->ids, e->block->ids, (size_t)e->block->kept) == DG_OK;
}

void dg_held_event(void *ctx, const struct dg_event *e) {
    struct dg_held *h = ctx;
    if (e->kind == DG_EV_BLOCK)
        h->failed = !hold_block(h, e) || h->failed;
    else if (e->kind == DG_EV_ANSWER) {
        h->event = *e;
        h->answer = *e->answer;
        snprintf(h->error, sizeof h->error, "%s", e->answer->error);
        h->failed = dg_ids_add(&h->turn, e->answer->ids, (size_t)e->answer->n) != DG_OK || h->failed;
        if (h->failed && h->answer.status == DG_OK) {
            h->answer.status = DG_E_NOMEM;
            snprintf(h->error, sizeof h->error, "no memory to hold a turn back");
        }
        h->answer.error = h->error;
        h->answer.ids = h->turn.v;
        h->event.answer = &h->answer;
    } else
        h->emit(h->ctx, e);
}

void dg_held_release(struct dg_held *h, size_t n) {
    for (size_t i = 0; i < h->n; i++) {
        struct dg_held_block *b = &h->v[i];
        size_t kept = (size_t)b->block.kept;
        if (b->at + kept > n) {
            if (b->at >= n && kept)
                break;
            kept = n - b->at;
        }
        b->block.ids = h->ids.v + b->at;
        b->block.kept = (int32_t)kept;
        b->event.block = &b->block;
        h->emit(h->ctx, &b->event);
    }
}

void dg_held_answer(struct dg_held *h) { h->emit(h->ctx, &h->event); }
