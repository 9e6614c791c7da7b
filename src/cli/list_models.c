/* --list-models: what -m could name on this machine. */
#include "cli/cli.h"

#include "convert/models.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct count {
    int complete, incomplete;
};

static void show(void *ctx, const struct dg_model_info *m) {
    struct count *n = ctx;
    if (m->complete)
        n->complete++;
    else
        n->incomplete++;
    printf("%-44s %-16s %9.2f GiB  %s\n", m->name, m->kind, (double)m->bytes / (1 << 30), m->complete ? m->dir : "INCOMPLETE");
    if (!m->complete)
        printf("    %.300s%s\n", m->why, strlen(m->why) > 300 ? "..." : "");
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int dg_list_models(void) {
    char bundled[3200];
    const char *roots[2] = {"models"};
    int n_roots = 1;
    struct count n = {0};
    struct dg_error err = {0};
    struct dg_runtime r = {0};
    if (dg_bundled_models(bundled, sizeof bundled) && !same_folder(bundled, roots[0]))
        roots[n_roots++] = bundled;
    enum dg_status st = dg_runtime_flags(&r, &err);
    if (st == DG_OK)
        st = dg_models_list(roots, n_roots, show, &n, &err);
    dg_runtime_close(&r);
    if (st != DG_OK)
        return dg_cli_fail("--list-models", &err);
    if (n.complete + n.incomplete == 0)
        printf("no models under models/ or in the Hugging Face cache; fetch one: diffgemma download google/diffusiongemma-26B-A4B-it\n");
    else if (n.incomplete)
        printf("incomplete models are never chosen: download them again or remove them\n");
    return DG_EXIT_OK;
}
