#include "core/pool.h"

#include "core/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

struct worker {
    struct dg_pool *pool;
    int part;
    pthread_t thread;
};

struct dg_pool {
    int n_threads, n_started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    dg_pool_fn *fn;
    void *arg;
    uint64_t job;  /* number of the current job; a worker runs each once */
    int n_running; /* workers still in the current job */
    bool quit;
    struct worker workers[DG_POOL_THREADS_MAX];
};

static void *work(void *p) {
    struct worker *w = p;
    struct dg_pool *pool = w->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->quit && pool->job == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->quit)
            break;
        seen = pool->job;
        dg_pool_fn *fn = pool->fn;
        void *arg = pool->arg;
        pthread_mutex_unlock(&pool->lock);
        fn(arg, w->part, pool->n_threads);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_running == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > DG_POOL_THREADS_MAX ? DG_POOL_THREADS_MAX : n;
}

enum dg_status dg_pool_create(struct dg_pool **out, int n_threads, struct dg_error *err) {
    *out = NULL;
    if (n_threads == 0)
        n_threads = usable_cpus();
    if (n_threads < 0 || n_threads > DG_POOL_THREADS_MAX)
        return DG_FAIL(err, DG_E_ARG, "%d threads: give 1 to %d", n_threads, DG_POOL_THREADS_MAX);
    struct dg_pool *p = dg_calloc(1, sizeof *p);
    if (!p)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the thread pool");
    p->n_threads = n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->part = i;
        int e = pthread_create(&w->thread, NULL, work, w);
        if (e) {
            dg_pool_destroy(p);
            return DG_FAIL(err, DG_E_NOMEM, "cannot start thread %d of %d: %s", i + 1, n_threads, strerror(e));
        }
        p->n_started = i;
    }
    *out = p;
    return DG_OK;
}

void dg_pool_destroy(struct dg_pool *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    dg_free(p);
}

int dg_pool_threads(const struct dg_pool *p) { return p ? p->n_threads : 1; }

void dg_pool_run(struct dg_pool *p, dg_pool_fn *fn, void *arg) {
    if (!p || p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n_running = p->n_threads - 1;
    p->job++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    fn(arg, 0, p->n_threads);
    pthread_mutex_lock(&p->lock);
    while (p->n_running)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
