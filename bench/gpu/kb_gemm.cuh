/* Checks and times the dense products. */
#pragma once
#include "kb.cuh"
#include "../../src/ops/cuda/kernels/sm90_gemm.cu"

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
                                             {"64x128", (const void *)dg_sm90_linear_64x128, 64, 128, 8, false},
                                             {"64x128k", (const void *)dg_sm90_linear_64x128k, 64, 128, 8, false},
                                             {"glu_64x128k", (const void *)dg_sm90_glu_64x128k, 64, 128, 8, true},
                                             {"glu_64x256", (const void *)dg_sm90_glu_64x256, 64, 256, 5, true}};

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
        bool checked = false;
        std::vector<uint16_t> bits[2];
        for (auto &v : gemm_variants)
            for (int cl = 1; cl <= 8; cl *= 2) {
                if (v.glu != c.glu || v.bt / cl > 256)
                    continue;
                int f = v.glu ? v.bw / 2 : v.bw;
                if (mats > 1 && !c.glu && c.n[0] % v.bw)
                    continue;
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
                void *mx = kb_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, c.K, c.M, (uint64_t)c.K * 2, 64, v.bt / cl, CU_TENSOR_MAP_SWIZZLE_128B);
                dim3 grid((((N + f - 1) / f) + cl - 1) / cl * cl, (c.M + v.bt - 1) / v.bt);
                size_t smem = v.stages * (128 * (v.bw + v.bt) + 16) + 1024;
                auto run = [&](int i) {
                    kb_run(v.fn, grid, 384, smem, 0, cl, (const unsigned char *)maps[i % L], (const void *)mx, c.n[0], c.glu ? 0 : c.n[1], c.n[2], c.K, c.M, y,
                           (long long)N, cl);
                };
                char what[128];
                snprintf(what, sizeof what, "linear_%s_c%d", v.name, cl);
                kb_poison(y, (size_t)c.M * N * 2);
                run(0);
                CKL();
                CK(cudaDeviceSynchronize());
                if (!checked) {
                    size_t warps = (size_t)c.M * N;
                    if (c.M <= 256) {
                        ref_linear<<<(unsigned)((warps + 7) / 8), 256>>>(w[0], c.glu ? w[0] + (size_t)c.n[0] * c.K : NULL, x, c.K, N, c.M, y, got, want, bound);
                        CKL();
                        char t[160];
                        snprintf(t, sizeof t, "%s %s", what, c.name);
                        kb_compare(t, got, want, bound, warps);
                    }
                }
                /* variants of one summing order agree to the bit, whatever the tile and the cluster */
                int order = strchr(v.name, 'k') ? 1 : 0;
                std::vector<uint16_t> now((size_t)c.M * N);
                CK(cudaMemcpy(now.data(), y, now.size() * 2, cudaMemcpyDeviceToHost));
                if (bits[order].empty())
                    bits[order] = now;
                else if (bits[order] != now) {
                    kb_failures++;
                    printf("FAIL,%s %s,differs from the first of its order\n", what, c.name);
                }
                kb_time(what, c.name, 10, (double)wbytes + (double)c.M * (c.K + N) * 2, 2.0 * c.M * rows * c.K, run);
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
