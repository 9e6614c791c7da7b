/* Turns a self-contained pack into a layered one and back. No value changes: tensors are copied, or referred to. */
#ifndef DG_CONVERT_REPACK_H
#define DG_CONVERT_REPACK_H

#include "core/buf.h"
#include "pack/stream.h"

struct dg_repack_opts {
    const char *pack, *out; /* folders */
    bool overlay;           /* else monolithic */
    /* of an overlay: the checkpoint to lie over; NULL = what the manifest names, or repo and revision, in the Hugging Face cache */
    const char *base;
    const char *repo, *revision; /* as which model it is recorded; NULL = from the base's place in the cache */
    struct dg_stream_opts stream;
};

struct dg_repack_result {
    size_t n_tensors, n_external, n_differ; /* n_differ: raw tensors whose bytes are not the base's, and which are kept in the pack */
    uint64_t blob_bytes;
    struct dg_buf differ; /* their names, one a line; at most DG_REPACK_NAMES bytes. Owner: the caller, dg_buf_deinit */
};
#define DG_REPACK_NAMES ((size_t)64 << 10)

/* Overlay: every raw tensor is compared with the base byte by byte; equal ones become references, others stay in the blob. Monolithic:
 * every tensor's bytes go to their canonical place. Hashes in the manifest are checked on the way. On an error nothing stays behind.
 * Errors: DG_E_ARG (also for a pack that is of the wanted kind already), DG_E_FORMAT, DG_E_IO, DG_E_CANCELLED. */
enum dg_status dg_repack(const struct dg_repack_opts *o, struct dg_repack_result *r, struct dg_error *err) DG_MUST_CHECK;

#endif
