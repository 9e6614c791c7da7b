/* The reordering of expert stacks, the plan and the sum of a layer's experts, and the products while experts have few tokens. */
#include "ops/cuda/kernels/experts_sm90.cuh"

/* Reorders a stack (q4_block [experts][rows][K], 16-byte aligned) in place, tile by tile of 64 rows; glu: rows are gate and up, and a tile
 * is 32 of each. Within a tile, group after group of 64 K: for each of four warps 512 bytes of words, 16 a lane (two words of row
 * lane / 4, two of row lane / 4 + 8), then 128 bytes of scale|min, 8 for each two lanes (of both rows). A warp has 16 rows; of a glu tile
 * 8 gate rows and the same features' up rows. Scales become s * 2^97, minima m * 2^-32: exact for 0 and for values between 2^-90 and 2^30.
 * 64 | rows, 64 | K. Grid: experts * rows / 64 blocks of 512 threads, 64 * (K / 32 * 20) bytes of dynamic shared memory. */
DGC_KERNEL(moe_repack, moe_repack, 512) {
    int row_bytes = a.k / 32 * 20, tiles = a.rows / 64, half = 32 * row_bytes, glu = a.glu;
    uint4 *s = (uint4 *)dg_dyn, *t0 = (uint4 *)a.w + dg_q4_tile(blockIdx.x / tiles, a.rows, blockIdx.x % tiles, row_bytes, glu);
    uint4 *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    for (int i = threadIdx.x; i < half / 16; i += blockDim.x) {
        s[i] = t0[i];
        s[half / 16 + i] = t1[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 160, warp = i % 160 / 40, r = i % 40;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            int lane = r < 32 ? r : 4 * (r - 32) + 2 * (j >> 1), hi = r < 32 ? j >> 1 : j & 1, q = lane & 3;
            int row = glu ? 8 * warp + 32 * hi + (lane >> 2) : 16 * warp + 8 * hi + (lane >> 2);
            int word = r < 32 ? dg_perm_word(q, j & 1) : 0;
            int byte = r < 32 ? 4 * (word + 1 + (word >> 2)) : 20 * (q >> 1);
            o[j] = *(const unsigned *)(dg_dyn + row * row_bytes + group * 40 + byte);
            if (r >= 32)
                o[j] = dgc_pack_bf16(__uint_as_float(o[j] << 16) * 0x1p97f, __uint_as_float(o[j] & 0xffff0000u) * 0x1p-32f);
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}
/* Codes of a word in the order that dg_nv_word reads: of each half's four the three low bits one after another from bit 0, their signs in
 * bits 13, 12, 15 and 14. */
DGC_FN unsigned dg_nv_codes(unsigned w) {
    unsigned o = 0;
    for (int e = 0; e < 8; e++) {
        unsigned c = w >> (4 * e) & 15, at = e >> 2 << 4;
        int j = e & 3;
        o |= (c & 7) << (at + 3 * j) | (c >> 3) << (at + (j < 2 ? 13 - j : 17 - j));
    }
    return o;
}
/* An nvfp4 stack into the same tiles as moe_repack makes, groups of 2304 bytes: a warp's 512 bytes of words, then 64 of scales, 4 for each two
 * lanes. A scale's sign goes into its codes. Behind all tiles lie the experts' global scales. */
DGC_KERNEL(moe_repack_nv, moe_repack_nv, 512) {
    int groups = a.k / 64, tiles = a.rows / 64, expert = blockIdx.x / tiles, tile = blockIdx.x % tiles, row_bytes = groups * dg_nv::ROW;
    int half = 32 * row_bytes, glu = a.glu;
    int64_t bytes = (int64_t)a.rows * row_bytes;
    const uint8_t *from = a.from + expert * (bytes + 4) + 4;
    uint4 *t0 = (uint4 *)a.to + dg_q4_tile(expert, a.rows, tile, row_bytes, glu), *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    if (tile == 0 && threadIdx.x == 0)
        ((uint32_t *)(a.to + (int64_t)a.experts * bytes))[expert] = *(const uint32_t *)(from - 4);
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 144, warp = i % 144 / 36, r = i % 36;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            o[j] = 0;
            for (int n = 0; n < (r < 32 ? 1 : 2); n++) {
                int lane = r < 32 ? r : 2 * (4 * (r - 32) + j), hi = r < 32 ? j >> 1 : n, q = lane & 3;
                int row = glu ? tile * 32 + 8 * warp + hi * (a.rows / 2) + (lane >> 2) : tile * 64 + 16 * warp + 8 * hi + (lane >> 2);
                const uint8_t *codes = from + (int64_t)row * row_bytes, *scales = codes + groups * 32 + group * 4;
                if (r < 32) {
                    int word = dg_perm_word(q, j & 1);
                    unsigned w = *(const unsigned *)(codes + group * 32 + word * 4);
                    o[j] = dg_nv_codes(scales[word >> 1] & 0x80 ? w ^ 0x88888888u : w);
                } else {
                    int s = 2 * (q >> 1);
                    o[j] |= ((unsigned)(scales[s] & 0x7f) | (unsigned)(scales[s + 1] & 0x7f) << 8) << (16 * n);
                }
            }
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}

/* Lanes with the same e, 9 bits. (__match_any_sync costs by the number of distinct values.) */
DGC_FN unsigned dg_match(int e) {
    unsigned same = ~0u;
#pragma unroll
    for (int b = 0; b < 9; b++) {
        unsigned v = __ballot_sync(~0u, e >> b & 1);
        same &= e >> b & 1 ? v : ~v;
    }
    return same;
}

/* What a unit of an entry costs, in tokens: those of its tile, and what decoding takes apart from them. */
DGC_FN int moe_weight(int n) { return ((n + 15) & ~15) + 24; }

/* f(first pair, this lane's expert or 256) for each 32 of [begin, end), four reads at a time. */
template <class F> DGC_FN void dg_each_pairs(const int *expert, int begin, int end, F f) {
    int lane = threadIdx.x & 31;
    for (int p0 = begin; p0 < end; p0 += 128) {
        int e[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            e[j] = p0 + 32 * j + lane < end ? expert[p0 + 32 * j + lane] : 256;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (p0 + 32 * j < end)
                f(p0 + 32 * j, e[j]);
    }
}

/* Sorts the pairs and permutes the activations: block 0 sorts, the others permute. */
DGC_KERNEL(moe_plan, moe_plan, 1024) {
    __shared__ int count[32][256], base[256], wsum[3][8];
    const int *expert = a.expert;
    int pairs = a.pairs, nmax = a.nmax, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    if (blockIdx.x > 0) { /* a thread makes one 16-byte chunk: eight threads read and write one group's 128 bytes */
        int groups = a.k / 64;
        int64_t i = (int64_t)(blockIdx.x - 1) * 1024 + tid, group = i >> 3;
        if (group >= (int64_t)a.rows * groups)
            return;
        const uint16_t *v = (const uint16_t *)a.x.p + group / groups * a.x.ld + group % groups * 64;
        unsigned o[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int e = dg_perm(8 * (int)(i & 7) + 2 * j);
            o[j] = v[e] | (unsigned)v[e + 4] << 16;
        }
        ((uint4 *)a.xp)[i] = make_uint4(o[0], o[1], o[2], o[3]);
        return;
    }
    for (int i = lane; i < 256; i += 32)
        count[warp][i] = 0;
    int part = (pairs + 1023) / 1024 * 32, begin = warp * part, end = min(begin + part, pairs);
    __syncwarp();
    dg_each_pairs(expert, begin, end, [&](int, int e) {
        if (e < 256)
            atomicAdd(&count[warp][e], 1);
    });
    __syncthreads();
    /* Exclusive sums: over warps for each expert, then over experts, of pairs, of entries and of their weight. */
    int total = 0, sum = 0, b = 0, n_ent = 0, step = nmax, weight = 0, mine = 0;
    if (tid < 256) {
#pragma unroll
        for (int w = 0; w < 32; w++) {
            int c = count[w][tid];
            count[w][tid] = total;
            total += c;
        }
        n_ent = (total + nmax - 1) / nmax;
        if (nmax == DGC_MOE_MANY && n_ent > 1) /* entries of the same size, in steps of 16 */
            step = ((total + n_ent - 1) / n_ent + 15) & ~15;
        if (n_ent > 0)
            weight = (n_ent - 1) * moe_weight(step) + moe_weight(total - (n_ent - 1) * step);
        mine = weight;
        sum = total;
        b = n_ent;
        for (int d = 1; d < 32; d *= 2) {
            int ua = __shfl_up_sync(~0u, sum, d), ub = __shfl_up_sync(~0u, b, d), uw = __shfl_up_sync(~0u, weight, d);
            if (lane >= d) {
                sum += ua;
                b += ub;
                weight += uw;
            }
        }
        if (lane == 31) {
            wsum[0][warp] = sum;
            wsum[1][warp] = b;
            wsum[2][warp] = weight;
        }
    }
    __syncthreads();
    if (tid < 256) {
        for (int w = 0; w < warp; w++) {
            sum += wsum[0][w];
            b += wsum[1][w];
            weight += wsum[2][w];
        }
        base[tid] = sum - total;
        if (tid == 255) {
            *a.n_entries = b;
            const struct dgc_moe_entry last = {0, sum, 0, weight};
            a.entries[b] = last;
        }
        for (int i = 0; i < n_ent; i++) {
            const struct dgc_moe_entry e = {tid, sum - total + i * step, min(step, total - i * step), weight - mine + i * moe_weight(step)};
            a.entries[b - n_ent + i] = e;
        }
    }
    __syncthreads();
    dg_each_pairs(expert, begin, end, [&](int p0, int e) {
        unsigned same = dg_match(e), before = same & ((1u << lane) - 1);
        int at = e < 256 ? count[warp][e] : 0;
        __syncwarp();
        if (e < 256) {
            a.slot_pair[base[e] + at + __popc(before)] = p0 + lane;
            if (before == 0)
                count[warp][e] = at + __popc(same);
        }
        __syncwarp();
    });
}

/* h[slot][moe] = bf16(gelu_tanh(gate x) * (up x)) for every pair, permuted in 64-groups. */
DGC_KERNEL_ONE(moe_up_n24, moe, 640) { st_body<st_few<dg_q4, 24, 16, 4, 2, 1, true>>(UP_ARGS); }
DGC_KERNEL_ONE(moe_up_nv_n24, moe, 640) { st_body<st_few<dg_nv, 24, 16, 4, 2, 1, true>>(UP_ARGS); }

/* d[pair][hidden] = down h[slot of the pair], f32. */
DGC_KERNEL_ONE(moe_down_n24, moe, 640) { st_body<st_few<dg_q4, 24, 24, 4, 4, 2, false>>(DOWN_ARGS); }
DGC_KERNEL_ONE(moe_down_nv_n24, moe, 640) { st_body<st_few<dg_nv, 24, 24, 4, 4, 2, false>>(DOWN_ARGS); }

/* y[row][c] = sum over r of weight[row][r] * d[row * topk + r][c], r ascending. d's lines leave the L2 without being written to memory. topk <= 8
 * runs with all loads in flight. */
DGC_KERNEL(moe_sum, moe_sum, 352) {
    int64_t row = blockIdx.x;
    int c = blockIdx.y * 352 + threadIdx.x, topk = a.topk;
    bool on = c < a.hidden / 4;
    float4 s = {0, 0, 0, 0};
    for (int r0 = 0; r0 < topk; r0 += 8) {
        float4 v[8];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (on && r0 + r < topk)
                v[r] = ((const float4 *)(a.d + (row * topk + r0 + r) * a.hidden))[c];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (on && r0 + r < topk) {
                float w = a.weight[row * topk + r0 + r];
                s.x = fmaf(w, v[r].x, s.x);
                s.y = fmaf(w, v[r].y, s.y);
                s.z = fmaf(w, v[r].z, s.z);
                s.w = fmaf(w, v[r].w, s.w);
            }
    }
    if (on)
        ((float4 *)(a.y + row * a.ldy))[c] = s;
    __syncwarp();
    for (int r = threadIdx.x & 7; r < topk; r += 8) /* eight lanes read a line each of every rank; each drops one rank's */
        if (on)
            asm volatile("discard.global.L2 [%0], 128;" ::"l"((float4 *)(a.d + (row * topk + r) * a.hidden) + (c & ~7)) : "memory");
}
