/* The tile instructions of AMX for machines without them, with those of AVX-512: eight tiles a thread, the arithmetic as Intel's reference
 * gives it. What the processor would refuse ends the test: a tile that is used before the thread's configuration is loaded, or after it was
 * released. */
#ifndef DG_TESTS_EMULATE_AMX_H
#define DG_TESTS_EMULATE_AMX_H

#include "cpu/emulate_avx512.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct emu_tile {
    uint8_t row[16][64];
};

/* one for all files of kernels: who loads the configuration and who uses the tiles may be two of them */
struct emu_amx {
    struct emu_tile tile[8];
    bool on;
};
extern _Thread_local struct emu_amx emu_amx;
__attribute__((weak)) _Thread_local struct emu_amx emu_amx;

EMU struct emu_tile *emu_tile(int i) {
    if (!emu_amx.on) {
        fprintf(stderr, "a tile is used without a configuration\n");
        abort();
    }
    return &emu_amx.tile[i];
}
/* Every tile that the kernels use is whole. */
EMU void emu_tile_loadconfig(const void *config) {
    const uint8_t *c = config;
    bool good = c[0] == 1 && c[1] == 0;
    for (int i = 2; i < 16; i++)
        good &= c[i] == 0;
    for (int i = 0; i < 16; i++)
        good &= c[16 + 2 * i] == (i < 8 ? 64 : 0) && c[17 + 2 * i] == 0 && c[48 + i] == (i < 8 ? 16 : 0);
    if (!good || emu_amx.on) {
        fprintf(stderr, good ? "a thread kept its tiles after its last op\n" : "the processor would refuse this configuration of tiles\n");
        abort();
    }
    memset(&emu_amx, 0, sizeof emu_amx);
    emu_amx.on = true;
}
EMU void emu_tile_release(void) { memset(&emu_amx, 0, sizeof emu_amx); }
EMU void emu_tile_zero(int t) { memset(emu_tile(t), 0, sizeof(struct emu_tile)); }
EMU void emu_tile_loadd(int t, const void *base, int64_t stride) {
    struct emu_tile *d = emu_tile(t);
    for (int i = 0; i < 16; i++)
        memcpy(d->row[i], (const char *)base + i * stride, 64);
}
EMU void emu_tile_stored(int t, void *base, int64_t stride) {
    const struct emu_tile *s = emu_tile(t);
    for (int i = 0; i < 16; i++)
        memcpy((char *)base + i * stride, s->row[i], 64);
}
/* Even and odd products have sums of their own, which begin at zero; both together are added to the tile. */
EMU void emu_tile_dpbf16ps(int to, int a, int b) {
    struct emu_tile *d = emu_tile(to);
    const struct emu_tile *x = emu_tile(a), *y = emu_tile(b);
    for (int m = 0; m < 16; m++) {
        float sum[2][16] = {{0}}, old[16];
        short pair[16][2];
        for (int k = 0; k < 16; k++) {
            short w[2];
            memcpy(w, x->row[m] + 4 * k, sizeof w);
            memcpy(pair, y->row[k], sizeof pair);
            for (int h = 0; h < 2; h++) {
                float f = emu_from_bf16(w[h]);
                for (int n = 0; n < 16; n++)
                    sum[h][n] = emu_flush(__builtin_fmaf(f, emu_from_bf16(pair[n][h]), sum[h][n]));
            }
        }
        memcpy(old, d->row[m], sizeof old);
        for (int n = 0; n < 16; n++)
            old[n] = emu_flush(emu_flush(old[n]) + emu_flush(sum[0][n] + sum[1][n]));
        memcpy(d->row[m], old, sizeof old);
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emu_tile_loadconfig
#define _tile_release emu_tile_release
#define _tile_zero emu_tile_zero
#define _tile_loadd emu_tile_loadd
#define _tile_stored emu_tile_stored
#define _tile_dpbf16ps emu_tile_dpbf16ps

#endif
