/* What a bench asks of the device beyond the op table. */
#include "ops/cuda/state.h"

#include <math.h>

double dg_cuda_copy_rate(struct dg_backend *be, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    char *p = dg_cuda_alloc_raw(be, 2 * bytes, "measuring a copy");
    float best = INFINITY;
    for (int i = 0; p && i < 5; i++) {
        dg_cuda_mark(be, 0);
        if (dg_cuda_enter(be))
            dg_cuda_ok(be, cu->d.copy_on_device((dg_cu_ptr)(uintptr_t)p, (dg_cu_ptr)(uintptr_t)(p + bytes), bytes, cu->stream), "copying");
        dg_cuda_mark(be, 1);
        float ms = dg_cuda_elapsed(be, 0, 1);
        best = ms > 0 && ms < best ? ms : best;
    }
    if (p)
        dg_cuda_free(be, p);
    return 2e3 * (double)bytes / (double)best;
}

void dg_cuda_replay_passes(struct dg_backend *be, bool on) {
    dg_cuda_replay_forget(be);
    dg_cuda_of(be)->ops.replay = on ? dg_cuda_replay : NULL;
}
