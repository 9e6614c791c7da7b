/* Replays whole turns: turn_oracle [--backend NAME] [--threads N] CHECKPOINT TURNS.json
 *
 * Every case (prompt ids, seed) is generated with f32 KV, dense attention, exact self-conditioning, trim and re-roll off; output ids and
 * steps of every block must be those of the file, reference-mode runs (no first-step signal, reference stops) likewise. A second pass with
 * what users get by default (f16 KV, sparse self-conditioning) is printed and not judged. A case whose stored trajectory has a step with a
 * top-2 margin below 0.05 is named fragile when it differs. The last line is "N passed, N failed". */
#include "ops/backends.h"
#include "session/turn.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAGILE_MARGIN 0.05

struct steps {
    int32_t n[256];
    int32_t blocks;
};

static void on_block(void *ctx, const struct dg_block_event *e) {
    struct steps *s = ctx;
    if (s->blocks < 256)
        s->n[s->blocks] = e->steps;
    s->blocks++;
}

struct run {
    struct dg_session *s;
    const struct dg_config *cfg;
    struct steps steps;
    struct dg_turn turn;
};

static int32_t *ids_of(const json_t *a, size_t *n) {
    *n = json_array_size(a);
    int32_t *v = malloc((*n + 1) * sizeof *v);
    for (size_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

/* Leaves the finished turn in r->turn. */
static enum dg_status generate(struct run *r, const json_t *c, bool reference, struct dg_error *err) {
    size_t n;
    int32_t *ids = ids_of(json_object_get(c, "prompt_ids"), &n);
    enum dg_status st = dg_session_rewind(r->s, 0, NULL, NULL, err);
    if (st == DG_OK)
        st = dg_session_extend(r->s, ids, n, NULL, NULL, err);
    free(ids);
    DG_TRY(st);
    struct dg_turn_opts o = {.seed = (uint64_t)json_integer_value(json_object_get(c, "seed")), .on_block = on_block, .ctx = &r->steps};
    dg_sampler_params_init(&o.sampler, r->cfg, NULL);
    o.sampler.reference_stops = reference;
    dg_commit_policy_init(&o.policy, r->cfg, NULL);
    o.policy.trim = o.policy.hard = 0;
    o.policy.retries = 0;
    o.policy.repeat_max = 0;
    o.first_step = reference ? DG_SC_NONE : DG_SC_SEED;
    memset(&r->steps, 0, sizeof r->steps);
    DG_TRY(dg_turn_begin(&r->turn, r->s, &o, err));
    return dg_turn_run(&r->turn, err);
}

static bool same_ids(const struct dg_ids *got, const json_t *want) {
    if (got->n != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->v[i] != json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}

/* want: array of step counts, or of blocks that hold one. */
static bool same_steps(const struct steps *got, const json_t *want) {
    if ((size_t)got->blocks != json_array_size(want) || got->blocks > 256)
        return false;
    for (int32_t i = 0; i < got->blocks; i++) {
        json_t *w = json_array_get(want, (size_t)i);
        if (got->n[i] != json_integer_value(json_is_object(w) ? json_object_get(w, "steps") : w))
            return false;
    }
    return true;
}

static double smallest_margin(const json_t *c) {
    double least = 1e30;
    size_t i, k;
    json_t *b, *s;
    json_array_foreach(json_object_get(c, "blocks"), i, b)
        json_array_foreach(json_object_get(b, "per_step_accepts_meanH_minmargin"), k, s) {
            double m = json_number_value(json_array_get(s, 2));
            least = m < least ? m : least;
        }
    return least;
}

static bool one(struct run *r, size_t i, const json_t *c, bool reference) {
    struct dg_error err = {0};
    const json_t *ref = json_object_get(c, "reference_mode");
    enum dg_status st = generate(r, c, reference, &err);
    bool ids_ok = st == DG_OK && same_ids(&r->turn.out, json_object_get(reference ? ref : c, "out_ids"));
    bool steps_ok = st == DG_OK && same_steps(&r->steps, json_object_get(reference ? ref : c, reference ? "steps" : "blocks"));
    json_t *stop = json_object_get(c, "stop_id");
    bool stop_ok = reference || (json_is_integer(stop) ? r->turn.stop_id == json_integer_value(stop) : true);
    bool ok = ids_ok && steps_ok && stop_ok;
    printf("  %3zu %-10s seed %-4lld %-9s %zu ids, %d steps: %s", i, json_string_value(json_object_get(c, "family")),
           (long long)json_integer_value(json_object_get(c, "seed")), reference ? "reference" : "", r->turn.out.n, r->turn.steps,
           ok ? "ok" : st != DG_OK ? dg_error_text(&err) : !ids_ok ? "ids differ" : !steps_ok ? "steps differ" : "stop differs");
    double margin = smallest_margin(c);
    if (!ok && margin < FRAGILE_MARGIN)
        printf(" (fragile: smallest margin %.4f)", margin);
    printf("\n");
    dg_turn_deinit(&r->turn);
    dg_error_clear(&err);
    return ok;
}

struct count {
    int passed, failed;
};

static struct count pass(struct dg_backend *be, const json_t *cases, bool exact, struct dg_error *err) {
    struct count n = {0, 0};
    struct dg_session_opts so = {.kv = exact ? DG_F32 : DG_F16, .sc_sparse = !exact};
    struct run r = {.cfg = &be->model->cfg};
    if (dg_session_create(&r.s, be, &so, err) != DG_OK) {
        n.failed = 1;
        return n;
    }
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        if (one(&r, i, c, false))
            n.passed++;
        else
            n.failed++;
        if (json_is_object(json_object_get(c, "reference_mode"))) {
            if (one(&r, i, c, true))
                n.passed++;
            else
                n.failed++;
        }
    }
    dg_session_destroy(r.s);
    return n;
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
        else
            break;
    }
    if (argc - i != 2) {
        fprintf(stderr, "usage: turn_oracle [--backend NAME] [--threads N] CHECKPOINT TURNS.json\n");
        return 2;
    }
    struct dg_error err = {0};
    struct dg_model *model = NULL;
    struct dg_backend *be = NULL;
    json_error_t je;
    json_t *turns = json_load_file(argv[i + 1], 0, &je);
    json_t *cases = json_object_get(turns, "cases");
    struct count n = {0, 1};
    if (!json_is_array(cases))
        fprintf(stderr, "%s: no cases: %s\n", argv[i + 1], je.text);
    else if (dg_model_open(&model, argv[i], &err) == DG_OK && dg_backend_open(&be, backend, model, &opts, &err) == DG_OK) {
        n = pass(be, cases, true, &err);
        printf("with the defaults of users (f16 KV, sparse self-conditioning), for information:\n");
        struct count u = err.code == DG_OK ? pass(be, cases, false, &err) : (struct count){0, 0};
        printf("  same as the file: %d, different: %d\n", u.passed, u.failed);
    }
    if (err.code != DG_OK)
        fprintf(stderr, "%s\n", dg_error_text(&err));
    dg_error_clear(&err);
    dg_backend_destroy(be);
    dg_model_close(model);
    json_decref(turns);
    printf("%d passed, %d failed\n", n.passed, n.failed);
    return n.failed || !n.passed ? 1 : 0;
}
