/* SPDX-License-Identifier: Apache-2.0 */
/* Types of a group's accesses. Inside the plan room. */
#ifndef LF_PLAN_TYPES_H
#define LF_PLAN_TYPES_H

#include "plan/plan.h"

/* What the elements are that an access reads or writes. Needs: the types of what the group keeps. */
lf_dtype lf_access_dtype(const lf_plan *plan, const lf_group *g, const lf_access *a);

#endif
