/* What is kept of a finished block: re-roll, trim, stop scan, guards and the turn's token budget.
 *
 * Pure policy over token ids (seed sections 6, 7 and 9; reference.md section 4). It knows no text: what depends on the tokenizer
 * (which ids are control tokens, which rows are white space, whether a block shows anything) is handed in. */
#ifndef DG_SAMPLER_COMMIT_H
#define DG_SAMPLER_COMMIT_H

#include "core/flags.h"
#include "core/status.h"
#include "model/config.h"

#define DG_REPEAT_MAX 64 /* identical tokens in a row that a turn may hold */

struct dg_commit_policy {
    int32_t stops[DG_STOPS_MAX];
    int32_t n_stops;
    int32_t pad, bos, vocab;
    int32_t canvas; /* the model's canvas C */
    /* control tokens, -1 when the vocabulary has none: of Gemma 4's form <eos> 1, <|turn> 105, <|tool_call> 48, <tool_call|> 49,
     * <|channel> 100 */
    int32_t eos, turn_open, call_open, call_close, channel_open;
    double trim, hard; /* p_max thresholds of the two trim tiers, 0 = off */
    int32_t retries;   /* re-rolls of a degenerate first block */
    bool ws_stop, continue_past_stop;
    int32_t repeat_max; /* longest run of one token, DG_REPEAT_MAX; 0 = any */
};

/* Where a turn stands between blocks; all zero at its start. */
struct dg_commit_turn {
    int64_t kept;        /* tokens committed so far */
    int64_t blocks;      /* blocks committed so far */
    bool call_open;      /* a tool call was begun and not closed */
    int32_t run_id, run; /* last token and how often it stands at the end in a row */
};

/* A finished block. */
struct dg_commit_block {
    const int32_t *ids;   /* n ids: the block's result */
    const float *p_max;   /* n largest probabilities of softmax(logits / T) at the last step; NULL: no trim */
    const uint8_t *blank; /* n flags, 1 = the row's token is white space only; NULL: none is. Padding need not be flagged */
    int32_t n;            /* rows: the model's canvas, or fewer in a re-roll */
    bool shows_nothing;   /* the block up to its first stop renders as nothing */
    int32_t retries;      /* re-rolls made for this block so far */
};

enum dg_turn_end {
    DG_END_NONE = 0, /* another block follows */
    DG_END_STOP,     /* a stop token */
    DG_END_BLANK,    /* ws-guard: a block of white space or padding; or a long run of padding */
    DG_END_REPEAT,   /* one token too often in a row */
    DG_END_LENGTH,   /* the token budget or the context is used up */
    DG_END_BLOCKS    /* its blocks are used up, since too many were trimmed, and neither budget nor context is */
};
/* "none", "stop", "blank", "repeat", "length", "blocks"; and the finish reason a client sees: "stop" for a stop and a blank block, "length"
 * for what was cut, "" while the turn goes on. String literals. */
const char *dg_turn_end_name(enum dg_turn_end e);
const char *dg_turn_end_finish(enum dg_turn_end e);

/* What to do with a block. */
struct dg_commit {
    int32_t reroll; /* > 0: commit nothing, run the block again on so many positions; the other fields are then 0 */
    int32_t kept;   /* first rows that are the turn's: to be output and prefilled */
    enum dg_turn_end end;
    int32_t stop_id; /* the stop token that ended the turn (row `kept`, not among the kept rows), else -1 */
    bool degenerate; /* a first block that says nothing, committed because the re-rolls are used up */
    bool trimmed;    /* row `kept` is where a trim tier cut the block */
    bool deferred;   /* a stop inside an unfinished tool call cut the block and did not end the turn */
};

/* Fills p from the model's configuration and the switches; f may be NULL (their defaults). Every control token is -1 until the
 * caller sets it. */
void dg_commit_policy_init(struct dg_commit_policy *p, const struct dg_config *cfg, const struct dg_flags *f);

bool dg_commit_is_stop(const struct dg_commit_policy *p, int32_t id);

/* A first block that says nothing: position 0 is pad, end of sequence, beginning of sequence, a stop token, the opener of a turn
 * or vocab-1, or the block shows nothing. One that begins with a tool call or a channel is not: what they hold is not shown as
 * text. */
bool dg_commit_degenerate(const struct dg_commit_policy *p, const int32_t *ids, int32_t n, bool shows_nothing);
/* Positions of the r-th re-roll, r from 1: canvas, canvas/2, canvas/4, canvas/4 and so on; at least 1. */
int32_t dg_commit_reroll_size(int32_t canvas, int32_t r);
/* First row cut by the trim, or n when none is. The region is the rows before the first stop, pad or vocab-1; in it, from row 16
 * on (n/4 when n is under 64; never row 0), the first row whose p_max is below `hard`, or below `trim` while its id equals its
 * left or right neighbour's inside the region. */
int32_t dg_commit_trim_row(const struct dg_commit_policy *p, const int32_t *ids, const float *p_max, int32_t n);
/* Whether a tool call is open after n more ids, given whether one was before. */
bool dg_commit_call_open(const int32_t *ids, int32_t n, int32_t open, int32_t close, bool was_open);

/* Blocks a turn may commit for a budget of so many tokens: twice those the tokens fill, since a trimmed block carries fewer.
 * tokens <= 0 gives 0. */
int64_t dg_commit_blocks_max(int64_t tokens, int32_t canvas);
/* Whether a whole canvas fits behind pos positions of a context of ctx: denoising needs room for all of it, whatever is kept. */
bool dg_commit_room(int64_t ctx, int64_t pos, int32_t canvas);
/* Before a block: DG_END_LENGTH when budget tokens are used up or the context has no room for a canvas at pos (the positions in the
 * cache), DG_END_BLOCKS when else the blocks for the budget are, else DG_END_NONE. budget: tokens of the turn. */
enum dg_turn_end dg_commit_next(const struct dg_commit_policy *p, const struct dg_commit_turn *t, int64_t budget, int64_t ctx,
                                int64_t pos);

/* Moves the turn on by one block that keeps n ids, without asking the policy. */
void dg_commit_advance(const struct dg_commit_policy *p, struct dg_commit_turn *t, const int32_t *ids, int32_t n);

/* Decides on one block and, unless it is to be run again, moves the turn on. budget: tokens the whole turn may hold.
 *
 * In this order: re-roll of a degenerate first block; trim; first stop among the rows left (behind the kept rows it ends the
 * turn; inside an unfinished tool call, with continue_past_stop, the block is only cut there); run of identical tokens,
 * cut at the longest allowed, or, of padding, before its first row in this block and as a blank end; budget. A stop whose row is
 * at most the budget is a stop, since nothing of the answer is missing then; what comes first in the block decides the reason.
 * ws-guard: kept rows of white space or padding only end the turn when nothing else does.
 *
 * Errors, with turn and out untouched: DG_E_ARG for an empty block, a turn without budget left, or an id outside the vocabulary.
 */
enum dg_status dg_commit_plan(const struct dg_commit_policy *p, struct dg_commit_turn *t, const struct dg_commit_block *b,
                              int64_t budget, struct dg_commit *out, struct dg_error *err) DG_MUST_CHECK;

#endif
