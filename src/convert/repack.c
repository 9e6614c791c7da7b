#include "convert/repack.h"

#include "convert/quantize.h"
#include "core/mem.h"
#include "pack/checkpoint.h"
#include "pack/hub.h"
#include "pack/pack_read.h"
#include "pack/pack_write.h"

#include <stdio.h>
#include <string.h>

#define CHUNK ((size_t)1 << 20)

struct work {
    const struct dg_repack_opts *o;
    struct dg_manifest m;
    struct dg_pack_files *files;
    struct dg_store *pack, *base;
    struct dg_sources from_pack, from_base;
    struct dg_stream_item *item, *base_item; /* by tensor */
    bool *same;                              /* by tensor: the base has these bytes */
    struct dg_base refs;
    char *base_dir;
    char repo[DG_REPO_TEXT], revision[DG_REPO_TEXT];
    struct dg_outdir out;
    /* the audit */
    atomic_size_t next;
    atomic_uint_fast64_t done;
    uint64_t total;
    atomic_bool failed;
    struct dg_error *thread_error; /* one a thread */
};

static enum dg_status open_pack(struct work *w, struct dg_error *err) {
    DG_TRY(dg_manifest_load(&w->m, w->o->pack, err));
    w->files = dg_calloc(1, sizeof *w->files);
    w->item = dg_calloc(w->m.n_tensors, sizeof *w->item);
    if (!w->files || !w->item)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    DG_TRY(dg_store_open(&w->pack, err));
    DG_TRY(dg_pack_map_files(w->pack, &w->m, w->o->pack, w->files, err));
    DG_TRY(dg_pack_add_tensors(w->pack, &w->m, w->files, err));
    DG_TRY(dg_sources_open(&w->from_pack, w->pack, err));
    for (size_t i = 0; i < w->m.n_tensors; i++) {
        const char *name = w->m.tensor[i].name;
        w->item[i].verbatim = true;
        w->item[i].bytes = w->m.tensor[i].bytes;
        DG_TRY(dg_sources_feed(&w->from_pack, w->pack, dg_store_find(w->pack, name, strlen(name)), &w->item[i], err));
    }
    return DG_OK;
}

/* The base's folder: given, or from the cache by the names given or by "repo@revision" in the manifest. */
static enum dg_status find_base(struct work *w, struct dg_error *err) {
    const struct dg_repack_opts *o = w->o;
    char path[DG_OUTDIR_PATH];
    const char *source = w->m.source_model ? w->m.source_model : "", *at = strrchr(source, '@');
    if (o->repo)
        snprintf(w->repo, sizeof w->repo, "%s", o->repo);
    else if (at)
        snprintf(w->repo, sizeof w->repo, "%.*s", (int)(at - source), source);
    if (o->revision)
        snprintf(w->revision, sizeof w->revision, "%s", o->revision);
    else if (at)
        snprintf(w->revision, sizeof w->revision, "%s", at + 1);
    if (o->base)
        DG_TRY(dg_hub_resolve(o->base, &w->base_dir, err));
    else if (!*w->repo || !*w->revision)
        return DG_FAIL(err, DG_E_ARG, "%s does not say which checkpoint it was made from: give --source, or --hf-repo and --hf-revision", o->pack);
    else if (!dg_hub_snapshot(w->repo, w->revision, path, sizeof path))
        return DG_FAIL(err, DG_E_ARG, "%s at revision %s is not in the Hugging Face cache: run: hf download %s --revision %s", w->repo, w->revision,
                       w->repo, w->revision);
    else if (!(w->base_dir = dg_strndup(path, strlen(path))))
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    return dg_repo_name(w->base_dir, o->repo, o->revision, w->repo, w->revision, err);
}

static enum dg_status open_base(struct work *w, struct dg_error *err) {
    DG_TRY(find_base(w, err));
    DG_TRY(dg_store_open(&w->base, err));
    if (dg_pack_is(w->base_dir))
        return DG_FAIL(err, DG_E_ARG, "%s is a pack: an overlay lies over a checkpoint", w->base_dir);
    DG_TRY(dg_checkpoint_add(w->base, w->base_dir, NULL, err));
    DG_TRY(dg_sources_open(&w->from_base, w->base, err));
    w->base_item = dg_calloc(w->m.n_tensors, sizeof *w->base_item);
    w->same = dg_calloc(w->m.n_tensors, sizeof *w->same);
    if (!w->base_item || !w->same)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (size_t i = 0; i < w->m.n_tensors; i++) {
        const struct dg_manifest_tensor *t = &w->m.tensor[i];
        const struct dg_tensor *b = t->raw ? dg_store_find(w->base, t->name, strlen(t->name)) : NULL;
        w->base_item[i].src = -1;
        if (!b || b->kind != t->kind || b->bytes != t->bytes || b->rank != t->rank || memcmp(b->shape, t->shape, sizeof b->shape) != 0)
            continue;
        DG_TRY(dg_sources_feed(&w->from_base, w->base, b, &w->base_item[i], err));
        w->total += t->bytes;
    }
    return DG_OK;
}

static enum dg_status compare(struct work *w, size_t i, uint8_t *a, uint8_t *b, struct dg_error *err) {
    const struct dg_stream_item *p = &w->item[i], *q = &w->base_item[i];
    bool same = true;
    for (uint64_t at = 0; at < p->bytes && same; at += CHUNK) {
        size_t n = p->bytes - at < CHUNK ? (size_t)(p->bytes - at) : CHUNK;
        DG_TRY(dg_pread_all(p->src, p->src_path, a, n, p->src_at + at, err));
        DG_TRY(dg_pread_all(q->src, q->src_path, b, n, q->src_at + at, err));
        same = memcmp(a, b, n) == 0;
        atomic_fetch_add(&w->done, n);
        if (w->o->stream.cancel && atomic_load(w->o->stream.cancel))
            return DG_FAIL(err, DG_E_CANCELLED, "interrupted; nothing was kept");
    }
    w->same[i] = same;
    return DG_OK;
}

static void audit_part(void *arg, int part, int n_parts) {
    struct work *w = arg;
    (void)n_parts;
    uint8_t *buf = dg_calloc(2, CHUNK);
    enum dg_status st = buf ? DG_OK : DG_FAIL(&w->thread_error[part], DG_E_NOMEM, "out of memory");
    for (size_t i; st == DG_OK && !atomic_load(&w->failed) && (i = atomic_fetch_add(&w->next, 1)) < w->m.n_tensors;) {
        if (w->base_item[i].src >= 0)
            st = compare(w, i, buf, buf + CHUNK, &w->thread_error[part]);
        if (part == 0 && w->o->stream.progress)
            w->o->stream.progress(w->o->stream.ctx, atomic_load(&w->done), w->total);
    }
    if (st != DG_OK)
        atomic_store(&w->failed, true);
    dg_free(buf);
}

/* Compares every raw tensor with the base. */
static enum dg_status audit(struct work *w, struct dg_error *err) {
    struct dg_pool *pool;
    DG_TRY(dg_pool_create(&pool, w->o->stream.threads, err));
    int n = dg_pool_threads(pool);
    enum dg_status st = DG_OK;
    w->thread_error = dg_calloc((size_t)n, sizeof *w->thread_error);
    if (!w->thread_error)
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
    else
        dg_pool_run(pool, audit_part, w);
    for (int i = 0; w->thread_error && i < n; i++) {
        if (st == DG_OK && w->thread_error[i].code != DG_OK)
            st = DG_FAIL(err, w->thread_error[i].code, "%s", dg_error_text(&w->thread_error[i]));
        dg_error_clear(&w->thread_error[i]);
    }
    dg_free(w->thread_error);
    dg_pool_destroy(pool);
    return st;
}

static enum dg_status lay_over(struct work *w, struct dg_repack_result *r, struct dg_error *err) {
    if (dg_manifest_layered(&w->m))
        return DG_FAIL(err, DG_E_ARG, "%s is layered already", w->o->pack);
    DG_TRY(open_base(w, err));
    DG_TRY(audit(w, err));
    DG_TRY(dg_base_init(&w->refs, w->base, &w->m, err));
    for (size_t i = 0; i < w->m.n_tensors; i++) {
        struct dg_manifest_tensor *t = &w->m.tensor[i];
        if (w->same[i]) {
            DG_TRY(dg_base_refer(&w->refs, &w->m, t, dg_store_find(w->base, t->name, strlen(t->name)), err));
            r->n_external++;
            continue;
        }
        t->source = DG_SOURCE_LOCAL;
        if (t->raw) {
            r->n_differ++;
            (void)dg_buf_fmt(&r->differ, "%s\n", dg_clip(t->name, strlen(t->name)).s);
        }
    }
    w->m.repo = w->repo;
    w->m.revision = w->revision;
    dg_pack_place_local(&w->m);
    return DG_OK;
}

static enum dg_status flatten(struct work *w, struct dg_error *err) {
    if (!dg_manifest_layered(&w->m))
        return DG_FAIL(err, DG_E_ARG, "%s is self-contained already", w->o->pack);
    for (size_t i = 0; i < w->m.n_tensors; i++)
        w->m.tensor[i].source = DG_SOURCE_BLOB;
    w->m.n_external = 0;
    w->m.has_local_split = false;
    w->m.repo = w->m.revision = NULL;
    return DG_OK;
}

static enum dg_status run(struct work *w, struct dg_repack_result *r, struct dg_error *err) {
    if (!dg_pack_is(w->o->pack))
        return DG_FAIL(err, DG_E_ARG, "%s is no pack: it has no " DG_MANIFEST_NAME, w->o->pack);
    DG_TRY(open_pack(w, err));
    DG_TRY(w->o->overlay ? lay_over(w, r, err) : flatten(w, err));
    DG_TRY(dg_outdir_open(&w->out, w->o->out, err));
    DG_TRY(dg_outdir_copy_sidecars(&w->out, w->o->pack, err));
    DG_TRY(dg_pack_write(&w->out, &w->m, w->item, &w->o->stream, err));
    return dg_outdir_commit(&w->out, err);
}

enum dg_status dg_repack(const struct dg_repack_opts *o, struct dg_repack_result *r, struct dg_error *err) {
    struct work w = {.o = o, .out.fd = -1};
    *r = (struct dg_repack_result){0};
    dg_buf_init(&r->differ, DG_REPACK_NAMES);
    enum dg_status st = run(&w, r, err);
    r->n_tensors = w.m.n_tensors;
    for (size_t i = 0; st == DG_OK && i < w.m.n_tensors; i++)
        if (w.m.tensor[i].source != DG_SOURCE_EXTERNAL)
            r->blob_bytes += w.m.tensor[i].bytes;
    dg_outdir_abandon(&w.out);
    dg_sources_close(&w.from_pack);
    dg_sources_close(&w.from_base);
    dg_free(w.files);
    dg_free(w.item);
    dg_free(w.base_item);
    dg_free(w.same);
    dg_free(w.base_dir);
    dg_manifest_deinit(&w.m);
    dg_base_deinit(&w.refs);
    dg_store_close(w.pack);
    dg_store_close(w.base);
    return st;
}
