/* SPDX-License-Identifier: Apache-2.0 */
/* How fast this machine is at what our kernels do, found by doing it for a moment. */
#ifndef LF_CPU_MEASURE_H
#define LF_CPU_MEASURE_H

#include "base/pool.h"
#include "base/status.h"
#include "cpu/kern.h"

/* Per second, all of the pool's threads together. */
typedef struct lf_cpu_rates {
    double flops;       /* multiply-add, two each: the table's multiply on a run that lies in L2 */
    double dot_flops;   /* the table's dots on vectors that lie in L1 */
    double elements;    /* sums of two strips */
    double functions;   /* exp of a strip, in elements */
    double read_bytes;  /* from memory */
    double write_bytes; /* to memory, beside reading as much */
    double cache_rate;  /* bytes read that lie in the last cache */
    double cache_bytes; /* what of the last cache can be counted on */
} lf_cpu_rates;

/* Takes about a quarter of a second and up to 256 MB, given back before it returns. pool may be NULL: one thread.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_cpu_measure(const lf_kern *kern, lf_pool *pool, lf_cpu_rates *out, lf_diag *diag);

#endif
