/* manifest: what a pack says of itself. */
#include "cli/cli.h"

#include "core/mem.h"
#include "pack/hub.h"
#include "pack/pack_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void print_kinds(const struct dg_manifest *m) {
    static const char *const kinds[] = {"raw", "q4_block", "q6_block", "q8_row", "nvfp4_block"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t n = 0;
        uint64_t bytes = 0, external = 0;
        for (size_t i = 0; i < m->n_tensors; i++)
            if (strcmp(dg_manifest_kind(&m->tensor[i]), kinds[k]) == 0) {
                n++;
                bytes += m->tensor[i].bytes;
                external += m->tensor[i].source == DG_SOURCE_EXTERNAL ? m->tensor[i].bytes : 0;
            }
        if (n)
            printf("  %-12s %6zu tensors %14" PRIu64 " bytes %10.3f GiB", kinds[k], n, bytes, (double)bytes / (1 << 30));
        if (external)
            printf(", %.3f GiB of them in other files", (double)external / (1 << 30));
        if (n)
            putchar('\n');
    }
}

static const char *text_of(const char *s) { return s ? s : ""; }

static void print_summary(const struct dg_manifest *m, const char *dir) {
    size_t hashed = 0;
    for (size_t i = 0; i < m->n_tensors; i++)
        hashed += m->tensor[i].hashed;
    const char *source = text_of(m->source_model);
    printf("%s\n  version %d, profile %s, %s, made from %s\n", dir, m->version, dg_clip(m->profile, strlen(m->profile)).s,
           dg_manifest_layered(m) ? "layered" : "self-contained", dg_clip(source, strlen(source)).s);
    printf("  %zu tensors, %zu with checksum, %" PRIu64 " bytes in the canonical space", m->n_tensors, hashed, dg_manifest_total(m));
    if (m->has_split)
        printf(", experts from %" PRIu64, m->split);
    if (m->has_local_split)
        printf(" (in the blob from %" PRIu64 ")", m->local_split);
    putchar('\n');
    if (m->repo)
        printf("  over %s at revision %s\n", dg_clip(m->repo, strlen(m->repo)).s, dg_clip(text_of(m->revision), strlen(text_of(m->revision))).s);
    for (int i = 0; i < m->n_external; i++)
        printf("  reads %s, %" PRIu64 " bytes\n", dg_clip(m->external[i].path, strlen(m->external[i].path)).s, m->external[i].size);
    for (int i = 0; i < m->n_classes; i++)
        printf("  class %s is %s\n", dg_clip(m->classes[i].name, strlen(m->classes[i].name)).s,
               dg_clip(m->classes[i].format, strlen(m->classes[i].format)).s);
    print_kinds(m);
}

static void print_tensors(const struct dg_manifest *m) {
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct dg_manifest_tensor *t = &m->tensor[i];
        printf("  %-12s %-5s %14" PRIu64 " %14" PRIu64 "  %s [", dg_manifest_kind(t), t->dtype, t->offset, t->bytes,
               dg_clip(t->name, strlen(t->name)).s);
        for (int d = 0; d < t->rank; d++)
            printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
        printf("]%s\n", t->source == DG_SOURCE_EXTERNAL ? " in another file" : "");
    }
}

static enum dg_status print_json(const struct dg_manifest *m, struct dg_error *err) {
    struct dg_buf b;
    dg_buf_init(&b, DG_MANIFEST_FILE_MAX);
    enum dg_status st = dg_manifest_print(m, &b);
    if (st == DG_OK)
        fwrite(b.data, 1, b.len, stdout);
    else
        DG_FAIL(err, st, "the manifest is too long to print");
    dg_buf_deinit(&b);
    return st;
}

int dg_cmd_manifest(int argc, char **argv) {
    struct dg_model_args a;
    bool json = false, tensors = false;
    dg_model_args_init(&a);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(a),
        {"tensors", 0, DG_ARG_FLAG, &tensors, 0, 0, NULL, "list every tensor"},
        {"json", 'j', DG_ARG_FLAG, &json, 0, 0, NULL, "print the whole manifest as JSON"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("manifest"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_manifest m = {0};
    enum dg_status st = dg_runtime_flags(&r, &err);
    if (st == DG_OK)
        st = dg_runtime_find(&r, &a, &err);
    if (st == DG_OK && !dg_pack_is(r.dir))
        st = DG_FAIL(&err, DG_E_ARG, "%s is no pack: it has no " DG_MANIFEST_NAME, r.dir);
    if (st == DG_OK)
        st = dg_manifest_load(&m, r.dir, &err);
    if (st == DG_OK && json)
        st = print_json(&m, &err);
    else if (st == DG_OK) {
        print_summary(&m, r.dir);
        if (tensors)
            print_tensors(&m);
    }
    if (st != DG_OK)
        status = dg_cli_fail("manifest", &err);
    dg_manifest_deinit(&m);
    dg_runtime_close(&r);
    return status;
}
