/* libnvrtc for tests: "compiles" to a text naming what it was given. DG_STUB_NVRTC_LOG: head.cu fails with this log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct program {
    char text[256];
    const char *log;
};

#define FN(type, name, ...)           \
    EXPORT type name(__VA_ARGS__);    \
    EXPORT type name(__VA_ARGS__)

FN(int, nvrtcVersion, int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
FN(const char *, nvrtcGetErrorString, int r) { return r == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
FN(int, nvrtcCreateProgram, struct program **p, const char *src, const char *name, int n, const char *const *texts, const char *const *names) {
    struct program *q = calloc(1, sizeof *q);
    int header = 0;
    for (int i = 0; i < n; i++)
        header |= strcmp(names[i], "ops/cuda/kernels.h") == 0 && strstr(texts[i], "DGC_KERNELS") != NULL;
    if (!q || !header || !strstr(src, "DGC_KERNEL("))
        return 1;
    snprintf(q->text, sizeof q->text, "code of %s, %zu bytes", name, strlen(src));
    if (strstr(name, "/head.cu"))
        q->log = getenv("DG_STUB_NVRTC_LOG");
    *p = q;
    return 0;
}
FN(int, nvrtcCompileProgram, struct program *p, int n, const char *const *options) {
    int arch = 0;
    for (int i = 0; i < n; i++)
        arch |= strcmp(options[i], "--gpu-architecture=sm_90a") == 0;
    return p->log || !arch ? 6 : 0;
}
FN(int, nvrtcDestroyProgram, struct program **p) {
    free(*p);
    *p = NULL;
    return 0;
}
FN(int, nvrtcGetProgramLogSize, struct program *p, size_t *n) {
    *n = p->log ? strlen(p->log) + 1 : 1;
    return 0;
}
FN(int, nvrtcGetProgramLog, struct program *p, char *out) {
    strcpy(out, p->log ? p->log : "");
    return 0;
}
FN(int, nvrtcGetCUBINSize, struct program *p, size_t *n) {
    *n = strlen(p->text) + 1;
    return 0;
}
FN(int, nvrtcGetCUBIN, struct program *p, char *out) {
    strcpy(out, p->text);
    return 0;
}
