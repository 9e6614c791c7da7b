#include "chat/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char fence[] = "\"\"\"";
#define FENCE (sizeof fence - 1)

void dg_input_init(struct dg_input *in) {
    memset(in, 0, sizeof *in);
    dg_buf_init(&in->text, DG_INPUT_MAX);
}

void dg_input_deinit(struct dg_input *in) { dg_buf_deinit(&in->text); }

void dg_input_clear(struct dg_input *in) {
    /* a failure stays in a buffer, so it is made anew */
    dg_buf_deinit(&in->text);
    dg_input_init(in);
}

static bool begins(const char *s, size_t n) { return n >= FENCE && !memcmp(s, fence, FENCE); }
static bool ends(const char *s, size_t n) { return n >= FENCE && !memcmp(s + n - FENCE, fence, FENCE); }

static bool blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!memchr(" \t\r\n\v\f", s[i], 6))
            return false;
    return true;
}

static enum dg_status add(struct dg_input *in, const char *s, size_t n, bool new_line, struct dg_error *err) {
    if (new_line)
        dg_buf_chr(&in->text, '\n');
    if (dg_buf_add(&in->text, s, n) == DG_OK)
        return DG_OK;
    enum dg_status st = in->text.status;
    dg_input_clear(in);
    return DG_FAIL(err, st, "the message is too long: at most %zu bytes", DG_INPUT_MAX);
}

static enum dg_status in_fence(struct dg_input *in, const char *s, size_t n, bool first, enum dg_input_state *state,
                               struct dg_error *err) {
    bool last = ends(s, n);
    /* the quotes alone on the first or last line stand for no line */
    size_t keep = last ? n - FENCE : n;
    if (keep > 0 || (!last && !first))
        DG_TRY(add(in, s, keep, in->open && !first, err));
    in->open = in->text.len > 0 || !first;
    in->fenced = !last;
    *state = !last ? DG_INPUT_MORE : blank(dg_buf_cstr(&in->text), in->text.len) ? DG_INPUT_EMPTY : DG_INPUT_MESSAGE;
    if (last)
        in->open = false;
    return DG_OK;
}

enum dg_status dg_input_line(struct dg_input *in, const char *s, size_t n, enum dg_input_state *state, struct dg_error *err) {
    if (n && s[n - 1] == '\r')
        n--;
    bool first = !in->open && !in->fenced;
    if (first)
        dg_buf_clear(&in->text);
    if (in->fenced)
        return in_fence(in, s, n, false, state, err);
    if (first && begins(s, n))
        return in_fence(in, s + FENCE, n - FENCE, true, state, err);
    bool more = n && s[n - 1] == '\\';
    bool command = first && n && s[0] == '/' && !(n > 1 && s[1] == '/');
    if (command) {
        DG_TRY(add(in, s + 1, n - 1, false, err));
        *state = DG_INPUT_COMMAND;
        return DG_OK;
    }
    if (first && n > 1 && s[0] == '/') {
        s++;
        n--;
    }
    DG_TRY(add(in, s, more ? n - 1 : n, !first, err));
    in->open = more;
    *state = more ? DG_INPUT_MORE : blank(dg_buf_cstr(&in->text), in->text.len) ? DG_INPUT_EMPTY : DG_INPUT_MESSAGE;
    return DG_OK;
}

enum dg_status dg_input_end(struct dg_input *in, enum dg_input_state *state, struct dg_error *err) {
    *state = DG_INPUT_EMPTY;
    if (in->fenced) {
        dg_input_clear(in);
        return DG_FAIL(err, DG_E_ARG, "the text begun with \"\"\" has no end; it was not sent");
    }
    if (in->open && !blank(dg_buf_cstr(&in->text), in->text.len))
        *state = DG_INPUT_MESSAGE;
    in->open = false;
    return DG_OK;
}

/* --- commands --- */

static const struct {
    const char *name, *argument, *help;
} commands[DG_CMDS] = {
    [DG_CMD_HELP] = {"help", "", "this list"},
    [DG_CMD_THINK] = {"think", "[on|off]", "let the model think before it answers; without a word: the other way"},
    [DG_CMD_SEED] = {"seed", "[N]", "seed of the next reply (each reply takes the next one); without a number: show it"},
    [DG_CMD_RESET] = {"reset", "", "forget the conversation; the system text stays"},
    [DG_CMD_UNDO] = {"undo", "", "take back the last message and its reply"},
    [DG_CMD_RETRY] = {"retry", "", "another reply to the last message, with the next seed"},
    [DG_CMD_SAVE] = {"save", "FILE", "write the conversation to a file"},
    [DG_CMD_LOAD] = {"load", "FILE", "go on with the conversation of a file"},
    [DG_CMD_STATS] = {"stats", "", "tokens, steps, time, room that is left"},
    [DG_CMD_VIEW] = {"view", "[on|off]", "show the canvas while it is being written; without a word: the other way"},
    [DG_CMD_SYSTEM] = {"system", "[TEXT|off]", "set or remove the system text; without a text: show it"},
    [DG_CMD_QUIT] = {"quit", "", "leave (also Ctrl-D, or Ctrl-C twice)"},
};

const char *dg_chat_command_name(enum dg_command_kind k) { return commands[k].name; }
const char *dg_chat_command_argument(enum dg_command_kind k) { return commands[k].argument; }
const char *dg_chat_command_help(enum dg_command_kind k) { return commands[k].help; }

static enum dg_status find(const char *s, size_t n, enum dg_command_kind *out, struct dg_error *err) {
    int hits = 0;
    for (int k = 0; k < DG_CMDS; k++) {
        if (n == 0 || strncasecmp(commands[k].name, s, n))
            continue;
        *out = (enum dg_command_kind)k;
        if (strlen(commands[k].name) == n)
            return DG_OK;
        hits++;
    }
    if (hits == 1)
        return DG_OK;
    if (hits > 1)
        return DG_FAIL(err, DG_E_ARG, "/%.*s may be several commands; /help lists them", (int)n, s);
    return DG_FAIL(err, DG_E_ARG, "there is no command /%.*s; /help lists them (a message that begins with / is typed with //)",
                   n > 40 ? 40 : (int)n, s);
}

enum dg_status dg_chat_command_parse(const char *text, struct dg_chat_command *out, struct dg_error *err) {
    size_t n = strcspn(text, " \t\n");
    *out = (struct dg_chat_command){.argument = text + n + strspn(text + n, " \t\n")};
    DG_TRY(find(text, n, &out->kind, err));
    const char *a = out->argument, *name = commands[out->kind].name;
    bool wants = out->kind == DG_CMD_SAVE || out->kind == DG_CMD_LOAD;
    if (wants && !*a)
        return DG_FAIL(err, DG_E_ARG, "/%s: give the name of a file", name);
    if (!*commands[out->kind].argument && *a)
        return DG_FAIL(err, DG_E_ARG, "/%s takes nothing behind it", name);
    if ((out->kind == DG_CMD_THINK || out->kind == DG_CMD_VIEW) && *a) {
        out->given = true;
        out->on = !strcasecmp(a, "on");
        if (!out->on && strcasecmp(a, "off"))
            return DG_FAIL(err, DG_E_ARG, "/%s %.40s: say on or off", name, a);
    }
    if (out->kind == DG_CMD_SEED && *a) {
        char *end;
        errno = 0;
        out->given = true;
        out->number = strtoull(a, &end, 10);
        if (errno || *end || *a == '-' || *a == '+')
            return DG_FAIL(err, DG_E_ARG, "/seed %.40s: give a whole number from 0 to 18446744073709551615", a);
    }
    return DG_OK;
}
