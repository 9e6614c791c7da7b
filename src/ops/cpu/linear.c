/* Linear ops: stacked matrices, and gate and up with the GLU between them. */
#include "ops/cpu/product.h"

#include <stdatomic.h>

struct linear_job {
    const struct dg_cpu *cpu;
    const void *x;
    int32_t rows;
    int64_t k;
    const struct dg_mat *const *w;
    int n_w;
    bool glu;
    struct dg_plane *y;
    int32_t block; /* output columns of a unit */
    int64_t units;
    atomic_llong next;
};

static char *at(const struct dg_plane *y, int64_t row, int64_t col) {
    return (char *)y->data + (row * y->ld + col) * (int64_t)dg_dtype_bytes(y->dtype);
}

/* The output columns of a unit, as rows of one matrix, or of two that lie beside each other in the result. */
static int unit_rows(const struct linear_job *j, int64_t u, struct dg_product_rows *w, int64_t *col) {
    if (j->glu) {
        int64_t row = u * j->block;
        int32_t n = (int32_t)(j->w[0]->n - row < j->block ? j->w[0]->n - row : j->block);
        for (int i = 0; i < 2; i++) {
            w[i] = (struct dg_product_rows){j->w[i], row, n, NULL};
            w[i].after = dg_product_after(w + i, (int64_t)j->block * j->cpu->n_threads);
        }
        *col = row;
        return 2;
    }
    int64_t base = 0;
    for (int i = 0;; base += j->w[i++]->n) {
        int64_t n = j->w[i]->n, own = (n + j->block - 1) / j->block;
        if (u >= own) {
            u -= own;
            continue;
        }
        int64_t row = u * j->block;
        w[0] = (struct dg_product_rows){j->w[i], row, (int32_t)(n - row < j->block ? n - row : j->block), NULL};
        w[0].after = dg_product_after(w, (int64_t)j->block * j->cpu->n_threads);
        *col = base + row;
        return 1;
    }
}

static void linear_part(void *arg, int part, int n_parts) {
    (void)n_parts;
    struct linear_job *j = arg;
    const struct dg_gemm_kernels *k = &j->cpu->k.gemm;
    const struct dg_gemm_kind *g = dg_cpu_kind(j->cpu);
    int64_t block_bytes = dg_product_bytes(g, DG_PRODUCT_M, j->k);
    float *c = dg_product_c(j->cpu, part);
    bool half = j->y->dtype == DG_BF16;
    dg_product_begin(j->cpu);
    for (int64_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->units;) {
        struct dg_product_rows w[2];
        int64_t col;
        int n_w = unit_rows(j, u, w, &col);
        for (int32_t m0 = 0; m0 < j->rows; m0 += DG_PRODUCT_M) {
            int m = j->rows - m0 < DG_PRODUCT_M ? j->rows - m0 : DG_PRODUCT_M;
            dg_product(j->cpu, part, (const char *)j->x + m0 / DG_PRODUCT_M * block_bytes, m, j->k, w, n_w, c);
            for (int i = 0; i < m; i++)
                if (j->glu)
                    k->glu[half](c + i * g->cols, c + i * g->cols + dg_product_cols(g, w[0].n), w[0].n, at(j->y, m0 + i, col));
                else
                    k->store[half](c + i * g->cols, w[0].n, at(j->y, m0 + i, col));
        }
    }
    dg_product_end(j->cpu);
}

/* Units small enough that the last ones to end do not leave the other threads waiting for long. */
static int32_t unit_block(const struct dg_gemm_kind *g, int64_t n, int32_t most, int n_threads) {
    int64_t want = (n + 8 * n_threads - 1) / (8 * n_threads);
    int32_t b = want < most ? dg_product_cols(g, (int32_t)want) : most;
    return b < most ? b : most;
}

void dg_cpu_linear(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *const *w, int n_w, enum dg_epilogue epi,
                   struct dg_plane *y) {
    struct dg_cpu *c = be->impl;
    struct linear_job j = {.cpu = c, .rows = x->rows, .k = x->cols, .w = w, .n_w = n_w, .glu = epi == DG_EPI_GLU, .y = y};
    int64_t n = 0;
    for (int i = 0; i < (j.glu ? 1 : n_w); i++)
        n += w[i]->n;
    int32_t cols = dg_cpu_kind(c)->cols;
    j.block = unit_block(dg_cpu_kind(c), n, j.glu ? cols / 2 : cols, c->n_threads);
    for (int i = 0; i < (j.glu ? 1 : n_w); i++)
        j.units += (w[i]->n + j.block - 1) / j.block;
    j.x = dg_product_pack_plane(be, x);
    dg_pool_run(be->pool, linear_part, &j);
}
