#include "pipeline/oplog.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

void dg_oplog_writer_init(struct dg_oplog_writer *w, const char *id) {
    memset(w, 0, sizeof *w);
    snprintf(w->id, sizeof w->id, "%s", id);
    dg_buf_init(&w->line, DG_OPLOG_LINE_MAX);
}

void dg_oplog_writer_deinit(struct dg_oplog_writer *w) {
    dg_free(w->prev);
    dg_buf_deinit(&w->line);
    memset(w, 0, sizeof *w);
}

/* Bytes that are no UTF-8 become '?': a log line is always JSON. */
static void add_string(struct dg_buf *b, const char *s) {
    size_t n = strlen(s);
    dg_buf_chr(b, '"');
    for (size_t i = 0; i < n;) {
        int k = dg_utf8_next((const uint8_t *)s + i, n - i, NULL);
        unsigned char c = (unsigned char)s[i];
        if (k == 0)
            dg_buf_chr(b, '?');
        else if (c == '"' || c == '\\' || c < 0x20)
            dg_buf_fmt(b, "\\u%04x", c);
        else
            dg_buf_add(b, s + i, (size_t)k);
        i += k ? (size_t)k : 1;
    }
    dg_buf_chr(b, '"');
}

static void key(struct dg_buf *b, const char *name) { dg_buf_fmt(b, ",\"%s\":", name); }
static void add_int(struct dg_buf *b, const char *name, int64_t v) { dg_buf_fmt(b, ",\"%s\":%lld", name, (long long)v); }
static void add_hex(struct dg_buf *b, const char *name, uint64_t v) { dg_buf_fmt(b, ",\"%s\":\"%016llx\"", name, (unsigned long long)v); }
static void add_bool(struct dg_buf *b, const char *name, bool v) { dg_buf_fmt(b, ",\"%s\":%s", name, v ? "true" : "false"); }
static void add_real(struct dg_buf *b, const char *name, double v) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", v);
    /* JSON readers tell 1 from 1.0 */
    dg_buf_fmt(b, ",\"%s\":%s%s", name, text, strpbrk(text, ".eni") ? "" : ".0");
}
static void add_text(struct dg_buf *b, const char *name, const char *v) {
    key(b, name);
    add_string(b, v);
}

static void add_ids(struct dg_buf *b, const char *name, const int32_t *ids, size_t n) {
    char text[16];
    key(b, name);
    dg_buf_chr(b, '[');
    for (size_t i = 0; i < n; i++) {
        int k = snprintf(text, sizeof text, i ? ",%d" : "%d", ids[i]);
        dg_buf_add(b, text, (size_t)k);
    }
    dg_buf_chr(b, ']');
}

static struct dg_buf *begin(struct dg_oplog_writer *w, const char *type) {
    dg_buf_clear(&w->line);
    dg_buf_fmt(&w->line, "{\"s\":\"%s\",\"t\":\"%s\"", w->id, type);
    return &w->line;
}

static enum dg_status end(struct dg_buf *b) { return dg_buf_str(b, "}\n"); }

static void add_sampler(struct dg_buf *b, const struct dg_sampler_params *p) {
    dg_buf_str(b, ",\"sampler\":{\"v\":1");
    add_int(b, "vocab", p->vocab);
    add_int(b, "pad", p->pad);
    add_int(b, "steps_max", p->steps_max);
    add_real(b, "t_min", p->t_min);
    add_real(b, "t_max", p->t_max);
    add_real(b, "entropy_bound", p->entropy_bound);
    add_int(b, "stability", p->stability);
    add_real(b, "confidence", p->confidence);
    add_bool(b, "argmax", p->argmax);
    add_bool(b, "freeze", p->freeze);
    add_bool(b, "reference_stops", p->reference_stops);
    add_bool(b, "no_early_stop", p->no_early_stop);
    add_real(b, "entropy_stop", p->entropy_stop);
    add_int(b, "entropy_steps", p->entropy_steps);
    add_int(b, "plateau", p->plateau);
    add_real(b, "plateau_entropy", p->plateau_entropy);
    dg_buf_chr(b, '}');
}

static void add_policy(struct dg_buf *b, const struct dg_commit_policy *p) {
    dg_buf_str(b, ",\"policy\":{\"v\":1");
    add_ids(b, "stops", p->stops, (size_t)p->n_stops);
    add_int(b, "pad", p->pad);
    add_int(b, "bos", p->bos);
    add_int(b, "vocab", p->vocab);
    add_int(b, "canvas", p->canvas);
    add_int(b, "eos", p->eos);
    add_int(b, "turn_open", p->turn_open);
    add_int(b, "call_open", p->call_open);
    add_int(b, "call_close", p->call_close);
    add_int(b, "channel_open", p->channel_open);
    add_real(b, "trim", p->trim);
    add_real(b, "hard", p->hard);
    add_int(b, "retries", p->retries);
    add_bool(b, "ws_stop", p->ws_stop);
    add_bool(b, "continue_past_stop", p->continue_past_stop);
    add_int(b, "repeat_max", p->repeat_max);
    dg_buf_chr(b, '}');
}

static void add_gen(struct dg_buf *b, const struct dg_gen *g) {
    dg_buf_fmt(b, ",\"gen\":{\"seed\":\"%llu\"", (unsigned long long)g->seed);
    add_int(b, "max_tokens", g->max_tokens);
    add_text(b, "first_step", g->first_step == DG_SC_NONE ? "none" : "seed");
    add_bool(b, "extend_last", g->extend_last);
    if (g->canvas_n > 0)
        add_ids(b, "canvas_ids", g->canvas_ids, (size_t)g->canvas_n);
    add_sampler(b, &g->sampler);
    add_policy(b, &g->policy);
    dg_buf_chr(b, '}');
}

enum dg_status dg_oplog_head(struct dg_oplog_writer *w, const struct dg_oplog_head *h) {
    struct dg_buf *b = begin(w, "session");
    const struct dg_session_opts *o = &h->engine->session;
    add_int(b, "v", DG_OPLOG_VERSION);
    add_int(b, "time", (int64_t)time(NULL));
    add_text(b, "program", h->program);
    add_text(b, "model", h->model_dir);
    add_hex(b, "model_id", h->model_id);
    add_text(b, "backend", h->backend);
    add_int(b, "ctx", o->ctx);
    add_text(b, "kv", o->kv == DG_F32 ? "f32" : o->kv == DG_Q8 ? "q8" : "f16");
    add_int(b, "ring", o->ring);
    add_int(b, "chunk", o->chunk);
    add_bool(b, "sc_sparse", o->sc_sparse);
    if (o->prefill != DG_PREFILL_ONE_PATH) {
        add_int(b, "prefill", o->prefill);
        add_int(b, "fast_max", o->fast_max);
    }
    if (o->unchecked_logits)
        add_bool(b, "unchecked_logits", true);
    add_int(b, "topk_prefill", o->attention.topk_prefill);
    add_int(b, "topk_denoise", o->attention.topk_denoise);
    add_bool(b, "unwindowed", o->attention.unwindowed);
    add_int(b, "conversations", (int64_t)h->conversations);
    add_bool(b, "text", h->text);
    add_gen(b, &h->engine->gen);
    return end(b);
}

static bool has_ids(enum dg_op_kind k) {
    return k == DG_OP_EXTEND || k == DG_OP_SPLICE || k == DG_OP_FINALIZE || k == DG_OP_ALIGN || k == DG_OP_ROUTE;
}

enum dg_status dg_oplog_op(struct dg_oplog_writer *w, const struct dg_op *op) {
    struct dg_buf *b = begin(w, "op");
    w->op++;
    add_int(b, "op", (int64_t)w->op);
    add_text(b, "kind", dg_op_name(op->kind));
    if (op->conv)
        add_int(b, "conv", op->conv);
    if (op->at.epoch) {
        dg_buf_fmt(b, ",\"at\":[%llu,%lld]", (unsigned long long)op->at.epoch, (long long)op->at.pos);
    }
    if (has_ids(op->kind))
        add_ids(b, "ids", op->ids, op->ids ? op->n : 0);
    if (op->kind == DG_OP_SPLICE) {
        add_int(b, "start", op->start);
        add_int(b, "end", op->end);
    }
    if (op->kind == DG_OP_FILL || op->kind == DG_OP_ACTIVATE || op->kind == DG_OP_PROPOSE)
        add_int(b, "len", op->len);
    if (op->kind == DG_OP_FILL)
        dg_buf_fmt(b, ",\"seed\":\"%llu\"", (unsigned long long)op->seed);
    if (op->kind == DG_OP_EXTEND && op->as_turn)
        add_bool(b, "as_turn", true);
    if (op->kind == DG_OP_COMMIT)
        add_int(b, "kept", op->kept);
    if (op->kind == DG_OP_END_TURN)
        add_bool(b, "abandon", op->abandon);
    if (op->mark)
        add_text(b, "mark", op->mark);
    if (op->path)
        add_text(b, "path", op->path);
    if (op->gen && (op->kind == DG_OP_GENERATE || op->kind == DG_OP_BEGIN_TURN))
        add_gen(b, op->gen);
    return end(b);
}


static void add_mask(struct dg_buf *b, const uint8_t *accept, int32_t n) {
    key(b, "mask");
    dg_buf_chr(b, '"');
    for (int32_t i = 0; i < n; i++)
        dg_buf_chr(b, accept[i] ? '1' : '0');
    dg_buf_chr(b, '"');
}

/* What is seen of a step (to 1/255 for p_max), and a hash of all of it. */
static void add_step(struct dg_oplog_writer *w, struct dg_buf *b, const struct dg_step_event *s) {
    size_t n = (size_t)s->n;
    if (s->n > w->cap) {
        int32_t *grown = dg_realloc(w->prev, (size_t)w->cap, n, sizeof *grown);
        if (!grown) {
            b->status = DG_E_NOMEM;
            return;
        }
        w->prev = grown;
        w->cap = s->n;
    }
    add_int(b, "block", s->block);
    add_int(b, "retry", s->retry);
    add_int(b, "step", s->result->step);
    add_int(b, "of", s->steps_max);
    add_int(b, "n", s->n);
    add_real(b, "T", (double)s->temperature);
    add_int(b, "accepted", s->result->n_accepted);
    add_real(b, "H", s->result->mean_entropy);
    add_text(b, "stop", dg_stop_name(s->result->stop));
    add_mask(b, s->result->accept, s->n);
    key(b, "changed");
    dg_buf_chr(b, '[');
    bool first = true;
    for (int32_t i = 0; i < s->n; i++)
        if (s->result->step == 1 || w->prev[i] != s->result->result[i]) {
            dg_buf_fmt(b, "%s%d,%d", first ? "" : ",", i, s->result->result[i]);
            first = false;
        }
    dg_buf_chr(b, ']');
    memcpy(w->prev, s->result->result, n * sizeof *w->prev);
    key(b, "p");
    dg_buf_chr(b, '"');
    for (int32_t i = 0; i < s->n; i++)
        dg_buf_fmt(b, "%02x", (unsigned)(s->p_max[i] * 255.0f + 0.5f) & 255u);
    dg_buf_chr(b, '"');
    uint64_t h = XXH3_64bits(s->p_max, n * sizeof *s->p_max);
    h = XXH3_64bits_withSeed(s->result->canvas, n * sizeof *s->result->canvas, h);
    add_hex(b, "hash", h);
}

static void add_block(struct dg_buf *b, const struct dg_block_event *k) {
    add_int(b, "block", k->block);
    add_ids(b, "ids", k->ids, (size_t)k->kept);
    add_int(b, "steps", k->steps);
    add_int(b, "steps_all", k->steps_all);
    add_int(b, "accepted", k->accepted);
    add_real(b, "H", k->mean_entropy);
    add_text(b, "stop", dg_stop_name(k->stop));
    add_int(b, "retries", k->retries);
    add_bool(b, "trimmed", k->trimmed);
    add_bool(b, "converged", k->converged);
    add_bool(b, "degenerate", k->degenerate);
    add_text(b, "end", dg_turn_end_name(k->end));
    add_int(b, "stop_id", k->stop_id);
}

static void add_route(struct dg_buf *b, const struct dg_route *r) {
    static const char *const how[] = {[DG_ROUTE_EXTEND] = "extend", [DG_ROUTE_CUT] = "cut", [DG_ROUTE_PREFILL] = "prefill"};
    add_text(b, "how", how[r->how]);
    add_int(b, "lcp", r->lcp);
    add_int(b, "cost", r->cost);
    add_int(b, "best_lcp", r->best_lcp);
}

static void add_proposal(struct dg_buf *b, const struct dg_proposal *p) {
    add_ids(b, "ids", p->ids, (size_t)p->n);
    add_int(b, "block", p->block);
    add_int(b, "retries", p->retries);
    add_int(b, "steps", p->steps);
    add_real(b, "H", p->mean_entropy);
    add_text(b, "stop", dg_stop_name(p->stop));
    add_bool(b, "converged", p->converged);
    add_hex(b, "p_hash", XXH3_64bits(p->p_max, (size_t)p->n * sizeof *p->p_max));
    add_int(b, "reroll", p->plan.reroll);
    add_int(b, "kept", p->plan.kept);
    add_text(b, "plan_end", dg_turn_end_name(p->plan.end));
    add_int(b, "stop_id", p->plan.stop_id);
    add_bool(b, "trimmed", p->plan.trimmed);
    add_bool(b, "deferred", p->plan.deferred);
}

static void add_answer(struct dg_buf *b, const struct dg_event *e) {
    const struct dg_answer *a = e->answer;
    add_text(b, "kind", dg_op_name(a->op));
    add_text(b, "status", dg_status_name(a->status));
    if (a->status != DG_OK)
        add_text(b, "error", a->error);
    add_int(b, "conv", e->conv);
    dg_buf_fmt(b, ",\"at\":[%llu,%lld]", (unsigned long long)e->at.epoch, (long long)e->at.pos);
    add_int(b, "computed", a->computed);
    if (a->op == DG_OP_GENERATE || a->op == DG_OP_END_TURN) {
        add_ids(b, "ids", a->ids, (size_t)a->n);
        add_int(b, "steps", a->steps);
        add_int(b, "blocks", a->blocks);
    }
    if (a->op == DG_OP_GENERATE || a->op == DG_OP_END_TURN || a->op == DG_OP_COMMIT) {
        add_text(b, "end", dg_turn_end_name(a->end));
        add_int(b, "stop_id", a->stop_id);
    }
    if (a->op == DG_OP_FINGERPRINT)
        add_hex(b, "fingerprint", a->fingerprint);
    if (a->op == DG_OP_ROUTE && a->status == DG_OK)
        add_route(b, &a->route);
    if (a->route.evicted)
        add_int(b, "evicted", a->route.evicted);
    if (a->op == DG_OP_PROPOSE && a->status == DG_OK)
        add_proposal(b, &a->proposal);
}

enum dg_status dg_oplog_event(struct dg_oplog_writer *w, const struct dg_event *e) {
    static const char *const type[] = {[DG_EV_PREFILL] = "prefill", [DG_EV_STEP] = "step", [DG_EV_BLOCK] = "block", [DG_EV_NOTE] = "note",
                                       [DG_EV_ANSWER] = "answer"};
    struct dg_buf *b = begin(w, type[e->kind]);
    add_int(b, "op", (int64_t)w->op);
    switch (e->kind) {
    case DG_EV_PREFILL:
        add_int(b, "done", e->done);
        add_int(b, "total", e->total);
        break;
    case DG_EV_STEP: add_step(w, b, e->step); break;
    case DG_EV_BLOCK: add_block(b, e->block); break;
    case DG_EV_NOTE: add_text(b, "text", e->text); break;
    case DG_EV_ANSWER: add_answer(b, e); break;
    }
    return end(b);
}
