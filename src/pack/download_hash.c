/* The hash a hub lists: SHA-256 of a large file, the git blob's SHA-1 of a small one. */
#include "pack/download_int.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((size_t)1 << 20)

static enum dg_status feed(EVP_MD_CTX *md, int fd, const char *path, uint8_t *block, atomic_bool *halt, struct dg_error *err) {
    for (off_t at = 0;;) {
        if (atomic_load(halt))
            return DG_FAIL(err, DG_E_CANCELLED, "interrupted");
        ssize_t n = pread(fd, block, BLOCK, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DG_FAIL(err, DG_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            return DG_OK;
        if (!EVP_DigestUpdate(md, block, (size_t)n))
            return DG_FAIL(err, DG_E_INTERNAL, "OpenSSL cannot hash");
        at += n;
    }
}

enum dg_status dl_hash(const char *path, const struct dl_file *f, atomic_bool *halt, bool *same, struct dg_error *err) {
    *same = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    enum dg_status st = DG_OK;
    uint8_t *block = dg_calloc(BLOCK, 1);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    char head[64], hex[2 * EVP_MAX_MD_SIZE + 1];
    unsigned n = 0;
    struct stat sb;
    if (!block || !md) {
        st = DG_FAIL(err, DG_E_NOMEM, "out of memory");
        goto done;
    }
    if (fstat(fd, &sb) != 0 || (uint64_t)sb.st_size != f->size)
        goto done;
    int k = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->size) + 1; /* git hashes the NUL too */
    if (!EVP_DigestInit_ex(md, f->lfs ? EVP_sha256() : EVP_sha1(), NULL) || (!f->lfs && !EVP_DigestUpdate(md, head, (size_t)k))) {
        st = DG_FAIL(err, DG_E_INTERNAL, "OpenSSL cannot hash");
        goto done;
    }
    DG_GO(feed(md, fd, path, block, halt, err));
    if (!EVP_DigestFinal_ex(md, digest, &n)) {
        st = DG_FAIL(err, DG_E_INTERNAL, "OpenSSL cannot hash");
        goto done;
    }
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    *same = strcmp(hex, f->hash) == 0;
done:
    EVP_MD_CTX_free(md);
    dg_free(block);
    close(fd);
    return st;
}
