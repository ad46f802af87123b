/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about a node that more than one pass asks. They are answered from the signature's parameter names, so that
 * a new op with the parameters of its family needs nothing here. */
#include "ir/graph.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static bool is_value(const lf_param_info *p)
{
    return p->type == 'T' || p->type == 'V';
}

static const lf_param_info *param_of(const lf_graph *g, lf_node n, const char *name)
{
    const lf_op_info *row = lf_op_row(g->node[n].op);
    for (int i = 0; i < row->param_count; i++)
        if (strcmp(row->param[i].name, name) == 0)
            return &row->param[i];
    return NULL;
}

/* NULL where the op has no such attribute. */
static const lf_attr *attr_or_null(const lf_graph *g, lf_node n, const char *name)
{
    const lf_param_info *p = param_of(g, n, name);
    return p && !is_value(p) ? &g->node[n].attr[p->slot] : NULL;
}

const lf_attr *lf_attr_of(const lf_graph *g, lf_node n, const char *name)
{
    const lf_attr *attr = attr_or_null(g, n, name);
    assert(attr);
    return attr;
}

/* What None stands for, by the name of the parameter that may be None. */
static double number_or_open(const lf_param_info *p, const lf_attr *attr)
{
    if (!attr->none)
        return attr->number;
    if (strcmp(p->name, "min") == 0)
        return -INFINITY;
    if (strcmp(p->name, "max") == 0)
        return INFINITY;
    assert(strcmp(p->name, "eps") == 0);
    return (double)FLT_EPSILON;
}

void lf_op_numbers(const lf_graph *g, lf_node n, double numbers[3])
{
    const lf_op_info *row = lf_op_row(g->node[n].op);
    int count = 0;
    numbers[0] = numbers[1] = numbers[2] = 0.0;
    if (row->kind != LF_POINTWISE && row->kind != LF_NORMALIZE)
        return;
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        bool wanted = row->kind == LF_NORMALIZE ? strcmp(p->name, "eps") == 0 : !is_value(p);
        if (!wanted)
            continue;
        assert(count < 3);
        numbers[count++] = number_or_open(p, &g->node[n].attr[p->slot]);
    }
}

/* ---- spans ---- */

/* dim, or every dim of the list, from the end where negative. */
static unsigned axes_of_dims(const lf_attr *dim, bool list, int rank)
{
    unsigned axes = 0;
    for (int i = 0; i < (list ? dim->count : 1); i++) {
        int64_t d = list ? dim->list[i] : (int64_t)dim->number;
        axes |= 1u << (d < 0 ? d + rank : d);
    }
    return axes;
}

unsigned lf_span_axes(const lf_graph *g, lf_node n)
{
    int rank = g->node[g->node[n].arg[0]].shape.rank;
    unsigned all = (1u << rank) - 1;
    const lf_param_info *dim = param_of(g, n, "dim");
    if (rank == 0 || lf_uses_running_stats(g, n))
        return 0;
    if (lf_kind_of(g, n) == LF_POOL)
        return 1u << (rank - 1);
    if (dim) {
        const lf_attr *attr = &g->node[n].attr[dim->slot];
        bool list = dim->type == 'L';
        return attr->none || (list && attr->count == 0) ? all : axes_of_dims(attr, list, rank);
    }
    if (param_of(g, n, "normalized_shape"))
        return all & ~((1u << (rank - lf_attr_of(g, n, "normalized_shape")->count)) - 1);
    if (param_of(g, n, "num_groups"))
        return all & ~1u;
    if (param_of(g, n, "use_input_stats"))
        return all & ~3u;
    assert(param_of(g, n, "training"));
    return all & ~2u;
}

int64_t lf_segments(const lf_graph *g, lf_node n)
{
    const lf_attr *groups = attr_or_null(g, n, "num_groups");
    return groups ? (int64_t)groups->number : 1;
}

bool lf_uses_running_stats(const lf_graph *g, lf_node n)
{
    if (lf_kind_of(g, n) != LF_NORMALIZE)
        return false;
    const lf_attr *own = attr_or_null(g, n, "use_input_stats");
    if (!own)
        own = attr_or_null(g, n, "training");
    return own && own->number == 0.0;
}

static int given_slot(const lf_graph *g, lf_node n, const char *name)
{
    const lf_param_info *p = param_of(g, n, name);
    return p && is_value(p) && g->node[n].arg[p->slot] != LF_NONE ? p->slot : -1;
}

lf_affine lf_affine_of(const lf_graph *g, lf_node n)
{
    lf_affine affine = {-1, -1, -1, false};
    if (lf_kind_of(g, n) != LF_NORMALIZE || !param_of(g, n, "weight"))
        return affine;
    affine.weight_slot = given_slot(g, n, "weight");
    affine.bias_slot = given_slot(g, n, "bias");
    const lf_attr *trailing = attr_or_null(g, n, "normalized_shape");
    affine.channels = !trailing;
    affine.axis = trailing ? g->node[n].shape.rank - trailing->count : 1;
    return affine;
}

lf_window lf_window_of(const lf_graph *g, lf_node n)
{
    assert(lf_kind_of(g, n) == LF_POOL);
    const lf_attr *stride = lf_attr_of(g, n, "stride"), *dilation = attr_or_null(g, n, "dilation");
    const lf_attr *include = attr_or_null(g, n, "count_include_pad");
    lf_window w = {.kernel = (int64_t)lf_attr_of(g, n, "kernel_size")->number,
                   .padding = (int64_t)lf_attr_of(g, n, "padding")->number,
                   .dilation = dilation ? (int64_t)dilation->number : 1,
                   .include_pad = include && include->number != 0.0};
    w.stride = stride->none ? w.kernel : (int64_t)stride->number;
    return w;
}

/* ---- moves ---- */

/* An end of a slice within [0, extent]; none: where it is open. */
static int64_t slice_end(const lf_attr *end, int64_t extent, int64_t open)
{
    if (end->none)
        return open;
    const double at = end->number < 0.0 ? end->number + (double)extent : end->number;
    return at < 0.0 ? 0 : at > (double)extent ? extent : (int64_t)at;
}

bool lf_slice_run(lf_extent extent, const lf_attr *start, const lf_attr *end, const lf_attr *step, lf_run_of *out)
{
    *out = (lf_run_of){.step = (int64_t)step->number, .count = extent};
    if (out->step < 1)
        return false;
    if (!lf_extent_known(extent))
        return (start->none || start->number == 0.0) && end->none && out->step == 1;
    const int64_t stop = slice_end(end, extent.coef, extent.coef);
    out->start = slice_end(start, extent.coef, 0);
    if (out->start >= stop)
        return false;
    out->count = lf_extent_of((stop - out->start - 1) / out->step + 1);
    return true;
}

static int axis_at(const lf_graph *g, lf_node n, const char *name)
{
    const int64_t axis = (int64_t)lf_attr_of(g, n, name)->number;
    return (int)(axis < 0 ? axis + g->node[n].shape.rank : axis);
}

static lf_run_of run_of(const lf_graph *g, lf_node n)
{
    lf_run_of run;
    const lf_extent extent = g->node[g->node[n].arg[0]].shape.dim[axis_at(g, n, "dim")];
    const bool some = lf_slice_run(extent, lf_attr_of(g, n, "start"), lf_attr_of(g, n, "end"),
                                   lf_attr_of(g, n, "step"), &run);
    assert(some);
    (void)some;
    return run;
}

lf_moved lf_moved_of(const lf_graph *g, lf_node n)
{
    const lf_shape *from = &g->node[g->node[n].arg[0]].shape;
    lf_moved moved = {.first = lf_extent_of(0)};
    lf_broadcast_strides(from, from, moved.stride);
    if (from->rank == 0)
        return moved;
    if (!param_of(g, n, "start")) {
        const int a = axis_at(g, n, "dim0"), b = axis_at(g, n, "dim1");
        const lf_extent swapped = moved.stride[a];
        moved.stride[a] = moved.stride[b];
        moved.stride[b] = swapped;
        moved.turned = a != b;
        return moved;
    }
    const int axis = axis_at(g, n, "dim");
    const lf_run_of run = run_of(g, n);
    bool fits = run.start == 0 || lf_extent_mul(moved.stride[axis], lf_extent_of(run.start), &moved.first);
    fits = fits && lf_extent_mul(moved.stride[axis], lf_extent_of(run.step), &moved.stride[axis]);
    assert(fits); /* an element of a tensor that can be counted */
    (void)fits;
    return moved;
}

unsigned lf_moved_axes(const lf_graph *g, lf_node n)
{
    if (g->node[n].shape.rank == 0)
        return 0;
    if (param_of(g, n, "start"))
        return lf_shape_same(&g->node[n].shape, &g->node[g->node[n].arg[0]].shape) ? 0 : 1u << axis_at(g, n, "dim");
    const int a = axis_at(g, n, "dim0"), b = axis_at(g, n, "dim1");
    return a == b ? 0 : 1u << a | 1u << b;
}

/* ---- the whole graph ---- */

void lf_graph_fixed(const lf_graph *g, bool *fixed)
{
    for (lf_node n = 0; n < g->count; n++) {
        fixed[n] = g->node[n].op != LF_OP_input;
        for (int i = 0; i < LF_MAX_ARGS; i++)
            if (g->node[n].arg[i] != LF_NONE)
                fixed[n] = fixed[n] && fixed[g->node[n].arg[i]];
    }
}

void lf_graph_needed(const lf_graph *g, bool *needed)
{
    for (lf_node n = g->count - 1; n >= 0; n--)
        for (int i = 0; i < LF_MAX_ARGS; i++)
            if (needed[n] && g->node[n].arg[i] != LF_NONE)
                needed[g->node[n].arg[i]] = true;
}
