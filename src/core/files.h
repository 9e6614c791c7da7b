/* What a save replaces. */
#ifndef DG_CORE_FILES_H
#define DG_CORE_FILES_H

#include "core/status.h"

#define DG_PATH_MAX 4096

/* out: `path` with its symbolic links followed, or as it is where nothing is there yet. A save that writes beside it and renames would
 * otherwise put a file in the place of a device, a pipe or a link. Errors: DG_E_ARG when something other than a file is there, or the path is too
 * long. */
enum dg_status dg_save_target(const char *path, char out[DG_PATH_MAX], struct dg_error *err) DG_MUST_CHECK;

#endif
