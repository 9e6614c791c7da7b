#include "cli/cli.h"

#include <stdio.h>

int dg_cmd_flags(int argc, char **argv) {
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("flags"), NULL, 0, 0, 0, &first, &status))
        return status;
    struct dg_buf out;
    dg_buf_init(&out, 1 << 20);
    if (dg_flags_print(&out) == DG_OK)
        fputs(dg_buf_cstr(&out), stdout);
    else
        status = DG_EXIT_FAILED;
    dg_buf_deinit(&out);
    return status;
}
