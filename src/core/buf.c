#include "core/buf.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

void dg_buf_init(struct dg_buf *b, size_t max) {
    memset(b, 0, sizeof *b);
    b->max = max;
}

void dg_buf_deinit(struct dg_buf *b) {
    dg_free(b->data);
    memset(b, 0, sizeof *b);
}

void dg_buf_clear(struct dg_buf *b) {
    b->len = 0;
    b->status = DG_OK;
    if (b->data)
        b->data[0] = 0;
}

static enum dg_status reserve(struct dg_buf *b, size_t extra) {
    if (b->status != DG_OK)
        return b->status;
    if (extra > b->max || b->len > b->max - extra)
        return b->status = DG_E_LIMIT;
    size_t need = b->len + extra + 1;
    if (need <= b->cap)
        return DG_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *p = dg_realloc(b->data, b->len, cap, 1);
    if (!p)
        return b->status = DG_E_NOMEM;
    b->data = p;
    b->cap = cap;
    return DG_OK;
}

enum dg_status dg_buf_add(struct dg_buf *b, const void *data, size_t n) {
    enum dg_status st = reserve(b, n);
    if (st != DG_OK)
        return st;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return DG_OK;
}

enum dg_status dg_buf_str(struct dg_buf *b, const char *s) { return dg_buf_add(b, s, strlen(s)); }

enum dg_status dg_buf_chr(struct dg_buf *b, char c) { return dg_buf_add(b, &c, 1); }

enum dg_status dg_buf_fmt(struct dg_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return b->status = DG_E_INTERNAL;
    enum dg_status st = reserve(b, (size_t)n);
    if (st != DG_OK)
        return st;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return DG_OK;
}

const char *dg_buf_cstr(const struct dg_buf *b) { return b->data ? b->data : ""; }

char *dg_buf_take(struct dg_buf *b, size_t *len) {
    if (reserve(b, 0) != DG_OK)
        return NULL;
    char *p = b->data;
    if (len)
        *len = b->len;
    p[b->len] = 0;
    b->data = NULL;
    b->len = b->cap = 0;
    return p;
}
