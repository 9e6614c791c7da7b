/* Unicode tables behind pystr.c. Every table is sorted by its first member; ranges do not overlap. */
#ifndef DG_TEMPLATE_UNITAB_H
#define DG_TEMPLATE_UNITAB_H

#include <stddef.h>
#include <stdint.h>

/* first, first + step, ... last each map to themselves + delta. */
struct dg_unitab_range {
    uint32_t first, last;
    uint32_t step;
    int32_t delta;
};
/* One code point becomes two or three; unused places are 0. */
struct dg_unitab_long {
    uint32_t from;
    uint32_t to[3];
};
struct dg_unitab_span {
    uint32_t first, last;
};

extern const struct dg_unitab_range dg_unitab_lower[], dg_unitab_upper[];
extern const struct dg_unitab_long dg_unitab_upper_long[];
extern const struct dg_unitab_span dg_unitab_hidden[];
extern const size_t dg_unitab_n_lower, dg_unitab_n_upper, dg_unitab_n_upper_long, dg_unitab_n_hidden;

#endif
