/* Where the scores of top-k attention lie: groups of 32 keys, in the order in which the lanes of a tensor core product hold them, and each
 * group's largest score beside them. */
#ifndef DG_OPS_CUDA_TOPK_CUH
#define DG_OPS_CUDA_TOPK_CUH

#include "ops/cuda/kernels/device.cuh"

/* Place of key i (0 to 31) in its group: what one lane holds of four 8-wide tiles is two runs of four. */
DGC_FN int dgc_top_place(int i) { return (i & 16) + (i & 6) * 2 + (i >> 3 & 1) * 2 + (i & 1); }

/* v[2 n + e]: the score of key 8 n + 2 c + e of a group, c the lane's place in its quad. The largest of the first `seen` keys, given to the
 * quad's four lanes, which must all come here; NaN wins. */
DGC_FN float dgc_top_most(const float *v, int seen) {
    int c = (int)threadIdx.x & 3;
    float most = -DGC_INF;
#pragma unroll
    for (int j = 0; j < 8; j++)
        most = dgc_max_nan(most, (j >> 1) * 8 + 2 * c + (j & 1) < seen ? v[j] : -DGC_INF);
    most = dgc_max_nan(most, __shfl_xor_sync(0xffffffffu, most, 1));
    return dgc_max_nan(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

/* Stores the same lane's scores; to: the group's first. */
DGC_FN void dgc_top_store(float *to, const float *v) {
    int c = (int)threadIdx.x & 3;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint4 u;
        u.x = __float_as_uint(v[4 * j]);
        u.y = __float_as_uint(v[4 * j + 1]);
        u.z = __float_as_uint(v[4 * j + 2]);
        u.w = __float_as_uint(v[4 * j + 3]);
        *(uint4 *)(to + j * 16 + c * 4) = u;
    }
}

#endif
