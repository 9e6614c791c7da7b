/* Between the two roads of attention: on vectors of f32 (attention.c), and on tile registers (attention_tiles.c). */
#ifndef DG_OPS_CPU_ATTENTION_H
#define DG_OPS_CPU_ATTENTION_H

#include "ops/cpu/rows.h"

#include <stdatomic.h>

struct dg_att_job {
    const struct dg_cpu *c;
    const struct dg_plane *q;
    int32_t heads;
    const struct dg_batch *batch;
    const struct dg_kv_layer *kv;
    struct dg_plane *y;
    int32_t row0, row1;    /* rows of the batch that this run computes */
    bool topk, tiles;
    int32_t group, hdp;    /* query heads a kv head; head dimension, padded */
    int32_t block_heads, block_rows;
    atomic_llong next;     /* block nobody has taken */
    int32_t room;          /* candidates a query of a top-k may hold between two selections */
};

/* One block in work. */
struct dg_att_block {
    const struct dg_att_job *j;
    int32_t row, rows, head, heads, kvh; /* first row, first query head, of kv head kvh */
    int32_t nq;                          /* rows * heads; query i is row + i / heads, head + i % heads */
    int64_t lo, hi;                      /* positions that some row sees */
    float *q, *o, *k, *v, *s;
    float max[DG_ROWS_BLOCK], sum[DG_ROWS_BLOCK], alpha[DG_ROWS_BLOCK];
    int64_t from[DG_ROWS_BLOCK], to[DG_ROWS_BLOCK]; /* positions that a query sees */
    struct dg_vec_found found[DG_ROWS_BLOCK];
};

/* Element 0 of query i in a plane with the columns of q or of y. */
static inline int64_t dg_att_at(const struct dg_att_block *b, const struct dg_plane *p, int32_t i) {
    return (b->row + i / b->heads) * p->ld + (int64_t)(b->head + i % b->heads) * b->j->kv->hd;
}

/* Where a position lies in a tile of n that begins at `first`, or the end beside which it lies. */
static inline int dg_att_in_tile(int64_t pos, int64_t first, int n) { return pos <= first ? 0 : pos >= first + n ? n : (int)(pos - first); }

/* Rows [t0, t1) of the tile at `first` are on their way from memory: a cache's rows lie apart, and no prefetcher of the hardware follows. */
void dg_att_ask_for(const struct dg_att_block *b, const void *base, int64_t first, int t0, int t1);
/* Leaves the k best, in position order; of equal ones the earlier. Later keys must then be better than the worst of them. */
void dg_att_keep_best(struct dg_vec_found *f, int32_t k);

/* Can this layer go on tiles? bf16 planes and an f16 cache at a level that has the kernels; sliding, dense and top-k alike. */
bool dg_att_tiles_here(const struct dg_cpu *c, const struct dg_plane *q, const struct dg_kv_layer *kv);
/* Bytes of a thread's scratch for that. */
int64_t dg_att_tiles_scratch(void);
/* The block's rows of y; for the scores' candidates, those of keys[i] keys at least, up to j->room. The thread has begun with tiles. */
void dg_att_tiles_dense(struct dg_att_block *b, void *scratch);
void dg_att_tiles_collect(struct dg_att_block *b, void *scratch, const int32_t *keys);

#endif
