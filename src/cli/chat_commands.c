/* The commands of a chat: /help and the others. */
#include "cli/cmd_chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(struct dg_chat_command_state *s, const char *fmt, ...) DG_PRINTF(2, 3);

static void say(struct dg_chat_command_state *s, const char *fmt, ...) {
    char line[1024];
    va_list a;
    va_start(a, fmt);
    vsnprintf(line, sizeof line, fmt, a);
    va_end(a);
    dg_chat_say(s, line);
}

static void help(struct dg_chat_command_state *s) {
    for (int k = 0; k < DG_CMDS; k++) {
        char left[40];
        snprintf(left, sizeof left, "/%s %s", dg_chat_command_name((enum dg_command_kind)k),
                 dg_chat_command_argument((enum dg_command_kind)k));
        say(s, "%-20s %s", left, dg_chat_command_help((enum dg_command_kind)k));
    }
    say(s, "A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of many lines; // begins a message with /.");
}

static double rate(double n, double s) { return s > 0 ? n / s : 0; }

void dg_chat_stats(struct dg_chat_command_state *s) {
    const struct dg_chat *c = &s->chat;
    const struct dg_chat_reply *r = &c->last;
    long long left = (long long)(c->o.ctx - c->o.canvas - c->log);
    say(s, "conversation: %zu messages, %lld of %lld tokens, room for %lld more", dg_dialog_count(&c->dialog), (long long)c->log,
        (long long)c->o.ctx, left > 0 ? left : 0);
    if (r->blocks)
        say(s,
            "last reply: %lld tokens in %.2f s (%.1f a second), %d blocks, %d steps, seed %llu; prompt %lld tokens, %lld computed",
            (long long)r->tokens, r->seconds, rate((double)r->tokens, r->seconds), r->blocks, r->steps, (unsigned long long)r->seed,
            (long long)r->prompt, (long long)r->computed);
    if (r->unconverged)
        say(s, "%d of its blocks used all %d steps without converging", r->unconverged, c->o.gen.sampler.steps_max);
    if (s->live.frames)
        say(s, "view: %lld frames, %.0f us each", (long long)s->live.frames, s->live.spent / (double)s->live.frames * 1e6);
    say(s, "thinking %s, next seed %llu, view %s", c->dialog.thinking == DG_THINKING_ON ? "on" : "off",
        (unsigned long long)c->next_seed, s->live.view.opts.canvas ? "on" : "off");
}

/* A file name as typed: blanks at its end do not count, "~/" is the user's folder. */
static void file_name(const char *typed, struct dg_buf *out) {
    size_t n = strlen(typed);
    const char *home = getenv("HOME");
    while (n && strchr(" \t\n", typed[n - 1]))
        n--;
    if (n > 1 && !memcmp(typed, "~/", 2) && home) {
        dg_buf_str(out, home);
        typed++;
        n--;
    }
    dg_buf_add(out, typed, n);
}

static void save_or_load(struct dg_chat_command_state *s, bool save, const char *typed) {
    struct dg_error err = {0};
    struct dg_buf name;
    dg_buf_init(&name, 4096);
    file_name(typed, &name);
    const char *path = dg_buf_cstr(&name);
    enum dg_status st = name.status != DG_OK ? DG_FAIL(&err, DG_E_ARG, "the file name is too long")
                        : save               ? dg_dialog_save(&s->chat.dialog, path, &err)
                                             : dg_dialog_load(&s->chat.dialog, path, &err);
    if (st != DG_OK)
        dg_chat_say_error(s, &err);
    else
        say(s, "%s %zu messages", save ? "wrote" : "read", dg_dialog_count(&s->chat.dialog));
    dg_buf_deinit(&name);
}

static void system_text(struct dg_chat_command_state *s, const char *text) {
    struct dg_error err = {0};
    const char *now = dg_dialog_system_view(&s->chat.dialog);
    if (!*text)
        say(s, "%s%.900s", now ? "system text: " : "there is no system text", now ? now : "");
    else if (dg_dialog_system(&s->chat.dialog, text, strcmp(text, "off") ? strlen(text) : 0, &err) != DG_OK)
        dg_chat_say_error(s, &err);
    else
        say(s, "%s", strcmp(text, "off") ? "system text set, for the whole conversation" : "system text removed");
}

static void view(struct dg_chat_command_state *s, const struct dg_chat_command *c) {
    struct dg_error err = {0};
    bool on = c->given ? c->on : !s->live.view.opts.canvas;
    if (on && !s->live.terminal) {
        DG_FAIL(&err, DG_E_ARG, "/view: there is no terminal to show the canvas on");
        dg_chat_say_error(s, &err);
        return;
    }
    s->live.view.opts.canvas = on;
    say(s, "view %s", on ? "on" : "off");
}

static void seed(struct dg_chat_command_state *s, const struct dg_chat_command *c) {
    if (c->given)
        s->chat.next_seed = c->number;
    say(s, "next seed %llu", (unsigned long long)s->chat.next_seed);
}

static void undo(struct dg_chat_command_state *s) {
    struct dg_error err = {0};
    if (dg_chat_undo(&s->chat))
        say(s, "took back the last message; %zu are left", dg_dialog_count(&s->chat.dialog));
    else {
        DG_FAIL(&err, DG_E_ARG, "/undo: there is no message to take back");
        dg_chat_say_error(s, &err);
    }
}

static void think(struct dg_chat_command_state *s, const struct dg_chat_command *c) {
    bool on = c->given ? c->on : s->chat.dialog.thinking != DG_THINKING_ON;
    s->chat.dialog.thinking = on ? DG_THINKING_ON : DG_THINKING_OFF;
    say(s, "thinking %s", on ? "on" : "off");
}

void dg_chat_command_run(struct dg_chat_command_state *s, const struct dg_chat_command *c) {
    switch (c->kind) {
    case DG_CMD_HELP: help(s); break;
    case DG_CMD_THINK: think(s, c); break;
    case DG_CMD_SEED: seed(s, c); break;
    case DG_CMD_RESET:
        dg_chat_reset(&s->chat);
        say(s, "the conversation is forgotten");
        break;
    case DG_CMD_UNDO: undo(s); break;
    case DG_CMD_RETRY: dg_chat_deliver(s, NULL, 0, true); break;
    case DG_CMD_SAVE: save_or_load(s, true, c->argument); break;
    case DG_CMD_LOAD: save_or_load(s, false, c->argument); break;
    case DG_CMD_STATS: dg_chat_stats(s); break;
    case DG_CMD_VIEW: view(s, c); break;
    case DG_CMD_SYSTEM: system_text(s, c->argument); break;
    case DG_CMD_QUIT: s->quit = true; break;
    case DG_CMDS: break;
    }
}
