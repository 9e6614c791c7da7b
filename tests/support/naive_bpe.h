/* A second tokenizer, written to be obviously right: strings instead of ids, a general JSON library, no cuts, no queue, no hash
 * of its own. Quadratic, so for texts of up to a few thousand characters. Aborts when memory is short. */
#ifndef DG_TESTS_NAIVE_BPE_H
#define DG_TESTS_NAIVE_BPE_H

#include "core/ids.h"
#include "tokenizer/tokenizer.h"

struct naive_bpe;

/* From a tokenizer.json in memory; NULL when it is not one. */
struct naive_bpe *naive_bpe_create(const char *json, size_t n);
void naive_bpe_destroy(struct naive_bpe *b);
/* Ids of a text; control: match added tokens, but none that touches a client span. */
void naive_bpe_encode(const struct naive_bpe *b, const char *text, size_t n, bool control, const struct dg_span *client,
                      size_t n_client, struct dg_ids *out);
/* Spelling of an entry, NULL for none. */
const char *naive_bpe_piece(const struct naive_bpe *b, int32_t id);
int32_t naive_bpe_size(const struct naive_bpe *b);

#endif
