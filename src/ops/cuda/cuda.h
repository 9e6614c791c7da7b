/* The CUDA backend: the op table on one NVIDIA GPU.
 *
 * The driver is opened at run time, the kernels are embedded in the binary. Weights are uploaded once. With exact_f32 planes are f32 and
 * every sum is f32, held to the limits of the reference backend; without it planes are bf16 and matrix products run on tensor cores
 * with f32 sums. A sum's order depends on its length alone in both, so that a row's result never depends on the rows beside it, and
 * no kernel adds floats by atomics, so that runs repeat bit for bit. */
#ifndef DG_OPS_CUDA_CUDA_H
#define DG_OPS_CUDA_CUDA_H

#include "ops/backends.h"

/* Which kernels make the matrix products. */
enum dg_cuda_kernels {
    DG_CUDA_AUTO,     /* the best the device has, of the groups in `use` */
    DG_CUDA_PORTABLE, /* mma.sync, on any device: what sm_80 to sm_120 use, but sm_90 */
    DG_CUDA_SIMPLE    /* the exact path's kernels on whatever planes there are */
};

/* Groups of kernels for compute capability 9.0; CHAIN: launches begin while the one before them ends. On any device, BRANCH: the two branches of
 * a layer run beside each other; SAMPLE: the sampler runs on the device. */
enum {
    DG_CUDA_H_EXPERTS = 1,
    DG_CUDA_H_DENSE = 2,
    DG_CUDA_H_HEAD = 4,
    DG_CUDA_H_SOFT = 8,
    DG_CUDA_H_CHAIN = 16,
    DG_CUDA_H_ATTENTION = 32,
    DG_CUDA_H_NVFP4 = 64, /* experts in that format */
    DG_CUDA_H_BRANCH = 128,
    DG_CUDA_H_TOPK = 256, /* scores of top-k attention */
    DG_CUDA_H_SAMPLE = 512,
    DG_CUDA_H_DEFAULT = DG_CUDA_H_EXPERTS | DG_CUDA_H_DENSE | DG_CUDA_H_HEAD | DG_CUDA_H_SOFT | DG_CUDA_H_CHAIN | DG_CUDA_H_ATTENTION |
                        DG_CUDA_H_NVFP4 | DG_CUDA_H_BRANCH | DG_CUDA_H_TOPK | DG_CUDA_H_SAMPLE
};

/* Choices that change speed and the last bits of attention alone; 0: the kernels' own. */
struct dg_cuda_tune {
    /* Keys of a part of an attention row in sliding and in full layers, multiples of 64. The kernels of compute capability 9.0 have no parts under
     * a canvas. */
    int32_t split, split_full;
};

struct dg_cuda_opts {
    int device;
    bool exact_f32;
    enum dg_cuda_kernels kernels;
    unsigned use; /* with DG_CUDA_AUTO, DG_CUDA_H_ bits: the other ops take the portable kernels; 0 = DG_CUDA_H_DEFAULT */
    struct dg_cuda_tune tune;
    bool compile; /* kernels are compiled at run time although the binary carries them */
    size_t gpu_memory; /* as in struct dg_backend_opts, as are these: */
    dg_beside_fn *beside;
    void *beside_ctx;
    dg_upload_progress_fn *progress;
    void *progress_ctx;
};

/* Sets kernels, use, tune and compile from "auto", "portable", "simple", or a list of the groups that are to be used, such as "experts,head". The
 * list, or "auto" with a comma behind it, may go on with split=N, split_full=N (struct dg_cuda_tune) and "compile". Groups behind "auto," are used
 * beside those of DG_CUDA_H_DEFAULT. False for anything else. */
bool dg_cuda_parse_kernels(const char *s, struct dg_cuda_opts *o);
/* The same; NULL means auto. Errors: DG_E_ARG with the names there are. */
enum dg_status dg_cuda_choose_kernels(const char *s, struct dg_cuda_opts *o, struct dg_error *err) DG_MUST_CHECK;

/* Brings a layer's expert stacks, whose bytes have just been written to the device, into the order this device's kernels read; nothing where
 * they read the file's. Uploading and drawing do so by themselves. */
void dg_cuda_prepare_experts(struct dg_backend *be, struct dg_stack *gate_up, struct dg_stack *down);

/* True when kernels for at least one GPU generation were compiled into this binary. */
bool dg_cuda_built_in(void);

/* model is borrowed for the backend's life (its mapping is read during the upload alone). The backend's own model carries the device
 * addresses. Errors: DG_E_BACKEND (no driver, too old, no such device, no kernels for it: one clear reason), DG_E_NOMEM (what was needed
 * and what is free), DG_E_UNSUPPORTED (head dimensions over 512, more than 8192 experts). Owner: the caller, dg_backend_destroy. */
enum dg_status dg_cuda_create(struct dg_backend **out, const struct dg_model *model, const struct dg_cuda_opts *opts, struct dg_error *err)
    DG_MUST_CHECK;

/* Weights that make a row's probability fall on few ids. */
struct dg_cuda_peaked {
    float attention, router; /* standard deviations of the attention and router logits */
    float branch, norm;      /* mean weights of the norms behind attention and feed-forward, and of the output norm */
    int32_t kin;             /* the embeddings of so many ids after another resemble each other: */
    float shared;            /* a value is the group's with this probability, else the row's own; two rows' product is its square */
};

/* Formats of a model without a file, by class of tensor. */
struct dg_cuda_random {
    const struct dg_config *cfg;
    enum dg_format embed, attention, dense, experts, self_conditioning;
    bool v_on_full; /* full layers have value projections of their own */
    float logit_spread; /* without peaked: the logits' standard deviation, about; 0 = 1. 5 leaves about a thousand survivors of 262,144 */
    uint64_t seed;
    const struct dg_cuda_peaked *peaked; /* NULL: embeddings that do not resemble each other, norms of about 1 */
};

/* A backend whose weights are drawn on the device: the shape's speed without its file. be->model holds addresses the host must not read. */
enum dg_status dg_cuda_create_random(struct dg_backend **out, const struct dg_cuda_random *shape, const struct dg_cuda_opts *opts,
                                     struct dg_error *err) DG_MUST_CHECK;

/* Device name, compute capability, memory, kind of planes and what is streamed, in one line. Borrowed from the backend. */
const char *dg_cuda_describe(const struct dg_backend *be);
/* Bytes of experts that are copied from host memory in each pass, and of how many layers; layers may be NULL. */
size_t dg_cuda_streamed(const struct dg_backend *be, int32_t *layers);
/* Bytes of device memory the backend holds now, and of those the weights. */
size_t dg_cuda_memory(const struct dg_backend *be, size_t *weights);

/* Graph capture. Between begin and end ops are recorded instead of run: they must not read, write or allocate, and what they take from
 * dg_batch.pos0, ring_from, n_live and inv_t comes, at each launch, from the values set last by dg_cuda_graph_params. The graph belongs to the
 * backend until dg_cuda_graph_destroy. */
struct dg_cuda_graph;
struct dg_cuda_graph_params {
    int64_t pos0, ring_from; /* as in struct dg_batch */
    int32_t n_live;
    float inv_t, inv_t_before; /* of this step's statistics, and of those the soft embedding reads */
};
enum dg_status dg_cuda_graph_begin(struct dg_backend *be, struct dg_error *err) DG_MUST_CHECK;
enum dg_status dg_cuda_graph_end(struct dg_backend *be, struct dg_cuda_graph **out, struct dg_error *err) DG_MUST_CHECK;
void dg_cuda_graph_params(struct dg_backend *be, const struct dg_cuda_graph_params *p);
void dg_cuda_graph_launch(struct dg_backend *be, struct dg_cuda_graph *g);
void dg_cuda_graph_destroy(struct dg_backend *be, struct dg_cuda_graph *g); /* NULL is allowed */

/* Milliseconds of device time between two marks (0 <= i < 64); waits for the second. NAN after a failure. */
void dg_cuda_mark(struct dg_backend *be, int i);
float dg_cuda_elapsed(struct dg_backend *be, int from, int to);
/* Until the device has come to a mark. */
void dg_cuda_wait(struct dg_backend *be, int i);
/* The device's PCI bus id as the driver's other libraries know it, such as "0000:65:00.0", into id. */
enum dg_status dg_cuda_bus_id(struct dg_backend *be, char *id, size_t size, struct dg_error *err) DG_MUST_CHECK;

/* For benches. Bytes read and written a second by the best of five device copies of so many bytes (which are allocated twice); 0 after a failure. */
double dg_cuda_copy_rate(struct dg_backend *be, size_t bytes);
/* Bytes a second by the best of five copies, to the device, of the first experts that are kept in host memory; 0 when there are none. */
double dg_cuda_host_rate(struct dg_backend *be);
/* Whether passes are recorded and replayed (they are at first). */
void dg_cuda_replay_passes(struct dg_backend *be, bool on);

#endif
