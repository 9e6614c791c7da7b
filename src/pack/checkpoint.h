/* A checkpoint folder's weights: model.safetensors, or shards named by model.safetensors.index.json. */
#ifndef DG_PACK_CHECKPOINT_H
#define DG_PACK_CHECKPOINT_H

#include "core/buf.h"
#include "pack/store.h"

/* Adds every tensor of the folder to the store and sorts it. Where both forms are there, the single file wins, as it does for the
 * reference implementation. Shards stay inside the folder: a name with a path in it is refused. Every missing shard, and every
 * tensor that is not where the index puts it, is named in one error. warnings (may be NULL): one line each, e.g. tensors that no
 * index lists. Errors: DG_E_IO, DG_E_FORMAT, DG_E_LIMIT, DG_E_UNSUPPORTED (weights in another format). */
enum dg_status dg_checkpoint_add(struct dg_store *s, const char *dir, struct dg_buf *warnings,
                                 struct dg_error *err) DG_MUST_CHECK;

/* The error for a folder that has no `missing` (e.g. "config.json"): says what the folder holds instead (GGUF, PyTorch weights,
 * part of a download) and what to do. Never DG_OK: DG_E_IO or DG_E_UNSUPPORTED. */
enum dg_status dg_checkpoint_explain(const char *dir, const char *missing, struct dg_error *err) DG_MUST_CHECK;

/* "run: diffgemma download org/name" where dir lies in a Hugging Face cache (.../models--org--name/...), else "download it again". */
void dg_checkpoint_remedy(const char *dir, char *dst, size_t n);

#endif
