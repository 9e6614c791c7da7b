/* Checks and times the routed experts. */
#pragma once
#include "kb.cuh"
#include "sm90_moe.cu"

struct moe_shape {
    int K = 2816, moe = 704, experts = 128, topk = 8;
};

__device__ static inline double ref_q4(const uint8_t *row, int k, float *w_out) {
    const uint8_t *b = row + k / 32 * 20;
    float s = kb_bf(b[0] | b[1] << 8), m = kb_bf(b[2] | b[3] << 8);
    int q = b[4 + k % 32 / 2] >> (k & 1 ? 4 : 0) & 15;
    *w_out = kb_bf(kb_to_bf(fmaf((float)q, s, m)));
    return 0;
}

/* One block per slot. want, bound, got: [pairs][moe] f32. */
__global__ static void ref_up(const uint8_t *w, const uint16_t *x, int K, int moe, int topk, const int *expert, const int *slot_pair,
                              const uint16_t *h, float *got, float *want, float *bound) {
    int slot = blockIdx.x, pair = slot_pair[slot];
    const uint16_t *xr = x + (size_t)(pair / topk) * K;
    size_t rb = K / 32 * 20;
    for (int f = threadIdx.x; f < moe; f += blockDim.x) {
        double s[2] = {0, 0}, a[2] = {0, 0};
        for (int r = 0; r < 2; r++) {
            const uint8_t *row = w + ((size_t)expert[pair] * 2 * moe + r * moe + f) * rb;
            for (int k = 0; k < K; k++) {
                float v;
                ref_q4(row, k, &v);
                double t = (double)v * kb_bf(xr[k]);
                s[r] += t;
                a[r] += fabs(t);
            }
        }
        double g = s[0], ge = 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
        size_t o = (size_t)slot * moe + f;
        want[o] = (float)(ge * s[1]);
        /* the gelu's slope is at most 1.13 */
        bound[o] = (float)(6e-5 * (1.13 * a[0] * fabs(s[1]) + a[1] * fabs(ge)) + fabs(ge * s[1]) * 0.0045 + 1e-6);
        got[o] = kb_bf(h[(size_t)slot * moe + (f & ~63) + dg_perm_inv(f & 63)]);
    }
}
/* One block per slot. want, bound: [pairs][hidden]. */
__global__ static void ref_down(const uint8_t *w, const uint16_t *h, int moe, int hidden, const int *expert, const int *slot_pair,
                                float *want, float *bound) {
    int slot = blockIdx.x, pair = slot_pair[slot];
    size_t rb = moe / 32 * 20;
    for (int f = threadIdx.x; f < hidden; f += blockDim.x) {
        const uint8_t *row = w + ((size_t)expert[pair] * hidden + f) * rb;
        double s = 0, a = 0;
        for (int k = 0; k < moe; k++) {
            float v;
            ref_q4(row, k, &v);
            double t = (double)v * kb_bf(h[(size_t)slot * moe + (k & ~63) + dg_perm_inv(k & 63)]);
            s += t;
            a += fabs(t);
        }
        want[(size_t)pair * hidden + f] = (float)s;
        bound[(size_t)pair * hidden + f] = (float)(6e-5 * a + 1e-7);
    }
}
__global__ static void ref_sum(const float *d, const float *weight, int topk, int hidden, float *want, float *bound) {
    for (int c = threadIdx.x; c < hidden; c += blockDim.x) {
        double s = 0, a = 0;
        for (int r = 0; r < topk; r++) {
            double t = (double)weight[blockIdx.x * topk + r] * d[((size_t)blockIdx.x * topk + r) * hidden + c];
            s += t;
            a += fabs(t);
        }
        want[(size_t)blockIdx.x * hidden + c] = (float)s;
        bound[(size_t)blockIdx.x * hidden + c] = (float)(1e-6 * a + 1e-9);
    }
}

struct moe_up_variant {
    const char *name;
    const void *fn;
    int nmax, threads;
    size_t smem;
};
static const moe_up_variant moe_up[] = {{"up_n24", (const void *)dg_sm90_moe_up_n24, 24, 640, 217392},
                                        {"up_n64", (const void *)dg_sm90_moe_up_n64, 64, 640, 221232},
                                        {"up_n128", (const void *)dg_sm90_moe_up_n128, 128, 384, 172064}};
static const moe_up_variant moe_down[] = {{"down_n24", (const void *)dg_sm90_moe_down_n24, 24, 640, 231968},
                                          {"down_n64", (const void *)dg_sm90_moe_down_n64, 64, 640, 213680}};

enum moe_routing { ROUTE_RANDOM, ROUTE_SAME, ROUTE_SKEWED };

static std::vector<int> moe_route(const moe_shape &s, int rows, moe_routing kind) {
    std::vector<int> e(rows * s.topk);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < s.topk; i++) {
            for (;;) {
                uint64_t z = (kb_seed += 0x9e3779b97f4a7c15ull);
                z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
                z = (z ^ z >> 27) * 0x94d049bb133111ebull;
                double u = (double)(z >> 11) / 9007199254740992.0;
                int v = kind == ROUTE_SAME ? 3 + i : kind == ROUTE_SKEWED ? (int)(u * u * u * s.experts) : (int)(u * s.experts);
                bool dup = false;
                for (int j = 0; j < i; j++)
                    dup |= e[r * s.topk + j] == v;
                if (!dup) {
                    e[r * s.topk + i] = v;
                    break;
                }
            }
        }
    return e;
}

/* iterations > 0: the layer's kernels that often with a check after each, nothing else. */
static void moe_bench(int iterations) {
    moe_shape s;
    const int L = 3, max_rows = 2048, max_pairs = max_rows * s.topk;
    size_t up_bytes = (size_t)s.experts * 2 * s.moe * (s.K / 32 * 20), down_bytes = (size_t)s.experts * s.K * (s.moe / 32 * 20);
    uint8_t *wu[L], *wd[L], *raw_up = kb_alloc<uint8_t>(up_bytes), *raw_down = kb_alloc<uint8_t>(down_bytes); /* raw: layer 0 as packed */
    for (int l = 0; l < L; l++) {
        wu[l] = kb_alloc<uint8_t>(up_bytes);
        wd[l] = kb_alloc<uint8_t>(down_bytes);
        kb_fill_q4(wu[l], up_bytes, 0.004f);
        kb_fill_q4(wd[l], down_bytes, 0.008f);
        if (l == 0) {
            CK(cudaMemcpy(raw_up, wu[l], up_bytes, cudaMemcpyDeviceToDevice));
            CK(cudaMemcpy(raw_down, wd[l], down_bytes, cudaMemcpyDeviceToDevice));
        }
        kb_run((const void *)dg_sm90_moe_repack, s.experts * 2 * s.moe / 64, 512, 64 * (s.K / 32 * 20), 0, wu[l], 2 * s.moe, s.K, 1);
        kb_run((const void *)dg_sm90_moe_repack, s.experts * s.K / 64, 512, 64 * (s.moe / 32 * 20), 0, wd[l], s.K, s.moe, 0);
    }
    uint16_t *x = kb_alloc<uint16_t>((size_t)max_rows * s.K), *xp = kb_alloc<uint16_t>((size_t)max_rows * s.K),
             *h = kb_alloc<uint16_t>((size_t)max_pairs * s.moe);
    float *d = kb_alloc<float>((size_t)max_pairs * s.K), *y = kb_alloc<float>((size_t)max_rows * s.K), *wt = kb_alloc<float>(max_pairs);
    float *got = kb_alloc<float>((size_t)max_pairs * s.K), *want = kb_alloc<float>((size_t)max_pairs * s.K),
          *bound = kb_alloc<float>((size_t)max_pairs * s.K), *d2 = kb_alloc<float>((size_t)max_pairs * s.K);
    int *ex = kb_alloc<int>(max_pairs), *sp = kb_alloc<int>(max_pairs), *ne = kb_alloc<int>(1);
    dg_moe_entry *en = kb_alloc<dg_moe_entry>(s.experts + max_pairs / 24 + 1);
    kb_fill_bf16(x, (size_t)max_rows * s.K, 1.0f);
    std::vector<float> hw(max_pairs);
    for (int i = 0; i < max_pairs; i++)
        hw[i] = 0.05f + (float)(i * 7919 % 1000) * 2e-4f;
    CK(cudaMemcpy(wt, hw.data(), max_pairs * 4, cudaMemcpyHostToDevice));

    auto plan = [&](int rows, int nmax, cudaStream_t st) {
        kb_run((const void *)dg_sm90_moe_plan, 1 + (rows * (s.K / 8) + 1023) / 1024, 1024, 0, st, (const int *)ex, rows * s.topk, s.experts, nmax, sp,
               en, ne, (const dg_bf16 *)x, (long long)s.K, rows, s.K, xp);
    };
    auto up = [&](const moe_up_variant &v, int l, cudaStream_t st) {
        kb_run(v.fn, kb_sms, v.threads, v.smem, st, (const unsigned char *)wu[l], (const dg_bf16 *)xp, s.K, s.moe, s.topk, (const dg_moe_entry *)en,
               (const int *)ne, (const int *)sp, h);
    };
    auto down = [&](const moe_up_variant &v, int l, cudaStream_t st) {
        kb_run(v.fn, kb_sms, v.threads, v.smem, st, (const unsigned char *)wd[l], (const dg_bf16 *)h, s.moe, s.K, (const dg_moe_entry *)en,
               (const int *)ne, (const int *)sp, d);
    };
    auto sum = [&](int rows, cudaStream_t st) {
        kb_run((const void *)dg_sm90_moe_sum, dim3(rows, (s.K / 4 + 351) / 352), 352, 0, st, (float *)d, (const float *)wt, s.topk, s.K, y,
               (long long)s.K);
    };
    if (iterations > 0) {
        std::vector<int> e = moe_route(s, 256, ROUTE_RANDOM);
        CK(cudaMemcpy(ex, e.data(), e.size() * 4, cudaMemcpyHostToDevice));
        for (int i = 0; i < iterations; i++) {
            auto step = [&](const char *what) {
                cudaError_t r = cudaDeviceSynchronize();
                if (r != cudaSuccess) {
                    printf("FAIL,iteration %d,%s,%s\n", i, what, cudaGetErrorString(r));
                    exit(1);
                }
            };
            plan(256, 24, 0);
            step("plan");
            up(moe_up[0], i % L, 0);
            step("up");
            down(moe_down[0], i % L, 0);
            step("down");
            sum(256, 0);
            step("sum");
        }
        printf("ok,%d iterations\n", iterations);
        return;
    }
    /* A result must not depend on the variant: each must agree with the first to the bit. */
    auto agree = [&](const char *name, const char *shape, const void *out, bool first, size_t bytes) {
        std::vector<char> a(bytes), b(bytes);
        if (first)
            CK(cudaMemcpy(d2, out, bytes, cudaMemcpyDeviceToDevice));
        CK(cudaMemcpy(a.data(), out, bytes, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(b.data(), d2, bytes, cudaMemcpyDeviceToHost));
        bool same = memcmp(a.data(), b.data(), bytes) == 0;
        kb_failures += !same;
        printf("%s,%s agrees with the first to the bit,%s\n", same ? "ok" : "FAIL", name, shape);
    };
    struct {
        const char *name;
        int rows;
        moe_routing kind;
    } cases[] = {{"rows256_random", 256, ROUTE_RANDOM}, {"rows1", 1, ROUTE_RANDOM},          {"rows37", 37, ROUTE_RANDOM},
                 {"rows256_same", 256, ROUTE_SAME},     {"rows256_skewed", 256, ROUTE_SKEWED}, {"rows1024_random", 1024, ROUTE_RANDOM},
                 {"rows2048_random", 2048, ROUTE_RANDOM}};
    for (auto &c : cases) {
        std::vector<int> e = moe_route(s, c.rows, c.kind);
        int pairs = c.rows * s.topk;
        bool check = c.rows <= 256;
        CK(cudaMemcpy(ex, e.data(), pairs * 4, cudaMemcpyHostToDevice));
        std::vector<bool> hit(s.experts);
        for (int v : e)
            hit[v] = true;
        double active = std::count(hit.begin(), hit.end(), true) / (double)s.experts;
        double fl_up = 2.0 * pairs * 2 * s.moe * s.K, fl_down = 2.0 * pairs * s.K * s.moe;
        char what[96];
        for (auto &v : moe_up) {
            plan(c.rows, v.nmax, 0);
            kb_poison(h, (size_t)pairs * s.moe * 2);
            up(v, 0, 0);
            CKL();
            CK(cudaDeviceSynchronize());
            if (check) {
                snprintf(what, sizeof what, "%s %s", v.name, c.name);
                ref_up<<<pairs, 352>>>(raw_up, x, s.K, s.moe, s.topk, ex, sp, h, got, want, bound);
                CKL();
                kb_compare(what, got, want, bound, (size_t)pairs * s.moe);
            }
            agree(v.name, c.name, h, &v == moe_up, (size_t)pairs * s.moe * 2);
            if (c.rows >= 256)
                kb_time_graph(v.name, c.name, 12, active * up_bytes, fl_up, [&](int i, cudaStream_t st) { up(v, i % L, st); });
            up(v, 0, 0);
        }
        for (auto &v : moe_down) {
            plan(c.rows, v.nmax, 0);
            up(moe_up[v.nmax == 24 ? 0 : 1], 0, 0);
            kb_poison(d, (size_t)pairs * s.K * 4);
            down(v, 0, 0);
            CKL();
            CK(cudaDeviceSynchronize());
            if (check) {
                snprintf(what, sizeof what, "%s %s", v.name, c.name);
                ref_down<<<pairs, 352>>>(raw_down, h, s.moe, s.K, ex, sp, want, bound);
                CKL();
                kb_compare(what, d, want, bound, (size_t)pairs * s.K);
            }
            agree(v.name, c.name, d, &v == moe_down, (size_t)pairs * s.K * 4);
            if (c.rows >= 256)
                kb_time_graph(v.name, c.name, 12, active * down_bytes, fl_down, [&](int i, cudaStream_t st) { down(v, i % L, st); });
            down(v, 0, 0);
        }
        kb_poison(y, (size_t)c.rows * s.K * 4);
        ref_sum<<<c.rows, 352>>>(d, wt, s.topk, s.K, want, bound);
        CKL();
        sum(c.rows, 0);
        snprintf(what, sizeof what, "sum %s", c.name);
        kb_compare(what, y, want, bound, (size_t)c.rows * s.K);
        if (c.rows >= 256) {
            kb_time_graph("plan", c.name, 12, (double)c.rows * s.K * 4, 0, [&](int, cudaStream_t st) { plan(c.rows, 24, st); });
            /* of lines it has dropped itself: read from memory, in a layer mostly from the L2 */
            kb_time_graph("sum_alone", c.name, 12, (double)(pairs + c.rows) * s.K * 4, 0, [&](int, cudaStream_t st) { sum(c.rows, st); });
            const char *layer[] = {"experts_layer_n24", "experts_layer_n64", "experts_layer_n24_dependent",
                                   "experts_layer_n64_dependent"};
            for (int w = 0; w < 4; w++) {
                kb_dependent = w >= 2;
                kb_time_graph(layer[w], c.name, 30, active * (up_bytes + down_bytes), fl_up + fl_down, [&](int i, cudaStream_t st) {
                    plan(c.rows, w & 1 ? 64 : 24, st);
                    up(moe_up[w & 1], i % L, st);
                    down(moe_down[w & 1], i % L, st);
                    sum(c.rows, st);
                });
                kb_dependent = false;
            }
        }
    }
    CK(cudaFree(raw_up));
    CK(cudaFree(raw_down));
    for (int l = 0; l < L; l++) {
        CK(cudaFree(wu[l]));
        CK(cudaFree(wd[l]));
    }
    for (void *p : {(void *)x, (void *)xp, (void *)h, (void *)d, (void *)y, (void *)wt, (void *)got, (void *)want, (void *)bound, (void *)d2,
                    (void *)ex, (void *)sp, (void *)ne, (void *)en})
        CK(cudaFree(p));
}
