/* The experts' products while experts have many tokens: an entry is at most DGC_MOE_MANY of them, so that decoding serves as many columns.
 *
 * Three warpgroups of 64 weight rows each share a block's tokens and keep the tensor cores busy in turn. Tiles are as wide as the entry
 * needs (dg_q4_issue), and blocks share the entries' weight rather than their number. */
#include "ops/cuda/kernels/experts_sm90.cuh"

/* ---- gate and up ---- */
/* The warpgroups, a tile of 32 features each, walk in step through K: the tokens come 64 columns at a time into a ring of their own, the
 * weights G groups at a time into another. */
template <class W_> struct mu_cfg {
    using W = W_;
    static constexpr int WG = 3, NMAX = DGC_MOE_MANY, G = 4, SLOTS = 3, STAGES = 8, TW = 2; /* TW: warps that load tokens */
    static constexpr int BLOCK = G * W::GROUP, SLOT = WG * BLOCK, TOKENS = NMAX * 128;       /* bytes */
    static constexpr int BARS = STAGES * TOKENS + SLOTS * SLOT, BYTES = BARS + 16 * (STAGES + SLOTS);
};
static_assert(mu_cfg<dg_q4>::BYTES == DGC_MOE_UP_MANY && mu_cfg<dg_nv>::BYTES <= DGC_MOE_UP_MANY, "kernels.h");

/* A ring as one of its users sees it. */
template <int N> struct mu_ring {
    unsigned full, empty;
    int at = 0;
    unsigned phase = 0;
    __device__ __forceinline__ void next() {
        if (++at == N) {
            at = 0;
            phase ^= 1;
        }
    }
    __device__ __forceinline__ void wait_full() const { dg_bar_wait(full + at * 8, phase); }
    __device__ __forceinline__ void wait_empty() const { dg_bar_wait(empty + at * 8, phase ^ 1); }
};

/* Blocks of 32 features of one entry, as many as there are warpgroups at most. */
struct mu_tile {
    struct dgc_moe_entry e;
    int block, n_blocks;
};
template <class C> DGC_FN struct mu_tile mu_tile_at(const struct st_arg &a, int u, int end) {
    int blocks = a.rows / 64;
    struct mu_tile t = {a.entries[u / blocks], u % blocks, 0};
    t.n_blocks = min(min(C::WG, blocks - t.block), end - u);
    return t;
}

template <class C> DGC_FN void mu_weights(const struct st_arg &a, int begin, int end, unsigned char *slots, struct mu_ring<C::SLOTS> ring) {
    uint64_t policy = dg_policy_first();
    int groups = a.k / 64, row_bytes = groups * C::W::ROW, half = 32 * row_bytes;
    unsigned second = dg_q4_second(a.rows, row_bytes, true);
    for (int u = begin; u < end;) {
        struct mu_tile t = mu_tile_at<C>(a, u, end);
        const uint4 *tile = (const uint4 *)a.w + dg_q4_tile(t.e.expert, a.rows, t.block, row_bytes, true);
        u += t.n_blocks;
        for (int g = 0; g < groups; g += C::G) {
            unsigned bytes = min(C::G, groups - g) * C::W::GROUP, full = ring.full + ring.at * 8;
            ring.wait_empty();
            dg_bar_expect(full, t.n_blocks * bytes);
            for (int i = 0; i < t.n_blocks; i++)
                dg_q4_tile_load(dg_smem(slots) + ring.at * C::SLOT + i * C::BLOCK, tile + i * (half / 16), second, half, g * C::W::GROUP, bytes,
                                full, policy);
            ring.next();
        }
    }
}

/* Each of TW warps has four of every 4 TW tokens, eight lanes a token. */
template <class C>
DGC_FN void mu_tokens(const struct st_arg &a, int begin, int end, unsigned char *tokens, struct mu_ring<C::STAGES> ring, int warp) {
    constexpr int EACH = C::NMAX / (4 * C::TW);
    int lane = threadIdx.x & 31, chunk = lane & 7, first = 4 * warp + (lane >> 3), groups = a.k / 64;
    const uint4 *x = (const uint4 *)a.x + chunk;
    for (int u = begin; u < end;) {
        struct mu_tile t = mu_tile_at<C>(a, u, end);
        unsigned row[EACH]; /* where it begins, in 16-byte units */
        u += t.n_blocks;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int n = first + 4 * C::TW * i;
            row[i] = n < t.e.n ? (unsigned)(a.slot_pair[t.e.slot + n] / a.topk) * (unsigned)(a.k / 8) : 0;
        }
        for (int g = 0; g < groups; g++) {
            ring.wait_empty();
            unsigned to = dg_smem(tokens) + ring.at * C::TOKENS;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (first + 4 * C::TW * i < t.e.n)
                    dg_cp_async16(to + dg_sw128(first + 4 * C::TW * i, chunk), x + row[i] + g * 8);
            dg_cp_async_arrive(ring.full + ring.at * 8);
            ring.next();
        }
    }
}

/* acc += N groups at w (2 or 1, the last of which may still be on its way on return). On entry one other may be, reading f[1]. A stage of
 * tokens is given back once the products behind it have begun. */
template <class C, int N>
DGC_FN void mu_groups(int columns, float (&acc)[64], unsigned (&f)[2][4][4], const unsigned char *w, struct dg_lane l, unsigned tokens,
                      struct mu_ring<C::STAGES> &ring, unsigned &before) {
    typename C::W::raw v;
    C::W::load(w, l, v);
#pragma unroll
    for (int g = 0; g < N; g++) {
        C::W::decode(v, l, f[g]);
        if (g + 1 < N)
            C::W::load(w + C::W::GROUP, l, v);
        ring.wait_full();
        dg_fence_async();
        dg_q4_issue(columns, acc, f[g], dg_desc_sw128(tokens + ring.at * C::TOKENS));
        dg_wgmma_wait<1>();
        if (before)
            dg_warp_arrive(before);
        before = ring.empty + ring.at * 8;
        ring.next();
    }
}

template <class C>
DGC_FN void mu_product(int columns, float (&acc)[64], int groups, struct dg_lane l, const unsigned char *slots, unsigned tokens,
                       struct mu_ring<C::SLOTS> &weights, struct mu_ring<C::STAGES> &ring) {
    unsigned fragments[2][4][4], before = 0;
    for (int g = 0; g + 2 <= groups; g += 2) {
        if (g % C::G == 0)
            weights.wait_full();
        mu_groups<C, 2>(columns, acc, fragments, slots + weights.at * C::SLOT + g % C::G * C::W::GROUP, l, tokens, ring, before);
        if (g % C::G + 2 == C::G || g + 2 == groups) {
            dg_warp_arrive(weights.empty + weights.at * 8);
            weights.next();
        }
    }
    dg_wgmma_wait<0>();
    if (groups & 1) {
        if (groups % C::G == 1)
            weights.wait_full();
        mu_groups<C, 1>(columns, acc, fragments, slots + weights.at * C::SLOT + (groups - 1) % C::G * C::W::GROUP, l, tokens, ring, before);
        dg_wgmma_wait<0>();
        dg_warp_arrive(weights.empty + weights.at * 8);
        weights.next();
    }
    dg_warp_arrive(before);
}

template <class C>
DGC_FN void mu_unit(const struct st_arg &a, const struct mu_tile &t, int wg, struct dg_lane l, const unsigned char *slots, unsigned tokens,
                    struct mu_ring<C::SLOTS> &weights, struct mu_ring<C::STAGES> &ring) {
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, q = lane & 3, moe = a.rows / 2;
    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    mu_product<C>(t.e.n, acc, a.k / 64, l, slots + wg * C::BLOCK, tokens, weights, ring);
    int f = (t.block + wg) * 32 + warp * 8 + (lane >> 2);
    uint16_t *h = (uint16_t *)a.out + (long long)t.e.slot * moe + (f & ~63) + dg_perm_inv(f & 63);
    float back = dg_back<typename C::W>(a, t.e.expert);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (8 * i >= t.e.n)
            break;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = 8 * i + 2 * q + j;
            if (n < t.e.n)
                h[(long long)n * moe] = dgc_f32_bf16(dg_gelu(acc[4 * i + j] * back) * (acc[4 * i + 2 + j] * back));
        }
    }
}

template <class C>
DGC_FN void mu_consume(const struct st_arg &a, int begin, int end, int wg, const unsigned char *slots, unsigned tokens,
                       struct mu_ring<C::SLOTS> weights, struct mu_ring<C::STAGES> ring) {
    struct dg_lane l = dg_lane_init<typename C::W>();
    int groups = a.k / 64;
    for (int u = begin; u < end;) {
        struct mu_tile t = mu_tile_at<C>(a, u, end);
        u += t.n_blocks;
        if (wg < t.n_blocks) {
            mu_unit<C>(a, t, wg, l, slots, tokens, weights, ring);
            continue;
        }
        for (int g = 0; g < groups; g++) { /* nothing here for this warpgroup, which keeps its place in the rings */
            if (g % C::G == 0) {
                weights.wait_full();
                dg_warp_arrive(weights.empty + weights.at * 8);
                weights.next();
            }
            ring.wait_full();
            dg_warp_arrive(ring.empty + ring.at * 8);
            ring.next();
        }
    }
}

template <class C> DGC_FN void mu_body(const struct st_arg &a) {
    unsigned char *tokens = dg_dyn, *slots = tokens + C::STAGES * C::TOKENS;
    int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5, 0) - 4 * C::WG;
    struct mu_ring<C::STAGES> ring = {dg_smem(tokens + C::BARS), dg_smem(tokens + C::BARS) + C::STAGES * 8};
    struct mu_ring<C::SLOTS> weights = {ring.empty + C::STAGES * 8, ring.empty + C::STAGES * 8 + C::SLOTS * 8};
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            dg_bar_init(ring.full + i * 8, C::TW * 32);
            dg_bar_init(ring.empty + i * 8, C::WG * 4);
        }
        for (int i = 0; i < C::SLOTS; i++) {
            dg_bar_init(weights.full + i * 8, 1);
            dg_bar_init(weights.empty + i * 8, C::WG * 4);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    dg_grid_wait();
    dg_grid_launch();
    struct dg_share s = dg_share_weighed(a.entries, *a.n_entries, a.rows / 64);
    if (wg == C::WG) {
        if (warp < C::TW)
            mu_tokens<C>(a, s.begin, s.end, tokens, ring, warp);
        else if (threadIdx.x == (4 * C::WG + C::TW) * 32)
            mu_weights<C>(a, s.begin, s.end, slots, weights);
        __syncwarp();
    } else {
        mu_consume<C>(a, s.begin, s.end, wg, slots, dg_smem(tokens), weights, ring);
    }
    __syncthreads(); /* no warp leaves with copies on the way */
}

DGC_KERNEL_ONE(moe_up_n128, moe, 512) { mu_body<mu_cfg<dg_q4>>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_nv_n128, moe, 512) { mu_body<mu_cfg<dg_nv>>(UP_ARGS); }

/* ---- down: an entry's h stays in shared memory ---- */
template <class W_> struct md_cfg {
    using W = W_;
    static constexpr int NMAX = DGC_MOE_MANY, G = 2, SLOTS = 3, BUFS = 1;
    static constexpr int WG = 3, PW = 3, TW = 1, MORE = 0, LESS = 0;
    static constexpr int SLOT = G * W::GROUP, RING = SLOTS * SLOT, TOKENS = NMAX * 128;
    static constexpr int NARROW = NMAX;
    static constexpr bool GLU = false, MANY = true;
};

DGC_KERNEL_ONE(moe_down_n128, moe, 512) { st_body<md_cfg<dg_q4>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_nv_n128, moe, 512) { st_body<md_cfg<dg_nv>>(DOWN_ARGS); }
