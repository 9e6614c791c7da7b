/* The bundled model on the CPU: open, prefill, denoise step, and a whole `ask` from process start to exit. */
#include "ops/backends.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPEATS 9
#define PROMPT 256

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void row(const char *what, double figure, const char *unit) { printf("%s,%.4g,%s,make bench\n", what, figure, unit); }

static int fail(struct dg_error *err) {
    fprintf(stderr, "bench mini: %s\n", dg_error_text(err));
    return 1;
}

static double ask_once(void) {
    fflush(NULL); /* or the child would print what is buffered again */
    double t = now();
    pid_t p = fork();
    if (p == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(1);
        execl("build/diffgemma", "diffgemma", "ask", "-m", "models/mini", "-p", "What is the capital of Norway?", (char *)NULL);
        _exit(127);
    }
    int status = 1;
    waitpid(p, &status, 0);
    return status ? -1 : now() - t;
}

int main(void) {
    struct dg_error err = {0};
    struct dg_model *m = NULL;
    struct dg_backend *be = NULL;
    struct dg_session *s = NULL;
    double t[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        dg_model_close(m);
        double start = now();
        if (dg_model_open(&m, "models/mini", &err) != DG_OK)
            return fail(&err);
        t[i] = now() - start;
    }
    row("mini open", median(t, REPEATS) * 1e3, "ms");
    struct dg_backend_opts bo = {0};
    struct dg_session_opts so = {.kv = DG_F16, .sc_sparse = true, .chunk = PROMPT};
    if (dg_backend_open(&be, "cpu", m, &bo, &err) != DG_OK || dg_session_create(&s, be, &so, &err) != DG_OK)
        return fail(&err);
    int32_t ids[PROMPT], canvas[4096];
    for (int i = 0; i < PROMPT; i++)
        ids[i] = 300 + i;
    for (int i = 0; i < m->cfg.canvas; i++)
        canvas[i] = 1000 + i;
    for (int i = 0; i < REPEATS; i++) {
        if (dg_session_rewind(s, 0, NULL, NULL, &err) != DG_OK)
            return fail(&err);
        double start = now();
        if (dg_session_extend(s, ids, PROMPT, NULL, NULL, &err) != DG_OK)
            return fail(&err);
        t[i] = now() - start;
    }
    row("mini prefill 256", PROMPT / median(t, REPEATS), "tok/s");
    if (dg_session_step(s, canvas, m->cfg.canvas, DG_SC_SEED, 1.25f, &err) != DG_OK)
        return fail(&err);
    for (int i = 0; i < REPEATS; i++) {
        double start = now();
        if (dg_session_step(s, canvas, m->cfg.canvas, DG_SC_SOFT, 1.25f, &err) != DG_OK)
            return fail(&err);
        t[i] = now() - start;
    }
    row("mini step at context 256", median(t, REPEATS) * 1e3, "ms");
    for (int i = 0; i < REPEATS; i++)
        if ((t[i] = ask_once()) < 0) {
            fprintf(stderr, "bench mini: build/diffgemma ask failed\n");
            return 1;
        }
    row("mini ask from start to exit", median(t, REPEATS), "s");
    dg_session_destroy(s);
    dg_backend_destroy(be);
    dg_model_close(m);
    return 0;
}
