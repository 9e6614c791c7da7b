/* Creating and destroying the CUDA backend, its errors, launches and parameters. */
#include "core/mem.h"
#include "ops/cuda/images.h"
#include "ops/cuda/state.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)DG_F32 == DGC_F32 && (int)DG_BF16 == DGC_BF16 && (int)DG_F16 == DGC_F16 && (int)DG_I32 == DGC_I32, "element types");
_Static_assert((int)DG_FMT_BF16 == DGC_FMT_BF16 && (int)DG_FMT_F16 == DGC_FMT_F16 && (int)DG_FMT_F32 == DGC_FMT_F32 &&
                   (int)DG_FMT_Q4_BLOCK == DGC_FMT_Q4 && (int)DG_FMT_Q6_BLOCK == DGC_FMT_Q6 && (int)DG_FMT_Q8_ROW == DGC_FMT_Q8 &&
                   (int)DG_FMT_NVFP4_BLOCK == DGC_FMT_NVFP4,
               "weight formats");
_Static_assert(DG_NORM_OUTS == DGC_NORM_OUTS, "outputs of norm_chain");
_Static_assert((int)DG_EPI_NONE == DGC_EPI_NONE && (int)DG_EPI_GLU == DGC_EPI_GLU, "epilogues");

static const struct {
    const char *name;
    enum dg_cuda_kind kind;
    unsigned threads, shared;
} kernel[DGC_K_COUNT] = {
#define K(name, kind, file, threads, shared) [DGC_K_##name] = {#name, DGC_A_##kind, threads, shared},
    DGC_KERNELS(K)
#undef K
};

static _Thread_local uint64_t current; /* id of the backend this thread's context belongs to */

bool dg_cuda_built_in(void) { return dg_cuda_n_images > 0; }

bool dg_cuda_ok(struct dg_backend *be, dg_cu_result r, const char *what) {
    if (r == 0)
        return true;
    char text[256];
    if (be->error.code == DG_OK)
        DG_FAIL(&be->error, DG_E_BACKEND, "CUDA device %d, %s: %s", dg_cuda_of(be)->device, what,
                dg_cuda_result_text(&dg_cuda_of(be)->d, r, text, sizeof text));
    return false;
}

bool dg_cuda_enter(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (be->error.code != DG_OK)
        return false;
    if (current == cu->id)
        return true;
    if (!dg_cuda_ok(be, cu->d.ctx_set(cu->ctx), "making the device current"))
        return false;
    current = cu->id;
    return true;
}

void dg_cuda_launch(struct dg_backend *be, enum dg_cuda_kernel k, enum dg_cuda_kind kind, unsigned gx, unsigned gy, unsigned shared,
                    const void *args) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (gx == 0 || gy == 0 || !dg_cuda_enter(be))
        return;
    if (kernel[k].kind != kind || shared > kernel[k].shared || !cu->fn[k]) {
        DG_FAIL(&be->error, DG_E_INTERNAL, "kernel \"%s\" was launched with another kernel's arguments, too much shared memory, or is not there",
                kernel[k].name);
        return;
    }
    void *params[1];
    memcpy(params, &args, sizeof args); /* the driver's array has no const */
    dg_cu_result r;
    if (cu->chain && !cu->apart) {
        struct dg_cu_launch_attr chained = {.id = DG_CU_LAUNCH_CHAINED, .value.flag = 1};
        struct dg_cu_launch l = {gx, gy, 1, kernel[k].threads, 1, 1, shared, cu->to, &chained, 1};
        r = cu->d.launch_ex(&l, cu->fn[k], params, NULL);
    } else {
        r = cu->d.launch(cu->fn[k], gx, gy, 1, kernel[k].threads, 1, 1, shared, cu->to, params, NULL);
    }
    cu->apart = false;
    dg_cuda_ok(be, r, kernel[k].name);
}

/* Makes what is launched into stream `to` from here on wait for what `from` was given before. */
static void follow(struct dg_backend *be, dg_cu_stream to, dg_cu_stream from, dg_cu_event e) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (dg_cuda_enter(be) && dg_cuda_ok(be, cu->d.event_record(e, from), "recording an event"))
        dg_cuda_ok(be, cu->d.stream_wait(to, e, 0), "joining two streams");
}

/* A launch behind both streams waits for kernels of either to end: it must not begin while the one before it in its own stream ends. */
void dg_cuda_branch(struct dg_backend *be, enum dg_branch b) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (!cu->branches)
        return;
    cu->to = b == DG_BRANCH_SIDE ? cu->side : cu->stream;
    cu->apart = b != DG_BRANCH_MAIN;
    if (b == DG_BRANCH_SIDE)
        follow(be, cu->side, cu->stream, cu->forked);
    else if (b == DG_BRANCH_JOIN)
        follow(be, cu->stream, cu->side, cu->joined);
}

void dg_cuda_push_params(struct dg_backend *be, struct dgc_params p) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (cu->capturing || (cu->params_known && memcmp(&cu->params, &p, sizeof p) == 0))
        return;
    cu->params = p;
    dgc_launch_set_params(be, DGC_K_set_params, 1, 1, 0, &(struct dgc_set_params_args){cu->dev_params, p});
    cu->params_known = be->error.code == DG_OK; /* behind a failure nothing was launched */
}

void dg_cuda_params_sampled(struct dg_backend *be, float inv_t_next) {
    struct dg_cuda *cu = dg_cuda_of(be);
    cu->params.inv_t_soft = cu->params.inv_t_head;
    cu->params.inv_t_head = inv_t_next;
    cu->params_known = cu->params_known && be->error.code == DG_OK;
}

void dg_cuda_want_batch(struct dg_backend *be, const struct dg_batch *b) {
    struct dgc_params p = dg_cuda_of(be)->params;
    p.pos0 = b->pos0;
    p.ring_from = b->ring_from;
    p.n_live = b->n_live;
    dg_cuda_push_params(be, p);
}

void dg_cuda_want_inv_t(struct dg_backend *be, float head) {
    struct dgc_params p = dg_cuda_of(be)->params;
    p.inv_t_head = head;
    dg_cuda_push_params(be, p);
}

void dg_cuda_want_inv_t_soft(struct dg_backend *be, float soft) {
    struct dgc_params p = dg_cuda_of(be)->params;
    p.inv_t_soft = soft;
    dg_cuda_push_params(be, p);
}

void dg_cuda_mark(struct dg_backend *be, int i) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (!dg_cuda_enter(be) || i < 0 || i >= DG_CUDA_MARKS)
        return;
    if (!cu->mark[i] && !dg_cuda_ok(be, cu->d.event_create(&cu->mark[i], 0), "making an event"))
        return;
    dg_cuda_ok(be, cu->d.event_record(cu->mark[i], cu->stream), "recording an event");
}

void dg_cuda_wait(struct dg_backend *be, int i) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.event_sync(cu->mark[i]), "waiting for an event");
}

float dg_cuda_elapsed(struct dg_backend *be, int from, int to) {
    struct dg_cuda *cu = dg_cuda_of(be);
    float ms = NAN;
    dg_cuda_wait(be, to);
    if (dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.event_elapsed(&ms, cu->mark[from], cu->mark[to]), "timing");
    return ms;
}

const char *dg_cuda_describe(const struct dg_backend *be) { return dg_cuda_of(be)->about; }

size_t dg_cuda_streamed(const struct dg_backend *be, int32_t *layers) {
    const struct dg_cuda_feed *f = &dg_cuda_of(be)->feed;
    size_t sum = 0;
    for (int32_t i = 0; i < f->n; i++)
        sum += f->bytes[i];
    if (layers)
        *layers = f->n;
    return sum;
}

size_t dg_cuda_memory(const struct dg_backend *be, size_t *weights) {
    if (weights)
        *weights = dg_cuda_of(be)->weights_bytes;
    return dg_cuda_of(be)->used;
}

static void cuda_destroy(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (cu->ctx) {
        cu->d.ctx_set(cu->ctx);
        if (cu->stream)
            cu->d.stream_sync(cu->stream);
        if (cu->side)
            cu->d.stream_sync(cu->side);
        dg_cuda_replay_forget(be);
        dg_cuda_feed_close(be);
        dg_cuda_scratch_free(be);
        dg_cuda_free(be, cu->dev_params);
        dg_cuda_free(be, cu->weights);
        dg_cuda_stages_close(be);
        for (int i = 0; i < DG_CUDA_MARKS; i++)
            if (cu->mark[i])
                cu->d.event_destroy(cu->mark[i]);
        for (int i = 0; i < cu->n_modules; i++)
            cu->d.module_unload(cu->module[i]);
        if (cu->forked)
            cu->d.event_destroy(cu->forked);
        if (cu->joined)
            cu->d.event_destroy(cu->joined);
        if (cu->side)
            cu->d.stream_destroy(cu->side);
        if (cu->stream)
            cu->d.stream_destroy(cu->stream);
        cu->d.ctx_set(NULL);
        cu->d.ctx_release(cu->device);
        current = 0;
    }
    dg_cuda_driver_close(&cu->d);
    dg_free(cu->alloc);
    dg_free(cu->layer);
    dg_free(cu);
    dg_error_clear(&be->error);
    dg_free(be);
}

static enum dg_status open_device(struct dg_backend *be, const struct dg_cuda_opts *opts, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int n = 0;
    dg_cu_result r = cu->d.device_count(&n);
    char text[256];
    if (r != 0)
        return DG_FAIL(err, DG_E_BACKEND, "counting CUDA devices: %s", dg_cuda_result_text(&cu->d, r, text, sizeof text));
    if (n == 0)
        return DG_FAIL(err, DG_E_BACKEND, "the CUDA driver sees no device");
    if (opts->device < 0 || opts->device >= n)
        return DG_FAIL(err, DG_E_BACKEND, "there is no CUDA device %d: this machine has %d, counted from 0", opts->device, n);
    if ((r = cu->d.device_get(&cu->device, opts->device)) != 0 || (r = cu->d.device_name(cu->name, sizeof cu->name, cu->device)) != 0 ||
        (r = cu->d.device_attr(&cu->major, DG_CU_ATTR_MAJOR, cu->device)) != 0 ||
        (r = cu->d.device_attr(&cu->minor, DG_CU_ATTR_MINOR, cu->device)) != 0 ||
        (r = cu->d.device_attr(&cu->n_sm, DG_CU_ATTR_SM_COUNT, cu->device)) != 0 ||
        (r = cu->d.device_attr(&cu->shared_max, DG_CU_ATTR_SHARED_PER_BLOCK_OPTIN, cu->device)) != 0)
        return DG_FAIL(err, DG_E_BACKEND, "asking CUDA device %d what it is: %s", opts->device, dg_cuda_result_text(&cu->d, r, text, sizeof text));
    if (cu->major < 8)
        return DG_FAIL(err, DG_E_BACKEND, "CUDA device %d (%s) has compute capability %d.%d; 8.0 is the least this program runs on",
                       opts->device, cu->name, cu->major, cu->minor);
    if ((r = cu->d.ctx_retain(&cu->ctx, cu->device)) != 0) {
        cu->ctx = NULL;
        return DG_FAIL(err, DG_E_BACKEND, "opening CUDA device %d (%s): %s", opts->device, cu->name,
                       dg_cuda_result_text(&cu->d, r, text, sizeof text));
    }
    enum { APART = 1 /* does not wait for the default stream */, UNTIMED = 2 };
    /* of blocks that are ready, those of the side branch go first: it is short, and must not be left to run behind the main one */
    if (dg_cuda_enter(be) && dg_cuda_ok(be, cu->d.stream_create(&cu->stream, APART), "making a stream") &&
        dg_cuda_ok(be, cu->d.stream_create_ranked(&cu->side, APART, -1), "making a stream") &&
        dg_cuda_ok(be, cu->d.event_create(&cu->forked, UNTIMED), "making an event"))
        dg_cuda_ok(be, cu->d.event_create(&cu->joined, UNTIMED), "making an event");
    cu->to = cu->stream;
    return dg_backend_status(be, err);
}

static enum dg_status check_shape(const struct dg_config *c, struct dg_error *err) {
    for (int32_t l = 0; l < c->layers; l++)
        if (c->layer[l].hd > DG_CUDA_HD_MAX)
            return DG_FAIL(err, DG_E_UNSUPPORTED, "layer %d has a head dimension of %d; the CUDA kernels go up to %d", l, c->layer[l].hd,
                           DG_CUDA_HD_MAX);
    if (c->experts > DGC_PLAN_COUNTERS)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "%d experts a layer; the CUDA kernels go up to %d", c->experts, DGC_PLAN_COUNTERS);
    if (c->vocab > DGC_SOFT_VOCAB)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "a vocabulary of %d; the CUDA kernels go up to %d", c->vocab, DGC_SOFT_VOCAB);
    return DG_OK;
}

static void describe(const struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    size_t free_bytes = 0, total = 0;
    char experts[96] = "";
    cu->d.mem_info(&free_bytes, &total);
    if (cu->feed.n)
        snprintf(experts, sizeof experts, ", experts of %d of %d layers streamed from host memory (%.0f MiB)", cu->feed.n, cu->model.cfg.layers,
                 (double)dg_cuda_streamed(be, NULL) / (1 << 20));
    snprintf(cu->about, sizeof cu->about, "%s (compute %d.%d, %d multiprocessors, %.1f GiB, CUDA %d.%d), %s%s", cu->name, cu->major, cu->minor,
             cu->n_sm, (double)total / (1 << 30), cu->d.version_number / 1000, cu->d.version_number % 1000 / 10,
             cu->ops.act == DG_F32 ? "f32 planes" : "bf16 planes", experts);
}

/* Everything but the weights. */
static enum dg_status begin(struct dg_backend **out, const struct dg_config *cfg, const struct dg_cuda_opts *opts, struct dg_error *err) {
    static atomic_uint_fast64_t ids;
    struct dg_backend *be = dg_calloc(1, sizeof *be);
    struct dg_cuda *cu = dg_calloc(1, sizeof *cu);
    *out = NULL;
    if (!be || !cu) {
        dg_free(be);
        dg_free(cu);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the CUDA backend");
    }
    be->impl = cu;
    be->ops = &cu->ops;
    be->model = &cu->model;
    be->reserve = dg_cuda_reserve;
    be->destroy = cuda_destroy;
    cu->id = atomic_fetch_add(&ids, 1) + 1;
    cu->budget = opts->gpu_memory;
    cu->kernels = opts->kernels;
    cu->compile = opts->compile;
    dg_cuda_fill_ops(&cu->ops);
    cu->ops.name = "cuda";
    cu->ops.act = opts->exact_f32 ? DG_F32 : DG_BF16;
    enum dg_status st;
    DG_GO(check_shape(cfg, err));
    DG_GO(dg_cuda_driver_open(&cu->d, err));
    DG_GO(open_device(be, opts, err));
    DG_GO(dg_cuda_load_kernels(cu, err));
    dg_cuda_hopper_choose(cu, opts);
    if (opts->kernels == DG_CUDA_AUTO && opts->use && !(opts->use & DG_CUDA_H_SAMPLE))
        cu->ops.sample = NULL;
    cu->ops.chunk = cu->hopper & DG_CUDA_H_EXPERTS ? DG_CUDA_CHUNK : DG_CUDA_CHUNK / 2;
    DG_GO(dg_cuda_stages_open(be, err));
    cu->dev_params = dg_cuda_alloc(be, sizeof *cu->dev_params);
    DG_GO(dg_backend_status(be, err));
    *out = be;
    return DG_OK;
done:
    dg_backend_destroy(be);
    return st;
}

/* st: whether the weights are there. */
static enum dg_status finish(struct dg_backend **out, enum dg_status st) {
    if (st == DG_OK) {
        describe(*out);
        return DG_OK;
    }
    dg_backend_destroy(*out);
    *out = NULL;
    return st;
}

enum dg_status dg_cuda_create(struct dg_backend **out, const struct dg_model *model, const struct dg_cuda_opts *opts, struct dg_error *err) {
    DG_TRY(begin(out, &model->cfg, opts, err));
    return finish(out, dg_cuda_upload(*out, model, opts, err));
}

enum dg_status dg_cuda_create_random(struct dg_backend **out, const struct dg_cuda_random *shape, const struct dg_cuda_opts *opts,
                                     struct dg_error *err) {
    DG_TRY(begin(out, shape->cfg, opts, err));
    return finish(out, dg_cuda_draw_weights(*out, shape, opts, err));
}
