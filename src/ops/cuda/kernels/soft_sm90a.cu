/* The dense soft embedding on Hopper: y^T = embed^T . p^T. 64 columns of the embedding are wgmma's A operand: its rows lie in shared memory as
 * the file has them, [id][column], come out transposed, and become f16 in registers, where bf16's few bits are exact; the probabilities of
 * 256 rows are the N operand. One block makes 128 columns over a range of ids: two consumer warpgroups, one producer. */
#include "ops/cuda/kernels/sm90.cuh"

#define STAGES 4
#define E_BYTES (128 * 64 * 2)
#define STAGE (E_BYTES + 256 * 64 * 2)

/* A fragments of 64 ids by the warp's 16 columns; e: the warpgroup's [64 ids][64 columns], 128-byte swizzle. */
DGC_FN void load_columns(const unsigned char *e, unsigned (&a)[4][4]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        dgc_ldmatrix_x4_trans(a[k], e + dg_sw128(k * 16 + (lane & 7) + (lane >> 4) * 8, warp * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = dgc_pack_f16(__uint_as_float(a[k][i] << 16), __uint_as_float(a[k][i] & 0xffff0000u));
    }
}

DGC_KERNEL_ONE(soft_sm90, soft_sm90, 384) {
    unsigned char *smem = dg_dyn;
    unsigned full = dg_smem(smem + STAGES * STAGE), empty = full + STAGES * 8;
    int wg = threadIdx.x >> 7, lane = threadIdx.x & 31, part = blockIdx.x % DGC_SOFT_PARTS_SM90;
    int col = blockIdx.x / DGC_SOFT_PARTS_SM90 * 128, row = blockIdx.y * 256, mine = row + threadIdx.x;
    dgc_chain();
    if (!__syncthreads_or(threadIdx.x < 256 && mine < a.rows && (!a.sparse || a.count[mine] > DGC_SOFT_LIST)))
        return;
    int all = (a.vocab + 63) / 64, begin = (int)((int64_t)all * part / DGC_SOFT_PARTS_SM90),
        end = (int)((int64_t)all * (part + 1) / DGC_SOFT_PARTS_SM90);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dg_bar_init(full + i * 8, 1);
            dg_bar_init(empty + i * 8, 8);
        }
        dg_bar_init_fence();
    }
    __syncthreads();
    if (wg == 2) {
        dg_regs_less<40>();
        if (threadIdx.x == 256) {
            uint64_t first = dg_policy_first(), last = dg_policy_last();
            for (int i = begin; i < end; i++) {
                int s = (i - begin) % STAGES, turn = (i - begin) / STAGES;
                unsigned at = dg_smem(smem + s * STAGE), bar = full + s * 8;
                dg_bar_wait(empty + s * 8, (turn & 1) ^ 1);
                dg_bar_expect(bar, STAGE);
                dg_tma_load(at, &a.e, col, i * 64, bar, first);
                dg_tma_load(at + E_BYTES / 2, &a.e, col + 64, i * 64, bar, first);
                dg_tma_load(at + E_BYTES, &a.p, i * 64, row, bar, last);
            }
        }
        return;
    }
    dg_regs_more<224>();
    float acc[128];
    unsigned w[2][4][4];
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0;
    int prev = -1;
    auto step = [&](int i, unsigned (&f)[4][4]) {
        int s = (i - begin) % STAGES;
        dg_bar_wait(full + s * 8, (i - begin) / STAGES & 1);
        const unsigned char *at = smem + s * STAGE;
        load_columns(at + wg * (E_BYTES / 2), f);
        unsigned b = dg_desc_sw128(dg_smem(at + E_BYTES));
        dg_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            dg_wgmma_rs_f16(acc, f[k], b + 2 * k);
        dg_wgmma_commit();
        dg_wgmma_wait<1>();
        if (prev >= 0 && lane == 0)
            dg_bar_arrive(empty + prev * 8);
        prev = s;
    };
    int i = begin;
    for (; i + 1 < end; i += 2) {
        step(i, w[0]);
        step(i + 1, w[1]);
    }
    if (i < end)
        step(i, w[0]);
    dg_wgmma_wait<0>();
    int c = col + wg * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2), q = lane & 3;
#pragma unroll
    for (int n = 0; n < 32; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int m = row + 8 * n + 2 * q + j;
            if (m >= a.rows || (a.sparse && a.count[m] <= DGC_SOFT_LIST))
                continue;
            float *to = a.part + ((int64_t)m * DGC_SOFT_PARTS + part) * a.k;
            if (c < a.k)
                to[c] = acc[4 * n + j];
            if (c + 8 < a.k)
                to[c + 8] = acc[4 * n + 2 + j];
        }
}
