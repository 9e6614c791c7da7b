/* Which tokens an expert computes together on Hopper, ahead of its products, and the sum of a row's experts behind them. */
#include "ops/cuda/kernels/experts_sm90.cuh"

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

/* What a tile of an entry of n tokens takes of a multiprocessor, about. */
DGC_FN int dg_moe_cost(const struct dgc_moe_plan_args &a, int n) { return a.cost[min((n - 1) / 8, DGC_MOE_TOKENS / 8 - 1)]; }
/* Sorts the pairs and permutes the activations: block 0 sorts, the others permute. An expert's pairs are cut into entries of nearly the same
 * number of tokens. */
DGC_KERNEL(moe_plan, moe_plan, 1024) {
    __shared__ int count[32][256], base[256], wsum[3][8];
    const int *expert = a.expert;
    int pairs = a.pairs, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
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
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256;
        unsigned same = dg_match(e);
        if (e < 256 && (same & ((1u << lane) - 1)) == 0)
            count[warp][e] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    /* Exclusive sums: over warps for each expert, then over experts, of pairs and of entries. */
    int total = 0, sum = 0, b = 0, n_ent = 0, cost = 0, own = 0, each = 0, longer = 0;
    if (tid < 256) {
#pragma unroll
        for (int w = 0; w < 32; w++) {
            int c = count[w][tid];
            count[w][tid] = total;
            total += c;
        }
        n_ent = (total + DGC_MOE_TOKENS - 1) / DGC_MOE_TOKENS;
        each = n_ent ? total / n_ent : 0;
        longer = n_ent ? total % n_ent : 0;
        sum = total;
        b = n_ent;
        own = cost = longer * dg_moe_cost(a, each + 1) + (n_ent - longer) * dg_moe_cost(a, each);
        for (int d = 1; d < 32; d *= 2) {
            int ua = __shfl_up_sync(~0u, sum, d), ub = __shfl_up_sync(~0u, b, d), uc = __shfl_up_sync(~0u, cost, d);
            if (lane >= d) {
                sum += ua;
                b += ub;
                cost += uc;
            }
        }
        if (lane == 31) {
            wsum[0][warp] = sum;
            wsum[1][warp] = b;
            wsum[2][warp] = cost;
        }
    }
    __syncthreads();
    if (tid < 256) {
        for (int w = 0; w < warp; w++) {
            sum += wsum[0][w];
            b += wsum[1][w];
            cost += wsum[2][w];
        }
        base[tid] = sum - total;
        if (tid == 255) {
            a.n_entries[0] = b;
            a.n_entries[1] = cost;
        }
        for (int i = 0; i < n_ent; i++) {
            int l = min(i, longer);
            const struct dgc_moe_entry e = {tid, sum - total + i * each + l, each + (i < longer),
                                            cost - own + l * dg_moe_cost(a, each + 1) + (i - l) * dg_moe_cost(a, each)};
            a.entries[b - n_ent + i] = e;
        }
    }
    __syncthreads();
    for (int p0 = begin; p0 < end; p0 += 32) {
        int e = p0 + lane < end ? expert[p0 + lane] : 256;
        unsigned same = dg_match(e), before = same & ((1u << lane) - 1);
        int at = e < 256 ? count[warp][e] : 0;
        __syncwarp();
        if (e < 256) {
            a.slot_pair[base[e] + at + __popc(before)] = p0 + lane;
            if (before == 0)
                count[warp][e] = at + __popc(same);
        }
        __syncwarp();
    }
}

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
