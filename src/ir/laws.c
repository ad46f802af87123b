/* SPDX-License-Identifier: Apache-2.0 */
/* What rewrites may rely on, as an expression's form shows it. */
#include "ir/expr.h"

#include <math.h>

/* ---- what is not finite stays so ---- */

/* Of one value; in all three places where there is no number. */
static bool native_keeps(const lf_expr *call)
{
    static const double nonfinite[] = {INFINITY, -INFINITY, NAN};
    const lf_expr x = {.kind = LF_EXPR_VARIABLE}, f = {.kind = LF_EXPR_CALL, .which = call->which, .arg = {&x}};
    for (int i = 0; i < 3; i++)
        if (isfinite(lf_expr_eval(&f, (const double[LF_EXPR_VARIABLE_COUNT]){nonfinite[i]})))
            return false;
    return true;
}

/* Inf * 0, Inf - Inf and 0 * NaN are NaN: sums and products keep what is not finite. Functions that are not native do
 * not: a backend may have a form of its own. */
bool lf_expr_keeps_nonfinite(const lf_expr *e, int variable)
{
    switch (e->kind) {
    case LF_EXPR_VARIABLE: return e->which == variable;
    case LF_EXPR_NEG:
    case LF_EXPR_DIV: return lf_expr_keeps_nonfinite(e->arg[0], variable);
    case LF_EXPR_ADD:
    case LF_EXPR_SUB:
    case LF_EXPR_MUL:
        return lf_expr_keeps_nonfinite(e->arg[0], variable) || lf_expr_keeps_nonfinite(e->arg[1], variable);
    case LF_EXPR_SELECT:
        return lf_expr_keeps_nonfinite(e->arg[1], variable) && lf_expr_keeps_nonfinite(e->arg[2], variable);
    case LF_EXPR_CALL: {
        const lf_function_info *row = lf_function_row((lf_function)e->which);
        return !row->value && row->args == 1 && native_keeps(e) && lf_expr_keeps_nonfinite(e->arg[0], variable);
    }
    default: return false;
    }
}

/* ---- directions ---- */

enum { FALLS = -1, CONSTANT = 0, RISES = 1, UNKNOWN = 2 };

static int direction(const lf_expr *e, int variable, const lf_interval *v);

static int joined(int a, int b)
{
    return a == CONSTANT || a == b ? b : b == CONSTANT ? a : UNKNOWN;
}

static int turned(int way, int sign)
{
    return way == UNKNOWN || sign == 0 ? UNKNOWN : way * sign;
}

/* Of a factor: 0 too may be one, but Inf * 0 is no number. */
static int sign_of_factor(lf_interval in)
{
    return in.low > 0 && in.high < INFINITY ? 1 : in.high < 0 && in.low > -INFINITY ? -1 : 0;
}

static int of_product(const lf_expr *e, int variable, const lf_interval *v)
{
    const int constant = lf_expr_uses(e->arg[0], variable) ? 1 : 0;
    if (lf_expr_uses(e->arg[constant], variable) || (constant == 0 && e->kind == LF_EXPR_DIV))
        return UNKNOWN;
    const int sign = sign_of_factor(lf_expr_interval(e->arg[constant], v));
    return turned(direction(e->arg[1 - constant], variable, v), sign);
}

/* A native that is NaN for some numbers has a direction between those for which it is not. */
static bool is_whole(const lf_expr *call, const lf_interval *v)
{
    const lf_interval in = lf_expr_interval(call->arg[0], v);
    const lf_expr x = {.kind = LF_EXPR_VARIABLE}, f = {.kind = LF_EXPR_CALL, .which = call->which, .arg = {&x}};
    return !isnan(lf_expr_eval(&f, (const double[LF_EXPR_VARIABLE_COUNT]){in.low})) &&
           !isnan(lf_expr_eval(&f, (const double[LF_EXPR_VARIABLE_COUNT]){in.high}));
}

static int of_call(const lf_expr *e, int variable, const lf_interval *v)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    int way = CONSTANT;
    if (row->direction == 0 || (!row->value && !is_whole(e, v)))
        return UNKNOWN;
    for (int i = 0; i < row->args; i++)
        way = joined(way, row->param[i] < LF_EXPR_VALUES || !lf_expr_uses(e->arg[i], variable)
                              ? direction(e->arg[i], variable, v)
                              : UNKNOWN);
    return turned(way, row->direction);
}

/* Where sel compares the variable with a number, and the branches meet there. */
static int of_select(const lf_expr *e, int variable, const lf_interval *v)
{
    const lf_expr *p = e->arg[0], *left = p->arg[0], *right = p->arg[1];
    const int way = joined(direction(e->arg[1], variable, v), direction(e->arg[2], variable, v));
    if (!lf_expr_uses(p, variable))
        return way;
    if (p->kind < LF_EXPR_LESS || p->kind > LF_EXPR_AT_LEAST)
        return UNKNOWN;
    if (left->kind != LF_EXPR_VARIABLE || lf_expr_uses(right, variable))
        return UNKNOWN;
    double at[LF_EXPR_VARIABLE_COUNT];
    for (int i = 0; i < LF_EXPR_VARIABLE_COUNT; i++)
        at[i] = v[i].low == v[i].high ? v[i].low : NAN; /* meets nothing */
    at[variable] = lf_expr_eval(right, at);
    return lf_expr_eval(e->arg[1], at) == lf_expr_eval(e->arg[2], at) ? way : UNKNOWN;
}

static int direction(const lf_expr *e, int variable, const lf_interval *v)
{
    if (!lf_expr_uses(e, variable))
        return CONSTANT;
    switch (e->kind) {
    case LF_EXPR_VARIABLE: return RISES;
    case LF_EXPR_NEG: return turned(direction(e->arg[0], variable, v), FALLS);
    case LF_EXPR_ADD: return joined(direction(e->arg[0], variable, v), direction(e->arg[1], variable, v));
    case LF_EXPR_SUB:
        return joined(direction(e->arg[0], variable, v), turned(direction(e->arg[1], variable, v), FALLS));
    case LF_EXPR_MUL:
    case LF_EXPR_DIV: return of_product(e, variable, v);
    case LF_EXPR_SELECT: return of_select(e, variable, v);
    case LF_EXPR_CALL: return of_call(e, variable, v);
    default: return UNKNOWN;
    }
}

int lf_expr_direction(const lf_expr *e, int variable, const lf_interval v[LF_EXPR_VARIABLE_COUNT])
{
    const int way = direction(e, variable, v);
    return way == UNKNOWN ? 0 : way;
}
