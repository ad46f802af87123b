/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/compare.h"

#include <math.h>

static const double UNIT_F32 = 0x1p-24;

/* A reference beyond the range of y's type is an infinity. */
static bool both_finite(float y, float nearest)
{
    return isfinite(y) && isfinite(nearest);
}

void cli_error_scale(cli_error_sum *s, const float *y, cli_reference ref, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (both_finite(y[i], ref.nearest[i])) {
            s->reference += ref.exact[i] * ref.exact[i];
            s->count++;
        }
    }
}

/* 0 / 0 is no error; anything else / 0 is an infinite one. */
static double ratio(double difference, double size)
{
    return difference == 0 ? 0 : difference / size;
}

void cli_error_add(cli_error_sum *s, const float *y, cli_reference ref, size_t count)
{
    double rms = s->count ? sqrt(s->reference / (double)s->count) : 0;
    for (size_t i = 0; i < count; i++) {
        if (both_finite(y[i], ref.nearest[i])) {
            double difference = fabs((double)y[i] - ref.exact[i]);
            s->difference += difference * difference;
            s->largest = fmax(s->largest, ratio(difference, fmax(fabs(ref.exact[i]), rms)));
        }
    }
}

cli_error cli_error_of(const cli_error_sum *s)
{
    return (cli_error){.rel = ratio(sqrt(s->difference), sqrt(s->reference)), .max = s->largest};
}

/* 0 finite, 1 NaN, 2 +Inf, 3 -Inf. */
static int class_of(float v)
{
    return isfinite(v) ? 0 : isnan(v) ? 1 : v > 0 ? 2 : 3;
}

bool cli_nonfinite_match(const float *fused, const float *plain, cli_reference ref, size_t count, size_t *seen)
{
    bool match = true;
    for (size_t i = 0; i < count; i++) {
        int class = class_of(fused[i]);
        *seen += class != 0;
        match = match && (class == class_of(ref.nearest[i]) || class == class_of(plain[i]));
    }
    return match;
}

/* Fused and op-by-op execution round different intermediate results, so neither bounds the other; what they share is
 * the size of error that rounding at random gives. Two draws from it may well differ by a factor of two: 2 * plain_rel.
 *
 * Where op by op happens to round to nearly nothing (few outputs, small integers) that is no measure, and the size
 * itself is. In a sum of K terms each of the K products and K additions is off by up to u = 2^-24 of its result, either
 * way, so that the errors make a random walk (Higham and Mary, A new approach to probabilistic rounding error analysis,
 * SIAM J. Sci. Comput. 41, 2019). A rounding's mean square is about u^2 / 6, and half of the final sum's square is the
 * mean square of a partial sum where the terms have either sign: 2 K steps make sqrt(K / 6) u = 0.4 sqrt(K) u of the
 * sum, added up one after another. sqrt(K) u is two and a half times that. Each op adds the roundings of its own
 * expression, of which 4 u covers those with an exp or a division inside; products fed with shorter numbers round each
 * factor once.
 *
 * An output of a shorter type is rounded once more, when it is stored: y is the number of its type that is nearest to
 * some z with |z - ref| within the above. The nearest to ref is no nearer to z than y is, so that
 * |y - z| <= |nearest - z| <= |nearest - ref| + |z - ref|, and |y - ref| <= |nearest - ref| + 2 |z - ref|. Values that
 * are stored on the way in a shorter type add errors of their own. Op by op every op does that, fused some of them do:
 * what is allowed for them is op by op's error, and not twice that, but what chance adds. */
double cli_error_limit(const cli_error_source *s)
{
    double size = UNIT_F32 * (sqrt(s->longest) + 4 * (double)s->ops);
    if (s->product_unit > UNIT_F32)
        size += 2 * s->product_unit;
    return fmax(s->chance * s->plain_rel, s->stored_rel > 0 ? s->stored_rel + 2 * size : size);
}

/* The root of a mean of n squares of normal errors deviates by 1 / sqrt(2 n) of it, and two such by 1 / sqrt(n) from
 * each other: twice that is allowed, up to the factor of above. */
double cli_error_chance(int64_t draws)
{
    return fmin(2, 1 + 2 / sqrt((double)draws));
}
