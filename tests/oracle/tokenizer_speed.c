/* Measures a tokenizer.json: tokenizer_speed TOKENIZER.json [TEXT_FILE...]
 *
 * Prints one line "name value unit" per figure, each the best of three on one thread:
 *   load, and for each text its encoding time and rate: English prose, Chinese characters, one line of 1 MB without spaces (random
 *   letters; base64-like; one letter repeated), one of nothing but spaces, and every TEXT_FILE. */
#include "tokenizer/tokenizer.h"

#include "core/map.h"
#include "core/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUNS 3
#define ENGLISH_BYTES ((size_t)8 << 20)
#define LINE_BYTES ((size_t)1 << 20)

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static uint64_t draw(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static const char prose[] =
    "When the morning train finally left the station, nobody on the platform noticed that the old clock had stopped. It showed ten "
    "minutes past six, as it had for years, and the people who worked there set their watches by the bakery across the street "
    "instead. \"You can always tell the time by bread,\" the stationmaster liked to say; his daughter, an engineer, disagreed. She had "
    "measured it once: on average the first loaves came out 3.7 minutes late, with a standard deviation large enough to miss the "
    "express to Marseille.\n\nBesides, there were questions that no clock could answer. Why did the signal at the northern junction "
    "turn green whenever it rained? Who had written the long letter found under the floor of the waiting room, and why was it "
    "addressed to someone who would be born forty years later? The committee's report (published in 1987, and revised twice) devoted "
    "only a paragraph to these matters, concluding that \"further investigation is neither necessary nor affordable\".\n";

/* Sentences of the prose above with their words shuffled and new ones mixed in, so that not every word repeats. */
static char *english(size_t n, uint64_t seed) {
    static const char *const syllables[] = {"ba", "con", "de", "er", "fi", "gra", "hol", "in", "jo", "ka", "li", "mor",
                                            "ne", "or", "pre", "qui", "re", "sta", "tion", "un", "ver", "wi", "ya", "ment"};
    char *out = malloc(n);
    for (size_t i = 0; out && i < n;) {
        size_t at = draw(&seed) % (sizeof prose - 1);
        while (at > 0 && prose[at - 1] != ' ')
            at--;
        for (size_t words = 4 + draw(&seed) % 12; words > 0 && i < n && prose[at]; at++) {
            out[i++] = prose[at];
            words -= prose[at] == ' ';
        }
        for (size_t k = 1 + draw(&seed) % 3; k > 0 && i < n; k--)
            for (const char *p = syllables[draw(&seed) % 24]; *p && i < n; p++)
                out[i++] = *p;
        if (i < n)
            out[i++] = ' ';
    }
    return out;
}

/* Common characters of Chinese, a full stop now and then. */
static char *chinese(size_t n, uint64_t seed) {
    char *out = malloc(n);
    size_t i = 0;
    while (out && i + 3 <= n)
        i += (size_t)dg_utf8_put(draw(&seed) % 20 ? 0x4e00 + (uint32_t)(draw(&seed) % 2000) : 0x3002, out + i);
    if (out)
        memset(out + i, '\n', n - i);
    return out;
}

static char *letters(size_t n, const char *from, uint64_t seed) {
    size_t k = strlen(from);
    char *out = malloc(n);
    for (size_t i = 0; out && i < n; i++)
        out[i] = from[draw(&seed) % k];
    return out;
}

static int encode(const struct dg_tokenizer *t, const char *name, const char *text, size_t n) {
    struct dg_error err = {0};
    double best = 1e9;
    size_t n_ids = 0;
    if (!text)
        return fprintf(stderr, "no memory for the text\n"), 1;
    for (int run = 0; run < RUNS; run++) {
        struct dg_ids ids;
        dg_ids_init(&ids);
        double start = now();
        if (dg_tokenizer_encode(t, text, n, true, &ids, &err) != DG_OK)
            return fprintf(stderr, "%s: %s\n", name, dg_error_text(&err)), 1;
        double took = now() - start;
        best = took < best ? took : best;
        n_ids = ids.n;
        dg_ids_deinit(&ids);
    }
    printf("%-16s %8.4f s %8.2f MB/s %9zu tokens\n", name, best, (double)n / best / 1e6, n_ids);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return fprintf(stderr, "usage: %s TOKENIZER.json [TEXT_FILE...]\n", argv[0]), 2;
    struct dg_error err = {0};
    struct dg_tokenizer *t = NULL;
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        dg_tokenizer_close(t);
        double start = now();
        if (dg_tokenizer_open(&t, argv[1], &err) != DG_OK)
            return fprintf(stderr, "%s\n", dg_error_text(&err)), 1;
        double took = now() - start;
        best = took < best ? took : best;
    }
    printf("%-16s %8.4f s\n", "load", best);
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct {
        const char *name;
        char *text;
        size_t n;
    } texts[] = {{"english", english(ENGLISH_BYTES, 1), ENGLISH_BYTES},
                 {"chinese", chinese(LINE_BYTES, 2), LINE_BYTES},
                 {"line-letters", letters(LINE_BYTES, "etaoinshrdlu", 3), LINE_BYTES},
                 {"line-base64", letters(LINE_BYTES, base64, 4), LINE_BYTES},
                 {"line-repeat", letters(LINE_BYTES, "a", 5), LINE_BYTES},
                 {"line-spaces", letters(LINE_BYTES, " ", 6), LINE_BYTES}};
    int rc = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        rc |= encode(t, texts[i].name, texts[i].text, texts[i].n);
        free(texts[i].text);
    }
    for (int i = 2; i < argc; i++) {
        struct dg_map map;
        if (dg_map_open(&map, argv[i], &err) != DG_OK)
            return fprintf(stderr, "%s\n", dg_error_text(&err)), 1;
        const char *slash = strrchr(argv[i], '/');
        rc |= encode(t, slash ? slash + 1 : argv[i], map.size ? (const char *)map.data : "", map.size);
        dg_map_close(&map);
    }
    dg_tokenizer_close(t);
    return rc;
}
