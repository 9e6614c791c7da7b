#include "pipeline/ops.h"

#include "core/mem.h"

#include <string.h>

#define PATH_BYTES_MAX 4095

static const char *const names[DG_OPS] = {
    [DG_OP_PING] = "ping",
    [DG_OP_EXTEND] = "extend",
    [DG_OP_GENERATE] = "generate",
    [DG_OP_REWIND] = "rewind",
    [DG_OP_SPLICE] = "splice",
    [DG_OP_FILL] = "fill",
    [DG_OP_MARK] = "mark",
    [DG_OP_ACTIVATE] = "activate",
    [DG_OP_DROP] = "drop",
    [DG_OP_FINALIZE] = "finalize",
    [DG_OP_ALIGN] = "align",
    [DG_OP_FINGERPRINT] = "fingerprint",
    [DG_OP_ROUTE] = "route",
    [DG_OP_RELEASE] = "release",
    [DG_OP_SAVE] = "save",
    [DG_OP_LOAD] = "load",
    [DG_OP_BEGIN_TURN] = "begin_turn",
    [DG_OP_PROPOSE] = "propose",
    [DG_OP_COMMIT] = "commit",
    [DG_OP_DISCARD] = "discard",
    [DG_OP_END_TURN] = "end_turn",
    [DG_OP_SHUTDOWN] = "shutdown",
};

const char *dg_op_name(enum dg_op_kind k) { return (unsigned)k < DG_OPS ? names[k] : "?"; }

enum dg_op_kind dg_op_find(const char *name) {
    int k = 0;
    while (k < DG_OPS && strcmp(name, names[k]) != 0)
        k++;
    return (enum dg_op_kind)k;
}

void dg_gen_init(struct dg_gen *g, const struct dg_config *cfg, const struct dg_flags *f) {
    memset(g, 0, sizeof *g);
    g->seed = 42;
    dg_sampler_params_init(&g->sampler, cfg, f);
    dg_commit_policy_init(&g->policy, cfg, f);
    g->first_step = f && f->first_step_sc == DG_FIRST_STEP_NONE ? DG_SC_NONE : DG_SC_SEED;
    g->extend_last = true;
}

static enum dg_status copy_ids(const int32_t **out, const int32_t *ids, size_t n, struct dg_error *err) {
    *out = NULL;
    if (!n)
        return DG_OK;
    int32_t *v = dg_calloc(n, sizeof *v);
    if (!v)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for an op of %zu tokens", n);
    memcpy(v, ids, n * sizeof *v);
    *out = v;
    return DG_OK;
}

static enum dg_status copy_text(const char **out, const char *s, size_t max, const char *what, struct dg_error *err) {
    *out = NULL;
    if (!s)
        return DG_OK;
    size_t n = strnlen(s, max + 1);
    if (n > max)
        return DG_FAIL(err, DG_E_ARG, "the %s is longer than %zu bytes", what, max);
    *out = dg_strndup(s, n);
    return *out ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
}

static enum dg_status copy_gen(const struct dg_gen **out, const struct dg_gen *g, struct dg_error *err) {
    if (g->canvas_n < 0 || (g->canvas_n > 0 && !g->canvas_ids))
        return DG_FAIL(err, DG_E_ARG, "%d canvas ids make no sense", g->canvas_n);
    struct dg_gen *own = dg_calloc(1, sizeof *own);
    if (!own)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
    *own = *g;
    *out = own;
    return copy_ids(&own->canvas_ids, g->canvas_ids, (size_t)g->canvas_n, err);
}

enum dg_status dg_op_copy(struct dg_op *out, const struct dg_op *op, struct dg_error *err) {
    enum dg_status st;
    *out = *op;
    out->ids = NULL;
    out->mark = out->path = NULL;
    out->gen = NULL;
    DG_GO(copy_ids(&out->ids, op->ids, op->n, err));
    DG_GO(copy_text(&out->mark, op->mark, DG_MARK_NAME_MAX, "name of a mark", err));
    DG_GO(copy_text(&out->path, op->path, PATH_BYTES_MAX, "path", err));
    if (op->gen)
        DG_GO(copy_gen(&out->gen, op->gen, err));
    return DG_OK;
done:
    dg_op_deinit(out);
    return st;
}

void dg_op_deinit(struct dg_op *op) {
    if (op->gen)
        dg_free((void *)op->gen->canvas_ids);
    dg_free((void *)op->gen);
    dg_free((void *)op->ids);
    dg_free((void *)op->mark);
    dg_free((void *)op->path);
    memset(op, 0, sizeof *op);
}
