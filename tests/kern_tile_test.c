/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated tile unit: against numbers known beforehand, and to the bit against the CPU's where it has one. (The
 * kernels in tiles: kern_test.c, which also runs with the emulated unit.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/isa.h"
#include "base/rng.h"

#ifdef __x86_64__

#include "amx/tile_emulation.h"

enum { WORDS = TILE_ROW_BYTES / (int)sizeof(float), HALVES = 2 * WORDS };

typedef struct operands {
    uint16_t x[TILE_ROWS][HALVES], w[TILE_ROWS][HALVES]; /* w: [pairs][columns][2] */
    float before[TILE_ROWS][WORDS];
} operands;

static void emulate(const operands *o, float sums[TILE_ROWS][WORDS])
{
    emulated_begin();
    emulated_load(0, o->before, TILE_ROW_BYTES);
    emulated_load(4, o->x, TILE_ROW_BYTES);
    emulated_load(6, o->w, TILE_ROW_BYTES);
    emulated_dot_bf16(0, 4, 6);
    emulated_store(0, sums, TILE_ROW_BYTES);
    emulated_end();
}

static void multiply(const operands *o, float sums[TILE_ROWS][WORDS])
{
    tile_begin();
    tile_load(0, o->before, TILE_ROW_BYTES);
    tile_load(4, o->x, TILE_ROW_BYTES);
    tile_load(6, o->w, TILE_ROW_BYTES);
    tile_dot_bf16(0, 4, 6);
    tile_store(0, sums, TILE_ROW_BYTES);
    tile_end();
}

static uint16_t half_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    assert_int_equal(bits & 0xffff, 0);
    return (uint16_t)(bits >> 16);
}

/* Row 0 times column 0: up to two pairs, and what was there before. */
static float one_sum(float before, float x0, float w0, float x1, float w1, float x2, float w2)
{
    static operands o;
    float sums[TILE_ROWS][WORDS];
    memset(&o, 0, sizeof o);
    o.before[0][0] = before;
    o.x[0][0] = half_of(x0), o.x[0][1] = half_of(x1), o.x[0][2] = half_of(x2);
    o.w[0][0] = half_of(w0), o.w[0][1] = half_of(w1), o.w[1][0] = half_of(w2);
    emulate(&o, sums);
    return sums[0][0];
}

static void emulation_is_the_manual_s(void **state)
{
    (void)state;
    assert_true(one_sum(0.5f, 1, 2, 3, 4, 5, 6) == 44.5f);
    /* first elements meet first, and are rounded between: 1 + 2^-24 is 1, both times */
    assert_true(one_sum(0, 1, 1, 0, 0, 0x1p-12f, 0x1p-12f) == 1);
    assert_true(one_sum(0, 1, 1, 0x1p-24f, 1, 0x1p-12f, 0x1p-12f) == 1);
    assert_true(one_sum(0x1p-24f, 0x1p-24f, 1, 0, 0, 0, 0) == 0x1p-23f);
    /* products are not rounded: -1 + 1.0078125^2 */
    assert_true(one_sum(0, -1, 1, 0, 0, 1.0078125f, 1.0078125f) == 0x1p-6f + 0x1p-14f);
    /* nearest, ties to even */
    assert_true(one_sum(0x1p24f, 1, 1, 0, 0, 0, 0) == 0x1p24f);
    assert_true(one_sum(0x1p24f + 2, 1, 1, 0, 0, 0, 0) == 0x1p24f + 4);
    /* denormals: in operands, in what was there, of a product, of a sum */
    assert_true(one_sum(0, 0x1p-127f, 0x1p100f, 0, 0, 0, 0) == 0);
    assert_true(one_sum(0x1p-127f, 0, 0, 0, 0, 0, 0) == 0);
    assert_true(one_sum(0, 0x1p-64f, 0x1p-63f, 0, 0, 0, 0) == 0);
    assert_true(one_sum(0, 0x1p-63f, 0x1p-63f, 0, 0, 0, 0) == 0x1p-126f);
    assert_true(one_sum(0, 0x1.8p-126f, 1, -0x1p-126f, 1, 0, 0) == 0);
    assert_true(one_sum(-0x1p-126f, 0x1.8p-126f, 1, 0, 0, 0, 0) == 0);
    /* rounded to 2^-126 from below: a denormal unless it is so near that 24 bits cannot tell */
    assert_true(one_sum(0, 0x1p-126f, 1, 0, 0, -0x1p-75f, 0x1p-75f) == 0);
    assert_true(one_sum(0, 0x1p-126f, 1, 0, 0, -0x1p-75f, 0x1p-76f) == 0x1p-126f);
    assert_true(one_sum(0, 0x1p-126f, 1, 0, 0, -0x1p-75f, 0x1.02p-76f) == 0);
    assert_true(isinf(one_sum(0, 0x1p127f, 2, 0, 0, 0, 0)));
    assert_true(isnan(one_sum(0, INFINITY, 0, 0, 0, 0, 0)));
    assert_true(isnan(one_sum(0, INFINITY, 1, -INFINITY, 1, 0, 0)));
}

enum { ORDINARY, WIDE, NEAR_DENORMALS, ANY_BITS, KINDS };

static uint16_t drawn_half(lf_rng *r, int kind)
{
    const uint64_t bits = lf_rng_u64(r);
    const uint16_t digits = (uint16_t)(bits & 0x807f), exponent = (uint16_t)(bits >> 32);
    switch (kind) {
    case ORDINARY: return (uint16_t)(digits | (120 + exponent % 10) << 7);
    case WIDE: return (uint16_t)(digits | (64 + exponent % 126) << 7);
    case NEAR_DENORMALS: return (uint16_t)(digits | (52 + exponent % 24) << 7);
    default: return (uint16_t)bits;
    }
}

static float drawn_sum(lf_rng *r, int kind)
{
    uint32_t bits = (uint32_t)lf_rng_u64(r);
    float x;
    if (kind != ANY_BITS)
        bits = (bits & 0x807fffff) | (kind == NEAR_DENORMALS ? bits >> 24 & 7 : 110 + (bits >> 24 & 15)) << 23;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void unit_is_the_emulation(void **state)
{
    enum { DRAWN = 4000 };
    (void)state;
    if (!lf_has_amx_bf16())
        skip();
    lf_rng r = lf_rng_seed(7, "tiles");
    for (int n = 0; n < DRAWN; n++) {
        static operands o;
        float wanted[TILE_ROWS][WORDS], got[TILE_ROWS][WORDS];
        for (int i = 0; i < TILE_ROWS; i++) {
            for (int j = 0; j < HALVES; j++) {
                o.x[i][j] = drawn_half(&r, n % KINDS);
                o.w[i][j] = drawn_half(&r, n % KINDS);
            }
            for (int j = 0; j < WORDS; j++)
                o.before[i][j] = n % 3 == 0 ? 0 : drawn_sum(&r, n % KINDS);
        }
        emulate(&o, wanted);
        multiply(&o, got);
        for (int i = 0; i < TILE_ROWS; i++)
            for (int j = 0; j < WORDS; j++)
                if (isnan(wanted[i][j]) ? !isnan(got[i][j]) : memcmp(&got[i][j], &wanted[i][j], sizeof(float)) != 0)
                    fail_msg("draw %d of kind %d, (%d, %d): the unit gives %a, the emulation %a", n, n % KINDS, i, j,
                             (double)got[i][j], (double)wanted[i][j]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulation_is_the_manual_s),
        cmocka_unit_test(unit_is_the_emulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void other_machines_have_none(void **state)
{
    (void)state;
    assert_false(lf_has_amx_bf16());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_machines_have_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
