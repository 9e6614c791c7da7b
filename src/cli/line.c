#include "cli/line.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

struct dg_lines {
    EditLine *el;
    History *past;
    char *file;
    const char *prompt;
    dg_line_interrupted_fn *interrupted;
    int in;       /* what input is read from */
    mbstate_t mb; /* of a character that is read byte by byte */
    /* without a terminal */
    struct dg_buf line;
    char chunk[16384];
    size_t at, have;
    bool over;
};

static struct dg_lines *reading; /* the one whose line is being edited */

/* Standard input's descriptor, or where it is the terminal whose keys make signals one of its own that does not block: an interrupt throws
 * away what was typed, so that a read behind a poll may find nothing left. The flag on the inherited one would be the caller's too. */
static int open_input(void) {
    int fd = tcgetsid(STDIN_FILENO) == getsid(0) ? open("/dev/tty", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    return fd < 0 ? STDIN_FILENO : fd;
}

/* Bytes of standard input, 0 at its end, -1 with errno EINTR after an interrupt, wherever that came: it is asked for with the signal
 * held back, and let through only while waiting. */
static ssize_t read_input(struct dg_lines *l, char *to, size_t n) {
    sigset_t held, before;
    struct pollfd p = {.fd = l->in, .events = POLLIN};
    ssize_t got = -1;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    for (;;) {
        if (l->interrupted()) {
            errno = EINTR;
            break;
        }
        if (ppoll(&p, 1, NULL, &before) < 0) {
            if (errno == EINTR)
                continue;
            break;
        }
        got = read(l->in, to, n);
        if (got >= 0 || (errno != EINTR && errno != EAGAIN))
            break;
    }
    int e = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = e;
    return got;
}

/* libedit's way to a character. A byte that begins none stands for itself, as it does in libedit's own reading. */
static int read_char(EditLine *el, wchar_t *c) {
    struct dg_lines *l;
    char byte;
    el_get(el, EL_CLIENTDATA, &l);
    for (;;) {
        ssize_t got = read_input(l, &byte, 1);
        if (got <= 0)
            return (int)got;
        size_t k = mbrtowc(c, &byte, 1, &l->mb);
        if (k == (size_t)-2)
            continue;
        if (k == (size_t)-1) {
            memset(&l->mb, 0, sizeof l->mb);
            *c = (unsigned char)byte;
        }
        return 1;
    }
}

static char *prompt_of(EditLine *el) {
    struct dg_lines *l;
    el_get(el, EL_CLIENTDATA, &l);
    return (char *)l->prompt;
}

static enum dg_status open_editor(struct dg_lines *l, struct dg_error *err) {
    l->el = el_init("diffgemma", stdin, stdout, stderr);
    l->past = history_init();
    if (!l->el || !l->past)
        return DG_FAIL(err, DG_E_NOMEM, "cannot set up line editing (is TERM right?)");
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT, prompt_of);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 0);
    el_set(l->el, EL_GETCFN, read_char);
    el_set(l->el, EL_HIST, history, l->past);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->el, EL_BIND, "\033[3~", "ed-delete-next-char", NULL);
    el_set(l->el, EL_BIND, "\033[1~", "ed-move-to-beg", NULL);
    el_set(l->el, EL_BIND, "\033[4~", "ed-move-to-end", NULL);
    el_source(l->el, NULL);
    return DG_OK;
}

enum dg_status dg_lines_open(struct dg_lines **out, bool edit, const char *file, dg_line_interrupted_fn *interrupted,
                             struct dg_error *err) {
    HistEvent ev;
    *out = NULL;
    struct dg_lines *l = dg_calloc(1, sizeof *l);
    if (!l)
        return DG_FAIL(err, DG_E_NOMEM, "no memory to read lines");
    dg_buf_init(&l->line, DG_LINE_MAX);
    l->interrupted = interrupted;
    l->in = open_input();
    enum dg_status st = edit ? open_editor(l, err) : DG_OK;
    if (st != DG_OK) {
        dg_lines_close(l);
        return st;
    }
    if (edit) {
        history(l->past, &ev, H_SETSIZE, DG_LINE_HISTORY);
        history(l->past, &ev, H_SETUNIQUE, 1);
        l->file = file ? dg_strndup(file, strlen(file)) : NULL;
        if (l->file)
            history(l->past, &ev, H_LOAD, l->file);
    }
    *out = l;
    return DG_OK;
}

void dg_lines_close(struct dg_lines *l) {
    HistEvent ev;
    if (!l)
        return;
    if (l->file)
        history(l->past, &ev, H_SAVE, l->file);
    if (l->el)
        el_end(l->el);
    if (l->past)
        history_end(l->past);
    if (l->in != STDIN_FILENO)
        close(l->in);
    dg_free(l->file);
    dg_buf_deinit(&l->line);
    dg_free(l);
}

static enum dg_status edit_line(struct dg_lines *l, bool remember, enum dg_line_end *end, const char **s, size_t *n) {
    HistEvent ev;
    int count = 0;
    errno = 0;
    reading = l;
    const char *line = el_gets(l->el, &count);
    int e = errno;
    reading = NULL;
    if (!line || count <= 0) {
        *end = count < 0 && e == EINTR ? DG_LINE_INTERRUPTED : DG_LINE_EOF;
        return DG_OK;
    }
    size_t k = (size_t)count;
    if (remember && strspn(line, " \t\r\n") < k)
        history(l->past, &ev, H_ENTER, line);
    k -= line[k - 1] == '\n';
    *end = DG_LINE;
    *s = line;
    *n = k;
    return DG_OK;
}

static enum dg_status read_line(struct dg_lines *l, enum dg_line_end *end, const char **s, size_t *n, struct dg_error *err) {
    dg_buf_clear(&l->line);
    for (;;) {
        const char *from = l->chunk + l->at, *lf = memchr(from, '\n', l->have - l->at);
        size_t k = lf ? (size_t)(lf - from) : l->have - l->at;
        l->at += k + (lf != NULL);
        if (dg_buf_add(&l->line, from, k) != DG_OK)
            return DG_FAIL(err, l->line.status, "a line of more than %zu bytes", DG_LINE_MAX);
        if (lf || (l->over && l->line.len)) {
            *end = DG_LINE;
            *s = dg_buf_cstr(&l->line);
            *n = l->line.len;
            return DG_OK;
        }
        if (l->over) {
            *end = DG_LINE_EOF;
            return DG_OK;
        }
        ssize_t got = read_input(l, l->chunk, sizeof l->chunk);
        if (got < 0 && errno == EINTR) {
            *end = DG_LINE_INTERRUPTED;
            return DG_OK;
        }
        if (got < 0)
            return DG_FAIL(err, DG_E_IO, "cannot read standard input: %s", strerror(errno));
        l->at = 0;
        l->have = (size_t)got;
        l->over = got == 0;
    }
}

enum dg_status dg_lines_read(struct dg_lines *l, const char *prompt, bool remember, enum dg_line_end *end, const char **s,
                             size_t *n, struct dg_error *err) {
    l->prompt = prompt;
    return l->el ? edit_line(l, remember, end, s, n) : read_line(l, end, s, n, err);
}

static size_t columns_of(const char *s, size_t n) { /* a column a character */
    size_t columns = 0;
    for (size_t i = 0; i < n; i++)
        columns += ((unsigned char)s[i] & 0xc0) != 0x80;
    return columns;
}

/* The editor draws a line in a new size where the cursor is: so that goes to the beginning of what is there, which is wiped out. A terminal that
 * has got narrower or wider has broken it anew by itself. */
static void wipe_prompt(void) {
    const LineInfo *line = el_line(reading->el);
    struct winsize size;
    char text[32];
    size_t at = columns_of(reading->prompt, strlen(reading->prompt)) + columns_of(line->buffer, (size_t)(line->cursor - line->buffer));
    size_t up = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? at / size.ws_col : 0;
    int n = up ? snprintf(text, sizeof text, "\r\033[%zuA\033[J", up) : snprintf(text, sizeof text, "\r\033[J");
    if (write(STDOUT_FILENO, text, (size_t)n) < 0)
        return; /* no terminal any more: the next read says so */
}

void dg_lines_at_prompt(enum dg_prompt_event what) {
    if (!reading || what == DG_PROMPT_STOPPING)
        return;
    if (what == DG_PROMPT_RESIZED)
        wipe_prompt();
    el_set(reading->el, EL_PREP_TERM, 1);
    el_resize(reading->el);
    el_set(reading->el, EL_REFRESH);
}
