/* Conversations on disk: head, marks, ids, then every layer's keys and values of the live positions in position order, then the XXH3
 * of all that. Little-endian, as the machines this runs on. */
#include "pipeline/conversation.h"

#include "core/files.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC "DGCONV\n\1"
#define CHUNK ((size_t)1 << 20)

struct head {
    char magic[8];
    uint64_t model; /* dg_model_id */
    int64_t len, turn_start;
    int32_t dtype, window, layers, topk_prefill;
    uint32_t n_marks, reserved;
};

struct mark_record {
    char name[DG_MARK_NAME_MAX + 1];
    int64_t pos;
};

/* Either direction: bytes pass through the hash. */
struct stream {
    FILE *f;
    const char *path;
    bool write;
    XXH3_state_t *hash;
    uint8_t *chunk; /* CHUNK bytes */
};

static enum dg_status stream_open(struct stream *s, FILE *f, const char *path, bool write, struct dg_error *err) {
    *s = (struct stream){f, path, write, XXH3_createState(), dg_calloc(CHUNK, 1)};
    if (!s->hash || !s->chunk)
        return DG_FAIL(err, DG_E_NOMEM, "no memory to %s a conversation", write ? "save" : "load");
    XXH3_64bits_reset(s->hash);
    return DG_OK;
}

static void stream_close(struct stream *s) {
    XXH3_freeState(s->hash);
    dg_free(s->chunk);
}

static enum dg_status pass(struct stream *s, void *data, size_t n, struct dg_error *err) {
    if (s->write ? fwrite(data, 1, n, s->f) != n : fread(data, 1, n, s->f) != n)
        return DG_FAIL(err, s->write || ferror(s->f) ? DG_E_IO : DG_E_FORMAT, "cannot %s %s: %s", s->write ? "write" : "read", s->path,
                       s->write || ferror(s->f) ? strerror(errno) : "the file ends early");
    XXH3_64bits_update(s->hash, data, n);
    return DG_OK;
}

static int64_t first_live(const struct dg_kv_layer *y, int64_t len) {
    return y->window && len > y->window - 1 ? len - (y->window - 1) : 0;
}

static size_t row_bytes(const struct dg_kv_layer *y) { return (size_t)y->kv_heads * dg_kv_head_bytes(y->dtype, y->hd); }

/* Runs of consecutive slots, at most a chunk at a time. */
static enum dg_status pass_plane(struct stream *s, struct dg_backend *be, const struct dg_kv_layer *y, void *plane, int64_t len,
                                 struct dg_error *err) {
    size_t row = row_bytes(y);
    int64_t most = row < CHUNK ? (int64_t)(CHUNK / row) : 0;
    if (!most)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "one position of the KV cache has %zu bytes; at most %zu can be saved", row, CHUNK);
    for (int64_t p = first_live(y, len); p < len;) {
        int64_t slot = dg_kv_slot(y, p), n = len - p;
        n = n > most ? most : n;
        n = n > y->slots - slot ? y->slots - slot : n;
        uint8_t *at = (uint8_t *)plane + (size_t)slot * row;
        if (s->write)
            be->ops->read(be, s->chunk, at, (size_t)n * row);
        DG_TRY(pass(s, s->chunk, (size_t)n * row, err));
        if (!s->write)
            be->ops->write(be, at, s->chunk, (size_t)n * row);
        p += n;
    }
    return dg_backend_status(be, err);
}

static enum dg_status pass_kv(struct stream *s, struct dg_backend *be, const struct dg_kv *kv, int64_t len, struct dg_error *err) {
    for (int32_t l = 0; l < kv->layers; l++) {
        DG_TRY(pass_plane(s, be, &kv->layer[l], kv->layer[l].k, len, err));
        DG_TRY(pass_plane(s, be, &kv->layer[l], kv->layer[l].v, len, err));
    }
    return DG_OK;
}

static struct head head_of(const struct dg_conversations *c, const struct dg_kv *kv) {
    struct head h = {.model = dg_model_id(c->be->model), .dtype = c->opts.kv, .window = kv->window, .layers = kv->layers,
                     .topk_prefill = c->opts.attention.topk_prefill};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

static enum dg_status write_all(const struct dg_conversations *c, const struct dg_conversation *v, FILE *f, const char *path, struct dg_error *err) {
    struct stream s;
    struct head h = head_of(c, &v->s->kv);
    enum dg_status st;
    h.len = v->s->kv.len;
    h.turn_start = v->turn_start;
    h.n_marks = (uint32_t)v->n_marks;
    DG_GO(stream_open(&s, f, path, true, err));
    DG_GO(pass(&s, &h, sizeof h, err));
    for (size_t i = 0; i < v->n_marks; i++) {
        struct mark_record m = {.pos = v->mark[i].pos};
        memcpy(m.name, v->mark[i].name, strlen(v->mark[i].name));
        DG_GO(pass(&s, &m, sizeof m, err));
    }
    DG_GO(pass(&s, v->s->log.v, v->s->log.n * sizeof(int32_t), err));
    DG_GO(pass_kv(&s, c->be, &v->s->kv, h.len, err));
    uint64_t sum = XXH3_64bits_digest(s.hash);
    DG_GO(pass(&s, &sum, sizeof sum, err));
    if (fflush(f) != 0 || fsync(fileno(f)) != 0)
        st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(errno));
done:
    stream_close(&s);
    return st;
}

/* So that the rename itself survives a power cut; not every file system can. */
static void sync_folder(const char *path) {
    char *copy = dg_strndup(path, strlen(path));
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        if (fsync(fd) != 0)
            errno = 0;
        close(fd);
    }
    dg_free(copy);
}

enum dg_status dg_conversation_save(const struct dg_conversations *c, const struct dg_conversation *v, const char *path, struct dg_error *err) {
    char part[4200];
    if (c->opts.attention.unwindowed)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "a conversation whose sliding layers see more than their window (DGQ_ATTN_WINDOW=0) cannot be saved");
    if (c->opts.prefill != DG_PREFILL_ONE_PATH)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "a conversation prefilled in two precisions (DGQ_FAST_PREFILL) cannot be saved");
    char target[DG_PATH_MAX];
    DG_TRY(dg_save_target(path, target, err));
    enum dg_status st = DG_OK;
    FILE *f = NULL;
    if (snprintf(part, sizeof part, "%s.%ld.part", target, (long)getpid()) >= (int)sizeof part)
        st = DG_FAIL(err, DG_E_ARG, "the path to save to is too long");
    else if (!(f = fopen(part, "wbe")))
        st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", part, strerror(errno));
    if (f) {
        st = write_all(c, v, f, part, err);
        if (fclose(f) != 0 && st == DG_OK)
            st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", part, strerror(errno));
        if (st == DG_OK && rename(part, target) != 0)
            st = DG_FAIL(err, DG_E_IO, "cannot rename %s to %s: %s", part, target, strerror(errno));
        if (st != DG_OK)
            unlink(part);
        else
            sync_folder(target);
    }
    return st;
}

static uint64_t file_bytes(const struct dg_kv *kv, const struct head *h) {
    uint64_t n = sizeof *h + h->n_marks * sizeof(struct mark_record) + (uint64_t)h->len * sizeof(int32_t) + sizeof(uint64_t);
    for (int32_t l = 0; l < kv->layers; l++)
        n += 2 * (uint64_t)(h->len - first_live(&kv->layer[l], h->len)) * row_bytes(&kv->layer[l]);
    return n;
}

static enum dg_status check_head(const struct dg_conversations *c, FILE *f, const char *path, const struct head *h, struct dg_error *err) {
    const struct dg_kv *kv = &c->planes->kv;
    struct head want = head_of(c, kv);
    struct stat sb;
    if (c->opts.prefill != DG_PREFILL_ONE_PATH)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "a saved conversation cannot go on with prompts in two precisions (DGQ_FAST_PREFILL)");
    if (memcmp(h->magic, want.magic, sizeof h->magic) != 0)
        return DG_FAIL(err, DG_E_FORMAT, "%s is no saved conversation of this version", path);
    if (h->model != want.model)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "%s was saved with another model", path);
    if (h->dtype != want.dtype || h->window != want.window || h->layers != want.layers || h->topk_prefill != want.topk_prefill)
        return DG_FAIL(err, DG_E_UNSUPPORTED, "%s was saved with another KV type or attention setting", path);
    if (h->len < 0 || h->len > kv->ctx)
        return DG_FAIL(err, DG_E_LIMIT, "%s holds %lld tokens; the context has %lld", path, (long long)h->len, (long long)kv->ctx);
    if (h->n_marks > DG_MARKS_MAX || h->turn_start < -1 || h->turn_start > h->len)
        return DG_FAIL(err, DG_E_FORMAT, "%s is damaged: its head makes no sense", path);
    if (fstat(fileno(f), &sb) != 0 || (uint64_t)sb.st_size != file_bytes(kv, h))
        return DG_FAIL(err, DG_E_FORMAT, "%s is damaged: it has %lld bytes, not the %llu its head announces", path, (long long)sb.st_size,
                       (unsigned long long)file_bytes(kv, h));
    return DG_OK;
}

enum dg_status dg_conversation_check(const struct dg_conversations *c, const char *path, struct dg_error *err) {
    struct head h;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    enum dg_status st = fread(&h, 1, sizeof h, f) == sizeof h ? check_head(c, f, path, &h, err)
                                                               : DG_FAIL(err, DG_E_FORMAT, "%s is no saved conversation: it is too short", path);
    fclose(f);
    return st;
}

static enum dg_status read_marks(struct stream *s, struct dg_conversation *v, const struct head *h, struct dg_error *err) {
    v->mark = dg_calloc(h->n_marks ? h->n_marks : 1, sizeof *v->mark);
    if (!v->mark)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the marks");
    v->cap_marks = h->n_marks ? h->n_marks : 1;
    for (uint32_t i = 0; i < h->n_marks; i++) {
        struct mark_record m;
        DG_TRY(pass(s, &m, sizeof m, err));
        if (m.pos < 0 || m.pos > h->len || memchr(m.name, 0, sizeof m.name) == NULL)
            return DG_FAIL(err, DG_E_FORMAT, "%s is damaged: mark %u", s->path, i);
        memcpy(v->mark[i].name, m.name, sizeof m.name);
        v->mark[i].pos = m.pos;
        v->n_marks++;
    }
    return DG_OK;
}

static enum dg_status read_ids(struct stream *s, struct dg_conversation *v, int64_t len, struct dg_error *err) {
    struct dg_ids *log = &v->s->log; /* its room was reserved for the whole context */
    DG_TRY(pass(s, log->v, (size_t)len * sizeof(int32_t), err));
    for (int64_t i = 0; i < len; i++)
        if (log->v[i] < 0 || log->v[i] >= v->s->cfg->vocab)
            return DG_FAIL(err, DG_E_FORMAT, "%s is damaged: token %lld", s->path, (long long)i);
    return DG_OK;
}

enum dg_status dg_conversation_load(struct dg_conversations *c, struct dg_conversation *v, const char *path, struct dg_error *err) {
    struct stream s = {0};
    struct dg_kv *kv = &v->s->kv;
    struct head h;
    uint64_t sum, want;
    enum dg_status st;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    DG_GO(stream_open(&s, f, path, false, err));
    DG_GO(pass(&s, &h, sizeof h, err));
    DG_GO(check_head(c, f, path, &h, err));
    DG_GO(read_marks(&s, v, &h, err));
    DG_GO(read_ids(&s, v, h.len, err));
    DG_GO(pass_kv(&s, c->be, kv, h.len, err));
    sum = XXH3_64bits_digest(s.hash);
    DG_GO(pass(&s, &want, sizeof want, err));
    if (sum != want)
        DG_GO(DG_FAIL(err, DG_E_FORMAT, "%s is damaged: its checksum does not match", path));
    kv->len = h.len;
    v->s->log.n = (size_t)h.len;
    v->turn_start = h.turn_start;
    /* only the window before the end was saved: as if the ring had been written so far that a cut must compute again */
    kv->high = h.len > kv->window - 1 ? h.len + kv->ring - (kv->window - 1) : h.len;
done:
    if (st != DG_OK)
        v->n_marks = 0;
    stream_close(&s);
    fclose(f);
    return st;
}
