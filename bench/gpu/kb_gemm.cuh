/* Checks and times the dense products. */
#pragma once
#include "kb.cuh"
#include "sm90_gemm.cu"

/* One warp per output. want, bound: [M][N]; glu: N features of gate (w) and up (w2). */
__global__ static void ref_linear(const uint16_t *w, const uint16_t *w2, const uint16_t *x, int K, int N, int M, const uint16_t *y, float *got,
                                  float *want, float *bound) {
    size_t o = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (o >= (size_t)M * N)
        return;
    size_t m = o / N, n = o % N;
    double s[2] = {0, 0}, a[2] = {0, 0};
    for (int r = 0; r < (w2 ? 2 : 1); r++) {
        const uint16_t *row = (r ? w2 : w) + n * K;
        for (int k = lane; k < K; k += 32) {
            double t = (double)kb_bf(row[k]) * kb_bf(x[m * K + k]);
            s[r] += t;
            a[r] += fabs(t);
        }
        for (int d = 16; d; d /= 2) {
            s[r] += __shfl_xor_sync(~0u, s[r], d);
            a[r] += __shfl_xor_sync(~0u, a[r], d);
        }
    }
    if (lane)
        return;
    if (w2) {
        double g = s[0], ge = 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
        want[o] = (float)(ge * s[1]);
        bound[o] = (float)(2e-5 * (1.13 * a[0] * fabs(s[1]) + a[1] * fabs(ge)) + fabs(ge * s[1]) * 0.0045 + 1e-6);
    } else {
        want[o] = (float)s[0];
        bound[o] = (float)(2e-5 * a[0] + fabs(s[0]) * 0.0041 + 1e-7);
    }
    got[o] = kb_bf(y[o]);
}

struct gemm_variant {
    const char *name;
    const void *fn;
    int bw, bt, stages;
    bool glu;
};
static const gemm_variant gemm_variants[] = {{"128x256", (const void *)dg_sm90_linear_128x256, 128, 256, 4, false},
                                             {"64x256", (const void *)dg_sm90_linear_64x256, 64, 256, 5, false},
                                             {"64x128k", (const void *)dg_sm90_linear_64x128k, 64, 128, 8, false},
                                             {"64x256k", (const void *)dg_sm90_linear_64x256k, 64, 256, 5, false},
                                             {"glu_64x128k", (const void *)dg_sm90_glu_64x128k, 64, 128, 8, true},
                                             {"glu_64x256k", (const void *)dg_sm90_glu_64x256k, 64, 256, 5, true}};

static void gemm_bench(void) {
    struct {
        const char *name;
        int M, n[3], K;
        bool glu;
    } cases[] = {{"sliding_qkv_8192x2816", 256, {4096, 2048, 2048}, 2816, false}, {"sliding_o_2816x4096", 256, {2816, 0, 0}, 4096, false},
                 {"full_qk_9216x2816", 256, {8192, 1024, 0}, 2816, false},        {"full_o_2816x8192", 256, {2816, 0, 0}, 8192, false},
                 {"glu_2x2112x2816", 256, {2112, 2112, 0}, 2816, true},           {"down_2816x2112", 256, {2816, 0, 0}, 2112, false},
                 {"tail_200x1000x320", 200, {1000, 0, 0}, 320, false},            {"tail_glu_70x352x192", 70, {352, 352, 0}, 192, true},
                 {"one_row_8192x2816", 1, {4096, 2048, 2048}, 2816, false},       {"prefill2048_8192x2816", 2048, {4096, 2048, 2048}, 2816, false},
                 {"prefill2048_2816x4096", 2048, {2816, 0, 0}, 4096, false},      {"prefill2048_glu", 2048, {2112, 2112, 0}, 2816, true}};
    for (auto &c : cases) {
        int N = c.glu ? c.n[0] : c.n[0] + c.n[1] + c.n[2], mats = c.n[2] ? 3 : c.n[1] ? 2 : 1, rows = c.n[0] + c.n[1] + c.n[2];
        size_t wbytes = (size_t)rows * c.K * 2;
        int L = std::max(2, (int)(250e6 / wbytes) + 1);
        if (wbytes < 2e6)
            L = 2;
        std::vector<uint16_t *> w(L);
        for (int l = 0; l < L; l++) {
            w[l] = kb_alloc<uint16_t>((size_t)rows * c.K);
            kb_fill_bf16(w[l], (size_t)rows * c.K, 0.05f);
        }
        uint16_t *x = kb_alloc<uint16_t>((size_t)c.M * c.K), *y = kb_alloc<uint16_t>((size_t)c.M * N);
        float *got = kb_alloc<float>((size_t)c.M * N), *want = kb_alloc<float>((size_t)c.M * N), *bound = kb_alloc<float>((size_t)c.M * N);
        kb_fill_bf16(x, (size_t)c.M * c.K, 1.0f);
        std::vector<uint16_t> bits[2];
        for (auto &v : gemm_variants) {
            if (v.glu != c.glu || (mats > 1 && !c.glu && c.n[0] % v.bw))
                continue;
            int f = v.glu ? v.bw / 2 : v.bw;
            std::vector<void *> maps(L);
            for (int l = 0; l < L; l++) {
                maps[l] = kb_alloc<uint8_t>(3 * 128);
                size_t off = 0;
                for (int i = 0; i < mats; i++) {
                    void *m = kb_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, w[l] + off, c.K, c.n[i], (uint64_t)c.K * 2, 64, v.glu ? 8 : v.bw,
                                     CU_TENSOR_MAP_SWIZZLE_128B);
                    CK(cudaMemcpy((uint8_t *)maps[l] + i * 128, m, 128, cudaMemcpyDeviceToDevice));
                    CK(cudaFree(m));
                    off += (size_t)c.n[i] * c.K;
                }
            }
            void *mx = kb_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, c.K, c.M, (uint64_t)c.K * 2, 64, v.bt, CU_TENSOR_MAP_SWIZZLE_128B);
            dim3 grid((N + f - 1) / f, (c.M + v.bt - 1) / v.bt);
            size_t smem = v.stages * (128 * (v.bw + v.bt) + 16);
            auto run = [&](int i, cudaStream_t st) {
                kb_run(v.fn, grid, 384, smem, st, (const unsigned char *)maps[i % L], (const void *)mx, c.n[0],
                       c.glu ? 0 : c.n[1], c.n[2], c.K, c.M, y, (long long)N);
            };
            kb_poison(y, (size_t)c.M * N * 2);
            run(0, 0);
            CKL();
            CK(cudaDeviceSynchronize());
            if (c.M <= 256) {
                ref_linear<<<(unsigned)(((size_t)c.M * N + 7) / 8), 256>>>(w[0], c.glu ? w[0] + (size_t)c.n[0] * c.K : NULL, x,
                                                                           c.K, N, c.M, y, got, want, bound);
                CKL();
                char t[160];
                snprintf(t, sizeof t, "linear_%s %s", v.name, c.name);
                kb_compare(t, got, want, bound, (size_t)c.M * N);
            }
            /* variants of one summing order agree to the bit */
            int order = strchr(v.name, 'k') ? 1 : 0;
            std::vector<uint16_t> now((size_t)c.M * N);
            CK(cudaMemcpy(now.data(), y, now.size() * 2, cudaMemcpyDeviceToHost));
            if (bits[order].empty())
                bits[order] = now;
            else if (bits[order] != now) {
                kb_failures++;
                printf("FAIL,linear_%s %s,differs from the first of its order\n", v.name, c.name);
            }
            kb_time_graph(v.name, c.name, 20, (double)wbytes + (double)c.M * (c.K + N) * 2, 2.0 * c.M * rows * c.K, run);
            for (int l = 0; l < L; l++)
                CK(cudaFree(maps[l]));
            CK(cudaFree(mx));
        }
        for (int l = 0; l < L; l++)
            CK(cudaFree(w[l]));
        for (void *p : {(void *)x, (void *)y, (void *)got, (void *)want, (void *)bound})
            CK(cudaFree(p));
    }
}

/* One block per row, 256 threads: statistics of logits in double. out: entropy, max, sum, p_max. */
__global__ static void ref_stats(const float *z, int V, float inv_t, double *out, int *arg) {
    __shared__ double a[256], b[256];
    __shared__ int id[256];
    const float *r = z + (size_t)blockIdx.x * V;
    int t = threadIdx.x;
    a[t] = -1e300;
    id[t] = 0;
    for (int v = t; v < V; v += 256)
        if (r[v] > a[t]) {
            a[t] = r[v];
            id[t] = v;
        }
    for (int d = 128; d; d /= 2) {
        __syncthreads();
        if (t < d && (a[t + d] > a[t] || (a[t + d] == a[t] && id[t + d] < id[t]))) {
            a[t] = a[t + d];
            id[t] = id[t + d];
        }
    }
    __syncthreads();
    double max = (double)(float)(a[0] * inv_t), s = 0, m = 0;
    int best = id[0];
    for (int v = t; v < V; v += 256) {
        double d = (double)r[v] * inv_t - max, e = exp(d);
        s += e;
        m += e * d;
    }
    __syncthreads();
    a[t] = s;
    b[t] = m;
    for (int d = 128; d; d /= 2) {
        __syncthreads();
        if (t < d) {
            a[t] += a[t + d];
            b[t] += b[t + d];
        }
    }
    if (t == 0) {
        out[blockIdx.x * 4] = log(a[0]) - b[0] / a[0];
        out[blockIdx.x * 4 + 1] = max;
        out[blockIdx.x * 4 + 2] = a[0];
        out[blockIdx.x * 4 + 3] = 1 / a[0];
        arg[blockIdx.x] = best;
    }
}
__global__ static void ref_head(const uint16_t *w, const uint16_t *x, int K, int V, int M, float cap, float *want, float *bound) {
    size_t o = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (o >= (size_t)M * V)
        return;
    size_t m = o / V, v = o % V;
    float s = 0, a = 0;
    for (int k = lane; k < K; k += 32) {
        float t = kb_bf(w[v * K + k]) * kb_bf(x[m * K + k]);
        s += t;
        a += fabsf(t);
    }
    for (int d = 16; d; d /= 2) {
        s += __shfl_xor_sync(~0u, s, d);
        a += __shfl_xor_sync(~0u, a, d);
    }
    if (lane == 0) {
        want[o] = cap * tanhf(s / cap);
        bound[o] = 2e-5f * a + 1e-5f;
    }
}

static void head_bench(void) {
    struct {
        const char *name;
        int M, V, K;
    } cases[] = {{"256x262144x2816", 256, 262144, 2816}, {"33x1000x320", 33, 1000, 320}};
    for (auto &c : cases) {
        int tiles = (c.V + 127) / 128;
        uint16_t *w = kb_alloc<uint16_t>((size_t)c.V * c.K), *x = kb_alloc<uint16_t>((size_t)c.M * c.K);
        float *z = kb_alloc<float>((size_t)c.M * c.V), *want = kb_alloc<float>((size_t)c.M * c.V), *bound = kb_alloc<float>((size_t)c.M * c.V);
        float4 *partial = kb_alloc<float4>((size_t)c.M * tiles);
        float *st = kb_alloc<float>(c.M * 4);
        int *arg = kb_alloc<int>(c.M), *rarg = kb_alloc<int>(c.M);
        double *rst = kb_alloc<double>(c.M * 4);
        kb_fill_bf16(w, (size_t)c.V * c.K, 0.15f);
        kb_fill_bf16(x, (size_t)c.M * c.K, 1.0f);
        void *mw = kb_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, w, c.K, c.V, (uint64_t)c.K * 2, 64, 128, CU_TENSOR_MAP_SWIZZLE_128B),
             *mx = kb_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, c.K, c.M, (uint64_t)c.K * 2, 64, 256, CU_TENSOR_MAP_SWIZZLE_128B);
        float inv_t = 1.0f / 0.7f, cap = 30;
        auto head = [&](cudaStream_t s) {
            kb_run((const void *)dg_sm90_head, dim3(tiles), 384, 196672, s, (const unsigned char *)mw, (const void *)mx, c.V, c.K, c.M, cap, inv_t, z,
                   (long long)c.V, partial);
        };
        auto stats = [&](cudaStream_t s) {
            kb_run((const void *)dg_sm90_head_stats, dim3(c.M), 256, 0, s, (const float4 *)partial, tiles, inv_t, st, st + c.M, st + 2 * c.M,
                   st + 3 * c.M, arg);
        };
        kb_poison(z, (size_t)c.M * c.V * 4);
        kb_poison(partial, (size_t)c.M * tiles * 16);
        head(0);
        stats(0);
        ref_head<<<(unsigned)(((size_t)c.M * c.V + 7) / 8), 256>>>(w, x, c.K, c.V, c.M, cap, want, bound);
        ref_stats<<<c.M, 256>>>(z, c.V, inv_t, rst, rarg);
        CKL();
        CK(cudaDeviceSynchronize());
        kb_compare(c.name, z, want, bound, (size_t)c.M * c.V);
        std::vector<float> hs(c.M * 4);
        std::vector<double> hr(c.M * 4);
        std::vector<int> ha(c.M), hra(c.M);
        CK(cudaMemcpy(hs.data(), st, c.M * 16, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(hr.data(), rst, c.M * 32, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(ha.data(), arg, c.M * 4, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(hra.data(), rarg, c.M * 4, cudaMemcpyDeviceToHost));
        double worst[4] = {0, 0, 0, 0};
        int args = 0;
        for (int m = 0; m < c.M; m++) {
            args += ha[m] != hra[m];
            for (int j = 0; j < 4; j++) {
                double e = fabs(hs[j * c.M + m] - hr[m * 4 + j]) / (j == 0 ? 1 : fabs(hr[m * 4 + j]));
                worst[j] = e >= worst[j] ? e : worst[j] == worst[j] && e == e ? worst[j] : NAN;
            }
        }
        bool ok = args == 0 && worst[0] < 2e-5 && worst[1] < 1e-6 && worst[2] < 2e-5 && worst[3] < 2e-5;
        kb_failures += !ok;
        printf("%s,head statistics %s,entropy_abs,%.2e,max_rel,%.2e,sum_rel,%.2e,p_max_rel,%.2e,argmax_differs,%d\n",
               ok ? "ok" : "FAIL", c.name, worst[0], worst[1], worst[2], worst[3], args);
        double bytes = (double)c.V * c.K * 2 + (double)c.M * c.V * 4, flops = 2.0 * c.M * c.V * c.K;
        kb_time_graph("head", c.name, 3, bytes, flops, [&](int, cudaStream_t s) { head(s); });
        kb_time_graph("head_stats", c.name, 3, (double)c.M * tiles * 16, 0, [&](int, cudaStream_t s) { stats(s); });
        for (void *p : {(void *)w, (void *)x, (void *)z, (void *)want, (void *)bound, (void *)partial, (void *)st, (void *)arg,
                        (void *)rarg, (void *)rst, mw, mx})
            CK(cudaFree(p));
    }
}
