/* SPDX-License-Identifier: Apache-2.0 */
/* Results beside their reference in double precision. */
#ifndef LF_CLI_COMPARE_H
#define LF_CLI_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_error {
    double rel; /* ||y - ref|| / ||ref|| over values finite in both, in the output's type */
    double max; /* the largest |y - ref| / max(|ref|, rms(ref)) of them */
} cli_error;

/* A reference in double precision, and as the output's type holds it at best, as f32. */
typedef struct cli_reference {
    const double *exact;
    const float *nearest;
} cli_reference;

/* Adds up the error of count values, in two goes: first all values through cli_error_scale, then again, in any order,
 * through cli_error_add. All zero is the start. */
typedef struct cli_error_sum {
    double reference, difference; /* sums of squares */
    size_t count;                 /* values behind reference */
    double largest;               /* |y - ref| / max(|ref|, rms) so far */
} cli_error_sum;

void cli_error_scale(cli_error_sum *s, const float *y, cli_reference ref, size_t count);
void cli_error_add(cli_error_sum *s, const float *y, cli_reference ref, size_t count);
cli_error cli_error_of(const cli_error_sum *s);

/* Whether each value of fused is NaN, infinite or finite as the nearest of its type is or as the op-by-op result is.
 * The second is asked because f32 overflows where double precision does not: what PyTorch gives is then right too.
 * *seen counts those of fused that are not finite. */
bool cli_nonfinite_match(const float *fused, const float *plain, cli_reference ref, size_t count, size_t *seen);

/* What the size of an output's error follows from. */
typedef struct cli_error_source {
    size_t ops;
    double longest;      /* terms of the model's longest sum */
    double product_unit; /* unit roundoff of what products are fed with */
    double plain_rel;    /* the error of op-by-op execution, which rounds each op's value to its type */
    double chance;       /* how many times an error as large as that another draw of it may well be */
    double stored_rel;   /* the error of the reference itself, rounded once to the output's type; 0: it is f32 */
} cli_error_source;

/* The largest rel that passes. */
double cli_error_limit(const cli_error_source *s);

/* `chance` where so many values have errors of their own; 2 for one. */
double cli_error_chance(int64_t draws);

#endif
