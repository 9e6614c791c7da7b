/* Opening a model: every weight bound to the right bytes, every fault of the weights named, and repo ids found in the cache. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "model/model.h"
#include "pack/hub.h"
#include "support/mkckpt.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void expect_text(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static struct dg_model *opened(const char *dir) {
    struct dg_model *m;
    struct dg_error err = {0};
    if (dg_model_open(&m, dir, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    return m;
}

static void refused(const char *dir, enum dg_status want, const char *part) {
    struct dg_model *m;
    struct dg_error err = {0};
    enum dg_status st = dg_model_open(&m, dir, &err);
    assert_null(m);
    expect_text(dg_error_text(&err), part);
    if (st != want || strchr(dg_error_text(&err), '\n'))
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(&err));
    dg_error_clear(&err);
}

static void same_bytes(const struct mk_ckpt *c, const char *name, enum dg_format fmt, const uint8_t *data, int e, int n, int k) {
    const struct mk_tensor *t = mk_get(c, name);
    assert_non_null(data);
    assert_string_equal(t->dtype, fmt == DG_FMT_F32 ? "F32" : fmt == DG_FMT_F16 ? "F16" : "BF16");
    assert_int_equal(t->rank, e ? 3 : 2);
    assert_int_equal(t->shape[t->rank - 2], n);
    assert_int_equal(t->shape[t->rank - 1], k);
    if (e)
        assert_int_equal(t->shape[0], e);
    assert_memory_equal(data, t->data, t->bytes);
}

static void same_mat(const struct mk_ckpt *c, const char *prefix, const char *suffix, const struct dg_mat *m) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    same_bytes(c, name, m->fmt, m->data, 0, m->n, m->k);
}

static void same_stack(const struct mk_ckpt *c, const char *prefix, const char *suffix, const struct dg_stack *s) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    same_bytes(c, name, s->fmt, s->data, s->e, s->n, s->k);
}

static void same_vec(const struct mk_ckpt *c, const char *prefix, const char *suffix, const struct dg_vec *v) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    const struct mk_tensor *t = mk_get(c, name);
    assert_non_null(v->v);
    assert_int_equal(v->n, t->shape[0]);
    for (int i = 0; i < v->n; i++)
        assert_true(v->v[i] == mk_value(t, (size_t)i));
}

static void check_layer(const struct mk_ckpt *c, const struct dg_model *m, int i, bool own_scalar) {
    char p[64], e[96];
    const struct dg_layer *l = &m->layer[i];
    snprintf(p, sizeof p, "model.decoder.layers.%d.", i);
    snprintf(e, sizeof e, "model.encoder.language_model.layers.%d.layer_scalar", i);
    same_mat(c, p, "self_attn.q_proj.weight", &l->q);
    same_mat(c, p, "self_attn.k_proj.weight", &l->k);
    if (c->shape.full >> i & 1)
        assert_null(l->v.data);
    else
        same_mat(c, p, "self_attn.v_proj.weight", &l->v);
    same_mat(c, p, "self_attn.o_proj.weight", &l->o);
    same_mat(c, p, "mlp.gate_proj.weight", &l->gate);
    same_mat(c, p, "mlp.up_proj.weight", &l->up);
    same_mat(c, p, "mlp.down_proj.weight", &l->down);
    same_mat(c, p, "router.proj.weight", &l->router);
    same_stack(c, p, "experts.gate_up_proj", &l->gate_up);
    same_stack(c, p, "experts.down_proj", &l->expert_down);
    same_vec(c, p, "self_attn.q_norm.weight", &l->q_norm);
    same_vec(c, p, "self_attn.k_norm.weight", &l->k_norm);
    same_vec(c, p, "input_layernorm.weight", &l->input_norm);
    same_vec(c, p, "post_attention_layernorm.weight", &l->post_attn_norm);
    same_vec(c, p, "pre_feedforward_layernorm.weight", &l->pre_ff_norm);
    same_vec(c, p, "pre_feedforward_layernorm_2.weight", &l->pre_ff_norm_2);
    same_vec(c, p, "post_feedforward_layernorm.weight", &l->post_ff_norm);
    same_vec(c, p, "post_feedforward_layernorm_1.weight", &l->post_ff_norm_1);
    same_vec(c, p, "post_feedforward_layernorm_2.weight", &l->post_ff_norm_2);
    same_vec(c, p, "router.scale", &l->router_scale);
    same_vec(c, p, "router.per_expert_scale", &l->per_expert_scale);
    strcat(p, "layer_scalar");
    assert_true(l->scalar == mk_value(mk_get(c, p), 0));
    assert_true(l->scalar_enc == mk_value(mk_get(c, own_scalar ? e : p), 0));
}

static void check_all(const struct mk_ckpt *c, const struct dg_model *m, bool own_scalar) {
    same_mat(c, "model.decoder.", "embed_tokens.weight", &m->embed);
    same_vec(c, "model.decoder.", "norm.weight", &m->norm);
    same_vec(c, "model.decoder.", "self_conditioning.pre_norm.weight", &m->sc.pre_norm);
    same_mat(c, "model.decoder.", "self_conditioning.gate_proj.weight", &m->sc.gate);
    same_mat(c, "model.decoder.", "self_conditioning.up_proj.weight", &m->sc.up);
    same_mat(c, "model.decoder.", "self_conditioning.down_proj.weight", &m->sc.down);
    for (int i = 0; i < c->shape.layers; i++)
        check_layer(c, m, i, own_scalar);
}

/* Element types, spellings, one file or shards, and every address a tensor can have. */
static void opens_every_form(void **state) {
    (void)state;
    static const char *const dtypes[] = {"BF16", "F16", "F32"};
    for (int d = 0; d < 3; d++)
        for (int shards = 0; shards < 4; shards += 3)
            for (int pad = 0; pad < 4; pad++) {
                char *dir = mk_tmpdir();
                struct mk_ckpt c;
                mk_build(&c, &mk_tiny, dtypes[d], pad & 1, (uint64_t)(d * 10 + pad));
                c.pad = pad;
                mk_write(&c, dir, shards);
                struct dg_model *m = opened(dir);
                check_all(&c, m, true);
                assert_string_equal(m->warnings, "");
                assert_string_equal(m->dir, dir);
                dg_model_close(m);
                mk_remove(dir);
                free(dir);
                mk_free(&c);
            }
}

struct fixture {
    char *dir;
    struct mk_ckpt c;
};

static struct fixture built(void) {
    struct fixture f = {.dir = mk_tmpdir()};
    mk_build(&f.c, &mk_tiny, "BF16", false, 3);
    return f;
}

static void done(struct fixture *f) {
    mk_remove(f->dir);
    free(f->dir);
    mk_free(&f->c);
}

static void mixed_element_types(void **state) {
    (void)state;
    struct fixture f = built();
    mk_drop(&f.c, "model.decoder.layers.1.mlp.up_proj.weight");
    mk_add(&f.c, "model.decoder.layers.1.mlp.up_proj.weight", "F32", 4, 2, (int64_t[]){48, 32});
    mk_drop(&f.c, "model.decoder.layers.1.router.scale");
    mk_add(&f.c, "model.decoder.layers.1.router.scale", "F16", 2, 1, (int64_t[]){32});
    mk_write(&f.c, f.dir, 0);
    struct dg_model *m = opened(f.dir);
    check_all(&f.c, m, true);
    assert_int_equal(m->layer[1].up.fmt, DG_FMT_F32);
    dg_model_close(m);
    done(&f);
}

static void encoder_scalars(void **state) {
    (void)state;
    struct fixture f = built();
    for (int i = 0; i < 3; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.encoder.language_model.layers.%d.layer_scalar", i);
        mk_drop(&f.c, name);
    }
    mk_write(&f.c, f.dir, 0);
    struct dg_model *m = opened(f.dir); /* absent: the decoder's */
    check_all(&f.c, m, false);
    dg_model_close(m);
    done(&f);
}

static void extras_and_strangers(void **state) {
    (void)state;
    struct fixture f = built();
    mk_add(&f.c, "model.encoder.vision_tower.patch_embedder.weight", "F32", 4, 4, (int64_t[]){2, 3, 4, 4});
    mk_add(&f.c, "model.encoder.vision_tower.counter", "I64", 8, 0, NULL);
    mk_add(&f.c, "model.encoder.embed_vision.embedding_projection.weight", "BF16", 2, 2, (int64_t[]){4, 4});
    mk_add(&f.c, "model.encoder.language_model.embed_tokens.weight", "BF16", 2, 2, (int64_t[]){160, 32});
    mk_add(&f.c, "model.encoder.language_model.layers.1.mlp.up_proj.weight", "BF16", 2, 2, (int64_t[]){48, 32});
    mk_add(&f.c, "lm_head.weight", "BF16", 2, 2, (int64_t[]){160, 32});
    mk_write(&f.c, f.dir, 2);
    struct dg_model *m = opened(f.dir);
    assert_string_equal(m->warnings, "");
    dg_model_close(m);
    mk_add(&f.c, "model.encoder.language_model.layers.7.layer_scalar", "BF16", 2, 1, (int64_t[]){1});
    for (int i = 0; i < 23; i++) {
        char name[96];
        snprintf(name, sizeof name, "stranger.%02d", i);
        mk_add(&f.c, name, "F8_E4M3", 1, 1, (int64_t[]){4});
    }
    mk_write(&f.c, f.dir, 2);
    m = opened(f.dir);
    expect_text(m->warnings, "unknown tensor model.encoder.language_model.layers.7.layer_scalar is ignored\n");
    expect_text(m->warnings, "unknown tensor stranger.18 is ignored\nand 4 more unknown tensors\n");
    dg_model_close(m);
    done(&f);
}

static void names_every_weight_fault(void **state) {
    (void)state;
    struct fixture f = built();
    mk_drop(&f.c, "model.decoder.norm.weight");
    mk_drop(&f.c, "model.decoder.layers.0.self_attn.v_proj.weight");
    struct mk_tensor *t = mk_get(&f.c, "model.decoder.layers.1.experts.down_proj"); /* same bytes, dimensions exchanged */
    t->shape[1] = 16;
    t->shape[2] = 32;
    mk_drop(&f.c, "model.decoder.layers.2.mlp.gate_proj.weight");
    mk_add(&f.c, "model.decoder.layers.2.mlp.gate_proj.weight", "F64", 8, 2, (int64_t[]){48, 32});
    mk_set(mk_get(&f.c, "model.decoder.layers.2.router.scale"), 5, NAN);
    mk_set(mk_get(&f.c, "model.encoder.language_model.layers.0.layer_scalar"), 0, INFINITY);
    mk_write(&f.c, f.dir, 0);
    refused(f.dir, DG_E_FORMAT, ": 6 faults: ");
    refused(f.dir, DG_E_FORMAT, "model.decoder.norm.weight is missing; ");
    refused(f.dir, DG_E_FORMAT, "model.decoder.layers.0.self_attn.v_proj.weight is missing; ");
    refused(f.dir, DG_E_FORMAT, "model.encoder.language_model.layers.0.layer_scalar[0] is infinite; ");
    refused(f.dir, DG_E_FORMAT, "model.decoder.layers.1.experts.down_proj has shape [4, 16, 32], must be [4, 32, 16]; ");
    refused(f.dir, DG_E_FORMAT, "model.decoder.layers.2.mlp.gate_proj.weight has type F64, must be BF16, F16 or F32; ");
    refused(f.dir, DG_E_FORMAT, "model.decoder.layers.2.router.scale[5] is NaN");
    done(&f);
}

static void other_folders(void **state) {
    (void)state;
    struct fixture f = built();
    char path[4096];
    refused(f.dir, DG_E_IO, "has no config.json; download it again");
    mk_put(f.dir, "model.gguf", "GGUF", 4);
    refused(f.dir, DG_E_UNSUPPORTED, "it holds a GGUF model; this engine reads safetensors checkpoints, e.g. diffgemma download");
    mk_put(f.dir, "config.json", f.c.config, strlen(f.c.config));
    refused(f.dir, DG_E_UNSUPPORTED, "has no model.safetensors and no model.safetensors.index.json; it holds a GGUF model");
    snprintf(path, sizeof path, "%s/model.gguf", f.dir);
    refused(path, DG_E_ARG, "is a file; give the folder");
    snprintf(path, sizeof path, "%s/none", f.dir);
    refused(path, DG_E_IO, "no such folder");
    mk_put(f.dir, "pytorch_model.bin", "x", 1);
    snprintf(path, sizeof path, "%s/model.gguf", f.dir);
    unlink(path);
    refused(f.dir, DG_E_UNSUPPORTED, "it holds PyTorch weights");
    done(&f);
}

/* The n-th allocation fails, for every n: an error each time, and no leak (the address sanitizer's build looks for it). */
static void survives_failing_allocations(void **state) {
    (void)state;
    struct fixture f = built();
    mk_write(&f.c, f.dir, 2);
    enum dg_status st = DG_E_NOMEM;
    uint64_t n;
    for (n = 1; st != DG_OK && n < 2000; n++) {
        struct dg_model *m;
        struct dg_error err = {0};
        dg_mem_fail_at(n);
        st = dg_model_open(&m, f.dir, &err);
        dg_mem_fail_at(0);
        if (st == DG_OK)
            dg_model_close(m);
        else if (st != DG_E_NOMEM || !strstr(dg_error_text(&err), "out of memory"))
            fail_msg("allocation %d: %s: %s", (int)n, dg_status_name(st), dg_error_text(&err));
        dg_error_clear(&err);
    }
    assert_int_equal(st, DG_OK);
    assert_true(n > 40);
    done(&f);
}

/* ---- the Hugging Face cache ---- */

struct cache {
    char *home, *hf, *dgq;
    struct mk_ckpt c;
};

static void cache_set_up(struct cache *h) {
    h->home = mk_tmpdir();
    h->hf = mk_tmpdir();
    h->dgq = mk_tmpdir();
    mk_build(&h->c, &mk_tiny, "BF16", false, 5);
    setenv("HOME", h->home, 1);
    unsetenv("HF_HOME");
    assert_int_equal(dg_hub_use_home(NULL, NULL), DG_OK);
}

static void cache_tear_down(struct cache *h) {
    char *dirs[] = {h->home, h->hf, h->dgq};
    for (int i = 0; i < 3; i++) {
        mk_remove(dirs[i]);
        free(dirs[i]);
    }
    mk_free(&h->c);
    unsetenv("HF_HOME");
    assert_int_equal(dg_hub_use_home(NULL, NULL), DG_OK);
}

/* A snapshot written `age` seconds ago; its path in `out`. */
static void snapshot(struct cache *h, const char *root, const char *repo, const char *rev, int age, int shards,
                     char out[PATH_MAX]) {
    char rel[512];
    snprintf(rel, sizeof rel, "%s/snapshots/%s", repo, rev);
    mk_mkdir(root, rel);
    snprintf(out, PATH_MAX, "%s/%s", root, rel);
    mk_write(&h->c, out, shards);
    struct timespec now, t[2];
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= age;
    t[0] = t[1] = now;
    assert_int_equal(utimensat(AT_FDCWD, out, t, 0), 0);
}

static void resolves(const char *arg, const char *want) {
    char *dir;
    struct dg_error err = {0};
    if (dg_hub_resolve(arg, &dir, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    assert_string_equal(dir, want);
    dg_free(dir);
}

static void unresolved(const char *arg, const char *part) {
    char *dir;
    struct dg_error err = {0};
    assert_int_equal(dg_hub_resolve(arg, &dir, &err), DG_E_ARG);
    assert_null(dir);
    expect_text(dg_error_text(&err), part);
    assert_null(strchr(dg_error_text(&err), '\n'));
    dg_error_clear(&err);
}

#define REPO "models--org--some.model-1"

static void finds_snapshots(void **state) {
    (void)state;
    struct cache h;
    char old[PATH_MAX], newer[PATH_MAX], broken[PATH_MAX], other[PATH_MAX], path[PATH_MAX + 64];
    cache_set_up(&h);
    unresolved("org/some.model-1", "run: diffgemma download org/some.model-1");
    unresolved("org/some.model-1", ".cache/huggingface");
    snapshot(&h, h.home, ".cache/huggingface/hub/" REPO, "aaaa", 500, 0, old);
    resolves("org/some.model-1", old);
    snapshot(&h, h.home, ".cache/huggingface/hub/" REPO, "bbbb", 100, 3, newer);
    resolves("org/some.model-1", newer);
    snapshot(&h, h.home, ".cache/huggingface/hub/" REPO, "cccc", 10, 3, broken);
    resolves("org/some.model-1", broken);
    snprintf(path, sizeof path, "%s/model-00002-of-00003.safetensors", broken);
    assert_int_equal(truncate(path, 4000), 0);
    resolves("org/some.model-1", newer); /* a cut shard is never chosen */
    unlink(path);
    resolves("org/some.model-1", newer); /* nor a missing one */
    mk_mkdir(h.home, ".cache/huggingface/hub/" REPO "/refs");
    mk_put(h.home, ".cache/huggingface/hub/" REPO "/refs/main", "aaaa", 4);
    resolves("org/some.model-1", old); /* refs/main before the newest */
    mk_put(h.home, ".cache/huggingface/hub/" REPO "/refs/main", "cccc\n", 5);
    resolves("org/some.model-1", newer); /* unless it is incomplete */
    mk_put(h.home, ".cache/huggingface/hub/" REPO "/refs/main", "../aaaa", 7);
    resolves("org/some.model-1", newer);
    setenv("HF_HOME", h.hf, 1);
    resolves("org/some.model-1", newer); /* nothing there: the next root */
    snapshot(&h, h.hf, "hub/" REPO, "dddd", 1000, 0, other);
    resolves("org/some.model-1", other);
    snapshot(&h, h.dgq, REPO, "eeee", 2000, 0, path); /* without hub/ */
    setenv("DGQ_HF_HOME", h.dgq, 1);
    resolves("org/some.model-1", other); /* switches are the program's to read */
    unsetenv("DGQ_HF_HOME");
    assert_int_equal(dg_hub_use_home(h.dgq, NULL), DG_OK);
    resolves("org/some.model-1", path);
    cache_tear_down(&h);
}

static void says_what_is_missing(void **state) {
    (void)state;
    struct cache h;
    char dir[PATH_MAX], path[PATH_MAX + 64];
    cache_set_up(&h);
    snapshot(&h, h.home, ".cache/huggingface/hub/" REPO, "aaaa", 5, 3, dir);
    snprintf(path, sizeof path, "%s/model-00003-of-00003.safetensors", dir);
    unlink(path);
    unresolved("org/some.model-1", "no snapshot is complete");
    unresolved("org/some.model-1", "shard model-00003-of-00003.safetensors is missing");
    unresolved("org/some.model-1", "run: diffgemma download org/some.model-1");
    refused(dir, DG_E_IO, "the download is incomplete, run: diffgemma download org/some.model-1");
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    unresolved("org/some.model-1", "has no config.json");
    resolves(dir, dir); /* a folder is used as it is */
    mk_put(h.home, "m.gguf", "GGUF\3", 5);
    snprintf(path, sizeof path, "%s/m.gguf", h.home);
    unresolved(path, "is a GGUF file; this engine reads safetensors checkpoints: diffgemma download");
    mk_put(h.home, "m.safetensors", "x", 1);
    snprintf(path, sizeof path, "%s/m.safetensors", h.home);
    unresolved(path, "is a file; give the folder");
    unresolved("", "no such folder");
    unresolved("org", "no such folder");
    unresolved("a/b/c", "no such folder");
    unresolved("../nonesuch-dg", "no such folder");
    unresolved("org/..", "no such folder");
    unresolved("org/na me", "no such folder");
    unresolved("bad\nname/x", "bad?name/x: no such folder");
    cache_tear_down(&h);
}

/* Every matrix counts: packs of one checkpoint differ in their experts and the self-conditioning alone. */
static void identity(void **state) {
    (void)state;
    struct mk_ckpt c;
    char *dir = mk_tmpdir();
    mk_build(&c, &mk_tiny, "BF16", true, 5);
    mk_write(&c, dir, 0);
    struct dg_model *m = opened(dir), *twin = opened(dir);
    uint64_t id = dg_model_id(m);
    assert_true(dg_model_id(twin) == id);
    dg_model_close(twin);
    struct dg_layer *l = &m->layer[m->cfg.layers - 1];
    const uint8_t **data[] = {&m->embed.data, &m->sc.gate.data, &m->sc.up.data, &m->sc.down.data, &l->q.data, &l->k.data, &l->o.data,
                              &l->gate.data, &l->up.data, &l->down.data, &l->router.data, &l->gate_up.data, &l->expert_down.data};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        *data[i] += 2; /* another row's values */
        assert_true(dg_model_id(m) != id);
        *data[i] -= 2;
    }
    enum dg_format *fmt[] = {&m->sc.gate.fmt, &l->gate_up.fmt, &l->expert_down.fmt};
    for (size_t i = 0; i < sizeof fmt / sizeof *fmt; i++) {
        *fmt[i] = DG_FMT_F16;
        assert_true(dg_model_id(m) != id);
        *fmt[i] = DG_FMT_BF16;
    }
    assert_true(dg_model_id(m) == id);
    dg_model_close(m);
    mk_remove(dir);
    free(dir);
    mk_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_every_form),
        cmocka_unit_test(mixed_element_types),
        cmocka_unit_test(encoder_scalars),
        cmocka_unit_test(identity),
        cmocka_unit_test(extras_and_strangers),
        cmocka_unit_test(names_every_weight_fault),
        cmocka_unit_test(other_folders),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(finds_snapshots),
        cmocka_unit_test(says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
