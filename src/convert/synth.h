/* Models of random weights at any shape, for benchmarks and tests: as packs, or as checkpoints.
 *
 * The weights have the scale of trained ones where it matters for speed: linear layers keep their input's size, attention and router
 * logits spread as they do in use, and the output norm is set so that a row's probability falls on few ids (self-conditioning then keeps
 * few survivors, as with trained logits): embeddings come in groups of DG_SYNTH_KIN that resemble each other, and the residual keeps most
 * of the embedding it began with. */
#ifndef DG_CONVERT_SYNTH_H
#define DG_CONVERT_SYNTH_H

#include "core/buf.h"
#include "model/config.h"
#include "pack/policy.h"
#include "pack/stream.h"

#define DG_SYNTH_KIN 16

/* What the weights' scales follow from, for others who draw such weights. */
struct dg_synth_scales {
    float attention, router; /* standard deviations of the attention and router logits */
    float branch;            /* mean weight of the norms behind a layer's attention and feed-forward */
    float norm;              /* mean weight of the output norm */
    float shared;            /* a value of an embedding of length 1: so much of it is its group's, in root mean squares */
};
struct dg_synth_scales dg_synth_scales(const struct dg_config *c);

struct dg_synth_opts {
    const char *shape; /* "26b-a4b", or the path of a config.json */
    int layers;        /* 0 = as many as the shape has */
    const char *out;
    bool checkpoint;         /* else a pack by policy */
    struct dg_policy policy; /* checked */
    int shards;              /* of a checkpoint; 0 = as many as keep each below 5 GB */
    uint64_t seed;
    const char *tokenizer; /* a tokenizer.json to copy in; NULL = none */
    struct dg_stream_opts stream;
};

struct dg_synth_result {
    size_t n_tensors;
    uint64_t bytes, params;
};

/* The same options give the same bytes. On an error nothing stays behind. Errors: DG_E_ARG, DG_E_FORMAT (the shape), DG_E_UNSUPPORTED
 * (a width that a format does not take), DG_E_IO, DG_E_CANCELLED. */
enum dg_status dg_synth(const struct dg_synth_opts *o, struct dg_synth_result *r, struct dg_error *err) DG_MUST_CHECK;

/* The shape's config.json with that many layers (0 = all; the last one is always full), and what it means. */
enum dg_status dg_synth_config(const char *shape, int layers, struct dg_buf *text, struct dg_config *cfg, struct dg_error *err) DG_MUST_CHECK;

#endif
