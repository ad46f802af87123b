/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and type inference: PyTorch's rules, one function a rule. A shape's rule belongs to a kind; an op that differs
 * from its kind has one of its own in own_rule. Rules see arguments and attributes already checked one by one. */
#include "base/dtype.h"
#include "base/mem.h"
#include "ir/graph.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One op being inferred. */
typedef struct site {
    const lf_graph *g;
    const lf_op_info *row;
    const lf_node *arg;  /* by slot */
    const lf_attr *attr; /* by slot */
    const lf_shape *x;   /* of argument 0 */
    lf_shape *out;
} site;

typedef lf_status rule(const site *s);

__attribute__((format(printf, 2, 3))) static lf_status wrong(const site *s, const char *fmt, ...)
{
    char text[1536];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    return lf_fail(s->g->diag, LF_ERR_MODEL, "%s: %s", s->row->name, text);
}

/* ---- reading a site ---- */

static const lf_shape *shape_of(const site *s, int slot)
{
    return &s->g->node[s->arg[slot]].shape;
}

static const lf_param_info *param_of_arg(const site *s, int slot)
{
    for (int i = 0; i < s->row->param_count; i++) {
        const lf_param_info *p = &s->row->param[i];
        if ((p->type == 'T' || p->type == 'V') && p->slot == slot)
            return p;
    }
    assert(!"no such argument");
    return NULL;
}

/* "weight w [64, 32]" */
static const char *text_of(const site *s, int slot)
{
    const lf_node_info *n = &s->g->node[s->arg[slot]];
    const char *text =
        lf_arena_printf(s->g->arena, "%s %s %s", param_of_arg(s, slot)->name, n->name, lf_shape_text(s->g, &n->shape));
    return text ? text : "an argument";
}

static const lf_attr *attr_of(const site *s, const char *name)
{
    for (int i = 0; i < s->row->param_count; i++) {
        const lf_param_info *p = &s->row->param[i];
        if (p->type != 'T' && p->type != 'V' && strcmp(p->name, name) == 0)
            return &s->attr[p->slot];
    }
    return NULL;
}

static int64_t integer_of(const site *s, const char *name)
{
    return (int64_t)attr_of(s, name)->number;
}

/* A dim counts from the end when negative; a value of rank 0 has dims 0 and -1, as in PyTorch. */
static lf_status axis_of(const site *s, const char *what, int64_t dim, int rank, int *axis)
{
    int axes = rank > 0 ? rank : 1;
    if (dim < -axes || dim >= axes)
        return wrong(s, "%s %lld is out of range for %s; it runs from %d to %d", what, (long long)dim, text_of(s, 0),
                     -axes, axes - 1);
    *axis = (int)(dim < 0 ? dim + axes : dim);
    return LF_OK;
}

static lf_status axes_of(const site *s, const lf_attr *dims, unsigned *axes)
{
    *axes = 0;
    for (int i = 0; i < dims->count; i++) {
        int axis = 0;
        lf_status status = axis_of(s, "dim", dims->list[i], s->x->rank, &axis);
        if (status)
            return status;
        if (*axes & 1u << axis)
            return wrong(s, "dim %d appears twice in dim", axis);
        *axes |= 1u << axis;
    }
    return LF_OK;
}

/* ---- pointwise ---- */

/* Trailing extents are aligned; 1 stretches. */
static bool broadcast(const lf_shape *a, const lf_shape *b, lf_shape *out)
{
    const lf_shape *large = a->rank >= b->rank ? a : b, *small = large == a ? b : a;
    lf_shape result = *large;
    int shift = large->rank - small->rank;
    for (int i = 0; i < small->rank; i++) {
        lf_extent e = small->dim[i], *to = &result.dim[i + shift];
        if (lf_extent_is(*to, 1))
            *to = e;
        else if (!lf_extent_is(e, 1) && !lf_extent_same(e, *to))
            return false;
    }
    *out = result;
    return true;
}

static lf_status pointwise(const site *s)
{
    *s->out = *s->x;
    for (int i = 1; i < s->row->arg_count; i++)
        if (s->arg[i] != LF_NONE && !broadcast(s->out, shape_of(s, i), s->out))
            return wrong(s, "%s and %s do not broadcast", text_of(s, 0), text_of(s, i));
    return LF_OK;
}

static lf_status clamp(const site *s)
{
    if (attr_of(s, "min")->none && attr_of(s, "max")->none)
        return wrong(s, "min and max are both missing; it wants one at least");
    return pointwise(s);
}

static lf_status hardtanh(const site *s)
{
    double low = attr_of(s, "min_val")->number, high = attr_of(s, "max_val")->number;
    if (low > high)
        return wrong(s, "min_val %g is greater than max_val %g", low, high);
    return pointwise(s);
}

static lf_status celu(const site *s)
{
    if (attr_of(s, "alpha")->number == 0.0)
        return wrong(s, "alpha is 0, and celu divides by it");
    return pointwise(s);
}

static lf_status guard(const site *s)
{
    if (!broadcast(s->x, shape_of(s, 1), s->out) || !lf_shape_same(s->x, s->out))
        return wrong(s, "%s does not broadcast to %s", text_of(s, 1), text_of(s, 0));
    return LF_OK;
}

/* ---- products ---- */

/* input [..., K], and a right side whose axis k is K and axis n is N. */
static lf_status product(const site *s, int k, int n)
{
    const lf_shape *w = shape_of(s, 1);
    if (w->rank != 2)
        return wrong(s, "%s has rank %d; only 2-D is supported", text_of(s, 1), w->rank);
    if (s->x->rank < 2)
        return wrong(s, "%s has rank %d; it wants 2 or more", text_of(s, 0), s->x->rank);
    if (!lf_extent_same(s->x->dim[s->x->rank - 1], w->dim[k]))
        return wrong(s, "%s wants input [..., %s], but input %s is %s", text_of(s, 1),
                     lf_extent_text(s->g, w->dim[k]), s->g->node[s->arg[0]].name, lf_shape_text(s->g, s->x));
    *s->out = *s->x;
    s->out->dim[s->x->rank - 1] = w->dim[n];
    return LF_OK;
}

static lf_status linear(const site *s)
{
    lf_status status = product(s, 1, 0);
    if (status || s->arg[2] == LF_NONE)
        return status;
    const lf_shape *bias = shape_of(s, 2);
    lf_extent outputs = shape_of(s, 1)->dim[0];
    if (bias->rank != 1 || !lf_extent_same(bias->dim[0], outputs))
        return wrong(s, "%s wants bias [%s], but it has %s", text_of(s, 1), lf_extent_text(s->g, outputs),
                     text_of(s, 2));
    return LF_OK;
}

static lf_status matmul(const site *s)
{
    return product(s, 0, 1);
}

/* ---- reductions ---- */

/* Values beside the first that are not put into the statistic have the result's extents, or broadcast to them. */
static lf_status check_beside(const site *s)
{
    lf_shape wide;
    for (int i = 1; i < s->row->arg_count; i++)
        if (!broadcast(s->out, shape_of(s, i), &wide) || !lf_shape_same(&wide, s->out))
            return wrong(s, "%s does not broadcast to %s", text_of(s, i), lf_shape_text(s->g, s->out));
    return LF_OK;
}

static lf_status reduce(const site *s)
{
    const lf_attr *dims = attr_of(s, "dim");
    bool keep = attr_of(s, "keepdim")->number != 0.0;
    bool optional = s->row->param[1].optional;
    unsigned axes = ~0u; /* PyTorch: None and the empty list mean all, where None is allowed */
    if (!dims->none && dims->count > 0) {
        lf_status status = axes_of(s, dims, &axes);
        if (status)
            return status;
    } else if (!optional) {
        return wrong(s, "dim is an empty list");
    }
    *s->out = (lf_shape){0};
    for (int i = 0; i < s->x->rank; i++) {
        bool gone = axes & 1u << i;
        if (!gone || keep)
            s->out->dim[s->out->rank++] = gone ? lf_extent_of(1) : s->x->dim[i];
    }
    return check_beside(s);
}

/* ---- normalizations ---- */

static lf_status softmax(const site *s)
{
    int axis;
    *s->out = *s->x;
    return axis_of(s, "dim", integer_of(s, "dim"), s->x->rank, &axis);
}

/* A weight or bias, where given, has exactly these extents. */
static lf_status check_vector(const site *s, int slot, const lf_shape *wants)
{
    if (s->arg[slot] == LF_NONE || lf_shape_same(shape_of(s, slot), wants))
        return LF_OK;
    return wrong(s, "%s has to be %s for %s", text_of(s, slot), lf_shape_text(s->g, wants), text_of(s, 0));
}

/* Every value argument after the first is such a vector: weights, biases, running statistics. */
static lf_status check_vectors(const site *s, const lf_shape *wants)
{
    lf_status status = LF_OK;
    for (int i = 1; !status && i < s->row->arg_count; i++)
        status = check_vector(s, i, wants);
    *s->out = *s->x;
    return status;
}

static lf_status trailing_norm(const site *s)
{
    const lf_attr *list = attr_of(s, "normalized_shape");
    lf_shape wants = {.rank = list->count};
    if (list->count == 0)
        return wrong(s, "normalized_shape is empty");
    for (int i = 0; i < list->count; i++)
        wants.dim[i] = lf_extent_of(list->list[i]);
    bool fits = wants.rank <= s->x->rank;
    for (int i = 0; fits && i < wants.rank; i++)
        fits = lf_extent_same(wants.dim[i], s->x->dim[s->x->rank - wants.rank + i]);
    if (!fits)
        return wrong(s, "normalized_shape %s is not how %s ends", lf_shape_text(s->g, &wants), text_of(s, 0));
    return check_vectors(s, &wants);
}

/* Normalizations by channel: axis 1. */
static lf_status check_channels(const site *s)
{
    if (s->x->rank < 2)
        return wrong(s, "%s has rank %d; it wants 2 or more, channels second", text_of(s, 0), s->x->rank);
    const lf_shape wants = {.rank = 1, .dim = {s->x->dim[1]}};
    return check_vectors(s, &wants);
}

/* Fails when the extents from axis `from` on and `first` are known to multiply to 1: a statistic of one value. */
static lf_status check_several(const site *s, lf_extent first, const char *what)
{
    bool one = lf_extent_is(first, 1);
    for (int i = 2; i < s->x->rank; i++)
        one = one && lf_extent_is(s->x->dim[i], 1);
    return one ? wrong(s, "%s has one value a %s; a statistic wants more", text_of(s, 0), what) : LF_OK;
}

static lf_status check_running(const site *s, bool used)
{
    for (int i = 1; used && i <= 2; i++)
        if (s->arg[i] == LF_NONE)
            return wrong(s, "%s is needed unless the statistics are the batch's own", param_of_arg(s, i)->name);
    return LF_OK;
}

static lf_status group_norm(const site *s)
{
    int64_t groups = integer_of(s, "num_groups");
    lf_status status = check_channels(s);
    if (status)
        return status;
    lf_extent channels = s->x->dim[1], each;
    if (!lf_extent_known(channels))
        return wrong(s, "%s: the channels, extent 1, have to be a number", text_of(s, 0));
    if (groups < 1 || channels.coef % groups != 0)
        return wrong(s, "%lld channels of %s do not divide into num_groups %lld", (long long)channels.coef,
                     text_of(s, 0), (long long)groups);
    /* PyTorch counts the batch in: with B rows there are B * C / groups * ... values, and only 1 is refused. */
    if (!lf_extent_mul(s->x->dim[0], lf_extent_of(channels.coef / groups), &each))
        return LF_OK;
    return check_several(s, each, "group");
}

static lf_status instance_norm(const site *s)
{
    bool own = attr_of(s, "use_input_stats")->number != 0.0;
    lf_status status = check_channels(s);
    if (!status)
        status = check_running(s, !own);
    if (!status && own && s->x->rank < 3)
        status = wrong(s, "%s has rank %d; it wants 3 or more: batch, channels, and what is normalized", text_of(s, 0),
                       s->x->rank);
    if (!status && own)
        status = check_several(s, lf_extent_of(1), "channel");
    return status;
}

static lf_status batch_norm(const site *s)
{
    bool training = attr_of(s, "training")->number != 0.0;
    lf_status status = check_channels(s);
    if (!status && attr_of(s, "eps")->number < 0.0)
        status = wrong(s, "eps is %g; it wants 0 or more", attr_of(s, "eps")->number);
    if (!status)
        status = check_running(s, !training);
    if (!status && training)
        status = check_several(s, s->x->dim[0], "channel");
    return status;
}

/* ---- losses ---- */

/* Classes and an ignored index stay below this where f32 holds every integer. */
#define LARGEST_POSITION 16777216

static lf_status check_target(const site *s, int classes)
{
    const lf_node_info *target = &s->g->node[s->arg[1]];
    lf_shape wants = {0};
    for (int i = 0; i < s->x->rank; i++)
        if (i != classes)
            wants.dim[wants.rank++] = s->x->dim[i];
    if (target->dtype != LF_I64)
        return wrong(s, "%s is %s; it counts classes, which takes i64", text_of(s, 1), lf_dtype_name(target->dtype));
    if (!lf_shape_same(&target->shape, &wants))
        return wrong(s, "%s has to be %s for %s", text_of(s, 1), lf_shape_text(s->g, &wants), text_of(s, 0));
    return LF_OK;
}

/* Classes are axis 1, or 0 where there is no other; a target for each of what is left. */
static lf_status cross_entropy(const site *s)
{
    const double smoothing = attr_of(s, "label_smoothing")->number, ignored = attr_of(s, "ignore_index")->number;
    const int axis = s->x->rank > 1;
    if (s->x->rank == 0)
        return wrong(s, "%s has no extents; classes are extent 1, or 0 where there is no other", text_of(s, 0));
    const lf_extent classes = s->x->dim[axis];
    if (!lf_extent_known(classes))
        return wrong(s, "%s: the classes, extent %d, have to be a number", text_of(s, 0), axis);
    if (classes.coef > LARGEST_POSITION)
        return wrong(s, "%s has more than %d classes, the most there can be", text_of(s, 0), LARGEST_POSITION);
    if (ignored < -LARGEST_POSITION || ignored > LARGEST_POSITION)
        return wrong(s, "ignore_index is %.0f; it lies between -%d and %d", ignored, LARGEST_POSITION,
                     LARGEST_POSITION);
    if (smoothing < 0.0 || smoothing > 1.0)
        return wrong(s, "label_smoothing is %g; it lies between 0 and 1", smoothing);
    lf_status status = check_target(s, axis);
    if (!status)
        status = check_vector(s, 2, &(lf_shape){.rank = 1, .dim = {classes}});
    *s->out = s->g->node[s->arg[1]].shape;
    if (attr_of(s, "reduction")->number < 2.0) /* mean, sum */
        s->out->rank = 0;
    return status;
}

/* ---- pools ---- */

/* How many windows fit, as PyTorch counts them (pooling_output_shape); 0 or less when none does, -1 on overflow. */
static int64_t window_count(int64_t length, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                            bool ceil_mode)
{
    int64_t reach, room;
    if (!lf_mul_i64(dilation, kernel - 1, &reach) || !lf_add_i64(length + 2 * padding - 1, -reach, &room))
        return -1;
    room += ceil_mode ? stride - 1 : 0;
    int64_t count = room < 0 ? 0 : room / stride + 1;
    /* The last window starts inside the input or its left padding. */
    if (ceil_mode && count > 0 && (count - 1) * stride >= length + padding)
        count--;
    return count;
}

static lf_status pool(const site *s)
{
    const lf_attr *given_stride = attr_of(s, "stride"), *given_dilation = attr_of(s, "dilation");
    int64_t kernel = integer_of(s, "kernel_size"), padding = integer_of(s, "padding");
    int64_t stride = given_stride->none ? kernel : (int64_t)given_stride->number;
    int64_t dilation = given_dilation ? (int64_t)given_dilation->number : 1;
    int rank = s->x->rank;
    if (rank != 2 && rank != 3)
        return wrong(s, "%s has rank %d; it wants 2 or 3", text_of(s, 0), rank);
    lf_extent length = s->x->dim[rank - 1];
    if (!lf_extent_known(length))
        return wrong(s, "the last extent of %s has to be a number", text_of(s, 0));
    if (kernel < 1 || stride < 1 || dilation < 1)
        return wrong(s, "kernel_size %lld, stride %lld and dilation %lld have to be 1 or more", (long long)kernel,
                     (long long)stride, (long long)dilation);
    if (padding < 0 || padding > kernel / 2)
        return wrong(s, "padding %lld has to lie between 0 and half of kernel_size %lld", (long long)padding,
                     (long long)kernel);
    int64_t count =
        window_count(length.coef, kernel, stride, padding, dilation, attr_of(s, "ceil_mode")->number != 0.0);
    if (count < 1)
        return wrong(s, "no window of kernel_size %lld, dilation %lld fits the last extent of %s with padding %lld",
                     (long long)kernel, (long long)dilation, text_of(s, 0), (long long)padding);
    *s->out = *s->x;
    s->out->dim[rank - 1] = lf_extent_of(count);
    return LF_OK;
}

/* ---- views ---- */

static lf_status same(const site *s)
{
    *s->out = *s->x;
    return LF_OK;
}

static lf_status dropout(const site *s)
{
    double p = attr_of(s, "p")->number;
    if (p < 0.0 || p > 1.0)
        return wrong(s, "p is %g; it lies between 0 and 1", p);
    if (p > 0.0 && attr_of(s, "training")->number != 0.0)
        return wrong(s, "dropout in training is random; pass training=false");
    return same(s);
}

static lf_status reshape(const site *s)
{
    const lf_attr *list = attr_of(s, "shape");
    lf_extent have, rest = lf_extent_of(1);
    int open = -1;
    bool fits = lf_shape_elements(s->x, &have);
    s->out->rank = list->count;
    for (int i = 0; i < list->count; i++) {
        s->out->dim[i] = lf_extent_of(list->list[i]);
        if (list->list[i] == -1 && open >= 0)
            return wrong(s, "shape has more than one -1");
        if (list->list[i] == -1)
            open = i;
        else if (list->list[i] < 1)
            return wrong(s, "shape has %lld in it; an extent is a positive number, or -1 once",
                         (long long)list->list[i]);
        else
            fits = fits && lf_extent_mul(rest, s->out->dim[i], &rest);
    }
    if (open >= 0)
        fits = fits && lf_extent_div(have, rest, &s->out->dim[open]);
    else
        fits = fits && lf_extent_same(have, rest);
    if (fits)
        return LF_OK;
    const char *asked = lf_shape_text(s->g, s->out);
    if (!lf_extent_known(have) && open < 0)
        return wrong(s, "shape %s does not hold the %s elements of %s; -1 stands for the extent with a name in it",
                     asked, lf_extent_text(s->g, have), text_of(s, 0));
    return wrong(s, "shape %s does not hold the %s elements of %s", asked, lf_extent_text(s->g, have), text_of(s, 0));
}

static lf_status squeeze(const site *s)
{
    const lf_attr *dims = attr_of(s, "dim");
    unsigned axes = ~0u;
    lf_status status = dims->none ? LF_OK : axes_of(s, dims, &axes);
    if (status)
        return status;
    *s->out = (lf_shape){0};
    for (int i = 0; i < s->x->rank; i++) /* a named extent stays: it is not known to be 1 */
        if (!(axes & 1u << i && lf_extent_is(s->x->dim[i], 1)))
            s->out->dim[s->out->rank++] = s->x->dim[i];
    return LF_OK;
}

static lf_status unsqueeze(const site *s)
{
    int axis = 0, rank = s->x->rank;
    if (rank == LF_MAX_RANK)
        return wrong(s, "%s has %d extents already, the most there can be", text_of(s, 0), rank);
    lf_status status = axis_of(s, "dim", integer_of(s, "dim"), rank + 1, &axis);
    if (status)
        return status;
    *s->out = (lf_shape){.rank = rank + 1};
    for (int i = 0, from = 0; i <= rank; i++)
        s->out->dim[i] = i == axis ? lf_extent_of(1) : s->x->dim[from++];
    return LF_OK;
}

static lf_status flatten(const site *s)
{
    int start = 0, end = 0;
    lf_status status = axis_of(s, "start_dim", integer_of(s, "start_dim"), s->x->rank, &start);
    if (!status)
        status = axis_of(s, "end_dim", integer_of(s, "end_dim"), s->x->rank, &end);
    if (status)
        return status;
    if (start > end)
        return wrong(s, "start_dim %d comes after end_dim %d", start, end);
    *s->out = (lf_shape){0};
    lf_extent run = lf_extent_of(1);
    for (int i = 0; i < s->x->rank || i == 0; i++) { /* rank 0 becomes [1] */
        lf_extent e = i < s->x->rank ? s->x->dim[i] : lf_extent_of(1);
        if (i >= start && i <= end && !lf_extent_mul(run, e, &run))
            return wrong(s, "%s has too many elements", text_of(s, 0));
        if (i < start || i > end)
            s->out->dim[s->out->rank++] = e;
        else if (i == end)
            s->out->dim[s->out->rank++] = run;
    }
    return LF_OK;
}

static lf_status transpose(const site *s)
{
    int a = 0, b = 0;
    lf_status status = axis_of(s, "dim0", integer_of(s, "dim0"), s->x->rank, &a);
    if (!status)
        status = axis_of(s, "dim1", integer_of(s, "dim1"), s->x->rank, &b);
    if (status)
        return status;
    *s->out = *s->x;
    if (s->x->rank > 0) {
        s->out->dim[a] = s->x->dim[b];
        s->out->dim[b] = s->x->dim[a];
    }
    return LF_OK;
}

static lf_status slice(const site *s)
{
    const lf_attr *start = attr_of(s, "start"), *end = attr_of(s, "end"), *step = attr_of(s, "step");
    int axis = 0;
    lf_run_of run;
    if (s->x->rank == 0)
        return wrong(s, "%s is one number, which has no parts", text_of(s, 0));
    lf_status status = axis_of(s, "dim", integer_of(s, "dim"), s->x->rank, &axis);
    if (status)
        return status;
    const lf_extent extent = s->x->dim[axis];
    if (step->number < 1.0)
        return wrong(s, "step is %g; it wants 1 or more", step->number);
    *s->out = *s->x;
    if (lf_slice_run(extent, start, end, step, &run)) {
        s->out->dim[axis] = run.count;
        return LF_OK;
    }
    if (!lf_extent_known(extent))
        return wrong(s, "extent %d of %s has a name; only one that is a number can be cut", axis, text_of(s, 0));
    return wrong(s, "nothing of extent %d of %s lies between start and end", axis, text_of(s, 0));
}

/* ---- which rule ---- */

static rule *const kind_rule[] = {
    [LF_POINTWISE] = pointwise, [LF_REDUCE] = reduce, [LF_NORMALIZE] = softmax,
    [LF_POOL] = pool,           [LF_VIEW] = same,     [LF_GUARD] = guard,
};

static rule *const own_rule[LF_OP_COUNT] = {
    [LF_OP_linear] = linear,
    [LF_OP_matmul] = matmul,
    [LF_OP_clamp] = clamp,
    [LF_OP_hardtanh] = hardtanh,
    [LF_OP_celu] = celu,
    [LF_OP_layer_norm] = trailing_norm,
    [LF_OP_rms_norm] = trailing_norm,
    [LF_OP_group_norm] = group_norm,
    [LF_OP_instance_norm] = instance_norm,
    [LF_OP_batch_norm] = batch_norm,
    [LF_OP_cross_entropy] = cross_entropy,
    [LF_OP_dropout] = dropout,
    [LF_OP_reshape] = reshape,
    [LF_OP_squeeze] = squeeze,
    [LF_OP_unsqueeze] = unsqueeze,
    [LF_OP_flatten] = flatten,
    [LF_OP_transpose] = transpose,
    [LF_OP_slice] = slice,
};

/* Views, the target of a loss, and what losses are made of. */
static bool takes_positions(const site *s, int slot)
{
    return s->row->kind == LF_VIEW || (slot == 1 && (s->row->kind == LF_LOSS || s->row->laws & LF_LAW_HIDDEN));
}

static lf_status check_args(const site *s)
{
    for (int i = 0; i < s->row->arg_count; i++) {
        const lf_param_info *p = param_of_arg(s, i);
        if (s->arg[i] == LF_NONE && p->optional)
            continue;
        if (s->arg[i] == LF_NONE)
            return wrong(s, "%s is missing", p->name);
        if (s->arg[i] < 0 || s->arg[i] >= s->g->count)
            return wrong(s, "%s is value %d, which is not one of this graph's", p->name, (int)s->arg[i]);
    }
    for (int i = 0; i < s->row->arg_count; i++)
        if (s->arg[i] != LF_NONE && !lf_dtype_is_float(s->g->node[s->arg[i]].dtype) && !takes_positions(s, i))
            return wrong(s, "%s is %s, which counts positions; it takes f32, f16 or bf16", text_of(s, i),
                         lf_dtype_name(s->g->node[s->arg[i]].dtype));
    return LF_OK;
}

/* ---- types ---- */

/* PyTorch's promotion: of two types the one that holds both's numbers, f32 for the two narrow ones. Values of rank 0
 * count only where no other has extents; numbers written in the model, and positions, do not count. */
static lf_dtype promoted(const site *s)
{
    lf_dtype type[2] = {LF_F32, LF_F32}; /* of rank 0, of higher ranks */
    bool any[2] = {false, false};
    for (int i = 0; i < s->row->arg_count; i++) {
        const lf_node_info *arg = s->arg[i] == LF_NONE ? NULL : &s->g->node[s->arg[i]];
        const bool chooses = strcmp(param_of_arg(s, i)->name, "condition") == 0; /* between the others, as they are */
        if (!arg || arg->op == LF_OP_constant || chooses || !lf_dtype_is_float(arg->dtype))
            continue;
        const int ranked = arg->shape.rank > 0;
        type[ranked] = any[ranked] && type[ranked] != arg->dtype ? LF_F32 : arg->dtype;
        any[ranked] = true;
    }
    return type[any[1]];
}

/* What its first argument is, but where that is a constant. */
static lf_dtype type_of_first(const site *s)
{
    for (int i = 0; i < s->row->arg_count; i++)
        if (s->arg[i] != LF_NONE && s->g->node[s->arg[i]].op != LF_OP_constant)
            return s->g->node[s->arg[i]].dtype;
    return LF_F32;
}

static lf_dtype type_of(const site *s, lf_op op)
{
    if (op == LF_OP_to) { /* its choices are names of types */
        const char *name = s->row->param[1].choice[(int)attr_of(s, "dtype")->number];
        lf_dtype type = LF_F32;
        bool known = lf_dtype_parse(name, strlen(name), &type);
        assert(known);
        (void)known;
        return type;
    }
    return s->row->kind == LF_POINTWISE ? promoted(s) : type_of_first(s);
}

static lf_status check_attrs(const site *s)
{
    lf_status status = LF_OK;
    for (int i = 0; !status && i < s->row->param_count; i++) {
        const lf_param_info *p = &s->row->param[i];
        if (p->type != 'T' && p->type != 'V')
            status = lf_attr_check(s->row, p, &s->attr[p->slot], s->g->diag);
    }
    return status;
}

lf_status lf_infer(const lf_graph *g, lf_op op, const lf_node *args, const lf_attr *attrs, lf_dtype *dtype,
                   lf_shape *shape)
{
    *shape = (lf_shape){0};
    site s = {.g = g, .row = lf_op_row(op), .arg = args, .attr = attrs, .out = shape};
    assert(s.row->kind != LF_LEAF);
    lf_status status = check_args(&s);
    if (!status)
        status = check_attrs(&s);
    if (status)
        return status;
    s.x = shape_of(&s, 0);
    *dtype = type_of(&s, op);
    rule *infer = own_rule[op] ? own_rule[op] : kind_rule[s.row->kind];
    assert(infer);
    status = infer(&s);
    if (status)
        return status;
    for (int i = shape->rank; i < LF_MAX_RANK; i++)
        shape->dim[i] = (lf_extent){0};
    lf_extent all;
    if (!lf_shape_elements(shape, &all) || all.coef > LF_MAX_ELEMENTS)
        return wrong(&s, "the result %s has too many elements", lf_shape_text(g, shape));
    return LF_OK;
}
