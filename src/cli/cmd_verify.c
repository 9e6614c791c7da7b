/* verify: is a pack sound, and how far is it from its checkpoint. */
#include "cli/cli.h"

#include "cli/long_work.h"
#include "convert/verify.h"
#include "core/mem.h"
#include "pack/hub.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct options {
    struct dg_model_args model;
    const char *source;
    int64_t threads;
    bool json, quiet;
};

/* The number, or null where JSON has none. */
static json_t *real_or_null(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static void print_json(const struct dg_verify *v, const char *dir) {
    json_t *rows = json_array();
    for (size_t i = 0; v->row && i < v->m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &v->m.tensor[i];
        json_t *o = json_pack("{s:s, s:s, s:I, s:b}", "name", t->name, "kind", dg_manifest_kind(t), "bytes", (json_int_t)t->bytes, "checksum",
                              t->hashed);
        if (v->row[i].compared) {
            json_object_set_new(o, "max_error", real_or_null(v->row[i].max_error));
            json_object_set_new(o, "relative_rms", real_or_null(v->row[i].rel_rms));
        }
        json_array_append_new(rows, o);
    }
    json_t *j = json_pack("{s:s, s:b, s:I, s:s, s:I, s:o}", "pack", dir, "ok", v->faults.n == 0, "faults", (json_int_t)v->faults.n, "what",
                          dg_buf_cstr(&v->faults.text), "checksums", (json_int_t)v->n_hashed, "tensors", rows);
    if (j) {
        json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
        putchar('\n');
    }
    json_decref(j);
}

static void print_table(const struct dg_verify *v) {
    printf("%-64s %-12s %12s %12s\n", "tensor", "kind", "max error", "rel. RMS");
    for (size_t i = 0; i < v->m.n_tensors; i++)
        if (v->row[i].compared)
            printf("%-64s %-12s %12.4g %11.4f%%\n", dg_clip(v->m.tensor[i].name, strlen(v->m.tensor[i].name)).s, dg_manifest_kind(&v->m.tensor[i]), v->row[i].max_error,
                   100 * v->row[i].rel_rms);
}

static enum dg_status run(const struct options *o, struct dg_runtime *r, char **source, struct dg_long_work *lw, struct dg_verify *v,
                          struct dg_error *err) {
    DG_TRY(dg_runtime_flags(r, err));
    DG_TRY(dg_runtime_find(r, &o->model, err));
    if (o->source)
        DG_TRY(dg_hub_resolve(o->source, source, err));
    struct dg_stream_opts so = dg_long_work_opts(lw, o->threads);
    return dg_verify_run(v, r->dir, *source, &so, err);
}

int dg_cmd_verify(int argc, char **argv) {
    struct options o = {0};
    dg_model_args_init(&o.model);
    const struct dg_arg args[] = {
        DG_MODEL_ARG(o.model),
        {"source", 's', DG_ARG_STR, &o.source, 0, 0, "MODEL", "the checkpoint it was made from: report the error of every tensor"},
        {"json", 'j', DG_ARG_FLAG, &o.json, 0, 0, NULL, "print the report as JSON"},
        {"threads", 't', DG_ARG_INT, &o.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"quiet", 'q', DG_ARG_FLAG, &o.quiet, 0, 0, NULL, "no progress"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("verify"), args, DG_ARGS_COUNT(args), 0, 0, &first, &status))
        return status;
    struct dg_runtime r = {0};
    struct dg_error err = {0};
    struct dg_long_work lw;
    struct dg_verify v = {0};
    char *source = NULL;
    dg_long_work_begin(&lw, "verify", o.quiet);
    enum dg_status st = run(&o, &r, &source, &lw, &v, &err);
    double s = dg_long_work_end(&lw);
    if (st != DG_OK)
        status = dg_cli_fail("verify", &err);
    else {
        if (o.json)
            print_json(&v, r.dir);
        else if (o.source && v.row)
            print_table(&v);
        if (v.faults.n) {
            (void)dg_faults_result(&v.faults, r.dir, &err);
            (void)dg_cli_fail("verify", &err);
            status = DG_EXIT_FAILED;
        } else if (!o.json)
            printf("%s: sound: %zu tensors, %zu with checksum, %.2f GiB read in %.1f s\n", r.dir, v.m.n_tensors, v.n_hashed,
                   (double)v.bytes / (1 << 30), s);
    }
    dg_verify_deinit(&v);
    dg_free(source);
    dg_runtime_close(&r);
    return status;
}
