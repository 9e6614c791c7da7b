/* A pack's manifest: whatever the text, an error of one line or a record that prints and reads back the same. */
#include "support/fuzz_main.h"

#include "pack/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dg_manifest m, again;
    struct dg_error err = {0};
    struct dg_buf a, b;
    dg_buf_init(&a, (size_t)64 << 20);
    dg_buf_init(&b, (size_t)64 << 20);
    if (dg_manifest_parse(&m, (const char *)data, size, &err) != DG_OK) {
        if (strlen(dg_error_text(&err)) < 10 || strchr(dg_error_text(&err), '\n') || m.tensor || m.text)
            abort();
    } else {
        (void)dg_manifest_total(&m);
        (void)dg_manifest_version(&m);
        if (dg_manifest_print(&m, &a) != DG_OK || dg_manifest_parse(&again, a.data, a.len, &err) != DG_OK ||
            dg_manifest_print(&again, &b) != DG_OK || a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            abort();
        dg_manifest_deinit(&again);
        dg_manifest_deinit(&m);
    }
    dg_buf_deinit(&a);
    dg_buf_deinit(&b);
    dg_error_clear(&err);
    return 0;
}
