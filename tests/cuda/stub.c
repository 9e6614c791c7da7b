/* A CUDA driver for tests: libcuda.so.1 whose device memory is the host's and whose kernels run through the emulator.
 *
 * What it plays is set by the environment: DG_STUB_DEVICES (1), DG_STUB_VERSION (13000), DG_STUB_CC (80), DG_STUB_MEMORY (bytes, 4 GiB),
 * DG_STUB_FAIL=NAME:N:CODE (the N-th call of a function fails), DG_STUB_NO_RUN (launches are counted only), DG_STUB_LATE (what a stream of its own
 * rank is given runs only when the other one waits for it: the latest that its events allow). Misuse that a driver may
 * forgive (a foreign pointer freed, a copy outside an allocation, a handle left open) is counted in dg_stub_faults. */
#include "cuda/emulate.h"
#include "ops/cuda/driver.h"
#include "ops/cuda/kernels.h"

#include <stdio.h>

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
/* The launches of a captured graph. */
static struct graph {
    int n, owners;
    struct launch {
        const struct emulated *f;
        unsigned gx, gy, threads, shared;
        void *args;
    } *launch;
} *recording;
/* A stream made with a rank, which joins the others through events alone. */
struct stream {
    int ranked, open, crossed; /* open: waits for the others and is not waited for yet; crossed: the last call was such a wait */
    struct graph late;
};
struct event {
    struct stream *of;
};
static size_t used;
static int handles, pinned, contexts, faults, capturing;
static long launches, calls;

EXPORT long dg_stub_launches(void);
EXPORT int dg_stub_faults(void);
EXPORT int dg_stub_open(void);
/* Kernels launched; misuse seen; allocations, pinned buffers, handles and contexts not given back. */
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
static void run_launch(const struct launch *l) {
    if (l->f->run && !setting("DG_STUB_NO_RUN", 0))
        emu_launch(l->f->run, l->args, l->gx, l->gy, l->threads, l->shared);
}
static void keep_launch(struct graph *g, const struct launch *l) {
    void *grown = realloc(g->launch, (size_t)(g->n + 1) * sizeof *l);
    void *args = aligned_alloc(64, (l->f->arg_bytes + 63) / 64 * 64);
    if (!grown || !args)
        abort();
    memcpy(args, l->args, l->f->arg_bytes);
    g->launch = grown;
    g->launch[g->n] = *l;
    g->launch[g->n++].args = args;
}
static void launch_or_keep(const struct launch *l) {
    if (capturing)
        keep_launch(recording, l);
    else
        run_launch(l);
}
static void drop_launches(struct graph *g) {
    for (int i = 0; i < g->n; i++)
        free(g->launch[i].args);
    free(g->launch);
    g->launch = NULL;
    g->n = 0;
}
static int graph_drop(struct graph *g) {
    handles--;
    if (--g->owners == 0) {
        drop_launches(g);
        free(g);
    }
    return 0;
}
FN(cuLaunchKernel, const struct emulated *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
   struct stream *stream, void **params, void **extra) {
    (void)extra;
    PLANNED();
    if (!f || !gx || !gy || gz != 1 || by != 1 || bz != 1 || bx > 1024 || gy > 65535 || shared > 227 * 1024) {
        fault("a launch with a bad shape");
        return 1;
    }
    launches++;
    struct launch l = {f, gx, gy, bx, shared, params[0]};
    if (stream->ranked && !stream->open)
        fault("a launch into a side stream that waits for nothing");
    stream->crossed = 0;
    if (stream->ranked && setting("DG_STUB_LATE", 0))
        keep_launch(&stream->late, &l);
    else
        launch_or_keep(&l);
    return 0;
}
FN(cuLaunchKernelEx, const struct dg_cu_launch *c, const struct emulated *f, void **params, void **extra) {
    struct stream *s = (struct stream *)c->stream;
    if (s->crossed && c->n_attrs == 1 && c->attrs[0].id == DG_CU_LAUNCH_CHAINED && c->attrs[0].value.flag)
        fault("a launch that may begin early behind two streams");
    return cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, s, params, extra);
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
    pinned--;
    free(p);
    return 0;
}
FN(cuMemcpyHtoDAsync_v2, unsigned long long dst, const void *src, size_t bytes, void *stream) {
    (void)stream;
    PLANNED();
    if (find((void *)(uintptr_t)dst, bytes) < 0) {
        fault("a copy outside device memory");
        return 1;
    }
    memcpy((void *)(uintptr_t)dst, src, bytes);
    return 0;
}
FN(cuMemcpyDtoHAsync_v2, void *dst, unsigned long long src, size_t bytes, void *stream) {
    (void)stream;
    PLANNED();
    if (find((void *)(uintptr_t)src, bytes) < 0) {
        fault("a copy from outside device memory");
        return 1;
    }
    memcpy(dst, (void *)(uintptr_t)src, bytes);
    return 0;
}
FN(cuMemcpyDtoDAsync_v2, unsigned long long dst, unsigned long long src, size_t bytes, void *stream) {
    (void)stream;
    PLANNED();
    memcpy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, bytes);
    return 0;
}
FN(cuMemsetD8Async, unsigned long long dst, unsigned char v, size_t bytes, void *stream) {
    (void)stream;
    PLANNED();
    if (find((void *)(uintptr_t)dst, bytes) < 0) {
        fault("memory set outside an allocation");
        return 1;
    }
    memset((void *)(uintptr_t)dst, v, bytes);
    return 0;
}
static int new_stream(struct stream **s, int ranked) {
    *s = calloc(1, sizeof **s);
    (*s)->ranked = ranked;
    handles++;
    return 0;
}
FN(cuStreamCreate, struct stream **s, unsigned flags) {
    (void)flags;
    PLANNED();
    return new_stream(s, 0);
}
FN(cuStreamCreateWithPriority, struct stream **s, unsigned flags, int rank) {
    (void)flags;
    (void)rank;
    PLANNED();
    return new_stream(s, 1);
}
FN(cuStreamDestroy_v2, struct stream *s) {
    if (s->open && s->late.n)
        fault("a stream whose work nobody waited for");
    drop_launches(&s->late);
    return drop(s);
}
FN(cuStreamSynchronize, void *s) {
    (void)s;
    PLANNED();
    return 0;
}
FN(cuStreamWaitEvent, struct stream *s, struct event *e, unsigned flags) {
    (void)flags;
    PLANNED();
    if (!e->of || e->of == s)
        return 0;
    s->crossed = 1;
    if (s->ranked) {
        s->open = 1;
    } else {
        e->of->open = 0;
        for (int i = 0; i < e->of->late.n; i++)
            launch_or_keep(&e->of->late.launch[i]);
        drop_launches(&e->of->late);
    }
    return 0;
}
FN(cuEventCreate, struct event **e, unsigned flags) {
    (void)flags;
    PLANNED();
    *e = calloc(1, sizeof **e);
    handles++;
    return 0;
}
FN(cuEventDestroy_v2, struct event *e) { return drop(e); }
FN(cuEventRecord, struct event *e, struct stream *s) {
    PLANNED();
    e->of = s;
    return 0;
}
FN(cuEventSynchronize, void *e) {
    (void)e;
    PLANNED();
    return 0;
}
FN(cuEventElapsedTime, float *ms, void *a, void *b) {
    (void)a;
    (void)b;
    *ms = 1;
    return 0;
}
FN(cuStreamBeginCapture_v2, void *s, int mode) {
    (void)s;
    (void)mode;
    PLANNED();
    capturing = 1;
    recording = calloc(1, sizeof *recording);
    recording->owners = 1;
    handles++;
    return 0;
}
FN(cuStreamEndCapture, void *s, void **g) {
    (void)s;
    int code = planned(__func__);
    capturing = 0;
    if (code)
        return graph_drop(recording), code;
    *g = recording;
    return 0;
}
FN(cuGraphInstantiateWithFlags, void **x, struct graph *g, unsigned long long flags) {
    (void)flags;
    PLANNED();
    handles++;
    g->owners++;
    *x = g;
    return 0;
}
FN(cuGraphLaunch, const struct graph *x, void *s) {
    (void)s;
    PLANNED();
    for (int i = 0; i < x->n; i++)
        run_launch(&x->launch[i]);
    return 0;
}
FN(cuGraphUpload, const struct graph *x, void *s) {
    (void)s;
    PLANNED();
    return x->n > 0 ? 0 : 1;
}
FN(cuGraphDestroy, struct graph *g) { return graph_drop(g); }
FN(cuTensorMapEncodeTiled, void *map, int type, unsigned rank, void *p, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
   const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    (void)type;
    (void)interleave;
    (void)promotion;
    (void)fill;
    PLANNED();
    if (rank != 2 || ((uintptr_t)map & 63) || ((uintptr_t)p & 15) || (strides[0] & 15) || box[0] > 256 || box[1] > 256 || step[0] != 1 ||
        step[1] != 1 || (swizzle == 3 && box[0] != 64) || !dims[0] || !dims[1]) {
        fault("a tensor map that the device cannot read");
        return 1;
    }
    return 0;
}
FN(cuGraphExecDestroy, struct graph *x) { return graph_drop(x); }
