/* What the parts of the downloader share. */
#ifndef DG_PACK_DOWNLOAD_INT_H
#define DG_PACK_DOWNLOAD_INT_H

#include "net/http.h"
#include "pack/download.h"

#include <limits.h>
#include <pthread.h>

#define DL_PATH 4096
#define DL_STATE ".diffgemma.json"
#define DL_LOCK ".diffgemma.lock"
#define DL_PART ".part"

enum dl_where {
    DL_TODO,
    DL_DONE, /* in the part folder, hash checked */
    DL_KEPT  /* in an incomplete target, hash checked; moved when the rest is there */
};

struct dl_file {
    char name[200];
    uint64_t size;
    char hash[65]; /* lower-case hex: SHA-256 of the content (lfs), else SHA-1 of the git blob */
    bool lfs;
    enum dl_where where;

    /* fetching; guarded by dl.lock */
    uint64_t chunk;
    uint32_t n_chunks;
    uint32_t *have; /* bytes of each chunk that are on disk, from its start */
    uint8_t *busy;
    int n_busy, fd; /* fd: -1 = closed */
    bool whole;     /* the server ignores ranges: one stream from the start */
    bool checking, reset;
    int restarts, bad_hashes;
    atomic_uint epoch; /* grows when what is under way is to be dropped */
    char tag[DG_HTTP_TAG_MAX];
};

struct dl {
    const struct dg_download_opts *o;
    const char *revision;
    char endpoint[600]; /* without a final slash */
    char origin[512];
    char commit[65];
    char repo_dir[DL_PATH]; /* in the cache; "" with a folder of the user's */
    char target[DL_PATH], part[DL_PATH], old[DL_PATH];
    int lock_fd;

    struct dl_file *file;
    size_t n_files;
    bool pack;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_bool halt; /* stop, or a job failed */
    struct dg_error *err;
    enum dg_status failed;
    double pause_until; /* no request before this time: a server asked for it */
    uint64_t fetched;
    unsigned n_retries, n_notes;
    int n_running;
    bool dirty; /* the state file is older than what is known */
    char note[512];
};

/* What ends the work of the calling thread. */
static inline atomic_bool *dl_stop(struct dl *d) { return d->o->stop ? d->o->stop : &d->halt; }
/* Seconds of a monotonic clock. */
double dl_now(void);
/* dir "/" name suffix; DG_E_LIMIT when it is too long. */
enum dg_status dl_path(char dst[DL_PATH], const char *dir, const char *name, const char *suffix, struct dg_error *err) DG_MUST_CHECK;
/* Whether a file of that name belongs to a model: what is fetched, and what --force may replace. */
bool dl_is_model_file(const char *name);
/* Waits up to s seconds, less when the call is to end; false then. */
bool dl_sleep(struct dl *d, double s);
/* Calls the caller's progress function, if there is one. From the calling thread only. */
void dl_report(struct dl *d);
/* Sets the note; d->lock is held. */
void dl_note(struct dl *d, const char *fmt, ...) DG_PRINTF(2, 3);
/* How long to wait before try number n (0 = the first repetition); asked: what the server asked for, -1 = nothing. */
double dl_backoff(int n, int64_t asked);

/* Asks the hub for the commit and its files, and chooses among them. */
enum dg_status dl_list(struct dl *d, struct dg_error *err) DG_MUST_CHECK;

/* Reads the folder's record and marks what it says of the files that are still wanted; a missing or damaged record says nothing. */
void dl_state_load(struct dl *d, const char *dir);
/* Writes the record through a temporary name. Takes d->lock for the snapshot. */
enum dg_status dl_state_save(struct dl *d, struct dg_error *err) DG_MUST_CHECK;
/* Whether dir's record says that commit `commit` of the repo is there; then *n and *bytes count its files, which all have their size. */
bool dl_state_complete(const char *dir, const char *repo, const char *commit, size_t *n, uint64_t *bytes);
/* Whether the record of dir has the file, whole, with that hash. */
bool dl_state_vouches(const char *dir, const struct dl_file *f);

/* Sets *same when the file's content has the hash. Errors: DG_E_IO, DG_E_CANCELLED. */
enum dg_status dl_hash(const char *path, const struct dl_file *f, atomic_bool *halt, bool *same, struct dg_error *err) DG_MUST_CHECK;
/* Fetches every file that is DL_TODO into the part folder. */
enum dg_status dl_fetch(struct dl *d, struct dg_error *err) DG_MUST_CHECK;

/* Paths of target, part and old folder. */
enum dg_status dl_locate(struct dl *d, struct dg_error *err) DG_MUST_CHECK;
/* Makes the part folder and locks it; looks at what the target and the part folder already hold. *already: the target is complete. */
enum dg_status dl_prepare(struct dl *d, bool *already, struct dg_error *err) DG_MUST_CHECK;
/* Gives the files their names, checks the model and moves it to its place. */
enum dg_status dl_place(struct dl *d, struct dg_error *err) DG_MUST_CHECK;
/* refs/REVISION of the cache, last of all; nothing for a folder of the user's. */
enum dg_status dl_write_ref(struct dl *d, struct dg_error *err) DG_MUST_CHECK;
/* Ends the lock; removes the part folder when nothing worth keeping is in it. */
void dl_unlock(struct dl *d);

#endif
