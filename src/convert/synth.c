#include "convert/synth.h"

#include "core/mem.h"
#include "pack/pack_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARD_BYTES ((uint64_t)5000000000)
#define SHARDS_MAX 1000
#define NAME_BYTES 96
#define GENERATION                                                                                                                       \
    "{\n \"eos_token_id\": [1, 106, 50], \"bos_token_id\": 2, \"pad_token_id\": 0, \"max_denoising_steps\": 48,\n"                        \
    " \"sampler_config\": {\"_cls_name\": \"EntropyBoundSamplerConfig\", \"entropy_bound\": 0.1},\n"                                      \
    " \"t_min\": 0.4, \"t_max\": 0.8, \"stability_threshold\": 1, \"confidence_threshold\": 0.005\n}\n"

#define SHARED 0.894427f /* 0.8 of the variance is the group's */

/* How the values of a tensor are drawn. */
struct draw {
    uint64_t seed;
    float mean, sd;
    bool kin; /* rows of one group of DG_SYNTH_KIN share most of their values */
};

struct work {
    const struct dg_synth_opts *o;
    struct dg_config cfg;
    struct dg_buf config;
    struct dg_manifest m;
    struct dg_stream_item *item;
    struct draw *draw;
    char (*name)[NAME_BYTES];
    size_t cap;
    struct dg_outdir out;
    struct dg_faults faults;
};

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The sum of eight random bytes: close to normal, with the extremes a group of weights has. */
static float normal(uint64_t *state) {
    uint64_t v = mix(*state += 0x9e3779b97f4a7c15u), low = 0x00ff00ff00ff00ffu;
    uint64_t sum = ((v & low) + (v >> 8 & low)) * 0x0001000100010001u >> 48;
    return ((float)sum - 1020.0f) * (1.0f / 209.02f);
}

static void draw_row(const void *ctx, int64_t row, int64_t k, float *x) {
    const struct draw *d = ctx;
    uint64_t own = mix(d->seed ^ mix((uint64_t)row + 1));
    if (!d->kin) {
        for (int64_t i = 0; i < k; i++)
            x[i] = d->mean + d->sd * normal(&own);
        return;
    }
    uint64_t shared = mix(d->seed ^ mix(~((uint64_t)row / DG_SYNTH_KIN)));
    for (int64_t i = 0; i < k; i++)
        x[i] = d->sd * (SHARED * normal(&shared) + 0.447214f * normal(&own));
}

static void add(struct work *w, const char *name, int rank, const int64_t *shape, float mean, float sd) {
    size_t i = w->m.n_tensors++;
    struct dg_manifest_tensor *t = &w->m.tensor[i];
    snprintf(w->name[i], NAME_BYTES, "%s", name);
    enum dg_format fmt = w->o->checkpoint ? DG_FMT_COUNT : dg_policy_format(&w->o->policy, name, strlen(name), rank);
    *t = (struct dg_manifest_tensor){.name = w->name[i], .dtype = "BF16", .kind = DG_FMT_BF16, .raw = true, .rank = (uint8_t)rank};
    if (fmt != DG_FMT_COUNT) {
        t->kind = (uint8_t)fmt;
        t->raw = false;
    }
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    dg_policy_check_shape(&w->faults, name, strlen(name), fmt, rank, shape);
    t->bytes = dg_manifest_bytes(t->kind, rank, shape);
    uint64_t seed = w->o->seed;
    for (const char *c = name; *c; c++)
        seed = mix(seed ^ (unsigned char)*c);
    w->draw[i] = (struct draw){.seed = seed, .mean = mean, .sd = sd, .kin = strstr(name, "embed_tokens") != NULL};
}

static void vec(struct work *w, const char *name, int64_t n, float mean) { add(w, name, 1, &n, mean, 0.1f * mean); }

/* A linear layer that keeps the size of what it reads. */
static void mat(struct work *w, const char *name, int64_t n, int64_t k) { add(w, name, 2, (int64_t[]){n, k}, 0, 1.0f / sqrtf((float)k)); }

static void stack(struct work *w, const char *name, int64_t e, int64_t n, int64_t k) {
    add(w, name, 3, (int64_t[]){e, n, k}, 0, 1.0f / sqrtf((float)k));
}

/* What all layers together add to the residual, in units of the embedding they start from. */
static const float layers_add = 0.6f;

/* The logit of a position's own token comes to 22, its kin's to 18, everything else's to a few units around 0. */
struct dg_synth_scales dg_synth_scales(const struct dg_config *c) {
    float kept = 1.0f / sqrtf(1.25f + layers_add); /* of the embedding in the residual; 0.25: what the self-conditioning MLP adds */
    return (struct dg_synth_scales){.attention = 3, .router = 1.5f, .branch = sqrtf(layers_add / (2.0f * (float)c->layers)),
                                    .norm = 22.0f / (sqrtf((float)c->hidden) * kept), .shared = SHARED};
}

static void add_layer(struct work *w, int l) {
    const struct dg_config *c = &w->cfg;
    int64_t h = c->hidden, hd = c->layer[l].hd, q = c->heads * hd, kv = c->layer[l].kv_heads * hd;
    const struct dg_synth_scales s = dg_synth_scales(c);
    float qk = sqrtf(s.attention / sqrtf((float)hd));
    char p[48], n[NAME_BYTES];
    snprintf(p, sizeof p, "model.decoder.layers.%d.", l);
#define NAME(suffix) (snprintf(n, sizeof n, "%s%s", p, suffix), n)
    add(w, NAME("layer_scalar"), 1, (int64_t[]){1}, 1, 0);
    mat(w, NAME("self_attn.q_proj.weight"), q, h);
    mat(w, NAME("self_attn.k_proj.weight"), kv, h);
    if (!c->layer[l].full)
        mat(w, NAME("self_attn.v_proj.weight"), kv, h);
    mat(w, NAME("self_attn.o_proj.weight"), h, q);
    vec(w, NAME("self_attn.q_norm.weight"), hd, qk);
    vec(w, NAME("self_attn.k_norm.weight"), hd, qk);
    vec(w, NAME("input_layernorm.weight"), h, 1);
    vec(w, NAME("post_attention_layernorm.weight"), h, s.branch);
    vec(w, NAME("pre_feedforward_layernorm.weight"), h, 1);
    vec(w, NAME("pre_feedforward_layernorm_2.weight"), h, 1);
    vec(w, NAME("post_feedforward_layernorm.weight"), h, s.branch);
    vec(w, NAME("post_feedforward_layernorm_1.weight"), h, 1);
    vec(w, NAME("post_feedforward_layernorm_2.weight"), h, 1);
    mat(w, NAME("mlp.gate_proj.weight"), c->inter, h);
    mat(w, NAME("mlp.up_proj.weight"), c->inter, h);
    mat(w, NAME("mlp.down_proj.weight"), h, c->inter);
    /* the engine multiplies by hidden^-0.5 */
    mat(w, NAME("router.proj.weight"), c->experts, h);
    vec(w, NAME("router.scale"), h, s.router * sqrtf((float)h));
    vec(w, NAME("router.per_expert_scale"), c->experts, 1);
    stack(w, NAME("experts.gate_up_proj"), c->experts, 2 * c->moe, h);
    stack(w, NAME("experts.down_proj"), c->experts, h, c->moe);
    snprintf(n, sizeof n, "model.encoder.language_model.layers.%d.layer_scalar", l);
    add(w, n, 1, (int64_t[]){1}, 1, 0);
#undef NAME
}

static void add_all(struct work *w) {
    const struct dg_config *c = &w->cfg;
    int64_t h = c->hidden;
    add(w, "model.decoder.embed_tokens.weight", 2, (int64_t[]){c->vocab, h}, 0, 1.0f / sqrtf((float)h));
    vec(w, "model.decoder.norm.weight", h, dg_synth_scales(c).norm);
    vec(w, "model.decoder.self_conditioning.pre_norm.weight", h, 1);
    mat(w, "model.decoder.self_conditioning.gate_proj.weight", c->inter, h);
    mat(w, "model.decoder.self_conditioning.up_proj.weight", c->inter, h);
    mat(w, "model.decoder.self_conditioning.down_proj.weight", h, c->inter);
    for (int l = 0; l < c->layers; l++)
        add_layer(w, l);
}

static int by_place(const void *a, const void *b) { return dg_pack_order(a, b); }

/* Items in the order of the sorted tensors; each name points into the table of names and so finds its draw. */
static void make_items(struct work *w) {
    for (size_t i = 0; i < w->m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &w->m.tensor[i];
        size_t from = (size_t)(t->name - w->name[0]) / NAME_BYTES;
        struct dg_stream_item *it = &w->item[i];
        *it = (struct dg_stream_item){.name = t->name, .to = t->kind, .mats = 1, .rows = 1, .k = t->shape[t->rank - 1], .bytes = t->bytes, .src = -1};
        it->codes = dg_policy_codes(&w->o->policy, dg_class_of(t->name, strlen(t->name), t->rank), t->kind);
        if (t->rank > 1)
            it->rows = t->shape[t->rank - 2];
        if (t->rank > 2)
            it->mats = t->shape[0];
        it->make = draw_row;
        it->make_ctx = &w->draw[from];
    }
}

/* Which shard each tensor goes into: contiguous runs of about the same size. */
static int shard_of(uint64_t begin, uint64_t total, int n) { return (int)((double)begin / (double)total * n); }

struct shard {
    int fd;
    char path[DG_OUTDIR_PATH];
};

static enum dg_status shard_header(struct work *w, int shard, int n, uint64_t total, struct dg_buf *head, uint64_t *data) {
    uint64_t begin = 0, at = 0;
    dg_buf_str(head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < w->m.n_tensors; begin += w->m.tensor[i++].bytes) {
        const struct dg_manifest_tensor *t = &w->m.tensor[i];
        if (shard_of(begin, total, n) != shard)
            continue;
        dg_buf_fmt(head, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", t->name);
        for (int d = 0; d < t->rank; d++)
            dg_buf_fmt(head, "%s%" PRId64, d ? "," : "", t->shape[d]);
        dg_buf_fmt(head, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    dg_buf_chr(head, '}');
    while (head->status == DG_OK && head->len % 8)
        dg_buf_chr(head, ' ');
    *data = at;
    return head->status;
}

static enum dg_status begin_shard(struct work *w, int s, int n, uint64_t total, struct shard *sh, struct dg_error *err) {
    struct dg_buf head;
    uint64_t data, begin = 0;
    char file[64];
    dg_buf_init(&head, (size_t)64 << 20);
    snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", s + 1, n);
    enum dg_status st;
    if (shard_header(w, s, n, total, &head, &data) != DG_OK) {
        st = DG_FAIL(err, head.status, "no memory for the header of %s", file);
        goto done;
    }
    uint64_t len = head.len;
    DG_GO(dg_outdir_create(&w->out, file, 8 + len + data, &sh->fd, sh->path, err));
    DG_GO(dg_pwrite_all(sh->fd, sh->path, &len, 8, 0, err));
    DG_GO(dg_pwrite_all(sh->fd, sh->path, head.data, head.len, 8, err));
    uint64_t at = 8 + len;
    for (size_t i = 0; i < w->m.n_tensors; begin += w->m.tensor[i++].bytes)
        if (shard_of(begin, total, n) == s) {
            w->item[i].dst = sh->fd;
            w->item[i].dst_path = sh->path;
            w->item[i].dst_at = at;
            at += w->item[i].bytes;
        }
done:
    dg_buf_deinit(&head);
    return st;
}

static enum dg_status write_index(struct work *w, int n, uint64_t total, struct dg_error *err) {
    struct dg_buf b;
    uint64_t begin = 0;
    dg_buf_init(&b, (size_t)64 << 20);
    dg_buf_fmt(&b, "{\"metadata\": {\"total_size\": %" PRIu64 "}, \"weight_map\": {", total);
    for (size_t i = 0; i < w->m.n_tensors; begin += w->m.tensor[i++].bytes)
        dg_buf_fmt(&b, "%s\n \"%s\": \"model-%05d-of-%05d.safetensors\"", i ? "," : "", w->m.tensor[i].name, shard_of(begin, total, n) + 1, n);
    enum dg_status st = dg_buf_str(&b, "\n}}\n");
    st = st == DG_OK ? dg_outdir_put(&w->out, "model.safetensors.index.json", b.data, b.len, err) : DG_FAIL(err, st, "no memory for the index");
    dg_buf_deinit(&b);
    return st;
}

static enum dg_status write_checkpoint(struct work *w, struct dg_error *err) {
    uint64_t total = 0;
    for (size_t i = 0; i < w->m.n_tensors; i++)
        total += w->m.tensor[i].bytes;
    int n = w->o->shards ? w->o->shards : (int)(total / SHARD_BYTES) + 1, open = 0;
    struct shard *sh = dg_calloc((size_t)n, sizeof *sh);
    if (!sh)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    enum dg_status st;
    DG_GO(dg_outdir_space(&w->out, total, err));
    for (; open < n; open++) {
        sh[open].fd = -1;
        st = begin_shard(w, open, n, total, &sh[open], err);
        if (st != DG_OK) {
            open++;
            goto done;
        }
    }
    DG_GO(dg_stream_run(w->item, w->m.n_tensors, &w->o->stream, err));
    for (int i = 0; i < n; i++)
        DG_GO(dg_outdir_finish(&sh[i].fd, sh[i].path, err));
    st = write_index(w, n, total, err);
done:
    for (int i = 0; i < open; i++)
        if (sh[i].fd >= 0)
            close(sh[i].fd);
    dg_free(sh);
    return st;
}

static enum dg_status plan(struct work *w, struct dg_error *err) {
    dg_buf_init(&w->config, DG_CONFIG_FILE_MAX);
    DG_TRY(dg_synth_config(w->o->shape, w->o->layers, &w->config, &w->cfg, err));
    w->cap = 8 + 24 * (size_t)w->cfg.layers;
    w->m.tensor = dg_calloc(w->cap, sizeof *w->m.tensor);
    w->item = dg_calloc(w->cap, sizeof *w->item);
    w->draw = dg_calloc(w->cap, sizeof *w->draw);
    w->name = dg_calloc(w->cap, sizeof *w->name);
    if (!w->m.tensor || !w->item || !w->draw || !w->name)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    add_all(w);
    DG_TRY(dg_faults_result(&w->faults, w->o->shape, err));
    qsort(w->m.tensor, w->m.n_tensors, sizeof *w->m.tensor, by_place);
    make_items(w);
    w->m.profile = w->o->policy.profile;
    w->m.source_model = "synthetic";
    w->m.blob_file = DG_MANIFEST_BLOB;
    for (int c = 0; c < DG_CLASS_COUNT && !w->o->checkpoint; c++)
        if (w->o->policy.set[c]) {
            enum dg_format f = w->o->policy.format[c];
            w->m.classes[w->m.n_classes].name = dg_class_name((enum dg_class)c);
            w->m.classes[w->m.n_classes++].format = f == DG_FMT_COUNT ? "raw" : dg_format_traits(f)->name;
        }
    dg_pack_place(&w->m);
    return DG_OK;
}

static enum dg_status run(struct work *w, struct dg_error *err) {
    const struct dg_synth_opts *o = w->o;
    if (o->shards < 0 || o->shards > SHARDS_MAX)
        return DG_FAIL(err, DG_E_ARG, "give 1 to %d shards", SHARDS_MAX);
    DG_TRY(plan(w, err));
    DG_TRY(dg_outdir_open(&w->out, o->out, err));
    DG_TRY(dg_outdir_put(&w->out, "config.json", w->config.data, w->config.len, err));
    DG_TRY(dg_outdir_put(&w->out, "generation_config.json", GENERATION, strlen(GENERATION), err));
    if (o->tokenizer)
        DG_TRY(dg_outdir_copy_as(&w->out, o->tokenizer, "tokenizer.json", err));
    DG_TRY(o->checkpoint ? write_checkpoint(w, err) : dg_pack_write(&w->out, &w->m, w->item, &o->stream, err));
    return dg_outdir_commit(&w->out, err);
}

enum dg_status dg_synth(const struct dg_synth_opts *o, struct dg_synth_result *r, struct dg_error *err) {
    struct work *w = dg_calloc(1, sizeof *w);
    if (!w)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    w->o = o;
    w->out.fd = -1;
    dg_faults_init(&w->faults);
    enum dg_status st = run(w, err);
    *r = (struct dg_synth_result){.n_tensors = w->m.n_tensors};
    for (size_t i = 0; i < w->m.n_tensors; i++) {
        uint64_t n = 1;
        for (int d = 0; d < w->m.tensor[i].rank; d++)
            n *= (uint64_t)w->m.tensor[i].shape[d];
        r->params += n;
        r->bytes += w->m.tensor[i].bytes;
    }
    dg_outdir_abandon(&w->out);
    dg_faults_deinit(&w->faults);
    dg_buf_deinit(&w->config);
    dg_free(w->item);
    dg_free(w->draw);
    dg_free(w->name);
    dg_manifest_deinit(&w->m);
    dg_free(w);
    return st;
}
