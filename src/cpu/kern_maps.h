/* SPDX-License-Identifier: Apache-2.0 */
/* The ops' expressions as loops over strips: one function map_NAME a row of ops.def, with vectors for x, y and z.
 * Included by kern_template.h.
 *
 * What is left over goes through the same vector code, so that an element's bits do not depend on where it stands. */
#include "cpu/kern_math.h"

/* Ops with a form of their own, where the expression cannot be as exact. */
#define OWN_gelu ~, sel(a == 0.0f, gelu_erf(x), gelu_tanh(x))
#define OWN_silu ~, silu_of(x)
#define OWN_mish ~, mish_of(x)
#define SECOND(first, second, ...) second
#define SECOND_OF(...) SECOND(__VA_ARGS__)
#define OWN_OR(own, other) SECOND_OF(own, other, ~)

#define DEFINE_MAP(name, ...)                                                                                        \
    /* n: a multiple of KERN_LANES */                                                                                \
    static void map_whole_##name(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr,    \
                                 float *out)                                                                         \
    {                                                                                                                \
        const float a = attr[0], b = attr[1], c = attr[2];                                                           \
        (void)a, (void)b, (void)c;                                                                                   \
        for (int64_t i = 0; i < n; i += KERN_LANES) {                                                                \
            const vec x = load(xs + i), y = load(ys + i), z = load(zs + i);                                          \
            (void)x, (void)y, (void)z;                                                                               \
            store(out + i, OWN_OR(OWN_##name, (__VA_ARGS__)));                                                       \
        }                                                                                                            \
    }                                                                                                                \
    static void map_##name(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr, float *out) \
    {                                                                                                                \
        map_strip(map_whole_##name, n, xs, ys, zs, attr, out);                                                       \
    }

typedef void map_fn(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr, float *out);

/* Contract: kern.h's map. Whole vectors, then the rest in a copy made whole. */
static inline void map_strip(map_fn *whole_vectors, int64_t n, const float *xs, const float *ys, const float *zs,
                             const float *attr, float *out)
{
    static const float zeros[3] = {0};
    assert(n >= 0 && n <= LF_STRIP);
    const int64_t rest = n % KERN_LANES, whole = n - rest;
    ys = ys ? ys : xs, zs = zs ? zs : xs, attr = attr ? attr : zeros;
    whole_vectors(whole, xs, ys, zs, attr, out);
    if (rest > 0) {
        float last[3][KERN_LANES];
        store(last[0], load_some(rest, xs + whole, 1.0f));
        store(last[1], load_some(rest, ys + whole, 1.0f));
        store(last[2], load_some(rest, zs + whole, 1.0f));
        whole_vectors(KERN_LANES, last[0], last[1], last[2], attr, last[0]);
        store_some(rest, out + whole, load(last[0]));
    }
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

/* The table's entries: kinds of op that work on elements have one. */
#define MAP_OF_LEAF(name) NULL
#define MAP_OF_PRODUCT(name) NULL
#define MAP_OF_POINTWISE(name) map_##name
#define MAP_OF_REDUCE(name) map_##name
#define MAP_OF_NORMALIZE(name) map_##name
#define MAP_OF_POOL(name) map_##name
#define MAP_OF_VIEW(name) map_##name
#define MAP_OF_MOVE(name) map_##name
#define MAP_OF_GUARD(name) map_##name
