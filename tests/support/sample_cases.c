#include "support/sample_cases.h"

#include "session/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CAP 1024

struct device {
    struct dg_backend *be;
    struct dg_row_stats stats;
    void *mem, *host_mem, *before;
    struct dg_sample there, host;
};

struct block {
    struct device *d;
    uint64_t rng;
    struct dg_sampler_params p;
    int32_t n;
    bool unchecked;
    int kind;      /* of entropies */
    int settles;   /* step from which the argmaxes stay */
    int breaks_at; /* step with rows that are no numbers or ids, -1 = none */
    float h[CAP], p_max[CAP];
    int32_t id[CAP];
    char why[200];
};

static uint32_t dice(struct block *b, uint32_t n) {
    b->rng = b->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((b->rng >> 32) * n >> 32);
}

#define PICK(b, ...) ((const double[]){__VA_ARGS__})[dice(b, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))]

static void draw_rules(struct block *b, bool emulated) {
    static const int32_t vocabs[] = {1, 2, 3, 160, 4099, 262144, 262143, 2097152};
    int32_t vocab = vocabs[dice(b, 8)], most = emulated && dice(b, 8) ? 64 : dice(b, 4) ? 256 : CAP;
    b->n = dice(b, 3) ? 1 + (int32_t)dice(b, (uint32_t)most) : dice(b, 2) ? most : 1;
    b->p = (struct dg_sampler_params){.vocab = vocab,
                                      .pad = (int32_t)dice(b, (uint32_t)vocab),
                                      .steps_max = (int32_t)PICK(b, 1, 2, 3, 12, 48, 100000),
                                      .t_min = PICK(b, 0.4, 0.1, 1),
                                      .t_max = PICK(b, 1, 1.3, 7.7),
                                      .entropy_bound = PICK(b, 0, 0.1, 1, 1e-40, 30, 1e6),
                                      .stability = (int32_t)PICK(b, 0, 1, 2),
                                      .confidence = PICK(b, 0, 0.005, 1, 1e9),
                                      .argmax = true,
                                      .freeze = dice(b, 4) == 0,
                                      .reference_stops = dice(b, 4) == 0,
                                      .no_early_stop = dice(b, 6) == 0,
                                      .entropy_stop = PICK(b, 0, 0.5, 1e9),
                                      .entropy_steps = (int32_t)PICK(b, 0, 2, 12),
                                      .plateau = (int32_t)PICK(b, 1, 2, 8),
                                      .plateau_entropy = PICK(b, 0, 0.05, 1e9)};
    b->kind = (int)dice(b, 8);
    b->settles = (int)dice(b, 6);
    b->unchecked = dice(b, 2);
    b->breaks_at = dice(b, 5) ? -1 : (int)dice(b, 4);
}

static float entropy(struct block *b) {
    float u = (float)dice(b, 1 << 24) * 0x1p-24f;
    switch (b->kind) {
    case 0: return 0.25f;
    case 1: return 0.125f * (float)dice(b, 4);
    case 2: return dice(b, 2) ? 0.0f : -0.0f;
    case 3: return u * 1e-39f; /* denormal */
    case 4: return (u - 0.25f) * 1e-6f; /* rounding leaves some below zero */
    case 5: return u * u * u * u * 0.1f;
    case 6: return dice(b, 8) ? 1e-4f * u : 3e38f * u;
    default: return u * 12.5f;
    }
}

static void draw_rows(struct block *b, int step) {
    bool filler = dice(b, 6) == 0;
    for (int32_t i = 0; i < b->n; i++) {
        b->h[i] = entropy(b);
        b->p_max[i] = 1 - (float)dice(b, 1000) * 1e-3f;
        if (step == 0 || step < b->settles || dice(b, 400) == 0)
            b->id[i] = filler ? (dice(b, 2) ? b->p.pad : b->p.vocab - 1) : (int32_t)dice(b, (uint32_t)b->p.vocab);
    }
    if (step != b->breaks_at)
        return;
    for (uint32_t k = 1 + dice(b, 3); k > 0; k--)
        b->h[dice(b, (uint32_t)b->n)] = (float)PICK(b, NAN, INFINITY, -INFINITY);
    for (uint32_t k = dice(b, 3); k > 0; k--)
        b->id[dice(b, (uint32_t)b->n)] = (int32_t)PICK(b, -1, b->p.vocab, INT32_MIN, INT32_MAX);
}

/* The step as dg_session_step and dg_sampler_step make it. */
static enum dg_status on_host(struct block *b, struct dg_sampler *s, float *p_max, struct dg_step_result *out, struct dg_error *err) {
    static float h[CAP];
    static int32_t id[CAP];
    int bad = 0, first = 0;
    for (int32_t i = 0; i < b->n; i++) {
        h[i] = b->h[i];
        id[i] = b->id[i];
        p_max[i] = b->p_max[i];
        if (isfinite(h[i]))
            continue;
        first = bad++ ? first : i;
        h[i] = logf((float)b->p.vocab);
        p_max[i] = 0;
        if (id[i] < 0 || id[i] >= b->p.vocab)
            id[i] = 0;
    }
    return bad && !b->unchecked ? dg_session_bad_rows(bad, b->n, first, err) : dg_sampler_step(s, h, id, NULL, NULL, out, err);
}

static enum dg_status on_device(struct block *b, struct dg_sampler *s, struct dg_step_result *out, struct dg_error *err) {
    struct device *d = b->d;
    const struct dg_ops *op = d->be->ops;
    size_t n = (size_t)b->n;
    op->write(d->be, d->stats.entropy, b->h, n * sizeof *b->h);
    op->write(d->be, d->stats.p_max, b->p_max, n * sizeof *b->p_max);
    op->write(d->be, d->stats.argmax, b->id, n * sizeof *b->id);
    op->sample(d->be, &d->stats, &d->there, 1.0f / dg_sampler_next_temperature(s));
    op->read(d->be, d->host.state, d->there.state, dg_sample_read_bytes(CAP));
    DG_TRY(dg_backend_status(d->be, err));
    return dg_steps_adopt(s, &d->host, out, err);
}

#define DIFFERS(b, ...) (snprintf((b)->why, sizeof (b)->why, __VA_ARGS__), false)

static bool same_step(struct block *b, const struct dg_step_result *want, const struct dg_step_result *got, const float *p_max) {
    size_t n = (size_t)b->n;
    if (want->step != got->step || want->n_accepted != got->n_accepted || want->stop != got->stop || want->converged != got->converged)
        return DIFFERS(b, "step %d, %d accepted, stop %s, converged %d; should be %d, %d, %s, %d", got->step, got->n_accepted,
                       dg_stop_name(got->stop), got->converged, want->step, want->n_accepted, dg_stop_name(want->stop), want->converged);
    if (memcmp(&want->mean_entropy, &got->mean_entropy, sizeof(double)) != 0)
        return DIFFERS(b, "mean entropy %.17g, should be %.17g", got->mean_entropy, want->mean_entropy);
    if (memcmp(want->accept, got->accept, n) != 0)
        return DIFFERS(b, "other positions are accepted");
    if (memcmp(want->canvas, got->canvas, n * sizeof(int32_t)) != 0)
        return DIFFERS(b, "another canvas");
    if (memcmp(want->result, got->result, n * sizeof(int32_t)) != 0)
        return DIFFERS(b, "another result");
    if (memcmp(p_max, b->d->host.p_max, n * sizeof *p_max) != 0)
        return DIFFERS(b, "another p_max");
    return true;
}

/* A block that has ended stays as it is, whatever is launched. */
static bool stays(struct block *b, const struct dg_sampler *device, const char *(*look)(struct dg_backend *be)) {
    struct device *d = b->d;
    size_t bytes = dg_sample_bytes(CAP);
    d->be->ops->read(d->be, d->before, d->there.state, bytes);
    d->be->ops->sample(d->be, &d->stats, &d->there, 1.0f / dg_sampler_next_temperature(device));
    d->be->ops->read(d->be, d->host.state, d->there.state, bytes);
    if (look && look(d->be))
        return DIFFERS(b, "%s", look(d->be));
    return memcmp(d->before, d->host.state, bytes) == 0 || DIFFERS(b, "a block that had ended was stepped");
}

/* One block on two samplers. */
static bool run_block(struct block *b, struct dg_sampler *host, struct dg_sampler *device, const char *(*look)(struct dg_backend *be)) {
    struct device *d = b->d;
    struct dg_rng host_rng, device_rng;
    struct dg_step_result want = {0}, got = {0};
    static float p_max[CAP];
    uint64_t seed = b->rng;
    dg_rng_init(&host_rng, seed);
    dg_rng_init(&device_rng, seed);
    if (dg_sampler_configure(host, &b->p, NULL) != DG_OK || dg_sampler_configure(device, &b->p, NULL) != DG_OK ||
        dg_sampler_begin(host, b->n, &host_rng, NULL) != DG_OK || dg_sampler_begin(device, b->n, &device_rng, NULL) != DG_OK)
        return DIFFERS(b, "the block cannot be begun");
    dg_steps_write_block(d->be, &d->there, &d->host, device, b->unchecked);
    for (int step = 0; step < 14 && want.stop == DG_STOP_NONE; step++) {
        draw_rows(b, step);
        struct dg_error host_err = {0}, device_err = {0};
        enum dg_status wanted = on_host(b, host, p_max, &want, &host_err), st = on_device(b, device, &got, &device_err);
        const char *missed = look ? look(d->be) : NULL;
        if (missed)
            return DIFFERS(b, "%s", missed);
        if (st != wanted || strcmp(dg_error_text(&host_err), dg_error_text(&device_err)) != 0) /* short texts: the records own nothing */
            return DIFFERS(b, "\"%s\", should be \"%s\"", dg_error_text(&device_err), dg_error_text(&host_err));
        if (d->host.state->rng != host_rng.state || device_rng.state != host_rng.state)
            return DIFFERS(b, "the stream stands elsewhere");
        if (wanted != DG_OK)
            return true;
        if (!same_step(b, &want, &got, p_max))
            return false;
    }
    return want.stop == DG_STOP_NONE || stays(b, device, look);
}

static void run_all(struct op_cases *c, struct device *d, const char *(*look)(struct dg_backend *be)) {
    struct dg_sampler_params any = {.vocab = 2, .steps_max = 1, .t_min = 1, .t_max = 1, .plateau = 1, .argmax = true};
    struct dg_sampler *host = NULL, *device = NULL;
    static struct block b;
    int blocks = c->small ? 2000 : 8000, failed = 0;
    if (dg_sampler_create(&host, &any, CAP, NULL) != DG_OK || dg_sampler_create(&device, &any, CAP, NULL) != DG_OK)
        abort();
    for (int i = 0; i < blocks; i++) {
        memset(&b, 0, sizeof b);
        b.d = d;
        b.rng = c->seed * 0x9e3779b97f4a7c15ull + (uint64_t)i;
        dice(&b, 2);
        draw_rules(&b, c->small);
        if (run_block(&b, host, device, look))
            continue;
        if (failed++ < 5)
            printf("sample: FAILED block %d (n=%d vocab=%d steps_max=%d kind %d): %s\n", i, b.n, b.p.vocab, b.p.steps_max, b.kind, b.why);
    }
    c->passed += blocks - failed;
    c->failed += failed;
    printf("%-11s %3d blocks, %d differ\n", "sample", blocks, failed);
    dg_sampler_destroy(host);
    dg_sampler_destroy(device);
}

void sample_cases_run(struct op_cases *c, const char *(*look)(struct dg_backend *be)) {
    struct dg_backend *be = c->be;
    if (!be->ops->sample || (c->filter && !strstr("sample", c->filter)))
        return;
    struct device d = {.be = be, .host_mem = malloc(dg_sample_bytes(CAP)), .before = malloc(dg_sample_bytes(CAP))};
    d.stats.entropy = be->ops->alloc(be, CAP * sizeof(float));
    d.stats.p_max = be->ops->alloc(be, CAP * sizeof(float));
    d.stats.argmax = be->ops->alloc(be, CAP * sizeof(int32_t));
    d.mem = be->ops->alloc(be, dg_sample_bytes(CAP));
    if (d.host_mem && d.before && d.mem && be->ops->sample_max == CAP && dg_backend_status(be, NULL) == DG_OK) {
        d.there = dg_sample_in(d.mem, CAP);
        d.host = dg_sample_in(d.host_mem, CAP);
        run_all(c, &d, look);
    } else {
        puts("sample: FAILED no memory, or other sizes than the test's");
        c->failed++;
    }
    void *there[] = {d.stats.entropy, d.stats.p_max, d.stats.argmax, d.mem};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        be->ops->free(be, there[i]);
    free(d.host_mem);
    free(d.before);
    fflush(stdout);
}
