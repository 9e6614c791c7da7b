/* Shapes of synthetic models. */
#include "convert/synth.h"

#include "core/map.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* google/diffusiongemma-26B-A4B-it (seed section 1). */
static json_t *config_26b(void) {
    json_t *types = json_array();
    for (int l = 0; l < 30; l++)
        json_array_append_new(types, json_string(l % 6 == 5 ? "full_attention" : "sliding_attention"));
    json_t *text = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:b, s:i, s:i, s:i, s:b, s:o}",
                             "model_type", "diffusion_gemma_text", "vocab_size", 262144, "hidden_size", 2816, "intermediate_size", 2112,
                             "num_hidden_layers", 30, "num_attention_heads", 16, "num_key_value_heads", 8, "head_dim", 256, "global_head_dim", 512,
                             "num_global_key_value_heads", 2, "num_experts", 128, "top_k_experts", 8, "moe_intermediate_size", 704,
                             "sliding_window", 1024, "final_logit_softcapping", 30.0, "rms_norm_eps", 1e-6, "hidden_activation",
                             "gelu_pytorch_tanh", "attention_bias", 0, "max_position_embeddings", 262144, "pad_token_id", 0, "bos_token_id", 2,
                             "tie_word_embeddings", 1, "layer_types", types);
    json_t *rope = json_pack("{s:{s:f, s:s, s:f}, s:{s:f, s:s}}", "full_attention", "rope_theta", 1e6, "rope_type", "proportional",
                             "partial_rotary_factor", 0.25, "sliding_attention", "rope_theta", 1e4, "rope_type", "default");
    if (text)
        json_object_set_new(text, "rope_parameters", rope);
    return json_pack("{s:[s], s:s, s:i, s:s, s:[i,i,i], s:n, s:o}", "architectures", "DiffusionGemmaForBlockDiffusion", "model_type",
                     "diffusion_gemma", "canvas_length", 256, "dtype", "bfloat16", "eos_token_id", 1, 106, 50, "vision_config", "text_config",
                     text);
}

static enum dg_status read_shape(const char *shape, json_t **out, struct dg_error *err) {
    if (strcmp(shape, "26b-a4b") == 0) {
        *out = config_26b();
        return *out ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    struct dg_map map;
    json_error_t je;
    enum dg_status st = dg_map_open(&map, shape, err);
    if (st != DG_OK) {
        dg_error_prefix(err, "the shape is 26b-a4b or a config.json");
        return st;
    }
    /* the engine's own reader says first whether it is a configuration of sane size */
    static struct dg_config probe;
    st = dg_config_parse(&probe, (const char *)map.data, map.size, NULL, 0, err);
    if (st != DG_OK)
        dg_error_prefix(err, "%s", shape);
    else if (!(*out = json_loadb((const char *)map.data, map.size, 0, &je)))
        st = DG_FAIL(err, DG_E_NOMEM, "%s: %s", shape, je.text);
    dg_map_close(&map);
    return st;
}

/* Keeps the first n layers and makes the last of them full. */
static enum dg_status cut_layers(json_t *top, int n, struct dg_error *err) {
    json_t *text = json_object_get(top, "text_config"), *types = json_object_get(text, "layer_types");
    json_t *each = json_object_get(text, "per_layer_config"), *full = NULL;
    int have = (int)json_integer_value(json_object_get(text, "num_hidden_layers"));
    if (n > have)
        return DG_FAIL(err, DG_E_ARG, "--layers %d: the shape has %d", n, have);
    char key[16];
    for (int l = 0; l < have && json_is_object(each); l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        snprintf(key, sizeof key, "%d", l);
        if (!full && type && strcmp(type, "full_attention") == 0)
            full = json_incref(json_object_get(each, key));
        if (l >= n)
            json_object_del(each, key);
    }
    snprintf(key, sizeof key, "%d", n - 1);
    if (full && !json_object_get(each, key))
        json_object_set(each, key, full);
    json_decref(full);
    json_object_set_new(text, "num_hidden_layers", json_integer(n));
    while (json_array_size(types) > (size_t)n)
        json_array_remove(types, json_array_size(types) - 1);
    if (json_is_array(types))
        json_array_set_new(types, (size_t)n - 1, json_string("full_attention"));
    return DG_OK;
}

enum dg_status dg_synth_config(const char *shape, int layers, struct dg_buf *text, struct dg_config *cfg, struct dg_error *err) {
    json_t *top = NULL;
    DG_TRY(read_shape(shape, &top, err));
    enum dg_status st = layers ? cut_layers(top, layers, err) : DG_OK;
    char *s = st == DG_OK ? json_dumps(top, JSON_INDENT(1)) : NULL;
    if (st == DG_OK && (!s || dg_buf_fmt(text, "%s\n", s) != DG_OK))
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
    if (st == DG_OK)
        st = dg_config_parse(cfg, text->data, text->len, NULL, 0, err);
    free(s);
    json_decref(top);
    return st;
}
