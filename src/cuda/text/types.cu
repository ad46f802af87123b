// SPDX-License-Identifier: Apache-2.0
// Elements of 16 bits. Between load and store they are f32; they are rounded to nearest, ties to even, what is too
// large to infinity. Two neighbours are a word, the first in its low half.

__device__ __forceinline__ unsigned halves(float low, float high)
{
    unsigned d;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#else
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
        : "=r"(d) : "f"(low), "f"(high));
#endif
    return d;
}
__device__ __forceinline__ float half_low(unsigned d)
{
    float f;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(f) : "r"(d));
    return f;
}
__device__ __forceinline__ float half_high(unsigned d)
{
    float f;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(d));
    return f;
}
__device__ __forceinline__ unsigned brain_floats(float low, float high)
{
#if __CUDA_ARCH__ >= 800
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#else
    const auto rounded = [](float x) { // the upper half; a carry goes into the exponent, up to infinity
        const unsigned bits = __float_as_uint(x);
        return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
#endif
}

struct f16 {
    unsigned short bits;
    static __device__ __forceinline__ unsigned pair(float low, float high) { return halves(low, high); }
    static __device__ __forceinline__ float low(unsigned pair) { return half_low(pair); }
    static __device__ __forceinline__ float high(unsigned pair) { return half_high(pair); }
    __device__ __forceinline__ operator float() const { return half_low(bits); }
};
struct bf16 {
    unsigned short bits;
    static __device__ __forceinline__ unsigned pair(float low, float high) { return brain_floats(low, high); }
    static __device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
    static __device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
    __device__ __forceinline__ operator float() const { return low(bits); }
};
