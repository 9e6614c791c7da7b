/* ask: one prompt, one answer. Text goes to stdout as blocks commit; everything else to stderr. */
#include "cli/cli.h"

#include "cli/ask_report.h"
#include "message/prompt.h"
#include "message/turn_text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROMPT_MAX ((size_t)64 << 20)

struct options {
    struct dg_model_args model;
    const char *prompt, *system, *canvas_ids, *seed;
    int64_t max_tokens, steps;
    bool raw, think, json, verbose, no_early_stop;
};

static struct dg_session *interrupted; /* session that Ctrl-C stops */

static void on_interrupt(int sig) {
    (void)sig;
    if (interrupted)
        atomic_store(&interrupted->cancel, true);
    /* a second one ends the program at once */
    signal(SIGINT, SIG_DFL);
}

static enum dg_status read_prompt(const struct options *o, struct dg_buf *out, struct dg_error *err) {
    dg_buf_init(out, PROMPT_MAX);
    if (!o->prompt)
        return DG_FAIL(err, DG_E_ARG, "no prompt: give -p TEXT, or -p - to read standard input");
    if (!strcmp(o->prompt, "-"))
        return dg_read_all("-", PROMPT_MAX, out, err);
    return dg_buf_str(out, o->prompt) == DG_OK ? DG_OK : DG_FAIL(err, out->status, "the prompt is too long");
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
    const char *s = dg_buf_cstr(&b);
    while (st == DG_OK && *(s += strspn(s, " \t\r\n,[]"))) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 0 || v > INT32_MAX)
            st = DG_FAIL(err, DG_E_ARG, "%s: '%.20s' is not a token id", path, s);
        else if (dg_ids_push(out, (int32_t)v) != DG_OK)
            st = DG_FAIL(err, out->status, "%s: too many ids", path);
        s = end;
    }
    dg_buf_deinit(&b);
    if (st == DG_OK && (out->n == 0 || out->n > (size_t)canvas))
        st = DG_FAIL(err, DG_E_ARG, "%s holds %zu ids; a canvas takes 1 to %d", path, out->n, canvas);
    return st;
}

static enum dg_status parse_seed(const char *s, uint64_t *seed, struct dg_error *err) {
    char *end;
    if (!s) {
        *seed = 42;
        return DG_OK;
    }
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || end == s || *end || *s == '-')
        return DG_FAIL(err, DG_E_ARG, "--seed %s: give a whole number from 0 to 18446744073709551615", s);
    *seed = v;
    return DG_OK;
}

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) {
    return dg_turn_text_shows_nothing(((struct dg_ask_report *)ctx)->text, ids, n);
}

static enum dg_status turn_opts(const struct dg_runtime *r, const struct options *o, const struct dg_turn_text *text, const struct dg_ids *canvas,
                                struct dg_turn_opts *t, struct dg_error *err) {
    memset(t, 0, sizeof *t);
    DG_TRY(parse_seed(o->seed, &t->seed, err));
    t->max_tokens = o->max_tokens;
    dg_sampler_params_init(&t->sampler, &r->model->cfg, &r->flags);
    if (o->steps)
        t->sampler.steps_max = (int32_t)o->steps;
    t->sampler.no_early_stop = o->no_early_stop;
    dg_commit_policy_init(&t->policy, &r->model->cfg, &r->flags);
    dg_turn_text_policy(text, &t->policy);
    t->first_step = r->flags.first_step_sc == DG_FIRST_STEP_NONE ? DG_SC_NONE : DG_SC_SEED;
    t->canvas_ids = canvas->v;
    t->canvas_n = (int32_t)canvas->n;
    t->blank = text->blank;
    t->shows_nothing = shows_nothing;
    t->on_step = dg_ask_on_step;
    t->on_block = dg_ask_on_block;
    return DG_OK;
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
    struct dg_turn_text text;
    struct dg_turn turn;
    struct dg_ask_report report;
};

static enum dg_status prepare(struct work *w, const struct options *o, struct dg_error *err) {
    DG_TRY(dg_runtime_flags(&w->r, err));
    DG_TRY(read_prompt(o, &w->prompt, err));
    DG_TRY(dg_runtime_find(&w->r, &o->model, err));
    double t = dg_now();
    DG_TRY(dg_runtime_tokenizer(&w->r, err));
    w->r.load_s += dg_now() - t;
    DG_TRY(encode_prompt(&w->r, o, &w->prompt, &w->ids, err));
    if (w->ids.n == 0)
        return DG_FAIL(err, DG_E_ARG, "the prompt is empty");
    DG_TRY(dg_runtime_model(&w->r, err));
    DG_TRY(dg_runtime_session(&w->r, &o->model, err));
    if (w->ids.n > (size_t)dg_session_room(w->r.session))
        return DG_FAIL(err, DG_E_ARG, "the prompt is %zu tokens and a canvas takes %d: they do not fit a context of %lld (--ctx, at most %d here)",
                       w->ids.n, w->r.model->cfg.canvas, (long long)w->r.session->kv.ctx, w->r.model->cfg.ctx_max);
    if (o->canvas_ids)
        DG_TRY(read_canvas(o->canvas_ids, w->r.model->cfg.canvas, &w->canvas, err));
    return dg_turn_text_init(&w->text, w->r.tok, w->r.model->cfg.vocab, err);
}

static enum dg_status answer(struct work *w, const struct options *o, struct dg_error *err) {
    struct dg_turn_opts t;
    DG_TRY(turn_opts(&w->r, o, &w->text, &w->canvas, &t, err));
    struct dg_ask_report_opts ro = {o->json, o->verbose, ends_in_thought(&w->r, &w->ids), w->r.flags.trace_pmax_jsonl};
    DG_TRY(dg_ask_report_init(&w->report, w->r.tok, &w->text, &ro, err));
    t.ctx = &w->report;
    interrupted = w->r.session;
    signal(SIGINT, on_interrupt);
    double start = dg_now();
    DG_TRY(dg_session_extend(w->r.session, w->ids.v, w->ids.n, dg_ask_on_prefill, &w->report, err));
    w->report.prefill_s = dg_now() - start;
    w->report.prompt_tokens = w->ids.n;
    DG_TRY(dg_turn_begin(&w->turn, w->r.session, &t, err));
    enum dg_status st = dg_turn_run(&w->turn, err);
    w->report.total_s = dg_now() - start;
    w->report.load_s = w->r.load_s;
    return st;
}

int dg_cmd_ask(int argc, char **argv) {
    struct options o = {0};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"prompt", 'p', DG_ARG_STR, &o.prompt, 0, 0, "TEXT", "the prompt; - reads standard input"},
        {"system", 's', DG_ARG_STR, &o.system, 0, 0, "TEXT", "system instruction"},
        {"raw", 0, DG_ARG_FLAG, &o.raw, 0, 0, NULL, "the prompt is the token stream's text itself, control tokens included"},
        {"think", 0, DG_ARG_FLAG, &o.think, 0, 0, NULL, "let the model think first; the thought goes to stderr"},
        {"seed", 0, DG_ARG_STR, &o.seed, 0, 0, "N", "seed of the random stream (default 42)"},
        {"max-tokens", 'n', DG_ARG_INT, &o.max_tokens, 0, 1 << 30, "N", "most tokens of the answer (default: what the context leaves)"},
        {"steps", 0, DG_ARG_INT, &o.steps, 0, 100000, "N", "denoise steps of a block (default: the model's)"},
        DG_RUN_ARGS(o.model),
        {"canvas-ids", 0, DG_ARG_STR, &o.canvas_ids, 0, 0, "FILE", "first canvas instead of a random one: token ids"},
        {"no-early-stop", 0, DG_ARG_FLAG, &o.no_early_stop, 0, 0, NULL, "run every scheduled step"},
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
    if (started && (st == DG_OK || w.report.tok))
        dg_ask_report_end(&w.report, &w.turn, st, &err);
    if (st != DG_OK)
        status = dg_cli_fail("ask", &err);
    signal(SIGINT, SIG_DFL);
    interrupted = NULL;
    dg_ask_report_deinit(&w.report);
    if (w.turn.s)
        dg_turn_deinit(&w.turn);
    dg_turn_text_deinit(&w.text);
    dg_ids_deinit(&w.ids);
    dg_ids_deinit(&w.canvas);
    dg_buf_deinit(&w.prompt);
    dg_runtime_close(&w.r);
    return status;
}
