/* The CUDA backend's state and what its files share. */
#ifndef DG_OPS_CUDA_STATE_H
#define DG_OPS_CUDA_STATE_H

#include "ops/cuda/cuda.h"
#include "ops/cuda/driver.h"
#include "ops/cuda/kernels.h"

#define DG_CUDA_MODULES_MAX 32
#define DG_CUDA_MARKS 64
#define DG_CUDA_STAGE_BYTES ((size_t)16 << 20) /* one pinned staging buffer */
#define DG_CUDA_STAGES 6 /* a pass writes its ids and rotation tables, and those of the next must not wait for it to end */
#define DG_CUDA_CHUNK 2048 /* rows of a prefill call: half of the usual ring, beside a window; 0.4 GiB of planes and scratch */
#define DG_CUDA_HD_MAX 512
#define DG_CUDA_KEY_MAX 128
#define DG_CUDA_RECORDINGS 6 /* a block's first step and its others, while attention is cut in three ways */
#define DG_CUDA_ATTENTIONS 4 /* of different kinds in one pass */

enum dg_cuda_kernel {
#define K(name, kind, file, threads, shared) DGC_K_##name,
    DGC_KERNELS(K)
#undef K
        DGC_K_COUNT
};
enum dg_cuda_kind {
#define A(kind) DGC_A_##kind,
    DGC_ARGS(A)
#undef A
};

struct dg_cuda_alloc {
    dg_cu_ptr p;
    size_t bytes;
};

/* How the rows of an attention are cut: all that its launches take from the positions of the batch. */
struct dg_cuda_cut {
    int64_t keys;          /* a row's scores, in top-k attention */
    int32_t split, splits; /* keys of a part of a row; and parts */
    int32_t chunk;         /* rows of a launch; < 1: they do not fit the scratch */
    bool few;              /* keys: top-k attention may take all values */
};

enum dg_cuda_attends { DG_CUDA_ATTENDS_PLAIN, DG_CUDA_ATTENDS_FLASH, DG_CUDA_ATTENDS_SM90, DG_CUDA_ATTENDS_TOP };

/* What the cut follows from, and the cut. */
struct dg_cuda_attention {
    enum dg_cuda_attends how;
    int32_t heads, window;
    struct dg_batch batch;
    struct dg_cuda_cut cut;
};

/* A pass that was recorded. It serves every pass of its key whose attention is cut alike: all else that changes comes from the device's record. */
struct dg_cuda_recording {
    unsigned char key[DG_CUDA_KEY_MAX];
    size_t key_bytes;
    uint64_t used; /* when, by dg_cuda.replays; 0: never */
    struct dg_cuda_graph *graph;
    int n_attention; /* more than there is room for: the recording serves nothing */
    struct dg_cuda_attention attention[DG_CUDA_ATTENTIONS];
};

/* What ops work in, sized by dg_cuda_reserve. */
struct dg_cuda_scratch {
    struct dgc_plan plan;
    void *h;          /* [pairs][moe] of the activation type */
    float *pair_y;    /* [pairs][hidden] */
    float *logits;    /* [rows][experts] */
    float *router_part; /* [rows][DGC_ROUTER_PARTS][DGC_ROUTER_EXPERTS] */
    int32_t *soft_ids, *soft_count;
    float *soft_w; /* their weights */
    uint16_t *soft_p; /* f16 probabilities of densely computed rows */
    float *soft_part;
    float *flash_part, *flash_stat; /* partial results of attention rows */
    size_t flash_units;             /* (part, row, head) there is room for */
    struct dgc_moe_entry *moe_entry;
    uint16_t *moe_x;  /* [rows][hidden], permuted */
    void *moe_part;   /* sums of the first pass over wide entries */
    float *head_part; /* [canvas][vocabulary tiles][4] */
    float *score; /* of top-k attention, the groups' largest behind them */
    size_t score_floats;
};

/* Layers whose experts stay in host memory and are copied, ahead of their use, to one of two slots on the device: feed.c. */
#define DG_CUDA_SLOTS 2
struct dg_cuda_feed {
    int32_t n;      /* how many; 0 = all experts are on the device */
    int32_t *layer; /* which, ascending: the i-th goes to slot i % DG_CUDA_SLOTS */
    void **host;    /* pinned: the two stacks as they lie in a slot */
    size_t *bytes;  /* of each of them */
    size_t slot_bytes;
    void *slots;
    dg_cu_stream stream;
    dg_cu_event fork;
    /* [1]: of a pass that is being recorded, whose events are the graph's own */
    struct dg_cuda_feed_side {
        dg_cu_event filled[DG_CUDA_SLOTS], emptied[DG_CUDA_SLOTS];
        int32_t holds[DG_CUDA_SLOTS]; /* index of what is in the slot or on its way there, -1 = unknown */
        bool read[DG_CUDA_SLOTS];     /* `emptied` was recorded: a copy to the slot waits for it */
        bool forked;
    } side[2];
};

struct dg_cuda {
    struct dg_cuda_driver d;
    uint64_t id; /* which backend a thread made current last */
    dg_cu_device device;
    dg_cu_context ctx;
    dg_cu_stream stream;
    dg_cu_stream side, to; /* the stream of side branches; that which launches go to now */
    dg_cu_event forked, joined;
    bool apart;            /* the next launch follows work of another stream */
    dg_cu_module module[DG_CUDA_MODULES_MAX];
    int n_modules;
    dg_cu_function fn[DGC_K_COUNT]; /* NULL: not in this build for this device */
    int major, minor, n_sm, shared_max; /* shared_max: dynamic shared memory a block may have */
    dg_cu_result last; /* of the last image loaded */
    enum dg_cuda_kernels kernels;
    bool compile; /* as in struct dg_cuda_opts */
    bool chain;      /* launches begin while the one before ends */
    bool branches;   /* side branches run beside the main one */
    struct dg_cuda_tune tune;
    unsigned hopper; /* DG_CUDA_H_ groups in use */
    char name[128], about[384];

    struct dg_ops ops;
    struct dg_model model;   /* the caller's, with device addresses */
    struct dg_layer *layer;
    void *weights;
    size_t weights_bytes;

    struct dg_cuda_feed feed;

    struct dg_cuda_alloc *alloc;
    size_t n_alloc, cap_alloc, used, budget;

    struct {
        void *host; /* pinned */
        dg_cu_event free;
    } stage[DG_CUDA_STAGES];
    unsigned next_stage;

    struct dgc_params params; /* what the device holds once the stream gets there */
    struct dgc_params *dev_params;
    bool params_known, capturing;
    dg_cu_event mark[DG_CUDA_MARKS];
    struct dg_cuda_recording recording[DG_CUDA_RECORDINGS];
    struct dg_cuda_recording *noting; /* the one being made, or NULL */
    uint64_t replays;

    struct dg_reserve cap;
    struct dg_cuda_scratch s;
};

static inline struct dg_cuda *dg_cuda_of(const struct dg_backend *be) { return be->impl; }

/* Makes the device current in this thread. False (nothing to do) after a failure. */
bool dg_cuda_enter(struct dg_backend *be);
/* Records a driver failure of `what`; true when r is success. */
bool dg_cuda_ok(struct dg_backend *be, dg_cu_result r, const char *what);
/* Launches kernel k, which must take arguments of that kind, on a grid of gx x gy blocks with `shared` bytes of dynamic memory each. */
void dg_cuda_launch(struct dg_backend *be, enum dg_cuda_kernel k, enum dg_cuda_kind kind, unsigned gx, unsigned gy, unsigned shared,
                    const void *args);

/* dgc_launch_KIND(be, kernel, grid x, grid y, dynamic shared bytes, &arguments) */
#define A(kind)                                                                                                                        \
    static inline void dgc_launch_##kind(struct dg_backend *be, enum dg_cuda_kernel k, unsigned gx, unsigned gy, unsigned shared,      \
                                         const struct dgc_##kind##_args *a) {                                                          \
        dg_cuda_launch(be, k, DGC_A_##kind, gx, gy, shared, a);                                                                        \
    }
DGC_ARGS(A)
#undef A

/* module.c */
enum dg_status dg_cuda_load_kernels(struct dg_cuda *cu, struct dg_error *err) DG_MUST_CHECK;

/* memory.c */
void *dg_cuda_alloc(struct dg_backend *be, size_t bytes);
void *dg_cuda_alloc_raw(struct dg_backend *be, size_t bytes, const char *what); /* not zeroed */
void dg_cuda_free(struct dg_backend *be, void *p);
void dg_cuda_write(struct dg_backend *be, void *dst, const void *src, size_t bytes);
void dg_cuda_read(struct dg_backend *be, void *dst, const void *src, size_t bytes);
enum dg_status dg_cuda_stages_open(struct dg_backend *be, struct dg_error *err) DG_MUST_CHECK;
void dg_cuda_stages_close(struct dg_backend *be);

/* weights.c */
enum dg_status dg_cuda_upload(struct dg_backend *be, const struct dg_model *model, const struct dg_cuda_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;
enum dg_status dg_cuda_draw_weights(struct dg_backend *be, const struct dg_cuda_random *shape, const struct dg_cuda_opts *opts,
                                    struct dg_error *err) DG_MUST_CHECK;

/* feed.c */
/* Chooses the layers whose experts stay in host memory, from the limit and from what else the device must hold: fixed bytes of other weights,
 * expert_bytes of each layer's stacks. None when all fit. Errors: DG_E_NOMEM with the figures. */
enum dg_status dg_cuda_feed_choose(struct dg_backend *be, size_t fixed, const size_t *expert_bytes, const struct dg_cuda_opts *opts,
                                   struct dg_error *err) DG_MUST_CHECK;
/* Makes slots, stream and events; nothing when all experts are on the device. */
enum dg_status dg_cuda_feed_open(struct dg_backend *be, struct dg_error *err) DG_MUST_CHECK;
void dg_cuda_feed_close(struct dg_backend *be);
bool dg_cuda_feed_has(const struct dg_cuda *cu, int32_t layer);
/* The layer's stacks, which lie in the first slot as the kernels read them, are copied to host memory; their addresses become those they will
 * have whenever an op reads them. Nothing for other layers. */
void dg_cuda_feed_keep(struct dg_backend *be, int32_t layer);
/* Around the launches that read a layer's experts, of which this is the first stack; nothing when they are on the device. */
void dg_cuda_feed_take(struct dg_backend *be, const struct dg_stack *gate_up);
void dg_cuda_feed_done(struct dg_backend *be, const struct dg_stack *gate_up);
/* Around a recording. */
void dg_cuda_feed_record(struct dg_backend *be);
void dg_cuda_feed_record_end(struct dg_backend *be);
/* Around work of the backend's own stream that fills the slots itself: a recording's launch. */
void dg_cuda_feed_claim(struct dg_backend *be);
void dg_cuda_feed_release(struct dg_backend *be);

/* ops.c */
void dg_cuda_fill_ops(struct dg_ops *ops);
enum dg_status dg_cuda_reserve(struct dg_backend *be, const struct dg_reserve *want, struct dg_error *err) DG_MUST_CHECK;
void dg_cuda_scratch_free(struct dg_backend *be);
/* What a reserve of these figures alone would take. */
size_t dg_cuda_scratch_bytes(const struct dg_backend *be, const struct dg_reserve *want);

/* hopper.c: true when the op was launched (or failed); false leaves it to the portable kernels. */
void dg_cuda_hopper_choose(struct dg_cuda *cu, const struct dg_cuda_opts *opts);
bool dg_cuda_hopper_linear(struct dg_backend *be, const struct dgc_linear_args *a);
bool dg_cuda_hopper_head(struct dg_backend *be, const struct dgc_linear_args *a, struct dg_row_stats *s);
bool dg_cuda_hopper_soft(struct dg_backend *be, const struct dgc_soft_mma_args *a);
bool dg_cuda_hopper_flashes(const struct dg_cuda *cu, const struct dg_plane *q, const struct dg_kv_layer *kv, const struct dg_plane *y);
/* Keys of a part of its attention, which begins at a multiple of it; INT32_MAX: one part. wanted: so many, where rows have parts; 0: the best. */
int32_t dg_cuda_hopper_split(const struct dg_batch *b, const struct dg_kv_layer *kv, int32_t wanted);
void dg_cuda_hopper_flash(struct dg_backend *be, const struct dgc_flash_args *a);
bool dg_cuda_hopper_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                            const struct dg_stack *down); /* all but the sum over a row's experts */

bool dg_cuda_hopper_scores(struct dg_backend *be, const struct dgc_top_scores_args *a);
/* Whether top-k attention over few keys takes its values as a dense product there, which then follows top_values. */
bool dg_cuda_hopper_sums(const struct dg_cuda *cu, const struct dgc_top_values_args *a);
void dg_cuda_hopper_sum(struct dg_backend *be, const struct dgc_top_values_args *a);

/* topk.c */
/* Floats of scratch for scores: all of a batch's, or of as many rows as the device may spare memory for, one at least. */
size_t dg_cuda_score_floats(const struct dg_cuda *cu, size_t rows, int64_t ctx);
/* Keys that rows of scores are laid out for: whole numbers of a thousand where the scratch has room, so that a recorded pass serves for a while. */
int64_t dg_cuda_top_keys(const struct dg_cuda *cu, const struct dg_batch *b);
/* Whether so few keys are seen that reading all values costs less than reading those of the kept keys; of a canvas, whose rows see the same. */
bool dg_cuda_top_few(const struct dg_batch *b);
void dg_cuda_top_attention(struct dg_backend *be, const struct dg_plane *q, int32_t heads, const struct dg_batch *batch,
                           const struct dg_kv_layer *kv, struct dg_plane *y);

/* The op table's branch. */
void dg_cuda_branch(struct dg_backend *be, enum dg_branch b);

/* How an attention is cut where its batch stands; and noting it in the recording that is being made. */
struct dg_cuda_cut dg_cuda_attention_cut(const struct dg_cuda *cu, const struct dg_cuda_attention *a);
void dg_cuda_note_attention(struct dg_cuda *cu, const struct dg_cuda_attention *a);

/* The op table's replay; and what forgets its recordings. */
void dg_cuda_replay(struct dg_backend *be, const struct dg_replay *r, void (*run)(void *ctx), void *ctx);
void dg_cuda_replay_forget(struct dg_backend *be);

/* Brings the device's copy of the parameters up to date; nothing while a graph is captured. */
void dg_cuda_push_params(struct dg_backend *be, struct dgc_params p);
/* What a launch of the sampler's step has done to the device's copy is done to the host's. */
void dg_cuda_params_sampled(struct dg_backend *be, float inv_t_next);
void dg_cuda_want_batch(struct dg_backend *be, const struct dg_batch *b);
void dg_cuda_want_inv_t(struct dg_backend *be, float head);
void dg_cuda_want_inv_t_soft(struct dg_backend *be, float soft);

static inline struct dgc_plane dg_cuda_plane(const struct dg_plane *p) {
    return (struct dgc_plane){p->data, p->ld, (int32_t)p->dtype};
}
static inline struct dgc_kv dg_cuda_kv(const struct dg_kv_layer *kv) {
    return (struct dgc_kv){kv->k, kv->v, kv->slots, (int32_t)kv->dtype, kv->kv_heads, kv->hd, kv->ring, kv->window};
}
struct dgc_mat dg_cuda_mat(const struct dg_mat *m);
static inline const float *dg_cuda_vec(const struct dg_vec *v) { return v ? (const float *)(uintptr_t)v->dev : NULL; }

#endif
