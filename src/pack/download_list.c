/* What a repository holds and which of it a model needs. */
#include "pack/download_int.h"

#include "core/buf.h"
#include "core/faults.h"
#include "core/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define LIST_MAX ((size_t)16 << 20) /* bytes of the hub's answer */

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && strcmp(s + n - k, suffix) == 0;
}

/* A name that is safe as a file name and inside JSON. */
static bool is_plain(const char *s) {
    static const char *const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.+=@, ";
    size_t n = strlen(s);
    return n > 0 && n < sizeof((struct dl_file *)0)->name && strspn(s, allowed) == n && s[0] != '.' && s[0] != ' ';
}

static bool is_weights(const char *name) { return ends_with(name, ".safetensors"); }
static bool is_pack_file(const char *name) { return ends_with(name, ".dgq.json") || ends_with(name, ".dgq.bin"); }

/* Small files beside the weights. What the engine does not read itself (templates, processors) is what other programs need of the same
 * folder; together they are a few KB. */
static bool is_side_file(const char *name) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja", "preprocessor_config.json", "processor_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

bool dl_is_model_file(const char *name) {
    return is_plain(name) && (is_side_file(name) || is_pack_file(name) || is_weights(name) || strcmp(name, "model.safetensors.index.json") == 0);
}

/* What the repository holds, for the choice and for the error that says why there is none. */
struct kinds {
    bool pack, single, sharded, model_named, weights, gguf, torch, config, tokenizer;
};

static void note_kind(struct kinds *k, const char *name) {
    k->pack |= strcmp(name, "model.dgq.json") == 0;
    k->single |= strcmp(name, "model.safetensors") == 0;
    k->sharded |= strcmp(name, "model.safetensors.index.json") == 0;
    k->model_named |= is_weights(name) && strncmp(name, "model", 5) == 0;
    k->weights |= is_weights(name);
    k->gguf |= ends_with(name, ".gguf");
    k->torch |= ends_with(name, ".bin") && !is_pack_file(name);
    k->config |= strcmp(name, "config.json") == 0;
    k->tokenizer |= strcmp(name, "tokenizer.json") == 0;
}

/* A pack goes before a checkpoint in the same repository; of a checkpoint the single file before shards, as the reader does it. Files named
 * model* are the ones an index refers to; others (consolidated.safetensors) hold the same weights again. */
static bool is_wanted(const struct kinds *k, const char *name) {
    if (!is_plain(name))
        return false;
    if (is_side_file(name))
        return true;
    if (k->pack)
        return is_pack_file(name);
    if (k->single)
        return strcmp(name, "model.safetensors") == 0;
    if (strcmp(name, "model.safetensors.index.json") == 0)
        return true;
    return is_weights(name) && (!k->model_named || strncmp(name, "model", 5) == 0);
}

static enum dg_status explain_kinds(const struct dl *d, const struct kinds *k, struct dg_error *err) {
    const char *id = d->o->repo;
    if (!k->pack && !k->single && !(k->sharded && k->weights)) {
        const char *what = k->gguf      ? "GGUF files"
                           : k->torch   ? "PyTorch weights"
                           : k->weights ? "safetensors files without their index"
                                        : "no weights at all";
        return DG_FAIL(err, DG_E_UNSUPPORTED,
                       "%s holds %s; this engine reads safetensors checkpoints and .dgq packs, e.g. google/diffusiongemma-26B-A4B-it",
                       id, what);
    }
    const char *missing = !k->config ? "config.json" : !k->tokenizer ? "tokenizer.json" : NULL;
    if (missing)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "%s has no %s, without which its weights cannot be run; look for another upload of the model", id,
                       missing);
    return DG_OK;
}

static bool take_hash(char dst[65], const char *s, size_t want) {
    if (!s || strlen(s) != want)
        return false;
    for (size_t i = 0; i < want; i++) {
        char c = s[i] >= 'A' && s[i] <= 'F' ? (char)(s[i] + 32) : s[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        dst[i] = c;
    }
    dst[want] = 0;
    return true;
}

/* One wanted row: size and hash must be there, or nothing could be checked later. */
static enum dg_status take_row(struct dl *d, const char *name, const json_t *row, struct dg_error *err) {
    const json_t *lfs = json_object_get(row, "lfs"), *size = json_object_get(json_is_object(lfs) ? lfs : row, "size");
    struct dl_file *f = &d->file[d->n_files];
    f->lfs = json_is_object(lfs);
    f->fd = -1;
    snprintf(f->name, sizeof f->name, "%s", name);
    const char *hash = f->lfs ? json_string_value(json_object_get(lfs, "sha256")) : json_string_value(json_object_get(row, "blobId"));
    if (!json_is_integer(size) || json_integer_value(size) < 0 || !take_hash(f->hash, hash, f->lfs ? 64 : 40))
        return DG_FAIL(err, DG_E_IO, "the file list of %s gives no size and hash for %s, so it could not be checked; is HF_ENDPOINT a hub?",
                       d->o->repo,
                       name);
    f->size = (uint64_t)json_integer_value(size);
    if (f->size > DG_DOWNLOAD_FILE_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "%s: the hub lists %llu bytes, more than any model file has", name, (unsigned long long)f->size);
    for (size_t i = 0; i < d->n_files; i++)
        if (strcmp(d->file[i].name, name) == 0)
            return DG_FAIL(err, DG_E_IO, "the file list of %s names %s twice", d->o->repo, name);
    d->n_files++;
    return DG_OK;
}

/* Small files first: what is wrong with them shows before the weights are fetched. */
static int by_size(const void *a, const void *b) {
    const struct dl_file *x = a, *y = b;
    bool wx = is_weights(x->name) || ends_with(x->name, ".dgq.bin"), wy = is_weights(y->name) || ends_with(y->name, ".dgq.bin");
    return wx != wy ? wx - wy : strcmp(x->name, y->name);
}

static enum dg_status parse(struct dl *d, const struct dg_buf *text, struct dg_error *err) {
    json_error_t je;
    json_t *root = json_loadb(dg_buf_cstr(text), text->len, JSON_REJECT_DUPLICATES, &je), *row;
    const json_t *rows = json_object_get(root, "siblings");
    const char *commit = json_string_value(json_object_get(root, "sha"));
    struct kinds k = {0};
    size_t i, n_wanted = 0;
    enum dg_status st = DG_OK;
    if (!root || !json_is_array(rows) || !take_hash(d->commit, commit, 40)) {
        st = DG_FAIL(err, DG_E_IO, "%s does not answer like a hub (no file list came back); check HF_ENDPOINT", d->origin);
        goto done;
    }
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "rfilename"));
        if (name)
            note_kind(&k, name);
    }
    DG_GO(explain_kinds(d, &k, err));
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "rfilename"));
        n_wanted += name && is_wanted(&k, name);
    }
    if (n_wanted > DG_DOWNLOAD_FILES_MAX) {
        st = DG_FAIL(err, DG_E_LIMIT, "%s: %zu model files, more than %d", d->o->repo, n_wanted, DG_DOWNLOAD_FILES_MAX);
        goto done;
    }
    d->file = dg_calloc(n_wanted, sizeof *d->file);
    if (!d->file) {
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
        goto done;
    }
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "rfilename"));
        if (name && is_wanted(&k, name))
            DG_GO(take_row(d, name, row, err));
    }
    d->pack = k.pack;
    qsort(d->file, d->n_files, sizeof *d->file, by_size);
done:
    json_decref(root);
    return st;
}

static bool collect(void *arg, const void *data, size_t n) { return dg_buf_add(arg, data, n) == DG_OK; }

static enum dg_status explain_status(const struct dl *d, const struct dg_http_reply *r, struct dg_error *err) {
    const char *id = d->o->repo;
    bool token = d->o->token && *d->o->token;
    if (strcmp(r->error, "RevisionNotFound") == 0)
        return DG_FAIL(err, DG_E_IO, "%s has no revision %s (a branch, a tag or a commit)", id, dg_clip(d->revision, strlen(d->revision)).s);
    if (strcmp(r->error, "GatedRepo") == 0)
        return DG_FAIL(err, DG_E_IO, "%s is gated: accept its terms at %s/%s, then %s", id, d->endpoint, id,
                       token ? "run this again with a token (HF_TOKEN) of that account" : "set HF_TOKEN to a read token of that account");
    if (r->status == 401 || r->status == 403)
        return DG_FAIL(err, DG_E_IO, "%s: access refused (status %ld): %s", id, r->status,
                       token ? "HF_TOKEN is not valid for it, or the name is misspelt"
                             : "the name is misspelt, or it is private or gated: set HF_TOKEN");
    if (r->status == 404)
        return DG_FAIL(err, DG_E_IO, "%s is not on %s: check the spelling%s", id, d->origin, token ? "" : "; if it is private, set HF_TOKEN");
    if (r->status == 429)
        return DG_FAIL(err, DG_E_IO, "%s refuses more requests for now (status 429): try again later%s", d->origin,
                       token ? "" : ", or set HF_TOKEN, which raises the limit");
    return DG_FAIL(err, DG_E_IO, "%s answers with status %ld: try again later", d->origin, r->status);
}

enum dg_status dl_list(struct dl *d, struct dg_error *err) {
    char url[DG_HTTP_URL_MAX];
    struct dg_http_opts ho = {.origin = d->origin, .token = d->o->token, .timeout_s = d->o->timeout_s, .stop = dl_stop(d)};
    struct dg_http *h;
    struct dg_buf text;
    struct dg_http_reply r;
    int n = snprintf(url, sizeof url, "%s/api/models/%s/revision/", d->endpoint, d->o->repo);
    static const char query[] = "?blobs=true";
    if (n >= (int)sizeof url || !dg_http_escape(url, sizeof url, d->revision, false) || strlen(url) + sizeof query > sizeof url)
        return DG_FAIL(err, DG_E_ARG, "the address of the hub or the revision is too long");
    memcpy(url + strlen(url), query, sizeof query);
    DG_TRY(dg_http_open(&h, &ho, err));
    dg_buf_init(&text, LIST_MAX);
    enum dg_status st = DG_OK;
    for (int try = 0;; try++) {
        enum dg_http_fault fault;
        dg_buf_clear(&text);
        dg_error_clear(err);
        st = dg_http_get(h, url, -1, -1, NULL, collect, &text, &r, &fault, err);
        bool again;
        if (st != DG_OK) {
            again = fault == DG_HTTP_RETRY || (fault == DG_HTTP_SETUP && try < 2);
            if (fault == DG_HTTP_CALLER)
                st = DG_FAIL(err, text.status == DG_OK ? DG_E_IO : text.status, "the file list of %s is longer than %zu MiB", d->o->repo,
                             LIST_MAX >> 20);
        } else if (r.status == 200 && !r.html)
            break;
        else {
            again = r.status == 429 || r.status == 408 || r.status >= 500;
            st = r.status == 200
                     ? DG_FAIL(err, DG_E_IO, "%s answers with a web page instead of a file list: a login page or a proxy in between?", r.host)
                     : explain_status(d, &r, err);
        }
        if (!again || try >= d->o->retries)
            break;
        double wait = dl_backoff(try, r.retry_after_s);
        pthread_mutex_lock(&d->lock);
        d->n_retries++;
        dl_note(d, "file list: %s; again in %.1f s", dg_error_text(err), wait);
        pthread_mutex_unlock(&d->lock);
        dl_report(d);
        if (!dl_sleep(d, wait)) {
            st = DG_FAIL(err, DG_E_CANCELLED, "interrupted");
            break;
        }
    }
    if (st == DG_OK)
        st = parse(d, &text, err);
    dg_buf_deinit(&text);
    dg_http_close(h);
    return st;
}
