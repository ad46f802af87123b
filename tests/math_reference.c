/* SPDX-License-Identifier: Apache-2.0 */
#include "math_reference.h"

#include <float.h>
#include <math.h>

/* Written so that double precision loses nothing in tails, with NaN and Inf where src/ir/eval_pointwise.c has
 * them. Attributes are the floats the kernel gets. */
#define FORMULA(name, ...)                                                                                           \
    static double name##_ref(double x, double y, const float *attr)                                                  \
    {                                                                                                                \
        const double a = attr[0], b = attr[1];                                                                       \
        (void)x, (void)y, (void)a, (void)b;                                                                          \
        return (__VA_ARGS__);                                                                                        \
    }

static double clamp_to(double x, double low, double high)
{
    double y = x < low ? low : x;
    return y > high ? high : y;
}

FORMULA(relu, x < 0 ? 0 : x)
FORMULA(leaky_relu, x > 0 ? x : x * a)
FORMULA(gelu, x * 0.5 * erfc(-x * 0.70710678118654752440))
FORMULA(gelu_tanh, x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))))
FORMULA(sigmoid, 1 / (1 + exp(-x)))
FORMULA(tanh, tanh(x))
FORMULA(silu, x / (1 + exp(-x)))
FORMULA(mish, x * tanh(log1p(exp(x))))
FORMULA(softplus, x * a > b ? x : log1p(exp(x * a)) / a)
FORMULA(clamp, clamp_to(x, a, b))
FORMULA(hardswish, x * clamp_to(x + 3, 0, 6) / 6)
FORMULA(hardsigmoid, clamp_to(x + 3, 0, 6) / 6)
FORMULA(elu, x > 0 ? x : expm1(x) * a)
FORMULA(selu, 1.0507009873554804934 * (x > 0 ? x : expm1(x) * 1.6732632423543772848))
FORMULA(celu, x > 0 ? x : a * expm1(x / a))
FORMULA(softsign, x / (1 + fabs(x)))
FORMULA(logsigmoid, fmin(x, 0) - log1p(exp(-fabs(x))))
FORMULA(hardshrink, fabs(x) <= a ? 0 : x)
FORMULA(softshrink, x > a ? x - a : x < -a ? x + a : 0 * x)
FORMULA(exp, exp(x))
FORMULA(log, log(x))
FORMULA(expm1, expm1(x))
FORMULA(log1p, log1p(x))
FORMULA(erf, erf(x))
FORMULA(abs, fabs(x))
FORMULA(to, x)
FORMULA(neg, -x)
FORMULA(sqrt, sqrt(x))
FORMULA(rsqrt, 1 / sqrt(x))
FORMULA(reciprocal, 1 / x)
FORMULA(pow, a == 0.5 ? sqrt(x) : a == -0.5 ? 1 / sqrt(x) : pow(x, a))
FORMULA(add, x + a * y)
FORMULA(sub, x - a * y)
FORMULA(mul, x * y)
FORMULA(div, x / y)
FORMULA(gt, x > y)
FORMULA(lt, x < y)
FORMULA(ge, x >= y)
FORMULA(le, x <= y)
FORMULA(eq, x == y)
FORMULA(ne, x != y)
FORMULA(logical_and, x != 0 && y != 0)
FORMULA(logical_or, x != 0 || y != 0)
FORMULA(logical_not, x == 0)
FORMULA(where, x != 0 ? y : x)
FORMULA(minimum, x < y || isnan(x) ? x : y)
FORMULA(maximum, x > y || isnan(x) ? x : y)

#define ROUNDED 0.5000001 /* the nearest float (double rounding aside) */
#define ONE(name, label, ulps, ...) {label, LF_OP_##name, {__VA_ARGS__}, false, ulps, name##_ref}
#define TWO(name, label, ulps, ...) {label, LF_OP_##name, {__VA_ARGS__}, true, ulps, name##_ref}

/* Functions first: these are walked through. */
const math_case math_cases[] = {
    ONE(exp, "exp", 2, 0),
    ONE(log, "log", 2, 0),
    ONE(tanh, "tanh", 2, 0),
    ONE(expm1, "expm1", 2, 0),
    ONE(log1p, "log1p", 2, 0),
    ONE(erf, "erf", 2, 0),
    ONE(gelu, "gelu", 4, 0),
    {"gelu tanh", LF_OP_gelu, {1}, false, 4, gelu_tanh_ref},
    ONE(sigmoid, "sigmoid", 4, 0),
    ONE(silu, "silu", 4, 0),
    ONE(mish, "mish", 4, 0),
    ONE(softplus, "softplus", 4, 1, 20),
    ONE(softplus, "softplus 2, 100", 4, 2, 100),
    ONE(elu, "elu", 4, 1),
    ONE(elu, "elu -0.7", 4, -0.7f),
    ONE(selu, "selu", 4, 0),
    ONE(celu, "celu 2", 4, 2),
    ONE(celu, "celu 0.3", 4, 0.3f),
    ONE(softsign, "softsign", 1.5, 0),
    ONE(logsigmoid, "logsigmoid", 4, 0),
    ONE(hardshrink, "hardshrink", 0, 0.5f),
    ONE(softshrink, "softshrink", ROUNDED, 0.5f),
    ONE(rsqrt, "rsqrt", 1.5, 0),
    ONE(hardswish, "hardswish", 2, 0),
    ONE(hardsigmoid, "hardsigmoid", 1.5, 0),
    ONE(sqrt, "sqrt", ROUNDED, 0),
    ONE(reciprocal, "reciprocal", ROUNDED, 0),
    ONE(relu, "relu", 0, 0),
    ONE(abs, "abs", 0, 0),
    ONE(to, "to", 0, 0),
    ONE(neg, "neg", 0, 0),
    ONE(leaky_relu, "leaky_relu", ROUNDED, 0.01f),
    ONE(leaky_relu, "leaky_relu -2", 0, -2),
    ONE(clamp, "clamp", 0, -0.5f, 2),
    {"hardtanh", LF_OP_hardtanh, {-1, 1}, false, 0, clamp_ref},
    ONE(pow, "pow 2", ROUNDED, 2),
    ONE(pow, "pow 0.5", ROUNDED, 0.5f),
    ONE(pow, "pow -0.5", 1.5, -0.5f),
    ONE(pow, "pow 3", 1, 3),
    ONE(pow, "pow 1.7", 1, 1.7f),
    ONE(pow, "pow -1", 1, -1),
    TWO(add, "add", ROUNDED, 1),
    TWO(sub, "sub", ROUNDED, 1),
    TWO(mul, "mul", ROUNDED, 0),
    TWO(div, "div", ROUNDED, 0),
    TWO(gt, "gt", 0, 0),
    TWO(lt, "lt", 0, 0),
    TWO(ge, "ge", 0, 0),
    TWO(le, "le", 0, 0),
    TWO(eq, "eq", 0, 0),
    TWO(ne, "ne", 0, 0),
    TWO(logical_and, "logical_and", 0, 0),
    TWO(logical_or, "logical_or", 0, 0),
    ONE(logical_not, "logical_not", 0, 0),
    TWO(where, "where", 0, 0), /* the third value is the first */
    TWO(minimum, "minimum", 0, 0),
    TWO(maximum, "maximum", 0, 0),
};
const size_t math_case_count = sizeof math_cases / sizeof math_cases[0];

void math_run(const math_case *c, size_t t, int64_t n, const float *x, const float *y, float *out)
{
    lf_kern_at(t)->map[c->op](n, x, c->two ? y : NULL, NULL, c->attr, out);
}

bool math_normal(double ref)
{
    return fabs(ref) >= FLT_MIN;
}

double math_ulps(float y, double ref)
{
    if (isnan(ref) || isnan(y))
        return isnan(ref) && isnan(y) ? 0 : INFINITY;
    if (isinf(ref))
        return (double)y == ref ? 0 : INFINITY;
    int exponent = 0;
    if (math_normal(ref))
        frexp(ref, &exponent);
    else
        exponent = -125;
    exponent = exponent > 128 ? 128 : exponent;
    double got = isinf(y) ? copysign(0x1p128, y) : (double)y;
    double want = fabs(ref) > 0x1p128 ? copysign(0x1p128, ref) : ref;
    return fabs(got - want) * ldexp(1, 24 - exponent);
}
