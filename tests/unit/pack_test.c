/* Packs on disk: quantised ones decode to what the encoder promises, layered ones to the same model, and what must be refused is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "convert/quantize.h"
#include "convert/repack.h"
#include "convert/synth.h"
#include "convert/verify.h"
#include "core/half.h"
#include "core/mem.h"
#include "model/model.h"
#include "ops/backends.h"
#include "pack/hub.h"
#include "pack/pack_read.h"
#include "session/session.h"
#include "support/mkckpt.h"
#include "support/page_decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every width a multiple of 32, so that all formats fit. */
static const struct mk_shape shape = {.vocab = 160, .hidden = 64, .layers = 3, .heads = 4, .kv = 2, .hd = 16, .full_kv = 1, .full_hd = 32,
                                      .inter = 96, .experts = 4, .topk = 2, .moe = 32, .canvas = 16, .window = 8, .full = 1u << 2};

static struct {
    char *dir; /* everything is below it */
    struct mk_ckpt c;
    char source[256];
} x;

static const char *path(const char *name) {
    static char p[32][300];
    static int i;
    i = (i + 1) % 32;
    snprintf(p[i], sizeof p[i], "%s/%s", x.dir, name);
    return p[i];
}

static void expect_text(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static struct dg_quantize_opts options(const char *out, const char *profile, const char *rules) {
    struct dg_quantize_opts o = {.source = x.source, .out = out, .stream.threads = 2};
    struct dg_error err = {0};
    char copy[200], *save = NULL;
    snprintf(copy, sizeof copy, "%s", rules ? rules : "");
    if (dg_policy_init(&o.policy, profile, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    for (char *r = strtok_r(copy, " ", &save); r; r = strtok_r(NULL, " ", &save))
        if (dg_policy_set(&o.policy, r, &err) != DG_OK)
            fail_msg("%s", dg_error_text(&err));
    return o;
}

static void quantize(const struct dg_quantize_opts *o) {
    struct dg_quantize_result r;
    struct dg_error err = {0};
    if (dg_quantize(o, &r, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
}

static void make(const char *name, const char *profile, const char *rules) {
    struct dg_quantize_opts o = options(path(name), profile, rules);
    quantize(&o);
}

static struct dg_model *opened(const char *dir) {
    struct dg_model *m;
    struct dg_error err = {0};
    if (dg_model_open(&m, dir, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    assert_string_equal(m->warnings, "");
    return m;
}

static void refused(const char *dir, const char *part) {
    struct dg_model *m;
    struct dg_error err = {0};
    assert_int_not_equal(dg_model_open(&m, dir, &err), DG_OK);
    assert_null(m);
    expect_text(dg_error_text(&err), part);
    assert_null(strchr(dg_error_text(&err), '\n'));
    dg_error_clear(&err);
}

static bool same_file(const char *a, const char *b) {
    size_t n, m;
    char *p = mk_slurp(a, &n), *q = mk_slurp(b, &m);
    bool same = n == m && memcmp(p, q, n) == 0;
    free(p);
    free(q);
    return same;
}

static bool same_pack(const char *a, const char *b) {
    char p[400], q[400];
    static const char *const files[] = {"model.dgq.json", "model.dgq.bin", "config.json", "generation_config.json"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(p, sizeof p, "%s/%s", a, files[i]);
        snprintf(q, sizeof q, "%s/%s", b, files[i]);
        if (!same_file(p, q))
            return false;
    }
    return true;
}

/* Logits of a step after a short prompt (malloc). */
static float *logits_of(const char *dir) {
    struct dg_model *m = opened(dir);
    struct dg_backend *be;
    struct dg_session *s;
    struct dg_error err = {0};
    int32_t prompt[5] = {2, 9, 30, 4, 77}, canvas[16];
    size_t n = 16 * (size_t)m->cfg.vocab;
    float *z = malloc(n * sizeof *z);
    for (int i = 0; i < 16; i++)
        canvas[i] = (7 * i + 3) % 160;
    if (dg_backend_open(&be, "ref", m, &(struct dg_backend_opts){.threads = 1, .exact = true}, &err) != DG_OK ||
        dg_session_create(&s, be, &(struct dg_session_opts){.kv = DG_F32, .ring = 64}, &err) != DG_OK ||
        dg_session_extend(s, prompt, 5, NULL, NULL, &err) != DG_OK || dg_session_step(s, canvas, 16, DG_SC_SEED, 1.25f, &err) != DG_OK ||
        dg_session_step(s, canvas, 16, DG_SC_SOFT, 1.25f, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    be->ops->read(be, z, s->planes->logits.data, n * sizeof *z);
    dg_session_destroy(s);
    dg_backend_destroy(be);
    dg_model_close(m);
    return z;
}

static void same_logits(const char *a, const char *b) {
    float *p = logits_of(a), *q = logits_of(b);
    assert_memory_equal(p, q, 16 * 160 * sizeof *p);
    free(p);
    free(q);
}

/* Every tensor of every profile has the kind the page says, decodes within its format's error, and raw ones are the source's bytes. */
static void profiles(void **state) {
    (void)state;
    static const struct {
        const char *profile, *rules, *experts, *attn, *dense, *sc;
        int version;
    } cases[] = {
        {"q4", NULL, "q4_block", "raw", "raw", "q8_row", 1},
        {"q6", NULL, "q6_block", "raw", "raw", "q8_row", 1},
        {"nvfp4", NULL, "nvfp4_block", "nvfp4_block", "nvfp4_block", "q8_row", 2},
        {"nvfp4x", NULL, "nvfp4_block", "raw", "raw", "q8_row", 4},
        {"q4", "attn=q8 dense=nvfp4 sc=raw", "q4_block", "q8_row", "nvfp4_block", "raw", 4},
        {"q6", "experts=nvfp4 attn=q4 dense=q8 sc=q4", "nvfp4_block", "q4_block", "q8_row", "q4_block", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%zu", i);
        make(name, cases[i].profile, cases[i].rules);
        struct dg_manifest m;
        struct dg_error err = {0};
        assert_int_equal(dg_manifest_load(&m, path(name), &err), DG_OK);
        assert_int_equal(m.version, cases[i].version);
        assert_true(m.has_split && m.split % 16384 == 0);
        size_t n;
        snprintf(name, sizeof name, "p%zu/model.dgq.bin", i);
        uint8_t *blob = (uint8_t *)mk_slurp(path(name), &n);
        assert_int_equal(n, dg_manifest_total(&m));
        for (size_t k = 0; k < m.n_tensors; k++) {
            const struct dg_manifest_tensor *t = &m.tensor[k];
            const struct mk_tensor *from = mk_get(&x.c, t->name);
            enum dg_class c = dg_class_of(t->name, strlen(t->name), t->rank);
            const char *kind = dg_manifest_kind(t);
            const char *want[] = {cases[i].experts, cases[i].experts, cases[i].attn, cases[i].dense, cases[i].sc, "", "raw"};
            assert_string_equal(kind, want[c]);
            assert_true(t->offset % 64 == 0 && t->hashed && (c <= DG_CLASS_DOWN) == (t->offset >= m.split));
            assert_string_equal(t->dtype, "BF16");
            if (t->raw) {
                assert_int_equal(t->bytes, from->bytes);
                assert_memory_equal(blob + t->offset, from->data, from->bytes);
                continue;
            }
            int64_t e = t->rank == 3 ? t->shape[0] : 1, rows = t->shape[t->rank - 2], cols = t->shape[t->rank - 1];
            double d2 = 0, s2 = 0;
            for (int64_t at = 0; at < e * rows * cols; at++) {
                double v = page_value(kind, "", blob + t->offset, rows, cols, at / (rows * cols), at / cols % rows, at % cols);
                double w = (double)mk_value(from, (size_t)at);
                d2 += (v - w) * (v - w);
                s2 += w * w;
            }
            double rms = sqrt(d2 / s2), most = 0.09;
            if (strcmp(kind, "nvfp4_block") != 0)
                most = !strcmp(kind, "q4_block") ? 0.07 : !strcmp(kind, "q6_block") ? 0.017 : 0.006;
            if (!(rms <= most))
                fail_msg("%s in %s: relative RMS %.4f", t->name, kind, rms);
        }
        assert_int_equal(m.n_tensors, (size_t)x.c.n);
        free(blob);
        dg_manifest_deinit(&m);
        snprintf(name, sizeof name, "p%zu", i);
        float *z = logits_of(path(name));
        for (int j = 0; j < 16 * 160; j++)
            assert_true(isfinite(z[j]));
        free(z);
    }
}

static void same_bytes(void **state) {
    (void)state;
    make("a", "nvfp4", NULL);
    for (int threads = 1; threads <= 5; threads += 2) {
        struct dg_quantize_opts o = options(path("b"), "nvfp4", NULL);
        o.stream.threads = threads;
        quantize(&o);
        assert_true(same_pack(path("a"), path("b")));
        mk_remove(path("b"));
    }
    /* a source in one file gives the pack of the same source in shards */
    mk_mkdir(x.dir, "one/src");
    mk_write(&x.c, path("one/src"), 0);
    struct dg_quantize_opts o = options(path("b"), "nvfp4", NULL);
    o.source = path("one/src");
    quantize(&o);
    assert_true(same_pack(path("a"), path("b")));
}

static void locked_and_illegal(void **state) {
    (void)state;
    static const struct {
        const char *rule, *part;
    } bad[] = {
        {"embed=q8", "locked"},       {"embed_tokens=q8", "output head"}, {"router=q8", "routing"},   {"norms=q8", "norm weights"},
        {"layer_scalar=q8", "locked"}, {"experts=raw", "q4, q6 or nvfp4"}, {"experts=q8", "q4, q6 or nvfp4"},
        {"attn=q6", "q6 is a format of expert stacks"},
        {"dense=q6", "raw, q8, q4"},  {"sc=q6", "raw, q8, q4"},           {"mlp=q4", "the class is one of"}, {"attn=q5", "the format is one of"},
        {"attn", "CLASS=FORMAT"},     {"=q4", "CLASS=FORMAT"},            {"attn=", "CLASS=FORMAT"},
    };
    struct dg_policy p;
    struct dg_error err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dg_policy_init(&p, "q4", &err), DG_OK);
        assert_int_equal(dg_policy_set(&p, bad[i].rule, &err), DG_E_ARG);
        expect_text(dg_error_text(&err), bad[i].part);
        dg_error_clear(&err);
    }
    assert_int_equal(dg_policy_init(&p, "q5", &err), DG_E_ARG);
    expect_text(dg_error_text(&err), "no format of its own");
    dg_error_clear(&err);
    assert_int_equal(dg_policy_init(&p, "q4", &err), DG_OK);
    assert_int_equal(dg_policy_set(&p, "experts.down=q6", &err), DG_OK);
    assert_int_equal(dg_policy_check(&p, &err), DG_E_ARG);
    expect_text(dg_error_text(&err), "both must have one format");
    dg_error_clear(&err);
    assert_int_equal(dg_policy_set(&p, "experts.gate_up=q6", &err), DG_OK);
    assert_int_equal(dg_policy_check(&p, &err), DG_OK);
    for (int v = 0; v < 5; v++) { /* vision takes all five */
        static const char *const all[] = {"vision=raw", "vision=q4", "vision=q6", "vision=q8", "vision=nvfp4"};
        assert_int_equal(dg_policy_set(&p, all[v], &err), DG_OK);
    }
}

static void not_quantized(struct dg_quantize_opts *o, enum dg_status want, const char *part) {
    struct dg_quantize_result r;
    struct dg_error err = {0};
    struct stat sb;
    enum dg_status st = dg_quantize(o, &r, &err);
    if (st != want)
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(&err));
    expect_text(dg_error_text(&err), part);
    assert_null(strchr(dg_error_text(&err), '\n'));
    dg_error_clear(&err);
    char part_dir[400];
    snprintf(part_dir, sizeof part_dir, "%s.part", o->out);
    assert_true(stat(part_dir, &sb) != 0);
}

/* Refusals before a byte is written; among them shapes that a format does not take (field failure E05). */
static void nothing_stays_behind(void **state) {
    (void)state;
    struct stat sb;
    struct dg_quantize_opts o = options(path("n"), "q4", NULL);
    mk_mkdir(x.dir, "n");
    not_quantized(&o, DG_E_ARG, "exists already");
    mk_remove(path("n"));
    make("n", "q4", NULL);
    struct dg_quantize_opts again = options(path("n2"), "q4", NULL);
    again.source = path("n");
    not_quantized(&again, DG_E_ARG, "is a pack already");
    again = options(path("n2"), "q4", "vision=q8");
    not_quantized(&again, DG_E_ARG, "needs --vision");
    again = options(path("n2"), "q4", NULL);
    again.vision = true;
    not_quantized(&again, DG_E_ARG, "has no vision tower");
    again = options(path("n2"), "q4", NULL);
    again.overlay = true;
    not_quantized(&again, DG_E_ARG, "--hf-repo");
    again = options(path("nowhere/n2"), "q4", NULL);
    not_quantized(&again, DG_E_ARG, "nowhere/n2.part");
    atomic_bool cancel = true;
    again = options(path("n2"), "q4", NULL);
    again.stream.cancel = &cancel;
    not_quantized(&again, DG_E_CANCELLED, "nothing was kept");
    /* a weight that is no number, and one of a width that no block fits */
    struct mk_ckpt c;
    mk_build(&c, &shape, "BF16", false, 5);
    mk_set(mk_get(&c, "model.decoder.layers.1.experts.down_proj"), 77, NAN);
    mk_mkdir(x.dir, "bad");
    mk_write(&c, path("bad"), 0);
    again = options(path("n2"), "q4", NULL);
    again.source = path("bad");
    not_quantized(&again, DG_E_NUMERIC, "layers.1.experts.down_proj: row 2 holds a value that is not finite");
    mk_free(&c);
    struct mk_shape odd = shape;
    odd.moe = 24;
    mk_build(&c, &odd, "BF16", false, 5);
    mk_remove(path("bad"));
    mk_mkdir(x.dir, "bad");
    mk_write(&c, path("bad"), 0);
    not_quantized(&again, DG_E_UNSUPPORTED, "layers.0.experts.down_proj: q4_block needs rows of a multiple of 32 values, these have 24");
    again.policy = options(path("n2"), "nvfp4", NULL).policy;
    not_quantized(&again, DG_E_UNSUPPORTED, "multiple of 16 values, these have 24");
    mk_free(&c);
    assert_true(stat(path("n2"), &sb) != 0);
}

/* The cache folder of a repo id, for overlays. */
static void make_cache(void) {
    mk_mkdir(x.dir, "hf/hub/models--org--base/snapshots/rev1");
    mk_write(&x.c, path("hf/hub/models--org--base/snapshots/rev1"), 3);
    assert_int_equal(dg_hub_use_home(path("hf"), NULL), DG_OK);
}

static void overlays(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_repack_result r;
    make_cache();
    struct dg_quantize_opts o = options(path("plain"), "q6", "attn=q8");
    o.source = path("hf/hub/models--org--base/snapshots/rev1");
    quantize(&o);
    o.out = path("over");
    o.overlay = true;
    o.stream.threads = 3;
    quantize(&o);
    struct dg_repack_opts rp = {.pack = path("plain"), .out = path("over2"), .overlay = true, .stream.threads = 2};
    if (dg_repack(&rp, &r, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    assert_true(r.n_differ == 0 && r.n_external > 0);
    dg_buf_deinit(&r.differ);
    char a[400], b[400];
    snprintf(a, sizeof a, "%s/over/model.dgq.bin", x.dir);
    snprintf(b, sizeof b, "%s/over2/model.dgq.bin", x.dir);
    assert_true(same_file(a, b));
    struct dg_manifest m;
    assert_int_equal(dg_manifest_load(&m, path("over"), &err), DG_OK);
    assert_int_equal(m.version, 4);
    assert_string_equal(m.repo, "org/base");
    assert_string_equal(m.revision, "rev1");
    assert_true(m.has_local_split && m.local_split % 16384 == 0 && m.n_external >= 2 && m.external[0].sha256);
    dg_manifest_deinit(&m);
    same_logits(path("plain"), path("over"));
    for (int i = 0; i < 2; i++) {
        struct dg_repack_opts flat = {.pack = path(i ? "over2" : "over"), .out = path("flat"), .stream.threads = 1};
        if (dg_repack(&flat, &r, &err) != DG_OK)
            fail_msg("%s", dg_error_text(&err));
        dg_buf_deinit(&r.differ);
        assert_true(same_pack(path("plain"), path("flat")));
        mk_remove(path("flat"));
    }
}

static void not_repacked(const struct dg_repack_opts *o, enum dg_status want, const char *part) {
    struct dg_repack_result r;
    struct dg_error err = {0};
    enum dg_status st = dg_repack(o, &r, &err);
    if (st != want)
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(&err));
    expect_text(dg_error_text(&err), part);
    dg_buf_deinit(&r.differ);
    dg_error_clear(&err);
}

/* A base that is not what the pack was made from: the audit keeps what differs, a stale cache is named with its remedy. */
static void stale_bases(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_repack_result r;
    make_cache();
    struct dg_quantize_opts o = options(path("s_plain"), "q4", NULL);
    o.source = path("hf/hub/models--org--base/snapshots/rev1");
    quantize(&o);
    /* two tensors of another revision have other bytes, one another type */
    struct mk_ckpt c;
    mk_build(&c, &shape, "BF16", false, 1);
    mk_set(mk_get(&c, "model.decoder.norm.weight"), 3, 0.123f);
    mk_set(mk_get(&c, "model.decoder.layers.2.mlp.up_proj.weight"), 95, 9.0f);
    mk_mkdir(x.dir, "hf/hub/models--org--base/snapshots/rev2");
    mk_write(&c, path("hf/hub/models--org--base/snapshots/rev2"), 2);
    mk_free(&c);
    struct dg_repack_opts rp = {.pack = path("s_plain"), .out = path("s_over"), .overlay = true, .revision = "rev2", .stream.threads = 2};
    if (dg_repack(&rp, &r, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    assert_int_equal(r.n_differ, 2);
    expect_text(dg_buf_cstr(&r.differ), "model.decoder.norm.weight\n");
    expect_text(dg_buf_cstr(&r.differ), "model.decoder.layers.2.mlp.up_proj.weight\n");
    dg_buf_deinit(&r.differ);
    same_logits(path("s_plain"), path("s_over"));
    rp.out = path("s_none");
    rp.revision = "rev9";
    not_repacked(&rp, DG_E_ARG, "run: hf download org/base --revision rev9");
    rp = (struct dg_repack_opts){.pack = path("s_over"), .out = path("s_none"), .overlay = true};
    not_repacked(&rp, DG_E_ARG, "is layered already");
    rp = (struct dg_repack_opts){.pack = path("s_plain"), .out = path("s_none")};
    not_repacked(&rp, DG_E_ARG, "is self-contained already");
    rp = (struct dg_repack_opts){.pack = x.source, .out = path("s_none")};
    not_repacked(&rp, DG_E_ARG, "is no pack");

    /* same size, another header */
    const char *shard = path("hf/hub/models--org--base/snapshots/rev2/model-00001-of-00002.safetensors");
    size_t n;
    char *f = mk_slurp(shard, &n);
    char *at = memmem(f, n, "post_attention_layernorm", 24);
    assert_non_null(at);
    memcpy(at, "post_attention_layernorX", 24);
    const char *snapshot = path("hf/hub/models--org--base/snapshots/rev2");
    mk_put(snapshot, "model-00001-of-00002.safetensors", f, n);
    refused(path("s_over"), "its header is not that of the file the pack was made from; run: hf download org/base --revision rev2");
    memcpy(at, "post_attention_layernorm", 24);
    mk_put(snapshot, "model-00001-of-00002.safetensors", f, n - 1);
    refused(path("s_over"), "run: hf download org/base --revision rev2");
    mk_put(snapshot, "model-00001-of-00002.safetensors", f, n);
    free(f);
    dg_model_close(opened(path("s_over")));
    mk_remove(path("hf/hub/models--org--base/snapshots/rev2"));
    refused(path("s_over"), "org/base at revision rev2 is not in the Hugging Face cache; run: hf download org/base --revision rev2");
}

/* Field failure E11: one raw tensor of a pack moved to an odd place in another blob: results are the same. */
static void odd_addresses(void **state) {
    (void)state;
    make("odd", "q4", NULL);
    float *before = logits_of(path("odd"));
    struct dg_manifest m;
    struct dg_error err = {0};
    assert_int_equal(dg_manifest_load(&m, path("odd"), &err), DG_OK);
    size_t n;
    char *blob = mk_slurp(path("odd/model.dgq.bin"), &n);
    for (int shift = 1; shift < 8; shift += 3) {
        struct dg_buf b;
        dg_buf_init(&b, 1 << 24);
        for (int i = 0; i < shift; i++)
            dg_buf_chr(&b, 'x');
        struct dg_manifest_external ext = {.key = "other", .path = "../other.bin", .pack_bin = true};
        struct dg_manifest w = m;
        w.external = &ext;
        w.n_external = 1;
        struct dg_manifest_tensor *t = calloc(m.n_tensors, sizeof *t);
        memcpy(t, m.tensor, m.n_tensors * sizeof *t);
        w.tensor = t;
        w.has_split = false;
        for (size_t i = 0; i < m.n_tensors; i++) {
            t[i].source = DG_SOURCE_EXTERNAL;
            t[i].at = b.len;
            dg_buf_add(&b, blob + t[i].offset, t[i].bytes);
            if (t[i].bytes % 2 == 0 && i % 3 == 0)
                dg_buf_chr(&b, 'y');
        }
        ext.size = b.len;
        struct dg_buf text;
        dg_buf_init(&text, 1 << 20);
        assert_int_equal(dg_manifest_print(&w, &text), DG_OK);
        mk_put(path("odd"), "model.dgq.json", text.data, text.len);
        mk_put(x.dir, "other.bin", b.data, b.len);
        float *after = logits_of(path("odd"));
        assert_memory_equal(before, after, 16 * 160 * sizeof *after);
        free(after);
        free(t);
        dg_buf_deinit(&text);
        dg_buf_deinit(&b);
    }
    free(before);
    free(blob);
    dg_manifest_deinit(&m);
}

/* Rewrites the manifest of a pack after fn changed it. */
static void change_manifest(const char *dir, void (*fn)(struct dg_manifest *m)) {
    struct dg_manifest m;
    struct dg_error err = {0};
    struct dg_buf text;
    dg_buf_init(&text, 1 << 20);
    assert_int_equal(dg_manifest_load(&m, dir, &err), DG_OK);
    fn(&m);
    assert_int_equal(dg_manifest_print(&m, &text), DG_OK);
    mk_put(dir, "model.dgq.json", text.data, text.len);
    dg_buf_deinit(&text);
    dg_manifest_deinit(&m);
}

static void no_split(struct dg_manifest *m) {
    m->has_split = m->has_local_split = false;
    for (size_t i = 0; i < m->n_tensors; i++)
        m->tensor[i].hashed = false;
}
static void misplace(struct dg_manifest *m) { m->tensor[m->n_tensors - 1].offset += 32; }
static void to_v1(struct dg_manifest *m) {
    m->version = 1;
    m->profile = "q5";
}
static void say_nvfp4(struct dg_manifest *m) { m->profile = "nvfp4_experts"; }

static void older_packs(void **state) {
    (void)state;
    make_cache();
    make("o1", "q4", NULL);
    make("o2", "q4", NULL);
    struct dg_quantize_opts o = options(path("o3"), "q4", NULL);
    o.source = path("hf/hub/models--org--base/snapshots/rev1");
    o.overlay = true;
    quantize(&o);
    change_manifest(path("o2"), no_split);
    same_logits(path("o1"), path("o2"));
    change_manifest(path("o3"), no_split);
    same_logits(path("o1"), path("o3"));
    change_manifest(path("o2"), to_v1);
    same_logits(path("o1"), path("o2"));
    change_manifest(path("o2"), say_nvfp4); /* kinds decide, never the profile */
    same_logits(path("o1"), path("o2"));
    change_manifest(path("o2"), misplace);
    refused(path("o2"), "no multiple of 64");
}

/* The manifest of a pack as the original engine writes one: members in its order, one a line, null for what is absent, no checksums. splits:
 * with expert_split and local_expert_split, which its first versions did not have. */
static void as_original(const char *dir, const char *profile, int version, bool splits) {
    struct dg_manifest m;
    struct dg_error err = {0};
    struct dg_buf b;
    dg_buf_init(&b, 1 << 20);
    assert_int_equal(dg_manifest_load(&m, dir, &err), DG_OK);
    if (version < 4)
        m.n_classes = 0;
    dg_buf_fmt(&b, "{\n  \"version\": %d,\n  \"profile\": \"%s\",\n  \"source_model\": \"/home/u/model\",\n", version, profile);
    dg_buf_str(&b, "  \"blob_file\": \"model.dgq.bin\",\n  \"tensors\": [");
    for (size_t i = 0; i < m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &m.tensor[i];
        dg_buf_fmt(&b, "%s\n    {\n      \"name\": \"%s\",\n      \"kind\": \"%s\",\n", i ? "," : "", t->name, dg_manifest_kind(t));
        dg_buf_fmt(&b, "      \"dtype\": \"%s\",\n      \"shape\": [", t->raw ? t->dtype : "BF16");
        for (int k = 0; k < t->rank; k++)
            dg_buf_fmt(&b, "%s\n        %lld", k ? "," : "", (long long)t->shape[k]);
        dg_buf_fmt(&b, "\n      ],\n      \"offset\": %llu,\n      \"byte_len\": %llu", (unsigned long long)t->offset, (unsigned long long)t->bytes);
        if (t->source == DG_SOURCE_LOCAL)
            dg_buf_fmt(&b, ",\n      \"source\": {\n        \"kind\": \"local\",\n        \"local_offset\": %llu\n      }",
                       (unsigned long long)t->at);
        else if (t->source == DG_SOURCE_EXTERNAL)
            dg_buf_fmt(&b, ",\n      \"source\": {\n        \"kind\": \"external\",\n        \"file\": \"%s\",\n        \"offset\": %llu\n      }",
                       m.external[t->external].key, (unsigned long long)t->at);
        else if (splits)
            dg_buf_str(&b, ",\n      \"source\": null");
        dg_buf_str(&b, "\n    }");
    }
    dg_buf_str(&b, "\n  ]");
    if (splits && m.has_split)
        dg_buf_fmt(&b, ",\n  \"expert_split\": %llu", (unsigned long long)m.split);
    if (splits && m.has_local_split)
        dg_buf_fmt(&b, ",\n  \"local_expert_split\": %llu", (unsigned long long)m.local_split);
    if (splits && !m.has_local_split)
        dg_buf_str(&b, ",\n  \"local_expert_split\": null");
    if (m.repo)
        dg_buf_fmt(&b, ",\n  \"base_model\": {\n    \"repo\": \"%s\",\n    \"revision\": \"%s\"\n  }", m.repo, m.revision);
    else if (splits)
        dg_buf_str(&b, ",\n  \"base_model\": null,\n  \"external_files\": {}");
    for (int i = 0; i < m.n_external; i++)
        dg_buf_fmt(&b, "%s\n    \"%s\": {\n      \"role\": \"hf_safetensors\",\n      \"path\": \"%s\",\n      \"expected_size\": %llu,\n      "
                       "\"header_sha256\": \"%s\"\n    }",
                   i ? "," : ",\n  \"external_files\": {", m.external[i].key, m.external[i].path, (unsigned long long)m.external[i].size,
                   m.external[i].sha256);
    if (m.n_external)
        dg_buf_str(&b, "\n  }");
    for (int i = 0; i < m.n_classes; i++)
        dg_buf_fmt(&b, "%s\n    \"%s\": \"%s\"", i ? "," : ",\n  \"custom_classes\": {", m.classes[i].name, m.classes[i].format);
    if (m.n_classes)
        dg_buf_str(&b, "\n  }");
    else if (splits)
        dg_buf_str(&b, ",\n  \"custom_classes\": null");
    dg_buf_str(&b, "\n}");
    assert_int_equal(b.status, DG_OK);
    mk_put(dir, "model.dgq.json", b.data, b.len);
    dg_buf_deinit(&b);
    dg_manifest_deinit(&m);
}

/* Packs of the original engine, of every version and with and without the splits that came later: they open, and run as ours do. */
static void original_packs(void **state) {
    (void)state;
    static const struct {
        const char *profile, *rules, *spelled;
        int version;
        bool overlay;
    } cases[] = {{"q4", NULL, "q4", 1, false},
                 {"q6", NULL, "q6", 1, false},
                 {"q4", NULL, "q5", 1, false}, /* it had the name before it had a format */
                 {"nvfp4", NULL, "nvfp4", 2, false},
                 {"nvfp4x", NULL, "nvfp4_experts", 2, false},
                 {"q4", NULL, "q4", 3, true},
                 {"nvfp4", NULL, "nvfp4", 3, true},
                 {"q4", "attn=q8", "q4", 4, false},
                 {"q6", "dense=nvfp4", "q6", 4, true}};
    make_cache();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int splits = 0; splits < 2; splits++) {
            char ours[32], theirs[32];
            const char *names[] = {ours, theirs};
            snprintf(ours, sizeof ours, "ours%zu%d", i, splits);
            snprintf(theirs, sizeof theirs, "theirs%zu%d", i, splits);
            for (int k = 0; k < 2; k++) {
                char out[400];
                snprintf(out, sizeof out, "%s", path(names[k]));
                struct dg_quantize_opts o = options(out, cases[i].profile, cases[i].rules);
                o.source = path("hf/hub/models--org--base/snapshots/rev1");
                o.overlay = cases[i].overlay;
                quantize(&o);
            }
            as_original(path(theirs), cases[i].spelled, cases[i].version, splits);
            same_logits(path(ours), path(theirs));
        }
}

/* An embedding in q8_row against a checkpoint whose f32 embedding holds the decoded values: gather, head and soft embedding, bit for bit. */
static void q8_embedding(void **state) {
    (void)state;
    make("e8", "q4", "sc=raw");
    struct dg_manifest m;
    struct dg_error err = {0};
    size_t n;
    assert_int_equal(dg_manifest_load(&m, path("e8"), &err), DG_OK);
    char *blob = mk_slurp(path("e8/model.dgq.bin"), &n);
    const char *embed = "model.decoder.embed_tokens.weight";
    int64_t row_bytes = 2 + shape.hidden, bytes = shape.vocab * row_bytes;
    uint8_t *q8 = malloc((size_t)bytes);
    struct mk_ckpt c;
    mk_build(&c, &shape, "F32", false, 1);
    struct mk_tensor *e = mk_get(&c, embed);
    float ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    for (int v = 0; v < shape.vocab; v++) {
        float row[64], back[64];
        for (int i = 0; i < shape.hidden; i++)
            row[i] = mk_value(mk_get(&x.c, embed), (size_t)(v * shape.hidden + i));
        assert_true(dg_encode_row(DG_FMT_Q8_ROW, DG_CODES_FIT, row, ones, shape.hidden, 0, q8 + v * row_bytes));
        dg_format_traits(DG_FMT_Q8_ROW)->decode_row(q8, q8 + v * row_bytes, shape.hidden, back);
        for (int i = 0; i < shape.hidden; i++)
            mk_set(e, (size_t)(v * shape.hidden + i), back[i]);
    }
    /* all other weights as the pack decodes them */
    for (size_t i = 0; i < m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &m.tensor[i];
        struct mk_tensor *to = mk_get(&c, t->name);
        if (strcmp(t->name, embed) == 0)
            continue;
        int64_t k = t->rank ? t->shape[t->rank - 1] : 1, rows = t->rank > 1 ? t->shape[t->rank - 2] : 1, all = (int64_t)to->bytes / 4;
        for (int64_t at = 0; at < all; at++)
            mk_set(to, (size_t)at,
                   (float)page_value(dg_manifest_kind(t), t->dtype, (uint8_t *)blob + t->offset, rows, k, at / (rows * k), at / k % rows, at % k));
    }
    mk_mkdir(x.dir, "e32");
    mk_write(&c, path("e32"), 0);
    mk_free(&c);
    for (size_t i = 0; i < m.n_tensors; i++)
        if (strcmp(m.tensor[i].name, embed) == 0) {
            m.tensor[i].raw = false;
            m.tensor[i].kind = DG_FMT_Q8_ROW;
            m.tensor[i].bytes = (uint64_t)bytes;
            m.tensor[i].hashed = false;
            memcpy(blob + m.tensor[i].offset, q8, (size_t)bytes); /* shorter than before */
        }
    struct dg_buf text;
    dg_buf_init(&text, 1 << 20);
    assert_int_equal(dg_manifest_print(&m, &text), DG_OK);
    mk_put(path("e8"), "model.dgq.json", text.data, text.len);
    mk_put(path("e8"), "model.dgq.bin", blob, n);
    same_logits(path("e8"), path("e32"));
    dg_buf_deinit(&text);
    free(blob);
    free(q8);
    dg_manifest_deinit(&m);
}

/* The vision tower goes in on request and by its own class; tied copies never do. */
static void vision(void **state) {
    (void)state;
    struct mk_ckpt c;
    struct dg_manifest m;
    struct dg_error err = {0};
    static const char *const linear = "model.encoder.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight";
    static const char *const proj = "model.encoder.embed_vision.embedding_projection.weight";
    static const char *const table = "model.encoder.vision_tower.patch_embedder.position_embedding_table";
    mk_build(&c, &shape, "BF16", false, 1);
    mk_add(&c, linear, "BF16", 2, 2, (int64_t[]){64, 96});
    mk_add(&c, proj, "BF16", 2, 2, (int64_t[]){64, 32});
    mk_add(&c, table, "BF16", 2, 3, (int64_t[]){2, 10, 7});
    mk_add(&c, "lm_head.weight", "BF16", 2, 2, (int64_t[]){shape.vocab, shape.hidden});
    mk_add(&c, "model.encoder.language_model.norm.weight", "BF16", 2, 1, (int64_t[]){shape.hidden});
    mk_mkdir(x.dir, "vis");
    mk_write(&c, path("vis"), 2);
    for (int with = 0; with < 2; with++) {
        struct dg_quantize_opts o = options(path("visq"), "q4", with ? "vision=q6" : NULL);
        o.source = path("vis");
        o.vision = with;
        quantize(&o);
        assert_int_equal(dg_manifest_load(&m, path("visq"), &err), DG_OK);
        int found = 0;
        for (size_t i = 0; i < m.n_tensors; i++) {
            const struct dg_manifest_tensor *t = &m.tensor[i];
            found += strstr(t->name, "vision") != NULL;
            assert_null(strstr(t->name, "lm_head"));
            assert_null(strstr(t->name, "language_model.norm"));
            if (strcmp(t->name, linear) == 0 || strcmp(t->name, proj) == 0)
                assert_string_equal(dg_manifest_kind(t), "q6_block");
            if (strcmp(t->name, table) == 0)
                assert_string_equal(dg_manifest_kind(t), "raw");
        }
        assert_int_equal(found, with ? 3 : 0);
        assert_int_equal(m.n_classes, with);
        dg_manifest_deinit(&m);
        dg_model_close(opened(path("visq")));
        mk_remove(path("visq"));
    }
    mk_free(&c);
}

static size_t verify(const char *dir, const char *source, const char *part) {
    struct dg_verify v;
    struct dg_error err = {0};
    struct dg_stream_opts so = {.threads = 2};
    if (dg_verify_run(&v, dir, source, &so, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    size_t n = v.faults.n;
    if (part)
        expect_text(dg_buf_cstr(&v.faults.text), part);
    else if (n)
        fail_msg("%s", dg_buf_cstr(&v.faults.text));
    if (source && !part)
        for (size_t i = 0; i < v.m.n_tensors; i++) {
            assert_true(v.row[i].compared);
            assert_true(v.m.tensor[i].raw ? v.row[i].rel_rms == 0 && v.row[i].max_error == 0 : v.row[i].rel_rms > 0 && v.row[i].rel_rms < 0.1);
        }
    dg_verify_deinit(&v);
    return n;
}

/* Changes one byte of the blob: n bytes into the named tensor. */
static void poke(const char *dir, const char *name, uint64_t at, uint8_t value) {
    struct dg_manifest m;
    struct dg_error err = {0};
    char file[400];
    size_t n;
    assert_int_equal(dg_manifest_load(&m, dir, &err), DG_OK);
    snprintf(file, sizeof file, "%s/%s", dir, "model.dgq.bin");
    char *blob = mk_slurp(file, &n);
    for (size_t i = 0; i < m.n_tensors; i++)
        if (strcmp(m.tensor[i].name, name) == 0)
            blob[m.tensor[i].offset + at] = (char)value;
    mk_put(dir, "model.dgq.bin", blob, n);
    free(blob);
    dg_manifest_deinit(&m);
}

static void drop_hashes(struct dg_manifest *m) {
    for (size_t i = 0; i < m->n_tensors; i++)
        m->tensor[i].hashed = false;
}

static void verifying(void **state) {
    (void)state;
    make("v", "nvfp4", "sc=q4");
    assert_int_equal(verify(path("v"), x.source, NULL), 0);
    const char *down = "model.decoder.layers.1.experts.down_proj";
    poke(path("v"), down, 4, 0x5a);
    assert_int_equal(verify(path("v"), NULL, "layers.1.experts.down_proj: its bytes are not those"), 1);
    change_manifest(path("v"), drop_hashes);
    assert_int_equal(verify(path("v"), NULL, NULL), 0);
    poke(path("v"), down, 4 + 16, 0x7f); /* the first block's scale: codes of a row take 16 bytes */
    assert_int_equal(verify(path("v"), NULL, "layers.1.experts.down_proj: holds a scale that is not finite"), 1);
    poke(path("v"), down, 4 + 16, 0x30);
    poke(path("v"), down, 3, 0x7f);
    poke(path("v"), down, 2, 0x80);
    assert_int_equal(verify(path("v"), NULL, "holds a global scale that is not finite"), 1);
    poke(path("v"), down, 3, 0x3f);
    poke(path("v"), "model.decoder.self_conditioning.up_proj.weight", 1, 0xff);
    poke(path("v"), "model.decoder.self_conditioning.up_proj.weight", 0, 0x80);
    assert_int_equal(verify(path("v"), NULL, "self_conditioning.up_proj.weight: holds a scale that is not finite"), 1);
    size_t n;
    char *blob = mk_slurp(path("v/model.dgq.bin"), &n);
    mk_put(path("v"), "model.dgq.bin", blob, n - 1);
    assert_true(verify(path("v"), NULL, "is cut") >= 1);
    blob = realloc(blob, n + 7);
    memset(blob + n, 0, 7);
    mk_put(path("v"), "model.dgq.bin", blob, n + 7);
    assert_true(verify(path("v"), NULL, "7 bytes at the end of the blob belong to no tensor") >= 1);
    free(blob);
}

/* Whatever is drawn has the promised scale, the same for any thread count, and its rows keep few survivors. */
static void synthetic(void **state) {
    (void)state;
    struct dg_error err = {0};
    struct dg_synth_result r;
    struct mk_ckpt c;
    struct mk_shape s = shape;
    s.vocab = 2048;
    s.hidden = 256;
    mk_build(&c, &s, "BF16", true, 1);
    mk_put(x.dir, "shape.json", c.config, strlen(c.config));
    mk_free(&c);
    for (int i = 0; i < 2; i++) {
        struct dg_synth_opts o = {.shape = path("shape.json"), .out = path(i ? "sy2" : "sy1"), .seed = 5, .stream.threads = 1 + 2 * i};
        assert_int_equal(dg_policy_init(&o.policy, "q4", &err), DG_OK);
        if (dg_synth(&o, &r, &err) != DG_OK)
            fail_msg("%s", dg_error_text(&err));
    }
    assert_true(same_pack(path("sy1"), path("sy2")));
    assert_int_equal(verify(path("sy1"), NULL, NULL), 0);
    struct dg_synth_opts o = {.shape = path("shape.json"), .out = path("sy3"), .seed = 5, .checkpoint = true, .shards = 3, .layers = 2};
    assert_int_equal(dg_policy_init(&o.policy, "q4", &err), DG_OK);
    if (dg_synth(&o, &r, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    struct dg_model *m = opened(path("sy3"));
    assert_true(m->cfg.layers == 2 && m->cfg.layer[1].full && !m->cfg.layer[0].full && m->cfg.layer[1].hd == 32);
    struct dg_backend *be;
    struct dg_session *ses;
    int32_t canvas[16];
    for (int i = 0; i < 16; i++)
        canvas[i] = 100 * i + 7;
    if (dg_backend_open(&be, "ref", m, &(struct dg_backend_opts){.threads = 1}, &err) != DG_OK ||
        dg_session_create(&ses, be, &(struct dg_session_opts){.kv = DG_F32, .ring = 64}, &err) != DG_OK ||
        dg_session_extend(ses, canvas, 5, NULL, NULL, &err) != DG_OK || dg_session_step(ses, canvas, 16, DG_SC_SEED, 1.25f, &err) != DG_OK ||
        dg_session_step(ses, canvas, 16, DG_SC_SOFT, 1.25f, &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
    const float *z = ses->planes->logits.data;
    int survivors = 0;
    for (int i = 0; i < 16; i++) {
        const float *row = z + i * 2048;
        float most = row[0];
        for (int v = 1; v < 2048; v++)
            most = row[v] > most ? row[v] : most;
        for (int v = 0; v < 2048; v++)
            survivors += 1.25f * (row[v] - most) >= -10.0f;
    }
    print_message("# %.1f of 2048 ids survive in a row\n", survivors / 16.0);
    assert_true(survivors >= 16 && survivors <= 16 * 64);
    dg_session_destroy(ses);
    dg_backend_destroy(be);
    dg_model_close(m);
}

/* The n-th allocation fails, for every n: a clear error, nothing left over, no leak (the sanitizer build looks). */
static void no_memory(void **state) {
    (void)state;
    make("nm", "q4", NULL);
    enum dg_status st = DG_E_NOMEM;
    for (uint64_t n = 1; st != DG_OK; n += 1 + n / 10) {
        struct dg_model *m;
        struct dg_error err = {0};
        assert_true(n < 5000);
        dg_mem_fail_at(n);
        st = dg_model_open(&m, path("nm"), &err);
        dg_mem_fail_at(0);
        if (st != DG_OK && st != DG_E_NOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)n, dg_error_text(&err));
        dg_error_clear(&err);
        dg_model_close(m);
    }
    st = DG_E_NOMEM;
    for (uint64_t n = 1; st != DG_OK; n += 1 + n / 6) {
        struct dg_quantize_opts o = options(path("nm2"), "q4", NULL);
        struct dg_quantize_result r;
        struct dg_error err = {0};
        struct stat sb;
        o.stream.threads = 1;
        assert_true(n < 20000);
        dg_mem_fail_at(n);
        st = dg_quantize(&o, &r, &err);
        dg_mem_fail_at(0);
        if (st != DG_OK && st != DG_E_NOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)n, dg_error_text(&err));
        assert_true((stat(path("nm2"), &sb) == 0) == (st == DG_OK));
        assert_true(stat(path("nm2.part"), &sb) != 0);
        dg_error_clear(&err);
    }
    assert_true(same_pack(path("nm"), path("nm2")));
}

static int set_up(void **state) {
    (void)state;
    x.dir = mk_tmpdir();
    mk_build(&x.c, &shape, "BF16", false, 1);
    mk_mkdir(x.dir, "src");
    snprintf(x.source, sizeof x.source, "%s/src", x.dir);
    mk_write(&x.c, x.source, 3);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    mk_free(&x.c);
    mk_remove(x.dir);
    free(x.dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profiles),     cmocka_unit_test(same_bytes),    cmocka_unit_test(locked_and_illegal),
        cmocka_unit_test(nothing_stays_behind), cmocka_unit_test(overlays), cmocka_unit_test(stale_bases),
        cmocka_unit_test(odd_addresses), cmocka_unit_test(older_packs),  cmocka_unit_test(original_packs), cmocka_unit_test(q8_embedding),
        cmocka_unit_test(vision),
        cmocka_unit_test(verifying),    cmocka_unit_test(synthetic),     cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
