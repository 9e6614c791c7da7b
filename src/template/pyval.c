#include "template/pyval.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "template/pystr.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The JSON library's iterators take a mutable object although they only read. */
static json_t *mut(const json_t *v) { return (json_t *)(uintptr_t)v; }

bool dg_py_is(const json_t *v, const char *s) {
    size_t n = strlen(s);
    return json_is_string(v) && json_string_length(v) == n && memcmp(json_string_value(v), s, n) == 0;
}

bool dg_py_truthy(const json_t *v) {
    if (!v)
        return false;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return json_object_size(v) > 0;
    case JSON_ARRAY: return json_array_size(v) > 0;
    case JSON_STRING: return json_string_length(v) > 0;
    case JSON_INTEGER: return json_integer_value(v) != 0;
    case JSON_REAL: return json_real_value(v) != 0;
    case JSON_TRUE: return true;
    case JSON_FALSE:
    case JSON_NULL: return false;
    }
    return false;
}

static bool int_equals_real(json_int_t i, double d) {
    return d >= -9223372036854775808.0 && d < 9223372036854775808.0 && (double)(json_int_t)d == d && (json_int_t)d == i;
}

static bool is_number(const json_t *v) { return json_is_number(v) || json_is_boolean(v); }

static bool equal_at(const json_t *a, const json_t *b, int depth) {
    if (!a || !b || depth > DG_PY_DEPTH_MAX)
        return a == b;
    if (is_number(a) && is_number(b)) {
        bool ra = json_is_real(a), rb = json_is_real(b);
        json_int_t ia = json_is_boolean(a) ? json_is_true(a) : json_integer_value(a);
        json_int_t ib = json_is_boolean(b) ? json_is_true(b) : json_integer_value(b);
        if (ra && rb)
            return json_real_value(a) == json_real_value(b);
        if (ra || rb)
            return ra ? int_equals_real(ib, json_real_value(a)) : int_equals_real(ia, json_real_value(b));
        return ia == ib;
    }
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_string(a))
        return json_string_length(a) == json_string_length(b) &&
               memcmp(json_string_value(a), json_string_value(b), json_string_length(a)) == 0;
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++)
            same = equal_at(json_array_get(a, i), json_array_get(b, i), depth + 1);
        return same;
    }
    if (json_is_object(a)) {
        bool same = json_object_size(a) == json_object_size(b);
        for (void *e = json_object_iter(mut(a)); same && e; e = json_object_iter_next(mut(a), e)) {
            const json_t *other = json_object_getn(b, json_object_iter_key(e), json_object_iter_key_len(e));
            same = other && equal_at(json_object_iter_value(e), other, depth + 1);
        }
        return same;
    }
    return true;
}

bool dg_py_equal(const json_t *a, const json_t *b) { return equal_at(a, b, 0); }

static enum dg_status repr_at(struct dg_buf *b, const json_t *v, int depth);

static enum dg_status repr_object(struct dg_buf *b, const json_t *v, int depth) {
    const char *sep = "";
    dg_buf_chr(b, '{');
    for (void *e = json_object_iter(mut(v)); e; e = json_object_iter_next(mut(v), e), sep = ", ") {
        dg_buf_str(b, sep);
        dg_py_repr(b, json_object_iter_key(e), json_object_iter_key_len(e));
        dg_buf_str(b, ": ");
        DG_TRY(repr_at(b, json_object_iter_value(e), depth + 1));
    }
    return dg_buf_chr(b, '}');
}

static enum dg_status repr_at(struct dg_buf *b, const json_t *v, int depth) {
    if (depth > DG_PY_DEPTH_MAX)
        return DG_E_LIMIT;
    char number[40];
    const char *digits;
    size_t n;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return repr_object(b, v, depth);
    case JSON_ARRAY:
        dg_buf_chr(b, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            dg_buf_str(b, i ? ", " : "");
            DG_TRY(repr_at(b, json_array_get(v, i), depth + 1));
        }
        return dg_buf_chr(b, ']');
    case JSON_STRING:
        if (dg_json_is_exact(v, &digits, &n))
            return dg_buf_add(b, digits, n);
        return dg_py_repr(b, json_string_value(v), json_string_length(v));
    case JSON_INTEGER: return dg_buf_fmt(b, "%" PRId64, (int64_t)json_integer_value(v));
    case JSON_REAL:
        dg_py_float(json_real_value(v), number);
        return dg_buf_str(b, number);
    case JSON_TRUE: return dg_buf_str(b, "True");
    case JSON_FALSE: return dg_buf_str(b, "False");
    case JSON_NULL: return dg_buf_str(b, "None");
    }
    return b->status;
}

enum dg_status dg_py_str(struct dg_buf *b, const json_t *v) {
    if (!v)
        return b->status;
    if (dg_json_is_text(v))
        return dg_buf_add(b, json_string_value(v), json_string_length(v));
    return repr_at(b, v, 0);
}

bool dg_py_iter_init(struct dg_py_iter *it, const json_t *v) {
    it->v = v;
    it->i = 0;
    it->entry = json_is_object(v) ? json_object_iter(mut(v)) : NULL;
    return !v || json_is_array(v) || json_is_object(v) || dg_json_is_text(v);
}

bool dg_py_iter_more(const struct dg_py_iter *it) {
    if (json_is_array(it->v))
        return it->i < json_array_size(it->v);
    return json_is_string(it->v) ? it->i < json_string_length(it->v) : it->entry != NULL;
}

bool dg_py_iter_next(struct dg_py_iter *it, struct dg_py_item *item) {
    if (!dg_py_iter_more(it))
        return false;
    *item = (struct dg_py_item){0};
    if (json_is_array(it->v))
        item->value = json_array_get(it->v, it->i++);
    else if (json_is_string(it->v)) {
        item->s = json_string_value(it->v) + it->i;
        int k = dg_utf8_next((const uint8_t *)item->s, json_string_length(it->v) - it->i, NULL);
        item->n = k ? (size_t)k : 1;
        it->i += item->n;
    } else {
        item->s = json_object_iter_key(it->entry);
        item->n = json_object_iter_key_len(it->entry);
        it->entry = json_object_iter_next(mut(it->v), it->entry);
    }
    return true;
}

void dg_py_entries_destroy(struct dg_py_entry *entries, size_t n) {
    for (size_t i = 0; entries && i < n; i++)
        dg_free(entries[i].lower);
    dg_free(entries);
}

/* UTF-8 bytes sort as code points do. */
static int by_key(const void *pa, const void *pb) {
    const struct dg_py_entry *a = pa, *b = pb;
    size_t n = a->n_lower < b->n_lower ? a->n_lower : b->n_lower;
    int c = memcmp(a->lower, b->lower, n);
    if (c == 0 && a->n_lower != b->n_lower)
        c = a->n_lower < b->n_lower ? -1 : 1;
    return c ? c : a->order < b->order ? -1 : 1;
}

enum dg_status dg_py_sorted(const json_t *v, struct dg_py_entry **out, size_t *n, struct dg_error *err) {
    size_t count = json_object_size(v), i = 0;
    struct dg_py_entry *list = dg_calloc(count, sizeof *list);
    if (!list)
        return DG_FAIL(err, DG_E_NOMEM, "no memory to sort %zu keys", count);
    for (void *e = json_object_iter(mut(v)); e; e = json_object_iter_next(mut(v), e), i++) {
        struct dg_buf b;
        dg_buf_init(&b, SIZE_MAX / 2);
        list[i].key = json_object_iter_key(e);
        list[i].n = json_object_iter_key_len(e);
        list[i].value = json_object_iter_value(e);
        list[i].order = i;
        dg_py_lower(&b, list[i].key, list[i].n);
        list[i].lower = dg_buf_take(&b, &list[i].n_lower);
        if (!list[i].lower) {
            dg_buf_deinit(&b);
            dg_py_entries_destroy(list, count);
            return DG_FAIL(err, DG_E_NOMEM, "no memory to sort %zu keys", count);
        }
    }
    qsort(list, count, sizeof *list, by_key);
    *out = list;
    *n = count;
    return DG_OK;
}
