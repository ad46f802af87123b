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
        assert_true(lf_expr_eval_f32(again, v) == lf_expr_eval_f32(tree, v));
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
        {"1.0f / fabs(x)", -INFINITY, INFINITY}, /* 1 / -0 */
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
                in[k] = k < 2 ? (lf_interval){-INFINITY, INFINITY} : (lf_interval){v[k], v[k]};
            const lf_expr *tree = lf_op_row((lf_op)op)->tree;
            const lf_interval bound = lf_expr_interval(tree, in);
            const double value = lf_expr_eval(tree, v), f32 = lf_expr_eval_f32(tree, v);
            cases++;
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
        cmocka_unit_test(derivatives_are_simplified),
        cmocka_unit_test(derivatives_are_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
