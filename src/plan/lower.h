/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: a set of nodes becomes the phases of one group, or a reason why it cannot. Inside the plan module. */
#ifndef LF_PLAN_LOWER_H
#define LF_PLAN_LOWER_H

#include "plan/plan.h"

/* nodes of one group: bounds planning time on hostile graphs, far above what kernels want */
enum { LF_MAX_GROUP = 256 };

/* What lowering reads about the graph; made once for a plan. */
typedef struct lf_lower_context {
    const lf_graph *graph;
    lf_arena *arena;
    const bool *fixed;      /* one per node: known when weights are prepared */
    const lf_node *base;    /* one per node: the node whose elements it is, seen through views */
    bool *stored;           /* one per node: its value must be written to memory as a tensor */
    int32_t *slot;          /* one per node, scratch: its place in the set being lowered, -1 outside */
} lf_lower_context;

/* Lowers nodes (ascending; none a leaf, a view or fixed) into group. context->slot is -1 everywhere, before and after.
 * group NULL: only asks whether it would work.
 * *why: NULL when it worked, else one sentence. Fails: LF_ERR_NOMEM only. */
lf_status lf_lower(const lf_lower_context *context, const lf_node *nodes, int32_t count, lf_group *group,
                   const char **why);

/* Lowers one REDUCE or NORMALIZE whose span is no run of leading or trailing extents: the grid visits the kept extents
 * as rows and the spanned ones as columns, reading and writing across. */
lf_status lf_lower_across(const lf_lower_context *context, lf_node n, lf_group *group);

/* Lowers a copy of a stored or constant value into the memory of an output. */
lf_status lf_lower_copy(const lf_lower_context *context, lf_node from, int32_t output, lf_group *group);

/* ---- shared by the lowering files ---- */

/* A group under construction. */
typedef struct lf_builder {
    const lf_lower_context *context;
    lf_extent rows;
    lf_group *group;
    bool failed;           /* memory ran out */
} lf_builder;

/* What a phase walks over: the group's rows (or one) times a width. */
typedef struct lf_grid { bool one_row; lf_extent width; } lf_grid;

/* Appends a phase. Phases run in the order they are appended. */
int32_t lf_builder_phase(lf_builder *b, lf_grid grid);
int32_t lf_builder_step(lf_builder *b, int32_t phase, const lf_step *step); /* an equal load is reused */
void lf_builder_store(lf_builder *b, int32_t phase, int32_t step, const lf_access *to);
void lf_builder_watch(lf_builder *b, int32_t phase, int32_t step);
int32_t lf_builder_kept(lf_builder *b, lf_node node, lf_grid grid);
int32_t lf_builder_stat(lf_builder *b, const lf_stat *stat); /* an equal one is shared */
int32_t lf_builder_product(lf_builder *b, const lf_product *product);

int32_t lf_step_load(lf_builder *b, int32_t phase, lf_node node, const lf_access *from);
int32_t lf_step_number(lf_builder *b, int32_t phase, lf_node node, double number);
int32_t lf_step_op(lf_builder *b, int32_t phase, lf_node node, lf_op op, const int32_t arg[3], const double attr[3]);

/* Access to a tensor, kept value or statistic stored row by row under the grid: [rows][width], one row where grid says
 * so. */
lf_access lf_access_whole(lf_place place, int32_t index, lf_extent rows, lf_grid grid);
/* Access by explicit axes: extents and strides of `shape`, the first row_axes of them rows. */
lf_access lf_access_axes(lf_place place, int32_t index, const lf_shape *shape, const lf_extent *stride, int row_axes);

/* After all members are in: cover, name, schedule. */
void lf_builder_finish(lf_builder *b, const lf_node *nodes, int32_t count);

/* Product of extents [from, to) of a shape; asserts against overflow, which the verifier has excluded. */
lf_extent lf_extents_product(const lf_shape *shape, int from, int to);

/* The weight and bias of a NORMALIZE, as mul and add after `step`; axes of the node's shape, permuted by order (NULL:
 * as they are). Returns the last step. */
int32_t lf_lower_affine(lf_builder *b, int32_t phase, lf_node n, int32_t step, const int *order, int row_axes);

#endif
