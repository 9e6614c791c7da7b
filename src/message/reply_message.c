#include "message/reply_message.h"

#include "template/exact.h"

#include <stdio.h>
#include <string.h>

void dg_reply_message_init(struct dg_reply_message *m, uint64_t next_id) {
    memset(m, 0, sizeof *m);
    dg_buf_init(&m->thought, DG_REPLY_TEXT_MAX);
    dg_buf_init(&m->content, DG_REPLY_TEXT_MAX);
    m->next_id = next_id;
}

void dg_reply_message_deinit(struct dg_reply_message *m) {
    dg_buf_deinit(&m->thought);
    dg_buf_deinit(&m->content);
    json_decref(m->calls);
    memset(m, 0, sizeof *m);
}

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "no memory for the reply's message"); }

static enum dg_status add_call(struct dg_reply_message *m, const struct dg_reply_event *e, struct dg_error *err) {
    json_t *arguments;
    char id[32];
    if (!m->calls && !(m->calls = json_array()))
        return no_memory(err);
    if (json_array_size(m->calls) >= DG_REPLY_CALLS_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "a reply of more than %d tool calls", DG_REPLY_CALLS_MAX);
    DG_TRY(dg_json_load_exact(e->text, e->n, &arguments, err));
    snprintf(id, sizeof id, "call_%llu", (unsigned long long)m->next_id);
    json_t *call = json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", id, "type", "function", "function", "name",
                             json_stringn_nocheck(e->name, e->n_name), "arguments", arguments);
    if (json_array_append_new(m->calls, call) != 0)
        return no_memory(err);
    m->next_id++;
    return DG_OK;
}

enum dg_status dg_reply_message_add(struct dg_reply_message *m, const struct dg_reply_event *e, struct dg_error *err) {
    if (e->kind == DG_REPLY_CALL)
        return add_call(m, e, err);
    struct dg_buf *b = e->kind == DG_REPLY_THOUGHT ? &m->thought : &m->content;
    return dg_buf_add(b, e->text, e->n) == DG_OK ? DG_OK : DG_FAIL(err, b->status, "the reply is too long to keep");
}

/* Text as a JSON string. One that would read as an exact integer (template/exact.h) loses the byte that makes it one. */
static json_t *text(const struct dg_buf *b) {
    json_t *v = json_stringn_nocheck(dg_buf_cstr(b), b->len);
    if (!dg_json_is_exact(v, NULL, NULL))
        return v;
    json_decref(v);
    return json_stringn_nocheck(b->data + 1, b->len - 1);
}

enum dg_status dg_reply_message_json(const struct dg_reply_message *m, json_t **out, struct dg_error *err) {
    *out = json_pack("{s:s, s:o}", "role", "assistant", "content", text(&m->content));
    bool ok = *out != NULL;
    if (ok && m->thought.len)
        ok = json_object_set_new_nocheck(*out, "reasoning_content", text(&m->thought)) == 0;
    if (ok && m->calls)
        ok = json_object_set_new_nocheck(*out, "tool_calls", json_deep_copy(m->calls)) == 0;
    if (ok)
        return DG_OK;
    json_decref(*out);
    *out = NULL;
    return no_memory(err);
}
