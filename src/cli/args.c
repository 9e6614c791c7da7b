#include "cli/args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX 64
#define LONG_BASE 256 /* getopt values of options without a letter */

static void print_help(const struct dg_command *cmd, const struct dg_arg *args, size_t n) {
    printf("usage: diffgemma %s %s\n\n%s\n\n", cmd->name, cmd->usage, cmd->about);
    for (size_t i = 0; i <= n; i++) {
        char left[64];
        if (i == n)
            snprintf(left, sizeof left, "-h, --help");
        else
            snprintf(left, sizeof left, "%c%c%s--%s%s%s", args[i].letter ? '-' : ' ', args[i].letter ? args[i].letter : ' ',
                     args[i].letter ? ", " : "  ", args[i].name, args[i].value ? " " : "", args[i].value ? args[i].value : "");
        printf("  %-28s %s\n", left, i == n ? "show this help" : args[i].help);
    }
}

/* strtoll and strtoull also take blanks and, for unsigned numbers, a minus sign. */
static bool starts_number(const char *s, bool negative) {
    s += negative && *s == '-';
    return *s >= '0' && *s <= '9';
}

static bool parse_int(const char *s, int64_t min, int64_t max, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || !starts_number(s, true) || *end || v < min || v > max)
        return false;
    *out = v;
    return true;
}

static bool parse_u64(const char *s, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || !starts_number(s, false) || *end)
        return false;
    *out = v;
    return true;
}

/* Up to 15 digits and, behind a point, more: as much as is a number in every locale. Returns what is behind them, NULL where s begins otherwise. */
static const char *take_decimal(const char *s, double *out) {
    size_t whole = strspn(s, "0123456789"), part = s[whole] == '.' ? strspn(s + whole + 1, "0123456789") : 0;
    double v = 0, digit = 1;
    if (!whole || whole > 15 || (s[whole] == '.' && !part))
        return NULL;
    for (size_t i = 0; i < whole; i++)
        v = v * 10 + (s[i] - '0');
    for (size_t i = 0; i < part; i++)
        v += (s[whole + 1 + i] - '0') * (digit /= 10);
    *out = v;
    return s + whole + (part ? 1 + part : 0);
}

/* A decimal and K, M, G or T, which may be followed by B or iB. The result is between 1 byte and 2^60. */
static bool parse_size(const char *s, size_t *out) {
    static const char letters[] = "kKmMgGtT";
    double v;
    const char *unit = take_decimal(s, &v), *at = unit && *unit ? strchr(letters, *unit) : NULL;
    if (!at || (unit[1] && strcmp(unit + 1, "B") != 0 && strcmp(unit + 1, "iB") != 0))
        return false;
    for (int64_t i = (at - letters) / 2; i >= 0; i--)
        v *= 1024;
    if (!(v >= 1 && v <= 0x1p60))
        return false;
    *out = (size_t)v;
    return true;
}

static bool parse_seconds(const char *s, int64_t min, int64_t max, double *out) {
    double v;
    const char *end = take_decimal(s, &v);
    if (!end || *end || !(v > (double)min && v <= (double)max))
        return false;
    *out = v;
    return true;
}

static bool store(const struct dg_command *cmd, const struct dg_arg *a, const char *value) {
    switch (a->kind) {
    case DG_ARG_FLAG:
        *(bool *)a->dst = true;
        return true;
    case DG_ARG_STR:
        *(const char **)a->dst = value;
        return true;
    case DG_ARG_LIST: {
        struct dg_arg_list *l = a->dst;
        if (l->n < DG_ARG_LIST_MAX) {
            l->v[l->n++] = value;
            return true;
        }
        fprintf(stderr, "diffgemma %s: --%s is given more than %d times\n", cmd->name, a->name, DG_ARG_LIST_MAX);
        return false;
    }
    case DG_ARG_SIZE:
        if (parse_size(value, a->dst))
            return true;
        fprintf(stderr, "diffgemma %s: --%s %s: give a number and a unit, such as 16G or 900M\n", cmd->name, a->name, value);
        return false;
    case DG_ARG_SECONDS:
        if (parse_seconds(value, a->min, a->max, a->dst))
            return true;
        fprintf(stderr, "diffgemma %s: --%s %s: give seconds, more than %lld and at most %lld\n", cmd->name, a->name, value, (long long)a->min,
                (long long)a->max);
        return false;
    case DG_ARG_INT:
        if (parse_int(value, a->min, a->max, a->dst))
            return true;
        fprintf(stderr, "diffgemma %s: --%s %s: give a whole number from %lld to %lld\n", cmd->name, a->name, value, (long long)a->min,
                (long long)a->max);
        return false;
    case DG_ARG_U64:
        if (parse_u64(value, a->dst))
            return true;
        fprintf(stderr, "diffgemma %s: --%s %s: give a whole number from 0 to 18446744073709551615\n", cmd->name, a->name, value);
        return false;
    }
    return false;
}

bool dg_args_parse(int argc, char **argv, const struct dg_command *cmd, const struct dg_arg *args, size_t n_args, int positional_min,
                   int positional_max, int *first, int *status) {
    struct option longs[ARGS_MAX + 2] = {0};
    char shorts[2 * ARGS_MAX + 4] = ":h";
    size_t n_short = 2;
    *status = 2;
    if (n_args > ARGS_MAX)
        return false;
    for (size_t i = 0; i < n_args; i++) {
        bool value = args[i].kind != DG_ARG_FLAG;
        int how = args[i].kind == DG_ARG_SECONDS ? optional_argument : value ? required_argument : no_argument;
        longs[i] = (struct option){args[i].name, how, NULL, LONG_BASE + (int)i};
        if (args[i].letter) {
            shorts[n_short++] = args[i].letter;
            if (value)
                shorts[n_short++] = ':';
        }
    }
    longs[n_args] = (struct option){"help", no_argument, NULL, 'h'};
    opterr = 0;
    optind = 1;
    for (int o; (o = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (o == 'h') {
            print_help(cmd, args, n_args);
            *status = 0;
            return false;
        }
        const struct dg_arg *hit = o >= LONG_BASE ? &args[o - LONG_BASE] : NULL;
        for (size_t i = 0; !hit && o != '?' && o != ':' && i < n_args; i++)
            if (args[i].letter == o)
                hit = &args[i];
        if (!hit) {
            /* a letter among others, as in -xv, is named by itself; a long option by its word */
            char letter[3] = {'-', (char)optopt, 0};
            bool word = optopt == 0 || optopt >= LONG_BASE;
            fprintf(stderr, "diffgemma %s: %s %s; see diffgemma %s --help\n", cmd->name, o == ':' ? "a value is missing after" : "unknown option",
                    word ? argv[optind - 1] : letter, cmd->name);
            return false;
        }
        const char *given = optarg;
        if (!given && hit->kind == DG_ARG_SECONDS) /* getopt sees a value that may be left out behind '=' alone */
            given = optind < argc && argv[optind][0] >= '0' && argv[optind][0] <= '9' ? argv[optind++] : "1";
        if (!store(cmd, hit, given))
            return false;
    }
    int left = argc - optind;
    if (left < positional_min || left > positional_max) {
        if (left > positional_max)
            fprintf(stderr, "diffgemma %s: unexpected argument '%s'; see diffgemma %s --help\n", cmd->name, argv[optind + positional_max],
                    cmd->name);
        else
            fprintf(stderr, "usage: diffgemma %s %s\n", cmd->name, cmd->usage);
        return false;
    }
    *first = optind;
    *status = 0;
    return true;
}
