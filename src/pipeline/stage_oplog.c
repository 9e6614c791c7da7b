#include "pipeline/oplog.h"
#include "pipeline/stage.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct oplog_stage {
    struct dg_stage stage;
    struct dg_oplog_writer w;
    int fd;
    bool sync;
    int failed; /* errno of the first write that failed; the log ends there */
    bool told;
    dg_event_fn *emit;
    void *ctx;
};

/* One call a line, so that lines of several processes do not mix. A short write is completed. */
static void put(struct oplog_stage *o, enum dg_status rendered) {
    if (o->failed)
        return;
    if (rendered != DG_OK) {
        o->failed = rendered == DG_E_NOMEM ? ENOMEM : EFBIG;
        return;
    }
    const char *s = o->w.line.data;
    for (size_t left = o->w.line.len; left;) {
        ssize_t n = write(o->fd, s, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            o->failed = n < 0 ? errno : EIO;
            return;
        }
        s += n;
        left -= (size_t)n;
    }
}

static void tell(struct oplog_stage *o) {
    char text[256];
    if (!o->failed || o->told)
        return;
    o->told = true;
    snprintf(text, sizeof text, "the op log ends here: %s", strerror(o->failed));
    struct dg_event e = {.kind = DG_EV_NOTE, .text = text};
    o->emit(o->ctx, &e);
}

static void on_event(void *ctx, const struct dg_event *e) {
    struct oplog_stage *o = ctx;
    put(o, dg_oplog_event(&o->w, e));
    if (e->kind == DG_EV_ANSWER) {
        if (o->sync && !o->failed && fdatasync(o->fd) != 0)
            o->failed = errno;
        tell(o);
    }
    o->emit(o->ctx, e);
}

static void exec(struct dg_stage *s, const struct dg_op *op, dg_event_fn *emit, void *ctx) {
    struct oplog_stage *o = (struct oplog_stage *)s;
    o->emit = emit;
    o->ctx = ctx;
    put(o, dg_oplog_op(&o->w, op));
    dg_stage_exec(s->below, op, on_event, o);
}

static void destroy(struct dg_stage *s) {
    struct oplog_stage *o = (struct oplog_stage *)s;
    if (o->fd >= 0)
        close(o->fd);
    dg_oplog_writer_deinit(&o->w);
    dg_free(o);
}

/* A line that a killed process left unfinished is closed, so that ours begins on its own. */
static enum dg_status open_log(struct oplog_stage *o, const char *dir, struct dg_error *err) {
    char path[4200], last;
    struct stat sb;
    if (snprintf(path, sizeof path, "%s/" DG_OPLOG_FILE, dir) >= (int)sizeof path)
        return DG_FAIL(err, DG_E_ARG, "the log folder's name is too long");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return DG_FAIL(err, DG_E_IO, "cannot make the log folder %s: %s", dir, strerror(errno));
    o->fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (o->fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot open the op log %s: %s", path, strerror(errno));
    if (fstat(o->fd, &sb) == 0 && sb.st_size > 0 && pread(o->fd, &last, 1, sb.st_size - 1) == 1 && last != '\n' && write(o->fd, "\n", 1) != 1)
        return DG_FAIL(err, DG_E_IO, "cannot write the op log %s: %s", path, strerror(errno));
    return DG_OK;
}

enum dg_status dg_stage_oplog(struct dg_stage **out, struct dg_stage *below, const char *dir, const struct dg_oplog_head *head, bool sync,
                              struct dg_error *err) {
    struct oplog_stage *o = dg_calloc(1, sizeof *o);
    struct timespec now;
    char id[17];
    *out = NULL;
    if (!o) {
        dg_stage_destroy(below);
        return DG_FAIL(err, DG_E_NOMEM, "no memory for a stage");
    }
    o->stage = (struct dg_stage){exec, destroy, below};
    o->fd = -1;
    o->sync = sync;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id, sizeof id, "%08lx%04lx%04x", (unsigned long)now.tv_sec & 0xffffffffUL, (unsigned long)(now.tv_nsec >> 14) & 0xffffUL,
             (unsigned)getpid() & 0xffffu);
    dg_oplog_writer_init(&o->w, id);
    enum dg_status st = open_log(o, dir, err);
    if (st == DG_OK) {
        put(o, dg_oplog_head(&o->w, head));
        if (o->failed)
            st = DG_FAIL(err, DG_E_IO, "cannot write the op log in %s: %s", dir, strerror(o->failed));
    }
    if (st != DG_OK) {
        dg_stage_destroy(&o->stage);
        return st;
    }
    *out = &o->stage;
    return DG_OK;
}
