#include "template/exact.h"

#include "core/buf.h"

#include <string.h>

#define INT64_DIGITS 19

/* Is the integer of n digits at d outside of int64? Its first digit is not 0. */
static bool too_wide(const char *d, size_t n, bool negative) {
    if (n != INT64_DIGITS)
        return n > INT64_DIGITS;
    return memcmp(d, negative ? "9223372036854775808" : "9223372036854775807", INT64_DIGITS) > 0;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool dg_json_is_exact(const json_t *v, const char **digits, size_t *n) {
    if (!json_is_string(v))
        return false;
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (len < 1 + INT64_DIGITS || s[0] != 0)
        return false;
    bool negative = s[1] == '-';
    size_t first = negative ? 2 : 1;
    for (size_t i = first; i < len; i++)
        if (!is_digit(s[i]))
            return false;
    if (s[first] == '0' || !too_wide(s + first, len - first, negative))
        return false;
    if (digits)
        *digits = s + 1;
    if (n)
        *n = len - 1;
    return true;
}

bool dg_json_is_text(const json_t *v) { return json_is_string(v) && !dg_json_is_exact(v, NULL, NULL); }

/* Copies the document, long integers rewritten as strings. False when there was none: then the text itself will do. */
static bool rewrite(const char *s, size_t n, struct dg_buf *b) {
    size_t copied = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] == '"') {
            for (i++; i < n && s[i] != '"'; i++)
                if (s[i] == '\\')
                    i++;
            i++;
        } else if (s[i] == '-' || is_digit(s[i])) {
            size_t start = i, first = s[i] == '-' ? i + 1 : i, end;
            for (i = first; i < n && is_digit(s[i]); i++) {}
            end = i;
            bool integer = true;
            for (; i < n && (is_digit(s[i]) || s[i] == '.' || s[i] == 'e' || s[i] == 'E' || s[i] == '+' || s[i] == '-'); i++)
                integer = false;
            if (!integer || end == first || s[first] == '0' || !too_wide(s + first, end - first, first > start))
                continue;
            dg_buf_add(b, s + copied, start - copied);
            dg_buf_str(b, "\"\\u0000");
            dg_buf_add(b, s + start, end - start);
            dg_buf_chr(b, '"');
            copied = end;
        } else
            i++;
    }
    if (copied)
        dg_buf_add(b, s + copied, n - copied);
    return copied > 0;
}

enum dg_status dg_json_load_exact(const char *text, size_t n, json_t **out, struct dg_error *err) {
    *out = NULL;
    if (n > DG_JSON_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "the JSON document has %zu bytes; at most %zu are read", n, DG_JSON_MAX);
    struct dg_buf b;
    dg_buf_init(&b, 2 * DG_JSON_MAX);
    enum dg_status st = DG_OK;
    if (rewrite(text, n, &b)) {
        if (b.status != DG_OK) {
            st = DG_FAIL(err, b.status, "no memory for a JSON document of %zu bytes", n);
            goto done;
        }
        text = b.data;
        n = b.len;
    }
    json_error_t je;
    *out = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!*out) {
        if (json_error_code(&je) == json_error_out_of_memory)
            st = DG_FAIL(err, DG_E_NOMEM, "no memory for a JSON document of %zu bytes", n);
        else
            st = DG_FAIL(err, DG_E_FORMAT, "not valid JSON at line %d column %d: %s", je.line, je.column, je.text);
    }
done:
    dg_buf_deinit(&b);
    return st;
}
