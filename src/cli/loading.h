/* Ctrl-C while a model is loaded: the program ends at once. A command that keeps its signals from the threads it starts has them blocked
 * until those threads are there, which on a large model takes a while. */
#ifndef DG_CLI_LOADING_H
#define DG_CLI_LOADING_H

#include <pthread.h>
#include <stdbool.h>

struct dg_loading {
    pthread_t watcher;
    bool running;
};

/* The calling thread has SIGINT, SIGTERM, SIGHUP and SIGQUIT blocked (dg_live_mask). From here to the end SIGINT ends the program with status
 * 130, and each of the others as it does by default. There is nothing to clean up: loading writes no files. */
void dg_loading_begin(struct dg_loading *l);
void dg_loading_end(struct dg_loading *l);

#endif
