/* Heads of a KV cache in eight bits: one scale a head and position, so that no entry depends on another's. */
#ifndef DG_OPS_KV_Q8_H
#define DG_OPS_KV_Q8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* hd values as scale (largest magnitude / 127) and bytes (nearest, ties to even). dst: dg_kv_head_bytes(DG_Q8, hd), aligned to four. Values
 * that are all zero, or so small that their scale is, become zero; with NaN or an infinity among them the scale is NaN, and so is then
 * everything that reads it, as with other cache types. */
static inline void dg_kv_q8_store(const float *x, int32_t hd, void *dst) {
    int8_t *q = (int8_t *)dst + sizeof(float);
    float top = 0;
    for (int32_t i = 0; i < hd; i++) {
        float a = fabsf(x[i]);
        if (!(a <= 0x1.fffffep127f)) {
            top = NAN;
            break;
        }
        top = a > top ? a : top;
    }
    float scale = top / 127, inverse = scale >= 0x1p-126f ? 1 / scale : 0;
    memcpy(dst, &scale, sizeof scale);
    for (int32_t i = 0; i < hd; i++) {
        float v = top == top ? rintf(x[i] * inverse) : 0;
        q[i] = (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v);
    }
    memset(q + hd, 0, -(size_t)hd & 3);
}

static inline void dg_kv_q8_load(const void *src, int32_t hd, float *x) {
    const int8_t *q = (const int8_t *)src + sizeof(float);
    float scale;
    memcpy(&scale, src, sizeof scale);
    for (int32_t i = 0; i < hd; i++)
        x[i] = scale * (float)q[i];
}

#endif
