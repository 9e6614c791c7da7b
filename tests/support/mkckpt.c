#include "support/mkckpt.h"

#include "core/half.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct mk_shape mk_tiny = {.vocab = 160,
                                 .hidden = 32,
                                 .layers = 3,
                                 .heads = 4,
                                 .kv = 2,
                                 .hd = 8,
                                 .full_kv = 1,
                                 .full_hd = 16,
                                 .inter = 48,
                                 .experts = 4,
                                 .topk = 2,
                                 .moe = 16,
                                 .canvas = 16,
                                 .window = 8,
                                 .full = 1u << 2};

static void die(const char *what) {
    fprintf(stderr, "mkckpt: %s: %s\n", what, strerror(errno));
    abort();
}

static void *must(void *p) {
    if (!p)
        die("memory");
    return p;
}

struct text {
    char *s;
    size_t n, cap;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (t->n + (size_t)n + 1 > t->cap) {
        t->cap = 2 * (t->n + (size_t)n + 1);
        t->s = must(realloc(t->s, t->cap));
    }
    va_start(ap, fmt);
    vsnprintf(t->s + t->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}

/* Uniform in [-1, 1). */
static float next(struct mk_ckpt *c) {
    c->rng = c->rng * 6364136223846793005u + 1442695040888963407u;
    return (float)(c->rng >> 40) * 0x1p-23f - 1.0f;
}

static size_t elem_size(const char *dtype) { return strcmp(dtype, "F32") == 0 ? 4 : 2; }

float mk_value(const struct mk_tensor *t, size_t i) {
    uint16_t h;
    float f;
    if (elem_size(t->dtype) == 4) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, t->data + 2 * i, 2);
    return strcmp(t->dtype, "F16") == 0 ? dg_f16_f32(h) : dg_bf16_f32(h);
}

void mk_set(struct mk_tensor *t, size_t i, float v) {
    uint16_t h = strcmp(t->dtype, "F16") == 0 ? dg_f32_f16(v) : dg_f32_bf16(v);
    if (elem_size(t->dtype) == 4)
        memcpy(t->data + 4 * i, &v, 4);
    else
        memcpy(t->data + 2 * i, &h, 2);
}

static struct mk_tensor *add(struct mk_ckpt *c, const char *name, const char *dtype, size_t size, int rank,
                             const int64_t *shape) {
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->t = must(realloc(c->t, (size_t)c->cap * sizeof *c->t));
    }
    struct mk_tensor *t = &c->t[c->n++];
    *t = (struct mk_tensor){.rank = rank, .bytes = size};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (size_t)shape[i];
    }
    t->data = must(calloc(t->bytes + 1, 1));
    return t;
}

/* Values centre + spread * uniform. */
static void fill(struct mk_ckpt *c, struct mk_tensor *t, float centre, float spread) {
    for (size_t i = 0; i < t->bytes / elem_size(t->dtype); i++)
        mk_set(t, i, centre + spread * next(c));
}

struct mk_tensor *mk_add(struct mk_ckpt *c, const char *name, const char *dtype, size_t size, int rank, const int64_t *shape) {
    struct mk_tensor *t = add(c, name, dtype, size, rank, shape);
    if (strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 || strcmp(dtype, "F32") == 0)
        fill(c, t, 0, 1);
    return t;
}

struct naming {
    struct mk_ckpt *c;
    const char *dtype, *prefix;
};

static void name_of(const struct naming *w, const char *suffix, char out[128]) { snprintf(out, 128, "%s%s", w->prefix, suffix); }

static void vec(const struct naming *w, const char *suffix, int n, float centre, float spread) {
    char name[128];
    name_of(w, suffix, name);
    fill(w->c, add(w->c, name, w->dtype, elem_size(w->dtype), 1, (int64_t[]){n}), centre, spread);
}

static void mat(const struct naming *w, const char *suffix, int e, int n, int k) {
    char name[128];
    name_of(w, suffix, name);
    int64_t shape[3] = {e, n, k};
    fill(w->c, add(w->c, name, w->dtype, elem_size(w->dtype), e ? 3 : 2, e ? shape : shape + 1), 0, 1.7f / sqrtf((float)k));
}

static void build_layer(struct mk_ckpt *c, const char *dtype, int l) {
    const struct mk_shape *s = &c->shape;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.decoder.layers.%d.", l);
    struct naming w = {c, dtype, prefix};
    bool full = s->full >> l & 1;
    int hd = full ? s->full_hd : s->hd, kv = (full ? s->full_kv : s->kv) * hd, q = s->heads * hd, h = s->hidden;
    vec(&w, "layer_scalar", 1, 0.9f, 0.05f);
    mat(&w, "self_attn.q_proj.weight", 0, q, h);
    mat(&w, "self_attn.k_proj.weight", 0, kv, h);
    if (!full)
        mat(&w, "self_attn.v_proj.weight", 0, kv, h);
    mat(&w, "self_attn.o_proj.weight", 0, h, q);
    vec(&w, "self_attn.q_norm.weight", hd, 1, 0.2f);
    vec(&w, "self_attn.k_norm.weight", hd, 1, 0.2f);
    static const char *const norms[] = {"input_layernorm",
                                        "post_attention_layernorm",
                                        "pre_feedforward_layernorm",
                                        "pre_feedforward_layernorm_2",
                                        "post_feedforward_layernorm",
                                        "post_feedforward_layernorm_1",
                                        "post_feedforward_layernorm_2"};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.weight", norms[i]);
        vec(&w, name, h, 1, 0.2f);
    }
    mat(&w, "mlp.gate_proj.weight", 0, s->inter, h);
    mat(&w, "mlp.up_proj.weight", 0, s->inter, h);
    mat(&w, "mlp.down_proj.weight", 0, h, s->inter);
    mat(&w, "router.proj.weight", 0, s->experts, h);
    vec(&w, "router.scale", h, 1, 0.2f);
    vec(&w, "router.per_expert_scale", s->experts, 1, 0.2f);
    mat(&w, "experts.gate_up_proj", s->experts, 2 * s->moe, h);
    mat(&w, "experts.down_proj", s->experts, h, s->moe);
    snprintf(prefix, sizeof prefix, "model.encoder.language_model.layers.%d.", l);
    vec(&w, "layer_scalar", 1, 0.8f, 0.05f);
}

static char *config_text(const struct mk_shape *s, bool per_layer) {
    struct text t = {0};
    put(&t,
        "{\"architectures\": [\"DiffusionGemmaForBlockDiffusion\"], \"model_type\": \"diffusion_gemma\", \"canvas_length\": "
        "%d,\n",
        s->canvas);
    put(&t, "\"eos_token_id\": [1, 106], \"tie_word_embeddings\": true, \"vision_config\": null, \"text_config\": {\n");
    put(&t, "\"model_type\": \"diffusion_gemma_text\", \"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d,\n",
        s->vocab, s->hidden, s->inter);
    put(&t, "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,\n", s->layers,
        s->heads, s->kv, s->hd);
    if (per_layer) {
        const char *sep = "";
        put(&t, "\"per_layer_config\": {");
        for (int l = 0; l < s->layers; l++)
            if (s->full >> l & 1) {
                put(&t, "%s\"%d\": {\"head_dim\": %d, \"num_key_value_heads\": %d}", sep, l, s->full_hd, s->full_kv);
                sep = ", ";
            }
        put(&t, "},\n");
    } else
        put(&t, "\"global_head_dim\": %d, \"num_global_key_value_heads\": %d,\n", s->full_hd, s->full_kv);
    put(&t, "\"num_experts\": %d, \"top_k_experts\": %d, \"moe_intermediate_size\": %d, \"sliding_window\": %d,\n", s->experts,
        s->topk, s->moe, s->window);
    put(&t, "\"final_logit_softcapping\": 30.0, \"rms_norm_eps\": 1e-06, \"hidden_activation\": \"gelu_pytorch_tanh\",\n");
    put(&t, "\"attention_bias\": false, \"max_position_embeddings\": 4096, \"pad_token_id\": 0, \"bos_token_id\": 2, "
            "\"eos_token_id\": 1,\n");
    put(&t, "\"layer_types\": [");
    for (int l = 0; l < s->layers; l++)
        put(&t, "%s\"%s_attention\"", l ? ", " : "", s->full >> l & 1 ? "full" : "sliding");
    put(&t,
        "],\n\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1000000.0, \"rope_type\": \"proportional\", "
        "\"partial_rotary_factor\": 0.25},\n\"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}}}\n");
    return t.s;
}

void mk_build(struct mk_ckpt *c, const struct mk_shape *s, const char *dtype, bool per_layer, uint64_t seed) {
    *c = (struct mk_ckpt){.shape = *s, .rng = seed};
    struct naming w = {c, dtype, "model.decoder."};
    mat(&w, "embed_tokens.weight", 0, s->vocab, s->hidden);
    vec(&w, "norm.weight", s->hidden, 1, 0.2f);
    vec(&w, "self_conditioning.pre_norm.weight", s->hidden, 1, 0.2f);
    mat(&w, "self_conditioning.gate_proj.weight", 0, s->inter, s->hidden);
    mat(&w, "self_conditioning.up_proj.weight", 0, s->inter, s->hidden);
    mat(&w, "self_conditioning.down_proj.weight", 0, s->hidden, s->inter);
    for (int l = 0; l < s->layers; l++)
        build_layer(c, dtype, l);
    c->config = config_text(s, per_layer);
    c->generation = must(
        strdup("{\"eos_token_id\": [1, 106, 50], \"bos_token_id\": 2, \"pad_token_id\": 0, \"max_denoising_steps\": 12,\n"
               "\"sampler_config\": {\"_cls_name\": \"EntropyBoundSamplerConfig\", \"entropy_bound\": 0.2}, \"t_min\": 0.3,\n"
               "\"t_max\": 0.9, \"stability_threshold\": 2, \"confidence_threshold\": 0.01}\n"));
}

void mk_free(struct mk_ckpt *c) {
    for (int i = 0; i < c->n; i++)
        free(c->t[i].data);
    free(c->t);
    free(c->config);
    free(c->generation);
    memset(c, 0, sizeof *c);
}

struct mk_tensor *mk_get(const struct mk_ckpt *c, const char *name) {
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->t[i].name, name) == 0)
            return &c->t[i];
    errno = ENOENT;
    die(name);
    return NULL;
}

void mk_drop(struct mk_ckpt *c, const char *name) {
    struct mk_tensor *t = mk_get(c, name);
    free(t->data);
    memmove(t, t + 1, (size_t)(c->t + c->n - (t + 1)) * sizeof *t);
    c->n--;
}

uint8_t *mk_file(const struct mk_ckpt *c, int shard, size_t *n) {
    struct text h = {0};
    size_t at = 0;
    put(&h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < c->n; i++) {
        const struct mk_tensor *t = &c->t[i];
        if (shard >= 0 && t->shard != shard)
            continue;
        put(&h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int d = 0; d < t->rank; d++)
            put(&h, "%s%" PRId64, d ? "," : "", t->shape[d]);
        put(&h, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
        at += t->bytes;
    }
    put(&h, "}%*s", c->pad, "");
    uint8_t *out = must(malloc(8 + h.n + at + 1)), *p = out;
    for (int i = 0; i < 8; i++)
        *p++ = (uint8_t)((uint64_t)h.n >> 8 * i);
    memcpy(p, h.s, h.n);
    p += h.n;
    for (int i = 0; i < c->n; i++)
        if (shard < 0 || c->t[i].shard == shard) {
            memcpy(p, c->t[i].data, c->t[i].bytes);
            p += c->t[i].bytes;
        }
    *n = (size_t)(p - out);
    free(h.s);
    return out;
}

void mk_write(struct mk_ckpt *c, const char *dir, int n_shards) {
    size_t n;
    mk_put(dir, "config.json", c->config, strlen(c->config));
    if (c->generation)
        mk_put(dir, "generation_config.json", c->generation, strlen(c->generation));
    if (n_shards == 0) {
        uint8_t *f = mk_file(c, -1, &n);
        mk_put(dir, "model.safetensors", f, n);
        free(f);
        return;
    }
    struct text ix = {0};
    put(&ix, "{\"metadata\": {\"total_size\": 0}, \"weight_map\": {");
    for (int i = 0; i < c->n; i++) {
        c->t[i].shard = (int)((int64_t)i * n_shards / c->n);
        put(&ix, "%s\"%s\": \"model-%05d-of-%05d.safetensors\"", i ? ", " : "", c->t[i].name, c->t[i].shard + 1, n_shards);
    }
    put(&ix, "}}");
    mk_put(dir, "model.safetensors.index.json", ix.s, ix.n);
    free(ix.s);
    for (int s = 0; s < n_shards; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, n_shards);
        uint8_t *f = mk_file(c, s, &n);
        mk_put(dir, name, f, n);
        free(f);
    }
}

char *mk_tmpdir(void) {
    const char *base = getenv("TMPDIR");
    struct text t = {0};
    put(&t, "%s/diffgemma-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(t.s))
        die(t.s);
    return t.s;
}

static int remove_one(const char *path, const struct stat *sb, int kind, struct FTW *f) {
    (void)sb, (void)kind, (void)f;
    return remove(path);
}

void mk_remove(const char *dir) {
    if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        die(dir);
}

void mk_mkdir(const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            die(path);
    }
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        die(path);
}

void mk_put(const char *dir, const char *name, const void *data, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f) != 0)
        die(path);
}

char *mk_slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    struct stat sb;
    if (!f || fstat(fileno(f), &sb) != 0)
        die(path);
    char *s = must(malloc((size_t)sb.st_size + 1));
    *n = fread(s, 1, (size_t)sb.st_size, f);
    s[*n] = 0;
    fclose(f);
    return s;
}

char *mk_edit(char *text, const char *old, const char *new) {
    char *at = strstr(text, old);
    if (!at || strstr(at + 1, old)) {
        errno = EINVAL;
        die(old);
    }
    struct text t = {0};
    put(&t, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    free(text);
    return t.s;
}
