/* The model a second time, as slowly and plainly as it can be written: double precision, one loop inside another, no cache ring, nothing
 * shared with the library but the file it reads. Written from the description of the architecture alone (reference.md sections 1 and 3,
 * seed section 2.1), so that an engine that agrees with it agrees with the description. A failure here ends the program: the test
 * could not even be set up. */
#ifndef TESTS_SUPPORT_NAIVE_H
#define TESTS_SUPPORT_NAIVE_H

#include <stdbool.h>
#include <stdint.h>

struct nv_model {
    int hidden, layers, heads, vocab, experts, topk, moe, inter, window, canvas;
    int full[64], hd[64], kv[64]; /* by layer */
    double eps, cap, theta[2], factor[2]; /* sliding, full */
    struct st_file *file[16];
    int n_files;
    int ctx;
    double *k[64], *v[64]; /* [ctx][kv][hd]: every position, no ring */
    struct {
        char *name;
        double *v;
        int64_t n;
    } *kept; /* tensors in double, read once */
    int n_kept;
};

/* Opens a checkpoint folder of bf16, f16 or f32 tensors; ctx: positions to keep keys and values for. */
void nv_open(struct nv_model *m, const char *dir, int ctx);
void nv_close(struct nv_model *m);

/* A tensor as doubles; borrowed. n: elements it must have, -1 = any. */
const double *nv_tensor(struct nv_model *m, const char *name, int64_t n);
/* The same for "model.decoder.layers.L.<what>". */
const double *nv_layer_tensor(struct nv_model *m, int l, const char *what, int64_t n);

/* x / sqrt(mean(x^2) + eps) * w; w may be NULL; y may be x. */
void nv_norm(const double *x, const double *w, int n, double eps, double *y);
/* y[r] = w[r] . x, w [n][k]. */
void nv_matvec(const double *w, int n, int k, const double *x, double *y);
double nv_gelu(double x);
/* Turns the pairs (i, i + hd/2) of a head at a position; of a full layer only the first factor * hd/2 of them. */
void nv_rope(double *head, int hd, int64_t pos, double theta, double factor);
/* One query head over t positions: k and v [t] heads of hd values, `stride` values apart. keys: how many of the highest f32 scores
 * count, of equal ones the earlier; t = all of them. */
void nv_attend(const double *q, int hd, const double *k, const double *v, int64_t stride, int64_t t, int64_t keys, double *out);
/* The topk experts of a row of router logits, strongest first, with their final weights. */
void nv_route(const double *logits, int experts, int topk, const double *per_expert_scale, int *id, double *weight);
/* y += weight * expert e of a layer, of x. w_gate_up [2 * moe][hidden], gate rows first; w_down [hidden][moe]. */
void nv_expert(const double *w_gate_up, const double *w_down, int moe, int hidden, const double *x, double weight, double *y);
/* Entropy in nats of softmax(z * inv_t), its largest value's place (lowest of equals) and probability. p: the probabilities. */
double nv_stats(const double *z, int n, double inv_t, double *p, int *argmax, double *p_max);

/* What a layer computed for its rows, each [n][...]; any may be NULL. */
struct nv_look {
    double *q, *att; /* [n][heads * hd]: rotated queries, attention before the output projection */
    double *router;  /* [n][experts]: logits */
    double *out;     /* [n][hidden] */
    bool attention_only; /* stop behind the attention block */
};

/* A layer over n rows x [n][hidden] at pos0, in place; the rows' keys and values are written. */
void nv_layer(struct nv_model *m, int l, bool encoder, double *x, int n, int64_t pos0, const struct nv_look *look);
/* Embedding times sqrt(hidden). */
void nv_embed(struct nv_model *m, const int32_t *ids, int n, double *x);
/* Denoise pass; signal [n][hidden] or NULL; logits [n][vocab]. */
void nv_denoise(struct nv_model *m, const int32_t *ids, int n, int64_t pos0, const double *signal, double *logits);
/* signal of the next step from a step's logits: softmax(logits * inv_t) . embed * sqrt(hidden). sparse: only ids whose probability is at
 * least e^-10 of the row's largest; dropped [n] (may be NULL): the mass left out. */
void nv_soft(struct nv_model *m, const double *logits, int n, double inv_t, bool sparse, double *signal, double *dropped);

/* n values; ends the program when there is no memory. Owner: the caller, free. */
double *nv_new(int64_t n);
/* Deterministic random numbers in [-1, 1). */
double nv_random(uint64_t *state);
/* bf16 and binary16 to double, by their definition. */
double nv_bf16(uint16_t h);
double nv_f16(uint16_t h);

#endif
