/* What a pack loses against its checkpoint: pack_kl [--cases N] [--turns N] [--backend NAME] [--cpu LEVEL] [--planes bf16] [--threads N]
 * CHECKPOINT TURNS.json PACK... With --planes bf16 the packs run on bf16 planes; the checkpoint itself in a pack's place then shows what these
 * cost.
 *
 * KL: mean over rows, in nats, of KL(p of the checkpoint || p of the pack) at T = 1, for the first N cases (20) of the file: a first step on
 * the case's random canvas, and one on the block's final text with every second token random again. Turns: the first N cases (all) run
 * whole; how many give the checkpoint's tokens, and how many steps more. One line a pack; nothing is judged but that it ran. */
#include "ops/backends.h"
#include "sampler/rng.h"
#include "support/turns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANVASES = 2 };

struct options {
    const char *backend;
    struct dg_backend_opts be;
    bool bf16_planes; /* of the packs */
    size_t cases, turns;
};

struct engine {
    struct dg_model *model;
    struct dg_backend *be;
    struct dg_session *s;
};

static enum dg_status engine_open(struct engine *e, const char *dir, const struct options *o, struct dg_error *err) {
    struct dg_session_opts so = {.kv = DG_F32};
    *e = (struct engine){0};
    DG_TRY(dg_model_open(&e->model, dir, err));
    DG_TRY(dg_backend_open(&e->be, o->backend, e->model, &o->be, err));
    return dg_session_create(&e->s, e->be, &so, err);
}

static void engine_close(struct engine *e) {
    dg_session_destroy(e->s);
    dg_backend_destroy(e->be);
    dg_model_close(e->model);
}

/* The two canvases of a case. */
static void make_canvas(const json_t *c, const struct dg_config *cfg, int which, int32_t *canvas) {
    struct dg_rng rng;
    const json_t *text = json_object_get(json_array_get(json_object_get(c, "blocks"), 0), "argmax");
    dg_rng_init(&rng, (uint64_t)json_integer_value(json_object_get(c, "seed")));
    for (int32_t i = 0; i < cfg->canvas; i++) {
        canvas[i] = dg_rng_id(&rng, cfg->vocab);
        if (which && i % 2 == 0)
            canvas[i] = (int32_t)json_integer_value(json_array_get(text, (size_t)i));
    }
}

/* Logits of one case and canvas: [canvas][vocab]. */
static enum dg_status logits_of(struct engine *e, const json_t *c, int which, float *out, struct dg_error *err) {
    const struct dg_config *cfg = &e->model->cfg;
    int32_t canvas[DG_CANVAS_MAX];
    size_t n;
    int32_t *ids = turn_ids(json_object_get(c, "prompt_ids"), &n);
    enum dg_status st = dg_session_rewind(e->s, 0, NULL, NULL, err);
    if (st == DG_OK)
        st = dg_session_extend(e->s, ids, n, NULL, NULL, err);
    free(ids);
    DG_TRY(st);
    make_canvas(c, cfg, which, canvas);
    DG_TRY(dg_session_step(e->s, canvas, cfg->canvas, DG_SC_SEED, 1.0f, err));
    e->be->ops->read(e->be, out, e->s->planes->logits.data, (size_t)cfg->canvas * (size_t)cfg->vocab * sizeof *out);
    return dg_backend_status(e->be, err);
}

static double log_sum(const float *z, int32_t n) {
    double most = (double)z[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        most = (double)z[i] > most ? (double)z[i] : most;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)z[i] - most);
    return most + log(sum);
}

static double kl(const float *p, const float *q, int32_t rows, int32_t n) {
    double all = 0;
    for (int32_t r = 0; r < rows; r++, p += n, q += n) {
        double lp = log_sum(p, n), lq = log_sum(q, n);
        for (int32_t i = 0; i < n; i++)
            all += exp((double)p[i] - lp) * (((double)p[i] - lp) - ((double)q[i] - lq));
    }
    return all / rows;
}

static enum dg_status mean_kl(struct engine *e, const json_t *cases, size_t n, const float *want, float *got, double out[CANVASES],
                              struct dg_error *err) {
    const struct dg_config *cfg = &e->model->cfg;
    size_t size = (size_t)cfg->canvas * (size_t)cfg->vocab;
    for (int w = 0; w < CANVASES; w++) {
        out[w] = 0;
        for (size_t i = 0; i < n; i++) {
            DG_TRY(logits_of(e, json_array_get(cases, i), w, got, err));
            out[w] += kl(want + ((size_t)w * n + i) * size, got, cfg->canvas, cfg->vocab) / (double)n;
        }
    }
    return DG_OK;
}

struct turns {
    int same, ran;
    int64_t steps, steps_before;
};

static enum dg_status run_turns(struct engine *e, const json_t *cases, size_t n, struct turns *t, struct dg_error *err) {
    struct turn_run r = {.s = e->s, .cfg = &e->model->cfg};
    for (size_t i = 0; i < n && i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        DG_TRY(turn_generate(&r, c, false, err));
        bool same = turn_same_ids(&r.turn.out, json_object_get(c, "out_ids"));
        if (!same)
            printf("# case %zu (%s) differs\n", i, json_string_value(json_object_get(c, "family")));
        t->same += same;
        t->ran++;
        t->steps += r.turn.steps;
        size_t k;
        json_t *b;
        json_array_foreach(json_object_get(c, "blocks"), k, b)
            t->steps_before += json_integer_value(json_object_get(b, "steps"));
        dg_turn_deinit(&r.turn);
    }
    return DG_OK;
}

static enum dg_status one_pack(const char *dir, const struct options *o, const json_t *cases, const float *want, float *got, struct dg_error *err) {
    struct engine e;
    struct turns t = {0};
    double k[CANVASES] = {0};
    enum dg_status st;
    DG_GO(engine_open(&e, dir, o, err));
    DG_GO(mean_kl(&e, cases, o->cases, want, got, k, err));
    DG_GO(run_turns(&e, cases, o->turns, &t, err));
    printf("%s kl %.3e %.3e mean %.4e", dir, k[0], k[1], (k[0] + k[1]) / 2);
    if (t.ran)
        printf(" turns %d of %d, steps %lld for %lld (%+.1f %%)", t.same, t.ran, (long long)t.steps, (long long)t.steps_before,
               100.0 * ((double)t.steps / (double)t.steps_before - 1));
    printf("\n");
    fflush(stdout);
done:
    engine_close(&e);
    return st;
}

static enum dg_status run(struct options *o, const char *dir, const json_t *cases, char **packs, int n_packs, struct dg_error *err) {
    struct engine e;
    float *want = NULL, *got = NULL;
    enum dg_status st;
    o->cases = o->cases < json_array_size(cases) ? o->cases : json_array_size(cases);
    DG_GO(engine_open(&e, dir, o, err));
    size_t size = (size_t)e.model->cfg.canvas * (size_t)e.model->cfg.vocab;
    want = malloc((CANVASES * o->cases + 1) * size * sizeof *want);
    got = malloc(size * sizeof *got);
    for (int w = 0; w < CANVASES; w++)
        for (size_t i = 0; i < o->cases; i++)
            DG_GO(logits_of(&e, json_array_get(cases, i), w, want + ((size_t)w * o->cases + i) * size, err));
    if (o->bf16_planes)
        o->be.exact = !(o->be.bf16_planes = true);
    for (int i = 0; i < n_packs; i++)
        DG_GO(one_pack(packs[i], o, cases, want, got, err));
done:
    engine_close(&e);
    free(want);
    free(got);
    return st;
}

int main(int argc, char **argv) {
    struct options o = {.backend = "ref", .be.exact = true, .cases = 20, .turns = SIZE_MAX};
    int i = 1;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
        if (!strcmp(argv[i], "--backend"))
            o.backend = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            o.be.threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--cpu"))
            o.be.cpu[0] = argv[i + 1];
        else if (!strcmp(argv[i], "--planes"))
            o.bf16_planes = !strcmp(argv[i + 1], "bf16");
        else if (!strcmp(argv[i], "--cases"))
            o.cases = (size_t)atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--turns"))
            o.turns = (size_t)atoi(argv[i + 1]);
        else
            break;
    }
    if (argc - i < 3) {
        fprintf(stderr, "usage: pack_kl [--cases N] [--turns N] [--backend NAME] [--cpu LEVEL] [--planes bf16] [--threads N] CHECKPOINT "
                        "TURNS.json PACK...\n");
        return 2;
    }
    struct dg_error err = {0};
    json_error_t je;
    json_t *turns = json_load_file(argv[i + 1], 0, &je), *cases = json_object_get(turns, "cases");
    enum dg_status st = json_is_array(cases) ? run(&o, argv[i], cases, argv + i + 2, argc - i - 2, &err)
                                             : DG_FAIL(&err, DG_E_FORMAT, "%s: no cases", argv[i + 1]);
    if (st != DG_OK)
        fprintf(stderr, "pack_kl: %s\n", dg_error_text(&err));
    dg_error_clear(&err);
    json_decref(turns);
    return st != DG_OK;
}
