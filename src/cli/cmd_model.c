/* summary and config: what a model is. */
#include "cli/cli.h"

#include "model/kv.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static enum dg_status open_model(struct dg_runtime *r, const struct dg_model_args *a, struct dg_error *err) {
    DG_TRY(dg_runtime_flags(r, err));
    DG_TRY(dg_runtime_find(r, a, err));
    return dg_runtime_model(r, err);
}

struct tally {
    int64_t params, bytes;
    uint64_t formats; /* bit per format */
};

static void add_mat(struct tally *t, const struct dg_mat *m) {
    if (!m->data)
        return;
    t->params += (int64_t)m->n * m->k;
    t->bytes += dg_format_mat_bytes(m->fmt, m->n, m->k);
    t->formats |= 1u << m->fmt;
}

static void add_stack(struct tally *t, const struct dg_stack *s) {
    t->params += (int64_t)s->e * s->n * s->k;
    t->bytes += s->e * dg_format_mat_bytes(s->fmt, s->n, s->k);
    t->formats |= 1u << s->fmt;
}

static void line(const char *what, const struct tally *t) {
    printf("  %-20s %14lld parameters %12.1f MiB ", what, (long long)t->params, (double)t->bytes / (1 << 20));
    for (int f = 0; f < DG_FMT_COUNT; f++)
        if (t->formats >> f & 1)
            printf(" %s", dg_format_traits((enum dg_format)f)->name);
    putchar('\n');
}

/* What a session without options takes. */
static enum dg_status print_cache(const struct dg_config *c, int64_t ring, struct dg_error *err) {
    struct dg_session_opts o = {.ring = ring, .kv = DG_F16};
    DG_TRY(dg_session_opts_resolve(c, NULL, &o, err));
    int32_t rows = o.chunk > c->canvas ? o.chunk : c->canvas;
    printf("  KV cache at context %lld: %.1f MiB in f16\n", (long long)o.ctx, (double)dg_kv_bytes(c, o.ctx, o.ring, rows, o.kv) / (1 << 20));
    return DG_OK;
}

static enum dg_status print_summary(const struct dg_model *m, int64_t ring, struct dg_error *err) {
    const struct dg_config *c = &m->cfg;
    struct tally embed = {0}, attn = {0}, dense = {0}, experts = {0}, router = {0}, sc = {0};
    int32_t full = 0;
    add_mat(&embed, &m->embed);
    add_mat(&sc, &m->sc.gate);
    add_mat(&sc, &m->sc.up);
    add_mat(&sc, &m->sc.down);
    for (int32_t l = 0; l < c->layers; l++) {
        const struct dg_layer *y = &m->layer[l];
        full += c->layer[l].full;
        const struct dg_mat *a[] = {&y->q, &y->k, &y->v, &y->o}, *d[] = {&y->gate, &y->up, &y->down};
        for (int i = 0; i < 4; i++)
            add_mat(&attn, a[i]);
        for (int i = 0; i < 3; i++)
            add_mat(&dense, d[i]);
        add_mat(&router, &y->router);
        add_stack(&experts, &y->gate_up);
        add_stack(&experts, &y->expert_down);
    }
    int64_t params = embed.params + attn.params + dense.params + experts.params + router.params + sc.params;
    int64_t bytes = embed.bytes + attn.bytes + dense.bytes + experts.bytes + router.bytes + sc.bytes;
    int64_t active = params - experts.params + experts.params / c->experts * c->topk;
    printf("%s\n", m->dir);
    printf("  DiffusionGemma, %lld parameters, %lld active a token, %.1f MiB of weights\n", (long long)params, (long long)active,
           (double)bytes / (1 << 20));
    printf("  %d layers (%d full attention, %d sliding over %d), hidden %d, %d heads, vocabulary %d\n", c->layers, full, c->layers - full,
           c->window, c->hidden, c->heads, c->vocab);
    printf("  %d experts of %d, %d a token, dense feed-forward %d\n", c->experts, c->moe, c->topk, c->inter);
    printf("  canvas %d, context up to %d, up to %d steps a block\n", c->canvas, c->ctx_max, c->steps_max);
    line("embedding and head", &embed);
    line("attention", &attn);
    line("dense", &dense);
    line("experts", &experts);
    line("router", &router);
    line("self-conditioning", &sc);
    return print_cache(c, ring, err);
}

int dg_cmd_summary(int argc, char **argv) {
    struct dg_model_args a;
    dg_model_args_init(&a);
    const struct dg_arg args[] = {DG_MODEL_ARG(a)};
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("summary"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    enum dg_status st = open_model(&r, &a, &err);
    if (st == DG_OK)
        st = print_summary(r.model, r.flags.kv_ring, &err);
    if (st != DG_OK)
        status = dg_cli_fail("summary", &err);
    dg_runtime_close(&r);
    return status;
}

static json_t *config_json(const struct dg_config *c) {
    json_t *layers = json_array(), *stops = json_array();
    for (int32_t l = 0; l < c->layers; l++)
        json_array_append_new(layers, json_pack("{s:s, s:i, s:i}", "type", c->layer[l].full ? "full_attention" : "sliding_attention", "head_dim",
                                                c->layer[l].hd, "num_key_value_heads", c->layer[l].kv_heads));
    for (int32_t i = 0; i < c->n_stops; i++)
        json_array_append_new(stops, json_integer(c->stops[i]));
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:o, s:i, s:f, s:f, s:f, "
                     "s:i, s:f, s:o}",
                     "vocab_size", c->vocab, "hidden_size", c->hidden, "num_hidden_layers", c->layers, "num_attention_heads", c->heads,
                     "intermediate_size", c->inter, "num_experts", c->experts, "top_k_experts", c->topk, "moe_intermediate_size", c->moe,
                     "canvas_length", c->canvas, "sliding_window", c->window, "max_position_embeddings", c->ctx_max, "rms_norm_eps",
                     (double)c->eps, "final_logit_softcapping", (double)c->softcap, "rope_theta_sliding", c->theta_sliding, "rope_theta_full",
                     c->theta_full, "partial_rotary_factor_sliding", c->rotary_sliding, "partial_rotary_factor_full", c->rotary_full,
                     "pad_token_id", c->pad, "bos_token_id", c->bos, "stop_token_ids", stops, "max_denoising_steps", c->steps_max,
                     "entropy_bound", c->entropy_bound, "t_min", c->t_min, "t_max", c->t_max, "stability_threshold",
                     c->stability, "confidence_threshold", c->confidence, "layers", layers);
}

int dg_cmd_config(int argc, char **argv) {
    struct dg_model_args a;
    dg_model_args_init(&a);
    const struct dg_arg args[] = {DG_MODEL_ARG(a)};
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("config"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    static struct dg_config c;
    enum dg_status st = dg_runtime_flags(&r, &err);
    if (st == DG_OK)
        st = dg_runtime_find(&r, &a, &err);
    if (st == DG_OK)
        st = dg_config_load(&c, r.dir, &err);
    json_t *j = st == DG_OK ? config_json(&c) : NULL;
    if (st == DG_OK && !j)
        st = DG_FAIL(&err, DG_E_NOMEM, "out of memory");
    if (st == DG_OK) {
        json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
        putchar('\n');
    } else
        status = dg_cli_fail("config", &err);
    json_decref(j);
    dg_runtime_close(&r);
    return status;
}
