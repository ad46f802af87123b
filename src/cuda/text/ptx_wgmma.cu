// SPDX-License-Identifier: Apache-2.0
// What text/ptx.cu is, of Hopper's tensor cores (wgmma).

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
#define R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define R64                                                                                                            \
    R8(0, 1, 2, 3, 4, 5, 6, 7) "," R8(8, 9, 10, 11, 12, 13, 14, 15) "," R8(16, 17, 18, 19, 20, 21, 22, 23) ","         \
    R8(24, 25, 26, 27, 28, 29, 30, 31) "," R8(32, 33, 34, 35, 36, 37, 38, 39) ","                                      \
    R8(40, 41, 42, 43, 44, 45, 46, 47) "," R8(48, 49, 50, 51, 52, 53, 54, 55) "," R8(56, 57, 58, 59, 60, 61, 62, 63)
#define R128                                                                                                           \
    R64 "," R8(64, 65, 66, 67, 68, 69, 70, 71) "," R8(72, 73, 74, 75, 76, 77, 78, 79) ","                              \
    R8(80, 81, 82, 83, 84, 85, 86, 87) "," R8(88, 89, 90, 91, 92, 93, 94, 95) ","                                      \
    R8(96, 97, 98, 99, 100, 101, 102, 103) "," R8(104, 105, 106, 107, 108, 109, 110, 111) ","                          \
    R8(112, 113, 114, 115, 116, 117, 118, 119) "," R8(120, 121, 122, 123, 124, 125, 126, 127)
#define R16 R8(0, 1, 2, 3, 4, 5, 6, 7) "," R8(8, 9, 10, 11, 12, 13, 14, 15)
#define R32 R16 "," R8(16, 17, 18, 19, 20, 21, 22, 23) "," R8(24, 25, 26, 27, 28, 29, 30, 31)

// All products of a stage, as text/hopper.cu has them. They are one statement: the compiler's optimizer takes as long
// over each as it has operands. SWAPPED: the other way round, for few rows of x: d (64 columns of y x N rows) = w x^T.
// The sums are the same to the last bit.
#define STRAIGHT(X, W) X ", " W
#define SWAPPED(X, W) W ", " X
#define PRODUCT(ORDER, N, SUMS, TYPE, TAIL, X, W, KEEP)                                                                \
    "wgmma.mma_async.sync.aligned.m64n" #N TYPE " {" SUMS "}, " ORDER("x" #X, "w" #W) ", " #KEEP ", 1, 1" TAIL ";\n"
#define DESCRIPTOR_(TO, LOW, HIGH) "mov.b64 " TO ", {" LOW ", " #HIGH "};\n"
#define DESCRIPTOR(TO, LOW, HIGH) DESCRIPTOR_(TO, LOW, HIGH)
#define NEXT(T, LOW, STEP) "add.u32 l, " LOW ", " #STEP "; " DESCRIPTOR(T #STEP, "l", TILE_HIGH)
#define STEPS(T, LOW) DESCRIPTOR(T "0", LOW, TILE_HIGH) NEXT(T, LOW, 2) NEXT(T, LOW, 4) NEXT(T, LOW, 6)
#define STAGE(PRODUCTS, X, W, KEEP, ...)                                                                               \
    asm volatile("{ .reg .pred p, t; .reg .b32 l; .reg .b64 x0, x2, x4, x6, w0, w2, w4, w6;\n"                         \
                 "setp.ne.b32 p, %" #KEEP ", 0; setp.ne.b32 t, 1, 0;\n"                                                \
                 STEPS("x", "%" #X) STEPS("w", "%" #W) PRODUCTS "}"                                                    \
                 : __VA_ARGS__ : "r"(x), "r"(w), "r"(keep))
#define MULTIPLY_STAGE(NAME, ORDER, N, COUNT, SUMS, ...) /* then the operands that follow the sums */                  \
    template <int MODE>                                                                                                \
    __device__ __forceinline__ void NAME(float (&d)[COUNT], unsigned x, unsigned w, int keep)                          \
    {                                                                                                                  \
        if constexpr (MODE == MODE_FP32)                                                                               \
            STAGE(SIX(PRODUCT, ORDER, N, SUMS, "k16.f32.f16.f16", ", 0, 0"), __VA_ARGS__);                             \
        else if constexpr (MODE == MODE_PIECE)                                                                         \
            STAGE(PIECE(PRODUCT, ORDER, N, SUMS, "k16.f32.f16.f16", ", 0, 0"), __VA_ARGS__);                           \
        else if constexpr (MODE == MODE_TF32)                                                                          \
            STAGE(FOUR(PRODUCT, ORDER, N, SUMS, "k8.f32.tf32.tf32", ""), __VA_ARGS__);                                 \
        else if constexpr (MODE == MODE_BF16)                                                                          \
            STAGE(FOUR(PRODUCT, ORDER, N, SUMS, "k16.f32.bf16.bf16", ", 0, 0"), __VA_ARGS__);                          \
        else                                                                                                           \
            STAGE(FOUR(PRODUCT, ORDER, N, SUMS, "k16.f32.f16.f16", ", 0, 0"), __VA_ARGS__);                            \
    }
MULTIPLY_STAGE(multiply_stage, STRAIGHT, 256, 128, R128, 128, 129, 130, D64(0), D64(64))
MULTIPLY_STAGE(multiply_stage, STRAIGHT, 128, 64, R64, 64, 65, 66, D64(0))
MULTIPLY_STAGE(multiply_stage, STRAIGHT, 64, 32, R32, 32, 33, 34, D16(0), D16(16))
MULTIPLY_STAGE(multiply_swapped, SWAPPED, 8, 4, "%0,%1,%2,%3", 4, 5, 6, D4(0))
MULTIPLY_STAGE(multiply_swapped, SWAPPED, 16, 8, R8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, D4(0), D4(4))
MULTIPLY_STAGE(multiply_swapped, SWAPPED, 32, 16, R16, 16, 17, 18, D16(0))
MULTIPLY_STAGE(multiply_swapped, SWAPPED, 64, 32, R32, 32, 33, 34, D16(0), D16(16))
