/* Bench of the Hopper kernels on their own: each is checked against a plain reference on fresh random data, then timed against floors
 * probed in the same run. Build: nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o kbench kbench.cu
 * Run: kbench [seed] [part...]; parts: probe moe moe=N gemm head (moe=N: N layers
 * launch by launch, for the sanitizer). Prints CSV; exit status 1 when a check failed. */
#include "kb.cuh"
#include "kb_gemm.cuh"
#include "kb_moe.cuh"

__global__ static void read_k(const uint4 *p, size_t n, uint32_t *out) {
    uint32_t s = 0;
    size_t step = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
        for (int j = 0; j < 4; j++)
            v[j] = __ldcg(p + i + j * step);
        for (int j = 0; j < 4; j++)
            s ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step)
        s ^= p[i].x;
    if (s == 0x12345678)
        *out = s;
}

static void probe(void) {
    size_t n = (size_t)2 << 30;
    uint8_t *a = kb_alloc<uint8_t>(n), *b = kb_alloc<uint8_t>(n);
    uint32_t *o = kb_alloc<uint32_t>(1);
    kb_fill_bf16(a, n / 2, 1);
    double us = kb_time("probe_copy", "2GiB", 3, 2.0 * n, 0, [&](int) { CK(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice)); });
    kb_copy = 2.0 * n / us * 1e6;
    kb_time("probe_read", "2GiB", 3, (double)n, 0, [&](int) { read_k<<<kb_sms * 8, 256>>>((const uint4 *)a, n / 16, o); });
    kb_time("probe_read_l2", "16MiB", 20, (double)(16 << 20), 0, [&](int) { read_k<<<kb_sms * 8, 256>>>((const uint4 *)a, (16 << 20) / 16, o); });
    kb_time("probe_launch", "empty", 20, 0, 0, [&](int) { read_k<<<1, 32>>>((const uint4 *)a, 0, o); });
    CK(cudaFree(a));
    CK(cudaFree(b));
    CK(cudaFree(o));
}

int main(int argc, char **argv) {
    kb_seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    kb_seed *= 0x9e3779b97f4a7c15ull;
    auto want = [&](const char *part) {
        for (int i = 2; i < argc; i++)
            if (strcmp(argv[i], part) == 0)
                return true;
        return argc <= 2;
    };
    cudaDeviceProp p;
    CK(cudaGetDeviceProperties(&p, 0));
    kb_sms = p.multiProcessorCount;
    printf("device,%s,%d multiprocessors,seed,%s\n", p.name, kb_sms, argc > 1 ? argv[1] : "1");
    if (want("probe"))
        probe();
    if (want("moe"))
        moe_bench(0);
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "moe=", 4) == 0)
            moe_bench(atoi(argv[i] + 4));
    if (want("gemm"))
        gemm_bench();
    if (want("head"))
        head_bench();
    printf("checks_failed,%d\n", kb_failures);
    return kb_failures != 0;
}
