/* The experts of a layer: rows sorted by expert, each expert's rows packed where they are used, its two products, and the weighted sum. */
#include "ops/buckets.h"
#include "ops/cpu/product.h"

#include <stdatomic.h>
#include <string.h>

struct expert_job {
    const struct dg_cpu *cpu;
    const struct dg_plane *x;
    const struct dg_routing *routing;
    const struct dg_stack *gate_up, *down;
    struct dg_plane *y;
    int32_t experts;
    int64_t units;
    atomic_llong next;
};

/* Units of work: every expert that has rows is cut into as many parts, of whole panels, as its share of the rows asks for, so that neither
 * many small experts nor one large one keeps threads waiting. */
static int64_t make_units(const struct dg_cpu *c, int64_t n_pairs, int32_t experts, int64_t panels) {
    const int32_t *b = c->gemm.bucket;
    int64_t n = 0;
    for (int32_t e = 0; e < experts; e++) {
        int64_t rows = b[e + 1] - b[e], parts = rows ? (rows * 16 * c->n_threads + n_pairs - 1) / n_pairs : 0;
        c->gemm.unit[e] = (int32_t)n;
        n += parts < panels ? parts : panels;
    }
    c->gemm.unit[experts] = (int32_t)n;
    return n;
}

/* Unit u: its expert, and its rows [*begin, *end) of n in panels of `most`. False behind the last one. */
static bool find_unit(const struct expert_job *j, int64_t u, int32_t *e, int64_t n, int32_t most, int64_t *begin, int64_t *end) {
    const int32_t *unit = j->cpu->gemm.unit;
    if (u >= j->units)
        return false;
    int32_t lo = 0, hi = j->experts;
    while (hi - lo > 1) { /* the last expert whose first unit is not behind u */
        int32_t mid = lo + (hi - lo) / 2;
        if (unit[mid] <= u)
            lo = mid;
        else
            hi = mid;
    }
    *e = lo;
    dg_pool_range(n, most, (int)(u - unit[lo]), unit[lo + 1] - unit[lo], begin, end);
    return true;
}

static bool take_unit(struct expert_job *j, int32_t *e, int64_t n, int32_t most, int64_t *begin, int64_t *end) {
    return find_unit(j, atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed), e, n, most, begin, end);
}

/* Where this thread probably goes on behind a unit's last panel: the first row of the unit that is next now, NULL behind the last one. */
static const uint8_t *after_unit(struct expert_job *j, const struct dg_stack *stack, int64_t n, int32_t most) {
    int32_t e;
    int64_t begin, end;
    if (!find_unit(j, atomic_load_explicit(&j->next, memory_order_relaxed), &e, n, most, &begin, &end))
        return NULL;
    struct dg_mat w = dg_stack_mat(stack, e);
    return dg_mat_row(&w, begin);
}

/* A thread's packed block: rows [first, first + m) of an expert's bucket. Kept while the same rows are asked for. */
struct packed {
    void *data;
    int32_t first;
    int m;
};

static void pack_rows(struct expert_job *j, struct packed *p, int32_t first, int m, bool hidden) {
    if (p->first == first && p->m == m)
        return;
    const struct dg_gemm_kind *g = dg_cpu_kind(j->cpu);
    const struct dg_cpu_gemm *s = &j->cpu->gemm;
    enum dg_dtype t = j->x->dtype;
    int64_t esz = (int64_t)dg_dtype_bytes(t);
    const void *src[DG_PRODUCT_M];
    for (int i = 0; i < m; i++)
        src[i] = hidden ? (const char *)s->pair_h + (int64_t)(first + i) * j->down->k * esz
                        : (const char *)j->x->data + s->pair[first + i] / j->routing->k * j->x->ld * esz;
    dg_product_pack(g, p->data, m, 0, m, src, t, hidden ? j->down->k : j->x->cols);
    p->first = first;
    p->m = m;
}

static void up_part(void *arg, int part, int n_parts) {
    (void)n_parts;
    struct expert_job *j = arg;
    const struct dg_gemm_kernels *k = &j->cpu->k.gemm;
    const struct dg_gemm_kind *g = dg_cpu_kind(j->cpu);
    const struct dg_cpu_gemm *s = &j->cpu->gemm;
    struct packed x = {dg_product_x(j->cpu, part), -1, 0};
    float *c = dg_product_c(j->cpu, part);
    int32_t moe = j->down->k, most = g->cols / 2, e;
    bool half = j->x->dtype == DG_BF16;
    dg_product_begin(j->cpu);
    for (int64_t begin, end; take_unit(j, &e, moe, most, &begin, &end);) {
        struct dg_mat w = dg_stack_mat(j->gate_up, e);
        for (int32_t b = s->bucket[e], last = s->bucket[e + 1]; b < last; b += DG_PRODUCT_M) {
            int m = last - b < DG_PRODUCT_M ? last - b : DG_PRODUCT_M;
            pack_rows(j, &x, b, m, false);
            for (int64_t row = begin; row < end; row += most) {
                int32_t n = (int32_t)(end - row < most ? end - row : most);
                struct dg_product_rows rows[2] = {{&w, row, n, NULL}, {&w, moe + row, n, NULL}};
                rows[0].after = row + n < end ? dg_product_after(rows, n) : after_unit(j, j->gate_up, moe, most);
                if (rows[0].after)
                    rows[1].after = rows[0].after + moe * dg_format_row_bytes(w.fmt, w.k);
                dg_product(j->cpu, part, x.data, m, w.k, rows, 2, c);
                for (int i = 0; i < m; i++)
                    k->glu[half](c + i * g->cols, c + i * g->cols + dg_product_cols(g, n), n,
                                 (char *)s->pair_h + ((int64_t)(b + i) * moe + row) * (int64_t)dg_dtype_bytes(j->x->dtype));
            }
        }
    }
    dg_product_end(j->cpu);
}

static void down_part(void *arg, int part, int n_parts) {
    (void)n_parts;
    struct expert_job *j = arg;
    const struct dg_cpu_gemm *s = &j->cpu->gemm;
    struct packed x = {dg_product_x(j->cpu, part), -1, 0};
    float *c = dg_product_c(j->cpu, part);
    int32_t hidden = j->down->n, cols = dg_cpu_kind(j->cpu)->cols, e;
    dg_product_begin(j->cpu);
    for (int64_t begin, end; take_unit(j, &e, hidden, cols, &begin, &end);) {
        struct dg_mat w = dg_stack_mat(j->down, e);
        for (int32_t b = s->bucket[e], last = s->bucket[e + 1]; b < last; b += DG_PRODUCT_M) {
            int m = last - b < DG_PRODUCT_M ? last - b : DG_PRODUCT_M;
            pack_rows(j, &x, b, m, true);
            for (int64_t row = begin; row < end; row += cols) {
                int32_t n = (int32_t)(end - row < cols ? end - row : cols);
                struct dg_product_rows rows = {&w, row, n, NULL};
                rows.after = row + n < end ? dg_product_after(&rows, n) : after_unit(j, j->down, hidden, cols);
                dg_product(j->cpu, part, x.data, m, w.k, &rows, 1, c);
                for (int i = 0; i < m; i++)
                    memcpy(s->pair_y + (int64_t)s->pair[b + i] * hidden + row, c + i * cols, (size_t)n * sizeof *c);
            }
        }
    }
    dg_product_end(j->cpu);
}

static void sum_part(void *arg, int part, int n_parts) {
    struct expert_job *j = arg;
    int32_t hidden = j->down->n, k = j->routing->k;
    int64_t begin, end;
    dg_pool_range(j->x->rows, 1, part, n_parts, &begin, &end);
    for (int64_t m = begin; m < end; m++) {
        float *y = (float *)j->y->data + m * j->y->ld;
        memset(y, 0, (size_t)hidden * sizeof *y);
        for (int32_t r = 0; r < k; r++)
            j->cpu->k.gemm.axpy(y, j->cpu->gemm.pair_y + (m * k + r) * hidden, j->routing->weight[m * k + r], hidden);
    }
}

void dg_cpu_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                    const struct dg_stack *down, struct dg_plane *y) {
    struct dg_cpu *c = be->impl;
    struct expert_job j = {.cpu = c, .x = x, .routing = routing, .gate_up = gate_up, .down = down, .y = y, .experts = gate_up->e};
    int64_t n_pairs = (int64_t)x->rows * routing->k, cols = dg_cpu_kind(c)->cols, half = cols / 2;
    dg_bucket_pairs(routing, n_pairs, gate_up->e, c->gemm.bucket, c->gemm.pair);
    j.units = make_units(c, n_pairs, gate_up->e, (down->k + half - 1) / half);
    dg_pool_run(be->pool, up_part, &j);
    j.units = make_units(c, n_pairs, gate_up->e, (down->n + cols - 1) / cols);
    j.next = 0;
    dg_pool_run(be->pool, down_part, &j);
    dg_pool_run(be->pool, sum_part, &j);
}
