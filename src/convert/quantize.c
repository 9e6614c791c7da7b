#include "convert/quantize.h"

#include "core/mem.h"
#include "model/model.h"
#include "pack/pack_read.h"
#include "pack/pack_write.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor on its way into the pack. */
struct input {
    struct dg_manifest_tensor t;
    const struct dg_tensor *from;
};

struct work {
    const struct dg_quantize_opts *o;
    struct dg_model *model;
    struct input *input;
    struct dg_stream_item *item;
    float **weights; /* by tensor, or NULL */
    struct dg_manifest m;
    struct dg_sources sources;
    struct dg_outdir out;
    char **name;        /* of the tensors */
    struct dg_base base; /* of an overlay */
    char repo[DG_REPO_TEXT], revision[DG_REPO_TEXT], source_name[2 * DG_REPO_TEXT];
    uint64_t source_bytes;
    size_t n, n_quantized;
};

bool dg_repo_of(const char *dir, char repo[DG_REPO_TEXT], char revision[DG_REPO_TEXT]) {
    char real[PATH_MAX];
    const char *mark = "/models--", *p = NULL;
    if (!realpath(dir, real))
        return false;
    for (const char *q = real; (q = strstr(q, mark)); q++)
        p = q;
    if (!p)
        return false;
    const char *org = p + strlen(mark), *name = strstr(org, "--"), *snap = name ? strstr(name, "/snapshots/") : NULL;
    if (!snap || memchr(org, '/', (size_t)(snap - org)))
        return false;
    const char *rev = snap + strlen("/snapshots/");
    size_t n_rev = strlen(rev);
    if (n_rev == 0 || n_rev >= DG_REPO_TEXT || strchr(rev, '/'))
        return false;
    int n = snprintf(repo, DG_REPO_TEXT, "%.*s/%.*s", (int)(name - org), org, (int)(snap - name - 2), name + 2);
    memcpy(revision, rev, n_rev + 1);
    return n < DG_REPO_TEXT;
}

enum dg_status dg_repo_name(const char *dir, const char *given_repo, const char *given_revision, char repo[DG_REPO_TEXT],
                            char revision[DG_REPO_TEXT], struct dg_error *err) {
    if (!dg_repo_of(dir, repo, revision) && (!given_repo || !given_revision))
        return DG_FAIL(err, DG_E_ARG, "%s is no snapshot of the Hugging Face cache: say which model it is with --hf-repo and --hf-revision", dir);
    if (given_repo)
        snprintf(repo, DG_REPO_TEXT, "%s", given_repo);
    if (given_revision)
        snprintf(revision, DG_REPO_TEXT, "%s", given_revision);
    return DG_OK;
}

void dg_source_name(const char *dir, char *dst, size_t n) {
    char repo[DG_REPO_TEXT], revision[DG_REPO_TEXT], real[PATH_MAX];
    if (dg_repo_of(dir, repo, revision)) {
        snprintf(dst, n, "%s@%s", repo, revision);
        return;
    }
    const char *base = realpath(dir, real) ? strrchr(real, '/') : NULL;
    snprintf(dst, n, "%s", base ? base + 1 : "");
}

static bool starts(const struct dg_tensor *t, const char *head) {
    return t->name_len >= strlen(head) && memcmp(t->name, head, strlen(head)) == 0;
}

static bool wanted(const struct dg_tensor *t, bool vision) {
    return t->bound || (vision && (starts(t, "model.encoder.vision_tower.") || starts(t, "model.encoder.embed_vision.")));
}

static int by_place(const void *a, const void *b) { return dg_pack_order(&((const struct input *)a)->t, &((const struct input *)b)->t); }

/* Picks the tensors, gives each its format and checks that its shape takes it. */
static enum dg_status choose(struct work *w, struct dg_error *err) {
    struct dg_store *s = w->model->store;
    size_t n = dg_store_count(s);
    bool any_vision = false;
    w->input = dg_calloc(n, sizeof *w->input);
    w->name = dg_calloc(n, sizeof *w->name);
    if (!w->input || !w->name)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    struct dg_faults faults;
    dg_faults_init(&faults);
    for (size_t i = 0; i < n; i++) {
        const struct dg_tensor *t = dg_store_at(s, i);
        if (!wanted(t, w->o->vision))
            continue;
        any_vision |= !t->bound;
        enum dg_format fmt = dg_policy_format(&w->o->policy, t->name, t->name_len, t->rank);
        dg_policy_check_shape(&faults, t->name, t->name_len, fmt, t->rank, t->shape);
        w->name[w->n] = dg_strndup(t->name, t->name_len);
        if (!w->name[w->n]) {
            dg_faults_deinit(&faults);
            return DG_FAIL(err, DG_E_NOMEM, "out of memory");
        }
        bool raw = fmt == DG_FMT_COUNT;
        struct input *in = &w->input[w->n];
        in->from = t;
        in->t = (struct dg_manifest_tensor){.name = w->name[w->n], .dtype = t->dtype, .raw = raw, .rank = t->rank};
        in->t.kind = raw ? t->kind : (uint8_t)fmt;
        memcpy(in->t.shape, t->shape, sizeof in->t.shape);
        in->t.bytes = raw ? t->bytes : dg_manifest_bytes(fmt, t->rank, t->shape);
        w->n_quantized += !raw;
        w->source_bytes += t->bytes;
        w->n++;
    }
    enum dg_status st = dg_faults_result(&faults, w->o->source, err);
    dg_faults_deinit(&faults);
    DG_TRY(st);
    if (w->n > DG_MANIFEST_TENSORS_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "%s: more than %d tensors", w->o->source, DG_MANIFEST_TENSORS_MAX);
    if (w->o->vision && !any_vision)
        return DG_FAIL(err, DG_E_ARG, "%s has no vision tower: leave --vision out", w->o->source);
    qsort(w->input, w->n, sizeof *w->input, by_place);
    return DG_OK;
}

/* The norm whose output a matrix reads: its weight says how large each column's input is, which is what an error there weighs.
 * NULL = the matrix reads no norm's output. */
static const struct dg_vec *norm_before(const struct dg_model *m, const char *name) {
    static const struct {
        const char *part;
        size_t norm; /* in struct dg_layer */
    } rules[] = {
        {".q_proj.", offsetof(struct dg_layer, input_norm)},           {".k_proj.", offsetof(struct dg_layer, input_norm)},
        {".v_proj.", offsetof(struct dg_layer, input_norm)},           {".mlp.gate_proj.", offsetof(struct dg_layer, pre_ff_norm)},
        {".mlp.up_proj.", offsetof(struct dg_layer, pre_ff_norm)},     {".experts.gate_up_proj", offsetof(struct dg_layer, pre_ff_norm_2)},
    };
    int layer;
    if (strstr(name, ".self_conditioning."))
        return strstr(name, ".down_proj.") ? NULL : &m->sc.pre_norm;
    if (sscanf(name, "model.decoder.layers.%d.", &layer) != 1 || layer < 0 || layer >= m->cfg.layers)
        return NULL;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strstr(name, rules[i].part))
            return (const struct dg_vec *)((const char *)&m->layer[layer] + rules[i].norm);
    return NULL;
}

/* Squares of the norm's weights, with a floor so that no column is free to be anything. */
static enum dg_status weigh(struct work *w, size_t i, struct dg_error *err) {
    /* measured (docs/quantisation.md): it helps where steps are coarse and far apart, and does not where a group has its own minimum */
    const struct dg_vec *norm = w->item[i].to == DG_FMT_NVFP4_BLOCK ? norm_before(w->model, w->input[i].t.name) : NULL;
    if (!norm || norm->n != w->item[i].k)
        return DG_OK;
    double mean = 0;
    for (int32_t c = 0; c < norm->n; c++)
        mean += (double)norm->v[c] * (double)norm->v[c] / norm->n;
    float *v = w->weights[i] = dg_calloc((size_t)norm->n, sizeof *v);
    if (!v)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (int32_t c = 0; c < norm->n; c++) {
        double r = mean > 0 ? (double)norm->v[c] * (double)norm->v[c] / mean : 1;
        v[c] = (float)(r < 0.01 ? 0.01 : r > 100 ? 100 : r);
    }
    w->item[i].weights = v;
    return DG_OK;
}

/* How the bytes of one tensor are made. */
static enum dg_status feed(struct work *w, size_t i, struct dg_error *err) {
    const struct input *in = &w->input[i];
    struct dg_stream_item *it = &w->item[i];
    enum dg_format fmt = in->t.raw ? DG_FMT_COUNT : in->t.kind;
    const int64_t *shape = in->t.shape;
    DG_TRY(dg_sources_feed(&w->sources, w->model->store, in->from, it, err));
    it->verbatim = in->t.raw;
    if (in->t.raw)
        return DG_OK;
    it->from = in->from->kind;
    it->to = fmt;
    it->codes = dg_policy_codes(&w->o->policy, dg_class_of(in->t.name, strlen(in->t.name), in->t.rank), fmt);
    it->k = shape[in->t.rank - 1];
    it->rows = shape[in->t.rank - 2];
    it->mats = 1;
    for (int d = 0; d < in->t.rank - 2; d++)
        it->mats *= shape[d];
    return weigh(w, i, err);
}

/* Raw tensors stay where they are, the others go into the pack's blob. */
static enum dg_status lay_over(struct work *w, struct dg_error *err) {
    const struct dg_quantize_opts *o = w->o;
    DG_TRY(dg_repo_name(o->source, o->repo, o->revision, w->repo, w->revision, err));
    w->m.repo = w->repo;
    w->m.revision = w->revision;
    DG_TRY(dg_base_init(&w->base, w->model->store, &w->m, err));
    for (size_t i = 0; i < w->n; i++)
        if (w->m.tensor[i].raw)
            DG_TRY(dg_base_refer(&w->base, &w->m, &w->m.tensor[i], w->input[i].from, err));
        else
            w->m.tensor[i].source = DG_SOURCE_LOCAL;
    dg_pack_place_local(&w->m);
    return DG_OK;
}

static enum dg_status plan(struct work *w, struct dg_error *err) {
    const struct dg_policy *p = &w->o->policy;
    DG_TRY(choose(w, err));
    w->m.tensor = dg_calloc(w->n, sizeof *w->m.tensor);
    w->item = dg_calloc(w->n, sizeof *w->item);
    w->weights = dg_calloc(w->n, sizeof *w->weights);
    if (!w->m.tensor || !w->item || !w->weights)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    DG_TRY(dg_sources_open(&w->sources, w->model->store, err));
    dg_source_name(w->o->source, w->source_name, sizeof w->source_name);
    w->m.profile = p->profile;
    w->m.source_model = w->source_name;
    w->m.blob_file = DG_MANIFEST_BLOB;
    w->m.n_tensors = w->n;
    for (int c = 0; c < DG_CLASS_COUNT; c++)
        if (p->set[c]) {
            w->m.classes[w->m.n_classes].name = dg_class_name((enum dg_class)c);
            w->m.classes[w->m.n_classes++].format = p->format[c] == DG_FMT_COUNT ? "raw" : dg_format_traits(p->format[c])->name;
        }
    for (size_t i = 0; i < w->n; i++) {
        w->m.tensor[i] = w->input[i].t;
        DG_TRY(feed(w, i, err));
    }
    dg_pack_place(&w->m);
    return w->o->overlay ? lay_over(w, err) : DG_OK;
}

static enum dg_status run(struct work *w, struct dg_error *err) {
    const struct dg_quantize_opts *o = w->o;
    if (dg_pack_is(o->source))
        return DG_FAIL(err, DG_E_ARG, "%s is a pack already: quantise the checkpoint it was made from", o->source);
    if (o->policy.set[DG_CLASS_VISION] && !o->vision)
        return DG_FAIL(err, DG_E_ARG, "--set vision needs --vision, without which the vision tower is left out");
    DG_TRY(dg_model_open(&w->model, o->source, err));
    DG_TRY(plan(w, err));
    DG_TRY(dg_outdir_open(&w->out, o->out, err));
    DG_TRY(dg_outdir_copy_sidecars(&w->out, o->source, err));
    DG_TRY(dg_pack_write(&w->out, &w->m, w->item, &o->stream, err));
    return dg_outdir_commit(&w->out, err);
}

enum dg_status dg_quantize(const struct dg_quantize_opts *o, struct dg_quantize_result *r, struct dg_error *err) {
    struct work w = {.o = o, .out.fd = -1};
    enum dg_status st = run(&w, err);
    if (st == DG_OK) {
        *r = (struct dg_quantize_result){.n_tensors = w.n, .n_quantized = w.n_quantized, .source_bytes = w.source_bytes};
        for (size_t i = 0; i < w.n; i++)
            if (w.m.tensor[i].source != DG_SOURCE_EXTERNAL)
                r->pack_bytes += w.m.tensor[i].bytes;
    }
    dg_outdir_abandon(&w.out);
    dg_sources_close(&w.sources);
    for (size_t i = 0; w.weights && i < w.n; i++)
        dg_free(w.weights[i]);
    dg_free(w.weights);
    for (size_t i = 0; w.name && i < w.n; i++)
        dg_free(w.name[i]);
    dg_free(w.name);
    dg_free(w.input);
    dg_free(w.item);
    dg_manifest_deinit(&w.m);
    dg_base_deinit(&w.base);
    dg_model_close(w.model);
    return st;
}
