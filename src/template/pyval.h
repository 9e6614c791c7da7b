/* JSON values the way a Jinja template running in Python sees them.
 *
 * A value is `const json_t *`; NULL is Jinja's undefined (a key that is not there). The type questions are Jinja's: a dict and a
 * string count as sequences, undefined is an empty one. Any thread, no state. */
#ifndef DG_TEMPLATE_PYVAL_H
#define DG_TEMPLATE_PYVAL_H

#include "core/buf.h"
#include "template/exact.h"

#define DG_PY_DEPTH_MAX 4096 /* nesting that str() and == follow */

/* value['key'] on anything but undefined: NULL unless v is an object that has the key. */
static inline const json_t *dg_py_get(const json_t *v, const char *key) {
    return json_is_object(v) ? json_object_get(v, key) : NULL;
}
/* Is v the text s? */
bool dg_py_is(const json_t *v, const char *s);
bool dg_py_truthy(const json_t *v);
/* a == b; numbers of different kinds compare by value, booleans as 0 and 1, objects without regard to order. Values nested deeper
 * than DG_PY_DEPTH_MAX are unequal. */
bool dg_py_equal(const json_t *a, const json_t *b);
/* Appends str(v): text as it is, undefined as nothing, everything else as Python prints it. DG_E_LIMIT below DG_PY_DEPTH_MAX. */
enum dg_status dg_py_str(struct dg_buf *b, const json_t *v);

/* Iteration as `for x in v`: elements of a list, keys of an object, characters of a text, nothing for undefined. */
struct dg_py_iter {
    const json_t *v;
    size_t i;
    void *entry;
};
/* One element: a value, or (value NULL) the text s[0..n). Borrowed from the iterated value. */
struct dg_py_item {
    const json_t *value;
    const char *s;
    size_t n;
};
/* False when v cannot be iterated (null, boolean, number). */
bool dg_py_iter_init(struct dg_py_iter *it, const json_t *v) DG_MUST_CHECK;
/* False at the end. */
bool dg_py_iter_next(struct dg_py_iter *it, struct dg_py_item *item);
/* Would dg_py_iter_next return true? */
bool dg_py_iter_more(const struct dg_py_iter *it);

/* One entry of a sorted object. */
struct dg_py_entry {
    const char *key;
    size_t n;
    const json_t *value;
    char *lower; /* sort key, owned by the list */
    size_t n_lower, order;
};
/* Jinja's dictsort: the entries by lower-cased key (code point order), equal keys in their own order. *out: n entries, owned by
 * the caller, dg_py_entries_destroy; values and keys are borrowed from v, an object. Errors: DG_E_NOMEM. */
enum dg_status dg_py_sorted(const json_t *v, struct dg_py_entry **out, size_t *n, struct dg_error *err) DG_MUST_CHECK;
void dg_py_entries_destroy(struct dg_py_entry *entries, size_t n);

#endif
