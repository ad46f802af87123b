/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes: views merge and go outwards, so that what computes meets what computes. */
#include "rewrite/rules.h"

/* clone(x) = x */
static lf_node drop_clone(lf_rw *rw, lf_node n)
{
    return lf_rw_arg(rw, n, 0);
}

/* dropout(x, training=false) = dropout(x, p=0) = x; any other is refused by inference */
static lf_node drop_dropout(lf_rw *rw, lf_node n)
{
    return lf_rw_arg(rw, n, 0);
}

/* view(x, shape of x) = x */
static lf_node same_view(lf_rw *rw, lf_node n)
{
    return lf_rw_same_shape(rw, n, lf_rw_arg(rw, n, 0)) ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* view(view(x)) = view(x) */
static lf_node view_of_view(lf_rw *rw, lf_node n)
{
    lf_shape shape = *lf_rw_shape(rw, n);
    return lf_kind_of(rw->g, lf_rw_arg(rw, n, 0)) == LF_VIEW ? lf_rw_view(rw, lf_rw_arg(rw, n, 0), &shape) : LF_KEEP;
}

static void swapped_axes(const lf_rw *rw, lf_node n, int *low, int *high)
{
    int a = (int)lf_rw_attr(rw, n, "dim0"), b = (int)lf_rw_attr(rw, n, "dim1");
    *low = a < b ? a : b;
    *high = a < b ? b : a;
}

/* transpose(transpose(x, a, b), a, b) = x */
static lf_node transpose_pair(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    int a, b, c, d;
    if (!lf_rw_is(rw, inner, LF_OP_transpose))
        return LF_KEEP;
    swapped_axes(rw, n, &a, &b);
    swapped_axes(rw, inner, &c, &d);
    return a == c && b == d ? lf_rw_arg(rw, inner, 0) : LF_KEEP;
}

/* transpose(x, a, b) = view(x) where it moves nothing but extents of 1 */
static lf_node transpose_of_ones(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0);
    lf_shape from = *lf_rw_shape(rw, x), shape = *lf_rw_shape(rw, n);
    int a, b, wide = 0;
    swapped_axes(rw, n, &a, &b);
    for (int i = a; i <= b && i < from.rank; i++)
        wide += !lf_extent_is(from.dim[i], 1);
    bool both = from.rank > 0 && lf_extent_is(from.dim[a], 1) && lf_extent_is(from.dim[b], 1);
    return wide <= 1 || both ? lf_rw_view(rw, x, &shape) : LF_KEEP;
}

/* An operand of f(view(x), y) for f(x, y): a number stays, a column [N] stays one where the view leaves the last
 * extent, and of another value seen so that value is left. */
static lf_node beside_view(lf_rw *rw, lf_node y, lf_node view, lf_node x)
{
    lf_shape s = *lf_rw_shape(rw, y), from = *lf_rw_shape(rw, x), to = *lf_rw_shape(rw, view);
    if (lf_rw_is(rw, y, LF_OP_constant))
        return lf_rw_number(rw, lf_rw_at(rw, y)->value);
    if (s.rank == 0)
        return y;
    if (lf_kind_of(rw->g, y) == LF_VIEW && lf_rw_same_shape(rw, y, view) &&
        lf_rw_same_shape(rw, lf_rw_arg(rw, y, 0), x))
        return lf_rw_arg(rw, y, 0);
    if (!lf_rw_repeats(rw, y, s.rank, (1u << (s.rank - 1)) - 1) || from.rank == 0 || to.rank == 0)
        return LF_NONE;
    lf_extent last = s.dim[s.rank - 1];
    bool column = lf_extent_same(last, from.dim[from.rank - 1]) && lf_extent_same(last, to.dim[to.rank - 1]);
    lf_shape flat = {.rank = 1, .dim = {last}};
    return column || lf_extent_is(last, 1) ? lf_rw_view(rw, y, &flat) : LF_NONE;
}

/* f(view(x)) = view(f(x)), and so with numbers or columns beside it; x being a value that was computed */
static lf_node view_goes_out(lf_rw *rw, lf_node n)
{
    const lf_node_info info = *lf_rw_at(rw, n);
    for (int slot = 0; slot < lf_op_row(info.op)->arg_count; slot++) {
        const lf_node view = info.arg[slot];
        if (lf_kind_of(rw->g, view) != LF_VIEW || !lf_rw_same_shape(rw, view, n))
            continue;
        const lf_node x = lf_rw_arg(rw, view, 0);
        if (lf_rw_fixed(rw, x) || lf_kind_of(rw->g, x) == LF_LEAF)
            continue;
        lf_node args[LF_MAX_ARGS];
        for (int i = 0; i < LF_MAX_ARGS; i++)
            args[i] = i == slot ? x : info.arg[i] == LF_NONE ? LF_NONE : beside_view(rw, info.arg[i], view, x);
        const lf_node inside = lf_rw_make(rw, info.op, args, info.attr);
        if (inside != LF_NONE && lf_rw_same_shape(rw, inside, x))
            return lf_rw_view(rw, inside, &info.shape);
    }
    return LF_KEEP;
}

static const lf_rule rules[] = {
    {.info = {"drop_clone", "clone(x) = x", LF_EXACT},
     .gain = "a copy is not needed",
     .ops = {LF_OP_clone},
     .apply = drop_clone},
    {.info = {"drop_dropout", "dropout(x, training=false) = x", LF_EXACT},
     .gain = "dropout does nothing outside training",
     .ops = {LF_OP_dropout},
     .apply = drop_dropout},
    {.info = {"same_view", "view(x, shape of x) = x", LF_EXACT},
     .gain = "the shape stays as it is",
     .kinds = LF_KIND(LF_VIEW),
     .apply = same_view},
    {.info = {"view_of_view", "view(view(x)) = view(x)", LF_EXACT},
     .gain = "one change of shape for two",
     .kinds = LF_KIND(LF_VIEW),
     .apply = view_of_view},
    {.info = {"transpose_pair", "transpose(transpose(x, a, b), a, b) = x", LF_EXACT},
     .gain = "two transpositions cancel",
     .ops = {LF_OP_transpose},
     .apply = transpose_pair},
    {.info = {"transpose_of_ones", "transpose(x, a, b) = view(x) where it moves nothing but extents of 1", LF_EXACT},
     .gain = "no element moves",
     .ops = {LF_OP_transpose},
     .apply = transpose_of_ones},
    {.info = {"view_goes_out", "f(view(x)) = view(f(x))", LF_EXACT},
     .gain = "what computes meets what computes",
     .kinds = LF_KIND(LF_POINTWISE),
     .apply = view_goes_out},
};
const lf_rule_table lf_rules_shape = LF_TABLE(rules);
