/* Safetensors reader and shard index: what is accepted, what is refused, and in which words. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/faults.h"
#include "core/mem.h"
#include "pack/checkpoint.h"
#include "pack/safetensors.h"
#include "support/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct dg_store *store;
    struct dg_error err;
    enum dg_status st;
    uint8_t *bytes;
};

/* Reads a file of the given header and n_data zero bytes. */
static void read_bytes(struct fixture *f, const char *header, size_t n_header, size_t n_data) {
    memset(f, 0, sizeof *f);
    f->bytes = calloc(8 + n_header + n_data + 1, 1);
    assert_non_null(f->bytes);
    for (int i = 0; i < 8; i++)
        f->bytes[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    memcpy(f->bytes + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        f->bytes[8 + n_header + i] = (uint8_t)i;
    int file;
    assert_int_equal(dg_store_open(&f->store, &f->err), DG_OK);
    assert_int_equal(dg_store_lend(f->store, "t.safetensors", f->bytes, 8 + n_header + n_data, &file, &f->err), DG_OK);
    f->st = dg_safetensors_add(f->store, file, &f->err);
    if (f->st == DG_OK)
        f->st = dg_store_sort(f->store, &f->err);
}

static void done(struct fixture *f) {
    dg_store_close(f->store);
    dg_error_clear(&f->err);
    free(f->bytes);
}

static void expect_text(const struct dg_error *err, const char *part) {
    const char *text = dg_error_text(err);
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
    if (strchr(text, '\n') || !*text)
        fail_msg("\"%s\" is not one line", text);
}

static void refused(const char *header, size_t n_data, const char *part) {
    struct fixture f;
    read_bytes(&f, header, strlen(header), n_data);
    if (f.st == DG_OK)
        fail_msg("accepted: %s", header);
    expect_text(&f.err, part);
    done(&f);
}

static void accepts_what_the_format_allows(void **state) {
    (void)state;
    struct fixture f;
    const char *h = "{\"__metadata__\":{\"a\":\"b\"}, \"w\":{\"shape\":[2,3],\"dtype\":\"BF16\",\"data_offsets\":[4,16]},"
                    "\"a\\u0062\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"extra\":{\"x\":[1]}},"
                    "\"z\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
                    "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]},"
                    "\"n\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[24,26]},"
                    "\"q\":{\"dtype\":\"Q9\",\"shape\":[4],\"data_offsets\":[26,31]}}   ";
    read_bytes(&f, h, strlen(h), 31);
    if (f.st != DG_OK)
        fail_msg("%s", dg_error_text(&f.err));
    assert_int_equal(dg_store_count(f.store), 6);
    struct dg_tensor *t = dg_store_find(f.store, "w", 1);
    assert_non_null(t);
    assert_int_equal(t->kind, DG_FMT_BF16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[0], 4);
    t = dg_store_find(f.store, "ab", 2); /* an escaped name is found by what it says */
    assert_non_null(t);
    assert_int_equal(t->kind, DG_FMT_F32);
    assert_int_equal(t->rank, 0);
    assert_int_equal(dg_store_find(f.store, "i", 1)->kind, DG_FMT_COUNT);
    assert_int_equal(dg_store_find(f.store, "q", 1)->kind, DG_FMT_COUNT);
    assert_null(dg_store_find(f.store, "v", 1));
    assert_null(dg_store_find(f.store, "w2", 2));
    done(&f);
    read_bytes(&f, "{}", 2, 0);
    assert_int_equal(f.st, DG_OK);
    assert_int_equal(dg_store_count(f.store), 0);
    done(&f);
}

#define ENTRY(dtype, shape, offsets) "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void refuses_bad_entries(void **state) {
    (void)state;
    refused(ENTRY("\"BF16\"", "[2]", "[0,8]"), 8, "make 4 bytes, its offsets say 8");
    refused(ENTRY("\"BF16\"", "[4]", "[0,8]"), 7, "ends at byte 8 of a data section of 7");
    refused(ENTRY("\"BF16\"", "[4]", "[8,0]"), 8, "before it begins");
    refused(ENTRY("\"BF16\"", "[4]", "[-8,0]"), 8, "data_offsets must be two whole numbers");
    refused(ENTRY("\"BF16\"", "[4]", "[0,18446744073709551615]"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4]", "[0,9223372036854775807]"), 8, "ends at byte 9223372036854775807");
    refused(ENTRY("\"BF16\"", "[4]", "[0]"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4]", "[0,8,8]"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4]", "[0,8.0]"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4]", "null"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4]", "[[0],8]"), 8, "data_offsets");
    refused(ENTRY("\"BF16\"", "[4294967296,4294967296]", "[0,0]"), 8, "too many elements");
    refused(ENTRY("\"BF16\"", "[9223372036854775807]", "[0,8]"), 8, "too many elements");
    refused(ENTRY("\"BF16\"", "[-4]", "[0,8]"), 8, "shape must be");
    refused(ENTRY("\"BF16\"", "[1,1,1,1,1,1,1,1,4]", "[0,8]"), 8, "shape must be");
    refused(ENTRY("\"BF16\"", "4", "[0,8]"), 8, "shape must be");
    refused(ENTRY("\"F4\"", "[3]", "[0,2]"), 2, "F4 make 2 bytes");
    refused(ENTRY("7", "[4]", "[0,8]"), 8, "needs one dtype");
    refused("{\"w\":{\"shape\":[4],\"data_offsets\":[0,8]}}", 8, "needs one dtype");
    refused("{\"w\":{\"dtype\":\"BF16\",\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8, "needs one dtype");
    refused("{\"w\":{\"dtype\":\"BF16\",\"shape\":[4],\"shape\":[4],\"data_offsets\":[0,8]}}", 8, "shape must be one list");
    refused("{\"w\":7}", 0, "not described by an object");
    refused("{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "no name");
    refused("{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "lone surrogate");
    refused("{\"\\n\\u0007\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "??: shape and U8 make 2 bytes");
}

static void refuses_bad_layout(void **state) {
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
            "offsets\":[3,7]}}",
            7, "b overlaps a");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
            "offsets\":[0,4]}}",
            4, "overlaps");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
            "offsets\":[5,9]}}",
            9, "1 bytes before b belong to no tensor");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 6, "2 bytes at the end");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
            "offsets\":[1,2]}}",
            2, "two tensors are named a");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
            "offsets\":[1,2]}}",
            2, "two tensors are named a");
    refused("[]", 0, "must be an object");
    refused("", 0, "unexpected end");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},}", 1, "damaged header");
    refused("{} x", 0, "data after the document");
}

static void names_every_fault(void **state) {
    (void)state;
    struct fixture f;
    const char *h = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,9]},\"b\":{\"dtype\":\"U8\",\"shape\":[-1],"
                    "\"data_offsets\":[0,1]},"
                    "\"c\":{\"shape\":[1],\"data_offsets\":[0,1]}}";
    read_bytes(&f, h, strlen(h), 1);
    assert_int_equal(f.st, DG_E_FORMAT);
    expect_text(&f.err, "t.safetensors: 4 faults: ");
    expect_text(&f.err, "a: ends at byte 9");
    expect_text(&f.err, "a: shape and U8 make 1 bytes");
    expect_text(&f.err, "b: shape must be");
    expect_text(&f.err, "c: needs one dtype");
    done(&f);
}

static void refuses_other_files(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *part;
    } cases[] = {
        {"", 0, "too few"},
        {"1234567", 7, "too few"},
        {"version https://git-lfs.github.com/spec/v1\noid", 46, "Git LFS pointer"},
        {"GGUF\3\0\0\0\0\0\0\0", 12, "GGUF"},
        {"PK\3\4........", 12, "zip"},
        {"<!DOCTYPE html>", 15, "web page"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551615"},
        {"\0\0\0\0\0\0\0\x80{}", 10, "9223372036854775808"},
        {"\3\0\0\0\0\0\0\0{}", 10, "the file is cut"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dg_store *s;
        struct dg_error err = {0};
        int file;
        assert_int_equal(dg_store_open(&s, &err), DG_OK);
        assert_int_equal(dg_store_lend(s, "x", cases[i].bytes, cases[i].n, &file, &err), DG_OK);
        assert_int_equal(dg_safetensors_add(s, file, &err), DG_E_FORMAT);
        expect_text(&err, cases[i].part);
        dg_store_close(s);
        dg_error_clear(&err);
    }
}

static void a_long_name_is_cut_in_messages(void **state) {
    (void)state;
    char h[2000], name[601];
    memset(name, 'x', 600);
    name[600] = 0;
    snprintf(h, sizeof h, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
    struct fixture f;
    read_bytes(&f, h, strlen(h), 1);
    assert_int_equal(f.st, DG_E_FORMAT);
    expect_text(&f.err, "xxx...: a name of more than 512 bytes");
    assert_true(strlen(dg_error_text(&f.err)) < 300);
    done(&f);
}

/* Clip and the fault list, whose texts the messages above are made of. */
static void faults_are_bounded(void **state) {
    (void)state;
    struct dg_faults f;
    struct dg_error err = {0};
    dg_faults_init(&f);
    assert_int_equal(dg_faults_result(&f, "x", &err), DG_OK);
    dg_faults_add(&f, DG_E_UNSUPPORTED, "one");
    assert_int_equal(dg_faults_result(&f, "x", &err), DG_E_UNSUPPORTED);
    assert_string_equal(dg_error_text(&err), "x: one");
    dg_faults_add(&f, DG_E_FORMAT, "two");
    assert_int_equal(dg_faults_result(&f, "x", &err), DG_E_FORMAT);
    assert_string_equal(dg_error_text(&err), "x: 2 faults: one; two");
    for (int i = 0; i < 200000; i++)
        dg_faults_add(&f, DG_E_FORMAT, "0123456789");
    assert_int_equal(f.n, 200002);
    dg_faults_result(&f, "x", &err);
    assert_true(strlen(dg_error_text(&err)) < DG_FAULTS_TEXT_MAX + 200);
    expect_text(&err, " more");
    dg_faults_deinit(&f);
    dg_error_clear(&err);
    assert_string_equal(dg_clip("a\n\x7f\xc3\xa9"
                                "b",
                                6)
                            .s,
                        "a????b");
}

/* ---- shards ---- */

struct sharded {
    char *dir;
    struct mk_ckpt c;
    char index[4096];
};

static void set_up(struct sharded *s) {
    s->dir = mk_tmpdir();
    mk_build(&s->c, &mk_tiny, "BF16", false, 7);
    mk_write(&s->c, s->dir, 3);
    snprintf(s->index, sizeof s->index, "%s/model.safetensors.index.json", s->dir);
}

static void tear_down(struct sharded *s) {
    mk_remove(s->dir);
    free(s->dir);
    mk_free(&s->c);
}

static void open_sharded(struct sharded *s, enum dg_status want, const char *part) {
    struct dg_store *store;
    struct dg_error err = {0};
    struct dg_buf warnings;
    dg_buf_init(&warnings, 4096);
    assert_int_equal(dg_store_open(&store, &err), DG_OK);
    enum dg_status st = dg_checkpoint_add(store, s->dir, &warnings, &err);
    if (st != want)
        fail_msg("%s: %s", dg_status_name(st), dg_error_text(&err));
    if (want == DG_OK) {
        assert_int_equal(dg_store_count(store), s->c.n);
        for (int i = 0; i < s->c.n; i++) {
            const struct dg_tensor *t = dg_store_find(store, s->c.t[i].name, strlen(s->c.t[i].name));
            assert_non_null(t);
            assert_int_equal(t->bytes, s->c.t[i].bytes);
            assert_memory_equal(t->data, s->c.t[i].data, t->bytes);
        }
        if (!strstr(dg_buf_cstr(&warnings), part) || (!*part && warnings.len))
            fail_msg("warnings: %s", dg_buf_cstr(&warnings));
    } else
        expect_text(&err, part);
    dg_buf_deinit(&warnings);
    dg_store_close(store);
    dg_error_clear(&err);
}

static void edit_index(struct sharded *s, const char *old, const char *new) {
    size_t n;
    char *text = mk_edit(mk_slurp(s->index, &n), old, new);
    mk_put(s->dir, "model.safetensors.index.json", text, strlen(text));
    free(text);
}

static void opens_shards(void **state) {
    (void)state;
    struct sharded s;
    set_up(&s);
    open_sharded(&s, DG_OK, "");
    edit_index(&s, "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\", ", "");
    open_sharded(&s, DG_OK, "1 tensor is in the shards but not in model.safetensors.index.json, first model.decoder.norm.weight");
    tear_down(&s);
}

static void names_missing_shards(void **state) {
    (void)state;
    struct sharded s;
    char path[4096];
    set_up(&s);
    for (int i = 1; i <= 2; i++) {
        snprintf(path, sizeof path, "%s/model-%05d-of-00003.safetensors", s.dir, i);
        assert_int_equal(unlink(path), 0);
    }
    open_sharded(&s, DG_E_IO,
                 "shard model-00001-of-00003.safetensors is missing; shard model-00002-of-00003.safetensors is missing");
    assert_int_equal(unlink(s.index), 0);
    open_sharded(&s, DG_E_IO, "it holds safetensors files, so the download is incomplete");
    tear_down(&s);
}

static void refuses_index_faults(void **state) {
    (void)state;
    static const struct {
        const char *old, *new, *part;
        enum dg_status st;
    } cases[] = {
        {"\"model.decoder.norm.weight\": \"model-00001", "\"model.decoder.norm.weight\": \"model-00002",
         "but model.safetensors.index.json puts it in", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001", "\"model.decoder.norn.weight\": \"model-00001",
         "model.decoder.norn.weight is not in model-00001", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\", \"model.decoder.norm.weight\": "
         "\"model-00001-of-00003.safetensors\"",
         "lists model.decoder.norm.weight twice", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001", "\"model.decoder.norm.weight\": \"../model-00001",
         "not a plain file name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001", "\"model.decoder.norm.weight\": \"/tmp/model-00001",
         "not a plain file name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"", "\"model.decoder.norm.weight\": \"..\"",
         "not a plain file name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \"\\u002e\\u002e\\u002fx\"", "not a plain file name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"", "\"model.decoder.norm.weight\": \"x\\u0000y\"",
         "not a plain file name", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"", "\"model.decoder.norm.weight\": 7",
         "must name a shard", DG_E_FORMAT},
        {"\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"", "\"model.decoder.norm.weight\": \"config.json\"",
         "config.json", DG_E_FORMAT},
        {"weight_map", "weight_mop", "needs one weight_map", DG_E_FORMAT},
        {"\"weight_map\": {", "\"weight_map\": [{", "weight_map must be an object", DG_E_FORMAT},
        {"{\"metadata\"", "[{\"metadata\"", "index must be an object", DG_E_FORMAT},
        {"\"weight_map\": {", "\"weight_map\": {\"a\" 1", "damaged at byte", DG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sharded s;
        set_up(&s);
        edit_index(&s, cases[i].old, cases[i].new);
        open_sharded(&s, cases[i].st, cases[i].part);
        tear_down(&s);
    }
}

static void the_remedy_knows_the_cache(void **state) {
    (void)state;
    char text[256];
    dg_checkpoint_remedy("/home/u/.cache/huggingface/hub/models--google--diffusiongemma-26B-A4B-it/snapshots/abc", text,
                         sizeof text);
    assert_string_equal(text, "run: diffgemma download google/diffusiongemma-26B-A4B-it");
    dg_checkpoint_remedy("/models--x/models--a--b", text, sizeof text);
    assert_string_equal(text, "run: diffgemma download a/b");
    dg_checkpoint_remedy("/srv/model", text, sizeof text);
    assert_string_equal(text, "download it again");
    dg_checkpoint_remedy("/srv/models--x/y--z", text, sizeof text);
    assert_string_equal(text, "download it again");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_what_the_format_allows),
        cmocka_unit_test(refuses_bad_entries),
        cmocka_unit_test(refuses_bad_layout),
        cmocka_unit_test(names_every_fault),
        cmocka_unit_test(refuses_other_files),
        cmocka_unit_test(a_long_name_is_cut_in_messages),
        cmocka_unit_test(faults_are_bounded),
        cmocka_unit_test(opens_shards),
        cmocka_unit_test(names_missing_shards),
        cmocka_unit_test(refuses_index_faults),
        cmocka_unit_test(the_remedy_knows_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
