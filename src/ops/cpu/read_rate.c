#include "ops/cpu/read_rate.h"

#include <stdint.h>
#include <time.h>

const struct dg_memory_pattern dg_memory_patterns[DG_MEMORY_PATTERNS] = {{1, 0}, {1, 4096}, {4, 0}, {4, 1024}, {16, 512}, {32, 256}};

#define LINE 64
#define PIECE 256 /* of a stream at a time */

typedef uint64_t words __attribute__((vector_size(16)));

struct job {
    const char *memory;
    size_t bytes;
    const struct dg_memory_pattern *p;
};

static inline void read_piece(const char *p, int64_t ahead, words *sum) {
    const words *w = (const words *)(const void *)p;
    for (int64_t i = 0; ahead && i < PIECE; i += LINE)
        __builtin_prefetch(p + ahead + i);
    for (int i = 0; i < PIECE / 16; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] ^= w[i + k];
}

static void read_part(void *arg, int part, int n_parts) {
    const struct job *j = arg;
    int64_t begin, end, n = j->p->streams;
    dg_pool_range((int64_t)j->bytes, DG_MEMORY_GRAIN, part, n_parts, &begin, &end);
    int64_t each = (end - begin) / n / PIECE * PIECE;
    words sum[4] = {{0}};
    for (int64_t at = 0; at < each; at += PIECE)
        for (int64_t s = 0; s < n; s++)
            read_piece(j->memory + begin + s * each + at, j->p->ahead, sum);
    for (int64_t at = begin + each * n; at < end; at += PIECE)
        read_piece(j->memory + at, 0, sum);
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    __asm__ volatile("" : : "m"(sum[0]) : "memory");
}

void dg_memory_read(struct dg_pool *pool, const void *memory, size_t bytes, const struct dg_memory_pattern *p) {
    struct job j = {memory, bytes, p};
    dg_pool_run(pool, read_part, &j);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const struct dg_memory_pattern *dg_memory_best(struct dg_pool *pool, const void *memory, size_t bytes, int repeat) {
    const struct dg_memory_pattern *best = dg_memory_patterns;
    double least = 0;
    for (int i = 0; i < DG_MEMORY_PATTERNS; i++)
        for (int r = 0; r < repeat; r++) {
            double t = now();
            dg_memory_read(pool, memory, bytes, dg_memory_patterns + i);
            t = now() - t;
            if (least == 0 || t < least) {
                least = t;
                best = dg_memory_patterns + i;
            }
        }
    return best;
}
