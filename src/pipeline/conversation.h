/* Live conversations: token logs with the KV that mirrors them, within a memory budget.
 *
 * Each has a session of its own; all share one backend and the planes. Used by the engine on its thread only. */
#ifndef DG_PIPELINE_CONVERSATION_H
#define DG_PIPELINE_CONVERSATION_H

#include "pipeline/ops.h"

#define DG_CONVERSATIONS_MAX 1024
/* A tail is cut rather than prefilled anew when at least so many tokens agree and at most so many are lost (seed Part III). */
#define DG_ROUTE_LCP_MIN 256
#define DG_ROUTE_TAIL_MAX 512

struct dg_mark_entry {
    char name[DG_MARK_NAME_MAX + 1];
    int64_t pos;
};

struct dg_conversation {
    int32_t id;         /* from 1, never used twice */
    uint64_t epoch;
    uint64_t used;      /* tick of the last op on it */
    bool held;          /* a client is in the middle of something: neither routed to nor evicted */
    struct dg_session *s;
    struct dg_mark_entry *mark;
    size_t n_marks, cap_marks;
    int64_t turn_start; /* of the last turn generated, -1 = none or cut away */
    bool turn_open;     /* an op-driven turn */
    struct dg_turn turn;
    struct dg_gen gen;  /* of the open turn; owns canvas_ids */
    bool proposed;      /* the turn holds an attempt that is neither committed nor discarded */
};

struct dg_conversations {
    struct dg_backend *be;
    struct dg_session_opts opts;
    struct dg_conversation **v; /* the live ones, in order of creation */
    size_t n, max;
    struct dg_session **spare;  /* sessions of dropped conversations, kept for the next */
    size_t n_spare;
    struct dg_session *planes;  /* the session that owns the planes the others borrow; never dropped */
    int32_t next_id;
    uint64_t next_epoch, tick;
};

/* max: conversations that may live at a time, 1..DG_CONVERSATIONS_MAX. opts: of every session. be is borrowed. One session
 * is made at once, so that what cannot fit fails here. Errors: those of dg_session_create. */
enum dg_status dg_conversations_init(struct dg_conversations *c, struct dg_backend *be, const struct dg_session_opts *opts, size_t max,
                                     struct dg_error *err) DG_MUST_CHECK;
void dg_conversations_deinit(struct dg_conversations *c);
/* How many conversations of these options fit into `bytes` of KV: at least 1, at most DG_CONVERSATIONS_MAX. */
size_t dg_conversations_fit(const struct dg_backend *be, const struct dg_session_opts *opts, size_t bytes);

/* NULL when there is none of that id. */
struct dg_conversation *dg_conversation_find(const struct dg_conversations *c, int32_t id);
/* An empty one. When `max` are alive the least recently used one that is not held and has no open turn is forgotten: *evicted is its id,
 * else 0. Errors: DG_E_LIMIT when all are in use, DG_E_NOMEM. */
enum dg_status dg_conversation_create(struct dg_conversations *c, struct dg_conversation **out, int32_t *evicted, struct dg_error *err)
    DG_MUST_CHECK;
void dg_conversation_drop(struct dg_conversations *c, struct dg_conversation *v);

/* The choice for a prompt of n ids; changes nothing. how, conv (0 = a new one), lcp, cost and best_lcp are filled. The longest common prefix
 * wins, of equal ones the one that loses fewer tokens. Held conversations, those with an open turn, and cuts that would need computing
 * are passed over. */
void dg_conversation_route(const struct dg_conversations *c, const int32_t *ids, size_t n, struct dg_route *out);

/* Tokens prefilled in all of them since init. */
int64_t dg_conversations_computed(const struct dg_conversations *c);

/* Length of the common prefix. */
size_t dg_ids_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* Writes log, marks and live KV (full layers whole, sliding ones their window) with an XXH3 checksum, by way of a temporary file and
 * rename. Errors: DG_E_IO, DG_E_NOMEM, DG_E_UNSUPPORTED with unwindowed attention, whose view is longer than what is saved. */
enum dg_status dg_conversation_save(const struct dg_conversations *c, const struct dg_conversation *v, const char *path, struct dg_error *err)
    DG_MUST_CHECK;
/* Whether such a file is there and meant for this model and context, by its head and size. Errors as below. */
enum dg_status dg_conversation_check(const struct dg_conversations *c, const char *path, struct dg_error *err) DG_MUST_CHECK;
/* Fills an empty conversation from such a file. Errors, the conversation staying empty: DG_E_IO, DG_E_FORMAT (damaged), DG_E_UNSUPPORTED (another
 * model, KV type or attention setting), DG_E_LIMIT (does not fit this context). */
enum dg_status dg_conversation_load(struct dg_conversations *c, struct dg_conversation *v, const char *path, struct dg_error *err) DG_MUST_CHECK;

#endif
