/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as CUDA C: text that is the same for the same plan, and what a host needs to know to launch it. Needs no GPU.
 *
 * Every kernel takes one struct Args by value, words of eight bytes in this order (a part that is empty has one word):
 *     in[inputs] prepared[prepareds] narrow[groups] scale[groups] out[outputs] out_each[outputs] area[areas] dim[symbols] redo
 * Areas are arrays of floats in the call's workspace: intermediate tensors, kept values, statistics, partials. */
#ifndef LF_CUDA_EMIT_H
#define LF_CUDA_EMIT_H

#include "plan/plan.h"

enum {
    LF_CUDA_TILE = 128,        /* rows and columns of a tile of the plain product; columns of a partial of a row's statistic */
    LF_CUDA_COLUMN_ROWS = 256, /* rows a partial of a column statistic is made of: COLUMN_ROWS in text/plain.cu */
    LF_CUDA_THREADS = 256,     /* of a block, but for kernels that say otherwise */
    LF_CUDA_REDO_WORDS = 11,   /* of struct Redo in text/base.cu */
    LF_CUDA_TENSOR_ROWS = 128, /* of a tile of the product on tensor cores; text/wgmma.cu */
    LF_CUDA_TENSOR_COLUMNS = 256, /* in clusters of two */
    LF_CUDA_ALONE_COLUMNS = 128,  /* without */
    LF_CUDA_TENSOR_THREADS = 384,
    LF_CUDA_LINE = 128         /* bytes of a line of an operand */
};

/* How products on tensor cores take their operands; the numbers are those of text/split.cu. */
typedef enum lf_cuda_mode { LF_CUDA_FP32, LF_CUDA_TF32, LF_CUDA_BF16, LF_CUDA_FP16 } lf_cuda_mode;

/* What multiplies: the ordinary units, tensor cores as Ampere has them (sm_80 and newer), as Hopper has them (sm_90a). Names: LINFUSE_CUDA, see cuda.h. */
typedef enum lf_cuda_unit { LF_CUDA_PLAIN, LF_CUDA_MMA, LF_CUDA_WGMMA } lf_cuda_unit;

typedef struct lf_cuda_target {
    lf_cuda_unit unit;
    lf_cuda_mode mode;
} lf_cuda_target;

/* ceil(rows / row_block) * ceil(width / width_block) * each floats */
typedef struct lf_cuda_area {
    lf_extent rows, width;
    int64_t row_block, width_block, each;
} lf_cuda_area;

/* How many blocks a launch has: */
typedef enum lf_cuda_work {
    LF_CUDA_ROWS,          /* one for each rows_a_block rows, or fewer that take several turns */
    LF_CUDA_TILES,         /* one a tile of rows x width */
    LF_CUDA_COLUMN_BLOCKS, /* one for each LF_CUDA_COLUMN_ROWS rows and LF_CUDA_THREADS columns */
    LF_CUDA_COLUMN_END,    /* one for each LF_CUDA_THREADS columns */
    LF_CUDA_TENSOR         /* as many as there are multiprocessors, or fewer; WGMMA: two kernels, NAME for clusters of two and NAME_alone for one row
                            * block, which take the tensor maps of x's lines and the weight's before Args; MMA: one, which takes the weight's lines before Args */
} lf_cuda_work;

typedef struct lf_cuda_launch {
    char name[32];
    lf_cuda_work work;
    int32_t group;
    lf_extent rows, width;
    int rows_a_block;
    /* TENSOR */
    int32_t x_area;        /* of x's lines */
    int64_t lines;         /* of a row */
    lf_cuda_mode mode;
} lf_cuda_launch;

typedef struct lf_cuda_source {
    char *text;
    lf_cuda_launch *launch; /* in order */
    lf_cuda_area *area;
    int32_t launches, areas;
} lf_cuda_source;

/* *out is to be freed whatever is returned. Fails: LF_ERR_NOMEM. */
lf_status lf_cuda_emit(const lf_plan *plan, lf_cuda_target target, lf_cuda_source *out, lf_diag *diag);
void lf_cuda_source_free(lf_cuda_source *source);

#endif
