/* SPDX-License-Identifier: Apache-2.0 */
/* Results beside their reference in double precision. */
#ifndef LF_CLI_COMPARE_H
#define LF_CLI_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_error {
    double rel; /* ||y - ref|| / ||ref|| over values finite in both, in f32 */
    double max; /* the largest |y - ref| / max(|ref|, rms(ref)) of them */
} cli_error;

/* Adds up the error of count values, in two goes: first all values through cli_error_scale, then again, in any order,
 * through cli_error_add. All zero is the start. */
typedef struct cli_error_sum {
    double reference, difference; /* sums of squares */
    size_t count;                 /* values behind reference */
    double largest;               /* |y - ref| / max(|ref|, rms) so far */
} cli_error_sum;

void cli_error_scale(cli_error_sum *s, const float *y, const double *ref, size_t count);
void cli_error_add(cli_error_sum *s, const float *y, const double *ref, size_t count);
cli_error cli_error_of(const cli_error_sum *s);

/* Whether each value of fused is NaN, infinite or finite as the reference, rounded to f32, is or as the op-by-op result
 * is. The second is asked because f32 overflows where double precision does not: what PyTorch gives is then right too.
 * *seen counts those of fused that are not finite. */
bool cli_nonfinite_match(const float *fused, const float *plain, const double *ref, size_t count, size_t *seen);

/* The largest rel that passes, for a model of `ops` ops whose longest sum has `longest` terms, given that of op-by-op
 * execution. product_unit: unit roundoff of what products are fed with. */
double cli_error_limit(double plain_rel, double longest, size_t ops, double product_unit);

#endif
