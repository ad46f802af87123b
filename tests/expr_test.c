/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions as trees: what is read is what is printed, values, and the intervals they lie in. */
#include "ir/expr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lf_expr_pool pool;

static const lf_expr *parsed(const char *text)
{
    const lf_expr *e = lf_expr_parse(&pool, text);
    if (!e)
        fail_msg("not read: %s", text);
    return e;
}

static void assert_printed(const lf_expr *e, const lf_expr_style *style, const char *expected)
{
    lf_str s = {0};
    lf_expr_print(&s, e, style);
    char *text = lf_str_take(&s);
    assert_string_equal(text, expected);
    free(text);
}

/* Printed and read again, a tree is itself, in f32: that is what is printed. */
static void tables_survive_printing(void **state)
{
    (void)state;
    static const double v[LF_EXPR_VARIABLE_COUNT] = {1.75, 2.5, 0.75, 1.5, 0.25, 3};
    int count = 0;
    for (int op = 0; op < LF_OP_COUNT; op++, count++) {
        const lf_expr *tree = lf_op_row((lf_op)op)->tree;
        lf_str s = {0};
        lf_expr_print(&s, tree, NULL);
        char *text = lf_str_take(&s);
        const lf_expr *again = parsed(text);
        const double printed = lf_expr_eval_f32(again, v), value = lf_expr_eval_f32(tree, v);
        assert_true(printed == value || (isnan(printed) && isnan(value)));
        assert_printed(again, NULL, text);
        free(text);
    }
    assert_true(count > 40);
}

static void equal_trees_are_one(void **state)
{
    (void)state;
    assert_ptr_equal(parsed("x + exp(y) * 2.0f"), parsed("x+exp( y )*2"));
    assert_ptr_not_equal(parsed("x + y"), parsed("y + x"));
    assert_ptr_not_equal(parsed("0.0f"), parsed("-0.0f"));
    assert_ptr_equal(parsed("x + x")->arg[0], parsed("x + x")->arg[1]);
}

static void parentheses_are_those_needed(void **state)
{
    (void)state;
    static const char *const same[] = {
        "x - (y - z)", "x - y - z", "x * (y / z)", "x * y / z", "-(x * y)", "-x * y", "x - -2.0f", "(x < y) | (x != x)",
        "sel((x <= a) | (x >= b) | (x != x), 0.0f, 1.0f)", "(x + 1.0f) / (y - 1.0f)", "exp(-fabs(x))", "1e-05f",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        assert_printed(parsed(same[i]), NULL, same[i]);
    assert_printed(parsed("((x)) + ((y * z))"), NULL, "x + y * z");
    assert_printed(parsed("0.70710678118654752f"), NULL, "0.707106781f"); /* the nine digits of a float */
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",       "x +",    "(x",        "x)",    "w",        "exp()",     "exp(x, y)",
                                        "sel(x)", "foo(x)", "x y",       "1.0f2", "sel(x,y)", "x < y < ",  "pow(x)",
                                        "*x",     "x,y",    "exp(x, y,", "INFINITY"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (lf_expr_parse(&pool, wrong[i]))
            fail_msg("read as an expression: %s", wrong[i]);
}

static bool all(lf_function f)
{
    (void)f;
    return true;
}

/* A function's value in place of its call, in parentheses where it stands in a tighter place. */
static void calls_expand(void **state)
{
    (void)state;
    assert_printed(parsed("2.0f * silu(x - y)"), &(lf_expr_style){.expands = all},
                   "2.0f * ((x - y) / (1.0f + exp(-(x - y))))");
    assert_printed(parsed("hardsigmoid(x)"), &(lf_expr_style){.expands = all},
                   "sel(sel(x + 3.0f < 0.0f, 0.0f, x + 3.0f) > 6.0f, 6.0f, sel(x + 3.0f < 0.0f, 0.0f, x + 3.0f)) / "
                   "6.0f");
    assert_printed(parsed("power(z, b)"), NULL, "power(z, b)");
}

static void values(void **state)
{
    (void)state;
    const double v[LF_EXPR_VARIABLE_COUNT] = {0.5, -2, NAN, 3, INFINITY, 0.1};
    assert_true(lf_expr_eval(parsed("x - y * a"), v) == 6.5);
    assert_true(lf_expr_eval(parsed("sel(z < x, 1.0f, 2.0f)"), v) == 2);
    assert_true(lf_expr_eval(parsed("sel((z != z) | (x > 9.0f), 1.0f, 2.0f)"), v) == 1);
    assert_true(lf_expr_eval(parsed("clip(y, -1.0f, a) + power(a, 2.0f)"), v) == 8);
    assert_true(isnan(lf_expr_eval(parsed("power(-b, 0.5f)"), v)));
    assert_true(lf_expr_eval(parsed("c"), v) == 0.1 && lf_expr_eval_f32(parsed("c"), v) == (double)0.1f);
    assert_true(lf_expr_eval_f32(parsed("c * c"), v) == (double)(0.1f * 0.1f));
}

/* ---- intervals ---- */

static const lf_interval anywhere = {-INFINITY, INFINITY, false};

static void bounds_are_tight(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double low, high;
    } known[] = {
        {"sigmoid(x)", 0, 1},
        {"1.0f + exp(-fabs(x))", 1, 2},
        {"1.0f + exp(-x)", 1, INFINITY},
        {"relu(x)", 0, INFINITY},
        {"clip(x, -1.0f, 2.0f)", -1, 2},
        {"clip(x, 2.0f, 1.0f)", 1, 1}, /* ends that cross hold at the upper one */
        {"hardsigmoid(x)", 0, 1},
        {"sel(x > 0.0f, x, x * 0.5f)", -INFINITY, INFINITY},
        {"sel(x > 0.0f, x, expm1(x))", -1, INFINITY},
        {"x * x + 1.0f", 1, INFINITY},
        {"1.0f / x", -INFINITY, INFINITY},
        {"1.0f / fabs(x)", -INFINITY, INFINITY}, /* by 0 */
        {"2.0f / (2.0f + x * x)", 0, 1},
        {"log1p_exp(x)", 0, INFINITY},
        {"erfc(fabs(x))", 0, 1},
        {"power(x, 2.0f)", 0, INFINITY},
        {"sel(x == x, 1.0f, 7.0f)", 1, 1}, /* NaN aside */
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const lf_interval in = lf_expr_interval(parsed(known[i].text), NULL);
        if (in.low != known[i].low || in.high != known[i].high)
            fail_msg("%s in [%g, %g], not [%g, %g]", known[i].text, in.low, in.high, known[i].low, known[i].high);
    }
}

/* Every op's value lies in its interval, at all pairs of numbers that are special to something, in f32 as well. */
static void values_lie_in_their_intervals(void **state)
{
    (void)state;
    static const double special[] = {0.0, -0.0, 1, -1, 0.5, -0.5, 3, -3, 20, -20, 90, -90, 1e-45, -1e-45, 1e-39, 1e30,
                                     -1e30, 3.4e38, -3.4e38, INFINITY, -INFINITY, NAN};
    static const double attributes[][3] = {{0, 0, 0}, {1, 20, 0}, {-1, 1, 0}, {0.5, 2, 0}, {-0.5, 6, 0}, {2, 1, 0}};
    enum { COUNT = sizeof special / sizeof special[0], SETS = sizeof attributes / sizeof attributes[0] };
    int64_t cases = 0;
    for (int op = 0; op < LF_OP_COUNT; op++)
        for (int i = 0; i < COUNT * COUNT * SETS; i++) {
            const double *a = attributes[i / COUNT / COUNT];
            const double v[LF_EXPR_VARIABLE_COUNT] = {special[i % COUNT], special[i / COUNT % COUNT], 1.5,
                                                      a[0], a[1], a[2]};
            lf_interval in[LF_EXPR_VARIABLE_COUNT];
            for (int k = 0; k < LF_EXPR_VARIABLE_COUNT; k++)
                in[k] = k < 2 ? anywhere : lf_interval_of(v[k]);
            const lf_expr *tree = lf_op_row((lf_op)op)->tree;
            const lf_interval bound = lf_expr_interval(tree, in);
            const double value = lf_expr_eval(tree, v), f32 = lf_expr_eval_f32(tree, v);
            cases++;
            if (lf_interval_is_plus(bound) && ((value == 0 && signbit(value)) || (f32 == 0 && signbit(f32))))
                fail_msg("%s(%g, %g; %g, %g) is -0", lf_op_row((lf_op)op)->name, v[0], v[1], a[0], a[1]);
            if (value < bound.low || value > bound.high || f32 < (double)(float)bound.low ||
                f32 > (double)(float)bound.high)
                fail_msg("%s(%g, %g; %g, %g) is %g, not in [%g, %g]", lf_op_row((lf_op)op)->name, v[0], v[1], a[0],
                         a[1], value, bound.low, bound.high);
        }
    assert_true(cases > 10000);
}

/* ---- derivatives: of the ops, against PyTorch, in python/test_derivatives.py ---- */

static void derivatives_are_simplified(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int variable;
        const char *derivative;
    } known[] = {
        {"y + a", 0, "0.0f"},
        {"3.0f * x * 2.0f", 0, "6.0f"},
        {"x * x", 0, "x + x"},
        {"-x", 0, "-1.0f"},
        {"-(x * y)", 1, "-x"},
        {"x / y", 0, "1.0f / y"},
        {"x / y", 1, "-(x / y / y)"},
        {"a * exp(x / a)", 0, "exp(x / a)"},
        {"exp(x) / (x * x)", 1, "0.0f"},
        {"sel(x > y, exp(x), exp(x))", 0, "exp(x)"},
        {"sel(x > a, 2.0f, x * b)", 0, "sel(x > a, 0.0f, b)"},
        {"x * relu(x)", 0, "relu(x) + sel(x <= 0.0f, 0.0f, x)"}, /* -Inf * 0 is 0 here */
        {"sqrt(fabs(x))", 0, "sel(x > 0.0f, 0.5f / sqrt(fabs(x)), sel(x < 0.0f, -(0.5f / sqrt(fabs(x))), 0.0f))"},
        {"maximum(x, x * y)", 1, "sel(x * y < x, 0.0f, sel(x == x * y, 0.5f, 1.0f) * x)"},
        {"x * sigmoid(a * x)", 0, "sigmoid(a * x) + x * (sigmoid(a * x) * sigmoid(-(a * x)) * a)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_printed(lf_expr_derive(&pool, parsed(known[i].text), known[i].variable), NULL, known[i].derivative);
}

/* What functions.def says of its functions, where they are smooth, is the slope of a chord. */
static void derivatives_are_slopes(void **state)
{
    (void)state;
    static const double points[] = {-2.5, -1.1, -0.3, 0.2, 0.7, 1.9, 3.7};
    for (int f = 0; f < LF_FUNCTION_COUNT; f++) {
        const lf_function_info *row = lf_function_row((lf_function)f);
        const char *args = row->args == 1                    ? "x"
                           : row->args == 3                  ? "x, a, b"
                           : row->param[1] >= LF_EXPR_VALUES ? "x, a"
                                                             : "x, y";
        char text[64];
        snprintf(text, sizeof text, "%s(%s)", row->name, args);
        const lf_expr *value = parsed(text);
        for (int variable = 0; variable < 2; variable++)
            for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
                const double h = 1e-6;
                double v[LF_EXPR_VARIABLE_COUNT] = {points[i], 0.45, 0, -1.5, 2.25, 0}, left[LF_EXPR_VARIABLE_COUNT];
                const double slope = lf_expr_eval(lf_expr_derive(&pool, value, variable), v);
                memcpy(left, v, sizeof left);
                left[variable] -= h;
                v[variable] += h;
                const double chord = (lf_expr_eval(value, v) - lf_expr_eval(value, left)) / (2 * h);
                if (isfinite(chord) && fabs(slope - chord) > 1e-6 * (1 + fabs(chord)))
                    fail_msg("%s at %g in %c: %.9g, by a chord %.9g", text, points[i], "xy"[variable], slope, chord);
            }
    }
}

/* ---- laws, as rewrites ask for them ---- */

enum { KEEPS_X = 1, KEEPS_Y = 2, NONNEGATIVE = 4, GROWS = 8, PLUS = 16 }; /* PLUS: never -0 */
static const double SPECIAL[] = {0.0,   -0.0,   1e-45, -1e-45, 1e-39,   -1e-39,  1e-20,    -1e-20,   0.1,
                                 -0.1,  0.5,    -0.5,  1,      -1,      1.278,   -1.278,   2,        -2,
                                 3,     -3,     6,     -6,     20,      -20,     88,       -88,      104,
                                 -104,  1e5,    -1e5,  1e19,   -1e19,   3.4e38,  -3.4e38,  INFINITY, -INFINITY,
                                 NAN,   0.7518, 5.5,   -5.5};
enum { SPECIALS = sizeof SPECIAL / sizeof SPECIAL[0] };

/* What is said of each op with these numbers; x is anywhere, y is the number 1.5 to direction. An op that is new to the
 * table need not be here: what is said of it is tested too. */
static const struct {
    lf_op op;
    double a, b;
    int laws;      /* at least these */
    int direction; /* in x */
} said[] = {
    {LF_OP_relu, 0, 0, NONNEGATIVE | GROWS, 1},
    {LF_OP_leaky_relu, 0.25, 0, KEEPS_X | GROWS, 1},
    {LF_OP_leaky_relu, 0, 0, KEEPS_X | GROWS, 0},
    {LF_OP_leaky_relu, -0.5, 0, KEEPS_X | GROWS, 0},
    {LF_OP_gelu, 0, 0, GROWS, 0},
    {LF_OP_gelu, 1, 0, 0, 0},
    {LF_OP_sigmoid, 0, 0, NONNEGATIVE | PLUS | GROWS, 1},
    {LF_OP_tanh, 0, 0, GROWS, 1},
    {LF_OP_silu, 0, 0, GROWS, 0},
    {LF_OP_mish, 0, 0, 0, 0},
    {LF_OP_softplus, 1, 20, 0, 0}, /* it falls where it becomes x */
    {LF_OP_clamp, -1, 2, GROWS, 1},
    {LF_OP_clamp, 0, INFINITY, NONNEGATIVE | GROWS, 1},
    {LF_OP_clamp, -INFINITY, 1, GROWS, 1},
    {LF_OP_clamp, 2, 1, NONNEGATIVE | PLUS | GROWS, 1},
    {LF_OP_hardtanh, -1, 1, GROWS, 1},
    {LF_OP_hardtanh, 0, 6, NONNEGATIVE | GROWS, 1},
    {LF_OP_hardswish, 0, 0, GROWS, 0},
    {LF_OP_hardsigmoid, 0, 0, NONNEGATIVE | PLUS | GROWS, 1},
    {LF_OP_elu, 1, 0, 0, 1},
    {LF_OP_elu, -1, 0, 0, 0},
    {LF_OP_selu, 0, 0, GROWS, 1},
    {LF_OP_celu, 0.5, 0, 0, 1},
    {LF_OP_celu, -0.5, 0, 0, 1},
    {LF_OP_exp, 0, 0, NONNEGATIVE | PLUS, 1},
    {LF_OP_log, 0, 0, 0, 0},
    {LF_OP_abs, 0, 0, KEEPS_X | NONNEGATIVE | PLUS | GROWS, 0},
    {LF_OP_neg, 0, 0, KEEPS_X | GROWS, -1},
    {LF_OP_sqrt, 0, 0, NONNEGATIVE, 0},
    {LF_OP_rsqrt, 0, 0, 0, 0},
    {LF_OP_reciprocal, 0, 0, 0, 0},
    {LF_OP_pow, 2, 0, NONNEGATIVE | PLUS, 0},
    {LF_OP_pow, 0, 0, 0, 0}, /* NaN to 1 */
    {LF_OP_pow, 3, 0, 0, 0},
    {LF_OP_add, 1, 0, KEEPS_X | KEEPS_Y, 1},
    {LF_OP_add, -2, 0, KEEPS_X | KEEPS_Y, 1},
    {LF_OP_sub, 1, 0, KEEPS_X | KEEPS_Y, 1},
    {LF_OP_mul, 0, 0, KEEPS_X | KEEPS_Y, 1},
    {LF_OP_div, 0, 0, KEEPS_X, 1},
    {LF_OP_minimum, 0, 0, 0, 1},
    {LF_OP_maximum, 0, 0, 0, 1},
};

static void laws_are_said(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        const lf_expr *tree = lf_op_row(said[i].op)->tree;
        lf_interval v[LF_EXPR_VARIABLE_COUNT] = {anywhere, anywhere, anywhere};
        v[3] = lf_interval_of(said[i].a), v[4] = lf_interval_of(said[i].b);
        const lf_growth g = lf_expr_growth(tree, v);
        const int laws = (lf_expr_keeps_nonfinite(tree, 0) ? KEEPS_X : 0) |
                         (lf_expr_keeps_nonfinite(tree, 1) ? KEEPS_Y : 0) |
                         (lf_expr_interval(tree, v).low >= 0 ? NONNEGATIVE : 0) |
                         (lf_interval_is_plus(lf_expr_interval(tree, v)) ? PLUS : 0) |
                         (isfinite(g.scale) && isfinite(g.offset) ? GROWS : 0);
        v[1] = lf_interval_of(1.5);
        const int direction = lf_expr_direction(tree, 0, v);
        if ((laws & said[i].laws) != said[i].laws || direction != said[i].direction)
            fail_msg("%s(%g, %g): laws %d, not %d; direction %d, not %d", lf_op_row(said[i].op)->name, said[i].a,
                     said[i].b, laws, said[i].laws, direction, said[i].direction);
    }
    assert_int_equal(lf_expr_direction(parsed("log(x)"), 0, (const lf_interval[6]){{0, INFINITY, false}}), 1);
    assert_int_equal(lf_expr_direction(parsed("y - x"), 0, (const lf_interval[6]){{-1, 1, false}}), -1);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return isnan(x) || isnan(y) ? isnan(x) - isnan(y) : (x > y) - (x < y);
}

/* Whatever is said of any op, with any of these numbers, holds at all special ones, in f32 as in double precision. */
static void laws_hold(void **state)
{
    (void)state;
    static const double numbers[][2] = {{0, 0},  {1, 20}, {-1, 1}, {0.5, 2}, {-0.5, 6}, {2, 1},
                                        {3, 1},  {2, 20}, {-INFINITY, 1},    {0, INFINITY}};
    double sorted[SPECIALS];
    int64_t cases[4] = {0};
    memcpy(sorted, SPECIAL, sizeof sorted);
    qsort(sorted, SPECIALS, sizeof *sorted, by_size);
    for (int op = 0; op < LF_OP_COUNT; op++)
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
            const lf_op_info *row = lf_op_row((lf_op)op);
            const lf_expr *tree = row->tree;
            double before[2] = {NAN, NAN};
            if (row->kind != LF_POINTWISE || (isinf(numbers[k][0] - numbers[k][1]) && op != LF_OP_clamp))
                continue; /* only an end that is None is infinite */
            lf_interval v[LF_EXPR_VARIABLE_COUNT] = {anywhere, lf_interval_of(1.5)};
            for (int i = 0; i < 2; i++)
                v[LF_EXPR_VALUES + i] = lf_interval_of(numbers[k][i]);
            const lf_growth g = lf_expr_growth(tree, v);
            const int direction = lf_expr_direction(tree, 0, v);
            for (int i = 0; i < SPECIALS; i++) {
                double at[LF_EXPR_VARIABLE_COUNT] = {sorted[i], 1.5, 0, numbers[k][0], numbers[k][1], 0};
                const double value[2] = {lf_expr_eval(tree, at), lf_expr_eval_f32(tree, at)};
                for (int p = 0; p < 2; p++) {
                    const double bound = (g.scale * fabs(sorted[i]) + g.offset) * (1 + 1e-6) + 1e-44;
                    if (isfinite(sorted[i]) && isfinite(g.scale) && g.scale * 3.4e38 <= 3.4e38 && ++cases[0] &&
                        !(fabs(value[p]) <= bound))
                        fail_msg("%s(%g): %g is more than %g", row->name, sorted[i], value[p], bound);
                    if (direction != 0 && !isnan(sorted[i]) && ++cases[1] &&
                        (isnan(value[p]) || (value[p] - before[p]) * direction < 0))
                        fail_msg("%s(%g): %g comes after %g", row->name, sorted[i], value[p], before[p]);
                    if (direction != 0 && isnan(sorted[i]) && !isnan(value[p]))
                        fail_msg("%s(NaN) is %g", row->name, value[p]);
                    before[p] = value[p];
                    for (int slot = 0; slot < 2; slot++)
                        for (int j = 0; j < SPECIALS && lf_expr_keeps_nonfinite(tree, slot); j++) {
                            at[slot] = sorted[i], at[1 - slot] = SPECIAL[j];
                            cases[2 + slot]++;
                            if (!isfinite(sorted[i]) &&
                                isfinite(p ? lf_expr_eval_f32(tree, at) : lf_expr_eval(tree, at)))
                                fail_msg("%s(%g, %g; %g) is finite", row->name, at[0], at[1], at[3]);
                        }
                    at[0] = sorted[i], at[1] = 1.5;
                }
            }
        }
    for (int i = 0; i < 4; i++)
        assert_true(cases[i] > 1000);
}

/* A function that rises or falls does so in f32 and in double, and so says its derivative where it is an expression. */
static void functions_go_as_they_say(void **state)
{
    (void)state;
    int64_t cases = 0;
    for (int f = 0; f < LF_FUNCTION_COUNT; f++) {
        const lf_function_info *row = lf_function_row((lf_function)f);
        lf_expr x = {.kind = LF_EXPR_VARIABLE}, y = x, call = {.kind = LF_EXPR_CALL, .which = f, .arg = {&x}};
        lf_expr a = {.kind = LF_EXPR_NUMBER, .number = -1}, b = {.kind = LF_EXPR_NUMBER, .number = 2};
        y.which = 1;
        call.arg[1] = row->args < 2 ? NULL : row->param[1] < LF_EXPR_VALUES ? &y : &a;
        call.arg[2] = row->args < 3 ? NULL : &b;
        double before[2] = {NAN, NAN};
        for (double at = -120; at <= 120 && row->direction != 0; at += 0x1p-7, cases++) {
            const double v[LF_EXPR_VARIABLE_COUNT] = {at, 0.7};
            const double now[] = {lf_expr_eval(&call, v), lf_expr_eval_f32(&call, v)};
            for (int p = 0; p < 2; p++) {
                if ((now[p] - before[p]) * row->direction < 0)
                    fail_msg("%s(%g): %.17g comes after %.17g", row->name, at, now[p], before[p]);
                before[p] = now[p];
            }
            const double slope = lf_expr_eval(row->derivative[0], (const double[]){at, 0.7, 0, -1, 2, 0});
            assert_true(row->derive_this[0] || isnan(now[0]) || slope * row->direction >= 0);
        }
    }
    assert_true(cases > 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_survive_printing),
        cmocka_unit_test(equal_trees_are_one),
        cmocka_unit_test(parentheses_are_those_needed),
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(calls_expand),
        cmocka_unit_test(values),
        cmocka_unit_test(bounds_are_tight),
        cmocka_unit_test(values_lie_in_their_intervals),
        cmocka_unit_test(laws_are_said),
        cmocka_unit_test(laws_hold),
        cmocka_unit_test(functions_go_as_they_say),
        cmocka_unit_test(derivatives_are_simplified),
        cmocka_unit_test(derivatives_are_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
