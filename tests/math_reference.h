/* SPDX-License-Identifier: Apache-2.0 */
/* What the maps of pointwise ops should give, in double precision, and how far off they may be: for math_test.c,
 * which samples, and math_exhaustive_tool.c, which tries all floats. */
#ifndef LF_TESTS_MATH_REFERENCE_H
#define LF_TESTS_MATH_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/kern.h"

typedef struct math_case {
    const char *label;
    lf_op op;
    float attr[3];
    bool two;    /* has y */
    double ulps; /* the worst error that will do, where the result is no denormal number */
    double (*reference)(double x, double y, const float *attr);
} math_case;

extern const math_case math_cases[];
extern const size_t math_case_count;

/* c's numbers by table t, for n <= LF_STRIP of x and y. */
void math_run(const math_case *c, size_t t, int64_t n, const float *x, const float *y, float *out);

/* How far y is from ref in units of the last place of ref as a float, 2^-149 for denormals; Inf counts as 2^128.
 * Infinite where one is NaN and the other not, or an Inf that should be exact is missing. */
double math_ulps(float y, double ref);

/* Is a result of this size a normal float? Others have fewer digits to be right in. */
bool math_normal(double ref);

#endif
