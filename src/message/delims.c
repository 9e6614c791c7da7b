#include "message/delims.h"

#include <string.h>

enum { ROUND, SQUARE, CURLY, BRACKETS };

struct scan {
    const char *s;
    struct dg_delims *out;
    size_t line, line_end;  /* the line in work */
    bool fenced;
    bool triple;            /* inside a string of three quotes, which may go over lines */
    int64_t open[BRACKETS]; /* in the piece of code */
    int64_t prose_quotes;   /* in the paragraph */
    size_t prose_line;      /* where the last of them is */
    const char *word;       /* the last word of the prose, when only white space has come since */
    size_t n_word;
};

static void found(struct scan *c, int64_t *count, int64_t n, size_t line, size_t line_end) {
    if (n && !c->out->len) {
        c->out->at = line;
        c->out->len = line_end - line;
    }
    *count += n;
}

static void found_here(struct scan *c, int64_t *count) { found(c, count, 1, c->line, c->line_end); }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80; }
static bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; }

/* Brackets of one piece of code that is over. */
static void end_code(struct scan *c) {
    for (int k = 0; k < BRACKETS; k++) {
        found(c, &c->out->brackets, c->open[k], c->line, c->line_end);
        c->open[k] = 0;
    }
    c->triple = false;
}

static void bracket(struct scan *c, char ch) {
    static const char opening[] = "([{", closing[] = ")]}";
    const char *o = strchr(opening, ch), *p = strchr(closing, ch);
    if (o)
        c->open[o - opening]++;
    else if (p && c->open[p - closing] > 0)
        c->open[p - closing]--;
    else if (p)
        found_here(c, &c->out->brackets);
}

/* One line's code. A quote behind a letter is an apostrophe. */
static void code(struct scan *c, size_t from, size_t to) {
    const char *s = c->s;
    char quote = 0;
    int64_t before[BRACKETS];
    memcpy(before, c->open, sizeof before);
    for (size_t i = from; i < to; i++) {
        char ch = s[i];
        if (to - i >= 3 && !quote && (memcmp(s + i, "\"\"\"", 3) == 0 || memcmp(s + i, "'''", 3) == 0)) {
            c->triple = !c->triple;
            i += 2;
        } else if (c->triple || ch == 0)
            continue;
        else if (ch == '\\')
            i++;
        else if (quote)
            quote = ch == quote ? 0 : quote;
        else if (ch == '"' || (ch == '\'' && !(i > from && is_word(s[i - 1]))))
            quote = ch;
        else
            bracket(c, ch);
    }
    if (!quote)
        return;
    found_here(c, &c->out->quotes);
    /* what brackets the string swallowed is not known */
    memcpy(c->open, before, sizeof before);
}

static void word(struct scan *c, const char *w, size_t n) {
    bool same = n > 1 && c->word && c->n_word == n;
    for (size_t i = 0; same && i < n; i++)
        same = (w[i] | 0x20) == (c->word[i] | 0x20);
    if (same)
        found_here(c, &c->out->doubled);
    /* three in a row are two findings */
    c->word = w;
    c->n_word = n;
}

static void prose(struct scan *c, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        char ch = c->s[i];
        if (is_letter(ch)) {
            size_t end = i;
            while (end < to && is_word(c->s[end]))
                end++;
            word(c, c->s + i, end - i);
            i = end - 1;
            continue;
        }
        if (ch == '"') {
            c->prose_quotes++;
            c->prose_line = c->line;
        }
        if (ch != ' ' && ch != '\t')
            c->word = NULL;
    }
}

/* A line outside of fences: prose, with code between pairs of backticks. */
static void mixed(struct scan *c) {
    for (size_t i = c->line; i < c->line_end;) {
        const char *tick = memchr(c->s + i, '`', c->line_end - i), *end = NULL;
        if (tick)
            end = memchr(tick + 1, '`', c->line_end - (size_t)(tick + 1 - c->s));
        prose(c, i, end ? (size_t)(tick - c->s) : c->line_end);
        if (!end)
            return;
        c->word = NULL;
        code(c, (size_t)(tick + 1 - c->s), (size_t)(end - c->s));
        end_code(c);
        i = (size_t)(end + 1 - c->s);
    }
}

static void end_paragraph(struct scan *c) {
    const char *nl = memchr(c->s + c->prose_line, '\n', c->line_end - c->prose_line);
    if (c->prose_quotes % 2)
        found(c, &c->out->quotes, 1, c->prose_line, nl ? (size_t)(nl - c->s) : c->line_end);
    c->prose_quotes = 0;
}

static void line(struct scan *c) {
    size_t i = c->line;
    while (i < c->line_end && (c->s[i] == ' ' || c->s[i] == '\t' || c->s[i] == '\r'))
        i++;
    bool blank = i == c->line_end, fence = c->line_end - i >= 3 && memcmp(c->s + i, "```", 3) == 0;
    c->out->lines += !blank;
    if (fence || blank) {
        c->word = NULL;
        if (!c->fenced)
            end_paragraph(c);
    }
    if (fence) {
        if (c->fenced)
            end_code(c);
        c->fenced = !c->fenced;
    } else if (c->fenced)
        code(c, c->line, c->line_end);
    else
        mixed(c);
}

void dg_delims_check(const char *s, size_t n, struct dg_delims *out) {
    struct scan c = {.s = s, .out = out};
    memset(out, 0, sizeof *out);
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(s + at, '\n', n - at);
        c.line = at;
        c.line_end = nl ? (size_t)(nl - s) : n;
        line(&c);
        at = c.line_end + 1;
    }
    if (c.fenced)
        end_code(&c);
    else if (n)
        end_paragraph(&c);
}

bool dg_delims_found(const struct dg_delims *d) { return d->quotes || d->brackets || d->doubled; }
