/* What a session is refused for lack of memory, with which figures, before any of it is taken. */
#include "core/mem.h"
#include "core/meminfo.h"
#include "ops/backends.h"
#include "session/session.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dg_model *model;
static struct dg_backend *be;

static int open_mini(void **unused) {
    (void)unused;
    const char *root = getenv("DG_ROOT");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/models/mini", root ? root : ".");
    return dg_model_open(&model, dir, NULL) != DG_OK || dg_backend_open(&be, "cpu", model, NULL, NULL) != DG_OK;
}

static int close_mini(void **unused) {
    (void)unused;
    dg_mem_pretend(0);
    dg_backend_destroy(be);
    dg_model_close(model);
    return 0;
}

static void what_the_machine_says(void **unused) {
    (void)unused;
    uint64_t v = dg_mem_available();
    assert_true(v > (uint64_t)1 << 20);
    dg_mem_pretend(12345);
    assert_int_equal(dg_mem_available(), 12345);
    dg_mem_pretend(0);
    assert_true(dg_mem_available() > (uint64_t)1 << 20);
}

/* The error for a context, or NULL when it is granted. Owner: the caller. */
static char *refusal(int64_t ctx, enum dg_dtype kv) {
    struct dg_error err = {0};
    struct dg_session *s;
    struct dg_session_opts o = {.ctx = ctx, .kv = kv, .ring = 64};
    enum dg_status st = dg_session_create(&s, be, &o, &err);
    dg_session_destroy(s);
    if (st == DG_OK)
        return NULL;
    assert_int_equal(st, DG_E_NOMEM);
    char *text = strdup(dg_error_text(&err));
    dg_error_clear(&err);
    return text;
}

static void refusals(void **unused) {
    (void)unused;
    int32_t rows = 256;
    size_t planes = dg_planes_bytes(be, rows), full = dg_kv_bytes(&model->cfg, 4096, 64, rows, DG_F16);
    assert_null(refusal(4096, DG_F16)); /* the scratch is there from now on */
    dg_mem_pretend(planes + full);
    assert_null(refusal(4096, DG_F16));
    dg_mem_pretend(planes + full - 1);
    uint64_t before = dg_mem_count();
    char *why = refusal(4096, DG_F16);
    assert_non_null(why);
    assert_true(dg_mem_count() - before < 20); /* the session itself, the scratch, the text */
    assert_non_null(strstr(why, "a context of 4096 needs"));
    assert_non_null(strstr(why, "--kv q8"));
    char *ctx = strstr(why, "--ctx ");
    assert_non_null(ctx);
    int64_t fits = strtoll(ctx + 6, NULL, 10);
    assert_true(fits > model->cfg.canvas && fits < 4096);
    assert_null(refusal(fits, DG_F16));
    assert_null(refusal(4096, DG_Q8));
    free(why);
    dg_mem_pretend(planes);
    why = refusal(4096, DG_Q8);
    assert_non_null(why);
    assert_non_null(strstr(why, "not even the smallest fits"));
    assert_null(strstr(why, "--kv q8"));
    free(why);
    dg_mem_pretend(0);
}

/* 128 Ki tokens in f16 at the shape of the 26B model: the figures of the documentation. */
static void real_shape(void **unused) {
    (void)unused;
    static struct dg_config c = {.layers = 30, .heads = 16, .window = 1024, .canvas = 256};
    for (int l = 0; l < 30; l++)
        c.layer[l] = l % 6 == 5 ? (struct dg_layer_shape){true, 512, 2} : (struct dg_layer_shape){false, 256, 8};
    assert_int_equal(dg_kv_bytes(&c, 131072, 4096, 256, DG_F16), 25ll * 4096 * 8 * 256 * 4 + 5ll * 131072 * 2 * 512 * 4);
    assert_int_equal(dg_kv_bytes(&c, 131072, 4096, 256, DG_Q8), 25ll * 4096 * 8 * 260 * 2 + 5ll * 131072 * 2 * 516 * 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_the_machine_says), cmocka_unit_test(refusals), cmocka_unit_test(real_shape)};
    return cmocka_run_group_tests(tests, open_mini, close_mini);
}
