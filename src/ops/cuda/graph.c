/* Graphs: passes that are recorded once and launched again as a whole. */
#include "core/mem.h"
#include "ops/cuda/state.h"

#include <string.h>

struct dg_cuda_graph {
    dg_cu_graph_exec exec;
};

enum dg_status dg_cuda_graph_begin(struct dg_backend *be, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    if (dg_cuda_enter(be) && dg_cuda_ok(be, cu->d.capture_begin(cu->stream, 1 /* this thread's calls */), "starting a graph")) {
        cu->capturing = true;
        dg_cuda_feed_record(be);
    }
    enum dg_status st = dg_backend_status(be, err);
    if (st != DG_OK && cu->capturing) { /* nobody ends a recording that did not begin */
        dg_cu_graph graph = NULL;
        cu->d.capture_end(cu->stream, &graph);
        if (graph)
            cu->d.graph_destroy(graph);
        cu->capturing = false;
    }
    return st;
}

enum dg_status dg_cuda_graph_end(struct dg_backend *be, struct dg_cuda_graph **out, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    *out = NULL;
    struct dg_cuda_graph *g = dg_calloc(1, sizeof *g);
    dg_cu_graph graph = NULL;
    dg_cuda_feed_record_end(be);
    bool failed = be->error.code != DG_OK;
    /* a capture must be ended also after an op failed in it */
    dg_cu_result r = cu->capturing ? cu->d.capture_end(cu->stream, &graph) : 0;
    cu->capturing = false;
    if (!g)
        dg_backend_fail(be, DG_E_NOMEM, "no memory for a graph");
    else if (!failed && dg_cuda_ok(be, r, "recording a graph"))
        dg_cuda_ok(be, cu->d.graph_instantiate(&g->exec, graph, 0), "making a graph");
    if (graph)
        cu->d.graph_destroy(graph);
    enum dg_status st = dg_backend_status(be, err);
    if (st != DG_OK)
        dg_free(g);
    else
        *out = g;
    return st;
}

void dg_cuda_graph_params(struct dg_backend *be, const struct dg_cuda_graph_params *p) {
    struct dgc_params v = dg_cuda_of(be)->params;
    v.pos0 = p->pos0;
    v.ring_from = p->ring_from;
    v.n_live = p->n_live;
    v.inv_t_head = p->inv_t;
    v.inv_t_soft = p->inv_t_before;
    dg_cuda_push_params(be, v);
}

void dg_cuda_graph_launch(struct dg_backend *be, struct dg_cuda_graph *g) {
    struct dg_cuda *cu = dg_cuda_of(be);
    dg_cuda_feed_claim(be);
    if (dg_cuda_enter(be))
        dg_cuda_ok(be, cu->d.graph_launch(g->exec, cu->stream), "running a graph");
    dg_cuda_feed_release(be);
}

void dg_cuda_graph_destroy(struct dg_backend *be, struct dg_cuda_graph *g) {
    if (!g)
        return;
    dg_cuda_of(be)->d.graph_exec_destroy(g->exec);
    dg_free(g);
}

void dg_cuda_replay_forget(struct dg_backend *be) {
    struct dg_cuda *cu = dg_cuda_of(be);
    bool any = false;
    for (int i = 0; i < DG_CUDA_RECORDINGS; i++)
        any = any || cu->recording[i].graph;
    if (any) /* a step that nobody will take may be under way */
        cu->d.stream_sync(cu->stream);
    for (int i = 0; i < DG_CUDA_RECORDINGS; i++)
        dg_cuda_graph_destroy(be, cu->recording[i].graph);
    memset(cu->recording, 0, sizeof cu->recording);
}

void dg_cuda_note_attention(struct dg_cuda *cu, const struct dg_cuda_attention *a) {
    struct dg_cuda_recording *r = cu->noting;
    if (!r)
        return;
    for (int i = 0; i < r->n_attention && i < DG_CUDA_ATTENTIONS; i++)
        if (r->attention[i].how == a->how && r->attention[i].window == a->window && r->attention[i].heads == a->heads)
            return;
    if (r->n_attention < DG_CUDA_ATTENTIONS)
        r->attention[r->n_attention] = *a;
    r->n_attention++;
}

/* Whether the pass r would launch what was recorded: attention is cut into the same parts where it stands now. */
static bool holds_for(const struct dg_cuda *cu, const struct dg_cuda_recording *rec, const struct dg_replay *r) {
    if (!rec->graph || rec->key_bytes != r->key_bytes || memcmp(rec->key, r->key, r->key_bytes) != 0 || rec->n_attention > DG_CUDA_ATTENTIONS)
        return false;
    for (int i = 0; i < rec->n_attention; i++) {
        struct dg_cuda_attention a = rec->attention[i];
        a.batch.pos0 = r->pos0;
        a.batch.ring_from = r->ring_from;
        a.batch.n_live = r->n_live;
        struct dg_cuda_cut now = dg_cuda_attention_cut(cu, &a), then = rec->attention[i].cut;
        if (now.keys != then.keys || now.split != then.split || now.splits != then.splits || now.chunk != then.chunk ||
            now.few != then.few)
            return false;
    }
    return true;
}

/* The pass is run once more, into a graph, while the device is at work on it. What is in the way goes: the recording used longest ago. */
static enum dg_status record(struct dg_backend *be, const struct dg_replay *r, void (*run)(void *ctx), void *ctx, struct dg_error *err) {
    struct dg_cuda *cu = dg_cuda_of(be);
    struct dg_cuda_recording *rec = cu->recording;
    for (int i = 1; i < DG_CUDA_RECORDINGS; i++)
        rec = cu->recording[i].used < rec->used ? &cu->recording[i] : rec;
    dg_cuda_graph_destroy(be, rec->graph);
    memset(rec, 0, sizeof *rec);
    memcpy(rec->key, r->key, r->key_bytes);
    rec->key_bytes = r->key_bytes;
    rec->used = ++cu->replays;
    DG_TRY(dg_cuda_graph_begin(be, err));
    cu->noting = rec;
    run(ctx);
    cu->noting = NULL;
    DG_TRY(dg_cuda_graph_end(be, &rec->graph, err));
    if (cu->d.graph_upload)
        dg_cuda_ok(be, cu->d.graph_upload(rec->graph->exec, cu->stream), "bringing a graph to the device");
    return dg_backend_status(be, err);
}

void dg_cuda_replay(struct dg_backend *be, const struct dg_replay *r, void (*run)(void *ctx), void *ctx) {
    struct dg_cuda *cu = dg_cuda_of(be);
    for (int i = 0; i < DG_CUDA_RECORDINGS && be->error.code == DG_OK; i++)
        if (holds_for(cu, &cu->recording[i], r)) {
            cu->recording[i].used = ++cu->replays;
            dg_cuda_graph_params(be, &(struct dg_cuda_graph_params){r->pos0, r->ring_from, r->n_live, r->inv_t, r->inv_t_before});
            dg_cuda_graph_launch(be, cu->recording[i].graph);
            if (r->inv_t_next != 0)
                dg_cuda_params_sampled(be, r->inv_t_next);
            return;
        }
    run(ctx);
    struct dg_error err = {0};
    if (be->error.code != DG_OK || r->key_bytes > DG_CUDA_KEY_MAX)
        return;
    enum dg_status st = record(be, r, run, ctx, &err);
    if (st != DG_OK)
        dg_backend_fail(be, st, dg_error_text(&err));
    dg_error_clear(&err);
}
