/* Every op of the CPU backend at every level against the case table: cpu_ops [--cpu LEVEL] [--seed N] [--repeat N] [--filter OP] [--small] [--quick]
 * [--emulated] [--no-guard] [--record | --replay]
 *
 * Prints TAP. Each level that this machine has, or the program emulates, runs with f32 and with bf16 planes, its inputs and outputs ending
 * at guard pages, on one thread and on three: both must give the same bits. --quick leaves out the bf16
 * planes where they are f32 arithmetic behind a conversion, and the run on one thread; --no-guard the guard pages.
 *
 * cpu_ops --record ... | cpu_ops --replay ..., same options and one level for both: the left runs the ops and writes what they leave, the
 * right checks it. So an emulator runs the kernels alone; the sums in double and the comparisons run at full speed. */
#include "ops/cpu/cpu.h"
#include "support/op_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const bool cpu_ops_emulated __attribute__((weak)); /* linked with kernels that need no AVX-512 */

static bool runnable(enum dg_cpu_level l) {
    if (&cpu_ops_emulated)
        return l == DG_CPU_AVX512 || l == DG_CPU_AVX512BF16 || l == DG_CPU_AMX;
    return dg_cpu_level_here(l);
}

struct options {
    const char *level, *filter;
    uint64_t seed;
    int repeat;
    bool small, emulated, quick, no_guard;
    FILE *record, *replay;
};

static void report(const struct op_cases *c, const char *what) {
    int theirs[2] = {c->failed, c->passed};
    if (c->record)
        fwrite(theirs, sizeof theirs, 1, c->record);
    if (c->replay && (fread(theirs, sizeof theirs, 1, c->replay) != 1 || theirs[0] || theirs[1] != c->passed + c->failed))
        printf("not ok - %s: the recorded run ended early, or failed in %d cases itself\n", what, theirs[0]);
    else if (c->failed || !c->passed)
        printf("not ok - %s: %d of %d cases failed\n", what, c->failed, c->failed + c->passed);
    else
        printf("ok - %s: %d cases\n", what, c->passed);
}

/* The digest of the results. */
static uint64_t run(const struct options *o, enum dg_cpu_level l, enum dg_cpu_planes planes, int threads) {
    struct dg_error err = {0};
    struct op_cases c = {.seed = o->seed, .filter = o->filter, .small = o->small, .emulated = o->emulated, .guard = !o->no_guard && !o->replay,
                         .record = o->record, .replay = o->replay};
    struct dg_cpu_opts opts = {.threads = o->replay ? 1 : threads, .cap = o->replay ? DG_CPU_SCALAR : l, .planes = planes};
    char what[96];
    snprintf(what, sizeof what, "ops of level %s, %s planes, %d threads", dg_cpu_level_name(l), planes == DG_CPU_PLANES_F32 ? "f32" : "bf16",
             threads);
    if (dg_cpu_create(&c.be, op_cases_model(), &opts, &err) != DG_OK) {
        printf("not ok - %s: %s\n", what, dg_error_text(&err));
        dg_error_clear(&err);
        return 0;
    }
    bool rounded = planes == DG_CPU_PLANES_BF16 && dg_cpu_level_bf16(l);
    c.weight_round = rounded ? 0x1p-8 : 0;
    printf("# %s, seed %llu\n", what, (unsigned long long)c.seed);
    for (int i = 0; i < o->repeat; i++, c.seed++)
        op_cases_run(&c);
    dg_backend_destroy(c.be);
    report(&c, what);
    return c.digest;
}

int main(int argc, char **argv) {
    struct options o = {.seed = 1, .repeat = 1};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--small") == 0)
            o.small = true;
        else if (strcmp(a, "--emulated") == 0)
            o.small = o.emulated = true;
        else if (strcmp(a, "--quick") == 0)
            o.quick = true;
        else if (strcmp(a, "--no-guard") == 0)
            o.no_guard = true;
        else if (strcmp(a, "--record") == 0 && !o.record) {
            o.record = fdopen(dup(1), "wb"); /* lines for people go where errors go */
            if (!o.record || dup2(2, 1) != 1)
                return 2;
        } else if (strcmp(a, "--replay") == 0)
            o.replay = stdin;
        else if (v && strcmp(a, "--cpu") == 0)
            o.level = argv[++i];
        else if (v && strcmp(a, "--filter") == 0)
            o.filter = argv[++i];
        else if (v && strcmp(a, "--seed") == 0)
            o.seed = strtoull(argv[++i], NULL, 0);
        else if (v && strcmp(a, "--repeat") == 0)
            o.repeat = (int)strtol(argv[++i], NULL, 10);
        else {
            fputs("usage: cpu_ops [--cpu LEVEL] [--seed N] [--repeat N] [--filter OP] [--small | --emulated] [--quick] [--no-guard] "
                  "[--record | --replay]\n", stderr);
            return 2;
        }
    }
    int levels = 0;
    for (int l = 0; l < DG_CPU_LEVELS; l++) {
        if ((o.replay ? !o.level : !runnable((enum dg_cpu_level)l)) || (o.level && strcmp(o.level, dg_cpu_level_name((enum dg_cpu_level)l)) != 0))
            continue;
        levels++;
        bool own_bf16 = dg_cpu_level_bf16((enum dg_cpu_level)l);
        for (int p = 0; p < (o.quick && !own_bf16 ? 1 : 2); p++) {
            enum dg_cpu_planes planes = p ? DG_CPU_PLANES_BF16 : DG_CPU_PLANES_F32;
            uint64_t three = run(&o, (enum dg_cpu_level)l, planes, 3);
            if (!o.quick)
                printf("%sok - level %s, %s planes: the same bits on one thread and on three\n",
                       run(&o, (enum dg_cpu_level)l, planes, 1) == three ? "" : "not ", dg_cpu_level_name((enum dg_cpu_level)l), p ? "bf16" : "f32");
        }
    }
    if (!levels)
        printf("not ok - no level to run\n");
    return o.record && fclose(o.record) != 0;
}
