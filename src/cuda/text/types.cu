// SPDX-License-Identifier: Apache-2.0
// Elements of 16 bits. Between load and store they are f32; they are rounded to nearest, ties to even, what is too
// large to infinity. Two neighbours are a word, the first in its low half.

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
