#include "model/config.h"

#include "core/faults.h"
#include "core/jsonr.h"
#include "core/map.h"
#include "pack/checkpoint.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ORIGINAL "diffgemma download google/diffusiongemma-26B-A4B-it"

/* A whole number of the file. */
struct int_field {
    const char *key;
    size_t at;             /* in struct dg_config */
    int32_t min, max, def; /* def < min: the file must have it */
};

/* A real number. */
struct real_field {
    const char *key;
    size_t at;
    bool single; /* an f32 field, else double */
    double min, max, def;
};

#define AT(member) offsetof(struct dg_config, member)

static const struct int_field text_ints[] = {
    {"vocab_size", AT(vocab), 4, DG_VOCAB_MAX, 0},          {"hidden_size", AT(hidden), 1, DG_WIDTH_MAX, 0},
    {"num_hidden_layers", AT(layers), 1, DG_LAYERS_MAX, 0}, {"num_attention_heads", AT(heads), 1, DG_HEADS_MAX, 0},
    {"intermediate_size", AT(inter), 1, DG_WIDTH_MAX, 0},   {"num_experts", AT(experts), 1, DG_EXPERTS_MAX, 0},
    {"top_k_experts", AT(topk), 1, DG_TOPK_MAX, 0},         {"moe_intermediate_size", AT(moe), 1, DG_WIDTH_MAX, 0},
    {"sliding_window", AT(window), 1, DG_CTX_MAX, 1024},    {"max_position_embeddings", AT(ctx_max), 1, DG_CTX_MAX, 262144},
};
static const struct int_field top_ints[] = {{"canvas_length", AT(canvas), 1, DG_CANVAS_MAX, 256}};
static const struct real_field text_reals[] = {
    {"rms_norm_eps", AT(eps), true, 1e-12, 0.1, 1e-6},
    {"final_logit_softcapping", AT(softcap), true, 1e-3, 1e6, 30.0},
};
static const struct int_field gen_ints[] = {
    {"max_denoising_steps", AT(steps_max), 1, DG_STEPS_MAX, 48},
    {"stability_threshold", AT(stability), 0, 1000, 1},
};
static const struct real_field gen_reals[] = {
    {"t_min", AT(t_min), false, 1e-6, 1000, 0.4},
    {"t_max", AT(t_max), false, 1e-6, 1000, 0.8},
    {"confidence_threshold", AT(confidence), false, 0, 1e6, 0.005},
};
static const struct real_field sampler_reals[] = {{"entropy_bound", AT(entropy_bound), false, 0, 1e6, 0.1}};
#define N_OF(table) (sizeof(table) / sizeof *(table))

/* A member's value; NULL when it is absent or null, which mean the same in these files. */
static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

/* True when v is a whole number in [min, max]; else a fault. */
static bool take_int(struct dg_faults *f, const char *key, const json_t *v, int32_t min, int32_t max, int32_t *out) {
    if (!json_is_integer(v))
        dg_faults_add(f, DG_E_FORMAT, "%s must be a whole number from %d to %d", key, min, max);
    else if (json_integer_value(v) < min || json_integer_value(v) > max)
        dg_faults_add(f, DG_E_FORMAT, "%s is %lld, must be from %d to %d", key, (long long)json_integer_value(v), min, max);
    else {
        *out = (int32_t)json_integer_value(v);
        return true;
    }
    return false;
}

static bool take_real(struct dg_faults *f, const char *key, const json_t *v, double min, double max, double *out) {
    double x = json_number_value(v);
    if (!json_is_number(v))
        dg_faults_add(f, DG_E_FORMAT, "%s must be a number from %g to %g", key, min, max);
    else if (!(x >= min && x <= max))
        dg_faults_add(f, DG_E_FORMAT, "%s is %g, must be from %g to %g", key, x, min, max);
    else {
        *out = x;
        return true;
    }
    return false;
}

static void read_ints(struct dg_faults *f, struct dg_config *c, const json_t *o, const struct int_field *t, size_t n) {
    for (; n--; t++) {
        const json_t *v = member(o, t->key);
        int32_t x = t->def >= t->min ? t->def : 0;
        if (v)
            (void)take_int(f, t->key, v, t->min, t->max, &x);
        else if (t->def < t->min)
            dg_faults_add(f, DG_E_FORMAT, "%s is missing", t->key);
        memcpy((char *)c + t->at, &x, sizeof x);
    }
}

static void read_reals(struct dg_faults *f, struct dg_config *c, const json_t *o, const struct real_field *t, size_t n) {
    for (; n--; t++) {
        const json_t *v = member(o, t->key);
        double x = t->def;
        if (v)
            (void)take_real(f, t->key, v, t->min, t->max, &x);
        float y = (float)x;
        memcpy((char *)c + t->at, t->single ? (void *)&y : (void *)&x, t->single ? sizeof y : sizeof x);
    }
}

/* Which layers are full. Absent: every sixth and the last. */
static void read_layer_types(struct dg_faults *f, struct dg_config *c, const json_t *text) {
    const json_t *types = member(text, "layer_types");
    if (!types) {
        for (int l = 0; l < c->layers; l++)
            c->layer[l].full = l % 6 == 5 || l == c->layers - 1;
        return;
    }
    if (c->layers == 0) /* already a fault */
        return;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->layers) {
        dg_faults_add(f, DG_E_FORMAT, "layer_types must be a list of num_hidden_layers (%d) names, has %zu", c->layers,
                      json_array_size(types));
        return;
    }
    for (int l = 0; l < c->layers; l++) {
        const char *s = json_string_value(json_array_get(types, (size_t)l));
        c->layer[l].full = s && strcmp(s, "full_attention") == 0;
        if (!s || (!c->layer[l].full && strcmp(s, "sliding_attention") != 0))
            dg_faults_add(f, s ? DG_E_UNSUPPORTED : DG_E_FORMAT,
                          "layer_types[%d] must be sliding_attention or full_attention, is %s", l,
                          s ? dg_clip(s, strlen(s)).s : "no text");
    }
}

/* Layer number of a per_layer_config key: plain decimal, no leading zero; -1 when it is none. */
static int layer_key(const char *key, int layers) {
    int l = 0;
    if (!*key || (*key == '0' && key[1]))
        return -1;
    for (; *key; key++) {
        if (*key < '0' || *key > '9' || l > layers)
            return -1;
        l = 10 * l + (*key - '0');
    }
    return l < layers ? l : -1;
}

static void read_layer_entry(struct dg_faults *f, struct dg_config *c, const json_t *text, const char *key, const json_t *entry) {
    int l = layer_key(key, c->layers);
    if (l < 0 || !json_is_object(entry)) {
        dg_faults_add(f, DG_E_FORMAT, "per_layer_config: \"%s\" is no layer of this model", dg_clip(key, strlen(key)).s);
        return;
    }
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)entry, name, v) {
        char what[96];
        snprintf(what, sizeof what, "per_layer_config[%d].%.40s", l, dg_clip(name, strlen(name)).s);
        if (json_is_null(v))
            continue;
        if (strcmp(name, "head_dim") == 0)
            (void)take_int(f, what, v, 2, DG_HEAD_DIM_MAX, &c->layer[l].hd);
        else if (strcmp(name, "num_key_value_heads") == 0)
            (void)take_int(f, what, v, 1, DG_HEADS_MAX, &c->layer[l].kv_heads);
        else if (!json_equal(v, json_object_get(text, name)))
            dg_faults_add(f, DG_E_UNSUPPORTED, "%s: only head_dim and num_key_value_heads may differ by layer", what);
    }
}

/* Head dimension and KV heads of each layer, in either spelling. */
static void read_heads(struct dg_faults *f, struct dg_config *c, const json_t *text) {
    int32_t hd = 0, kv = 0;
    const json_t *v = member(text, "head_dim");
    if (!v)
        dg_faults_add(f, DG_E_FORMAT, "head_dim is missing");
    else
        (void)take_int(f, "head_dim", v, 2, DG_HEAD_DIM_MAX, &hd);
    v = member(text, "num_key_value_heads");
    if (!v)
        dg_faults_add(f, DG_E_FORMAT, "num_key_value_heads is missing");
    else
        (void)take_int(f, "num_key_value_heads", v, 1, DG_HEADS_MAX, &kv);
    int32_t full_hd = hd, full_kv = kv;
    if ((v = member(text, "global_head_dim")))
        (void)take_int(f, "global_head_dim", v, 2, DG_HEAD_DIM_MAX, &full_hd);
    if ((v = member(text, "num_global_key_value_heads")))
        (void)take_int(f, "num_global_key_value_heads", v, 1, DG_HEADS_MAX, &full_kv);
    const json_t *per_layer = member(text, "per_layer_config");
    if (per_layer && !json_is_object(per_layer))
        dg_faults_add(f, DG_E_FORMAT, "per_layer_config must be an object");
    for (int l = 0; l < c->layers; l++) {
        char key[16];
        snprintf(key, sizeof key, "%d", l);
        bool own = member(per_layer, key); /* an entry's absent fields mean the base values */
        c->layer[l].hd = c->layer[l].full && !own ? full_hd : hd;
        c->layer[l].kv_heads = c->layer[l].full && !own ? full_kv : kv;
    }
    const char *key;
    json_t *entry;
    json_object_foreach ((json_t *)per_layer, key, entry)
        if (!json_is_null(entry))
            read_layer_entry(f, c, text, key, entry);

    /* one message for each pair of values, not for each layer */
    for (int l = 0; l < c->layers; l++) {
        const struct dg_layer_shape *s = &c->layer[l];
        bool said = false;
        for (int m = 0; m < l && !said; m++)
            said = c->layer[m].hd == s->hd && c->layer[m].kv_heads == s->kv_heads;
        if (said || s->hd == 0 || s->kv_heads == 0 || c->heads == 0)
            continue;
        if (s->hd % 2)
            dg_faults_add(f, DG_E_FORMAT, "layer %d: head dimension %d must be even", l, s->hd);
        if (c->heads % s->kv_heads)
            dg_faults_add(f, DG_E_FORMAT, "layer %d: %d key-value heads do not divide %d heads", l, s->kv_heads, c->heads);
    }
}

/* One entry of rope_parameters. */
static void read_rope_entry(struct dg_faults *f, const json_t *rope, const char *kind, double *theta, double *rotary) {
    const json_t *o = member(rope, kind);
    char what[80];
    if (!o)
        return;
    if (!json_is_object(o)) {
        dg_faults_add(f, DG_E_FORMAT, "rope_parameters.%s must be an object", kind);
        return;
    }
    const json_t *v = member(o, "rope_theta");
    snprintf(what, sizeof what, "rope_parameters.%s.rope_theta", kind);
    if (v)
        (void)take_real(f, what, v, 1, 1e12, theta);
    snprintf(what, sizeof what, "rope_parameters.%s.partial_rotary_factor", kind);
    *rotary = 1;
    if ((v = member(o, "partial_rotary_factor")))
        (void)take_real(f, what, v, 1e-6, 1, rotary);
    double factor = 1;
    snprintf(what, sizeof what, "rope_parameters.%s.factor", kind);
    if ((v = member(o, "factor")) && take_real(f, what, v, 1e-6, 1e6, &factor) && factor != 1)
        dg_faults_add(f, DG_E_UNSUPPORTED, "%s %g: rescaled positions are not computed by this engine", what, factor);
    const char *type = "default";
    if ((v = member(o, "rope_type")) && !(type = json_string_value(v)))
        dg_faults_add(f, DG_E_FORMAT, "rope_parameters.%s.rope_type must be text", kind);
    else if (strcmp(type, "proportional") != 0 && (strcmp(type, "default") != 0 || *rotary != 1))
        dg_faults_add(f, DG_E_UNSUPPORTED, "rope_parameters.%s: rope_type \"%s\"%s is not computed by this engine", kind,
                      dg_clip(type, strlen(type)).s, *rotary != 1 ? " with a partial_rotary_factor" : "");
}

/* Settings that would change the arithmetic: anything but the value this engine computes is refused. */
static void check_fixed(struct dg_faults *f, const json_t *top, const json_t *text) {
    static const struct {
        const char *key;
        bool value;
    } flags[] = {{"attention_bias", false},
                 {"tie_word_embeddings", true},
                 {"enable_moe_block", true},
                 {"attention_k_eq_v", true},
                 {"use_double_wide_mlp", false}};
    for (size_t i = 0; i < N_OF(flags); i++) {
        const json_t *v = member(text, flags[i].key), *w = member(top, flags[i].key);
        if ((v && json_is_true(v) != flags[i].value) || (w && json_is_true(w) != flags[i].value))
            dg_faults_add(f, DG_E_UNSUPPORTED, "%s must be %s", flags[i].key, flags[i].value ? "true" : "false");
    }
    static const char *const zero[] = {"hidden_size_per_layer_input", "num_kv_shared_layers"};
    for (size_t i = 0; i < N_OF(zero); i++) {
        const json_t *v = member(text, zero[i]);
        if (v && !(json_is_integer(v) && json_integer_value(v) == 0))
            dg_faults_add(f, DG_E_UNSUPPORTED, "%s must be 0", zero[i]);
    }
    const json_t *v = member(text, "hidden_activation");
    if (v && (!json_is_string(v) || strcmp(json_string_value(v), "gelu_pytorch_tanh") != 0))
        dg_faults_add(f, DG_E_UNSUPPORTED, "hidden_activation must be gelu_pytorch_tanh");
    v = member(text, "use_bidirectional_attention");
    if (json_is_true(v) || (json_is_string(v) && strcmp(json_string_value(v), "all") == 0))
        dg_faults_add(f, DG_E_UNSUPPORTED, "use_bidirectional_attention must not be \"all\"");
    if (json_is_null(json_object_get(text, "final_logit_softcapping")))
        dg_faults_add(f, DG_E_UNSUPPORTED, "final_logit_softcapping must not be null");
}

/* Stop ids of one file; true when the file has them. Ids beyond the vocabulary can never be produced and are dropped. */
static bool read_stops(struct dg_faults *f, struct dg_config *c, const json_t *o) {
    const json_t *v = member(o, "eos_token_id");
    if (!v)
        return false;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n == 0 || n > DG_STOPS_MAX)
        dg_faults_add(f, DG_E_FORMAT, "eos_token_id must be 1 to %d ids, has %zu", DG_STOPS_MAX, n);
    c->n_stops = 0;
    for (size_t i = 0; i < n && i < DG_STOPS_MAX; i++) {
        int32_t id;
        if (!take_int(f, "eos_token_id", json_is_array(v) ? json_array_get(v, i) : v, 0, INT32_MAX, &id) || id >= c->vocab)
            continue;
        bool twice = false;
        for (int j = 0; j < c->n_stops; j++)
            twice |= c->stops[j] == id;
        if (!twice)
            c->stops[c->n_stops++] = id;
    }
    return true;
}

static void read_special(struct dg_faults *f, const struct dg_config *c, const char *key, const json_t *text, const json_t *top,
                         const json_t *gen, int32_t def, int32_t *out) {
    const json_t *v = member(text, key);
    if (!v)
        v = member(top, key);
    if (!v)
        v = member(gen, key);
    *out = def;
    if (v)
        (void)take_int(f, key, v, 0, c->vocab > 0 ? c->vocab - 1 : DG_VOCAB_MAX, out);
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(member(o, key));
    return s ? s : "";
}

/* Says what a folder holds that is no DiffusionGemma in plain weights. */
static enum dg_status check_architecture(const json_t *top, struct dg_error *err) {
    const char *type = text_of(top, "model_type"), *arch = "";
    const json_t *list = member(top, "architectures");
    if (json_is_array(list) && json_is_string(json_array_get(list, 0)))
        arch = json_string_value(json_array_get(list, 0));
    const char *name = *arch ? arch : type;
    struct dg_clip c = dg_clip(name, strlen(name));
    if (strcmp(type, "diffusion_gemma") != 0 && strcmp(arch, "DiffusionGemmaForBlockDiffusion") != 0) {
        if (strncmp(type, "gemma4", 6) == 0 || strncmp(arch, "Gemma4", 6) == 0)
            return DG_FAIL(
                err, DG_E_UNSUPPORTED,
                "this is a plain Gemma 4 model (%s), which writes one token at a time; this engine runs DiffusionGemma: %s", c.s,
                ORIGINAL);
        if (!*name)
            return DG_FAIL(err, DG_E_UNSUPPORTED, "names no model_type and no architecture; this engine runs DiffusionGemma: %s",
                           ORIGINAL);
        return DG_FAIL(err, DG_E_UNSUPPORTED, "this is a model of another kind (%s); this engine runs DiffusionGemma: %s", c.s,
                       ORIGINAL);
    }
    const json_t *q = member(top, "quantization");
    if (q)
        return DG_FAIL(err, DG_E_UNSUPPORTED,
                       "this is an MLX quantised model (%lld bits), which this engine does not read; use the original: %s",
                       (long long)json_integer_value(json_object_get(q, "bits")), ORIGINAL);
    q = member(top, "quantization_config");
    if (!q)
        q = member(member(top, "text_config"), "quantization_config");
    if (q) {
        const char *method = text_of(q, "quant_method"), *algo = text_of(q, "quant_algo");
        const char *how = *algo ? algo : *method ? method : text_of(q, "format");
        return DG_FAIL(err, DG_E_UNSUPPORTED,
                       "this is a quantised model (%s), which this engine does not read; use the original: %s",
                       *how ? dg_clip(how, strlen(how)).s : "quantization_config", ORIGINAL);
    }
    return DG_OK;
}

/* jansson builds a tree of some 250 bytes a container, so a small hostile file could cost much memory: the pull reader, which
 * costs none, counts first. */
static enum dg_status parse(json_t **out, const char *text, size_t n, struct dg_error *err) {
    *out = NULL;
    if (n > DG_CONFIG_FILE_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "has %zu bytes, at most %zu are read", n, DG_CONFIG_FILE_MAX);
    struct dg_jsonr r;
    enum dg_json_token t;
    int containers = 0;
    dg_jsonr_init(&r, text, n);
    while ((t = dg_jsonr_next(&r)) != DG_JSON_END) {
        containers += t == DG_JSON_OBJECT || t == DG_JSON_ARRAY;
        if (t == DG_JSON_ERROR)
            return DG_FAIL(err, DG_E_FORMAT, "damaged JSON at byte %zu: %s", r.at, r.what);
        if (containers > 16384)
            return DG_FAIL(err, DG_E_LIMIT, "has more than 16384 objects and lists");
    }
    json_error_t je;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!*out)
        return DG_FAIL(err, DG_E_FORMAT, "damaged JSON at line %d: %s", je.line, dg_clip(je.text, strlen(je.text)).s);
    return json_is_object(*out) ? DG_OK : DG_FAIL(err, DG_E_FORMAT, "must be a JSON object");
}

static enum dg_status parse_named(json_t **out, const char *name, const char *text, size_t n, struct dg_error *err) {
    enum dg_status st = parse(out, text, n, err);
    if (st != DG_OK) {
        json_decref(*out);
        *out = NULL;
        dg_error_prefix(err, "%s", name);
    }
    return st;
}

static enum dg_status read_model(struct dg_config *c, const json_t *top, const json_t *gen, struct dg_error *err) {
    struct dg_faults f;
    dg_faults_init(&f);
    const json_t *text = member(top, "text_config");
    enum dg_status st = check_architecture(top, err);
    if (st != DG_OK) {
        dg_error_prefix(err, "config.json");
        goto done;
    }
    if (!json_is_object(text))
        dg_faults_add(&f, DG_E_FORMAT, "text_config is missing or no object");
    else {
        read_ints(&f, c, top, top_ints, N_OF(top_ints));
        read_ints(&f, c, text, text_ints, N_OF(text_ints));
        read_reals(&f, c, text, text_reals, N_OF(text_reals));
        if (c->topk > c->experts && c->experts > 0)
            dg_faults_add(&f, DG_E_FORMAT, "top_k_experts (%d) exceeds num_experts (%d)", c->topk, c->experts);
        if (c->canvas >= c->ctx_max && c->ctx_max > 0)
            dg_faults_add(&f, DG_E_FORMAT, "max_position_embeddings (%d) leaves no room beside a canvas of %d", c->ctx_max,
                          c->canvas);
        read_layer_types(&f, c, text);
        read_heads(&f, c, text);
        c->theta_sliding = 1e4;
        c->theta_full = 1e6;
        c->rotary_sliding = 1;
        c->rotary_full = 0.25;
        const json_t *rope = member(text, "rope_parameters");
        if (rope && !json_is_object(rope))
            dg_faults_add(&f, DG_E_FORMAT, "rope_parameters must be an object");
        read_rope_entry(&f, rope, "sliding_attention", &c->theta_sliding, &c->rotary_sliding);
        read_rope_entry(&f, rope, "full_attention", &c->theta_full, &c->rotary_full);
        check_fixed(&f, top, text);
        read_special(&f, c, "pad_token_id", text, top, gen, 0, &c->pad);
        read_special(&f, c, "bos_token_id", text, top, gen, 2, &c->bos);
        static const int32_t seed_stops[] = {1, 106, 50};
        for (size_t i = 0; i < N_OF(seed_stops); i++)
            if (seed_stops[i] < c->vocab)
                c->stops[c->n_stops++] = seed_stops[i];
        /* a whole-file eos list stands above the text model's own single id */
        if (!read_stops(&f, c, top))
            (void)read_stops(&f, c, text);
    }
    st = dg_faults_result(&f, "config.json", err);
done:
    dg_faults_deinit(&f);
    return st;
}

static enum dg_status read_generation(struct dg_config *c, const json_t *gen, struct dg_error *err) {
    struct dg_faults f;
    dg_faults_init(&f);
    read_ints(&f, c, gen, gen_ints, N_OF(gen_ints));
    read_reals(&f, c, gen, gen_reals, N_OF(gen_reals));
    if (c->t_min > c->t_max)
        dg_faults_add(&f, DG_E_FORMAT, "t_min (%g) exceeds t_max (%g)", c->t_min, c->t_max);
    const json_t *sampler = member(gen, "sampler_config");
    if (sampler && !json_is_object(sampler))
        dg_faults_add(&f, DG_E_FORMAT, "sampler_config must be an object");
    const char *name = text_of(sampler, "_cls_name");
    if (*name && strcmp(name, "EntropyBoundSamplerConfig") != 0)
        dg_faults_add(&f, DG_E_UNSUPPORTED, "sampler_config is a %s; this engine has the entropy-bound sampler",
                      dg_clip(name, strlen(name)).s);
    read_reals(&f, c, sampler, sampler_reals, N_OF(sampler_reals));
    (void)read_stops(&f, c, gen);
    enum dg_status st = dg_faults_result(&f, "generation_config.json", err);
    dg_faults_deinit(&f);
    return st;
}

enum dg_status dg_config_parse(struct dg_config *c, const char *text, size_t n, const char *gen, size_t gen_n,
                               struct dg_error *err) {
    memset(c, 0, sizeof *c);
    json_t *top = NULL, *g = NULL;
    enum dg_status st;
    DG_GO(parse_named(&top, "config.json", text, n, err));
    if (gen)
        DG_GO(parse_named(&g, "generation_config.json", gen, gen_n, err));
    DG_GO(read_model(c, top, g, err));
    DG_GO(read_generation(c, g, err));
done:
    json_decref(top);
    json_decref(g);
    return st;
}

enum dg_status dg_config_load(struct dg_config *c, const char *dir, struct dg_error *err) {
    memset(c, 0, sizeof *c);
    char path[4096], gen_path[4096];
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path ||
        snprintf(gen_path, sizeof gen_path, "%s/generation_config.json", dir) >= (int)sizeof gen_path)
        return DG_FAIL(err, DG_E_LIMIT, "%s: path too long", dir);
    struct dg_map text = {0}, gen = {0};
    struct stat sb;
    enum dg_status st;
    if (stat(path, &sb) != 0)
        return dg_checkpoint_explain(dir, "config.json", err);
    DG_GO(dg_map_open(&text, path, err));
    bool has_gen = stat(gen_path, &sb) == 0;
    if (has_gen)
        DG_GO(dg_map_open(&gen, gen_path, err));
    st = dg_config_parse(c, (const char *)text.data, text.size, has_gen ? (gen.data ? (const char *)gen.data : "") : NULL,
                         gen.size, err);
    if (st != DG_OK)
        dg_error_prefix(err, "%s", dir);
done:
    dg_map_close(&text);
    dg_map_close(&gen);
    return st;
}
