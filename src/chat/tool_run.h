/* One command run on the model's behalf: no shell, its own process group, bounded time and output, nothing left behind. */
#ifndef DG_CHAT_TOOL_RUN_H
#define DG_CHAT_TOOL_RUN_H

#include "core/buf.h"

#include <stdatomic.h>

#define DG_TOOL_ERRORS_MAX 4096 /* bytes kept of standard error */
#define DG_TOOL_FLOOD_MAX ((size_t)64 << 20) /* bytes of output after which a command is ended */

struct dg_tool_command {
    char *const *argv; /* NULL at its end; argv[0] is looked up in PATH when it has no slash */
    const char *dir; /* folder to run in, NULL = this process's */
    const char *input; /* standard input; n_input = 0: empty */
    size_t n_input;
    double timeout_s;
    size_t output_max; /* bytes kept of standard output */
    const atomic_bool *cancel; /* while it is set the command is ended; NULL = never */
};

struct dg_tool_output {
    struct dg_buf text, errors; /* bytes as they came */
    bool cut; /* there was more text than was kept */
    bool timed_out, flooded; /* the command was ended for it */
    int exit_status; /* -1 when a signal ended it */
    int signal; /* 0 = none */
};

/* Runs the command to its end. The caller's SIGPIPE and SIGINT do not reach it; whatever it started in its process group is killed
 * when it ends. out: zeroed by the caller, dg_tool_output_deinit. Any thread, one command a call. Errors: DG_E_IO when it could not
 * be started, DG_E_CANCELLED, DG_E_NOMEM. A command that fails is no error. */
enum dg_status dg_tool_run(const struct dg_tool_command *c, struct dg_tool_output *out, struct dg_error *err) DG_MUST_CHECK;
void dg_tool_output_deinit(struct dg_tool_output *out);

#endif
