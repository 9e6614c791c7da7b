/* Writer of a pack: places for its tensors, then blob and manifest. */
#ifndef DG_PACK_PACK_WRITE_H
#define DG_PACK_PACK_WRITE_H

#include "pack/manifest.h"
#include "pack/outdir.h"
#include "pack/stream.h"

/* Order of two tensors in a pack: experts last, otherwise by name with numbers by value, so that layers follow each other whatever
 * file they came from. */
int dg_pack_order(const struct dg_manifest_tensor *a, const struct dg_manifest_tensor *b);
/* Gives every tensor its canonical offset, in the order they stand in, and sets the split before the first expert. */
void dg_pack_place(struct dg_manifest *m);
/* Gives every DG_SOURCE_LOCAL tensor its place in the pack's own blob: those before the split close together, those after it as far
 * behind local_expert_split as canonically behind the split. */
void dg_pack_place_local(struct dg_manifest *m);

/* Writes the blob, the hashes into the manifest, and the manifest itself, which comes last. items[i] says how the bytes of tensor i are
 * come by; name, bytes and destination are filled in here, and items of external tensors are not used. A tensor that has a hash already must
 * turn out to have it (DG_E_FORMAT). Other errors: as dg_stream_run. */
enum dg_status dg_pack_write(struct dg_outdir *d, struct dg_manifest *m, struct dg_stream_item *items, const struct dg_stream_opts *opts,
                             struct dg_error *err) DG_MUST_CHECK;

/* A base checkpoint under a layered pack: its files become the manifest's external files as tensors refer to them. */
struct dg_base {
    const struct dg_store *store;
    int *external_of;   /* by file number of the store, -1 = none yet */
    char (*sha256)[65]; /* of the externals, which borrow it */
};
/* store is borrowed, and so are its paths by the manifest. Owner: the caller, dg_base_deinit (zeroed is allowed), after the manifest's last use.
 * Errors: DG_E_NOMEM. */
enum dg_status dg_base_init(struct dg_base *b, const struct dg_store *store, struct dg_manifest *m, struct dg_error *err) DG_MUST_CHECK;
void dg_base_deinit(struct dg_base *b);
/* Makes t a reference to the bytes of `from`, a tensor of the store. Errors: DG_E_FORMAT. */
enum dg_status dg_base_refer(struct dg_base *b, struct dg_manifest *m, struct dg_manifest_tensor *t, const struct dg_tensor *from,
                             struct dg_error *err) DG_MUST_CHECK;

/* Files of a store, opened for streaming. */
struct dg_sources {
    int n;
    int *fd; /* by file number of the store; -1 = not opened yet */
};
enum dg_status dg_sources_open(struct dg_sources *s, const struct dg_store *store, struct dg_error *err) DG_MUST_CHECK;
void dg_sources_close(struct dg_sources *s);
/* Lets an item read what tensor t of the store is made of: source file and offset. Errors: DG_E_IO, also when the file is no longer of the
 * size it had when the store was opened. */
enum dg_status dg_sources_feed(struct dg_sources *s, const struct dg_store *store, const struct dg_tensor *t, struct dg_stream_item *item,
                               struct dg_error *err) DG_MUST_CHECK;

#endif
