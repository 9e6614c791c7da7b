/* Top-k attention over f16 keys and values: every score on tensor cores (f16 queries, f32 sums), then per (row, head) the choice of the highest
 * and the sum over them.
 *
 * The k-th largest of the groups' largest scores is a lower bound of the k-th largest score, so only groups that reach it can hold a kept
 * key: of a long row a sixth to a quarter is read. What reaches the bound is listed in the order of positions; when the list is full its k
 * highest stay and the bound rises to the least of them, and so do in the end the k highest of all. */
#include "ops/cuda/kernels/topk.cuh"

#define TILE DGC_TOP_TILE
#define STEP 64 /* head dimensions of a stage */

/* Where 16 bytes of a row lie in a stage: two rows are read at once. */
DGC_FN int place(int row, int chunk) { return row * STEP + ((chunk ^ (row & 1) << 2) << 3); }

struct units {
    int kvh, group, u0, end;
};

DGC_FN void load_keys(const struct dgc_kv *kv, int kvh, int64_t t0, int64_t hi, int d0, uint16_t *to) {
    for (int i = (int)threadIdx.x; i < TILE * 8; i += 256) {
        int row = i >> 3, c = i & 7;
        int64_t t = t0 + row < hi ? t0 + row : hi - 1; /* scores of keys behind the last are never used */
        dgc_cp_async16(to + place(row, c), (const uint16_t *)kv->k + (t * kv->kv_heads + kvh) * kv->hd + d0 + c * 8);
    }
}

/* 8 query values as f16; of units behind the last, zeros. */
DGC_FN uint4 take_query(const struct dgc_top_scores_args *a, const struct units *b, int row, int d) {
    int u = b->u0 + row, m = u / b->group;
    uint32_t h[4] = {0, 0, 0, 0};
    int64_t at = (int64_t)m * a->q.ld + (int64_t)(b->kvh * b->group + u - m * b->group) * a->kv.hd + d;
    if (u < b->end) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[j] = dgc_pack_f16(dgc_load(a->q.p, a->q.dtype, at + 2 * j), dgc_load(a->q.p, a->q.dtype, at + 2 * j + 1));
    }
    uint4 v;
    v.x = h[0], v.y = h[1], v.z = h[2], v.w = h[3];
    return v;
}

/* The warp's 32 units by 64 keys of a stage; the dimensions of a step of 32 are shared out among the lanes of a quad in runs of 8. */
DGC_FN void multiply(const uint16_t *qs, const uint16_t *ks, float (*acc)[8][4]) {
    int lane = (int)threadIdx.x & 31, g = lane >> 2, c = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t lo[2][4], hi[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint4 x = *(const uint4 *)(qs + place(m * 16 + g, h * 4 + c)), y = *(const uint4 *)(qs + place(m * 16 + g + 8, h * 4 + c));
            lo[m][0] = x.x, lo[m][1] = y.x, lo[m][2] = x.y, lo[m][3] = y.y;
            hi[m][0] = x.z, hi[m][1] = y.z, hi[m][2] = x.w, hi[m][3] = y.w;
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            uint4 b = *(const uint4 *)(ks + place(n * 8 + g, h * 4 + c));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                dgc_mma_f16(acc[m][n], lo[m], b.x, b.y);
                dgc_mma_f16(acc[m][n], hi[m], b.z, b.w);
            }
        }
    }
}

DGC_KERNEL(top_scores, top_scores, 256) {
    DGC_DYNAMIC_SHARED(shared);
    int group = a.heads / a.kv.kv_heads, units = a.n * group, u_tiles = (units + TILE - 1) / TILE, tid = (int)threadIdx.x;
    int kvh = (int)blockIdx.x / u_tiles, u0 = ((int)blockIdx.x - kvh * u_tiles) * TILE;
    struct units b = {kvh, group, u0, u0 + TILE < units ? u0 + TILE : units};
    int64_t t0 = (int64_t)blockIdx.y * TILE, lo, hi;
    dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + (b.end - 1) / group, &lo, &hi);
    if (t0 >= hi)
        return;
    int lane = tid & 31, warp = tid >> 5, strip = (warp >> 1) * 32, half = warp & 1;
    uint16_t *stage[2] = {(uint16_t *)shared, (uint16_t *)shared + 2 * TILE * STEP}; /* queries, then keys */
    float acc[2][8][4];
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i >> 5][i >> 2 & 7][i & 3] = 0.0f;

    load_keys(&a.kv, kvh, t0, hi, 0, stage[0] + TILE * STEP);
    dgc_cp_commit();
    for (int i = tid; i < TILE * 8; i += 256)
        *(uint4 *)(stage[0] + place(i >> 3, i & 7)) = take_query(&a, &b, i >> 3, (i & 7) * 8);
    for (int d = 0, s = 0; d < a.kv.hd; d += STEP, s ^= 1) {
        uint16_t *now = s ? stage[1] : stage[0], *then = s ? stage[0] : stage[1];
        int more = d + STEP < a.kv.hd;
        uint4 next[4];
        dgc_cp_wait(0);
        __syncthreads(); /* this stage is there, and nobody reads the other any more */
        if (more) {
            load_keys(&a.kv, kvh, t0, hi, d + STEP, then + TILE * STEP);
#pragma unroll
            for (int i = 0; i < 4; i++)
                next[i] = take_query(&a, &b, (tid >> 3) + i * 32, d + STEP + (tid & 7) * 8);
        }
        dgc_cp_commit();
        multiply(now + strip * STEP, now + (TILE + half * 64) * STEP, acc);
        if (more) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint4 *)(then + place((tid >> 3) + i * 32, tid & 7)) = next[i];
        }
    }

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int u = u0 + strip + m * 16 + (lane >> 2) + 8 * r;
            int64_t seen = 0, at = ((int64_t)kvh * units + u) * a.pitch + t0 + half * 64;
            if (u < b.end)
                dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + u / group, &lo, &seen);
            seen -= t0 + half * 64;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    v[j] = acc[m][q * 4 + (j >> 1)][2 * r + (j & 1)];
                int64_t left = seen - q * 32;
                float most = dgc_top_most(v, left < 0 ? 0 : left > 32 ? 32 : (int)left);
                if (u < b.end) {
                    dgc_top_store(a.score + at + q * 32, v);
                    if ((lane & 3) == 0)
                        a.most[(at >> 5) + q] = most;
                }
            }
        }
}

#define UNITS DGC_TOP_UNITS /* (row, head) pairs of a block, a warp each: no warp waits for another */
#define BLOCKS 8 /* that fit a multiprocessor: all units of a canvas at once, so that they walk the values together */
#define LIST 736 /* candidates: a prune leaves DGC_TOP_KEPT and a little more, and room for TAKE groups */
#define BINS 256
#define VISITS (BINS - READ) /* groups listed at a time */
#define READ 12     /* groups whose scores a warp has under way, */
#define TAKE 4      /* and of which it takes so many at a time */
#define AHEAD 3     /* keys whose values it has under way */
#define ALL 0xffffffffu
#if LIST < DGC_TOP_KEPT + DGC_TOP_KEPT / 16 + 8 + 32 * TAKE
#error a pruned list (slack_of) has no room for the next groups
#endif
#define BEYOND 0x7fffffe0

struct DGC_ALIGNED(16) choice {
    float score[2 * LIST]; /* of the candidates, in order of position; then the kept ones' weights; from LIST on, as integers: their positions */
    int bin[BINS];         /* or first keys of groups to be visited, with what is beyond all keys behind them */
    float bound;           /* candidates are those that are not below it */
};

/* A unit's scores, so many of them, of which the k highest are wanted. */
struct search {
    const float *score, *most;
    int n, k;
};

/* Order of floats as unsigned numbers, both zeros the same; NaN above all, so that it is kept and ends in the output. No rank is 0. */
DGC_FN uint32_t rank_of(float v) {
    uint32_t u = __float_as_uint(v + 0.0f);
    return v != v ? ALL : u & 0x80000000u ? ~u : u | 0x80000000u;
}
DGC_FN float of_rank(uint32_t r) { return __uint_as_float(r & 0x80000000u ? r & 0x7fffffffu : ~r); }
DGC_FN uint32_t higher(uint32_t a, uint32_t b) { return a > b ? a : b; }

DGC_FN int at_of(const struct choice *s, int i) { return __float_as_int(s->score[LIST + i]); }
DGC_FN void put(struct choice *s, int i, float score, int at) {
    s->score[i] = score;
    s->score[LIST + i] = __int_as_float(at);
}

/* The lowest score above a rank, or of it. What is above all numbers becomes NaN, below which nothing is. */
DGC_FN float bound_from(uint32_t rank, int above) { return of_rank(rank + (above && rank < ALL)); }

DGC_FN int below(uint32_t lanes) { return __popc(lanes & (((uint32_t)1 << (threadIdx.x & 31)) - 1)); }

/* The bin, counted from the top, in which the need-th lies. Returns how many are in it; *above: in those above it. */
DGC_FN int find_bin(const int *bins, int need, int *bin, int *above) {
    enum { SHARE = BINS / 32 };
    int lane = (int)threadIdx.x & 31, top = BINS - SHARE - SHARE * lane, c[SHARE], mine = 0, sum, in = 0, at = 0;
#pragma unroll
    for (int j = 0; j < SHARE; j += 4) {
        uint4 u = *(const uint4 *)(bins + top + SHARE - 4 - j);
        c[j] = (int)u.w;
        c[j + 1] = (int)u.z;
        c[j + 2] = (int)u.y;
        c[j + 3] = (int)u.x;
        mine += c[j] + c[j + 1] + c[j + 2] + c[j + 3];
    }
    sum = mine;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        int v = __shfl_up_sync(ALL, sum, d);
        sum += lane >= d ? v : 0;
    }
    int before = sum - mine, from = __popc(__ballot_sync(ALL, sum < need));
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        if (before < need && in == 0 && before + c[j] >= need) {
            in = c[j];
            at = top + SHARE - 1 - j;
        } else if (in == 0)
            before += c[j];
    }
    *bin = __shfl_sync(ALL, at, from);
    *above = __shfl_sync(ALL, before, from);
    return __shfl_sync(ALL, in, from);
}

/* Of `count` scores the k highest are those whose ranks are above the one that is returned and the first *need of those equal to it; up to `slack`
 * more may be above it. The range that holds the k-th is cut into bins again and again. 0 < k <= count. */
DGC_FN uint32_t find(const float *score, int count, int k, int slack, int *bins, int *need) {
    int lane = (int)threadIdx.x & 31;
    uint32_t lo = ALL, hi = 0;
    for (int i = lane; i < count; i += 32) {
        uint32_t v = rank_of(score[i]);
        lo = v < lo ? v : lo;
        hi = higher(v, hi);
    }
    lo = __reduce_min_sync(ALL, lo);
    hi = __reduce_max_sync(ALL, hi);
    *need = k;
    while (lo < hi) {
        int bits = 32 - __clz((int)(hi - lo)), shift = bits > 8 ? bits - 8 : 0, bin, above; /* 2^8 bins */
        uint4 zero;
        zero.x = zero.y = zero.z = zero.w = 0;
#pragma unroll
        for (int i = 0; i < BINS; i += 128)
            *(uint4 *)(bins + i + 4 * lane) = zero;
        __syncwarp();
        for (int i = lane; i < count; i += 32) {
            uint32_t v = rank_of(score[i]);
            if (v >= lo && v <= hi)
                atomicAdd(&bins[(v - lo) >> shift], 1);
        }
        __syncwarp();
        int in = find_bin(bins, *need, &bin, &above);
        __syncwarp();
        lo += (uint32_t)bin << shift;
        *need -= above;
        if (in - *need <= slack) {
            *need = 0;
            return lo - 1;
        }
        uint32_t span = ((uint32_t)1 << shift) - 1;
        hi = hi - lo > span ? lo + span : hi;
    }
    return lo;
}

/* Leaves the k highest of the list, and up to `slack` more, in order; nothing is written behind what was read. Raises the bound to what a later
 * candidate must reach to be among the k: of equal ones the earlier is kept. Returns how many are left. */
static __device__ __noinline__ int prune(struct choice *s, int count, int k, int slack) {
    int lane = (int)threadIdx.x & 31, need, kept = 0, equals = 0;
    uint32_t least = find(s->score, count, k, slack, s->bin, &need);
    for (int i0 = 0; i0 < count; i0 += 32) {
        int i = i0 + lane, at = i < count ? at_of(s, i) : 0;
        float score = i < count ? s->score[i] : 0.0f;
        uint32_t v = rank_of(score), equal = __ballot_sync(ALL, i < count && v == least);
        int take = i < count && (v > least || (v == least && equals + below(equal) < need));
        uint32_t takes = __ballot_sync(ALL, take);
        __syncwarp();
        if (take) {
            put(s, kept + below(takes), score, at);
        }
        kept += __popc(takes);
        equals += __popc(equal);
    }
    s->bound = bound_from(least, 1);
    __syncwarp();
    return kept;
}

/* How many candidates more than k it may take, so that most of the cuts are enough. */
DGC_FN int slack_of(int k) { return k / 16 + 8; }

/* A lower bound of the k-th highest score: the k-th highest of groups' largest scores, or nearly; of 2, 4, 8, ... groups' where a row has more of
 * them than the list takes; of all scores where there are few. */
DGC_FN float bound_of(const struct search *r, struct choice *s) {
    enum { WORDS = 2 * LIST - 4 };
    int lane = (int)threadIdx.x & 31, groups = (r->n + 31) / 32, x = 0, need;
    uint32_t least;
    float *to = s->score;
    while (groups > WORDS << x)
        x++;
    int count = (groups + (1 << x) - 1) >> x, step = x < 2 ? 4 : 1 << x; /* groups of a lane at a time */
    if (count <= r->k) {
        if (r->n <= r->k || r->n > WORDS)
            return -DGC_INF;
        count = r->n;
        for (int i = lane; i < count; i += 32)
            to[i] = r->score[(i & ~31) + dgc_top_place(lane)];
        __syncwarp();
        least = find(to, count, r->k, slack_of(r->k), s->bin, &need);
        return bound_from(least, need == 0);
    }
    for (int g0 = lane * step; g0 < groups; g0 += 128 * step) {
        uint4 u[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (g0 + i * 32 * step < groups) /* rows of these are whole vectors */
                u[i] = *(const uint4 *)(r->most + g0 + i * 32 * step);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int g = g0 + i * 32 * step;
            if (g < groups) {
                uint32_t w[4] = {u[i].x, u[i].y, u[i].z, u[i].w};
                float v[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[j] = g + j < groups ? __uint_as_float(w[j]) : -DGC_INF;
                for (int t = g + 4; t < g + step && t < groups; t++)
                    v[0] = dgc_max_nan(v[0], r->most[t]);
                float a = dgc_max_nan(v[0], v[1]), b = dgc_max_nan(v[2], v[3]);
                if (x == 0) {
                    *(uint4 *)(to + g) = u[i];
                } else if (x == 1) {
                    to[g >> 1] = a;
                    to[(g >> 1) + 1] = b;
                } else
                    to[g >> x] = dgc_max_nan(a, b);
            }
        }
    }
    __syncwarp();
    least = find(to, count, r->k, slack_of(r->k), s->bin, &need);
    return bound_from(least, need == 0); /* or those equal to it all count */
}

DGC_FN uint4 four_most(const struct search *r, int g, int groups) {
    uint4 u;
    u.x = u.y = u.z = u.w = 0;
    if (g < groups)
        u = *(const uint4 *)(r->most + g);
    return u;
}

/* Groups from *first on that hold a candidate, in order, as many as there is room for. Returns how many; *first: where to go on. */
DGC_FN int list_groups(const struct search *r, int *first, float bound, int *visit) {
    int lane = (int)threadIdx.x & 31, groups = (r->n + 31) / 32, from = *first, count = 0, g = (from & ~3) + 4 * lane;
    uint4 u = four_most(r, g, groups);
    for (; g - 4 * lane < groups && count + 128 <= VISITS; g += 128) {
        uint32_t w[4] = {u.x, u.y, u.z, u.w};
        int to = count, hit[4];
        u = four_most(r, g + 128, groups);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            hit[j] = g + j >= from && g + j < groups && !(__uint_as_float(w[j]) < bound);
            uint32_t hits = __ballot_sync(ALL, hit[j]);
            to += below(hits);
            count += __popc(hits);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (hit[j])
                visit[to] = (g + j) * 32;
            to += hit[j];
        }
    }
    *first = g - 4 * lane;
    if (lane < READ)
        visit[count + lane] = BEYOND;
    __syncwarp();
    return count;
}

/* Puts candidates of the listed groups behind those there are, `count`, and returns how many there are then. Where the list is full it is pruned,
 * the bound rises, and the groups must be listed again from *first on. */
DGC_FN int list_scores(const struct search *r, int visits, int count, int *first, struct choice *s) {
    int lane = (int)threadIdx.x & 31, end = r->n - lane;
    const float *from = r->score + dgc_top_place(lane);
    float bound = s->bound;
    for (int v0 = 0; v0 < visits; v0 += READ) {
        float v[READ];
#pragma unroll
        for (int j = 0; j < READ; j += TAKE) {
            uint4 u = *(const uint4 *)(s->bin + v0 + j);
            int key[TAKE] = {(int)u.x, (int)u.y, (int)u.z, (int)u.w};
#pragma unroll
            for (int i = 0; i < TAKE; i++)
                v[j + i] = key[i] < r->n ? from[key[i]] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < READ; j += TAKE) {
            uint4 u = *(const uint4 *)(s->bin + v0 + j);
            int key[TAKE] = {(int)u.x, (int)u.y, (int)u.z, (int)u.w}, all = 0;
            uint32_t hits[TAKE];
#pragma unroll
            for (int i = 0; i < TAKE; i++) {
                hits[i] = __ballot_sync(ALL, key[i] < end && !(v[j + i] < bound));
                all += __popc(hits[i]);
            }
            if (count + all > LIST) {
                *first = key[0] >> 5;
                __syncwarp();
                return prune(s, count, r->k, slack_of(r->k));
            }
#pragma unroll
            for (int i = 0; i < TAKE; i++) {
                if (hits[i] >> lane & 1)
                    put(s, count + below(hits[i]), v[j + i], key[i] + lane);
                count += __popc(hits[i]);
            }
        }
    }
    __syncwarp();
    return count;
}

/* The k highest, in order of position. */
DGC_FN void choose(const struct search *r, struct choice *s) {
    int groups = (r->n + 31) / 32, count = 0;
    float bound = bound_of(r, s);
    __syncwarp();
    s->bound = bound;
    __syncwarp();
    for (int g = 0; g < groups;) {
        int visits = list_groups(r, &g, s->bound, s->bin);
        count = list_scores(r, visits, count, &g, s);
    }
    if (count > r->k)
        prune(s, count, r->k, 0);
}

/* Scores to weights. Returns their sum, in an order that k alone decides. */
DGC_FN float weigh(int k, struct choice *s) {
    int lane = (int)threadIdx.x & 31;
    float max = -DGC_INF, sum = 0.0f;
    for (int j = lane; j < k; j += 32)
        max = dgc_max_nan(max, s->score[j]);
#pragma unroll
    for (int d = 16; d; d >>= 1)
        max = dgc_max_nan(max, __shfl_xor_sync(ALL, max, d));
    for (int j = lane; j < k; j += 32) {
        float p = expf(s->score[j] - max);
        s->score[j] = p;
        sum += p;
    }
    sum = dgc_warp_sum(sum);
    __syncwarp();
    return sum;
}

DGC_FN void add_values(float *acc, float w, uint4 x) {
    uint32_t u[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        acc[2 * e] = fmaf(w, dgc_f16_f32((uint16_t)(u[e] & 0xffff)), acc[2 * e]);
        acc[2 * e + 1] = fmaf(w, dgc_f16_f32((uint16_t)(u[e] >> 16)), acc[2 * e + 1]);
    }
}

/* 8 dimensions of the sum. */
DGC_FN void put_sum(const struct dgc_plane *y, int64_t at, const float *acc, float scale) {
    uint16_t *to = (uint16_t *)y->p + at;
    if (y->dtype == DGC_BF16 && ((uint64_t)to & 15) == 0) {
        uint4 u;
        u.x = dgc_pack_bf16(acc[0] * scale, acc[1] * scale);
        u.y = dgc_pack_bf16(acc[2] * scale, acc[3] * scale);
        u.z = dgc_pack_bf16(acc[4] * scale, acc[5] * scale);
        u.w = dgc_pack_bf16(acc[6] * scale, acc[7] * scale);
        *(uint4 *)to = u;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        dgc_store(y->p, y->dtype, at + i, acc[i] * scale);
}

/* The kept keys' values by their weights, one key after another: a lane has dimensions 8 l + (0..7) of each 256. all: there are 512 of them. */
DGC_FN void sum_values(const struct dgc_top_values_args *a, int all, int kvh, int k, int64_t to, float sum, const struct choice *s) {
    int d = ((int)threadIdx.x & 31) * 8, hd = a->kv.hd, step = a->kv.kv_heads * hd, j = 0;
    const uint16_t *from = (const uint16_t *)a->kv.v + kvh * hd + d;
    int on[2] = {all || d < hd, all || 256 + d < hd};
    float acc[2][8];
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i >> 3][i & 7] = 0.0f;
    for (; j + AHEAD <= k; j += AHEAD) {
        uint4 x[AHEAD][2];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint16_t *row = from + (int64_t)at_of(s, j + i) * step;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (on[h])
                    x[i][h] = *(const uint4 *)(row + 256 * h);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (on[h])
                    add_values(acc[h], s->score[j + i], x[i][h]);
    }
#pragma unroll 1
    for (; j < k; j++) {
        const uint16_t *row = from + (int64_t)at_of(s, j) * step;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (on[h])
                add_values(acc[h], s->score[j], *(const uint4 *)(row + 256 * h));
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (on[h])
            put_sum(&a->y, to + 256 * h + d, acc[h], 1.0f / sum);
}

/* The row of scores becomes weights. */
DGC_FN void put_weights(float *score, float *most, int n, int k, float sum, const struct choice *s) {
    int lane = (int)threadIdx.x & 31;
    uint4 zero;
    zero.x = zero.y = zero.z = zero.w = 0;
    for (int i = lane; i < (n + 63) / 64 * 8; i += 32)
        *(uint4 *)((uint16_t *)score + 8 * i) = zero;
    __syncwarp();
    for (int j = lane; j < k; j += 32)
        ((uint16_t *)score)[at_of(s, j)] = dgc_f32_f16(s->score[j]);
    if (lane == 0)
        *most = 1.0f / sum;
}

DGC_KERNEL_EARLY(top_values, top_values, 32 * UNITS, BLOCKS) {
    __shared__ __align__(16) struct choice choices[UNITS];
    dgc_chain();
    int group = a.heads / a.kv.kv_heads, units = a.n * group, u = (int)blockIdx.x * UNITS + ((int)threadIdx.x >> 5);
    if (u >= units * a.kv.kv_heads)
        return;
    struct choice *s = &choices[threadIdx.x >> 5];
    int kvh = u / units, row = (u - kvh * units) / group, h = u - kvh * units - row * group + kvh * group;
    int64_t lo, hi;
    dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + row, &lo, &hi);
    int n = (int)hi, k = a.topk > 0 ? a.topk : n / 128 < 64 ? 64 : n / 128 > 512 ? 512 : n / 128;
    k = k < n ? k : n;
    struct search r = {a.score + u * a.pitch, a.most + (u * a.pitch >> 5), n, k};
    choose(&r, s);
    float sum = weigh(k, s);
    int64_t to = row * a.y.ld + (int64_t)h * a.kv.hd;
    if (a.dense)
        put_weights(a.score + u * a.pitch, a.most + (u * a.pitch >> 5), n, k, sum, s);
    else if (a.kv.hd == 512)
        sum_values(&a, 1, kvh, k, to, sum, s);
    else
        sum_values(&a, 0, kvh, k, to, sum, s);
}
