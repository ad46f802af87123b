/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of products on Hopper's tensor cores: what texts and host must agree on. */
#include "cuda/emit.h"

enum {
    LINE = LF_CUDA_LINE,
    SLOTS = 32 * 256 * 4,                       /* of text/wgmma.cu: sums that do not fit into registers */
    FEW_ROOM = 200 * 1024,                      /* of text/few_rows.cu: for stages */
    FEW_PITCH = (LF_CUDA_TILE + 4) * 4          /* a row of sums */
};
#define FEW(most, shared_x, held)                                                                                                                    \
    {.product = "few_rows_product", .tile = "Few<" #most ">", .rows = most, .columns = 128, .cluster = 2, .few = true, .x_shared = shared_x, .w_box = 64,   \
     .stage = (64 + most) * LINE, .stages = FEW_ROOM / ((64 + most) * LINE), .room = held * FEW_PITCH}

const lf_cuda_shape_info lf_cuda_shape_table[LF_CUDA_SHAPES] = {
    [LF_CUDA_FEW16] = FEW(16, false, 16),
    [LF_CUDA_FEW64] = FEW(64, true, 32),
    [LF_CUDA_ALONE] = {.product = "tensor_product", .tile = "Alone", .rows = 128, .columns = 128, .cluster = 1, .w_box = 128, .stage = 256 * LINE, .stages = 6},
    [LF_CUDA_APART] = {.product = "tensor_product", .tile = "Apart", .rows = 128, .columns = 128, .cluster = 2, .w_box = 64, .stage = 256 * LINE, .stages = 6,
                       .room = SLOTS},
    [LF_CUDA_PAIRS] = {.product = "tensor_product", .tile = "Pairs", .rows = 128, .columns = 256, .cluster = 2, .w_box = 128, .stage = 384 * LINE, .stages = 4,
                       .room = SLOTS},
};

unsigned lf_cuda_shape_shared(lf_cuda_shape shape)
{
    const lf_cuda_shape_info *s = &lf_cuda_shape_table[shape];
    enum { ALIGNED = 1024, BARRIER = 8, OTHERS = 4 }; /* barriers of few rows' own, and a word */
    return (unsigned)(ALIGNED + s->stages * s->stage + s->room + (2 * s->stages + OTHERS) * BARRIER);
}
