/* Experts on a device smaller than the model: those of some layers stay in pinned host memory and are copied in each pass.
 *
 * Two slots on the device hold them in turn. A stream of its own copies the next such layer while the layers before it are computed; events say
 * when a slot is filled and when the launches that read it are done. A layer's slot is always the same, so its addresses are too, and a
 * recorded pass holds the copies as nodes of its graph.
 *
 * The host memory is the backend's own and not the file's mapping: kernels for some devices read the stacks in another order than the file's,
 * pinning a read-only mapping of a file is refused by some systems, and the file's cached pages, read once, can be given up for these. */
#include "core/mem.h"
#include "core/meminfo.h"
#include "ops/cuda/state.h"

#include <string.h>

#define MiB(bytes) ((double)(bytes) / (1 << 20))

/* ---- choosing ---- */

struct need {
    size_t fixed, experts, largest; /* weights other than experts; all experts; those of the largest layer */
    size_t beside;                  /* sessions and scratch */
    size_t limit;
};

/* What the device may be asked for in all. Without a budget some of what is free is left alone: the driver rounds allocations up and needs memory
 * of its own for kernels and graphs. */
static size_t limit_of(struct dg_backend *be, size_t budget) {
    struct dg_cuda *cu = dg_cuda_of(be);
    size_t left = 0, total = 0;
    if (!dg_cuda_enter(be) || !dg_cuda_ok(be, cu->d.mem_info(&left, &total), "asking how much memory is free"))
        return 0;
    size_t spare = left / 32 < ((size_t)512 << 20) ? left / 32 : (size_t)512 << 20, there = cu->used + left - spare;
    return budget && budget < there ? budget : there;
}

static enum dg_status refuse(const struct need *n, struct dg_error *err) {
    size_t least = n->fixed + DG_CUDA_SLOTS * n->largest + n->beside;
    return DG_FAIL(err, DG_E_NOMEM,
                   "not enough GPU memory for the weights: with the experts of every layer in host memory %.1f MiB are needed (weights %.1f, two "
                   "layers' experts %.1f, caches and planes %.1f) and all on the device %.1f MiB; %.1f MiB may be used: allow more (--gpu-memory), "
                   "free the device, or choose a smaller context",
                   MiB(least), MiB(n->fixed), MiB(DG_CUDA_SLOTS * n->largest), MiB(n->beside), MiB(n->fixed + n->experts + n->beside), MiB(n->limit));
}

/* The i-th of n places spread evenly over `of`, the last of which is the last. */
static int32_t spread(int32_t i, int32_t n, int32_t of) { return (int32_t)((int64_t)(i + 1) * of / n) - 1; }

/* The fewest layers, spread evenly, without which the rest fits; 0 = not even without all of them. layer: those with experts, n of them. */
static int32_t fewest(const struct need *need, const size_t *bytes, const int32_t *layer, int32_t n) {
    size_t base = need->fixed + DG_CUDA_SLOTS * need->largest + need->beside;
    for (int32_t away = 1; away <= n; away++) {
        size_t kept = need->experts;
        for (int32_t i = 0; i < away; i++)
            kept -= bytes[layer[spread(i, away, n)]];
        if (base + kept <= need->limit)
            return away;
    }
    return 0;
}

static enum dg_status choose(struct dg_cuda *cu, const struct need *need, const size_t *bytes, int32_t *layer, struct dg_error *err) {
    struct dg_cuda_feed *f = &cu->feed;
    int32_t with = 0;
    size_t host = 0;
    for (int32_t l = 0; l < cu->model.cfg.layers; l++)
        if (bytes[l])
            layer[with++] = l;
    int32_t n = fewest(need, bytes, layer, with);
    if (!n)
        return refuse(need, err);
    f->layer = dg_calloc((size_t)n, sizeof *f->layer);
    f->host = dg_calloc((size_t)n, sizeof *f->host);
    f->bytes = dg_calloc((size_t)n, sizeof *f->bytes);
    if (!f->layer || !f->host || !f->bytes)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the table of experts in host memory");
    f->n = n;
    f->slot_bytes = need->largest;
    for (int32_t i = 0; i < n; i++) {
        f->layer[i] = layer[spread(i, n, with)];
        f->bytes[i] = bytes[f->layer[i]];
        host += f->bytes[i];
    }
    uint64_t room = dg_mem_available();
    if (host > room)
        return DG_FAIL(err, DG_E_NOMEM,
                       "with %.1f MiB of GPU memory the experts of %d layers stay in host memory, %.1f MiB, and %.1f MiB of it are free: allow more "
                       "GPU memory, or free host memory",
                       MiB(need->limit), n, MiB(host), MiB(room));
    return DG_OK;
}

enum dg_status dg_cuda_feed_choose(struct dg_backend *be, size_t fixed, const size_t *expert_bytes, const struct dg_cuda_opts *opts,
                                   struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_reserve scratch = {0};
    struct need need = {.fixed = fixed, .beside = cu->used, .limit = limit_of(be, opts->gpu_memory)};
    DG_TRY(dg_backend_status(be, err));
    if (opts->beside) {
        need.beside += opts->beside(opts->beside_ctx, be, &scratch);
        need.beside += dg_cuda_scratch_bytes(be, &scratch);
    }
    for (int32_t l = 0; l < cu->model.cfg.layers; l++) {
        need.experts += expert_bytes[l];
        need.largest = expert_bytes[l] > need.largest ? expert_bytes[l] : need.largest;
    }
    if (need.fixed + need.experts + need.beside <= need.limit)
        return DG_OK;
    int32_t *layer = dg_calloc((size_t)cu->model.cfg.layers, sizeof *layer);
    if (!layer)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the table of experts in host memory");
    enum dg_status st = choose(cu, &need, expert_bytes, layer, err);
    dg_free(layer);
    return st;
}

/* ---- opening, filling the host memory ---- */

static void forget(struct dg_cuda_feed_side *s) {
    for (int i = 0; i < DG_CUDA_SLOTS; i++) {
        s->holds[i] = -1;
        s->read[i] = false;
    }
    s->forked = false;
}

enum dg_status dg_cuda_feed_open(struct dg_backend *be, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed *f = &cu->feed;
    if (!f->n)
        return DG_OK;
    f->slots = dg_cuda_alloc_raw(be, DG_CUDA_SLOTS * f->slot_bytes, "two layers' experts");
    if (dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.stream_create(&f->stream, 1 /* does not wait for the default stream */), "making a stream");
    dg_cu_event *events[1 + 4 * DG_CUDA_SLOTS] = {&f->fork};
    for (int i = 0; i < 2 * DG_CUDA_SLOTS; i++) {
        struct dg_cuda_feed_side *s = &f->side[i / DG_CUDA_SLOTS];
        events[1 + 2 * i] = &s->filled[i % DG_CUDA_SLOTS];
        events[2 + 2 * i] = &s->emptied[i % DG_CUDA_SLOTS];
    }
    for (size_t i = 0; i < sizeof events / sizeof *events && dg_cuda_enter(be); i++)
        dg_cuda_ok(be, cu->d.event_create(events[i], 2 /* no timing */), "making an event");
    for (int32_t i = 0; i < f->n && dg_cuda_enter(be); i++)
        dg_cuda_ok(be, cu->d.host_alloc(&f->host[i], f->bytes[i], 0), "pinning host memory for experts");
    forget(&f->side[0]);
    forget(&f->side[1]);
    return dg_backend_status(be, err);
}

void dg_cuda_feed_close(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed *f = &cu->feed;
    if (f->stream) {
        cu->d.stream_sync(f->stream);
        cu->d.stream_destroy(f->stream);
    }
    for (int i = 0; i < 2 * DG_CUDA_SLOTS; i++) {
        struct dg_cuda_feed_side *s = &f->side[i / DG_CUDA_SLOTS];
        if (s->filled[i % DG_CUDA_SLOTS])
            cu->d.event_destroy(s->filled[i % DG_CUDA_SLOTS]);
        if (s->emptied[i % DG_CUDA_SLOTS])
            cu->d.event_destroy(s->emptied[i % DG_CUDA_SLOTS]);
    }
    if (f->fork)
        cu->d.event_destroy(f->fork);
    for (int32_t i = 0; i < f->n; i++)
        if (f->host[i])
            cu->d.host_free(f->host[i]);
    dg_cuda_free(be, f->slots);
    dg_free(f->layer);
    dg_free(f->host);
    dg_free(f->bytes);
    memset(f, 0, sizeof *f);
}

static int32_t place_of(const struct dg_cuda_feed *f, int32_t layer) {
    for (int32_t i = 0; i < f->n; i++)
        if (f->layer[i] == layer)
            return i;
    return -1;
}

bool dg_cuda_feed_has(const struct dg_cuda *cu, int32_t layer) { return place_of(&cu->feed, layer) >= 0; }

static char *slot_of(const struct dg_cuda_feed *f, int32_t i) { return (char *)f->slots + (size_t)(i % DG_CUDA_SLOTS) * f->slot_bytes; }

void dg_cuda_feed_keep(struct dg_backend *be, int32_t layer) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed *f = &cu->feed;
    int32_t i = place_of(f, layer);
    if (i < 0 || !dg_cuda_enter(be))
        return;
    dg_cuda_ok(be, cu->d.copy_to_host(f->host[i], (dg_cu_ptr)(uintptr_t)f->slots, f->bytes[i], cu->stream), "keeping experts in host memory");
    uint64_t moved = (uint64_t)(slot_of(f, i) - (char *)f->slots);
    cu->layer[layer].gate_up.dev += moved;
    cu->layer[layer].expert_down.dev += moved;
}

/* ---- in a pass ---- */

static struct dg_cuda_feed_side *side(struct dg_cuda *cu) { return &cu->feed.side[cu->capturing]; }

static int32_t place_of_stack(const struct dg_cuda *cu, const struct dg_stack *gate_up) {
    for (int32_t i = 0; i < cu->feed.n; i++)
        if (&cu->layer[cu->feed.layer[i]].gate_up == gate_up)
            return i;
    return -1;
}

static bool wait_for(struct dg_backend *be, dg_cu_stream stream, dg_cu_event e) {
    return dg_cuda_ok(be, dg_cuda_of(be)->d.stream_wait(stream, e, 0), "waiting for an event");
}

static bool record(struct dg_backend *be, dg_cu_event e, dg_cu_stream stream) {
    return dg_cuda_ok(be, dg_cuda_of(be)->d.event_record(e, stream), "recording an event");
}

/* Sees to it that i's experts are in its slot or on their way there, once those before them in it have been read. */
static void fill(struct dg_backend *be, int32_t i) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed *f = &cu->feed;
    struct dg_cuda_feed_side *s = side(cu);
    int slot = i % DG_CUDA_SLOTS;
    if (s->holds[slot] == i)
        return;
    s->holds[slot] = -1;
    if (cu->capturing && !s->forked) {
        if (!wait_for(be, f->stream, f->fork))
            return;
        s->forked = true;
    }
    if (s->read[slot] && !wait_for(be, f->stream, s->emptied[slot]))
        return;
    dg_cu_result r = cu->d.copy_to_device((dg_cu_ptr)(uintptr_t)slot_of(f, i), f->host[i], f->bytes[i], f->stream);
    if (dg_cuda_ok(be, r, "copying experts to the device") && record(be, s->filled[slot], f->stream))
        s->holds[slot] = i;
}

void dg_cuda_feed_take(struct dg_backend *be, const struct dg_stack *gate_up) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int32_t i = place_of_stack(cu, gate_up);
    if (i < 0 || !dg_cuda_enter(be))
        return;
    fill(be, i);
    if (i + 1 < cu->feed.n && dg_cuda_enter(be))
        fill(be, i + 1);
    if (dg_cuda_enter(be))
        wait_for(be, cu->stream, side(cu)->filled[i % DG_CUDA_SLOTS]);
    cu->apart = true; /* one that begins early would begin before the copy has ended */
}

void dg_cuda_feed_done(struct dg_backend *be, const struct dg_stack *gate_up) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int32_t i = place_of_stack(cu, gate_up);
    if (i < 0 || !dg_cuda_enter(be))
        return;
    side(cu)->read[i % DG_CUDA_SLOTS] = record(be, side(cu)->emptied[i % DG_CUDA_SLOTS], cu->stream);
    cu->apart = true;
}

void dg_cuda_feed_record(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (!cu->feed.n)
        return;
    forget(&cu->feed.side[1]);
    record(be, cu->feed.fork, cu->stream);
}

/* A recording ends when all that was forked from its stream has come back to it. */
void dg_cuda_feed_record_end(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed *f = &cu->feed;
    if (cu->capturing && f->side[1].forked && dg_cuda_enter(be) && record(be, f->fork, f->stream))
        wait_for(be, cu->stream, f->fork);
}

void dg_cuda_feed_claim(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed_side *s = &cu->feed.side[0];
    for (int i = 0; i < DG_CUDA_SLOTS && cu->feed.n; i++)
        if (s->holds[i] >= 0 && dg_cuda_enter(be)) {
            wait_for(be, cu->stream, s->filled[i]);
            s->holds[i] = -1;
        }
}

void dg_cuda_feed_release(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_feed_side *s = &cu->feed.side[0];
    for (int i = 0; i < DG_CUDA_SLOTS && cu->feed.n; i++)
        if (dg_cuda_enter(be))
            s->read[i] = record(be, s->emptied[i], cu->stream);
    cu->apart = cu->feed.n > 0;
}
