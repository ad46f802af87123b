/* SPDX-License-Identifier: Apache-2.0 */
/* The two groups that are not made by placing nodes on a common grid: a statistic across extents, and a plain copy. */
#include "plan/lower.h"

static int32_t load_or_number(lf_builder *b, int32_t phase, lf_node node, const lf_access *from)
{
    const lf_node_info *base = lf_at(b->context->graph, from->index);
    return base->op == LF_OP_constant ? lf_step_number(b, phase, node, base->value)
                                      : lf_step_load(b, phase, node, from);
}

/* What a reduction reads beside its statistic, an element a row. */
static int32_t load_beside(lf_builder *b, int32_t phase, lf_node n, lf_node arg)
{
    const lf_graph *g = b->context->graph;
    const lf_shape *shape = &lf_at(g, n)->shape;
    lf_extent stride[LF_MAX_RANK] = {{0}};
    lf_broadcast_strides(&lf_at(g, arg)->shape, shape, stride);
    const lf_access from = lf_access_axes(LF_VALUE, b->context->base[arg], shape, stride, shape->rank);
    return load_or_number(b, phase, arg, &from);
}

/* Axes in order of the grid: those the statistic keeps, then those it spans. Gives how many are kept. */
static int across_order(const lf_shape *shape, unsigned axes, int *order)
{
    int kept = 0, at;
    for (int i = 0; i < shape->rank; i++)
        kept += !(axes >> i & 1);
    int next[2] = {0, kept};
    for (int i = 0; i < shape->rank; i++) {
        at = next[axes >> i & 1]++;
        order[at] = i;
    }
    return kept;
}

lf_status lf_lower_across(const lf_lower_context *context, lf_node n, lf_group *group)
{
    const lf_graph *g = context->graph;
    const lf_node_info *info = lf_at(g, n);
    const lf_op_info *row = lf_op_row(info->op);
    const lf_shape *shape = &lf_at(g, info->arg[0])->shape;
    int order[LF_MAX_RANK];
    int kept = across_order(shape, lf_span_axes(g, n), order);
    lf_shape grid = {.rank = shape->rank};
    lf_extent natural[LF_MAX_RANK] = {{0}}, stride[LF_MAX_RANK] = {{0}};
    lf_broadcast_strides(shape, shape, natural);
    for (int i = 0; i < shape->rank; i++) {
        grid.dim[i] = shape->dim[order[i]];
        stride[i] = natural[order[i]];
    }
    *group = (lf_group){0};
    lf_builder b = {.context = context, .rows = lf_extents_product(&grid, 0, kept), .group = group};
    lf_extent width = lf_extents_product(&grid, kept, grid.rank);
    lf_access x = lf_access_axes(LF_VALUE, context->base[info->arg[0]], &grid, stride, kept);

    int32_t feed = lf_builder_phase(&b, (lf_grid){false, width});
    lf_stat stat = {.monoid = row->monoid, .span = LF_SPAN_ROW, .node = n, .phase = feed, .groups = lf_extent_of(1),
                    .count = lf_extent_of(1), .length = width, .step = load_or_number(&b, feed, info->arg[0], &x)};
    int32_t s = lf_builder_stat(&b, &stat);

    bool reduce = row->kind == LF_REDUCE;
    int32_t last = lf_builder_phase(&b, (lf_grid){false, reduce ? lf_extent_of(1) : width});
    int32_t arg[3] = {-1, -1, -1}, slot = 0;
    double attr[3];
    lf_op_numbers(g, n, attr);
    if (!reduce)
        arg[slot++] = load_or_number(&b, last, info->arg[0], &x);
    for (int i = 0; i < lf_monoid_row(row->monoid)->results; i++) {
        lf_access from = {.place = LF_STAT, .index = s, .result = i, .rank = 2, .row_axes = 1};
        from.extent[0] = b.rows;
        from.stride[0] = lf_extent_of(1);
        from.extent[1] = reduce ? lf_extent_of(1) : width;
        arg[slot++] = lf_step_load(&b, last, n, &from);
    }
    for (int i = 1; reduce && i < row->arg_count; i++)
        arg[slot++] = load_beside(&b, last, n, info->arg[i]);
    int32_t step = slot == 1 ? arg[0] : lf_step_op(&b, last, n, info->op, arg, attr);
    if (!reduce)
        step = lf_lower_affine(&b, last, n, step, order, kept);
    lf_access to = reduce ? lf_access_whole(LF_VALUE, n, b.rows, (lf_grid){false, lf_extent_of(1)})
                          : lf_access_axes(LF_VALUE, n, &grid, stride, kept);
    lf_builder_store(&b, last, step, &to);
    lf_builder_finish(&b, &n, 1);
    return b.failed ? lf_fail_nomem(g->diag, "the plan") : LF_OK;
}

lf_status lf_lower_copy(const lf_lower_context *context, lf_node from, int32_t output, lf_group *group)
{
    const lf_graph *g = context->graph;
    const lf_shape *s = &lf_at(g, from)->shape;
    *group = (lf_group){0};
    const lf_extent rows = lf_extents_product(s, 0, s->rank > 0 ? s->rank - 1 : 0);
    lf_builder b = {.context = context, .rows = rows, .group = group};
    lf_grid grid = {false, s->rank > 0 ? s->dim[s->rank - 1] : lf_extent_of(1)};
    int32_t phase = lf_builder_phase(&b, grid);
    lf_access in = lf_access_whole(LF_VALUE, from, b.rows, grid),
              out = lf_access_whole(LF_OUTPUT, output, b.rows, grid);
    lf_builder_store(&b, phase, load_or_number(&b, phase, from, &in), &out);
    lf_builder_finish(&b, &from, 1);
    return b.failed ? lf_fail_nomem(g->diag, "the plan") : LF_OK;
}
