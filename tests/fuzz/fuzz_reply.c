/* Random bytes as a model's reply, control tokens as they are spelled: the reading must not depend on how the text is cut,
 * and every call's arguments must be one JSON object. */
#include "message/reply.h"
#include "template/exact.h"

#include <stdlib.h>
#include <string.h>

#include "support/fuzz_main.h"

static const char *const spellings[DG_MARKS] = {
    NULL, "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_response>", "<|turn>", "<turn|>", "<eos>", "<pad>"};

static enum dg_status log_event(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct dg_buf *logs = ctx; /* one per kind, so that the number of pieces leaves no trace */
    if (e->kind == DG_REPLY_CALL) {
        json_t *v;
        if (dg_json_load_exact(e->text, e->n, &v, err) != DG_OK || !json_is_object(v) || e->n_name == 0)
            abort();
        json_decref(v);
        dg_buf_add(&logs[e->kind], e->name, e->n_name);
    }
    return dg_buf_add(&logs[e->kind], e->text, e->n);
}

static void read_reply(const uint8_t *data, size_t size, bool whole, bool in_thought, struct dg_buf *logs, struct dg_reply *r) {
    size_t from = 0;
    enum dg_status st = DG_OK;
    dg_reply_init(r, in_thought, log_event, logs);
    for (size_t i = 0; i <= size && st == DG_OK;) {
        int mark = 0;
        for (int m = 1; m < DG_MARKS && mark == 0; m++)
            if (size - i >= strlen(spellings[m]) && memcmp(data + i, spellings[m], strlen(spellings[m])) == 0)
                mark = m;
        if (mark || !whole || i == size) {
            st = dg_reply_text(r, (const char *)data + from, i - from, NULL);
            from = i;
        }
        if (mark && st == DG_OK)
            st = dg_reply_mark(r, (enum dg_mark)mark, NULL);
        i += mark ? strlen(spellings[mark]) : 1;
        from = mark ? i : from;
    }
    if (st != DG_OK || dg_reply_end(r, NULL) != DG_OK)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int in_thought = 0; in_thought < 2; in_thought++) {
        struct dg_buf logs[2][3];
        struct dg_reply r[2];
        for (int k = 0; k < 6; k++)
            dg_buf_init(&logs[k / 3][k % 3], 1 << 26);
        for (int k = 0; k < 2; k++)
            read_reply(data, size, k == 0, in_thought, logs[k], &r[k]);
        for (int k = 0; k < 3; k++)
            if (logs[0][k].len != logs[1][k].len || memcmp(dg_buf_cstr(&logs[0][k]), dg_buf_cstr(&logs[1][k]), logs[0][k].len) != 0)
                abort();
        if (r[0].n_calls != r[1].n_calls || r[0].n_bad_calls != r[1].n_bad_calls || r[0].end != r[1].end || r[0].cut != r[1].cut ||
            r[0].unclosed_thought != r[1].unclosed_thought)
            abort();
        for (int k = 0; k < 6; k++)
            dg_buf_deinit(&logs[k / 3][k % 3]);
        dg_reply_deinit(&r[0]);
        dg_reply_deinit(&r[1]);
    }
    return 0;
}
