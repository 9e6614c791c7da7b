/* repack: a self-contained pack to a layered one, and back. */
#include "cli/cli.h"

#include "cli/long_work.h"
#include "convert/repack.h"

#include <stdio.h>

struct options {
    struct dg_model_args model;
    const char *out, *source, *repo, *revision;
    int64_t threads;
    bool overlay, monolithic, quiet;
};

static enum dg_status run(const struct options *o, struct dg_runtime *r, struct dg_long_work *lw, struct dg_repack_result *res,
                          struct dg_error *err) {
    struct dg_repack_opts p = {.out = o->out, .overlay = o->overlay, .base = o->source, .repo = o->repo, .revision = o->revision};
    if (!o->out)
        return DG_FAIL(err, DG_E_ARG, "no output: give -o FOLDER");
    if (o->overlay == o->monolithic)
        return DG_FAIL(err, DG_E_ARG, "give either --overlay or --monolithic");
    if (o->monolithic && (o->source || o->repo || o->revision))
        return DG_FAIL(err, DG_E_ARG, "--source, --hf-repo and --hf-revision go with --overlay");
    DG_TRY(dg_runtime_flags(r, err));
    DG_TRY(dg_runtime_find(r, &o->model, err));
    p.pack = r->dir;
    p.stream = dg_long_work_opts(lw, o->threads);
    return dg_repack(&p, res, err);
}

int dg_cmd_repack(int argc, char **argv) {
    struct options o = {0};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"output", 'o', DG_ARG_STR, &o.out, 0, 0, "FOLDER", "the pack to make; must not exist"},
        {"overlay", 0, DG_ARG_FLAG, &o.overlay, 0, 0, NULL, "refer to the base checkpoint for every tensor it has byte for byte"},
        {"monolithic", 0, DG_ARG_FLAG, &o.monolithic, 0, 0, NULL, "bring all of a layered pack into one blob"},
        {"source", 's', DG_ARG_STR, &o.source, 0, 0, "MODEL", "the base checkpoint (default: the one the pack names, in the cache)"},
        {"hf-repo", 0, DG_ARG_STR, &o.repo, 0, 0, "ORG/NAME", "as which model the base is recorded (default: from the cache folder's name)"},
        {"hf-revision", 0, DG_ARG_STR, &o.revision, 0, 0, "REV", "its revision"},
        {"threads", 't', DG_ARG_INT, &o.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"quiet", 'q', DG_ARG_FLAG, &o.quiet, 0, 0, NULL, "no progress"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("repack"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_long_work lw;
    struct dg_repack_result res = {0};
    dg_long_work_begin(&lw, "repack", o.quiet);
    enum dg_status st = run(&o, &r, &lw, &res, &err);
    double s = dg_long_work_end(&lw);
    if (st == DG_OK) {
        if (res.n_differ)
            fprintf(stderr, "diffgemma repack: %zu raw tensors are not the base's and stay in the pack:\n%s", res.n_differ, dg_buf_cstr(&res.differ));
        printf("%s: %zu tensors, %zu of them in the base checkpoint, blob %.2f GiB, %.1f s\n", o.out, res.n_tensors, res.n_external,
               (double)res.blob_bytes / (1 << 30), s);
    } else
        status = dg_cli_fail("repack", &err);
    dg_buf_deinit(&res.differ);
    dg_runtime_close(&r);
    return status;
}
