// SPDX-License-Identifier: Apache-2.0
// What text/wgmma.cu and text/few_rows.cu have in common.

// SHORT: where K is short f32 loses so little that what is left out elsewhere counts: lo*lo is not, and sums are
// promoted every half line, 16 of K. Of the rms of random results 1.1e-7 are lost at whole lines (measured), by
// reckoning 0.4e-7 of it for want of lo*lo and 0.6e-7 because hi + lo have 23 bits; f32 loses 0.9e-7 at K = 64.
enum { MODE_PIECE = MODES }; // such a half of a line
template <class G> __device__ constexpr int stage_mode() { return G::SHORT ? (int)MODE_PIECE : (int)G::MODE; }

// ---- the products of a stage ----

// A tile of 128-byte lines: that they are swizzled, and eight of them 1024 bytes apart, the high word of its descriptor
// says. The low word counts 16 bytes: +2 is the next 32 bytes of the line.
#define TILE_HIGH 0x40000040
__device__ __forceinline__ unsigned tile_low(unsigned address) { return (1u << 16) | ((address & 0x3ffff) >> 4); }

// In 32-byte steps of a line: PRODUCT(..., X, W, KEEP), with x's step and the weight's as descriptors count, for each,
// adds to the sums, or to 0 if KEEP is p and they are not kept.
#define FOUR(PRODUCT, ...)                                                                                             \
    PRODUCT(__VA_ARGS__, 0, 0, p) PRODUCT(__VA_ARGS__, 2, 2, t) PRODUCT(__VA_ARGS__, 4, 4, t)                          \
    PRODUCT(__VA_ARGS__, 6, 6, t)
#define SIX(PRODUCT, ...) /* the small ones first, while the sum is small */                                           \
    PRODUCT(__VA_ARGS__, 4, 0, p) PRODUCT(__VA_ARGS__, 6, 2, t) PRODUCT(__VA_ARGS__, 0, 4, t)                          \
    PRODUCT(__VA_ARGS__, 2, 6, t) PRODUCT(__VA_ARGS__, 0, 0, t) PRODUCT(__VA_ARGS__, 2, 2, t)
#define PIECE(PRODUCT, ...) /* likewise */                                                                             \
    PRODUCT(__VA_ARGS__, 4, 4, p) PRODUCT(__VA_ARGS__, 4, 0, t) PRODUCT(__VA_ARGS__, 0, 4, t)                          \
    PRODUCT(__VA_ARGS__, 0, 0, t)

// Registers change here: no use of them moves across.
template <int SUMS> __device__ __forceinline__ void pin(float (&d)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        pin_one(d[i]);
}
