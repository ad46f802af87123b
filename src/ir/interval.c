/* SPDX-License-Identifier: Apache-2.0 */
/* Between which numbers an expression's value lies: interval arithmetic, and what the conditions of sel say about the
 * branch that they choose. */
#include "ir/expr.h"

#include <assert.h>
#include <math.h>

static const lf_interval anything = {-INFINITY, INFINITY}, truth = {0, 1};

/* What is known of some terms where a branch has been chosen. */
typedef struct known {
    const lf_expr *e;
    lf_interval in;
    const struct known *next;
} known;

static lf_interval of(const lf_expr *e, const lf_interval *v, const known *more);

static lf_interval both(lf_interval a, lf_interval b)
{
    return (lf_interval){fmax(a.low, b.low), fmin(a.high, b.high)};
}

static bool empty(lf_interval a)
{
    return a.low > a.high;
}

static lf_interval either(lf_interval a, lf_interval b)
{
    if (empty(a) || empty(b))
        return empty(a) ? b : a;
    return (lf_interval){fmin(a.low, b.low), fmax(a.high, b.high)};
}

/* Inf - Inf at an end is no bound. */
static lf_interval sum(lf_interval a, lf_interval b)
{
    double low = a.low + b.low, high = a.high + b.high;
    return (lf_interval){isnan(low) ? -INFINITY : low, isnan(high) ? INFINITY : high};
}

static lf_interval negative(lf_interval a)
{
    return (lf_interval){-a.high, -a.low};
}

/* Inf * 0 is NaN itself; what is near it lies between 0 and the other products. */
static double corner(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

static lf_interval product(lf_interval a, lf_interval b)
{
    double p = corner(a.low, b.low), q = corner(a.low, b.high), r = corner(a.high, b.low), s = corner(a.high, b.high);
    return (lf_interval){fmin(fmin(p, q), fmin(r, s)), fmax(fmax(p, q), fmax(r, s))};
}

/* A divisor that may be 0 may be -0. */
static lf_interval quotient(lf_interval a, lf_interval b)
{
    if (b.low <= 0 && b.high >= 0)
        return anything;
    return product(a, (lf_interval){1 / b.high, 1 / b.low});
}

static lf_interval square(lf_interval a)
{
    double least = a.low > 0 ? a.low : a.high < 0 ? -a.high : 0;
    return (lf_interval){least * least, fmax(a.low * a.low, a.high * a.high)};
}

/* ---- calls ---- */

/* A native that rises or falls, at an end: its bound where it is NaN there. */
static double at_end(const lf_expr *call, const lf_function_info *row, double end, double bound)
{
    const lf_expr x = {.kind = LF_EXPR_NUMBER, .number = end};
    const lf_expr there = {.kind = LF_EXPR_CALL, .which = call->which, .arg = {&x}};
    const double none[LF_EXPR_VARIABLE_COUNT] = {0}, value = lf_expr_eval(&there, none);
    return isnan(value) ? bound : fmax(row->low, fmin(row->high, value));
}

static lf_interval of_native(const lf_expr *e, const lf_function_info *row, lf_interval x)
{
    if (row->direction == LF_LAW_RISES)
        return (lf_interval){at_end(e, row, x.low, row->low), at_end(e, row, x.high, row->high)};
    if (row->direction == LF_LAW_FALLS)
        return (lf_interval){at_end(e, row, x.high, row->low), at_end(e, row, x.low, row->high)};
    return (lf_interval){row->low, row->high};
}

static lf_interval of_call(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    lf_interval inner[LF_EXPR_VARIABLE_COUNT];
    for (int i = 0; i < LF_EXPR_VARIABLE_COUNT; i++)
        inner[i] = anything;
    for (int i = 0; i < row->args; i++)
        inner[row->param[i]] = of(e->arg[i], v, more);
    return row->value ? of(row->value, inner, NULL) : of_native(e, row, inner[row->param[0]]);
}

/* ---- sel ---- */

/* 1 or 0 where a comparison comes out one way for all numbers, -1 otherwise. NaN, of which nothing is said, aside. */
static int decided(const lf_expr *p, lf_interval a, lf_interval b)
{
    switch (p->kind) {
    case LF_EXPR_LESS: return a.high < b.low ? 1 : a.low >= b.high ? 0 : -1;
    case LF_EXPR_MORE: return a.low > b.high ? 1 : a.high <= b.low ? 0 : -1;
    case LF_EXPR_AT_MOST: return a.high <= b.low ? 1 : a.low > b.high ? 0 : -1;
    case LF_EXPR_AT_LEAST: return a.low >= b.high ? 1 : a.high < b.low ? 0 : -1;
    case LF_EXPR_EQUAL:
    case LF_EXPR_UNEQUAL: {
        const int unequal = p->kind == LF_EXPR_UNEQUAL;
        if (p->arg[0] == p->arg[1] || (a.low == a.high && b.low == b.high && a.low == b.low))
            return !unequal;
        return a.high < b.low || a.low > b.high ? unequal : -1;
    }
    default: return -1;
    }
}

/* A branch of sel(p, u, v), where comparison p came out as `chosen`: each side is bounded by the other. */
static lf_interval of_branch(const lf_expr *e, bool chosen, const lf_interval *v, const known *more)
{
    const lf_expr *p = e->arg[0], *branch = e->arg[chosen ? 1 : 2];
    if (p->kind < LF_EXPR_LESS || p->kind > LF_EXPR_AT_LEAST)
        return of(branch, v, more);
    const lf_interval a = of(p->arg[0], v, more), b = of(p->arg[1], v, more);
    const bool less = (p->kind == LF_EXPR_LESS || p->kind == LF_EXPR_AT_MOST) == chosen;
    const known left = {p->arg[0], less ? (lf_interval){-INFINITY, b.high} : (lf_interval){b.low, INFINITY}, more};
    const known right = {p->arg[1], less ? (lf_interval){a.low, INFINITY} : (lf_interval){-INFINITY, a.high}, &left};
    return of(branch, v, &right);
}

static lf_interval of_select(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_expr *p = e->arg[0];
    const bool compares = p->kind >= LF_EXPR_LESS && p->kind <= LF_EXPR_UNEQUAL;
    const int way = compares ? decided(p, of(p->arg[0], v, more), of(p->arg[1], v, more)) : -1;
    if (way >= 0)
        return of_branch(e, way == 1, v, more);
    return either(of_branch(e, true, v, more), of_branch(e, false, v, more));
}

/* ---- all of it ---- */

static lf_interval of_term(const lf_expr *e, const lf_interval *v, const known *more)
{
    switch (e->kind) {
    case LF_EXPR_NUMBER: return (lf_interval){e->number, e->number};
    case LF_EXPR_VARIABLE: return v ? v[e->which] : anything;
    case LF_EXPR_NEG: return negative(of(e->arg[0], v, more));
    case LF_EXPR_ADD: return sum(of(e->arg[0], v, more), of(e->arg[1], v, more));
    case LF_EXPR_SUB: return sum(of(e->arg[0], v, more), negative(of(e->arg[1], v, more)));
    case LF_EXPR_MUL:
        return e->arg[0] == e->arg[1] ? square(of(e->arg[0], v, more))
                                      : product(of(e->arg[0], v, more), of(e->arg[1], v, more));
    case LF_EXPR_DIV: return quotient(of(e->arg[0], v, more), of(e->arg[1], v, more));
    case LF_EXPR_SELECT: return of_select(e, v, more);
    case LF_EXPR_CALL: return of_call(e, v, more);
    default: return truth;
    }
}

static lf_interval of(const lf_expr *e, const lf_interval *v, const known *more)
{
    lf_interval in = of_term(e, v, more);
    for (; more; more = more->next)
        if (more->e == e)
            in = both(in, more->in);
    return in;
}

lf_interval lf_expr_interval(const lf_expr *e, const lf_interval v[LF_EXPR_VARIABLE_COUNT])
{
    return of(e, v, NULL);
}
