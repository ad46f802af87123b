/* SPDX-License-Identifier: Apache-2.0 */
/* What measurements come to. */
#ifndef LF_BASE_MEDIAN_H
#define LF_BASE_MEDIAN_H

#include <stddef.h>

/* The median of count numbers, 1 or more; of an even count the larger of the two in the middle. Sorts them. */
double lf_median(double *x, size_t count);

#endif
