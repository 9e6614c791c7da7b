/* Looks into a program's output for scripts: check_file json FILE [KEY...]
 *                                           check_file st FILE
 *
 * json: FILE must hold one JSON value and nothing else but white space; prints the value at each dotted KEY ("blocks.0.steps") on a line of
 * its own, strings bare. st: FILE must be a safetensors file whose floats are all finite; prints "name dtype shape" of each tensor. Status
 * 1 with a line on stderr when it is not so. */
#include "support/st_read.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *at(json_t *v, const char *key) {
    char part[256];
    while (v && *key) {
        size_t n = strcspn(key, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, key);
        v = json_is_array(v) ? json_array_get(v, strtoul(part, NULL, 10)) : json_object_get(v, part);
        key += n + (key[n] == '.');
    }
    return v;
}

static int json(const char *path, char **keys, int n) {
    json_error_t e;
    json_t *v = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!v) {
        fprintf(stderr, "%s: line %d: %s\n", path, e.line, e.text);
        return 1;
    }
    int status = 0;
    for (int i = 0; i < n; i++) {
        json_t *x = at(v, keys[i]);
        if (!x) {
            fprintf(stderr, "%s: nothing at %s\n", path, keys[i]);
            status = 1;
        } else if (json_is_string(x)) {
            printf("%s\n", json_string_value(x));
        } else {
            json_dumpf(x, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
            putchar('\n');
        }
    }
    json_decref(v);
    return status;
}

static int tensors(const char *path) {
    static const char *const names[] = {"U8", "I32", "I64", "F32", "F16", "BF16"};
    struct st_file *f = st_open(path);
    if (!f)
        return 1;
    int status = 0;
    for (size_t i = 0; i < st_count(f); i++) {
        enum st_dtype t;
        int rank;
        int64_t shape[4];
        const float *v = st_get(f, st_name(f, i), &t, &rank, shape);
        printf("%s %s", st_name(f, i), names[t]);
        for (int k = 0; k < rank; k++)
            printf(" %lld", (long long)shape[k]);
        putchar('\n');
        for (int64_t k = 0; t == ST_F32 && k < st_numel(f, st_name(f, i)); k++)
            if (!isfinite(v[k])) {
                fprintf(stderr, "%s: %s holds %g\n", path, st_name(f, i), (double)v[k]);
                status = 1;
                break;
            }
    }
    st_close(f);
    return status;
}

int main(int argc, char **argv) {
    if (argc >= 3 && !strcmp(argv[1], "json"))
        return json(argv[2], argv + 3, argc - 3);
    if (argc == 3 && !strcmp(argv[1], "st"))
        return tensors(argv[2]);
    fprintf(stderr, "usage: check_file json FILE [KEY...] | check_file st FILE\n");
    return 2;
}
