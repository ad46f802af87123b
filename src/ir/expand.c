/* SPDX-License-Identifier: Apache-2.0 */
/* Losses made of other ops, so that whatever is compiled knows statistics and nothing of losses. For logits x of rows
 * and classes c, a target t a row, and w the class weights:
 *
 *     hit   = c == t                              of the classes' numbers and the targets
 *     loss  = log sum exp(x) - sum(x where hit)   as `above`: of the statistic's parts, whose difference keeps digits
 *     loss *= sum(w where hit)
 *     loss  = (1 - e) loss + e / C sum(w (log sum exp(x) - x))   smoothed by e, C classes
 *     loss  = 0 where t is ignored, NaN where it is no class
 *     mean  = sum(loss) / sum(sum(w where hit) likewise)
 *
 * All of it is f32; the result becomes what the logits are. */
#include "ir/graph.h"

#include <assert.h>
#include <string.h>

typedef struct expansion {
    lf_graph *to;
    lf_status status; /* of what was appended so far; once it fails nothing more is */
    int axis;         /* the classes' */
} expansion;

/* ---- appending ---- */

static lf_node append(expansion *e, const char *name, lf_op op, lf_node x, lf_node y, const lf_attr *attrs)
{
    const lf_node args[LF_MAX_ARGS] = {x, y, LF_NONE, LF_NONE, LF_NONE};
    lf_node made = LF_NONE;
    if (e->status == LF_OK)
        e->status = lf_graph_op(e->to, name, op, args, attrs, &made);
    return made;
}

static lf_node with_number(expansion *e, lf_op op, lf_node x, double number)
{
    lf_attr attrs[LF_MAX_ATTRS];
    lf_op_defaults(op, attrs);
    attrs[0] = (lf_attr){.number = number};
    return append(e, NULL, op, x, LF_NONE, attrs);
}

static lf_node number(expansion *e, double value)
{
    lf_node made = LF_NONE;
    if (e->status == LF_OK)
        e->status = lf_graph_constant(e->to, value, &(lf_shape){0}, &made);
    return made;
}

static lf_node scaled(expansion *e, lf_node x, double factor)
{
    return append(e, NULL, LF_OP_mul, x, number(e, factor), NULL);
}

/* Over the classes. */
static lf_node reduced(expansion *e, lf_op op, lf_node x, lf_node beside)
{
    lf_attr attrs[LF_MAX_ATTRS];
    lf_op_defaults(op, attrs);
    attrs[0] = (lf_attr){.count = 1, .list = {e->axis}};
    return append(e, NULL, op, x, beside, attrs);
}

static lf_node total(expansion *e, lf_node x)
{
    return append(e, NULL, LF_OP_sum, x, LF_NONE, NULL);
}

/* A number of each class, along the classes of x. */
static lf_node along(expansion *e, lf_node of_class, int rank)
{
    for (int axis = 1; axis < rank - e->axis; axis++)
        of_class = with_number(e, LF_OP_unsqueeze, of_class, axis);
    return of_class;
}

static lf_node cast(expansion *e, const char *name, lf_node x, lf_dtype type)
{
    const lf_param_info *dtype = &lf_op_row(LF_OP_to)->param[1];
    lf_attr attrs[LF_MAX_ATTRS];
    lf_op_defaults(LF_OP_to, attrs);
    attrs[0].none = false;
    while (strcmp(dtype->choice[(int)attrs[0].number], lf_dtype_name(type)) != 0)
        attrs[0].number++;
    return append(e, name, LF_OP_to, x, LF_NONE, attrs);
}

/* ---- losses ---- */

/* Of a loss as written. x, weight: f32; weight, where there is one, along the classes. */
typedef struct loss {
    const char *name;
    lf_node x, target, weight;
    int rank;
    lf_extent classes;
    double ignored, smoothing;
    int reduction;
    lf_dtype type;
} loss;

static lf_node label(expansion *e, const char *name, const loss *l, lf_node of_row)
{
    const lf_attr attrs[LF_MAX_ATTRS] = {{.number = l->ignored}, {.number = (double)l->classes.coef}};
    return append(e, name, LF_OP_label, of_row, l->target, attrs);
}

/* The sum over classes of w (log sum exp(x) - x), over their number. */
static lf_node smooth(expansion *e, const loss *l)
{
    if (l->weight == LF_NONE)
        return reduced(e, LF_OP_above, l->x, reduced(e, LF_OP_mean, l->x, LF_NONE));
    const lf_node all = append(e, NULL, LF_OP_mul, reduced(e, LF_OP_above, l->x, number(e, 0.0)),
                               total(e, l->weight), NULL);
    const lf_node of_x =
        reduced(e, LF_OP_sum, append(e, NULL, LF_OP_mul, l->x, l->weight, NULL), LF_NONE);
    return scaled(e, append(e, NULL, LF_OP_sub, all, of_x, NULL), 1.0 / (double)l->classes.coef);
}

/* By row; *share: what it counts in a mean. */
static lf_node of_rows(expansion *e, const char *name, const loss *l, lf_node *share)
{
    lf_node classes = LF_NONE;
    if (e->status == LF_OK)
        e->status = lf_graph_positions(e->to, l->classes, &classes);
    const lf_node hit = append(e, NULL, LF_OP_equals, along(e, classes, l->rank),
                               with_number(e, LF_OP_unsqueeze, l->target, e->axis), NULL);
    const lf_node at = reduced(e, LF_OP_sum, append(e, NULL, LF_OP_pick, l->x, hit, NULL), LF_NONE);
    lf_node row = reduced(e, LF_OP_above, l->x, at);
    *share = number(e, 1.0);
    if (l->weight != LF_NONE) {
        *share = reduced(e, LF_OP_sum, append(e, NULL, LF_OP_pick, l->weight, hit, NULL), LF_NONE);
        row = append(e, NULL, LF_OP_mul, row, *share, NULL);
    }
    if (l->smoothing > 0.0)
        row = append(e, NULL, LF_OP_add, scaled(e, row, 1.0 - l->smoothing), scaled(e, smooth(e, l), l->smoothing),
                     NULL);
    return label(e, name, l, row);
}

static lf_node expand(expansion *e, const loss *l)
{
    enum { MEAN, SUM, NONE };
    const char *name = l->type == LF_F32 ? l->name : NULL;
    lf_node share, made = of_rows(e, l->reduction == NONE ? name : NULL, l, &share);
    if (l->reduction == SUM)
        made = append(e, name, LF_OP_sum, made, LF_NONE, NULL);
    else if (l->reduction == MEAN)
        made = append(e, name, LF_OP_div, total(e, made), total(e, label(e, NULL, l, share)), NULL);
    return l->type == LF_F32 ? made : cast(e, l->name, made, l->type);
}

/* The loss n of a graph, from its arguments in the other. */
static lf_node expand_node(expansion *e, const lf_graph *from, lf_node n, const lf_node *args)
{
    const lf_node_info *info = lf_at(from, n);
    const lf_shape *x = &lf_at(from, info->arg[0])->shape;
    assert(info->op == LF_OP_cross_entropy);
    e->axis = x->rank > 1;
    loss l = {.name = info->name,
              .x = args[0],
              .target = args[1],
              .weight = args[2],
              .rank = x->rank,
              .classes = x->dim[e->axis],
              .ignored = lf_attr_of(from, n, "ignore_index")->number,
              .smoothing = lf_attr_of(from, n, "label_smoothing")->number,
              .reduction = (int)lf_attr_of(from, n, "reduction")->number,
              .type = info->dtype};
    if (l.type != LF_F32)
        l.x = cast(e, NULL, l.x, LF_F32);
    if (l.weight != LF_NONE)
        l.weight = along(e, l.type == LF_F32 ? l.weight : cast(e, NULL, l.weight, LF_F32), l.rank);
    return expand(e, &l);
}

/* ---- the whole graph ---- */

static lf_node copy_node(expansion *e, const lf_graph *from, lf_node n, const lf_node *args)
{
    const lf_node_info *info = lf_at(from, n);
    lf_node made = LF_NONE;
    if (lf_kind_of(from, n) == LF_LOSS)
        return expand_node(e, from, n, args);
    e->status = lf_kind_of(from, n) == LF_LEAF ? lf_graph_leaf_like(e->to, info, &made)
                                               : lf_graph_op(e->to, info->name, info->op, args, info->attr, &made);
    return made;
}

lf_status lf_graph_expand(const lf_graph *from, lf_graph *to, lf_node *into)
{
    expansion e = {.to = to};
    for (int i = 0; i < from->symbols && e.status == LF_OK; i++)
        e.status = lf_graph_symbol(to, from->symbol[i], strlen(from->symbol[i]), &(int){0});
    for (lf_node n = 0; n < from->count && e.status == LF_OK; n++) {
        lf_node args[LF_MAX_ARGS];
        for (int i = 0; i < LF_MAX_ARGS; i++)
            args[i] = lf_arg_of(from, n, i) == LF_NONE ? LF_NONE : into[lf_arg_of(from, n, i)];
        into[n] = copy_node(&e, from, n, args);
    }
    lf_node *output = e.status == LF_OK ? lf_arena_array(to->arena, (size_t)from->outputs, sizeof *output) : NULL;
    for (int32_t i = 0; output && i < from->outputs; i++)
        output[i] = into[from->output[i]];
    if (e.status == LF_OK && !output)
        return lf_fail_nomem(to->diag, "a graph");
    return e.status == LF_OK ? lf_graph_return(to, output, (size_t)from->outputs) : e.status;
}
