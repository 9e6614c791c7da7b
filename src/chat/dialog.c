#include "chat/dialog.h"

#include "core/files.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dg_status no_memory(struct dg_error *err) { return DG_FAIL(err, DG_E_NOMEM, "no memory for the chat's messages"); }

enum dg_status dg_dialog_init(struct dg_dialog *d, struct dg_error *err) {
    *d = (struct dg_dialog){.messages = json_array(), .thinking = DG_THINKING_OFF, .next_call = 1};
    return d->messages ? DG_OK : no_memory(err);
}

void dg_dialog_deinit(struct dg_dialog *d) {
    json_decref(d->messages);
    json_decref(d->tools);
    *d = (struct dg_dialog){0};
}

/* *out: a JSON string of the text. A leading NUL is dropped: with digits behind it, it would read as a number (template/exact.h).
 */
static enum dg_status text_value(const char *what, const char *text, size_t n, json_t **out, struct dg_error *err) {
    *out = NULL;
    for (size_t i = 0; i < n;) {
        int k = dg_utf8_next((const uint8_t *)text + i, n - i, NULL);
        if (k == 0)
            return DG_FAIL(err, DG_E_ARG, "the %s is not UTF-8 at byte %zu", what, i);
        i += (size_t)k;
    }
    while (n && !*text) {
        text++;
        n--;
    }
    *out = json_stringn_nocheck(text, n);
    return *out ? DG_OK : no_memory(err);
}

static bool has_system(const struct dg_dialog *d) {
    const char *role = json_string_value(json_object_get(json_array_get(d->messages, 0), "role"));
    return role && !strcmp(role, "system");
}

enum dg_status dg_dialog_system(struct dg_dialog *d, const char *text, size_t n, struct dg_error *err) {
    json_t *value;
    if (n == 0) {
        if (has_system(d))
            json_array_remove(d->messages, 0);
        return DG_OK;
    }
    DG_TRY(text_value("system text", text, n, &value, err));
    json_t *message = json_pack("{s:s, s:o}", "role", "system", "content", value);
    int bad = has_system(d) ? json_array_set_new(d->messages, 0, message) : json_array_insert_new(d->messages, 0, message);
    return bad ? no_memory(err) : DG_OK;
}

const char *dg_dialog_system_view(const struct dg_dialog *d) {
    return has_system(d) ? json_string_value(json_object_get(json_array_get(d->messages, 0), "content")) : NULL;
}

static enum dg_status append(struct dg_dialog *d, json_t *message, struct dg_error *err) {
    if (message && json_array_size(d->messages) >= DG_MESSAGES_MAX) {
        json_decref(message);
        return DG_FAIL(err, DG_E_LIMIT, "the chat has %d messages, the most there can be: /reset begins anew", DG_MESSAGES_MAX);
    }
    return json_array_append_new(d->messages, message) == 0 ? DG_OK : no_memory(err);
}

enum dg_status dg_dialog_add_user(struct dg_dialog *d, const char *text, size_t n, struct dg_error *err) {
    json_t *value;
    DG_TRY(text_value("message", text, n, &value, err));
    return append(d, json_pack("{s:s, s:o}", "role", "user", "content", value), err);
}

enum dg_status dg_dialog_add_reply(struct dg_dialog *d, json_t *message, struct dg_error *err) {
    return append(d, json_incref(message), err);
}

enum dg_status dg_dialog_add_result(struct dg_dialog *d, const char *call_id, const char *name, const char *text, size_t n,
                                    struct dg_error *err) {
    json_t *value;
    DG_TRY(text_value("tool's output", text, n, &value, err));
    return append(d, json_pack("{s:s, s:s, s:s, s:o}", "role", "tool", "tool_call_id", call_id, "name", name, "content", value),
                  err);
}

size_t dg_dialog_count(const struct dg_dialog *d) { return json_array_size(d->messages); }

void dg_dialog_cut(struct dg_dialog *d, size_t count) {
    while (json_array_size(d->messages) > count)
        json_array_remove(d->messages, json_array_size(d->messages) - 1);
}

size_t dg_dialog_last_user(const struct dg_dialog *d, const char **text, size_t *n) {
    *text = NULL;
    *n = 0;
    for (size_t i = json_array_size(d->messages); i-- > 0;) {
        const json_t *m = json_array_get(d->messages, i), *content = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role || strcmp(role, "user"))
            continue;
        *text = json_string_value(content);
        *n = json_string_length(content);
        return i;
    }
    return SIZE_MAX;
}

enum dg_status dg_dialog_encode(const struct dg_dialog *d, const struct dg_tokenizer *t, bool prompt, struct dg_ids *out,
                                struct dg_error *err) {
    struct dg_render_options o = {d->thinking, prompt};
    return dg_message_encode(t, d->messages, d->tools, &o, out, err);
}

/* --- files --- */

static enum dg_status write_all(int fd, const char *s, size_t n) {
    while (n) {
        ssize_t k = write(fd, s, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return DG_E_IO;
        s += k;
        n -= (size_t)k;
    }
    return fsync(fd) == 0 || errno == EINVAL || errno == EROFS ? DG_OK : DG_E_IO;
}

static int to_buf(const char *s, size_t n, void *out) { return dg_buf_add(out, s, n) == DG_OK ? 0 : -1; }

static enum dg_status as_text(const struct dg_dialog *d, struct dg_buf *out, struct dg_error *err) {
    json_t *o = json_pack("{s:s, s:i, s:b, s:O}", "form", "diffgemma chat", "version", 1, "think", d->thinking == DG_THINKING_ON,
                          "messages", d->messages);
    int bad = !o || json_dump_callback(o, to_buf, out, JSON_INDENT(1));
    json_decref(o);
    if (out->status == DG_E_LIMIT)
        return DG_FAIL(err, DG_E_LIMIT, "the chat is more than %zu bytes", out->max);
    return bad || dg_buf_chr(out, '\n') != DG_OK ? no_memory(err) : DG_OK;
}

enum dg_status dg_dialog_save(const struct dg_dialog *d, const char *path, struct dg_error *err) {
    struct dg_buf text, name;
    enum dg_status st;
    char target[DG_PATH_MAX];
    int fd = -1;
    dg_buf_init(&text, DG_DIALOG_FILE_MAX);
    dg_buf_init(&name, 8192);
    DG_GO(dg_save_target(path, target, err));
    DG_GO(as_text(d, &text, err));
    if (dg_buf_fmt(&name, "%s.%ld.tmp", target, (long)getpid()) != DG_OK) {
        st = DG_FAIL(err, DG_E_ARG, "the file name is too long");
        goto done;
    }
    /* what was said may be private */
    fd = open(dg_buf_cstr(&name), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        st = DG_FAIL(err, DG_E_IO, "cannot write %s: %s", path, strerror(errno));
        goto done;
    }
    st = write_all(fd, text.data, text.len);
    if (close(fd) != 0)
        st = DG_E_IO;
    if (st == DG_OK && rename(dg_buf_cstr(&name), target) != 0)
        st = DG_E_IO;
    if (st != DG_OK) {
        DG_FAIL(err, st, "cannot write %s: %s", path, strerror(errno));
        unlink(dg_buf_cstr(&name));
    }
done:
    dg_buf_deinit(&text);
    dg_buf_deinit(&name);
    return st;
}

enum dg_status dg_chat_read_file(const char *path, size_t max, struct dg_buf *out, struct dg_error *err) {
    struct stat sb;
    char chunk[16384];
    ssize_t k;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return DG_FAIL(err, DG_E_IO, "cannot open %s: %s", path, strerror(errno));
    enum dg_status st = DG_OK;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        st = DG_FAIL(err, DG_E_IO, "%s is not a file", path);
    while (st == DG_OK && (k = read(fd, chunk, sizeof chunk)) != 0) {
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            st = DG_FAIL(err, DG_E_IO, "cannot read %s: %s", path, strerror(errno));
        else if (out->len + (size_t)k > max)
            st = DG_FAIL(err, DG_E_LIMIT, "%s holds more than %zu bytes", path, max);
        else if (dg_buf_add(out, chunk, (size_t)k) != DG_OK)
            st = DG_FAIL(err, out->status, "no memory to read %s", path);
    }
    close(fd);
    return st;
}

/* The array of messages in a document. think: in it, or what it was. */
static enum dg_status find_messages(const json_t *document, json_t **messages, bool *think, struct dg_error *err) {
    *messages = NULL;
    if (json_is_array(document)) {
        *messages = (json_t *)document;
        return DG_OK;
    }
    const char *form = json_string_value(json_object_get(document, "form"));
    if (!form || strcmp(form, "diffgemma chat"))
        return DG_FAIL(err, DG_E_FORMAT, "neither a saved chat nor an array of messages");
    if (json_integer_value(json_object_get(document, "version")) != 1)
        return DG_FAIL(err, DG_E_FORMAT, "a saved chat of another version; this program reads version 1");
    *messages = json_object_get(document, "messages");
    *think = json_is_true(json_object_get(document, "think"));
    return json_is_array(*messages) ? DG_OK : DG_FAIL(err, DG_E_FORMAT, "\"messages\" is not an array");
}

enum dg_status dg_dialog_load(struct dg_dialog *d, const char *path, struct dg_error *err) {
    struct dg_buf text;
    json_t *document = NULL, *messages, *prepared = NULL;
    bool think = d->thinking == DG_THINKING_ON;
    enum dg_status st;
    dg_buf_init(&text, DG_DIALOG_FILE_MAX);
    DG_GO(dg_chat_read_file(path, DG_DIALOG_FILE_MAX, &text, err));
    DG_GO(dg_json_load_exact(dg_buf_cstr(&text), text.len, &document, err));
    DG_GO(find_messages(document, &messages, &think, err));
    if (json_array_size(messages))
        DG_GO(dg_message_prepare(messages, &prepared, err));
    json_incref(messages);
    json_decref(d->messages);
    d->messages = messages;
    d->thinking = think ? DG_THINKING_ON : DG_THINKING_OFF;
done:
    if (st != DG_OK && st != DG_E_IO && st != DG_E_NOMEM)
        dg_error_prefix(err, "%s", path);
    json_decref(prepared);
    json_decref(document);
    dg_buf_deinit(&text);
    return st;
}
