#include "ops/cuda/nvrtc.h"

#include "core/buf.h"
#include "core/mem.h"
#include "ops/cuda/images.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOURCES_MAX 64
#define CODE_MAX ((size_t)64 << 20)
#define LOG_MAX ((size_t)1 << 20)
#define MAGIC "dgcubin1"

typedef struct nvrtc_program_ *nvrtc_program;

struct nvrtc {
    void *lib;
    int major, minor;
    int (*version)(int *, int *);
    const char *(*error_string)(int);
    int (*create)(nvrtc_program *, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(nvrtc_program, int, const char *const *);
    int (*destroy)(nvrtc_program *);
    int (*log_size)(nvrtc_program, size_t *);
    int (*log)(nvrtc_program, char *);
    int (*code_size)(nvrtc_program, size_t *);
    int (*code)(nvrtc_program, char *);
};

static enum dg_status open_library(struct nvrtc *n, struct dg_error *err) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    static const char *const symbols[] = {"nvrtcVersion",           "nvrtcGetErrorString", "nvrtcCreateProgram",
                                          "nvrtcCompileProgram",    "nvrtcDestroyProgram", "nvrtcGetProgramLogSize",
                                          "nvrtcGetProgramLog",     "nvrtcGetCUBINSize",   "nvrtcGetCUBIN"};
    void *to[] = {&n->version, &n->error_string, &n->create, &n->compile, &n->destroy, &n->log_size, &n->log, &n->code_size, &n->code};
    memset(n, 0, sizeof *n);
    for (size_t i = 0; i < sizeof names / sizeof *names && !n->lib; i++)
        n->lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!n->lib)
        return DG_FAIL(err, DG_E_BACKEND,
                       "this binary was built without CUDA kernels and libnvrtc is not installed to compile them; build it with make cuda where "
                       "nvcc is installed");
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(n->lib, symbols[i]);
        if (!f) {
            dlclose(n->lib);
            return DG_FAIL(err, DG_E_BACKEND, "libnvrtc is too old: it has no %s", symbols[i]);
        }
        memcpy(to[i], &f, sizeof f);
    }
    n->version(&n->major, &n->minor);
    return DG_OK;
}

/* Two FNV-1a sums side by side. */
struct hash {
    uint64_t a, b;
};

static void add(struct hash *h, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) {
        h->a = (h->a ^ p[i]) * 0x100000001b3ull;
        h->b = (h->b ^ p[i]) * 0x3f4e5a7b9d8c6135ull;
        h->b ^= h->b >> 29;
    }
}

static struct hash hash_start(void) { return (struct hash){0xcbf29ce484222325ull, 0x9ae16a3b2f90404full}; }

/* Of everything the code depends on. */
static struct hash key_of(const char *file, const char *arch, const struct nvrtc *n, int driver_version) {
    struct hash h = hash_start();
    int versions[3] = {n->major, n->minor, driver_version};
    for (size_t i = 0; i < dg_cuda_n_sources; i++) {
        add(&h, dg_cuda_sources[i].name, strlen(dg_cuda_sources[i].name) + 1);
        add(&h, dg_cuda_sources[i].data, (size_t)(dg_cuda_sources[i].end - dg_cuda_sources[i].data));
    }
    add(&h, file, strlen(file) + 1);
    add(&h, arch, strlen(arch) + 1);
    add(&h, versions, sizeof versions);
    return h;
}

/* The cache file's path; false when there is no place for one. Makes the folder when `make` is set. */
static bool cache_path(struct dg_buf *path, const char *file, struct hash key, bool make) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base == '/')
        dg_buf_str(path, base);
    else if (home && *home == '/')
        dg_buf_fmt(path, "%s/.cache", home);
    else
        return false;
    if (make)
        mkdir(dg_buf_cstr(path), 0700);
    dg_buf_str(path, "/diffgemma");
    if (make)
        mkdir(dg_buf_cstr(path), 0700);
    return dg_buf_fmt(path, "/%s-%016llx%016llx.cubin", file, (unsigned long long)key.a, (unsigned long long)key.b) == DG_OK;
}

struct header {
    char magic[8];
    uint64_t bytes;
    struct hash content;
};

static bool cache_read(const char *path, void **code, size_t *bytes) {
    struct header h;
    FILE *f = fopen(path, "rb");
    bool good = f && fread(&h, sizeof h, 1, f) == 1 && memcmp(h.magic, MAGIC, sizeof h.magic) == 0 && h.bytes > 0 && h.bytes <= CODE_MAX;
    *code = good ? dg_calloc(h.bytes, 1) : NULL;
    good = *code && fread(*code, 1, h.bytes, f) == h.bytes;
    if (good) {
        struct hash content = hash_start();
        add(&content, *code, h.bytes);
        good = content.a == h.content.a && content.b == h.content.b;
        *bytes = h.bytes;
    }
    if (f)
        fclose(f);
    if (!good) {
        dg_free(*code);
        *code = NULL;
    }
    return good;
}

/* Under another name first, so that a reader never sees half a file. */
static void cache_write(const char *path, const void *code, size_t bytes) {
    struct header h = {.magic = MAGIC, .bytes = bytes, .content = hash_start()};
    struct dg_buf tmp;
    dg_buf_init(&tmp, 8192);
    add(&h.content, code, bytes);
    if (dg_buf_fmt(&tmp, "%s.%ld", path, (long)getpid()) == DG_OK) {
        FILE *f = fopen(dg_buf_cstr(&tmp), "wb");
        bool good = f && fwrite(&h, sizeof h, 1, f) == 1 && fwrite(code, 1, bytes, f) == bytes;
        if (f && fclose(f) != 0)
            good = false;
        if (!good || rename(dg_buf_cstr(&tmp), path) != 0)
            unlink(dg_buf_cstr(&tmp));
    }
    dg_buf_deinit(&tmp);
}

/* NUL-terminated copy of a source. */
static char *text_of(const struct dg_cuda_blob *b) { return dg_strndup((const char *)b->data, (size_t)(b->end - b->data)); }

static enum dg_status take_code(const struct nvrtc *n, nvrtc_program p, const char *file, int result, void **code, size_t *bytes,
                                struct dg_error *err) {
    size_t size = 0;
    if (result != 0) {
        char *log = NULL;
        if (n->log_size(p, &size) == 0 && size > 1 && size < LOG_MAX && (log = dg_calloc(size, 1)))
            n->log(p, log);
        enum dg_status st = DG_FAIL(err, DG_E_BACKEND, "the run-time compiler (NVRTC %d.%d) refuses the kernels \"%s\": %s%s%.1500s", n->major,
                                    n->minor, file, n->error_string(result), log ? "\n" : "", log ? log : "");
        dg_free(log);
        return st;
    }
    if (n->code_size(p, &size) != 0 || size == 0 || size > CODE_MAX)
        return DG_FAIL(err, DG_E_BACKEND, "the run-time compiler made no code of the kernels \"%s\"", file);
    *code = dg_calloc(size, 1);
    if (!*code)
        return DG_FAIL(err, DG_E_NOMEM, "no memory for compiled kernels");
    n->code(p, *code);
    *bytes = size;
    return DG_OK;
}

static enum dg_status compile(const struct nvrtc *n, const char *file, const char *arch, void **code, size_t *bytes, struct dg_error *err) {
    const char *names[SOURCES_MAX], *texts[SOURCES_MAX], *options[] = {arch, "--std=c++17"};
    char *copies[SOURCES_MAX], wanted[128];
    size_t count = 0, main_at = SOURCES_MAX;
    enum dg_status st = DG_OK;
    nvrtc_program p = NULL;
    int r;
    snprintf(wanted, sizeof wanted, "ops/cuda/kernels/%s.cu", file);
    for (size_t i = 0; i < dg_cuda_n_sources && count < SOURCES_MAX; i++, count++) {
        names[count] = dg_cuda_sources[i].name;
        texts[count] = copies[count] = text_of(&dg_cuda_sources[i]);
        if (strcmp(names[count], wanted) == 0)
            main_at = count;
        if (!copies[count])
            st = DG_FAIL(err, DG_E_NOMEM, "no memory to compile kernels");
    }
    if (st == DG_OK && main_at == SOURCES_MAX)
        st = DG_FAIL(err, DG_E_INTERNAL, "the binary carries no source of the kernels \"%s\"", file);
    if (st == DG_OK && (r = n->create(&p, texts[main_at], wanted, (int)count, texts, names)) != 0)
        st = DG_FAIL(err, DG_E_BACKEND, "the run-time compiler does not start: %s", n->error_string(r));
    if (st == DG_OK) {
        r = n->compile(p, 2, options);
        st = take_code(n, p, file, r, code, bytes, err);
    }
    if (p)
        n->destroy(&p);
    for (size_t i = 0; i < count; i++)
        dg_free(copies[i]);
    return st;
}

enum dg_status dg_cuda_compile(const char *file, int major, int minor, int driver_version, void **code, size_t *bytes, struct dg_error *err) {
    struct nvrtc n;
    char arch[48];
    *code = NULL;
    *bytes = 0;
    DG_TRY(open_library(&n, err));
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d%s", major, minor, major == 9 && minor == 0 ? "a" : "");
    struct hash key = key_of(file, arch, &n, driver_version);
    struct dg_buf path;
    dg_buf_init(&path, 8192);
    enum dg_status st = DG_OK;
    if (!cache_path(&path, file, key, false) || !cache_read(dg_buf_cstr(&path), code, bytes)) {
        st = compile(&n, file, arch, code, bytes, err);
        dg_buf_clear(&path);
        if (st == DG_OK && cache_path(&path, file, key, true))
            cache_write(dg_buf_cstr(&path), *code, *bytes);
    }
    dg_buf_deinit(&path);
    dlclose(n.lib);
    return st;
}
