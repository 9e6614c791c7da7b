/* The benches behind `diffgemma bench`: CSV with the command, the machine and the floors as comment lines.
 *
 * Every row has the same columns: what; n (layers, tokens, steps or runs it covers); median, least and largest milliseconds; milliseconds and
 * count by n; MB that must move at least (weights, cache, logits); GB/s; share of the copy rate; TFLOP/s; share of the product rate. What does
 * not apply is empty. Times on a GPU are the device's, those of prefill, loop, load and turn rows the clock's. */
#ifndef DG_CLI_BENCH_H
#define DG_CLI_BENCH_H

#include "cli/cli.h"
#include "cli/long_work.h"
#include "ops/cuda/nvml.h"

#include <stdio.h>

#define DG_BENCH_REPEATS_MAX 1000
#define DG_BENCH_TURN_CANVASES 8 /* room behind the prompt of a turn */
#define DG_BENCH_COLUMNS "what,n,ms,ms_min,ms_max,ms_each,per_s,MB,GB_s,of_copy,TFLOPs,of_gemm"

enum dg_bench_kind { DG_BENCH_STEP, DG_BENCH_PREFILL, DG_BENCH_LOAD, DG_BENCH_TURN };

struct dg_bench_opts {
    enum dg_bench_kind kind;
    struct dg_model_args model; /* model.ctx is set by the bench */
    const char *synth;          /* 26b-a4b or a config.json: random weights of that shape instead of a model. NULL = the model */
    const char *experts;        /* of random weights: q4, q6, nvfp4, or, drawn on a GPU only, bf16 */
    int64_t layers;             /* of random weights: the first so many, 0 = all */
    int64_t ctx;                /* step: tokens in the cache */
    int64_t rows;               /* step: positions of the canvas; prefill: of a chunk. 0 = a canvas, a session's usual chunk */
    int64_t tokens;             /* prefill and turn: of the prompt */
    int64_t steps;              /* of a block; 0 = as the model stops */
    int64_t passes;             /* step: that are compared with each other before any is timed; 0 = 2 */
    double energy;              /* step, on a GPU: seconds that each op runs while the card's energy is read; 0 = not at all */
    int64_t repeat;             /* timed runs, at most DG_BENCH_REPEATS_MAX */
    const char *survivors;      /* of random weights: few, as a pack of them has, or, drawn on a GPU only, many; NULL = few */
    int64_t spread;             /* with many: the logits' standard deviation, about */
    const char *prompt;         /* turn with a model */
    bool no_ops;                /* whole passes only */
    bool brief;                 /* step: sparse alone, without the loops of a turn */
    const char *command;        /* for the first comment line */
    FILE *out;
};

/* Defaults of every kind: context 512, 2048 tokens of prefill, 30 of a turn's prompt, 7 repeats, all layers in q4. */
void dg_bench_opts_init(struct dg_bench_opts *o, enum dg_bench_kind kind);
/* Measures and prints. SIGINT ends it with DG_E_CANCELLED. Errors: DG_E_ARG for values that do not suit the model, and what opening and
 * running the model gives. */
enum dg_status dg_bench(const struct dg_bench_opts *o, struct dg_error *err) DG_MUST_CHECK;

/* ---- for the benches' own files ---- */

struct dg_bench_rig {
    const struct dg_bench_opts *o;
    struct dg_runtime r;
    struct dg_long_work work;
    struct dg_stream_opts stream; /* threads and Ctrl-C */
    struct dg_session_opts so;
    struct dg_session *s;
    struct dg_config cfg; /* of random weights */
    struct dg_session_opts expected; /* what the session will be like; ctx counts tokens alone */
    bool cuda;
    struct dg_nvml nvml; /* with o->energy */
    double copy, gemm; /* floors: bytes and operations a second; 0 = not measured */
    char dir[64];      /* folder of the pack of random weights, "" = none */
};

struct dg_bench_times {
    double ms, min, max;
};

/* What must be moved and computed. */
struct dg_bench_cost {
    double bytes, flops;
};

/* The model or its stand-in, and the backend on it; rig->r.be holds them then. A session of so many tokens and that chunk is what a GPU with a
 * budget leaves room for. */
enum dg_status dg_bench_open(struct dg_bench_rig *b, int64_t tokens, int64_t chunk, struct dg_error *err) DG_MUST_CHECK;
/* A folder with a pack of the random weights asked for; dg_bench_close removes it. */
enum dg_status dg_bench_make_pack(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
/* A session with room for so many tokens and a canvas; the comment lines; floors measured. */
enum dg_status dg_bench_session(struct dg_bench_rig *b, int64_t tokens, int64_t chunk, struct dg_error *err) DG_MUST_CHECK;
void dg_bench_close(struct dg_bench_rig *b);

/* So many drawn token ids. NULL when there is no memory. Owner: the caller, dg_free. */
int32_t *dg_bench_ids(const struct dg_bench_rig *b, int64_t n);
/* Runs fn o->repeat times after runs that are not counted; device time on a GPU. Errors: fn's, the backend's, DG_E_CANCELLED. */
typedef enum dg_status dg_bench_fn(void *ctx, struct dg_error *err);
enum dg_status dg_bench_time(struct dg_bench_rig *b, dg_bench_fn *fn, void *ctx, struct dg_bench_times *t, struct dg_error *err) DG_MUST_CHECK;
/* What runs in one row: so many launches of an op, or a step. */
struct dg_bench_load {
    dg_bench_fn *fn; /* NULL: nothing */
    void *ctx;
    int64_t n;   /* launches of a call */
    double ms;   /* of a call, as timed */
    bool record; /* fn runs ops alone, all of whose work can be recorded once it has run */
};
/* Times fn as n launches and prints its row, and that of its energy when it is asked for; fn runs ops alone. */
enum dg_status dg_bench_op(struct dg_bench_rig *b, const char *what, int64_t n, dg_bench_fn *fn, void *ctx, struct dg_bench_cost cost,
                           struct dg_error *err) DG_MUST_CHECK;
/* The energy of the load that runs without a pause for o->energy seconds, after a quarter as long that does not count, as one comment line of the
 * columns that dg_bench_energy_begin prints: launches queued meanwhile; device milliseconds of one; mean watts of the card; millijoules of a launch,
 * their product; seconds and joules between two changes of the counter, whose quotient the watts are; clock in the middle. What does not apply or is
 * not known is empty. Nothing without o->energy. Errors: fn's, NVML's, DG_E_BACKEND when the counter does not move, DG_E_CANCELLED. */
enum dg_status dg_bench_energy(struct dg_bench_rig *b, const char *what, const struct dg_bench_load *run, struct dg_error *err) DG_MUST_CHECK;
/* Before anything else is opened, so that a missing library is known at once; and once there is a session. */
enum dg_status dg_bench_energy_open(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_bench_energy_begin(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
/* Median and ends of n values, which are sorted. */
struct dg_bench_times dg_bench_spread(double *ms, size_t n);
bool dg_bench_cancelled(const struct dg_bench_rig *b);
/* One row; n, bytes, operations: 0 = does not apply. */
void dg_bench_row(struct dg_bench_rig *b, const char *what, int64_t n, const struct dg_bench_times *t, double bytes, double flops);

/* Of a pass of the layers; batch as the layers would see it. */
struct dg_bench_cost dg_bench_layers_cost(const struct dg_bench_rig *b, const struct dg_batch *batch);
double dg_bench_mat_bytes(const struct dg_mat *m);
/* A row an op and kind of layer: all layers of the kind in turn, so that weights come from memory. */
enum dg_status dg_bench_layers(struct dg_bench_rig *b, const struct dg_batch *batch, struct dg_error *err) DG_MUST_CHECK;

enum dg_status dg_bench_step(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_bench_prefill(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_bench_load(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_bench_turn(struct dg_bench_rig *b, struct dg_error *err) DG_MUST_CHECK;

#endif
