/* SPDX-License-Identifier: Apache-2.0 */
/* Grouping: which nodes share a kernel. Inside the plan module. */
#ifndef LF_PLAN_GROUP_H
#define LF_PLAN_GROUP_H

#include "plan/lower.h"

/* The nodes of one group to be. */
typedef struct lf_set {
    lf_node *node; /* ascending */
    int32_t count;
    bool across;   /* to be lowered by lf_lower_across */
    const char *why_apart;
} lf_set;

typedef struct lf_sets {
    lf_set *set;   /* in an order in which they can run */
    int32_t count;
} lf_sets;

/* Fails: LF_ERR_NOMEM. The sets live in arena. */
lf_status lf_group_nodes(const lf_lower_context *context, lf_plan_options options, lf_arena *arena, lf_sets *out);

#endif
