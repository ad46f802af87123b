/* SPDX-License-Identifier: Apache-2.0 */
/* The ops' expressions as loops over strips: one function map_NAME a row of ops.def, with vectors for x, y and z.
 * Included by kern_template.h.
 *
 * What is left over goes through the same vector code, so that an element's bits do not depend on where it stands. */
#include "cpu/kern_math.h"

/* The functions of functions.def that kern_math.h has not. */
#define value vec
#define number float
#define FUNCTION_OWN(name, params, expression)
#define FUNCTION_BUILT(name, params, expression)                                                                     \
    static inline vec name params                                                                                    \
    {                                                                                                                \
        return expression;                                                                                           \
    }
#define LF_NATIVE(name, ...)
#define LF_FUNCTION(name, params, direction, cpu, cuda, expression, ...) FUNCTION_##cpu(name, params, expression)
#include "ir/functions.def"
#undef LF_NATIVE
#undef LF_FUNCTION
#undef value
#undef number

/* Ops with a form of their own, where the expression cannot be as exact: rounded once. */
#define OWN_add ~, sel(a == 1.0f, x + y, mul_add(wide(a), y, x))
#define OWN_sub ~, sel(a == 1.0f, x - y, mul_add(wide(-a), y, x))
#define SECOND(first, second, ...) second
#define SECOND_OF(...) SECOND(__VA_ARGS__)
#define OWN_OR(own, other) SECOND_OF(own, other, ~)

/* Contract: kern.h's map. BEFORE, INSIDE: where y and z are loaded. LEAVE: may return. Whole vectors, then the rest. */
#define DEFINE_LOOP(name, BEFORE, INSIDE, LEAVE, EXPRESSION)                                                         \
    static void name(int64_t n, const float *xs, const float *ys, const float *zs, const float *attr, float *out)    \
    {                                                                                                                \
        static const float zeros[3] = {0};                                                                           \
        assert(n >= 0 && n <= LF_STRETCH);                                                                           \
        ys = ys ? ys : xs, zs = zs ? zs : xs, attr = attr ? attr : zeros;                                            \
        const float a = attr[0], b = attr[1], c = attr[2];                                                           \
        (void)a, (void)b, (void)c;                                                                                   \
        BEFORE                                                                                                       \
        int64_t i = 0;                                                                                               \
        for (; i + KERN_LANES <= n; i += KERN_LANES) {                                                               \
            const vec x = WHOLE(xs);                                                                                 \
            INSIDE(WHOLE)(void) x, (void)y, (void)z;                                                                 \
            LEAVE                                                                                                    \
            store(out + i, EXPRESSION);                                                                              \
        }                                                                                                            \
        if (i < n) {                                                                                                 \
            const vec x = REST(xs);                                                                                  \
            INSIDE(REST)(void) x, (void)y, (void)z;                                                                  \
            LEAVE                                                                                                    \
            store_some(n - i, out + i, EXPRESSION);                                                                  \
        }                                                                                                            \
    }
#define WHOLE(from) load(from + i)
#define REST(from) load_some(n - i, from + i, 1.0f)
#define NOTHING(how)
#define EVERY_Y_Z(how) const vec y = how(ys), z = how(zs);
#define ONE_Y_Z const vec y = wide(ys[0]), z = wide(zs[0]);

#define DEFINE_MAP(name, ...) DEFINE_LOOP(map_##name, , EVERY_Y_Z, , OWN_OR(OWN_##name, (__VA_ARGS__)))

/* Ops that may be of several values: also where all but the first are one number each. */
#define DEFINE_MAPS(name, ...)                                                                                       \
    DEFINE_MAP(name, __VA_ARGS__)                                                                                    \
    DEFINE_LOOP(map_one_##name, ONE_Y_Z, NOTHING, , OWN_OR(OWN_##name, (__VA_ARGS__)))

DEFINE_LOOP(mul_then_add, , EVERY_Y_Z, , x * y + z)

/* Normalization by a statistic of squares. */

static inline vec normalized(vec x, vec mean, vec square, float eps)
{
    return quotient(x - mean, sqrt(square + eps));
}

/* The same where a square may be encoded (kern.h): (x - mean) / hypotenuse of its root and that of eps, in halves of
 * halves where the difference could overflow. */
static inline vec normalized_far(vec x, vec mean, vec square, float eps)
{
    const vec root = -square, other = sqrt(wide(eps)), longer = greatest(root, other);
    const vec ratio = least(root, other) / longer, part = sel(root > 1.0f, wide(0.25f), wide(1.0f));
    const vec far = (x * part - mean * part) / (longer * part * sqrt(1.0f + ratio * ratio));
    return blend(square < 0.0f, far, normalized(x, mean, square, eps));
}

/* Encoded squares are rare: a loop that meets one leaves the rest to that of the other form. */
#define DEFINE_NORM(name, mean, square)                                                                              \
    DEFINE_LOOP(far_##name, , EVERY_Y_Z, , normalized_far(x, mean, square, a))                                       \
    DEFINE_LOOP(far_one_##name, ONE_Y_Z, NOTHING, , normalized_far(x, mean, square, a))                              \
    DEFINE_LOOP(map_##name, , EVERY_Y_Z, LEAVE_TO(square, far_##name(n - i, xs + i, ys + i, zs + i, attr, out + i)), \
                normalized(x, mean, square, a))                                                                      \
    DEFINE_LOOP(map_one_##name, ONE_Y_Z LEAVE_TO(square, far_one_##name(n, xs, ys, zs, attr, out)), NOTHING, ,       \
                normalized(x, mean, square, a))
#define LEAVE_TO(square, FAR)                                                                                        \
    if (b != 0.0f && any(square < 0.0f)) {                                                                           \
        FAR;                                                                                                         \
        return;                                                                                                      \
    }
#define NORM_layer_norm ~, DEFINE_CENTRED
#define NORM_group_norm ~, DEFINE_CENTRED
#define NORM_instance_norm ~, DEFINE_CENTRED
#define NORM_batch_norm ~, DEFINE_CENTRED
#define NORM_rms_norm ~, DEFINE_SCALED
#define DEFINE_CENTRED(name, ...) DEFINE_NORM(name, y, z)
#define DEFINE_SCALED(name, ...) DEFINE_NORM(name, (vec){0}, y)

#define DEFINE_LEAF(name, ...)
#define DEFINE_PRODUCT(name, ...)
#define DEFINE_POINTWISE DEFINE_MAPS
#define DEFINE_REDUCE DEFINE_MAP
#define DEFINE_NORMALIZE(name, ...) OWN_OR(NORM_##name, DEFINE_MAPS)(name, __VA_ARGS__)
#define DEFINE_POOL DEFINE_MAP
#define DEFINE_VIEW DEFINE_MAP
#define DEFINE_MOVE DEFINE_MAP
#define DEFINE_LOSS(name, ...)
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
#define MAP_OF_LOSS(name) NULL
#define MAP_OF_GUARD(name) map_##name
#define MAP_ONE_OF_LEAF(name) NULL
#define MAP_ONE_OF_PRODUCT(name) NULL
#define MAP_ONE_OF_POINTWISE(name) map_one_##name
#define MAP_ONE_OF_REDUCE(name) NULL
#define MAP_ONE_OF_NORMALIZE(name) map_one_##name
#define MAP_ONE_OF_POOL(name) NULL
#define MAP_ONE_OF_VIEW(name) NULL
#define MAP_ONE_OF_MOVE(name) NULL
#define MAP_ONE_OF_LOSS(name) NULL
#define MAP_ONE_OF_GUARD(name) NULL
