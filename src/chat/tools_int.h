/* What tools.c and harness.c share. */
#ifndef DG_CHAT_TOOLS_INT_H
#define DG_CHAT_TOOLS_INT_H

#include "chat/tools.h"

void dg_tool_deinit(struct dg_tool *t);
/* Takes t, and function: its declaration {name, description, parameters}. Both are gone on an error. */
enum dg_status dg_toolbox_put(struct dg_toolbox *b, struct dg_tool *t, json_t *function, struct dg_error *err) DG_MUST_CHECK;

#endif
