#include "cli/cli.h"

#include "pack/download.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_EVERY_S 15.0 /* without a terminal */

static atomic_bool stop;

static void on_signal(int sig) {
    (void)sig;
    atomic_store(&stop, true);
}

struct view {
    bool terminal, open; /* open: the last line on the terminal is a progress line */
    unsigned n_notes;
    double start, last_time, last_line, rate;
    uint64_t last_bytes;
    struct dg_download_progress p; /* the latest, without its note */
};

static void close_line(struct view *v) {
    if (v->open)
        fputs("\r\033[K", stderr);
    v->open = false;
}

static void format_time(char dst[32], double s) {
    if (s < 0 || s > 360000)
        snprintf(dst, 32, "?");
    else if (s >= 3600)
        snprintf(dst, 32, "%d h %02d min", (int)(s / 3600), (int)(s / 60) % 60);
    else if (s >= 60)
        snprintf(dst, 32, "%d min %02d s", (int)(s / 60), (int)s % 60);
    else
        snprintf(dst, 32, "%d s", (int)(s + 0.5));
}

/* 1234567 -> "1.2 MB" */
struct amount {
    char s[24];
};
static struct amount amount(double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    struct amount a;
    size_t u = 0;
    while (bytes >= 1000 && u + 1 < sizeof units / sizeof *units) {
        bytes /= 1000;
        u++;
    }
    snprintf(a.s, sizeof a.s, u < 3 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
    return a;
}

/* Smoothed over about five seconds, so that it neither jumps nor lies for long. */
static void update_rate(struct view *v, const struct dg_download_progress *p, double now) {
    double dt = now - v->last_time;
    if (dt < 0.2)
        return;
    double rate = (double)(p->bytes_fetched - v->last_bytes) / dt, keep = dt < 5 ? 1 - dt / 5 : 0;
    v->rate = v->rate > 0 ? keep * v->rate + (1 - keep) * rate : rate;
    v->last_bytes = p->bytes_fetched;
    v->last_time = now;
}

static void on_progress(void *arg, const struct dg_download_progress *p) {
    struct view *v = arg;
    double now = dg_now();
    v->p = *p;
    v->p.note = NULL;
    update_rate(v, p, now);
    if (p->n_notes != v->n_notes) {
        close_line(v);
        fprintf(stderr, "diffgemma download: %s\n", p->note);
        v->n_notes = p->n_notes;
    }
    if (p->files == 0 || (!v->terminal && now - v->last_line < LINE_EVERY_S))
        return;
    char left[32], checking[48] = "";
    format_time(left, v->rate > 1 ? (double)(p->bytes - p->bytes_done) / v->rate : -1);
    if (p->checking)
        snprintf(checking, sizeof checking, ", checking %zu", p->checking);
    if (v->terminal)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "%s of %s (%.0f %%), %.1f MB/s, %s left, %zu of %zu files%s%s", amount((double)p->bytes_done).s, amount((double)p->bytes).s,
            p->bytes ? 100.0 * (double)p->bytes_done / (double)p->bytes : 100.0, v->rate / 1e6, left, p->files_done, p->files, checking,
            v->terminal ? "" : "\n");
    fflush(stderr);
    v->open = v->terminal;
    v->last_line = now;
}

static void print_result(const struct dg_download_opts *o, const struct dg_download_result *r, double s) {
    if (r->already) {
        printf("%s at %.12s: already complete, %zu files, %s, in %s\n", o->repo, r->commit, r->files, amount((double)r->bytes).s, r->dir);
        return;
    }
    printf("%s at %.12s: %zu files, %s, hashes checked; fetched %s in %.1f s (%.1f MB/s), %u retries; in %s\n", o->repo, r->commit, r->files,
           amount((double)r->bytes).s, amount((double)r->bytes_fetched).s, s, s > 0 ? (double)r->bytes_fetched / 1e6 / s : 0.0, r->retries, r->dir);
}

int dg_cmd_download(int argc, char **argv) {
    struct view v = {.terminal = isatty(STDERR_FILENO) == 1, .start = dg_now()};
    struct dg_download_opts o = {.endpoint = getenv("HF_ENDPOINT"), .token = getenv("HF_TOKEN"), .stop = &stop, .progress = on_progress, .arg = &v};
    int64_t jobs = 8, retries = 8, timeout = 30, chunk = 32;
    const struct dg_arg args[] = {
        {"revision", 0, DG_ARG_STR, &o.revision, 0, 0, "REV", "branch, tag or commit (default: main)"},
        {"output", 'o', DG_ARG_STR, &o.dir, 0, 0, "DIR", "target folder (default: the Hugging Face cache, where -m REPO finds it)"},
        {"jobs", 'j', DG_ARG_INT, &jobs, 1, DG_DOWNLOAD_JOBS_MAX, "N", "connections at once (default: 8)"},
        {"force", 0, DG_ARG_FLAG, &o.force, 0, 0, NULL, "fetch again and replace what is there"},
        {"retries", 0, DG_ARG_INT, &retries, 0, 1000, "N", "failures in a row, without progress, before giving up (default: 8)"},
        {"timeout", 0, DG_ARG_INT, &timeout, 1, 3600, "S", "seconds below 1 KB/s that count as a failure (default: 30)"},
        {"chunk", 0, DG_ARG_INT, &chunk, 1, DG_DOWNLOAD_CHUNK_MAX >> 20, "MIB", "MiB of one request (default: 32)"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("download"), args, DG_ARGS_COUNT(args), 1, 1, &first, &status))
        return status;
    o.repo = argv[first];
    o.jobs = (int)jobs;
    o.retries = (int)retries;
    o.timeout_s = (long)timeout;
    o.chunk = (uint64_t)chunk << 20;
    v.last_time = v.last_line = v.start;
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    struct sigaction hup;
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN) /* under nohup it goes on */
        sigaction(SIGHUP, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is a failed write, reported as such */
    struct dg_download_result r = {0};
    struct dg_runtime switches = {0};
    struct dg_error err = {0};
    enum dg_status st = dg_runtime_flags(&switches, &err);
    if (st == DG_OK)
        st = dg_download(&o, &r, &err);
    close_line(&v);
    if (st == DG_OK)
        print_result(&o, &r, dg_now() - v.start);
    else if (st == DG_E_CANCELLED) {
        dg_error_clear(&err);
        fprintf(stderr, "diffgemma download: interrupted with %s of %s there; the same command goes on where it was\n",
                amount((double)v.p.bytes_done).s,
                amount((double)v.p.bytes).s);
        status = DG_EXIT_INTERRUPTED;
    } else
        status = dg_cli_fail("download", &err);
    dg_download_result_deinit(&r);
    dg_runtime_close(&switches);
    return status;
}
