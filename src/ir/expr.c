/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/expr.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

static uint64_t bits_of(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static bool same(const lf_expr *a, const lf_expr *b)
{
    return a->kind == b->kind && a->which == b->which && bits_of(a->number) == bits_of(b->number) &&
           a->arg[0] == b->arg[0] && a->arg[1] == b->arg[1] && a->arg[2] == b->arg[2];
}

static uint32_t hash(const lf_expr_pool *pool, const lf_expr *e)
{
    uint64_t h = bits_of(e->number) + 31u * (uint64_t)e->kind + 7u * (uint64_t)e->which;
    for (int i = 0; i < 3; i++) /* a place in the pool rather than an address, which changes from run to run */
        h = (h ^ (e->arg[i] ? (uint64_t)(e->arg[i] - pool->node) + 1 : 0)) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

const lf_expr *lf_expr_make(lf_expr_pool *pool, lf_expr_kind kind, int which, double number, const lf_expr *first,
                            const lf_expr *second, const lf_expr *third)
{
    const lf_expr e = {kind, which, number, {first, second, third}};
    uint32_t at = hash(pool, &e) % (2 * LF_EXPR_POOL);
    for (; pool->slot[at]; at = (at + 1) % (2 * LF_EXPR_POOL))
        if (same(&pool->node[pool->slot[at] - 1], &e))
            return &pool->node[pool->slot[at] - 1];
    assert(pool->count < LF_EXPR_POOL);
    pool->node[pool->count] = e;
    pool->slot[at] = (int16_t)(pool->count + 1);
    return &pool->node[pool->count++];
}

bool lf_expr_uses(const lf_expr *e, int variable)
{
    if (e->kind == LF_EXPR_VARIABLE)
        return e->which == variable;
    for (int i = 0; i < 3 && e->arg[i]; i++)
        if (lf_expr_uses(e->arg[i], variable))
            return true;
    return false;
}

/* ---- operators ---- */

/* From loosest to tightest. left, right: how tight the operands must be, but for the same operator on the left. */
enum { OR = 1, COMPARISON, SUM, TERM, SIGN, WHOLE };
static const struct operator {
    const char *text;
    int level, left, right;
} operator_of[LF_EXPR_CALL + 1] = {
    [LF_EXPR_ADD] = {"+", SUM, SUM, TERM},
    [LF_EXPR_SUB] = {"-", SUM, SUM, TERM},
    [LF_EXPR_MUL] = {"*", TERM, TERM, SIGN},
    [LF_EXPR_DIV] = {"/", TERM, TERM, SIGN},
    [LF_EXPR_LESS] = {"<", COMPARISON, SUM, SUM},
    [LF_EXPR_MORE] = {">", COMPARISON, SUM, SUM},
    [LF_EXPR_AT_MOST] = {"<=", COMPARISON, SUM, SUM},
    [LF_EXPR_AT_LEAST] = {">=", COMPARISON, SUM, SUM},
    [LF_EXPR_EQUAL] = {"==", COMPARISON, SUM, SUM},
    [LF_EXPR_UNEQUAL] = {"!=", COMPARISON, SUM, SUM},
    [LF_EXPR_OR] = {"|", OR, SUM, SUM}, /* compilers want parentheses around comparisons */
};

/* ---- reading ---- */

typedef struct reader {
    lf_expr_pool *pool;
    const char *at;
} reader;

static const lf_expr *read_level(reader *r, int level);

static bool take(reader *r, const char *text)
{
    r->at += strspn(r->at, " \n");
    if (strncmp(r->at, text, strlen(text)) != 0)
        return false;
    r->at += strlen(text);
    return true;
}

static const lf_expr *read_number(reader *r)
{
    char *end;
    double number = strtod(r->at, &end);
    r->at = end + (*end == 'f');
    return lf_expr_make(r->pool, LF_EXPR_NUMBER, 0, number, NULL, NULL, NULL);
}

static const lf_expr *read_call(reader *r, const char *name, size_t length)
{
    const lf_expr *arg[3] = {NULL};
    int count = 0;
    do {
        arg[count] = count < 3 ? read_level(r, OR) : NULL;
        if (!arg[count++])
            return NULL;
    } while (take(r, ",") && count < 3);
    if (!take(r, ")"))
        return NULL;
    if (length == 3 && strncmp(name, "sel", 3) == 0)
        return count == 3 ? lf_expr_make(r->pool, LF_EXPR_SELECT, 0, 0, arg[0], arg[1], arg[2]) : NULL;
    lf_function f;
    return lf_function_find(name, length, count, &f)
               ? lf_expr_make(r->pool, LF_EXPR_CALL, (int)f, 0, arg[0], arg[1], arg[2])
               : NULL;
}

static const lf_expr *read_whole(reader *r)
{
    if (take(r, "(")) {
        const lf_expr *e = read_level(r, OR);
        return take(r, ")") ? e : NULL;
    }
    if (isdigit((unsigned char)*r->at))
        return read_number(r);
    const char *name = r->at;
    while (isalnum((unsigned char)*r->at) || *r->at == '_')
        r->at++;
    size_t length = (size_t)(r->at - name);
    if (take(r, "("))
        return read_call(r, name, length);
    const char *variable = length == 1 ? strchr(LF_EXPR_VARIABLES, *name) : NULL;
    return variable ? lf_expr_make(r->pool, LF_EXPR_VARIABLE, (int)(variable - LF_EXPR_VARIABLES), 0, NULL, NULL, NULL)
                    : NULL;
}

static const lf_expr *read_sign(reader *r)
{
    if (!take(r, "-"))
        return read_whole(r);
    const lf_expr *e = read_sign(r);
    if (!e)
        return NULL;
    return e->kind == LF_EXPR_NUMBER ? lf_expr_make(r->pool, LF_EXPR_NUMBER, 0, -e->number, NULL, NULL, NULL)
                                     : lf_expr_make(r->pool, LF_EXPR_NEG, 0, 0, e, NULL, NULL);
}

/* The operator of this level that comes next; the longer of two, as <= before <. */
static bool take_operator(reader *r, int level, lf_expr_kind *out)
{
    size_t longest = 0;
    r->at += strspn(r->at, " \n");
    for (int kind = 0; kind <= LF_EXPR_CALL; kind++) {
        const char *text = operator_of[kind].text;
        if (text && operator_of[kind].level == level && strlen(text) > longest &&
            strncmp(r->at, text, strlen(text)) == 0) {
            longest = strlen(text);
            *out = (lf_expr_kind)kind;
        }
    }
    r->at += longest;
    return longest > 0;
}

static const lf_expr *read_level(reader *r, int level)
{
    if (level == SIGN)
        return read_sign(r);
    const lf_expr *e = read_level(r, level + 1);
    lf_expr_kind kind;
    while (e && take_operator(r, level, &kind)) {
        const lf_expr *right = read_level(r, level + 1);
        e = right ? lf_expr_make(r->pool, kind, 0, 0, e, right, NULL) : NULL;
    }
    return e;
}

const lf_expr *lf_expr_parse(lf_expr_pool *pool, const char *text)
{
    reader r = {pool, text};
    const lf_expr *e = read_level(&r, OR);
    return e && r.at[strspn(r.at, " \n")] == '\0' ? e : NULL;
}

/* ---- printing ---- */

/* What the variables of a function's value stand for; NULL at the bottom, where they are themselves. */
typedef struct frame {
    const lf_expr *const *arg; /* by variable */
    const struct frame *below; /* whose variables the arguments are of */
} frame;

typedef struct printer {
    lf_str *to;
    const lf_expr *tree;
    const lf_expr_style *style;
} printer;

static void print(const printer *p, const lf_expr *e, const frame *in, int level);

/* 9 digits tell all floats apart. */
static void print_number(lf_str *to, double number)
{
    char text[40];
    snprintf(text, sizeof text, "%.9g", number);
    lf_str_addf(to, strpbrk(text, ".e") ? "%sf" : "%s.0f", text);
}

static void print_arguments(const printer *p, const lf_expr *e, const frame *in)
{
    for (int i = 0; i < 3 && e->arg[i]; i++) {
        lf_str_add(p->to, i ? ", " : "");
        print(p, e->arg[i], in, OR);
    }
    lf_str_add(p->to, ")");
}

static void print_call(const printer *p, const lf_expr *e, const frame *in, int level)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    if (row->value && p->style && p->style->expands && p->style->expands((lf_function)e->which)) {
        const lf_expr *arg[LF_EXPR_VARIABLE_COUNT] = {NULL};
        for (int i = 0; i < row->args; i++)
            arg[row->param[i]] = e->arg[i];
        print(p, row->value, &(frame){arg, in}, level);
        return;
    }
    lf_str_addf(p->to, "%s(", row->name);
    print_arguments(p, e, in);
}

static void print_operator(const printer *p, const lf_expr *e, const frame *in, int level)
{
    const struct operator *o = &operator_of[e->kind];
    const lf_expr *right = e->arg[1];
    const char *divider = e->kind == LF_EXPR_DIV && p->style && p->style->divider
                              ? p->style->divider(in ? NULL : p->tree, e, &right, p->style->context)
                              : NULL;
    const bool parentheses = o->level < level && !divider;
    lf_str_addf(p->to, "%s%s", divider ? divider : "", divider || parentheses ? "(" : "");
    print(p, e->arg[0], in, divider ? OR : e->arg[0]->kind == e->kind ? o->level : o->left);
    if (divider)
        lf_str_add(p->to, ", ");
    else
        lf_str_addf(p->to, " %s ", o->text);
    print(p, right, in, divider ? OR : o->right);
    lf_str_add(p->to, divider || parentheses ? ")" : "");
}

/* level: how tight it must be to need no parentheses. */
static void print(const printer *p, const lf_expr *e, const frame *in, int level)
{
    const bool sign = e->kind == LF_EXPR_NEG || (e->kind == LF_EXPR_NUMBER && signbit(e->number));
    switch (e->kind) {
    case LF_EXPR_VARIABLE:
        if (in)
            print(p, in->arg[e->which], in->below, level);
        else
            lf_str_addn(p->to, &LF_EXPR_VARIABLES[e->which], 1);
        return;
    case LF_EXPR_NUMBER:
    case LF_EXPR_NEG:
        lf_str_add(p->to, sign && level > SIGN ? "(" : "");
        if (e->kind == LF_EXPR_NUMBER) {
            print_number(p->to, e->number);
        } else {
            lf_str_add(p->to, "-");
            print(p, e->arg[0], in, WHOLE);
        }
        lf_str_add(p->to, sign && level > SIGN ? ")" : "");
        return;
    case LF_EXPR_SELECT:
        lf_str_add(p->to, "sel(");
        print_arguments(p, e, in);
        return;
    case LF_EXPR_CALL: print_call(p, e, in, level); return;
    default: print_operator(p, e, in, level); return;
    }
}

void lf_expr_print(lf_str *to, const lf_expr *e, const lf_expr_style *style)
{
    print(&(printer){to, e, style}, e, NULL, OR);
}

/* ---- evaluating ---- */

/* The functions' natives; the others are values of these. */
static double native(lf_function f, double x, double a)
{
    switch (f) {
    case LF_FUNCTION_exp: return exp(x);
    case LF_FUNCTION_expm1: return expm1(x);
    case LF_FUNCTION_log: return log(x);
    case LF_FUNCTION_log1p: return log1p(x);
    case LF_FUNCTION_erf: return erf(x);
    case LF_FUNCTION_erfc: return erfc(x);
    case LF_FUNCTION_tanh: return tanh(x);
    case LF_FUNCTION_sqrt: return sqrt(x);
    case LF_FUNCTION_fabs: return fabs(x);
    case LF_FUNCTION_pow: return pow(x, a);
    case LF_FUNCTION_isinf: return isinf(x) ? 1 : 0;
    default: assert(!"a native function that is not evaluated"); return NAN;
    }
}

static double operate(lf_expr_kind kind, double u, double v)
{
    switch (kind) {
    case LF_EXPR_NEG: return -u;
    case LF_EXPR_ADD: return u + v;
    case LF_EXPR_SUB: return u - v;
    case LF_EXPR_MUL: return u * v;
    case LF_EXPR_DIV: return u / v;
    case LF_EXPR_LESS: return u < v;
    case LF_EXPR_MORE: return u > v;
    case LF_EXPR_AT_MOST: return u <= v;
    case LF_EXPR_AT_LEAST: return u >= v;
    case LF_EXPR_EQUAL: return u == v;
    case LF_EXPR_UNEQUAL: return u != v;
    case LF_EXPR_OR: return u != 0 || v != 0;
    default: assert(!"no operator"); return NAN;
    }
}

static double eval(const lf_expr *e, const double *v, bool f32);

static double eval_call(const lf_expr *e, const double *v, bool f32)
{
    const lf_function_info *row = lf_function_row((lf_function)e->which);
    double arg[3] = {0}, inner[LF_EXPR_VARIABLE_COUNT] = {0};
    for (int i = 0; i < row->args; i++)
        arg[i] = inner[row->param[i]] = eval(e->arg[i], v, f32);
    return row->value ? eval(row->value, inner, f32) : native((lf_function)e->which, arg[0], arg[1]);
}

/* Rounding a double's sum, product, quotient or root once more gives what f32 gives: 53 > 2 * 24 + 1 (Figueroa, 1995).
 */
static double eval(const lf_expr *e, const double *v, bool f32)
{
    double value;
    switch (e->kind) {
    case LF_EXPR_NUMBER: value = e->number; break;
    case LF_EXPR_VARIABLE: value = v[e->which]; break;
    case LF_EXPR_SELECT: return eval(e->arg[eval(e->arg[0], v, f32) != 0 ? 1 : 2], v, f32);
    case LF_EXPR_CALL: value = eval_call(e, v, f32); break;
    default: value = operate(e->kind, eval(e->arg[0], v, f32), e->arg[1] ? eval(e->arg[1], v, f32) : 0);
    }
    return f32 ? (float)value : value;
}

double lf_expr_eval(const lf_expr *e, const double v[LF_EXPR_VARIABLE_COUNT])
{
    return eval(e, v, false);
}

double lf_expr_eval_f32(const lf_expr *e, const double v[LF_EXPR_VARIABLE_COUNT])
{
    return eval(e, v, true);
}
