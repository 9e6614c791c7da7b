/* The matrix product on tile registers: sixteen rows of w by sixteen rows of x a tile, up to 2 x 2 of them at once.
 *
 * Rows of w are the side that lies along K, so that bf16 rows are read where the file has them and decoded ones from a small panel; x has been
 * packed with pairs of elements across rows, once for the op. A chunk of K of two groups of w stays in the first cache while x passes. Sums go
 * through memory between chunks as they are: their order is that of K alone, whatever the chunks.
 *
 * Where x has 32 rows or fewer, as an expert's has, decoding takes longer than the tiles and memory as long as decoding. There the sums stay in
 * the registers, and between two steps of a chunk a share of the next chunk is decoded into a second panel and a share of the next rows asked
 * for, so that tiles, vectors and memory work at the same time. */
#include "ops/cpu/product.h"

#define TILE 16           /* rows of w, and of x, of a tile */
#define TILE_FLOATS 256
#define CHUNK 256         /* elements of K at once: 32 rows of w and 32 of x, 16 KiB each, share the first cache while x passes */
#define PANEL_ROW ((CHUNK + 32) * 2) /* bytes; an odd number of cache lines */
#define X_TILES (DG_PRODUCT_M / TILE)

/* A thread's scratch. */
struct scratch {
    char panel[2][2][TILE][PANEL_ROW];    /* of two chunks, a pair of groups each */
    float sums[2 * X_TILES][TILE_FLOATS]; /* of a pair of groups, a pair of x after the other */
};

int64_t dg_product_tiles_scratch(void) { return (int64_t)sizeof(struct scratch); }

/* Up to sixteen consecutive rows of a matrix. */
struct group {
    const struct dg_mat *mat;
    const uint8_t *row;
    int64_t row_bytes;
    int n;
};

/* What a pair of groups asks the memory for while it is multiplied: the rows that come after it, in the order of the file. */
struct ahead {
    const char *at, *end;
    int64_t lines; /* a step */
};

static int make_groups(const struct dg_product_rows *w, int n_w, struct group *group) {
    int n = 0;
    for (int s = 0; s < n_w; s++) {
        int64_t row_bytes = dg_format_row_bytes(w[s].w->fmt, w[s].w->k);
        for (int r = 0; r < w[s].n; r += TILE)
            group[n++] = (struct group){w[s].w, dg_mat_row(w[s].w, w[s].row + r), row_bytes, w[s].n - r < TILE ? w[s].n - r : TILE};
    }
    return n;
}

static struct ahead look_ahead(const struct group *group, int next, int n_groups, const struct dg_product_rows *w, int64_t steps) {
    const uint8_t *from = NULL;
    int64_t bytes = 0;
    if (next < n_groups) {
        from = group[next].row;
        bytes = group[next].n * group[next].row_bytes;
        if (next + 1 < n_groups && group[next + 1].row == from + bytes)
            bytes += group[next + 1].n * group[next + 1].row_bytes;
    } else if (w->after) {
        from = w->after;
        bytes = (w->n < 2 * TILE ? w->n : 2 * TILE) * dg_format_row_bytes(w->w->fmt, w->w->k);
    }
    return (struct ahead){(const char *)from, from ? (const char *)from + bytes : NULL, (bytes / 64 + steps - 1) / steps};
}

static bool in_place(const struct dg_gemm_kind *g, const struct group *p, int64_t n) {
    return p->mat->fmt == g->raw && p->n == TILE && n % g->step == 0;
}

/* A chunk of a pair of groups that is made while another is multiplied. */
struct chunk {
    const struct group *group;
    int n_w;
    int64_t k, k0, n;
    char (*panel)[TILE][PANEL_ROW];
    int done, rows; /* of those to decode */
};

static struct chunk chunk_at(const struct dg_gemm_kind *g, const struct group *group, int n_groups, int i, int64_t k, int64_t k0,
                             struct scratch *s, int parity) {
    struct chunk c = {group + i, n_groups - i < 2 ? 1 : 2, k, k0, k - k0 < CHUNK ? k - k0 : CHUNK, s->panel[parity], 0, 0};
    for (int w = 0; w < c.n_w; w++)
        c.rows += in_place(g, c.group + w, c.n) ? 0 : c.group[w].n;
    return c;
}

/* Decodes the chunk's rows up to the first `until`, asking for some lines of what comes after before each. A group that is not full leaves what was
 * in its last rows: nobody reads the sums of those. */
static void decode_until(const struct dg_gemm_kind *g, struct chunk *c, int until, struct ahead *ahead) {
    int first = 0;
    for (int w = 0; w < c->n_w && c->done < until; w++) {
        const struct group *p = c->group + w;
        if (in_place(g, p, c->n))
            continue;
        for (; c->done < until && c->done - first < p->n; c->done++) {
            int r = c->done - first;
            for (int64_t i = 0; i < ahead->lines && ahead->at < ahead->end; i++, ahead->at += 64)
                __builtin_prefetch(ahead->at, 0, 2);
            g->decode[p->mat->fmt](p->row + r * p->row_bytes, c->k, c->k0, c->n, c->panel[w][r]);
        }
        first += p->n;
    }
}

static void chunk_tiles(const struct dg_gemm_kind *g, const struct chunk *c, struct dg_gemm_tiles *t) {
    t->n_w = c->n_w;
    for (int w = 0; w < c->n_w; w++) {
        bool there = in_place(g, c->group + w, c->n);
        t->w[w] = there ? (const char *)c->group[w].row + c->k0 * g->elem : c->panel[w][0];
        t->w_row[w] = there ? c->group[w].row_bytes : PANEL_ROW;
    }
}

/* One or two groups of w against all of x: columns c[0 .. 16 n_w - 1]. */
static void multiply(const struct dg_gemm_kind *g, const struct group *group, int n_w, const char *block, int m, int64_t k, struct ahead *ahead,
                     struct scratch *s, float *c) {
    int n_x = (m + TILE - 1) / TILE;
    int64_t x_tile = TILE * dg_product_padded(g, k) * g->elem;
    struct dg_gemm_tiles t = {.to_c = true};
    struct ahead none = {0};
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        struct chunk now = chunk_at(g, group, n_w, 0, k, k0, s, 0);
        bool last = k0 + now.n == k;
        decode_until(g, &now, now.rows, &none);
        chunk_tiles(g, &now, &t);
        t.steps = dg_product_padded(g, now.n) / g->step;
        t.from = k0 == 0 ? DG_SUMS_ZERO : DG_SUMS_C;
        for (int x = 0; x < n_x; x += 2) {
            t.n_x = n_x - x < 2 ? 1 : 2;
            t.c = s->sums[2 * x];
            t.x[0] = block + x * x_tile + k0 * TILE * g->elem;
            t.x[1] = t.x[0] + x_tile;
            t.ahead = ahead->at;
            t.ahead_lines = ahead->at < ahead->end ? ahead->lines : 0;
            ahead->at += t.ahead_lines * 64 * t.steps;
            g->tiles(&t);
            for (int i = 0; last && i < n_w * t.n_x; i++) {
                int first = (x + i % t.n_x) * TILE;
                g->put(t.c + i * TILE_FLOATS, m - first < TILE ? m - first : TILE, c + first * g->cols + i / t.n_x * TILE, g->cols);
            }
        }
    }
}

/* All groups against up to 32 rows of x, a stream of chunks. */
static void multiply_few(const struct dg_gemm_kind *g, const struct group *group, int n, const char *block, int m, int64_t k,
                         const struct dg_product_rows *w, struct scratch *s, float *c) {
    int64_t x_tile = TILE * dg_product_padded(g, k) * g->elem, chunks = (k + CHUNK - 1) / CHUNK, step_bytes = g->step * g->elem;
    struct dg_gemm_tiles t = {.n_x = m > TILE ? 2 : 1, .c = s->sums[0]};
    struct ahead ahead = {0}, none = {0};
    struct chunk now = chunk_at(g, group, n, 0, k, 0, s, 0);
    decode_until(g, &now, now.rows, &none);
    for (int i = 0, parity = 1; now.n; parity ^= 1) {
        bool last = now.k0 + now.n == k, more = !last || i + 2 < n;
        struct chunk next = more ? chunk_at(g, group, n, last ? i + 2 : i, k, last ? 0 : now.k0 + CHUNK, s, parity) : (struct chunk){0};
        int64_t steps = dg_product_padded(g, now.n) / g->step;
        if (now.k0 == 0) { /* what is asked for is spread over the rows that are decoded meanwhile, or else over the steps */
            int64_t slots = now.rows * (chunks - (i + 2 >= n));
            ahead = look_ahead(group, i + 2, n, w, slots ? slots : dg_product_padded(g, k) / g->step);
        }
        chunk_tiles(g, &now, &t);
        t.steps = 1;
        t.x[0] = block + now.k0 * TILE * g->elem;
        for (int64_t step = 0; step < steps; step++) {
            t.x[1] = t.x[0] + (t.n_x - 1) * x_tile;
            t.from = now.k0 == 0 && step == 0 ? DG_SUMS_ZERO : DG_SUMS_KEPT;
            t.to_c = last && step + 1 == steps;
            t.ahead = ahead.at;
            t.ahead_lines = now.rows == 0 && ahead.at < ahead.end ? ahead.lines : 0;
            ahead.at += t.ahead_lines * 64;
            g->tiles(&t);
            t.x[0] += TILE * step_bytes;
            t.w[0] += step_bytes;
            if (t.n_w > 1)
                t.w[1] += step_bytes;
            decode_until(g, &next, (int)(next.rows * (step + 1) / steps), &ahead);
        }
        for (int p = 0; last && p < now.n_w * t.n_x; p++) {
            int first = p % t.n_x * TILE;
            g->put(t.c + p * TILE_FLOATS, m - first < TILE ? m - first : TILE, c + first * g->cols + (i + p / t.n_x) * TILE, g->cols);
        }
        i += last ? 2 : 0;
        now = next;
    }
}

void dg_product_tiles(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c) {
    const struct dg_gemm_kind *g = dg_cpu_kind(cpu);
    struct scratch *s = (struct scratch *)((char *)cpu->gemm.panel + part * cpu->gemm.panel_bytes);
    struct group group[DG_GEMM_COLS_MAX / TILE];
    int n = make_groups(w, n_w, group);
    int64_t steps = dg_product_padded(g, k) / g->step * ((m + 2 * TILE - 1) / (2 * TILE));
    if (m <= 2 * TILE)
        multiply_few(g, group, n, block, m, k, w, s, c);
    for (int i = 0; m > 2 * TILE && i < n; i += 2) {
        struct ahead ahead = look_ahead(group, i + 2, n, w, steps);
        multiply(g, group + i, n - i < 2 ? 1 : 2, block, m, k, &ahead, s, c + i * TILE);
    }
    float factor[DG_GEMM_COLS_MAX];
    bool any = false;
    for (int i = 0; i < n * TILE; i++) {
        const struct group *p = group + i / TILE;
        int r = i % TILE < p->n ? i % TILE : p->n - 1;
        any |= dg_gemm_has_factor(p->mat->fmt);
        factor[i] = dg_gemm_row_factor(p->mat->fmt, p->mat->data, p->row + r * p->row_bytes);
    }
    for (int i = 0; any && i < m; i++)
        cpu->k.gemm.scale(c + i * g->cols, factor, n * TILE);
}
