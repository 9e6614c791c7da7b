#include "chat/tool_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 20
#define DRAIN_S 0.1 /* for output that is still in the pipes when the command has ended */

extern char **environ;

struct child {
    const struct dg_tool_command *c;
    struct dg_tool_output *out;
    pid_t pid;
    int fd[2]; /* its standard output and error, -1 = at their end */
    size_t seen;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A file in memory: no pipe that a command which does not read could fill. */
static int input_fd(const struct dg_tool_command *c) {
    int fd = memfd_create("input", MFD_CLOEXEC);
    for (size_t done = 0; fd >= 0 && done < c->n_input;) {
        ssize_t k = write(fd, c->input + done, c->n_input - done);
        if (k <= 0 && errno != EINTR) {
            close(fd);
            return -1;
        }
        done += k > 0 ? (size_t)k : 0;
    }
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    return fd;
}

static int spawn(struct child *ch, int in, int out, int errors) {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setsigdefault(&at, &all);
    posix_spawnattr_setsigmask(&at, &none);
    int e = posix_spawn_file_actions_adddup2(&fa, in, 0);
    e = e ? e : posix_spawn_file_actions_adddup2(&fa, out, 1);
    e = e ? e : posix_spawn_file_actions_adddup2(&fa, errors, 2);
    e = e ? e : posix_spawn_file_actions_addclosefrom_np(&fa, 3);
    if (!e && ch->c->dir)
        e = posix_spawn_file_actions_addchdir_np(&fa, ch->c->dir);
    e = e ? e : posix_spawnp(&ch->pid, ch->c->argv[0], &fa, &at, ch->c->argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    return e;
}

static enum dg_status start(struct child *ch, struct dg_error *err) {
    int in = input_fd(ch->c), out[2] = {-1, -1}, errors[2] = {-1, -1};
    int e = in < 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0 ? errno : 0;
    if (!e)
        e = spawn(ch, in, out[1], errors[1]);
    const int ends[] = {in, out[1], errors[1], e ? out[0] : -1, e ? errors[0] : -1};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (e)
        return DG_FAIL(err, DG_E_IO, "cannot run %s: %s", ch->c->argv[0], strerror(e));
    ch->fd[0] = out[0];
    ch->fd[1] = errors[0];
    for (int i = 0; i < 2; i++)
        fcntl(ch->fd[i], F_SETFL, O_NONBLOCK);
    return DG_OK;
}

static void keep(struct child *ch, int which, const char *s, size_t n) {
    struct dg_buf *b = which ? &ch->out->errors : &ch->out->text;
    size_t room = b->max - b->len;
    ch->seen += n;
    if (!which && n > room)
        ch->out->cut = true;
    dg_buf_add(b, s, n < room ? n : room);
}

/* What is in the pipes now. */
static void read_some(struct child *ch) {
    char chunk[16384];
    for (int i = 0; i < 2; i++)
        for (int turns = 0; ch->fd[i] >= 0 && turns < 64; turns++) {
            ssize_t k = read(ch->fd[i], chunk, sizeof chunk);
            if (k > 0)
                keep(ch, i, chunk, (size_t)k);
            else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
                close(ch->fd[i]);
                ch->fd[i] = -1;
            } else
                break;
        }
}

static bool ended(const struct child *ch) {
    siginfo_t si = {0};
    /* left unreaped, so that its group cannot become another's before it is killed */
    return waitid(P_PID, (id_t)ch->pid, &si, WEXITED | WNOHANG | WNOWAIT) != 0 || si.si_pid != 0;
}

static void watch(struct child *ch) {
    double end = now() + ch->c->timeout_s;
    while (!ended(ch)) {
        struct pollfd p[2] = {{.fd = ch->fd[0], .events = POLLIN}, {.fd = ch->fd[1], .events = POLLIN}};
        poll(p, 2, ch->fd[0] < 0 && ch->fd[1] < 0 ? 1 : POLL_MS);
        read_some(ch);
        ch->out->timed_out = now() > end;
        ch->out->flooded = ch->seen > DG_TOOL_FLOOD_MAX;
        if (ch->out->timed_out || ch->out->flooded || (ch->c->cancel && atomic_load(ch->c->cancel)))
            return;
    }
    for (double drained = now() + DRAIN_S; (ch->fd[0] >= 0 || ch->fd[1] >= 0) && now() < drained;) {
        struct pollfd p[2] = {{.fd = ch->fd[0], .events = POLLIN}, {.fd = ch->fd[1], .events = POLLIN}};
        poll(p, 2, 5);
        read_some(ch);
    }
}

enum dg_status dg_tool_run(const struct dg_tool_command *c, struct dg_tool_output *out, struct dg_error *err) {
    struct child ch = {.c = c, .out = out, .fd = {-1, -1}};
    int status = 0;
    dg_buf_init(&out->text, c->output_max);
    dg_buf_init(&out->errors, DG_TOOL_ERRORS_MAX);
    DG_TRY(start(&ch, err));
    watch(&ch);
    kill(-ch.pid, SIGKILL);
    while (waitpid(ch.pid, &status, 0) < 0 && errno == EINTR)
        ;
    for (int i = 0; i < 2; i++)
        if (ch.fd[i] >= 0)
            close(ch.fd[i]);
    out->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    out->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (out->text.status == DG_E_NOMEM || out->errors.status == DG_E_NOMEM)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for the output of %s", c->argv[0]);
    if (c->cancel && atomic_load(c->cancel))
        return DG_FAIL(err, DG_E_CANCELLED, "%s was ended", c->argv[0]);
    return DG_OK;
}

void dg_tool_output_deinit(struct dg_tool_output *out) {
    dg_buf_deinit(&out->text);
    dg_buf_deinit(&out->errors);
    memset(out, 0, sizeof *out);
}
