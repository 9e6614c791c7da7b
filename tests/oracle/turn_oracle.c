/* Replays whole turns: turn_oracle [--backend NAME] [--cpu LEVEL] [--planes f32|bf16] [--threads N] [--every N] [--exact-only] CHECKPOINT TURNS.json
 *
 * Every case (prompt ids, seed) is generated with f32 KV, dense attention, exact self-conditioning, trim and re-roll off; output ids and
 * steps of every block must be those of the file, reference-mode runs (no first-step signal, reference stops) likewise. A second pass with
 * what users get by default (top-k attention, f16 KV, sparse self-conditioning) is printed and not judged. A case whose stored trajectory
 * has a step with a top-2 margin below 0.05 is fragile: rounding alone may turn it. When one differs it is named and counted apart, as
 * skipped; all others must agree. --exact-only leaves the second pass out, --every N takes the first of every N cases, for runs that are slow.
 * The last line is "N passed, N failed", with ", N skipped" when a fragile case differs. */
#include "ops/backends.h"
#include "support/turns.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAGILE_MARGIN 0.05

/* want: array of step counts, or of blocks that hold one. */
static bool same_steps(const struct turn_run *got, const json_t *want) {
    if ((size_t)got->blocks != json_array_size(want) || got->blocks > TURN_BLOCKS_MAX)
        return false;
    for (int32_t i = 0; i < got->blocks; i++) {
        json_t *w = json_array_get(want, (size_t)i);
        if (got->steps[i] != json_integer_value(json_is_object(w) ? json_object_get(w, "steps") : w))
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

static bool well_formed(const json_t *c) {
    const json_t *prompt = json_object_get(c, "prompt_ids");
    size_t i;
    json_t *v;
    json_array_foreach(prompt, i, v) if (!json_is_integer(v)) return false;
    return json_array_size(prompt) > 0 && json_is_array(json_object_get(c, "out_ids")) && json_is_array(json_object_get(c, "blocks")) &&
           json_is_string(json_object_get(c, "family"));
}

enum outcome { PASSED, FAILED, FRAGILE };

static enum outcome one(struct turn_run *r, size_t i, const json_t *c, bool reference) {
    struct dg_error err = {0};
    const json_t *ref = json_object_get(c, "reference_mode");
    enum dg_status st = turn_generate(r, c, reference, &err);
    bool ids_ok = st == DG_OK && turn_same_ids(&r->turn.out, json_object_get(reference ? ref : c, "out_ids"));
    bool steps_ok = st == DG_OK && same_steps(r, json_object_get(reference ? ref : c, reference ? "steps" : "blocks"));
    json_t *stop = json_object_get(c, "stop_id");
    bool stop_ok = reference || !stop || r->turn.stop_id == (json_is_integer(stop) ? json_integer_value(stop) : -1);
    bool ok = ids_ok && steps_ok && stop_ok;
    printf("  %3zu %-10s seed %-4lld %-9s %zu ids, %d steps: %s", i, json_string_value(json_object_get(c, "family")),
           (long long)json_integer_value(json_object_get(c, "seed")), reference ? "reference" : "", r->turn.out.n, r->turn.steps,
           ok ? "ok" : st != DG_OK ? dg_error_text(&err) : !ids_ok ? "ids differ" : !steps_ok ? "steps differ" : "stop differs");
    double margin = smallest_margin(c);
    /* an error is never excused */
    enum outcome res = ok ? PASSED : st == DG_OK && margin < FRAGILE_MARGIN ? FRAGILE : FAILED;
    if (res == FRAGILE)
        printf(" (fragile: smallest margin %.4f)", margin);
    printf("\n");
    dg_turn_deinit(&r->turn);
    dg_error_clear(&err);
    return res;
}

struct count {
    int n[3]; /* by outcome */
};

static struct count pass(struct dg_backend *be, const json_t *cases, size_t every, bool exact, struct dg_error *err) {
    struct count n = {{0}};
    struct dg_session_opts so = {.kv = exact ? DG_F32 : DG_F16, .sc_sparse = !exact};
    if (!exact)
        so.attention = (struct dg_attention_opts){DG_TOPK_DYN, DG_TOPK_DYN, false};
    struct turn_run r = {.cfg = &be->model->cfg};
    if (dg_session_create(&r.s, be, &so, err) != DG_OK) {
        n.n[FAILED] = 1;
        return n;
    }
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        if (i % every)
            continue;
        if (!well_formed(c)) {
            printf("  %3zu: not a case: prompt_ids, out_ids or blocks are missing or of another type\n", i);
            n.n[FAILED]++;
            continue;
        }
        n.n[one(&r, i, c, false)]++;
        if (json_is_object(json_object_get(c, "reference_mode")))
            n.n[one(&r, i, c, true)]++;
    }
    dg_session_destroy(r.s);
    return n;
}

int main(int argc, char **argv) {
    struct dg_backend_opts opts = {.exact = true};
    const char *backend = "ref";
    bool exact_only = false, usage = false;
    long every = 1;
    int i = 1;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        if (!strcmp(argv[i], "--exact-only"))
            exact_only = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--backend"))
            backend = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            opts.threads = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--cpu"))
            opts.cpu[0] = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--planes"))
            opts.exact = !(opts.bf16_planes = !strcmp(argv[++i], "bf16"));
        else if (i + 1 < argc && !strcmp(argv[i], "--every"))
            every = strtol(argv[++i], NULL, 10);
        else
            usage = true;
    }
    if (usage || every < 1 || argc - i != 2) {
        fprintf(stderr, "usage: turn_oracle [--backend NAME] [--cpu LEVEL] [--planes f32|bf16] [--threads N] [--every N] [--exact-only] "
                        "CHECKPOINT TURNS.json\n");
        return 2;
    }
    struct dg_error err = {0};
    struct dg_model *model = NULL;
    struct dg_backend *be = NULL;
    json_error_t je;
    json_t *turns = json_load_file(argv[i + 1], 0, &je);
    json_t *cases = json_object_get(turns, "cases");
    struct count n = {.n[FAILED] = 1};
    if (!json_is_array(cases))
        fprintf(stderr, "%s: no cases: %s\n", argv[i + 1], je.text);
    else if (dg_model_open(&model, argv[i], &err) == DG_OK && dg_backend_open(&be, backend, model, &opts, &err) == DG_OK) {
        n = pass(be, cases, (size_t)every, true, &err);
        if (!exact_only && err.code == DG_OK) {
            printf("with the defaults of users (top-k attention, f16 KV, sparse self-conditioning), for information:\n");
            struct count u = pass(be, cases, (size_t)every, false, &err);
            printf("  same as the file: %d, different: %d\n", u.n[PASSED], u.n[FAILED] + u.n[FRAGILE]);
        }
    }
    if (err.code != DG_OK)
        fprintf(stderr, "%s\n", dg_error_text(&err));
    dg_error_clear(&err);
    dg_backend_destroy(be);
    dg_model_close(model);
    json_decref(turns);
    printf("%d passed, %d failed", n.n[PASSED], n.n[FAILED]);
    if (n.n[FRAGILE])
        printf(", %d skipped", n.n[FRAGILE]);
    printf("\n");
    return n.n[FAILED] || !n.n[PASSED] ? 1 : 0;
}
