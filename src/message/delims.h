/* Signs in a text that neighbouring tokens do not agree: a quote that is opened and not closed, a bracket without its partner, a word that stands
 * twice. A model that draws the positions of a canvas independently can settle on a mixture of two conventions (`[ $#" -lt 1 ]`), each half of
 * it probable, so that no probability shows it; syntax does. (seed Part I, "joint constraints"; field failure A14)
 *
 * A detector, not a judge: sound text can have any of them, so what counts is how often they occur. */
#ifndef DG_MESSAGE_DELIMS_H
#define DG_MESSAGE_DELIMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dg_delims {
    int64_t lines;    /* that are not blank */
    int64_t quotes;   /* lines of code that end inside a string; paragraphs of prose with an odd number of double quotes */
    int64_t brackets; /* in code: closed but not open, or open at its end */
    int64_t doubled;  /* in prose: words that stand twice in a row */
    size_t at, len;   /* the line of the first finding; len 0 = none */
};

/* Code is what stands between lines that begin with three backticks, and between two backticks in a line; all else is prose. n bytes of
 * UTF-8; any bytes are safe. Time in proportion to n, no memory. */
void dg_delims_check(const char *s, size_t n, struct dg_delims *out);
bool dg_delims_found(const struct dg_delims *d);

#endif
