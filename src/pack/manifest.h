/* The manifest of a pack, model.dgq.json (docs/format.md): which tensor has which kind, shape and place.
 *
 * Everything is checked as text before any file it speaks of is opened: grammar, types, kinds, bytes against shape, 64-byte alignment of
 * every canonical offset, overlaps. Members it does not know are ignored. Memory is bounded by the limits below, whatever the text. */
#ifndef DG_PACK_MANIFEST_H
#define DG_PACK_MANIFEST_H

#include "core/buf.h"
#include "core/faults.h"
#include "pack/store.h"

#define DG_MANIFEST_NAME "model.dgq.json"
#define DG_MANIFEST_BLOB "model.dgq.bin"
#define DG_MANIFEST_FILE_MAX ((size_t)32 << 20)
#define DG_MANIFEST_TENSORS_MAX 32768
#define DG_MANIFEST_EXTERNALS_MAX 1000
#define DG_MANIFEST_CLASSES_MAX 32
#define DG_MANIFEST_TEXT_MAX ((size_t)16 << 20) /* names, paths and the like together */
#define DG_PACK_ALIGN 64
#define DG_PACK_EXPERT_ALIGN 16384

/* Where a tensor's bytes lie. */
enum dg_source {
    DG_SOURCE_BLOB,    /* no source member: at the canonical offset of the pack's own blob */
    DG_SOURCE_LOCAL,   /* elsewhere in the pack's own blob */
    DG_SOURCE_EXTERNAL /* in another file */
};

struct dg_manifest_tensor {
    const char *name;  /* 1..DG_TENSOR_NAME_MAX bytes */
    const char *dtype; /* of a raw tensor: the element type; of others what it was made from. A literal, "" when unknown */
    uint8_t kind;      /* enum dg_format; of a raw tensor its element type or DG_FMT_COUNT */
    bool raw;
    uint8_t rank;
    uint8_t source; /* enum dg_source */
    uint16_t external;
    bool hashed; /* xxh3 is given */
    int64_t shape[DG_TENSOR_RANK_MAX];
    uint64_t offset; /* canonical */
    uint64_t bytes;
    uint64_t at; /* DG_SOURCE_LOCAL, DG_SOURCE_EXTERNAL: offset in that file */
    uint64_t xxh3; /* XXH3 (64 bits, seed 0) of the tensor's bytes */
};

struct dg_manifest_external {
    const char *key, *path;
    bool pack_bin; /* another pack's blob; else a safetensors file of the base model's snapshot */
    uint64_t size;
    const char *sha256; /* of the file's first 8 bytes and header, lower-case hex; NULL = not pinned */
};

/* A zeroed record is empty. Texts and arrays are owned by the record, except those a writer lends (see dg_manifest_print). */
struct dg_manifest {
    int version;
    const char *profile, *source_model, *blob_file;
    bool has_split, has_local_split;
    uint64_t split, local_split;
    const char *repo, *revision; /* base model; both NULL when there is none */
    struct {
        const char *name, *format;
    } classes[DG_MANIFEST_CLASSES_MAX];
    int n_classes;
    struct dg_manifest_external *external;
    int n_external;
    struct dg_manifest_tensor *tensor; /* in the manifest's order */
    size_t n_tensors;
    struct dg_manifest_text *text; /* storage of the parsed texts */
};

/* Reads and checks a text. Every fault is named in one error. Errors: DG_E_FORMAT, DG_E_UNSUPPORTED (version or kind of a later engine),
 * DG_E_LIMIT, DG_E_NOMEM; the record is empty then. Owner: the caller, dg_manifest_deinit. */
enum dg_status dg_manifest_parse(struct dg_manifest *m, const char *text, size_t n, struct dg_error *err) DG_MUST_CHECK;
/* The same for DIR/model.dgq.json; messages begin with its path. Also DG_E_IO. */
enum dg_status dg_manifest_load(struct dg_manifest *m, const char *dir, struct dg_error *err) DG_MUST_CHECK;
void dg_manifest_deinit(struct dg_manifest *m);

/* Whether any tensor says where its bytes lie. */
bool dg_manifest_layered(const struct dg_manifest *m);
/* End of the canonical space. */
uint64_t dg_manifest_total(const struct dg_manifest *m);
/* Bytes of a tensor of that kind and shape; 0 when the shape does not suit the kind or the product overflows, and for DG_FMT_COUNT. */
uint64_t dg_manifest_bytes(enum dg_format kind, int rank, const int64_t *shape);
/* The version a manifest of these contents has: the highest that applies. */
int dg_manifest_version(const struct dg_manifest *m);
/* "raw", "q4_block" etc. A literal. */
const char *dg_manifest_kind(const struct dg_manifest_tensor *t);

/* Appends the manifest as JSON, one tensor a line, the same text for the same contents. For writing, a caller fills a record whose texts
 * and arrays are its own (text NULL) and must outlive the call. Returns the buffer's status. */
enum dg_status dg_manifest_print(const struct dg_manifest *m, struct dg_buf *out);

#endif
