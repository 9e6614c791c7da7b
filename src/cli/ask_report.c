#include "cli/ask_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX ((size_t)64 << 20)

static enum dg_status on_reply(void *ctx, const struct dg_reply_event *e, struct dg_error *err) {
    struct dg_ask_report *r = ctx;
    if (e->kind != DG_REPLY_CALL) {
        struct dg_buf *b = e->kind == DG_REPLY_THOUGHT ? &r->thought : &r->shown;
        return dg_buf_add(b, e->text, e->n) == DG_OK ? DG_OK : DG_FAIL(err, b->status, "the answer is too long to keep");
    }
    if (r->shown.len && r->shown.data[r->shown.len - 1] != '\n')
        dg_buf_chr(&r->shown, '\n');
    dg_buf_fmt(&r->shown, "call %.*s %.*s\n", (int)e->n_name, e->name, (int)e->n, e->text);
    json_t *args = json_loadb(e->text, e->n, JSON_ALLOW_NUL, NULL);
    json_t *call = json_pack("{s:s%, s:o}", "name", e->name, e->n_name, "arguments", args ? args : json_stringn(e->text, e->n));
    return json_array_append_new(r->calls, call) == 0 && r->shown.status == DG_OK ? DG_OK : DG_FAIL(err, DG_E_NOMEM, "out of memory");
}

enum dg_status dg_ask_report_init(struct dg_ask_report *r, const struct dg_tokenizer *tok, const struct dg_ask_report_opts *o,
                                  struct dg_error *err) {
    memset(r, 0, sizeof *r);
    r->tok = tok;
    r->json = o->json;
    r->verbose = o->verbose;
    r->live = o->json ? NULL : o->live;
    r->progress = isatty(STDERR_FILENO) && !r->live;
    dg_reply_stream_init(&r->reply, tok, o->in_thought, on_reply, r);
    dg_buf_init(&r->shown, TEXT_MAX);
    dg_buf_init(&r->thought, TEXT_MAX);
    r->blocks = json_array();
    r->calls = json_array();
    if (!r->blocks || !r->calls)
        return DG_FAIL(err, DG_E_NOMEM, "out of memory");
    if (o->trace_path && !(r->trace = fopen(o->trace_path, "a")))
        return DG_FAIL(err, DG_E_IO, "DGQ_TRACE_PMAX_JSONL: cannot append to %s: %s", o->trace_path, strerror(errno));
    return DG_OK;
}

void dg_ask_report_deinit(struct dg_ask_report *r) {
    if (!r->tok)
        return;
    dg_reply_stream_deinit(&r->reply);
    dg_buf_deinit(&r->shown);
    dg_buf_deinit(&r->thought);
    json_decref(r->blocks);
    json_decref(r->calls);
    dg_error_clear(&r->error);
    if (r->trace)
        fclose(r->trace);
    memset(r, 0, sizeof *r);
}

static void clear_line(struct dg_ask_report *r) {
    if (r->line_open)
        fputs("\r\033[K", stderr);
    r->line_open = false;
}

static void show_new_text(struct dg_ask_report *r) {
    if (r->thought_printed < r->thought.len)
        dg_live_text(r->live, DG_VIEW_THOUGHT, r->thought.data + r->thought_printed, r->thought.len - r->thought_printed);
    r->thought_printed = r->thought.len;
    if (r->printed < r->shown.len)
        dg_live_text(r->live, DG_VIEW_CONTENT, r->shown.data + r->printed, r->shown.len - r->printed);
    r->printed = r->shown.len;
}

static void print_new_text(struct dg_ask_report *r) {
    if (r->json)
        return;
    if (r->live) {
        show_new_text(r);
        return;
    }
    clear_line(r);
    if (r->thought_printed < r->thought.len) {
        fwrite(r->thought.data + r->thought_printed, 1, r->thought.len - r->thought_printed, stderr);
        r->thought_printed = r->thought.len;
        /* the answer, or the next line of stderr, starts on a line of its own */
        if (r->shown.len > r->printed && r->thought.data[r->thought.len - 1] != '\n')
            fputc('\n', stderr);
    }
    if (r->printed == r->shown.len)
        return;
    fwrite(r->shown.data + r->printed, 1, r->shown.len - r->printed, stdout);
    fflush(stdout);
    r->printed = r->shown.len;
}

static void on_prefill(struct dg_ask_report *r, int64_t done, int64_t total) {
    if (total < 512)
        return;
    if (r->live) {
        char line[80];
        snprintf(line, sizeof line, "prompt %lld/%lld tokens", (long long)done, (long long)total);
        dg_live_status(r->live, line);
        return;
    }
    if (!r->progress)
        return;
    fprintf(stderr, "\r\033[Kprompt %lld/%lld tokens", (long long)done, (long long)total);
    r->line_open = true;
}

static void trace_step(FILE *f, const struct dg_step_event *e) {
    fprintf(f, "{\"block\":%d,\"retry\":%d,\"step\":%d,\"temperature\":%.6g,\"mean_entropy\":%.9g,\"p_max\":[", e->block, e->retry,
            e->result->step, (double)e->temperature, e->result->mean_entropy);
    for (int32_t i = 0; i < e->n; i++)
        fprintf(f, "%s%.6g", i ? "," : "", (double)e->p_max[i]);
    fputs("]}\n", f);
}

static void on_step(struct dg_ask_report *r, const struct dg_step_event *e) {
    if (r->trace)
        trace_step(r->trace, e);
    if (r->live)
        dg_live_step(r->live, e);
    if (!r->progress)
        return;
    /* an answer that ends without a newline stays on its line; the progress line must not overwrite it */
    if (r->printed && r->shown.data[r->printed - 1] != '\n' && isatty(STDOUT_FILENO))
        return;
    fprintf(stderr, "\r\033[Kblock %d step %d/%d  T %.2f  accepted %d/%d  entropy %.3f", e->block + 1, e->result->step, e->steps_max,
            (double)e->temperature, e->result->n_accepted, e->n, e->result->mean_entropy);
    r->line_open = true;
}

static void on_block(struct dg_ask_report *r, const struct dg_block_event *e) {
    for (int32_t i = 0; i < e->kept && r->error.code == DG_OK; i++)
        if (dg_reply_stream_push(&r->reply, e->ids[i], &r->error) != DG_OK)
            break;
    print_new_text(r);
    json_array_append_new(r->blocks,
                          json_pack("{s:i, s:i, s:i, s:i, s:f, s:s, s:i, s:b, s:b}", "steps", e->steps, "steps_all", e->steps_all, "accepted",
                                    e->accepted, "kept", e->kept, "mean_entropy", e->mean_entropy, "stop_reason", dg_stop_name(e->stop),
                                    "retries", e->retries, "trimmed", e->trimmed, "converged", e->converged));
    /* the view's status line says it already, and a line more would part the text */
    if (r->verbose && !r->live)
        fprintf(stderr, "%sblock %d: %d steps, stop %s, mean entropy %.4f, kept %d%s%s%s\n", r->json ? "" : "\n", e->block + 1, e->steps,
                dg_stop_name(e->stop), e->mean_entropy, e->kept, e->retries ? ", re-rolled" : "", e->trimmed ? ", trimmed" : "",
                e->converged ? "" : ", did not converge");
}

void dg_ask_on_event(void *ctx, const struct dg_event *e) {
    struct dg_ask_report *r = ctx;
    switch (e->kind) {
    case DG_EV_PREFILL: on_prefill(r, e->done, e->total); break;
    case DG_EV_STEP: on_step(r, e->step); break;
    case DG_EV_BLOCK: on_block(r, e->block); break;
    case DG_EV_NOTE:
        clear_line(r);
        if (r->live)
            dg_live_note(r->live, e->text);
        else
            fprintf(stderr, "diffgemma: %s\n", e->text);
        break;
    case DG_EV_ANSWER: break;
    }
}

static double rate(double n, double s) { return s > 0 ? n / s : 0; }

static bool print_json(struct dg_ask_report *r, const struct dg_result *t, enum dg_status st, const struct dg_error *err) {
    json_t *ids = json_array();
    for (size_t i = 0; i < t->ids.n; i++)
        json_array_append_new(ids, json_integer(t->ids.v[i]));
    double gen = r->total_s - r->prefill_s;
    json_t *o = json_pack("{s:s%, s:o, s:s, s:O, s:i, s:{s:f, s:f, s:f, s:f, s:f, s:f}}", "text", dg_buf_cstr(&r->shown), r->shown.len, "token_ids",
                          ids, "finish_reason", st == DG_OK ? dg_turn_end_finish(t->end) : "error", "blocks", r->blocks, "prompt_tokens",
                          (int)r->prompt_tokens, "timings", "load_s", r->load_s, "prefill_s", r->prefill_s, "prefill_tok_s",
                          rate((double)r->prompt_tokens, r->prefill_s), "s_per_step", t->steps ? gen / t->steps : 0.0, "generate_s", gen,
                          "tok_s", rate((double)t->ids.n, r->total_s));
    if (!o)
        return false;
    json_object_set(o, "calls", r->calls);
    if (r->thought.len)
        json_object_set_new(o, "thought", json_stringn(r->thought.data, r->thought.len));
    json_object_set_new(o, "stop_id", t->conv && t->stop_id >= 0 ? json_integer(t->stop_id) : json_null());
    json_object_set_new(o, "end", json_string(dg_turn_end_name(t->end)));
    if (st != DG_OK)
        json_object_set_new(o, "error", json_string(dg_error_text(err)));
    bool printed = json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
    putchar('\n');
    json_decref(o);
    return printed;
}

/* Why there is no more text than this, or none. */
static void print_reason(const struct dg_ask_report *r, const struct dg_result *t) {
    if (t->end == DG_END_LENGTH)
        fprintf(stderr, "diffgemma: the answer was cut: %s\n",
                r->max_tokens && (int64_t)t->ids.n >= r->max_tokens ? "--max-tokens is used up" : "the context is full (--ctx for a larger one)");
    else if (t->end == DG_END_BLOCKS)
        fprintf(stderr, "diffgemma: the answer was cut: too many of its blocks were trimmed, so that their number is used up; another --seed may "
                        "help, DGQ_COMMIT_CONF_TRIM=0 trims none\n");
    else if (t->end == DG_END_REPEAT)
        fprintf(stderr, "diffgemma: the answer was cut: the model repeated one token without end; another --seed may help\n");
    else if (!r->shown.len)
        fprintf(stderr, "diffgemma: the model's answer is empty%s; another --seed may help\n",
                r->reply.reply.unclosed_thought ? " (all of it was a thought that was never closed)" : "");
}

bool dg_ask_report_end(struct dg_ask_report *r, const struct dg_result *t, enum dg_status st, const struct dg_error *err) {
    bool stopped = st == DG_OK && t->conv && t->stop_id >= 0;
    bool whole = r->error.code == DG_OK && (!stopped || dg_reply_stream_push(&r->reply, t->stop_id, &r->error) == DG_OK) &&
                 dg_reply_stream_end(&r->reply, &r->error) == DG_OK;
    clear_line(r);
    if (r->live) {
        show_new_text(r);
        dg_live_end(r->live);
        whole = whole && !r->live->failed;
    }
    if (!whole)
        fprintf(stderr, "diffgemma: the rest of the answer is not shown: %s\n", dg_error_text(&r->error));
    if (r->json && !print_json(r, t, st, err)) {
        whole = false;
        if (!ferror(stdout))
            fprintf(stderr, "diffgemma: no memory for the JSON object\n");
    }
    if (!r->json) {
        print_new_text(r);
        whole = whole && r->shown.len > 0;
        if (!r->live && r->printed && r->shown.data[r->printed - 1] != '\n')
            putchar('\n');
        if (st == DG_OK)
            print_reason(r, t);
    }
    fflush(stdout);
    if (r->trace) {
        bool lost = ferror(r->trace) != 0;
        lost = fclose(r->trace) != 0 || lost;
        r->trace = NULL;
        if (lost) {
            fprintf(stderr, "diffgemma: DGQ_TRACE_PMAX_JSONL: the trace could not be written whole\n");
            whole = false;
        }
    }
    if (r->verbose && t->conv) {
        double gen = r->total_s - r->prefill_s;
        fprintf(stderr, "load %.3f s; prompt %zu tokens in %.3f s (%.0f tok/s); %d steps, %.4f s a step; %zu tokens in %.3f s (%.1f tok/s)\n",
                r->load_s, r->prompt_tokens, r->prefill_s, rate((double)r->prompt_tokens, r->prefill_s), t->steps,
                t->steps ? gen / t->steps : 0.0, t->ids.n, r->total_s, rate((double)t->ids.n, r->total_s));
    }
    return whole;
}
