/* A growing list of token ids with a stated maximum. Same failure rule as dg_buf: it remembers. */
#ifndef DG_CORE_IDS_H
#define DG_CORE_IDS_H

#include "core/status.h"

#define DG_IDS_MAX ((size_t)1 << 28)

struct dg_ids {
    int32_t *v;
    size_t n, cap;
    enum dg_status status;
};

void dg_ids_init(struct dg_ids *l);
void dg_ids_deinit(struct dg_ids *l);
enum dg_status dg_ids_push(struct dg_ids *l, int32_t id);
enum dg_status dg_ids_add(struct dg_ids *l, const int32_t *v, size_t n);
/* Room for n more; returns the list's status. */
enum dg_status dg_ids_reserve(struct dg_ids *l, size_t n);

#endif
