/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of pointwise ops, and the vector functions, at samples of all floats against double precision;
 * math_exhaustive_tool.c tries all. What counts as an ulp: math_reference.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "math_reference.h"

enum { PER_EXPONENT = 24, AROUND = 6 };

/* Where functions turn, overflow, underflow or change their formula; also all powers of two and the ends of the
 * range. */
static const float edges[] = {
    0.0f,        1.0f,        2.0f,        3.0f,       6.0f,       20.0f,      0.5f,      0.55f,    0.7f,
    0.34657359f, 0.70710677f, 1.41421354f, 9.0109f,    12.0f,      13.2f,      14.3f,     16.0f,    16.635532f,
    17.328680f,  44.0f,       50.0f,       87.336544f, 88.029691f, 88.722839f, 89.0f,     91.8f,    103.278930f,
    103.972084f, 104.0f,      108.0f,      128.0f,     FLT_MIN,    FLT_MAX,    0x1p-149f, INFINITY, NAN,
};
enum { EDGES = sizeof edges / sizeof edges[0], SAMPLES = 512 * PER_EXPONENT + 2 * EDGES * (2 * AROUND + 1) };

static int64_t draw(float *x)
{
    lf_rng r = lf_rng_seed(11, "floats");
    int64_t n = 0;
    for (uint32_t top = 0; top < 512; top++) /* every sign and exponent, the first and the last float of each */
        for (int i = 0; i < PER_EXPONENT; i++) {
            uint32_t low = i == 0   ? 0
                           : i == 1 ? 0x7fffff
                                    : (uint32_t)(lf_rng_u64(&r) & 0x7fffff),
                     bits = top << 23 | low;
            memcpy(&x[n++], &bits, sizeof bits);
        }
    for (size_t e = 0; e < EDGES; e++)
        for (uint32_t sign = 0; sign < 2; sign++)
            for (int off = -AROUND; off <= AROUND; off++) {
                uint32_t bits;
                memcpy(&bits, &edges[e], sizeof bits);
                bits = (bits + (uint32_t)off) ^ sign << 31;
                memcpy(&x[n++], &bits, sizeof bits);
            }
    return n;
}

static void check_case(size_t table, const math_case *c, const float *x, const float *y, int64_t n)
{
    static float out[SAMPLES];
    for (int64_t i = 0; i < n; i += LF_STRIP)
        math_run(c, table, n - i < LF_STRIP ? n - i : LF_STRIP, x + i, y + i, out + i);
    for (int64_t i = 0; i < n; i++) {
        double ref = c->reference(x[i], y[i], c->attr), ulps = math_ulps(out[i], ref);
        double allowed = math_normal(ref) || c->ulps > 1 ? c->ulps : c->ulps > 0 ? 1 : 0;
        if (!(ulps <= allowed))
            fail_msg("%s: %s(%a, %a) is %a, not %a: %g ulps off, %g allowed", lf_kern_at(table)->isa, c->label,
                     (double)x[i], (double)y[i], (double)out[i], ref, ulps, allowed);
    }
}

static void maps_are_close(void **state)
{
    (void)state;
    static float x[SAMPLES], y[SAMPLES];
    const int64_t n = draw(x);
    assert_int_equal(n, SAMPLES);
    lf_rng r = lf_rng_seed(12, "partners");
    for (int64_t i = 0; i < n; i++)
        y[i] = x[lf_rng_u64(&r) % (uint64_t)n];
    for (size_t i = 0; i < math_case_count; i++)
        for (size_t t = 0; lf_kern_at(t); t++)
            check_case(t, &math_cases[i], x, y, n);
}

/* A new pointwise op wants a row in math_reference.c. */
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(maps_are_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
