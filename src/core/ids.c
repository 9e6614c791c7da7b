#include "core/ids.h"

#include "core/mem.h"

#include <string.h>

void dg_ids_init(struct dg_ids *l) { memset(l, 0, sizeof *l); }

void dg_ids_deinit(struct dg_ids *l) {
    dg_free(l->v);
    memset(l, 0, sizeof *l);
}

enum dg_status dg_ids_reserve(struct dg_ids *l, size_t n) {
    if (l->status != DG_OK)
        return l->status;
    if (n > DG_IDS_MAX || l->n > DG_IDS_MAX - n)
        return l->status = DG_E_LIMIT;
    size_t need = l->n + n;
    if (need <= l->cap)
        return DG_OK;
    size_t cap = l->cap ? l->cap : 64;
    while (cap < need)
        cap *= 2;
    int32_t *v = dg_realloc(l->v, l->n, cap, sizeof *v);
    if (!v)
        return l->status = DG_E_NOMEM;
    l->v = v;
    l->cap = cap;
    return DG_OK;
}

enum dg_status dg_ids_push(struct dg_ids *l, int32_t id) { return dg_ids_add(l, &id, 1); }

enum dg_status dg_ids_add(struct dg_ids *l, const int32_t *v, size_t n) {
    enum dg_status st = dg_ids_reserve(l, n);
    if (st != DG_OK)
        return st;
    if (n)
        memcpy(l->v + l->n, v, n * sizeof *v);
    l->n += n;
    return DG_OK;
}
