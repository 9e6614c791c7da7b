#include "core/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum dg_status dg_map_open(struct dg_map *m, const char *path, struct dg_error *err) {
    memset(m, 0, sizeof *m);
    /* O_NONBLOCK: opening a named pipe must not wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    enum dg_status st = DG_OK;
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        st = DG_FAIL(err, DG_E_IO, "cannot stat %s: %s", path, strerror(errno));
    else if (!S_ISREG(sb.st_mode))
        st = DG_FAIL(err, DG_E_IO, "%s is not a regular file", path);
    else if (sb.st_size > 0) {
        void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = DG_FAIL(err, DG_E_IO, "cannot map %s: %s", path, strerror(errno));
        else {
            m->data = p;
            m->size = (size_t)sb.st_size;
        }
    }
    close(fd);
    return st;
}

void dg_map_close(struct dg_map *m) {
    if (m->data)
        munmap((void *)m->data, m->size);
    memset(m, 0, sizeof *m);
}
