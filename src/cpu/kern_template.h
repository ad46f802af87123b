/* SPDX-License-Identifier: Apache-2.0 */
/* The table of an instruction set, around the product, maps and folds of kern_product.h, kern_maps.h and kern_folds.h.
 * A file kern_ISA.c says what its machine has and includes this:
 *   KERN_ISA     its name, unquoted
 *   KERN_LANES   floats in a vector register
 *   KERN_MR      rows of a tile
 *   KERN_NV      vectors in a row of a tile: KERN_MR * KERN_NV sums, KERN_NV columns of b and one element of a are
 *                alive at once and should fit the registers
 *   KERN_USABLE  an expression: may this machine run it?
 * Vectors are GNU C's, so that one text gives every machine its own instructions with gcc and clang. */
#include "cpu/kern_parts.h"
#include "cpu/kern_vec.h"

#define KERN_NR (KERN_LANES * KERN_NV)

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

/* Loops that index registers must be unrolled whole, or the sums live in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#include "cpu/kern_product.h"

/* Half as many lanes, in double precision. */
enum { KERN_WIDE = KERN_LANES / 2 };
typedef double dvec __attribute__((vector_size(KERN_WIDE * sizeof(double)), may_alias));
typedef double dvec_anywhere __attribute__((vector_size(KERN_WIDE * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef float half_anywhere __attribute__((vector_size(KERN_WIDE * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Contract: kern.h. x, w: [k]. Element k goes to lane k % KERN_WIDE of one of four sums, so that four additions are under way at once. */
static double dot(int64_t k, const float *x, const double *w)
{
    enum { SUMS = 4, STEP = SUMS * KERN_WIDE };
    assert(k >= 0);
    dvec sum[SUMS];
    UNROLL
    for (int v = 0; v < SUMS; v++)
        sum[v] = (dvec){0};
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        UNROLL
        for (int v = 0; v < SUMS; v++)
            sum[v] += __builtin_convertvector(*(const half_anywhere *)(x + i + v * KERN_WIDE), dvec) *
                      *(const dvec_anywhere *)(w + i + v * KERN_WIDE);
    }
    union { dvec v; double d[KERN_WIDE]; } total = {.v = (sum[0] + sum[1]) + (sum[2] + sum[3])};
    for (; i < k; i++)
        total.d[i % KERN_WIDE] += (double)x[i] * w[i];
    for (int half = KERN_WIDE / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            total.d[lane] += total.d[lane + half];
    return total.d[0];
}

#include "cpu/kern_maps.h"
#include "cpu/kern_folds.h"

static bool usable(void)
{
    return KERN_USABLE;
}

const lf_kern PASTE(lf_kern_, KERN_ISA) = {
    .isa = TEXT(KERN_ISA),
    .usable = usable,
    .nr = KERN_NR,
    .mr = KERN_MR,
    .x_floats = x_floats,
    .w_floats = w_floats,
    .pack_x = pack_x,
    .pack_w = pack_w,
    .multiply = multiply,
    .dot = dot,
    .map = {
#define LF_OP(name, kind, ...) [LF_OP_##name] = MAP_OF_##kind(name),
#include "ir/ops.def"
#undef LF_OP
    },
    .fold = {
#define LF_MONOID(name, ...) [LF_MONOID_##name] = fold_strip_##name,
#include "ir/monoids.def"
#undef LF_MONOID
    },
    .put = {
#define LF_MONOID(name, ...) [LF_MONOID_##name] = put_##name,
#include "ir/monoids.def"
#undef LF_MONOID
    },
};
