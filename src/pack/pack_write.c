#include "pack/pack_write.h"

#include "core/mem.h"
#include "pack/pack_read.h"
#include "pack/policy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int by_value(const char *a, const char *b) {
    while (*a && *b) {
        if (is_digit(*a) && is_digit(*b)) {
            while (*a == '0' && is_digit(a[1]))
                a++;
            while (*b == '0' && is_digit(b[1]))
                b++;
            size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");
            if (na != nb)
                return na < nb ? -1 : 1;
            int c = memcmp(a, b, na);
            if (c)
                return c;
            a += na;
            b += nb;
        } else if (*a != *b)
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        else
            a++, b++;
    }
    return (*a != 0) - (*b != 0);
}

static bool is_expert(const struct dg_manifest_tensor *t) {
    enum dg_class c = dg_class_of(t->name, strlen(t->name), t->rank);
    return c == DG_CLASS_GATE_UP || c == DG_CLASS_DOWN;
}

int dg_pack_order(const struct dg_manifest_tensor *a, const struct dg_manifest_tensor *b) {
    int ea = is_expert(a), eb = is_expert(b), c = ea != eb ? ea - eb : by_value(a->name, b->name);
    return c ? c : strcmp(a->name, b->name);
}

static uint64_t align(uint64_t v, uint64_t to) { return (v + to - 1) / to * to; }

void dg_pack_place(struct dg_manifest *m) {
    uint64_t at = 0;
    m->has_split = false;
    for (size_t i = 0; i < m->n_tensors; i++) {
        struct dg_manifest_tensor *t = &m->tensor[i];
        at = align(at, DG_PACK_ALIGN);
        if (!m->has_split && is_expert(t)) {
            at = align(at, DG_PACK_EXPERT_ALIGN);
            m->has_split = true;
            m->split = at;
        }
        t->offset = at;
        at += t->bytes;
    }
}

void dg_pack_place_local(struct dg_manifest *m) {
    uint64_t at = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        struct dg_manifest_tensor *t = &m->tensor[i];
        if (t->source != DG_SOURCE_LOCAL || (m->has_split && t->offset >= m->split))
            continue;
        t->at = at;
        at = align(at + t->bytes, DG_PACK_ALIGN);
    }
    m->has_local_split = m->has_split;
    m->local_split = align(at, DG_PACK_EXPERT_ALIGN);
    for (size_t i = 0; i < m->n_tensors; i++) {
        struct dg_manifest_tensor *t = &m->tensor[i];
        if (t->source == DG_SOURCE_LOCAL && m->has_split && t->offset >= m->split)
            t->at = t->offset - m->split + m->local_split;
    }
}

static uint64_t place_of(const struct dg_manifest_tensor *t) { return t->source == DG_SOURCE_BLOB ? t->offset : t->at; }

static enum dg_status stream_blob(struct dg_manifest *m, struct dg_stream_item *items, int fd, const char *path, const struct dg_stream_opts *opts,
                                  struct dg_error *err) {
    struct dg_stream_item *run = dg_calloc(m->n_tensors, sizeof *run);
    if (!run)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    size_t n = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct dg_manifest_tensor *t = &m->tensor[i];
        if (t->source == DG_SOURCE_EXTERNAL)
            continue;
        run[n] = items[i];
        run[n].name = t->name;
        run[n].bytes = t->bytes;
        run[n].dst = fd;
        run[n].dst_path = path;
        run[n++].dst_at = place_of(t);
    }
    enum dg_status st = dg_stream_run(run, n, opts, err);
    n = 0;
    for (size_t i = 0; i < m->n_tensors && st == DG_OK; i++)
        if (m->tensor[i].source != DG_SOURCE_EXTERNAL) {
            struct dg_manifest_tensor *t = &m->tensor[i];
            uint64_t xxh3 = run[n++].xxh3;
            if (t->hashed && t->xxh3 != xxh3)
                st = DG_FAIL(err, DG_E_FORMAT, "%s: its bytes are not those its checksum was made from: the pack or its base model is damaged",
                             dg_clip(t->name, strlen(t->name)).s);
            t->hashed = true;
            t->xxh3 = xxh3;
        }
    dg_free(run);
    return st;
}

enum dg_status dg_pack_write(struct dg_outdir *d, struct dg_manifest *m, struct dg_stream_item *items, const struct dg_stream_opts *opts,
                             struct dg_error *err) {
    char path[DG_OUTDIR_PATH];
    uint64_t size = 0;
    int fd = -1;
    struct dg_buf text;
    dg_buf_init(&text, DG_MANIFEST_FILE_MAX);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i].source != DG_SOURCE_EXTERNAL && place_of(&m->tensor[i]) + m->tensor[i].bytes > size)
            size = place_of(&m->tensor[i]) + m->tensor[i].bytes;
    enum dg_status st;
    DG_GO(dg_outdir_space(d, size, err));
    DG_GO(dg_outdir_create(d, m->blob_file, size, &fd, path, err));
    DG_GO(stream_blob(m, items, fd, path, opts, err));
    DG_GO(dg_outdir_finish(&fd, path, err));
    m->version = dg_manifest_version(m);
    if (dg_manifest_print(m, &text) != DG_OK)
        st = DG_FAIL(err, text.status, "the manifest does not fit %zu MiB", DG_MANIFEST_FILE_MAX >> 20);
    else
        st = dg_outdir_put(d, DG_MANIFEST_NAME, text.data, text.len, err);
done:
    if (fd >= 0)
        close(fd);
    dg_buf_deinit(&text);
    return st;
}

enum dg_status dg_base_init(struct dg_base *b, const struct dg_store *store, struct dg_manifest *m, struct dg_error *err) {
    size_t n = (size_t)dg_store_files(store);
    *b = (struct dg_base){store, dg_calloc(n, sizeof *b->external_of), dg_calloc(n, sizeof *b->sha256)};
    m->external = dg_calloc(n, sizeof *m->external);
    if (!b->external_of || !b->sha256 || !m->external)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        b->external_of[i] = -1;
    return DG_OK;
}

void dg_base_deinit(struct dg_base *b) {
    dg_free(b->external_of);
    dg_free(b->sha256);
    *b = (struct dg_base){0};
}

enum dg_status dg_base_refer(struct dg_base *b, struct dg_manifest *m, struct dg_manifest_tensor *t, const struct dg_tensor *from,
                             struct dg_error *err) {
    size_t size;
    const uint8_t *bytes = dg_store_bytes(b->store, from->file, &size);
    int *x = &b->external_of[from->file];
    if (*x < 0) {
        const char *path = dg_store_path(b->store, from->file), *name = strrchr(path, '/');
        DG_TRY(dg_pack_header_sha256(bytes, size, b->sha256[m->n_external], err));
        *x = m->n_external++;
        struct dg_manifest_external *e = &m->external[*x];
        e->key = e->path = name ? name + 1 : path;
        e->size = size;
        e->sha256 = b->sha256[*x];
    }
    t->source = DG_SOURCE_EXTERNAL;
    t->external = (uint16_t)*x;
    t->at = (uint64_t)(from->data - bytes);
    return DG_OK;
}

enum dg_status dg_sources_open(struct dg_sources *s, const struct dg_store *store, struct dg_error *err) {
    s->n = dg_store_files(store);
    s->fd = dg_calloc((size_t)s->n, sizeof *s->fd);
    if (!s->fd) {
        s->n = 0;
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    }
    for (int i = 0; i < s->n; i++)
        s->fd[i] = -1;
    return DG_OK;
}

void dg_sources_close(struct dg_sources *s) {
    for (int i = 0; i < s->n; i++)
        if (s->fd[i] >= 0)
            close(s->fd[i]);
    dg_free(s->fd);
    *s = (struct dg_sources){0};
}

enum dg_status dg_sources_feed(struct dg_sources *s, const struct dg_store *store, const struct dg_tensor *t, struct dg_stream_item *item,
                               struct dg_error *err) {
    size_t size;
    const uint8_t *base = dg_store_bytes(store, t->file, &size);
    const char *path = dg_store_path(store, t->file);
    int *fd = &s->fd[t->file];
    if (*fd < 0) {
        struct stat sb;
        *fd = open(path, O_RDONLY | O_CLOEXEC);
        if (*fd < 0)
            return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
        if (fstat(*fd, &sb) != 0 || (uint64_t)sb.st_size != size)
            return DG_FAIL(err, DG_E_IO, "%s was changed while it was read", path);
        (void)posix_fadvise(*fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    item->src = *fd;
    item->src_path = path;
    item->src_at = (uint64_t)(t->data - base);
    return DG_OK;
}
