#include "support/turns.h"

#include <stdlib.h>
#include <string.h>

static void on_block(void *ctx, const struct dg_block_event *e) {
    struct turn_run *r = ctx;
    if (r->blocks < TURN_BLOCKS_MAX)
        r->steps[r->blocks] = e->steps;
    r->blocks++;
}

int32_t *turn_ids(const json_t *a, size_t *n) {
    *n = json_array_size(a);
    int32_t *v = malloc((*n + 1) * sizeof *v);
    for (size_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

enum dg_status turn_generate(struct turn_run *r, const json_t *c, bool reference, struct dg_error *err) {
    size_t n;
    int32_t *ids = turn_ids(json_object_get(c, "prompt_ids"), &n);
    enum dg_status st = dg_session_rewind(r->s, 0, NULL, NULL, err);
    if (st == DG_OK)
        st = dg_session_extend(r->s, ids, n, NULL, NULL, err);
    free(ids);
    DG_TRY(st);
    struct dg_turn_opts o = {.seed = (uint64_t)json_integer_value(json_object_get(c, "seed")), .on_block = on_block, .ctx = r};
    dg_sampler_params_init(&o.sampler, r->cfg, NULL);
    o.sampler.reference_stops = reference;
    dg_commit_policy_init(&o.policy, r->cfg, NULL);
    o.policy.trim = o.policy.hard = 0;
    o.policy.retries = 0;
    o.policy.repeat_max = 0;
    o.first_step = reference ? DG_SC_NONE : DG_SC_SEED;
    memset(r->steps, 0, sizeof r->steps);
    r->blocks = 0;
    DG_TRY(dg_turn_begin(&r->turn, r->s, &o, err));
    return dg_turn_run(&r->turn, err);
}

bool turn_same_ids(const struct dg_ids *got, const json_t *want) {
    if (got->n != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->v[i] != json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}
