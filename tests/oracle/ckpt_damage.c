/* Damaged checkpoints: each must end with one clear line or with a right answer (support/attempt.h). Prints TAP, then the worst
 * figures. The variants are the same in every run. */
#include "support/attempt.h"
#include "support/mkckpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    char *dir;
    struct mk_ckpt c;   /* the undamaged model */
    uint8_t *file;      /* its one file */
    size_t n, n_header; /* bytes of the file, of its JSON header */
    struct attempts log;
} x;

/* Opens the folder as it lies there. */
static void attempt(const char *name, enum expect want, const char *part) { attempt_model(&x.log, x.dir, name, want, part); }

/* ---- damage to the weights' file ---- */

static void put_file(const uint8_t *data, size_t n) { mk_put(x.dir, "model.safetensors", data, n); }

static void restore(void) { put_file(x.file, x.n); }

/* A file with another header text over the same data. */
static void put_header(const char *text, size_t n) {
    size_t n_data = x.n - 8 - x.n_header;
    uint8_t *f = malloc(8 + n + n_data);
    if (!f)
        abort();
    for (int i = 0; i < 8; i++)
        f[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(f + 8, text, n);
    memcpy(f + 8 + n, x.file + 8 + x.n_header, n_data);
    put_file(f, 8 + n + n_data);
    free(f);
}

static char *header(void) {
    char *s = malloc(x.n_header + 1);
    if (!s)
        abort();
    memcpy(s, x.file + 8, x.n_header);
    s[x.n_header] = 0;
    return s;
}

static void cut_and_flipped(void) {
    char name[128];
    size_t n_cuts = 45;
    for (size_t i = 0; i < n_cuts; i++) { /* the first ones around the header's ends, the others spread over the file */
        size_t edge[] = {0, 1, 7, 8, 9, x.n_header, x.n_header + 7, x.n_header + 8, x.n_header + 9, x.n - 1, x.n - 2};
        size_t n_edges = sizeof edge / sizeof *edge;
        size_t at = i < n_edges ? edge[i] : x.n * (i - n_edges + 1) / (n_cuts - n_edges + 1);
        snprintf(name, sizeof name, "cut after byte %zu", at);
        put_file(x.file, at);
        attempt(name, MUST_FAIL, "model.safetensors");
    }
    uint8_t *f = malloc(x.n + 100);
    if (!f)
        abort();
    uint64_t rng = 42;
    for (int i = 0; i < 64; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)((rng >> 33) % (8 + x.n_header));
        int bit = (int)(rng >> 24 & 7);
        memcpy(f, x.file, x.n);
        f[at] ^= (uint8_t)(1 << bit);
        snprintf(name, sizeof name, "bit %d of byte %zu flipped", bit, at);
        put_file(f, x.n);
        attempt(name, MAY_BE_RIGHT, NULL);
    }
    static const uint64_t lengths[] = {0,         1,         2,         (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7,
                                       INT64_MAX, 100000000, 100000001, (uint64_t)1 << 32};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths + 4; i++) {
        uint64_t more[] = {x.n - 8, x.n - 7, x.n_header - 1, x.n_header + 1};
        size_t k = sizeof lengths / sizeof *lengths;
        uint64_t len = i < k ? lengths[i] : more[i - k];
        memcpy(f, x.file, x.n);
        for (int b = 0; b < 8; b++)
            f[b] = (uint8_t)(len >> 8 * b);
        snprintf(name, sizeof name, "header length %" PRIu64, len);
        put_file(f, x.n);
        attempt(name, MUST_FAIL, "model.safetensors");
    }
    memcpy(f, x.file, x.n);
    memset(f + x.n, 0, 100);
    put_file(f, x.n + 100);
    attempt("100 bytes at the end", MUST_FAIL, "100 bytes at the end of the file belong to no tensor");
    free(f);
}

#define VICTIM "model.decoder.layers.1.mlp.up_proj.weight"

static void entries(void) {
    char *h = header(), name[128], old[700], was[300];
    const char *p = strstr(h, "\"" VICTIM "\":{");
    snprintf(was, sizeof was, "%.*s", (int)(strchr(p, '}') + 1 - p), p);
    uint64_t begin, end;
    if (sscanf(strstr(was, "offsets\":["), "offsets\":[%" SCNu64 ",%" SCNu64 "]", &begin, &end) != 2)
        abort();
    static const char *const dtypes[] = {"\"F32\"",
                                         "\"F64\"",
                                         "\"I64\"",
                                         "\"F8_E4M3\"",
                                         "\"bf16\"",
                                         "\"\"",
                                         "\"Q4\"",
                                         "null",
                                         "7",
                                         "[\"BF16\"]",
                                         "\"BF16\",\"dtype\":\"BF16\""};
    static const char *const shapes[] = {"[48]",
                                         "[32,48]",
                                         "[48,32,1]",
                                         "[1,48,32]",
                                         "[0,32]",
                                         "[-48,32]",
                                         "[4294967296,4294967296]",
                                         "[18446744073709551615,2]",
                                         "[18446744073709551616]",
                                         "[9223372036854775807,3]",
                                         "[48.0,32]",
                                         "[\"48\",32]",
                                         "null",
                                         "{}",
                                         "48",
                                         "[[48],32]",
                                         "[1,1,1,1,1,1,1,48,32]",
                                         "[1e300,1]"};
    static const char *const offsets[] = {"[0,18446744073709551615]",
                                          "[9223372036854775807,9223372036854775807]",
                                          "[-3072,0]",
                                          "[0,-1]",
                                          "[18446744073709551616,1]",
                                          "[0]",
                                          "[]",
                                          "[0,3072,3072]",
                                          "[0.0,3072]",
                                          "[\"0\",\"3072\"]",
                                          "null",
                                          "\"0,3072\"",
                                          "[[0],[3072]]",
                                          "[1e300,1e301]",
                                          "[0,3072]"};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        snprintf(name, sizeof name, "dtype %s", dtypes[i]);
        snprintf(old, sizeof old, "\"" VICTIM "\":{\"dtype\":%s,\"shape\":[48,32],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                 dtypes[i], begin, end);
        char *t = mk_edit(strdup(h), was, old);
        put_header(t, strlen(t));
        attempt(name, MUST_FAIL, VICTIM);
        free(t);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        snprintf(name, sizeof name, "shape %s", shapes[i]);
        snprintf(old, sizeof old, "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                 shapes[i], begin, end);
        char *t = mk_edit(strdup(h), was, old);
        put_header(t, strlen(t));
        attempt(name, MUST_FAIL, VICTIM);
        free(t);
    }
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets + 6; i++) {
        size_t k = sizeof offsets / sizeof *offsets, n_data = x.n - 8 - x.n_header;
        char own[64];
        uint64_t pair[6][2] = {{end, begin},     {begin + 2, end + 2},        {begin - 2, end - 2},
                               {begin, end + 2}, {n_data - 3070, n_data + 2}, {n_data + 4096, n_data + 7168}};
        if (i >= k)
            snprintf(own, sizeof own, "[%" PRIu64 ",%" PRIu64 "]", pair[i - k][0], pair[i - k][1]);
        const char *o = i < k ? offsets[i] : own;
        snprintf(name, sizeof name, "offsets %s", o);
        snprintf(old, sizeof old, "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[48,32],\"data_offsets\":%s}", o);
        char *t = mk_edit(strdup(h), was, old);
        put_header(t, strlen(t));
        attempt(name, MUST_FAIL, i < k ? VICTIM : "model.safetensors");
        free(t);
    }
    static const struct {
        const char *name, *entry;
    } whole[] = {
        {"no dtype", "\"" VICTIM "\":{\"shape\":[48,32],\"data_offsets\":[0,3072]}"},
        {"no shape", "\"" VICTIM "\":{\"dtype\":\"BF16\",\"data_offsets\":[0,3072]}"},
        {"no offsets", "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[48,32]}"},
        {"an empty entry", "\"" VICTIM "\":{}"},
        {"an entry that is a list", "\"" VICTIM "\":[]"},
        {"an entry that is a number", "\"" VICTIM "\":0"},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        char *t = mk_edit(strdup(h), was, whole[i].entry);
        put_header(t, strlen(t));
        attempt(whole[i].name, MUST_FAIL, VICTIM);
        free(t);
    }
    snprintf(old, sizeof old, "%s,%s", was, was);
    char *t = mk_edit(strdup(h), was, old);
    put_header(t, strlen(t));
    attempt("an entry twice", MUST_FAIL, NULL);
    free(t);
    snprintf(old, sizeof old,
             "%s,\"model.decoder.layers.1.mlp.\\u0075p_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[%" PRIu64
             ",%" PRIu64 "]}",
             was, begin, begin);
    t = mk_edit(strdup(h), was, old);
    put_header(t, strlen(t));
    attempt("a name twice, once escaped", MUST_FAIL, "two tensors are named " VICTIM);
    free(t);
    free(h);
}

static void grammar(void) {
    static const struct {
        const char *name, *head, *tail;
    } cases[] = {
        {"a header that is a list", "[", "]"}, {"a header in a list", "[", "]"},          {"garbage after the header", "", "x"},
        {"a second document", "", "{}"},       {"a comma before the end", "", ","},       {"text before the header", "x", ""},
        {"a NUL in the header", "\n", "\x01"}, {"a byte order mark", "\xef\xbb\xbf", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t a = strlen(cases[i].head), b = strlen(cases[i].tail);
        char *t = malloc(a + x.n_header + b + 1), *h = header();
        if (!t)
            abort();
        sprintf(t, "%s%s%s", cases[i].head, h, cases[i].tail);
        put_header(t, strlen(t));
        attempt(cases[i].name, MUST_FAIL, "damaged header");
        free(t);
        free(h);
    }
    static const struct {
        const char *name, *old, *new;
    } edits[] = {
        {"a missing comma", "},\"" VICTIM, "} \"" VICTIM},
        {"a missing colon", VICTIM "\":", VICTIM "\" "},
        {"invalid UTF-8 in a name", VICTIM "\":", "\xff\":"},
        {"a control character in a name", VICTIM "\":", "a\nb\":"},
        {"a lone surrogate as a name", VICTIM "\":", "\\udc00\":"},
        {"an empty name", VICTIM "\":", "\":"},
        {"a name that is gone", VICTIM "\":", "nobody\":"},
        {"a name with an escaped line end", VICTIM "\":", "a\\n\\u001b[31mb\":"},
        {"NaN as a number", "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[48",
         "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[NaN"},
        {"a leading zero", "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[48",
         "\"" VICTIM "\":{\"dtype\":\"BF16\",\"shape\":[048"},
        {"an endless name", VICTIM "\":", VICTIM},
        {"metadata that is a number", "{\"format\":\"pt\"}", "7"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *t = mk_edit(header(), edits[i].old, edits[i].new);
        put_header(t, strlen(t));
        bool harmless = strcmp(edits[i].name, "metadata that is a number") == 0;
        attempt(edits[i].name, harmless ? MUST_BE_RIGHT : MUST_FAIL, NULL);
        free(t);
    }
}

/* A header of n bytes built by repeating a part. */
static void put_bulk(const char *head, const char *part, const char *tail, size_t n, bool numbered) {
    char *t = malloc(n + 1), *p = t;
    if (!t)
        abort();
    p += sprintf(p, "%s", head);
    size_t room = n - strlen(tail) - 64 - strlen(part);
    for (size_t i = 0; (size_t)(p - t) < room; i++)
        if (numbered)
            p += sprintf(p, part, i);
        else {
            memcpy(p, part, strlen(part));
            p += strlen(part);
        }
    p += sprintf(p, "%s", tail);
    memset(p, ' ', (size_t)(t + n - p));
    put_header(t, n);
    free(t);
}

static void bulk(void) {
    const size_t most = 100000000, many = 20000000;
    put_bulk("{", " ", "}", most, false);
    attempt("a header of spaces", MUST_FAIL, NULL);
    put_bulk("{", "[", "", many, false);
    attempt("a header of brackets", MUST_FAIL, "damaged header");
    put_bulk("{\"a\":", "[", "", 1000000, false);
    attempt("a depth bomb", MUST_FAIL, "nested too deeply");
    put_bulk("{\"a\":", "{\"a\":", "", 1000000, false);
    attempt("a depth bomb of objects", MUST_FAIL, "nested too deeply");
    put_bulk("{\"", "x", "\":{}}", many, false);
    attempt("an endless name", MUST_FAIL, "a name of more than 512 bytes");
    put_bulk("{\"", "\\u0041", "\":{}}", many, false);
    attempt("an endless name of escapes", MUST_FAIL, "a name of more than 512 bytes");
    put_bulk("{", "\"a%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "\"z\":0}", most, true);
    attempt("hundreds of thousands of tensors", MUST_FAIL, "more than 131072 tensors");
    put_bulk("{", "\"a\\u0061%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "\"z\":0}", 12000000, true);
    attempt("many tensors with escaped names", MUST_FAIL, NULL);
    put_bulk("{", "\"a\":0,", "\"z\":0}", many, false);
    attempt("millions of faulty entries", MUST_FAIL, "faults: a: is not described by an object; a: is");
    put_bulk("{\"__metadata__\":{", "\"a\":\"b\",", "\"z\":\"\"}}", many, false);
    attempt("a header of metadata", MUST_FAIL, NULL);
    put_bulk("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,0],\"shape\":[", "1,", "1]}}", many, false);
    attempt("millions of dimensions", MUST_FAIL, "shape must be one list");
    restore();
}

static void other_files(void) {
    static const struct {
        const char *name, *data, *part;
    } cases[] = {
        {"a Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"},
        {"a GGUF file", "GGUF\3aaaaaaaaaaaaaaaa", "GGUF"},
        {"a web page", "<!DOCTYPE html><html></html>", "web page"},
        {"text", "This is not a model at all, only a line of text.", "no safetensors file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_file((const uint8_t *)cases[i].data, strlen(cases[i].data));
        attempt(cases[i].name, MUST_FAIL, cases[i].part);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", x.dir);
    unlink(path);
    attempt("no weights", MUST_FAIL, "has no model.safetensors");
    mk_mkdir(x.dir, "model.safetensors");
    attempt("a folder in the file's place", MUST_FAIL, "not a regular file");
    rmdir(path);
    if (mkfifo(path, 0600) == 0) {
        attempt("a pipe in the file's place", MUST_FAIL, "not a regular file");
        unlink(path);
    }
    if (symlink("model.safetensors", path) == 0) {
        attempt("a link to itself", MUST_FAIL, NULL);
        unlink(path);
    }
    if (symlink("/dev/zero", path) == 0) {
        attempt("a device in the file's place", MUST_FAIL, "not a regular file");
        unlink(path);
    }
    restore();
}

/* ---- damage to the weights ---- */

/* Writes the model after a change of the list, then builds it anew. */
static void altered(const char *name, enum expect want, const char *part) {
    size_t n;
    uint8_t *f = mk_file(&x.c, -1, &n);
    put_file(f, n);
    free(f);
    attempt(name, want, part);
    mk_free(&x.c);
    mk_build(&x.c, &mk_tiny, "BF16", false, 11);
    restore();
}

static void weights(void) {
    static const char *const vectors[] = {"model.decoder.norm.weight",
                                          "model.decoder.self_conditioning.pre_norm.weight",
                                          "model.decoder.layers.0.input_layernorm.weight",
                                          "model.decoder.layers.1.self_attn.q_norm.weight",
                                          "model.decoder.layers.2.router.scale",
                                          "model.decoder.layers.2.router.per_expert_scale",
                                          "model.decoder.layers.1.layer_scalar",
                                          "model.encoder.language_model.layers.1.layer_scalar"};
    char name[160];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        for (int k = 0; k < 2; k++) {
            struct mk_tensor *t = mk_get(&x.c, vectors[i]);
            mk_set(t, t->bytes / 2 - 1, k ? -INFINITY : NAN);
            snprintf(name, sizeof name, "%s in %s", k ? "infinity" : "NaN", vectors[i]);
            altered(name, MUST_FAIL, vectors[i]);
        }
    static const char *const big[] = {"model.decoder.embed_tokens.weight", "model.decoder.layers.0.experts.gate_up_proj",
                                      "model.decoder.layers.2.self_attn.k_proj.weight"};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        struct mk_tensor *t = mk_get(&x.c, big[i]);
        memset(t->data, 0xff, t->bytes);
        snprintf(name, sizeof name, "all of %s NaN", big[i]);
        altered(name, MUST_FAIL, "NaN"); /* too large to look at when opening: shows in the logits */
    }
    static const char *const needed[] = {"model.decoder.embed_tokens.weight",
                                         "model.decoder.norm.weight",
                                         "model.decoder.layers.0.self_attn.v_proj.weight",
                                         "model.decoder.layers.2.experts.down_proj",
                                         "model.decoder.layers.1.layer_scalar",
                                         "model.decoder.self_conditioning.down_proj.weight"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        mk_drop(&x.c, needed[i]);
        snprintf(name, sizeof name, "no %s", needed[i]);
        altered(name, MUST_FAIL, needed[i]);
        snprintf(mk_get(&x.c, needed[i])->name, 100, "%s_", needed[i]);
        snprintf(name, sizeof name, "%s renamed", needed[i]);
        altered(name, MUST_FAIL, needed[i]);
    }
    struct mk_tensor *t = mk_get(&x.c, "model.decoder.layers.0.experts.gate_up_proj"); /* [4, 32, 32] */
    t->shape[0] = 2;
    t->shape[1] = 64;
    altered("half the experts, twice as wide", MUST_FAIL, "has shape [2, 64, 32], must be [4, 32, 32]");
    mk_drop(&x.c, "model.encoder.language_model.layers.1.layer_scalar");
    altered("no encoder scalar", MUST_ANSWER, NULL);
    mk_add(&x.c, "model.decoder.layers.3.layer_scalar", "BF16", 2, 1, (int64_t[]){1});
    altered("a layer too many", MUST_BE_RIGHT, NULL);
    while (x.c.n)
        mk_drop(&x.c, x.c.t[x.c.n - 1].name);
    altered("no tensor at all", MUST_FAIL, "model.decoder.layers.2.experts.down_proj is missing");
}

/* ---- damage to the configuration ---- */

static void put_config(const char *text) { mk_put(x.dir, "config.json", text, strlen(text)); }

static void config_numbers(void) {
    static const struct {
        const char *field, *value;
    } keys[] = {{"vocab_size", "160"},        {"hidden_size", "32"},
                {"num_hidden_layers", "3"},   {"num_attention_heads", "4"},
                {"intermediate_size", "48"},  {"num_experts", "4"},
                {"top_k_experts", "2"},       {"moe_intermediate_size", "16"},
                {"sliding_window", "8"},      {"canvas_length", "16"},
                {"num_key_value_heads", "2"}, {"head_dim", "8"},
                {"global_head_dim", "16"},    {"max_position_embeddings", "4096"}};
    static const char *const values[] = {"-1", "0", "1e300", "2147483647", "9223372036854775807", "null", "\"x\""};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char old[80], new[120], name[128];
            snprintf(old, sizeof old, "\"%s\": %s,", keys[k].field, keys[k].value);
            snprintf(new, sizeof new, "\"%s\": %s,", keys[k].field, values[v]);
            char *t = mk_edit(strdup(x.c.config), old, new);
            put_config(t);
            free(t);
            snprintf(name, sizeof name, "%s %s", keys[k].field, values[v]);
            /* null means absent, which some fields may be */
            attempt(name, strcmp(values[v], "null") == 0 ? MAY_ANSWER : MUST_FAIL,
                    strcmp(values[v], "null") == 0 ? NULL : keys[k].field);
        }
    static const struct {
        const char *name, *old, *new;
        enum expect want;
    } edits[] = {
        {"a wider vocabulary than the file", "\"vocab_size\": 160", "\"vocab_size\": 161", MUST_FAIL},
        {"another hidden size", "\"hidden_size\": 32", "\"hidden_size\": 64", MUST_FAIL},
        {"more layers than the file", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", MUST_FAIL},
        {"512 layers", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 512", MUST_FAIL},
        {"fewer layer types", "[\"sliding_attention\", ", "[", MUST_FAIL},
        {"layers of another kind", "\"full_attention\"]", "\"sliding_attention\"]", MUST_FAIL},
        {"an unknown kind", "\"full_attention\"]", "\"mamba\"]", MUST_FAIL},
        {"an odd head dimension", "\"head_dim\": 8,", "\"head_dim\": 9,", MUST_FAIL},
        {"heads not divided", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", MUST_FAIL},
        {"more experts a token than there are", "\"top_k_experts\": 2", "\"top_k_experts\": 64", MUST_FAIL},
        {"a long canvas", "\"canvas_length\": 16", "\"canvas_length\": 4000", MUST_ANSWER},
        {"a canvas of one", "\"canvas_length\": 16", "\"canvas_length\": 1", MUST_ANSWER},
        {"a window of one", "\"sliding_window\": 8", "\"sliding_window\": 1", MUST_ANSWER},
        {"a wide window", "\"sliding_window\": 8", "\"sliding_window\": 16777216", MUST_ANSWER},
        {"a long context", "\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 16777216", MUST_ANSWER},
        {"a context of one", "\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 1", MUST_FAIL},
        {"a context of a canvas and one", "\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 17", MUST_FAIL},
        {"a tiny theta", "\"rope_theta\": 10000.0", "\"rope_theta\": 1e-300", MUST_FAIL},
        {"a huge epsilon", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e30", MUST_FAIL},
        {"no epsilon to speak of", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0.0", MUST_FAIL},
        {"a cap of zero", "\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": 0", MUST_FAIL},
        {"an untied head", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", MUST_FAIL},
        {"a bias", "\"attention_bias\": false", "\"attention_bias\": true", MUST_FAIL},
        {"another activation", "gelu_pytorch_tanh", "relu", MUST_FAIL},
        {"another rope", "\"rope_type\": \"default\"", "\"rope_type\": \"dynamic\"", MUST_FAIL},
        {"a plain Gemma 4", "\"model_type\": \"diffusion_gemma\", ", "\"model_type\": \"gemma4\", \"x\": ", MUST_FAIL},
        {"a list as text_config", "\"text_config\": {", "\"text_config\": [], \"x\": {", MUST_FAIL},
        {"a key twice", "\"pad_token_id\": 0", "\"pad_token_id\": 0, \"pad_token_id\": 1", MUST_FAIL},
        {"a stop id below zero", "\"eos_token_id\": [1, 106]", "\"eos_token_id\": [-1, 106]", MUST_FAIL},
        {"a padding id beyond the vocabulary", "\"pad_token_id\": 0", "\"pad_token_id\": 160", MUST_FAIL},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *t = mk_edit(strdup(x.c.config), edits[i].old, edits[i].new);
        put_config(t);
        free(t);
        attempt(edits[i].name, edits[i].want, NULL);
    }
    put_config(x.c.config);
}

static void config_text(void) {
    size_t n = strlen(x.c.config), big = (size_t)1 << 20;
    char name[128], *t = malloc(big + 16);
    if (!t)
        abort();
    for (int i = 0; i < 12; i++) {
        size_t at = n * (size_t)i / 12;
        snprintf(name, sizeof name, "config.json cut after byte %zu", at);
        mk_put(x.dir, "config.json", x.c.config, at);
        attempt(name, MUST_FAIL, "config.json");
    }
    uint64_t rng = 7;
    for (int i = 0; i < 24; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)((rng >> 33) % n);
        memcpy(t, x.c.config, n);
        t[at] ^= (char)(1 << (rng >> 24 & 7));
        mk_put(x.dir, "config.json", t, n);
        snprintf(name, sizeof name, "bit %d of byte %zu of config.json flipped", (int)(rng >> 24 & 7), at);
        attempt(name, MAY_ANSWER, NULL);
    }
    memset(t, '[', big);
    mk_put(x.dir, "config.json", t, big);
    attempt("config.json of brackets", MUST_FAIL, "nested too deeply");
    static const char *const parts[] = {"{},", "0,", "\"\","};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) { /* what costs a tree most */
        size_t at = 1, m = strlen(parts[i]);
        t[0] = '[';
        for (; at + m + 2 < big; at += m)
            memcpy(t + at, parts[i], m);
        memcpy(t + at, "0]", 2);
        mk_put(x.dir, "config.json", t, at + 2);
        snprintf(name, sizeof name, "config.json of a megabyte of %s", parts[i]);
        attempt(name, MUST_FAIL, "config.json");
    }
    size_t at = (size_t)sprintf(t, "{\"k\":0");
    for (int i = 0; at + 32 < big; i++)
        at += (size_t)sprintf(t + at, ",\"%x\":0", i);
    t[at++] = '}';
    mk_put(x.dir, "config.json", t, at);
    attempt("config.json of a hundred thousand members", MUST_FAIL, "config.json");
    memset(t, ' ', big + 16);
    memcpy(t, "{}", 2);
    mk_put(x.dir, "config.json", t, big + 16);
    attempt("config.json of more than a megabyte", MUST_FAIL, "at most 1048576");
    free(t);
    put_config(x.c.config);
    static const struct {
        const char *text;
        enum expect want;
    } gens[] = {{"", MUST_FAIL},
                {"[]", MUST_FAIL},
                {"{", MUST_FAIL},
                {"{}", MUST_ANSWER},
                {"{\"t_min\": -1}", MUST_FAIL},
                {"{\"t_max\": 1e308}", MUST_FAIL},
                {"{\"max_denoising_steps\": 2147483647}", MUST_FAIL},
                {"{\"t_min\": 5}", MUST_FAIL},
                {"{\"eos_token_id\": [1, [2]]}", MUST_FAIL},
                {"{\"eos_token_id\": 1e300}", MUST_FAIL},
                {"{\"stability_threshold\": \"1\"}", MUST_FAIL},
                {"{\"sampler_config\": []}", MUST_FAIL},
                {"{\"sampler_config\": {\"entropy_bound\": -0.1}}", MUST_FAIL},
                {"{\"sampler_config\": null, \"t_min\": null, \"eos_token_id\": null}", MUST_ANSWER}};
    for (size_t i = 0; i < sizeof gens / sizeof *gens; i++) {
        mk_put(x.dir, "generation_config.json", gens[i].text, strlen(gens[i].text));
        snprintf(name, sizeof name, "generation_config.json \"%s\"", gens[i].text);
        attempt(name, gens[i].want, gens[i].want == MUST_FAIL ? "generation_config.json" : NULL);
    }
    mk_put(x.dir, "generation_config.json", x.c.generation, strlen(x.c.generation));
}

/* ---- damage to shards ---- */

static void shards(void) {
    char path[4096], name[128];
    snprintf(path, sizeof path, "%s/model.safetensors", x.dir);
    unlink(path);
    mk_write(&x.c, x.dir, 3);
    attempt("undamaged shards", MUST_BE_RIGHT, NULL);
    const char *index = "model.safetensors.index.json";
    snprintf(path, sizeof path, "%s/%s", x.dir, index);
    size_t n;
    char *good = mk_slurp(path, &n);
    static const struct {
        const char *name, *old, *new;
    } edits[] = {
        {"a tensor in another shard", "\"model.decoder.norm.weight\": \"model-00001",
         "\"model.decoder.norm.weight\": \"model-00002"},
        {"a tensor in no shard", "\"model.decoder.norm.weight\"", "\"model.decoder.norm.weight_\""},
        {"a shard that is not there", "\"model.decoder.norm.weight\": \"model-00001",
         "\"model.decoder.norm.weight\": \"model-00004"},
        {"a shard above the folder", "\"model.decoder.norm.weight\": \"model-00001",
         "\"model.decoder.norm.weight\": \"../model-00001"},
        {"a shard with an absolute path", "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \"/etc/passwd\""},
        {"the folder as a shard", "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \".\""},
        {"a shard without a name", "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \"\""},
        {"a number as a shard", "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": 1"},
        {"the config as a shard", "\"model.decoder.norm.weight\": \"model-00001-of-00003.safetensors\"",
         "\"model.decoder.norm.weight\": \"config.json\""},
        {"no weight_map", "\"weight_map\"", "\"weight_mop\""},
        {"two weight_maps", "\"weight_map\"", "\"weight_map\": {}, \"weight_map\""},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *t = mk_edit(strdup(good), edits[i].old, edits[i].new);
        mk_put(x.dir, index, t, strlen(t));
        free(t);
        attempt(edits[i].name, MUST_FAIL, NULL);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "an index cut after byte %zu", n * (size_t)i / 8);
        mk_put(x.dir, index, good, n * (size_t)i / 8);
        attempt(name, MUST_FAIL, index);
    }
    size_t big = (size_t)8 << 20, at;
    char *t = malloc(big);
    if (!t)
        abort();
    at = (size_t)sprintf(t, "{\"weight_map\": {\"a\": \"s\"");
    for (int i = 0; at + 64 < big; i++)
        at += (size_t)sprintf(t + at, ",\"%d\":\"shard%d\"", i, i);
    at += (size_t)sprintf(t + at, "}}");
    mk_put(x.dir, index, t, at);
    attempt("an index of a hundred thousand shards", MUST_FAIL, "more than 1024 shards");
    at = (size_t)sprintf(t, "{\"weight_map\": {\"a\": \"s\"");
    for (int i = 0; at + 64 < big; i++)
        at += (size_t)sprintf(t + at, ",\"%d\":\"\\u0073hard%d\"", i, i % 1000);
    at += (size_t)sprintf(t + at, "}}");
    mk_put(x.dir, index, t, at);
    attempt("an index of half a million tensors", MUST_FAIL, "more than 131072 tensors");
    memset(t, '{', big);
    mk_put(x.dir, index, t, big);
    attempt("an index of brackets", MUST_FAIL, index);
    free(t);
    mk_put(x.dir, index, good, n);
    for (int i = 1; i <= 3; i++) {
        char shard[64];
        snprintf(shard, sizeof shard, "model-%05d-of-00003.safetensors", i);
        snprintf(path, sizeof path, "%s/%s", x.dir, shard);
        size_t m;
        char *data = mk_slurp(path, &m);
        mk_put(x.dir, shard, data, m - 100);
        snprintf(name, sizeof name, "shard %d cut", i);
        attempt(name, MUST_FAIL, shard);
        unlink(path);
        snprintf(name, sizeof name, "shard %d missing", i);
        attempt(name, MUST_FAIL, shard);
        mk_put(x.dir, shard, data, m);
        free(data);
    }
    free(good);
}

int main(void) {
    x.dir = mk_tmpdir();
    mk_build(&x.c, &mk_tiny, "BF16", false, 11);
    mk_write(&x.c, x.dir, 0);
    x.file = mk_file(&x.c, -1, &x.n);
    for (int i = 7; i >= 0; i--)
        x.n_header = x.n_header << 8 | x.file[i];
    attempt("undamaged", MUST_ANSWER, NULL);
    cut_and_flipped();
    entries();
    grammar();
    bulk();
    other_files();
    weights();
    config_numbers();
    config_text();
    shards();
    printf("%sok - at least 200 variants\n", x.log.n_run >= 200 ? "" : "not ");
    attempts_print(&x.log);
    mk_remove(x.dir);
    free(x.dir);
    free(x.file);
    mk_free(&x.c);
    return x.log.n_failed || x.log.n_run < 200;
}
