#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/flags.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dg_flags f;
static struct dg_error err;

static int fresh(void **state) {
    (void)state;
    memset(&err, 0, sizeof err);
    dg_flags_default(&f);
    return 0;
}

static int drop(void **state) {
    (void)state;
    dg_flags_deinit(&f);
    dg_error_clear(&err);
    return 0;
}

#define LOAD(...) dg_flags_load(&f, (const char *const[]){__VA_ARGS__, NULL}, &err)

static void defaults(void **state) {
    (void)state;
    assert_true(f.attn_window && f.attn_topk && f.attn_topk_dyn && f.attn_topk_decode);
    assert_int_equal(f.attn_topk_k, 64);
    assert_true(f.commit_conf_trim == 0.9 && f.commit_conf_hard == 0);
    assert_false(f.continue_past_stop || f.ws_block_stop || f.freeze || f.reference_stops);
    assert_true(f.denoiser_argmax && f.sc_sparse);
    assert_true(f.early_stop_mean_ent == 0.05);
    assert_int_equal(f.empty_reply_retry, 3);
    assert_int_equal(f.first_step_sc, DG_FIRST_STEP_SEED);
    assert_int_equal(f.kv_ring, 4096);
    assert_null(f.hf_home);
    assert_null(f.model);
    assert_null(f.cuda_kernels);
    assert_null(f.trace_pmax_jsonl);
    assert_null(f.delim_check_jsonl);
    assert_true(f.kv_reuse);
    assert_false(f.tool_validate || f.tool_repair || f.delim_check);
}

static void fast_prefill_spellings(void **state) {
    (void)state;
    assert_int_equal(f.fast_prefill, DG_FAST_PREFILL_UNSET);
    assert_int_equal(LOAD("DGQ_FAST_PREFILL=0"), DG_OK);
    assert_int_equal(f.fast_prefill, DG_FAST_PREFILL_0);
    assert_int_equal(LOAD("DGQ_FAST_PREFILL=1"), DG_OK);
    assert_int_equal(f.fast_prefill, DG_FAST_PREFILL_1);
    assert_int_equal(LOAD("DGQ_FAST_PREFILL=2"), DG_E_ARG);
}

/* Every switch, each with a valid value that is not its default. */
static void every_flag_loads(void **state) {
    (void)state;
    assert_int_equal(LOAD("DGQ_ATTN_WINDOW=0", "DGQ_ATTN_TOPK=0", "DGQ_ATTN_TOPK_DYN=0", "DGQ_ATTN_TOPK_K=128",
                          "DGQ_ATTN_TOPK_DECODE=0", "DGQ_COMMIT_CONF_TRIM=0.5", "DGQ_COMMIT_CONF_HARD=.25",
                          "DGQ_CONTINUE_PAST_STOP=1", "DGQ_WS_BLOCK_STOP=1", "DGQ_DENOISER_ARGMAX=0", "DGQ_FREEZE=1",
                          "DGQ_EARLY_STOP_MEAN_ENT=1e-1", "DGQ_EMPTY_REPLY_RETRY=0", "DGQ_REFERENCE_STOPS=1",
                          "DGQ_FIRST_STEP_SC=none", "DGQ_SC_SPARSE=0", "DGQ_KV_RING=2048", "DGQ_KV_Q8=1", "DGQ_CHECK_LOGITS=0",
                          "DGQ_FAST_PREFILL=auto", "DGQ_FAST_PREFILL_MAX=900", "DGQ_HF_HOME=/a b",
                          "DGQ_MODEL=org/name", "DGQ_TRACE_PMAX_JSONL=t", "DGQ_KV_REUSE=0", "DGQ_TOOL_VALIDATE=1",
                          "DGQ_TOOL_REPAIR=1", "DGQ_DELIM_CHECK=1", "DGQ_DELIM_CHECK_JSONL=d", "DGQ_CPU=avx2", "DGQ_CUDA_KERNELS=head"),
                     DG_OK);
    assert_true(!f.attn_window && !f.attn_topk && !f.attn_topk_dyn && !f.attn_topk_decode);
    assert_int_equal(f.attn_topk_k, 128);
    assert_true(f.commit_conf_trim == 0.5 && f.commit_conf_hard == 0.25 && f.early_stop_mean_ent == 0.1);
    assert_true(f.continue_past_stop && f.ws_block_stop && f.freeze && f.reference_stops);
    assert_false(f.denoiser_argmax || f.sc_sparse);
    assert_int_equal(f.empty_reply_retry, 0);
    assert_int_equal(f.first_step_sc, DG_FIRST_STEP_NONE);
    assert_int_equal(f.kv_ring, 2048);
    assert_true(f.kv_q8 && !f.check_logits);
    assert_true(f.fast_prefill == DG_FAST_PREFILL_AUTO && f.fast_prefill_max == 900);
    assert_string_equal(f.hf_home, "/a b");
    assert_string_equal(f.model, "org/name");
    assert_string_equal(f.trace_pmax_jsonl, "t");
    assert_string_equal(f.delim_check_jsonl, "d");
    assert_string_equal(f.cpu, "avx2");
    assert_string_equal(f.cuda_kernels, "head");
    assert_true(!f.kv_reuse && f.tool_validate && f.tool_repair && f.delim_check);
    size_t n = 0;
    struct dg_flag_info v;
    while (dg_flags_info(n, &v))
        n++;
    assert_int_equal(n, 31); /* as many as the list above: a new flag must be added there */
}

static void empty_means_unset_and_later_wins(void **state) {
    (void)state;
    assert_int_equal(LOAD("DGQ_MODEL=a", "DGQ_MODEL=b", "DGQ_FREEZE=", "DGQ_KV_RING=", "DGQ_NOT_A_FLAG=", "DGQ_MODEL=", "PATH=/x",
                          "DGQ=1", "XDGQ_FREEZE=9", "DGQ_FREEZE"),
                     DG_OK);
    assert_string_equal(f.model, "b");
    assert_false(f.freeze);
    assert_int_equal(f.kv_ring, 4096);
    assert_int_equal(dg_flags_load(&f, NULL, &err), DG_OK);
    assert_int_equal(LOAD("DGQ_FIRST_STEP_SC=none"), DG_OK);
    assert_int_equal(LOAD("DGQ_FIRST_STEP_SC=seed"), DG_OK);
    assert_int_equal(f.first_step_sc, DG_FIRST_STEP_SEED);
}

static void invalid_values(void **state) {
    (void)state;
    static const char *const bad[] = {
        "FREEZE=2",
        "FREEZE=true",
        "FREEZE= 1",
        "FREEZE=1 ",
        "FREEZE=01",
        "ATTN_TOPK_K=0",
        "ATTN_TOPK_K=4097",
        "ATTN_TOPK_K=64x",
        "ATTN_TOPK_K=6.4",
        "ATTN_TOPK_K= 64",
        "ATTN_TOPK_K=0x40",
        "ATTN_TOPK_K=-1",
        "ATTN_TOPK_K=99999999999999999999",
        "ATTN_TOPK_K=-",
        "KV_RING=4095",
        "KV_RING=8",
        "KV_RING=33554432",
        "EMPTY_REPLY_RETRY=17",
        "COMMIT_CONF_TRIM=1.01",
        "COMMIT_CONF_TRIM=-0.1",
        "COMMIT_CONF_TRIM=nan",
        "COMMIT_CONF_TRIM=inf",
        "COMMIT_CONF_TRIM=0x1p-1",
        "COMMIT_CONF_TRIM=0,9",
        "COMMIT_CONF_TRIM=0.9f",
        "COMMIT_CONF_TRIM=.",
        "COMMIT_CONF_TRIM=1e",
        "COMMIT_CONF_TRIM=1e999",
        "COMMIT_CONF_TRIM=+",
        "EARLY_STOP_MEAN_ENT=17",
        "FIRST_STEP_SC=Seed",
        "FIRST_STEP_SC=see",
        "FIRST_STEP_SC=seed|none",
        "FIRST_STEP_SC=|",
        "EMPTY_REPLY_RETRY=2147483648",
    };
    struct dg_flags before = f;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char entry[128], name[64];
        snprintf(entry, sizeof entry, "DGQ_%s", bad[i]);
        if (LOAD(entry) != DG_E_ARG)
            fail_msg("%s is accepted", entry);
        snprintf(name, sizeof name, "%.*s is '", (int)strcspn(entry, "="), entry);
        if (!strstr(dg_error_text(&err), name))
            fail_msg("%s: the error does not name it: %s", entry, dg_error_text(&err));
        assert_memory_equal(&f, &before, sizeof f);
    }
    static const char *const good[] = {"COMMIT_CONF_TRIM=1",    "COMMIT_CONF_TRIM=0.",  "COMMIT_CONF_TRIM=9e-1",
                                       "COMMIT_CONF_TRIM=+0.9", "COMMIT_CONF_TRIM=-0",  "ATTN_TOPK_K=+64",
                                       "ATTN_TOPK_K=0064",      "EARLY_STOP_MEAN_ENT=0"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char entry[128];
        snprintf(entry, sizeof entry, "DGQ_%s", good[i]);
        if (LOAD(entry) != DG_OK)
            fail_msg("%s: %s", entry, dg_error_text(&err));
    }
}

static void every_offender_is_named(void **state) {
    (void)state;
    char longv[DG_FLAGS_TEXT_MAX + 64] = "DGQ_HF_HOME=";
    memset(longv + 12, 'q', DG_FLAGS_TEXT_MAX + 1);
    assert_int_equal(LOAD("DGQ_FREZE=1", "DGQ_KV_RING=5000", "DGQ_WS_BLOCK_STOP=1", "DGQ_FIRST_STEP_SC=maybe\n", longv),
                     DG_E_ARG);
    const char *text = dg_error_text(&err);
    assert_non_null(strstr(text, "DGQ_FREZE is not a switch (closest: DGQ_FREEZE)"));
    assert_non_null(strstr(text, "DGQ_KV_RING is '5000' but must be 16..16777216, a power of two (int)"));
    assert_non_null(strstr(text, "DGQ_FIRST_STEP_SC is 'maybe?' but must be seed|none (enum)"));
    assert_non_null(strstr(text, "DGQ_HF_HOME is longer than 4096 bytes"));
    assert_null(strstr(text, "qq")); /* the value itself is not */
    assert_null(strchr(text, '\n'));
    assert_non_null(strstr(text, "diffgemma flags"));
    assert_true(f.ws_block_stop); /* the valid one among them counts */
    /* text of exactly the maximum is kept whole */
    longv[12 + DG_FLAGS_TEXT_MAX] = 0;
    assert_int_equal(LOAD(longv), DG_OK);
    assert_int_equal(strlen(f.hf_home), DG_FLAGS_TEXT_MAX);
}

static void suggestions(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"DENOISER_ARGMX", "DENOISER_ARGMAX"}, {"SCSPARSE", "SC_SPARSE"}, {"kv_ring", "KV_RING"}, {"KVRING", "KV_RING"},
        {"MODELS", "MODEL"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char entry[64], want[64];
        snprintf(entry, sizeof entry, "DGQ_%s=1", pairs[i][0]);
        snprintf(want, sizeof want, "(closest: DGQ_%s)", pairs[i][1]);
        assert_int_equal(LOAD(entry), DG_E_ARG);
        if (!strstr(dg_error_text(&err), want))
            fail_msg("%s: %s", entry, dg_error_text(&err));
    }
}

/* Hostile environments: many offenders, names of any length, bytes of any kind; the report stays bounded. */
static void bounded_report(void **state) {
    (void)state;
    enum { N = 5000 };
    static char text[N][80];
    static const char *env[N + 2];
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "DGQ_X%d%s=\x01\x7f\xff%%s%%n", i, "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy");
        env[i] = text[i];
    }
    char *huge = malloc(1 << 20);
    assert_non_null(huge);
    memset(huge, 'A', (1 << 20) - 1);
    memcpy(huge, "DGQ_", 4);
    memcpy(huge + (1 << 19), "=1", 2);
    huge[(1 << 20) - 1] = 0;
    env[N] = huge;
    assert_int_equal(dg_flags_load(&f, env, &err), DG_E_ARG);
    const char *t = dg_error_text(&err);
    assert_true(strlen(t) < DG_FLAGS_REPORT_MAX + 128);
    assert_non_null(strstr(t, " more. `diffgemma flags`"));
    int named = 0, more = 0;
    for (const char *p = t; (p = strstr(p, "not a switch")); p++)
        named++;
    assert_int_equal(sscanf(strstr(t, "; and "), "; and %d more", &more), 1);
    assert_int_equal(named + more, N + 1);
    free(huge);
}

static void no_memory(void **state) {
    (void)state;
    dg_mem_fail_at(1);
    assert_int_equal(LOAD("DGQ_MODEL=m"), DG_E_NOMEM);
    dg_mem_fail_at(0);
    assert_null(f.model);
    assert_int_equal(dg_flags_load(&f, (const char *const[]){"DGQ_KV_RING=3", NULL}, NULL), DG_E_ARG);
}

static void print(void **state) {
    (void)state;
    struct dg_buf out;
    dg_buf_init(&out, 1 << 16);
    assert_int_equal(dg_flags_print(&out), DG_OK);
    struct dg_flag_info v;
    const char *line = dg_buf_cstr(&out);
    const char *head = strstr(line, "WHAT IT DOES");
    assert_non_null(head);
    size_t column = (size_t)(head - line);
    for (size_t i = 0; dg_flags_info(i, &v); i++) {
        line = strchr(line, '\n');
        assert_non_null(line);
        line++;
        assert_memory_equal(line, "DGQ_", 4);
        assert_memory_equal(line + 4, v.name, strlen(v.name));
        assert_memory_equal(line + column, v.help, strlen(v.help)); /* columns line up */
        assert_int_equal(line[column - 1], ' ');
        const char *range = strstr(line, v.range), *def = strstr(line, v.def);
        assert_true(range && range < line + column && def && def < line + column);
        assert_true(strlen(v.def) <= 7 && strlen(v.help) > 10);
    }
    assert_string_equal(strchr(line, '\n'), "\n");
    dg_buf_deinit(&out);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, drop)
    const struct CMUnitTest tests[] = {T(defaults),
                                       T(every_flag_loads),
                                       T(fast_prefill_spellings),
                                       T(empty_means_unset_and_later_wins),
                                       T(invalid_values),
                                       T(every_offender_is_named),
                                       T(suggestions),
                                       T(bounded_report),
                                       T(no_memory),
                                       T(print)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
