/* synth: a model of random weights. */
#include "cli/cli.h"

#include "cli/long_work.h"
#include "convert/synth.h"

#include <stdio.h>
#include <string.h>

struct options {
    const char *shape, *out, *profile, *tokenizer;
    struct dg_arg_list set, codes;
    int64_t layers, shards, threads;
    uint64_t seed;
    bool checkpoint, quiet;
};

static enum dg_status run(const struct options *o, struct dg_long_work *lw, struct dg_synth_result *res, struct dg_error *err) {
    struct dg_synth_opts s = {.shape = o->shape, .layers = (int)o->layers, .out = o->out, .checkpoint = o->checkpoint, .shards = (int)o->shards,
                              .seed = o->seed, .tokenizer = o->tokenizer};
    if (!o->shape || !o->out)
        return DG_FAIL(err, DG_E_ARG, "give --shape 26b-a4b or --shape FILE.json, and -o FOLDER");
    if (o->checkpoint && (o->profile || o->set.n))
        return DG_FAIL(err, DG_E_ARG, "--profile and --set are for packs: leave them or --checkpoint out");
    DG_TRY(dg_policy_init(&s.policy, o->profile ? o->profile : "q4", err));
    /* random weights gain nothing from a search for better codes */
    DG_TRY(dg_policy_set_codes(&s.policy, dg_codes_name(DG_CODES_PLAIN), err));
    for (int i = 0; i < o->set.n; i++)
        DG_TRY(dg_policy_set(&s.policy, o->set.v[i], err));
    for (int i = 0; i < o->codes.n; i++)
        DG_TRY(dg_policy_set_codes(&s.policy, o->codes.v[i], err));
    DG_TRY(dg_policy_check(&s.policy, err));
    s.stream = dg_long_work_opts(lw, o->threads);
    return dg_synth(&s, res, err);
}

int dg_cmd_synth(int argc, char **argv) {
    struct options o = {.seed = 1};
    const struct dg_arg args[] = {
        {"shape", 0, DG_ARG_STR, &o.shape, 0, 0, "SHAPE", "26b-a4b, or the path of a config.json"},
        {"layers", 0, DG_ARG_INT, &o.layers, 1, 512, "N", "only the first N layers (default: all)"},
        {"output", 'o', DG_ARG_STR, &o.out, 0, 0, "FOLDER", "the model to make; must not exist"},
        {"profile", 0, DG_ARG_STR, &o.profile, 0, 0, "NAME", "of a pack: q4 (default), q6, nvfp4, nvfp4x"},
        {"set", 0, DG_ARG_LIST, &o.set, 0, 0, "CLASS=FORMAT", "as in quantize"},
        {"codes", 0, DG_ARG_LIST, &o.codes, 0, 0, "[CLASS=]HOW", "as in quantize (default: plain)"},
        {"checkpoint", 0, DG_ARG_FLAG, &o.checkpoint, 0, 0, NULL, "make a safetensors checkpoint in bf16 instead of a pack"},
        {"shards", 0, DG_ARG_INT, &o.shards, 1, 1000, "N", "files of the checkpoint (default: 5 GB each)"},
        {"seed", 0, DG_ARG_U64, &o.seed, 0, 0, "N", "of the random weights (default 1)"},
        {"tokenizer", 0, DG_ARG_STR, &o.tokenizer, 0, 0, "FILE", "a tokenizer.json to put beside the weights"},
        {"threads", 't', DG_ARG_INT, &o.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"quiet", 'q', DG_ARG_FLAG, &o.quiet, 0, 0, NULL, "no progress"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("synth"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_error err = {0};
    struct dg_long_work lw;
    struct dg_synth_result res;
    dg_long_work_begin(&lw, "synth", o.quiet);
    enum dg_status st = run(&o, &lw, &res, &err);
    double s = dg_long_work_end(&lw);
    if (st == DG_OK)
        printf("%s: %zu tensors, %.3f billion parameters, %.2f GiB in %.1f s\n", o.out, res.n_tensors, (double)res.params / 1e9,
               (double)res.bytes / (1 << 30), s);
    else
        status = dg_cli_fail("synth", &err);
    return status;
}
