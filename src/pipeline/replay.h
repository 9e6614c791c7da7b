/* Running an op log again and comparing every event with the recorded one.
 *
 * A cancelled op is cancelled again after as many events. Saving goes to a temporary file, and loading what the session itself
 * saved reads that one, so that a replay writes nothing of the user's. A session that a killed process left behind is replayed up to its
 * last answered op. */
#ifndef DG_PIPELINE_REPLAY_H
#define DG_PIPELINE_REPLAY_H

#include "pipeline/oplog.h"

#define DG_REPLAY_SESSIONS_MAX 100000 /* of one file */

/* Makes the engine a session's head asks for: *stage is destroyed by the replay before the next session. */
typedef enum dg_status dg_replay_open_fn(void *ctx, const struct dg_oplog_session *head, struct dg_stage **stage, struct dg_error *err);

/* What became of a session. Strings hold during the call. */
struct dg_replay_session {
    const char *id;
    int64_t ops, events;   /* replayed */
    const char *note;      /* "" or why it was not replayed to its end (the log ends in an op) */
    bool differs;
    int64_t op;            /* where it differs */
    const char *recorded, *replayed; /* both lines, without the session's id; "" = there is none */
};
typedef void dg_replay_report_fn(void *ctx, const struct dg_replay_session *s);

struct dg_replay_opts {
    const char *session; /* only this one, NULL = all */
    dg_replay_open_fn *open;
    dg_replay_report_fn *report;
    void *ctx;
};

struct dg_replay_total {
    int64_t sessions, ops, events, differing;
    int64_t cut_lines; /* lines that are no JSON: cut short by a killed process */
};

/* Stops at the first session that differs. Errors: DG_E_IO, DG_E_FORMAT (no op log, or a line that makes no sense), those of open. */
enum dg_status dg_replay_run(const char *path, const struct dg_replay_opts *o, struct dg_replay_total *total, struct dg_error *err) DG_MUST_CHECK;

#endif
