/* Compute capability 9.0: which op takes which of its kernels (kernels named *_sm90a), and their launches. An op that none of them serves goes
 * the portable way. The choice depends on the weights alone, never on the number of rows where that would change a bit. */
#include "core/faults.h"
#include "ops/cuda/state.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bit;
} groups[] = {{"experts", DG_CUDA_H_EXPERTS}, {"dense", DG_CUDA_H_DENSE}, {"head", DG_CUDA_H_HEAD}, {"soft", DG_CUDA_H_SOFT},
              {"chain", DG_CUDA_H_CHAIN}, {"attention", DG_CUDA_H_ATTENTION}, {"nvfp4", DG_CUDA_H_NVFP4}, {"branch", DG_CUDA_H_BRANCH},
              {"topk", DG_CUDA_H_TOPK}, {"sample", DG_CUDA_H_SAMPLE}};

/* A word of the list: n bytes at s. */
static bool take_word(const char *s, size_t n, struct dg_cuda_opts *o) {
    char word[32];
    int value, used = 0;
    if (n >= sizeof word)
        return false;
    memcpy(word, s, n);
    word[n] = '\0';
    bool full = sscanf(word, "split_full=%d%n", &value, &used) == 1 && used == (int)n;
    if (full || (sscanf(word, "split=%d%n", &value, &used) == 1 && used == (int)n)) {
        *(full ? &o->tune.split_full : &o->tune.split) = value;
        return value >= 64 && value % 64 == 0 && value <= 1 << 20;
    }
    if (strcmp(word, "auto") == 0)
        return true;
    if (strcmp(word, "compile") == 0)
        return o->compile = true;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(groups[i].name, word) == 0) {
            o->use |= groups[i].bit;
            return true;
        }
    return false;
}

bool dg_cuda_parse_kernels(const char *s, struct dg_cuda_opts *o) {
    o->kernels = strcmp(s, "simple") == 0 ? DG_CUDA_SIMPLE : strcmp(s, "portable") == 0 ? DG_CUDA_PORTABLE : DG_CUDA_AUTO;
    o->use = 0;
    memset(&o->tune, 0, sizeof o->tune);
    o->compile = false;
    if (o->kernels != DG_CUDA_AUTO)
        return true;
    bool beside = strncmp(s, "auto,", 5) == 0;
    for (size_t n; *s; s += n + (s[n] == ',')) {
        n = strcspn(s, ",");
        if (!take_word(s, n, o))
            return false;
    }
    if (beside && o->use)
        o->use |= DG_CUDA_H_DEFAULT;
    return true;
}

enum dg_status dg_cuda_choose_kernels(const char *s, struct dg_cuda_opts *o, struct dg_error *err) {
    char names[128] = "";
    if (dg_cuda_parse_kernels(s ? s : "auto", o))
        return DG_OK;
    for (size_t i = 0, at = 0; i < sizeof groups / sizeof *groups && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", groups[i].name);
    return DG_FAIL(err, DG_E_ARG,
                   "CUDA kernels (DGQ_CUDA_KERNELS) \"%s\": give auto, portable, simple, or a list of %s with commas between, and compile",
                   dg_clip(s, strlen(s)).s, names);
}

void dg_cuda_hopper_choose(struct dg_cuda *cu, const struct dg_cuda_opts *o) {
    bool there = cu->major == 9 && cu->minor == 0 && cu->d.tensor_map_tiled && cu->fn[DGC_K_moe_plan] && cu->fn[DGC_K_gemm_64x256];
    unsigned use = o->kernels != DG_CUDA_AUTO ? 0 : o->use ? o->use : DG_CUDA_H_DEFAULT;
    cu->branches = o->kernels != DG_CUDA_AUTO || (use & DG_CUDA_H_BRANCH);
    cu->chain = (use & DG_CUDA_H_CHAIN) && cu->major >= 9 && cu->d.launch_ex;
    cu->hopper = there && !o->exact_f32 ? use : 0;
    cu->tune = o->tune;
}

static unsigned tiles(int64_t n, int64_t tile) { return (unsigned)((n + tile - 1) / tile); }

static bool at_vectors(const void *p, int64_t pitch) { return (((uintptr_t)p | (uintptr_t)pitch) & 15) == 0; }

/* A map of rows of `cols` 16-bit values in boxes of 64 values by box_rows, swizzled as wgmma reads them. */
static bool map_rows(struct dg_backend *be, struct dgc_tmap *m, bool bf16, const void *p, int64_t cols, int64_t rows, int64_t pitch,
                     uint32_t box_rows) {
    enum { F16 = 6, BF16 = 9, SWIZZLE_128 = 3, PROMOTE_128 = 2 };
    const uint64_t dims[2] = {(uint64_t)cols, (uint64_t)rows}, strides[1] = {(uint64_t)pitch};
    const uint32_t box[2] = {64, box_rows}, step[2] = {1, 1};
    void *base;
    memcpy(&base, &p, sizeof p);
    return dg_cuda_ok(be, dg_cuda_of(be)->d.tensor_map_tiled(m, bf16 ? BF16 : F16, 2, base, dims, strides, box, step, 0, SWIZZLE_128, PROMOTE_128, 0),
                      "describing a matrix");
}

/* Half of every four rows, from the first or the third on, in boxes of 64 values by half of 64 fours. */
static bool map_quads(struct dg_backend *be, struct dgc_tmap *m, const struct dgc_mat *w, int half) {
    enum { BF16 = 9, SWIZZLE_128 = 3, PROMOTE_128 = 2 };
    const uint64_t dims[3] = {(uint64_t)w->k, 2, (uint64_t)w->n / 4}, strides[2] = {(uint64_t)w->row_bytes, (uint64_t)w->row_bytes * 4};
    const uint32_t box[3] = {64, 2, 64}, step[3] = {1, 1, 1};
    const uint8_t *p = w->p + 2 * half * w->row_bytes;
    void *base;
    memcpy(&base, &p, sizeof p);
    return dg_cuda_ok(be, dg_cuda_of(be)->d.tensor_map_tiled(m, BF16, 3, base, dims, strides, box, step, 0, SWIZZLE_128, PROMOTE_128, 0),
                      "describing the embedding");
}

/* Rows that the copy engine can read. */
static bool mappable(const void *p, int64_t pitch, int32_t k) { return k % 8 == 0 && at_vectors(p, pitch); }

/* The order of a sum is the matrix's: split in two along k where a matrix has too few rows to occupy the card otherwise. */
struct gemm {
    enum dg_cuda_kernel k;
    uint32_t bw, bt;
    unsigned shared, blocks; /* of a tile */
};

/* Blocks along the weights' rows: no tile crosses from one matrix into the next. */
static unsigned gemm_blocks(const struct dgc_linear_args *a, const struct gemm *g) {
    unsigned n = 0;
    if (a->epi == DGC_EPI_GLU)
        return tiles(a->w[0].n, g->bw / 2);
    for (int i = 0; i < a->n_w; i++)
        n += tiles(a->w[i].n, g->bw);
    return n * g->blocks;
}

/* Whether there are few rows, whose tiles run in so many waves. */
static bool runs_in(const struct dg_cuda *cu, const struct dgc_linear_args *a, const struct gemm *g, unsigned waves) {
    return a->rows <= 256 && gemm_blocks(a, g) * tiles(a->rows, g->bt) <= waves * (unsigned)cu->n_sm;
}

/* Of the kernels that leave the same bits. n: rows of all matrices. */
static const struct gemm *gemm_for(const struct dg_cuda *cu, const struct dgc_linear_args *a, int64_t n) {
#define TILES(kernel, bw, bt, stages) {kernel, bw, bt, DGC_GEMM_SHARED(bw, bt, stages), 1}
    static const struct gemm glu_few = TILES(DGC_K_gemm_glu_64x128k, 64, 128, 8), glu = TILES(DGC_K_gemm_glu_64x256k, 64, 256, 5),
                             split_few = {DGC_K_gemm_88x128_pair, 88, DGC_GEMM_TOKENS, DGC_GEMM_PAIR_SHARED(88, 7), 2},
                             split = TILES(DGC_K_gemm_64x256k, 64, 256, 5), narrow = TILES(DGC_K_gemm_64x256, 64, 256, 5),
                             few = TILES(DGC_K_gemm_144x128, 144, DGC_GEMM_TOKENS, 6), many = TILES(DGC_K_gemm_128x256, 128, 256, 4);
#undef TILES
    if (a->epi == DGC_EPI_GLU)
        return a->rows <= 256 ? &glu_few : &glu;
    if (n < 8192) /* two waves of a tile in half the steps still take less than one of whole ones */
        return runs_in(cu, a, &split_few, 2) ? &split_few : &split;
    return runs_in(cu, a, &narrow, 1) ? &narrow : runs_in(cu, a, &few, 1) ? &few : &many;
}

/* Gate and up as one matrix whose rows come in the order of GLU's tiles; where their places, or the driver, do not allow it they have maps of their
 * own. */
static bool map_both(const struct dg_cuda *cu, struct dgc_tmap *m, const struct dgc_mat *gate, const struct dgc_mat *up, uint32_t box_rows) {
    enum { BF16 = 9, SWIZZLE_128 = 3, PROMOTE_128 = 2 };
    uint64_t apart = (uint64_t)(uintptr_t)up->p - (uint64_t)(uintptr_t)gate->p, row = (uint64_t)gate->row_bytes;
    const uint64_t dims[4] = {(uint64_t)gate->k, 8, 2, (uint64_t)gate->n / 8}, strides[3] = {row, apart, 8 * row};
    const uint32_t box[4] = {64, 8, 2, box_rows / 16}, step[4] = {1, 1, 1, 1};
    void *base;
    memcpy(&base, &gate->p, sizeof base);
    return apart > 0 && apart < (uint64_t)1 << 40 && gate->row_bytes == up->row_bytes && gate->n == up->n &&
           cu->d.tensor_map_tiled(m, BF16, 4, base, dims, strides, box, step, 0, SWIZZLE_128, PROMOTE_128, 0) == 0;
}

bool dg_cuda_hopper_linear(struct dg_backend *be, const struct dgc_linear_args *a) {
    struct dg_cuda *cu = dg_cuda_of(be);
    bool glu = a->epi == DGC_EPI_GLU;
    int64_t n = 0, pitch = a->x.ld * 2;
    int32_t k = a->w[0].k;
    if (!(cu->hopper & DG_CUDA_H_DENSE) || a->epi == DGC_EPI_CAP || a->x.dtype != DGC_BF16 || a->y.dtype != DGC_BF16 ||
        !mappable(a->x.p, pitch, k))
        return false;
    for (int i = 0; i < a->n_w; i++) {
        if (a->w[i].fmt != DGC_FMT_BF16 || !mappable(a->w[i].p, a->w[i].row_bytes, k) || a->w[i].n % (i + 1 < a->n_w && !glu ? 128 : 8) != 0)
            return false;
        n += a->w[i].n;
    }
    const struct gemm *g = gemm_for(cu, a, n);
    struct dgc_gemm_args t = {.k = k, .rows = a->rows, .y = a->y.p, .ldy = a->y.ld};
    t.both = glu && map_both(cu, &t.w[0], &a->w[0], &a->w[1], g->bw);
    for (int i = 0; i < a->n_w; i++) {
        if (!t.both && !map_rows(be, &t.w[i], true, a->w[i].p, k, a->w[i].n, a->w[i].row_bytes, glu ? 8 : g->bw))
            return true;
        t.n[i] = glu && i ? 0 : a->w[i].n;
    }
    if (map_rows(be, &t.x, true, a->x.p, k, a->rows, pitch, g->bt))
        dgc_launch_gemm(be, g->k, gemm_blocks(a, g), tiles(a->rows, g->bt), g->shared, &t);
    return true;
}

bool dg_cuda_hopper_flashes(const struct dg_cuda *cu, const struct dg_plane *q, const struct dg_kv_layer *kv, const struct dg_plane *y) {
    return (cu->hopper & DG_CUDA_H_ATTENTION) && q->dtype == DG_BF16 && y->dtype == DG_BF16 && at_vectors(q->data, q->ld * 2) &&
           at_vectors(y->data, y->ld * 2) && kv->dtype == DG_F16 && (kv->hd == 256 || kv->hd == 512) && kv->slots >= 64 &&
           kv->slots < INT32_MAX && (!kv->ring || kv->slots % 64 == 0) && at_vectors(kv->k, 0) && at_vectors(kv->v, 0);
}

/* A tile of a canvas's rows goes to the two blocks of a pair, which share out its keys, and nothing is left to be joined. Prompts have rows enough;
 * there parts keep few rows over a long context from taking one block each. */
int32_t dg_cuda_hopper_split(const struct dg_batch *b, const struct dg_kv_layer *kv, int32_t wanted) {
    return !b->causal ? INT32_MAX : wanted ? wanted : kv->window ? INT32_MAX : 8192;
}

void dg_cuda_hopper_flash(struct dg_backend *be, const struct dgc_flash_args *a) {
    static const struct {
        enum dg_cuda_kernel k;
        int32_t rows;
        unsigned shared;
    } by[2][2] = {{{DGC_K_flash_sm90_256_canvas, DGC_FLASH_ROWS_CANVAS, DGC_FLASH_CANVAS_SHARED},
                   {DGC_K_flash_sm90_512_canvas, DGC_FLASH_ROWS_CANVAS, DGC_FLASH_512_SHARED}},
                  {{DGC_K_flash_sm90_256, DGC_FLASH_ROWS_SM90(256), DGC_FLASH_256_SHARED},
                   {DGC_K_flash_sm90_512, DGC_FLASH_ROWS_SM90(512), DGC_FLASH_512_SHARED}}};
    const struct dgc_kv *kv = &a->kv;
    bool causal = a->causal, wide = kv->hd == 512;
    struct dgc_flash_sm90_args t = {.f = *a};
    int64_t cols = (int64_t)kv->kv_heads * kv->hd;
    if (!map_rows(be, &t.k, false, kv->k, cols, kv->slots, cols * 2, 64) || !map_rows(be, &t.v, false, kv->v, cols, kv->slots, cols * 2, 64))
        return;
    unsigned blocks = tiles((int64_t)a->n * (a->heads / kv->kv_heads), by[causal][wide].rows) * (unsigned)kv->kv_heads;
    dgc_launch_flash_sm90(be, by[causal][wide].k, causal ? blocks : 2 * blocks, (unsigned)a->splits, by[causal][wide].shared, &t);
}

/* Each share of the keys is a block's: as many as occupy the card. A score's sum does not depend on it. */
bool dg_cuda_hopper_scores(struct dg_backend *be, const struct dgc_top_scores_args *a) {
    struct dg_cuda *cu = dg_cuda_of(be);
    const struct dgc_kv *kv = &a->kv;
    int64_t cols = (int64_t)kv->kv_heads * kv->hd, tiles_all = a->pitch / DGC_TOP_TILE;
    if (!(cu->hopper & DG_CUDA_H_TOPK) || kv->hd != 512 || kv->slots < DGC_TOP_TILE || kv->slots >= INT32_MAX || !at_vectors(a->q.p, a->q.ld * 2))
        return false;
    struct dgc_top_scores_sm90_args t = {.f = *a};
    if (!map_rows(be, &t.k, false, kv->k, cols, kv->slots, cols * 2, DGC_TOP_TILE))
        return true;
    unsigned blocks = tiles((int64_t)a->n * (a->heads / kv->kv_heads), DGC_TOP_TILE) * (unsigned)kv->kv_heads;
    int64_t shares = blocks < (unsigned)cu->n_sm ? (unsigned)cu->n_sm / blocks : 1;
    dgc_launch_top_scores_sm90(be, DGC_K_top_scores_sm90, blocks, (unsigned)(shares < tiles_all ? shares : tiles_all), DGC_TOP_SM90_SHARED, &t);
    return true;
}

bool dg_cuda_hopper_sums(const struct dg_cuda *cu, const struct dgc_top_values_args *a) {
    const struct dgc_kv *kv = &a->kv;
    return (cu->hopper & DG_CUDA_H_TOPK) && kv->hd == 512 && kv->slots >= DGC_TOP_TILE && kv->slots < INT32_MAX && a->y.dtype == DGC_BF16 &&
           at_vectors(a->y.p, a->y.ld * 2);
}

void dg_cuda_hopper_sum(struct dg_backend *be, const struct dgc_top_values_args *a) {
    const struct dgc_kv *kv = &a->kv;
    int64_t cols = (int64_t)kv->kv_heads * kv->hd;
    struct dgc_top_sum_sm90_args t = {.f = *a};
    if (!map_rows(be, &t.p, false, a->score, 2 * a->pitch, (int64_t)a->n * a->heads, 4 * a->pitch, DGC_TOP_TILE) ||
        !map_rows(be, &t.v, false, kv->v, cols, kv->slots, cols * 2, 64))
        return;
    unsigned blocks = tiles((int64_t)a->n * (a->heads / kv->kv_heads), DGC_TOP_TILE) * (unsigned)kv->kv_heads;
    dgc_launch_top_sum_sm90(be, DGC_K_top_sum_sm90, blocks, (unsigned)kv->hd / 128, DGC_TOP_SUM_SHARED, &t);
}

#define HEAD_ROWS (2 * DGC_HEAD_HALF) /* of one launch */

/* Logits of up to HEAD_ROWS rows, x: pitch bytes a row. False when a map could not be made, which is said. */
static bool head_rows(struct dg_backend *be, const struct dgc_mat *w, const void *x, int64_t pitch, struct dgc_head_sm90_args *h) {
    if (!map_quads(be, &h->w[0], w, 0) || !map_quads(be, &h->w[1], w, 1) || !map_rows(be, &h->x, true, x, w->k, h->rows, pitch, 64))
        return false;
    unsigned blocks = (unsigned)dg_cuda_of(be)->n_sm & ~1u; /* whole pairs */
    dgc_launch_head_sm90(be, h->rows > DGC_HEAD_HALF ? DGC_K_head_sm90_pair : DGC_K_head_sm90, blocks, 1, DGC_HEAD_SHARED, h);
    return true;
}

bool dg_cuda_hopper_head(struct dg_backend *be, const struct dgc_linear_args *a, struct dg_row_stats *s) {
    struct dg_cuda *cu = dg_cuda_of(be);
    const struct dgc_mat *w = &a->w[0];
    int64_t pitch = a->x.ld * 2;
    if (!(cu->hopper & DG_CUDA_H_HEAD) || a->x.dtype != DGC_BF16 || w->fmt != DGC_FMT_BF16 || !mappable(a->x.p, pitch, w->k) ||
        !mappable(w->p, w->row_bytes, w->k) || !at_vectors(a->y.p, a->y.ld * 4) || w->n % 4 != 0 || w->n > cu->model.cfg.vocab)
        return false;
    int32_t parts = (int32_t)tiles(w->n, DGC_STATS_TILE);
    for (int32_t row = 0; row < a->rows; row += HEAD_ROWS) {
        int32_t n = a->rows - row < HEAD_ROWS ? a->rows - row : HEAD_ROWS;
        struct dgc_head_sm90_args h = {.logits = (float *)a->y.p + row * a->y.ld, .partial = cu->s.head_part, .ld = a->y.ld,
                                       .prm = cu->dev_params, .vocab = w->n, .k = w->k, .rows = n, .cap = a->cap};
        if (!head_rows(be, w, (const char *)a->x.p + row * pitch, pitch, &h))
            return true;
        struct dgc_head_stats_args t = {h.partial, h.logits, h.ld, cu->dev_params, s->entropy + row, s->max + row, s->sum + row, s->p_max + row,
                                        s->argmax + row, parts, w->n, s->tile_max ? s->tile_max + (int64_t)row * parts : NULL};
        dgc_launch_head_stats(be, DGC_K_head_stats, (unsigned)n, 1, 0, &t);
    }
    return true;
}

bool dg_cuda_hopper_soft(struct dg_backend *be, const struct dgc_soft_mma_args *a) {
    struct dgc_soft_sm90_args t = {.count = a->count, .part = a->part, .vocab = a->e.n, .k = a->e.k, .rows = a->rows, .sparse = a->sparse};
    if (!(dg_cuda_of(be)->hopper & DG_CUDA_H_SOFT) || a->e.fmt != DGC_FMT_BF16 || !mappable(a->e.p, a->e.row_bytes, a->e.k))
        return false;
    if (map_rows(be, &t.e, true, a->e.p, a->e.k, a->e.n, a->e.row_bytes, 64) &&
        map_rows(be, &t.p, false, a->p, a->p_ld, a->rows, a->p_ld * 2, 256))
        dgc_launch_soft_sm90(be, DGC_K_soft_sm90, tiles(a->e.k, 128) * DGC_SOFT_PARTS_SM90, tiles(a->rows, 256), DGC_SOFT_SM90_SHARED, &t);
    return true;
}

static bool fits(int32_t hidden, int32_t moe) {
    int32_t wide = hidden > moe ? hidden : moe;
    return hidden % 64 == 0 && moe % 64 == 0 && DGC_MOE_UP_SHARED(hidden) <= DGC_SHARED_SM90 && DGC_MOE_DOWN_SHARED(moe) <= DGC_SHARED_SM90 &&
           64 * (wide / 32 * 20) <= DGC_SHARED_SM90;
}

static void reorder(struct dg_backend *be, struct dg_stack *s, bool glu) {
    uint8_t *w = (uint8_t *)(uintptr_t)s->dev;
    unsigned blocks = (unsigned)(s->e * (s->n / 64));
    if (s->fmt == DG_FMT_Q4_BLOCK) {
        struct dgc_moe_repack_args a = {w, s->n, s->k, glu};
        dgc_launch_moe_repack(be, DGC_K_moe_repack, blocks, 1, 64 * ((unsigned)s->k / 32 * 20), &a);
    } else {
        size_t bytes = (size_t)s->e * (size_t)dg_format_mat_bytes(s->fmt, s->n, s->k);
        struct dg_cuda *cu = dg_cuda_of(be);
        bool slot = cu->feed.n > 0; /* no pass has begun: the last one is free */
        uint8_t *to = slot ? (uint8_t *)cu->feed.slots + (DG_CUDA_SLOTS - 1) * cu->feed.slot_bytes
                           : dg_cuda_alloc_raw(be, bytes, "reordering an expert stack");
        struct dgc_moe_repack_nv_args a = {w, to, s->n, s->k, glu, s->e};
        if (!to)
            return;
        dgc_launch_moe_repack_nv(be, DGC_K_moe_repack_nv, blocks, 1, 0, &a);
        dg_cuda_ok(be, cu->d.copy_on_device(s->dev, (dg_cu_ptr)(uintptr_t)to, bytes, cu->stream), "reordering an expert stack");
        if (!slot)
            dg_cuda_free(be, to);
    }
    s->reordered = true;
}

void dg_cuda_prepare_experts(struct dg_backend *be, struct dg_stack *gate_up, struct dg_stack *down) {
    enum dg_format f = gate_up->fmt;
    unsigned needed = DG_CUDA_H_EXPERTS | (f == DG_FMT_NVFP4_BLOCK ? DG_CUDA_H_NVFP4 : 0);
    if ((dg_cuda_of(be)->hopper & needed) != needed || !gate_up->dev || !down->dev || (f != DG_FMT_Q4_BLOCK && f != DG_FMT_NVFP4_BLOCK) ||
        down->fmt != f || gate_up->e > DGC_MOE_EXPERTS || !fits(down->n, down->k) || gate_up->reordered)
        return;
    reorder(be, gate_up, true);
    reorder(be, down, false);
}

/* Where the global scales of a reordered nvfp4 stack are. */
static const float *globals(const struct dg_stack *s) {
    size_t rows = (size_t)s->e * (size_t)(s->n * dg_format_row_bytes(s->fmt, s->k));
    return s->fmt == DG_FMT_NVFP4_BLOCK ? (const float *)(uintptr_t)(s->dev + rows) : NULL;
}

bool dg_cuda_hopper_experts(struct dg_backend *be, const struct dg_plane *x, const struct dg_routing *routing, const struct dg_stack *gate_up,
                            const struct dg_stack *down) {
    struct dg_cuda *cu = dg_cuda_of(be);
    int32_t hidden = down->n, moe = down->k, pairs = x->rows * routing->k;
    unsigned blocks = (unsigned)cu->n_sm;
    /* measured on an H200 by the time of a step: up to 24 tokens decoding binds, more and more the tensor cores above */
    static const int32_t costs[2][DGC_MOE_TOKENS / 8] = {{16, 16, 18, 22, 25, 28}, {16, 16, 18, 21, 24, 26}};
    bool nv = gate_up->fmt == DG_FMT_NVFP4_BLOCK;
    if (!gate_up->reordered || !down->reordered)
        return false;
    struct dgc_moe_plan_args p = {routing->expert, cu->s.plan.pair, cu->s.plan.n_tiles, cu->s.moe_entry, dg_cuda_plane(x), cu->s.moe_x,
                                  pairs, x->rows, hidden, {0}};
    memcpy(p.cost, costs[nv], sizeof p.cost);
    dgc_launch_moe_plan(be, DGC_K_moe_plan, 1 + tiles((int64_t)x->rows * hidden / 8, 1024), 1, 0, &p);
    struct dgc_moe_args up = {(const uint8_t *)(uintptr_t)gate_up->dev, cu->s.moe_x, cu->s.moe_entry, cu->s.plan.n_tiles, cu->s.plan.pair, cu->s.h,
                              hidden, moe, routing->k, globals(gate_up), cu->s.moe_part};
    struct dgc_moe_args dn = {(const uint8_t *)(uintptr_t)down->dev, cu->s.h, cu->s.moe_entry, cu->s.plan.n_tiles, cu->s.plan.pair,
                              cu->s.pair_y, moe, hidden, 0, globals(down), NULL};
    dgc_launch_moe(be, nv ? DGC_K_moe_up_nv : DGC_K_moe_up, blocks, 1, (unsigned)DGC_MOE_UP_SHARED(hidden), &up);
    dgc_launch_moe(be, nv ? DGC_K_moe_down_nv : DGC_K_moe_down, blocks, 1, (unsigned)DGC_MOE_DOWN_SHARED(moe), &dn);
    return true;
}
