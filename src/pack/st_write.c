#include "pack/st_write.h"

#include "core/buf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MAX ((size_t)8 << 20)

static enum dg_status header(const struct dg_st_entry *e, size_t n, struct dg_buf *b) {
    int64_t at = 0;
    dg_buf_chr(b, '{');
    for (size_t i = 0; i < n; i++) {
        int64_t bytes = e[i].rows * e[i].cols * 4;
        dg_buf_fmt(b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld,%lld],\"data_offsets\":[%lld,%lld]}", i ? "," : "", e[i].name, e[i].dtype,
                   (long long)e[i].rows, (long long)e[i].cols, (long long)at, (long long)(at + bytes));
        at += bytes;
    }
    dg_buf_chr(b, '}');
    while (b->status == DG_OK && b->len % 8)
        dg_buf_chr(b, ' ');
    return b->status;
}

enum dg_status dg_st_save(const char *path, const struct dg_st_entry *entries, size_t n, struct dg_error *err) {
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.part", path) >= (int)sizeof tmp)
        return DG_FAIL(err, DG_E_ARG, "the path %.100s... is too long", path);
    struct dg_buf b;
    dg_buf_init(&b, HEADER_MAX);
    if (header(entries, n, &b) != DG_OK) {
        enum dg_status st = b.status;
        dg_buf_deinit(&b);
        return DG_FAIL(err, st, "no memory for the header of %s", path);
    }
    FILE *f = fopen(tmp, "wb");
    uint64_t len = b.len;
    bool ok = f && fwrite(&len, 8, 1, f) == 1 && fwrite(b.data, 1, b.len, f) == b.len;
    for (size_t i = 0; ok && i < n; i++) {
        size_t count = (size_t)(entries[i].rows * entries[i].cols);
        ok = fwrite(entries[i].data, 4, count, f) == count;
    }
    int why = errno;
    if (f && fclose(f) != 0 && ok) {
        ok = false;
        why = errno;
    }
    dg_buf_deinit(&b);
    if (ok && rename(tmp, path) != 0) {
        ok = false;
        why = errno;
    }
    if (ok)
        return DG_OK;
    unlink(tmp);
    return DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(why));
}
