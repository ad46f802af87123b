/* SPDX-License-Identifier: Apache-2.0 */
/* Every table's conversions between element types against base/dtype.c, to the bit: each half there is, floats around
 * every halfway point, lengths and addresses of all sorts, guard bytes around what they write. */
#include "cpu_support.h"

#include "base/dtype.h"

enum { LONGEST = 70, GUARD = 16, HALVES = 1 << 16 };

/* Floats whose low bits decide how a half is rounded: all upper halves, with low ones at and beside every tie. */
static const uint32_t low_bits[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000,
                                    0x7fff, 0x8000, 0x8001, 0xf000, 0xf001, 0xffff};
enum { LOWS = sizeof low_bits / sizeof *low_bits };

static const lf_dtype halves[] = {LF_F16, LF_BF16};

static void tables_convert_floats(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int type = 0; type < LF_DTYPES; type++, cases++) {
            assert_non_null(lf_kern_at(t)->load[type]);
            assert_int_equal(lf_kern_at(t)->store[type] != NULL, lf_dtype_is_float((lf_dtype)type));
        }
}

static void every_half_is_loaded(void **state)
{
    (void)state;
    static uint16_t every[HALVES];
    static float want[HALVES], got[HALVES];
    for (unsigned i = 0; i < HALVES; i++)
        every[i] = (uint16_t)i;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int h = 0; h < 2; h++, cases++) {
            lf_to_f32(halves[h], every, 1, want, HALVES);
            lf_kern_at(t)->load[halves[h]](HALVES, every, got);
            if (memcmp(got, want, sizeof want) != 0)
                fail_msg("%s: a %s is loaded as another number", lf_kern_at(t)->isa, lf_dtype_name(halves[h]));
        }
}

static void floats_are_rounded(void **state)
{
    (void)state;
    static float from[HALVES];
    static uint16_t want[HALVES], got[HALVES];
    for (int low = 0; low < LOWS; low++) {
        for (uint32_t i = 0; i < HALVES; i++) {
            const uint32_t bits = i << 16 | low_bits[low];
            memcpy(&from[i], &bits, sizeof bits);
        }
        for (size_t t = 0; lf_kern_at(t); t++)
            for (int h = 0; h < 2; h++, cases++) {
                lf_from_f32(halves[h], from, want, 1, HALVES);
                lf_kern_at(t)->store[halves[h]](HALVES, from, got);
                for (int i = 0; i < HALVES; i++)
                    if (got[i] != want[i])
                        fail_msg("%s: %a as %s is %04x, not %04x", lf_kern_at(t)->isa, (double)from[i],
                                 lf_dtype_name(halves[h]), got[i], want[i]);
            }
    }
}

/* n elements from and to any address of an element's alignment. */
static void convert_some(const lf_kern *kern, lf_dtype type, int64_t n, int64_t off)
{
    const size_t size = lf_dtype_size(type);
    float from[LONGEST + GUARD], back[LONGEST + GUARD];
    unsigned char want[4 * (LONGEST + GUARD)], to[4 * (LONGEST + 2 * GUARD)];
    for (int i = 0; i < LONGEST + GUARD; i++)
        from[i] = (float)(i * i) * 0.37f - 40.0f;
    memset(to, 0xa5, sizeof to);
    kern->store[type](n, from + off, to + GUARD + (size_t)off * size);
    lf_from_f32(type, from + off, want, 1, n);
    for (size_t i = 0; i < sizeof to; i++, cases++) {
        const size_t at = i - GUARD - (size_t)off * size;
        if (to[i] != (at < (size_t)n * size ? want[at] : 0xa5))
            fail_msg("%s: %d of %s from %d on: byte %d is wrong", kern->isa, (int)n, lf_dtype_name(type), (int)off,
                     (int)i);
    }
    rig_fill(back, LONGEST + GUARD);
    kern->load[type](n, to + GUARD + (size_t)off * size, back + off);
    lf_to_f32(type, want, 1, from, n);
    for (int i = 0; i < LONGEST + GUARD; i++, cases++)
        if (i < off || i >= off + n)
            assert_true(rig_is_poison(back[i]));
        else
            assert_true(back[i] == from[i - off]);
}

static void any_length_and_address(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int type = 0; type < LF_DTYPES; type++)
            for (int64_t n = 0; lf_dtype_is_float((lf_dtype)type) && n <= LONGEST; n++)
                for (int64_t off = 0; off < 8; off++)
                    convert_some(lf_kern_at(t), (lf_dtype)type, n, off);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(tables_convert_floats),
        TEST(every_half_is_loaded),
        TEST(floats_are_rounded),
        TEST(any_length_and_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
