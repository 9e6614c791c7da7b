/* The tools a chat offers: what the model is told of them, and which command each of them is.
 *
 * They come from `--tool NAME[:DESCRIPTION]=COMMAND` and from a harness file (docs/chat.md has its form). Files are the user's, the
 * arguments are the model's: an argument is handed over as one element of argv or inside JSON on standard input, never to a shell.
 * One thread at a time. */
#ifndef DG_CHAT_TOOLS_H
#define DG_CHAT_TOOLS_H

#include "chat/tool_run.h"

#include <jansson.h>

#define DG_TOOLBOX_MAX 128 /* tools */
#define DG_TOOL_WORDS_MAX 256 /* words of a command */
#define DG_TOOL_ARGUMENT_MAX ((size_t)128 << 10) /* bytes of one word with its arguments in place (Linux takes no longer one) */
#define DG_HARNESS_MAX ((size_t)1 << 20) /* bytes of a harness file, and of a variable's file */
#define DG_HARNESS_VARIABLES_MAX 64
#define DG_TOOL_TIMEOUT_DEFAULT 30 /* seconds */
#define DG_TOOL_OUTPUT_DEFAULT ((size_t)64 << 10) /* bytes of output the model gets to see */
#define DG_TOOL_OUTPUT_MAX ((size_t)4 << 20)

enum dg_tool_input {
    DG_TOOL_ARGV, /* {parameter} in a word stands for the argument; a word that is only that of an absent argument is left out */
    DG_TOOL_VALUE, /* the only argument is the last word */
    DG_TOOL_JSON /* the arguments are a JSON object on standard input */
};

struct dg_tool {
    char *name;
    char **argv; /* words, NULL at the end */
    enum dg_tool_input input;
    json_t *parameters; /* name -> schema, NULL = none declared */
    char *dir; /* NULL = where the program runs */
    double timeout_s;
    size_t output_max;
};

struct dg_toolbox {
    struct dg_tool *v;
    size_t n;
    json_t *declared; /* array for the prompt, NULL while there is no tool */
    char *prompt; /* system text of the harness, NULL = none */
    char *prethink; /* what each thought begins with, NULL = nothing */
};

/* Zeroed is empty. */
void dg_toolbox_deinit(struct dg_toolbox *b);
/* Adds the tool of one --tool. Errors: DG_E_ARG, DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_toolbox_add(struct dg_toolbox *b, const char *spec, struct dg_error *err) DG_MUST_CHECK;
/* Adds what a harness file says. Paths in it are relative to its folder, which is also where its commands run. Errors: DG_E_IO,
 * DG_E_FORMAT, DG_E_ARG, DG_E_LIMIT, DG_E_NOMEM, naming file and place; b may then hold part of it. */
enum dg_status dg_toolbox_load(struct dg_toolbox *b, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* Forgets the tools; prompt and prethink stay. */
void dg_toolbox_drop_tools(struct dg_toolbox *b);
/* NULL when there is none of that name. */
const struct dg_tool *dg_toolbox_find(const struct dg_toolbox *b, const char *name);

/* A call made ready to run. */
struct dg_tool_call {
    const struct dg_tool *tool;
    char **argv;
    char *input; /* NULL = none */
};
/* arguments: a JSON object. Errors: DG_E_ARG in words for the model (an argument that no command can take), DG_E_LIMIT, DG_E_NOMEM.
 * Owner: the caller, dg_tool_call_deinit. */
enum dg_status dg_tool_call_init(struct dg_tool_call *c, const struct dg_tool *t, const json_t *arguments,
                                 struct dg_error *err) DG_MUST_CHECK;
void dg_tool_call_deinit(struct dg_tool_call *c);
/* Appends the command as one would type it, words with odd characters quoted, for the user to judge. Returns out's status. */
enum dg_status dg_tool_call_show(const struct dg_tool_call *c, struct dg_buf *out);
/* Runs it and appends what the model is told: the output, or "error: ..." in words. UTF-8 whatever came. Errors: DG_E_CANCELLED,
 * DG_E_NOMEM, DG_E_LIMIT of out. */
enum dg_status dg_tool_call_run(const struct dg_tool_call *c, const atomic_bool *cancel, struct dg_buf *out,
                                struct dg_error *err) DG_MUST_CHECK;

#endif
