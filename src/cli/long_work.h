/* What the commands that work through whole models share: Ctrl-C, and progress with rate and time left. */
#ifndef DG_CLI_LONG_WORK_H
#define DG_CLI_LONG_WORK_H

#include "pack/stream.h"

struct dg_long_work {
    const char *name; /* of the command */
    bool quiet, terminal;
    double start, shown; /* seconds; of the start and of the last line */
    bool line_open;
};

/* Starts the clock and lets SIGINT and SIGTERM end the work; a second one ends the program at once. A write beyond a file size limit becomes
 * an error instead of a signal. */
void dg_long_work_begin(struct dg_long_work *w, const char *name, bool quiet);
/* Options for the library's streams: threads, the interrupt, and progress on stderr. w must outlive them. */
struct dg_stream_opts dg_long_work_opts(struct dg_long_work *w, int64_t threads);
/* Ends the progress line; returns the seconds since the start. */
double dg_long_work_end(struct dg_long_work *w);

#endif
