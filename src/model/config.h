/* Shape of the model and the sampler's defaults, as config.json and generation_config.json give them. Nothing is compiled in.
 * Spellings and defaults: reference.md section 2; seed section 1. */
#ifndef DG_MODEL_CONFIG_H
#define DG_MODEL_CONFIG_H

#include "core/status.h"

/* What a file may ask for. Generous against any model of this kind, small enough that no product of two overflows 32 bits of
 * rows. */
#define DG_LAYERS_MAX 512
#define DG_STOPS_MAX 16
#define DG_VOCAB_MAX (1 << 24)
#define DG_WIDTH_MAX (1 << 20) /* hidden and feed-forward widths */
#define DG_HEADS_MAX 1024
#define DG_HEAD_DIM_MAX 4096
#define DG_EXPERTS_MAX 4096
#define DG_TOPK_MAX 64
#define DG_CANVAS_MAX 4096
#define DG_CTX_MAX (1 << 24)
#define DG_STEPS_MAX 100000 /* denoise steps of a block */
#define DG_CONFIG_FILE_MAX ((size_t)1 << 20)

struct dg_layer_shape {
    bool full;        /* full attention, else sliding */
    int32_t hd;       /* head dimension, even */
    int32_t kv_heads; /* divides heads */
};

struct dg_config {
    int32_t vocab, hidden, layers, heads;
    int32_t inter;              /* dense feed-forward width */
    int32_t experts, topk, moe; /* experts, experts a token, width of one expert */
    int32_t canvas;             /* positions denoised together */
    int32_t window;             /* sliding window */
    int32_t ctx_max;            /* max_position_embeddings */
    float eps, softcap;
    double theta_sliding, theta_full;
    double rotary_full;    /* partial_rotary_factor of full layers */
    double rotary_sliding; /* 1 unless the file says otherwise */
    int32_t pad, bos;
    struct dg_layer_shape layer[DG_LAYERS_MAX];

    /* generation_config.json, or the seed's defaults where it is silent or null */
    int32_t stops[DG_STOPS_MAX]; /* stop token ids */
    int32_t n_stops;
    int32_t steps_max;
    double entropy_bound, t_min, t_max; /* the decimals of the file, not their nearest f32 */
    int32_t stability;
    double confidence;
};

/* Reads DIR/config.json and, where it exists, DIR/generation_config.json; checks every value's type and range.
 * Errors: DG_E_IO, DG_E_FORMAT, DG_E_UNSUPPORTED (another architecture, or no config.json: says what the folder holds and what to do; an activation,
 * bias or rope type this engine does not compute). Every fault of a file is named in one error. */
enum dg_status dg_config_load(struct dg_config *c, const char *dir, struct dg_error *err) DG_MUST_CHECK;
/* The same from text in memory; gen may be NULL. Names are used in messages only. For tests and fuzzing. */
enum dg_status dg_config_parse(struct dg_config *c, const char *text, size_t n, const char *gen, size_t gen_n,
                               struct dg_error *err) DG_MUST_CHECK;

#endif
