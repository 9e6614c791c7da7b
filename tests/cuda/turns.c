/* Whole turns on the stub driver, the sampler on the device against the sampler on the host: the same events, tokens, stream and cache, bit for
 * bit. Prints TAP lines. Run with LD_LIBRARY_PATH at the stub. */
#include "core/buf.h"
#include "core/mem.h"
#include "cuda/stub_calls.h"
#include "ops/cuda/state.h"
#include "session/turn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long (*stub_launches)(void);
static int (*stub_open)(void), (*stub_faults)(void);
static struct dg_config small;
static atomic_bool cancel;

static void find_stubs(void) {
    find_stub("dg_stub_open", &stub_open);
    find_stub("dg_stub_faults", &stub_faults);
    find_stub("dg_stub_launches", &stub_launches);
}

/* A kind of turn. */
struct kind {
    const char *name;
    int32_t steps_max, canvas_n, cancel_at, blocks;
    double entropy_stop, confidence;
    bool draw, freeze, reference_stops, no_early_stop, nothing, nan, unchecked, op_by_op;
    bool streamed; /* four layers, of which three or all have their experts in host memory when the sampler is on the device */
    const char *fails; /* DG_STUB_FAIL */
};

static const struct kind kinds[] = {
    {.name = "no test stops it", .steps_max = 6, .blocks = 3, .no_early_stop = true},
    {.name = "one step a block", .steps_max = 1, .blocks = 3},
    {.name = "stopped after two steps", .steps_max = 6, .blocks = 3, .entropy_stop = 1e9},
    {.name = "stopped when stable", .steps_max = 9, .blocks = 2, .confidence = 1e9},
    {.name = "freeze", .steps_max = 5, .blocks = 2, .freeze = true, .no_early_stop = true},
    {.name = "freeze, the reference's stops", .steps_max = 7, .blocks = 2, .freeze = true, .reference_stops = true, .confidence = 2},
    {.name = "a canvas that is given", .steps_max = 4, .blocks = 2, .canvas_n = 5},
    {.name = "re-rolls", .steps_max = 3, .blocks = 2, .nothing = true},
    {.name = "drawn tokens", .steps_max = 4, .blocks = 2, .draw = true},
    {.name = "op by op", .steps_max = 4, .blocks = 2, .op_by_op = true},
    {.name = "experts streamed", .steps_max = 4, .blocks = 2, .no_early_stop = true, .streamed = true},
    {.name = "experts streamed, cancelled", .steps_max = 5, .blocks = 1, .cancel_at = 4, .no_early_stop = true, .streamed = true},
    {.name = "cancelled in a block's second step", .steps_max = 5, .blocks = 2, .cancel_at = 7, .no_early_stop = true},
    {.name = "cancelled at a block's last step", .steps_max = 5, .blocks = 2, .cancel_at = 5, .no_early_stop = true},
    {.name = "NaN in the logits", .steps_max = 4, .blocks = 2, .nan = true},
    {.name = "NaN in the logits, unchecked", .steps_max = 4, .blocks = 2, .nan = true, .unchecked = true},
    {.name = "a step that cannot be launched", .steps_max = 8, .blocks = 1, .no_early_stop = true, .fails = "cuGraphLaunch:2:700"},
};

struct told {
    const struct kind *k;
    struct dg_buf text;
    int steps, quiet; /* quiet: steps for which nothing but a recording was launched since the one before */
    long launches;
};

static uint64_t mix(uint64_t h, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return h;
}

static void on_step(void *ctx, const struct dg_step_event *e) {
    struct told *t = ctx;
    const struct dg_step_result *r = e->result;
    size_t n = (size_t)e->n;
    uint64_t h = mix(mix(mix(mix(1469598103934665603u, r->accept, n), r->canvas, 4 * n), r->result, 4 * n), e->p_max, 4 * n);
    dg_buf_fmt(&t->text, "step %d.%d.%d of %d at %a: %d of %d, %a, %s %d %016llx\n", e->block, e->retry, r->step, e->steps_max,
               (double)e->temperature, r->n_accepted, e->n, r->mean_entropy, dg_stop_name(r->stop), r->converged, (unsigned long long)h);
    t->quiet += stub_launches() == t->launches;
    t->launches = stub_launches();
    if (++t->steps == t->k->cancel_at)
        atomic_store(&cancel, true);
}

static void on_block(void *ctx, const struct dg_block_event *e) {
    struct told *t = ctx;
    dg_buf_fmt(&t->text, "block %d: %d kept, %d steps of %d, %d, %a, %s, retries %d, %d%d%d, %s\n", e->block, e->kept, e->steps, e->steps_all,
               e->accepted, e->mean_entropy, dg_stop_name(e->stop), e->retries, e->trimmed, e->converged, e->degenerate, dg_turn_end_name(e->end));
}

static bool nothing(void *ctx, const int32_t *ids, int32_t n) {
    (void)ids;
    (void)n;
    return ((const struct told *)ctx)->k->nothing;
}

/* One turn at the session's end. */
static void one_turn(struct dg_session *s, struct told *t, uint64_t seed) {
    static const int32_t given[5] = {7, 9, 11, 200, 3};
    const struct kind *k = t->k;
    struct dg_turn_opts o = {.seed = seed, .max_tokens = k->blocks * (int64_t)small.canvas, .first_step = DG_SC_SEED, .extend_last = true,
                             .canvas_ids = given, .canvas_n = k->canvas_n, .shows_nothing = nothing, .text_ctx = t, .on_step = on_step,
                             .on_block = on_block, .ctx = t};
    dg_sampler_params_init(&o.sampler, &small, NULL);
    dg_commit_policy_init(&o.policy, &small, NULL);
    o.policy.n_stops = 0;
    o.policy.trim = o.policy.hard = 0;
    o.policy.repeat_max = 0;
    o.policy.retries = 3;
    o.sampler.steps_max = k->steps_max;
    o.sampler.argmax = !k->draw;
    o.sampler.freeze = k->freeze;
    o.sampler.reference_stops = k->reference_stops;
    o.sampler.no_early_stop = k->no_early_stop;
    o.sampler.entropy_bound = 3;
    if (k->entropy_stop > 0) {
        o.sampler.entropy_stop = k->entropy_stop;
        o.sampler.entropy_steps = 2;
    }
    if (k->confidence > 0)
        o.sampler.confidence = k->confidence;
    struct dg_turn turn;
    struct dg_error err = {0};
    uint64_t kv = 0;
    enum dg_status st = dg_turn_begin(&turn, s, &o, &err);
    if (st == DG_OK) {
        st = dg_turn_run(&turn, &err);
        dg_buf_fmt(&t->text, "%s, %d steps, %s, stream %016llx:", dg_turn_end_name(turn.end), turn.steps, dg_status_name(st),
                   (unsigned long long)turn.rng.state);
        for (size_t i = 0; i < turn.out.n; i++)
            dg_buf_fmt(&t->text, " %d", turn.out.v[i]);
        dg_turn_deinit(&turn);
    }
    dg_buf_fmt(&t->text, "\n%s\n", dg_error_text(&err));
    dg_error_clear(&err);
    if (dg_kv_fingerprint(&s->kv, s->be, &kv, &err) == DG_OK)
        dg_buf_fmt(&t->text, "cache %016llx at %lld\n", (unsigned long long)kv, (long long)s->kv.len);
    dg_error_clear(&err);
}

/* Two turns on a fresh backend, the second one without what happened to the first; what was told of both. */
static void run(const struct kind *k, bool on_device, const char *order, struct told *t) {
    static struct dg_config shaped;
    static size_t all; /* what everything on the device takes */
    struct dg_session_needs needs = {NULL, 1};
    struct dg_cuda_random shape = {&shaped, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, DG_FMT_BF16, false, 5, 7, NULL};
    struct dg_session_opts so = {.ctx = 256, .kv = DG_F16, .ring = 256, .chunk = 64, .sc_sparse = true, .unchecked_logits = k->unchecked};
    struct dg_cuda_opts opts = {.exact_f32 = true};
    struct dg_error err = {0};
    struct dg_backend *be = NULL;
    struct dg_session *s = NULL;
    int32_t streamed = 0;
    static const int32_t prompt[9] = {2, 5, 90, 181, 172, 4, 95, 186, 177};
    *t = (struct told){.k = k};
    dg_buf_init(&t->text, 1 << 20);
    atomic_store(&cancel, false);
    setenv("DG_STUB_ORDER", order, 1);
    shaped = small;
    needs.opts = &so;
    opts.beside = dg_session_needs;
    opts.beside_ctx = &needs;
    if (k->streamed) {
        shaped.layers = 4;
        for (int i = 2; i < 4; i++)
            shaped.layer[i] = shaped.layer[i - 2];
        opts.gpu_memory = on_device ? all - (size_t)small.experts * (size_t)small.hidden * (size_t)small.moe * 3 * sizeof(uint16_t) : 0;
    }
    enum dg_status st = dg_cuda_choose_kernels(on_device ? "auto" : "branch", &opts, &err);
    if (st == DG_OK)
        st = dg_cuda_create_random(&be, &shape, &opts, &err);
    if (st == DG_OK)
        dg_cuda_replay_passes(be, !k->op_by_op);
    if (st == DG_OK)
        st = dg_session_create(&s, be, &so, &err);
    if (st == DG_OK && !on_device)
        all = dg_cuda_memory(be, NULL);
    if (st == DG_OK)
        dg_cuda_streamed(be, &streamed);
    if (st == DG_OK && (streamed >= 3) != (k->streamed && on_device))
        dg_buf_fmt(&t->text, "%d layers are streamed\n", streamed);
    if (st == DG_OK)
        st = dg_session_extend(s, prompt, 9, NULL, NULL, &err);
    if (st == DG_OK) {
        static const uint16_t bad[1] = {0x7fc0};
        void *embed = (void *)(uintptr_t)be->model->embed.dev;
        uint16_t was = 0;
        s->cancel = &cancel;
        be->ops->read(be, &was, embed, sizeof was);
        if (k->nan)
            be->ops->write(be, embed, bad, sizeof bad);
        char plan[80];
        snprintf(plan, sizeof plan, "%s%s", k->fails ? k->fails : "", on_device ? " " : ""); /* the stub counts anew for another text */
        if (k->fails)
            setenv("DG_STUB_FAIL", plan, 1);
        one_turn(s, t, 3);
        unsetenv("DG_STUB_FAIL");
        if (k->nan)
            be->ops->write(be, embed, &was, sizeof was);
        atomic_store(&cancel, false);
        const struct kind plain = {.steps_max = 3, .blocks = 1};
        t->k = &plain;
        one_turn(s, t, 4);
        t->k = k;
    }
    unsetenv("DG_STUB_ORDER");
    dg_buf_fmt(&t->text, "%s%s\n", dg_status_name(st), dg_error_text(&err));
    dg_error_clear(&err);
    dg_session_destroy(s);
    dg_backend_destroy(be);
}

/* The first line of two texts that differs, for people. */
static void first_difference(const char *a, const char *b, char *why, size_t n) {
    while (*a && strcspn(a, "\n") == strcspn(b, "\n") && strncmp(a, b, strcspn(a, "\n") + 1) == 0) {
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
    }
    snprintf(why, n, "\"%.*s\" on the device, \"%.*s\" on the host", (int)strcspn(b, "\n"), b, (int)strcspn(a, "\n"), a);
}

static void same_turns(const struct kind *k) {
    static const struct {
        const char *order, *name;
    } how[] = {{"late", "late"}, {"", "as it comes"}};
    struct told host, device;
    run(k, false, "", &host);
    for (size_t i = 0; i < (k == kinds ? 2 : 1); i++) { /* late: what was launched ahead is not there when events are told */
        char name[120], why[900];
        run(k, true, how[i].order, &device);
        snprintf(name, sizeof name, "the sampler on the device, %s, work done %s", k->name, how[i].name);
        first_difference(dg_buf_cstr(&host.text), dg_buf_cstr(&device.text), why, sizeof why);
        ok(strcmp(dg_buf_cstr(&host.text), dg_buf_cstr(&device.text)) == 0 && host.text.status == DG_OK && host.steps >= 3, name, why);
        if (i == 0 && k->no_early_stop && !k->fails && !k->cancel_at) {
            snprintf(why, sizeof why, "%d of %d", device.quiet, device.steps);
            ok(device.quiet >= device.steps / 3, "steps for which the host launches a recording alone", why);
        }
        dg_buf_deinit(&device.text);
    }
    dg_buf_deinit(&host.text);
}

int main(int argc, char **argv) {
    struct dg_error err = {0};
    struct dg_model *mini;
    int32_t full = 0;
    if (argc != 2 || dg_model_open(&mini, argv[1], &err) != DG_OK) {
        printf("not ok - model: %s\n", argc == 2 ? dg_error_text(&err) : "usage: turns MODEL");
        return 1;
    }
    find_stubs();
    setvbuf(stdout, NULL, _IOLBF, 0);
    small = mini->cfg;
    while (!small.layer[full].full)
        full++;
    small.layer[1] = small.layer[full];
    small.layers = 2;
    for (int i = 0; i < 2; i++) {
        small.layer[i].hd = 32;
        small.layer[i].kv_heads = 1;
    }
    small.heads = 2;
    small.vocab = 257;
    small.hidden = small.inter = 32;
    small.moe = 32;
    small.experts = 4;
    small.topk = 2;
    small.canvas = 8;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        same_turns(&kinds[i]);
    char why[80];
    snprintf(why, sizeof why, "%d open, %d faults", stub_open(), stub_faults());
    ok(stub_open() == 0 && stub_faults() == 0, "turns: nothing left open, no misuse of the driver", why);
    dg_model_close(mini);
    return failed != 0;
}
