/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over a lowered group, in the order in which they run. Each is a file of its own; what they note stands in
 * plan.h, beside the field. Executors, the cost model and explain read that instead of looking for it again. Inside the
 * plan module. */
#ifndef LF_PLAN_PASSES_H
#define LF_PLAN_PASSES_H

#include "plan/plan.h"

/* types.c: the types of all that the group keeps, reads and writes (lf_access.dtype, lf_kept.dtype).
 * Needs: storage decided. */
void lf_group_types(const lf_plan *plan, lf_group *g);

/* uses.c: lf_step.uses. */
void lf_group_uses(lf_group *g);

/* exps.c: rewrites each softmax whose exps can be kept from when its row is summed up (lf_stat.exps, lf_store.exps,
 * LF_FACTOR). Needs: uses, and outputs in which kept values wait; keeps uses true. Fails: (false) no memory. */
bool lf_group_keep_exps(lf_group *g, lf_arena *arena);

/* joins.c: what can be done in one go: lf_step.mul, lf_product.add and row. Needs: uses. */
void lf_group_joins(lf_group *g);

/* held.c: lf_group.held. */
void lf_group_held(lf_group *g);

/* cut.c: the half of a plan that its options ask for. Needs: all of the above, no product numbered yet.
 * Fails: LF_ERR_UNSUPPORTED, LF_ERR_NOMEM. */
lf_status lf_plan_cut(lf_plan *plan, lf_arena *arena);

#endif
