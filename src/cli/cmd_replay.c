/* replay: runs an op log again; the first difference ends it with both sides printed and status 1. */
#include "cli/cli.h"

#include "cli/replay_view.h"
#include "message/turn_text.h"
#include "pipeline/replay.h"

#include <stdio.h>
#include <string.h>

struct replay {
    struct dg_model_args model;
    const char *session;
    struct dg_runtime r;
    struct dg_turn_text text;
    char dir[4096];     /* folder of the open model */
    char backend[32];   /* name of the open backend */
};

static bool shows_nothing(void *ctx, const int32_t *ids, int32_t n) { return dg_turn_text_shows_nothing(ctx, ids, n); }

static void put_away(struct replay *p) {
    dg_turn_text_deinit(&p->text);
    dg_runtime_close(&p->r);
    p->dir[0] = p->backend[0] = 0;
}

/* Sessions of one log mostly use one model: it is opened once. */
static enum dg_status open_model(struct replay *p, const struct dg_oplog_session *h, const char *backend, struct dg_error *err) {
    struct dg_model_args a = p->model;
    if (!a.model)
        a.model = h->model_dir;
    if (!strcmp(p->dir, a.model) && !strcmp(p->backend, backend))
        return DG_OK;
    put_away(p);
    DG_TRY(dg_runtime_flags(&p->r, err));
    DG_TRY(dg_runtime_find(&p->r, &a, err));
    DG_TRY(dg_runtime_model(&p->r, err));
    if (h->text) {
        DG_TRY(dg_runtime_tokenizer(&p->r, err));
        DG_TRY(dg_turn_text_init(&p->text, p->r.tok, p->r.model->cfg.vocab, err));
    }
    struct dg_session_opts ignored; /* the log says what sessions are like */
    a.backend = backend;
    DG_TRY(dg_runtime_backend(&p->r, &a, &ignored, err));
    snprintf(p->dir, sizeof p->dir, "%s", a.model);
    snprintf(p->backend, sizeof p->backend, "%s", backend);
    return DG_OK;
}

static enum dg_status open_session(void *ctx, const struct dg_oplog_session *h, struct dg_stage **stage, struct dg_error *err) {
    struct replay *p = ctx;
    struct dg_engine_opts o = h->engine;
    struct dg_engine *e;
    DG_TRY(open_model(p, h, strcmp(p->model.backend, "auto") != 0 ? p->model.backend : h->backend, err));
    if (dg_model_id(p->r.model) != h->model_id)
        return DG_FAIL(err, DG_E_ARG, "the log was made with another model than %s; give the right one with -m", p->r.dir);
    if (p->text.t) {
        o.blank = p->text.blank;
        o.shows_nothing = shows_nothing;
        o.text_ctx = &p->text;
    }
    DG_TRY(dg_engine_create(&e, p->r.be, &o, err));
    *stage = dg_engine_stage(e);
    return DG_OK;
}

static void report(void *ctx, const struct dg_replay_session *s) {
    (void)ctx;
    printf("session %s: %lld ops, %lld events", s->id, (long long)s->ops, (long long)s->events);
    if (!s->differs) {
        printf(", no difference%s%s\n", s->note[0] ? "; " : "", s->note);
        return;
    }
    size_t at = 0;
    while (s->recorded[at] && s->recorded[at] == s->replayed[at])
        at++;
    size_t from = at > 40 ? at - 40 : 0, n = strlen(s->recorded), m = strlen(s->replayed);
    printf("; op %lld differs:\nrecorded: %s\nreplayed: %s\n", (long long)s->op, n ? s->recorded : "(no event)", m ? s->replayed : "(no event)");
    printf("they part at \"%.80s\" and \"%.80s\"\n", n > from ? s->recorded + from : "", m > from ? s->replayed + from : "");
}

/* --view: only the tokenizer is needed. */
static enum dg_status view(struct replay *p, const char *path, int64_t fps, struct dg_error *err) {
    struct dg_model_args a = p->model;
    DG_TRY(dg_runtime_flags(&p->r, err));
    if (!a.model) {
        DG_TRY(dg_replay_view_model(path, p->dir, sizeof p->dir, err));
        a.model = p->dir;
    }
    DG_TRY(dg_runtime_find(&p->r, &a, err));
    DG_TRY(dg_runtime_tokenizer(&p->r, err));
    return dg_replay_view(path, p->session, p->r.tok, fps, err);
}

int dg_cmd_replay(int argc, char **argv) {
    struct replay p = {0};
    bool show = false;
    int64_t fps = 10;
    dg_model_args_init(&p.model);
    const struct dg_arg args[] = {
        {"model", 'm', DG_ARG_STR, &p.model.model, 0, 0, "MODEL", "model folder, or org/name in the Hugging Face cache (default: the log's)"},
        {"backend", 0, DG_ARG_STR, &p.model.backend, 0, 0, "NAME", "cpu, cuda or ref (default: the log's)"},
        {"device", 0, DG_ARG_INT, &p.model.device, 0, 255, "N", "which GPU, from 0"},
        DG_GPU_MEMORY_ARG(p.model),
        {"threads", 't', DG_ARG_INT, &p.model.threads, 0, 256, "N", "CPU threads (default: all)"},
        {"session", 's', DG_ARG_STR, &p.session, 0, 0, "ID", "only the session of this id (default: all of the file)"},
        {"view", 0, DG_ARG_FLAG, &show, 0, 0, NULL, "show what was seen, without computing anything"},
        {"fps", 0, DG_ARG_INT, &fps, 0, 1000, "N", "with --view: steps a second (default 10; 0: without waiting)"},
    };
    int first, status;
    if (!dg_args_parse(argc, argv, dg_command_find("replay"), args, DG_ARGS_COUNT(args), 1, 1, &first, &status))
        return status;
    struct dg_replay_opts o = {p.session, open_session, report, &p};
    struct dg_replay_total total;
    struct dg_error err = {0};
    if (show) {
        if (view(&p, argv[first], fps, &err) != DG_OK)
            status = dg_cli_fail("replay", &err);
        put_away(&p);
        return status;
    }
    enum dg_status st = dg_replay_run(argv[first], &o, &total, &err);
    if (st == DG_OK && p.session && !total.sessions)
        st = DG_FAIL(&err, DG_E_ARG, "%s holds no session %s", argv[first], p.session);
    if (st != DG_OK)
        status = dg_cli_fail("replay", &err);
    else if (total.differing)
        status = DG_EXIT_FAILED;
    if (total.cut_lines)
        fprintf(stderr, "diffgemma replay: %lld line%s cut short %s passed over\n", (long long)total.cut_lines, total.cut_lines == 1 ? "" : "s",
                total.cut_lines == 1 ? "was" : "were");
    put_away(&p);
    return status;
}
