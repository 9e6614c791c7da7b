/* bench: how fast a model, or random weights of its shape, run here. */
#include "cli/bench.h"

#include <string.h>

static bool kind_of(const char *name, enum dg_bench_kind *kind) {
    static const char *const names[] = {"step", "prefill", "load", "turn"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            *kind = (enum dg_bench_kind)i;
            return true;
        }
    return false;
}

/* An option that says nothing of what is measured is a mistake, not a wish to be left out in silence. */
static enum dg_status applies(const struct dg_bench_opts *o, const char *kind, struct dg_error *err) {
    enum { STEP = 1 << DG_BENCH_STEP, PREFILL = 1 << DG_BENCH_PREFILL, TURN = 1 << DG_BENCH_TURN };
    const struct {
        const char *name;
        bool given;
        int kinds;
    } some[] = {
        {"ctx", o->ctx >= 0, STEP | PREFILL}, {"rows", o->rows > 0, STEP | PREFILL}, {"tokens", o->tokens > 0, PREFILL | TURN},
        {"prompt", o->prompt, TURN},          {"steps", o->steps > 0, STEP | TURN},  {"no-ops", o->no_ops, STEP | PREFILL},
        {"brief", o->brief, STEP},            {"passes", o->passes > 0, STEP},
        {"energy", o->energy > 0, STEP},
    };
    for (size_t i = 0; i < DG_ARGS_COUNT(some); i++)
        if (some[i].given && !(some[i].kinds & 1 << o->kind))
            return DG_FAIL(err, DG_E_ARG, "--%s has no meaning for bench %s: leave it out", some[i].name, kind);
    if (o->energy > 0 && strcmp(o->model.backend, "auto") != 0 && strcmp(o->model.backend, "cuda") != 0)
        return DG_FAIL(err, DG_E_ARG, "--energy is what a GPU draws: it goes with --backend cuda");
    const char *alone = o->layers ? "layers" : o->experts ? "experts" : o->survivors ? "survivors" : o->spread ? "spread" : NULL;
    if (alone && !o->synth)
        return DG_FAIL(err, DG_E_ARG, "--%s goes with --synth", alone);
    if (o->spread && o->survivors && strcmp(o->survivors, "many") != 0)
        return DG_FAIL(err, DG_E_ARG, "--spread goes with --survivors many");
    if (o->kind == DG_BENCH_TURN && o->synth && o->prompt)
        return DG_FAIL(err, DG_E_ARG, "random weights have no tokenizer for --prompt: give the number of its tokens (-n)");
    if (o->kind == DG_BENCH_TURN && !o->synth && o->tokens)
        return DG_FAIL(err, DG_E_ARG, "the prompt of a turn of a model is a text (-p); -n goes with --synth");
    if (o->kind == DG_BENCH_PREFILL && o->ctx >= 0 && o->tokens && o->ctx != o->tokens)
        return DG_FAIL(err, DG_E_ARG, "--ctx and -n are the same for bench prefill: give one");
    return DG_OK;
}

/* The command as the first line of the CSV says it, on one line whatever the arguments hold. */
static void say_command(struct dg_buf *out, int argc, char **argv) {
    dg_buf_init(out, 4096);
    (void)dg_buf_str(out, "diffgemma");
    for (int i = 0; i < argc; i++) {
        (void)dg_buf_chr(out, ' ');
        for (const char *p = argv[i]; *p; p++)
            (void)dg_buf_chr(out, *p >= 0x20 && *p < 0x7f ? *p : '?');
    }
}

int dg_cmd_bench(int argc, char **argv) {
    struct dg_bench_opts o;
    struct dg_buf command;
    struct dg_error err = {0};
    dg_bench_opts_init(&o, DG_BENCH_STEP);
    const struct dg_bench_opts usual = o;
    o.tokens = o.spread = 0; /* until it is known what was given */
    o.experts = NULL;
    o.ctx = -1;
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"synth", 0, DG_ARG_STR, &o.synth, 0, 0, "SHAPE",
         "random weights instead: 26b-a4b or the path of a config.json; drawn on the GPU, or a pack in memory"},
        {"layers", 0, DG_ARG_INT, &o.layers, 1, 512, "N", "with --synth: only the first N layers (default: all)"},
        {"experts", 0, DG_ARG_STR, &o.experts, 0, 0, "FORMAT", "with --synth: q4 (default), q6, nvfp4, or on a GPU bf16"},
        {"survivors", 0, DG_ARG_STR, &o.survivors, 0, 0, "HOW",
         "with --synth: ids a row's probability falls on: few (default), as of trained logits and packs, or on a GPU many"},
        {"spread", 0, DG_ARG_INT, &o.spread, 1, 20, "N", "on a GPU, implies --survivors many: standard deviation of the logits, about (default 5)"},
        {"ctx", 'c', DG_ARG_INT, &o.ctx, 0, DG_CTX_MAX, "N", "step: tokens in the cache (default 512); prefill: the same as -n"},
        {"rows", 0, DG_ARG_INT, &o.rows, 1, 65536, "N", "step: positions (default: a canvas); prefill: tokens of a chunk (default: a session's)"},
        {"tokens", 'n', DG_ARG_INT, &o.tokens, 1, DG_CTX_MAX, "N", "of the prompt; prefill: default 2048; turn with --synth: default 30"},
        {"prompt", 'p', DG_ARG_STR, &o.prompt, 0, 0, "TEXT", "turn: the prompt (default: one that asks for a story)"},
        {"steps", 0, DG_ARG_INT, &o.steps, 1, DG_STEPS_MAX, "N", "of a block, all run (default 8; a turn of a model: as it stops)"},
        {"passes", 0, DG_ARG_INT, &o.passes, 2, 10000000, "N", "step: passes that must leave the same, before any is timed (default 2)"},
        {"energy", 0, DG_ARG_SECONDS, &o.energy, 0, 600, "[SECONDS]",
         "step on a GPU: also each op's energy, running without a pause for so long (default 1)"},
        {"repeat", 'r', DG_ARG_INT, &o.repeat, 1, DG_BENCH_REPEATS_MAX, "N", "timed runs (default 7)"},
        {"no-ops", 0, DG_ARG_FLAG, &o.no_ops, 0, 0, NULL, "step and prefill: whole passes only"},
        {"brief", 0, DG_ARG_FLAG, &o.brief, 0, 0, NULL, "step: the pass with sparse self-conditioning and its ops alone"},
        {"kernels", 0, DG_ARG_STR, &o.model.cuda_kernels, 0, 0, "LIST", "as DGQ_CUDA_KERNELS"},
        {"exact", 0, DG_ARG_FLAG, &o.model.exact, 0, 0, NULL, "f32 planes and sums"},
        {"kv", 0, DG_ARG_STR, &o.model.kv, 0, 0, "TYPE", "KV element type: f16 (default), f32 or q8"},
        {"backend", 0, DG_ARG_STR, &o.model.backend, 0, 0, "NAME", "auto (a GPU if there is one), cuda, cpu or ref (plain C)"},
        {"device", 0, DG_ARG_INT, &o.model.device, 0, 255, "N", "which GPU, from 0"},
        DG_GPU_MEMORY_ARG(o.model),
        {"cpu", 0, DG_ARG_STR, &o.model.cpu, 0, 0, "LEVEL", "strongest instruction set to use"},
        {"threads", 't', DG_ARG_INT, &o.model.threads, 0, 256, "N", "CPU threads (default: all)"},
    };
    int first, status;
    say_command(&command, argc, argv); /* before the options are put in front */
    if (!dg_args_parse(argc, argv, dg_command_find("bench"), args, DG_ARGS_COUNT(args), 1, 1, &first, &status)) {
        dg_buf_deinit(&command);
        return status;
    }
    o.command = dg_buf_cstr(&command);
    enum dg_status st = kind_of(argv[first], &o.kind) ? DG_OK : DG_FAIL(&err, DG_E_ARG, "'%s' is none of step, prefill, load, turn", argv[first]);
    if (st == DG_OK)
        st = applies(&o, argv[first], &err);
    if (o.energy > 0)
        o.model.backend = "cuda"; /* where there is none, that is the error, not another backend */
    o.experts = o.experts ? o.experts : usual.experts;
    o.survivors = o.survivors || !o.spread ? o.survivors : "many";
    o.spread = o.spread ? o.spread : usual.spread;
    if (!o.tokens)
        o.tokens = o.kind == DG_BENCH_TURN ? 30 : o.kind == DG_BENCH_PREFILL && o.ctx > 0 ? o.ctx : 2048;
    o.ctx = o.ctx < 0 ? usual.ctx : o.ctx;
    if (st == DG_OK)
        st = dg_bench(&o, &err);
    dg_buf_deinit(&command);
    return st == DG_OK ? status : dg_cli_fail("bench", &err);
}
