#include "chat/view.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define SYNC_ON "\033[?2026h"
#define SYNC_OFF "\033[?2026l"
#define PAST_MAX ((size_t)1 << 20)

int dg_view_level(float p) { return p < 0.25f ? 0 : p < 0.5f ? 1 : p < 0.75f ? 2 : p < 0.95f ? 3 : 4; }

static int clamp(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }

void dg_view_init(struct dg_view *v, const struct dg_tokenizer *tok, const struct dg_view_opts *o) {
    *v = (struct dg_view){.opts = *o, .tok = tok};
    v->opts.width = clamp(o->width, 8, DG_VIEW_WIDTH_MAX);
    v->opts.height = clamp(o->height, 2, DG_VIEW_HEIGHT_MAX);
    dg_buf_init(&v->line, SIZE_MAX / 2);
    dg_buf_init(&v->past, SIZE_MAX / 2);
    dg_buf_init(&v->glyphs, DG_VIEW_FRAME_MAX);
}

void dg_view_deinit(struct dg_view *v) {
    dg_buf_deinit(&v->line);
    dg_buf_deinit(&v->past);
    dg_buf_deinit(&v->glyphs);
    dg_free(v->ends);
    dg_free(v->level);
    memset(v, 0, sizeof *v);
}

/* --- colours --- */

static const char *level_code(const struct dg_view *v, int level) {
    static const char *const c16[DG_VIEW_LEVELS] = {"\033[31m", "\033[35m", "\033[33m", "\033[36m", "\033[32m"};
    static const char *const c256[DG_VIEW_LEVELS] = {"\033[38;5;160m", "\033[38;5;208m", "\033[38;5;220m", "\033[38;5;149m",
                                                     "\033[38;5;42m"};
    return v->opts.colours == DG_VIEW_256 ? c256[level] : v->opts.colours == DG_VIEW_16 ? c16[level] : "";
}

static const char *kind_code(const struct dg_view *v, enum dg_view_kind kind) {
    static const char *const code[DG_VIEW_KINDS] = {"", "\033[2m", "\033[36m", "\033[2;36m", "\033[33m"};
    return v->opts.colours ? code[kind] : "";
}

static const char *dim(const struct dg_view *v) { return v->opts.colours ? "\033[2m" : ""; }
static const char *normal(const struct dg_view *v) { return v->opts.colours ? "\033[0m" : ""; }

/* --- the region --- */

/* The cursor goes to the region's first column; a stale screen is drawn anew from the top. */
static void to_top(struct dg_view *v, struct dg_buf *out) {
    if (v->stale) {
        dg_buf_str(out, "\033[H\033[2J");
        dg_buf_add(out, v->past.data, v->past.len);
        /* rows of the unfinished line that are not the region's */
        dg_buf_str(out, kind_code(v, v->kind));
        dg_buf_add(out, v->line.data, v->row);
        dg_buf_str(out, normal(v));
        v->stale = false;
    } else if (v->drawn > 1)
        dg_buf_fmt(out, "\r\033[%dA", v->drawn - 1);
    else if (v->drawn)
        dg_buf_chr(out, '\r');
    v->drawn = 0;
}

static void take_away(struct dg_view *v, struct dg_buf *out) {
    bool erase = v->drawn && !v->stale;
    to_top(v, out);
    if (erase)
        dg_buf_str(out, "\033[J");
}

/* The text's last row, and what is behind it. */
static void put_row(struct dg_view *v, struct dg_buf *out) {
    dg_buf_str(out, kind_code(v, v->kind));
    dg_buf_add(out, v->line.data + v->row, v->line.len - v->row);
    dg_buf_str(out, normal(v));
}

/* Rows of a canvas being written. */
struct rows {
    struct dg_view *v;
    struct dg_buf *out;
    int max, n; /* rows there may be; rows begun */
    int col, level; /* -1 = no colour is on */
    int more; /* rows that did not fit */
    uint32_t prev;
};

static void new_row(struct rows *r) {
    r->col = 0;
    if (r->n == r->max)
        r->more++;
    else if (r->n++)
        dg_buf_str(r->out, "\033[K\r\n");
}

static void put_token(struct rows *r, const char *s, size_t n, int level) {
    for (size_t i = 0; i < n;) {
        struct dg_glyph g = dg_glyph_next(s + i, n - i, r->prev, &r->prev);
        i += (size_t)g.used;
        if (r->col + g.width > r->v->opts.width - 1 && !g.joins)
            new_row(r);
        if (r->more) {
            r->col += g.width;
            continue;
        }
        if (level != r->level) {
            dg_buf_str(r->out, level_code(r->v, level));
            r->level = level;
        }
        /* a mark without a character to sit on */
        if (g.width == 0 && r->col == 0) {
            dg_buf_str(r->out, "\u25cc");
            r->col = 1;
        }
        dg_buf_add(r->out, g.s, (size_t)g.n);
        r->col += g.width;
    }
}

/* Rows of the canvas that fit; *more: those that do not. */
static int put_canvas(struct dg_view *v, int max, int *more, struct dg_buf *out) {
    struct rows r = {.v = v, .out = out, .max = max, .level = -1};
    size_t at = 0;
    if (max < 1 || !v->n)
        return 0;
    new_row(&r);
    for (int32_t i = 0; i < v->n; at = v->ends[i++])
        put_token(&r, v->glyphs.data + at, v->ends[i] - at, v->level[i]);
    if (r.level >= 0)
        dg_buf_str(out, normal(v));
    *more = r.more;
    return r.n;
}

static void put_status(struct dg_view *v, int more, struct dg_buf *out) {
    char rows[32] = "";
    size_t room = (size_t)v->opts.width - 1, n, have;
    if (more)
        snprintf(rows, sizeof rows, "  +%d rows", more);
    const char *s =
        dg_glyph_width(v->status, strlen(v->status)) + strlen(rows) <= room || !v->status_short[0] ? v->status : v->status_short;
    dg_buf_str(out, dim(v));
    n = strlen(s);
    have = n < room ? n : room;
    dg_buf_add(out, s, have);
    if (have + strlen(rows) <= room)
        dg_buf_str(out, rows);
    dg_buf_str(out, normal(v));
}

/* The whole region. */
static enum dg_status draw(struct dg_view *v, struct dg_buf *out) {
    int used = 0, more = 0, max = v->opts.height;
    dg_buf_str(out, SYNC_ON);
    if (!v->hidden)
        dg_buf_str(out, "\033[?25l");
    v->hidden = true;
    to_top(v, out);
    if (v->line.len && max > 1) {
        put_row(v, out);
        /* with a full row the cursor still stands on its last character */
        bool full = dg_glyph_width(v->line.data + v->row, v->line.len - v->row) >= (size_t)v->opts.width;
        dg_buf_str(out, full ? "\r\n" : "\033[K\r\n");
        used = 1;
    }
    if (v->opts.canvas && max - used > 1) {
        int rows = put_canvas(v, max - used - 1, &more, out);
        if (rows)
            dg_buf_str(out, "\033[K\r\n");
        used += rows;
    }
    put_status(v, more, out);
    dg_buf_str(out, "\033[K\033[J" SYNC_OFF);
    v->drawn = used + 1;
    return out->status;
}

/* --- settled text --- */

/* Where the last row of the unfinished line begins at this width, as a terminal wraps it. */
static void find_row(struct dg_view *v) {
    int col = 0, width = v->opts.width;
    uint32_t prev = 0;
    v->row = 0;
    for (size_t i = 0; i < v->line.len;) {
        struct dg_glyph g = dg_glyph_next(v->line.data + i, v->line.len - i, prev, &prev);
        if (g.width && col + g.width > width) {
            v->row = i;
            col = 0;
        }
        col += g.width;
        i += (size_t)g.used;
    }
}

static void drop_front(struct dg_buf *b, size_t n) {
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

/* Keeps a screen's worth of the past: whole lines, no more than the terminal has rows. */
static void trim_past(struct dg_view *v) {
    size_t from = v->past.len, at = v->past.len;
    v->past_lines = 0;
    for (; at > 0 && v->past_lines < v->opts.height && v->past.len - at < PAST_MAX; at--)
        if (at == 1 || v->past.data[at - 2] == '\n') {
            from = at - 1;
            v->past_lines++;
        }
    drop_front(&v->past, from);
}

/* The unfinished line is on the screen to its end; it becomes the past. */
static void end_line(struct dg_view *v, struct dg_buf *out) {
    dg_buf_str(out, "\r\n");
    dg_buf_str(&v->past, kind_code(v, v->kind));
    dg_buf_add(&v->past, v->line.data, v->line.len);
    dg_buf_str(&v->past, normal(v));
    dg_buf_str(&v->past, "\r\n");
    dg_buf_clear(&v->line);
    v->row = 0;
    if (++v->past_lines > 2 * v->opts.height || v->past.len > 2 * PAST_MAX)
        trim_past(v);
}

/* The line up to LF, made safe, behind what is there; *done: bytes taken, the LF included. */
static bool add_line(struct dg_view *v, const char *s, size_t n, size_t *done) {
    uint32_t prev = 0;
    for (*done = 0; *done < n;) {
        struct dg_glyph g = dg_glyph_next(s + *done, n - *done, prev, &prev);
        *done += (size_t)g.used;
        if (prev == '\n')
            return true;
        if (prev == '\t') {
            size_t col = dg_glyph_width(v->line.data ? v->line.data : "", v->line.len);
            dg_buf_add(&v->line, "        ", 8 - col % 8);
        } else
            dg_buf_add(&v->line, g.s, (size_t)g.n);
    }
    return false;
}

static enum dg_status text_plain(struct dg_view *v, enum dg_view_kind kind, const char *s, size_t n, struct dg_buf *out) {
    if (v->any && kind != v->kind && v->line.len)
        dg_buf_chr(out, '\n');
    v->kind = kind;
    v->any = true;
    dg_buf_add(out, s, n);
    /* all that matters here is whether a line is open */
    dg_buf_clear(&v->line);
    if (s[n - 1] != '\n')
        dg_buf_chr(&v->line, ' ');
    return out->status;
}

enum dg_status dg_view_text(struct dg_view *v, enum dg_view_kind kind, const char *s, size_t n, struct dg_buf *out) {
    if (n == 0)
        return DG_OK;
    if (v->opts.plain)
        return text_plain(v, kind, s, n, out);
    dg_buf_str(out, SYNC_ON);
    take_away(v, out);
    v->n = 0;
    if (kind != v->kind && v->line.len) {
        put_row(v, out);
        end_line(v, out);
    }
    v->kind = kind;
    v->any = true;
    /* the row that is on the screen is written anew with what is behind it, so that the terminal itself wraps it */
    while (n) {
        size_t done;
        bool ended = add_line(v, s, n, &done);
        put_row(v, out);
        find_row(v);
        if (ended)
            end_line(v, out);
        s += done;
        n -= done;
    }
    if (v->line.len) {
        /* the last row belongs to the region, which begins there */
        dg_buf_chr(out, '\r');
        v->drawn = 1;
    }
    if (v->row > DG_VIEW_LINE_MAX) {
        drop_front(&v->line, v->row);
        v->row = 0;
    }
    dg_buf_str(out, SYNC_OFF);
    return v->line.status != DG_OK ? v->line.status : v->past.status != DG_OK ? v->past.status : out->status;
}

/* --- steps --- */

static enum dg_status keep_canvas(struct dg_view *v, const struct dg_step_event *e) {
    if (e->n > v->cap) {
        size_t *ends = dg_realloc(v->ends, (size_t)v->cap, (size_t)e->n, sizeof *ends);
        v->ends = ends ? ends : v->ends;
        uint8_t *level = dg_realloc(v->level, (size_t)v->cap, (size_t)e->n, 1);
        v->level = level ? level : v->level;
        if (!ends || !level)
            return DG_E_NOMEM;
        v->cap = e->n;
    }
    dg_buf_clear(&v->glyphs);
    v->n = 0;
    DG_TRY(dg_glyph_tokens(v->tok, e->result->result, (size_t)e->n, &v->glyphs, v->ends));
    for (int32_t i = 0; i < e->n; i++)
        v->level[i] = (uint8_t)dg_view_level(e->p_max[i]);
    v->n = e->n;
    return DG_OK;
}

enum dg_status dg_view_step(struct dg_view *v, const struct dg_step_event *e, struct dg_buf *out) {
    if (v->opts.plain)
        return DG_OK;
    if (v->opts.canvas)
        DG_TRY(keep_canvas(v, e));
    const struct dg_step_result *r = e->result;
    char again[24] = "";
    if (e->retry)
        snprintf(again, sizeof again, " (again %d)", e->retry);
    snprintf(v->status, sizeof v->status, "block %d%s  step %d/%d  T %.2f  accepted %d/%d  entropy %.3f", e->block + 1, again,
             r->step, e->steps_max, (double)e->temperature, r->n_accepted, e->n, r->mean_entropy);
    snprintf(v->status_short, sizeof v->status_short, "b%d s%d/%d T%.2f %d/%d H%.2f", e->block + 1, r->step, e->steps_max,
             (double)e->temperature, r->n_accepted, e->n, r->mean_entropy);
    return draw(v, out);
}

enum dg_status dg_view_status(struct dg_view *v, const char *text, struct dg_buf *out) {
    if (v->opts.plain)
        return DG_OK;
    snprintf(v->status, sizeof v->status, "%s", text);
    v->status_short[0] = 0;
    v->n = 0;
    return draw(v, out);
}

enum dg_status dg_view_end(struct dg_view *v, struct dg_buf *out) {
    if (v->opts.plain) {
        if (v->line.len)
            dg_buf_chr(out, '\n');
    } else {
        dg_buf_str(out, SYNC_ON);
        take_away(v, out);
        if (v->line.len) {
            put_row(v, out);
            dg_buf_str(out, "\r\n");
        }
        dg_buf_str(out, v->hidden ? "\033[?25h" SYNC_OFF : SYNC_OFF);
    }
    v->hidden = v->any = v->stale = false;
    v->drawn = 0;
    v->n = 0;
    v->kind = DG_VIEW_CONTENT;
    dg_buf_clear(&v->line);
    dg_buf_clear(&v->past);
    v->past_lines = 0;
    v->row = 0;
    return out->status;
}

void dg_view_resize(struct dg_view *v, int width, int height) {
    v->opts.width = clamp(width, 8, DG_VIEW_WIDTH_MAX);
    v->opts.height = clamp(height, 2, DG_VIEW_HEIGHT_MAX);
    if (v->opts.plain)
        return;
    find_row(v);
    v->stale = v->hidden || v->drawn || v->any;
}
