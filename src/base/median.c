/* SPDX-License-Identifier: Apache-2.0 */
#include "base/median.h"

#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double lf_median(double *x, size_t count)
{
    qsort(x, count, sizeof *x, by_size);
    return x[count / 2];
}
