/* SPDX-License-Identifier: Apache-2.0 */
/* The monoids over strips. put_NAME is the text of monoids.def, a vector of columns at a time. fold_NAME has,
 * where a monoid allows it, a form in SUMS lanes, element i in lane i % SUMS, whatever the machine's vectors:
 * faster, and closer to the true sum than one after the other. Included by kern_template.h. */
#include "cpu/kern_math.h"

enum { SUMS = 32, SUM_VECS = SUMS / KERN_LANES }; /* so that some additions are under way at once on any machine */

/* ---- column form ---- */

/* The vector at i into the states at i. (kern_maps.h: WHOLE, REST.) MEND comes before what was put in is stored. */
#define PUT_VECTOR(GET, SET, states, PUT, MEND)                                                                      \
    do {                                                                                                             \
        const vec x = GET(xs);                                                                                       \
        vec s[LF_MAX_STATE] = {GET(state)};                                                                          \
        if (states > 1)                                                                                              \
            s[1] = GET(state + lds);                                                                                 \
        if (states > 2)                                                                                              \
            s[2] = GET(state + 2 * lds);                                                                             \
        const vec before[LF_MAX_STATE] = {s[0], s[1], s[2]};                                                         \
        PUT                                                                                                          \
        MEND                                                                                                         \
        SET(state, s[0]);                                                                                            \
        if (states > 1)                                                                                              \
            SET(state + lds, s[1]);                                                                                  \
        if (states > 2)                                                                                              \
            SET(state + 2 * lds, s[2]);                                                                              \
    } while (0)
#define SET_WHOLE(to, v) store(to + i, v)
#define SET_REST(to, v) store_some(n - i, to + i, v)

/* Lanes of which a sum of squares overflows (or is negative, where what it is of does), or had overflowed before: the
 * states before, with x put into them in double precision. */
static void put_again(lf_monoid m, vec x, const vec *before, vec *after)
{
    const int states = lf_monoid_row(m)->states;
    const ivec over = ~(after[states - 1] < INFINITY) | (least(before[states - 1], after[states - 1]) < 0.0f);
    for (int lane = 0; lane < KERN_LANES; lane++) {
        float s[LF_MAX_STATE];
        for (int k = 0; k < states; k++)
            s[k] = before[k][lane];
        if (over[lane])
            lf_monoid_put(m, x[lane], s, 1);
        for (int k = 0; k < states && over[lane]; k++)
            after[k][lane] = s[k];
    }
}

/* put_far_NAME: for columns from the first on of which a sum of squares overflows. Apart, so that the usual loop keeps
 * its states in registers. */
#define number vec
#define s0 (s[0])
#define s1 (s[1])
#define s2 (s[2])
#define LF_MONOID(name, states, results, smallest, flops, identity, PUT, ...)                                        \
    static __attribute__((noinline, cold)) void put_far_##name(int64_t n, const float *xs, float *state,             \
                                                               int64_t lds)                                          \
    {                                                                                                                \
        int64_t i = 0;                                                                                               \
        for (; i + KERN_LANES <= n; i += KERN_LANES)                                                                 \
            PUT_VECTOR(WHOLE, SET_WHOLE, states, PUT, put_again(LF_MONOID_##name, x, before, s););                   \
        if (i < n)                                                                                                   \
            PUT_VECTOR(REST, SET_REST, states, PUT, put_again(LF_MONOID_##name, x, before, s););                     \
    }                                                                                                                \
    static void put_##name(int64_t n, const float *xs, float *state, int64_t lds)                                    \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRETCH && lds >= n);                                                               \
        int64_t i = 0;                                                                                               \
        for (; i + KERN_LANES <= n; i += KERN_LANES)                                                                 \
            PUT_VECTOR(WHOLE, SET_WHOLE, states, PUT, PUT_FAR(name, states, smallest));                              \
        if (i < n)                                                                                                   \
            PUT_VECTOR(REST, SET_REST, states, PUT, PUT_FAR(name, states, smallest));                                \
    }
#define PUT_FAR(name, states, smallest)                                                                              \
    const vec lower = least(before[states - 1], s[states - 1]);                                                      \
    if (LF_IS_SQUARE(smallest) && any_not_below(s[states - 1], INFINITY, lower)) {                                   \
        put_far_##name(n - i, xs + i, state + i, lds);                                                               \
        return;                                                                                                      \
    }
#include "ir/monoids.def"
#undef LF_MONOID
#undef number
#undef s0
#undef s1
#undef s2

/* ---- in lanes ----
 * States are floats until the last. Where those overflow, all of the fold is done again in double precision. */

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

static inline bool is_finite(float x)
{
    return x - x == 0.0f;
}

static inline void fold_sum(int64_t n, const float *xs, double *state)
{
    vec sum[SUM_VECS] = {{0}};
    FOR_VECTORS(0.0f, { sum[v] += x; });
    const float total = sum_of_lanes(sum);
    state[0] = total;
    if (__builtin_expect(!is_finite(total), 0))
        lf_monoid_fold(LF_MONOID_sum, n, xs, state);
}

static inline void fold_mean(int64_t n, const float *xs, double *state)
{
    fold_sum(n, xs, state);
}

/* Are all of the elements that number? Where their sum of squares is 0 for that reason, none was lost. */
static inline bool all_are(int64_t n, const float *xs, float number)
{
    ivec other = {0};
    FOR_VECTORS(number, { other |= x != number; });
    return !any(other);
}

/* Did floats hold a sum of squares? Not where it overflowed; nor where it is so small that squares were rounded as
 * denormals, by up to 2^-150 each, or to 0. With LF_STRIP of them that is 2^-27 of the least that is let pass. */
static inline bool held_squares(float sum)
{
    return sum >= 0x1p-115f && is_finite(sum);
}

static inline void fold_meansquare(int64_t n, const float *xs, double *state)
{
    vec sum[SUM_VECS] = {{0}};
    FOR_VECTORS(0.0f, { sum[v] = mul_add(x, x, sum[v]); });
    const float squares = sum_of_lanes(sum);
    state[0] = squares;
    if (__builtin_expect(!held_squares(squares), 0) && !all_are(n, xs, 0.0f))
        lf_monoid_fold(LF_MONOID_meansquare, n, xs, state);
}

/* A NaN may get lost among the lanes, but not that there was one. */
#define FOLD_EXTREME(name, START, BETTER)                                                                            \
    static inline void fold_##name(int64_t n, const float *xs, double *state)                                        \
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
                                                                 double *state, float *exps)
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

static inline void fold_maxsumexp(int64_t n, const float *xs, double *state)
{
    fold_with_exps(n, xs, 0, state, NULL);
}

/* Contract: kern.h. */
static void fold_exps(int64_t rows, int64_t n, const float *xs, int64_t ldx, int64_t ahead, double *state, float *exps,
                      int64_t lde)
{
    assert(n >= 0 && n <= LF_STRIP);
    for (int64_t i = 0; i < rows; i++)
        fold_with_exps(n, xs + i * ldx, ahead, state + 2 * i, exps + i * lde);
}

/* Two passes: the mean, then the squared distances from it, corrected for the mean's own rounding (Chan, Golub,
 * LeVeque, 1983, the corrected two-pass algorithm). */
static inline void fold_moments(int64_t n, const float *xs, double *state)
{
    state[0] = state[1] = state[2] = 0;
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
    if (__builtin_expect(!held_squares(squares), 0) && !(is_finite(mean) && all_are(n, xs, xs[0]))) {
        lf_monoid_fold(LF_MONOID_moments, n, xs, state);
        return;
    }
    state[0] = (float)n;
    state[1] = mean + shift;
    state[2] = squares > 0.0f ? squares : 0.0f;
}

/* ---- the table's entries: the form above where a monoid has one, otherwise in double precision ---- */

#define OWN_FOLD_sum ~, fold_sum
#define OWN_FOLD_mean ~, fold_mean
#define OWN_FOLD_meansquare ~, fold_meansquare
#define OWN_FOLD_max ~, fold_max
#define OWN_FOLD_min ~, fold_min
#define OWN_FOLD_maxsumexp ~, fold_maxsumexp
#define OWN_FOLD_moments ~, fold_moments

#define LF_MONOID(name, states, ...)                                                                                 \
    static inline void fold_wide_##name(int64_t n, const float *xs, double *state)                                   \
    {                                                                                                                \
        lf_monoid_fold(LF_MONOID_##name, n, xs, state);                                                              \
    }                                                                                                                \
    static void fold_rows_##name(int64_t rows, int64_t n, const float *xs, int64_t ldx, double *state)               \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRIP);                                                                             \
        for (int64_t i = 0; i < rows; i++)                                                                           \
            OWN_OR(OWN_FOLD_##name, fold_wide_##name)(n, xs + i * ldx, state + i * (states));                        \
    }
#include "ir/monoids.def"
#undef LF_MONOID
