/* What ask shows: text as blocks commit (thoughts on stderr, a tool call as the line "call NAME ARGUMENTS"), a progress line on a
 * terminal, a line a block with -v, or one JSON object. */
#ifndef DG_CLI_ASK_REPORT_H
#define DG_CLI_ASK_REPORT_H

#include "message/reply.h"
#include "message/turn_text.h"

#include <jansson.h>
#include <stdio.h>

struct dg_ask_report {
    const struct dg_tokenizer *tok;
    const struct dg_turn_text *text;
    struct dg_reply_stream reply;
    struct dg_buf shown;   /* all text so far */
    struct dg_buf thought;
    size_t printed, thought_printed; /* bytes of them on stdout and stderr */
    json_t *blocks, *calls;
    struct dg_error error; /* of the reply's parser, the first one */
    FILE *trace;           /* DGQ_TRACE_PMAX_JSONL, NULL = none */
    bool json, verbose, progress;
    bool line_open; /* a progress line stands on the terminal */
    /* set by the command */
    size_t prompt_tokens;
    double load_s, prefill_s, total_s;
};

struct dg_ask_report_opts {
    bool json, verbose;
    bool in_thought;       /* the prompt ends inside an open thought */
    const char *trace_path; /* file that every step's largest probabilities are appended to as JSON lines, NULL = none */
};

/* tok and text are borrowed until deinit. Errors: DG_E_NOMEM, DG_E_IO for the trace file. */
enum dg_status dg_ask_report_init(struct dg_ask_report *r, const struct dg_tokenizer *tok, const struct dg_turn_text *text,
                                  const struct dg_ask_report_opts *o, struct dg_error *err) DG_MUST_CHECK;
void dg_ask_report_deinit(struct dg_ask_report *r);
/* Callbacks of session and turn; ctx is the report. */
void dg_ask_on_prefill(void *ctx, int64_t done, int64_t total);
void dg_ask_on_step(void *ctx, const struct dg_step_event *e);
void dg_ask_on_block(void *ctx, const struct dg_block_event *e);
/* Last words: the rest of the text and a newline, or the JSON object; timings with -v. st and err are the turn's. */
void dg_ask_report_end(struct dg_ask_report *r, const struct dg_turn *t, enum dg_status st, const struct dg_error *err);

#endif
