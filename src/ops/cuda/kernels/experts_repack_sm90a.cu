/* Once, after a stack's upload: its bytes in the order, and with the scales, that the expert kernels read (experts_sm90.cuh). */
#include "ops/cuda/kernels/experts_sm90.cuh"

/* Reorders a stack (q4_block [experts][rows][K], 16-byte aligned) in place, tile by tile of 64 rows; glu: rows are gate and up, and a tile
 * is 32 of each. Within a tile, group after group of 64 K: for each of four warps 512 bytes of words, 16 a lane (two words of row
 * lane / 4, two of row lane / 4 + 8), then 128 bytes, 8 for each two lanes: scales of both rows, minima of both. A warp has 16 rows; of a
 * glu tile 8 gate rows and the same features' up rows. Scales become s * 2^97, minima m * 2^-32: exact for 0 and for values between 2^-90 and 2^26.
 * 64 | rows, 64 | K. Grid: experts * rows / 64 blocks of 512 threads, 64 * (K / 32 * 20) bytes of dynamic shared memory. */
DGC_KERNEL(moe_repack, moe_repack, 512) {
    int row_bytes = a.k / 32 * 20, tiles = a.rows / 64, half = 32 * row_bytes, glu = a.glu;
    uint4 *s = (uint4 *)dg_dyn, *t0 = (uint4 *)a.w + dg_q4_tile(blockIdx.x / tiles, a.rows, blockIdx.x % tiles, row_bytes, glu);
    uint4 *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    for (int i = threadIdx.x; i < half / 16; i += blockDim.x) {
        s[i] = t0[i];
        s[half / 16 + i] = t1[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 160, warp = i % 160 / 40, r = i % 40;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            int lane = r < 32 ? r : 4 * (r - 32) + 2 * (j >> 1), hi = r < 32 ? j >> 1 : j & 1, q = lane & 3;
            int row = glu ? 8 * warp + 32 * hi + (lane >> 2) : 16 * warp + 8 * hi + (lane >> 2);
            int word = r < 32 ? dg_perm_word(q, j & 1) : 0;
            int byte = r < 32 ? 4 * (word + 1 + (word >> 2)) : 20 * (q >> 1);
            o[j] = *(const unsigned *)(dg_dyn + row * row_bytes + group * 40 + byte);
            if (r >= 32)
                o[j] = dgc_pack_bf16(__uint_as_float(o[j] << 16) * 0x1p97f, __uint_as_float(o[j] & 0xffff0000u) * 0x1p-32f);
        }
        for (int j = 0; r >= 32 && j < 4; j += 2) { /* from scale|min of each row */
            unsigned scales = __byte_perm(o[j], o[j + 1], 0x5410);
            o[j + 1] = __byte_perm(o[j], o[j + 1], 0x7632);
            o[j] = scales;
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}

/* Codes of a word under an e4m3 scale in the order that dg_nv_word reads: of each half's first three the low bits one after another from bit 0,
 * each sign 9 bits above the lowest of them; the fourth's bits in 13, 14 and 10, its sign in 11. The scale's sign and whether it is 0 go into the
 * codes. */
DGC_FN unsigned dg_nv_codes(unsigned w, unsigned scale) {
    unsigned o = 0;
    w ^= scale & 0x80 ? 0x88888888u : 0;
    w &= scale & 0x7f ? ~0u : 0x88888888u;
    for (int e = 0; e < 8; e++) {
        unsigned c = w >> (4 * e) & 15, at = e >> 2 << 4;
        int j = e & 3;
        o |= j < 3 ? (c & 7) << (at + 3 * j) | (c >> 3) << (at + 3 * j + 9)
                   : (c & 3) << (at + 13) | (c >> 2 & 1) << (at + 10) | (c >> 3) << (at + 11);
    }
    return o;
}
/* An e4m3 scale without its sign in five bits of exponent and three of mantissa, so that none is denormal: 16 more, or where the exponent was 0,
 * that of the highest bit. 0, whose codes are 0, as anything. */
DGC_FN unsigned dg_nv_scale(unsigned scale) {
    unsigned s = scale & 0x7f, p = s >= 4 ? 2 : s >= 2 ? 1 : 0;
    return s >= 8 ? s + 16 : s ? p << 3 | (s << (3 - p) & 7) : 0;
}
/* An nvfp4 stack into the same tiles as moe_repack makes, groups of 2304 bytes: a warp's 512 bytes of words, then 64 of scales, 4 for each two
 * lanes. Behind all tiles lie the experts' global scales. */
DGC_KERNEL(moe_repack_nv, moe_repack_nv, 512) {
    int groups = a.k / 64, tiles = a.rows / 64, expert = blockIdx.x / tiles, tile = blockIdx.x % tiles, row_bytes = groups * dg_nv::ROW;
    int half = 32 * row_bytes, glu = a.glu;
    int64_t bytes = (int64_t)a.rows * row_bytes;
    const uint8_t *from = a.from + expert * (bytes + 4) + 4;
    uint4 *t0 = (uint4 *)a.to + dg_q4_tile(expert, a.rows, tile, row_bytes, glu), *t1 = t0 + dg_q4_second(a.rows, row_bytes, glu);
    if (tile == 0 && threadIdx.x == 0)
        ((uint32_t *)(a.to + (int64_t)a.experts * bytes))[expert] = *(const uint32_t *)(from - 4);
    for (int i = threadIdx.x; i < 2 * half / 16; i += blockDim.x) {
        int group = i / 144, warp = i % 144 / 36, r = i % 36;
        unsigned o[4];
        for (int j = 0; j < 4; j++) {
            o[j] = 0;
            for (int n = 0; n < (r < 32 ? 1 : 2); n++) {
                int lane = r < 32 ? r : 2 * (4 * (r - 32) + j), hi = r < 32 ? j >> 1 : n, q = lane & 3;
                int row = glu ? tile * 32 + 8 * warp + hi * (a.rows / 2) + (lane >> 2) : tile * 64 + 16 * warp + 8 * hi + (lane >> 2);
                const uint8_t *codes = from + (int64_t)row * row_bytes, *scales = codes + groups * 32 + group * 4;
                if (r < 32) {
                    int word = dg_perm_word(q, j & 1);
                    unsigned w = *(const unsigned *)(codes + group * 32 + word * 4);
                    o[j] = dg_nv_codes(w, scales[word >> 1]);
                } else {
                    int s = 2 * (q >> 1);
                    o[j] |= (dg_nv_scale(scales[s]) | dg_nv_scale(scales[s + 1]) << 8) << (16 * n);
                }
            }
        }
        *(i < half / 16 ? t0 + i : t1 + (i - half / 16)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
}
