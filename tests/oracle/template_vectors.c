/* template_vectors VECTORS.json [--tokenizer TOKENIZER.json]
 *
 * Renders every vector and compares the text (or that there is an error); with a tokenizer also the ids of the whole text,
 * control tokens matched everywhere. The spans are checked on the way: in range, sorted, disjoint. Last line: "N passed, N
 * failed"; status 1 when anything failed, 2 when a file cannot be read. */
#include "core/ids.h"
#include "core/map.h"
#include "template/exact.h"
#include "template/render.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_text(const char *what, const char *s, size_t n) {
    printf("    %s: ", what);
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\n')
            printf("\\n");
        else if (s[i] == 0)
            printf("\\0");
        else
            putchar(s[i]);
    putchar('\n');
}

static bool spans_ok(const struct dg_prompt *p) {
    size_t last = 0;
    for (size_t i = 0; i < p->n_spans; i++) {
        if (p->spans[i].begin >= p->spans[i].end || (i && p->spans[i].begin <= last) || p->spans[i].end > p->text.len)
            return false;
        last = p->spans[i].end;
    }
    return true;
}

static bool ids_ok(const struct dg_tokenizer *tok, const json_t *v, const struct dg_prompt *p) {
    const json_t *want = json_object_get(v, "ids");
    struct dg_ids got;
    struct dg_error err = {0};
    dg_ids_init(&got);
    bool ok = dg_tokenizer_encode(tok, dg_buf_cstr(&p->text), p->text.len, true, &got, &err) == DG_OK;
    if (!ok)
        printf("    ids: %s\n", dg_error_text(&err));
    if (ok && got.n != json_array_size(want)) {
        printf("    ids: %zu, expected %zu\n", got.n, json_array_size(want));
        ok = false;
    }
    for (size_t i = 0; ok && i < got.n; i++)
        if (got.v[i] != json_integer_value(json_array_get(want, i))) {
            printf("    ids: %d at %zu, expected %lld\n", got.v[i], i, (long long)json_integer_value(json_array_get(want, i)));
            ok = false;
        }
    dg_ids_deinit(&got);
    dg_error_clear(&err);
    return ok;
}

static bool run(const json_t *v, const struct dg_tokenizer *tok) {
    const json_t *think = json_object_get(v, "enable_thinking"), *want = json_object_get(v, "rendered");
    struct dg_render_options opts = {.thinking = json_is_boolean(think)
                                                     ? (json_is_true(think) ? DG_THINKING_ON : DG_THINKING_OFF)
                                                     : DG_THINKING_UNSET,
                                     .add_generation_prompt = json_is_true(json_object_get(v, "add_generation_prompt"))};
    struct dg_prompt p;
    struct dg_error err = {0};
    dg_prompt_init(&p);
    enum dg_status st = dg_template_render(json_object_get(v, "messages"), json_object_get(v, "tools"), &opts, &p, &err);
    bool ok = true;
    if (json_object_get(v, "error"))
        ok = st == DG_E_ARG;
    else if (st != DG_OK)
        ok = false;
    else
        ok = json_is_string(want) && p.text.len == json_string_length(want) &&
             memcmp(dg_buf_cstr(&p.text), json_string_value(want), p.text.len) == 0;
    if (!ok) {
        printf("not as expected: %s %s\n", json_string_value(json_object_get(v, "id")),
               json_string_value(json_object_get(v, "name")));
        if (json_is_string(want))
            print_text("want", json_string_value(want), json_string_length(want));
        else
            printf("    want: error %s\n", json_string_value(json_object_get(v, "error")));
        if (st == DG_OK)
            print_text("got ", dg_buf_cstr(&p.text), p.text.len);
        else
            printf("    got : error %s\n", dg_error_text(&err));
    } else if (st == DG_OK && !spans_ok(&p)) {
        printf("bad spans: %s\n", json_string_value(json_object_get(v, "id")));
        ok = false;
    } else if (st == DG_OK && tok && json_object_get(v, "ids") && !ids_ok(tok, v, &p)) {
        printf("other ids: %s\n", json_string_value(json_object_get(v, "id")));
        ok = false;
    }
    dg_prompt_deinit(&p);
    dg_error_clear(&err);
    return ok;
}

static int die(struct dg_error *err) {
    fprintf(stderr, "template_vectors: %s\n", dg_error_text(err));
    return 2;
}

int main(int argc, char **argv) {
    struct dg_error err = {0};
    struct dg_map file;
    struct dg_tokenizer *tok = NULL;
    json_t *doc;
    bool with_tokenizer = argc == 4 && strcmp(argv[2], "--tokenizer") == 0;
    if (argc != 2 && !with_tokenizer) {
        fprintf(stderr, "usage: template_vectors VECTORS.json [--tokenizer TOKENIZER.json]\n");
        return 2;
    }
    if (dg_map_open(&file, argv[1], &err) != DG_OK)
        return die(&err);
    if (dg_json_load_exact((const char *)file.data, file.size, &doc, &err) != DG_OK)
        return die(&err);
    dg_map_close(&file);
    if (with_tokenizer && dg_tokenizer_open(&tok, argv[3], &err) != DG_OK)
        return die(&err);
    const json_t *list = json_is_array(doc) ? doc : json_object_get(doc, "vectors");
    size_t passed = 0, n = json_array_size(list);
    for (size_t i = 0; i < n; i++)
        passed += run(json_array_get(list, i), tok);
    json_decref(doc);
    dg_tokenizer_close(tok);
    printf("%zu passed, %zu failed\n", passed, n - passed);
    return n == 0 || passed < n;
}
