/* SPDX-License-Identifier: Apache-2.0 */
/* Ops of one value that meet their own kind: clamps, slopes, signs. */
#include "rewrite/rules.h"

#include <float.h>
#include <math.h>

/* relu, clamp and hardtanh hold a value between two ends. */
static bool ends_of(const lf_rw *rw, lf_node n, double *low, double *high)
{
    double ends[3] = {0, INFINITY};
    if (lf_rw_is(rw, n, LF_OP_clamp) || lf_rw_is(rw, n, LF_OP_hardtanh))
        lf_op_numbers(rw->g, n, ends);
    else if (!lf_rw_is(rw, n, LF_OP_relu))
        return false;
    *high = ends[1];
    *low = ends[0] > ends[1] ? ends[1] : ends[0]; /* ends that cross hold at the upper one */
    return true;
}

static double held(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* clamp(clamp(x, a, b), c, d) = clamp(x, clamp(a, c, d), clamp(b, c, d)), and so for relu and hardtanh */
static lf_node clamp_of_clamp(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    double a, b, c, d;
    if (!ends_of(rw, inner, &a, &b) || !ends_of(rw, n, &c, &d))
        return LF_KEEP;
    double low = held(a, c, d), high = held(b, c, d);
    if (low == a && high == b)
        return inner;
    lf_node x = lf_rw_arg(rw, inner, 0);
    bool relu = low == 0.0 && !signbit(low) && high == INFINITY;
    return relu ? lf_rw_one(rw, LF_OP_relu, x) : lf_rw_clamp(rw, x, low, high);
}

/* f(f(x)) = f(x) for an idempotent f */
static lf_node idempotent(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    if (!(lf_op_row(lf_rw_at(rw, n)->op)->laws & LF_LAW_IDEMPOTENT) || !lf_rw_is(rw, inner, lf_rw_at(rw, n)->op))
        return LF_KEEP;
    return lf_rw_alike(rw, lf_rw_like(rw, n, 0, lf_rw_arg(rw, inner, 0)), inner) ? inner : LF_KEEP;
}

/* x >= 0: relu(x) = x; abs(x) = x where that is never -0; leaky_relu(x, a) = x where a leaves a zero its sign */
static lf_node of_nonnegative(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0);
    if (!lf_rw_nonnegative(rw, x) || (lf_rw_is(rw, n, LF_OP_abs) && !lf_rw_never_minus_zero(rw, x)))
        return LF_KEEP;
    return lf_rw_is(rw, n, LF_OP_leaky_relu) && signbit(lf_rw_attr(rw, n, "negative_slope")) ? LF_KEEP : x;
}

/* -(-x) = x */
static lf_node neg_of_neg(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    return lf_rw_is(rw, inner, LF_OP_neg) ? lf_rw_arg(rw, inner, 0) : LF_KEEP;
}

/* |-x| = |x| */
static lf_node abs_of_neg(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    return lf_rw_is(rw, inner, LF_OP_neg) ? lf_rw_one(rw, LF_OP_abs, lf_rw_arg(rw, inner, 0)) : LF_KEEP;
}

/* leaky_relu(leaky_relu(x, a), b) = leaky_relu(x, a b) for a >= 0: what was negative still is, and is multiplied twice.
 * For a < 0 it has become positive and the second lets it pass: leaky_relu(x, a).
 * A product too small for f32 would make 0 of a slope, and NaN of -Inf times it: refused. -Inf * 0 is NaN either way.
 */
static lf_node leaky_relu_twice(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    if (!lf_rw_is(rw, inner, LF_OP_leaky_relu))
        return LF_KEEP;
    double a = lf_rw_attr(rw, inner, "negative_slope"), b = lf_rw_attr(rw, n, "negative_slope");
    double slope = a < 0 ? a : a * b;
    bool zero = a == 0.0 || b == 0.0;
    if (a >= 0 && !zero && !(fabs(slope) >= FLT_MIN && fabs(slope) <= FLT_MAX))
        return lf_rw_refuse(rw, "slopes %g and %g multiply to %g, which f32 does not hold", a, b, slope);
    lf_rw_why(rw, "slopes %g and %g make one of %g", a, b, slope);
    return lf_rw_with(rw, LF_OP_leaky_relu, lf_rw_arg(rw, inner, 0), slope);
}

static const lf_rule rules[] = {
    {.info = {"clamp_of_clamp",
              "clamp(clamp(x, a, b), c, d) = clamp(x, clamp(a, c, d), clamp(b, c, d)); relu and hardtanh too",
              LF_EXACT},
     .gain = "two clamps become one",
     .ops = {LF_OP_relu, LF_OP_clamp, LF_OP_hardtanh},
     .apply = clamp_of_clamp},
    {.info = {"idempotent", "f(f(x)) = f(x) for an idempotent f", LF_EXACT},
     .gain = "once is as good as twice",
     .kinds = LF_KIND(LF_POINTWISE),
     .apply = idempotent},
    {.info = {"of_nonnegative", "x >= 0: relu(x) = abs(x) = leaky_relu(x, a) = x", LF_EXACT},
     .gain = "its argument is never negative",
     .ops = {LF_OP_relu, LF_OP_abs, LF_OP_leaky_relu},
     .apply = of_nonnegative},
    {.info = {"neg_of_neg", "-(-x) = x", LF_EXACT},
     .gain = "two signs cancel",
     .ops = {LF_OP_neg},
     .apply = neg_of_neg,
     .in_fixed = true},
    {.info = {"abs_of_neg", "|-x| = |x|", LF_EXACT},
     .gain = "the sign goes anyway",
     .ops = {LF_OP_abs},
     .apply = abs_of_neg},
    {.info = {"leaky_relu_twice", "leaky_relu(leaky_relu(x, a), b) = leaky_relu(x, a < 0 ? a : a b)", LF_REROUNDS},
     .ops = {LF_OP_leaky_relu},
     .apply = leaky_relu_twice},
};
const lf_rule_table lf_rules_clamp = LF_TABLE(rules);
