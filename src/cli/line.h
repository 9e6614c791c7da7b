/* Lines from the user: with editing and history on a terminal, as they are from anything else. One in a process. */
#ifndef DG_CLI_LINE_H
#define DG_CLI_LINE_H

#include "core/buf.h"

#define DG_LINE_MAX ((size_t)16 << 20)
#define DG_LINE_HISTORY 1000 /* lines kept */

enum dg_line_end { DG_LINE, DG_LINE_EOF, DG_LINE_INTERRUPTED };

struct dg_lines;

/* Whether there was an interrupt since the last call (dg_live_interrupted). */
typedef bool dg_line_interrupted_fn(void);

/* edit: standard input and output are a terminal. history: file that lines are read from now and written to at the end, readable by
 * its owner only; NULL = none. A history that cannot be read or written is no error. interrupted: asked before each wait, so that one
 * that came before the wait ends the line too. Errors: DG_E_NOMEM. */
enum dg_status dg_lines_open(struct dg_lines **out, bool edit, const char *history, dg_line_interrupted_fn *interrupted,
                             struct dg_error *err) DG_MUST_CHECK;
void dg_lines_close(struct dg_lines *l); /* NULL is allowed */
/* The next line without its line end, in a buffer of the lines' own until the next call. remember: it enters the history. Errors:
 * DG_E_IO, DG_E_LIMIT for a line of more than DG_LINE_MAX bytes. */
enum dg_status dg_lines_read(struct dg_lines *l, const char *prompt, bool remember, enum dg_line_end *end, const char **s,
                             size_t *n, struct dg_error *err) DG_MUST_CHECK;
/* For a signal handler while a line is being read: the program is about to stop, or is awake again, or the terminal has a new size; the
 * prompt and what was typed are drawn anew. */
enum dg_prompt_event { DG_PROMPT_STOPPING, DG_PROMPT_AWAKE, DG_PROMPT_RESIZED };
void dg_lines_at_prompt(enum dg_prompt_event what);

#endif
