/* What a user types, line by line, as messages and commands. Pure: it reads nothing and prints nothing.
 *
 * A line that ends in a backslash goes on in the next one. A line that begins with three double quotes begins a text of any number
 * of lines, which ends with a line that ends in three double quotes; nothing in it is looked at. A line that begins with / is a
 * command, one that begins with // a message that begins with one /. */
#ifndef DG_CHAT_INPUT_H
#define DG_CHAT_INPUT_H

#include "core/buf.h"

#define DG_INPUT_MAX ((size_t)16 << 20) /* bytes of one message */

enum dg_input_state {
    DG_INPUT_EMPTY, /* nothing to do */
    DG_INPUT_MORE, /* the message goes on in the next line */
    DG_INPUT_MESSAGE, /* text is a message */
    DG_INPUT_COMMAND /* text is a command without its slash */
};

struct dg_input {
    struct dg_buf text;
    bool open; /* a message is being typed */
    bool fenced; /* between three double quotes */
};

void dg_input_init(struct dg_input *in);
void dg_input_deinit(struct dg_input *in);
/* Takes a line without its line end; the text is in in->text until the next call. Errors: DG_E_LIMIT, DG_E_NOMEM; the message begun
 * is then forgotten. */
enum dg_status dg_input_line(struct dg_input *in, const char *s, size_t n, enum dg_input_state *state,
                             struct dg_error *err) DG_MUST_CHECK;
/* There are no more lines: a line that ends in a backslash is a message after all; an open text between quotes is DG_E_ARG and
 * forgotten. */
enum dg_status dg_input_end(struct dg_input *in, enum dg_input_state *state, struct dg_error *err) DG_MUST_CHECK;
/* Forgets a message begun. */
void dg_input_clear(struct dg_input *in);

/* --- commands --- */

enum dg_command_kind {
    DG_CMD_HELP,
    DG_CMD_THINK,
    DG_CMD_SEED,
    DG_CMD_RESET,
    DG_CMD_UNDO,
    DG_CMD_RETRY,
    DG_CMD_SAVE,
    DG_CMD_LOAD,
    DG_CMD_STATS,
    DG_CMD_VIEW,
    DG_CMD_SYSTEM,
    DG_CMD_QUIT,
    DG_CMDS
};

struct dg_chat_command {
    enum dg_command_kind kind;
    const char *argument; /* "" = none; borrowed from the text */
    bool given; /* THINK, VIEW: on or off was said, and which */
    bool on;
    uint64_t number; /* SEED */
};

/* Reads a command (without the slash), case not mattering in its name; a name may be cut where it stays unambiguous. Errors:
 * DG_E_ARG in words for the user. */
enum dg_status dg_chat_command_parse(const char *text, struct dg_chat_command *out, struct dg_error *err) DG_MUST_CHECK;
/* Name, argument and meaning of a command, for /help and the manual. Literals. */
const char *dg_chat_command_name(enum dg_command_kind k);
const char *dg_chat_command_argument(enum dg_command_kind k);
const char *dg_chat_command_help(enum dg_command_kind k);

#endif
