/* The op table: the operations a DiffusionGemma forward pass is made of, and the contract every backend keeps.
 *
 * src/model/forward.c says what the model is in these terms, once; a backend fills the table. The reference backend (src/ops/ref)
 * is plain C in f32 and stays the oracle: every faster op is tested against it.
 *
 * Common rules
 * - Pointers in planes, KV and statistics are backend memory (ops->alloc). On a CPU that is ordinary memory.
 * - Planes are row-major [rows][cols] with a row stride `ld` in elements. Activation planes hold `ops->act`; planes named f32 below hold
 *   f32 whatever the backend.
 * - Ops return nothing. The first failure sticks in the backend and later ops do nothing; dg_backend_status reports it.
 * - A row's result depends on that row (and the KV it may see) alone: not on how many rows go with it, the number of threads,
 *   or how a prefill is cut. Work is split by output rows, never along a sum.
 * - No op allocates: dg_backend_reserve sizes the scratch beforehand.
 * - One thread drives a backend. */
#ifndef DG_OPS_OPS_H
#define DG_OPS_OPS_H

#include "core/pool.h"
#include "core/status.h"
#include "formats/formats.h"
#include "model/model.h"
#include "ops/sample.h"

enum dg_dtype {
    DG_F32,
    DG_BF16,
    DG_F16,
    DG_I32,
    DG_Q8 /* KV caches only: a head's values are an f32 scale and hd signed bytes, value = scale * byte (ops/kv_q8.h) */
};

static inline size_t dg_dtype_bytes(enum dg_dtype t) { return t == DG_F32 || t == DG_I32 ? 4 : t == DG_Q8 ? 1 : 2; }

struct dg_plane {
    void *data;
    enum dg_dtype dtype;
    int32_t rows, cols;
    int64_t ld; /* elements from one row to the next, >= cols */
};

/* The rows of one forward call and what they may see.
 *
 * Row i is at position pos0 + i. Causal (prefill): it sees positions up to its own; on sliding layers the last `window` of them.
 * Bidirectional (denoise): every row sees all n rows and the positions before pos0; on sliding layers the last window - 1 of those.
 * (seed section 2; reference.md section 3) */
struct dg_batch {
    int32_t n;      /* rows computed */
    int32_t n_live; /* rows from n_live on are padding: they never write KV and nothing they produce is read */
    int64_t pos0;
    bool causal;
    int64_t ring_from; /* bidirectional: sliding layers see everything from this position on instead of their window; -1 = the window */
    int32_t topk;    /* full layers: keys a query attends to; 0 = all, DG_TOPK_DYN = by its context */
};

#define DG_TOPK_DYN (-1)

/* Keys that a query with t visible ones attends to on a full layer (reference.md section 3). */
static inline int64_t dg_batch_keys(const struct dg_batch *b, int64_t t) {
    if (b->topk == 0)
        return t;
    int64_t k = b->topk > 0 ? b->topk : t / 128 < 64 ? 64 : t / 128 > 512 ? 512 : t / 128;
    return k < t ? k : t;
}

/* One layer's keys and values: [slots][kv_heads] heads of dg_kv_head_bytes(dtype, hd). Position p lives in slot p & (slots - 1) when `ring`
 * (slots is a power of two), in slot p otherwise. */
struct dg_kv_layer {
    void *k, *v;
    enum dg_dtype dtype;
    int32_t kv_heads, hd;
    int64_t slots;
    bool ring;
    int32_t window; /* sliding window, 0 = sees everything */
};

/* Bytes of one head of one position in a cache. */
static inline size_t dg_kv_head_bytes(enum dg_dtype t, int32_t hd) {
    return t == DG_Q8 ? sizeof(float) + (((size_t)hd + 3) & ~(size_t)3) : (size_t)hd * dg_dtype_bytes(t);
}

static inline int64_t dg_kv_slot(const struct dg_kv_layer *kv, int64_t pos) { return kv->ring ? pos & (kv->slots - 1) : pos; }

/* Positions [*lo, *hi) that row i of the batch may see in a layer's cache. */
static inline void dg_batch_visible(const struct dg_batch *b, const struct dg_kv_layer *kv, int32_t i, int64_t *lo, int64_t *hi) {
    int64_t p = b->causal ? b->pos0 + i : b->pos0;
    int64_t end = b->pos0 + b->n_live; /* a padding row must not look at positions that nobody wrote */
    *hi = b->causal && p + 1 < end ? p + 1 : end;
    *lo = 0;
    if (!kv->window)
        return;
    int64_t first = b->ring_from >= 0 ? b->ring_from : p - (kv->window - 1);
    if (first > 0)
        *lo = first;
}

/* Per-row statistics of softmax(logits / T): arrays of `rows` elements in backend memory. */
struct dg_row_stats {
    float *entropy; /* nats; NaN when the row holds NaN or Inf */
    float *max;     /* largest logit / T */
    float *sum;     /* sum of exp(logit / T - max) */
    float *p_max;   /* largest probability */
    int32_t *argmax; /* ties: lowest id */
    float *tile_max; /* largest logit of every ops->stats_tile ids, [rows][ceil(vocab / stats_tile)]; NULL: not wanted */
};

/* A row's experts: [rows][k] ids and weights in backend memory, strongest first. */
struct dg_routing {
    int32_t *expert;
    float *weight;
    int32_t k;
};

enum dg_epilogue {
    DG_EPI_NONE,
    DG_EPI_GLU /* the stacked weights are gate and up, both [f][k]: y[m][j] = gelu_tanh(gate) * up, y is [rows][f] */
};

struct dg_backend;

/* One of the norms that are taken of a residual stream: y = norm(x) * w * mul. */
struct dg_norm_out {
    const struct dg_vec *w;
    float mul;
    struct dg_plane *y; /* of the activation type */
};
#define DG_NORM_OUTS 3

/* Where the ops that follow belong, of a stretch whose two branches write nothing that the other one touches. */
enum dg_branch {
    DG_BRANCH_SIDE, /* the side branch: sees what came before */
    DG_BRANCH_MAIN, /* the main branch: sees what came before SIDE, and nothing of the side branch */
    DG_BRANCH_JOIN  /* what comes after both, and sees both */
};

/* A pass that is run again and again. Passes of one key call the same ops with the same arguments but for what the other fields hold: where in the
 * sequence the pass stands, which ops find in their struct dg_batch, and its temperatures. */
struct dg_replay {
    const void *key;
    size_t key_bytes;
    int64_t pos0, ring_from; /* struct dg_batch of the pass */
    int32_t n_live;
    float inv_t, inv_t_before; /* 1/T of the statistics it takes, and of those its soft embedding reads */
    float inv_t_next; /* of the step that the pass's sample op leads to; 0: it has none */
};

struct dg_ops {
    const char *name;
    enum dg_dtype act; /* element type of activation planes */
    bool kv_q8;        /* caches of DG_Q8 are understood */
    int32_t stats_tile; /* ids of a tile whose largest logit the statistics may hold; 0: this backend has no use for them */
    int32_t sample_max; /* most positions of the sample op */
    int32_t chunk;     /* rows of a prefill call it needs to be busy; 0 = any will do */
    bool host_memory;  /* alloc takes the machine's memory, which gives out more than it has: what is large is checked beforehand */

    /* Memory. alloc: zeroed, aligned to 64 bytes at least; NULL and a sticky error on failure. read waits for the ops before it. */
    void *(*alloc)(struct dg_backend *be, size_t bytes);
    void (*free)(struct dg_backend *be, void *p);
    void (*write)(struct dg_backend *be, void *dst, const void *src, size_t bytes);
    void (*read)(struct dg_backend *be, void *dst, const void *src, size_t bytes);

    /* y[i] = embed[ids[i]] * scale. ids: i32 backend memory, n of them, each in range. */
    void (*embed)(struct dg_backend *be, const int32_t *ids, int32_t n, const struct dg_mat *embed, float scale, struct dg_plane *y);

    /* y = x * rsqrt(mean(x^2) + eps) * w * mul; w->v NULL = no weight. In place allowed; y may also be an f32 plane. */
    void (*rms_norm)(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float mul, float eps, struct dg_plane *y);

    /* y = (residual + norm(x) * w) * scale; w as in rms_norm. y may be residual. */
    void (*norm_add)(struct dg_backend *be, const struct dg_plane *x, const struct dg_vec *w, float eps, const struct dg_plane *residual,
                     float scale, struct dg_plane *y);

    /* y = norm(a) * wa + norm(b) * wb: the dense and the expert branch of a layer. b is an f32 plane. y may be a. */
    void (*norm_pair)(struct dg_backend *be, const struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b,
                      const struct dg_vec *wb, float eps, struct dg_plane *y);

    /* What lies between two blocks of a layer, in one pass: t = norm(a) * wa + norm(b) * wb as norm_pair makes it, or a itself when b is NULL;
     * x = (x + norm(t) * w) * scale as norm_add; then outs[i] as rms_norm, n of them, at most DG_NORM_OUTS. The same bits as those ops leave in x and
     * the outputs; a may be overwritten. NULL: the backend has the single ops only. */
    void (*norm_chain)(struct dg_backend *be, struct dg_plane *a, const struct dg_vec *wa, const struct dg_plane *b, const struct dg_vec *wb,
                       const struct dg_vec *w, float eps, float scale, struct dg_plane *x, const struct dg_norm_out *outs, int n);

    /* NULL, or norm_chain whose b is what the experts op before it, called with y NULL for this routing, has left to be summed. b is an f32 plane
     * that may be written to. The same bits as experts with y = b and norm_chain. Without it experts always has a y. */
    void (*sum_chain)(struct dg_backend *be, struct dg_plane *a, const struct dg_vec *wa, const struct dg_routing *routing, struct dg_plane *b,
                      const struct dg_vec *wb, const struct dg_vec *w, float eps, float scale, struct dg_plane *x, const struct dg_norm_out *outs,
                      int n);

    /* y = a + b. y may be either. */
    void (*add)(struct dg_backend *be, const struct dg_plane *a, const struct dg_plane *b, struct dg_plane *y);

    /* y[m][...] = x[m] . w[row]: the n_w matrices' rows side by side in y (stacked q|k|v, gate|up). */
    void (*linear)(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *const *w, int n_w, enum dg_epilogue epi,
                   struct dg_plane *y);

    /* In: qkv rows of q|k|v (or q|k with has_v false: V is then the raw K). q: per-head norm with q_norm, rotated, left in place.
     * k: per-head norm with k_norm, rotated, stored. v: per-head norm without weight, stored. Rows >= batch->n_live store nothing.
     * cos, sin: f32 [rows][hd/2], split halves (pair d, d + hd/2). (seed section 2.1) */
    void (*qkv_store)(struct dg_backend *be, struct dg_plane *qkv, int32_t heads, bool has_v, const struct dg_vec *q_norm,
                      const struct dg_vec *k_norm, float eps, const float *cos, const float *sin, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv);

    /* y[i][h] = softmax(q[i][h] . k) . v over the visible positions; no 1/sqrt(d). q: the first heads*hd columns of the plane.
     * Query head h reads kv head h / (heads / kv_heads). The sums run in position order from the first visible one. On full layers
     * only the dg_batch_keys highest scores count (f32 scores; of equal ones the lower position), per query and head. */
    void (*attention)(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                      const struct dg_kv_layer *kv, struct dg_plane *y);

    /* probs = softmax(x . w) over all experts in f32; the k largest (ties: lower id), renormalised to sum 1, times per_expert_scale. */
    void (*router)(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *w, const struct dg_vec *per_expert_scale,
                   struct dg_routing *out);

    /* y[m] = sum over the row's experts, strongest first, of weight * down_e(gelu_tanh(gate_e x) * up_e x). y: f32; NULL leaves the sum to
     * sum_chain. */
    void (*experts)(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                    const struct dg_stack *down, struct dg_plane *y);

    /* logits = cap * tanh(x . embed / cap), f32 [rows][vocab], and their statistics at 1/T. What is NaN or Inf before the cap stays so. */
    void (*head)(struct dg_backend *be, const struct dg_plane *x, const struct dg_mat *embed, float cap, float inv_t,
                 struct dg_plane *logits, struct dg_row_stats *stats);

    /* Statistics of logits that are there already. */
    void (*row_stats)(struct dg_backend *be, const struct dg_plane *logits, float inv_t, struct dg_row_stats *stats);

    /* y = scale * sum over the vocabulary of exp(logit / T - max) / sum * embed[id]. sparse: ids below e^-10 of the row's largest
     * probability are left out, the divisor stays the full sum. stats must be those of the same logits and T. (seed section 5) */
    void (*soft_embed)(struct dg_backend *be, const struct dg_plane *logits, const struct dg_row_stats *stats, float inv_t,
                       const struct dg_mat *embed, float scale, bool sparse, struct dg_plane *y);

    /* NULL, or one step of the sampler behind the statistics of a pass: what dg_sampler_step makes of them and of the block at s (backend memory),
     * bit for bit, for accepted positions that take the argmax. A block that does not run stays as it is.
     * stats: of rows 0 .. rules.n - 1, n <= sample_max. inv_t_next: 1/T of the step that follows, as the block's rules give it. */
    void (*sample)(struct dg_backend *be, const struct dg_row_stats *stats, const struct dg_sample *s, float inv_t_next);

    /* NULL, or begins a part of a stretch with two branches, in the order of enum dg_branch: the backend may run them beside each other. Where it is
     * NULL they run one after the other, to the same bits. Neither branch writes or frees memory through this table. */
    void (*branch)(struct dg_backend *be, enum dg_branch b);

    /* NULL, or runs a pass: run(ctx) calls ops of this table other than those of memory. A backend may call run once more to keep what the ops
     * launch, and at a later call with the same key launch that instead of calling run. It forgets what it keeps when memory is freed. */
    void (*replay)(struct dg_backend *be, const struct dg_replay *r, void (*run)(void *ctx), void *ctx);
};

/* What a backend must have scratch for. */
struct dg_reserve {
    int32_t rows;    /* most rows of a forward call */
    int64_t ctx;     /* most visible positions */
    int32_t k_max;   /* longest sum of a linear op */
    int32_t topk, experts, moe, hidden;
};

struct dg_backend {
    const struct dg_ops *ops;
    struct dg_pool *pool;    /* CPU backends; owned */
    const struct dg_model *model; /* weights as this backend reads them (a GPU fills in device addresses); borrowed or the backend's own */
    struct dg_error error;   /* sticky */
    void *impl;              /* the backend's own state */
    enum dg_status (*reserve)(struct dg_backend *be, const struct dg_reserve *r, struct dg_error *err);
    void (*destroy)(struct dg_backend *be);
    /* NULL, or makes a backend whose planes are of type `act` on the memory, weights and threads of this one, which must outlive it: a session
     * may use both in turn on one KV cache. Owner: the caller. Errors: DG_E_NOMEM. */
    enum dg_status (*twin)(struct dg_backend *be, enum dg_dtype act, struct dg_backend **out, struct dg_error *err);
};

/* DG_OK, or the first failure since the last call, which is then cleared. */
enum dg_status dg_backend_status(struct dg_backend *be, struct dg_error *err) DG_MUST_CHECK;
/* Sizes the scratch for these figures and all given before. On failure (DG_E_NOMEM) the scratch is what it was, or,
 * where not even that can be had any more, every op fails. */
enum dg_status dg_backend_reserve(struct dg_backend *be, const struct dg_reserve *r, struct dg_error *err) DG_MUST_CHECK;
void dg_backend_destroy(struct dg_backend *be); /* NULL is allowed */
/* Records a failure unless one is there. */
void dg_backend_fail(struct dg_backend *be, enum dg_status code, const char *what);

/* A zeroed plane of the backend's memory; data NULL (and a sticky error) when there is none. Owner: the caller, dg_plane_free. */
struct dg_plane dg_plane_alloc(struct dg_backend *be, enum dg_dtype dtype, int32_t rows, int32_t cols);
void dg_plane_free(struct dg_backend *be, struct dg_plane *p);
/* The first `rows` rows of a plane, seen as `cols` columns. Borrowed. */
static inline struct dg_plane dg_plane_view(const struct dg_plane *p, int32_t rows, int32_t cols) {
    return (struct dg_plane){p->data, p->dtype, rows, cols, cols};
}

#endif
