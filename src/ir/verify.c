/* SPDX-License-Identifier: Apache-2.0 */
/* What every pass relies on, checked. Our passes only build through lf_graph_op, so a failure here is a bug of ours; it
 * is reported rather than asserted, so that a release build still refuses to compute something wrong. */
#include "ir/graph.h"

#include <math.h>
#include <string.h>

static lf_status broken(const lf_graph *g, lf_node n, const char *what)
{
    const char *name = g->node[n].name ? g->node[n].name : "(no name)";
    return lf_fail(g->diag, LF_ERR_MODEL, "broken graph: value %s: %s", name, what);
}

static lf_status check_leaf(const lf_graph *g, lf_node n)
{
    const lf_node_info *node = &g->node[n];
    if (node->attr)
        return broken(g, n, "a leaf with attributes");
    if (node->shape.rank < 0 || node->shape.rank > LF_MAX_RANK)
        return broken(g, n, "a rank out of range");
    lf_extent all;
    if (!lf_shape_elements(&node->shape, &all) || all.coef < 1 || all.coef > LF_MAX_ELEMENTS)
        return broken(g, n, "extents out of range");
    if (node->op == LF_OP_param && !lf_extent_known(all))
        return broken(g, n, "a parameter with a named extent");
    if ((node->op == LF_OP_constant || node->op == LF_OP_positions) && node->dtype != LF_F32)
        return broken(g, n, "a constant that is not f32");
    if (node->op == LF_OP_positions && (node->shape.rank != 1 || !lf_extent_known(all)))
        return broken(g, n, "positions that are not one known extent");
    return LF_OK;
}

static lf_status check_op(const lf_graph *g, lf_node n)
{
    const lf_node_info *node = &g->node[n];
    lf_dtype dtype;
    lf_shape shape;
    if (lf_op_row(node->op)->attr_count > 0 && !node->attr)
        return broken(g, n, "attributes are missing");
    lf_status status = lf_infer(g, node->op, node->arg, node->attr, &dtype, &shape);
    if (status)
        return lf_fail(g->diag, status, "broken graph: value %s: %s", node->name, g->diag ? g->diag->text : "");
    if (dtype != node->dtype)
        return broken(g, n, "not the dtype its op gives");
    if (!lf_shape_same(&shape, &node->shape))
        return lf_fail(g->diag, LF_ERR_MODEL, "broken graph: value %s is %s, but %s gives %s", node->name,
                       lf_shape_text(g, &node->shape), lf_op_row(node->op)->name, lf_shape_text(g, &shape));
    return LF_OK;
}

static lf_status check_node(const lf_graph *g, lf_node n)
{
    const lf_node_info *node = &g->node[n];
    if (!node->name)
        return broken(g, n, "no name");
    if ((int)node->op < 0 || node->op >= LF_OP_COUNT)
        return broken(g, n, "no such op");
    const lf_op_info *row = lf_op_row(node->op);
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        if (i >= row->arg_count && node->arg[i] != LF_NONE)
            return broken(g, n, "an argument too many");
        if (node->arg[i] != LF_NONE && (node->arg[i] < 0 || node->arg[i] >= n))
            return broken(g, n, "an argument that does not come before it");
    }
    return row->kind == LF_LEAF ? check_leaf(g, n) : check_op(g, n);
}

/* Each node is listed under its own name: two of one name cannot both be. */
static lf_status check_names(const lf_graph *g)
{
    for (lf_node n = 0; n < g->count; n++)
        if (lf_graph_named(g, g->node[n].name) != n)
            return broken(g, n, "its name is another's");
    return LF_OK;
}

/* Ports come in order of node and are of their op; counting shows that none is left out. */
static lf_status check_ports(const lf_graph *g, lf_op op, const lf_node *ports, int32_t count)
{
    int32_t found = 0;
    for (lf_node n = 0; n < g->count; n++) {
        if (g->node[n].op != op)
            continue;
        if (found >= count || ports[found] != n)
            return broken(g, n, "an input or parameter that is not listed as one");
        found++;
    }
    if (found != count)
        return lf_fail(g->diag, LF_ERR_MODEL, "broken graph: %d of %s listed, %d there", (int)count,
                       lf_op_row(op)->name, (int)found);
    return LF_OK;
}

lf_status lf_graph_verify(const lf_graph *g)
{
    lf_status status = LF_OK;
    for (lf_node n = 0; !status && n < g->count; n++)
        status = check_node(g, n);
    if (!status)
        status = check_names(g);
    if (!status)
        status = check_ports(g, LF_OP_input, g->input, g->inputs);
    if (!status)
        status = check_ports(g, LF_OP_param, g->param, g->params);
    if (!status && g->outputs == 0)
        status = lf_fail(g->diag, LF_ERR_MODEL, "a model returns at least one value");
    for (int32_t i = 0; !status && i < g->outputs; i++)
        if (g->output[i] < 0 || g->output[i] >= g->count)
            status = lf_fail(g->diag, LF_ERR_MODEL, "broken graph: output %d is no value of it", (int)i);
    return status;
}
