/* Shard index: the input is the index of a folder with two shards. */
#include "support/fuzz_main.h"

#include "pack/checkpoint.h"
#include "support/mkckpt.h"

#include <stdlib.h>
#include <string.h>

static char *dir;

static void clean_up(void) {
    mk_remove(dir);
    free(dir);
}

static void set_up(void) {
    struct mk_ckpt c = {0};
    dir = mk_tmpdir();
    atexit(clean_up);
    static const char *const names[] = {"a", "b", "c", "de"};
    for (int i = 0; i < 4; i++)
        mk_add(&c, names[i], "BF16", 2, 1, (int64_t[]){3})->shard = i / 2;
    for (int i = 0; i < 2; i++) {
        size_t n;
        uint8_t *f = mk_file(&c, i, &n);
        mk_put(dir, i ? "s2.safetensors" : "s1.safetensors", f, n);
        free(f);
    }
    mk_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!dir)
        set_up();
    mk_put(dir, "model.safetensors.index.json", data, size);
    struct dg_store *s;
    struct dg_error err = {0};
    struct dg_buf warnings;
    dg_buf_init(&warnings, 4096);
    if (dg_store_open(&s, &err) != DG_OK)
        abort();
    enum dg_status st = dg_checkpoint_add(s, dir, &warnings, &err);
    if (st != DG_OK && (strlen(dg_error_text(&err)) < 10 || strchr(dg_error_text(&err), '\n')))
        abort();
    dg_store_close(s);
    dg_buf_deinit(&warnings);
    dg_error_clear(&err);
    return 0;
}
