/* quantize: a checkpoint to a pack. */
#include "cli/cli.h"

#include "cli/long_work.h"
#include "convert/quantize.h"

#include <stdio.h>

struct options {
    struct dg_model_args model;
    const char *out, *profile, *repo, *revision;
    struct dg_arg_list set, codes;
    int64_t threads;
    bool overlay, vision, quiet;
};

static enum dg_status policy(const struct options *o, struct dg_policy *p, struct dg_error *err) {
    DG_TRY(dg_policy_init(p, o->profile, err));
    for (int i = 0; i < o->set.n; i++)
        DG_TRY(dg_policy_set(p, o->set.v[i], err));
    for (int i = 0; i < o->codes.n; i++)
        DG_TRY(dg_policy_set_codes(p, o->codes.v[i], err));
    return dg_policy_check(p, err);
}

/* Few bits in attention or dense layers cost more steps than they save bytes for. */
static void warn(const struct dg_policy *p) {
    enum dg_format a = p->format[DG_CLASS_ATTN], d = p->format[DG_CLASS_DENSE];
    if (a == DG_FMT_Q4_BLOCK || a == DG_FMT_NVFP4_BLOCK || d == DG_FMT_Q4_BLOCK || d == DG_FMT_NVFP4_BLOCK)
        fprintf(stderr, "diffgemma quantize: note: 4-bit attention or dense layers can cost more denoising steps; docs/quantisation.md has figures\n");
}

static enum dg_status run(const struct options *o, struct dg_runtime *r, struct dg_long_work *lw, struct dg_quantize_result *res,
                          struct dg_error *err) {
    struct dg_quantize_opts q = {.out = o->out, .overlay = o->overlay, .vision = o->vision, .repo = o->repo, .revision = o->revision};
    if (!o->out)
        return DG_FAIL(err, DG_E_ARG, "no output: give -o FOLDER");
    if (!o->profile)
        return DG_FAIL(err, DG_E_ARG, "no profile: give --profile q4, q6, nvfp4 or nvfp4x");
    if ((o->repo || o->revision) && !o->overlay)
        return DG_FAIL(err, DG_E_ARG, "--hf-repo and --hf-revision say what an overlay lies over: give --overlay too");
    DG_TRY(policy(o, &q.policy, err));
    DG_TRY(dg_runtime_flags(r, err));
    DG_TRY(dg_runtime_find(r, &o->model, err));
    q.source = r->dir;
    q.stream = dg_long_work_opts(lw, o->threads);
    warn(&q.policy);
    return dg_quantize(&q, res, err);
}

int dg_cmd_quantize(int argc, char **argv) {
    struct options o = {0};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"output", 'o', DG_ARG_STR, &o.out, 0, 0, "FOLDER", "the pack to make; must not exist"},
        {"profile", 0, DG_ARG_STR, &o.profile, 0, 0, "NAME", "q4, q6, nvfp4 or nvfp4x (experts only)"},
        {"set", 0, DG_ARG_LIST, &o.set, 0, 0, "CLASS=FORMAT", "another format for a class: experts, attn, dense, sc, vision; raw, q4, q6, q8, nvfp4"},
        {"overlay", 0, DG_ARG_FLAG, &o.overlay, 0, 0, NULL, "refer to the checkpoint for what stays raw instead of copying it"},
        {"vision", 0, DG_ARG_FLAG, &o.vision, 0, 0, NULL, "take the vision tower along"},
        {"hf-repo", 0, DG_ARG_STR, &o.repo, 0, 0, "ORG/NAME", "base model of an overlay (default: from the cache folder's name)"},
        {"hf-revision", 0, DG_ARG_STR, &o.revision, 0, 0, "REV", "its revision"},
        {"codes", 0, DG_ARG_LIST, &o.codes, 0, 0, "[CLASS=]HOW", "how codes are chosen: plain or fit (default: the better one of each class)"},
        {"threads", 't', DG_ARG_INT, &o.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"quiet", 'q', DG_ARG_FLAG, &o.quiet, 0, 0, NULL, "no progress"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("quantize"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_long_work lw;
    struct dg_quantize_result res;
    dg_long_work_begin(&lw, "quantize", o.quiet);
    enum dg_status st = run(&o, &r, &lw, &res, &err);
    double s = dg_long_work_end(&lw);
    if (st == DG_OK)
        printf("%s: %zu tensors, %zu of them quantised, %.2f GiB from %.2f GiB in %.1f s (%.0f MB/s)\n", o.out, res.n_tensors, res.n_quantized,
               (double)res.pack_bytes / (1 << 30), (double)res.source_bytes / (1 << 30), s, (double)res.source_bytes / 1e6 / s);
    else
        status = dg_cli_fail("quantize", &err);
    dg_runtime_close(&r);
    return status;
}
