/* Damaged packs: each must end with one clear line or with a right answer (support/attempt.h), never with a crash, a hang or much
 * memory. Prints TAP, then the worst figures. The variants are the same in every run. */
#include "convert/quantize.h"
#include "core/mem.h"
#include "pack/hub.h"
#include "pack/manifest.h"
#include "support/attempt.h"
#include "support/mkckpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct mk_shape shape = {.vocab = 128, .hidden = 32, .layers = 2, .heads = 4, .kv = 2, .hd = 8, .full_kv = 1, .full_hd = 16,
                                      .inter = 32, .experts = 2, .topk = 1, .moe = 32, .canvas = 16, .window = 8, .full = 1u << 1};

static struct {
    char *root, *dir; /* the pack is in dir */
    char *text, *blob; /* undamaged manifest and blob */
    size_t n_text, n_blob;
    struct attempts log;
    uint64_t rng;
} x = {.rng = 7};

static size_t below(size_t n) {
    x.rng = x.rng * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((x.rng >> 33) % n);
}

static void attempt(const char *name, enum expect want, const char *part) { attempt_model(&x.log, x.dir, name, want, part); }
static void put_text(const char *s, size_t n) { mk_put(x.dir, DG_MANIFEST_NAME, s, n); }
static void put_blob(const char *s, size_t n) { mk_put(x.dir, DG_MANIFEST_BLOB, s, n); }

static void flipped_bits(const char *what) {
    char name[128], *t = malloc(x.n_text + 1), *b = malloc(x.n_blob);
    for (int i = 0; i < 110; i++) {
        size_t at = below(x.n_text);
        int bit = (int)below(8);
        memcpy(t, x.text, x.n_text);
        t[at] ^= (char)(1 << bit);
        snprintf(name, sizeof name, "%s: bit %d of manifest byte %zu flipped", what, bit, at);
        put_text(t, x.n_text);
        attempt(name, MAY_ANSWER, NULL);
    }
    put_text(x.text, x.n_text);
    for (int i = 0; i < 30; i++) {
        size_t at = below(x.n_blob);
        memcpy(b, x.blob, x.n_blob);
        b[at] ^= (char)(1 << below(8));
        snprintf(name, sizeof name, "%s: a bit of blob byte %zu flipped", what, at);
        put_blob(b, x.n_blob);
        attempt(name, MAY_ANSWER, NULL);
    }
    for (int i = 0; i < 12; i++) { /* stretches of bytes that are NaN as scales in every format */
        size_t at = below(x.n_blob), n = x.n_blob - at < 300 ? x.n_blob - at : 300;
        memcpy(b, x.blob, x.n_blob);
        memset(b + at, 0x7f + (i & 1) * 0x80, n);
        snprintf(name, sizeof name, "%s: %zu bytes from %zu on overwritten", what, n, at);
        put_blob(b, x.n_blob);
        attempt(name, MAY_ANSWER, NULL);
    }
    put_blob(x.blob, x.n_blob);
    free(t);
    free(b);
}

static void cut_files(const char *what) {
    char name[128];
    for (size_t i = 0; i < 24; i++) {
        size_t at = i == 0 ? 0 : i == 1 ? x.n_text - 3 : x.n_text * i / 24;
        snprintf(name, sizeof name, "%s: manifest cut after byte %zu", what, at);
        put_text(x.text, at);
        attempt(name, MUST_FAIL, "model.dgq.json");
    }
    put_text(x.text, x.n_text);
    for (size_t i = 0; i < 24; i++) {
        size_t at = i == 0 ? 0 : i == 1 ? x.n_blob - 1 : x.n_blob * i / 24;
        snprintf(name, sizeof name, "%s: blob cut after byte %zu", what, at);
        put_blob(x.blob, at);
        attempt(name, MUST_FAIL, "model.dgq.bin");
    }
    put_blob(x.blob, x.n_blob);
}

/* The manifest with the k-th occurrence of `old` (counted from 0) replaced. */
static bool replaced(const char *old, size_t k, const char *new) {
    const char *at = x.text - 1;
    for (size_t i = 0; i <= k; i++)
        if (!(at = strstr(at + 1, old)))
            return false;
    char *s = malloc(x.n_text + strlen(new) + 1);
    int n = sprintf(s, "%.*s%s%s", (int)(at - x.text), x.text, new, at + strlen(old));
    put_text(s, (size_t)n);
    free(s);
    return true;
}

/* The k-th number behind a member's name, replaced. */
static bool renumbered(const char *member, size_t k, const char *new) {
    char old[128];
    const char *at = x.text - 1;
    for (size_t i = 0; i <= k; i++)
        if (!(at = strstr(at + 1, member)))
            return false;
    size_t n = strlen(member), digits = strspn(at + n, "0123456789");
    snprintf(old, sizeof old, "%.*s", (int)(n + digits), at);
    char now[192];
    snprintf(now, sizeof now, "%s%s", member, new);
    char *s = malloc(x.n_text + strlen(now) + 1);
    int len = sprintf(s, "%.*s%s%s", (int)(at - x.text), x.text, now, at + n + digits);
    put_text(s, (size_t)len);
    free(s);
    return true;
}

static void hostile_numbers(const char *what) {
    static const char *const members[] = {"\"offset\": ", "\"byte_len\": ", "\"shape\": [", "\"version\": ", "\"expert_split\": ",
                                          "\"local_offset\": ",
                                          "\"expected_size\": ", "\"local_expert_split\": "};
    static const char *const values[] = {"1", "63", "4294967296", "9223372036854775807", "18446744073709551615", "-64", "1e3", "null", "\"64\""};
    char name[160];
    for (size_t m = 0; m < sizeof members / sizeof *members; m++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            for (size_t k = 0; k < 30; k += 29) {
                if (!renumbered(members[m], k, values[v]))
                    continue;
                snprintf(name, sizeof name, "%s: %s%s instead of number %zu", what, members[m], values[v], k);
                /* a split may be absent and a version may be another that suits; in a layered pack another place in the file is as legal */
                bool harmless = strstr(members[m], "split") || strstr(members[m], "version");
                bool another_place = strcmp(what, "layered") == 0 && strstr(members[m], "offset");
                attempt(name, harmless ? MAY_BE_RIGHT : another_place ? MAY_ANSWER : MUST_FAIL, NULL);
            }
    put_text(x.text, x.n_text);
}

static void wrong_words(const char *what) {
    static const struct {
        const char *old, *new;
        enum expect want;
    } edits[] = {
        {"\"q4_block\"", "\"q6_block\"", MUST_FAIL}, {"\"q4_block\"", "\"raw\"", MUST_FAIL},  {"\"q4_block\"", "\"q9\"", MUST_FAIL},
        {"\"q8_row\"", "\"raw\"", MUST_FAIL},        {"\"raw\"", "\"q8_row\"", MUST_FAIL},    {"\"BF16\"", "\"F32\"", MAY_BE_RIGHT},
        {"\"BF16\"", "\"F16\"", MAY_ANSWER},         {"\"model.dgq.bin\"", "\"config.json\"", MUST_FAIL},
        {"\"model.dgq.bin\"", "\"missing.bin\"", MUST_FAIL}, {"embed_tokens.weight", "embed_tokens.wheight", MUST_FAIL},
        {"\"profile\": \"q4\"", "\"profile\": \"nvfp4\"", MUST_BE_RIGHT}, {"\"tensors\": [", "\"tensors\": [[", MUST_FAIL},
        {"\"tensors\": [", "\"tensors\": [{},", MUST_FAIL}, {"{\n", "{\n\"tensors\": [],", MUST_FAIL}, {"layers.1.", "layers.0.", MUST_FAIL},
    };
    char name[160];
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        if (replaced(edits[i].old, 0, edits[i].new)) {
            bool brace = edits[i].old[0] == '{';
            snprintf(name, sizeof name, "%s: %.40s becomes %.40s", what, brace ? "{" : edits[i].old, brace ? "{..." : edits[i].new);
            attempt(name, edits[i].want, NULL);
        }
    put_text(x.text, x.n_text);
}

static void every_damage(const char *what) {
    attempt(what, x.log.n_run ? MUST_BE_RIGHT : MUST_ANSWER, NULL);
    flipped_bits(what);
    cut_files(what);
    hostile_numbers(what);
    wrong_words(what);
    attempt(what, MUST_BE_RIGHT, NULL);
}

static void take(const char *dir) {
    char path[400];
    free(x.text);
    free(x.blob);
    x.dir = strdup(dir);
    snprintf(path, sizeof path, "%s/" DG_MANIFEST_NAME, dir);
    x.text = mk_slurp(path, &x.n_text);
    snprintf(path, sizeof path, "%s/" DG_MANIFEST_BLOB, dir);
    x.blob = mk_slurp(path, &x.n_blob);
}

int main(void) {
    struct mk_ckpt c;
    struct dg_error err = {0};
    char snapshot[300], out[300];
    x.root = mk_tmpdir();
    mk_build(&c, &shape, "BF16", false, 3);
    mk_mkdir(x.root, "hub/models--o--b/snapshots/r");
    snprintf(snapshot, sizeof snapshot, "%s/hub/models--o--b/snapshots/r", x.root);
    mk_write(&c, snapshot, 2);
    mk_free(&c);
    if (dg_hub_use_home(x.root, &err) != DG_OK)
        return 1;
    for (int layered = 0; layered < 2; layered++) {
        struct dg_quantize_opts o = {.source = snapshot, .out = out, .overlay = layered};
        struct dg_quantize_result r;
        snprintf(out, sizeof out, "%s/%s", x.root, layered ? "layered" : "plain");
        if (dg_policy_init(&o.policy, "q4", &err) != DG_OK || dg_quantize(&o, &r, &err) != DG_OK) {
            printf("not ok - set up: %s\n", dg_error_text(&err));
            return 1;
        }
        take(out);
        every_damage(layered ? "layered" : "plain");
        free(x.dir);
    }
    attempts_print(&x.log);
    mk_remove(x.root);
    free(x.root);
    free(x.text);
    free(x.blob);
    return x.log.n_failed != 0;
}
