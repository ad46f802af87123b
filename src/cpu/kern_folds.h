/* SPDX-License-Identifier: Apache-2.0 */
/* The monoids over strips. put_NAME is the text of monoids.def, a vector of columns at a time. fold_NAME has,
 * where a monoid allows it, a form in SUMS lanes, element i in lane i % SUMS, whatever the machine's vectors:
 * faster, and closer to the true sum than one after the other. Included by kern_template.h. */
#include "cpu/kern_math.h"

enum { SUMS = 32, SUM_VECS = SUMS / KERN_LANES }; /* so that some additions are under way at once on any machine */

/* ---- column form ---- */

/* The vector at i into the states at i. (kern_maps.h: WHOLE, REST.) */
#define PUT_VECTOR(GET, SET, states, PUT)                                                                            \
    do {                                                                                                             \
        const vec x = GET(xs);                                                                                       \
        vec s0 = GET(state), s1 = {0}, s2 = {0};                                                                     \
        if (states > 1)                                                                                              \
            s1 = GET(state + lds);                                                                                   \
        if (states > 2)                                                                                              \
            s2 = GET(state + 2 * lds);                                                                               \
        PUT                                                                                                          \
        SET(state, s0);                                                                                              \
        if (states > 1)                                                                                              \
            SET(state + lds, s1);                                                                                    \
        if (states > 2)                                                                                              \
            SET(state + 2 * lds, s2);                                                                                \
    } while (0)
#define SET_WHOLE(to, v) store(to + i, v)
#define SET_REST(to, v) store_some(n - i, to + i, v)

#define number vec
#define LF_MONOID(name, states, results, least, flops, identity, PUT, ...)                                           \
    static void put_##name(int64_t n, const float *xs, float *state, int64_t lds)                                    \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRETCH && lds >= n);                                                               \
        int64_t i = 0;                                                                                               \
        for (; i + KERN_LANES <= n; i += KERN_LANES)                                                                 \
            PUT_VECTOR(WHOLE, SET_WHOLE, states, PUT);                                                               \
        if (i < n)                                                                                                   \
            PUT_VECTOR(REST, SET_REST, states, PUT);                                                                 \
    }
#include "ir/monoids.def"
#undef LF_MONOID
#undef number

/* ---- in lanes ---- */

/* DO, once for each vector x of xs[0..n), from xs[at] on, with sum number v; FILL in lanes past the end, DO then
 * changes nothing. in: lanes that are not past it. */
#define FOR_VECTORS(FILL, DO)                                                                                        \
    do {                                                                                                             \
        int64_t i_ = 0;                                                                                              \
        for (; i_ + SUMS <= n; i_ += SUMS) {                                                                         \
            UNROLL                                                                                                   \
            for (int v = 0; v < SUM_VECS; v++) {                                                                     \
                const vec x = load(xs + i_ + v * KERN_LANES);                                                        \
                const int64_t in = KERN_LANES, at = i_ + v * KERN_LANES;                                             \
                (void)in, (void)at;                                                                                  \
                DO                                                                                                   \
            }                                                                                                        \
        }                                                                                                            \
        UNROLL                                                                                                       \
        for (int v = 0; v < SUM_VECS; v++, i_ += KERN_LANES)                                                         \
            if (i_ < n) {                                                                                            \
                const vec x = n - i_ < KERN_LANES ? load_some(n - i_, xs + i_, (FILL)) : load(xs + i_);              \
                const int64_t in = n - i_ < KERN_LANES ? n - i_ : KERN_LANES, at = i_;                               \
                (void)in, (void)at;                                                                                  \
                DO                                                                                                   \
            }                                                                                                        \
    } while (0)

#define HALVE(HALF)                                                                                                  \
    if (SUM_VECS > (HALF)) {                                                                                         \
        UNROLL                                                                                                       \
        for (int v = 0; v < (HALF); v++)                                                                             \
            sum[v] += sum[v + (HALF)];                                                                               \
    }

/* ((0 + 16) + (8 + 24)) + ...: a tree, so that no lane waits for all others. */
static inline float sum_of_lanes(vec *sum)
{
    HALVE(16) HALVE(8) HALVE(4) HALVE(2) HALVE(1)
    return sum_across(sum[0]);
}
#undef HALVE

static inline void fold_sum(int64_t n, const float *xs, float *state)
{
    vec sum[SUM_VECS] = {{0}};
    FOR_VECTORS(0.0f, { sum[v] += x; });
    state[0] = sum_of_lanes(sum);
}

static inline void fold_mean(int64_t n, const float *xs, float *state)
{
    fold_sum(n, xs, state);
}

static inline void fold_meansquare(int64_t n, const float *xs, float *state)
{
    vec sum[SUM_VECS] = {{0}};
    FOR_VECTORS(0.0f, { sum[v] = mul_add(x, x, sum[v]); });
    state[0] = sum_of_lanes(sum);
}

/* A NaN may get lost among the lanes, but not that there was one. */
#define FOLD_EXTREME(name, START, BETTER)                                                                            \
    static inline void fold_##name(int64_t n, const float *xs, float *state)                                         \
    {                                                                                                                \
        vec best[SUM_VECS];                                                                                          \
        ivec nan[SUM_VECS];                                                                                          \
        UNROLL                                                                                                       \
        for (int v = 0; v < SUM_VECS; v++) {                                                                         \
            best[v] = wide(START);                                                                                   \
            nan[v] = (ivec){0};                                                                                      \
        }                                                                                                            \
        FOR_VECTORS(START, {                                                                                         \
            best[v] = BETTER(best[v], x);                                                                            \
            nan[v] |= x != x;                                                                                        \
        });                                                                                                          \
        UNROLL                                                                                                       \
        for (int v = 1; v < SUM_VECS; v++) {                                                                         \
            best[0] = BETTER(best[0], best[v]);                                                                      \
            nan[0] |= nan[v];                                                                                        \
        }                                                                                                            \
        state[0] = any(nan[0]) ? NAN : name##_across(best[0]);                                                       \
    }
FOLD_EXTREME(max, -INFINITY, greatest)
FOLD_EXTREME(min, INFINITY, least)

/* The largest of numbers; with a NaN among them, any of them or NaN. */
static inline float largest_number(int64_t n, const float *xs)
{
    vec best[SUM_VECS];
    UNROLL
    for (int v = 0; v < SUM_VECS; v++)
        best[v] = wide(-INFINITY);
    FOR_VECTORS(-INFINITY, { best[v] = greatest(best[v], x); });
    UNROLL
    for (int v = 1; v < SUM_VECS; v++)
        best[0] = greatest(best[0], best[v]);
    return max_across(best[0]);
}

/* Two passes: the largest, then the sum; exps: where each is left too, or NULL. All -Inf (or nothing at all) has sum 0,
 * a NaN or +Inf among them makes it NaN: only then a NaN is looked for. Lanes past the end are taken out after exp,
 * where 0 is free: an exp that is denormal or less is slow. */
static inline __attribute__((always_inline)) void fold_with_exps(int64_t n, const float *xs, int64_t ahead,
                                                                 float *state, float *exps)
{
    const float largest = largest_number(n, xs);
    vec sum[SUM_VECS] = {{0}};
    if (largest != -INFINITY)
        FOR_VECTORS(largest, {
            const vec e = first_lanes(in, exp_of_none_above_0(x - wide(largest)));
            sum[v] += e;
            if (exps && v * KERN_LANES % LINE == 0)
                __builtin_prefetch(xs + ahead + at);
            if (exps && in == KERN_LANES)
                store(exps + at, e);
            else if (exps)
                store_some(in, exps + at, e);
        });
    else if (exps)
        memset(exps, 0, (size_t)n * sizeof *exps);
    state[0] = largest;
    state[1] = sum_of_lanes(sum);
    if (largest == -INFINITY || state[1] != state[1]) {
        fold_max(n, xs, state);
        state[1] = state[0] == -INFINITY ? 0.0f : NAN;
    }
}

static inline void fold_maxsumexp(int64_t n, const float *xs, float *state)
{
    fold_with_exps(n, xs, 0, state, NULL);
}

/* Contract: kern.h. */
static void fold_exps(int64_t rows, int64_t n, const float *xs, int64_t ldx, int64_t ahead, float *state, float *exps,
                      int64_t lde)
{
    assert(n >= 0 && n <= LF_STRIP);
    for (int64_t i = 0; i < rows; i++)
        fold_with_exps(n, xs + i * ldx, ahead, state + 2 * i, exps + i * lde);
}

/* Two passes: the mean, then the squared distances from it, corrected for the mean's own rounding (Chan, Golub,
 * LeVeque, 1983, the corrected two-pass algorithm). Where that is not finite the elements are put in one by one,
 * which overflows later and has NaN and Inf where the monoid puts them. */
static inline void fold_moments(int64_t n, const float *xs, float *state)
{
    state[0] = state[1] = state[2] = 0.0f;
    if (n == 0)
        return;
    vec sum[SUM_VECS] = {{0}}, off[SUM_VECS] = {{0}}, off_squares[SUM_VECS] = {{0}};
    FOR_VECTORS(0.0f, { sum[v] += x; });
    const float mean = sum_of_lanes(sum) / (float)n;
    FOR_VECTORS(mean, {
        const vec d = x - mean;
        off[v] += d;
        off_squares[v] = mul_add(d, d, off_squares[v]);
    });
    const float error = sum_of_lanes(off), shift = error / (float)n;
    const float squares = sum_of_lanes(off_squares) - error * shift;
    if (mean - mean == 0.0f && squares - squares == 0.0f) {
        state[0] = (float)n;
        state[1] = mean + shift;
        state[2] = squares > 0.0f ? squares : 0.0f;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        put_moments(1, xs + i, state, 1);
}

/* ---- the table's entries: the form above where a monoid has one, otherwise put after put ---- */

#define OWN_FOLD_sum ~, fold_sum
#define OWN_FOLD_mean ~, fold_mean
#define OWN_FOLD_meansquare ~, fold_meansquare
#define OWN_FOLD_max ~, fold_max
#define OWN_FOLD_min ~, fold_min
#define OWN_FOLD_maxsumexp ~, fold_maxsumexp
#define OWN_FOLD_moments ~, fold_moments

#define LF_MONOID(name, states, ...)                                                                                 \
    static inline void one_by_one_##name(int64_t n, const float *xs, float *state)                                   \
    {                                                                                                                \
        lf_monoid_identity(LF_MONOID_##name, state);                                                                 \
        for (int64_t i = 0; i < n; i++)                                                                              \
            put_##name(1, xs + i, state, 1);                                                                         \
    }                                                                                                                \
    static void fold_rows_##name(int64_t rows, int64_t n, const float *xs, int64_t ldx, float *state)                \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRIP);                                                                             \
        for (int64_t i = 0; i < rows; i++)                                                                           \
            OWN_OR(OWN_FOLD_##name, one_by_one_##name)(n, xs + i * ldx, state + i * (states));                       \
    }
#include "ir/monoids.def"
#undef LF_MONOID
