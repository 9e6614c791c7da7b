#include "core/faults.h"

#include <stdio.h>
#include <string.h>

void dg_faults_init(struct dg_faults *f) {
    memset(f, 0, sizeof *f);
    dg_buf_init(&f->text, DG_FAULTS_TEXT_MAX);
}

void dg_faults_deinit(struct dg_faults *f) { dg_buf_deinit(&f->text); }

void dg_faults_add(struct dg_faults *f, enum dg_status code, const char *fmt, ...) {
    if (f->code == DG_OK || (f->code == DG_E_UNSUPPORTED && code != DG_E_UNSUPPORTED))
        f->code = code;
    f->n++;
    if (f->text.status != DG_OK) { /* full: a hostile file may have millions of faults, so do no more than count */
        f->n_unsaid++;
        return;
    }
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* one append, so that a fault is there whole or not at all */
    if (dg_buf_fmt(&f->text, "%s%s", f->text.len ? "; " : "", line) != DG_OK)
        f->n_unsaid++;
}

enum dg_status dg_faults_result(const struct dg_faults *f, const char *what, struct dg_error *err) {
    if (f->n == 0)
        return DG_OK;
    char many[64] = "", more[64] = "";
    if (f->n > 1)
        snprintf(many, sizeof many, "%zu faults: ", f->n);
    if (f->n_unsaid)
        snprintf(more, sizeof more, "%sand %zu more", f->text.len ? "; " : "", f->n_unsaid);
    return DG_FAIL(err, f->code, "%s: %s%s%s", what, many, dg_buf_cstr(&f->text), more);
}

struct dg_clip dg_clip(const char *s, size_t n) {
    struct dg_clip c;
    size_t m = n > DG_CLIP_MAX ? DG_CLIP_MAX : n;
    for (size_t i = 0; i < m; i++)
        c.s[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    memcpy(c.s + m, "...", 4);
    if (n == m)
        c.s[m] = 0;
    return c;
}
