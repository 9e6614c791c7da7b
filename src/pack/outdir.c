#include "pack/outdir.h"

#include "core/map.h"
#include "pack/manifest.h"
#include "pack/stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SIDECAR_MAX ((size_t)64 << 20)

/* OUT without final slashes; "", "." and ".." cannot be made. */
static enum dg_status set_paths(struct dg_outdir *d, const char *out, struct dg_error *err) {
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    const char *base = out + n;
    while (base > out && base[-1] != '/')
        base--;
    size_t n_base = (size_t)(out + n - base);
    if (n_base == 0 || (base[0] == '.' && (n_base == 1 || (n_base == 2 && base[1] == '.'))))
        return DG_FAIL(err, DG_E_ARG, "the output '%s' is no name for a new folder", out);
    if (n + 8 > sizeof d->final)
        return DG_FAIL(err, DG_E_ARG, "the output's path is too long");
    snprintf(d->final, sizeof d->final, "%.*s", (int)n, out);
    snprintf(d->part, sizeof d->part, "%.*s.part", (int)n, out);
    return DG_OK;
}

/* Whether a name is one that this engine writes into a model's folder. */
static bool is_ours(const char *name) {
    static const char *const ends[] = {".json", ".dgq.bin", ".safetensors", ".jinja"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* Looks at every entry of the folder; with `remove` the files of ours go. Returns whether there was nothing else in it. */
static bool sweep(int fd, bool remove) {
    int copy = dup(fd);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    bool only_ours = dir != NULL;
    if (!dir && copy >= 0)
        close(copy);
    if (dir)
        rewinddir(dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        only_ours &= is_ours(e->d_name);
        if (remove && is_ours(e->d_name))
            (void)unlinkat(fd, e->d_name, 0);
    }
    if (dir)
        closedir(dir);
    return only_ours;
}

static bool holds_model(const char *dir) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", DG_MANIFEST_NAME, DG_MANIFEST_BLOB};
    char path[PATH_MAX + 64];
    struct stat sb;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) < (int)sizeof path && stat(path, &sb) == 0)
            return true;
    return false;
}

enum dg_status dg_outdir_check_place(const char *out, struct dg_error *err) {
    char parent[DG_OUTDIR_PATH], real[PATH_MAX];
    if (strlen(out) >= sizeof parent)
        return DG_FAIL(err, DG_E_ARG, "the output's path is too long");
    memcpy(parent, out, strlen(out) + 1);
    /* folders on the way that are not there yet may be made later */
    char *up = dirname(parent);
    while (!realpath(up, real)) {
        if (strcmp(up, ".") == 0 || strcmp(up, "/") == 0)
            return DG_OK;
        up = dirname(up);
    }
    for (char *slash; !holds_model(real); *slash = 0) {
        slash = strrchr(real, '/');
        if (!slash || slash == real)
            return DG_OK;
    }
    return DG_FAIL(err, DG_E_ARG, "the output %s would lie inside the model folder %s: give another place", out, real);
}

enum dg_status dg_outdir_open(struct dg_outdir *d, const char *out, struct dg_error *err) {
    struct stat sb;
    d->fd = -1;
    DG_TRY(set_paths(d, out, err));
    DG_TRY(dg_outdir_check_place(d->final, err));
    if (lstat(d->final, &sb) == 0)
        return DG_FAIL(err, DG_E_ARG, "%s exists already: give another output or remove it", d->final);
    if (mkdir(d->part, 0777) != 0 && errno != EEXIST)
        return DG_FAIL(err, errno == ENOENT ? DG_E_ARG : DG_E_IO, "cannot make %s: %s", d->part, strerror(errno));
    int fd = open(d->part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", d->part, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return DG_FAIL(err, DG_E_ARG, "another run is writing %s", d->part);
    }
    if (!sweep(fd, false)) {
        close(fd);
        return DG_FAIL(err, DG_E_ARG, "%s is in the way and holds files that are not ours: move it or give another output", d->part);
    }
    d->fd = fd;
    (void)sweep(fd, true);
    return DG_OK;
}

enum dg_status dg_outdir_space(const struct dg_outdir *d, uint64_t bytes, struct dg_error *err) {
    struct statvfs v;
    if (fstatvfs(d->fd, &v) != 0)
        return DG_OK; /* a file system that cannot tell fails at the write, if at all */
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize;
    if (have >= bytes)
        return DG_OK;
    return DG_FAIL(err, DG_E_IO, "not enough space for %s: %.2f GiB are needed, %.2f GiB are free", d->final, (double)bytes / (1 << 30),
                   (double)have / (1 << 30));
}

enum dg_status dg_outdir_create(struct dg_outdir *d, const char *name, uint64_t bytes, int *fd, char *path, struct dg_error *err) {
    if (snprintf(path, DG_OUTDIR_PATH, "%s/%s", d->part, name) >= DG_OUTDIR_PATH)
        return DG_FAIL(err, DG_E_LIMIT, "path too long");
    *fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot make %s: %s", path, strerror(errno));
    /* space is taken at once where the file system can, so that a full disk shows before the work and not after */
    int e = 0;
    if (bytes && fallocate(*fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        e = errno;
    if (!e && ftruncate(*fd, (off_t)bytes) != 0)
        e = errno;
    if (!e)
        return DG_OK;
    close(*fd);
    *fd = -1;
    return DG_FAIL(err, DG_E_IO, "cannot write %s (%.2f GiB): %s", path, (double)bytes / (1 << 30), strerror(e));
}

enum dg_status dg_outdir_finish(int *fd, const char *path, struct dg_error *err) {
    int e = fsync(*fd) != 0 ? errno : 0;
    if (close(*fd) != 0 && !e)
        e = errno;
    *fd = -1;
    return e ? DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(e)) : DG_OK;
}

enum dg_status dg_outdir_put(struct dg_outdir *d, const char *name, const void *data, size_t n, struct dg_error *err) {
    char path[DG_OUTDIR_PATH];
    int fd;
    DG_TRY(dg_outdir_create(d, name, 0, &fd, path, err));
    enum dg_status st = dg_pwrite_all(fd, path, data, n, 0, err);
    if (st != DG_OK) {
        close(fd);
        return st;
    }
    return dg_outdir_finish(&fd, path, err);
}

enum dg_status dg_outdir_copy_as(struct dg_outdir *d, const char *path, const char *name, struct dg_error *err) {
    struct dg_map map;
    DG_TRY(dg_map_open(&map, path, err));
    enum dg_status st = map.size > SIDECAR_MAX ? DG_FAIL(err, DG_E_LIMIT, "%s is larger than 64 MiB", path)
                                               : dg_outdir_put(d, name, map.data, map.size, err);
    dg_map_close(&map);
    return st;
}

enum dg_status dg_outdir_copy_sidecars(struct dg_outdir *d, const char *dir, struct dg_error *err) {
    static const char *const names[] = {"config.json",           "generation_config.json", "tokenizer.json",          "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja",  "preprocessor_config.json", "processor_config.json"};
    char path[DG_OUTDIR_PATH];
    struct stat sb;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= (int)sizeof path)
            return DG_FAIL(err, DG_E_LIMIT, "path too long");
        if (stat(path, &sb) == 0)
            DG_TRY(dg_outdir_copy_as(d, path, names[i], err));
    }
    return DG_OK;
}

enum dg_status dg_outdir_commit(struct dg_outdir *d, struct dg_error *err) {
    char parent[DG_OUTDIR_PATH];
    struct stat sb;
    if (fsync(d->fd) != 0)
        return DG_FAIL(err, DG_E_IO, "cannot write %s: %s", d->part, strerror(errno));
    if (lstat(d->final, &sb) == 0)
        return DG_FAIL(err, DG_E_ARG, "%s appeared meanwhile; nothing was replaced", d->final);
    if (rename(d->part, d->final) != 0)
        return DG_FAIL(err, DG_E_IO, "cannot rename %s to %s: %s", d->part, d->final, strerror(errno));
    memcpy(parent, d->final, sizeof parent);
    int fd = open(dirname(parent), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    close(d->fd);
    d->fd = -1;
    return DG_OK;
}

void dg_outdir_abandon(struct dg_outdir *d) {
    if (d->fd < 0)
        return;
    (void)sweep(d->fd, true);
    (void)rmdir(d->part);
    close(d->fd);
    d->fd = -1;
}
