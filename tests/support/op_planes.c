#include "support/op_planes.h"

#include "core/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t op_random(struct op_run *r) {
    r->rng += 0x9e3779b97f4a7c15ull;
    uint64_t x = r->rng;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Near enough to normal: a sum of uniforms. */
double op_normal(struct op_run *r) {
    double s = 0;
    for (int i = 0; i < 6; i++)
        s += (double)(op_random(r) >> 11) * 0x1p-53 - 0.5;
    return s * 1.4142135623730951;
}

static void hold(struct op_run *r, void *p, bool device, size_t guarded) {
    struct op_held *h = malloc(sizeof *h);
    if (!h || !p)
        abort();
    *h = (struct op_held){p, device, guarded, r->held};
    r->held = h;
}

/* Zeroed bytes that end where a page begins that nobody may touch. */
static void *guarded(struct op_run *r, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page * page + page;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + n - page, page, PROT_NONE) != 0)
        abort();
    hold(r, p, false, n);
    return p + n - page - bytes;
}

void *op_memory(struct op_run *r, size_t bytes) {
    if (r->c->guard)
        return guarded(r, bytes);
    void *p = calloc(bytes ? bytes : 1, 1);
    hold(r, p, false, 0);
    return p;
}

/* Backend memory; a backend that has none ends the run here, with its reason. */
static void *device(struct op_run *r, size_t bytes) {
    if (r->c->guard)
        return guarded(r, bytes);
    void *p = r->c->be->ops->alloc(r->c->be, bytes);
    if (!p) {
        printf("no backend memory: %s\n", dg_error_text(&r->c->be->error));
        exit(1);
    }
    hold(r, p, true, 0);
    return p;
}

void *op_upload(struct op_run *r, const void *src, size_t bytes) {
    void *p = device(r, bytes);
    r->c->be->ops->write(r->c->be, p, src, bytes);
    return p;
}

void *op_poisoned(struct op_run *r, size_t bytes) {
    void *ones = op_memory(r, bytes);
    memset(ones, 0xff, bytes);
    return op_upload(r, ones, bytes);
}

/* What the backend left, on its way from the run that records to the one that checks. */
static void pass_on(struct op_run *r, void *bytes, size_t n) {
    struct {
        uint64_t rng, cases, bytes; /* where both runs are */
    } head = {r->rng, (uint64_t)r->cases, n}, other;
    if (r->c->record && (fwrite(&head, sizeof head, 1, r->c->record) != 1 || fwrite(bytes, 1, n, r->c->record) != n)) {
        fprintf(stderr, "cannot write the record\n");
        exit(1);
    }
    if (r->c->replay && (fread(&other, sizeof other, 1, r->c->replay) != 1 || memcmp(&head, &other, sizeof head) != 0 ||
                         fread(bytes, 1, n, r->c->replay) != n)) {
        printf("not ok - %s, case %d: the recorded run ended here or is another one\n", r->op, r->cases + 1);
        exit(1);
    }
}

const void *op_download(struct op_run *r, const void *p, size_t bytes) {
    void *h = op_memory(r, bytes);
    r->c->be->ops->read(r->c->be, h, p, bytes);
    pass_on(r, h, bytes);
    return h;
}

double op_put(void *base, enum dg_dtype t, int64_t i, double v) {
    if (t == DG_F32)
        return ((float *)base)[i] = (float)v;
    uint16_t h = t == DG_BF16 ? dg_f32_bf16((float)v) : dg_f32_f16((float)v);
    ((uint16_t *)base)[i] = h;
    return (double)(t == DG_BF16 ? dg_bf16_f32(h) : dg_f16_f32(h));
}

double op_get(const void *base, enum dg_dtype t, int64_t i) {
    if (t == DG_F32)
        return (double)((const float *)base)[i];
    uint16_t h = ((const uint16_t *)base)[i];
    return (double)(t == DG_BF16 ? dg_bf16_f32(h) : dg_f16_f32(h));
}

static size_t block_bytes(const struct dg_plane *p) { return (size_t)(p->rows + 2) * (size_t)p->ld * dg_dtype_bytes(p->dtype); }

static struct op_plane blank(struct op_run *r, int rows, int cols, enum dg_dtype t, bool out) {
    bool odd = r->rows_at == OP_ROWS_ODD || (r->rows_at == OP_ROWS_ODD_OUT && out);
    bool whole = r->rows_at == OP_ROWS_ANY ? op_random(r) & 1 : !odd;
    int64_t ld = whole ? (cols + 8 + 7) / 8 * 8 : cols + 1 + (int64_t)(op_random(r) % 9);
    if (odd && ld % 2 == 0)
        ld++;
    struct op_plane p = {.p = {NULL, t, rows, cols, ld}};
    p.v = op_memory(r, (size_t)rows * (size_t)cols * sizeof *p.v);
    p.raw = op_memory(r, block_bytes(&p.p));
    memset(p.raw, 0xff, block_bytes(&p.p));
    p.raw_rows = (float *)p.raw + ld;
    p.raw_rows_f32 = p.raw_rows;
    return p;
}

static void send_block(struct op_run *r, struct op_plane *p) {
    p->base = op_upload(r, p->raw, block_bytes(&p->p));
    p->p.data = (char *)p->base + (size_t)p->p.ld * dg_dtype_bytes(p->p.dtype);
}

struct op_plane op_input(struct op_run *r, int rows, int cols, enum dg_dtype t, double spread) {
    struct op_plane p = blank(r, rows, cols, t, false);
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < cols; c++)
            p.v[(int64_t)i * cols + c] = op_put(p.raw, t, (i + 1) * p.p.ld + c, op_normal(r) * spread);
    send_block(r, &p);
    return p;
}

struct op_plane op_output(struct op_run *r, int rows, int cols, enum dg_dtype t) {
    struct op_plane p = blank(r, rows, cols, t, true);
    send_block(r, &p);
    return p;
}

void op_send(struct op_run *r, struct op_plane *p) { r->c->be->ops->write(r->c->be, p->base, p->raw, block_bytes(&p->p)); }

void op_fetch(struct op_run *r, struct op_plane *p) {
    size_t esz = dg_dtype_bytes(p->p.dtype);
    r->c->be->ops->read(r->c->be, p->raw, p->base, block_bytes(&p->p));
    pass_on(r, p->raw, block_bytes(&p->p));
    if (!p->v)
        p->v = op_memory(r, (size_t)p->p.rows * (size_t)p->p.cols * sizeof *p->v);
    if (!op_checks(r))
        return;
    for (int i = -1; i <= p->p.rows; i++)
        for (int64_t c = 0; c < p->p.ld; c++) {
            int64_t at = (i + 1) * p->p.ld + c;
            for (size_t b = 0; b < esz; b++)
                r->c->digest = (r->c->digest ^ ((unsigned char *)p->raw)[(size_t)at * esz + b]) * 0x100000001b3ull;
            if (i >= 0 && i < p->p.rows && c < p->p.cols)
                p->v[(int64_t)i * p->p.cols + c] = op_get(p->raw, p->p.dtype, at);
            else
                for (size_t b = 0; b < esz; b++)
                    if (((unsigned char *)p->raw)[(size_t)at * esz + b] != 0xff) {
                        op_fail(r, "written outside the plane, at row %d column %lld", i, (long long)c);
                        return;
                    }
        }
}

struct dg_plane op_rows(const struct op_plane *p, int from, int n) {
    struct dg_plane part = p->p;
    part.data = (char *)p->p.data + (size_t)from * (size_t)p->p.ld * dg_dtype_bytes(p->p.dtype);
    part.rows = n;
    return part;
}

static void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

static double spread_of(enum op_codes codes, double spread) { return codes == OP_TINY ? 1e-36 : codes == OP_ZERO_SCALE ? 0 : spread; }

/* One row of k values in its format's own codes. */
static void make_row(struct op_run *r, enum dg_format fmt, uint8_t *row, int k, double spread, enum op_codes codes) {
    const struct dg_format_traits *t = dg_format_traits(fmt);
    double s = spread_of(codes, spread);
    if (t->block == 1 && fmt != DG_FMT_Q8_ROW) {
        enum dg_dtype d = fmt == DG_FMT_BF16 ? DG_BF16 : fmt == DG_FMT_F16 ? DG_F16 : DG_F32;
        for (int i = 0; i < k; i++)
            op_put(row, d, i, codes == OP_MAX ? (op_random(r) & 1 ? 200 : -200) : op_normal(r) * s);
        return;
    }
    size_t bytes = (size_t)dg_format_row_bytes(fmt, k);
    for (size_t i = 0; i < bytes; i++)
        row[i] = codes == OP_MAX ? 0xff : (uint8_t)(op_random(r) >> 24);
    if (fmt == DG_FMT_Q8_ROW) {
        put16(row, dg_f32_bf16((float)(s * 0.015)));
        for (int i = 0; i < k && codes == OP_MAX; i++)
            row[2 + i] = op_random(r) & 1 ? 0x7f : 0x80;
    } else if (fmt == DG_FMT_NVFP4_BLOCK) {
        for (int i = 0; i < k / 16; i++) {
            uint8_t *e = row + k / 2 + i;
            *e = codes == OP_MAX ? 0x7e : codes == OP_ZERO_SCALE ? 0 : codes == OP_TINY ? (uint8_t)(op_random(r) % 8) : *e;
            if ((*e & 0x7f) == 0x7f)
                *e ^= 1; /* NaN is not a scale */
        }
    } else {
        double top = fmt == DG_FMT_Q4_BLOCK ? 15 : 63;
        for (int b = 0; b < k / 32; b++) {
            uint8_t *p = row + b * t->block_bytes;
            put16(p, dg_f32_bf16((float)(s * (1 + 0.5 * op_normal(r)) * 3 / top)));
            put16(p + 2, dg_f32_bf16((float)(-s * (1.5 + 0.3 * op_normal(r)))));
        }
    }
}

static void make_mat(struct op_run *r, enum dg_format fmt, uint8_t *raw, int n, int k, double spread, enum op_codes codes) {
    if (fmt == DG_FMT_NVFP4_BLOCK) {
        float global = (float)(spread * (codes == OP_MAX ? 1 : 0.02 + 0.01 * op_normal(r)));
        memcpy(raw, &global, 4);
    }
    for (int i = 0; i < n; i++)
        make_row(r, fmt, raw + dg_format_traits(fmt)->mat_extra + i * dg_format_row_bytes(fmt, k), k, spread, codes);
}

static void decode_mat(enum dg_format fmt, const uint8_t *raw, int n, int k, double *v) {
    const struct dg_format_traits *t = dg_format_traits(fmt);
    float *decoded = malloc((size_t)k * sizeof *decoded);
    if (!decoded)
        abort();
    for (int i = 0; i < n; i++) {
        t->decode_row(raw, raw + t->mat_extra + i * dg_format_row_bytes(fmt, k), k, decoded);
        for (int c = 0; c < k; c++)
            v[(int64_t)i * k + c] = (double)decoded[c];
    }
    free(decoded);
}

struct op_mat op_mat_codes(struct op_run *r, enum dg_format fmt, int n, int k, enum op_codes codes) {
    size_t bytes = (size_t)dg_format_mat_bytes(fmt, n, k);
    struct op_mat m = {.raw = op_memory(r, bytes), .v = op_memory(r, (size_t)n * (size_t)k * sizeof *m.v)};
    make_mat(r, fmt, m.raw, n, k, 1, codes);
    decode_mat(fmt, m.raw, n, k, m.v);
    m.m = (struct dg_mat){fmt, n, k, m.raw, 0};
    m.m.dev = (uint64_t)(uintptr_t)op_upload(r, m.raw, bytes);
    return m;
}

struct op_mat op_mat(struct op_run *r, enum dg_format fmt, int n, int k, double spread) {
    (void)spread;
    return op_mat_codes(r, fmt, n, k, OP_RANDOM);
}

void op_mat_copy_row(struct op_mat *m, int to, int from) {
    int64_t bytes = dg_format_row_bytes(m->m.fmt, m->m.k), head = dg_format_traits(m->m.fmt)->mat_extra;
    memcpy(m->raw + head + to * bytes, m->raw + head + from * bytes, (size_t)bytes);
    memcpy(m->v + (int64_t)to * m->m.k, m->v + (int64_t)from * m->m.k, (size_t)m->m.k * sizeof *m->v);
}

void op_mat_send(struct op_run *r, struct op_mat *m) {
    r->c->be->ops->write(r->c->be, (void *)(uintptr_t)m->m.dev, m->raw, (size_t)dg_format_mat_bytes(m->m.fmt, m->m.n, m->m.k));
}

struct dg_stack op_stack(struct op_run *r, enum dg_format fmt, int e, int n, int k) {
    size_t bytes = (size_t)dg_format_mat_bytes(fmt, n, k);
    uint8_t *raw = op_memory(r, (size_t)e * bytes);
    for (int i = 0; i < e; i++)
        make_mat(r, fmt, raw + (size_t)i * bytes, n, k, 0.2, OP_RANDOM);
    struct dg_stack s = {fmt, e, n, k, raw, 0, false};
    s.dev = (uint64_t)(uintptr_t)op_upload(r, raw, (size_t)e * bytes);
    return s;
}

void op_stack_values(const struct dg_stack *s, int e, double *v) {
    decode_mat(s->fmt, s->data + (size_t)e * (size_t)dg_format_mat_bytes(s->fmt, s->n, s->k), s->n, s->k, v);
}

struct op_vec op_vec(struct op_run *r, int n, double center) {
    float *f = op_memory(r, (size_t)n * sizeof *f);
    struct op_vec v = {.w = op_memory(r, (size_t)n * sizeof *v.w)};
    for (int i = 0; i < n; i++)
        v.w[i] = (double)(f[i] = (float)(center + 0.3 * op_normal(r)));
    v.v = (struct dg_vec){f, n, (uint64_t)(uintptr_t)op_upload(r, f, (size_t)n * sizeof *f)};
    return v;
}

void op_fail(struct op_run *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (r->complaints++ == 0)
        vsnprintf(r->first, sizeof r->first, fmt, ap);
    va_end(ap);
}

void op_expect_value(struct op_run *r, double got, double want, double bound, const char *what, int i, int j) {
    double e = fabs(got - want);
    if (!op_checks(r))
        return;
    if (!(e <= bound)) /* NaN fails */
        op_fail(r, "%s [%d][%d] is %.9g, %.9g expected, error %.3g over bound %.3g", what, i, j, got, want, e, bound);
    else if (bound > 0 && e / bound > r->case_worst)
        r->case_worst = e / bound;
}

void op_expect(struct op_run *r, const struct op_plane *y, int row, int col, double want, double bound) {
    op_expect_value(r, y->v[(int64_t)row * y->p.cols + col], want, bound, "y", row, col);
}

void op_expect_same(struct op_run *r, const struct op_plane *a, int a_row, const struct op_plane *b, int b_row, int n) {
    for (int i = 0; op_checks(r) && i < n; i++)
        for (int c = 0; c < a->p.cols; c++) {
            double x = a->v[(int64_t)(a_row + i) * a->p.cols + c], y = b->v[(int64_t)(b_row + i) * b->p.cols + c];
            if (memcmp(&x, &y, sizeof x) != 0) {
                op_fail(r, "row %d column %d depends on the rows beside it: %.9g and %.9g", a_row + i, c, x, y);
                return;
            }
        }
}

void op_done(struct op_run *r, const char *fmt, ...) {
    struct dg_error err = {0};
    if (dg_backend_status(r->c->be, &err) != DG_OK) {
        op_fail(r, "%s", dg_error_text(&err));
        dg_error_clear(&err);
    }
    while (r->held) {
        struct op_held *h = r->held;
        r->held = h->next;
        if (h->guarded)
            munmap(h->p, h->guarded);
        else if (h->device)
            r->c->be->ops->free(r->c->be, h->p);
        else
            free(h->p);
        free(h);
    }
    r->cases++;
    r->worst = r->case_worst > r->worst ? r->case_worst : r->worst;
    if (r->complaints) {
        char name[160];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(name, sizeof name, fmt, ap);
        va_end(ap);
        printf("FAILED %s %s: %s (%d complaints)\n", r->op, name, r->first, r->complaints);
        r->c->failed++;
    } else {
        r->c->passed++;
    }
    r->complaints = 0;
    r->case_worst = 0;
}
