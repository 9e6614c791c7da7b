#include "sampler/commit.h"

#include <string.h>

const char *dg_turn_end_name(enum dg_turn_end e) {
    switch (e) {
    case DG_END_NONE: return "none";
    case DG_END_STOP: return "stop";
    case DG_END_BLANK: return "blank";
    case DG_END_REPEAT: return "repeat";
    case DG_END_LENGTH: return "length";
    case DG_END_BLOCKS: return "blocks";
    }
    return "unknown";
}

const char *dg_turn_end_finish(enum dg_turn_end e) {
    if (e == DG_END_NONE)
        return "";
    return e == DG_END_STOP || e == DG_END_BLANK ? "stop" : "length";
}

void dg_commit_policy_init(struct dg_commit_policy *p, const struct dg_config *cfg, const struct dg_flags *f) {
    struct dg_flags def;
    if (!f) {
        dg_flags_default(&def);
        f = &def;
    }
    *p = (struct dg_commit_policy){
        .n_stops = cfg->n_stops,
        .pad = cfg->pad,
        .bos = cfg->bos,
        .vocab = cfg->vocab,
        .canvas = cfg->canvas,
        .eos = -1,
        .turn_open = -1,
        .call_open = -1,
        .call_close = -1,
        .channel_open = -1,
        .trim = f->commit_conf_trim,
        .hard = f->commit_conf_hard,
        .retries = f->empty_reply_retry,
        .ws_stop = f->ws_block_stop,
        .continue_past_stop = f->continue_past_stop,
        .repeat_max = DG_REPEAT_MAX,
    };
    memcpy(p->stops, cfg->stops, sizeof p->stops);
}

bool dg_commit_is_stop(const struct dg_commit_policy *p, int32_t id) {
    for (int32_t i = 0; i < p->n_stops; i++)
        if (p->stops[i] == id)
            return true;
    return false;
}

bool dg_commit_degenerate(const struct dg_commit_policy *p, const int32_t *ids, int32_t n, bool shows_nothing) {
    if (n < 1)
        return true;
    int32_t id = ids[0];
    if (id == p->call_open || id == p->channel_open)
        return false;
    return shows_nothing || id == p->pad || id == p->eos || id == p->bos || id == p->turn_open || id == p->vocab - 1 ||
           dg_commit_is_stop(p, id);
}

int32_t dg_commit_reroll_size(int32_t canvas, int32_t r) {
    int32_t n = r <= 1 ? canvas : r == 2 ? canvas / 2 : canvas / 4;
    return n > 0 ? n : 1;
}

int32_t dg_commit_trim_row(const struct dg_commit_policy *p, const int32_t *ids, const float *p_max, int32_t n) {
    int32_t region = 0;
    while (region < n && ids[region] != p->pad && ids[region] != p->vocab - 1 && !dg_commit_is_stop(p, ids[region]))
        region++;
    int32_t i = n < 64 ? n / 4 : 16;
    for (i = i > 0 ? i : 1; i < region; i++) {
        bool copy = ids[i] == ids[i - 1] || (i + 1 < region && ids[i] == ids[i + 1]);
        if (p_max[i] < (float)p->hard || (copy && p_max[i] < (float)p->trim))
            return i;
    }
    return n;
}

bool dg_commit_call_open(const int32_t *ids, int32_t n, int32_t open, int32_t close, bool was_open) {
    for (int32_t i = n - 1; i >= 0; i--) {
        if (ids[i] == open)
            return true;
        if (ids[i] == close)
            return false;
    }
    return was_open;
}

int64_t dg_commit_blocks_max(int64_t tokens, int32_t canvas) {
    if (tokens <= 0 || canvas < 1)
        return 0;
    int64_t blocks = (tokens - 1) / canvas + 1;
    return blocks > INT64_MAX / 2 ? INT64_MAX : 2 * blocks;
}

bool dg_commit_room(int64_t ctx, int64_t pos, int32_t canvas) { return pos >= 0 && ctx >= canvas && pos <= ctx - canvas; }

enum dg_turn_end dg_commit_next(const struct dg_commit_policy *p, const struct dg_commit_turn *t, int64_t budget, int64_t ctx,
                                int64_t pos) {
    if (t->kept >= budget || !dg_commit_room(ctx, pos, p->canvas))
        return DG_END_LENGTH;
    return t->blocks >= dg_commit_blocks_max(budget, p->canvas) ? DG_END_BLOCKS : DG_END_NONE;
}

/* Cuts at the first stop of rows [0, n) that counts. */
static void scan_stop(const struct dg_commit_policy *p, const struct dg_commit_turn *t, const int32_t *ids, int32_t n,
                      struct dg_commit *c) {
    c->kept = n;
    for (int32_t i = 0; i < n; i++) {
        if (!dg_commit_is_stop(p, ids[i]))
            continue;
        c->kept = i;
        c->deferred = p->continue_past_stop && dg_commit_call_open(ids, i, p->call_open, p->call_close, t->call_open);
        if (!c->deferred) {
            c->end = DG_END_STOP;
            c->stop_id = ids[i];
        }
        return;
    }
}

static void cut(struct dg_commit *c, int32_t kept, enum dg_turn_end why) {
    c->kept = kept;
    c->end = why;
    c->stop_id = -1;
    c->deferred = false;
}

/* Rows of [0, n) after which one token would stand more than repeat_max times in a row, or n. */
static int32_t repeat_row(const struct dg_commit_policy *p, const struct dg_commit_turn *t, const int32_t *ids, int32_t n) {
    int32_t id = t->run_id, run = t->run;
    for (int32_t i = 0; i < n; i++) {
        run = run > 0 && ids[i] == id ? run + 1 : 1;
        id = ids[i];
        if (run > p->repeat_max)
            return i;
    }
    return n;
}

static bool all_blank(const struct dg_commit_policy *p, const struct dg_commit_block *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (b->ids[i] != p->pad && !(b->blank && b->blank[i]))
            return false;
    return n > 0;
}

void dg_commit_advance(const struct dg_commit_policy *p, struct dg_commit_turn *t, const int32_t *ids, int32_t n) {
    t->call_open = dg_commit_call_open(ids, n, p->call_open, p->call_close, t->call_open);
    for (int32_t i = 0; i < n; i++) {
        t->run = t->run > 0 && ids[i] == t->run_id ? t->run + (t->run < INT32_MAX) : 1;
        t->run_id = ids[i];
    }
    t->kept += n;
    t->blocks++;
}

enum dg_status dg_commit_plan(const struct dg_commit_policy *p, struct dg_commit_turn *t, const struct dg_commit_block *b,
                              int64_t budget, struct dg_commit *out, struct dg_error *err) {
    if (b->n < 1)
        return DG_FAIL(err, DG_E_ARG, "a block to commit needs at least one row");
    if (budget <= t->kept)
        return DG_FAIL(err, DG_E_ARG, "the turn's budget of %lld tokens is used up", (long long)budget);
    for (int32_t i = 0; i < b->n; i++)
        if (b->ids[i] < 0 || b->ids[i] >= p->vocab)
            return DG_FAIL(err, DG_E_ARG, "token %d in row %d of the block is outside the vocabulary of %d tokens", b->ids[i], i,
                           p->vocab);
    struct dg_commit c = {.stop_id = -1};
    c.degenerate = t->blocks == 0 && dg_commit_degenerate(p, b->ids, b->n, b->shows_nothing);
    if (c.degenerate && b->retries < p->retries) {
        *out = (struct dg_commit){.reroll = dg_commit_reroll_size(p->canvas, b->retries + 1), .stop_id = -1};
        return DG_OK;
    }
    int32_t rows = b->p_max ? dg_commit_trim_row(p, b->ids, b->p_max, b->n) : b->n;
    scan_stop(p, t, b->ids, rows, &c);
    int32_t repeat = p->repeat_max > 0 ? repeat_row(p, t, b->ids, c.kept) : c.kept;
    if (repeat < c.kept) {
        /* a long run of padding is how a model that gave no stop token says that it has finished */
        bool padding = b->ids[repeat] == p->pad;
        while (padding && repeat > 0 && b->ids[repeat - 1] == p->pad)
            repeat--;
        cut(&c, repeat, padding ? DG_END_BLANK : DG_END_REPEAT);
    }
    int64_t left = budget - t->kept;
    if (c.kept > left || (c.kept == left && c.end != DG_END_STOP))
        cut(&c, (int32_t)left, DG_END_LENGTH);
    if (c.end == DG_END_NONE && p->ws_stop && all_blank(p, b, c.kept))
        c.end = DG_END_BLANK;
    c.trimmed = rows < b->n && c.kept == rows;
    dg_commit_advance(p, t, b->ids, c.kept);
    *out = c;
    return DG_OK;
}
