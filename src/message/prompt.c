#include "message/prompt.h"

#include "core/utf8.h"
#include "template/pystr.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

static bool absent(const json_t *v) { return !v || json_is_null(v); }

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "no memory for a copy of the messages"); }

/* --- checks, on the caller's document --- */

static enum dg_status check_part(const json_t *part, size_t i, size_t j, struct dg_error *err) {
    const json_t *type = json_object_get(part, "type");
    if (!json_is_object(part) || !dg_json_is_text(type))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].content[%zu]: give an object with a \"type\" that is a string", i, j);
    if (strcmp(json_string_value(type), "text") == 0 && !dg_json_is_text(json_object_get(part, "text")))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].content[%zu].text: give a string", i, j);
    return DG_OK;
}

static enum dg_status check_content(const json_t *content, size_t i, struct dg_error *err) {
    if (absent(content) || dg_json_is_text(content))
        return DG_OK;
    if (!json_is_array(content))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].content: give a string, null or an array of parts", i);
    for (size_t j = 0; j < json_array_size(content); j++)
        DG_TRY(check_part(json_array_get(content, j), i, j, err));
    return DG_OK;
}

static enum dg_status check_call(const json_t *call, size_t i, size_t j, struct dg_error *err) {
    const json_t *id = json_object_get(call, "id"), *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments");
    if (!json_is_object(call) || !json_is_object(function))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].tool_calls[%zu].function: give an object with \"name\"", i, j);
    if (!dg_json_is_text(name) || json_string_length(name) == 0)
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].tool_calls[%zu].function.name: give a string that is not empty", i, j);
    if (!absent(id) && !dg_json_is_text(id))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].tool_calls[%zu].id: give a string", i, j);
    if (!absent(arguments) && !dg_json_is_text(arguments) && !json_is_object(arguments))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].tool_calls[%zu].function.arguments: give an object or its JSON text", i, j);
    return DG_OK;
}

static enum dg_status check_array(const json_t *message, const char *key, size_t i, struct dg_error *err) {
    const json_t *list = json_object_get(message, key);
    if (absent(list))
        return DG_OK;
    if (!json_is_array(list))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].%s: give an array", i, key);
    for (size_t j = 0; j < json_array_size(list); j++)
        if (!json_is_object(json_array_get(list, j)))
            return DG_FAIL(err, DG_E_ARG, "messages[%zu].%s[%zu]: give an object", i, key, j);
    return DG_OK;
}

static enum dg_status check_message(const json_t *message, size_t i, struct dg_error *err) {
    static const char *const strings[] = {"name", "tool_call_id", "reasoning", "reasoning_content"};
    if (!json_is_object(message))
        return DG_FAIL(err, DG_E_ARG, "messages[%zu]: give an object with \"role\" and \"content\"", i);
    const json_t *role = json_object_get(message, "role"), *calls = json_object_get(message, "tool_calls");
    if (!dg_json_is_text(role) || json_string_length(role) == 0)
        return DG_FAIL(err, DG_E_ARG, "messages[%zu].role: give a string such as \"user\"", i);
    for (size_t k = 0; k < sizeof strings / sizeof *strings; k++) {
        const json_t *v = json_object_get(message, strings[k]);
        if (!absent(v) && !dg_json_is_text(v))
            return DG_FAIL(err, DG_E_ARG, "messages[%zu].%s: give a string or null", i, strings[k]);
    }
    DG_TRY(check_content(json_object_get(message, "content"), i, err));
    DG_TRY(check_array(message, "tool_calls", i, err));
    DG_TRY(check_array(message, "tool_responses", i, err));
    for (size_t j = 0; j < json_array_size(calls); j++)
        DG_TRY(check_call(json_array_get(calls, j), i, j, err));
    return DG_OK;
}

static enum dg_status check_tool(const json_t *tool, size_t i, struct dg_error *err) {
    const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
    const json_t *description = json_object_get(function, "description"), *parameters = json_object_get(function, "parameters");
    json_t *properties = json_object_get(parameters, "properties"), *property;
    const char *key;
    if (!json_is_object(tool) || !json_is_object(function))
        return DG_FAIL(err, DG_E_ARG, "tools[%zu].function: give an object with a \"name\"", i);
    if (!dg_json_is_text(name) || json_string_length(name) == 0)
        return DG_FAIL(err, DG_E_ARG, "tools[%zu].function.name: give a string that is not empty", i);
    if (!absent(description) && !dg_json_is_text(description))
        return DG_FAIL(err, DG_E_ARG, "tools[%zu].function.description: give a string", i);
    if (!absent(parameters) && !json_is_object(parameters))
        return DG_FAIL(err, DG_E_ARG, "tools[%zu].function.parameters: give a JSON schema, an object", i);
    if (!absent(properties) && !json_is_object(properties))
        return DG_FAIL(err, DG_E_ARG, "tools[%zu].function.parameters.properties: give an object", i);
    json_object_foreach(properties, key, property) {
        if (!json_is_object(property))
            return DG_FAIL(err, DG_E_ARG, "tools[%zu].function.parameters.properties.%.64s: give a JSON schema", i, key);
    }
    return DG_OK;
}

/* --- changes, on the copy --- */

/* Replaces arguments in text form by what the text says. */
static enum dg_status decode_arguments(json_t *function, size_t i, size_t j, struct dg_error *err) {
    const json_t *given = json_object_get(function, "arguments");
    json_t *decoded = NULL;
    if (json_is_object(given))
        return DG_OK;
    const char *s = absent(given) ? "" : json_string_value(given);
    size_t n = absent(given) ? 0 : json_string_length(given);
    dg_py_strip(&s, &n);
    if (n > 0 && !(n == 4 && memcmp(s, "null", n) == 0)) {
        enum dg_status st = dg_json_load_exact(s, n, &decoded, err);
        if (st == DG_OK && !json_is_object(decoded))
            st = DG_FAIL(err, DG_E_FORMAT, "the JSON text must be an object");
        if (st != DG_OK) {
            json_decref(decoded);
            dg_error_prefix(err, "messages[%zu].tool_calls[%zu].function.arguments", i, j);
            st = st == DG_E_FORMAT ? DG_E_ARG : st;
            if (err)
                err->code = st;
            return st;
        }
    } else if (!(decoded = json_object()))
        return no_memory(err);
    return json_object_set_new_nocheck(function, "arguments", decoded) == 0 ? DG_OK : no_memory(err);
}

static enum dg_status change_message(json_t *message, size_t i, struct dg_error *err) {
    json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    for (size_t j = 0; j < json_array_size(content); j++) {
        json_t *part = json_array_get(content, j);
        if (strcmp(json_string_value(json_object_get(part, "type")), "image_url") == 0 &&
            json_object_set_new_nocheck(part, "type", json_string("image")) != 0)
            return no_memory(err);
    }
    for (size_t j = 0; j < json_array_size(calls); j++)
        DG_TRY(decode_arguments(json_object_get(json_array_get(calls, j), "function"), i, j, err));
    return DG_OK;
}

enum dg_status dg_message_prepare(const json_t *messages, json_t **out, struct dg_error *err) {
    size_t n = json_array_size(messages);
    *out = NULL;
    if (!json_is_array(messages) || n == 0)
        return DG_FAIL(err, DG_E_ARG, "messages: give an array with at least one message");
    if (n > DG_MESSAGES_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "messages: there are %zu; at most %d are taken", n, DG_MESSAGES_MAX);
    for (size_t i = 0; i < n; i++)
        DG_TRY(check_message(json_array_get(messages, i), i, err));
    json_t *copy = json_deep_copy(messages);
    if (!copy)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        enum dg_status st = change_message(json_array_get(copy, i), i, err);
        if (st != DG_OK) {
            json_decref(copy);
            return st;
        }
    }
    *out = copy;
    return DG_OK;
}

enum dg_status dg_message_prepare_tools(const json_t *tools, json_t **out, struct dg_error *err) {
    size_t n = json_array_size(tools);
    *out = NULL;
    if (absent(tools))
        return DG_OK;
    if (!json_is_array(tools))
        return DG_FAIL(err, DG_E_ARG, "tools: give an array");
    if (n > DG_TOOLS_MAX)
        return DG_FAIL(err, DG_E_LIMIT, "tools: there are %zu; at most %d are taken", n, DG_TOOLS_MAX);
    for (size_t i = 0; i < n; i++)
        DG_TRY(check_tool(json_array_get(tools, i), i, err));
    if (n == 0)
        return DG_OK;
    json_t *copy = json_deep_copy(tools);
    if (!copy)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        json_t *function = json_object_get(json_array_get(copy, i), "function");
        json_t *parameters = json_object_get(function, "parameters");
        if (json_is_null(json_object_get(function, "description")))
            json_object_del(function, "description");
        if (json_object_size(parameters) > 0 && absent(json_object_get(parameters, "type")) &&
            json_object_set_new_nocheck(parameters, "type", json_string("object")) != 0) {
            json_decref(copy);
            return no_memory(err);
        }
    }
    *out = copy;
    return DG_OK;
}

enum dg_status dg_message_encode(const struct dg_tokenizer *t, const json_t *messages, const json_t *tools,
                                 const struct dg_render_options *opts, struct dg_ids *out, struct dg_error *err) {
    json_t *prepared = NULL, *declared = NULL;
    struct dg_prompt p;
    enum dg_status st;
    dg_prompt_init(&p);
    DG_GO(dg_message_prepare(messages, &prepared, err));
    DG_GO(dg_message_prepare_tools(tools, &declared, err));
    DG_GO(dg_template_render(prepared, declared, opts, &p, err));
    DG_GO(dg_tokenizer_encode_spans(t, dg_buf_cstr(&p.text), p.text.len, p.spans, p.n_spans, out, err));
done:
    dg_prompt_deinit(&p);
    json_decref(prepared);
    json_decref(declared);
    return st;
}

static enum dg_status add_message(json_t *list, const char *role, const char *text, size_t n, struct dg_error *err) {
    for (size_t i = 0; i < n;) {
        int k = dg_utf8_next((const uint8_t *)text + i, n - i, NULL);
        if (k == 0)
            return DG_FAIL(err, DG_E_ARG, "the %s text is not UTF-8 at byte %zu", role, i);
        i += (size_t)k;
    }
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(text, n));
    return json_array_append_new(list, message) == 0 ? DG_OK : no_memory(err);
}

enum dg_status dg_message_ask(const char *system, const char *user, size_t n, json_t **out, struct dg_error *err) {
    json_t *list = json_array();
    enum dg_status st = DG_OK;
    *out = NULL;
    if (!list)
        return no_memory(err);
    if (system)
        DG_GO(add_message(list, "system", system, strlen(system), err));
    DG_GO(add_message(list, "user", user, n, err));
    *out = list;
    return DG_OK;
done:
    json_decref(list);
    return st;
}
