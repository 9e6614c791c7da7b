/* A session: one token timeline, the KV cache that mirrors it, and the planes to compute in. One thread at a time.
 *
 * It knows token ids only; text and policy live above. */
#ifndef DG_SESSION_SESSION_H
#define DG_SESSION_SESSION_H

#include "core/ids.h"
#include "model/forward.h"

#include <stdatomic.h>

/* Which planes a prefill computes in: f32 is the exact path, bf16 the fast one (seed section 3). With any rule but the first a row's numbers
 * depend on the length of the prompt it came in. */
enum dg_prefill_rule {
    DG_PREFILL_ONE_PATH, /* the backend's own planes for all that the session computes */
    /* A whole prompt, which begins at position 0: exact up to DG_PREFILL_EXACT_MAX tokens and above fast_max, fast between. */
    DG_PREFILL_AUTO,
    DG_PREFILL_EXACT, /* every whole prompt */
    DG_PREFILL_FAST   /* likewise */
};                    /* under the last three what follows a prefix is fast, at any length up to fast_max */
#define DG_PREFILL_EXACT_MAX 256

/* A backend for prefill and the planes it computes in. */
struct dg_prefill_path {
    struct dg_backend *be;
    struct dg_planes *planes;
};

struct dg_session_opts {
    int64_t ctx;          /* positions, canvas included; 0 = the model's maximum or 8192, whichever is less */
    enum dg_dtype kv;     /* DG_F16 for users, DG_F32 for the oracle, DG_Q8 on request */
    int64_t ring;         /* slots wished for sliding layers (DGQ_KV_RING) */
    int32_t chunk;        /* rows of a prefill call; 0 = the larger of the canvas and 256, or what the backend wishes as far as the rings go */
    bool sc_sparse;       /* sparse soft embedding (DGQ_SC_SPARSE) */
    struct dg_attention_opts attention; /* zeroed = dense and windowed */
    /* planes to compute in, borrowed for the session's life: those of another session of the same backend with the same options, so that
     * many sessions that take turns cost one set. NULL = its own. */
    struct dg_planes *planes;
    enum dg_prefill_rule prefill; /* DGQ_FAST_PREFILL */
    int64_t fast_max;             /* most tokens of a fast prefill (DGQ_FAST_PREFILL_MAX); 0 = any number */
    struct dg_prefill_path other; /* with `planes`: that session's, borrowed */
    bool unchecked_logits;        /* NaN and Inf in logits are no error (DGQ_CHECK_LOGITS=0) */
};

struct dg_session {
    struct dg_backend *be;
    const struct dg_config *cfg;
    struct dg_session_opts opts;
    struct dg_planes *planes; /* own, or those of opts.planes */
    struct dg_prefill_path other; /* planes of the other type, own or borrowed; NULL with one path */
    uint8_t *fast; /* with two paths: which one computed a position; opts.ctx of them, else NULL */
    struct dg_kv kv;
    struct dg_ids log; /* the committed tokens: log.n == kv.len */
    int64_t computed;  /* tokens prefilled since the session was made */
    /* statistics of the last step on the host, cfg.canvas each, in one block that begins at entropy; of a step that the backend sampled (steps.h)
     * p_max alone */
    float *entropy, *p_max, *max;
    int32_t *argmax;
    float *row; /* one row of logits on the host, cfg.vocab: to draw from */
    double *draw_sum; /* of blocks of it */
    void *sample_mem; /* of `sample`, or NULL */
    struct dg_sample sample; /* planes->sample on the host; sample.rows 0: the backend has none */
    /* While it is set, the call in progress ends with DG_E_CANCELLED between two chunks or steps, and so does every later one. NULL =
     * never. Borrowed; whoever drives the session sets the pointer, any thread or a signal handler the value. */
    const atomic_bool *cancel;
};

/* Replaces the zeros of o by what they stand for on a backend with these ops (NULL: one without wishes) and checks it. Errors: DG_E_ARG. */
enum dg_status dg_session_opts_resolve(const struct dg_config *cfg, const struct dg_ops *ops, struct dg_session_opts *o, struct dg_error *err)
    DG_MUST_CHECK;

/* done of total prompt tokens are in the cache. */
typedef void dg_progress_fn(void *ctx, int64_t done, int64_t total);

/* Does the rule send a prefill of n tokens behind `before` others down the fast path? */
bool dg_prefill_is_fast(enum dg_prefill_rule rule, int64_t fast_max, int64_t before, int64_t n);

/* What sessions will take of a backend: a dg_beside_fn of ops/backends.h, whose ctx is a struct dg_session_needs. */
struct dg_session_needs {
    const struct dg_session_opts *opts; /* of all of them; they share planes */
    size_t sessions;
};
size_t dg_session_needs(void *ctx, const struct dg_backend *be, struct dg_reserve *scratch);

/* be is borrowed for the session's life. Errors: DG_E_ARG for a context smaller than one canvas or larger than the model's, and for a prefill
 * rule on a backend with one type of planes; DG_E_NOMEM with the figures. */
enum dg_status dg_session_create(struct dg_session **out, struct dg_backend *be, const struct dg_session_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;
void dg_session_destroy(struct dg_session *s); /* NULL is allowed */

/* Appends n tokens by causal prefill in chunks; the log and the cache advance chunk by chunk. progress may be NULL.
 * Errors: DG_E_LIMIT when no canvas would fit behind them, DG_E_CANCELLED (what was done stays), DG_E_ARG for an id outside the
 * vocabulary (before anything is computed). */
enum dg_status dg_session_extend(struct dg_session *s, const int32_t *ids, size_t n, dg_progress_fn *progress, void *ctx, struct dg_error *err)
    DG_MUST_CHECK;

/* The same for tokens the model produced: they were computed on a canvas at these positions, so the room is there even where no further
 * canvas would fit. Not cancelled half-way. */
enum dg_status dg_session_append(struct dg_session *s, const int32_t *ids, size_t n, struct dg_error *err) DG_MUST_CHECK;

/* Lowest length that a rewind reaches without computing anything again (0 always is): what dg_kv_cut_floor says and, where sliding layers see
 * all that their rings hold, what leaves them as long a view as a timeline that was never longer has. */
int64_t dg_session_cut_floor(const struct dg_session *s);

/* Cuts the timeline back to len tokens. Where the sliding rings no longer hold the window before the cut, the prefix is prefilled again
 * (progress reports it); cancelled or failed meanwhile, the timeline is a shorter prefix. */
enum dg_status dg_session_rewind(struct dg_session *s, int64_t len, dg_progress_fn *progress, void *ctx, struct dg_error *err) DG_MUST_CHECK;

/* One denoise step over canvas[n]; entropy, p_max and argmax of the rows are then in the session. sc = DG_SC_SOFT reads the logits of
 * the step before. Rows whose logits hold NaN or Inf, as the statistics that the head takes anyway show: DG_E_NUMERIC with their number, or with
 * unchecked_logits rows of the largest entropy there is. */
enum dg_status dg_session_step(struct dg_session *s, const int32_t *canvas, int32_t n, enum dg_sc_mode sc, float inv_t, struct dg_error *err)
    DG_MUST_CHECK;

/* Raises DG_E_NUMERIC: the logits of `bad` of n rows are not finite, row `first` is the first of them. */
enum dg_status dg_session_bad_rows(int32_t bad, int32_t n, int32_t first, struct dg_error *err);

/* Draws from softmax(logits / T) of a row of the step that dg_session_step has just made: the smallest id whose cumulative probability exceeds
 * u (0 <= u < 1). */
enum dg_status dg_session_draw(struct dg_session *s, int32_t row, double u, int32_t *id, struct dg_error *err) DG_MUST_CHECK;

bool dg_session_cancelled(const struct dg_session *s);

/* Positions still free for tokens when one whole canvas must stay available. */
int64_t dg_session_room(const struct dg_session *s);

#endif
