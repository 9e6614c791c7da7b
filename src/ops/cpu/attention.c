/* Attention: a tile of keys after another past a block of queries.
 *
 * A block is some rows and the query heads of one kv head; its keys and values are converted once a tile for all of them. Tiles begin at
 * multiples of DG_VEC_TILE in absolute position, so every query sees the same tiles in the same order however a batch is cut, and those
 * that hold nothing it may see leave its sums as they are. Dense and sliding attention keep a running maximum and sum (online softmax) and
 * add weights x values tile by tile. Top-k collects the scores above the best k-th so far and comes to the values when all keys have passed. */
#include "ops/cpu/attention.h"

#include "core/half.h"
#include "ops/cpu/product.h"

#include <math.h>

static const struct dg_vec_kernels *vec(const struct dg_att_block *b) { return &b->j->c->k.vec; }

static void load_queries(struct dg_att_block *b) {
    const struct dg_att_job *j = b->j;
    int32_t hd = j->kv->hd, hdp = j->hdp;
    for (int32_t i = 0; i < b->nq; i++) {
        float *dst = b->q + (int64_t)i * hdp;
        dg_rows_load(vec(b), j->q->data, j->q->dtype, dg_att_at(b, j->q, i), hd, dst);
        memset(dst + hd, 0, (size_t)(hdp - hd) * sizeof *dst);
    }
}

static void begin_sums(struct dg_att_block *b) {
    const struct dg_att_job *j = b->j;
    b->lo = INT64_MAX;
    b->hi = 0;
    for (int32_t i = 0; i < b->nq; i++) {
        dg_batch_visible(j->batch, j->kv, b->row + i / b->heads, &b->from[i], &b->to[i]);
        b->lo = b->from[i] < b->lo ? b->from[i] : b->lo;
        b->hi = b->to[i] > b->hi ? b->to[i] : b->hi;
        b->max[i] = -INFINITY;
        b->sum[i] = 0;
    }
}

/* Positions [first, first + DG_VEC_TILE) as rows of f32; those outside [b->lo, b->hi) are zero, for nobody may have written them. Returns how
 * many lead the tile, a multiple of four. */
static int load_keys(struct dg_att_block *b, int64_t first) {
    const struct dg_kv_layer *kv = b->j->kv;
    int32_t hd = kv->hd, hdp = b->j->hdp;
    int n = 0;
    for (int t = 0; t < DG_VEC_TILE && first + t < b->hi; t++, n++) {
        float *dst = b->k + (int64_t)t * hdp;
        bool there = first + t >= b->lo;
        if (there)
            dg_rows_load_head(vec(b), kv, dg_rows_head(kv, kv->k, first + t, b->kvh), dst);
        int32_t used = there ? hd : 0;
        memset(dst + used, 0, (size_t)(hdp - used) * sizeof *dst);
    }
    int all = (n + 3) & ~3;
    memset(b->k + (int64_t)n * hdp, 0, (size_t)(all - n) * (size_t)hdp * sizeof *b->k);
    return all;
}

static void load_values(struct dg_att_block *b, int64_t first, int k0, int k1) {
    const struct dg_kv_layer *kv = b->j->kv;
    int32_t hd = kv->hd, panels = b->j->hdp / vec(b)->panel;
    float row[DG_HEAD_DIM_MAX];
    for (int t = k0; t < k1; t++) {
        const void *head = dg_rows_head(kv, kv->v, first + t, b->kvh);
        if (kv->dtype != DG_F32)
            dg_rows_load_head(vec(b), kv, head, row);
        vec(b)->to_panels(kv->dtype == DG_F32 ? head : row, hd, b->v, DG_VEC_TILE, t, panels);
    }
}

void dg_att_ask_for(const struct dg_att_block *b, const void *base, int64_t first, int t0, int t1) {
    const struct dg_kv_layer *kv = b->j->kv;
    size_t bytes = dg_kv_head_bytes(kv->dtype, kv->hd);
    for (int t = t0; t < t1 && first + t < b->hi; t++) {
        const char *p = dg_rows_head(kv, base, first + t, b->kvh);
        for (size_t x = 0; x < bytes; x += 64)
            __builtin_prefetch(p + x, 0, 2);
    }
}

/* Scores of the n keys loaded; meanwhile the values of this tile (next_v) or the keys of the next one are fetched. */
static void score_tile(const struct dg_att_block *b, int64_t first, int n, bool next_v) {
    const struct dg_att_job *j = b->j;
    for (int t = 0; t < n; t += 16) {
        if (next_v)
            dg_att_ask_for(b, j->kv->v, first, t, t + 16);
        else
            dg_att_ask_for(b, j->kv->k, first + DG_VEC_TILE, t, t + 16);
        vec(b)->scores(b->q, b->nq, b->k + (int64_t)t * j->hdp, n - t < 16 ? n - t : 16, j->hdp, b->s + t);
    }
}

/* Adds the tile's weighted values, a quarter of the columns at a time, while the next tile's keys are fetched. */
static void weigh_tile(const struct dg_att_block *b, int64_t first, const float *alpha, int k0, int k1) {
    const struct dg_att_job *j = b->j;
    int panels = j->hdp / vec(b)->panel;
    for (int c = 0, i = 0; i < 4; i++) {
        int end = panels * (i + 1) / 4;
        dg_att_ask_for(b, j->kv->k, first + DG_VEC_TILE, i * 16, i * 16 + 16);
        vec(b)->weigh(b->o + (int64_t)c * b->nq * vec(b)->panel, b->nq, b->nq, b->s, DG_VEC_TILE, alpha,
                      b->v + (int64_t)c * DG_VEC_TILE * vec(b)->panel, DG_VEC_TILE, k0, k1, end - c);
        c = end;
    }
}

static int in_tile(int64_t pos, int64_t first) { return dg_att_in_tile(pos, first, DG_VEC_TILE); }

static void dense(struct dg_att_block *b) {
    const struct dg_att_job *j = b->j;
    int32_t hd = j->kv->hd;
    load_queries(b);
    memset(b->o, 0, (size_t)b->nq * (size_t)j->hdp * sizeof *b->o);
    for (int64_t first = b->lo / DG_VEC_TILE * DG_VEC_TILE; first < b->hi; first += DG_VEC_TILE) {
        int n = load_keys(b, first), k0 = in_tile(b->lo, first), k1 = in_tile(b->hi, first);
        score_tile(b, first, n, true);
        bool keep = true;
        for (int32_t i = 0; i < b->nq; i++) {
            b->alpha[i] = vec(b)->softmax_tile(b->s + i * DG_VEC_TILE, in_tile(b->from[i], first), in_tile(b->to[i], first), &b->max[i], &b->sum[i]);
            keep &= b->alpha[i] == 1;
        }
        load_values(b, first, k0, k1);
        weigh_tile(b, first, keep ? NULL : b->alpha, k0, k1);
    }
    for (int32_t i = 0; i < b->nq; i++) {
        float out[DG_HEAD_DIM_MAX];
        vec(b)->from_panels(b->o, b->nq, i, hd, 1.0f / b->sum[i], out);
        dg_rows_store(vec(b), out, hd, j->y->data, j->y->dtype, dg_att_at(b, j->y, i));
    }
}

/* A float's bits in the order of its value. */
static uint32_t ordered(float f) {
    uint32_t u = dg_f32_bits(f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k-th largest of n scores (1 <= k <= n), a byte at a time from the top; *ties: how many of the k equal it. */
static float kth_largest(const float *s, int32_t n, int32_t k, int32_t *ties) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        for (int32_t i = 0; i < n; i++) {
            uint32_t u = ordered(s[i]);
            count[u >> shift & 255] += (u & mask) == prefix;
        }
        uint32_t d = 255;
        while (count[d] < k)
            k -= count[d--];
        prefix |= d << shift;
        mask |= 255u << shift;
    }
    *ties = k;
    return dg_bits_f32(prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix);
}

void dg_att_keep_best(struct dg_vec_found *f, int32_t k) {
    if (f->n <= k)
        return;
    int32_t ties, n = 0;
    float least = kth_largest(f->score, f->n, k, &ties);
    for (int32_t i = 0; i < f->n; i++)
        if (f->score[i] > least || (f->score[i] == least && ties-- > 0)) {
            f->score[n] = f->score[i];
            f->key[n++] = f->key[i];
        }
    f->n = n;
    f->above = least;
}

/* y += p[0] * head[0] + ..., n heads of the cache. */
static void add_heads(const struct dg_att_block *b, const void *const *head, const float *p, int n, float *y) {
    const struct dg_kv_layer *kv = b->j->kv;
    const uint16_t *half[4] = {head[0], head[1], head[2], head[3]};
    const float *whole[4] = {head[0], head[1], head[2], head[3]};
    float row[DG_HEAD_DIM_MAX];
    if (kv->dtype == DG_F16)
        vec(b)->axpy_f16(y, half, p, n, kv->hd);
    else if (kv->dtype == DG_F32)
        vec(b)->axpy_f32(y, whole, p, n, kv->hd);
    else
        for (int r = 0; r < n; r++) {
            const float *w = row;
            dg_rows_load_head(vec(b), kv, head[r], row);
            vec(b)->axpy_f32(y, &w, p + r, 1, kv->hd);
        }
}

/* y = the values of the found keys, weighted by the softmax of their scores. */
static void gather(const struct dg_att_block *b, int32_t i) {
    const struct dg_att_job *j = b->j;
    const struct dg_kv_layer *kv = j->kv;
    const struct dg_vec_found *f = &b->found[i];
    float max = -INFINITY, out[DG_HEAD_DIM_MAX];
    int32_t hd = kv->hd;
    for (int32_t t = 0; t < f->n; t++)
        max = f->score[t] > max ? f->score[t] : max;
    float sum = f->any_nan ? NAN : vec(b)->exps(f->score, f->n, max);
    memset(out, 0, (size_t)hd * sizeof *out);
    for (int32_t t = 0; t < f->n; t += 4) {
        int n = f->n - t < 4 ? f->n - t : 4;
        const void *head[4] = {0};
        for (int r = 0; r < n; r++)
            head[r] = dg_rows_head(kv, kv->v, f->key[t + r], b->kvh);
        for (int r = 0; r < 4 && t + 4 + r < f->n; r++)
            dg_att_ask_for(b, kv->v, f->key[t + 4 + r], 0, 1);
        add_heads(b, head, f->score + t, n, out);
    }
    for (int32_t c = 0; c < hd; c++)
        out[c] /= sum; /* no score above -inf: 0 / 0, as the softmax of nothing is */
    dg_rows_store(vec(b), out, hd, j->y->data, j->y->dtype, dg_att_at(b, j->y, i));
}

static void collect(struct dg_att_block *b, const int32_t *keys) {
    load_queries(b);
    for (int64_t first = b->lo / DG_VEC_TILE * DG_VEC_TILE; first < b->hi; first += DG_VEC_TILE) {
        int n = load_keys(b, first);
        score_tile(b, first, n, false);
        for (int32_t i = 0; i < b->nq; i++) {
            if (b->found[i].n + DG_VEC_TILE > b->j->room)
                dg_att_keep_best(&b->found[i], keys[i]);
            vec(b)->collect(b->s + i * DG_VEC_TILE, in_tile(b->from[i], first), in_tile(b->to[i], first), (int32_t)first, &b->found[i]);
        }
    }
}

static void topk(struct dg_att_block *b, int part, void *scratch) {
    const struct dg_att_job *j = b->j;
    const struct dg_cpu_rows *r = &j->c->rows;
    int32_t keys[DG_ROWS_BLOCK];
    for (int32_t i = 0; i < b->nq; i++) {
        int64_t at = part * DG_ROWS_FOUND + i * (int64_t)j->room;
        b->found[i] = (struct dg_vec_found){r->found_score + at, r->found_key + at, 0, -INFINITY, false};
        keys[i] = (int32_t)dg_batch_keys(j->batch, b->to[i] - b->from[i]);
    }
    if (j->tiles)
        dg_att_tiles_collect(b, scratch, keys);
    else
        collect(b, keys);
    for (int32_t i = 0; i < b->nq; i++) {
        dg_att_keep_best(&b->found[i], keys[i]);
        gather(b, i);
    }
}

/* Blocks: slices of a kv head's query heads, cuts of the rows. */
static int32_t slices_of(const struct dg_att_job *j) { return (j->group + j->block_heads - 1) / j->block_heads; }
static int32_t cuts_of(const struct dg_att_job *j) { return (j->row1 - j->row0 + j->block_rows - 1) / j->block_rows; }
static int64_t units_of(const struct dg_att_job *j) { return (int64_t)j->kv->kv_heads * slices_of(j) * cuts_of(j); }

static void att_part(void *arg, int part, int n_parts) {
    (void)n_parts;
    struct dg_att_job *j = arg;
    const struct dg_cpu_rows *r = &j->c->rows;
    struct dg_att_block b = {.j = j};
    b.q = r->query + (int64_t)part * 2 * r->query_floats;
    b.o = b.q + r->query_floats;
    b.k = r->tile + (int64_t)part * 2 * r->tile_floats;
    b.v = b.k + r->tile_floats;
    b.s = r->score + (int64_t)part * DG_ROWS_BLOCK * DG_VEC_TILE;
    void *scratch = j->tiles ? (char *)r->tiles + part * r->tiles_bytes : NULL;
    if (j->tiles)
        dg_product_begin(j->c);
    int32_t slices = slices_of(j), cuts = cuts_of(j);
    int64_t units = units_of(j);
    /* whoever is free takes the next block: those of later rows of a causal batch see more keys. Who computes it leaves no trace in it. */
    for (int64_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < units;) {
        int32_t slice = (int32_t)(u / cuts % slices);
        b.kvh = (int32_t)(u / cuts / slices);
        b.row = j->row0 + (int32_t)(u % cuts) * j->block_rows;
        b.rows = j->row1 - b.row < j->block_rows ? j->row1 - b.row : j->block_rows;
        b.head = b.kvh * j->group + slice * j->block_heads;
        b.heads = j->group - slice * j->block_heads < j->block_heads ? j->group - slice * j->block_heads : j->block_heads;
        b.nq = b.rows * b.heads;
        begin_sums(&b);
        if (j->topk)
            topk(&b, part, scratch);
        else if (j->tiles)
            dg_att_tiles_dense(&b, scratch);
        else
            dense(&b);
    }
    if (j->tiles)
        dg_product_end(j->c);
}

/* Rows [row0, row1), all dense (keys 0) or all with at most `keys` keys a query. */
static void run(struct dg_backend *be, struct dg_att_job *j, int32_t row0, int32_t row1, int32_t keys) {
    if (row0 >= row1)
        return;
    int64_t most = j->tiles ? DG_ROWS_BLOCK : DG_ROWS_QUERIES / j->hdp;
    j->room = 3 * keys + 2 * (j->tiles ? DG_ATT_KEYS : DG_VEC_TILE); /* fewer would be sorted out too often */
    j->topk = keys > 0;
    if (j->topk && most > DG_ROWS_FOUND / j->room)
        most = DG_ROWS_FOUND / j->room;
    int32_t queries = most < DG_ROWS_BLOCK ? (int32_t)most : DG_ROWS_BLOCK;
    j->row0 = row0;
    j->row1 = row1;
    atomic_store_explicit(&j->next, 0, memory_order_relaxed);
    j->block_heads = j->group < queries ? j->group : queries;
    j->block_rows = queries / j->block_heads;
    while (j->block_rows > 1 && units_of(j) < 2 * j->c->n_threads) /* work for everybody comes before reuse of a tile */
        j->block_rows = (j->block_rows + 1) / 2;
    dg_pool_run(be->pool, att_part, j);
}

void dg_cpu_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv, struct dg_plane *y) {
    struct dg_att_job j = {.c = be->impl, .q = q, .heads = heads, .batch = batch, .kv = kv, .y = y};
    j.group = heads / kv->kv_heads;
    j.hdp = (int32_t)dg_rows_pad(kv->hd);
    j.tiles = dg_att_tiles_here(j.c, q, kv);
    /* rows that see more keys than they may attend to: the later ones of a causal batch, or all */
    int32_t from = batch->n_live;
    int64_t most = 0;
    for (int32_t i = batch->n_live; !kv->window && i-- > 0; from = i) {
        int64_t lo, hi;
        dg_batch_visible(batch, kv, i, &lo, &hi);
        int64_t keys = dg_batch_keys(batch, hi - lo);
        if (keys == hi - lo)
            break;
        most = keys > most ? keys : most;
    }
    if (most > DG_ROWS_TOPK_MAX) {
        dg_backend_fail(be, DG_E_UNSUPPORTED, "attention to the best keys of a query keeps at most 4096 of them");
        return;
    }
    run(be, &j, 0, from, 0);
    run(be, &j, from, batch->n_live, (int32_t)most);
    for (int32_t i = batch->n_live; i < batch->n; i++)
        memset((char *)y->data + (size_t)(i * y->ld) * dg_dtype_bytes(y->dtype), 0, (size_t)heads * (size_t)kv->hd * dg_dtype_bytes(y->dtype));
}
