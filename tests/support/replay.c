#include "support/replay.h"

#include "sampler/sampler.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

struct traj {
    const struct st_file *f;
    const char *label;
    int block;
    int32_t vocab, steps;
    int64_t n; /* canvas */
    struct dg_sampler *s;
    struct dg_rng rng;
    FILE *out;
    struct replay_tally *t;
};

static void line(FILE *out, struct replay_tally *t, bool ok, const char *name, const char *fmt, ...) DG_PRINTF(5, 6);
static void line(FILE *out, struct replay_tally *t, bool ok, const char *name, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (ok)
        t->passed++;
    else
        t->failed++;
    fprintf(out, "%-28s %s%s\n", name, ok ? "ok, " : "FAILED: ", text);
}

static const char *key(const struct traj *r, const char *what) {
    static char text[128];
    snprintf(text, sizeof text, "%s.b%d.%s", r->label, r->block, what);
    return text;
}

/* First index where a and b differ, or n. */
static int64_t differ_i32(const int32_t *a, const int32_t *b, int64_t n) {
    int64_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static int64_t differ_u8(const uint8_t *a, const uint8_t *b, int64_t n) {
    int64_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Entropy in nats and argmax of softmax(x / temp), in double over the f32 quotients a step would see. */
static void row_stats(const float *x, int32_t vocab, float temp, double *entropy, int32_t *argmax) {
    *argmax = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (x[i] / temp > x[*argmax] / temp)
            *argmax = i;
    double top = x[*argmax] / temp, z = 0, zx = 0;
    for (int32_t i = 0; i < vocab; i++) {
        double d = (double)(x[i] / temp) - top, e = exp(d);
        z += e;
        zx += e * d;
    }
    *entropy = log(z) - zx / z;
}

/* What one block showed: worst entropy difference against the logits, and where each kind first went wrong (-1 = nowhere). */
struct findings {
    double worst;
    int32_t stats_step, accept_step, canvas_step;
    int64_t stats_at, accept_at, canvas_at;
};

static void check_stats(const struct traj *r, const float *logits, int32_t step, const float *h, const int32_t *am,
                        struct findings *w) {
    float temp = dg_sampler_temperature(r->s);
    for (int64_t i = 0; i < r->n; i++) {
        double e;
        int32_t a;
        row_stats(logits + (step * r->n + i) * r->vocab, r->vocab, temp, &e, &a);
        w->worst = fmax(w->worst, fabs(e - (double)h[i]));
        if ((!(fabs(e - (double)h[i]) <= 2e-5) || a != am[i]) && w->stats_step < 0) {
            w->stats_step = step;
            w->stats_at = i;
        }
    }
}

static bool replay_block(struct traj *r) {
    int64_t total = r->steps * r->n;
    const int32_t *canvas0 = st_i32(r->f, key(r, "canvas0"), r->n);
    const float *h = st_f32(r->f, key(r, "entropy"), total);
    const int32_t *am = st_i32(r->f, key(r, "argmax"), total), *canvas = st_i32(r->f, key(r, "canvas"), total);
    const uint8_t *acc = st_u8(r->f, key(r, "accept"), total);
    if (!canvas0 || !h || !am || !canvas || !acc) {
        line(r->out, r->t, false, key(r, "*"), "the folder lacks a tensor of this block, or one has another shape");
        return false;
    }
    const float *logits = st_has(r->f, key(r, "logits")) ? st_f32(r->f, key(r, "logits"), total * r->vocab) : NULL;
    struct dg_error err = {0};
    if (dg_sampler_begin(r->s, (int32_t)r->n, &r->rng, &err) != DG_OK)
        goto error;
    int64_t at = differ_i32(dg_sampler_canvas(r->s), canvas0, r->n);
    if (at < r->n)
        line(r->out, r->t, false, key(r, "canvas0"), "position %lld is %d instead of %d", (long long)at,
             dg_sampler_canvas(r->s)[at], canvas0[at]);
    else
        line(r->out, r->t, true, key(r, "canvas0"), "%lld positions equal", (long long)r->n);
    struct findings w = {0, -1, -1, -1, 0, 0, 0};
    for (int32_t step = 0; step < r->steps; step++) {
        struct dg_step_result res;
        int64_t o = step * r->n;
        if (logits)
            check_stats(r, logits, step, h + o, am + o, &w);
        if (dg_sampler_step(r->s, h + o, am + o, NULL, NULL, &res, &err) != DG_OK)
            goto error;
        at = differ_u8(res.accept, acc + o, r->n);
        if (at < r->n && w.accept_step < 0) {
            w.accept_step = step;
            w.accept_at = at;
        }
        at = differ_i32(res.canvas, canvas + o, r->n);
        if (at < r->n && w.canvas_step < 0) {
            w.canvas_step = step;
            w.canvas_at = at;
        }
    }
    if (logits && w.stats_step < 0)
        line(r->out, r->t, true, key(r, "logits"), "entropies at the schedule's temperatures within %.1e, argmaxes equal",
             w.worst);
    else if (logits)
        line(r->out, r->t, false, key(r, "logits"), "entropy or argmax off at step %d, position %lld (worst entropy %.1e)",
             w.stats_step + 1, (long long)w.stats_at, w.worst);
    line(r->out, r->t, w.accept_step < 0, key(r, "accept"),
         w.accept_step < 0 ? "%d masks equal" : "mask of step %d differs at position %lld",
         w.accept_step < 0 ? r->steps : w.accept_step + 1, (long long)w.accept_at);
    line(r->out, r->t, w.canvas_step < 0, key(r, "canvas"),
         w.canvas_step < 0 ? "%d canvases equal" : "canvas of step %d differs at position %lld",
         w.canvas_step < 0 ? r->steps : w.canvas_step + 1, (long long)w.canvas_at);
    return true;
error:
    line(r->out, r->t, false, key(r, "*"), "%s", dg_error_text(&err));
    dg_error_clear(&err);
    return false;
}

static void replay_one(struct traj *r, const json_t *m) {
    struct dg_sampler_params p = {
        .vocab = r->vocab,
        .steps_max = r->steps,
        .t_min = json_number_value(json_object_get(m, "t_min")),
        .t_max = json_number_value(json_object_get(m, "t_max")),
        .entropy_bound = json_number_value(json_object_get(m, "entropy_bound")),
        .argmax = true,
        .no_early_stop = true,
        .plateau = 8,
    };
    struct dg_error err = {0};
    r->n = st_numel(r->f, key(r, "canvas0"));
    if (r->n < 1 || r->n > DG_CANVAS_MAX) {
        line(r->out, r->t, false, key(r, "canvas0"), "the folder lacks this tensor");
        return;
    }
    if (dg_sampler_create(&r->s, &p, (int32_t)r->n, &err) != DG_OK) {
        line(r->out, r->t, false, r->label, "%s", dg_error_text(&err));
        dg_error_clear(&err);
        return;
    }
    dg_rng_init(&r->rng, (uint64_t)json_integer_value(json_object_get(m, "seed")));
    do {
        if (!replay_block(r))
            break;
        r->block++;
    } while (st_has(r->f, key(r, "canvas0")));
    dg_sampler_destroy(r->s);
}

void replay_trajectories(const struct st_file *f, const json_t *meta, int32_t vocab, FILE *out, struct replay_tally *t) {
    const char *label;
    json_t *m;
    int found = 0;
    json_object_foreach((json_t *)meta, label, m) {
        if (!json_is_object(m) || !json_object_get(m, "steps") || !json_object_get(m, "entropy_bound"))
            continue;
        struct traj r = {.f = f, .label = label, .vocab = vocab, .out = out, .t = t};
        r.steps = (int32_t)json_integer_value(json_object_get(m, "steps"));
        replay_one(&r, m);
        found++;
    }
    if (!found)
        line(out, t, false, "trajectories", "oracle.json describes none");
}

static json_t *load(const char *dir, const char *name) {
    char path[4096];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *v = json_load_file(path, 0, &e);
    if (!v)
        fprintf(stderr, "%s: %s\n", path, e.text);
    return v;
}

void replay_folder(const char *dir, FILE *out, struct replay_tally *t) {
    char path[4096];
    snprintf(path, sizeof path, "%s/oracle.safetensors", dir);
    json_t *config = load(dir, "config.json"), *meta = load(dir, "oracle.json");
    struct st_file *f = st_open(path);
    json_int_t vocab = json_integer_value(json_object_get(json_object_get(config, "text_config"), "vocab_size"));
    if (!meta || !f || vocab < 1 || vocab > INT32_MAX)
        line(out, t, false, dir, "config.json, oracle.json or oracle.safetensors is missing or unreadable");
    else
        replay_trajectories(f, meta, (int32_t)vocab, out, t);
    st_close(f);
    json_decref(meta);
    json_decref(config);
}
