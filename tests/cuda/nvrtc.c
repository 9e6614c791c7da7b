/* Compiling kernels at run time: nvrtc [FILE...] compiles the named kernel files (rows) into a cache of its own. Prints TAP lines. With the stub
 * libnvrtc in front of LD_LIBRARY_PATH it needs no toolkit; what that stub returns is a text. */
#include "core/mem.h"
#include "ops/cuda/nvrtc.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed;

static void ok(bool good, const char *name, const char *why) {
    printf(good ? "ok - %s\n" : "not ok - %s: %s\n", name, why);
    failed += !good;
}

/* Path of the cache's only file; "" when there is not exactly one. */
static void only_file(const char *dir, char *path, size_t size) {
    char folder[512], name[256] = "";
    int n = 0;
    snprintf(folder, sizeof folder, "%s/diffgemma", dir);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(name, sizeof name, "%s", e->d_name);
            n++;
        }
    if (d)
        closedir(d);
    path[0] = 0;
    if (n == 1)
        snprintf(path, size, "%s/%s", folder, name);
}

static void damage(const char *path) {
    FILE *f = fopen(path, "r+b");
    if (f && fseek(f, 100, SEEK_SET) == 0)
        fputs("damage", f);
    if (f)
        fclose(f);
}

static void one(const char *file) {
    char dir[] = "/tmp/dg_nvrtc_XXXXXX", path[1024], name[200];
    struct dg_error err = {0};
    void *code[3] = {0};
    size_t bytes[3] = {0};
    if (!mkdtemp(dir))
        abort();
    setenv("XDG_CACHE_HOME", dir, 1);
    enum dg_status st = dg_cuda_compile(file, 9, 0, 13000, &code[0], &bytes[0], &err);
    if (st != DG_OK && strstr(dg_error_text(&err), "libnvrtc is not installed")) {
        printf("ok - %s compiles at run time # SKIP no libnvrtc\n", file);
        dg_error_clear(&err);
        rmdir(dir);
        return;
    }
    snprintf(name, sizeof name, "%s compiles at run time", file);
    ok(st == DG_OK && bytes[0] > 0, name, dg_error_text(&err));
    only_file(dir, path, sizeof path);
    snprintf(name, sizeof name, "%s is in the cache", file);
    ok(path[0], name, "no file, or more than one");
    st = dg_cuda_compile(file, 9, 0, 13000, &code[1], &bytes[1], &err);
    snprintf(name, sizeof name, "%s comes from the cache", file);
    ok(st == DG_OK && bytes[0] == bytes[1] && memcmp(code[0], code[1], bytes[0]) == 0, name, dg_error_text(&err));
    damage(path);
    st = dg_cuda_compile(file, 9, 0, 13000, &code[2], &bytes[2], &err);
    snprintf(name, sizeof name, "%s is compiled again when its cache file is damaged", file);
    ok(st == DG_OK && bytes[0] == bytes[2] && memcmp(code[0], code[2], bytes[0]) == 0, name, dg_error_text(&err));
    void *other = NULL;
    size_t n = 0;
    st = dg_cuda_compile(file, 9, 0, 13010, &other, &n, &err);
    char second[1024];
    only_file(dir, second, sizeof second);
    snprintf(name, sizeof name, "%s has a cache file a driver", file);
    ok(st == DG_OK && !second[0], name, dg_error_text(&err));
    for (int i = 0; i < 3; i++)
        dg_free(code[i]);
    dg_free(other);
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0)
        puts("# the cache folder could not be removed");
}

int main(int argc, char **argv) {
    struct dg_error err = {0};
    void *code = NULL;
    size_t bytes = 0;
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        one(argv[i]);
    if (argc == 1)
        one("rows");
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* no cache: root may make any folder */
    for (i++; i < argc; i++) {
        enum dg_status one_st = dg_cuda_compile(argv[i], 9, 0, 13000, &code, &bytes, &err);
        char name[200];
        snprintf(name, sizeof name, "%s compiles at run time", argv[i]);
        if (one_st != DG_OK && strstr(dg_error_text(&err), "libnvrtc is not installed"))
            printf("ok - %s # SKIP no libnvrtc\n", name);
        else
            ok(one_st == DG_OK && bytes > 0, name, dg_error_text(&err));
        dg_error_clear(&err);
        dg_free(code);
        code = NULL;
    }
    if (getenv("DG_STUB_NVRTC_LOG")) {
        enum dg_status st = dg_cuda_compile("head", 9, 0, 13000, &code, &bytes, &err);
        ok(st == DG_E_BACKEND && strstr(dg_error_text(&err), getenv("DG_STUB_NVRTC_LOG")), "the compiler's words reach the user",
           dg_error_text(&err));
        dg_error_clear(&err);
        dg_free(code);
    }
    enum dg_status st = dg_cuda_compile("no_such_file", 9, 0, 13000, &code, &bytes, &err);
    ok(st != DG_OK && !code, "a file that is not there", "it compiled");
    dg_error_clear(&err);
    return failed != 0;
}
