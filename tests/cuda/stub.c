/* A CUDA driver for tests: libcuda.so.1 whose device memory is the host's and whose kernels run through the emulator.
 *
 * What it plays is set by the environment: DG_STUB_DEVICES (1), DG_STUB_VERSION (13000), DG_STUB_CC (80), DG_STUB_MEMORY (bytes, 4 GiB),
 * DG_STUB_FAIL=NAME:N:CODE (the N-th call of a function fails), DG_STUB_NO_RUN (launches are counted only, but for the sampler's, without
 * which no block ends), DG_STUB_ORDER. Misuse that a driver may forgive (a foreign pointer freed, a copy outside an allocation, a handle left
 * open) is counted in dg_stub_faults.
 *
 * Each stream is a queue. DG_STUB_ORDER says when its work is done: not set, at once, in the order of the calls; "late", when the host or another
 * stream waits for it, and no sooner; "early", streams other than the first run ahead of it as far as the events they wait for allow. What the
 * events leave open therefore comes in both of its extreme orders, in recorded graphs too. */
#include "cuda/emulate.h"
#include "ops/cuda/driver.h"
#include "ops/cuda/kernels.h"

#include <stdio.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define GUARD 256
#define ALLOCS_MAX 65536

static struct {
    unsigned char *p;
    size_t bytes;
} live[ALLOCS_MAX];
static int n_live;
struct emulated {
    const char *name;
    void (*run)(void *);
    size_t arg_bytes;
};
struct launch {
    const struct emulated *f;
    unsigned gx, gy, threads, shared;
    void *args;
};
struct graph;
struct op {
    enum { LAUNCH, COPY, SET, RECORD, WAIT, GRAPH } kind;
    struct launch launch;
    void *dst;
    const void *src;
    size_t bytes;
    int value, ticket; /* ticket: of a record, and of the wait for it */
    struct graph *graph;
};
/* Streams, or those of a graph: lane 0 is the first stream, or the one whose capture was begun. */
#define LANES 4
struct lanes {
    struct lane {
        struct op *op;
        int n, at;
    } lane[LANES];
    int n_tickets;
    unsigned char *done, *owner; /* of each ticket: whether it was recorded, in which lane, */
    double *when;                /* and at which millisecond */
};
struct graph {
    struct lanes l;
    int owners;
};
struct stream {
    int lane;
    int capture; /* number of the capture it is part of; 0 = none */
    int in_graph; /* its lane there */
    int ops, joined; /* what the capture has of it, and how much of that the first stream has waited for */
};
struct event {
    int ticket, capture; /* of the last record; ticket -1 = none */
    struct stream *stream;
    int ops;
};
static struct lanes streams;
static struct stream *open_stream[LANES];
static struct graph *recording;
static int captures, in_capture; /* captures begun; lanes of the one in progress */
static size_t used;
static int handles, pinned, contexts, faults;
static long launches, chained, calls;

EXPORT long dg_stub_launches(void);
EXPORT long dg_stub_chained(void) { return chained; }
EXPORT int dg_stub_faults(void);
EXPORT int dg_stub_open(void);
EXPORT long dg_stub_chained(void);
/* Kernels launched, and of those the ones that may begin early; misuse seen; allocations, pinned buffers, handles and contexts not given back. */
EXPORT long dg_stub_launches(void) { return launches; }
EXPORT int dg_stub_faults(void) { return faults; }
EXPORT int dg_stub_open(void) { return n_live + pinned + handles + contexts; }

static long setting(const char *name, long otherwise) {
    const char *v = getenv(name);
    return v && *v ? strtol(v, NULL, 0) : otherwise;
}

/* The code the environment wants this call to fail with, or 0. */
static int planned(const char *name) {
    static char last[128];
    static long seen;
    const char *plan = getenv("DG_STUB_FAIL");
    size_t n = strlen(name);
    calls++;
    if (!plan || strncmp(plan, name, n) != 0 || plan[n] != ':')
        return 0;
    if (strcmp(last, plan) != 0) {
        snprintf(last, sizeof last, "%s", plan);
        seen = 0;
    }
    char *end;
    long at = strtol(plan + n + 1, &end, 10);
    return ++seen == at ? (int)strtol(end + 1, NULL, 10) : 0;
}

#define PLANNED()                       \
    do {                                \
        int code_ = planned(__func__);  \
        if (code_)                      \
            return code_;               \
    } while (0)

static void fault(const char *what) {
    faults++;
    fprintf(stderr, "stub driver: %s\n", what);
}

static int find(const void *p, size_t bytes) {
    for (int i = 0; i < n_live; i++)
        if ((const unsigned char *)p >= live[i].p && (const unsigned char *)p + bytes <= live[i].p + live[i].bytes)
            return i;
    return -1;
}

#define FN(name, ...)                     \
    EXPORT int name(__VA_ARGS__);         \
    EXPORT int name(__VA_ARGS__)

FN(cuInit, unsigned flags) {
    (void)flags;
    PLANNED();
    return 0;
}
FN(cuDriverGetVersion, int *v) {
    *v = (int)setting("DG_STUB_VERSION", 13000);
    return 0;
}
FN(cuGetErrorName, int r, const char **s) {
    *s = r == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : r == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_STUB";
    return 0;
}
FN(cuGetErrorString, int r, const char **s) {
    *s = r == 2 ? "out of memory" : r == 700 ? "an illegal memory access was encountered" : r == 100 ? "no CUDA-capable device" : "as planned";
    return 0;
}
FN(cuDeviceGetCount, int *n) {
    PLANNED();
    *n = (int)setting("DG_STUB_DEVICES", 1);
    return 0;
}
FN(cuDeviceGet, int *d, int i) {
    PLANNED();
    *d = i;
    return 0;
}
FN(cuDeviceGetName, char *s, int n, int d) {
    (void)d;
    snprintf(s, (size_t)n, "Stub GPU");
    return 0;
}
FN(cuDeviceGetPCIBusId, char *s, int n, int d) {
    PLANNED();
    snprintf(s, (size_t)n, "0000:%02x:00.0", 0x41 + (unsigned)d);
    return 0;
}
FN(cuDeviceGetAttribute, int *v, int attr, int d) {
    (void)d;
    long cc = setting("DG_STUB_CC", 80);
    *v = attr == 75 ? (int)(cc / 10) : attr == 76 ? (int)(cc % 10) : attr == 97 ? 227 * 1024 : 132;
    return 0;
}
FN(cuDevicePrimaryCtxRetain, void **ctx, int d) {
    (void)d;
    PLANNED();
    contexts++;
    *ctx = &contexts;
    return 0;
}
FN(cuDevicePrimaryCtxRelease_v2, int d) {
    (void)d;
    contexts--;
    return 0;
}
FN(cuCtxSetCurrent, void *ctx) {
    (void)ctx;
    PLANNED();
    return 0;
}

static void *handle(void) {
    handles++;
    return malloc(1);
}
static int drop(void *h) {
    handles--;
    free(h);
    return 0;
}

FN(cuModuleLoadData, void **m, const void *image) {
    (void)image;
    PLANNED();
    *m = handle();
    return 0;
}
FN(cuModuleUnload, void *m) { return drop(m); }

#define K(name, kind, file, threads, shared)              \
    void dgc_##name(const struct dgc_##kind##_args a);    \
    static void run_##name(void *a) { dgc_##name(*(const struct dgc_##kind##_args *)a); }
DGC_KERNELS_PORTABLE(K)
#undef K
/* Kernels of one target alone are found and launched, and do nothing. */
static const struct emulated emulated[] = {
#define K(name, kind, file, threads, shared) {"dgc_" #name, run_##name, sizeof(struct dgc_##kind##_args)},
    DGC_KERNELS_PORTABLE(K)
#undef K
#define K(name, kind, file, threads, shared) {"dgc_" #name, NULL, sizeof(struct dgc_##kind##_args)},
        DGC_KERNELS_SM90A(K)
#undef K
};

FN(cuModuleGetFunction, const struct emulated **f, void *m, const char *name) {
    (void)m;
    PLANNED();
    for (size_t i = 0; i < sizeof emulated / sizeof *emulated; i++)
        if (strcmp(emulated[i].name, name) == 0) {
            *f = &emulated[i];
            return 0;
        }
    return 500;
}
FN(cuFuncGetParamInfo, const struct emulated *f, size_t i, size_t *at, size_t *bytes) {
    PLANNED();
    *at = 0;
    *bytes = f->arg_bytes;
    return i == 0 ? 0 : 1;
}
FN(cuFuncSetAttribute, void *f, int attr, int v) {
    (void)f;
    (void)attr;
    PLANNED();
    return v > 227 * 1024 ? 1 : 0;
}

/* ---- queues ---- */

static char order(void) {
    const char *v = getenv("DG_STUB_ORDER");
    return v ? v[0] : 0;
}

static void *grow(void *p, size_t n, size_t size) {
    p = realloc(p, n * size);
    if (!p)
        abort();
    return p;
}

static int new_ticket(struct lanes *l, int lane) {
    int t = l->n_tickets++;
    if (t % 1024 == 0) {
        l->done = grow(l->done, (size_t)t + 1024, 1);
        l->owner = grow(l->owner, (size_t)t + 1024, 1);
        l->when = grow(l->when, (size_t)t + 1024, sizeof *l->when);
    }
    l->done[t] = 0;
    l->owner[t] = (unsigned char)lane;
    return t;
}

static void run_graph(struct graph *g);
static int graph_drop(struct graph *g);
static void until(struct lanes *l, int ticket);

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void run_one(struct lanes *l, int lane) {
    struct lane *q = &l->lane[lane];
    if (q->at == q->n) {
        fault("a wait for what was never recorded");
        abort();
    }
    const struct op o = q->op[q->at];
    if (o.kind == WAIT)
        until(l, o.ticket);
    q->at++;
    if (o.kind == LAUNCH && o.launch.f->run && (o.launch.f->run == run_sample || !setting("DG_STUB_NO_RUN", 0)))
        emu_launch(o.launch.f->run, o.launch.args, o.launch.gx, o.launch.gy, o.launch.threads, o.launch.shared);
    else if (o.kind == COPY)
        memmove(o.dst, o.src, o.bytes);
    else if (o.kind == SET)
        memset(o.dst, o.value, o.bytes);
    else if (o.kind == RECORD) {
        l->done[o.ticket] = 1;
        l->when[o.ticket] = now_ms();
    } else if (o.kind == GRAPH)
        run_graph(o.graph);
    if (l != &streams)
        return; /* a graph keeps what it is made of */
    if (o.kind == LAUNCH)
        free(o.launch.args);
    else if (o.kind == GRAPH)
        graph_drop(o.graph);
    if (q->at == q->n)
        q->at = q->n = 0;
}

static void until(struct lanes *l, int ticket) {
    while (!l->done[ticket])
        run_one(l, l->owner[ticket]);
}

/* Lanes other than the first, as far as they may go. */
static void run_ahead(struct lanes *l) {
    for (int i = 1; i < LANES; i++)
        while (l->lane[i].at < l->lane[i].n && (l->lane[i].op[l->lane[i].at].kind != WAIT || l->done[l->lane[i].op[l->lane[i].at].ticket]))
            run_one(l, i);
}

static void drain(struct lanes *l, int lane) {
    while (l->lane[lane].at < l->lane[lane].n) {
        if (order() == 'e')
            run_ahead(l);
        if (l->lane[lane].at < l->lane[lane].n)
            run_one(l, lane);
    }
}

static void drain_all(void) {
    for (int i = 0; i < LANES; i++)
        drain(&streams, i);
}

static void run_graph(struct graph *g) {
    for (int i = 0; i < LANES; i++)
        g->l.lane[i].at = 0;
    if (g->l.n_tickets)
        memset(g->l.done, 0, (size_t)g->l.n_tickets);
    for (int i = 0; i < LANES; i++)
        drain(&g->l, i);
}

/* The queues live as long as the driver does. */
static void __attribute__((destructor)) drop_queues(void) {
    for (int i = 0; i < LANES; i++) {
        free(streams.lane[i].op);
        free(open_stream[i]);
    }
    free(streams.done);
    free(streams.owner);
    free(streams.when);
}

static int graph_drop(struct graph *g) {
    if (--g->owners == 0) {
        for (int i = 0; i < LANES; i++) {
            for (int k = 0; k < g->l.lane[i].n; k++)
                free(g->l.lane[i].op[k].launch.args);
            free(g->l.lane[i].op);
        }
        free(g->l.done);
        free(g->l.owner);
        free(g->l.when);
        free(g);
    }
    return 0;
}

static int kind_before(const struct stream *s) {
    const struct lane *q = s->capture ? &recording->l.lane[s->in_graph] : &streams.lane[s->lane];
    return q->n ? (int)q->op[q->n - 1].kind : -1;
}

/* Appends to the stream, or to what is being recorded of it. */
static void put(struct stream *s, const struct op *o) {
    struct lanes *l = s->capture ? &recording->l : &streams;
    struct lane *q = &l->lane[s->capture ? s->in_graph : s->lane];
    q->op = grow(q->op, (size_t)q->n + 1, sizeof *q->op);
    q->op[q->n] = *o;
    if (o->kind == LAUNCH) {
        q->op[q->n].launch.args = aligned_alloc(64, (o->launch.f->arg_bytes + 63) / 64 * 64);
        if (!q->op[q->n].launch.args)
            abort();
        memcpy(q->op[q->n].launch.args, o->launch.args, o->launch.f->arg_bytes);
    }
    q->n++;
    if (s->capture)
        s->ops += o->kind != RECORD && o->kind != WAIT;
    else if (!order())
        drain_all();
    else if (order() == 'e')
        run_ahead(&streams);
}

static int launch(const struct emulated *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  struct stream *s, void **params) {
    if (!f || !gx || !gy || gz != 1 || by != 1 || bz != 1 || bx > 1024 || gy > 65535 || shared > 227 * 1024) {
        fault("a launch with a bad shape");
        return 1;
    }
    launches++;
    put(s, &(struct op){.kind = LAUNCH, .launch = {f, gx, gy, bx, shared, params[0]}});
    return 0;
}

FN(cuLaunchKernel, const struct emulated *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
   struct stream *stream, void **params, void **extra) {
    (void)extra;
    PLANNED();
    return launch(f, gx, gy, gz, bx, by, bz, shared, stream, params);
}
FN(cuLaunchKernelEx, const struct dg_cu_launch *l, const struct emulated *f, void **params, void **extra) {
    (void)extra;
    PLANNED();
    struct stream *s = (struct stream *)(void *)l->stream;
    for (unsigned i = 0; i < l->n_attrs; i++)
        if (l->attrs[i].id == DG_CU_LAUNCH_CHAINED && l->attrs[i].value.flag) {
            chained++;
            if (kind_before(s) == WAIT)
                fault("a kernel that may begin early, behind a wait for another stream");
        }
    return launch(f, l->gx, l->gy, l->gz, l->bx, l->by, l->bz, l->shared, s, params);
}

FN(cuMemGetInfo_v2, size_t *left, size_t *total) {
    *total = (size_t)setting("DG_STUB_MEMORY", 4L << 30);
    *left = *total > used ? *total - used : 0;
    return 0;
}
/* New memory holds NaN whatever type it is read as. */
FN(cuMemAlloc_v2, unsigned long long *p, size_t bytes) {
    PLANNED();
    if (!bytes)
        return 1;
    if (n_live == ALLOCS_MAX || used + bytes > (size_t)setting("DG_STUB_MEMORY", 4L << 30))
        return 2;
    unsigned char *raw = aligned_alloc(256, (bytes + 2 * GUARD + 255) / 256 * 256);
    if (!raw)
        return 2;
    memset(raw, 0xa5, GUARD);
    memset(raw + GUARD, 0xff, bytes);
    memset(raw + GUARD + bytes, 0xa5, GUARD);
    live[n_live].p = raw + GUARD;
    live[n_live++].bytes = bytes;
    used += bytes;
    *p = (unsigned long long)(uintptr_t)(raw + GUARD);
    return 0;
}
FN(cuMemFree_v2, unsigned long long p) {
    drain_all();
    for (int i = 0; i < n_live; i++)
        if (live[i].p == (unsigned char *)(uintptr_t)p) {
            for (int g = 0; g < GUARD; g++)
                if (live[i].p[g - GUARD] != 0xa5 || live[i].p[live[i].bytes + (size_t)g] != 0xa5) {
                    fault("a kernel wrote outside an allocation");
                    break;
                }
            free(live[i].p - GUARD);
            used -= live[i].bytes;
            live[i] = live[--n_live];
            return 0;
        }
    fault("a pointer was freed that is not device memory");
    return 1;
}
FN(cuMemHostAlloc, void **p, size_t bytes, unsigned flags) {
    (void)flags;
    PLANNED();
    pinned++;
    *p = malloc(bytes);
    return *p ? 0 : 2;
}
FN(cuMemFreeHost, void *p) {
    drain_all();
    pinned--;
    free(p);
    return 0;
}
FN(cuMemcpyHtoDAsync_v2, unsigned long long dst, const void *src, size_t bytes, struct stream *stream) {
    PLANNED();
    if (find((void *)(uintptr_t)dst, bytes) < 0) {
        fault("a copy outside device memory");
        return 1;
    }
    put(stream, &(struct op){.kind = COPY, .dst = (void *)(uintptr_t)dst, .src = src, .bytes = bytes});
    return 0;
}
FN(cuMemcpyDtoHAsync_v2, void *dst, unsigned long long src, size_t bytes, struct stream *stream) {
    PLANNED();
    if (find((void *)(uintptr_t)src, bytes) < 0) {
        fault("a copy from outside device memory");
        return 1;
    }
    put(stream, &(struct op){.kind = COPY, .dst = dst, .src = (void *)(uintptr_t)src, .bytes = bytes});
    return 0;
}
FN(cuMemcpyDtoDAsync_v2, unsigned long long dst, unsigned long long src, size_t bytes, struct stream *stream) {
    PLANNED();
    put(stream, &(struct op){.kind = COPY, .dst = (void *)(uintptr_t)dst, .src = (void *)(uintptr_t)src, .bytes = bytes});
    return 0;
}
FN(cuMemsetD8Async, unsigned long long dst, unsigned char v, size_t bytes, struct stream *stream) {
    PLANNED();
    if (find((void *)(uintptr_t)dst, bytes) < 0) {
        fault("memory set outside an allocation");
        return 1;
    }
    put(stream, &(struct op){.kind = SET, .dst = (void *)(uintptr_t)dst, .value = v, .bytes = bytes});
    return 0;
}
static int new_stream(struct stream **s) {
    int lane = 0;
    while (lane < LANES && open_stream[lane])
        lane++;
    if (lane == LANES)
        return 2;
    *s = open_stream[lane] = calloc(1, sizeof **s);
    (*s)->lane = lane;
    handles++;
    return 0;
}
FN(cuStreamCreate, struct stream **s, unsigned flags) {
    (void)flags;
    PLANNED();
    return new_stream(s);
}
FN(cuStreamCreateWithPriority, struct stream **s, unsigned flags, int rank) {
    (void)flags;
    (void)rank;
    PLANNED();
    return new_stream(s);
}
FN(cuStreamDestroy_v2, struct stream *s) {
    drain(&streams, s->lane);
    open_stream[s->lane] = NULL;
    return drop(s);
}
FN(cuStreamSynchronize, struct stream *s) {
    PLANNED();
    if (s->capture)
        fault("a stream is waited for while it is recorded");
    drain(&streams, s->lane);
    return 0;
}
FN(cuStreamWaitEvent, struct stream *s, struct event *e, unsigned flags) {
    (void)flags;
    PLANNED();
    if (e->ticket < 0)
        return 0;
    if (e->capture && (!recording || e->capture != captures)) {
        fault("a wait for an event of a recording that has ended");
        return 1;
    }
    if (s->capture && !e->capture) {
        fault("a recording waits for work outside it");
        return 1;
    }
    if (e->capture && !s->capture) { /* it becomes part of the recording */
        s->capture = e->capture;
        s->in_graph = in_capture++;
        s->ops = 1; /* which is to be joined even if nothing more comes */
        s->joined = 0;
    }
    if (e->capture && s->in_graph == 0 && e->stream->joined < e->ops)
        e->stream->joined = e->ops;
    put(s, &(struct op){.kind = WAIT, .ticket = e->ticket});
    return 0;
}
FN(cuEventCreate, struct event **e, unsigned flags) {
    (void)flags;
    PLANNED();
    *e = calloc(1, sizeof **e);
    (*e)->ticket = -1;
    handles++;
    return 0;
}
FN(cuEventDestroy_v2, void *e) { return drop(e); }
FN(cuEventRecord, struct event *e, struct stream *s) {
    PLANNED();
    e->capture = s->capture;
    e->stream = s;
    e->ops = s->ops;
    e->ticket = new_ticket(s->capture ? &recording->l : &streams, s->capture ? s->in_graph : s->lane);
    put(s, &(struct op){.kind = RECORD, .ticket = e->ticket});
    return 0;
}
FN(cuEventSynchronize, struct event *e) {
    PLANNED();
    if (e->capture)
        fault("the host waits for an event of a recording");
    else if (e->ticket >= 0)
        until(&streams, e->ticket);
    return 0;
}
FN(cuEventElapsedTime, float *ms, const struct event *a, const struct event *b) {
    if (a->ticket < 0 || b->ticket < 0 || a->capture || b->capture || !streams.done[a->ticket] || !streams.done[b->ticket]) {
        fault("the time between events that have not come");
        return 600;
    }
    *ms = (float)(streams.when[b->ticket] - streams.when[a->ticket]);
    return 0;
}
FN(cuStreamBeginCapture_v2, struct stream *s, int mode) {
    (void)mode;
    PLANNED();
    recording = calloc(1, sizeof *recording);
    recording->owners = 1;
    s->capture = ++captures;
    s->in_graph = s->ops = 0;
    in_capture = 1;
    handles++;
    return 0;
}
FN(cuStreamEndCapture, struct stream *s, struct graph **g) {
    int code = planned(__func__);
    for (int i = 0; i < LANES; i++) {
        struct stream *other = open_stream[i];
        if (other && other != s && other->capture && other->joined < other->ops && !code)
            code = 904; /* a stream has not come back to the one that is recorded */
        if (other)
            other->capture = 0;
    }
    *g = code ? NULL : recording;
    if (code) {
        handles--;
        graph_drop(recording);
    }
    recording = NULL;
    return code;
}
FN(cuGraphInstantiateWithFlags, struct graph **x, struct graph *g, unsigned long long flags) {
    (void)flags;
    PLANNED();
    handles++;
    g->owners++;
    *x = g;
    return 0;
}
FN(cuGraphLaunch, struct graph *x, struct stream *s) {
    PLANNED();
    x->owners++;
    put(s, &(struct op){.kind = GRAPH, .graph = x});
    return 0;
}
FN(cuGraphUpload, const struct graph *x, const struct stream *s) {
    PLANNED();
    if (!x->owners || s->capture) {
        fault("a graph brought to the device that is not there, or in a capture");
        return 1;
    }
    return 0;
}
FN(cuGraphDestroy, struct graph *g) {
    handles--;
    return graph_drop(g);
}
FN(cuGraphExecDestroy, struct graph *x) {
    handles--;
    return graph_drop(x);
}
FN(cuTensorMapEncodeTiled, void *map, int type, unsigned rank, void *p, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
   const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    (void)type;
    (void)interleave;
    (void)promotion;
    (void)fill;
    PLANNED();
    int bad = rank < 2 || rank > 5 || ((uintptr_t)map & 63) || ((uintptr_t)p & 15) || (swizzle == 3 && box[0] != 64);
    for (unsigned i = 0; !bad && i < rank; i++)
        bad = !box[i] || box[i] > 256 || step[i] != 1 || !dims[i] || (i + 1 < rank && ((strides[i] & 15) || strides[i] >> 40));
    if (bad) {
        fault("a tensor map that the device cannot read");
        return 1;
    }
    return 0;
}
