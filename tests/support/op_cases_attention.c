/* Attention and its caches: cases of the op table. */
#include "ops/kv_q8.h"
#include "support/op_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_DIM 512
#define KV_SLOTS 1024 /* of a ring */

struct kv_case {
    int hd, heads, kv_heads, n, live;
    int64_t pos0;
    bool causal, ring, has_v;
    int window;
    enum dg_dtype kv;
    int topk;
    int64_t ring_from; /* 0 = the window */
};

static const struct kv_case kv_cases[] = {
    {64, 4, 2, 19, 19, 0, true, true, true, 64, DG_F32, 0, 0},
    {64, 4, 2, 70, 70, 300, true, true, true, 64, DG_F16, 0, 0},
    {128, 4, 1, 40, 40, 77, false, false, false, 0, DG_F32, 0, 0},
    {128, 4, 1, 9, 7, 100, false, false, false, 0, DG_F16, 0, 0},
    {256, 16, 8, 33, 33, 1020, true, true, true, 200, DG_F16, 0, 0},
    {256, 16, 8, 20, 20, 1000, false, true, true, 64, DG_F32, 0, 0},
    {512, 16, 2, 35, 35, 130, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 17, 17, 500, true, false, false, 0, DG_F32, 0, 0},
    {10, 2, 1, 5, 5, 3, true, false, true, 0, DG_F32, 0, 0},
    {64, 4, 4, 1, 1, 900, true, true, true, 1, DG_F16, 0, 0},
    {64, 8, 2, 130, 130, 40, false, true, true, 64, DG_F16, 0, 0},
    {128, 2, 2, 40, 40, 4070, true, false, true, 0, DG_F16, 0, 0},
    {192, 2, 1, 11, 11, 4090, false, false, false, 0, DG_F16, 0, 0},
    {64, 4, 2, 300, 300, 4000, true, true, true, 200, DG_F16, 0, 0},
    {64, 4, 2, 30, 30, 2000, false, true, true, 64, DG_F16, 0, 1100},
    {128, 4, 1, 12, 12, 700, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0},
    {64, 2, 1, 9, 9, 3000, false, false, false, 0, DG_F32, 7, 0},
    {512, 4, 2, 5, 4, 90, false, false, false, 0, DG_F16, 33, 0},
    /* around a tile of 64 positions, and windows that end beside one */
    {64, 2, 1, 3, 3, 62, true, true, true, 63, DG_F32, 0, 0},
    {64, 2, 1, 3, 3, 63, false, true, true, 65, DG_F32, 0, 0},
    {64, 6, 2, 130, 130, 61, true, true, true, 66, DG_F16, 0, 0},
    {32, 16, 1, 66, 65, 128, false, false, true, 0, DG_F32, 0, 0},
    {16, 3, 3, 7, 7, 191, true, false, true, 0, DG_F16, 0, 0},
    {80, 10, 2, 20, 20, 64, true, false, false, 0, DG_F16, 0, 0},
    /* the ring wraps inside the batch, and inside a window */
    {64, 2, 2, 90, 90, 2000, true, true, true, 100, DG_F32, 0, 0},
    {64, 4, 1, 12, 10, 1023, false, true, true, 64, DG_F16, 0, 0},
    /* rows that see fewer keys than they may keep beside rows that see more; a few keys of many */
    {64, 8, 1, 60, 60, 30, true, false, true, 0, DG_F16, DG_TOPK_DYN, 0},
    {128, 2, 1, 6, 6, 4500, false, false, true, 0, DG_F16, 1, 0},
    {64, 4, 2, 21, 21, 4000, true, false, true, 0, DG_F32, 300, 0},
    /* the head dimensions of kernels of their own: tiles of 64 keys, window edges, rings that wrap, one row, more than one part */
    {256, 2, 1, 1, 1, 0, true, true, true, 512, DG_F16, 0, 0},
    {256, 2, 1, 5, 5, 62, true, true, true, 64, DG_F16, 0, 0},
    {256, 4, 2, 66, 66, 127, true, true, true, 65, DG_F16, 0, 0},
    {256, 4, 4, 12, 10, 1023, false, true, true, 64, DG_F16, 0, 0},
    {256, 8, 2, 70, 69, 2040, false, true, true, 128, DG_F16, 0, 1900},
    {256, 16, 8, 90, 90, 990, true, true, true, 600, DG_F16, 0, 0},
    {256, 6, 1, 40, 40, 4100, true, false, true, 0, DG_F16, 0, 0},
    {256, 16, 8, 256, 256, 700, false, true, true, 700, DG_F16, 0, 0},
    {256, 16, 8, 300, 300, 3000, true, true, true, 700, DG_F16, 0, 0},
    /* a canvas over 256 dimensions: fewer tiles of keys than share them, from each of four places on, a number of them that four does not divide;
     * every number of heads to a kv head, an odd number of kv heads; rings that wrap inside; no window, in a cache that ends within a tile */
    {256, 2, 1, 9, 7, 0, false, true, true, 512, DG_F16, 0, 0},
    {256, 3, 1, 50, 47, 150, false, true, true, 300, DG_F16, 0, 0},
    {256, 4, 2, 20, 20, 200, false, true, true, 70, DG_F16, 0, 0},
    {256, 4, 2, 20, 17, 1010, false, true, true, 30, DG_F16, 0, 0},
    {256, 5, 1, 40, 40, 1100, false, true, true, 500, DG_F16, 0, 0},
    {256, 16, 8, 100, 96, 1900, false, true, true, 700, DG_F16, 0, 0},
    {256, 6, 3, 30, 27, 640, false, true, true, 400, DG_F16, 0, 0},
    {256, 4, 2, 24, 21, 60, false, false, false, 0, DG_F16, 0, 0},
    {256, 12, 3, 33, 33, 2500, false, false, true, 0, DG_F16, 0, 0},
    {512, 2, 1, 1, 1, 63, true, false, false, 0, DG_F16, 0, 0},
    {512, 3, 1, 7, 7, 0, true, false, true, 0, DG_F16, 0, 0},
    {512, 8, 2, 33, 33, 500, true, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 20, 18, 4096, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 70, 70, 2040, true, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 256, 256, 512, false, false, false, 0, DG_F16, 0, 0},
    {512, 2, 2, 9, 9, 1000, true, true, true, 100, DG_F16, 0, 0},
    /* a canvas over 512 dimensions: ends at, before and behind a tile of keys and a part; even and odd numbers of tiles of 64 (row, head) pairs, and
     * other numbers without the padding rows; every number of heads to a kv head; windows, with rings that wrap inside */
    {512, 16, 2, 16, 16, 48, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 16, 13, 51, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 17, 16, 113, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 24, 9, 118, false, false, true, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 1, 319, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 1, 1023, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 12, 3, 1024, false, false, false, 0, DG_F16, 0, 0},
    {512, 16, 2, 9, 8, 1025, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 32, 31, 1249, false, false, false, 0, DG_F16, 0, 0},
    {512, 4, 4, 128, 127, 700, false, false, true, 0, DG_F16, 0, 0},
    {512, 6, 2, 43, 40, 1150, false, false, false, 0, DG_F16, 0, 0},
    {512, 5, 1, 26, 25, 2047, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 1, 256, 200, 1100, false, false, false, 0, DG_F16, 0, 0},
    {512, 6, 3, 30, 30, 900, false, false, false, 0, DG_F16, 0, 0},
    {512, 8, 2, 32, 32, 1000, false, true, true, 100, DG_F16, 0, 0},
    {512, 8, 2, 32, 30, 2030, false, true, true, 128, DG_F16, 0, 1950},
    /* caches in eight bits */
    {64, 4, 2, 70, 69, 300, true, true, true, 64, DG_Q8, 0, 0},
    {512, 16, 2, 9, 9, 130, false, false, false, 0, DG_Q8, 0, 0},
    {10, 2, 1, 5, 5, 3, true, false, true, 0, DG_Q8, 0, 0},
    {128, 4, 2, 6, 6, 4400, false, false, true, 0, DG_Q8, DG_TOPK_DYN, 0},
};

/* Full layers that attend to the highest scores; key t is key t - twins where that is not 0. Those with one kv head or few positions are also
 * for the emulator, which multiplies whole tiles. */
static const struct {
    struct kv_case c;
    int twins;
} top_cases[] = {
    /* around the first visible positions, where all are kept; a tile of 128 positions; more groups of 32 than keys kept */
    {{512, 16, 2, 12, 12, 0, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 16, 2, 9, 8, 60, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 16, 2, 6, 6, 124, true, false, true, 0, DG_F16, 31, 0}, 0},
    {{512, 6, 1, 3, 2, 2046, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 5, 5, 2045, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 4, 3, 4400, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 6, 2, 4, 4, 3001, true, false, true, 0, DG_F16, 1, 0}, 0},
    /* so many kept that the list of candidates does not hold them */
    {{512, 4, 1, 3, 3, 4300, true, false, false, 0, DG_F16, 512, 0}, 0},
    {{192, 4, 1, 3, 3, 3000, true, false, true, 0, DG_F16, 600, 0}, 0},
    {{256, 4, 2, 9, 7, 2500, false, false, true, 0, DG_F16, 100, 0}, 0},
    /* equal scores: all of them, a third, and in pairs far apart */
    {{512, 4, 1, 4, 4, 2300, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 1},
    {{512, 4, 1, 3, 2, 4500, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 3},
    {{512, 8, 2, 4, 4, 2900, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 1000},
    {{128, 4, 2, 5, 5, 150, true, false, true, 0, DG_F16, 63, 0}, 40},
    {{64, 2, 1, 4, 4, 1000, true, false, true, 0, DG_F32, 100, 0}, 7},
    /* many rows: more than one tile of a kv head */
    {{512, 4, 2, 300, 300, 2500, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 130, 124, 3900, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 900},
    {{512, 16, 2, 130, 130, 50, true, false, false, 0, DG_F16, 64, 0}, 0},
    /* so many that a block has several tiles of keys, or all of them */
    {{512, 16, 2, 270, 266, 2400, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 16, 2, 540, 540, 0, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
};

/* Cases above in as few rows and heads as show the same, for an emulated processor. */
static const struct kv_case kv_emulated[] = {
    {256, 4, 2, 13, 13, 1020, true, true, true, 200, DG_F16, 0, 0},
    {256, 4, 2, 20, 20, 1000, false, true, true, 64, DG_F32, 0, 0},
    {512, 8, 1, 7, 7, 130, false, false, false, 0, DG_F16, 0, 0},
    {128, 1, 1, 7, 7, 4092, true, false, true, 0, DG_F16, 0, 0},
    {192, 1, 1, 4, 4, 4094, false, false, false, 0, DG_F16, 0, 0},
    {64, 2, 1, 21, 21, 2000, false, true, true, 64, DG_F16, 0, 1100},
    {128, 2, 1, 3, 3, 4500, false, false, true, 0, DG_F16, 1, 0},
    {64, 2, 1, 7, 7, 4000, true, false, true, 0, DG_F32, 300, 0},
    {256, 2, 2, 35, 35, 127, true, true, true, 65, DG_F16, 0, 0},
    {256, 4, 1, 17, 16, 2040, false, true, true, 128, DG_F16, 0, 1900},
    {512, 8, 1, 5, 5, 130, false, false, false, 0, DG_Q8, 0, 0},
    {128, 2, 1, 3, 3, 4400, false, false, true, 0, DG_Q8, DG_TOPK_DYN, 0},
};

/* Whole caches that end within the tile of keys that the last row sees, so many positions behind that row: a tile at their end is read in part. */
static const struct {
    struct kv_case c;
    int64_t room;
} end_cases[] = {
    {{256, 4, 2, 9, 9, 92, true, false, true, 0, DG_F16, 0, 0}, 0},
    {{256, 4, 2, 11, 9, 130, false, false, true, 0, DG_F16, 0, 0}, 0},
    {{512, 4, 2, 9, 9, 67, true, false, false, 0, DG_F16, 0, 0}, 0},
    {{512, 8, 2, 5, 4, 60, false, false, false, 0, DG_F16, 0, 0}, 1},
    {{512, 4, 1, 3, 3, 127, false, false, false, 0, DG_F16, 64, 0}, 0},
    {{256, 16, 8, 130, 130, 999, true, false, true, 0, DG_F16, 0, 0}, 0},
    {{256, 16, 8, 100, 91, 1230, false, false, true, 0, DG_F16, 0, 0}, 0},
    {{512, 16, 2, 70, 70, 1011, true, false, false, 0, DG_F16, 0, 0}, 0},
    {{512, 16, 2, 90, 87, 900, false, false, false, 0, DG_F16, 0, 0}, 0},
    {{512, 16, 2, 90, 90, 934, false, false, false, 0, DG_F16, 0, 0}, 1},
    {{512, 16, 2, 40, 37, 2500, false, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 0},
    {{512, 8, 2, 33, 33, 3000, true, false, false, 0, DG_F16, DG_TOPK_DYN, 0}, 5},
};

/* A value of a cache as stored. */
static double kv_value(const struct dg_kv_layer *kv, const unsigned char *raw, int64_t slot, int32_t h, int d) {
    const unsigned char *head = raw + (size_t)(slot * kv->kv_heads + h) * dg_kv_head_bytes(kv->dtype, kv->hd);
    if (kv->dtype != DG_Q8)
        return op_get(head, kv->dtype, d);
    float scale;
    memcpy(&scale, head, sizeof scale);
    return (double)scale * ((const signed char *)head)[sizeof scale + (size_t)d];
}

/* How many positions a whole cache has behind the case's last row. */
static int64_t usual_room(const struct op_run *r, const struct kv_case *c) { return r->c->small ? 37 : KV_FULL - c->pos0 - c->n; }

/* A cache whose positions [0, filled) hold values and all others NaN. val: [slots][kv_heads][hd] or NULL. twins: of a whole cache, key t is
 * key t - twins; 0 = all differ. */
static struct dg_kv_layer make_kv(struct op_run *r, const struct kv_case *c, int64_t room, int64_t filled, int twins, double **k, double **v) {
    int64_t slots = c->ring ? KV_SLOTS : c->pos0 + c->n + room;
    size_t heads = (size_t)slots * (size_t)c->kv_heads, bytes = heads * dg_kv_head_bytes(c->kv, c->hd);
    struct dg_kv_layer kv = {NULL, NULL, c->kv, c->kv_heads, c->hd, slots, c->ring, c->window};
    double **val[2] = {k, v};
    for (int which = 0; which < 2; which++) {
        double *d = op_memory(r, heads * (size_t)c->hd * sizeof *d);
        unsigned char *raw = op_memory(r, bytes);
        memset(raw, 0xff, bytes);
        int64_t from = c->ring && filled > KV_SLOTS ? filled - KV_SLOTS : 0;
        for (int64_t i = from * c->kv_heads; i < filled * c->kv_heads; i++) {
            int64_t slot = dg_kv_slot(&kv, i / c->kv_heads), at = slot * c->kv_heads + i % c->kv_heads;
            unsigned char *head = raw + (size_t)at * dg_kv_head_bytes(c->kv, c->hd);
            float x[HEAD_DIM];
            for (int e = 0; e < c->hd; e++) {
                double value = op_normal(r) * (which ? 1 : 0.4);
                x[e] = (float)value;
                if (c->kv != DG_Q8)
                    op_put(head, c->kv, e, value);
            }
            if (c->kv == DG_Q8)
                dg_kv_q8_store(x, c->hd, head);
            if (twins && !which && slot >= twins)
                memcpy(head, head - (size_t)(twins * c->kv_heads) * dg_kv_head_bytes(c->kv, c->hd), dg_kv_head_bytes(c->kv, c->hd));
            for (int e = 0; e < c->hd; e++)
                d[at * c->hd + e] = kv_value(&kv, raw, slot, (int32_t)(i % c->kv_heads), e);
        }
        *val[which] = d;
        *(which ? &kv.v : &kv.k) = op_upload(r, raw, bytes);
    }
    return kv;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Drops all but the k highest scores, of equal ones the first. Returns the weight of those so near the edge, and not equal to it, that rounding
 * by `slack` may decide about them. */
static double keep_top(double *s, int64_t n, int64_t k, double slack, double max) {
    if (k >= n)
        return 0;
    double *tmp = malloc((size_t)n * sizeof *tmp), least, near = 0;
    if (!tmp)
        abort();
    memcpy(tmp, s, (size_t)n * sizeof *tmp);
    qsort(tmp, (size_t)n, sizeof *tmp, rising);
    least = tmp[n - k];
    bool decided = tmp[n - k] - tmp[n - k - 1] > slack, all_equal = true;
    int64_t equal = 0;
    free(tmp);
    for (int64_t i = 0; i < n; i++) {
        if (fabs(s[i] - least) <= slack) {
            near += exp(s[i] - max);
            all_equal &= s[i] >= least && s[i] <= least;
        }
        equal += s[i] > least; /* at first those that leave no room for an equal one */
    }
    for (int64_t i = 0; i < n; i++) {
        bool is = s[i] >= least && s[i] <= least, kept = s[i] > least || (is && equal < k);
        equal += is;
        s[i] = kept ? s[i] : -INFINITY;
    }
    return decided || all_equal ? 0 : near;
}

/* The rows of a case from one on, computed alone: a causal row must not notice the others; those of a canvas see the same keys, are at another place
 * of their tile, and have no padding rows behind them. */
static void part_is_same(struct op_run *r, const struct kv_case *c, const struct dg_batch *b, const struct dg_kv_layer *kv, const struct op_plane *q,
                         const struct op_plane *y) {
    int from = c->live <= 2 ? 0 : c->causal ? c->live / 2 : c->live / 3 | 1;
    if (!from && (c->causal || c->n == c->live))
        return;
    struct dg_batch tail = {c->live - from, c->live - from, c->pos0 + from, c->causal, -1, c->topk};
    int64_t hi;
    if (!c->causal)
        dg_batch_visible(b, kv, 0, &tail.ring_from, &hi);
    struct dg_plane part = op_rows(q, from, tail.n);
    struct op_plane again = op_output(r, tail.n, c->heads * c->hd, r->c->be->ops->act);
    r->c->be->ops->attention(r->c->be, &part, c->heads, &tail, kv, &again.p);
    op_fetch(r, &again);
    op_expect_same(r, y, from, &again, 0, tail.n);
}

/* Products of a case, times the head dimension. */
static int64_t products(const struct kv_case *c) {
    int64_t keys = c->n + (c->window && !c->ring_from ? c->window : c->ring_from ? c->pos0 - c->ring_from : c->pos0);
    return keys * c->n * c->heads * c->hd;
}

/* Of a case that are computed in double; of larger ones every so many rows, an odd number, so that each place in a tile is met. */
#define PRODUCTS 600000000

/* room: of a whole cache behind the last row. */
static void one_attention(struct op_run *r, const struct kv_case *c, int64_t room, int twins) {
    const struct dg_ops *op = r->c->be->ops;
    double *k, *v;
    int64_t end = c->pos0 + c->live, row = (int64_t)c->kv_heads * c->hd;
    struct dg_kv_layer kv = make_kv(r, c, room, end, twins, &k, &v);
    struct dg_batch b = {c->n, c->live, c->pos0, c->causal, c->ring_from ? c->ring_from : -1, c->topk};
    struct op_plane q = op_input(r, c->n, c->heads * c->hd + 24, op->act, 0.4), y = op_output(r, c->n, c->heads * c->hd, op->act);
    for (int i = c->live; c->topk == 0 && i < c->n; i++) /* what padding rows hold reaches no other */
        for (int d = 0; d < q.p.cols; d++)
            op_put(q.raw, op->act, (i + 1) * q.p.ld + d, NAN);
    op_send(r, &q);
    op->attention(r->c->be, &q.p, c->heads, &b, &kv, &y.p);
    op_fetch(r, &y);
    double *s = op_memory(r, (size_t)(end + 1) * sizeof *s);
    int every = (int)(products(c) / PRODUCTS) | 1;
    for (int i = (c->live - 1) % every; op_checks(r) && i < c->live; i += every)
        for (int h = 0; h < c->heads; h++) {
            int64_t lo, hi, kvh = h / (c->heads / c->kv_heads);
            const double *qr = q.v + i * q.p.cols + h * c->hd;
            double max = -INFINITY, sum = 0, ds = 0;
            dg_batch_visible(&b, &kv, i, &lo, &hi);
            for (int64_t t = lo; t < hi; t++) {
                const double *kr = k + dg_kv_slot(&kv, t) * row + kvh * c->hd;
                double mag = 0;
                s[t] = 0;
                for (int d = 0; d < c->hd; d++) {
                    s[t] += qr[d] * kr[d];
                    mag += fabs(qr[d] * kr[d]);
                }
                ds = fmax(ds, mag * sum_bound(c->hd));
                max = fmax(max, s[t]);
            }
            /* an edge of top-k within rounding of the next score may fall either way: such rows get the dropped weight as slack */
            double edge = c->topk ? keep_top(s + lo, hi - lo, dg_batch_keys(&b, hi - lo), 2 * ds, max) : 0;
            for (int64_t t = lo; t < hi; t++)
                sum += s[t] = exp(s[t] - max);
            for (int d = 0; d < c->hd; d++) {
                double want = 0, mag = 0;
                for (int64_t t = lo; t < hi; t++) {
                    double vt = v[dg_kv_slot(&kv, t) * row + kvh * c->hd + d];
                    want += s[t] / sum * vt;
                    mag += s[t] / sum * fabs(vt);
                }
                op_expect(r, &y, i, h * c->hd + d, want,
                          mag * (2.5 * ds + 2 * (double)(hi - lo + 48) * U + 2 * r->c->prob_round) + act_round(r) * fabs(want) +
                              8 * edge / sum + 1e-37 + (r->c->prob_round > 0 ? 5 * (double)(hi - lo) * 0x1p-25 / sum : 0));
            }
        }
    part_is_same(r, c, &b, &kv, &q, &y);
    op_done(r, "hd=%d heads=%d/%d n=%d pos0=%lld slots=%lld window=%d top %d twins %d %s %s, rows %s", c->hd, c->heads, c->kv_heads, c->n,
            (long long)c->pos0, (long long)kv.slots, c->window, c->topk, twins, c->causal ? "causal" : "both ways",
            c->kv == DG_F16 ? "f16" : c->kv == DG_Q8 ? "q8" : "f32", r->rows_at == OP_ROWS_WHOLE ? "at whole vectors" : "at odd places");
}

/* What an emulator or a checker can take of the large cases is little. */
static bool small_case(const struct op_run *r, const struct kv_case *c) {
    return c->n * c->heads < 700 && products(c) < (r->c->emulated ? 4500000 : 50000000);
}

void op_cases_attention(struct op_run *r) {
    for (size_t i = 0; i < sizeof kv_cases / sizeof *kv_cases; i++)
        if ((!r->c->small || small_case(r, &kv_cases[i])) && (kv_cases[i].kv != DG_Q8 || r->c->be->ops->kv_q8))
            for (r->rows_at = OP_ROWS_WHOLE; r->rows_at <= (i % 4 ? OP_ROWS_WHOLE : OP_ROWS_ODD); r->rows_at++)
                one_attention(r, &kv_cases[i], usual_room(r, &kv_cases[i]), 0);
    r->rows_at = OP_ROWS_WHOLE;
    for (size_t i = 0; i < sizeof top_cases / sizeof *top_cases; i++)
        if (!r->c->small || (small_case(r, &top_cases[i].c) && (top_cases[i].c.kv_heads == 1 || top_cases[i].c.pos0 < 500)))
            one_attention(r, &top_cases[i].c, usual_room(r, &top_cases[i].c), top_cases[i].twins);
    for (size_t i = 0; r->c->emulated && i < sizeof kv_emulated / sizeof *kv_emulated; i++)
        one_attention(r, &kv_emulated[i], usual_room(r, &kv_emulated[i]), 0);
    for (size_t i = 0; i < sizeof end_cases / sizeof *end_cases; i++)
        if (!r->c->small || small_case(r, &end_cases[i].c))
            one_attention(r, &end_cases[i].c, end_cases[i].room, 0);
    r->rows_at = OP_ROWS_ANY;
}

static void one_qkv(struct op_run *r, const struct kv_case *c) {
    const struct dg_ops *op = r->c->be->ops;
    int hd = c->hd, half = hd / 2, cols = (c->heads + (c->has_v ? 2 : 1) * c->kv_heads) * hd;
    double *k, *v;
    struct dg_kv_layer kv = make_kv(r, c, usual_room(r, c), 0, 0, &k, &v);
    struct dg_batch b = {c->n, c->live, c->pos0, c->causal, c->ring_from ? c->ring_from : -1, c->topk};
    struct op_plane x = op_input(r, c->n, cols, op->act, 2);
    struct op_vec qn = op_vec(r, hd, 1), kn = op_vec(r, hd, 1);
    float *cs = op_memory(r, (size_t)(c->n * half) * sizeof *cs), *sn = op_memory(r, (size_t)(c->n * half) * sizeof *sn);
    for (int i = 0; i < c->n * half; i++) {
        double a = op_normal(r) * 3;
        cs[i] = (float)cos(a);
        sn[i] = (float)sin(a);
    }
    size_t bytes = (size_t)(c->n * half) * sizeof *cs, n = (size_t)kv.slots * (size_t)c->kv_heads * dg_kv_head_bytes(c->kv, hd);
    op->qkv_store(r->c->be, &x.p, c->heads, c->has_v, &qn.v, &kn.v, 1e-6f, op_upload(r, cs, bytes), op_upload(r, sn, bytes), &b, &kv);
    double *before = x.v;
    x.v = NULL;
    op_fetch(r, &x);
    const unsigned char *rk = op_download(r, kv.k, n), *rv = op_download(r, kv.v, n);
    double store = c->kv == DG_F16 ? 0x1p-11 : U, *seen = op_memory(r, (size_t)KV_FULL * sizeof *seen);
    for (int i = 0; op_checks(r) && i < c->n; i++)
        for (int u = 0; u < c->heads + 2 * c->kv_heads; u++) {
            bool is_q = u < c->heads, is_v = u >= c->heads + c->kv_heads;
            int h = is_v ? u - c->heads - c->kv_heads : is_q ? u : u - c->heads;
            const double *src = before + (int64_t)i * cols + (is_v && !c->has_v ? c->heads + h : u) * hd, *w = is_q ? qn.w : kn.w;
            double rms = inv_rms(src, hd);
            int64_t slot = dg_kv_slot(&kv, c->pos0 + i);
            seen[slot] = i < c->live;
            double step = 0; /* of the head's eight bits */
            for (int d = 0; c->kv == DG_Q8 && !is_q && i < c->live && d < hd; d++)
                step = fmax(step, fabs(kv_value(&kv, is_v ? rv : rk, slot, h, d)) / 127);
            for (int d = 0; d < hd; d++) {
                int p = d % half;
                double a = src[p] * rms * w[p], bb = src[p + half] * rms * w[p + half], co = cs[i * half + p], si = sn[i * half + p];
                double want = is_v ? src[d] * rms : d < half ? a * co - bb * si : bb * co + a * si;
                double mag = is_v ? fabs(want) : d < half ? fabs(a * co) + fabs(bb * si) : fabs(bb * co) + fabs(a * si);
                if (is_q)
                    op_expect(r, &x, i, u * hd + d, want, mag * sum_bound(hd) + act_round(r) * fabs(want) + 1e-37);
                else if (i < c->live)
                    op_expect_value(r, kv_value(&kv, is_v ? rv : rk, slot, h, d), want,
                                    mag * sum_bound(hd) + store * fabs(want) + 0.501 * step + 0x1p-24, "kv", i, d);
            }
        }
    for (int64_t slot = 0; op_checks(r) && slot < kv.slots; slot++)
        if (!seen[slot] && !isnan(kv_value(&kv, rk, slot, 0, 0)))
            op_fail(r, "slot %lld was written by nobody's row", (long long)slot);
    op_done(r, "hd=%d heads=%d/%d n=%d live=%d pos0=%lld %s", hd, c->heads, c->kv_heads, c->n, c->live, (long long)c->pos0,
            c->has_v ? "v" : "v is k");
}

void op_cases_qkv_store(struct op_run *r) {
    for (size_t i = 0; i < sizeof kv_cases / sizeof *kv_cases; i++)
        if ((kv_cases[i].kv != DG_Q8 || r->c->be->ops->kv_q8) && (!r->c->emulated || small_case(r, &kv_cases[i])))
            one_qkv(r, &kv_cases[i]);
    for (size_t i = 0; r->c->emulated && i < sizeof kv_emulated / sizeof *kv_emulated; i++)
        one_qkv(r, &kv_emulated[i]);
}
