#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)256 << 20)

static void print_ids(const struct dg_tokenizer *t, const struct dg_ids *ids, bool pieces) {
    for (size_t i = 0; i < ids->n; i++)
        if (pieces) {
            size_t n;
            const char *p = dg_tokenizer_piece(t, ids->v[i], &n);
            printf("%d\t", ids->v[i]);
            /* one line a token, whatever it holds */
            for (size_t k = 0; k < n; k++)
                if (p[k] == '\n' || p[k] == '\t')
                    printf("\\%c", p[k] == '\n' ? 'n' : 't');
                else
                    putchar(p[k]);
            putchar('\n');
        } else
            printf("%s%d", i ? " " : "", ids->v[i]);
    if (!pieces)
        putchar('\n');
}

struct options {
    struct dg_model_args model;
    const char *text, *path;
    bool decode, plain, pieces, count, skip;
};

static enum dg_status tokenize(struct dg_runtime *r, const struct options *o, struct dg_buf *in, struct dg_ids *ids, struct dg_buf *out,
                               struct dg_error *err) {
    DG_TRY(dg_runtime_flags(r, err));
    DG_TRY(dg_runtime_find(r, &o->model, err));
    DG_TRY(dg_runtime_tokenizer(r, err));
    if (o->text) {
        dg_buf_init(in, TEXT_MAX);
        if (dg_buf_str(in, o->text) != DG_OK)
            return DG_FAIL(err, in->status, "the text is too long");
    } else
        DG_TRY(dg_read_all(o->path, TEXT_MAX, in, err));
    if (!o->decode)
        return dg_tokenizer_encode(r->tok, dg_buf_cstr(in), in->len, !o->plain, ids, err);
    DG_TRY(dg_read_ids(dg_buf_cstr(in), ids, err));
    return dg_tokenizer_decode(r->tok, ids->v, ids->n, o->skip, out, err);
}

int dg_cmd_tokenize(int argc, char **argv) {
    struct options o = {.path = "-"};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"prompt", 'p', DG_ARG_STR, &o.text, 0, 0, "TEXT", "the text (default: FILE, or standard input)"},
        {"decode", 'd', DG_ARG_FLAG, &o.decode, 0, 0, NULL, "the other way: ids in, text out"},
        {"plain", 0, DG_ARG_FLAG, &o.plain, 0, 0, NULL, "spellings of control tokens stay ordinary text"},
        {"skip-special", 0, DG_ARG_FLAG, &o.skip, 0, 0, NULL, "with --decode: leave control tokens out"},
        {"pieces", 0, DG_ARG_FLAG, &o.pieces, 0, 0, NULL, "one line a token: id, tab, spelling"},
        {"count", 0, DG_ARG_FLAG, &o.count, 0, 0, NULL, "only the number of tokens"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("tokenize"), args, DG_ARGS_COUNT(args), 0, 1, &first, &status))
        return status;
    if (first < argc)
        o.path = argv[first];
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_buf in, out;
    struct dg_ids ids;
    dg_buf_init(&in, TEXT_MAX);
    dg_buf_init(&out, TEXT_MAX);
    dg_ids_init(&ids);
    if (tokenize(&r, &o, &in, &ids, &out, &err) != DG_OK)
        status = dg_cli_fail("tokenize", &err);
    else if (o.decode)
        fwrite(dg_buf_cstr(&out), 1, out.len, stdout);
    else if (o.count)
        printf("%zu\n", ids.n);
    else
        print_ids(r.tok, &ids, o.pieces);
    dg_buf_deinit(&in);
    dg_buf_deinit(&out);
    dg_ids_deinit(&ids);
    dg_runtime_close(&r);
    return status;
}
