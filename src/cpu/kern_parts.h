/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tables are put together from. Only kern_*.c include this. */
#ifndef LF_CPU_KERN_PARTS_H
#define LF_CPU_KERN_PARTS_H

#include <assert.h>

#include "cpu/kern.h"

#define sel(p, u, v) ((p) ? (u) : (v)) /* as ops.def and monoids.def use it */

extern const lf_kern lf_kern_scalar;
#if defined(__x86_64__)
extern const lf_kern lf_kern_avx2, lf_kern_avx512;
#elif defined(__aarch64__)
extern const lf_kern lf_kern_neon;
#endif

/* kern_maps.c: lf_map_NAME for every op with an expression of elements, as kern.h's map. */
#define LF_OP(name, ...)                                                                                             \
    void lf_map_##name(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr, float *out);
#include "ir/ops.def"
#undef LF_OP

/* Which kinds of op have one. */
#define LF_MAP_OF_LEAF(name) NULL
#define LF_MAP_OF_PRODUCT(name) NULL
#define LF_MAP_OF_POINTWISE(name) lf_map_##name
#define LF_MAP_OF_REDUCE(name) lf_map_##name
#define LF_MAP_OF_NORMALIZE(name) lf_map_##name
#define LF_MAP_OF_POOL(name) lf_map_##name
#define LF_MAP_OF_VIEW(name) lf_map_##name
#define LF_MAP_OF_MOVE(name) lf_map_##name
#define LF_MAP_OF_GUARD(name) lf_map_##name

/* kern_folds.c: lf_fold_NAME and lf_put_NAME for every monoid, as kern.h's fold and put. */
#define LF_MONOID(name, ...)                                                                                         \
    void lf_fold_##name(int64_t n, const float *xs, float *state);                                                   \
    void lf_put_##name(int64_t n, const float *xs, float *state, int64_t lds);
#include "ir/monoids.def"
#undef LF_MONOID

#endif
