/* Text for a terminal: what is safe to show, how wide it is, and what stands for a token on the canvas.
 *
 * Widths are those of the C library's wcwidth, so the program must have chosen a UTF-8 LC_CTYPE; under another one every character
 * that is not ASCII counts as one column. */
#ifndef DG_CHAT_GLYPH_H
#define DG_CHAT_GLYPH_H

#include "core/buf.h"
#include "tokenizer/tokenizer.h"

/* One character as a terminal shows it: bytes of UTF-8 and columns. */
struct dg_glyph {
    const char *s; /* borrowed: inside the text, or a literal */
    int n; /* bytes of s */
    int used; /* bytes of the text it stands for */
    int width; /* columns, 0 for what joins the character before it */
    bool joins; /* must stay on the row of the character before it */
};

/* The first character of n > 0 bytes at s. Whatever could move the cursor or change the terminal's state (C0, C1, DEL, direction
 * overrides, bytes that are no UTF-8) becomes U+FFFD; LF and TAB come as they are with width 0. prev: the character before, for
 * joining; 0 at the beginning. *cp: the code point, for the next call; may be NULL. */
struct dg_glyph dg_glyph_next(const char *s, size_t n, uint32_t prev, uint32_t *cp);

/* Columns of n bytes on one row, LF and TAB counting 0. An upper bound where terminals differ (joined emoji). */
size_t dg_glyph_width(const char *s, size_t n);

/* Appends what stands for n tokens on a canvas, each one's bytes ending at ends[i] in out: text with U+2581 as a space, a line end
 * as an arrow, a tab as an arrow, a control token as its sign, bytes of a character put together at its first position, U+FFFD for
 * bytes that are no UTF-8. An id outside the vocabulary is shown as U+FFFD. Errors: DG_E_NOMEM, DG_E_LIMIT of out. */
enum dg_status dg_glyph_tokens(const struct dg_tokenizer *t, const int32_t *ids, size_t n, struct dg_buf *out,
                               size_t *ends) DG_MUST_CHECK;

/* The sign of a control token by its spelling; "\u25e6" for one without a sign of its own. A literal. */
const char *dg_glyph_sign(const char *spelling, size_t n);

#endif
