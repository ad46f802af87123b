/* SPDX-License-Identifier: Apache-2.0 */
/* The same elements under another shape, in the fewest words: nothing, a squeeze, an unsqueeze, a reshape; several of
 * the first two where a reshape could not say it because two extents have names. */
#include "rewrite/rules.h"

static lf_node squeeze(lf_rw *rw, lf_node x, unsigned axes)
{
    lf_attr attrs[LF_MAX_ATTRS] = {{.none = false}};
    for (int i = 0; i < LF_MAX_RANK; i++)
        if (axes & 1u << i)
            attrs[0].list[attrs[0].count++] = i;
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return axes ? lf_rw_make(rw, LF_OP_squeeze, args, attrs) : x;
}

static lf_node reshape(lf_rw *rw, lf_node x, const lf_shape *shape)
{
    lf_attr attrs[LF_MAX_ATTRS] = {{.count = shape->rank}};
    for (int i = 0; i < shape->rank; i++)
        attrs[0].list[i] = lf_extent_known(shape->dim[i]) ? shape->dim[i].coef : -1;
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, LF_OP_reshape, args, attrs);
}

/* The axis of `longer`, an extent of 1, without which it is `shorter`; -1 when there is none. */
static int one_more(const lf_shape *longer, const lf_shape *shorter)
{
    if (longer->rank != shorter->rank + 1)
        return -1;
    int axis = 0;
    while (axis < shorter->rank && lf_extent_same(longer->dim[axis], shorter->dim[axis]))
        axis++;
    for (int i = axis; i < shorter->rank; i++)
        if (!lf_extent_same(longer->dim[i + 1], shorter->dim[i]))
            return -1;
    return lf_extent_is(longer->dim[axis], 1) ? axis : -1;
}

/* Every 1 taken out, then those of the shape put in. */
static lf_node by_ones(lf_rw *rw, lf_node x, const lf_shape *shape)
{
    unsigned ones = 0;
    for (int i = 0; i < lf_rw_shape(rw, x)->rank; i++)
        ones |= lf_extent_is(lf_rw_shape(rw, x)->dim[i], 1) ? 1u << i : 0;
    x = squeeze(rw, x, ones);
    for (int i = 0; x != LF_NONE && i < shape->rank; i++)
        if (lf_extent_is(shape->dim[i], 1))
            x = lf_rw_with(rw, LF_OP_unsqueeze, x, i);
    return x != LF_NONE && lf_shape_same(lf_rw_shape(rw, x), shape) ? x : LF_NONE;
}

lf_node lf_rw_view(lf_rw *rw, lf_node x, const lf_shape *shape)
{
    lf_extent have, want;
    if (x == LF_NONE)
        return LF_NONE;
    while (lf_kind_of(rw->g, x) == LF_VIEW)
        x = lf_rw_arg(rw, x, 0);
    lf_shape from = *lf_rw_shape(rw, x);
    if (lf_shape_same(&from, shape))
        return x;
    if (!lf_shape_elements(&from, &have) || !lf_shape_elements(shape, &want) || !lf_extent_same(have, want))
        return LF_NONE;
    if (lf_rw_is(rw, x, LF_OP_constant))
        return lf_rw_full(rw, lf_rw_at(rw, x)->value, shape);
    int named = 0, axis;
    for (int i = 0; i < shape->rank; i++)
        named += !lf_extent_known(shape->dim[i]);
    if ((axis = one_more(&from, shape)) >= 0)
        return squeeze(rw, x, 1u << axis);
    if ((axis = one_more(shape, &from)) >= 0)
        return lf_rw_with(rw, LF_OP_unsqueeze, x, axis);
    return named <= 1 ? reshape(rw, x, shape) : by_ones(rw, x, shape);
}
