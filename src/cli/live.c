#include "cli/live.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAX ((size_t)64 << 20)

/* What the signal handlers need. */
static struct {
    atomic_bool *cancel;
    void (*at_prompt)(enum dg_prompt_event);
    struct termios cooked; /* of standard input before anything was changed */
    bool has_cooked;
    volatile sig_atomic_t showing; /* a reply is on the terminal */
    volatile sig_atomic_t interrupts, presses, resized;
} tty;

/* --- signals --- */

static void quiet(bool on) {
    struct termios t;
    if (!tty.has_cooked || tcgetattr(STDIN_FILENO, &t) != 0)
        return;
    if (on)
        t.c_lflag &= ~(tcflag_t)ECHO;
    else
        t.c_lflag = tty.cooked.c_lflag;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

static void restore(void) {
    static const char reset[] = "\033[?2026l\033[0m\033[J\033[?25h";
    if (tty.showing && write(STDOUT_FILENO, reset, sizeof reset - 1) < 0)
        return;
    if (tty.has_cooked)
        tcsetattr(STDIN_FILENO, TCSANOW, &tty.cooked);
}

static void die(int sig) {
    restore();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_signal(int sig) {
    int e = errno;
    if (sig == SIGWINCH) {
        tty.resized = 1;
        if (!tty.showing && tty.at_prompt)
            tty.at_prompt(DG_PROMPT_RESIZED);
    } else if (sig == SIGINT) {
        tty.interrupts = 1;
        tty.presses = tty.cancel && atomic_load(tty.cancel) ? tty.presses + 1 : 1;
        if (tty.cancel)
            atomic_store(tty.cancel, true);
        if (tty.presses > 2)
            die(sig);
    } else if (sig == SIGTSTP) {
        if (!tty.showing && tty.at_prompt)
            tty.at_prompt(DG_PROMPT_STOPPING);
        restore();
        raise(SIGSTOP);
        /* awake again */
        if (tty.showing) {
            tty.resized = 1;
            quiet(true);
        } else if (tty.at_prompt)
            tty.at_prompt(DG_PROMPT_AWAKE);
    } else
        die(sig);
    errno = e;
}

static const int handled[] = {SIGINT, SIGWINCH, SIGTSTP, SIGTERM, SIGHUP, SIGQUIT};
#define HANDLED (sizeof handled / sizeof *handled)

void dg_live_signals(atomic_bool *cancel, void (*at_prompt)(enum dg_prompt_event)) {
    tty.cancel = cancel;
    tty.at_prompt = at_prompt;
    tty.has_cooked = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &tty.cooked) == 0;
    for (size_t i = 0; i < HANDLED; i++) {
        struct sigaction old, a = {.sa_handler = on_signal, .sa_flags = handled[i] == SIGINT ? 0 : SA_RESTART};
        sigemptyset(&a.sa_mask);
        /* what the caller of this program ignores stays ignored, but for Ctrl-C */
        if (sigaction(handled[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN && handled[i] != SIGINT)
            continue;
        sigaction(handled[i], &a, NULL);
    }
}

void dg_live_mask(bool block) {
    sigset_t s;
    sigemptyset(&s);
    for (size_t i = 0; i < HANDLED; i++)
        sigaddset(&s, handled[i]);
    pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &s, NULL);
}

bool dg_live_interrupted(void) {
    bool was = tty.interrupts;
    tty.interrupts = 0;
    return was;
}

/* --- output --- */

static void size_of(int *width, int *height) {
    struct winsize w;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row;
    *width = known ? w.ws_col : 80;
    *height = known ? w.ws_row : 24;
}

static enum dg_view_colours colours(const char *term) {
    const char *no = getenv("NO_COLOR"), *deep = getenv("COLORTERM");
    if (no && *no)
        return DG_VIEW_NO_COLOUR;
    return (deep && *deep) || strstr(term, "256color") || strstr(term, "direct") || strstr(term, "kitty") ? DG_VIEW_256
                                                                                                          : DG_VIEW_16;
}

bool dg_live_possible(void) {
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb");
}

void dg_live_init(struct dg_live *l, const struct dg_tokenizer *tok, bool canvas) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8"))
        setlocale(LC_CTYPE, "C.UTF-8");
    memset(l, 0, sizeof *l);
    l->terminal = dg_live_possible();
    struct dg_view_opts o = {
        .plain = !l->terminal, .canvas = canvas, .colours = l->terminal ? colours(getenv("TERM")) : DG_VIEW_NO_COLOUR};
    size_of(&o.width, &o.height);
    dg_view_init(&l->view, tok, &o);
    o.plain = true;
    dg_view_init(&l->side, tok, &o);
    dg_buf_init(&l->out, FRAME_MAX);
}

void dg_live_deinit(struct dg_live *l) {
    if (l->shown)
        dg_live_end(l);
    dg_view_deinit(&l->view);
    dg_view_deinit(&l->side);
    dg_buf_deinit(&l->out);
}

static void put(struct dg_live *l, int fd) {
    const char *s = dg_buf_cstr(&l->out);
    for (size_t n = l->out.len; n && !(fd == STDOUT_FILENO && l->failed);) {
        ssize_t k = write(fd, s, n);
        if (k < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, 1000);
            continue;
        }
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            l->failed = l->failed || fd == STDOUT_FILENO;
            break;
        }
        s += k;
        n -= (size_t)k;
    }
    dg_buf_clear(&l->out);
    if (l->out.status != DG_OK) {
        dg_buf_deinit(&l->out);
        dg_buf_init(&l->out, FRAME_MAX);
    }
}

static void check_size(struct dg_live *l) {
    int width, height;
    if (!tty.resized)
        return;
    tty.resized = 0;
    size_of(&width, &height);
    dg_view_resize(&l->view, width, height);
}

void dg_live_begin(struct dg_live *l) {
    fflush(stdout);
    tty.resized = 1;
    check_size(l);
    l->shown = true;
    if (!l->terminal)
        return;
    tty.showing = 1;
    quiet(true);
}

void dg_live_end(struct dg_live *l) {
    check_size(l);
    if (dg_view_end(&l->view, &l->out) != DG_OK)
        l->failed = true;
    put(l, STDOUT_FILENO);
    if (!l->terminal && dg_view_end(&l->side, &l->out) == DG_OK)
        put(l, STDERR_FILENO);
    l->shown = false;
    if (!l->terminal)
        return;
    tty.showing = 0;
    quiet(false);
}

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void dg_live_text(struct dg_live *l, enum dg_view_kind kind, const char *s, size_t n) {
    bool aside = !l->terminal && kind != DG_VIEW_CONTENT;
    check_size(l);
    if (dg_view_text(aside ? &l->side : &l->view, kind, s, n, &l->out) != DG_OK)
        l->failed = true;
    put(l, aside ? STDERR_FILENO : STDOUT_FILENO);
}

void dg_live_step(struct dg_live *l, const struct dg_step_event *e) {
    if (!l->terminal)
        return;
    double t = cpu();
    check_size(l);
    /* a frame that cannot be made is a frame less */
    if (dg_view_step(&l->view, e, &l->out) == DG_OK)
        put(l, STDOUT_FILENO);
    else
        dg_buf_clear(&l->out);
    l->spent += cpu() - t;
    l->frames++;
}

void dg_live_status(struct dg_live *l, const char *text) {
    if (!l->terminal)
        return;
    check_size(l);
    if (dg_view_status(&l->view, text, &l->out) == DG_OK)
        put(l, STDOUT_FILENO);
}

void dg_live_note(struct dg_live *l, const char *text) {
    struct dg_buf line;
    dg_buf_init(&line, FRAME_MAX);
    if (dg_buf_fmt(&line, "%s\n", text) == DG_OK) {
        dg_live_text(l, DG_VIEW_NOTE, line.data, line.len);
        if (!l->shown)
            dg_live_end(l);
    }
    dg_buf_deinit(&line);
}
