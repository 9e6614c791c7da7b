/* Writes small safetensors files: dumps of planes for comparison with other programs. */
#ifndef DG_PACK_ST_WRITE_H
#define DG_PACK_ST_WRITE_H

#include "core/status.h"

struct dg_st_entry {
    char name[64];   /* letters, digits, dots and underscores */
    const char *dtype; /* "F32" or "I32": 4 bytes an element */
    int64_t rows, cols;
    const void *data; /* rows * cols elements, row-major */
};

/* Writes path through a temporary name, so that no half file stands under it. Errors: DG_E_IO with the reason, DG_E_NOMEM. */
enum dg_status dg_st_save(const char *path, const struct dg_st_entry *entries, size_t n, struct dg_error *err) DG_MUST_CHECK;

#endif
