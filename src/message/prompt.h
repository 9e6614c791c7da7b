/* Chat messages as clients send them (the OpenAI chat form) to token ids.
 *
 * Three steps: prepare (check every type, decode what clients send as text, in a copy), render (template/render.h), encode with
 * control tokens refused inside client text. Documents should come from dg_json_load_exact. Any thread; inputs are only read. */
#ifndef DG_MESSAGE_PROMPT_H
#define DG_MESSAGE_PROMPT_H

#include "core/ids.h"
#include "template/exact.h"
#include "template/render.h"

#define DG_MESSAGES_MAX 100000 /* messages of one prompt */
#define DG_TOOLS_MAX 10000     /* tools of one prompt */

struct dg_tokenizer;

/* *out: a copy of `messages` that dg_template_render understands. The caller's, json_decref; NULL after an error. Checked: at
 * least one message and at most DG_MESSAGES_MAX, each an object with a string role that is not empty; content a string, null,
 * absent or an array of parts {type, ...}, a part of type text with a string; tool_calls null, absent or an array of {id,
 * function: {name, arguments}}; tool_call_id, name, reasoning and reasoning_content strings, null or absent; tool_responses
 * null, absent or an array of objects. Changed: arguments given as JSON text are decoded (text that is empty, blank or "null"
 * is an empty object, as is null); parts of type image_url become image. Errors: DG_E_ARG naming the place, as in
 * "messages[3].tool_calls[0].function.arguments: ...", DG_E_LIMIT, DG_E_NOMEM. */
enum dg_status dg_message_prepare(const json_t *messages, json_t **out, struct dg_error *err) DG_MUST_CHECK;
/* The same for the tool list. *out is NULL when there are none (NULL, JSON null, an empty array). Checked: each tool an
 * object with function.name a string that is not empty, description a string, null or absent, parameters an object, null or
 * absent, its properties and each of them objects. Changed: parameters without a type get "object" (the template leaves its
 * brace open otherwise); a null description is removed (the template would print "None"). */
enum dg_status dg_message_prepare_tools(const json_t *tools, json_t **out, struct dg_error *err) DG_MUST_CHECK;
/* Prepares, renders and encodes; appends to out, which keeps what it held on failure. tools may be NULL, opts too (thinking
 * unset, no generation prompt). The ids begin with <bos>. Errors: those of the three steps. */
enum dg_status dg_message_encode(const struct dg_tokenizer *t, const json_t *messages, const json_t *tools,
                                 const struct dg_render_options *opts, struct dg_ids *out, struct dg_error *err) DG_MUST_CHECK;
/* *out: the messages of one question: `system` (NUL-terminated; NULL: none) and n bytes of `user`. The caller's, json_decref.
 * Errors: DG_E_ARG for text that is not UTF-8, DG_E_NOMEM. */
enum dg_status dg_message_ask(const char *system, const char *user, size_t n, json_t **out, struct dg_error *err) DG_MUST_CHECK;

#endif
