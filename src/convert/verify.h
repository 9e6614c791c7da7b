/* Checks a pack through and through: structure, sizes, every scale, every checksum, and on request the error against its checkpoint. */
#ifndef DG_CONVERT_VERIFY_H
#define DG_CONVERT_VERIFY_H

#include "core/faults.h"
#include "pack/manifest.h"
#include "pack/stream.h"

struct dg_verify_row {
    bool compared;
    double max_error; /* largest |pack - source| */
    double rel_rms;   /* sqrt(sum (pack - source)^2 / sum source^2); 0 when both are 0 */
};

struct dg_verify {
    struct dg_manifest m;
    struct dg_verify_row *row; /* by tensor of the manifest */
    struct dg_faults faults;   /* what is wrong with the pack; none = it is sound */
    size_t n_hashed;           /* tensors that had a checksum */
    uint64_t bytes;            /* read of the pack */
};

/* source: the checkpoint, or NULL. A pack that is wrong is not an error of the call: its faults are in v. Errors: what keeps the check from
 * being made: no such folder, memory, DG_E_CANCELLED, a source that does not open or lacks a tensor. Owner of v: the caller,
 * dg_verify_deinit, also after an error. */
enum dg_status dg_verify_run(struct dg_verify *v, const char *dir, const char *source, const struct dg_stream_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;
void dg_verify_deinit(struct dg_verify *v);

#endif
