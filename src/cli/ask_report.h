/* What ask shows: text as blocks commit (thoughts on stderr, a tool call as the line "call NAME ARGUMENTS"), a progress line on a
 * terminal, a line a block with -v, or one JSON object. */
#ifndef DG_CLI_ASK_REPORT_H
#define DG_CLI_ASK_REPORT_H

#include "cli/live.h"
#include "message/reply.h"
#include "message/turn_text.h"
#include "pipeline/pipeline.h"

#include <jansson.h>
#include <stdio.h>

struct dg_ask_report {
    const struct dg_tokenizer *tok;
    struct dg_reply_stream reply;
    struct dg_buf shown;   /* all text so far */
    struct dg_buf thought;
    size_t printed, thought_printed; /* bytes of them on stdout and stderr */
    json_t *blocks, *calls;
    struct dg_error error; /* of the reply's parser, the first one */
    FILE *trace;           /* DGQ_TRACE_PMAX_JSONL, NULL = none */
    bool json, verbose, progress;
    bool line_open; /* a progress line stands on the terminal */
    struct dg_live *live; /* the canvas view, NULL = none */
    /* set by the command */
    size_t prompt_tokens;
    int64_t max_tokens; /* 0 = no limit was asked for */
    double load_s, prefill_s, total_s;
};

struct dg_ask_report_opts {
    bool json, verbose;
    struct dg_live *live;  /* show text and canvas on this terminal; NULL = none. Borrowed */
    bool in_thought;       /* the prompt ends inside an open thought */
    const char *trace_path; /* file that every step's largest probabilities are appended to as JSON lines, NULL = none */
};

/* tok is borrowed until deinit. Errors: DG_E_NOMEM, DG_E_IO for the trace file. */
enum dg_status dg_ask_report_init(struct dg_ask_report *r, const struct dg_tokenizer *tok, const struct dg_ask_report_opts *o,
                                  struct dg_error *err) DG_MUST_CHECK;
void dg_ask_report_deinit(struct dg_ask_report *r);
/* An event function; ctx is the report. */
void dg_ask_on_event(void *ctx, const struct dg_event *e);
/* Last words: the rest of the text and a newline, or the JSON object; timings with -v. t is the turn's answer, conv 0 when it did not come
 * to a turn; st and err are the turn's. false when the answer, or a part of it, did not reach standard output (an answer of no characters
 * among them), the reason being on stderr. */
bool dg_ask_report_end(struct dg_ask_report *r, const struct dg_result *t, enum dg_status st, const struct dg_error *err);

#endif
