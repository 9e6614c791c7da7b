/* The text of one tool call, read leniently.
 *
 * The form the model was trained on is  call:NAME{KEY:VALUE,...}  where text values stand between string marks (control
 * tokens, here the byte DG_CALL_MARK, which no UTF-8 text contains). What models write beside it is read too: JSON-quoted
 * keys and values, bare words, null spelled null, none or nil, arguments in parentheses (with ':' or '='), doubled braces, a
 * trailing comma, no "call:". */
#ifndef DG_MESSAGE_CALL_H
#define DG_MESSAGE_CALL_H

#include "core/buf.h"

#define DG_CALL_MARK '\xff'
#define DG_CALL_DEPTH_MAX 32           /* nesting of arguments, the outer braces counted */
#define DG_CALL_NAME_MAX 256           /* bytes */
#define DG_CALL_TEXT_MAX ((size_t)16 << 20) /* bytes of one call's text */

struct dg_call {
    const char *name; /* not terminated, borrowed from the text */
    size_t n_name;
    struct dg_buf arguments; /* one JSON object; numbers spelled as the model spelled them */
};

/* Reads one call from the beginning of n bytes at s. ended: the model itself ended the call (a closing token came), so that
 * missing closing brackets are supplied and a name may stand alone; otherwise the text may have been cut and only complete
 * brackets count. An open string is never complete. *found: whether there was a call; then *used is the number of bytes it
 * took and *out is filled (dg_buf_deinit of its arguments, which the caller initialised). Errors: DG_E_NOMEM, DG_E_LIMIT (the
 * arguments' maximum). */
enum dg_status dg_call_parse(const char *s, size_t n, bool ended, struct dg_call *out, bool *found, size_t *used) DG_MUST_CHECK;

#endif
