/* The output head: logits, their cap and each row's statistics in one pass over the vocabulary.
 *
 * Statistics are taken block by block of columns, relative to the block's own maximum, while the logits are still in the
 * cache, and merged in the blocks' order: neither depends on which thread had which block. */
#include "ops/cpu/product.h"

#include <math.h>
#include <stdatomic.h>

struct head_job {
    const struct dg_cpu *cpu;
    const void *x;
    int32_t rows;
    const struct dg_mat *embed;
    float cap, inv_t;
    struct dg_plane *logits;
    const struct dg_row_stats *stats;
    int64_t blocks;
    atomic_llong next;
};

static void logits_part(void *arg, int part, int n_parts) {
    (void)n_parts;
    struct head_job *j = arg;
    const struct dg_gemm_kernels *k = &j->cpu->k.gemm;
    const struct dg_gemm_kind *g = dg_cpu_kind(j->cpu);
    int64_t block_bytes = dg_product_bytes(g, DG_PRODUCT_M, j->embed->k), block = dg_head_block(j->cpu);
    float *c = dg_product_c(j->cpu, part);
    dg_product_begin(j->cpu);
    for (int64_t b; (b = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->blocks;) {
        int64_t v0 = b * block, v1 = v0 + block < j->embed->n ? v0 + block : j->embed->n;
        for (int32_t m0 = 0; m0 < j->rows; m0 += DG_PRODUCT_M) {
            int m = j->rows - m0 < DG_PRODUCT_M ? j->rows - m0 : DG_PRODUCT_M;
            float *z = (float *)j->logits->data + m0 * j->logits->ld;
            for (int64_t v = v0; v < v1; v += g->cols) {
                int64_t ahead = v + g->cols < v1 ? g->cols : g->cols + (j->cpu->n_threads - 1) * block;
                struct dg_product_rows w = {j->embed, v, (int32_t)(v1 - v < g->cols ? v1 - v : g->cols), NULL};
                w.after = dg_product_after(&w, ahead);
                dg_product(j->cpu, part, (const char *)j->x + m0 / DG_PRODUCT_M * block_bytes, m, j->embed->k, &w, 1, c);
                for (int i = 0; i < m; i++)
                    k->store[0](c + i * g->cols, w.n, z + i * j->logits->ld + v);
            }
            for (int i = 0; i < m; i++)
                k->cap_stats(z + i * j->logits->ld + v0, v1 - v0, j->cap, j->inv_t, &j->cpu->gemm.head[b * j->rows + m0 + i]);
        }
    }
    dg_product_end(j->cpu);
}

static void merge_part(void *arg, int part, int n_parts) {
    struct head_job *j = arg;
    int64_t begin, end;
    dg_pool_range(j->rows, 1, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const struct dg_head_part *p = j->cpu->gemm.head + i;
        int64_t best = 0;
        for (int64_t b = 1; b < j->blocks; b++)
            if (p[b * j->rows].max > p[best * j->rows].max)
                best = b;
        float max = p[best * j->rows].max * j->inv_t;
        double sum = 0, moment = 0;
        for (int64_t b = 0; b < j->blocks; b++) {
            const struct dg_head_part *q = p + b * j->rows;
            double d = (double)(q->max * j->inv_t) - (double)max, e = exp(d);
            sum += e * (double)q->sum;
            moment += e * ((double)q->moment + d * (double)q->sum);
        }
        double h = log(sum) - moment / sum;
        j->stats->entropy[i] = (float)(h < 0 ? 0 : h);
        j->stats->max[i] = max;
        j->stats->sum[i] = (float)sum;
        j->stats->p_max[i] = (float)(1.0 / sum);
        j->stats->argmax[i] = (int32_t)(best * dg_head_block(j->cpu)) + p[best * j->rows].arg;
    }
}

void dg_cpu_head(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *embed, float cap, float inv_t, struct dg_plane *logits,
                 struct dg_row_stats *stats) {
    struct head_job j = {.cpu = be->impl, .rows = x->rows, .embed = embed, .cap = cap, .inv_t = inv_t, .logits = logits, .stats = stats};
    j.blocks = (embed->n + dg_head_block(j.cpu) - 1) / dg_head_block(j.cpu);
    j.x = dg_product_pack_plane(be, x);
    dg_pool_run(be->pool, logits_part, &j);
    dg_pool_run(be->pool, merge_part, &j);
}
