#include "pack/pack_read.h"

#include "core/mem.h"
#include "pack/checkpoint.h"
#include "pack/hub.h"
#include "pack/safetensors.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES 4096
/* A cut file has one fault, not one for each tensor in the part that is gone. */
#define BEYOND_NAMED_MAX 3

bool dg_pack_is(const char *dir) {
    char path[PATH_BYTES];
    struct stat sb;
    return snprintf(path, sizeof path, "%s/" DG_MANIFEST_NAME, dir) < (int)sizeof path && stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

enum dg_status dg_pack_header_sha256(const uint8_t *file, size_t n, char hex[65], struct dg_error *err) {
    uint64_t header = 0;
    for (int i = 7; i >= 0 && n >= 8; i--)
        header = header << 8 | file[i];
    if (n < 8 || header > n - 8 || header > DG_SAFETENSORS_HEADER_MAX)
        return DG_FAIL(err, DG_E_FORMAT, "it is no safetensors file, or cut");
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    if (EVP_Digest(file, (size_t)header + 8, sum, &len, EVP_sha256(), NULL) != 1 || len != 32)
        return DG_FAIL(err, DG_E_INTERNAL, "SHA-256 is not to be had from the crypto library");
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return DG_OK;
}

/* What the user can do about a base model that is not what the pack was made from. */
static void remedy(const struct dg_manifest *m, char *dst, size_t n) {
    if (m->repo && m->revision)
        snprintf(dst, n, "run: hf download %s --revision %s", dg_clip(m->repo, strlen(m->repo)).s, dg_clip(m->revision, strlen(m->revision)).s);
    else
        snprintf(dst, n, "make the pack again");
}

static enum dg_status external_path(const struct dg_manifest *m, const struct dg_manifest_external *x, const char *dir, char path[PATH_BYTES],
                                    struct dg_error *err) {
    char snapshot[PATH_BYTES], what[600];
    int n;
    if (x->pack_bin)
        n = snprintf(path, PATH_BYTES, "%s%s%s", x->path[0] == '/' ? "" : dir, x->path[0] == '/' ? "" : "/", x->path);
    else if (!m->repo || !m->revision)
        return DG_FAIL(err, DG_E_FORMAT, "external file %s is a base model's, but the manifest names no base_model",
                       dg_clip(x->key, strlen(x->key)).s);
    else if (!dg_hub_snapshot(m->repo, m->revision, snapshot, sizeof snapshot)) {
        remedy(m, what, sizeof what);
        return DG_FAIL(err, DG_E_IO, "the base model %s at revision %s is not in the Hugging Face cache; %s", dg_clip(m->repo, strlen(m->repo)).s,
                       dg_clip(m->revision, strlen(m->revision)).s, what);
    } else
        n = snprintf(path, PATH_BYTES, "%s/%s", snapshot, x->path);
    return n < PATH_BYTES ? DG_OK : DG_FAIL(err, DG_E_LIMIT, "path too long");
}

static enum dg_status map_external(struct dg_store *s, const struct dg_manifest *m, int i, const char *dir, struct dg_pack_files *f,
                                   struct dg_error *err) {
    const struct dg_manifest_external *x = &m->external[i];
    char path[PATH_BYTES], what[600], hex[65];
    size_t size;
    DG_TRY(external_path(m, x, dir, path, err));
    remedy(m, what, sizeof what);
    struct dg_error own = {0};
    enum dg_status st = dg_store_map(s, path, &f->external[i], &own);
    if (st != DG_OK) {
        DG_FAIL(err, st, "%s; %s", dg_error_text(&own), what);
        dg_error_clear(&own);
        return st;
    }
    const uint8_t *bytes = dg_store_bytes(s, f->external[i], &size);
    if (size != x->size)
        return DG_FAIL(err, DG_E_IO, "%s has %zu bytes, but the pack was made from a file of %" PRIu64 "; %s", path, size, x->size, what);
    if (!x->sha256)
        return DG_OK;
    st = dg_pack_header_sha256(bytes, size, hex, &own);
    if (st == DG_OK && strcmp(hex, x->sha256) != 0)
        st = DG_FAIL(&own, DG_E_IO, "its header is not that of the file the pack was made from");
    if (st != DG_OK)
        DG_FAIL(err, st, "%s: %s; %s", path, dg_error_text(&own), what);
    dg_error_clear(&own);
    return st;
}

enum dg_status dg_pack_map_files(struct dg_store *s, const struct dg_manifest *m, const char *dir, struct dg_pack_files *f, struct dg_error *err) {
    char path[PATH_BYTES];
    bool needed = false;
    f->blob = -1;
    for (size_t i = 0; i < m->n_tensors && !needed; i++)
        needed = m->tensor[i].source != DG_SOURCE_EXTERNAL;
    if (snprintf(path, sizeof path, "%s/%s", dir, m->blob_file) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    if (needed) {
        enum dg_status st = dg_store_map(s, path, &f->blob, err);
        if (st != DG_OK) {
            char what[512];
            dg_checkpoint_remedy(dir, what, sizeof what);
            dg_error_prefix(err, "the pack is not complete (%s)", what);
            return st;
        }
    }
    for (int i = 0; i < m->n_external; i++)
        DG_TRY(map_external(s, m, i, dir, f, err));
    return DG_OK;
}

void dg_pack_locate(const struct dg_manifest *m, const struct dg_manifest_tensor *t, const struct dg_pack_files *f, int *file, uint64_t *at) {
    *file = t->source == DG_SOURCE_EXTERNAL ? f->external[t->external] : f->blob;
    if (t->source != DG_SOURCE_BLOB)
        *at = t->at;
    else if (m->has_split && m->has_local_split && t->offset >= m->split)
        *at = t->offset - m->split + m->local_split;
    else
        *at = t->offset;
}

enum dg_status dg_pack_add_tensors(struct dg_store *s, const struct dg_manifest *m, const struct dg_pack_files *f, struct dg_error *err) {
    size_t names = 0;
    for (size_t i = 0; i < m->n_tensors; i++)
        names += strlen(m->tensor[i].name);
    void *block;
    DG_TRY(dg_store_alloc(s, &block, names, err));
    char *name = block;
    struct dg_faults faults;
    dg_faults_init(&faults);
    enum dg_status st = DG_OK;
    const char *cut = NULL;
    size_t n_beyond = 0;
    for (size_t i = 0; i < m->n_tensors && st == DG_OK; i++) {
        const struct dg_manifest_tensor *t = &m->tensor[i];
        int file;
        uint64_t at;
        size_t size, n = strlen(t->name);
        dg_pack_locate(m, t, f, &file, &at);
        const uint8_t *bytes = dg_store_bytes(s, file, &size);
        if (at > size || t->bytes > size - at) {
            cut = dg_store_path(s, file);
            if (n_beyond++ < BEYOND_NAMED_MAX)
                dg_faults_add(&faults, DG_E_FORMAT, "%s ends at byte %" PRIu64 " of %zu", dg_clip(t->name, n).s, at + t->bytes, size);
            continue;
        }
        struct dg_tensor row = {.name = name, .name_len = (uint16_t)n, .file = (uint16_t)file, .kind = t->kind, .rank = t->rank,
                                .dtype = t->raw ? t->dtype : dg_manifest_kind(t), .data = bytes + at, .bytes = t->bytes};
        memcpy(name, t->name, n);
        name += n;
        memcpy(row.shape, t->shape, sizeof row.shape);
        st = dg_store_add(s, &row, err);
    }
    if (st == DG_OK && faults.n) {
        char what[700];
        snprintf(what, sizeof what, "%.500s is cut, download it or make it again (%zu of %zu tensors lie beyond its end)", cut, n_beyond,
                 m->n_tensors);
        st = dg_faults_result(&faults, what, err);
    }
    dg_faults_deinit(&faults);
    return st == DG_OK ? dg_store_sort(s, err) : st;
}

static enum dg_status add(struct dg_store *s, const struct dg_manifest *m, const char *dir, struct dg_error *err) {
    struct dg_pack_files *f = dg_calloc(1, sizeof *f);
    enum dg_status st = f ? dg_pack_map_files(s, m, dir, f, err) : DG_FAIL(err, DG_E_NOMEM, "out of memory");
    if (st == DG_OK)
        st = dg_pack_add_tensors(s, m, f, err);
    if (st != DG_OK)
        dg_error_prefix(err, "%s", dir);
    dg_free(f);
    return st;
}

enum dg_status dg_pack_add(struct dg_store *s, const char *dir, struct dg_error *err) {
    struct dg_manifest m;
    DG_TRY(dg_manifest_load(&m, dir, err));
    enum dg_status st = add(s, &m, dir, err);
    dg_manifest_deinit(&m);
    return st;
}

enum dg_status dg_pack_check_own(const char *dir, struct dg_error *err) {
    struct dg_manifest m;
    struct dg_store *s = NULL;
    size_t n = 0;
    DG_TRY(dg_manifest_load(&m, dir, err));
    for (size_t i = 0; i < m.n_tensors; i++)
        if (m.tensor[i].source != DG_SOURCE_EXTERNAL)
            m.tensor[n++] = m.tensor[i];
    m.n_tensors = n;
    m.n_external = 0;
    enum dg_status st = n ? dg_store_open(&s, err) : DG_OK;
    if (st == DG_OK && n)
        st = add(s, &m, dir, err);
    dg_store_close(s);
    dg_manifest_deinit(&m);
    return st;
}

enum dg_status dg_weights_add(struct dg_store *s, const char *dir, struct dg_buf *warnings, struct dg_error *err) {
    return dg_pack_is(dir) ? dg_pack_add(s, dir, err) : dg_checkpoint_add(s, dir, warnings, err);
}
