/* Lines from a terminal (cli/line.h), and a Ctrl-C at the one moment no signal mask covers: between the poll that found a key and the read. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/line.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts;
static bool armed; /* the next poll that finds input is followed by an interrupt, as a terminal makes it: input thrown away, then the signal */

static void on_interrupt(int sig) {
    (void)sig;
    interrupts = 1;
}

static bool interrupted(void) {
    bool was = interrupts;
    interrupts = 0;
    return was;
}

/* Stands in for the C library's. */
int ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
    int found = (int)syscall(SYS_ppoll, p, n, timeout, mask, _NSIG / 8);
    if (found > 0 && armed) {
        armed = false;
        tcflush(STDIN_FILENO, TCIFLUSH);
        raise(SIGINT);
    }
    return found;
}

enum result { RIGHT, NOT_OPENED, NOT_READ, NOT_INTERRUPTED, NO_LINE_AFTER };

/* The program on the terminal. */
static enum result program(bool edit) {
    struct dg_lines *l;
    struct dg_error err = {0};
    enum dg_line_end end;
    const char *s = NULL;
    size_t n = 0;
    enum result r = RIGHT;
    struct sigaction a = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &a, NULL);
    setenv("TERM", "xterm", 1);
    if (dg_lines_open(&l, edit, NULL, interrupted, &err) != DG_OK)
        return NOT_OPENED;
    armed = true;
    if (dg_lines_read(l, "> ", false, &end, &s, &n, &err) != DG_OK)
        r = NOT_READ;
    else if (end != DG_LINE_INTERRUPTED)
        r = NOT_INTERRUPTED;
    printf("READY\n");
    fflush(stdout);
    if (r == RIGHT && (dg_lines_read(l, "> ", false, &end, &s, &n, &err) != DG_OK || end != DG_LINE || n != 3 || memcmp(s, "two", 3)))
        r = NO_LINE_AFTER;
    dg_lines_close(l);
    return r;
}

/* Types at it: `first` once it has asked, "two" once it is ready for more. */
static enum result on_a_terminal(bool edit, const char *first) {
    int master, status = -1;
    char seen[4096];
    size_t have = 0;
    fflush(stdout);
    pid_t child = forkpty(&master, NULL, NULL, NULL);
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(program(edit));
    }
    assert_int_equal(write(master, first, strlen(first)), (ssize_t)strlen(first));
    for (bool typed = false; have < sizeof seen - 1;) {
        ssize_t got = read(master, seen + have, sizeof seen - 1 - have);
        if (got <= 0)
            break;
        have += (size_t)got;
        seen[have] = 0;
        if (!typed && strstr(seen, "READY")) {
            typed = true;
            assert_int_equal(write(master, "two\n", 4), 4);
        }
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    close(master);
    assert_true(WIFEXITED(status)); /* and not by the alarm */
    return (enum result)WEXITSTATUS(status);
}

static void edited(void **state) {
    (void)state;
    assert_int_equal(on_a_terminal(true, "one\n"), RIGHT);
}

static void line_by_line(void **state) {
    (void)state;
    assert_int_equal(on_a_terminal(false, "one\n"), RIGHT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(edited), cmocka_unit_test(line_by_line)};
    return cmocka_run_group_tests_name("line", tests, NULL, NULL);
}
