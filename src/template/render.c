#include "template/render.h"

#include "template/pystr.h"
#include "template/writer.h"

#include <string.h>

#define CHANNEL_OPEN "<|channel>"
#define CHANNEL_CLOSE "<channel|>"

/* What the last message that is not a tool result ended with; decides whether the prompt opens a model turn. */
enum ending { END_OTHER, END_CALL, END_RESPONSE };

struct render {
    struct dg_writer w;
    const json_t *messages;
    size_t count;
    size_t last_user; /* index of the last user message, SIZE_MAX when there is none */
    bool after_assistant;
    enum ending ending;
};

static const json_t *role_of(const json_t *message) { return dg_py_get(message, "role"); }

static bool is_leading(const json_t *message) {
    return dg_py_is(role_of(message), "system") || dg_py_is(role_of(message), "developer");
}

/* Text with white space cut from both sides. */
static void client_trimmed(struct dg_writer *w, const char *s, size_t n) {
    dg_py_strip(&s, &n);
    dg_writer_client(w, s, n);
}

/* str(v) without white space on both sides. */
static enum dg_status value_trimmed(struct dg_writer *w, const json_t *v) {
    if (dg_json_is_text(v)) {
        client_trimmed(w, json_string_value(v), json_string_length(v));
        return DG_OK;
    }
    return dg_writer_value(w, v);
}

/* A model's text without its thoughts: of each piece before a channel close, what precedes the first channel open. */
static enum dg_status without_thoughts(struct dg_writer *w, const json_t *v) {
    if (!dg_json_is_text(v))
        return DG_FAIL(w->err, DG_E_ARG, "a text part of a model message must have a \"text\" that is a string");
    const char *s = json_string_value(v), *end = s + json_string_length(v);
    struct dg_buf kept;
    dg_buf_init(&kept, DG_PROMPT_MAX);
    for (const char *piece = s; piece;) {
        const char *close = memmem(piece, (size_t)(end - piece), CHANNEL_CLOSE, strlen(CHANNEL_CLOSE));
        const char *stop = close ? close : end;
        const char *open = memmem(piece, (size_t)(stop - piece), CHANNEL_OPEN, strlen(CHANNEL_OPEN));
        dg_buf_add(&kept, piece, (size_t)((open ? open : stop) - piece));
        piece = close ? close + strlen(CHANNEL_CLOSE) : NULL;
    }
    if (kept.status == DG_OK)
        client_trimmed(w, dg_buf_cstr(&kept), kept.len);
    else
        w->out->text.status = kept.status;
    dg_buf_deinit(&kept);
    return DG_OK;
}

/* --- system turn --- */

static enum dg_status system_text(struct dg_writer *w, const json_t *content) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (dg_json_is_text(content))
        return value_trimmed(w, content);
    if (!dg_py_iter_init(&it, content))
        return DG_OK;
    while (dg_py_iter_next(&it, &item)) {
        DG_TRY(value_trimmed(w, dg_py_get(item.value, "text")));
        dg_writer_lit(w, " ");
    }
    return DG_OK;
}

static enum dg_status tool_declarations(struct dg_writer *w, const json_t *tools) {
    struct dg_py_iter it;
    struct dg_py_item item;
    size_t i = 0;
    if (!dg_py_iter_init(&it, tools))
        return DG_FAIL(w->err, DG_E_ARG, "\"tools\" must be an array");
    while (dg_py_iter_next(&it, &item))
        DG_TRY(dg_writer_tool(w, item.value, i++));
    return DG_OK;
}

static enum dg_status system_turn(struct dg_writer *w, const json_t *first, const json_t *tools, bool thinking) {
    dg_writer_lit(w, "<|turn>system\n");
    dg_writer_lit(w, thinking ? "<|think|>\n" : "");
    if (is_leading(first))
        DG_TRY(system_text(w, dg_py_get(first, "content")));
    if (dg_py_truthy(tools))
        DG_TRY(tool_declarations(w, tools));
    dg_writer_lit(w, "<turn|>\n");
    return DG_OK;
}

/* --- calls and their results --- */

static enum dg_status tool_calls(struct dg_writer *w, const json_t *calls) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (!dg_py_iter_init(&it, calls))
        return DG_FAIL(w->err, DG_E_ARG, "\"tool_calls\" must be an array");
    for (size_t i = 0; dg_py_iter_next(&it, &item); i++) {
        const json_t *function = dg_py_get(item.value, "function"), *name = dg_py_get(function, "name");
        const json_t *arguments = dg_py_get(function, "arguments");
        if (!dg_json_is_text(name))
            return DG_FAIL(w->err, DG_E_ARG, "tool_calls[%zu].function.name must be a string", i);
        dg_writer_lit(w, "<|tool_call>call:");
        DG_TRY(dg_writer_value(w, name));
        dg_writer_lit(w, "{");
        if (json_is_object(arguments))
            DG_TRY(dg_writer_fields(w, arguments, false, 0));
        else if (dg_json_is_text(arguments))
            DG_TRY(dg_writer_value(w, arguments));
        dg_writer_lit(w, "}<tool_call|>");
    }
    return DG_OK;
}

/* <|tool_response>response:NAME{ */
static enum dg_status open_response(struct dg_writer *w, const json_t *name) {
    if (!dg_json_is_text(name))
        return DG_FAIL(w->err, DG_E_ARG, "no name for this tool result: give the tool_call_id of a call before it, or \"name\"");
    dg_writer_lit(w, "<|tool_response>response:");
    DG_TRY(dg_writer_value(w, name));
    dg_writer_lit(w, "{");
    return DG_OK;
}

static enum dg_status legacy_responses(struct dg_writer *w, const json_t *responses, bool *any) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (!dg_py_iter_init(&it, responses))
        return DG_FAIL(w->err, DG_E_ARG, "\"tool_responses\" must be an array");
    while (dg_py_iter_next(&it, &item)) {
        const json_t *name = dg_py_get(item.value, "name"), *response = dg_py_get(item.value, "response");
        if (name)
            DG_TRY(open_response(w, name));
        else
            dg_writer_lit(w, "<|tool_response>response:unknown{");
        if (json_is_object(response))
            DG_TRY(dg_writer_fields(w, response, false, 0));
        else {
            dg_writer_lit(w, "value:");
            DG_TRY(dg_writer_format(w, response, false, 0));
        }
        dg_writer_lit(w, "}<tool_response|>");
        *any = true;
    }
    return DG_OK;
}

/* The kind of a media part as the prompt's placeholder; NULL for any other part. */
static const char *placeholder(const json_t *type) {
    if (dg_py_is(type, "image"))
        return "<|image|>";
    if (dg_py_is(type, "audio"))
        return "<|audio|>";
    return dg_py_is(type, "video") ? "<|video|>" : NULL;
}

/* A tool result given as parts: its texts joined to one value, then the media behind the block. */
static enum dg_status parts_response(struct dg_writer *w, const json_t *parts) {
    dg_writer_lit(w, "value:<|\"|>");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = dg_py_get(part, "text");
        if (!json_is_object(part))
            return DG_FAIL(w->err, DG_E_ARG, "content[%zu] must be an object with a \"type\"", i);
        if (!dg_py_is(dg_py_get(part, "type"), "text"))
            continue;
        if (!dg_json_is_text(text))
            return DG_FAIL(w->err, DG_E_ARG, "content[%zu].text must be a string", i);
        DG_TRY(dg_writer_value(w, text));
    }
    dg_writer_lit(w, "<|\"|>}<tool_response|>");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *media = placeholder(dg_py_get(json_array_get(parts, i), "type"));
        dg_writer_lit(w, media ? media : "");
    }
    return DG_OK;
}

static enum dg_status tool_result(struct dg_writer *w, const json_t *name, const json_t *content) {
    DG_TRY(open_response(w, name));
    if (json_is_object(content) && json_object_size(content))
        return DG_FAIL(w->err, DG_E_ARG, "the content of a tool message is an object: send it as JSON text");
    if (json_is_array(content) || json_is_object(content))
        return parts_response(w, content);
    static const char *const close = "}<tool_response|>";
    dg_writer_lit(w, "value:");
    if (content)
        DG_TRY(dg_writer_format(w, content, false, 0));
    else
        dg_writer_lit(w, "None");
    dg_writer_lit(w, close);
    return DG_OK;
}

/* Names of the calls of one message by id. A later call overwrites an earlier one with the same id, and a missing id equals null,
 * as in the template. Text ids, the usual kind, are found by hash: a message may hold very many calls. */
struct call_names {
    const json_t *calls;
    json_t *by_text;
    const json_t *without_id;
};

static enum dg_status call_names_init(struct call_names *c, const json_t *calls, struct dg_error *err) {
    *c = (struct call_names){.calls = calls, .by_text = json_object()};
    bool ok = c->by_text != NULL;
    for (size_t i = 0; ok && i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i), *id = json_object_get(call, "id");
        json_t *name = json_object_get(json_object_get(call, "function"), "name");
        if (!id || json_is_null(id))
            c->without_id = name;
        else if (json_is_string(id))
            ok = json_object_setn_nocheck(c->by_text, json_string_value(id), json_string_length(id), name) == 0;
    }
    if (ok)
        return DG_OK;
    json_decref(c->by_text);
    return DG_FAIL(err, DG_E_NOMEM, "no memory for the names of %zu tool calls", json_array_size(calls));
}

/* NULL when no call has this id. */
static const json_t *call_names_find(const struct call_names *c, const json_t *id) {
    if (!id || json_is_null(id))
        return c->without_id;
    if (json_is_string(id))
        return json_object_getn(c->by_text, json_string_value(id), json_string_length(id));
    for (size_t i = json_array_size(c->calls); i-- > 0;) {
        const json_t *call = json_array_get(c->calls, i);
        if (dg_py_equal(dg_py_get(call, "id"), id))
            return dg_py_get(dg_py_get(call, "function"), "name");
    }
    return NULL;
}

/* The run of tool messages behind message i. */
static enum dg_status following_results(struct render *r, size_t i, const json_t *calls, bool *any) {
    struct call_names names;
    enum dg_status st = DG_OK;
    if (i + 1 >= r->count || !dg_py_is(role_of(json_array_get(r->messages, i + 1)), "tool"))
        return DG_OK;
    DG_TRY(call_names_init(&names, calls, r->w.err));
    for (size_t k = i + 1; k < r->count && st == DG_OK; k++) {
        const json_t *result = json_array_get(r->messages, k);
        if (!dg_py_is(role_of(result), "tool"))
            break;
        const json_t *name = call_names_find(&names, dg_py_get(result, "tool_call_id"));
        st = tool_result(&r->w, name ? name : dg_py_get(result, "name"), dg_py_get(result, "content"));
        if (st != DG_OK)
            dg_error_prefix(r->w.err, "messages[%zu]", k);
        *any = true;
    }
    json_decref(names.by_text);
    return st;
}

/* --- one message --- */

static enum dg_status content(struct render *r, const json_t *value, bool model) {
    struct dg_py_iter it;
    struct dg_py_item item;
    if (dg_json_is_text(value))
        return model ? without_thoughts(&r->w, value) : value_trimmed(&r->w, value);
    if (!json_is_array(value) || !dg_py_iter_init(&it, value))
        return DG_OK;
    while (dg_py_iter_next(&it, &item)) {
        const json_t *type = dg_py_get(item.value, "type"), *text = dg_py_get(item.value, "text");
        const char *media = placeholder(type);
        if (dg_py_is(type, "text"))
            DG_TRY(model ? without_thoughts(&r->w, text) : value_trimmed(&r->w, text));
        else if (media) {
            dg_writer_lit(&r->w, media);
            r->ending = END_OTHER;
        }
    }
    return DG_OK;
}

/* The thought that led to the calls of the turn in progress; thoughts of earlier turns are dropped. */
static enum dg_status thought(struct render *r, size_t i, const json_t *message) {
    const json_t *text = dg_py_get(message, "reasoning");
    if (!dg_py_truthy(text))
        text = dg_py_get(message, "reasoning_content");
    if (!dg_py_truthy(text) || (r->last_user != SIZE_MAX && i <= r->last_user) || !dg_py_truthy(dg_py_get(message, "tool_calls")))
        return DG_OK;
    if (!dg_json_is_text(text))
        return DG_FAIL(r->w.err, DG_E_ARG, "\"reasoning\" must be a string");
    dg_writer_lit(&r->w, CHANNEL_OPEN "thought\n");
    DG_TRY(dg_writer_value(&r->w, text));
    dg_writer_lit(&r->w, "\n" CHANNEL_CLOSE);
    return DG_OK;
}

static bool blank(const char *s, size_t n) {
    dg_py_strip(&s, &n);
    return n == 0;
}

static enum dg_status turn_header(struct render *r, const json_t *role) {
    bool assistant = dg_py_is(role, "assistant");
    if ((assistant || dg_py_is(role, "model")) && r->after_assistant)
        return DG_OK;
    if (!dg_json_is_text(role))
        return DG_FAIL(r->w.err, DG_E_ARG, "\"role\" must be a string");
    dg_writer_lit(&r->w, "<|turn>");
    if (assistant)
        dg_writer_lit(&r->w, "model");
    else
        DG_TRY(dg_writer_value(&r->w, role));
    dg_writer_lit(&r->w, "\n");
    return DG_OK;
}

static enum dg_status turn(struct render *r, size_t i) {
    const json_t *message = json_array_get(r->messages, i), *role = role_of(message);
    const json_t *calls = dg_py_get(message, "tool_calls"), *responses = dg_py_get(message, "tool_responses");
    bool model = dg_py_is(role, "assistant") || dg_py_is(role, "model"), answered = false;
    r->ending = END_OTHER;
    DG_TRY(turn_header(r, role));
    DG_TRY(thought(r, i, message));
    if (dg_py_truthy(calls)) {
        DG_TRY(tool_calls(&r->w, calls));
        r->ending = END_CALL;
    }
    if (dg_py_truthy(responses))
        DG_TRY(legacy_responses(&r->w, responses, &answered));
    else if (dg_py_truthy(calls))
        DG_TRY(following_results(r, i, calls, &answered));
    if (answered)
        r->ending = END_RESPONSE;
    struct dg_buf *text = &r->w.out->text;
    size_t before = text->len;
    DG_TRY(content(r, dg_py_get(message, "content"), model));
    if (r->ending == END_CALL && !answered)
        dg_writer_lit(&r->w, "<|tool_response>");
    else if (!answered || (text->len > before && !blank(text->data + before, text->len - before)))
        dg_writer_lit(&r->w, "<turn|>\n");
    r->after_assistant = dg_py_is(role, "assistant");
    return DG_OK;
}

static enum dg_status turns(struct render *r, size_t first) {
    r->last_user = SIZE_MAX;
    for (size_t i = first; i < r->count; i++)
        if (dg_py_is(role_of(json_array_get(r->messages, i)), "user"))
            r->last_user = i;
    for (size_t i = first; i < r->count; i++) {
        if (dg_py_is(role_of(json_array_get(r->messages, i)), "tool"))
            continue;
        enum dg_status st = turn(r, i);
        if (st != DG_OK) {
            if (!r->w.err || strncmp(dg_error_text(r->w.err), "messages[", strlen("messages[")) != 0)
                dg_error_prefix(r->w.err, "messages[%zu]", i);
            return st;
        }
    }
    return DG_OK;
}

static enum dg_status render_all(struct render *r, const json_t *tools, bool thinking) {
    const json_t *first = json_array_get(r->messages, 0);
    bool leading = is_leading(first);
    dg_writer_lit(&r->w, "<bos>");
    if (thinking || dg_py_truthy(tools) || leading)
        DG_TRY(system_turn(&r->w, first, tools, thinking));
    return turns(r, leading ? 1 : 0);
}

enum dg_status dg_template_render(const json_t *messages, const json_t *tools, const struct dg_render_options *opts,
                                  struct dg_prompt *out, struct dg_error *err) {
    struct render r = {.w = {out, err}, .messages = messages, .count = json_array_size(messages)};
    bool thinking = opts && opts->thinking == DG_THINKING_ON;
    dg_buf_clear(&out->text);
    out->n_spans = 0;
    if (!json_is_array(messages) || r.count == 0)
        return DG_FAIL(err, DG_E_ARG, "there are no messages: give an array with at least one");
    DG_TRY(render_all(&r, tools, thinking));
    if (opts && opts->add_generation_prompt && r.ending == END_OTHER) {
        dg_writer_lit(&r.w, "<|turn>model\n");
        dg_writer_lit(&r.w, thinking ? "" : CHANNEL_OPEN "thought\n" CHANNEL_CLOSE);
    }
    if (out->text.status == DG_E_LIMIT)
        return DG_FAIL(err, DG_E_LIMIT, "the prompt is longer than %zu bytes", DG_PROMPT_MAX);
    if (out->text.status != DG_OK)
        return DG_FAIL(err, out->text.status, "no memory for a prompt of more than %zu bytes", out->text.len);
    return DG_OK;
}
