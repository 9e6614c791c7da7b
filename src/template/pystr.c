#include "template/pystr.h"

#include "core/utf8.h"
#include "template/unitab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The character that ends at s[n]: its length, 0 when there is none or it is not valid. */
static int last_char(const char *s, size_t n, uint32_t *c) {
    for (size_t k = 1; k <= 4 && k <= n; k++)
        if (((uint8_t)s[n - k] & 0xc0) != 0x80)
            return dg_utf8_next((const uint8_t *)s + n - k, k, c) == (int)k ? (int)k : 0;
    return 0;
}

void dg_py_strip(const char **s, size_t *n) {
    uint32_t c;
    int k;
    while ((k = dg_utf8_next((const uint8_t *)*s, *n, &c)) && is_space(c)) {
        *s += k;
        *n -= (size_t)k;
    }
    while ((k = last_char(*s, *n, &c)) && is_space(c))
        *n -= (size_t)k;
}

static uint32_t map_char(const struct dg_unitab_range *t, size_t n, uint32_t c) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || c < t[lo].first || (c - t[lo].first) % t[lo].step)
        return c;
    return (uint32_t)((int32_t)c + t[lo].delta);
}

static const struct dg_unitab_long *upper_long(uint32_t c) {
    size_t lo = 0, hi = dg_unitab_n_upper_long;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (dg_unitab_upper_long[mid].from < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < dg_unitab_n_upper_long && dg_unitab_upper_long[lo].from == c ? &dg_unitab_upper_long[lo] : NULL;
}

static bool is_hidden(uint32_t c) {
    size_t lo = 0, hi = dg_unitab_n_hidden;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (dg_unitab_hidden[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < dg_unitab_n_hidden && c >= dg_unitab_hidden[lo].first;
}

static void put(struct dg_buf *b, uint32_t c) {
    char u[4];
    dg_buf_add(b, u, (size_t)dg_utf8_put(c, u));
}

static bool is_cased(uint32_t c) {
    return map_char(dg_unitab_lower, dg_unitab_n_lower, c) != c || map_char(dg_unitab_upper, dg_unitab_n_upper, c) != c ||
           upper_long(c);
}

static bool is_case_ignorable(uint32_t c) {
    return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xad || c == 0xb7 || c == 0x2019 ||
           (c >= 0x300 && c <= 0x36f);
}

/* Does the capital sigma at s[i] (two bytes) end a word: a letter before it, none after it? */
static bool final_sigma(const char *s, size_t n, size_t i) {
    uint32_t c = 0;
    int k;
    size_t p = i;
    while ((k = last_char(s, p, &c)) && is_case_ignorable(c))
        p -= (size_t)k;
    if (k == 0 || !is_cased(c))
        return false;
    p = i + 2;
    while ((k = dg_utf8_next((const uint8_t *)s + p, n - p, &c)) && is_case_ignorable(c))
        p += (size_t)k;
    return k == 0 || !is_cased(c);
}

enum dg_status dg_py_lower(struct dg_buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int k = dg_utf8_next((const uint8_t *)s + i, n - i, &c);
        if (k == 0)
            dg_buf_chr(b, s[i]);
        else if (c == 0x130)
            dg_buf_str(b, "i\xcc\x87");
        else if (c == 0x3a3)
            put(b, final_sigma(s, n, i) ? 0x3c2 : 0x3c3);
        else
            put(b, map_char(dg_unitab_lower, dg_unitab_n_lower, c));
        i += k ? (size_t)k : 1;
    }
    return b->status;
}

enum dg_status dg_py_upper(struct dg_buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int k = dg_utf8_next((const uint8_t *)s + i, n - i, &c);
        const struct dg_unitab_long *l = k ? upper_long(c) : NULL;
        if (k == 0)
            dg_buf_chr(b, s[i]);
        else if (l)
            for (int j = 0; j < 3 && l->to[j]; j++)
                put(b, l->to[j]);
        else
            put(b, map_char(dg_unitab_upper, dg_unitab_n_upper, c));
        i += k ? (size_t)k : 1;
    }
    return b->status;
}

enum dg_status dg_py_repr(struct dg_buf *b, const char *s, size_t n) {
    char quote = memchr(s, '\'', n) && !memchr(s, '"', n) ? '"' : '\'';
    dg_buf_chr(b, quote);
    for (size_t i = 0; i < n;) {
        uint32_t c = (uint8_t)s[i];
        int k = dg_utf8_next((const uint8_t *)s + i, n - i, &c);
        if (c == (uint32_t)quote || c == '\\')
            dg_buf_fmt(b, "\\%c", (int)c);
        else if (c == '\t' || c == '\n' || c == '\r')
            dg_buf_str(b, c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r");
        else if (is_hidden(c))
            dg_buf_fmt(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        else
            dg_buf_add(b, s + i, k ? (size_t)k : 1);
        i += k ? (size_t)k : 1;
    }
    return dg_buf_chr(b, quote);
}

/* Reads digits d[0..n) * 10^e back. No decimal point, so that the locale has no say. */
static double read_digits(const char *d, int n, int e) {
    char t[40];
    snprintf(t, sizeof t, "%.*se%d", n, d, e);
    return strtod(t, NULL);
}

/* Adds by (+1 or -1) to the last of n decimal digits; false when that would change their number. */
static bool step_digits(char *d, int n, int by) {
    for (int i = n - 1; i >= 0; i--) {
        char last = by > 0 ? '9' : '0';
        if (d[i] != last) {
            d[i] = (char)(d[i] + by);
            return d[0] != '0';
        }
        d[i] = by > 0 ? '0' : '9';
    }
    return false;
}

/* Shortest digits that read back as v > 0; returns their number, the value being 0.d1d2... * 10^*point. The nearest decimal of a
 * given length is tried first, then its neighbours: just above a power of two a neighbour may read back where the nearest does
 * not, as the interval below is half as wide. */
static int shortest(double v, char *digits, int *point) {
    char t[40];
    for (int n = 1; n <= 17; n++) {
        snprintf(t, sizeof t, "%.*e", n - 1, v);
        int m = 0, e = (int)strtol(strchr(t, 'e') + 1, NULL, 10);
        for (const char *p = t; *p != 'e'; p++)
            if (*p >= '0' && *p <= '9')
                digits[m++] = *p;
        *point = e + 1;
        if (read_digits(digits, n, e - n + 1) == v)
            return n;
        for (int by = 1; by >= -1; by -= 2) {
            char near[20];
            memcpy(near, digits, (size_t)n);
            if (step_digits(near, n, by) && read_digits(near, n, e - n + 1) == v) {
                memcpy(digits, near, (size_t)n);
                return n;
            }
        }
    }
    return 17;
}

void dg_py_float(double v, char out[40]) {
    if (isnan(v) || isinf(v)) {
        snprintf(out, 40, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    const char *sign = signbit(v) ? "-" : "";
    if (v == 0) {
        snprintf(out, 40, "%s0.0", sign);
        return;
    }
    char d[20];
    int point, n = shortest(fabs(v), d, &point);
    while (n > 1 && d[n - 1] == '0')
        n--;
    if (point > -4 && point <= 0)
        snprintf(out, 40, "%s0.%.*s%.*s", sign, -point, "0000", n, d);
    else if (point > 0 && point <= 16 && n > point)
        snprintf(out, 40, "%s%.*s.%.*s", sign, point, d, n - point, d + point);
    else if (point > 0 && point <= 16)
        snprintf(out, 40, "%s%.*s%.*s.0", sign, n, d, point - n, "0000000000000000");
    else
        snprintf(out, 40, "%s%c%s%.*se%c%02d", sign, d[0], n > 1 ? "." : "", n - 1, d + 1, point - 1 < 0 ? '-' : '+', abs(point - 1));
}
