/* The record of what a folder holds: progress while it is a part folder, proof of origin afterwards. */
#include "pack/download_int.h"

#include "core/buf.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_MAX ((size_t)64 << 20)

static json_t *read_record(const char *dir) {
    char path[DL_PATH];
    struct stat sb;
    if (dl_path(path, dir, DL_STATE, "", NULL) != DG_OK)
        return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    json_t *j = NULL;
    if (fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size <= (off_t)STATE_MAX)
        j = json_loadfd(fd, 0, NULL);
    close(fd);
    return j;
}

static const char *text_of(const json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

/* The row of a file with this name, size and hash. */
static const json_t *find_row(const json_t *root, const struct dl_file *f) {
    const json_t *rows = json_object_get(root, "files"), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "name"), f->name) == 0 && strcmp(text_of(row, "hash"), f->hash) == 0 &&
            json_integer_value(json_object_get(row, "size")) == (json_int_t)f->size)
            return row;
    }
    return NULL;
}

/* [[first chunk, count], ...] are whole, [[chunk, bytes], ...] begun. Anything that does not fit the file is left out. */
static void take_progress(struct dl_file *f, const json_t *row) {
    json_int_t chunk = json_integer_value(json_object_get(row, "chunk"));
    if (chunk < (json_int_t)DG_DOWNLOAD_CHUNK_MIN || chunk > (json_int_t)DG_DOWNLOAD_CHUNK_MAX || f->size == 0)
        return;
    uint64_t n_chunks = (f->size + (uint64_t)chunk - 1) / (uint64_t)chunk;
    uint32_t *have = n_chunks <= UINT32_MAX ? dg_calloc(n_chunks, sizeof *have) : NULL;
    if (!have)
        return;
    const json_t *pair;
    size_t i;
    json_array_foreach(json_object_get(row, "full"), i, pair) {
        json_int_t a = json_integer_value(json_array_get(pair, 0)), n = json_integer_value(json_array_get(pair, 1));
        for (json_int_t c = a; i < n_chunks && a >= 0 && c < (json_int_t)n_chunks && c - a < n; c++)
            have[c] = (uint32_t)((uint64_t)c + 1 < n_chunks ? (uint64_t)chunk : f->size - (uint64_t)c * (uint64_t)chunk);
    }
    json_array_foreach(json_object_get(row, "part"), i, pair) {
        json_int_t c = json_integer_value(json_array_get(pair, 0)), b = json_integer_value(json_array_get(pair, 1));
        if (c >= 0 && c < (json_int_t)n_chunks && b > 0 && (uint64_t)b <= f->size - (uint64_t)c * (uint64_t)chunk && b <= chunk)
            have[c] = (uint32_t)b;
    }
    dg_free(f->have);
    f->have = have;
    f->chunk = (uint64_t)chunk;
    f->n_chunks = (uint32_t)n_chunks;
}

void dl_state_load(struct dl *d, const char *dir) {
    json_t *root = read_record(dir);
    for (size_t i = 0; root && i < d->n_files; i++) {
        struct dl_file *f = &d->file[i];
        const json_t *row = find_row(root, f);
        if (!row)
            continue;
        if (json_is_true(json_object_get(row, "done")))
            f->where = DL_DONE;
        else
            take_progress(f, row);
    }
    json_decref(root);
}

bool dl_state_vouches(const char *dir, const struct dl_file *f) {
    json_t *root = read_record(dir);
    const json_t *row = root ? find_row(root, f) : NULL;
    bool yes = row && json_is_true(json_object_get(row, "done"));
    json_decref(root);
    return yes;
}

bool dl_state_complete(const char *dir, const char *repo, const char *commit, size_t *n, uint64_t *bytes) {
    json_t *root = read_record(dir), *row;
    const json_t *rows = json_object_get(root, "files");
    size_t i;
    bool yes = root && strcmp(text_of(root, "repo"), repo) == 0 && strcmp(text_of(root, "commit"), commit) == 0 && json_array_size(rows) > 0;
    *n = 0;
    *bytes = 0;
    json_array_foreach(rows, i, row) {
        char path[DL_PATH];
        struct stat sb;
        json_int_t size = json_integer_value(json_object_get(row, "size"));
        yes = yes && json_is_true(json_object_get(row, "done")) && dl_is_model_file(text_of(row, "name")) &&
              dl_path(path, dir, text_of(row, "name"), "", NULL) == DG_OK && stat(path, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size == size;
        if (!yes)
            break;
        ++*n;
        *bytes += (uint64_t)size;
    }
    json_decref(root);
    return yes;
}

static void put_progress(struct dg_buf *b, const struct dl_file *f) {
    dg_buf_fmt(b, ",\"chunk\":%llu,\"full\":[", (unsigned long long)f->chunk);
    bool first = true;
    for (uint32_t c = 0; c < f->n_chunks;) {
        uint32_t a = c;
        while (c < f->n_chunks && f->have[c] == (c + 1 < f->n_chunks ? f->chunk : f->size - (uint64_t)c * f->chunk))
            c++;
        if (c > a) {
            dg_buf_fmt(b, "%s[%u,%u]", first ? "" : ",", a, c - a);
            first = false;
        } else
            c++;
    }
    dg_buf_str(b, "],\"part\":[");
    first = true;
    for (uint32_t c = 0; c < f->n_chunks; c++)
        if (f->have[c] && f->have[c] != (c + 1 < f->n_chunks ? f->chunk : f->size - (uint64_t)c * f->chunk)) {
            dg_buf_fmt(b, "%s[%u,%u]", first ? "" : ",", c, f->have[c]);
            first = false;
        }
    dg_buf_chr(b, ']');
}

enum dg_status dl_state_save(struct dl *d, struct dg_error *err) {
    char path[DL_PATH], tmp[DL_PATH];
    DG_TRY(dl_path(path, d->part, DL_STATE, "", err));
    DG_TRY(dl_path(tmp, d->part, DL_STATE, ".new", err));
    struct dg_buf b;
    dg_buf_init(&b, STATE_MAX);
    pthread_mutex_lock(&d->lock);
    dg_buf_fmt(&b, "{\"repo\":\"%s\",\"commit\":\"%s\",\"files\":[", d->o->repo, d->commit);
    for (size_t i = 0; i < d->n_files; i++) {
        const struct dl_file *f = &d->file[i];
        dg_buf_fmt(&b, "%s\n{\"name\":\"%s\",\"size\":%llu,\"hash\":\"%s\",\"done\":%s", i ? "," : "", f->name, (unsigned long long)f->size, f->hash,
                   f->where == DL_TODO ? "false" : "true");
        if (f->where == DL_TODO && f->have && !f->reset)
            put_progress(&b, f);
        dg_buf_chr(&b, '}');
    }
    dg_buf_str(&b, "]}\n");
    d->dirty = false;
    pthread_mutex_unlock(&d->lock);
    enum dg_status st = b.status == DG_OK ? DG_OK : DG_FAIL(err, b.status, "the record of the download cannot be kept in memory");
    int fd = st == DG_OK ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    bool ok = fd >= 0;
    for (size_t at = 0; ok && at < b.len;) {
        ssize_t n = write(fd, b.data + at, b.len - at);
        if (n > 0)
            at += (size_t)n;
        else
            ok = n < 0 && errno == EINTR;
    }
    if (fd >= 0 && close(fd) != 0)
        ok = false;
    if (st == DG_OK && (!ok || rename(tmp, path) != 0))
        st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(errno));
    dg_buf_deinit(&b);
    return st;
}
