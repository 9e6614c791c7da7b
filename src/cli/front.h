/* The engine behind its pipeline, set up from a runtime the way every command that generates wants it. */
#ifndef DG_CLI_FRONT_H
#define DG_CLI_FRONT_H

#include "cli/cli.h"
#include "message/turn_text.h"
#include "pipeline/pipeline.h"

/* --log-dir and --log-sync. */
struct dg_log_args {
    const char *dir;
    bool sync;
};
#define DG_LOG_ARGS(a)                                                                                                             \
    {"log-dir", 0, DG_ARG_STR, &(a).dir, 0, 0, "DIR", "append every op and event to DIR/ops.jsonl, for replay"},                    \
    {"log-sync", 0, DG_ARG_FLAG, &(a).sync, 0, 0, NULL, "with --log-dir: on the disk before the next op"}

struct dg_front_opts {
    struct dg_log_args log;
    size_t conversations, kv_budget; /* as in dg_engine_opts */
    const struct dg_turn_check *check; /* NULL = tool calls are not looked at. Borrowed for the front's life */
    bool repair;                     /* repair invalid tool calls, else generate the turn again, up to `retries` times */
    int32_t retries;
};

struct dg_front {
    struct dg_turn_text text;
    struct dg_engine_opts opts; /* gen: the model's defaults, the switches and the tokenizer's control tokens */
    struct dg_pipeline *p;
    int64_t ctx, room; /* context; tokens a prompt may have */
};

/* The runtime must hold model and tokenizer; its backend is opened here. f is zeroed. Owner: the caller, dg_front_close, before the
 * runtime's end. */
enum dg_status dg_front_open(struct dg_front *f, struct dg_runtime *r, const struct dg_model_args *a, const struct dg_front_opts *o,
                             struct dg_error *err) DG_MUST_CHECK;
void dg_front_close(struct dg_front *f);

#endif
