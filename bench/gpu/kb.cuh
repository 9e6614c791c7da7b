/* What the kernel bench's parts share: error checks, random fills, timing, CSV, comparison against references. Runtime API. */
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CK(x)                                                                                                                          \
    do {                                                                                                                               \
        cudaError_t e_ = (x);                                                                                                          \
        if (e_ != cudaSuccess) {                                                                                                       \
            printf("FAIL,%s:%d,%s,%s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));                                              \
            fflush(stdout);                                                                                                            \
            exit(1);                                                                                                                   \
        }                                                                                                                              \
    } while (0)
#define CKL()                                                                                                                          \
    do {                                                                                                                               \
        CK(cudaGetLastError());                                                                                                        \
    } while (0)

static uint64_t kb_seed = 1;
static int kb_failures = 0, kb_sms = 132;
static double kb_copy = 4.28e12, kb_gemm = 700e12; /* probed: bytes/s, flop/s */

template <class T> static T *kb_alloc(size_t n) {
    T *p;
    CK(cudaMalloc(&p, n * sizeof(T)));
    return p;
}

__device__ static inline uint32_t kb_hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}
__device__ static inline float kb_uniform(uint64_t x) { return (float)(kb_hash(x) >> 8) * (1.0f / 16777216.0f); }
__device__ static inline float kb_bf(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
__device__ static inline uint16_t kb_to_bf(float f) {
    uint32_t u = __float_as_uint(f);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
__global__ static void kb_fill_bf16_k(uint16_t *p, size_t n, uint64_t seed, float scale) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = kb_to_bf((kb_uniform(seed + i) + kb_uniform(seed + i + (1ull << 40)) - 1.0f) * 2 * scale);
}
__global__ static void kb_fill_q4_k(uint8_t *p, size_t blocks, uint64_t seed, float scale) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < blocks; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t *w = (uint32_t *)(p + i * 20);
        float s = scale * (0.5f + kb_uniform(seed + i * 8)), m = -s * (7 + kb_uniform(seed + i * 8 + 1));
        w[0] = kb_to_bf(s) | (uint32_t)kb_to_bf(m) << 16;
        for (int j = 1; j < 5; j++)
            w[j] = kb_hash(seed + i * 8 + 1 + j);
    }
}
static void kb_fill_bf16(void *p, size_t n, float scale) {
    kb_fill_bf16_k<<<1056, 256>>>((uint16_t *)p, n, kb_seed += 1ull << 41, scale);
    CKL();
}
static void kb_fill_q4(void *p, size_t bytes, float scale) {
    kb_fill_q4_k<<<1056, 256>>>((uint8_t *)p, bytes / 20, kb_seed += 1ull << 41, scale);
    CKL();
}
static void kb_poison(void *p, size_t bytes) { CK(cudaMemset(p, 0xff, bytes)); }

/* Largest |got - want| / bound over n values; NaN counts as infinite. */
__global__ static void kb_cmp_k(const float *got, const float *want, const float *bound, size_t n, unsigned *worst) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float r = fabsf(got[i] - want[i]) / bound[i];
        if (!(r >= 0))
            r = got[i] == want[i] ? 0 : __int_as_float(0x7f800000);
        atomicMax(worst, __float_as_uint(r));
    }
}
static void kb_compare(const char *what, const float *got, const float *want, const float *bound, size_t n) {
    unsigned *w = kb_alloc<unsigned>(1), h;
    CK(cudaMemset(w, 0, 4));
    kb_cmp_k<<<1056, 256>>>(got, want, bound, n, w);
    CKL();
    CK(cudaMemcpy(&h, w, 4, cudaMemcpyDeviceToHost));
    CK(cudaFree(w));
    float f;
    memcpy(&f, &h, 4);
    if (!(f <= 1))
        kb_failures++;
    printf("%s,%s,error_over_bound,%.3f\n", f <= 1 ? "ok" : "FAIL", what, f);
    fflush(stdout);
}

static double kb_report(const char *how, const char *name, const char *shape, std::vector<double> &t, double bytes, double flops) {
    std::sort(t.begin(), t.end());
    double m = t[t.size() / 2], fb = bytes / kb_copy * 1e6, ff = flops / kb_gemm * 1e6, fl = std::max(fb, ff);
    printf("%s,%s,%s,us,%.2f,p10,%.2f,p90,%.2f,TBps,%.3f,TFLOPs,%.1f,floor_bytes_us,%.2f,floor_flops_us,%.2f,floor_ratio,%.3f\n", how, name, shape,
           m, t[t.size() / 10], t[t.size() * 9 / 10], bytes / m * 1e-6, flops / m * 1e-6, fb, ff, fl / m);
    fflush(stdout);
    return m;
}

/* us per call: reps samples of `inner` calls fn(i) each; prints median and the 10th and 90th percentile against the larger floor. */
static double kb_time(const char *name, const char *shape, int inner, double bytes, double flops, const std::function<void(int)> &fn) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    std::vector<double> t;
    int n = 0;
    for (int r = 0; r < 18; r++) {
        CK(cudaEventRecord(a));
        for (int i = 0; i < inner; i++)
            fn(n++);
        CK(cudaEventRecord(b));
        CK(cudaEventSynchronize(b));
        CKL();
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (r >= 3)
            t.push_back(ms * 1e3 / inner);
    }
    double m = kb_report("time", name, shape, t, bytes, flops);
    CK(cudaEventDestroy(a));
    CK(cudaEventDestroy(b));
    return m;
}

/* The same over a captured graph: fn(i) for i in [0, inner) becomes one graph. */
static double kb_time_graph(const char *name, const char *shape, int inner, double bytes, double flops,
                            const std::function<void(int, cudaStream_t)> &fn) {
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t x;
    CK(cudaStreamCreate(&s));
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < inner; i++)
        fn(i, s);
    CK(cudaStreamEndCapture(s, &g));
    CK(cudaGraphInstantiate(&x, g, 0));
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    std::vector<double> t;
    for (int r = 0; r < 18; r++) {
        CK(cudaEventRecord(a, s));
        CK(cudaGraphLaunch(x, s));
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (r >= 3)
            t.push_back(ms * 1e3 / inner);
    }
    double m = kb_report("graph", name, shape, t, bytes, flops);
    CK(cudaGraphExecDestroy(x));
    CK(cudaGraphDestroy(g));
    CK(cudaStreamDestroy(s));
    return m;
}

/* Launches are programmatic dependents of their predecessors. */
static bool kb_dependent;

static void kb_launch(const void *k, dim3 grid, int threads, size_t smem, cudaStream_t s, void **args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = smem;
    c.stream = s;
    cudaLaunchAttribute at;
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &at;
    c.numAttrs = kb_dependent;
    if (smem > 48 * 1024)
        CK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    CK(cudaLaunchKernelExC(&c, k, args));
}
template <class... A> static void kb_run(const void *k, dim3 grid, int threads, size_t smem, cudaStream_t s, A... a) {
    void *args[] = {(void *)&a...};
    kb_launch(k, grid, threads, smem, s, args);
}

/* A tensor map of rows x cols elements, row after row `pitch` bytes apart, in device memory. */
static void *kb_map(CUtensorMapDataType type, const void *p, uint64_t cols, uint64_t rows, uint64_t pitch, uint32_t box_cols,
                    uint32_t box_rows, CUtensorMapSwizzle sw) {
    typedef CUresult (*enc_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);
    static enc_fn enc;
    if (!enc) {
        cudaDriverEntryPointQueryResult q;
        CK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", (void **)&enc, cudaEnableDefault, &q));
    }
    alignas(64) CUtensorMap m;
    cuuint64_t dims[2] = {cols, rows}, strides[1] = {pitch};
    cuuint32_t box[2] = {box_cols, box_rows}, es[2] = {1, 1};
    CUresult r = enc(&m, type, 2, (void *)p, dims, strides, box, es, CU_TENSOR_MAP_INTERLEAVE_NONE, sw,
                     sw == CU_TENSOR_MAP_SWIZZLE_NONE ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) {
        printf("FAIL,cuTensorMapEncodeTiled,%d\n", (int)r);
        exit(1);
    }
    void *d = kb_alloc<CUtensorMap>(1);
    CK(cudaMemcpy(d, &m, sizeof m, cudaMemcpyHostToDevice));
    return d;
}
