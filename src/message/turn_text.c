#include "message/turn_text.h"

#include "core/mem.h"

#include <string.h>

/* White space of an entry: the space's stand-in U+2581, LF, TAB, CR. */
static bool all_blank(const char *s, size_t n) {
    while (n) {
        if (*s == '\n' || *s == '\t' || *s == '\r' || *s == ' ') {
            s++;
            n--;
        } else if (n >= 3 && !memcmp(s, "\xe2\x96\x81", 3)) {
            s += 3;
            n -= 3;
        } else
            return false;
    }
    return true;
}

enum dg_status dg_turn_text_init(struct dg_turn_text *x, const struct dg_tokenizer *t, int32_t vocab, struct dg_error *err) {
    memset(x, 0, sizeof *x);
    x->t = t;
    x->blank = dg_calloc((size_t)vocab, 1);
    if (!x->blank)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the vocabulary's table");
    for (int32_t id = 0; id < dg_tokenizer_size(t) && id < vocab; id++) {
        size_t n;
        const char *s = dg_tokenizer_piece(t, id, &n);
        x->blank[id] = s && n && all_blank(s, n);
    }
    /* byte tokens of the same characters */
    static const char *const bytes[] = {"<0x09>", "<0x0A>", "<0x0D>", "<0x20>"};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        int32_t id = dg_tokenizer_find(t, bytes[i]);
        if (id >= 0 && id < vocab)
            x->blank[id] = 1;
    }
    x->call_open = dg_tokenizer_find(t, "<|tool_call>");
    x->channel_open = dg_tokenizer_find(t, "<|channel>");
    return DG_OK;
}

void dg_turn_text_deinit(struct dg_turn_text *x) {
    dg_free(x->blank);
    memset(x, 0, sizeof *x);
}

void dg_turn_text_policy(const struct dg_turn_text *x, struct dg_commit_policy *p) {
    p->eos = dg_tokenizer_find(x->t, "<eos>");
    p->turn_open = dg_tokenizer_find(x->t, "<|turn>");
    p->call_open = x->call_open;
    p->call_close = dg_tokenizer_find(x->t, "<tool_call|>");
    p->channel_open = x->channel_open;
}

bool dg_turn_text_shows_nothing(const struct dg_turn_text *x, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        if (id == x->call_open || id == x->channel_open)
            return false;
        if (id >= 0 && id < dg_tokenizer_size(x->t) && !dg_tokenizer_is_control(x->t, id) && !x->blank[id])
            return false;
    }
    return true;
}
