#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "sampler/commit.h"
#include "sampler/rng.h"

#include <string.h>

/* Gemma 4's control tokens, an eos and a vocabulary of 4096. */
enum {
    PAD = 0,
    EOS = 1,
    BOS = 2,
    CALL = 48,
    CALL_END = 49,
    RESPONSE = 50,
    CHANNEL = 100,
    TURN = 105,
    TURN_END = 106,
    VOCAB = 4096,
    FILLER = VOCAB - 1,
    C = 256,
    X = 1000
};

static struct dg_commit_policy p;
static struct dg_commit_turn t;
static struct dg_commit c;
static struct dg_error err;
static int32_t ids[C];
static float p_max[C];
static uint8_t blank[C];

static void policy(const struct dg_flags *f) {
    struct dg_config cfg = {
        .vocab = VOCAB, .pad = PAD, .bos = BOS, .canvas = C, .stops = {EOS, TURN_END, RESPONSE}, .n_stops = 3};
    dg_commit_policy_init(&p, &cfg, f);
    p.eos = EOS;
    p.turn_open = TURN;
    p.call_open = CALL;
    p.call_close = CALL_END;
    p.channel_open = CHANNEL;
}

/* A fresh turn, and a block of different, certain tokens. */
static int fresh(void **state) {
    (void)state;
    policy(NULL);
    memset(&t, 0, sizeof t);
    memset(blank, 0, sizeof blank);
    for (int i = 0; i < C; i++) {
        ids[i] = X + i;
        p_max[i] = 0.99f;
    }
    return 0;
}

static int drop(void **state) {
    (void)state;
    dg_error_clear(&err);
    return 0;
}

static struct dg_commit_block block(int32_t n) {
    return (struct dg_commit_block){.ids = ids, .p_max = p_max, .blank = blank, .n = n};
}

static enum dg_turn_end plan(int32_t n, int64_t budget) {
    struct dg_commit_block b = block(n);
    assert_int_equal(dg_commit_plan(&p, &t, &b, budget, &c, &err), DG_OK);
    return c.end;
}

static void defaults(void **state) {
    (void)state;
    assert_true(p.trim == 0.9 && p.hard == 0 && p.retries == 3 && !p.ws_stop && !p.continue_past_stop && p.repeat_max == 64);
    assert_int_equal(p.n_stops, 3);
    struct dg_flags f;
    dg_flags_default(&f);
    assert_int_equal(
        dg_flags_load(&f,
                      (const char *const[]){"DGQ_COMMIT_CONF_TRIM=0", "DGQ_COMMIT_CONF_HARD=0.5", "DGQ_WS_BLOCK_STOP=1",
                                            "DGQ_CONTINUE_PAST_STOP=1", "DGQ_EMPTY_REPLY_RETRY=1", NULL},
                      &err),
        DG_OK);
    policy(&f);
    assert_true(p.trim == 0 && p.hard == 0.5 && p.retries == 1 && p.ws_stop && p.continue_past_stop);
    assert_string_equal(dg_turn_end_finish(DG_END_BLANK), "stop");
    assert_string_equal(dg_turn_end_finish(DG_END_STOP), "stop");
    assert_string_equal(dg_turn_end_finish(DG_END_REPEAT), "length");
    assert_string_equal(dg_turn_end_finish(DG_END_LENGTH), "length");
    assert_string_equal(dg_turn_end_finish(DG_END_BLOCKS), "length");
    assert_string_equal(dg_turn_end_name(DG_END_BLOCKS), "blocks");
    assert_string_equal(dg_turn_end_finish(DG_END_NONE), "");
}

static void degenerate_first_rows(void **state) {
    (void)state;
    static const int32_t bad[] = {PAD, EOS, BOS, TURN_END, RESPONSE, TURN, FILLER},
                         good[] = {CALL, CHANNEL, X, CALL_END, 3, FILLER - 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_true(dg_commit_degenerate(&p, &bad[i], 1, false));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_false(dg_commit_degenerate(&p, &good[i], 1, false));
        /* a call or a thought shows no text and is not empty for that */
        assert_int_equal(dg_commit_degenerate(&p, &good[i], 1, true), i >= 2);
    }
    /* an end of sequence that is no stop token counts too; ids the vocabulary does not have match nothing */
    p.n_stops = 0;
    assert_true(dg_commit_degenerate(&p, (const int32_t[]){EOS}, 1, false));
    assert_false(dg_commit_degenerate(&p, (const int32_t[]){TURN_END}, 1, false));
    p.turn_open = p.eos = -1;
    assert_false(dg_commit_degenerate(&p, (const int32_t[]){TURN}, 1, false));
    assert_false(dg_commit_degenerate(&p, (const int32_t[]){EOS}, 1, false));
}

static void reroll(void **state) {
    (void)state;
    static const int32_t want[] = {256, 128, 64, 64, 64};
    for (int r = 1; r <= 5; r++)
        assert_int_equal(dg_commit_reroll_size(C, r), want[r - 1]);
    assert_int_equal(dg_commit_reroll_size(3, 3), 1);
    ids[0] = TURN_END;
    struct dg_commit_turn zero = t;
    struct dg_commit_block b = block(C);
    for (b.retries = 0; b.retries < 3; b.retries++) {
        assert_int_equal(dg_commit_plan(&p, &t, &b, 100, &c, &err), DG_OK);
        assert_int_equal(c.reroll, want[b.retries]);
        assert_true(c.kept == 0 && c.end == DG_END_NONE && !c.degenerate && c.stop_id == -1);
        assert_memory_equal(&t, &zero, sizeof t);
        b.n = c.reroll;
    }
    /* used up: what is there is committed, and says that it is empty */
    assert_int_equal(dg_commit_plan(&p, &t, &b, 100, &c, &err), DG_OK);
    assert_true(c.reroll == 0 && c.kept == 0 && c.end == DG_END_STOP && c.stop_id == TURN_END && c.degenerate);
    assert_int_equal(t.blocks, 1);

    fresh(NULL);
    p.retries = 0;
    ids[0] = PAD;
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_true(c.reroll == 0 && c.degenerate && c.kept == C);
    /* only the first block of a turn is looked at */
    p.retries = 3;
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_true(c.reroll == 0 && !c.degenerate);
    fresh(NULL);
    struct dg_commit_block silent = block(C);
    silent.shows_nothing = true;
    assert_int_equal(dg_commit_plan(&p, &t, &silent, 100, &c, &err), DG_OK);
    assert_int_equal(c.reroll, C);
    ids[0] = CHANNEL;
    assert_int_equal(dg_commit_plan(&p, &t, &silent, 100, &c, &err), DG_OK);
    assert_int_equal(c.reroll, 0);
}

static int32_t trim(int32_t n) { return dg_commit_trim_row(&p, ids, p_max, n); }

static void trim_tiers(void **state) {
    (void)state;
    assert_int_equal(trim(C), C);
    p_max[40] = 0.5f; /* unsure but unlike its neighbours */
    assert_int_equal(trim(C), C);
    ids[40] = ids[41]; /* the same token as the right one */
    assert_int_equal(trim(C), 40);
    ids[40] = X + 40;
    ids[40] = ids[39]; /* as the left one */
    assert_int_equal(trim(C), 40);
    p_max[40] = 0.8999999f;
    assert_int_equal(trim(C), 40);
    p_max[40] = 0.9f; /* the threshold itself is enough */
    assert_int_equal(trim(C), C);
    p.trim = 0;
    p_max[40] = 0;
    assert_int_equal(trim(C), C);
    /* hard tier: the probability alone */
    p.hard = 0.3;
    p_max[40] = 0.3f;
    assert_int_equal(trim(C), C);
    p_max[40] = 0.29f;
    p_max[60] = 0.1f;
    assert_int_equal(trim(C), 40);
    /* both tiers: whichever row comes first */
    p.trim = 0.9;
    ids[30] = ids[31];
    p_max[30] = 0.8f;
    assert_int_equal(trim(C), 30);
}

static void trim_region(void **state) {
    (void)state;
    for (int i = 0; i < C; i++)
        p_max[i] = 0.1f;
    /* the first 16 rows are never cut, though they may be the neighbour */
    ids[14] = ids[13];
    assert_int_equal(trim(C), C);
    ids[16] = ids[15];
    assert_int_equal(trim(C), 16);
    ids[16] = X + 16;
    ids[15] = ids[14];
    assert_int_equal(trim(C), C);
    /* rows from the first stop, pad or filler on are no region, nor a neighbour */
    static const int32_t ends[] = {TURN_END, EOS, RESPONSE, PAD, FILLER};
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        fresh(NULL);
        for (int i = 0; i < C; i++)
            p_max[i] = 0.1f;
        for (int i = 20; i < C; i++)
            ids[i] = ends[k];
        assert_int_equal(trim(C), C);
        ids[50] = ids[51] = X; /* behind the end */
        assert_int_equal(trim(C), C);
        ids[19] = ids[18];
        assert_int_equal(trim(C), 18);
        ids[19] = X + 19;
        ids[5] = ends[k]; /* before the floor already */
        ids[18] = ids[17];
        assert_int_equal(trim(C), C);
    }
    /* small canvases: from a quarter on, never row 0 */
    static const struct { int32_t n, from; } floors[] = {{256, 16}, {64, 16}, {63, 15}, {32, 8}, {7, 1}, {4, 1}, {3, 1}, {2, 1}};
    for (size_t k = 0; k < sizeof floors / sizeof *floors; k++) {
        fresh(NULL);
        for (int i = 0; i < C; i++) {
            p_max[i] = 0.1f;
            ids[i] = X;
        }
        assert_int_equal(trim(floors[k].n), floors[k].from);
    }
    assert_int_equal(trim(1), 1);
    /* nor is what lies behind the block a neighbour */
    fresh(NULL);
    ids[100] = ids[99];
    p_max[99] = 0.1f;
    assert_int_equal(trim(100), 100);
    assert_int_equal(trim(101), 99);
}

static void trimmed_blocks_go_on(void **state) {
    (void)state;
    ids[100] = ids[101];
    p_max[100] = 0.2f;
    ids[200] = TURN_END;
    assert_int_equal(plan(C, 1000), DG_END_NONE); /* the stop behind the cut is not seen */
    assert_true(c.trimmed && c.kept == 100 && c.stop_id == -1);
    assert_true(t.kept == 100 && t.blocks == 1);
    struct dg_commit_block b = block(C);
    b.p_max = NULL;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(!c.trimmed && c.kept == 200 && c.end == DG_END_STOP && c.stop_id == TURN_END);
    /* a budget that ends before the trim row is what cuts */
    fresh(NULL);
    ids[100] = ids[101];
    p_max[100] = 0.2f;
    assert_int_equal(plan(C, 50), DG_END_LENGTH);
    assert_true(!c.trimmed && c.kept == 50);
}

static void stop_scan(void **state) {
    (void)state;
    ids[3] = RESPONSE;
    ids[4] = TURN_END;
    ids[10] = EOS;
    assert_int_equal(plan(C, 1000), DG_END_STOP);
    assert_true(c.kept == 3 && c.stop_id == RESPONSE && !c.deferred && t.kept == 3);
    fresh(NULL);
    ids[C - 1] = EOS;
    assert_int_equal(plan(C, 1000), DG_END_STOP);
    assert_true(c.kept == C - 1 && c.stop_id == EOS);
    fresh(NULL);
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_true(c.kept == C && c.stop_id == -1);
    /* padding is no stop: the block is kept whole */
    fresh(NULL);
    for (int i = C - 60; i < C; i++)
        ids[i] = PAD;
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_int_equal(c.kept, C);
}

/* Text never runs past the stop or the limit, and the reason says which came first. */
static void stop_against_budget(void **state) {
    (void)state;
    static const struct {
        int64_t budget;
        int32_t stop_at, kept;
        enum dg_turn_end end;
    } want[] = {
        {1, 3, 1, DG_END_LENGTH},       {2, 3, 2, DG_END_LENGTH},          {3, 3, 3, DG_END_STOP},
        {4, 3, 3, DG_END_STOP},         {255, 3, 3, DG_END_STOP},          {256, 3, 3, DG_END_STOP},
        {257, 3, 3, DG_END_STOP},       {255, -1, 255, DG_END_LENGTH},     {256, -1, 256, DG_END_LENGTH},
        {257, -1, 256, DG_END_NONE},    {1, -1, 1, DG_END_LENGTH},         {255, 255, 255, DG_END_STOP},
        {254, 255, 254, DG_END_LENGTH}, {INT64_MAX, -1, 256, DG_END_NONE},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        fresh(NULL);
        if (want[i].stop_at >= 0)
            ids[want[i].stop_at] = TURN_END;
        assert_int_equal(plan(C, want[i].budget), want[i].end);
        assert_int_equal(c.kept, want[i].kept);
        assert_int_equal(t.kept, want[i].kept);
        assert_int_equal(c.stop_id, want[i].end == DG_END_STOP ? TURN_END : -1);
    }
    /* across blocks */
    fresh(NULL);
    assert_int_equal(plan(C, 300), DG_END_NONE);
    assert_int_equal(plan(C, 300), DG_END_LENGTH);
    assert_true(c.kept == 44 && t.kept == 300 && t.blocks == 2);
    struct dg_commit_block b = block(C);
    assert_int_equal(dg_commit_plan(&p, &t, &b, 300, &c, &err), DG_E_ARG);
}

static void blocks_and_room(void **state) {
    (void)state;
    assert_int_equal(dg_commit_blocks_max(0, C), 0);
    assert_int_equal(dg_commit_blocks_max(-5, C), 0);
    assert_int_equal(dg_commit_blocks_max(1, C), 2);
    assert_int_equal(dg_commit_blocks_max(256, C), 2);
    assert_int_equal(dg_commit_blocks_max(257, C), 4);
    assert_true(dg_commit_blocks_max(INT64_MAX, 1) == INT64_MAX);
    /* a context of every size around a prompt of n: the canvas fits whole or not at all */
    for (int64_t n = 400, ctx = n - 300; ctx <= n + 300; ctx++)
        assert_int_equal(dg_commit_room(ctx, n, C), ctx >= n + C);
    assert_false(dg_commit_room(100, INT64_MAX, C));
    assert_false(dg_commit_room(INT64_MIN, 0, C));
    assert_false(dg_commit_room(1000, -1, C));
    assert_int_equal(dg_commit_next(&p, &t, 100, 1000, 744), DG_END_NONE);
    assert_int_equal(dg_commit_next(&p, &t, 100, 1000, 745), DG_END_LENGTH);
    assert_int_equal(dg_commit_next(&p, &t, 0, 1000, 0), DG_END_LENGTH);
    t.kept = 99;
    t.blocks = 1;
    assert_int_equal(dg_commit_next(&p, &t, 100, 1000, 0), DG_END_NONE);
    assert_int_equal(dg_commit_next(&p, &t, 99, 1000, 0), DG_END_LENGTH);
    t.blocks = 2; /* two trimmed blocks used up what one full block would fill */
    assert_int_equal(dg_commit_next(&p, &t, 100, 1000, 0), DG_END_BLOCKS);
    assert_int_equal(dg_commit_next(&p, &t, 100, 1000, 745), DG_END_LENGTH); /* of two reasons the one that stays */
    assert_int_equal(dg_commit_next(&p, &t, 257, 1000, 0), DG_END_NONE);
}

static void ws_guard(void **state) {
    (void)state;
    for (int i = 0; i < C; i++) {
        ids[i] = i % 2 ? PAD : 7;
        blank[i] = !(i % 2);
    }
    assert_int_equal(plan(C, 1000), DG_END_NONE); /* off by default */
    p.ws_stop = true;
    assert_int_equal(plan(C, 1000), DG_END_BLANK);
    assert_int_equal(c.kept, C);
    blank[88] = 0;
    memset(&t, 0, sizeof t);
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    /* a stop or the limit names itself */
    blank[88] = 1;
    ids[90] = TURN_END;
    memset(&t, 0, sizeof t);
    assert_int_equal(plan(C, 1000), DG_END_STOP);
    memset(&t, 0, sizeof t);
    assert_int_equal(plan(C, 5), DG_END_LENGTH);
    /* without the flags only padding is blank */
    struct dg_commit_block b = block(C);
    b.blank = NULL;
    ids[90] = 7;
    memset(&t, 0, sizeof t);
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_int_equal(c.end, DG_END_NONE);
    t.blocks = 1;
    memset(ids, 0, sizeof ids);
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_int_equal(c.end, DG_END_BLANK);
}

static void open_calls(void **state) {
    (void)state;
    static const int32_t a[] = {X, CALL, X, CALL_END, X, CALL};
    static const bool want[] = {false, false, true, true, false, false, true};
    for (int n = 0; n <= 6; n++)
        assert_int_equal(dg_commit_call_open(a, n, CALL, CALL_END, false), want[n]);
    assert_true(dg_commit_call_open(a, 1, CALL, CALL_END, true));
    assert_false(dg_commit_call_open(a, 5, CALL, CALL_END, true));
    assert_false(dg_commit_call_open(a, 6, -1, -1, false));
}

static void deferred_stop(void **state) {
    (void)state;
    ids[0] = CALL;
    ids[50] = TURN_END;
    assert_int_equal(plan(C, 1000), DG_END_STOP); /* off by default: the seed's collapse */
    assert_int_equal(c.kept, 50);
    fresh(NULL);
    p.continue_past_stop = true;
    ids[0] = CALL;
    ids[50] = TURN_END;
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_true(c.deferred && c.kept == 50 && c.stop_id == -1 && t.call_open);
    /* the next block: the call is still open, a stop in row 0 keeps nothing and defers again */
    ids[0] = TURN_END;
    p.ws_stop = true; /* no rows are no blank rows */
    assert_int_equal(plan(C, 1000), DG_END_NONE);
    assert_true(c.deferred && c.kept == 0 && t.kept == 50 && t.blocks == 2);
    /* closed, then stopped */
    ids[0] = X;
    ids[20] = CALL_END;
    ids[21] = RESPONSE;
    assert_int_equal(plan(C, 1000), DG_END_STOP);
    assert_true(!c.deferred && c.kept == 21 && c.stop_id == RESPONSE && !t.call_open);
    /* the budget ends a deferred turn */
    fresh(NULL);
    p.continue_past_stop = true;
    ids[0] = CALL;
    ids[50] = TURN_END;
    assert_int_equal(plan(C, 50), DG_END_LENGTH);
    assert_false(c.deferred);
    /* a closed call does not defer */
    fresh(NULL);
    p.continue_past_stop = true;
    ids[0] = CALL;
    ids[49] = CALL_END;
    ids[50] = RESPONSE;
    assert_int_equal(plan(C, 1000), DG_END_STOP);
}

/* Field failure A14: a run of one token ends the turn. */
static void repeated_token(void **state) {
    (void)state;
    struct dg_commit_block b = block(C);
    b.p_max = NULL;
    for (int i = 10; i < 74; i++)
        ids[i] = X; /* 64 in a row */
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_NONE && c.kept == C);
    fresh(NULL);
    for (int i = 10; i < 75; i++)
        ids[i] = X; /* 65 */
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_REPEAT && c.kept == 74 && c.stop_id == -1);
    /* across blocks: 40 at the end of one, 25 at the start of the next */
    fresh(NULL);
    for (int i = 216; i < C; i++)
        ids[i] = X;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_NONE && t.run == 40 && t.run_id == X);
    for (int i = 0; i < C; i++)
        ids[i] = i < 25 ? X : X + i;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_REPEAT && c.kept == 24);
    /* a long run of padding is the end of an answer without a stop token: none of it is kept, also across blocks */
    fresh(NULL);
    for (int i = 1; i < C; i++)
        ids[i] = PAD;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 100000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_BLANK && c.kept == 1 && c.stop_id == -1);
    fresh(NULL);
    for (int i = C - 60; i < C; i++)
        ids[i] = PAD;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 100000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_NONE && c.kept == C);
    for (int i = 0; i < C; i++)
        ids[i] = PAD;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 100000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_BLANK && c.kept == 0);
    /* a stop or the limit that comes first wins; off */
    fresh(NULL);
    for (int i = 0; i < C; i++)
        ids[i] = X;
    ids[64] = TURN_END;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_STOP && c.kept == 64);
    fresh(NULL);
    for (int i = 0; i < C; i++)
        ids[i] = X;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 64, &c, &err), DG_OK);
    assert_true(c.end == DG_END_LENGTH && c.kept == 64);
    fresh(NULL);
    for (int i = 0; i < C; i++)
        ids[i] = X;
    p.repeat_max = 0;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 1000, &c, &err), DG_OK);
    assert_true(c.end == DG_END_NONE && c.kept == C);
}

static void bad_input(void **state) {
    (void)state;
    struct dg_commit_turn before = t;
    struct dg_commit_block b = block(0);
    assert_int_equal(dg_commit_plan(&p, &t, &b, 10, &c, &err), DG_E_ARG);
    b.n = C;
    ids[C - 1] = VOCAB;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 10, &c, &err), DG_E_ARG);
    ids[C - 1] = -1;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 10, &c, &err), DG_E_ARG);
    ids[C - 1] = 5;
    assert_int_equal(dg_commit_plan(&p, &t, &b, 0, &c, &err), DG_E_ARG);
    assert_memory_equal(&t, &before, sizeof t);
}

/* Whatever the blocks hold, a driven turn ends within its blocks, keeps at most its budget, and no kept row is a stop unless
 * deferral is on (and then none either: the cut is before it). */
static void turns_always_end(void **state) {
    (void)state;
    struct dg_rng dice;
    dg_rng_init(&dice, 99);
    int ends[6] = {0};
    for (int trial = 0; trial < 5000; trial++) {
        fresh(NULL);
        p.ws_stop = dg_rng_id(&dice, 2);
        p.continue_past_stop = dg_rng_id(&dice, 2);
        p.hard = dg_rng_id(&dice, 3) ? 0 : 0.01;
        int64_t budget = 1 + dg_rng_id(&dice, 2000), ctx = 1 + dg_rng_id(&dice, 4000), pos = dg_rng_id(&dice, 1000), start = pos;
        int32_t spread = dg_rng_id(&dice, 8) ? 1 + dg_rng_id(&dice, 300) : 1, loops = 0, retries = 0, n = C,
                stop_every = 1 + dg_rng_id(&dice, 2000);
        enum dg_turn_end end;
        while ((end = dg_commit_next(&p, &t, budget, ctx, pos)) == DG_END_NONE) {
            assert_true(pos + C <= ctx);
            bool sure = dg_rng_id(&dice, 2);
            for (int i = 0; i < n; i++) {
                ids[i] = dg_rng_id(&dice, stop_every) == 0 ? TURN_END : 7 + dg_rng_id(&dice, spread);
                p_max[i] = sure ? 1 : (float)dg_rng_uniform(&dice);
                blank[i] = ids[i] < 9;
            }
            struct dg_commit_block b = block(n);
            b.retries = retries;
            int64_t kept = t.kept;
            assert_int_equal(dg_commit_plan(&p, &t, &b, budget, &c, &err), DG_OK);
            assert_true(++loops < 1000);
            if (c.reroll) {
                n = c.reroll;
                retries++;
                continue;
            }
            assert_true(c.kept >= 0 && c.kept <= n && t.kept == kept + c.kept && t.kept <= budget);
            for (int i = 0; i < c.kept; i++)
                assert_false(dg_commit_is_stop(&p, ids[i]));
            assert_true((c.end == DG_END_STOP) == (c.stop_id >= 0));
            if (c.stop_id >= 0)
                assert_int_equal(ids[c.kept], c.stop_id);
            n = C;
            pos += c.kept;
            end = c.end;
            if (end != DG_END_NONE)
                break;
        }
        assert_true(retries <= p.retries && t.blocks <= dg_commit_blocks_max(budget, C) && pos == start + t.kept);
        ends[end]++;
    }
    for (int i = DG_END_STOP; i <= DG_END_BLOCKS; i++)
        assert_true(ends[i] > 10);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, drop)
    const struct CMUnitTest tests[] = {
        T(defaults),         T(degenerate_first_rows),
        T(reroll),           T(trim_tiers),
        T(trim_region),      T(trimmed_blocks_go_on),
        T(stop_scan),        T(stop_against_budget),
        T(blocks_and_room),  T(ws_guard),
        T(open_calls),       T(deferred_stop),
        T(repeated_token),   T(bad_input),
        T(turns_always_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
