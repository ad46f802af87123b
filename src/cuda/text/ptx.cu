// SPDX-License-Identifier: Apache-2.0
// Instructions that the language has no words for, one function each: of the ordinary units, and of tensor cores as
// Ampere has them. Nothing else in a kernel's text is PTX, but for text/ptx_hopper.cu and text/ptx_wgmma.cu. Where
// kernels run without a GPU, functions of the same names take their place: tests/host_gpu/cuda.h.

// ---- numbers ----

__device__ __forceinline__ float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); // what would be denormal is 0: one instruction, not five
    return y;
}
__device__ __forceinline__ float ptx_inverse(float x)
{
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float ptx_inverse_ftz(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ float ptx_max(float a, float b) // NaN where one of them is
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif

// Two neighbours of 16 bits, the first in the low half.
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
__device__ __forceinline__ unsigned tensor_float(float x)
{
    unsigned d;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(d) : "f"(x)); // as a tensor map rounds what it copies
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(x));
#endif
    return d;
}

// ---- registers ----

// What leads to x is done before what follows.
__device__ __forceinline__ void settle(float &x) { asm volatile("" : "+f"(x)); }
// x changes here: no use of it moves across.
__device__ __forceinline__ void pin_one(float &x) { asm volatile("" : "+f"(x)::"memory"); }

// ---- threads ----

// So many threads of the block meet, by one of its sixteen barriers.
template <int threads> __device__ __forceinline__ void meet(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// ---- shared memory ----

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void shared_put(unsigned to, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void shared_put(unsigned to, unsigned x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ void shared_put(unsigned to, float2 v)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void shared_put(unsigned to, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ void shared_get(float &x, unsigned from)
{
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
}
__device__ __forceinline__ void shared_get(unsigned &x, unsigned from)
{
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
}
__device__ __forceinline__ void shared_get(uint2 &v, unsigned from)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
}
__device__ __forceinline__ void shared_get(float2 &v, unsigned from)
{
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
}
__device__ __forceinline__ void shared_get(float4 &v, unsigned from)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
}

// ---- copies into shared memory ----

// 16 bytes: so many of them (16 or 0), then zeros. near: L2 takes what is next to them.
template <bool near> __device__ __forceinline__ void copy_async(unsigned to, const void *from, int bytes)
{
    if constexpr (near)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// 8 bytes likewise.
__device__ __forceinline__ void copy_eight_async(unsigned to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// 4 bytes, which stay in L1.
__device__ __forceinline__ void copy_word_async(unsigned to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// But for the n latest groups.
template <int n> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- Ampere's tensor cores ----

// Four matrices of 8 rows of 16 bytes; lane l has the address of row l % 8 of matrix l / 8, and gets 4 bytes of row
// l / 4 of each.
__device__ __forceinline__ void matrices(unsigned (&d)[4], unsigned at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
}

// d (16 x 8) = a b^T + d, over 32 bytes of a's 16 and of b's 8 rows, as `matrices` brings them
#define MMA(TYPE, KEPT)                                                                                                \
    asm volatile("mma.sync.aligned." TYPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"       \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), KEPT)
#define ADDED "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3])
#define FRESH "f"(0.0f), "f"(0.0f), "f"(0.0f), "f"(0.0f)
__device__ __forceinline__ void mma_tf32(float *d, const unsigned *a, const unsigned *b)
{
    MMA("m16n8k8.row.col.f32.tf32.tf32.f32", ADDED);
}
__device__ __forceinline__ void mma_bf16(float *d, const unsigned *a, const unsigned *b)
{
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32", ADDED);
}
__device__ __forceinline__ void mma_f16(float *d, const unsigned *a, const unsigned *b)
{
    MMA("m16n8k16.row.col.f32.f16.f16.f32", ADDED);
}
// + 0 in the place of d
__device__ __forceinline__ void mma_f16_fresh(float *d, const unsigned *a, const unsigned *b)
{
    MMA("m16n8k16.row.col.f32.f16.f16.f32", FRESH);
}
#undef MMA
#undef ADDED
#undef FRESH
