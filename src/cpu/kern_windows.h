/* SPDX-License-Identifier: Apache-2.0 */
/* Windows side by side, a lane each: the text of monoids.def for monoids of one number of state, which are those that
 * pools have. In double precision, but where floats are exact. Included by kern_template.h, after KERN_WIDE and its
 * types. */
#include "cpu/kern_vec.h"

typedef int64_t ldvec __attribute__((vector_size(KERN_WIDE * sizeof(int64_t)), may_alias));

static inline dvec blend_wide(ldvec mask, dvec u, dvec v)
{
    return (dvec)(((ldvec)u & mask) | ((ldvec)v & ~mask));
}

#undef sel
#define sel(p, u, v) _Generic((u), dvec: blend_wide, default: blend)(p, u, v)

/* T: vectors to calculate with, of which PARTS, PART each as floats, make a vec. */
#define DEFINE_WINDOW(name, T, PART, PARTS, IDENTITY, PUT, FINISH)                                                   \
    /* The first `lanes` of KERN_LANES windows, from their first tap on. */                                          \
    static inline __attribute__((always_inline)) vec window_lanes_##name(                                            \
        int64_t lanes, int64_t taps, const float *from, int64_t stride, int64_t dilation, double n)                  \
    {                                                                                                                \
        T state[PARTS];                                                                                              \
        UNROLL                                                                                                       \
        for (int i = 0; i < PARTS; i++) {                                                                            \
            float s0;                                                                                                \
            IDENTITY                                                                                                 \
            state[i] = s0 - (T){0};                                                                                  \
        }                                                                                                            \
        for (int64_t tap = 0; tap < taps; tap++) {                                                                   \
            union { vec v; PART p[PARTS]; } in = {.v = load_every(lanes, from + tap * dilation, stride)};            \
            UNROLL                                                                                                   \
            for (int i = 0; i < PARTS; i++) {                                                                        \
                const T x = __builtin_convertvector(in.p[i], T);                                                     \
                T s0 = state[i];                                                                                     \
                PUT                                                                                                  \
                state[i] = s0;                                                                                       \
            }                                                                                                        \
        }                                                                                                            \
        union { vec v; PART p[PARTS]; } out;                                                                         \
        UNROLL                                                                                                       \
        for (int i = 0; i < PARTS; i++) {                                                                            \
            const T s0 = state[i];                                                                                   \
            T r0;                                                                                                    \
            FINISH                                                                                                   \
            out.p[i] = __builtin_convertvector(r0, PART);                                                            \
        }                                                                                                            \
        (void)n;                                                                                                     \
        return out.v;                                                                                                \
    }                                                                                                                \
    static void window_##name(int64_t windows, int64_t taps, const float *x, int64_t stride, int64_t dilation,       \
                              double n, float *result)                                                               \
    {                                                                                                                \
        int64_t i = 0;                                                                                               \
        for (; stride == 1 && i + KERN_LANES <= windows; i += KERN_LANES)                                            \
            store(result + i, window_lanes_##name(KERN_LANES, taps, x + i, 1, dilation, n));                         \
        for (; stride == 2 && i + KERN_LANES <= windows; i += KERN_LANES)                                            \
            store(result + i, window_lanes_##name(KERN_LANES, taps, x + 2 * i, 2, dilation, n));                     \
        for (; i + KERN_LANES <= windows; i += KERN_LANES)                                                           \
            store(result + i, window_lanes_##name(KERN_LANES, taps, x + i * stride, stride, dilation, n));           \
        if (i < windows)                                                                                             \
            store_some(windows - i, result + i,                                                                      \
                       window_lanes_##name(windows - i, taps, x + i * stride, stride, dilation, n));                 \
    }

#define IN_FLOATS(name, identity, put, combine, finish)                                                              \
    DEFINE_WINDOW(name, vec, vec_anywhere, 1, identity, put, finish)
#define IN_DOUBLES(name, identity, put, combine, finish)                                                             \
    DEFINE_WINDOW(name, dvec, half_anywhere, 2, identity, put, finish)
#define EXACT_max ~, IN_FLOATS
#define EXACT_min ~, IN_FLOATS
#define WINDOW_1(name, ...) OWN_OR(EXACT_##name, IN_DOUBLES)(name, __VA_ARGS__)
#define WINDOW_2(name, ...)
#define WINDOW_3(name, ...)
#define LF_MONOID(name, states, results, least, flops, ...) WINDOW_##states(name, __VA_ARGS__)
#include "ir/monoids.def"
#undef LF_MONOID

/* The table's entries. */
#define WINDOW_OF_1(name) window_##name
#define WINDOW_OF_2(name) NULL
#define WINDOW_OF_3(name) NULL
