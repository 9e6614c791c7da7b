/* Attention on tile registers: the blocks and the order of attention.c, tiles of DG_ATT_KEYS positions.
 *
 * Keys become bf16 32 at a time and meet all queries of the block; weights of the whole tile meet the values a panel of columns at a time, so
 * that a panel stays in the first cache while the queries pass, and the sums travel to the second cache and back once a tile. Steps of 32 keys
 * that nobody in the block sees are left out: they would add zeros to sums that are never subnormal. */
#include "ops/cpu/attention.h"

#include <math.h>

#define KEYS DG_ATT_KEYS
#define STEP DG_ATT_STEP
#define GROUP DG_ATT_GROUP
#define GROUPS (DG_ROWS_BLOCK / GROUP)
#define SUMS ((int64_t)256 * 512)                      /* floats of a block's sums, padded */
#define KEY_ROW (2 * DG_ATT_HD_MAX * 2 + 64)           /* bytes of a key, both parts; an odd number of cache lines */
#define CHUNK 256                                      /* elements of a head at once: 32 keys and 32 queries of it share the first cache */

/* A thread's scratch. */
struct scratch {
    char q[SUMS * 2];                                  /* groups, packed */
    float o[SUMS];                                     /* [panels][groups][2] tiles of sums */
    char k[STEP][KEY_ROW];
    float s[GROUPS][KEYS][GROUP];
    char p[GROUPS][KEYS / STEP][2][DG_ATT_TILE];
    char v[KEYS / STEP][4][DG_ATT_TILE];
};

/* What a block needs besides. */
struct tiles {
    struct dg_att_block *b;
    const struct dg_att_kernels *k;
    struct scratch *s;
    int64_t hdp, q_bytes; /* head dimension and bytes of a packed group */
    int n_groups;
    int64_t first;        /* the tile: its first position, and the steps that somebody sees */
    int k0, k1;
    int32_t a[DG_ROWS_BLOCK], e[DG_ROWS_BLOCK]; /* each query's visible keys in it; the last query's for those missing from the last group */
};

static const uint16_t nothing[DG_ATT_HD_MAX];

bool dg_att_tiles_here(const struct dg_cpu *c, const struct dg_plane *q, const struct dg_kv_layer *kv) {
    return c->k.att && c->rows.tiles && q->dtype == DG_BF16 && kv->dtype == DG_F16 && kv->hd <= DG_ATT_HD_MAX;
}

int64_t dg_att_tiles_scratch(void) { return (int64_t)sizeof(struct scratch); }

static void begin(struct tiles *t, struct dg_att_block *b, void *scratch) {
    *t = (struct tiles){.b = b, .k = b->j->c->k.att, .s = scratch};
    const struct dg_plane *q = b->j->q;
    t->hdp = (b->j->kv->hd + STEP - 1) / STEP * STEP;
    t->q_bytes = t->hdp / STEP * DG_ATT_TILE;
    t->n_groups = (b->nq + GROUP - 1) / GROUP;
    for (int g = 0; g < t->n_groups; g++) {
        const void *row[GROUP];
        int n = b->nq - g * GROUP < GROUP ? b->nq - g * GROUP : GROUP;
        for (int i = 0; i < n; i++)
            row[i] = (const uint16_t *)q->data + dg_att_at(b, q, g * GROUP + i);
        t->k->queries(row, n, b->j->kv->hd, t->s->q + g * t->q_bytes);
    }
}

static void next_tile(struct tiles *t, int64_t first) {
    const struct dg_att_block *b = t->b;
    t->first = first;
    t->k0 = dg_att_in_tile(b->lo, first, KEYS) / STEP * STEP;
    t->k1 = (dg_att_in_tile(b->hi, first, KEYS) + STEP - 1) / STEP * STEP;
    for (int i = 0; i < t->n_groups * GROUP; i++) {
        int like = i < b->nq ? i : b->nq - 1;
        t->a[i] = dg_att_in_tile(b->from[like], first, KEYS);
        t->e[i] = dg_att_in_tile(b->to[like], first, KEYS);
    }
}

/* A position's head in a cache; zeros for one that nobody sees, for nobody may have written it. */
static const uint16_t *head_at(const struct tiles *t, const void *base, int64_t pos) {
    const struct dg_att_block *b = t->b;
    return pos < b->lo || pos >= b->hi ? nothing : (const uint16_t *)dg_rows_head(b->j->kv, base, pos, b->kvh);
}

/* Scores of the tile's keys; meanwhile the values of this tile (next_v) or the keys of the next one are fetched. */
static void score(const struct tiles *t, bool next_v) {
    const struct dg_att_block *b = t->b;
    const struct dg_kv_layer *kv = b->j->kv;
    int64_t low = t->hdp * (int64_t)sizeof(uint16_t);
    int passes = (int)((t->hdp + CHUNK - 1) / CHUNK) * ((t->n_groups + 1) / 2);
    for (int at = t->k0; at < t->k1; at += STEP) {
        int pass = 0, asked = 0;
        for (int i = 0; i < STEP; i++)
            t->k->key(head_at(t, kv->k, t->first + at + i), kv->hd, t->hdp, (uint16_t *)(void *)t->s->k[i]);
        for (int64_t d = 0; d < t->hdp; d += CHUNK)
            for (int g = 0; g < t->n_groups; g += 2) {
                int n_q = t->n_groups - g < 2 ? 1 : 2, due = STEP * ++pass / passes;
                const char *q = t->s->q + g * t->q_bytes + d / STEP * DG_ATT_TILE;
                float *s = t->s->s[g][at];
                struct dg_att_scores run = {.k = t->s->k[0] + d * (int64_t)sizeof(uint16_t),
                                            .k_row = KEY_ROW,
                                            .k_low = low,
                                            .q = {q, q + (n_q - 1) * t->q_bytes},
                                            .s = {s, s + (n_q - 1) * KEYS * GROUP},
                                            .n_q = n_q,
                                            .steps = (t->hdp - d < CHUNK ? t->hdp - d : CHUNK) / STEP,
                                            .add = d > 0};
                dg_att_ask_for(b, next_v ? kv->v : kv->k, t->first + (next_v ? 0 : KEYS), at + asked, at + due);
                asked = due;
                t->k->scores(&run);
            }
    }
}

/* Adds the tile's weighted values, a panel of columns at a time, while the next tile's keys are fetched. */
static void weigh(const struct tiles *t, bool add) {
    const struct dg_att_block *b = t->b;
    const struct dg_kv_layer *kv = b->j->kv;
    const uint16_t *row[KEYS];
    int64_t steps = (t->k1 - t->k0) / STEP;
    int panels = (int)(t->hdp / STEP), asked = 0;
    for (int i = 0; i < t->k1 - t->k0; i++)
        row[i] = head_at(t, kv->v, t->first + t->k0 + i);
    for (int c = 0; c < panels; c++) {
        int due = KEYS * (c + 1) / panels;
        dg_att_ask_for(b, kv->k, t->first + KEYS, asked, due);
        asked = due;
        t->k->values(row, (int64_t)c * STEP, kv->hd, steps, t->s->v);
        for (int g = 0; g < t->n_groups; g += 2) {
            int n_q = t->n_groups - g < 2 ? 1 : 2;
            const char *p = t->s->p[g][t->k0 / STEP][0];
            float *o = t->s->o + ((int64_t)c * t->n_groups + g) * 2 * DG_ATT_SUMS;
            struct dg_att_weigh run = {.p = {p, p + (n_q - 1) * (int64_t)sizeof t->s->p[0]},
                                       .v = t->s->v[0][0],
                                       .o = {o, o + (n_q - 1) * 2 * DG_ATT_SUMS},
                                       .n_q = n_q,
                                       .steps = steps,
                                       .add = add};
            t->k->weigh(&run);
        }
    }
}

void dg_att_tiles_dense(struct dg_att_block *b, void *scratch) {
    struct tiles t;
    begin(&t, b, scratch);
    int64_t stride = (int64_t)t.n_groups * 2 * DG_ATT_SUMS;
    for (int i = b->nq; i < t.n_groups * GROUP; i++) {
        b->max[i] = -INFINITY;
        b->sum[i] = 0;
    }
    bool add = false;
    for (int64_t first = b->lo / KEYS * KEYS; first < b->hi; first += KEYS, add = true) {
        next_tile(&t, first);
        score(&t, true);
        for (int g = 0; g < t.n_groups; g++) {
            int i = g * GROUP;
            bool moved = t.k->softmax(t.s->s[g][0], t.k0, t.k1, t.a + i, t.e + i, b->max + i, b->sum + i, b->alpha + i, t.s->p[g]);
            if (moved && add)
                t.k->rescale(t.s->o + (int64_t)g * 2 * DG_ATT_SUMS, stride, t.hdp / STEP, b->alpha + i);
        }
        weigh(&t, add);
    }
    const struct dg_plane *y = b->j->y;
    for (int32_t i = 0; i < b->nq; i++) {
        float out[DG_ATT_HD_MAX];
        t.k->take(t.s->o + (int64_t)(i / GROUP) * 2 * DG_ATT_SUMS, stride, i % GROUP, b->j->kv->hd, 1.0f / b->sum[i], out);
        dg_rows_store(&b->j->c->k.vec, out, b->j->kv->hd, y->data, y->dtype, dg_att_at(b, y, i));
    }
}

void dg_att_tiles_collect(struct dg_att_block *b, void *scratch, const int32_t *keys) {
    struct tiles t;
    begin(&t, b, scratch);
    for (int64_t first = b->lo / KEYS * KEYS; first < b->hi; first += KEYS) {
        next_tile(&t, first);
        score(&t, false);
        for (int g = 0; g < t.n_groups; g++) {
            int i = g * GROUP, n = b->nq - i < GROUP ? b->nq - i : GROUP;
            for (int x = i; x < i + n; x++)
                if (b->found[x].n + KEYS > b->j->room)
                    dg_att_keep_best(&b->found[x], keys[x]);
            t.k->collect(t.s->s[g][0], t.k0, t.k1, t.a + i, t.e + i, (int32_t)first, b->found + i, n);
        }
    }
}
