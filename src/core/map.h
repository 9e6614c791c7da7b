/* Read-only file mapping. */
#ifndef DG_CORE_MAP_H
#define DG_CORE_MAP_H

#include "core/status.h"

struct dg_map {
    const uint8_t *data; /* NULL when size is 0 */
    size_t size;
};

/* Maps a regular file read-only; the pages stay the file's (clean, evictable). Errors: DG_E_IO with path and reason, also for
 * a folder, device or pipe. An empty file maps to size 0. Owner: the caller, dg_map_close. */
enum dg_status dg_map_open(struct dg_map *m, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* Closing a zeroed or closed mapping does nothing. */
void dg_map_close(struct dg_map *m);

#endif
