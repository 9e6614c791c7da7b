/* ask: one prompt, one answer. Text goes to stdout as blocks commit; everything else to stderr. */
#include "cli/cli.h"

#include "cli/ask_report.h"
#include "cli/delim_report.h"
#include "cli/front.h"
#include "message/prompt.h"
#include "message/turn_text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROMPT_MAX ((size_t)64 << 20)

struct options {
    struct dg_model_args model;
    struct dg_log_args log;
    const char *prompt, *system, *canvas_ids;
    uint64_t seed;
    int64_t max_tokens, steps;
    bool raw, think, json, verbose, no_early_stop, view;
};

static atomic_bool interrupted; /* by Ctrl-C */

static void on_interrupt(int sig) {
    (void)sig;
    atomic_store(&interrupted, true);
    /* a second one ends the program at once */
    signal(SIGINT, SIG_DFL);
}

static enum dg_status read_prompt(const struct options *o, struct dg_buf *out, struct dg_error *err) {
    dg_buf_init(out, PROMPT_MAX);
    if (!o->prompt)
        return DG_FAIL(err, DG_E_ARG, "no prompt: give -p TEXT, or -p - to read standard input");
    if (!strcmp(o->prompt, "-"))
        DG_TRY(dg_read_all("-", PROMPT_MAX, out, err));
    else if (dg_buf_str(out, o->prompt) != DG_OK)
        return DG_FAIL(err, out->status, "the prompt is too long");
    /* the prompt form drops white space around a message, so that one of nothing else is empty too */
    if (out->len == (o->raw ? 0 : strspn(dg_buf_cstr(out), " \t\r\n")))
        return DG_FAIL(err, DG_E_ARG, "the prompt is empty");
    return DG_OK;
}

/* Prompt text to ids: raw text as it stands, control tokens included, or one user message in the model's prompt form. */
static enum dg_status encode_prompt(const struct dg_runtime *r, const struct options *o, const struct dg_buf *text, struct dg_ids *ids,
                                    struct dg_error *err) {
    if (o->raw)
        return dg_tokenizer_encode(r->tok, dg_buf_cstr(text), text->len, true, ids, err);
    struct dg_render_options ro = {o->think ? DG_THINKING_ON : DG_THINKING_OFF, true};
    json_t *messages;
    DG_TRY(dg_message_ask(o->system, dg_buf_cstr(text), text->len, &messages, err));
    enum dg_status st = dg_message_encode(r->tok, messages, NULL, &ro, ids, err);
    json_decref(messages);
    return st;
}

static enum dg_status read_canvas(const char *path, int32_t canvas, struct dg_ids *out, struct dg_error *err) {
    struct dg_buf b;
    dg_buf_init(&b, 1 << 20);
    enum dg_status st = dg_read_all(path, 1 << 20, &b, err);
    if (st == DG_OK && (st = dg_read_ids(dg_buf_cstr(&b), out, err)) != DG_OK)
        dg_error_prefix(err, "%s", path);
    dg_buf_deinit(&b);
    if (st == DG_OK && (out->n == 0 || out->n > (size_t)canvas))
        st = DG_FAIL(err, DG_E_ARG, "%s holds %zu ids; a canvas takes 1 to %d", path, out->n, canvas);
    return st;
}

static bool ends_in_thought(const struct dg_runtime *r, const struct dg_ids *ids) {
    int32_t open = dg_tokenizer_find(r->tok, "<|channel>"), close = dg_tokenizer_find(r->tok, "<channel|>");
    for (size_t i = ids->n; i-- > 0;)
        if (ids->v[i] == open || ids->v[i] == close)
            return ids->v[i] == open;
    return false;
}

struct work {
    struct dg_runtime r;
    struct dg_buf prompt;
    struct dg_ids ids, canvas;
    struct dg_front front;
    struct dg_result turn;
    struct dg_ask_report report;
    struct dg_live live;
};

static enum dg_status prepare(struct work *w, const struct options *o, struct dg_error *err) {
    DG_TRY(dg_runtime_flags(&w->r, err));
    DG_TRY(read_prompt(o, &w->prompt, err));
    DG_TRY(dg_runtime_find(&w->r, &o->model, err));
    /* the model first: of a folder that holds something else its configuration says what, a missing tokenizer does not */
    DG_TRY(dg_runtime_model(&w->r, err));
    double t = dg_now();
    DG_TRY(dg_runtime_tokenizer(&w->r, err));
    w->r.load_s += dg_now() - t;
    DG_TRY(encode_prompt(&w->r, o, &w->prompt, &w->ids, err));
    struct dg_front_opts fo = {.log = o->log, .conversations = 1};
    DG_TRY(dg_front_open(&w->front, &w->r, &o->model, &fo, err));
    if (w->ids.n > (size_t)w->front.room)
        return DG_FAIL(err, DG_E_ARG, "the prompt is %zu tokens and a canvas takes %d: they do not fit a context of %lld (--ctx, at most %d here)",
                       w->ids.n, w->r.model->cfg.canvas, (long long)w->front.ctx, w->r.model->cfg.ctx_max);
    return o->canvas_ids ? read_canvas(o->canvas_ids, w->r.model->cfg.canvas, &w->canvas, err) : DG_OK;
}

static enum dg_status answer(struct work *w, const struct options *o, struct dg_error *err) {
    struct dg_ask_report *report = &w->report;
    bool view = o->view && !o->json && dg_live_possible();
    if (view)
        dg_live_init(&w->live, w->r.tok, true);
    struct dg_ask_report_opts ro = {.json = o->json, .verbose = o->verbose, .live = view ? &w->live : NULL,
                                    .in_thought = ends_in_thought(&w->r, &w->ids), .trace_path = w->r.flags.trace_pmax_jsonl};
    DG_TRY(dg_ask_report_init(report, w->r.tok, &ro, err));
    struct dg_gen g = w->front.opts.gen;
    g.seed = o->seed;
    g.max_tokens = report->max_tokens = o->max_tokens;
    if (o->steps)
        g.sampler.steps_max = (int32_t)o->steps;
    g.sampler.no_early_stop = o->no_early_stop;
    g.canvas_ids = w->canvas.v;
    g.canvas_n = (int32_t)w->canvas.n;
    g.extend_last = false; /* nothing follows */
    struct dg_op prompt = {.kind = DG_OP_EXTEND, .ids = w->ids.v, .n = w->ids.n, .cancel = &interrupted};
    struct dg_op turn = {.kind = DG_OP_GENERATE, .gen = &g, .cancel = &interrupted};
    if (view) {
        dg_live_signals(&interrupted, NULL);
        dg_live_begin(&w->live);
    } else
        signal(SIGINT, on_interrupt);
    double start = dg_now();
    DG_TRY(dg_pipeline_call(w->front.p, &prompt, dg_ask_on_event, report, NULL, err));
    report->prefill_s = dg_now() - start;
    report->prompt_tokens = w->ids.n;
    enum dg_status st = dg_pipeline_call(w->front.p, &turn, dg_ask_on_event, report, &w->turn, err);
    report->total_s = dg_now() - start;
    report->load_s = w->r.load_s;
    return st;
}

/* What the answer's text is searched for; false when it cannot be recorded. */
static bool search(struct work *w, const struct options *o) {
    struct dg_error err = {0};
    struct dg_buf note;
    dg_buf_init(&note, 4096);
    enum dg_status st = dg_delim_report(&w->r.flags, o->seed, dg_buf_cstr(&w->report.shown), w->report.shown.len, &note, &err);
    if (note.len)
        fprintf(stderr, "diffgemma: %s\n", dg_buf_cstr(&note));
    if (st != DG_OK)
        fprintf(stderr, "diffgemma: %s\n", dg_error_text(&err));
    dg_error_clear(&err);
    dg_buf_deinit(&note);
    return st == DG_OK;
}

int dg_cmd_ask(int argc, char **argv) {
    struct options o = {.seed = 42};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"prompt", 'p', DG_ARG_STR, &o.prompt, 0, 0, "TEXT", "the prompt; - reads standard input"},
        {"system", 's', DG_ARG_STR, &o.system, 0, 0, "TEXT", "system instruction"},
        {"raw", 0, DG_ARG_FLAG, &o.raw, 0, 0, NULL, "the prompt is the token stream's text itself, control tokens included"},
        {"think", 0, DG_ARG_FLAG, &o.think, 0, 0, NULL, "let the model think first; the thought goes to stderr"},
        {"seed", 0, DG_ARG_U64, &o.seed, 0, 0, "N", "seed of the random stream (default 42)"},
        {"max-tokens", 'n', DG_ARG_INT, &o.max_tokens, 1, 1 << 30, "N", "most tokens of the answer (default: what the context leaves)"},
        {"steps", 0, DG_ARG_INT, &o.steps, 1, DG_STEPS_MAX, "N", "denoise steps of a block (default: the model's)"},
        DG_RUN_ARGS(o.model),
        {"canvas-ids", 0, DG_ARG_STR, &o.canvas_ids, 0, 0, "FILE", "first canvas instead of a random one: token ids"},
        {"no-early-stop", 0, DG_ARG_FLAG, &o.no_early_stop, 0, 0, NULL, "run every scheduled step"},
        DG_LOG_ARGS(o.log),
        {"view", 0, DG_ARG_FLAG, &o.view, 0, 0, NULL, "on a terminal: show the canvas while it is being written"},
        {"json", 0, DG_ARG_FLAG, &o.json, 0, 0, NULL, "print one JSON object instead of text"},
        {"verbose", 'v', DG_ARG_FLAG, &o.verbose, 0, 0, NULL, "a line a block, and timings, on stderr"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("ask"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct work w = {0};
    struct dg_error err = {0};
    enum dg_status st = prepare(&w, &o, &err);
    bool started = st == DG_OK;
    if (started)
        st = answer(&w, &o, &err);
    if (started && (st == DG_OK || w.report.tok) && !dg_ask_report_end(&w.report, &w.turn, st, &err))
        status = DG_EXIT_FAILED;
    if (st == DG_OK && dg_delim_report_wanted(&w.r.flags) && !search(&w, &o))
        status = DG_EXIT_FAILED;
    if (st != DG_OK)
        status = dg_cli_fail("ask", &err);
    signal(SIGINT, SIG_DFL);
    if (w.live.view.tok)
        dg_live_deinit(&w.live);
    dg_ask_report_deinit(&w.report);
    dg_ids_deinit(&w.turn.ids);
    dg_front_close(&w.front);
    dg_ids_deinit(&w.ids);
    dg_ids_deinit(&w.canvas);
    dg_buf_deinit(&w.prompt);
    dg_runtime_close(&w.r);
    return status;
}
