/* An output folder that appears whole or not at all: everything is written under OUT.part, synced, and renamed at the end.
 *
 * A run that was killed leaves OUT.part. The manifest is the last file in it, so it opens as nothing, or, in the moment before the
 * rename, as the whole. The next run for the same OUT clears it; a folder of that name with other files in it is left alone and refused.
 * Two runs for one OUT cannot meet: the folder is locked while it is written. */
#ifndef DG_PACK_OUTDIR_H
#define DG_PACK_OUTDIR_H

#include "core/status.h"

#define DG_OUTDIR_PATH 4096

struct dg_outdir {
    char final[DG_OUTDIR_PATH], part[DG_OUTDIR_PATH];
    int fd; /* of OUT.part, locked; -1 = not open */
};

/* Refuses a folder that would lie inside a model's (one with weights or a manifest), however far down and through whatever links: the source
 * of a conversion must not change under it, and what is deleted with a model is that model. Errors: DG_E_ARG. */
enum dg_status dg_outdir_check_place(const char *out, struct dg_error *err) DG_MUST_CHECK;
/* Starts OUT. Errors: DG_E_ARG when OUT exists, its parent does not, it lies inside a model's folder, or another run is writing it; DG_E_IO. */
enum dg_status dg_outdir_open(struct dg_outdir *d, const char *out, struct dg_error *err) DG_MUST_CHECK;
/* Fails with the figures when `bytes` more do not fit the file system. */
enum dg_status dg_outdir_space(const struct dg_outdir *d, uint64_t bytes, struct dg_error *err) DG_MUST_CHECK;
/* A new file of `bytes` bytes (zeros), open for writing; path: for messages, DG_OUTDIR_PATH bytes. Owner: the caller, close. */
enum dg_status dg_outdir_create(struct dg_outdir *d, const char *name, uint64_t bytes, int *fd, char *path, struct dg_error *err) DG_MUST_CHECK;
/* Syncs and closes a file of dg_outdir_create; *fd is -1 afterwards. */
enum dg_status dg_outdir_finish(int *fd, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* A whole small file. */
enum dg_status dg_outdir_put(struct dg_outdir *d, const char *name, const void *data, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* Copies a file of at most 64 MiB. */
enum dg_status dg_outdir_copy_as(struct dg_outdir *d, const char *path, const char *name, struct dg_error *err) DG_MUST_CHECK;
/* The files beside the weights that a model folder needs: configuration, tokenizer and the like, as far as dir has them. */
enum dg_status dg_outdir_copy_sidecars(struct dg_outdir *d, const char *dir, struct dg_error *err) DG_MUST_CHECK;
/* Syncs and renames to OUT; the record is closed then. On an error it stays open. */
enum dg_status dg_outdir_commit(struct dg_outdir *d, struct dg_error *err) DG_MUST_CHECK;
/* Removes what was written. Nothing after dg_outdir_commit. A record with fd -1 is allowed. */
void dg_outdir_abandon(struct dg_outdir *d);

#endif
