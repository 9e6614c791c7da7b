/* golden: runs the fixed cases and compares token ids, how turns ended and KV fingerprints with a file, byte for byte; --bless writes it. The file
 * holds a table per backend, since two backends need not round alike. A backend without one (a GPU, whose bits are its own) is held to ref's ids
 * and ends, and runs each case twice: its fingerprints must be the same in both. */
#include "cli/cli.h"

#include "cli/golden_cases.h"
#include "core/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN_FILE "tests/data/golden.json"

struct golden {
    struct dg_model_args model;
    const char *only;
    bool bless;
    struct dg_runtime r;
    struct dg_turn_text text;
    json_t *file;
};

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) { return dg_turn_text_shows_nothing(ctx, ids, n); }

/* What a case gives: {"ids": [...], "ends": [...], "tokens": N, "kv": "..."}. */
static enum dg_status run_case(struct golden *p, const struct dg_golden_case *c, json_t **out, struct dg_error *err) {
    struct dg_golden g = {.r = &p->r, .text = &p->text};
    struct dg_engine_opts o = {.session = c->session, .conversations_max = 2, .blank = p->text.blank, .shows_nothing = shows_nothing,
                               .text_ctx = &p->text};
    struct dg_result r = {0};
    enum dg_status st;
    char kv[17];
    o.session.sc_sparse = !c->exact;
    dg_gen_init(&o.gen, &p->r.model->cfg, NULL); /* defaults: the caller's switches must not matter */
    dg_turn_text_policy(&p->text, &o.gen.policy);
    g.gen = o.gen;
    DG_GO(dg_engine_create(&g.engine, p->r.be, &o, err));
    g.stage = dg_engine_stage(g.engine);
    DG_GO(c->run(&g, err));
    struct dg_op print = {.kind = DG_OP_FINGERPRINT};
    DG_GO(dg_stage_call(g.stage, &print, NULL, NULL, &r, err));
    json_t *ids = json_array(), *ends = json_array();
    for (size_t i = 0; i < g.ids.n; i++)
        json_array_append_new(ids, json_integer(g.ids.v[i]));
    snprintf(kv, sizeof kv, "%016llx", (unsigned long long)r.fingerprint);
    for (size_t i = 0; i < g.ends.n; i++)
        json_array_append_new(ends, json_string(dg_turn_end_name((enum dg_turn_end)g.ends.v[i])));
    *out = json_pack("{s:o, s:o, s:I, s:s}", "ids", ids, "ends", ends, "tokens", (json_int_t)r.at.pos, "kv", kv);
    if (!*out || json_array_size(ids) != g.ids.n || json_array_size(ends) != g.ends.n)
        st = DG_FAIL(err, DG_E_NOMEM, "no memory for a case");
done:
    dg_stage_destroy(g.stage);
    dg_ids_deinit(&g.ids);
    dg_ids_deinit(&g.ends);
    return st;
}

static bool same_in(const json_t *a, const json_t *b, const char *key) { return json_equal(json_object_get(a, key), json_object_get(b, key)); }

static void print_difference(const json_t *want, const json_t *got) {
    size_t i = 0;
    const json_t *a = json_object_get(want, "ids"), *b = json_object_get(got, "ids");
    while (i < json_array_size(a) && i < json_array_size(b) && json_equal(json_array_get(a, i), json_array_get(b, i)))
        i++;
    if (i < json_array_size(a) || i < json_array_size(b))
        printf("  token %zu of %zu is %lld, it was %lld (of %zu)\n", i, json_array_size(b), (long long)json_integer_value(json_array_get(b, i)),
               (long long)json_integer_value(json_array_get(a, i)), json_array_size(a));
    else
        printf("  the %zu token ids are the same\n", i);
    if (!same_in(want, got, "ends"))
        printf("  turns end otherwise\n");
    printf("  KV cache of %lld tokens %s, it was %lld tokens %s\n", (long long)json_integer_value(json_object_get(got, "tokens")),
           json_string_value(json_object_get(got, "kv")), (long long)json_integer_value(json_object_get(want, "tokens")),
           json_string_value(json_object_get(want, "kv")));
}

/* A case against its row of the table. borrowed: the table is another backend's, whose fingerprints say nothing here; a second run's do. */
static enum dg_status check_case(struct golden *p, const struct dg_golden_case *c, json_t *table, bool borrowed, int *differ, struct dg_error *err) {
    json_t *got = NULL, *again = NULL;
    const json_t *want = json_object_get(table, c->name);
    double t = dg_now();
    enum dg_status st = run_case(p, c, &got, err);
    if (st == DG_OK && borrowed)
        st = run_case(p, c, &again, err);
    if (st == DG_OK) {
        bool steady = !borrowed || json_equal(got, again);
        bool equal = want && steady && (borrowed ? same_in(want, got, "ids") && same_in(want, got, "ends") && same_in(want, got, "tokens")
                                                 : json_equal(want, got));
        printf("%-14s %s (%zu tokens, %.1f s%s)\n", c->name, equal ? "same" : !want ? "new" : "DIFFERS", json_array_size(json_object_get(got, "ids")),
               dg_now() - t, !borrowed ? "" : steady ? ", a second run too" : ", NOT THE SAME IN A SECOND RUN");
        if (!steady)
            print_difference(got, again);
        else if (want && !equal)
            print_difference(want, got);
        *differ += !equal;
        if (p->bless)
            json_object_set(table, c->name, got);
        fflush(stdout);
    } else {
        dg_error_prefix(err, "case %s", c->name);
    }
    json_decref(got);
    json_decref(again);
    return st;
}

static enum dg_status run_all(struct golden *p, int *differ, struct dg_error *err) {
    const char *backend = p->r.be->ops->name;
    json_t *table = json_object_get(p->file, backend);
    bool borrowed = !table && !p->bless;
    if (borrowed)
        table = json_object_get(p->file, "ref");
    if (!table && !p->bless)
        return DG_FAIL(err, DG_E_ARG, "the file has results neither of the backend %s nor of ref; write them with --bless", backend);
    if (!table) {
        table = json_object();
        json_object_set_new(p->file, backend, table);
    }
    size_t ran = 0;
    for (size_t i = 0; i < dg_golden_n_cases; i++) {
        const struct dg_golden_case *c = &dg_golden_cases[i];
        if (p->only && strcmp(p->only, c->name) != 0)
            continue;
        DG_TRY(check_case(p, c, table, borrowed, differ, err));
        ran++;
    }
    return ran ? DG_OK : DG_FAIL(err, DG_E_ARG, "there is no case %s", p->only);
}

static enum dg_status read_file(struct golden *p, const char *path, struct dg_error *err) {
    json_error_t je;
    struct stat sb;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode)) /* a pipe would be waited for */
        return DG_FAIL(err, DG_E_ARG, "%s is not a file", path);
    p->file = json_load_file(path, 0, &je);
    if (p->file && json_is_object(p->file))
        return DG_OK;
    if (p->bless && access(path, F_OK) != 0) {
        p->file = json_object();
        return p->file ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    return DG_FAIL(err, DG_E_IO, "cannot read %s: %s", path, p->file ? "it holds no object" : je.text);
}

static enum dg_status prepare(struct golden *p, const char *path, struct dg_error *err) {
    struct dg_session_opts ignored;
    /* of the switches only the cache folder counts: the cases are fixed */
    DG_TRY(dg_runtime_flags(&p->r, err));
    dg_flags_deinit(&p->r.flags);
    DG_TRY(read_file(p, path, err));
    DG_TRY(dg_runtime_find(&p->r, &p->model, err));
    DG_TRY(dg_runtime_model(&p->r, err));
    DG_TRY(dg_runtime_tokenizer(&p->r, err));
    DG_TRY(dg_turn_text_init(&p->text, p->r.tok, p->r.model->cfg.vocab, err));
    p->r.sessions = 2;
    return dg_runtime_backend(&p->r, &p->model, &ignored, err);
}

/* Written beside it first: what was blessed before is not lost to a full disk. */
static enum dg_status bless(const struct golden *p, const char *path, struct dg_error *err) {
    char part[4200], target[DG_PATH_MAX];
    DG_TRY(dg_save_target(path, target, err));
    enum dg_status st = DG_OK;
    if (snprintf(part, sizeof part, "%s.%ld.part", target, (long)getpid()) >= (int)sizeof part)
        st = DG_FAIL(err, DG_E_ARG, "the path %s is too long", path);
    else if (json_dump_file(p->file, part, JSON_INDENT(1) | JSON_SORT_KEYS) != 0 || rename(part, target) != 0)
        st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(errno));
    if (st == DG_E_IO)
        unlink(part);
    return st;
}

int dg_cmd_golden(int argc, char **argv) {
    struct golden p = {0};
    dg_model_args_init(&p.model);
    p.model.backend = "ref"; /* the only one whose bits no machine changes */
    const struct dg_arg args[] = {
        DG_MODEL_ARG(p.model),
        {"backend", 0, DG_ARG_STR, &p.model.backend, 0, 0, "NAME", "ref (the default: the same bits on every machine), cpu, cuda or auto"},
        {"device", 0, DG_ARG_INT, &p.model.device, 0, 255, "N", "which GPU, from 0"},
        DG_GPU_MEMORY_ARG(p.model),
        {"exact", 0, DG_ARG_FLAG, &p.model.exact, 0, 0, NULL, "f32 planes and sums"},
        {"threads", 't', DG_ARG_INT, &p.model.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"case", 0, DG_ARG_STR, &p.only, 0, 0, "NAME", "only this case"},
        {"bless", 0, DG_ARG_FLAG, &p.bless, 0, 0, NULL, "write what was found to the file"},
    };
    int first, status, differ = 0;
    if (!dg_args_parse(argc, argv, dg_command_find("golden"), args, DG_ARGS_COUNT(args), 0, 1, &first, &status))
        return status;
    const char *path = first < argc ? argv[first] : GOLDEN_FILE;
    struct dg_error err = {0};
    enum dg_status st = prepare(&p, path, &err);
    if (st == DG_OK)
        st = run_all(&p, &differ, &err);
    if (st == DG_OK && p.bless)
        st = bless(&p, path, &err);
    if (st != DG_OK)
        status = dg_cli_fail("golden", &err);
    else if (differ && !p.bless)
        status = DG_EXIT_FAILED;
    json_decref(p.file);
    dg_turn_text_deinit(&p.text);
    dg_runtime_close(&p.r);
    return status;
}
