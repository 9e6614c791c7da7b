#include "model/model.h"

#include "core/faults.h"
#include "core/half.h"
#include "core/mem.h"
#include "pack/checkpoint.h"
#include "pack/pack_read.h"
#include "pack/store.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define WARNINGS_MAX ((size_t)64 << 10)
#define UNKNOWN_NAMED_MAX 20

/* State of binding one model. Every fault of the weights is collected; `st` is for what ends the work (memory, limits). */
struct binder {
    struct dg_model *m;
    struct dg_faults faults;
    struct dg_error *err;
    enum dg_status st;
    char prefix[64]; /* of the layer being bound */
};

static void shape_text(char *dst, size_t n, int rank, const int64_t *shape) {
    size_t at = (size_t)snprintf(dst, n, "[");
    for (int i = 0; i < rank && at < n; i++)
        at += (size_t)snprintf(dst + at, n - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < n)
        snprintf(dst + at, n - at, "]");
}

/* Finds a tensor and checks shape and element type; NULL after a fault. */
static const struct dg_tensor *claim(struct binder *b, const char *suffix, int rank, const int64_t *shape, bool optional) {
    char name[160], want[96], has[256];
    int n = snprintf(name, sizeof name, "%s%s", b->prefix, suffix);
    struct dg_tensor *t = dg_store_find(b->m->store, name, (size_t)n);
    if (!t) {
        if (!optional)
            dg_faults_add(&b->faults, DG_E_FORMAT, "%s is missing", name);
        return NULL;
    }
    t->bound = true;
    shape_text(want, sizeof want, rank, shape);
    shape_text(has, sizeof has, t->rank, t->shape);
    bool good = true;
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        dg_faults_add(&b->faults, DG_E_FORMAT, "%s has shape %s, must be %s", name, has, want);
        good = false;
    }
    if (t->kind >= DG_FMT_COUNT) {
        dg_faults_add(&b->faults, DG_E_UNSUPPORTED, "%s has type %s, must be BF16, F16 or F32", name, t->dtype);
        return NULL;
    }
    const struct dg_format_traits *tr = dg_format_traits(t->kind);
    if (good && shape[rank - 1] % tr->block) {
        dg_faults_add(&b->faults, DG_E_UNSUPPORTED, "%s: its last dimension %" PRId64 " is no multiple of %d, as %s demands",
                      name, shape[rank - 1], tr->block, tr->name);
        return NULL;
    }
    return good ? t : NULL;
}

static void bind_mat(struct binder *b, struct dg_mat *dst, const char *suffix, int32_t n, int32_t k) {
    const struct dg_tensor *t = claim(b, suffix, 2, (int64_t[]){n, k}, false);
    if (t)
        *dst = (struct dg_mat){.fmt = t->kind, .n = n, .k = k, .data = t->data};
}

static void bind_stack(struct binder *b, struct dg_stack *dst, const char *suffix, int32_t e, int32_t n, int32_t k) {
    const struct dg_tensor *t = claim(b, suffix, 3, (int64_t[]){e, n, k}, false);
    if (t)
        *dst = (struct dg_stack){.fmt = t->kind, .e = e, .n = n, .k = k, .data = t->data};
}

/* Decodes a whole vector to f32 and checks that it is finite: one bad value here would poison every token. */
static bool decode_vec(struct binder *b, const char *suffix, const struct dg_tensor *t, int32_t n, float *dst) {
    dg_format_traits(t->kind)->decode_row(t->data, t->data, n, dst);
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(dst[i])) {
            dg_faults_add(&b->faults, DG_E_FORMAT, "%s%s[%d] is %s", b->prefix, suffix, i, isnan(dst[i]) ? "NaN" : "infinite");
            return false;
        }
    return true;
}

static void bind_vec(struct binder *b, struct dg_vec *dst, const char *suffix, int32_t n) {
    const struct dg_tensor *t = claim(b, suffix, 1, (int64_t[]){n}, false);
    void *v;
    if (!t || b->st != DG_OK)
        return;
    b->st = dg_store_alloc(b->m->store, &v, (size_t)n * sizeof(float), b->err);
    if (b->st == DG_OK && decode_vec(b, suffix, t, n, v))
        *dst = (struct dg_vec){.v = v, .n = n};
}

/* A [1] tensor's value; false when it is absent (only if optional) or faulty. */
static bool bind_scalar(struct binder *b, float *dst, const char *suffix, bool optional) {
    const struct dg_tensor *t = claim(b, suffix, 1, (int64_t[]){1}, optional);
    return t && decode_vec(b, suffix, t, 1, dst);
}

static void bind_layer(struct binder *b, int i) {
    const struct dg_config *c = &b->m->cfg;
    struct dg_layer *l = &b->m->layer[i];
    const int32_t h = c->hidden, hd = c->layer[i].hd, q = c->heads * hd, kv = c->layer[i].kv_heads * hd;
    snprintf(b->prefix, sizeof b->prefix, "model.decoder.layers.%d.", i);
    bind_mat(b, &l->q, "self_attn.q_proj.weight", q, h);
    bind_mat(b, &l->k, "self_attn.k_proj.weight", kv, h);
    if (!c->layer[i].full)
        bind_mat(b, &l->v, "self_attn.v_proj.weight", kv, h);
    bind_mat(b, &l->o, "self_attn.o_proj.weight", h, q);
    bind_vec(b, &l->q_norm, "self_attn.q_norm.weight", hd);
    bind_vec(b, &l->k_norm, "self_attn.k_norm.weight", hd);
    bind_vec(b, &l->input_norm, "input_layernorm.weight", h);
    bind_vec(b, &l->post_attn_norm, "post_attention_layernorm.weight", h);
    bind_vec(b, &l->pre_ff_norm, "pre_feedforward_layernorm.weight", h);
    bind_vec(b, &l->pre_ff_norm_2, "pre_feedforward_layernorm_2.weight", h);
    bind_vec(b, &l->post_ff_norm, "post_feedforward_layernorm.weight", h);
    bind_vec(b, &l->post_ff_norm_1, "post_feedforward_layernorm_1.weight", h);
    bind_vec(b, &l->post_ff_norm_2, "post_feedforward_layernorm_2.weight", h);
    bind_mat(b, &l->gate, "mlp.gate_proj.weight", c->inter, h);
    bind_mat(b, &l->up, "mlp.up_proj.weight", c->inter, h);
    bind_mat(b, &l->down, "mlp.down_proj.weight", h, c->inter);
    bind_mat(b, &l->router, "router.proj.weight", c->experts, h);
    bind_vec(b, &l->router_scale, "router.scale", h);
    bind_vec(b, &l->per_expert_scale, "router.per_expert_scale", c->experts);
    bind_stack(b, &l->gate_up, "experts.gate_up_proj", c->experts, 2 * c->moe, h);
    bind_stack(b, &l->expert_down, "experts.down_proj", c->experts, h, c->moe);
    (void)bind_scalar(b, &l->scalar, "layer_scalar", false);
    l->scalar_enc = l->scalar;
    snprintf(b->prefix, sizeof b->prefix, "model.encoder.language_model.layers.%d.", i);
    (void)bind_scalar(b, &l->scalar_enc, "layer_scalar", true);
}

static void bind_all(struct binder *b) {
    struct dg_model *m = b->m;
    const struct dg_config *c = &m->cfg;
    snprintf(b->prefix, sizeof b->prefix, "model.decoder.");
    bind_mat(b, &m->embed, "embed_tokens.weight", c->vocab, c->hidden);
    bind_vec(b, &m->norm, "norm.weight", c->hidden);
    bind_vec(b, &m->sc.pre_norm, "self_conditioning.pre_norm.weight", c->hidden);
    bind_mat(b, &m->sc.gate, "self_conditioning.gate_proj.weight", c->inter, c->hidden);
    bind_mat(b, &m->sc.up, "self_conditioning.up_proj.weight", c->inter, c->hidden);
    bind_mat(b, &m->sc.down, "self_conditioning.down_proj.weight", c->hidden, c->inter);
    for (int i = 0; i < c->layers; i++)
        bind_layer(b, i);
}

static bool starts_with(const struct dg_tensor *t, const char *prefix) {
    size_t n = strlen(prefix);
    return t->name_len >= n && memcmp(t->name, prefix, n) == 0;
}

/* Tensors a text checkpoint may carry that are no weights of ours: the vision side, and the encoder's and the head's tied copies
 * of what the decoder has. */
static bool is_known_extra(struct dg_store *s, const struct dg_tensor *t) {
    static const char *const encoder = "model.encoder.language_model.", *const decoder = "model.decoder.";
    if (starts_with(t, "model.encoder.vision_tower.") || starts_with(t, "model.encoder.embed_vision."))
        return true;
    if (!starts_with(t, encoder))
        return t->name_len == strlen("lm_head.weight") && starts_with(t, "lm_head.weight");
    char twin[DG_TENSOR_NAME_MAX];
    size_t n_prefix = strlen(decoder), n_rest = t->name_len - strlen(encoder);
    memcpy(twin, decoder, n_prefix);
    memcpy(twin + n_prefix, t->name + strlen(encoder), n_rest);
    return dg_store_find(s, twin, n_prefix + n_rest) != NULL;
}

static void warn_unknown(struct dg_store *s, struct dg_buf *warnings) {
    size_t n = 0;
    for (size_t i = 0; i < dg_store_count(s); i++) {
        const struct dg_tensor *t = dg_store_at(s, i);
        if (!t->bound && !is_known_extra(s, t) && n++ < UNKNOWN_NAMED_MAX)
            (void)dg_buf_fmt(warnings, "unknown tensor %s is ignored\n", dg_clip(t->name, t->name_len).s);
    }
    if (n > UNKNOWN_NAMED_MAX)
        (void)dg_buf_fmt(warnings, "and %zu more unknown tensors\n", n - UNKNOWN_NAMED_MAX);
}

static enum dg_status bind_model(struct dg_model *m, struct dg_error *err) {
    struct binder b = {.m = m, .err = err};
    dg_faults_init(&b.faults);
    m->layer = dg_calloc((size_t)m->cfg.layers, sizeof *m->layer);
    if (!m->layer)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    bind_all(&b);
    enum dg_status st = b.st != DG_OK ? b.st : dg_faults_result(&b.faults, m->dir, err);
    dg_faults_deinit(&b.faults);
    return st;
}

static enum dg_status check_folder(const char *dir, struct dg_error *err) {
    struct stat sb;
    if (stat(dir, &sb) != 0)
        return DG_FAIL(err, DG_E_IO, "%s: no such folder", dg_clip(dir, strlen(dir)).s);
    if (!S_ISDIR(sb.st_mode))
        return DG_FAIL(err, DG_E_ARG, "%s is a file; give the folder that holds config.json and the weights", dir);
    return DG_OK;
}

enum dg_status dg_model_open(struct dg_model **out, const char *dir, struct dg_error *err) {
    *out = NULL;
    struct dg_buf warnings;
    dg_buf_init(&warnings, WARNINGS_MAX);
    enum dg_status st;
    struct dg_model *m = dg_calloc(1, sizeof *m);
    if (!m)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    DG_GO(check_folder(dir, err));
    m->dir = dg_strndup(dir, strlen(dir));
    if (!m->dir) {
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
        goto done;
    }
    DG_GO(dg_config_load(&m->cfg, dir, err));
    DG_GO(dg_store_open(&m->store, err));
    DG_GO(dg_weights_add(m->store, dir, &warnings, err));
    DG_GO(bind_model(m, err));
    warn_unknown(m->store, &warnings);
    m->warnings = dg_buf_take(&warnings, NULL);
    if (!m->warnings)
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
done:
    dg_buf_deinit(&warnings);
    if (st == DG_OK)
        *out = m;
    else
        dg_model_close(m);
    return st;
}

void dg_model_close(struct dg_model *m) {
    if (!m)
        return;
    dg_store_close(m->store);
    dg_free(m->layer);
    dg_free(m->dir);
    dg_free(m->warnings);
    dg_free(m);
}
