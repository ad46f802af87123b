/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that expressions of ops.def call, over vectors: exp expm1 log log1p erf tanh sqrt fabs pow isinf;
 * and silu, mish, gelu_erf and gelu_tanh, which no expression of those computes to the last digits. Included by
 * kern_template.h.
 *
 * Worst errors over all floats stand in bench/results/math-accuracy.txt (make test-exhaustive). Denormals are
 * numbers like any other here, NaN comes out as NaN. Nothing branches on an element, so all take the same time.
 *
 * Polynomials are minimax, found with Sollya's fpminimax under the error named beside each; coefficients are
 * floats. */
#ifndef LF_CPU_KERN_MATH_H
#define LF_CPU_KERN_MATH_H

#include "cpu/kern_vec.h"

#define SIGN ((int32_t)0x80000000)
#define LOG2_E 0x1.715476p+0f
#if HAS_FMA
#define LN2_HIGH 0x1.62e43p-1f /* log 2 rounded; n times it is not, inside a multiply-add */
#define LN2_LOW -0x1.05c61p-29f
#else
#define LN2_HIGH 0x1.62e4p-1f /* 15 bits of log 2, so that n <= 2^8 times it is exact */
#define LN2_LOW 0x1.7f7d1cp-20f
#endif

static inline vec magnitude(vec x)
{
    return (vec)((ivec)x & ~SIGN);
}

/* |of| with the sign of `sign`. */
static inline vec with_sign(vec of, vec sign)
{
    return (vec)(((ivec)of & ~SIGN) | ((ivec)sign & SIGN));
}

/* 2^n for whole n, -126 <= n <= 127. */
static inline vec power_of_two(vec n)
{
    return (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

/* x * 2^n, rounded once. In two steps, of which the first is exact: 2^n itself may be no float where the result is one.
 * scale_down: the same for -220 <= n <= 0 and |x| < 2^27. */
#if HAS_SCALE
#define scale_down(x, n) scale(x, n)
#else
static inline vec scale(vec x, vec n)
{
    const ivec whole = __builtin_convertvector(n, ivec), half = whole >> 1;
    return x * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
}

static inline vec scale_down(vec x, vec n)
{
    const vec exponent = n + (0x1.8p23f + (127 + 100)); /* in its lowest bits: of 2^(n + 100) */
    return x * (vec)((uvec)exponent << 23) * 0x1p-100f;
}
#endif

/* What p = u * v lost in rounding: u * v - p, itself exact. Without a multiply-add by halves of 12 bits, whose
 * products are exact (Dekker, 1971). */
static inline vec lost_in_product(vec u, vec v, vec p)
{
#if HAS_FMA
    return mul_add(u, v, -p);
#else
    const vec uh = (vec)((ivec)u & ~0xfff), ul = u - uh, vh = (vec)((ivec)v & ~0xfff), vl = v - vh;
    return ((uh * vh - p) + uh * vl + ul * vh) + ul * vl;
#endif
}

/* u / v where v is the same for many u and 2^-100 < |v| < 2^100, 0 or not finite: 1 / v is calculated once. The product
 * with it, corrected by what it leaves over, is the quotient rounded (Markstein, 1990), but for u so small that what is
 * left over is denormal. Where that is no number, the product itself is the quotient: 0, Inf or NaN. */
static inline vec quotient(vec u, vec v)
{
#if HAS_FMA
    const vec inverse = 1.0f / v, near = u * inverse, q = mul_add(mul_add(-near, v, u), inverse, near);
    return blend(q == q, q, near);
#else
    return u / v;
#endif
}

/* ---- exp and what is near it ---- */

/* x - n log 2, n whole. |x| <= 170. */
static inline vec less_powers_of_two(vec x, vec *n)
{
    const float round = 0x1.8p23f; /* added, it leaves no bits below 1 */
    *n = mul_add(x, wide(LOG2_E), wide(round)) - round;
    return mul_add(*n, wide(-LN2_LOW), mul_add(*n, wide(-LN2_HIGH), x));
}

/* exp r - 1 on |r| <= log 2 / 2 and a little more. */
static inline vec expm1_near_0(vec r)
{
    /* (exp r - 1 - r) / r^2, to 3.2e-9 of exp r */
    vec q = mul_add(r, wide(0x1.6a5a54p-10f), wide(0x1.123aecp-7f));
    q = mul_add(r, q, wide(0x1.5558a6p-5f));
    q = mul_add(r, q, wide(0x1.55549p-3f));
    q = mul_add(r, q, wide(0x1.fffffcp-2f));
    return mul_add(r * r, q, r);
}

/* exp(x) = 2^n * (1 + result), |result| < 0.42. |x| <= 170. */
static inline vec exp_reduced(vec x, vec *n)
{
    return expm1_near_0(less_powers_of_two(x, n));
}

/* The same of x + low. low: what x lacks, |low| < 2^-10. */
static inline vec exp_reduced_of_two(vec x, vec low, vec *n)
{
    return expm1_near_0(less_powers_of_two(x, n) + low);
}

/* Past 89 it is Inf; before -103.98 it is 0, and kept from being calculated as such: a machine takes twenty times as
 * long where an exponent gets too small, and softmax meets that wherever something was masked out. */
static inline vec exp_of(vec x)
{
    vec n;
    const ivec some = ~(x < -103.98f); /* NaN too */
    const vec p = exp_reduced((vec)((ivec)least(wide(89.0f), x) & some), &n);
    return (vec)((ivec)scale(p + 1.0f, n) & some);
}

/* The same for x <= 0, or NaN, as softmax has it. */
static inline vec exp_of_none_above_0(vec x)
{
    vec n;
#ifdef scale_unless_below
    const vec p = exp_reduced(x, &n);
    return scale_unless_below(x, -103.98f, p + 1.0f, n);
#else
    const ivec some = ~(x < -103.98f);
    const vec p = exp_reduced((vec)((ivec)x & some), &n);
    return (vec)((ivec)scale_down(p + 1.0f, n) & some);
#endif
}

static inline vec expm1_of(vec x)
{
    vec n;
    const vec within = least(wide(89.0f), greatest(wide(-30.0f), x));
    const vec p = exp_reduced(within, &n);
    /* 2^128 is no float: the half of the result, then. */
    const ivec last = n > 127.0f;
    const vec s = power_of_two(least(n, wide(127.0f)));
    const vec half = mul_add(p, s, s - blend(last, wide(0.5f), wide(1.0f)));
    return with_sign(half * blend(last, wide(2.0f), wide(1.0f)), x);
}

/* Below 0.55 a polynomial, to 3.9e-9. Beyond, (e - 1) / (e + 1) for e = exp(2|x|), as t / (t + 2) with t = e - 1;
 * from 9.02 on that is 1. */
static inline vec tanh_of(vec x)
{
    vec n;
    const vec a = least(wide(10.0f), magnitude(x)), square = a * a;
    const vec p = exp_reduced(2.0f * a, &n);
    const vec s = power_of_two(n);
    const vec t = mul_add(p, s, s - 1.0f);
    vec near = mul_add(square, wide(-0x1.b05946p-8f), wide(0x1.5cf902p-6f));
    near = mul_add(square, near, wide(-0x1.b99b0ep-5f));
    near = mul_add(square, near, wide(0x1.110fcap-3f));
    near = mul_add(square, near, wide(-0x1.555554p-2f));
    near = mul_add(a * square, near, a);
    return with_sign(blend(a < 0.55f, near, t / (t + 2.0f)), x);
}

/* ---- log ---- */

/* log(2^k * (1 + f)), sqrt(1/2) <= 1 + f <= sqrt 2. */
static inline vec log_reduced(vec f, vec k)
{
    /* (log(1 + f) - f + f^2 / 2) / f^3, to 8e-9 of log(1 + f) */
    vec q = mul_add(f, wide(-0x1.2a6f8p-4f), wide(0x1.015976p-3f));
    q = mul_add(f, q, wide(-0x1.0e96ccp-3f));
    q = mul_add(f, q, wide(0x1.239ce2p-3f));
    q = mul_add(f, q, wide(-0x1.5466fep-3f));
    q = mul_add(f, q, wide(0x1.99944ep-3f));
    q = mul_add(f, q, wide(-0x1.000234p-2f));
    q = mul_add(f, q, wide(0x1.55557p-2f));
    const vec square = f * f;
    const vec rest = mul_add(square, mul_add(f, q, wide(-0.5f)), k * LN2_LOW);
    return mul_add(k, wide(LN2_HIGH), f + rest);
}

/* r where 0 < x < Inf; Inf of Inf, -Inf of 0, otherwise NaN. */
static inline vec log_ends(vec x, vec r)
{
    const vec nan = (vec)((ivec)x | 0x7fc00000);
    return blend(x > 0.0f, blend(x < INFINITY, r, x), blend(x == 0.0f, wide(-INFINITY), nan));
}

#define SQRT_HALF 0x3f3504f3 /* its bits: subtracted, the exponent changes at sqrt(1/2) * 2^k */

static inline vec log_of(vec x)
{
    const ivec tiny = x < 0x1p-126f;
    const uvec bits = (uvec)blend(tiny, x * 0x1p23f, x);
    const ivec k = (ivec)(bits - SQRT_HALF) >> 23;
    const vec m = (vec)(bits - ((uvec)k << 23));
    return log_ends(x, log_reduced(m - 1.0f, __builtin_convertvector(k, vec) - blend(tiny, wide(23.0f), wide(0.0f))));
}

/* 1 + x = 2^k * (1 + f), where f = 2^-k * x + (2^-k - 1) has all of x's digits. (After N. Juffa.) */
static inline vec log1p_of(vec x)
{
    const uvec power = ((uvec)(1.0f + x) - SQRT_HALF) & 0xff800000; /* k, where the exponent is */
    const vec four = (vec)(0x40800000 - power);                     /* 4 * 2^-k: 2^-k itself may be denormal */
    const vec f = (vec)((uvec)x - power) + mul_add(four, wide(0.25f), wide(-1.0f));
    return log_ends(1.0f + x, log_reduced(f, __builtin_convertvector((ivec)power >> 23, vec)));
}

/* ---- the normal distribution ---- */

/* a (1 - Phi(a)) exp(a^2 / 2), Phi the normal distribution, for 0 <= a <= 16: as w T(v) with w = a / (a + k) and v
 * = (a - k) / (a + k) = 2w - 1. T to 1.9e-8; k near 3 is best, and at this k T(0) happens to be a float. off: what
 * the rounding of a + k made of it, relatively: the result times 1 + off is closer. (d - k is exact, k having few
 * bits; 1 / d is (1 - w) / k.) */
static inline vec tail_of_normal(vec a, vec *off)
{
    const float k = 3.04296875f;
    const vec d = a + k, w = a / d, v = mul_add(w, wide(2.0f), wide(-1.0f));
    *off = ((d - k) - a) * ((1.0f - w) * (1.0f / k));
    vec t = mul_add(v, wide(0x1.26589ap-14f), wide(-0x1.36a898p-13f));
    t = mul_add(v, t, wide(-0x1.096b42p-10f));
    t = mul_add(v, t, wide(0x1.5ed0aep-11f));
    t = mul_add(v, t, wide(0x1.e30b66p-8f));
    t = mul_add(v, t, wide(-0x1.2217cp-7f));
    t = mul_add(v, t, wide(-0x1.b13206p-5f));
    t = mul_add(v, t, wide(0x1.e7361p-3f));
    t = mul_add(v, t, wide(-0x1.079898p-1f));
    t = mul_add(v, t, wide(0x1.76156cp-1f));
    return w * t;
}

/* By a polynomial in x^2 where that is below 0.86, to 8.6e-10; beyond, 1 - 2 (1 - Phi(sqrt 2 |x|)). */
static inline vec erf_of(vec x)
{
    vec n, off;
    const vec a = least(wide(4.0f), magnitude(x)), square = a * a;
    vec p = mul_add(square, wide(0x1.5c33ccp-14f), wide(-0x1.a9ff5ep-11f));
    p = mul_add(square, p, wide(0x1.54be28p-8f));
    p = mul_add(square, p, wide(-0x1.b80d1cp-6f));
    p = mul_add(square, p, wide(0x1.ce2deep-4f));
    p = mul_add(square, p, wide(-0x1.812742p-2f));
    p = mul_add(square, p, wide(0x1.06eba8p-3f));
    const vec e = exp_reduced_of_two(-square, -lost_in_product(a, a, square), &n);
    const vec root2_a = a * 0x1.6a09e6p+0f;
    const vec tail = tail_of_normal(root2_a, &off) * scale_down(e + 1.0f, n);
    return with_sign(blend(square < 0.86f, mul_add(a, p, a), 1.0f - 2.0f * tail / root2_a), x);
}

/* ---- x times something that falls off like exp: with the power of two apart ----
 * exp(-|x|) is denormal and has lost digits while x exp(-|x|) is not, so its 2^n is multiplied in last. And where exp
 * is of a product, that must have lost less than 2^-24 (not 2^-24 of itself): it is calculated in two parts.
 * 0 * x is NaN for -Inf, as PyTorch has it. */

/* x / (1 + exp(-x)) */
static inline vec silu(vec x)
{
    vec n;
    const ivec negative = x < 0.0f;
    const vec a = least(wide(128.0f), magnitude(x)), p = exp_reduced(-a, &n);
    const vec part = blend(negative, mul_add(a, p, a) * -1.0f + 0.0f * x, x) / (1.0f + scale_down(1.0f + p, n));
    return blend(negative, scale_down(part, n), part);
}

/* x tanh(log(1 + e)) = x s / (1 + s) = x - x / (1 + s), where e = exp x, s = e (1 + e / 2); the first where x < 0. */
static inline vec mish(vec x)
{
    vec n;
    const ivec negative = x < 0.0f;
    const vec within = least(wide(21.0f), greatest(wide(-128.0f), x));
    const vec p = exp_reduced(within, &n), e = scale(1.0f + p, n), top = mul_add(within, p, within);
    const vec part = blend(negative, mul_add(top, 0.5f * e, top), within) / (1.0f + mul_add(0.5f * e, e, e));
    return blend(negative, scale_down(part, n) + 0.0f * x, x - part);
}

/* Both kinds of gelu are relu(x) less what falls off on both sides, 2^n * lost. */
static inline vec relu_less(vec x, vec lost, vec n)
{
    return blend(x < 0.0f, 0.0f * x, x) - scale_down(lost, n);
}

/* |x| (1 - Phi(|x|)) is lost. Near 0 Phi is 1/2 + x P(x^2), P to 2.8e-8. */
static inline vec gelu_erf(vec x)
{
    vec n, off;
    const vec a = least(wide(16.0f), magnitude(x)), square = a * a;
    const vec e = exp_reduced_of_two(-0.5f * square, -0.5f * lost_in_product(a, a, square), &n);
    const vec tail = tail_of_normal(a, &off), far = relu_less(x, mul_add(tail, e + off, tail), n);
    vec p = mul_add(square, wide(0x1.c7a62ep-14f), wide(-0x1.375a8p-10f));
    p = mul_add(square, p, wide(0x1.46da5cp-7f));
    p = mul_add(square, p, wide(-0x1.10587ap-4f));
    p = mul_add(square, p, wide(0x1.988454p-2f));
    return blend(a < 0.7f, x * mul_add(x, p, wide(0.5f)), far);
}

/* 0.5 (1 + tanh(y / 2)) = 1 / (1 + exp(-y)), y = x w, w = b + c x^2, b = 2 sqrt(2 / pi), c = 0.044715 b: |x| / (1
 * + exp |y|) is lost. */
static inline vec gelu_tanh(vec x)
{
    const float b = 0x1.988454p+0f, b_low = -0x1.857936p-25f, c = 0x1.2444f2p-4f, c_low = 0x1.49b16ap-29f;
    const vec a = least(wide(12.0f), magnitude(x)), square = a * a, square_low = lost_in_product(a, a, square);
    const vec cubic = c * square;
    const vec cubic_low = lost_in_product(wide(c), square, cubic) + (c * square_low + c_low * square);
    const vec w = b + cubic, part = w - b;
    const vec w_low = ((b - (w - part)) + (cubic - part)) + (b_low + cubic_low);
    const vec y = a * w, y_low = lost_in_product(a, w, y) + a * w_low;
    vec n;
    const vec p = exp_reduced_of_two(-y, -y_low, &n);
    return relu_less(x, mul_add(a, p, a) / (1.0f + scale_down(1.0f + p, n)), n);
}

/* ---- the rest ---- */

/* Lane by lane: rare, and the C library's is right to the last digit, but for a signalling NaN, which to the power of 0
 * is 1 as any other. */
static inline vec pow_of(vec x, float exponent)
{
    union { vec v; float f[KERN_LANES]; } lane = {.v = x};
    for (int i = 0; i < KERN_LANES; i++)
        lane.f[i] = exponent == 0.0f ? 1.0f : powf(lane.f[i], exponent);
    return lane.v;
}

/* ---- as expressions name them ---- */

#undef isinf
#define exp(x) exp_of(x)
#define expm1(x) expm1_of(x)
#define log(x) log_of(x)
#define log1p(x) log1p_of(x)
#define erf(x) erf_of(x)
#define tanh(x) tanh_of(x)
#define sqrt(x) root(x)
#define fabs(x) magnitude(x)
#define pow(x, exponent) pow_of(x, exponent)
#define isinf(x) (magnitude(x) == INFINITY)

#endif
