#include "message/call.h"

#include "core/utf8.h"
#include "template/exact.h"
#include "template/pystr.h"

#include <string.h>
#include <strings.h>

/* Position in the text; `at` moves only over what was understood. */
struct scan {
    const char *s;
    size_t n, at;
    bool ended;
    struct dg_buf *out;
};

static bool space_at(const struct scan *c) {
    return c->at < c->n && (c->s[c->at] == ' ' || c->s[c->at] == '\t' || c->s[c->at] == '\n' || c->s[c->at] == '\r');
}

/* The next byte that is no white space, as an unsigned value; -1 at the end. */
static int peek(struct scan *c) {
    while (space_at(c))
        c->at++;
    return c->at < c->n ? (uint8_t)c->s[c->at] : -1;
}

static bool is_mark(int ch) { return ch == (uint8_t)DG_CALL_MARK; }

/* Text as a JSON string; what is not UTF-8 becomes U+FFFD. */
static void put_string(struct scan *c, const char *s, size_t n) {
    dg_buf_chr(c->out, '"');
    for (size_t i = 0; i < n;) {
        int k = dg_utf8_next((const uint8_t *)s + i, n - i, NULL);
        if (k == 0)
            dg_buf_str(c->out, "\xef\xbf\xbd");
        else if (s[i] == '"' || s[i] == '\\')
            dg_buf_fmt(c->out, "\\%c", s[i]);
        else if (s[i] == '\n')
            dg_buf_str(c->out, "\\n");
        else if ((uint8_t)s[i] < 0x20)
            dg_buf_fmt(c->out, "\\u%04x", (unsigned)(uint8_t)s[i]);
        else
            dg_buf_add(c->out, s + i, (size_t)k);
        i += k ? (size_t)k : 1;
    }
    dg_buf_chr(c->out, '"');
}

/* A string between marks; the opening one is next. */
static bool marked_string(struct scan *c) {
    const char *begin = c->s + c->at + 1;
    const char *end = memchr(begin, DG_CALL_MARK, c->n - c->at - 1);
    if (!end)
        return false;
    put_string(c, begin, (size_t)(end - begin));
    c->at = (size_t)(end - c->s) + 1;
    return true;
}

/* A JSON string; its opening quote is next. Raw line ends and the like, which JSON forbids, are let through as escapes. */
static bool quoted_string(struct scan *c) {
    size_t i = c->at + 1;
    dg_buf_chr(c->out, '"');
    for (; i < c->n && c->s[i] != '"'; i++) {
        if (c->s[i] == '\\' && i + 1 < c->n)
            dg_buf_add(c->out, c->s + i++, 2);
        else if (c->s[i] == DG_CALL_MARK)
            return false;
        else if ((uint8_t)c->s[i] < 0x20)
            dg_buf_fmt(c->out, "\\u%04x", (unsigned)(uint8_t)c->s[i]);
        else
            dg_buf_chr(c->out, c->s[i]);
    }
    dg_buf_chr(c->out, '"');
    c->at = i + 1;
    return i < c->n;
}

static size_t digits(const char *s, size_t n, size_t i) {
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

/* Does JSON call this a number? */
static bool is_number(const char *s, size_t n) {
    size_t i = n && s[0] == '-' ? 1 : 0, start = i;
    i = digits(s, n, i);
    if (i == start || (s[start] == '0' && i > start + 1))
        return false;
    if (i < n && s[i] == '.') {
        start = ++i;
        i = digits(s, n, i);
        if (i == start)
            return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i += i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-') ? 2 : 1;
        start = i;
        i = digits(s, n, i);
        if (i == start)
            return false;
    }
    return i == n;
}

static bool word_is(const char *s, size_t n, const char *word) { return n == strlen(word) && strncasecmp(s, word, n) == 0; }

/* A value without delimiters: number, truth value, null or, failing these, text. */
static bool bare_value(struct scan *c, bool paren) {
    size_t begin = c->at, i = begin;
    for (; i < c->n && c->s[i] != ',' && c->s[i] != '}' && c->s[i] != ']' && !(paren && c->s[i] == ')'); i++)
        if (c->s[i] == DG_CALL_MARK || c->s[i] == '{')
            return false;
    if (i == c->n && !c->ended)
        return false;
    const char *s = c->s + begin;
    size_t n = i - begin;
    dg_py_strip(&s, &n);
    c->at = i;
    if (n == 0)
        return false;
    if (is_number(s, n))
        dg_buf_add(c->out, s, n);
    else if (word_is(s, n, "true") || word_is(s, n, "false"))
        dg_buf_str(c->out, n == 4 ? "true" : "false");
    else if (word_is(s, n, "null") || word_is(s, n, "none") || word_is(s, n, "nil"))
        dg_buf_str(c->out, "null");
    else if (n >= 2 && s[0] == '\'' && s[n - 1] == '\'')
        put_string(c, s + 1, n - 2);
    else
        put_string(c, s, n);
    return true;
}

/* A name before ':' (or '=' where arguments stand in parentheses), the separator included. */
static bool key(struct scan *c, bool paren) {
    int ch = peek(c);
    if (is_mark(ch) || ch == '"') {
        if (!(ch == '"' ? quoted_string(c) : marked_string(c)))
            return false;
        ch = peek(c);
    } else {
        size_t begin = c->at, i = begin;
        while (i < c->n && c->s[i] != ':' && !(paren && c->s[i] == '=')) {
            if (c->s[i] == DG_CALL_MARK || strchr(",{}[]()", c->s[i]))
                return false;
            i++;
        }
        const char *s = c->s + begin;
        size_t n = i - begin;
        dg_py_strip(&s, &n);
        if (n == 0)
            return false;
        put_string(c, s, n);
        c->at = i;
        ch = c->at < c->n ? (uint8_t)c->s[c->at] : -1;
    }
    if (ch != ':' && !(paren && ch == '='))
        return false;
    c->at++;
    dg_buf_chr(c->out, ':');
    return true;
}

static bool value(struct scan *c, bool paren, int depth);

/* Behind a value: a comma, the closer, or (when the model ended the call) nothing more. */
static bool separated(struct scan *c, char close) {
    int ch = peek(c);
    if (ch == ',') {
        c->at++;
        return true;
    }
    return ch == close || ch == '}' || (ch == -1 && c->ended);
}

/* The fields of an object up to `close`, '}' or ')'; the opener has been taken. */
static bool fields(struct scan *c, char close, int depth) {
    bool first = true;
    if (depth > DG_CALL_DEPTH_MAX)
        return false;
    dg_buf_chr(c->out, '{');
    for (;;) {
        int ch = peek(c);
        if (ch == close || (ch == -1 && c->ended)) {
            c->at += ch == close;
            dg_buf_chr(c->out, '}');
            return true;
        }
        dg_buf_str(c->out, first ? "" : ",");
        first = false;
        if (!key(c, close == ')') || !value(c, close == ')', depth) || !separated(c, close))
            return false;
    }
}

/* The elements of a list; a '}' ends it too, as models forget the bracket, and is left for the object around it. */
static bool elements(struct scan *c, int depth) {
    bool first = true;
    if (depth > DG_CALL_DEPTH_MAX)
        return false;
    dg_buf_chr(c->out, '[');
    for (;;) {
        int ch = peek(c);
        if (ch == ']' || ch == '}' || (ch == -1 && c->ended)) {
            c->at += ch == ']';
            dg_buf_chr(c->out, ']');
            return true;
        }
        dg_buf_str(c->out, first ? "" : ",");
        first = false;
        if (!value(c, false, depth) || !separated(c, ']'))
            return false;
    }
}

static bool value(struct scan *c, bool paren, int depth) {
    int ch = peek(c);
    if (is_mark(ch))
        return marked_string(c);
    if (ch == '"')
        return quoted_string(c);
    if (ch == '{' || ch == '[') {
        c->at++;
        return ch == '{' ? fields(c, '}', depth + 1) : elements(c, depth + 1);
    }
    return bare_value(c, paren);
}

/* Arguments with their brackets; the opener at c->at is '{' or '('. An object inside brackets of its own is the arguments. */
static bool arguments(struct scan *c) {
    char close = c->s[c->at++] == '(' ? ')' : '}';
    if (peek(c) != '{')
        return fields(c, close, 1);
    c->at++;
    if (!fields(c, '}', 2))
        return false;
    int ch = peek(c);
    c->at += ch == close;
    return ch == close || (ch == -1 && c->ended);
}

static bool plain_name(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z');
        if (!letter && !memchr("0123456789_.:/-", s[i], 15))
            return false;
    }
    return true;
}

/* Trims white space, then quotes and marks; false when what is left cannot name a function. */
static bool name(const char *s, size_t n, bool announced, struct dg_call *out) {
    dg_py_strip(&s, &n);
    while (n >= 2 && (s[0] == '"' || s[0] == '\'' || s[0] == DG_CALL_MARK) && s[n - 1] == s[0]) {
        s++;
        n -= 2;
    }
    out->name = s;
    out->n_name = n;
    if (n == 0 || n > DG_CALL_NAME_MAX || !(announced || plain_name(s, n)))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] < 0x20 || s[i] == DG_CALL_MARK)
            return false;
    return true;
}

/* Tries the arguments that open at `open`, the name being all between `begin` and there. */
static bool call_at(struct scan *c, size_t begin, size_t open, bool announced, struct dg_call *out) {
    c->at = open;
    dg_buf_clear(c->out);
    if (!name(c->s + begin, open - begin, announced, out) || !arguments(c) || c->out->status != DG_OK)
        return false;
    /* the last word on escapes and encoding is a JSON reader's */
    json_t *v;
    if (dg_json_load_exact(c->out->data, c->out->len, &v, NULL) != DG_OK)
        return false;
    json_decref(v);
    return true;
}

enum dg_status dg_call_parse(const char *s, size_t n, bool ended, struct dg_call *out, bool *found, size_t *used) {
    static const char prefix[] = "call:";
    struct scan c = {.s = s, .n = n, .ended = ended, .out = &out->arguments};
    peek(&c);
    size_t begin = c.at;
    bool announced = n - begin >= strlen(prefix) && memcmp(s + begin, prefix, strlen(prefix)) == 0;
    if (announced)
        begin += strlen(prefix);
    /* a name has few bytes, so an opener further on is none: long texts of many calls stay linear */
    size_t reach = n - begin < 2 * DG_CALL_NAME_MAX ? n - begin : 2 * DG_CALL_NAME_MAX;
    const char *brace = memchr(s + begin, '{', reach), *paren = memchr(s + begin, '(', reach);
    *found = false;
    if (paren && (!brace || paren < brace))
        *found = call_at(&c, begin, (size_t)(paren - s), announced, out);
    if (!*found && brace && out->arguments.status == DG_OK)
        *found = call_at(&c, begin, (size_t)(brace - s), announced, out);
    if (!*found && !brace && !paren && ended && announced && name(s + begin, n - begin, true, out)) {
        *found = plain_name(out->name, out->n_name);
        c.at = n;
        dg_buf_clear(c.out);
        dg_buf_str(c.out, "{}");
    }
    *used = c.at;
    return out->arguments.status;
}
