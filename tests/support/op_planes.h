/* Inputs, outputs and comparisons of op cases. Everything a case makes lives until op_done. */
#ifndef DG_TESTS_OP_PLANES_H
#define DG_TESTS_OP_PLANES_H

#include "support/op_cases.h"

#define U 0x1p-24 /* unit roundoff of f32 */

/* Relative error of an f32 sum of n products whose order is one of the engine's: at least 16 sums side by side, or sums of 32. */
static inline double sum_bound(double n) { return (n / 16 + 48) * U; }

struct op_held {
    void *p;
    bool device;
    size_t guarded; /* bytes of the mapping whose last page is the guard; 0 = none */
    struct op_held *next;
};

/* Where a plane's rows begin: at random (as it comes, plane by plane), at whole vectors, which is what the fastest kernels ask for, never there, or
 * those of outputs alone never there. Planes that different runs of a case are compared through must not be left to chance: the kernel is chosen by
 * it. */
enum op_rows_at { OP_ROWS_ANY, OP_ROWS_WHOLE, OP_ROWS_ODD, OP_ROWS_ODD_OUT };

struct op_run {
    struct op_cases *c;
    const char *op;
    uint64_t rng;
    int cases;
    double worst, case_worst;
    double weight_round; /* of the format at hand */
    enum op_rows_at rows_at;
    int complaints; /* of the case in progress */
    char first[160];
    struct op_held *held;
};

enum op_codes { OP_RANDOM, OP_MAX, OP_ZERO_SCALE, OP_TINY };

/* A plane inside a larger block: a row of poison before and after, and `ld - cols` poisoned elements behind each row. */
struct op_plane {
    struct dg_plane p;
    double *v;       /* [rows][cols] */
    void *base;      /* backend memory */
    void *raw;       /* host copy of the block */
    float *raw_rows; /* first row in the host copy; f32 planes only */
    const float *raw_rows_f32;
};
struct op_mat {
    struct dg_mat m;
    double *v; /* [n][k] */
    uint8_t *raw;
};
struct op_vec {
    struct dg_vec v;
    double *w;
};

uint64_t op_random(struct op_run *r);
double op_normal(struct op_run *r);

/* Are results checked here, or recorded for a program that does? */
static inline bool op_checks(const struct op_run *r) { return !r->c->record; }

void *op_memory(struct op_run *r, size_t bytes);                       /* host, zeroed */
void *op_upload(struct op_run *r, const void *src, size_t bytes);      /* backend memory with this content */
void *op_poisoned(struct op_run *r, size_t bytes);                     /* backend memory of all-ones bytes */
const void *op_download(struct op_run *r, const void *p, size_t bytes);
double op_put(void *base, enum dg_dtype t, int64_t i, double v);       /* returns the value as stored */
double op_get(const void *base, enum dg_dtype t, int64_t i);

struct op_plane op_input(struct op_run *r, int rows, int cols, enum dg_dtype t, double spread);
struct op_plane op_output(struct op_run *r, int rows, int cols, enum dg_dtype t);
void op_send(struct op_run *r, struct op_plane *p);  /* the host copy to the backend again */
void op_fetch(struct op_run *r, struct op_plane *p); /* the backend's content; complains where the frame changed */
struct dg_plane op_rows(const struct op_plane *p, int from, int n);

struct op_mat op_mat(struct op_run *r, enum dg_format fmt, int n, int k, double spread);
struct op_mat op_mat_codes(struct op_run *r, enum dg_format fmt, int n, int k, enum op_codes codes);
void op_mat_copy_row(struct op_mat *m, int to, int from);
void op_mat_send(struct op_run *r, struct op_mat *m);
struct dg_stack op_stack(struct op_run *r, enum dg_format fmt, int e, int n, int k);
void op_stack_values(const struct dg_stack *s, int e, double *v); /* of one matrix, [n][k] */
struct op_vec op_vec(struct op_run *r, int n, double center);

void op_expect_value(struct op_run *r, double got, double want, double bound, const char *what, int i, int j);
void op_expect(struct op_run *r, const struct op_plane *y, int row, int col, double want, double bound);
void op_expect_same(struct op_run *r, const struct op_plane *a, int a_row, const struct op_plane *b, int b_row, int n);
void op_fail(struct op_run *r, const char *fmt, ...) DG_PRINTF(2, 3);
/* Ends a case: frees what it made, counts it, prints it when it failed. */
void op_done(struct op_run *r, const char *fmt, ...) DG_PRINTF(2, 3);

#endif
