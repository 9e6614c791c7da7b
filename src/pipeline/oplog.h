/* The op log: every op and every event of a session as one line of JSON each, so that what happened can be run again and compared.
 *
 * A file holds any number of sessions, also of several processes at a time: each line begins {"s":"ID", with its session's id and is written
 * by one call. Lines: "t" is "session" (the head: form version, model, engine), "op", "prefill", "step", "block", "note", "answer". A process
 * that was killed leaves at most one line cut short, which readers pass over. Numbers that were floating point are written so that they read
 * back exactly. docs/pipeline.md. */
#ifndef DG_PIPELINE_OPLOG_H
#define DG_PIPELINE_OPLOG_H

#include "core/buf.h"
#include "pipeline/engine.h"

#include <jansson.h>

#define DG_OPLOG_VERSION 1
#define DG_OPLOG_LINE_MAX ((size_t)256 << 20) /* bytes of a line; ops of DG_IDS_MAX tokens do not occur */
#define DG_OPLOG_FILE "ops.jsonl"

/* What a session's head says. Strings borrowed. */
struct dg_oplog_head {
    const char *program;   /* version of the program */
    const char *model_dir;
    uint64_t model_id;     /* dg_model_id */
    const char *backend;
    const struct dg_engine_opts *engine;
    size_t conversations;  /* most alive at a time */
    bool text;             /* the engine was given blank and shows_nothing (by the model's tokenizer) */
};

/* Renders lines. The step lines hold what changed since the step before, so one writer serves one session. */
struct dg_oplog_writer {
    char id[17];
    uint64_t op;     /* ops so far */
    int32_t *prev;   /* the last step's ids */
    int32_t cap;
    struct dg_buf line;
};
/* id: at most 16 characters, letters and digits. */
void dg_oplog_writer_init(struct dg_oplog_writer *w, const char *id);
void dg_oplog_writer_deinit(struct dg_oplog_writer *w);
/* Each renders a line with its newline into w->line and returns that buffer's status. dg_oplog_op counts the op; events belong to the last one. */
enum dg_status dg_oplog_head(struct dg_oplog_writer *w, const struct dg_oplog_head *h);
enum dg_status dg_oplog_op(struct dg_oplog_writer *w, const struct dg_op *op);
enum dg_status dg_oplog_event(struct dg_oplog_writer *w, const struct dg_event *e);

/* --- reading --- */

/* An op read from its line, with what it owns: dg_op_deinit of op. defaults: options that a Generate without its own had. */
enum dg_status dg_oplog_read_op(const json_t *line, struct dg_op *op, struct dg_error *err) DG_MUST_CHECK;
/* The head's engine options; fields that the line lacks or has wrong are an error. blank and shows_nothing are left NULL. */
struct dg_oplog_session {
    struct dg_engine_opts engine;
    char model_dir[4096], backend[32];
    uint64_t model_id;
    bool text;
};
enum dg_status dg_oplog_read_head(const json_t *line, struct dg_oplog_session *out, struct dg_error *err) DG_MUST_CHECK;

/* A step line as a step: arrays of n in the reader, valid until the next call; p_max to 1/255. For playing a log back. */
struct dg_oplog_steps {
    int32_t *ids;
    float *p_max;
    uint8_t *accept;
    int32_t cap;
    struct dg_step_result result;
};
enum dg_status dg_oplog_read_step(struct dg_oplog_steps *s, const json_t *line, struct dg_step_event *out, struct dg_error *err) DG_MUST_CHECK;
void dg_oplog_steps_deinit(struct dg_oplog_steps *s);

#endif
