/* A block of denoise steps whose sampler runs on the backend: its rules and where it stands, as host and device both read them.
 *
 * What the rules mean is src/sampler's to say (struct dg_sampler_params); the op that goes by them is in the op table (ops.h). A block is one
 * piece of backend memory: the state, the rows' arrays, and behind what the host reads after a step, the rules. */
#ifndef DG_OPS_SAMPLE_H
#define DG_OPS_SAMPLE_H

#ifndef __CUDACC_RTC__
#include <stddef.h>
#include <stdint.h>
#endif

/* Why a block ends: the values of enum dg_stop_reason. */
enum { DG_SAMPLE_GOES_ON, DG_SAMPLE_CONFIDENT, DG_SAMPLE_PLATEAU, DG_SAMPLE_ENTROPY, DG_SAMPLE_MAX_STEPS };

/* One number of the stream: state * MUL + ADD, the state's high half (sampler/rng.h). */
#define DG_SAMPLE_RNG_MUL 6966169279u
#define DG_SAMPLE_RNG_ADD 1039523323u

struct dg_sample_rules {
    double entropy_bound, confidence, entropy_stop, plateau_entropy, t_min, t_max;
    int32_t n, vocab, pad, steps_max, stability, entropy_steps, plateau;
    int32_t freeze, reference_stops, no_early_stop; /* 0 or 1 */
    int32_t unchecked;   /* 1: a row whose entropy is not finite counts as one of the largest there is; 0: it is the block's error */
    float entropy_most;  /* that largest */
};

struct dg_sample_state {
    uint64_t rng; /* of the turn's stream */
    double mean_entropy;
    int32_t steps, running, same_argmax, same_accept;
    int32_t n_accepted, stop, converged;
    /* of the last step: rows whose entropy is not finite, and the first of them; the first row whose argmax is outside the vocabulary or -1, and
     * that argmax. An error leaves all but these and p_max as it was. */
    int32_t bad, bad_first, wrong, wrong_id;
    int32_t pad;
};

/* Where the parts lie. */
struct dg_sample {
    struct dg_sample_state *state;
    float *p_max;            /* of each row, 0 where the entropy is not finite */
    int32_t *canvas, *result; /* struct dg_step_result */
    uint8_t *accept, *frozen;
    struct dg_sample_rules *rules;
    int32_t rows; /* most there is room for, a multiple of 16 */
};

#ifndef __CUDACC_RTC__
/* What the host reads after a step lies first. */
static inline size_t dg_sample_read_bytes(int32_t rows) { return sizeof(struct dg_sample_state) + (size_t)rows * (3 * sizeof(float) + 1); }
static inline size_t dg_sample_bytes(int32_t rows) { return dg_sample_read_bytes(rows) + (size_t)rows + sizeof(struct dg_sample_rules); }
static inline int32_t dg_sample_rows(int32_t canvas) { return (canvas + 15) / 16 * 16; }

/* The parts of a block of so many rows (dg_sample_rows) in mem, which is aligned to 8 bytes. */
static inline struct dg_sample dg_sample_in(void *mem, int32_t rows) {
    struct dg_sample s;
    s.state = (struct dg_sample_state *)mem;
    s.p_max = (float *)(s.state + 1);
    s.canvas = (int32_t *)(s.p_max + rows);
    s.result = s.canvas + rows;
    s.accept = (uint8_t *)(s.result + rows);
    s.frozen = s.accept + rows;
    s.rules = (struct dg_sample_rules *)(void *)(s.frozen + rows);
    s.rows = rows;
    return s;
}
#endif

#endif
