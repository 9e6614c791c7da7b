/* Safetensors header: whatever the bytes, an error or rows that lie inside them. */
#include "support/fuzz_main.h"

#include "pack/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(struct dg_store *s, const uint8_t *data, size_t size) {
    unsigned sum = 0;
    for (size_t i = 0; i < dg_store_count(s); i++) {
        const struct dg_tensor *t = dg_store_at(s, i);
        if (t->name_len == 0 || t->name_len > DG_TENSOR_NAME_MAX || t->rank > DG_TENSOR_RANK_MAX || t->kind > DG_FMT_COUNT ||
            t->data < data || t->bytes > size || t->data + t->bytes > data + size || dg_store_find(s, t->name, t->name_len) != t)
            abort();
        for (uint64_t k = 0; k < t->bytes; k++)
            sum += t->data[k];
        for (size_t k = 0; k < t->name_len; k++)
            sum += (unsigned char)t->name[k];
    }
    if (sum == 0x80000001u)
        puts("");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dg_store *s;
    struct dg_error err = {0};
    int file;
    if (dg_store_open(&s, &err) != DG_OK || dg_store_lend(s, "fuzz", data, size, &file, &err) != DG_OK)
        abort();
    enum dg_status st = dg_safetensors_add(s, file, &err);
    if (st == DG_OK)
        st = dg_store_sort(s, &err);
    if (st == DG_OK)
        check(s, data, size);
    else if (strlen(dg_error_text(&err)) < 10 || strchr(dg_error_text(&err), '\n'))
        abort();
    dg_store_close(s);
    dg_error_clear(&err);
    return 0;
}
