/* Runs CUDA kernel files on a CPU: a C compiler reads them through this header, and emulate.c gives each thread of a block a stack of its
 * own, switching at barriers and warp exchanges. Slow, exact about who waits for whom, and needs no GPU. */
#ifndef DG_TESTS_CUDA_EMULATE_H
#define DG_TESTS_CUDA_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"

#define DGC_EMULATED 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define DGC_KERNEL(name, kind, threads)                              \
    void dgc_##name(const struct dgc_##kind##_args a);               \
    void dgc_##name(const struct dgc_##kind##_args a)
#define DGC_KERNEL_EARLY(name, kind, threads, blocks) DGC_KERNEL(name, kind, threads)
#define dgc_chain() ((void)0)
#define dgc_prefetch(p) ((void)(p))
#define dgc_discard(p) memset((p), 0xff, 128) /* NaN */
#define DGC_DYNAMIC_SHARED(name) unsigned char *name = emu_shared
extern unsigned char emu_shared[]; /* as much as the largest GPU gives a block, poisoned before each block */

struct emu_dim {
    unsigned x, y, z;
};
extern struct emu_dim emu_thread_idx, emu_block_idx;
#define threadIdx emu_thread_idx
#define blockIdx emu_block_idx

void __syncthreads(void);
void emu_warp_barrier(void);
/* Every lane gives 64 bytes at most and sees what all lanes gave: 32 records of `bytes`, valid until the lane's next-but-one exchange. */
const void *emu_exchange(const void *mine, size_t bytes);
#define EMU_LANE (emu_thread_idx.x & 31)

#define __syncwarp() emu_warp_barrier()
int __syncthreads_or(int v);
#define EMU_SHFL(suffix, type)                                                        \
    static inline type emu_shfl_##suffix(type v, unsigned from) {                     \
        return ((const type *)emu_exchange(&v, sizeof v))[from & 31];                 \
    }
EMU_SHFL(i32, int)
EMU_SHFL(u32, unsigned)
EMU_SHFL(f32, float)
EMU_SHFL(f64, double)
#define EMU_PICK(v) _Generic((v), float: emu_shfl_f32, double: emu_shfl_f64, unsigned: emu_shfl_u32, default: emu_shfl_i32)
#define __shfl_sync(mask, v, lane) EMU_PICK(v)((v), (unsigned)(lane))
#define __shfl_xor_sync(mask, v, s) EMU_PICK(v)((v), EMU_LANE ^ (unsigned)(s))
#define __shfl_up_sync(mask, v, s) EMU_PICK(v)((v), EMU_LANE >= (unsigned)(s) ? EMU_LANE - (unsigned)(s) : EMU_LANE)

static inline unsigned __ballot_sync(unsigned mask, int v) {
    const int *all = emu_exchange(&v, sizeof v);
    unsigned votes = 0;
    (void)mask;
    for (int i = 0; i < 32; i++)
        votes |= (unsigned)(all[i] != 0) << i;
    return votes;
}
static inline unsigned __match_any_sync(unsigned mask, int v) {
    const int *all = emu_exchange(&v, sizeof v);
    unsigned same = 0;
    (void)mask;
    for (int i = 0; i < 32; i++)
        same |= (unsigned)(all[i] == v) << i;
    return same;
}

static inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    const unsigned *all = emu_exchange(&v, sizeof v);
    (void)mask;
    for (int i = 0; i < 32; i++)
        v = all[i] > v ? all[i] : v;
    return v;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return ~__reduce_max_sync(mask, ~v); }

static inline int atomicAdd(int *p, int v) {
    int old = *p;
    *p += v;
    return old;
}
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline float __uint_as_float(uint32_t u) { return dg_bits_f32(u); }
static inline float __int_as_float(int32_t i) { return dg_bits_f32((uint32_t)i); }
static inline int32_t __float_as_int(float f) { return (int32_t)dg_f32_bits(f); }
static inline uint32_t __float_as_uint(float f) { return dg_f32_bits(f); }
#define __expf expf
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline uint16_t dgc_f32_bf16(float f) { return dg_f32_bf16(f); }
static inline uint16_t dgc_f32_f16(float f) { return dg_f32_f16(f); }
static inline float dgc_f16_f32(uint16_t h) { return dg_f16_f32(h); }

/* Tensor core products and asynchronous copies: what device.cuh writes in PTX. */
void dgc_mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1);
void dgc_mma_f16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1);
void dgc_ldmatrix_x4_trans(uint32_t *r, const void *row);
static inline void dgc_cp_async16(void *shared, const void *global) { memcpy(shared, global, 16); }
static inline void dgc_cp_commit(void) {}
#define dgc_cp_wait(n) ((void)0)
static inline float dgc_max_nan(float a, float b) { return a != a || a > b ? a : b; }
static inline uint32_t dgc_pack_bf16(float lo, float hi) { return (uint32_t)dg_f32_bf16(lo) | (uint32_t)dg_f32_bf16(hi) << 16; }
static inline uint32_t dgc_pack_f16(float lo, float hi) { return (uint32_t)dg_f32_f16(lo) | (uint32_t)dg_f32_f16(hi) << 16; }
struct emu_uint4 {
    uint32_t x, y, z, w;
};
#define uint4 struct emu_uint4

/* Runs one launch. kernel: calls the kernel's C function once for the current thread. A block whose threads wait for each other in
 * vain ends the program: that kernel would hang a GPU. */
void emu_launch(void (*kernel)(void *), void *args, unsigned gx, unsigned gy, unsigned threads, unsigned shared);

#endif
