/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of products on Hopper's tensor cores: what texts and host must agree on. */
#include "cuda/emit.h"

enum {
    LINE = LF_CUDA_LINE,
    /* of text/wgmma.cu and text/mma.cu: row blocks that go past the weight together */
    RASTER = 8,
    SLOTS = 32 * 256 * 4,                       /* of text/wgmma.cu: sums that do not fit into registers */
    TOUCHED = 32 * 4,                           /* and words that are copied so that L1 has them */
    FEW_ROOM = 200 * 1024,                      /* of text/few_rows.cu: for stages */
    FEW_DEEP = 2,                               /* lines of a stage */
    FEW_PITCH = (LF_CUDA_TILE + 4) * 4          /* a row of sums */
};
#define FEW(most, shared_x, held)                                                                                      \
    {                                                                                                                  \
        .name = "few" #most, .product = "few_rows_product", .tile = "Few<" #most ">", .rows = most, .columns = 128,    \
        .cluster = 2, .few = true, .x_shared = shared_x, .w_box = 64, .w_lines = FEW_DEEP,                             \
        .stage = FEW_DEEP * (64 + most) * LINE, .stages = FEW_ROOM / (FEW_DEEP * (64 + most) * LINE),                  \
        .room = held * FEW_PITCH                                                                                       \
    }

#define TILES(called, struct_name, across, blocks, deep, ...)                                                          \
    {                                                                                                                  \
        .name = called, .product = "tensor_product", .tile = struct_name, .rows = 128, .columns = across,              \
        .cluster = blocks, .raster = RASTER, .w_box = across / blocks, .w_lines = 1, .stage = (128 + across) * LINE,   \
        .stages = deep, .room = TOUCHED + __VA_ARGS__                                                                  \
    }

const lf_cuda_shape_info lf_cuda_shape_table[LF_CUDA_SHAPES] = {
    [LF_CUDA_FEW16] = FEW(16, false, 16),
    [LF_CUDA_FEW64] = FEW(64, true, 32),
    [LF_CUDA_ALONE] = TILES("alone", "Alone", 128, 1, 6, 0),
    [LF_CUDA_HALVES] = TILES("halves", "Halves", 128, 2, 6, 0),
    [LF_CUDA_TURNS] = TILES("turns", "Turns", 128, 2, 6, 0, .turns = true),
    [LF_CUDA_SINGLE] = TILES("single", "Single", 256, 1, 4, SLOTS),
    [LF_CUDA_PAIRS] = TILES("pairs", "Pairs", 256, 2, 4, SLOTS),
};

unsigned lf_cuda_shape_shared(lf_cuda_shape shape, lf_cuda_mode mode)
{
    const lf_cuda_shape_info *s = &lf_cuda_shape_table[shape];
    enum { ALIGNED = 1024, BARRIER = 8, OTHERS = 4 }; /* barriers of few rows' own, and a word */
    const int room = s->few || mode == LF_CUDA_FP32 ? s->room : TOUCHED; /* others' sums fit into registers */
    return (unsigned)(ALIGNED + s->stages * s->stage + room + ((s->few ? 3 : 2) * s->stages + OTHERS) * BARRIER);
}
