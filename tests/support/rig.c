#include "support/rig.h"

#include "ops/backends.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum dg_status st, struct dg_error *err) {
    if (st == DG_OK)
        return;
    fprintf(stderr, "rig: %s\n", dg_error_text(err));
    abort();
}

void rig_open(struct rig *r, uint64_t seed, int64_t ctx, int64_t ring) {
    struct mk_ckpt c;
    struct dg_error err = {0};
    memset(r, 0, sizeof *r);
    r->dir = mk_tmpdir();
    mk_build(&c, &mk_tiny, "BF16", true, seed);
    mk_write(&c, r->dir, 0);
    mk_free(&c);
    must(dg_model_open(&r->model, r->dir, &err), &err);
    struct dg_backend_opts bo = {.threads = 1};
    must(dg_backend_open(&r->be, "ref", r->model, &bo, &err), &err);
    r->opts.session = (struct dg_session_opts){.ctx = ctx, .kv = DG_F16, .ring = ring, .chunk = 16, .sc_sparse = true};
    dg_gen_init(&r->opts.gen, &r->model->cfg, NULL);
    r->opts.gen.sampler.steps_max = 3;
    r->opts.gen.max_tokens = 40;
}

void rig_close(struct rig *r) {
    dg_backend_destroy(r->be);
    dg_model_close(r->model);
    mk_remove(r->dir);
    free(r->dir);
}

struct dg_engine *rig_engine(struct rig *r) {
    struct dg_engine *e;
    struct dg_error err = {0};
    must(dg_engine_create(&e, r->be, &r->opts, &err), &err);
    return e;
}

uint32_t rig_random(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}
