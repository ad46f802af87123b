/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of expressions, term by term. What functions.def says of its functions' derivatives is theirs here. */
#include "ir/expr.h"

#include <assert.h>

/* ---- terms, simplified as they are made ---- */

static const lf_expr *number(lf_expr_pool *pool, double value)
{
    return lf_expr_make(pool, LF_EXPR_NUMBER, 0, value, NULL, NULL, NULL);
}

static bool is(const lf_expr *e, double value)
{
    return e->kind == LF_EXPR_NUMBER && e->number == value;
}

/* A derivative that is 0 by its form is 0 whatever it meets: beyond the end of a clamp, Inf * 0 is 0. */
static bool selects_zero(const lf_expr *e)
{
    return e->kind == LF_EXPR_SELECT &&
           (is(e->arg[1], 0) || is(e->arg[2], 0) || selects_zero(e->arg[1]) || selects_zero(e->arg[2]));
}

static const lf_expr *select(lf_expr_pool *pool, const lf_expr *p, const lf_expr *u, const lf_expr *v)
{
    return u == v ? u : lf_expr_make(pool, LF_EXPR_SELECT, 0, 0, p, u, v);
}

static const lf_expr *negated(lf_expr_pool *pool, const lf_expr *u)
{
    if (u->kind == LF_EXPR_NUMBER)
        return number(pool, u->number == 0 ? 0 : -u->number);
    return u->kind == LF_EXPR_NEG ? u->arg[0] : lf_expr_make(pool, LF_EXPR_NEG, 0, 0, u, NULL, NULL);
}

/* An attribute is one number, and c / c = 1: dividing by 0 or infinity makes no sense in the value either. */
static bool is_attribute(const lf_expr *e)
{
    return e->kind == LF_EXPR_VARIABLE && e->which >= LF_EXPR_VALUES;
}

/* 0 / u = 0, u / 1 = u, (u c) / c = u for an attribute c */
static const lf_expr *quotient(lf_expr_pool *pool, const lf_expr *u, const lf_expr *v)
{
    if (is(u, 0) || is(v, 1))
        return u;
    if (is_attribute(v) && u->kind == LF_EXPR_MUL && u->arg[1] == v)
        return u->arg[0];
    return lf_expr_make(pool, LF_EXPR_DIV, 0, 0, u, v, NULL);
}

/* 0 u = 0, 1 u = u, (u c) d = u (c d), u sel(p, v, 0) = sel(p, u v, 0), u (1 / v) = u / v, c (u / c) = u for an
 * attribute c */
static const lf_expr *product(lf_expr_pool *pool, const lf_expr *u, const lf_expr *v)
{
    if (u->kind == LF_EXPR_NUMBER && v->kind != LF_EXPR_NUMBER)
        return product(pool, v, u);
    if (is(v, 0))
        return v;
    if (is(v, 1))
        return u;
    if (is(v, -1))
        return negated(pool, u);
    if (u->kind == LF_EXPR_NUMBER)
        return number(pool, u->number * v->number);
    if (v->kind == LF_EXPR_NUMBER && u->kind == LF_EXPR_MUL && u->arg[1]->kind == LF_EXPR_NUMBER)
        return product(pool, u->arg[0], number(pool, u->arg[1]->number * v->number));
    if (v->kind == LF_EXPR_DIV && is(v->arg[0], 1))
        return quotient(pool, u, v->arg[1]);
    if (v->kind == LF_EXPR_DIV && is_attribute(u) && v->arg[1] == u)
        return v->arg[0];
    if (selects_zero(v))
        return select(pool, v->arg[0], product(pool, u, v->arg[1]), product(pool, u, v->arg[2]));
    if (selects_zero(u))
        return select(pool, u->arg[0], product(pool, u->arg[1], v), product(pool, u->arg[2], v));
    return lf_expr_make(pool, LF_EXPR_MUL, 0, 0, u, v, NULL);
}

static const lf_expr *simplified(lf_expr_pool *pool, lf_expr_kind kind, const lf_expr *u, const lf_expr *v)
{
    if (kind == LF_EXPR_MUL)
        return product(pool, u, v);
    if (kind == LF_EXPR_NEG)
        return negated(pool, u);
    if (kind == LF_EXPR_DIV)
        return quotient(pool, u, v);
    if (u->kind == LF_EXPR_NUMBER && v->kind == LF_EXPR_NUMBER) {
        const double pair[LF_EXPR_VARIABLE_COUNT] = {0};
        return number(pool, lf_expr_eval(lf_expr_make(pool, kind, 0, 0, u, v, NULL), pair));
    }
    if (is(v, 0) && (kind == LF_EXPR_ADD || kind == LF_EXPR_SUB))
        return u;
    if (is(u, 0) && (kind == LF_EXPR_ADD || kind == LF_EXPR_SUB))
        return kind == LF_EXPR_ADD ? v : negated(pool, v);
    return lf_expr_make(pool, kind, 0, 0, u, v, NULL);
}

/* e with args in place of its variables, simplified. */
static const lf_expr *with(lf_expr_pool *pool, const lf_expr *e, const lf_expr *const *args)
{
    const lf_expr *arg[3] = {NULL};
    if (e->kind == LF_EXPR_VARIABLE)
        return args[e->which];
    for (int i = 0; i < 3 && e->arg[i]; i++)
        arg[i] = with(pool, e->arg[i], args);
    switch (e->kind) {
    case LF_EXPR_NUMBER: return number(pool, e->number);
    case LF_EXPR_SELECT: return select(pool, arg[0], arg[1], arg[2]);
    case LF_EXPR_CALL: return lf_expr_make(pool, LF_EXPR_CALL, e->which, 0, arg[0], arg[1], arg[2]);
    default: return simplified(pool, e->kind, arg[0], arg[1]);
    }
}

/* ---- rules ---- */

/* f(u, v)' = f_u(u, v) u' + f_v(u, v) v' */
static const lf_expr *derive_call(lf_expr_pool *pool, const lf_expr *e, int variable)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    const lf_expr *bound[LF_EXPR_VARIABLE_COUNT] = {NULL}, *sum = number(pool, 0);
    for (int i = 0; i < row->args; i++)
        bound[row->param[i]] = e->arg[i];
    for (int i = 0; i < row->args; i++) {
        const lf_expr *inner = lf_expr_derive(pool, e->arg[i], variable);
        if (is(inner, 0))
            continue;
        assert(row->param[i] < LF_EXPR_VALUES); /* nothing is differentiated in a number */
        const lf_expr *slope = row->derivative[i];
        slope = row->derive_this[i] ? lf_expr_derive(pool, slope, row->param[i]) : slope;
        sum = simplified(pool, LF_EXPR_ADD, sum, product(pool, with(pool, slope, bound), inner));
    }
    return sum;
}

/* (u / v)' = (u' - (u / v) v') / v: v squared might overflow where v does not. */
static const lf_expr *derive_quotient(lf_expr_pool *pool, const lf_expr *e, const lf_expr *du, const lf_expr *dv)
{
    const lf_expr *over = simplified(pool, LF_EXPR_SUB, du, product(pool, e, dv));
    if (over->kind == LF_EXPR_NEG)
        return negated(pool, simplified(pool, LF_EXPR_DIV, over->arg[0], e->arg[1]));
    return simplified(pool, LF_EXPR_DIV, over, e->arg[1]);
}

const lf_expr *lf_expr_derive(lf_expr_pool *pool, const lf_expr *e, int variable)
{
    if (!lf_expr_uses(e, variable))
        return number(pool, 0);
    if (e->kind == LF_EXPR_VARIABLE)
        return number(pool, 1);
    if (e->kind == LF_EXPR_CALL)
        return derive_call(pool, e, variable);
    if (e->kind == LF_EXPR_SELECT)
        return select(pool, e->arg[0], lf_expr_derive(pool, e->arg[1], variable),
                      lf_expr_derive(pool, e->arg[2], variable));
    const lf_expr *u = e->arg[0], *v = e->arg[1];
    const lf_expr *du = lf_expr_derive(pool, u, variable), *dv = v ? lf_expr_derive(pool, v, variable) : NULL;
    switch (e->kind) {
    case LF_EXPR_NEG:
    case LF_EXPR_ADD:
    case LF_EXPR_SUB: return simplified(pool, e->kind, du, dv);
    case LF_EXPR_MUL: return simplified(pool, LF_EXPR_ADD, product(pool, v, du), product(pool, u, dv));
    case LF_EXPR_DIV: return derive_quotient(pool, e, du, dv);
    default: return number(pool, 0); /* a comparison: flat on both sides */
    }
}
