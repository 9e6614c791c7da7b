/* What goes into the token pipeline and what comes out of it: ops and events, plain data about token ids.
 *
 * Every op gets exactly one answer, the last event it causes; streaming events come before it. Text, parsing and policy live above.
 * (seed Part III, "The token pipeline") */
#ifndef DG_PIPELINE_OPS_H
#define DG_PIPELINE_OPS_H

#include "session/turn.h"

#include <stdatomic.h>

#define DG_MARK_NAME_MAX 63     /* bytes of a mark's name */
#define DG_MARKS_MAX 256        /* marks of one conversation */
#define DG_CONV_NEW (-1)        /* in dg_op.conv: make a conversation */

/* A place in a conversation's token log. The epoch changes whenever tokens are removed from the log (and with every Splice), and no two
 * conversations ever share one, so an id that is still valid names the same tokens that it named when it was given out. */
struct dg_kv_id {
    uint64_t epoch; /* 0 = no id */
    int64_t pos;
};

enum dg_op_kind {
    DG_OP_PING,
    DG_OP_EXTEND,      /* ids: append by causal prefill. Cancelled or failed, what was done stays: the answer's id says how far. as_turn:
                        * they are a turn, which may fill the room of the last canvas and be finalized, and failed it leaves no trace */
    DG_OP_GENERATE,    /* gen: a whole turn. Failed or cancelled, the log is what it was before */
    DG_OP_REWIND,      /* at (checked) or mark: cut the log there */
    DG_OP_SPLICE,      /* start, end, ids: the log becomes log[0..start) + ids + log[end..). Always a new epoch. Cut short, the log is a
                        * prefix of that */
    DG_OP_FILL,        /* len, seed: append len random ids, for tests and benches */
    DG_OP_MARK,        /* mark: name the end of the log; a name that exists moves. A cut below a mark removes it */
    DG_OP_ACTIVATE,    /* conv: make it the current one (DG_CONV_NEW makes one); len > 0 cuts it there if that needs no computing */
    DG_OP_DROP,        /* conv: forget it */
    DG_OP_FINALIZE,    /* ids: the log from the last turn's start on becomes ids; equal tokens are kept. Nothing but this may have
                        * changed the log since the turn */
    DG_OP_ALIGN,       /* ids: the log becomes ids; the longest common prefix is kept */
    DG_OP_FINGERPRINT, /* the live KV's hash, see dg_kv_fingerprint */
    DG_OP_ROUTE,       /* ids: choose the conversation to continue for this prompt, make it current, cut its tail; see conversation.h.
                        * It is held (neither routed to nor evicted) until Release */
    DG_OP_RELEASE,     /* conv: routable and evictable again */
    DG_OP_SAVE,        /* path: write log, KV and marks to a file */
    DG_OP_LOAD,        /* path: a new conversation, made current, from such a file */
    DG_OP_BEGIN_TURN,  /* gen */
    DG_OP_PROPOSE,     /* one attempt at the next block; nothing is committed. len > 0: positions of the canvas, else the policy's */
    DG_OP_COMMIT,      /* kept: rows of the proposal that become the turn's; -1 = as the policy says, see dg_turn_keep */
    DG_OP_DISCARD,     /* the proposal is void; the next one counts as a re-roll of the same block */
    DG_OP_END_TURN,    /* the turn is over; its tokens are in the answer. abandon: the log is cut to the turn's start */
    DG_OP_SHUTDOWN,    /* answered; whatever is queued behind it is answered DG_E_CANCELLED and nothing more is taken */
    DG_OPS
};
/* "ping", "extend", ...: literals, the names of the op log. */
const char *dg_op_name(enum dg_op_kind k);
/* The kind of that name, or DG_OPS. */
enum dg_op_kind dg_op_find(const char *name);

/* How to generate a turn. Everything that decides tokens is here, so that a recorded op can be run again. */
struct dg_gen {
    uint64_t seed;
    int64_t max_tokens; /* 0 = what the context leaves */
    struct dg_sampler_params sampler;
    struct dg_commit_policy policy;
    enum dg_sc_mode first_step;
    bool extend_last; /* false: the last block's tokens are answered and do not enter the log; for one-shot clients */
    const int32_t *canvas_ids; /* first canvas instead of a drawn one, canvas_n ids; NULL = draw */
    int32_t canvas_n;
};
/* The model's defaults and the switches (f may be NULL), extend_last set. The policy's control tokens are the caller's to fill in
 * (dg_turn_text_policy). */
void dg_gen_init(struct dg_gen *g, const struct dg_config *cfg, const struct dg_flags *f);

/* Zeroed, only the fields of its kind count. Pointers are borrowed until the call that takes the op returns (dg_pipeline_submit copies
 * what they point to), except cancel, which must live until the answer. */
struct dg_op {
    enum dg_op_kind kind;
    int32_t conv;          /* the conversation meant; 0 = the current one */
    struct dg_kv_id at;    /* Rewind: the target. Else, when not 0: where the log must end, or the op fails */
    const int32_t *ids;
    size_t n;
    int64_t start, end;    /* Splice */
    int64_t len;           /* Fill, Activate (0 = no cut), Propose (0 = the policy's) */
    uint64_t seed;         /* Fill */
    int32_t kept;          /* Commit */
    bool abandon;          /* EndTurn */
    bool as_turn;          /* Extend */
    const char *mark;      /* Mark, Rewind: 1..DG_MARK_NAME_MAX bytes */
    const char *path;      /* Save, Load */
    const struct dg_gen *gen; /* Generate, BeginTurn; NULL = the engine's defaults */
    /* Set from any thread or a signal handler, it stops the op between two steps, blocks or prefill chunks, or before it began. */
    atomic_bool *cancel;
};

enum dg_event_kind {
    DG_EV_PREFILL, /* done of total tokens of this op are in the cache; the first says 0, before anything is touched */
    DG_EV_STEP,
    DG_EV_BLOCK,   /* a block was committed */
    DG_EV_NOTE,    /* a stage or the router says what it decided: text */
    DG_EV_ANSWER
};

/* Where a prompt goes. */
enum dg_route_how {
    DG_ROUTE_EXTEND,  /* the conversation's log is a prefix of the prompt: nothing is lost */
    DG_ROUTE_CUT,     /* its tail was cut */
    DG_ROUTE_PREFILL  /* a new conversation: the whole prompt must be computed */
};
struct dg_route {
    enum dg_route_how how;
    int32_t conv;
    int64_t lcp;     /* tokens of the prompt that are in its cache now */
    int64_t cost;    /* tokens to compute: n - lcp */
    int64_t best_lcp; /* of any conversation; more than lcp when it was not worth or not possible to cut that one */
    int32_t evicted; /* conversation forgotten for it, 0 = none */
};

/* A finished attempt at a block, not committed. */
struct dg_proposal {
    const int32_t *ids; /* n ids: the block's result */
    const float *p_max;
    int32_t n;
    int32_t block, retries;
    int32_t steps;
    double mean_entropy;
    enum dg_stop_reason stop;
    bool converged;
    struct dg_commit plan; /* what the policy would do with it */
};

struct dg_answer {
    enum dg_op_kind op;
    enum dg_status status;
    const char *error;     /* "" when status is DG_OK */
    int64_t computed;      /* tokens prefilled on behalf of this op */
    const int32_t *ids;    /* Generate, EndTurn: the turn's tokens without the stop token */
    int64_t n;
    enum dg_turn_end end;  /* Generate, Commit, EndTurn */
    int32_t stop_id;       /* -1 = none */
    int32_t steps, blocks; /* of the turn */
    uint64_t fingerprint;  /* Fingerprint */
    struct dg_route route; /* Route */
    struct dg_proposal proposal; /* Propose */
};

/* Valid during the call that hands it over. */
struct dg_event {
    enum dg_event_kind kind;
    uint64_t op;        /* number of the op, from 1 in the order of execution */
    int32_t conv;       /* conversation it acted on, 0 = none */
    struct dg_kv_id at; /* where that one's log ends now */
    int64_t done, total;
    const struct dg_step_event *step;
    const struct dg_block_event *block;
    const char *text;
    const struct dg_answer *answer;
};
typedef void dg_event_fn(void *ctx, const struct dg_event *e);

/* A copy that owns everything it points to but cancel. Errors: DG_E_NOMEM, DG_E_ARG for a mark or path too long. */
enum dg_status dg_op_copy(struct dg_op *out, const struct dg_op *op, struct dg_error *err) DG_MUST_CHECK;
void dg_op_deinit(struct dg_op *op); /* of a copy; a zeroed one is allowed */

#endif
