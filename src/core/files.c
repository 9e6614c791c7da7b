#include "core/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum dg_status dg_save_target(const char *path, char out[DG_PATH_MAX], struct dg_error *err) {
    struct stat sb;
    size_t n = strlen(path);
    if (stat(path, &sb) == 0) {
        if (!S_ISREG(sb.st_mode))
            return DG_FAIL(err, DG_E_ARG, "cannot save to %s: that is not a file", path);
        if (realpath(path, out)) /* PATH_MAX is 4096 */
            return DG_OK;
    }
    if (n >= DG_PATH_MAX)
        return DG_FAIL(err, DG_E_ARG, "the path to save to is too long");
    memcpy(out, path, n + 1);
    return DG_OK;
}
