/* What a bench asks of the device beyond the op table. */
#include "ops/cuda/state.h"

#include <math.h>

/* Seconds of the best of five copies on the device, or to it when host is not NULL; infinite after a failure. */
static double best_copy(struct dg_backend *be, dg_cu_ptr to, dg_cu_ptr from, const void *host, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    float best = INFINITY;
    for (int i = 0; i < 5; i++) {
        dg_cuda_mark(be, 0);
        if (dg_cuda_enter(be))
            dg_cuda_ok(be, host ? cu->d.copy_to_device(to, host, bytes, cu->stream) : cu->d.copy_on_device(to, from, bytes, cu->stream), "copying");
        dg_cuda_mark(be, 1);
        float ms = dg_cuda_elapsed(be, 0, 1);
        best = ms > 0 && ms < best ? ms : best;
    }
    return (double)best / 1e3;
}

/* What is measured is the device, so the budget does not count; where there is no room, a smaller copy says nearly the same. */
double dg_cuda_copy_rate(struct dg_backend *be, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    size_t budget = cu->budget, left = 0, total = 0;
    if (!dg_cuda_enter(be) || !dg_cuda_ok(be, cu->d.mem_info(&left, &total), "asking how much memory is free"))
        return 0;
    while (bytes > (1 << 20) && 2 * bytes > left / 2)
        bytes /= 2;
    cu->budget = 0;
    char *p = dg_cuda_alloc_raw(be, 2 * bytes, "measuring a copy");
    cu->budget = budget;
    if (!p)
        return 0;
    double s = best_copy(be, (dg_cu_ptr)(uintptr_t)p, (dg_cu_ptr)(uintptr_t)(p + bytes), NULL, bytes);
    dg_cuda_free(be, p);
    return 2 * (double)bytes / s;
}

double dg_cuda_host_rate(struct dg_backend *be) {
    struct dg_cuda_feed *f = &dg_cuda_of(be)->feed;
    if (!f->n)
        return 0;
    dg_cuda_feed_claim(be);
    double s = best_copy(be, (dg_cu_ptr)(uintptr_t)f->slots, 0, f->host[0], f->bytes[0]);
    dg_cuda_feed_release(be);
    return (double)f->bytes[0] / s;
}

enum dg_status dg_cuda_bus_id(struct dg_backend *be, char *id, size_t size, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.device_bus(id, (int)size, cu->device), "asking for the device's place on the bus");
    return dg_backend_status(be, err);
}

void dg_cuda_replay_passes(struct dg_backend *be, bool on) {
    dg_cuda_replay_forget(be);
    dg_cuda_of(be)->ops.replay = on ? dg_cuda_replay : NULL;
}
