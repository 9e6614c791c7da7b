/* JSON documents with exact integers.
 *
 * A JSON integer may have any number of digits, and the prompt form prints them all; the JSON library stops at 64 bits. An
 * integer outside that range is therefore held as a JSON string of one NUL byte and the digits as they were spelled ("\0"
 * "-123..."), the "exact integer" below. Everything that asks for the type of a value that came from a client asks the
 * functions here, so that such a value counts as a number. A client can write this string itself; what it gets is the number
 * it could have written. */
#ifndef DG_TEMPLATE_EXACT_H
#define DG_TEMPLATE_EXACT_H

#include "core/status.h"

#include <jansson.h>

#define DG_JSON_MAX ((size_t)64 << 20) /* longest document, bytes */

/* Parses one JSON value of any type (RFC 8259; a key given twice keeps the last value, nesting to 2048). *out: owned by the
 * caller, json_decref. Errors: DG_E_FORMAT with line and column (columns behind a long integer of the same line count a few bytes
 * more), DG_E_LIMIT, DG_E_NOMEM. Any thread. */
enum dg_status dg_json_load_exact(const char *text, size_t n, json_t **out, struct dg_error *err) DG_MUST_CHECK;
/* Is v an exact integer? Then *digits (not terminated) and *n give its spelling; both may be NULL. v may be NULL. */
bool dg_json_is_exact(const json_t *v, const char **digits, size_t *n);
/* Is v a string and not an exact integer? v may be NULL. */
bool dg_json_is_text(const json_t *v);

#endif
