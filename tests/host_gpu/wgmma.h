/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of text/ptx_wgmma.cu, in its place: products are made when they are waited for, as late as they can be,
 * and read shared memory then. Each of four warps has 16 of the 64 rows. */

struct lane_stage {
    float *d;
    unsigned x, w;
    int keep;
};

// Row `row` of a tile that a descriptor begins: its next 32 bytes.
inline void tile_row(unsigned (&to)[8], unsigned long long descriptor, int row)
{
    const unsigned begin = (unsigned)(descriptor & 0x3fff) << 4, apart = (unsigned)(descriptor >> 32 & 0x3fff) << 4,
                   at = begin + row / 8 * apart + row % 8 * 128;
    for (unsigned i = 0; i < 32; i += 16) {
        const unsigned swizzled = descriptor >> 62 == 1 ? (at + i) ^ ((at + i) >> 7 & 7) << 4 : at + i;
        memcpy(to + i / 4, &shared_at<uint4>(swizzled), 16);
    }
}

template <class Number>
inline void product_of_group(void **sums, int quarter, unsigned long long left, unsigned long long right, int columns,
                             int keep)
{
    unsigned words[16][8], others[8][8];
    for (int i = 0; i < 16; ++i)
        tile_row(words[i], left, quarter * 16 + i);
    const tensor_rows<Number> a(words);
    for (int j = 0; j < columns; j += 8) {
        float d[16][8];
        for (int i = 0; i < 8; ++i)
            tile_row(others[i], right, j + i);
        const tensor_columns<Number> b(others);
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < 4; ++i)
                d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = keep ? ((float *)sums[l])[j / 2 + i] : 0.0f;
        add_product<Number>(d, a, b);
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < 4; ++i)
                ((float *)sums[l])[j / 2 + i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
}

inline unsigned long long descriptor(unsigned low) { return (unsigned long long)TILE_HIGH << 32 | low; }
#define p lane->keep
#define t 1
#define PRODUCT(NUMBER, COLUMNS, SWAPS, X, W, KEEP)                                                                    \
    host_gpu_later(product_of_group<NUMBER>, sums, descriptor(SWAPS ? lane->w + W : lane->x + X),                      \
                   descriptor(SWAPS ? lane->x + X : lane->w + W), COLUMNS, KEEP);
template <int MODE, int COLUMNS, bool SWAPS> inline void stage_of_warp(void **lanes)
{
    const lane_stage *lane = (const lane_stage *)lanes[0];
    void *sums[32];
    for (int l = 0; l < 32; ++l) {
        const lane_stage *other = (const lane_stage *)lanes[l];
        sums[l] = other->d;
        if (other->x != lane->x || other->w != lane->w || !other->keep != !lane->keep)
            host_gpu_trap("lanes of a warp that multiply different tiles");
    }
    if constexpr (MODE == MODE_FP32) {
        SIX(PRODUCT, number_f16, COLUMNS, SWAPS)
    } else if constexpr (MODE == MODE_PIECE) {
        PIECE(PRODUCT, number_f16, COLUMNS, SWAPS)
    } else if constexpr (MODE == MODE_TF32) {
        FOUR(PRODUCT, number_tf32, COLUMNS, SWAPS)
    } else if constexpr (MODE == MODE_BF16) {
        FOUR(PRODUCT, number_bf16, COLUMNS, SWAPS)
    } else {
        FOUR(PRODUCT, number_f16, COLUMNS, SWAPS)
    }
}
#undef p
#undef t
template <int MODE, int SUMS> inline void multiply_stage(float (&d)[SUMS], unsigned x, unsigned w, int keep)
{
    lane_stage lane = {d, x, w, keep};
    host_gpu_together(&lane, stage_of_warp<MODE, 2 * SUMS, false>);
}
template <int MODE, int SUMS> inline void multiply_swapped(float (&d)[SUMS], unsigned x, unsigned w, int keep)
{
    lane_stage lane = {d, x, w, keep};
    host_gpu_together(&lane, stage_of_warp<MODE, 2 * SUMS, true>);
}
inline void wgmma_fence() {}
inline void commit_of_warp(void **) { host_gpu_later_commit(); }
inline void wgmma_commit() { host_gpu_together(0, commit_of_warp); }
template <int n> inline void wgmma_wait() { host_gpu_later_wait(n); }
