/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of KERN_LANES floats, with the few things GNU C's vectors lack. Included by kern_template.h.
 *
 * Where there is a fused multiply-add it is asked for by name, so that bits do not depend on what a compiler
 * fuses. */
#ifndef LF_CPU_KERN_VEC_H
#define LF_CPU_KERN_VEC_H

#include <math.h>
#include <stdbool.h>
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

typedef uint16_t halves_anywhere
    __attribute__((vector_size(KERN_LANES * sizeof(uint16_t)), aligned(sizeof(uint16_t)), may_alias));

/* ---- what each machine has an instruction for ----
 * mul_add: u * v + w, rounded once where HAS_FMA, otherwise twice; mul_add_wide: the same in double precision.
 * load_wide: KERN_WIDE floats as doubles (gcc 12 takes a vector apart to convert it). least: u < v ? u : v, greatest: u
 * > v ? u : v; so a NaN in v comes out, on some machines one in u too. scale: u * 2^n, n whole, |n| <= 250, rounded
 * once; scale_unless_below: 0 where x < bound, without the time that too small an exponent takes. evens_odds: lanes 0,
 * 2, ... of u, then lanes 1, 3, ... of v. load_at: KERN_LANES floats, `stride` apart. stream: to memory past the
 * caches, to: aligned. add_product: w += *u * v, u: one float. add_pair: the same of u and v in pairs of bf16.
 * vec_of_f16, f16_of_vec: KERN_LANES halves as bits to floats, and back. */
#if KERN_LANES == 16 && defined(__AVX512F__)
#define HAS_FMA 1
#define HAS_SCALE 1
#define mul_add(u, v, w) ((vec)_mm512_fmadd_ps((__m512)(u), (__m512)(v), (__m512)(w)))
#define mul_add_wide(u, v, w) ((dvec)_mm512_fmadd_pd((__m512d)(u), (__m512d)(v), (__m512d)(w)))
#define load_wide(from) ((dvec)_mm512_cvtps_pd(_mm256_loadu_ps(from)))
#define least(u, v) ((vec)_mm512_min_ps((__m512)(u), (__m512)(v)))
#define greatest(u, v) ((vec)_mm512_max_ps((__m512)(u), (__m512)(v)))
#define root(u) ((vec)_mm512_sqrt_ps((__m512)(u)))
#define scale(u, n) ((vec)_mm512_scalef_ps((__m512)(u), (__m512)(n)))
#define NOT_BELOW(x, bound) _mm512_cmp_ps_mask((__m512)(x), _mm512_set1_ps(bound), _CMP_NLT_UQ)
#define scale_unless_below(x, bound, u, n)                                                                           \
    ((vec)_mm512_maskz_scalef_ps(NOT_BELOW(x, bound), (__m512)(u), (__m512)(n)))
#define EVENS_ODDS _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)
#define evens_odds(u, v) ((vec)_mm512_permutex2var_ps((__m512)(u), EVENS_ODDS, (__m512)(v)))
#define LANES_APART(stride)                                                                                            \
    _mm512_mullo_epi32(_mm512_set1_epi32(stride),                                                                      \
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define load_at(from, stride) ((vec)_mm512_i32gather_ps(LANES_APART(stride), from, 4))
#define stream(to, u) _mm512_stream_ps(to, (__m512)(u))
#define vec_of_f16(h) ((vec)_mm512_cvtph_ps((__m256i)(h)))
#define f16_of_vec(v) ((halves_anywhere)_mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT))
/* Written out, since compilers load a float that is used twice by an instruction of its own. Where two programs share a
 * core, each has half of the instructions it can start: a tile then is a tenth faster without these. */
#define add_product(u, v, w) __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(w) : "v"(v), "m"(*(u)))
#define add_pair(u, v, w) __asm__("vdpbf16ps %2, %1, %0" : "+v"(w) : "v"(v), "v"(u))
#elif KERN_LANES == 8 && defined(__FMA__)
#define HAS_FMA 1
#define mul_add(u, v, w) ((vec)_mm256_fmadd_ps((__m256)(u), (__m256)(v), (__m256)(w)))
#define mul_add_wide(u, v, w) ((dvec)_mm256_fmadd_pd((__m256d)(u), (__m256d)(v), (__m256d)(w)))
#define load_wide(from) ((dvec)_mm256_cvtps_pd(_mm_loadu_ps(from)))
#define least(u, v) ((vec)_mm256_min_ps((__m256)(u), (__m256)(v)))
#define greatest(u, v) ((vec)_mm256_max_ps((__m256)(u), (__m256)(v)))
#define root(u) ((vec)_mm256_sqrt_ps((__m256)(u)))
#define IN_PAIRS(u, v) ((__m256d)_mm256_shuffle_ps((__m256)(u), (__m256)(v), _MM_SHUFFLE(3, 1, 2, 0)))
#define evens_odds(u, v) ((vec)_mm256_permute4x64_pd(IN_PAIRS(u, v), _MM_SHUFFLE(3, 1, 2, 0)))
#define LANES_APART(stride) _mm256_mullo_epi32(_mm256_set1_epi32(stride), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define load_at(from, stride) ((vec)_mm256_i32gather_ps(from, LANES_APART(stride), 4))
#define stream(to, u) _mm256_stream_ps(to, (__m256)(u))
#define vec_of_f16(h) ((vec)_mm256_cvtph_ps((__m128i)(h)))
#define f16_of_vec(v) ((halves_anywhere)_mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT))
#elif KERN_LANES == 4 && defined(__aarch64__)
#define HAS_FMA 1
#define mul_add(u, v, w) ((vec)vfmaq_f32((float32x4_t)(w), (float32x4_t)(u), (float32x4_t)(v)))
#define mul_add_wide(u, v, w) ((dvec)vfmaq_f64((float64x2_t)(w), (float64x2_t)(u), (float64x2_t)(v)))
#define least(u, v) ((vec)vminq_f32((float32x4_t)(u), (float32x4_t)(v)))
#define greatest(u, v) ((vec)vmaxq_f32((float32x4_t)(u), (float32x4_t)(v)))
#define root(u) ((vec)vsqrtq_f32((float32x4_t)(u)))
#define evens_odds(u, v) ((vec)vcombine_f32(vget_low_f32(vuzp1q_f32((float32x4_t)(u), (float32x4_t)(u))), \
                                            vget_low_f32(vuzp2q_f32((float32x4_t)(v), (float32x4_t)(v)))))
#define vec_of_f16(h) ((vec)vcvt_f32_f16((float16x4_t)(h)))
#define f16_of_vec(v) ((halves_anywhere)vcvt_f16_f32((float32x4_t)(v)))
#elif KERN_LANES == 4 && defined(__SSE2__)
#define mul_add(u, v, w) ((u) * (v) + (w))
#define least(u, v) ((vec)_mm_min_ps((__m128)(u), (__m128)(v)))
#define greatest(u, v) ((vec)_mm_max_ps((__m128)(u), (__m128)(v)))
#define root(u) ((vec)_mm_sqrt_ps((__m128)(u)))
#define evens_odds(u, v) ((vec)_mm_shuffle_ps((__m128)(u), (__m128)(v), _MM_SHUFFLE(3, 1, 2, 0)))
#define stream(to, u) _mm_stream_ps(to, (__m128)(u))
#else
#define mul_add(u, v, w) ((u) * (v) + (w))
#define least(u, v) blend((u) < (v), u, v)
#define greatest(u, v) blend((u) > (v), u, v)
#define root(u) root_by_lanes(u)
#endif
#ifndef HAS_FMA
#define HAS_FMA 0
#define mul_add_wide(u, v, w) ((u) * (v) + (w))
#endif
#ifndef load_wide
#define load_wide(from) __builtin_convertvector(*(const half_anywhere *)(from), dvec)
#endif
#ifndef HAS_SCALE
#define HAS_SCALE 0
#endif
#ifdef vec_of_f16
#define HAS_F16 1
#else
#define HAS_F16 0
#define vec_of_f16(h) ((void)(h), (vec){0})
#define f16_of_vec(v) ((void)(v), (halves_anywhere){0})
#endif
#ifdef add_pair
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#define add_pair(u, v, w) ((void)(u), (void)(v), (void)(w))
#endif
#ifndef add_product
#define add_product(u, v, w) ((w) = mul_add(wide(*(u)), v, w))
#endif
#ifdef stream
#define HAS_STREAM 1
#define stream_fence() _mm_sfence()
#else
#define HAS_STREAM 0
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

/* load_some: the first n < KERN_LANES floats, `rest` in the lanes after them. store_some: those floats only. */
#if KERN_LANES == 16 && defined(__AVX512F__)
#define FIRST(n) ((__mmask16)((1u << (n)) - 1u))

static inline vec load_some(int64_t n, const float *from, float rest)
{
    return (vec)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), FIRST(n), from);
}

static inline void store_some(int64_t n, float *to, vec v)
{
    _mm512_mask_storeu_ps(to, FIRST(n), (__m512)v);
}
#elif KERN_LANES == 8 && defined(__AVX2__)
#define FIRST(n) _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))

static inline vec load_some(int64_t n, const float *from, float rest)
{
    const __m256 first = (__m256)FIRST(n);
    return (vec)_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(from, (__m256i)first), first);
}

static inline void store_some(int64_t n, float *to, vec v)
{
    _mm256_maskstore_ps(to, FIRST(n), (__m256)v);
}
#else
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

/* The first n <= KERN_LANES lanes of v, 0 after them. */
static inline vec first_lanes(int64_t n, vec v)
{
    if (n == KERN_LANES)
        return v;
#if KERN_LANES == 16 && defined(__AVX512F__)
    return (vec)_mm512_maskz_mov_ps(FIRST(n), (__m512)v);
#elif KERN_LANES == 8 && defined(__AVX2__)
    return (vec)_mm256_and_ps((__m256)v, (__m256)FIRST(n));
#else
    union { vec v; float f[KERN_LANES]; } some = {.v = v};
    for (int64_t i = n; i < KERN_LANES; i++)
        some.f[i] = 0.0f;
    return some.v;
#endif
}

/* n <= KERN_LANES floats, `stride` apart; 0 in the lanes after them. */
static inline vec load_every(int64_t n, const float *from, int64_t stride)
{
    if (n == KERN_LANES && stride == 1)
        return load(from);
#ifdef evens_odds
    if (n == KERN_LANES && stride == 2) /* the second half from one before it, so that nothing after the last is read */
        return evens_odds(load(from), load(from + KERN_LANES - 1));
#endif
#ifdef load_at
    if (n == KERN_LANES && stride <= INT32_MAX / KERN_LANES)
        return load_at(from, (int)stride);
#endif
    union { vec v; float f[KERN_LANES]; } some = {.v = {0}};
    for (int64_t i = 0; i < n; i++)
        some.f[i] = from[i * stride];
    return some.v;
}

/* ---- all lanes into one: lane i and lane i + half, then the same with half as many ----
 * So the order of a sum is the same on every machine with as many lanes. */
#if defined(__SSE2__)
#define DEFINE_ACROSS(name, op, OF_TWO)                                                                              \
    static inline float name(vec v)                                                                                  \
    {                                                                                                                \
        const __m128 four = FOUR_OF(op, v), two = _mm_##op##_ps(four, _mm_movehl_ps(four, four));                    \
        return _mm_cvtss_f32(_mm_##op##_ss(two, _mm_shuffle_ps(two, two, 1)));                                       \
    }
#define FOUR_OF_8(op, v) _mm_##op##_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1))
#if KERN_LANES == 16
#define EIGHT_OF(op, v)                                                                                              \
    _mm256_##op##_ps(_mm512_castps512_ps256((__m512)(v)), _mm512_extractf32x8_ps((__m512)(v), 1))
#define FOUR_OF(op, v) FOUR_OF_8(op, EIGHT_OF(op, v))
#elif KERN_LANES == 8
#define FOUR_OF(op, v) FOUR_OF_8(op, (__m256)(v))
#else
#define FOUR_OF(op, v) ((__m128)(v))
#endif
#else
#define DEFINE_ACROSS(name, op, OF_TWO)                                                                              \
    static inline float name(vec v)                                                                                  \
    {                                                                                                                \
        union { vec v; float f[KERN_LANES]; } all = {.v = v};                                                        \
        for (int half = KERN_LANES / 2; half > 0; half /= 2)                                                         \
            for (int i = 0; i < half; i++)                                                                           \
                all.f[i] = OF_TWO(all.f[i], all.f[i + half]);                                                        \
        return all.f[0];                                                                                             \
    }
#endif
#define SUM_OF_TWO(u, v) ((u) + (v))
#define LARGER_OF_TWO(u, v) ((u) > (v) ? (u) : (v))
#define SMALLER_OF_TWO(u, v) ((u) < (v) ? (u) : (v))
DEFINE_ACROSS(sum_across, add, SUM_OF_TWO)
DEFINE_ACROSS(max_across, max, LARGER_OF_TWO)
DEFINE_ACROSS(min_across, min, SMALLER_OF_TWO)

/* Is a lane of a comparison's result set? */
static inline bool any(ivec mask)
{
#if KERN_LANES == 16 && defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif KERN_LANES == 8 && defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    union { ivec v; int32_t i[KERN_LANES]; } all = {.v = mask};
    int32_t some = 0;
    for (int i = 0; i < KERN_LANES; i++)
        some |= all.i[i];
    return some != 0;
#endif
}

/* Is a lane of u not below the bound (NaN is not), or one of v negative? */
static inline bool any_not_below(vec u, float bound, vec v)
{
#if KERN_LANES == 16 && defined(__AVX512F__)
    return (NOT_BELOW(u, bound) | _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_LT_OQ)) != 0;
#else
    return any(~(u < bound) | (v < 0.0f));
#endif
}

#endif
