/* Hopper building blocks in inline PTX: mbarriers, bulk and tensor copies, wgmma, swizzled shared memory. */
#ifndef DG_OPS_CUDA_SM90_CUH
#define DG_OPS_CUDA_SM90_CUH

#include "ops/cuda/kernels/device.cuh"

/* A kernel with a block a multiprocessor, whose warps share out the registers themselves. */
#define DGC_KERNEL_ONE(name, kind, threads) \
    extern "C" __global__ void __launch_bounds__(threads, 1) dgc_##name(const __grid_constant__ struct dgc_##kind##_args a)
/* The same in clusters of two blocks along x. */
#define DGC_KERNEL_PAIR(name, kind, threads)                                           \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1) \
        dgc_##name(const __grid_constant__ struct dgc_##kind##_args a)
/* All kernels' dynamic shared memory. */
extern __shared__ __align__(1024) unsigned char dg_dyn[]; /* the wgmma operands want its address to be a multiple of 1024 */

DGC_FN unsigned dg_smem(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): gelu with tanh, written so that no cancellation and no overflow can occur. */
DGC_FN float dg_gelu(float x) {
    float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(fminf(-2.0f * u, 80.0f)));
}

#define LOG2E 1.4426950408889634f
DGC_FN float dg_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- mbarriers: addresses are shared-space u32 ---- */
DGC_FN void dg_bar_init(unsigned bar, unsigned count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DGC_FN void dg_bar_init_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DGC_FN void dg_bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DGC_FN void dg_bar_arrive(unsigned bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
DGC_FN void dg_bar_wait(unsigned bar, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nW_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1, 0x989680;\n@p bra D_%=;\nbra "
                 "W_%=;\nD_%=:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* Whether the phase has ended; waits for that about ns nanoseconds at most. */
DGC_FN bool dg_bar_try(unsigned bar, unsigned parity, unsigned ns) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2, %3;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity), "r"(ns)
                 : "memory");
    return done;
}
/* One arrival of this warp, after what all its lanes did before. */
DGC_FN void dg_arrive_for_warp(unsigned bar) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        dg_bar_arrive(bar);
}
DGC_FN int dg_lds(unsigned addr) {
    int v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
    return v;
}
DGC_FN void dg_sts(unsigned addr, unsigned v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(v) : "memory"); }
/* Shared memory written by ordinary stores or cp.async is read next by wgmma or a bulk copy. */
DGC_FN void dg_fence_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Some of a block's warps meet. */
template <int THREADS> DGC_FN void dg_sync_some(int id) {
    __syncwarp(); /* a warp that comes in pieces would be counted once for each */
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/* A sum over the four lanes that share a row of products. */
DGC_FN float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* ---- rings of stages, filled by one thread ---- */
/* Where a thread stands in a ring of N stages. */
template <int N> struct ring {
    unsigned full, empty, base, phase;
    int s;
};
template <int N> DGC_FN void ring_next(struct ring<N> &r) {
    if (++r.s == N) {
        r.s = 0;
        r.phase ^= 1;
    }
}
/* users: warps that give a stage back. */
template <int N> DGC_FN void ring_init(const struct ring<N> &r, int users) {
    for (int i = 0; i < N; i++) {
        dg_bar_init(r.full + i * 8, 1);
        dg_bar_init(r.empty + i * 8, users);
    }
}
/* One lane a warp gives a stage back. */
template <int N> DGC_FN void ring_release(const struct ring<N> &r, int stage) {
    if ((threadIdx.x & 31) == 0)
        dg_bar_arrive(r.empty + stage * 8);
}

/* ---- pairs: clusters of two blocks ---- */
/* This block's place in its pair; 0 without one. */
DGC_FN unsigned dg_pair_rank(void) {
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* An arrival at the barrier that lies at that place in block `rank`. */
DGC_FN void dg_bar_arrive_at(unsigned bar, unsigned rank) {
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar), "r"(rank)
                 : "memory");
}
/* All threads of both blocks meet. */
DGC_FN void dg_pair_sync(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* The same in two halves, for what lies in between; the barriers that the one thread made which comes with `made` are then seen, nothing else. */
DGC_FN void dg_pair_arrive(bool made) {
    if (made)
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
DGC_FN void dg_pair_wait(void) { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* What lies at that place in block `rank`, for dg_send. */
DGC_FN unsigned dg_place_at(unsigned addr, unsigned rank) {
    unsigned at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(addr), "r"(rank));
    return at;
}
/* 16 bytes to a place in the other block, on their way when this returns; a barrier there counts them. */
DGC_FN void dg_send(unsigned to, float a, float b, float c, float d, unsigned bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(a), "f"(b),
                 "f"(c), "f"(d), "r"(bar)
                 : "memory");
}

/* ---- programmatic dependent launch; both do nothing in a launch without it ---- */
/* Waits for the kernels before this one to be complete and their writes visible. */
DGC_FN void dg_grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* Lets the next kernel's blocks start where there is room. */
DGC_FN void dg_grid_launch(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/* ---- copies ---- */
/* The same, or zeros; src can be read in either case. */
DGC_FN void dg_cp_async16_if(unsigned dst, const void *src, bool on) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(on ? 16 : 0) : "memory");
}
DGC_FN void dg_cp_async4(unsigned dst, const void *src) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}
/* One arrival of this thread once all its earlier cp.async have landed; counted in the barrier's count. */
DGC_FN void dg_cp_async_arrive(unsigned bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory"); }
/* bytes and both addresses: multiples of 16. */
DGC_FN void dg_bulk_load(unsigned dst, const void *src, unsigned bytes, unsigned bar, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
DGC_FN void dg_tma_load(unsigned dst, const void *map, int x, int y, unsigned bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
                 "%3}], [%4], %5;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(bar), "l"(policy)
                 : "memory");
}
/* Asks for a map, an argument of the kernel, ahead of its first use. */
DGC_FN void dg_tma_ahead(const void *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
/* Boxes of three and of four dimensions, likewise. */
DGC_FN void dg_tma_load3(unsigned dst, const void *map, int x, int y, int z, unsigned bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
                 "%3, %4}], [%5], %6;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
                 : "memory");
}
DGC_FN void dg_tma_load4(unsigned dst, const void *map, int x, int y, int z, int w, unsigned bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
                 "%3, %4, %5}], [%6], %7;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar), "l"(policy)
                 : "memory");
}
DGC_FN void dg_tma_load3_both(unsigned dst, const void *map, int x, int y, int z, unsigned bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, "
                 "{%2, %3, %4}], [%5], %6, %7;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"((uint16_t)3), "l"(policy)
                 : "memory");
}
DGC_FN uint64_t dg_policy_first(void) {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
DGC_FN uint64_t dg_policy_last(void) {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* ---- wgmma ---- */
/* Low word of the descriptor of a K-major operand: rows of 128 bytes (64 bf16), 128-byte swizzle, 8-row groups 1024 bytes apart; addr
 * 1024-aligned. One k16 step onwards is + 2. The high word (group stride 64, swizzle mode 1) is the constant in the wrappers. */
DGC_FN unsigned dg_desc_sw128(unsigned addr) { return (addr & 0x3ffff) >> 4 | 1u << 16; }
/* The whole of it, for dg_wgmma_rs: one 64-bit add makes the next step's, where a low word needs its high one moved beside it each time. */
DGC_FN uint64_t dg_desc64(unsigned low) { return (uint64_t)0x40000040 << 32 | low; }
DGC_FN uint64_t dg_desc64_sw128(unsigned addr) { return dg_desc64(dg_desc_sw128(addr)); }
/* Byte offset of 16-byte chunk c of row r in such an operand. */
DGC_FN unsigned dg_sw128(unsigned r, unsigned c) { return r * 128 + ((c ^ (r & 7)) << 4); }

DGC_FN void dg_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DGC_FN void dg_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DGC_FN void dg_wgmma_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
/* Keeps what is made of d behind the wait before this. */
template <int N> DGC_FN void dg_hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <int R> DGC_FN void dg_regs_more(void) { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R)); }
template <int R> DGC_FN void dg_regs_less(void) { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R)); }

/* d += a . b for 64 rows and N columns, k16. The wrappers below differ in N alone (the number of accumulators picks one). */
#define DG_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DG_ACC8(i) DG_ACC4(i), DG_ACC4(i + 4)
DGC_FN void dg_wgmma_rs(float (&d)[4], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
        : DG_ACC4(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs(float (&d)[8], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
        : DG_ACC8(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs(float (&d)[12], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, %16, 1, 1, 1, 0;"
        : DG_ACC8(0), DG_ACC4(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs(float (&d)[16], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : DG_ACC8(0), DG_ACC8(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs(float (&d)[20], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19}, "
        "{%20, %21, %22, %23}, %24, 1, 1, 1, 0;"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC4(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs(float (&d)[24], const unsigned (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DGC_FN void dg_wgmma_rs_f16(float (&d)[128], const unsigned (&a)[4], unsigned b) {
    asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%132, 0x40000040};\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, b, 1, 1, 1, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56), DG_ACC8(64), DG_ACC8(72), DG_ACC8(80), DG_ACC8(88),
          DG_ACC8(96), DG_ACC8(104), DG_ACC8(112), DG_ACC8(120)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
DGC_FN void dg_wgmma_ss(float (&d)[44], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%44, 0x40000040};\nmov.b64 b, {%45, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43}, "
        "a, b, 1, 1, 1, 0, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC4(40)
        : "r"(a), "r"(b));
}
DGC_FN void dg_wgmma_ss(float (&d)[64], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "a, b, 1, 1, 1, 0, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56)
        : "r"(a), "r"(b));
}
DGC_FN void dg_wgmma_ss(float (&d)[72], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%72, 0x40000040};\nmov.b64 b, {%73, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71}, "
        "a, b, 1, 1, 1, 0, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56), DG_ACC8(64)
        : "r"(a), "r"(b));
}
DGC_FN void dg_wgmma_ss(float (&d)[128], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%128, 0x40000040};\nmov.b64 b, {%129, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "a, b, 1, 1, 1, 0, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56), DG_ACC8(64), DG_ACC8(72), DG_ACC8(80), DG_ACC8(88),
          DG_ACC8(96), DG_ACC8(104), DG_ACC8(112), DG_ACC8(120)
        : "r"(a), "r"(b));
}

/* The same on f16, d = a . b + (keep ? d : 0). */
DGC_FN void dg_wgmma_ss_f16(float (&d)[32], unsigned a, unsigned b, int keep) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, {%32, 0x40000040};\nmov.b64 b, {%33, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "a, b, p, 1, 1, 0, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24)
        : "r"(a), "r"(b), "r"(keep));
}
DGC_FN void dg_wgmma_rs_f16(float (&d)[32], const unsigned (&a)[4], unsigned b, int keep) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\nmov.b64 b, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, b, p, 1, 1, 0;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));
}
/* Low word of the descriptor of an f16 operand of 256 columns that lies as k rows of 64 columns (128 bytes, swizzled), 64 rows to each
 * 64 columns. One k16 step onwards is + 128. */
DGC_FN unsigned dg_desc_rows64(unsigned addr) { return (addr & 0x3ffff) >> 4 | 512u << 16; }
DGC_FN void dg_wgmma_rs_f16_rows(float (&d)[128], const unsigned (&a)[4], unsigned b) {
    asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%132, 0x40000040};\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, b, 1, 1, 1, 1;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56), DG_ACC8(64), DG_ACC8(72), DG_ACC8(80), DG_ACC8(88),
          DG_ACC8(96), DG_ACC8(104), DG_ACC8(112), DG_ACC8(120)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
DGC_FN void dg_wgmma_ss_f16_rows(float (&d)[64], unsigned a, unsigned b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "a, b, 1, 1, 1, 0, 1;\n}"
        : DG_ACC8(0), DG_ACC8(8), DG_ACC8(16), DG_ACC8(24), DG_ACC8(32), DG_ACC8(40),
          DG_ACC8(48), DG_ACC8(56)
        : "r"(a), "r"(b));
}

#undef DG_ACC4
#undef DG_ACC8

/* ---- attention ---- */
/* The queries (rows times the heads that share kv head kvh) that a thread of THREADS brings, from u0 on: every so many, 8 dimensions of each. */
struct dg_queries {
    const uint16_t *at;
    int64_t step, wrap;
    int head, head_step, group;
};
template <int HD, int THREADS, int FROM = 0, typename ARGS> DGC_FN struct dg_queries dg_queries_of(const ARGS &f, int kvh, int u0) {
    constexpr int PIECES = (HD - FROM) / 8, STEP = THREADS / PIECES;
    int group = f.heads / f.kv.kv_heads, u = u0 + threadIdx.x / PIECES, m = u / group, head = u - m * group, m_step = STEP / group;
    const uint16_t *q = (const uint16_t *)f.q.p + m * f.q.ld + (int64_t)(kvh * group + head) * HD + FROM + threadIdx.x % PIECES * 8;
    int head_step = STEP - m_step * group;
    return {q, m_step * f.q.ld + head_step * HD, f.q.ld - (int64_t)group * HD, head, head_step, group};
}
/* Them to f16 in shared memory, 64 dimensions of all ROWS after another, swizzled as wgmma reads them; those from u_end on are zeros. */
template <int HD, int ROWS, int THREADS, int FROM = 0>
DGC_FN void dg_load_queries(struct dg_queries q, int u0, int u_end, unsigned char *qs) {
    constexpr int PIECES = (HD - FROM) / 8, STEP = THREADS / PIECES, LOADS = 8; /* under way at once */
    static_assert(THREADS % PIECES == 0 && ROWS % (STEP * LOADS) == 0, "queries by whole rounds");
    int c = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
    for (int round = 0; round < ROWS / (STEP * LOADS); round++, row += STEP * LOADS) {
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            v[i] = u0 + row + i * STEP < u_end ? *(const uint4 *)q.at : make_uint4(0, 0, 0, 0);
            q.at += q.step;
            q.head += q.head_step;
            if (q.head >= q.group) {
                q.head -= q.group;
                q.at += q.wrap;
            }
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            uint4 o;
            o.x = dgc_pack_f16(__uint_as_float(v[i].x << 16), __uint_as_float(v[i].x & 0xffff0000u));
            o.y = dgc_pack_f16(__uint_as_float(v[i].y << 16), __uint_as_float(v[i].y & 0xffff0000u));
            o.z = dgc_pack_f16(__uint_as_float(v[i].z << 16), __uint_as_float(v[i].z & 0xffff0000u));
            o.w = dgc_pack_f16(__uint_as_float(v[i].w << 16), __uint_as_float(v[i].w & 0xffff0000u));
            *(uint4 *)(qs + (c >> 3) * (ROWS * 128) + dg_sw128(row + i * STEP, c & 7)) = o;
        }
    }
}

/* Lane c of four has words c of four groups of four words, afterwards group c; or the other way round. */
DGC_FN void quad_turn(uint32_t (&w)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        uint32_t got = __shfl_xor_sync(~0u, odd ? w[k] : w[k + 1], 1);
        (odd ? w[k] : w[k + 1]) = got;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t got = __shfl_xor_sync(~0u, high ? w[k] : w[k + 2], 2);
        (high ? w[k] : w[k + 2]) = got;
    }
}

/* The first 16 STEPS dimensions of units u and u + 8 (rows times the heads that share kv head kvh) as A fragments in f16; of units from u_end on,
 * zeros. */
template <int HD, int STEPS, typename ARGS>
DGC_FN void dg_query_fragments(unsigned (&q)[STEPS][4], const ARGS &f, int kvh, int u, int u_end) {
    int group = f.heads / f.kv.kv_heads;
#pragma unroll
    for (int r = 0; r < 2; r++, u += 8) {
        int m = u / group, head = kvh * group + u - m * group;
        const uint16_t *from = (const uint16_t *)f.q.p + (int64_t)m * f.q.ld + (int64_t)head * HD + 8 * (threadIdx.x & 3);
        uint4 v[STEPS / 2];
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++)
            v[i] = u < u_end ? *(const uint4 *)(from + 32 * i) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) {
            uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            quad_turn(w);
#pragma unroll
            for (int n = 0; n < 4; n++)
                q[2 * i + (n >> 1)][(n & 1) * 2 + r] = dgc_pack_f16(__uint_as_float(w[n] << 16), __uint_as_float(w[n] & 0xffff0000u));
        }
    }
}

#endif
