/* chat: messages in, replies out, line by line. On a terminal with editing, history and the canvas view; else plain lines in, text
 * on standard output, all else on standard error. */
#include "cli/cmd_chat.h"

#include "cli/delim_report.h"
#include "cli/loading.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESULT_SHOWN 1000 /* bytes of a tool's output that are shown */
#define SAID_MAX ((size_t)64 << 20)
#define TOOL_RETRIES 2    /* of DGQ_TOOL_VALIDATE, and where a call is required */

static atomic_bool cancel; /* by Ctrl-C */

/* --- what the chat tells and asks --- */

static void on_prefill(void *ctx, int64_t done, int64_t total) {
    struct dg_chat_command_state *s = ctx;
    char line[80];
    if (total < 512)
        return;
    snprintf(line, sizeof line, "reading %lld/%lld tokens", (long long)done, (long long)total);
    dg_live_status(&s->live, line);
}

static void on_step(void *ctx, const struct dg_step_event *e) {
    struct dg_live *l = &((struct dg_chat_command_state *)ctx)->live;
    dg_live_step(l, e);
    /* nobody is left to read the reply */
    if (l->failed)
        atomic_store(&cancel, true);
}

static void on_text(void *ctx, enum dg_chat_text kind, const char *text, size_t n) {
    struct dg_live *l = &((struct dg_chat_command_state *)ctx)->live;
    char more[64];
    switch (kind) {
    case DG_CHAT_CONTENT:
        dg_live_text(l, DG_VIEW_CONTENT, text, n);
        if (dg_delim_report_wanted(&((struct dg_chat_command_state *)ctx)->r.flags))
            (void)dg_buf_add(&((struct dg_chat_command_state *)ctx)->said, text, n);
        return;
    case DG_CHAT_THOUGHT: dg_live_text(l, DG_VIEW_THOUGHT, text, n); return;
    case DG_CHAT_CALL:
        dg_live_text(l, DG_VIEW_CALL, text, n);
        dg_live_text(l, DG_VIEW_CALL, "\n", 1);
        return;
    case DG_CHAT_RESULT: break;
    }
    size_t shown = n;
    for (shown = n < RESULT_SHOWN ? n : RESULT_SHOWN; shown < n && ((unsigned char)text[shown] & 0xc0) == 0x80;)
        shown--;
    dg_live_text(l, DG_VIEW_RESULT, text, shown);
    snprintf(more, sizeof more, shown < n ? " ... (%zu bytes more)\n" : "\n", n - shown);
    dg_live_text(l, DG_VIEW_RESULT, more, strlen(more));
}

void dg_chat_say(struct dg_chat_command_state *s, const char *text) {
    struct dg_buf line;
    dg_buf_init(&line, 1 << 20);
    dg_buf_fmt(&line, "%s%s", s->live.terminal ? "" : "diffgemma chat: ", text);
    dg_live_note(&s->live, dg_buf_cstr(&line));
    dg_buf_deinit(&line);
}

void dg_chat_say_error(struct dg_chat_command_state *s, struct dg_error *err) {
    dg_chat_say(s, dg_error_text(err));
    dg_error_clear(err);
    s->failed = true;
}

static void on_note(void *ctx, const char *text) { dg_chat_say(ctx, text); }

static bool ask_user(struct dg_chat_command_state *s, size_t tool) {
    struct dg_error err = {0};
    for (;;) {
        enum dg_line_end end = DG_LINE_EOF;
        const char *answer = "";
        size_t n = 0;
        if (dg_lines_read(s->lines, "run it? [y]es, [n]o, [a]lways this tool: ", false, &end, &answer, &n, &err) != DG_OK)
            dg_error_clear(&err);
        if (end != DG_LINE) {
            atomic_store(&cancel, true);
            return false;
        }
        char c = n ? answer[0] : 0;
        if (c == 'a' || c == 'A')
            s->always[tool] = true;
        if (strchr("yYaAnN", c) && c)
            return c != 'n' && c != 'N';
    }
}

static bool on_allow(void *ctx, const struct dg_tool_call *call) {
    struct dg_chat_command_state *s = ctx;
    size_t tool = (size_t)(call->tool - s->tools.v);
    struct dg_buf line;
    if (s->yes || s->always[tool])
        return true;
    dg_buf_init(&line, 1 << 20);
    bool fits = dg_buf_str(&line, "command: ") == DG_OK && dg_tool_call_show(call, &line) == DG_OK, allowed = false;
    if (!fits)
        dg_chat_say(s, "a command too long to show was not run");
    else
        dg_chat_say(s, dg_buf_cstr(&line));
    if (fits && !s->interactive)
        dg_chat_say(s, "not run: without a terminal to ask on, commands need --yes");
    else if (fits) {
        dg_live_end(&s->live);
        allowed = ask_user(s, tool);
        dg_live_begin(&s->live);
    }
    dg_buf_deinit(&line);
    return allowed;
}

/* --- a message --- */

static enum dg_status deliver(struct dg_chat_command_state *s, const char *text, size_t n, bool retry, struct dg_error *err) {
    dg_live_begin(&s->live);
    enum dg_status st = retry ? dg_chat_retry(&s->chat, err) : dg_chat_send(&s->chat, text, n, err);
    dg_live_end(&s->live);
    return st;
}

/* What the reply's text is searched for. */
static void search(struct dg_chat_command_state *s) {
    struct dg_error err = {0};
    struct dg_buf note;
    dg_buf_init(&note, 4096);
    enum dg_status st = dg_delim_report(&s->r.flags, s->chat.last.seed, dg_buf_cstr(&s->said), s->said.len, &note, &err);
    if (note.len)
        dg_chat_say(s, dg_buf_cstr(&note));
    if (st != DG_OK)
        dg_chat_say_error(s, &err);
    dg_buf_deinit(&note);
}

void dg_chat_deliver(struct dg_chat_command_state *s, const char *text, size_t n, bool retry) {
    struct dg_error err = {0};
    dg_buf_clear(&s->said);
    enum dg_status st = deliver(s, text, n, retry, &err);
    if (st == DG_E_CANCELLED) {
        dg_live_interrupted();
        dg_error_clear(&err);
        dg_chat_say(s, retry ? "cancelled; the former reply stays" : "cancelled; the message is not part of the conversation");
        s->cancelled = true;
        s->failed = true;
    } else if (st != DG_OK)
        dg_chat_say_error(s, &err);
    else {
        if (dg_delim_report_wanted(&s->r.flags))
            search(s);
        if (s->verbose)
            dg_chat_stats(s);
    }
}

/* --- the loop --- */

static void take(struct dg_chat_command_state *s, enum dg_input_state state) {
    struct dg_error err = {0};
    struct dg_chat_command c;
    /* the text is copied: what it asks for may read further lines */
    char *text = dg_strndup(dg_buf_cstr(&s->input.text), s->input.text.len);
    size_t n = s->input.text.len;
    if (!text)
        return;
    if (state == DG_INPUT_MESSAGE)
        dg_chat_deliver(s, text, n, false);
    else if (dg_chat_command_parse(text, &c, &err) != DG_OK)
        dg_chat_say_error(s, &err);
    else
        dg_chat_command_run(s, &c);
    dg_free(text);
}

/* Ctrl-C at the prompt. */
static void interrupted(struct dg_chat_command_state *s, bool *before) {
    bool typing = s->input.open || s->input.fenced;
    dg_live_interrupted();
    dg_input_clear(&s->input);
    atomic_store(&cancel, false);
    if (!s->interactive) {
        s->cancelled = s->quit = true;
        return;
    }
    fputs("\n", stdout);
    fflush(stdout);
    s->quit = *before && !typing;
    if (!s->quit)
        dg_chat_say(s, "Ctrl-C once more, or Ctrl-D, leaves");
    *before = true;
}

static void loop(struct dg_chat_command_state *s) {
    struct dg_error err = {0};
    bool once = false;
    while (!s->quit && !s->live.failed) {
        enum dg_line_end end = DG_LINE_EOF;
        enum dg_input_state state = DG_INPUT_EMPTY;
        const char *line = NULL;
        size_t n = 0;
        bool inside = s->input.open || s->input.fenced;
        enum dg_status st = dg_lines_read(s->lines, inside ? ". " : "> ", true, &end, &line, &n, &err);
        if (st == DG_OK && end == DG_LINE_INTERRUPTED) {
            interrupted(s, &once);
            continue;
        }
        if (st == DG_OK && end == DG_LINE)
            st = dg_input_line(&s->input, line, n, &state, &err);
        else if (st == DG_OK) {
            s->quit = true;
            if (s->interactive)
                fputs("\n", stdout);
            else
                st = dg_input_end(&s->input, &state, &err);
        } else
            s->quit = !s->interactive;
        once = false;
        if (st != DG_OK)
            dg_chat_say_error(s, &err);
        else if (state == DG_INPUT_MESSAGE || state == DG_INPUT_COMMAND)
            take(s, state);
        s->quit = s->quit || (s->cancelled && !s->interactive);
    }
}

/* --- setting up --- */

/* Where the history is kept when nothing else is said; dg_free, NULL = nowhere. */
static char *history_path(const char *given) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct dg_buf b;
    if (given)
        return *given ? dg_strndup(given, strlen(given)) : NULL;
    dg_buf_init(&b, 4096);
    if (state && *state == '/')
        dg_buf_fmt(&b, "%s/", state);
    else if (home && *home == '/')
        dg_buf_fmt(&b, "%s/.local/state/", home);
    else
        return NULL;
    dg_buf_str(&b, "diffgemma/chat_history");
    char *path = dg_buf_take(&b, NULL);
    dg_buf_deinit(&b);
    for (char *p = path; p && (p = strchr(p + 1, '/'));) {
        *p = 0;
        bool bad = mkdir(path, 0700) != 0 && errno != EEXIST;
        *p = '/';
        if (bad) {
            dg_free(path);
            return NULL;
        }
    }
    return path;
}

struct options {
    struct dg_model_args model;
    struct dg_log_args log;
    struct dg_arg_list tools;
    const char *system, *harness, *load, *history, *choice;
    uint64_t seed;
    int64_t max_tokens, steps, rounds, think_max, retries;
    bool think, view, yes, verbose, repair;
};

static enum dg_status open_chat(struct dg_chat_command_state *s, const struct options *o, struct dg_error *err) {
    struct dg_chat_opts co = {.pipeline = s->front.p,
                              .tok = s->r.tok,
                              .tools = &s->tools,
                              .check = s->check.t ? &s->check : NULL,
                              .gen = s->front.opts.gen,
                              .ctx = s->front.ctx,
                              .canvas = s->r.model->cfg.canvas,
                              .rounds = (int32_t)o->rounds,
                              .think_max = o->think_max,
                              .must_call = s->must_call,
                              .no_reuse = !s->r.flags.kv_reuse,
                              .cancel = &cancel,
                              .ui = {s, on_prefill, on_step, NULL, on_text, on_note, on_allow}};
    co.gen.seed = o->seed;
    co.gen.max_tokens = o->max_tokens;
    if (o->steps)
        co.gen.sampler.steps_max = (int32_t)o->steps;
    DG_TRY(dg_chat_init(&s->chat, &co, err));
    s->has_chat = true;
    if (o->load)
        DG_TRY(dg_dialog_load(&s->chat.dialog, o->load, err));
    if (o->system)
        DG_TRY(dg_dialog_system(&s->chat.dialog, o->system, strlen(o->system), err));
    if (o->think)
        s->chat.dialog.thinking = DG_THINKING_ON;
    return DG_OK;
}

/* --tool-choice. */
static enum dg_status choose_tool(struct dg_chat_command_state *s, const char *choice, struct dg_error *err) {
    if (!choice || !strcmp(choice, "auto"))
        return DG_OK;
    if (!strcmp(choice, "none")) {
        dg_toolbox_drop_tools(&s->tools);
        return DG_OK;
    }
    if (!s->tools.declared)
        return DG_FAIL(err, DG_E_ARG, "--tool-choice %s, but no tool is offered (--tool, --harness)", choice);
    bool any = !strcmp(choice, "required");
    if (!any && !dg_toolbox_find(&s->tools, choice))
        return DG_FAIL(err, DG_E_ARG, "--tool-choice %s: give auto, none, required or the name of a tool that is offered", choice);
    s->must_call = any ? "" : choice;
    return DG_OK;
}

static enum dg_status prepare(struct dg_chat_command_state *s, const struct options *o, struct dg_error *err) {
    DG_TRY(dg_runtime_flags(&s->r, err));
    for (size_t i = 0; i < o->tools.n; i++)
        DG_TRY(dg_toolbox_add(&s->tools, o->tools.v[i], err));
    if (o->harness)
        DG_TRY(dg_toolbox_load(&s->tools, o->harness, err));
    DG_TRY(dg_runtime_find(&s->r, &o->model, err));
    DG_TRY(dg_runtime_model(&s->r, err));
    DG_TRY(dg_runtime_tokenizer(&s->r, err));
    const struct dg_flags *f = &s->r.flags;
    DG_TRY(choose_tool(s, o->choice, err));
    int64_t retries = o->retries >= 0 ? o->retries : f->tool_validate || s->must_call ? TOOL_RETRIES : 0;
    struct dg_front_opts fo = {.log = o->log, .conversations = 1, .repair = o->repair || f->tool_repair, .retries = (int32_t)retries};
    if (s->tools.declared && (fo.repair || fo.retries)) {
        dg_tool_check_init(&s->check, s->r.tok, s->tools.declared);
        s->turn_check = dg_tool_check_stage(&s->check, &s->front.opts.gen);
        fo.check = &s->turn_check;
    }
    DG_TRY(dg_front_open(&s->front, &s->r, &o->model, &fo, err));
    dg_live_init(&s->live, s->r.tok, o->view);
    DG_TRY(open_chat(s, o, err));
    char *history = s->interactive ? history_path(o->history) : NULL;
    enum dg_status st = dg_lines_open(&s->lines, s->interactive, history, dg_live_interrupted, err);
    dg_free(history);
    return st;
}

static void put_away(struct dg_chat_command_state *s) {
    dg_lines_close(s->lines);
    if (s->has_chat)
        dg_chat_deinit(&s->chat);
    if (s->live.view.tok)
        dg_live_deinit(&s->live);
    dg_input_deinit(&s->input);
    dg_buf_deinit(&s->said);
    dg_front_close(&s->front);
    dg_toolbox_deinit(&s->tools);
    dg_runtime_close(&s->r);
}

int dg_cmd_chat(int argc, char **argv) {
    struct options o = {.seed = 42, .rounds = 8, .retries = -1};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"system", 's', DG_ARG_STR, &o.system, 0, 0, "TEXT", "system instruction"},
        {"think", 0, DG_ARG_FLAG, &o.think, 0, 0, NULL, "let the model think before it answers"},
        {"think-max", 0, DG_ARG_INT, &o.think_max, 1, 1 << 30, "N",
         "close a thought after about N tokens, so that an answer follows"},
        {"seed", 0, DG_ARG_U64, &o.seed, 0, 0, "N", "seed of the first reply; each takes the next one (default 42)"},
        {"max-tokens", 'n', DG_ARG_INT, &o.max_tokens, 1, 1 << 30, "N",
         "most tokens of a reply (default: what the context leaves)"},
        {"steps", 0, DG_ARG_INT, &o.steps, 1, DG_STEPS_MAX, "N", "denoise steps of a block (default: the model's)"},
        DG_RUN_ARGS(o.model),
        {"view", 0, DG_ARG_FLAG, &o.view, 0, 0, NULL, "show the canvas while it is being written"},
        {"tool", 0, DG_ARG_LIST, &o.tools, 0, 0, "SPEC", "offer a tool: NAME[:DESCRIPTION]=COMMAND; may be given again"},
        {"harness", 0, DG_ARG_STR, &o.harness, 0, 0, "FILE", "prompt, thought, variables and tools from a JSON file"},
        {"yes", 'y', DG_ARG_FLAG, &o.yes, 0, 0, NULL, "run the tools' commands without asking"},
        {"tool-choice", 0, DG_ARG_STR, &o.choice, 0, 0, "WHICH",
         "auto (default), none, required, or the tool that each reply must call first"},
        {"tool-rounds", 0, DG_ARG_INT, &o.rounds, 0, DG_CHAT_ROUNDS_MAX, "N", "rounds of tool calls in one reply (default 8)"},
        {"tool-retries", 0, DG_ARG_INT, &o.retries, 0, 16, "N", "generate a turn with an invalid call again, at most N times"},
        {"tool-repair", 0, DG_ARG_FLAG, &o.repair, 0, 0, NULL, "let the model correct an invalid call itself, unseen"},
        {"load", 0, DG_ARG_STR, &o.load, 0, 0, "FILE", "begin with the conversation of a file"},
        {"history", 0, DG_ARG_STR, &o.history, 0, 0, "FILE", "where typed lines are kept; \"\" for nowhere"},
        DG_LOG_ARGS(o.log),
        {"verbose", 'v', DG_ARG_FLAG, &o.verbose, 0, 0, NULL, "figures after each reply"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("chat"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_chat_command_state s = {.yes = o.yes, .verbose = o.verbose};
    struct dg_error err = {0};
    s.interactive = isatty(STDIN_FILENO) && dg_live_possible();
    dg_input_init(&s.input);
    dg_buf_init(&s.said, SAID_MAX);
    /* the signals are this thread's; those that the engine starts must not take them */
    dg_live_mask(true);
    struct dg_loading loading;
    dg_loading_begin(&loading);
    enum dg_status st = prepare(&s, &o, &err);
    dg_loading_end(&loading);
    dg_live_signals(&cancel, dg_lines_at_prompt);
    dg_live_mask(false);
    /* it came when nobody waited for it any more and nobody did yet */
    if (!s.interactive && atomic_load(&cancel))
        s.quit = s.cancelled = true;
    if (st == DG_OK) {
        if (s.interactive)
            dg_chat_say(&s, "diffgemma chat; /help lists the commands, Ctrl-C stops a reply");
        loop(&s);
        status = s.interactive ? DG_EXIT_OK : s.cancelled ? DG_EXIT_INTERRUPTED : s.failed ? DG_EXIT_FAILED : DG_EXIT_OK;
        if (s.live.failed) {
            fprintf(stderr, "diffgemma chat: cannot write to standard output\n");
            status = DG_EXIT_FAILED;
        }
    } else
        status = dg_cli_fail("chat", &err);
    put_away(&s);
    return status;
}
