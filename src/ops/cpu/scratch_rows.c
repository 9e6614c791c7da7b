#include "ops/cpu/attention.h"

#include "core/mem.h"

/* A thread's part holds blocks of queries, of what they have summed, tiles of keys and values, the candidates of a top-k, and a tile of
 * embedding rows: about 10 MiB at a width of 2816; 1.1 MiB more where attention goes on tile registers. */
enum dg_status dg_cpu_rows_reserve(const struct dg_cpu *c, const struct dg_reserve *want, struct dg_cpu_rows *out, struct dg_error *err) {
    int64_t wide = 4 * dg_rows_pad(want->k_max); /* the router's tile: four experts at least */
    int64_t experts = want->experts;
    out->query_floats = DG_ROWS_QUERIES > wide / 4 ? DG_ROWS_QUERIES : wide / 4;
    out->query_floats = out->query_floats > experts ? out->query_floats : experts;
    out->tile_floats = DG_ROWS_TILE > wide ? DG_ROWS_TILE : wide;
    out->soft_width = dg_rows_pad(want->hidden);
    out->soft_floats = (DG_ROWS_SOFT_TILE + DG_VEC_TILE) * out->soft_width + DG_VEC_TILE * DG_ROWS_SOFT_TILE;
    size_t n = (size_t)c->n_threads;
    out->query = dg_calloc(n * 2, (size_t)out->query_floats * sizeof *out->query);
    out->tile = dg_calloc(n * 2, (size_t)out->tile_floats * sizeof *out->tile);
    out->score = dg_calloc(n, (size_t)DG_ROWS_BLOCK * DG_VEC_TILE * sizeof *out->score);
    out->soft = dg_calloc(n, (size_t)out->soft_floats * sizeof *out->soft);
    out->found_score = dg_calloc(n, (size_t)DG_ROWS_FOUND * sizeof *out->found_score);
    out->found_key = dg_calloc(n, (size_t)DG_ROWS_FOUND * sizeof *out->found_key);
    bool tiles = c->k.att && c->ops.act == DG_BF16;
    out->tiles_bytes = tiles ? dg_att_tiles_scratch() : 0;
    out->tiles = tiles ? dg_calloc(n, (size_t)out->tiles_bytes) : NULL;
    if ((tiles && !out->tiles) || !out->query || !out->tile || !out->score || !out->soft || !out->found_score || !out->found_key)
        return DG_FAIL(err, DG_E_NOMEM, "not enough memory for the attention scratch of %d threads", c->n_threads);
    return DG_OK;
}

void dg_cpu_rows_free(struct dg_cpu_rows *r) {
    dg_free(r->query);
    dg_free(r->tile);
    dg_free(r->score);
    dg_free(r->soft);
    dg_free(r->found_score);
    dg_free(r->found_key);
    dg_free(r->tiles);
    *r = (struct dg_cpu_rows){0};
}
