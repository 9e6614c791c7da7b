/* Harness files: {"prompt", "prethink", "variables", "tools"}. */
#include "chat/dialog.h"
#include "chat/tools_int.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

struct harness {
    struct dg_toolbox *box;
    char *folder; /* of the file, with its last slash; "" = the current one */
    json_t *variables; /* name -> text */
    struct dg_error *err;
};

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "no memory for the harness"); }

/* Refuses keys that mean nothing here: a mistyped one would silently do nothing. known: NULL at its end. */
static enum dg_status check_keys(const json_t *o, const char *where, const char *const *known, struct dg_error *err) {
    const char *key;
    json_t *unused;
    if (!json_is_object(o))
        return DG_FAIL(err, DG_E_ARG, "%s: give an object", where);
    json_object_foreach((json_t *)o, key, unused) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key))
            i++;
        if (!known[i])
            return DG_FAIL(err, DG_E_ARG, "%s: unknown key \"%.64s\"", where, key);
    }
    return DG_OK;
}

/* A string without NUL, or NULL when it is absent. */
static enum dg_status get_text(const json_t *o, const char *where, const char *key, const char **out, struct dg_error *err) {
    const json_t *v = json_object_get(o, key);
    *out = NULL;
    if (!v || json_is_null(v))
        return DG_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return DG_FAIL(err, DG_E_ARG, "%s: \"%s\" must be a string without NUL", where, key);
    *out = json_string_value(v);
    return DG_OK;
}

static enum dg_status get_number(const json_t *o, const char *where, const char *key, double min, double max, double *out,
                                 struct dg_error *err) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return DG_OK;
    double d = json_is_number(v) ? json_number_value(v) : min - 1;
    if (!(d >= min && d <= max))
        return DG_FAIL(err, DG_E_ARG, "%s: \"%s\" must be a number from %g to %g", where, key, min, max);
    *out = d;
    return DG_OK;
}

/* Path as seen from the harness's folder; dg_free. */
static char *in_folder(const struct harness *h, const char *path) {
    struct dg_buf b;
    dg_buf_init(&b, 64 << 10);
    dg_buf_fmt(&b, "%s%s", path[0] == '/' ? "" : h->folder, path);
    char *s = dg_buf_take(&b, NULL);
    dg_buf_deinit(&b);
    return s;
}

static enum dg_status variable_file(struct harness *h, const char *name, const char *path, json_t **out) {
    struct dg_buf b;
    char *full = in_folder(h, path);
    dg_buf_init(&b, DG_HARNESS_MAX);
    enum dg_status st = full ? dg_chat_read_file(full, DG_HARNESS_MAX, &b, h->err) : no_memory(h->err);
    if (st == DG_OK && !(*out = json_stringn(dg_buf_cstr(&b), b.len)))
        st = DG_FAIL(h->err, DG_E_ARG, "%s is not UTF-8 text", full);
    if (st != DG_OK)
        dg_error_prefix(h->err, "variables.%.64s", name);
    dg_buf_deinit(&b);
    dg_free(full);
    return st;
}

static enum dg_status read_variables(struct harness *h, const json_t *given) {
    static const char *const known[] = {"file", NULL};
    const char *name;
    json_t *v;
    if (given && !json_is_object(given))
        return DG_FAIL(h->err, DG_E_ARG, "variables: give an object");
    if (json_object_size(given) > DG_HARNESS_VARIABLES_MAX)
        return DG_FAIL(h->err, DG_E_LIMIT, "variables: at most %d", DG_HARNESS_VARIABLES_MAX);
    json_object_foreach((json_t *)given, name, v) {
        json_t *text = NULL;
        if (json_is_string(v))
            text = json_incref(v);
        else {
            const char *path;
            DG_TRY(check_keys(v, "variables", known, h->err));
            DG_TRY(get_text(v, "variables", "file", &path, h->err));
            if (!path)
                return DG_FAIL(h->err, DG_E_ARG, "variables.%.64s: give a string or {\"file\": PATH}", name);
            DG_TRY(variable_file(h, name, path, &text));
        }
        if (json_object_set_new_nocheck(h->variables, name, text) != 0)
            return no_memory(h->err);
    }
    return DG_OK;
}

/* Text with {{NAME}} replaced; what a variable holds is not looked at again. */
static enum dg_status expand(struct harness *h, const char *where, const char *s, char **out) {
    struct dg_buf b;
    enum dg_status st = DG_OK;
    dg_buf_init(&b, (DG_HARNESS_MAX + 1) * 8);
    dg_buf_str(&b, "");
    while (*s && st == DG_OK) {
        const char *open = strstr(s, "{{"), *close = open ? strstr(open, "}}") : NULL;
        if (!close) {
            dg_buf_str(&b, s);
            break;
        }
        size_t n = (size_t)(close - open) - 2;
        const json_t *v = json_object_getn(h->variables, open + 2, n);
        dg_buf_add(&b, s, (size_t)(open - s));
        if (v)
            dg_buf_add(&b, json_string_value(v), json_string_length(v));
        else
            st = DG_FAIL(h->err, DG_E_ARG, "%s: there is no variable {{%.*s}}", where, n > 64 ? 64 : (int)n, open + 2);
        s = close + 2;
    }
    if (st == DG_OK && b.status != DG_OK)
        st = DG_FAIL(h->err, b.status, "%s: too long with its variables in place", where);
    if (st == DG_OK && memchr(dg_buf_cstr(&b), 0, b.len))
        st = DG_FAIL(h->err, DG_E_ARG, "%s: a variable holds a NUL character", where);
    if (st == DG_OK) {
        dg_free(*out);
        *out = dg_buf_take(&b, NULL);
        st = *out ? DG_OK : no_memory(h->err);
    }
    dg_buf_deinit(&b);
    return st;
}

static enum dg_status shell_command(struct dg_tool *t, const char *where, const json_t *command, struct dg_error *err) {
    static const char *const words[] = {"/bin/sh", "-c"};
    if (!json_is_string(command))
        return DG_FAIL(err, DG_E_ARG, "%s: with \"shell\", \"command\" must be one string", where);
    for (int i = 0; i < 2; i++)
        t->argv[i] = dg_strndup(words[i], strlen(words[i]));
    t->argv[2] = dg_strndup(json_string_value(command), json_string_length(command));
    t->input = DG_TOOL_JSON;
    return t->argv[0] && t->argv[1] && t->argv[2] ? DG_OK : no_memory(err);
}

static enum dg_status read_command(struct dg_tool *t, const char *where, const json_t *tool, struct dg_error *err) {
    const json_t *command = json_object_get(tool, "command"), *shell = json_object_get(tool, "shell");
    const char *input;
    size_t n = json_array_size(command);
    DG_TRY(get_text(tool, where, "input", &input, err));
    if (shell && !json_is_boolean(shell))
        return DG_FAIL(err, DG_E_ARG, "%s: \"shell\" must be true or false", where);
    if (input && strcmp(input, "argv") && strcmp(input, "json"))
        return DG_FAIL(err, DG_E_ARG, "%s: \"input\" must be \"argv\" or \"json\"", where);
    t->argv = dg_calloc(DG_TOOL_WORDS_MAX + 1, sizeof *t->argv);
    if (!t->argv)
        return no_memory(err);
    if (json_is_true(shell))
        return shell_command(t, where, command, err);
    if (n < 1 || n > DG_TOOL_WORDS_MAX)
        return DG_FAIL(err, DG_E_ARG, "%s: \"command\" must be an array of 1 to %d strings (one string with \"shell\": true)",
                       where, DG_TOOL_WORDS_MAX);
    t->input = input && !strcmp(input, "json") ? DG_TOOL_JSON : DG_TOOL_ARGV;
    for (size_t i = 0; i < n; i++) {
        const json_t *w = json_array_get(command, i);
        if (!json_is_string(w) || strlen(json_string_value(w)) != json_string_length(w) || (i == 0 && !json_string_length(w)))
            return DG_FAIL(err, DG_E_ARG, "%s: \"command\" must be an array of strings without NUL, the first not empty", where);
        if (!(t->argv[i] = dg_strndup(json_string_value(w), json_string_length(w))))
            return no_memory(err);
    }
    return DG_OK;
}

static enum dg_status read_tool(struct harness *h, const char *where, const json_t *tool, struct dg_tool *t) {
    static const char *const known[] = {"name",  "description", "parameters", "command", "input",
                                        "shell", "timeout_s",   "output_max", NULL};
    const char *name, *about;
    double output = (double)DG_TOOL_OUTPUT_DEFAULT;
    DG_TRY(check_keys(tool, where, known, h->err));
    DG_TRY(get_text(tool, where, "name", &name, h->err));
    DG_TRY(get_text(tool, where, "description", &about, h->err));
    if (!name)
        return DG_FAIL(h->err, DG_E_ARG, "%s: \"name\" is missing", where);
    t->timeout_s = DG_TOOL_TIMEOUT_DEFAULT;
    DG_TRY(get_number(tool, where, "timeout_s", 0.001, 86400, &t->timeout_s, h->err));
    DG_TRY(get_number(tool, where, "output_max", 1, (double)DG_TOOL_OUTPUT_MAX, &output, h->err));
    t->output_max = (size_t)output;
    DG_TRY(read_command(t, where, tool, h->err));
    t->name = dg_strndup(name, strlen(name));
    t->dir = h->folder[0] ? dg_strndup(h->folder, strlen(h->folder)) : NULL;
    json_t *parameters = json_object_get(tool, "parameters");
    t->parameters = json_incref(json_object_get(parameters, "properties"));
    json_t *f = json_pack("{s:s, s:s}", "name", name, "description", about ? about : name);
    if (!t->name || !f || (h->folder[0] && !t->dir) || (parameters && json_object_set(f, "parameters", parameters) != 0)) {
        json_decref(f);
        return no_memory(h->err);
    }
    enum dg_status st = dg_toolbox_put(h->box, t, f, h->err);
    memset(t, 0, sizeof *t);
    return st;
}

static enum dg_status read_tools(struct harness *h, const json_t *tools) {
    json_t *checked;
    if (tools && !json_is_array(tools))
        return DG_FAIL(h->err, DG_E_ARG, "tools: give an array");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        struct dg_tool t = {0};
        char where[32];
        snprintf(where, sizeof where, "tools[%zu]", i);
        enum dg_status st = read_tool(h, where, json_array_get(tools, i), &t);
        if (st != DG_OK) {
            dg_tool_deinit(&t);
            return st;
        }
    }
    DG_TRY(dg_message_prepare_tools(h->box->declared, &checked, h->err));
    json_decref(checked);
    return DG_OK;
}

static enum dg_status read_harness(struct harness *h, const json_t *o) {
    static const char *const known[] = {"prompt", "prethink", "variables", "tools", NULL};
    const char *prompt, *prethink;
    DG_TRY(check_keys(o, "harness", known, h->err));
    DG_TRY(get_text(o, "harness", "prompt", &prompt, h->err));
    DG_TRY(get_text(o, "harness", "prethink", &prethink, h->err));
    DG_TRY(read_variables(h, json_object_get(o, "variables")));
    if (prompt)
        DG_TRY(expand(h, "prompt", prompt, &h->box->prompt));
    if (prethink)
        DG_TRY(expand(h, "prethink", prethink, &h->box->prethink));
    return read_tools(h, json_object_get(o, "tools"));
}

enum dg_status dg_toolbox_load(struct dg_toolbox *b, const char *path, struct dg_error *err) {
    const char *slash = strrchr(path, '/');
    struct harness h = {
        .box = b, .folder = dg_strndup(path, slash ? (size_t)(slash - path) + 1 : 0), .variables = json_object(), .err = err};
    struct dg_buf text;
    json_t *o = NULL;
    enum dg_status st = h.folder && h.variables ? DG_OK : no_memory(err);
    dg_buf_init(&text, DG_HARNESS_MAX);
    if (st == DG_OK)
        st = dg_chat_read_file(path, DG_HARNESS_MAX, &text, err);
    bool read = st == DG_OK;
    if (read)
        st = dg_json_load_exact(dg_buf_cstr(&text), text.len, &o, err);
    if (st == DG_OK)
        st = read_harness(&h, o);
    if (read && st != DG_OK)
        dg_error_prefix(err, "%s", path);
    json_decref(o);
    json_decref(h.variables);
    dg_free(h.folder);
    dg_buf_deinit(&text);
    return st;
}
