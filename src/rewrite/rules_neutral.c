/* SPDX-License-Identifier: Apache-2.0 */
/* Neutral elements and constants. */
#include "rewrite/rules.h"

#include <math.h>
#include <string.h>

static bool is_number(const lf_rw *rw, lf_node n, double number)
{
    double value;
    return lf_rw_constant(rw, n, &value) && value == number;
}

/* n's argument, where it has n's shape. */
static lf_node whole(const lf_rw *rw, lf_node n, int slot)
{
    lf_node arg = lf_rw_arg(rw, n, slot);
    return lf_rw_same_shape(rw, arg, n) ? arg : LF_KEEP;
}

/* x + -0 = -0 + x = x - 0 = x; the other zero makes 0 of -0, and is neutral where x is never that */
static lf_node add_zero(lf_rw *rw, lf_node n)
{
    bool sub = lf_rw_is(rw, n, LF_OP_sub);
    double alpha = lf_rw_attr(rw, n, "alpha"), zero;
    for (int slot = 0; slot < (sub || alpha != 1.0 ? 1 : 2); slot++) {
        lf_node x = lf_rw_arg(rw, n, slot);
        if (!lf_rw_constant(rw, lf_rw_arg(rw, n, 1 - slot), &zero))
            continue;
        zero *= sub ? -alpha : alpha;
        if (zero == 0.0 && (signbit(zero) || lf_rw_never_minus_zero(rw, x)))
            return whole(rw, n, slot);
    }
    return LF_KEEP;
}

/* x * 1 = 1 * x = x / 1 = x */
static lf_node mul_one(lf_rw *rw, lf_node n)
{
    if (is_number(rw, lf_rw_arg(rw, n, 1), 1.0))
        return whole(rw, n, 0);
    return lf_rw_is(rw, n, LF_OP_mul) && is_number(rw, lf_rw_arg(rw, n, 0), 1.0) ? whole(rw, n, 1) : LF_KEEP;
}

/* pow(x, 1) = x */
static lf_node pow_one(lf_rw *rw, lf_node n)
{
    return lf_rw_attr(rw, n, "exponent") == 1.0 ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* leaky_relu(x, 1) = x */
static lf_node leaky_relu_one(lf_rw *rw, lf_node n)
{
    return lf_rw_attr(rw, n, "negative_slope") == 1.0 ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* clamp(x, -inf, inf) = x */
static lf_node clamp_open(lf_rw *rw, lf_node n)
{
    double ends[3];
    lf_op_numbers(rw->g, n, ends);
    return ends[0] == -INFINITY && ends[1] == INFINITY ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* min(x, x) = max(x, x) = x */
static lf_node extremum_of_same(lf_rw *rw, lf_node n)
{
    return lf_rw_arg(rw, n, 0) == lf_rw_arg(rw, n, 1) ? lf_rw_arg(rw, n, 0) : LF_KEEP;
}

/* min(x, c) = clamp(x, max=c), max(x, c) = clamp(x, min=c): where clamps meet, they merge. A clamp keeps x where it is
 * a zero and c the other one; min and max take the right one of two that are equal. */
static lf_node extremum_as_clamp(lf_rw *rw, lf_node n)
{
    double c;
    int slot = lf_rw_constant(rw, lf_rw_arg(rw, n, 1), &c) ? 0 : 1;
    if (slot == 1 && !lf_rw_constant(rw, lf_rw_arg(rw, n, 0), &c))
        return LF_KEEP;
    bool upper = lf_rw_is(rw, n, LF_OP_minimum);
    lf_node x = whole(rw, n, slot);
    if (x == LF_KEEP || (c == 0.0 && slot == 0 && (signbit(c) || !lf_rw_never_minus_zero(rw, x))))
        return LF_KEEP;
    return lf_rw_clamp(rw, x, upper ? -INFINITY : c, upper ? c : INFINITY);
}

/* ---- constants ---- */

/* The op applied to one number for each argument that is not left out, in double; false where that is not finite as
 * f32. */
static bool evaluate(lf_rw *rw, const lf_node_info *info, const double *numbers, double *out)
{
    lf_arena arena;
    lf_diag diag;
    lf_graph g;
    lf_arena_init(&arena);
    lf_status status = lf_graph_init(&g, &arena, &diag);
    lf_node args[LF_MAX_ARGS], n = LF_NONE;
    for (int i = 0; !status && i < LF_MAX_ARGS; i++) {
        args[i] = LF_NONE;
        if (info->arg[i] != LF_NONE)
            status = lf_graph_constant(&g, numbers[i], &(lf_shape){.rank = 0}, &args[i]);
    }
    if (!status)
        status = lf_graph_op(&g, NULL, info->op, args, info->attr, &n);
    const int64_t dims[LF_MAX_SYMBOLS] = {0};
    const lf_bound bound[LF_MAX_ARGS + 1] = {{0}};
    if (!status)
        status = lf_eval(&g, dims, bound, &n, 1, &out, &diag);
    lf_arena_free(&arena);
    if (status == LF_ERR_NOMEM)
        rw->status = status;
    return !status && fabs(*out) <= 0x1.fffffep127;
}

/* A reduction of n equal numbers c: sum n c, logsumexp c + log n, the others c; sums of -0 are 0. */
static bool reduce_constant(const lf_rw *rw, lf_node n, double *value)
{
    const lf_shape *x = lf_rw_shape(rw, lf_rw_arg(rw, n, 0));
    unsigned axes = lf_span_axes(rw->g, n);
    double count = 1.0;
    for (int i = 0; i < x->rank; i++)
        if (axes & 1u << i) {
            if (!lf_extent_known(x->dim[i]))
                return false;
            count *= (double)x->dim[i].coef;
        }
    if (lf_rw_is(rw, n, LF_OP_sum))
        *value *= count;
    if (lf_rw_is(rw, n, LF_OP_sum) || lf_rw_is(rw, n, LF_OP_mean))
        *value += 0.0;
    if (lf_rw_is(rw, n, LF_OP_logsumexp))
        *value += log(count);
    return true;
}

/* f(c) is a constant. It is what lf_eval gives when weights are prepared, so no bit changes. */
static lf_node fold_constants(lf_rw *rw, lf_node n)
{
    lf_node_info info = *lf_rw_at(rw, n);
    double numbers[LF_MAX_ARGS] = {0}, value = 0;
    for (int i = 0; i < LF_MAX_ARGS; i++)
        if (info.arg[i] != LF_NONE && !lf_rw_constant(rw, info.arg[i], &numbers[i]))
            return LF_KEEP;
    value = numbers[0];
    lf_kind kind = lf_op_row(info.op)->kind;
    if (kind == LF_POINTWISE && !evaluate(rw, &info, numbers, &value))
        return LF_KEEP;
    if (kind == LF_REDUCE && !reduce_constant(rw, n, &value))
        return LF_KEEP;
    lf_rw_why(rw, "it is %.9g", value);
    return lf_rw_full(rw, value, &info.shape);
}

/* f(clamp(x, c, c)) = clamp(x, f(c), f(c)): a value held at c, kept as a value so that NaN passes. f has one argument
 * that is not a constant, and maps NaN to NaN, which pow(x, 0) = 1 and comparisons do not. */
static lf_node through_held(lf_rw *rw, lf_node n)
{
    lf_node_info info = *lf_rw_at(rw, n);
    double numbers[LF_MAX_ARGS] = {0}, of_nan[LF_MAX_ARGS], ends[3], value;
    lf_node held = LF_NONE;
    int slot = 0;
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        if (info.arg[i] == LF_NONE || lf_rw_constant(rw, info.arg[i], &numbers[i]))
            continue;
        if (held != LF_NONE || !lf_rw_is(rw, info.arg[i], LF_OP_clamp) || !lf_rw_same_shape(rw, info.arg[i], n))
            return LF_KEEP;
        held = info.arg[i];
        lf_op_numbers(rw->g, held, ends);
        slot = i;
        numbers[i] = ends[1];
        if (ends[0] < ends[1] || !isfinite(ends[1])) /* ends that cross hold at the upper one */
            return LF_KEEP;
    }
    memcpy(of_nan, numbers, sizeof of_nan);
    of_nan[slot] = NAN;
    if (held == LF_NONE || evaluate(rw, &info, of_nan, &value) || !evaluate(rw, &info, numbers, &value))
        return LF_KEEP;
    return lf_rw_clamp(rw, lf_rw_arg(rw, held, 0), value, value);
}

static const lf_rule rules[] = {
    {.info = {"fold_constants", "f(c) is a constant", LF_EXACT},
     .kinds = LF_KIND(LF_POINTWISE) | LF_KIND(LF_REDUCE) | LF_KIND(LF_VIEW) | LF_KIND(LF_MOVE),
     .apply = fold_constants,
     .in_fixed = true},
    {.info = {"add_zero", "x + -0 = x - 0 = x; x + 0 too where x is never -0", LF_EXACT},
     .gain = "adding 0 changes nothing",
     .ops = {LF_OP_add, LF_OP_sub},
     .apply = add_zero},
    {.info = {"mul_one", "x * 1 = 1 * x = x / 1 = x", LF_EXACT},
     .gain = "a factor of 1 changes nothing",
     .ops = {LF_OP_mul, LF_OP_div},
     .apply = mul_one},
    {.info = {"pow_one", "pow(x, 1) = x", LF_EXACT},
     .gain = "an exponent of 1 changes nothing",
     .ops = {LF_OP_pow},
     .apply = pow_one},
    {.info = {"leaky_relu_one", "leaky_relu(x, 1) = x", LF_EXACT},
     .gain = "a slope of 1 changes nothing",
     .ops = {LF_OP_leaky_relu},
     .apply = leaky_relu_one},
    {.info = {"clamp_open", "clamp(x, -inf, inf) = x", LF_EXACT},
     .gain = "open ends hold nothing",
     .ops = {LF_OP_clamp, LF_OP_hardtanh},
     .apply = clamp_open},
    {.info = {"extremum_of_same", "min(x, x) = max(x, x) = x", LF_EXACT},
     .gain = "both sides are one value",
     .ops = {LF_OP_minimum, LF_OP_maximum},
     .apply = extremum_of_same},
    {.info = {"extremum_as_clamp", "min(x, c) = clamp(x, max=c), max(x, c) = clamp(x, min=c)", LF_EXACT},
     .gain = "as a clamp it can merge with others",
     .ops = {LF_OP_minimum, LF_OP_maximum},
     .apply = extremum_as_clamp},
    {.info = {"through_held", "f(clamp(x, c, c)) = clamp(x, f(c), f(c))", LF_REROUNDS},
     .gain = "its argument is one known number",
     .kinds = LF_KIND(LF_POINTWISE),
     .apply = through_held},
};
const lf_rule_table lf_rules_neutral = LF_TABLE(rules);
