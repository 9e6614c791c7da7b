/* Block events kept back until it is known that their turn stands. */
#ifndef DG_PIPELINE_HOLD_H
#define DG_PIPELINE_HOLD_H

#include "pipeline/ops.h"

struct dg_held_block {
    struct dg_event event;
    struct dg_block_event block;
    size_t at; /* its ids in `ids` */
};

/* One Generate below: step and prefill events pass, blocks and the answer stay here. Zeroed to begin with. */
struct dg_held {
    dg_event_fn *emit; /* the client's */
    void *ctx;
    struct dg_held_block *v;
    size_t n, cap;
    struct dg_ids ids;        /* of the blocks */
    struct dg_ids turn;       /* of the answer */
    struct dg_event event;    /* the answer's */
    struct dg_answer answer;  /* ids and error are the holder's */
    char error[512];
    bool failed; /* out of memory */
};

void dg_held_deinit(struct dg_held *h);
/* Empties it for the next Generate. */
void dg_held_clear(struct dg_held *h);
/* An event function; ctx is the struct dg_held. */
void dg_held_event(void *ctx, const struct dg_event *e);
/* Hands the blocks on, of the turn's first n ids only. */
void dg_held_release(struct dg_held *h, size_t n);
/* Hands the answer on. */
void dg_held_answer(struct dg_held *h);

#endif
