/* The merge loop on one stretch of text. */
#ifndef DG_TOKENIZER_MERGE_H
#define DG_TOKENIZER_MERGE_H

#include "tokenizer/tables.h"

/* One symbol of a long stretch, in a list linked by index. */
struct dg_tok_symbol {
    int32_t id;
    uint32_t prev, next;
    uint32_t rank; /* of the merge with the next one; DG_TOK_NO_RANK when there is none, or when this one was merged away */
    int32_t product;
};

/* Work space that grows with the longest stretch seen. */
struct dg_tok_merger {
    const struct dg_tokenizer *t;
    struct dg_tok_symbol *symbols; /* cap of them */
    uint64_t *keys;                /* 3 * cap of them: rank << 32 | index of the left symbol */
    size_t cap;
};

/* t is borrowed. Allocates nothing. */
void dg_tok_merger_init(struct dg_tok_merger *m, const struct dg_tokenizer *t);
void dg_tok_merger_deinit(struct dg_tok_merger *m);
/* Appends the ids of n bytes of valid UTF-8. Errors: DG_E_NOMEM, DG_E_LIMIT; out may then hold part of them. */
enum dg_status dg_tok_merge(struct dg_tok_merger *m, const char *s, size_t n, struct dg_ids *out) DG_MUST_CHECK;

#endif
