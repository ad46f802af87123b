/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of KERN_LANES floats, with the few things GNU C's vectors lack. Included by kern_template.h.
 *
 * Where there is a fused multiply-add it is asked for by name, so that bits do not depend on what a compiler
 * fuses. */
#ifndef LF_CPU_KERN_VEC_H
#define LF_CPU_KERN_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define VECTOR_OF(type) type __attribute__((vector_size(KERN_LANES * sizeof(float)), may_alias))
typedef VECTOR_OF(float) vec;
typedef VECTOR_OF(int32_t) ivec;  /* comparisons give these: 0 or -1 a lane */
typedef VECTOR_OF(uint32_t) uvec; /* to calculate with bits: no overflow */
typedef float vec_anywhere __attribute__((vector_size(KERN_LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* ---- what each machine has an instruction for ----
 * mul_add: u * v + w, rounded once where HAS_FMA, otherwise twice.  least: u < v ? u : v, greatest: u > v ? u : v; so a NaN
 * in v comes out, on some machines one in u too. scale: u * 2^n, n whole, |n| <= 250, rounded once. */
#if KERN_LANES == 16 && defined(__AVX512F__)
#define HAS_FMA 1
#define HAS_SCALE 1
#define mul_add(u, v, w) ((vec)_mm512_fmadd_ps((__m512)(u), (__m512)(v), (__m512)(w)))
#define least(u, v) ((vec)_mm512_min_ps((__m512)(u), (__m512)(v)))
#define greatest(u, v) ((vec)_mm512_max_ps((__m512)(u), (__m512)(v)))
#define root(u) ((vec)_mm512_sqrt_ps((__m512)(u)))
#define scale(u, n) ((vec)_mm512_scalef_ps((__m512)(u), (__m512)(n)))
#elif KERN_LANES == 8 && defined(__FMA__)
#define HAS_FMA 1
#define mul_add(u, v, w) ((vec)_mm256_fmadd_ps((__m256)(u), (__m256)(v), (__m256)(w)))
#define least(u, v) ((vec)_mm256_min_ps((__m256)(u), (__m256)(v)))
#define greatest(u, v) ((vec)_mm256_max_ps((__m256)(u), (__m256)(v)))
#define root(u) ((vec)_mm256_sqrt_ps((__m256)(u)))
#elif KERN_LANES == 4 && defined(__aarch64__)
#define HAS_FMA 1
#define mul_add(u, v, w) ((vec)vfmaq_f32((float32x4_t)(w), (float32x4_t)(u), (float32x4_t)(v)))
#define least(u, v) ((vec)vminq_f32((float32x4_t)(u), (float32x4_t)(v)))
#define greatest(u, v) ((vec)vmaxq_f32((float32x4_t)(u), (float32x4_t)(v)))
#define root(u) ((vec)vsqrtq_f32((float32x4_t)(u)))
#elif KERN_LANES == 4 && defined(__SSE2__)
#define mul_add(u, v, w) ((u) * (v) + (w))
#define least(u, v) ((vec)_mm_min_ps((__m128)(u), (__m128)(v)))
#define greatest(u, v) ((vec)_mm_max_ps((__m128)(u), (__m128)(v)))
#define root(u) ((vec)_mm_sqrt_ps((__m128)(u)))
#else
#define mul_add(u, v, w) ((u) * (v) + (w))
#define least(u, v) blend((u) < (v), u, v)
#define greatest(u, v) blend((u) > (v), u, v)
#define root(u) root_by_lanes(u)
#endif
#ifndef HAS_FMA
#define HAS_FMA 0
#endif
#ifndef HAS_SCALE
#define HAS_SCALE 0
#endif

/* ---- from float, or from what already is a vector ---- */

static inline vec wide_of_float(float f)
{
    return f - (vec){0};
}

static inline vec wide_of_vec(vec v)
{
    return v;
}

#define wide(u) _Generic((u), float: wide_of_float, default: wide_of_vec)(u)

/* Where mask is -1: u, where it is 0: v. */
static inline vec blend(ivec mask, vec u, vec v)
{
    return (vec)(((ivec)u & mask) | ((ivec)v & ~mask));
}

/* ---- sel(p, u, v) of ops.def and monoids.def ----
 * A comparison of numbers (an op's attributes) is an int and chooses one side, which alone is computed. One of vectors
 * chooses lane by lane between both sides, computed. */

static inline int truth_of_int(int p)
{
    return p;
}

static inline int truth_of_mask(ivec p)
{
    (void)p;
    return 0;
}

static inline ivec mask_of_int(int p)
{
    (void)p;
    return (ivec){0};
}

static inline ivec mask_of_mask(ivec p)
{
    return p;
}

#undef sel
#define sel(p, u, v)                                                                                                 \
    (_Generic((p), int: 1, default: 0)                                                                               \
         ? (_Generic((p), int: truth_of_int, default: truth_of_mask)(p) ? wide(u) : wide(v))                         \
         : blend(_Generic((p), int: mask_of_int, default: mask_of_mask)(p), wide(u), wide(v)))

/* ---- to and from memory ---- */

static inline vec load(const float *from)
{
    return *(const vec_anywhere *)from;
}

static inline void store(float *to, vec v)
{
    *(vec_anywhere *)to = v;
}

/* The first n < KERN_LANES floats, `rest` in the lanes after them. */
static inline vec load_some(int64_t n, const float *from, float rest)
{
    union { vec v; float f[KERN_LANES]; } some = {.v = wide(rest)};
    for (int64_t i = 0; i < n; i++)
        some.f[i] = from[i];
    return some.v;
}

static inline void store_some(int64_t n, float *to, vec v)
{
    union { vec v; float f[KERN_LANES]; } some = {.v = v};
    for (int64_t i = 0; i < n; i++)
        to[i] = some.f[i];
}

#endif
