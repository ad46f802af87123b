/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as CUDA C: text that is the same for the same plans, and what a host needs to know to launch it. Needs no GPU.
 *
 * A source is one kernel, `program`. Its first part is the plan that runs; others redo rows in the same launch: those
 * whose range is too wide for tensor cores, and those a guarded rewrite may not touch. A part is a list of stages with
 * a barrier of all blocks between two of them. The kernel takes by value the tensor maps of the first part's products
 * (x's lines and the weight's of each; none where there are no such products; where there is no wgmma a map begins with
 * the address and that is all), a struct
 * Control, and for each part a struct Args: words of eight bytes in this order (an array that is empty has one word):
 *     in0.. prepared0.. narrow[products] scale[products] out0.. out_each[outputs] area0.. dim[symbols] redo
 * Areas are arrays in the call's workspace: intermediate tensors and kept values, of their type; statistics and
 * partials, of floats; x in lines. Each pointer is to elements of its type. */
#ifndef LF_CUDA_EMIT_H
#define LF_CUDA_EMIT_H

#include "plan/gpu.h"
#include "plan/plan.h"

enum {
    /* rows and columns of a tile of the plain product; columns of a partial of a row's statistic */
    LF_CUDA_TILE = 128,
    LF_CUDA_COLUMN_ROWS = 256, /* rows a partial of a column statistic is made of: COLUMN_ROWS in text/plain.cu */
    LF_CUDA_THREADS = 256,     /* of a block, but for kernels with wgmma */
    /* bytes of shared memory of a plain product's stage, at most */
    LF_CUDA_PLAIN_SHARED = 2 * 16 * (LF_CUDA_TILE + 4) * 4,
    LF_CUDA_REDO_WORDS = 7,    /* of struct Redo in text/base.cu */
    LF_CUDA_CONTROL_WORDS = 7, /* of struct Control */
    LF_CUDA_TENSOR_THREADS = 384,
    LF_CUDA_SCRATCH = 64       /* bytes of shared memory of a kernel's own, for each warp: of text/base.cu */
};

/* All that a kernel has beside what the host gives it, which must leave so much. */
static inline int lf_cuda_own_shared(int threads)
{
    return (threads / 32 + 1) * LF_CUDA_SCRATCH;
}

/* Where, in floats behind the scales of a weight's rows, stands what x's elements are multiplied by where its columns
 * are balanced: a multiple of four, and past what a pair of scales may read. */
static inline int64_t lf_cuda_columns_at(int64_t rows)
{
    return (rows + 8 + 3) / 4 * 4;
}

/* Empty arrays of Args have one word. */
static inline size_t lf_at_least_one(int32_t n)
{
    return n > 0 ? (size_t)n : 1;
}

/* The words of Args before those of the outputs. */
static inline size_t lf_words_before_outputs(const lf_plan *plan)
{
    return (size_t)plan->graph->inputs + (size_t)plan->prepareds + 2 * lf_at_least_one(plan->products);
}

/* The text's function that makes products in such tiles. */
const char *lf_tile_product(const lf_tile *tile);
/* The text's kernel that looks at the columns of a weight of such elements, where operands are split. */
const char *lf_cuda_find_columns(lf_dtype weight);
/* The one that brings a weight of a group's products on tensor cores into lines; returns name. */
enum { LF_CUDA_SPLIT_NAME = 48 };
const char *lf_cuda_split_weight(int32_t group, int32_t weight, char *name);
/* Rows of the boxes in which the weight is fetched. */
int lf_tile_w_rows(const lf_tile *tile);
/* Bytes of dynamic shared memory of a kernel with wgmma. */
unsigned lf_cuda_shape_shared(lf_tile_shape shape, lf_precision precision);

/* Names of units: LINFUSE_CUDA, see cuda.h. shape: for how many rows is the host's choice. */
typedef struct lf_cuda_target {
    lf_gpu_unit unit;
    lf_precision precision;
    lf_tile_shape shape;
    bool aligned; /* the caller's arrays begin at multiples of 16 bytes */
    /* a device with fewer multiprocessors than an H200: no blocks wait for each other with tiles in registers */
    bool small;
} lf_cuda_target;

/* ceil(rows / row_block) * ceil(width / width_block) * each elements */
typedef struct lf_cuda_area {
    lf_extent rows, width;
    int64_t row_block, width_block, each;
    lf_dtype dtype;
} lf_cuda_area;

/* How many blocks a stage has work for: */
typedef enum lf_cuda_work {
    LF_CUDA_ROWS,          /* one for each rows_a_block rows */
    LF_CUDA_SPLIT,         /* likewise; brings x into lines */
    LF_CUDA_TILES,         /* one a tile of rows x width */
    LF_CUDA_COLUMN_BLOCKS, /* one for each LF_CUDA_COLUMN_ROWS rows and LF_CUDA_THREADS columns */
    LF_CUDA_COLUMN_END,    /* one for each LF_CUDA_THREADS columns */
    LF_CUDA_TENSOR         /* one a tile of its shape */
} lf_cuda_work;

typedef struct lf_cuda_stage {
    char name[32];
    lf_cuda_work work;
    int32_t group;
    lf_extent rows, width;
    int rows_a_block;
    bool ahead;            /* ROWS: coming rows are on their way while one is finished */
    unsigned ring;         /* then: bytes of shared memory they wait in; 0: the next is in registers too */
    bool arrives;          /* ROWS: a block has arrived at the barrier that follows before its last row is stored */
    /* TENSOR */
    int32_t x_area;        /* of x's lines, -1 where input x_input is that */
    int32_t x_input;
    bool x_written;        /* an earlier stage that knows nothing of it has written x so */
    int64_t lines;         /* of a row */
    int64_t wave;          /* blocks that wait for each other with tiles in registers: so many must be resident */
} lf_cuda_stage;

/* What a part does: */
typedef enum lf_cuda_role { LF_CUDA_MAIN, LF_CUDA_FULL_RANGE, LF_CUDA_AS_WRITTEN, LF_CUDA_ROLES } lf_cuda_role;

typedef struct lf_cuda_part {
    const lf_plan *plan;    /* NULL: there is no such part */
    lf_cuda_target target;
    lf_cuda_stage *stage;   /* in order */
    lf_cuda_area *area;
    int32_t stages, areas;
} lf_cuda_part;

typedef struct lf_cuda_source {
    char *text;
    lf_cuda_part part[LF_CUDA_ROLES];
    int threads;            /* of a block */
    int products;           /* pairs of tensor maps it takes */
    unsigned ring;          /* bytes of shared memory that coming rows wait in, at most */
    bool waits;             /* blocks wait for each other: all of them must be resident */
} lf_cuda_source;

/* Has the plan products on tensor cores, so that there are tiles to choose? */
bool lf_cuda_on_tensor_cores(const lf_plan *plan, lf_cuda_target target);

/* The kernel of a plan; rows of too wide a range are redone where its products are split, rows as written where that
 * plan is given (borrowed, may be NULL). *out is to be freed whatever is returned. Fails: LF_ERR_NOMEM. */
lf_status lf_cuda_emit(const lf_plan *plan, const lf_plan *as_written, lf_cuda_target target, lf_cuda_source *out,
                       lf_diag *diag);
void lf_cuda_source_free(lf_cuda_source *source);

#endif
