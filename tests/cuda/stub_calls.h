/* For the programs on the stub driver (stub.c): TAP lines, and what the stub tells of itself. */
#ifndef DG_TESTS_CUDA_STUB_CALLS_H
#define DG_TESTS_CUDA_STUB_CALLS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed; /* lines "not ok" */

static inline void ok(bool good, const char *name, const char *why) {
    if (good) {
        printf("ok - %s\n", name);
    } else {
        printf("not ok - %s: %s\n", name, why);
        failed++;
    }
}

/* Puts the function of that name into the pointer at `to`. Ends the program where libcuda is not the stub. */
static inline void find_stub(const char *name, void *to) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *f = lib ? dlsym(lib, name) : NULL;
    if (!f) {
        puts("not ok - stub driver: libcuda.so.1 is not the tests' one");
        exit(1);
    }
    memcpy(to, &f, sizeof f);
}

#endif
