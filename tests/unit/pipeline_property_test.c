/* Random op sequences through the pipeline against a simple model of its state: lists of tokens, epochs, marks, who is current, who is
 * held, which turn is open. Every answer's status, position and epoch, and every log, must be the model's; every few ops the KV fingerprint must be
 * that of the same tokens prefilled into an empty cache. The number of ops: PROPERTY_OPS in the environment, 10,000 by default. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipeline/pipeline.h"
#include "support/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CTX 128
#define CANVAS 16
#define VOCAB 160
#define CONVS 3
#define MARKS 3

struct list {
    int32_t v[CTX + 64];
    int64_t n;
};

struct conv {
    int32_t id; /* 0 = none */
    struct list log;
    uint64_t epoch;
    int64_t mark[MARKS]; /* -1 = not set */
    int64_t turn_start;
    bool held, open, proposed;
    int64_t open_start;  /* of the open turn */
    int64_t committed;   /* blocks of it */
    uint64_t used;
};

struct model {
    struct conv c[CONVS];
    int32_t current, next_id;
    uint64_t newest_epoch, tick;
    struct dg_kv_id seen[64]; /* positions once given out */
    int n_seen;
};

static struct rig rig;
static struct dg_engine *engine;
static struct dg_pipeline *pipeline;
static struct dg_stage *reference;
static struct model m;
static uint64_t rng;
static int step;
static int counts[DG_OPS][2]; /* refused, done */
static int cancelled;

static const char *const mark_names[MARKS] = {"a", "b", "a long name"};

static uint32_t pick(uint32_t n) { return rig_random(&rng, n); }
static bool chance(uint32_t percent) { return pick(100) < percent; }

static struct conv *find(int32_t id) {
    for (int i = 0; id > 0 && i < CONVS; i++)
        if (m.c[i].id == id)
            return &m.c[i];
    return NULL;
}

static void random_ids(struct list *l, int64_t n) {
    l->n = n;
    for (int64_t i = 0; i < n; i++)
        l->v[i] = (int32_t)pick(VOCAB);
}

static int64_t common(const struct list *a, int64_t from, const struct list *b) {
    int64_t i = 0;
    while (from + i < a->n && i < b->n && a->v[from + i] == b->v[i])
        i++;
    return i;
}

#define EXPECT(cond)                                                                              \
    do {                                                                                          \
        if (!(cond))                                                                              \
            fail_msg("op %d (%s, status %s: %s): %s", step, dg_op_name(op->kind), dg_status_name(st), text, #cond); \
    } while (0)

/* --- the model's own ops --- */

static void broke(struct conv *c) {
    c->epoch = 0; /* some new one: learnt from the answer */
    for (int i = 0; i < MARKS; i++)
        if (c->mark[i] > c->log.n)
            c->mark[i] = -1;
    if (c->turn_start > c->log.n)
        c->turn_start = -1;
}

static void cut(struct conv *c, int64_t len) {
    if (len == c->log.n)
        return;
    c->log.n = len;
    broke(c);
}

static void append(struct conv *c, const int32_t *ids, int64_t n) {
    if (n)
        memcpy(c->log.v + c->log.n, ids, (size_t)n * sizeof *ids);
    c->log.n += n;
}

static struct conv *victim(void) {
    struct conv *v = NULL;
    for (int i = 0; i < CONVS; i++)
        if (m.c[i].id && !m.c[i].held && !m.c[i].open && (!v || m.c[i].used < v->used))
            v = &m.c[i];
    return v;
}

static struct conv *make(void) {
    struct conv *c = NULL;
    for (int i = 0; i < CONVS && !c; i++)
        if (!m.c[i].id)
            c = &m.c[i];
    if (!c && !(c = victim()))
        return NULL;
    *c = (struct conv){.id = m.next_id++, .turn_start = -1, .mark = {-1, -1, -1}, .used = ++m.tick};
    m.current = c->id;
    return c;
}

/* --- choosing an op --- */

static const enum dg_op_kind often[] = {
    DG_OP_EXTEND,   DG_OP_EXTEND,   DG_OP_EXTEND,   DG_OP_GENERATE, DG_OP_GENERATE, DG_OP_REWIND,      DG_OP_REWIND,     DG_OP_SPLICE,
    DG_OP_FILL,     DG_OP_MARK,     DG_OP_ACTIVATE, DG_OP_FINALIZE, DG_OP_FINALIZE, DG_OP_ALIGN,       DG_OP_ALIGN,      DG_OP_FINGERPRINT,
    DG_OP_ROUTE,    DG_OP_RELEASE,  DG_OP_RELEASE,  DG_OP_PING,     DG_OP_DROP,     DG_OP_BEGIN_TURN};
static const enum dg_op_kind in_turn[] = {DG_OP_PROPOSE, DG_OP_PROPOSE, DG_OP_COMMIT, DG_OP_COMMIT, DG_OP_COMMIT, DG_OP_DISCARD, DG_OP_END_TURN};

static struct list ids_buf;
static struct dg_gen gen;

static void choose_ids(struct dg_op *op, const struct conv *c) {
    if (op->kind == DG_OP_ALIGN || op->kind == DG_OP_ROUTE || op->kind == DG_OP_FINALIZE) {
        /* what is there, changed somewhere */
        int64_t from = op->kind == DG_OP_FINALIZE && c && c->turn_start >= 0 ? c->turn_start : 0, n = c ? c->log.n - from : 0;
        int64_t keep = n ? pick((uint32_t)n + 1) : 0;
        if (chance(40))
            keep = n;
        ids_buf.n = 0;
        if (keep)
            memcpy(ids_buf.v, c->log.v + from, (size_t)keep * sizeof *ids_buf.v);
        ids_buf.n = keep;
        int64_t more = chance(50) ? pick(12) : 0;
        for (int64_t i = 0; i < more; i++)
            ids_buf.v[ids_buf.n++] = (int32_t)pick(VOCAB);
    } else
        random_ids(&ids_buf, op->kind == DG_OP_SPLICE ? pick(8) : chance(5) ? 20 + pick(40) : pick(14));
    if (ids_buf.n && chance(2))
        ids_buf.v[pick((uint32_t)ids_buf.n)] = chance(50) ? VOCAB : -1;
    op->ids = ids_buf.v;
    op->n = (size_t)ids_buf.n;
}

static void choose(struct dg_op *op) {
    struct conv *c = find(m.current);
    memset(op, 0, sizeof *op);
    op->kind = c && c->open && chance(85) ? in_turn[pick(sizeof in_turn / sizeof *in_turn)] : often[pick(sizeof often / sizeof *often)];
    if (chance(2))
        op->kind = in_turn[pick(sizeof in_turn / sizeof *in_turn)];
    if (chance(12)) {
        op->conv = 1 + (int32_t)pick((uint32_t)m.next_id);
        if (chance(70) && m.c[pick(CONVS)].id)
            op->conv = m.c[pick(CONVS)].id;
        c = op->conv ? find(op->conv) : c;
    }
    if (op->kind == DG_OP_ACTIVATE) {
        op->conv = chance(25) ? DG_CONV_NEW : m.c[pick(CONVS)].id;
        if (chance(5))
            op->conv = m.next_id + 3;
        c = find(op->conv);
    }
    if (op->kind == DG_OP_EXTEND || op->kind == DG_OP_SPLICE || op->kind == DG_OP_FINALIZE || op->kind == DG_OP_ALIGN || op->kind == DG_OP_ROUTE)
        choose_ids(op, c);
    op->as_turn = op->kind == DG_OP_EXTEND && chance(20);
    int64_t len = c ? c->log.n : 0;
    op->start = len ? pick((uint32_t)len + 1) : 0;
    op->end = op->start + (int64_t)pick((uint32_t)(len - op->start) + (chance(5) ? 5 : 1));
    if (op->kind == DG_OP_FILL)
        op->len = chance(4) ? 200 : pick(12);
    op->seed = pick(1000);
    if (op->kind == DG_OP_PROPOSE)
        op->len = chance(70) ? 0 : 1 + pick(CANVAS + 1);
    if (op->kind == DG_OP_COMMIT)
        op->kept = chance(70) ? -1 : (int32_t)pick(CANVAS + 2);
    op->abandon = chance(50);
    if (op->kind == DG_OP_MARK || (op->kind == DG_OP_REWIND && chance(40)))
        op->mark = mark_names[pick(MARKS)];
    if (op->kind == DG_OP_REWIND && !op->mark)
        op->at = m.n_seen && chance(30) ? m.seen[pick((uint32_t)m.n_seen)]
                                        : (struct dg_kv_id){c ? c->epoch : 1, (int64_t)pick((uint32_t)len + 2)};
    else if (chance(8))
        op->at = m.n_seen && chance(50) ? m.seen[pick((uint32_t)m.n_seen)] : (struct dg_kv_id){c ? c->epoch : 1, len};
    gen = rig.opts.gen;
    gen.seed = pick(1u << 30);
    gen.max_tokens = pick(30);
    gen.sampler.steps_max = 1 + (int32_t)pick(2);
    gen.extend_last = !chance(10);
    gen.policy.retries = (int32_t)pick(2);
    if (op->kind == DG_OP_GENERATE || op->kind == DG_OP_BEGIN_TURN)
        op->gen = &gen;
}

/* --- what must come of it --- */

struct outcome {
    enum dg_status st;
    struct dg_result r;
    struct dg_event first, last; /* the answer */
    int left; /* events until it is cancelled, 0 = never */
    atomic_bool token;
};

static void on_event(void *ctx, const struct dg_event *e) {
    struct outcome *o = ctx;
    if (e->kind != DG_EV_ANSWER && o->left && --o->left == 0)
        atomic_store(&o->token, true);
}

static bool ids_bad(const struct dg_op *op) {
    for (size_t i = 0; i < op->n; i++)
        if (op->ids[i] < 0 || op->ids[i] >= VOCAB)
            return true;
    return false;
}

static bool needs_conv(enum dg_op_kind k) { return k != DG_OP_PING && k != DG_OP_ROUTE && k != DG_OP_SHUTDOWN && k != DG_OP_LOAD; }
static bool checks_at(enum dg_op_kind k) {
    return k == DG_OP_EXTEND || k == DG_OP_GENERATE || k == DG_OP_SPLICE || k == DG_OP_FILL || k == DG_OP_MARK || k == DG_OP_FINALIZE ||
           k == DG_OP_ALIGN || k == DG_OP_FINGERPRINT || k == DG_OP_BEGIN_TURN;
}
static bool is_turn_op(enum dg_op_kind k) { return k == DG_OP_PROPOSE || k == DG_OP_COMMIT || k == DG_OP_DISCARD || k == DG_OP_END_TURN; }

/* The model's word on whether an op is refused before it does anything. */
static enum dg_status refusal(const struct dg_op *op, const struct conv *c) {
    bool fresh = op->kind == DG_OP_ACTIVATE && op->conv == DG_CONV_NEW;
    if (!c && !fresh && (op->conv || needs_conv(op->kind)))
        return DG_E_ARG;
    if (c && checks_at(op->kind) && op->at.epoch && (op->at.epoch != c->epoch || op->at.pos != c->log.n))
        return DG_E_ARG;
    if (is_turn_op(op->kind) && !c->open)
        return DG_E_ARG;
    bool with_turn = op->kind == DG_OP_PING || op->kind == DG_OP_FINGERPRINT || op->kind == DG_OP_ROUTE || op->kind == DG_OP_RELEASE ||
                     op->kind == DG_OP_ACTIVATE;
    if (c && c->open && !is_turn_op(op->kind) && !with_turn)
        return DG_E_ARG;
    int64_t n = (int64_t)op->n, room = CTX - CANVAS;
    switch (op->kind) {
    case DG_OP_EXTEND:
        if (ids_bad(op))
            return DG_E_ARG;
        return c->log.n + n > (op->as_turn ? CTX : room) && !(n == 0) ? DG_E_LIMIT : DG_OK;
    case DG_OP_FILL: return op->len > (room > c->log.n ? room - c->log.n : 0) ? DG_E_LIMIT : DG_OK;
    case DG_OP_REWIND:
        if (op->mark) {
            int k = 0;
            while (mark_names[k] != op->mark)
                k++;
            return c->mark[k] < 0 ? DG_E_ARG : DG_OK;
        }
        return op->at.epoch != c->epoch || op->at.pos < 0 || op->at.pos > c->log.n ? DG_E_ARG : DG_OK;
    case DG_OP_SPLICE:
        if (op->end > c->log.n || ids_bad(op))
            return DG_E_ARG;
        return op->start + n + c->log.n - op->end > room ? DG_E_LIMIT : DG_OK;
    case DG_OP_FINALIZE:
    case DG_OP_ALIGN: {
        if (op->kind == DG_OP_FINALIZE && c->turn_start < 0)
            return DG_E_ARG;
        if (ids_bad(op))
            return DG_E_ARG;
        int64_t from = op->kind == DG_OP_FINALIZE ? c->turn_start : 0, most = op->kind == DG_OP_FINALIZE ? CTX : room;
        return common(&c->log, from, &ids_buf) < n && from + n > most ? DG_E_LIMIT : DG_OK;
    }
    case DG_OP_ROUTE: return ids_bad(op) ? DG_E_ARG : DG_OK;
    case DG_OP_PROPOSE: return c->proposed || op->len > CANVAS ? DG_E_ARG : DG_OK;
    case DG_OP_COMMIT:
    case DG_OP_DISCARD: return c->proposed ? DG_OK : DG_E_ARG;
    default: return DG_OK;
    }
}

/* The log that a change of log leads to when it is not cut short. */
static void target(const struct dg_op *op, const struct conv *c, struct list *t) {
    *t = c->log;
    int64_t from = op->kind == DG_OP_FINALIZE ? c->turn_start : 0;
    if (op->kind == DG_OP_EXTEND || op->kind == DG_OP_FINALIZE || op->kind == DG_OP_ALIGN) {
        t->n = op->kind == DG_OP_EXTEND ? t->n : from;
        memcpy(t->v + t->n, op->ids, op->n * sizeof *op->ids);
        t->n += (int64_t)op->n;
    } else if (op->kind == DG_OP_FILL) {
        struct dg_rng r;
        dg_rng_init(&r, op->seed);
        for (int64_t i = 0; i < op->len; i++)
            t->v[t->n++] = dg_rng_id(&r, VOCAB);
    } else if (op->kind == DG_OP_SPLICE) {
        t->n = op->start;
        memcpy(t->v + t->n, op->ids, op->n * sizeof *op->ids);
        t->n += (int64_t)op->n;
        memcpy(t->v + t->n, c->log.v + op->end, (size_t)(c->log.n - op->end) * sizeof *t->v);
        t->n += c->log.n - op->end;
    } else if (op->kind == DG_OP_REWIND) {
        t->n = op->at.pos;
        for (int k = 0; op->mark && k < MARKS; k++)
            if (mark_names[k] == op->mark)
                t->n = c->mark[k];
    }
}

/* Ops that turn one log into another: all of it, or, cancelled, a prefix of the new log that holds all that both share or was computed. */
static void change(const struct dg_op *op, struct conv *c, const struct outcome *o) {
    enum dg_status st = o->st;
    const char *text = "";
    struct list t;
    target(op, c, &t);
    int64_t pos = o->r.at.pos, old = c->log.n, same = common(&c->log, 0, &t);
    bool keeps = op->kind == DG_OP_FINALIZE;
    if (op->kind == DG_OP_SPLICE)
        same = op->start;
    if (st == DG_E_CANCELLED && op->kind == DG_OP_EXTEND && op->as_turn) {
        EXPECT(pos == old);
        if (o->r.at.epoch != c->epoch) /* it had begun */
            broke(c);
        return;
    }
    if (st == DG_E_CANCELLED && pos == old && o->r.at.epoch == c->epoch)
        return; /* before anything was touched */
    EXPECT(st == DG_OK || st == DG_E_CANCELLED);
    EXPECT(st == DG_OK ? pos == t.n : pos <= t.n);
    bool cuts = same < old;
    t.n = pos;
    c->log.n = cuts ? (pos < same ? pos : same) : old;
    if (cuts || op->kind == DG_OP_SPLICE)
        broke(c);
    bool moved = pos != old || c->epoch == 0;
    c->log = t;
    if (op->kind == DG_OP_EXTEND && op->as_turn)
        c->turn_start = old;
    else if (moved && !keeps)
        c->turn_start = -1;
    if (c->turn_start > c->log.n)
        c->turn_start = -1;
}

static void check_reference(const struct dg_op *op, const struct conv *before, const struct outcome *o) {
    enum dg_status st = DG_OK;
    const char *text = "reference";
    struct dg_result r = {0};
    struct dg_op ping = {.kind = DG_OP_PING}, extend = {.kind = DG_OP_EXTEND, .ids = before->log.v, .n = (size_t)before->log.n, .as_turn = true},
                 again = *op;
    st = dg_stage_call(reference, &ping, NULL, NULL, &r, NULL);
    struct dg_op zero = {.kind = DG_OP_REWIND, .at = {r.at.epoch, 0}};
    st = st == DG_OK ? dg_stage_call(reference, &zero, NULL, NULL, &r, NULL) : st;
    st = st == DG_OK ? dg_stage_call(reference, &extend, NULL, NULL, &r, NULL) : st;
    EXPECT(st == DG_OK);
    if (op->kind == DG_OP_GENERATE) {
        again.conv = 0;
        again.at.epoch = 0;
        again.cancel = NULL;
        r.ids.n = 0;
        st = dg_stage_call(reference, &again, NULL, NULL, &r, NULL);
        EXPECT(st == DG_OK);
        EXPECT(r.ids.n == o->r.ids.n && (r.ids.n == 0 || memcmp(r.ids.v, o->r.ids.v, r.ids.n * sizeof *r.ids.v) == 0));
        EXPECT(r.end == o->r.end);
    }
    dg_ids_deinit(&r.ids);
}

static void turn_op(const struct dg_op *op, struct conv *c, const struct outcome *o) {
    enum dg_status st = o->st;
    const char *text = "";
    static int32_t block[CANVAS];
    switch (op->kind) {
    case DG_OP_GENERATE:
        if (st == DG_OK) {
            if (pick(4) == 0)
                check_reference(op, c, o);
            int64_t grown = o->r.at.pos - c->log.n;
            EXPECT(grown >= 0 && grown <= (int64_t)o->r.ids.n);
            EXPECT(!op->gen->extend_last || grown == (int64_t)o->r.ids.n);
            c->turn_start = c->log.n;
            append(c, o->r.ids.v, grown);
        } else {
            EXPECT(st == DG_E_CANCELLED);
            EXPECT(o->r.at.pos == c->log.n);
            if (o->r.at.epoch != c->epoch)
                broke(c);
        }
        break;
    case DG_OP_BEGIN_TURN:
        EXPECT(st == DG_OK);
        c->open = true;
        c->proposed = false;
        c->open_start = c->log.n;
        c->committed = 0;
        break;
    case DG_OP_PROPOSE:
        EXPECT(st == DG_OK || st == DG_E_LIMIT || st == DG_E_CANCELLED);
        EXPECT(o->r.at.pos == c->log.n);
        c->proposed = st == DG_OK;
        if (c->proposed) {
            EXPECT(o->r.ids.n >= 1 && o->r.ids.n <= CANVAS);
            memcpy(block, o->r.ids.v, o->r.ids.n * sizeof *block);
        }
        break;
    case DG_OP_COMMIT: {
        int64_t grown = o->r.at.pos - c->log.n;
        if (st == DG_E_ARG || st == DG_E_LIMIT) {
            EXPECT(grown == 0);
            break;
        }
        EXPECT(st == DG_OK);
        /* an ending block of a turn that does not extend its last one leaves the log alone */
        EXPECT(grown == 0 || op->kept < 0 || grown == op->kept);
        append(c, dg_engine_current(engine)->id == c->id ? dg_engine_current(engine)->s->log.v + c->log.n
                                                         : dg_conversation_find(dg_engine_conversations(engine), c->id)->s->log.v + c->log.n,
               grown);
        c->proposed = false;
        c->committed++;
        break;
    }
    case DG_OP_DISCARD:
        EXPECT(st == DG_OK);
        c->proposed = false;
        break;
    default: /* END_TURN */
        EXPECT(st == DG_OK);
        c->open = c->proposed = false;
        if (op->abandon) {
            bool moved = c->committed > 0;
            c->log.n = c->open_start;
            if (moved)
                broke(c);
        } else
            c->turn_start = c->open_start;
        break;
    }
}

static void route(const struct dg_op *op, const struct outcome *o) {
    enum dg_status st = o->st;
    const char *text = "";
    struct conv *lost = NULL, *c;
    int live = 0, usable = 0;
    for (int i = 0; i < CONVS; i++) {
        live += m.c[i].id != 0;
        usable += m.c[i].id && !m.c[i].held && !m.c[i].open;
    }
    if (st == DG_E_LIMIT) {
        EXPECT(live == CONVS && usable == 0);
        return;
    }
    EXPECT(st == DG_OK);
    c = find(o->r.conv);
    if (!c) {
        lost = live == CONVS ? victim() : NULL;
        EXPECT(o->r.route.evicted == (lost ? lost->id : 0));
        c = make();
        EXPECT(c->id == o->r.conv);
    }
    EXPECT(!c->held && !c->open);
    EXPECT(o->r.at.pos == common(&c->log, 0, &ids_buf));
    EXPECT(o->r.route.lcp == o->r.at.pos && o->r.route.cost == ids_buf.n - o->r.at.pos);
    if (o->r.route.how == DG_ROUTE_EXTEND)
        EXPECT(o->r.at.pos == c->log.n);
    bool moved = o->r.at.pos < c->log.n;
    cut(c, o->r.at.pos);
    if (moved && (!op->conv ? m.current : op->conv) == c->id)
        c->turn_start = -1;
    /* of a pure extension none may have done better */
    for (int i = 0; i < CONVS; i++)
        if (m.c[i].id && !m.c[i].held && !m.c[i].open && common(&m.c[i].log, 0, &ids_buf) == m.c[i].log.n)
            EXPECT(m.c[i].log.n <= o->r.route.lcp);
    c->held = true;
    m.current = c->id;
}

static void apply(const struct dg_op *op, const struct outcome *o) {
    struct conv *c = op->conv ? find(op->conv) : find(m.current);
    enum dg_status st = o->st, want;
    const char *text = "";
    if (op->kind == DG_OP_ACTIVATE && op->conv == DG_CONV_NEW)
        c = NULL;
    want = refusal(op, c);
    if (want != DG_OK) {
        EXPECT(st == want);
        return;
    }
    if (st == DG_E_CANCELLED && o->r.conv == (c ? c->id : 0) && c && o->r.at.pos == c->log.n && o->r.at.epoch == c->epoch &&
        op->kind != DG_OP_PROPOSE) {
        cancelled++;
        if (o->token)
            return;
    }
    switch (op->kind) {
    case DG_OP_EXTEND:
    case DG_OP_FILL:
    case DG_OP_REWIND:
    case DG_OP_SPLICE:
    case DG_OP_FINALIZE:
    case DG_OP_ALIGN: change(op, c, o); break;
    case DG_OP_MARK:
        EXPECT(st == DG_OK);
        for (int k = 0; k < MARKS; k++)
            if (mark_names[k] == op->mark)
                c->mark[k] = c->log.n;
        break;
    case DG_OP_ACTIVATE:
        if (op->conv == DG_CONV_NEW) {
            struct conv *v = make();
            EXPECT(st == (v ? DG_OK : DG_E_LIMIT));
            EXPECT(!v || v->id == o->r.conv);
        } else {
            EXPECT(st == DG_OK);
            m.current = c->id;
        }
        break;
    case DG_OP_DROP:
        EXPECT(st == DG_OK);
        if (m.current == c->id)
            m.current = 0;
        c->id = 0;
        break;
    case DG_OP_ROUTE: route(op, o); break;
    case DG_OP_RELEASE:
        EXPECT(st == DG_OK);
        c->held = false;
        break;
    case DG_OP_PING:
    case DG_OP_FINGERPRINT: EXPECT(st == DG_OK); break;
    default: turn_op(op, c, o); break;
    }
}

/* Everything the engine holds is what the model holds. */
static void compare(const struct dg_op *op, const struct outcome *o) {
    enum dg_status st = o->st;
    const char *text = "";
    const struct dg_conversations *all = dg_engine_conversations(engine);
    size_t live = 0;
    EXPECT((dg_engine_current(engine) ? dg_engine_current(engine)->id : 0) == m.current);
    for (int i = 0; i < CONVS; i++) {
        struct conv *c = &m.c[i];
        if (!c->id)
            continue;
        live++;
        const struct dg_conversation *v = dg_conversation_find(all, c->id);
        EXPECT(v != NULL);
        EXPECT((int64_t)v->s->log.n == c->log.n && v->s->kv.len == c->log.n);
        EXPECT(memcmp(v->s->log.v, c->log.v, (size_t)c->log.n * sizeof *c->log.v) == 0);
        if (c->epoch == 0) {
            EXPECT(v->epoch > m.newest_epoch);
            m.newest_epoch = c->epoch = v->epoch;
        }
        EXPECT(v->epoch == c->epoch);
        EXPECT(v->held == c->held && v->turn_open == c->open && (!c->open || v->proposed == c->proposed));
        EXPECT(v->turn_start == c->turn_start);
        size_t marks = 0;
        for (int k = 0; k < MARKS; k++)
            marks += c->mark[k] >= 0;
        EXPECT(v->n_marks == marks);
        for (size_t k = 0; k < v->n_marks; k++) {
            int at = 0;
            while (strcmp(mark_names[at], v->mark[k].name) != 0)
                at++;
            EXPECT(v->mark[k].pos == c->mark[at]);
        }
    }
    EXPECT(all->n == live);
    if (o->r.conv && find(o->r.conv) && m.n_seen < 64)
        m.seen[m.n_seen++] = o->r.at;
    else if (o->r.conv && find(o->r.conv))
        m.seen[pick(64)] = o->r.at;
}

static void compare_kv(const struct dg_op *op) {
    struct conv *c = find(m.current);
    if (!c)
        return;
    struct dg_result r = {0};
    struct dg_op print = {.kind = DG_OP_FINGERPRINT};
    enum dg_status st = dg_pipeline_call(pipeline, &print, NULL, NULL, &r, NULL);
    const char *text = "fingerprint";
    EXPECT(st == DG_OK);
    c->used = ++m.tick;
    uint64_t got = r.fingerprint;
    struct dg_op plain = {.kind = DG_OP_FINGERPRINT};
    struct outcome none = {0};
    check_reference(&plain, c, &none);
    st = dg_stage_call(reference, &print, NULL, NULL, &r, NULL);
    EXPECT(st == DG_OK && r.fingerprint == got);
}

static void random_ops_agree_with_the_model(void **state) {
    (void)state;
    const char *env = getenv("PROPERTY_OPS"), *seed = getenv("PROPERTY_SEED");
    int ops = env ? atoi(env) : 10000;
    rng = seed ? strtoull(seed, NULL, 10) : 1;
    rig_open(&rig, 7, CTX, 32);
    rig.opts.conversations_max = CONVS;
    rig.opts.gen.policy.stops[rig.opts.gen.policy.n_stops++] = 33;
    engine = rig_engine(&rig);
    /* its backend is the pipeline's thread's; the reference has one of its own */
    struct rig other;
    rig_open(&other, 7, CTX, 64);
    other.opts.session.chunk = 64;
    other.opts.gen = rig.opts.gen;
    reference = dg_engine_stage(rig_engine(&other));
    assert_int_equal(dg_pipeline_start(&pipeline, dg_engine_stage(engine), 4, NULL), DG_OK);
    m.next_id = 1;
    make();
    for (step = 0; step < ops; step++) {
        struct dg_op op;
        struct outcome o = {0};
        struct dg_error err = {0};
        choose(&op);
        if (chance(10)) {
            o.left = 1 + (int)pick(5);
            op.cancel = &o.token;
        }
        o.st = dg_pipeline_call(pipeline, &op, on_event, &o, &o.r, &err);
        counts[op.kind][o.st == DG_OK]++;
        if (o.st != DG_OK && !dg_error_text(&err)[0])
            fail_msg("op %d: an error without a word", step);
        apply(&op, &o);
        if (find(o.r.conv) && (o.st == DG_OK || o.st == DG_E_CANCELLED))
            find(o.r.conv)->used = ++m.tick;
        compare(&op, &o);
        if (step % 5 == 0)
            compare_kv(&op);
        dg_ids_deinit(&o.r.ids);
        dg_error_clear(&err);
    }
    if (ops >= 10000)
        for (int k = 0; k < DG_OPS; k++) {
            bool used = k != DG_OP_SAVE && k != DG_OP_LOAD && k != DG_OP_SHUTDOWN;
            if (used && (counts[k][1] < 20 || (k != DG_OP_PING && counts[k][0] < 1)))
                fail_msg("%s: %d done, %d refused: the sequence does not try it", dg_op_name((enum dg_op_kind)k), counts[k][1], counts[k][0]);
        }
    dg_pipeline_close(pipeline);
    dg_stage_destroy(reference);
    rig_close(&other);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_ops_agree_with_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
