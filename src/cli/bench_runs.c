/* bench step, prefill, load and turn. */
#include "cli/bench.h"

#include "core/mem.h"
#include "message/prompt.h"
#include "message/turn_text.h"
#include "ops/cuda/cuda.h"
#include "pipeline/ops.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#define INV_T 1.25f
#define LOOP_STEPS 8
#define LONG_CTX 65536  /* a cache longer than this is filled in larger chunks, */
#define TURN_PROMPT_MAX 2048 /* tokens of a given prompt */
#define LONG_CHUNK 1024 /* of so many tokens */

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "not enough memory to measure with"); }

/* ---- step ---- */

struct step {
    struct dg_bench_rig *b;
    int32_t *canvas, rows;
    bool sparse;
    struct dg_turn turn; /* of the loop */
    int32_t steps;
};

static enum dg_status denoise(const struct step *s, enum dg_sc_mode sc, struct dg_error *err) {
    struct dg_session *ss = s->b->s;
    struct dg_denoise d = {s->canvas, s->rows, sc, s->sparse, INV_T};
    return dg_forward_denoise(ss->be, ss->planes, &ss->kv, &d, NULL, err);
}

static enum dg_status run_step(void *ctx, struct dg_error *err) { return denoise(ctx, DG_SC_SOFT, err); }

static enum dg_status run_head(void *ctx, struct dg_error *err) {
    const struct step *s = ctx;
    struct dg_session *ss = s->b->s;
    struct dg_plane h = dg_plane_view(&ss->planes->h, s->rows, ss->cfg->hidden), logits = dg_plane_view(&ss->planes->logits, s->rows, ss->cfg->vocab);
    (void)err;
    ss->be->ops->head(ss->be, &h, &ss->be->model->embed, ss->cfg->softcap, INV_T, &logits, &ss->planes->stats);
    return DG_OK;
}

static enum dg_status run_stats(void *ctx, struct dg_error *err) {
    const struct step *s = ctx;
    struct dg_session *ss = s->b->s;
    struct dg_plane logits = dg_plane_view(&ss->planes->logits, s->rows, ss->cfg->vocab);
    (void)err;
    ss->be->ops->row_stats(ss->be, &logits, INV_T, &ss->planes->stats);
    return DG_OK;
}

static enum dg_status run_soft(void *ctx, struct dg_error *err) {
    const struct step *s = ctx;
    struct dg_session *ss = s->b->s;
    struct dg_plane t = dg_plane_view(&ss->planes->t, s->rows, ss->cfg->hidden), logits = dg_plane_view(&ss->planes->logits, s->rows, ss->cfg->vocab);
    (void)err;
    ss->be->ops->soft_embed(ss->be, &logits, &ss->planes->stats, INV_T, &ss->be->model->embed, sqrtf((float)ss->cfg->hidden), s->sparse, &t);
    return DG_OK;
}

/* Steps of a block as a turn runs them: sampler, statistics on the host, stop decision, the next canvas. */
static enum dg_status run_loop(struct step *s, const char *name, double bytes, double flops, struct dg_error *err) {
    double ms[DG_BENCH_REPEATS_MAX];
    for (int64_t i = -1; i < s->b->o->repeat; i++) {
        double start = dg_now();
        DG_TRY(dg_turn_propose(&s->turn, s->rows, err));
        if (i >= 0)
            ms[i] = (dg_now() - start) * 1e3;
        dg_turn_discard(&s->turn);
    }
    struct dg_bench_times t = dg_bench_spread(ms, (size_t)s->b->o->repeat);
    dg_bench_row(s->b, name, s->steps, &t, bytes * s->steps, flops * s->steps);
    return DG_OK;
}

/* A step from the canvas's own embedding, and what it leaves of its rows. */
static enum dg_status seed_step(const struct step *s, float *entropy, int32_t *id, struct dg_error *err) {
    struct dg_session *ss = s->b->s;
    size_t n = (size_t)s->rows;
    DG_TRY(denoise(s, DG_SC_SEED, err));
    ss->be->ops->read(ss->be, entropy, ss->planes->stats.entropy, n * sizeof *entropy);
    ss->be->ops->read(ss->be, id, ss->planes->stats.argmax, n * sizeof *id);
    return dg_backend_status(ss->be, err);
}

/* Such steps, to compare kernels by: all must leave the same. On a GPU there is one more, since the first runs op by op and the second is
 * recorded. */
static enum dg_status fingerprint(const struct step *s, struct dg_error *err) {
    FILE *f = s->b->o->out;
    size_t n = (size_t)s->rows;
    int64_t passes = (s->b->o->passes ? s->b->o->passes : 2) + s->b->cuda;
    float *first = dg_calloc(2 * n, sizeof *first), *entropy = first + n;
    int32_t *first_id = dg_calloc(2 * n, sizeof *first_id), *id = first_id + n;
    enum dg_status st = first && first_id ? seed_step(s, first, first_id, err) : no_memory(err);
    for (int64_t i = 1; i < passes && st == DG_OK; i++)
        if ((st = seed_step(s, entropy, id, err)) == DG_OK &&
            (memcmp(first, entropy, n * sizeof *first) != 0 || memcmp(first_id, id, n * sizeof *id) != 0))
            st = DG_FAIL(err, DG_E_NUMERIC, "pass %lld left other entropies or argmaxes than the first", (long long)i + 1);
    if (st == DG_OK) {
        double sum = 0;
        for (size_t r = 0; r < n; r++)
            sum += (double)first[r];
        fprintf(f, "# mean entropy %.6f, again the same in %lld passes\n# argmax", sum / (double)n, (long long)passes);
        for (size_t r = 0; r < n; r++)
            fprintf(f, " %d", first_id[r]);
        fprintf(f, "\n");
        if (!isfinite(sum))
            st = DG_FAIL(err, DG_E_NUMERIC, "the logits hold NaN or Inf; diffgemma step-parity shows in which layer it begins");
    }
    dg_free(first);
    dg_free(first_id);
    return st;
}

/* Ids that the sparse soft embedding keeps of the last step's rows. */
static enum dg_status survivors(const struct step *s, struct dg_error *err) {
    struct dg_session *ss = s->b->s;
    size_t rows = (size_t)s->rows, vocab = (size_t)ss->cfg->vocab;
    float *max = dg_calloc(rows, sizeof *max);
    double *kept = dg_calloc(rows, sizeof *kept), sum = 0;
    enum dg_status st = max && kept ? DG_OK : no_memory(err);
    if (st == DG_OK) {
        ss->be->ops->read(ss->be, max, ss->planes->stats.max, rows * sizeof *max);
        for (size_t i = 0; i < rows; i++) {
            ss->be->ops->read(ss->be, ss->row, (const float *)ss->planes->logits.data + i * vocab, vocab * sizeof *ss->row);
            for (size_t j = 0; j < vocab; j++)
                kept[i] += ss->row[j] * INV_T - max[i] >= -10;
            sum += kept[i];
        }
        st = dg_backend_status(ss->be, err);
    }
    if (st == DG_OK) {
        struct dg_bench_times t = dg_bench_spread(kept, rows);
        fprintf(s->b->o->out, "# survivors a row: mean %.1f, median %.0f, least %.0f, most %.0f of %zu\n", sum / (double)rows, t.ms, t.min, t.max,
                vocab);
    }
    dg_free(max);
    dg_free(kept);
    return st;
}

static enum dg_status head_ops(struct step *s, double logits, double embed, double product, struct dg_error *err) {
    const struct dg_bench_cost head = {embed + logits, product}, stats = {logits, 0};
    DG_TRY(dg_bench_op(s->b, "head_and_stats", 1, run_head, s, head, err));
    DG_TRY(dg_bench_op(s->b, "row_stats", 1, run_stats, s, stats, err));
    for (int exact = 0; exact < (s->b->o->brief ? 1 : 2); exact++) {
        s->sparse = !exact;
        DG_TRY(dg_bench_op(s->b, exact ? "soft_exact" : "soft_sparse", 1, run_soft, s, exact ? head : stats, err));
    }
    return DG_OK;
}

static enum dg_status whole_steps(struct step *s, double logits, double embed, double product, const struct dg_batch *batch, struct dg_error *err) {
    static const char *const step_names[] = {"step_exact", "step_sparse"}, *const loop_names[] = {"loop_exact", "loop_sparse"};
    struct dg_bench_rig *b = s->b;
    const struct dg_model *m = b->r.be->model;
    struct dg_bench_cost c = dg_bench_layers_cost(b, batch);
    struct dg_bench_times t;
    c.bytes += embed + 2 * logits + dg_bench_mat_bytes(&m->sc.gate) + dg_bench_mat_bytes(&m->sc.up) + dg_bench_mat_bytes(&m->sc.down);
    c.flops += product + 6.0 * s->rows * b->s->cfg->inter * b->s->cfg->hidden;
    for (int sparse = 1; sparse >= b->o->brief; sparse--) {
        double bytes = c.bytes + (sparse ? 0 : embed), flops = c.flops + (sparse ? 0 : product);
        s->sparse = b->s->opts.sc_sparse = sparse;
        DG_TRY(dg_bench_time(b, run_step, s, &t, err));
        dg_bench_row(b, step_names[sparse], 1, &t, bytes, flops);
        DG_TRY(dg_bench_energy(b, step_names[sparse], &(struct dg_bench_load){run_step, s, 1, t.ms, false}, err));
        if (sparse)
            DG_TRY(dg_bench_energy(b, "idle", &(struct dg_bench_load){0}, err));
        if (!b->o->brief)
            DG_TRY(run_loop(s, loop_names[sparse], bytes, flops, err));
    }
    if (!b->cuda)
        return DG_OK;
    s->sparse = true;
    dg_cuda_replay_passes(b->r.be, false);
    DG_TRY(dg_bench_time(b, run_step, s, &t, err));
    dg_bench_row(b, "step_sparse_op_by_op", 1, &t, c.bytes, c.flops);
    dg_cuda_replay_passes(b->r.be, true);
    return DG_OK;
}

static enum dg_status measure_step(struct step *s, struct dg_error *err) {
    struct dg_bench_rig *b = s->b;
    const struct dg_bench_opts *o = b->o;
    const struct dg_config *c = b->s->cfg;
    struct dg_gen g;
    double logits = 4.0 * s->rows * c->vocab, embed = dg_bench_mat_bytes(&b->r.be->model->embed), product = 2.0 * s->rows * c->hidden * c->vocab;
    struct dg_batch batch = {s->rows, s->rows, o->ctx, false, -1, b->so.attention.topk_denoise};
    DG_TRY(fingerprint(s, err));
    DG_TRY(denoise(s, DG_SC_SOFT, err));
    if (!o->no_ops) {
        DG_TRY(dg_bench_layers(b, &batch, err));
        DG_TRY(denoise(s, DG_SC_SEED, err)); /* the planes as a step leaves them */
        DG_TRY(head_ops(s, logits, embed, product, err));
    }
    s->steps = o->steps ? (int32_t)o->steps : LOOP_STEPS;
    dg_gen_init(&g, c, &b->r.flags);
    g.sampler.steps_max = s->steps;
    g.sampler.no_early_stop = true;
    struct dg_turn_opts to = {.seed = 1, .sampler = g.sampler, .policy = g.policy, .first_step = g.first_step};
    DG_TRY(dg_turn_begin(&s->turn, b->s, &to, err));
    enum dg_status st = whole_steps(s, logits, embed, product, &batch, err);
    dg_turn_deinit(&s->turn);
    DG_TRY(st);
    DG_TRY(denoise(s, DG_SC_SOFT, err));
    return survivors(s, err);
}

enum dg_status dg_bench_step(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    DG_TRY(dg_bench_energy_open(b, err));
    DG_TRY(dg_bench_open(b, o->ctx, 0, err));
    const struct dg_config *c = &b->r.be->model->cfg;
    struct step s = {.b = b, .rows = o->rows ? (int32_t)o->rows : c->canvas, .sparse = true};
    DG_TRY(dg_bench_session(b, o->ctx, o->ctx > LONG_CTX && !b->r.be->ops->chunk ? LONG_CHUNK : 0, err));
    DG_TRY(dg_bench_energy_begin(b, err));
    int32_t *ids = dg_bench_ids(b, o->ctx + s.rows);
    s.canvas = ids ? ids + o->ctx : NULL;
    enum dg_status st = ids ? dg_session_extend(b->s, ids, (size_t)o->ctx, NULL, NULL, err) : no_memory(err);
    if (st == DG_OK)
        st = measure_step(&s, err);
    dg_free(ids);
    return st;
}

/* ---- prefill ---- */

struct prefill {
    struct dg_session *s;
    const int32_t *ids;
    int64_t n;
};

/* A hash of the keys that the last layer has of the prompt: whatever went wrong in a layer before it shows in them. */
static enum dg_status keys_hash(const struct dg_bench_rig *b, const struct prefill *p, uint64_t *hash, struct dg_error *err) {
    const struct dg_kv_layer *kv = &p->s->kv.layer[p->s->kv.layers - 1];
    int64_t slots = p->n < kv->slots ? p->n : kv->slots;
    size_t bytes = (size_t)slots * (size_t)kv->kv_heads * dg_kv_head_bytes(kv->dtype, kv->hd), piece = 1 << 20;
    char *buf = dg_calloc(piece, 1);
    if (!buf)
        return no_memory(err);
    *hash = 0;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        b->r.be->ops->read(b->r.be, buf, (const char *)kv->k + at, n);
        *hash = XXH3_64bits_withSeed(buf, n, *hash);
    }
    dg_free(buf);
    return dg_backend_status(b->r.be, err);
}

/* The whole prompt from position 0 by the clock: the host's work and whatever it makes the device wait for are in it. Every run must leave the
 * same keys. */
static enum dg_status time_prefill(struct dg_bench_rig *b, const struct prefill *p, struct dg_bench_times *t, struct dg_error *err) {
    double ms[DG_BENCH_REPEATS_MAX];
    uint64_t first = 0, hash = 0;
    int32_t last;
    for (int i = -1; i < (int)b->o->repeat; i++) {
        DG_TRY(dg_session_rewind(p->s, 0, NULL, NULL, err));
        b->r.be->ops->read(b->r.be, &last, p->s->planes->ids, sizeof last); /* waits for what is on its way */
        double start = dg_now();
        DG_TRY(dg_session_extend(p->s, p->ids, (size_t)p->n, NULL, NULL, err));
        b->r.be->ops->read(b->r.be, &last, p->s->planes->ids, sizeof last);
        if (i >= 0)
            ms[i] = (dg_now() - start) * 1e3;
        DG_TRY(dg_backend_status(b->r.be, err));
        DG_TRY(keys_hash(b, p, &hash, err));
        if (i >= 0 && hash != first)
            return DG_FAIL(err, DG_E_NUMERIC, "prefill %d left other keys in the last layer than the first (%016llx, not %016llx)", i + 2,
                           (unsigned long long)hash, (unsigned long long)first);
        first = hash;
    }
    fprintf(b->o->out, "# keys of the last layer %016llx, the same in %d prefills\n", (unsigned long long)first, (int)b->o->repeat + 1);
    *t = dg_bench_spread(ms, (size_t)b->o->repeat);
    return DG_OK;
}

static enum dg_status measure_prefill(struct dg_bench_rig *b, struct prefill *p, int32_t chunk, struct dg_error *err) {
    struct dg_bench_cost sum = {0, 0};
    struct dg_bench_times t;
    struct dg_batch batch = {chunk, chunk, 0, true, -1, b->so.attention.topk_prefill};
    for (; batch.pos0 < p->n; batch.pos0 += chunk) {
        batch.n = batch.n_live = p->n - batch.pos0 < chunk ? (int32_t)(p->n - batch.pos0) : chunk;
        struct dg_bench_cost one = dg_bench_layers_cost(b, &batch);
        sum.bytes += one.bytes;
        sum.flops += one.flops;
    }
    DG_TRY(time_prefill(b, p, &t, err));
    if (!b->o->no_ops) { /* of a whole chunk at the end, whose rotation tables the planes may not hold: values do not matter here */
        batch.n = batch.n_live = chunk;
        batch.pos0 = p->n - chunk;
        DG_TRY(dg_bench_layers(b, &batch, err));
    }
    dg_bench_row(b, "prefill", p->n, &t, sum.bytes, sum.flops);
    return DG_OK;
}

enum dg_status dg_bench_prefill(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    DG_TRY(dg_bench_open(b, o->tokens, o->rows, err));
    DG_TRY(dg_bench_session(b, o->tokens, o->rows, err));
    int32_t chunk = b->s->opts.chunk > o->tokens ? (int32_t)o->tokens : b->s->opts.chunk;
    int32_t *ids = dg_bench_ids(b, o->tokens);
    struct prefill p = {b->s, ids, o->tokens};
    enum dg_status st = ids ? measure_prefill(b, &p, chunk, err) : no_memory(err);
    dg_free(ids);
    return st;
}

/* ---- load ---- */

static double model_bytes(const struct dg_model *m) {
    double sum = dg_bench_mat_bytes(&m->embed) + dg_bench_mat_bytes(&m->sc.gate) + dg_bench_mat_bytes(&m->sc.up) + dg_bench_mat_bytes(&m->sc.down);
    for (int32_t l = 0; l < m->cfg.layers; l++) {
        const struct dg_layer *w = &m->layer[l];
        const struct dg_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &w->router};
        for (size_t i = 0; i < 8; i++)
            sum += dg_bench_mat_bytes(mats[i]);
        const struct dg_stack *stacks[] = {&w->gate_up, &w->expert_down};
        for (size_t i = 0; i < 2; i++) {
            struct dg_mat one = dg_stack_mat(stacks[i], 0);
            sum += stacks[i]->e * dg_bench_mat_bytes(&one);
        }
    }
    return sum;
}

/* Opens model, backend and session, and closes them again; seconds of the first and of all three. */
static enum dg_status load_once(struct dg_bench_rig *b, double *open_s, double *ready_s, struct dg_error *err) {
    struct dg_runtime *r = &b->r;
    double start = dg_now();
    DG_TRY(dg_runtime_model(r, err));
    *open_s = dg_now() - start;
    DG_TRY(dg_runtime_backend(r, &b->o->model, &b->so, err));
    b->so.ctx = r->model->cfg.ctx_max < 8192 ? r->model->cfg.ctx_max : 8192;
    DG_TRY(dg_session_create(&b->s, r->be, &b->so, err));
    char last; /* waits for what is on its way to the device */
    r->be->ops->read(r->be, &last, b->s->planes->ids, 1);
    *ready_s = dg_now() - start;
    return dg_backend_status(r->be, err);
}

static void unload(struct dg_bench_rig *b) {
    dg_session_destroy(b->s);
    dg_backend_destroy(b->r.be);
    dg_model_close(b->r.model);
    b->s = NULL;
    b->r.be = NULL;
    b->r.model = NULL;
}

enum dg_status dg_bench_load(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    double open[DG_BENCH_REPEATS_MAX], ready[DG_BENCH_REPEATS_MAX], bytes = 0;
    DG_TRY(o->synth ? dg_bench_make_pack(b, err) : dg_runtime_find(&b->r, &o->model, err));
    for (int64_t i = -1; i < o->repeat; i++) { /* the first run reads the file into memory */
        if (dg_bench_cancelled(b))
            return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
        DG_TRY(load_once(b, &open[i < 0 ? 0 : i], &ready[i < 0 ? 0 : i], err));
        bytes = model_bytes(b->r.model);
        if (i < 0) {
            fprintf(o->out, "# %s\n# diffgemma %s, backend %s%s\n" DG_BENCH_COLUMNS "\n", o->command, dg_version(), b->r.be->ops->name,
                    b->r.be->ops->host_memory ? ": weights stay where they are mapped" : "");
            fflush(o->out);
        }
        unload(b);
    }
    for (int64_t i = 0; i < o->repeat; i++) {
        open[i] *= 1e3;
        ready[i] *= 1e3;
    }
    struct dg_bench_times t = dg_bench_spread(open, (size_t)o->repeat);
    dg_bench_row(b, "open", 1, &t, 0, 0);
    t = dg_bench_spread(ready, (size_t)o->repeat);
    dg_bench_row(b, "ready", 1, &t, bytes, 0);
    return DG_OK;
}

/* ---- turn ---- */

struct turn {
    struct dg_bench_rig *b;
    struct dg_turn_text text;
    struct dg_turn_opts opts;
    struct dg_ids prompt;
    double first; /* when the first block that keeps anything was there; 0 = not yet */
    double prefill_ms, first_ms, whole_ms;
    int64_t tokens, steps;
};

static void on_block(void *ctx, const struct dg_block_event *e) {
    struct turn *t = ctx;
    if (e->kept > 0 && t->first <= 0)
        t->first = dg_now();
}

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) { return dg_turn_text_shows_nothing(ctx, ids, n); }

static enum dg_status run_turn(struct turn *t, struct dg_error *err) {
    struct dg_session *s = t->b->s;
    struct dg_turn turn;
    DG_TRY(dg_session_rewind(s, 0, NULL, NULL, err));
    t->first = 0;
    double start = dg_now();
    DG_TRY(dg_session_extend(s, t->prompt.v, t->prompt.n, NULL, NULL, err));
    t->prefill_ms = (dg_now() - start) * 1e3;
    DG_TRY(dg_turn_begin(&turn, s, &t->opts, err));
    enum dg_status st = dg_turn_run(&turn, err);
    double end = dg_now();
    t->first_ms = ((t->first > 0 ? t->first : end) - start) * 1e3;
    t->whole_ms = (end - start) * 1e3;
    t->tokens = (int64_t)turn.out.n;
    t->steps = turn.steps;
    dg_turn_deinit(&turn);
    return st;
}

/* Text of the model's own, which ends a turn itself; or drawn ids and one block that is kept whole. */
static enum dg_status turn_input(struct turn *t, struct dg_error *err) {
    struct dg_bench_rig *b = t->b;
    const struct dg_bench_opts *o = b->o;
    struct dg_gen g;
    dg_gen_init(&g, &b->r.be->model->cfg, &b->r.flags);
    t->opts = (struct dg_turn_opts){.seed = g.seed, .sampler = g.sampler, .policy = g.policy, .first_step = g.first_step, .on_block = on_block,
                                    .ctx = t};
    int64_t steps = o->steps ? o->steps : o->synth ? LOOP_STEPS : 0;
    if (steps) {
        t->opts.sampler.steps_max = (int32_t)steps;
        t->opts.sampler.no_early_stop = true;
    }
    if (o->synth) {
        int32_t *ids = dg_bench_ids(b, o->tokens);
        enum dg_status st = ids ? dg_ids_add(&t->prompt, ids, (size_t)o->tokens) : no_memory(err);
        struct dg_commit_policy *p = &t->opts.policy;
        p->trim = p->hard = 0;
        p->retries = p->n_stops = p->repeat_max = 0;
        p->ws_stop = false;
        t->opts.max_tokens = p->canvas;
        dg_free(ids);
        return st;
    }
    struct dg_render_options ro = {DG_THINKING_OFF, true};
    const char *text = o->prompt ? o->prompt : "Tell me a story about a horse.";
    json_t *messages;
    DG_TRY(dg_runtime_tokenizer(&b->r, err));
    DG_TRY(dg_turn_text_init(&t->text, b->r.tok, b->r.model->cfg.vocab, err));
    dg_turn_text_policy(&t->text, &t->opts.policy);
    t->opts.blank = t->text.blank;
    t->opts.shows_nothing = shows_nothing;
    t->opts.text_ctx = &t->text;
    DG_TRY(dg_message_ask(NULL, text, strlen(text), &messages, err));
    enum dg_status st = dg_message_encode(b->r.tok, messages, NULL, &ro, &t->prompt, err);
    json_decref(messages);
    return st;
}

static enum dg_status measure_turn(struct turn *t, struct dg_error *err) {
    struct dg_bench_rig *b = t->b;
    double ms[4][DG_BENCH_REPEATS_MAX];
    size_t n = (size_t)b->o->repeat;
    for (int64_t i = -1; i < b->o->repeat; i++) {
        DG_TRY(run_turn(t, err));
        if (i < 0)
            continue;
        ms[0][i] = t->prefill_ms;
        ms[1][i] = t->whole_ms - t->prefill_ms;
        ms[2][i] = t->first_ms;
        ms[3][i] = t->whole_ms;
    }
    const char *const names[4] = {"prompt", "steps", "first_text", "turn"};
    const int64_t counts[4] = {(int64_t)t->prompt.n, t->steps, 1, t->tokens};
    for (int i = 0; i < 4; i++) {
        struct dg_bench_times one = dg_bench_spread(ms[i], n);
        dg_bench_row(b, names[i], counts[i], &one, 0, 0);
    }
    return DG_OK;
}

enum dg_status dg_bench_turn(struct dg_bench_rig *b, struct dg_error *err) {
    const struct dg_bench_opts *o = b->o;
    struct turn t = {.b = b};
    int64_t room = o->synth ? o->tokens : TURN_PROMPT_MAX;
    DG_TRY(dg_bench_open(b, room, 0, err));
    dg_ids_init(&t.prompt);
    enum dg_status st = turn_input(&t, err);
    if (st == DG_OK && (int64_t)t.prompt.n > room)
        st = DG_FAIL(err, DG_E_ARG, "the prompt is %zu tokens; a turn is measured with up to %lld", t.prompt.n, (long long)room);
    if (st == DG_OK)
        st = dg_bench_session(b, (int64_t)t.prompt.n + DG_BENCH_TURN_CANVASES * (int64_t)b->r.be->model->cfg.canvas, 0, err);
    if (st == DG_OK)
        st = measure_turn(&t, err);
    dg_ids_deinit(&t.prompt);
    dg_turn_text_deinit(&t.text);
    return st;
}
