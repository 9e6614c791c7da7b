/* Blocks of threads as coroutines on one CPU thread. */
#include "cuda/emulate.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#define THREADS_MAX 1024
#define STACK ((size_t)64 << 10)
#define RECORD 64

enum state { READY, WAIT_WARP, WAIT_BLOCK, DONE };

static struct {
    enum state state;
    unsigned turn; /* which of the two exchange buffers is next */
#if defined(__x86_64__) || defined(__aarch64__)
    void *sp;
#else
    ucontext_t uc;
#endif
} thread[THREADS_MAX];

static unsigned char slot[THREADS_MAX / 32][2][32 * RECORD];
static unsigned char *stacks;
static unsigned self;
static void (*run_kernel)(void *);
static void *run_args;
struct emu_dim emu_thread_idx, emu_block_idx;
unsigned char emu_shared[228 << 10] __attribute__((aligned(128)));

#if defined(__x86_64__)
void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void *scheduler_sp;
static void to_thread(unsigned t) { emu_switch(&scheduler_sp, thread[t].sp); }
static void to_scheduler(void) { emu_switch(&thread[self].sp, scheduler_sp); }
static void thread_main(void);
static void prepare(unsigned t) {
    void **sp = (void **)(stacks + (size_t)(t + 1) * STACK - 64);
    *--sp = NULL; /* so that the stack is 8 off a multiple of 16 at the entry, as after a call */
    *--sp = (void *)thread_main; /* where the first switch returns to */
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    thread[t].sp = sp;
}
#elif defined(__aarch64__)
void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n");
static void *scheduler_sp;
static void to_thread(unsigned t) { emu_switch(&scheduler_sp, thread[t].sp); }
static void to_scheduler(void) { emu_switch(&thread[self].sp, scheduler_sp); }
static void thread_main(void);
static void prepare(unsigned t) {
    void **sp = (void **)(stacks + (size_t)(t + 1) * STACK - 160);
    memset(sp, 0, 160);
    sp[11] = (void *)thread_main;
    thread[t].sp = sp;
}
#else
static ucontext_t scheduler;
static void to_thread(unsigned t) { swapcontext(&scheduler, &thread[t].uc); }
static void to_scheduler(void) { swapcontext(&thread[self].uc, &scheduler); }
static void thread_main(void);
static void prepare(unsigned t) {
    getcontext(&thread[t].uc);
    thread[t].uc.uc_stack.ss_sp = stacks + (size_t)t * STACK;
    thread[t].uc.uc_stack.ss_size = STACK;
    thread[t].uc.uc_link = NULL;
    makecontext(&thread[t].uc, thread_main, 0);
}
#endif

static void thread_main(void) {
    run_kernel(run_args);
    thread[self].state = DONE;
    to_scheduler();
    abort();
}

static void wait_for(enum state s) {
    unsigned me = self;
    thread[me].state = s;
    to_scheduler();
    emu_thread_idx.x = me;
}

void __syncthreads(void) { wait_for(WAIT_BLOCK); }
void emu_warp_barrier(void) { wait_for(WAIT_WARP); }

int __syncthreads_or(int v) {
    static int votes;
    __syncthreads(); /* nobody still reads the votes before */
    votes = 0;
    __syncthreads();
    votes |= v != 0;
    __syncthreads();
    return votes;
}

const void *emu_exchange(const void *mine, size_t bytes) {
    unsigned char *buf = slot[self / 32][thread[self].turn++ & 1];
    memcpy(buf + (self & 31) * bytes, mine, bytes);
    emu_warp_barrier();
    return buf;
}

static void hang(const char *why, unsigned warp) {
    fprintf(stderr, "emulated block (%u, %u): %s, warp %u\n", emu_block_idx.x, emu_block_idx.y, why, warp);
    abort();
}

/* Runs a warp until each of its threads has ended or waits for the block. */
static void run_warp(unsigned warp) {
    for (;;) {
        unsigned waiting = 0, left = 0;
        for (unsigned t = warp * 32; t < warp * 32 + 32; t++)
            if (thread[t].state == READY) {
                self = t;
                emu_thread_idx.x = t;
                to_thread(t);
            }
        for (unsigned t = warp * 32; t < warp * 32 + 32; t++) {
            waiting += thread[t].state == WAIT_WARP;
            left += thread[t].state == WAIT_BLOCK;
        }
        if (waiting == 0)
            return;
        if (waiting != 32)
            hang(left ? "some lanes wait for the warp and others for the block" : "some lanes wait for lanes that have ended", warp);
        for (unsigned t = warp * 32; t < warp * 32 + 32; t++)
            thread[t].state = READY;
    }
}

static void run_block(unsigned threads) {
    for (unsigned t = 0; t < threads; t++) {
        prepare(t);
        thread[t].state = READY;
        thread[t].turn = 0;
    }
    for (;;) {
        unsigned waiting = 0, done = 0;
        for (unsigned w = 0; w < threads / 32; w++)
            run_warp(w);
        for (unsigned t = 0; t < threads; t++) {
            waiting += thread[t].state == WAIT_BLOCK;
            done += thread[t].state == DONE;
        }
        if (done == threads)
            return;
        if (waiting + done != threads)
            hang("a thread neither waits nor has ended", 0);
        for (unsigned t = 0; t < threads; t++)
            if (thread[t].state == WAIT_BLOCK)
                thread[t].state = READY;
    }
}

/* Element (row, col) of the 16 x 16 A fragment lies in lane 4 * (row % 8) + col % 8 / 2, register 2 * (col / 8) + row / 8, half col % 2;
 * of the 16 x 8 B fragment (k, n) in lane 4 * n + k % 8 / 2, register k / 8, half k % 2. */
struct fragments {
    uint32_t a[4], b[2];
};

static float half_of(uint32_t v, unsigned i, bool bf16) {
    uint16_t h = (uint16_t)(v >> (16 * i));
    return bf16 ? dg_bf16_f32(h) : dg_f16_f32(h);
}

static void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, bool bf16) {
    struct fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const struct fragments *all = emu_exchange(&mine, sizeof mine);
    unsigned lane = EMU_LANE, g = lane / 4, c = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = g + 8 * (i / 2), col = 2 * c + i % 2;
        float s = d[i];
        for (unsigned k = 0; k < 16; k++)
            s += half_of(all[4 * (row % 8) + k % 8 / 2].a[2 * (k / 8) + row / 8], k % 2, bf16) *
                 half_of(all[4 * col + k % 8 / 2].b[k / 8], k % 2, bf16);
        d[i] = s;
    }
}

void dgc_mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) { mma(d, a, b0, b1, true); }
void dgc_mma_f16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) { mma(d, a, b0, b1, false); }

void dgc_ldmatrix_x4_trans(uint32_t *r, const void *row) {
    uint16_t mine[8];
    if ((uintptr_t)row % 16)
        hang("a matrix row that is not a multiple of 16 bytes", self / 32);
    memcpy(mine, row, sizeof mine);
    const uint16_t(*all)[8] = emu_exchange(mine, sizeof mine);
    unsigned g = EMU_LANE / 4, c = EMU_LANE % 4;
    for (unsigned i = 0; i < 4; i++)
        r[i] = (uint32_t)all[8 * i + 2 * c][g] | (uint32_t)all[8 * i + 2 * c + 1][g] << 16;
}

void emu_launch(void (*kernel)(void *), void *args, unsigned gx, unsigned gy, unsigned threads, unsigned shared) {
    if (!stacks) {
        stacks = mmap(NULL, THREADS_MAX * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED)
            abort();
    }
    run_kernel = kernel;
    run_args = args;
    for (emu_block_idx.y = 0; emu_block_idx.y < gy; emu_block_idx.y++)
        for (emu_block_idx.x = 0; emu_block_idx.x < gx; emu_block_idx.x++) {
            memset(emu_shared, 0xff, shared);
            run_block(threads);
        }
}
