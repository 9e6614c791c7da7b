/* The dense soft embedding on tensor cores: y = p . embed with p = exp(z / T - max) and the embedding in f16, f32 sums, not yet divided by
 * the row's sum. bf16 embeddings are read as they are and turned into f16 in registers, where their few bits are exact.
 *
 * The embedding's columns are the mma's A operand: its rows lie in shared memory as the file has them, [id][column], and come out
 * transposed. The vocabulary is cut into DGC_SOFT_PARTS ranges, whatever the batch, whose sums are added in order afterwards. */
#include "ops/cuda/kernels/device.cuh"

#define COLS 128
#define ROWS 64
#define K DGC_SOFT_K
#define E_STRIDE (COLS + 8) /* elements; shifts 16 bytes a row, so that 8 rows meet all banks */
#define P_STRIDE (K + 8)

DGC_FN int is_dense(int sparse, const int32_t *count, int64_t row) { return !sparse || count[row] > DGC_SOFT_LIST; }

DGC_KERNEL(soft_probs, soft_probs, 256) {
    int64_t row = blockIdx.y;
    if (!is_dense(a.sparse, a.count, row))
        return;
    const float *z = a.logits + row * a.ld;
    int wide = !((uint64_t)z & 15), begin = (int)blockIdx.x * DGC_SOFT_PROBS;
    float inv_t = a.prm->inv_t_soft, max = a.max[row];
#pragma unroll 2
    for (int v = begin + (int)threadIdx.x * 8; v < begin + DGC_SOFT_PROBS && v < a.p_ld; v += 256 * 8) {
        float p[8];
        if (wide && v + 8 <= a.vocab) {
            uint4 x = ((const uint4 *)(z + v))[0], y = ((const uint4 *)(z + v))[1];
            uint32_t u[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 8; i++)
                p[i] = __uint_as_float(u[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                p[i] = v + i < a.vocab ? z[v + i] : -DGC_INF;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float d = fmaf(p[i], inv_t, -max);
            p[i] = a.sparse && !(d >= DGC_SPARSE_CUT) ? 0.0f : expf(d);
        }
        uint4 out;
        out.x = dgc_pack_f16(p[0], p[1]), out.y = dgc_pack_f16(p[2], p[3]), out.z = dgc_pack_f16(p[4], p[5]), out.w = dgc_pack_f16(p[6], p[7]);
        *(uint4 *)(a.p + row * a.p_ld + v) = out;
    }
}

/* First id of a range, at a multiple of the step. */
DGC_FN int range_begin(int vocab, int i) {
    int begin = (int)(((int64_t)vocab + K - 1) / K * i / DGC_SOFT_PARTS) * K;
    return begin < vocab ? begin : vocab;
}

DGC_FN void load_step(const struct dgc_soft_mma_args *a, int wide, float global, int v0, int v_end, int c0, int m0, uint16_t *es, uint16_t *ps) {
#pragma unroll
    for (int i = 0; i < K * COLS / 8 / 128; i++) {
        int id = (int)threadIdx.x + i * 128, v = id >> 4, c = (id & 15) * 8;
        uint16_t *dst = es + v * E_STRIDE + c;
        const uint8_t *row = a->e.p + (int64_t)(v0 + v) * a->e.row_bytes;
        if (v0 + v < v_end && wide && c0 + c + 8 <= a->e.k) {
            dgc_cp_async16(dst, row + (c0 + c) * 2);
        } else {
            float w[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                w[j] = 0.0f;
            if (v0 + v < v_end && c0 + c < a->e.k)
                dgc_decode8(a->e.fmt, row, global, c0 + c, a->e.k, w);
#pragma unroll
            for (int j = 0; j < 4; j++)
                ((uint32_t *)dst)[j] = a->e.fmt == DGC_FMT_BF16 ? dgc_pack_bf16(w[2 * j], w[2 * j + 1]) : dgc_pack_f16(w[2 * j], w[2 * j + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * K / 8 / 128; i++) {
        int id = (int)threadIdx.x + i * 128, m = id >> 2, v = (id & 3) * 8;
        uint16_t *dst = ps + m * P_STRIDE + v;
        if (m0 + m < a->rows)
            dgc_cp_async16(dst, a->p + (int64_t)(m0 + m) * a->p_ld + v0 + v);
        else
#pragma unroll
            for (int j = 0; j < 4; j++)
                ((uint32_t *)dst)[j] = 0;
    }
}

DGC_KERNEL(soft_mma, soft_mma, 128) {
    __shared__ __align__(16) uint16_t es[2][K * E_STRIDE];
    __shared__ __align__(16) uint16_t ps[2][ROWS * P_STRIDE];
    int part = (int)blockIdx.y % DGC_SOFT_PARTS, m0 = (int)blockIdx.y / DGC_SOFT_PARTS * ROWS, c0 = (int)blockIdx.x * COLS;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2, c = lane & 3, row = m0 + ((int)threadIdx.x & 63);
    if (!__syncthreads_or(row < a.rows && is_dense(a.sparse, a.count, row)))
        return;
    int begin = range_begin(a.e.n, part), end = range_begin(a.e.n, part + 1);
    int wide = a.e.fmt == DGC_FMT_BF16 && !(((uint64_t)a.e.p | (uint64_t)a.e.row_bytes) & 15);
    float global = dgc_mat_scale(&a.e, a.e.p), acc[2][8][4];
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[f][n][i] = 0.0f;
    if (begin < end)
        load_step(&a, wide, global, begin, end, c0, m0, es[0], ps[0]);
    dgc_cp_commit();
    for (int v0 = begin, buf = 0; v0 < end; v0 += K, buf ^= 1) {
        dgc_cp_wait(0);
        __syncthreads();
        if (v0 + K < end)
            load_step(&a, wide, global, v0 + K, end, c0, m0, es[buf ^ 1], ps[buf ^ 1]);
        dgc_cp_commit();
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            uint32_t w[2][4];
#pragma unroll
            for (int f = 0; f < 2; f++) {
                dgc_ldmatrix_x4_trans(w[f], es[buf] + (k + (lane & 7) + (lane >> 4) * 8) * E_STRIDE + warp * 32 + f * 16 + (lane >> 3 & 1) * 8);
                if (a.e.fmt == DGC_FMT_BF16)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        w[f][i] = dgc_pack_f16(__uint_as_float(w[f][i] << 16), __uint_as_float(w[f][i] & 0xffff0000u));
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const uint16_t *p = ps[buf] + (n * 8 + g) * P_STRIDE + k + 2 * c;
                uint32_t b0 = *(const uint32_t *)p, b1 = *(const uint32_t *)(p + 8);
                dgc_mma_f16(acc[0][n], w[0], b0, b1);
                dgc_mma_f16(acc[1][n], w[1], b0, b1);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                int m = m0 + n * 8 + 2 * c + (i & 1), col = c0 + warp * 32 + f * 16 + g + 8 * (i >> 1);
                if (m < a.rows && col < a.e.k && is_dense(a.sparse, a.count, m))
                    a.part[((int64_t)m * DGC_SOFT_PARTS + part) * a.e.k + col] = acc[f][n][i];
            }
}
