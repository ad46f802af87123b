/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and means of large parameters, by all threads. */
#ifndef LF_PREPARE_SUMS_H
#define LF_PREPARE_SUMS_H

#include "base/pool.h"
#include "ir/graph.h"

/* Computes every needed sum or mean over the rows of a large parameter, and binds it, so that lf_eval takes it as
 * given. needed, bound, sums, finite: one per node. sums: what was computed, the caller's to free, on failure too;
 * finite: set for a parameter that was thereby found to hold nothing else. Needs: parameters bound. Fails:
 * LF_ERR_NOMEM. */
lf_status lf_sums_bind(const lf_graph *g, const int64_t *dims, const bool *needed, lf_pool *pool, lf_bound *bound,
                       double **sums, bool *finite, lf_diag *diag);

#endif
