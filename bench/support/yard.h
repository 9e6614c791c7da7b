/* The yardstick of dense products: oneDNN's matmul on weights that it has packed as it likes. Built in where libdnnl-dev is installed; no part
 * of the engine. oneDNN chooses its kernels by the processor; ONEDNN_MAX_CPU_ISA in the environment caps it. */
#ifndef DG_BENCH_YARD_H
#define DG_BENCH_YARD_H

#include <stdbool.h>

enum yard_type { YARD_F32, YARD_BF16 };

struct yard; /* one product y[m,n] = x[m,k] w[n,k], inputs of the type, sums in f32 */

/* NULL: this build or this processor has no such product. Owner: the caller. */
struct yard *yard_create(enum yard_type type, int m, int n, int k, int threads);
void yard_destroy(struct yard *y); /* NULL is allowed */
/* Computes it once. Seconds that it took. */
double yard_run(struct yard *y);
/* Returns when the yardstick's threads have gone to sleep: they look for more work for about a millisecond. */
void yard_rest(void);
const char *yard_kernel(const struct yard *y);

#endif
