#include "message/tool_check.h"

#include "core/span.h"
#include "message/reply.h"

#include <string.h>

#define SPANS_MAX 2048 /* invalid calls of a turn that are answered */

/* A turn being read. */
struct reading {
    const struct dg_tool_check *c;
    int32_t invalid;
    bool called; /* the tool that must be called, well or ill */
    struct dg_buf text; /* the responses */
    struct dg_span name[SPANS_MAX];
    size_t n_names;
};

void dg_tool_check_init(struct dg_tool_check *c, const struct dg_tokenizer *t, const json_t *tools) {
    *c = (struct dg_tool_check){.t = t, .tools = tools, .response_open = dg_tokenizer_find(t, "<|tool_response>")};
}

static const json_t *find_tool(const json_t *tools, const char *name, size_t n) {
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool) {
        const json_t *own = json_object_get(json_object_get(tool, "function"), "name");
        if (json_is_string(own) && json_string_length(own) == n && memcmp(json_string_value(own), name, n) == 0)
            return json_object_get(tool, "function");
    }
    return NULL;
}

/* The first required parameter that is not among the arguments, or NULL. */
static const char *missing(const json_t *function, const json_t *arguments) {
    size_t i;
    const json_t *name;
    json_array_foreach(json_object_get(json_object_get(function, "parameters"), "required"), i, name) {
        const char *s = json_string_value(name);
        if (s && !json_object_get(arguments, s))
            return s;
    }
    return NULL;
}

/* response:NAME{error:"REASON"}: the name and the parameter are client text, so that no control token comes of them. */
static void respond(struct reading *r, const char *name, size_t n_name, const char *reason, const char *parameter) {
    r->invalid++;
    if (r->n_names + 2 > SPANS_MAX)
        return;
    dg_buf_str(&r->text, "<|tool_response>response:");
    r->name[r->n_names++] = (struct dg_span){r->text.len, r->text.len + n_name};
    dg_buf_add(&r->text, name, n_name);
    dg_buf_fmt(&r->text, "{error:<|\"|>%s", reason);
    if (parameter) {
        r->name[r->n_names++] = (struct dg_span){r->text.len, r->text.len + strlen(parameter)};
        dg_buf_str(&r->text, parameter);
    }
    dg_buf_str(&r->text, "<|\"|>}<tool_response|>");
}

static enum dg_status on_reply(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct reading *r = ctx;
    (void)err;
    if (e->kind != DG_REPLY_CALL)
        return DG_OK;
    const char *must = r->c->must_call;
    r->called |= must && (!*must || (strlen(must) == e->n_name && memcmp(must, e->name, e->n_name) == 0));
    json_t *arguments = json_loadb(e->text, e->n, JSON_ALLOW_NUL, NULL);
    const json_t *function = find_tool(r->c->tools, e->name, e->n_name);
    const char *lacks = function && arguments ? missing(function, arguments) : NULL;
    if (!function)
        respond(r, e->name, e->n_name, "there is no such tool", NULL);
    else if (!json_is_object(arguments))
        respond(r, e->name, e->n_name, "the arguments cannot be read", NULL);
    else if (lacks)
        respond(r, e->name, e->n_name, "a required argument is missing: ", lacks);
    json_decref(arguments);
    return DG_OK;
}

static enum dg_status read_turn(struct reading *r, const int32_t *ids, size_t n, int32_t stop_id, struct dg_error *err) {
    struct dg_reply_stream s;
    enum dg_status st = DG_OK;
    dg_reply_stream_init(&s, r->c->t, r->c->in_thought, on_reply, r);
    for (size_t i = 0; i < n; i++)
        DG_GO(dg_reply_stream_push(&s, ids[i], err));
    if (stop_id >= 0)
        DG_GO(dg_reply_stream_push(&s, stop_id, err));
    DG_GO(dg_reply_stream_end(&s, err));
    for (size_t i = 0; i < s.reply.n_bad_calls; i++)
        respond(r, "unknown", 7, "the call cannot be read; write call:NAME{argument:value}", NULL);
    if (r->c->must_call && !r->called && !s.reply.n_bad_calls)
        respond(r, "unknown", 7, *r->c->must_call ? "answer with a call of the tool " : "answer with a call of one of the tools",
                *r->c->must_call ? r->c->must_call : NULL);
done:
    dg_reply_stream_deinit(&s);
    return st;
}

enum dg_status dg_tool_check_turn(const struct dg_tool_check *c, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid,
                                  struct dg_ids *feedback, struct dg_error *err) {
    struct reading r = {.c = c};
    dg_buf_init(&r.text, DG_TOOL_FEEDBACK_MAX);
    enum dg_status st = read_turn(&r, ids, n, stop_id, err);
    *invalid = r.invalid;
    if (st == DG_OK && r.text.status != DG_OK)
        st = DG_FAIL(err, r.text.status, "the error responses to a turn's calls are too long");
    if (st == DG_OK && feedback && r.invalid)
        st = dg_tokenizer_encode_spans(c->t, dg_buf_cstr(&r.text), r.text.len, r.name, r.n_names, feedback, err);
    dg_buf_deinit(&r.text);
    return st;
}

static enum dg_status check(void *ctx, const int32_t *ids, size_t n, int32_t stop_id, int32_t *invalid, struct dg_ids *feedback,
                            struct dg_error *err) {
    return dg_tool_check_turn(ctx, ids, n, stop_id, invalid, feedback, err);
}

/* The model's answer to the feedback ends where it begins to make up a result. */
static size_t trim(void *ctx, const int32_t *ids, size_t n) {
    const struct dg_tool_check *c = ctx;
    size_t i = 0;
    while (i < n && ids[i] != c->response_open)
        i++;
    return i;
}

struct dg_turn_check dg_tool_check_stage(struct dg_tool_check *c, const struct dg_gen *gen) {
    return (struct dg_turn_check){check, trim, gen, c->response_open, c};
}
