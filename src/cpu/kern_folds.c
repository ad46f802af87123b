/* SPDX-License-Identifier: Apache-2.0 */
/* The monoids over strips, shared by all tables. put is the text of monoids.def, column by column. fold has, where a monoid
 * allows it, a form in LANES independent lanes, element i in lane i % LANES: faster, and closer to the true sum than one
 * after the other. Compiled without contraction. */
#include <stddef.h>
#include <tgmath.h>

#include "cpu/kern_parts.h"

enum { LANES = 16 };

/* ---- column form ---- */

#define LF_MONOID(name, states, results, flops, identity, PUT, ...)                                                  \
    void lf_put_##name(int64_t n, const float *xs, float *state, int64_t lds)                                        \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRIP && lds >= n);                                                                 \
        for (int64_t j = 0; j < n; j++) {                                                                            \
            const float x = xs[j];                                                                                   \
            float s0 = state[j], s1 = states > 1 ? state[lds + j] : 0.0f, s2 = states > 2 ? state[2 * lds + j] : 0.0f; \
            PUT                                                                                                      \
            state[j] = s0;                                                                                           \
            if (states > 1)                                                                                          \
                state[lds + j] = s1;                                                                                 \
            if (states > 2)                                                                                          \
                state[2 * lds + j] = s2;                                                                             \
        }                                                                                                            \
    }
#include "ir/monoids.def"
#undef LF_MONOID

/* ---- in lanes ---- */

/* ((0 + 8) + (4 + 12)) + ...: a tree, so that no lane waits for all others. */
static float sum_of_lanes(float *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* The sum of TERM, an expression of x, over xs[0..n). */
#define SUM_IN_LANES(result, TERM)                                                                                   \
    do {                                                                                                             \
        float lane[LANES] = {0};                                                                                     \
        int64_t i_ = 0;                                                                                              \
        for (; i_ + LANES <= n; i_ += LANES)                                                                         \
            for (int l_ = 0; l_ < LANES; l_++) {                                                                     \
                const float x = xs[i_ + l_];                                                                         \
                lane[l_] += (TERM);                                                                                  \
            }                                                                                                        \
        for (int l_ = 0; i_ < n; i_++, l_++) {                                                                       \
            const float x = xs[i_];                                                                                  \
            lane[l_] += (TERM);                                                                                      \
        }                                                                                                            \
        (result) = sum_of_lanes(lane);                                                                               \
    } while (0)

static void fold_sum(int64_t n, const float *xs, float *state)
{
    SUM_IN_LANES(state[0], x);
}

static void fold_mean(int64_t n, const float *xs, float *state)
{
    fold_sum(n, xs, state);
}

static void fold_meansquare(int64_t n, const float *xs, float *state)
{
    SUM_IN_LANES(state[0], x * x);
}

/* The put and combine of max and min are one expression. A NaN stays, whichever lane it falls in; | rather than || so that
 * there is nothing to branch on. */
#define EXTREME(s, BEATS, t) ((((s)BEATS(t)) | ((s) != (s))) ? (s) : (t))
#define FOLD_EXTREME(name, START, BEATS)                                                                             \
    static void fold_##name(int64_t n, const float *xs, float *state)                                                \
    {                                                                                                                \
        float lane[LANES];                                                                                           \
        for (int l = 0; l < LANES; l++)                                                                              \
            lane[l] = (START);                                                                                       \
        int64_t i = 0;                                                                                               \
        for (; i + LANES <= n; i += LANES)                                                                           \
            for (int l = 0; l < LANES; l++)                                                                          \
                lane[l] = EXTREME(lane[l], BEATS, xs[i + l]);                                                        \
        for (int l = 0; i < n; i++, l++)                                                                             \
            lane[l] = EXTREME(lane[l], BEATS, xs[i]);                                                                \
        for (int half = LANES / 2; half > 0; half /= 2)                                                              \
            for (int l = 0; l < half; l++)                                                                           \
                lane[l] = EXTREME(lane[l], BEATS, lane[l + half]);                                                   \
        state[0] = lane[0];                                                                                          \
    }
FOLD_EXTREME(max, -INFINITY, >)
FOLD_EXTREME(min, INFINITY, <)

/* Two passes: the largest, then the sum. All -Inf (or nothing at all) has sum 0, a NaN or +Inf among them makes it NaN. */
static void fold_maxsumexp(int64_t n, const float *xs, float *state)
{
    fold_max(n, xs, state);
    const float largest = state[0];
    if (largest == -INFINITY)
        state[1] = 0.0f;
    else
        SUM_IN_LANES(state[1], exp(x - largest));
}

/* Two passes: the mean, then the squared distances from it, corrected for the mean's own rounding (Chan, Golub,
 * LeVeque, 1983, the corrected two-pass algorithm). Where that is not finite the elements are put in one by one, which
 * overflows later and has NaN and Inf where the monoid puts them. */
static void fold_moments(int64_t n, const float *xs, float *state)
{
    state[0] = state[1] = state[2] = 0.0f;
    if (n == 0)
        return;
    float sum, error, squares;
    SUM_IN_LANES(sum, x);
    const float mean = sum / (float)n;
    SUM_IN_LANES(error, x - mean);
    SUM_IN_LANES(squares, (x - mean) * (x - mean));
    const float shift = error / (float)n;
    squares -= error * shift;
    if (isfinite(mean) && isfinite(squares)) {
        state[0] = (float)n;
        state[1] = mean + shift;
        state[2] = squares > 0.0f ? squares : 0.0f;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        lf_put_moments(1, xs + i, state, 1);
}

/* ---- the table's entries: the form above where a monoid has one, otherwise put after put ---- */

#define OWN_sum ~, fold_sum
#define OWN_mean ~, fold_mean
#define OWN_meansquare ~, fold_meansquare
#define OWN_max ~, fold_max
#define OWN_min ~, fold_min
#define OWN_maxsumexp ~, fold_maxsumexp
#define OWN_moments ~, fold_moments
#define SECOND(a, b, ...) b
#define OWN_OR(own, other) SECOND_OF(own, other, ~)
#define SECOND_OF(...) SECOND(__VA_ARGS__)

#define LF_MONOID(name, states, results, flops, identity, ...)                                                       \
    static inline void one_by_one_##name(int64_t n, const float *xs, float *state)                                   \
    {                                                                                                                \
        lf_monoid_identity(LF_MONOID_##name, state);                                                                 \
        for (int64_t i = 0; i < n; i++)                                                                              \
            lf_put_##name(1, xs + i, state, 1);                                                                      \
    }                                                                                                                \
    void lf_fold_##name(int64_t n, const float *xs, float *state)                                                    \
    {                                                                                                                \
        assert(n >= 0 && n <= LF_STRIP);                                                                             \
        OWN_OR(OWN_##name, one_by_one_##name)(n, xs, state);                                                         \
    }
#include "ir/monoids.def"
#undef LF_MONOID
