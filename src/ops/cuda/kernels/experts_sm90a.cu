/* Routed experts on Hopper, q4_block or nvfp4 weights decoded in registers on the way into wgmma.
 *
 * The operands are swapped: 64 weight rows are wgmma's A operand, which may live in registers, so that a weight byte goes from shared
 * memory through a few integer and bf16 fused multiply-adds straight into the tensor core; the tokens of one expert are the N operand,
 * in shared memory, 8 to 48 of them. At 16 tokens an expert the weight bytes are the bound (docs/gpu-notes-hopper.md).
 *
 * Once, after a stack's upload: moe_repack (experts_repack_sm90a.cu). Order of launches for one layer:
 *   moe_plan    counting sort of the (row, rank) pairs by expert, list of entries (tokens of one expert), permuted activations
 *   moe_up      h[slot] = bf16(gelu_tanh(gate x) * (up x))
 *   moe_down    d[pair] = down h[slot], f32
 *   moe_sum     y[row] = sum over ranks, strongest first, of weight * d[pair]
 * A slot is a pair's place in expert order. Every sum runs along K in k16 steps in one accumulator: a pair's result does not depend on
 * the pairs around it, nor on which block computes it.
 * Each of the four may be launched with programmatic stream serialization, but the kernel after sum only if it waits itself. down reads the
 * plan's entries and its own weights before it waits for up, which is safe since up lets it start only once the plan is complete: down's
 * predecessor in the stream must be up. */
#include "ops/cuda/kernels/experts_sm90.cuh"

/* Bytes [o, o + bytes) of the tile at t. */
DGC_FN void dg_q4_tile_load(unsigned dst, const uint4 *t, unsigned second, int half, int o, int bytes, unsigned bar, uint64_t policy) {
    int n0 = max(min(half - o, bytes), 0);
    if (n0 > 0)
        dg_bulk_load(dst, (const char *)t + o, n0, bar, policy);
    if (n0 < bytes)
        dg_bulk_load(dst + n0, (const char *)(t + second) + (o + n0 - half), bytes - n0, bar, policy);
}

/* dg_arrive_for_warp by a predicate in place of a branch, so that the lanes need not meet again before wgmma. */
DGC_FN void dg_warp_arrive(unsigned bar) {
    __syncwarp();
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(bar), "r"(threadIdx.x & 31)
                 : "memory");
}
/* acc += the group; b: descriptor of the tokens' 64 columns. */
template <int R> DGC_FN void dg_q4_issue(float (&acc)[R], const unsigned (&a)[4][4], uint64_t b) {
    dg_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        dg_wgmma_rs(acc, a[s], b + 2 * s);
    dg_wgmma_commit();
}
/* acc += G groups at slot, the next one decoded while the tensor cores work on the last; nothing is on its way on return. b: descriptor of the
 * tokens' first group, STEP bytes from one group's to the next's. release: arrived at once the weights have been read; PART: 0 is not yet. */
template <class W, int G, int STEP, bool PART = false, int R>
DGC_FN void dg_q4_slot(float (&acc)[R], const unsigned char *slot, struct dg_lane l, uint64_t b, unsigned release) {
    typename W::raw v;
    unsigned a[2][4][4];
    W::load(slot, l, v);
#pragma unroll
    for (int g = 0; g < G; g++) {
        W::template decode<0>(v, l, a[g & 1]);
        W::template decode<1>(v, l, a[g & 1] + 2);
        if (g + 1 < G)
            W::load(slot + (g + 1) * W::GROUP, l, v);
        dg_q4_issue(acc, a[g & 1], b + g * (STEP >> 4));
        if (g + 1 == G && (!PART || release))
            dg_warp_arrive(release);
        if (g + 1 < G)
            dg_wgmma_wait<1>();
    }
    dg_wgmma_wait<0>();
}

/* The same for n groups, in halves of one, which takes half as many registers for weights. */
template <class W, int STEP, int R>
DGC_FN void dg_q4_slot_wide(float (&acc)[R], const unsigned char *slot, struct dg_lane l, uint64_t b, unsigned release, int n) {
    typename W::raw v;
    unsigned a[2][2][4];
    W::load(slot, l, v);
#pragma unroll 1
    for (int g = 0; g < n; g++, b += STEP >> 4) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h == 0)
                W::template decode<0>(v, l, a[0]);
            else
                W::template decode<1>(v, l, a[1]);
            if (h == 1 && g + 1 < n)
                W::load(slot += W::GROUP, l, v);
            dg_wgmma_fence();
            dg_wgmma_rs(acc, a[h][0], b + 4 * h);
            dg_wgmma_rs(acc, a[h][1], b + 4 * h + 2);
            dg_wgmma_commit();
            dg_wgmma_wait<1>();
        }
    }
    dg_warp_arrive(release);
    dg_wgmma_wait<0>();
}

struct st_arg {
    const uint8_t *w;
    const uint16_t *x;
    int k, rows, topk;
    const struct dgc_moe_entry *entries;
    const int *n_entries, *slot_pair;
    void *out;
    const float *global; /* of a format that is SCALED: a factor of each expert's weights */
    float4 *part;        /* sums of a first pass, see st_wide */
};
template <class W> DGC_FN float dg_back(const struct st_arg &a, int expert) { return W::SCALED ? a.global[expert] * Q4_BACK : Q4_BACK; }

/* A unit is a tile of 64 rows, one warpgroup's work. All of K of an entry's tokens stays in shared memory, in chunks with barriers of their
 * own, and each warpgroup streams its units past it through a ring of its own, SLOTS slots of G groups, that one thread of a producer warp
 * fills. Entries of more than WHOLE tokens are wide: with PASSES = 2 their tokens fit by halves of K only, so a block's units of such an entry
 * are walked twice, and the sums of the first pass wait in memory, each thread's for itself. */
template <class W_, int SLOTS_, int PASSES_, bool GLU_> struct st_cfg {
    using W = W_;
    static constexpr int SLOTS = SLOTS_, PASSES = PASSES_, G = 4;
    static constexpr bool GLU = GLU_;
    static constexpr int WG = 4, PW = 2, TW = 2; /* warpgroups; warps that load weights, warps that load tokens */
    static constexpr int SLOT = G * W::GROUP, RING = SLOTS * SLOT; /* bytes */
    /* Bytes of a group of the tokens; groups of a chunk. A chunk has one place, whatever the entry's width. */
    static constexpr int TOKENS_WIDE = DGC_MOE_TOKENS * 128, TOKENS = TOKENS_WIDE / PASSES, CHUNK = G, CHUNK_WIDE = CHUNK / PASSES;
    static_assert(DGC_MOE_WHOLE * 128 <= TOKENS && DGC_MOE_WHOLE == 24 && DGC_MOE_TOKENS == 48 && G == 4, "widths in st_consume, st_chunks");
};
/* Unsigned divisions, which are shifts here and shorter there. */
DGC_FN int st_groups(const struct st_arg &a) { return (int)((unsigned)a.k / 64); }
DGC_FN int st_tiles(const struct st_arg &a) { return (int)((unsigned)a.rows / 64); }
DGC_FN int st_chunks(int groups) { return (int)((unsigned)(groups + 3) / 4); }
/* The entry that unit u belongs to. */
DGC_FN int st_entry(int u, int tiles) { return (int)((unsigned)u / (unsigned)tiles); }
/* Through the L2: down reads it before it waits for the launch before, and no line of an earlier layer's may serve it. */
DGC_FN struct dgc_moe_entry st_entry_of(const struct st_arg &a, int i) {
    struct dgc_moe_entry e;
    asm volatile("ld.global.cg.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(e.expert), "=r"(e.slot), "=r"(e.n), "=r"(e.cost) : "l"(a.entries + i));
    return e;
}
DGC_FN bool st_is_wide(int tokens) { return tokens > DGC_MOE_WHOLE; }
struct st_bars {
    unsigned a_full, a_empty, b_full, b_empty; /* a: WG rings of SLOTS; b: chunks */
    unsigned pair;                             /* down: the entry's pairs, which come with the last chunk */
};
/* The part of K that a pass walks, in groups. */
struct st_range {
    int from, n;
};
template <class C> DGC_FN int st_passes(int groups, bool wide) { return wide && groups > 1 ? C::PASSES : 1; }
template <class C> DGC_FN struct st_range st_pass(int groups, bool wide, int pass) {
    struct st_range r = {0, groups};
    if (st_passes<C>(groups, wide) == 2) {
        r.from = pass ? (groups + 1) / 2 : 0;
        r.n = pass ? groups / 2 : (groups + 1) / 2;
    }
    return r;
}

/* What a ring is filled with: unit u from group g of a pass, which ends at stop; the units of its entry begin at first and end at last. */
struct st_feed {
    int u, first, last, pass, g, stop, slot;
    unsigned phase;
    bool wide;
    unsigned tile; /* 16 bytes each */
};
template <class C> DGC_FN void st_feed_unit(const struct st_arg &a, struct st_feed &f, int tiles, int groups) {
    struct dgc_moe_entry e = st_entry_of(a, st_entry(f.u, tiles));
    f.wide = st_is_wide(e.n);
    f.tile = dg_q4_tile(e.expert, a.rows, f.u % tiles, groups * C::W::ROW, C::GLU);
    struct st_range r = st_pass<C>(groups, f.wide, f.pass);
    f.g = r.from;
    f.stop = r.from + r.n;
}
/* Fills ring r's slot, which is free, and goes on to the next. */
template <class C>
DGC_FN void st_feed_slot(const struct st_arg &a, struct st_feed &f, int r, int end, int tiles, int groups, unsigned ring, struct st_bars bar,
                         unsigned second, uint64_t policy) {
    int row_bytes = groups * C::W::ROW, bytes = min(C::G, f.stop - f.g) * C::W::GROUP;
    unsigned at = r * C::SLOTS + f.slot, full = bar.a_full + at * 8;
    dg_bar_expect(full, bytes);
    dg_q4_tile_load(ring + at * C::SLOT, (const uint4 *)a.w + f.tile, second, 32 * row_bytes, f.g * C::W::GROUP, bytes, full, policy);
    if (++f.slot == C::SLOTS) {
        f.slot = 0;
        f.phase ^= 1;
    }
    f.g += C::G;
    if (f.g < f.stop)
        return;
    f.u += C::WG;
    if (f.u >= f.last) {
        if (f.pass + 1 < st_passes<C>(groups, f.wide)) {
            f.pass++;
            f.u = f.first;
        } else {
            f.pass = 0;
            f.first = f.u;
            f.last = min(end, (st_entry(f.u, tiles) + 1) * tiles);
        }
    }
    if (f.u < end)
        st_feed_unit<C>(a, f, tiles, groups);
}
/* One thread: fills the rings of warpgroups first and first + PW, whichever has room: while one waits for tokens, which it may get only once
 * the other has walked on, that one must not wait. */
template <class C> DGC_FN void st_weights(const struct st_arg &a, int begin, int end, int first, unsigned ring, struct st_bars bar) {
    static_assert(C::WG == 2 * C::PW, "");
    uint64_t policy = dg_policy_first();
    int groups = st_groups(a), tiles = st_tiles(a);
    unsigned second = dg_q4_second(a.rows, groups * C::W::ROW, C::GLU);
    struct st_feed f[2];
#pragma unroll
    for (int q = 0; q < 2; q++) {
        f[q].u = f[q].first = begin + first + q * C::PW;
        f[q].last = min(end, (st_entry(f[q].u, tiles) + 1) * tiles);
        f[q].pass = f[q].slot = 0;
        f[q].phase = 1;
        if (f[q].u < end)
            st_feed_unit<C>(a, f[q], tiles, groups);
    }
    for (bool other = false; f[0].u < end || f[1].u < end; other = !other) {
        unsigned e0 = bar.a_empty + (first * C::SLOTS + f[0].slot) * 8, e1 = bar.a_empty + ((first + C::PW) * C::SLOTS + f[1].slot) * 8;
        if (f[0].u >= end || f[1].u >= end) {
            other = f[0].u >= end;
            dg_bar_wait(other ? e1 : e0, other ? f[1].phase : f[0].phase);
        } else {
            while (!dg_bar_try(other ? e1 : e0, other ? f[1].phase : f[0].phase, 1000))
                other = !other;
        }
        if (other)
            st_feed_slot<C>(a, f[1], first + C::PW, end, tiles, groups, ring, bar, second, policy);
        else
            st_feed_slot<C>(a, f[0], first, end, tiles, groups, ring, bar, second, policy);
    }
}

/* TW warps: row n of an entry belongs to warp n % TW. Rows that the products read behind the last token are zero, which takes the least power. */
template <class C> DGC_FN void st_tokens(const struct st_arg &a, int begin, int end, unsigned b, struct st_bars bar, int warp) {
    static_assert(C::TW * 4 == 8, "rows by eight, the period of the swizzle");
    int lane = threadIdx.x & 31, tiles = st_tiles(a), groups = st_groups(a), chunks = st_chunks(groups);
    unsigned phase = 0, to[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        to[j] = b + dg_sw128(j * C::TW + warp, lane & 7);
    for (int u = begin; u < end; u = (st_entry(u, tiles) + 1) * tiles) {
        struct dgc_moe_entry e = st_entry_of(a, st_entry(u, tiles));
        int n = lane * C::TW + warp, src = n < e.n ? C::GLU ? a.slot_pair[e.slot + n] / a.topk : e.slot + n : 0;
        unsigned row = (unsigned)src * (a.k / 8); /* in 16 bytes */
        bool wide = st_is_wide(e.n);
        int width = (e.n + 7) & ~7, each = wide ? C::CHUNK_WIDE : C::CHUNK, bytes = wide ? C::TOKENS_WIDE : C::TOKENS;
        for (int pass = 0; pass < st_passes<C>(groups, wide); pass++) {
            struct st_range k = st_pass<C>(groups, wide, pass);
            for (int c = 0; c < chunks; c++) {
                dg_bar_wait(bar.b_empty + c * 8, phase ^ 1);
                int group = c * each + (lane >> 3);
                unsigned at = group * bytes;
                bool on = lane >> 3 < each && group < k.n;
                const uint4 *x = (const uint4 *)a.x + (k.from + group) * 8 + (lane & 7);
                asm("" : "+l"(x)); /* kept as one address, to which a row is one multiply-add */
#pragma unroll 1
                for (int i = 0, rest = e.n - warp; i < width / C::TW; i += 4, rest -= 8, at += 1024)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        unsigned r = __shfl_sync(~0u, row, i + j);
                        if (on)
                            dg_cp_async16_if(at + to[j], x + r, rest > j * C::TW);
                    }
                if (!C::GLU && c + 1 == chunks && n < e.n)
                    dg_cp_async4(bar.pair + n * 4, a.slot_pair + e.slot + n);
                dg_cp_async_arrive(bar.b_full + c * 8);
            }
            phase ^= 1;
        }
    }
}

/* NT: tokens of the tile, e.n at least. */
template <class C, int NT>
DGC_FN void st_store(const struct st_arg &a, const float (&acc)[NT / 2], const struct dgc_moe_entry &e, int tile, unsigned pair) {
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, row = lane >> 2, q = lane & 3;
    int f = tile * 32 + warp * 8 + row, moe = a.rows / 2, mine = e.n - 2 * q; /* of tokens 2 q, 2 q + 1, 2 q + 8, ... */
    int64_t h = C::GLU ? ((int64_t)(e.slot + 2 * q) * moe + (f & ~63) + dg_perm_inv(f & 63)) * 2 : (tile * 64 + warp * 16 + row) * 4;
    uint64_t to = __cvta_generic_to_global(a.out) + h;
    asm("" : "+l"(to)); /* kept as one address, to which a token is one multiply-add */
    float back = dg_back<typename C::W>(a, e.expert);
#pragma unroll
    for (int i = 0; i < NT / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + j;
            float v0 = acc[4 * i + j] * back, v1 = acc[4 * i + 2 + j] * back;
            if (C::GLU) {
                if (n < mine)
                    *(uint16_t *)__cvta_global_to_generic(to + (int64_t)n * (2 * moe)) = dgc_f32_bf16(dg_gelu(v0) * v1);
            } else {
                int p = dg_lds(pair + (2 * q + n) * 4);
                if (n < mine) {
                    float *o = (float *)__cvta_global_to_generic(to + (int64_t)p * (4 * a.rows));
                    o[0] = v0;
                    o[8] = v1;
                }
            }
        }
}

/* A warpgroup's place: its ring with slot and phase (full: the barriers of st_bars.a_full), the tokens (b) with theirs. */
struct st_at {
    const unsigned char *ring;
    unsigned full, b, b_full, b_empty, b_phase, phase;
    int slot;
};
template <class C> DGC_FN void st_next_slot(struct st_at &at) {
    if (++at.slot == C::SLOTS) {
        at.slot = 0;
        at.phase ^= 1;
    }
}
template <class C, int NT>
DGC_FN void st_unit(const struct st_arg &a, struct st_at &at, struct dg_lane l, bool first, bool last, const struct dgc_moe_entry &e, int tile,
                   unsigned pair) {
    int groups = st_groups(a), whole = groups / C::G * C::G, frees = last ? groups - C::G : 0;
    float acc[NT / 2];
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        acc[i] = 0;
    unsigned bd = dg_desc_sw128(at.b);
    __syncwarp(); /* stores of the unit before leave lanes apart */
    for (int g = 0; g < groups; g += C::G, bd += C::G * (C::TOKENS >> 4)) {
        if (first) {
            dg_bar_wait(at.b_full + g / 4 * 8, at.b_phase);
            dg_fence_async();
        }
        unsigned full = at.full + at.slot * 8, release = full + C::WG * C::SLOTS * 8; /* a_empty is behind a_full */
        dg_bar_wait(full, at.phase);
        const unsigned char *s = at.ring + at.slot * C::SLOT;
        if (g < whole) {
            dg_q4_slot<typename C::W, C::G, C::TOKENS>(acc, s, l, dg_desc64(bd), release);
        } else { /* two and one, not code of each length: registers */
            int left = groups - g, two = left & 2;
            uint64_t bt = dg_desc64_sw128(at.b + g * C::TOKENS); /* not bd: sums shared with whole slots' would be kept and moved */
            if (two)
                dg_q4_slot<typename C::W, 2, C::TOKENS, true>(acc, s, l, bt, left == 2 ? release : 0);
            if (left & 1)
                dg_q4_slot<typename C::W, 1, C::TOKENS, true>(acc, s + two * C::W::GROUP, l, bt + two * (C::TOKENS >> 4), release);
        }
        if (g < frees)
            dg_warp_arrive(at.b_empty + g / 4 * 8);
        st_next_slot<C>(at);
    }
    dg_hold(acc);
    st_store<C, NT>(a, acc, e, tile, pair);
    if (last)
        dg_warp_arrive(at.b_empty + (groups - 1) / 4 * 8);
}
/* A pass of a wide entry's unit. round: the place of its sums. */
template <class C, int NT>
DGC_FN void st_wide(const struct st_arg &a, struct st_at &at, struct dg_lane l, bool first, bool last, const struct dgc_moe_entry &e, int tile,
                   unsigned pair, int pass, int round) {
    int all = st_groups(a), chunks = st_chunks(all);
    struct st_range k = st_pass<C>(all, true, pass);
    float acc[NT / 2];
    float4 *part = a.part + (long long)round * (DGC_MOE_TOKENS / 8 * 128 * C::WG) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < NT / 8; i++) {
        float4 v = {0, 0, 0, 0};
        if (pass)
            v = part[i * (128 * C::WG)];
        acc[4 * i] = v.x;
        acc[4 * i + 1] = v.y;
        acc[4 * i + 2] = v.z;
        acc[4 * i + 3] = v.w;
    }
    __syncwarp();
    for (int g = 0; g < k.n; g += C::G) {
        int n = min(C::G, k.n - g), chunk = g / C::CHUNK_WIDE;
        if (first) {
#pragma unroll
            for (int i = 0; i < C::G / C::CHUNK_WIDE; i++)
                if (i * C::CHUNK_WIDE < n)
                    dg_bar_wait(at.b_full + (chunk + i) * 8, at.b_phase);
            dg_fence_async();
        }
        unsigned full = at.full + at.slot * 8;
        dg_bar_wait(full, at.phase);
        dg_q4_slot_wide<typename C::W, C::TOKENS_WIDE>(acc, at.ring + at.slot * C::SLOT, l, dg_desc64_sw128(at.b + g * C::TOKENS_WIDE),
                                                     full + C::WG * C::SLOTS * 8, n);
        if (last)
#pragma unroll
            for (int i = 0; i < C::G / C::CHUNK_WIDE; i++)
                if (i * C::CHUNK_WIDE < n && chunk + i + 1 < chunks)
                    dg_warp_arrive(at.b_empty + (chunk + i) * 8);
        st_next_slot<C>(at);
    }
    dg_hold(acc);
    if (pass + 1 < st_passes<C>(all, true))
#pragma unroll
        for (int i = 0; i < NT / 8; i++)
            part[i * (128 * C::WG)] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
    else
        st_store<C, NT>(a, acc, e, tile, pair);
    if (first && (chunks - 1) * C::CHUNK_WIDE >= k.n) /* a chunk without groups */
        dg_bar_wait(at.b_full + (chunks - 1) * 8, at.b_phase);
    if (last)
        dg_warp_arrive(at.b_empty + (chunks - 1) * 8);
}

template <class C>
DGC_FN void st_consume(const struct st_arg &a, int begin, int end, const unsigned char *ring, unsigned b, struct st_bars bar) {
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), tiles = st_tiles(a), groups = st_groups(a), chunks = st_chunks(groups);
    struct dg_lane l = dg_lane_init<typename C::W>();
    struct st_at at = {ring + wg * C::RING, bar.a_full + wg * C::SLOTS * 8, b, bar.b_full, bar.b_empty, 0, 0, 0};
    int next = begin + wg; /* this warpgroup's next unit */
    for (int from = begin; from < end;) {
        struct dgc_moe_entry e = st_entry_of(a, st_entry(from, tiles));
        int stop = min(end, (st_entry(from, tiles) + 1) * tiles), u = next;
        from = stop;
        for (int pass = 0, passes = st_passes<C>(groups, st_is_wide(e.n)); pass < passes; pass++, at.b_phase ^= 1) {
            if (next >= stop) /* none of this entry's units is ours; waiting first keeps the arrivals of two entries apart */
                for (int c = 0; c < chunks; c++) {
                    dg_bar_wait(at.b_full + c * 8, at.b_phase);
                    dg_warp_arrive(at.b_empty + c * 8);
                }
            int round = blockIdx.x * ((tiles + C::WG - 1) / C::WG);
            for (u = next; u < stop; u += C::WG, round++) {
                bool first = u == next, last = u + C::WG >= stop;
                if (e.n <= 8)
                    st_unit<C, 8>(a, at, l, first, last, e, u % tiles, bar.pair);
                else if (e.n <= 16)
                    st_unit<C, 16>(a, at, l, first, last, e, u % tiles, bar.pair);
                else if (e.n <= 24)
                    st_unit<C, 24>(a, at, l, first, last, e, u % tiles, bar.pair);
                else if (e.n <= 32)
                    st_wide<C, 32>(a, at, l, first, last, e, u % tiles, bar.pair, pass, round);
                else if (e.n <= 40)
                    st_wide<C, 40>(a, at, l, first, last, e, u % tiles, bar.pair, pass, round);
                else
                    st_wide<C, 48>(a, at, l, first, last, e, u % tiles, bar.pair, pass, round);
            }
        }
        next = u;
    }
}

/* The units of this block, share[0] to share[1]: an equal part of all entries' costs. For all threads, who meet behind it. */
template <class C> DGC_FN void st_share(const struct st_arg &a, unsigned tiles, int *share) {
    int n, costs;
    asm volatile("ld.global.cg.v2.s32 {%0, %1}, [%2];" : "=r"(n), "=r"(costs) : "l"(a.n_entries));
    uint64_t all = (uint64_t)costs * tiles;
    unsigned at[2] = {(unsigned)(all * blockIdx.x / gridDim.x), (unsigned)(all * (blockIdx.x + 1) / gridDim.x)};
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 128 * (C::WG + 1)) {
        unsigned from = st_entry_of(a, i).cost, each = (i + 1 < n ? st_entry_of(a, i + 1).cost : costs) - from;
#pragma unroll
        for (int s = 0; s < 2; s++)
            if (at[s] - from * tiles < each * tiles) /* unsigned: not below from either */
                share[s] = i * tiles + (at[s] - from * tiles) / each;
    }
    if (threadIdx.x == 0 && blockIdx.x + 1 == gridDim.x)
        share[1] = n * tiles;
    __syncthreads();
}

template <class C> DGC_FN void st_body(const struct st_arg &a) {
    unsigned char *smem = dg_dyn;
    int groups = st_groups(a), chunks = st_chunks(groups);
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5, 0) - 4 * C::WG;
    unsigned char *ring = smem + (C::PASSES == 1 ? groups : (groups + 1) / 2) * C::TOKENS_WIDE;
    struct st_bars bar;
    bar.a_full = dg_smem(ring + C::WG * C::RING);
    bar.a_empty = bar.a_full + C::WG * C::SLOTS * 8;
    bar.b_full = bar.a_empty + C::WG * C::SLOTS * 8;
    bar.b_empty = bar.b_full + chunks * 8;
    bar.pair = bar.b_empty + chunks * 8;
    unsigned share = bar.pair + DGC_MOE_TOKENS * 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::WG * C::SLOTS; i++) {
            dg_bar_init(bar.a_full + i * 8, 1);
            dg_bar_init(bar.a_empty + i * 8, 4);
        }
        for (int i = 0; i < chunks; i++) {
            dg_bar_init(bar.b_full + i * 8, C::TW * 32);
            dg_bar_init(bar.b_empty + i * 8, C::WG * 4);
        }
        dg_bar_init_fence();
    }
    if (C::GLU) /* down reads entries before: the plan is complete once up has come so far */
        dg_grid_wait();
    st_share<C>(a, st_tiles(a), (int *)(smem + (share - dg_smem(smem))));
    dg_grid_launch();
    if (wg >= C::WG) {
        dg_regs_less<64>();
        if (warp < C::PW) {
            if ((threadIdx.x & 31) == 0)
                st_weights<C>(a, dg_lds(share), dg_lds(share + 4), warp, dg_smem(ring), bar);
            __syncwarp();
        } else {
            if (!C::GLU)
                dg_grid_wait();
            st_tokens<C>(a, dg_lds(share), dg_lds(share + 4), dg_smem(smem), bar, warp - C::PW);
        }
    } else {
        dg_regs_more<104>();
        if (!C::GLU)
            dg_grid_wait();
        st_consume<C>(a, dg_lds(share), dg_lds(share + 4), ring, dg_smem(smem), bar);
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

#define UP_ARGS {a.w, a.x, a.k, 2 * a.rows, a.topk, a.entries, a.n_entries, a.slot_pair, a.out, a.global, (float4 *)a.part}
#define DOWN_ARGS {a.w, a.x, a.k, a.rows, 0, a.entries, a.n_entries, a.slot_pair, a.out, a.global, (float4 *)a.part}

/* h[slot][moe] = bf16(gelu_tanh(gate x) * (up x)) for every pair, permuted in 64-groups. */
DGC_KERNEL_ONE(moe_up, moe, 640) { st_body<st_cfg<dg_q4, 2, 2, true>>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_nv, moe, 640) { st_body<st_cfg<dg_nv, 2, 2, true>>(UP_ARGS); }

/* d[pair][hidden] = down h[slot of the pair], f32. */
DGC_KERNEL_ONE(moe_down, moe, 640) { st_body<st_cfg<dg_q4, 4, 1, false>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_nv, moe, 640) { st_body<st_cfg<dg_nv, 4, 1, false>>(DOWN_ARGS); }
