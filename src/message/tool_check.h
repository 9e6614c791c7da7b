/* Are a turn's tool calls well formed, and meant for tools that were declared? The text side of the pipeline's validator and repair. */
#ifndef DG_MESSAGE_TOOL_CHECK_H
#define DG_MESSAGE_TOOL_CHECK_H

#include "pipeline/stage.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

#define DG_TOOL_FEEDBACK_MAX ((size_t)1 << 20) /* bytes of the error responses of one turn */

struct dg_tool_check {
    const struct dg_tokenizer *t;
    const json_t *tools;
    /* The turn must call this tool, "" = any; NULL = it need not call one. May be changed between turns. Borrowed. */
    const char *must_call;
    bool in_thought; /* the prompt of the turn ended inside an open thought; may be changed between turns */
    int32_t response_open;
};

/* tools: as clients send them (array of {function: {name, parameters}}); NULL or JSON null = none is declared, so every call is invalid. Both
 * are borrowed. */
void dg_tool_check_init(struct dg_tool_check *c, const struct dg_tokenizer *t, const json_t *tools);
/* What the stages take. c and gen (options of a Generate without its own) must outlive them; called on the pipeline's thread. */
struct dg_turn_check dg_tool_check_stage(struct dg_tool_check *c, const struct dg_gen *gen);

/* Reads n ids as a reply that stop_id ended (-1: the tokens did). *invalid: calls that cannot be read, name no declared tool, have
 * arguments that are no JSON object, or lack a required one; and a call that must be there and is not. feedback (may be NULL) gets one
 * response with the reason for each, in the model's form. Errors: DG_E_LIMIT, DG_E_NOMEM, DG_E_ARG for an id out of range. */
enum dg_status dg_tool_check_turn(const struct dg_tool_check *c, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid,
                                  struct dg_ids *feedback, struct dg_error *err) DG_MUST_CHECK;

#endif
