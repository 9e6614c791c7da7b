/* What the files of the chat command share. */
#ifndef DG_CLI_CMD_CHAT_H
#define DG_CLI_CMD_CHAT_H

#include "chat/chat.h"
#include "chat/input.h"
#include "cli/front.h"
#include "cli/line.h"
#include "cli/live.h"

struct dg_chat_command_state {
    struct dg_runtime r;
    struct dg_front front;
    struct dg_toolbox tools;
    const char *must_call; /* as in dg_chat_opts */
    struct dg_tool_check check; /* of calls, with --tool-retries or --tool-repair */
    struct dg_turn_check turn_check;
    struct dg_chat chat;
    struct dg_live live;
    struct dg_lines *lines;
    struct dg_input input;
    struct dg_buf said; /* content of the reply in work, for what it is searched for */
    bool always[DG_TOOLBOX_MAX]; /* tools that need no asking any more */
    bool interactive; /* standard input and output are a terminal */
    bool has_chat, yes, verbose;
    bool quit, failed, cancelled;
};

/* A line of the program's own; without a terminal on standard error, with the program's name. */
void dg_chat_say(struct dg_chat_command_state *s, const char *text);
/* The same for an error, which is cleared and makes the exit status 1 without a terminal. */
void dg_chat_say_error(struct dg_chat_command_state *s, struct dg_error *err);
/* Sends a message, or the last one again, and shows the reply. */
void dg_chat_deliver(struct dg_chat_command_state *s, const char *text, size_t n, bool retry);

/* cli/chat_commands.c */
void dg_chat_command_run(struct dg_chat_command_state *s, const struct dg_chat_command *c);
void dg_chat_stats(struct dg_chat_command_state *s);

#endif
