/* SPDX-License-Identifier: Apache-2.0 */
/* Types of a group's accesses. Inside the plan room. */
#ifndef LF_PLAN_TYPES_H
#define LF_PLAN_TYPES_H

#include "plan/plan.h"

/* What the elements are that an access reads or writes. Needs: the types of what the group keeps. */
lf_dtype lf_access_dtype(const lf_plan *plan, const lf_group *g, const lf_access *a);

/* Notes the types of all that a lowered group keeps, reads and writes. Needs: storage decided. */
void lf_group_types(const lf_plan *plan, lf_group *g);

#endif
