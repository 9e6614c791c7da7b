/* Every CUDA kernel's arguments, declared once.
 *
 * A kernel takes one `struct dgc_KIND_args` by value. This header is compiled by the host's C compiler, by nvcc and by NVRTC: the host's
 * launch functions (state.h) and the device's signatures (DGC_KERNEL in kernels/device.cuh) both come from the lists at its end, so a
 * call and its kernel cannot drift. Pointers are device addresses. */
#ifndef DG_OPS_CUDA_KERNELS_H
#define DG_OPS_CUDA_KERNELS_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#include "ops/sample.h"

/* The run-time compiler takes no attribute behind a struct. */
#ifdef __cplusplus
#define DGC_ALIGNED(n) alignas(n)
#else
#define DGC_ALIGNED(n) __attribute__((aligned(n)))
#endif

/* enum dg_dtype and enum dg_format as the device knows them; backend.c checks that they agree. */
enum { DGC_F32, DGC_BF16, DGC_F16, DGC_I32 };
enum { DGC_FMT_BF16, DGC_FMT_F16, DGC_FMT_F32, DGC_FMT_Q4, DGC_FMT_Q6, DGC_FMT_Q8, DGC_FMT_NVFP4 };
enum { DGC_EPI_NONE, DGC_EPI_GLU, DGC_EPI_CAP };

#define DGC_STACKED 3       /* most matrices side by side in one linear op */
#define DGC_TILE 64         /* rows of x a tile of the grouped expert product covers */
#define DGC_SPARSE_CUT (-10.0f)
#define DGC_SOFT_PARTS 8    /* id ranges the sparse soft embedding of a row is split into, whatever the batch */
#define DGC_PLAN_COUNTERS 8192
#define DGC_ROUTER_EXPERTS 128 /* most experts of the router on tensor cores */
#define DGC_ROUTER_ROWS 32     /* rows of a block, */
#define DGC_ROUTER_PARTS 16    /* and parts a sum over k is cut into, one a block */
#define DGC_SOFT_LIST 1024   /* survivors of a row that the sparse soft embedding gathers one by one; rows with more are computed densely */
#define DGC_SOFT_FEW 64      /* survivors of a row that one block gathers */
#define DGC_STATS_TILE 128   /* ids of a tile whose largest logit is kept beside the row statistics */
#define DGC_SOFT_K 32        /* ids of a step of the dense one on tensor cores; its probabilities' rows are padded to whole steps */
#define DGC_SOFT_PROBS 16384 /* ids whose probabilities a block makes */
#define DGC_SOFT_PARTS_SM90 6 /* ranges of ids of the dense one on Hopper */
#define DGC_MMA_TILE 32      /* rows of x a tile of the grouped expert product covers, of the tensor core kernel */
#define DGC_MMA_ROWS 64      /* rows of x a tile of the dense tensor core product covers */
#define DGC_MMA_COLS 128     /* weight rows of a tile of either */
#define DGC_SPLIT_SLIDING 256 /* keys of one part of a flash attention row, which begins at a multiple of it: of sliding layers, */
#define DGC_SPLIT_FULL 2048   /* and of full ones, whose rows may be long */
#define DGC_FLASH_KEYS 32
#define DGC_MOE_TOKENS 48    /* most tokens of one expert that the Hopper expert kernels compute together: an entry */
#define DGC_MOE_WHOLE 24     /* most of them whose K stays whole in shared memory while gate and up walk it (down: any) */
#define DGC_MOE_EXPERTS 256  /* most experts they serve */
#define DGC_SHARED_SM90 232448 /* most dynamic shared memory of a block there */
#define DGC_SCORE_KEYS 256
#define DGC_TOP_MAX 4096     /* most keys a top-k query attends to */
#define DGC_FLASH_ROWS 64 /* query rows (times heads of a group) of a block; half of it where shared memory is short */
/* queries, and a ring of tiles of keys and values, in f16 */
#define DGC_FLASH_SHARED(hd, rows, ring) (((rows) + (ring) * DGC_FLASH_KEYS) * (hd) * 2)

struct dgc_plane {
    void *p;
    int64_t ld; /* elements */
    int32_t dtype;
};

struct dgc_mat {
    const uint8_t *p; /* first row; nvfp4's global scale lies in the 4 bytes before it */
    int64_t row_bytes;
    int32_t fmt, n, k;
};

/* What changes between the steps and blocks of a captured graph. */
struct dgc_params {
    int64_t pos0, ring_from, n_live;
    float inv_t_head; /* 1/T of the statistics being taken */
    float inv_t_soft; /* 1/T of the statistics the soft embedding reads. No padding: records are compared as bytes */
};

#define DGC_SAMPLE_THREADS 256
#define DGC_SAMPLE_ROWS 1024 /* most positions of a block */
/* One step of a block's sampler (ops.h, sample). One block. Moves prm's temperatures on by a step, whatever else happens. */
struct dgc_sample_args {
    struct dg_sample s;
    const float *entropy, *p_max;
    const int32_t *argmax;
    struct dgc_params *prm;
};

struct dgc_set_params_args {
    struct dgc_params *to;
    struct dgc_params v;
};

/* Fills a matrix with seeded values of about the given spread, through its format's own codes. A value is, with probability `shared`, that of all
 * rows of its group of `kin` >= 1. Grid: rows x ceil(k / 32 / 128). */
struct dgc_fill_args {
    struct dgc_mat m;
    uint64_t seed;
    float spread, shared;
    int32_t kin;
};

/* Seeded f32 vector: center + spread * uniform(-1, 1). */
struct dgc_fill_vec_args {
    float *v;
    int32_t n;
    uint64_t seed;
    float center, spread;
};

struct dgc_embed_args {
    const int32_t *ids;
    struct dgc_mat e;
    float scale;
    struct dgc_plane y;
};

/* y = (res + x * rsqrt(mean(x^2) + eps) * w) * scale; res.p and w may be NULL. One block a row. */
struct dgc_norm_args {
    struct dgc_plane x, res, y;
    const float *w;
    float eps, scale;
    int32_t cols;
};

struct dgc_norm_pair_args {
    struct dgc_plane a, b, y;
    const float *wa, *wb;
    float eps;
    int32_t cols;
};

#define DGC_NORM_OUTS 3
#define DGC_NORM_THREADS 384
#define DGC_NORM_COLS 8192 /* most columns of norm_chain_wide; norm_chain: 8 a thread */
/* What lies between two blocks of a layer (ops.h, norm_chain). All rows begin at multiples of 16 bytes, 8 | cols; no weight is NULL. b.p may
 * be NULL. norm_chain_sum makes b as moe_sum does, of d [rows * topk][cols] at a multiple of 128 bytes, which is undefined afterwards; 32 | cols. One
 * block a row. */
struct dgc_norm_chain_args {
    struct dgc_plane a, b, x, y[DGC_NORM_OUTS];
    const float *wa, *wb, *w, *wy[DGC_NORM_OUTS];
    float eps, scale, mul[DGC_NORM_OUTS];
    int32_t cols, n;
    float *d;
    const float *pair_weight;
    int32_t topk;
};

struct dgc_add_args {
    struct dgc_plane a, b, y;
    int32_t cols;
};

struct dgc_kv {
    void *k, *v;
    int64_t slots;
    int32_t dtype, kv_heads, hd, ring, window;
};

/* Grid: rows x (heads + 2 kv_heads); one warp each, 4 a block. */
struct dgc_qkv_store_args {
    struct dgc_plane qkv;
    const float *q_norm, *k_norm, *cos, *sin;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    int32_t n, heads, has_v;
    float eps;
};

struct dgc_attention_args {
    struct dgc_plane q, y;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    int32_t n, heads, causal;
};

/* y[m][...] = epilogue(x[m] . w). Tiles of one matrix never cross into the next. */
struct dgc_linear_args {
    struct dgc_plane x, y;
    struct dgc_mat w[DGC_STACKED];
    int32_t tiles[DGC_STACKED + 1]; /* first tile of each matrix along the output; the last used entry is the end */
    int32_t n_w, rows, epi;
    float cap;
};

/* parts: the logits are those of `router`, to be summed over the parts in order. */
struct dgc_route_args {
    const float *logits; /* [rows][experts] */
    const float *scale;
    int32_t *expert;
    float *weight;
    int32_t rows, experts, k, parts;
};

/* part[row][DGC_ROUTER_PARTS][expert] = x . w over each part of k. x and w bf16, rows at multiples of 16 bytes, 32 | k, at most
 * DGC_ROUTER_EXPERTS experts. Grid: row tiles x parts. */
struct dgc_router_args {
    struct dgc_plane x;
    struct dgc_mat w;
    float *part;
    int32_t rows;
};

/* The (row, rank) pairs ordered by expert, and the row tiles the expert products work on. Written by experts_plan. */
struct dgc_plan {
    int32_t *bucket;      /* [experts + 1] first sorted pair of each expert */
    int32_t *pair;        /* [pairs] row * topk + rank */
    int32_t *tile_expert; /* [tiles] */
    int32_t *tile_first;  /* [tiles] first sorted pair */
    int32_t *n_tiles;
};

struct dgc_experts_plan_args {
    const int32_t *expert;
    struct dgc_plan plan;
    int32_t pairs, experts, tile_rows, warps;
};

/* h[sorted pair][f] = gelu(gate x) * up x. w: expert 0's matrix, gate rows first. */
struct dgc_experts_up_args {
    struct dgc_plane x, h;
    struct dgc_mat w;
    int64_t mat_bytes;
    struct dgc_plan plan;
    int32_t topk;
};

/* y[pair][n] = h[sorted pair] . down, f32. */
struct dgc_experts_down_args {
    struct dgc_plane h, y;
    struct dgc_mat w;
    int64_t mat_bytes;
    struct dgc_plan plan;
};

struct dgc_experts_sum_args {
    const float *pair_y;
    const float *weight;
    struct dgc_plane y;
    int32_t topk, cols;
};

/* A tensor map as the driver writes it. */
struct DGC_ALIGNED(64) dgc_tmap {
    uint64_t v[16];
};

/* The Hopper products (gemm_sm90a.cu): y[m][..] = x[m] . the rows of up to three bf16 matrices side by side. Maps: bf16, 128-byte swizzle; of
 * w {k, n} with boxes {64, BW}, with GLU of gate and up with boxes {64, 8}, or, `both`, w[0] alone of {k, 8 rows, gate and up, n / 8} with
 * boxes {64, 8, 2, BW / 16}; of x {k, rows} with boxes {64, BT}. n: rows of each matrix, multiples of BW when another follows, of 8
 * otherwise, absent 0; GLU: n[0] features, the others 0.
 * Grid: ceil(rows of w / F) x ceil(rows / BT) with F = BW, with GLU BW / 2. */
struct dgc_gemm_args {
    struct dgc_tmap w[3], x;
    int32_t n[3], k, rows, both;
    uint16_t *y;
    int64_t ldy;
};
#define DGC_GEMM_SHARED(bw, bt, stages) ((stages) * (128 * ((bw) + (bt)) + 16))
/* Those of gemm_pair_sm90a.cu, without GLU, take the same with BT = 128. n: 8 | each. Grid: the sum of ceil(n[i] / BW), twice that with pairs,
 * x ceil(rows / 128). */
#define DGC_GEMM_TOKENS 128
#define DGC_GEMM_PAIR_SHARED(bw, stages) (DGC_GEMM_SHARED(bw, DGC_GEMM_TOKENS, stages) + (bw) * 256 + 8)

/* The output head (head_sm90a.cu): logits[m][v] = cap * tanh(x[m] . w[v] / cap), rows of them at multiples of 16 bytes, and per token and
 * DGC_STATS_TILE vocabulary rows {largest logit, sum of exp((logit - largest) / T), the same weighted with (logit - largest) / T, 0} in partial
 * [rows][ceil(vocab / DGC_STATS_TILE)][4]. 4 | vocab, 4 | ld. Maps: bf16, 128-byte swizzle; w: {k, 2, vocab / 4} with strides of one row and of
 * four and boxes {64, 2, 64}, the first one from row 0 on, the second from row 2 on; x {k, rows} with boxes {64, 64}. rows: up to DGC_HEAD_HALF;
 * _pair: up to twice as many. Grid: any number of blocks, best one a multiprocessor; _pair: any even number. */
struct dgc_head_sm90_args {
    struct dgc_tmap w[2], x;
    float *logits, *partial;
    int64_t ld;
    const struct dgc_params *prm;
    int32_t vocab, k, rows;
    float cap;
};
#define DGC_HEAD_HALF 128       /* tokens of a block */
#define DGC_HEAD_ID_STAGES 5    /* of 256 ids */
#define DGC_HEAD_TOKEN_STAGES 4 /* of either 64 tokens */
#define DGC_HEAD_SHARED (DGC_HEAD_ID_STAGES * (32768 + 16) + 2 * DGC_HEAD_TOKEN_STAGES * (8192 + 16) + 16)

/* Statistics of rows from those partial ones. tiles: ceil(vocab / DGC_STATS_TILE). Grid: a block a row. */
struct dgc_head_stats_args {
    const float *partial, *logits;
    int64_t ld;
    const struct dgc_params *prm;
    float *entropy, *max, *sum, *p_max;
    int32_t *argmax;
    int32_t tiles, vocab;
    float *tile_max; /* [rows][tiles], or NULL */
};

/* The Hopper expert kernels (experts_sm90a.cu). */

/* Reorders a q4 stack in place. rows: of an expert, gate rows first with glu. Both widths are multiples of 64, w one of 16 bytes. Grid: a block
 * per 64 rows of all experts; 64 * (k / 32 * 20) bytes of shared memory. */
struct dgc_moe_repack_args {
    uint8_t *w;
    int32_t rows, k, glu;
};

/* An nvfp4 stack of `experts` in the file's order at `from`, reordered to another place. Otherwise likewise, without shared memory. */
struct dgc_moe_repack_nv_args {
    const uint8_t *from;
    uint8_t *to;
    int32_t rows, k, glu, experts;
};

struct dgc_moe_entry {
    int32_t expert, slot, n, cost; /* cost: of all entries before it */
};

/* expert: [pairs], under DGC_MOE_EXPERTS; slot_pair: [pairs], the pair in each slot; entries: at most experts + pairs / DGC_MOE_TOKENS; n_entries:
 * their number, then their costs' sum, at a multiple of 8 bytes; xp: [rows][k], x permuted. 64 | k. Grid: 1 + ceil(rows * k / 8 / 1024). */
struct dgc_moe_plan_args {
    const int32_t *expert;
    int32_t *slot_pair, *n_entries;
    struct dgc_moe_entry *entries;
    struct dgc_plane x;
    uint16_t *xp;
    int32_t pairs, rows, k; /* pairs: 1 at least */
    int32_t cost[DGC_MOE_TOKENS / 8]; /* of a tile of 64 weight rows with up to 8, 16, ... tokens, over 0: what a block's share is measured in */
};

/* up: x is xp, k the hidden size, rows moe, out h; down: x is h, k moe, rows the hidden size, out d. 64 | k, 64 | rows. Grid: any number of
 * blocks, best one a multiprocessor. */
struct dgc_moe_args {
    const uint8_t *w;
    const uint16_t *x;
    const struct dgc_moe_entry *entries;
    const int32_t *n_entries, *slot_pair;
    void *out;
    int32_t k, rows, topk;
    const float *global; /* nvfp4: a factor of each expert's weights; NULL otherwise */
    void *part;          /* up: DGC_MOE_PART(rows) bytes for each block of the grid */
};
/* dynamic shared memory */
#define DGC_MOE_AROUND(k) (16 * (((k) + 255) / 256) + 4 * DGC_MOE_TOKENS + 8) /* barriers of tokens, pairs, the block's share */
#define DGC_MOE_UP_SHARED(k) (((k) / 64 + 1) / 2 * (DGC_MOE_TOKENS * 128) + 82048 + DGC_MOE_AROUND(k))
#define DGC_MOE_DOWN_SHARED(k) ((k) / 64 * (DGC_MOE_TOKENS * 128) + 164096 + DGC_MOE_AROUND(k))
#define DGC_MOE_PART(moe) ((size_t)(((moe) / 32 + 3) / 4) * (DGC_MOE_TOKENS / 8) * 8192) /* bytes of a block's sums between two passes */

/* 32 | hidden, 4 | ldy, y and d at multiples of 16 and 128 bytes; d is undefined afterwards. Grid: rows x ceil(hidden / 4 / 352). */
struct dgc_moe_sum_args {
    float *d;
    const float *weight;
    float *y;
    int64_t ldy;
    int32_t topk, hidden;
};

struct dgc_row_stats_args {
    const float *logits;
    int64_t ld;
    int32_t vocab;
    const struct dgc_params *prm;
    float *entropy, *max, *sum, *p_max;
    int32_t *argmax;
    float *tile_max; /* [rows][ceil(vocab / DGC_STATS_TILE)], or NULL */
};

/* Dense soft embedding in f32. Grid: column tiles x row tiles. sparse: ids below the cut count as zero, and only rows whose count is over
 * DGC_SOFT_LIST are computed. */
struct dgc_soft_dense_args {
    const float *logits;
    int64_t ld;
    const float *max, *sum;
    const int32_t *count;
    const struct dgc_params *prm;
    struct dgc_mat e;
    float scale;
    int32_t rows, sparse;
    struct dgc_plane y;
};

/* Lists a row's surviving ids in ascending order and p = exp(logit / T - max) of each, unless they are more than the list holds, and counts them.
 * vocab: at most 2^21. */
struct dgc_soft_pick_args {
    const float *logits;
    int64_t ld;
    const float *max;
    const struct dgc_params *prm;
    int32_t *ids; /* [rows][DGC_SOFT_LIST] */
    float *p;     /* likewise */
    int32_t *count;
    int32_t vocab;
    const float *tile_max; /* of the statistics, or NULL */
};
#define DGC_SOFT_VOCAB (1 << 21) /* most ids of soft_pick */
#define DGC_SOFT_PICK_SHARED (DGC_SOFT_VOCAB / DGC_STATS_TILE * 2)

/* part[row][range][cols] = sum of p * embed[id] over an eighth of the list; or y of a row with few survivors. Grid: rows x ranges. */
struct dgc_soft_gather_args {
    const int32_t *ids;
    const float *p;
    const int32_t *count;
    struct dgc_mat e;
    float *part;
    const float *sum;
    float scale;
    struct dgc_plane y;
};

/* exp(logit / T - max) of the rows that are computed densely, f16 [rows][p_ld], zeros behind the vocabulary.
 * Grid: ceil(p_ld / DGC_SOFT_PROBS) x rows. */
struct dgc_soft_probs_args {
    const float *logits;
    int64_t ld, p_ld;
    const float *max;
    const int32_t *count;
    const struct dgc_params *prm;
    uint16_t *p;
    int32_t vocab, sparse;
};

/* part[row][range][cols] = p . embed over a range of ids, on tensor cores. Grid: column tiles of 128 x (row tiles of 64 x ranges). */
struct dgc_soft_mma_args {
    const uint16_t *p;
    int64_t p_ld;
    const int32_t *count;
    struct dgc_mat e;
    float *part;
    int32_t rows, sparse;
};

/* The same on Hopper (soft_sm90a.cu), over DGC_SOFT_PARTS_SM90 ranges. Maps: 128-byte swizzle; e: bf16 {k, n} with boxes {64, 64}, p: f16
 * {p_ld, rows} with boxes {64, 256}. Grid: (column tiles of 128 x ranges) x row tiles of 256. */
struct dgc_soft_sm90_args {
    struct dgc_tmap e, p;
    const int32_t *count;
    float *part;
    int32_t vocab, k, rows, sparse;
};
#define DGC_SOFT_SM90_SHARED (4 * ((128 * 64 + 256 * 64) * 2 + 16))

/* y = scale / sum * the ranges' sums in order. */
struct dgc_soft_sum_args {
    const float *part, *sum;
    const int32_t *count;
    float scale;
    int32_t cols, sparse, skip_dense, dense_parts;
    struct dgc_plane y;
};

/* Flash attention over f16 keys and values, hd a multiple of 64. Grid: (query tiles x kv heads) x splits; a part is at most `split` keys:
 * partial results part[split][row][head][hd], and each one's maximum and sum in stat[split][row][head][2]. With one split y is written at
 * once. */
struct dgc_flash_args {
    struct dgc_plane q, y;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    float *part, *stat;
    int32_t n, heads, causal, split, splits;
    int32_t row0; /* the first row's place in the batch */
};

/* Flash attention on Hopper (flash_sm90a.cu: hd 256, flash_full_sm90a.cu: hd 512), q and y bf16 with rows at multiples of 16 bytes; a ring's slots
 * are a multiple of 64. Maps of keys and values: f16, 128-byte swizzle, {kv_heads * hd, slots} with boxes {64, 64}. Grid as for flash, with tiles of
 * DGC_FLASH_ROWS_SM90 rows; f.split a multiple of 64 (no parts: more than there are positions). _canvas: not causal, no parts; tiles of
 * DGC_FLASH_ROWS_CANVAS rows, two blocks each, which are a cluster. */
struct dgc_flash_sm90_args {
    struct dgc_tmap k, v;
    struct dgc_flash_args f;
};
#define DGC_FLASH_ROWS_SM90(hd) ((hd) == 256 ? 128 : 64)
#define DGC_FLASH_ROWS_CANVAS 64
#define DGC_FLASH_STAGES 5        /* of flash_sm90_256, */
#define DGC_FLASH_STAGES_CANVAS 3 /* and of each warpgroup's ring in flash_sm90_256_canvas */
#define DGC_FLASH_256_SHARED (DGC_FLASH_ROWS_SM90(256) * 512 + DGC_FLASH_STAGES * (32768 + 16))
/* Queries; and for each warpgroup a ring, and two barriers by which it meets the others of its rows. */
#define DGC_FLASH_CANVAS_SHARED (DGC_FLASH_ROWS_CANVAS * 512 + 2 * (DGC_FLASH_STAGES_CANVAS * (32768 + 16) + 16))
/* Of hd 512: two buffers of probabilities, a quarter of the queries, stages of 64 keys by 128 dimensions of keys, two times two of 64 by 256 of
 * values, factors, maxima and sums of rows, barriers. */
#define DGC_FLASH_STAGES_KEYS 4
#define DGC_FLASH_512_SHARED (4 * 8192 + DGC_FLASH_STAGES_KEYS * 16384 + 4 * 32768 + 1792)

struct dgc_flash_join_args {
    const float *part, *stat;
    struct dgc_plane y;
    int32_t n, heads, hd, splits;
};

/* score[row * heads + head][position - lo] = q . k over the positions a row sees; rows of `stride` scores. Grid: (rows x heads / 4) x
 * blocks of DGC_SCORE_KEYS positions. */
struct dgc_scores_args {
    struct dgc_plane q;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    float *score;
    int64_t stride;
    int32_t n, heads, causal, row0;
};

/* y = softmax over the highest scores of each row, times values, in position order. topk as in struct dg_batch. One block a (row, head). */
struct dgc_top_attention_args {
    struct dgc_plane y;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    const float *score;
    int64_t stride;
    int32_t n, heads, causal, row0, topk;
};

/* Top-k attention on tensor cores (topk.cu): q . k of every row and every key it may see, [kv head][row * group + head of the group][pitch], keys
 * in groups of 32 whose order topk.cuh says; most: each group's largest score that the row sees, [..][pitch / 32]. f16 caches that are no
 * rings, 64 | hd, DGC_TOP_TILE | pitch. Grid: (tiles of rows * group x kv heads) x tiles of keys; on Hopper the second is any number of
 * shares of the keys. */
struct dgc_top_scores_args {
    struct dgc_plane q;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    float *score, *most;
    int64_t pitch;
    int32_t n, heads, causal, row0;
};
#define DGC_TOP_TILE 128 /* (row, head) pairs of a block, and keys of a tile */
#define DGC_TOP_SHARED (4 * DGC_TOP_TILE * 64 * 2)

/* The same on Hopper (topk_sm90a.cu), hd 512, q bf16 with rows at multiples of 16 bytes. Map of the keys: f16, 128-byte swizzle,
 * {kv_heads * hd, slots} with boxes {64, DGC_TOP_TILE}. */
struct dgc_top_scores_sm90_args {
    struct dgc_tmap k;
    struct dgc_top_scores_args f;
};
#define DGC_TOP_STAGES 10
#define DGC_TOP_SM90_SHARED (DGC_TOP_TILE * 512 + DGC_TOP_STAGES * (DGC_TOP_TILE * 128 + 16)) /* half of the queries, and keys */

/* y = softmax over the highest of those scores of each row, times values, in position order. topk as in struct dg_batch, at most
 * DGC_TOP_KEPT. A warp a (row, head), DGC_TOP_UNITS of them a block, in the order of the scores' rows.
 * dense: y is left alone; a row of scores becomes the keys' weights as f16, the largest 1, zeros up to a multiple of 64 keys, and the first of its
 * groups' largest becomes 1 / their sum, as top_sum_sm90 takes them. The sum is that of the weights before they are f16. */
struct dgc_top_values_args {
    struct dgc_plane y;
    struct dgc_kv kv;
    const struct dgc_params *prm;
    float *score, *most;
    int64_t pitch;
    int32_t n, heads, causal, row0, topk, dense;
};
#define DGC_TOP_KEPT 512
#define DGC_TOP_UNITS 4

/* Those weights times values on Hopper (topk_sm90a.cu): a canvas's rows, hd 512, y bf16 with rows at multiples of 16 bytes. Maps, f16 with 128-byte
 * swizzle: weights {2 pitch, n * heads} with boxes {64, DGC_TOP_TILE}, values {kv_heads * hd, slots} with boxes {64, 64}. Values of all keys that are
 * seen must be finite, of those that are not kept too: their weights are 0. Grid: tiles of rows * group x kv heads, 128 columns each. */
struct dgc_top_sum_sm90_args {
    struct dgc_tmap p, v;
    struct dgc_top_values_args f;
};
#define DGC_TOP_SUM_STAGES 6
#define DGC_TOP_SUM_SHARED (DGC_TOP_SUM_STAGES * (DGC_TOP_TILE * 128 + 2 * 64 * 128 + 16))
#define DGC_TOP_DENSE 4096 /* most keys of a row whose values are taken that way: reading those of 64 keys a row costs as much */

/* Kinds of arguments. */
#define DGC_ARGS(A)                                                                                                                 \
    A(set_params) A(sample)                                                                                                         \
    A(fill) A(fill_vec) A(embed) A(norm) A(norm_pair) A(norm_chain) A(add) A(qkv_store) A(attention) A(flash) A(flash_join)         \
    A(scores) A(top_attention) A(top_scores) A(top_scores_sm90) A(top_values) A(top_sum_sm90)                                     \
    A(linear) A(route) A(experts_plan) A(experts_up) A(experts_down) A(experts_sum) A(row_stats) A(soft_dense) A(soft_pick)         \
    A(soft_gather) A(soft_sum) A(soft_probs) A(soft_mma) A(router) A(moe_repack) A(moe_repack_nv) A(moe_plan) A(moe) A(moe_sum)         \
    A(gemm) A(flash_sm90) A(head_sm90) A(head_stats) A(soft_sm90)

/* Kernels: name, kind of arguments, file, threads of a block, most dynamic shared memory. */
#define DGC_KERNELS_PORTABLE(K)                                     \
    K(set_params, set_params, rows, 32, 0)                          \
    K(sample, sample, sample, DGC_SAMPLE_THREADS, 0)                \
    K(fill, fill, fill, 128, 0)                                     \
    K(fill_vec, fill_vec, fill, 256, 0)                             \
    K(embed, embed, rows, 256, 0)                                   \
    K(norm, norm, rows, DGC_NORM_THREADS, 0)                        \
    K(norm_pair, norm_pair, rows, DGC_NORM_THREADS, 0)              \
    K(norm_chain, norm_chain, rows, DGC_NORM_THREADS, 0)            \
    K(norm_chain_sum, norm_chain, rows, DGC_NORM_THREADS, 0)        \
    K(norm_chain_wide, norm_chain, rows, DGC_NORM_THREADS, 0)       \
    K(add, add, rows, 256, 0)                                       \
    K(qkv_store, qkv_store, attention, 128, 0)                      \
    K(attention, attention, attention, 128, 0)                      \
    K(scores, scores, attention, 128, 0)                            \
    K(top_attention, top_attention, attention, 256, 0)              \
    K(linear, linear, linear, 256, 0)                               \
    K(route, route, route, 128, 0)                                  \
    K(experts_plan, experts_plan, route, 1024, 0)                   \
    K(experts_up, experts_up, linear, 256, 0)                       \
    K(experts_down, experts_down, linear, 256, 0)                   \
    K(experts_sum, experts_sum, linear, 256, 0)                     \
    K(row_stats, row_stats, head, 1024, 0)                          \
    K(soft_dense, soft_dense, head, 256, 0)                         \
    K(soft_pick, soft_pick, head, 1024, DGC_SOFT_PICK_SHARED)       \
    K(soft_gather, soft_gather, head, 384, 0)                       \
    K(soft_probs, soft_probs, soft_mma, 256, 0)                     \
    K(soft_mma, soft_mma, soft_mma, 128, 0)                         \
    K(router, router, route, 256, 0)                                \
    K(soft_sum, soft_sum, head, 256, 0)                             \
    K(linear_mma_bf16, linear, linear_mma, 128, 0)                  \
    K(linear_mma_q4, linear, linear_mma, 128, 0)                    \
    K(linear_mma_q8, linear, linear_mma, 128, 0)                    \
    K(linear_mma_nvfp4, linear, linear_mma, 128, 0)                 \
    K(linear_mma_any, linear, linear_mma, 128, 0)                   \
    K(experts_up_mma_bf16, experts_up, experts_mma, 128, 0)         \
    K(experts_up_mma_q4, experts_up, experts_mma, 128, 0)           \
    K(experts_up_mma_nvfp4, experts_up, experts_mma, 128, 0)        \
    K(experts_up_mma_any, experts_up, experts_mma, 128, 0)          \
    K(experts_down_mma_bf16, experts_down, experts_mma, 128, 0)     \
    K(experts_down_mma_q4, experts_down, experts_mma, 128, 0)       \
    K(experts_down_mma_nvfp4, experts_down, experts_mma, 128, 0)    \
    K(experts_down_mma_any, experts_down, experts_mma, 128, 0)      \
    K(flash_256, flash, flash, 128, DGC_FLASH_SHARED(256, DGC_FLASH_ROWS, 4))           \
    K(flash_512, flash, flash, 128, DGC_FLASH_SHARED(512, DGC_FLASH_ROWS / 2, 2))       \
    K(flash_512_wide, flash, flash, 256, DGC_FLASH_SHARED(512, DGC_FLASH_ROWS, 4))      \
    K(flash_join, flash_join, flash, 128, 0)                                            \
    K(top_scores, top_scores, topk, 256, DGC_TOP_SHARED)                                \
    K(top_values, top_values, topk, 32 * DGC_TOP_UNITS, 0)

/* Those of files named *_sm90a, which exist for that target alone. */
#define DGC_KERNELS_SM90A(K)                                        \
    K(moe_repack, moe_repack, experts_repack_sm90a, 512, DGC_SHARED_SM90)  \
    K(moe_plan, moe_plan, experts_plan_sm90a, 1024, 0)                   \
    K(moe_repack_nv, moe_repack_nv, experts_repack_sm90a, 512, 0)          \
    K(moe_up_nv, moe, experts_sm90a, 640, DGC_SHARED_SM90)      \
    K(moe_down_nv, moe, experts_sm90a, 640, DGC_SHARED_SM90)    \
    K(moe_up, moe, experts_sm90a, 640, DGC_SHARED_SM90)         \
    K(moe_down, moe, experts_sm90a, 640, DGC_SHARED_SM90)       \
    K(moe_sum, moe_sum, experts_plan_sm90a, 352, 0)                      \
    K(gemm_128x256, gemm, gemm_sm90a, 384, DGC_GEMM_SHARED(128, 256, 4))    \
    K(gemm_64x256, gemm, gemm_sm90a, 384, DGC_GEMM_SHARED(64, 256, 5))      \
    K(gemm_64x256k, gemm, gemm_sm90a, 384, DGC_GEMM_SHARED(64, 256, 5))     \
    K(gemm_glu_64x128k, gemm, gemm_sm90a, 384, DGC_GEMM_SHARED(64, 128, 8)) \
    K(gemm_glu_64x256k, gemm, gemm_sm90a, 384, DGC_GEMM_SHARED(64, 256, 5)) \
    K(gemm_144x128, gemm, gemm_pair_sm90a, 288, DGC_GEMM_SHARED(144, DGC_GEMM_TOKENS, 6))      \
    K(gemm_88x128_pair, gemm, gemm_pair_sm90a, 288, DGC_GEMM_PAIR_SHARED(88, 7))               \
    K(head_sm90, head_sm90, head_sm90a, 384, DGC_HEAD_SHARED)               \
    K(head_sm90_pair, head_sm90, head_sm90a, 384, DGC_HEAD_SHARED)          \
    K(head_stats, head_stats, head_sm90a, 256, 0)                           \
    K(soft_sm90, soft_sm90, soft_sm90a, 384, DGC_SOFT_SM90_SHARED)          \
    K(flash_sm90_256, flash_sm90, flash_sm90a, 384, DGC_FLASH_256_SHARED)   \
    K(flash_sm90_256_canvas, flash_sm90, flash_sm90a, 384, DGC_FLASH_CANVAS_SHARED) \
    K(flash_sm90_512, flash_sm90, flash_full_sm90a, 512, DGC_FLASH_512_SHARED)      \
    K(flash_sm90_512_canvas, flash_sm90, flash_full_sm90a, 512, DGC_FLASH_512_SHARED) \
    K(top_scores_sm90, top_scores_sm90, topk_sm90a, 384, DGC_TOP_SM90_SHARED)       \
    K(top_sum_sm90, top_sum_sm90, topk_sm90a, 288, DGC_TOP_SUM_SHARED)

#define DGC_KERNELS(K) DGC_KERNELS_PORTABLE(K) DGC_KERNELS_SM90A(K)

#endif
