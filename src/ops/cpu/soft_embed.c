/* Soft embedding: the expectation of the embedding under a row's distribution.
 *
 * Two ways to the same bits, for every column's sum runs over the ids in order and an id that is left out adds nothing: gathering, which
 * reads the embedding rows of a row's survivors, and the product, which decodes every embedding row once and multiplies the probabilities
 * by it tile by tile. Gathering costs by the survivors, the product by the vocabulary: where many rows have many survivors, these go
 * through the product together. */
#include "ops/cpu/rows.h"

#include <math.h>

#define CUT (-10.0f) /* ids below e^-10 of the row's largest probability are left out (seed section 5) */
#define TILE DG_ROWS_SOFT_TILE
#define HEAVY(vocab) ((vocab) / 8) /* survivors of a row from which on its share of a product of many rows is cheaper */
#define HEAVY_ROWS 16              /* rows from which on the product pays for decoding the vocabulary */

struct soft_job {
    const struct dg_cpu *c;
    const struct dg_plane *logits;
    const struct dg_row_stats *stats;
    float inv_t, scale;
    const struct dg_mat *embed;
    bool sparse;
    struct dg_plane *y;
};

static const float *logits_of(const struct soft_job *j, int64_t row) { return (const float *)j->logits->data + row * j->logits->ld; }

/* p = exp(z / T - max) / sum of ids [v, v + n), 0 for those left out. */
static void probabilities(const struct soft_job *j, int64_t row, int32_t v, int32_t n, float *p) {
    int32_t id[TILE];
    float e[TILE];
    int64_t found = j->c->k.vec.survivors(logits_of(j, row) + v, n, j->inv_t, j->stats->max[row], j->sparse ? CUT : -INFINITY, 0, id, e);
    memset(p, 0, TILE * sizeof *p);
    for (int64_t i = 0; i < found; i++)
        p[id[i]] = e[i] / j->stats->sum[row];
}

static void add_rows(const struct soft_job *j, const int32_t *id, const float *p, int n, float *y, float *tmp) {
    const struct dg_vec_kernels *k = &j->c->k.vec;
    const uint8_t *at[4] = {0};
    int64_t width = j->embed->k;
    for (int i = 0; i < n; i++)
        at[i] = dg_mat_row(j->embed, id[i]);
    if (j->embed->fmt == DG_FMT_BF16 && ((uintptr_t)j->embed->data & 1) == 0) {
        const uint16_t *w[4] = {0};
        for (int i = 0; i < n; i++)
            w[i] = (const uint16_t *)(const void *)at[i];
        k->axpy_bf16(y, w, p, n, width);
        return;
    }
    for (int i = 0; i < n; i++) {
        const float *w = tmp;
        dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, at[i], width, tmp);
        k->axpy_f32(y, &w, p + i, 1, width);
    }
}

/* y: the row's sum. False when it has more than `most` survivors. */
static bool gather(const struct soft_job *j, int64_t row, int64_t most, float *y, float *tmp) {
    const struct dg_vec_kernels *k = &j->c->k.vec;
    int32_t vocab = j->embed->n, id[TILE + 4];
    int64_t total = 0, n = 0;
    float p[TILE + 4];
    memset(y, 0, (size_t)j->embed->k * sizeof *y);
    for (int32_t v = 0; v < vocab; v += TILE) {
        int32_t some = vocab - v < TILE ? vocab - v : TILE;
        int64_t found = k->survivors(logits_of(j, row) + v, some, j->inv_t, j->stats->max[row], CUT, v, id + n, p + n);
        for (int64_t i = n; i < n + found; i++) {
            p[i] /= j->stats->sum[row];
            for (int64_t x = 0, bytes = dg_format_row_bytes(j->embed->fmt, j->embed->k); x < bytes; x += 64)
                __builtin_prefetch(dg_mat_row(j->embed, id[i]) + x);
        }
        n += found;
        total += found;
        if (total > most)
            return false;
        int64_t i = 0;
        for (; i + 4 <= n || (v + TILE >= vocab && i < n); i += 4)
            add_rows(j, id + i, p + i, n - i < 4 ? (int)(n - i) : 4, y, tmp);
        n = i < n ? n - i : 0;
        memmove(id, id + i, (size_t)n * sizeof *id);
        memmove(p, p + i, (size_t)n * sizeof *p);
    }
    return true;
}

static void put(const struct soft_job *j, int64_t row, float *y) {
    const struct dg_vec_kernels *k = &j->c->k.vec;
    k->scale(y, j->scale, NULL, 1.0f, j->embed->k, y);
    dg_rows_store(k, y, j->embed->k, j->y->data, j->y->dtype, row * j->y->ld);
}

/* The sums of n rows (at most DG_VEC_TILE), heavy[] of the plane, tile by tile of the vocabulary. */
static void product(const struct soft_job *j, const int64_t *heavy, int n, float *values, float *sums, float *p, float *tmp) {
    const struct dg_vec_kernels *k = &j->c->k.vec;
    int32_t vocab = j->embed->n, width = j->embed->k;
    int panels = (int)(dg_rows_pad(width) / k->panel);
    memset(sums, 0, (size_t)n * (size_t)panels * (size_t)k->panel * sizeof *sums);
    for (int32_t v = 0; v < vocab; v += TILE) {
        int some = vocab - v < TILE ? vocab - v : TILE;
        for (int t = 0; t < some; t++) {
            dg_format_traits(j->embed->fmt)->decode_row(j->embed->data, dg_mat_row(j->embed, v + t), width, tmp);
            k->to_panels(tmp, width, values, TILE, t, panels);
        }
        for (int i = 0; i < n; i++)
            probabilities(j, heavy[i], v, some, p + i * TILE);
        k->weigh(sums, n, n, p, TILE, NULL, values, TILE, 0, some, panels);
    }
    for (int i = 0; i < n; i++) {
        k->from_panels(sums, n, i, width, 1.0f, tmp);
        put(j, heavy[i], tmp);
    }
}

static void soft_part(void *arg, int part, int n_parts) {
    const struct soft_job *j = arg;
    const struct dg_cpu_rows *r = &j->c->rows;
    float *y = r->tile + (int64_t)part * 2 * r->tile_floats, *tmp = y + r->tile_floats;
    float *values = r->soft + (int64_t)part * r->soft_floats, *sums = values + TILE * r->soft_width, *p = sums + DG_VEC_TILE * r->soft_width;
    int64_t begin, end;
    dg_pool_range(j->logits->rows, 1, part, n_parts, &begin, &end);
    for (int64_t from = begin; from < end; from += DG_VEC_TILE) {
        int64_t to = end - from < DG_VEC_TILE ? end : from + DG_VEC_TILE, heavy[DG_VEC_TILE];
        int n = 0;
        for (int64_t row = from; row < to; row++)
            if (!j->sparse || !gather(j, row, HEAVY(j->embed->n), y, tmp))
                heavy[n++] = row;
            else
                put(j, row, y);
        if (!j->sparse || n >= HEAVY_ROWS) {
            product(j, heavy, n, values, sums, p, tmp);
            continue;
        }
        for (int i = 0; i < n; i++) {
            gather(j, heavy[i], j->embed->n, y, tmp);
            put(j, heavy[i], y);
        }
    }
}

void dg_cpu_soft_embed(struct dg_backend *be, const struct dg_plane *logits, const struct dg_row_stats *stats, float inv_t,
                       const struct dg_mat *embed, float scale, bool sparse, struct dg_plane *y) {
    struct soft_job j = {be->impl, logits, stats, inv_t, scale, embed, sparse, y};
    dg_pool_run(be->pool, soft_part, &j);
}
