#include "pipeline/oplog.h"

#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fields of one object; the first that is missing or of another type is remembered. */
struct fields {
    const json_t *o;
    const char *bad;
};

static const json_t *field(struct fields *f, const char *name, bool (*is)(const json_t *)) {
    const json_t *v = json_object_get(f->o, name);
    if (v && is(v))
        return v;
    f->bad = f->bad ? f->bad : name;
    return NULL;
}

static bool is_int(const json_t *v) { return json_is_integer(v); }
static bool is_num(const json_t *v) { return json_is_number(v); }
static bool is_bool(const json_t *v) { return json_is_boolean(v); }
static bool is_str(const json_t *v) { return json_is_string(v); }
static bool is_arr(const json_t *v) { return json_is_array(v); }
static bool is_obj(const json_t *v) { return json_is_object(v); }

static int64_t get_i64(struct fields *f, const char *name) {
    const json_t *v = field(f, name, is_int);
    return v ? json_integer_value(v) : 0;
}

static int32_t get_int(struct fields *f, const char *name) {
    int64_t v = get_i64(f, name);
    if (v < INT32_MIN || v > INT32_MAX)
        f->bad = f->bad ? f->bad : name;
    return (int32_t)v;
}

static double get_real(struct fields *f, const char *name) {
    const json_t *v = field(f, name, is_num);
    return v ? json_number_value(v) : 0;
}

static bool get_bool(struct fields *f, const char *name) { return json_is_true(field(f, name, is_bool)); }

static const char *get_str(struct fields *f, const char *name) {
    const json_t *v = field(f, name, is_str);
    return v ? json_string_value(v) : "";
}

static uint64_t get_u64(struct fields *f, const char *name, int base) {
    const char *s = get_str(f, name);
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, base);
    if (errno || end == s || *end)
        f->bad = f->bad ? f->bad : name;
    return v;
}

/* Takes memory for the ids; at most max of them. */
static int32_t *get_ids(struct fields *f, const char *name, size_t max, size_t *n, struct dg_error *err) {
    const json_t *a = field(f, name, is_arr);
    *n = json_array_size(a);
    int32_t *v = dg_calloc(*n ? *n : 1, sizeof *v);
    if (!v) {
        DG_FAIL(err, DG_E_NOMEM, "no memory for %zu ids", *n);
        return NULL;
    }
    bool good = *n <= max;
    for (size_t i = 0; i < *n && good; i++) {
        const json_t *id = json_array_get(a, i);
        good = json_is_integer(id) && json_integer_value(id) >= INT32_MIN && json_integer_value(id) <= INT32_MAX;
        v[i] = (int32_t)json_integer_value(id);
    }
    if (!good)
        f->bad = f->bad ? f->bad : name;
    return v;
}

static enum dg_status finish(const struct fields *f, const char *what, struct dg_error *err) {
    return f->bad ? DG_FAIL(err, DG_E_FORMAT, "%s of the op log: '%s' is missing or not what it should be", what, f->bad) : DG_OK;
}

static enum dg_status read_sampler(const json_t *o, struct dg_sampler_params *p, struct dg_error *err) {
    struct fields f = {o, NULL};
    *p = (struct dg_sampler_params){
        .vocab = get_int(&f, "vocab"),
        .pad = get_int(&f, "pad"),
        .steps_max = get_int(&f, "steps_max"),
        .t_min = get_real(&f, "t_min"),
        .t_max = get_real(&f, "t_max"),
        .entropy_bound = get_real(&f, "entropy_bound"),
        .stability = get_int(&f, "stability"),
        .confidence = get_real(&f, "confidence"),
        .argmax = get_bool(&f, "argmax"),
        .freeze = get_bool(&f, "freeze"),
        .reference_stops = get_bool(&f, "reference_stops"),
        .no_early_stop = get_bool(&f, "no_early_stop"),
        .entropy_stop = get_real(&f, "entropy_stop"),
        .entropy_steps = get_int(&f, "entropy_steps"),
        .plateau = get_int(&f, "plateau"),
        .plateau_entropy = get_real(&f, "plateau_entropy"),
    };
    return finish(&f, "a sampler", err);
}

static enum dg_status read_policy(const json_t *o, struct dg_commit_policy *p, struct dg_error *err) {
    struct fields f = {o, NULL};
    size_t n = 0;
    int32_t *stops = get_ids(&f, "stops", DG_STOPS_MAX, &n, err);
    if (!stops)
        return DG_E_NOMEM;
    *p = (struct dg_commit_policy){
        .pad = get_int(&f, "pad"),
        .bos = get_int(&f, "bos"),
        .vocab = get_int(&f, "vocab"),
        .canvas = get_int(&f, "canvas"),
        .eos = get_int(&f, "eos"),
        .turn_open = get_int(&f, "turn_open"),
        .call_open = get_int(&f, "call_open"),
        .call_close = get_int(&f, "call_close"),
        .channel_open = get_int(&f, "channel_open"),
        .trim = get_real(&f, "trim"),
        .hard = get_real(&f, "hard"),
        .retries = get_int(&f, "retries"),
        .ws_stop = get_bool(&f, "ws_stop"),
        .continue_past_stop = get_bool(&f, "continue_past_stop"),
        .repeat_max = get_int(&f, "repeat_max"),
    };
    if (n <= DG_STOPS_MAX) {
        memcpy(p->stops, stops, n * sizeof *stops);
        p->n_stops = (int32_t)n;
    }
    dg_free(stops);
    return finish(&f, "a policy", err);
}

static enum dg_status read_gen(const json_t *o, struct dg_gen *g, struct dg_error *err) {
    struct fields f = {o, NULL};
    size_t n = 0;
    memset(g, 0, sizeof *g);
    DG_TRY(read_sampler(field(&f, "sampler", is_obj), &g->sampler, err));
    DG_TRY(read_policy(field(&f, "policy", is_obj), &g->policy, err));
    g->seed = get_u64(&f, "seed", 10);
    g->max_tokens = get_i64(&f, "max_tokens");
    g->first_step = !strcmp(get_str(&f, "first_step"), "none") ? DG_SC_NONE : DG_SC_SEED;
    g->extend_last = get_bool(&f, "extend_last");
    if (json_object_get(o, "canvas_ids")) {
        g->canvas_ids = get_ids(&f, "canvas_ids", DG_CANVAS_MAX, &n, err);
        if (!g->canvas_ids)
            return DG_E_NOMEM;
        g->canvas_n = (int32_t)n;
    }
    return finish(&f, "generation options", err);
}

static enum dg_status read_at(const json_t *at, struct dg_kv_id *out, struct dg_error *err) {
    const json_t *e = json_array_get(at, 0), *p = json_array_get(at, 1);
    if (!json_is_integer(e) || !json_is_integer(p) || json_integer_value(e) < 0)
        return DG_FAIL(err, DG_E_FORMAT, "an op of the op log: 'at' is no position");
    *out = (struct dg_kv_id){(uint64_t)json_integer_value(e), json_integer_value(p)};
    return DG_OK;
}

static char *copy(const char *s, struct dg_error *err) {
    char *c = dg_strndup(s, strlen(s));
    if (!c)
        DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
    return c;
}

static enum dg_status read_fields(struct fields *f, struct dg_op *op, struct dg_error *err) {
    if (json_object_get(f->o, "conv"))
        op->conv = get_int(f, "conv");
    if (json_object_get(f->o, "at"))
        DG_TRY(read_at(json_object_get(f->o, "at"), &op->at, err));
    if (json_object_get(f->o, "ids") && !(op->ids = get_ids(f, "ids", DG_IDS_MAX, &op->n, err)))
        return DG_E_NOMEM;
    if (op->kind == DG_OP_SPLICE) {
        op->start = get_i64(f, "start");
        op->end = get_i64(f, "end");
    }
    if (op->kind == DG_OP_FILL || op->kind == DG_OP_ACTIVATE || op->kind == DG_OP_PROPOSE)
        op->len = get_i64(f, "len");
    if (op->kind == DG_OP_FILL)
        op->seed = get_u64(f, "seed", 10);
    if (op->kind == DG_OP_EXTEND && json_object_get(f->o, "as_turn"))
        op->as_turn = get_bool(f, "as_turn");
    if (op->kind == DG_OP_COMMIT)
        op->kept = get_int(f, "kept");
    if (op->kind == DG_OP_END_TURN)
        op->abandon = get_bool(f, "abandon");
    if (json_object_get(f->o, "mark") && !(op->mark = copy(get_str(f, "mark"), err)))
        return DG_E_NOMEM;
    if (json_object_get(f->o, "path") && !(op->path = copy(get_str(f, "path"), err)))
        return DG_E_NOMEM;
    if (json_object_get(f->o, "gen")) {
        struct dg_gen *g = dg_calloc(1, sizeof *g);
        if (!g)
            return DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
        op->gen = g;
        DG_TRY(read_gen(json_object_get(f->o, "gen"), g, err));
    }
    return DG_OK;
}

enum dg_status dg_oplog_read_op(const json_t *line, struct dg_op *op, struct dg_error *err) {
    struct fields f = {line, NULL};
    memset(op, 0, sizeof *op);
    const char *kind = get_str(&f, "kind");
    op->kind = dg_op_find(kind);
    if (op->kind == DG_OPS)
        return DG_FAIL(err, DG_E_FORMAT, "an op of the op log: there is no op '%.40s'", kind);
    enum dg_status st = read_fields(&f, op, err);
    if (st == DG_OK)
        st = finish(&f, "an op", err);
    if (st != DG_OK)
        dg_op_deinit(op);
    return st;
}

enum dg_status dg_oplog_read_head(const json_t *line, struct dg_oplog_session *out, struct dg_error *err) {
    struct fields f = {line, NULL};
    memset(out, 0, sizeof *out);
    int64_t version = get_i64(&f, "v");
    if (!f.bad && version != DG_OPLOG_VERSION)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "the op log has form version %lld; this program reads %d", (long long)version, DG_OPLOG_VERSION);
    struct dg_session_opts *o = &out->engine.session;
    const char *model = get_str(&f, "model"), *backend = get_str(&f, "backend");
    if (strlen(model) >= sizeof out->model_dir || strlen(backend) >= sizeof out->backend)
        return DG_FAIL(err, DG_E_FORMAT, "the head of the op log: a name is too long");
    memcpy(out->model_dir, model, strlen(model) + 1);
    memcpy(out->backend, backend, strlen(backend) + 1);
    out->model_id = get_u64(&f, "model_id", 16);
    out->text = get_bool(&f, "text");
    o->ctx = get_i64(&f, "ctx");
    const char *kv = get_str(&f, "kv");
    o->kv = !strcmp(kv, "f32") ? DG_F32 : !strcmp(kv, "q8") ? DG_Q8 : DG_F16;
    o->ring = get_i64(&f, "ring");
    o->chunk = get_int(&f, "chunk");
    o->sc_sparse = get_bool(&f, "sc_sparse");
    if (json_object_get(line, "prefill")) {
        int32_t rule = get_int(&f, "prefill");
        o->fast_max = get_i64(&f, "fast_max");
        if (rule < DG_PREFILL_ONE_PATH || rule > DG_PREFILL_FAST || o->fast_max < 0)
            f.bad = f.bad ? f.bad : "prefill";
        else
            o->prefill = (enum dg_prefill_rule)rule;
    }
    o->unchecked_logits = json_object_get(line, "unchecked_logits") && get_bool(&f, "unchecked_logits");
    o->attention.topk_prefill = get_int(&f, "topk_prefill");
    o->attention.topk_denoise = get_int(&f, "topk_denoise");
    o->attention.unwindowed = get_bool(&f, "unwindowed");
    int64_t conversations = get_i64(&f, "conversations");
    if (conversations < 1 || conversations > DG_CONVERSATIONS_MAX)
        f.bad = f.bad ? f.bad : "conversations";
    out->engine.conversations_max = (size_t)conversations;
    if (o->ring < 0 || o->ring > (int64_t)1 << 30 || o->ctx < 0)
        f.bad = f.bad ? f.bad : "ring";
    DG_TRY(finish(&f, "the head", err));
    enum dg_status st = read_gen(json_object_get(line, "gen"), &out->engine.gen, err);
    dg_free((void *)out->engine.gen.canvas_ids); /* defaults have no canvas */
    out->engine.gen.canvas_ids = NULL;
    out->engine.gen.canvas_n = 0;
    return st;
}

/* --- steps --- */

static bool room_for(struct dg_oplog_steps *s, int32_t n) {
    if (n <= s->cap)
        return true;
    dg_oplog_steps_deinit(s);
    s->ids = dg_calloc((size_t)n, sizeof *s->ids);
    s->p_max = dg_calloc((size_t)n, sizeof *s->p_max);
    s->accept = dg_calloc((size_t)n, 1);
    s->cap = s->ids && s->p_max && s->accept ? n : 0;
    return s->cap > 0;
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0; }

static enum dg_stop_reason find_stop(const char *name) {
    enum dg_stop_reason r = DG_STOP_NONE;
    while (r < DG_STOP_MAX_STEPS && strcmp(name, dg_stop_name(r)) != 0)
        r++;
    return r;
}

enum dg_status dg_oplog_read_step(struct dg_oplog_steps *s, const json_t *line, struct dg_step_event *out, struct dg_error *err) {
    struct fields f = {line, NULL};
    int32_t n = get_int(&f, "n");
    const char *mask = get_str(&f, "mask"), *p = get_str(&f, "p");
    const json_t *changed = field(&f, "changed", is_arr);
    if (n < 1 || n > DG_CANVAS_MAX || strlen(mask) != (size_t)n || strlen(p) != 2 * (size_t)n || json_array_size(changed) % 2)
        return DG_FAIL(err, DG_E_FORMAT, "a step of the op log makes no sense");
    if (!room_for(s, n))
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a step");
    for (int32_t i = 0; i < n; i++) {
        s->accept[i] = mask[i] == '1';
        s->p_max[i] = (float)(hex(p[2 * i]) * 16 + hex(p[2 * i + 1])) / 255.0f;
    }
    for (size_t i = 0; i + 1 < json_array_size(changed); i += 2) {
        int64_t at = json_integer_value(json_array_get(changed, i)), id = json_integer_value(json_array_get(changed, i + 1));
        if (at < 0 || at >= n || id < 0 || id > INT32_MAX)
            return DG_FAIL(err, DG_E_FORMAT, "a step of the op log: 'changed' makes no sense");
        s->ids[at] = (int32_t)id;
    }
    s->result = (struct dg_step_result){.step = get_int(&f, "step"), .n_accepted = get_int(&f, "accepted"), .mean_entropy = get_real(&f, "H"),
                                        .stop = find_stop(get_str(&f, "stop")), .accept = s->accept, .canvas = s->ids, .result = s->ids};
    *out = (struct dg_step_event){.block = get_int(&f, "block"), .retry = get_int(&f, "retry"), .steps_max = get_int(&f, "of"),
                                  .temperature = (float)get_real(&f, "T"), .result = &s->result, .p_max = s->p_max, .n = n};
    return finish(&f, "a step", err);
}

void dg_oplog_steps_deinit(struct dg_oplog_steps *s) {
    dg_free(s->ids);
    dg_free(s->p_max);
    dg_free(s->accept);
    memset(s, 0, sizeof *s);
}
