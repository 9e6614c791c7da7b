/* Element types as safetensors headers and pack manifests name them. */
#ifndef DG_PACK_DTYPE_H
#define DG_PACK_DTYPE_H

#include "formats/formats.h"

struct dg_dtype_info {
    const char *name; /* upper case, a literal */
    int bits;
    enum dg_format kind; /* DG_FMT_COUNT: no weight of ours has it */
};

/* The row of that very name; NULL = unknown. Static storage. */
const struct dg_dtype_info *dg_dtype_find(const char *name, size_t n);

#endif
