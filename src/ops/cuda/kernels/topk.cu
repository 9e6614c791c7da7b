/* Top-k attention over f16 keys and values: every score on tensor cores (f16 queries, f32 sums), then per (row, head) the choice of the highest
 * and the sum over them.
 *
 * The k-th largest of the groups' largest scores is a lower bound of the k-th largest score, so only groups that reach it can hold a kept
 * key: of a long row a sixth is read. What reaches the bound is listed in the order of positions and the k highest of the list are found
 * exactly. Where the list would be too long (many equal scores, or nearly all keys kept) the whole row is searched instead. */
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

#define THREADS 128
#define WARPS 4
#define BINS 1024
#define SHARE (BINS / THREADS)
#define LIST 2048 /* scores that reach the bound */
#define VISITS 1024 /* groups that hold them */
#define AHEAD 8 /* values a thread has under way */
#define READ 8 /* groups a warp has under way */

struct choice {
    int bin[BINS];
    uint32_t rank[LIST]; /* then the kept ones' weights, then the sums of the block's parts */
    int at[LIST];
    int visit[VISITS];
    int count[2][WARPS];
    uint32_t low[WARPS], high[WARPS];
    int found[3];
    float tmp[WARPS];
};

/* A row and what of it is being looked at. */
struct search {
    const float *score, *most;
    int count, kind;
};
enum { MOST, LISTED, WHOLE };

/* Order of floats as unsigned numbers, both zeros the same; NaN above all, so that it is kept and ends in the output. */
DGC_FN uint32_t rank_of(float v) {
    uint32_t u = __float_as_uint(v + 0.0f);
    return v != v ? 0xffffffffu : u & 0x80000000u ? ~u : u | 0x80000000u;
}
DGC_FN float of_rank(uint32_t r) { return __uint_as_float(r & 0x80000000u ? r & 0x7fffffffu : ~r); }

DGC_FN uint32_t rank_at(const struct search *r, const struct choice *s, int i) {
    if (r->kind == LISTED)
        return s->rank[i];
    return rank_of(r->kind == MOST ? r->most[i] : r->score[(i & ~31) + dgc_top_place(i & 31)]);
}

/* Sum over the warps before this one of a number each, and over all. Every call uses the other row of counters than the one before it, so
 * that one barrier is enough. */
DGC_FN int warps_before(int mine, struct choice *s, int *turn, int *all) {
    int warp = (int)threadIdx.x >> 5, ahead = 0;
    int *count = s->count[*turn];
    *turn ^= 1;
    if (((int)threadIdx.x & 31) == 0)
        count[warp] = mine;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        ahead += w < warp ? count[w] : 0;
        *all += count[w];
    }
    return ahead;
}

/* The same over threads. */
DGC_FN int threads_before(int mine, struct choice *s, int *turn, int *all) {
    int lane = (int)threadIdx.x & 31, sum = mine;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        int v = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? v : 0;
    }
    int warp_sum = __shfl_sync(0xffffffffu, sum, 31);
    return warps_before(warp_sum, s, turn, all) + sum - mine;
}

/* Smallest and largest of every thread's range, given to all. */
DGC_FN void range_of(uint32_t *low, uint32_t *high, struct choice *s) {
    uint32_t lo = *low, hi = *high;
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        uint32_t l = __shfl_xor_sync(0xffffffffu, lo, d), h = __shfl_xor_sync(0xffffffffu, hi, d);
        lo = l < lo ? l : lo;
        hi = h > hi ? h : hi;
    }
    __syncthreads();
    if (((int)threadIdx.x & 31) == 0) {
        s->low[(int)threadIdx.x >> 5] = lo;
        s->high[(int)threadIdx.x >> 5] = hi;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        lo = s->low[w] < lo ? s->low[w] : lo;
        hi = s->high[w] > hi ? s->high[w] : hi;
    }
    *low = lo;
    *high = hi;
}

/* The bin, counted from the top, in which the need-th lies: s->found = the bin, how many lie above it, how many in it. */
DGC_FN void find_bin(int need, struct choice *s, int *turn) {
    int top = BINS - SHARE - SHARE * (int)threadIdx.x, c[SHARE], mine = 0, all;
#pragma unroll
    for (int j = 0; j < SHARE; j += 4) {
        uint4 u = *(const uint4 *)(s->bin + top + SHARE - 4 - j);
        c[j] = (int)u.w;
        c[j + 1] = (int)u.z;
        c[j + 2] = (int)u.y;
        c[j + 3] = (int)u.x;
        mine += c[j] + c[j + 1] + c[j + 2] + c[j + 3];
    }
    int above = threads_before(mine, s, turn, &all);
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        if (above < need && need <= above + c[j]) {
            s->found[0] = top + SHARE - 1 - j;
            s->found[1] = above;
            s->found[2] = c[j];
        }
        above += c[j];
    }
    __syncthreads();
}

/* The k highest are those above the rank that is returned and the first *need of those equal to it; up to `slack` more may be above it. The
 * range that holds the k-th is cut into bins again and again. 0 < k <= r->count, and no rank is 0. */
DGC_FN uint32_t find(const struct search *r, int k, int slack, struct choice *s, int *turn, int *need) {
    int tid = (int)threadIdx.x;
    uint32_t lo = 0xffffffffu, hi = 0;
    for (int i = tid; i < r->count; i += THREADS) {
        uint32_t v = rank_at(r, s, i);
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    range_of(&lo, &hi, s);
    *need = k;
    while (lo < hi) {
        int shift = 0;
        while ((hi - lo) >> shift >= BINS)
            shift++;
        for (int i = tid; i < BINS; i += THREADS)
            s->bin[i] = 0;
        __syncthreads();
        for (int i = tid; i < r->count; i += THREADS) {
            uint32_t v = rank_at(r, s, i);
            if (v >= lo && v <= hi)
                atomicAdd(&s->bin[(v - lo) >> shift], 1);
        }
        __syncthreads();
        find_bin(*need, s, turn);
        lo += (uint32_t)s->found[0] << shift;
        *need -= s->found[1];
        if (s->found[2] - *need <= slack) {
            *need = 0;
            return lo - 1;
        }
        uint32_t span = ((uint32_t)1 << shift) - 1;
        hi = hi - lo > span ? lo + span : hi;
    }
    return lo;
}

/* Groups that reach the bound, in order. Returns how many there are; those beyond the list are not listed. */
DGC_FN int list_groups(const struct search *r, uint32_t bound, struct choice *s, int *turn) {
    int n = 0;
    for (int g0 = 0; g0 < r->count; g0 += 4 * THREADS) {
        int g = g0 + 4 * (int)threadIdx.x, hit[4] = {0, 0, 0, 0}, all;
        if (g < r->count) { /* rows of these are whole vectors */
            uint4 u = *(const uint4 *)(r->most + g);
            uint32_t v[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                hit[j] = g + j < r->count && rank_of(__uint_as_float(v[j])) >= bound;
        }
        int to = n + threads_before(hit[0] + hit[1] + hit[2] + hit[3], s, turn, &all);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (hit[j] && to < VISITS)
                s->visit[to] = g + j;
            to += hit[j];
        }
        n += all;
    }
    __syncthreads();
    return n;
}

/* Scores of the listed groups that reach the bound, in order of position. Returns how many there are, or stops once they exceed the list. */
DGC_FN int list_scores(const struct search *r, int visits, int n, uint32_t bound, struct choice *s, int *turn) {
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, listed = 0;
    int from = dgc_top_place(lane);
    for (int v0 = 0; v0 < visits && listed <= LIST; v0 += WARPS * READ) {
        float v[READ];
        int key[READ], count = 0, all;
        uint32_t hits[READ];
#pragma unroll
        for (int j = 0; j < READ; j++) {
            int i = v0 + warp * READ + j;
            key[j] = i < visits ? s->visit[i] * 32 : n;
            v[j] = i < visits ? r->score[key[j] + from] : 0.0f;
            key[j] += lane;
        }
#pragma unroll
        for (int j = 0; j < READ; j++) {
            hits[j] = __ballot_sync(0xffffffffu, key[j] < n && rank_of(v[j]) >= bound);
            count += __popc(hits[j]);
        }
        int to = listed + warps_before(count, s, turn, &all);
#pragma unroll
        for (int j = 0; j < READ; j++) {
            int mine = to + __popc(hits[j] & (((uint32_t)1 << lane) - 1));
            if ((hits[j] >> lane & 1) && mine < LIST) {
                s->rank[mine] = rank_of(v[j]);
                s->at[mine] = key[j];
            }
            to += __popc(hits[j]);
        }
        listed += all;
    }
    __syncthreads();
    return listed;
}

/* Leaves ranks and positions of the k highest in the list, in order of position. From a list this goes in place: nothing is written behind what
 * was read. */
DGC_FN void keep(const struct search *r, int k, struct choice *s, int *turn) {
    uint32_t least = 0;
    int need = 0, kept = 0, equals = 0;
    if (r->count > k)
        least = find(r, k, 0, s, turn, &need);
    for (int i0 = 0; i0 < r->count; i0 += THREADS) {
        int i = i0 + (int)threadIdx.x, all;
        uint32_t v = i < r->count ? rank_at(r, s, i) : 0;
        int at = r->kind == LISTED && i < r->count ? s->at[i] : i, equal = v == least && i < r->count;
        int before = threads_before((v > least) + (equal << 16), s, turn, &all);
        int equals_before = equals + (before >> 16);
        if (v > least || (equal && equals_before < need)) {
            int to = kept + (before & 0xffff) + (equals_before < need ? equals_before : need);
            s->rank[to] = v;
            s->at[to] = at;
        }
        kept += all & 0xffff;
        equals += all >> 16;
    }
    __syncthreads();
}

/* Ranks to weights. Returns their sum, in an order that k alone decides. */
DGC_FN float weigh(int k, struct choice *s) {
    uint32_t low = 0, top = 0;
    for (int j = (int)threadIdx.x; j < k; j += THREADS)
        top = s->rank[j] > top ? s->rank[j] : top;
    range_of(&low, &top, s);
    float max = of_rank(top), sum = 0.0f;
    for (int j = (int)threadIdx.x; j < k; j += THREADS) {
        float p = expf(of_rank(s->rank[j]) - max);
        s->rank[j] = __float_as_uint(p);
        sum += p;
    }
    return dgc_block_sum(sum, s->tmp, WARPS);
}

/* part[slice][hd] = the kept keys' values, every slice's of every so many. */
DGC_FN int sum_values(const struct dgc_kv *kv, int kvh, int k, struct choice *s) {
    int lanes = kv->hd / 8, slices = THREADS / lanes, slice = (int)threadIdx.x / lanes, d = ((int)threadIdx.x - slice * lanes) * 8;
    const uint16_t *from = (const uint16_t *)kv->v + (int64_t)kvh * kv->hd + d;
    int64_t step = (int64_t)kv->kv_heads * kv->hd;
    float acc[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        acc[i] = 0.0f;
    for (int j0 = slice; slice < slices && j0 < k; j0 += AHEAD * slices) {
        uint4 x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int j = j0 + i * slices;
            x[i].x = x[i].y = x[i].z = x[i].w = 0;
            if (j < k)
                x[i] = *(const uint4 *)(from + s->at[j] * step);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int j = j0 + i * slices;
            float w = j < k ? __uint_as_float(s->rank[j]) : 0.0f;
            uint32_t u[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[2 * e] = fmaf(w, dgc_f16_f32((uint16_t)(u[e] & 0xffff)), acc[2 * e]);
                acc[2 * e + 1] = fmaf(w, dgc_f16_f32((uint16_t)(u[e] >> 16)), acc[2 * e + 1]);
            }
        }
    }
    __syncthreads(); /* the weights have been read */
    float *part = (float *)s->rank + slice * kv->hd + d;
    if (slice < slices)
#pragma unroll
        for (int i = 0; i < 8; i++)
            part[i] = acc[i];
    __syncthreads();
    return slices;
}

DGC_KERNEL(top_values, top_values, 128) {
    __shared__ __align__(16) struct choice s;
    int64_t row = blockIdx.x / a.heads, lo, hi;
    int h = (int)((int64_t)blockIdx.x - row * a.heads), group = a.heads / a.kv.kv_heads, kvh = h / group, turn = 0;
    dgc_visible(a.prm, a.causal, a.kv.window, a.row0 + (int)row, &lo, &hi);
    int n = (int)hi, k = a.topk > 0 ? a.topk : n / 128 < 64 ? 64 : n / 128 > 512 ? 512 : n / 128;
    k = k < n ? k : n;
    int64_t at = (((int64_t)kvh * a.n + row) * group + h - kvh * group) * a.pitch;
    struct search r = {a.score + at, a.most + (at >> 5), (n + 31) / 32, MOST};
    uint32_t bound = 0;
    if (r.count > k) {
        int need;
        bound = find(&r, k, k / 8 + 16, &s, &turn, &need);
        bound += need == 0; /* or the groups equal to it all count */
    }
    int visits = list_groups(&r, bound, &s, &turn), listed = LIST + 1;
    if (visits <= VISITS)
        listed = list_scores(&r, visits, n, bound, &s, &turn);
    r.kind = listed <= LIST ? LISTED : WHOLE;
    r.count = listed <= LIST ? listed : n;
    keep(&r, k, &s, &turn);
    float sum = weigh(k, &s);
    int slices = sum_values(&a.kv, kvh, k, &s);
    for (int c = (int)threadIdx.x; c < a.kv.hd; c += THREADS) {
        float v = 0.0f;
        for (int i = 0; i < slices; i++)
            v += __uint_as_float(s.rank[i * a.kv.hd + c]);
        dgc_store(a.y.p, a.y.dtype, row * a.y.ld + (int64_t)h * a.kv.hd + c, v / sum);
    }
}
