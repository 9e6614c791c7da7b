/* One step of the entropy-bound sampler on the device: dg_sampler_step bit for bit (src/sampler/sampler.c), in one block of threads.
 *
 * What the host does one after the other is done at once wherever its outcome does not hang on an order: positions are ranked by counting, and
 * each draw jumps to its place in the stream. The two sums of entropies keep their order and are made by one thread each, of different warps. */
#include "ops/cuda/kernels/device.cuh"

#define THREADS DGC_SAMPLE_THREADS
#define ROWS DGC_SAMPLE_ROWS
#define FROZEN 0xffffffffu /* a key that no entropy has */

/* The stream's state after so many more numbers (sampler/rng.h): the steps are powers of one map, which are squared on the way. */
DGC_FN uint64_t rng_after(uint64_t state, uint32_t numbers) {
    uint64_t mul = DG_SAMPLE_RNG_MUL, add = DG_SAMPLE_RNG_ADD;
    for (; numbers; numbers >>= 1) {
        if (numbers & 1)
            state = state * mul + add;
        add = add * mul + add;
        mul *= mul;
    }
    return state;
}

/* Sums of v[0..n) in order, each kept before its value is added. Returns the last. */
DGC_FN double sums_before(const float *v, int n, double *before) {
    double sum = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        before[i] = sum;
        sum += (double)v[i];
    }
    return sum;
}

DGC_FN double sum_in_order(const float *v, int n) {
    double sum = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++)
        sum += (double)v[i];
    return sum;
}

/* 1/T of a step with so many left, as the host makes it: no product may be fused with a sum. */
DGC_FN float inv_t(const struct dg_sample_rules *r, int steps_left) {
    double range = __dadd_rn(r->t_max, -r->t_min), part = (double)steps_left / (double)r->steps_max;
    return 1.0f / (float)__dadd_rn(r->t_min, __dmul_rn(range, part));
}

/* The first of the mode's tests that holds, max steps apart. */
DGC_FN int converged(const struct dg_sample_rules *r, const struct dg_sample_state *s, int filler, double mean) {
    if (!r->reference_stops && filler)
        return DG_SAMPLE_GOES_ON;
    if (s->same_argmax >= r->stability && mean < r->confidence)
        return DG_SAMPLE_CONFIDENT;
    if (r->reference_stops)
        return DG_SAMPLE_GOES_ON;
    if (s->same_accept >= r->plateau - 1 && mean < r->plateau_entropy)
        return DG_SAMPLE_PLATEAU;
    if (r->entropy_stop > 0 && s->steps >= r->entropy_steps && mean < r->entropy_stop)
        return DG_SAMPLE_ENTROPY;
    return DG_SAMPLE_GOES_ON;
}

/* Behind a step that has been made; one thread. */
DGC_FN void decide(const struct dg_sample_rules *r, struct dg_sample_state *s, int filler, double mean) {
    s->steps++;
    int why = converged(r, s, filler, mean), stop = r->no_early_stop ? DG_SAMPLE_GOES_ON : why;
    if (stop == DG_SAMPLE_GOES_ON && s->steps == r->steps_max)
        stop = DG_SAMPLE_MAX_STEPS;
    s->stop = stop;
    s->running = stop == DG_SAMPLE_GOES_ON;
    s->converged = why != DG_SAMPLE_GOES_ON;
    s->mean_entropy = mean;
}

DGC_FN void no_faults(struct dg_sample_state *s) {
    s->bad = s->bad_first = s->wrong_id = 0;
    s->wrong = -1;
}

/* Rows that are no numbers, and argmaxes that are no ids: what of them the host tells. Returns whether the step is an error. One thread. */
DGC_FN int faults(const struct dgc_sample_args *a, const struct dg_sample_rules *r, struct dg_sample_state *s) {
    no_faults(s);
    for (int i = r->n - 1; i >= 0; i--) {
        int id = a->argmax[i];
        if (!isfinite(a->entropy[i])) {
            s->bad++;
            s->bad_first = i;
        } else if (id < 0 || id >= r->vocab) {
            s->wrong = i;
            s->wrong_id = id;
        }
    }
    return (s->bad && !r->unchecked) || s->wrong >= 0;
}

/* Positions of a mask of draws that lie before i. */
DGC_FN int draws_before(const uint32_t *mask, int i) {
    int k = __popc(mask[i >> 5] & ((1u << (i & 31)) - 1));
    for (int w = 0; w < i >> 5; w++)
        k += __popc(mask[w]);
    return k;
}

/* Each position's place among the entropies, equal ones by position, and the entropies in that order. Frozen positions have none. */
DGC_FN void rank_all(const uint32_t *key, const float *value, int n, int32_t *rank, float *sorted) {
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        uint32_t mine = key[i];
        int k = 0;
#pragma unroll 8
        for (int j = 0; j < n; j++)
            k += key[j] < mine + (j < i);
        if (mine != FROZEN) {
            rank[i] = k;
            sorted[k] = value[i];
        }
    }
}

DGC_KERNEL(sample, sample, DGC_SAMPLE_THREADS) {
    __shared__ uint32_t key[ROWS], draws[ROWS / 32];
    __shared__ float value[ROWS], sorted[ROWS];
    __shared__ double before[ROWS], total;
    __shared__ int32_t rank[ROWS], token[ROWS];
    __shared__ int failed;
    const struct dg_sample_rules *r = a.s.rules;
    int t = (int)threadIdx.x, n = r->n, steps = a.s.state->steps, odd = 0;
    uint64_t rng = a.s.state->rng;
    if (t == 64) {
        a.prm->inv_t_soft = a.prm->inv_t_head;
        a.prm->inv_t_head = inv_t(r, r->steps_max - steps - 1);
    }
    if (!a.s.state->running || n > ROWS)
        return;
    for (int i = t; i < n; i += THREADS) {
        float h = a.entropy[i];
        int id = a.argmax[i], finite = isfinite(h), outside = id < 0 || id >= r->vocab;
        odd |= !finite || outside;
        value[i] = h = finite ? h : r->entropy_most;
        token[i] = outside ? 0 : id;
        key[i] = a.s.frozen[i] ? FROZEN : dgc_key_of(h);
        sorted[i] = 0;
        a.s.p_max[i] = finite ? a.p_max[i] : 0.0f;
    }
    odd = __syncthreads_or(odd);
    if (odd) {
        if (t == 0)
            failed = faults(&a, r, a.s.state);
        __syncthreads();
        if (failed)
            return;
    }
    rank_all(key, value, n, rank, sorted);
    __syncthreads();
    if (t == 0)
        total = sum_in_order(value, n);
    else if (t == 32)
        sums_before(sorted, n, before);
    __syncthreads();
    /* entropies ascend and the bound is not negative: once a sum is over it, so are those that follow */
    for (int i = t; i < (n + THREADS - 1) / THREADS * THREADS; i += THREADS) {
        unsigned mask = __ballot_sync(0xffffffffu, i < n && key[i] != FROZEN && !(before[rank[i]] <= r->entropy_bound));
        if ((t & 31) == 0 && i < n)
            draws[i >> 5] = mask;
    }
    __syncthreads();
    int other_argmax = 0, other_accept = 0, text = 0;
    for (int i = t; i < n; i += THREADS) {
        int draw = draws[i >> 5] >> (i & 31) & 1, kept = r->freeze && !draw, id = a.s.canvas[i];
        if (draw)
            id = (int)((uint32_t)(rng_after(rng, (uint32_t)draws_before(draws, i) + 1) >> 32) % (uint32_t)r->vocab);
        else if (key[i] != FROZEN)
            id = token[i];
        int32_t result = kept ? id : token[i];
        other_argmax |= a.s.result[i] != result;
        other_accept |= a.s.accept[i] != !draw;
        text |= result != r->pad && result != r->vocab - 1;
        a.s.canvas[i] = id;
        a.s.result[i] = result;
        a.s.accept[i] = (uint8_t)!draw;
        a.s.frozen[i] = (uint8_t)kept;
    }
    other_argmax = __syncthreads_or(other_argmax);
    other_accept = __syncthreads_or(other_accept);
    text = __syncthreads_or(text);
    if (t != 0)
        return;
    struct dg_sample_state s = *a.s.state;
    int drawn = 0;
    for (int w = 0; w < (n + 31) / 32; w++)
        drawn += __popc(draws[w]);
    s.rng = rng_after(rng, (uint32_t)drawn);
    s.n_accepted = n - drawn;
    s.same_argmax = steps > 0 && !other_argmax ? s.same_argmax + 1 : 0;
    s.same_accept = steps > 0 && !other_accept ? s.same_accept + 1 : 0;
    if (!odd)
        no_faults(&s);
    decide(r, &s, !text, total / (double)n);
    *a.s.state = s;
}
