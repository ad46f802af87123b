/* SPDX-License-Identifier: Apache-2.0 */
/* The ops' expressions as loops over strips: one function a row of ops.def, shared by all tables.
 *
 * Compiled without contraction and with the C library's functions, an element's result is the same in a vectorised
 * body and in what is left over, as the contract asks. */
#if defined(__clang__)
/* A loop that calls into libm stays as it is, which is no failure. Said here because, with debug information, clang puts
 * the warning where ops.def is first included. */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
#include <stddef.h>
#include <tgmath.h>

#include "cpu/kern_parts.h"

/* out may be one of the arguments, but then element for element: no iteration reads what another writes. */
#if defined(__clang__)
#define NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_CARRY _Pragma("GCC ivdep")
#endif

#define x (xs[i])
#define y (ys[i])
#define z (zs[i])

#define DEFINE_MAP(name, ...)                                                                                        \
    void lf_map_##name(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr, float *out)  \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRIP);                                                                             \
        const float a = attr ? attr[0] : 0.0f, b = attr ? attr[1] : 0.0f, c = attr ? attr[2] : 0.0f;                 \
        (void)a, (void)b, (void)c, (void)xs, (void)ys, (void)zs;                                                     \
        NO_CARRY                                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                                              \
            out[i] = (__VA_ARGS__);                                                                                  \
    }

#define DEFINE_LEAF(name, ...)
#define DEFINE_PRODUCT(name, ...)
#define DEFINE_POINTWISE DEFINE_MAP
#define DEFINE_REDUCE DEFINE_MAP
#define DEFINE_NORMALIZE DEFINE_MAP
#define DEFINE_POOL DEFINE_MAP
#define DEFINE_VIEW DEFINE_MAP
#define DEFINE_MOVE DEFINE_MAP
#define DEFINE_GUARD DEFINE_MAP

#define LF_OP(name, kind, monoid, laws, flops, tolerance, signature, ...) DEFINE_##kind(name, __VA_ARGS__)
#include "ir/ops.def"
#undef LF_OP
