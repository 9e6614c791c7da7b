/* Router choice and the plan of the expert products. */
#include "ops/cuda/kernels/device.cuh"

/* True when (v, id) comes before (w, jd): the larger value, then the lower id. */
DGC_FN int before(float v, int id, float w, int jd) { return v > w || (v == w && id < jd); }

/* One warp chooses a row's experts from its logits. Each rank's winner is the best of what comes after the winner before it, so nothing
 * need be marked as taken. */
DGC_FN void choose(const float *z, int experts, int k, const float *scale, int32_t *expert, float *weight) {
    int lane = (int)threadIdx.x & 31, last_id = -1;
    float max = -DGC_INF, sum = 0, kept = 0, last = DGC_INF;
    for (int e = lane; e < experts; e += 32)
        max = fmaxf(max, z[e]);
#pragma unroll
    for (int s = 16; s; s >>= 1)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, s));
    for (int e = lane; e < experts; e += 32)
        sum += expf(z[e] - max);
    sum = dgc_warp_sum(sum);
    for (int r = 0; r < k; r++) {
        float best = -DGC_INF;
        int id = 0x7fffffff;
        for (int e = lane; e < experts; e += 32)
            if (before(last, last_id, z[e], e) && before(z[e], e, best, id)) {
                best = z[e];
                id = e;
            }
#pragma unroll
        for (int s = 16; s; s >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best, s);
            int jd = __shfl_xor_sync(0xffffffffu, id, s);
            if (before(v, jd, best, id)) {
                best = v;
                id = jd;
            }
        }
        if (id == 0x7fffffff) /* NaN in the row: any expert will do, its weight is NaN */
            id = r;
        last = best;
        last_id = id;
        float w = expf(best - max) / sum;
        kept += w;
        if (lane == 0) {
            expert[r] = id;
            weight[r] = w;
        }
    }
    __syncwarp();
    for (int r = lane; r < k; r += 32)
        weight[r] = weight[r] / kept * scale[expert[r]];
}

DGC_KERNEL(route, route, 128) {
    int64_t row = (int64_t)blockIdx.x * 4 + ((int)threadIdx.x >> 5);
    if (row < a.rows)
        choose(a.logits + row * a.experts, a.experts, a.k, a.scale, a.expert + row * a.k, a.weight + row * a.k);
}

#define ROUTER_ROWS DGC_ROUTER_ROWS

/* Logits and choice in one, for bf16 at whole vectors: 8 rows a block, the sum over k cut into 16 parts, one a warp, joined in order. Cutting
 * it is what keeps a product of 128 outputs from being one long chain of reads. */
DGC_KERNEL(router, router, 512) {
    DGC_DYNAMIC_SHARED(shared);
    float *part = (float *)shared; /* [warp][expert][row] */
    __shared__ float z[ROUTER_ROWS][DGC_ROUTER_EXPERTS];
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, row0 = (int)blockIdx.x * ROUTER_ROWS;
    int steps = a.w.k / 32, begin = steps * warp / DGC_ROUTER_PARTS, end = steps * (warp + 1) / DGC_ROUTER_PARTS;
    const uint16_t *x = row0 + g < a.rows ? (const uint16_t *)a.x.p + (int64_t)(row0 + g) * a.x.ld : 0;
    float acc[DGC_ROUTER_EXPERTS / 16][4];
#pragma unroll
    for (int t = 0; t < DGC_ROUTER_EXPERTS / 16; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[t][i] = 0.0f;
    for (int s = begin; s < end; s++) {
        int k = s * 32 + c * 8;
        uint4 b;
        b.x = b.y = b.z = b.w = 0;
        if (x)
            b = *(const uint4 *)(x + k);
#pragma unroll
        for (int t = 0; t < DGC_ROUTER_EXPERTS / 16; t++) {
            uint4 p, q;
            p.x = p.y = p.z = p.w = q.x = q.y = q.z = q.w = 0;
            if (16 * t + g < a.w.n)
                p = *(const uint4 *)(a.w.p + (int64_t)(16 * t + g) * a.w.row_bytes + k * 2);
            if (16 * t + g + 8 < a.w.n)
                q = *(const uint4 *)(a.w.p + (int64_t)(16 * t + g + 8) * a.w.row_bytes + k * 2);
            uint32_t a0[4] = {p.x, q.x, p.y, q.y}, a1[4] = {p.z, q.z, p.w, q.w};
            dgc_mma_bf16(acc[t], a0, b.x, b.y);
            dgc_mma_bf16(acc[t], a1, b.z, b.w);
        }
    }
#pragma unroll
    for (int t = 0; t < DGC_ROUTER_EXPERTS / 16; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp * DGC_ROUTER_EXPERTS * ROUTER_ROWS + (16 * t + g + 8 * (i >> 1)) * ROUTER_ROWS + 2 * c + (i & 1)] = acc[t][i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DGC_ROUTER_EXPERTS * ROUTER_ROWS; i += 512) {
        float s = 0;
#pragma unroll
        for (int w = 0; w < DGC_ROUTER_PARTS; w++)
            s += part[w * DGC_ROUTER_EXPERTS * ROUTER_ROWS + i];
        z[i % ROUTER_ROWS][i / ROUTER_ROWS] = s;
    }
    __syncthreads();
    int64_t row = row0 + warp;
    if (warp < ROUTER_ROWS && row < a.rows)
        choose(z[warp], a.w.n, a.k, a.scale, a.expert + row * a.k, a.weight + row * a.k);
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
