/* The matrix product on tile registers: sixteen rows of w by sixteen rows of x a tile, up to 2 x 2 of them at once.
 *
 * Rows of w are the side that lies along K, so that bf16 rows are read where the file has them and decoded ones from a small panel; x has been
 * packed with pairs of elements across rows, once for the op. A chunk of K of two groups of w stays in the first cache while x passes. Sums go
 * through memory between chunks as they are: their order is that of K alone, whatever the chunks. */
#include "ops/cpu/product.h"

#define TILE 16           /* rows of w, and of x, of a tile */
#define TILE_FLOATS 256
#define CHUNK 256         /* elements of K at once: 32 rows of w and 32 of x, 16 KiB each, share the first cache while x passes */
#define PANEL_ROW ((CHUNK + 32) * 2) /* bytes; an odd number of cache lines */
#define X_TILES (DG_PRODUCT_M / TILE)

/* A thread's scratch. */
struct scratch {
    char panel[2][TILE][PANEL_ROW];
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

/* What a pair of groups asks the memory for while it is in hand: the rows that come after it, in the order of the file. */
struct ahead {
    const char *at, *end;
    int64_t step_lines; /* cache lines for a step of the tiles */
    int64_t row_lines;  /* and for a chunk of a row that is decoded, where the tiles ask for none */
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

/* For the pair of groups from `at` on. */
static struct ahead look_ahead(const struct group *group, int at, int n_groups, const struct dg_product_rows *w, int64_t k, int64_t steps) {
    const uint8_t *from = NULL;
    int64_t bytes = 0, rows = (k + CHUNK - 1) / CHUNK * (group[at].n + (at + 1 < n_groups ? group[at + 1].n : 0));
    int next = at + 2;
    if (next < n_groups) {
        from = group[next].row;
        bytes = group[next].n * group[next].row_bytes;
        if (next + 1 < n_groups && group[next + 1].row == from + bytes)
            bytes += group[next + 1].n * group[next + 1].row_bytes;
    } else if (w->ahead && w->row + w->ahead + w->n <= w->w->n) {
        from = dg_mat_row(w->w, w->row + w->ahead);
        bytes = (w->n < 2 * TILE ? w->n : 2 * TILE) * dg_format_row_bytes(w->w->fmt, w->w->k);
    }
    return (struct ahead){(const char *)from, (const char *)from + bytes, (bytes / 64 + steps - 1) / steps, (bytes / 64 + rows - 1) / rows};
}

/* Elements [k0, k0 + n) of a group where the tiles will read them; whether they were decoded. Asks for `lines` cache lines a decoded row. */
static bool group_chunk(const struct dg_gemm_kind *g, const struct group *p, int64_t k, int64_t k0, int64_t n, char (*panel)[PANEL_ROW],
                        struct ahead *ahead, int64_t lines, const char **w, int64_t *w_row) {
    if (p->mat->fmt == g->raw && p->n == TILE && n % g->step == 0) {
        *w = (const char *)p->row + k0 * g->elem;
        *w_row = p->row_bytes;
        return false;
    }
    /* a group that is not full leaves what was in its last rows: nobody reads the sums of those */
    for (int r = 0; r < p->n; r++) {
        for (int64_t i = 0; i < lines && ahead->at < ahead->end; i++, ahead->at += 64)
            __builtin_prefetch(ahead->at, 0, 2);
        g->decode[p->mat->fmt](p->row + r * p->row_bytes, k, k0, n, panel[r]);
    }
    *w = panel[0];
    *w_row = PANEL_ROW;
    return true;
}

/* One or two groups of w against all of x: columns c[0 .. 16 n_w - 1]. With few rows of x decoding takes longer than the tiles do, and longer than
 * the memory: it asks for what comes next then, else memory would rest meanwhile. */
static void multiply(const struct dg_gemm_kind *g, const struct group *group, int n_w, const char *block, int m, int64_t k, struct ahead *ahead,
                     struct scratch *s, float *c) {
    int n_x = (m + TILE - 1) / TILE;
    int64_t padded = dg_product_padded(g, k), x_tile = TILE * padded * g->elem;
    struct dg_gemm_tiles t = {.n_w = n_w};
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        int64_t n = k - k0 < CHUNK ? k - k0 : CHUNK;
        bool last = k0 + n == k, decoded = false;
        for (int i = 0; i < n_w; i++)
            decoded |= group_chunk(g, group + i, k, k0, n, s->panel[i], ahead, n_x > 2 ? 0 : ahead->row_lines, &t.w[i], &t.w_row[i]);
        t.steps = dg_product_padded(g, n) / g->step;
        t.to_c = last || n_x > 2;
        t.from = k0 == 0 ? DG_SUMS_ZERO : n_x > 2 ? DG_SUMS_C : DG_SUMS_KEPT;
        for (int x = 0; x < n_x; x += 2) {
            t.n_x = n_x - x < 2 ? 1 : 2;
            t.c = s->sums[2 * x];
            t.x[0] = block + x * x_tile + k0 * TILE * g->elem;
            t.x[1] = t.x[0] + x_tile;
            t.ahead = ahead->at;
            t.ahead_lines = ahead->at < ahead->end && (n_x > 2 || !decoded) ? ahead->step_lines : 0;
            ahead->at += t.ahead_lines * 64 * t.steps;
            g->tiles(&t);
            for (int i = 0; last && i < n_w * t.n_x; i++) {
                int first = (x + i % t.n_x) * TILE;
                g->put(t.c + i * TILE_FLOATS, m - first < TILE ? m - first : TILE, c + first * g->cols + i / t.n_x * TILE, g->cols);
            }
        }
    }
}

void dg_product_tiles(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c) {
    const struct dg_gemm_kind *g = dg_cpu_kind(cpu);
    struct scratch *s = (struct scratch *)((char *)cpu->gemm.panel + part * cpu->gemm.panel_bytes);
    struct group group[DG_GEMM_COLS_MAX / TILE];
    int n = make_groups(w, n_w, group);
    int64_t steps = dg_product_padded(g, k) / g->step * ((m + 2 * TILE - 1) / (2 * TILE));
    for (int i = 0; i < n; i += 2) {
        struct ahead ahead = look_ahead(group, i, n, w, k, steps);
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
