/* Fetches a model from a Hugging Face hub: listed, checked by hash, resumable, and never visible before it is whole.
 *
 * Everything is written into a folder beside the target (DIR.part, or snapshots/.download.part in the cache), each file under NAME.part.
 * Names lose their ".part" only when every file has the size and hash that the hub lists, and the folder takes its real name only after its
 * weights' headers were read. `.diffgemma.json` in the folder records what is there, so that a later call goes on where this one ended. */
#ifndef DG_PACK_DOWNLOAD_H
#define DG_PACK_DOWNLOAD_H

#include "core/status.h"

#include <stdatomic.h>

#define DG_DOWNLOAD_ENDPOINT "https://huggingface.co"
#define DG_DOWNLOAD_JOBS_MAX 64
#define DG_DOWNLOAD_FILES_MAX 1100             /* files of one model */
#define DG_DOWNLOAD_FILE_MAX ((uint64_t)1 << 44) /* bytes of one file */
#define DG_DOWNLOAD_CHUNK_MIN ((uint64_t)64 << 10)
#define DG_DOWNLOAD_CHUNK_MAX ((uint64_t)1 << 30)

struct dg_download_progress {
    size_t files, files_done; /* done = fetched and checked */
    size_t checking;          /* files being hashed now */
    uint64_t bytes, bytes_done;
    uint64_t bytes_fetched; /* by this call */
    const char *note;       /* the latest thing worth a line, e.g. a retry and its reason; "" = none yet */
    unsigned n_notes;       /* grows with each note */
};

/* Borrowed during the call. */
struct dg_download_opts {
    const char *repo;     /* "org/name" */
    const char *revision; /* branch, tag or commit; NULL = main */
    const char *dir;      /* target folder; NULL = the Hugging Face cache, where dg_hub_resolve finds it */
    const char *endpoint; /* NULL = DG_DOWNLOAD_ENDPOINT */
    const char *token;    /* NULL = none; sent to the endpoint's origin only, printed nowhere */
    int jobs;             /* connections, 1..DG_DOWNLOAD_JOBS_MAX */
    int retries;          /* failures in a row, without progress, that end the call */
    long timeout_s;       /* a transfer below 1 KB/s for as long counts as failed */
    uint64_t chunk;       /* bytes of one range request, DG_DOWNLOAD_CHUNK_MIN..MAX */
    bool force;           /* fetch again although the target is complete, and replace it */
    atomic_bool *stop;    /* set by anyone: the call ends within about a second with DG_E_CANCELLED; NULL = never */
    /* Called from the calling thread about five times a second; NULL = not. */
    void (*progress)(void *arg, const struct dg_download_progress *p);
    void *arg;
};

struct dg_download_result {
    char *dir;       /* the model's folder; dg_download_result_deinit */
    char commit[65]; /* what the revision stood for */
    size_t files;
    uint64_t bytes, bytes_fetched;
    unsigned retries;
    bool already; /* it was complete: nothing was fetched */
};

/* Fetches config, tokenizer and weights (a .dgq pack where the repo holds one, else safetensors). Memory: about 1 MiB a job, whatever the
 * model. Only one call at a time works on a target, also among processes. Errors, with one sentence that says what to do: DG_E_ARG (names,
 * an existing folder in the way), DG_E_IO (network, disk, access, hashes that do not match), DG_E_UNSUPPORTED (a repo without a model this
 * engine reads), DG_E_FORMAT (a model whose files are what the hub lists, but damaged), DG_E_LIMIT, DG_E_NOMEM, DG_E_CANCELLED. After any of
 * them the target is as it was, and what was fetched stays for the next call. */
enum dg_status dg_download(const struct dg_download_opts *o, struct dg_download_result *res, struct dg_error *err) DG_MUST_CHECK;
/* A zeroed record is allowed. */
void dg_download_result_deinit(struct dg_download_result *res);

#endif
