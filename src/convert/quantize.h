/* Makes a pack from a checkpoint. */
#ifndef DG_CONVERT_QUANTIZE_H
#define DG_CONVERT_QUANTIZE_H

#include "pack/policy.h"
#include "pack/stream.h"

struct dg_quantize_opts {
    const char *source, *out; /* folders */
    struct dg_policy policy;  /* checked */
    bool overlay;             /* raw tensors stay in the checkpoint's files and are only referred to */
    bool vision;              /* the vision tower goes in too */
    const char *repo, *revision; /* base model of an overlay; NULL = from the source's place in the Hugging Face cache */
    struct dg_stream_opts stream;
};

struct dg_quantize_result {
    size_t n_tensors, n_quantized;
    uint64_t source_bytes, pack_bytes; /* pack_bytes: the blob's */
};

/* Everything that can be refused is refused before anything is written: an output that exists or lies in a model's folder, a source that is no
 * complete text checkpoint, shapes that a format does not take, a disk too full. On an error nothing stays behind. Peak memory: a few buffers
 * a thread (pack/stream.h) and the checkpoint's headers. Errors: DG_E_ARG, DG_E_FORMAT, DG_E_UNSUPPORTED, DG_E_IO, DG_E_NUMERIC, DG_E_CANCELLED. */
enum dg_status dg_quantize(const struct dg_quantize_opts *o, struct dg_quantize_result *r, struct dg_error *err) DG_MUST_CHECK;

/* "org/name" and revision of a folder .../models--org--name/snapshots/REV, also through symbolic links; false when it is no such folder. */
#define DG_REPO_TEXT 256
bool dg_repo_of(const char *dir, char repo[DG_REPO_TEXT], char revision[DG_REPO_TEXT]);
/* Which model the checkpoint in dir is: what was given (either may be NULL), else what dg_repo_of says. Errors: DG_E_ARG when neither knows. */
enum dg_status dg_repo_name(const char *dir, const char *given_repo, const char *given_revision, char repo[DG_REPO_TEXT],
                            char revision[DG_REPO_TEXT], struct dg_error *err) DG_MUST_CHECK;
/* What a manifest says a pack was made from: "org/name@revision" from the cache, else the folder's own name: no one else's paths. */
void dg_source_name(const char *dir, char *dst, size_t n);

#endif
