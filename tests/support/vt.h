/* A terminal for tests: takes bytes as a real one would and holds what is on its screen. */
#ifndef DG_TESTS_VT_H
#define DG_TESTS_VT_H

#include <stdbool.h>
#include <stddef.h>

#define VT_MAX 200
#define VT_CELL 40

struct vt {
    int w, h, row, col;
    bool pending; /* the last column was written: the next character wraps */
    bool hidden, sync;
    int colour; /* the last SGR colour, 0 = none */
    int unknown; /* sequences it does not know, a fault of the sender */
    int scrolled; /* rows that left the screen at its top */
    int bare_frames; /* bytes that changed the screen outside of synchronized output while the cursor was hidden */
    char cell[VT_MAX][VT_MAX][VT_CELL]; /* UTF-8 of the cell, "" = blank, "\x01" = right half of a wide one */
    int paint[VT_MAX][VT_MAX];
};

void vt_open(struct vt *t, int w, int h);
void vt_put(struct vt *t, const char *s, size_t n);
/* Row y without blanks at its end; in a buffer of the callee's. */
const char *vt_row(const struct vt *t, int y);
/* The whole screen, its rows ended by LF, empty rows at the end left out. */
const char *vt_screen(const struct vt *t);

#endif
