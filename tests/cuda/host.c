/* The CUDA backend's host code against the stub driver: errors in words, nothing left open, and a turn's worth of work through emulated
 * kernels. Prints TAP lines. Run with LD_LIBRARY_PATH at the stub; `host no-driver` is run without it. */
#include "cli/bench.h"
#include "core/mem.h"
#include "core/meminfo.h"
#include "cuda/stub_calls.h"
#include "ops/cuda/state.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*stub_open)(void), (*stub_faults)(void);
static long (*stub_launches)(void), (*stub_chained)(void);
static struct dg_model *mini;

static void find_stubs(void) {
    find_stub("dg_stub_open", &stub_open);
    find_stub("dg_stub_faults", &stub_faults);
    find_stub("dg_stub_launches", &stub_launches);
    find_stub("dg_stub_chained", &stub_chained);
}

/* Opening must fail with this code and these words, and leave nothing open. */
static void must_refuse(const char *name, const struct dg_cuda_opts *opts, enum dg_status code, const char *words) {
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    enum dg_status st = dg_cuda_create(&be, mini, opts, &err);
    char why[900];
    snprintf(why, sizeof why, "status %s, \"%s\", %d open", dg_status_name(st), dg_error_text(&err), stub_open ? stub_open() : 0);
    ok(st == code && !be && strstr(dg_error_text(&err), words) && (!stub_open || stub_open() == 0), name, why);
    dg_backend_destroy(be);
    dg_error_clear(&err);
}

static void refusals(void) {
    struct dg_cuda_opts none = {0};
    setenv("DG_STUB_VERSION", "11080", 1);
    must_refuse("an old driver", &none, DG_E_BACKEND, "too old: it supports CUDA 11.8, 12.0 is needed");
    unsetenv("DG_STUB_VERSION");
    setenv("DG_STUB_DEVICES", "0", 1);
    must_refuse("a driver without a device", &none, DG_E_BACKEND, "sees no device");
    unsetenv("DG_STUB_DEVICES");
    must_refuse("a device that is not there", &(struct dg_cuda_opts){.device = 3}, DG_E_BACKEND, "no CUDA device 3: this machine has 1");
    setenv("DG_STUB_CC", "75", 1);
    must_refuse("a device too old", &none, DG_E_BACKEND, "compute capability 7.5; 8.0 is the least");
    unsetenv("DG_STUB_CC");
    setenv("DG_STUB_MEMORY", "1000000", 1);
    must_refuse("a device too small", &none, DG_E_NOMEM, "not enough GPU memory for the weights");
    unsetenv("DG_STUB_MEMORY");
    must_refuse("a budget too small", &(struct dg_cuda_opts){.gpu_memory = 1 << 20}, DG_E_NOMEM, "1.0 MiB may be used: allow more");
}

/* Any driver call that fails while the backend opens ends in its words and leaves nothing behind. */
static void planned_failures(void) {
    static const char *const calls[] = {"cuInit:1", "cuDeviceGetCount:1", "cuDeviceGet:1", "cuDevicePrimaryCtxRetain:1", "cuCtxSetCurrent:1",
                                        "cuStreamCreate:1", "cuModuleLoadData:1", "cuModuleLoadData:3", "cuModuleGetFunction:1",
                                        "cuModuleGetFunction:9", "cuMemHostAlloc:1", "cuMemHostAlloc:2", "cuEventCreate:1", "cuMemAlloc_v2:1",
                                        "cuMemAlloc_v2:2", "cuMemsetD8Async:1", "cuMemcpyHtoDAsync_v2:1", "cuMemcpyHtoDAsync_v2:40",
                                        "cuEventRecord:5", "cuEventSynchronize:3", "cuStreamCreateWithPriority:1",
                                        "cuEventCreate:2", "cuEventCreate:4", "cuFuncSetAttribute:1"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char plan[80], name[120];
        snprintf(plan, sizeof plan, "%s:700", calls[i]);
        snprintf(name, sizeof name, "%s fails", calls[i]);
        setenv("DG_STUB_FAIL", plan, 1);
        must_refuse(name, &(struct dg_cuda_opts){0}, DG_E_BACKEND, "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access");
    }
    unsetenv("DG_STUB_FAIL");
}

/* The N-th allocation on the host fails, for every N until opening succeeds. */
static void host_memory(void) {
    int n = 0, bad = 0;
    for (bool done = false; !done && n < 200;) {
        struct dg_error err = {0};
        struct dg_backend *be = NULL;
        dg_mem_fail_at((uint64_t)++n);
        enum dg_status st = dg_cuda_create(&be, mini, &(struct dg_cuda_opts){0}, &err);
        dg_mem_fail_at(0);
        done = st == DG_OK;
        bad += st != DG_OK && st != DG_E_NOMEM;
        dg_backend_destroy(be);
        bad += stub_open() != 0;
        dg_error_clear(&err);
    }
    char why[80];
    snprintf(why, sizeof why, "%d of %d attempts went wrong", bad, n);
    ok(bad == 0 && n > 3 && n < 200, "host memory runs out while the backend opens", why);
}

/* Prefill and three denoise steps of the mini model. */
static enum dg_status work(struct dg_backend *be, float *entropy, int32_t *argmax, int32_t n, struct dg_error *err) {
    struct dg_session *s = NULL;
    struct dg_session_opts o = {.ctx = 256, .kv = DG_F16, .ring = 256, .chunk = 64, .sc_sparse = true};
    int32_t ids[40], canvas[64];
    for (int i = 0; i < 40; i++)
        ids[i] = 5 + 91 * i % 4000;
    for (int i = 0; i < 64; i++)
        canvas[i] = 7 + 53 * i % 4000;
    enum dg_status st = dg_session_create(&s, be, &o, err);
    if (st == DG_OK)
        st = dg_session_extend(s, ids, 40, NULL, NULL, err);
    if (st == DG_OK)
        st = dg_session_step(s, canvas, n, DG_SC_SEED, 1.25f, err);
    for (int i = 0; i < 2 && st == DG_OK; i++) /* the second is launched as recorded */
        st = dg_session_step(s, canvas, n, DG_SC_SOFT, 1.3f, err);
    for (int i = 0; st == DG_OK && i < n; i++) {
        entropy[i] = s->entropy[i];
        argmax[i] = s->argmax[i];
    }
    dg_session_destroy(s);
    return st;
}

static void same_as_cpu(bool exact) {
    float want[64], got[64], worst = 0;
    int32_t want_id[64], got_id[64];
    int n = 16, differ = 0;
    struct dg_error err = {0};
    struct dg_backend *ref = NULL, *be = NULL;
    enum dg_status st = dg_backend_open(&ref, "ref", mini, NULL, &err);
    if (st == DG_OK)
        st = dg_backend_open(&be, "cuda", mini, &(struct dg_backend_opts){.exact = exact}, &err);
    if (st == DG_OK)
        st = work(ref, want, want_id, n, &err);
    if (st == DG_OK)
        st = work(be, got, got_id, n, &err);
    for (int i = 0; st == DG_OK && i < n; i++) {
        worst = fmaxf(worst, fabsf(want[i] - got[i]));
        differ += want_id[i] != got_id[i];
    }
    char why[900];
    snprintf(why, sizeof why, "%s; entropy differs by %g, %d argmaxes", dg_error_text(&err), (double)worst, differ);
    ok(st == DG_OK && worst < (exact ? 2e-4f : 0.15f) && differ <= (exact ? 0 : 1),
       exact ? "two steps with f32 planes" : "two steps with bf16 planes", why);
    dg_backend_destroy(ref);
    dg_backend_destroy(be);
    dg_error_clear(&err);
}

/* The branches of a layer one after the other, beside each other, and the side one as late as its events allow, with launches that may begin
 * early on a device that has them: the same bits. */
static void branches(void) {
    static const struct {
        const char *kernels, *late, *compute;
    } how[] = {{"chain", "", "80"}, {"branch", "", "80"}, {"branch", "late", "80"}, {"chain,branch", "late", "90"}};
    float first[64], got[64];
    int32_t id[64];
    int n = 4, faults = stub_faults();
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct dg_error err = {0};
        struct dg_backend *be = NULL;
        char name[80], why[900];
        setenv("DG_STUB_ORDER", how[i].late, 1);
        setenv("DG_STUB_CC", how[i].compute, 1);
        enum dg_status st = dg_backend_open(&be, "cuda", mini, &(struct dg_backend_opts){.cuda_kernels = how[i].kernels}, &err);
        if (st == DG_OK)
            st = work(be, i ? got : first, id, n, &err);
        bool as_wanted = st == DG_OK && dg_cuda_of(be)->branches == (i > 0) && dg_cuda_of(be)->chain == (i == 3);
        dg_backend_destroy(be);
        snprintf(name, sizeof name, "kernels %s, side branch %s", how[i].kernels, how[i].late[0] ? "late" : "at once");
        snprintf(why, sizeof why, "%s; entropies %g and %g, %d faults", dg_error_text(&err), (double)first[0], i ? (double)got[0] : 0.0,
                 stub_faults() - faults);
        ok(as_wanted && (i == 0 || memcmp(first, got, (size_t)n * sizeof *got) == 0) && stub_faults() == faults, name, why);
        dg_error_clear(&err);
    }
    unsetenv("DG_STUB_ORDER");
    unsetenv("DG_STUB_CC");
}

/* The mini model's with a sliding and a full layer alone, narrow ones, and few ids. */
static struct dg_config *small_config(void) {
    struct dg_config *c = dg_calloc(1, sizeof *c);
    int32_t full = 0;
    if (!c)
        abort();
    *c = mini->cfg;
    while (!c->layer[full].full)
        full++;
    c->layer[1] = c->layer[full];
    c->layers = 2;
    c->vocab = 320;
    c->hidden = c->inter = 64;
    c->moe = 32;
    c->experts = 4;
    c->topk = 2;
    return c;
}

#define ROWS 4
#define PASSES 8

/* Three blocks of a conversation, in the middle one a block of fewer rows: entropies of the last step of each, and how many kernels each pass
 * launched one by one. */
static enum dg_status conversation(struct dg_backend *be, const struct dg_session_opts *o, float *entropy, long *launched, struct dg_error *err) {
    static const struct {
        int32_t rows, commit;
        enum dg_sc_mode sc;
    } pass[PASSES] = {{ROWS, 0, DG_SC_SEED}, {ROWS, 0, DG_SC_SOFT}, {ROWS, 8, DG_SC_SOFT}, {ROWS, 0, DG_SC_SEED},
                      {ROWS, 0, DG_SC_SOFT}, {ROWS / 2, 60, DG_SC_SEED}, {ROWS, 0, DG_SC_SEED}, {ROWS, 0, DG_SC_SOFT}};
    struct dg_session *s = NULL;
    int32_t ids[256];
    for (int i = 0; i < 256; i++)
        ids[i] = 7 + 53 * i % 300;
    enum dg_status st = dg_session_create(&s, be, o, err);
    if (st == DG_OK)
        st = dg_session_extend(s, ids, 8, NULL, NULL, err);
    for (int i = 0; i < PASSES && st == DG_OK; i++) {
        long before = stub_launches();
        st = dg_session_step(s, ids + 100 + 3 * i, pass[i].rows, pass[i].sc, 1.25f + 0.1f * (float)i, err);
        launched[i] = stub_launches() - before;
        for (int j = 0; st == DG_OK && j < pass[i].rows; j++)
            entropy[i * ROWS + j] = s->entropy[j];
        if (st == DG_OK && pass[i].commit)
            st = dg_session_append(s, ids, (size_t)pass[i].commit, err);
    }
    dg_session_destroy(s);
    return st;
}

/* Passes that are launched as recorded, also where the conversation has moved on, leave the bits of passes run op by op; a pass whose attention is
 * cut otherwise there is run anew. '1': a pass is launched as recorded. */
static void recordings(void) {
    static const struct {
        const char *name, *kernels, *replayed;
        struct dg_attention_opts attention;
    } how[] = {{"windows", "auto", "00111011", {0, 0, false}},
               {"everything in the rings", "auto", "00111011", {0, 0, true}},
               {"keys chosen", "auto", "00111011", {0, 8, false}},
               {"parts of 64 keys", "auto,split=64,split_full=64", "00111000", {0, 0, false}}};
    struct dg_config *c = small_config();
    struct dg_cuda_random shape = {c, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, false, 5, 7, NULL};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct dg_session_opts o = {.ctx = 256, .kv = DG_F16, .ring = 256, .chunk = 64, .sc_sparse = true, .attention = how[i].attention};
        float entropy[2][PASSES * ROWS] = {{0}};
        long launched[2][PASSES] = {{0}};
        char replayed[PASSES + 1] = "", name[80], why[900];
        struct dg_error err = {0};
        struct dg_backend *be = NULL;
        struct dg_cuda_opts opts = {0};
        enum dg_status st = dg_cuda_choose_kernels(how[i].kernels, &opts, &err);
        if (st == DG_OK)
            st = dg_cuda_create_random(&be, &shape, &opts, &err);
        for (int on = 0; on < 2 && st == DG_OK; on++) {
            dg_cuda_replay_passes(be, on);
            st = conversation(be, &o, entropy[on], launched[on], &err);
        }
        for (int j = 0; j < PASSES; j++)
            replayed[j] = launched[1][j] < 4 ? '1' : launched[1][j] >= launched[0][j] + 4 ? '0' : '?';
        bool same = memcmp(entropy[0], entropy[1], sizeof entropy[0]) == 0;
        snprintf(name, sizeof name, "recorded passes, %s", how[i].name);
        snprintf(why, sizeof why, "%s; replayed %s, entropies %s", dg_error_text(&err), replayed, same ? "the same" : "differ");
        ok(st == DG_OK && same && strcmp(replayed, how[i].replayed) == 0, name, why);
        dg_backend_destroy(be);
        dg_error_clear(&err);
    }
    dg_free(c);
}

/* NaN or Inf in one row of the embedding reaches every row's logits, and in a layer every value: an error with the row, by the statistics that
 * the head takes anyway. A NaN in its last column, too, which no row's maximum shows. */
static void bad_numbers(bool exact) {
    size_t row = (size_t)mini->embed.k * 2, bytes = (size_t)mini->embed.n * row;
    size_t o_bytes = (size_t)mini->layer[1].o.n * (size_t)mini->layer[1].o.k * 2;
    static const char *const what[] = {"NaN in the first row of the embedding", "Inf in a middle one", "NaN in the last", "NaN in a layer"};
    for (int i = 0; i < 4; i++) {
        struct dg_error err = {0};
        struct dg_backend *be = NULL;
        struct dg_model m = *mini;
        float entropy[64];
        int32_t argmax[64];
        uint16_t *embed = malloc(bytes), *o = malloc(o_bytes), bad = i == 1 ? 0x7f80 : 0x7fc0;
        struct dg_layer *layer = malloc((size_t)m.cfg.layers * sizeof *layer);
        if (!embed || !o || !layer || m.embed.fmt != DG_FMT_BF16 || m.layer[1].o.fmt != DG_FMT_BF16)
            exit(1);
        memcpy(embed, m.embed.data, bytes);
        memcpy(o, m.layer[1].o.data, o_bytes);
        memcpy(layer, m.layer, (size_t)m.cfg.layers * sizeof *layer);
        if (i == 3)
            o[5] = bad;
        else
            embed[(i == 0 ? 0 : i == 1 ? (size_t)m.embed.n / 2 : (size_t)m.embed.n - 1) * (row / 2) + 3] = bad;
        m.embed.data = (uint8_t *)embed;
        layer[1].o.data = (uint8_t *)o;
        m.layer = layer;
        enum dg_status st = dg_backend_open(&be, "cuda", &m, &(struct dg_backend_opts){.exact = exact}, &err);
        if (st == DG_OK)
            st = work(be, entropy, argmax, 16, &err);
        dg_backend_destroy(be);
        char why[900], name[120];
        snprintf(why, sizeof why, "%s, \"%s\"", dg_status_name(st), dg_error_text(&err));
        snprintf(name, sizeof name, "%s is an error with %s planes", what[i], exact ? "f32" : "bf16");
        ok(st == DG_E_NUMERIC && strstr(dg_error_text(&err), "the logits of 16 of 16 canvas rows hold NaN or Inf, the first is row 0"), name, why);
        dg_error_clear(&err);
        free(embed);
        free(o);
        free(layer);
    }
}

/* A kernel that fails in the middle of a turn is that turn's error; the backend can be closed and nothing is left. */
static void failing_turn(void) {
    static const char *const calls[] = {"cuLaunchKernel:30:700",      "cuMemAlloc_v2:20:2",      "cuMemcpyDtoHAsync_v2:2:700",
                                        "cuStreamSynchronize:1:700", "cuStreamWaitEvent:7:700", "cuStreamWaitEvent:8:700",
                                        "cuStreamBeginCapture_v2:1:700", "cuStreamEndCapture:2:700", "cuGraphInstantiateWithFlags:2:700",
                                        "cuGraphUpload:2:700"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct dg_error err = {0};
        struct dg_backend *be = NULL;
        float entropy[64];
        int32_t argmax[64];
        enum dg_status st = dg_backend_open(&be, "cuda", mini, &(struct dg_backend_opts){.exact = true}, &err);
        setenv("DG_STUB_FAIL", calls[i], 1);
        setenv("DG_STUB_NO_RUN", "1", 1);
        if (st == DG_OK)
            st = work(be, entropy, argmax, 8, &err);
        unsetenv("DG_STUB_FAIL");
        unsetenv("DG_STUB_NO_RUN");
        dg_backend_destroy(be);
        char why[900], name[100];
        snprintf(why, sizeof why, "%s, \"%s\", %d open", dg_status_name(st), dg_error_text(&err), stub_open());
        snprintf(name, sizeof name, "%s in a turn", calls[i]);
        ok(st == (i == 1 ? DG_E_NOMEM : DG_E_BACKEND) && strstr(dg_error_text(&err), i == 1 ? "MiB more are needed" : "ILLEGAL_ADDRESS") &&
               stub_open() == 0,
           name, why);
        dg_error_clear(&err);
    }
}

/* ---- experts in host memory ---- */

#define ROWS 4
#define STEPS_MAX 5
struct outcome {
    float entropy[STEPS_MAX][ROWS];
    int32_t argmax[STEPS_MAX][ROWS];
    uint64_t kv;
    size_t used; /* device memory with the session open */
    int32_t streamed;
};

static const struct dg_session_opts fed_session = {.ctx = 128, .kv = DG_F16, .ring = 128, .chunk = 16, .sc_sparse = true};
static struct dg_config little; /* the mini model's layers and few values, so that many runs take seconds */

/* Prefill in chunks; steps, of which the same one is run, recorded and replayed; tokens behind them; a step of the next block. */
static enum dg_status long_work(struct dg_backend *be, int steps, struct outcome *out, struct dg_error *err) {
    struct dg_session *s = NULL;
    int32_t ids[40], canvas[ROWS];
    for (int i = 0; i < 40; i++)
        ids[i] = 5 + 91 * i % 200;
    enum dg_status st = dg_session_create(&s, be, &fed_session, err);
    if (st == DG_OK) {
        out->used = dg_cuda_memory(be, NULL);
        dg_cuda_streamed(be, &out->streamed);
        st = dg_session_extend(s, ids, 20, NULL, NULL, err);
    }
    for (int k = 0; st == DG_OK && k < steps; k++) {
        for (int i = 0; i < ROWS; i++)
            canvas[i] = 7 + (53 * i + 17 * k) % 200;
        st = dg_session_step(s, canvas, ROWS, k ? DG_SC_SOFT : DG_SC_SEED, 1.25f, err);
        for (int i = 0; st == DG_OK && i < ROWS; i++) {
            out->entropy[k][i] = s->entropy[i];
            out->argmax[k][i] = s->argmax[i];
        }
        if (st == DG_OK && k == 3)
            st = dg_session_extend(s, ids + 20, 5, NULL, NULL, err);
    }
    if (st == DG_OK)
        st = dg_kv_fingerprint(&s->kv, be, &out->kv, err);
    dg_session_destroy(s);
    return st;
}

struct fed {
    bool drawn, exact; /* drawn: weights of the little shape; else the mini model */
    const char *kernels;
    int steps;
};

static enum dg_status fed_run(const struct fed *f, size_t budget, struct outcome *out, struct dg_error *err) {
    struct dg_session_needs needs = {&fed_session, 1};
    struct dg_cuda_random w = {&little, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_Q4_BLOCK, DG_FMT_Q8_ROW, false, 2, 7, NULL};
    struct dg_cuda_opts o = {.exact_f32 = f->exact, .gpu_memory = budget, .beside = dg_session_needs, .beside_ctx = &needs};
    struct dg_backend *be = NULL;
    memset(out, 0, sizeof *out);
    enum dg_status st = dg_cuda_choose_kernels(f->kernels, &o, err);
    if (st == DG_OK)
        st = f->drawn ? dg_cuda_create_random(&be, &w, &o, err) : dg_cuda_create(&be, mini, &o, err);
    if (st == DG_OK)
        st = long_work(be, f->steps, out, err);
    dg_backend_destroy(be);
    return st;
}

static size_t experts_of_a_layer(const struct fed *f) {
    const struct dg_config *c = f->drawn ? &little : &mini->cfg;
    enum dg_format fmt = f->drawn ? DG_FMT_Q4_BLOCK : mini->layer[0].gate_up.fmt;
    return (size_t)c->experts * (size_t)(dg_format_mat_bytes(fmt, 2 * c->moe, c->hidden) + dg_format_mat_bytes(fmt, c->hidden, c->moe));
}

/* A pass run op by op behind a recorded one that nobody has waited for: its copies wait for the recording's launches. */
static enum dg_status behind_graph(size_t budget, float *entropy, struct dg_error *err) {
    struct dg_session_needs needs = {&fed_session, 1};
    struct dg_cuda_random w = {&little, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_Q8_ROW, DG_FMT_Q4_BLOCK, DG_FMT_Q8_ROW, false, 2, 7, NULL};
    struct dg_cuda_opts o = {.gpu_memory = budget, .beside = dg_session_needs, .beside_ctx = &needs};
    struct dg_backend *be = NULL;
    struct dg_session *s = NULL;
    static const int32_t canvas[ROWS] = {7, 60, 113, 166};
    enum dg_status st = dg_cuda_create_random(&be, &w, &o, err);
    if (st == DG_OK)
        st = dg_session_create(&s, be, &fed_session, err);
    for (int i = 0; st == DG_OK && i < 4; i++) {
        struct dg_denoise d = {canvas, i < 3 ? ROWS : ROWS - 1, DG_SC_SEED, true, 1.25f};
        st = dg_forward_denoise(be, s->planes, &s->kv, &d, NULL, err);
    }
    if (st == DG_OK) {
        be->ops->read(be, entropy, s->planes->stats.entropy, ROWS * sizeof *entropy);
        st = dg_backend_status(be, err);
    }
    dg_session_destroy(s);
    dg_backend_destroy(be);
    return st;
}

static void fed_behind_graph(size_t budget) {
    float want[ROWS], got[ROWS];
    struct dg_error err = {0};
    enum dg_status st = behind_graph(0, want, &err);
    setenv("DG_STUB_ORDER", "early", 1);
    if (st == DG_OK)
        st = behind_graph(budget, got, &err);
    unsetenv("DG_STUB_ORDER");
    ok(st == DG_OK && memcmp(want, got, sizeof want) == 0, "copies behind a recorded pass wait for it", dg_error_text(&err));
    dg_error_clear(&err);
}

/* The same bits whatever is streamed, in either extreme order of copies and launches. */
static void fed_same(const struct fed *f) {
    static const struct {
        const char *order;
        int less, streamed; /* layers' experts the budget lacks; how many are streamed then: a double buffer takes two */
    } runs[] = {{"late", 1, 3}, {"early", 4, 6}, {"early", 2, 4}, {"late", 3, 5}};
    struct outcome want, got;
    struct dg_error err = {0};
    char why[900], name[120];
    enum dg_status st = fed_run(f, 0, &want, &err);
    ok(st == DG_OK && want.streamed == 0 && isfinite(want.entropy[f->steps - 1][0]), "all experts on the device", dg_error_text(&err));
    for (size_t i = 0; i < (f->exact || f->kernels ? 2 : sizeof runs / sizeof *runs); i++) {
        setenv("DG_STUB_ORDER", runs[i].order, 1);
        st = fed_run(f, want.used - (size_t)runs[i].less * experts_of_a_layer(f), &got, &err);
        unsetenv("DG_STUB_ORDER");
        bool same = memcmp(want.entropy, got.entropy, sizeof want.entropy) == 0 && memcmp(want.argmax, got.argmax, sizeof want.argmax) == 0 &&
                    want.kv == got.kv;
        snprintf(why, sizeof why, "%s; %d streamed, the same: %d, %d open", dg_error_text(&err), got.streamed, same, stub_open());
        snprintf(name, sizeof name, "experts of %d of 6 layers streamed, copies %s, %s%s", runs[i].streamed, runs[i].order,
                 f->exact ? "f32 planes" : "bf16 planes", f->kernels ? ", launches chained" : "");
        ok(st == DG_OK && same && got.streamed == runs[i].streamed && stub_open() == 0, name, why);
        dg_error_clear(&err);
    }
    if (!f->exact && !f->kernels)
        fed_behind_graph(want.used - 4 * experts_of_a_layer(f));
}

/* A loaded model's stacks are where they stay, byte for byte: on the device, or in the host memory that is copied from. */
static void fed_bytes(void) {
    struct dg_session_needs needs = {&fed_session, 1};
    struct dg_cuda_opts o = {.beside = dg_session_needs, .beside_ctx = &needs};
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    struct dg_session *s = NULL;
    char why[900];
    size_t up = (size_t)mini->layer[0].gate_up.e * (size_t)dg_format_mat_bytes(DG_FMT_BF16, mini->layer[0].gate_up.n, mini->layer[0].gate_up.k);
    size_t all = experts_of_a_layer(&(struct fed){0}), down = all - up;
    enum dg_status st = dg_cuda_create(&be, mini, &o, &err);
    if (st == DG_OK)
        st = dg_session_create(&s, be, &fed_session, &err);
    o.gpu_memory = st == DG_OK ? dg_cuda_memory(be, NULL) - 2 * all : 0;
    dg_session_destroy(s);
    dg_backend_destroy(be);
    st = st == DG_OK ? dg_cuda_create(&be, mini, &o, &err) : st;
    int wrong = 0, streamed = 0;
    unsigned char *got = dg_calloc(all, 1);
    for (int32_t l = 0; st == DG_OK && got && l < mini->cfg.layers; l++) {
        const struct dg_cuda *cu = dg_cuda_of(be);
        const struct dg_layer *d = &be->model->layer[l], *f = &mini->layer[l];
        const unsigned char *where = got;
        for (int32_t i = 0; i < cu->feed.n; i++)
            if (cu->feed.layer[i] == l) {
                where = cu->feed.host[i];
                streamed++;
            }
        be->ops->read(be, got, (const void *)(uintptr_t)d->gate_up.dev, up);
        be->ops->read(be, got + up, (const void *)(uintptr_t)d->expert_down.dev, down);
        wrong += memcmp(where, f->gate_up.data, up) != 0 || memcmp(where + up, f->expert_down.data, down) != 0;
    }
    snprintf(why, sizeof why, "%s; %d of 6 wrong, %d streamed", dg_error_text(&err), wrong, streamed);
    ok(st == DG_OK && got && wrong == 0 && streamed == 4, "a model's experts where they stay", why);
    dg_free(got);
    dg_backend_destroy(be);
    dg_error_clear(&err);
}

/* To the byte: what was foreseen is what is taken, and a byte less is refused. */
static void fed_budgets(void) {
    static const struct fed f = {.steps = 1};
    struct outcome all, got;
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    char why[900], memory[32];
    setenv("DG_STUB_NO_RUN", "1", 1);
    enum dg_status st = fed_run(&f, 0, &all, &err);
    dg_error_clear(&err); /* what was not computed is no number */
    size_t least = all.used - 4 * experts_of_a_layer(&f);
    for (size_t i = 0; i < 2; i++) {
        st = fed_run(&f, all.used - 1 + i, &got, &err);
        snprintf(why, sizeof why, "%s; %d streamed, %zu and %zu taken", dg_error_text(&err), got.streamed, got.used, all.used);
        ok(got.streamed == (i ? 0 : 3) && got.used <= all.used, i ? "a budget of just all" : "a byte less than all", why);
        dg_error_clear(&err);
    }
    st = fed_run(&f, least - 1, &got, &err);
    ok(st == DG_E_NOMEM && strstr(dg_error_text(&err), "with the experts of every layer in host memory") && !strchr(dg_error_text(&err), '\n') &&
           stub_open() == 0,
       "a byte less than the least", dg_error_text(&err));
    dg_error_clear(&err);
    dg_mem_pretend(1 << 20);
    st = fed_run(&f, least, &got, &err);
    dg_mem_pretend(0);
    ok(st == DG_E_NOMEM && strstr(dg_error_text(&err), "the experts of 6 layers stay in host memory, 18.0 MiB, and 1.0 MiB of it are free") &&
           stub_open() == 0,
       "too little host memory", dg_error_text(&err));
    dg_error_clear(&err);
    snprintf(memory, sizeof memory, "%zu", least + least / 16);
    setenv("DG_STUB_MEMORY", memory, 1);
    st = fed_run(&f, 0, &got, &err);
    unsetenv("DG_STUB_MEMORY");
    snprintf(why, sizeof why, "%s; %d streamed", dg_error_text(&err), got.streamed);
    ok(got.streamed >= 5, "a small device without a budget", why);
    dg_error_clear(&err);
    st = dg_backend_open(&be, "auto", mini, &(struct dg_backend_opts){.threads = 1, .gpu_memory = 1 << 20}, &err);
    ok(st == DG_E_NOMEM && !be, "auto does not fall back when a budget is refused", dg_error_text(&err));
    dg_error_clear(&err);
    unsetenv("DG_STUB_NO_RUN");
}

/* Driver calls of streaming that fail are the turn's error, and nothing is left open. */
static void fed_failures(void) {
    static const char *const calls[] = {"cuMemHostAlloc:3:700", "cuStreamCreate:2:700", "cuEventCreate:3:700", "cuEventCreate:9:700",
                                        "cuStreamWaitEvent:1:700", "cuStreamWaitEvent:2:700", "cuStreamWaitEvent:11:700",
                                        "cuMemcpyHtoDAsync_v2:3:700", "cuMemcpyDtoHAsync_v2:1:700", "cuMemcpyDtoHAsync_v2:6:700"};
    static const struct fed f = {.drawn = true, .steps = 4};
    struct outcome all, got;
    struct dg_error err = {0};
    char why[900], name[100];
    enum dg_status st = fed_run(&f, 0, &all, &err);
    ok(st == DG_OK, "nothing fails", dg_error_text(&err));
    dg_error_clear(&err);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        setenv("DG_STUB_FAIL", calls[i], 1);
        st = fed_run(&f, all.used - 4 * experts_of_a_layer(&f), &got, &err);
        unsetenv("DG_STUB_FAIL");
        snprintf(why, sizeof why, "%s, \"%s\", %d open", dg_status_name(st), dg_error_text(&err), stub_open());
        snprintf(name, sizeof name, "%s with experts in host memory", calls[i]);
        ok(st == DG_E_BACKEND && strstr(dg_error_text(&err), "ILLEGAL_ADDRESS") && stub_open() == 0, name, why);
        dg_error_clear(&err);
    }
}

static void fed(void) {
    little = mini->cfg;
    little.vocab = 256;
    little.canvas = 16;
    little.hidden = little.inter = 64;
    little.moe = 32;
    little.experts = 6;
    little.topk = 2;
    little.window = 24;
    fed_bytes();
    fed_same(&(struct fed){.drawn = true, .exact = true, .steps = STEPS_MAX});
    fed_same(&(struct fed){.drawn = true, .steps = STEPS_MAX});
    setenv("DG_STUB_CC", "90", 1);
    long before = stub_chained();
    fed_same(&(struct fed){.drawn = true, .kernels = "chain", .steps = STEPS_MAX});
    ok(stub_chained() > before + 100, "launches are chained", "they are not");
    unsetenv("DG_STUB_CC");
    fed_budgets();
    fed_failures();
}

static void names(void) {
    struct dg_error err = {0}, note = {0};
    struct dg_backend *be = NULL;
    enum dg_status st = dg_backend_open(&be, "gpu", mini, NULL, &err);
    ok(st == DG_E_ARG && !be, "an unknown backend's name", dg_error_text(&err));
    dg_error_clear(&err);
    setenv("DG_STUB_DEVICES", "0", 1);
    st = dg_backend_open(&be, "auto", mini, &(struct dg_backend_opts){.threads = 1, .note = &note}, &err);
    unsetenv("DG_STUB_DEVICES");
    ok(st == DG_OK && strcmp(be->ops->name, "cpu") == 0 && strstr(dg_error_text(&note), "no device"), "auto falls back and says why",
       dg_error_text(&note));
    dg_backend_destroy(be);
    dg_error_clear(&note);
    st = dg_backend_open(&be, "auto", mini, NULL, &err);
    ok(st == DG_OK && strcmp(be->ops->name, "cuda") == 0, "auto takes the device", dg_error_text(&err));
    dg_backend_destroy(be);
}

/* DGQ_CUDA_KERNELS on its way to the backend. A wrong one is refused also where another backend would be taken. */
static void kernels(void) {
    static const struct {
        const char *text;
        enum dg_cuda_kernels kernels;
    } good[] = {{NULL, DG_CUDA_AUTO}, {"auto", DG_CUDA_AUTO}, {"portable", DG_CUDA_PORTABLE}, {"simple", DG_CUDA_SIMPLE},
                {"experts,head", DG_CUDA_AUTO}};
    static const char *const backends[] = {"cuda", "auto", "cpu", "ref"};
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        enum dg_status st = dg_backend_open(&be, "auto", mini, &(struct dg_backend_opts){.cuda_kernels = good[i].text}, &err);
        char name[80];
        snprintf(name, sizeof name, "kernels %s", good[i].text ? good[i].text : "not given");
        ok(st == DG_OK && strcmp(be->ops->name, "cuda") == 0 && dg_cuda_of(be)->kernels == good[i].kernels, name, dg_error_text(&err));
        dg_backend_destroy(be);
    }
    struct dg_cuda_opts o = {0};
    enum dg_status listed = dg_cuda_choose_kernels("experts,head", &o, &err);
    ok(listed == DG_OK && o.use == (DG_CUDA_H_EXPERTS | DG_CUDA_H_HEAD),
       "a list leaves the others out", dg_error_text(&err));
    listed = dg_cuda_choose_kernels("auto,compile", &o, &err);
    ok(listed == DG_OK && o.compile && o.use == 0 && dg_cuda_choose_kernels(NULL, &o, &err) == DG_OK && !o.compile, "kernels compiled on request",
       dg_error_text(&err));
    listed = dg_cuda_choose_kernels("auto,head", &o, &err);
    ok(listed == DG_OK && o.use == DG_CUDA_H_DEFAULT, "a group behind auto is used beside the others", dg_error_text(&err));
    for (size_t i = 0; i < 4; i++) {
        enum dg_status st = dg_backend_open(&be, backends[i], mini, &(struct dg_backend_opts){.threads = 1, .cuda_kernels = "heads"}, &err);
        char name[80];
        snprintf(name, sizeof name, "unknown kernels, backend %s", backends[i]);
        ok(st == DG_E_ARG && !be && strstr(dg_error_text(&err), "\"heads\": give auto, portable, simple, or a list of experts"), name,
           dg_error_text(&err));
        dg_error_clear(&err);
    }
}

static void drawn_and_graph(void) {
    struct dg_config *c = dg_calloc(1, sizeof *c);
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    struct dg_cuda_graph *g = NULL;
    if (!c)
        abort();
    *c = mini->cfg;
    struct dg_cuda_random shape = {c, DG_FMT_BF16, DG_FMT_Q4_BLOCK, DG_FMT_NVFP4_BLOCK, DG_FMT_Q6_BLOCK, DG_FMT_Q8_ROW, false, 0, 7, NULL};
    float entropy[64];
    int32_t argmax[64];
    enum dg_status st = dg_cuda_create_random(&be, &shape, &(struct dg_cuda_opts){.exact_f32 = true}, &err);
    if (st == DG_OK)
        st = work(be, entropy, argmax, 4, &err);
    ok(st == DG_OK && isfinite(entropy[3]), "a step with drawn weights", dg_error_text(&err));
    if (st == DG_OK)
        st = dg_cuda_graph_begin(be, &err);
    struct dg_plane p = {NULL, DG_F32, 1, 1, 1};
    if (st == DG_OK) {
        be->ops->add(be, &p, &p, &p);
        st = dg_cuda_graph_end(be, &g, &err);
    }
    ok(st == DG_OK && g, "a graph", dg_error_text(&err));
    dg_cuda_graph_destroy(be, g);
    setenv("DG_STUB_FAIL", "cuGraphInstantiateWithFlags:1:2", 1);
    if (dg_cuda_graph_begin(be, &err) == DG_OK)
        st = dg_cuda_graph_end(be, &g, &err);
    unsetenv("DG_STUB_FAIL");
    ok(st == DG_E_BACKEND && !g, "a graph that cannot be made", dg_error_text(&err));
    dg_error_clear(&err);
    dg_backend_destroy(be);
    dg_free(c);
}

/* Lines of a bench that are no comment must all have the header's columns, and each of the names a row. */
static void check_csv(const char *name, FILE *f, const char *const *names, enum dg_status st, struct dg_error *err) {
    char line[4096], why[900];
    int bad = 0, found = 0, wanted = 0, columns = 1;
    for (const char *c = DG_BENCH_COLUMNS; *c; c++)
        columns += *c == ',';
    while (names[wanted])
        wanted++;
    rewind(f);
    while (fgets(line, sizeof line, f)) {
        int n = 1;
        if (line[0] == '#')
            continue;
        for (const char *c = line; *c; c++)
            n += *c == ',';
        bad += n != columns;
        for (int i = 0; i < wanted; i++)
            found += strncmp(line, names[i], strlen(names[i])) == 0 && line[strlen(names[i])] == ',';
    }
    fclose(f);
    snprintf(why, sizeof why, "%s; %d lines of other columns, %d of %d rows", dg_error_text(err), bad, found, wanted);
    ok(st == DG_OK && bad == 0 && found == wanted && stub_open() == 0, name, why);
    dg_error_clear(err);
}

static void benches(const char *model) {
    static const char *const step[] = {"what", "qkv_full", "experts_full", "norms_full", "head_and_stats", "soft_sparse", "soft_exact", "step_sparse",
                                       "loop_sparse", "step_exact", "loop_exact", "step_sparse_op_by_op", NULL};
    static const char *const load[] = {"what", "open", "ready", NULL};
    char shape[4096];
    struct dg_error err = {0};
    struct dg_bench_opts o;
    snprintf(shape, sizeof shape, "%s/config.json", model);
    dg_bench_opts_init(&o, DG_BENCH_STEP);
    o.model.backend = "cuda";
    o.synth = shape;
    o.layers = o.repeat = 1;
    o.ctx = 3;
    o.rows = o.steps = 2;
    o.out = tmpfile();
    check_csv("bench step with drawn weights", o.out, step, dg_bench(&o, &err), &err);
    dg_bench_opts_init(&o, DG_BENCH_LOAD);
    o.model.backend = "cuda";
    o.model.model = model;
    o.repeat = 1;
    o.out = tmpfile();
    check_csv("bench load", o.out, load, dg_bench(&o, &err), &err);
}

int main(int argc, char **argv) {
    struct dg_error err = {0};
    if (argc > 1 && strcmp(argv[1], "no-driver") == 0) {
        static struct dg_model none;
        mini = &none;
        must_refuse("no driver", &(struct dg_cuda_opts){0}, DG_E_BACKEND, "no CUDA driver on this machine");
        return failed != 0;
    }
    if (argc != 2 || dg_model_open(&mini, argv[1], &err) != DG_OK) {
        printf("not ok - model: %s\n", argc == 2 ? dg_error_text(&err) : "usage: host MODEL");
        return 1;
    }
    find_stubs();
    setvbuf(stdout, NULL, _IOLBF, 0);
    refusals();
    planned_failures();
    host_memory();
    names();
    kernels();
    same_as_cpu(true);
    same_as_cpu(false);
    branches();
    recordings();
    bad_numbers(true);
    bad_numbers(false);
    failing_turn();
    fed();
    drawn_and_graph();
    benches(argv[1]);
    char why[80];
    snprintf(why, sizeof why, "%d open, %d faults, %ld launches", stub_open(), stub_faults(), stub_launches());
    ok(stub_open() == 0 && stub_faults() == 0 && stub_launches() > 500, "nothing left open, no misuse of the driver", why);
    dg_model_close(mini);
    return failed != 0;
}
