/* The terminal while a reply is written: chat/view.h with a file descriptor under it.
 *
 * Without a terminal (or on one that is dumb) the reply's text goes to standard output as it settles and all else to standard
 * error. On a terminal everything goes there; while a reply is shown the terminal does not echo and its cursor is hidden, and both
 * are put right when the program ends, is interrupted, killed or stopped. One in a process. */
#ifndef DG_CLI_LIVE_H
#define DG_CLI_LIVE_H

#include "chat/view.h"
#include "cli/line.h"

#include <stdatomic.h>

struct dg_live {
    struct dg_view view; /* of standard output */
    struct dg_view side; /* without a terminal: of standard error */
    struct dg_buf out;
    bool terminal;
    bool shown; /* between begin and end */
    bool failed; /* standard output takes no more */
    double spent; /* seconds of processor time in frames, and how many there were */
    int64_t frames;
};

/* Is standard output a terminal that can show more than text? */
bool dg_live_possible(void);
/* Chooses by what standard output is and by TERM, COLORTERM and NO_COLOR; sets a UTF-8 LC_CTYPE where there is none. canvas: show
 * the block, not only the status line. */
void dg_live_init(struct dg_live *l, const struct dg_tokenizer *tok, bool canvas);
void dg_live_deinit(struct dg_live *l);

/* A reply begins, ends. Between them: text, steps, status. Write errors are remembered in `failed`. */
void dg_live_begin(struct dg_live *l);
void dg_live_end(struct dg_live *l);
void dg_live_text(struct dg_live *l, enum dg_view_kind kind, const char *s, size_t n);
void dg_live_step(struct dg_live *l, const struct dg_step_event *e);
void dg_live_status(struct dg_live *l, const char *text);
/* A line of the program's own, within a reply or outside; without a terminal it goes to standard error. */
void dg_live_note(struct dg_live *l, const char *text);

/* Installs the handlers. cancel is set by Ctrl-C (SIGINT); at the third one while it is set the program ends. Call it on the thread
 * that reads the user's input, before other threads begin with dg_live_mask. at_prompt: called on a new size and on waking up while
 * no reply is shown, and before stopping, inside a signal handler; may be NULL. */
void dg_live_signals(atomic_bool *cancel, void (*at_prompt)(enum dg_prompt_event));
/* true: this thread, and those it starts, get none of these signals; false: it gets them again. */
void dg_live_mask(bool block);
/* Ctrl-C since the last call? */
bool dg_live_interrupted(void);

#endif
