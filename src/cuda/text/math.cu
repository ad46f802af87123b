// SPDX-License-Identifier: Apache-2.0
// Functions that the device has not, or not as fast.

// e^x for x of at most 0, as a term of a sum: 2^(x log2(e)), of which the device's own is 3.4e-8 too small in the mean
// (H200, x from -2 to 0), so that sums would be; the exponent is so much larger, which as a rule is less than a unit of
// its last place, but rounding is right in the mean.
__device__ __forceinline__ float exp_term(float x) { return ptx_exp2(fmaf(x, 1.44269504f, 4.9e-8f)); }

// NaN where one of them is.
__device__ __forceinline__ float largest(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    return ptx_max(a, b);
#else
    return sel((a > b) | (a != a), a, b);
#endif
}

// a / b for b that is neither tiny nor about to overflow, which the ops that use it see to: within two units of the
// last place, and without the branch that IEEE's division has.
__device__ __forceinline__ float quotient(float a, float b)
{
    return a * ptx_inverse_ftz(b);
}

// The same with a step more, for b that is finite: within little more than half a unit, as IEEE's.
__device__ __forceinline__ float near_quotient(float a, float b)
{
    const float r = ptx_inverse_ftz(b), q = a * r;
    return fmaf(fmaf(-b, q, a), r, q);
}

// For any b 1 / b within little more than half a unit of the last place, 1 / sqrt(b) within one, without IEEE's
// branches. Where the device's own is 0 or infinite a step more makes NaN.
__device__ __forceinline__ float inverse(float b)
{
    const float r = ptx_inverse(b), s = fmaf(r, fmaf(-b, r, 1.0f), r);
    return s == s ? s : r;
}
__device__ __forceinline__ float inverse_root(float b)
{
    const float r = rsqrtf(b), s = fmaf(0.5f * r, fmaf(-b * r, r, 1.0f), r);
    return s == s ? s : r;
}

// a / b and a / sqrt(b) where b is a statistic: the inverse is had once for all that share it; so is what that is off,
// which would be in all of them alike. a / b: for a that is not infinite, and b whose inverse is a float.
__device__ __forceinline__ float over(float a, float b)
{
    const float r = inverse(b), off = r * fmaf(-b, r, 1.0f);
    return fmaf(a, r, a * (off == off ? off : 0.0f));
}
__device__ __forceinline__ float over_root(float a, float b) { return a * inverse_root(b); }

// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2).
__device__ __forceinline__ float mish(float x)
{
    const float e = expf(x), n = fmaf(e, e, e + e);
    return x > 20.0f ? x : x * near_quotient(n, n + 2.0f);
}

// x Phi(x), Phi the normal distribution: relu(x) less |x| (1 - Phi(|x|)), which is w T(2w - 1) exp(-x^2 / 2) with w =
// |x| / (|x| + k); near 0 Phi is 1/2 + x P(x^2). Polynomials as in src/cpu/kern_math.h. x^2 / 2 is had in two parts, or
// exp would lose digits. A few units of the last place everywhere; 0 * x is NaN for -Inf, as PyTorch has it.
__device__ __forceinline__ float gelu_erf(float x)
{
    const float k = 3.04296875f, a = fminf(16.0f, fabsf(x)), square = a * a;
    const float high = 0.72134752f * square; // exp(-x^2 / 2) = 2^(low - high)
    const float low =
        fmaf(-9.629814945e-09f, square, fmaf(-0.72134752f, fmaf(a, a, -square), fmaf(-0.72134752f, square, high)));
    const float two = ptx_exp2(-high), e = fmaf(two, 0.693147181f * low, two);
    const float w = __fdividef(a, a + k), v = fmaf(w, 2.0f, -1.0f);
    float t = fmaf(v, 0x1.26589ap-14f, -0x1.36a898p-13f);
    t = fmaf(v, t, -0x1.096b42p-10f);
    t = fmaf(v, t, 0x1.5ed0aep-11f);
    t = fmaf(v, t, 0x1.e30b66p-8f);
    t = fmaf(v, t, -0x1.2217cp-7f);
    t = fmaf(v, t, -0x1.b13206p-5f);
    t = fmaf(v, t, 0x1.e7361p-3f);
    t = fmaf(v, t, -0x1.079898p-1f);
    t = fmaf(v, t, 0x1.76156cp-1f) * w;
    const float far = fmaf(-t, e, x * (x < 0.0f ? 0.0f : 1.0f));
    float p = fmaf(square, 0x1.c7a62ep-14f, -0x1.375a8p-10f);
    p = fmaf(square, p, 0x1.46da5cp-7f);
    p = fmaf(square, p, -0x1.10587ap-4f);
    p = fmaf(square, p, 0x1.988454p-2f);
    return a < 0.7f ? x * fmaf(x, p, 0.5f) : far;
}
