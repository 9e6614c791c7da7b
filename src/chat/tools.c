#include "chat/tools.h"

#include "chat/tools_int.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "template/exact.h"

#include <stdlib.h>
#include <string.h>

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
#define NAME_MAX_BYTES 64
#define COMMAND_TEXT_MAX ((size_t)16 << 20) /* bytes of all words of a call */

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "no memory for a tool"); }

static void free_words(char **w) {
    for (size_t i = 0; w && w[i]; i++)
        dg_free(w[i]);
    dg_free(w);
}

void dg_tool_deinit(struct dg_tool *t) {
    free_words(t->argv);
    dg_free(t->name);
    dg_free(t->dir);
    json_decref(t->parameters);
    memset(t, 0, sizeof *t);
}

void dg_toolbox_drop_tools(struct dg_toolbox *b) {
    for (size_t i = 0; i < b->n; i++)
        dg_tool_deinit(&b->v[i]);
    json_decref(b->declared);
    b->declared = NULL;
    b->n = 0;
}

void dg_toolbox_deinit(struct dg_toolbox *b) {
    dg_toolbox_drop_tools(b);
    dg_free(b->v);
    dg_free(b->prompt);
    dg_free(b->prethink);
    memset(b, 0, sizeof *b);
}

const struct dg_tool *dg_toolbox_find(const struct dg_toolbox *b, const char *name) {
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->v[i].name, name))
            return &b->v[i];
    return NULL;
}

enum dg_status dg_toolbox_put(struct dg_toolbox *b, struct dg_tool *t, json_t *function, struct dg_error *err) {
    size_t n = strlen(t->name);
    enum dg_status st = DG_OK;
    if (n < 1 || n > NAME_MAX_BYTES || strspn(t->name, NAME_CHARS) != n)
        st = DG_FAIL(err, DG_E_ARG, "'%.80s' is no name for a tool: 1 to %d of the characters A-Z a-z 0-9 _ . -", t->name,
                     NAME_MAX_BYTES);
    else if (dg_toolbox_find(b, t->name))
        st = DG_FAIL(err, DG_E_ARG, "there are two tools named %s", t->name);
    else if (b->n == DG_TOOLBOX_MAX)
        st = DG_FAIL(err, DG_E_LIMIT, "at most %d tools", DG_TOOLBOX_MAX);
    else if (!b->v && !(b->v = dg_calloc(DG_TOOLBOX_MAX, sizeof *b->v)))
        st = no_memory(err);
    else if (!b->declared && !(b->declared = json_array()))
        st = no_memory(err);
    if (st == DG_OK && json_array_append_new(b->declared, json_pack("{s:s, s:O}", "type", "function", "function", function)) != 0)
        st = no_memory(err);
    if (st == DG_OK)
        b->v[b->n++] = *t;
    else
        dg_tool_deinit(t);
    json_decref(function);
    return st;
}

/* --- --tool --- */

/* The next word at *s: blanks part words, quotes and backslashes keep them together as in a shell; nothing is expanded. NULL at the
 * end, or with err set. */
static char *next_word(const char **s, struct dg_error *err) {
    struct dg_buf b;
    char quote = 0;
    const char *p = *s + strspn(*s, " \t");
    if (!*p)
        return NULL;
    dg_buf_init(&b, DG_TOOL_ARGUMENT_MAX);
    dg_buf_str(&b, "");
    for (; *p && (quote || (*p != ' ' && *p != '\t')); p++) {
        if (quote ? *p == quote : *p == '\'' || *p == '"')
            quote = quote ? 0 : *p;
        else if (*p == '\\' && quote != '\'' && p[1])
            dg_buf_chr(&b, *++p);
        else
            dg_buf_chr(&b, *p);
    }
    *s = p;
    char *word = b.status == DG_OK ? dg_strndup(dg_buf_cstr(&b), b.len) : NULL;
    if (quote)
        DG_FAIL(err, DG_E_ARG, "a quote is not closed");
    else if (!word)
        DG_FAIL(err, b.status == DG_OK ? DG_E_NOMEM : b.status, "a word of the command is too long");
    if (err->code != DG_OK) {
        dg_free(word);
        word = NULL;
    }
    dg_buf_deinit(&b);
    return word;
}

static enum dg_status split(const char *s, char ***out, struct dg_error *err) {
    struct dg_error own = {0};
    char **w = dg_calloc(DG_TOOL_WORDS_MAX + 1, sizeof *w), *word;
    size_t n = 0;
    *out = w;
    if (!w)
        return no_memory(err);
    while ((word = next_word(&s, &own))) {
        if (n == DG_TOOL_WORDS_MAX) {
            dg_free(word);
            return DG_FAIL(err, DG_E_LIMIT, "a command of more than %d words", DG_TOOL_WORDS_MAX);
        }
        w[n++] = word;
    }
    enum dg_status st = own.code;
    if (st != DG_OK)
        DG_FAIL(err, st, "%s", dg_error_text(&own));
    else if (n == 0)
        st = DG_FAIL(err, DG_E_ARG, "no command behind the =");
    dg_error_clear(&own);
    return st;
}

enum dg_status dg_toolbox_add(struct dg_toolbox *b, const char *spec, struct dg_error *err) {
    struct dg_tool t = {.input = DG_TOOL_VALUE, .timeout_s = DG_TOOL_TIMEOUT_DEFAULT, .output_max = DG_TOOL_OUTPUT_DEFAULT};
    const char *equal = strchr(spec, '='), *colon = equal ? memchr(spec, ':', (size_t)(equal - spec)) : NULL;
    enum dg_status st;
    if (!equal)
        return DG_FAIL(err, DG_E_ARG, "--tool %.80s: give NAME[:DESCRIPTION]=COMMAND", spec);
    size_t n = (size_t)((colon ? colon : equal) - spec);
    t.name = dg_strndup(spec, n);
    st = t.name ? split(equal + 1, &t.argv, err) : no_memory(err);
    if (st == DG_OK) {
        const char *about = colon ? colon + 1 : spec;
        json_t *f = json_pack("{s:s, s:s%, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}", "name", t.name, "description", about,
                              colon ? (size_t)(equal - about) : n, "parameters", "type", "object", "properties", "input", "type",
                              "string", "description", "Input", "required", "input");
        st = f ? dg_toolbox_put(b, &t, f, err) : DG_FAIL(err, DG_E_ARG, "name and description must be UTF-8");
    }
    if (st != DG_OK) {
        dg_error_prefix(err, "--tool %.80s", spec);
        dg_tool_deinit(&t);
    }
    return st;
}

/* --- a call --- */

/* Arguments as JSON. An exact integer (template/exact.h), which the library holds as a string of NUL and digits, becomes its digits
 * again. */
static char *arguments_text(const json_t *arguments) {
    char *s = json_dumps(arguments, JSON_COMPACT | JSON_REAL_PRECISION(17));
    static const char mark[] = "\"\\u0000";
    size_t mark_n = sizeof mark - 1, to = 0;
    if (!s)
        return NULL;
    for (size_t i = 0; s[i];) {
        size_t digits = strncmp(s + i, mark, mark_n) || (i && s[i - 1] == '\\') ? 0 : strspn(s + i + mark_n, "-0123456789");
        if (digits && s[i + mark_n + digits] == '"') {
            memmove(s + to, s + i + mark_n, digits);
            to += digits;
            i += mark_n + digits + 1;
        } else
            s[to++] = s[i++];
    }
    s[to] = 0;
    return s;
}

/* An argument as text: strings as they are, numbers as they were spelled, all else as JSON. */
static enum dg_status put_argument(struct dg_buf *b, const json_t *v, struct dg_error *err) {
    const char *digits;
    size_t n;
    if (dg_json_is_exact(v, &digits, &n))
        dg_buf_add(b, digits, n);
    else if (json_is_string(v)) {
        if (memchr(json_string_value(v), 0, json_string_length(v)))
            return DG_FAIL(err, DG_E_ARG, "an argument holds a NUL character");
        dg_buf_add(b, json_string_value(v), json_string_length(v));
    } else {
        char *s =
            json_is_object(v) || json_is_array(v) ? arguments_text(v) : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        if (!s)
            return no_memory(err);
        dg_buf_str(b, s);
        free(s);
    }
    return b->status == DG_OK ? DG_OK : DG_FAIL(err, DG_E_ARG, "an argument is too long");
}

/* The parameter that `{name}` at s stands for: its key in the declaration; NULL when it is none. */
static const char *parameter_at(const json_t *declared, const char *s, size_t *n) {
    const char *end = s[0] == '{' ? strchr(s, '}') : NULL;
    const char *key;
    json_t *unused;
    if (!end)
        return NULL;
    json_object_foreach((json_t *)declared, key, unused) {
        *n = strlen(key);
        if (*n == (size_t)(end - s) - 1 && !memcmp(key, s + 1, *n))
            return key;
    }
    return NULL;
}

/* One word with the arguments in it; *out stays NULL for one that is only an absent argument. */
static enum dg_status fill_word(const char *word, const json_t *declared, const json_t *arguments, char **out,
                                struct dg_error *err) {
    struct dg_buf b;
    size_t n;
    enum dg_status st = DG_OK;
    dg_buf_init(&b, DG_TOOL_ARGUMENT_MAX);
    const char *whole = parameter_at(declared, word, &n);
    if (whole && !word[n + 2] && !json_object_get(arguments, whole))
        return DG_OK;
    dg_buf_str(&b, "");
    for (const char *s = word; *s && st == DG_OK;) {
        const char *key = parameter_at(declared, s, &n);
        const json_t *v = key ? json_object_get(arguments, key) : NULL;
        if (v)
            st = put_argument(&b, v, err);
        else if (!key)
            dg_buf_chr(&b, *s);
        s += key ? n + 2 : 1;
    }
    if (st == DG_OK && b.status != DG_OK)
        st = DG_FAIL(err, b.status, "a word of the command is too long");
    if (st == DG_OK && !(*out = dg_strndup(dg_buf_cstr(&b), b.len)))
        st = no_memory(err);
    dg_buf_deinit(&b);
    return st;
}

static enum dg_status add_value(struct dg_tool_call *c, size_t n, const json_t *arguments, struct dg_error *err) {
    struct dg_buf b;
    dg_buf_init(&b, DG_TOOL_ARGUMENT_MAX);
    dg_buf_str(&b, "");
    /* a model may call the one parameter by a better name than "input" */
    json_t *only = json_object_size(arguments) == 1 ? json_object_iter_value(json_object_iter((json_t *)arguments)) : NULL;
    enum dg_status st = json_object_size(arguments) == 0 ? DG_OK : put_argument(&b, only ? only : arguments, err);
    if (st == DG_OK && json_object_size(arguments) && !(c->argv[n] = dg_strndup(dg_buf_cstr(&b), b.len)))
        st = no_memory(err);
    dg_buf_deinit(&b);
    return st;
}

enum dg_status dg_tool_call_init(struct dg_tool_call *c, const struct dg_tool *t, const json_t *arguments, struct dg_error *err) {
    size_t n = 0, total = 0;
    enum dg_status st = DG_OK;
    *c = (struct dg_tool_call){.tool = t, .argv = dg_calloc(DG_TOOL_WORDS_MAX + 2, sizeof *c->argv)};
    if (!c->argv)
        return no_memory(err);
    for (size_t i = 0; t->argv[i] && st == DG_OK; i++) {
        char *word = NULL;
        st = t->input == DG_TOOL_ARGV && i ? fill_word(t->argv[i], t->parameters, arguments, &word, err) : DG_OK;
        if (st == DG_OK && (t->input != DG_TOOL_ARGV || !i) && !(word = dg_strndup(t->argv[i], strlen(t->argv[i]))))
            st = no_memory(err);
        if (word) {
            total += strlen(word);
            c->argv[n++] = word;
        }
    }
    if (st == DG_OK && total > COMMAND_TEXT_MAX)
        st = DG_FAIL(err, DG_E_ARG, "the arguments are too long");
    if (st == DG_OK && t->input == DG_TOOL_VALUE)
        st = add_value(c, n, arguments, err);
    if (st == DG_OK && t->input == DG_TOOL_JSON && !(c->input = arguments_text(arguments)))
        st = no_memory(err);
    if (st != DG_OK)
        dg_tool_call_deinit(c);
    return st;
}

void dg_tool_call_deinit(struct dg_tool_call *c) {
    free_words(c->argv);
    free(c->input);
    memset(c, 0, sizeof *c);
}

enum dg_status dg_tool_call_show(const struct dg_tool_call *c, struct dg_buf *out) {
    for (size_t i = 0; c->argv[i]; i++) {
        const char *w = c->argv[i];
        if (i)
            dg_buf_chr(out, ' ');
        if (*w && strspn(w, NAME_CHARS "/:=@%+,") == strlen(w)) {
            dg_buf_str(out, w);
            continue;
        }
        dg_buf_chr(out, '\'');
        for (; *w; w++)
            if (*w == '\'')
                dg_buf_str(out, "'\\''");
            else
                dg_buf_chr(out, *w);
        dg_buf_chr(out, '\'');
    }
    if (c->input)
        dg_buf_fmt(out, " <<< %s", c->input);
    return out->status;
}

/* Bytes of a command as text: what is no UTF-8, and NUL, becomes U+FFFD; line ends at the end go. */
static void put_text(struct dg_buf *out, const char *s, size_t n) {
    while (n && (s[n - 1] == '\n' || s[n - 1] == '\r'))
        n--;
    for (size_t i = 0; i < n;) {
        int k = s[i] ? dg_utf8_next((const uint8_t *)s + i, n - i, NULL) : 0;
        if (k)
            dg_buf_add(out, s + i, (size_t)k);
        else
            dg_buf_str(out, "\xef\xbf\xbd");
        i += k ? (size_t)k : 1;
    }
}

static void put_result(struct dg_buf *out, const struct dg_tool *t, const struct dg_tool_output *o) {
    if (o->timed_out)
        dg_buf_fmt(out, "error: no end after %g s\n", t->timeout_s);
    else if (o->flooded)
        dg_buf_str(out, "error: far too much output\n");
    else if (o->signal)
        dg_buf_fmt(out, "error: ended by signal %d\n", o->signal);
    else if (o->exit_status)
        dg_buf_fmt(out, "error: exit status %d\n", o->exit_status);
    bool failed = out->len > 0;
    put_text(out, dg_buf_cstr(&o->text), o->text.len);
    if (o->cut)
        dg_buf_fmt(out, "\n[cut after %zu bytes]", o->text.len);
    if (failed && o->errors.len) {
        if (o->text.len)
            dg_buf_chr(out, '\n');
        put_text(out, o->errors.data, o->errors.len);
    }
    if (!out->len)
        dg_buf_str(out, "(no output)");
}

enum dg_status dg_tool_call_run(const struct dg_tool_call *c, const atomic_bool *cancel, struct dg_buf *out, struct dg_error *err) {
    struct dg_tool_output o = {0};
    struct dg_tool_command command = {
        c->argv, c->tool->dir, c->input, c->input ? strlen(c->input) : 0, c->tool->timeout_s, c->tool->output_max, cancel};
    enum dg_status st = dg_tool_run(&command, &o, err);
    dg_buf_clear(out);
    if (st == DG_OK)
        put_result(out, c->tool, &o);
    else if (st == DG_E_IO) {
        /* the model is told, and may answer without the tool */
        dg_buf_fmt(out, "error: %s", dg_error_text(err));
        dg_error_clear(err);
        st = DG_OK;
    }
    dg_tool_output_deinit(&o);
    if (st == DG_OK && out->status != DG_OK)
        st = DG_FAIL(err, out->status, "no memory for the tool's output");
    return st;
}
