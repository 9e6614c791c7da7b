/* What a chat shows while the model writes, as bytes for a terminal: text that is settled flows on as ordinary output; under it the
 * canvas of the block in work and a status line are redrawn in place, one string a frame.
 *
 * Pure: it sees events and a size and appends bytes to a buffer; who owns the terminal writes them, each buffer with one write, and
 * tells of a new size. No byte is an escape sequence with `plain`. Text is made safe by chat/glyph.h. One thread at a time.
 *
 * The region that is redrawn begins with the last row of the text (the text may go on in it), then the canvas, then the status
 * line. Frames are bracketed as synchronized output, the cursor is hidden until dg_view_end. */
#ifndef DG_CHAT_VIEW_H
#define DG_CHAT_VIEW_H

#include "chat/glyph.h"
#include "session/turn.h"

#define DG_VIEW_WIDTH_MAX 1000
#define DG_VIEW_HEIGHT_MAX 1000
#define DG_VIEW_LINE_MAX ((size_t)64 << 10) /* bytes of an unfinished line that are kept for redrawing it */
#define DG_VIEW_FRAME_MAX ((size_t)16 << 20) /* bytes of one frame */

enum dg_view_kind { DG_VIEW_CONTENT, DG_VIEW_THOUGHT, DG_VIEW_CALL, DG_VIEW_RESULT, DG_VIEW_NOTE, DG_VIEW_KINDS };

enum dg_view_colours { DG_VIEW_NO_COLOUR = 0, DG_VIEW_16 = 16, DG_VIEW_256 = 256 };

struct dg_view_opts {
    bool plain; /* text only: no region, no escape sequence, no replacement of characters */
    bool canvas; /* the block's tokens, not only the status line */
    enum dg_view_colours colours;
    int width, height; /* of the terminal */
};

/* Levels of confidence a position is coloured by: p_max below 0.25, 0.5, 0.75, 0.95, and above. */
#define DG_VIEW_LEVELS 5
int dg_view_level(float p_max);

struct dg_view {
    struct dg_view_opts opts;
    const struct dg_tokenizer *tok;
    enum dg_view_kind kind; /* of the unfinished line */
    struct dg_buf line; /* the unfinished line, made safe */
    size_t row; /* where its last row begins */
    struct dg_buf past; /* the lines before it, for drawing the screen anew: as sent, a screen's worth */
    int past_lines;
    bool any; /* something was shown since the beginning of the reply */
    int drawn; /* rows of the region on the screen, 0 = none */
    bool hidden; /* the cursor is */
    bool stale; /* the screen is no longer what was drawn */
    /* the last step */
    struct dg_buf glyphs;
    size_t *ends;
    uint8_t *level;
    int32_t n, cap;
    char status[128], status_short[64];
};

/* tok: borrowed. Allocates nothing. */
void dg_view_init(struct dg_view *v, const struct dg_tokenizer *tok, const struct dg_view_opts *o);
void dg_view_deinit(struct dg_view *v);

/* Each appends to out what is to be written now; errors: DG_E_NOMEM, DG_E_LIMIT. */
/* n bytes of settled text (UTF-8, whole characters); a text of another kind begins on a line of its own. The region is taken away
 * until the next step. */
enum dg_status dg_view_text(struct dg_view *v, enum dg_view_kind kind, const char *s, size_t n, struct dg_buf *out) DG_MUST_CHECK;
/* A step: the canvas and the status line. ids and p_max of the event are used during the call only. */
enum dg_status dg_view_step(struct dg_view *v, const struct dg_step_event *e, struct dg_buf *out) DG_MUST_CHECK;
/* Any other text as status line, such as the progress of a prefill. */
enum dg_status dg_view_status(struct dg_view *v, const char *text, struct dg_buf *out) DG_MUST_CHECK;
/* The reply is over: the region is taken away, the line ended, the cursor shown. */
enum dg_status dg_view_end(struct dg_view *v, struct dg_buf *out) DG_MUST_CHECK;
/* The terminal has another size, or its content is unknown (the same size): the next frame draws the screen anew. */
void dg_view_resize(struct dg_view *v, int width, int height);

#endif
