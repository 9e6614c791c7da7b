#include "pack/download.h"

#include "core/faults.h"
#include "core/mem.h"
#include "pack/download_int.h"
#include "pack/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BACKOFF_FIRST_S 0.25
#define BACKOFF_MAX_S 30.0

double dl_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void dl_note(struct dl *d, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->note, sizeof d->note, fmt, ap);
    va_end(ap);
    d->n_notes++;
}

double dl_backoff(int n, int64_t asked) {
    if (asked >= 0)
        return asked < DG_HTTP_WAIT_MAX_S ? (double)asked : DG_HTTP_WAIT_MAX_S;
    double s = BACKOFF_FIRST_S;
    while (n-- > 0 && s < BACKOFF_MAX_S)
        s *= 2;
    if (s > BACKOFF_MAX_S)
        s = BACKOFF_MAX_S;
    /* spread, so that the jobs do not come back all at once */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return s * (0.75 + 0.5 * (double)(t.tv_nsec / 1000 % 1000) / 1000);
}

bool dl_sleep(struct dl *d, double s) {
    for (double end = dl_now() + s, left; (left = end - dl_now()) > 0 && !atomic_load(&d->halt);) {
        if (d->o->stop && atomic_load(d->o->stop))
            atomic_store(&d->halt, true);
        double step = left < 0.05 ? left : 0.05;
        nanosleep(&(struct timespec){0, (long)(step * 1e9)}, NULL);
    }
    return !atomic_load(&d->halt);
}

static enum dg_status check_options(struct dl *d, struct dg_error *err) {
    const struct dg_download_opts *o = d->o;
    char repo[300];
    snprintf(repo, sizeof repo, "%s", dg_clip(o->repo, strlen(o->repo)).s);
    if (!dg_hub_is_repo_id(o->repo))
        return DG_FAIL(err, DG_E_ARG, "%s is no repo id; give one like google/diffusiongemma-26B-A4B-it", *repo ? repo : "(empty)");
    const char *endpoint = o->endpoint && *o->endpoint ? o->endpoint : DG_DOWNLOAD_ENDPOINT;
    d->revision = o->revision ? o->revision : "main";
    size_t n = strlen(d->revision);
    if (n == 0 || n > 200 || strspn(d->revision, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./+") != n ||
        strstr(d->revision, ".."))
        return DG_FAIL(err, DG_E_ARG, "--revision %s: give a branch, a tag or a commit", dg_clip(d->revision, n).s);
    size_t k = strlen(endpoint);
    while (k > 0 && endpoint[k - 1] == '/')
        k--;
    if (k >= sizeof d->endpoint || !dg_http_origin(endpoint, d->origin, sizeof d->origin) || strpbrk(endpoint, "?#"))
        return DG_FAIL(err, DG_E_ARG, "HF_ENDPOINT must be an address like https://huggingface.co, without a user name or a query");
    snprintf(d->endpoint, sizeof d->endpoint, "%.*s", (int)k, endpoint);
    if (o->jobs < 1 || o->jobs > DG_DOWNLOAD_JOBS_MAX || o->retries < 0 || o->timeout_s < 1 || o->chunk < DG_DOWNLOAD_CHUNK_MIN ||
        o->chunk > DG_DOWNLOAD_CHUNK_MAX)
        return DG_FAIL(err, DG_E_ARG, "jobs, retries, time limit or chunk size out of range");
    return DG_OK;
}

static enum dg_status run(struct dl *d, struct dg_download_result *res, struct dg_error *err) {
    DG_TRY(check_options(d, err));
    bool pinned = strlen(d->revision) == 40 && strspn(d->revision, "0123456789abcdef") == 40;
    if (pinned)
        snprintf(d->commit, sizeof d->commit, "%s", d->revision);
    DG_TRY(dl_locate(d, err));
    /* a commit never changes, so a record of it needs no network */
    res->already = pinned && !d->o->force && dl_state_complete(d->target, d->o->repo, d->commit, &res->files, &res->bytes);
    if (!res->already) {
        DG_TRY(dl_list(d, err));
        DG_TRY(dl_locate(d, err));
        DG_TRY(dl_prepare(d, &res->already, err));
        res->files = d->n_files;
        for (size_t i = 0; i < d->n_files; i++)
            res->bytes += d->file[i].size;
        if (!res->already) {
            DG_TRY(dl_fetch(d, err));
            DG_TRY(dl_place(d, err));
        }
        DG_TRY(dl_write_ref(d, err));
    }
    memcpy(res->commit, d->commit, sizeof res->commit);
    res->bytes_fetched = d->fetched;
    res->retries = d->n_retries;
    res->dir = dg_strndup(d->target, strlen(d->target));
    return res->dir ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

enum dg_status dg_download(const struct dg_download_opts *o, struct dg_download_result *res, struct dg_error *err) {
    struct dg_error own = {0};
    memset(res, 0, sizeof *res);
    struct dl *d = dg_calloc(1, sizeof *d);
    if (!d)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    d->o = o;
    d->lock_fd = -1;
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, &ca);
    pthread_condattr_destroy(&ca);
    enum dg_status st = run(d, res, &own);
    dl_unlock(d);
    for (size_t i = 0; i < d->n_files; i++) {
        struct dl_file *f = &d->file[i];
        if (f->fd >= 0)
            close(f->fd);
        dg_free(f->have);
        dg_free(f->busy);
    }
    dg_free(d->file);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    dg_free(d);
    if (st != DG_OK) {
        dg_download_result_deinit(res);
        DG_FAIL(err, st, "%s", dg_error_text(&own));
    }
    dg_error_clear(&own);
    return st;
}

void dg_download_result_deinit(struct dg_download_result *res) {
    dg_free(res->dir);
    memset(res, 0, sizeof *res);
}
