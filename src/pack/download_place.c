/* Where a download lies while it is incomplete, and how it becomes a model: checks, then renames. */
#include "pack/download_int.h"

#include "core/faults.h"
#include "core/mem.h"
#include "pack/checkpoint.h"
#include "pack/hub.h"
#include "pack/outdir.h"
#include "pack/pack_read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX ((off_t)16 << 20)
#define OLD_SUFFIX ".part-old"

enum dg_status dl_path(char dst[DL_PATH], const char *dir, const char *name, const char *suffix, struct dg_error *err) {
    if (snprintf(dst, DL_PATH, "%s/%s%s", dir, name, suffix) >= DL_PATH)
        return DG_FAIL(err, DG_E_LIMIT, "a path in %s is too long", dg_clip(dir, strlen(dir)).s);
    return DG_OK;
}

static bool is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

static bool exists(const char *path) {
    struct stat sb;
    return lstat(path, &sb) == 0;
}

/* Regular file of that size, links followed (the cache of other programs is made of links). */
static bool has_size(const char *path, uint64_t size) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode) && (uint64_t)sb.st_size == size;
}

static bool skip_entry(const struct dirent *e) { return strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0; }

static bool is_empty(const char *dir) {
    DIR *d = opendir(dir);
    struct dirent *e;
    bool empty = d != NULL;
    while (d && empty && (e = readdir(d)))
        empty = skip_entry(e);
    if (d)
        closedir(d);
    return empty;
}

static struct dl_file *find_file(struct dl *d, const char *name, size_t n) {
    for (size_t i = 0; i < d->n_files; i++)
        if (strlen(d->file[i].name) == n && memcmp(d->file[i].name, name, n) == 0)
            return &d->file[i];
    return NULL;
}

/* Every folder on the way, the last one included. */
static enum dg_status make_dirs(const char *path, struct dg_error *err) {
    char tmp[DL_PATH];
    size_t n = strlen(path);
    memcpy(tmp, path, n + 1);
    for (size_t i = 1; i <= n; i++)
        if (tmp[i] == '/' || tmp[i] == 0) {
            char c = tmp[i];
            tmp[i] = 0;
            if (mkdir(tmp, 0777) != 0 && errno != EEXIST && !is_dir(tmp))
                return DG_FAIL(err, DG_E_IO, "cannot make the folder %s: %s", tmp, strerror(errno));
            tmp[i] = c;
        }
    return DG_OK;
}

static void sync_dir(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

/* ---- paths ---- */

static enum dg_status locate_cache(struct dl *d, struct dg_error *err) {
    char *repo, snapshots[DL_PATH], old[80];
    DG_TRY(dg_hub_cache_repo(d->o->repo, &repo, err));
    int n = snprintf(d->repo_dir, sizeof d->repo_dir, "%s", repo);
    dg_free(repo);
    if (n >= (int)sizeof d->repo_dir)
        return DG_FAIL(err, DG_E_LIMIT, "the path of the cache folder is too long");
    DG_TRY(dl_path(snapshots, d->repo_dir, "snapshots", "", err));
    /* a leading dot hides it from the search for snapshots; beside them, so that relative links keep their meaning when they are moved */
    DG_TRY(dl_path(d->part, snapshots, ".download.part", "", err));
    if (!d->commit[0])
        return DG_OK;
    DG_TRY(dl_path(d->target, snapshots, d->commit, "", err));
    snprintf(old, sizeof old, ".%s", d->commit);
    return dl_path(d->old, snapshots, old, OLD_SUFFIX, err);
}

enum dg_status dl_locate(struct dl *d, struct dg_error *err) {
    if (!d->o->dir)
        return locate_cache(d, err);
    size_t n = strlen(d->o->dir);
    while (n > 1 && d->o->dir[n - 1] == '/')
        n--;
    const char *base = d->o->dir;
    for (size_t i = 0; i < n; i++)
        if (d->o->dir[i] == '/')
            base = d->o->dir + i + 1;
    size_t k = (size_t)(d->o->dir + n - base);
    if (k == 0 || (k == 1 && base[0] == '.') || (k == 2 && base[0] == '.' && base[1] == '.'))
        return DG_FAIL(err, DG_E_ARG, "-o %s: give the name of a new folder, e.g. -o models/%s", d->o->dir, strchr(d->o->repo, '/') + 1);
    if (n + sizeof OLD_SUFFIX + 1 > DL_PATH)
        return DG_FAIL(err, DG_E_LIMIT, "-o: the path is too long");
    snprintf(d->target, sizeof d->target, "%.*s", (int)n, d->o->dir);
    DG_TRY(dg_outdir_check_place(d->target, err));
    snprintf(d->part, sizeof d->part, "%.*s" DL_PART, (int)n, d->o->dir);
    snprintf(d->old, sizeof d->old, "%.*s" OLD_SUFFIX, (int)n, d->o->dir);
    return DG_OK;
}

/* ---- what is there ---- */

static enum dg_status lock_part(struct dl *d, struct dg_error *err) {
    char path[DL_PATH];
    DG_TRY(dl_path(path, d->part, DL_LOCK, "", err));
    for (int i = 0; i < 100; i++) {
        DG_TRY(make_dirs(d->part, err));
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return DG_FAIL(err, DG_E_IO, "cannot write in %s: %s", d->part, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int e = errno;
            close(fd);
            if (e == EWOULDBLOCK)
                return DG_FAIL(err, DG_E_IO, "another download into %s is running; wait for it, or stop it", d->part);
            return DG_FAIL(err, DG_E_IO, "cannot lock %s: %s", path, strerror(e));
        }
        /* the one before us may have moved the folder away meanwhile */
        struct stat a, b;
        if (fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev) {
            d->lock_fd = fd;
            return DG_OK;
        }
        close(fd);
    }
    return DG_FAIL(err, DG_E_IO, "cannot lock %s: it keeps changing", d->part);
}

/* Whether a file of the target is the listed one: by a record, by the name of the blob it links to, or by its hash. */
static enum dg_status is_listed_file(struct dl *d, const char *dir, const struct dl_file *f, bool *same, struct dg_error *err) {
    char path[DL_PATH], link[DL_PATH];
    *same = false;
    DG_TRY(dl_path(path, dir, f->name, "", err));
    if (!has_size(path, f->size))
        return DG_OK;
    ssize_t n = readlink(path, link, sizeof link - 1);
    link[n > 0 ? n : 0] = 0;
    const char *base = strrchr(link, '/');
    *same = (base && strcmp(base + 1, f->hash) == 0) || dl_state_vouches(dir, f);
    return *same ? DG_OK : dl_hash(path, f, dl_stop(d), same, err);
}

/* --force may replace a folder that holds a model and nothing else. */
static enum dg_status check_replaceable(const struct dl *d, struct dg_error *err) {
    DIR *dir = opendir(d->target);
    struct dirent *e;
    enum dg_status st = dir ? DG_OK : DG_FAIL(err, DG_E_IO, "cannot read %s: %s", d->target, strerror(errno));
    while (st == DG_OK && (e = readdir(dir)))
        if (!skip_entry(e) && strcmp(e->d_name, DL_STATE) && !dl_is_model_file(e->d_name))
            st = DG_FAIL(err, DG_E_ARG, "%s holds %s, which is no part of a model, so it is not replaced; give another folder with -o", d->target,
                         dg_clip(e->d_name, strlen(e->d_name)).s);
    if (dir)
        closedir(dir);
    return st;
}

static enum dg_status look_at_target(struct dl *d, bool *already, struct dg_error *err) {
    *already = false;
    if (!exists(d->target))
        return DG_OK;
    if (!is_dir(d->target))
        return DG_FAIL(err, DG_E_ARG, "%s exists and is no folder; give another one with -o", d->target);
    if (is_empty(d->target))
        return DG_OK;
    if (d->o->force)
        return d->o->dir ? check_replaceable(d, err) : DG_OK;
    size_t n_same = 0;
    for (size_t i = 0; i < d->n_files; i++) {
        bool same;
        DG_TRY(is_listed_file(d, d->target, &d->file[i], &same, err));
        n_same += same;
        if (same && !d->o->dir)
            d->file[i].where = DL_KEPT;
    }
    *already = n_same == d->n_files;
    if (!*already && d->o->dir)
        return DG_FAIL(err, DG_E_ARG,
                       "%s exists and is not a complete copy of %s (%zu of %zu files match); give another folder with -o, or --force to replace it",
                       d->target, d->o->repo, n_same, d->n_files);
    return DG_OK;
}

/* Files of an earlier call: those the record vouches for, and those that have their final name but no record. */
static enum dg_status look_at_part(struct dl *d, struct dg_error *err) {
    char path[DL_PATH], part[DL_PATH];
    dl_state_load(d, d->part);
    for (size_t i = 0; i < d->n_files; i++) {
        struct dl_file *f = &d->file[i];
        DG_TRY(dl_path(path, d->part, f->name, "", err));
        DG_TRY(dl_path(part, d->part, f->name, DL_PART, err));
        bool named = has_size(path, f->size), same = false;
        if (f->where == DL_KEPT || (f->where == DL_DONE && (named || has_size(part, f->size))))
            continue;
        f->where = DL_TODO;
        if (named)
            DG_TRY(dl_hash(path, f, dl_stop(d), &same, err));
        if (same)
            f->where = DL_DONE;
        else
            unlink(path);
    }
    return DG_OK;
}

enum dg_status dl_prepare(struct dl *d, bool *already, struct dg_error *err) {
    char state[DL_PATH], lock[DL_PATH];
    DG_TRY(dl_path(state, d->part, DL_STATE, "", err));
    DG_TRY(dl_path(lock, d->part, DL_LOCK, "", err));
    if (exists(d->part) && !exists(state) && !exists(lock) && !is_empty(d->part))
        return DG_FAIL(err, DG_E_ARG, "%s exists and is no download of this program; move it away, or give another folder with -o", d->part);
    DG_TRY(lock_part(d, err));
    DG_TRY(look_at_target(d, already, err));
    return *already ? DG_OK : look_at_part(d, err);
}

/* ---- into place ---- */

/* Removes what belongs to no listed file: shards of an older revision, halves of files that are no longer wanted. */
static void tidy(struct dl *d) {
    DIR *dir = opendir(d->part);
    struct dirent *e;
    char path[DL_PATH];
    while (dir && (e = readdir(dir))) {
        size_t n = strlen(e->d_name), k = strlen(DL_PART);
        bool half = n > k && strcmp(e->d_name + n - k, DL_PART) == 0;
        bool ours = strncmp(e->d_name, ".diffgemma.", 11) == 0;
        if (!skip_entry(e) && !ours && (half || (dl_is_model_file(e->d_name) && !find_file(d, e->d_name, n))) &&
            dl_path(path, d->part, e->d_name, "", NULL) == DG_OK)
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

static enum dg_status rename_or_fail(const char *from, const char *to, struct dg_error *err) {
    if (rename(from, to) != 0)
        return DG_FAIL(err, DG_E_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return DG_OK;
}

/* Gives every file its name; what an incomplete snapshot of the cache already had moves over, the files of other programs with it. */
static enum dg_status name_files(struct dl *d, struct dg_error *err) {
    char from[DL_PATH], to[DL_PATH];
    for (size_t i = 0; i < d->n_files; i++) {
        const struct dl_file *f = &d->file[i];
        DG_TRY(dl_path(to, d->part, f->name, "", err));
        DG_TRY(dl_path(from, f->where == DL_KEPT ? d->target : d->part, f->name, f->where == DL_KEPT ? "" : DL_PART, err));
        if (f->where == DL_KEPT || exists(from))
            DG_TRY(rename_or_fail(from, to, err));
    }
    tidy(d);
    DIR *dir = d->o->dir ? NULL : opendir(d->target);
    struct dirent *e;
    while (dir && (e = readdir(dir)))
        if (!skip_entry(e) && strncmp(e->d_name, ".diffgemma.", 11) != 0 && !find_file(d, e->d_name, strlen(e->d_name)) &&
            dl_path(from, d->target, e->d_name, "", NULL) == DG_OK && dl_path(to, d->part, e->d_name, "", NULL) == DG_OK && !exists(to))
            (void)rename(from, to);
    if (dir)
        closedir(dir);
    return DG_OK;
}

static enum dg_status check_config(const struct dl *d, struct dg_error *err) {
    char path[DL_PATH];
    struct stat sb;
    json_error_t je;
    DG_TRY(dl_path(path, d->part, "config.json", "", err));
    json_t *j = stat(path, &sb) == 0 && sb.st_size <= CONFIG_MAX ? json_load_file(path, 0, &je) : NULL;
    bool good = json_is_object(j);
    json_decref(j);
    return good ? DG_OK : DG_FAIL(err, DG_E_FORMAT, "it has no config.json that is a JSON object");
}

/* Headers and manifests only: the bytes themselves have their hashes. */
static enum dg_status check_weights(const struct dl *d, struct dg_error *err) {
    struct dg_store *s;
    if (d->pack)
        return dg_pack_check_own(d->part, err);
    DG_TRY(dg_store_open(&s, err));
    enum dg_status st = dg_checkpoint_add(s, d->part, NULL, err);
    dg_store_close(s);
    return st;
}

static enum dg_status check_model(const struct dl *d, struct dg_error *err) {
    enum dg_status st = check_config(d, err);
    if (st == DG_OK)
        st = check_weights(d, err);
    if (st != DG_OK)
        dg_error_prefix(err, "%s arrived as the hub lists it, but cannot be read", d->o->repo);
    return st;
}

/* The folder that the new one replaced. Only files of a model go; a folder with anything else in it stays. */
static void remove_old(const char *old) {
    DIR *dir = opendir(old);
    struct dirent *e;
    char path[DL_PATH];
    while (dir && (e = readdir(dir)))
        if ((dl_is_model_file(e->d_name) || strncmp(e->d_name, ".diffgemma.", 11) == 0) && dl_path(path, old, e->d_name, "", NULL) == DG_OK)
            unlink(path);
    if (dir)
        closedir(dir);
    (void)rmdir(old);
}

enum dg_status dl_place(struct dl *d, struct dg_error *err) {
    char lock[DL_PATH], parent[DL_PATH];
    DG_TRY(name_files(d, err));
    DG_TRY(check_model(d, err));
    DG_TRY(dl_state_save(d, err));
    sync_dir(d->part);
    if (exists(d->target) && rmdir(d->target) != 0) {
        remove_old(d->old);
        DG_TRY(rename_or_fail(d->target, d->old, err));
    }
    DG_TRY(rename_or_fail(d->part, d->target, err));
    if (dl_path(lock, d->target, DL_LOCK, "", NULL) == DG_OK)
        unlink(lock);
    snprintf(parent, sizeof parent, "%s", d->target);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = 0;
    sync_dir(slash ? parent : ".");
    remove_old(d->old);
    return DG_OK;
}

enum dg_status dl_write_ref(struct dl *d, struct dg_error *err) {
    char refs[DL_PATH], path[DL_PATH], tmp[DL_PATH];
    /* a commit needs no name, and other programs do not read names with folders in them as one file */
    if (!d->repo_dir[0] || strcmp(d->revision, d->commit) == 0 || strchr(d->revision, '/') || d->revision[0] == '.')
        return DG_OK;
    DG_TRY(dl_path(refs, d->repo_dir, "refs", "", err));
    DG_TRY(make_dirs(refs, err));
    DG_TRY(dl_path(path, refs, d->revision, "", err));
    DG_TRY(dl_path(tmp, d->repo_dir, ".ref.new", "", err));
    FILE *f = fopen(tmp, "wb");
    bool ok = f && fputs(d->commit, f) >= 0;
    if (f && (fflush(f) != 0 || fsync(fileno(f)) != 0))
        ok = false;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok || rename(tmp, path) != 0)
        return DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(errno));
    sync_dir(refs);
    return DG_OK;
}

void dl_unlock(struct dl *d) {
    char path[DL_PATH];
    if (d->lock_fd < 0)
        return;
    struct stat a, b;
    if (dl_path(path, d->part, DL_STATE, "", NULL) == DG_OK && !exists(path) && dl_path(path, d->part, DL_LOCK, "", NULL) == DG_OK &&
        fstat(d->lock_fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino) {
        unlink(path);
        if (rmdir(d->part) == 0 && d->repo_dir[0]) {
            if (dl_path(path, d->repo_dir, "snapshots", "", NULL) == DG_OK && rmdir(path) == 0)
                (void)rmdir(d->repo_dir);
        }
    }
    close(d->lock_fd);
    d->lock_fd = -1;
}
