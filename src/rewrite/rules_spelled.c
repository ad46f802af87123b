/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that models write out by hand. */
#include "rewrite/rules.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Takes a constant factor off a value: c times what is left is what it was. */
static bool peel(const lf_rw *rw, lf_node *n, double *c)
{
    double factor;
    const bool mul = lf_rw_is(rw, *n, LF_OP_mul), div = lf_rw_is(rw, *n, LF_OP_div);
    for (int slot = div ? 1 : 0; slot < (mul || div ? 2 : 0); slot++) {
        if (!lf_rw_constant(rw, lf_rw_arg(rw, *n, slot), &factor) || factor == 0.0)
            continue;
        *c = div ? *c / factor : *c * factor;
        *n = lf_rw_arg(rw, *n, 1 - slot);
        return true;
    }
    return false;
}

/* x * sigmoid(x) = silu(x); x * sigmoid(c * x) = swish(x, c), a quick gelu where c is 1.702. */
static lf_node gated_by_itself(lf_rw *rw, lf_node n, bool scaled)
{
    for (int slot = 0; slot < 2; slot++) {
        const lf_node x = lf_rw_arg(rw, n, slot), gate = lf_rw_arg(rw, n, 1 - slot);
        if (!lf_rw_is(rw, gate, LF_OP_sigmoid) || !lf_rw_sole(rw, gate))
            continue;
        lf_node inside = lf_rw_arg(rw, gate, 0);
        double c = 1.0;
        if ((!scaled || (peel(rw, &inside, &c) && fabs(c) <= FLT_MAX)) && inside == x && lf_rw_same_shape(rw, x, n) &&
            lf_rw_at(rw, x)->dtype == lf_rw_at(rw, n)->dtype)
            return scaled ? lf_rw_with(rw, LF_OP_swish, x, c) : lf_rw_one(rw, LF_OP_silu, x);
    }
    return LF_KEEP;
}

static lf_node silu_by_hand(lf_rw *rw, lf_node n)
{
    return gated_by_itself(rw, n, false);
}

static lf_node swish_by_hand(lf_rw *rw, lf_node n)
{
    return gated_by_itself(rw, n, true);
}

/* ---- gelu ---- */

enum { DEGREE = 3, DEEPEST = 8 };

static bool times(const double *a, const double *b, double *out)
{
    double product[2 * DEGREE + 1] = {0};
    for (int i = 0; i <= DEGREE; i++)
        for (int k = 0; k <= DEGREE; k++)
            product[i + k] += a[i] * b[k];
    for (int i = DEGREE + 1; i <= 2 * DEGREE; i++)
        if (product[i] != 0.0)
            return false;
    memcpy(out, product, (DEGREE + 1) * sizeof *out);
    return true;
}

/* n as a polynomial of x, at most so deep below: its coefficients, from that of x^0 on. */
static bool polynomial(const lf_rw *rw, lf_node n, lf_node x, int depth, double *out)
{
    memset(out, 0, (DEGREE + 1) * sizeof *out);
    if (n == x) {
        out[1] = 1.0;
        return true;
    }
    if (lf_rw_constant(rw, n, out))
        return true;
    double a[DEGREE + 1], b[DEGREE + 1];
    if (depth == 0)
        return false;
    if (lf_rw_is(rw, n, LF_OP_pow))
        return lf_rw_attr(rw, n, "exponent") == 3.0 && polynomial(rw, lf_rw_arg(rw, n, 0), x, depth - 1, a) &&
               times(a, a, b) && times(a, b, out);
    const bool add = lf_rw_is(rw, n, LF_OP_add), mul = lf_rw_is(rw, n, LF_OP_mul), div = lf_rw_is(rw, n, LF_OP_div);
    if (!(add || mul || div) || !polynomial(rw, lf_rw_arg(rw, n, 0), x, depth - 1, a) ||
        !polynomial(rw, lf_rw_arg(rw, n, 1), x, depth - 1, b))
        return false;
    if (mul)
        return times(a, b, out);
    if (div && (b[0] == 0.0 || b[1] != 0.0 || b[2] != 0.0 || b[3] != 0.0))
        return false;
    const double alpha = add ? lf_rw_attr(rw, n, "alpha") : 0.0;
    for (int i = 0; i <= DEGREE; i++)
        out[i] = add ? a[i] + alpha * b[i] : a[i] / b[0];
    return true;
}

/* As models round their constants. */
static bool is_about(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* The function that a gelu of x has inside: erf(x / sqrt(2)), or tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)). */
static bool is_inside(const lf_rw *rw, lf_node f, lf_node x)
{
    double c[DEGREE + 1];
    if (!polynomial(rw, lf_rw_arg(rw, f, 0), x, DEEPEST, c) || c[0] != 0.0 || c[2] != 0.0)
        return false;
    if (lf_rw_is(rw, f, LF_OP_erf))
        return is_about(c[1], 0.70710678118654752) && c[3] == 0.0;
    return is_about(c[1], 0.79788456080286536) && is_about(c[3], 0.79788456080286536 * 0.044715);
}

/* 0.5 * x * (1 + erf(x / sqrt(2))) = gelu(x); with tanh and its cubic inside, gelu(x, "tanh"). The factors may come in
 * any order. */
static lf_node gelu_by_hand(lf_rw *rw, lf_node n)
{
    double half = 1.0;
    lf_node product = n;
    while (peel(rw, &product, &half))
        ;
    if (!lf_rw_is(rw, product, LF_OP_mul))
        return LF_KEEP;
    for (int slot = 0; slot < 2; slot++) {
        double c = half, one;
        lf_node x = lf_rw_arg(rw, product, slot), sum = lf_rw_arg(rw, product, 1 - slot);
        while (peel(rw, &sum, &c))
            ;
        if (!lf_rw_is(rw, sum, LF_OP_add) || lf_rw_attr(rw, sum, "alpha") != 1.0 || !lf_rw_sole(rw, sum))
            continue;
        const int at = lf_rw_constant(rw, lf_rw_arg(rw, sum, 0), &one) ? 0 : 1;
        const lf_node f = lf_rw_arg(rw, sum, 1 - at);
        const bool is_tanh = lf_rw_is(rw, f, LF_OP_tanh);
        if (!lf_rw_constant(rw, lf_rw_arg(rw, sum, at), &one) || one != 1.0 || !(is_tanh || lf_rw_is(rw, f, LF_OP_erf)))
            continue;
        do
            if (is_about(c, 0.5) && is_inside(rw, f, x) && lf_rw_same_shape(rw, x, n))
                return lf_rw_with(rw, LF_OP_gelu, x, is_tanh ? 1.0 : 0.0);
        while (peel(rw, &x, &c));
    }
    return LF_KEEP;
}

/* ---- rms_norm ---- */

/* What n is the square of; LF_NONE: nothing. */
static lf_node squared(const lf_rw *rw, lf_node n)
{
    const lf_node x = lf_rw_arg(rw, n, 0);
    const bool pow = lf_rw_is(rw, n, LF_OP_pow) && lf_rw_attr(rw, n, "exponent") == 2.0;
    return pow || (lf_rw_is(rw, n, LF_OP_mul) && lf_rw_arg(rw, n, 1) == x) ? x : LF_NONE;
}

/* x of mean(x^2) + eps, over the last axis, which stays; LF_NONE: n is something else. */
static lf_node mean_of_squares(const lf_rw *rw, lf_node n, double *eps)
{
    if (!lf_rw_is(rw, n, LF_OP_add) || lf_rw_attr(rw, n, "alpha") != 1.0 || !lf_rw_sole(rw, n))
        return LF_NONE;
    const int at = lf_rw_constant(rw, lf_rw_arg(rw, n, 0), eps) ? 0 : 1;
    const lf_node mean = lf_rw_arg(rw, n, 1 - at);
    if (!lf_rw_constant(rw, lf_rw_arg(rw, n, at), eps) || !lf_rw_is(rw, mean, LF_OP_mean) || !lf_rw_sole(rw, mean) ||
        lf_rw_attr(rw, mean, "keepdim") == 0.0)
        return LF_NONE;
    const lf_node square = lf_rw_arg(rw, mean, 0);
    const int rank = lf_rw_shape(rw, square)->rank;
    return rank > 0 && lf_span_axes(rw->g, mean) == 1u << (rank - 1) ? squared(rw, square) : LF_NONE;
}

/* What n is the square root of, or the inverse of such; LF_NONE: nothing. */
static lf_node root_of(const lf_rw *rw, lf_node n, bool inverse)
{
    const bool is_root = lf_rw_is(rw, n, inverse ? LF_OP_rsqrt : LF_OP_sqrt) ||
                         (lf_rw_is(rw, n, LF_OP_pow) && lf_rw_attr(rw, n, "exponent") == (inverse ? -0.5 : 0.5));
    return is_root && lf_rw_sole(rw, n) ? lf_rw_arg(rw, n, 0) : LF_NONE;
}

/* x * rsqrt(mean(x^2) + eps), or x / sqrt(mean(x^2) + eps) = rms_norm(x, eps). Where only the mean is of x in a wider
 * type, so is the result. */
static lf_node rms_norm_by_hand(lf_rw *rw, lf_node n)
{
    const bool mul = lf_rw_is(rw, n, LF_OP_mul);
    for (int slot = 0; slot < (mul ? 2 : 1); slot++) {
        const lf_node sum = root_of(rw, lf_rw_arg(rw, n, 1 - slot), mul);
        double eps;
        const lf_node x = sum == LF_NONE ? LF_NONE : mean_of_squares(rw, sum, &eps), times = lf_rw_arg(rw, n, slot);
        if (x == LF_NONE || lf_rw_at(rw, x)->dtype != lf_rw_at(rw, n)->dtype ||
            (x != times && !(lf_rw_is(rw, x, LF_OP_to) && lf_rw_arg(rw, x, 0) == times)))
            continue;
        const lf_shape *shape = lf_rw_shape(rw, x);
        const lf_extent features = shape->dim[shape->rank - 1];
        if (!lf_extent_is(features, features.coef))
            continue;
        const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
        const lf_attr attrs[LF_MAX_ATTRS] = {{.count = 1, .list = {features.coef}}, {.number = eps}};
        return lf_rw_make(rw, LF_OP_rms_norm, args, attrs);
    }
    return LF_KEEP;
}

static const lf_rule rules[] = {
    {.info = {"silu_by_hand", "x * sigmoid(x) = silu(x)", LF_REROUNDS},
     .gain = "one function in place of its parts",
     .ops = {LF_OP_mul},
     .apply = silu_by_hand},
    {.info = {"swish_by_hand", "x * sigmoid(c * x) = swish(x, c), a quick gelu where c is 1.702", LF_REROUNDS},
     .gain = "one function in place of its parts",
     .ops = {LF_OP_mul},
     .apply = swish_by_hand},
    {.info = {"gelu_by_hand", "0.5 * x * (1 + erf(x / sqrt(2))) = gelu(x), and with tanh", LF_REROUNDS},
     .gain = "one function in place of its parts",
     .ops = {LF_OP_mul, LF_OP_div},
     .apply = gelu_by_hand},
    {.info = {"rms_norm_by_hand", "x * rsqrt(mean(x^2) + eps) = rms_norm(x, eps)", LF_REROUNDS},
     .gain = "one statistic in place of its parts",
     .ops = {LF_OP_mul, LF_OP_div},
     .apply = rms_norm_by_hand},
};
const lf_rule_table lf_rules_spelled = LF_TABLE(rules);
