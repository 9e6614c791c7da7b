/* Tool declarations: a function's JSON schema in the prompt's notation. */
#include "template/writer.h"

#include "template/pystr.h"

#include <string.h>

#define MARK "<|\"|>"

enum schema_type { TYPE_OTHER, TYPE_STRING, TYPE_ARRAY, TYPE_OBJECT };

/* The template compares the printed, upper-cased type. */
static enum schema_type type_of(const json_t *type) {
    if (!dg_json_is_text(type) || json_string_length(type) > 16)
        return TYPE_OTHER;
    struct dg_buf b;
    dg_buf_init(&b, 256);
    dg_py_upper(&b, json_string_value(type), json_string_length(type));
    const char *s = dg_buf_cstr(&b);
    enum schema_type t = TYPE_OTHER;
    if (strlen(s) != b.len)
        t = TYPE_OTHER;
    else if (strcmp(s, "STRING") == 0)
        t = TYPE_STRING;
    else if (strcmp(s, "ARRAY") == 0)
        t = TYPE_ARRAY;
    else if (strcmp(s, "OBJECT") == 0)
        t = TYPE_OBJECT;
    dg_buf_deinit(&b);
    return t;
}

static enum dg_status cannot_iterate(struct dg_writer *w, const char *what) {
    return DG_FAIL(w->err, DG_E_ARG, "\"%s\" must be a list of names", what);
}

/* required:[...] */
static enum dg_status required_list(struct dg_writer *w, const json_t *list) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (!dg_py_iter_init(&it, list))
        return cannot_iterate(w, "required");
    dg_writer_lit(w, "required:[");
    while (dg_py_iter_next(&it, &item)) {
        dg_writer_lit(w, MARK);
        DG_TRY(dg_writer_item(w, &item));
        dg_writer_lit(w, dg_py_iter_more(&it) ? MARK "," : MARK);
    }
    dg_writer_lit(w, "]");
    return DG_OK;
}

static enum dg_status parameters(struct dg_writer *w, const json_t *properties, bool filter, int depth);

/* The type of an array's elements: one name or a list of names. */
static enum dg_status item_type(struct dg_writer *w, const json_t *type) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (dg_json_is_text(type)) {
        dg_writer_lit(w, "type:" MARK);
        DG_TRY(dg_writer_upper(w, type));
        dg_writer_lit(w, MARK);
        return DG_OK;
    }
    if (!dg_py_iter_init(&it, type))
        return cannot_iterate(w, "type");
    dg_writer_lit(w, "type:[");
    while (dg_py_iter_next(&it, &item)) {
        dg_writer_lit(w, MARK);
        json_t *text = item.value ? NULL : json_stringn_nocheck(item.s, item.n);
        if (!item.value && !text)
            return DG_FAIL(w->err, DG_E_NOMEM, "no memory for a tool declaration");
        enum dg_status st = dg_writer_upper(w, item.value ? item.value : text);
        json_decref(text);
        DG_TRY(st);
        dg_writer_lit(w, dg_py_iter_more(&it) ? MARK "," : MARK);
    }
    dg_writer_lit(w, "]");
    return DG_OK;
}

static enum dg_status array_item(struct dg_writer *w, const struct dg_py_entry *e, int depth) {
    if (strcmp(e->key, "properties") == 0) {
        dg_writer_lit(w, "properties:{");
        if (json_is_object(e->value))
            DG_TRY(parameters(w, e->value, false, depth + 1));
        dg_writer_lit(w, "}");
        return DG_OK;
    }
    if (strcmp(e->key, "required") == 0)
        return required_list(w, e->value);
    if (strcmp(e->key, "type") == 0)
        return item_type(w, e->value);
    dg_writer_client(w, e->key, e->n);
    dg_writer_lit(w, ":");
    return dg_writer_format(w, e->value, true, depth + 1);
}

/* items:{...} */
static enum dg_status array_items(struct dg_writer *w, const json_t *items, int depth) {
    struct dg_py_entry *e;
    size_t n;
    enum dg_status st = DG_OK;
    const char *sep = "";
    DG_TRY(dg_py_sorted(items, &e, &n, w->err));
    dg_writer_lit(w, "items:{");
    for (size_t i = 0; i < n && st == DG_OK; i++) {
        if (json_is_null(e[i].value))
            continue;
        dg_writer_lit(w, sep);
        st = array_item(w, &e[i], depth);
        sep = ",";
    }
    dg_writer_lit(w, "}");
    dg_py_entries_destroy(e, n);
    return st;
}

/* What an OBJECT adds: its properties (its own keys where it has none) and what is required. `sep` goes before each. */
static enum dg_status object_clauses(struct dg_writer *w, const json_t *value, const char **sep, int depth) {
    const json_t *own = dg_py_get(value, "properties"), *required = dg_py_get(value, "required");
    dg_writer_lit(w, *sep);
    dg_writer_lit(w, "properties:{");
    DG_TRY(json_is_object(own) ? parameters(w, own, false, depth + 1) : parameters(w, value, true, depth + 1));
    dg_writer_lit(w, "}");
    *sep = ",";
    if (dg_py_truthy(required)) {
        dg_writer_lit(w, ",");
        DG_TRY(required_list(w, required));
    }
    return DG_OK;
}

/* One property: KEY:{fields}, the type always last. */
static enum dg_status property(struct dg_writer *w, const struct dg_py_entry *e, int depth) {
    const json_t *description = dg_py_get(e->value, "description"), *type = dg_py_get(e->value, "type");
    const json_t *choices = dg_py_get(e->value, "enum"), *items = dg_py_get(e->value, "items");
    enum schema_type t = type_of(type);
    const char *sep = "";
    dg_writer_client(w, e->key, e->n);
    dg_writer_lit(w, ":{");
    if (dg_py_truthy(description)) {
        dg_writer_lit(w, "description:" MARK);
        DG_TRY(dg_writer_value(w, description));
        dg_writer_lit(w, MARK);
        sep = ",";
    }
    if (t == TYPE_STRING && dg_py_truthy(choices)) {
        dg_writer_lit(w, sep);
        dg_writer_lit(w, "enum:");
        DG_TRY(dg_writer_format(w, choices, true, depth + 1));
        sep = ",";
    } else if (t == TYPE_ARRAY && json_is_object(items) && dg_py_truthy(items)) {
        dg_writer_lit(w, sep);
        DG_TRY(array_items(w, items, depth));
        sep = ",";
    }
    if (dg_py_truthy(dg_py_get(e->value, "nullable"))) {
        dg_writer_lit(w, sep);
        dg_writer_lit(w, "nullable:true");
        sep = ",";
    }
    if (t == TYPE_OBJECT)
        DG_TRY(object_clauses(w, e->value, &sep, depth));
    dg_writer_lit(w, sep);
    dg_writer_lit(w, "type:" MARK);
    DG_TRY(dg_writer_upper(w, type));
    dg_writer_lit(w, MARK "}");
    return DG_OK;
}

static bool is_standard(const char *key) {
    static const char *const names[] = {"description", "type", "properties", "required", "nullable"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

/* Properties sorted by name; filter: without the keys that describe the schema itself. */
static enum dg_status parameters(struct dg_writer *w, const json_t *properties, bool filter, int depth) {
    struct dg_py_entry *e;
    size_t n;
    enum dg_status st = DG_OK;
    const char *sep = "";
    if (depth > DG_RENDER_DEPTH_MAX)
        return DG_FAIL(w->err, DG_E_LIMIT, "a schema is nested more than %d levels deep", DG_RENDER_DEPTH_MAX);
    DG_TRY(dg_py_sorted(properties, &e, &n, w->err));
    for (size_t i = 0; i < n && st == DG_OK; i++) {
        if (filter && is_standard(e[i].key))
            continue;
        dg_writer_lit(w, sep);
        sep = ",";
        st = property(w, &e[i], depth);
    }
    dg_py_entries_destroy(e, n);
    return st;
}

/* ,parameters:{...}; without a type the brace stays open, as in the template. */
static enum dg_status function_parameters(struct dg_writer *w, const json_t *p) {
    const json_t *properties = dg_py_get(p, "properties"), *required = dg_py_get(p, "required"), *type = dg_py_get(p, "type");
    dg_writer_lit(w, ",parameters:{");
    if (dg_py_truthy(properties)) {
        if (!json_is_object(properties))
            return DG_FAIL(w->err, DG_E_ARG, "\"parameters.properties\" must be an object");
        dg_writer_lit(w, "properties:{");
        DG_TRY(parameters(w, properties, false, 0));
        dg_writer_lit(w, "},");
    }
    if (dg_py_truthy(required)) {
        DG_TRY(required_list(w, required));
        dg_writer_lit(w, ",");
    }
    if (dg_py_truthy(type)) {
        dg_writer_lit(w, "type:" MARK);
        DG_TRY(dg_writer_upper(w, type));
        dg_writer_lit(w, MARK "}");
    }
    return DG_OK;
}

/* ,response:{...}; closed only for an object, as in the template. */
static enum dg_status function_response(struct dg_writer *w, const json_t *response) {
    const json_t *description = dg_py_get(response, "description"), *type = dg_py_get(response, "type");
    dg_writer_lit(w, ",response:{");
    if (dg_py_truthy(description)) {
        dg_writer_lit(w, "description:" MARK);
        DG_TRY(dg_writer_value(w, description));
        dg_writer_lit(w, MARK ",");
    }
    if (type_of(type) == TYPE_OBJECT) {
        dg_writer_lit(w, "type:" MARK);
        DG_TRY(dg_writer_upper(w, type));
        dg_writer_lit(w, MARK "}");
    }
    return DG_OK;
}

/* A text or list that stands where the function should be declares an empty one, unless "response" is in it. */
static bool is_declarable(const json_t *function) {
    if (dg_json_is_text(function))
        return !memmem(json_string_value(function), json_string_length(function), "response", strlen("response"));
    bool found = false;
    for (size_t i = 0; i < json_array_size(function); i++)
        found = found || dg_py_is(json_array_get(function, i), "response");
    return json_is_object(function) || (json_is_array(function) && !found);
}

static enum dg_status declaration(struct dg_writer *w, const json_t *function) {
    if (!is_declarable(function))
        return DG_FAIL(w->err, DG_E_ARG, "\"function\" must be an object");
    const json_t *params = dg_py_get(function, "parameters"), *response = dg_py_get(function, "response");
    dg_writer_lit(w, "declaration:");
    DG_TRY(dg_writer_value(w, dg_py_get(function, "name")));
    dg_writer_lit(w, "{description:" MARK);
    DG_TRY(dg_writer_value(w, dg_py_get(function, "description")));
    dg_writer_lit(w, MARK);
    if (dg_py_truthy(params))
        DG_TRY(function_parameters(w, params));
    if (response)
        DG_TRY(function_response(w, response));
    dg_writer_lit(w, "}");
    return DG_OK;
}

enum dg_status dg_writer_tool(struct dg_writer *w, const json_t *tool, size_t where) {
    dg_writer_lit(w, "<|tool>");
    enum dg_status st = declaration(w, dg_py_get(tool, "function"));
    if (st != DG_OK)
        dg_error_prefix(w->err, "tools[%zu]", where);
    dg_writer_lit(w, "<tool|>");
    return st;
}
