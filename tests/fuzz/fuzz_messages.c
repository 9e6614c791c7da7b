/* Random bytes as a chat request: parse, prepare, render as sent and as prepared. Any refusal is right; a text must be UTF-8 with
 * sorted spans inside it. */
#include "core/utf8.h"
#include "message/prompt.h"

#include <stdlib.h>

#include "support/fuzz_main.h"

static void check(enum dg_status st, const struct dg_prompt *p) {
    if (st != DG_OK && st != DG_E_ARG && st != DG_E_LIMIT)
        abort();
    size_t last = 0;
    for (size_t i = 0; st == DG_OK && i < p->n_spans; i++) {
        if (p->spans[i].begin >= p->spans[i].end || (i && p->spans[i].begin <= last) || p->spans[i].end > p->text.len)
            abort();
        last = p->spans[i].end;
    }
    for (size_t i = 0; st == DG_OK && i < p->text.len;) {
        int k = dg_utf8_next((const uint8_t *)p->text.data + i, p->text.len - i, NULL);
        if (k == 0)
            abort();
        i += (size_t)k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *doc, *messages = NULL, *tools = NULL;
    struct dg_error err = {0};
    struct dg_prompt p;
    if (dg_json_load_exact((const char *)data, size, &doc, &err) != DG_OK) {
        dg_error_clear(&err);
        return 0;
    }
    const json_t *sent = json_is_object(doc) ? json_object_get(doc, "messages") : doc, *sent_tools = json_object_get(doc, "tools");
    struct dg_render_options opts = {json_is_true(json_object_get(doc, "enable_thinking")) ? DG_THINKING_ON : DG_THINKING_OFF,
                                     !json_is_false(json_object_get(doc, "add_generation_prompt"))};
    dg_prompt_init(&p);
    check(dg_template_render(sent, sent_tools, &opts, &p, &err), &p);
    if (dg_message_prepare(sent, &messages, &err) == DG_OK && dg_message_prepare_tools(sent_tools, &tools, &err) == DG_OK)
        check(dg_template_render(messages, tools, &opts, &p, &err), &p);
    dg_prompt_deinit(&p);
    json_decref(messages);
    json_decref(tools);
    json_decref(doc);
    dg_error_clear(&err);
    return 0;
}
