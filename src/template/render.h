/* The Gemma 4 prompt form: chat messages and tool declarations to the text the model was trained on.
 *
 * The form is defined by the checkpoint's chat template; this is a second implementation of it, byte for byte, odd cases
 * included: values print as Python prints them, keys sort as Jinja's dictsort sorts them, and what the template drops is
 * dropped. It repairs nothing; message/prompt.h does that first. The text carries "<bos>" itself.
 *
 * Beside the text goes the list of its client bytes: everything that came out of `messages` or `tools`, whatever its kind.
 * All other bytes are the template's own, so a control token is real exactly where no byte of it lies in a client span. */
#ifndef DG_TEMPLATE_RENDER_H
#define DG_TEMPLATE_RENDER_H

#include "core/buf.h"
#include "core/span.h"

#include <jansson.h>

#define DG_PROMPT_MAX ((size_t)256 << 20) /* longest text, bytes */
#define DG_RENDER_DEPTH_MAX 2560          /* nesting of one value; a parsed document has at most 2048 */

enum dg_thinking { DG_THINKING_UNSET = 0, DG_THINKING_OFF, DG_THINKING_ON }; /* unset counts as off */

struct dg_render_options {
    enum dg_thinking thinking;
    bool add_generation_prompt; /* end with the opened model turn */
};

/* A rendered prompt. Spans are sorted, disjoint, not empty and not adjacent. */
struct dg_prompt {
    struct dg_buf text;
    struct dg_span *spans;
    size_t n_spans, cap_spans;
};

void dg_prompt_init(struct dg_prompt *p);
void dg_prompt_deinit(struct dg_prompt *p);

/* Renders `messages` (array of objects {role, content, tool_calls, ...}; arguments are objects, a string is printed as it stands)
 * and `tools` (array, NULL or JSON null: none). opts NULL: thinking unset, no generation prompt. Documents come from
 * dg_json_load_exact when integers beyond 64 bits matter. out: initialised by the caller, emptied first, its content undefined
 * after an error. Any thread; the documents are only read.
 * Errors are the template's: DG_E_ARG for no messages, an object as the content of a tool message, a tool result whose name
 * cannot be found, a value of a kind that the template cannot print in its place; DG_E_LIMIT (text or nesting), DG_E_NOMEM.
 * Source: the prompt form of google/diffusiongemma-26B-A4B-it, chat template of 17,466 bytes. */
enum dg_status dg_template_render(const json_t *messages, const json_t *tools, const struct dg_render_options *opts,
                                  struct dg_prompt *out, struct dg_error *err) DG_MUST_CHECK;

#endif
