#include "chat/glyph.h"

#include "core/utf8.h"

#include <string.h>
#include <wchar.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Characters that reorder what is around them, so that the screen would not show what was said. */
static bool reorders(uint32_t c) {
    return (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f || c == 0x061c;
}

static bool unsafe(uint32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0) || reorders(c) || c == 0x2028 || c == 0x2029; }

struct dg_glyph dg_glyph_next(const char *s, size_t n, uint32_t prev, uint32_t *cp) {
    uint32_t c = 0xfffd;
    int k = dg_utf8_next((const uint8_t *)s, n, &c);
    struct dg_glyph g = {s, k, k, 1, false};
    if (k == 0)
        g = (struct dg_glyph){REPLACEMENT, 3, 1, 1, false};
    else if (c == '\n' || c == '\t')
        g.width = 0;
    else if (unsafe(c)) {
        c = 0xfffd;
        g = (struct dg_glyph){REPLACEMENT, 3, k, 1, false};
    } else if (c >= 0x80) {
        int w = wcwidth((wchar_t)c);
        g.width = w < 0 ? 1 : w;
        /* the emoji form of a character that is narrow by itself takes a second column */
        if (c == 0xfe0f)
            g.width = prev && wcwidth((wchar_t)prev) == 1;
        g.joins = prev && prev != '\n' && prev != '\t' && (g.width == 0 || c == 0xfe0f || prev == 0x200d);
    }
    if (cp)
        *cp = c;
    return g;
}

size_t dg_glyph_width(const char *s, size_t n) {
    size_t w = 0;
    uint32_t prev = 0;
    for (size_t i = 0; i < n;) {
        struct dg_glyph g = dg_glyph_next(s + i, n - i, prev, &prev);
        w += (size_t)g.width;
        i += (size_t)g.used;
    }
    return w;
}

const char *dg_glyph_sign(const char *spelling, size_t n) {
    static const struct {
        const char *spelling, *sign;
    } signs[] = {
        {"<pad>", "\u00b7"},
        {"<eos>", "\u220e"},
        {"<bos>", "\u22a2"},
        {"<unk>", "\u00bf"},
        {"<mask>", "\u25a1"},
        {"<|turn>", "\u25b7"},
        {"<turn|>", "\u25a0"},
        {"<|channel>", "\u27e6"},
        {"<channel|>", "\u27e7"},
        {"<|tool_call>", "\u27ea"},
        {"<tool_call|>", "\u27eb"},
        {"<|tool_response>", "\u27e8"},
        {"<tool_response|>", "\u27e9"},
        {"<|\"|>", "\u2033"},
        {"<|think|>", "\u25ca"},
    };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strlen(signs[i].spelling) == n && !memcmp(signs[i].spelling, spelling, n))
            return signs[i].sign;
    return "\u25e6";
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* The byte of a piece "<0xHH>", or -1. */
static int byte_of(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    int a = hex(s[3]), b = hex(s[4]);
    return a < 0 || b < 0 ? -1 : a * 16 + b;
}

static void add_text(struct dg_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3)) {
            dg_buf_chr(out, ' ');
            i += 3;
            continue;
        }
        struct dg_glyph g = dg_glyph_next(s + i, n - i, 0, NULL);
        if (s[i] == '\n')
            dg_buf_str(out, "\u21b5");
        else if (s[i] == '\t')
            dg_buf_str(out, "\u21e5");
        else
            dg_buf_add(out, g.s, (size_t)g.n);
        i += (size_t)g.used;
    }
}

/* A character spelled by byte tokens from position i on: its positions, 0 = none. */
static size_t add_bytes(const struct dg_tokenizer *t, const int32_t *ids, size_t n, size_t i, struct dg_buf *out) {
    char bytes[4];
    size_t have = 0;
    for (; have < 4 && i + have < n; have++) {
        size_t len;
        const char *s = dg_tokenizer_piece(t, ids[i + have], &len);
        int b = s ? byte_of(s, len) : -1;
        if (b < 0)
            break;
        bytes[have] = (char)b;
        if (dg_utf8_next((const uint8_t *)bytes, have + 1, NULL) == (int)have + 1) {
            add_text(out, bytes, have + 1);
            return have + 1;
        }
    }
    if (have)
        dg_buf_str(out, REPLACEMENT);
    return have ? 1 : 0;
}

enum dg_status dg_glyph_tokens(const struct dg_tokenizer *t, const int32_t *ids, size_t n, struct dg_buf *out, size_t *ends) {
    for (size_t i = 0; i < n;) {
        size_t len, took = 1;
        const char *s = dg_tokenizer_piece(t, ids[i], &len);
        if (!s)
            dg_buf_str(out, REPLACEMENT);
        else if (dg_tokenizer_is_control(t, ids[i]))
            dg_buf_str(out, dg_glyph_sign(s, len));
        else if (byte_of(s, len) >= 0)
            took = add_bytes(t, ids, n, i, out);
        else
            add_text(out, s, len);
        for (; took; took--)
            ends[i++] = out->len;
    }
    return out->status;
}
