#include "pipeline/pipeline.h"

#include "core/mem.h"

#include <pthread.h>
#include <string.h>

struct request {
    struct dg_pipeline *p;
    struct dg_op op;
    uint64_t ticket;
    atomic_bool cancel; /* the op's token when the client gave none */
    dg_event_fn *emit;
    void *ctx;
    bool answered;
};

struct dg_pipeline {
    struct dg_stage *top;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t not_empty, not_full;
    struct request **queue; /* a ring of `cap` */
    size_t cap, head, n;
    struct request *running;
    uint64_t next_ticket;
    bool closing; /* nothing more is taken */
};

static void free_request(struct request *q) {
    dg_op_deinit(&q->op);
    dg_free(q);
}

static void on_event(void *ctx, const struct dg_event *e) {
    struct request *q = ctx;
    if (e->kind == DG_EV_ANSWER) {
        /* with its answer the client's token may go out of life, while the op counts as running for a moment more */
        pthread_mutex_lock(&q->p->lock);
        q->op.cancel = &q->cancel;
        pthread_mutex_unlock(&q->p->lock);
        q->answered = true;
    }
    if (q->emit)
        q->emit(q->ctx, e);
}

/* A stage that forgot its answer must not leave a client waiting. */
static void run_request(struct dg_pipeline *p, struct request *q) {
    if (atomic_load(q->op.cancel))
        dg_stage_refuse(&q->op, DG_E_CANCELLED, "cancelled before it began", on_event, q);
    else
        dg_stage_exec(p->top, &q->op, on_event, q);
    if (!q->answered)
        dg_stage_refuse(&q->op, DG_E_INTERNAL, "a stage gave no answer", on_event, q);
}

static struct request *take(struct dg_pipeline *p) {
    struct request *q = p->queue[p->head];
    p->head = (p->head + 1) % p->cap;
    p->n--;
    pthread_cond_signal(&p->not_full);
    return q;
}

static void *work(void *arg) {
    struct dg_pipeline *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->n == 0 && !p->closing)
            pthread_cond_wait(&p->not_empty, &p->lock);
        if (p->n == 0)
            break;
        struct request *q = take(p);
        bool left_over = p->closing;
        p->running = q;
        pthread_mutex_unlock(&p->lock);
        if (left_over)
            dg_stage_refuse(&q->op, DG_E_CANCELLED, "the pipeline is shutting down", on_event, q);
        else
            run_request(p, q);
        pthread_mutex_lock(&p->lock);
        p->running = NULL;
        if (q->op.kind == DG_OP_SHUTDOWN && !left_over) {
            p->closing = true;
            pthread_cond_broadcast(&p->not_full);
        }
        free_request(q);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static enum dg_status start(struct dg_pipeline *p, size_t queue, struct dg_error *err) {
    p->cap = queue ? queue : DG_PIPELINE_QUEUE;
    p->next_ticket = 1;
    p->queue = dg_calloc(p->cap, sizeof *p->queue);
    if (!p->queue)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a queue of %zu ops", p->cap);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->not_empty, NULL);
    pthread_cond_init(&p->not_full, NULL);
    int e = pthread_create(&p->thread, NULL, work, p);
    return e == 0 ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "cannot start the pipeline's thread: %s", strerror(e));
}

enum dg_status dg_pipeline_start(struct dg_pipeline **out, struct dg_stage *top, size_t queue, struct dg_error *err) {
    *out = NULL;
    struct dg_pipeline *p = dg_calloc(1, sizeof *p);
    if (p)
        p->top = top;
    enum dg_status st = p ? start(p, queue, err) : DG_FAIL(err, DG_E_NOMEM, "no memory for the pipeline");
    if (st != DG_OK) {
        dg_stage_destroy(top);
        if (p)
            dg_free(p->queue);
        dg_free(p);
        return st;
    }
    *out = p;
    return DG_OK;
}

void dg_pipeline_close(struct dg_pipeline *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    if (p->running)
        atomic_store(p->running->op.cancel, true);
    pthread_cond_broadcast(&p->not_empty);
    pthread_cond_broadcast(&p->not_full);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    dg_stage_destroy(p->top);
    pthread_cond_destroy(&p->not_full);
    pthread_cond_destroy(&p->not_empty);
    pthread_mutex_destroy(&p->lock);
    dg_free(p->queue);
    dg_free(p);
}

/* With the lock held. */
static enum dg_status enqueue(struct dg_pipeline *p, struct request *q, bool try_only, struct dg_error *err) {
    while (p->n == p->cap && !p->closing && !try_only)
        pthread_cond_wait(&p->not_full, &p->lock);
    if (p->closing)
        return DG_FAIL(err, DG_E_CANCELLED, "the pipeline is shutting down");
    if (p->n == p->cap)
        return DG_FAIL(err, DG_E_LIMIT, "%zu ops are waiting; try again later", p->n);
    q->ticket = p->next_ticket++;
    p->queue[(p->head + p->n) % p->cap] = q;
    p->n++;
    pthread_cond_signal(&p->not_empty);
    return DG_OK;
}

enum dg_status dg_pipeline_submit(struct dg_pipeline *p, const struct dg_op *op, bool try_only, dg_event_fn *emit, void *ctx, uint64_t *ticket,
                                  struct dg_error *err) {
    struct request *q = dg_calloc(1, sizeof *q);
    if (!q)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for an op");
    enum dg_status st = dg_op_copy(&q->op, op, err);
    if (st != DG_OK) {
        dg_free(q);
        return st;
    }
    if (!q->op.cancel)
        q->op.cancel = &q->cancel;
    q->p = p;
    q->emit = emit;
    q->ctx = ctx;
    pthread_mutex_lock(&p->lock);
    st = enqueue(p, q, try_only || pthread_equal(pthread_self(), p->thread), err);
    uint64_t t = q->ticket; /* the op may be over as soon as the lock is free */
    pthread_mutex_unlock(&p->lock);
    if (st != DG_OK)
        free_request(q);
    else if (ticket)
        *ticket = t;
    return st;
}

bool dg_pipeline_cancel(struct dg_pipeline *p, uint64_t ticket) {
    bool found = false;
    pthread_mutex_lock(&p->lock);
    if (p->running && p->running->ticket == ticket) {
        atomic_store(p->running->op.cancel, true);
        found = true;
    }
    for (size_t i = 0; !found && i < p->n; i++) {
        struct request *q = p->queue[(p->head + i) % p->cap];
        if (q->ticket == ticket) {
            atomic_store(q->op.cancel, true);
            found = true;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

size_t dg_pipeline_pending(struct dg_pipeline *p) {
    pthread_mutex_lock(&p->lock);
    size_t n = p->n + (p->running != NULL);
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* --- waiting for the answer --- */

struct call {
    dg_event_fn *emit;
    void *ctx;
    struct dg_result *out;
    struct dg_error *err;
    enum dg_status status;
    bool waits;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
};

static void keep_answer(struct call *c, const struct dg_event *e) {
    const struct dg_answer *a = e->answer;
    c->status = a->status;
    if (a->status != DG_OK)
        DG_FAIL(c->err, a->status, "%s", a->error);
    if (!c->out)
        return;
    struct dg_result *o = c->out;
    o->conv = e->conv;
    o->at = e->at;
    o->computed = a->computed;
    o->end = a->end;
    o->stop_id = a->stop_id;
    o->steps = a->steps;
    o->blocks = a->blocks;
    o->fingerprint = a->fingerprint;
    o->route = a->route;
    o->plan = a->proposal.plan;
    if (dg_ids_add(&o->ids, a->ids, (size_t)a->n) != DG_OK && c->status == DG_OK)
        c->status = DG_FAIL(c->err, DG_E_NOMEM, "no memory for the answer's tokens");
}

static void on_call_event(void *ctx, const struct dg_event *e) {
    struct call *c = ctx;
    if (c->emit)
        c->emit(c->ctx, e);
    if (e->kind != DG_EV_ANSWER)
        return;
    keep_answer(c, e);
    if (!c->waits)
        return;
    pthread_mutex_lock(&c->lock);
    c->is_done = true;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
}

enum dg_status dg_stage_call(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx, struct dg_result *out,
                             struct dg_error *err) {
    struct call c = {.emit = emit, .ctx = ctx, .out = out, .err = err, .status = DG_E_INTERNAL};
    dg_stage_exec(s, op, on_call_event, &c);
    return c.status;
}

enum dg_status dg_pipeline_call(struct dg_pipeline *p, const struct dg_op *op, dg_event_fn *emit, void *ctx, struct dg_result *out,
                                struct dg_error *err) {
    if (pthread_equal(pthread_self(), p->thread))
        return DG_FAIL(err, DG_E_INTERNAL, "an event function must not wait for an op");
    struct call c = {.emit = emit, .ctx = ctx, .out = out, .err = err, .waits = true};
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.done, NULL);
    enum dg_status st = dg_pipeline_submit(p, op, false, on_call_event, &c, NULL, err);
    if (st == DG_OK) {
        pthread_mutex_lock(&c.lock);
        while (!c.is_done)
            pthread_cond_wait(&c.done, &c.lock);
        pthread_mutex_unlock(&c.lock);
        st = c.status;
    }
    pthread_cond_destroy(&c.done);
    pthread_mutex_destroy(&c.lock);
    return st;
}
