/* Router choice and the plan of the expert products. */
#include "ops/cuda/kernels/device.cuh"

/* Floats as integers of the same order, and back. The zeros count as equal; NaN is above or below all else. */
DGC_FN uint32_t key_of(float v) {
    uint32_t u = __float_as_uint(v + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
DGC_FN float of_key(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

/* One warp chooses a row's experts from its logits. Each rank's winner is the best of what comes after the winner before it (smaller, or equal
 * with a higher id), so nothing need be marked as taken. */
DGC_FN void choose(const float *z, int experts, int k, const float *scale, int32_t *expert, float *weight) {
    int lane = (int)threadIdx.x & 31, last_id = -1;
    float max = -DGC_INF, sum = 0, kept = 0;
    uint32_t last = 0xffffffffu;
    for (int e = lane; e < experts; e += 32)
        max = fmaxf(max, z[e]);
#pragma unroll
    for (int s = 16; s; s >>= 1)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, s));
    for (int e = lane; e < experts; e += 32)
        sum += expf(z[e] - max);
    sum = dgc_warp_sum(sum);
    for (int r = 0; r < k; r++) {
        uint32_t best = 0, id = 0x7fffffffu;
        for (int e = lane; e < experts; e += 32) {
            uint32_t key = key_of(z[e]);
            if ((key < last || (key == last && e > last_id)) && (key > best || id == 0x7fffffffu)) {
                best = key;
                id = (uint32_t)e;
            }
        }
        last = __reduce_max_sync(0xffffffffu, best);
        last_id = (int)__reduce_min_sync(0xffffffffu, best == last ? id : 0x7fffffffu);
        float w = expf(of_key(last) - max) / sum;
        kept += w;
        if (lane == 0) {
            expert[r] = last_id;
            weight[r] = w;
        }
    }
    __syncwarp();
    for (int r = lane; r < k; r += 32)
        weight[r] = weight[r] / kept * scale[expert[r]];
}

/* A warp a row. The parts come in by asynchronous copies, so that they are all under way at once. */
DGC_KERNEL(route, route, 128) {
    __shared__ uint4 parts[4][DGC_ROUTER_PARTS][32];
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    int64_t row = (int64_t)blockIdx.x * 4 + warp;
    if (row >= a.rows)
        return;
    const float *z = a.logits + row * a.experts;
    if (a.parts) {
        const float *part = a.logits + row * DGC_ROUTER_PARTS * DGC_ROUTER_EXPERTS + 4 * lane;
        float s[4] = {0, 0, 0, 0};
#pragma unroll
        for (int p = 0; p < DGC_ROUTER_PARTS; p++)
            dgc_cp_async16(&parts[warp][p][lane], part + p * DGC_ROUTER_EXPERTS);
        dgc_cp_commit();
        dgc_cp_wait(0);
#pragma unroll
        for (int p = 0; p < DGC_ROUTER_PARTS; p++) {
            uint4 v = parts[warp][p][lane];
            s[0] += __uint_as_float(v.x), s[1] += __uint_as_float(v.y), s[2] += __uint_as_float(v.z), s[3] += __uint_as_float(v.w);
        }
        float *sum = (float *)parts[warp][0];
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[4 * lane + i] = s[i];
        __syncwarp();
        z = sum;
    }
    choose(z, a.experts, a.k, a.scale, a.expert + row * a.k, a.weight + row * a.k);
}

#define ROUTER_STEPS 6 /* of 32 values, whose weights a thread holds at a time */

/* The logits' parts: 128 experts by 32 rows over a sixteenth of k, 16 experts a warp. A block of fewer rows would read the weights more often than
 * it computes with them, and one of the whole k would be one long chain of reads. */
DGC_KERNEL_EARLY(router, router, 256, 1) {
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, row0 = (int)blockIdx.x * DGC_ROUTER_ROWS;
    int steps = a.w.k / 32, part = (int)blockIdx.y, begin = steps * part / DGC_ROUTER_PARTS, end = steps * (part + 1) / DGC_ROUTER_PARTS;
    int e = 16 * warp + g;
    const uint8_t *w0 = a.w.p + (int64_t)e * a.w.row_bytes + c * 16, *w1 = w0 + 8 * a.w.row_bytes;
    const uint16_t *x = (const uint16_t *)a.x.p + (int64_t)(row0 + g) * a.x.ld + c * 8;
    float acc[DGC_ROUTER_ROWS / 8][4];
#pragma unroll
    for (int t = 0; t < DGC_ROUTER_ROWS / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[t][i] = 0.0f;
    for (int s0 = begin; s0 == begin || s0 < end; s0 += ROUTER_STEPS) {
        uint4 p[ROUTER_STEPS], q[ROUTER_STEPS];
#pragma unroll
        for (int i = 0; i < ROUTER_STEPS; i++) {
            p[i].x = p[i].y = p[i].z = p[i].w = q[i].x = q[i].y = q[i].z = q[i].w = 0;
            if (s0 + i < end && e < a.w.n)
                p[i] = *(const uint4 *)(w0 + (int64_t)(s0 + i) * 64);
            if (s0 + i < end && e + 8 < a.w.n)
                q[i] = *(const uint4 *)(w1 + (int64_t)(s0 + i) * 64);
        }
        if (s0 == begin)
            dgc_chain();
#pragma unroll
        for (int i = 0; i < ROUTER_STEPS; i++) {
            uint32_t a0[4] = {p[i].x, q[i].x, p[i].y, q[i].y}, a1[4] = {p[i].z, q[i].z, p[i].w, q[i].w};
#pragma unroll
            for (int t = 0; t < DGC_ROUTER_ROWS / 8; t++) {
                uint4 b;
                b.x = b.y = b.z = b.w = 0;
                if (s0 + i < end && row0 + 8 * t + g < a.rows)
                    b = *(const uint4 *)(x + 8 * t * a.x.ld + (s0 + i) * 32);
                dgc_mma_bf16(acc[t], a0, b.x, b.y);
                dgc_mma_bf16(acc[t], a1, b.z, b.w);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < DGC_ROUTER_ROWS / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = row0 + 8 * t + 2 * c + (i & 1);
            if (row < a.rows)
                a.part[(row * DGC_ROUTER_PARTS + part) * DGC_ROUTER_EXPERTS + e + 8 * (i >> 1)] = acc[t][i];
        }
}

/* A stable counting sort of the pairs by expert in one block. Each warp counts a contiguous range of pairs, the counts are summed over
 * (expert, warp), and each warp places its range: no order depends on timing. */
DGC_KERNEL(experts_plan, experts_plan, 1024) {
    __shared__ int count[DGC_PLAN_COUNTERS]; /* [warp][expert] */
    __shared__ int warp_total[32];
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, E = a.experts, W = a.warps;
    int each = ((a.pairs + W - 1) / W + 31) & ~31, begin = warp * each, end = begin + each < a.pairs ? begin + each : a.pairs;
    for (int i = (int)threadIdx.x; i < E * W; i += 1024)
        count[i] = 0;
    __syncthreads();
    for (int pass = 0; pass < 2; pass++) {
        if (warp < W)
            for (int p0 = begin; p0 < end; p0 += 32) {
                int p = p0 + lane, e = p < end ? a.expert[p] : -1;
                unsigned same = __match_any_sync(0xffffffffu, e), below = same & ((1u << lane) - 1);
                int at = e >= 0 ? count[warp * E + e] : 0;
                __syncwarp();
                if (e >= 0 && pass == 1)
                    a.plan.pair[at + __popc(below)] = p;
                if (e >= 0 && below == 0)
                    count[warp * E + e] = at + __popc(same);
                __syncwarp();
            }
        __syncthreads();
        if (pass == 1)
            break;
        /* counts become first places: an exclusive sum over experts, and within one over warps */
        int base = 0;
        for (int e0 = 0; e0 < E; e0 += 1024) {
            int e = e0 + (int)threadIdx.x, total = 0;
            if (e < E)
                for (int w = 0; w < W; w++)
                    total += count[w * E + e];
            int sum = total;
#pragma unroll
            for (int s = 1; s < 32; s <<= 1) {
                int v = __shfl_up_sync(0xffffffffu, sum, s);
                sum += lane >= s ? v : 0;
            }
            if (lane == 31)
                warp_total[warp] = sum;
            __syncthreads();
            int ahead = 0, all = 0;
            for (int w = 0; w < 32; w++) {
                ahead += w < warp ? warp_total[w] : 0;
                all += warp_total[w];
            }
            int first = base + ahead + sum - total;
            if (e < E) {
                a.plan.bucket[e] = first;
                for (int w = 0; w < W; w++) {
                    int c = count[w * E + e];
                    count[w * E + e] = first;
                    first += c;
                }
            }
            base += all;
            __syncthreads();
        }
        if (threadIdx.x == 0)
            a.plan.bucket[E] = base;
        __syncthreads();
    }
    /* row tiles: the same sum over tiles an expert */
    int base = 0;
    for (int e0 = 0; e0 < E; e0 += 1024) {
        int e = e0 + (int)threadIdx.x, first = 0, n = 0;
        if (e < E) {
            first = a.plan.bucket[e];
            n = (a.plan.bucket[e + 1] - first + a.tile_rows - 1) / a.tile_rows;
        }
        int sum = n;
#pragma unroll
        for (int s = 1; s < 32; s <<= 1) {
            int v = __shfl_up_sync(0xffffffffu, sum, s);
            sum += lane >= s ? v : 0;
        }
        if (lane == 31)
            warp_total[warp] = sum;
        __syncthreads();
        int ahead = 0, all = 0;
        for (int w = 0; w < 32; w++) {
            ahead += w < warp ? warp_total[w] : 0;
            all += warp_total[w];
        }
        int at = base + ahead + sum - n;
        for (int i = 0; i < n; i++) {
            a.plan.tile_expert[at + i] = e;
            a.plan.tile_first[at + i] = first + i * a.tile_rows;
        }
        base += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *a.plan.n_tiles = base;
}
