#include "core/jsonr.h"

#include "core/utf8.h"

#include <string.h>

/* What may come next. */
enum state { ST_VALUE, ST_KEY_OR_END, ST_KEY, ST_VALUE_OR_END, ST_AFTER, ST_DONE, ST_ERROR };
enum { IN_OBJECT = 1, IN_ARRAY = 2 };

void dg_jsonr_init(struct dg_jsonr *r, const void *data, size_t n) {
    memset(r, 0, sizeof *r);
    r->begin = r->p = data;
    r->end = r->begin + n;
    r->state = ST_VALUE;
}

enum dg_json_token dg_jsonr_fail(struct dg_jsonr *r, const char *what) {
    if (r->state != ST_ERROR) {
        r->state = ST_ERROR;
        r->what = what;
        r->at = (size_t)(r->p - r->begin);
    }
    return DG_JSON_ERROR;
}

static void skip_space(struct dg_jsonr *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

static int hex4(const uint8_t *s) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i], d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* p is after the opening quote; checks grammar and UTF-8 and leaves p after the closing quote. */
static bool string(struct dg_jsonr *r) {
    const uint8_t *s = r->p, *q = s;
    r->escaped = false;
    for (;;) {
        if (q >= r->end)
            return r->p = q, dg_jsonr_fail(r, "unterminated string"), false;
        uint8_t c = *q;
        if (c == '"')
            break;
        if (c < 0x20)
            return r->p = q, dg_jsonr_fail(r, "control character in a string"), false;
        if (c == '\\') {
            r->escaped = true;
            if (r->end - q < 2)
                return r->p = q, dg_jsonr_fail(r, "unterminated string"), false;
            if (q[1] == 'u') {
                if (r->end - q < 6 || hex4(q + 2) < 0)
                    return r->p = q, dg_jsonr_fail(r, "bad \\u escape"), false;
                q += 6;
            } else if (q[1] && strchr("\"\\/bfnrt", q[1]))
                q += 2;
            else
                return r->p = q, dg_jsonr_fail(r, "bad escape in a string"), false;
        } else if (c < 0x80)
            q++;
        else {
            int n = dg_utf8_next(q, (size_t)(r->end - q), NULL);
            if (!n)
                return r->p = q, dg_jsonr_fail(r, "invalid UTF-8 in a string"), false;
            q += n;
        }
    }
    r->str = (const char *)s;
    r->len = (size_t)(q - s);
    r->p = q + 1;
    return true;
}

static bool digits(struct dg_jsonr *r) {
    const uint8_t *s = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return r->p > s;
}

static bool number(struct dg_jsonr *r) {
    const uint8_t *s = r->p;
    if (*r->p == '-')
        r->p++;
    const uint8_t *first = r->p;
    bool ok = digits(r);
    if (ok && *first == '0' && r->p - first > 1)
        ok = false;
    if (ok && r->p < r->end && *r->p == '.') {
        r->p++;
        ok = digits(r);
    }
    if (ok && r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-'))
            r->p++;
        ok = digits(r);
    }
    if (!ok)
        return dg_jsonr_fail(r, "bad number"), false;
    r->str = (const char *)s;
    r->len = (size_t)(r->p - s);
    return true;
}

static bool word(struct dg_jsonr *r, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, w, n))
        return dg_jsonr_fail(r, "unexpected character"), false;
    r->p += n;
    return true;
}

static enum dg_json_token close_container(struct dg_jsonr *r, int kind) {
    r->p++;
    r->depth--;
    r->state = r->depth ? ST_AFTER : ST_DONE;
    return kind == IN_OBJECT ? DG_JSON_OBJECT_END : DG_JSON_ARRAY_END;
}

static enum dg_json_token open_container(struct dg_jsonr *r, int kind) {
    if (r->depth == DG_JSONR_DEPTH_MAX)
        return dg_jsonr_fail(r, "nested too deeply");
    r->stack[r->depth++] = (uint8_t)kind;
    r->p++;
    r->state = kind == IN_OBJECT ? ST_KEY_OR_END : ST_VALUE_OR_END;
    return kind == IN_OBJECT ? DG_JSON_OBJECT : DG_JSON_ARRAY;
}

static enum dg_json_token value(struct dg_jsonr *r) {
    enum dg_json_token t;
    switch (*r->p) {
    case '{': return open_container(r, IN_OBJECT);
    case '[': return open_container(r, IN_ARRAY);
    case '"':
        r->p++;
        if (!string(r))
            return DG_JSON_ERROR;
        t = DG_JSON_STRING;
        break;
    case 't':
        if (!word(r, "true"))
            return DG_JSON_ERROR;
        t = DG_JSON_TRUE;
        break;
    case 'f':
        if (!word(r, "false"))
            return DG_JSON_ERROR;
        t = DG_JSON_FALSE;
        break;
    case 'n':
        if (!word(r, "null"))
            return DG_JSON_ERROR;
        t = DG_JSON_NULL;
        break;
    default:
        if (*r->p != '-' && (*r->p < '0' || *r->p > '9'))
            return dg_jsonr_fail(r, "unexpected character");
        if (!number(r))
            return DG_JSON_ERROR;
        t = DG_JSON_NUMBER;
    }
    r->state = r->depth ? ST_AFTER : ST_DONE;
    return t;
}

static enum dg_json_token key(struct dg_jsonr *r) {
    if (*r->p != '"')
        return dg_jsonr_fail(r, "expected a member name");
    r->p++;
    if (!string(r))
        return DG_JSON_ERROR;
    skip_space(r);
    if (r->p >= r->end || *r->p != ':')
        return dg_jsonr_fail(r, "expected ':'");
    r->p++;
    r->state = ST_VALUE;
    return DG_JSON_KEY;
}

enum dg_json_token dg_jsonr_next(struct dg_jsonr *r) {
    if (r->state == ST_ERROR)
        return DG_JSON_ERROR;
    skip_space(r);
    if (r->state == ST_DONE)
        return r->p == r->end ? DG_JSON_END : dg_jsonr_fail(r, "data after the document");
    if (r->p >= r->end)
        return dg_jsonr_fail(r, "unexpected end");
    int in = r->depth ? r->stack[r->depth - 1] : 0;
    if (r->state == ST_AFTER) {
        if (*r->p == ',') {
            r->p++;
            r->state = in == IN_OBJECT ? ST_KEY : ST_VALUE;
            skip_space(r);
            if (r->p >= r->end)
                return dg_jsonr_fail(r, "unexpected end");
        } else if (*r->p == (in == IN_OBJECT ? '}' : ']'))
            return close_container(r, in);
        else
            return dg_jsonr_fail(r, "expected ',' or a closing bracket");
    }
    switch (r->state) {
    case ST_KEY_OR_END:
        if (*r->p == '}')
            return close_container(r, IN_OBJECT);
        return key(r);
    case ST_KEY: return key(r);
    case ST_VALUE_OR_END:
        if (*r->p == ']')
            return close_container(r, IN_ARRAY);
        return value(r);
    default: return value(r);
    }
}

bool dg_jsonr_skip_from(struct dg_jsonr *r, enum dg_json_token t) {
    int depth = 0;
    for (;;) {
        if (t == DG_JSON_ERROR || t == DG_JSON_END)
            return false;
        if (t == DG_JSON_OBJECT || t == DG_JSON_ARRAY)
            depth++;
        else if (t == DG_JSON_OBJECT_END || t == DG_JSON_ARRAY_END)
            depth--;
        if (depth == 0)
            return true;
        t = dg_jsonr_next(r);
    }
}

bool dg_jsonr_skip(struct dg_jsonr *r) { return dg_jsonr_skip_from(r, dg_jsonr_next(r)); }

size_t dg_jsonr_unescape(const struct dg_jsonr *r, char *dst) {
    if (!r->escaped) {
        memcpy(dst, r->str, r->len);
        return r->len;
    }
    const uint8_t *s = (const uint8_t *)r->str, *end = s + r->len;
    char *d = dst;
    while (s < end) {
        if (*s != '\\') {
            *d++ = (char)*s++;
            continue;
        }
        if (s[1] != 'u') {
            const char *from = "bfnrt", *to = "\b\f\n\r\t", *hit = strchr(from, s[1]);
            *d++ = hit ? to[hit - from] : (char)s[1];
            s += 2;
            continue;
        }
        uint32_t c = (uint32_t)hex4(s + 2);
        s += 6;
        if (c >= 0xd800 && c <= 0xdbff) {
            int lo = end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? hex4(s + 2) : -1;
            if (lo < 0xdc00 || lo > 0xdfff)
                return SIZE_MAX;
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)lo - 0xdc00);
            s += 6;
        } else if (c >= 0xdc00 && c <= 0xdfff)
            return SIZE_MAX;
        d += dg_utf8_put(c, d);
    }
    return (size_t)(d - dst);
}

bool dg_jsonr_is(const struct dg_jsonr *r, const char *s) {
    size_t n = strlen(s);
    if (!r->escaped)
        return n == r->len && memcmp(s, r->str, n) == 0;
    /* an escaped spelling of at most 6 bytes a character of a short name */
    char tmp[256];
    if (r->len > sizeof tmp)
        return false;
    size_t got = dg_jsonr_unescape(r, tmp);
    return got == n && memcmp(s, tmp, n) == 0;
}

bool dg_jsonr_u64(const struct dg_jsonr *r, uint64_t max, uint64_t *out) {
    uint64_t v = 0;
    for (size_t i = 0; i < r->len; i++) {
        int c = r->str[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)(c - '0'), &v))
            return false;
    }
    if (r->len == 0 || v > max)
        return false;
    *out = v;
    return true;
}
