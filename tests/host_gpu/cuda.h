/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA gives a kernel beside the language, so that g++ compiles generated text for the machine of machine.h: the
 * instructions that the ordinary units' kernels use. A kernel with those of tensor cores, or with Hopper's copies and
 * barriers in shared memory, does not compile here. What is approximate on a GPU is exact here, but for denormals where
 * the instruction drops them. Comes before the text. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "machine.h"

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __align__(bytes) alignas(bytes)
#define __CUDA_ARCH__ 750

alignas(1024) unsigned char raw[HOST_GPU_RAW];

#define threadIdx host_gpu_thread
#define blockIdx host_gpu_block
#define blockDim host_gpu_block_size
#define gridDim host_gpu_grid_size

// ---- numbers ----

template <class T> struct alignas(4 * sizeof(T)) four_of { T x, y, z, w; };
template <class T> struct alignas(2 * sizeof(T)) two_of { T x, y; };
typedef four_of<float> float4;
typedef two_of<float> float2;
typedef two_of<double> double2;
typedef two_of<unsigned> uint2;
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

template <class To, class From> inline To with_the_bits_of(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __int_as_float(int x) { return with_the_bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return with_the_bits_of<float>(x); }
inline unsigned __float_as_uint(float x) { return with_the_bits_of<unsigned>(x); }

template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }

inline float without_denormals(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float ptx_exp2(float x) { return without_denormals(exp2f(without_denormals(x))); }
inline float ptx_inverse_ftz(float x) { return without_denormals(1.0f / without_denormals(x)); }
inline float ptx_inverse(float x) { return 1.0f / x; }
inline void settle(float &) {}
inline unsigned halves(float low, float high) { return host_gpu_f16_of(low) | host_gpu_f16_of(high) << 16; }
inline float half_low(unsigned d) { return host_gpu_of_f16(d & 0xffff); }
inline float half_high(unsigned d) { return host_gpu_of_f16(d >> 16); }
inline unsigned brain_float(float x)
{
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline unsigned brain_floats(float low, float high) { return brain_float(low) | brain_float(high) << 16; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return fabsf(b) > 0x1p126f ? 0.0f * a : a / b; }

// ---- memory ----

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
inline unsigned atomicAdd(unsigned *p, unsigned x) { return (*p += x) - x; }
inline void __threadfence() {} // one thread runs at a time

// A vector's address is a multiple of its size (g++ asks: -fsanitize=alignment).
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(void *, void *)
{
    host_gpu_trap("a misaligned address");
}

// ---- threads ----

inline void __syncwarp() { host_gpu_warp_sync(); }
inline void __syncthreads() { host_gpu_barrier(0, (int)blockDim.x); }
inline int __syncthreads_count(int x) { return host_gpu_vote(x != 0); }
inline int __syncthreads_or(int x) { return host_gpu_vote(x != 0) != 0; }
template <int threads> inline void meet(int barrier) { host_gpu_barrier(barrier, threads); }
[[noreturn]] inline void __trap()
{
    host_gpu_trap("__trap");
    __builtin_unreachable();
}

template <class T> inline T __shfl_xor_sync(unsigned, T x, int lanes)
{
    unsigned long long bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = host_gpu_shuffle_xor(bits, lanes);
    memcpy(&x, &bits, sizeof x);
    return x;
}

// ---- launching ----

template <class T> struct bare { typedef T type; };
template <class T> struct bare<const T> { typedef T type; };
template <int... I> struct numbers {};
template <class... P, int... I> inline void call_with(void (*kernel)(P...), void **params, numbers<I...>)
{
    kernel(*(typename bare<P>::type *)params[I]...);
}
template <class... P> inline void call_with(void (*kernel)(P...), void **params)
{
    call_with(kernel, params, numbers<__integer_pack((int)sizeof...(P))...>());
}
// Follows the text, for each of its kernels: what host_gpu_run calls.
#define HOST_GPU_KERNEL(name)                                                                                          \
    extern "C" void host_gpu_call_##name(void **params) { call_with(name, params); }
