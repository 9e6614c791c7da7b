/* Command-line options from a table that also prints the help. */
#ifndef DG_CLI_ARGS_H
#define DG_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DG_ARG_SIZE: bytes as a number and a unit of 1024's powers, such as 24G, 1.5g, 900M or 12MiB. DG_ARG_SECONDS: a number such as 2 or 0.5, behind a
 * blank or '='; it may be left out, which means 1. */
enum dg_arg_kind { DG_ARG_FLAG, DG_ARG_INT, DG_ARG_U64, DG_ARG_SIZE, DG_ARG_SECONDS, DG_ARG_STR, DG_ARG_LIST };

/* Values of an option that may be given many times, in order. */
#define DG_ARG_LIST_MAX 256
struct dg_arg_list {
    const char *v[DG_ARG_LIST_MAX];
    size_t n;
};

struct dg_arg {
    const char *name; /* long option without dashes */
    char letter;      /* short option, 0 = none */
    enum dg_arg_kind kind;
    void *dst;        /* bool, int64_t, uint64_t, size_t, double, const char * or struct dg_arg_list */
    int64_t min, max; /* of DG_ARG_INT; of DG_ARG_SECONDS, which is more than min */
    const char *value; /* name of the value in the help */
    const char *help;
};

struct dg_command {
    const char *name;
    const char *usage; /* what follows "diffgemma NAME" */
    const char *about; /* one sentence, for the list */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
};

/* Parses argv[1..argc-1] by the table; --help prints the help to stdout. Returns true when the command should run, its positional
 * arguments being argv[*first..argc-1]; false with *status set (0 after --help, 2 after an error, which is one line on stderr). */
bool dg_args_parse(int argc, char **argv, const struct dg_command *cmd, const struct dg_arg *args, size_t n_args, int positional_min,
                   int positional_max, int *first, int *status);

#define DG_ARGS_COUNT(a) (sizeof(a) / sizeof *(a))

#endif
