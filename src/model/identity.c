#include "model/model.h"

#include <xxhash.h>

static uint64_t mix(uint64_t h, const void *data, size_t n) { return XXH3_64bits_withSeed(data, n, h); }

/* The first row: enough to tell two trainings, or two formats, apart. */
static uint64_t mix_mat(uint64_t h, const struct dg_mat *m) {
    int32_t shape[3] = {(int32_t)m->fmt, m->n, m->k};
    h = mix(h, shape, sizeof shape);
    return m->data ? mix(h, dg_mat_row(m, 0), (size_t)dg_format_row_bytes(m->fmt, m->k)) : h;
}

static uint64_t mix_stack(uint64_t h, const struct dg_stack *s) {
    struct dg_mat first = dg_stack_mat(s, 0);
    return mix_mat(h, &first);
}

uint64_t dg_model_id(const struct dg_model *m) {
    const struct dg_config *c = &m->cfg;
    int32_t shape[] = {c->vocab, c->hidden, c->layers, c->heads, c->inter, c->experts, c->topk, c->moe, c->canvas, c->window};
    uint64_t h = mix(0, shape, sizeof shape);
    h = mix_mat(h, &m->embed);
    h = mix(h, m->norm.v, (size_t)m->norm.n * sizeof *m->norm.v);
    h = mix_mat(h, &m->sc.gate);
    h = mix_mat(h, &m->sc.up);
    h = mix_mat(h, &m->sc.down);
    for (int32_t l = 0; l < c->layers; l++) {
        const struct dg_layer *w = &m->layer[l];
        const struct dg_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &w->router};
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
            h = mix_mat(h, mats[i]);
        h = mix_stack(h, &w->gate_up);
        h = mix_stack(h, &w->expert_down);
    }
    return h;
}
