/* The choice of the highest scores of long rows, in the emulator, against a sort: ties, both zeros, outliers, the best all in one place. */
#include "cuda/emulate.h"
#undef uint4
#include "ops/cuda/kernels.h"

#include <stdio.h>

#define HD 64

void dgc_top_values(const struct dgc_top_values_args a);
static void run(void *a) { dgc_top_values(*(const struct dgc_top_values_args *)a); }

static uint64_t state = 1;
static double uniform(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) * 0x1p-53;
}
static double normal(void) { return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307 * uniform()); }

enum kind { NORMAL, STEPS, OUTLIERS, LOW, ONE_HIGH, AT_THE_END, ZEROS, ONE_A_GROUP, WIDE, EQUAL, CLUSTERS, NOT_A_NUMBER, KINDS };
static const char *const names[KINDS] = {"normal",           "steps", "outliers",       "low",        "one high",  "the best at the end",
                                         "zeros of both signs", "one a group of 32", "many magnitudes", "all equal", "whole groups high", "one NaN"};

static double score(enum kind kind, int i, int n) {
    double x = normal() * 3;
    switch (kind) {
    case STEPS: return floor(x);
    case OUTLIERS: return i % 97 == 5 ? 60 : x;
    case LOW: return x - 500;
    case ONE_HIGH: return i == 0 ? 80 : x * 1e-3;
    case AT_THE_END: return i < n - 700 ? x * 0.03 - 20 : x;
    case ZEROS: return x < 0 ? -0.0 : 0.0;
    case ONE_A_GROUP: return i % 32 == 7 ? 5 + x * 1e-3 : x / 3;
    case WIDE: return x * exp(normal() * 3);
    case EQUAL: return 1.5;
    case CLUSTERS: return i / 32 % 7 == 3 ? x + 20 : x;
    case NOT_A_NUMBER: return i == n / 2 ? NAN : x;
    default: return x;
    }
}

struct entry {
    float s;
    int i;
};
static int by_score(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return x->s > y->s ? -1 : x->s < y->s ? 1 : x->i - y->i;
}

/* Key i of a group of 32 lies where a tensor core product's lanes put it (topk.cuh): written out here, not taken from there. */
static int place(int i) {
    int tile = i / 8, lane = i % 8 / 2;
    return tile / 2 * 16 + lane * 4 + tile % 2 * 2 + i % 2;
}

static void *memory(size_t n) {
    void *p = malloc(n);
    if (!p)
        abort();
    return p;
}

/* The row of scores as weights: those of the k highest, zeros elsewhere and up to a multiple of 64. */
static int wrong_weights(const uint16_t *w, float scale, const struct entry *e, int n, int k) {
    double sum = 0;
    int wrong = 0, others = 0;
    for (int j = 0; j < n; j++) {
        double p = exp((double)e[j].s - (double)e[0].s), got = (double)dg_f16_f32(w[e[j].i]);
        sum += j < k ? p : 0;
        wrong += j < k ? !(fabs(got - p) < 5e-4 * p + 1e-7) : got != 0;
    }
    for (int j = n; j < (n + 63) / 64 * 64; j++)
        others += w[j] != 0;
    return wrong || others || !(fabs((double)scale * sum - 1) < 1e-5);
}

static int one(enum kind kind, int n, int topk) {
    size_t pitch = (size_t)(n + 127) / 128 * 128;
    float *s = memory(pitch * 4), *most = memory(pitch / 32 * 4), y[HD];
    uint16_t *v = memory((size_t)n * HD * 2);
    struct entry *e = memory((size_t)n * sizeof *e);
    memset(s, 0xff, pitch * 4);
    memset(most, 0xff, pitch / 32 * 4);
    for (int i = 0; i < n; i++) {
        e[i] = (struct entry){(float)score(kind, i, n), i};
        s[(i & ~31) + place(i & 31)] = e[i].s;
        most[i / 32] = i % 32 == 0 || e[i].s > most[i / 32] || isnan(e[i].s) ? e[i].s : most[i / 32];
        for (int d = 0; d < HD; d++)
            v[(size_t)i * HD + (size_t)d] = dg_f32_f16((float)normal());
    }
    struct dgc_params prm = {.ring_from = -1, .n_live = n};
    struct dgc_top_values_args a = {{y, HD, DGC_F32}, {v, v, n, DGC_F16, 1, HD, 0, 0}, &prm, s, most, (int64_t)pitch, 1, 1, 0, 0, topk, 0};
    emu_launch(run, &a, 1, 1, 128, 0);
    int k = topk > 0 ? topk : n / 128 < 64 ? 64 : n / 128 > 512 ? 512 : n / 128, wrong = 0;
    k = k < n ? k : n;
    if (kind != NOT_A_NUMBER)
        qsort(e, (size_t)n, sizeof *e, by_score);
    for (int d = 0; d < HD; d++) {
        double sum = 0, want = 0;
        for (int j = 0; j < k; j++) {
            double p = exp((double)e[j].s - (double)e[0].s);
            sum += p;
            want += p * (double)dg_f16_f32(v[(size_t)e[j].i * HD + (size_t)d]);
        }
        wrong += kind == NOT_A_NUMBER ? !isnan(y[d]) : !(fabs(want / sum - (double)y[d]) < 2e-5);
    }
    a.dense = 1;
    emu_launch(run, &a, 1, 1, 128, 0);
    wrong += kind != NOT_A_NUMBER && wrong_weights((const uint16_t *)s, most[0], e, n, k);
    if (wrong)
        fprintf(stderr, "%s, %d scores, top %d: %d of %d sums are wrong\n", names[kind], n, topk, wrong, HD);
    free(s);
    free(most);
    free(v);
    free(e);
    return wrong != 0;
}

int main(void) {
    static const int n[] = {1, 31, 33, 64, 2047, 2049, 5000, 33024, 100256};
    int failed = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        int bad = 0;
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            bad += one((enum kind)kind, n[i], -1);
            if (n[i] <= 5000) {
                bad += one((enum kind)kind, n[i], 1);
                bad += one((enum kind)kind, n[i], 300);
            }
        }
        printf("%sok - highest of long rows, %s\n", bad ? "not " : "", names[kind]);
        failed += bad;
    }
    return failed != 0;
}
