/* SPDX-License-Identifier: Apache-2.0 */
/* Between which numbers an expression's value lies, and how fast it grows: interval arithmetic, and what the conditions
 * of sel say about the branch that they choose. */
#include "ir/expr.h"

#include <assert.h>
#include <float.h>
#include <math.h>

static const lf_interval anything = {-INFINITY, INFINITY, false}, truth = {0, 1, true};

lf_interval lf_interval_of(double number)
{
    return (lf_interval){number, number, !signbit(number)};
}

bool lf_interval_is_plus(lf_interval in)
{
    return in.plus || in.low > 0 || in.high <= -(double)FLT_MIN; /* what is nearer to 0 may become -0 as f32 */
}

/* What is known of some terms where a branch has been chosen. */
typedef struct known {
    const lf_expr *e;
    lf_interval in;
    const struct known *next;
} known;

static lf_interval of(const lf_expr *e, const lf_interval *v, const known *more);

static lf_interval both(lf_interval a, lf_interval b)
{
    return (lf_interval){fmax(a.low, b.low), fmin(a.high, b.high), a.plus || b.plus};
}

static bool empty(lf_interval a)
{
    return a.low > a.high;
}

static lf_interval either(lf_interval a, lf_interval b)
{
    if (empty(a) || empty(b))
        return empty(a) ? b : a;
    return (lf_interval){fmin(a.low, b.low), fmax(a.high, b.high), lf_interval_is_plus(a) && lf_interval_is_plus(b)};
}

/* Inf - Inf at an end is no bound. Only -0 + -0 is -0. */
static lf_interval sum(lf_interval a, lf_interval b)
{
    double low = a.low + b.low, high = a.high + b.high;
    return (lf_interval){isnan(low) ? -INFINITY : low, isnan(high) ? INFINITY : high,
                         lf_interval_is_plus(a) || lf_interval_is_plus(b)};
}

/* -0 where it was 0. */
static lf_interval negative(lf_interval a)
{
    return (lf_interval){-a.high, -a.low, false};
}

/* Neither negative nor -0, so that products are not either, and not where they underflow. */
static bool is_positive(lf_interval a)
{
    return a.low >= 0 && lf_interval_is_plus(a);
}

/* Inf * 0 is NaN itself; what is near it lies between 0 and the other products. */
static double corner(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

static lf_interval product(lf_interval a, lf_interval b)
{
    double p = corner(a.low, b.low), q = corner(a.low, b.high), r = corner(a.high, b.low), s = corner(a.high, b.high);
    return (lf_interval){fmin(fmin(p, q), fmin(r, s)), fmax(fmax(p, q), fmax(r, s)), is_positive(a) && is_positive(b)};
}

/* 1 / -0 is -Inf, 0 / 0 NaN. */
static lf_interval quotient(lf_interval a, lf_interval b)
{
    if (b.low <= 0 && b.high >= 0)
        return anything;
    return product(a, (lf_interval){1 / b.high, 1 / b.low, is_positive(b)});
}

static lf_interval square(lf_interval a)
{
    double least = a.low > 0 ? a.low : a.high < 0 ? -a.high : 0;
    return (lf_interval){least * least, fmax(a.low * a.low, a.high * a.high), true};
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

/* A native that is never negative makes no -0, but sqrt, of -0. */
static lf_interval of_native(const lf_expr *e, const lf_function_info *row, lf_interval x)
{
    const bool plus = row->low >= 0 && (e->which != LF_FUNCTION_sqrt || lf_interval_is_plus(x));
    if (row->direction > 0)
        return (lf_interval){at_end(e, row, x.low, row->low), at_end(e, row, x.high, row->high), plus};
    if (row->direction < 0)
        return (lf_interval){at_end(e, row, x.high, row->low), at_end(e, row, x.low, row->high), plus};
    return (lf_interval){row->low, row->high, plus};
}

/* The intervals of a function's parameters. */
static void bind(const lf_expr *e, const lf_interval *v, const known *more, lf_interval *inner)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    for (int i = 0; i < LF_EXPR_VARIABLE_COUNT; i++)
        inner[i] = anything;
    for (int i = 0; i < row->args; i++)
        inner[row->param[i]] = of(e->arg[i], v, more);
}

static lf_interval of_call(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    lf_interval inner[LF_EXPR_VARIABLE_COUNT];
    bind(e, v, more, inner);
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

/* Which branch is taken for all numbers: 1 the first, 0 the second, -1 either. */
static int chosen_way(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_expr *p = e->arg[0];
    const bool compares = p->kind >= LF_EXPR_LESS && p->kind <= LF_EXPR_UNEQUAL;
    return compares ? decided(p, of(p->arg[0], v, more), of(p->arg[1], v, more)) : -1;
}

/* What a branch of sel knows: each side of the comparison is bounded by the other. */
typedef struct branch {
    known left, right;
} branch;

static const known *enter(branch *b, const lf_expr *e, bool chosen, const lf_interval *v, const known *more)
{
    const lf_expr *p = e->arg[0];
    if (p->kind < LF_EXPR_LESS || p->kind > LF_EXPR_AT_LEAST)
        return more;
    const lf_interval left = of(p->arg[0], v, more), right = of(p->arg[1], v, more);
    const bool less = (p->kind == LF_EXPR_LESS || p->kind == LF_EXPR_AT_MOST) == chosen;
    const lf_interval below = {-INFINITY, less ? right.high : left.high, false};
    const lf_interval above = {less ? left.low : right.low, INFINITY, false};
    b->left = (known){p->arg[0], less ? below : above, more};
    b->right = (known){p->arg[1], less ? above : below, &b->left};
    return &b->right;
}

static lf_interval of_branch(const lf_expr *e, bool chosen, const lf_interval *v, const known *more)
{
    branch b;
    return of(e->arg[chosen ? 1 : 2], v, enter(&b, e, chosen, v, more));
}

static lf_interval of_select(const lf_expr *e, const lf_interval *v, const known *more)
{
    const int way = chosen_way(e, v, more);
    if (way >= 0)
        return of_branch(e, way == 1, v, more);
    return either(of_branch(e, true, v, more), of_branch(e, false, v, more));
}

/* ---- all of it ---- */

static lf_interval of_term(const lf_expr *e, const lf_interval *v, const known *more)
{
    switch (e->kind) {
    case LF_EXPR_NUMBER: return lf_interval_of(e->number);
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

/* ---- growth ---- */

static const lf_growth unbounded = {INFINITY, INFINITY};

static lf_growth grown(const lf_expr *e, const lf_interval *v, const known *more);

/* Inf * 0 is no bound either. */
static lf_growth times(lf_growth g, lf_interval by)
{
    const double most = fmax(fabs(by.low), fabs(by.high));
    return isfinite(most) && isfinite(g.scale) ? (lf_growth){g.scale * most, g.offset * most} : unbounded;
}

static lf_growth slower(lf_growth a, lf_growth b)
{
    return isfinite(a.scale) ? a : b;
}

static lf_growth grown_select(const lf_expr *e, const lf_interval *v, const known *more)
{
    const int way = chosen_way(e, v, more);
    lf_growth most = {0, 0};
    for (int chosen = 0; chosen < 2; chosen++) {
        if (way == !chosen)
            continue;
        branch b;
        const lf_growth g = grown(e->arg[chosen ? 1 : 2], v, enter(&b, e, chosen, v, more));
        most = (lf_growth){fmax(most.scale, g.scale), fmax(most.offset, g.offset)};
    }
    return most;
}

/* f(u) <= scale |u| + offset, where u grows itself. */
static lf_growth grown_call(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    const bool one = row->args < 2 || row->param[1] >= LF_EXPR_VALUES;
    lf_growth u = grown(e->arg[0], v, more), f = {1, 0};
    if (e->which != LF_FUNCTION_fabs) {
        lf_interval inner[LF_EXPR_VARIABLE_COUNT];
        bind(e, v, more, inner);
        f = row->value && one ? grown(row->value, inner, NULL) : unbounded;
    }
    return isfinite(f.scale) && isfinite(u.scale) ? (lf_growth){f.scale * u.scale, f.scale * u.offset + f.offset}
                                                  : unbounded;
}

static lf_growth grown(const lf_expr *e, const lf_interval *v, const known *more)
{
    const lf_interval in = of(e, v, more);
    const bool whole = e->kind == LF_EXPR_NUMBER || e->kind == LF_EXPR_VARIABLE || e->kind == LF_EXPR_CALL;
    lf_growth u, w;
    if (whole && isfinite(in.low) && isfinite(in.high)) /* 0 times what has no bound lies in one, but may be NaN */
        return (lf_growth){0, fmax(fabs(in.low), fabs(in.high))};
    switch (e->kind) {
    case LF_EXPR_VARIABLE: return e->which == 0 ? (lf_growth){1, 0} : unbounded;
    case LF_EXPR_NEG: return grown(e->arg[0], v, more);
    case LF_EXPR_ADD:
    case LF_EXPR_SUB:
        u = grown(e->arg[0], v, more), w = grown(e->arg[1], v, more);
        return (lf_growth){u.scale + w.scale, u.offset + w.offset};
    case LF_EXPR_MUL:
        u = grown(e->arg[0], v, more), w = grown(e->arg[1], v, more);
        return slower(times(u, of(e->arg[1], v, more)), times(w, of(e->arg[0], v, more)));
    case LF_EXPR_DIV: return times(grown(e->arg[0], v, more), quotient(lf_interval_of(1), of(e->arg[1], v, more)));
    case LF_EXPR_SELECT: return grown_select(e, v, more);
    case LF_EXPR_CALL: return grown_call(e, v, more);
    default: return unbounded;
    }
}

lf_growth lf_expr_growth(const lf_expr *e, const lf_interval v[LF_EXPR_VARIABLE_COUNT])
{
    return grown(e, v, NULL);
}
