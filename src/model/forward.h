/* The forward pass: what DiffusionGemma is, written once over the op table. */
#ifndef DG_MODEL_FORWARD_H
#define DG_MODEL_FORWARD_H

#include "model/kv.h"
#include "ops/ops.h"

/* What the decoder is told about its previous prediction. */
enum dg_sc_mode {
    DG_SC_NONE, /* no signal: the self-conditioning MLP sees zeros, whose output is zero */
    DG_SC_SEED, /* first step of a block: the MLP reads the canvas's own scaled embedding (seed section 4) */
    DG_SC_SOFT  /* soft embedding of the logits the previous step left in the planes */
};

/* Something to look at on the way: called with planes of backend memory that hold their values only during the call. */
struct dg_trace {
    /* what: "embed", "preamble", "attn", "router", "layer", "final"; layer is -1 outside the layers. The plane is f32 or the
     * backend's activation type; routing is given with "router" and NULL otherwise. */
    void (*see)(void *ctx, const char *what, int32_t layer, const struct dg_plane *plane, const struct dg_routing *routing);
    void *ctx;
};

/* How attention is cut short, if at all: 0 or false everywhere = exact. */
struct dg_attention_opts {
    int32_t topk_prefill, topk_denoise; /* struct dg_batch.topk of each phase */
    bool unwindowed;                    /* denoise: sliding layers see all that their rings still hold (DGQ_ATTN_WINDOW=0) */
};

#define DG_STATS_READ 4 /* arrays of statistics that a step's caller reads */

/* Planes of a session, allocated once: every forward call works in them. */
struct dg_planes {
    int32_t rows;
    struct dg_attention_opts attention;
    struct dg_plane x;      /* residual stream */
    struct dg_plane h, t;   /* [rows][hidden] */
    struct dg_plane hr, he; /* likewise: what the router and the experts read */
    struct dg_plane qkv, att; /* widest layer's */
    struct dg_plane ff;     /* [rows][inter] */
    struct dg_plane moe;    /* f32 [rows][hidden] */
    struct dg_plane logits; /* f32 [canvas][vocab]; planes for prefill have none */
    struct dg_row_stats stats; /* DG_STATS_READ of them lie in one block, in this order: entropy, p_max, argmax, max; cfg.canvas of each */
    float stats_inv_t;      /* 1/T the statistics were taken at */
    struct dg_routing routing;
    int32_t *ids;           /* backend memory [rows] */
    void *sample_mem;       /* of `sample`, or NULL */
    struct dg_sample sample; /* a block that is sampled on the backend; sample.rows is 0 where it has no op for it, or no room for a canvas */
    /* rotation tables of the current positions in backend memory, [rows][hd/2], one pair a kind of layer (sliding, full), and the host
     * copies they are made from */
    float *cos[2], *sin[2];
    float *host_cos, *host_sin;
    int32_t half[2];        /* hd / 2 of that kind, 0 when the model has none */
    int64_t rope_pos0;      /* positions the tables hold, -1 = none */
    int32_t rope_n;
    double *inv_freq[2];
};

/* rows: most rows of a call, at least cfg.canvas. Owner: the caller. Errors: DG_E_NOMEM, DG_E_UNSUPPORTED (layers of one kind with
 * different head dimensions). */
enum dg_status dg_planes_init(struct dg_planes *p, struct dg_backend *be, int32_t rows, struct dg_error *err) DG_MUST_CHECK;
/* The same for dg_forward_prefill alone: without logits. */
enum dg_status dg_planes_init_prefill(struct dg_planes *p, struct dg_backend *be, int32_t rows, struct dg_error *err) DG_MUST_CHECK;
/* Bytes of backend memory dg_planes_init would take; and dg_planes_init_prefill with planes of type act. */
size_t dg_planes_bytes(const struct dg_backend *be, int32_t rows);
size_t dg_planes_bytes_prefill(const struct dg_backend *be, enum dg_dtype act, int32_t rows);
void dg_planes_deinit(struct dg_planes *p, struct dg_backend *be);

/* Causal pass of n tokens (host memory, 1 <= n <= planes->rows, in the vocabulary) at position kv->len; writes their KV and advances
 * kv->len and kv->high. Room for them must be there. hidden_out: NULL, or f32 host memory [n][hidden] for the hidden states after the
 * final norm. trace may be NULL. */
enum dg_status dg_forward_prefill(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const int32_t *ids, int32_t n,
                                  float *hidden_out, const struct dg_trace *trace, struct dg_error *err) DG_MUST_CHECK;

struct dg_denoise {
    const int32_t *canvas; /* host memory */
    int32_t n;             /* 1 .. cfg.canvas */
    enum dg_sc_mode sc;
    bool sparse;           /* soft embedding without the ids below e^-10 of the largest */
    float inv_t;           /* 1/T of this step, for the statistics */
};

/* Bidirectional pass over a canvas at positions kv->len ..: leaves logits and statistics in the planes. kv->len does not move; kv->high
 * covers the canvas. DG_SC_SOFT reads the logits and statistics the call before left there. Errors of both: DG_E_LIMIT (no room), DG_E_ARG (an
 * id outside the vocabulary, more rows than a canvas), the backend's. */
enum dg_status dg_forward_denoise(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const struct dg_denoise *d,
                                  const struct dg_trace *trace, struct dg_error *err) DG_MUST_CHECK;

/* The same for the block in planes->sample, which the caller has put there, and a step of its sampler behind the pass: planes->sample.canvas is
 * denoised (d->canvas is not looked at) and then holds the next canvas. Nothing is waited for. d->n: the block's rules.n. inv_t_next: 1/T of the
 * step behind this one. Errors: also DG_E_ARG for planes without room for a block (planes->sample.rows is 0). */
enum dg_status dg_forward_sample(struct dg_backend *be, struct dg_planes *p, struct dg_kv *kv, const struct dg_denoise *d, float inv_t_next,
                                 struct dg_error *err) DG_MUST_CHECK;

#endif
