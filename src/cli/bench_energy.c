/* bench step --energy: what the card draws while one op, or the step, runs over and over. */
#include "cli/bench.h"

#include "ops/cuda/cuda.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define POLL 1e-3        /* seconds between two looks at the counter */
#define SAMPLE 10e-3     /* and at the power */
#define STANDS_STILL 2.0 /* a counter that has not moved for so long does not count */
#define POWER_MEAN 1.0   /* seconds that a card's power may be a mean of */
#define PIECE_MS 2.0     /* of device time that a recording takes at least */
#define PIECE_CALLS 1024 /* of an op, at most, that it holds */
#define AHEAD_MS 20.0    /* of device time that is always queued: longer than a call of NVML takes */
#define AHEAD_MAX 32
enum { MARK_FROM = 2, MARK_TO, MARK_PIECE }; /* the first two are those of dg_bench_time */

/* ---- reading the card, in a thread of its own ---- */

enum phase { WARMING, WITHIN, ENDED };

struct meter {
    const struct dg_nvml *nvml;
    double warm, seconds; /* before and of the measure */
    atomic_int phase;
    atomic_bool stop;
    /* once the thread has ended: */
    double s, joules;
    uint32_t mhz; /* in the middle */
    enum dg_status st;
    struct dg_error err;
};

static void nap(double s) { nanosleep(&(struct timespec){(time_t)s, (long)((s - floor(s)) * 1e9)}, NULL); }

static enum dg_status wait_until(struct meter *m, double t) {
    for (double left; (left = t - dg_now()) > 0;) {
        if (atomic_load(&m->stop))
            return DG_FAIL(&m->err, DG_E_CANCELLED, "stopped");
        nap(fmin(left, SAMPLE));
    }
    return DG_OK;
}

/* The counter at its next change. What it says holds for that moment alone. */
static enum dg_status next_change(struct meter *m, uint64_t *mj, double *t) {
    uint64_t before;
    double start = dg_now();
    DG_TRY(dg_nvml_energy(m->nvml, &before, &m->err));
    do {
        DG_TRY(wait_until(m, dg_now() + POLL));
        DG_TRY(dg_nvml_energy(m->nvml, mj, &m->err));
        *t = dg_now();
        if (*t - start > STANDS_STILL)
            return DG_FAIL(&m->err, DG_E_BACKEND, "the card's energy counter did not move for %.1f s", *t - start);
    } while (*mj == before);
    return DG_OK;
}

static enum dg_status by_counter(struct meter *m) {
    uint64_t from, to;
    double begin, end;
    DG_TRY(next_change(m, &from, &begin));
    atomic_store(&m->phase, WITHIN);
    DG_TRY(wait_until(m, begin + m->seconds / 2));
    m->mhz = dg_nvml_clock(m->nvml);
    DG_TRY(wait_until(m, begin + m->seconds));
    DG_TRY(next_change(m, &to, &end));
    if (to <= from)
        return DG_FAIL(&m->err, DG_E_BACKEND, "the card's energy counter went from %llu to %llu mJ", (unsigned long long)from,
                       (unsigned long long)to);
    m->s = end - begin;
    m->joules = (double)(to - from) / 1e3;
    return DG_OK;
}

static enum dg_status by_power(struct meter *m) {
    double begin = dg_now(), sum = 0, now;
    int n = 0;
    atomic_store(&m->phase, WITHIN);
    do {
        uint32_t mw;
        DG_TRY(dg_nvml_power(m->nvml, &mw, &m->err));
        sum += mw;
        n++;
        DG_TRY(wait_until(m, dg_now() + SAMPLE));
        now = dg_now();
        if (!m->mhz && now - begin > m->seconds / 2)
            m->mhz = dg_nvml_clock(m->nvml);
    } while (now - begin < m->seconds);
    if (sum <= 0)
        return DG_FAIL(&m->err, DG_E_BACKEND, "the card says that it draws no power");
    m->s = now - begin;
    m->joules = sum / n / 1e3 * m->s;
    return DG_OK;
}

static void *measure(void *arg) {
    struct meter *m = arg;
    m->st = wait_until(m, dg_now() + m->warm);
    if (m->st == DG_OK)
        m->st = m->nvml->counts ? by_counter(m) : by_power(m);
    atomic_store(&m->phase, ENDED);
    return NULL;
}

/* ---- keeping the card at work ---- */

struct load {
    struct dg_bench_rig *b;
    dg_bench_fn *fn; /* NULL: nothing is run */
    void *ctx;
    struct dg_cuda_graph *graph; /* so many calls of fn, or NULL: fn itself is a piece */
    int64_t calls;
    int64_t issued; /* pieces; each but the last `ahead` has ended */
    int ahead;
};

/* Recorded, since the host needs longer to launch a short op than the card to run it; what ops take from the device's record was set by the call
 * before. */
static enum dg_status record(struct load *l, struct dg_error *err) {
    struct dg_backend *be = l->b->r.be;
    DG_TRY(l->fn(l->ctx, err));
    DG_TRY(dg_cuda_graph_begin(be, err));
    enum dg_status st = DG_OK;
    for (int64_t i = 0; i < l->calls && st == DG_OK; i++)
        st = l->fn(l->ctx, err);
    enum dg_status ended = dg_cuda_graph_end(be, &l->graph, st == DG_OK ? err : NULL);
    return st == DG_OK ? ended : st;
}

static enum dg_status run_piece(struct load *l, struct dg_error *err) {
    struct dg_backend *be = l->b->r.be;
    int mark = MARK_PIECE + (int)(l->issued % l->ahead);
    if (dg_bench_cancelled(l->b))
        return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
    if (!l->fn) {
        nap(SAMPLE);
        return DG_OK;
    }
    if (l->issued >= l->ahead)
        dg_cuda_wait(be, mark);
    if (l->graph)
        dg_cuda_graph_launch(be, l->graph);
    else
        DG_TRY(l->fn(l->ctx, err));
    dg_cuda_mark(be, mark);
    l->issued++;
    return dg_backend_status(be, err);
}

/* Until the meter has ended. Pieces that were queued while it measured, and their milliseconds from the first one's start to the last one's end. */
static enum dg_status keep_busy(struct load *l, struct meter *m, int64_t *pieces, double *ms, struct dg_error *err) {
    struct dg_backend *be = l->b->r.be;
    int64_t first = -1;
    enum dg_status st = DG_OK;
    for (int phase; st == DG_OK && (phase = atomic_load(&m->phase)) != ENDED; st = run_piece(l, err))
        if (phase == WITHIN && first < 0) {
            first = l->issued;
            dg_cuda_mark(be, MARK_FROM);
        }
    dg_cuda_mark(be, MARK_TO);
    dg_cuda_wait(be, MARK_TO); /* nothing goes while it is under way */
    *pieces = first < 0 ? 0 : l->issued - first;
    *ms = *pieces ? (double)dg_cuda_elapsed(be, MARK_FROM, MARK_TO) : 0;
    return st == DG_OK ? dg_backend_status(be, err) : st;
}

static enum dg_status run_metered(struct load *l, struct meter *m, int64_t *pieces, double *ms, struct dg_error *err) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, measure, m) != 0)
        return DG_FAIL(err, DG_E_NOMEM, "no thread to read the card's energy with");
    enum dg_status st = keep_busy(l, m, pieces, ms, err);
    atomic_store(&m->stop, true);
    pthread_join(thread, NULL);
    if (st == DG_OK && m->st != DG_OK)
        st = DG_FAIL(err, m->st, "%s", dg_error_text(&m->err));
    if (st == DG_OK && l->fn && !*pieces)
        st = DG_FAIL(err, DG_E_ARG, "no call began and ended within %.2f s: give more seconds", m->s);
    dg_error_clear(&m->err);
    return st;
}

static void row(const struct dg_bench_rig *b, const char *what, int64_t launches, double ms, const struct meter *m) {
    FILE *f = b->o->out;
    double watts = m->joules / m->s;
    if (launches)
        fprintf(f, "# energy,%s,%lld,%.6f,%.3f,%.5f", what, (long long)launches, ms / (double)launches, watts, watts * ms / (double)launches);
    else
        fprintf(f, "# energy,%s,,,%.3f,", what, watts);
    fprintf(f, ",%.6f,%.4f,", m->s, m->joules);
    if (m->mhz)
        fprintf(f, "%u", m->mhz);
    fputc('\n', f);
    fflush(f);
}

/* ---- for the benches ---- */

enum dg_status dg_bench_energy_open(struct dg_bench_rig *b, struct dg_error *err) {
    enum dg_status st = b->o->energy > 0 ? dg_nvml_open(&b->nvml, err) : DG_OK;
    if (st != DG_OK)
        dg_error_prefix(err, "--energy needs the driver's libnvidia-ml.so.1");
    return st;
}

enum dg_status dg_bench_energy_begin(struct dg_bench_rig *b, struct dg_error *err) {
    char bus[32];
    if (b->o->energy <= 0)
        return DG_OK;
    DG_TRY(dg_cuda_bus_id(b->r.be, bus, sizeof bus, err));
    enum dg_status st = dg_nvml_choose(&b->nvml, bus, err);
    if (st != DG_OK) {
        dg_error_prefix(err, "--energy");
        return st;
    }
    fprintf(b->o->out, "# energy of the card %s: %s; %.2f s each\n# energy,what,launches,ms_each,W,mJ_each,s,J,SM_MHz\n", bus,
            b->nvml.counts ? "its counter, from one change to another" : "samples of its power, for it has no counter", b->o->energy);
    return DG_OK;
}

enum dg_status dg_bench_energy(struct dg_bench_rig *b, const char *what, const struct dg_bench_load *run, struct dg_error *err) {
    struct load l = {.b = b, .fn = run->fn, .ctx = run->ctx, .calls = 1, .ahead = 2};
    struct meter m = {.nvml = &b->nvml, .seconds = b->o->energy, .warm = b->o->energy / 4};
    enum dg_status st = DG_OK;
    int64_t pieces = 0;
    double ms = 0;
    if (b->o->energy <= 0)
        return DG_OK;
    if (!b->nvml.counts)
        m.warm = fmax(m.warm, POWER_MEAN);
    if (run->fn) {
        double each = run->ms > 1e-3 ? run->ms : 1e-3;
        if (run->record)
            l.calls = (int64_t)fmax(1, fmin(ceil(PIECE_MS / each), PIECE_CALLS / (double)run->n));
        l.ahead = (int)fmax(2, fmin(ceil(AHEAD_MS / (each * (double)l.calls)), AHEAD_MAX));
    }
    DG_GO(run->record ? record(&l, err) : DG_OK);
    DG_GO(run_metered(&l, &m, &pieces, &ms, err));
    row(b, what, pieces * l.calls * run->n, ms, &m);
done:
    dg_cuda_graph_destroy(b->r.be, l.graph);
    if (st != DG_OK && st != DG_E_CANCELLED)
        dg_error_prefix(err, "--energy, %s", what);
    return st;
}
