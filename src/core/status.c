#include "core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dg_error_text(const struct dg_error *err) {
    if (!err)
        return "";
    if (err->text)
        return err->text;
    return err->fixed[0] ? err->fixed : dg_status_name(err->code);
}

void dg_error_clear(struct dg_error *err) {
    if (!err)
        return;
    free(err->text);
    memset(err, 0, sizeof *err);
}

/* A message that does not fit and finds no memory is cut, not lost. */
static void store(struct dg_error *err, const char *prefix, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    size_t np = strlen(prefix);
    int nm = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (nm < 0)
        nm = 0;
    size_t need = np + (size_t)nm + 1;
    char *dst = need > sizeof err->fixed ? malloc(need) : NULL;
    char *old = err->text;
    err->text = dst;
    size_t cap = need;
    if (!dst) {
        dst = err->fixed;
        cap = sizeof err->fixed;
    }
    size_t n = np < cap - 1 ? np : cap - 1;
    memcpy(dst, prefix, n);
    vsnprintf(dst + n, cap - n, fmt, ap);
    free(old);
}

enum dg_status dg_error_set(struct dg_error *err, enum dg_status code, const char *file, int line, const char *fmt, ...) {
    if (!err)
        return code;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    store(err, "", fmt, ap);
    va_end(ap);
    return code;
}

static void join(struct dg_error *err, const char *prefix, const char *fmt, ...) DG_PRINTF(3, 4);
static void join(struct dg_error *err, const char *prefix, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    store(err, prefix, fmt, ap);
    va_end(ap);
}

void dg_error_prefix(struct dg_error *err, const char *fmt, ...) {
    if (!err)
        return;
    char prefix[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix - 2, fmt, ap);
    va_end(ap);
    memcpy(prefix + strlen(prefix), ": ", 3);
    const char *now = dg_error_text(err);
    size_t n = strlen(now) + 1;
    char *copy = malloc(n);
    if (!copy)
        return;
    memcpy(copy, now, n);
    join(err, prefix, "%s", copy);
    free(copy);
}

const char *dg_status_name(enum dg_status code) {
    switch (code) {
    case DG_OK: return "ok";
    case DG_E_ARG: return "argument";
    case DG_E_NOMEM: return "out of memory";
    case DG_E_IO: return "input/output";
    case DG_E_FORMAT: return "format";
    case DG_E_UNSUPPORTED: return "unsupported";
    case DG_E_LIMIT: return "limit";
    case DG_E_BACKEND: return "backend";
    case DG_E_NUMERIC: return "numeric";
    case DG_E_CANCELLED: return "cancelled";
    case DG_E_INTERNAL: return "internal";
    }
    return "unknown";
}
