/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA gives a kernel beside the language, so that g++ compiles generated text for the machine of machine.h, and
 * the functions of text/ptx.cu, which is left out. What is approximate on a GPU is exact here, but for denormals where
 * the instruction drops them; tensor cores are not exact (tensor_cores.h). Comes before the text. __CUDA_ARCH__ is a
 * definition on the command line. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "machine.h"
#include "tensor_cores.h"

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)

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
typedef four_of<unsigned> uint4;
typedef two_of<unsigned> uint2;
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

inline float __int_as_float(int x) { return with_the_bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return with_the_bits_of<float>(x); }
inline unsigned __float_as_uint(float x) { return with_the_bits_of<unsigned>(x); }

#define LESSER_AND_GREATER(T)                                                                                          \
    inline T min(T a, T b) { return b < a ? b : a; }                                                                   \
    inline T max(T a, T b) { return a < b ? b : a; }
LESSER_AND_GREATER(int)
LESSER_AND_GREATER(unsigned)
LESSER_AND_GREATER(long long)

inline float without_denormals(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float ptx_exp2(float x) { return without_denormals(exp2f(without_denormals(x))); }
inline float ptx_inverse_ftz(float x) { return without_denormals(1.0f / without_denormals(x)); }
inline float ptx_inverse(float x) { return 1.0f / x; }
inline float ptx_max(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }
inline void settle(float &) {}
inline void pin_one(float &) {}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return fabsf(b) > 0x1p126f ? 0.0f * a : a / b; }

// ---- memory ----

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
inline unsigned atomicAdd(unsigned *p, unsigned x) { return (*p += x) - x; }
inline unsigned exchange_of(unsigned *p, unsigned x)
{
    const unsigned was = *p;
    *p = x;
    return was;
}
inline unsigned atomicMax(unsigned *p, unsigned x) { return exchange_of(p, max(*p, x)); }
inline unsigned atomicOr(unsigned *p, unsigned x) { return exchange_of(p, *p | x); }
inline unsigned atomicInc(unsigned *p, unsigned most) { return exchange_of(p, *p >= most ? 0 : *p + 1); }
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

template <class T> inline T __shfl_sync(unsigned, T x, int lane)
{
    unsigned long long bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = host_gpu_shuffle(bits, (unsigned)lane);
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T> inline T __shfl_xor_sync(unsigned all, T x, int lanes)
{
    return __shfl_sync(all, x, (int)threadIdx.x % 32 ^ lanes);
}

inline unsigned __reduce_max_sync(unsigned, unsigned x)
{
    for (int lanes = 1; lanes < 32; lanes *= 2)
        x = max(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
}

// ---- shared memory ----

// Where raw begins: as on a GPU, behind the kernel's own, at no multiple of a line.
enum { RAW_AT = 1600 };
inline unsigned shared_address(const void *p) { return RAW_AT + (unsigned)((const unsigned char *)p - raw); }
template <class T> inline T &shared_at(unsigned address)
{
    if (address % sizeof(T) != 0)
        host_gpu_trap("a misaligned address");
    if (address < RAW_AT || address + sizeof(T) > RAW_AT + host_gpu_raw_bytes)
        host_gpu_trap("shared memory that there is not");
    return *(T *)(raw + (address - RAW_AT));
}
template <class T> inline void shared_put(unsigned to, T x) { shared_at<T>(to) = x; }
template <class T> inline void shared_get(T &x, unsigned from) { x = shared_at<T>(from); }

template <bool near> inline void copy_async(unsigned to, const void *from, int bytes)
{
    if ((size_t)from % 16 != 0)
        host_gpu_trap("a misaligned address");
    host_gpu_copy(&shared_at<uint4>(to), from, 16, (unsigned)bytes);
}
inline void copy_eight_async(unsigned to, const void *from, int bytes)
{
    if ((size_t)from % 8 != 0)
        host_gpu_trap("a misaligned address");
    host_gpu_copy(&shared_at<uint2>(to), from, 8, (unsigned)bytes);
}
inline void copy_word_async(unsigned to, const float *from) { host_gpu_copy(&shared_at<float>(to), from, 4, 4); }
inline void copy_commit() { host_gpu_copy_commit(); }
template <int n> inline void copy_wait() { host_gpu_copy_wait(n); }
inline void copy_wait_all() { host_gpu_copy_commit(), host_gpu_copy_wait(0); }

// ---- Ampere's tensor cores ----

struct lane_matrices {
    unsigned *d, at;
};
inline void matrices_of_warp(void **lanes)
{
    for (int l = 0; l < 32; ++l)
        for (int m = 0; m < 4; ++m)
            ((lane_matrices *)lanes[l])->d[m] =
                (&shared_at<uint4>(((lane_matrices *)lanes[8 * m + l / 4])->at).x)[l % 4];
}
inline void matrices(unsigned (&d)[4], unsigned at)
{
    lane_matrices lane = {d, at};
    host_gpu_together(&lane, matrices_of_warp);
}

struct lane_product {
    float *d;
    const unsigned *a, *b;
};
// Lane l has 4 bytes of rows l / 4 and l / 4 + 8 of a, of row l / 4 of b, and of 16 bytes further on; two columns of d.
template <class Number> inline void product_of_warp(void **lanes)
{
    unsigned a[16][8], b[8][8];
    float d[16][8];
    for (int l = 0; l < 32; ++l) {
        const lane_product *lane = (const lane_product *)lanes[l];
        for (int i = 0; i < 4; ++i)
            a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = lane->a[i];
        for (int i = 0; i < 2; ++i)
            b[l / 4][l % 4 + i * 4] = lane->b[i];
        for (int i = 0; i < 4; ++i)
            d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = lane->d[i];
    }
    tensor_rows<Number> x(a);
    tensor_columns<Number> w(b);
    add_product<Number>(d, x, w);
    for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 4; ++i)
            ((lane_product *)lanes[l])->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}
template <class Number> inline void mma(float *d, const unsigned *a, const unsigned *b)
{
    lane_product lane = {d, a, b};
    host_gpu_together(&lane, product_of_warp<Number>);
}
inline void mma_tf32(float *d, const unsigned *a, const unsigned *b) { mma<number_tf32>(d, a, b); }
inline void mma_bf16(float *d, const unsigned *a, const unsigned *b) { mma<number_bf16>(d, a, b); }
inline void mma_f16(float *d, const unsigned *a, const unsigned *b) { mma<number_f16>(d, a, b); }
inline void mma_f16_fresh(float *d, const unsigned *a, const unsigned *b)
{
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_f16(d, a, b);
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
#define HOST_GPU_KERNEL(name, cluster)                                                                                 \
    extern "C" void host_gpu_call_##name(void **params) { call_with(name, params); }                                   \
    extern "C" const unsigned host_gpu_cluster_##name = cluster;
