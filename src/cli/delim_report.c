#include "cli/delim_report.h"

#include "core/faults.h"
#include "message/delims.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dg_delim_report_wanted(const struct dg_flags *f) { return f->delim_check || f->delim_check_jsonl; }

static enum dg_status record(const char *path, uint64_t seed, size_t bytes, const struct dg_delims *d, const char *first, struct dg_error *err) {
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s}", "seed", number, "bytes", (json_int_t)bytes, "lines", (json_int_t)d->lines, "quotes",
                          (json_int_t)d->quotes, "brackets", (json_int_t)d->brackets, "doubled", (json_int_t)d->doubled, "first", first);
    char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!line)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    FILE *f = fopen(path, "a");
    bool ok = f && fprintf(f, "%s\n", line) > 0;
    int e = errno;
    if (f && fclose(f) != 0) {
        ok = false;
        e = errno;
    }
    free(line);
    return ok ? DG_OK : DG_FAIL(err, DG_E_IO, "DGQ_DELIM_CHECK_JSONL: cannot append to %s: %s", path, strerror(e));
}

enum dg_status dg_delim_report(const struct dg_flags *f, uint64_t seed, const char *text, size_t n, struct dg_buf *note, struct dg_error *err) {
    struct dg_delims d;
    dg_delims_check(text, n, &d);
    struct dg_clip first = dg_clip(text + d.at, d.len);
    if (f->delim_check && dg_delims_found(&d) &&
        dg_buf_fmt(note, "delimiters: %lld odd quotes, %lld lone brackets, %lld doubled words in %lld lines, first: %s", (long long)d.quotes,
                   (long long)d.brackets, (long long)d.doubled, (long long)d.lines, first.s) != DG_OK)
        return DG_FAIL(err, note->status, "out of memory");
    return f->delim_check_jsonl ? record(f->delim_check_jsonl, seed, n, &d, first.s, err) : DG_OK;
}
