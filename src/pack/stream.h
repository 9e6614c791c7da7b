/* Streams tensors into files: read (or made), encoded or copied, hashed and written, in parallel and in bounded memory.
 *
 * Nothing is mapped: sources are read with pread, so that a source that shrinks meanwhile is an error and not a fault, and memory stays at
 * the buffers' size whatever the model. The bytes and hashes are the same for any number of threads. */
#ifndef DG_PACK_STREAM_H
#define DG_PACK_STREAM_H

#include "core/pool.h"
#include "formats/encode.h"

#include <stdatomic.h>

/* Makes row `row` of a tensor that no file has: k values. Any thread. */
typedef void dg_stream_make_fn(const void *ctx, int64_t row, int64_t k, float *x);

struct dg_stream_item {
    const char *name; /* for messages */
    bool verbatim;    /* `bytes` bytes are copied as they are */
    /* else a stack of mats matrices [rows][k] is encoded */
    enum dg_format from, to; /* from: an element type, when read from a file */
    enum dg_codes codes;
    const float *weights; /* of the columns' errors, k of them; NULL = all the same */
    int64_t mats, rows, k;
    uint64_t bytes; /* written in all */
    int src;        /* open file, or -1: made */
    const char *src_path;
    uint64_t src_at;
    dg_stream_make_fn *make;
    const void *make_ctx;
    int dst;
    const char *dst_path;
    uint64_t dst_at;
    uint64_t xxh3; /* out: XXH3 of the bytes written */
};

struct dg_stream_opts {
    int threads; /* 0 = all CPUs */
    atomic_bool *cancel; /* may be NULL; true ends the work with DG_E_CANCELLED */
    /* bytes read or made so far, of all; called by the caller's thread. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

/* Does all items in order. Errors: DG_E_IO (naming file and reason), DG_E_NUMERIC (a value that is not finite or cannot be
 * expressed; names the tensor), DG_E_NOMEM, DG_E_CANCELLED. Files may hold part of the items then. */
enum dg_status dg_stream_run(struct dg_stream_item *items, size_t n, const struct dg_stream_opts *opts, struct dg_error *err) DG_MUST_CHECK;

/* All n bytes at `at`. Errors: DG_E_IO naming the path; an early end is one. */
enum dg_status dg_pread_all(int fd, const char *path, void *buf, size_t n, uint64_t at, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_pwrite_all(int fd, const char *path, const void *buf, size_t n, uint64_t at, struct dg_error *err) DG_MUST_CHECK;

#endif
