#include "cli/cli.h"

const char *dg_version(void) { return DG_VERSION " (" DG_COMMIT ")"; }
