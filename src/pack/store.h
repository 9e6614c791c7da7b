/* The tensors of a model, whatever file they come from: a table of names, shapes and places in mapped files.
 *
 * A source (safetensors today, a pack's blob as well) maps its files into the store and adds one row per tensor; the model's
 * binder finds rows by name. The store owns the mappings and the few vectors that are converted at open. Weights are never
 * copied: a tensor lies where the file put it, at any byte address, so every reader must use loads that allow misaligned
 * addresses (memcpy or unaligned vector loads). safetensors promises no alignment, and copying what lies badly could cost as much
 * memory as the file. */
#ifndef DG_PACK_STORE_H
#define DG_PACK_STORE_H

#include "core/status.h"
#include "formats/formats.h"

#define DG_TENSOR_RANK_MAX 8
#define DG_TENSOR_NAME_MAX 512
#define DG_STORE_TENSORS_MAX 131072
#define DG_STORE_FILES_MAX 1024
/* Converted vectors and unescaped names together: a stated part of the 64 MiB a store may take beyond its files. */
#define DG_STORE_OWN_MAX ((size_t)24 << 20)

struct dg_tensor {
    const char *name;  /* not NUL-terminated; owned by the store or its mapping */
    uint16_t name_len; /* 1..DG_TENSOR_NAME_MAX */
    uint16_t file;     /* index of dg_store_path */
    uint8_t kind;      /* enum dg_format, or DG_FMT_COUNT: an element type no weight of ours has */
    uint8_t rank;      /* 0..DG_TENSOR_RANK_MAX */
    bool bound;        /* the binder has claimed it */
    bool listed;       /* a shard index names it */
    const char *dtype; /* the element type as the file spells it, for messages: a string literal */
    int64_t shape[DG_TENSOR_RANK_MAX];
    const uint8_t *data; /* the first byte in the mapping; not NULL unless bytes is 0 */
    uint64_t bytes;
};

struct dg_store;

/* An empty store. Owner: the caller, dg_store_close (which also closes its mappings). */
enum dg_status dg_store_open(struct dg_store **out, struct dg_error *err) DG_MUST_CHECK;
void dg_store_close(struct dg_store *s); /* NULL is allowed */

/* Maps a file; the mapping lives as long as the store. *file: its index. Errors: DG_E_IO, DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_store_map(struct dg_store *s, const char *path, int *file, struct dg_error *err) DG_MUST_CHECK;
/* Takes memory of the caller's as if it were a mapped file of that name; it must outlive the store. For tests and fuzzing. */
enum dg_status dg_store_lend(struct dg_store *s, const char *name, const void *data, size_t n, int *file,
                             struct dg_error *err) DG_MUST_CHECK;
int dg_store_files(const struct dg_store *s);
/* Borrowed until dg_store_close. */
const char *dg_store_path(const struct dg_store *s, int file);
const uint8_t *dg_store_bytes(const struct dg_store *s, int file, size_t *size);

/* Adds a row (copied). Errors: DG_E_LIMIT, DG_E_NOMEM. The table is unsorted until dg_store_sort. */
enum dg_status dg_store_add(struct dg_store *s, const struct dg_tensor *t, struct dg_error *err) DG_MUST_CHECK;
/* Sorts by name for dg_store_find; two tensors of one name are an error that names both files. */
enum dg_status dg_store_sort(struct dg_store *s, struct dg_error *err) DG_MUST_CHECK;
size_t dg_store_count(const struct dg_store *s);
struct dg_tensor *dg_store_at(struct dg_store *s, size_t i);
/* The row of that name, or NULL. After dg_store_sort. Borrowed. */
struct dg_tensor *dg_store_find(struct dg_store *s, const char *name, size_t n);

/* n zeroed bytes, 64-byte aligned, that live as long as the store; all of them together stay below DG_STORE_OWN_MAX (DG_E_LIMIT).
 */
enum dg_status dg_store_alloc(struct dg_store *s, void **out, size_t n, struct dg_error *err) DG_MUST_CHECK;

#endif
