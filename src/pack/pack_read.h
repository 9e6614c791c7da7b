/* Reader of a pack folder: model.dgq.json and the files it speaks of, into the store.
 *
 * A self-contained pack has all its bytes in its blob. A layered pack has some of them in other files: its tensors then point into
 * those files' mappings, nothing is copied. The 64-byte rule for canonical offsets is checked before anything is mapped or allocated;
 * tensors in other files lie at any address, as safetensors gives no alignment (see pack/store.h). */
#ifndef DG_PACK_PACK_READ_H
#define DG_PACK_PACK_READ_H

#include "pack/manifest.h"
#include "pack/store.h"

/* Whether the folder holds a pack's manifest. */
bool dg_pack_is(const char *dir);

/* Adds every tensor of the pack in the folder and sorts the store. Errors: as dg_manifest_load; DG_E_FORMAT for a tensor beyond its
 * file; DG_E_IO for a file that is missing, of another size or with another header than the pack was made from (the message says
 * the download command). */
enum dg_status dg_pack_add(struct dg_store *s, const char *dir, struct dg_error *err) DG_MUST_CHECK;

/* Reads the manifest and the blob's size as dg_pack_add does; files of other models, which a layered pack refers to, are not looked for. */
enum dg_status dg_pack_check_own(const char *dir, struct dg_error *err) DG_MUST_CHECK;

/* The steps of dg_pack_add, for tools that need the manifest too and for fuzzing. map: maps the blob and the external files;
 * blob, external[n_external]: their numbers in the store. add: the rows; the manifest may be dropped afterwards. */
struct dg_pack_files {
    int blob; /* -1: no tensor is in it and it is not there */
    int external[DG_MANIFEST_EXTERNALS_MAX];
};
enum dg_status dg_pack_map_files(struct dg_store *s, const struct dg_manifest *m, const char *dir, struct dg_pack_files *f,
                                 struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_pack_add_tensors(struct dg_store *s, const struct dg_manifest *m, const struct dg_pack_files *f, struct dg_error *err)
    DG_MUST_CHECK;
/* File number and offset of a tensor's first byte. A tensor without a source lies at its canonical offset, or, beyond the split of a pack
 * that has local_expert_split, where the experts do. */
void dg_pack_locate(const struct dg_manifest *m, const struct dg_manifest_tensor *t, const struct dg_pack_files *f, int *file, uint64_t *at);

/* SHA-256 in lower-case hex of the first 8 bytes of a safetensors file and the header they announce. Errors: DG_E_FORMAT when the
 * header does not fit the n bytes, DG_E_INTERNAL. */
enum dg_status dg_pack_header_sha256(const uint8_t *file, size_t n, char hex[65], struct dg_error *err) DG_MUST_CHECK;

/* Adds the weights of a folder, pack or checkpoint; warnings as in dg_checkpoint_add. */
enum dg_status dg_weights_add(struct dg_store *s, const char *dir, struct dg_buf *warnings, struct dg_error *err) DG_MUST_CHECK;

#endif
