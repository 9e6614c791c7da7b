/* What the type of the KV cache costs in logits: the bundled model at several lengths, f16 and q8 against f32. Prints the figures. */
#include "ops/backends.h"
#include "ops/kv_q8.h"
#include "sampler/rng.h"
#include "session/session.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__ /* the same code at fewer lengths, not a quarter of an hour */
#define LENGTHS 2
#define PROMPTS 2
#else
#define LENGTHS 4
#define PROMPTS 12
#endif

static struct dg_model *model;
static struct dg_backend *be;
static json_t *turns, *cases;

static int open_mini(void **unused) {
    (void)unused;
    const char *root = getenv("DG_ROOT");
    char dir[4096];
    struct dg_backend_opts o = {.exact = true};
    snprintf(dir, sizeof dir, "%s/tests/data/turns_open.json", root ? root : ".");
    turns = json_load_file(dir, 0, NULL);
    cases = json_object_get(turns, "cases");
    snprintf(dir, sizeof dir, "%s/models/mini", root ? root : ".");
    return !json_array_size(cases) || dg_model_open(&model, dir, NULL) != DG_OK || dg_backend_open(&be, "cpu", model, &o, NULL) != DG_OK;
}

static int close_mini(void **unused) {
    (void)unused;
    dg_backend_destroy(be);
    dg_model_close(model);
    json_decref(turns);
    return 0;
}

/* Logits of a first step after n tokens of the file's prompts, one after another, the last of them case `which`. */
static float *logits(enum dg_dtype type, size_t n, size_t which) {
    const struct dg_config *c = &model->cfg;
    struct dg_error err = {0};
    struct dg_session *s;
    struct dg_session_opts o = {.kv = type, .ctx = c->ctx_max};
    int32_t *ids = calloc(n, sizeof *ids), canvas[DG_CANVAS_MAX];
    for (size_t left = n, k = which + json_array_size(cases); left; k--) {
        const json_t *prompt = json_object_get(json_array_get(cases, k % json_array_size(cases)), "prompt_ids");
        for (size_t i = json_array_size(prompt); i && left; i--)
            ids[--left] = (int32_t)json_integer_value(json_array_get(prompt, i - 1));
    }
    struct dg_rng rng;
    dg_rng_init(&rng, which);
    for (int32_t i = 0; i < c->canvas; i++)
        canvas[i] = dg_rng_id(&rng, c->vocab);
    assert_int_equal(dg_session_create(&s, be, &o, &err), DG_OK);
    assert_int_equal(dg_session_extend(s, ids, n, NULL, NULL, &err), DG_OK);
    assert_int_equal(dg_session_step(s, canvas, c->canvas, DG_SC_SEED, 1, &err), DG_OK);
    size_t values = (size_t)c->canvas * (size_t)c->vocab;
    float *z = malloc(values * sizeof *z);
    memcpy(z, s->planes->logits.data, values * sizeof *z);
    dg_session_destroy(s);
    free(ids);
    return z;
}

/* KL(p || q) of two rows of logits, in nats. */
static double kl(const float *p, const float *q, int32_t n) {
    double mp = -INFINITY, mq = -INFINITY, sp = 0, sq = 0, d = 0;
    for (int32_t v = 0; v < n; v++) {
        mp = fmax(mp, (double)p[v]);
        mq = fmax(mq, (double)q[v]);
    }
    for (int32_t v = 0; v < n; v++) {
        sp += exp((double)p[v] - mp);
        sq += exp((double)q[v] - mq);
    }
    for (int32_t v = 0; v < n; v++)
        d += exp((double)p[v] - mp) / sp * ((double)p[v] - mp - log(sp) - (double)q[v] + mq + log(sq));
    return d;
}

struct cost {
    double mean, worst;
    int rows, same;
};

static void add(struct cost *sum, const float *exact, const float *z) {
    const struct dg_config *c = &model->cfg;
    for (int32_t i = 0; i < c->canvas; i++) {
        const float *a = exact + (int64_t)i * c->vocab, *b = z + (int64_t)i * c->vocab;
        int32_t best_a = 0, best_b = 0;
        for (int32_t v = 0; v < c->vocab; v++) {
            assert_true(isfinite(b[v]));
            best_a = a[v] > a[best_a] ? v : best_a;
            best_b = b[v] > b[best_b] ? v : best_b;
        }
        double d = kl(a, b, c->vocab);
        sum->same += best_a == best_b;
        sum->mean += d;
        sum->worst = fmax(sum->worst, d);
        sum->rows++;
    }
}

static void cost(void **unused) {
    (void)unused;
    const size_t lengths[] = {60, 400, 1500, (size_t)(model->cfg.ctx_max - model->cfg.canvas)};
    static const enum dg_dtype types[] = {DG_F16, DG_Q8};
    static const double most[] = {1e-4, 5e-2};
    for (int l = 0; l < LENGTHS; l++) {
        struct cost sum[2] = {{0}};
        for (size_t which = 0; which < (l < 2 ? PROMPTS : 3); which++) {
            float *exact = logits(DG_F32, lengths[l], which);
            for (int t = 0; t < 2; t++) {
                float *z = logits(types[t], lengths[l], which);
                add(&sum[t], exact, z);
                free(z);
            }
            free(exact);
        }
        for (int t = 0; t < 2; t++) {
            print_message("# %s KV after %zu tokens: KL mean %.2e, worst row %.2e nats, %d of %d rows with the same first token\n",
                          t ? "q8" : "f16", lengths[l], sum[t].mean / sum[t].rows, sum[t].worst, sum[t].same, sum[t].rows);
            assert_true(sum[t].mean / sum[t].rows < most[t]);
        }
    }
}

static void eight_bits(void **unused) {
    (void)unused;
    struct {
        float scale;
        int8_t q[8];
    } head;
    float x[5] = {1, -2, 0.5f, 127.0f / 64, -0.01f}, y[5];
    assert_int_equal(dg_kv_head_bytes(DG_Q8, 5), sizeof head);
    dg_kv_q8_store(x, 5, &head);
    assert_true(head.scale == 2.0f / 127 && head.q[0] == 64 && head.q[1] == -127 && head.q[3] == 126 && head.q[5] == 0);
    dg_kv_q8_load(&head, 5, y);
    for (int i = 0; i < 5; i++)
        assert_true(fabsf(y[i] - x[i]) <= head.scale * 0.501f);
    const float nothing[5] = {0, -0.0f, 1e-44f, 0, 0}, lost[5] = {1, NAN, 2, 3, 4}, infinite[5] = {1, 2, -INFINITY, 3, 4};
    dg_kv_q8_store(nothing, 5, &head);
    dg_kv_q8_load(&head, 5, y);
    for (int i = 0; i < 5; i++)
        assert_true(y[i] == 0);
    dg_kv_q8_store(lost, 5, &head);
    dg_kv_q8_load(&head, 5, y);
    assert_true(isnan(y[0]) && isnan(y[4]));
    dg_kv_q8_store(infinite, 5, &head);
    dg_kv_q8_load(&head, 5, y);
    assert_true(isnan(y[0]) && isnan(y[2]));
}

static void refused(void **unused) {
    (void)unused;
    struct dg_error err = {0};
    struct dg_kv kv;
    const struct dg_ops *ops = be->ops;
    struct dg_ops without = *ops;
    without.kv_q8 = false;
    be->ops = &without;
    assert_int_equal(dg_kv_init(&kv, be, 256, 64, 64, DG_Q8, &err), DG_E_UNSUPPORTED);
    assert_non_null(strstr(dg_error_text(&err), "use --kv f16"));
    dg_error_clear(&err);
    be->ops = ops;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(eight_bits), cmocka_unit_test(refused), cmocka_unit_test(cost)};
    return cmocka_run_group_tests(tests, open_mini, close_mini);
}
