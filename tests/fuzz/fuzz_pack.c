/* The reader of a pack: the input is a manifest, a NUL and a blob. Tensors that are accepted lie in their files: every byte of them is
 * read, and rows of known kinds are decoded. External files are 4096 bytes each. */
#include "support/fuzz_main.h"

#include "core/mem.h"
#include "pack/pack_read.h"

#include <stdlib.h>
#include <string.h>

#define EXTERNAL_BYTES 4096
#define ROW_MAX 65536

static volatile uint32_t sink;

static void touch(const struct dg_tensor *t) {
    static float row[ROW_MAX];
    uint32_t sum = 0;
    for (uint64_t i = 0; i < t->bytes; i++)
        sum += t->data[i];
    int64_t k = t->rank ? t->shape[t->rank - 1] : 1;
    if (t->kind < DG_FMT_COUNT && k <= ROW_MAX) {
        const struct dg_format_traits *f = dg_format_traits(t->kind);
        dg_format_traits(t->kind)->decode_row(t->data, t->data + f->mat_extra, k, row);
        for (int64_t i = 0; i < k; i++)
            sum += row[i] > 0;
        /* the last row ends where the tensor does */
        const uint8_t *last = t->data + t->bytes - dg_format_row_bytes(t->kind, k);
        f->decode_row(t->data, last, k, row);
    }
    sink = sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t external[EXTERNAL_BYTES];
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size, n_blob = nul ? size - n - 1 : 0;
    struct dg_manifest m;
    struct dg_store *s = NULL;
    struct dg_error err = {0};
    if (dg_manifest_parse(&m, (const char *)data, n, &err) != DG_OK) {
        dg_error_clear(&err);
        return 0;
    }
    struct dg_pack_files *f = dg_calloc(1, sizeof *f);
    if (!f || dg_store_open(&s, &err) != DG_OK || dg_store_lend(s, "blob", nul ? nul + 1 : NULL, n_blob, &f->blob, &err) != DG_OK)
        abort();
    for (int i = 0; i < m.n_external; i++)
        if (dg_store_lend(s, "external", external, sizeof external, &f->external[i], &err) != DG_OK)
            abort();
    if (dg_pack_add_tensors(s, &m, f, &err) == DG_OK)
        for (size_t i = 0; i < dg_store_count(s); i++)
            touch(dg_store_at(s, i));
    else if (strlen(dg_error_text(&err)) < 10 || strchr(dg_error_text(&err), '\n'))
        abort();
    dg_store_close(s);
    dg_manifest_deinit(&m);
    dg_free(f);
    dg_error_clear(&err);
    return 0;
}
