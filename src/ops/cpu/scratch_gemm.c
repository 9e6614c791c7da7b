#include "ops/cpu/state.h"

enum dg_status dg_cpu_gemm_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_gemm *out, struct dg_error *err) {
    (void)c;
    (void)want;
    (void)out;
    (void)err;
    return DG_OK;
}

void dg_cpu_gemm_free(struct dg_cpu_gemm *g) { (void)g; }
