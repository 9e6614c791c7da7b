/* Reader of one safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes.
 *
 * Everything the file says is checked before it is used: header length against the file, JSON grammar, names (no duplicates),
 * element types, shape x element size = bytes, offsets inside the file and in order, no overlap, and, as the public format
 * demands, no byte that belongs to no tensor. Memory: one table row per tensor (DG_STORE_TENSORS_MAX), whatever the header says.
 */
#ifndef DG_PACK_SAFETENSORS_H
#define DG_PACK_SAFETENSORS_H

#include "pack/store.h"

#define DG_SAFETENSORS_HEADER_MAX ((uint64_t)100000000) /* the public format's own limit */

/* Adds the tensors of the store's file number `file` (dg_store_map or dg_store_lend). Element types that no weight has (I64,
 * F8_E4M3, or a name this reader does not know) are kept as kind DG_FMT_COUNT: only the binder knows whether they matter.
 * `__metadata__` is skipped. Duplicate names are found by dg_store_sort. Errors: DG_E_IO, DG_E_FORMAT (every fault of the file in
 * one message), DG_E_LIMIT. */
enum dg_status dg_safetensors_add(struct dg_store *s, int file, struct dg_error *err) DG_MUST_CHECK;

#endif
