/* The CPU backend's levels and kernel tables; memory that runs out. What its ops compute is cpu_ops's and ops_test's business. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/half.h"
#include "core/mem.h"
#include "ops/backends.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels.h"

#include <stdlib.h>
#include <string.h>

static struct dg_error err;

static void tables(void **state) {
    (void)state;
    for (int l = 0; l < DG_CPU_LEVELS; l++) {
        if (!dg_cpu_level_here((enum dg_cpu_level)l)) /* even the filling is compiled for the level */
            continue;
        struct dg_cpu_kernels k, again;
        memset(&k, 0xff, sizeof k);
        memset(&again, 0, sizeof again);
        dg_cpu_kernels_init(&k, (enum dg_cpu_level)l);
        dg_cpu_kernels_init(&again, (enum dg_cpu_level)l);
        assert_memory_equal(&k.gemm, &again.gemm, sizeof k.gemm); /* pure: nothing of what was there stays */
        assert_int_equal(k.level, l);
        assert_non_null(k.vec.name);
        for (int i = 0; i < 2; i++) {
            const struct dg_gemm_kind *g = &k.gemm.kind[i];
            assert_in_range(g->cols, 2 * g->nr, DG_GEMM_COLS_MAX);
            assert_int_equal(g->cols % (2 * g->nr), 0); /* gate and up share a panel */
            assert_in_range(g->step, 1, DG_GEMM_STEP_MAX);
            assert_in_range(g->kc, 32, DG_GEMM_KC_MAX);
            assert_int_equal(g->kc % 32, 0);
            assert_int_equal(g->kc % g->step, 0);
            for (int m = 0; m < g->mr && !g->tiles; m++)
                assert_non_null(g->tile[m]);
            assert_true(!g->tiles || (g->put && g->begin && g->end && g->pack_rows[0] && g->pack_rows[1]));
            for (int f = 0; f < DG_FMT_COUNT; f++)
                assert_non_null(g->decode[f]);
            for (int t = 0; t < 2; t++)
                assert_non_null(g->pack[t]);
            assert_int_equal(g->elem, g->raw == DG_FMT_BF16 ? 2 : 4);
            assert_non_null(k.gemm.store[i]);
            assert_non_null(k.gemm.glu[i]);
        }
        /* only levels with bf16 arithmetic round weights; the exact path never does */
        assert_int_equal(k.gemm.kind[0].elem, 4);
        assert_int_equal(k.gemm.kind[1].elem, dg_cpu_level_bf16((enum dg_cpu_level)l) ? 2 : 4);
    }
}

/* Tables against what they are tables of. */
static void nvfp4_values(void **state) {
    (void)state;
    uint8_t row[9] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    uint8_t mat[4] = {0, 0, 0x80, 0x3f}; /* a factor of one */
    for (int s = 0; s < 256; s++) {
        float want[16];
        row[8] = (uint8_t)s;
        dg_format_traits(DG_FMT_NVFP4_BLOCK)->decode_row(mat, row, 16, want);
        for (int c = 0; c < 16; c++) {
            float got = dg_bf16_f32(dg_gemm_nvfp4_bf16[s][c]);
            assert_true(want[c] != want[c] ? got != got : !memcmp(&want[c], &got, sizeof got));
        }
        float top = dg_gemm_e4m3_top[s] * 0x1p25f;
        assert_true(top != top ? dg_gemm_e4m3[s] != dg_gemm_e4m3[s] : !memcmp(&top, &dg_gemm_e4m3[s], sizeof top));
    }
}

static void caps(void **state) {
    (void)state;
    enum dg_cpu_level best = dg_cpu_level_detect(), l = best;
    assert_true(dg_cpu_level_here(best));
    assert_true(dg_cpu_level_here(DG_CPU_SCALAR));
    assert_int_equal(dg_cpu_level_cap(&l, NULL, &err), DG_OK);
    assert_int_equal(l, best);
    assert_int_equal(dg_cpu_level_cap(&l, dg_cpu_level_name(best), &err), DG_OK);
    assert_int_equal(l, best);
    assert_int_equal(dg_cpu_level_cap(&l, "scalar", &err), DG_OK);
    assert_int_equal(l, DG_CPU_SCALAR);
    assert_int_equal(dg_cpu_level_cap(&l, dg_cpu_level_name(best), &err), DG_OK); /* a weaker cap undoes nothing */
    assert_int_equal(l, DG_CPU_SCALAR);
    static const char *const wrong[] = {"", "AVX2", "avx", "scalar ", "avx1024"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(dg_cpu_level_cap(&l, wrong[i], &err), DG_E_ARG);
        assert_non_null(strstr(dg_error_text(&err), "this machine has scalar"));
        dg_error_clear(&err);
    }
    for (int other = 0; other < DG_CPU_LEVELS; other++)
        if (!dg_cpu_level_here((enum dg_cpu_level)other))
            assert_int_equal(dg_cpu_level_cap(&l, dg_cpu_level_name((enum dg_cpu_level)other), &err), DG_E_ARG);
    dg_error_clear(&err);
}

/* What is taken where no level is named. */
static void preferred(void **state) {
    (void)state;
    for (int l = 0; l < DG_CPU_LEVELS; l++) {
        assert_int_equal(dg_cpu_level_prefer((enum dg_cpu_level)l, false), l);
        assert_int_equal(dg_cpu_level_prefer((enum dg_cpu_level)l, true), l == DG_CPU_AVX512BF16 ? DG_CPU_AVX512 : l);
    }
    assert_true(dg_cpu_level_here(dg_cpu_level_default()));
    struct dg_backend *be;
    assert_int_equal(dg_backend_open(&be, "cpu", &(struct dg_model){.cfg = {.vocab = 8}}, &(struct dg_backend_opts){.threads = 1}, &err), DG_OK);
    assert_int_equal(dg_cpu_backend_level(be), dg_cpu_level_default());
    dg_backend_destroy(be);
    /* by name the strongest is to be had, whatever is preferred */
    struct dg_backend_opts o = {.threads = 1, .cpu = {dg_cpu_level_name(dg_cpu_level_detect())}};
    assert_int_equal(dg_backend_open(&be, "cpu", &(struct dg_model){.cfg = {.vocab = 8}}, &o, &err), DG_OK);
    assert_int_equal(dg_cpu_backend_level(be), dg_cpu_level_detect());
    dg_backend_destroy(be);
}

static const struct dg_model shape = {.cfg = {.vocab = 1000, .hidden = 64, .experts = 4, .topk = 2, .moe = 32}};
static const struct dg_reserve some = {.rows = 32, .ctx = 256, .k_max = 128, .topk = 2, .experts = 4, .moe = 32, .hidden = 64};

static void planes(void **state) {
    (void)state;
    static const struct {
        bool exact, bf16;
        const char *cap;
    } cases[] = {{true, false, NULL}, {false, true, NULL}, {false, true, "scalar"}, {false, false, "scalar"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dg_backend *be;
        struct dg_backend_opts o = {.threads = 1, .exact = cases[i].exact, .bf16_planes = cases[i].bf16, .cpu = {NULL, cases[i].cap}};
        assert_int_equal(dg_backend_open(&be, "cpu", &shape, &o, &err), DG_OK);
        assert_int_equal(be->ops->act, cases[i].bf16 ? DG_BF16 : DG_F32);
        assert_string_equal(be->ops->name, "cpu");
        if (cases[i].cap)
            assert_int_equal(dg_cpu_backend_level(be), DG_CPU_SCALAR);
        char text[200];
        dg_cpu_describe(be, text, sizeof text);
        assert_non_null(strstr(text, cases[i].cap ? "products scalar" : "products "));
        dg_backend_destroy(be);
    }
}

/* Every allocation of opening and of growing the scratch fails once; what was there before still works. */
static void memory_runs_out(void **state) {
    (void)state;
    struct dg_backend *be;
    struct dg_cpu_opts o = {.threads = 2, .cap = dg_cpu_level_detect()};
    enum dg_status st = DG_E_NOMEM;
    uint64_t n = 1;
    for (; st != DG_OK && n < 100; n++) {
        dg_mem_fail_at(n);
        st = dg_cpu_create(&be, &shape, &o, &err);
        dg_mem_fail_at(0);
        if (st != DG_OK) {
            assert_int_equal(st, DG_E_NOMEM);
            assert_null(be);
            dg_error_clear(&err);
        }
    }
    assert_in_range(n, 3, 50);
    assert_int_equal(dg_backend_reserve(be, &some, &err), DG_OK);
    struct dg_reserve more = some;
    more.rows = 64;
    for (st = DG_E_NOMEM, n = 1; st != DG_OK && n < 100; n++) {
        dg_mem_fail_at(n);
        st = dg_backend_reserve(be, &more, &err);
        dg_mem_fail_at(0);
        if (st != DG_OK) {
            assert_int_equal(st, DG_E_NOMEM);
            dg_error_clear(&err);
        }
        struct dg_plane x = dg_plane_alloc(be, be->ops->act, 32, 64), y = dg_plane_alloc(be, be->ops->act, 32, 64);
        uint16_t w[64 * 64] = {0};
        struct dg_mat m = {DG_FMT_BF16, 64, 64, (const uint8_t *)w, 0};
        const struct dg_mat *list = &m;
        be->ops->linear(be, &x, &list, 1, DG_EPI_NONE, &y);
        assert_int_equal(dg_backend_status(be, &err), DG_OK);
        dg_plane_free(be, &x);
        dg_plane_free(be, &y);
    }
    assert_in_range(n, 10, 60);
    dg_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables),    cmocka_unit_test(nvfp4_values), cmocka_unit_test(caps),
                                       cmocka_unit_test(preferred), cmocka_unit_test(planes),       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
