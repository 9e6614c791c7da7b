/* A range of bytes inside a text. */
#ifndef DG_CORE_SPAN_H
#define DG_CORE_SPAN_H

#include <stddef.h>

struct dg_span {
    size_t begin, end; /* begin <= end; end is the first byte after the range */
};

#endif
