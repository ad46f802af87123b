/* SPDX-License-Identifier: Apache-2.0 */
/* How fast this machine is at what our kernels do, found by doing it for a moment. */
#ifndef LF_CPU_MEASURE_H
#define LF_CPU_MEASURE_H

#include "base/pool.h"
#include "base/status.h"
#include "cpu/kern.h"
#include "plan/cost.h"

/* Per second, all of the pool's threads together. */
typedef struct lf_cpu_rates {
    double flops;               /* multiply-add, two each: the table's multiply on a run that lies in L2 */
    double row_flops;           /* the same, of one row */
    double dot_flops;           /* the table's dots on vectors that lie in L1 */
    double packed;              /* elements of x */
    double handed;              /* elements of a product, from the end of one tile to the beginning of the next */
    double jobs;                /* of the pool, with nothing to do */
    double cache_bytes;         /* what of the last cache can be counted on (bytes, not a rate) */
    double read[LF_LEVELS];     /* bytes, of as many as LF_LEVEL_BYTES says, over and over */
    double written[LF_LEVELS];  /* the same */
    lf_tail_rates tail;         /* of strips that lie in L1 */
} lf_cpu_rates;

/* Takes about half a second and up to 256 MB, given back before it returns. pool may be NULL: one thread.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_cpu_measure(const lf_kern *kern, lf_pool *pool, lf_cpu_rates *out, lf_diag *diag);

#endif
