/* SPDX-License-Identifier: Apache-2.0 */
/* AMX's tile unit in plain C, to the bit, as Intel's manual describes it (TDPBF16PS: products fused, rounded to nearest
 * even; denormals taken for 0, and 0 given for what would be one, whatever MXCSR says). For each thread its own.
 * Instructions outside of tile_begin and tile_end end the program, as a CPU would. */
#ifndef LF_TESTS_AMX_TILE_EMULATION_H
#define LF_TESTS_AMX_TILE_EMULATION_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kern_tile_unit.h"

static _Thread_local struct emulated_tiles {
    _Alignas(float) char tile[TILES][TILE_ROWS][TILE_ROW_BYTES];
    bool begun;
} emulated;

static inline void *emulated_tile(int t)
{
    if (!emulated.begun || t < 0 || t >= TILES)
        abort();
    return emulated.tile[t];
}

/* Zeroes tiles, as ldtilecfg does. */
static inline void emulated_begin(void)
{
    memset(&emulated, 0, sizeof emulated);
    emulated.begun = true;
}

static inline void emulated_end(void)
{
    emulated.begun = false;
}

static inline void emulated_zero(int t)
{
    memset(emulated_tile(t), 0, TILE_BYTES);
}

static inline void emulated_load(int t, const void *from, int64_t pitch)
{
    char *tile = emulated_tile(t);
    for (int row = 0; row < TILE_ROWS; row++)
        memcpy(tile + row * TILE_ROW_BYTES, (const char *)from + row * pitch, TILE_ROW_BYTES);
}

static inline void emulated_store(int t, void *to, int64_t pitch)
{
    const char *tile = emulated_tile(t);
    for (int row = 0; row < TILE_ROWS; row++)
        memcpy((char *)to + row * pitch, tile + row * TILE_ROW_BYTES, TILE_ROW_BYTES);
}

static inline float no_denormal(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* u * v + w, u and v of bf16. What is rounded to 2^-126 is a denormal all the same if it is less with 24 bits and any
 * exponent: less than half-way from the number below. */
static inline float fused_without_denormals(float u, float v, float w)
{
    u = no_denormal(u), v = no_denormal(v), w = no_denormal(w);
    const float sum = fmaf(u, v, w);
    if (fabsf(sum) == 0x1p-126f) {
        const double half_way = 0x1p-126 - 0x1p-151, product = (double)u * (double)v;
        const double near = product + (double)w, of_w = near - product, size = fabs(near);
        const double rest = (product - (near - of_w)) + ((double)w - of_w), lost = near < 0 ? -rest : rest;
        if (size < half_way || (size == half_way && lost < 0))
            return copysignf(0, sum);
    }
    return no_denormal(sum);
}

static inline float emulated_bf16_at(const void *tile, int at)
{
    uint16_t half;
    memcpy(&half, (const char *)tile + at * (int)sizeof half, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void emulated_dot_bf16(int sum, int x, int w)
{
    enum { WORDS = TILE_ROW_BYTES / 4 };
    float *to = emulated_tile(sum);
    const void *a = emulated_tile(x), *b = emulated_tile(w);
    for (int i = 0; i < TILE_ROWS; i++) {
        float first[WORDS] = {0}, second[WORDS] = {0};
        for (int k = 0; k < WORDS; k++) {
            const int pair = 2 * (i * WORDS + k);
            const float a0 = emulated_bf16_at(a, pair), a1 = emulated_bf16_at(a, pair + 1);
            for (int j = 0; j < WORDS; j++) {
                const int at = 2 * (k * WORDS + j);
                first[j] = fused_without_denormals(a0, emulated_bf16_at(b, at), first[j]);
                second[j] = fused_without_denormals(a1, emulated_bf16_at(b, at + 1), second[j]);
            }
        }
        for (int j = 0; j < WORDS; j++) {
            float *at = to + i * WORDS + j;
            *at = no_denormal(no_denormal(*at) + no_denormal(first[j] + second[j]));
        }
    }
}

#endif
