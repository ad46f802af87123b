/* SPDX-License-Identifier: Apache-2.0 */
/* Whether numbers are finite. */
#ifndef LF_BASE_FINITE_H
#define LF_BASE_FINITE_H

#include "base/dtype.h"
#include "base/pool.h"

/* Is none of x[0..count), of a float type, Inf or NaN? By all threads of the pool. */
bool lf_all_finite_shared(lf_dtype type, const void *x, int64_t count, lf_pool *pool);

#endif
