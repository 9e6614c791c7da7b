#include "template/writer.h"

#include "core/mem.h"
#include "template/pystr.h"

#include <string.h>

void dg_prompt_init(struct dg_prompt *p) {
    memset(p, 0, sizeof *p);
    dg_buf_init(&p->text, DG_PROMPT_MAX);
}

void dg_prompt_deinit(struct dg_prompt *p) {
    dg_buf_deinit(&p->text);
    dg_free(p->spans);
    memset(p, 0, sizeof *p);
}

void dg_writer_lit(struct dg_writer *w, const char *s) { dg_buf_str(&w->out->text, s); }

/* Everything from `begin` to the end of the text came from the client. */
static void mark_client(struct dg_writer *w, size_t begin) {
    struct dg_prompt *p = w->out;
    size_t end = p->text.len;
    if (p->text.status != DG_OK || begin == end)
        return;
    if (p->n_spans && p->spans[p->n_spans - 1].end == begin) {
        p->spans[p->n_spans - 1].end = end;
        return;
    }
    if (p->n_spans == p->cap_spans) {
        size_t cap = p->cap_spans ? 2 * p->cap_spans : 64;
        struct dg_span *grown = dg_realloc(p->spans, p->n_spans, cap, sizeof *grown);
        if (!grown) {
            p->text.status = DG_E_NOMEM;
            return;
        }
        p->spans = grown;
        p->cap_spans = cap;
    }
    p->spans[p->n_spans++] = (struct dg_span){begin, end};
}

void dg_writer_client(struct dg_writer *w, const char *s, size_t n) {
    size_t begin = w->out->text.len;
    dg_buf_add(&w->out->text, s, n);
    mark_client(w, begin);
}

static enum dg_status too_deep(struct dg_writer *w) {
    return DG_FAIL(w->err, DG_E_LIMIT, "a value is nested more than %d levels deep", DG_RENDER_DEPTH_MAX);
}

enum dg_status dg_writer_value(struct dg_writer *w, const json_t *v) {
    size_t begin = w->out->text.len;
    if (dg_py_str(&w->out->text, v) == DG_E_LIMIT && w->out->text.status == DG_OK)
        return too_deep(w);
    mark_client(w, begin);
    return DG_OK;
}

enum dg_status dg_writer_item(struct dg_writer *w, const struct dg_py_item *item) {
    if (item->value)
        return dg_writer_value(w, item->value);
    dg_writer_client(w, item->s, item->n);
    return DG_OK;
}

enum dg_status dg_writer_upper(struct dg_writer *w, const json_t *v) {
    size_t begin = w->out->text.len;
    struct dg_buf *text = &w->out->text;
    if (dg_json_is_text(v))
        dg_py_upper(text, json_string_value(v), json_string_length(v));
    else {
        struct dg_buf printed;
        dg_buf_init(&printed, DG_PROMPT_MAX);
        enum dg_status st = dg_py_str(&printed, v);
        if (st == DG_OK)
            dg_py_upper(text, dg_buf_cstr(&printed), printed.len);
        else if (printed.status != DG_OK)
            text->status = printed.status;
        bool deep = st == DG_E_LIMIT && printed.status == DG_OK;
        dg_buf_deinit(&printed);
        if (deep)
            return too_deep(w);
    }
    mark_client(w, begin);
    return DG_OK;
}

enum dg_status dg_writer_fields(struct dg_writer *w, const json_t *object, bool quote_keys, int depth) {
    struct dg_py_entry *e;
    size_t n;
    enum dg_status st = DG_OK;
    DG_TRY(dg_py_sorted(object, &e, &n, w->err));
    for (size_t i = 0; i < n && st == DG_OK; i++) {
        dg_writer_lit(w, i ? "," : "");
        dg_writer_lit(w, quote_keys ? "<|\"|>" : "");
        dg_writer_client(w, e[i].key, e[i].n);
        dg_writer_lit(w, quote_keys ? "<|\"|>:" : ":");
        st = dg_writer_format(w, e[i].value, quote_keys, depth + 1);
    }
    dg_py_entries_destroy(e, n);
    return st;
}

enum dg_status dg_writer_format(struct dg_writer *w, const json_t *v, bool quote_keys, int depth) {
    if (depth > DG_RENDER_DEPTH_MAX)
        return too_deep(w);
    if (dg_json_is_text(v)) {
        dg_writer_lit(w, "<|\"|>");
        dg_writer_client(w, json_string_value(v), json_string_length(v));
        dg_writer_lit(w, "<|\"|>");
    } else if (json_is_boolean(v))
        dg_writer_lit(w, json_is_true(v) ? "true" : "false");
    else if (json_is_object(v)) {
        dg_writer_lit(w, "{");
        DG_TRY(dg_writer_fields(w, v, quote_keys, depth));
        dg_writer_lit(w, "}");
    } else if (!v || json_is_array(v)) {
        dg_writer_lit(w, "[");
        for (size_t i = 0; i < json_array_size(v); i++) {
            dg_writer_lit(w, i ? "," : "");
            DG_TRY(dg_writer_format(w, json_array_get(v, i), quote_keys, depth + 1));
        }
        dg_writer_lit(w, "]");
    } else
        return dg_writer_value(w, v);
    return DG_OK;
}
