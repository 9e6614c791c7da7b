/* Ids to text, all at once or as they come. */
#include "core/utf8.h"
#include "tokenizer/tables.h"

void dg_decoder_init(struct dg_decoder *d, const struct dg_tokenizer *t, bool skip_control) {
    d->t = t;
    d->skip_control = skip_control;
    dg_buf_init(&d->held, DG_IDS_MAX);
}

void dg_decoder_deinit(struct dg_decoder *d) { dg_buf_deinit(&d->held); }

static enum dg_status full(enum dg_status st, const struct dg_buf *b, struct dg_error *err) {
    if (st == DG_OK)
        return DG_OK;
    return st == DG_E_LIMIT ? DG_FAIL(err, st, "the decoded text is longer than %zu bytes", b->max)
                            : DG_FAIL(err, st, "no memory for the decoded text");
}

/* The entry's spelling with every U+2581 as a space. */
static enum dg_status put_piece(struct dg_buf *out, const char *s, size_t n) {
    static const char space[] = "\xe2\x96\x81";
    const char *end = s + n;
    while (s < end) {
        const char *hit = memmem(s, (size_t)(end - s), space, 3);
        dg_buf_add(out, s, (size_t)((hit ? hit : end) - s));
        if (!hit)
            break;
        dg_buf_chr(out, ' ');
        s = hit + 3;
    }
    return out->status;
}

static enum dg_status put_held(struct dg_decoder *d, struct dg_buf *out) {
    const uint8_t *s = (const uint8_t *)d->held.data;
    size_t n = d->held.len, i = 0;
    int len;
    if (n == 0)
        return DG_OK;
    while (i < n && (len = dg_utf8_next(s + i, n - i, NULL)) > 0)
        i += (size_t)len;
    if (i == n)
        dg_buf_add(out, s, n);
    else
        for (i = 0; i < n; i++)
            dg_buf_add(out, "\xef\xbf\xbd", 3);
    dg_buf_clear(&d->held);
    return out->status;
}

enum dg_status dg_decoder_push(struct dg_decoder *d, int32_t id, struct dg_buf *out, struct dg_error *err) {
    const struct dg_tokenizer *t = d->t;
    size_t n;
    const char *s = dg_tokenizer_piece(t, id, &n);
    if (!s)
        return DG_FAIL(err, DG_E_ARG, "token id %d is out of range: the tokenizer has the ids 0 to %d", id, t->n_pieces - 1);
    if (d->skip_control && t->is_control[id])
        return DG_OK;
    int byte = dg_tok_byte_value(s, n);
    if (byte >= 0)
        return full(dg_buf_chr(&d->held, (char)byte), &d->held, err);
    DG_TRY(full(put_held(d, out), out, err));
    return full(put_piece(out, s, n), out, err);
}

enum dg_status dg_decoder_finish(struct dg_decoder *d, struct dg_buf *out, struct dg_error *err) {
    return full(put_held(d, out), out, err);
}

enum dg_status dg_tokenizer_decode(const struct dg_tokenizer *t, const int32_t *ids, size_t n, bool skip_control,
                                   struct dg_buf *out, struct dg_error *err) {
    struct dg_decoder d;
    size_t before = out->len;
    dg_decoder_init(&d, t, skip_control);
    enum dg_status st = DG_OK;
    for (size_t i = 0; i < n && st == DG_OK; i++)
        st = dg_decoder_push(&d, ids[i], out, err);
    if (st == DG_OK)
        st = dg_decoder_finish(&d, out, err);
    dg_decoder_deinit(&d);
    if (st != DG_OK && out->data) {
        out->len = before;
        out->data[before] = 0;
    }
    return st;
}
