/* SPDX-License-Identifier: Apache-2.0 */
/* The pointwise ops, one function each, and the one op that moves elements. A function is written as PyTorch computes
 * the op on float64, so that NaN and Inf land where PyTorch puts them; what looks like a needless detour mostly is
 * that. */
#include "ir/eval_parts.h"

#include <assert.h>
#include <math.h>

/* v: the op's values by slot, one element each. a: the op's numbers (lf_op_numbers). */
typedef double eval_fn(const double *v, const double *a);

/* A NaN x passes, as in torch.clamp; where the ends are crossed the upper one wins. */
static double clamp_to(double x, double low, double high)
{
    double y = x < low ? low : x;
    return y > high ? high : y;
}

/* torch has elu, selu and celu as one: scale * (x > 0 ? x : alpha * expm1(x * inner)). */
static double elu_of(double x, double alpha, double scale, double inner)
{
    return x > 0 ? x * scale : expm1(x * inner) * (alpha * scale);
}

static double eval_relu(const double *v, const double *a)
{
    (void)a;
    return v[0] < 0 ? 0 : v[0];
}

static double eval_leaky_relu(const double *v, const double *a)
{
    return v[0] > 0 ? v[0] : v[0] * a[0];
}

/* -Inf gives NaN (-Inf * 0) in both forms, as in PyTorch. */
static double eval_gelu(const double *v, const double *a)
{
    const double sqrt_half = 0.70710678118654752440, sqrt_2_over_pi = 0.79788456080286535588;
    double x = v[0];
    if (a[0] == 0)
        return x * 0.5 * (1 + erf(x * sqrt_half));
    return x * 0.5 * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

/* Nothing is rounded: in the reference every number is a double, whatever it is stored as. */
static double eval_to(const double *v, const double *a)
{
    (void)a;
    return v[0];
}

static double eval_sigmoid(const double *v, const double *a)
{
    (void)a;
    return 1 / (1 + exp(-v[0]));
}

static double eval_tanh(const double *v, const double *a)
{
    (void)a;
    return tanh(v[0]);
}

static double eval_silu(const double *v, const double *a)
{
    (void)a;
    return v[0] / (1 + exp(-v[0]));
}

static double eval_mish(const double *v, const double *a)
{
    (void)a;
    return v[0] * tanh(log1p(exp(v[0])));
}

static double eval_softplus(const double *v, const double *a)
{
    double z = v[0] * a[0];
    return z > a[1] ? v[0] : log1p(exp(z)) / a[0];
}

static double eval_clamp(const double *v, const double *a)
{
    return clamp_to(v[0], a[0], a[1]);
}

static double eval_hardtanh(const double *v, const double *a)
{
    return clamp_to(v[0], a[0], a[1]);
}

static double eval_hardswish(const double *v, const double *a)
{
    (void)a;
    return v[0] * clamp_to(v[0] + 3, 0, 6) / 6;
}

static double eval_hardsigmoid(const double *v, const double *a)
{
    (void)a;
    return clamp_to(v[0] + 3, 0, 6) / 6;
}

static double eval_elu(const double *v, const double *a)
{
    return elu_of(v[0], a[0], 1, 1);
}

/* The constants of Klambauer, Unterthiner, Mayr, Hochreiter, Self-normalizing neural networks, 2017. */
static double eval_selu(const double *v, const double *a)
{
    (void)a;
    return elu_of(v[0], 1.6732632423543772848, 1.0507009873554804934, 1);
}

static double eval_celu(const double *v, const double *a)
{
    return elu_of(v[0], a[0], 1, 1 / a[0]);
}

static double eval_softsign(const double *v, const double *a)
{
    (void)a;
    return v[0] / (1 + fabs(v[0]));
}

static double eval_logsigmoid(const double *v, const double *a)
{
    (void)a;
    return fmin(v[0], 0) - log1p(exp(-fabs(v[0])));
}

static double eval_hardshrink(const double *v, const double *a)
{
    return v[0] >= -a[0] && v[0] <= a[0] ? 0 : v[0];
}

static double eval_softshrink(const double *v, const double *a)
{
    return v[0] > a[0] ? v[0] - a[0] : v[0] < -a[0] ? v[0] + a[0] : 0 * v[0];
}

static double eval_exp(const double *v, const double *a)
{
    (void)a;
    return exp(v[0]);
}

static double eval_log(const double *v, const double *a)
{
    (void)a;
    return log(v[0]);
}

static double eval_expm1(const double *v, const double *a)
{
    (void)a;
    return expm1(v[0]);
}

static double eval_log1p(const double *v, const double *a)
{
    (void)a;
    return log1p(v[0]);
}

static double eval_erf(const double *v, const double *a)
{
    (void)a;
    return erf(v[0]);
}

static double eval_abs(const double *v, const double *a)
{
    (void)a;
    return fabs(v[0]);
}

static double eval_neg(const double *v, const double *a)
{
    (void)a;
    return -v[0];
}

static double eval_sqrt(const double *v, const double *a)
{
    (void)a;
    return sqrt(v[0]);
}

static double eval_rsqrt(const double *v, const double *a)
{
    (void)a;
    return 1 / sqrt(v[0]);
}

static double eval_reciprocal(const double *v, const double *a)
{
    (void)a;
    return 1 / v[0];
}

/* torch takes roots as roots: (-Inf)^0.5 is NaN and (-0)^-0.5 is -Inf there, where C's pow says +Inf for both. */
static double eval_pow(const double *v, const double *a)
{
    if (a[0] == 0.5)
        return sqrt(v[0]);
    if (a[0] == -0.5)
        return 1 / sqrt(v[0]);
    return pow(v[0], a[0]);
}

/* alpha multiplies even where it is 0: 0 * Inf is NaN. */
static double eval_add(const double *v, const double *a)
{
    return v[0] + a[0] * v[1];
}

static double eval_sub(const double *v, const double *a)
{
    return v[0] - a[0] * v[1];
}

static double eval_mul(const double *v, const double *a)
{
    (void)a;
    return v[0] * v[1];
}

static double eval_div(const double *v, const double *a)
{
    (void)a;
    return v[0] / v[1];
}

static double eval_gt(const double *v, const double *a)
{
    (void)a;
    return v[0] > v[1];
}

static double eval_lt(const double *v, const double *a)
{
    (void)a;
    return v[0] < v[1];
}

static double eval_ge(const double *v, const double *a)
{
    (void)a;
    return v[0] >= v[1];
}

static double eval_le(const double *v, const double *a)
{
    (void)a;
    return v[0] <= v[1];
}

static double eval_eq(const double *v, const double *a)
{
    (void)a;
    return v[0] == v[1];
}

static double eval_ne(const double *v, const double *a)
{
    (void)a;
    return v[0] != v[1];
}

static double eval_logical_and(const double *v, const double *a)
{
    (void)a;
    return v[0] != 0 && v[1] != 0;
}

static double eval_logical_or(const double *v, const double *a)
{
    (void)a;
    return v[0] != 0 || v[1] != 0;
}

static double eval_logical_not(const double *v, const double *a)
{
    (void)a;
    return v[0] == 0;
}

static double eval_where(const double *v, const double *a)
{
    (void)a;
    return v[0] != 0 ? v[1] : v[2];
}

/* NaN on either side wins. */
static double eval_minimum(const double *v, const double *a)
{
    (void)a;
    return v[0] < v[1] || isnan(v[0]) ? v[0] : v[1];
}

static double eval_maximum(const double *v, const double *a)
{
    (void)a;
    return v[0] > v[1] || isnan(v[0]) ? v[0] : v[1];
}

static double eval_swish(const double *v, const double *a)
{
    return v[0] / (1.0 + exp(-v[0] * a[0]));
}

static double eval_equals(const double *v, const double *a)
{
    (void)a;
    return v[0] == v[1];
}

static double eval_pick(const double *v, const double *a)
{
    (void)a;
    return v[1] == 0 ? 0 : v[0];
}

static double eval_label(const double *v, const double *a)
{
    if (v[1] == a[0])
        return 0;
    return v[1] >= 0 && v[1] < a[1] ? v[0] : NAN;
}

/* By op; a POINTWISE row of ops.def without its function here does not compile. */
#define FN_LEAF(name)      NULL
#define FN_PRODUCT(name)   NULL
#define FN_POINTWISE(name) eval_##name
#define FN_REDUCE(name)    NULL
#define FN_NORMALIZE(name) NULL
#define FN_POOL(name)      NULL
#define FN_VIEW(name)      NULL
#define FN_MOVE(name)      NULL
#define FN_LOSS(name)      NULL
#define FN_GUARD(name)     NULL
static eval_fn *const function_of[LF_OP_COUNT] = {
#define LF_OP(name, kind, ...) [LF_OP_##name] = FN_##kind(name),
#include "ir/ops.def"
#undef LF_OP
};

/* Where the elements of each argument lie that meet in one element of the result. */
typedef struct walk {
    int rank, args;
    int64_t extent[LF_MAX_RANK];
    int64_t stride[LF_MAX_ARGS][LF_MAX_RANK]; /* 0 where an argument repeats */
    int64_t index[LF_MAX_RANK];               /* of the row: all axes but the last */
    int64_t at[LF_MAX_ARGS];                  /* of the row's first element */
} walk;

/* On to the next row; the last axis is the caller's loop. */
static void walk_next_row(walk *w)
{
    for (int axis = w->rank - 2; axis >= 0; axis--) {
        for (int k = 0; k < w->args; k++)
            w->at[k] += w->stride[k][axis];
        if (++w->index[axis] < w->extent[axis])
            return;
        w->index[axis] = 0;
        for (int k = 0; k < w->args; k++)
            w->at[k] -= w->stride[k][axis] * w->extent[axis];
    }
}

static int64_t walk_row_length(const walk *w)
{
    return w->rank ? w->extent[w->rank - 1] : 1;
}

static int64_t walk_rows(const walk *w)
{
    int64_t rows = 1;
    for (int axis = 0; axis + 1 < w->rank; axis++)
        rows *= w->extent[axis];
    return rows;
}

/* The result's extents, with every argument broadcast to them. */
static walk walk_broadcast(const lf_site *s)
{
    const lf_node_info *node = lf_at(s->g, s->n);
    walk w = {.rank = node->shape.rank, .args = lf_op_row(node->op)->arg_count};
    for (int axis = 0; axis < w.rank; axis++)
        w.extent[axis] = lf_site_extent(s, s->n, axis);
    for (int k = 0; k < w.args; k++) {
        lf_extent stride[LF_MAX_RANK];
        lf_broadcast_strides(&lf_at(s->g, node->arg[k])->shape, &node->shape, stride);
        for (int axis = 0; axis < w.rank; axis++)
            w.stride[k][axis] = lf_extent_at(stride[axis], s->dims);
    }
    return w;
}

void lf_eval_pointwise(const lf_site *s)
{
    walk w = walk_broadcast(s);
    eval_fn *f = function_of[lf_at(s->g, s->n)->op];
    assert(f);
    double a[3];
    lf_op_numbers(s->g, s->n, a);

    double *out = s->out;
    int64_t length = walk_row_length(&w), rows = walk_rows(&w);
    for (int64_t row = 0; row < rows && length > 0; row++, walk_next_row(&w)) {
        for (int64_t j = 0; j < length; j++) {
            double v[LF_MAX_ARGS];
            for (int k = 0; k < w.args; k++)
                v[k] = lf_read(&s->arg[k], w.at[k] + j * (w.rank ? w.stride[k][w.rank - 1] : 0));
            *out++ = f(v, a);
        }
    }
}

/* The result is walked in order, the argument by strides of its own. */
void lf_eval_move(const lf_site *s)
{
    const lf_node_info *node = lf_at(s->g, s->n);
    const lf_moved moved = lf_moved_of(s->g, s->n);
    walk w = {.rank = node->shape.rank, .args = 1, .at = {lf_extent_at(moved.first, s->dims)}};
    for (int axis = 0; axis < w.rank; axis++) {
        w.extent[axis] = lf_site_extent(s, s->n, axis);
        w.stride[0][axis] = lf_extent_at(moved.stride[axis], s->dims);
    }

    double *out = s->out;
    int64_t length = walk_row_length(&w), rows = walk_rows(&w);
    int64_t step = w.rank ? w.stride[0][w.rank - 1] : 0;
    for (int64_t row = 0; row < rows && length > 0; row++, walk_next_row(&w))
        for (int64_t j = 0; j < length; j++)
            *out++ = lf_read(&s->arg[0], w.at[0] + j * step);
}
