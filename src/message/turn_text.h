/* What a turn must know about the vocabulary: which ids are the form's control tokens, which tokens are white space, whether a block
 * shows anything to a reader. The turn itself knows token ids only. */
#ifndef DG_MESSAGE_TURN_TEXT_H
#define DG_MESSAGE_TURN_TEXT_H

#include "session/turn.h"
#include "tokenizer/tokenizer.h"

struct dg_turn_text {
    const struct dg_tokenizer *t;
    uint8_t *blank; /* one per entry of the model's vocabulary, 1 = white space only */
    int32_t call_open, channel_open;
};

/* vocab: the model's vocabulary, at least the tokenizer's. t is borrowed. Owner: the caller, dg_turn_text_deinit. */
enum dg_status dg_turn_text_init(struct dg_turn_text *x, const struct dg_tokenizer *t, int32_t vocab, struct dg_error *err) DG_MUST_CHECK;
void dg_turn_text_deinit(struct dg_turn_text *x);
/* Fills in the control tokens of the policy. */
void dg_turn_text_policy(const struct dg_turn_text *x, struct dg_commit_policy *p);
/* Whether n ids render as nothing: no tool call, no channel, and no visible character. */
bool dg_turn_text_shows_nothing(const struct dg_turn_text *x, const int32_t *ids, int32_t n);

#endif
