/* Seeded weights made on the device, for measuring without a file. A value depends on the seed, its matrix's row and its block alone. */
#include "ops/cuda/kernels/device.cuh"

/* splitmix64's output function */
DGC_FN uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

DGC_FN float uniform(uint64_t h) { return (float)(h >> 40) * (2.0f / 16777216.0f) - 1.0f; }

/* A random word of a row: its own, or one that all rows of its group have. */
DGC_FN uint64_t word(uint64_t own, uint64_t group, float shared, int i) {
    uint64_t h = mix(own + (uint64_t)i);
    return (float)(h & 0xffffff) < shared * 16777216.0f ? mix(group + (uint64_t)i) : h; /* what is made of h comes from the bits above */
}

DGC_FN void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* One thread makes up to 32 values. */
DGC_KERNEL(fill, fill, 128) {
    int64_t row = blockIdx.x;
    int b = (int)(blockIdx.y * 128 + threadIdx.x), k0 = b * 32, n = a.m.k - k0 < 32 ? a.m.k - k0 : 32;
    if (n <= 0)
        return;
    uint8_t *p = (uint8_t *)a.m.p + row * a.m.row_bytes;
    uint64_t seed = mix(a.seed ^ mix((uint64_t)row << 32 | (uint64_t)b));
    uint64_t group = mix(a.seed ^ mix(~((uint64_t)(row / a.kin) << 32 | (uint64_t)b))), scales = a.shared > 0.0f ? group : seed;
    if (a.m.fmt == DGC_FMT_Q4 || a.m.fmt == DGC_FMT_Q6) {
        int top = a.m.fmt == DGC_FMT_Q4 ? 15 : 63, bytes = a.m.fmt == DGC_FMT_Q4 ? 16 : 24;
        float scale = a.spread * (1.5f + 0.5f * uniform(scales)) / (float)top;
        p += (int64_t)b * (4 + bytes);
        put16(p, dgc_f32_bf16(scale));
        put16(p + 2, dgc_f32_bf16(-0.5f * (float)top * scale));
        for (int i = 0; i < bytes; i++)
            p[4 + i] = (uint8_t)(word(seed, group, a.shared, i) >> 32);
    } else if (a.m.fmt == DGC_FMT_NVFP4) {
        if (row == 0 && b == 0) {
            uint32_t g = __float_as_uint(a.spread / 6.0f);
            put16((uint8_t *)a.m.p - 4, g & 0xffff);
            put16((uint8_t *)a.m.p - 2, g >> 16);
        }
        for (int i = 0; i < n / 2; i++)
            p[k0 / 2 + i] = (uint8_t)(word(seed, group, a.shared, i) >> 32);
        for (int i = 0; i < n / 16; i++)
            p[a.m.k / 2 + k0 / 16 + i] = (uint8_t)(0x30 + (mix(scales ^ (uint64_t)i) >> 60));
    } else if (a.m.fmt == DGC_FMT_Q8) {
        if (b == 0)
            put16(p, dgc_f32_bf16(a.spread / 127.0f));
        for (int i = 0; i < n; i++)
            p[2 + k0 + i] = (uint8_t)(word(seed, group, a.shared, i) >> 32);
    } else {
        for (int i = 0; i < n; i++)
            dgc_store(p, a.m.fmt == DGC_FMT_F32 ? DGC_F32 : a.m.fmt == DGC_FMT_F16 ? DGC_F16 : DGC_BF16, k0 + i,
                      a.spread * uniform(word(seed, group, a.shared, i)));
    }
}

DGC_KERNEL(fill_vec, fill_vec, 256) {
    int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < a.n)
        a.v[i] = a.center + a.spread * uniform(mix(a.seed ^ mix((uint64_t)i)));
}
