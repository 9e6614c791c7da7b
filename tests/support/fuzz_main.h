/* The main of every fuzz target, for builds without libFuzzer (which brings its own: define DG_LIBFUZZER).
 *
 * A target defines LLVMFuzzerTestOneInput and includes this header once. Then
 *     TARGET FILE...                      replays each file
 *     TARGET --mutate SEED N FILE...      runs N mutations of the files; mutation i depends on SEED, i and the files only
 *     TARGET --only SEED I FILE...        runs mutation I alone, to repeat a failure
 * The input handed over ends exactly at the end of a heap block, so that the address sanitizer sees any read past it. An input that
 * takes longer than DG_FUZZ_SECONDS, or that crashes, ends the program with a line naming the mutation. The last line is
 * "N inputs". */
#ifndef DG_TESTS_FUZZ_MAIN_H
#define DG_TESTS_FUZZ_MAIN_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef DG_LIBFUZZER

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef DG_FUZZ_SECONDS
#define DG_FUZZ_SECONDS 20
#endif
/* A mutation never grows a file beyond this many bytes more than it had. */
#define DG_FUZZ_GROWTH 4096

struct fuzz_file {
    uint8_t *data;
    size_t size;
};

static char fuzz_now[160]; /* the line to print if the current input kills the program */

static void fuzz_say(const char *why) {
    if (write(2, why, strlen(why)) < 0 || write(2, fuzz_now, strlen(fuzz_now)) < 0)
        _exit(3);
}

static void fuzz_signal(int sig) {
    fuzz_say(sig == SIGALRM ? "fuzz: too slow: " : "fuzz: crash: ");
    _exit(1);
}

#ifdef __SANITIZE_ADDRESS__
void __sanitizer_set_death_callback(void (*callback)(void));
static void fuzz_death(void) { fuzz_say("fuzz: sanitizer report: "); }
#endif

static uint64_t fuzz_next(uint64_t *s) { /* splitmix64 */
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t fuzz_below(uint64_t *s, size_t n) { return n ? (size_t)(fuzz_next(s) % n) : 0; }

/* Replaces [at, at + gone) by n bytes of src; a result larger than cap is left as it was. */
static size_t fuzz_splice(uint8_t *d, size_t size, size_t cap, size_t at, size_t gone, const void *src, size_t n) {
    if (size - gone + n > cap)
        return size;
    memmove(d + at + n, d + at + gone, size - at - gone);
    if (n)
        memcpy(d + at, src, n);
    return size - gone + n;
}

/* Swaps a run of digits for a number that is likely to hurt. */
static size_t fuzz_number(uint64_t *s, uint8_t *d, size_t size, size_t cap) {
    static const char *const hostile[] = {"0", "1", "-1", "2", "7", "255", "256", "65535", "65536", "2147483647", "2147483648",
                                          "-2147483648", "4294967295", "4294967296", "9223372036854775807", "18446744073709551615",
                                          "18446744073709551616", "1e308", "-1e999", "0.5", "1e-400", "00", "null", "\"1\"", "[]"};
    size_t at = fuzz_below(s, size);
    while (at < size && (d[at] < '0' || d[at] > '9'))
        at++;
    size_t end = at;
    while (end < size && d[end] >= '0' && d[end] <= '9')
        end++;
    const char *n = hostile[fuzz_below(s, sizeof hostile / sizeof *hostile)];
    return at < size ? fuzz_splice(d, size, cap, at, end - at, n, strlen(n)) : size;
}

static size_t fuzz_mutate_once(uint64_t *s, uint8_t *d, size_t size, size_t cap, const struct fuzz_file *other) {
    static const char punctuation[] = "\"\\{}[]:,\n \0\xff";
    if (size == 0)
        return fuzz_splice(d, 0, cap, 0, 0, other->data, other->size < cap ? other->size : cap);
    size_t at = fuzz_below(s, size), n = 1 + fuzz_below(s, 1 + fuzz_below(s, size - at));
    uint8_t tmp[256];
    switch (fuzz_below(s, 10)) {
    case 0: d[at] ^= (uint8_t)(1 << fuzz_below(s, 8)); return size;
    case 1: d[at] = (uint8_t)fuzz_next(s); return size;
    case 2: d[at] = (uint8_t)punctuation[fuzz_below(s, sizeof punctuation - 1)]; return size;
    case 3: return at; /* cut the end off */
    case 4: return fuzz_splice(d, size, cap, at, n, NULL, 0);
    case 5: /* repeat a part */
        n = n < sizeof tmp ? n : sizeof tmp;
        memcpy(tmp, d + at, n);
        return fuzz_splice(d, size, cap, fuzz_below(s, size + 1), 0, tmp, n);
    case 6: { /* a part of another file over, or into, this one */
        size_t from = fuzz_below(s, other->size), m = fuzz_below(s, other->size - from);
        return fuzz_splice(d, size, cap, at, fuzz_below(s, 2) ? n : 0, other->data + from, m);
    }
    case 7: { /* insert noise */
        n = n < 16 ? n : 16;
        for (size_t i = 0; i < n; i++)
            tmp[i] = (uint8_t)fuzz_next(s);
        return fuzz_splice(d, size, cap, at, 0, tmp, n);
    }
    default: return fuzz_number(s, d, size, cap);
    }
}

static int fuzz_input(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        return fprintf(stderr, "fuzz: out of memory\n"), 1;
    if (size)
        memcpy(exact, data, size);
    alarm(DG_FUZZ_SECONDS);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    free(exact);
    return 0;
}

static int fuzz_mutation(uint64_t seed, uint64_t i, const struct fuzz_file *files, size_t n_files) {
    uint64_t s = seed * 0x100000001b3u + i;
    const struct fuzz_file *f = &files[fuzz_below(&s, n_files)], *other = &files[fuzz_below(&s, n_files)];
    size_t cap = f->size + DG_FUZZ_GROWTH, size = f->size;
    uint8_t *d = malloc(cap);
    if (!d)
        return fprintf(stderr, "fuzz: out of memory\n"), 1;
    if (size)
        memcpy(d, f->data, size);
    for (size_t k = 1 + fuzz_below(&s, 4); k > 0; k--)
        size = fuzz_mutate_once(&s, d, size, cap, other);
    snprintf(fuzz_now, sizeof fuzz_now, "repeat with --only %llu %llu and the same files\n", (unsigned long long)seed,
             (unsigned long long)i);
    int rc = fuzz_input(d, size);
    free(d);
    return rc;
}

static int fuzz_read(struct fuzz_file *f, const char *path) {
    FILE *in = fopen(path, "rb");
    size_t cap = 0, got;
    if (!in)
        return perror(path), 1;
    f->data = NULL;
    f->size = 0;
    do {
        cap = cap ? cap * 2 : 65536;
        uint8_t *p = realloc(f->data, cap);
        if (!p)
            break;
        f->data = p;
        got = fread(f->data + f->size, 1, cap - f->size, in);
        f->size += got;
    } while (f->size == cap);
    fclose(in);
    return f->data ? 0 : 1;
}

int main(int argc, char **argv) {
    int mutate = argc > 4 && strcmp(argv[1], "--mutate") == 0, only = argc > 4 && strcmp(argv[1], "--only") == 0;
    int first = mutate || only ? 4 : 1, n_files = argc - first, rc = 0;
    if (n_files < 1)
        return fprintf(stderr, "usage: %s [--mutate SEED N | --only SEED I] FILE...\n", argv[0]), 2;
    struct fuzz_file *files = calloc((size_t)n_files, sizeof *files);
    if (!files)
        return 1;
    signal(SIGALRM, fuzz_signal);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(fuzz_death);
#else
    signal(SIGSEGV, fuzz_signal);
    signal(SIGBUS, fuzz_signal);
    signal(SIGFPE, fuzz_signal);
    signal(SIGABRT, fuzz_signal);
#endif
    for (int i = 0; i < n_files && rc == 0; i++)
        rc = fuzz_read(&files[i], argv[first + i]);
    uint64_t n_inputs = 0;
    if (rc == 0 && first == 4) {
        uint64_t seed = strtoull(argv[2], NULL, 10), n = strtoull(argv[3], NULL, 10);
        for (uint64_t i = only ? n : 0; i < n + (uint64_t)only && rc == 0; i++, n_inputs++)
            rc = fuzz_mutation(seed, i, files, (size_t)n_files);
    } else
        for (int i = 0; i < n_files && rc == 0; i++, n_inputs++) {
            snprintf(fuzz_now, sizeof fuzz_now, "file %.120s\n", argv[first + i]);
            rc = fuzz_input(files[i].data, files[i].size);
        }
    for (int i = 0; i < n_files; i++)
        free(files[i].data);
    free(files);
    printf("%llu inputs\n", (unsigned long long)n_inputs);
    return rc;
}

#endif
#endif
