/* The jobs: each takes a chunk of a file, asks for its bytes and checks that what comes is what was asked for. */
#include "pack/download_int.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define RESTARTS_MAX 2           /* times a file may turn out to be another one on the way */
#define PROGRESS_MIN (64u << 10) /* bytes that make a failed try worth something: a drip never ends otherwise */
#define SAVE_EVERY_S 0.25
#define REPORT_EVERY_S 0.2
#define SPARE_BYTES ((uint64_t)4 << 20)

enum verdict {
    V_DONE,
    V_RETRY,   /* the same again later */
    V_RESTART, /* the file there is not the file that was begun */
    V_WHOLE,   /* the server ignores ranges */
    V_STALE,   /* another job restarts this file */
    V_FATAL,
    V_STOP
};

/* One request. */
struct job {
    struct dl *d;
    struct dl_file *f;
    uint64_t pos, end; /* bytes of the file still to come */
    bool ranged;
    unsigned epoch;
    enum verdict verdict; /* set by a callback that ends the transfer */
    struct dg_error err;
};

static uint32_t chunk_len(const struct dl_file *f, uint32_t c) {
    return (uint32_t)(c + 1 < f->n_chunks ? f->chunk : f->size - (uint64_t)c * f->chunk);
}

/* ---- what comes back ---- */

static bool end_with(struct job *j, enum verdict v, enum dg_status code, const char *fmt, ...) DG_PRINTF(4, 5);
static bool end_with(struct job *j, enum verdict v, enum dg_status code, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->verdict = v;
    DG_FAIL(&j->err, code, "%s", text);
    return false;
}

/* The tag of a hub's first answer names the content: it must be what is listed, and must not change. */
static bool check_tag(struct job *j, const char *tag) {
    struct dl_file *f = j->f;
    if (!*tag)
        return true;
    size_t n = strlen(tag);
    bool hex = strspn(tag, "0123456789abcdef") == n;
    bool same = true;
    pthread_mutex_lock(&j->d->lock);
    if (!f->tag[0])
        memcpy(f->tag, tag, n + 1);
    else
        same = strcmp(f->tag, tag) == 0;
    pthread_mutex_unlock(&j->d->lock);
    if (!same || (hex && n == strlen(f->hash) && strcmp(tag, f->hash) != 0))
        return end_with(j, V_RESTART, DG_E_IO, "%s is not the file that the list names (its ETag differs)", f->name);
    return true;
}

static bool on_head(void *arg, const struct dg_http_reply *r) {
    struct job *j = arg;
    const struct dl_file *f = j->f;
    int64_t size = (int64_t)f->size, want = (int64_t)(j->end - j->pos);
    if (r->html)
        return end_with(j, V_FATAL, DG_E_IO, "%s sends a web page instead of %s: a login page or a proxy in between?", r->host, f->name);
    if (r->encoded)
        return end_with(j, V_FATAL, DG_E_IO, "%s sends %s compressed, which was not asked for: a proxy in between?", r->host, f->name);
    if (!check_tag(j, r->tag))
        return false;
    if (j->ranged && r->status == 200)
        return end_with(j, V_WHOLE, DG_E_IO, "%s ignores ranges", r->host);
    if (r->status != (j->ranged ? 206 : 200))
        return end_with(j, V_RETRY, DG_E_IO, "%s answers with status %ld", r->host, r->status);
    if (j->ranged && r->total >= 0 && r->total != size)
        return end_with(j, V_RESTART, DG_E_IO, "%s has %lld bytes on %s, but %lld in the list", f->name, (long long)r->total, r->host,
                        (long long)size);
    if (j->ranged && (r->first != (int64_t)j->pos || r->last != (int64_t)j->end - 1))
        return end_with(j, V_RETRY, DG_E_IO, "%s sends another range of %s than asked for", r->host, f->name);
    if (!j->ranged && r->length >= 0 && r->length != size)
        return end_with(j, V_RESTART, DG_E_IO, "%s has %lld bytes on %s, but %lld in the list", f->name, (long long)r->length, r->host,
                        (long long)size);
    if (j->ranged && r->length >= 0 && r->length != want)
        return end_with(j, V_RETRY, DG_E_IO, "%s announces %lld bytes for a range of %lld", r->host, (long long)r->length, (long long)want);
    return true;
}

static enum dg_status disk_error(const struct dl *d, const char *name, struct dg_error *err) {
    int e = errno;
    if (e == ENOSPC || e == EDQUOT || e == EFBIG)
        return DG_FAIL(err, DG_E_IO, "no room left for %s in %s (%s): free some space and run this again, it goes on where it was", name,
                       d->part, strerror(e));
    return DG_FAIL(err, DG_E_IO, "cannot write %s in %s: %s", name, d->part, strerror(e));
}

/* Bytes from..to of the file are on disk; they lie in one chunk, or in several when the file comes as one stream. */
static void note_bytes(struct job *j, uint64_t from, uint64_t to) {
    struct dl_file *f = j->f;
    pthread_mutex_lock(&j->d->lock);
    for (uint64_t c = from / f->chunk; c < f->n_chunks && c * f->chunk < to; c++) {
        uint64_t end = c * f->chunk + chunk_len(f, (uint32_t)c);
        f->have[c] = (uint32_t)((to < end ? to : end) - c * f->chunk);
    }
    j->d->fetched += to - from;
    j->d->dirty = true;
    pthread_mutex_unlock(&j->d->lock);
}

static bool on_body(void *arg, const void *data, size_t n) {
    struct job *j = arg;
    const uint8_t *p = data;
    if (atomic_load(&j->f->epoch) != j->epoch)
        return end_with(j, V_STALE, DG_E_IO, "dropped");
    if (n > j->end - j->pos)
        return end_with(j, V_RETRY, DG_E_IO, "the server sends more of %s than asked for", j->f->name);
    for (size_t at = 0; at < n;) {
        ssize_t k = pwrite(j->f->fd, p + at, n - at, (off_t)(j->pos + at));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            j->verdict = V_FATAL;
            if (k == 0)
                errno = EIO;
            disk_error(j->d, j->f->name, &j->err);
            return false;
        }
        at += (size_t)k;
    }
    note_bytes(j, j->pos, j->pos + n);
    j->pos += n;
    return true;
}

/* The verdict on an answer that came whole. */
static enum verdict judge_status(struct job *j, const struct dg_http_reply *r) {
    const char *name = j->f->name;
    bool token = j->d->o->token && *j->d->o->token;
    if (r->status >= 200 && r->status <= 299) {
        if (j->pos == j->end)
            return V_DONE;
        end_with(j, V_RETRY, DG_E_IO, "%s ends %s early", r->host, name);
    } else if (r->status == 416)
        end_with(j, V_RESTART, DG_E_IO, "%s has no such bytes of %s: its file is not the listed one", r->host, name);
    else if (r->status == 408 || r->status == 425 || r->status == 429 || r->status >= 500)
        end_with(j, V_RETRY, DG_E_IO, "%s answers with status %ld%s", r->host, r->status,
                 r->status == 429 && !token ? " (too many requests; HF_TOKEN raises the limit)" : "");
    else if ((r->status == 401 || r->status == 403) && r->redirected) /* a signed address that ran out: the hub signs a new one */
        end_with(j, V_RETRY, DG_E_IO, "%s refuses access (status %ld)", r->host, r->status);
    else if (r->status == 401 || r->status == 403)
        end_with(j, V_FATAL, DG_E_IO, "%s: access refused (status %ld): accept the terms of %s at %s/%s, then %s", name, r->status, j->d->o->repo,
                 j->d->endpoint, j->d->o->repo, token ? "use a token (HF_TOKEN) of that account" : "set HF_TOKEN to a read token of that account");
    else if (r->status == 404 || r->status == 410)
        end_with(j, V_FATAL, DG_E_IO, "%s is listed, but %s does not have it (status %ld): try again later", name, r->host, r->status);
    else
        end_with(j, V_FATAL, DG_E_IO, "%s: %s answers with status %ld", name, r->host, r->status);
    return j->verdict;
}

static enum verdict request(struct job *j, struct dg_http *h, struct dg_http_reply *r) {
    const struct dl *d = j->d;
    char url[DG_HTTP_URL_MAX];
    dg_error_clear(&j->err);
    int n = snprintf(url, sizeof url, "%s/%s/resolve/%s/", d->endpoint, d->o->repo, d->commit);
    if (n >= (int)sizeof url || !dg_http_escape(url, sizeof url, j->f->name, true)) {
        end_with(j, V_FATAL, DG_E_ARG, "the address of %s is too long", j->f->name);
        return V_FATAL;
    }
    enum dg_http_fault fault;
    j->verdict = V_DONE;
    enum dg_status st = dg_http_get(h, url, j->ranged ? (int64_t)j->pos : -1, (int64_t)j->end - 1, on_head, on_body, j, r, &fault, &j->err);
    if (st == DG_OK)
        return judge_status(j, r);
    switch (fault) {
    case DG_HTTP_CALLER: return j->verdict;
    case DG_HTTP_CANCELLED: return V_STOP;
    case DG_HTTP_RETRY:
    case DG_HTTP_SETUP: return V_RETRY;
    default: return V_FATAL;
    }
}

/* ---- which bytes ---- */

static enum dg_status open_part(struct dl *d, struct dl_file *f, struct dg_error *err) {
    char path[DL_PATH];
    struct stat sb;
    if (f->fd >= 0)
        return DG_OK;
    DG_TRY(dl_path(path, d->part, f->name, DL_PART, err));
    f->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (f->fd < 0 || fstat(f->fd, &sb) != 0)
        return disk_error(d, f->name, err);
    /* the record may be newer than the disk after a power cut */
    for (uint32_t c = 0; c < f->n_chunks; c++)
        if ((uint64_t)c * f->chunk + f->have[c] > (uint64_t)sb.st_size)
            f->have[c] = 0;
    if ((uint64_t)sb.st_size > f->size && ftruncate(f->fd, (off_t)f->size) != 0)
        return disk_error(d, f->name, err);
    return DG_OK;
}

/* Drops what is there of a file; only when no job works on it. */
static enum dg_status start_over(struct dl *d, struct dl_file *f, struct dg_error *err) {
    memset(f->have, 0, f->n_chunks * sizeof *f->have);
    f->tag[0] = 0;
    f->reset = false;
    d->dirty = true;
    if (f->fd >= 0 && ftruncate(f->fd, 0) != 0)
        return disk_error(d, f->name, err);
    return DG_OK;
}

/* The next thing to do: a chunk (*chunk), or the check of a file (*chunk = UINT32_MAX). NULL: nothing now. d->lock is held. */
static struct dl_file *pick(struct dl *d, uint32_t *chunk, bool *all_done, struct dg_error *err) {
    *all_done = true;
    for (size_t i = 0; i < d->n_files; i++) {
        struct dl_file *f = &d->file[i];
        if (f->where != DL_TODO)
            continue;
        *all_done = false;
        if (f->checking || ((f->reset || f->whole) && f->n_busy))
            continue;
        if (open_part(d, f, err) != DG_OK || (f->reset && start_over(d, f, err) != DG_OK))
            return NULL;
        bool complete = true;
        for (uint32_t c = 0; c < f->n_chunks; c++) {
            bool full = f->have[c] == chunk_len(f, c);
            complete = complete && full;
            if (!full && !f->busy[c]) {
                *chunk = f->whole ? 0 : c;
                return f;
            }
        }
        if (complete && f->n_busy == 0) {
            *chunk = UINT32_MAX;
            return f;
        }
    }
    return NULL;
}

static void fail(struct dl *d, struct dg_error *err) {
    pthread_mutex_lock(&d->lock);
    if (d->failed == DG_OK && err->code != DG_E_CANCELLED) {
        d->failed = err->code;
        DG_FAIL(d->err, err->code, "%s", dg_error_text(err));
    }
    atomic_store(&d->halt, true);
    pthread_cond_broadcast(&d->wake);
    pthread_mutex_unlock(&d->lock);
    dg_error_clear(err);
}

/* What follows from a file that turned out to be another one. False: that is the end. */
static bool restart(struct job *j) {
    struct dl_file *f = j->f;
    pthread_mutex_lock(&j->d->lock);
    bool again = atomic_load(&f->epoch) != j->epoch; /* another job has seen it first */
    if (!again) {
        atomic_fetch_add(&f->epoch, 1);
        f->reset = true;
        again = ++f->restarts <= RESTARTS_MAX;
        j->d->n_retries += again;
        dl_note(j->d, "%s; starting it over", dg_error_text(&j->err));
    }
    pthread_mutex_unlock(&j->d->lock);
    if (!again) {
        char why[400];
        snprintf(why, sizeof why, "%s", dg_error_text(&j->err));
        DG_FAIL(&j->err, DG_E_IO, "%s, %d times in a row: it is being changed on the server, try again later", why, RESTARTS_MAX + 1);
    }
    return again;
}

static void go_whole(struct job *j) {
    struct dl_file *f = j->f;
    pthread_mutex_lock(&j->d->lock);
    if (!f->whole) {
        f->whole = true;
        atomic_fetch_add(&f->epoch, 1);
        f->reset = true;
        dl_note(j->d, "%s: %s; fetching it as one stream", f->name, dg_error_text(&j->err));
    }
    pthread_mutex_unlock(&j->d->lock);
}

/* Waits before the next try; false: no more tries. */
static bool wait_retry(struct job *j, const struct dg_http_reply *r, int n_failed) {
    struct dl *d = j->d;
    if (n_failed > d->o->retries) {
        dg_error_prefix(&j->err, "%s: given up after %d tries without progress", j->f->name, n_failed);
        return false;
    }
    int64_t asked = r->status == 429 || r->status == 503 ? r->retry_after_s : -1;
    double wait = dl_backoff(n_failed > 0 ? n_failed - 1 : 0, asked);
    pthread_mutex_lock(&d->lock);
    d->n_retries++;
    if (asked > 0 && dl_now() + wait > d->pause_until)
        d->pause_until = dl_now() + wait; /* asked of this address, so it goes for the other jobs too */
    dl_note(d, "%s: %s; again in %.1f s", j->f->name, dg_error_text(&j->err), wait);
    pthread_mutex_unlock(&d->lock);
    dl_sleep(d, wait);
    return true;
}

/* Fetches the rest of a chunk, or a whole file. False: the call has failed. */
static bool fetch_chunk(struct dl *d, struct dg_http *h, struct dl_file *f, uint32_t chunk, unsigned epoch, bool whole) {
    struct job j = {.d = d, .f = f, .epoch = epoch};
    struct dg_http_reply r;
    bool good = true;
    for (int n_failed = 0;;) {
        uint64_t begin = whole ? 0 : (uint64_t)chunk * f->chunk;
        if (atomic_load(&d->halt) || atomic_load(&f->epoch) != epoch)
            break;
        pthread_mutex_lock(&d->lock);
        double pause = d->pause_until - dl_now();
        j.pos = whole ? 0 : begin + f->have[chunk];
        j.end = whole ? f->size : begin + chunk_len(f, chunk);
        if (whole)
            memset(f->have, 0, f->n_chunks * sizeof *f->have);
        pthread_mutex_unlock(&d->lock);
        if (pause > 0 && !dl_sleep(d, pause))
            break;
        j.ranged = !whole && (f->n_chunks > 1 || j.pos > 0);
        uint64_t from = j.pos;
        enum verdict v = request(&j, h, &r);
        if (v == V_DONE || v == V_STALE || v == V_STOP)
            break;
        if (v == V_WHOLE) {
            go_whole(&j);
            break;
        }
        if (v == V_RETRY) {
            bool beyond = j.pos == j.end; /* more came than was asked for: who knows which part of it was meant */
            pthread_mutex_lock(&d->lock);
            if (beyond)
                f->have[chunk] = 0;
            pthread_mutex_unlock(&d->lock);
            /* a stream that starts over each time gains nothing, however far it came */
            n_failed = !whole && !beyond && j.pos - from >= PROGRESS_MIN ? 0 : n_failed + 1;
            if ((good = wait_retry(&j, &r, n_failed)))
                continue;
        } else
            good = v == V_RESTART && restart(&j);
        break;
    }
    if (!good)
        fail(d, &j.err);
    dg_error_clear(&j.err);
    return good;
}

/* Size and hash. A wrong file is thrown away and fetched once more. */
static bool check_file(struct dl *d, struct dl_file *f) {
    char path[DL_PATH];
    struct dg_error err = {0};
    bool same = false;
    enum dg_status st = dl_path(path, d->part, f->name, DL_PART, &err);
    if (st == DG_OK && fsync(f->fd) != 0)
        st = disk_error(d, f->name, &err);
    if (st == DG_OK)
        st = dl_hash(path, f, &d->halt, &same, &err);
    pthread_mutex_lock(&d->lock);
    f->checking = false;
    d->dirty = true;
    if (st == DG_OK && same) {
        f->where = DL_DONE;
        close(f->fd);
        f->fd = -1;
    } else if (st == DG_OK && ++f->bad_hashes == 1) {
        d->n_retries++;
        f->reset = true;
        dl_note(d, "%s: wrong hash; fetching it again", f->name);
    } else if (st == DG_OK) {
        atomic_store(&d->halt, true); /* before the lock is let go: another job would begin the file again */
        f->reset = true;
        close(f->fd);
        f->fd = -1;
        unlink(path);
        st = DG_FAIL(&err, DG_E_IO, "%s has the wrong %s, twice: what the server sends is not what it lists; the file was deleted, try again later",
                     f->name, f->lfs ? "SHA-256" : "hash");
    }
    pthread_cond_broadcast(&d->wake);
    pthread_mutex_unlock(&d->lock);
    if (st != DG_OK)
        fail(d, &err);
    return st == DG_OK;
}

static void work(struct dl *d, struct dg_http *h) {
    struct dg_error err = {0};
    pthread_mutex_lock(&d->lock);
    while (!atomic_load(&d->halt)) {
        uint32_t chunk;
        bool all_done;
        struct dl_file *f = pick(d, &chunk, &all_done, &err);
        if (err.code != DG_OK || all_done)
            break;
        if (!f) {
            pthread_cond_wait(&d->wake, &d->lock);
            continue;
        }
        bool good;
        if (chunk == UINT32_MAX) {
            f->checking = true;
            pthread_mutex_unlock(&d->lock);
            good = check_file(d, f);
            pthread_mutex_lock(&d->lock);
        } else {
            unsigned epoch = atomic_load(&f->epoch);
            bool whole = f->whole;
            f->busy[chunk] = 1;
            f->n_busy++;
            pthread_mutex_unlock(&d->lock);
            good = fetch_chunk(d, h, f, chunk, epoch, whole);
            pthread_mutex_lock(&d->lock);
            f->busy[chunk] = 0;
            f->n_busy--;
        }
        pthread_cond_broadcast(&d->wake);
        if (!good)
            break;
    }
    pthread_mutex_unlock(&d->lock);
    if (err.code != DG_OK)
        fail(d, &err);
}

static void *worker(void *arg) {
    struct dl *d = arg;
    struct dg_http_opts ho = {.origin = d->origin, .token = d->o->token, .timeout_s = d->o->timeout_s, .stop = &d->halt};
    struct dg_http *h;
    struct dg_error err = {0};
    if (dg_http_open(&h, &ho, &err) == DG_OK)
        work(d, h);
    else
        fail(d, &err);
    dg_http_close(h);
    pthread_mutex_lock(&d->lock);
    d->n_running--;
    pthread_cond_broadcast(&d->wake);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the call ---- */

void dl_report(struct dl *d) {
    struct dg_download_progress p = {.files = d->n_files, .note = ""};
    char note[sizeof d->note];
    if (!d->o->progress)
        return;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->n_files; i++) {
        const struct dl_file *f = &d->file[i];
        p.bytes += f->size;
        p.files_done += f->where != DL_TODO;
        p.checking += f->checking;
        if (f->where != DL_TODO)
            p.bytes_done += f->size;
        for (uint32_t c = 0; f->where == DL_TODO && !f->reset && c < f->n_chunks; c++)
            p.bytes_done += f->have[c];
    }
    p.bytes_fetched = d->fetched;
    p.n_notes = d->n_notes;
    memcpy(note, d->note, sizeof note);
    pthread_mutex_unlock(&d->lock);
    p.note = note;
    d->o->progress(d->o->arg, &p);
}

/* What is still to be written must fit, less what the part files take up already. */
static enum dg_status check_room(struct dl *d, struct dg_error *err) {
    uint64_t need = 0;
    for (size_t i = 0; i < d->n_files; i++) {
        char path[DL_PATH];
        struct stat sb;
        if (d->file[i].where != DL_TODO)
            continue;
        DG_TRY(dl_path(path, d->part, d->file[i].name, DL_PART, err));
        uint64_t taken = stat(path, &sb) == 0 ? (uint64_t)sb.st_blocks * 512 : 0;
        need += d->file[i].size > taken ? d->file[i].size - taken : 0;
    }
    struct statvfs v;
    if (need == 0 || statvfs(d->part, &v) != 0)
        return DG_OK;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room >= need && room - need >= SPARE_BYTES)
        return DG_OK;
    return DG_FAIL(err, DG_E_IO,
                   "not enough room in %s: %.1f GiB are needed, %.1f GiB are free; free some space, or give another folder with -o", d->part,
                   (double)need / (1 << 30), (double)room / (1 << 30));
}

static enum dg_status make_chunks(struct dl *d, struct dg_error *err) {
    for (size_t i = 0; i < d->n_files; i++) {
        struct dl_file *f = &d->file[i];
        if (f->where != DL_TODO)
            continue;
        if (!f->have) {
            f->chunk = d->o->chunk;
            f->n_chunks = (uint32_t)((f->size + f->chunk - 1) / f->chunk);
            f->have = dg_calloc(f->n_chunks, sizeof *f->have);
        }
        f->busy = dg_calloc(f->n_chunks, 1);
        if (!f->have || !f->busy)
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    return DG_OK;
}

/* Waits for the jobs, says how far they are and keeps the record. */
static enum dg_status supervise(struct dl *d, struct dg_error *err) {
    enum dg_status st = DG_OK;
    double saved = dl_now(), reported = 0;
    for (bool running = true; running;) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += 100000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_mutex_lock(&d->lock);
        if (d->n_running > 0)
            pthread_cond_timedwait(&d->wake, &d->lock, &t);
        running = d->n_running > 0;
        bool save = d->dirty && (!running || dl_now() - saved >= SAVE_EVERY_S);
        if (d->o->stop && atomic_load(d->o->stop)) {
            atomic_store(&d->halt, true);
            pthread_cond_broadcast(&d->wake);
        }
        pthread_mutex_unlock(&d->lock);
        if (save && st == DG_OK && (st = dl_state_save(d, err)) != DG_OK) {
            pthread_mutex_lock(&d->lock);
            atomic_store(&d->halt, true);
            pthread_cond_broadcast(&d->wake);
            pthread_mutex_unlock(&d->lock);
        }
        if (save)
            saved = dl_now();
        if (!running || dl_now() - reported >= REPORT_EVERY_S) {
            dl_report(d);
            reported = dl_now();
        }
    }
    return st;
}

enum dg_status dl_fetch(struct dl *d, struct dg_error *err) {
    size_t n_todo = 0;
    for (size_t i = 0; i < d->n_files; i++)
        n_todo += d->file[i].where == DL_TODO;
    if (n_todo == 0)
        return DG_OK;
    DG_TRY(check_room(d, err));
    DG_TRY(make_chunks(d, err));
    DG_TRY(dl_state_save(d, err));
    pthread_t thread[DG_DOWNLOAD_JOBS_MAX];
    int n = 0;
    struct dg_error job_err = {0};
    d->err = &job_err;
    sigset_t all, old; /* signals are the calling thread's business */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&d->lock);
    while (n < d->o->jobs && pthread_create(&thread[n], NULL, worker, d) == 0) {
        n++;
        d->n_running++;
    }
    pthread_mutex_unlock(&d->lock);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    enum dg_status st = n ? supervise(d, err) : DG_FAIL(err, DG_E_NOMEM, "cannot start a thread");
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (d->failed != DG_OK)
        st = DG_FAIL(err, d->failed, "%s", dg_error_text(&job_err));
    else if (st == DG_OK && atomic_load(&d->halt))
        st = DG_FAIL(err, DG_E_CANCELLED, "interrupted");
    dg_error_clear(&job_err);
    d->err = NULL;
    return st;
}
