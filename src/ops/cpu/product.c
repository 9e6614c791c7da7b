#include "ops/cpu/product.h"

#include "core/mem.h"

#include <string.h>

#define INNER_M 96     /* rows of x, about, whose chunk stays in the second cache while the panel passes */
#define FEW_M 8        /* up to here rows of weights are used four at a time, all of a row at once */
#define AHEAD_M 64     /* up to here reading weights takes a good part of the time that multiplying by them does; where a tile's rows of x stay in the
                        * nearest cache, decoded ones are used four at a time, which lie there too */
#define AHEAD_BYTES 11000 /* how far ahead of its reading a single row of x asks for weights */
#define PANEL_PAD 64   /* bytes between a panel's rows, so that they do not fall into the same sets; a cache line, so that no vector crosses one */

/* Bytes of a panel's row. */
static int64_t panel_row(const struct dg_gemm_kind *g) { return (int64_t)g->kc * g->elem + PANEL_PAD; }

/* The register tiles of a block of m rows: as few as can be, of heights that differ by one at most, so that no tile is left with a single
 * row, which would wait for its own sums. */
struct tiles {
    int n, height, taller; /* the first `taller` of n have a row more */
};

static struct tiles tiles_of(const struct dg_gemm_kind *g, int m) {
    int n = (m + g->mr - 1) / g->mr;
    return (struct tiles){n, m / n, m % n};
}

static int tile_first(const struct tiles *t, int i) { return i * t->height + (i < t->taller ? i : t->taller); }

static void pack_row(const struct dg_gemm_kind *g, void *block, int m, int i, const void *src, enum dg_dtype t, int64_t k) {
    struct tiles all = tiles_of(g, m);
    int tall_rows = all.taller * (all.height + 1);
    int tile = i < tall_rows ? i / (all.height + 1) : all.taller + (i - tall_rows) / all.height;
    int first = tile_first(&all, tile), rows = all.height + (tile < all.taller);
    const char *s = src;
    for (int64_t k0 = 0; k0 < k; k0 += g->kc) {
        int64_t n = k - k0 < g->kc ? k - k0 : g->kc, padded = dg_product_padded(g, n);
        char *d = (char *)block + (k0 * m + first * padded + (int64_t)(i - first) * g->step) * g->elem;
        g->pack[t == DG_BF16](s + k0 * (int64_t)dg_dtype_bytes(t), n, (int64_t)rows * g->step, d);
    }
}

void dg_product_pack(const struct dg_gemm_kind *g, void *block, int m, int begin, int end, const void *const *src, enum dg_dtype t, int64_t k) {
    for (int i = begin; i < end; i += g->group) {
        if (g->pack_rows[t == DG_BF16])
            g->pack_rows[t == DG_BF16](src + (i - begin), end - i < g->group ? end - i : g->group, k, (char *)block + dg_product_bytes(g, i, k));
        else
            pack_row(g, block, m, i, src[i - begin], t, k);
    }
}

struct pack_job {
    const struct dg_gemm_kind *g;
    const struct dg_plane *x;
    char *dst;
};

static void pack_part(void *arg, int part, int n_parts) {
    struct pack_job *j = arg;
    const void *src[DG_PRODUCT_M];
    int64_t begin, end, x_row = j->x->ld * (int64_t)dg_dtype_bytes(j->x->dtype);
    dg_pool_range(j->x->rows, j->g->group, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end;) {
        int64_t b = i / DG_PRODUCT_M, first = b * DG_PRODUCT_M;
        int m = j->x->rows - first < DG_PRODUCT_M ? (int)(j->x->rows - first) : DG_PRODUCT_M;
        int r0 = (int)(i - first), r1 = end - first < m ? (int)(end - first) : m;
        for (int r = r0; r < r1; r++)
            src[r - r0] = (const char *)j->x->data + (first + r) * x_row;
        dg_product_pack(j->g, j->dst + b * dg_product_bytes(j->g, DG_PRODUCT_M, j->x->cols), m, r0, r1, src, j->x->dtype, j->x->cols);
        i = first + r1;
    }
}

const void *dg_product_pack_plane(struct dg_backend *be, const struct dg_plane *x) {
    struct dg_cpu *c = be->impl;
    struct pack_job j = {dg_cpu_kind(c), x, c->gemm.x};
    /* waking the threads costs more than packing a few rows */
    if ((int64_t)x->rows * x->cols < 32768)
        pack_part(&j, 0, 1);
    else
        dg_pool_run(be->pool, pack_part, &j);
    return c->gemm.x;
}

float *dg_product_c(const struct dg_cpu *c, int part) { return c->gemm.c + (int64_t)part * DG_PRODUCT_M * dg_cpu_kind(c)->cols; }

void *dg_product_x(const struct dg_cpu *c, int part) { return (char *)c->gemm.x_own + part * c->gemm.x_own_bytes; }

/* What comes after the rows at hand: asked for while those are multiplied, evenly. Else memory would rest then, and decoding would wait for memory
 * afterwards. */
struct ahead {
    struct {
        const uint8_t *at;
        int64_t lines;
    } part[2];           /* whole rows, as the file has them */
    int64_t lines, work; /* to ask for in all, and beside so many steps of tiles */
    int64_t due;         /* what is due beside the steps done, in parts of `work` */
};

/* The lines that are due beside a tile of so many steps, all of one part; what does not fit in stays due. */
static inline int64_t take_ahead(struct ahead *a, int64_t steps, const uint8_t **at) {
    int i = a->part[0].lines == 0;
    *at = a->part[i].at;
    if (a->part[i].lines == 0)
        return 0;
    a->due += a->lines * steps;
    int64_t lines = a->due / a->work;
    lines = lines < a->part[i].lines ? lines : a->part[i].lines;
    a->due -= lines * a->work;
    a->part[i].at += lines * 64;
    a->part[i].lines -= lines;
    return lines;
}

/* One register tile: tile i of x's chunk against four rows of w. */
static inline void one_tile(const struct dg_gemm_kind *g, const struct tiles *all, int i, const char *x, int64_t row_bytes, int64_t steps,
                            const void *const *w, float *c, bool add, struct ahead *next) {
    int first = tile_first(all, i);
    const uint8_t *ahead;
    int64_t lines = take_ahead(next, steps, &ahead);
    g->tile[all->height + (i < all->taller) - 1](x + first * row_bytes, w, steps, c + first * g->cols, g->cols, add, ahead, lines);
}

/* The tiles of one chunk: `w` points at n_tiles times DG_GEMM_NR rows. */
static void chunk_tiles(const struct dg_gemm_kind *g, const char *x, int m, int64_t steps, const void *const *w, int n_tiles, float *c, bool add,
                        struct ahead *next) {
    struct tiles all = tiles_of(g, m);
    int64_t row_bytes = steps * g->step * g->elem;
    int inner = INNER_M / g->mr;
    for (int i0 = 0; i0 < all.n; i0 += inner) {
        int i1 = all.n - i0 < inner ? all.n : i0 + inner;
        if (g->m_outer) {
            for (int i = i0; i < i1; i++)
                for (int t = 0; t < n_tiles; t++)
                    one_tile(g, &all, i, x, row_bytes, steps, w + t * DG_GEMM_NR, c + t * DG_GEMM_NR, add, next);
        } else {
            for (int t = 0; t < n_tiles; t++)
                for (int i = i0; i < i1; i++)
                    one_tile(g, &all, i, x, row_bytes, steps, w + t * DG_GEMM_NR, c + t * DG_GEMM_NR, add, next);
        }
    }
}

/* Rows of w as a tile reads them; those past the end repeat the last one, and what comes of them is never read. */
struct panel {
    const struct dg_mat *mat[DG_PRODUCT_N];
    const uint8_t *row[DG_PRODUCT_N];
    const void *ready[DG_PRODUCT_N];
};

static int panel_rows(const struct dg_gemm_kind *g, struct panel *p, const struct dg_product_rows *w, int n_w) {
    int n = 0;
    for (int s = 0; s < n_w; s++) {
        int64_t row_bytes = dg_format_row_bytes(w[s].w->fmt, w[s].w->k);
        const uint8_t *first = dg_mat_row(w[s].w, w[s].row);
        for (int r = 0; r < dg_product_cols(g, w[s].n); r++, n++) {
            p->mat[n] = w[s].w;
            p->row[n] = first + (r < w[s].n ? r : w[s].n - 1) * row_bytes;
        }
    }
    return n;
}

/* Elements [k0, k0 + n) of rows [r0, r1) where the tiles will read them. */
static void panel_chunk(const struct dg_gemm_kind *g, struct panel *p, int r0, int r1, int64_t k, int64_t k0, int64_t n, char *scratch) {
    for (int r = r0; r < r1; r++) {
        enum dg_format fmt = p->mat[r]->fmt;
        if (fmt == g->raw && n % g->step == 0) {
            p->ready[r] = p->row[r] + k0 * g->elem;
        } else if (r > r0 && p->row[r] == p->row[r - 1]) {
            p->ready[r] = p->ready[r - 1];
        } else {
            void *d = scratch + (r - r0) * panel_row(g);
            g->decode[fmt](p->row[r], k, k0, n, d);
            p->ready[r] = d;
        }
    }
}

static void apply_factors(const struct dg_cpu *cpu, const struct panel *p, int n, int m, float *c) {
    float f[DG_PRODUCT_N];
    bool any = false;
    for (int r = 0; r < n && !any; r++)
        any = dg_gemm_has_factor(p->mat[r]->fmt);
    if (!any)
        return;
    for (int r = 0; r < n; r++)
        f[r] = dg_gemm_row_factor(p->mat[r]->fmt, p->mat[r]->data, p->row[r]);
    for (int i = 0; i < m; i++)
        cpu->k.gemm.scale(c + i * dg_cpu_kind(cpu)->cols, f, n);
}

/* A chunk of a single row of x against four rows of w without a panel between; false where the level or the shape asks for one. `after`: the
 * first of the four rows to ask for. */
static bool one_row(const struct dg_gemm_kind *g, const struct panel *p, int r, const void *x, int64_t k, int64_t k0, int64_t n, float *c,
                    const uint8_t *after) {
    enum dg_format fmt = p->mat[r]->fmt;
    if (!g->dot[fmt] || n % 32)
        return false;
    g->dot[fmt]((const char *)x + k0 * g->elem, p->row + r, k, k0, n, c, k0 > 0, after);
    return true;
}

/* Rows, a multiple of DG_GEMM_NR, that are AHEAD_BYTES at least. */
static int rows_ahead(const struct dg_mat *w) {
    int64_t some = DG_GEMM_NR * dg_format_row_bytes(w->fmt, w->k);
    return (int)((AHEAD_BYTES + some - 1) / some) * DG_GEMM_NR;
}

/* The first of DG_GEMM_NR rows to ask for: row r of n, both multiples of DG_GEMM_NR, which may be of the part that the thread goes on with after
 * this one; where that is not known, rows that it has anyway. */
static const uint8_t *row_to_ask(const struct panel *p, int n, int r, const struct dg_product_rows *w) {
    if (r < n)
        return p->row[r];
    return w->after ? w->after + (r - n) * dg_format_row_bytes(w->w->fmt, w->w->k) : p->row[0];
}

/* What comes after rows [r, r1) of the panel's n: the group behind them, or after the last one what the caller knows of. */
static struct ahead look_ahead(const struct dg_gemm_kind *g, const struct panel *p, int n, int r, int r1, int group, int m, int64_t k,
                               const struct dg_product_rows *w, int n_w) {
    struct ahead a = {.work = dg_product_padded(g, k) / g->step * ((r1 - r) / DG_GEMM_NR) * tiles_of(g, m).n};
    for (int i = 0; i < (r1 < n ? 1 : n_w); i++) {
        const uint8_t *at = r1 < n ? p->row[r1] : w[i].after;
        int rows = r1 < n || w[i].n > group ? group : w[i].n;
        a.part[i].at = at;
        a.part[i].lines = at ? (rows * dg_format_row_bytes(p->mat[r1 < n ? r1 : 0]->fmt, k) + 63) / 64 : 0;
        a.lines += a.part[i].lines;
    }
    return a;
}

void dg_product(const struct dg_cpu *cpu, int part, const void *block, int m, int64_t k, const struct dg_product_rows *w, int n_w, float *c) {
    const struct dg_gemm_kind *g = dg_cpu_kind(cpu);
    struct panel p;
    if (g->tiles) {
        dg_product_tiles(cpu, part, block, m, k, w, n_w, c);
        return;
    }
    int n = panel_rows(g, &p, w, n_w);
    int ahead = m == 1 ? rows_ahead(w->w) : 0;
    int group = m <= (g->m_outer && p.mat[0]->fmt != g->raw ? AHEAD_M : FEW_M) ? DG_GEMM_NR : g->cols;
    char *scratch = (char *)cpu->gemm.panel + part * cpu->gemm.panel_bytes;
    for (int r = 0; r < n; r += group) {
        int r1 = n - r < group ? n : r + group;
        struct ahead next = m > 1 && m <= AHEAD_M ? look_ahead(g, &p, n, r, r1, group, m, k, w, n_w) : (struct ahead){0};
        for (int64_t k0 = 0; k0 < k; k0 += g->kc) {
            int64_t kn = k - k0 < g->kc ? k - k0 : g->kc;
            if (m == 1 && one_row(g, &p, r, block, k, k0, kn, c + r, row_to_ask(&p, n, r + ahead, w)))
                continue;
            panel_chunk(g, &p, r, r1, k, k0, kn, scratch);
            chunk_tiles(g, (const char *)block + k0 * m * g->elem, m, dg_product_padded(g, kn) / g->step, p.ready + r, (r1 - r) / DG_GEMM_NR, c + r,
                        k0 > 0, &next);
        }
    }
    apply_factors(cpu, &p, n, m, c);
}

enum dg_status dg_cpu_gemm_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_gemm *out, struct dg_error *err) {
    const struct dg_gemm_kind *g = dg_cpu_kind(c);
    size_t threads = (size_t)c->n_threads, rows = (size_t)want->rows, pairs = rows * (size_t)want->topk;
    int64_t widest = want->hidden > want->moe ? want->hidden : want->moe;
    size_t blocks = (rows + DG_PRODUCT_M - 1) / DG_PRODUCT_M, own_rows = rows < DG_PRODUCT_M ? rows : DG_PRODUCT_M;
    out->panel_bytes = g->tiles ? dg_product_tiles_scratch() : g->cols * panel_row(g);
    out->x_own_bytes = (dg_product_bytes(g, (int64_t)own_rows, widest) + 63) & ~63;
    out->x = dg_calloc(blocks, (size_t)dg_product_bytes(g, (int64_t)own_rows, want->k_max));
    out->panel = dg_calloc(threads, (size_t)out->panel_bytes);
    out->c = dg_calloc(threads, DG_PRODUCT_M * (size_t)g->cols * sizeof *out->c);
    out->x_own = dg_calloc(threads, (size_t)out->x_own_bytes);
    out->bucket = dg_calloc((size_t)want->experts + 1, sizeof *out->bucket);
    out->unit = dg_calloc((size_t)want->experts + 1, sizeof *out->unit);
    out->pair = dg_calloc(pairs, sizeof *out->pair);
    out->pair_h = dg_calloc(pairs, (size_t)want->moe * sizeof(float));
    out->pair_y = dg_calloc(pairs, (size_t)want->hidden * sizeof *out->pair_y);
    out->vocab_blocks = (c->vocab + dg_head_block(c) - 1) / dg_head_block(c);
    out->head = dg_calloc(rows, (size_t)out->vocab_blocks * sizeof *out->head);
    if (out->x && out->panel && out->c && out->x_own && out->bucket && out->unit && out->pair && out->pair_h && out->pair_y && out->head)
        return DG_OK;
    return DG_FAIL(err, DG_E_NOMEM, "not enough memory for the scratch of %d rows", want->rows);
}

void dg_cpu_gemm_free(struct dg_cpu_gemm *g) {
    dg_free(g->x);
    dg_free(g->panel);
    dg_free(g->c);
    dg_free(g->x_own);
    dg_free(g->bucket);
    dg_free(g->unit);
    dg_free(g->pair);
    dg_free(g->pair_h);
    dg_free(g->pair_y);
    dg_free(g->head);
}
