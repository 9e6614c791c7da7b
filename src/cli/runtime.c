#include "cli/cli.h"

#include "core/mem.h"
#include "ops/cuda/cuda.h"
#include "pack/checkpoint.h"
#include "pack/hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUNDLED "mini" /* the model that comes with the program */

extern char **environ;

double dg_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int dg_cli_fail(const char *name, struct dg_error *err) {
    fprintf(stderr, "diffgemma %s: %s\n", name, dg_error_text(err));
    int status = err->code == DG_E_ARG ? DG_EXIT_USAGE : err->code == DG_E_CANCELLED ? DG_EXIT_INTERRUPTED : DG_EXIT_FAILED;
    dg_error_clear(err);
    return status;
}

void dg_model_args_init(struct dg_model_args *a) { *a = (struct dg_model_args){.backend = "auto"}; }

enum dg_status dg_kv_type(const char *name, enum dg_dtype *out, struct dg_error *err) {
    static const char *const names[] = {"f16", "f32", "q8"};
    static const enum dg_dtype types[] = {DG_F16, DG_F32, DG_Q8};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            *out = types[i];
            return DG_OK;
        }
    return DG_FAIL(err, DG_E_ARG, "--kv %s: one of f16, f32, q8", name);
}

enum dg_status dg_runtime_flags(struct dg_runtime *r, struct dg_error *err) {
    dg_flags_default(&r->flags);
    DG_TRY(dg_flags_load(&r->flags, (const char *const *)environ, err));
    return dg_hub_use_home(r->flags.hf_home, err);
}

bool dg_bundled_models(char *path, size_t n) {
    char exe[3072];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (len <= 0)
        return false;
    exe[len] = 0;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(exe, '/');
        if (!slash)
            return false;
        *slash = 0;
        static const char *const where[] = {"models", "share/diffgemma/models"};
        for (int i = 0; i < 2; i++) {
            char probe[3300];
            struct stat sb;
            snprintf(path, n, "%s/%s", exe, where[i]);
            snprintf(probe, sizeof probe, "%s/" BUNDLED "/config.json", path);
            if (stat(probe, &sb) == 0)
                return true;
        }
    }
    return false;
}

enum dg_status dg_runtime_find(struct dg_runtime *r, const struct dg_model_args *a, struct dg_error *err) {
    const char *want = a->model ? a->model : r->flags.model;
    char models[3200], path[3300];
    if (want)
        return dg_hub_resolve(want, &r->dir, err);
    if (!dg_bundled_models(models, sizeof models))
        return DG_FAIL(err, DG_E_ARG, "no model: give -m FOLDER or set DGQ_MODEL (the bundled models/mini was not found beside the program)");
    snprintf(path, sizeof path, "%s/" BUNDLED, models);
    fprintf(stderr, "diffgemma: using the bundled model %s (another: -m MODEL or DGQ_MODEL)\n", path);
    r->dir = dg_strndup(path, strlen(path));
    return r->dir ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

enum dg_status dg_runtime_tokenizer(struct dg_runtime *r, struct dg_error *err) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/tokenizer.json", r->dir) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    if (access(path, F_OK) != 0)
        return dg_checkpoint_explain(r->dir, "tokenizer.json", err);
    return dg_tokenizer_open(&r->tok, path, err);
}

enum dg_status dg_runtime_model(struct dg_runtime *r, struct dg_error *err) {
    double t = dg_now();
    DG_TRY(dg_model_open(&r->model, r->dir, err));
    if (r->model->warnings[0])
        fprintf(stderr, "%s", r->model->warnings);
    r->load_s += dg_now() - t;
    return DG_OK;
}

static enum dg_prefill_rule prefill_rule(int32_t flag) {
    static const enum dg_prefill_rule rules[] = {DG_PREFILL_ONE_PATH, DG_PREFILL_AUTO, DG_PREFILL_EXACT, DG_PREFILL_FAST};
    return rules[flag];
}

enum dg_status dg_runtime_session(const struct dg_runtime *r, const struct dg_model_args *a, struct dg_session_opts *so, struct dg_error *err) {
    *so = (struct dg_session_opts){.ctx = a->ctx, .ring = r->flags.kv_ring, .sc_sparse = r->flags.sc_sparse,
                                   .prefill = prefill_rule(r->flags.fast_prefill), .fast_max = r->flags.fast_prefill_max,
                                   .unchecked_logits = !r->flags.check_logits};
    if (r->flags.fast_prefill_max && r->flags.fast_prefill == DG_FAST_PREFILL_UNSET)
        return DG_FAIL(err, DG_E_ARG, "DGQ_FAST_PREFILL_MAX limits what DGQ_FAST_PREFILL makes fast, and that is not set: set it to auto, 0 or 1");
    int32_t topk = !r->flags.attn_topk ? 0 : r->flags.attn_topk_dyn ? DG_TOPK_DYN : r->flags.attn_topk_k;
    so->attention = (struct dg_attention_opts){topk, r->flags.attn_topk_decode ? topk : 0, !r->flags.attn_window};
    so->kv = r->flags.kv_q8 ? DG_Q8 : DG_F16;
    return a->kv ? dg_kv_type(a->kv, &so->kv, err) : DG_OK;
}

void dg_runtime_say_streamed(struct dg_runtime *r) {
    int32_t layers = 0;
    size_t weights, bytes = !strcmp(r->be->ops->name, "cuda") ? dg_cuda_streamed(r->be, &layers) : 0;
    if (!layers || r->said_streamed)
        return;
    r->said_streamed = true;
    dg_cuda_memory(r->be, &weights);
    fprintf(stderr, "diffgemma: %.0f MiB of weights are on the GPU; the experts of %d of %d layers, %.0f MiB, stay in host memory and are streamed\n",
            (double)weights / (1 << 20), layers, r->be->model->cfg.layers, (double)bytes / (1 << 20));
}

enum dg_status dg_runtime_backend(struct dg_runtime *r, const struct dg_model_args *a, struct dg_session_opts *so, struct dg_error *err) {
    double t = dg_now();
    DG_TRY(dg_runtime_session(r, a, so, err));
    if (r->tok && dg_tokenizer_size(r->tok) > r->model->cfg.vocab)
        return DG_FAIL(err, DG_E_FORMAT, "the tokenizer has %d entries, the model only %d: they do not belong together", dg_tokenizer_size(r->tok),
                       r->model->cfg.vocab);
    struct dg_session_needs needs = {so, r->sessions ? r->sessions : 1};
    struct dg_backend_opts bo = {.threads = (int)a->threads, .device = (int)a->device, .exact = a->exact, .cpu = {a->cpu, r->flags.cpu},
                                 .gpu_memory = a->gpu_memory, .beside = r->beside ? r->beside : dg_session_needs,
                                 .beside_ctx = r->beside ? r->beside_ctx : &needs,
                                 .cuda_kernels = a->cuda_kernels ? a->cuda_kernels : r->flags.cuda_kernels};
    DG_TRY(dg_backend_open(&r->be, a->backend, r->model, &bo, err));
    r->load_s += dg_now() - t;
    dg_runtime_say_streamed(r);
    return DG_OK;
}

void dg_runtime_close(struct dg_runtime *r) {
    dg_backend_destroy(r->be);
    dg_tokenizer_close(r->tok);
    dg_model_close(r->model);
    dg_free(r->dir);
    dg_flags_deinit(&r->flags);
    memset(r, 0, sizeof *r);
}

enum dg_status dg_read_all(const char *path, size_t max, struct dg_buf *out, struct dg_error *err) {
    bool in = !strcmp(path, "-");
    FILE *f = in ? stdin : fopen(path, "rb");
    if (!f)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    char chunk[65536];
    enum dg_status st = DG_OK;
    dg_buf_init(out, max);
    for (size_t n; st == DG_OK && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        if (dg_buf_add(out, chunk, n) != DG_OK)
            st = DG_FAIL(err, out->status, "%s holds more than %zu bytes", in ? "standard input" : path, max);
    if (st == DG_OK && ferror(f))
        st = DG_FAIL(err, DG_E_IO, "cannot read %s: %s", in ? "standard input" : path, strerror(errno));
    if (!in)
        fclose(f);
    return st;
}

enum dg_status dg_read_ids(const char *s, struct dg_ids *out, struct dg_error *err) {
    static const char between[] = " \t\r\n,[]";
    while (*(s += strspn(s, between))) {
        size_t n = strcspn(s, between);
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (errno || end != s + n || v < 0 || v > INT32_MAX)
            return DG_FAIL(err, DG_E_ARG, "'%.*s' is not a token id", (int)(n < 20 ? n : 20), s);
        if (dg_ids_push(out, (int32_t)v) != DG_OK)
            return DG_FAIL(err, out->status, "too many token ids");
        s = end;
    }
    return DG_OK;
}
