#include "support/vt.h"

#include "core/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

void vt_open(struct vt *t, int w, int h) {
    memset(t, 0, sizeof *t);
    t->w = w;
    t->h = h;
}

static void clear(struct vt *t, int y, int x0, int x1) {
    for (int x = x0; x < x1; x++) {
        t->cell[y][x][0] = 0;
        t->paint[y][x] = 0;
    }
}

static void line_feed(struct vt *t) {
    t->pending = false;
    if (t->row + 1 < t->h) {
        t->row++;
        return;
    }
    memmove(t->cell[0], t->cell[1], sizeof t->cell[0] * (size_t)(t->h - 1));
    memmove(t->paint[0], t->paint[1], sizeof t->paint[0] * (size_t)(t->h - 1));
    clear(t, t->h - 1, 0, t->w);
    t->scrolled++;
}

static void put_char(struct vt *t, const char *s, int n, uint32_t c) {
    int w = wcwidth((wchar_t)c);
    if (w == 0) {
        int x = t->pending ? t->col : t->col - 1;
        if (x >= 0 && t->cell[t->row][x][0] == 1)
            x--;
        if (x >= 0 && strlen(t->cell[t->row][x]) + (size_t)n < VT_CELL)
            strncat(t->cell[t->row][x], s, (size_t)n);
        return;
    }
    if (t->pending || t->col + w > t->w) {
        line_feed(t);
        t->col = 0;
    }
    clear(t, t->row, t->col, t->col + w);
    memcpy(t->cell[t->row][t->col], s, (size_t)n);
    t->cell[t->row][t->col][n] = 0;
    for (int i = 0; i < w; i++)
        t->paint[t->row][t->col + i] = t->colour;
    if (w == 2)
        strcpy(t->cell[t->row][t->col + 1], "\x01");
    t->col += w;
    if (t->col == t->w) {
        t->col--;
        t->pending = true;
    }
}

static void erase_down(struct vt *t) {
    clear(t, t->row, t->col, t->w);
    for (int y = t->row + 1; y < t->h; y++)
        clear(t, y, 0, t->w);
}

/* ESC [ ... final: s is what is between. */
static void sequence(struct vt *t, const char *s, char final) {
    long n = strtol(s[0] == '?' ? s + 1 : s, NULL, 10);
    if (s[0] == '?') {
        if (n == 25)
            t->hidden = final == 'l';
        else if (n == 2026)
            t->sync = final == 'h';
        else
            t->unknown++;
        return;
    }
    t->pending = t->pending && final == 'm';
    if (final == 'm') {
        long v[4] = {0};
        int k = sscanf(s, "%ld;%ld;%ld;%ld", &v[0], &v[1], &v[2], &v[3]);
        t->colour = k == 3 && v[0] == 38 ? (int)v[2] : k >= 2 ? (int)v[1] : (int)v[0];
    } else if (final == 'A')
        t->row = t->row > n ? t->row - (int)(n ? n : 1) : 0;
    else if (final == 'K' && n == 0)
        clear(t, t->row, t->col, t->w);
    else if (final == 'J' && n == 0)
        erase_down(t);
    else if (final == 'J' && n == 2)
        for (int y = 0; y < t->h; y++)
            clear(t, y, 0, t->w);
    else if (final == 'H' && !s[0])
        t->row = t->col = 0;
    else
        t->unknown++;
}

void vt_put(struct vt *t, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        if (s[i] == '\033' && i + 1 < n && s[i + 1] == '[') {
            char body[32] = "";
            size_t k = 0;
            i += 2;
            while (i < n && (unsigned char)s[i] < 0x40 && k + 1 < sizeof body)
                body[k++] = s[i++];
            if (i < n)
                sequence(t, body, s[i++]);
            continue;
        }
        if (t->hidden && !t->sync)
            t->bare_frames++;
        if (s[i] == '\r') {
            t->col = 0;
            t->pending = false;
            i++;
        } else if (s[i] == '\n') {
            line_feed(t);
            i++;
        } else if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            t->unknown++;
            i++;
        } else {
            uint32_t c = 0;
            int k = dg_utf8_next((const uint8_t *)s + i, n - i, &c);
            if (k == 0) {
                t->unknown++;
                k = 1;
            } else
                put_char(t, s + i, k, c);
            i += (size_t)k;
        }
    }
}

const char *vt_row(const struct vt *t, int y) {
    static char row[VT_MAX * VT_CELL];
    int last = t->w;
    row[0] = 0;
    while (last > 0 && !t->cell[y][last - 1][0])
        last--;
    char *p = row;
    for (int x = 0; x < last; x++)
        if (t->cell[y][x][0] != 1)
            p += sprintf(p, "%s", t->cell[y][x][0] ? t->cell[y][x] : " ");
    while (p > row && p[-1] == ' ')
        *--p = 0;
    return row;
}

const char *vt_screen(const struct vt *t) {
    static char screen[VT_MAX * 256];
    int last = t->h;
    while (last > 0 && !vt_row(t, last - 1)[0])
        last--;
    char *p = screen;
    *p = 0;
    for (int y = 0; y < last; y++)
        p += snprintf(p, (size_t)(screen + sizeof screen - p), "%s\n", vt_row(t, y));
    return screen;
}
