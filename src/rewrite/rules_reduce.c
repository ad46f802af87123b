/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: of one element, and of what a monotone op has made. */
#include "rewrite/rules.h"

static bool all_ones(const lf_shape *s, unsigned axes)
{
    for (int i = 0; i < s->rank; i++)
        if (axes & 1u << i && !lf_extent_is(s->dim[i], 1))
            return false;
    return true;
}

/* max and min of one element are that element; sum, mean and logsumexp too, but for -0, of which they make 0 */
static lf_node reduce_of_one(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0);
    lf_shape shape = *lf_rw_shape(rw, n);
    return all_ones(lf_rw_shape(rw, x), lf_span_axes(rw->g, n)) ? lf_rw_view(rw, x, &shape) : LF_KEEP;
}

/* sum, mean and logsumexp of one element are that element + 0, which makes 0 of -0 */
static lf_node sum_of_one_exactly(lf_rw *rw, lf_node n)
{
    lf_node x = reduce_of_one(rw, n);
    return x == LF_KEEP ? LF_KEEP : lf_rw_two(rw, LF_OP_add, x, lf_rw_number(rw, 0.0));
}

/* Is a product among what this is computed from, element by element? Then its columns are worth reducing where they are
 * made. */
static bool made_of_product(const lf_rw *rw, lf_node n, int depth)
{
    lf_kind kind = lf_kind_of(rw->g, n);
    if (kind == LF_PRODUCT || depth == 0)
        return kind == LF_PRODUCT;
    if (kind != LF_POINTWISE && kind != LF_VIEW && kind != LF_NORMALIZE)
        return false;
    const lf_node_info *info = lf_rw_at(rw, n);
    for (int i = 0; i < lf_op_row(info->op)->arg_count; i++)
        if (info->arg[i] != LF_NONE && !lf_rw_fixed(rw, info->arg[i]) && made_of_product(rw, info->arg[i], depth - 1))
            return true;
    return false;
}

/* a reduction over columns and more = the reduction over the rest of the reduction over columns: sum, mean (of equal
 * runs), max, min, logsumexp */
static lf_node reduce_in_turn(lf_rw *rw, lf_node n)
{
    enum { DEPTH = 8 }; /* how far back a product is looked for; two arguments at most branch */
    lf_node x = lf_rw_arg(rw, n, 0);
    const lf_shape *s = lf_rw_shape(rw, x);
    unsigned axes = lf_span_axes(rw->g, n), last = s->rank < 2 ? 0 : 1u << (s->rank - 1);
    if (!(axes & last) || lf_extent_is(s->dim[s->rank - 1], 1) || all_ones(s, axes & ~last) ||
        !made_of_product(rw, x, DEPTH))
        return LF_KEEP;
    lf_op op = lf_rw_at(rw, n)->op;
    bool keepdim = lf_rw_attr(rw, n, "keepdim") != 0.0;
    lf_node columns = lf_rw_reduce(rw, op, x, last, true);
    return columns == LF_NONE ? LF_NONE : lf_rw_reduce(rw, op, columns, axes, keepdim);
}

/* ---- max and min ---- */

enum { MAX_BETWEEN = 64 };

/* 1 where f rises with its argument at `slot`, -1 where it falls, 0 where neither is known; every number to a number,
 * so that the NaN of one element cannot be missed. */
static int direction(const lf_rw *rw, lf_node f, int *slot)
{
    const lf_node_info *info = lf_rw_at(rw, f);
    const lf_op_info *row = lf_op_row(info->op);
    lf_interval v[LF_EXPR_VARIABLE_COUNT];
    double c;
    *slot = row->arg_count == 2 && !lf_rw_constant(rw, info->arg[1], &c) ? 1 : 0;
    if (row->kind != LF_POINTWISE || !lf_rw_same_shape(rw, info->arg[*slot], f) ||
        (row->arg_count == 2 && !lf_rw_constant(rw, info->arg[1 - *slot], &c)))
        return 0;
    lf_rw_intervals(rw, f, v);
    if (lf_rw_nonnegative(rw, info->arg[*slot]))
        v[*slot].low = 0.0;
    return lf_expr_direction(row->tree, *slot, v);
}

/* f on the reduced value: a constant beside it becomes a plain number, for its shape may not fit any more. */
static lf_node again(lf_rw *rw, lf_node f, int slot, lf_node x)
{
    lf_node_info info = *lf_rw_at(rw, f);
    double c;
    if (lf_op_row(info.op)->arg_count == 2 && lf_rw_constant(rw, info.arg[1 - slot], &c))
        info.arg[1 - slot] = lf_rw_number(rw, c);
    info.arg[slot] = x;
    return lf_rw_make(rw, info.op, info.arg, info.attr);
}

/* The monotone ops that lead from x to what n reduces, and which argument of each; views between are one at the end. */
typedef struct passage {
    lf_node node[MAX_BETWEEN], x;
    int slot[MAX_BETWEEN], count;
    bool max, viewed;
} passage;

static void find_passage(lf_rw *rw, lf_node n, passage *p)
{
    p->x = lf_rw_arg(rw, n, 0);
    p->max = lf_rw_is(rw, n, LF_OP_max);
    while (p->count < MAX_BETWEEN && !lf_rw_fixed(rw, p->x)) {
        lf_node f = p->x;
        bool view = lf_kind_of(rw->g, f) == LF_VIEW;
        if (view && lf_rw_sole(rw, f))
            f = lf_rw_arg(rw, f, 0);
        int slot, way = direction(rw, f, &slot);
        if (way == 0)
            return;
        if (!lf_rw_sole(rw, f)) {
            lf_rw_refuse(rw, "the %s is used elsewhere", lf_op_row(lf_rw_at(rw, f)->op)->name);
            return;
        }
        p->viewed = p->viewed || view;
        p->max = way > 0 ? p->max : !p->max;
        p->slot[p->count] = slot;
        p->node[p->count++] = f;
        p->x = lf_rw_arg(rw, f, slot);
    }
}

/* max(f(x)) = f(max(x)) for a rising f, f(min(x)) for a falling one; likewise min. f is monotone as it is computed
 * here, but perhaps not to the same bits in every kernel; and of two zeros either may be the largest. */
static lf_node max_through_monotone(lf_rw *rw, lf_node n)
{
    passage p = {.count = 0};
    find_passage(rw, n, &p);
    if (p.count == 0)
        return LF_KEEP;
    lf_shape shape = *lf_rw_shape(rw, lf_rw_arg(rw, n, 0));
    lf_node x = p.viewed ? lf_rw_view(rw, p.x, &shape) : p.x;
    bool keepdim = lf_rw_attr(rw, n, "keepdim") != 0.0;
    lf_node r = lf_rw_reduce(rw, p.max ? LF_OP_max : LF_OP_min, x, lf_span_axes(rw->g, n), keepdim);
    for (int i = p.count - 1; i >= 0; i--)
        r = r == LF_NONE ? LF_NONE : again(rw, p.node[i], p.slot[i], r);
    lf_rw_why(rw, "%s%s of one element instead of all", lf_op_row(lf_rw_at(rw, p.node[0])->op)->name,
              p.count > 1 ? " and more" : "");
    return r;
}

static const lf_rule rules[] = {
    {.info = {"max_of_one", "max, min of one element = that element", LF_EXACT},
     .gain = "there is one element to reduce",
     .ops = {LF_OP_max, LF_OP_min},
     .apply = reduce_of_one},
    {.info = {"sum_of_one", "sum, mean, logsumexp of one element = that element", LF_REROUNDS},
     .gain = "there is one element to reduce",
     .ops = {LF_OP_sum, LF_OP_mean, LF_OP_logsumexp},
     .apply = reduce_of_one},
    {.info = {"sum_of_one_exactly", "sum, mean, logsumexp of one element = that element + 0", LF_EXACT},
     .gain = "there is one element to reduce",
     .ops = {LF_OP_sum, LF_OP_mean, LF_OP_logsumexp},
     .apply = sum_of_one_exactly},
    {.info = {"reduce_in_turn", "a reduction over columns and more = that of the reductions over columns", LF_REROUNDS},
     .gain = "each row is reduced where it is made, and the product is not stored",
     .kinds = LF_KIND(LF_REDUCE),
     .apply = reduce_in_turn},
    {.info = {"max_through_monotone", "max(f(x)) = f(max(x)) for a monotone f; min too", LF_REROUNDS},
     .ops = {LF_OP_max, LF_OP_min},
     .apply = max_through_monotone},
};
const lf_rule_table lf_rules_reduce = LF_TABLE(rules);
