#include "cli/long_work.h"

#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define TERMINAL_EVERY 0.2 /* seconds */
#define LOG_EVERY 10.0

static atomic_bool interrupted;

static void on_signal(int sig) {
    atomic_store(&interrupted, true);
    signal(sig, SIG_DFL);
}

void dg_long_work_begin(struct dg_long_work *w, const char *name, bool quiet) {
    *w = (struct dg_long_work){.name = name, .quiet = quiet, .terminal = isatty(2), .start = dg_now()};
    w->shown = w->start;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGXFSZ, SIG_IGN);
}

static void show(void *ctx, uint64_t done, uint64_t total) {
    struct dg_long_work *w = ctx;
    double now = dg_now(), spent = now - w->start;
    if (w->quiet || now - w->shown < (w->terminal ? TERMINAL_EVERY : LOG_EVERY) || !total)
        return;
    w->shown = now;
    double rate = (double)done / (spent > 1e-9 ? spent : 1e-9), left = rate > 0 ? (double)(total - done) / rate : 0;
    fprintf(stderr, "%sdiffgemma %s: %3.0f%%  %.2f of %.2f GiB, %.0f MB/s, %d:%02d left%s", w->terminal ? "\r" : "", w->name,
            100.0 * (double)done / (double)total, (double)done / (1 << 30), (double)total / (1 << 30), rate / 1e6, (int)left / 60, (int)left % 60,
            w->terminal ? "\033[K" : "\n");
    w->line_open = w->terminal;
}

struct dg_stream_opts dg_long_work_opts(struct dg_long_work *w, int64_t threads) {
    return (struct dg_stream_opts){.threads = (int)threads, .cancel = &interrupted, .progress = show, .ctx = w};
}

double dg_long_work_end(struct dg_long_work *w) {
    if (w->line_open)
        fprintf(stderr, "\r\033[K");
    w->line_open = false;
    return dg_now() - w->start;
}
