/* The manifest: what older and newer writers put there is read, every fault is named, memory stays bounded, and printing is the inverse. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/mem.h"
#include "pack/manifest.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the first writer of this format printed it, without any later member. */
#define OLD                                                                                                                              \
    "{\n  \"version\": 1,\n  \"profile\": \"q4\",\n  \"source_model\": \"model/transformer\",\n  \"blob_file\": \"model.dgq.bin\",\n"       \
    "  \"tensors\": [\n    {\n      \"name\": \"model.decoder.norm.weight\",\n      \"kind\": \"raw\",\n      \"dtype\": \"BF16\",\n"       \
    "      \"shape\": [\n        96\n      ],\n      \"offset\": 0,\n      \"byte_len\": 192\n    },\n"                                   \
    "    {\n      \"name\": \"model.decoder.layers.0.experts.down_proj\",\n      \"kind\": \"q4_block\",\n      \"dtype\": \"BF16\",\n"       \
    "      \"shape\": [2, 3, 64],\n      \"offset\": 192,\n      \"byte_len\": 240\n    }\n  ]\n}"

static void expect_text(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static void parsed(struct dg_manifest *m, const char *text) {
    struct dg_error err = {0};
    if (dg_manifest_parse(m, text, strlen(text), &err) != DG_OK)
        fail_msg("%s", dg_error_text(&err));
}

static void refused(const char *text, enum dg_status want, const char *part) {
    struct dg_manifest m;
    struct dg_error err = {0};
    enum dg_status st = dg_manifest_parse(&m, text, strlen(text), &err);
    if (st != want)
        fail_msg("%s instead of %s: %s", dg_status_name(st), dg_status_name(want), dg_error_text(&err));
    expect_text(dg_error_text(&err), part);
    assert_null(strchr(dg_error_text(&err), '\n'));
    assert_null(m.tensor);
    assert_null(m.text);
    dg_error_clear(&err);
}

/* OLD with one piece of text replaced. */
static void edited(const char *old, const char *new, enum dg_status want, const char *part) {
    char *s = mk_edit(strdup(OLD), old, new);
    if (want == DG_OK) {
        struct dg_manifest m;
        parsed(&m, s);
        dg_manifest_deinit(&m);
    } else
        refused(s, want, part);
    free(s);
}

static void old_manifest(void **state) {
    (void)state;
    struct dg_manifest m;
    parsed(&m, OLD);
    assert_int_equal(m.version, 1);
    assert_string_equal(m.profile, "q4");
    assert_string_equal(m.source_model, "model/transformer");
    assert_string_equal(m.blob_file, "model.dgq.bin");
    assert_false(m.has_split || m.has_local_split || m.repo || m.n_external || m.n_classes);
    assert_int_equal(m.n_tensors, 2);
    assert_true(m.tensor[0].raw && m.tensor[0].kind == DG_FMT_BF16 && m.tensor[0].bytes == 192);
    const struct dg_manifest_tensor *t = &m.tensor[1];
    assert_string_equal(t->name, "model.decoder.layers.0.experts.down_proj");
    assert_true(!t->raw && t->kind == DG_FMT_Q4_BLOCK && t->rank == 3 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[2] == 64);
    assert_true(t->offset == 192 && t->bytes == 240 && t->source == DG_SOURCE_BLOB && !t->hashed);
    assert_int_equal(dg_manifest_total(&m), 432);
    assert_false(dg_manifest_layered(&m));
    dg_manifest_deinit(&m);
}

static void every_version(void **state) {
    (void)state;
    for (int v = 0; v < 7; v++) {
        char now[32];
        snprintf(now, sizeof now, "\"version\": %d", v);
        edited("\"version\": 1", now, v >= 1 && v <= 4 ? DG_OK : DG_E_UNSUPPORTED, "use a newer diffgemma");
    }
    static const char *const profiles[] = {"q5", "q6", "nvfp4", "nvfp4x", "nvfp4_experts", "something later"};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        char now[64];
        snprintf(now, sizeof now, "\"profile\": \"%s\"", profiles[i]);
        edited("\"profile\": \"q4\"", now, DG_OK, NULL);
    }
    edited("\"version\": 1", "\"version\": 1, \"a_later_member\": {\"x\": [1, {}]}", DG_OK, NULL);
    edited("\"kind\": \"raw\"", "\"kind\": \"raw\", \"note\": null", DG_OK, NULL);
    edited("\"shape\": [\n        96\n      ]", "\"expert_split\": 3, \"shape\": [96]", DG_OK, NULL);
}

static void every_fault(void **state) {
    (void)state;
    static const struct {
        const char *old, *new, *part;
        enum dg_status st;
    } c[] = {
        {"\"offset\": 192", "\"offset\": 193", "experts.down_proj: offset 193 is no multiple of 64", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": 224", "offset 224 is no multiple of 64", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": 128", "experts.down_proj overlaps model.decoder.norm.weight", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": 9223372036854775744", "beyond any file", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": -64", "offset must be a whole number", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": 192.0", "offset must be a whole number", DG_E_FORMAT},
        {"\"offset\": 192", "\"offset\": 18446744073709551616", "offset must be a whole number", DG_E_FORMAT},
        {"\"offset\": 192,", "", "offset is missing", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 241", "make 240 bytes, byte_len says 241", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"byte_len\": 240", "byte_len is given twice", DG_E_FORMAT},
        {"[2, 3, 64]", "[2, 3, 63]", "a multiple of 32", DG_E_FORMAT},
        {"[2, 3, 64]", "[384]", "does not suit q4_block", DG_E_FORMAT},
        {"[2, 3, 64]", "[]", "does not suit q4_block", DG_E_FORMAT},
        {"[2, 3, 64]", "[2, 0, 64]", "has no elements", DG_E_FORMAT},
        {"[2, 3, 64]", "[4294967296, 4294967296, 64]", "too many elements", DG_E_FORMAT},
        {"[2, 3, 64]", "[9223372036854775807, 1, 32]", "too many", DG_E_FORMAT},
        {"[2, 3, 64]", "[1,1,1,1,1,1,2,3,64]", "at most 8 whole numbers", DG_E_FORMAT},
        {"[2, 3, 64]", "[2, [3], 64]", "at most 8 whole numbers", DG_E_FORMAT},
        {"[2, 3, 64]", "\"2,3,64\"", "at most 8 whole numbers", DG_E_FORMAT},
        {"\"q4_block\"", "\"q5_block\"", "kind q5_block is none that this engine knows", DG_E_UNSUPPORTED},
        {"\"q4_block\"", "\"bf16\"", "kind bf16 is none", DG_E_UNSUPPORTED},
        {"\"q4_block\"", "4", "kind must be text", DG_E_FORMAT},
        {"\"raw\",\n      \"dtype\": \"BF16\"", "\"raw\",\n      \"dtype\": \"Q9\"", "needs the dtype", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\"", "\"model.decoder.layers.0.experts.down_proj\"", "is listed twice", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\"", "\"\"", "has no name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\"", "\"a\\u0000b\"", "holds a character that no name may have", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\"", "\"\\ud800\"", "holds a character that no name may have", DG_E_FORMAT},
        {"\"model.dgq.bin\"", "\"../model.dgq.bin\"", "not a plain file name", DG_E_FORMAT},
        {"\"model.dgq.bin\"", "\"/etc/passwd\"", "not a plain file name", DG_E_FORMAT},
        {"\"model.dgq.bin\"", "\"\"", "not a plain file name", DG_E_FORMAT},
        {"\"blob_file\": \"model.dgq.bin\",", "", "blob_file is missing", DG_E_FORMAT},
        {"\"version\": 1", "\"version\": \"1\"", "version must be a whole number", DG_E_FORMAT},
        {"\"version\": 1,", "", "version is missing", DG_E_FORMAT},
        {"\"version\": 1", "\"expert_split\": 100, \"version\": 1", "expert_split 100 is no multiple of 64", DG_E_FORMAT},
        {"\"version\": 1", "\"external_files\": [], \"version\": 1", "external_files must be an object", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"source\": {\"kind\": \"local\"}", "its source needs local_offset", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"source\": {\"kind\": \"cloud\", \"offset\": 0}", "kind cloud", DG_E_UNSUPPORTED},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"source\": {\"kind\": \"external\", \"file\": \"a\", \"offset\": 0}",
         "external_files has no a", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"source\": {\"kind\": \"local\", \"local_offset\": 9223372036854775807}", "beyond any file",
         DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"source\": 7", "source must be an object", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"xxh3\": \"12\"", "16 lower-case hexadecimal digits", DG_E_FORMAT},
        {"\"byte_len\": 240", "\"byte_len\": 240, \"xxh3\": 12", "xxh3 must be text", DG_E_FORMAT},
        {"  ]\n}", "  ]\n", "damaged at byte", DG_E_FORMAT},
        {"  ]\n}", "  ]\n} x", "damaged at byte", DG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        edited(c[i].old, c[i].new, c[i].st, c[i].part);
    refused("", DG_E_FORMAT, "damaged at byte 0");
    refused("[]", DG_E_FORMAT, "must be an object");
    refused("{\"version\": 1, \"profile\": \"q4\", \"blob_file\": \"b\", \"tensors\": []}", DG_E_FORMAT, "tensors is empty");
    refused("{\"version\": 1, \"profile\": \"q4\", \"blob_file\": \"b\", \"tensors\": {}}", DG_E_FORMAT, "must be a list");
    refused("{\"version\": 1, \"profile\": \"q4\", \"blob_file\": \"b\", \"tensors\": [1]}", DG_E_FORMAT, "must hold objects");
}

#define LAYERED                                                                                                                          \
    "{\"version\": 3, \"profile\": \"q4\", \"source_model\": \"x\", \"blob_file\": \"model.dgq.bin\", \"expert_split\": 16384,"              \
    " \"local_expert_split\": 0, \"tensors\": ["                                                                                          \
    "{\"name\": \"n\", \"kind\": \"raw\", \"dtype\": \"BF16\", \"shape\": [4], \"offset\": 0, \"byte_len\": 8,"                              \
    " \"source\": {\"kind\": \"external\", \"file\": \"K\", \"offset\": 77}},"                                                            \
    "{\"name\": \"e\", \"kind\": \"q4_block\", \"dtype\": \"BF16\", \"shape\": [1, 64], \"offset\": 16384, \"byte_len\": 40,"                \
    " \"source\": {\"kind\": \"local\", \"local_offset\": 0}}],"                                                                          \
    " \"base_model\": {\"repo\": \"org/name\", \"revision\": \"abc\"}, \"external_files\": {\"K\": {\"role\": \"hf_safetensors\","            \
    " \"path\": \"model-1.safetensors\", \"expected_size\": 1000, \"header_sha256\":"                                                     \
    " \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}"

static void layered(void **state) {
    (void)state;
    struct dg_manifest m;
    parsed(&m, LAYERED); /* the tensors come before the files they name */
    assert_true(dg_manifest_layered(&m));
    assert_true(m.has_split && m.split == 16384 && m.has_local_split && m.local_split == 0);
    assert_string_equal(m.repo, "org/name");
    assert_string_equal(m.revision, "abc");
    assert_int_equal(m.n_external, 1);
    assert_string_equal(m.external[0].path, "model-1.safetensors");
    assert_true(m.tensor[0].source == DG_SOURCE_EXTERNAL && m.tensor[0].external == 0 && m.tensor[0].at == 77);
    assert_true(m.tensor[1].source == DG_SOURCE_LOCAL && m.tensor[1].at == 0);
    dg_manifest_deinit(&m);
    static const struct {
        const char *old, *new, *part;
        enum dg_status st;
    } c[] = {
        {"\"local_offset\": 0", "\"local_offset\": 64", "local_offset and local_expert_split disagree", DG_E_FORMAT},
        {"\"path\": \"model-1.safetensors\"", "\"path\": \"../../x\"", "is not a plain file name", DG_E_FORMAT},
        {"\"path\": \"model-1.safetensors\"", "\"path\": \"\"", "path is empty", DG_E_FORMAT},
        {"\"role\": \"hf_safetensors\"", "\"role\": \"torrent\"", "role torrent is none", DG_E_UNSUPPORTED},
        {"\"expected_size\": 1000,", "", "K: expected_size is missing", DG_E_FORMAT},
        {"\"0123456789abcdef", "\"0123456789ABCDEF", "64 lower-case hexadecimal digits", DG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char *s = mk_edit(strdup(LAYERED), c[i].old, c[i].new);
        refused(s, c[i].st, c[i].part);
        free(s);
    }
    char *s = mk_edit(strdup(LAYERED), "\"local_expert_split\": 0,", ""); /* the oldest layered packs */
    parsed(&m, s);
    assert_false(m.has_local_split);
    dg_manifest_deinit(&m);
    free(s);
}

/* What is printed reads back to the same text, escapes included. */
static void prints_what_it_reads(void **state) {
    (void)state;
    char *odd = mk_edit(strdup(OLD), "model/transformer", "a \\\"q\\\" \\\\ \\u0001 \\u00e9");
    char *more = mk_edit(strdup(LAYERED), "\"version\": 3,", "\"version\": 4, \"custom_classes\": {\"attn\": \"q8_row\"},");
    const char *texts[] = {OLD, LAYERED, odd, more};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dg_manifest m, n;
        struct dg_buf a, b;
        dg_buf_init(&a, 1 << 20);
        dg_buf_init(&b, 1 << 20);
        parsed(&m, texts[i]);
        m.tensor[0].hashed = true;
        m.tensor[0].xxh3 = 0x00ff00ff12345678u;
        assert_int_equal(dg_manifest_print(&m, &a), DG_OK);
        parsed(&n, dg_buf_cstr(&a));
        assert_true(n.tensor[0].hashed && n.tensor[0].xxh3 == 0x00ff00ff12345678u);
        assert_string_equal(n.source_model, m.source_model);
        assert_int_equal(n.n_classes, m.n_classes);
        assert_int_equal(dg_manifest_print(&n, &b), DG_OK);
        assert_string_equal(a.data, b.data);
        dg_manifest_deinit(&m);
        dg_manifest_deinit(&n);
        dg_buf_deinit(&a);
        dg_buf_deinit(&b);
    }
    free(odd);
    free(more);
}

static void versions_written(void **state) {
    (void)state;
    struct dg_manifest m;
    parsed(&m, OLD);
    assert_int_equal(dg_manifest_version(&m), 1);
    m.tensor[1].kind = DG_FMT_NVFP4_BLOCK;
    assert_int_equal(dg_manifest_version(&m), 2);
    m.tensor[0].source = DG_SOURCE_EXTERNAL;
    assert_int_equal(dg_manifest_version(&m), 3);
    m.n_classes = 1;
    assert_int_equal(dg_manifest_version(&m), 4);
    dg_manifest_deinit(&m);
}

/* Too many tensors, externals or characters end with a limit; none of it takes much memory. */
static void hostile_sizes(void **state) {
    (void)state;
    struct dg_buf b;
    dg_buf_init(&b, 64 << 20);
    dg_buf_str(&b, "{\"version\": 1, \"profile\": \"q4\", \"blob_file\": \"b\", \"tensors\": [");
    for (int i = 0; i < 40000; i++)
        dg_buf_fmt(&b, "%s{\"name\":\"t%d\",\"kind\":\"raw\",\"dtype\":\"BF16\",\"shape\":[],\"offset\":%d,\"byte_len\":2}", i ? "," : "", i, 64 * i);
    dg_buf_str(&b, "]}");
    refused(b.data, DG_E_LIMIT, "more than 32768 tensors");
    dg_buf_clear(&b);
    dg_buf_str(&b, "{\"version\": 3, \"profile\": \"q4\", \"blob_file\": \"b\", \"external_files\": {");
    for (int i = 0; i < 1100; i++)
        dg_buf_fmt(&b, "%s\"%d\": {\"role\": \"pack_bin\", \"path\": \"x\", \"expected_size\": 1}", i ? "," : "", i);
    dg_buf_str(&b, "}, \"tensors\": []}");
    refused(b.data, DG_E_LIMIT, "more than 1000 external files");
    dg_buf_clear(&b);
    dg_buf_str(&b, "{\"version\": 3, \"profile\": \"q4\", \"blob_file\": \"b\", \"custom_classes\": {");
    for (int i = 0; i < 100000; i++)
        dg_buf_fmt(&b, "%s\"%d\": \"q8_row\"", i ? "," : "", i);
    dg_buf_str(&b, "}, \"tensors\": []}");
    refused(b.data, DG_E_FORMAT, "is empty");
    dg_buf_deinit(&b);
}

/* The n-th allocation fails: an error and no leak (the sanitizer build looks), for every n. */
static void no_memory(void **state) {
    (void)state;
    static const char *const texts[] = {OLD, LAYERED};
    for (int i = 0; i < 2; i++) {
        enum dg_status st = DG_E_NOMEM;
        for (uint64_t n = 1; st == DG_E_NOMEM; n++) {
            struct dg_manifest m;
            struct dg_error err = {0};
            assert_true(n < 50);
            dg_mem_fail_at(n);
            st = dg_manifest_parse(&m, texts[i], strlen(texts[i]), &err);
            dg_mem_fail_at(0);
            dg_error_clear(&err);
            if (st == DG_OK)
                dg_manifest_deinit(&m);
        }
        assert_int_equal(st, DG_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_manifest), cmocka_unit_test(every_version),        cmocka_unit_test(every_fault),
        cmocka_unit_test(layered),      cmocka_unit_test(prints_what_it_reads), cmocka_unit_test(versions_written),
        cmocka_unit_test(hostile_sizes), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
