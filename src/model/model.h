/* A model: its shape and its weights, mapped where the file put them. Immutable after open, shared by threads. */
#ifndef DG_MODEL_MODEL_H
#define DG_MODEL_MODEL_H

#include "formats/formats.h"
#include "model/config.h"

/* A vector of n f32 values, converted at open (norm weights, router scales: a few KB each). */
struct dg_vec {
    const float *v; /* NULL = absent */
    int32_t n;
    uint64_t dev;
};

struct dg_layer {
    struct dg_mat q, k, v, o; /* v absent on full layers: V is the raw k output */
    struct dg_vec q_norm, k_norm;
    struct dg_vec input_norm, post_attn_norm, pre_ff_norm, post_ff_norm_1, pre_ff_norm_2, post_ff_norm_2, post_ff_norm;
    struct dg_mat gate, up, down;
    struct dg_mat router;            /* [experts][hidden] */
    struct dg_vec router_scale;      /* [hidden], as stored */
    struct dg_vec per_expert_scale;  /* [experts] */
    struct dg_stack gate_up;         /* [experts][2*moe][hidden], gate rows first */
    struct dg_stack expert_down;     /* [experts][hidden][moe] */
    float scalar;                    /* the decoder's layer_scalar */
    float scalar_enc;                /* the encoder's own, or the decoder's when the file has none */
};

struct dg_model {
    struct dg_config cfg;
    struct dg_mat embed; /* [vocab][hidden], tied: head and soft embedding read it too */
    struct dg_vec norm;
    struct {
        struct dg_vec pre_norm;
        struct dg_mat gate, up, down;
    } sc; /* self-conditioning MLP */
    struct dg_layer *layer; /* cfg.layers */
    char *dir;              /* folder it was opened from */
    struct dg_store *store; /* owner of mappings and vectors */
    char *warnings;         /* one line each, "" when none: unknown tensor names and the like */
};

/* Opens a checkpoint folder (config.json, generation_config.json, safetensors single or sharded) or a pack folder.
 * Text tensors are checked for presence, shape and dtype; every fault is named in one error. Vision tensors and tied copies are
 * skipped. Owner: the caller, dg_model_close. */
enum dg_status dg_model_open(struct dg_model **out, const char *dir, struct dg_error *err) DG_MUST_CHECK;
void dg_model_close(struct dg_model *m); /* NULL is allowed */

/* Hash of shape, final norm, and of every matrix's format and first row: what was recorded or saved with one model, or one pack of it, is
 * not taken for another's. */
uint64_t dg_model_id(const struct dg_model *m);

#endif
