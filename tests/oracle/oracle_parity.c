/* Compares the engine with an oracle folder: oracle_parity [--backend NAME] [--cpu LEVEL] [--threads N] DIR...
 *
 * A folder holds a checkpoint, oracle.json (what each key is) and oracle.safetensors (inputs and expected outputs of another
 * implementation in f32). Everything runs with f32 planes and KV, dense attention and exact self-conditioning. Limits: hidden states, layer
 * outputs and KV 5e-4, logits 1e-3, argmax equal wherever the oracle's top-2 margin exceeds 5e-3; of the teacher-forced steps one a
 * folder may miss its limit (a routing tie). A stored key that nothing looked at is a failure, but for the vision tower's, which are listed.
 * One line a key with the figure; the last line is "N passed, N failed". */
#include "core/mem.h"
#include "ops/backends.h"
#include "session/session.h"
#include "support/replay.h"
#include "support/st_read.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN_LIMIT 5e-4
#define LOGIT_LIMIT 1e-3
#define MARGIN 5e-3

static struct replay_tally tally;

struct folder {
    const char *dir;
    struct st_file *st;
    json_t *meta;
    struct dg_model *model;
    struct dg_backend *be;
    struct dg_session *s;
    float *logits;       /* [canvas][vocab] */
    bool step_exception; /* the one allowed is used up */
};

static void line(const char *key, double figure, double limit, bool ok, const char *note) {
    printf("  %-28s %-10.3g limit %-8.0e %s%s%s\n", key, figure, limit, ok ? "ok" : "FAILED", note[0] ? ": " : "", note);
    if (ok)
        tally.passed++;
    else
        tally.failed++;
}

static void broken(const char *key, const char *why) {
    printf("  %-28s FAILED: %s\n", key, why);
    tally.failed++;
}

static double max_diff(const float *a, const float *b, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst))
            worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

/* Rows whose argmax differs though the oracle's two best are further apart than the margin. */
static int argmax_faults(const float *got, const float *want, int64_t rows, int64_t vocab) {
    int faults = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *g = got + r * vocab, *w = want + r * vocab;
        int64_t bg = 0, bw = 0;
        for (int64_t v = 1; v < vocab; v++) {
            if (g[v] > g[bg])
                bg = v;
            if (w[v] > w[bw])
                bw = v;
        }
        float second = -INFINITY;
        for (int64_t v = 0; v < vocab; v++)
            if (v != bw && w[v] > second)
                second = w[v];
        faults += bg != bw && (double)w[bw] - (double)second > MARGIN;
    }
    return faults;
}

static void read_logits(struct folder *f, int32_t n) {
    f->be->ops->read(f->be, f->logits, f->s->planes->logits.data, (size_t)n * (size_t)f->model->cfg.vocab * sizeof(float));
}

static bool logits_ok(struct folder *f, const float *want, int32_t n, double *figure, int *faults) {
    int64_t vocab = f->model->cfg.vocab;
    read_logits(f, n);
    *figure = max_diff(f->logits, want, n * vocab);
    *faults = argmax_faults(f->logits, want, n, vocab);
    return *figure <= LOGIT_LIMIT && *faults == 0;
}

static void check_logits(struct folder *f, const char *key, int32_t n) {
    const float *want = st_f32(f->st, key, (int64_t)n * f->model->cfg.vocab);
    if (!want) {
        broken(key, "not in the file, or of another size");
        return;
    }
    double figure;
    int faults;
    char note[64] = "";
    bool ok = logits_ok(f, want, n, &figure, &faults);
    if (faults)
        snprintf(note, sizeof note, "argmax differs in %d rows", faults);
    line(key, figure, LOGIT_LIMIT, ok, note);
}

/* The logits a previous step would have left: the oracle's own, so that errors do not add up. */
static void set_signal(struct folder *f, const float *logits, int32_t n, float inv_t) {
    struct dg_planes *p = f->s->planes;
    struct dg_plane z = dg_plane_view(&p->logits, n, f->model->cfg.vocab);
    f->be->ops->write(f->be, z.data, logits, (size_t)n * (size_t)z.cols * sizeof(float));
    f->be->ops->row_stats(f->be, &z, inv_t, &p->stats);
    p->stats_inv_t = inv_t;
}

struct capture {
    struct folder *f;
    const char *prefix;
};

static void compare_plane(void *ctx, const char *what, int32_t layer, const struct dg_plane *plane, const struct dg_routing *routing) {
    (void)routing;
    struct capture *c = ctx;
    char key[96];
    if (!strcmp(what, "preamble"))
        snprintf(key, sizeof key, "%s.preamble_nosc", c->prefix);
    else if (!strcmp(what, "layer"))
        snprintf(key, sizeof key, "%s.layer%d_nosc", c->prefix, layer);
    else
        return;
    int64_t n = (int64_t)plane->rows * plane->cols;
    const float *want = st_f32(c->f->st, key, n);
    if (!want)
        return;
    float *got = malloc((size_t)n * sizeof *got);
    c->f->be->ops->read(c->f->be, got, plane->data, (size_t)n * sizeof *got);
    double d = max_diff(got, want, n);
    line(key, d, HIDDEN_LIMIT, d <= HIDDEN_LIMIT, "");
    free(got);
}

/* want: [kv heads][kept][hd] of the last kept positions before len. */
static void check_kv(struct folder *f, const char *prefix, int32_t layer) {
    const struct dg_kv_layer *kv = &f->s->kv.layer[layer];
    int64_t row = (int64_t)kv->kv_heads * kv->hd, len = f->s->kv.len;
    float *got = malloc((size_t)row * sizeof *got);
    for (int which = 0; which < 2; which++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%c%d", prefix, "kv"[which], layer);
        int64_t shape[4];
        int rank;
        enum st_dtype dt;
        const float *want = st_get(f->st, key, &dt, &rank, shape);
        if (!want)
            continue;
        if (rank != 3 || dt != ST_F32 || shape[0] != kv->kv_heads || shape[2] != kv->hd || shape[1] > len) {
            broken(key, "unexpected shape");
            continue;
        }
        double worst = 0;
        for (int64_t i = 0; i < shape[1]; i++) {
            int64_t slot = dg_kv_slot(kv, len - shape[1] + i);
            f->be->ops->read(f->be, got, (const float *)(which ? kv->v : kv->k) + slot * row, (size_t)row * sizeof *got);
            for (int32_t h = 0; h < kv->kv_heads; h++) {
                double d = max_diff(got + (int64_t)h * kv->hd, want + ((int64_t)h * shape[1] + i) * kv->hd, kv->hd);
                worst = d > worst ? d : worst;
            }
        }
        line(key, worst, HIDDEN_LIMIT, worst <= HIDDEN_LIMIT, "");
    }
    free(got);
}

static bool step(struct folder *f, const int32_t *canvas, int32_t n, enum dg_sc_mode sc, const struct dg_trace *trace, const char *key) {
    struct dg_error err = {0};
    struct dg_denoise d = {canvas, n, sc, false, 1};
    if (dg_forward_denoise(f->be, f->s->planes, &f->s->kv, &d, trace, &err) == DG_OK)
        return true;
    broken(key, dg_error_text(&err));
    dg_error_clear(&err);
    return false;
}

/* Prefills the prompt; hidden (f32 [n][hidden]) may be NULL. */
static bool prompt(struct folder *f, const int32_t *ids, int32_t n, float *hidden, const char *key) {
    struct dg_error err = {0};
    enum dg_status st = dg_session_rewind(f->s, 0, NULL, NULL, &err);
    if (st == DG_OK)
        st = dg_forward_prefill(f->be, f->s->planes, &f->s->kv, ids, n, hidden, NULL, &err);
    if (st != DG_OK)
        broken(key, dg_error_text(&err));
    dg_error_clear(&err);
    return st == DG_OK;
}

static void check_prompt(struct folder *f, const char *prefix) {
    const struct dg_config *c = &f->model->cfg;
    char key[96];
    snprintf(key, sizeof key, "%s.ids", prefix);
    int32_t n = (int32_t)st_numel(f->st, key);
    const int32_t *ids = st_i32(f->st, key, n);
    snprintf(key, sizeof key, "%s.encoder_hidden", prefix);
    const float *want = st_f32(f->st, key, (int64_t)n * c->hidden);
    if (!ids || n < 1) {
        snprintf(key, sizeof key, "%s.ids", prefix);
        broken(key, "no I32 token ids");
        return;
    }
    float *hidden = malloc((size_t)n * (size_t)c->hidden * sizeof *hidden);
    if (!prompt(f, ids, n, hidden, prefix)) {
        free(hidden);
        return;
    }
    if (want) {
        double d = max_diff(hidden, want, (int64_t)n * c->hidden);
        line(key, d, HIDDEN_LIMIT, d <= HIDDEN_LIMIT, "");
    } else
        broken(key, "not in the file, or of another size");
    free(hidden);
    for (int32_t l = 0; l < c->layers; l++)
        check_kv(f, prefix, l);

    snprintf(key, sizeof key, "%s.canvas", prefix);
    int32_t cn = (int32_t)st_numel(f->st, key);
    const int32_t *canvas = st_i32(f->st, key, cn);
    if (!canvas || cn > c->canvas) {
        broken(key, "no canvas of a possible size");
        return;
    }
    struct capture cap = {f, prefix};
    struct dg_trace trace = {compare_plane, &cap};
    snprintf(key, sizeof key, "%s.logits_nosc", prefix);
    const float *nosc = st_f32(f->st, key, (int64_t)cn * c->vocab);
    if (step(f, canvas, cn, DG_SC_NONE, &trace, key))
        check_logits(f, key, cn);
    snprintf(key, sizeof key, "%s.logits_seedsc", prefix);
    if (st_has(f->st, key) && step(f, canvas, cn, DG_SC_SEED, NULL, key))
        check_logits(f, key, cn);
    snprintf(key, sizeof key, "%s.logits_sc", prefix);
    if (nosc && st_has(f->st, key)) {
        set_signal(f, nosc, cn, (float)(1.0 / (0.4 + 0.4 * (47.0 / 48.0))));
        if (step(f, canvas, cn, DG_SC_SOFT, NULL, key))
            check_logits(f, key, cn);
    }
}

static double number(const json_t *o, const char *k, double def) {
    json_t *v = json_object_get(o, k);
    return json_is_number(v) ? json_number_value(v) : def;
}

static void check_trajectory(struct folder *f, const char *label, const json_t *meta) {
    const struct dg_config *c = &f->model->cfg;
    char key[96];
    snprintf(key, sizeof key, "%s.b0.logits", label);
    int64_t shape[4];
    int rank;
    enum st_dtype dt;
    const float *logits = st_get(f->st, key, &dt, &rank, shape);
    if (!logits)
        return;
    if (dt != ST_F32 || rank != 3 || shape[2] != c->vocab || shape[0] > INT32_MAX || shape[1] > INT32_MAX) {
        broken(key, "not F32 [steps, canvas, vocab]");
        return;
    }
    int32_t steps = (int32_t)shape[0], n = (int32_t)shape[1];
    const char *prompt_key = json_string_value(json_object_get(meta, "prompt"));
    int32_t prompt_n = prompt_key ? (int32_t)st_numel(f->st, prompt_key) : 0;
    const int32_t *ids = prompt_key ? st_i32(f->st, prompt_key, prompt_n) : NULL;
    char k2[96];
    snprintf(k2, sizeof k2, "%s.b0.canvas0", label);
    const int32_t *canvas0 = st_i32(f->st, k2, n);
    snprintf(k2, sizeof k2, "%s.b0.canvas", label);
    const int32_t *canvas = st_i32(f->st, k2, (int64_t)steps * n);
    if (!ids || !canvas0 || !canvas || n > c->canvas) {
        broken(key, "its prompt or canvases are missing or of another size");
        return;
    }
    const char *first = json_string_value(json_object_get(meta, "first_step"));
    bool seed = first && strstr(first, "seed") != NULL;
    double t_min = number(meta, "t_min", 0.4), t_max = number(meta, "t_max", 0.8);
    if (!prompt(f, ids, prompt_n, NULL, key))
        return;
    for (int32_t i = 0; i < steps; i++) {
        snprintf(key, sizeof key, "%s.b0.logits[%d]", label, i);
        const float *want = logits + (int64_t)i * n * c->vocab;
        if (i > 0) {
            double t = t_min + (t_max - t_min) * (double)(steps - (i - 1)) / steps;
            set_signal(f, want - (int64_t)n * c->vocab, n, (float)(1.0 / t));
        }
        if (!step(f, i ? canvas + (int64_t)(i - 1) * n : canvas0, n, i ? DG_SC_SOFT : seed ? DG_SC_SEED : DG_SC_NONE, NULL, key))
            continue;
        double figure;
        int faults;
        bool ok = logits_ok(f, want, n, &figure, &faults);
        if (!ok && !f->step_exception) {
            f->step_exception = true;
            line(key, figure, LOGIT_LIMIT, true, "over the limit: the one step a folder may have (a routing tie)");
        } else
            line(key, figure, LOGIT_LIMIT, ok, faults ? "argmax differs" : "");
    }
}

static enum dg_status open_folder(struct folder *f, const struct dg_backend_opts *opts, const char *backend, struct dg_error *err) {
    DG_TRY(dg_model_open(&f->model, f->dir, err));
    DG_TRY(dg_backend_open(&f->be, backend, f->model, opts, err));
    int32_t longest = 1;
    for (size_t i = 0; i < st_count(f->st); i++) {
        size_t n = strlen(st_name(f->st, i));
        if (n > 4 && !strcmp(st_name(f->st, i) + n - 4, ".ids") && st_numel(f->st, st_name(f->st, i)) > longest)
            longest = (int32_t)st_numel(f->st, st_name(f->st, i));
    }
    struct dg_session_opts so = {.kv = DG_F32, .chunk = longest, .ctx = longest + 2 * (int64_t)f->model->cfg.canvas};
    if (so.ctx > f->model->cfg.ctx_max)
        so.ctx = f->model->cfg.ctx_max;
    DG_TRY(dg_session_create(&f->s, f->be, &so, err));
    f->logits = malloc((size_t)f->model->cfg.canvas * (size_t)f->model->cfg.vocab * sizeof *f->logits);
    return f->logits ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory for logits");
}

static void run_folder(const char *dir, const struct dg_backend_opts *opts, const char *backend) {
    struct folder f = {.dir = dir};
    struct dg_error err = {0};
    char path[4096];
    printf("%s\n", dir);
    snprintf(path, sizeof path, "%s/oracle.safetensors", dir);
    f.st = st_open(path);
    snprintf(path, sizeof path, "%s/oracle.json", dir);
    f.meta = json_load_file(path, 0, NULL);
    if (!f.st || !f.meta)
        broken("folder", "no readable oracle.json and oracle.safetensors");
    else if (open_folder(&f, opts, backend, &err) != DG_OK)
        broken("folder", dg_error_text(&err));
    else {
        for (size_t i = 0; i < st_count(f.st); i++) {
            char prefix[64];
            int end = 0;
            if (sscanf(st_name(f.st, i), "p%*[0-9].ids%n", &end) == 0 && end > 0 && !st_name(f.st, i)[end]) {
                snprintf(prefix, sizeof prefix, "%.*s", end - 4, st_name(f.st, i));
                check_prompt(&f, prefix);
            }
        }
        const char *label;
        json_t *meta;
        json_object_foreach(f.meta, label, meta) if (!strncmp(label, "traj", 4) && json_is_object(meta)) check_trajectory(&f, label, meta);
        replay_trajectories(f.st, f.meta, f.model->cfg.vocab, stdout, &tally);
        /* a key that is misspelt, or of a kind this program does not know, would otherwise pass in silence */
        for (size_t i = 0; i < st_count(f.st); i++)
            if (!st_was_read(f.st, i) && !strncmp(st_name(f.st, i), "vision.", 7))
                printf("  %-28s not judged: the engine has no vision tower\n", st_name(f.st, i));
            else if (!st_was_read(f.st, i))
                broken(st_name(f.st, i), "stored, but nothing judges it");
    }
    dg_error_clear(&err);
    free(f.logits);
    dg_session_destroy(f.s);
    dg_backend_destroy(f.be);
    dg_model_close(f.model);
    json_decref(f.meta);
    st_close(f.st);
}

int main(int argc, char **argv) {
    struct dg_backend_opts opts = {.exact = true};
    const char *backend = "ref";
    int i = 1;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
        if (!strcmp(argv[i], "--backend"))
            backend = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            opts.threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--cpu"))
            opts.cpu[0] = argv[i + 1];
        else
            break;
    }
    if (i >= argc || argv[i][0] == '-') {
        fprintf(stderr, "usage: oracle_parity [--backend NAME] [--cpu LEVEL] [--threads N] DIR...\n");
        return 2;
    }
    for (; i < argc; i++)
        run_folder(argv[i], &opts, backend);
    printf("%d passed, %d failed\n", tally.passed, tally.failed);
    return tally.failed || !tally.passed ? 1 : 0;
}
