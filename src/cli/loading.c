#include "cli/loading.h"

#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

#define WAKE SIGURG /* nothing else here uses it, and by default it does nothing */

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static void *watch(void *arg) {
    sigset_t set, one;
    int sig;
    (void)arg;
    sigemptyset(&set);
    sigaddset(&set, WAKE);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        sigaddset(&set, ending[i]);
    while (sigwait(&set, &sig) == 0 && sig != WAKE) {
        if (sig == SIGINT)
            _exit(DG_EXIT_INTERRUPTED);
        /* one that the caller of the program ignores stays ignored */
        sigemptyset(&one);
        sigaddset(&one, sig);
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
        raise(sig);
        pthread_sigmask(SIG_BLOCK, &one, NULL);
    }
    return NULL;
}

void dg_loading_begin(struct dg_loading *l) {
    sigset_t wake, before;
    sigemptyset(&wake);
    sigaddset(&wake, WAKE);
    pthread_sigmask(SIG_BLOCK, &wake, &before);
    l->running = pthread_create(&l->watcher, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void dg_loading_end(struct dg_loading *l) {
    if (!l->running)
        return;
    pthread_kill(l->watcher, WAKE);
    pthread_join(l->watcher, NULL);
    l->running = false;
}
