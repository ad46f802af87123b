/* SPDX-License-Identifier: Apache-2.0 */
/* Slices go inwards, to where less is computed for them: as far as nobody wants the rest. */
#include "rewrite/rules.h"

#include <assert.h>

/* What a slice takes: `of` of that axis. */
typedef struct part {
    lf_node x;
    int axis;
    lf_run_of of;
} part;

static part part_of(const lf_rw *rw, lf_node n)
{
    part p = {.x = lf_rw_arg(rw, n, 0)};
    p.axis = (int)lf_rw_attr(rw, n, "dim");
    p.axis += p.axis < 0 ? lf_rw_shape(rw, n)->rank : 0;
    const bool some = lf_slice_run(lf_rw_shape(rw, p.x)->dim[p.axis], lf_attr_of(rw->g, n, "start"),
                                   lf_attr_of(rw->g, n, "end"), lf_attr_of(rw->g, n, "step"), &p.of);
    assert(some);
    (void)some;
    return p;
}

/* That part of an axis of x; x itself where it is all. */
static lf_node take(lf_rw *rw, lf_node x, int axis, const lf_run_of *of)
{
    if (x == LF_NONE || lf_extent_same(lf_rw_shape(rw, x)->dim[axis], of->count))
        return x;
    lf_shape shape = *lf_rw_shape(rw, x);
    shape.dim[axis] = of->count;
    if (lf_rw_is(rw, x, LF_OP_constant))
        return lf_rw_full(rw, lf_rw_at(rw, x)->value, &shape);
    const int64_t count = of->count.coef, step = count > 1 ? of->step : 1, end = of->start + (count - 1) * step + 1;
    const lf_attr attrs[LF_MAX_ATTRS] = {
        {.number = axis}, {.number = (double)of->start}, {.number = (double)end}, {.number = (double)step}};
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, LF_OP_slice, args, attrs);
}

/* Do slices of one axis alone read it, and no more of it together than there is? Then each may compute its own. */
static bool only_sliced(const lf_rw *rw, lf_node n)
{
    const lf_rw_facts *s = &rw->facts[n];
    return s->uses > 0 && s->uses <= s->slices && !s->watched && !s->spared && !s->fixed;
}

/* slice(x, all of it) = x */
static lf_node slice_of_all(lf_rw *rw, lf_node n)
{
    return lf_rw_same_shape(rw, n, lf_rw_arg(rw, n, 0)) ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* slice(slice(x)) = slice(x) along one axis */
static lf_node slice_of_slice(lf_rw *rw, lf_node n)
{
    part p = part_of(rw, n);
    if (!lf_rw_is(rw, p.x, LF_OP_slice))
        return LF_KEEP;
    const part inner = part_of(rw, p.x);
    p.of.start = inner.of.start + p.of.start * inner.of.step;
    p.of.step *= inner.of.step;
    return p.axis == inner.axis ? take(rw, inner.x, p.axis, &p.of) : LF_KEEP;
}

/* The elements of the axes behind one; false where they cannot be counted. */
static bool behind(const lf_shape *s, int axis, lf_extent *out)
{
    *out = lf_extent_of(1);
    for (int i = axis + 1; i < s->rank; i++)
        if (!lf_extent_mul(*out, s->dim[i], out))
            return false;
    return true;
}

/* slice(view(x)) = view(slice(x)), where the view's axis is the outermost that an axis of x became, or that axis */
static lf_node slice_of_view(lf_rw *rw, lf_node n)
{
    part p = part_of(rw, n);
    if (lf_kind_of(rw->g, p.x) != LF_VIEW)
        return LF_KEEP;
    const lf_node x = lf_rw_arg(rw, p.x, 0);
    const lf_shape of = *lf_rw_shape(rw, x), seen = *lf_rw_shape(rw, p.x), wanted = *lf_rw_shape(rw, n);
    lf_extent inside, further, times, whole;
    if (!behind(&seen, p.axis, &inside))
        return LF_KEEP;
    for (int axis = of.rank - 1; axis >= 0; axis--) {
        if (!behind(&of, axis, &further) || !lf_extent_div(inside, further, &times) || !lf_extent_known(times) ||
            !lf_extent_mul(times, seen.dim[p.axis], &whole) || !lf_extent_same(whole, of.dim[axis]) ||
            (p.of.step > 1 && times.coef > 1))
            continue;
        p.of.start *= times.coef;
        p.of.count.coef *= times.coef;
        return lf_rw_view(rw, take(rw, x, axis, &p.of), &wanted);
    }
    return LF_KEEP;
}

/* slice(transpose(x)) = transpose(slice(x)) for an x that is computed: what lies in memory is read once as it is */
static lf_node slice_of_transpose(lf_rw *rw, lf_node n)
{
    const part p = part_of(rw, n);
    if (!lf_rw_is(rw, p.x, LF_OP_transpose) || lf_kind_of(rw->g, lf_rw_arg(rw, p.x, 0)) == LF_LEAF)
        return LF_KEEP;
    const int rank = lf_rw_shape(rw, n)->rank;
    int a = (int)lf_rw_attr(rw, p.x, "dim0"), b = (int)lf_rw_attr(rw, p.x, "dim1");
    a += a < 0 ? rank : 0;
    b += b < 0 ? rank : 0;
    const int axis = p.axis == a ? b : p.axis == b ? a : p.axis;
    const lf_node x = take(rw, lf_rw_arg(rw, p.x, 0), axis, &p.of);
    return x == LF_NONE ? LF_KEEP : lf_rw_transpose(rw, x, a, b);
}

/* slice(f(x, y)) = f(slice(x), slice(y)) */
static lf_node slice_goes_in(lf_rw *rw, lf_node n)
{
    const part p = part_of(rw, n);
    if (lf_kind_of(rw->g, p.x) != LF_POINTWISE || !only_sliced(rw, p.x))
        return LF_KEEP;
    lf_node_info f = *lf_rw_at(rw, p.x);
    for (int i = 0; i < lf_op_row(f.op)->arg_count; i++) {
        const int axis = f.arg[i] == LF_NONE ? -1 : p.axis - f.shape.rank + lf_rw_shape(rw, f.arg[i])->rank;
        if (axis < 0 || lf_extent_is(lf_rw_shape(rw, f.arg[i])->dim[axis], 1))
            continue; /* it repeats there */
        f.arg[i] = take(rw, f.arg[i], axis, &p.of);
        if (f.arg[i] == LF_NONE)
            return LF_KEEP;
    }
    return lf_rw_make(rw, f.op, f.arg, f.attr);
}

/* slice(linear(x, W, b)) = linear(x, slice(W), slice(b)) */
static lf_node slice_of_linear(lf_rw *rw, lf_node n)
{
    const part p = part_of(rw, n);
    lf_fixed_linear product;
    if (!lf_rw_fixed_linear(rw, p.x, &product) || p.axis != lf_rw_shape(rw, n)->rank - 1 || !only_sliced(rw, p.x))
        return LF_KEEP;
    const lf_node weight = take(rw, product.weight, 0, &p.of), bias = take(rw, product.bias, 0, &p.of);
    return (bias == LF_NONE) != (product.bias == LF_NONE) ? LF_KEEP : lf_rw_linear(rw, product.x, weight, bias);
}

/* May the value of a product or a norm be taken apart along an axis of its first argument? */
static bool is_apart(const lf_rw *rw, lf_node n, int axis)
{
    const lf_affine affine = lf_affine_of(rw->g, n);
    switch (lf_kind_of(rw->g, n)) {
    case LF_PRODUCT: return axis < lf_rw_shape(rw, n)->rank - 1;
    case LF_NORMALIZE: return !(lf_span_axes(rw->g, n) >> axis & 1) && !(affine.channels && axis == affine.axis);
    default: return false;
    }
}

/* slice(f(x)) = f(slice(x)) for products and norms, along axes whose elements do not see each other */
static lf_node slice_of_rows(lf_rw *rw, lf_node n)
{
    const part p = part_of(rw, n);
    if (!is_apart(rw, p.x, p.axis) || !only_sliced(rw, p.x))
        return LF_KEEP;
    const lf_node x = take(rw, lf_rw_arg(rw, p.x, 0), p.axis, &p.of);
    return x == LF_NONE ? LF_KEEP : lf_rw_like(rw, p.x, 0, x);
}

static const lf_rule rules[] = {
    {.info = {"slice_of_all", "slice(x, all of it) = x", LF_EXACT},
     .gain = "nothing is left out",
     .ops = {LF_OP_slice},
     .apply = slice_of_all},
    {.info = {"slice_of_slice", "slice(slice(x)) = slice(x) along one axis", LF_EXACT},
     .gain = "one slice for two",
     .ops = {LF_OP_slice},
     .apply = slice_of_slice},
    {.info = {"slice_of_view", "slice(view(x)) = view(slice(x)) where the axis begins one of x", LF_EXACT},
     .gain = "the slice comes nearer to what computes it",
     .ops = {LF_OP_slice},
     .apply = slice_of_view},
    {.info = {"slice_of_transpose", "slice(transpose(x)) = transpose(slice(x)) for an x that is computed", LF_EXACT},
     .gain = "less is moved",
     .ops = {LF_OP_slice},
     .apply = slice_of_transpose},
    {.info = {"slice_goes_in", "slice(f(x, y)) = f(slice(x), slice(y)) where nobody reads the rest", LF_EXACT},
     .gain = "only what is read is computed, where it is read",
     .ops = {LF_OP_slice},
     .apply = slice_goes_in},
    {.info = {"slice_of_linear", "slice(linear(x, W, b)) = linear(x, slice(W), slice(b)) where nobody reads the rest",
              LF_EXACT},
     .gain = "only the columns that are read are computed, where they are read",
     .ops = {LF_OP_slice},
     .apply = slice_of_linear},
    {.info = {"slice_of_rows", "slice(f(x)) = f(slice(x)) for products and norms, across what they sum over", LF_EXACT},
     .gain = "only the rows that are read are computed",
     .ops = {LF_OP_slice},
     .apply = slice_of_rows},
};
const lf_rule_table lf_rules_slice = LF_TABLE(rules);
