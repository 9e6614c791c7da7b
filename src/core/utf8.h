/* UTF-8 decoding, RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef DG_CORE_UTF8_H
#define DG_CORE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length 1..4 of the valid character at s (n bytes left), its code point in *cp (may be NULL); 0 when it is not valid or cut. */
static inline int dg_utf8_next(const uint8_t *s, size_t n, uint32_t *cp) {
    uint32_t c;
    int len;
    if (n == 0)
        return 0;
    if (s[0] < 0x80) {
        if (cp)
            *cp = s[0];
        return 1;
    }
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        len = 2;
        c = s[0] & 0x1f;
    } else if ((s[0] & 0xf0) == 0xe0) {
        len = 3;
        c = s[0] & 0x0f;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        len = 4;
        c = s[0] & 0x07;
    } else
        return 0;
    if (n < (size_t)len)
        return 0;
    for (int i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if ((len == 3 && (c < 0x800 || (c >= 0xd800 && c <= 0xdfff))) || (len == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 0;
    if (cp)
        *cp = c;
    return len;
}

/* Bytes of c (at most U+10FFFF) written to dst, 1..4. */
static inline int dg_utf8_put(uint32_t c, char *dst) {
    if (c < 0x80) {
        dst[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        dst[0] = (char)(0xc0 | c >> 6);
        dst[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        dst[0] = (char)(0xe0 | c >> 12);
        dst[1] = (char)(0x80 | (c >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | c >> 18);
    dst[1] = (char)(0x80 | (c >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (c >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

#endif
