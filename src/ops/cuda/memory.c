/* Device memory, and copies through pinned staging buffers. */
#include "core/mem.h"
#include "ops/cuda/state.h"

#include <stdio.h>
#include <string.h>

#define ALLOCS_MAX 65536

static bool remember(struct dg_cuda *cu, dg_cu_ptr p, size_t bytes) {
    if (cu->n_alloc == cu->cap_alloc) {
        size_t cap = cu->cap_alloc ? 2 * cu->cap_alloc : 64;
        struct dg_cuda_alloc *grown = cap > ALLOCS_MAX ? NULL : dg_realloc(cu->alloc, cu->n_alloc, cap, sizeof *grown);
        if (!grown)
            return false;
        cu->alloc = grown;
        cu->cap_alloc = cap;
    }
    cu->alloc[cu->n_alloc++] = (struct dg_cuda_alloc){p, bytes};
    cu->used += bytes;
    return true;
}

static void no_memory(struct dg_backend *be, size_t bytes, const char *what) {
    struct dg_cuda *cu = dg_cuda_of(be);
    size_t left = 0, total = 0;
    const double MiB = 1 << 20;
    cu->d.mem_info(&left, &total);
    if (be->error.code != DG_OK)
        return;
    if (cu->budget)
        DG_FAIL(&be->error, DG_E_NOMEM,
                "not enough GPU memory for %s: %.0f MiB more are needed, %.0f of the %.0f MiB allowed are taken and %.0f MiB of the device's "
                "%.0f are free; allow more, or choose a smaller context",
                what, (double)bytes / MiB, (double)cu->used / MiB, (double)cu->budget / MiB, (double)left / MiB, (double)total / MiB);
    else
        DG_FAIL(&be->error, DG_E_NOMEM,
                "not enough GPU memory for %s: %.0f MiB more are needed, %.0f of the device's %.0f MiB are free; choose a smaller context, or "
                "free the device",
                what, (double)bytes / MiB, (double)left / MiB, (double)total / MiB);
}

void *dg_cuda_alloc_raw(struct dg_backend *be, size_t bytes, const char *what) {
    struct dg_cuda *cu = dg_cuda_of(be);
    dg_cu_ptr p = 0;
    bytes = bytes ? bytes : 1;
    if (!dg_cuda_enter(be))
        return NULL;
    if (cu->budget && (bytes > cu->budget || cu->used > cu->budget - bytes)) {
        no_memory(be, bytes, what);
        return NULL;
    }
    dg_cu_result r = cu->d.mem_alloc(&p, bytes);
    if (r == DG_CU_OUT_OF_MEMORY) {
        no_memory(be, bytes, what);
        return NULL;
    }
    if (!dg_cuda_ok(be, r, "allocating"))
        return NULL;
    if (!remember(cu, p, bytes)) {
        cu->d.mem_free(p);
        dg_backend_fail(be, DG_E_NOMEM, "no memory to keep track of device memory");
        return NULL;
    }
    return (void *)(uintptr_t)p;
}

void *dg_cuda_alloc(struct dg_backend *be, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    void *p = dg_cuda_alloc_raw(be, bytes, "the session's buffers");
    if (p && !dg_cuda_ok(be, cu->d.set_bytes((dg_cu_ptr)(uintptr_t)p, 0, bytes ? bytes : 1, cu->stream), "clearing memory")) {
        dg_cuda_free(be, p);
        return NULL;
    }
    return p;
}

/* Works after a failure too: memory must not leak with an error. The driver waits for kernels that may still use the block. */
void dg_cuda_free(struct dg_backend *be, void *p) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (!p)
        return;
    dg_cuda_replay_forget(be);
    for (size_t i = cu->n_alloc; i-- > 0;)
        if (cu->alloc[i].p == (dg_cu_ptr)(uintptr_t)p) {
            cu->used -= cu->alloc[i].bytes;
            cu->alloc[i] = cu->alloc[--cu->n_alloc];
            if (cu->d.ctx_set(cu->ctx) == 0)
                cu->d.mem_free((dg_cu_ptr)(uintptr_t)p);
            return;
        }
    dg_backend_fail(be, DG_E_INTERNAL, "a pointer was freed that is not device memory of this backend");
}

enum dg_status dg_cuda_stages_open(struct dg_backend *be, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (int i = 0; i < DG_CUDA_STAGES && dg_cuda_enter(be); i++)
        if (dg_cuda_ok(be, cu->d.host_alloc(&cu->stage[i].host, DG_CUDA_STAGE_BYTES, 0), "pinning host memory"))
            dg_cuda_ok(be, cu->d.event_create(&cu->stage[i].free, 2 /* no timing */), "making an event");
    return dg_backend_status(be, err);
}

void dg_cuda_stages_close(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (int i = 0; i < DG_CUDA_STAGES; i++) {
        if (cu->stage[i].free)
            cu->d.event_destroy(cu->stage[i].free);
        if (cu->stage[i].host)
            cu->d.host_free(cu->stage[i].host);
    }
}

/* The caller may change src at once: it is copied to a pinned buffer, whose last copy to the device has been waited for. */
void dg_cuda_write(struct dg_backend *be, void *dst, const void *src, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (size_t done = 0; done < bytes && dg_cuda_enter(be);) {
        unsigned i = cu->next_stage++ % DG_CUDA_STAGES;
        size_t n = bytes - done < DG_CUDA_STAGE_BYTES ? bytes - done : DG_CUDA_STAGE_BYTES;
        if (!dg_cuda_ok(be, cu->d.event_sync(cu->stage[i].free), "waiting for a copy"))
            return;
        memcpy(cu->stage[i].host, (const char *)src + done, n);
        if (!dg_cuda_ok(be, cu->d.copy_to_device((dg_cu_ptr)(uintptr_t)dst + done, cu->stage[i].host, n, cu->stream), "copying to the device") ||
            !dg_cuda_ok(be, cu->d.event_record(cu->stage[i].free, cu->stream), "recording an event"))
            return;
        done += n;
    }
}

/* Through the pinned buffers too. What they were last written for is copied before, in the same stream. */
void dg_cuda_read(struct dg_backend *be, void *dst, const void *src, size_t bytes) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (size_t done = 0; done < bytes && dg_cuda_enter(be);) {
        void *host = cu->stage[cu->next_stage++ % DG_CUDA_STAGES].host;
        size_t n = bytes - done < DG_CUDA_STAGE_BYTES ? bytes - done : DG_CUDA_STAGE_BYTES;
        if (!dg_cuda_ok(be, cu->d.copy_to_host(host, (dg_cu_ptr)(uintptr_t)src + done, n, cu->stream), "copying from the device") ||
            !dg_cuda_ok(be, cu->d.stream_sync(cu->stream), "waiting for the device"))
            return;
        memcpy((char *)dst + done, host, n);
        done += n;
    }
}
